#!/usr/bin/env python3
"""What --lora targets=all-linear adapts is what the class of transformers has as torch.nn.Linear, but for the head and for
parts that are carried (towers of images and sound, what predicts further tokens): the same modules, by the same names.

    tests/golden/check_all_linear.py [MODEL_DIR ..] [--build build/release]

MODEL_DIR: directories of models; without them, all of tests/golden. Of each a plan of one step writes an adapter. Models
that transformers does not open by name, or that need code of their own, and those of which PEFT refuses a module (Mamba's
out_proj) are named and left out. Needs torch and transformers (requirements.txt). Exit status 1 where names differ.
"""
import argparse
import glob
import json
import os
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

TOP = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
CARRIED = ("vision", "visual", "audio", "image", "multi_modal", "projector", "mtp.")
ROW = {"input_ids": [5, 6, 7, 8, 9, 10, 11, 12], "labels": [5, 6, 7, 8, 9, 10, 11, 12]}


def ours(build, model, folder):
    data, out = os.path.join(folder, "row.jsonl"), os.path.join(folder, "out")
    with open(data, "w") as f:
        f.write(json.dumps(ROW) + "\n")
    result = subprocess.run([f"{build}/sbprun", model, "--data", data, "--lora", "targets=all-linear,r=2", "--steps", "1",
                             "--out", out, "--quiet"], capture_output=True, text=True)
    if result.returncode != 0:
        raise ValueError(result.stderr.strip().splitlines()[-1][:160])
    with safe_open(os.path.join(out, "adapter_model.safetensors"), "pt") as f:
        return {k[len("base_model.model."):-len(".lora_A.weight")] for k in f.keys() if k.endswith(".lora_A.weight")}


def theirs(model):
    config = AutoConfig.from_pretrained(model)
    wrapped = hasattr(config, "vision_config") or hasattr(config, "audio_config")
    wrapped = wrapped and config.model_type != "llama4"  # whose class of the whole does not run text
    with torch.device("meta"):
        built = (AutoModelForImageTextToText if wrapped else AutoModelForCausalLM).from_config(config)
    head = built.get_output_embeddings()
    return {n for n, m in built.named_modules()
            if isinstance(m, torch.nn.Linear) and m is not head and not any(c in n for c in CARRIED)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="*")
    parser.add_argument("--build", default=os.path.join(TOP, "build", "release"))
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    models = args.models or sorted(os.path.dirname(p) for p in glob.glob(os.path.join(TOP, "tests/golden/*/model/config.json")))
    same, different, left = 0, 0, []
    for model in models:
        name = os.path.basename(os.path.dirname(model.rstrip("/")))
        with tempfile.TemporaryDirectory() as folder:
            try:
                a, b = ours(args.build, model, folder), theirs(model)
            except (ValueError, ImportError, RuntimeError, KeyError, AttributeError) as error:
                left.append(f"{name}: {type(error).__name__}: {str(error).splitlines()[0][:130]}")
                continue
        same += a == b
        if a != b:
            different += 1
            print(f"{name}: transformers alone {sorted(b - a)[:3]} ({len(b - a)}), sbprun alone {sorted(a - b)[:3]} ({len(a - b)})")
    for line in left:
        print(f"left out: {line}")
    print(f"{same} models adapt the same modules, {different} do not, {len(left)} are left out")
    return different > 0


if __name__ == "__main__":
    sys.exit(main())
