/* golden_lists.h: which golden cases tests run where. The tests take their lists from here, and
 * test_cli_families makes of them the table of families (frontends/hf/families.md), which so claims nothing
 * that no test runs. */
#ifndef SBP_TESTS_CLI_GOLDEN_LISTS_H
#define SBP_TESTS_CLI_GOLDEN_LISTS_H

/* ---- test_cli_golden: the CPU, every case of tests/golden; Vulkan and CUDA, as follows ---------------- */

/* Cases on which all settings run, together, on the CPU and on Vulkan; with SBP_TEST_ALL=1 each of them on
 * all, and every case on all devices. */
static const char *const golden_thorough[] = {
    "llama_plain",    "gemma3_layer_types", "gemma3_untied_bias", "qwen2_sliding",
    "llama_tied_pad", "phi3_su_long",       "gpt_neox_plain",     "lfm2_v"};

/* One case of each structure: what others differ by are numbers, and tables of rotary variants. On each
 * instruction set of the CPU, and on Vulkan once. */
static const char *const golden_structures[] = {"llama_plain",
                                                "laguna_capped",
                                                "mimo_v2_flash_values",
                                                "llama_bias",
                                                "gemma3_layer_types",
                                                "gemma3_softcap",
                                                "gpt_neox_plain",
                                                "phi3_plain",
                                                "qwen2_sliding",
                                                "qwen3_plain",
                                                "olmo2_plain",
                                                "granite_plain",
                                                "lfm2_v",
                                                "qwen3_5_dense_v",
                                                "qwen3_next_dense",
                                                "qwen3_moe_balanced",
                                                "granite_hybrid_groups",
                                                "granite_hybrid_v",
                                                "nemotron_h_latent",
                                                "falcon_h1_norms",
                                                "qwen3_next_moe_v",
                                                "qwen3_5_moe_released_v",
                                                "gpt_oss_v",
                                                "gpt_oss_mxfp4_v",
                                                "glm4_defaults",
                                                "deepseek_v3_groups",
                                                "glm4_moe_lite_latent",
                                                "granite_hybrid_balanced",
                                                "gemma4_shared",
                                                "gemma3n_outside",
                                                "cohere2_released",
                                                "llama4_v",
                                                "olmo_hybrid_v",
                                                "apertus_plain",
                                                "muse_glimmer_v",
                                                "gemma4_e2b_released_v",
                                                "gemma4_26b_a4b_v"};

/* One case each of families without a structure of their own: on Vulkan once. */
static const char *const golden_others[] = {
    "step3p7_v",
    "granitemoe_swa_balanced",
    "lfm3_gated",
    "hunyuan_v1_moe_lists",
    "mistral4_groups",
    "minimax_m2_balanced",
    "lfm2_moe_plain",
    "hy_v3_shared",
    "ernie4_5_moe_balanced",
    "mistral_window",
    "glm_plain",
    "olmo3_released",
    "smollm3_windows",
    "glm4_moe_norms",
    "mixtral_v",
    "olmoe_balanced",
    "ministral3_plain",
    "gemma4_unified_v",
    "gemma3n_v",
    "qwen2_5_vl_v",
    "qwen3_vl_v",
    "qwen3_vl_moe_v",
    "seed_oss_v",
    "ernie4_5_bias",
    "exaone4_windows",
    "hunyuan_v1_dense_alpha",
    "granite_swa_thetas",
};

/* On the PTX machine a step takes seconds: what is run without SBP_TEST_ALL=1. */
#define GOLDEN_CUDA(ROW)                                                                                     \
    ROW("llama_plain", "fp32", "", SBP_F32)                                                                  \
    ROW("llama_plain", "offload, saved set, k 3",                                                            \
        "--chunk 7 --offload host --checkpoint-every 3 --save q+k+v+attn_out+lse", SBP_F32)                  \
    ROW("llama_plain", "standard", "--backward standard", SBP_F32)                                           \
    ROW("llama_tied_pad", "fp64", "", SBP_F64)                                                               \
    ROW("gemma3_layer_types", "fp32, C 7", "--chunk 7 --head-chunk 5", SBP_F32)                              \
    ROW("qwen2_sliding", "fp64, C 64", "--chunk 64 --head-chunk 64", SBP_F64)                                \
    ROW("qwen3_moe_balanced", "fp32, C 7", "--chunk 7 --head-chunk 5", SBP_F32)                              \
    ROW("granite_hybrid_groups", "fp32, C 67", "--chunk 67 --head-chunk 64", SBP_F32)                        \
    ROW("qwen3_5_dense_v", "fp32, C 67, no states", "--chunk 67 --head-chunk 64 --save none", SBP_F32)

/* ---- test_cli_lora: cases of tests/golden/lora, each an adapter that peft has saved -------------------- */

static const char *const golden_lora[] = {
    "q_only",         "last_layer", "all_linear",   "saved",         "patterns",     "fused",
    "by_head",        "dropped",    "mamba",        "delta_grouped", "experts",      "experts_alone",
    "experts_down",   "delta_all",  "shared",       "latent",        "latent_lite",  "norms",
    "sandwich",       "stretched",  "mixers",       "mamba_experts", "unturned",     "windowed",
    "normed_outputs", "convolved",  "turned_whole", "scaled",        "many_experts", "experts_all",
    "beside",         "bent",       "wrapped",      "side_by_side"};

/* ---- test_cli_released, test_cli_base, test_cli_multimodal --------------------------------------------- */

/* Frozen weights that stay in the blocks of their files, of released checkpoints. */
#define GOLDEN_MXFP4 "gpt_oss_mxfp4_v"
#define GOLDEN_FP8 "qwen3_moe_fp8"
/* test_cli_packed: of compressed-tensors, cases of tests/golden/packed. */
static const char *const golden_packed[] = {"dense", "experts"};
/* Frozen weights brought into blocks, of a model of this type. */
#define GOLDEN_BASE_TYPE "llama"
#define GOLDEN_BASES "nf4", "q8_0"
/* A multimodal model that the test writes. */
#define GOLDEN_MULTIMODAL "qwen3_5"

/* ---- test_cli_context: ranks that have documents together, gradients of transformers ------------------ */

/* (case, settings, ranks, rows of a step) */
#define GOLDEN_RANKS(ROW)                                                                                    \
    ROW("lfm2_v", "--chunk 2 --zero 3 --context-exchange all-to-all", 3, 121)                                \
    ROW("lfm2_v", "--chunk 13 --save conv", 2, 121)                                                          \
    ROW("qwen3_5_dense_v", "--chunk 7 --save delta_k+beta", 3, 121)                                          \
    ROW("qwen3_5_dense_v", "--chunk 40 --zero 2 --backward standard", 2, 121)                                \
    ROW("qwen3_next_dense", "--chunk 9 --zero 3 --save delta_out+conv_act", 2, 117)                          \
    ROW("qwen3_next_dense", "--chunk 30", 3, 117)                                                            \
    ROW("granite_hybrid_groups", "--chunk 9 --zero 3 --save ssd_out+conv_act", 2, 99)                        \
    ROW("granite_hybrid_groups", "--chunk 30 --context-exchange all-to-all", 3, 99)                          \
    ROW("nemotron_h_latent", "--chunk 40", 2, 99)                                                            \
    ROW("falcon_h1_plain", "--chunk 9 --zero 3", 2, 99)                                                      \
    ROW("gpt_oss_v", "--chunk 7", 2, 78)                                                                     \
    ROW("gemma4_shared", "--chunk 7 --segment 2 --zero 3", 2, 79)                                            \
    ROW("gemma4_e2b_released_v", "--chunk 5 --checkpoint-every 2 --context-exchange all-gather", 3, 78)      \
    ROW("gemma3n_outside", "--chunk 7 --zero 3", 2, 55)                                                      \
    ROW("gemma4_26b_a4b_v", "--chunk 9", 2, 106)                                                             \
    ROW("deepseek_v3_groups", "--chunk 5 --zero 3", 3, 55)                                                   \
    ROW("glm4_moe_lite_latent", "--chunk 5", 2, 55)                                                          \
    ROW("glm4_moe_norms", "--chunk 11 --zero 1", 2, 94)                                                      \
    ROW("glm4_defaults", "--chunk 11 --zero 3", 2, 100)                                                      \
    ROW("glm_plain", "--chunk 5", 2, 55)                                                                     \
    ROW("olmo2_plain", "--chunk 8", 2, 94)                                                                   \
    ROW("olmo3_released", "--chunk 8", 2, 94)                                                                \
    ROW("smollm3_windows", "--chunk 7 --zero 2", 2, 79)                                                      \
    ROW("ministral3_plain", "--chunk 7 --zero 3", 2, 55)                                                     \
    ROW("ernie4_5_bias", "--chunk 5", 2, 55)                                                                 \
    ROW("exaone4_windows", "--chunk 7", 2, 55)                                                               \
    ROW("cohere2_released", "--chunk 9 --zero 2", 2, 79)                                                     \
    ROW("hunyuan_v1_dense_alpha", "--chunk 5", 2, 55)                                                        \
    ROW("granite_swa_thetas", "--chunk 7 --zero 3", 2, 55)                                                   \
    ROW("muse_glimmer_v", "--chunk 7", 2, 55)                                                                \
    ROW("olmo_hybrid_v", "--chunk 7 --zero 3 --save delta_k+k_conv_act", 2, 78)                              \
    ROW("llama4_v", "--chunk 7 --zero 3", 2, 55)                                                             \
    ROW("apertus_plain", "--chunk 7 --zero 3", 2, 55)                                                        \
    ROW("phi3_plain", "--chunk 7", 2, 83)                                                                    \
    ROW("granite_plain", "--chunk 7", 2, 79)                                                                 \
    ROW("qwen2_sliding", "--chunk 7", 2, 100)                                                                \
    ROW("qwen3_moe_norm_v", "--chunk 7 --zero 3", 2, 78)                                                     \
    ROW("qwen3_5_moe_released_v", "--chunk 13", 2, 121)                                                      \
    ROW("lfm2_moe_plain", "--chunk 7 --zero 3", 2, 55)                                                       \
    ROW("ernie4_5_moe_balanced", "--chunk 7", 2, 55)                                                         \
    ROW("minimax_m2_balanced", "--chunk 7", 2, 55)                                                           \
    ROW("mistral4_groups", "--chunk 5 --zero 3", 2, 55)                                                      \
    ROW("step3p5_released", "--chunk 7 --zero 3", 2, 55)                                                     \
    ROW("laguna_capped", "--chunk 5 --zero 3", 2, 55)                                                        \
    ROW("mimo_v2_flash_values", "--chunk 7", 2, 55)                                                          \
    ROW("lfm3_gated", "--chunk 9 --zero 3", 2, 55)                                                           \
    ROW("granitemoe_swa_balanced", "--chunk 7", 2, 55)                                                       \
    ROW("hunyuan_v1_moe_lists", "--chunk 7 --zero 3", 2, 55)                                                 \
    ROW("hy_v3_shared", "--chunk 7", 2, 83)                                                                  \
    ROW("mixtral_v", "--chunk 7", 2, 78)                                                                     \
    ROW("olmoe_v", "--chunk 7 --zero 3", 2, 78)                                                              \
    ROW("gemma4_unified_v", "--chunk 7", 2, 55)                                                              \
    ROW("qwen2_5_vl_v", "--chunk 7", 2, 55)                                                                  \
    ROW("qwen3_vl_v", "--chunk 7 --zero 3", 2, 55)                                                           \
    ROW("qwen3_vl_moe_v", "--chunk 7 --zero 3", 2, 55)                                                       \
    ROW("seed_oss_v", "--chunk 7", 2, 55)

/* Models with drawn schedules, placement and shares, beside the same on one rank. */
static const char *const golden_drawn_ranks[] = {"llama_mqa",      "mistral_window", "gemma3_layer_types",
                                                 "qwen3_plain",    "llama_mha",      "gpt_neox_plain",
                                                 "qwen3_5_dense_v"};

#endif
