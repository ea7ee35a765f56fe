#!/usr/bin/env python3
"""Writes schedules.def: learning rates of transformers.get_scheduler, for test_data_lr.c.

Needs torch and transformers (tests/golden/requirements.txt). Run: make_schedules.py > schedules.def
"""
import torch
import transformers
from transformers import get_scheduler

NAN = "NAN"
FIELDS = ["num_cycles", "min_lr", "min_lr_rate", "lr_end", "power", "timescale", "num_decay_steps",
          "num_stable_steps", "min_lr_ratio", "decay_type", "warmup_type"]
DEFAULTS = {"lr_end": 1e-7, "power": 1, "num_decay_steps": -1, "num_stable_steps": -1, "min_lr_ratio": 0,
            "decay_type": "cosine", "warmup_type": "linear"}
CASES = [
    ("linear", {}), ("constant", {}), ("constant_with_warmup", {}),
    ("cosine", {}), ("cosine", {"num_cycles": 1.5}),
    ("cosine_with_restarts", {}), ("cosine_with_restarts", {"num_cycles": 3}),
    ("cosine_with_min_lr", {"min_lr": 1e-5}), ("cosine_with_min_lr", {"min_lr_rate": 0.1, "num_cycles": 1}),
    ("cosine_warmup_with_min_lr", {"min_lr_rate": 0.2}), ("cosine_warmup_with_min_lr", {"min_lr": 2e-5}),
    ("polynomial", {}), ("polynomial", {"lr_end": 1e-5, "power": 2}),
    ("inverse_sqrt", {}), ("inverse_sqrt", {"timescale": 50}),
    ("warmup_stable_decay", {"num_decay_steps": 5}),
    ("warmup_stable_decay", {"num_decay_steps": 6, "decay_type": "linear", "min_lr_ratio": 0.1}),
    ("warmup_stable_decay", {"num_decay_steps": 6, "decay_type": "1-sqrt", "min_lr_ratio": 0.1,
                             "warmup_type": "cosine"}),
    ("warmup_stable_decay", {"num_decay_steps": 4, "num_stable_steps": 3, "warmup_type": "1-sqrt",
                             "num_cycles": 0.4}),
]
LR = 1e-3


def rates(name, kwargs, warmup, total, count):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=LR)
    scheduler = get_scheduler(name, optimizer, warmup, total, scheduler_specific_kwargs=dict(kwargs))
    out = []
    for _ in range(count):
        out.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return out


def text(value):
    return f'"{value}"' if isinstance(value, str) else repr(value)


print(f"/* Learning rates by get_scheduler of transformers {transformers.__version__}; written by make_schedules.py.")
print(" * CASE(schedule, warmup, total, " + ", ".join(FIELDS) + ", rates of the first steps...) */")
for name, kwargs in CASES:
    for warmup, total in [(0, 20), (4, 20), (7, 7)]:
        if name == "constant" and warmup:
            continue
        if name == "polynomial" and warmup == total:
            continue  # divides by 0 there
        values = [text(kwargs.get(f, DEFAULTS.get(f, NAN))).replace(f"'{NAN}'", NAN).replace(f'"{NAN}"', NAN)
                  for f in FIELDS]
        got = rates(name, kwargs, warmup, total, 24)
        print(f'CASE("{name}", {warmup}, {total}, ' + ", ".join(values) + ",")
        for i in range(0, len(got), 4):
            print("     " + ", ".join(repr(float(x)) for x in got[i:i + 4]) + ("," if i + 4 < len(got) else ")"))
