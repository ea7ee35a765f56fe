/* hf_rope.c: rotary frequencies of every rope_type that does not depend on the length of the batch.
 * Formulas: COMPAT, section 4; D = head_dim, i = 0 .. D/2 - 1, L = max_position_embeddings.
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
    int64_t head_dim, max_positions;
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
    int64_t top = sbp_hf_size(c->hf, "original_max_position_embeddings", 0);
    return top > 0 && !c->per_layer_type
               ? (double)top
               : number(c, "original_max_position_embeddings", (double)c->max_positions);
}

/* 1 / f_i, as transformers computes it */
static double base_power(const rope_config *c, int64_t i) {
    return r(c, pow(r(c, c->theta), r(c, (double)(2 * i) / (double)c->head_dim)));
}

static double rope_linear(const rope_config *c, double *f, int64_t n) {
    double factor = number(c, "factor", (double)NAN);
    for (int64_t i = 0; i < n; i++)
        f[i] = r(c, f[i] / factor);
    return 1;
}

static double rope_llama3(const rope_config *c, double *f, int64_t n) {
    double factor = number(c, "factor", (double)NAN), low = number(c, "low_freq_factor", (double)NAN),
           high = number(c, "high_freq_factor", (double)NAN), length = original_length(c);
    for (int64_t i = 0; i < n; i++) {
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
    return 1;
}

static double mscale(double factor, double k) {
    return factor <= 1 ? 1 : 0.1 * k * log(factor) + 1;
}

/* The (fractional) index of the frequency that turns `rotations` times within `length` positions. */
static double correction(const rope_config *c, double rotations, double length) {
    return (double)c->head_dim * log(length / (rotations * 2 * pi)) / (2 * log(c->theta));
}

/* Inside the object, or at the top level. */
static const sbp_json *partial(const rope_config *c) {
    const sbp_json *top = sbp_hf_field(c->hf, "partial_rotary_factor"),
                   *inside = find(c, "partial_rotary_factor");
    return inside ? inside : top;
}

static double partial_factor(const rope_config *c) {
    const sbp_json *field = partial(c);
    double value = 1;
    if (field && c->hf->builder.status == SBP_OK)
        c->hf->builder.status = sbp_json_as_double(c->hf->diag, field, &value);
    if (!(value > 0 && value <= 1))
        sbp_hf_fail(c->hf, field, "%g is out of range; a number above 0 and at most 1 is expected", value);
    return value;
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

static double rope_yarn(const rope_config *c, double *f, int64_t n) {
    double length = original_length(c), d = (double)c->head_dim;
    double factor = sbp_json_member(c->over, "factor") || sbp_json_member(c->base, "factor")
                        ? number(c, "factor", (double)c->max_positions / length)
                        : number(c, "factor", (double)NAN);
    double fast = optional(c, "beta_fast"), slow = optional(c, "beta_slow");
    double low = correction(c, fast != 0 ? fast : 32, length),
           high = correction(c, slow != 0 ? slow : 1, length);
    bool whole = truncates(c);
    low = fmax(whole ? floor(low) : low, 0);
    high = fmin(whole ? ceil(high) : high, d - 1);
    if (low == high)
        high += 0.001;
    for (int64_t i = 0; i < n; i++) {
        double ramp = fmin(fmax(r(c, r(c, (double)i - low) / (high - low)), 0), 1);
        double keep = r(c, 1 - ramp), slowed = r(c, 1 / r(c, factor * base_power(c, i)));
        f[i] = r(c, r(c, slowed * r(c, 1 - keep)) + r(c, f[i] * keep));
    }
    double given = optional(c, "attention_factor"), m = optional(c, "mscale"),
           all = optional(c, "mscale_all_dim");
    if (given != 0)
        return given;
    return m != 0 && all != 0 ? mscale(factor, m) / mscale(factor, all) : mscale(factor, 1);
}

/* The first part of the head turns, the rest stands still. */
static double rope_proportional(const rope_config *c, double *f, int64_t n) {
    double factor = number(c, "factor", 1);
    int64_t turning = (int64_t)floor(partial_factor(c) * (double)n);
    for (int64_t i = 0; i < n; i++)
        f[i] = i < turning ? r(c, f[i] / factor) : 0;
    return 1;
}

static double rope_default(const rope_config *c, double *f, int64_t n) {
    (void)c;
    (void)f;
    (void)n;
    return 1;
}

static const struct {
    const char *name;
    double (*apply)(const rope_config *c, double *f, int64_t n); /* changes f, returns the scale */
    bool part_allowed; /* partial_rotary_factor: used, or ignored by transformers */
} rope_types[] = {{"default", rope_default, true},
                  {"linear", rope_linear, false},
                  {"llama3", rope_llama3, false},
                  {"yarn", rope_yarn, false},
                  {"proportional", rope_proportional, true}};

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
    if (ignored && *status == SBP_OK && strcmp(ignored, name) != 0)
        sbp_warn(c->hf->diag,
                 "%s: type '%s' is ignored, as by transformers 5, and rope_type is '%s': write rope_type to "
                 "change it",
                 c->over->key, ignored, name);
    return name;
}

static void refuse_type(const rope_config *c, const char *name) {
    sbp_text known;
    sbp_text_init(&known, c->hf->arena);
    for (int32_t t = 0; t < SBP_COUNT(rope_types); t++)
        sbp_text_add(&known, "%s%s", t ? ", " : "", rope_types[t].name);
    bool later = strcmp(name, "dynamic") == 0 || strcmp(name, "longrope") == 0;
    sbp_hf_fail(c->hf, where(c), "rope_type '%s' is not built%s; supported: %s", name,
                later ? " yet: it depends on the longest document of the batch" : "", known.data);
}

/* theta: that of a field outside of the objects. */
static sbp_hf_rope build_rope(rope_config *c, double theta) {
    sbp_hf *hf = c->hf;
    sbp_hf_rope rope = {.scale = 1};
    check_fields(c, c->over);
    check_fields(c, c->base);
    sbp_hf_field(hf, "original_max_position_embeddings"); /* says nothing to the types that do not read it */
    c->theta = number(c, "rope_theta", theta);
    const char *name = rope_type_name(c);
    if (hf->builder.status != SBP_OK)
        return rope;
    if (c->head_dim % 2 != 0 || c->head_dim > MAX_HEAD_DIM) {
        sbp_hf_fail(hf, NULL, "head_dim %lld is odd or above %d; rotary embedding pairs elements",
                    (long long)c->head_dim, MAX_HEAD_DIM);
        return rope;
    }
    int64_t n = c->head_dim / 2;
    double *f = SBP_NEW_ARRAY(hf->arena, double, n);
    for (int64_t i = 0; i < n; i++)
        f[i] = r(c, 1 / base_power(c, i));
    rope.inv_freq = f;
    rope.n = n;
    for (int32_t t = 0; t < SBP_COUNT(rope_types); t++) {
        if (strcmp(name, rope_types[t].name) != 0)
            continue;
        double part = partial_factor(c);
        if (!rope_types[t].part_allowed && part != 1)
            sbp_hf_fail(hf, partial(c),
                        "%g with rope_type '%s' is not supported: these models turn whole heads", part, name);
        rope.scale = rope_types[t].apply(c, f, n);
        return rope;
    }
    refuse_type(c, name);
    return rope;
}

sbp_hf_rope sbp_hf_rope_from(sbp_hf *hf, const sbp_json *over, const sbp_json *base, int64_t head_dim,
                             double theta, int64_t max_positions) {
    rope_config c = {.hf = hf,
                     .over = over,
                     .base = base,
                     .per_layer_type = true,
                     .head_dim = head_dim,
                     .max_positions = max_positions};
    return build_rope(&c, theta);
}

/* An object that is there and not empty, or NULL. */
static const sbp_json *filled(sbp_hf *hf, const char *key) {
    const sbp_json *field = sbp_hf_field(hf, key);
    if (field && field->kind != SBP_JSON_OBJECT)
        sbp_hf_fail(hf, field, "expected an object, found %s", sbp_json_kind_name(field->kind));
    return field && field->kind == SBP_JSON_OBJECT && field->count > 0 ? field : NULL;
}

sbp_hf_rope sbp_hf_rope_read(sbp_hf *hf, int64_t head_dim, double default_theta, int64_t max_positions) {
    const sbp_json *parameters = filled(hf, "rope_parameters"), *scaling = filled(hf, "rope_scaling");
    double theta = sbp_hf_double(hf, "rope_theta", default_theta);
    rope_config c = {.hf = hf,
                     .over = scaling ? scaling : parameters,
                     .head_dim = head_dim,
                     .max_positions = max_positions};
    return build_rope(&c, theta);
}

void sbp_hf_rope_tables(sbp_hf *hf, const sbp_hf_rope *rope, sbp_value *cos, sbp_value *sin) {
    sbp_builder *b = &hf->builder;
    sbp_dtype wide = hf->compute == SBP_F64 ? SBP_F64 : SBP_F32;
    *cos = *sin = SBP_NO_VALUE;
    if (b->status != SBP_OK)
        return;
    sbp_value position = sbp_build_cast(b, sbp_hf_row(hf, "pos"), wide);
    position = sbp_build_reshape(b, position, (int64_t[]){1}, 1); /* [T, 1] */
    sbp_value inv_freq = sbp_build_vector(b, "inv_freq", wide, rope->inv_freq, rope->n);
    sbp_value angle = sbp_build2(b, SBP_OP_mul, position, inv_freq); /* [T, D/2] */
    sbp_value *out[] = {cos, sin};
    for (int32_t i = 0; i < 2; i++) {
        sbp_value table = sbp_build1(b, i == 0 ? SBP_OP_cos : SBP_OP_sin, angle);
        if (rope->scale != 1)
            table = sbp_build2(b, SBP_OP_mul, table, sbp_build_const(b, wide, rope->scale));
        *out[i] = table;
        sbp_build_name(b, *out[i], i == 0 ? "cos" : "sin");
    }
}
