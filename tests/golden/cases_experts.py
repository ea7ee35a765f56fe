"""The cases of further families with experts, as cases.py has the others."""

from case import ABSENT, A, B, Case, D
from configs_experts import ernie4_5_moe, hy_v3, lfm2_moe, minimax_m2, mistral4

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
}
