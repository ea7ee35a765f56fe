#!/usr/bin/env python3
"""Compiles the kernels of this folder with Triton (no GPU needed) and writes cases/: PTX that somebody else's compiler made,
inputs, and what must come out, computed here in float64. README.md says what a case holds.

make_kernels.py [NAME ...]     write these cases (default: all, in place of what is there)
"""

import os

os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"

import json
import pathlib
import re
import shutil
import sys

import numpy as np
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import cases

HERE = pathlib.Path(__file__).resolve().parent
ARCHS = {"sm80": 80, "sm90a": 90}
BYTES = {"bf16": 2, "f16": 2, "f32": 4, "i32": 4, "i8": 1, "e4m3": 1}


def encoded(values, dtype):
    """The bytes of an array in a format, rounded to nearest even."""
    if dtype == "e4m3":
        return cases.e4m3_codes(values).tobytes()
    if dtype == "bf16":
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16).tobytes()
    return np.ascontiguousarray(values, cases.NUMPY[dtype]).tobytes()


def compiled(case, arch):
    """PTX text and metadata of a case's kernel for one architecture."""
    signature, constants, attributes = {}, {}, {}
    for i, (name, arg) in enumerate(case.args.items()):
        signature[name] = arg.triton_type()
        if isinstance(arg, cases.Constant):
            constants[name] = arg.value
        elif arg.divisible():
            attributes[(i,)] = [["tt.divisibility", 16]]
    source = ASTSource(case.kernel, signature, constants, attributes)
    options = {"num_warps": case.warps, "num_stages": case.stages}
    kernel = triton.compile(source, target=GPUTarget("cuda", ARCHS[arch], 32), options=options)
    return kernel.asm["ptx"], kernel.metadata


def tidy(ptx):
    """Without debugging information and blank lines, which no machine reads."""
    ptx = re.split(r"^\t\.section\t", ptx, maxsplit=1, flags=re.MULTILINE)[0]
    kept = [line.rstrip() for line in ptx.splitlines() if not re.match(r"\s*(\.file|\.loc)\b|\s*$|\s*//|\$L__tmp", line)]
    return "\n".join(re.sub(r"\s+//.*", "", line) for line in kept) + "\n"


SWIZZLES = {0: 0, 1: 32, 2: 64, 3: 128}  # CUtensorMapSwizzle


def written(case, arch, folder):
    """One case folder."""
    ptx, metadata = compiled(case, arch)
    ptx = tidy(ptx)
    (folder / "kernel.ptx").write_text(ptx)
    maps = iter(metadata.tensordesc_meta or [])
    buffers, args, expect = [], [], {}

    def buffer_of(name, arg):
        buffer = {}
        if arg.values is None:
            buffer["bytes"] = int(np.prod(arg.shape)) * BYTES[arg.dtype]
        else:
            buffer["file"] = f"{name}.bin"
            (folder / buffer["file"]).write_bytes(encoded(arg.values, arg.dtype))
        if arg.want is not None:
            buffer["out"] = f"{name}.bin"
            expect[name] = {"dtype": arg.dtype, "shape": list(arg.shape), "tol": arg.error}
            (folder / f"want_{name}.bin").write_bytes(encoded(arg.want, "f32"))
        buffers.append(buffer)
        return len(buffers) - 1

    for name, arg in case.args.items():
        short = name.removesuffix("_ptr").removesuffix("_map")
        if isinstance(arg, cases.Buffer):
            args.append({"buffer": buffer_of(short, arg)})
        elif isinstance(arg, cases.Scalar):
            args.append({"f32": arg.value} if isinstance(arg.value, float) else {"u32": arg.value})
        elif isinstance(arg, cases.Map):
            meta, rows = next(maps), list(arg.buffer.shape)
            strides = [BYTES[arg.buffer.dtype] * int(np.prod(rows[d:])) for d in range(1, len(rows))]
            args.append({"tensor_map": {"buffer": buffer_of(short, arg.buffer), "dtype": arg.buffer.dtype,
                                        "dims": rows[::-1], "strides": strides[::-1],
                                        "box": list(meta["block_size"])[::-1], "swizzle": SWIZZLES[meta["swizzle"]]}})
            args.extend({"u32": d} for d in rows)
            args.extend({"u64": int(np.prod(rows[d:]))} for d in range(1, len(rows) + 1))
    args.extend([{"u64": 0}, {"u64": 0}])  # scratch memory that these kernels do not ask for
    assert metadata.global_scratch_size == 0 and metadata.profile_scratch_size == 0
    threads = int(re.search(r"\.reqntid (\d+)", ptx).group(1))
    assert len(args) == len(re.findall(r"^\s*\.param ", ptx, re.MULTILINE)), (case.name, len(args))
    record = {"ptx": "kernel.ptx", "entry": metadata.name, "grid": list(case.grid), "block": [threads, 1, 1],
              "shared": metadata.shared, "buffers": buffers, "args": args}
    (folder / "case.json").write_text(json.dumps(record) + "\n")
    (folder / "expect.json").write_text(json.dumps(expect) + "\n")


def main(names):
    for case in cases.all_cases():
        for arch in case.archs:
            name = f"{case.name}_{arch}"
            if names and name not in names:
                continue
            folder = HERE / "cases" / name
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            written(case, arch, folder)
            size = sum(f.stat().st_size for f in folder.iterdir())
            print(f"{name}: {size // 1024} KiB, of PTX {(folder / 'kernel.ptx').stat().st_size // 1024}")


if __name__ == "__main__":
    main(sys.argv[1:])
