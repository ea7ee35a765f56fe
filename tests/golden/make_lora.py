#!/usr/bin/env python3
"""Makes, or checks, golden gradients of low-rank adapters by peft in float64: lora/NAME beside this file.

    VENV/bin/pip install peft==0.21.2                (and requirements.txt)
    make_lora.py [CASE ...]                          write the cases (default: all)
    make_lora.py --check [CASE ...]                  compute them again and compare; writes nothing

A case is an adapter of the model of another golden case, with that case's rows: adapter/ as peft saves it, with random
numbers in A and B; grads.safetensors: gradients of all that peft trains, under the names of adapter_model.safetensors;
expect.json: loss and log-probabilities, with the adapter and, where no module is trained whole, without; options: what
sbpc takes for a new adapter of this kind.

Where lora_dropout is not 0 the gradients are those of step 1 with seed 42, with sbprun's random numbers in peft's modules:
Philox4x32-10 (Random123) of the key of seed and step, the position, the adapter, the row and the column; log-probabilities
are without, as in eval().
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import json
import pathlib
import shutil
import sys

import numpy
import peft
import torch
import transformers
import xxhash
from safetensors.torch import load_file, save_file

import reference_float64 as reference
from make_goldens import EXACT, SINGLE, rng_for

HERE = pathlib.Path(__file__).resolve().parent
GAIN = 0.5  # of A and B: with more, scores are so large that float32 says little of the gradients
GAINS = {"shared": 0.7}  # of a case, in place of GAIN
CONDITION = {"delta_all": 6e-6}  # of a case, in place of SINGLE: decays are conditioned worse than attention
EVERY = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

CASES = {
    "mamba": (
        "granite_hybrid_groups",
        {"r": 2, "lora_alpha": 1, "target_modules": "all-linear"},
        "--lora r=2,alpha=1,targets=all-linear",
    ),
    "q_only": ("llama_plain", {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}, "--lora r=4,alpha=8,targets=q_proj"),
    "last_layer": (
        "qwen3_plain",
        {"r": 3, "lora_alpha": 3, "target_modules": ["k_proj", "v_proj", "down_proj"], "layers_to_transform": [1]},
        "--lora-r 3 --lora-alpha 3 --lora-targets k_proj+v_proj+down_proj --lora-layers 1",
    ),
    "all_linear": (
        "qwen2_plain",
        {"r": 3, "lora_alpha": 5, "target_modules": "all-linear", "use_rslora": True},
        "--lora_r 3 --lora_alpha 5 --lora_target_modules all-linear --use_rslora true",
    ),
    "saved": (
        "gemma3_untied_bias",
        {"r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "o_proj"], "modules_to_save": ["lm_head", "q_norm"]},
        "--lora r=2,alpha=4,targets=q_proj+o_proj,modules_to_save=lm_head+q_norm",
    ),
    "patterns": (
        "llama_tied_pad",
        {
            "r": 4,
            "lora_alpha": 8,
            "target_modules": EVERY,
            "exclude_modules": r".*layers\.0\.mlp.*",
            "rank_pattern": {"k_proj": 2, r"layers\.[12]\.mlp\.up_proj": 5},
            "alpha_pattern": {"layers.1.mlp.down_proj": 3.5},
        },
        "--lora-r 4 --lora-alpha 8 --lora-targets " + "+".join(EVERY) + r" --lora-exclude '.*layers\.0\.mlp.*'"
        r" --lora-rank-pattern k_proj=2 --lora-rank-pattern 'layers\.[12]\.mlp\.up_proj=5'"
        " --lora-alpha-pattern layers.1.mlp.down_proj=3.5",
    ),
    "fused": (
        "phi3_plain",
        {"r": 3, "lora_alpha": 6, "target_modules": r".*\.(qkv_proj|gate_up_proj|down_proj)"},
        r"--lora-r 3 --lora-alpha 6 --lora-targets '.*\.(qkv_proj|gate_up_proj|down_proj)'",
    ),
    "by_head": ("gpt_neox_plain", {"r": 4, "lora_alpha": 2}, "--lora r=4,alpha=2"),
    "dropped": (
        "phi3_plain",
        {"r": 3, "lora_alpha": 4, "target_modules": ["qkv_proj", "o_proj", "down_proj"], "lora_dropout": 0.3},
        "--lora r=3,alpha=4,targets=qkv_proj+o_proj+down_proj,dropout=0.3",
    ),
    "delta_grouped": (  # peft takes all-linear of this family for experts, and leaves its MLPs out
        "qwen3_next_dense",
        {"r": 3, "lora_alpha": 4, "target_modules": ["in_proj_qkvz", "in_proj_ba", "out_proj", "q_proj"]},
        "--lora r=3,alpha=4,targets=in_proj_qkvz+in_proj_ba+out_proj+q_proj",
    ),
    "experts": (  # [experts, in, out], gates and ups in turn
        "gpt_oss_v",
        {"r": 2, "lora_alpha": 3, "target_modules": ["q_proj", "o_proj"],
         "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]},
        "--lora r=2,alpha=3,targets=q_proj+o_proj,target_parameters=mlp.experts.gate_up_proj+mlp.experts.down_proj",
    ),
    "experts_alone": (  # [experts, out, in], of files that have a tensor for each
        "qwen3_moe_norm_v",
        {"r": 3, "lora_alpha": 4, "rank_pattern": {"experts.down_proj": 2},
         "target_parameters": ["experts.gate_up_proj", "experts.down_proj"]},
        "--lora_r 3 --lora_alpha 4 --lora_target_parameters experts.gate_up_proj+experts.down_proj"
        " --lora-rank-pattern experts.down_proj=2",
    ),
    "experts_down": (
        "mixtral_v",
        {"r": 2, "lora_alpha": 2, "target_modules": ["v_proj"], "target_parameters": ["0.mlp.experts.down_proj"]},
        "--lora r=2,alpha=2,targets=v_proj,target_parameters=0.mlp.experts.down_proj",
    ),
    "experts_all": (  # peft takes all-linear of this family for experts and routers, too, by the names of their tensors
        "mixtral_v",
        {"r": 2, "lora_alpha": 3, "target_modules": "all-linear"},
        "--lora r=2,alpha=3,targets=q_proj+k_proj+v_proj+o_proj,target_parameters=gate.weight+gate_up_proj+down_proj"
        r" --lora-rank-pattern '.*\.gate_up_proj=4' --lora-alpha-pattern '.*\.gate_up_proj=6'",
    ),
    "shared": (  # keys and values that other layers read, the projection to all layers' own embeddings
        "gemma4_shared",
        {"r": 2, "lora_alpha": 1, "target_modules": "all-linear", "exclude_modules": ["per_layer_input_gate"],
         "rank_pattern": {"per_layer_projection": 6}},
        "--lora r=2,alpha=1,targets=all-linear --lora-exclude per_layer_input_gate"
        " --lora-rank-pattern per_layer_projection=6",
    ),
    "latent": (  # all that makes queries and keys through latents (peft takes all-linear for the experts, too)
        "deepseek_v3_groups",
        {"r": 3, "lora_alpha": 4,
         "target_modules": ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]},
        "--lora r=3,alpha=4,targets=q_a_proj+q_b_proj+kv_a_proj_with_mqa+kv_b_proj+o_proj",
    ),
    "latent_lite": (
        "glm4_moe_lite_latent",
        {"r": 3, "lora_alpha": 2, "target_modules": ["q_b_proj", "kv_b_proj", "o_proj"],
         "target_parameters": ["mlp.experts.gate_up_proj"]},
        "--lora r=3,alpha=2,targets=q_b_proj+kv_b_proj+o_proj,target_parameters=mlp.experts.gate_up_proj",
    ),
    "norms": (
        "glm4_moe_norms",
        {"r": 2, "lora_alpha": 2, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]},
        "--lora r=2,alpha=2,targets=q_proj+k_proj+v_proj+o_proj",
    ),
    "sandwich": (
        "glm4_defaults",
        {"r": 3, "lora_alpha": 4, "target_modules": ["q_proj", "v_proj", "gate_up_proj"]},
        "--lora r=3,alpha=4,targets=q_proj+v_proj+gate_up_proj",
    ),
    "stretched": (
        "olmo3_released",
        {"r": 2, "lora_alpha": 4, "target_modules": "all-linear"},
        "--lora r=2,alpha=4,targets=all-linear",
    ),
    "unturned": (
        "smollm3_interval",
        {"r": 3, "lora_alpha": 2, "target_modules": "all-linear"},
        "--lora r=3,alpha=2,targets=all-linear",
    ),
    "mixers": (  # Mamba-2, attention, an MLP, experts between two maps
        "nemotron_h_latent",
        {"r": 2, "lora_alpha": 1, "target_modules": ["in_proj", "q_proj", "up_proj", "fc2_latent_proj"]},
        "--lora r=2,alpha=1,targets=in_proj+q_proj+up_proj+fc2_latent_proj",
    ),
    "side_by_side": (  # attention and Mamba-2, of whose out_proj PEFT refuses adapters
        "falcon_h1_norms",
        {"r": 2, "lora_alpha": 3, "target_modules": "all-linear", "exclude_modules": ["out_proj"]},
        "--lora r=2,alpha=3,targets=all-linear --lora-exclude out_proj",
    ),
    "mamba_experts": (
        "granite_hybrid_v",
        {"r": 2, "lora_alpha": 2, "target_modules": ["in_proj", "input_linear"],
         "exclude_modules": r".*block_sparse_moe.*"},
        "--lora r=2,alpha=2,targets=in_proj+input_linear --lora-exclude '.*block_sparse_moe.*'",
    ),
    "windowed": (
        "mistral_window",
        {"r": 3, "lora_alpha": 3, "target_modules": ["q_proj", "k_proj", "up_proj"]},
        "--lora r=3,alpha=3,targets=q_proj+k_proj+up_proj",
    ),
    "normed_outputs": (
        "olmo2_plain",
        {"r": 3, "lora_alpha": 2, "target_modules": "all-linear"},
        "--lora r=3,alpha=2,targets=all-linear",
    ),
    "turned_whole": (
        "glm_plain",
        {"r": 2, "lora_alpha": 3, "target_modules": ["k_proj", "v_proj", "down_proj"]},
        "--lora r=2,alpha=3,targets=k_proj+v_proj+down_proj",
    ),
    "scaled": (
        "granite_plain",
        {"r": 2, "lora_alpha": 2, "target_modules": "all-linear"},
        "--lora r=2,alpha=2,targets=all-linear",
    ),
    "convolved": (
        "lfm2_v",
        {"r": 2, "lora_alpha": 2, "target_modules": ["in_proj", "out_proj", "q_proj", "w1"]},
        "--lora r=2,alpha=2,targets=in_proj+out_proj+q_proj+w1",
    ),
    "many_experts": (
        "olmoe_v",
        {"r": 2, "lora_alpha": 3, "target_modules": ["q_proj", "o_proj"],
         "target_parameters": ["mlp.experts.down_proj"]},
        "--lora r=2,alpha=3,targets=q_proj+o_proj,target_parameters=mlp.experts.down_proj",
    ),
    "beside": (  # attention and an MLP on one norm
        "cohere2_released",
        {"r": 2, "lora_alpha": 3, "target_modules": "all-linear"},
        "--lora r=2,alpha=3,targets=all-linear",
    ),
    "bent": (  # an MLP without a gate, whose activation has numbers of its own
        "apertus_plain",
        {"r": 3, "lora_alpha": 2, "target_modules": "all-linear"},
        "--lora r=3,alpha=2,targets=all-linear",
    ),
    "wrapped": (  # a multimodal model, whose tower has modules of the same names
        "mistral3_v",
        {"r": 2, "lora_alpha": 3, "target_modules": ["q_proj", "v_proj", "down_proj"],
         "exclude_modules": r"(?!model\.language_model\.).*", "modules_to_save": ["lm_head"]},
        "--lora r=2,alpha=3,targets=q_proj+v_proj+down_proj,modules_to_save=lm_head",
    ),
    "delta_all": (
        "qwen3_5_dense_v",
        {"r": 3, "lora_alpha": 4, "target_modules": "all-linear"},
        "--lora r=3,alpha=4,targets=all-linear",
    ),
}


def philox(counter, key):
    """Words of Philox4x32-10: counter four arrays of 32 bits, key two numbers; -> four arrays."""
    low = numpy.uint64(0xFFFFFFFF)
    c0, c1, c2, c3 = (numpy.asarray(c, numpy.uint64) for c in counter)
    for turn in range(10):
        k0, k1 = ((k + turn * step) & 0xFFFFFFFF for k, step in zip(key, (0x9E3779B9, 0xBB67AE85), strict=True))
        p0, p1 = c0 * numpy.uint64(0xD2511F53), c2 * numpy.uint64(0xCD9E8D57)
        shift = numpy.uint64(32)
        c0, c1, c2, c3 = p1 >> shift ^ c1 ^ numpy.uint64(k0), p1 & low, p0 >> shift ^ c3 ^ numpy.uint64(k1), p0 & low
    return c0, c1, c2, c3


assert [hex(int(w)) for w in philox((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0))] == [
    "0xd16cfe09", "0x94fdcceb", "0x5001e420", "0x24126ea1"]  # known answer of Random123


class Dropout(torch.nn.Module):
    """Of one adapter; of the document whose number is Dropout.document, None: nothing is dropped."""

    document = None

    def __init__(self, name, share):
        super().__init__()
        self.share = share
        self.stream = xxhash.xxh64_intdigest(name.encode(), 0) & 0xFFFFFF
        of_step = xxhash.xxh64_intdigest((42).to_bytes(8, "little") + (1).to_bytes(8, "little"), 0)
        key = xxhash.xxh64_intdigest(b"random_dropout", of_step) >> 11
        self.key = (key & 0xFFFFFFFF, key >> 32)

    def forward(self, x):  # [1, T, in]
        if Dropout.document is None:
            return x
        shape = (x.shape[1], -(-x.shape[2] // 4))
        position, column = numpy.indices(shape)
        words = philox((position, numpy.full(shape, self.stream), numpy.full(shape, Dropout.document), column), self.key)
        u = (numpy.stack(words, -1).reshape(shape[0], -1)[:, : x.shape[2]] >> numpy.uint64(8)).astype(float) * 2.0**-24
        return x * torch.tensor(u >= self.share).to(x.dtype) / (1 - self.share)


def with_dropout(model):
    for name, module in model.named_modules():
        if isinstance(getattr(module, "lora_dropout", None), torch.nn.ModuleDict):
            for key, dropout in module.lora_dropout.items():
                if isinstance(dropout, torch.nn.Dropout):
                    module.lora_dropout[key] = Dropout(f"{name}.lora_A.weight", dropout.p)
    return model


def run_step(model, rows):
    """reference.run_step, whose documents are counted."""
    whole, numbers = reference.document_loss, iter([i for i, row in enumerate(rows) if len(row["input_ids"]) > 1])

    def counted(*arguments):
        Dropout.document = next(numbers)
        try:
            return whole(*arguments)
        finally:
            Dropout.document = None

    reference.document_loss = counted
    try:
        return reference.run_step(model, rows)
    finally:
        reference.document_loss = whole


def log_probabilities(model, rows):
    with torch.no_grad():
        return [
            reference.document_loss(model, row, 1, "nll")[1].tolist() if len(row["input_ids"]) > 1 else [] for row in rows
        ]


def trained(model):
    """Parameters by their names in adapter_model.safetensors."""
    names = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            names[name.replace(".modules_to_save.default", "").replace(".default", "")] = parameter
    return names


def base_of(case):
    return HERE / CASES[case][0] / "model"


def rows_of(case):
    return [json.loads(line) for line in (HERE / CASES[case][0] / "train.jsonl").read_text().splitlines()]


@torch.no_grad()
def new_adapter(case, directory):
    """Random numbers in all that is trained, saved by peft in float32."""
    base = reference.load(base_of(case), torch.float32)
    model = peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", **CASES[case][1]))
    for name, parameter in trained(model).items():
        rng = rng_for("lora", case, name)
        values = torch.tensor([rng.gauss(0.0, 1.0) for _ in range(parameter.numel())]).reshape(parameter.shape)
        if parameter.dim() == 1:
            parameter.add_(0.25 * values)
        else:
            parameter.copy_(GAINS.get(case, GAIN) * values * parameter.shape[1] ** -0.5)
    model.save_pretrained(directory)
    (directory / "README.md").unlink(missing_ok=True)
    file = directory / "adapter_config.json"
    config = json.loads(file.read_text())
    config["base_model_name_or_path"] = f"../../../{CASES[case][0]}/model"
    for key in ("target_modules", "target_parameters"):  # peft's sets, of which the order is not the same in each run
        if isinstance(config.get(key), list):
            config[key].sort()
    file.write_text(json.dumps(config, indent=2) + "\n")


def single(case, directory):
    """Gradients in float32, as peft and transformers have them."""
    model = reference.load(base_of(case), torch.float32)
    model = with_dropout(peft.PeftModel.from_pretrained(model, directory, is_trainable=True).eval())
    step = run_step(model, rows_of(case))
    names = {id(parameter): name for name, parameter in trained(model).items()}
    return {names[id(p)]: step.gradients[name] for name, p in model.named_parameters() if id(p) in names}


def compute(case, directory, dtype=torch.float64):
    base = base_of(case)
    rows = rows_of(case)
    with reference.Float64Patches(base):
        model = reference.load(base, dtype)
        model = peft.PeftModel.from_pretrained(model, directory, is_trainable=True).to(dtype).eval()
        with reference.NoFloat32():
            step = run_step(with_dropout(model), rows)
            step.logprobs = log_probabilities(model, rows)
        plain = None
        if not CASES[case][1].get("modules_to_save"):
            with model.disable_adapter():
                plain = log_probabilities(model, rows)
        names = {id(parameter): name for name, parameter in trained(model).items()}
        gradients = {
            names[id(parameter)]: step.gradients[name]
            for name, parameter in model.named_parameters()
            if id(parameter) in names
        }
    return step, gradients, plain


def write_case(case):
    directory = HERE / "lora" / case
    shutil.rmtree(directory, ignore_errors=True)
    new_adapter(case, directory / "adapter")
    step, gradients, plain = compute(case, directory / "adapter")
    save_file({name: value.contiguous() for name, value in gradients.items()}, directory / "grads.safetensors")
    error, tensor = reference.worst(single(case, directory / "adapter"), gradients)
    if error > CONDITION.get(case, SINGLE):
        raise RuntimeError(f"{case}: too sensitive to rounding for a float32 test: {error:.1e} in {tensor}")
    expectation = {
        "base": CASES[case][0],
        "options": CASES[case][2],
        "loss": step.loss,
        "hf_float32": {"max_relative_error": error, "tensor": tensor},
        "made_with": {"peft": peft.__version__, "transformers": transformers.__version__},
        "logprobs": step.logprobs,
        "logprobs_without": plain,
    }
    (directory / "expect.json").write_text(json.dumps(expectation, indent=1) + "\n")
    least = min(value.norm().item() for value in gradients.values())
    print(f"{case:12} {len(gradients)} tensors, loss {step.loss:.4f}, smallest gradient {least:.1e}, fp32 {error:.1e}")
    return True


def check_case(case):
    directory = HERE / "lora" / case
    step, gradients, _ = compute(case, directory / "adapter")
    error, tensor = reference.worst(gradients, load_file(directory / "grads.safetensors"))
    fine = error <= EXACT and abs(step.loss - json.loads((directory / "expect.json").read_text())["loss"]) <= EXACT
    print(f"{case:12} gradients {error:.1e} ({tensor}) {'' if fine else 'FAILED'}")
    return fine


def main():
    check = "--check" in sys.argv[1:]
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    names = [name for name in sys.argv[1:] if name != "--check"] or list(CASES)
    results = [(check_case if check else write_case)(name) for name in names]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
