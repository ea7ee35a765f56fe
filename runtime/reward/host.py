"""The process that runs reward functions: python3 -c THIS SPEC.., each SPEC is FILE.py:NAME or MODULE:NAME.

It reads requests from standard input, a line of JSON each, and answers on standard output (PROTOCOL.md). Both are kept
for that: what functions print goes to standard error, and they read nothing. It ends with its input."""
import sys

# The current directory is searched last, not first: a file there must not stand in for a module of the library.
sys.path[:] = [entry for entry in sys.path if entry != ""]

import faulthandler
import functools
import importlib
import importlib.util
import inspect
import json
import os
import signal
import threading
import traceback

MOST_LINES = 12  # of a traceback


class TrainerState:
    """What transformers' TrainerState has of a run, as far as it is known here."""

    is_world_process_zero = True
    is_local_process_zero = True

    def __init__(self, step, steps):
        self.global_step = step
        self.max_steps = steps


class WrongAnswer(Exception):
    """A function returned what is not a list of numbers: its text, and the row that it is about."""

    def __init__(self, text, row=None):
        super().__init__(text)
        self.row = row


def writable(values):
    """Values as JSON has them, as far as it has: what it has not is text."""
    try:
        json.dumps(values, default=repr)
        return values
    except (TypeError, ValueError, RecursionError):
        return [repr(value) for value in values]


def describe(error):
    """A message of several lines: what happened, then where, the innermost calls last."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != "<string>"]
    lines = "".join(traceback.format_exception_only(type(error), error)).rstrip("\n").split("\n")
    where = "".join(traceback.format_list(frames)).rstrip("\n").split("\n") if frames else []
    return "\n".join(lines[-MOST_LINES:] + where[-MOST_LINES:])


# ---- functions -------------------------------------------------------------------------------------------------------


def load_file(path):
    """A module of this file, whose folder is searched first, as that of a script is."""
    path = os.path.realpath(path)
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == path:
            return module
    name = os.path.splitext(os.path.basename(path))[0]
    while name in sys.modules:
        name += "_"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or not os.path.isfile(path):
        raise FileNotFoundError("no file %r" % path)
    folder = os.path.dirname(path)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def load(spec):
    place, _, name = spec.rpartition(":")
    if place.endswith(".py"):
        module = load_file(place)
    else:
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())
        module = importlib.import_module(place)
    function = module
    for part in name.split("."):
        function = getattr(function, part)
    if not callable(function):
        raise TypeError("%s is no function but %s" % (name, type(function).__name__))
    return function


def unwrapped(function):
    while isinstance(function, functools.partial):
        function = function.func
    return function


def name_of(function):
    function = unwrapped(function)
    return str(getattr(function, "__name__", type(function).__name__))


def is_async(function):
    function = unwrapped(function)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(function.__call__)


# ---- calling them ----------------------------------------------------------------------------------------------------


def number(value, row):
    """A float, or None; a tensor or an array of one number is one, text is not."""
    if value is None:
        return None
    if isinstance(value, (str, bytes, bytearray)) or not (hasattr(value, "__float__") or hasattr(value, "__index__")):
        raise WrongAnswer("expected a number or None, found %.100r (%s)" % (value, type(value).__name__), row)
    try:
        return float(value)
    except Exception as error:
        raise WrongAnswer("%.100r is no number: %s" % (value, error), row)


def checked(values, count):
    if values is None or isinstance(values, (str, bytes, dict)) or not hasattr(values, "__iter__"):
        raise WrongAnswer("returned %.100r (%s), expected a list of %d rewards" % (values, type(values).__name__, count))
    values = list(values)
    if len(values) != count:
        raise WrongAnswer("returned %d rewards, expected %d, one for each sample" % (len(values), count))
    return [number(value, row) for row, value in enumerate(values)]


class Calls:
    """The calls for one request: `rewards` by function, or the first `failed` and its `error`."""

    def __init__(self, functions, request):
        self.functions = functions
        self.count = len(request["prompts"])
        self.metrics, self.extra = {}, {}
        self.rewards = [None] * len(functions)
        self.failed = None
        self.arguments = dict(request["columns"])
        self.arguments["trainer_state"] = TrainerState(request["step"], request["steps"])
        self.arguments["log_extra"] = self.log_extra
        self.arguments["log_metric"] = self.log_metric
        self.lists = {key: request[key] for key in ("prompts", "completions", "completion_ids")}

    def log_metric(self, name, value):
        self.metrics.setdefault(str(name), []).append(float(value))

    def log_extra(self, column, values):
        self.extra.setdefault(str(column), []).extend(writable(list(values)))

    def fail(self, index, error):
        if self.failed is None:
            self.failed, self.error = index, error

    async def call_async(self, index):
        try:
            values = await self.functions[index](**self.lists, **self.arguments)
            self.rewards[index] = checked(values, self.count)
        except (Exception, SystemExit) as error:
            self.fail(index, error)

    async def call_all_async(self, indices):
        import asyncio

        await asyncio.gather(*[self.call_async(index) for index in indices])

    def run(self, loop):
        """As TRL: what is not async one after the other, then all that is at the same time."""
        later = [index for index, function in enumerate(self.functions) if is_async(function)]
        for index, function in enumerate(self.functions):
            if index in later or self.failed is not None:
                continue
            try:
                self.rewards[index] = checked(function(**self.lists, **self.arguments), self.count)
            except (Exception, SystemExit) as error:
                self.fail(index, error)
        if later and self.failed is None:
            import asyncio

            asyncio.run_coroutine_threadsafe(self.call_all_async(later), loop).result()

    def answer(self):
        if self.failed is not None:
            wrong = isinstance(self.error, WrongAnswer)
            return {"error": str(self.error) if wrong else describe(self.error), "function": self.failed,
                    "row": self.error.row if wrong else None}
        metrics = {name: sum(values) / len(values) for name, values in self.metrics.items()}
        return {"rewards": self.rewards, "metrics": metrics, "extra": self.extra}


def start_loop(functions):
    """One loop of events for the whole run, to which clients of async functions may hold on."""
    if not any(is_async(function) for function in functions):
        return None
    import asyncio  # only here, since every start would take longer by it

    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop


def main():
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # the parent asks where a function hangs

    def say(answer):
        sys.stderr.flush()
        text = json.dumps(answer, default=repr, ensure_ascii=False)
        answers.write(text.encode("utf-8", "replace") + b"\n")
        answers.flush()

    functions = []
    for index, spec in enumerate(sys.argv[1:]):
        try:
            functions.append(load(spec))
        except (Exception, SystemExit) as error:
            say({"error": describe(error), "function": index, "row": None})
            return
    say({"functions": [name_of(function) for function in functions]})
    loop = start_loop(functions)
    for line in requests:
        request = json.loads(line.decode("utf-8"))
        calls = Calls(functions, request)
        calls.run(loop)
        say(dict(calls.answer(), id=request["id"]))


main()
