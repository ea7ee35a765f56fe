#!/usr/bin/env python3
"""What the assistant said, by TRL's marked copies of templates and by ours, over random conversations.

    python3 compare_marks.py MARKS FOLDER_OF_TRL_TEMPLATES [--count 200] [--seed 1] [NAME ..]

For each NAME, NAME_training.jinja with transformers and NAME.jinja with ours (a marked copy where it is known, else the
differences of renderings). The text and the characters that are inside of a span must be the same; where ours cannot
tell, that is counted. Exit status 1 when anything differs.
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys

import compare
from conversations import conversation


def inside(case):
    text = case["text"].encode()
    out = bytearray(len(text))
    for begin, end in case["spans"]:
        out[begin:end] = b"\1" * (end - begin)
    return text, bytes(out)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("names", nargs="*", default=["qwen2_5", "qwen3", "phi3", "phi3_5", "llama3", "gemma", "gemma3"])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    total = 0
    for number, name in enumerate(options.names):
        original = (options.folder / f"{name}.jinja").read_text(encoding="utf-8")
        marked = (options.folder / f"{name}_training.jinja").read_text(encoding="utf-8")
        rng = random.Random(options.seed * 1000003 + number)
        cases = []
        while len(cases) < options.count:
            variables = compare.prepare(conversation(rng))
            variables["add_generation_prompt"] = False
            wanted = compare.reference(marked, variables)
            if "error" not in wanted and "error" not in compare.reference(original, variables):
                cases.append((variables, wanted))
        lines = [json.dumps({"template": original, "variables": v, "date": compare.DATE}) for v, _ in cases]
        out = subprocess.run([options.program], input="\n".join(lines) + "\n", capture_output=True, text=True,
                             check=True)
        got = [json.loads(line) for line in out.stdout.split("\n") if line]
        errors = sum("error" in ours for ours in got)
        bad = [(w, o) for (_, w), o in zip(cases, got) if "error" not in o and inside(w) != inside(o)]
        total += len(bad)
        print(f"{name}: {len(cases)} conversations, {errors} that ours cannot tell, {len(bad)} differences")
        for wanted, ours in bad[:1]:
            print("  theirs:", json.dumps(wanted)[:1500])
            print("  ours:  ", json.dumps(ours)[:1500])
        for ours in [o for o in got if "error" in o][:1]:
            print("  error: ", ours["error"][:300])
    sys.exit(total > 0)


if __name__ == "__main__":
    main()
