"""Makes the files that the tests of file formats read:
  plain.safetensors    every dtype that can be read, as the safetensors library writes it
  foreign.safetensors  one that cannot
  quants.gguf          every block type of GGUF that can be read, random codes
    quants.safetensors   what the gguf package makes of them
  grids.gguf, .safetensors   the same of types whose codes stand in grids and tables
  ../../../frontends/formats/weights/gguf_grids.def   the grids of ggml's types, as indices of their numbers

  spm.gguf, spm.json   a SentencePiece vocabulary; what it makes of ../tokenizers/texts.json
  gemma.gguf, .json    the same with what is special about Gemma's files
  NAME.gguf            the byte-level tokenizers of ../tokenizers as GGUF
  deepseek.gguf, .json one of them with DeepSeek-V3's patterns, of which there are three
  gemma4.gguf          gemma.gguf with merges, as Gemma 4's files are


    python3 make.py      # in this directory; needs: pip install safetensors==0.8.0 gguf==0.19.0 tokenizers numpy
"""
import json
import sys

import numpy as np
import gguf
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize
from safetensors import TensorSpec, serialize_file

sys.path.insert(0, "../tokenizers")
import make as tok  # noqa: E402
from tokenizers import Tokenizer, decoders, models, normalizers, processors  # noqa: E402

rng = np.random.default_rng(7)


def save(path, tensors, metadata=None):
    """tensors: {name: (dtype, array)}"""
    kept = {k: (d, np.ascontiguousarray(a).reshape(np.shape(a))) for k, (d, a) in tensors.items()}
    specs = {k: TensorSpec(dtype=d, shape=list(a.shape), data_ptr=a.ctypes.data, data_len=a.nbytes) for k, (d, a) in kept.items()}
    serialize_file(specs, path, metadata=metadata)


def bf16(a):
    return (np.ascontiguousarray(a, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def add_blocks(w, name, blocks, expected):
    """blocks: [2, 3, bytes of one of the type `name`]; expected: what the package makes of them."""
    rows = blocks.reshape(2, -1)
    w.add_tensor(name.lower(), rows, raw_dtype=Type[name])
    expected[name.lower()] = dequantize(rows, Type[name]).astype(np.float32)


def finish(w, path, expected):
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    save(path, {k: ("float32", a) for k, a in expected.items()})


def grids():
    """Entries as fields of 2 or 3 bits: the number of a value among those that occur in the grid."""
    lines = [
        "/* GRID(name, count, entries): the grids of ggml's types IQ1, IQ2 and IQ3. An entry is eight fields of 2 bits, or",
        " * four of 3, the first in the lowest bits: which of the grid's numbers a value is. Numbers of the format; written",
        " * by tests/data/io/make.py from the Python package gguf. */",
    ]
    for name in "IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ1_S".split():
        kind = getattr(gguf.quants, name)
        kind.init_grid()
        grid = kind.grid.reshape(kind.grid_shape)
        bits = 2 if kind.grid_shape[1] == 8 else 3
        levels = list(kind.grid_map)
        entries = [sum(levels.index(int(x)) << (bits * i) for i, x in enumerate(row)) for row in grid]
        lines.append(f"GRID({name.lower()}, {len(entries)},")
        for at in range(0, len(entries), 16):
            text = ", ".join(str(e) for e in entries[at:at + 16])
            lines.append(f"     {text}" + (")" if at + 16 >= len(entries) else ","))
    lines.append("#undef GRID")
    with open("../../../frontends/formats/weights/gguf_grids.def", "w") as f:
        f.write("\n".join(lines) + "\n")


def grid_quants():
    own = np.random.default_rng(11)
    w = gguf.GGUFWriter("grids.gguf", "none")
    expected = {}
    for name in "IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ1_S IQ1_M IQ4_NL IQ4_XS TQ1_0 TQ2_0 MXFP4 NVFP4".split():
        kind = Type[name]
        elems, size = gguf.GGML_QUANT_SIZES[kind]
        blocks = own.integers(0, 256, (2, 3, size), dtype=np.uint8)
        scale = own.standard_normal((2, 3, 1)).astype(np.float16).view(np.uint8).reshape(2, 3, 2)
        if name == "IQ1_M":  # a nibble of the scale in each of four
            for i in range(4):
                nibble = scale[:, :, i // 2] >> (i % 2 * 4) & 15
                blocks[:, :, 48 + 2 * i + 1] = blocks[:, :, 48 + 2 * i + 1] & 15 | nibble << 4
        elif name == "MXFP4":  # ggml makes a number of the scale that stands for none
            blocks[:, :, 0] = blocks[:, :, 0] % 200
        elif name != "NVFP4":
            at = {"TQ1_0": 52, "TQ2_0": 64}.get(name, 0)
            blocks[:, :, at:at + 2] = scale
        add_blocks(w, name, blocks, expected)
    finish(w, "grids.safetensors", expected)


def plain():
    f = rng.standard_normal((3, 5)).astype(np.float32)
    tensors = {
        "odd": ("int8", np.array([-128, 127, 3], np.int8)),
        "flags": ("bool", np.array([True, False, True, True])),
        "f64": ("float64", rng.standard_normal(4)),
        "f32": ("float32", f),
        "f16": ("float16", np.array([0.1, -2, 65504, 6e-8, np.inf], np.float16)),
        "bf16": ("bfloat16", bf16([[1, -2.5], [3e38, 1e-40]])),
        "i32": ("int32", np.array([[-(2**31)], [2**31 - 1]], np.int32)),
        "i64": ("int64", np.array([2**40, -1, 7])),
        "scalar": ("float32", np.array(1.5, np.float32)),
        "empty": ("float32", np.zeros((0, 4), np.float32)),
        "long.name \"quoted\" é": ("float32", np.arange(3, dtype=np.float32)),
    }
    save("plain.safetensors", tensors, {"format": "pt"})
    save("foreign.safetensors", {"x": ("float8_e4m3fn", np.arange(4, dtype=np.uint8)), "y": ("float32", np.ones(1, np.float32))})


def quants():
    w = gguf.GGUFWriter("quants.gguf", "llama")
    w.add_uint32("llama.block_count", 2)
    w.add_float32("llama.eps", 1e-5)
    w.add_float64("t.f64", 0.1)
    w.add_int8("t.i8", -3)
    w.add_uint8("t.u8", 200)
    w.add_int16("t.i16", -300)
    w.add_uint16("t.u16", 60000)
    w.add_int64("t.i64", -(2**40))
    w.add_uint64("t.u64", 2**63 + 1)
    w.add_bool("t.bool", True)
    w.add_string("t.text", "é\n")
    w.add_array("t.numbers", [1.5, 2.5])
    w.add_array("t.strings", ["a", "", "ccc"])
    w.add_array("t.ints", [1, -2, 3])
    expected = {}
    f = rng.standard_normal((2, 3)).astype(np.float32)
    w.add_tensor("f32", f)
    w.add_tensor("f16", f.astype(np.float16))
    w.add_tensor("bf16", bf16(f).view(np.uint8).reshape(2, 6), raw_dtype=Type.BF16)
    w.add_tensor("f64", f.astype(np.float64))
    w.add_tensor("i32", np.array([5, -6], np.int32))
    expected.update({"f32": f, "f16": f.astype(np.float16).astype(np.float32),
                     "bf16": (bf16(f).astype(np.uint32) << 16).view(np.float32), "f64": f})
    for name in "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K".split():
        kind = Type[name]
        elems, size = gguf.GGML_QUANT_SIZES[kind]
        blocks = rng.integers(0, 256, (2, 3, size), dtype=np.uint8)
        scale = rng.standard_normal((2, 3, 2)).astype(np.float16).view(np.uint8).reshape(2, 3, 4)
        at = {"Q2_K": 80, "Q3_K": 108, "Q6_K": 208}.get(name, 0)  # where the half-precision scales are
        n = 4 if name in ("Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K") else 2
        blocks[:, :, at:at + n] = scale[:, :, :n]
        add_blocks(w, name, blocks, expected)
    finish(w, "quants.safetensors", expected)


def write_tokenizer(path, model, tokens, types, pre=None, merges=None, scores=None, architecture="llama", **flags):
    w = gguf.GGUFWriter(path, architecture)
    w.add_tokenizer_model(model)
    if pre:
        w.add_tokenizer_pre(pre)
    w.add_token_list(tokens)
    w.add_token_types(types)
    if merges:
        w.add_token_merges(merges)
    if scores:
        w.add_token_scores(scores)
    w.add_bos_token_id(tokens.index("<s>"))
    w.add_eos_token_id(tokens.index("</s>"))
    for key, value in flags.items():
        getattr(w, key)(value)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def byte_level(name, pre, path=None, **flags):
    j = json.load(open(f"../tokenizers/{name}.json"))
    vocab = sorted(j["model"]["vocab"], key=j["model"]["vocab"].get)
    special = {a["content"] for a in j["added_tokens"]}
    write_tokenizer(path or f"{name}.gguf", "gpt2", vocab, [3 if t in special else 1 for t in vocab], pre, j["model"]["merges"], **flags)


def deepseek():
    from tokenizers import Regex, pre_tokenizers as pre

    byte_level("gpt2", "deepseek-v3", path="deepseek.gguf")
    patterns = [
        r"\p{N}{1,3}",
        "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
        r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
    ]
    t = Tokenizer.from_file("../tokenizers/gpt2.json")
    splits = [pre.Split(Regex(p), "isolated") for p in patterns]
    t.pre_tokenizer = pre.Sequence([*splits, pre.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.write("deepseek.json", [tok.expectation(t, text) for text in tok.TEXTS])


def spm(name, base, gemma):
    j = json.load(open(f"../tokenizers/{base}.json"))
    vocab = sorted(j["model"]["vocab"], key=j["model"]["vocab"].get)
    user = [a["content"] for a in j["added_tokens"] if not a["special"]]
    fixed = 259 + len(user)
    words = vocab[fixed:]
    # Best score to the earliest merge, single characters last, as SentencePiece numbers them.
    order = sorted(words, key=lambda t: (len(t) == 1, len(words) - words.index(t) if len(t) == 1 else words.index(t)))
    vocab = vocab[:fixed] + order
    scores = [0.0] * fixed + [-float(i) for i in range(len(order))]
    types = [2, 3, 3] + [6] * 256 + [4] * len(user) + [1] * len(order)
    if gemma:  # as the files have it: runs of spaces as they are, the scores of user-defined tokens lost
        written = [" " * len(t) if t in user and set(t) == {"▁"} else t for t in vocab]
        write_tokenizer(name + ".gguf", "llama", written, types, scores=[-1000.0] * len(vocab), architecture="gemma3",
                        add_unk_token_id=0, add_add_space_prefix=False)
    else:
        write_tokenizer(name + ".gguf", "llama", vocab, types, scores=scores, add_unk_token_id=0)
    ids, score = {t: i for i, t in enumerate(vocab)}, dict(zip(vocab, scores))
    merges = []
    for token in vocab:  # transformers' generate_merges
        cuts = [(token[:i], token[i:]) for i in range(1, len(token))]
        merges += sorted(((a, b, score[token]) for a, b in cuts if a in ids and b in ids), key=lambda m: (ids[m[0]], ids[m[1]]))
    merges.sort(key=lambda m: (m[2], len(m[0]), len(m[1])), reverse=True)
    if gemma:
        write_tokenizer("gemma4.gguf", "gemma4", written, types, merges=[f"{a} {b}" for a, b, _ in merges],
                        scores=[-1000.0] * len(vocab), architecture="gemma4", add_unk_token_id=0, add_add_space_prefix=False)
    t = Tokenizer(models.BPE(vocab=ids, merges=[m[:2] for m in merges], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    replace = normalizers.Replace(" ", "▁")
    t.normalizer = replace if gemma else normalizers.Sequence([normalizers.Prepend("▁"), replace])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    t.decoder = decoders.Sequence(steps + ([] if gemma else [decoders.Strip(" ", 1, 0)]))
    t.add_special_tokens(tok.added("<unk>", "<s>", "</s>"))
    t.add_tokens(tok.added(*user, special=False))
    t.post_processor = tok.bos(t)
    tok.write(name + ".json", [tok.expectation(t, text) for text in tok.TEXTS])


plain()
quants()
grids()
grid_quants()
spm("spm", "llama2", False)
spm("gemma", "gemma3", True)
byte_level("qwen2", "qwen2")
byte_level("llama3", "llama-bpe")
byte_level("smollm2", "smollm", add_add_bos_token=False)
byte_level("gpt2", "gpt-2", add_add_eos_token=True)
deepseek()
