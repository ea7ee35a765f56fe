"""gpu_check's order, clock and file of results; it knows nothing of GPUs. Standard library alone."""
import ctypes
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time

RESERVE = 8  # seconds of a call for ending what hangs, and for the tar


class Part:
    """planned: seconds by data sheets (gpu_parts.py says how); limit: seconds after which it is ended.
    run(machine, figure): calls figure({..}) for each thing it knows, at once; returns members of its last line. Raises Failed."""

    def __init__(self, name, planned, limit, what, run):
        self.name, self.planned, self.limit, self.what, self.run = name, planned, limit, what, run


class Failed(Exception):
    pass


class Hung(Failed):
    """seconds: the limit of the program that was ended, where that is not the part's own."""

    def __init__(self, text, seconds=None):
        super().__init__(text)
        self.seconds = seconds


# ---- results -----------------------------------------------------------------------------------------------------------


class Results:
    """DIR/results.jsonl: {"part", "figure": ..} as soon as it is known, {"part", "result": "ok" | ..} at a part's end."""

    def __init__(self, folder, tar=None):
        self.folder = folder
        self.tar = tar or os.path.join(folder, "gpu_check.tar")
        os.makedirs(folder, exist_ok=True)
        os.makedirs(os.path.dirname(os.path.abspath(self.tar)), exist_ok=True)
        self.path = os.path.join(folder, "results.jsonl")
        self.lines = []
        whole = 0
        if os.path.exists(self.path):
            with open(self.path, "rb") as file:
                for raw in file:
                    try:
                        line = json.loads(raw) if raw.endswith(b"\n") else None
                    except ValueError:
                        line = None
                    if isinstance(line, dict):
                        self.lines.append(line)
                    if raw.endswith(b"\n"):
                        whole += len(raw)
            os.truncate(self.path, whole)  # a line that was cut off by the end of the machine
        self.file = open(self.path, "ab")

    def add(self, **line):
        self.lines.append(line)
        self.file.write(json.dumps(line).encode() + b"\n")
        self.file.flush()
        os.fsync(self.file.fileno())

    def result(self, part):
        """The last result of a part; None: it was never ended."""
        found = [line for line in self.lines if line.get("part") == part and "result" in line]
        return found[-1]["result"] if found else None

    def later(self, part):
        """Whether others come first: it failed before, or it was begun twice and the machine was gone both times."""
        return self.result(part) is not None or sum(1 for line in self.lines if line.get("part") == part and "begun" in line) > 1

    def done(self, part, key):
        """Of the figures of a part, that which has this key and was right."""
        for line in self.lines:
            if line.get("part") == part and line.get("key") == key and line.get("figure", {}).get("right", True):
                return line["figure"]
        return None

    def pack(self):
        temporary = self.tar + ".new"
        with tarfile.open(temporary, "w") as tar:
            for name in sorted(os.listdir(self.folder)):
                if name.endswith((".jsonl", ".log", ".txt")):
                    tar.add(os.path.join(self.folder, name), arcname=f"gpu_check/{name}")
        os.replace(temporary, self.tar)

    def report(self, parts):
        for part in parts:
            figures = [line for line in self.lines if line.get("part") == part.name and "figure" in line]
            print(f"{part.name:18} {self.result(part.name) or ('cut off' if figures else 'not begun'):10} {len(figures)} figures")
            for line in figures:
                print("    " + json.dumps(line["figure"])[:300])
        return status_of(parts, self)


def status_of(parts, results):
    states = [results.result(part.name) for part in parts]
    if any(state not in ("ok", "skipped", None) for state in states):
        return 1
    return 0 if all(states) else 3


# ---- processes ---------------------------------------------------------------------------------------------------------


def die_with_parent():
    """Of a child: it ends when gpu_check is killed, and not only then when it is asked to."""
    os.setsid()
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    except (OSError, AttributeError):
        pass


class Commands:
    """Runs commands, each in a group of its own that is killed at the deadline; their output goes to a log, and lines to a
    caller as they come."""

    def __init__(self, clock=time.monotonic):
        self.clock = clock
        self.deadline = float("inf")
        self.log = None

    def kill(self, process):
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, number)
            except ProcessLookupError:
                pass
            try:
                process.wait(2)
                if number == signal.SIGTERM:
                    continue  # what it started may live on
                return
            except subprocess.TimeoutExpired:
                pass
        # A process that waits for the driver in the kernel outlives even this: it is left behind.

    def start(self, command, env, cwd=None):
        self.log.write(("$ " + " ".join(command) + "\n").encode())
        self.log.flush()
        return subprocess.Popen(command, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.log,
                                preexec_fn=die_with_parent)

    def run(self, command, env, limit=None, cwd=None, line=None):
        """(exit status, standard output). line(text) gets each line when it comes. Raises Hung at the limit."""
        seconds = self.deadline - self.clock()
        seconds = seconds if limit is None else min(limit, seconds)
        if seconds <= 0:
            raise Hung("no time is left for " + " ".join(command)[:200])
        process, text, ended = self.start(command, env, cwd), [], threading.Event()
        late = []

        def watch():
            if not ended.wait(seconds):
                late.append(True)
                self.kill(process)

        def read():
            for raw in process.stdout:
                decoded = raw.decode(errors="replace")
                text.append(decoded)
                self.log.write(raw)
                if line:
                    line(decoded)

        watcher, reader = threading.Thread(target=watch, daemon=True), threading.Thread(target=read, daemon=True)
        watcher.start()
        reader.start()
        reader.join(seconds + 6)  # also when a process cannot be killed
        if not reader.is_alive():
            try:
                process.wait(max(0.1, seconds + 5))
            except subprocess.TimeoutExpired:
                late.append(True)
        ended.set()
        self.log.flush()
        if late or reader.is_alive():
            raise Hung(f"ended after {seconds:.0f} s: " + " ".join(command)[:200], seconds)
        return process.returncode, "".join(text)


# ---- the order ---------------------------------------------------------------------------------------------------------


def next_part(parts, finished, left):
    """The first part that is not finished and fits; None: none does."""
    for part in parts:
        if part.name not in finished and part.planned + RESERVE <= left:
            return part
    return None


def run_part(part, machine, results, begun, left):
    def figure(members, key=None):
        line = {"part": part.name, "at": round(machine.clock() - begun, 2), "figure": members}
        results.add(**({**line, "key": key} if key else line))
        print(f"  {json.dumps(members)[:220]}", flush=True)

    started, result, members = machine.clock(), "ok", {}
    results.add(part=part.name, begun=round(started - begun, 2))
    limit = min(part.limit, left - RESERVE)
    with open(os.path.join(results.folder, part.name + ".log"), "ab") as log:
        machine.begin(part, log, started + limit)
        try:
            members = part.run(machine, figure) or {}
            result = "skipped" if "skipped" in members else "ok"
        except Hung as error:
            result, members = f"over its limit of {error.seconds or limit:.0f} s", {"error": str(error)}
        except Failed as error:
            result, members = "failed", {"error": str(error)}
        except Exception as error:  # a mistake of ours must not cost the parts behind it
            result, members = "failed", {"error": f"{type(error).__name__}: {error}"}
        log.flush()
    if result not in ("ok", "skipped"):
        members["log"] = machine.end_of_log(part.name)
    results.add(part=part.name, result=result, seconds=round(machine.clock() - started, 2), at=round(machine.clock() - begun, 2), **members)
    return result


def run(parts, machine, results, budget):
    begun, finished, failed = machine.clock(), set(), False
    parts = sorted(parts, key=lambda part: part.name != "preflight" and results.later(part.name))
    results.add(call=machine.about(), budget=budget)
    for part in parts:
        if results.result(part.name) in ("ok", "skipped") and not part.name.startswith("preflight"):
            finished.add(part.name)
            print(f"{part.name:18} {results.result(part.name)} before", flush=True)
    while True:
        part = next_part(parts, finished, budget - (machine.clock() - begun))
        if not part:
            break
        print(f"{part.name:18} at {machine.clock() - begun:6.1f} s", flush=True)
        result = run_part(part, machine, results, begun, budget - (machine.clock() - begun))
        print(f"{part.name:18} {result}", flush=True)
        finished.add(part.name)
        results.pack()
        failed = failed or result not in ("ok", "skipped")
        if part.name == "preflight" and result != "ok":
            break  # nothing that follows could run
    for part in parts:
        if part.name not in finished:
            print(f"{part.name:18} not begun: {part.planned:.0f} s and {RESERVE} s of reserve do not fit", flush=True)
    results.pack()
    machine.end()
    return 1 if failed else status_of(parts, results)


# ---- a rehearsal with a clock --------------------------------------------------------------------------------------------


def rehearse(parts, budget, hang=None, calls=12, out=sys.stdout):
    """Walks through calls of `budget` seconds by planned seconds, `hang` taking its limit and being tried again in the next
    call. Returns 0 when all parts come to their turn."""
    finished, total = set(), 0.0
    for call in range(1, calls + 1):
        clock, tried = 0.0, set()
        parts = sorted(parts, key=lambda part: call > 1 and part.name == hang and hang != "preflight")
        while True:
            part = next_part(parts, finished | tried, budget - clock)
            if not part:
                break
            seconds = min(part.limit, budget - clock - RESERVE) if part.name == hang else part.planned
            print(f"call {call}  {int(clock // 60):2d}:{clock % 60:04.1f}  {part.name:18} {seconds:5.0f} s{'  hangs' if part.name == hang else ''}  {part.what}", file=out)
            clock += seconds
            tried.add(part.name)
            if part.name != hang or call > 1:
                finished.add(part.name)
        total += clock
        print(f"call {call}  {int(clock // 60):2d}:{clock % 60:04.1f}  end", file=out)
        if len(finished) == len(parts):
            break
    late = [part.name for part in parts if part.name not in finished]
    print(f"{total / 60:.1f} minutes of a GPU in {call} calls" + (f"; never begun: {', '.join(late)}" if late else ""), file=out)
    return 1 if late else 0
