/* gguf_streams.c: what a GGUF file says of Gemma 3n's streams, branches of low rank and sparse gates, as
 * fields of config.json. */
#include "frontends/formats/weights/gguf_traits.h"
#include "frontends/gguf/gguf_config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static int64_t rows_of(const sbp_gguf_config *c, const char *name) {
    const sbp_weight *w = sbp_gguf_config_tensor(c, name);
    return w && w->rank == 2 ? w->dim[0] : 0;
}

/* How often a normal variable is below `deviations`, as somebody wrote it: the shortest decimal that gives
 * the same float of deviations again, but for the last bits of its computation. */
static double share_below(double deviations) {
    const double pi = 3.14159265358979323846;
    double share = 0.5 * erfc(-deviations / sqrt(2)),
           density = exp(-deviations * deviations / 2) / sqrt(2 * pi);
    for (int digits = 1; digits < 17; digits++) {
        char text[40];
        snprintf(text, sizeof text, "%.*g", digits, share);
        if (fabs(strtod(text, NULL) - share) <= 1e-6 * density)
            return strtod(text, NULL);
    }
    return share;
}

/* Deviations above the mean, where gates begin to open; minus infinity where all are open. */
static void write_sparsity(sbp_gguf_config *c) {
    const sbp_gguf_value *scales = sbp_gguf_config_key(c, "activation_sparsity_scale");
    if (!scales->is_array || (scales->type != SBP_GGUF_F32 && scales->type != SBP_GGUF_F64) ||
        scales->count != c->facts.layers) {
        sbp_gguf_config_fail(c, "key '%s': expected an array of a number for each layer", scales->key);
        return;
    }
    sbp_json_write_array(c->out, "activation_sparsity_pattern");
    for (int64_t i = 0; i < scales->count; i++) {
        double deviations = sbp_gguf_double_at(scales, i);
        if (!(deviations < 8))
            sbp_gguf_config_fail(c, "key '%s', layer %lld: %g; a number below 8 is expected", scales->key,
                                 (long long)i, deviations);
        if (deviations > -8)
            sbp_json_write_double(c->out, NULL, share_below(deviations));
        else
            sbp_json_write_raw(c->out, NULL, "0.0"); /* transformers takes no integers here */
    }
    sbp_json_write_end(c->out);
}

void sbp_gguf_config_streams(sbp_gguf_config *c) {
    if (!sbp_gguf_has(c->facts.family, STREAMS))
        return;
    sbp_json_write_array(c->out, "intermediate_size");
    for (int64_t i = 0; i < c->facts.layers && c->status == SBP_OK; i++)
        sbp_json_write_int(c->out, NULL, sbp_gguf_config_count(c, "feed_forward_length", i, 0));
    sbp_json_write_end(c->out);
    sbp_json_write_int(c->out, "laurel_rank", rows_of(c, "blk.0.laurel_l.weight"));
    sbp_json_write_int(c->out, "vocab_size_per_layer_input", rows_of(c, "per_layer_token_embd.weight"));
    write_sparsity(c);
}
