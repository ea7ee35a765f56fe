"""The cases of further families with experts, as cases.py has the others."""

from case import ABSENT, A, B, Case, D
from configs_experts import (
    ernie4_5_moe,
    granitemoe_swa,
    hunyuan_v1_moe,
    hy_v3,
    laguna,
    lfm2_moe,
    lfm3,
    mimo_v2_flash,
    minimax_m2,
    mistral4,
)

EXPERTS = {
    "minimax_m2_balanced": Case(
        "sigmoids and a correction choose, what balances experts looks at a softmax of the logits; half of a head turns",
        minimax_m2(),
        D,
        differs_from=({"router_aux_loss_coef": 0.0}, {"rotary_dim": 8}, {"num_experts_per_tok": 1}),
    ),
    "mistral4_groups": Case(
        "latent attention with scaled queries; a softmax chooses within groups; experts in one tensor",
        mistral4(),
        D,
        differs_from=(
            {"topk_group": 2},
            {"routed_scaling_factor": ABSENT},
            {"rope_interleave": False},
            {"rope_parameters": {**mistral4()["rope_parameters"], "llama_4_scaling_beta": 0.29}},
            {"rope_parameters": {**mistral4()["rope_parameters"], "mscale_all_dim": 0.9}},
        ),
    ),
    "lfm2_moe_plain": Case(
        "sigmoids and a correction choose; an MLP, then experts behind convolutions and attention",
        lfm2_moe(),
        D,
        favour=(0,),
        differs_from=({"routed_scaling_factor": ABSENT}, {"norm_topk_prob": False}, {"use_expert_bias": False}),
    ),
    "hy_v3_shared": Case(
        "sigmoids and a correction choose; a shared expert, and an MLP, with biases",
        hy_v3(),
        B,
        differs_from=({"router_scaling_factor": ABSENT}, {"rms_norm_eps": 1e-3}, {"mlp_bias": False}),
    ),
    "ernie4_5_moe_balanced": Case(
        "a softmax and a correction choose, a least sum of the weights, balanced; whole heads turn by pairs of neighbours",
        ernie4_5_moe(),
        D,
        favour=(0,),
        differs_from=({"router_aux_loss_coef": 0.0}, {"moe_norm_min": ABSENT}, {"rope_theta": ABSENT}),
    ),
    "granitemoe_swa_balanced": Case(
        "sinks, a window, a layer without positions; the logits choose, balanced; a shared MLP of two halves",
        granitemoe_swa(),
        D,
        differs_from=(
            {"router_aux_loss_coef": 0.0},
            {"sliding_window": 8},
            {"layer_rope_theta": [300.0, 300.0]},
            {"residual_multiplier": ABSENT},
        ),
    ),
    "hunyuan_v1_moe_lists": Case(
        "two experts in one layer, three in the other; norms of queries and keys behind their rotation",
        hunyuan_v1_moe(),
        D,
        favour=(0,),
        differs_from=({"moe_topk": [2, 2]}, {"rope_scaling": {"type": "dynamic", "alpha": 8.0, "factor": 1.0}}),
    ),
    "laguna_capped": Case(
        "heads by layer, opened by a softplus for each; capped logits, balanced; half of a head turns in one layer",
        laguna(),
        D,
        differs_from=(
            {"moe_router_logit_softcapping": 0.0},
            {"moe_routed_scaling_factor": ABSENT},
            {"router_aux_loss_coef": 0.0},
            {"sliding_window": 8},
        ),
    ),
    "laguna_elements": Case(
        "a softplus opens each element of what attention gives; biases",
        laguna(gating="per-element", attention_bias=True, moe_router_logit_softcapping=0.0, router_aux_loss_coef=0.0, num_hidden_layers=2,
               layer_types=["sliding_attention", "full_attention"], num_attention_heads_per_layer=[4, 2]),
        D,
        differs_from=({"sliding_window": 10},),
    ),
    "mimo_v2_flash_values": Case(
        "heads of keys and sinks by layer; narrow values, scaled; a third of a head turns",
        mimo_v2_flash(),
        D,
        differs_from=(
            {"attention_value_scale": None},
            {"routed_scaling_factor": ABSENT},
            {"sliding_window": 8},
            {"rope_parameters": ABSENT},
        ),
    ),
    "lfm3_gated": Case(
        "a convolution and attention with norms before and behind them, opened for each head; half of the pairs turn",
        lfm3(),
        D,
        favour=(0,),
        differs_from=({"sliding_window": 8}, {"use_sandwich_norm": False}, {"rope_parameters": ABSENT}),
    ),
}
