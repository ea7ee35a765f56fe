"""Fine-tune transformer language models on very long sequences with exact gradients.

These functions run the programs `sbpc` and `sbprun`, which come with this package, and have no logic of their own:
options are those of `sbprun --help all`, with '_' for '-'; True and False are on and off, a list repeats an option,
a map is an option's keys (loss={"objective": "grpo", "epsilon": 0.2}).

    import sbpc
    sbpc.train("path/to/Qwen3-0.6B", "train.jsonl", "my-model", lora="r=16,alpha=32", lr=2e-4, epochs=1)

What goes wrong is an `Error` with the message and the exit status of the program. An interrupt (Ctrl-C, or that of
a notebook) lets a run write its checkpoint first; `train(..., resume=True)` goes on from there.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
from pathlib import Path
from typing import Any, Callable, Iterable, Mapping, Sequence, Union

__all__ = ["Error", "doctor", "export", "plan", "program", "score", "tokenize", "train", "version"]

Path_ = Union[str, "os.PathLike[str]"]
Row = Mapping[str, Any]
Data = Union[Path_, Sequence[Path_], Iterable[Row]]


class Error(RuntimeError):
    """A program ended with another status than 0.

    status: 1 the input is at fault, 2 wrong usage, 3 the machine lacks something, 4 a file could not be read or
    written, 5 loss or gradient not finite, 70 a bug; message: what it said; log: all that it said; output: its
    results until then.
    """

    def __init__(self, message: str, status: int, log: str = "", output: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.log = log
        self.output = output


def program(name: str) -> str:
    """Path of sbpc or sbprun: in $SBPC_PROGRAMS, else beside this Python, else on PATH."""
    folder = os.environ.get("SBPC_PROGRAMS")
    folders = [folder] if folder else [sysconfig.get_path("scripts"), os.path.dirname(sys.executable)]
    if not folder:
        try:  # pip install --user
            folders.append(sysconfig.get_path("scripts", f"{os.name}_user"))
        except KeyError:
            pass
    for place in folders:
        path = os.path.join(place, name)
        if os.access(path, os.X_OK):
            return path
    path = None if folder else shutil.which(name)
    if path:
        return path
    raise Error(f"{name} is neither in {' nor in '.join(folders)}{'' if folder else ' nor on PATH'}", 3)


def _texts(value: Any) -> list[str]:
    """As typed, one for each of a list; a map is keys of an option: r=16,alpha=32."""
    if isinstance(value, Mapping):
        keys = [(key, text.replace(",", "\\,")) for key, item in value.items() for text in _texts(item)]
        return [",".join(f"{key}={text}" for key, text in keys)]
    if isinstance(value, (list, tuple)):
        return [text for item in value for text in _texts(item)]
    if value is None:
        return []
    if isinstance(value, bool):
        return ["on" if value else "off"]
    return [os.fspath(value) if isinstance(value, os.PathLike) else repr(value) if isinstance(value, float)
            else str(value)]


def _arguments(options: Mapping[str, Any]) -> list[str]:
    return [f"--{name.replace('_', '-')}={text}" for name, value in options.items() for text in _texts(value)]


class _Progress:
    """Steps as one line that is rewritten, on Python's own standard error, which notebooks show."""

    def __init__(self, shown: bool) -> None:
        self.shown, self.open, self.lock = shown, False, threading.Lock()

    def step(self, line: Mapping[str, Any]) -> None:
        if not self.shown:
            return
        words = [f"step {line['step']}"]
        for key, name in (("loss", "loss"), ("learning_rate", "lr"), ("tokens_per_second", "tokens/s")):
            if isinstance(line.get(key), (int, float)):
                words.append(f"{name} {line[key]:.4g}")
        with self.lock:
            sys.stderr.write("\r" + "  ".join(words).ljust(70))
            sys.stderr.flush()
            self.open = True

    def say(self, text: str) -> None:
        if not self.shown:
            return
        with self.lock:
            sys.stderr.write(("\n" if self.open else "") + text)
            sys.stderr.flush()
            self.open = False

    def end(self) -> None:
        if self.open:
            self.say("")


def _message(log: str, name: str, status: int) -> str:
    """The errors of a log, with lines that go on from one."""
    out: list[str] = []
    inside = False
    for line in log.splitlines():
        begins = line.startswith((f"{name}: ", "sbpc: ", "sbprun: "))
        inside = ": error: " in line if begins else inside and line.startswith(" ")
        if inside:
            out.append(line.split(": error: ", 1)[-1].strip())
    return "\n".join(out) or f"{name} ended with status {status}" + (f": {log.strip()[-500:]}" if log.strip() else "")


def _run(name: str, arguments: Sequence[str], *, text: str | None = None, progress: _Progress | None = None,
         on_line: Callable[[str], None] | None = None) -> str:
    """Standard output of a program; each line of it goes to on_line first. Standard error goes to progress."""
    show = progress or _Progress(False)
    # apart from this process's group: whoever interrupts that, the program hears of it once
    child = subprocess.Popen([program(name), *arguments], stdin=subprocess.PIPE if text is not None else subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8", errors="replace",
                             start_new_session=True)
    assert child.stdout and child.stderr
    log: list[str] = []

    def read_log() -> None:
        assert child.stderr
        for line in child.stderr:
            log.append(line)
            if not line.startswith("step "):  # these come as lines of standard output
                show.say(line)

    def write_text() -> None:
        assert child.stdin
        try:
            child.stdin.write(text or "")
            child.stdin.close()
        except BrokenPipeError:
            pass

    threads = [threading.Thread(target=read_log, daemon=True)]
    if text is not None:
        threads.append(threading.Thread(target=write_text, daemon=True))
    for thread in threads:
        thread.start()
    out: list[str] = []

    def read_out() -> None:
        assert child.stdout
        for line in child.stdout:
            out.append(line)
            if on_line:
                on_line(line)

    try:
        try:
            read_out()
            status = child.wait()
        except KeyboardInterrupt:
            child.send_signal(signal.SIGINT)  # it writes a checkpoint
            read_out()
            child.wait()
            raise
    except BaseException:
        if child.poll() is None:
            child.terminate()
            for _ in child.stdout:  # or it waits for a reader
                pass
            child.wait()
        raise
    finally:
        for thread in threads:
            thread.join()
        show.end()
        for pipe in (child.stdin, child.stdout, child.stderr):
            if pipe and not pipe.closed:
                pipe.close()
    if status != 0:
        said = "".join(log)
        raise Error(_message(said, name, status), status if status > 0 else 128 - status, said, "".join(out))
    return "".join(out)


class _Files:
    """Data as files: rows that are in memory go into a temporary one."""

    def __init__(self, data: Data) -> None:
        self.folder: tempfile.TemporaryDirectory[str] | None = None
        if isinstance(data, (str, os.PathLike)):
            self.paths = [os.fspath(data)]
            return
        if hasattr(data, "to_dict") and hasattr(data, "columns"):  # a DataFrame, whose items are names of columns
            data = data.to_dicts() if hasattr(data, "to_dicts") else json.loads(data.to_json(orient="records"))
        items = list(data)
        if items and all(isinstance(item, (str, os.PathLike)) for item in items):
            self.paths = [os.fspath(item) for item in items]
            return
        self.folder = tempfile.TemporaryDirectory(prefix="sbpc-")
        path = Path(self.folder.name) / "rows.jsonl"
        with open(path, "w", encoding="utf-8") as file:
            for item in items:
                file.write(json.dumps(item, ensure_ascii=False) + "\n")
        self.paths = [str(path)]

    def __enter__(self) -> list[str]:
        return self.paths

    def __exit__(self, *_: object) -> None:
        if self.folder:
            self.folder.cleanup()


def plan(model: Path_, output: Path_ | None = None, *, progress: bool = True, **options: Any) -> dict[str, Any]:
    """Compiles a model to the file `output`: what `sbpc compile --json` says of it. With device_profile="h200" and
    no output: what it would take there."""
    arguments = ["compile", os.fspath(model), "--json", *_arguments({"output": output, **options})]
    return json.loads(_run("sbpc", arguments, progress=_Progress(progress)))


def train(model: Path_, data: Data, out: Path_, *, on_step: Callable[[dict[str, Any]], None] | None = None,
          progress: bool = True, **options: Any) -> dict[str, Any]:
    """Trains a model, or by a plan, into the directory `out`: the summary of `sbprun --json`.

    data: files, or rows as dicts. on_step gets each line of metrics.jsonl, of steps and of evaluations, when it is
    written.
    """
    show = _Progress(progress)
    last: dict[str, Any] = {}

    def take(line: str) -> None:
        item = json.loads(line)
        if "kind" not in item:
            last.update(item)
            return
        if item["kind"] == "train":
            show.step(item)
        elif isinstance(item.get("eval_loss"), (int, float)):
            show.say(f"step {item['step']}  eval_loss {item['eval_loss']:.4g}  {item.get('eval_file', '')}\n")
        if on_step:
            on_step(item)

    with _Files(data) as files:
        arguments = [os.fspath(model), "--json", "--report-to=jsonl",
                     *_arguments({"data": files, "out": out, **options})]
        _run("sbprun", arguments, progress=show, on_line=take)
    return last


def score(model: Path_, data: Data, *, progress: bool = True, **options: Any) -> list[dict[str, Any]]:
    """Log-probabilities of every token: a dict for each document, as `sbprun --score` writes them."""
    with _Files(data) as files, tempfile.TemporaryDirectory(prefix="sbpc-") as folder:
        path = os.path.join(folder, "scores.jsonl")
        _run("sbprun", [os.fspath(model), *_arguments({"data": files, "score": path, "out": "none", **options})],
             progress=_Progress(progress))
        with open(path, encoding="utf-8") as file:
            return [json.loads(line) for line in file]


def tokenize(model: Path_, rows: Iterable[str | Row | Sequence[int]], **options: Any) -> list[Any]:
    """Texts to ids, rows to {"input_ids", "labels"}; with decode=True ids to texts, with render=True conversations
    to the text of the chat template. A row that fails raises an Error that says which."""
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    try:
        return [json.loads(line) for line in _run("sbprun", ["tokenize", os.fspath(model), *_arguments(options)],
                                                  text=text).split("\n") if line]
    except Error as error:
        for line in error.output.split("\n"):
            if line.startswith('{"error"'):
                raise Error(json.loads(line)["error"], error.status, error.log, error.output) from None
        raise


def export(result: Path_, output: Path_, **options: Any) -> dict[str, Any]:
    """A result, or any model's directory, as a GGUF file for llama.cpp: type="q8_0", merge=True (of an adapter),
    base="MODEL", overwrite=True. What was written: architecture, type, tensors, keys, bytes."""
    return json.loads(_run("sbprun", ["export", os.fspath(result), *_arguments({"output": output, **options}), "--json"]))


def doctor() -> list[dict[str, Any]]:
    """What this machine has and lacks, and what to install: the lines of `sbprun doctor`."""
    return json.loads(_run("sbprun", ["doctor", "--json"]))


def version() -> str:
    return _run("sbprun", ["--version"]).split()[-1]
