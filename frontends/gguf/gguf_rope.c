/* gguf_rope.c: rotary parameters of a GGUF file. What stretches frequencies stands in keys (linear, yarn) or
 * is a tensor of factors, which is what they are divided by: rope_freqs.weight of Llama 3 and Gemma 4,
 * rope_factors_long and _short of Phi-3 (longrope). Parameters that give these factors are found again, so
 * that config.json can say them. */
#include "frontends/formats/weights/gguf_traits.h"
#include "frontends/gguf/gguf_config.h"

#include <math.h>
#include <string.h>

static bool is(const sbp_gguf_config *c, sbp_gguf_traits traits) {
    return sbp_gguf_has(c->facts.family, traits);
}

/* Its class scales, not truncated, where config.json has no rope_scaling. */
static bool has_own_yarn(const sbp_gguf_config *c) {
    return sbp_gguf_default(c->facts.family, "truncate") == 0;
}

static double theta_of(sbp_gguf_config *c) {
    return sbp_gguf_config_number(c, "rope.freq_base", 1e4);
}

/* Half as many numbers as elements of a head turn; NULL, with an error, when it is not so. */
static const double *read_factors(sbp_gguf_config *c, const sbp_weight *w, int64_t turning) {
    if (w->rank != 1 || w->elems != turning / 2)
        sbp_gguf_config_fail(c, "tensor '%s' has %lld elements, half of the head size %lld is expected",
                             w->name, (long long)w->elems, (long long)turning);
    if (c->status != SBP_OK)
        return NULL;
    double *found = SBP_NEW_ARRAY(c->arena, double, w->elems);
    c->status = sbp_weights_read(c->tensors, w, 0, w->elems, SBP_F64, found, c->diag);
    return c->status == SBP_OK ? found : NULL;
}

/* ---- Llama 3 ------------------------------------------------------------------------------------------ */

enum { LOW = 1, HIGH = 4 }; /* low_freq_factor, high_freq_factor; Llama 4 has 1 for both */

typedef struct llama3 {
    double theta, factor, length, high;
    int64_t turning; /* elements of a head */
} llama3;

/* Llama 3 divides slow frequencies by `factor`, keeps fast ones, and blends between: llama3 in hf_rope.c. */
static double llama3_factor(const llama3 *r, int64_t i) {
    const double pi = 3.14159265358979323846;
    double wavelength = 2 * pi * pow(r->theta, (double)(2 * i) / (double)r->turning);
    if (wavelength < r->length / r->high)
        return 1;
    if (wavelength > r->length / LOW)
        return r->factor;
    double t = (r->length / wavelength - LOW) / (r->high - LOW);
    return 1 / ((1 - t) / r->factor + t);
}

/* How far the factors are from Llama 3's, relatively; worst: where. */
static double llama3_distance(const double *found, const llama3 *r, int64_t *worst) {
    double most = 0;
    *worst = 0;
    for (int64_t i = 0; i < r->turning / 2; i++) {
        double expected = llama3_factor(r, i);
        double distance = fabs(found[i] - expected) / expected;
        if (!(distance <= most)) {
            most = distance;
            *worst = i;
        }
    }
    return most;
}

static bool is_llama3(const double *found, const llama3 *r) {
    int64_t at;
    return llama3_distance(found, r, &at) <= 1e-4;
}

/* The original length, which files need not say, is one of these. */
static void find_length(const double *found, llama3 *r, double said) {
    r->length = said;
    for (int64_t length = 8192; said == 0 && length >= 1; length = length > 1024 ? length / 2 : length - 1) {
        r->length = (double)length;
        if (is_llama3(found, r))
            return;
    }
    r->length = said > 0 ? said : 8192;
}

/* Members of an object: `w` has factors of what turns of a head, and 1 for the rest of it. */
static void write_llama3(sbp_gguf_config *c, const sbp_weight *w, int64_t turning) {
    llama3 r = {.theta = theta_of(c), .factor = 1, .high = HIGH, .turning = turning};
    double said = (double)sbp_gguf_config_count(c, "rope.scaling.original_context_length", 0, 0);
    const double *found = read_factors(c, w, c->head_dim);
    if (!found)
        return;
    int64_t worst;
    for (int64_t i = 0; i < turning / 2; i++)
        r.factor = fmax(r.factor, found[i]);
    find_length(found, &r, said);
    if (!is_llama3(found, &r)) {
        r.high = LOW;
        find_length(found, &r, said);
        r.high = is_llama3(found, &r) ? LOW : HIGH;
    }
    if (!(llama3_distance(found, &r, &worst) <= 1e-4)) {
        sbp_gguf_config_fail(
            c,
            "tensor '%s', element %lld is %g; Llama 3's scaling by %g of %g positions gives %g, and "
            "no other is supported",
            w->name, (long long)worst, found[worst], r.factor, r.length, llama3_factor(&r, worst));
        return;
    }
    sbp_json_write_string(c->out, "rope_type", "llama3");
    sbp_gguf_config_write(c, "factor", r.factor);
    sbp_json_write_raw(c->out, "low_freq_factor", "1.0");
    sbp_gguf_config_write(c, "high_freq_factor", r.high);
    sbp_json_write_int(c->out, "original_max_position_embeddings", (int64_t)r.length);
}

/* ---- longrope ----------------------------------------------------------------------------------------- */

static void write_list(sbp_gguf_config *c, const char *field, const double *values, int64_t n) {
    sbp_json_write_array(c->out, field);
    for (int64_t i = 0; values && i < n; i++)
        sbp_gguf_config_write(c, NULL, values[i]);
    sbp_json_write_end(c->out);
}

static void write_longrope(sbp_gguf_config *c, int64_t turning) {
    const sbp_weight *longer = sbp_gguf_config_tensor(c, "rope_factors_long.weight"),
                     *shorter = sbp_gguf_config_tensor(c, "rope_factors_short.weight");
    int64_t length = sbp_gguf_config_count(c, "rope.scaling.original_context_length", 0, 0);
    if (!longer || !shorter || length < 1) {
        sbp_gguf_config_fail(
            c,
            "rotary frequencies of type longrope need tensors 'rope_factors_long.weight' and "
            "'rope_factors_short.weight', and a key '%s.rope.scaling.original_context_length'",
            c->family->architecture);
        return;
    }
    const double *more = read_factors(c, longer, turning), *less = read_factors(c, shorter, turning);
    double growth = (double)c->positions / (double)length,
           expected = growth > 1 ? sqrt(1 + log(growth) / log((double)length)) : 1,
           scale = sbp_gguf_config_number(c, "rope.scaling.attn_factor", expected);
    sbp_json_write_int(c->out, "original_max_position_embeddings", length);
    sbp_json_write_object(c->out, "rope_scaling");
    sbp_json_write_string(c->out, "rope_type", "longrope");
    write_list(c, "long_factor", more, longer->elems);
    write_list(c, "short_factor", less, shorter->elems);
    if (!(fabs(scale - expected) <= 1e-6 * expected))
        sbp_gguf_config_write(c, "attention_factor", scale);
    sbp_json_write_end(c->out);
}

/* ---- keys --------------------------------------------------------------------------------------------- */

/* llama.cpp's converter leaves it out, and llama.cpp does not scale then. */
static void write_temper(sbp_gguf_config *c, int64_t length) {
    double beta = sbp_gguf_config_number(c, "attention.temperature_scale", 0);
    sbp_gguf_config_write(c, "llama_4_scaling_beta", beta);
    if (beta == 0)
        sbp_warn(
            c->diag,
            "%s: no key '%s.attention.temperature_scale': queries behind %lld positions are not scaled, "
            "as in llama.cpp; those of published models are: --set rope_scaling.llama_4_scaling_beta=0.1",
            c->path, c->family->architecture, (long long)length);
}

static void write_yarn(sbp_gguf_config *c) {
    double extension = sbp_gguf_config_number(c, "rope.scaling.yarn_ext_factor", 1);
    int64_t length = sbp_gguf_config_count(c, "rope.scaling.original_context_length", 0, 0);
    if (extension != 1 || length < 1)
        sbp_gguf_config_fail(
            c,
            "yarn with yarn_ext_factor %g and original_context_length %lld; 1 and a length are "
            "expected",
            extension, (long long)length);
    sbp_json_write_string(c->out, "rope_type", "yarn");
    sbp_gguf_config_write(c, "factor", sbp_gguf_config_number(c, "rope.scaling.factor", 1));
    sbp_json_write_int(c->out, "original_max_position_embeddings", length);
    const sbp_gguf_key *row = NULL;
    while ((row = sbp_gguf_next_key(c->facts.family, row)))
        if (row->kind == SBP_GGUF_KEY_YARN && sbp_gguf_config_key(c, row->key))
            sbp_gguf_config_write(c, row->field, sbp_gguf_config_number(c, row->key, 1));
    if (has_own_yarn(c)) /* its class's, which files do not say */
        sbp_json_write_bool(c->out, "truncate", false);
    if (is(c, SOFTMAX_ROUTED))
        write_temper(c, length);
    if (is(c, TEMPERED)) { /* llama.cpp takes mscale for 1 */
        double all = sbp_gguf_config_number(c, "rope.scaling.yarn_log_multiplier", 0);
        if (all != 0)
            sbp_json_write_raw(c->out, "mscale", "1.0");
        if (all != 0)
            sbp_gguf_config_write(c, "mscale_all_dim", all);
        sbp_gguf_config_write(c, "llama_4_scaling_beta",
                              sbp_gguf_config_number(c, "attention.temperature_scale", 0));
    } else if (sbp_gguf_config_key(c, "rope.scaling.yarn_log_multiplier")) { /* a tenth of both */
        double scale =
            10 * sbp_gguf_config_said(sbp_gguf_config_number(c, "rope.scaling.yarn_log_multiplier", 0));
        sbp_gguf_config_write(c, "mscale", scale);
        sbp_gguf_config_write(c, "mscale_all_dim", scale);
    }
}

/* Members of an object: type and what belongs to it. attn_factor is yarn_attn_factor over what yarn takes by
 * itself, which llama.cpp reads in place of that (frontends/formats/export/export_arch.c writes both). */
static void write_type(sbp_gguf_config *c) {
    const char *type = sbp_gguf_config_string(c, "rope.scaling.type", "none");
    double factor = sbp_gguf_config_number(c, "rope.scaling.factor", 1);
    if (sbp_gguf_config_key(c, "rope.scaling.attn_factor") &&
        !sbp_gguf_config_key(c, "rope.scaling.yarn_attn_factor"))
        sbp_gguf_config_fail(c, "key '%s.rope.scaling.attn_factor' is only supported beside yarn_attn_factor",
                             c->family->architecture);
    if (strcmp(type, "none") == 0) { /* the spelling of old files */
        factor = sbp_gguf_config_number(c, "rope.scale_linear", 1);
        type = factor != 1 ? "linear" : type;
    }
    if (is(c, TEMPERED) && strcmp(type, "yarn") != 0)
        sbp_gguf_config_fail(c, "key '%s.attention.temperature_scale' is only supported beside yarn",
                             c->family->architecture);
    if (strcmp(type, "yarn") == 0) {
        write_yarn(c);
    } else if (strcmp(type, "linear") == 0) {
        sbp_json_write_string(c->out, "rope_type", "linear");
        sbp_gguf_config_write(c, "factor", factor);
    } else if (strcmp(type, "none") == 0) {
        sbp_json_write_string(c->out, "rope_type", "default");
    } else {
        sbp_gguf_config_fail(c, "key '%s.rope.scaling.type' is '%s'; none, linear and yarn are supported%s",
                             c->family->architecture, type,
                             strcmp(type, "longrope") == 0 ? " (of phi3 longrope, too)" : "");
    }
}

/* How many elements of a head turn, as the share that gives this number again when it is rounded down. */
static double share_of(int64_t turning, int64_t head_dim) {
    double share = (double)turning / (double)head_dim;
    while ((int64_t)((double)head_dim * share) < turning)
        share = nextafter(share, 2);
    return share;
}

static void write_partial(sbp_gguf_config *c, int64_t turning) {
    if (turning < 1 || turning > c->head_dim || turning % 2 != 0)
        sbp_gguf_config_fail(
            c,
            "key '%s.rope.dimension_count' is %lld; an even number up to the head size %lld is "
            "expected",
            c->family->architecture, (long long)turning, (long long)c->head_dim);
    else if (is(c, NEOX))
        sbp_json_write_double(c->out, "rotary_pct", share_of(turning, c->head_dim));
    else if (is(c, PARTIAL | LONG_FACTORS))
        sbp_json_write_double(c->out, "partial_rotary_factor", share_of(turning, c->head_dim));
    else if (turning != c->head_dim)
        sbp_gguf_config_fail(c, "key '%s.rope.dimension_count' is %lld; only %lld is supported",
                             c->family->architecture, (long long)turning, (long long)c->head_dim);
}

/* ---- families whose layers are of two kinds ----------------------------------------------------------- */

static void write_sliding(sbp_gguf_config *c, double theta) {
    int64_t turning = sbp_gguf_config_count(c, "rope.dimension_count", 0, c->head_dim);
    sbp_json_write_object(c->out, "sliding_attention");
    sbp_json_write_string(c->out, "rope_type", "default");
    if (is(c, PARTIAL))
        write_partial(c, sbp_gguf_config_count(c, "rope.dimension_count_swa", 0, turning));
    sbp_gguf_config_write(c, "rope_theta", sbp_gguf_config_number(c, "rope.freq_base_swa", theta));
    sbp_json_write_end(c->out);
}

/* In full attention the first part of a head turns: factors of 1 there, behind it what stops all turning. */
static void write_proportional(sbp_gguf_config *c, int64_t head_dim) {
    const sbp_weight *w = sbp_gguf_config_tensor(c, "rope_freqs.weight");
    int64_t turning = 0, n = head_dim / 2;
    if (!w) {
        sbp_json_write_string(c->out, "rope_type", "default");
        return;
    }
    const double *found = read_factors(c, w, head_dim);
    while (found && turning < n && found[turning] == 1)
        turning++;
    for (int64_t i = turning; found && i < n; i++)
        if (found[i] < 1e20)
            sbp_gguf_config_fail(c,
                                 "tensor '%s', element %lld is %g; factors of 1, then of 1e30 are expected",
                                 w->name, (long long)i, found[i]);
    sbp_json_write_string(c->out, "rope_type", "proportional");
    sbp_json_write_double(c->out, "partial_rotary_factor", share_of(2 * turning, head_dim));
}

static void write_two(sbp_gguf_config *c) {
    const sbp_weight *factors = sbp_gguf_config_tensor(c, "rope_freqs.weight");
    int64_t turning = sbp_gguf_config_count(c, "rope.dimension_count", 0, c->head_dim);
    turning = is(c, STEP_EXPERTS) ? turning / 2 : turning; /* as llama.cpp has it */
    double theta = theta_of(c), local = sbp_gguf_default(c->facts.family, "rope_local_base_freq");
    sbp_json_write_object(c->out, "rope_parameters");
    sbp_json_write_object(c->out, "full_attention");
    sbp_gguf_config_write(c, "rope_theta", theta);
    if (is(c, PROPORTIONAL))
        write_proportional(c, sbp_gguf_config_count(c, "attention.key_length", 0, 0));
    else if (factors && is(c, STEP_EXPERTS))
        write_llama3(c, factors, turning);
    else
        write_type(c);
    if (is(c, PARTIAL))
        write_partial(c, turning);
    sbp_json_write_end(c->out);
    write_sliding(c, isnan(local) ? theta : local);
    sbp_json_write_end(c->out);
}

/* Which part of a head goes by which of an image's three axes; files have a fourth number. */
static void write_axes(sbp_gguf_config *c) {
    sbp_json_write_array(c->out, "mrope_section");
    for (int64_t i = 0; i < 3; i++)
        sbp_json_write_int(c->out, NULL, sbp_gguf_config_count(c, "rope.dimension_sections", i, 0));
    sbp_json_write_end(c->out);
}

/* Layers that a list says not to turn, by an angle of nothing. */
static void write_turns(sbp_gguf_config *c) {
    const sbp_gguf_value *turns = sbp_gguf_config_key(c, "attention.rope_pattern");
    if (!turns)
        return;
    if (!turns->is_array || turns->type != SBP_GGUF_BOOL || turns->count < c->facts.layers)
        sbp_gguf_config_fail(c, "key '%s': expected an array of a bool for each layer", turns->key);
    sbp_json_write_array(c->out, "layer_rope_theta");
    for (int64_t i = 0; i < c->facts.layers && c->status == SBP_OK; i++)
        sbp_gguf_config_write(c, NULL, sbp_gguf_i64_at(turns, i) ? theta_of(c) : 0);
    sbp_json_write_end(c->out);
}

/* ---- all ---------------------------------------------------------------------------------------------- */

void sbp_gguf_config_rope(sbp_gguf_config *c) {
    const sbp_weight *factors = sbp_gguf_config_tensor(c, "rope_freqs.weight");
    bool latent = is(c, LATENT);
    if (is(c, MIXERS))
        return;
    if (is(c, TWO_ROPES)) {
        write_two(c);
        return;
    }
    int64_t turning = sbp_gguf_config_count(c, "rope.dimension_count", 0, c->head_dim);
    if (!latent)
        write_partial(c, turning);
    sbp_gguf_config_write(c, is(c, NEOX) ? "rotary_emb_base" : "rope_theta", theta_of(c));
    if (is(c, LISTED_TURNS))
        write_turns(c);
    if (is(c, LONG_FACTORS) && sbp_gguf_config_tensor(c, "rope_factors_long.weight")) {
        write_longrope(c, turning);
        return;
    }
    const char *type = sbp_gguf_config_string(c, "rope.scaling.type", "none");
    if (factors && strcmp(type, "none") != 0)
        sbp_gguf_config_fail(c, "%s scaling of rotary frequencies as well as '%s'", type, factors->name);
    else if (factors) {
        sbp_json_write_object(c->out, "rope_scaling");
        write_llama3(c, factors, c->head_dim);
        sbp_json_write_end(c->out);
        return;
    }
    const sbp_gguf_value *axes = is(c, PICTURES) ? sbp_gguf_config_key(c, "rope.dimension_sections") : NULL;
    bool said = axes || has_own_yarn(c) || is(c, XIELU); /* whose class scales, too */
    if (strcmp(type, "none") == 0 && !sbp_gguf_config_key(c, "rope.scale_linear") && !said) {
        sbp_json_write_null(c->out, "rope_scaling");
        return;
    }
    sbp_json_write_object(c->out, "rope_scaling");
    write_type(c);
    if (axes)
        write_axes(c);
    sbp_json_write_end(c->out);
}
