#!/usr/bin/env python3
"""tests/data/io/gguf_numbers.safetensors: numbers, and the bytes that the Python package `gguf` makes of them in
each type that files are written in. Needs gguf, numpy, safetensors."""

import pathlib

import gguf
import numpy as np
from safetensors.numpy import save_file

OUT = pathlib.Path(__file__).resolve().parents[1] / "data" / "io" / "gguf_numbers.safetensors"


def numbers():
    r = np.random.default_rng(5)
    rows = [r.standard_normal(32) for _ in range(6)]
    rows += [np.zeros(32), np.full(32, -1.5), np.linspace(-3, 3, 32)]
    rows += [np.arange(32) * 4 + 0.5 * (np.arange(32) % 3)]  # a scale of nearly 1, and halves
    rows += [np.r_[127, np.arange(31) - 15.5]]  # a scale of 1: halves exactly, away from zero
    rows += [r.standard_normal(32) * 1e-6, r.standard_normal(32) * 3e-8]  # subnormal scales
    rows += [r.standard_normal(32) * 1e5, np.r_[65504, 65519.99, 65520, 1e9, -65536, np.zeros(27)]]  # beyond fp16
    rows += [np.float32(1) + np.arange(32) * np.float32(2**-9), np.float32(1) + np.arange(32) * np.float32(2**-12)]  # ties
    return np.array(rows, dtype=np.float32)


def main():
    x = numbers()
    out = {"numbers": x}
    for name in ("F16", "BF16", "Q8_0"):
        with np.errstate(over="ignore"):
            out[name] = gguf.quants.quantize(x, gguf.GGMLQuantizationType[name]).view(np.int8)
    save_file(out, OUT)
    print(OUT, {k: v.shape for k, v in out.items()})


main()
