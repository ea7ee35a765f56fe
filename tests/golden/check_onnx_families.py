#!/usr/bin/env python3
"""Every family that is built from its Hugging Face directory, exported to ONNX too: a table of what becomes of it.

    tests/golden/check_onnx_families.py [--build DIR] [--work DIR] [--families glm4,..] [--plain]

A small random model of each (configs.py and the goldens' config.json), exported by examples/export_model_json.py at opset 23, compiled and
differentiated in float64, beside the same weights from their directory: nodes of the export, the largest relative difference of a parameter's
gradient (norm of the difference over norm), and the floating-point operations of a step of both. --plain: exported by torch.onnx.export alone, as
transformers loads a model, which takes minutes where a layer has a state; what becomes of that is a row more.

Constants of an export are float32: heads are 16 wide, rope_theta is 256, eps 2^-20, so that most are exact. Exit status 1 when a family is refused,
or differs by more than 1e-6. Needs torch, transformers, onnx, onnxscript, safetensors: a venv of its own.
"""
import argparse
import contextlib
import io
import json
import os
import re
import subprocess
import sys

import numpy
import torch
from safetensors.numpy import load_file

import configs
import configs_states
from check_onnx_exports import TOP, exported_values, gradients

HERE = os.path.dirname(os.path.abspath(__file__))
EPS = 2.0**-20


def golden(name, **changes):
    """config.json of a golden case; of a model that has more, its text model's."""
    with open(os.path.join(HERE, name, "model", "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    return {**config.get("text_config", config), **changes}


def gemma4(name, **changes):
    """With numbers that float32 has."""
    ropes = {"full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 65536.0, "rope_type": "proportional"},
             "sliding_attention": {"rope_theta": 256.0, "rope_type": "default"}}
    own = 16 if golden(name).get("hidden_size_per_layer_input") else 0
    return golden(name, hidden_size=64, head_dim=16, global_head_dim=32, rms_norm_eps=EPS, rope_parameters=ropes,
                  hidden_size_per_layer_input=own, **changes)


MLA = {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 8}
ROPE = {"rope_theta": 256.0, "rms_norm_eps": EPS}
FAMILIES = {
    "llama": lambda: configs.llama(head_dim=16, **ROPE),
    "phi3": lambda: configs.phi3(hidden_size=48, **ROPE),
    "granite": lambda: configs.granite(hidden_size=64, **ROPE),
    "gemma3": lambda: configs.gemma3(head_dim=16, rms_norm_eps=EPS, rope_theta=256.0, rope_local_base_freq=256.0),
    "glm4": lambda: configs.glm4(head_dim=32, **ROPE),
    "olmo3": lambda: configs.olmo3(hidden_size=64, rope_scaling=None, **ROPE),
    "smollm3": lambda: configs.smollm3(hidden_size=64, **ROPE),
    "gemma4 (31B)": lambda: gemma4("gemma4_31b_v"),
    "gemma4 (E2B)": lambda: gemma4("gemma4_e2b_released_v", architectures=["Gemma4ForCausalLM"]),
    "gemma4 (26B-A4B)": lambda: gemma4("gemma4_26b_a4b_v"),
    "qwen3_moe": lambda: configs.qwen3_moe(head_dim=16, router_aux_loss_coef=0.0, rope_theta=256.0, rms_norm_eps=EPS),
    "mixtral": lambda: golden("mixtral_v", router_aux_loss_coef=0.0, hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                             rms_norm_eps=EPS, rope_parameters={"rope_theta": 256.0, "rope_type": "default"}),
    "olmoe": lambda: configs.olmoe(hidden_size=32, router_aux_loss_coef=0.0, rope_theta=256.0, rms_norm_eps=EPS),
    "gpt_oss": lambda: configs.gpt_oss(head_dim=16, router_aux_loss_coef=0.0, rope_theta=256.0, rms_norm_eps=EPS),
    "glm4_moe": lambda: configs.glm4_moe(head_dim=32, **ROPE),
    "deepseek_v3": lambda: configs.deepseek_v3(**{**MLA, **ROPE}),
    "glm4_moe_lite": lambda: {**configs.deepseek_v3(**{**MLA, **ROPE, "topk_group": 1, "n_group": 1}), "model_type": "glm4_moe_lite",
                              "architectures": ["Glm4MoeLiteForCausalLM"]},
    "lfm2": lambda: configs.lfm2(hidden_size=32, norm_eps=EPS, rope_parameters={"rope_type": "default", "rope_theta": 256.0}),
    "qwen3_next": lambda: configs.qwen3_next(head_dim=32, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8,
                                             shared_expert_intermediate_size=8, router_aux_loss_coef=0.0, linear_key_head_dim=16, **ROPE),
    "qwen3_5": lambda: configs.qwen3_5(head_dim=32, rms_norm_eps=EPS, linear_key_head_dim=16,
                                       rope_parameters={"rope_type": "default", "rope_theta": 256.0, "partial_rotary_factor": 0.5}),
    "qwen3_5_moe": lambda: golden("qwen3_5_moe_released_v", architectures=["Qwen3_5MoeForCausalLM"], router_aux_loss_coef=0.0),
    "granitemoehybrid": lambda: configs_states.granite_hybrid(hidden_size=32, mamba_d_head=16, **ROPE),
    "nemotron_h": lambda: configs_states.nemotron_h(head_dim=16, layer_norm_epsilon=EPS),
}


def make_model(config, folder):
    import transformers
    config = {**config, "vocab_size": 61, **({"vocab_size_per_layer_input": 61} if "vocab_size_per_layer_input" in config else {})}
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    torch.manual_seed(sum(map(ord, folder)))
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(folder), dtype=torch.float32)
    for key, p in [*model.named_parameters(), *model.named_buffers()]:
        if "inv_freq" in key or "scalar" in key or p.dtype != torch.float32 or p.dim() == 0 or "embed_scale" in key:
            continue
        ones = p.dim() == 1 and "norm" in key and not ("qwen3_5" in folder or "qwen3_next" in folder or "gemma3" in folder)
        p.data = (torch.randn_like(p) * 0.2 + (1.0 if ones or key.endswith(".D") else 0.0)).to(p.dtype)
    model.save_pretrained(folder)


def expert_of(name, got):
    """What the file has for one expert is a part of the export's tensor of all."""
    found = re.fullmatch(r"(.*?)\.experts\.(\d+)\.(gate_proj|up_proj|down_proj|w1|w2|w3)\.weight", name)
    if not found:
        return None
    module, expert, part = found[1], int(found[2]), {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}.get(found[3], found[3])
    names = {m: k for k in got for m in [k.rpartition(".experts.")[0]] if ".experts." in k and re.sub(r"\.[a-z_]+$", "", m) == re.sub(r"\.[a-z_]+$", "", module)}
    module = next(iter(names), None)
    if module is None:
        return None
    fused = got.get(f"{module}.experts.{part}")
    if fused is not None:
        return fused[expert]
    both = got[f"{module}.experts.gate_up_proj"][expert]
    return both[: len(both) // 2] if part == "gate_proj" else both[len(both) // 2:]


def compare(got, values, reference, weights):
    """Largest difference over the tensors of the directory, by name, else by value."""
    worst, missing = 0.0, []
    least = 1e-6 * max(numpy.linalg.norm(g) for g in reference.values())
    for name, want in reference.items():
        mine = got.get(name, got.get(name.replace("backbone.", "model.", 1)))
        if mine is None or mine.shape != want.shape:
            same = [k for k, v in values.items() if k in got and name in weights and v.shape == weights[name].shape and numpy.array_equal(v, weights[name])]
            mine = got[same[0]] if len(same) == 1 else expert_of(name.replace("backbone.", "model.", 1), got)
        if mine is None or mine.shape != want.shape:
            missing.append(name)
            continue
        worst = max(worst, float(numpy.linalg.norm(mine - want) / max(numpy.linalg.norm(want), least)))
    return worst, missing


def flops(build, model, work):
    plan = os.path.join(work, "compared.bin")
    done = subprocess.run([os.path.join(build, "sbpc"), "compile", model, "-o", plan, "--dtype", "fp32", "--seq-len", "64", "--chunk", "16",
                           "--head-chunk", "16"], capture_output=True, text=True)
    if done.returncode != 0:
        return None
    shown = subprocess.run([os.path.join(build, "sbpc"), "inspect", "--json", plan], capture_output=True, text=True).stdout
    return json.loads(shown)["flops"] / 1e6


def export(folder, out, plain):
    """An error, or None."""
    if not plain:
        done = subprocess.run([sys.executable, os.path.join(TOP, "examples", "export_model_json.py"), folder, "-o", out], capture_output=True, text=True)
        return None if done.returncode == 0 else done.stderr.strip().splitlines()[-1]
    sys.path.insert(0, os.path.join(TOP, "examples"))
    import export_model_json
    import transformers
    options = {}
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options)
            model.config.use_cache = False
            export_model_json.states_kept_whole = contextlib.nullcontext
            export_model_json.export(export_model_json.Logits(model, True), True, out)
            return None
        except Exception as error:
            text = str(error)
            found = re.search(r"No ONNX function found for <OpOverload\(op='([^']*)'", text)
            return f"torch does not export it: no ONNX function for {found[1]}" if found else f"{type(error).__name__}: {text.splitlines()[0][:100]}"


def check(a, family, plain):
    word = re.sub(r"[^a-z0-9_]", "-", family.lower())
    folder, out = os.path.join(a.work, word), os.path.join(a.work, word + ("-plain" if plain else "-export"))
    if not os.path.exists(os.path.join(folder, "model.safetensors")):
        make_model(FAMILIES[family](), folder)
    weights = load_file(os.path.join(folder, "model.safetensors"))
    reference, why = gradients(a.build, folder, folder + "-reference")
    if reference is None:
        return False, f"the directory is refused: {why}"
    path = os.path.join(out, "model.json")
    error = None if os.path.exists(path) else export(folder, out, plain)
    if error:
        return plain, error
    with open(path, encoding="utf-8") as file:
        nodes = len(json.load(file)["graph"]["node"])
    got, why = gradients(a.build, path, out)
    if got is None:
        return plain, f"{nodes} nodes; refused: " + why.split("model.json: ")[-1][:230]
    worst, missing = compare(got, exported_values(path), reference, weights)
    of = [flops(a.build, m, out) for m in (folder, path)]
    text = f"{nodes} nodes; raised, {worst:.1e}" + (f", not found: {missing}" if missing else "")
    text += f"; {of[0]:.2f} Mflop both" if of[0] and of[0] == of[1] else f"; Mflop {of[0]} and {of[1]}"
    return worst < 1e-6 and not missing, text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(TOP, "build", "release"))
    parser.add_argument("--work", default="/tmp/onnx-families")
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--plain", action="store_true")
    a = parser.parse_args()
    torch.set_num_threads(1)
    good = True
    for family in a.families.split(","):
        fine, text = check(a, family, False)
        good = good and fine
        print(f"| {family} | {text} |", flush=True)
        if a.plain:
            print(f"| {family}, torch alone | {check(a, family, True)[1]} |", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
