#!/usr/bin/env python3
"""A step's planned time beside the measured one, for settings that keep all queues busy.

    tests/bench/makespan.py [--only N,M] [--steps 3] [--rounds 3]

Twelve layers of SmolLM2-135M's shape, random weights, 1,024 rows. The machine is measured in every round (sbpc compile --throughput
again), and each rate is the best of these, as the seconds of a setting are those of the fastest step of all rounds; the queues in, out and disk are then throttled to set rates (SBP_TEST_RATES), in the run and in the rates that sbpc plans by, so
that a link of some hundred MB/s stands for one of a GPU. Goal: within 15 %; exit status 1 where a setting is not.

On a machine that others use, `chrt -r 10 tests/bench/makespan.py` (as root) takes the processors for the while. `share` is the
processor time of the run over its wall time and threads: far below what a setting had on a quiet machine, others were in the way.
Results go to tests/bench/results/makespan.json with date, machine and commit.
"""
import argparse
import datetime
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time

TOP = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
ROWS = 1024
STEP = ["--clip", "none", "--accumulate", "1"]
SETTINGS = [  # name, rates of queues in bytes per second, options
    ("all on the device", {}, []),
    ("a checkpoint every 4, values kept", {}, ["--checkpoint-every", "4", "--save", "gate+up"]),
    ("segments of 3, chunks of 256", {}, ["--segment", "3", "--chunk", "256"]),
    ("bf16, two segments a checkpoint", {}, ["--dtype", "bf16", "--checkpoint-every", "2"]),
    ("checkpoints and values on the host, slow link", {"in": 1e9, "out": 1e9},
     ["--offload", "checkpoints+saved", "--save", "attn_out+lse+gate+up"]),
    ("checkpoints on the host, link slower than compute", {"in": 4e7, "out": 4e7}, ["--offload", "checkpoints"]),
    ("states on the host", {"in": 6e8, "out": 6e8}, ["--offload", "states"]),
    ("states on disk", {"in": 2e9, "out": 2e9, "disk": 5e8}, ["--offload", "states:disk"]),
    ("all but checkpoints on the host, step", {"in": 3e8, "out": 3e8}, ["--offload", "states+params"] + STEP),
    # one row of data and one thread a rank; the interconnect is as slow as is hidden, and slower
    ("2 ranks", {"net": 4e8}, ["--ranks", "2"]),
    ("2 ranks, slow interconnect", {"net": 6e7}, ["--ranks", "2"]),
    ("2 ranks, ZeRO 2, slow interconnect", {"net": 8e7}, ["--ranks", "2", "--zero", "2"]),
    ("2 ranks, ZeRO 3", {"net": 3e8}, ["--ranks", "2", "--zero", "3"]),
    ("2 ranks, ZeRO 3, slow interconnect", {"net": 6e7}, ["--ranks", "2", "--zero", "3"]),
    # what a host has once: its ranks share the rate of the disk, on which each writes and reads its shares
    ("2 ranks, ZeRO 2, states on one disk", {"in": 8e8, "out": 8e8, "disk": 4e8, "net": 3e8}, ["--ranks", "2", "--zero", "2", "--offload", "states:disk+gradients"]),
    ("2 ranks, ZeRO 3, all on the host, states on one disk", {"in": 2e8, "out": 2e8, "disk": 6e8, "net": 3e8}, ["--ranks", "2", "--zero", "3", "--offload", "checkpoints+states:disk+gradients+params"]),
    ("2 ranks in groups of one, ZeRO 3", {"net": 6e7}, ["--ranks", "2", "--zero", "3", "--shard-group", "1"]),
    ("2 ranks, ZeRO 3, gathered once, bf16 on the interconnect", {"net": 6e7}, ["--ranks", "2", "--zero", "3", "--keep-gathered", "all", "--reduce-dtype", "bf16"]),
    ("everything away, gradients too", {"in": 8e8, "out": 8e8, "disk": 8e8},
     ["--offload", "checkpoints+states:disk+gradients+params"]),
]


def run(command, environment=None):
    result = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ, **(environment or {})))
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)}: {result.stderr}")
    return result


def compile_plan(arguments, folder, rates, options, environment, threads):
    result = run([arguments.sbpc, "compile", os.path.join(folder, "model"), "-o", os.path.join(folder, "plan.bin"), "--seq-len", str(ROWS),
                  "--set", "num_hidden_layers=12", "--set", "vocab_size=8192", "--threads", str(threads), "--json", "--throughput", rates]
                 + options, environment)
    return json.loads(result.stdout), result.stderr


def throttled(rates, queues):
    rates = dict(rates)
    for queue, keys in (("in", ["in_bytes"]), ("out", ["out_bytes"]), ("disk", ["disk_read_bytes", "disk_write_bytes"]), ("net", ["net_bytes"])):
        for key in keys:
            if key in rates or queue in queues:
                rates[key] = min(rates.get(key, 1e30), queues.get(queue, 1e30))
    return rates


def ranks_of(setting):
    return int(setting[2][setting[2].index("--ranks") + 1]) if "--ranks" in setting[2] else 1


def plan(arguments, folder, rates, setting):
    _, queues, options = setting
    path = os.path.join(folder, "rates")
    with open(path, "w", encoding="utf-8") as f:
        f.writelines(f"{k} {v!r}\n" for k, v in throttled(rates, queues).items() if k != "source")
    return compile_plan(arguments, folder, path, options, {}, arguments.threads // ranks_of(setting))[0]


def measure(arguments, folder, queues, ranks):
    """Seconds of steps of the plan in the folder, and the share of the processors."""
    rates = {q: r / ranks if q == "disk" else r for q, r in queues.items()}  # the disk of a host is one
    environment = {"SBP_TEST_RATES": ",".join(f"{q}:{r:g}" for q, r in rates.items())} if rates else {}
    out = os.path.join(folder, "out")
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    run([arguments.sbprun, os.path.join(folder, "plan.bin"), "--data", os.path.join(folder, "rows.jsonl"), "--weights", "random:1", "--batch-size", str(ranks),
         "--steps", str(arguments.steps), "--threads", str(arguments.threads // ranks)] + (["--ranks", str(ranks)] if ranks > 1 else []) + ["--out", out, "--overwrite", "--save-every", "never"], environment)
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - begun
    steps = [json.loads(line).get("step_seconds") for line in open(os.path.join(out, "metrics.jsonl"), encoding="utf-8")]
    steps = [s for s in steps if s]
    share = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / wall / arguments.threads
    return steps, share


def best(measured):
    """Of several measurements of all rates, each rate's best."""
    smaller = ("half_rows", "command_seconds")
    return {k: (min if k in smaller else max)(r[k] for r in measured) for k in measured[0] if k != "source"}


def best_of(rates, arguments, number):
    return best(rates[arguments.threads // ranks_of(SETTINGS[number])])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(TOP, "build", "release"))
    parser.add_argument("--only", default="", help="numbers of settings, from 0")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--save", default=os.path.join(TOP, "tests", "bench", "results", "makespan.json"))
    arguments = parser.parse_args()
    arguments.sbpc, arguments.sbprun = (os.path.join(arguments.build, n) for n in ("sbpc", "sbprun"))
    chosen = [int(n) for n in arguments.only.split(",") if n] or range(len(SETTINGS))
    results = []
    with tempfile.TemporaryDirectory(dir=os.getcwd()) as folder:  # a drive, not memory
        os.mkdir(os.path.join(folder, "model"))
        with open(os.path.join(TOP, "tests", "data", "configs", "SmolLM2-135M.json"), encoding="utf-8") as f:
            config = f.read()
        with open(os.path.join(folder, "model", "config.json"), "w", encoding="utf-8") as f:
            f.write(config)
        random.seed(1)
        with open(os.path.join(folder, "rows.jsonl"), "w", encoding="utf-8") as f:
            for _ in range(max(ranks_of(s) for s in SETTINGS)):
                f.write(json.dumps({"input_ids": [random.randrange(8192) for _ in range(ROWS)]}) + "\n")
        rates, schedules, steps, shares = {}, {}, {n: [] for n in chosen}, {n: [] for n in chosen}
        for _ in range(arguments.rounds):
            for threads in sorted({arguments.threads // ranks_of(SETTINGS[n]) for n in chosen}):
                first, messages = compile_plan(arguments, folder, "again", [], {}, threads)
                rates.setdefault(threads, []).append(first["throughput"])
                print("\n".join(line for line in messages.splitlines() if "throughput" in line), flush=True)
            for number in chosen:
                schedules[number] = plan(arguments, folder, best_of(rates, arguments, number), SETTINGS[number])["schedule"]
                seconds, share = measure(arguments, folder, SETTINGS[number][1], ranks_of(SETTINGS[number]))
                steps[number] += seconds
                shares[number].append(share)
        print("planned measured  ratio  share  setting")
        for number in chosen:
            name, queues, options = SETTINGS[number]
            planned, measured = plan(arguments, folder, best_of(rates, arguments, number), SETTINGS[number]), min(steps[number])
            if planned["schedule"] != schedules[number]:
                sys.exit(f"{name}: the rates of the last round changed the schedule; run again")
            results.append({"setting": name, "queues": queues, "options": options, "schedule": planned["schedule"], "planned": planned["seconds"],
                            "busy": planned["busy"], "measured": measured, "steps": steps[number], "ratio": planned["seconds"] / measured,
                            "share": max(shares[number])})
            r = results[-1]
            print(f"{r['planned']:7.3f} {r['measured']:8.3f} {r['ratio']:6.3f} {r['share']:6.2f}  {r['setting']}", flush=True)
    print(f"{sum(abs(r['ratio'] - 1) <= 0.15 for r in results)} of {len(results)} within 15 %")
    commit = subprocess.run(["git", "-C", TOP, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    about = dict(line.split(":", 1) for line in open("/proc/cpuinfo", encoding="utf-8") if ":" in line)
    about = {k.strip(): v.strip() for k, v in about.items()}
    machine = f"{about.get('model name', '')}, family {about.get('cpu family', '')}, model {about.get('model', '')}"
    with open(arguments.save, "w", encoding="utf-8") as f:
        json.dump({"date": datetime.date.today().isoformat(), "commit": commit, "machine": machine, "threads": arguments.threads,
                   "load": os.getloadavg()[0], "rates": {n: best(r) for n, r in rates.items()}, "results": results}, f, indent=1)
        f.write("\n")
    sys.exit(any(abs(r["ratio"] - 1) > 0.15 for r in results))


if __name__ == "__main__":
    main()
