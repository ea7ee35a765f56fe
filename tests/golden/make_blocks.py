#!/usr/bin/env python3
"""What transformers makes of weights in MXFP4 and FP8: tests/data/io/blocks.safetensors, read by tests/unit/test_formats.c.

    python3 tests/golden/make_blocks.py            # writes; --check: compares

mxfp4: convert_moe_packed_tensors in bf16, whose result [E, in, out] is kept as `<name>`, beside <name>_blocks and
<name>_scales: every code with every scale up to 252, the largest of which all codes are finite. fp8: Fp8Dequantize in bf16,
`<name>.bf16` beside <name>.weight and <name>.weight_scale_inv; of `blocks` only rows 120 to 135, where the scale changes;
of `fused`, experts in one tensor, <name> and <name>_scale_inv."""
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

PATH = "tests/data/io/blocks.safetensors"
draw = torch.Generator().manual_seed(26)
tensors = {}


def mxfp4(name, blocks, scales):
    tensors.update({f"{name}_blocks": blocks, f"{name}_scales": scales,
                    name: convert_moe_packed_tensors(blocks, scales, dtype=torch.bfloat16)})


def fp8(name, weight, scales, rows=slice(None), end=".weight"):
    got = Fp8Dequantize(None)._dequantize_one(weight, scales, output_dtype=torch.bfloat16)
    tensors.update({name + end: weight, f"{name}{end}_scale_inv": scales, f"{name}.bf16": got[rows].contiguous()})


def codes(*shape):
    """Every code but the two that are no numbers."""
    bytes = torch.randint(0, 254, shape, generator=draw)
    flat = bytes.view(-1)
    flat[:254] = torch.arange(254)[:flat.numel()]
    return (bytes + (bytes >= 127)).to(torch.uint8).view(torch.float8_e4m3fn)


every = torch.arange(16, dtype=torch.uint8)
mxfp4("every", (every | every.flip(0) << 4).expand(11, 23, 1, 16).contiguous(),
      torch.arange(253, dtype=torch.uint8).reshape(11, 23, 1))
mxfp4("experts.gate_up_proj", torch.randint(0, 256, (2, 6, 3, 16), generator=draw, dtype=torch.uint8),
      torch.randint(118, 130, (2, 6, 3), generator=draw, dtype=torch.uint8))
fp8("blocks", codes(256, 128), torch.rand(2, 1, generator=draw) * 0.01, slice(120, 136))
fp8("wide", codes(3, 256), torch.rand(1, 2, generator=draw).to(torch.bfloat16))
fp8("small", codes(6, 45), torch.rand(3, 5, generator=draw) * 1e-3)
fp8("narrow", codes(3, 128), torch.rand(1, 2, generator=draw))
fp8("one", codes(2, 128), torch.tensor(0.37))
fp8("fused", codes(3, 4, 128), torch.rand(3, 2, 1, generator=draw) * 0.01, end="")  # gates, ups: scales of their own
fp8("fused_small", codes(2, 6, 10), torch.rand(2, 3, 5, generator=draw) * 1e-3, end="")
fp8("powers", codes(4, 256), torch.tensor([[3, 127], [120, 130]], dtype=torch.uint8).view(torch.float8_e8m0fnu))

if "--check" in sys.argv:
    found = load_file(PATH)
    same = found.keys() == tensors.keys() and all(
        torch.equal(found[k].reshape(-1).view(torch.uint8), tensors[k].reshape(-1).view(torch.uint8)) for k in found)
    sys.exit(0 if same else f"{PATH} differs")
save_file(tensors, PATH)
