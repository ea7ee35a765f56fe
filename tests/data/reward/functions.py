"""Reward functions of the tests, as TRL takes them. What make.py ran through TRL stands first."""
import asyncio
import os
import sys
import time

# ---- right ones ------------------------------------------------------------------------------------------------------


def text_of(completion):
    return completion if isinstance(completion, str) else completion[0]["content"]


def length(completions, **kwargs):
    return [len(text_of(completion)) for completion in completions]


def eighths(completion_ids, **kwargs):
    return [sum(ids) / 8 for ids in completion_ids]


def matches(prompts, completions, answer, **kwargs):
    """None where the row has no answer."""
    return [None if a is None else a in text_of(c) for a, c in zip(answer, completions)]


def nothing(prompts, **kwargs):
    return [None] * len(prompts)


def by_step(prompts, trainer_state, **kwargs):
    return [trainer_state.global_step + trainer_state.max_steps / 16] * len(prompts)


async def later(prompts, answer, **kwargs):
    await asyncio.sleep(0)
    return [0.5 if a else None for a in answer]


class Callable:
    def __call__(self, prompts, **kwargs):
        return tuple(-0.25 * i for i in range(len(prompts)))


class AsyncCallable:
    async def __call__(self, completions, **kwargs):
        return [len(completions)] * len(completions)


called = Callable()
called_later = AsyncCallable()


def logs(prompts, completions, log_metric, log_extra, **kwargs):
    log_metric("accuracy", 0.25)
    log_metric("accuracy", 0.75)
    log_metric("other", 3)
    log_extra("text", [text_of(completion) for completion in completions])
    return [0.0] * len(prompts)


def prints(prompts, **kwargs):
    print('{"id": 1, "rewards": [9, 9, 9, 9]}')
    sys.stdout.flush()
    os.system("echo from a shell")
    os.write(1, b"to descriptor 1\n")
    return [len(sys.stdin.read())] * len(prompts)


class Number:
    def __float__(self):
        return 1.5


def numbers(prompts, **kwargs):
    return [True, Number(), 2, None]


def kwargs_are(prompts, completions, completion_ids, **kwargs):
    """What the trainer passes: 1 where it is as it should be."""
    names = sorted(kwargs)
    right = names == ["answer", "group", "log_extra", "log_metric", "trainer_state"]
    print("kwargs", names, kwargs["answer"], kwargs["group"], prompts, completions, completion_ids)
    return [int(right and len(kwargs["answer"]) == len(prompts) == len(completions) == len(completion_ids))] * len(prompts)


def whole(completions, **kwargs):
    """Large requests arrive whole."""
    return [sum(map(ord, text_of(completion))) for completion in completions]


def echoes(completions, log_extra, **kwargs):
    log_extra("text", [text_of(completion)[::-1] for completion in completions])
    return [1] * len(completions)


def floods(prompts, **kwargs):
    for _ in range(2000):
        sys.stderr.write("x" * 1000 + "\n")
    return [1] * len(prompts)


# ---- wrong ones ------------------------------------------------------------------------------------------------------


def raises(completions, **kwargs):
    return [1 / (len(text_of(completion)) - len(text_of(completions[0]))) for completion in completions]


async def raises_later(prompts, **kwargs):
    await asyncio.sleep(0)
    raise KeyError("missing")


def exits(prompts, **kwargs):
    sys.exit("as a script does")


def short(prompts, **kwargs):
    return [1.0] * (len(prompts) - 1)


def nan(prompts, **kwargs):
    return [1.0, 2.0, float("nan"), 3.0]


def infinite(prompts, **kwargs):
    return [1.0, 2.0, 3.0, float("-inf")]


def text(prompts, **kwargs):
    return [1.0, "2.0", 3.0, 4.0]


def listed(prompts, **kwargs):
    return [1.0, 2.0, 3.0, [4.0]]


def none_at_all(prompts, **kwargs):
    pass


def huge(prompts, **kwargs):
    return [10**400] * len(prompts)


def dies(prompts, **kwargs):
    print("about to end")
    sys.stderr.flush()
    os._exit(7)


def dies_once(prompts, file, **kwargs):
    if not os.path.exists(file[0]):
        open(file[0], "w").close()
        os._exit(7)
    return [1.0] * len(prompts)


def hangs(prompts, **kwargs):
    while True:
        time.sleep(1)


def pids(prompts, file, **kwargs):
    """Starts a process that outlives it, if nobody ends it."""
    import subprocess

    child = subprocess.Popen(["sleep", "1000"])
    with open(file[0], "w") as out:
        out.write("%d %d" % (os.getpid(), child.pid))
    return [float(os.getpid())] * len(prompts)


not_callable = 3
