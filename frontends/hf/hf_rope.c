/* hf_rope.c: rotary frequencies of every rope_type. Source: transformers 5.23, modeling_rope_utils.py.
 *
 * D = rotary_dim, i = 0 .. ceil(D/2) - 1, b = rope_theta, L = max_position_embeddings, L0 =
 * original_max_position_embeddings, n = tokens of the longest document of the step. f_i = b^(-2i/D);
 * angle = position * inv_freq_i, cos and sin are multiplied by `scale`.
 *
 *   default       f_i
 *   linear        f_i / factor
 *   llama3        f_i below a wavelength of L0/high_freq_factor, f_i / factor above L0/low_freq_factor,
 *                 between them (1-t) f_i/factor + t f_i, t = (L0/wavelength - low)/(high - low)
 *   yarn          g f_i/factor + (1-g) f_i, g = clamp((i - lo)/(hi - lo), 0, 1), lo and hi where f_i turns
 *                 beta_fast and beta_slow times in L0; scale attention_factor, else from mscale or factor
 *                 (Peng and others, arXiv 2309.00071)
 *   longrope, su  f_i / long_factor_i when n > L0, else f_i / short_factor_i; scale attention_factor, else
 *                 sqrt(1 + ln factor / ln L0), 1 for factor <= 1 (Ding and others, arXiv 2402.13753)
 *   dynamic       f_i with b (factor n/L - (factor - 1))^(D/(D-2)) when n > L; of HunYuan, with an alpha:
 *                 with b alpha^(D/(D-2))
 *   proportional  b^(-2i/head_dim) / factor for the first partial_rotary_factor of the pairs, 0 for the rest
 *
 * transformers computes the frequencies in fp32, operation by operation; r() rounds where it does, so that a
 * plan in fp32 turns by the same angles at position 100,000. Plans in fp64 use doubles throughout. */
#include "frontends/hf/hf.h"

#include <math.h>
#include <string.h>

enum { MAX_HEAD_DIM = 65536 };

static const double pi = 3.14159265358979323846;

/* The members of rope_parameters: those of `over` go before those of `base`. */
typedef struct rope_config {
    sbp_hf *hf;
    const sbp_json *over, *base;
    bool per_layer_type;
    const sbp_hf_rope_shape *shape;
    int64_t dim; /* D */
    double theta;
} rope_config;

static double r(const rope_config *c, double value) {
    return c->hf->compute == SBP_F64 ? value : (double)(float)value;
}

static const sbp_json *find(const rope_config *c, const char *key) {
    const sbp_json *field = sbp_json_member(c->over, key);
    if (!field)
        field = sbp_json_member(c->base, key);
    return field && field->kind != SBP_JSON_NULL ? field : NULL;
}

static const sbp_json *where(const rope_config *c) {
    return c->over ? c->over : c->base;
}

/* A positive number; absent or null: the fallback, NAN when there is none. */
static double number(const rope_config *c, const char *key, double fallback) {
    const sbp_json *field = find(c, key);
    double value = fallback;
    if (!field) {
        if (isnan(fallback))
            sbp_hf_fail(c->hf, where(c), "the field '%s' is missing", key);
        return value;
    }
    if (c->hf->builder.status == SBP_OK)
        c->hf->builder.status = sbp_json_as_double(c->hf->diag, field, &value);
    if (!(value > 0) || isinf(value))
        sbp_hf_fail(c->hf, field, "%g is out of range; a positive number is expected", value);
    return value;
}

/* A top-level value wins over one inside, except where there is one object per layer type; without either the
 * model was not stretched. */
static double original_length(const rope_config *c) {
    int64_t top = sbp_hf_size(c->hf, "original_max_position_embeddings", c->shape->original_positions);
    return top > 0 && !c->per_layer_type
               ? (double)top
               : number(c, "original_max_position_embeddings", (double)c->shape->max_positions);
}

/* Absent: an error; null: how far the model was stretched. */
static double stretch(const rope_config *c, double length) {
    bool null = sbp_json_member(c->over, "factor") || sbp_json_member(c->base, "factor");
    return number(c, "factor", null ? (double)c->shape->max_positions / length : (double)NAN);
}

/* 1 / f_i, as transformers computes it */
static double base_power(const rope_config *c, int64_t i) {
    return r(c, pow(r(c, c->theta), r(c, (double)(2 * i) / (double)c->dim)));
}

static void rope_linear(const rope_config *c, sbp_hf_rope *rope, double *f) {
    double factor = number(c, "factor", (double)NAN);
    for (int64_t i = 0; i < rope->n; i++)
        f[i] = r(c, f[i] / factor);
}

static void rope_llama3(const rope_config *c, sbp_hf_rope *rope, double *f) {
    double factor = number(c, "factor", (double)NAN), low = number(c, "low_freq_factor", (double)NAN),
           high = number(c, "high_freq_factor", (double)NAN), length = original_length(c);
    for (int64_t i = 0; i < rope->n; i++) {
        double wavelength = r(c, r(c, 2 * pi) / f[i]);
        if (wavelength < length / high)
            continue;
        if (wavelength > length / low) {
            f[i] = r(c, f[i] / factor);
        } else {
            double t = r(c, r(c, r(c, length / wavelength) - low) / (high - low));
            f[i] = r(c, r(c, r(c, r(c, 1 - t) * f[i]) / factor) + r(c, t * f[i]));
        }
    }
}

static double mscale(double factor, double k) {
    return factor <= 1 ? 1 : 0.1 * k * log(factor) + 1;
}

/* The (fractional) index of the frequency that turns `rotations` times within `length` positions. */
static double correction(const rope_config *c, double rotations, double length) {
    return (double)c->dim * log(length / (rotations * 2 * pi)) / (2 * log(c->theta));
}

/* An optional number, 0 when absent or null: 0 and null mean the same here. */
static double optional(const rope_config *c, const char *key) {
    const sbp_json *field = find(c, key);
    double value = 0;
    if (field && c->hf->builder.status == SBP_OK)
        c->hf->builder.status = sbp_json_as_double(c->hf->diag, field, &value);
    return value;
}

/* transformers looks for it beside the objects per layer type, where it is not, and takes null for false. */
static bool truncates(const rope_config *c) {
    const sbp_json *field = sbp_json_member(c->over, "truncate");
    field = field ? field : sbp_json_member(c->base, "truncate");
    bool whole = true;
    if (field && field->kind == SBP_JSON_NULL)
        whole = false;
    else if (field && c->hf->builder.status == SBP_OK)
        c->hf->builder.status = sbp_json_as_bool(c->hf->diag, field, &whole);
    if (c->per_layer_type && !whole)
        sbp_warn(c->hf->diag, "%s.truncate is ignored, as by transformers, and counts as true",
                 where(c)->key);
    return whole || c->per_layer_type;
}

static void rope_yarn(const rope_config *c, sbp_hf_rope *rope, double *f) {
    double length = original_length(c), factor = stretch(c, length);
    double fast = optional(c, "beta_fast"), slow = optional(c, "beta_slow");
    double low = correction(c, fast != 0 ? fast : 32, length),
           high = correction(c, slow != 0 ? slow : 1, length);
    bool whole = truncates(c);
    low = fmax(whole ? floor(low) : low, 0);
    high = fmin(whole ? ceil(high) : high, (double)c->dim - 1);
    if (low == high)
        high += 0.001;
    for (int64_t i = 0; i < rope->n; i++) {
        double ramp = fmin(fmax(r(c, r(c, (double)i - low) / (high - low)), 0), 1);
        double keep = r(c, 1 - ramp), slowed = r(c, 1 / r(c, factor * base_power(c, i)));
        f[i] = r(c, r(c, slowed * r(c, 1 - keep)) + r(c, f[i] * keep));
    }
    double given = optional(c, "attention_factor"), m = optional(c, "mscale"),
           all = optional(c, "mscale_all_dim");
    if (given != 0)
        rope->scale = given;
    else
        rope->scale = m != 0 && all != 0 ? mscale(factor, m) / mscale(factor, all) : mscale(factor, 1);
    rope->score_scale = all != 0 ? mscale(factor, all) * mscale(factor, all) : 1;
}

/* A list of a positive number per frequency. */
static void read_factors(const rope_config *c, const char *key, int64_t n, double *out) {
    const sbp_json *list = find(c, key);
    if (!list || list->kind != SBP_JSON_ARRAY || list->count != n) {
        sbp_hf_fail(c->hf, list ? list : where(c),
                    "%s%san array of %lld numbers is expected, half of the %lld "
                    "elements of a head that turn",
                    list ? "" : key, list ? "" : ": ", (long long)n, (long long)c->dim);
        return;
    }
    for (int64_t i = 0; i < n && c->hf->builder.status == SBP_OK; i++) {
        c->hf->builder.status = sbp_json_as_double(c->hf->diag, &list->items[i], &out[i]);
        if (!(out[i] > 0) || isinf(out[i]))
            sbp_hf_fail(c->hf, &list->items[i], "%g is out of range; a positive number is expected", out[i]);
    }
}

/* The object, as --set names it, with a dot behind it; NULL: config.json has none. */
static const char *object_path(const rope_config *c) {
    const char *key = where(c) ? where(c)->key : NULL;
    bool inside = c->per_layer_type && c->over;
    if (!key || (c->shape->own && strcmp(key, "rope_parameters") == 0 && !sbp_hf_field(c->hf, key)))
        return NULL;
    return sbp_arena_printf(c->hf->arena, "%s%s%s.", c->hf->wrapper ? "text_config." : "",
                            inside ? "rope_parameters." : "", key);
}

/* Says what frequencies do above `length` tokens, and which settings keep one set of them. */
static void say_length_rule(const rope_config *c, double length, const char *beyond, const char *settings) {
    sbp_model *m = c->hf->model;
    if (m->length_rule)
        return;
    m->length_limit = (int64_t)length;
    m->length_rule = sbp_arena_printf(
        c->hf->arena,
        "the rotary frequencies of a step are those of its longest document, for all of its rows: above %lld "
        "tokens %s (transformers goes by the longest of each batch, so short rows beside a long one may get "
        "others there)%s",
        (long long)length, beyond, settings);
}

static void say_longrope(const rope_config *c, double length, double scale) {
    const char *object = object_path(c), *settings = "";
    bool top = sbp_hf_field(c->hf, "original_max_position_embeddings") && !c->per_layer_type;
    const char *field = !object ? ""
                        : top   ? sbp_arena_printf(c->hf->arena, "%soriginal_max_position_embeddings",
                                                 c->hf->wrapper ? "text_config." : "")
                              : sbp_arena_printf(c->hf->arena, "%soriginal_max_position_embeddings", object);
    if (object)
        settings = sbp_arena_printf(c->hf->arena,
                                    "; for one of both always: --set %sattention_factor=%.17g --set %s=1 "
                                    "(long_factor) or =1000000000 (short_factor)",
                                    object, scale, field);
    say_length_rule(c, length, "long_factor, up to them short_factor", settings);
}

static void rope_longrope(const rope_config *c, sbp_hf_rope *rope, double *f) {
    double length = original_length(c), *wide = SBP_NEW_ARRAY(c->hf->arena, double, rope->n);
    double factor = number(c, "factor", (double)c->shape->max_positions / length),
           given = optional(c, "attention_factor");
    read_factors(c, "short_factor", rope->n, f);
    read_factors(c, "long_factor", rope->n, wide);
    for (int64_t i = 0; i < rope->n; i++) {
        f[i] = r(c, 1 / r(c, r(c, f[i]) * base_power(c, i)));
        wide[i] = r(c, 1 / r(c, r(c, wide[i]) * base_power(c, i)));
    }
    rope->long_inv_freq = wide;
    rope->original_length = length;
    rope->scale = factor <= 1 ? 1 : sqrt(1 + log(factor) / log(length));
    if (given != 0)
        rope->scale = given;
    say_longrope(c, length, rope->scale);
}

/* Those of a document as long as the model was stretched to, and none that grow. */
static void say_dynamic(const rope_config *c, double length, double factor) {
    const char *object = object_path(c), *settings = "";
    double stretched = c->theta * pow(factor * factor - (factor - 1), (double)c->dim / (double)(c->dim - 2));
    if (object)
        settings =
            sbp_arena_printf(c->hf->arena,
                             "; for the same always: --set '%srope_type=\"default\"', and with it --set "
                             "%srope_theta=%.17g for those of %.0f tokens",
                             object, object, stretched, factor * length);
    say_length_rule(c, length, "they shrink with its length", settings);
}

/* f_i (b'/b)^(-2i/D), b'/b = (factor n/L - (factor - 1))^(D/(D-2)) */
static void rope_dynamic(const rope_config *c, sbp_hf_rope *rope, double *f) {
    double *power = SBP_NEW_ARRAY(c->hf->arena, double, rope->n), alpha = 0;
    if (c->dim <= 2)
        sbp_hf_fail(c->hf, where(c),
                    "rope_type 'dynamic' needs more than the %lld elements of a head that turn",
                    (long long)c->dim);
    else if (c->shape->alpha)
        alpha = optional(c, "alpha");
    if (alpha != 0) {
        rope_config stretched = *c;
        stretched.theta = c->theta * pow(alpha, (double)c->dim / (double)(c->dim - 2));
        for (int64_t i = 0; i < rope->n; i++)
            f[i] = r(c, 1 / base_power(&stretched, i));
        return;
    }
    for (int64_t i = 0; i < rope->n && c->dim > 2; i++)
        power[i] = (double)(2 * i) / (double)(c->dim - 2);
    rope->growth = number(c, "factor", (double)NAN);
    rope->growth_power = power;
    rope->original_length = (double)c->shape->max_positions;
    if (c->dim > 2)
        say_dynamic(c, rope->original_length, rope->growth);
}

/* ---- which part of a head turns ---------------------------------------------------------------------- */

static double fraction(sbp_hf *hf, const sbp_json *field, double fallback) {
    double value = fallback;
    if (field && hf->builder.status == SBP_OK)
        hf->builder.status = sbp_json_as_double(hf->diag, field, &value);
    if (!(value > 0 && value <= 1))
        sbp_hf_fail(hf, field, "%g is out of range; a number above 0 and at most 1 is expected", value);
    return value;
}

/* Inside the object, or at the top level. */
static const sbp_json *find_part(const rope_config *c) {
    const sbp_json *top = sbp_hf_field(c->hf, "partial_rotary_factor"),
                   *inside = find(c, "partial_rotary_factor");
    return inside ? inside : top;
}

/* What is written must be what the family turns. */
static void check_part(const rope_config *c) {
    const sbp_json *field = find_part(c);
    int64_t head = c->shape->head_dim, wanted = c->shape->rotary_dim;
    double part = fraction(c->hf, field, 1);
    if (field && (int64_t)((double)head * part) != wanted)
        sbp_hf_fail(c->hf, field,
                    "%g of the %lld elements of a head would turn, but model_type %s turns %lld; set to null "
                    "(--set, or in the file) it is built so",
                    part, (long long)head, c->hf->model->model_type, (long long)wanted);
}

/* The first part of the head turns, the rest stands still: pairs are those of the whole head. */
static void rope_proportional(const rope_config *c, sbp_hf_rope *rope, double *f) {
    double factor = number(c, "factor", 1), part = fraction(c->hf, find_part(c), 1);
    int64_t turning = (int64_t)floor(part * (double)c->shape->head_dim / 2);
    for (int64_t i = 0; i < rope->n; i++)
        f[i] = i < turning ? r(c, f[i] / factor) : 0;
}

static void rope_default(const rope_config *c, sbp_hf_rope *rope, double *f) {
    (void)c;
    (void)rope;
    (void)f;
}

typedef struct rope_type {
    const char *name;
    /* f: frequencies of `default`, to be changed; rope: the rest of it. */
    void (*apply)(const rope_config *c, sbp_hf_rope *rope, double *f);
    bool whole; /* all pairs of a head, whatever partial_rotary_factor says */
    bool even;  /* needs an even D */
} rope_type;

static const rope_type rope_types[] = {
    {"default", rope_default, false, false},  {"linear", rope_linear, false, false},
    {"llama3", rope_llama3, false, false},    {"yarn", rope_yarn, false, true},
    {"longrope", rope_longrope, false, true}, {"su", rope_longrope, false, true},
    {"dynamic", rope_dynamic, false, false},  {"proportional", rope_proportional, true, true}};

/* ---- reading ------------------------------------------------------------------------------------------ */

/* Fields inside rope_parameters that any type may carry along. */
static const char *const known_fields[] = {
    "rope_type",
    "type",
    "rope_theta",
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "truncate",
    "short_factor",
    "long_factor",
    "partial_rotary_factor",
    "finetuned"}; /* yarn's authors' own code reads it, for its dynamic form */

static const char *const fields_of_three_axes[] = {"mrope_section", "mrope_interleaved"};
static const char *const fields_of_alpha[] = {"alpha"};
static const char *const fields_of_tempered[] = {"llama_4_scaling_beta", "max_position_embeddings"};

static void check_fields(const rope_config *c, const sbp_json *object) {
    if (object && object->kind != SBP_JSON_OBJECT) {
        sbp_hf_fail(c->hf, object, "expected an object, found %s", sbp_json_kind_name(object->kind));
        return;
    }
    for (int64_t i = 0; object && i < object->count; i++) {
        const sbp_json *field = &object->items[i];
        bool known = field->kind == SBP_JSON_NULL;
        for (int32_t k = 0; k < SBP_COUNT(known_fields); k++)
            known |= strcmp(field->key, known_fields[k]) == 0;
        for (int32_t k = 0; c->shape->three_axes && k < SBP_COUNT(fields_of_three_axes); k++)
            known |= strcmp(field->key, fields_of_three_axes[k]) == 0;
        for (int32_t k = 0; c->shape->tempered && k < SBP_COUNT(fields_of_tempered); k++)
            known |= strcmp(field->key, fields_of_tempered[k]) == 0;
        for (int32_t k = 0; c->shape->alpha && k < SBP_COUNT(fields_of_alpha); k++)
            known |= strcmp(field->key, fields_of_alpha[k]) == 0;
        if (!known)
            sbp_hf_fail(
                c->hf, field,
                "unknown field of the rotary embedding, which may change what it computes; set to null "
                "(--set, or in the file) it is built without");
    }
}

/* Where there is one object per layer type, transformers 5 fills in rope_type before it looks at an old
 * rope_scaling, so that only rope_type itself, not the older spelling `type`, changes it there. */
static const char *rope_type_name(const rope_config *c) {
    const sbp_json *field = find(c, "rope_type"), *old = find(c, "type");
    const char *name = "default", *ignored = NULL;
    bool filled_in = c->per_layer_type && !c->base;
    sbp_status *status = &c->hf->builder.status;
    if (!field && !filled_in)
        field = old;
    if (field && *status == SBP_OK)
        *status = sbp_json_as_string(c->hf->diag, field, &name);
    if (c->over && old && field != old && *status == SBP_OK)
        *status = sbp_json_as_string(c->hf->diag, old, &ignored);
    if (c->shape->three_axes && strcmp(name, "mrope") == 0)
        name = "default"; /* Qwen2.5-VL's older word for positions of three axes */
    if (ignored && c->shape->three_axes && strcmp(ignored, "mrope") == 0)
        ignored = NULL;
    if (ignored && *status == SBP_OK && strcmp(ignored, name) != 0)
        sbp_warn(c->hf->diag,
                 "%s: type '%s' is ignored, as by transformers 5, and rope_type is '%s': write rope_type to "
                 "change it",
                 c->over->key, ignored, name);
    return name;
}

static const rope_type *find_type(const rope_config *c) {
    const char *name = rope_type_name(c);
    sbp_text known;
    sbp_text_init(&known, c->hf->arena);
    for (int32_t t = 0; t < SBP_COUNT(rope_types); t++) {
        if (strcmp(name, rope_types[t].name) == 0)
            return &rope_types[t];
        sbp_text_add(&known, "%s%s", t ? ", " : "", rope_types[t].name);
    }
    sbp_hf_fail(c->hf, where(c), "rope_type '%s' is not supported; supported: %s", name, known.data);
    return NULL;
}

/* Whether elements pair as the type wants it. */
static bool check_pairs(const rope_config *c, const rope_type *type) {
    int64_t head = c->shape->head_dim;
    if (c->dim < 1 || c->dim > head || head > MAX_HEAD_DIM)
        sbp_hf_fail(c->hf, find_part(c),
                    "%lld of the %lld elements of a head turn; 1 to %d of %d are possible", (long long)c->dim,
                    (long long)head, MAX_HEAD_DIM, MAX_HEAD_DIM);
    else if (c->dim % 2 != 0 && (type->even || c->dim == head))
        sbp_hf_fail(c->hf, find_part(c),
                    "%lld of the %lld elements of a head turn, but rotary embedding of type '%s' pairs them",
                    (long long)c->dim, (long long)head, type->name);
    return c->hf->builder.status == SBP_OK;
}

static void read_temper(const rope_config *c, sbp_hf_rope *rope) {
    double length = original_length(c);
    rope->temper = optional(c, "llama_4_scaling_beta");
    rope->temper_length = (int64_t)length;
    if ((double)rope->temper_length != length)
        sbp_hf_fail(c->hf, find(c, "original_max_position_embeddings"), "a whole number is expected");
}

/* theta: that of a field outside of the objects. */
static sbp_hf_rope build_rope(rope_config *c, double theta) {
    sbp_hf *hf = c->hf;
    sbp_hf_rope rope = {.scale = 1, .score_scale = 1};
    check_fields(c, c->over);
    check_fields(c, c->base);
    sbp_hf_field(hf, "original_max_position_embeddings"); /* says nothing to the types that do not read it */
    c->theta = c->shape->always > 0 ? c->shape->always : number(c, "rope_theta", theta);
    const rope_type *type = find_type(c);
    if (hf->builder.status != SBP_OK)
        return rope;
    c->dim = type->whole ? c->shape->head_dim : c->shape->rotary_dim;
    if (!check_pairs(c, type))
        return rope;
    if (!type->whole)
        check_part(c);
    rope.n = (c->dim + 1) / 2;
    double *f = SBP_NEW_ARRAY(hf->arena, double, rope.n);
    for (int64_t i = 0; i < rope.n; i++)
        f[i] = r(c, 1 / base_power(c, i));
    rope.inv_freq = f;
    type->apply(c, &rope, f);
    if (c->shape->tempered)
        read_temper(c, &rope);
    if (!isfinite(rope.scale))
        sbp_hf_fail(hf, where(c), "these settings scale cos and sin by %g; a finite number is expected",
                    rope.scale);
    return rope;
}

sbp_hf_rope sbp_hf_rope_from(sbp_hf *hf, const sbp_json *over, const sbp_json *base,
                             const sbp_hf_rope_shape *shape) {
    rope_config c = {.hf = hf, .over = over, .base = base, .per_layer_type = true, .shape = shape};
    return build_rope(&c, shape->theta);
}

/* An object that is there and not empty, or NULL. */
static const sbp_json *filled(sbp_hf *hf, const char *key) {
    const sbp_json *field = sbp_hf_field(hf, key);
    if (field && field->kind != SBP_JSON_OBJECT)
        sbp_hf_fail(hf, field, "expected an object, found %s", sbp_json_kind_name(field->kind));
    return field && field->kind == SBP_JSON_OBJECT && field->count > 0 ? field : NULL;
}

/* A rope_scaling that is not empty goes before rope_parameters. */
static const sbp_json *flat_parameters(sbp_hf *hf) {
    const sbp_json *parameters = filled(hf, "rope_parameters"), *scaling = filled(hf, "rope_scaling");
    return scaling ? scaling : parameters;
}

int64_t sbp_hf_rotary_dim(sbp_hf *hf, int64_t head_dim, const char *key, double fallback) {
    const sbp_json *inside = sbp_json_member(flat_parameters(hf), "partial_rotary_factor"),
                   *top = sbp_hf_field(hf, key);
    const sbp_json *field = inside && inside->kind != SBP_JSON_NULL ? inside : top;
    double part = fraction(hf, field, fallback);
    int64_t dim = (int64_t)((double)head_dim * part);
    if (dim < 1)
        sbp_hf_fail(hf, field, "%g of the %lld elements of a head are none: nothing turns", part,
                    (long long)head_dim);
    return dim;
}

sbp_hf_rope sbp_hf_rope_read(sbp_hf *hf, const sbp_hf_rope_shape *shape) {
    double theta = sbp_hf_double(hf, shape->theta_key ? shape->theta_key : "rope_theta", shape->theta);
    rope_config c = {.hf = hf, .over = flat_parameters(hf), .shape = shape};
    if (!c.over && shape->own && hf->builder.status == SBP_OK)
        hf->builder.status = sbp_json_parse(hf->arena, hf->diag, "rope_parameters", shape->own,
                                            strlen(shape->own), 0, &c.over);
    return build_rope(&c, theta);
}

/* ---- graph -------------------------------------------------------------------------------------------- */

/* Frequencies [n] for a step with this longest document. */
static sbp_value build_frequencies(sbp_hf *hf, const sbp_hf_rope *rope, sbp_dtype wide) {
    sbp_builder *b = &hf->builder;
    sbp_value f = sbp_build_vector(b, "inv_freq", wide, rope->inv_freq, rope->n);
    if (!rope->long_inv_freq && rope->growth == 0)
        return f;
    sbp_value longest =
        sbp_build_cast(b, sbp_build_scalar(b, sbp_totals[SBP_TOTAL_LONGEST].name), wide); /* [], tokens */
    if (rope->long_inv_freq) {
        sbp_value other = sbp_build_vector(b, "long_inv_freq", wide, rope->long_inv_freq, rope->n);
        sbp_value limit = sbp_build_const(b, wide, rope->original_length);
        sbp_value beyond = sbp_build2(b, SBP_OP_lt, limit, longest);
        return sbp_build3(b, SBP_OP_select, beyond, other, f);
    }
    sbp_value power = sbp_build_vector(b, "growth_power", wide, rope->growth_power, rope->n);
    sbp_value slope = sbp_build_const(b, wide, rope->growth / rope->original_length);
    sbp_value shift = sbp_build_const(b, wide, rope->growth - 1);
    sbp_value growth = sbp_build2(b, SBP_OP_sub, sbp_build2(b, SBP_OP_mul, longest, slope), shift);
    growth = sbp_build2(b, SBP_OP_max, growth, sbp_build_const(b, wide, 1));
    sbp_value shrink = sbp_build1(b, SBP_OP_neg, sbp_build1(b, SBP_OP_log, growth));
    shrink = sbp_build1(b, SBP_OP_exp, sbp_build2(b, SBP_OP_mul, power, shrink));
    return sbp_build2(b, SBP_OP_mul, f, shrink);
}

/* 1 + temper log(1 + floor((t + shift) / length)), [T, 1, 1]: t and shift are whole, so that half of one more
 * keeps the quotient away from the next, however it is rounded. position: [T, 1]. */
static sbp_value build_temper(sbp_hf *hf, const sbp_hf_rope *rope, sbp_value position, sbp_dtype wide) {
    sbp_builder *b = &hf->builder;
    sbp_value x =
        sbp_build2(b, SBP_OP_add, position, sbp_build_const(b, wide, (double)rope->temper_shift + 0.5));
    x = sbp_build2(b, SBP_OP_div, x, sbp_build_const(b, wide, (double)rope->temper_length));
    x = sbp_build2(b, SBP_OP_add, sbp_build1(b, SBP_OP_floor, x), sbp_build_const(b, wide, 1));
    x = sbp_build1(b, SBP_OP_log, x);
    x = sbp_build2(b, SBP_OP_mul, x, sbp_build_const(b, wide, sbp_round_to(wide, rope->temper)));
    x = sbp_build2(b, SBP_OP_add, x, sbp_build_const(b, wide, 1));
    x = sbp_build_reshape(b, x, (int64_t[]){1, 1}, 2);
    sbp_build_name(b, x, "temper");
    return x;
}

sbp_hf_turn sbp_hf_rope_tables(sbp_hf *hf, const sbp_hf_rope *rope) {
    sbp_builder *b = &hf->builder;
    sbp_dtype wide = hf->compute == SBP_F64 ? SBP_F64 : SBP_F32;
    sbp_hf_turn turn = {SBP_NO_VALUE, SBP_NO_VALUE, rope->interleaved, SBP_NO_VALUE};
    if (b->status != SBP_OK || (!rope->inv_freq && rope->temper == 0))
        return turn;
    sbp_value position = sbp_build_cast(b, sbp_hf_row(hf, SBP_DATA_POS), wide);
    position = sbp_build_reshape(b, position, (int64_t[]){1}, 1); /* [T, 1] */
    if (rope->temper != 0)
        turn.temper = build_temper(hf, rope, position, wide);
    if (!rope->inv_freq)
        return turn;
    sbp_value inv_freq = build_frequencies(hf, rope, wide);
    sbp_value angle = sbp_build2(b, SBP_OP_mul, position, inv_freq); /* [T, n] */
    sbp_value *out[] = {&turn.cos, &turn.sin};
    for (int32_t i = 0; i < 2; i++) {
        sbp_value table = sbp_build1(b, i == 0 ? SBP_OP_cos : SBP_OP_sin, angle);
        if (rope->scale != 1)
            table = sbp_build2(b, SBP_OP_mul, table, sbp_build_const(b, wide, rope->scale));
        *out[i] = table;
        sbp_build_name(b, *out[i], i == 0 ? "cos" : "sin");
    }
    return turn;
}

/* The first 2 n elements of each head, every second one in front of the others between them. */
static sbp_value part_pairs(sbp_hf *hf, sbp_value x, int64_t n) {
    sbp_builder *b = &hf->builder;
    if (b->status != SBP_OK)
        return SBP_NO_VALUE;
    int64_t heads = sbp_build_type(b, x)->dim[1].n, d = sbp_build_type(b, x)->dim[2].n;
    sbp_value pairs = sbp_build_slice(b, x, 0, 2 * n);
    sbp_value first = sbp_hf_every_other(b, pairs, heads, n, 0);
    sbp_value second = sbp_hf_every_other(b, pairs, heads, n, 1);
    sbp_value y = sbp_build2(b, SBP_OP_concat, first, second);
    return 2 * n < d ? sbp_build2(b, SBP_OP_concat, y, sbp_build_slice(b, x, 2 * n, d - 2 * n)) : y;
}

sbp_value sbp_hf_rotate(sbp_hf *hf, const char *name, sbp_value x, sbp_hf_turn turn) {
    if (turn.interleaved && hf->builder.status == SBP_OK)
        x = part_pairs(hf, x, sbp_build_type(&hf->builder, turn.cos)->dim[1].n);
    sbp_value y = sbp_hf_operand(hf, sbp_build3(&hf->builder, SBP_OP_rope, x, turn.cos, turn.sin));
    sbp_build_name(&hf->builder, y, name);
    return y;
}

sbp_value sbp_hf_temper(sbp_hf *hf, const char *name, sbp_value q, sbp_hf_turn turn) {
    if (turn.temper != SBP_NO_VALUE)
        q = sbp_build2(&hf->builder, SBP_OP_mul, q, sbp_hf_operand(hf, turn.temper));
    sbp_build_name(&hf->builder, q, name);
    return q;
}
