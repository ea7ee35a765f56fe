/* head.c: the end of @model. */
#include "frontends/head.h"

static sbp_value at_temperature(sbp_builder *b, sbp_value logits) {
    sbp_dtype wide = sbp_build_type(b, logits)->dtype;
    sbp_value t = sbp_build_cast(b, sbp_build_scalar(b, "temperature"), wide);
    sbp_value out = sbp_build2(b, SBP_OP_div, logits, t);
    sbp_build_name(b, out, "tempered_logits");
    return out;
}

void sbp_head_finish(sbp_builder *b, sbp_head_options options, sbp_value logits) {
    static const char *const names[] = {"logp", "entropy", "hit"};
    sbp_value out[4];
    if (b->status == SBP_OK && options.temperature)
        logits = at_temperature(b, logits);
    if (b->status != SBP_OK)
        return;
    sbp_value label = sbp_build_row(b, "label", SBP_I32, SBP_T);
    sbp_build(b, SBP_OP_log_prob, "logp", (sbp_value[]){logits, label}, 2, NULL, 0, out);
    for (int32_t i = 0; i < SBP_COUNT(names) && b->status == SBP_OK; i++) {
        if (i > 0)
            sbp_build_name(b, out[i], names[i]);
        sbp_func_add_result(b->func, out[i], SBP_RESULT_VALUE, SBP_NO_VALUE, names[i]);
    }
}
