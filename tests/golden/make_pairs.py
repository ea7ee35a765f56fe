"""Gradients of TRL's ORPOTrainer and CPOTrainer (SimPO) in float64: writes tests/data/pairs.

    VENV/bin/python tests/golden/make_pairs.py                                 (VENV: as in make_objectives.py)

Log-probabilities of the model of llama_mqa through transformers, and what `get_batch_loss_metrics` makes of them as in
make_objectives.py, back to the parameters: rows.jsonl, NAME.safetensors, and NAME.json with loss and metrics.
"""
import json
import os
import random

import reference_float64 as reference
import torch
from make_objectives import CPOTrainer, ORPOTrainer, no_reference_case
from safetensors.torch import save_file

HERE = os.path.dirname(os.path.abspath(__file__))
TARGET = os.path.join(HERE, "..", "data", "pairs")
MODEL = os.path.join(HERE, "llama_mqa", "model")
CASES = {
    "orpo": (ORPOTrainer, {"beta": 0.3}),
    "simpo": (CPOTrainer, {"beta": 1.5, "simpo_gamma": 0.8, "cpo_alpha": 0.4, "label_smoothing": 0.1}),
}


def draw_rows():
    r = random.Random(41)
    rows = []
    for _ in range(5):
        ids = [[r.randint(3, 60) for _ in range(r.randint(1, most))] for most in (6, 9, 9)]
        rows.append(dict(zip(("prompt_ids", "chosen_ids", "rejected_ids"), ids, strict=True)))
    return rows


def main():
    torch.set_default_dtype(torch.float64)
    os.makedirs(TARGET, exist_ok=True)
    rows = draw_rows()
    documents = [(row["prompt_ids"], row[key]) for row in rows for key in ("chosen_ids", "rejected_ids")]
    columns, places = {"logp": [], "doc": []}, []
    for number, (prompt, answer) in enumerate(documents):
        start = len(columns["doc"])
        columns["doc"] += [number] * len(prompt + answer)
        places.append(list(range(start + len(prompt) - 1, start + len(prompt + answer) - 1)))
    with reference.Float64Patches(MODEL):
        model = reference.load(MODEL, torch.float64)
        parts = []
        for prompt, answer in documents:
            ids = torch.tensor(prompt + answer)
            logp = torch.log_softmax(model(ids[None]).logits[0, :-1], -1)
            parts += [logp[torch.arange(len(ids) - 1), ids[1:]], torch.full((1,), -1.0)]  # the last row has no label
        logps = torch.cat(parts)
        columns["logp"] = logps.tolist()
        for name, (trainer, settings) in CASES.items():
            logp, loss, metrics = no_reference_case((columns, places, None, None), trainer, settings)
            model.zero_grad()
            logps.backward(torch.autograd.grad(loss, logp)[0], retain_graph=True)
            gradients = {n: p.grad.contiguous() for n, p in model.named_parameters()}
            save_file(gradients, os.path.join(TARGET, f"{name}.safetensors"))
            with open(os.path.join(TARGET, f"{name}.json"), "w") as file:
                json.dump({"loss": loss.item(), **{k: float(v) for k, v in metrics.items()}}, file)
                file.write("\n")
            print(name, loss.item(), metrics)
    with open(os.path.join(TARGET, "rows.jsonl"), "w") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
