#!/usr/bin/env python3
"""Compares `sbprun export` with llama.cpp: its converter key by key and tensor by tensor, itself by what it
computes, tokenizes and renders. Run by tests/gguf/llama.sh, which builds what is needed.

check.py --tree LLAMA_CPP --judge PROGRAM --bin FOLDER [--work FOLDER] [--write] [FAMILY ...]

Exit status 1 when something differs. --write: the table goes to tests/bench/RESULTS.md.
"""

import argparse
import contextlib
import io
import json
import logging
import math
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import models  # noqa: E402

TYPES = ["f32", "f16", "bf16", "q8_0"]
MOST = 1e-3  # log-probabilities in F32


def turn_experts(file):
    """Matrices of experts as they are published, [in, out]."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(file)
    for name in tensors:
        if ".mlp.experts." in name:
            tensors[name] = tensors[name].transpose(1, 2).contiguous()
    save_file(tensors, file, {"format": "pt"})


def older(source):
    """A directory with words of config.json that the converter knows."""
    config = json.loads((source / "config.json").read_text())
    if config["model_type"] == "granitemoehybrid" and config.get("layer_types"):
        names = {"full_attention": "attention", "linear_attention": "mamba"}
        config["layer_types"] = [names.get(t, t) for t in config["layer_types"]]
    elif config["model_type"] == "gpt_neox":
        config["rotary_pct"] = config["rope_parameters"]["partial_rotary_factor"]
    elif config["model_type"] in ("granite_swa", "granitemoe_swa"):
        config["no_rope_layers"] = [int(theta > 0) for theta in config["layer_rope_theta"]]
    elif config["model_type"] != "qwen3_vl_moe":
        return source
    copy = source.parent / "older" / source.name
    shutil.copytree(source, copy, dirs_exist_ok=True)
    if config["model_type"] == "qwen3_vl_moe":
        turn_experts(copy / "model.safetensors")
    (copy / "config.json").write_text(json.dumps(config))
    return copy


class Converter:
    """llama.cpp's, in this process. It cannot know tokenizers that are trained here: it is told their names."""

    def __init__(self, tree):
        sys.path[:0] = [str(tree), str(tree / "gguf-py")]
        logging.disable(logging.WARNING)
        import convert_hf_to_gguf
        from conversion import base

        self.main, self.base = convert_hf_to_gguf, base

    def convert(self, source, out, kind, pre):
        source = older(source)
        self.base.TextModel.get_vocab_base_pre = lambda _, tokenizer: pre
        sys.argv = ["convert_hf_to_gguf.py", str(source), "--outfile", str(out), "--outtype", kind, *(["--no-mtp"] if "qwen3_next" in str(source) or "qwen3_5" in str(source) else [])]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            self.main.main()


def read(path):
    import gguf

    reader = gguf.GGUFReader(path)
    keys = {}
    for name, field in reader.fields.items():
        if name.startswith("GGUF."):
            continue
        value = field.contents()
        keys[name] = (str(field.types), value)
    tensors = {t.name: (t.tensor_type.name, tuple(int(n) for n in t.shape), np.array(t.data)) for t in reader.tensors}
    return keys, tensors


def shorten(value):
    text = repr(value)
    return text if len(text) < 120 else text[:117] + ".."


# What is written otherwise on purpose, and why: (family begins with, key begins with)
KNOWN = [
    ("", "general.base_model.0.", "paths of this machine are not written"),
    # Without tokenizer.model the converter gives all tokens the score -1000, by which llama.cpp finds other tokens, and
    # takes the unknown token for a control token (is_known).
    ("gemma3$", "tokenizer.ggml.", "without tokenizer.model the converter calls Gemma's tokenizer byte-level"),
    ("gemma3", "gemma3.attention.sliding_window_pattern", "of windows that are not every sixth, the converter says nothing"),
    ("ernie4_5_moe", "ernie4_5-moe.expert_shared_feed_forward_length", "the converter takes another number; llama.cpp refuses its file"),
    ("cohere2", "cohere2.attention.sliding_window_pattern", "of windows that are not every fourth, the converter says nothing"),
    ("olmo3", "olmo2.rope.scaling.attn_factor", "an attention_factor that is not yarn's own"),
    ("olmoe", "olmoe.attention.layer_norm_rms_epsilon", "the converter writes 1e-5 whatever the model has"),
    ("glm", "chatglm.", "the converter reads the names of THUDM's own config"),
    ("deepseek_v3", "deepseek2.expert_gating_func", "config.json of transformers does not name it; llama.cpp would take softmax"),
    ("glm4_moe_lite", "deepseek2.expert_gating_func", "likewise"),
    ("glm4_moe_lite", "deepseek2.leading_dense_block_count", "the converter does not read mlp_layer_types"),
    ("hunyuan_v1_dense", "tokenizer.ggml.eos_token_id", "the converter takes eod_token_id, which transformers' class sets to 3"),
    ("granitemoehybrid", "granitehybrid.feed_forward_length", "without experts it is that of the shared MLP"),
    ("granitemoehybrid", "granitehybrid.rope.scaling.finetuned", "the converter takes all hybrids for NoPE"),
    ("nemotron_h$", "general.architecture", "transformers' config has num_experts_per_tok always, so that the converter takes all for experts"),
    ("nemotron_h$", "nemotron_h", "likewise"),
    ("nemotron_h", "blk.*.attn_q", "the converter permutes heads that nothing rotates"),
    ("nemotron_h", "blk.*.attn_k", "likewise"),
]


def is_known(name, family):
    if "model" in models.FAMILIES[family][1] and name == "tokenizer.ggml.token_type":
        return True  # a symbol that the user defined is a usual piece to the converter
    if models.FAMILIES[family][1] in ("spm", "gemma4") and name.startswith(("tokenizer.ggml.scores", "tokenizer.ggml.token_type")):
        return True
    name = re.sub(r"^blk\.\d+\.", "blk.*.", name)
    return any((family == f[:-1] if f.endswith("$") else family.startswith(f)) and name.startswith(k) for f, k, _ in KNOWN)


def compare_files(ours, theirs, family):
    """Lines for what differs, but for what is known to."""
    out = []
    a, b = read(ours), read(theirs)
    for name in sorted(set(a[0]) | set(b[0])):
        if a[0].get(name) != b[0].get(name) and not is_known(name, family):
            out.append(f"key {name}: {shorten(a[0].get(name))}, converter {shorten(b[0].get(name))}")
    for name in sorted(n for n in set(a[1]) | set(b[1]) if not is_known(n, family)):
        x, y = a[1].get(name), b[1].get(name)
        if x is None or y is None:
            out.append(f"tensor {name}: {'missing' if x is None else 'not in the converter'}")
        elif x[:2] != y[:2]:
            out.append(f"tensor {name}: {x[:2]}, converter {y[:2]}")
        elif x[2].tobytes() != y[2].tobytes():
            ulp = "" if x[2].dtype != np.float32 else np.abs(x[2].view(np.int32).astype(np.int64) - y[2].view(np.int32)).max()
            if name.endswith((".ssm_a", "rope_freqs.weight")) and ulp != "" and ulp <= 2:
                continue  # exp and pow of another library
            out.append(f"tensor {name}: other bytes {ulp}")
    return out


def ask(judge, files, requests):
    text = "".join(r + "\n" for r in requests)
    done = subprocess.run([str(judge), *map(str, files)], input=text, capture_output=True, text=True)
    if done.returncode != 0:
        lines = [x for x in done.stderr.splitlines() if x.strip() and "sysdeps" not in x]
        raise RuntimeError(" | ".join(lines[:3])[:300] or f"status {done.returncode}")
    return done.stdout.splitlines()


def run(command, **more):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **more)
    if done.returncode != 0:
        raise RuntimeError((done.stderr or done.stdout).strip().splitlines()[-1])
    return done.stdout


def scores(binary, model, rows, work, more=()):
    """Log-probabilities of sbprun."""
    data = work / "rows.jsonl"
    data.write_text("".join(json.dumps({"input_ids": r}) + "\n" for r in rows))
    out = work / "scores.jsonl"
    out.unlink(missing_ok=True)
    run([binary / "sbprun", model, "--data", data, "--score", out, "--seq-len", "96", "--quiet", *more])
    return [json.loads(line)["logps"] for line in out.read_text().splitlines()]


def hexed(text):
    return text.encode().hex()


def check_tokens(judge, file, model):
    """Texts that llama.cpp cuts otherwise, special ids, templates."""
    from transformers import AutoTokenizer

    t = AutoTokenizer.from_pretrained(model)
    rows, odd = models.texts()
    bad = []
    answers = ask(judge, [file], [f"text {hexed(x)}" for x in rows + odd])
    for text, line in zip(rows + odd, answers):
        ids = t(text)["input_ids"]
        if ids != [int(i) for i in line.split()]:
            bad.append(f"tokens of {text[:24]!r}: {line[:60]}, transformers {ids[:16]}")
    bos, eos, add_bos, add_eos = map(int, ask(judge, [file], ["special"])[0].split())
    adds = t("x")["input_ids"]
    if eos != t.eos_token_id or (t.bos_token_id is not None and bos != t.bos_token_id):
        bad.append(f"bos {bos}, eos {eos}; transformers {t.bos_token_id}, {t.eos_token_id}")
    if bool(add_bos) != (len(adds) > 1 and adds[0] == t.bos_token_id) or add_eos:
        bad.append(f"add_bos {add_bos}, add_eos {add_eos}; transformers {adds}")
    for talk in (["Hello"], ["Hi", "Yes?", "2 + 2"]):
        messages = [{"role": ["user", "assistant"][i % 2], "content": m} for i, m in enumerate(talk)]
        text = t.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        line = ask(judge, [file], ["chat " + " ".join(map(hexed, talk))])[0]
        if add_bos and t.bos_token:
            text = text.removeprefix(t.bos_token)  # llama.cpp leaves to its tokenizer what that adds
        if bytes.fromhex(line).decode() != text:
            bad.append(f"template of {len(talk)} messages: {bytes.fromhex(line).decode()!r}")
    return bad, t, rows


def distance(a, b):
    return max(abs(x - y) for r, s in zip(a, b) for x, y in zip(r, s))


def read_back(args, file, ids, work, found, bad):
    """What sbprun computes of the file that it wrote."""
    try:
        return distance(found, scores(args.bin, file, ids, work))
    except RuntimeError as error:
        bad.append(f"read back: {error}")
        return "no"


def check_family(family, args, converter, work):
    """(cells of the table, what is wrong)"""
    pre = models.FAMILIES[family][1]
    given = [] if pre in models.CHARACTERS else ["--pre", pre]
    model = work / "model"
    if not models.make(family, model):
        return None, []
    bad, cells, ids = [], {}, None
    reference = None
    for kind in TYPES:
        ours, theirs = work / f"ours-{kind}.gguf", work / f"theirs-{kind}.gguf"
        ours.unlink(missing_ok=True)
        run([args.bin / "sbprun", "export", model, "-o", ours, "--type", kind, *given])
        try:
            converter.convert(model, theirs, kind, pre)
            found = compare_files(ours, theirs, family)
            bad += [f"{kind}: {line}" for line in found if kind == "f32" or line.startswith("tensor")]
        except (Exception, SystemExit) as error:
            if kind == "f32":
                cells["converter"] = f"{type(error).__name__}: {error}"[:80]
        try:
            if kind == "f32":
                wrong, tokenizer, rows = check_tokens(args.judge, ours, model)
                bad += wrong
                ids = [tokenizer(r)["input_ids"][:90] for r in rows]
                cells["tokens"] = "equal" if not wrong else f"{len(wrong)} differ"
            lines = ask(args.judge, [ours], ["row " + " ".join(map(str, r)) for r in ids])
            found = [[float(x) for x in line.split()] for line in lines]
            wide = ask(args.judge, [ours], ["all " + " ".join(map(str, ids[0]))])[0]
            spread = np.array([float(x) for x in wide.split()]).reshape(len(ids[0]), -1)
            if kind == "f32":
                reference = spread
                cells["f32"] = distance(found, scores(args.bin, model, ids, work))
                cells["in"] = read_back(args, ours, ids, work, found, bad)
            else:
                kl = float((np.exp(reference) * (reference - spread)).sum(1).mean())
                top = float((reference.argmax(1) == spread.argmax(1)).mean())
                cells[kind] = (kl, top)
        except RuntimeError as error:
            cells.setdefault(kind, str(error)[:80])
            bad.append(f"{kind}: {error}")
            break
    if isinstance(cells.get("f32"), float) and not cells["f32"] <= MOST and "mxfp4" not in family:  # times Q8 there
        bad.append(f"log-probabilities differ by {cells['f32']:.2e}")
    return cells, bad


def same_tensors(a, b, what, most=0.0):
    """Lines for tensors of two files that are not the same numbers."""
    x, y = read(a)[1], read(b)[1]
    out = [f"{what}: {sorted(set(x) ^ set(y))}"] if set(x) != set(y) else []
    for name in set(x) & set(y):
        if x[name][:2] != y[name][:2] or np.abs(x[name][2].astype(np.float64) - y[name][2]).max() > most:
            out.append(f"{what}: {name} differs, {x[name][:2]}, {y[name][:2]}")
    return out


def check_adapter(family, args, converter, work):
    import torch

    model, adapter, bad, cells = work / "model", work / "adapter", [], {}
    pre = models.FAMILIES[family][1]
    given = [] if pre in models.CHARACTERS else ["--pre", pre]
    models.make(family, model)
    shutil.rmtree(adapter, ignore_errors=True)
    tuned = models.make_adapter(family, model, adapter).double()
    files = {n: work / f"{n}.gguf" for n in ("base", "adapter", "theirs", "merged", "again")}
    export = [args.bin / "sbprun", "export", "--overwrite", "--type", "f32"]
    run([*export, model, "-o", files["base"], *given])
    run([*export, adapter, "-o", files["adapter"]])
    run([*export, adapter, "--merge", "-o", files["merged"], *given])
    run([*export, adapter, "--merge", "--base", files["base"], "-o", files["again"]])
    script = args.tree / "convert_lora_to_gguf.py"
    try:
        run([sys.executable, script, adapter, "--base", model, "--outfile", files["theirs"], "--outtype", "f32"])
        bad += compare_files(files["adapter"], files["theirs"], family)
    except RuntimeError as error:
        cells["converter"] = str(error)[:80]
    bad += same_tensors(files["merged"], files["again"], "merged into the directory and into its GGUF file")
    rows = [list(range(3, 60)), list(range(200, 150, -1))]
    expected = []
    for row in rows:
        with torch.no_grad():
            logits = torch.log_softmax(tuned(torch.tensor([row])).logits[0], -1)
        expected.append([float(logits[i, t]) for i, t in enumerate(row[1:])])
    requests = ["row " + " ".join(map(str, r)) for r in rows]
    for name, loaded in (("adapter", [files["base"], files["adapter"]]), ("merged", [files["merged"]])):
        found = [[float(x) for x in line.split()] for line in ask(args.judge, loaded, requests)]
        cells[name] = distance(found, expected)
        if not cells[name] <= MOST:
            bad.append(f"{name}: log-probabilities differ from PEFT's by {cells[name]:.2e}")
    return cells, bad


def cell(value):
    if isinstance(value, float):
        return f"{value:.1e}"
    if isinstance(value, tuple):
        return f"{value[0]:.1e}, {100 * value[1]:.0f} %"
    return str(value if value is not None else "-")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tree", type=pathlib.Path, required=True)
    parser.add_argument("--judge", type=pathlib.Path, required=True)
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--work", type=pathlib.Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("families", nargs="*")
    args = parser.parse_args()
    for name in ("tree", "judge", "bin"):
        setattr(args, name, getattr(args, name).resolve())
    converter = Converter(args.tree)
    failed, rows = 0, []
    with tempfile.TemporaryDirectory() as scratch:
        work = args.work.resolve() if args.work else pathlib.Path(scratch)
        for family in args.families or models.FAMILIES:
            folder = work / family.replace(", ", "-")
            folder.mkdir(parents=True, exist_ok=True)
            try:
                cells, bad = check_family(family, args, converter, folder)
            except Exception as error:
                cells, bad = {}, [f"{type(error).__name__}: {error}"]
            if cells is None:
                print(f"{family}: skipped, its golden is not here", flush=True)
                continue
            failed += bool(bad)
            rows.append((family, cells))
            print(f"{family}: {'ok' if not bad else 'DIFFERS'} " + ", ".join(f"{k} {cell(v)}" for k, v in cells.items()), flush=True)
            for line in bad:
                print(f"    {line}", flush=True)
        for family in args.families or models.ADAPTERS:
            if family not in models.ADAPTERS:
                continue
            folder = work / ("adapter-" + family)
            folder.mkdir(parents=True, exist_ok=True)
            try:
                cells, bad = check_adapter(family, args, converter, folder)
            except Exception as error:
                cells, bad = {}, [f"{type(error).__name__}: {error}"]
            failed += bool(bad)
            rows.append(("adapter of " + family, cells))
            print(f"adapter of {family}: {'ok' if not bad else 'DIFFERS'} " + ", ".join(f"{k} {cell(v)}" for k, v in cells.items()), flush=True)
            for line in bad:
                print(f"    {line}", flush=True)
    if args.write:
        import table

        table.write(rows, args)
    print(f"{len(rows)} families, {failed} with differences")
    sys.exit(failed > 0)


main()
