/* values.c: the values of a row kernel as text, and where they stay. */
#include "backends/gpu/emit/emitter.h"

#include <stdio.h>
#include <string.h>

enum { KEPT_WORDS = 48 }; /* registers of 4 bytes that a row may take */

/* ---- texts ------------------------------------------------------------------------------------------ */

/* Per function of rowops.def, %1$s .. being the operands; NULL: rowmath.h has it under its own name. */
static const char *const map_texts[SBP_ROWOP_COUNT] = {
    [SBP_ROWOP_neg] = "-%1$s",
    [SBP_ROWOP_add] = "%1$s + %2$s",
    [SBP_ROWOP_sub] = "%1$s - %2$s",
    [SBP_ROWOP_mul] = "%1$s * %2$s",
    [SBP_ROWOP_div] = "%1$s / %2$s",
    [SBP_ROWOP_max] = "larger(%1$s, %2$s)",
    [SBP_ROWOP_min] = "smaller(%1$s, %2$s)",
    [SBP_ROWOP_eq] = "%1$s == %2$s ? REAL(1.0) : REAL(0.0)",
    [SBP_ROWOP_lt] = "%1$s < %2$s ? REAL(1.0) : REAL(0.0)",
    [SBP_ROWOP_le] = "%1$s <= %2$s ? REAL(1.0) : REAL(0.0)",
    [SBP_ROWOP_and] = "%1$s != REAL(0.0) && %2$s != REAL(0.0) ? REAL(1.0) : REAL(0.0)",
    [SBP_ROWOP_or] = "%1$s != REAL(0.0) || %2$s != REAL(0.0) ? REAL(1.0) : REAL(0.0)",
    [SBP_ROWOP_not] = "%1$s == REAL(0.0) ? REAL(1.0) : REAL(0.0)",
    [SBP_ROWOP_select] = "%1$s != REAL(0.0) ? %2$s : %3$s",
};

/* A template with the names of values in place of 1$, 2$, 3$. */
static void expand(char *out, size_t size, const char *text, const sbp_rk_instr *instr) {
    const int32_t values[3] = {instr->a, instr->b, instr->c};
    size_t at = 0;
    for (const char *p = text; *p && at + 12 < size; p++) {
        if (p[0] == '%' && p[1] >= '1' && p[1] <= '3') {
            at += (size_t)snprintf(out + at, size - at, "v%d", values[p[1] - '1']);
            p += 3;
        } else {
            out[at++] = *p;
        }
    }
    out[at] = 0;
}

/* A number by its bits, so that none is lost. */
static void number(const emitter *e, char *out, size_t size, double value) {
    if (e->kernel->compute == SBP_F64) {
        uint64_t bits;
        memcpy(&bits, &value, sizeof bits);
        snprintf(out, size, "SBP_FROM_HIGH_LOW(0x%xu, 0x%xu)", (unsigned)(bits >> 32), (unsigned)bits);
    } else {
        float narrow = (float)value;
        uint32_t bits;
        memcpy(&bits, &narrow, sizeof bits);
        snprintf(out, size, "SBP_FROM_BITS(0x%xu)", (unsigned)bits);
    }
}

static void round_text(const emitter *e, char *out, size_t size, const sbp_rk_instr *instr) {
    switch (instr->dtype) {
    case SBP_BF16:
        snprintf(out, size, "REAL(f32_from_bf16(bf16_from(v%d)))", instr->a);
        break;
    case SBP_F16:
        snprintf(out, size, "REAL(f32_from_f16(f16_from(v%d)))", instr->a);
        break;
    case SBP_F32:
        snprintf(out, size, e->kernel->compute == SBP_F64 ? "REAL(float(v%d))" : "v%d", instr->a);
        break;
    case SBP_I8:
        snprintf(out, size, "REAL(clamp(to_i32(v%d), -128, 127))", instr->a);
        break;
    case SBP_I16:
        snprintf(out, size, "REAL(clamp(to_i32(v%d), -32768, 32767))", instr->a);
        break;
    case SBP_I32:
        snprintf(out, size, "REAL(to_i32(v%d))", instr->a);
        break;
    case SBP_D8:
    case SBP_UD8:
        snprintf(out, size, "from_%1$s(to_%1$s(v%2$d))", sbp_dtype_name(instr->dtype), instr->a);
        break;
    default:
        snprintf(out, size, "v%d", instr->a);
    }
}

/* The number of the element at hand along n, and among those of this thread. */
static const char *element_number(const emitter *e) {
    return e->width > 1 ? "j + q" : "j";
}

static const char *own_number(const emitter *e) {
    return e->width > 1 ? "i * WIDTH + q" : "i";
}

void emit_element(const emitter *e, char *out, size_t size, const sbp_rk_instr *instr) {
    const sbp_rk_operand *o = &e->kernel->operands[instr->index];
    int at = snprintf(out, size, "p%d, %lld", instr->index, (long long)instr->offset);
    if ((instr->vary & SBP_VARY_HEAD) && e->kernel->heads > 1)
        at += snprintf(out + at, size - (size_t)at, " + h * %lld", (long long)o->head_stride);
    if (instr->vary & SBP_VARY_ELEM)
        snprintf(out + at, size - (size_t)at, " + j");
}

static void load_text(const emitter *e, char *out, size_t size, int32_t k) {
    const sbp_rk_instr *instr = &e->kernel->instrs[k];
    const char *type = sbp_dtype_name(e->kernel->operands[instr->index].dtype);
    char element[128];
    if ((instr->vary & SBP_VARY_ELEM) && e->width > 1) {
        snprintf(out, size, "from_%s(a%d%s.bits(q))", type, k, e->loads_kept[k] ? "[i]" : "");
        return;
    }
    emit_element(e, element, sizeof element, instr);
    snprintf(out, size, "load_%s(%s)", type, element);
}

static void random_text(const emitter *e, char *out, size_t size, const sbp_rk_instr *instr) {
    char stream[32], row[64] = "uint(args.row0) + uint(row)", head[32];
    snprintf(stream, sizeof stream, instr->a < 0 ? "REAL(0.0)" : "v%d", instr->a);
    snprintf(head, sizeof head, instr->vary & SBP_VARY_HEAD ? "uint(h)" : "0u");
    if (instr->b >= 0) {
        snprintf(row, sizeof row, "random_word(v%d)", instr->b);
        snprintf(head, sizeof head, "random_word(v%d)", instr->c);
    }
    snprintf(out, size, "random(args.keys[%d], args.keys[%d], %s, %s, %s, %lld + %s)", 2 * instr->index,
             2 * instr->index + 1, stream, row, head, (long long)instr->offset,
             instr->vary & SBP_VARY_ELEM ? element_number(e) : "0");
}

/* Where the result of reduction k is found. */
static void reduction_text(const emitter *e, char *out, size_t size, int32_t k) {
    const sbp_rk_instr *instr = &e->kernel->instrs[k];
    bool per_head = (instr->vary & SBP_VARY_HEAD) && !e->units;
    if (instr->vary & SBP_VARY_ELEM)
        snprintf(out, size, "r%d[%s]", k, own_number(e));
    else
        snprintf(out, size, "r%d%s", k, per_head ? "[h]" : "");
}

static void map_text(const emitter *e, char *out, size_t size, const sbp_rk_instr *instr) {
    if (map_texts[instr->map])
        expand(out, size, map_texts[instr->map], instr);
    else
        snprintf(out, size, instr->b < 0 ? "sbp_%s_%s(v%d)" : "sbp_%s_%s(v%d, v%d)",
                 sbp_rowop_name(instr->map), sbp_dtype_name(e->kernel->compute), instr->a, instr->b);
}

/* A value that is proved to be whole, as an int; n<k> is that of a function of integers. */
static void whole_text(const emitter *e, char *out, size_t size, int32_t k) {
    snprintf(out, size, e->kernel->instrs[k].op == SBP_RK_INTEGER ? "n%d" : "int(v%d)", k);
}

static void integer_text(const emitter *e, char *out, size_t size, const sbp_rk_instr *instr) {
    char x[32], p[32];
    whole_text(e, x, sizeof x, instr->a);
    if (instr->b >= 0)
        whole_text(e, p, sizeof p, instr->b);
    else
        snprintf(p, sizeof p, "%d", instr->constants[0]);
    snprintf(out, size, "integer_%s(%s, %s, %d)", sbp_intop_name(instr->integer), x, p, instr->constants[1]);
}

static void lookup_text(const emitter *e, char *out, size_t size, const sbp_rk_instr *instr) {
    char place[32];
    whole_text(e, place, sizeof place, instr->a);
    snprintf(out, size, "table_%d[%s]", instr->index, place);
}

static void value_text(const emitter *e, char *out, size_t size, int32_t k) {
    const sbp_rk_instr *instr = &e->kernel->instrs[k];
    switch (instr->op) {
    case SBP_RK_LOAD:
        load_text(e, out, size, k);
        break;
    case SBP_RK_CONST:
        number(e, out, size, instr->imm);
        break;
    case SBP_RK_SCALAR:
        snprintf(out, size, "ARG_NUMBER(%d)", instr->index);
        break;
    case SBP_RK_INDEX:
        snprintf(out, size, "REAL(%lld + %s)", (long long)instr->offset,
                 instr->vary & SBP_VARY_ELEM ? element_number(e) : "0");
        break;
    case SBP_RK_RANDOM:
        random_text(e, out, size, instr);
        break;
    case SBP_RK_MAP:
        map_text(e, out, size, instr);
        break;
    case SBP_RK_INTEGER:
        snprintf(out, size, "REAL(n%d)", k);
        break;
    case SBP_RK_LOOKUP:
        lookup_text(e, out, size, instr);
        break;
    case SBP_RK_ROUND:
        round_text(e, out, size, instr);
        break;
    default:
        reduction_text(e, out, size, k);
    }
}

/* ---- values ----------------------------------------------------------------------------------------- */

/* Whether it takes a processor long enough to keep what came out for the next loop. */
static bool is_function(const sbp_rk_instr *instr) {
    if (instr->op == SBP_RK_RANDOM)
        return true;
    return instr->op == SBP_RK_MAP && sbp_rowop_cost(instr->map) > 1;
}

/* Takes down that the loop at hand needs the value. */
static void count_loop(emitter *e, int32_t k) {
    if (e->alone || e->last_loop[k] == e->loop)
        return;
    e->last_loop[k] = e->loop;
    e->loops_of[k]++;
    if (e->first_loop[k] == 0)
        e->first_loop[k] = e->loop;
}

void emit_value(emitter *e, int32_t k) {
    const sbp_rk_instr *instr = &e->kernel->instrs[k];
    if (e->declared[k])
        return;
    e->declared[k] = e->indent;
    count_loop(e, k);
    bool kept = e->values_kept[k] && !e->alone;
    if (kept && e->first_loop[k] != e->loop) {
        emit_line(e, "REAL v%d = k%d[%s];", k, k, own_number(e));
        return;
    }
    const int32_t values[3] = {instr->a, instr->b, instr->c};
    for (int i = 0; i < 3 && !sbp_rk_is_reduction(instr); i++)
        if (values[i] >= 0)
            emit_value(e, values[i]);
    char text[512];
    if (instr->op == SBP_RK_INTEGER) {
        integer_text(e, text, sizeof text, instr);
        emit_line(e, "int n%d = %s;", k, text);
    }
    value_text(e, text, sizeof text, k);
    emit_line(e, "REAL v%d = %s;", k, text);
    if (kept)
        emit_line(e, "k%d[%s] = v%d;", k, own_number(e), k);
}

/* Declares what v<k> needs of values that vary with no more than these axes (HEAD, or none). */
static void declare_hoisted(emitter *e, int32_t k, uint8_t axes) {
    const sbp_rk_instr *instr = &e->kernel->instrs[k];
    if (!(instr->vary & INNER & ~axes)) {
        emit_value(e, k);
        return;
    }
    const int32_t values[3] = {instr->a, instr->b, instr->c};
    for (int i = 0; i < 3 && !sbp_rk_is_reduction(instr); i++)
        if (values[i] >= 0)
            declare_hoisted(e, values[i], axes);
}

/* ---- several elements at once ----------------------------------------------------------------------- */

static void declare_elements(emitter *e, int32_t k, const char *array) {
    sbp_dtype dtype = e->kernel->operands[e->kernel->instrs[k].index].dtype;
    emit_line(e, "Elements<WIDTH, %d> a%d%s;", (int)sbp_dtype_bytes(dtype), k, array);
}

static void fetch_elements(emitter *e, int32_t k, const char *index) {
    char element[128];
    emit_element(e, element, sizeof element, &e->kernel->instrs[k]);
    emit_line(e, "a%d%s.load(%s);", k, index, element);
}

static void load_from(emitter *e, int32_t k, bool *seen) {
    const sbp_rk_instr *instr = &e->kernel->instrs[k];
    if (seen[k] || !(instr->vary & SBP_VARY_ELEM) || sbp_rk_is_reduction(instr))
        return;
    seen[k] = true;
    if (!e->alone && e->values_kept[k] && e->first_loop[k] != 0 && e->first_loop[k] != e->loop)
        return;
    if (instr->op == SBP_RK_LOAD && !e->loads_kept[k]) {
        declare_elements(e, k, "");
        fetch_elements(e, k, "");
    }
    const int32_t values[3] = {instr->a, instr->b, instr->c};
    for (int i = 0; i < 3; i++)
        if (values[i] >= 0)
            load_from(e, values[i], seen);
}

void emit_loads(emitter *e, const int32_t *values, int32_t count) {
    bool seen[MOST] = {false};
    for (int32_t i = 0; i < count && e->width > 1; i++)
        load_from(e, values[i], seen);
}

/* Opens a loop over elements for values that the heads at hand (axes) and no element need, and what is
 * loaded. */
void emit_open_elements(emitter *e, int64_t length, const int32_t *values, int32_t count, uint8_t axes) {
    e->loop++;
    for (int32_t i = 0; i < count; i++)
        declare_hoisted(e, values[i], axes);
    emit_begin_elements(e, length);
    emit_loads(e, values, count);
}

/* ---- what is kept ----------------------------------------------------------------------------------- */

void emit_kept(emitter *e) {
    const sbp_rowkernel *kernel = e->kernel;
    for (int32_t k = 0; k < kernel->instr_count; k++) {
        int64_t length = kernel->instrs[k].length;
        char array[32];
        if (e->values_kept[k])
            emit_line(e, "REAL k%d[%lld];", k, (long long)(emit_turns(e, length) * e->width));
        if (!e->loads_kept[k])
            continue;
        snprintf(array, sizeof array, "[%lld]", (long long)emit_turns(e, length));
        declare_elements(e, k, array);
    }
    for (int32_t k = 0; k < kernel->instr_count; k++) {
        if (!e->loads_kept[k])
            continue;
        emit_begin_elements(e, kernel->instrs[k].length);
        fetch_elements(e, k, "[i]");
        emit_end_elements(e);
    }
}

void emit_choose_kept(emitter *e) {
    const sbp_rowkernel *kernel = e->kernel;
    int64_t all = 0, again = 0, values = 0;
    for (int32_t k = 0; k < kernel->instr_count; k++) {
        const sbp_rk_instr *instr = &kernel->instrs[k];
        if (!(instr->vary & SBP_VARY_ELEM) || e->loops_of[k] == 0)
            continue;
        int64_t elements = emit_turns(e, instr->length) * e->width;
        if (instr->op == SBP_RK_LOAD) {
            int64_t words = sbp_ceil_div(elements * sbp_dtype_bytes(kernel->operands[instr->index].dtype), 4);
            all += words;
            again += e->loops_of[k] > 1 ? words : 0;
        } else if (is_function(instr) && e->loops_of[k] > 1) {
            values += elements * sbp_dtype_bytes(kernel->compute) / 4;
        }
    }
    int64_t room = e->shape->threads > 512 ? KEPT_WORDS / 2 : KEPT_WORDS;
    bool keeps_all = all + values <= room, keeps_again = again + values <= room;
    e->kept = keeps_all || keeps_again;
    for (int32_t k = 0; k < kernel->instr_count && e->kept; k++) {
        const sbp_rk_instr *instr = &kernel->instrs[k];
        if (!(instr->vary & SBP_VARY_ELEM) || e->loops_of[k] == 0)
            continue;
        e->loads_kept[k] = instr->op == SBP_RK_LOAD && (keeps_all || e->loops_of[k] > 1);
        e->values_kept[k] = is_function(instr) && e->loops_of[k] > 1;
    }
}
