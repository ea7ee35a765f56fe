#!/usr/bin/env python3
"""Exports by optimum-onnx and by transformers' OnnxExporter (make_onnx_others.py), compiled and differentiated in float64, beside the same
weights from their directory (gpt2: torch in float64).

    tests/golden/check_onnx_others.py OUT [OUT ..] [--build DIR]

Exit status 1 when a gradient differs by more than 1e-6, or an export is refused that LEFT does not name. Needs torch, transformers, onnx,
safetensors: a venv of its own.
"""
import argparse
import glob
import os
import sys

import onnx
from onnx import numpy_helper
from safetensors.numpy import load_file

from check_onnx_exports import TOP, compare, gradients, torch_gradients

LEFT = {"gpt2-plain": "SplitToSequence"}  # what is not built, and the operator that the error names


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="+")
    parser.add_argument("--build", default=os.path.join(TOP, "build", "release"))
    a = parser.parse_args()
    bad = 0
    for path in sorted(p for out in a.out for p in glob.glob(os.path.join(out, "*-*", "model.onnx"))):
        export = os.path.basename(os.path.dirname(path))
        folder = os.path.join(os.path.dirname(os.path.dirname(path)), export.split("-")[0])
        reference = torch_gradients(folder) if export.startswith("gpt2") else gradients(a.build, folder, folder + ".reference")[0]
        got, why = gradients(a.build, path, os.path.dirname(path))
        if got is None:
            good = LEFT.get(export, "\0") in why
            print(f"{export:34s} {'' if good else 'BAD '}refused: {why.split('model.onnx: ')[-1][:150]}", flush=True)
        else:
            values = {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer if t.data_type == onnx.TensorProto.FLOAT}
            worst, missing = compare(got, values, reference, load_file(os.path.join(folder, "model.safetensors")))
            good = worst < 1e-6 and not missing
            print(f"{export:34s} {'' if good else 'BAD '}{worst:.1e}" + (f"  not found: {missing}" if missing else ""), flush=True)
        bad += not good
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
