#!/usr/bin/env python3
"""What other people's code makes of weights in blocks: tests/data/formats.json, read by tests/unit/test_formats.c.

    pip install torch==2.15.0 bitsandbytes==0.50.2 gguf==0.19.0
    python3 tests/golden/make_formats.py            # writes; --check: compares

nf4: bitsandbytes' quantize_4bit and dequantize_4bit on the CPU (blocks of 64, fp32 absmax, no nesting), in fp32 and bf16.
q8_0: gguf's quantize and dequantize. Numbers are bits of fp32 (bf16: of the wider fp32), as integers."""
import json, random, sys

import bitsandbytes.functional as bnb
import gguf
import numpy as np
import torch

PATH = "tests/data/formats.json"


def bits(values):
    return np.ascontiguousarray(values, dtype=np.float32).reshape(-1).view(np.uint32).tolist()


def weights():
    """Ordinary weights, and blocks that are special: zeros, one number, halves of steps, tiny, large."""
    draw = random.Random(13)
    x = [draw.gauss(0, 0.02) for _ in range(256)]
    x += [0.0] * 64
    x += [draw.choice((-0.5, 0.0, 0.5)) for _ in range(64)]
    x += [127.0 if i % 32 == 0 else i % 7 - 3.5 for i in range(64)]
    x += [draw.gauss(0, 1) * 1e-6 for _ in range(64)]
    x += [draw.gauss(0, 1e4) for _ in range(64)]
    x += [-1.0] + [0.0] * 62 + [1.0]
    return np.array(x, dtype=np.float32)


def nf4(x):
    packed, state = bnb.quantize_4bit(torch.from_numpy(x), blocksize=64, quant_type="nf4", compress_statistics=False)
    codes = []
    for byte in packed.reshape(-1).tolist():  # the first of two in the high half
        codes += [byte >> 4, byte & 15]
    wide = bnb.dequantize_4bit(packed, state)
    state.dtype = torch.bfloat16
    narrow = bnb.dequantize_4bit(packed, state)
    return {"values": bits(x), "codes": codes, "scales": bits(state.absmax.numpy()), "f32": bits(wide.numpy()),
            "bf16": bits(narrow.float().numpy())}


def q8_0(x):
    kind = gguf.GGMLQuantizationType.Q8_0
    raw = gguf.quants.quantize(x, kind).reshape(-1, 34)
    scales = raw[:, :2].copy().view(np.float16).astype(np.float32)
    return {"values": bits(x), "codes": raw[:, 2:].copy().view(np.int8).reshape(-1).tolist(), "scales": bits(scales),
            "f32": bits(gguf.quants.dequantize(raw, kind))}


x = weights()
text = json.dumps({"nf4": nf4(x), "q8_0": q8_0(x)}, separators=(",", ":")).replace('],"', '],\n"') + "\n"
if "--check" in sys.argv:
    sys.exit(0 if open(PATH).read() == text else f"{PATH} differs")
open(PATH, "w").write(text)
