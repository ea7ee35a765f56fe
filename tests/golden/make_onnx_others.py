#!/usr/bin/env python3
"""Small models of random weights exported by others than torch itself, for check_onnx_others.py.

    tests/golden/make_onnx_others.py optimum OUT        optimum-onnx 0.1.0, without and with a cache
    tests/golden/make_onnx_others.py transformers OUT   transformers' OnnxExporter, with dynamic axes, with and without optimizing

OUT/MODEL is a directory of Hugging Face, OUT/MODEL-KIND/model.onnx an export of it. Each program wants a venv of its own:
optimum-onnx 0.1.0 needs transformers 4, the other transformers 5.
"""
import os
import sys

import torch
import transformers

COMMON = dict(vocab_size=61, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
              max_position_embeddings=128, rms_norm_eps=2.0**-20)
ROPE = dict(rope_theta=256.0) if int(transformers.__version__.split(".")[0]) < 5 else dict(rope_parameters={"rope_theta": 256.0, "rope_type": "default"})
MODELS = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", dict(COMMON, **ROPE)),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", dict(vocab_size=61, n_positions=64, n_embd=64, n_layer=2, n_head=4, layer_norm_epsilon=2.0**-20)),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", dict(COMMON, tie_word_embeddings=True, **ROPE)),
    "mistral": ("MistralConfig", "MistralForCausalLM", dict(COMMON, sliding_window=9, **ROPE)),
}


def make(name, folder):
    config, model, options = MODELS[name]
    torch.manual_seed(len(name))
    m = getattr(transformers, model)(getattr(transformers, config)(**options)).float().eval()
    for key, p in m.named_parameters():
        ones = key.endswith("weight") and ("norm" in key or ".ln_" in key)
        p.data = torch.randn_like(p) * 0.1 + (1.0 if ones else 0.0)
    m.save_pretrained(folder)
    return m


def export_optimum(name, folder, out):
    from optimum.exporters.onnx import main_export
    for kind in ("text-generation", "text-generation-with-past"):
        main_export(folder, output=f"{out}/{name}-{kind}", task=kind, do_validation=False)


def export_transformers(name, model, out):
    from transformers.exporters import OnnxConfig, OnnxExporter
    inputs = {"input_ids": torch.arange(5)[None] % 3, "attention_mask": torch.ones(1, 5, dtype=torch.int64)}
    model.config.use_cache = False
    for kind, options in {"optimized": {"optimize": True}, "plain": {"optimize": False}}.items():
        program, _ = OnnxExporter().export_program(model, dict(inputs), OnnxConfig(dynamic=True, **options))
        os.makedirs(f"{out}/{name}-{kind}", exist_ok=True)
        OnnxExporter.save_program(program, f"{out}/{name}-{kind}/model.onnx")


def main():
    exporter, out = sys.argv[1:3]
    for name in MODELS:
        try:
            model = make(name, f"{out}/{name}")
            if exporter == "optimum":
                export_optimum(name, f"{out}/{name}", out)
            else:
                export_transformers(name, model, out)
        except Exception as reason:
            print(f"{name}: the exporter fails: {type(reason).__name__}: {str(reason).strip().splitlines()[0][:200]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
