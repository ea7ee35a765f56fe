#!/usr/bin/env python3
"""Exports of a new GPT of three layers, whose LayerNorms are all ones and whose biases are all zeros, beside torch in float64.

    tests/golden/check_onnx_ties.py [--build DIR] [--work DIR]

What is one tensor in torch is one parameter of the export, and nothing else is: with a tied head, with one of its own, and with one that
has the embedding's values, by each exporter of examples/export_model_json.py; gradients of all parameters within 1e-10. Exporters that
merge what is equal, as they do by themselves, must be noticed. Exit status 1 when something differs.

Needs torch, onnx, onnxscript, safetensors, transformers (for check_onnx_exports.py): a venv of its own.
"""
import argparse
import contextlib
import io
import os
import shutil
import sys
import warnings

import numpy
import torch

from check_onnx_exports import ROWS, TOP, gradients
from check_onnx_modules import exporter

EXPORTS = [("dynamo", True), ("dynamo", False), ("legacy", False)]


class Block(torch.nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = torch.nn.LayerNorm(d), torch.nn.LayerNorm(d)
        self.qkv, self.proj, self.up, self.down = (torch.nn.Linear(i, o) for i, o in [(d, 3 * d), (d, d), (d, 4 * d), (4 * d, d)])
        for linear in (self.qkv, self.proj, self.up, self.down):
            torch.nn.init.zeros_(linear.bias)

    def forward(self, x):
        t, d = x.shape[1:]
        q, k, v = (y.view(1, t, self.heads, d // self.heads).transpose(1, 2) for y in self.qkv(self.ln1(x)).chunk(3, -1))
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(1, t, d))
        return x + self.down(torch.nn.functional.gelu(self.up(self.ln2(x))))


class GPT(torch.nn.Module):
    def __init__(self, head, d=64):
        super().__init__()
        torch.manual_seed(1)
        self.emb, self.pos = torch.nn.Embedding(61, d), torch.nn.Embedding(128, d)
        self.blocks = torch.nn.ModuleList(Block(d, 4) for _ in range(3))
        self.ln_f, self.head = torch.nn.LayerNorm(d), torch.nn.Linear(d, 61, bias=False)
        if head == "copied":
            self.head.weight.data = self.emb.weight.data.clone()
        if head == "tied":
            self.head.weight = self.emb.weight

    def forward(self, input_ids):
        x = self.emb(input_ids) + self.pos(torch.arange(input_ids.shape[1]))[None]
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln_f(x))


def reference(head):
    m = GPT(head).double()
    generator = numpy.random.default_rng(7)
    rows = [torch.tensor(generator.integers(0, 61, n).tolist()) for n in ROWS]
    total = sum(torch.nn.functional.cross_entropy(m(ids[None])[0, :-1], ids[1:], reduction="sum") for ids in rows)
    (total / sum(n - 1 for n in ROWS)).backward()
    return {n: p.grad.numpy() for n, p in m.named_parameters(remove_duplicate=False)}, len(list(m.parameters()))


def off(got, want):
    """Of a parameter: as it is, or transposed; None where there is no such shape."""
    found = [numpy.linalg.norm(x - want) / numpy.linalg.norm(want) for x in (got, got.T) if x.shape == want.shape]
    return min(found, default=None)


def check(a, example, head, kind, keep):
    folder = os.path.join(a.work, f"{head}-{kind}-{keep}")
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.redirect_stdout(io.StringIO()):
        path = example.export(example.Logits(GPT(head).eval(), False), False, folder, 23 if kind == "dynamo" else 18, kind, keep)
    got, why = gradients(a.build, path, folder)
    if got is None:
        return f"BAD refused: {why}"
    want, count = reference(head)
    if len(got) != count or keep and not set(got) <= set(want):
        return f"BAD {len(got)} parameters of {count}"
    worst = max(min((d for n, g in got.items() if not keep or n == name for d in [off(g, w)] if d is not None), default=0.0) for name, w in want.items())
    return f"{'' if worst < 1e-10 else 'BAD '}{len(got)} parameters, {worst:.1e}"


def merged_is_noticed(a, kind, keep):
    """With exporters as they are."""
    example = exporter()
    example.kept_apart = contextlib.nullcontext
    try:
        return f"BAD {check(a, example, 'untied', kind, keep)}, not noticed"
    except SystemExit as why:
        return f"noticed: {str(why)[:90]}.."


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(TOP, "build", "release"))
    parser.add_argument("--work", default="/tmp/onnx-ties")
    a = parser.parse_args()
    warnings.filterwarnings("ignore")
    bad = 0
    for kind, keep in EXPORTS:
        for head in ("tied", "untied", "copied"):
            text = check(a, exporter(), head, kind, keep)
            bad += text.startswith("BAD")
            print(f"{head:8s} {kind:8s} names {'kept' if keep else 'not kept':10s} {text}", flush=True)
        text = merged_is_noticed(a, kind, keep)
        bad += text.startswith("BAD")
        print(f"{'merged':8s} {kind:8s} names {'kept' if keep else 'not kept':10s} {text}", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
