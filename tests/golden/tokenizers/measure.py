#!/usr/bin/env python3
"""MB/s of ours beside PyPI tokenizers (Rust), one thread each, in turns, ids only.

    python3 measure.py ENCODE_TEXTS [WHAT=]FILE .. [--seconds 2]     (WHAT: nothing or hf:REF.json, as for compare.py)

Texts: English (shared/data/tinyshakespeare.txt, in pieces of 4 kB), code (this repository's C), CJK (Japanese and Chinese
manual pages), and 1 MB without a space (letters of base64), at once. Tokens must be as many.
"""
import argparse
import base64
import json
import os
import random
import struct
import subprocess
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
from compare import ROOT, HuggingFace, corpus, library


def pieces(texts, size=4096, most=4 << 20):
    whole = [t.decode(errors="ignore") for t in texts]
    cut = [t[i:i + size] for t in whole for i in range(0, len(t), size)]
    return cut[:most // size]


def samples():
    rng = random.Random(1)
    yield "English", pieces(corpus([ROOT / "../shared/data"]))
    yield "code", pieces(t for t in corpus([ROOT / "ir", ROOT / "runtime", ROOT / "passes"]))
    yield "CJK", pieces(corpus(["/usr/share/man/ja", "/usr/share/man/zh_CN"]), 1500)
    yield "no space", [base64.b64encode(rng.randbytes(3 << 18)).decode().rstrip("=")]


def theirs(tokenizer, texts, seconds):
    best, begun = 1e30, time.monotonic()
    while True:
        start = time.monotonic()
        count = sum(len(e.ids) for e in tokenizer.encode_batch_fast(texts, add_special_tokens=False))
        best = min(best, time.monotonic() - start)
        if time.monotonic() - begun > seconds:
            return best, count


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("tokenizers", nargs="+")
    parser.add_argument("--seconds", type=float, default=2)
    arguments = parser.parse_args()
    print("| tokenizer | text | ours MB/s | Rust MB/s | ratio | ours peak MiB |\n|---|---|---|---|---|---|")
    for argument in arguments.tokenizers:
        what, path = argument.split("=", 1) if "=" in argument else ("", argument)
        reference = library(what, path, arguments.program)
        for name, texts in samples():
            encoded = [t.encode() for t in texts]
            size = sum(map(len, encoded))
            data = b"".join(struct.pack("i", len(t)) + t for t in encoded)
            run = subprocess.run([arguments.program, "--time", str(arguments.seconds), path], input=data, capture_output=True,
                                 check=True)
            ours = json.loads(run.stdout)
            best, count = theirs(reference.tokenizer, texts, arguments.seconds)
            assert count == ours["tokens"], (count, ours)
            rate = ours["bytes_per_second"] / 1e6
            print(f"| {os.path.basename(os.path.dirname(path)) or path} | {name} | {rate:.1f} | {size / best / 1e6:.1f} | "
                  f"{rate * 1e6 * best / size:.2f} | {ours['peak_mib']} |", flush=True)


if __name__ == "__main__":
    main()
