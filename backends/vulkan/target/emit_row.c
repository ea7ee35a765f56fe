/* emit_row.c: a row kernel (ir/rowkernel.h) as GLSL.
 *
 * What an invocation does follows from the mode (abi.h, sbp_gpu_row_mode):
 *
 *   flat    one (row, head, element): loads, then stores
 *   heads   a workgroup per (row, head): in passes, each a loop over the elements, j = lane, lane + LOCAL, ..
 *   rows    a workgroup per row, loops over the heads inside
 *   blocks  a workgroup per SBP_PARTIAL_ROWS rows, one after the other; partials are added to in place,
 * always by the same invocation
 *
 * Pass p runs the reductions whose values have level p, then the stores and partials of level p. Values are
 * computed again in each loop that needs them. Results of reductions live in registers (r<k>), per head in
 * shared memory (r<k>[h]), and those over heads alone, one per element, in the registers of the invocation
 * that owns the element (r<k>[i], i counting its elements).
 *
 * In the text, v<k> is the value of instruction k, h the head, j the element, i the number of the element
 * among those of this invocation. */
#include "backends/vulkan/target/shaders.h"

#include "backends/gpu/row.h"
#include "ir/dynamic.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct emitter {
    sbp_text *out;
    const sbp_rowkernel *kernel;
    sbp_gpu_row_mode mode;
    int32_t levels[SBP_ROWKERNEL_MAX_INSTRS];
    bool done[SBP_ROWKERNEL_MAX_INSTRS]; /* v<k> exists in the scope at hand */
    int indent;
} emitter;

static const uint8_t INNER = SBP_VARY_HEAD | SBP_VARY_ELEM;

static void line(emitter *e, const char *format, ...) SBP_PRINTF(2, 3);

static void line(emitter *e, const char *format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    sbp_text_add(e->out, "%*s%s\n", 4 * e->indent, "", text);
}

static void open_scope(emitter *e) {
    e->indent++;
    memset(e->done, 0, sizeof e->done);
}

static void close_scope(emitter *e) {
    e->indent--;
    line(e, "}");
    memset(e->done, 0, sizeof e->done);
}

static bool is_reduction(const sbp_rk_instr *instr) {
    return instr->op == SBP_RK_SUM || instr->op == SBP_RK_MAX || instr->op == SBP_RK_MIN;
}

/* ---- values --------------------------------------------------------------------------------------- */

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
        snprintf(out, size, "packDouble2x32(uvec2(0x%xu, 0x%xu))", (unsigned)bits, (unsigned)(bits >> 32));
    } else {
        float narrow = (float)value;
        uint32_t bits;
        memcpy(&bits, &narrow, sizeof bits);
        snprintf(out, size, "uintBitsToFloat(0x%xu)", (unsigned)bits);
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

/* Where the result of reduction k is found. */
static void reduction_text(const emitter *e, char *out, size_t size, int32_t k) {
    const sbp_rk_instr *instr = &e->kernel->instrs[k];
    bool per_head = (instr->vary & SBP_VARY_HEAD) && e->mode != SBP_GPU_ROW_HEADS;
    snprintf(out, size, "r%d%s", k, instr->vary & SBP_VARY_ELEM ? "[i]" : per_head ? "[h]" : "");
}

/* The element of an operand that a load or store means: "p<operand>, column". */
static void element_text(const emitter *e, char *out, size_t size, const sbp_rk_instr *instr) {
    const sbp_rk_operand *o = &e->kernel->operands[instr->index];
    int at = snprintf(out, size, "p%d, %lld", instr->index, (long long)instr->offset);
    if ((instr->vary & SBP_VARY_HEAD) && e->kernel->heads > 1)
        at += snprintf(out + at, size - (size_t)at, " + h * %lld", (long long)o->head_stride);
    if (instr->vary & SBP_VARY_ELEM)
        snprintf(out + at, size - (size_t)at, " + j");
}

/* Declares v<k> and what it needs, unless the scope has it. */
static void value(emitter *e, int32_t k) {
    const sbp_rk_instr *instr = &e->kernel->instrs[k];
    if (e->done[k])
        return;
    e->done[k] = true;
    char text[512] = "", element[128];
    if (is_reduction(instr)) {
        reduction_text(e, text, sizeof text, k);
        line(e, "REAL v%d = %s;", k, text);
        return;
    }
    if (instr->a >= 0)
        value(e, instr->a);
    if (instr->b >= 0)
        value(e, instr->b);
    if (instr->c >= 0)
        value(e, instr->c);
    const char *type = sbp_dtype_name(e->kernel->compute);
    switch (instr->op) {
    case SBP_RK_LOAD:
        element_text(e, element, sizeof element, instr);
        snprintf(text, sizeof text, "load_%s(%s)", sbp_dtype_name(e->kernel->operands[instr->index].dtype),
                 element);
        break;
    case SBP_RK_CONST:
        number(e, text, sizeof text, instr->imm);
        break;
    case SBP_RK_SCALAR:
        snprintf(text, sizeof text, "ARG_NUMBER(%d)", instr->index);
        break;
    case SBP_RK_INDEX:
        snprintf(text, sizeof text, "REAL(%lld + %s)", (long long)instr->offset,
                 instr->vary & SBP_VARY_ELEM ? "j" : "0");
        break;
    case SBP_RK_RANDOM:
        snprintf(element, sizeof element, instr->a < 0 ? "REAL(0.0)" : "v%d", instr->a);
        snprintf(text, sizeof text, "random(%d, %s, row, %s, %lld + %s)", instr->index, element,
                 instr->vary & SBP_VARY_HEAD ? "h" : "0", (long long)instr->offset,
                 instr->vary & SBP_VARY_ELEM ? "j" : "0");
        break;
    case SBP_RK_MAP:
        if (map_texts[instr->map])
            expand(text, sizeof text, map_texts[instr->map], instr);
        else
            snprintf(text, sizeof text, instr->b < 0 ? "sbp_%s_%s(v%d)" : "sbp_%s_%s(v%d, v%d)",
                     sbp_rowop_name(instr->map), type, instr->a, instr->b);
        break;
    case SBP_RK_ROUND:
        round_text(e, text, sizeof text, instr);
        break;
    default:
        break;
    }
    line(e, "REAL v%d = %s;", k, text);
}

/* ---- loops ---------------------------------------------------------------------------------------- */

/* Opens a loop over the heads where this mode has one; else nothing is opened. */
static bool open_heads(emitter *e, bool wanted) {
    if (!wanted || e->mode == SBP_GPU_ROW_HEADS)
        return false;
    line(e, "for (int h = 0; h < HEADS; h++) {");
    open_scope(e);
    return true;
}

static void open_elems(emitter *e, int64_t length) {
    line(e, "for (int j = int(LANE), i = 0; j < %lld; j += int(LOCAL), i++) {", (long long)length);
    open_scope(e);
}

static const char *start_of(const emitter *e, sbp_rk_op op) {
    bool wide = e->kernel->compute == SBP_F64;
    if (op == SBP_RK_SUM)
        return "REAL(0.0)";
    if (op == SBP_RK_MAX)
        return wide ? "packDouble2x32(uvec2(0u, 0xfff00000u))" : "uintBitsToFloat(0xff800000u)";
    return wide ? "packDouble2x32(uvec2(0u, 0x7ff00000u))" : "uintBitsToFloat(0x7f800000u)";
}

static void accumulate(emitter *e, int32_t k) {
    const sbp_rk_instr *instr = &e->kernel->instrs[k];
    value(e, instr->a);
    if (instr->op == SBP_RK_SUM)
        line(e, "t%d += v%d;", k, instr->a);
    else
        line(e, "t%d = %s(v%d, t%d);", k, instr->op == SBP_RK_MAX ? "larger" : "smaller", instr->a, k);
}

static const char *group_of(sbp_rk_op op) {
    return op == SBP_RK_SUM ? "group_sum" : op == SBP_RK_MAX ? "group_max" : "group_min";
}

/* Reductions that run in the same loops as reduction k. */
static bool same_loops(const emitter *e, int32_t k, int32_t other) {
    const sbp_rk_instr *a = &e->kernel->instrs[k], *b = &e->kernel->instrs[other];
    const sbp_rk_instr *va = &e->kernel->instrs[a->a], *vb = &e->kernel->instrs[b->a];
    return is_reduction(b) && e->levels[k] == e->levels[other] && a->axes == b->axes &&
           (va->vary & INNER) == (vb->vary & INNER) && va->length == vb->length;
}

/* Over heads alone: each invocation for its own elements. */
static void reduce_heads(emitter *e, const int32_t *group, int32_t count) {
    const sbp_rk_instr *a = &e->kernel->instrs[e->kernel->instrs[group[0]].a];
    bool elems = a->vary & SBP_VARY_ELEM;
    if (elems)
        open_elems(e, a->length);
    for (int32_t g = 0; g < count; g++)
        line(e, "REAL t%d = %s;", group[g], start_of(e, e->kernel->instrs[group[g]].op));
    bool heads = open_heads(e, true);
    for (int32_t g = 0; g < count; g++)
        accumulate(e, group[g]);
    if (heads)
        close_scope(e);
    for (int32_t g = 0; g < count; g++)
        line(e, "r%d%s = t%d;", group[g], elems ? "[i]" : "", group[g]);
    if (elems)
        close_scope(e);
}

/* Over elements, maybe over heads too: partial results per invocation, then over the workgroup. */
static void reduce_elems(emitter *e, const int32_t *group, int32_t count) {
    const sbp_rk_instr *first = &e->kernel->instrs[group[0]], *a = &e->kernel->instrs[first->a];
    bool over_heads = first->axes & SBP_VARY_HEAD;
    bool per_head = !over_heads && open_heads(e, (a->vary & SBP_VARY_HEAD) != 0);
    for (int32_t g = 0; g < count; g++)
        line(e, "REAL t%d = %s;", group[g], start_of(e, e->kernel->instrs[group[g]].op));
    bool inner = over_heads && open_heads(e, true);
    open_elems(e, a->length);
    for (int32_t g = 0; g < count; g++)
        accumulate(e, group[g]);
    close_scope(e);
    if (inner)
        close_scope(e);
    for (int32_t g = 0; g < count; g++) {
        const char *function = group_of(e->kernel->instrs[group[g]].op);
        if (!per_head) {
            line(e, "r%d = %s(t%d);", group[g], function, group[g]);
        } else {
            line(e, "t%d = %s(t%d);", group[g], function, group[g]);
            line(e, "if (LANE == 0u)");
            line(e, "    r%d[h] = t%d;", group[g], group[g]);
        }
    }
    if (per_head)
        close_scope(e);
}

static void reductions(emitter *e, int32_t level) {
    bool emitted[SBP_ROWKERNEL_MAX_INSTRS] = {false};
    for (int32_t k = 0; k < e->kernel->instr_count; k++) {
        const sbp_rk_instr *instr = &e->kernel->instrs[k];
        if (!is_reduction(instr) || e->levels[k] != level + 1 || emitted[k])
            continue;
        int32_t group[SBP_ROWKERNEL_MAX_INSTRS], count = 0;
        for (int32_t other = k; other < e->kernel->instr_count; other++)
            if (same_loops(e, k, other)) {
                group[count++] = other;
                emitted[other] = true;
            }
        line(e, "{");
        open_scope(e);
        if (instr->axes & SBP_VARY_ELEM)
            reduce_elems(e, group, count);
        else
            reduce_heads(e, group, count);
        close_scope(e);
    }
}

/* ---- stores --------------------------------------------------------------------------------------- */

/* Whether a partial sums a value over the heads, which its operand lacks. */
static bool sums_heads(const emitter *e, const sbp_rk_instr *instr) {
    return instr->op == SBP_RK_PARTIAL_ADD && !(instr->vary & SBP_VARY_HEAD) &&
           (e->kernel->instrs[instr->a].vary & SBP_VARY_HEAD);
}

static void store(emitter *e, int32_t k) {
    const sbp_rk_instr *instr = &e->kernel->instrs[k];
    const char *type = sbp_dtype_name(e->kernel->operands[instr->index].dtype);
    char element[128];
    element_text(e, element, sizeof element, instr);
    if (instr->op == SBP_RK_STORE)
        line(e, "store_%s(%s, v%d);", type, element, instr->a);
    else if (!sums_heads(e, instr))
        line(e, "store_%s(%s, block_row == 0 ? v%d : load_%s(%s) + v%d);", type, element, instr->a, type,
             element, instr->a);
}

/* A partial over the heads: one chain of additions per element. */
static void store_summed(emitter *e, int32_t k) {
    const sbp_rk_instr *instr = &e->kernel->instrs[k];
    const char *type = sbp_dtype_name(e->kernel->operands[instr->index].dtype);
    char element[128];
    element_text(e, element, sizeof element, instr);
    line(e, "REAL t%d = REAL(0.0);", k);
    line(e, "if (block_row != 0)");
    line(e, "    t%d = load_%s(%s);", k, type, element);
    bool heads = open_heads(e, true);
    value(e, instr->a);
    line(e, "t%d += v%d;", k, instr->a);
    if (heads)
        close_scope(e);
    line(e, "store_%s(%s, t%d);", type, element, k);
}

/* Stores (op STORE) or partials (PARTIAL_ADD) of a level, that vary with `axes` and not with `but`;
 * those with equal axes and length in one loop. */
static void stores_of(emitter *e, int32_t level, sbp_rk_op op, uint8_t axes, uint8_t but) {
    const sbp_rowkernel *kernel = e->kernel;
    bool emitted[SBP_ROWKERNEL_MAX_INSTRS] = {false};
    for (int32_t k = 0; k < kernel->instr_count; k++) {
        const sbp_rk_instr *first = &kernel->instrs[k];
        if (first->op != op || e->levels[k] != level || emitted[k] || (first->vary & axes) != axes ||
            (first->vary & but))
            continue;
        bool elems = first->vary & SBP_VARY_ELEM, heads = first->vary & SBP_VARY_HEAD;
        int32_t group[SBP_ROWKERNEL_MAX_INSTRS], count = 0;
        for (int32_t other = k; other < kernel->instr_count; other++) {
            const sbp_rk_instr *instr = &kernel->instrs[other];
            if (instr->op == op && e->levels[other] == level &&
                (instr->vary & INNER) == (first->vary & INNER) && instr->length == first->length) {
                group[count++] = other;
                emitted[other] = true;
            }
        }
        line(e, "{");
        open_scope(e);
        bool head_loop = false;
        if (e->mode == SBP_GPU_ROW_FLAT) {
            line(e, "if (j < %lld && %s) {", (long long)(elems ? first->length : 1),
                 heads ? "true" : "h == 0");
            open_scope(e);
        } else {
            head_loop = open_heads(e, heads);
            if (elems) {
                open_elems(e, first->length);
            } else {
                line(e, "if (LANE == 0u) {");
                open_scope(e);
            }
        }
        for (int32_t g = 0; g < count; g++)
            if (!sums_heads(e, &kernel->instrs[group[g]]))
                value(e, kernel->instrs[group[g]].a);
        for (int32_t g = 0; g < count; g++)
            store(e, group[g]);
        for (int32_t g = 0; g < count; g++)
            if (sums_heads(e, &kernel->instrs[group[g]]))
                store_summed(e, group[g]);
        close_scope(e);
        if (head_loop)
            close_scope(e);
        close_scope(e);
    }
}

static void stores(emitter *e, int32_t level) {
    bool elems = false, others = false;
    for (int32_t k = 0; k < e->kernel->instr_count; k++)
        if (e->kernel->instrs[k].op == SBP_RK_STORE && e->levels[k] == level) {
            elems |= (e->kernel->instrs[k].vary & SBP_VARY_ELEM) != 0;
            others |= !(e->kernel->instrs[k].vary & SBP_VARY_ELEM);
        }
    stores_of(e, level, SBP_RK_PARTIAL_ADD, 0, 0); /* a store may overwrite what they read */
    stores_of(e, level, SBP_RK_STORE, SBP_VARY_ELEM, 0);
    if (level > 0 && elems && others) /* what all elements read may be overwritten now */
        line(e, "barrier();");
    stores_of(e, level, SBP_RK_STORE, 0, SBP_VARY_ELEM);
}

/* ---- the kernel ----------------------------------------------------------------------------------- */

/* Addresses of the row of each operand. */
static void addresses(emitter *e) {
    for (int32_t i = 0; i < e->kernel->operand_count; i++) {
        const sbp_rk_operand *o = &e->kernel->operands[i];
        const char *row = o->mode == SBP_RK_PARTIAL ? "block" : o->vary & SBP_VARY_ROW ? "row" : "0";
        line(e, "uint64_t p%d = row_address(args.operands[%d], %s, %d);", i, i, row,
             (int)sbp_dtype_bytes(o->dtype));
    }
}

static void declare_reductions(emitter *e) {
    for (int32_t k = 0; k < e->kernel->instr_count; k++) {
        const sbp_rk_instr *instr = &e->kernel->instrs[k];
        if (!is_reduction(instr))
            continue;
        if (instr->vary & SBP_VARY_ELEM)
            line(e, "REAL r%d[(%lldu + LOCAL - 1u) / LOCAL];", k, (long long)instr->length);
        else if (!(instr->vary & SBP_VARY_HEAD) || e->mode == SBP_GPU_ROW_HEADS)
            line(e, "REAL r%d;", k);
    }
}

static void one_row(emitter *e) {
    int32_t last = 0;
    for (int32_t k = 0; k < e->kernel->instr_count; k++)
        last = e->levels[k] > last ? e->levels[k] : last;
    addresses(e);
    declare_reductions(e);
    for (int32_t level = 0; level <= last; level++) {
        reductions(e, level);
        line(e, "barrier();");
        stores(e, level);
        if (level < last || e->mode == SBP_GPU_ROW_BLOCKS)
            line(e, "barrier();");
    }
}

static void flat(emitter *e) {
    line(e, "uint row_number, place;");
    line(e, "flat_position(uint(HEADS * %lld), row_number, place);", (long long)e->kernel->n);
    line(e, "int row = int(row_number);");
    line(e, "if (row >= args.rows)");
    line(e, "    return;");
    line(e, "int h = int(place / %lldu), j = int(place %% %lldu);", (long long)e->kernel->n,
         (long long)e->kernel->n);
    addresses(e);
    stores(e, 0);
}

static const char random_text[] =
    "REAL random(int key, REAL number, int row, int head, int j) { // Philox4x32-10, ir/rowkernel.h\n"
    "    uint stream = number >= REAL(0.0) && number < REAL(4294967296.0) ? uint(number) : 0u;\n"
    "    uvec4 c = uvec4(uint(args.row0 + int64_t(row)), stream, uint(head), uint(j) / 4u);\n"
    "    uint k0 = args.keys[2 * key], k1 = args.keys[2 * key + 1];\n"
    "    for (int round = 0; round < 10; round++) {\n"
    "        uint high0, low0, high1, low1;\n"
    "        umulExtended(c.x, 0xd2511f53u, high0, low0);\n"
    "        umulExtended(c.z, 0xcd9e8d57u, high1, low1);\n"
    "        c = uvec4(high1 ^ c.y ^ k0, low1, high0 ^ c.w ^ k1, low0);\n"
    "        k0 += 0x9e3779b9u;\n"
    "        k1 += 0xbb67ae85u;\n"
    "    }\n"
    "    uint k = uint(j) & 3u, word = k == 0u ? c.x : k == 1u ? c.y : k == 2u ? c.z : c.w;\n"
    "    return REAL(word >> 8) * REAL(5.9604644775390625e-8);\n"
    "}\n";

/* Bits of a float. */
static unsigned bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* The top 12 bits of x. */
static double twelve_bits(double x) {
    int exponent;
    double fraction = frexp(x, &exponent);
    return ldexp(floor(fraction * 0x1p12), exponent - 12);
}

/* Loads, stores, and to_<type>, a byte, of d8 or ud8 (ir/dynamic.h). A table of 256 numbers takes a software
 * driver seconds to compile, so they are computed: with m = 2^e + f a number is (2^(e+1) + 9 (2 f + 1)) 10^-i
 * 2^-(e+1), i = 7 - e or 8 - e; the integer has 12 bits, so that products with parts of 12 bits of 10^-i are
 * exact and only their sum is rounded. The magnitude is found as on the CPU (backends/cpu/kernels/convert.h):
 * the decade, then a part of it, too low by less than one, then a border. */
static void add_dynamic(sbp_text *out, sbp_dtype dtype) {
    const char *type = sbp_dtype_name(dtype);
    bool has_sign = dtype == SBP_D8;
    const float *borders = has_sign ? sbp_d8_borders : sbp_ud8_borders;
    int32_t less = has_sign ? 0 : 1; /* of what m has more than the magnitude */
    sbp_text_add(out,
                 "float %s_number(int k) {\n    int m = k + %d, e = clamp(findMSB(m), 0, 7);\n"
                 "    float a = 0.0, b = 0.0, c = 0.0;\n",
                 type, less);
    for (int32_t e = less; e <= 6 + less; e++) {
        double ten = pow(10, e - 7 - less), a = twelve_bits(ten), b = twelve_bits(ten - a);
        sbp_text_add(out,
                     "    if (e == %d) {\n        a = uintBitsToFloat(0x%xu);\n"
                     "        b = uintBitsToFloat(0x%xu);\n        c = uintBitsToFloat(0x%xu);\n    }\n",
                     e, bits_of((float)a), bits_of((float)b), bits_of((float)(ten - a - b)));
    }
    sbp_text_add(out,
                 "    float n = float((2 << e) + 9 * (2 * (m - (1 << e)) + 1));\n"
                 "    float y = (n * a + (n * b + n * c)) * uintBitsToFloat(uint(126 - e) << 23);\n"
                 "    return k == 0 ? 0.0 : k == %d ? 1.0 : y;\n}\n",
                 has_sign ? 128 : 255);
    sbp_text_add(out,
                 "uint to_%s(REAL value) {\n"
                 "    float y = float(value), x = is_nan(y) ? 0.0 : abs(y), base = %d.0;\n",
                 type, 1 << less);
    double scale = 1e6 / 0.9 * (1 << less);
    sbp_text_add(out, "    float scale = uintBitsToFloat(0x%xu);\n", bits_of((float)scale));
    for (int32_t e = 1 + less; e <= 6 + less; e++) {
        scale /= 5;
        sbp_text_add(out,
                     "    if (x > uintBitsToFloat(0x%xu)) {\n        base = %d.0;\n"
                     "        scale = uintBitsToFloat(0x%xu);\n    }\n",
                     bits_of(borders[(1 << e) - 1 - less]), 1 << e, bits_of((float)scale));
    }
    sbp_text_add(out,
                 "    float at = x * scale + (base * uintBitsToFloat(0x%xu) - uintBitsToFloat(0x%xu));\n"
                 "    int k = int(clamp(at, base, 2.0 * base - 1.0)) - %d;\n"
                 "    k += x > 0.5 * (%s_number(k) + %s_number(k + 1)) ? 1 : 0;\n"
                 "    k = x > uintBitsToFloat(0x%xu) ? k : 0;\n",
                 bits_of((float)(8 / 9.0)), bits_of(1e-3f), less, type, type, bits_of(borders[0]));
    sbp_text_add(out, has_sign ? "    return y < 0.0 ? uint(clamp(k, 1, 127)) | 0x80u : uint(k);\n}\n"
                               : "    return y < 0.0 ? 0u : uint(k);\n}\n");
    sbp_text_add(out, "REAL from_%s(uint byte) {\n", type);
    sbp_text_add(out, has_sign ? "    float y = d8_number(byte == 0x80u ? 128 : int(byte & 0x7fu));\n"
                                 "    return REAL(byte > 0x80u ? -y : y);\n}\n"
                               : "    return REAL(ud8_number(int(byte)));\n}\n");
    sbp_text_add(out, "REAL load_%1$s(uint64_t at, int i) {\n    return from_%1$s(uint(M_u8(at).v[i]));\n}\n",
                 type);
    sbp_text_add(
        out, "void store_%1$s(uint64_t at, int i, REAL x) {\n    M_u8(at).v[i] = uint8_t(to_%1$s(x));\n}\n",
        type);
}

static bool uses_type(const sbp_rowkernel *kernel, sbp_dtype dtype) {
    bool uses = false;
    for (int32_t i = 0; i < kernel->operand_count; i++)
        uses |= kernel->operands[i].dtype == dtype;
    for (int32_t i = 0; i < kernel->instr_count; i++)
        uses |= kernel->instrs[i].op == SBP_RK_ROUND && kernel->instrs[i].dtype == dtype;
    return uses;
}

static void declare_shared(emitter *e) {
    for (int32_t k = 0; k < e->kernel->instr_count; k++) {
        const sbp_rk_instr *instr = &e->kernel->instrs[k];
        if (is_reduction(instr) && (instr->vary & INNER) == SBP_VARY_HEAD && e->mode != SBP_GPU_ROW_HEADS)
            line(e, "shared REAL r%d[HEADS];", k);
    }
}

void sbp_vulkan_add_row(sbp_text *out, const sbp_rowkernel *kernel) {
    emitter e = {.out = out, .kernel = kernel, .mode = sbp_gpu_row_mode_of(kernel)};
    if (e.mode == SBP_GPU_ROW_COLUMNS)
        e.mode = SBP_GPU_ROW_BLOCKS;
    sbp_rowkernel_levels(kernel, e.levels);
    line(&e, "const int HEADS = %lld;", (long long)kernel->heads);
    for (sbp_dtype dtype = SBP_D8; dtype <= SBP_UD8; dtype++)
        if (uses_type(kernel, dtype))
            add_dynamic(out, dtype);
    for (int32_t k = 0; k < kernel->instr_count; k++)
        if (kernel->instrs[k].op == SBP_RK_RANDOM) {
            sbp_text_add(out, "%s", random_text);
            break;
        }
    if (e.mode == SBP_GPU_ROW_FLAT) {
        line(&e, "void main() {");
        open_scope(&e);
        flat(&e);
        close_scope(&e);
        return;
    }
    sbp_vulkan_add_text(out, "group.glsl");
    declare_shared(&e);
    line(&e, "void main() {");
    open_scope(&e);
    switch (e.mode) {
    case SBP_GPU_ROW_HEADS:
        line(&e, "int row = int(group_number() / uint(HEADS)), h = int(group_number() %% uint(HEADS));");
        line(&e, "if (row >= args.rows)");
        line(&e, "    return;");
        one_row(&e);
        break;
    case SBP_GPU_ROW_ROWS:
        line(&e, "int row = int(group_number());");
        line(&e, "if (row >= args.rows)");
        line(&e, "    return;");
        one_row(&e);
        break;
    default:
        line(&e, "int block = int(group_number());");
        line(&e, "for (int block_row = 0; block_row < %d; block_row++) {", SBP_PARTIAL_ROWS);
        open_scope(&e);
        line(&e, "int row = block * %d + block_row;", SBP_PARTIAL_ROWS);
        line(&e, "if (row >= args.rows)");
        line(&e, "    return;");
        one_row(&e);
        close_scope(&e);
    }
    close_scope(&e);
}
