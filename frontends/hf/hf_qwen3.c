/* hf_qwen3.c: Qwen3: norms on the heads of q and k, head_dim of its own. */
#include "frontends/hf/hf.h"

void sbp_hf_qwen3(sbp_hf *hf) {
    sbp_hf_decoder d =
        sbp_hf_decoder_read(hf, &(sbp_hf_defaults){.kv_heads = 32, .head_dim = 128, .max_positions = 32768});
    d.qkv_bias = d.o_bias = sbp_hf_bool(hf, "attention_bias", false);
    d.qk_norm = SBP_HF_QK_NORM_HEAD;
    sbp_hf_qwen_windows(hf, &d, 28);
    d.rope[0] = sbp_hf_decoder_rope(hf, &d);
    sbp_hf_decoder_build(hf, &d);
}
