"""Gradients of steps whose experts are balanced, in float64: writes tests/data/balance.

    VENV/bin/python tests/golden/make_balance.py

The model is qwen3_moe_balanced's. CASE.safetensors: gradients of the rows in CASE.jsonl; losses and the metric aux_loss
in expect.json. Losses are TRL's own, as in make_hybrids.py, plus router_aux_loss_coef times transformers' aux_loss: of
`dpo` and `grpo` all documents are one micro-batch (SFTTrainer and the others add it so); of `parts`, four
documents of one length, each is one, and the mean counts (SFTTrainer divides by the micro-batches of the step).
"""

import json
import os
import pathlib
import random
import sys

import make_goldens
import make_hybrids as hybrids
import reference_float64 as reference
import torch
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).resolve().parent
MODEL, TARGET = HERE / "qwen3_moe_balanced" / "model", HERE.parent / "data" / "balance"
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
    for file in TARGET.glob("*.safetensors"):
        os.chmod(file, 0o644)
    (TARGET / "expect.json").write_text(json.dumps(expect, indent=1) + "\n")
    print(expect)
    return 0


if __name__ == "__main__":
    sys.exit(main())
