#!/usr/bin/env python3
"""Hand-written torch modules (onnx_modules.py), exported, compiled and differentiated in float64, beside torch in float64.

    tests/golden/check_onnx_modules.py [--build DIR] [--work DIR] [--modules nano_gpt,..] [--exports dynamo:18:off,..]

Exports: EXPORTER:OPSET:KEEP_NAMES of examples/export_model_json.py. Figures: the largest relative difference of a parameter's gradient, of
parameters with more than one element. Exporters write constants as float32, hence 1e-6. Modules that cannot be run as one document must be
refused, by a message that says what is marked in onnx_modules.py. Exit status 1 when something differs, or is not refused.

Needs torch, onnx, onnxscript, safetensors, transformers (for check_onnx_exports.py): a venv of its own.
"""
import argparse
import contextlib
import importlib.util
import io
import logging
import os
import sys
import warnings

import numpy
import torch

import onnx_modules
from check_onnx_exports import ROWS, TOP, compare, exported_values, gradients

EXPORTS = ["dynamo:18:off", "dynamo:20:on", "dynamo:23:on", "legacy:18:off", "legacy:20:off"]


def exporter():
    spec = importlib.util.spec_from_file_location("export_model_json", os.path.join(TOP, "examples", "export_model_json.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make(name):
    torch.manual_seed(sum(map(ord, name)))
    m = onnx_modules.MODULES[name]()
    for p in m.parameters():
        ones = p.ndim == 1 and bool((p == 1).all())
        p.data = torch.randn_like(p) * 0.1 + (1.0 if ones else 0.0)
    return m.eval()


def reference(name):
    torch.set_default_dtype(torch.float64)
    try:
        m = make_double(name)
        generator = numpy.random.default_rng(7)
        rows = [torch.tensor(generator.integers(0, 61, n).tolist()) for n in ROWS]
        total = sum(torch.nn.functional.cross_entropy(m(ids[None])[0, :-1], ids[1:], reduction="sum") for ids in rows)
        (total / sum(n - 1 for n in ROWS)).backward()
        return {n: p.grad.numpy() for n, p in m.named_parameters() if p.grad is not None and p.numel() > 1}
    finally:
        torch.set_default_dtype(torch.float32)


def make_double(name):
    """The module with the values of its float32 self."""
    torch.set_default_dtype(torch.float32)
    m = make(name)
    torch.set_default_dtype(torch.float64)
    return m.double()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(TOP, "build", "release"))
    parser.add_argument("--work", default="/tmp/onnx-modules")
    parser.add_argument("--modules", default=",".join(onnx_modules.MODULES))
    parser.add_argument("--exports", default=",".join(EXPORTS))
    a = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.backends.mha.set_fastpath_enabled(False)  # an operator of its own, which the legacy exporter cannot write
    example, counts, bad = exporter(), {}, 0
    for name in a.modules.split(","):
        why_not = onnx_modules.REFUSED.get(name)
        wanted = None if why_not else reference(name)
        for export in a.exports.split(","):
            why_not = onnx_modules.REFUSED.get(name)
            kind, opset, keep = export.split(":")
            out = os.path.join(a.work, f"{name}-{kind}-{opset}-{keep}")
            path = os.path.join(out, "model.json")
            m = make(name)
            if not os.path.exists(path):
                try:
                    with contextlib.redirect_stdout(io.StringIO()):
                        example.export(example.Logits(m, False), False, out, int(opset), kind, keep == "on")
                except Exception as reason:
                    counts["exporter fails"] = counts.get("exporter fails", 0) + 1
                    print(f"{name:28s} {export:14s} the exporter fails: {str(reason).strip().splitlines()[0][:110]}", flush=True)
                    continue
            got, why = gradients(a.build, path, out)
            if kind == "legacy":
                why_not = why_not or onnx_modules.LEGACY_WRONG.get(name)
            if why_not:
                good = got is None and why_not in why
                text = f"refused: {why.split('model.json: ')[-1][:200]}" if got is None else "NOT REFUSED"
            elif got is None:
                good, text = False, f"REFUSED: {why.split('model.json: ')[-1][:300]}"
            else:
                weights = {n: p.detach().numpy() for n, p in m.named_parameters() if n in wanted}
                worst, missing = compare(got, exported_values(path), wanted, weights)
                good, text = worst < 1e-6 and not missing, f"{worst:.1e}" + (f"  not found: {missing}" if missing else "")
            bad += not good
            key = ("refused" if why_not else "right") if good else "wrong"
            counts[key] = counts.get(key, 0) + 1
            print(f"{name:28s} {export:14s} {'' if good else 'BAD '}{text}", flush=True)
    print(", ".join(f"{v} {k}" for k, v in counts.items()))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
