"""The cases of dense families that differ from Llama in fields of the decoder, as cases.py has the others."""

from case import ABSENT, Case, D, E
from configs_dense import gemma3n, apertus, base, cohere2, exaone4, granite_swa, hunyuan_v1_dense, ministral3

DENSE = {
    "ministral3_plain": Case(
        "queries scaled by how often the position holds the original length, five times in the longest document",
        ministral3(),
        D,
        differs_from=(
            {"rope_parameters": {**ministral3()["rope_parameters"], "llama_4_scaling_beta": 0.29}},
            {"rope_parameters": {**ministral3()["rope_parameters"], "original_max_position_embeddings": 7}},
            {"rope_parameters": {**ministral3()["rope_parameters"], "mscale": 0.5}},
        ),
    ),
    "ernie4_5_bias": Case(
        "whole heads turn by pairs of neighbours; seven biases a layer, tied",
        base("ernie4_5", "Ernie4_5ForCausalLM", head_dim=8, use_bias=True, tie_word_embeddings=True),
        D,
        differs_from=({"use_bias": False}, {"rope_theta": ABSENT}),
    ),
    "exaone4_windows": Case(
        "norms on outputs and on heads; layers without a window have no positions",
        exaone4(),
        D,
        differs_from=({"sliding_window": 8}, {"layer_types": ["sliding_attention"] * 3}, {"rope_theta": ABSENT}),
    ),
    "cohere2_released": Case(
        "attention beside the MLP on a norm without bias, tied; every third layer has neither window nor positions",
        cohere2(),
        E,
        differs_from=({"sliding_window": 8}, {"sliding_window_pattern": 2}, {"logit_scale": ABSENT}, {"layer_norm_eps": ABSENT}),
    ),
    "hunyuan_v1_dense_alpha": Case(
        "heads are normed behind their rotation, whose base is stretched once and for all",
        hunyuan_v1_dense(),
        D,
        differs_from=(
            {"rope_scaling": {**hunyuan_v1_dense()["rope_scaling"], "alpha": 7.5}},
            {"rope_scaling": None},
            {"rms_norm_eps": ABSENT},
        ),
    ),
    "granite_swa_thetas": Case(
        "sinks, windows, two thetas, a layer without positions, numbers on embedding, scores, branches and logits; tied",
        granite_swa(),
        D,
        differs_from=(
            {"layer_rope_theta": [300.0, 300.0, 300.0, 0]},
            {"layer_rope_theta": [300.0, 40.0, 300.0, 300.0]},
            {"layer_types": ABSENT},
            {"sliding_window": 8},
        ),
    ),
    "apertus_plain": Case(
        "xIELU, of which two numbers a layer are trained; norms on heads, llama3 rope",
        apertus(),
        D,
        differs_from=({"rope_scaling": {"rope_type": "default"}}, {"rms_norm_eps": 1e-3}),
    ),
    "gemma3n_outside": Case(
        "streams that layers predict and correct, a branch of low rank, gates that open above others; tokens that have no "
        "embedding of each layer read the first",
        gemma3n(),
        D,
        differs_from=(
            {"activation_sparsity_pattern": [0.0, 0.0, 0.6]},
            {"altup_correct_scale": False},
            {"sliding_window": 8},
            {"final_logit_softcapping": 50.0},
        ),
    ),
}
