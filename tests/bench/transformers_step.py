#!/usr/bin/env python3
"""A step of transformers with gradient checkpointing and sdpa on one GPU, random weights in bf16: seconds, peak memory.

    tests/bench/transformers_step.py --model DIR --tokens N [--steps 3]

DIR has a config.json. Forward and backward of one row, then SGD without momentum, which needs no states; figures of the
fastest step. "Out of memory" is a result too.
"""
import argparse
import json
import time

import torch
from transformers import AutoConfig, AutoModelForCausalLM, __version__

parser = argparse.ArgumentParser()
parser.add_argument("--model", required=True)
parser.add_argument("--tokens", type=int, required=True)
parser.add_argument("--steps", type=int, default=3)
a = parser.parse_args()
device = "cuda" if torch.cuda.is_available() else "cpu"
config = AutoConfig.from_pretrained(a.model)
torch.manual_seed(1)
with torch.device(device):
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
model.gradient_checkpointing_enable()
model.train()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
ids = torch.randint(config.vocab_size, (1, a.tokens), device=device)
result = {"tool": f"transformers {__version__}, torch {torch.__version__}", "tokens": a.tokens}
try:
    times = []
    for _ in range(a.steps):
        begun = time.perf_counter()
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        result["loss"] = loss.item()
        times.append(time.perf_counter() - begun)
    result["seconds"] = min(times)
except torch.cuda.OutOfMemoryError:
    result["seconds"] = None
    result["error"] = "out of memory"
if device == "cuda":
    result["peak_bytes"] = torch.cuda.max_memory_allocated()
print(json.dumps(result))
