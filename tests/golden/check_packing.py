#!/usr/bin/env python3
"""Packed rows and their losses beside TRL's: stories260K trained for an epoch by TRL's SFTTrainer with packing (bfd) and by sbprun.

    tests/golden/check_packing.py [--build DIR] [--rows 1200] [--length 256] [--batch 4] [--split]

Rows are drawn pieces of tinyshakespeare as token ids, more than the 1000 within which TRL packs, and some longer than a packed row: TRL
cuts them (bfd), as --overlong truncate; with --split it goes on with the rest (bfd_split), as --overlong split. Both take packed
rows in their order, so that a step's tokens and loss are those of the same rows, or are not. Exit status 1 when the number of
packed rows, a step's tokens, or its loss by more than 1e-4 differ. Needs torch, transformers, trl (requirements.txt).
"""
import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

import datasets
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

TOP = pathlib.Path(__file__).resolve().parents[2]
MODEL = TOP / "tests/data/stories260K"


def draw(count, length, tokenizer):
    text = "\n\n".join(json.loads(line)["text"] for line in (TOP / "tests/golden/stories260k_trl/train.jsonl").read_text().splitlines())
    ids = tokenizer(text)["input_ids"]
    rng, rows = random.Random(5), []
    for _ in range(count):
        n = min(int(2 ** rng.uniform(2, 6.5)), length) if rng.random() < 0.99 else rng.randint(length, 2 * length)
        at = rng.randrange(len(ids) - n)
        rows.append(ids[at:at + n])
    return rows


def theirs(rows, a, out):
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(MODEL / "tokenizer.json"), bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32, attn_implementation="eager")
    arguments = SFTConfig(
        output_dir=out, num_train_epochs=1, per_device_train_batch_size=a.batch, learning_rate=1e-3, lr_scheduler_type="linear", weight_decay=0.0,
        train_sampling_strategy="sequential", max_length=a.length, packing=True, packing_strategy="bfd_split" if a.split else "bfd", bf16=False,
        use_cpu=True, logging_steps=1, save_strategy="no", report_to="none", disable_tqdm=True, gradient_checkpointing=False)
    trainer = SFTTrainer(model=model, args=arguments, processing_class=tokenizer, train_dataset=datasets.Dataset.from_dict({"input_ids": rows}))
    packed = len(trainer.train_dataset)
    trainer.train()
    return packed, [(h["loss"], h["num_tokens"]) for h in trainer.state.log_history if "loss" in h]


def ours(rows, a, out):
    data = os.path.join(out, "rows.jsonl")
    with open(data, "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"input_ids": r}) + "\n" for r in rows)
    subprocess.run([os.path.join(a.build, "sbprun"), MODEL, "--data", data, "--packing", "bfd", "--overlong", "split" if a.split else "truncate", "--seq-len", str(a.length),
                    "--batch-size", str(a.batch), "--lr", "0.001", "--schedule", "linear", "--weight-decay", "0", "--shuffle", "off", "--epochs", "1",
                    "--save-every", "never", "--out", os.path.join(out, "ours")], check=True, stderr=subprocess.DEVNULL)
    with open(os.path.join(out, "ours", "metrics.jsonl"), encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    return [(line["loss"], line["num_tokens"]) for line in lines if "loss" in line]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(TOP, "build", "release"))
    parser.add_argument("--rows", type=int, default=1200)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--split", action="store_true")
    a = parser.parse_args()
    with tempfile.TemporaryDirectory() as out:
        rows = draw(a.rows, a.length, PreTrainedTokenizerFast(tokenizer_file=str(MODEL / "tokenizer.json")))
        got = ours(rows, a, out)
        packed, wanted = theirs(rows, a, os.path.join(out, "trl"))
    worst = max(abs(x[0] - y[0]) / y[0] for x, y in zip(got, wanted))
    tokens = all(x[1] == y[1] for x, y in zip(got, wanted))
    print(json.dumps({"rows": a.rows, "packed": packed, "steps": [len(got), len(wanted)], "tokens": wanted[-1][1], "same_tokens": tokens, "worst": worst}))
    for step, (x, y) in enumerate(zip(got, wanted), 1):
        if x[1] != y[1] or abs(x[0] - y[0]) > 1e-4 * y[0]:
            print(f"step {step}: ours {x}, TRL {y}")
            break
    sys.exit(not (len(got) == len(wanted) and tokens and worst <= 1e-4))


if __name__ == "__main__":
    main()
