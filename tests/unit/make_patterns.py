#!/usr/bin/env python3
"""Writes patterns.def: which names of modules regular expressions match, by Python's re as PEFT uses it.

Python 3.11 or later, nothing else. Run: make_patterns.py > patterns.def
"""
import random
import re

NAMES = [f"model.layers.{i}.{m}" for i, m in [
    (0, "self_attn.q_proj"), (0, "self_attn.k_proj"), (0, "self_attn.v_proj"), (0, "self_attn.o_proj"), (0, "mlp.gate_proj"),
    (0, "mlp.up_proj"), (1, "self_attn.q_proj"), (1, "mlp.down_proj"), (2, "self_attn.v_proj"), (10, "self_attn.q_proj"),
    (11, "mlp.down_proj"), (110, "mlp.experts.1.up_proj")]] + ["lm_head", "q_proj", "transformer.h.1.attn.c_attn", "foo.q_proj.bar"]

GIVEN = [
    r"(.*q_proj)|(.*v_proj)", r"model\.layers\.(0|1)?.*\.(q_proj)", r"(foo)?q_(proj)", r"(foo)?.*q_(proj)", r"(x)|.*q_proj", r"q_proj|v_proj",
    r"(q|v)_proj", r"a|ab|.*_proj", r".*layers\.\d{,1}\..*", r".*layers\.\d{,}\.mlp.*", r".*[{,2}].*", r".*\{,2\}.*", r"(?P<at>.*)\.(?P<of>[qv])_proj",
    r"(.)(.)_head", r".*(.)\1.*", r".*layers\.(\d)\1\..*", r"(?:.*\.)?(q|k)_proj()", r"(|.*q_proj)", r"()|.*", r"^.*q_proj$", r".*\bq_proj", r"(?=(.*mlp))\1\..*",
    r"layers|h", r"(layers)|(h)", r"h|layers", r"(?:layers)", r"[^.]*", r"experts", r"lay(ers)?", r"(.*q_proj)?+", r"(?>.*\.)q_proj", r"\w+", r"\S*\W\w+"]


def draw(rng, depth=0):
    """A piece of a pattern."""
    kind = rng.randrange(14 if depth < 3 else 7)
    if kind < 3:
        return rng.choice(["q_proj", "v_proj", "self_attn", "mlp", "layers", "model", "_proj", "up", "1", "0"])
    if kind < 7:
        return rng.choice([".*", ".*", r"\.", r"\d", "[0-2]", r"\d{,2}", "[^.]+", ".", r"[a-z_]*?", r"\w+"])
    inner = "".join(draw(rng, depth + 1) for _ in range(rng.randint(1, 3)))
    if kind == 7:
        return f"({inner})"
    if kind == 8:
        return f"({inner})?"
    if kind == 9:
        return f"(?:{rng.choice(['_', 'l', 'm', 'layers', '[a-z]'])}|\\.)*"
    if kind == 10:
        return f"({inner}|{draw(rng, depth + 1)})"
    if kind == 11:
        return f"(?={inner})"
    if kind == 12:
        return f"(?!{inner})"
    return f"(?:{inner}|({draw(rng, depth + 1)}))"


def bits(found):
    return sum(1 << i for i, f in enumerate(found) if f)


def layer(pattern, name):
    """lora's layers_pattern: the layer that a name is in, -1 where the pattern matches and says none, -2 where it does not."""
    match = re.match(rf"(?:^|.*?\.){pattern}\.(?P<idx>\d+)\.", name)
    return -2 if match is None else int(match["idx"]) if match["idx"] is not None else -1


def results(pattern):
    return (bits(re.fullmatch(pattern, n) for n in NAMES), bits(re.match(rf"(.*\.)?({pattern})$", n) for n in NAMES),
            [layer(pattern, n) for n in NAMES])


def drawn(count):
    rng, found = random.Random(20), []
    while len(found) < count:
        pattern = "".join(draw(rng) for _ in range(rng.randint(1, 4)))
        if rng.randrange(3):
            pattern = rng.choice([".*", r"model\.", r".*\."]) + pattern + rng.choice(["", ".*", "_proj", "(.*)"])
        if rng.randrange(3) == 0:
            pattern += "|" + "".join(draw(rng) for _ in range(2))
        if len(pattern) >= 70 or sum(map(pattern.count, "*+")) > 4:  # an end of backtracking
            continue
        try:
            whole, end, _ = results(pattern)
        except re.error:
            continue
        if pattern not in found and (0 < whole < (1 << len(NAMES)) - 1 or 0 < end < (1 << len(NAMES)) - 1):
            found.append(pattern)
    return found


def quoted(text):
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("?", "\\?") + '"'


def main():
    print("/* What Python's re finds; written by make_patterns.py. NAME(text of a module), then PATTERN(regular expression,\n"
          " * names that re.fullmatch has as bits, those that re.match has of rf\"(.*\\.)\\?({key})$\", the layer of each name by\n"
          " * layers_pattern: -1 where it matches and says none, -2 where it does not match). */")
    print("#ifdef NAME")
    for name in NAMES:
        print(f"NAME({quoted(name)})")
    print("#else")
    for pattern in GIVEN + drawn(150):
        whole, end, layers = results(pattern)
        print(f"PATTERN({quoted(pattern)}, 0x{whole:04x}, 0x{end:04x}, {', '.join(map(str, layers))})")
    print("#endif")


main()
