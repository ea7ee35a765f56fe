#!/usr/bin/env python3
"""Exports of small random models to ONNX, compiled and differentiated in float64, beside the same weights from their directory.

    tests/golden/check_onnx_exports.py [--build DIR] [--work DIR] [--models llama,..] [--exports dynamo:23:on,..] [--mutants] [--programs]

Models: llama, qwen2, qwen3, mistral (window), gemma3 (windows, offsets), gpt2 (learned positions, LayerNorm). Exports: EXPORTER:OPSET:KEEP_NAMES
of examples/export_model_json.py. Reference: sbpc on the directory; for gpt2, which has no frontend, torch in float64. Largest relative
difference of a gradient (norm of the difference over norm), over parameters found by their values. Constants of an export
are float32, so rotary tables, scales and eps are as exact as they are in float32: the models here have eps 2^-20, heads of 16 and
rope_theta 256, where they are exact, but for gemma3's and the exporters' own constants. Exit status 1 above 1e-6.

--mutants: the llama exports with one thing changed (another mask, a window, a scale, a rotation swapped, a missing softmax): each must
be refused, or have gradients that agree with differences of its loss by onnx's reference implementation, within 2 %.

--programs: commands, bytes and seconds (by the cost model) of the program of each export beside that of the directory.

Needs torch, transformers, onnx, onnxscript, safetensors: a venv of its own.
"""
import argparse
import copy
import json
import os
import shutil
import subprocess
import sys

import numpy
import onnx
import torch
import transformers
from google.protobuf import json_format
from onnx import external_data_helper, numpy_helper
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM

TOP = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
ROPE = {"rope_theta": 256.0, "rope_type": "default"}
COMMON = dict(vocab_size=61, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
              head_dim=16, max_position_embeddings=128, rms_norm_eps=2.0**-20)
MODELS = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", dict(COMMON, rope_parameters=ROPE)),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", dict({k: v for k, v in COMMON.items() if k != "head_dim"}, rope_parameters=ROPE, tie_word_embeddings=True)),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", dict(COMMON, rope_parameters=ROPE, tie_word_embeddings=True)),
    "mistral": ("MistralConfig", "MistralForCausalLM", dict(COMMON, rope_parameters=ROPE, sliding_window=9)),
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM", dict(COMMON, sliding_window=8, layer_types=["sliding_attention", "full_attention"],
                                                             query_pre_attn_scalar=16, rope_parameters={"full_attention": ROPE, "sliding_attention": ROPE})),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", dict(vocab_size=61, n_positions=64, n_embd=64, n_layer=2, n_head=4, layer_norm_epsilon=2.0**-20,
                                                   attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0)),
}
EXPORTS = ["dynamo:18:off", "dynamo:20:off", "dynamo:23:on", "dynamo:23:off", "dynamo:24:on", "legacy:18:off", "legacy:20:off"]
ROWS = [5, 23, 12]


def make_model(name, folder):
    config, model, options = MODELS[name]
    torch.manual_seed(sum(map(ord, name)))
    m = getattr(transformers, model)(getattr(transformers, config)(**options)).float()
    for key, p in m.named_parameters():
        ones = ("norm" in key and name != "gemma3" and key.endswith("weight")) or key.split(".")[-2] in ("ln_1", "ln_2", "ln_f") and key.endswith("weight")
        p.data = torch.randn_like(p) * 0.1 + (1.0 if ones else 0.0)
    m.save_pretrained(folder)


def run(*command):
    result = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    return result.returncode, (result.stderr or result.stdout).strip()


def run_output(*command):
    return subprocess.run([str(c) for c in command], capture_output=True, text=True).stdout


def gradients(build, model, work):
    """Gradients of a model (directory or model.json) by this project, or the reason why not."""
    os.makedirs(work, exist_ok=True)
    plan, out, data = (os.path.join(work, n) for n in ("plan.bin", "gradients.safetensors", "rows.jsonl"))
    generator = numpy.random.default_rng(7)
    with open(data, "w", encoding="utf-8") as file:
        for n in ROWS:
            file.write(json.dumps({"input_ids": generator.integers(0, 61, n).tolist()}) + "\n")
    status, text = run(os.path.join(build, "sbpc"), "compile", model, "-o", plan, "--dtype", "fp64", "--seq-len", 64, "--optimizer", "sgd")
    if status == 0:
        status, text = run(os.path.join(build, "sbprun"), plan, "--data", data, "--batch-size", len(ROWS), "--dump-gradients", out)
    if status == 0:
        return load_file(out), None
    return None, next((line for line in text.splitlines() if line.startswith("error")), text.splitlines()[-1] if text else f"exit status {status}")


def program(build, model, work, dtype):
    """Commands of a step's program, its bytes on the device and its seconds by the cost model."""
    plan = os.path.join(work, "compared.bin")
    status, text = run(os.path.join(build, "sbpc"), "compile", model, "-o", plan, "--dtype", dtype, "--seq-len", 64, "--chunk", 16, "--head-chunk", 16)
    if status != 0:
        return text
    facts = json.loads(run_output(os.path.join(build, "sbpc"), "inspect", "--json", plan))
    return {"commands": facts["commands"], "bytes": sum(facts["peak_bytes"].values()) if isinstance(facts["peak_bytes"], dict) else facts["peak_bytes"],
            "Mflop": facts["flops"] / 1e6, "us": facts["seconds"] * 1e6}


def compare_programs(arguments, name, export):
    """The program of an export beside that of the directory, fp32 and bf16."""
    folder = os.path.join(arguments.work, name)
    out = os.path.join(arguments.work, "-".join([name, *export.split(":")]))
    for dtype in ("fp32", "bf16"):
        of = [program(arguments.build, m, out, dtype) for m in (folder, os.path.join(out, "model.json"))]
        if not all(isinstance(p, dict) for p in of):
            print(f"{name:8s} {export:14s} {dtype}: {next(p for p in of if not isinstance(p, dict))[:100]}")
            continue
        text = ", ".join(f"{key} {of[0][key]:.5g}" + ("" if of[0][key] == of[1][key] else f" / {of[1][key]:.5g}") for key in of[0])
        print(f"{name:8s} {export:14s} {dtype}: {'the same' if of[0] == of[1] else 'differ (directory / export)'}: {text}", flush=True)


def torch_gradients(folder):
    m = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()
    generator = numpy.random.default_rng(7)
    rows = [torch.tensor(generator.integers(0, 61, n).tolist()) for n in ROWS]
    total = sum(torch.nn.functional.cross_entropy(m(input_ids=ids[None], use_cache=False).logits[0, :-1], ids[1:], reduction="sum") for ids in rows)
    (total / sum(n - 1 for n in ROWS)).backward()
    return {n: p.grad.numpy() for n, p in m.named_parameters()}


def exported_values(path):
    """Name -> float initializer of a model.json, external ones read."""
    with open(path, encoding="utf-8") as file:
        model = json_format.Parse(file.read(), onnx.ModelProto())
    external_data_helper.load_external_data_for_model(model, os.path.dirname(path)) if not os.path.exists(os.path.join(os.path.dirname(path), "model.safetensors")) else None
    files = [load_file(os.path.join(os.path.dirname(path), f)) for f in os.listdir(os.path.dirname(path)) if f.endswith(".safetensors") and f != "gradients.safetensors"]
    out = {}
    for t in model.graph.initializer:
        stored = next((f[t.name] for f in files if t.name in f), None)
        if t.data_type == onnx.TensorProto.FLOAT and (stored is not None or t.data_location != onnx.TensorProto.EXTERNAL):
            out[t.name] = stored if stored is not None else numpy_helper.to_array(t)
    return out


def compare(got, values, reference, weights):
    """Largest difference over the reference's parameters, each found among the export's by its values."""
    worst, missing = 0.0, []
    least = 1e-6 * max(numpy.linalg.norm(g) for g in reference.values())  # some are zero but for rounding, as a bias of keys is
    for name, w in weights.items():
        if name not in reference:
            continue
        for key, value in values.items():
            offset = value.ndim == 1 and numpy.array_equal(value, w + numpy.float32(1))  # folded
            if key in got and value.shape == w.shape and (numpy.array_equal(value, w) or offset):
                difference, norm = got[key] - reference[name], max(numpy.linalg.norm(reference[name]), least)
            elif key in got and value.ndim == 2 and value.T.shape == w.shape and numpy.array_equal(value.T, w):
                difference, norm = got[key].T - reference[name], max(numpy.linalg.norm(reference[name]), least)
            else:
                continue
            worst = max(worst, float(numpy.linalg.norm(difference) / norm))
            break
        else:
            missing.append(name)
    return worst, missing


def check(arguments, name, export, reference, weights):
    exporter, opset, keep = export.split(":")
    out = os.path.join(arguments.work, f"{name}-{exporter}-{opset}-{keep}")
    path = os.path.join(out, "model.json")
    if not os.path.exists(path):
        status, text = run(sys.executable, os.path.join(TOP, "examples", "export_model_json.py"), os.path.join(arguments.work, name), "-o", out,
                           "--exporter", exporter, "--opset", opset, "--keep-names", keep)
        if status != 0:
            print(f"{name:8s} {export:14s} the exporter fails: {text.splitlines()[-1][:100]}")
            return None
    got, why = gradients(arguments.build, path, out)
    if got is None:
        print(f"{name:8s} {export:14s} refused: {why[:200]}")
        return False
    worst, missing = compare(got, exported_values(path), reference, weights)
    print(f"{name:8s} {export:14s} {worst:.1e}" + (f"  not found: {missing}" if missing else ""), flush=True)
    return worst < 1e-6 and not missing


# ---- mutants ----------------------------------------------------------------------------------------------------


def mutants(model):
    """(what, changed copy) of an exported model: one node changed at a time."""
    def changed(what, edit, op, index=0):
        out = copy.deepcopy(model)
        nodes = [n for n in out.graph.node if n.op_type == op]
        if index < len(nodes):
            edit(out.graph, nodes[index])
            yield what, out

    def renamed(op):
        def edit(graph, node):
            node.op_type = op
        return edit

    def swap(graph, node):
        node.input[0], node.input[1] = node.input[1], node.input[0]

    def bypass(graph, node):
        for other in graph.node:
            for i, name in enumerate(other.input):
                if name == node.output[0]:
                    other.input[i] = node.input[0]

    def attribute(name, value):
        def edit(graph, node):
            for a in node.attribute:
                if a.name == name:
                    a.f = value
        return edit

    yield from changed("keys before the query hidden", renamed("GreaterOrEqual"), "LessOrEqual")
    yield from changed("a token hidden from itself", renamed("Less"), "LessOrEqual")
    yield from changed("mask compared the other way", swap, "LessOrEqual")
    yield from changed("same position instead of causal", renamed("Equal"), "LessOrEqual")
    yield from changed("or for and in the mask", renamed("Or"), "And", 1)
    yield from changed("the second or", renamed("Or"), "And", 0)
    yield from changed("documents that differ see each other", renamed("Not"), "Equal", 1)
    yield from changed("sin for cos", renamed("Sin"), "Cos")
    yield from changed("cos for sin", renamed("Cos"), "Sin")
    yield from changed("half of the head not negated", bypass, "Neg")
    yield from changed("half of the key not negated", bypass, "Neg", 1)
    yield from changed("rotation swapped", swap, "Concat", 2)
    yield from changed("no softmax", bypass, "Softmax")
    yield from changed("softmax over the wrong axis", lambda g, n: [setattr(a, "i", 2) for a in n.attribute if a.name == "axis"], "Softmax")
    yield from changed("no root in the norm", bypass, "Sqrt")
    yield from changed("no reciprocal in the norm", bypass, "Reciprocal")
    yield from changed("sum for mean", renamed("ReduceSum"), "ReduceMean")
    yield from changed("tanh for sigmoid", renamed("Tanh"), "Sigmoid")
    yield from changed("product for residual sum", renamed("Mul"), "Add", 8)
    yield from changed("another scale", attribute("scale", 0.5), "Attention")
    yield from changed("another softcap", attribute("softcap", 3.0), "Attention")
    yield from changed("another eps", attribute("epsilon", 0.25), "RMSNormalization")


def loss(evaluator_of, model, values):
    """Of the rows of gradients(), with these initializers, by onnx's reference implementation."""
    for t in model.graph.initializer:
        if t.name in values:
            t.CopyFrom(numpy_helper.from_array(values[t.name].astype(numpy.float32), t.name))
    evaluator, total, generator = evaluator_of(model), 0.0, numpy.random.default_rng(7)
    names = [i.name for i in model.graph.input]
    for n in ROWS:
        ids = generator.integers(0, 61, n)
        feeds = {"input_ids": ids[None], "attention_mask": numpy.ones((1, n), numpy.int64), "position_ids": numpy.arange(n)[None]}
        logits = evaluator.run(["logits"], {k: v for k, v in feeds.items() if k in names})[0][0].astype(numpy.float64)
        logp = logits - logits.max(-1, keepdims=True)
        logp -= numpy.log(numpy.exp(logp).sum(-1, keepdims=True))
        total -= logp[numpy.arange(n - 1), ids[1:]].sum()
    return total / sum(n - 1 for n in ROWS)


def slope_error(model, values, got):
    """Our gradients along a random direction against differences of the loss, relative."""
    from onnx.reference import ReferenceEvaluator
    generator = numpy.random.default_rng(3)
    direction = {k: generator.standard_normal(g.shape) for k, g in got.items()}
    ours = sum(float((g * direction[k]).sum()) for k, g in got.items())
    slopes = []
    for step in (1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6, 1e-6):  # too long: curved; too short: rounded. Where two agree best it is neither.
        above, below = (loss(ReferenceEvaluator, model, dict(values, **{k: values[k] + sign * step * direction[k] for k in got})) for sign in (1, -1))
        slopes.append((above - below) / (2 * step))
    best = min(range(len(slopes) - 1), key=lambda i: abs(slopes[i] - slopes[i + 1]))
    return abs(slopes[best] - ours) / max(abs(slopes[best]), abs(ours), 1e-3)


def check_mutants(arguments, export, reference, weights):
    exporter, opset, keep = export.split(":")
    base = os.path.join(arguments.work, f"llama-{exporter}-{opset}-{keep}")
    with open(os.path.join(base, "model.json"), encoding="utf-8") as file:
        model = json_format.Parse(file.read(), onnx.ModelProto())
    out, count, good = os.path.join(base, "mutant"), 0, True
    os.makedirs(out, exist_ok=True)
    for name in os.listdir(base):
        if name.startswith("model.") and name != "model.json" and not os.path.exists(os.path.join(out, name)):
            shutil.copy(os.path.join(base, name), os.path.join(out, name))
    for what, mutant in mutants(model):
        path = os.path.join(out, "model.json")
        with open(path, "w", encoding="utf-8") as file:
            file.write(json_format.MessageToJson(mutant))
        got, why = gradients(arguments.build, path, out)
        count += 1
        if got is None:
            print(f"         {what:38s} refused: {why.split('model.json: ')[-1][:150]}")
            continue
        values = exported_values(path)
        try:
            error = slope_error(mutant, values, got)
        except Exception as reason:  # the reference refuses it, we did not
            error, why = float("inf"), f" ({type(reason).__name__})"
        good = good and error < 2e-2
        print(f"         {what:38s} {'right' if error < 2e-2 else 'WRONG'}: {error:.1e} from differences{why or ''}")
    print(f"llama    {export:14s} {count} mutants")
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(TOP, "build", "release"))
    parser.add_argument("--work", default="/tmp/onnx-exports")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--exports", default=",".join(EXPORTS))
    parser.add_argument("--mutants", action="store_true")
    parser.add_argument("--programs", action="store_true")
    a = parser.parse_args()
    good = True
    for name in a.models.split(","):
        folder = os.path.join(a.work, name)
        if not os.path.exists(os.path.join(folder, "config.json")):
            make_model(name, folder)
        weights = load_file(os.path.join(folder, "model.safetensors"))
        reference, why = (torch_gradients(folder), None) if name == "gpt2" else gradients(a.build, folder, folder + "-reference")
        if reference is None:
            print(f"{name}: its directory is refused: {why}")
            return 1
        for export in a.exports.split(","):
            result = check(a, name, export, reference, weights)
            good = good and result is not False
            if a.programs and result is not None and name != "gpt2":
                compare_programs(a, name, export)
            if a.mutants and name == "llama" and result is not None:
                good = check_mutants(a, export, reference, weights) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
