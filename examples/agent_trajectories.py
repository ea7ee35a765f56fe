#!/usr/bin/env python3
"""Long conversations of an agent with tools and reasoning, made up: rows to try a long run with before there are data.

    python3 examples/agent_trajectories.py > agent.jsonl                # 200 rows, 8.4 million tokens
    sbprun Qwen/Qwen3-32B --data agent.jsonl --packing bfd --dry-run    # what they take, and how they are packed

Lengths in tokens are log-normal: half of the rows have at most --median, 95 % at most --p95; the longest has --longest.
Rows are the same for the same --seed. A word is about --tokens-per-word tokens: sbprun tokenize counts them.
"""

import argparse
import json
import math
import random
import statistics
import sys

WORDS = ("the file has a list of names that the test reads before it runs and so the error is in the loop where one "
         "value is used for both sides of the check while the other is never set which means that we should look at "
         "what calls it and change the order then run all of them again to see that nothing else depends on it").split()
TOOLS = [
    {"name": "run", "description": "Run a command in the shell.", "parameters": {
        "type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}},
    {"name": "read_file", "description": "Read lines of a file.", "parameters": {
        "type": "object", "properties": {"path": {"type": "string"}, "first": {"type": "integer"}}, "required": ["path"]}},
    {"name": "edit", "description": "Replace a text in a file.", "parameters": {
        "type": "object", "properties": {"path": {"type": "string"}, "old": {"type": "string"}, "new": {"type": "string"}},
        "required": ["path", "old", "new"]}},
]
TURN = 1200  # words of a turn: thoughts, a call, what the tool answers


def words(rng, count):
    return " ".join(rng.choices(WORDS, k=max(1, count)))


def call(rng):
    name = rng.choice(TOOLS)["name"]
    path = f"src/{rng.choice(WORDS)}_{rng.randrange(100)}.py"
    arguments = {"run": {"command": f"pytest -q {path}"}, "read_file": {"path": path, "first": rng.randrange(1, 900)},
                 "edit": {"path": path, "old": words(rng, 12), "new": words(rng, 14)}}[name]
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def trajectory(rng, count):
    """A row of about `count` words: thoughts, calls and their results in turn, then an answer."""
    asked = min(count // 10 + 1, 300)
    messages = [{"role": "system", "content": "You are a careful programmer. Use the tools."},
                {"role": "user", "content": words(rng, asked)}]
    left = count - asked
    while left > TURN:
        turn = rng.randrange(TURN // 2, TURN)
        calls = [call(rng) for _ in range(rng.choice([1, 1, 1, 2]))]
        messages.append({"role": "assistant", "content": "", "reasoning_content": words(rng, turn // 5), "tool_calls": calls})
        messages += [{"role": "tool", "content": words(rng, turn * 4 // 5 // len(calls))} for _ in calls]
        left -= turn
    messages.append({"role": "assistant", "reasoning_content": words(rng, left // 2), "content": words(rng, left - left // 2)})
    return {"messages": messages, "tools": [{"type": "function", "function": tool} for tool in TOOLS]}


def lengths(rows, median, p95, longest):
    """Tokens of each row: quantiles of the log-normal distribution, in the middle of equal parts; the last is the longest."""
    normal = statistics.NormalDist()
    spread = math.log(p95 / median) / normal.inv_cdf(0.95)
    out = [median * math.exp(spread * normal.inv_cdf((i + 0.5) / rows)) for i in range(rows)]
    return [min(n, longest) for n in out[:-1]] + [longest]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--median", type=float, default=38000, help="tokens of half of the rows at most (%(default)s)")
    parser.add_argument("--p95", type=float, default=71000, help="tokens of 95 %% of the rows at most (%(default)s)")
    parser.add_argument("--longest", type=float, default=184000, help="tokens of the longest row (%(default)s)")
    parser.add_argument("--tokens-per-word", type=float, default=1.085, help="of the tokenizer and template (%(default)s: Qwen3)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.rows < 1 or not 0 < args.median < args.p95 <= args.longest or args.tokens_per_word <= 0:
        parser.error("expected --rows of at least 1 and 0 < --median < --p95 <= --longest")
    rng = random.Random(args.seed)
    tokens = lengths(args.rows, args.median, args.p95, args.longest)
    rng.shuffle(tokens)
    for count in tokens:
        print(json.dumps(trajectory(rng, int(count / args.tokens_per_word))))


if __name__ == "__main__":
    main()
