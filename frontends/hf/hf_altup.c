/* hf_altup.c: the streams of Gemma 3n (AltUp): every layer reads and writes one, and predicts and corrects
 * the others. Formulas: transformers, modeling_gemma3n.py (Gemma3nTextAltUp, Gemma3nTextModel). */
#include "frontends/hf/hf_gemma.h"
#include "ir/graph/op.h"

static const double LEAST_SQUARE = 1e-5;

static sbp_hf_altup *of(const sbp_hf_scope *at) {
    sbp_hf_gemma *m = at->d->own;
    return &m->altup;
}

static sbp_value stream(const sbp_hf_scope *at, sbp_value streams, int64_t i) {
    return sbp_build_slice(&at->hf->builder, streams, i * at->d->hidden, at->d->hidden);
}

/* The streams with one more behind them, in the residual type. */
static sbp_value with(sbp_hf *hf, sbp_value streams, sbp_value x) {
    x = sbp_build_cast(&hf->builder, x, hf->residual);
    return streams == SBP_NO_VALUE ? x : sbp_build2(&hf->builder, SBP_OP_concat, streams, x);
}

/* x, whose mean square becomes that of which `root` is the root, in the wide type. */
static sbp_value as_large(const sbp_hf_scope *at, sbp_value x, sbp_value root) {
    sbp_builder *b = &at->hf->builder;
    sbp_dtype wide = sbp_rule_wide(at->hf->compute);
    sbp_value least = sbp_build_const(b, wide, sbp_round_to(wide, LEAST_SQUARE));
    sbp_value mean = sbp_hf_mean_square(at->hf, x);
    mean = sbp_build3(b, SBP_OP_select, sbp_build2(b, SBP_OP_lt, mean, least), least, mean);
    x = sbp_build2(b, SBP_OP_mul, sbp_build_cast(b, x, wide), root);
    return sbp_build2(b, SBP_OP_div, x, sbp_build1(b, SBP_OP_sqrt, mean));
}

sbp_value sbp_hf_altup_embed(const sbp_hf_scope *at, sbp_value table) {
    sbp_hf *hf = at->hf;
    sbp_builder *b = &hf->builder;
    const sbp_hf_altup *n = of(at);
    int64_t hidden = at->d->hidden;
    sbp_value x = sbp_hf_gemma_rows(hf, "embed", table, sbp_hf_row(hf, SBP_DATA_TOK), hidden), all = x;
    sbp_hf_gemma_inputs(at, x);
    sbp_value root = sbp_build1(b, SBP_OP_sqrt, sbp_hf_mean_square(at->hf, x));
    for (int64_t i = 1; i < n->streams; i++) {
        b->node = sbp_hf_path(hf, "%s.altup_projections.%lld", at->d->names.root, (long long)i - 1);
        sbp_value y = sbp_hf_linear(hf, NULL, x, b->node, hidden, hidden, false);
        all = with(hf, all, as_large(at, y, root));
    }
    sbp_build_name(b, all, "streams");
    return all;
}

/* What a map of the layer makes of the router's answer to x, [T, out], in the wide type. */
static sbp_value coefficients(const sbp_hf_scope *at, sbp_value x, const char *name, int64_t out) {
    sbp_hf *hf = at->hf;
    sbp_builder *b = &hf->builder;
    const sbp_hf_altup *n = of(at);
    const char *module = sbp_hf_enter(at, "altup");
    sbp_value r = sbp_hf_gemma_norm(at, NULL, x, sbp_hf_path(hf, "%s.router_norm", module), at->d->hidden);
    r = sbp_hf_scale(hf, "router_in", r, 1 / (double)at->d->hidden);
    r = sbp_hf_linear(hf, NULL, r, sbp_hf_path(hf, "%s.modality_router", module), n->streams, at->d->hidden,
                      false);
    r = sbp_build1(b, SBP_OP_tanh, sbp_build_cast(b, r, sbp_rule_wide(hf->compute)));
    r = sbp_hf_linear(hf, NULL, r, sbp_hf_path(hf, "%s.%s", module, name), out, n->streams, false);
    return sbp_build_cast(b, r, sbp_rule_wide(hf->compute));
}

sbp_value sbp_hf_altup_predict(const sbp_hf_scope *at, sbp_value streams) {
    sbp_builder *b = &at->hf->builder;
    sbp_hf_altup *n = of(at);
    sbp_dtype wide = sbp_rule_wide(at->hf->compute);
    sbp_value c = coefficients(at, stream(at, streams, 0), "prediction_coefs", n->streams * n->streams),
              all = SBP_NO_VALUE;
    for (int64_t i = 0; i < n->streams; i++) {
        sbp_value sum = sbp_build_cast(b, stream(at, streams, i), wide);
        for (int64_t k = 0; k < n->streams; k++) {
            sbp_value x = sbp_build_cast(b, stream(at, streams, k), wide);
            x = sbp_build2(b, SBP_OP_mul, x, sbp_build_slice(b, c, i * n->streams + k, 1));
            sum = sbp_build2(b, SBP_OP_add, sum, x);
        }
        all = with(at->hf, all, sum);
    }
    sbp_build_name(b, all, "predicted");
    n->predicted = all;
    return stream(at, all, 0);
}

sbp_value sbp_hf_altup_correct(const sbp_hf_scope *at, sbp_value x) {
    sbp_hf *hf = at->hf;
    sbp_builder *b = &hf->builder;
    const sbp_hf_altup *n = of(at);
    sbp_dtype wide = sbp_rule_wide(hf->compute);
    sbp_value c = coefficients(at, x, "correction_coefs", n->streams), one = sbp_build_const(b, wide, 1),
              all = SBP_NO_VALUE, own = SBP_NO_VALUE;
    x = sbp_build_cast(b, x, wide);
    x = sbp_build2(b, SBP_OP_sub, x, sbp_build_cast(b, stream(at, n->predicted, 0), wide));
    for (int64_t i = 0; i < n->streams; i++) {
        sbp_value y = sbp_build2(b, SBP_OP_add, sbp_build_slice(b, c, i, 1), one);
        y = sbp_build2(b, SBP_OP_mul, x, y);
        y = sbp_build2(b, SBP_OP_add, y, sbp_build_cast(b, stream(at, n->predicted, i), wide));
        if (i == 0 && n->scaled) {
            const char *name = sbp_hf_path(hf, "%s.correct_output_scale", sbp_hf_enter(at, "altup"));
            sbp_value scale = sbp_hf_row_vector(hf, name, SBP_INIT_ZEROS, at->d->hidden);
            sbp_hf_decays(hf, scale);
            own = sbp_build2(b, SBP_OP_mul, y, sbp_build_cast(b, scale, wide));
        } else if (i == 0) {
            own = y;
        }
        if (i == 0)
            own = sbp_hf_gemma_own_input(at, sbp_build_cast(b, own, hf->residual));
        else
            y = sbp_build2(b, SBP_OP_add, y, sbp_build_cast(b, own, wide));
        all = with(hf, all, y);
    }
    (void)sbp_hf_enter(at, "");
    sbp_build_name(b, all, "layer");
    return all;
}

sbp_value sbp_hf_altup_close(const sbp_hf_scope *at, sbp_value streams) {
    sbp_hf *hf = at->hf;
    sbp_builder *b = &hf->builder;
    const sbp_hf_altup *n = of(at);
    int64_t hidden = at->d->hidden;
    sbp_dtype wide = sbp_rule_wide(hf->compute);
    sbp_value first = stream(at, streams, 0), sum = sbp_build_cast(b, first, wide);
    sbp_value root = sbp_build1(b, SBP_OP_sqrt, sbp_hf_mean_square(at->hf, first));
    for (int64_t i = 1; i < n->streams; i++) {
        b->node = sbp_hf_path(hf, "%s.altup_unembed_projections.%lld", at->d->names.root, (long long)i - 1);
        sbp_value y = sbp_hf_linear(hf, NULL, stream(at, streams, i), b->node, hidden, hidden, false);
        sum = sbp_build2(b, SBP_OP_add, sum, as_large(at, y, root));
    }
    sum =
        sbp_build2(b, SBP_OP_mul, sum, sbp_build_const(b, wide, sbp_round_to(wide, 1 / (double)n->streams)));
    return sbp_build_cast(b, sum, hf->residual);
}
