"""Small dense models of families whose layers differ from Llama's in fields of the decoder, in the spelling of released
files."""


def base(model_type, architecture, **changes):
    """What most of them have in common."""
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": 53,
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
        "dtype": "float32",
        **changes,
    }


def ministral3(**changes):
    """Documents are several times as long as what the model began with."""
    rope = {
        "type": "yarn",
        "rope_type": "yarn",
        "rope_theta": 300.0,
        "factor": 4.0,
        "original_max_position_embeddings": 6,
        "beta_fast": 2.0,
        "beta_slow": 0.5,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.3,
    }
    fields = {"head_dim": 8, "sliding_window": None, "rope_parameters": rope, **changes}
    config = base("ministral3", "Ministral3ForCausalLM", **fields)
    del config["rope_theta"]
    return config


def exaone4(**changes):
    """Two layers with a window, then one without positions."""
    return base(
        "exaone4",
        "Exaone4ForCausalLM",
        **{
            "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "sliding_window": 7,
            "sliding_window_pattern": "LLG",
            **changes,
        },
    )


def cohere2(**changes):
    """As released, with fields that its class does not read."""
    config = base(
        "cohere2",
        "Cohere2ForCausalLM",
        **{
            "num_hidden_layers": 3,
            "layer_norm_eps": 1e-2,
            "logit_scale": 0.7,
            "sliding_window": 7,
            "sliding_window_pattern": 3,
            "layer_switch": 3,
            "order_of_interleaved_layers": "local_attn_first",
            "position_embedding_type": "rope_gptj",
            "rotary_pct": 1.0,
            "use_embedding_sharing": True,
            "use_gated_activation": True,
            "use_parallel_block": True,
            "use_parallel_embedding": False,
            "use_qk_norm": False,
            "tie_word_embeddings": True,
            **changes,
        },
    )
    del config["rms_norm_eps"]
    return config


def hunyuan_v1_dense(**changes):
    rope = {"type": "dynamic", "alpha": 7.0, "factor": 1.0, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0}
    return base(
        "hunyuan_v1_dense",
        "HunYuanDenseV1ForCausalLM",
        **{
            "head_dim": 8,
            "attention_head_dim": 8,
            "rope_scaling": rope,
            "use_qk_norm": True,
            "use_cla": False,
            "cla_share_factor": 2,
            "rms_norm_eps": 1e-2,
            **changes,
        },
    )


def granite_swa(**changes):
    """As transformers writes it: thetas of two kinds, and a layer without positions."""
    config = base(
        "granite_swa",
        "GraniteSWAForCausalLM",
        **{
            "num_hidden_layers": 4,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
            "layer_rope_theta": [300.0, 40.0, 300, 0],
            "rope_parameters": {"rope_type": "default", "rope_theta": 300.0},
            "sliding_window": 7,
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.25,
            "residual_multiplier": 0.7,
            "logits_scaling": 1.5,
            "tie_word_embeddings": True,
            **changes,
        },
    )
    del config["rope_theta"]
    return config


def apertus(**changes):
    return base(
        "apertus",
        "ApertusForCausalLM",
        **{
            "hidden_act": "xielu",
            "post_norm": False,
            "qk_norm": True,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "original_max_position_embeddings": 32,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
            },
            **changes,
        },
    )


def gemma3n(**changes):
    """Three streams; sparse and dense MLPs; a layer that reads others' keys; tokens without an embedding of each layer."""
    return {
        "architectures": ["Gemma3nForCausalLM"],
        "model_type": "gemma3n_text",
        "vocab_size": 53,
        "vocab_size_per_layer_input": 40,
        "hidden_size": 24,
        "hidden_size_per_layer_input": 5,
        "intermediate_size": [14, 22, 14],
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "num_kv_shared_layers": 1,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "head_dim": 6,
        "hidden_activation": "gelu_pytorch_tanh",
        "activation_sparsity_pattern": [0.8, 0.0, 0.6],
        "altup_active_idx": 0,
        "altup_coef_clip": 120.0,
        "altup_correct_scale": True,
        "altup_num_inputs": 3,
        "laurel_rank": 4,
        "sliding_window": 9,
        "final_logit_softcapping": 5.0,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-4,
        "rope_theta": 700.0,
        "rope_local_base_freq": 60.0,
        "tie_word_embeddings": True,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "dtype": "float32",
        **changes,
    }
