#!/usr/bin/env python3
"""Twenty steps of fine-tuning new models of experts, by TRL's SFTTrainer, transformers in float64, and sbprun.

    make_trl_experts.py DIR BUILD [qwen3_moe|gpt_oss ...]     DIR: where models and runs go; BUILD: folder of a build

Weights are those that transformers gives a new model, in float32. Rows, tokenizer and settings are those of
stories260k_trl, but for the learning rate; experts are balanced as TRL does by default, the eight rows of a step as one
micro-batch. Two comparisons, which fail where they are too far apart:

    sbprun --dtype fp64 and the float64 loop: losses and aux_loss within 1e-9, relative
    sbprun --dtype fp32 and TRL in float32: losses as near to the float64 ones as TRL's, or 3e-5; and how many rows of the
        first step choose other experts in float32 than in float64, in transformers (where scores are equal but for
        rounding), is counted

and the loss must fall by at least 1.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import pathlib
import shutil
import subprocess
import sys

import make_trl_curve as curve
import reference_float64 as reference
import torch
import transformers
from transformers import AutoModelForCausalLM, GptOssConfig, Qwen3MoeConfig

RATE = 5e-3
COMMON = {
    "vocab_size": 512,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
CONFIGS = {
    "qwen3_moe": lambda: Qwen3MoeConfig(
        intermediate_size=128,
        moe_intermediate_size=48,
        num_experts=8,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        router_aux_loss_coef=0.1,
        output_router_logits=True,
        **COMMON,
    ),
    "gpt_oss": lambda: GptOssConfig(
        intermediate_size=48,
        num_local_experts=8,
        num_experts_per_tok=2,
        sliding_window=32,
        router_aux_loss_coef=0.1,
        output_router_logits=True,
        rope_scaling={"rope_type": "default", "rope_theta": 10000.0},
        **COMMON,
    ),
}


def make_model(name, folder):
    torch.manual_seed(26)
    model = AutoModelForCausalLM.from_config(CONFIGS[name](), dtype=torch.float32)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    shutil.copy(curve.MODEL / "tokenizer.json", folder)
    return sum(p.numel() for p in model.parameters())


def run_ours(folder, build, arguments, dtype):
    """The lines of sbprun's metrics."""
    rows = ["--data", str(curve.OUT / "train.jsonl"), "--out", str(folder / dtype), "--overwrite"]
    plan = folder / f"{dtype}.plan"
    quiet = {"check": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    compile = [f"{build}/sbpc", "compile", folder, "-o", plan, "--dtype", dtype, "--chunk", "64", "--checkpoint-every", "2"]
    subprocess.run([*compile, *arguments["compile"]], **quiet)
    subprocess.run([f"{build}/sbprun", plan, *rows, *arguments["run"]], **quiet)
    return [json.loads(line) for line in (folder / dtype / "metrics.jsonl").read_text().splitlines()]


@torch.no_grad()
def other_choices(folder, rows):
    """(choices that differ in float32, all) in the first step: a row in a layer is one."""
    chosen = []
    for dtype in (torch.float32, torch.float64):
        with reference.Float64Patches(folder) if dtype == torch.float64 else torch.no_grad():
            model = reference.load(folder, dtype)
            k, layers = model.num_experts_per_tok, []
            for row in rows:
                logits = model(input_ids=torch.tensor([row]), use_cache=False, output_router_logits=True).router_logits
                layers += [layer.topk(k, dim=-1).indices.sort(dim=-1).values for layer in logits]
        chosen.append(torch.cat(layers))
    return int((chosen[0] != chosen[1]).any(dim=-1).sum()), len(chosen[0])


def apart(got, want):
    return max(abs(a - b) / abs(b) for a, b in zip(got, want, strict=True))


def compare(name, folder, build):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    parameters = make_model(name, folder)
    history, ids, _, _ = curve.run_trl(curve.load_tokenizer(), folder, RATE)
    steps, *_ = curve.run_float64(ids, folder, RATE)
    arguments = curve.arguments_of(ids, RATE)
    ours, narrow = run_ours(folder, build, arguments, "fp64"), run_ours(folder, build, arguments, "fp32")
    want = [step["loss"] for step in steps]
    exact = apart([line["loss"] for line in ours], want)
    balance = apart([line["aux_loss"] for line in ours], [step["aux_loss"] for step in steps])
    theirs, single = apart([step["loss"] for step in history], want), apart([line["loss"] for line in narrow], want)
    moved, all_rows = other_choices(folder, ids[: curve.BATCH])
    print(
        f"{name}: {parameters} parameters, loss {want[0]:.4f} -> {want[-1]:.4f}, aux_loss {steps[0]['aux_loss']:.4f} ->"
        f" {steps[-1]['aux_loss']:.4f}; sbprun in fp64 off by {exact:.1e}, aux_loss {balance:.1e}; in fp32 {single:.1e},"
        f" TRL {theirs:.1e}; {moved} of {all_rows} rows of layers choose otherwise in float32"
    )
    return exact <= 1e-9 and balance <= 1e-9 and single <= max(3e-5, theirs) and want[0] - want[-1] >= 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("names", nargs="*", default=list(CONFIGS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    curve.datasets.disable_progress_bars()
    fine = [compare(name, options.directory / name, options.build) for name in options.names]
    return 0 if all(fine) else 1


if __name__ == "__main__":
    sys.exit(main())
