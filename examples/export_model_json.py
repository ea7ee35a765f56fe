#!/usr/bin/env python3
"""Export a Hugging Face model for `sbpc compile`: model.json (ONNX as JSON), its weights beside it.

    examples/export_model_json.py MODEL -o DIR [--opset 23] [--exporter dynamo|legacy] [--keep-names on|off]

MODEL is a directory or a name that transformers loads (AutoModelForCausalLM), or FILE.py:FUNCTION, a function without
arguments that returns a torch module whose forward takes input_ids [1, T] and returns logits [1, T, V] (or an object with
.logits). Then

    sbpc compile DIR/model.json -o plan.bin

With the dynamo exporter and --keep-names on (the default) parameters keep their names and their layout, so that trained weights
go back where they came from: DIR/model.safetensors has them. The model's tokenizer and chat template are copied beside it. Otherwise the exporter folds transposes into weights of its own
names; they lie in DIR/model.onnx.data. Needs torch, onnx, onnxscript, and transformers for a MODEL that is no file.
"""
import argparse
import importlib.util
import os
import shutil
import sys

import onnx
import torch
from google.protobuf.json_format import MessageToJson


class Logits(torch.nn.Module):
    """What a step differentiates: token ids to logits, no cache."""

    def __init__(self, model, takes_mask):
        super().__init__()
        self.model = model
        self.takes_mask = takes_mask

    def forward(self, input_ids, attention_mask=None):
        options = {"attention_mask": attention_mask, "use_cache": False} if self.takes_mask else {}
        out = self.model(input_ids, **options)
        return out.logits if hasattr(out, "logits") else out


def load(name):
    path, _, function = name.partition(":")
    if path.endswith(".py"):
        spec = importlib.util.spec_from_file_location("model", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return Logits(getattr(module, function or "model")(), False), False
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32, attn_implementation="sdpa")
    model.config.use_cache = False
    return Logits(model, True), True


def export_dynamo(wrapped, inputs, opset, keep_names, folder):
    program = torch.onnx.export(wrapped, (), kwargs=inputs, input_names=list(inputs), output_names=["logits"], opset_version=opset,
                                dynamo=True, optimize=not keep_names, verbose=False, dynamic_shapes={k: {1: "T"} for k in inputs})
    if not keep_names:
        program.save(os.path.join(folder, "model.onnx"), external_data=True)
        return
    import onnx_ir
    import onnxscript.optimizer
    names = set(wrapped.state_dict())
    onnxscript.optimizer.optimize_ir(program.model, should_fold=lambda node: False if any(v is not None and v.name in names for v in node.inputs) else None)
    if opset >= 23:  # RMSNormalization, RotaryEmbedding
        from onnxscript.rewriter import onnx_fusions
        onnx_fusions.fuse(program.model)
    for value in list(program.model.graph.initializers.values()):  # without the wrapper's prefix
        if value.name.startswith("model."):
            value.name = value.name[len("model."):]
    onnx_ir.save_safetensors(program.model, os.path.join(folder, "model.onnx"))


def export_legacy(wrapped, inputs, opset, folder):
    torch.onnx.export(wrapped, tuple(inputs.values()), os.path.join(folder, "model.onnx"), input_names=list(inputs),
                      output_names=["logits"], opset_version=opset, dynamo=False, dynamic_axes={k: {1: "T"} for k in [*inputs, "logits"]})
    model = onnx.load(os.path.join(folder, "model.onnx"))
    onnx.save(model, os.path.join(folder, "model.onnx"), save_as_external_data=True, location="model.onnx.data")


def export(wrapped, takes_mask, out, opset=23, exporter="dynamo", keep_names=True):
    """model.json of what load() returned, in the folder `out`; its path."""
    os.makedirs(out, exist_ok=True)
    wrapped.eval()
    inputs = {"input_ids": torch.arange(5)[None] % 3}
    if takes_mask:
        inputs["attention_mask"] = torch.ones(1, 5, dtype=torch.int64)
    with torch.no_grad():
        if exporter == "dynamo":
            export_dynamo(wrapped, inputs, opset, keep_names, out)
        else:
            export_legacy(wrapped, inputs, opset, out)
    path = os.path.join(out, "model.onnx")
    with open(os.path.join(out, "model.json"), "w", encoding="utf-8") as file:
        file.write(MessageToJson(onnx.load(path, load_external_data=False)))
    os.remove(path)
    return os.path.join(out, "model.json")


def copy_tokenizer(name, out):
    """What texts and chats need of the model's own files; a model from a FILE.py has none."""
    from transformers.utils import cached_file
    for file in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "generation_config.json"):
        found = cached_file(name, file, _raise_exceptions_for_missing_entries=False)
        if found:
            shutil.copyfile(found, os.path.join(out, file))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("-o", "--out", required=True)
    parser.add_argument("--opset", type=int, default=23)
    parser.add_argument("--exporter", choices=["dynamo", "legacy"], default="dynamo")
    parser.add_argument("--keep-names", choices=["on", "off"], default="on")
    a = parser.parse_args()
    wrapped, takes_mask = load(a.model)
    print(export(wrapped, takes_mask, a.out, a.opset, a.exporter, a.keep_names == "on"))
    if not a.model.partition(":")[0].endswith(".py"):
        copy_tokenizer(a.model, a.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
