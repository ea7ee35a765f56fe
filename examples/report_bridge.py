#!/usr/bin/env python3
"""Passes a run on to trackio, or to wandb, which has the same functions:
sbprun MODEL --data FILE --out DIR --report-to jsonl | examples/report_bridge.py PROJECT [trackio|wandb]"""

import importlib
import json
import sys

tracker = importlib.import_module(sys.argv[2] if len(sys.argv) > 2 else "trackio")
tracker.init(project=sys.argv[1])
for line in map(json.loads, sys.stdin):
    prefix = "eval" if line.get("kind") == "eval" else "train"
    numbers = {f"{prefix}/{key.removeprefix('eval_')}": value for key, value in line.items() if isinstance(value, (int, float))}
    tracker.log(numbers, step=line.get("step"))
tracker.finish()
