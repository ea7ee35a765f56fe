#!/usr/bin/env python3
"""What of conversations is trained, by `sbprun tokenize` and by this script, token by token.

    python3 compare_turns.py SBPRUN --tokenizer DIR --templates FILE.jinja .. [--count 200] [--seed 1]
                             [--write-vectors FILE]

Nothing here is as it is there. Where FILE_training.jinja stands beside FILE.jinja, as in TRL, it is what texts are compared
with. Stretches of the assistant are those of transformers ({% generation %}, else, in FILE,
turns by their tokens: ChatML, Llama 3, Gemma). Whose a stretch is, is found by writing a strange character into every
text of a message and looking where it comes out; calls and think blocks by patterns; tokens by char_to_token, as
transformers maps its masks. Needs transformers and jinja2. Exit status 1 when a token differs.
"""
import argparse
import collections
import copy
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

import jinja2
import transformers
import transformers.utils.chat_template_utils as theirs

from compare import DATE, Midnight

theirs.datetime = Midnight
LOSS_ON = ["assistant", "last-turn", "first-turn", "all", "tool-calls"]
STRANGE = "\ue123"
WORDS = ["hello", "world", "naïve", "日本語", "🙂", "it's", "x & y", "ok", "a\tb", "line\nbreak", "end", "user", "I", "yes", "42"]
# Where a turn begins and ends, what begins an answer's own text.
STYLES = [(r"<\|im_start\|>(\w+)\n?(.*?<\|im_end\|>\n?)", "assistant"),
          (r"<\|start_header_id\|>(\w+)<\|end_header_id\|>\n\n(.*?<\|eot_id\|>)", "assistant"),
          (r"<start_of_turn>(\w+)\n(.*?<end_of_turn>\n)", "model")]
SEVERAL = -1  # messages have a turn in common
THINK = re.compile(r"<think>(.*?)</think>\s*", re.S)
CALL = re.compile(r"\n?<tool_call>|; call|\{\"name\"")


def text(rng):
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 5)))


def said(rng, message, of_answer):
    """What a message says of itself."""
    if rng.random() < 0.25:
        message["train"] = rng.random() < (0.7 if of_answer else 0.4)
    if rng.random() < 0.25:
        message["weight"] = rng.choice([0, 0.5, 1, 2, 0.25])
    return message


def conversation(rng, tools, system):
    messages = [said(rng, {"role": "system", "content": text(rng)}, False)] if system and rng.random() < 0.4 else []
    for _ in range(rng.randint(1, 3)):
        messages.append(said(rng, {"role": "user", "content": text(rng)}, False))
        answer = {"role": "assistant", "content": text(rng)}
        if rng.random() < 0.4:
            answer["reasoning_content"] = text(rng)
        elif rng.random() < 0.2:
            answer["content"] = f"<think>\n{rng.choice([text(rng), ''])}\n</think>\n\n" + answer["content"]
        messages.append(answer)
        if tools and rng.random() < 0.5:
            answer["tool_calls"] = [{"type": "function", "function": {"name": rng.choice(["add", "get"]), "arguments":
                                     {"x": text(rng)}}} for _ in range(rng.choice([1, 1, 2]))]
            messages.append({"role": "tool", "content": text(rng)})
            messages.append(said(rng, {"role": "assistant", "content": text(rng)}, True))
        said(rng, answer, True)
    return messages


def without_keys(messages):
    return [{k: v for k, v in m.items() if k not in ("train", "weight")} for m in messages]


def render(tokenizer, template, messages):
    compiled = theirs._compile_jinja_template(template)
    names = {k: v for k, v in tokenizer.special_tokens_map.items() if isinstance(v, str)}
    return theirs._render_with_assistant_indices(compiled, messages=theirs._alias_reasoning_fields(messages), tools=None,
                                                 documents=None, add_generation_prompt=False, **names)


def poisoned(messages, i, key=None):
    """Messages with a strange character in the texts of one."""
    out = copy.deepcopy(messages)
    for k in out[i]:
        if k in ("content", "reasoning_content") and key in (None, k):
            out[i][k] = out[i][k].replace("</think>\n\n", "</think>\n\n" + STRANGE) if "</think>" in out[i][k] else STRANGE + out[i][k]
        if k == "tool_calls" and key is None:
            for call in out[i][k]:
                call["function"]["arguments"]["x"] = STRANGE + call["function"]["arguments"]["x"]
    return out


class Reference:
    def __init__(self, tokenizer, template):
        self.tokenizer, self.template = tokenizer, template
        self.marked = "generation" in re.findall(r"{%-?\s*(\w+)", template)

    def turns(self, whole):
        """(begin, begin of what is said, end, role) of every turn, by its tokens."""
        for pattern, answer in STYLES:
            found = [(m.start(), m.start(2), m.end(), m.group(1)) for m in re.finditer(pattern, whole, re.S)]
            if found:
                return [(a, b, c, "assistant" if role == answer else role) for a, b, c, role in found]
        return []

    def spans(self, messages):
        whole, spans = render(self.tokenizer, self.template, messages)
        if not self.marked:
            spans = [(b, c) for _, b, c, role in self.turns(whole) if role == "assistant"]
        return whole, spans

    def owners(self, messages, regions_of):
        """Which message each region is of."""
        owners = []
        for i in range(len(messages)):
            whole, regions = regions_of(poisoned(messages, i))
            for k, region in enumerate(regions):
                if STRANGE in whole[region[0]:region[-1]]:
                    while len(owners) <= k:
                        owners.append(None)
                    owners[k] = i if owners[k] is None else SEVERAL
        return owners

    def weights(self, messages, on, reasoning):
        """One number for each token, or None where this cannot tell."""
        plain = without_keys(messages)
        whole, spans = self.spans(plain)
        encoded = self.tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True)
        offsets = encoded["offset_mapping"]
        ids = encoded["input_ids"]
        answers = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
        owners = self.owners(plain, self.spans)
        turns = [(a, c) for a, _, c, _ in self.turns(whole)]
        whole_turns = lambda ms: (lambda w: (w, [(a, c) for a, _, c, _ in self.turns(w)]))(render(self.tokenizer, self.template, ms)[0])
        turn_owners = self.owners(plain, whole_turns)
        counts = lambda i, rule: (messages[i]["train"] if "train" in messages[i] else rule) * messages[i].get("weight", 1)
        out = [0.0] * len(ids)

        def add(begin, end, weight):  # as transformers maps its spans
            first, last = encoded.char_to_token(begin), encoded.char_to_token(end - 1)
            for t in range(first, last + 1):
                out[t] = max(out[t], weight)

        if on == "all":
            if not turns or SEVERAL in turn_owners:
                return None
            at = [None] * len(whole)
            for (a, c), i in zip(turns, turn_owners):
                at[a:c] = [i] * (c - a)
            for t, (a, b) in enumerate(offsets):
                out[t] = max(1.0 if i is None else counts(i, True) for i in at[a:b]) if b > a else 1.0
        else:
            rule = {"assistant": lambda i: True, "last-turn": lambda i: i == answers[-1], "first-turn": lambda i: i == answers[0],
                    "tool-calls": lambda i: bool(messages[i].get("tool_calls"))}[on]
            for (a, c), i in zip(spans, owners):
                if on == "tool-calls" and "train" not in messages[i] and rule(i):
                    call = CALL.search(whole[a:c])
                    if not call:
                        return None
                    a += call.start()
                add(a, c, counts(i, rule(i)))
            for i, m in enumerate(messages):
                if m["role"] != "assistant" and m.get("train"):
                    other = render(self.tokenizer, self.template, poisoned(plain, i, "content"))[0]
                    a = other.index(STRANGE)
                    end = next((c for (b, c), k in zip(turns, turn_owners) if k == i), None)
                    if end is None:
                        return None
                    add(a, len(whole[:end].rstrip()), counts(i, True))
        if reasoning != "all":
            blocks = []
            for a, c in spans if self.marked else [t for t, i in zip(turns, turn_owners) if i in answers]:
                found = THINK.search(whole, a, c)
                if found and (reasoning == "none" or not found.group(1).strip()):
                    blocks.append(found.span())
            for t, (a, b) in enumerate(offsets):
                if any(x <= a and b <= y for x, y in blocks) and b > a:
                    out[t] = 0.0
        return ids, out


def tokenize(program, tokenizer, template, on, reasoning, rows):
    with tempfile.NamedTemporaryFile("w", suffix=".jinja", delete=False) as file:
        file.write(template)
    out = subprocess.run([program, "tokenize", tokenizer, "--chat-template", file.name, "--loss-on", on, "--loss-on-reasoning",
                          reasoning, "--date", DATE], input="\n".join(json.dumps({"messages": r}) for r in rows) + "\n",
                         capture_output=True, text=True)
    os.unlink(file.name)
    return [json.loads(line) for line in out.stdout.split("\n") if line]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--templates", nargs="+", type=pathlib.Path, required=True)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write-vectors", type=pathlib.Path)
    options = parser.parse_args()
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(options.tokenizer)
    total, vectors = 0, []
    for path in options.templates:
        original = path.read_text(encoding="utf-8")
        marked = path.with_name(f"{path.stem}_training.jinja")
        template = marked.read_text(encoding="utf-8") if marked.exists() else original
        references = {o: Reference(tokenizer, original if o == "all" else template) for o in LOSS_ON}
        rng, tally = random.Random(f"{options.seed}{path.name}"), collections.Counter()
        tools, system = "tool_call" in template, "System role not supported" not in template
        for on in LOSS_ON if tools else LOSS_ON[:-1]:
            for reasoning in ["all", "filled", "none"]:
                rows = [conversation(rng, tools, system) for _ in range(options.count // 12 + 1)]
                for row, ours in zip(rows, tokenize(options.program, options.tokenizer, original, on, reasoning, rows)):
                    try:
                        wanted = references[on].weights(row, on, reasoning)
                    except jinja2.TemplateError:
                        tally["refused" if "error" in ours else "DIFFERENT"] += 1
                        continue
                    if wanted is None:
                        tally["not told here"] += 1
                        continue
                    ids, weights = wanted
                    if not any(weights):
                        same = "no token would be trained" in ours.get("error", "")
                        kind = "nothing trained"
                    elif "cannot be told" in ours.get("error", ""):
                        tally["ours cannot tell"] += 1
                        continue
                    else:
                        got = ours.get("weight") or [float(x >= 0) for x in ours.get("labels", [])]
                        same = ours.get("input_ids") == ids and got == weights
                        kind = "same"
                        if same and options.write_vectors and len(ids) < 320:
                            vectors.append({"template": path.name, "loss_on": on, "reasoning": reasoning, "row": {"messages": row},
                                            "weights": weights})
                    tally[kind if same else "DIFFERENT"] += 1
                    if not same and tally["DIFFERENT"] == 1:
                        print(on, reasoning, json.dumps(row, ensure_ascii=False))
                        print("  wanted", [(tokenizer.decode([i]), w) for i, w in zip(ids, weights)])
                        print("  found ", ours.get("error") or [(tokenizer.decode([i]), w) for i, w in zip(ours["input_ids"], got)])
        total += tally["DIFFERENT"]
        print(path.name, dict(tally))
    if options.write_vectors:
        options.write_vectors.write_text("".join(json.dumps(v, ensure_ascii=False) + "\n" for v in vectors), encoding="utf-8")
    sys.exit(total > 0)


if __name__ == "__main__":
    main()
