#!/usr/bin/env python3
"""make_pre_tokenizers.py LLAMA_CPP: frontends/formats/export/pre_tokenizers.def, of a tree of llama.cpp that has
conversion/base.py: the text whose ids its converter hashes, and which hash it calls how. These are facts of the
format: another text or another hash would name another tokenizer."""

import ast
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
OUT = HERE.parents[1] / "frontends" / "export" / "pre_tokenizers.def"


def read(tree):
    """The text, and pairs of hash and name, in the order of the source; the last of a hash counts."""
    module = ast.parse((pathlib.Path(tree) / "conversion" / "base.py").read_text())
    function = next(n for n in ast.walk(module) if isinstance(n, ast.FunctionDef) and n.name == "get_vocab_base_pre")
    text, pairs = None, {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and node.targets[0].id == "chktxt":
            text = ast.literal_eval(node.value)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Compare) and isinstance(node.body[0], ast.Assign):
            right = node.test.comparators[0]
            if isinstance(right, ast.Constant) and isinstance(right.value, str):
                pairs[right.value] = node.body[0].value.value
    return text, pairs


def quoted(text):
    """A C string: octal escapes cannot run into what follows."""
    out = ""
    for byte in text.encode():
        char = chr(byte)
        out += "\\" + char if char in '"\\' else char if 32 <= byte < 127 and char != "?" else f"\\{byte:03o}"
    lines, step = [], 88
    while out:
        cut = min(step, len(out))
        while cut < len(out) and "\\" in out[cut - 3 : cut]:
            cut -= 1
        lines.append(f'    "{out[:cut]}"')
        out = out[cut:]
    return "\n".join(lines)


def main():
    text, pairs = read(sys.argv[1])
    lines = [
        "/* CHECK_TEXT(text); PRE(SHA-256 of Python's text of its ids, tokenizer.ggml.pre). Made by",
        " * tests/golden/make_pre_tokenizers.py of llama.cpp's converter. */",
        "CHECK_TEXT(",
        quoted(text) + ")",
    ]
    lines += [f'PRE("{h}", "{name}")' for h, name in pairs.items()]
    lines += ["#undef CHECK_TEXT", "#undef PRE", ""]
    OUT.write_text("\n".join(lines))
    print(f"{OUT}: {len(pairs)} hashes, {len(set(pairs.values()))} names")


main()
