"""Gradients and steps of TRL's KTOTrainer in float64: writes tests/data/kto.

    VENV/bin/python tests/golden/make_kto.py                                   (VENV: as in make_objectives.py)

TRL's collator and `_compute_loss`, with its own `_compute_kl_logps`, on the model of llama_mqa through transformers; each
row's prompt gets the answer of the row before it in its batch, as `add_kl_completion_ids` of `_prepare_dataset` has it.
- rows.jsonl, gradients.safetensors, loss.json: one batch of rows that carry what a reference says of both.
- steps.jsonl, weights.safetensors, steps.json: plain gradient descent over batches of STEP_ROWS in the order of the file,
  two epochs, the reference being the weights at the beginning; what TRL reports of each step, and the weights at the end;
  eval.json: what it then says of all rows as one batch.
"""
import copy
import json
import os
import random
from collections import defaultdict
from functools import partial
from types import SimpleNamespace

import reference_float64 as reference
import torch
from make_objectives import Accelerator
from safetensors.torch import save_file
from trl.trainer.kto_trainer import DataCollatorForUnpairedPreference, KTOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))
TARGET = os.path.join(HERE, "..", "data", "kto")
MODEL = os.path.join(HERE, "llama_mqa", "model")
STEP_ROWS, LR = 4, 2.0
SETTINGS = {"beta": 0.7, "desirable_weight": 1.25, "undesirable_weight": 0.75}


def draw_rows(seed, count):
    r = random.Random(seed)

    def ids(n):
        return [r.randint(3, 60) for _ in range(n)]

    rows = [{"prompt_ids": ids(r.randint(1, 7)), "completion_ids": ids(r.randint(1, 9))} for _ in range(count)]
    for i, row in enumerate(rows):
        row["label"] = i % 3 != 1
    return rows


def outputs(model, input_ids, attention_mask, labels, **_):
    """Log-probabilities and entropies as TRL's fused head returns them; documents one at a time, without padding."""
    log_probs, entropy = torch.zeros_like(labels[:, 1:]).double(), torch.zeros_like(labels[:, 1:]).double()
    for i, ids in enumerate(input_ids):
        count = int(attention_mask[i].sum())
        logp = torch.log_softmax(model(ids[None, :count]).logits[0, :-1], -1)
        counted = labels[i, 1:count] >= 0
        at = logp[torch.arange(count - 1), ids[1:count]]
        log_probs[i, : count - 1] = torch.where(counted, at, torch.zeros(()))
        entropy[i, : count - 1] = -(logp.exp() * logp).sum(-1).detach()
    return SimpleNamespace(log_probs=log_probs, entropy=entropy, mean_logits=torch.zeros_like(log_probs))


def loss_of(model, ref_model, rows):
    examples = [dict(row) for row in rows]
    answers = [row["completion_ids"] for row in rows]
    for example, answer in zip(examples, [answers[-1]] + answers[:-1], strict=True):
        example["KL_completion_ids"] = answer
    trainer = SimpleNamespace(
        model=torch.nn.Module(),  # says that it is in training
        ref_model=ref_model and partial(outputs, ref_model),
        args=SimpleNamespace(gradient_checkpointing_kwargs=None),
        accelerator=Accelerator(),
        aux_loss_enabled=False,
        precompute_ref_logps="ref_logps" in rows[0],
        calculate_KL=True,
        loss_type="kto",
        _metrics={"train": defaultdict(list)},
        _total_train_tokens=0,
        _tp_size=1,
        **SETTINGS,
    )
    trainer._compute_kl_logps = partial(KTOTrainer._compute_kl_logps, trainer)
    trainer.model.is_gradient_checkpointing = False
    loss = KTOTrainer._compute_loss(
        trainer, partial(outputs, model), DataCollatorForUnpairedPreference(pad_token_id=0)(examples), False
    )
    metrics = {k: v[-1] for k, v in trainer._metrics["train"].items() if not k.startswith("logits") and k != "num_tokens"}
    return loss, {"loss": loss.item(), **metrics}


def write(name, text):
    with open(os.path.join(TARGET, name), "w") as file:
        file.write(text)


def write_rows(name, rows):
    write(name, "".join(json.dumps(row) + "\n" for row in rows))


def write_gradients(model):
    r = random.Random(2)
    rows = draw_rows(1, 6)
    for i, row in enumerate(rows):  # a policy that has gone some way from its reference
        row["ref_logps"] = round(-4.1 * len(row["completion_ids"]) + r.gauss(0, 1.5), 3)
        row["ref_KL_logps"] = round(-5.5 * len(rows[i - 1]["completion_ids"]) - r.random(), 3)
    loss, metrics = loss_of(model, None, rows)
    loss.backward()
    assert metrics["kl"] > 0.1
    save_file({n: p.grad.contiguous() for n, p in model.named_parameters()}, os.path.join(TARGET, "gradients.safetensors"))
    model.zero_grad()
    write_rows("rows.jsonl", rows)
    write("loss.json", json.dumps(metrics) + "\n")
    print(metrics)


def write_steps(model):
    rows = draw_rows(3, 10)
    ref_model, steps = copy.deepcopy(model), []
    for _ in range(2):
        for first in range(0, len(rows), STEP_ROWS):
            loss, metrics = loss_of(model, ref_model, rows[first : first + STEP_ROWS])
            loss.backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= LR * p.grad
            model.zero_grad()
            steps.append(metrics)
            print(metrics)
    assert any(step["kl"] == 0 for step in steps) and sum(step["kl"] > 0.01 for step in steps) > 1
    save_file({n: p.detach().contiguous() for n, p in model.named_parameters()}, os.path.join(TARGET, "weights.safetensors"))
    write_rows("steps.jsonl", rows)
    with torch.no_grad():
        write("eval.json", json.dumps(loss_of(model, ref_model, rows)[1]) + "\n")
    write("steps.json", "[\n" + ",\n".join(json.dumps(step) for step in steps) + "\n]\n")


def main():
    torch.set_default_dtype(torch.float64)
    os.makedirs(TARGET, exist_ok=True)
    torch.Tensor.float, narrow = torch.Tensor.double, torch.Tensor.float
    with reference.Float64Patches(MODEL):
        model = reference.load(MODEL, torch.float64)
        write_gradients(model)
        write_steps(model)
    torch.Tensor.float = narrow


if __name__ == "__main__":
    main()
