#!/usr/bin/env python3
"""Makes llama_bias/optimizers.json: steps by torch's optimizers with other than default hyper-parameters, in float64.

    make_optimizers.py

Which parameters decay is decided by transformers' Trainer (norms and biases do not). For each tensor: how far it went,
and the share of that along the weight it began with, which a wrong sign or a missing decay changes.
"""

import json
import pathlib
import sys

import torch
import transformers

import reference_float64 as reference

HERE = pathlib.Path(__file__).resolve().parent
CASE = HERE / "llama_bias"
STEPS, CLIP = 5, 0.5


class Lion(torch.optim.Optimizer):
    """Algorithm 2 of "Symbolic Discovery of Optimization Algorithms" (Chen et al. 2023)."""

    def __init__(self, groups, lr, betas):
        super().__init__(groups, {"lr": lr, "betas": betas})

    def step(self):
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                momentum = self.state[p].setdefault("m", torch.zeros_like(p))
                direction = torch.sign(momentum * first + p.grad * (1 - first))
                p.data -= group["lr"] * (direction + group["weight_decay"] * p.data)
                momentum.copy_(momentum * second + p.grad * (1 - second))


# sbprun's options, torch's class and its arguments.
RUNS = [
    ("adamw", "--betas 0.8,0.95 --eps 0.01 --weight-decay 0.1", torch.optim.AdamW,
     {"lr": 0.02, "betas": (0.8, 0.95), "eps": 0.01}, 0.1),
    ("adamw", "--betas 0.5,0.6 --eps 1e-4 --weight-decay 0", torch.optim.AdamW,
     {"lr": 0.02, "betas": (0.5, 0.6), "eps": 1e-4}, 0.0),
    ("sgd", "--weight-decay 0", torch.optim.SGD, {"lr": 0.5}, 0.0),
    ("sgd", "--weight-decay 0.3", torch.optim.SGD, {"lr": 0.5}, 0.3),
    ("sgd-momentum", "--momentum 0.8 --weight-decay 0.3", torch.optim.SGD, {"lr": 0.2, "momentum": 0.8}, 0.3),
    ("lion", "--betas 0.9,0.95 --weight-decay 0.1", Lion, {"lr": 0.01, "betas": (0.9, 0.95)}, 0.1),
]


def decaying(model):
    """As transformers' Trainer has it, with a model in place of its own."""
    trainer = object.__new__(transformers.Trainer)
    return set(transformers.Trainer.get_decay_parameter_names(trainer, model))


def run(rows, make, arguments, decay):
    with reference.Float64Patches(CASE / "model"):
        model = reference.load(CASE / "model", torch.float64)
        start = {name: p.detach().clone() for name, p in model.named_parameters()}
        names = decaying(model)
        groups = [
            {"params": [p for n, p in model.named_parameters() if (n in names) == does], "weight_decay": decay * does}
            for does in (True, False)
        ]
        optimizer = make(groups, **arguments)
        steps = []
        for _ in range(STEPS):
            optimizer.zero_grad()
            with reference.NoFloat32():
                result = reference.run_step(model, rows)
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item()
            optimizer.step()
            steps.append({"loss": result.loss, "grad_norm": norm})
    moved = {}
    for name, p in model.named_parameters():
        way = p.detach() - start[name]
        moved[name] = {"norm": way.norm().item(), "along": ((way * start[name]).sum() / start[name].norm()).item()}
    return steps, moved, sorted(set(start) - names)


def main():
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    rows = [json.loads(line) for line in (CASE / "train.jsonl").read_text().splitlines()]
    out = {"about": "steps over all rows of train.jsonl at once, in float64, by torch's optimizers",
           "made_with": {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__},
           "steps": STEPS, "clip": CLIP, "runs": []}
    for optimizer, options, make, arguments, decay in RUNS:
        steps, moved, without = run(rows, make, arguments, decay)
        out["without_decay"] = without
        out["runs"].append({"optimizer": optimizer, "options": f"{options} --lr {arguments['lr']}", "float64": steps,
                            "moved": moved})
        print(options, "losses", " ".join(f"{s['loss']:.4f}" for s in steps))
    (CASE / "optimizers.json").write_text(json.dumps(out, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
