#!/usr/bin/env python3
"""Weights in INT4 and INT8 as compressed-tensors packs them: tests/data/io/packed.safetensors, and packed/NAME beside this
file, models with adapters and their gradients.

    VENV/bin/pip install compressed-tensors==0.20.1 peft==0.21.2           (and requirements.txt)
    make_packed.py [--check]                                               writes; --check: compares

packed.safetensors, read by tests/unit/test_formats.c: layers of all kinds, beside each its numbers (`NAME.f32`), which the
package makes of it.

packed/NAME: model/ as the package stores it (`compress`, config.json by its own classes), whose other weights are in bf16;
adapter/ by peft, with random numbers; train.jsonl; grads.safetensors: gradients in float64 of the adapter of the model whose
weights the package has made numbers again (`decompress`); expect.json: the loss and log-probabilities.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import json
import pathlib
import shutil
import sys
import tempfile

import peft
import torch
import transformers
from compressed_tensors.compressors.pack_quantized import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme, QuantizationStatus
from compressed_tensors.quantization.utils.helpers import calculate_qparams
from compressed_tensors.utils.match import match_name
from safetensors.torch import load_file, save_file

import reference_float64 as reference
from make_goldens import EXACT, SINGLE, labels_for, rng_for

HERE = pathlib.Path(__file__).resolve().parent
LAYERS = HERE.parent / "data/io/packed.safetensors"
LENGTHS = [9, 2, 17, 1, 12]  # 41


def scheme(targets, bits, group=None, symmetric=True):
    """group None: a scale for each row."""
    args = {"strategy": "group", "group_size": group} if group else {"strategy": "channel"}
    weights = QuantizationArgs(num_bits=bits, type="int", symmetric=symmetric, dynamic=False, **args)
    return QuantizationScheme(targets=targets, weights=weights, format="pack-quantized")


def pack(weight, of):
    """Tensors of a layer by the ends of their names."""
    args = of.weights
    grouped = weight.unflatten(1, (-1, args.group_size or weight.shape[1])).float()
    scale, zero = calculate_qparams(grouped.amin(2), grouped.amax(2), args)
    tensors = {"weight": weight, "weight_scale": scale.to(weight.dtype), "weight_zero_point": zero.to(torch.int8)}
    return PackedQuantizationCompressor.compress(tensors, of)


def unpack(tensors, of):
    return PackedQuantizationCompressor.decompress(tensors, of)["weight"].float()


# ---- layers --------------------------------------------------------------------------------------------------------------


def layers():
    draw = torch.Generator().manual_seed(4)
    tensors = {}
    for bits in (4, 8):
        for symmetric in (True, False):
            for group, columns, dtype in (
                (32, 96, torch.bfloat16), (64, 128, torch.float32), (128, 256, torch.float16), (None, 160, torch.bfloat16),
                (16, 48, torch.bfloat16), (None, 45, torch.float32),
            ):
                name = f"int{bits}.{'plain' if symmetric else 'zero'}.{group or 'row'}.{columns}"
                of = scheme(["Linear"], bits, group, symmetric)
                weight = torch.randn(9, columns, generator=draw) + 0.3
                packed = pack(weight.to(dtype), of)
                tensors |= {f"{name}.{key}": value for key, value in packed.items()}
                tensors[f"{name}.f32"] = unpack(packed, of)
    return tensors


# ---- models --------------------------------------------------------------------------------------------------------------

CASES = {
    "dense": {
        "config": {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 43, "hidden_size": 64,
            "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32,
            "hidden_act": "silu", "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 400.0,
            "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 1,
        },
        "groups": {
            "group_0": scheme(["re:.*self_attn.*"], 4, 32),
            "group_1": scheme(["re:.*(gate|up)_proj"], 4, 64, symmetric=False),
            "group_2": scheme(["re:.*down_proj"], 8, None, symmetric=False),
        },
        "ignore": ["lm_head"],
        "adapter": {"r": 2, "lora_alpha": 3, "target_modules": ["q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"]},
    },
    "experts": {  # as Kimi-K2 has them
        "config": {
            "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "vocab_size": 43, "hidden_size": 64,
            "intermediate_size": 40, "moe_intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
            "num_key_value_heads": 2, "kv_lora_rank": 12, "q_lora_rank": 10, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4,
            "v_head_dim": 8, "n_routed_experts": 5, "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 1,
            "topk_group": 1, "first_k_dense_replace": 1, "routed_scaling_factor": 1.5, "norm_topk_prob": True,
            "hidden_act": "silu", "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 400.0,
            "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 1,
        },
        "groups": {"group_0": scheme(["Linear"], 4, 32)},
        "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"],
        "adapter": {"r": 2, "lora_alpha": 3, "target_modules": ["q_a_proj", "o_proj"],
                    "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]},
    },
}


def scheme_of(case, module):
    """Of a linear layer, by its name; None: it stays."""
    if any(match_name(module, name) for name in case["ignore"]):
        return None
    return next((g for g in case["groups"].values() for t in g.targets if t == "Linear" or match_name(module, t)), None)


def is_linear(name, value):
    return value.dim() == 2 and name.endswith("_proj.weight")


@torch.no_grad()
def write_model(name, directory):
    """model/: what transformers saves, its linear layers packed."""
    case = CASES[name]
    with tempfile.TemporaryDirectory() as scratch:
        (pathlib.Path(scratch) / "config.json").write_text(json.dumps(case["config"]))
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(scratch))
        for key, value in [*model.named_parameters(), *model.named_buffers()]:
            rng = rng_for("packed", name, key)
            drawn = torch.tensor([rng.gauss(0.0, 1.0) for _ in range(value.numel())]).reshape(value.shape)
            if value.dim() > 1:
                value.copy_(drawn * (0.4 if "embed" in key else 1.15 * value.shape[-1] ** -0.5))
            elif "inv_freq" not in key:
                value.copy_(("norm" in key) + 0.2 * drawn)
        model.to(torch.bfloat16).save_pretrained(scratch)
        stored = {}
        for key, value in load_file(pathlib.Path(scratch) / "model.safetensors").items():
            module = key.removesuffix(".weight")
            of = scheme_of(case, module) if is_linear(key, value) else None
            stored |= {f"{module}.{end}": t for end, t in pack(value, of).items()} if of else {key: value}
    directory.mkdir(parents=True)
    save_file({key: value.contiguous() for key, value in stored.items()}, directory / "model.safetensors", {"format": "pt"})
    quantization = QuantizationConfig(
        config_groups=case["groups"], format="pack-quantized", ignore=case["ignore"],
        quantization_status=QuantizationStatus.COMPRESSED,
    )
    config = case["config"] | {"dtype": "bfloat16", "quantization_config": json.loads(quantization.model_dump_json())}
    (directory / "config.json").write_text(json.dumps(config, indent=1) + "\n")


def write_numbers(name, directory, target):
    """A copy of the model whose layers the package has made numbers again."""
    case = CASES[name]
    stored, numbers = load_file(directory / "model.safetensors"), {}
    for key, value in stored.items():
        module, _, end = key.rpartition(".")
        if end == "weight_packed":
            of = {end: stored[f"{module}.{end}"] for end in ("weight_packed", "weight_scale", "weight_shape", "weight_zero_point")
                  if f"{module}.{end}" in stored}
            numbers[module + ".weight"] = unpack(of, scheme_of(case, module))
        elif not end.startswith("weight_"):
            numbers[key] = value.float()
    target.mkdir(parents=True)
    save_file({key: value.contiguous() for key, value in numbers.items()}, target / "model.safetensors", {"format": "pt"})
    (target / "config.json").write_text(json.dumps(CASES[name]["config"] | {"dtype": "float32"}))
    return target


def trained(model):
    return {n.replace(".default", ""): p for n, p in model.named_parameters() if p.requires_grad}


@torch.no_grad()
def write_adapter(name, base, directory):
    model = peft.get_peft_model(
        reference.load(base, torch.float32), peft.LoraConfig(task_type="CAUSAL_LM", **CASES[name]["adapter"])
    )
    for key, value in trained(model).items():
        rng = rng_for("packed adapter", name, key)
        drawn = torch.tensor([rng.gauss(0.0, 1.0) for _ in range(value.numel())]).reshape(value.shape)
        value.copy_(0.5 * drawn * value.shape[1] ** -0.5)
    model.save_pretrained(directory)
    (directory / "README.md").unlink(missing_ok=True)
    file = directory / "adapter_config.json"
    config = json.loads(file.read_text()) | {"base_model_name_or_path": f"tests/golden/packed/{name}/model"}
    for key in ("target_modules", "target_parameters"):  # peft's sets
        if isinstance(config.get(key), list):
            config[key].sort()
    file.write_text(json.dumps(config, indent=2) + "\n")


def rows_of(name):
    rng = rng_for("packed rows", name)
    rows = [[rng.randrange(CASES[name]["config"]["vocab_size"]) for _ in range(length)] for length in LENGTHS]
    kinds = ["all", "completion", "scattered", "all", "completion"]
    return [{"input_ids": ids, "labels": labels_for(kind, ids, rng)} for kind, ids in zip(kinds, rows, strict=True)]


def compute(base, adapter, rows, dtype):
    """Loss, log-probabilities and gradients by the names of the adapter's file."""
    def step_of():
        model = peft.PeftModel.from_pretrained(reference.load(base, dtype), adapter, is_trainable=True).to(dtype).eval()
        step = reference.run_step(model, rows)
        names = {id(parameter): key for key, parameter in trained(model).items()}
        return step, {names[id(p)]: step.gradients[key].contiguous() for key, p in model.named_parameters() if id(p) in names}

    if dtype != torch.float64:
        return step_of()
    with reference.Float64Patches(base):
        return step_of()


def write_case(name):
    directory = HERE / "packed" / name
    with tempfile.TemporaryDirectory() as scratch:
        shutil.rmtree(directory, ignore_errors=True)
        write_model(name, directory / "model")
        base = write_numbers(name, directory / "model", pathlib.Path(scratch) / "model")
        write_adapter(name, base, directory / "adapter")
        rows = rows_of(name)
        (directory / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        step, gradients = compute(base, directory / "adapter", rows, torch.float64)
        error, tensor = reference.worst(compute(base, directory / "adapter", rows, torch.float32)[1], gradients)
    if error > SINGLE:
        raise RuntimeError(f"{name}: too sensitive to rounding for a float32 test: {error:.1e} in {tensor}")
    save_file(gradients, directory / "grads.safetensors")
    expectation = {"loss": step.loss, "hf_float32": {"max_relative_error": error, "tensor": tensor}, "logprobs": step.logprobs}
    (directory / "expect.json").write_text(json.dumps(expectation, indent=1) + "\n")
    print(f"{name:8} {len(gradients)} tensors, loss {step.loss:.4f}, fp32 {error:.1e}")
    return True


def check_case(name):
    directory = HERE / "packed" / name
    rows = [json.loads(line) for line in (directory / "train.jsonl").read_text().splitlines()]
    with tempfile.TemporaryDirectory() as scratch:
        base = write_numbers(name, directory / "model", pathlib.Path(scratch) / "model")
        step, gradients = compute(base, directory / "adapter", rows, torch.float64)
    error, tensor = reference.worst(gradients, load_file(directory / "grads.safetensors"))
    fine = error <= EXACT and abs(step.loss - json.loads((directory / "expect.json").read_text())["loss"]) <= EXACT
    print(f"{name:8} gradients {error:.1e} ({tensor}) {'' if fine else 'FAILED'}")
    return fine


def main():
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    made = layers()
    if "--check" not in sys.argv[1:]:
        save_file(made, LAYERS)
        return 0 if all([write_case(name) for name in CASES]) else 1
    found = load_file(LAYERS)
    same = found.keys() == made.keys() and all(torch.equal(found[key], made[key]) for key in found)
    print(f"{LAYERS.name} {'' if same else 'differs'}")
    return 0 if all([same, *[check_case(name) for name in CASES]]) else 1


if __name__ == "__main__":
    sys.exit(main())
