#!/usr/bin/env python3
"""What bench_attention --save DIR wrote, all rows of it, against PyTorch in double precision, and against PyTorch's own bf16.

    bench_attention cuda --save DIR > LINES; tests/bench/torch_attention_check.py DIR LINES

A JSON line for each case: relative errors of o, lse, dq, dk, dv in the norm (`errors`), and of scaled_dot_product_attention in bf16
on the same operands (`torch_errors`): what rounding costs somebody else. Exit status 1 when one of ours is above 2^-7, as
tests/tolerance.h has it (SBP_TOLERANCE_BF16_LONG). On a GPU where torch has one.
"""
import json
import math
import os
import sys

import torch

LIMIT = 2.0 ** -7
device = "cuda" if torch.cuda.is_available() else "cpu"


def operands(path, line):
    heads, kv, d, rows = (line[key] for key in ("heads", "kv_heads", "head_dim", "rows"))
    data, at, out = open(path, "rb").read(), 0, {}
    bf16, f32, i32 = torch.bfloat16, torch.float32, torch.int32
    for name, dtype, columns in (("q", bf16, heads * d), ("k", bf16, kv * d), ("v", bf16, kv * d), ("do", bf16, heads * d), ("o", bf16, heads * d),
                                 ("lse", f32, heads), ("dq", bf16, heads * d), ("dk", f32, kv * d), ("dv", f32, kv * d),
                                 ("first", i32, 1), ("shared_end", i32, 1), ("own", i32, 1)):
        count = rows * columns
        flat = torch.frombuffer(bytearray(data[at:at + count * dtype.itemsize]), dtype=dtype).to(device)
        at += count * dtype.itemsize
        out[name] = flat.view(rows, -1, d) if columns % d == 0 and name != "lse" else flat.view(rows, -1)
    if at != len(data):
        raise SystemExit(f"{path}: {len(data)} bytes, expected {at}")
    return out


def mask(t):
    rows = t["first"].shape[0]
    key, row = torch.arange(rows, device=device)[None, :], torch.arange(rows, device=device)[:, None]
    return ((key >= t["own"]) & (key <= row)) | ((key >= t["first"]) & (key < t["shared_end"]))


def add(sums, name, found, expected):
    found, expected = found.double(), expected.double()
    error, norm = sums.get(name, (0.0, 0.0))
    sums[name] = (error + float(((found - expected) ** 2).sum()), norm + float((expected ** 2).sum()))


def check(t, line):
    group, scale, seen = line["heads"] // line["kv_heads"], 1 / math.sqrt(line["head_dim"]), mask(t)
    ours, theirs = {}, {}
    for kv in range(line["kv_heads"]):
        k, v = t["k"][:, kv].double(), t["v"][:, kv].double()
        dk, dv = torch.zeros_like(k), torch.zeros_like(v)
        torch_dk, torch_dv = torch.zeros_like(k), torch.zeros_like(v)
        for h in range(kv * group, (kv + 1) * group):
            q, d_o = t["q"][:, h].double(), t["do"][:, h].double()
            s = (q @ k.T * scale).masked_fill(~seen, -math.inf)
            lse = torch.logsumexp(s, 1)
            p = torch.exp(s - lse[:, None])
            del s
            o = p @ v
            ds = p * (d_o @ v.T - (d_o * t["o"][:, h].double()).sum(1, keepdim=True))
            dv += p.T @ d_o
            dk += scale * ds.T @ q
            dq = scale * ds @ k
            del p, ds
            for name, expected in (("o", o), ("dq", dq)):
                add(ours, name, t[name][:, h], expected)
            add(ours, "lse", t["lse"][:, h], lse)
            with torch.enable_grad():
                a, b, c = (x.detach().clone().requires_grad_() for x in (t["q"][:, h], t["k"][:, kv], t["v"][:, kv]))
                out = torch.nn.functional.scaled_dot_product_attention(a[None, None], b[None, None], c[None, None], attn_mask=seen[None, None])
                out.backward(t["do"][:, h][None, None])
            add(theirs, "o", out[0, 0].detach(), o)
            add(theirs, "dq", a.grad, dq)
            torch_dk += b.grad.double()
            torch_dv += c.grad.double()
        for sums, one, two in ((ours, t["dk"][:, kv], t["dv"][:, kv]), (theirs, torch_dk, torch_dv)):
            add(sums, "dk", one, dk)
            add(sums, "dv", two, dv)
    return tuple({name: math.sqrt(error / max(norm, 1e-30)) for name, (error, norm) in sums.items()} for sums in (ours, theirs))


def main():
    folder, lines = sys.argv[1:3]
    failed, checked, names = False, 0, []
    for line in map(json.loads, open(lines)):
        names += [line["attention"]] if line["attention"] not in names else []
        path = os.path.join(folder, f"{line['head_dim']}-{names.index(line['attention'])}.bin")
        if not os.path.exists(path):
            continue
        with torch.no_grad():
            t = operands(path, line)
            ours, theirs = check(t, line)
        wrong = not all(math.isfinite(x) and x <= LIMIT for x in ours.values())
        failed, checked = failed or wrong, checked + 1
        print(json.dumps({"torch_check": line["attention"], "head_dim": line["head_dim"], "rows": line["rows"], "torch": torch.__version__,
                          "device": device, "right": not wrong,
                          "errors": {k: float(f"{x:.3g}") if math.isfinite(x) else 1e30 for k, x in ours.items()},
                          "torch_errors": {k: float(f"{x:.3g}") for k, x in theirs.items()}}), flush=True)
    if not checked:
        raise SystemExit("nothing was saved there")
    return 1 if failed else 0


sys.exit(main())
