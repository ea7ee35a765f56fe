/* template_operate.c: arithmetic and slices. */
#include <math.h>
#include <string.h>

#include "frontends/formats/template/template_internal.h"

/* ---- arithmetic ------------------------------------------------------------------------------------ */

static sbp_status too_large(tpl_eval *e) {
    return sbp_tpl_fail(e, "a whole number has more than 64 bits");
}

static sbp_status by_zero(tpl_eval *e) {
    return sbp_tpl_fail(e, "a number is divided by zero");
}

static sbp_status integer_power(tpl_eval *e, int64_t base, int64_t exponent, tpl_value *out) {
    int64_t result = 1;
    if (exponent < 0) {
        if (base == 0)
            return by_zero(e);
        *out = sbp_tpl_float(pow((double)base, (double)exponent));
        return SBP_OK;
    }
    if (base == 0 || base == 1 || base == -1) {
        *out = sbp_tpl_int(exponent == 0 ? 1 : base == -1 && exponent % 2 == 0 ? 1 : base);
        return SBP_OK;
    }
    for (int64_t i = 0; i < exponent; i++) /* at most 64 times */
        if (__builtin_mul_overflow(result, base, &result))
            return too_large(e);
    *out = sbp_tpl_int(result);
    return SBP_OK;
}

static sbp_status integers(tpl_eval *e, int op, int64_t a, int64_t b, tpl_value *out) {
    int64_t result = 0;
    bool overflow = false;
    switch (op) {
    case '+':
        overflow = __builtin_add_overflow(a, b, &result);
        break;
    case '-':
        overflow = __builtin_sub_overflow(a, b, &result);
        break;
    case '*':
        overflow = __builtin_mul_overflow(a, b, &result);
        break;
    case '/':
        if (b == 0)
            return by_zero(e);
        *out = sbp_tpl_float((double)a / (double)b);
        return SBP_OK;
    case TPL_OP('*', '*'):
        return integer_power(e, a, b, out);
    default: /* towards minus infinity; the rest has the divisor's sign */
        if (b == 0)
            return by_zero(e);
        overflow = b == -1 && a == INT64_MIN && op != '%';
        if (!overflow) {
            int64_t rest = b == -1 ? 0 : a % b, quotient = b == -1 ? -a : a / b;
            bool down = rest != 0 && (rest < 0) != (b < 0);
            result = op == '%' ? rest + (down ? b : 0) : quotient - down;
        }
    }
    if (overflow)
        return too_large(e);
    *out = sbp_tpl_int(result);
    return SBP_OK;
}

static sbp_status reals(tpl_eval *e, int op, double a, double b, tpl_value *out) {
    double result;
    switch (op) {
    case '+':
        result = a + b;
        break;
    case '-':
        result = a - b;
        break;
    case '*':
        result = a * b;
        break;
    case TPL_OP('*', '*'):
        if (a == 0 && b < 0)
            return by_zero(e);
        result = pow(a, b);
        if (isnan(result) && !isnan(a) && !isnan(b))
            return sbp_tpl_fail(e, "a negative number has no root");
        if (isinf(result) && !isinf(a) && !isinf(b))
            return sbp_tpl_fail(e, "the power is too large");
        break;
    default:
        if (b == 0)
            return by_zero(e);
        result = a / b;
        if (op != '/') {
            double rest = fmod(a, b);
            if (rest != 0 && (rest < 0) != (b < 0))
                rest += b;
            else if (rest == 0)
                rest = copysign(0.0, b);
            double quotient = (a - rest) / b, down = floor(quotient);
            down = quotient - down > 0.5 ? down + 1 : down;
            result = op == '%' ? rest : quotient == 0 ? copysign(0.0, a / b) : down;
        }
    }
    *out = sbp_tpl_float(result);
    return SBP_OK;
}

/* ---- strings and lists ----------------------------------------------------------------------------- */

static sbp_status add_strings(tpl_eval *e, const tpl_value *a, const tpl_value *b, tpl_value *out) {
    tpl_text left = a->string, right = b->string;
    bool safe = a->safe || b->safe;
    sbp_text text;
    if (safe) {
        SBP_TRY(sbp_tpl_escape(e, a, &left));
        SBP_TRY(sbp_tpl_escape(e, b, &right));
    }
    sbp_text_init(&text, e->arena);
    SBP_TRY(sbp_tpl_add(e, &text, left));
    SBP_TRY(sbp_tpl_add(e, &text, right));
    return sbp_tpl_text_value(e, &text, safe, out);
}

static sbp_status add_lists(tpl_eval *e, const tpl_value *a, const tpl_value *b, tpl_value *out) {
    int64_t left = a->sequence->count, right = b->sequence->count;
    SBP_TRY(sbp_tpl_charge(e, left + right));
    *out = sbp_tpl_sequence(e, a->kind, left + right);
    for (int64_t i = 0; i < left; i++)
        out->sequence->items[i] = a->sequence->items[i];
    for (int64_t i = 0; i < right; i++)
        out->sequence->items[left + i] = b->sequence->items[i];
    return SBP_OK;
}

static sbp_status repeat(tpl_eval *e, const tpl_value *value, int64_t times, tpl_value *out) {
    times = times < 0 ? 0 : times;
    if (value->kind == TPL_STRING) {
        sbp_text text;
        int64_t bytes;
        if (!sbp_mul_i64(times, (int64_t)value->string.length, &bytes) || bytes > e->limits.output_bytes)
            return sbp_tpl_fail(e, "the text has more than %lld bytes", (long long)e->limits.output_bytes);
        sbp_text_init(&text, e->arena);
        for (int64_t i = 0; i < times && bytes > 0; i++)
            SBP_TRY(sbp_tpl_add(e, &text, value->string));
        return sbp_tpl_text_value(e, &text, value->safe, out);
    }
    int64_t count = value->sequence->count, all;
    if (!sbp_mul_i64(times, count, &all))
        return too_large(e);
    SBP_TRY(sbp_tpl_charge(e, all));
    *out = sbp_tpl_sequence(e, value->kind, all);
    for (int64_t i = 0; i < all; i++)
        out->sequence->items[i] = value->sequence->items[i % count];
    return SBP_OK;
}

static bool repeats(const tpl_value *value) {
    return value->kind == TPL_STRING || value->kind == TPL_LIST || value->kind == TPL_TUPLE;
}

sbp_status sbp_tpl_binary(tpl_eval *e, int op, const tpl_value *a, const tpl_value *b, tpl_value *out) {
    int64_t i, j;
    double x, y;
    if (sbp_tpl_integer(a, &i) && sbp_tpl_integer(b, &j))
        return integers(e, op, i, j, out);
    if (sbp_tpl_number(a, &x) && sbp_tpl_number(b, &y))
        return reals(e, op, x, y, out);
    if (a->kind == TPL_UNDEFINED || (b->kind == TPL_UNDEFINED && !(a->kind == TPL_STRING && op == '%')))
        return sbp_tpl_fail(e, "%s", a->kind == TPL_UNDEFINED ? a->undefined : b->undefined);
    if (op == '+' && a->kind == TPL_STRING && b->kind == TPL_STRING)
        return add_strings(e, a, b, out);
    if (op == '+' && a->kind == b->kind && (a->kind == TPL_LIST || a->kind == TPL_TUPLE))
        return add_lists(e, a, b, out);
    if (op == '*' && repeats(a) && sbp_tpl_integer(b, &j))
        return repeat(e, a, j, out);
    if (op == '*' && repeats(b) && sbp_tpl_integer(a, &i))
        return repeat(e, b, i, out);
    if (op == '%' && a->kind == TPL_STRING)
        return sbp_tpl_percent(e, a, b, out);
    char text[3] = {(char)(op & 0xff), (char)(op >> 8), '\0'};
    return sbp_tpl_fail(e, "%s %s %s is not possible", sbp_tpl_type(a), text, sbp_tpl_type(b));
}

/* ---- slices ---------------------------------------------------------------------------------------- */

/* One bound as slice.indices has it: given or not, clamped. */
static int64_t bound(const tpl_value *value, int64_t count, int64_t least, int64_t most, int64_t otherwise) {
    int64_t given;
    if (!sbp_tpl_integer(value, &given))
        return otherwise;
    given += given < 0 ? count : 0;
    return given < least ? least : given > most ? most : given;
}

static sbp_status slice_text(tpl_eval *e, const tpl_value *of, int64_t start, int64_t step, int64_t count,
                             tpl_value *out) {
    tpl_text all = of->string;
    SBP_TRY(sbp_tpl_charge_text(e, all.length));
    if (step == 1 || count == 0) {
        size_t from = sbp_tpl_offset(all, start);
        tpl_text rest = {all.data + from, all.length - from};
        *out = sbp_tpl_string(rest.data, count ? sbp_tpl_offset(rest, count) : 0);
        out->safe = of->safe;
        return SBP_OK;
    }
    tpl_value *chars;
    int64_t char_count;
    sbp_text text;
    SBP_TRY(sbp_tpl_iterate(e, of, &chars, &char_count));
    sbp_text_init(&text, e->arena);
    for (int64_t i = 0; i < count; i++)
        SBP_TRY(sbp_tpl_add(e, &text, chars[start + i * step].string));
    return sbp_tpl_text_value(e, &text, of->safe, out);
}

sbp_status sbp_tpl_slice(tpl_eval *e, const tpl_value *of, const tpl_value bounds[3], tpl_value *out) {
    int64_t all, start, stop, step = 1;
    if (of->kind == TPL_UNDEFINED)
        return sbp_tpl_fail(e, "%s", of->undefined);
    bool whole = true;
    for (int i = 0; i < 3; i++)
        whole &=
            bounds[i].kind == TPL_MISSING || bounds[i].kind == TPL_NONE || sbp_tpl_integer(&bounds[i], &step);
    step = 1;
    if (!whole || !(of->kind == TPL_STRING || (of->kind >= TPL_LIST && of->kind <= TPL_RANGE))) {
        *out = sbp_tpl_undefined(e, "a %s has no such slice", sbp_tpl_type(of));
        return SBP_OK;
    }
    SBP_TRY(sbp_tpl_length(e, of, &all));
    (void)sbp_tpl_integer(&bounds[2], &step);
    step = step < -all - 1 ? -all - 1 : step > all + 1 ? all + 1 : step;
    if (step == 0)
        return sbp_tpl_fail(e, "the step of a slice must not be 0");
    bool down = step < 0;
    int64_t least = down ? -1 : 0, most = down ? all - 1 : all;
    start = bound(&bounds[0], all, least, most, down ? most : least);
    stop = bound(&bounds[1], all, least, most, down ? least : most);
    int64_t distance = down ? start - stop : stop - start, stride = down ? -step : step;
    int64_t count = distance > 0 ? (distance - 1) / stride + 1 : 0;
    if (of->kind == TPL_STRING)
        return slice_text(e, of, start, step, count, out);
    SBP_TRY(sbp_tpl_charge(e, count));
    *out = sbp_tpl_sequence(e, of->kind, count);
    for (int64_t i = 0; i < count; i++)
        out->sequence->items[i] = of->sequence->items[start + i * step];
    if (of->kind == TPL_RANGE) {
        out->sequence->start = of->sequence->start + start * of->sequence->step;
        out->sequence->stop = of->sequence->start + stop * of->sequence->step;
        out->sequence->step = of->sequence->step * step;
    }
    return SBP_OK;
}
