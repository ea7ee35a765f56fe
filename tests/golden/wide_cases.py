"""Models that are long in one or two directions and thin in the others: config.json and lengths of documents. Data;
make_wide.py runs it. Each stands for a family, and the sizes at which a way of computing changes lie on both sides of
what the cases have: rows of 512, 1024 and 4096 numbers, 2048 rows, products over 640 and 2048, tiles of keys, 256 elements
of a state, 300 experts."""

import dataclasses

from configs import (
    deepseek_v3,
    gemma3,
    gemma4,
    glm4,
    glm4_moe,
    glm4_moe_lite,
    gpt_neox,
    gpt_oss,
    granite,
    lfm2,
    llama,
    mistral,
    olmo2,
    olmo3,
    olmoe,
    phi3,
    qwen2,
    qwen3,
    qwen3_5,
    qwen3_moe,
    qwen3_next,
    smollm3,
)
from configs_dense import apertus, cohere2, gemma3n, hunyuan_v1_dense, ministral3
from configs_experts import hy_v3, laguna, lfm2_moe, mimo_v2_flash, minimax_m2, mistral4
from configs_states import falcon_h1, granite_hybrid, nemotron_h


@dataclasses.dataclass
class Wide:
    config: dict
    lengths: list
    seed: int = 0  # of the rows; another one where a token is nearly as near to two experts


def plain(family, **changes):
    """One layer of each kind, heads of 64, positions enough."""
    return family(**{"max_position_embeddings": 4096, **changes})


def one(family, **changes):
    return plain(family, **{"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64, **changes})


def unbalanced(config):
    return {**config, "router_aux_loss_coef": 0.0, "output_router_logits": False}


def without(config, *keys):
    return {key: value for key, value in config.items() if key not in keys}


def mixtral(**changes):
    return {
        **without(qwen3_moe(), "mlp_only_layers", "decoder_sparse_step", "num_experts", "moe_intermediate_size", "norm_topk_prob"),
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_local_experts": 3,
        **changes,
    }


def qwen3_5_moe(**changes):
    return {
        **qwen3_5(),
        "architectures": ["Qwen3_5MoeForCausalLM"],
        "model_type": "qwen3_5_moe_text",
        "num_experts": 5,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 8,
        "shared_expert_intermediate_size": 10,
        "router_aux_loss_coef": 0.0,
        "output_router_logits": False,
        **changes,
    }


SHORT = [37, 1, 70]

CASES = {
    # ---- sizes, of the plainest family
    "llama_mlp_4100": Wide(  # products over 4100, a group of 16 heads, biases
        one(llama, hidden_size=80, intermediate_size=4100, num_attention_heads=16, head_dim=16, attention_bias=True, mlp_bias=True),
        SHORT,
    ),
    "llama_vocab_70001": Wide(one(llama, vocab_size=70001, hidden_size=40, intermediate_size=24, tie_word_embeddings=True), [23, 30]),
    "llama_rows_2600": Wide(one(llama, hidden_size=24, intermediate_size=40, head_dim=16), [2300, 291, 9]),
    "llama_blocks": Wide(  # of products: 2200 deep, 1100 columns, 700 rows
        one(llama, hidden_size=1100, intermediate_size=2200), [500, 130, 70]
    ),
    "qwen3_heads_71": Wide(  # on one head of keys, over several tiles of them
        one(qwen3, hidden_size=40, intermediate_size=24, num_attention_heads=71, head_dim=64), [600, 40]
    ),
    # ---- a family each
    "mistral_hidden_1100": Wide(one(mistral, hidden_size=1100, intermediate_size=1030, sliding_window=40), SHORT),
    "qwen2_hidden_1032": Wide(
        plain(qwen2, hidden_size=1032, intermediate_size=1100, num_hidden_layers=1, num_attention_heads=12, num_key_value_heads=3), SHORT
    ),
    "qwen3_hidden_4100": Wide(one(qwen3, hidden_size=4100, intermediate_size=40, head_dim=192), SHORT),
    "gemma3_head_256": Wide(
        one(
            gemma3,
            hidden_size=1152,
            intermediate_size=1030,
            head_dim=256,
            query_pre_attn_scalar=256,
            num_hidden_layers=2,
            layer_types=["sliding_attention", "full_attention"],
            sliding_window=100,
        ),
        [330, 1, 40],
    ),
    "gemma4_head_512": Wide(
        one(
            gemma4,
            hidden_size=1040,
            hidden_size_per_layer_input=20,
            intermediate_size=40,
            head_dim=256,
            global_head_dim=512,
            num_hidden_layers=3,
            layer_types=["sliding_attention", "full_attention", "full_attention"],
            num_kv_shared_layers=1,
            sliding_window=100,
            use_double_wide_mlp=False,
        ),
        [270, 1, 30],
    ),
    "gemma4_experts_1040": Wide(
        one(
            gemma4,
            hidden_size=72,
            hidden_size_per_layer_input=1028,
            intermediate_size=1030,
            num_hidden_layers=1,
            layer_types=["full_attention"],
            num_kv_shared_layers=0,
            global_head_dim=64,
            enable_moe_block=True,
            moe_intermediate_size=1040,
            num_experts=4,
            top_k_experts=2,
            use_double_wide_mlp=False,
        ),
        SHORT,
    ),
    "olmo2_hidden_1040": Wide(  # norms over all heads
        plain(olmo2, hidden_size=1040, intermediate_size=1100, num_hidden_layers=1, num_attention_heads=13, num_key_value_heads=13), SHORT
    ),
    "olmo3_hidden_1040": Wide(
        plain(
            olmo3,
            hidden_size=1040,
            intermediate_size=60,
            num_hidden_layers=2,
            layer_types=["sliding_attention", "full_attention"],
            num_attention_heads=13,
            num_key_value_heads=13,
        ),
        SHORT,
    ),
    "smollm3_hidden_1088": Wide(
        plain(smollm3, hidden_size=1088, intermediate_size=1030, num_hidden_layers=1, num_attention_heads=17, num_key_value_heads=1,
              no_rope_layers=[1]),
        SHORT,
    ),
    "glm_hidden_1056": Wide(
        one(glm4, architectures=["GlmForCausalLM"], model_type="glm", hidden_size=1056, intermediate_size=1030, partial_rotary_factor=0.5), SHORT
    ),
    "glm4_hidden_1056": Wide(one(glm4, hidden_size=1056, intermediate_size=1030, partial_rotary_factor=0.5), SHORT),
    "phi3_hidden_1056": Wide(
        plain(phi3, hidden_size=1056, intermediate_size=1030, num_hidden_layers=1, num_attention_heads=11, num_key_value_heads=1), SHORT
    ),
    "granite_hidden_1088": Wide(
        plain(granite, hidden_size=1088, intermediate_size=1030, num_hidden_layers=1, num_attention_heads=17, num_key_value_heads=1,
              attention_multiplier=0.125),
        SHORT,
    ),
    "granite_hybrid_1040": Wide(  # a state of 256 for heads of 104
        plain(
            granite_hybrid,
            hidden_size=1040,
            shared_intermediate_size=1030,
            num_hidden_layers=2,
            layer_types=["mamba", "attention"],
            num_attention_heads=10,
            num_key_value_heads=1,
            mamba_n_heads=20,
            mamba_d_head=104,
            mamba_n_groups=1,
            mamba_d_state=256,
            attention_multiplier=0.1,
        ),
        [150, 1, 70],
    ),
    "granite_hybrid_experts_1040": Wide(
        plain(
            granite_hybrid,
            hidden_size=72,
            intermediate_size=1040,
            shared_intermediate_size=1030,
            num_hidden_layers=1,
            layer_types=["mamba"],
            num_attention_heads=2,
            num_key_value_heads=1,
            num_local_experts=4,
            num_experts_per_tok=2,
            mamba_n_heads=2,
            mamba_d_head=72,
            mamba_n_groups=2,
            mamba_d_state=64,
            router_aux_loss_coef=0.0,
            output_router_logits=False,
        ),
        SHORT,
    ),
    "nemotron_h_hidden_1040": Wide(
        plain(
            nemotron_h,
            hidden_size=1040,
            intermediate_size=1030,
            layers_block_type=["linear_attention", "mlp", "full_attention", "moe"],
            head_dim=64,
            mamba_num_heads=4,
            mamba_head_dim=64,
            ssm_state_size=128,
            n_routed_experts=4,
            moe_intermediate_size=1028,
            moe_shared_expert_intermediate_size=1032,
            moe_latent_size=72,
        ),
        [100, 1, 70],
    ),
    "falcon_h1_1040": Wide(
        plain(
            falcon_h1,
            hidden_size=1040,
            intermediate_size=1030,
            num_hidden_layers=1,
            head_dim=64,
            mamba_d_ssm=1152,
            mamba_n_heads=18,
            mamba_d_head=64,
            mamba_n_groups=2,
            mamba_d_state=128,
            mamba_rms_norm=True,
            key_multiplier=0.4,
        ),
        [100, 1, 70],
    ),
    "gpt_neox_hidden_1040": Wide(
        plain(gpt_neox, hidden_size=1040, intermediate_size=1100, num_hidden_layers=1, num_attention_heads=13), SHORT
    ),
    "lfm2_hidden_1040": Wide(
        plain(lfm2, hidden_size=1040, intermediate_size=1030, num_hidden_layers=2, layer_types=["conv", "full_attention"],
              num_attention_heads=13, num_key_value_heads=1),
        [100, 1, 70],
    ),
    "qwen3_5_hidden_1100": Wide(
        plain(
            qwen3_5,
            hidden_size=1100,
            intermediate_size=1030,
            num_hidden_layers=2,
            layer_types=["linear_attention", "full_attention"],
            head_dim=64,
            linear_key_head_dim=128,
            linear_value_head_dim=128,
        ),
        [150, 1, 70],
    ),
    "qwen3_next_mlp_1100": Wide(  # the convolution is of 1280 columns
        plain(
            qwen3_next,
            hidden_size=72,
            intermediate_size=1100,
            num_hidden_layers=2,
            layer_types=["linear_attention", "full_attention"],
            head_dim=256,
            num_attention_heads=2,
            num_key_value_heads=1,
            linear_num_value_heads=8,
            linear_key_head_dim=64,
            linear_value_head_dim=128,
        ),
        [150, 1, 70],
    ),
    "qwen3_5_moe_1040": Wide(
        plain(
            qwen3_5_moe,
            hidden_size=72,
            num_hidden_layers=2,
            layer_types=["linear_attention", "full_attention"],
            head_dim=64,
            linear_key_head_dim=64,
            linear_value_head_dim=64,
            num_experts=3,
            moe_intermediate_size=1040,
            shared_expert_intermediate_size=1100,
        ),
        SHORT,
    ),
    "qwen3_moe_1040": Wide(
        unbalanced(one(qwen3_moe, hidden_size=1056, num_experts=3, moe_intermediate_size=1040, mlp_only_layers=[])), SHORT
    ),
    "mixtral_1100": Wide(unbalanced(one(mixtral, hidden_size=72, intermediate_size=1100)), SHORT),
    "glm4_moe_1040": Wide(one(glm4_moe, hidden_size=72, moe_intermediate_size=1040, n_routed_experts=4, first_k_dense_replace=0), SHORT),
    "glm4_moe_lite_1056": Wide(
        plain(
            glm4_moe_lite,
            hidden_size=1056,
            intermediate_size=1100,
            num_attention_heads=2,
            num_key_value_heads=2,
            kv_lora_rank=520,
            q_lora_rank=770,
            qk_nope_head_dim=192,
            qk_rope_head_dim=64,
            v_head_dim=256,
            n_routed_experts=4,
            moe_intermediate_size=40,
        ),
        SHORT,
    ),
    "deepseek_v3_1040": Wide(
        plain(
            deepseek_v3,
            hidden_size=72,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            kv_lora_rank=1040,
            q_lora_rank=1100,
            qk_nope_head_dim=128,
            qk_rope_head_dim=64,
            v_head_dim=128,
            first_k_dense_replace=0,
            moe_intermediate_size=1040,
            n_routed_experts=4,
            n_shared_experts=1,
        ),
        [150, 1, 40],
    ),
    "olmoe_1040": Wide(
        unbalanced(
            plain(olmoe, hidden_size=1040, intermediate_size=60, num_hidden_layers=1, num_attention_heads=13, num_key_value_heads=13,
                  num_experts_per_tok=2)
        ),
        SHORT,
    ),
    "gpt_oss_experts_320": Wide(
        unbalanced(one(gpt_oss, hidden_size=40, intermediate_size=12, num_local_experts=320, num_experts_per_tok=10,
                       layer_types=["full_attention"])),
        [37, 1, 20],
    ),
    "gpt_oss_1040": Wide(
        unbalanced(one(gpt_oss, hidden_size=1032, intermediate_size=1040, num_local_experts=3, layer_types=["sliding_attention"], sliding_window=40)),
        SHORT,
    ),
    "ministral3_hidden_1040": Wide(one(ministral3, hidden_size=1040, intermediate_size=1030, head_dim=128), [300, 1, 70]),
    "cohere2_hidden_1040": Wide(
        plain(cohere2, hidden_size=1040, intermediate_size=1030, num_hidden_layers=2, num_attention_heads=13, num_key_value_heads=1,
              layer_types=["sliding_attention", "full_attention"], sliding_window=33),
        [100, 1, 70],
    ),
    "hunyuan_v1_dense_1040": Wide(
        one(hunyuan_v1_dense, hidden_size=1040, intermediate_size=1030, head_dim=128, attention_head_dim=128), [100, 1, 70]
    ),
    "apertus_hidden_1040": Wide(one(apertus, hidden_size=1040, intermediate_size=4100, num_attention_heads=13), [100, 1, 70]),
    "gemma3n_hidden_1040": Wide(
        plain(gemma3n, hidden_size=1040, intermediate_size=[1100, 4100], num_hidden_layers=2, num_kv_shared_layers=0,
              layer_types=["sliding_attention", "full_attention"], activation_sparsity_pattern=[0.8, 0.0], altup_num_inputs=4,
              hidden_size_per_layer_input=256, laurel_rank=64, num_attention_heads=2, head_dim=256),
        [100, 1, 70],
    ),
    "minimax_m2_1040": Wide(
        unbalanced(one(minimax_m2, hidden_size=1040, intermediate_size=260, attn_type_list=[1], num_local_experts=16, head_dim=128,
                       rotary_dim=64)),
        [100, 1, 70],
    ),
    "lfm2_moe_1040": Wide(
        unbalanced(plain(lfm2_moe, hidden_size=1040, intermediate_size=1030, moe_intermediate_size=260, num_hidden_layers=2,
                         layer_types=["conv", "full_attention"], num_dense_layers=1, num_attention_heads=13, num_key_value_heads=1)),
        [100, 1, 70],
    ),
    "mistral4_1040": Wide(
        plain(mistral4, hidden_size=1040, intermediate_size=1030, moe_intermediate_size=260, num_attention_heads=2,
              num_key_value_heads=2, kv_lora_rank=520, q_lora_rank=300, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
              n_routed_experts=16, rope_parameters={**mistral4()["rope_parameters"], "partial_rotary_factor": 1 / 3}),
        [100, 1, 70],
        seed=2,
    ),
    "mimo_v2_flash_1040": Wide(
        plain(mimo_v2_flash, hidden_size=1040, intermediate_size=1030, moe_intermediate_size=260, head_dim=192, v_head_dim=128,
              n_routed_experts=16, sliding_window=33),
        [100, 1, 70],
    ),
    "laguna_1040": Wide(
        unbalanced(plain(laguna, hidden_size=1040, intermediate_size=1030, moe_intermediate_size=260, shared_expert_intermediate_size=260,
                         head_dim=128, num_experts=16, sliding_window=33)),
        [100, 1, 70],
    ),
}
