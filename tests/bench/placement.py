#!/usr/bin/env python3
"""A model trained in less memory than its optimizer states have, with placement on disk, killed and resumed.

    python3 tests/bench/placement.py MODEL [--memory 900MiB] [--seq-len 512] [--steps 4] [--dtype fp32] [--build build/release]

MODEL: what sbpc takes; ./run-demo brings demo-out/SmolLM2-135M-Instruct.Q4_1.gguf. Trains on token ids three times:
with everything in memory; with all placed on disk below --memory; and that killed in the middle (SIGKILL, after a
checkpoint) and resumed. Weights and optimizer states must be the same bits each time. Prints seconds a step, bytes a
step on disk, and memory planned and measured. Other work on the machine makes all of them slower: the load is printed.
"""
import argparse
import filecmp
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time

PLACEMENT = "+".join(f"{name}:disk" for name in ("checkpoints", "saved", "states", "gradients", "params"))


def run(*command):
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)}: {result.returncode}\n{result.stderr}")
    return json.loads(result.stdout)


def seconds(out):
    """The median of the steps but the first, which touches everything for the first time."""
    steps = [json.loads(line)["step_seconds"] for line in open(f"{out}/metrics.jsonl")][1:]
    return sorted(steps)[len(steps) // 2]


def kill_after(steps, out, *command):
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not os.path.isdir(f"{out}/checkpoint-{steps}"):
        if process.poll() is not None:
            sys.exit(f"{' '.join(command)} ended by itself")
        time.sleep(0.05)
    process.kill()
    process.wait()


def same(a, b, last):
    for name in ("model.safetensors", f"checkpoint-{last}/optimizer.safetensors"):
        if not filecmp.cmp(f"{a}/{name}", f"{b}/{name}", shallow=False):
            sys.exit(f"{a} and {b} differ in {name}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--memory", default="900MiB")
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--dtype", default="fp32")
    parser.add_argument("--build", default="build/release")
    a = parser.parse_args()
    work = tempfile.mkdtemp(prefix="placement-", dir=".")
    try:
        data = f"{work}/rows.jsonl"
        random.seed(1)
        with open(data, "w") as rows:
            for _ in range(a.steps):
                rows.write(json.dumps({"input_ids": [random.randrange(3, 10000) for _ in range(a.seq_len)]}) + "\n")
        shared = ["--seq-len", str(a.seq_len), "--dtype", a.dtype, "--clip", "none", "--accumulate", "1", "--json"]
        settings = {"in memory": ["--offload", "none"], "on disk": ["--memory", a.memory, "--offload", PLACEMENT]}
        for name, options in settings.items():
            plan = f"{work}/{name}.plan"
            run(f"{a.build}/sbpc", "compile", a.model, "-o", plan, *shared, *options)
        train = ["--data", data, "--batch-size", "1", "--steps", str(a.steps), "--json", "--save-every",
                 str(a.steps // 2), "--keep", "1", "--shuffle", "off"]
        print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        for name in settings:
            r = run(f"{a.build}/sbprun", f"{work}/{name}.plan", *train, "--out", f"{work}/{name}")
            print(f"{name:10} {seconds(f'{work}/{name}'):8.2f} s a step, "
                  f"{r['peak_bytes_planned'] / 2**20:8.1f} MiB planned, {r['peak_bytes_measured'] / 2**20:8.1f} measured, "
                  f"{r.get('disk_bytes_read', 0) / a.steps / 2**20:7.0f} MiB read and "
                  f"{r.get('disk_bytes_written', 0) / a.steps / 2**20:7.0f} written a step", flush=True)
        same(f"{work}/in memory", f"{work}/on disk", a.steps)
        command = [f"{a.build}/sbprun", f"{work}/on disk.plan", *train, "--out", f"{work}/killed"]
        kill_after(a.steps // 2, f"{work}/killed", *command)
        r = run(*command, "--resume")
        same(f"{work}/in memory", f"{work}/killed", a.steps)
        print(f"killed and resumed after {r['resumed_after']} of {a.steps} steps: the same bits")
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
