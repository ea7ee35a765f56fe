#!/usr/bin/env python3
"""Renders contents that are lists of parts, and calls without a content, by real templates with transformers and sbprun.

    python3 compare_contents.py SBPRUN MODEL TEMPLATE.jinja ..

MODEL is any directory with a tokenizer. What sbprun makes of a conversation must be what transformers makes of it in the
first of these forms that its Jinja takes and in which no list is written as Python or JSON prints it: as it is without
members that are null (as TRL hands it over), with a content of null beside tool_calls, the texts of parts joined, both. Where
transformers takes none of them sbprun must refuse. Needs transformers and jinja2 (requirements.txt). Exit status 1 when one differs.
"""
import copy
import json
import subprocess
import sys

import compare

CALL = {"type": "function", "id": "abcdefghi", "function": {"name": "f", "arguments": {"x": 1}}}
TEXT_CALL = {"type": "function", "id": "abcdefghi", "function": {"name": "f", "arguments": "{\"x\": 1}"}}
PARTS = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]


def rows():
    user, answer = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}
    yield [{"role": "user", "content": PARTS}, answer]
    yield [{"role": "user", "content": PARTS[:1]}, {"role": "assistant", "content": PARTS}]
    yield [{"role": "system", "content": PARTS}, user, answer, user, {"role": "assistant", "content": PARTS[:1]}]
    yield [user, {"role": "assistant", "content": []}]
    for call in (CALL, TEXT_CALL):
        for content in ({}, {"content": None}, {"content": ""}):
            yield [user, {"role": "assistant", **content, "tool_calls": [call]}]
            yield [user, {"role": "assistant", **content, "tool_calls": [call]},
                   {"role": "tool", "name": "f", "tool_call_id": "abcdefghi", "content": "4"}, answer]
        yield [{"role": "user", "content": PARTS}, {"role": "assistant", "content": None, "tool_calls": [call]},
               {"role": "tool", "name": "f", "tool_call_id": "abcdefghi", "content": PARTS}, answer]


def forms(messages):
    plain = [{k: v for k, v in m.items() if v is not None} for m in messages]
    for texts in (False, True):
        for nulls in (False, True):
            out = copy.deepcopy(plain)
            for m in out:
                if texts and isinstance(m.get("content"), list):
                    m["content"] = "".join(part["text"] for part in m["content"])
                if nulls and "tool_calls" in m and "content" not in m:
                    m["content"] = None
            yield out


def render(template, messages, tokens):
    variables = {**tokens, "messages": compare.theirs._alias_reasoning_fields(messages), "tools": None,
                 "documents": None, "add_generation_prompt": False}
    return compare.reference(template, variables).get("text")


def spelled(text):
    return text.count("'type': '") + text.count('"type": "')


def wanted(template, messages, tokens):
    plain, null, texts, both = (render(template, form, tokens) for form in forms(messages))
    for text, joined in ((plain, texts), (null, both), (texts, texts), (both, both)):
        if text is not None and (joined is None or spelled(text) <= spelled(joined)):
            return text
    return None


def main():
    program, model, *templates = sys.argv[1:]
    tokens = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    different, counts = 0, {"taken": 0, "refused": 0}
    for path in templates:
        template = open(path, newline="").read()
        cases = list(rows())
        lines = "".join(json.dumps({"messages": row}) + "\n" for row in cases)
        out = subprocess.run([program, "tokenize", model, "--render", "--date", compare.DATE, "--chat-template", path],
                             input=lines, capture_output=True, text=True).stdout
        for row, line in zip(cases, out.splitlines(), strict=True):
            got, want = json.loads(line), wanted(template, row, tokens)
            counts["taken" if want is not None else "refused"] += 1
            if (got if isinstance(got, str) else None) != want:
                different += 1
                print(f"{path}: {json.dumps(row)}\n  theirs: {want!r}\n  ours:   {got!r}")
    print(f"{len(templates)} templates, {counts['taken']} conversations taken, {counts['refused']} refused, {different} differences")
    sys.exit(different > 0 or not counts["taken"])


if __name__ == "__main__":
    main()
