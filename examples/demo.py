"""The measured part of ./run-demo: three modes on the same tokens, what would fit, and a short training run.

The machine is measured first; how many tokens a step has, and how many steps there are, is what it can do in a
minute each. Only the standard library. Every number is measured in this run or marked "planned".
"""
import argparse
import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

LENGTHS = (2048, 1024, 512, 256, 128)  # tokens of a step: the longest for which there is time
MODES_SECONDS = 60  # a step in each mode, and gradients in two
TRAINING_SECONDS = 60
FEWEST_STEPS, MOST_STEPS = 6, 20
MODES = ("stream", "checkpoint", "standard")


def run(command, **options):
    """Runs a command; on failure shows what it said and stops."""
    result = subprocess.run(command, capture_output=True, text=True, **options)
    if result.returncode != 0:
        sys.exit(f"error: {' '.join(command)} exited with {result.returncode}:\n{result.stderr}")
    return result


def size(number):
    return f"{number / 2**20:8.1f} MiB"


def bar(number, most, width=40):
    return "#" * max(1, round(width * number / most))


def say(text):
    print(f"\n== {text}", flush=True)


# ---- how much there is time for ---------------------------------------------------------------------------


def compile_plan(demo, mode, length, rates="measured"):
    """Compiles to MODE.plan; returns what sbpc says of it."""
    command = [demo.sbpc, "compile", demo.model, "-o", demo.path(f"{mode}.plan"), "--seq-len", str(length)]
    return json.loads(run(command + ["--backward", mode, "--throughput", rates, "--json"]).stdout)


def fit_to_machine(demo):
    """Sets demo.rows and demo.steps by the speed that sbpc measures, and says what will take how long."""
    say("(3) this machine")
    rates = "again"
    for demo.rows in LENGTHS:
        plans = {}
        for mode in MODES:
            plans[mode] = compile_plan(demo, mode, demo.rows, rates)
            rates = "measured"
        seconds = {mode: plans[mode]["seconds"] for mode in MODES}
        modes = sum(seconds.values()) + seconds["stream"] + seconds["standard"]
        if modes <= MODES_SECONDS and FEWEST_STEPS * seconds["stream"] <= TRAINING_SECONDS:
            break
    speed = plans["stream"]["flops"] / seconds["stream"] / 1e9
    if not demo.steps:
        demo.steps = max(FEWEST_STEPS, min(MOST_STEPS, int(TRAINING_SECONDS / seconds["stream"])))
    print(f"measured: {speed:.0f} GFLOP/s in a step, so {demo.rows} tokens a step and {demo.steps} steps")
    print(f"estimate: {modes:.0f} s for the modes, {demo.steps * seconds['stream']:.0f} s for the training", flush=True)


# ---- text -------------------------------------------------------------------------------------------------


def definitions():
    """The Jargon File, an entry at a time (dictd's format: an index of offsets in base 64)."""
    digits = {c: i for i, c in enumerate("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")}

    def number(text):
        value = 0
        for c in text:
            value = value * 64 + digits[c]
        return value

    data = gzip.open("/usr/share/dictd/jargon.dict.dz").read()
    for line in open("/usr/share/dictd/jargon.index", encoding="utf-8"):
        word, offset, length = line.rstrip("\n").split("\t")
        text = data[number(offset) : number(offset) + number(length)].decode("utf-8", "replace")
        if not word.startswith("00-database"):
            yield re.sub(r"[ \t]*\n[ \t]*", "\n", text).strip()


def write_rows(path, texts):
    with open(path, "w", encoding="utf-8") as f:
        for text in texts:
            f.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")


def make_data(demo):
    texts = list(dict.fromkeys(definitions()))
    held_out = texts[::40][:12]
    training = [t for t in texts if t not in set(held_out)]
    write_rows(demo.path("train.jsonl"), training)
    write_rows(demo.path("held-out.jsonl"), held_out)
    texts = "".join(json.dumps(text) + "\n" for text in training[::7])
    ids = []
    for line in run([demo.sbprun, "tokenize", demo.model], input=texts).stdout.splitlines():
        ids += json.loads(line)
        if len(ids) >= demo.rows:
            break
    with open(demo.path("step.jsonl"), "w", encoding="utf-8") as f:
        f.write(json.dumps({"input_ids": ids[: demo.rows]}) + "\n")
    print(f"{len(training)} definitions of the Jargon File to train on, {len(held_out)} held out")


# ---- three modes ------------------------------------------------------------------------------------------


def measure_modes(demo):
    say(f"(4) one optimizer step on the same {demo.rows} tokens, in three modes")
    rows = []
    for mode in MODES:
        plan = demo.path(f"{mode}.plan")
        planned = json.loads(run([demo.sbpc, "inspect", plan, "--json"]).stdout)
        done = json.loads(
            run([demo.sbprun, plan, "--data", demo.path("step.jsonl"), "--batch-size", "1", "--steps", "1", "--out", "none",
                 "--json"])
            .stdout.splitlines()[-1]
        )
        print(f"{mode}: {done['train_seconds']:.1f} s", flush=True)
        parts = planned["categories"]
        resident = sum(parts[k] for k in ("parameters", "gradients", "optimizer state", "process"))
        rows.append(
            {
                "mode": mode,
                "parts": parts,
                "planned": done["peak_bytes_planned"],
                "measured": done["peak_bytes_measured"],
                "activations_planned": done["peak_bytes_planned"] - resident,
                "activations": done["peak_bytes_measured"] - resident,
                "seconds": done["train_seconds"],
                "loss": done["train_loss"],
            }
        )
    torch = torch_row(demo)
    if torch:
        rows.append(torch)
    most = max(r["measured"] for r in rows)
    print("                activations                whole process              error")
    print("mode            planned       measured     planned       measured             seconds  loss")
    for r in rows:
        if "planned" in r:
            error = 100 * (r["planned"] / r["measured"] - 1)
            print(
                f"{r['mode']:11s} {size(r['activations_planned'])} {size(r['activations'])} {size(r['planned'])} "
                f"{size(r['measured'])}  {error:+5.2f} %  {r['seconds']:7.1f}  {r['loss']:.4f}"
            )
        else:
            print(f"{r['mode']:11s} {'':12s} {size(r['activations'])} {'':12s} {size(r['measured'])}  {'':7s}  {r['seconds']:7.1f}")
    for r in rows:
        print(f"{r['mode']:11s} {bar(r['measured'], most)}", flush=True)
    draw_modes(demo.path("memory.svg"), demo.rows, [r for r in rows if "parts" in r])
    same_gradients(demo)


def torch_row(demo):
    """PyTorch's standard backward on a model of the same shape, when torch and transformers are installed."""
    script = os.path.join(os.path.dirname(__file__), "..", "tests", "bench", "torch_step.py")
    probe = subprocess.run([sys.executable, "-c", "import torch, transformers"], capture_output=True)
    if probe.returncode != 0 or not os.path.exists(script):
        print("(torch and transformers are not installed: no row of PyTorch to compare with)")
        return None
    result = json.loads(run([sys.executable, script, "--rows", str(demo.rows), "--mode", "standard"]).stdout.splitlines()[-1])
    return {
        "mode": "pytorch",
        "measured": result["peak_bytes"],
        "activations": result["peak_bytes"] - result["resident_bytes"],
        "seconds": result["seconds"],
    }


def same_gradients(demo):
    files = []
    for mode in ("stream", "standard"):
        files.append(demo.path(f"{mode}.safetensors"))
        run([demo.sbprun, demo.path(f"{mode}.plan"), "--data", demo.path("step.jsonl"), "--batch-size", "1",
             "--dump-gradients", files[-1]])
    worst, where, count = run([os.path.join(demo.build, "compare_gradients"), *files]).stdout.split()
    print(f"same gradients? stream against standard, the worst of {count} tensors: {worst} ({where}), fp32", flush=True)
    for name in files:
        os.remove(name)


# ---- what would fit ---------------------------------------------------------------------------------------


def longest_sequences(demo):
    memory = min(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * 9 // 10, 16 * 2**30)
    limit = f"{memory // 2**20}MiB"
    say(f"(5) the longest sequence in {limit} (planned)")
    plan = demo.path("longest.plan")
    lengths = {}
    for mode in MODES:
        run([demo.sbpc, "compile", demo.model, "-o", plan, "--seq-len", "max", "--memory", limit, "--backward", mode])
        lengths[mode] = json.loads(run([demo.sbpc, "inspect", plan, "--json"]).stdout)["seq_len"]
    for mode in MODES:
        print(f"{mode:11s} {lengths[mode]:9d} tokens  {bar(lengths[mode], max(lengths.values()))}")
    print(f"\na plan for 32,768 tokens in {limit}, --backward standard:")
    refused = subprocess.run(
        [demo.sbpc, "compile", demo.model, "-o", plan, "--seq-len", "32768", "--memory", limit, "--backward", "standard"],
        capture_output=True, text=True,
    )
    print(f"  exit status {refused.returncode}: {refused.stderr.strip().splitlines()[-1]}")
    print("and streamed:")
    accepted = run([demo.sbpc, "compile", demo.model, "-o", plan, "--seq-len", "32768", "--memory", limit])
    print("  " + "\n  ".join(line for line in accepted.stderr.splitlines() if line.startswith(("memory", "headroom"))))
    os.remove(plan)


# ---- training ---------------------------------------------------------------------------------------------


def metrics(demo):
    path = os.path.join(demo.run_dir, "metrics.jsonl")
    if not os.path.exists(path):
        return []
    return [json.loads(line) for line in open(path, encoding="utf-8") if line.endswith("}\n")]


def show_steps(demo, shown):
    """A line for each step that was not shown yet; returns how many there are."""
    steps = [m for m in metrics(demo) if "loss" in m and m["step"] > shown]
    for m in steps:
        print(f"  step {m['step']} of {demo.steps}: loss {m['loss']:.4f}", flush=True)
    return steps[-1]["step"] if steps else shown


def steps_done(demo):
    return sum("loss" in m for m in metrics(demo))


def has_checkpoint(demo):
    return os.path.isdir(demo.run_dir) and any(f.startswith("checkpoint-") for f in os.listdir(demo.run_dir))


def train(demo):
    say(f"(6) {demo.steps} training steps of up to {demo.rows} tokens, killed half-way and resumed")
    print(f"(the few definitions above {demo.rows} tokens are cut there: --overlong truncate)", flush=True)
    shutil.rmtree(demo.run_dir, ignore_errors=True)
    half = max(1, demo.steps // 2)
    command = [demo.sbprun, demo.path("stream.plan"), "--data", demo.path("train.jsonl"), "--eval", demo.path("held-out.jsonl"),
               "--batch-tokens", str(demo.rows), "--overlong", "truncate", "--steps", str(demo.steps), "--lr", "1e-4",
               "--schedule", "constant", "--save-every", str(half), "--out", demo.run_dir]
    with open(demo.path("train.log"), "w", encoding="utf-8") as log:
        process = subprocess.Popen(command, stderr=log)
        shown = 0
        while process.poll() is None and not (has_checkpoint(demo) and steps_done(demo) >= half):
            time.sleep(0.2)
            shown = show_steps(demo, shown)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait()
            print(f"killed by SIGKILL after step {steps_done(demo)}; resuming from the checkpoint", flush=True)
            process = subprocess.Popen(command + ["--resume"], stderr=log)
            while process.poll() is None:
                time.sleep(0.2)
                shown = show_steps(demo, shown)
    said = open(demo.path("train.log"), encoding="utf-8").read()
    if process.returncode != 0:
        sys.exit(f"error: training exited with {process.returncode}:\n{said}")
    for line in dict.fromkeys(said.splitlines()):
        if re.search(r" rows |going on ", line):
            print(line)
    steps = {m["step"]: m for m in metrics(demo) if "loss" in m}
    evals = [m for m in metrics(demo) if "eval_loss" in m]
    most = max(m["loss"] for m in steps.values())
    for step in sorted(steps):
        m = steps[step]
        print(f"step {step:3d}  loss {m['loss']:.4f}  {m['tokens_per_second']:6.0f} tokens/s  {bar(m['loss'], most, 30)}")
    print(f"held-out loss: {evals[0]['eval_loss']:.4f} before, {evals[-1]['eval_loss']:.4f} after")
    draw_loss(demo.path("loss.svg"), [(s, steps[s]["loss"]) for s in sorted(steps)],
              [(m["step"], m["eval_loss"]) for m in evals])


def draw_modes(path, length, rows):
    """Planned memory by what it is for, a bar for each mode; a mark at what the process took."""
    kinds = (("parameters", "#4e79a7"), ("gradients", "#f28e2b"), ("optimizer state", "#59a14f"), ("process", "#bab0ac"),
             ("activations and scratch", "#e15759"))
    left, width, height = 90, 560, 30
    most = max(max(r["planned"], r["measured"]) for r in rows)
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 90}" height="{130 + 45 * len(rows)}" '
             'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
             f'<text x="{left}" y="18">one optimizer step of {length} tokens: bytes planned; black: measured</text>']
    for i, r in enumerate(rows):
        x, y = float(left), 30 + 45 * i
        named = {kind: r["parts"][kind] for kind, _ in kinds[:4]}
        named["activations and scratch"] = r["planned"] - sum(named.values())
        for kind, colour in kinds:
            lines.append(f'<rect x="{x:.1f}" y="{y}" width="{width * named[kind] / most:.1f}" height="{height}" '
                         f'fill="{colour}"><title>{kind}: {size(named[kind]).strip()}</title></rect>')
            x += width * named[kind] / most
        mark = left + width * r["measured"] / most
        lines.append(f'<line x1="{mark:.1f}" x2="{mark:.1f}" y1="{y - 3}" y2="{y + height + 3}" stroke="black" '
                     f'stroke-width="2"/><text x="8" y="{y + 20}">{r["mode"]}</text>'
                     f'<text x="{max(x, mark) + 5:.1f}" y="{y + 20}">{size(r["measured"]).strip()}</text>')
    for i, (kind, colour) in enumerate(kinds):
        x, y = left + 180 * (i % 3), 50 + 45 * len(rows) + 22 * (i // 3)
        lines.append(f'<rect x="{x}" y="{y}" width="12" height="12" fill="{colour}"/><text x="{x + 18}" y="{y + 11}">{kind}</text>')
    open(path, "w", encoding="utf-8").write("\n".join(lines + ["</svg>"]) + "\n")


def draw_loss(path, losses, evals):
    width, height, left, top = 640, 320, 60, 30
    points = losses + evals
    first, last = min(p[0] for p in points), max(p[0] for p in points)
    low, high = min(p[1] for p in points) - 0.05, max(p[1] for p in points) + 0.05

    def at(p):
        x = left + width * (p[0] - first) / max(1, last - first)
        return x, top + height * (high - p[1]) / (high - low)

    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 40}" height="{top + height + 50}" '
             'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>']
    for i in range(5):
        value = low + (high - low) * i / 4
        y = at((first, value))[1]
        lines.append(f'<line x1="{left}" x2="{left + width}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
                     f'<text x="8" y="{y + 4:.1f}">{value:.2f}</text>')
    for series, colour, name, y in ((losses, "#4e79a7", "training loss", 16), (evals, "#e15759", "held-out loss", 16)):
        path_data = " ".join(f"{'M' if i == 0 else 'L'}{at(p)[0]:.1f},{at(p)[1]:.1f}" for i, p in enumerate(series))
        lines.append(f'<path d="{path_data}" fill="none" stroke="{colour}" stroke-width="2"/>')
        lines += [f'<circle cx="{at(p)[0]:.1f}" cy="{at(p)[1]:.1f}" r="3" fill="{colour}"/>' for p in series]
        lines.append(f'<text x="{left if colour == "#4e79a7" else left + 140}" y="{y}" fill="{colour}">{name}</text>')
    lines.append(f'<text x="{left}" y="{top + height + 30}">optimizer step, {first} to {last}</text></svg>')
    open(path, "w", encoding="utf-8").write("\n".join(lines) + "\n")


class Demo:
    def __init__(self, arguments):
        self.build, self.model, self.out, self.steps = arguments.build, arguments.model, arguments.out, arguments.steps
        self.sbpc, self.sbprun = (os.path.join(self.build, name) for name in ("sbpc", "sbprun"))
        self.run_dir = os.path.join(self.out, "model")

    def path(self, name):
        return os.path.join(self.out, name)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--steps", type=int, default=0, help="0: as many as there is time for")
    parser.add_argument("--began", type=float, default=0, help="seconds spent before")
    arguments = parser.parse_args()
    began = time.time() - arguments.began
    demo = Demo(arguments)
    fit_to_machine(demo)
    make_data(demo)
    measure_modes(demo)
    run([demo.sbpc, "inspect", demo.path("stream.plan"), "--svg", demo.path("memory-step.svg")])
    longest_sequences(demo)
    train(demo)
    out = os.path.relpath(demo.out)
    print(f"\n{out}/memory.svg: the three modes. {out}/memory-step.svg: which bytes are held when, by what. {out}/loss.svg: the losses. {out}/model: loads in transformers.")
    print(f"{time.time() - began:.0f} s in all. For your own model and data:\n")
    print(f"    {demo.sbprun} path/to/model --data train.jsonl --out my-model")


if __name__ == "__main__":
    main()
