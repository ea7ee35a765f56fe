#!/usr/bin/env python3
"""Processor seconds and memory of a full step of a small model of a family, fp32: sbprun and transformers.

    tests/bench/family_step.py [--model qwen3_5] --python VENV/bin/python [--rows 1024,4096] [--build build/release]
    tests/bench/family_step.py --model qwen3_moe --python VENV/bin/python --torch-modes standard:grouped_mm,standard:batched_mm,standard:eager

qwen3_5 has 36 million parameters and states; granite 31 million, seven of its eight layers are Mamba-2; qwen3_moe has 47
million, 16 experts of which a token chooses 4. Forward, backward,
clipping, AdamW. Each measurement is two processes, of one step and of STEPS more: seconds are what lies between them, of the
processor (user), so that a busy machine changes little but what its caches hold, a step; memory is the peak of the second
process. With --repeat N every tool takes its turn N times, and the least counts. transformers runs the delta rule by its
own PyTorch code (its kernels are for GPUs), Mamba-2 likewise, with the standard backward and with checkpoints of layers; experts by the
implementation that is named behind the mode. Exit status 1 where losses of sbprun's modes over the same row and weights are more than 16
units in the last place of fp32 apart.
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time

FP32_EPSILON = 2**-23
COMMON = {
    "vocab_size": 8192,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "max_position_embeddings": 65536,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MODELS = {
    "qwen3_5": {
        **COMMON,
        "architectures": ["Qwen3_5ForCausalLM"],
        "head_dim": 64,
        "model_type": "qwen3_5_text",
        "intermediate_size": 1536,
        "num_hidden_layers": 8,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 8,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "linear_conv_kernel_dim": 4,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
    },
    "qwen3_moe": {
        **COMMON,
        "architectures": ["Qwen3MoeForCausalLM"],
        "head_dim": 64,
        "model_type": "qwen3_moe",
        "intermediate_size": 1536,
        "moe_intermediate_size": 256,
        "num_experts": 16,
        "num_experts_per_tok": 4,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "num_hidden_layers": 6,
        "router_aux_loss_coef": 0.0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    },
    "granite": {
        **COMMON,
        "architectures": ["GraniteMoeHybridForCausalLM"],
        "model_type": "granitemoehybrid",
        "intermediate_size": 512,
        "shared_intermediate_size": 1024,
        "num_hidden_layers": 8,
        "layer_types": ["mamba"] * 5 + ["attention"] + ["mamba"] * 2,
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "mamba_n_heads": 16,
        "mamba_d_head": 64,
        "mamba_n_groups": 1,
        "mamba_d_state": 128,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "position_embedding_type": "nope",
        "pad_token_id": 0,
    },
}


def torch_steps(folder, mode, steps):
    """In a process of its own."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.manual_seed(1)
    mode, _, experts = mode.partition(":")
    how = {"experts_implementation": experts} if experts else {}
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32, **how).train()
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


def measure(command, threads):
    """(user seconds, wall seconds, peak bytes, what it printed) of a process."""
    begin = time.monotonic()
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    with tempfile.TemporaryFile("w+") as printed:
        process = subprocess.Popen(command, stdout=printed, stderr=subprocess.DEVNULL, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        printed.seek(0)
        text = printed.read()
    process.returncode = 0
    if status != 0:
        raise SystemExit(f"{command}: status {status}")
    return usage.ru_utime, time.monotonic() - begin, usage.ru_maxrss * 1024, text


def step(command, steps, threads):
    """(user seconds of a step, wall seconds, peak bytes, what one step printed)."""
    one, more = measure(command(1), threads), measure(command(1 + steps), threads)
    return (more[0] - one[0]) / steps, (more[1] - one[1]) / steps, more[2], one[3]


def ours(options, folder, rows, mode):
    plan = os.path.join(folder, mode)
    threads = ["--threads", str(options.threads)]
    compile_it = [f"{options.build}/sbpc", "compile", folder, "-o", plan, "--seq-len", str(rows), "--backward", mode, *threads]
    subprocess.run(compile_it, check=True, stderr=subprocess.DEVNULL)
    run = [f"{options.build}/sbprun", plan, "--data", f"{folder}/rows.jsonl", "--weights", "random:1", *threads]
    run += ["--batch-size", "1", "--out", "none", "--json", "--steps"]
    return lambda steps: [*run, str(steps)]


def theirs(options, folder, mode):
    return lambda steps: [options.python, os.path.abspath(__file__), "--torch", folder, mode, str(steps)]


def report(options, folder, rows):
    commands = {f"sbprun, {mode}": ours(options, folder, rows, mode) for mode in options.modes.split(",")}
    commands |= {f"transformers, {mode}": theirs(options, folder, mode) for mode in options.torch_modes.split(",") if mode}
    taken = {name: [] for name in commands}
    for _ in range(options.repeat):
        for name, command in commands.items():
            taken[name].append(step(command, options.steps, options.threads))
    losses = []
    for name, times in taken.items():
        user, wall, peak, printed = min(times)
        if name.startswith("sbprun"):
            losses.append(json.loads(printed.splitlines()[-1])["train_loss"])
        print(f"{rows:6d} {name:32s} {user:8.2f} s user {wall:8.2f} s wall {peak / 2**20:8.0f} MiB", flush=True)
    apart = max(losses) - min(losses)
    right = apart <= 16 * FP32_EPSILON * max(losses)
    print(f"{'right' if right else 'WRONG'}: losses of {len(losses)} modes of sbprun are {apart:.1e} apart", flush=True)
    return right


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="qwen3_5", choices=sorted(MODELS))
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--rows", default="1024,4096")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1, help="between the two processes")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--modes", default="stream,checkpoint,standard", help="of sbprun")
    parser.add_argument("--torch-modes", default="standard,checkpoint")
    parser.add_argument("--torch", nargs=3, metavar=("FOLDER", "MODE", "STEPS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.torch:
        return torch_steps(options.torch[0], options.torch[1], int(options.torch[2]))
    config, right = MODELS[options.model], True
    for rows in map(int, options.rows.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            random.seed(rows)
            with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
                json.dump(config, file)
            with open(os.path.join(folder, "rows.jsonl"), "w", encoding="utf-8") as file:
                file.write(json.dumps({"input_ids": [random.randrange(config["vocab_size"]) for _ in range(rows)]}) + "\n")
            right = report(options, folder, rows) and right
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
