#!/usr/bin/env python3
"""Twenty steps of fine-tuning a new Qwen3.5 (three gated delta rules for each attention) by TRL's SFTTrainer.

    make_trl_hybrid.py                         makes qwen3_5_trl/: a model that is small enough to lie here
    make_trl_hybrid.py --large DIR [BUILD]     one of 16.0 million parameters, in DIR; with the folder of a build, the
                                               same steps by its sbpc and sbprun, and how far apart the losses are

Weights are those that transformers gives a new model, rounded to bf16 (the small one's file). Rows, tokenizer and
settings are those of stories260k_trl, but for the learning rate: make_trl_curve.py says what is recorded.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import pathlib
import shutil
import subprocess
import sys

import torch
import transformers
from transformers import AutoModelForCausalLM, Qwen3_5TextConfig

import make_trl_curve as curve

OUT = curve.HERE / "qwen3_5_trl"
SIZES = {
    "small": {
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
    },
    "large": {
        "hidden_size": 384,
        "intermediate_size": 1024,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 8,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
    },
}


def make_model(size, folder):
    """A new model of transformers, in float32 numbers that bf16 has."""
    torch.manual_seed(25)
    config = Qwen3_5TextConfig(
        vocab_size=512,
        linear_conv_kernel_dim=4,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        dtype="bfloat16",
        **SIZES[size],
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).bfloat16()
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    return sum(p.numel() for p in model.parameters())


def run_ours(folder, build, arguments):
    """The losses of sbprun."""
    shutil.copy(curve.MODEL / "tokenizer.json", folder)
    rows = ["--data", str(curve.OUT / "train.jsonl"), "--out", str(folder / "run"), "--overwrite"]
    subprocess.run([f"{build}/sbpc", "compile", folder, "-o", folder / "plan", *arguments["compile"]], check=True)
    subprocess.run([f"{build}/sbprun", folder / "plan", *rows, *arguments["run"]], check=True)
    return [json.loads(line)["loss"] for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", type=pathlib.Path, metavar="DIR")
    parser.add_argument("build", nargs="?", type=pathlib.Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    curve.datasets.disable_progress_bars()
    rate = 1e-3 if options.large else 1e-2
    folder = options.large or OUT / "model"
    folder.mkdir(parents=True, exist_ok=True)
    parameters = make_model("large" if options.large else "small", folder)
    history, ids, optimizer, _ = curve.run_trl(curve.load_tokenizer(), folder, rate)
    losses = [step["loss"] for step in history]
    print(f"{parameters} parameters: TRL's loss {losses[0]:.4f} -> {losses[-1]:.4f}")
    arguments = curve.arguments_of(ids, rate)
    if losses[0] - losses[-1] < 1:
        print("the loss was to fall by at least 1")
        return 1
    if options.large:
        if options.build:
            ours = run_ours(folder, options.build, arguments)
            apart = [abs(a - b) / b for a, b in zip(ours, losses, strict=True)]
            print(f"sbprun's: {ours[0]:.4f} -> {ours[-1]:.4f}; apart by {max(apart):.1e} at most, relative")
            return 0 if max(apart) <= 1e-4 else 1
        return 0
    steps, first, weights, moved, _ = curve.run_float64(ids, folder, rate)
    apart = max(abs(a["loss"] - b["loss"]) / b["loss"] for a, b in zip(history, steps, strict=True))
    result = {
        "about": "twenty steps of model/ on the rows of stories260k_trl; `trl` is what TRL's SFTTrainer logged",
        "made_with": curve.versions(),
        "optimizer": optimizer,
        "trl": history,
        "float64": steps,
        "float64_weights_moved": moved,
        "trl_float32_against_float64": {"loss_max_relative_error": apart},
    }
    (OUT / "trl.json").write_text(json.dumps(result, indent=1) + "\n")
    (OUT / "args.json").write_text(json.dumps(arguments, indent=1) + "\n")
    print(f"TRL in float32 is off by {apart:.1e} of the loss in float64")
    return 0


if __name__ == "__main__":
    sys.exit(main())
