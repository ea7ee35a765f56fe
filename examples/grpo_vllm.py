#!/usr/bin/env python3
"""GRPO with vLLM as the sampler and a plain function as the reward: vLLM answers, the function rates, sbprun trains an adapter, and
vLLM loads it for the next answers.

    VLLM_ALLOW_RUNTIME_LORA_UPDATING=True vllm serve Qwen/Qwen3-0.6B --enable-lora --max-lora-rank 16 \\
        --logprobs-mode processed_logprobs
    examples/grpo_vllm.py --model Qwen/Qwen3-0.6B [--url http://127.0.0.1:8000] [--reward FILE.py:FUNCTION] [--prompts FILE]

Both see the adapters as files, so --out lies where both can read. A row that sbprun gets is {"prompt_ids", "completion_ids",
"logprobs", "reward", "group"}: by the log-probabilities that vLLM sampled with, the difference from the trainer's is corrected.
{"end_of_step": true} makes sbprun take a step, write the adapter to OUT/weights/step-N and say so in a line.
Needs the standard library only.
"""
import argparse
import importlib.util
import json
import pathlib
import subprocess
import sys
import urllib.request

PROMPTS = ["Write a short sentence about the sea.", "Name three animals.", "Say good morning.", "What is a tree?"]


def brevity(prompt, answer):
    """The reward: any function of texts to a number. This one likes answers of about 100 characters."""
    return 1 / (1 + abs(len(answer) - 100) / 100)


def load(name):
    path, _, function = name.partition(":")
    spec = importlib.util.spec_from_file_location("reward", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, function or "reward")


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        return answer.read()


def sample(a, name, prompt):
    """A group: answers to one prompt, as token ids with log-probabilities, and as texts."""
    answer = json.loads(post(f"{a.url}/v1/completions", {
        "model": name, "prompt": prompt, "n": a.group, "max_tokens": a.tokens, "temperature": 1.0, "logprobs": 1,
        "return_token_ids": True}))
    for choice in answer["choices"]:
        yield choice["prompt_token_ids"], choice["token_ids"], choice["logprobs"]["token_logprobs"], choice["text"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="for both")
    parser.add_argument("--served", help="what vLLM calls it, if otherwise")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--reward", type=load, default=brevity, metavar="FILE.py:FUNCTION")
    parser.add_argument("--prompts", type=pathlib.Path, help="a prompt in each line")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("grpo-vllm"))
    parser.add_argument("--sbprun", default="sbprun")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--group", type=int, default=8, help="answers to each prompt")
    parser.add_argument("--tokens", type=int, default=128, help="of an answer, at most")
    parser.add_argument("--seq-len", type=int, default=8192, help="rows that sbprun has at a time")
    a, more = parser.parse_known_args()  # the others are sbprun's
    prompts = a.prompts.read_text().splitlines() if a.prompts else PROMPTS
    a.out = a.out.resolve()
    a.out.mkdir(parents=True, exist_ok=True)
    trainer = subprocess.Popen(
        [a.sbprun, a.model, "--objective", "grpo", "--data", "-", "--lora", "r=16,alpha=32,targets=all-linear", "--lr", "1e-5",
         "--seq-len", str(a.seq_len), "--steps", str(a.steps), "--publish", a.out / "weights", "--out", a.out / "run",
         "--overwrite", *more],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    name = a.served or a.model
    for step in range(1, a.steps + 1):
        rewards = []
        for group, prompt in enumerate(prompts):
            for asked, answer, logprobs, text in sample(a, name, prompt):
                rewards.append(a.reward(prompt, text))
                trainer.stdin.write(json.dumps({"prompt_ids": asked, "completion_ids": answer, "logprobs": logprobs,
                                                "reward": rewards[-1], "group": group}) + "\n")
        trainer.stdin.write('{"end_of_step": true}\n')
        trainer.stdin.flush()
        line = trainer.stdout.readline()
        if not line:
            sys.exit("sbprun ended: what it said stands above")
        before, name = name, f"step-{step}"
        post(f"{a.url}/v1/load_lora_adapter", {"lora_name": name, "lora_path": json.loads(line)["path"]})
        if step > 1:
            post(f"{a.url}/v1/unload_lora_adapter", {"lora_name": before})
        print(f"step {step:3}  mean reward {sum(rewards) / len(rewards):.4f}", flush=True)
    trainer.stdin.close()
    sys.exit(trainer.wait())


if __name__ == "__main__":
    main()
