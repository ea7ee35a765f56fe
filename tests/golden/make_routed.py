#!/usr/bin/env python3
"""Rows that say which experts their tokens go to (tests/data/routed), and gradients by transformers in float64 with them.

    tests/golden/make_routed.py

Models and rows are those of golden cases. Ids are random, so that no router would choose them, and the balancing loss is left out; the first row has none for its last
token, as samplers return them, and the second row has none at all. The reference is transformers with torch.topk of its routers
replaced: the ids of the row, and the scores at them. It is checked first: without ids it has the gradients of the case (1e-12), where
these have no balancing loss.
"""
import json
import pathlib
import random

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

HERE = pathlib.Path(__file__).resolve().parent
OUT = HERE.parent / "data/routed"
CASES = {"qwen3_moe": "qwen3_moe_balanced", "gpt_oss": "gpt_oss_balanced", "deepseek_v3": "deepseek_v3_groups", "mixtral": "mixtral_v"}
topk = torch.topk
single = torch.float32


def name_in_files(name, g, stored):
    """A parameter's gradient under the names of the files, which have experts one by one."""
    if name in stored:
        return {name: g}
    old = any(".w1." in k for k in stored)
    if old:
        name = name.replace(".mlp.", ".block_sparse_moe.")
    if name in stored:
        return {name: g}
    base, kind = name.rsplit(".", 1)
    down, gate, up = ("w2", "w1", "w3") if old else ("down_proj", "gate_proj", "up_proj")
    parts = {down: g} if kind == "down_proj" else dict(zip((gate, up), g.chunk(2, 1)))
    return {f"{base}.{e}.{part}.weight": x[e] for part, x in parts.items() for e in range(g.shape[0])}


def load(path):
    torch.float32 = torch.float = single
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager")
    model.config.output_router_logits = False
    model.eval().double()
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    for m in model.modules():
        if hasattr(m, "inv_freq"):
            plain = m.rope_type == "default"
            m.inv_freq = (m.compute_default_rope_parameters(m.config) if plain else ROPE_INIT_FUNCTIONS[m.rope_type](m.config, None))[0]
    return model


def gradients(model, rows, experts, chosen, stored):
    """experts, chosen: of the model. Gradients, and the number of layers with experts."""
    calls = 0
    given = None

    def replaced(x, k, *rest, **named):
        nonlocal calls
        values, index = topk(x, k, *rest, **named)
        if (x.shape[-1], k) != (experts, chosen):
            return values, index
        if given is not None:
            ids = torch.tensor([token[calls] for token in given])
            index = torch.cat([ids, index[len(ids):]])
            values = x.gather(-1, index)
        calls += 1
        return values, index

    torch.topk = replaced
    model.zero_grad()
    total, count = 0, 0
    for row in rows:
        calls, given = 0, row.get("routed_experts")
        ids, labels = torch.tensor([row["input_ids"]]), torch.tensor(row["labels"])[1:]
        logp = torch.log_softmax(model(ids).logits[0], -1)[:-1]
        counted = labels >= 0
        total = total - logp[counted].gather(1, labels[counted][:, None]).sum()
        count += int(counted.sum())
    (total / count).backward()
    torch.topk = topk
    out = {}
    for name, p in model.named_parameters():
        if p.grad is not None:
            out.update(name_in_files(name, p.grad, stored))
    return out, calls


def main():
    OUT.mkdir(exist_ok=True)
    for name, case in CASES.items():
        stored = load_file(HERE / case / "grads.safetensors")
        rows = [json.loads(line) for line in (HERE / case / "train.jsonl").read_text().splitlines()]
        model = load(HERE / case / "model")
        c = model.config
        experts = getattr(c, "num_local_experts", None) or getattr(c, "num_experts", None) or c.n_routed_experts
        chosen = c.num_experts_per_tok
        got, layers = gradients(model, rows, experts, chosen, stored)
        worst = max(float((got[k] - g).norm() / max(g.norm(), 1e-30)) for k, g in stored.items())
        assert worst < 1e-12 or "balanced" in case, worst
        rng = random.Random(7)
        for number, row in enumerate(rows):
            count = len(row["input_ids"]) - (number == 0)
            if number != 1:
                row["routed_experts"] = [[rng.sample(range(experts), chosen) for _ in range(layers)] for _ in range(count)]
        got, _ = gradients(model, rows, experts, chosen, stored)
        assert got.keys() == stored.keys(), got.keys() ^ stored.keys()
        save_file({k: g.contiguous().clone() for k, g in got.items()}, OUT / f"{name}.safetensors")
        (OUT / f"{name}.jsonl").write_text("".join(json.dumps(r, separators=(",", ":")) + "\n" for r in rows))
        print(f"{name}: {layers} layers, {chosen} of {experts} experts; without ids {worst:.1e} from the case")


if __name__ == "__main__":
    main()
