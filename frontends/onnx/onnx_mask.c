/* onnx_mask.c: what a mask lets a query see. Its expression must depend on nothing but the distance from the
 * key to the query; then it changes at a few distances only, and one look between any two of them tells all.
 */
#include "frontends/onnx/onnx.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_BORDERS = 64, SMALL_T = 7 };

#define HIDDEN (-1e4) /* added to a score: hides it */
#define FAR 0x1p40    /* beyond any window */

typedef struct mask {
    sbp_onnx *o;
    const sbp_onnx_value *v;
    const sbp_number *element; /* by AXIS 0, the query, and AXIS 1, the key */
    bool truth;
    double borders[MOST_BORDERS]; /* distances at which something changes */
    int32_t count;
} mask;

static sbp_status refuse(const mask *m, const char *what) {
    sbp_text text;
    sbp_text_init(&text, m->o->arena);
    sbp_number_print(&text, m->element);
    return sbp_onnx_fail(m->o, "the mask '%s' %s; i0 being the query and i1 the key it is %.300s", m->v->name,
                         what, text.data);
}

/* Distances at which conditions within the expression change. */
static sbp_status collect(mask *m, const sbp_number *a) {
    const sbp_number *parts[] = {a->a, a->b, a->c};
    double q = 0, k = 0, constant = 0;
    for (int32_t i = 0; a->kind == SBP_NUMBER_LINEAR && i < a->count; i++)
        SBP_TRY(collect(m, a->terms[i].value));
    if (a->kind == SBP_NUMBER_AXIS || a->kind == SBP_NUMBER_TOKENS || a->kind == SBP_NUMBER_TABLE ||
        a->kind == SBP_NUMBER_FLOOR || a->kind == SBP_NUMBER_QUOTIENT || a->kind == SBP_NUMBER_POWER ||
        a->kind == SBP_NUMBER_FUNCTION)
        return refuse(m, "is more than a comparison of positions");
    if (a->kind != SBP_NUMBER_POSITIVE && a->kind != SBP_NUMBER_ZERO) {
        for (int i = 0; i < SBP_COUNT(parts); i++)
            if (parts[i])
                SBP_TRY(collect(m, parts[i]));
        return SBP_OK;
    }
    bool linear = a->a->kind == SBP_NUMBER_LINEAR;
    for (int32_t i = 0; linear && i < a->a->count; i++) {
        const sbp_number_term *t = &a->a->terms[i];
        linear = t->value->kind == SBP_NUMBER_AXIS;
        *(t->value->axis == 0 ? &q : &k) += t->factor;
    }
    constant = a->a->constant;
    if (!linear || q != -k || q == 0)
        return refuse(m, "depends on more than the distance from key to query");
    if (m->count == MOST_BORDERS)
        return refuse(m, "has too many conditions");
    m->borders[m->count++] = -constant / q;
    return SBP_OK;
}

/* Whether a query sees the key at this place. */
static sbp_status sees(const mask *m, double q, double k, double tokens, bool *out) {
    const double at[2] = {q, k};
    double value = sbp_number_value(m->element, at, tokens);
    *out = m->truth ? value != 0 : value == 0;
    if (m->truth || value == 0 || value <= HIDDEN)
        return SBP_OK;
    return refuse(m, "adds numbers other than 0 and minus infinity");
}

static sbp_status sees_at(const mask *m, double distance, bool *out) {
    return sees(m, distance > 0 ? distance : 0, distance > 0 ? 0 : -distance, FAR, out);
}

static int compare(const void *a, const void *b) {
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* The window, from what is seen at and between all borders. */
static sbp_status find_window(mask *m, int64_t *window) {
    double at[3 * MOST_BORDERS + 4], first_hidden = 0;
    int32_t count = 0;
    bool seen;
    for (int32_t i = 0; i < m->count; i++)
        for (int step = -1; step <= 1; step++)
            at[count++] = floor(m->borders[i]) + step;
    at[count++] = -FAR;
    at[count++] = -1;
    at[count++] = 0;
    at[count++] = FAR;
    qsort(at, (size_t)count, sizeof *at, compare);
    for (int32_t i = 0; i < count; i++) {
        SBP_TRY(sees_at(m, at[i], &seen));
        if (at[i] < 0 && seen)
            return refuse(m, "shows a token what comes after it");
        if (at[i] == 0 && !seen)
            return refuse(m, "hides a token from itself");
        if (at[i] > 0 && !seen && first_hidden == 0)
            first_hidden = at[i];
        if (at[i] > 0 && seen && first_hidden > 0)
            return refuse(m, "hides what lies between a token and others that it sees");
    }
    *window = (int64_t)first_hidden;
    return SBP_OK;
}

/* The same from the numbers themselves. */
static sbp_status check(const mask *m, int64_t window) {
    for (int tokens = 1; tokens <= SMALL_T; tokens++)
        for (int q = 0; q < tokens; q++)
            for (int k = 0; k < tokens; k++) {
                bool seen, expected = k <= q && (window == 0 || q - k < window);
                SBP_TRY(sees(m, q, k, tokens, &seen));
                if (seen != expected)
                    return refuse(m, "is not what its conditions say");
            }
    return SBP_OK;
}

/* causal: what comes after a token is hidden from it anyway. */
static sbp_status mask_window(sbp_onnx *o, const sbp_onnx_value *v, bool causal, int64_t *window) {
    sbp_number_tensor t;
    mask m = {.o = o, .v = v, .truth = v->type == SBP_ONNX_BOOL};
    const sbp_number *with[SBP_NUMBERS_RANK] = {NULL};
    if (v->kind != SBP_ONNX_CONSTANT && v->kind != SBP_ONNX_NUMBERS)
        return sbp_onnx_fail(o, "the mask '%s' is computed from activations or parameters", v->name);
    sbp_onnx_tensor_of(o, v, &t);
    for (int32_t d = 0; d < t.rank; d++) {
        bool one = sbp_number_equals(t.size[d], 1), last = d >= t.rank - 2;
        if (!one && !(last && t.size[d]->kind == SBP_NUMBER_TOKENS))
            return sbp_onnx_fail(o,
                                 "the mask '%s' is %s; [.., T, T] is expected, the same for all heads (ALiBi "
                                 "is not supported)",
                                 v->name, sbp_onnx_shape_text(o, v));
        with[d] = sbp_number_constant(&o->numbers, 0);
        if (!one)
            with[d] = sbp_number_axis(&o->numbers, d == t.rank - 1 ? 1 : 0);
    }
    sbp_number_tensor square = {.rank = 2};
    square.size[0] = square.size[1] = sbp_number_tokens(&o->numbers);
    m.element = sbp_number_substitute(&o->numbers, t.element, with, t.rank);
    if (causal) {
        const sbp_number *after =
            sbp_number_less(&o->numbers, sbp_number_axis(&o->numbers, 0), sbp_number_axis(&o->numbers, 1));
        const sbp_number *hidden = sbp_number_constant(&o->numbers, m.truth ? 0 : -INFINITY);
        m.element = sbp_number_choose(&o->numbers, after, hidden, m.element);
    }
    m.element = sbp_number_refine(&o->numbers, &square, m.element);
    SBP_TRY(collect(&m, m.element));
    SBP_TRY(find_window(&m, window));
    return check(&m, *window);
}

sbp_status sbp_onnx_mask_window(sbp_onnx *o, const sbp_onnx_value *v, int64_t *window) {
    return mask_window(o, v, false, window);
}

sbp_status sbp_onnx_causal_mask_window(sbp_onnx *o, const sbp_onnx_value *v, int64_t *window) {
    return mask_window(o, v, true, window);
}
