"""Gradients of steps whose experts are balanced, in float64: writes tests/data/balance.

    VENV/bin/python tests/golden/make_balance.py

The model is qwen3_moe_balanced's. CASE.safetensors: gradients of the rows in CASE.jsonl; losses and the metric aux_loss
in expect.json. Losses are TRL's own, as in make_hybrids.py, plus router_aux_loss_coef times transformers' aux_loss: of
`dpo` and `grpo` all documents are one micro-batch (SFTTrainer and the others add it so); of `parts`, four
documents of one length, each is one, and the mean counts (SFTTrainer divides by the micro-batches of the step).

adapter: of the same model by peft, random numbers in A and B of all linear layers, of the experts' tensors and of the
router's; `adapted_sft` and `adapted_dpo` are its gradients, under the names of adapter_model.safetensors. The rows of
`adapted_sft` are those of the golden case.

`load` in expect.json: of models whose router has no such loss, the shares of all choices that the busiest expert and the
idlest one have, over the rows of their golden case; by transformers' routers.
"""

import json
import os
import pathlib
import random
import shutil
import sys

import make_goldens
import make_hybrids as hybrids
import peft
import reference_float64 as reference
import torch
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).resolve().parent
MODEL, TARGET = HERE / "qwen3_moe_balanced" / "model", HERE.parent / "data" / "balance"
ADAPTER = {
    "r": 2, "lora_alpha": 3, "target_modules": "all-linear",
    "target_parameters": ["experts.gate_up_proj", "experts.down_proj", "mlp.gate.weight"],
}
LOADS = {"gemma4_26b_a4b_v": "Gemma4TextRouter"}
LENGTH = 19


def draw(r, low, high):
    return [r.randint(3, 50) for _ in range(r.randint(low, high))]


def balance(model, documents):
    return reference.balance_loss(model, [{"input_ids": document} for document in documents])


def add(model, groups):
    """The mean over micro-batches of what balances experts; its gradient is added. (loss, aux_loss)"""
    loss = sum(balance(model, documents) for documents in groups) / len(groups)
    loss.backward()
    return loss.item(), loss.item() / model.config.router_aux_loss_coef


def make_parts(model, r):
    rows = [{"input_ids": draw(r, LENGTH, LENGTH)} for _ in range(4)]
    with torch.no_grad():
        pooled = balance(model, [row["input_ids"] for row in rows]).item()
    coefficient, model.config.router_aux_loss_coef = model.config.router_aux_loss_coef, 0.0
    step = reference.run_step(model, [{**row, "labels": row["input_ids"]} for row in rows])
    model.config.router_aux_loss_coef = coefficient
    loss, aux = add(model, [[row["input_ids"]] for row in rows])
    if abs(loss - pooled) < 1e-3:
        raise RuntimeError("the split of the step was to tell")
    return rows, step.loss + loss, aux


def make_pairs(model, r):
    rows, loss = hybrids.make_dpo(model, r)
    more, aux = add(model, [[row["prompt_ids"] + row[key] for row in rows for key in ("chosen_ids", "rejected_ids")]])
    return rows, loss + more, aux


def make_rollouts(model, r):
    rows, loss = hybrids.make_grpo(model, r)
    more, aux = add(model, [[row["prompt_ids"] + row["completion_ids"] for row in rows]])
    return rows, loss + more, aux


def make_golden_step(model, _):
    rows = [json.loads(line) for line in (MODEL.parent / "train.jsonl").read_text().splitlines()]
    step = reference.run_step(model, rows)
    return rows, step.loss, step.metrics["aux_loss"]


@torch.no_grad()
def make_adapter(directory):
    """Random numbers in all that is trained, saved by peft in float32."""
    shutil.rmtree(directory, ignore_errors=True)
    base = reference.load(MODEL, torch.float32)
    model = peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", **ADAPTER))
    for name, parameter in trained(model).items():
        rng = make_goldens.rng_for("balance", "adapter", name)
        values = torch.tensor([rng.gauss(0.0, 1.0) for _ in range(parameter.numel())], dtype=torch.float32)
        parameter.copy_(0.5 * values.reshape(parameter.shape) * parameter.shape[1] ** -0.5)
    model.save_pretrained(directory)
    (directory / "README.md").unlink(missing_ok=True)
    config = json.loads((directory / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = f"../../../golden/{MODEL.parent.name}/model"
    for key in ("target_modules", "target_parameters"):
        config[key].sort()
    (directory / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")


def trained(model):
    """Parameters by their names in adapter_model.safetensors."""
    return {key.replace(".default", ""): value for key, value in model.named_parameters() if value.requires_grad}


def measure_load(name, router):
    """Shares of all choices, of one micro-batch."""
    directory = HERE / name / "model"
    with torch.no_grad():
        model = reference.load(directory, torch.float64)
        chosen = []
        for module in model.modules():
            if type(module).__name__ == router:
                module.register_forward_hook(lambda _, inputs, outputs: chosen.append(outputs[2].flatten()))
        for line in (HERE / name / "train.jsonl").read_text().splitlines():
            row = json.loads(line)
            model(input_ids=torch.tensor([row["prompt_ids"] + row["completion_ids"]]), use_cache=False)
        counts = torch.bincount(torch.cat(chosen), minlength=model.config.num_experts)
    share = counts.double() / counts.sum()
    return {"max": share.max().item(), "min": share.min().item()}


ADAPTED = {"adapted_sft": make_golden_step, "adapted_dpo": make_pairs}
CASES = {"parts": make_parts, "dpo": make_pairs, "grpo": make_rollouts}


def main():
    hybrids.draw = draw
    torch.set_num_threads(1)
    TARGET.mkdir(parents=True, exist_ok=True)
    torch.set_default_dtype(torch.float64)
    expect = {}
    with reference.Float64Patches(MODEL):
        model = reference.load(MODEL, torch.float64)
        for name, make in CASES.items():
            model.zero_grad()
            rows, loss, aux = make(model, random.Random(f"balance/{name}"))
            names = {key: parameter.grad for key, parameter in model.named_parameters()}
            step = reference.Step(loss, {}, [], names)
            save_file(make_goldens.stored_gradients(model, step, MODEL), TARGET / f"{name}.safetensors")
            (TARGET / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            expect[name] = {"loss": loss, "aux_loss": aux}
        make_adapter(TARGET / "adapter")
        model = peft.PeftModel.from_pretrained(
            reference.load(MODEL, torch.float32), TARGET / "adapter", is_trainable=True).to(torch.float64).eval()
        for name, make in ADAPTED.items():
            model.zero_grad()
            rows, loss, aux = make(model.get_base_model(), random.Random(f"balance/{name}"))
            gradients = {key: value.grad.contiguous() for key, value in trained(model).items()}
            save_file(gradients, TARGET / f"{name}.safetensors")
            (TARGET / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            expect[name] = {"loss": loss, "aux_loss": aux}
    expect["load"] = {name: measure_load(name, router) for name, router in LOADS.items()}
    for file in TARGET.rglob("*.safetensors"):
        os.chmod(file, 0o644)
    (TARGET / "expect.json").write_text(json.dumps(expect, indent=1) + "\n")
    print(expect)
    return 0


if __name__ == "__main__":
    sys.exit(main())
