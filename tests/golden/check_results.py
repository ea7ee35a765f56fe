#!/usr/bin/env python3
"""What sbprun writes, judged by transformers: every golden model after a step of rate 0 is the model that it was.

    tests/golden/check_results.py [CASE ..] [--build build/release]

Trains each model of tests/golden for one step at --lr 0, opens the result as AutoModelForCausalLM, and compares with the model
itself: no tensor is missing, left over or of another shape; names and types of the files' tensors; config.json but for its
type and fields that begin with an underscore; the index file, where there is one, and sizes of its shards; logits, bit for bit. Needs torch,
transformers and safetensors (requirements.txt). Exit status 1 when a result is another model.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM

TOP = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))


def tensors(folder):
    """Name to (type, shape) of all files; checks that the index says where each is."""
    found, where = {}, {}
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".safetensors"):
            continue
        with safe_open(os.path.join(folder, name), "pt") as file:
            for key in file.keys():
                part = file.get_slice(key)
                found[key] = (part.get_dtype(), tuple(part.get_shape()))
                where[key] = name
    index = os.path.join(folder, "model.safetensors.index.json")
    if os.path.exists(index):
        with open(index, encoding="utf-8") as file:
            said = json.load(file)
        if said["weight_map"] != where:
            raise ValueError("the index file names other tensors or files")
    elif len(set(where.values())) > 1:
        raise ValueError("several files without an index")
    return found


def config_of(folder):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        config = json.load(file)

    def clean(value):
        return {k: clean(v) for k, v in value.items() if not k.startswith("_")} if isinstance(value, dict) else value
    return clean(config)


def opened(folder, ids):
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, experts_implementation="eager",
                                                       output_loading_info=True)
    left = {kind: keys for kind, keys in info.items() if keys and kind in ("missing_keys", "unexpected_keys", "mismatched_keys")}
    with torch.no_grad():
        return model.eval()(input_ids=ids, use_cache=False).logits, left


def compare(name, options, folder):
    base, out = os.path.join(TOP, "tests/golden", name, "model"), os.path.join(folder, name)
    rows = os.path.join(TOP, "tests/golden", name, "train.jsonl")
    command = [os.path.join(options.build, "sbprun"), base, "--data", rows, "--steps", "1", "--lr", "0", "--batch-size", "1"]
    command += ["--optimizer", "sgd", "--seq-len", "200", "--out", out, *options.more]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=TOP)
    if ran.returncode != 0:
        return [f"status {ran.returncode}: {ran.stderr.strip().splitlines()[-1]}"]
    with open(rows, encoding="utf-8") as file:
        row = json.loads(file.readline())
    ids = torch.tensor([row.get("input_ids") or row["prompt_ids"] + row["completion_ids"]])
    wrong = []
    was, now = tensors(base), tensors(out)
    for key in [key for key in was if key.endswith("_scale_inv") and key not in now]:  # FP8 that trains is written as numbers
        weight = key[:-len("_scale_inv")]
        was[weight] = (now[weight][0], was[weight][1])
        del was[key]
    for key in sorted(was.keys() ^ now.keys()):
        wrong.append(f"{key} is {'left out' if key in was else 'new'}")
    wrong += [f"{key}: {was[key]}, written {now[key]}" for key in sorted(was.keys() & now.keys()) if was[key] != now[key]]
    before, after = config_of(base), config_of(out)
    for key in ("dtype", "torch_dtype", "quantization_config"):  # the old name, or none; of numbers none
        after.pop(key, None)
        before.pop(key, None)
    wrong += [f"config.json: {key} was {before.get(key)}, is {after.get(key)}"
              for key in sorted(before.keys() | after.keys()) if before.get(key) != after.get(key)]
    try:
        logits, left = opened(base, ids)
    except (RuntimeError, ValueError, ImportError) as error:  # a made-up part of a wrapper, a kernel that is not here
        return wrong or f"the same files (transformers does not open the model itself: {str(error).splitlines()[0]})"
    if left:
        return wrong or f"the same files (transformers leaves some of the model itself: {sorted(left)})"
    got, got_left = opened(out, ids)
    if got_left:
        wrong.append(f"transformers: {got_left}")
    if not torch.equal(logits, got):
        wrong.append(f"logits are {float((logits - got).abs().max()):.3g} apart")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--build", default=os.path.join(TOP, "build/release"))
    parser.add_argument("--more", nargs=argparse.REMAINDER, default=[], help="options for sbprun")
    options = parser.parse_args()
    cases = options.cases or sorted(
        name for name in os.listdir(os.path.join(TOP, "tests/golden"))
        if os.path.exists(os.path.join(TOP, "tests/golden", name, "model/model.safetensors"))
        and os.path.exists(os.path.join(TOP, "tests/golden", name, "train.jsonl")) and name != "gpt2")
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in cases:
            wrong = compare(name, options, folder)
            bad += isinstance(wrong, list) and bool(wrong)
            said = wrong if isinstance(wrong, str) else "; ".join(wrong[:3])
            print(f"{name:36s} {said or 'the same model'}", flush=True)
    print(f"{len(cases)} models, {bad} with differences")
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
