"""The cases: what config.json says and what the step looks like. Everything here is data; make_goldens.py runs it.

`config` is written to config.json as it stands, in the spelling under test, except for cases with `save: True`: there
config.json is what transformers itself writes for it (its newest spelling, with every default filled in).
"""

from case import ABSENT, A, B, C, Case, D, E
from cases_dense import DENSE
from cases_experts import EXPERTS
from cases_states import STATES
from configs import (
    DYNAMIC,
    GEMMA_ROPE,
    LLAMA3,
    LONGROPE,
    PROPORTIONAL,
    YARN,
    YARN_MSCALE,
    YARN_UNTRUNCATED,
    deepseek_v3,
    gemma3,
    gemma4,
    glm4,
    glm4_moe,
    glm4_moe_lite,
    gpt_neox,
    gpt_oss,
    granite,
    llama,
    mistral,
    olmo2,
    olmo3,
    olmoe,
    phi3,
    qwen2,
    qwen3,
    qwen3_moe,
    qwen3_moe_small,
    qwen3_next,
    seed_oss,
    smollm3,
)

DEEPSEEK_YARN = {
    "type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 8,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 0.8,
}

CASES = {
    **STATES,
    **DENSE,
    **EXPERTS,
    "llama_plain": Case(
        "three layers, grouped heads, config.json as transformers writes it",
        llama(
            hidden_size=24,
            intermediate_size=33,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=6,
            vocab_size=97,
            rope_parameters={"rope_type": "default", "rope_theta": 700.0},
        ),
        A,
        save=True,
        differs_from=({"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},),
    ),
    "llama_bias": Case(
        "attention_bias and mlp_bias: seven biases per layer",
        llama(attention_bias=True, mlp_bias=True),
        B,
        differs_from=({"attention_bias": False}, {"mlp_bias": False}),
    ),
    "llama_tied_pad": Case(
        "tied embeddings; pad_token_id set and frequent in the inputs: its row has the true gradient",
        llama(tie_word_embeddings=True, pad_token_id=3),
        C,
        favour=(3,),
    ),
    "llama_mha": Case(
        "num_key_value_heads null, head_dim absent; oldest spelling: rope_theta at top level, torch_dtype",
        {
            k: v
            for k, v in llama(
                num_attention_heads=3,
                num_key_value_heads=None,
                rope_theta=250.0,
                torch_dtype="float32",
                rope_scaling=None,
            ).items()
            if k not in ("head_dim", "dtype")
        },
        D,
        differs_from=({"rope_theta": 10000.0},),
    ),
    "llama_mqa": Case(
        "one key/value head for six query heads", llama(num_attention_heads=6, num_key_value_heads=1, head_dim=6), E
    ),
    "llama_gelu": Case(
        "hidden_act gelu (the error-function one); as many key/value heads as heads",
        llama(hidden_act="gelu", num_key_value_heads=2),
        D,
        differs_from=({"hidden_act": "gelu_pytorch_tanh"}, {"hidden_act": "silu"}),
    ),
    "llama_dft": Case("loss_type dft: weights exp(log p) without gradient", llama(), A, loss_type="dft"),
    "llama_sharded": Case(
        "weights in two shards with an index", llama(tie_word_embeddings=True), D, save=True, shards="15KB"
    ),
    # Rotary variants. Original lengths are small, so that every branch of the formulas has frequencies in it.
    "llama_rope_linear_type": Case(
        "linear, old spelling: rope_theta beside rope_scaling with `type`",
        llama(rope_theta=400.0, rope_scaling={"type": "linear", "factor": 3.0}),
        B,
        differs_from=({"rope_scaling": None}, {"rope_theta": ABSENT}),
    ),
    "llama_rope_llama3": Case(
        "llama3, new spelling; frequencies in all three bands",
        llama(head_dim=16, rope_parameters=LLAMA3),
        C,
        save=True,
        differs_from=tuple(
            {"rope_parameters": {**LLAMA3, **change}}
            for change in (
                {"rope_type": "default"},
                {"factor": 2.0},
                {"low_freq_factor": 2.0},
                {"high_freq_factor": 2.0},
                {"original_max_position_embeddings": 128},
            )
        ),
    ),
    "llama_rope_llama3_old": Case(
        "llama3, old spelling with rope_type (as Llama 3.1 is published)",
        llama(
            head_dim=16,
            rope_theta=900.0,
            rope_scaling={
                "factor": 32.0,
                "high_freq_factor": 4.0,
                "low_freq_factor": 1.0,
                "original_max_position_embeddings": 48,
                "rope_type": "llama3",
            },
        ),
        D,
        differs_from=({"rope_scaling": None}, {"rope_theta": ABSENT}),
    ),
    "llama_rope_yarn": Case(
        "yarn with defaults: scale 0.1 ln factor + 1, beta 32 and 1",
        llama(head_dim=16, max_position_embeddings=2048, rope_parameters=YARN),
        E,
        save=True,
        differs_from=tuple(
            {"rope_parameters": {**YARN, **change}}
            for change in (
                {"rope_type": "default"},
                {"attention_factor": 1.0},
                {"beta_fast": 16.0},
                {"beta_slow": 2.0},
                {"original_max_position_embeddings": 128},
            )
        ),
    ),
    "llama_rope_yarn_attention_factor": Case(
        "yarn with attention_factor and own betas, old spelling with `type`",
        llama(
            head_dim=16,
            rope_theta=150.0,
            rope_scaling={
                "type": "yarn",
                "factor": 2.5,
                "original_max_position_embeddings": 48,
                "attention_factor": 1.25,
                "beta_fast": 6.0,
                "beta_slow": 0.5,
            },
        ),
        B,
        differs_from=(
            {"rope_scaling": None},
            {
                "rope_scaling": {
                    "type": "yarn",
                    "factor": 2.5,
                    "original_max_position_embeddings": 48,
                    "beta_fast": 6.0,
                    "beta_slow": 0.5,
                }
            },
        ),
    ),
    "llama_rope_yarn_mscale": Case(
        "yarn with mscale and mscale_all_dim",
        llama(head_dim=16, rope_parameters=YARN_MSCALE),
        A,
        differs_from=tuple(
            {"rope_parameters": {**YARN_MSCALE, **change}}
            for change in (
                {"mscale": ABSENT},
                {"mscale_all_dim": ABSENT},
                {"mscale": 1.0, "mscale_all_dim": 1.0},
                {"beta_fast": ABSENT},
            )
        ),
    ),
    "llama_rope_yarn_untruncated": Case(
        "yarn with truncate false; factor null: max_position_embeddings / original",
        llama(head_dim=16, rope_parameters=YARN_UNTRUNCATED),
        C,
        differs_from=tuple(
            {"rope_parameters": {**YARN_UNTRUNCATED, **change}}
            for change in ({"truncate": True}, {"factor": 1.0}, {"beta_fast": ABSENT}, {"beta_slow": ABSENT})
        ),
    ),
    "llama_rope_dynamic": Case(
        "dynamic; the longest document is longer than max_position_embeddings: its base holds for every document",
        llama(max_position_embeddings=24, rope_parameters=DYNAMIC),
        E,
        differs_from=tuple(
            {"rope_parameters": {**DYNAMIC, **change}} for change in ({"rope_type": "default"}, {"factor": 4.0})
        ),
    ),
    "llama_rope_longrope_long": Case(
        "longrope; the longest document is longer than the original length: long factors for every document",
        llama(max_position_embeddings=96, rope_parameters=LONGROPE),
        B,
        differs_from=tuple(
            {"rope_parameters": {**LONGROPE, **change}}
            for change in ({"rope_type": "default"}, {"original_max_position_embeddings": 64}, {"factor": 1.0})
        ),
    ),
    "llama_rope_longrope_short": Case(
        "longrope; no document is longer than the original length: short factors; attention_factor given",
        llama(
            max_position_embeddings=96,
            rope_parameters={
                "rope_type": "longrope",
                "rope_theta": 300.0,
                "factor": 2.0,
                "original_max_position_embeddings": 48,
                "attention_factor": 0.9,
                "short_factor": [1.0, 1.0, 1.1, 1.2, 1.4, 1.5],
                "long_factor": [1.0, 1.3, 1.9, 2.7, 3.4, 4.0],
            },
        ),
        D,
        differs_from=({"rope_parameters": {**LONGROPE, "factor": 2.0, "original_max_position_embeddings": 48}},),
    ),
    "llama_rope_proportional": Case(
        "proportional: the upper frequencies of a head are 0",
        llama(rope_parameters=PROPORTIONAL),
        D,
        differs_from=tuple(
            {"rope_parameters": {**PROPORTIONAL, **change}}
            for change in ({"rope_type": "default"}, {"factor": 1.0}, {"partial_rotary_factor": 1.0})
        ),
    ),
    "llama_rope_both_spellings": Case(
        "rope_scaling wins over rope_parameters, the rope_theta inside over the top-level one, dtype over torch_dtype",
        llama(
            rope_theta=90.0,
            rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
            torch_dtype="bfloat16",
            rope_scaling={"rope_type": "linear", "rope_theta": 350.0, "factor": 2.0},
        ),
        B,
        differs_from=(
            {"rope_scaling": None},
            {"rope_scaling": {"rope_type": "linear", "rope_theta": 90.0, "factor": 2.0}},
        ),
    ),
    "mistral_window": Case(
        "sliding_window shorter than the documents, on every layer",
        mistral(sliding_window=7),
        A,
        differs_from=({"sliding_window": None}, {"sliding_window": 6}, {"sliding_window": 8}),
    ),
    "mistral_no_window": Case(
        "sliding_window null; head_dim null; head_dim = hidden / heads",
        mistral(sliding_window=None, head_dim=None),
        E,
        differs_from=({"sliding_window": 30}, {"rope_theta": ABSENT}),
    ),
    "mistral_head_dim": Case(
        "head_dim != hidden / heads, window of one row more than the second document",
        mistral(head_dim=10, sliding_window=3, rope_theta=900.0),
        D,
        differs_from=({"sliding_window": 2}, {"sliding_window": 4}),
    ),
    "mistral_head_dim_rounded": Case(
        "hidden_size no multiple of the heads, head_dim absent: rounded down; rope_scaling of yarn's authors",
        mistral(
            vocab_size=31,
            hidden_size=26,
            intermediate_size=9,
            num_hidden_layers=1,
            sliding_window=9,
            rope_theta=40.0,
            original_max_position_embeddings=16,
            rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 48, "finetuned": True},
        ),
        D,
        differs_from=({"original_max_position_embeddings": ABSENT}, {"rope_scaling": None}),
    ),
    "qwen2_plain": Case(
        "biases on q, k, v; use_sliding_window false: sliding_window is ignored",
        qwen2(use_sliding_window=False, sliding_window=4, max_window_layers=0),
        B,
        differs_from=({"use_sliding_window": True},),
    ),
    "qwen2_sliding": Case(
        "use_sliding_window: layers from max_window_layers on slide",
        qwen2(num_hidden_layers=3, use_sliding_window=True, sliding_window=8, max_window_layers=1),
        C,
        differs_from=(
            {"use_sliding_window": False},
            {"sliding_window": 7},
            {"sliding_window": 9},
            {"max_window_layers": 0},
            {"max_window_layers": 2},
        ),
    ),
    "qwen2_layer_types": Case(
        "layer_types given: they win over max_window_layers",
        qwen2(
            num_hidden_layers=3,
            use_sliding_window=True,
            sliding_window=5,
            max_window_layers=28,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        ),
        E,
        differs_from=({"layer_types": ABSENT}, {"layer_types": ABSENT, "max_window_layers": 0}),
    ),
    "qwen2_tied": Case(
        "tied embeddings; config.json as transformers writes it",
        qwen2(tie_word_embeddings=True, num_key_value_heads=4),
        A,
        save=True,
    ),
    "seed_oss_biases": Case(
        "biases behind attention and in the MLP, none on q, k, v, which is not what the class begins with; dropout",
        seed_oss(),
        D,
        differs_from=({"rope_theta": ABSENT},),
    ),
    "qwen3_plain": Case(
        "norms of query and key over head_dim, before rope", qwen3(), A, differs_from=({"rope_theta": ABSENT},)
    ),
    "qwen3_moe_fp8": Case(
        "weights in FP8 with scales of blocks, of experts too; such as have no 128 inputs are read as numbers",
        qwen3_moe_small(),
        D,
        fp8=(8, 128),
    ),
    "qwen3_moe_fp8_fused": Case(
        "experts in FP8 in one tensor for a layer, as transformers' class has them, with scales of blocks",
        qwen3_moe_small(),
        D,
        fp8=(8, 128),
        fused=True,
        seed=1,
    ),
    "qwen3_tied": Case(
        "tied embeddings; config.json as transformers writes it", qwen3(tie_word_embeddings=True), D, save=True, seed=1
    ),
    "qwen3_bias": Case("attention_bias: biases on q, k, v and o", qwen3(attention_bias=True), B),
    "qwen3_sliding": Case(
        "sliding layers above max_window_layers",
        qwen3(num_hidden_layers=3, use_sliding_window=True, sliding_window=6, max_window_layers=2),
        E,
        differs_from=(
            {"use_sliding_window": False},
            {"sliding_window": 5},
            {"sliding_window": 7},
            {"max_window_layers": 1},
        ),
    ),
    "qwen3_yarn": Case(
        "yarn in the spelling of Qwen3's model card",
        qwen3(head_dim=16, rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}),
        C,
        differs_from=({"rope_scaling": None},),
    ),
    "gemma3_layer_types": Case(
        "layer_types, a rope per layer type, scale from query_pre_attn_scalar, eos list; padding row trained",
        gemma3(
            num_hidden_layers=4,
            layer_types=["sliding_attention", "full_attention", "full_attention", "sliding_attention"],
            rope_parameters={
                "full_attention": {"rope_type": "default", "rope_theta": 4000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
            },
        ),
        A,
        save=True,
        favour=(0,),
        differs_from=(
            {"sliding_window": 5},
            {"sliding_window": 7},
            {"query_pre_attn_scalar": 8},
            {"rope_parameters": None},
            {"layer_types": None},
        ),
    ),
    "gemma3_legacy": Case(
        "sliding_window_pattern, rope_local_base_freq; linear rope_scaling for full attention only; tying by default",
        gemma3(
            num_hidden_layers=4,
            sliding_window_pattern=3,
            rope_local_base_freq=70.0,
            rope_theta=3000.0,
            rope_scaling={"rope_type": "linear", "factor": 8.0},
        ),
        B,
        favour=(0,),
        differs_from=(
            {"rope_scaling": None},
            {"rope_local_base_freq": ABSENT},
            {"rope_theta": ABSENT},
            {"sliding_window_pattern": ABSENT},
            {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
        ),
    ),
    "gemma3_rope_per_type": Case(
        "llama3 and yarn per layer type: top-level original length, truncate and rope_scaling's `type` are ignored",
        gemma3(
            vocab_size=31,
            intermediate_size=9,
            num_hidden_layers=2,
            layer_types=["sliding_attention", "full_attention"],
            max_position_embeddings=36,
            original_max_position_embeddings=16,
            rope_parameters=GEMMA_ROPE,
            rope_scaling={"type": "linear", "high_freq_factor": 3.0},
        ),
        D,
        differs_from=(
            {"rope_scaling": None},
            {"rope_scaling": {"rope_type": "linear", "high_freq_factor": 3.0}},
            {"rope_parameters": {**GEMMA_ROPE, "truncate": False}},
            {"max_position_embeddings": 16},
        ),
    ),
    "gemma3_softcap": Case(
        "final_logit_softcapping; attn_logit_softcapping is read and not applied; pattern of 2",
        gemma3(
            sliding_window_pattern=2,
            final_logit_softcapping=3.0,
            attn_logit_softcapping=1.0,
            rope_local_base_freq=40.0,
            rope_theta=2000.0,
        ),
        C,
        differs_from=({"final_logit_softcapping": None},),
    ),
    "gemma3_untied_bias": Case(
        "own lm_head, attention_bias, no rope keys: default thetas 1e6 and 1e4",
        gemma3(num_hidden_layers=2, tie_word_embeddings=False, attention_bias=True, sliding_window_pattern=2),
        E,
        favour=(0,),
        differs_from=({"rope_theta": 1e4}, {"rope_local_base_freq": 1e6}, {"attention_bias": False}),
    ),
    "olmo2_plain": Case(
        "norms on outputs, on whole q and k, none on inputs; rms_norm_eps by default; padding row trained",
        olmo2(),
        A,
        favour=(1,),
        differs_from=({"rms_norm_eps": 1e-3}, {"rope_theta": ABSENT}),
    ),
    "olmo2_bias_tied": Case(
        "attention_bias, tied, as many key/value heads as heads, llama3 rope; config.json as transformers writes it",
        olmo2(
            num_attention_heads=3,
            num_key_value_heads=None,
            attention_bias=True,
            tie_word_embeddings=True,
            rope_theta=ABSENT,
            rope_parameters=LLAMA3,
        ),
        D,
        save=True,
        differs_from=({"rope_parameters": {"rope_type": "default", "rope_theta": 600.0}},),
    ),
    "olmo3_released": Case(
        "windows but on every fourth layer, which alone is stretched by yarn; the spelling of released files",
        olmo3(),
        A,
        favour=(1,),
        differs_from=({"sliding_window": 6}, {"sliding_window": 8}, {"rope_scaling": ABSENT}, {"rms_norm_eps": 1e-3}),
    ),
    "smollm3_interval": Case(
        "every third layer without positions, by interval alone; tied",
        smollm3(no_rope_layer_interval=3),
        B,
        differs_from=({"no_rope_layer_interval": 4}, {"no_rope_layer_interval": 2}, {"rope_theta": ABSENT}),
    ),
    "smollm3_windows": Case(
        "layers without positions by a list that is longer than the model; these have a window",
        smollm3(no_rope_layers=[1, 0, 1, 0, 0, 1], use_sliding_window=True, sliding_window=7, tie_word_embeddings=False),
        E,
        differs_from=({"no_rope_layers": [0, 1, 1, 0]}, {"use_sliding_window": False}, {"sliding_window": 6}, {"sliding_window": 8}),
    ),
    "glm_plain": Case(
        "norms on inputs alone; whole heads turn by pairs of neighbours; no biases",
        glm4(
            architectures=["GlmForCausalLM"],
            model_type="glm",
            attention_bias=False,
            partial_rotary_factor=1.0,
            num_key_value_heads=4,
            rope_theta=300.0,
        ),
        D,
        favour=(1,),
        differs_from=({"partial_rotary_factor": 0.5}, {"rope_theta": ABSENT}),
    ),
    "glm4_defaults": Case(
        "half of each head turns by pairs of neighbours, and 6 is half of 12; eps, theta and the half by default",
        glm4(),
        C,
        favour=(1,),
        differs_from=({"partial_rotary_factor": 1.0}, {"rope_theta": 300.0}, {"rms_norm_eps": 1e-3}),
    ),
    "deepseek_v3_groups": Case(
        "latent attention, one of two groups of experts; what is kept of a group is sums of its two best",
        deepseek_v3(),
        D,
        differs_from=({"n_group": 1}, {"routed_scaling_factor": 1.0}, {"norm_topk_prob": False}, {"rope_interleave": False}),
    ),
    "deepseek_v3_yarn": Case(
        "no latent of queries, biases, heads in halves, scores scaled by mscale_all_dim, three of four groups of two",
        deepseek_v3(
            q_lora_rank=None,
            attention_bias=True,
            rope_interleave=False,
            rope_scaling=DEEPSEEK_YARN,
            n_routed_experts=8,
            n_group=4,
            topk_group=3,
            num_experts_per_tok=4,
            norm_topk_prob=False,
        ),
        E,
        differs_from=({"rope_scaling": None}, {"rope_scaling": {**DEEPSEEK_YARN, "mscale_all_dim": 0}}, {"topk_group": 2}),
    ),
    "glm4_moe_norms": Case(
        "norms of queries and keys, no biases; what config.json may leave out",
        glm4_moe(use_qk_norm=True),
        A,
        favour=(1,),
        differs_from=({"partial_rotary_factor": 1.0}, {"norm_topk_prob": False}, {"routed_scaling_factor": 2.0}),
    ),
    "glm4_moe_lite_latent": Case(
        "latent attention, and experts that are chosen among all",
        glm4_moe_lite(),
        D,
        favour=(1,),
        differs_from=({"routed_scaling_factor": 1.0}, {"norm_topk_prob": False}, {"rms_norm_eps": 1e-3}),
    ),
    "gemma4_shared": Case(
        "four of six layers read the keys and values of two others; each has its own embedding of the token",
        gemma4(),
        E,
        favour=(0,),
        seed=4,
        gain=1.0,
        embedding=1.0,
        differs_from=(
            {"sliding_window": 8},
            {"sliding_window": 10},
            {"final_logit_softcapping": None},
            {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 700.0}, "sliding_attention": {"rope_type": "default", "rope_theta": 60.0}}},
        ),
    ),
    "qwen3_moe_balanced": Case(
        "the loss that balances experts, over two of three layers; documents of one token count there",
        qwen3_moe(),
        A,
        differs_from=({"router_aux_loss_coef": 0.0}, {"router_aux_loss_coef": 0.31}, {"norm_topk_prob": False}),
    ),
    "olmoe_balanced": Case(
        "one of seven experts, some of which nobody chooses: their gradients are 0",
        olmoe(num_experts=7),
        D,
        differs_from=({"router_aux_loss_coef": 0.0},),
    ),
    "gpt_oss_balanced": Case(
        "softmax over the chosen in the layer, over all experts in the loss that balances them",
        gpt_oss(),
        D,
        differs_from=({"router_aux_loss_coef": 0.0},),
    ),
    "phi3_plain": Case(
        "q, k, v in one tensor, gate and up in one; window on all layers; whole heads turn",
        phi3(num_attention_heads=4, num_key_value_heads=2, sliding_window=7),
        B,
        differs_from=({"sliding_window": None}, {"sliding_window": 6}, {"sliding_window": 8}, {"rms_norm_eps": 1e-3}),
    ),
    "phi3_su_long": Case(
        "`su`, an old name of longrope; six of eight elements turn, long factors; the top-level original length wins",
        phi3(
            partial_rotary_factor=0.75,
            max_position_embeddings=96,
            original_max_position_embeddings=32,
            rope_scaling={
                "type": "su",
                "original_max_position_embeddings": 64,
                "short_factor": [1.0, 1.1, 1.3],
                "long_factor": [1.2, 2.1, 3.7],
            },
        ),
        C,
        differs_from=(
            {"original_max_position_embeddings": 64},
            {"rope_scaling": None},
            {"max_position_embeddings": 128},
        ),
    ),
    "phi3_longrope_short": Case(
        "longrope, tied; original length by default 4096, whatever rope_parameters say: short factors, scale 1",
        phi3(
            tie_word_embeddings=True,
            rope_parameters={
                "rope_type": "longrope",
                "rope_theta": 150.0,
                "original_max_position_embeddings": 16,
                "short_factor": [1.0, 1.1, 1.3, 1.4],
                "long_factor": [1.2, 2.1, 3.7, 4.4],
            },
        ),
        D,
        save=True,
        differs_from=({"original_max_position_embeddings": 16},),
    ),
    "granite_plain": Case(
        "numbers on embedding, scores, branches and logits",
        granite(),
        E,
        differs_from=(
            {"embedding_multiplier": ABSENT},
            {"attention_multiplier": ABSENT},
            {"residual_multiplier": ABSENT},
            {"logits_scaling": ABSENT},
        ),
    ),
    "granite_bias_tied": Case(
        "attention_bias, mlp_bias, tied, one key/value head; scores and branches by default; as transformers writes it",
        granite(
            num_key_value_heads=1,
            attention_bias=True,
            mlp_bias=True,
            tie_word_embeddings=True,
            attention_multiplier=ABSENT,
            residual_multiplier=ABSENT,
        ),
        D,
        save=True,
        favour=(0,),
        differs_from=({"attention_multiplier": 0.4},),
    ),
    "gpt_neox_plain": Case(
        "attention beside the MLP, q, k, v of each head side by side, a quarter of each head turns by default; the "
        "head is called embed_out in files",
        gpt_neox(),
        A,
        differs_from=(
            {"use_parallel_residual": False},
            {"rotary_pct": 0.5},
            {"hidden_act": "gelu_new"},
            {"rotary_emb_base": 10000},
            {"layer_norm_eps": 1e-3},
        ),
    ),
    "gpt_neox_serial": Case(
        "attention before the MLP, no attention_bias, tied, linear rope; an odd number of elements turns: one more",
        gpt_neox(
            use_parallel_residual=False,
            attention_bias=False,
            tie_word_embeddings=True,
            hidden_act="gelu_fast",
            rotary_pct=0.42,
            rope_scaling={"rope_type": "linear", "factor": 3.0},
        ),
        C,
        save=True,
        differs_from=({"rotary_pct": 0.5}, {"rope_scaling": None}, {"use_parallel_residual": True}),
    ),
    "qwen3_next_dense": Case(
        "the delta rule over documents longer than a block, rows of projections grouped by key head, no experts",
        qwen3_next(),
        [70, 2, 17, 1, 11, 16],
        seed=4,
        gain=0.7,
        centres=((".A_log", -2.0),),
        differs_from=(
            {"partial_rotary_factor": 1.0},
            {"rms_norm_eps": 2e-2},
            {"linear_num_key_heads": 1, "linear_key_head_dim": 20},
        ),
    ),
    "gpt2": Case(
        "learned positions, layer_norm with bias, gelu_new, fused qkv stored [in, out], tied head",
        {
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "vocab_size": 89,
            "n_positions": 48,
            "n_embd": 18,
            "n_layer": 2,
            "n_head": 3,
            "n_inner": None,
            "activation_function": "gelu_new",
            "layer_norm_epsilon": 1e-5,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
            "bos_token_id": 88,
            "eos_token_id": 88,
            "dtype": "float32",
        },
        C,
        gain=1.0,
        differs_from=({"activation_function": "gelu"}, {"layer_norm_epsilon": 1e-2}, {"scale_attn_weights": False}),
    ),
}
