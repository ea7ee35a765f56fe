#!/usr/bin/env python3
"""What TensorBoard's own reader makes of the event files of a run that was resumed, beside metrics.jsonl, which it must
equal at every step: tests/bench/event_files.py [BUILD]. Needs the package tensorboard."""

import glob
import json
import subprocess
import sys
import tempfile

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

build = sys.argv[1] if len(sys.argv) > 1 else "build/release"
model, data = "tests/data/stories260K", "tests/golden/stories260k_trl/train.jsonl"

with tempfile.TemporaryDirectory() as folder:
    def run(*more):
        subprocess.run([f"{build}/sbprun", model, "--data", data, "--out", f"{folder}/out", "-q", *more], check=True)

    run("--steps", "20", "--eval", data, "--eval-every", "8", "--save-every", "5", "--report-to", "tensorboard")
    subprocess.run(["rm", "-r", f"{folder}/out/checkpoint-20"], check=True)  # as if it had ended after step 17
    run("--resume")
    files = glob.glob(f"{folder}/out/runs/*")
    events = EventAccumulator(f"{folder}/out/runs")
    events.Reload()
    compared = 0
    for line in open(f"{folder}/out/metrics.jsonl", encoding="utf-8"):
        line = json.loads(line)
        for key, value in line.items():
            if key in ("step", "kind", "eval_file") or value is None:
                continue
            tag = f"eval/{key[5:]}" if key.startswith("eval_") else f"train/{key}"
            found = [event.value for event in events.Scalars(tag) if event.step == line["step"]]
            same = [x for x in found if abs(x - value) <= 1e-6 * abs(value)]
            # an epoch stands in both kinds of lines
            if len(found) != 1 and not (key == "epoch" and len(set(found)) == 1) or not same:
                sys.exit(f"{tag} at step {line['step']}: {found}, metrics.jsonl has {value}")
            compared += 1
    tags = sorted(events.Tags()["scalars"])
    print(f"{len(files)} files, {len(tags)} tags, {compared} numbers equal to metrics.jsonl: {', '.join(tags)}")
