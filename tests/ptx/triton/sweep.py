#!/usr/bin/env python3
"""Many more kernels than are committed: tiles, stages, warps, types and layouts drawn, compiled into a folder of cases.

sweep.py matmul|tma|attention|rows DIR COUNT [SEED]     then: for d in DIR/*; do test_ptx_triton $d; done
"""

import dataclasses
import pathlib
import random
import sys

import cases
import make_kernels


def drawn_matmul(pick, i):
    dtype = pick.choice(["bf16", "f16", "f32"])
    out = pick.choice([dtype, "f32"])
    error = {"f32": cases.SINGLE, "bf16": cases.BF16, "f16": cases.F16}[out] if dtype != "f32" else cases.TF32
    tile = pick.choice([16, 32, 64, 128]), pick.choice([16, 32, 64, 128]), pick.choice([16, 32, 64])
    shape = [max(1, t * pick.choice([1, 1, 2]) - pick.choice([0, 0, 1, 8, 16])) for t in tile[:2]]
    shape.append(pick.choice([16, 40, 64, 96, 112, 160]))
    pad = [pick.choice([0, 0, 8, 16]) for _ in range(3)]
    return cases.matmul(f"matmul_{i}", shape, tile, dtype, out, error, a_t=pick.random() < 0.4, b_t=pick.random() < 0.4,
                        pad=pad, stages=pick.randint(1, 5), warps=pick.choice([1, 2, 4, 4, 8]))


def drawn_tma(pick, i):
    dtype = pick.choice(["bf16", "f16"])
    tile = pick.choice([64, 64, 128]), pick.choice([16, 32, 64, 128]), pick.choice([16, 32, 64, 128])
    shape = [tile[0] * pick.choice([1, 2]) - pick.choice([0, 3, 8]), tile[1] * pick.choice([1, 2]) - pick.choice([0, 8]),
             pick.choice([16, 40, 64, 96, 136])]
    out = pick.choice([dtype, "f32"])
    error = {"f32": cases.SINGLE, "bf16": cases.BF16, "f16": cases.F16}[out]
    return cases.matmul_tma(f"tma_{i}", shape, tile, dtype, out, error, pick.random() < 0.5, stages=pick.randint(1, 4),
                            warps=pick.choice([4, 4, 8]))


def drawn_attention(pick, i):
    """One of the attention kernels, with other tiles and sizes than the committed ones."""
    case = pick.choice(list(cases.attention_cases(heads=pick.choice([1, 2]), count=pick.randint(3, 150),
                                                  d=pick.choice([16, 32, 64, 128]), tile=pick.choice([16, 32, 64, 128]),
                                                  step=pick.choice([16, 32, 64]))))
    return renamed(case, f"{case.name}_{i}", pick)


def drawn_rows(pick, i):
    case = pick.choice([cases.softmax, cases.layer_norm, cases.rms_norm_backward, cases.cross_entropy])(
        count=pick.randint(1, 20), columns=pick.choice([2, 17, 64, 127, 200, 256, 1000]))
    return renamed(case, f"{case.name}_{i}", pick)


def renamed(case, name, pick):
    return dataclasses.replace(case, name=name, warps=pick.choice([1, 2, 4, 4, 8]), stages=pick.randint(1, 4))


KINDS = {"matmul": drawn_matmul, "tma": drawn_tma, "attention": drawn_attention, "rows": drawn_rows}


def main(kind, folder, count, seed=1):
    pick = random.Random(seed)
    for i in range(count):
        case = KINDS[kind](pick, i)
        for arch in case.archs:
            target = pathlib.Path(folder) / f"{case.name}_{arch}"
            target.mkdir(parents=True, exist_ok=True)
            make_kernels.written(case, arch, target)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
