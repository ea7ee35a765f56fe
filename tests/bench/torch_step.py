"""One optimizer step of SmolLM2-135M's shape in PyTorch: what cpu_step and ./run-demo compare with.

    torch_step.py --rows 2048 --mode standard|checkpoint [--dtype fp32|bf16] [--config config.json] [--threads 2] [--limit-gib 22]

Random weights, random tokens, one document, transformers' Llama with scaled-dot-product attention, AdamW (fused). Weights are
fp32; bf16 is torch.autocast over forward and loss, as TRL trains with bf16.
Prints one JSON object: the faster of two steps, the peak of the process, and what stays resident (weights, gradients, Adam).
"""
import argparse
import json
import os
import resource
import time

parser = argparse.ArgumentParser()
parser.add_argument("--rows", type=int, required=True)
parser.add_argument("--mode", choices=("standard", "checkpoint"), default="standard")
parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
parser.add_argument("--config", default=os.path.join(os.path.dirname(__file__), "..", "data", "configs", "SmolLM2-135M.json"))
parser.add_argument("--threads", type=int, default=os.cpu_count())
parser.add_argument("--limit-gib", type=float, default=0, help="memory the process may map; 0: no limit")
arguments = parser.parse_args()
if arguments.limit_gib:
    limit = int(arguments.limit_gib * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

import torch  # noqa: E402  (after the limit)
import transformers  # noqa: E402

torch.set_num_threads(arguments.threads)
torch.manual_seed(1)
config = transformers.AutoConfig.for_model(**json.load(open(arguments.config, encoding="utf-8")))
config.use_cache = False
model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
model.train()
if arguments.mode == "checkpoint":
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, weight_decay=0.0, fused=True)
tokens = torch.randint(0, config.vocab_size, (1, arguments.rows))
seconds = []
for _ in range(2):
    began = time.perf_counter()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=arguments.dtype == "bf16"):
        loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    seconds.append(time.perf_counter() - began)
parameters = sum(p.numel() for p in model.parameters())
print(
    json.dumps(
        {
            "tool": f"torch {torch.__version__}, transformers {transformers.__version__}",
            "mode": arguments.mode,
            "dtype": arguments.dtype,
            "rows": arguments.rows,
            "threads": arguments.threads,
            "seconds": min(seconds),
            "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "resident_bytes": parameters * 16,
            "loss": loss.item(),
        }
    )
)
