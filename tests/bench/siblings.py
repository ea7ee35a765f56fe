#!/usr/bin/env python3
"""What products of one input would gain as one product, by counting: no GPU, no time.

    tests/bench/siblings.py [CONFIG.json ...]        Qwen3 0.6B, 4B, 8B of tests/data/configs without arguments

A product [M, N] of depth K is cut into tiles, of which an H100 computes 132 at a time, one on each multiprocessor: a wave. Its time is
counted as waves x tile x K. What the library would choose is taken as the better of tiles of 128 x 256 and of 128 x 128, the latter
at 0.85 of the former's rate (assumed: half the reuse of what is in shared memory). Of each layer: q, k, v and gate, up alone or
joined, beside all seven products of a layer; forward (again in the backward pass), gradients of inputs and of weights.

Joined, the forward product is [C, Nq + Nk + Nv]; the gradient of the input is one product of that depth in place of two or three, of
which all but the first add to the result, which is read and written again (bytes below); that of the weights is [N.., K] of depth C.
"""
import json
import math
import sys
from pathlib import Path

PROCESSORS, TILES = 132, ((128, 256, 1.0), (128, 128, 0.85))
CHUNKS = (512, 1024, 2048, 4096, 8192)


def cost(m, n, k):
    """Of a tile of 1 x 1 on one multiprocessor at full rate, as many as one after the other."""
    return min(math.ceil(math.ceil(m / a) * math.ceil(n / b) / PROCESSORS) * a * b * k / rate for a, b, rate in TILES)


def layer(config):
    d, ffn = config["hidden_size"], config["intermediate_size"]
    head = config.get("head_dim") or d // config["num_attention_heads"]
    q, kv = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    # groups of siblings: widths, depth
    return [([q, kv, kv], d), ([d], q), ([ffn, ffn], d), ([d], ffn)]


def times(groups, c, joined):
    """Forward, gradients of inputs, gradients of weights."""
    out = [0.0, 0.0, 0.0]
    for widths, depth in groups:
        for n in [sum(widths)] if joined else widths:
            out[0] += cost(c, n, depth)
            out[1] += cost(c, depth, n)
            out[2] += cost(n, depth, c)
    return out


def main():
    paths = sys.argv[1:] or [Path(__file__).parent.parent / "data/configs" / f"Qwen3-{s}.json" for s in ("0.6B", "4B", "8B")]
    print("| model | C | q,k,v forward | gate,up forward | inputs' gradients | weights' | layer, with forward again | of full tiles |")
    print("|---|---|---|---|---|---|---|---|")
    for path in paths:
        config = json.loads(Path(path).read_text())
        groups = layer(config)
        for c in CHUNKS:
            apart, joined = times(groups, c, False), times(groups, c, True)
            pair = [times([g], c, False)[0] / times([g], c, True)[0] for g in (groups[0], groups[2])]
            whole = [2 * t[0] + t[1] + t[2] for t in (apart, joined)]
            full = sum(4 * c * n * k for widths, k in groups for n in widths) / PROCESSORS
            print(
                f"| {Path(path).stem} | {c} | {pair[0]:.2f} | {pair[1]:.2f} | {apart[1] / joined[1]:.2f} | "
                f"{apart[2] / joined[2]:.2f} | {whole[0] / whole[1]:.3f} | {full / whole[0]:.2f} to {full / whole[1]:.2f} |"
            )


if __name__ == "__main__":
    main()
