"""config.json of a small model of every family, and of every rope_type: what the cases change."""


def llama(**changes):
    """Two small layers; 12-wide heads on a hidden size of 18, so head_dim != hidden / heads."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 61,
        "hidden_size": 18,
        "intermediate_size": 25,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 12,
        "hidden_act": "silu",
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "dtype": "float32",
        **changes,
    }


def mistral(**changes):
    return {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "vocab_size": 61,
        "hidden_size": 24,
        "intermediate_size": 23,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_act": "silu",
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "rope_theta": 300.0,
        "torch_dtype": "float32",
        **changes,
    }


def qwen2(**changes):
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": 59,
        "hidden_size": 24,
        "intermediate_size": 23,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_act": "silu",
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "rope_theta": 60.0,
        "torch_dtype": "float32",
        **changes,
    }


def seed_oss(**changes):
    return {
        "architectures": ["SeedOssForCausalLM"],
        "model_type": "seed_oss",
        "vocab_size": 59,
        "hidden_size": 20,
        "intermediate_size": 23,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 6,
        "hidden_act": "silu",
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "attention_bias": False,
        "attention_out_bias": True,
        "mlp_bias": True,
        "attention_dropout": 0.1,
        "residual_dropout": 0.1,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "rope_theta": 60.0,
        "rope_scaling": {"rope_type": "default"},
        "torch_dtype": "float32",
        **changes,
    }


def qwen3(**changes):
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": 67,
        "hidden_size": 24,
        "intermediate_size": 23,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "head_dim": 10,
        "hidden_act": "silu",
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "rope_theta": 500.0,
        "rope_scaling": None,
        "torch_dtype": "float32",
        **changes,
    }


def qwen3_moe_small(**changes):
    """As many inputs as a block of FP8 has, and little else: a layer with an MLP, one with experts."""
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "vocab_size": 31,
        "hidden_size": 128,
        "intermediate_size": 24,
        "moe_intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "num_experts": 3,
        "num_experts_per_tok": 2,
        "mlp_only_layers": [0],
        "norm_topk_prob": True,
        "hidden_act": "silu",
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "router_aux_loss_coef": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "rope_theta": 500.0,
        "dtype": "float32",
        **changes,
    }


def gemma3(**changes):
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "vocab_size": 73,
        "hidden_size": 20,
        "intermediate_size": 27,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "query_pre_attn_scalar": 13,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "sliding_window": 6,
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": [1, 3],
        "dtype": "float32",
        **changes,
    }


def gemma4(**changes):
    """Keys and values of a layer of each kind that two more layers read; an embedding of the token for each layer."""
    return {
        "architectures": ["Gemma4ForCausalLM"],
        "model_type": "gemma4_text",
        "vocab_size": 53,
        "vocab_size_per_layer_input": 53,
        "hidden_size": 18,
        "hidden_size_per_layer_input": 5,
        "intermediate_size": 14,
        "num_hidden_layers": 6,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
        "num_kv_shared_layers": 4,
        "use_double_wide_mlp": True,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "head_dim": 6,
        "global_head_dim": 8,
        "attention_k_eq_v": False,
        "enable_moe_block": False,
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": 9,
        "final_logit_softcapping": 5.0,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-2,
        "rope_parameters": {
            "full_attention": {"rope_type": "proportional", "rope_theta": 700.0, "partial_rotary_factor": 0.25},
            "sliding_attention": {"rope_type": "default", "rope_theta": 60.0},
        },
        "tie_word_embeddings": True,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "dtype": "float32",
        **changes,
    }


def qwen3_next(**changes):
    """Three layers with the delta rule, one with attention; experts in none; two value heads for a key head."""
    return {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "vocab_size": 61,
        "hidden_size": 26,
        "intermediate_size": 31,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 10,
        "linear_value_head_dim": 8,
        "linear_conv_kernel_dim": 4,
        "num_experts": 0,
        "hidden_act": "silu",
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-2,
        "rope_theta": 300.0,
        "partial_rotary_factor": 0.5,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "dtype": "float32",
        **changes,
    }


def qwen3_5(**changes):
    """The delta rule around attention; two value heads for a key head."""
    return {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "vocab_size": 61,
        "hidden_size": 12,
        "intermediate_size": 14,
        "num_hidden_layers": 3,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 6,
        "linear_value_head_dim": 5,
        "linear_conv_kernel_dim": 4,
        "hidden_act": "silu",
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 300.0, "partial_rotary_factor": 0.5},
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "dtype": "float32",
        **changes,
    }


def lfm2(**changes):
    """Convolutions around attention."""
    return {
        "architectures": ["Lfm2ForCausalLM"],
        "model_type": "lfm2",
        "vocab_size": 61,
        "hidden_size": 12,
        "intermediate_size": 14,
        "block_auto_adjust_ff_dim": False,
        "num_hidden_layers": 3,
        "layer_types": ["conv", "full_attention", "conv"],
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "conv_L_cache": 4,
        "conv_bias": True,
        "max_position_embeddings": 128,
        "norm_eps": 1e-2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 300.0},
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": None,
        "dtype": "float32",
        **changes,
    }


def olmo2(**changes):
    return {
        "architectures": ["Olmo2ForCausalLM"],
        "model_type": "olmo2",
        "vocab_size": 53,
        "hidden_size": 24,
        "intermediate_size": 23,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_act": "silu",
        "max_position_embeddings": 128,
        "tie_word_embeddings": False,
        "pad_token_id": 1,
        "eos_token_id": 2,
        "rope_theta": 400.0,
        "dtype": "float32",
        **changes,
    }


def glm4(**changes):
    """As released files are spelled: partial_rotary_factor and rope_theta at the top."""
    return {
        "architectures": ["Glm4ForCausalLM"],
        "model_type": "glm4",
        "vocab_size": 59,
        "hidden_size": 24,
        "intermediate_size": 23,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "hidden_act": "silu",
        "max_position_embeddings": 128,
        "attention_bias": True,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": [2, 3],
        "pad_token_id": 1,
        "dtype": "float32",
        **changes,
    }


def deepseek_v3(**changes):
    """A dense layer, then two of six experts in two groups of three."""
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "vocab_size": 57,
        "hidden_size": 24,
        "intermediate_size": 23,
        "moe_intermediate_size": 9,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "kv_lora_rank": 10,
        "q_lora_rank": 11,
        "qk_nope_head_dim": 6,
        "qk_rope_head_dim": 4,
        "v_head_dim": 7,
        "n_routed_experts": 6,
        "n_shared_experts": 2,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "routed_scaling_factor": 1.5,
        "hidden_act": "silu",
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-2,
        "rope_theta": 300.0,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "dtype": "float32",
        **changes,
    }


def glm4_moe(**changes):
    return {
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "vocab_size": 59,
        "hidden_size": 24,
        "intermediate_size": 23,
        "moe_intermediate_size": 9,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "n_routed_experts": 5,
        "num_experts_per_tok": 2,
        "hidden_act": "silu",
        "max_position_embeddings": 128,
        "tie_word_embeddings": False,
        "eos_token_id": [2, 3],
        "pad_token_id": 1,
        "dtype": "float32",
        **changes,
    }


def glm4_moe_lite(**changes):
    """A dense layer, then two of five experts."""
    return {
        "architectures": ["Glm4MoeLiteForCausalLM"],
        "model_type": "glm4_moe_lite",
        "vocab_size": 59,
        "hidden_size": 24,
        "intermediate_size": 23,
        "moe_intermediate_size": 9,
        "num_hidden_layers": 2,
        "mlp_layer_types": ["dense", "sparse"],
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "kv_lora_rank": 10,
        "q_lora_rank": 11,
        "qk_nope_head_dim": 6,
        "qk_rope_head_dim": 4,
        "v_head_dim": 7,
        "n_routed_experts": 5,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 1.8,
        "norm_topk_prob": True,
        "hidden_act": "silu",
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 300.0},
        "tie_word_embeddings": False,
        "eos_token_id": [2, 3],
        "pad_token_id": 1,
        "dtype": "float32",
        **changes,
    }


def qwen3_moe(**changes):
    """Two of five experts in every layer but one; experts are balanced."""
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "vocab_size": 53,
        "hidden_size": 20,
        "intermediate_size": 23,
        "moe_intermediate_size": 7,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "num_experts": 5,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [1],
        "hidden_act": "silu",
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-2,
        "rope_theta": 300.0,
        "router_aux_loss_coef": 0.3,
        "output_router_logits": True,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "dtype": "float32",
        **changes,
    }


def olmoe(**changes):
    return {
        "architectures": ["OlmoeForCausalLM"],
        "model_type": "olmoe",
        "vocab_size": 47,
        "hidden_size": 16,
        "intermediate_size": 9,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "num_experts": 4,
        "num_experts_per_tok": 1,
        "norm_topk_prob": False,
        "hidden_act": "silu",
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-2,
        "rope_theta": 300.0,
        "router_aux_loss_coef": 0.2,
        "output_router_logits": True,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "dtype": "float32",
        **changes,
    }


def gpt_oss(**changes):
    """Softmax over the chosen in the layer, over all in the loss that balances experts."""
    return {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "vocab_size": 43,
        "hidden_size": 16,
        "intermediate_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 7,
        "hidden_act": "silu",
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-2,
        "rope_theta": 300.0,
        "rope_scaling": {"rope_type": "default"},
        "router_aux_loss_coef": 0.9,
        "output_router_logits": True,
        "tie_word_embeddings": False,
        "eos_token_id": 1,
        "dtype": "float32",
        **changes,
    }


def olmo3(**changes):
    """The spelling of the released files: rope_theta, and a rope_scaling of full attention."""
    return olmo2(
        **{
            "architectures": ["Olmo3ForCausalLM"],
            "model_type": "olmo3",
            "num_hidden_layers": 4,
            "num_key_value_heads": 4,
            "sliding_window": 7,
            "rope_theta": 500000,
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 32,
                "attention_factor": 1.1,
                "beta_fast": 8.0,
                "beta_slow": 1.0,
            },
            **changes,
        }
    )


def smollm3(**changes):
    return {
        "architectures": ["SmolLM3ForCausalLM"],
        "model_type": "smollm3",
        "vocab_size": 61,
        "hidden_size": 24,
        "intermediate_size": 23,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_act": "silu",
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-6,
        "rope_theta": 300.0,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": None,
        "dtype": "float32",
        **changes,
    }


def phi3(**changes):
    return {
        "architectures": ["Phi3ForCausalLM"],
        "model_type": "phi3",
        "vocab_size": 57,
        "hidden_size": 24,
        "intermediate_size": 19,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "hidden_act": "silu",
        "max_position_embeddings": 128,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": None,
        "rope_theta": 300.0,
        "torch_dtype": "float32",
        **changes,
    }


def granite(**changes):
    return {
        "architectures": ["GraniteForCausalLM"],
        "model_type": "granite",
        "vocab_size": 51,
        "hidden_size": 24,
        "intermediate_size": 21,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_act": "silu",
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "embedding_multiplier": 1.7,
        "attention_multiplier": 0.33,
        "residual_multiplier": 0.62,
        "logits_scaling": 1.3,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": 0,
        "rope_theta": 200.0,
        "rope_scaling": None,
        "dtype": "float32",
        **changes,
    }


def gpt_neox(**changes):
    """Heads of 12 elements."""
    return {
        "architectures": ["GPTNeoXForCausalLM"],
        "model_type": "gpt_neox",
        "vocab_size": 55,
        "hidden_size": 24,
        "intermediate_size": 37,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "hidden_act": "gelu",
        "max_position_embeddings": 128,
        "layer_norm_eps": 1e-5,
        "rotary_emb_base": 100,
        "tie_word_embeddings": False,
        "use_parallel_residual": True,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "torch_dtype": "float32",
        **changes,
    }


LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 600.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 40,
}
YARN = {"rope_type": "yarn", "rope_theta": 20.0, "factor": 4.0, "original_max_position_embeddings": 512}
YARN_MSCALE = {
    **YARN,
    "rope_theta": 120.0,
    "original_max_position_embeddings": 32,
    "mscale": 1.3,
    "mscale_all_dim": 0.6,
    "beta_fast": 2,
    "beta_slow": 1,
}
YARN_UNTRUNCATED = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": None,
    "original_max_position_embeddings": 48,
    "truncate": False,
    "beta_fast": 5.0,
    "beta_slow": 0.7,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 300.0,
    "factor": 4.0,
    "original_max_position_embeddings": 24,
    "short_factor": [1.0, 1.0, 1.1, 1.2, 1.4, 1.5],
    "long_factor": [1.0, 1.3, 1.9, 2.7, 3.4, 4.0],
}
PROPORTIONAL = {"rope_type": "proportional", "rope_theta": 300.0, "factor": 2.0, "partial_rotary_factor": 0.5}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 200.0, "factor": 2.0}

GEMMA_ROPE = {
    "full_attention": {
        "rope_type": "llama3",
        "rope_theta": 50.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 9.0,
    },
    "sliding_attention": {
        "rope_type": "yarn",
        "rope_theta": 30.0,
        "factor": 4.0,
        "beta_fast": 3.3,
        "beta_slow": 0.4,
        "truncate": False,
    },
}
