"""Models that gpu_check's steps run, as config.json: whole dense ones, and three of today's kinds cut to four layers, whose kernels
are those of the whole model, drawn weights in bf16 (experts; heads of 64 with sinks and windows; the delta rule and heads of 256). Standard library alone."""
import json
import os

# hidden, ffn, layers, heads, kv heads, head, vocabulary, tied
MODELS = {"06b": (1024, 3072, 28, 16, 8, 128, 151936, True), "4b": (2560, 9728, 36, 32, 8, 128, 151936, True), "8b": (4096, 12288, 36, 32, 8, 128, 151936, False)}
TINY = (128, 96, 2, 2, 1, 64, 160, True)
COMMON = {"rms_norm_eps": 1e-06, "max_position_embeddings": 4194304, "attention_bias": False, "tie_word_embeddings": False, "dtype": "bfloat16", "hidden_act": "silu"}
CUT = {
    "30b_a3b": {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 4,
                "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936, "rope_theta": 1000000, "num_experts": 128,
                "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": True, "router_aux_loss_coef": 0.0, "decoder_sparse_step": 1,
                "mlp_only_layers": []},
    "gpt_oss": {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 4,
                "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201088, "rope_theta": 150000, "num_local_experts": 32,
                "num_experts_per_tok": 4, "sliding_window": 128, "swiglu_limit": 7.0, "router_aux_loss_coef": 0.0, "attention_bias": True,
                "layer_types": ["sliding_attention", "full_attention"] * 2},
    "27b": {"architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 4,
            "num_attention_heads": 24, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 248320, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
            "linear_num_key_heads": 16, "linear_num_value_heads": 48, "linear_value_head_dim": 128,
            "layer_types": ["linear_attention"] * 3 + ["full_attention"],
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25}}}
SMALL = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 160, "num_experts": 4,
         "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
         "linear_num_key_heads": 1, "linear_num_value_heads": 2}


def sizes_of(model, tiny):
    return TINY[:7] + (MODELS[model][7],) if tiny else MODELS[model]


def config_of(model, tiny):
    if model in CUT:
        whole = {**COMMON, **CUT[model]}
        return {key: SMALL[key] if tiny and key in SMALL else value for key, value in whole.items()}
    d, f, layers, heads, kv, head, vocabulary, tied = sizes_of(model, tiny)
    return {**COMMON, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": d, "intermediate_size": f, "num_hidden_layers": layers,
            "num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": head, "vocab_size": vocabulary, "tie_word_embeddings": tied, "rope_theta": 1000000}


def write_config(folder, model, tiny):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config_of(model, tiny), file)
    return folder


def vocabulary_of(model, tiny):
    return config_of(model, tiny)["vocab_size"]


def parameters(model):
    d, f, layers, heads, kv, head, vocabulary, tied = MODELS[model]
    return layers * (2 * d * heads * head + 2 * d * kv * head + 3 * d * f) + d * vocabulary * (1 if tied else 2)


def model_flops(sizes, tokens):
    """Of a step of a dense model: 6 P_matmul T + 6 T^2 heads head layers."""
    d, f, layers, heads, kv, head, vocabulary, _ = sizes
    products = layers * (2 * d * heads * head + 2 * d * kv * head + 3 * d * f) + d * vocabulary
    return 6.0 * products * tokens + 6.0 * tokens * tokens * heads * head * layers
