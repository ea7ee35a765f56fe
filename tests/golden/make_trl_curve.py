#!/usr/bin/env python3
"""Makes stories260k_trl/: twenty steps of fine-tuning stories260K, by TRL's own SFTTrainer and by a float64 loop.

    make_trl_curve.py [--text FILE]     FILE: public-domain text with blank lines between paragraphs; needed only
                                        when stories260k_trl/train.jsonl is to be made anew

TRL runs in float32 on the CPU with its defaults, except for what is recorded in args.json. The float64 loop (patched
transformers of reference_float64.py, documents one at a time, torch's AdamW and clipping) says where the curve lies
without rounding; the distance between both is recorded, and is what a tolerance should be chosen by.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import math
import pathlib
import sys
import tempfile

import datasets
import tokenizers
import torch
import transformers
import trl
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

import reference_float64 as reference

HERE = pathlib.Path(__file__).resolve().parent
MODEL = HERE.parent / "data" / "stories260K"
OUT = HERE / "stories260k_trl"
ROWS, STEPS, BATCH, POSITIONS = 200, 20, 8, 512
LEARNING_RATE, CLIP = 1e-3, 1.0
# First rows that a tokenizer can get wrong: bytes without a token of their own, and an end that is already there.
SPECIAL_ROWS = ["Once upon a time, Zoë ate a crème brûlée — it cost 3 €.\n\tYum!", "The end.</s>"]


def load_tokenizer():
    return PreTrainedTokenizerFast(
        tokenizer_file=str(MODEL / "tokenizer.json"), bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def write_rows(text_file, tokenizer):
    paragraphs = [part.strip() for part in text_file.read_text().split("\n\n")]
    chosen = []
    for paragraph in paragraphs:
        if len(chosen) < ROWS - len(SPECIAL_ROWS) and len(tokenizer(paragraph)["input_ids"]) < POSITIONS // 2:
            chosen.append(paragraph)
    texts = chosen[:1] + SPECIAL_ROWS + chosen[1:]
    OUT.mkdir(exist_ok=True)
    (OUT / "train.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def run_trl(tokenizer, directory, rate):
    """(logged steps, token ids of every row as TRL trains on them, optimizer settings, weights afterwards)"""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with tempfile.TemporaryDirectory() as scratch:
        arguments = SFTConfig(
            output_dir=scratch,
            max_steps=STEPS,
            per_device_train_batch_size=BATCH,
            gradient_accumulation_steps=1,
            learning_rate=rate,
            lr_scheduler_type="linear",
            warmup_steps=0,
            weight_decay=0.0,
            max_grad_norm=CLIP,
            train_sampling_strategy="sequential",
            max_length=POSITIONS,
            bf16=False,
            use_cpu=True,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = SFTTrainer(
            model=model,
            args=arguments,
            processing_class=tokenizer,
            train_dataset=datasets.load_dataset(
                "json", data_files=str(OUT / "train.jsonl"), split="train", cache_dir=scratch
            ),
        )
        ids = [list(row) for row in trainer.train_dataset["input_ids"]]
        labels = [list(row) for row in trainer.train_dataset["labels"]]
        if ids != labels or max(map(len, ids)) >= POSITIONS:
            raise RuntimeError("every token of every row was to be trained on, and no row cut")
        trainer.train()
        weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    keys = ["step", "epoch", "loss", "grad_norm", "learning_rate", "num_tokens", "entropy", "mean_token_accuracy"]
    history = [{key: entry[key] for key in keys} for entry in trainer.state.log_history if "loss" in entry]
    optimizer = {
        "name": str(arguments.optim.value),
        "betas": [arguments.adam_beta1, arguments.adam_beta2],
        "eps": arguments.adam_epsilon,
        "weight_decay": arguments.weight_decay,
        "learning_rate": rate,
        "schedule": "linear",
        "warmup_steps": 0,
        "max_grad_norm": CLIP,
        "batch_size": BATCH,
        "accumulation": 1,
        "steps": STEPS,
    }
    return history, ids, optimizer, weights


def run_float64(ids, directory, rate):
    """The same twenty steps without rounding."""
    steps, first = [], None
    with reference.Float64Patches(directory):
        model = reference.load(directory, torch.float64)
        start = {name: p.detach().clone() for name, p in model.named_parameters()}
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=rate, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0
        )
        for step in range(STEPS):
            rows = [{"input_ids": row, "labels": row} for row in ids[step * BATCH : (step + 1) * BATCH]]
            with reference.NoFloat32():
                result = reference.run_step(model, rows)
            first = first or result
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item()
            optimizer.param_groups[0]["lr"] = now = rate * ((STEPS - step) / STEPS)
            optimizer.step()
            steps.append(
                {
                    "step": step + 1,
                    "loss": result.loss,
                    "grad_norm": norm,
                    "learning_rate": now,
                    "entropy": result.metrics["entropy"],
                    "mean_token_accuracy": result.metrics["mean_token_accuracy"],
                    **{key: result.metrics[key] for key in ("aux_loss",) if key in result.metrics},
                }
            )
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    moved = {name: (weights[name] - start[name]).norm().item() for name in start}
    return steps, first, weights, moved, start


def versions():
    return {
        "torch": torch.__version__.split("+")[0],
        "transformers": transformers.__version__,
        "trl": trl.__version__,
        "tokenizers": tokenizers.__version__,
    }


def arguments_of(ids, rate):
    """The same run by sbpc and sbprun."""
    longest_batch = max(sum(len(row) for row in ids[i : i + BATCH]) for i in range(0, STEPS * BATCH, BATCH))
    run = {"--steps": STEPS, "--batch-size": BATCH, "--lr": rate, "--schedule": "linear", "--warmup": 0}
    run.update({"--weight-decay": 0, "--shuffle": "off"})
    return {
        "compile": ["--objective", "sft", "--seq-len", str(longest_batch), "--clip", str(CLIP)],
        "run": [str(part) for option in run.items() for part in option],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=pathlib.Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    if options.text:
        write_rows(options.text, load_tokenizer())
    history, ids, optimizer, trl_weights = run_trl(load_tokenizer(), MODEL, LEARNING_RATE)
    steps, first, weights, moved, start = run_float64(ids, MODEL, LEARNING_RATE)

    def distance(key):
        return max(abs(a[key] - b[key]) / abs(b[key]) for a, b in zip(history, steps, strict=True))

    # How far the float32 run's weights are off, as a share of the way they went.
    drift = {
        name: ((trl_weights[name].double() - weights[name]).norm() / (weights[name] - start[name]).norm()).item()
        for name in weights
    }
    worst = max(drift, key=drift.get)
    result = {
        "about": "twenty steps of stories260K on train.jsonl; `trl` is what TRL's SFTTrainer logged, in float32",
        "made_with": versions(),
        "optimizer": optimizer,
        "token_ids_of_first_rows": ids[:BATCH],
        "token_counts": [len(row) for row in ids],
        "trl": history,
        "float64": steps,
        "float64_first_step_logprobs": first.logprobs,
        "float64_weights_moved": moved,
        "trl_float32_against_float64": {
            "loss_max_relative_error": distance("loss"),
            "grad_norm_max_relative_error": distance("grad_norm"),
            "weights_max_error_share_of_way": drift[worst],
            "tensor": worst,
        },
    }
    (OUT / "trl.json").write_text(json.dumps(result, indent=1) + "\n")
    (OUT / "args.json").write_text(json.dumps(arguments_of(ids, LEARNING_RATE), indent=1) + "\n")
    print(
        f"loss {steps[0]['loss']:.4f} -> {steps[-1]['loss']:.4f}, TRL off by {distance('loss'):.1e};"
        f" norm by {distance('grad_norm'):.1e}; weights by {drift[worst]:.1e} of their way ({worst})"
    )
    return 0 if all(math.isfinite(entry["loss"]) for entry in steps) else 1


if __name__ == "__main__":
    sys.exit(main())
