"""The measured part of ./run-demo: three modes on the same tokens, what would fit, and a short training run.

The machine is measured first; how many tokens a step has, and how many steps there are, is what it can do in a
minute each. Only the standard library. Every number is measured in this run or marked "planned". What it compares it
judges, in lines that begin with "right:" or "WRONG:"; exit status 1 where one is wrong.
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
MODES_SECONDS = 60  # a step in each mode, gradients in each, and of one in fp64
TRAINING_SECONDS = 60  # of one run that is killed and one that is not
FEWEST_STEPS, MOST_STEPS = 6, 20
QUICK_ROWS, QUICK_STEPS = 128, 2
MODES = ("stream", "checkpoint", "standard")
MEMORY_ERROR = 0.01  # of what was measured: by so much less may be taken than was planned, and no byte more
FP32_EPSILON = 2**-23
wrong = []


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


def judge(holds, text):
    """Says whether a comparison holds. What is not a number holds nowhere."""
    print(f"{'right' if holds else 'WRONG'}: {text}", flush=True)
    if not holds:
        wrong.append(text)


# ---- how much there is time for ---------------------------------------------------------------------------


def compile_plan(demo, mode, length, rates="measured"):
    """Compiles to MODE.plan; returns what sbpc says of it."""
    command = [demo.sbpc, "compile", demo.model, "-o", demo.path(f"{mode}.plan"), "--seq-len", str(length)]
    if demo.quick and mode != "standard":
        command += ["--chunk", str(length // 4)]
    elif not demo.quick:
        command += ["--throughput", rates]
    return json.loads(run(command + ["--backward", mode, "--json"]).stdout)


def fit_to_machine(demo):
    """Sets demo.rows and demo.steps by the speed that sbpc measures, and says what will take how long."""
    if demo.quick:
        demo.rows, demo.steps = QUICK_ROWS, demo.steps or QUICK_STEPS
        say(f"(3) {demo.steps} steps of {demo.rows} tokens, whatever this machine can do")
        for mode in MODES:
            compile_plan(demo, mode, demo.rows)
        return
    say("(3) this machine")
    rates = "again"
    for demo.rows in LENGTHS:
        plans = {}
        for mode in MODES:
            plans[mode] = compile_plan(demo, mode, demo.rows, rates)
            rates = "measured"
        seconds = {mode: plans[mode]["seconds"] for mode in MODES}
        modes = 2 * sum(seconds.values()) + 2 * seconds["standard"]  # fp64 takes twice as long
        if modes <= MODES_SECONDS and 2 * FEWEST_STEPS * seconds["stream"] <= TRAINING_SECONDS:
            break
    speed = plans["stream"]["flops"] / seconds["stream"] / 1e9
    if not demo.steps:
        demo.steps = max(FEWEST_STEPS, min(MOST_STEPS, int(TRAINING_SECONDS / 2 / seconds["stream"])))
    print(f"measured: {speed:.0f} GFLOP/s in a step, so {demo.rows} tokens a step and {demo.steps} steps")
    print(f"estimate: {modes:.0f} s for the modes, {2 * demo.steps * seconds['stream']:.0f} s for the training", flush=True)


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


def paragraphs():
    """What the texts of this repository say, a paragraph at a time."""
    for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "ir/README.md", "passes/README.md", "runtime/README.md"):
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", name), encoding="utf-8") as f:
            yield from (text for text in f.read().split("\n\n") if len(text) > 100)


def write_rows(path, texts):
    with open(path, "w", encoding="utf-8") as f:
        for text in texts:
            f.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")


def make_data(demo):
    texts = list(dict.fromkeys(paragraphs() if demo.quick else definitions()))
    held_out = texts[::20][:4] if demo.quick else texts[::40][:12]
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
    kind = "paragraphs of this repository's texts" if demo.quick else "definitions of the Jargon File"
    print(f"{len(training)} {kind} to train on, {len(held_out)} held out")


# ---- three modes ------------------------------------------------------------------------------------------


def run_step(demo, plan, *options):
    """sbprun on the one row that all modes compute."""
    command = [demo.sbprun, demo.path(plan), "--data", demo.path("step.jsonl"), "--batch-size", "1"]
    return run(command + demo.weights + list(options)).stdout


def measure_modes(demo):
    say(f"(4) one optimizer step on the same {demo.rows} tokens, in three modes")
    rows = []
    for mode in MODES:
        planned = json.loads(run([demo.sbpc, "inspect", demo.path(f"{mode}.plan"), "--json"]).stdout)
        done = json.loads(run_step(demo, f"{mode}.plan", "--steps", "1", "--out", "none", "--json").splitlines()[-1])
        print(f"{mode}: {done['train_seconds']:.1f} s", flush=True)
        parts = planned["categories"]
        resident = sum(parts[k] for k in ("parameters", "gradients", "optimizer state", "the process itself"))
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
    torch = None if demo.quick else torch_row(demo)
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
    rows = [r for r in rows if "parts" in r]
    draw_modes(demo.path("memory.svg"), demo.rows, rows)
    most = max(rows, key=lambda r: abs(r["planned"] / r["measured"] - 1))
    error = most["planned"] / most["measured"] - 1
    judge(all(0 <= r["planned"] / r["measured"] - 1 <= MEMORY_ERROR for r in rows),
          f"memory measured is not above the plan, and at most {abs(error):.2%} from it ({most['mode']}; "
          f"{MEMORY_ERROR:.0%} is allowed)")
    losses = [r["loss"] for r in rows]  # of the same kernels on the same weights: some units in the last place
    judge(max(losses) - min(losses) <= 16 * FP32_EPSILON * max(losses),
          f"the losses of the modes are at most {max(losses) - min(losses):.1e} apart")
    judge_gradients(demo)


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


def judge_gradients(demo):
    """The gradients of the modes may be as far apart as fp32 is from fp64 in each of two: no further. And fp32 itself
    has at least half of its digits right."""
    run([demo.sbpc, "compile", demo.model, "-o", demo.path("fp64.plan"), "--seq-len", str(demo.rows), "--backward", "standard",
         "--dtype", "fp64"])
    files = {name: demo.path(f"{name}.safetensors") for name in (*MODES, "fp64")}
    for name, path in files.items():
        run_step(demo, f"{name}.plan", "--dump-gradients", path)

    def compare(a, b):
        worst, where, count = run([os.path.join(demo.build, "compare_gradients"), files[a], files[b]]).stdout.split()
        return float(worst), where, count

    own, where, count = compare("standard", "fp64")
    judge(own <= FP32_EPSILON**0.5, f"gradients in fp32 are at most {own:.1e} away from fp64 ({where}, of {count} tensors)")
    for mode in MODES[:2]:
        worst, where, count = compare(mode, "standard")
        judge(worst <= 2 * own, f"gradients of {mode} and standard are at most {worst:.1e} apart ({where}, of {count} tensors; "
              f"fp32 explains {2 * own:.1e})")
    for path in (*files.values(), demo.path("fp64.plan")):
        os.remove(path)


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
    judge(lengths["stream"] > lengths["checkpoint"] > lengths["standard"], "streamed sequences are the longest, standard ones the shortest")
    print(f"\na plan for 32,768 tokens in {limit}, --backward standard:")
    refused = subprocess.run(
        [demo.sbpc, "compile", demo.model, "-o", plan, "--seq-len", "32768", "--memory", limit, "--backward", "standard"],
        capture_output=True, text=True,
    )
    print(f"  exit status {refused.returncode}: {refused.stderr.strip().splitlines()[-1]}")
    print("and streamed:")
    accepted = run([demo.sbpc, "compile", demo.model, "-o", plan, "--seq-len", "32768", "--memory", limit])
    print("  " + "\n  ".join(line for line in accepted.stderr.splitlines() if line.startswith(("memory", "headroom"))))
    judge(refused.returncode == (0 if lengths["standard"] >= 32768 else 3), "what does not fit is refused, and only that")
    os.remove(plan)


# ---- training ---------------------------------------------------------------------------------------------


def metrics(folder):
    path = os.path.join(folder, "metrics.jsonl")
    if not os.path.exists(path):
        return []
    return [json.loads(line) for line in open(path, encoding="utf-8") if line.endswith("}\n")]


def show_steps(demo, folder, shown):
    """A line for each step that was not shown yet; returns how many there are."""
    steps = [m for m in metrics(folder) if "loss" in m and m["step"] > shown]
    for m in steps:
        print(f"  step {m['step']} of {demo.steps}: loss {m['loss']:.4f}", flush=True)
    return steps[-1]["step"] if steps else shown


def steps_done(folder):
    return sum("loss" in m for m in metrics(folder))


def has_checkpoint(folder):
    return os.path.isdir(folder) and any(f.startswith("checkpoint-") for f in os.listdir(folder))


def training(demo, folder, every, *more):
    return [demo.sbprun, demo.path("stream.plan"), "--data", demo.path("train.jsonl"), "--eval", demo.path("held-out.jsonl"),
            "--batch-tokens", str(demo.rows), "--overlong", "truncate", "--steps", str(demo.steps), "--lr", "1e-4", "--schedule",
            "constant", "--save-every", str(every), "--out", folder, *demo.weights, *more]


def follow(demo, command, folder, log, shown, until):
    """Runs until it has ended or `until` is true, then kills it; returns the steps shown and whether it was killed."""
    process = subprocess.Popen(command, stderr=log)
    while process.poll() is None and not until():
        time.sleep(0.01)
        shown = show_steps(demo, folder, shown)
    killed = process.poll() is None
    if killed:
        process.send_signal(signal.SIGKILL)
        process.wait()
    elif process.returncode != 0:
        log.flush()
        sys.exit(f"error: training exited with {process.returncode}:\n{open(log.name, encoding='utf-8').read()}")
    return show_steps(demo, folder, shown), killed


def train_interrupted(demo, log):
    """A run that is killed behind its first checkpoint and goes on from there."""
    half = max(1, demo.steps // 2)
    killed = tries = 0
    while not killed and tries < 5:  # where a step takes no time it may have ended before
        tries += 1
        shutil.rmtree(demo.run_dir, ignore_errors=True)
        shown, killed = follow(demo, training(demo, demo.run_dir, half), demo.run_dir, log, 0,
                               lambda: has_checkpoint(demo.run_dir) and steps_done(demo.run_dir) >= half)
    judge(killed, f"a run was killed by SIGKILL after step {steps_done(demo.run_dir)} of {demo.steps}; it goes on from its checkpoint")
    follow(demo, training(demo, demo.run_dir, half, "--resume"), demo.run_dir, log, shown, lambda: False)


def train(demo):
    say(f"(6) {demo.steps} training steps of up to {demo.rows} tokens: killed half-way and resumed, and uninterrupted")
    print(f"(texts above {demo.rows} tokens are cut there: --overlong truncate)", flush=True)
    whole = demo.path("uninterrupted")
    shutil.rmtree(whole, ignore_errors=True)
    with open(demo.path("train.log"), "w", encoding="utf-8") as log:
        train_interrupted(demo, log)
        follow(demo, training(demo, whole, demo.steps), whole, log, demo.steps, lambda: False)
    said = open(demo.path("train.log"), encoding="utf-8").read()
    for line in dict.fromkeys(said.splitlines()):
        if re.search(r" rows |going on ", line):
            print(line)
    steps = {m["step"]: m for m in metrics(demo.run_dir) if "loss" in m}
    evals = [m for m in metrics(demo.run_dir) if "eval_loss" in m]
    most = max(m["loss"] for m in steps.values())
    for step in sorted(steps):
        m = steps[step]
        print(f"step {step:3d}  loss {m['loss']:.4f}  {m['tokens_per_second']:6.0f} tokens/s  {bar(m['loss'], most, 30)}")
    before, after = evals[0]["eval_loss"], evals[-1]["eval_loss"]
    judge(after < before, f"held-out loss falls: {before:.4f} before, {after:.4f} after")
    same = same_bytes(*(os.path.join(folder, "model.safetensors") for folder in (demo.run_dir, whole)))
    judge(same, "the run that was killed and resumed has the weights of the uninterrupted one, bit for bit")
    losses = [[(m["step"], m["loss"]) for m in metrics(folder) if "loss" in m] for folder in (demo.run_dir, whole)]
    judge(losses[0] == losses[1], "and its losses")
    shutil.rmtree(whole)
    draw_loss(demo.path("loss.svg"), [(s, steps[s]["loss"]) for s in sorted(steps)],
              [(m["step"], m["eval_loss"]) for m in evals])


def same_bytes(*paths):
    files = [open(path, "rb") for path in paths]
    while True:
        pieces = [f.read(1 << 22) for f in files]
        if pieces[0] != pieces[1] or not pieces[0]:
            return pieces[0] == pieces[1]


def draw_modes(path, length, rows):
    """Planned memory by what it is for, a bar for each mode; a mark at what the process took."""
    kinds = (("parameters", "#4e79a7"), ("gradients", "#f28e2b"), ("optimizer state", "#59a14f"), ("the process itself", "#bab0ac"),
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
        self.quick, self.weights = arguments.quick, ["--weights", arguments.weights] if arguments.weights else []
        self.sbpc, self.sbprun = (os.path.join(self.build, name) for name in ("sbpc", "sbprun"))
        self.run_dir = os.path.join(self.out, "model")

    def path(self, name):
        return os.path.join(self.out, name)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--weights", help="sbprun's option, where the model has none")
    parser.add_argument("--out", required=True)
    parser.add_argument("--quick", action="store_true", help="two steps of 128 tokens")
    parser.add_argument("--steps", type=int, default=0, help="0: as many as there is time for")
    parser.add_argument("--began", type=float, default=0, help="seconds spent before")
    arguments = parser.parse_args()
    began = time.time() - arguments.began
    demo = Demo(arguments)
    fit_to_machine(demo)
    make_data(demo)
    measure_modes(demo)
    run([demo.sbpc, "inspect", demo.path("stream.plan"), "--svg", demo.path("memory-step.svg")])
    if not demo.quick:
        longest_sequences(demo)
    train(demo)
    out = os.path.relpath(demo.out)
    print(f"\n{out}/memory.svg: the three modes. {out}/memory-step.svg: which bytes are held when, by what. {out}/loss.svg: the losses. {out}/model: loads in transformers.")
    if wrong:
        print("\nerror: what does not hold:\n  " + "\n  ".join(wrong), file=sys.stderr)
        sys.exit(1)
    print(f"{time.time() - began:.0f} s in all; all of it is right. For your own model and data:\n")
    print(f"    {demo.sbprun} path/to/model --data train.jsonl --out my-model")


if __name__ == "__main__":
    main()
