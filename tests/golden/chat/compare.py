#!/usr/bin/env python3
"""Renders templates over random conversations with transformers' own Jinja environment and with ours.

    python3 compare.py RENDER_LINES TEMPLATE.jinja .. [--count 200] [--seed 1] [--write-vectors FILE]

Text and generation spans must be equal; where Jinja raises, ours must report an error, and the other way round. Needs
transformers and jinja2 (requirements.txt); no torch. Exit status 1 when anything differs.
"""
import argparse
import datetime
import json
import pathlib
import random
import subprocess
import sys

import transformers.utils.chat_template_utils as theirs

from conversations import conversation

DATE = "2026-03-01"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
SMALL = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "it's <me>\n"}],
         "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}], "documents": None, "add_generation_prompt": True}


class Midnight(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromisoformat(DATE)


theirs.datetime = Midnight


def reference(template, variables):
    try:
        compiled = theirs._compile_jinja_template(template)
        text, spans = theirs._render_with_assistant_indices(compiled, **variables)
        text.encode()
    except Exception as error:  # whatever a template can raise
        return {"error": f"{type(error).__name__}: {error}"}
    bytes_at = lambda at: len(text[:at].encode())
    return {"text": text, "spans": [[bytes_at(a), bytes_at(b)] for a, b in spans]}


def prepare(variables):
    variables = dict(variables)
    variables["messages"] = theirs._alias_reasoning_fields(variables["messages"])
    return {**TOKENS, **variables}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("templates", nargs="+")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=10)
    parser.add_argument("--write-vectors")
    options = parser.parse_args()
    sources = {}
    for path in map(pathlib.Path, options.templates):
        text = path.read_bytes().decode()  # newlines as they are
        if path.suffix == ".txt":  # many small ones
            pieces = text.split("\n---\n") if path.stem == "blocks" else text.replace("\\\n", "\0").splitlines()
            for number, piece in enumerate(pieces):
                sources[f"{path.name}:{number + 1}"] = piece.replace("\0", "\\\n")
        else:
            sources[path.name] = text
    cases = []
    for number, (name, template) in enumerate(sources.items()):
        rng = random.Random(options.seed * 1000003 + number)
        small = ".txt:" in name  # of one feature each: one conversation is enough
        cases += [(name, template, prepare(SMALL if small else conversation(rng)))
                  for _ in range(1 if small else options.count)]
    lines = [json.dumps({"template": t, "variables": v, "date": DATE}, ensure_ascii=False) for _, t, v in cases]
    out = subprocess.run([options.program], input="\n".join(lines) + "\n", capture_output=True, text=True, check=True)
    got = [json.loads(line) for line in out.stdout.split("\n") if line]
    assert len(got) == len(cases), (len(got), len(cases), out.stderr)
    different = {}
    errors = spans = 0
    vectors = []
    for (name, template, variables), ours in zip(cases, got):
        wanted = reference(template, variables)
        errors += "error" in wanted
        spans += len(wanted.get("spans", []))
        same = wanted == ours if "error" not in wanted else "error" in ours
        vectors.append({"name": name, "template": template, "variables": variables, "date": DATE,
                        **({"error": True} if "error" in wanted else wanted)})
        if not same:
            different.setdefault(name, []).append((wanted, ours, variables))
    for name, found in different.items():
        print(f"{name}: {len(found)} of {options.count} differ")
        for wanted, ours, variables in found[: options.show]:
            print("  theirs:", json.dumps(wanted, ensure_ascii=False)[:3000])
            print("  ours:  ", json.dumps(ours, ensure_ascii=False)[:3000])
    if options.write_vectors:
        with open(options.write_vectors, "w", encoding="utf-8") as file:
            for vector in vectors:
                file.write(json.dumps(vector, ensure_ascii=False) + "\n")
    bad = sum(len(found) for found in different.values())
    print(f"{len(sources)} templates, {len(cases)} conversations: {errors} where Jinja raises, {spans} spans, "
          f"{bad} differences")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
