#!/usr/bin/env python3
"""GRPO on questions with a number as their answer, in one command: sbprun samples answers, this file rewards them, sbprun trains.

    examples/grpo_gsm8k.py MODEL GSM8K.jsonl [--sbprun build/release/sbprun] [--out grpo-gsm8k] [options of sbprun ..]

GSM8K.jsonl has lines {"question": .., "answer": "..#### 42"} (the data set gsm8k). MODEL is a chat model: a directory, a GGUF file
or a name of the Hub. The two functions below are the rewards: sbprun imports this file and calls them, as TRL's trainer would.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def number_of(text):
    """The last number of a text, or None."""
    found = re.findall(r"-?\d[\d,]*(?:\.\d+)?", text)
    return float(found[-1].replace(",", "")) if found else None


def correct(completions, answer, **columns):
    """1 where the last number of the answer is the one that is wanted."""
    texts = [completion[-1]["content"] for completion in completions]
    return [float(number_of(text) == number_of(wanted)) for text, wanted in zip(texts, answer)]


def brief(completions, **columns):
    """Up to 1 for an answer that ends within 400 characters: something to learn where nothing is correct yet."""
    return [1 - min(1, len(completion[-1]["content"]) / 400) for completion in completions]


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("model")
    p.add_argument("data")
    p.add_argument("--sbprun", default=str(ROOT / "build/release/sbprun"))
    p.add_argument("--out", default="grpo-gsm8k")
    a, rest = p.parse_known_args()
    rows = [json.loads(line) for line in open(a.data, encoding="utf-8")]
    prompts = pathlib.Path(a.out + ".prompts.jsonl")
    with open(prompts, "w", encoding="utf-8") as f:
        for row in rows:
            f.write(json.dumps({"prompt": [{"role": "user", "content": row["question"]}], "answer": row["answer"]}) + "\n")
    here = pathlib.Path(__file__).resolve()
    command = [a.sbprun, "grpo", a.model, "--data", str(prompts), "--reward", f"{here}:correct", "--reward", f"{here}:brief",
               "--reward-weights", "1,0.2", "--n", "8", "--max-new-tokens", "128", "--out", a.out, *rest]
    print("+", " ".join(command), flush=True)
    sys.exit(subprocess.run(command).returncode)


if __name__ == "__main__":
    main()
