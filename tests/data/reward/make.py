"""Makes trl.json: what TRL's GRPOTrainer makes of reward functions, by its own _calculate_rewards, for test_reward.

    python tests/data/reward/make.py        with trl and torch; trl.json names the versions

All numbers are exact in float32, so that sums in double are the same. Weights are applied as in
_generate_and_score_completions, which does too much else to be called.
"""
import asyncio
import importlib.util
import json
import os
import threading
import types
from collections import defaultdict

import torch
import trl
from trl import GRPOTrainer
from trl.trainer.utils import get_callable_name

HERE = os.path.dirname(os.path.abspath(__file__))
THINKS = "trl.rewards:think_format_reward"


def here(file, name):
    return "tests/data/reward/%s.py:%s" % (file, name)


def load(spec):
    place, name = spec.split(":")
    if place.endswith(".py"):
        found = importlib.util.spec_from_file_location("loaded", os.path.join(HERE, os.path.basename(place)))
        module = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)
    else:
        module = importlib.import_module(place)
    return getattr(module, name)


def plain(values):
    return [None if value != value else value for value in values.tolist()]


def trainer(functions, step, steps):
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    out = types.SimpleNamespace(
        accelerator=types.SimpleNamespace(device=torch.device("cpu"), is_main_process=True),
        args=types.SimpleNamespace(report_to=[]),
        reward_funcs=functions,
        reward_processing_classes=[None] * len(functions),
        reward_func_names=[get_callable_name(function) for function in functions],
        state=types.SimpleNamespace(global_step=step, max_steps=steps),
        environments=None,
        async_loop=loop,
        model=types.SimpleNamespace(training=True),
        _metrics=defaultdict(lambda: defaultdict(list)),
        _pending_metrics=defaultdict(list),
        _pending_extra_logs=defaultdict(list),
    )
    out._log_completion_extra = lambda column, values: GRPOTrainer._log_completion_extra(out, column, values)
    out._log_metric = lambda name, value: GRPOTrainer._log_metric(out, name, value)
    return out


def case(name, rows, completions, ids, specs, weights, step=3, steps=8):
    per = len(completions) // len(rows)
    inputs = [row for row in rows for _ in range(per)]
    prompts = [row["prompt"] for row in inputs]
    talks = isinstance(prompts[0], list)
    given = [[{"role": "assistant", "content": text}] for text in completions] if talks else completions
    t = trainer([load(spec) for spec in specs], step, steps)
    each = GRPOTrainer._calculate_rewards(t, inputs, prompts, given, ids)
    nobody = torch.isnan(each).all(dim=1)
    rewards = (each * torch.tensor(weights, dtype=torch.float32).unsqueeze(0)).nansum(dim=1)
    rewards[nobody] = torch.nan
    metrics = {name: sum(values) / len(values) for name, values in t._pending_metrics.items()}
    return {"name": name, "rows": rows, "completions": completions, "ids": ids, "specs": specs, "weights": weights,
            "step": step, "steps": steps, "each": [plain(each[:, k]) for k in range(len(specs))],
            "rewards": plain(rewards), "names": t.reward_func_names, "metrics": metrics,
            "extra": dict(t._pending_extra_logs)}


def talk(text):
    return [{"role": "user", "content": text}]


TEXTS = [{"prompt": "2+2=", "answer": "4", "level": 1}, {"prompt": "3+3=", "answer": None, "level": 2.5}]
TALKS = [{"prompt": talk("2+2="), "answer": "4"}, {"prompt": talk("caf\u00e9"), "answer": "caf\u00e9"}]
ANSWERS = ["4", "5 or 4", "six", ""]
THOUGHTS = ["<think>two and two</think>4", "4", "<think>\na\n</think>\ncaf\u00e9", "<think>caf\u00e9"]
IDS = [[1, 2, 3, 4], [5, 5, 5, 5, 5], [7, 8, 7, 8, 7, 8, 9], []]

cases = [
    case("one", TEXTS, ANSWERS, IDS, [here("functions", "length")], [1.0]),
    case("none in part", TEXTS, ANSWERS, IDS, [here("functions", "matches")], [1.0]),
    case("several", TEXTS, ANSWERS, IDS,
         [here("functions", name) for name in ("length", "matches", "nothing", "eighths", "by_step")],
         [0.5, 2.0, 1.0, -1.0, 0.25]),
    case("async", TEXTS, ANSWERS, IDS,
         [here("functions", name) for name in ("later", "called", "called_later", "matches")], [1.0, 4.0, 0.125, 1.0]),
    case("nobody", TEXTS, ANSWERS, IDS, [here("functions", name) for name in ("nothing", "matches")], [1.0, 1.0]),
    case("logs", TALKS, THOUGHTS, IDS, [here("functions", name) for name in ("logs", "matches")], [1.0, 0.5]),
    case("kwargs", [{"prompt": "a", "answer": 1, "group": 2, "completion": "c", "completion_ids": [1]}] * 2, ANSWERS, IDS,
         [here("functions", "kwargs_are")], [1.0]),
    case("of trl", TALKS, THOUGHTS, IDS,
         [THINKS, here("trl_functions", "repetition"), here("trl_functions", "overlong")], [1.0, 0.5, 2.0]),
]
with open(os.path.join(HERE, "trl.json"), "w") as out:
    out.write('{"trl": "%s", "torch": "%s", "cases": [\n' % (trl.__version__, torch.__version__))
    out.write(",\n".join(json.dumps(one) for one in cases) + "\n]}\n")
