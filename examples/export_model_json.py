#!/usr/bin/env python3
"""Export a Hugging Face model for `sbpc compile`: model.json (ONNX as JSON), its weights beside it.

    examples/export_model_json.py MODEL -o DIR [--opset 23] [--exporter dynamo|legacy] [--keep-names on|off]

MODEL is a directory or a name that transformers loads (AutoModelForCausalLM), or FILE.py:FUNCTION, a function without
arguments that returns a torch module whose forward takes input_ids [1, T] and returns logits [1, T, V] (or an object with
.logits). Then

    sbpc compile DIR/model.json -o plan.bin

With the dynamo exporter and --keep-names on (the default) parameters keep their names and their layout, so that trained weights
go back where they came from: DIR/model.safetensors has them. The model's tokenizer and chat template are copied beside it. Otherwise the exporter folds transposes into weights of its own
names; they lie in DIR/model.onnx.data. Experts are exported as gathered matrices, the delta rule and Mamba-2 (dynamo) as operators of domain
streambp, which sbpc alone knows. However it is exported, what is one parameter in torch is one in the result, and parameters that
merely have equal values stay apart; an export that has lost one is an error. Needs torch, onnx, onnxscript, and transformers for a MODEL that is no file.
"""
import argparse
import collections
import contextlib
import hashlib
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
    # Experts as gathered matrices: what transformers computes them with otherwise (grouped_mm) has no form in ONNX.
    options = {"attn_implementation": "sdpa", "experts_implementation": "batched_mm"}
    while True:
        try:
            model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32, **options)
            break
        except ValueError as error:
            if "scaled_dot_product_attention" not in str(error) or options["attn_implementation"] == "eager":
                raise
            options["attn_implementation"] = "eager"  # attention with sinks
        except TypeError as error:
            if "experts_implementation" not in str(error) or not options.pop("experts_implementation", None):  # before transformers 5
                raise
    model.config.use_cache = False
    return Logits(model, True), True


# ---- layers with states ---------------------------------------------------------------------------------
#
# transformers computes them in chunks, which the exporter writes out as thousands of operators. Here each is an operator of its own,
# DeltaRule or Ssd of domain streambp, as ir/graph/ops/delta.c has them; what is around them stays as it is.


def operator(name, like, *inputs):
    return torch.onnx.ops.symbolic(f"streambp::{name}", inputs, dtype=like.dtype, shape=like.shape, version=1)


def delta_rule_layer(query, key, value, g, beta, chunk_size=64, initial_state=None, output_final_state=False,
                     use_qk_l2norm_in_kernel=False, cu_seqlens=None, **_):
    """In place of torch_chunk_gated_delta_rule."""
    if initial_state is not None or output_final_state or cu_seqlens is not None:
        raise SystemExit("error: a delta rule that begins with a state, or returns its last one")
    kind = query.dtype
    query, key, value, g, beta = (x.float() for x in (query, key, value, g, beta))
    if use_qk_l2norm_in_kernel:
        query, key = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (query, key))
    return operator("DeltaRule", value, query * query.shape[-1] ** -0.5, key, value, g, beta).to(kind), None


def ssd_layer(hidden_states, dt, A, B, C, chunk_size, D=None, dt_bias=None, initial_states=None, dt_softplus=False,
              dt_limit=(0.0, float("inf")), return_final_states=False, z=None, **_):
    """In place of mamba2_chunk_scan."""
    if initial_states is not None or return_final_states or z is not None:
        raise SystemExit("error: a scan that begins with a state, returns its last one, or has a gate")
    dt = dt if dt_bias is None else dt + dt_bias
    dt = (torch.nn.functional.softplus(dt) if dt_softplus else dt).float()
    if dt_limit[0] > 0:
        dt = torch.clamp(dt, min=dt_limit[0])
    if dt_limit[1] < float("inf"):
        dt = torch.clamp(dt, max=dt_limit[1])
    x = hidden_states.float()
    y = operator("Ssd", x, C.float(), B.float(), x, A.float() * dt, dt)
    return y if D is None else y + D[:, None] * x


@contextlib.contextmanager
def states_kept_whole():
    """Within this, layers with states call the two operators."""
    layers = {"torch_chunk_gated_delta_rule": delta_rule_layer, "mamba2_chunk_scan": ssd_layer}
    before = [(module, name, getattr(module, name)) for key, module in list(sys.modules.items())
              if key.startswith("transformers.models.") and ".modeling_" in key for name in layers if hasattr(module, name)]
    for module, name, _ in before:
        setattr(module, name, layers[name])
    try:
        yield
    finally:
        for module, name, function in before:
            setattr(module, name, function)


# ---- parameters of equal value --------------------------------------------------------------------------


@contextlib.contextmanager
def kept_apart(exporter):
    """Both exporters make one initializer of those that have equal values, as LayerNorms and biases of a new model have: within this, not."""
    if exporter == "dynamo":
        import onnx_ir.passes.common as place
        name = "DeduplicateInitializersPass"

        class Instead(onnx_ir_pass()):
            def __init__(self, *_, **__):
                super().__init__()

            def call(self, model):
                import onnx_ir
                return onnx_ir.passes.PassResult(model, modified=False)
    else:
        place, name = torch._C, "_jit_pass_onnx_deduplicate_initializers"
        by_value = getattr(place, name)

        def Instead(graph, parameters, _):
            return by_value(graph, parameters, True)  # as for training: only what is the same memory
    before = getattr(place, name)
    setattr(place, name, Instead)
    try:
        yield
    finally:
        setattr(place, name, before)


@contextlib.contextmanager
def zeros_kept(wrapped):
    """A bias of zeros, as a fresh GPT-2 has it, is folded away: within this such parameters are ones. The export refers to them, and is
    written behind it."""
    zero = [p for p in wrapped.parameters() if not p.any()]
    try:
        for p in zero:
            p.fill_(1)
        yield
    finally:
        for p in zero:
            p.zero_()


def onnx_ir_pass():
    import onnx_ir
    return onnx_ir.passes.InPlacePass


def groups_of(wrapped):
    """Names of each parameter, more than one where it is tied."""
    groups = collections.defaultdict(list)
    for name, parameter in wrapped.named_parameters(remove_duplicate=False):
        groups[id(parameter)].append(name)
    return list(groups.values())


def used(wrapped, inputs, names):
    """Those of the parameters that the logits depend on."""
    parameters = dict(wrapped.named_parameters(remove_duplicate=False))
    with torch.enable_grad():
        before = {n: parameters[n].requires_grad for n in names}
        for n in names:
            parameters[n].requires_grad_(True)
        gradients = torch.autograd.grad(wrapped(**inputs).sum(), [parameters[n] for n in names], allow_unused=True)
        for n in names:
            parameters[n].requires_grad_(before[n])
    return [n for n, g in zip(names, gradients, strict=True) if g is not None]


def digest(array):
    """Of the elements of a matrix in either order of its axes."""
    if array.ndim == 2 and array.shape[0] != 1 and array.shape[1] != 1:
        return min(hashlib.blake2b(a.tobytes() + str(a.shape).encode()).digest() for a in (array, array.T))
    return hashlib.blake2b(array.tobytes()).digest()


def check_names(wrapped, inputs, initializers):
    """Every parameter is an initializer of one of its names, and of one alone."""
    groups = groups_of(wrapped)
    lost = [group[0] for group in groups if not initializers & set(group)]
    lost = used(wrapped, inputs, lost) if lost else []
    if lost:
        raise SystemExit(f"error: the export has lost parameters of the model: {', '.join(lost)}")
    for group in groups:
        if len(initializers & set(group)) > 1:
            raise SystemExit(f"error: {', '.join(group)} are one parameter of the model and {len(initializers & set(group))} in the export")


def check_values(wrapped, inputs, path):
    """Names are the exporter's: as many initializers have a value as parameters that are used do, as far as they are found (some are folded).
    Returns the initializers that are one tied parameter, stored twice: as it is, and transposed."""
    parameters = dict(wrapped.named_parameters(remove_duplicate=False))
    wanted, found, tied = collections.defaultdict(list), collections.defaultdict(list), []
    for group in groups_of(wrapped):
        wanted[digest(parameters[group[0]].detach().numpy())].append(group)
    for tensor in onnx.load(path).graph.initializer:
        found[digest(onnx.numpy_helper.to_array(tensor))].append(tensor.name)
    for key, groups in wanted.items():
        if len(groups) > 1 and found[key]:
            names = used(wrapped, inputs, [group[0] for group in groups])
            groups = [group for group in groups if group[0] in names]
            if len(found[key]) != len(groups):
                raise SystemExit(f"error: {len(groups)} parameters of equal values have become {len(found[key])}: {', '.join(names)}")
        elif len(groups[0]) > 1 and len(found[key]) > 1:
            tied += found[key]
    return tied


# ---- exports --------------------------------------------------------------------------------------------


def dynamo_program(wrapped, inputs, opset, keep_names):
    with states_kept_whole():
        return torch.onnx.export(wrapped, (), kwargs=inputs, input_names=list(inputs), output_names=["logits"], opset_version=opset,
                                 dynamo=True, optimize=not keep_names, verbose=False, dynamic_shapes={k: {1: "T"} for k in inputs})


def named_program(wrapped, inputs, opset):
    """With the model's names and layouts of parameters."""
    import onnxscript.optimizer
    program = dynamo_program(wrapped, inputs, opset, True)
    names = set(wrapped.state_dict())
    onnxscript.optimizer.optimize_ir(program.model, should_fold=lambda node: False if any(v is not None and v.name in names for v in node.inputs) else None)
    if opset >= 23:  # RMSNormalization, RotaryEmbedding
        from onnxscript.rewriter import onnx_fusions
        onnx_fusions.fuse(program.model)
    check_names(wrapped, inputs, set(program.model.graph.initializers))
    for value in list(program.model.graph.initializers.values()):  # without the wrapper's prefix
        if value.name.startswith("model."):
            value.name = value.name[len("model."):]
    return program


def export_dynamo(wrapped, inputs, opset, keep_names, folder):
    if not keep_names:
        dynamo_program(wrapped, inputs, opset, False).save(os.path.join(folder, "model.onnx"), external_data=True)
        return check_values(wrapped, inputs, os.path.join(folder, "model.onnx"))
    import onnx_ir
    with zeros_kept(wrapped):
        program = named_program(wrapped, inputs, opset)
    onnx_ir.save_safetensors(program.model, os.path.join(folder, "model.onnx"))
    return []


def export_legacy(wrapped, inputs, opset, folder):
    torch.onnx.export(wrapped, tuple(inputs.values()), os.path.join(folder, "model.onnx"), input_names=list(inputs),
                      output_names=["logits"], opset_version=opset, dynamo=False, dynamic_axes={k: {1: "T"} for k in [*inputs, "logits"]})
    model = onnx.load(os.path.join(folder, "model.onnx"))
    onnx.save(model, os.path.join(folder, "model.onnx"), save_as_external_data=True, location="model.onnx.data")
    return check_values(wrapped, inputs, os.path.join(folder, "model.onnx"))


def note_dropout(wrapped):
    """What is exported is the model as it is evaluated: a model that drops activations is trained without that."""
    dropped = [f"{name} ({module.p:g})" for name, module in wrapped.named_modules()
               if "Dropout" in type(module).__name__ and getattr(module, "p", 0) > 0]
    config = getattr(getattr(wrapped, "model", None), "config", None)
    fields = config.to_dict().items() if hasattr(config, "to_dict") else ()
    dropped += [f"{key} ({value:g})" for key, value in fields
                if ("dropout" in key or "pdrop" in key) and isinstance(value, float) and value > 0]
    if dropped:
        print(f"note: dropout is not exported, and sbprun trains without it: {', '.join(dropped[:3])}"
              + (f", {len(dropped) - 3} more" if len(dropped) > 3 else ""), file=sys.stderr)


def export(wrapped, takes_mask, out, opset=23, exporter="dynamo", keep_names=True, base=None):
    """model.json of what load() returned, in the folder `out`; its path. base: a name for what is made of it, as adapters are."""
    os.makedirs(out, exist_ok=True)
    note_dropout(wrapped)
    wrapped.eval()
    inputs = {"input_ids": torch.arange(5)[None] % 3}
    if takes_mask:
        inputs["attention_mask"] = torch.ones(1, 5, dtype=torch.int64)
    with torch.no_grad(), kept_apart(exporter):
        if exporter == "dynamo":
            tied = export_dynamo(wrapped, inputs, opset, keep_names, out)
        else:
            tied = export_legacy(wrapped, inputs, opset, out)
    path = os.path.join(out, "model.onnx")
    model = onnx.load(path, load_external_data=False)
    onnx.helper.set_model_props(model, {"streambp.tied": " ".join(tied), **({"streambp.base_model": base} if base else {})})
    with open(os.path.join(out, "model.json"), "w", encoding="utf-8") as file:
        file.write(MessageToJson(model))
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
    names_kept = a.exporter == "dynamo" and a.keep_names == "on"  # else adapters would not fit the model
    base = None if not names_kept or a.model.partition(":")[0].endswith(".py") else os.path.abspath(a.model) if os.path.isdir(a.model) else a.model
    print(export(wrapped, takes_mask, a.out, a.opset, a.exporter, a.keep_names == "on", base))
    if not a.model.partition(":")[0].endswith(".py"):
        copy_tokenizer(a.model, a.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
