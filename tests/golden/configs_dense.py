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
    config = base("ministral3", "Ministral3ForCausalLM", head_dim=8, sliding_window=None, rope_parameters=rope, **changes)
    del config["rope_theta"]
    return config
