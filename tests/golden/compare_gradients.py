#!/usr/bin/env python3
"""Compares the gradients of two safetensors files, tensor by tensor: ||got - want|| / ||want||.

    compare_gradients.py GOT.safetensors WANT.safetensors [--tolerance 1e-5] [--all]

Fails (exit status 1) when a tensor is above the tolerance, not finite, missing, extra or of another shape. Standard
library only, so that it runs where the goldens were never made. For people; the tests have their own comparison.
"""

import argparse
import array
import json
import math
import struct
import sys


def read_values(dtype, data):
    if dtype in ("F64", "F32"):
        values = array.array("d" if dtype == "F64" else "f", data)
        if sys.byteorder == "big":
            values.byteswap()
        return values
    count = len(data) // 2
    if dtype == "F16":
        return struct.unpack(f"<{count}e", data)
    if dtype == "BF16":  # the upper half of a float32
        halves = struct.unpack(f"<{count}H", data)
        return struct.unpack(f"<{count}f", struct.pack(f"<{count}I", *(half << 16 for half in halves)))
    raise SystemExit(f"dtype {dtype} is no floating-point type known here")


def read_tensors(path):
    """name -> (shape, values)"""
    with open(path, "rb") as file:
        (header_bytes,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(header_bytes))
        body = file.read()
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        tensors[name] = entry["shape"], read_values(entry["dtype"], body[begin:end])
    return tensors


def relative_error(got, want):
    difference = math.sqrt(math.fsum((a - b) ** 2 for a, b in zip(got, want, strict=True)))
    size = math.sqrt(math.fsum(b * b for b in want))
    if size == 0.0:
        return 0.0 if difference == 0.0 else math.inf
    return difference / size


def compare(got, want):
    """A list of (error, name, remark), the worst first; an infinite error has a remark."""
    lines = []
    for name in sorted(got.keys() | want.keys()):
        if name not in got:
            lines.append((math.inf, name, "missing"))
        elif name not in want:
            lines.append((math.inf, name, "extra"))
        elif got[name][0] != want[name][0]:
            lines.append((math.inf, name, f"shape {got[name][0]}, expected {want[name][0]}"))
        else:
            error = relative_error(got[name][1], want[name][1])
            bad = "" if math.isfinite(error) else "not finite, or expected to be all zero"
            lines.append((error if not bad else math.inf, name, bad))
    return sorted(lines, key=lambda line: (-line[0], line[1]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("got")
    parser.add_argument("want")
    parser.add_argument("--tolerance", type=float, default=1e-5)
    parser.add_argument("--all", action="store_true", help="print every tensor, not only failures and the worst")
    options = parser.parse_args()
    lines = compare(read_tensors(options.got), read_tensors(options.want))
    if not lines:
        print("no tensors")
        return 1
    failures = [line for line in lines if not line[0] <= options.tolerance]
    for error, name, remark in lines if options.all else failures or lines[:1]:
        print(f"{error:9.2e}  {name}{'  ' + remark if remark else ''}")
    print(f"{len(lines)} tensors, {len(failures)} above {options.tolerance:g}; worst {lines[0][0]:.2e} {lines[0][1]}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
