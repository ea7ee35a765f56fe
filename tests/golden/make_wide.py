#!/usr/bin/env python3
"""Makes, or checks, the wide cases, wide/NAME: models at widths that people use, of which nothing large is stored.

make_wide.py [CASE ...]             write the cases of wide_cases.py (default: all)
make_wide.py --check [CASE ...]     compute the committed cases again and compare; writes nothing
make_wide.py --verify DIR ...       the same for cases made by somebody else

A case is config.json, train.jsonl, tensors.json (name -> shape, mean, scale) and expect.json. Element i (row-major) of the
tensor called NAME is, in float64 and then rounded to float32,
    mean + scale * u,   u = 2 * (splitmix64(fnv1a64(NAME) + i) >> 11) / 2^53 - 1
with fnv1a64 over the UTF-8 bytes of NAME and splitmix64(x): z = x + 0x9E3779B97F4A7C15; z = (z ^ z >> 30) *
0xBF58476D1CE4E5B9; z = (z ^ z >> 27) * 0x94D049BB133111EB; z ^ z >> 31, all modulo 2^64. tests/common/wide.c does the same.

Of each gradient g expect.json has, in float64, the norm, four projections (sum of g_i s_i, s_i = +1 where bit b of
splitmix64(i + fnv1a64("sign " + NAME)) is set, else -1, b = 0..3) and 48 elements, at splitmix64(j + fnv1a64("place " + NAME))
modulo n. The error of a tensor is the largest of |norm' - norm|, |projection' - projection| and |element' - element| sqrt(n),
each over the norm: an element of average size is norm / sqrt(n)."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import json
import pathlib
import random
import sys
import tempfile

import numpy as np
import torch
import transformers
from safetensors import safe_open
from safetensors.numpy import save_file
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModelForCausalLM

import reference_float64 as reference
from make_goldens import run, stored_gradients
from wide_cases import CASES

HERE = pathlib.Path(__file__).resolve().parent / "wide"
EXACT = 1e-12  # two float64 computations of the same gradient, an element at a time
SINGLE = 1e-4  # transformers in float32; more says that a token went to another expert
MARGIN = 1e-6  # between the last expert that is chosen and the first that is not

# By the end of a name: what elements are around, and how far. Norms are around 1, or 0 where they multiply by 1 + w.
MIDDLES = {".A_log": (-1.2, 0.7), ".dt_bias": (-0.4, 0.5), ".conv1d.weight": (0.0, 0.7), ".conv.conv.weight": (0.0, 0.7),
           ".sinks": (0.0, 1.0), ".D": (1.0, 0.5), ".e_score_correction_bias": (0.0, 0.1)}  # fmt: skip


def hash_name(name):
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = ((h ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return h


def mixed(name, count):
    """splitmix64 of fnv1a64(name) + i, i = 0 .. count - 1."""
    with np.errstate(over="ignore"):
        z = np.arange(count, dtype=np.uint64) + np.uint64(hash_name(name)) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def values(name, shape, mean, scale):
    u = (mixed(name, int(np.prod(shape))) >> np.uint64(11)).astype(np.float64) / 2.0**52 - 1.0
    return (mean + scale * u).astype(np.float32).reshape(shape)


def summary(name, gradient):
    g = gradient.double().numpy().reshape(-1)
    signs = mixed("sign " + name, len(g))
    bits = [((signs >> np.uint64(b)) & np.uint64(1)).astype(np.float64) * 2 - 1 for b in range(4)]
    places = mixed("place " + name, 48) % np.uint64(len(g))
    return {
        "norm": float(np.linalg.norm(g)),
        "projections": [float(np.dot(g, s)) for s in bits],
        "elements": g[places.astype(np.int64)].tolist(),
        "n": len(g),
    }


def error_of(truth, got):
    norm, root = truth["norm"] or 1.0, truth["n"] ** 0.5
    return max(
        [abs(got["norm"] - truth["norm"]) / norm]
        + [abs(a - b) / norm for a, b in zip(got["projections"], truth["projections"], strict=True)]
        + [abs(a - b) * root / norm for a, b in zip(got["elements"], truth["elements"], strict=True)]
    )


def worst(got, want):
    if got.keys() != want.keys():
        raise RuntimeError(f"tensor names differ: {sorted(got.keys() ^ want.keys())}")
    return max((error_of(want[name], got[name]), name) for name in want)


class Margins(TorchDispatchMode):
    """The smallest difference between what is chosen and what is not, in any choice of the forward."""

    def __init__(self):
        super().__init__()
        self.least = None

    def __torch_dispatch__(self, operation, types, arguments=(), keywords=None):
        result = operation(*arguments, **(keywords or {}))
        if operation is torch.ops.aten.topk.default:
            source, count = arguments[0], arguments[1]
            if source.is_floating_point() and count < source.shape[-1]:
                ordered = source.sort(dim=-1, descending=True).values
                gap = (ordered[..., count - 1] - ordered[..., count]).min().item()
                self.least = gap if self.least is None else min(self.least, gap)
        return result


def middle_and_scale(name, fresh, config):
    """Mean and scale of a tensor of which a new model has the values `fresh`."""
    known = [value for end, value in MIDDLES.items() if name.endswith(end)]
    if known:
        return known[0]
    if config["model_type"] in ("gemma3n_text", "gemma4_text") and name.endswith(("q_norm.weight", "k_norm.weight")):
        return 0.25, 0.1  # nothing else keeps scores of order 1 there
    if fresh.dim() == 0:  # numbers that nobody trains
        return float(fresh), 0.0
    if fresh.dim() == 1:
        return float(fresh.double().mean().round()), 0.15
    if "embed" in name or name == "lm_head.weight":
        return 0.0, 1.2 / fresh.shape[-1] ** 0.5
    if name.endswith("_bias"):  # of all experts
        return 0.0, 0.15
    across = config["model_type"] == "gpt_oss" and ".experts." in name  # [experts, inputs, outputs]
    return 0.0, 1.6 / fresh.shape[1 if across else -1] ** 0.5


def make_tensors(directory, config):
    """What a new model saves, by name."""
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(directory), dtype=torch.float32)
    tensors = {}
    with tempfile.TemporaryDirectory() as scratch:
        model.save_pretrained(scratch, max_shard_size="100GB")
        with safe_open(pathlib.Path(scratch) / "model.safetensors", framework="pt") as file:
            for name in sorted(file.keys()):
                fresh = file.get_tensor(name)
                mean, scale = middle_and_scale(name, fresh, config)
                tensors[name] = {"shape": list(fresh.shape), "mean": mean, "scale": scale}
    return tensors


def write_weights(directory, tensors):
    save_file(
        {name: values(name, t["shape"], t["mean"], t["scale"]) for name, t in tensors.items()},
        directory / "model.safetensors",
        {"format": "pt"},
    )


def make_rows(name, case):
    """Drawn tokens, the first and the last of the vocabulary among them; one label of eight is masked."""
    rng = random.Random(f"wide/{name}/{case.seed}")
    rows, vocabulary = [], case.config["vocab_size"]
    for length in case.lengths:
        ids = [rng.randrange(vocabulary) for _ in range(length)]
        rows.append({"input_ids": ids, "labels": [-100 if i == 0 or rng.random() < 0.125 else ids[i] for i in range(length)]})
    rows[0]["input_ids"][1], rows[0]["input_ids"][2] = 0, vocabulary - 1
    rows[0]["labels"][1], rows[0]["labels"][2] = 0, vocabulary - 1
    return rows


def truth_of(directory, rows):
    """(loss, summaries, margin) in float64."""
    margins = Margins()
    with margins:
        model, step = reference.reference_step(directory, rows)
    gradients = stored_gradients(model, step, directory)
    return step.loss, {name: summary(name, g) for name, g in sorted(gradients.items())}, margins.least


def single_of(directory, rows):
    """(loss, summaries) of transformers in float32."""
    model = reference.load(directory, torch.float32)
    step = reference.run_step(model, rows)
    step.gradients = {name: g.double() for name, g in step.gradients.items()}
    gradients = stored_gradients(model.double(), step, directory)
    return step.loss, {name: summary(name, g) for name, g in gradients.items()}


def lines(items):
    """JSON, a member a line."""
    return "{\n" + ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in items.items()) + "\n}\n"


def write_case(name, case):
    final = HERE / name
    rows = make_rows(name, case)
    with tempfile.TemporaryDirectory() as scratch:
        directory = pathlib.Path(scratch)
        config = json.dumps(case.config, indent=1) + "\n"
        (directory / "config.json").write_text(config)
        tensors = make_tensors(directory, case.config)
        write_weights(directory, tensors)
        loss, truth, margin = truth_of(directory, rows)
        single_loss, single = single_of(directory, rows)
    error, tensor = worst(single, truth)
    if error > SINGLE or (margin is not None and margin < MARGIN):
        raise RuntimeError(f"{name}: float32 is {error:.1e} off ({tensor}), choices differ by {margin}: take another seed")
    final.mkdir(parents=True, exist_ok=True)
    (final / "config.json").write_text(config)
    (final / "tensors.json").write_text(lines(tensors))
    (final / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    head = {
        "loss": loss,
        "least_margin": margin,
        "hf_float32": {"loss": single_loss, "max_relative_error": error, "tensor": tensor},
        "made_with": {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__},
    }
    body = lines(truth)[2:-3].replace("\n", "\n ")
    (final / "expect.json").write_text(lines(head)[:-3] + ',\n"gradients": {\n ' + body + "\n}\n}\n")
    size = sum(file.stat().st_size for file in final.iterdir())
    count = sum(int(np.prod(t["shape"])) for t in tensors.values())
    print(f"{name:30} {size / 1000:6.1f} KB  {len(tensors):3} tensors of {count / 1e6:5.2f} million  rows {sum(case.lengths):4}"
          f"  loss {loss:.4f}  float32 {error:.1e} ({tensor})  margin {margin}", flush=True)  # fmt: skip


def check_case(directory):
    """True when the directory's numbers come out again."""
    rows = [json.loads(line) for line in (directory / "train.jsonl").read_text().splitlines()]
    expect = json.loads((directory / "expect.json").read_text())
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        (scratch / "config.json").write_text((directory / "config.json").read_text())
        write_weights(scratch, json.loads((directory / "tensors.json").read_text()))
        loss, truth, _ = truth_of(scratch, rows)
    error, tensor = worst(truth, expect["gradients"])
    fine = error <= EXACT and abs(loss - expect["loss"]) <= EXACT * abs(expect["loss"])
    print(f"{directory.name:30} gradients {error:.1e} ({tensor})  loss {abs(loss - expect['loss']):.1e}  {'' if fine else 'FAILED'}",
          flush=True)  # fmt: skip
    return fine


if __name__ == "__main__":
    sys.exit(run(__doc__, CASES, HERE, check_case, write_case))
