#!/usr/bin/env python3
"""PyTorch's scaled_dot_product_attention at the shapes of bench_throughput --model 8b, as JSON lines; timed with events.

    tests/bench/torch_attention.py [--tiny]

Useful operations count: 4 T^2/2 heads head_dim forward, 10 backward. Keys are repeated for the heads of a group where the
backend does not do it itself (enable_gqa).
"""
import argparse
import json

import torch
from torch.nn.functional import scaled_dot_product_attention

parser = argparse.ArgumentParser()
parser.add_argument("--tiny", action="store_true")
tiny = parser.parse_args().tiny
device = "cuda" if torch.cuda.is_available() else "cpu"


def seconds(run, repeat=10):
    if device == "cpu":
        import time
        begun = time.perf_counter()
        run()
        return time.perf_counter() - begun
    for _ in range(3):
        run()
    times = []
    for _ in range(repeat):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return sorted(times)[len(times) // 2]


for rows in [64] if tiny else [4096, 16384, 32768]:
    heads, kv_heads, d = (4, 2, 64) if tiny else (32, 8, 128)
    q = torch.randn(1, heads, rows, d, device=device, dtype=torch.bfloat16, requires_grad=True)
    k, v = (torch.randn(1, kv_heads, rows, d, device=device, dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
    forward = seconds(lambda: scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True))
    out = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    gradient = torch.randn_like(out)
    backward = seconds(lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True))
    pairs = rows * rows / 2 * heads * d
    print(json.dumps({"tool": f"torch {torch.__version__} sdpa", "rows": rows, "heads": heads, "kv_heads": kv_heads, "d": d,
                      "forward_ms": forward * 1e3, "backward_ms": backward * 1e3,
                      "forward_gflops": 4 * pairs / forward / 1e9, "backward_gflops": 10 * pairs / backward / 1e9}), flush=True)
