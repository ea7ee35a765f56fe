#!/usr/bin/env python3
"""gpu_check itself, without a GPU: programs of shell that print figures, of which one in each part kills gpu_check.

Each part is killed once, by SIGKILL, after its first figure is on disk; calls are repeated until all parts are ok. No figure may be
lost or taken back, no part that was ok may run again. Then what hangs, lines that are cut off, and the schedule by planned seconds."""
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, FOLDER)
sys.dont_write_bytecode = True
import gpu_parts  # noqa: E402
import gpu_schedule  # noqa: E402

STUB = r"""#!/bin/sh
part=$SBP_GPU_CHECK_PART results=$STUB_OUT/results.jsonl
die() { # once in each part, when its first figure is on disk
    [ -e "$STUB_MARKS/$part" ] && return
    : > "$STUB_MARKS/$part"
    until grep -q "\"part\": \"$part\".*\"figure\"" "$results"; do sleep 0.01; done
    kill -9 $PPID
    sleep 100
}
case "${0##*/} $1" in
    "sbprun check") die; echo '{"verdict": "right", "seconds": 1.5, "findings": [{"part": "twice", "what": null, "verdict": "right"}]}' ;;
    "sbprun --devices") echo "cuda:0 a stub"; die ;;
    sbprun*)
        die
        while [ $# -gt 0 ]; do [ "$1" = --out ] && [ "$2" != none ] && mkdir -p "$2" && echo same > "$2/model.safetensors"; shift; done
        [ -z "$SBP_CUDA_TIMELINE" ] || echo '{"command": "gemm", "kernel": "", "rows": 1, "cols": 2, "depth": 3, "ms": 1.5}' > "$SBP_CUDA_TIMELINE"
        echo '{"train_loss": 2.5, "fastest_step_seconds": 0.5, "train_seconds": 1.0, "peak_bytes_planned": 1, "peak_bytes_measured": 1}' ;;
    "sbpc compile")
        case "$*" in *"--throughput measured"*) die ;; esac
        while [ $# -gt 0 ]; do [ "$1" = -o ] && : > "$2"; shift; done; echo '{"seq_len": 1000}' ;;
    "sbpc inspect") echo '{"seconds": 1.5, "chunk": 2, "segment": 1, "checkpoint_every": 1}' ;;
    bench_*) echo '{"attention": "stub", "right": true}'; die; echo '{"attention": "other", "right": true}' ;;
    *) echo '[       OK ] test_one'; die; echo '[       OK ] test_two' ;;
esac
"""


def check(condition, *what):
    if not condition:
        print("wrong:", *what, flush=True)
        sys.exit(1)


def lines_of(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def test_killed_in_each_part(work):
    out, marks, build, tools = (os.path.join(work, name) for name in ("out", "marks", "build", "tools"))
    for name in ("sbprun", "sbpc", "tests/bench/bench_attention", "tests/bench/bench_throughput", "tests/bench/bench_experts", "tests/bench/bench_delta", "tests/conformance/conformance", "tests/cli/test_cli_golden"):
        path = os.path.join(build, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(STUB)
        os.chmod(path, 0o755)
    os.makedirs(marks)
    os.makedirs(out)
    os.makedirs(tools)  # no nvidia-smi, no compute-sanitizer
    for name in ("sh", "sleep", "grep", "mkdir", "git"):
        found = subprocess.run(["sh", "-c", f"command -v {name}"], capture_output=True, check=True).stdout.decode().strip()
        if os.path.exists(found):
            os.symlink(found, os.path.join(tools, name))
    # parts that only a machine with torch, transformers, Vulkan, a driver or NVIDIA's tools has
    names = [part.name for part in gpu_parts.parts() if part.name not in ("torch_attention", "transformers", "vulkan", "sanitizer", "profile", "pinning")]
    env = {**os.environ, "SBP_BUILD": build, "STUB_OUT": out, "STUB_MARKS": marks, "PATH": tools, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, os.path.join(FOLDER, "gpu_check"), "--tiny", "--budget", "100000", "--out", out] + names
    path, before, kills = os.path.join(out, "results.jsonl"), [], 0
    for _ in range(2 * len(names)):
        status = subprocess.run(command, env=env, stdout=subprocess.DEVNULL, check=False).returncode
        lines = lines_of(path)
        check(lines[:len(before)] == before, "lines of earlier calls were changed")
        before = lines
        if status == 0:
            break
        check(status == -signal.SIGKILL, f"exit status {status}", json.dumps(lines[-1])[:400])
        kills += 1
    check(status == 0, "never done")
    for name in names:
        check(os.path.exists(os.path.join(marks, name)), f"{name} was not killed")
        ends = [i for i, line in enumerate(lines) if line.get("part") == name and "result" in line]
        figures = [i for i, line in enumerate(lines) if line.get("part") == name and "figure" in line]
        check(ends and lines[ends[-1]]["result"] == "ok", f"{name} is not ok")
        check(name == "preflight" or len(ends) == 1, f"{name} ran again")
        call = max(i for i, line in enumerate(lines) if "call" in line and i < ends[0])
        check(figures and figures[0] < call, f"{name}: no figure from before it was killed")
    with tarfile.open(os.path.join(out, "gpu_check.tar")) as tar:
        check("gpu_check/results.jsonl" in tar.getnames() and "gpu_check/nccl.log" in tar.getnames(), "the tar", tar.getnames())
    return kills


def test_what_hangs_is_ended(work):
    """With all that it started, its figures kept."""
    commands, seen = gpu_schedule.Commands(), []
    mark = os.path.join(work, "pid")
    with open(os.path.join(work, "log"), "wb") as commands.log:
        try:
            commands.run(["sh", "-c", f"echo figure; sleep 1000 & echo $! > {mark}; trap '' TERM; sleep 1000; sleep 1000"], os.environ, 0.5, None, seen.append)
            check(False, "a command that hangs was waited for")
        except gpu_schedule.Hung as error:
            check("ended after" in str(error), error)
        check(seen == ["figure\n"], seen)
        with open(mark, encoding="utf-8") as file:
            pid = int(file.read())
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
                check(file.read().rsplit(")", 1)[1].split()[0] == "Z", "what it started lives on")
        except FileNotFoundError:
            pass


def test_lines_that_were_cut_off(work):
    folder = os.path.join(work, "cut")
    results = gpu_schedule.Results(folder)
    results.add(part="a", figure={"x": 1})
    results.file.write(b'{"part": "a", "fig')
    results.file.close()
    again = gpu_schedule.Results(folder)
    again.add(part="a", result="ok")
    check([sorted(line) for line in lines_of(again.path)] == [["figure", "part"], ["part", "result"]], "a line that was cut off")


class Clocked:
    """A machine whose parts take what the test says; results as of a real one."""

    def __init__(self):
        self.now = 0.0

    def clock(self):
        return self.now

    def about(self):
        return {}

    def begin(self, part, log, deadline):
        self.deadline = deadline

    def end_of_log(self, name):
        return name

    def end(self):
        pass


def test_calls_by_a_clock(work):
    """The real loop over parts that take their planned seconds; one fails, one hangs: each call stays in its budget."""
    machine, ran, stdout = Clocked(), [], sys.stdout

    def body(part):
        def run(m, figure):
            ran.append(part.name)
            figure({"part": part.name})
            seconds = 10000 if part.name == "throughput_gemm" else part.planned
            if m.now + seconds > m.deadline:
                m.now = m.deadline
                raise gpu_schedule.Hung("by the clock")
            m.now += seconds
            if part.name == "goldens":
                raise gpu_schedule.Failed("by the test")
        return run
    parts = gpu_parts.parts()
    for part in parts:
        part.run = body(part)
    results, calls = gpu_schedule.Results(os.path.join(work, "clocked")), 0
    sys.stdout = io.StringIO()
    for calls in range(1, 5):
        begun = machine.now
        status = gpu_schedule.run(parts, machine, results, 540)
        check(machine.now - begun <= 540, f"call {calls} took {machine.now - begun} s")
        check(status == 1, f"exit status {status}")
    sys.stdout = stdout
    check(results.result("throughput_gemm").startswith("over its limit") and results.result("goldens") == "failed", "what was wrong is not said")
    for part in parts:
        check(part.name in ("throughput_gemm", "goldens") or results.result(part.name) == "ok", f"{part.name} is not done after {calls} calls")
        check(part.name in ("throughput_gemm", "goldens", "preflight") or ran.count(part.name) == 1, f"{part.name} ran {ran.count(part.name)} times")


def test_schedule():
    """By planned seconds: attention is known in a minute and a half, steps and what decides what to build next in the first call, all
    in four; whichever part hangs, all others come to their turn."""
    parts, text = gpu_parts.parts(), io.StringIO()
    check(gpu_schedule.rehearse(parts, 540, out=text) == 0, text.getvalue())
    begins = {line.split()[3]: line.split() for line in text.getvalue().splitlines() if line.startswith("call")}

    def at(name):
        minutes, seconds = begins[name][2].split(":")
        return int(begins[name][1]), 60 * int(minutes) + float(seconds)
    check(at("attention") <= (1, 35), begins["attention"])
    check(at("throughput_attention") <= (1, 90), begins["throughput_attention"])
    for name in ("throughput_experts", "throughput_delta", "throughput_attention_256", "profile", "step_06b_32k", "step_06b_128k", "step_8b_32k", "step_8b_128k",
                 "step_30b_a3b", "step_gpt_oss", "step_27b"):
        planned = next(part.planned for part in parts if part.name == name)
        check(at(name)[0] == 1 and at(name)[1] + planned <= 480, name, begins[name])
    check("in 4 calls" in text.getvalue(), text.getvalue().splitlines()[-1])
    for part in parts:
        check(gpu_schedule.rehearse(parts, 540, part.name, out=io.StringIO()) == 0, f"{part.name} hangs, and others are never begun")
    check([part.name for part in parts][-2:] == ["conformance_all", "goldens_all"], "long suites are last")


def main():
    with tempfile.TemporaryDirectory() as work:
        test_what_hangs_is_ended(work)
        test_lines_that_were_cut_off(work)
        test_calls_by_a_clock(work)
        test_schedule()
        kills = test_killed_in_each_part(work)
    print(f"{kills} kills, no figure lost; every part hung once by the clock, the others were done")


main()
