"""The parts of gpu_check, in their order: what is right first, then what a half hour is rented for, long suites last.

Planned seconds are of an H100 or H200 by data sheets: steps by 6 P T + 6 T^2 operations at 33 % of 989 TFLOP/s, weights drawn
and copied at 1.5e9 a second, 3 s to open and plan; the rest is counted, generously, from processes and launches. Standard library alone."""
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading

from gpu_machine import TOP, Machine, size  # noqa: F401 (Machine: for gpu_check)
from gpu_models import CUT, MODELS, TINY, model_flops, parameters, sizes_of, vocabulary_of, write_config
from gpu_schedule import Failed, Hung, Part

HEADS = (128, 64, 96, 80, 256)  # as models have them, most of them first
PLAIN_ROWS = "2048"  # scalars: at all rows they take longer than all else
VARIANTS = ("wgmma", "mma", "plain")
FULL = ["--param-dtype", "bf16", "--dtype", "bf16", "--clip", "none", "--accumulate", "1"]
SGD = FULL + ["--optimizer", "sgd"]
BF16_STATES = FULL + ["--state-dtype", "bf16"]
LORA = ["--param-dtype", "bf16", "--dtype", "bf16", "--lora", "r=16,alpha=32"]
# What gpu_bundle compiles ahead, for a machine without a compiler that works: (model, tokens, options).
STEPS = [("06b", 32768, FULL), ("06b", 131072, FULL), ("8b", 32768, SGD), ("8b", 131072, SGD)] + [(model, 32768, LORA) for model in CUT]
CARRIED_MEMORY = ("78GiB", "138GiB")


def step_seconds(model, tokens, steps):
    return 3 + parameters(model) / 1.5e9 + steps * model_flops(MODELS[model], tokens) / (0.33 * 989e12)


def field(text, key):
    """A number or word of JSON by its key, wherever it is first."""
    found = re.search(rf'"{key}": *("[^"]*"|[-0-9.e+]+|true|false|null)', text)
    return json.loads(found.group(1)) if found else None


def json_lines(figure, wrong=None, key=None):
    """A reader of lines that are figures."""
    def take(text):
        if not text.startswith("{"):
            return
        try:
            line = json.loads(text)
        except ValueError:
            return
        figure(line, key(line) if key else None)
        if wrong is not None and line.get("right") is False:
            wrong.append(line)
    return take


# ---- is it there, is it right ---------------------------------------------------------------------------------------------


def preflight(m, figure):
    figure({"machine": m.facts()})
    figure({"libraries": m.libraries})
    if m.gpu:
        figure({"gpu": m.gpu})
    missing = [name for name, path in m.libraries.items() if not path and name != "libnccl.so.2"]
    if missing and m.backend == "cuda":
        figure({"missing": missing})
    def starts():
        try:
            return m.run([m.program("sbprun"), "--devices"], m.env, 20)
        except (Hung, OSError):
            return 127, ""
    status, text = starts()
    if status not in (0, 1, 2, 3) or not os.path.exists(m.program("tests/bench/bench_attention")):
        figure({"built": "the programs of the bundle do not start here" if m.build.endswith("ready") else "there are none yet"})
        m.call([os.path.join(TOP, "tests/bench/gpu_bundle"), "build"], 280)
        m.build = os.path.join(TOP, "build/release")
        status, text = starts()
    if not re.search(rf"^{m.backend}", text, re.M):
        raise Failed(f"no {m.backend} device: {text.strip()[:300]}")
    return {"devices": text.strip(), "build": os.path.relpath(m.build, TOP)}


def waits(m, figure):
    """Attention with every wait bounded, so that one which never ends is named by its kernel, and costs seconds."""
    command = [m.program("tests/bench/bench_attention"), m.backend, "--head-dim", "128", "--rows", "160" if m.tiny else "2048", "--cases", "2"]
    m.call(command, None, json_lines(figure), {"SBP_CUDA_DEBUG": "waits"})
    return {}


def pinning(m, figure):
    """Seconds that the system takes to pin memory of the host, and whether it lets it be registered."""
    if m.backend != "cuda":
        return {"skipped": "pinned memory is CUDA's"}
    command = [sys.executable, os.path.join(TOP, "tests/bench/gpu_pinning.py"), m.libraries["libcuda.so.1"] or "libcuda.so.1"]
    m.call(command + (["0.01"] if m.tiny else ["1", "8", "32", "64"]), None, json_lines(figure))
    return {}


def attention_case(m, figure, wrong, head, variant, save):
    key, lines = f"{head} {variant}", []

    def take(text):
        lines.append(text)
        json_lines(figure, wrong)(text)
    rows = "160" if m.tiny else PLAIN_ROWS if variant == VARIANTS[2] else "8192"
    command = [m.program("tests/bench/bench_attention"), m.backend, "--head-dim", str(head), "--rows", rows]
    command += ["--cases", "2"] if m.tiny else []
    if variant != VARIANTS[2]: # which has rows of its own: beside double precision alone
        command += ["--save" if variant == VARIANTS[0] else "--against", save]
    try:
        status, _ = m.run(command, {**m.env, "SBP_CUDA_VARIANT": variant}, 120 if m.tiny else 25, TOP, take)
    except Hung as error:
        wrong.append({"hung": key})
        figure({"attention": key, "right": False, "error": str(error)})
        return
    if status == 0:
        figure({"attention": key, "right": True}, key)
    elif not any('"right": false' in line for line in lines):
        wrong.append({"failed": key})
        figure({"attention": key, "right": False, "error": f"exit status {status}"})
    if variant == VARIANTS[0]:
        with open(os.path.join(save, f"{head}.jsonl"), "w", encoding="utf-8") as file:
            file.writelines(line for line in lines if line.startswith("{"))


def attention(m, figure):
    """Every variant at every head against double precision, then all rows of the first by torch. A variant that hangs or is
    wrong costs its own seconds alone; the others are still compared."""
    wrong, python = [], None if m.tiny else m.python_with("torch")
    variants = VARIANTS if m.backend == "cuda" else VARIANTS[:1]
    for head in HEADS if not m.tiny else (64,):
        # what is compared is gone with a call: a head that was cut off is done as a whole
        if all(m.results.done("attention", f"{head} {what}") for what in variants + (("torch",) if python else ())):
            continue
        save = os.path.join(m.work, "attention")
        os.makedirs(save, exist_ok=True)
        for variant in variants:
            attention_case(m, figure, wrong, head, variant, save)
        lines = os.path.join(save, f"{head}.jsonl")
        if python and os.path.exists(lines):
            try:
                status, _ = m.run([python, os.path.join(TOP, "tests/bench/torch_attention_check.py"), save, lines], os.environ, 30, TOP, json_lines(figure, wrong))
                figure({"attention": f"{head} torch", "right": status == 0}, f"{head} torch")
                wrong += [] if status == 0 else [{"torch": head}]
            except Hung as error:
                figure({"attention": f"{head} torch", "error": str(error)})
        shutil.rmtree(save, ignore_errors=True)
    if wrong:
        raise Failed(f"{len(wrong)} cases are wrong or did not end, the first: {json.dumps(wrong[0])[:300]}")
    return {"torch": bool(python)}


def suite(m, figure, commands):
    """cmocka programs side by side; each test is a figure when it ends."""
    counts, errors, lock = {"passed": 0, "failed": 0}, [], threading.Lock()

    def take(text):
        found = re.match(r"\[ *(OK|FAILED) *\] (\w+)$", text.strip())
        with lock:
            if found and found.group(1) == "OK":
                counts["passed"] += 1
                figure({"test": found.group(2)})
            elif found:
                counts["failed"] += 1
                figure({"test": found.group(2), "right": False})
            elif text.startswith("[  ERROR") or "cases run" in text:
                figure({"says": text.strip()[:300]})

    def one(command, more):
        try:
            status, _ = m.run(["sh", "-c", 'exec "$@" 2>&1', "sh"] + command, {**m.env, **more}, None, TOP, take)
            if status != 0:
                errors.append(f"exit status {status}: {' '.join(command[-2:])} {more}")
        except Hung as error:
            errors.append(str(error))
    threads = [threading.Thread(target=one, args=pair) for pair in commands]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise Failed("; ".join(errors)[:600])
    return counts


def conformance(m, figure, sample=True, test=None):
    program = [m.program("tests/conformance/conformance"), m.backend] + ([test] if test else [])
    if m.backend != "cuda" or test:
        return suite(m, figure, [(program, {})])
    processes = 2 if m.tiny else 4
    of = 1000 if m.tiny else 32 if sample else processes
    return suite(m, figure, [(program, {"SBP_TEST_SAMPLE": f"{k * of // processes}/{of}"}) for k in range(processes)])


def goldens(m, figure, everything=False):
    more = {"SBP_TEST_BINARIES": os.path.abspath(m.build), **({"SBP_TEST_ALL": "1"} if everything and not m.tiny else {})}
    command = [m.program("tests/cli/test_cli_golden")] + ([] if m.backend == "cpu" else [m.backend])
    tests = ["test_golden_sample"] if m.backend == "cuda" and not everything else []
    return suite(m, figure, [(command + tests, more)])


# ---- how fast -------------------------------------------------------------------------------------------------------------


def rates(only, dtype, more=()):
    def part(m, figure):
        command = [m.program("tests/bench/bench_throughput"), m.backend, "--model", "tiny" if m.tiny else "8b", "--only", only, "--seconds", "0.1"]
        command += [] if only == "row" else ["--dtype", dtype]
        command += [] if m.tiny else more
        if m.peaks():
            command += ["--peak", str(m.peaks()[0]), "--bandwidth", str(m.peaks()[1])]
        m.call(command, None, json_lines(figure))
        return {}
    return part


# Attention of gpt-oss and of Qwen3.6-27B; experts of Qwen3-30B-A3B and of gpt-oss; the delta rule of Qwen3.6-27B.
HEADS_OF = {64: ["--head-dim", "64", "--heads", "64", "--kv-heads", "8"], 256: ["--head-dim", "256", "--heads", "24", "--kv-heads", "4"]}
EXPERTS = [["--hidden", "2048", "--inner", "768", "--chosen", "8", "--scale", "32"], ["--hidden", "2880", "--inner", "2880", "--chosen", "4", "--scale", "16"]]
DELTA = ["--rows", "8192", "--heads", "48", "--key-heads", "16"]


def experts(m, figure):
    for shape in EXPERTS if not m.tiny else [["--hidden", "32", "--inner", "16"]]:
        m.call([m.program("tests/bench/bench_experts"), m.backend, "--dtype", "bf16", "--seconds", "0.1", *shape], None, json_lines(figure))
    return {}


def delta(m, figure):
    shape = DELTA if not m.tiny else ["--rows", "70", "--heads", "2", "--key-heads", "1", "--head-dim", "16"]
    m.call([m.program("tests/bench/bench_delta"), m.backend, "--dtype", "bf16", "--seconds", "0.1", *shape], None, json_lines(figure))
    return {}


def measured(m, figure):
    """What sbpc measures of this machine, how long that takes, and what it then plans beside the table."""
    folder = write_config(os.path.join(m.work, "06b"), "06b", m.tiny)
    for rates_of in ("table", "measured"):
        plan, begun = os.path.join(m.work, f"{rates_of}.bin"), m.clock()
        command = [m.program("sbpc"), "compile", folder, "-o", plan, "--backend", m.backend, "--seq-len", "96" if m.tiny else "8192", "--throughput", rates_of]
        m.call(command + full_options(m, FULL) + (["--arch", m.arch()] if m.backend == "cuda" else []), 120 if m.tiny else 60)
        figure({"throughput": rates_of, "seconds": round(m.clock() - begun, 2), **inspect(m, plan)})
    return {}


# What ncu says of the kernels of a command: the first launches of a bench.
PROFILED = [("attention 128", "bench_throughput", ["--model", "8b", "--only", "attention", "--dtype", "bf16", "--seconds", "0"], 10),
            ("attention 256", "bench_throughput", ["--model", "8b", "--only", "attention", "--dtype", "bf16", "--seconds", "0", *HEADS_OF[256]], 10),
            ("experts", "bench_experts", ["--dtype", "bf16", "--seconds", "0", "--repeat", "1", *EXPERTS[0]], 8),
            ("delta", "bench_delta", ["--dtype", "bf16", "--seconds", "0", *DELTA], 8)]
COUNTERS = ("Duration", "Registers Per Thread", "Compute (SM) Throughput", "Memory Throughput", "DRAM Throughput", "Issue Slots Busy", "Achieved Occupancy",
            "L2 Hit Rate", "Shared Memory Configuration Size")


def profile(m, figure):
    """Hardware counters of the kernels that matter, where the machine lets them be read; all of the report is in the log."""
    tool = shutil.which("ncu")
    if not tool:
        return {"skipped": "no ncu on this machine"}
    for name, bench, options, launches in PROFILED:
        command = [tool, "--set", "full", "--clock-control", "none", "--launch-count", str(launches), m.program("tests/bench/" + bench), m.backend, *options]
        status, text = m.run(command, m.env, 60, TOP)
        if status != 0 and re.search("Failed to initialize|ERR_NVGPUCTRPERM|not supported|No kernels were profiled", text):
            return {"skipped": "ncu cannot read the counters here: " + text.strip()[-200:]}
        if status != 0:
            raise Failed(f"{name}: exit status {status}: {text.strip()[-300:]}")
        for kernel in re.split(r"\n(?=  \S+.*\(\d+, \d+, \d+\)x\()", text)[1:]:
            values = {counter: found.group(1) for counter in COUNTERS for found in [re.search(re.escape(counter) + r"\s+\S+\s+([0-9.,]+)", kernel)] if found}
            figure({"profiled": name, "kernel": kernel.strip().splitlines()[0][:120], **values})
    return {}


def write_rows(path, lengths, vocabulary):
    with open(path, "w", encoding="utf-8") as file:
        for length in lengths:
            draw = random.Random(length)
            json.dump({"input_ids": [draw.randrange(vocabulary) for _ in range(length)]}, file)
            file.write("\n")
    return path


def compile_plan(m, model, tokens, options, plan):
    """Standard error goes to the log. A plan of the bundle takes the place of one that cannot be compiled here."""
    folder = write_config(os.path.join(m.work, model), model, m.tiny)
    command = [m.program("sbpc"), "compile", folder, "-o", plan, "--backend", m.backend, "--seq-len", str(tokens), "--memory", m.memory()]
    command += ["--arch", m.arch(), "--host-memory", m.host_memory()] if m.backend == "cuda" else []
    # by the table: what sbpc measures is a figure of its own (throughput_measured), and kernels for it are not in the bundle
    try:
        status, text = m.run(command + options + ["--throughput", "table"], m.env, 90 if m.tiny else 30, TOP)
    except Hung:
        status, text = 124, ""
    if status == 0:
        return "compiled here", text
    for memory in sorted(CARRIED_MEMORY, key=size, reverse=True):
        carried = m.bundled(f"plans/{model}-{tokens}-{memory}.plan")
        if os.path.exists(carried) and size(memory) <= size(m.memory()) + (2 << 30):
            shutil.copyfile(carried, plan)
            return f"carried, for {memory}", ""
    raise Failed("sbpc compile failed or hung, and no plan of the bundle fits")


def full_options(m, options):
    return options if m.backend == "cuda" else [word for word in options if word not in ("--param-dtype", "--dtype", "--state-dtype", "bf16")]


def inspect(m, plan):
    text = m.call([m.program("sbpc"), "inspect", plan, "--json"], 60)
    return {key: field(text, name) for key, name in (("planned_seconds", "seconds"), ("chunk", "chunk"), ("segment", "segment"), ("checkpoint_every", "checkpoint_every"))}


def step(m, figure, model, tokens, steps, options, run_options=(), key=None, more=None, length=None):
    """One row of `tokens` tokens (or `length`), `steps` steps, nothing written. What was planned is a figure before it runs."""
    key = key or f"{model} {tokens} {' '.join(options)}"
    for part in {line.get("part") for line in m.results.lines}:
        if m.results.done(part, key):
            return m.results.done(part, key)
    real, sizes = tokens, None if model in CUT else sizes_of(model, m.tiny)
    if m.tiny:
        tokens = 192 if tokens > 65536 else 96
    rows = write_rows(os.path.join(m.work, "rows.jsonl"), [min(length or tokens, tokens)], vocabulary_of(model, m.tiny))
    plan = os.path.join(m.work, "plan.bin")
    origin, _ = compile_plan(m, model, tokens, full_options(m, options), plan)
    planned = inspect(m, plan)
    figure({"planned": f"{model} {real}", "plan": origin, **planned})
    text = m.call([m.program("sbprun"), plan, "--data", rows, "--weights", "random:1", "--batch-size", "1", "--steps", str(steps), "--out", "none", "--json", *run_options],
                  None, None, more)
    last = text.strip().splitlines()[-1]
    seconds = field(last, "fastest_step_seconds")
    result = {"model": model, "tokens": tokens, "options": " ".join(options), "steps": steps, "seconds": seconds, **planned, "plan": origin,
              "memory": m.memory(), "tokens_per_second": round(tokens / seconds, 1),
              **{name: field(last, name) for name in ("train_loss", "train_seconds", "peak_bytes_planned", "peak_bytes_measured")}}
    if sizes:
        result["tflops"] = round(model_flops(sizes, tokens) / seconds / 1e12, 2)
    if sizes and m.peaks() and not length:
        result["mfu_percent"] = round(result["tflops"] / m.peaks()[0] * 100, 2)
    figure(result, key)
    return result


def step_part(model, tokens, steps, options):
    return lambda m, figure: {"tokens_per_second": step(m, figure, model, tokens, steps, options)["tokens_per_second"]}


def modes(model, tokens):
    def part(m, figure):
        for mode in ("stream", "checkpoint", "standard"):
            try:
                step(m, figure, model, tokens, 2, BF16_STATES + ["--backward", mode])
            except Hung:
                raise
            except Failed as error: # it may not fit, which the log says
                figure({"model": model, "mode": mode, "failed": str(error)})
    return part


def longest(m, figure):
    """How long a sequence the planner promises here, compiled alone: its step would take hours. Then one short row under that
    plan, which holds the same memory."""
    folder, plan = write_config(os.path.join(m.work, "8b"), "8b", m.tiny), os.path.join(m.work, "longest.bin")
    limits = ["--memory", m.memory()] + (["--arch", m.arch(), "--host-memory", m.host_memory()] if m.backend == "cuda" else [])
    command = [m.program("sbpc"), "compile", folder, "-o", plan, "--backend", m.backend, *limits, "--json", *full_options(m, SGD)]
    text = m.call(command + ["--seq-len", "256" if m.tiny else "max"], 90)
    found = {"longest": field(text, "seq_len"), "memory": m.memory(), "host_memory": m.host_memory(), **inspect(m, plan)}
    figure(found)
    rows = write_rows(os.path.join(m.work, "rows.jsonl"), [96 if m.tiny else 8192], vocabulary_of("8b", m.tiny))
    last = m.call([m.program("sbprun"), plan, "--data", rows, "--weights", "random:1", "--batch-size", "1", "--steps", "1", "--out", "none", "--json"]).strip().splitlines()[-1]
    figure({"short_row_under_the_plan_of": found["longest"], **{name: field(last, name) for name in ("fastest_step_seconds", "peak_bytes_planned", "peak_bytes_measured", "train_loss")}})


def tune(m, figure):
    """What measuring the ways to compute each product gains, and that runs which take the same have the same bits."""
    if m.backend != "cuda":
        return {"skipped": "one way to compute each matmul"}
    products, losses = os.path.join(m.results.folder, "products.txt"), []
    if os.path.exists(products):
        os.remove(products)
    for way in ("first", "measured", "kept"):
        options = [] if way == "first" else ["--tune", products]
        losses.append(step(m, figure, "06b", 8192, 3, FULL, options, f"tune {way} {random.random()}")["train_loss"])
    if losses[1] != losses[2]:
        raise Failed(f"two runs with the same choices have losses of {losses[1]} and {losses[2]}")
    return {"losses": losses}


def timeline(m, figure):
    """Where a step's time goes, by events around each command."""
    if m.backend != "cuda":
        return {"skipped": "events are CUDA's"}
    path, totals, tokens = os.path.join(m.work, "timeline.jsonl"), {}, 32768
    step(m, figure, "8b", tokens, 1, SGD, (), f"timeline {random.random()}", {"SBP_CUDA_TIMELINE": path})
    with open(path, encoding="utf-8") as file:
        for line in map(json.loads, file):
            name = line["command"] + (" " + line["kernel"] if line["kernel"] else "") + (f" {line['rows']}x{line['cols']}x{line['depth']}" if line["depth"] else "")
            count, ms = totals.get(name, (0, 0.0))
            totals[name] = (count + 1, ms + line["ms"])
    whole = sum(ms for _, ms in totals.values()) or 1e-9
    for name, (count, ms) in sorted(totals.items(), key=lambda item: -item[1][1])[:60]:
        figure({"command": name, "count": count, "ms": round(ms, 3), "percent": round(100 * ms / whole, 2)})
    return {"commands": sum(count for count, _ in totals.values())}


def torch_rates(m, figure):
    python = m.python_with("torch")
    if not python:
        return {"skipped": "no torch on this machine"}
    m.call([python, os.path.join(TOP, "tests/bench/torch_attention.py")] + (["--tiny"] if m.tiny else []), None, json_lines(figure), None, True)
    return {}


def transformers(m, figure):
    python = m.python_with("transformers")
    if not python:
        return {"skipped": "no transformers on this machine"}
    folder = write_config(os.path.join(m.work, "06b"), "06b", m.tiny)
    m.call([python, os.path.join(TOP, "tests/bench/transformers_step.py"), "--model", folder, "--tokens", "96" if m.tiny else "32768"], None, json_lines(figure), None, True)
    return {}


def sanitizer(m, figure):
    """One small step under NVIDIA's own checker: out of bounds, races, what was never written. Races and barriers of the kernels
    with TMA are information, for the tools do not know all of what these wait by; those without it decide."""
    tool = shutil.which("compute-sanitizer")
    if not tool:
        return {"skipped": "no compute-sanitizer on this machine"}
    folder, plan, wrong = write_config(os.path.join(m.work, "small"), "06b", True), os.path.join(m.work, "small.bin"), []
    rows = write_rows(os.path.join(m.work, "rows.jsonl"), [192], TINY[6])
    m.call([m.program("sbpc"), "compile", folder, "-o", plan, "--backend", m.backend, "--seq-len", "192", "--chunk", "64", *FULL], 60)
    for name, variant in (("memcheck", ""), ("initcheck", ""), ("racecheck", "mma"), ("synccheck", "mma"), ("racecheck", ""), ("synccheck", "")):
        decides = variant or name in ("memcheck", "initcheck")
        try:
            status, text = m.run([tool, "--tool", name, "--error-exitcode", "9", m.program("sbprun"), plan, "--data", rows, "--weights", "random:1", "--batch-size", "1",
                                  "--steps", "1", "--out", "none"], {**m.env, **({"SBP_CUDA_VARIANT": variant} if variant else {})}, 60, TOP)
        except Hung as error:
            figure({"tool": name, "error": str(error)})
            continue
        if status != 0 and re.search("Device not supported|Failed to initialize|LibraryNotLoaded", text):
            return {"skipped": "compute-sanitizer does not take this device: " + text.strip()[-200:]}
        figure({"tool": name, "variant": variant or "wgmma", "status": status, "says": text.strip()[-300:], **({"right": status == 0} if decides else {})})
        wrong += [name] if status and decides else []
    if wrong:
        raise Failed(", ".join(wrong) + " found something")
    return {}


def check(m, figure):
    """What every user can run: a plan of this device against loops, the loss and another schedule."""
    folder = write_config(os.path.join(m.work, "06b"), "06b", m.tiny)
    figure({"model": "06b", "backend": m.backend})
    command = [m.program("sbprun"), "check", folder, "--backend", m.backend, "--weights", "random:1", "--seq-len", "512" if m.tiny else "8192", "--json"]
    status, text = m.run(command + ["--param-dtype", "bf16", "--dtype", "bf16"], m.env, 110)
    lines = [line for line in text.splitlines() if line.startswith("{")]
    if status not in (0, 1, 3) or not lines:
        raise Failed(f"sbprun check: exit status {status}")
    found = json.loads(lines[-1])
    for finding in found["findings"]:
        figure(finding)
    if status == 1:
        raise Failed("sbprun check: " + ", ".join(f"{f['part']} {f['what']}" for f in found["findings"] if f["verdict"] == "WRONG"))
    return {"verdict": found["verdict"], "check_seconds": found["seconds"]}


def vulkan(m, figure):
    program = m.program("tests/conformance/conformance")
    _, text = m.run([m.program("sbprun"), "--devices"], m.env, 20)
    if "vulkan" not in text:
        return {"skipped": "no Vulkan device"}
    return suite(m, figure, [([program, "vulkan", test], {}) for test in ("test_attention*", "test_gemm*", "test_fill*", "test_copy*", "test_reduce*")])


# ---- here, before: gpu_bundle ---------------------------------------------------------------------------------------------


def compile_ahead(build, folder):
    """Plans of STEPS for GPUs of two sizes, and the kernels of what is run before them, into the cache of kernels."""
    with tempfile.TemporaryDirectory() as work:
        for model, tokens, options in STEPS:
            config = write_config(os.path.join(work, model), model, False)
            for memory in CARRIED_MEMORY:
                plan = os.path.join(folder, f"{model}-{tokens}-{memory}.plan")
                subprocess.run([os.path.join(build, "sbpc"), "compile", config, "-o", plan, "--backend", "cuda", "--arch", "sm_90a", "--seq-len", str(tokens),
                                "--memory", memory, "--host-memory", "100GiB", *options], check=True, stdout=subprocess.DEVNULL)
    benches = os.path.join(build, "tests/bench/")
    for head in HEADS:
        subprocess.run([benches + "bench_attention", "cuda", "--head-dim", str(head), "--compile", "only"], check=True)
    for only, more in [(only, []) for only in ("gemm", "head", "attention", "row")] + [("attention", shape) for shape in HEADS_OF.values()]:
        subprocess.run([benches + "bench_throughput", "cuda", "--model", "8b", "--only", only, *more, "--compile", "only"], check=True)
    for shape in EXPERTS:
        subprocess.run([benches + "bench_experts", "cuda", "--dtype", "bf16", *shape, "--compile", "only"], check=True)
    subprocess.run([benches + "bench_delta", "cuda", "--dtype", "bf16", *DELTA, "--compile", "only"], check=True)


# ---- two ranks ------------------------------------------------------------------------------------------------------------


def pair(m, plan, rows, folder, port, more):
    """Two ranks as torchrun starts them. What each says."""
    shutil.rmtree(folder, ignore_errors=True)
    results, threads = {}, []

    def one(rank):
        env = {**m.env, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
               "MASTER_PORT": str(port - 1), "NCCL_COMM_ID": f"127.0.0.1:{port}", "NCCL_MULTI_RANK_GPU_ENABLE": "1", **more}
        command = [m.program("sbprun"), plan, "--data", rows, "--weights", "random:1", "--batch-size", "4", "--steps", "2", "--timeout", "60", "--out", folder, "--json"]
        try:
            results[rank] = m.run(["sh", "-c", 'exec "$@" 2>&1', "sh"] + command, env, 90, TOP)
        except Hung as error:
            results[rank] = (124, str(error))
    for rank in range(2):
        threads.append(threading.Thread(target=one, args=(rank,)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    return results


def nccl(m, figure):
    """Two ranks over NCCL, which one GPU may have from 2.30 on: losses are those of one rank; two runs and the way through the
    host have the same bits, unless NCCL adds up itself."""
    if m.backend != "cuda":
        return {"skipped": "NCCL is CUDA's"}
    port = 20000 + os.getpid() % 10000
    sizes = sizes_of("06b", m.tiny)
    folder, plan, out = write_config(os.path.join(m.work, "06b"), "06b", m.tiny), os.path.join(m.work, "plan.bin"), os.path.join(m.work, "ranks")
    rows = write_rows(os.path.join(m.work, "rows.jsonl"), [(20 if m.tiny else 900) + k for k in range(1, 5)], sizes[6])
    compiled = [m.program("sbpc"), "compile", folder, "-o", plan, "--backend", "cuda", "--seq-len", "1024", *FULL]
    m.call(compiled, 60)
    figure({"ranks": 2, "rows": 4})
    alone = field(m.call([m.program("sbprun"), plan, "--data", rows, "--weights", "random:1", "--batch-size", "4", "--steps", "2", "--out", "none", "--json"]), "train_loss")
    figure({"loss_of_one_rank": alone})
    for way in ("--zero 0", "--zero 2", "--zero 3", "--zero 3 --context-parallel 2", "--zero 3 --context-parallel 2 --context-exchange all-gather", "--zero 2 --deterministic off"):
        m.call(compiled[:-2] + ["--accumulate", "any", "--ranks", "2"] + way.split(), 60)
        sums = set()
        for more in ({}, {}, {"SBP_CUDA_NCCL": "off"}):
            port += 2
            said = pair(m, plan, rows, out, port, more)
            refusal = re.search(r"Duplicate GPU[^\"\n]*|libnccl.so.2 .* was not found", said[0][1] + said[1][1])
            if refusal:
                return {"skipped": refusal.group(0)}
            if said[0][0] or said[1][0]:
                raise Failed(f"{way}: exit statuses {said[0][0]} and {said[1][0]}")
            loss = field(said[0][1].strip().splitlines()[-1], "train_loss")
            with open(os.path.join(out, "model.safetensors"), "rb") as file:
                sums.add(hash(file.read()))
            if abs(loss - alone) > 2e-3 * abs(alone):
                raise Failed(f"{way}: a loss of {loss}, of one rank {alone}")
        if len(sums) > 1 and not way.endswith("off"):
            raise Failed(f"{way}: bits differ between runs, or from the way through the host")
        figure({"options": way, "train_loss": loss, "same_bits": len(sums) == 1})
    return {}


# ---- all of them ----------------------------------------------------------------------------------------------------------


PINNING = 15  # seconds to pin what 8B's plans keep on the host


def step_entry(name, model, tokens, steps, options, what):
    seconds = 12 if model in CUT else step_seconds(model, tokens, steps) + (PINNING if model == "8b" else 0)
    return Part(name, seconds, 30 + 2.5 * seconds, what, step_part(model, tokens, steps, options))


def parts():
    return [
        Part("preflight", 10, 320, "libraries, versions, disk, clocks, the device", preflight),
        Part("pinning", 15, 60, "how long pinning 1 to 64 GiB takes", pinning),
        Part("waits", 8, 40, "attention with every wait bounded", waits),
        Part("attention", 50, 150, "wgmma, mma, plain and torch; five heads; 8,192 rows", attention),
        Part("throughput_attention", 8, 40, "attention in bf16, heads of 128", rates("attention", "bf16")),
        Part("throughput_attention_64", 8, 40, "the same, heads of 64", rates("attention", "bf16", HEADS_OF[64])),
        Part("throughput_attention_256", 8, 40, "the same, heads of 256", rates("attention", "bf16", HEADS_OF[256])),
        Part("throughput_gemm", 20, 60, "products in bf16", rates("gemm", "bf16")),
        Part("throughput_experts", 10, 40, "products of experts beside dense ones", experts),
        Part("throughput_delta", 8, 40, "the delta rule beside products", delta),
        step_entry("step_06b_32k", "06b", 32768, 3, FULL, "Qwen3-0.6B, AdamW"),
        step_entry("step_8b_32k", "8b", 32768, 2, SGD, "Qwen3-8B, SGD"),
        Part("profile", 45, 150, "ncu of attention, experts, the delta rule", profile),
        step_entry("step_30b_a3b", "30b_a3b", 32768, 2, LORA, "four layers of Qwen3-30B-A3B, LoRA"),
        step_entry("step_gpt_oss", "gpt_oss", 32768, 2, LORA, "four layers of gpt-oss-20b in bf16, LoRA"),
        step_entry("step_27b", "27b", 32768, 2, LORA, "four layers of Qwen3.6-27B, LoRA"),
        step_entry("step_8b_128k", "8b", 131072, 1, SGD, "Qwen3-8B, SGD"),
        step_entry("step_06b_128k", "06b", 131072, 1, FULL, "Qwen3-0.6B, AdamW"),
        Part("goldens", 40, 120, "gradients of small models, a sample", goldens),
        Part("conformance", 60, 150, "every command against double precision, an eighth of the cases in four processes", conformance),
        Part("timeline", step_seconds("8b", 32768, 1) + PINNING, 60, "where the time of a step of 8B goes", timeline),
        Part("torch_attention", 15, 60, "PyTorch's own attention", torch_rates),
        Part("check", 40, 120, "sbprun check of 0.6B: the commands of its plan, its loss, another schedule", check),
        Part("throughput_measured", 15, 120, "what --throughput measured finds", measured),
        Part("throughput_head", 12, 40, "products of the head in bf16", rates("head", "bf16")),
        Part("throughput_row", 10, 40, "row kernels", rates("row", "bf16")),
        Part("longest", 35, 120, "the longest sequence, compiled; a short row under its plan", longest),
        step_entry("step_06b_8k", "06b", 8192, 3, FULL, "Qwen3-0.6B, AdamW"),
        step_entry("step_4b_32k", "4b", 32768, 2, BF16_STATES, "Qwen3-4B, AdamW"),
        Part("modes_06b", 30, 90, "stream, checkpoint, standard at 32k", modes("06b", 32768)),
        Part("tune", 20, 80, "what measuring products gains", tune),
        Part("transformers", 30, 90, "the same step by transformers", transformers),
        Part("sanitizer", 40, 200, "NVIDIA's checker", sanitizer),
        Part("nccl", 90, 240, "two ranks", nccl),
        Part("vulkan", 60, 150, "attention and products on Vulkan", vulkan),
        Part("order", 20, 90, "order of queues", lambda m, figure: conformance(m, figure, True, "test_order*")),
        Part("throughput_gemm_fp32", 25, 60, "products in fp32", rates("gemm", "fp32")),
        Part("modes_4b", 60, 150, "stream, checkpoint, standard at 8k", modes("4b", 8192)),
        Part("conformance_all", 240, 520, "all cases", lambda m, figure: conformance(m, figure, False)),
        Part("goldens_all", 400, 520, "all models and settings", lambda m, figure: goldens(m, figure, True)),
    ]
