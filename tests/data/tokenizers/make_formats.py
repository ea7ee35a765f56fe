"""Tokenizers of other formats, small: *.model (SentencePiece), tekken.json, ranks.tiktoken; formats.json has by file the ids
that the defining library gives for texts.json, null for texts that spell a special token.

    python3 make_formats.py       # in this directory, after make.py; needs: pip install sentencepiece==0.2.3 tiktoken==0.14.0
"""
import base64
import json
import pathlib

import sentencepiece
import tiktoken

import make_charsmap
from make import CORPUS, LLAMA3, TEXTS, write

PATTERN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def sentencepieces():
    common = dict(vocab_size=300, character_coverage=1.0)
    yield "llama.model", dict(model_type="bpe", byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
                              split_digits=True, **{**common, "vocab_size": 500}), None
    yield "plain.model", dict(model_type="bpe", add_dummy_prefix=False, remove_extra_whitespaces=False, user_defined_symbols=["ABC", "\n"], normalization_rule_name="identity",
                              **common), None
    yield "unigram.model", dict(model_type="unigram", **common), {"\t": " ", "\n": " ", "\u3000": " ", "Ａ": "A"}
    yield "char.model", dict(model_type="char", **common), {"\u00a0": " "}


def byte_ranks():
    """Of gpt2.json: bytes in any order, then its merges."""
    from tokenizers import pre_tokenizers
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    order = [b for b in range(256) if 33 <= b < 127 or 161 <= b < 173 or b >= 174]
    others = [b for b in range(256) if b not in order]
    to_byte = {chr(b): b for b in order} | {chr(256 + i): b for i, b in enumerate(others)}
    assert set(letters) == set(to_byte)
    merges = json.load(open("gpt2.json", encoding="utf-8"))["model"]["merges"]
    tokens = [bytes([b]) for b in range(256)] + [bytes(to_byte[c] for c in m.replace(" ", "")) for m in merges]
    return {t: i for i, t in enumerate(dict.fromkeys(tokens))}


def main():
    expect = {}
    for name, options, rules in sentencepieces():
        make_charsmap.train(name, CORPUS * 5, rules, **options)
        model = sentencepiece.SentencePieceProcessor(model_file=name)
        special = [model.id_to_piece(i) for i in range(model.get_piece_size()) if model.is_control(i) or model.is_unknown(i)]
        expect[name] = [None if any(s in t for s in special) else model.encode(t) for t in TEXTS]
    ranks = byte_ranks()
    lines = [base64.b64encode(t).decode() + f" {i}" for t, i in ranks.items()]
    pathlib.Path("ranks.tiktoken").write_text("\n".join(lines) + "\n")
    expect["ranks.tiktoken"] = [tiktoken.Encoding("x", pat_str=LLAMA3, mergeable_ranks=ranks, special_tokens={}).encode(t) for t in TEXTS]
    specials = ["<unk>", "<s>", "</s>", "<|im_start|>"]
    drop = 20  # tokens that the file has and the model not
    tekken = {"config": {"pattern": PATTERN, "num_vocab_tokens": len(ranks), "default_vocab_size": len(ranks) - drop + 10,
                         "default_num_special_tokens": 10, "version": "v13"},
              "vocab": [{"rank": i, "token_bytes": base64.b64encode(t).decode(), "token_str": None} for t, i in ranks.items()],
              "special_tokens": [{"rank": i, "token_str": s, "is_control": True} for i, s in enumerate(specials)]}
    write("tekken.json", tekken)
    kept = {t: i for t, i in ranks.items() if i < len(ranks) - drop}
    encoding = tiktoken.Encoding("x", pat_str=PATTERN, mergeable_ranks=kept, special_tokens={})
    expect["tekken.json"] = [None if any(s in t for s in specials) else [i + 10 for i in encoding.encode(t)] for t in TEXTS]
    write("formats.json", expect)


if __name__ == "__main__":
    main()
