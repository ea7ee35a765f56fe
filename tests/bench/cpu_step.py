#!/usr/bin/env python3
"""Full optimizer steps of SmolLM2-135M's shape on the CPU: forward, backward, clipping, AdamW; fp32 and bf16.

    tests/bench/cpu_step.py [--rows 512,1024,2048,4096,8192] [--modes stream,checkpoint,standard] [--torch standard,checkpoint]
    tests/bench/cpu_step.py --bf16 --python VENV/bin/python     the table of bf16: stream at 1k, 2k, 4k, fp32 and bf16, ours and PyTorch's in turns

A mode may name its type, `stream:bf16`, `standard:bf16`; without, fp32. bf16 is --dtype bf16 (weights in two halves, fp32 in all) here and torch.autocast there.
The mode `fifth` is stream with what it may save within a fifth of the activation memory of PyTorch's standard backward at the
same length (needs --torch standard): sbpc compile --memory chooses what that is.

Each measurement is a process of its own. Seconds are the fastest of the steps of one process; with --repeat N every tool and mode
takes its turn N times and the median counts, so that a machine that slows down slows all alike. Activation memory is the peak of
the process minus weights, gradients and Adam's states. The last columns compare with PyTorch's standard backward. FLOPs are counted as 6 P T + 6 T^2 d_attention layers, no credit for
recomputation. With --torch, PyTorch's step on the same machine follows (needs torch and transformers in --python).
Ours are judged, exit status 1: losses of modes of one type over the same row and weights are at most 16 units in the last place of fp32 apart,
and memory measured is at most as far above the planned as tests/tolerance.h allows (SBP_TOLERANCE_PROCESS_EXCESS_BYTES and _PROCESS).
Results go to tests/bench/results/cpu_step.json (--bf16: cpu_step_bf16.json) with date, machine and commit.
"""
import argparse
import datetime
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile

TOP = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
FP32_EPSILON = 2**-23
EXCESS_BYTES, EXCESS = 512 << 10, 0.005  # of tests/tolerance.h


def run(command, **options):
    result = subprocess.run(command, capture_output=True, text=True, **options)
    if result.returncode != 0:
        return None, result.stderr.strip().splitlines()[-1:] or [f"exit status {result.returncode}"]
    return result, None


def model_flops(config, rows):
    heads, layers = config["num_attention_heads"], config["num_hidden_layers"]
    d = config["hidden_size"]
    head = config.get("head_dim", d // heads)
    kv = config["num_key_value_heads"] * head
    products = layers * (d * heads * head * 2 + d * kv * 2 + 3 * d * config["intermediate_size"]) + d * config["vocab_size"]
    return 6 * products * rows + 6 * rows * rows * heads * head * layers


def split(mode):
    """A mode and its type."""
    name, _, dtype = mode.partition(":")
    return name, dtype or "fp32"


def ours(arguments, folder, config, mode, rows, memory=None):
    mode, dtype = split(mode)
    model = os.path.join(folder, "model")
    plan, out = os.path.join(folder, "plan.bin"), os.path.join(folder, "out")
    data = os.path.join(folder, "rows.jsonl")
    random.seed(rows)
    with open(data, "w", encoding="utf-8") as f:
        f.write(json.dumps({"input_ids": [random.randrange(config["vocab_size"]) for _ in range(rows)]}) + "\n")
    result, error = run([arguments.sbpc, "compile", model, "-o", plan, "--seq-len", str(rows), "--backward", mode, "--dtype", dtype]
                        + (["--memory", str(int(memory))] if memory else []) + arguments.compile)
    if error:
        return {"error": error[0]}
    shutil.rmtree(out, ignore_errors=True)
    result, error = run([arguments.sbprun, plan, "--data", data, "--weights", "random:1", "--batch-size", "1",
                         "--steps", str(arguments.steps), "--threads", str(arguments.threads), "--out", out, "--json"])
    if error:
        return {"error": error[0]}
    summary = json.loads(result.stdout.splitlines()[-1])
    with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as f:
        lines = [json.loads(line) for line in f if "step_seconds" in line]
    steps = [line["step_seconds"] for line in lines]
    inspected = json.loads(run([arguments.sbpc, "inspect", plan, "--json"])[0].stdout)
    resident = sum(inspected["categories"][k] for k in ("parameters", "gradients", "optimizer state"))
    schedule = {k: inspected[k] for k in ("chunk", "head_chunk", "segment", "checkpoint_every", "saved")}
    return {"schedule": schedule, "seconds": min(steps), "peak_bytes": summary["peak_bytes_measured"], "planned_bytes": summary["peak_bytes_planned"],
            "resident_bytes": resident, "loss": lines[0]["loss"]}  # of the first step, before an update


def torch(arguments, mode, rows):
    mode, dtype = split(mode)
    result, error = run([arguments.python, os.path.join(TOP, "tests", "bench", "torch_step.py"), "--rows", str(rows), "--mode", mode, "--dtype", dtype,
                         "--threads", str(arguments.threads), "--limit-gib", str(arguments.limit_gib)])
    return {"error": error[0]} if error else json.loads(result.stdout.splitlines()[-1])


def measure(arguments, folder, config, rows):
    """All tools and modes at one length, in turns."""
    jobs = [("torch", m) for m in arguments.torch.split(",") if m] + [("ours", m) for m in arguments.modes.split(",") if m]
    runs, fifth = {job: [] for job in jobs}, None
    for _ in range(arguments.repeat):
        for tool, mode in jobs:
            if tool == "torch":
                r = torch(arguments, mode, rows)
                if mode == "standard" and "error" not in r and not fifth:  # fp32
                    fifth = r["resident_bytes"] + 0.2 * (r["peak_bytes"] - r["resident_bytes"])
            elif mode == "fifth" and not fifth:
                r = {"error": "needs PyTorch's standard backward at this length"}
            else:
                r = ours(arguments, folder, config, "stream" if mode == "fifth" else mode, rows, fifth if mode == "fifth" else None)
            runs[tool, mode].append(r)
    results, reference, fp32 = [], None, None
    for tool, mode in jobs:
        failed = [r for r in runs[tool, mode] if "error" in r]
        r = dict((failed or runs[tool, mode])[0], mode=mode, rows=rows)
        r.setdefault("tool", tool)
        results.append(r)
        if failed:
            print(f"{tool:8s} {mode:13s} {rows:6d}   {r['error']}", flush=True)
            continue
        seconds = sorted(x["seconds"] for x in runs[tool, mode])
        r.update(seconds=statistics.median(seconds), all_seconds=seconds, peak_bytes=max(x["peak_bytes"] for x in runs[tool, mode]))
        r["gflops"] = model_flops(config, rows) / r["seconds"] / 1e9
        r["activation_bytes"] = r["peak_bytes"] - r["resident_bytes"]
        if tool == "torch" and mode == "standard":
            reference = r
        if tool == "ours" and mode == "stream":
            fp32 = r["seconds"]
        line = f"{tool:8s} {mode:13s} {rows:6d} {r['seconds']:9.2f}  ({seconds[0]:.2f} - {seconds[-1]:.2f})  {r['gflops']:8.1f} {r['activation_bytes'] / 2**20:12.1f}"
        if reference:
            r["of_torch"] = {"seconds": r["seconds"] / reference["seconds"], "activations": r["activation_bytes"] / reference["activation_bytes"]}
            line += f"        {r['of_torch']['seconds']:.2f}, {r['of_torch']['activations']:.2f}"
        if fp32 and split(mode)[1] == "bf16" and tool == "ours":
            r["of_fp32"] = r["seconds"] / fp32
            line += f"   {r['of_fp32']:.2f} of our fp32"
        print(line, flush=True)
    return results


def judge(results):
    """Prints what holds and what does not of ours; whether all holds."""
    right = True

    def say(holds, text):
        nonlocal right
        right = right and holds
        print(f"{'right' if holds else 'WRONG'}: {text}")

    ours = [r for r in results if r["tool"] == "ours"]
    say(not any("error" in r for r in ours if split(r["mode"])[0] == "stream"), "streamed steps ran")
    for rows in sorted({r["rows"] for r in ours}):
        losses = [r["loss"] for r in ours if r["rows"] == rows and "error" not in r and split(r["mode"])[1] == "fp32"]
        if len(losses) > 1:
            say(max(losses) - min(losses) <= 16 * FP32_EPSILON * max(losses), f"losses of {len(losses)} modes at {rows} rows: {max(losses) - min(losses):.1e} apart")
    for r in ours:
        if "error" not in r:
            over = r["peak_bytes"] - r["planned_bytes"]
            say(over <= max(EXCESS_BYTES, EXCESS * r["planned_bytes"]), f"memory of {r['mode']} at {r['rows']} rows: {over / 2**20:+.2f} MiB from what was planned")
    return right


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(TOP, "build", "release"))
    parser.add_argument("--rows", default="512,1024,2048,4096,8192")
    parser.add_argument("--modes", default="stream,checkpoint,standard")
    parser.add_argument("--torch", default="", help="modes of PyTorch: standard,checkpoint")
    parser.add_argument("--bf16", action="store_true", help="fp32 and bf16, ours and PyTorch's, three turns each; sets rows, modes, torch, repeat, save")
    parser.add_argument("--python", default=sys.executable, help="a Python with torch and transformers")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=1, help="turns of each tool and mode; the median counts")
    parser.add_argument("--limit-gib", type=float, default=0)
    parser.add_argument("--compile", default=[], nargs=argparse.REMAINDER, help="the rest: options for sbpc compile")
    parser.add_argument("--save", default=os.path.join(TOP, "tests", "bench", "results", "cpu_step.json"))
    arguments = parser.parse_args()
    if arguments.bf16:
        arguments.rows, arguments.modes, arguments.torch, arguments.repeat = "1024,2048,4096", "stream,stream:bf16", "standard,standard:bf16", 3
        arguments.save = os.path.join(TOP, "tests", "bench", "results", "cpu_step_bf16.json")
    arguments.sbpc, arguments.sbprun = (os.path.join(arguments.build, n) for n in ("sbpc", "sbprun"))
    source = os.path.join(TOP, "tests", "data", "configs", "SmolLM2-135M.json")
    config = json.load(open(source, encoding="utf-8"))
    results = []
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(os.path.join(folder, "model"))
        shutil.copy(source, os.path.join(folder, "model", "config.json"))
        print("tool     mode            rows   seconds  (min - max)      GFLOP/s   activations MiB   of PyTorch's time, memory", flush=True)
        for rows in (int(r) for r in arguments.rows.split(",")):
            results += measure(arguments, folder, config, rows)
    commit = subprocess.run(["git", "-C", TOP, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    about = dict(line.split(":", 1) for line in open("/proc/cpuinfo", encoding="utf-8") if ":" in line)
    about = {k.strip(): v.strip() for k, v in about.items()}
    machine = f"{about.get('model name', '')}, family {about.get('cpu family', '')}, model {about.get('model', '')}"
    os.makedirs(os.path.dirname(arguments.save), exist_ok=True)
    with open(arguments.save, "w", encoding="utf-8") as f:
        json.dump({"date": datetime.date.today().isoformat(), "commit": commit, "machine": machine, "threads": arguments.threads,
                   "options": arguments.compile, "results": results}, f, indent=1)
        f.write("\n")
    return 0 if judge(results) else 1


if __name__ == "__main__":
    sys.exit(main())
