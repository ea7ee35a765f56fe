/* hf_phi3.c: Phi-3, Phi-3.5, Phi-4 (text): Llama with q, k, v in one tensor, and gate and up; some models
 * turn a part of each head, by frequencies for short and for long documents. */
#include "frontends/hf/hf.h"

#include <string.h>

/* transformers takes the type 'yarn' of this family for longrope. */
static void refuse_yarn(sbp_hf *hf) {
    static const char *const objects[] = {"rope_parameters", "rope_scaling"}, *const keys[] = {"rope_type",
                                                                                               "type"};
    for (int32_t i = 0; i < 4; i++) {
        const sbp_json *type = sbp_json_member(sbp_hf_field(hf, objects[i / 2]), keys[i % 2]);
        if (type && type->kind == SBP_JSON_STRING && strcmp(type->string, "yarn") == 0)
            sbp_hf_fail(hf, type, "transformers reads this as longrope in model_type phi3: write longrope");
    }
}

void sbp_hf_phi3(sbp_hf *hf) {
    sbp_hf_decoder d = sbp_hf_decoder_read(
        hf, &(sbp_hf_defaults){.head_dim_rounds = true, .max_positions = 4096, .norm_eps = 1e-5});
    d.fused_qkv = d.fused_gate_up = true;
    sbp_hf_one_window(hf, &d, 0);
    refuse_yarn(hf);
    d.rope[0] = sbp_hf_rope_read(
        hf, &(sbp_hf_rope_shape){.head_dim = d.head_dim,
                                 .rotary_dim = sbp_hf_rotary_dim(hf, d.head_dim, "partial_rotary_factor", 1),
                                 .theta = 1e4,
                                 .max_positions = d.max_positions,
                                 .original_positions = 4096});
    sbp_hf_decoder_build(hf, &d);
}
