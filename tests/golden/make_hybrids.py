"""Gradients of TRL's DPO, GRPO and PPO trainers in float64 for models that carry states: writes tests/data/hybrids.

    VENV/bin/python tests/golden/make_hybrids.py TRL                    (VENV, TRL: as in make_ppo.py)

FAMILY/model: a small random model with a value head, which PPO trains; FAMILY/OBJECTIVE.safetensors: gradients of the
rows in OBJECTIVE.jsonl, losses in loss.json. Log-probabilities and values are transformers', documents one at a time;
losses are TRL's own, as in make_objectives.py and make_ppo.py. Documents are shorter than a convolution, longer than a
block of the delta rule, and in between.
"""
import json
import os
import pathlib
import random
import shutil
import sys
from collections import defaultdict

import make_ppo
import reference_float64 as reference
import torch
from cases import Case
from configs import lfm2, qwen3_5
from make_goldens import write_model
from make_objectives import dpo_case, grpo_case
from safetensors.torch import load_file, save_file

TARGET = pathlib.Path(__file__).resolve().parent.parent / "data" / "hybrids"
FAMILIES = {
    "qwen3_5": Case("", qwen3_5(), [], gain=0.7, centres=((".A_log", -2.0),)),
    "lfm2": Case("", lfm2(), [], gain=0.9),
}
DPO = {"beta": 0.3}
GRPO = {"beta": 0.05, "epsilon": 0.2, "epsilon_high": 0.28}


def draw(r, low, high):
    return [r.randint(3, 60) for _ in range(r.randint(low, high))]


class Documents:
    """Prompts with answers: the columns that make_objectives.py reads, and what to send back to the model."""

    def __init__(self, model, documents):
        self.rows, self.places, parts = defaultdict(list), [], []
        for number, (prompt, answer) in enumerate(documents):
            ids = torch.tensor(prompt + answer)
            logp = torch.log_softmax(model(ids[None]).logits[0, :-1], -1)
            start = len(self.rows["doc"])
            self.rows["doc"] += [number] * len(ids)
            self.places.append(list(range(start + len(prompt) - 1, start + len(ids) - 1)))
            parts += [logp[torch.arange(len(ids) - 1), ids[1:]], torch.full((1,), -1.0)]  # the last row has no label
        self.logps = torch.cat(parts)
        self.rows["logp"] = self.logps.tolist()
        self.rows["entropy"] = self.rows["hit"] = [0.0] * len(self.logps)

    def answer(self, document):
        return [self.rows["logp"][place] for place in self.places[document]]

    def backward(self, logp, loss):
        self.logps.backward(torch.autograd.grad(loss, logp)[0])
        return loss.item()


def make_dpo(model, r):
    rows = [
        {"prompt_ids": draw(r, 1, most), "chosen_ids": draw(r, low, high), "rejected_ids": draw(r, 1, 9)}
        for most, low, high in ((3, 64, 70), (9, 1, 9), (1, 1, 2), (12, 4, 9))
    ]
    documents = Documents(model, [(row["prompt_ids"], row[key]) for row in rows for key in ("chosen_ids", "rejected_ids")])
    groups = defaultdict(list)
    for number, row in enumerate(rows):
        for which, key in enumerate(("chosen", "rejected")):
            row[f"ref_{key}_logps"] = round(sum(documents.answer(2 * number + which)) + r.gauss(0, 2), 3)
            groups[f"ref_logps_sum.{key}"].append(row[f"ref_{key}_logps"])
    logp, loss, _ = dpo_case((documents.rows, documents.places, groups, {}), ["sigmoid"], [1.0], DPO)
    return rows, documents.backward(logp, loss)


def make_grpo(model, r):
    sizes = ((2, 64, 70), (9, 1, 9), (1, 1, 1), (12, 4, 9))
    rows = [{"prompt_ids": draw(r, 1, most), "completion_ids": draw(r, low, high)} for most, low, high in sizes]
    documents = Documents(model, [(row["prompt_ids"], row["completion_ids"]) for row in rows])
    for number, row in enumerate(rows):
        row["advantage"] = round(r.gauss(0, 1), 4)
        for key, column, far in (("old", "old_logps", 0.3), ("ref", "ref_logps", 0.5)):
            near = [round(x + r.gauss(0, far), 4) for x in documents.answer(number)]
            row[f"{key}_per_token_logps"] = near
            documents.rows[column] += [0.0] * (len(row["prompt_ids"]) - 1) + near + [0.0]
    inputs = documents.rows, documents.places, {}, {"labels": sum(map(len, documents.places))}, [x["advantage"] for x in rows]
    logp, loss, *_ = grpo_case(inputs, "dapo", "token", GRPO, True)
    return rows, documents.backward(logp, loss)


def make_ppo_step(model, head, r, source):
    sizes = ((2, 64, 70), (3, 2, 2), (1, 7, 7), (5, 1, 4))
    rows = [{"prompt_ids": draw(r, 1, most), "completion_ids": draw(r, low, high)} for most, low, high in sizes]
    scores, docs = [make_ppo.score(model, head, row) for row in rows], []
    for row, (logps, values) in zip(rows, scores, strict=True):
        row["reward"] = round(r.gauss(0, 2), 3)
        row["ref_per_token_logps"] = [round(x + r.gauss(0, 0.5), 3) for x in logps.tolist()]
        docs.append({"reward": row["reward"], "ref_logps": row["ref_per_token_logps"]})
        for key, numbers in (("logps", logps.tolist()), ("values", values.tolist())):
            docs[-1][key] = docs[-1][f"old_{key}"] = numbers
    step = make_ppo.run(source, docs, {})
    for (logps, values), dlogp, dvalue in zip(scores, step["dlogp"], step["dvalue"], strict=True):
        (logps @ torch.tensor(dlogp[:-1]) + values @ torch.tensor(dvalue)).backward()
    return rows, step["loss"]


def make(name, case, source):
    folder = TARGET / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    torch.set_default_dtype(torch.float32)
    write_model(folder / "model", f"hybrids_{name}", case)
    torch.set_default_dtype(torch.float64)
    generator, losses = torch.Generator().manual_seed(5), {}
    weights = load_file(folder / "model" / "model.safetensors")
    weights["v_head.summary.weight"] = (0.2 * torch.randn(1, case.config["hidden_size"], generator=generator)).float()
    weights["v_head.summary.bias"] = torch.tensor([0.375]).float()
    with reference.Float64Patches(folder / "model"):
        model = reference.load(folder / "model", torch.float64)
        head = {key: value.double().requires_grad_() for key, value in weights.items() if key.startswith("v_head")}
        for objective in ("dpo", "grpo", "ppo"):
            r, trained = random.Random(f"{name}/{objective}"), dict(model.named_parameters())
            model.zero_grad()
            if objective == "ppo":
                trained.update(head)
                rows, losses[objective] = make_ppo_step(model, head, r, source)
            else:
                rows, losses[objective] = (make_dpo if objective == "dpo" else make_grpo)(model, r)
            save_file({key: p.grad.contiguous() for key, p in trained.items()}, folder / f"{objective}.safetensors")
            (folder / f"{objective}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    save_file(weights, folder / "model" / "model.safetensors", metadata={"format": "pt"})
    (folder / "loss.json").write_text(json.dumps(losses) + "\n")
    for file in folder.rglob("*.safetensors"):
        os.chmod(file, 0o644)
    print(name, losses)


def main():
    with open(os.path.join(sys.argv[1], "trl", "experimental", "ppo", "ppo_trainer.py")) as file:
        source = file.read()
    for name, case in FAMILIES.items():
        make(name, case, source)


if __name__ == "__main__":
    main()
