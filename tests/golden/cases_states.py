"""The cases of families whose layers carry a state by Mamba-2, as cases.py has the others."""

from case import ABSENT, D, Case, E, F
from configs_states import falcon_h1, granite_hybrid, nemotron_h

STATES = {
    "granite_hybrid_balanced": Case(
        "two of five experts beside the MLP that all rows share, in every layer, and the loss that balances them",
        granite_hybrid(num_local_experts=5, num_experts_per_tok=2, router_aux_loss_coef=0.3, output_router_logits=True),
        F,
        gain=0.9,
        centres=((".A_log", -2.0), (".dt_bias", -1.0)),
        differs_from=({"router_aux_loss_coef": 0.0}, {"router_aux_loss_coef": 0.31}, {"num_experts_per_tok": 1}),
    ),
    "granite_hybrid_groups": Case(
        "two groups of heads, a document of more rows than a block, steps that reach both limits, rope, biases of "
        "projections, no experts; tied",
        granite_hybrid(mamba_proj_bias=True, time_step_limit=[0.25, 0.6]),
        F,
        gain=0.9,
        centres=((".A_log", -2.0), (".dt_bias", -1.0)),
        differs_from=(
            {"time_step_limit": [0.0, 0.6]},
            {"time_step_limit": [0.25, 9.0]},
            {"position_embedding_type": "nope"},
            {"attention_multiplier": ABSENT},
            {"residual_multiplier": ABSENT},
        ),
    ),
    "nemotron_h_latent": Case(
        "two groups of heads, steps that reach their limit, 2 of 5 experts between maps and a shared one beside them, an "
        "MLP, attention; new names of layers",
        nemotron_h(time_step_min=0.25),
        F,
        gain=0.9,
        centres=((".A_log", -2.0), (".dt_bias", -1.0)),
        differs_from=({"time_step_min": 0.001}, {"routed_scaling_factor": 1.0}),
    ),
    "falcon_h1_plain": Case(
        "attention and a state side by side without a norm of the state's answer, every multiplier; fields as released",
        falcon_h1(),
        F,
        gain=1.0,
        centres=((".A_log", -2.0), (".dt_bias", -1.0)),
        differs_from=(
            {"embedding_multiplier": 1.0},
            {"lm_head_multiplier": 1.0},
            {"attention_in_multiplier": 1.0},
            {"attention_out_multiplier": 1.0},
            {"key_multiplier": 1.0},
            {"ssm_in_multiplier": 1.0},
            {"ssm_out_multiplier": 1.0},
            *({"ssm_multipliers": [1.0 if i == j else m for j, m in enumerate([0.7, 1.2, 0.9, 1.3, 0.8])]} for i in range(5)),
            {"mlp_multipliers": [1.0, 0.75]},
            {"mlp_multipliers": [0.9, 1.0]},
            {"rope_theta": 10000.0},
        ),
    ),
    "falcon_h1_norms": Case(
        "two groups, a norm behind the gate, biases everywhere, tied, limits of steps, mamba_d_ssm null, heads by default",
        falcon_h1(
            hidden_size=16,
            head_dim=ABSENT,
            mamba_d_ssm=None,
            mamba_n_heads=4,
            mamba_d_head="auto",
            mamba_n_groups=2,
            mamba_proj_bias=True,
            mamba_rms_norm=True,
            projectors_bias=True,
            attention_bias=True,
            mlp_bias=True,
            tie_word_embeddings=True,
            time_step_limit=[0.2, 1.1],
            ssm_multipliers=ABSENT,
            mlp_multipliers=None,
            attention_in_multiplier=1.0,
        ),
        D,
        seed=1,
        centres=((".A_log", -2.0), (".dt_bias", -1.0)),
        differs_from=(
            {"mamba_norm_before_gate": True},
            {"mamba_rms_norm": False},
            {"time_step_limit": [0.0, 1e9]},
            {"projectors_bias": False},
        ),
    ),
    "falcon_h1_norm_first": Case(
        "the norm before the gate, of two groups; no bias of the convolution; as transformers writes it",
        falcon_h1(mamba_n_groups=2, mamba_rms_norm=True, mamba_norm_before_gate=ABSENT, mamba_conv_bias=False),
        E,
        save=True,
        centres=((".A_log", -2.0), (".dt_bias", -1.0)),
        differs_from=({"mamba_norm_before_gate": False},),
    ),
}
