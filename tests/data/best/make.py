#!/usr/bin/env python3
"""Makes rule.json: what transformers' Trainer and EarlyStoppingCallback make of sequences of metrics.

The methods themselves are called, without a model: EarlyStoppingCallback.on_evaluate, then
Trainer._determine_best_metric, as Trainer._maybe_log_save_evaluate calls them after an evaluation; then, where a
checkpoint is written (each `save` evaluations, and at each new best), trainer_utils.rotate_checkpoints on
directories. Evaluation number k is after step 10 k. Needs transformers 5.24 (made with it).

    make.py            writes it
    make.py --check    ends with status 1 where it is another than the one that is there
"""

import json
import pathlib
import random
import sys
import tempfile
import types

import transformers
from transformers.trainer import Trainer
from transformers.trainer_callback import EarlyStoppingCallback, TrainerControl, TrainerState
from transformers.trainer_utils import SaveStrategy, rotate_checkpoints

HERE = pathlib.Path(__file__).resolve().parent
EVERY = 10
NAN, INF = float("nan"), float("inf")


def case(values, patience, threshold=0.0, greater=False, keep=2, save=1):
    args = types.SimpleNamespace(metric_for_best_model="loss", greater_is_better=greater, save_strategy=SaveStrategy.BEST)
    state, control = TrainerState(), TrainerControl()
    trainer = types.SimpleNamespace(args=args, state=state)
    stopper = EarlyStoppingCallback(patience, threshold)
    seen = []
    with tempfile.TemporaryDirectory() as out:
        for k, value in enumerate(values, 1):
            state.global_step = EVERY * k
            stopper.on_evaluate(args, state, control, {"eval_loss": value})
            new = bool(Trainer._determine_best_metric(trainer, {"eval_loss": value}, None))
            if new or k % save == 0:
                (pathlib.Path(out) / f"checkpoint-{state.global_step}").mkdir()
                best = pathlib.Path(out) / f"checkpoint-{state.best_global_step}"
                rotate_checkpoints(out, keep, str(best) if best.is_dir() else None)
            left = sorted(int(p.name.split("-")[1]) for p in pathlib.Path(out).iterdir())
            seen.append({"new": new, "best": state.best_global_step or 0, "worse": stopper.early_stopping_patience_counter,
                         "stops": control.should_training_stop, "left": left})
            if control.should_training_stop:
                break
    return {"values": values, "greater": greater, "patience": patience,
            "threshold": threshold, "keep": keep, "save": save, "seen": seen}


def cases():
    yield case([3.0, 2.0, 1.0, 1.5, 1.2, 1.1, 0.9], 3)
    yield case([3.0, 2.0, 1.0, 1.5, 1.2, 0.9, 1.1], 2)
    yield case([2.0, 2.0, 2.0, 2.0], 3)                        # equal: no improvement
    yield case([1.0, 1.1], 1)
    yield case([3.0, 2.9, 2.8, 2.7, 2.6], 3, threshold=0.5)    # small steps in a row: the best moves, patience ends
    yield case([3.0, 2.5, 2.0, 1.5], 2, threshold=0.5)         # exactly the threshold is not more than it
    yield case([NAN, NAN, 2.0, NAN, NAN, NAN], 3)
    yield case([NAN, 2.0, 3.0], 2)
    yield case([INF, INF, 2.0, INF], 2)
    yield case([-INF, -INF, 1.0], 2)
    yield case([0.1, 0.3, 0.3, 0.2], 2, greater=True)
    yield case([NAN, -INF, 0.5, INF, INF], 2, greater=True)
    yield case([1.0, 2.0, 3.0, 4.0, 5.0], 9, keep=1)           # the best, and the newest beside it
    yield case([5.0, 1.0, 2.0, 3.0, 0.5, 4.0], 9, keep=2, save=2)
    yield case([5.0, 1.0, 2.0, 3.0, 4.0, 4.5, 4.6], 9, keep=3)
    draw = random.Random(5)
    for _ in range(60):
        values = [draw.choice([draw.uniform(0, 3), draw.randint(0, 3) / 2, NAN, INF]) for _ in range(draw.randint(1, 12))]
        yield case(values, draw.randint(1, 4), draw.choice([0.0, 0.0, 0.25, 0.5]), draw.random() < 0.5,
                   draw.randint(1, 4), draw.randint(1, 4))


def main():
    text = json.dumps({"transformers": transformers.__version__, "every": EVERY, "cases": list(cases())})
    text = text.replace('{"values"', '\n{"values"') + "\n"
    path = HERE / "rule.json"
    if sys.argv[1:] == ["--check"]:
        sys.exit(path.read_text() != text)
    path.write_text(text)


main()
