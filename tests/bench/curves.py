#!/usr/bin/env python3
"""Training curves of weights and optimizer states kept in fewer bits.

    tests/bench/curves.py [--lr 1e-4] [--steps 300] [--seeds 1,2] [--data FILE.jsonl|FILE.txt]

tests/data/stories260K is trained in each format of FORMATS from the same weights, on the same rows in the same order. Data: rows as
sbprun takes them, or a text, of which each paragraph is a row; every fifth row is held out, at most 200. 300 steps of 8 rows should not
see a row twice: what is committed had tinyshakespeare.txt (github.com/karpathy/char-rnn, data/tinyshakespeare/input.txt); the default,
the 200 rows of tests/golden/stories260k_trl, is learned by heart, and then who learns less is better on what is held out.

The learning rate is one at which many updates are below half a step of bf16, which is what rounding to nearest loses. Each seed is a run
of its own: another order of rows, other random numbers.

Results go to tests/bench/results/curves.json, with date, machine and commit: the mean training loss of every ten steps, and the loss of
the held-out rows before and after; the curves of the first seed to curves.svg beside it. Needs Python alone.

Each format is judged by how far apart seeds are that differ in the order of rows and in random numbers alone: one that says it keeps what
fp32 (or exact masters) would may not be further from that than its seeds are from each other, and rounding to nearest, which does not, must
be further. Where rows are seen twice the loss of the last epoch counts, which is of the same rows with every seed, else that of the held-out
rows. Exit status 1 where a format is wrong, or does not learn.
"""
import argparse
import datetime
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

TOP = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
MODEL = os.path.join(TOP, "tests", "data", "stories260K")
BF16 = ["--dtype", "bf16"]
FORMATS = [  # name, options of sbpc, color
    ("fp32", [], "#000000"),
    ("fp32, states in 8 bits", ["--state-dtype", "int8"], "#999999"),
    ("bf16, exact masters", BF16, "#1f77b4"),
    ("bf16, exact masters, states in bf16", BF16 + ["--state-dtype", "bf16"], "#2ca02c"),
    ("bf16, no masters, rounded at random", BF16 + ["--master", "none"], "#ff7f0e"),
    ("bf16, no masters, rounded to nearest", BF16 + ["--master", "none", "--rounding", "nearest"], "#d62728"),
]
WINDOW = 10
HELD_OUT = 200


def call(command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def split(data, folder):
    """Writes train.jsonl and held.jsonl; how many rows each has."""
    with open(data, encoding="utf-8") as f:
        text = f.read()
    rows = text.splitlines() if data.endswith(".jsonl") else [json.dumps({"text": part.strip()}) for part in text.split("\n\n") if part.strip()]
    parts = {"train": [r for i, r in enumerate(rows) if i % 5 != 4], "held": rows[4::5][:HELD_OUT]}
    for name, part in parts.items():
        with open(os.path.join(folder, name + ".jsonl"), "w", encoding="utf-8") as f:
            f.write("\n".join(part) + "\n")
    return len(parts["train"]), len(parts["held"])


def train(arguments, folder, options, seed, rows):
    """One run: mean losses of every ten steps, held-out loss before and after."""
    plan, out = os.path.join(folder, "plan.bin"), os.path.join(folder, "out")
    shutil.rmtree(out, ignore_errors=True)
    call([os.path.join(arguments.build, "sbpc"), "compile", MODEL, "-o", plan, "--seq-len", "512", "--backend", "cpu"] + options)
    call([os.path.join(arguments.build, "sbprun"), plan, "--data", os.path.join(folder, "train.jsonl"), "--eval", os.path.join(folder, "held.jsonl"),
          "--steps", str(arguments.steps), "--batch-size", str(arguments.batch_size), "--lr", str(arguments.lr), "--schedule", "constant",
          "--seed", str(seed), "--threads", str(arguments.threads), "--save-every", "never", "--overlong", "truncate", "--out", out])
    with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as f:
        lines = [json.loads(line) for line in f]
    losses = [x["loss"] for x in lines if "loss" in x]
    held = [x["eval_loss"] for x in lines if "eval_loss" in x]
    assert len(losses) == arguments.steps and len(held) == 2
    epoch = rows // arguments.batch_size
    return {"seed": seed, "last_epoch": statistics.mean(losses[-epoch:]), "loss": [round(statistics.mean(losses[i:i + WINDOW]), 6) for i in range(0, len(losses), WINDOW)],
            "held_out_before": held[0], "held_out": held[1]}


def judge(results, repeats):
    """Prints what holds and what does not; whether all holds."""
    what, right = "last_epoch" if repeats else "held_out", True

    def mean(r):
        return statistics.mean(run[what] for run in r["runs"])

    for r in results:
        base = next(x for x in results if x["name"] == ("bf16, exact masters" if BF16[0] in r["options"] else "fp32"))
        values = [run[what] for run in base["runs"]]
        spread, apart = max(values) - min(values), mean(r) - mean(base)
        worse = "nearest" in r["options"]
        holds = (apart > spread if worse else abs(apart) <= spread) and all(run["held_out"] < run["held_out_before"] for run in r["runs"])
        print(f"{'right' if holds else 'WRONG'}: {r['name']}: {apart:+.5f} from {base['name']}, must be {'above' if worse else 'within'} {spread:.5f}, "
              "the spread of its seeds; held-out loss falls")
        right = right and holds
    return right


def draw(results, arguments, path):
    """The curves of the first seed."""
    width, height, left, right, top, bottom = 760, 440, 60, 20, 40, 50
    curves = [(r["name"], color, r["runs"][0]) for r, (_, _, color) in zip(results, FORMATS)]
    every = [v for _, _, run in curves for v in run["loss"]]
    step = 0.1 if max(every) - min(every) < 1.5 else 0.25
    low, high = math.floor(min(every) / step) * step, math.ceil(max(every) / step) * step

    def x(steps):
        return left + (width - left - right) * steps / arguments.steps

    def y(loss):
        return top + (height - top - bottom) * (high - loss) / (high - low)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
           f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
           f'<text x="{left}" y="22" font-size="14">stories260K, AdamW, learning rate {arguments.lr:g}: training loss, mean of {WINDOW} steps</text>']
    for i in range(round((high - low) / step) + 1):
        value = low + i * step
        out.append(f'<path d="M{left} {y(value):.1f}H{width - right}" stroke="#dddddd"/>'
                   f'<text x="{left - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.2f}</text>')
    for i in range(7):
        steps = arguments.steps * i / 6
        out.append(f'<text x="{x(steps):.1f}" y="{height - bottom + 18}" text-anchor="middle">{steps:.0f}</text>')
    out.append(f'<text x="{(left + width - right) / 2}" y="{height - 10}" text-anchor="middle">step</text>')
    for i, (name, color, run) in enumerate(curves):
        points = " ".join(f"{x(WINDOW * (k + 0.5)):.1f},{y(v):.1f}" for k, v in enumerate(run["loss"]))
        at = top + 16 + 18 * i
        out.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.5"/>'
                   f'<path d="M{width - 330} {at - 4}h24" stroke="{color}" stroke-width="3"/>'
                   f'<text x="{width - 300}" y="{at}">{name}: held out {run["held_out"]:.4f}</text>')
    with open(path, "w", encoding="utf-8") as f:
        f.write("\n".join(out + ["</svg>", ""]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(TOP, "build", "release"))
    parser.add_argument("--data", default=os.path.join(TOP, "tests", "golden", "stories260k_trl", "train.jsonl"))
    parser.add_argument("--steps", type=int, default=300, help="a multiple of ten")
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--seeds", default="1,2", help="two at least")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--save", default=os.path.join(TOP, "tests", "bench", "results", "curves.json"))
    arguments = parser.parse_args()
    results, seeds = [], [int(s) for s in arguments.seeds.split(",")]
    if len(seeds) < 2:
        parser.error("--seeds: two at least: formats are judged by how far apart seeds are")
    with tempfile.TemporaryDirectory() as folder:
        rows, held = split(arguments.data, folder)
        print(f"{rows} rows, {held} held out; {arguments.steps} steps of {arguments.batch_size}, learning rate {arguments.lr:g}")
        print(f"{'':38s} held-out loss of each seed          mean     above the same with", flush=True)
        for name, options, _ in FORMATS:
            runs = [train(arguments, folder, options, seed, rows) for seed in seeds]
            mean = statistics.mean(r["held_out"] for r in runs)
            results.append({"name": name, "options": options, "mean_held_out": mean, "runs": runs})
            base = next(r for r in results if r["name"] == ("bf16, exact masters" if BF16[0] in options else "fp32"))
            print(f"{name:38s} " + " ".join(f"{r['held_out']:.5f}" for r in runs) + f"   {mean:.5f}   {mean - base['mean_held_out']:+.5f} {base['name']}", flush=True)
        print(f"before: {results[0]['runs'][0]['held_out_before']:.5f}")
    commit = call(["git", "-C", TOP, "rev-parse", "--short", "HEAD"]).strip()
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        about = {k.strip(): v.strip() for k, v in (line.split(":", 1) for line in f if ":" in line)}
    machine = f"{about.get('model name', '')}, family {about.get('cpu family', '')}, model {about.get('model', '')}"
    with open(arguments.save, "w", encoding="utf-8") as f:
        json.dump({"date": datetime.date.today().isoformat(), "commit": commit, "machine": machine, "data": os.path.basename(arguments.data),
                   "rows": rows, "held_out_rows": held, "steps": arguments.steps, "batch_size": arguments.batch_size, "lr": arguments.lr,
                   "schedule": "constant", "optimizer": "adamw", "window": WINDOW, "results": results}, f, indent=1)
        f.write("\n")
    draw(results, arguments, os.path.splitext(arguments.save)[0] + ".svg")
    return 0 if judge(results, rows < arguments.steps * arguments.batch_size) else 1


if __name__ == "__main__":
    sys.exit(main())
