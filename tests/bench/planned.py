#!/usr/bin/env python3
"""Planned figures for machines that are not here: longest sequences and the largest models, beside their goals.

    tests/bench/planned.py [--only NAME] [--configs DIR]

Each row is one `sbpc compile --device-profile`: tokens are the most that fit (--seq-len max), or those that are asked for; then
KB per token on the device and on the host, seconds of a step by the cost model, and the queue that is busy longest. A goal that
is missed is marked; what this build does not have yet is said and skipped. Figures go to tests/bench/results/planned.json; they
come from the planner, so the same commit gives the same on any machine.
"""
import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import tempfile

TOP = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
STEP = ["--clip", "none", "--accumulate", "1"]
BF16 = ["--dtype", "bf16", "--param-dtype", "bf16"] + STEP
SMALL = BF16 + ["--state-dtype", "bf16", "--master", "none"]  # 2 bytes a weight, 4 of Adam
EXACT = BF16 + ["--state-dtype", "bf16", "--master", "fp32"]  # and 2 of the master's low half
FULL = BF16 + ["--state-dtype", "fp32", "--master", "fp32"]
RANKS = ["--dtype", "bf16", "--param-dtype", "bf16", "--master", "fp32", "--state-dtype", "fp32"]  # gradients wait for the others
LORA = BF16 + ["--lora", "r=16,alpha=32,targets=all-linear"]  # adapters and Adam in fp32
NONE, MAX = ["--offload", "none"], ["--seq-len", "max"]
ROWS = [  # name, model, profile, options, goal: tokens at least, or KB per token on the device at most
    ("4B, no master", "Qwen3-4B", "h100-80gb", SMALL + NONE + MAX, {"tokens": 650e3}),
    ("8B, no master", "Qwen3-8B", "h100-80gb", SMALL + NONE + MAX, {"tokens": 230e3}),
    # a pair of 2 x 200k tokens; eight rollouts of 80k in one micro-batch, which may as well be parted
    ("4B, DPO", "Qwen3-4B", "h100-80gb", SMALL + NONE + MAX + ["--objective", "dpo"], {"tokens": 400e3}),
    ("4B, GRPO", "Qwen3-4B", "h100-80gb", SMALL + NONE + MAX + ["--objective", "grpo"], {"tokens": 640e3}),
    ("4B, exact master", "Qwen3-4B", "h100-80gb", EXACT + NONE + MAX, {"tokens": 650e3}),
    ("8B, exact master", "Qwen3-8B", "h100-80gb", EXACT + NONE + MAX, {"tokens": 130e3}),
    ("4B, 1 TiB of host memory", "Qwen3-4B", "h100-80gb", EXACT + MAX + ["--offload", "host", "--host-memory", "1TiB"], {"tokens": 2.5e6, "kb": 27.7}),
    ("8B, 1 TiB of host memory", "Qwen3-8B", "h100-80gb", EXACT + MAX + ["--offload", "host", "--host-memory", "1TiB"], {"tokens": 1.8e6, "kb": 37.0}),
    ("8B, fp32 Adam, H200", "Qwen3-8B", "h200", FULL + NONE + MAX, {"tokens": 350e3}),
    ("Llama 8B, H200, 128 GiB of host memory", "Llama-3.1-8B", "h200", FULL + MAX + ["--host-memory", "128GiB"], {"tokens": 700e3}),
    ("32B at 128k", "Qwen3-32B", "h100-80gb", FULL + ["--seq-len", "131072", "--host-memory", "1TiB"], {"tokens": 131072}),
    # twice what StreamBP has of each; pairs and groups of 8 lie in one micro-batch
    ("4B, LoRA", "Qwen3-4B", "h100-80gb", LORA + NONE + MAX, {"tokens": 494e3}),
    ("8B, LoRA", "Qwen3-8B", "h100-80gb", LORA + NONE + MAX, {"tokens": 284.8e3}),
    ("14B, LoRA", "Qwen3-14B", "h100-80gb", LORA + NONE + MAX, {"tokens": 169.2e3}),
    ("32B, LoRA", "Qwen3-32B", "h100-80gb", LORA + NONE + MAX, {"tokens": 32.6e3}),
    ("32B, LoRA, NF4 base", "Qwen3-32B", "h100-80gb", LORA + NONE + MAX + ["--base-dtype", "nf4"], {"tokens": 32.6e3}),
    ("8B, LoRA, DPO", "Qwen3-8B", "h100-80gb", LORA + NONE + MAX + ["--objective", "dpo"], {"tokens": 2 * 121.8e3}),
    ("14B, LoRA, DPO", "Qwen3-14B", "h100-80gb", LORA + NONE + MAX + ["--objective", "dpo"], {"tokens": 2 * 73.8e3}),
    ("32B, LoRA, DPO", "Qwen3-32B", "h100-80gb", LORA + NONE + MAX + ["--objective", "dpo"], {"tokens": 2 * 15.6e3}),
    ("8B, LoRA, GRPO", "Qwen3-8B", "h100-80gb", LORA + NONE + MAX + ["--objective", "grpo"], {"tokens": 8 * 33e3}),
    ("14B, LoRA, GRPO", "Qwen3-14B", "h100-80gb", LORA + NONE + MAX + ["--objective", "grpo"], {"tokens": 8 * 20.2e3}),
    # several ranks, by the cost model alone: nothing of it ran on GPUs. StreamBP's figures are of ZeRO 2
    ("8B, 3 ranks, ZeRO 2", "Qwen3-8B", "h100-80gb", RANKS + NONE + MAX + ["--ranks", "3", "--zero", "2"], {"tokens": 92.4e3}),
    ("8B, 8 ranks, ZeRO 1", "Qwen3-8B", "h100-80gb", RANKS + NONE + MAX + ["--ranks", "8", "--zero", "1"], {}),
    ("8B, 8 ranks, ZeRO 2", "Qwen3-8B", "h100-80gb", RANKS + NONE + MAX + ["--ranks", "8", "--zero", "2"], {"tokens": 131.8e3}),
    ("8B, 8 ranks, ZeRO 3", "Qwen3-8B", "h100-80gb", RANKS + NONE + MAX + ["--ranks", "8", "--zero", "3"], {}),
    ("8B, 8 ranks, ZeRO 3, 128k", "Qwen3-8B", "h100-80gb", RANKS + ["--seq-len", "131072", "--ranks", "8", "--zero", "3"], {"tokens": 131072}),
    # of one document; TRL 1.16 takes 364 s, 43 % MFU would be 273 s
    ("8B, 8 ranks, context 8, 10^6", "Qwen3-8B", "h100-80gb", RANKS + ["--seq-len", "1000000", "--ranks", "8", "--zero", "2", "--context-parallel", "8"], {"tokens": 1000000, "seconds": 273}),
    ("8B, 16 ranks, context 16, 2 10^6", "Qwen3-8B", "h100-80gb", RANKS + ["--seq-len", "2000000", "--ranks", "16", "--zero", "2", "--context-parallel", "16", "--link", "400Gb/s"], {"tokens": 2000000, "seconds": 696}),
    ("8B, 8 ranks, context 8, ZeRO 3", "Qwen3-8B", "h100-80gb", RANKS + NONE + MAX + ["--ranks", "8", "--zero", "3", "--context-parallel", "8"], {}),
    ("70B, 64 ranks, ZeRO 3", "Llama-3.1-70B", "h100-80gb", RANKS + NONE + MAX + ["--ranks", "64", "--zero", "3"], {}),
    ("8B, g = 1", "Qwen3-8B", "h100-80gb", EXACT + NONE + ["--seq-len", "32768", "--segment", "1", "--checkpoint-every", "1", "--save", "none"], {"kb": 316}),
    ("123B at 32k, 24 GB, NVMe", "Mistral-Large-Instruct-2407", "rtx4090-24gb",
     FULL + ["--seq-len", "32768", "--host-memory", "256GB", "--offload", "checkpoints+saved+states:disk+gradients:disk+params:disk"], {"tokens": 32768}),
    ("123B at 128k, H200, 1.5 TiB", "Mistral-Large-Instruct-2407", "h200", FULL + ["--seq-len", "131072", "--host-memory", "1536GiB"], {"tokens": 131072}),
]


def plan(arguments, folder, model, profile, options):
    """JSON of the compiler, or why there is none, with its exit status."""
    source = os.path.join(arguments.configs, model + ".json")
    if not os.path.exists(source):
        return None, f"no {model}.json in {arguments.configs}", 1
    target = os.path.join(folder, model)
    os.makedirs(target, exist_ok=True)
    shutil.copy(source, os.path.join(target, "config.json"))
    result = subprocess.run([os.path.join(arguments.build, "sbpc"), "compile", target, "--device-profile", profile, "--json"] + options,
                            capture_output=True, text=True)
    if result.returncode == 0:
        return json.loads(result.stdout), result.stderr, 0
    errors = [line for line in result.stderr.splitlines() if "error" in line]
    return None, errors[-1].removeprefix("sbpc: error: ") if errors else result.stderr, result.returncode


def save(path, results):
    """As JSON, with the date and the commit."""
    commit = subprocess.run(["git", "-C", TOP, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    with open(path, "w", encoding="utf-8") as f:
        json.dump({"date": datetime.date.today().isoformat(), "commit": commit, "results": results}, f, indent=1)
        f.write("\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(TOP, "build", "release"))
    parser.add_argument("--configs", default=os.path.join(TOP, "tests", "data", "configs"))
    parser.add_argument("--only", default="")
    parser.add_argument("--verbose", action="store_true", help="the compiler's summary of each")
    parser.add_argument("--save", default=os.path.join(TOP, "tests", "bench", "results", "planned.json"))
    arguments = parser.parse_args()
    results, missed = [], 0
    print(f"{'':42s} {'tokens':>9s} {'goal':>9s} {'device':>9s} {'host':>9s} {'disk':>9s}  KB/token   seconds  busiest", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for name, model, profile, options, goal in ROWS:
            if arguments.only not in name:
                continue
            got, text, status = plan(arguments, folder, model, profile, options)
            row = {"name": name, "model": model, "profile": profile, "options": options, "goal": goal}
            if not got:
                row["missing" if status == 2 else "refused"] = text
                print(f"{name:42s} {'not built' if status == 2 else 'refused'}: {text}", flush=True)
                missed += status != 2
            else:
                row.update({k: got[k] for k in ("schedule", "peak_bytes", "categories", "bytes_per_token", "seconds", "busy", "traffic", "flops")})
                tokens, kb = got["schedule"]["seq_len"], got["bytes_per_token"]["device"] / 1e3
                good = tokens >= goal.get("tokens", 0) and kb <= goal.get("kb", 1e9) * 1.005 and got["seconds"] <= goal.get("seconds", 1e9)
                row["met"] = good
                missed += not good
                peak, busiest = got["peak_bytes"], max(got["busy"], key=got["busy"].get)
                print(f"{name:42s} {tokens:9d} {goal.get('tokens', 0) / 1e3:8.0f}k " + " ".join(f"{peak[s] / 2**30:6.1f}GiB" for s in ("device", "host", "disk"))
                      + f"  {kb:5.1f}" + (f"<={goal['kb']:5.1f}" if "kb" in goal else "       ")
                      + f" {got['seconds']:8.1f}  {busiest} {got['busy'][busiest]:.1f} s{'' if good else '  MISSED'}", flush=True)
                if arguments.verbose:
                    print(text)
            results.append(row)
    print(f"{missed} of {len(results)} missed")
    save(arguments.save, results)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
