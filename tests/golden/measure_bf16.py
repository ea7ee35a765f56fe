#!/usr/bin/env python3
"""How far transformers in bf16 is from the golden gradients: writes bf16.json beside this file.

measure_bf16.py [CASE ...]     default: all cases with a plain SFT loss

Two ways in which models are trained in bf16, each on the same rows as the goldens:
  loaded     the model loaded in bfloat16: weights, activations and gradients are bf16
  autocast   fp32 weights under torch.autocast: products in bf16, the residual stream fp32
The loss is taken in fp32 from the logits. Errors are relative norms: `worst` of any tensor, `whole` of all tensors
together. The tests print the same two numbers of this project beside them; nothing is asserted on these.
`norms` holds results of transformers' norms in bf16, element by element: those are asserted.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import pathlib

import torch
import transformers
from safetensors.torch import load_file

import reference_float64 as reference
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

HERE = pathlib.Path(__file__).resolve().parent


class WideLogits:
    """A model whose logits are fp32, as a loss wants them."""

    def __init__(self, model, autocast):
        self.model, self.autocast = model, autocast

    def __call__(self, **arguments):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            out = self.model(**arguments)
        out.logits = out.logits.float()
        return out

    def __getattr__(self, name):
        return getattr(self.model, name)


def errors(got, want):
    worst, tensor = reference.worst(got, want)
    difference = sum((got[key].double() - want[key].double()).norm().item() ** 2 for key in want) ** 0.5
    size = sum(want[key].double().norm().item() ** 2 for key in want) ** 0.5
    return {"worst": worst, "tensor": tensor, "whole": difference / size}


def measure(directory):
    rows = [json.loads(line) for line in (directory / "train.jsonl").read_text().splitlines()]
    golden = load_file(directory / "grads.safetensors")
    result = {}
    for way, dtype in (("loaded", torch.bfloat16), ("autocast", torch.float32)):
        model = WideLogits(reference.load(directory / "model", dtype), way == "autocast")
        reference.use_longest_document(model.model, rows)
        loss_type = json.loads((directory / "expect.json").read_text())["objective"]["loss_type"]
        result[way] = errors(reference.run_step(model, rows, loss_type).gradients, golden)
    return result


def norm_results():
    """RMSNorm of transformers on numbers that bf16 rounds: where it rounds, x then w, and what comes out."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(4, 6, generator=generator).bfloat16()
    w = (1 + 0.3 * torch.randn(6, generator=generator)).bfloat16()
    result = {"x": x.double().tolist(), "w": w.double().tolist(), "eps": 1e-2}
    for name, norm, dtypes in (
        ("before", LlamaRMSNorm, ("bfloat16", "float32")),  # the weight is fp32 under autocast
        ("after", Gemma3RMSNorm, ("bfloat16",)),
    ):
        for dtype in dtypes:
            module = norm(6, eps=1e-2)
            module.weight.data = w.to(getattr(torch, dtype))
            result[f"{name} {dtype}"] = module(x).detach().double().tolist()
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    names = parser.parse_args().cases or sorted(path.parent.name for path in HERE.glob("*/grads.safetensors"))
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    file = HERE / "bf16.json"
    known = json.loads(file.read_text())["cases"] if file.exists() else {}
    for name in names:
        known[name] = measure(HERE / name)
        print(f"{name:34}", *(f"{way} {e['worst']:.1e}, whole {e['whole']:.1e} " for way, e in known[name].items()))
    made_with = {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__}
    result = {"made_with": made_with, "norms": norm_results(), "cases": dict(sorted(known.items()))}
    file.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
