#!/usr/bin/env python3
"""Processor seconds and memory of a full step of a small hybrid, fp32: sbprun and transformers. --family qwen3_5: a Qwen3.5 of
36 million parameters; granite: a Granite 4 hybrid of 31 million, seven of whose eight layers are Mamba-2.

    tests/bench/hybrid_step.py --python VENV/bin/python [--family granite] [--rows 1024,4096] [--repeat 3] [--build build/release]

Forward, backward, clipping, AdamW, on one thread. Each measurement is two processes, of one step and of two: seconds are what
lies between them, of the processor (user), so that a busy machine changes little but what its caches hold; memory is the peak of
the second process. transformers runs the delta rule by its own PyTorch code (its kernels are for GPUs), with the standard
backward and with checkpoints of layers; likewise Mamba-2. --repeat: so many times all of it in turn, and the least of each.
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time

GRANITE = {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "model_type": "granitemoehybrid",
    "vocab_size": 8192,
    "hidden_size": 512,
    "intermediate_size": 512,
    "shared_intermediate_size": 1024,
    "num_hidden_layers": 8,
    "layer_types": ["mamba"] * 5 + ["attention"] + ["mamba"] * 2,
    "num_local_experts": 0,
    "num_experts_per_tok": 0,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "mamba_n_heads": 16,
    "mamba_d_head": 64,
    "mamba_n_groups": 1,
    "mamba_d_state": 128,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "hidden_act": "silu",
    "max_position_embeddings": 65536,
    "rms_norm_eps": 1e-6,
    "position_embedding_type": "nope",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
QWEN = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "vocab_size": 8192,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
    "hidden_act": "silu",
    "max_position_embeddings": 65536,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def torch_steps(folder, mode, steps):
    """In a process of its own."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32).train()
    if mode == "checkpoint":
        model.gradient_checkpointing_enable()
    with open(os.path.join(folder, "rows.jsonl"), encoding="utf-8") as file:
        ids = torch.tensor([json.loads(file.readline())["input_ids"]])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.0)
    for _ in range(steps):
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def measure(command):
    """(user seconds, wall seconds, peak bytes) of a process."""
    begin = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = 0
    if status != 0:
        raise SystemExit(f"{command}: status {status}")
    return usage.ru_utime, time.monotonic() - begin, usage.ru_maxrss * 1024


def report(best, name, rows, command):
    """The least of what was measured so far under this name."""
    one, two = measure(command(1)), measure(command(2))
    now = (two[0] - one[0], two[1] - one[1], two[2])
    best[name] = tuple(map(min, best.get(name, now), now))
    user, wall, peak = best[name]
    print(f"{rows:6d} {name:24s} {user:8.2f} s user {wall:8.2f} s wall {peak / 2**20:8.0f} MiB", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--family", default="qwen3_5", choices=["qwen3_5", "granite"])
    parser.add_argument("--rows", default="1024,4096")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--modes", default="stream,checkpoint,standard", help="of sbprun")
    parser.add_argument("--torch-modes", default="standard,checkpoint")
    parser.add_argument("--torch", nargs=3, metavar=("FOLDER", "MODE", "STEPS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.torch:
        return torch_steps(options.torch[0], options.torch[1], int(options.torch[2]))
    config = GRANITE if options.family == "granite" else QWEN
    for rows in map(int, options.rows.split(",")):
        best = {}
        with tempfile.TemporaryDirectory() as folder:
            random.seed(rows)
            with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
                json.dump(config, file)
            with open(os.path.join(folder, "rows.jsonl"), "w", encoding="utf-8") as file:
                file.write(json.dumps({"input_ids": [random.randrange(config["vocab_size"]) for _ in range(rows)]}) + "\n")
            for mode in options.modes.split(","):
                plan = os.path.join(folder, mode)
                compile_it = [f"{options.build}/sbpc", "compile", folder, "-o", plan, "--seq-len", str(rows), "--threads", "1"]
                subprocess.run([*compile_it, "--backward", mode], check=True, stderr=subprocess.DEVNULL)
            for _ in range(options.repeat):
                for mode in options.modes.split(","):
                    run = [f"{options.build}/sbprun", os.path.join(folder, mode), "--data", f"{folder}/rows.jsonl"]
                    run += ["--weights", "random:1", "--threads", "1", "--batch-size", "1", "--out", "none", "--steps"]
                    report(best, f"sbprun, {mode}", rows, lambda steps, run=run: [*run, str(steps)])
                for mode in filter(None, options.torch_modes.split(",")):
                    torch = [options.python, os.path.abspath(__file__), "--torch", folder, mode]
                    report(best, f"transformers, {mode}", rows, lambda steps, torch=torch: [*torch, str(steps)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
