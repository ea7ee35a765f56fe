"""Trains tiny tokenizers with the pipelines of real models and records what Hugging Face tokenizers makes of
awkward texts: NAME.json (tokenizer.json), texts.json, and expect.json, by tokenizer one entry a text:
[ids with special tokens, their byte offsets, decoded text] with offsets flattened. variants.json has further
pipelines over the model of gpt2.json or llama2.json, each with its own expectations.

    python3 make.py        # in this directory; needs: pip install tokenizers==0.23.3 sentencepiece==0.2.3
"""
import json
import pathlib

import make_charsmap
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + TAIL
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + TAIL
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
            r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
            r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]
CL100K = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"

CORPUS = [
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park.",
    "One day, she saw a big, red ball. It's not high; she didn't reach it, but they'll try, I'm sure. We've won!",
    "def add(a, b):\n    return a + b\n\nfor i in range(10):\n\tprint(i, add(i, 1000))\n",
    "Der schnelle braune Fuchs springt über den faulen Hund. Größe, Äpfel, Öl, naïve café élan.",
    "Съешь ещё этих мягких французских булок, да выпей чаю. Привет, мир!",
    "日本語のテキスト。漢字とかな。中文测试，你好世界！ 한국어 시험",
    "The year 2024 has 366 days; 3.14159 is less than 22/7, and 1,000,000 is 10^6.",
    "http://example.com/a?b=c&d=e#f {\"key\": [1, 2, 3], \"name\": null} $x_1 = \\frac{1}{2}$",
]

TEXTS = [
    "", "a", " ", "  a", "a  ", "   ", "\n", "\n\n\na\n", "\t\tx\ty", "a\r\nb\r\n\r\nc", "Hello world! Hello  World!",
    " leading and trailing ", "don't DON'T don’t DON’T we'Ve I'LL it'ſ 'S's 're", "1234567 12 345 6,789.01 ½²Ⅷ١٢٣",
    "👩‍👩‍👧 👍🏽 🇩🇪x", "e\u0301le\u0301 a\u030a \u212b q\u0307\u0323 q\u0323\u0307", "한국 각 \u1112\u1161\u11ab",
    "日本語。中文，測試", "العربية ١٢", "नमस्ते க்ஷ", "\x01\x7f\x85\xa0\u2028\u3000\ufeff\u180e\u200b", "\ufffd\U0010ffff",
    "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", "        8 spaces", "aaaa bbbb 11112222 ----====",
    "<s>hi</s> <|im_start|>user\nhi<|im_end|>", "<|im_end| > <s ><mask> <mask>  x", "ABC<s>abc</s>  \n",
    "def f(x):\n    return x**2  # c\n\n\n\tpass\n", "\u00a0x\u2003y  \u3000z", "▁a ▁ b▁", "<0x41><0x0A>é", "Ａ１２ａｂ ﬁ İI ß",
    "one two ONE yesTwo two.one", "\u0344 \u1fd3 \U0001d15e \u0f73\u0f71", "a\u0315\u0300\u05ae\u0300b", "()[]{}<>!?.,;:'\"`~@#$%^&*-_=+\\|/",
    "\u31350\U00031350 \U0001fae8 \U0001e4f0", "The little girl didn't play; they'll try 2024 times.",
]


def added(*contents, **options):
    options = {"special": True, "normalized": False, **options}
    return [AddedToken(c, **options) for c in contents]


def train(tokenizer, size, special, alphabet=()):
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, initial_alphabet=list(alphabet),
                                  show_progress=False)
    tokenizer.train_from_iterator(CORPUS * 2, trainer)
    return tokenizer


def byte_level(name, pre, size=380, normalizer=None, post=None, special=("<s>", "</s>", "<|im_start|>", "<|im_end|>"), **bpe):
    t = Tokenizer(models.BPE(**bpe))
    if normalizer:
        t.normalizer = normalizer
    t.pre_tokenizer = pre
    train(t, size, added(*special), pre_tokenizers.ByteLevel.alphabet())
    t.decoder = decoders.ByteLevel()
    if post:
        t.post_processor = post(t)
    return t


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def splits(*patterns):
    return pre_tokenizers.Sequence([split(p) for p in patterns] +
                                   [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def bos(t, token="<s>"):
    return processors.TemplateProcessing(single=f"{token} $A", pair=f"{token} $A {token} $B",
                                         special_tokens=[(token, t.token_to_id(token))])


def sentencepiece(pre_space, extra=(), size=300):
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    replace = normalizers.Replace(" ", "▁")
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace]) if pre_space else replace
    special = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % b for b in range(256)] + list(extra)
    train(t, size + len(special), special)
    model = json.loads(t.to_str())
    model["added_tokens"] = []  # the trainer made all of them special; the bytes must not be
    t = Tokenizer.from_str(json.dumps(model))
    t.add_special_tokens(added("<unk>", "<s>", "</s>"))
    t.add_tokens(added(*extra, special=False))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    t.decoder = decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if pre_space else []))
    t.post_processor = bos(t)
    if not pre_space:
        t.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    return t


WORDS = ["[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def kept(name, make):
    """As it is in NAME.json: these trainers decide ties anew on every run."""
    return Tokenizer.from_file(name + ".json") if pathlib.Path(name + ".json").exists() else make()


def words(model, trainer, pre):
    t = Tokenizer(model)
    t.pre_tokenizer = pre
    t.train_from_iterator(CORPUS * 2, trainer)
    return t


def unigram():
    t = words(models.Unigram(), trainers.UnigramTrainer(vocab_size=260, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>",
                                                        show_progress=False), pre_tokenizers.Metaspace())
    t.normalizer = normalizers.Replace(Regex(" {2,}"), " ")
    t.decoder = decoders.Metaspace()
    t.post_processor = bos(t)
    return t


def wordpiece():
    t = words(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=30),
              trainers.WordPieceTrainer(vocab_size=300, special_tokens=WORDS, show_progress=False), pre_tokenizers.BertPreTokenizer())
    t.normalizer = normalizers.BertNormalizer()
    t.decoder = decoders.WordPiece()
    t.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    return t


def tokenizers():
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
    yield "gpt2", byte_level("gpt2", gpt2, post=lambda t: processors.ByteLevel(trim_offsets=True))
    yield "qwen2", byte_level("qwen2", splits(QWEN2), normalizer=normalizers.NFC(),
                              post=lambda t: processors.ByteLevel(trim_offsets=False))
    yield "llama3", byte_level("llama3", splits(LLAMA3), ignore_merges=True,
                               post=lambda t: processors.Sequence([processors.ByteLevel(trim_offsets=True), bos(t)]))
    yield "smollm2", byte_level("smollm2", pre_tokenizers.Sequence([pre_tokenizers.Digits(True), gpt2]))
    yield "gemma3", sentencepiece(False, ["\n\n", "\n\n\n", "▁▁", "▁▁▁▁", "\t\t"])
    yield "llama2", sentencepiece(True)
    yield "unigram", kept("unigram", unigram)
    yield "wordpiece", kept("wordpiece", wordpiece)
    yield "wordlevel", kept("wordlevel", lambda: words(models.WordLevel(unk_token="[UNK]"), trainers.WordLevelTrainer(
        vocab_size=120, special_tokens=WORDS, show_progress=False), pre_tokenizers.Whitespace()))
    suffix = kept("suffix", lambda: words(models.BPE(unk_token="[UNK]", end_of_word_suffix="</w>"), trainers.BpeTrainer(
        vocab_size=300, special_tokens=WORDS, end_of_word_suffix="</w>", show_progress=False), pre_tokenizers.WhitespaceSplit()))
    suffix.decoder = decoders.BPEDecoder()
    yield "suffix", suffix
    prefix = kept("prefix", lambda: words(models.BPE(unk_token="[UNK]", continuing_subword_prefix="##", fuse_unk=True), trainers.BpeTrainer(
        vocab_size=300, special_tokens=WORDS, continuing_subword_prefix="##", show_progress=False), pre_tokenizers.BertPreTokenizer()))
    prefix.decoder = decoders.WordPiece(cleanup=False)
    yield "prefix", prefix


def charsmap():
    """Of a few rules; SentencePiece's own have 240 kB."""
    rules = {"\t": " ", "\n": " ", "\u3000": " ", "\u00a0": " ", "\u200b": "", "\ufb01": "fi", "\uff21": "A", "e\u0301": "\u00e9",
             "\u212b": "\u00c5", "\u00bd": "1/2", "\u01c4": "x"}
    return make_charsmap.compile(rules)


def variants(made):
    """(name, base, changes to its JSON)"""
    def part(**parts):
        return {k: json.loads(v.__getstate__()) for k, v in parts.items()}
    bl = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for behavior in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
        for invert in (False, True):
            yield f"split {behavior} {invert}", "gpt2", part(pre_tokenizer=pre_tokenizers.Sequence([split(r"[aeiou\s]", behavior, invert), bl]))
    yield "split by text", "gpt2", part(pre_tokenizer=pre_tokenizers.Sequence([pre_tokenizers.Split("e", "contiguous"), bl]))
    yield "o200k", "gpt2", part(pre_tokenizer=splits(O200K))
    yield "cl100k", "gpt2", part(pre_tokenizer=splits(CL100K))
    yield "deepseek", "gpt2", part(pre_tokenizer=splits(*DEEPSEEK))
    yield "empty matches", "gpt2", part(pre_tokenizer=splits(r"[a-f]*"))
    yield "word boundaries", "gpt2", part(pre_tokenizer=splits(r"\b\w+\b|\W+$|^\s"))
    yield "look-behind", "gpt2", part(pre_tokenizer=splits(r"(?<=\s)\S{2,3}?|(?<![a-z])[^\S\n]+|\h{4}|[\x{41}-\u0043]|a{,2}b"))
    yield "roberta", "gpt2", part(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True),
                                  post_processor=processors.Sequence([processors.ByteLevel(add_prefix_space=True, trim_offsets=True)]))
    yield "prefix space, trim", "gpt2", part(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True),
                                             post_processor=processors.ByteLevel(add_prefix_space=False, trim_offsets=True))
    yield "digits together", "gpt2", part(pre_tokenizer=pre_tokenizers.Sequence([pre_tokenizers.Digits(False), bl]))
    yield "punctuation", "gpt2", part(pre_tokenizer=pre_tokenizers.Sequence([pre_tokenizers.Punctuation(), bl]))
    yield "whitespace", "gpt2", part(pre_tokenizer=pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), bl]))
    yield "whitespace split", "gpt2", part(pre_tokenizer=pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), bl]))
    yield "bytes before a split", "gpt2", part(pre_tokenizer=pre_tokenizers.Sequence([bl, split("[ĠĊ]")]))
    for form in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase"):
        yield form, "gpt2", part(normalizer=getattr(normalizers, form)())
    yield "strip", "gpt2", part(normalizer=normalizers.Sequence([normalizers.Strip(True, True), normalizers.NFKC(), normalizers.Lowercase()]))
    yield "strip right", "gpt2", part(normalizer=normalizers.Strip(False, True))
    yield "replace", "gpt2", part(normalizer=normalizers.Sequence([normalizers.Replace(Regex(r"\s{2,}|(?<=l)l"), "é-"),
                                                                   normalizers.Replace("a", ""), normalizers.Prepend("> ")]))
    yield "bytes first", "gpt2", {**part(normalizer=normalizers.ByteLevel()), "pre_tokenizer": None}
    for scheme in ("always", "first", "never"):
        for cut in (True, False):
            m = pre_tokenizers.Metaspace("▁", scheme, cut)
            yield f"metaspace {scheme} {cut}", "llama2", {**part(pre_tokenizer=m, decoder=decoders.Metaspace("▁", scheme, cut)), "normalizer": None}
    yield "no decoder", "llama2", {"decoder": None}
    yield "unk", "llama2", {"model": {"byte_fallback": False, "fuse_unk": True}}
    yield "unk apart", "llama2", {"model": {"byte_fallback": False, "fuse_unk": False}}
    yield "dropped", "llama2", {"model": {"byte_fallback": False, "unk_token": None}}
    tokens = [AddedToken("two", single_word=True, normalized=True), AddedToken("one", normalized=True), AddedToken("hi", lstrip=True, rstrip=True, normalized=False),
              AddedToken("<mask>", lstrip=True, special=True, normalized=False), AddedToken("Hello", rstrip=True, normalized=False)]
    yield "added", "gpt2", {**part(normalizer=normalizers.Lowercase()), "add": tokens}
    yield "added, sentencepiece", "llama2", {"add": tokens}
    first = pre_tokenizers.Metaspace("▁", "first", True)
    yield "metaspace first, text put in", "llama2", {
        **part(normalizer=normalizers.Replace(Regex("^[^t]"), "twob"), pre_tokenizer=first, decoder=decoders.Metaspace("▁", "first", True)),
        "add": [AddedToken("two", normalized=True)]}
    for on in range(4):
        clean, chinese, lower = on % 2 == 0, on < 2, on != 1
        yield f"bert {on}", "wordpiece", part(normalizer=normalizers.BertNormalizer(clean, chinese, [None, True, False, None][on], lower),
                                              decoder=decoders.WordPiece("##", on == 1))
    yield "accents", "gpt2", part(normalizer=normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents()]))
    yield "nmt", "gpt2", part(normalizer=normalizers.Nmt())
    yield "charsmap", "unigram", part(normalizer=normalizers.Sequence([normalizers.Precompiled(charsmap()), normalizers.Strip(False, True)]))
    yield "unigram whole", "unigram", {"pre_tokenizer": None, "normalizer": None}
    j = compact(made["unigram"])["model"]
    plain = [v for v in j["vocab"] if v[0] in ("▁", "a") or len(v[0]) > 1] + [[f"<0x{b:02X}>", 0.0] for b in range(256)]
    yield "unigram bytes", "unigram", {"model": {"vocab": plain, "byte_fallback": True}}
    yield "unigram twice", "unigram", {"model": {"vocab": j["vocab"] + [["th", -2.5], ["e", -1.0], ["=", -3.000000000000001], ["==", -6.000000000000002]]}}
    yield "delimiter", "wordlevel", part(pre_tokenizer=pre_tokenizers.Sequence([pre_tokenizers.CharDelimiterSplit("e"), pre_tokenizers.WhitespaceSplit()]))
    yield "fixed length", "wordpiece", part(pre_tokenizer=pre_tokenizers.FixedLength(3))
    yield "roberta pairs", "gpt2", part(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True),
                                        post_processor=processors.RobertaProcessing(("</s>", 1), ("<s>", 0)))
    merges = compact(made["gpt2"])["model"]["merges"]
    yield "merges again, backwards", "gpt2", {"model": {"merges": merges + merges[::-1]}}


def offsets_in_bytes(text, offsets):
    at = [0]
    for c in text:
        at.append(at[-1] + len(c.encode()))
    return [at[x] for pair in offsets for x in pair]


def expectation(t, text):
    e = t.encode(text)
    return [e.ids, offsets_in_bytes(text, e.offsets), t.decode(e.ids, skip_special_tokens=True)]


def with_changes(base, changes):
    j = json.loads(base.to_str())
    for key, value in changes.items():
        if key == "model":
            j["model"].update(value)
        elif key != "add":
            j[key] = value
    t = Tokenizer.from_str(json.dumps(j))
    t.add_tokens(changes.get("add", []))
    return t


def compact(tokenizer):
    j = json.loads(tokenizer.to_str())
    if "merges" not in j["model"]:
        return j
    merges = [" ".join(m) for m in j["model"]["merges"]]
    if not any(" " in a or " " in b for a, b in j["model"]["merges"]):
        j["model"]["merges"] = merges
    return j


def write(name, value):
    with open(name, "w", encoding="utf-8") as f:
        json.dump(value, f, ensure_ascii=False, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    made = dict(tokenizers())
    write("texts.json", TEXTS)
    write("expect.json", {name: [expectation(t, text) for text in TEXTS] for name, t in made.items()})
    for name, t in made.items():
        write(name + ".json", compact(t))
    rows = []
    for name, base, changes in variants(made):
        t = with_changes(made[base], changes)
        j = json.loads(t.to_str())
        original = json.loads(made[base].to_str())
        different = {k: j[k] for k in j if k != "model" and j[k] != original[k]}
        different["model"] = changes.get("model", {})
        # Only every third text of a variant is kept: enough to notice, small enough to commit.
        expect = [expectation(t, text) if (i + len(rows)) % 3 == 0 else None for i, text in enumerate(TEXTS)]
        rows.append({"name": name, "base": base, "changes": different, "expect": expect})
    write("variants.json", rows)
