#!/usr/bin/env python3
"""GRPO with a sampler of your own: transformers writes stories, a rule rewards them, sbprun trains, and the next stories are
written by the new weights.

    examples/grpo_loop.py [--sbprun build/release/sbprun] [--model tests/data/stories260K] [--out grpo-loop]

sbprun reads rollouts from standard input. A line {"end_of_step": true} makes it take a step; it then writes the weights to
OUT/weights/step-N and answers with {"published": N, "path": ..}. The reward here is a property of the text that is easy to see:
the share of its characters that are the letter --letter. 50 steps of the model of 260 k parameters take some minutes on two cores. Prints the
mean reward of each step, draws it to OUT/reward.png (if there is matplotlib) and OUT/reward.json, and exits with 1 unless the mean of
the last ten steps is two standard errors above that of the first ten. The same seed gives the same numbers.
"""
import argparse
import json
import math
import pathlib
import statistics
import subprocess
import sys

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROMPTS = ["Once upon a time", "One day", "Tom and Lily", "The little dog"]


def rollouts(model, tokenizer, prompt, a):
    """A group: answers to one prompt."""
    asked = torch.tensor([[tokenizer.bos_token_id or 1] + tokenizer(prompt, add_special_tokens=False)["input_ids"]])
    with torch.no_grad():
        out = model.generate(asked, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, num_return_sequences=a.group, max_new_tokens=a.tokens,
                             eos_token_id=None, pad_token_id=0)
    return [(asked[0].tolist(), row[asked.shape[1]:].tolist()) for row in out]


def reward(text, letter):
    return text.lower().count(letter) / max(1, len(text))


def draw(path, rewards):
    try:
        import matplotlib
    except ImportError as missing:
        print(f"not drawn: {missing}")
        return
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    figure, axes = plt.subplots(figsize=(7, 4))
    axes.plot(range(1, len(rewards) + 1), rewards, marker=".", label="mean reward of the step")
    smooth = [statistics.fmean(rewards[max(0, i - 9):i + 1]) for i in range(len(rewards))]
    axes.plot(range(1, len(rewards) + 1), smooth, linewidth=2.5, label="mean of the last ten")
    axes.set_xlabel("step")
    axes.set_ylabel("reward")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sbprun", default=ROOT / "build/release/sbprun")
    parser.add_argument("--model", default=ROOT / "tests/data/stories260K")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("grpo-loop"))
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--group", type=int, default=8, help="answers to each prompt")
    parser.add_argument("--tokens", type=int, default=32, help="of an answer")
    parser.add_argument("--lr", default="3e-4")
    parser.add_argument("--beta", default="0.1", help="above 0: stay near the model that the loop began with")
    parser.add_argument("--letter", default="e")
    parser.add_argument("--seed", type=int, default=1)
    a = parser.parse_args()
    torch.manual_seed(a.seed)
    torch.set_num_threads(1)
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(pathlib.Path(a.model) / "tokenizer.json"))
    a.out.mkdir(parents=True, exist_ok=True)
    trainer = subprocess.Popen(
        [a.sbprun, a.model, "--objective", "grpo", "--data", "-", "--seq-len", "2048", "--steps", str(a.steps), "--schedule", "constant",
         "--lr", a.lr, "--beta", a.beta, "--publish", a.out / "weights", "--out", a.out / "run", "--overwrite"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=open(a.out / "sbprun.log", "w"), text=True)
    model = AutoModelForCausalLM.from_pretrained(a.model, dtype=torch.float32).eval()
    rewards, shown = [], ""
    for step in range(1, a.steps + 1):
        given = []
        for number, prompt in enumerate(PROMPTS):
            group = rollouts(model, tokenizer, prompt, a)
            texts = [tokenizer.decode(answer) for _, answer in group]
            # the advantages of a group are made of its rewards by sbprun; log-probabilities of the sampler are only needed
            # where its weights are not those of the last step
            for (asked, answer), text in zip(group, texts):
                given.append(reward(text, a.letter))
                row = {"prompt_ids": asked, "completion_ids": answer, "reward": given[-1], "group": number}
                trainer.stdin.write(json.dumps(row) + "\n")
            shown = prompt + texts[0]
        trainer.stdin.write('{"end_of_step": true}\n')
        trainer.stdin.flush()
        line = trainer.stdout.readline()
        if not line:
            sys.exit(f"sbprun ended: see {a.out / 'sbprun.log'}")
        # strict=False: a tied head is not in the file; large models are in several (model.safetensors.index.json)
        model.load_state_dict(load_file(pathlib.Path(json.loads(line)["path"]) / "model.safetensors"), strict=False)
        rewards.append(statistics.fmean(given))
        print(f"step {step:3}  mean reward {rewards[-1]:.4f}  {shown[:70]!r}", flush=True)
    trainer.stdin.close()
    if trainer.wait() != 0:
        sys.exit(f"sbprun failed: see {a.out / 'sbprun.log'}")
    n = min(10, a.steps // 2)
    first, last = rewards[:n], rewards[-n:]
    error = math.sqrt((statistics.variance(first) + statistics.variance(last)) / n)
    gain = statistics.fmean(last) - statistics.fmean(first)
    result = {"rewards": rewards, "first": statistics.fmean(first), "last": statistics.fmean(last), "standard_error": error}
    (a.out / "reward.json").write_text(json.dumps(result) + "\n")
    draw(a.out / "reward.png", rewards)
    print(f"mean reward of the first {n} steps {result['first']:.4f}, of the last {n} {result['last']:.4f}: {gain / error:.1f} standard errors more")
    sys.exit(not gain > 2 * error)


if __name__ == "__main__":
    main()
