#!/usr/bin/env python3
"""Adapters that sbprun trains, loaded by peft, and merged models, loaded by transformers: the same logits.

    tests/golden/check_lora.py [MODEL_DIR] [--build build/release]

Trains adapters of several kinds (of a model with experts: of them) for a few steps from random rows (MODEL_DIR:
tests/data/stories260K), opens each result with
peft.PeftModel over the base and the --merge of it with transformers, in float32, and compares their logits. Needs torch,
transformers and peft (requirements.txt). Exit status 1 when logits are further apart than float32 explains.
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

TOP = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
KINDS = [["--lora", "on"], ["--lora", "r=4,alpha=3,targets=all-linear", "--lora-rslora", "on"],
         ["--lora", "r=8,targets=q_proj+down_proj,layers=1+3"],
         ["--lora", "r=8,targets=v_proj", "--lora-rank-pattern", "layers.2.self_attn.v_proj=3"],
         ["--lora", "targets=o_proj", "--lora-modules-to-save", "gate_proj"],
         ["--lora", "r=4,targets=all-linear,dropout=0.1", "--base-dtype", "nf4"]]
OF_EXPERTS = [["--lora", "r=3,targets=q_proj,target_parameters=mlp.experts.gate_up_proj+mlp.experts.down_proj"],
              ["--lora", "r=2,alpha=5,target_parameters=0.mlp.experts.gate_up_proj", "--lora-rslora", "on"]]
EAGER = {"experts_implementation": "eager"}  # the default of experts asks for strides of 16 bytes
TOLERANCE = 2e-6  # of the largest logit: sums of float32 in another order


def run(*command):
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)}: {result.returncode}\n{result.stderr}")


def logits(model, ids):
    with torch.no_grad():
        return model.eval()(ids).logits


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=os.path.join(TOP, "tests", "data", "stories260K"))
    parser.add_argument("--build", default=os.path.join(TOP, "build", "release"))
    arguments = parser.parse_args()
    sbprun = os.path.join(arguments.build, "sbprun")
    config = json.load(open(os.path.join(arguments.model, "config.json")))
    vocabulary = config["vocab_size"]
    draw, bad = random.Random(1), 0
    ids = torch.tensor([[draw.randrange(vocabulary) for _ in range(24)]])
    with tempfile.TemporaryDirectory() as folder:
        rows = os.path.join(folder, "rows.jsonl")
        with open(rows, "w") as f:
            for _ in range(8):
                row = [draw.randrange(vocabulary) for _ in range(20)]
                f.write(json.dumps({"input_ids": row, "labels": row}) + "\n")
        for i, kind in enumerate(OF_EXPERTS if "num_experts_per_tok" in config else KINDS):
            adapter, merged = os.path.join(folder, f"a{i}"), os.path.join(folder, f"m{i}")
            run(sbprun, arguments.model, "--data", rows, "--seq-len", "64", "--steps", "4", "--lr", "1e-2", "--batch-size", "4", "--out",
                adapter, *kind)
            narrow = kind[2:] == ["--base-dtype", "nf4"]
            run(sbprun, adapter, "--seq-len", "64", "--merge", "--out", merged, *(kind[2:] if narrow else []))
            numbers = arguments.model
            if narrow:  # what the blocks stand for, as a model of its own
                numbers = os.path.join(folder, "numbers")
                run(sbprun, arguments.model, "--data", rows, "--seq-len", "64", "--steps", "1", "--lr", "0", "--out", numbers,
                    "--freeze", "*proj.weight", *kind[2:])
                assert AutoModelForCausalLM.from_pretrained(merged, dtype="auto").dtype == torch.bfloat16
            base = AutoModelForCausalLM.from_pretrained(numbers, dtype=torch.float32, **EAGER)
            plain = logits(base, ids)
            model = PeftModel.from_pretrained(base, adapter)
            if narrow:
                model = model.merge_and_unload()
                for parameter in model.parameters():
                    parameter.data = parameter.data.bfloat16().float()
            ours = logits(model, ids)
            whole = logits(AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32, **EAGER), ids)
            scale = ours.abs().max().item()
            apart, moved = (ours - whole).abs().max().item() / scale, (ours - plain).abs().max().item() / scale
            ok = apart <= TOLERANCE < moved
            bad += not ok
            print(f"{'ok ' if ok else 'BAD'} {' '.join(kind)}: merged and peft {apart:.2g} apart, trained {moved:.2g} from the base")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
