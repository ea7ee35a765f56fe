/* rowkernel_host.c: kernels of elements in fp32 on the host. A value of several rows is one array of the
 * scratch memory, an instruction a loop over it, which compilers vectorise. */
#include "ir/rowkernel/rowkernel.h"

#include <string.h>

enum {
    HOST_FLOATS = 1 << 13, /* scratch memory, in the first-level cache */
    HOST_ROWS = 64
};

struct sbp_rowrunner {
    const sbp_rowkernel *kernel;
    int64_t *places;  /* per instruction: where its value begins, in floats of one row */
    int32_t *targets; /* per instruction: the store through which a map writes at once, or -1; of such a store
                         itself */
    int64_t rows;     /* at a time */
};

/* ---- preparing -------------------------------------------------------------------------------------- */

static int64_t size_of(const sbp_rowkernel *kernel, const sbp_rk_instr *instr) {
    return (instr->vary & SBP_VARY_HEAD ? kernel->heads : 1) * instr->length;
}

static bool is_same(const sbp_rk_instr *instr) { /* as its operand */
    return instr->op == SBP_RK_ROUND && instr->dtype == SBP_F32;
}

static bool is_narrow(const sbp_rk_instr *instr) {
    return instr->op == SBP_RK_ROUND && (instr->dtype == SBP_BF16 || instr->dtype == SBP_F16);
}

/* The value whose place it has. */
static int32_t unrounded(const sbp_rowkernel *kernel, int32_t value) {
    while (is_same(&kernel->instrs[value]))
        value = kernel->instrs[value].a;
    return value;
}

static bool can_run(const sbp_rowkernel *kernel) {
    for (int32_t i = 0; i < kernel->instr_count; i++) {
        const sbp_rk_instr *instr = &kernel->instrs[i];
        switch (instr->op) {
        case SBP_RK_LOAD:
        case SBP_RK_CONST:
        case SBP_RK_INDEX:
        case SBP_RK_MAP:
        case SBP_RK_INTEGER:
        case SBP_RK_LOOKUP:
        case SBP_RK_STORE:
            break;
        case SBP_RK_ROUND:
            if (is_same(instr) || is_narrow(instr))
                break;
            return false;
        default:
            return false;
        }
    }
    return kernel->compute == SBP_F32;
}

/* Places, each used again by a value of the same size when nobody reads the old one any more; floats of a
 * row. */
static int64_t find_places(sbp_arena *arena, sbp_rowrunner *runner) {
    const sbp_rowkernel *kernel = runner->kernel;
    int32_t count = kernel->instr_count, free_count = 0;
    int32_t *last = SBP_NEW_ARRAY(arena, int32_t, count + 1); /* reader of the place of a value */
    int32_t *freed = SBP_NEW_ARRAY(arena, int32_t, count + 1),
            *location = SBP_NEW_ARRAY(arena, int32_t, count + 1);
    int64_t floats = 0;
    for (int32_t i = 0; i < count; i++) {
        const int32_t values[3] = {kernel->instrs[i].a, kernel->instrs[i].b, kernel->instrs[i].c};
        location[i] = unrounded(kernel, i);
        last[location[i]] = i;
        for (int k = 0; k < 3; k++)
            if (values[k] >= 0)
                last[location[values[k]]] = i;
    }
    for (int32_t i = 0; i < count; i++) {
        const sbp_rk_instr *instr = &kernel->instrs[i];
        int32_t k = 0;
        if (location[i] != i) {
            runner->places[i] = runner->places[location[i]];
        } else if (instr->op != SBP_RK_STORE) {
            while (k < free_count && size_of(kernel, &kernel->instrs[freed[k]]) != size_of(kernel, instr))
                k++;
            runner->places[i] = k < free_count ? runner->places[freed[k]] : floats;
            if (k < free_count)
                freed[k] = freed[--free_count];
            else
                floats += size_of(kernel, instr);
        }
        for (int32_t v = 0; v <= i; v++)
            if (location[v] == v && last[v] == i && kernel->instrs[v].op != SBP_RK_STORE)
                freed[free_count++] = v;
    }
    return floats;
}

/* A map that nothing but a store of all its elements reads, rounded or not, computes in the operand itself.
 */
static void find_targets(sbp_rowrunner *runner) {
    const sbp_rowkernel *kernel = runner->kernel;
    for (int32_t i = 0; i < kernel->instr_count; i++)
        runner->targets[i] = -1;
    for (int32_t i = 0; i < kernel->instr_count; i++) {
        const sbp_rk_instr *store = &kernel->instrs[i];
        if (store->op != SBP_RK_STORE || kernel->operands[store->index].dtype != SBP_F32)
            continue;
        int32_t map = unrounded(kernel, store->a), readers = 0;
        for (int32_t k = map + 1; k < kernel->instr_count; k++) {
            const sbp_rk_instr *reader = &kernel->instrs[k];
            const int32_t values[3] = {reader->a, reader->b, reader->c};
            for (int v = 0; v < 3 && !is_same(reader); v++)
                readers += values[v] >= 0 && unrounded(kernel, values[v]) == map;
        }
        const sbp_rk_instr *value = &kernel->instrs[map];
        if (value->op == SBP_RK_MAP && readers == 1 && value->vary == store->vary &&
            value->length == store->length)
            runner->targets[map] = runner->targets[i] = i;
    }
}

sbp_rowrunner *sbp_rowrunner_create(sbp_arena *arena, const sbp_rowkernel *kernel) {
    if (!can_run(kernel))
        return NULL;
    sbp_rowrunner *runner = SBP_NEW(arena, sbp_rowrunner);
    runner->kernel = kernel;
    runner->places = SBP_NEW_ARRAY(arena, int64_t, kernel->instr_count + 1);
    runner->targets = SBP_NEW_ARRAY(arena, int32_t, kernel->instr_count + 1);
    find_targets(runner);
    int64_t floats = find_places(arena, runner);
    if (floats > HOST_FLOATS)
        return NULL;
    runner->rows = floats == 0 || HOST_FLOATS / floats > HOST_ROWS ? HOST_ROWS : HOST_FLOATS / floats;
    return runner;
}

/* ---- loops ------------------------------------------------------------------------------------------ */

/* Three loops, the outermost first, and how far one turn of each moves in the result and in the operands. */
typedef struct nest {
    int64_t count[3], step[4][3];
} nest;

/* Loops over an instruction's elements, steps still to be set. */
static nest begin_nest(const sbp_rowkernel *kernel, const sbp_rk_instr *instr, int64_t rows) {
    return (nest){.count = {instr->vary & SBP_VARY_ROW ? rows : 1,
                            instr->vary & SBP_VARY_HEAD ? kernel->heads : 1, instr->length}};
}

static void step_in_value(nest *n, int which, const sbp_rowkernel *kernel, const sbp_rk_instr *value) {
    n->step[which][0] = value->vary & SBP_VARY_ROW ? size_of(kernel, value) : 0;
    n->step[which][1] = value->vary & SBP_VARY_HEAD ? value->length : 0;
    n->step[which][2] = value->vary & SBP_VARY_ELEM ? 1 : 0;
}

static void step_in_memory(nest *n, int which, const sbp_rk_operand *operand, const sbp_rk_instr *instr,
                           int64_t stride) {
    n->step[which][0] = operand->vary & SBP_VARY_ROW ? stride : 0;
    n->step[which][1] = operand->head_stride;
    n->step[which][2] = instr->vary & SBP_VARY_ELEM ? 1 : 0;
}

/* Loops whose steps follow from those of the one inside become one with it: most instructions are one loop.
 */
static void merge_loops(nest *n, int arrays) {
    nest merged = {.count = {1, 1, 1}};
    int at = 3;
    for (int d = 2; d >= 0; d--) {
        if (n->count[d] == 1)
            continue;
        bool same = at < 3;
        for (int k = 0; k < arrays && same; k++)
            same = n->step[k][d] == merged.step[k][at] * merged.count[at];
        if (same) {
            merged.count[at] *= n->count[d];
            continue;
        }
        merged.count[--at] = n->count[d];
        for (int k = 0; k < arrays; k++)
            merged.step[k][at] = n->step[k][d];
    }
    *n = merged;
}

/* The two outer loops; at(k): how far array k has moved then. */
#define FOR_NEST(n)                                                                                          \
    for (int64_t outer = 0; outer < (n)->count[0]; outer++)                                                  \
        for (int64_t inner = 0; inner < (n)->count[1]; inner++)
#define AT(n, k) (outer * (n)->step[k][0] + inner * (n)->step[k][1])

/* Loops of the lengths that formats have are written out for them. */
#define ALWAYS_INLINE inline __attribute__((always_inline))
#define BY_COUNT(function, what, count, ...)                                                                 \
    ((count) == 16   ? function(what, 16, __VA_ARGS__)                                                       \
     : (count) == 32 ? function(what, 32, __VA_ARGS__)                                                       \
                     : function(what, count, __VA_ARGS__))

/* ---- instructions ----------------------------------------------------------------------------------- */

typedef struct host_run {
    const sbp_rowrunner *runner;
    const sbp_rowkernel *kernel;
    const sbp_rk_view *views;
    int64_t row, rows; /* at hand */
    float *scratch;
} host_run;

static float *value_of(const host_run *r, int32_t index) {
    return r->scratch + r->runner->places[index] * r->runner->rows;
}

/* The first element at hand of a load or store, in its operand. */
static int64_t first_of(const host_run *r, const sbp_rk_instr *instr) {
    bool rows = r->kernel->operands[instr->index].vary & SBP_VARY_ROW;
    return (rows ? r->row * r->views[instr->index].stride : 0) + instr->offset;
}

static void load_nest(const nest *n, sbp_dtype dtype, const void *data, int64_t first, float *restrict to) {
    const int64_t count = n->count[2], step = n->step[1][2];
    FOR_NEST(n) {
        float *restrict y = to + AT(n, 0);
        const int64_t at = first + AT(n, 1);
        const int8_t *bytes = (const int8_t *)data + at;
        if (dtype == SBP_I8 && step == 1)
            for (int64_t i = 0; i < count; i++)
                y[i] = (float)bytes[i];
        else if (dtype == SBP_I8)
            for (int64_t i = 0; i < count; i++)
                y[i] = (float)bytes[i * step];
        else if (dtype == SBP_F16)
            for (int64_t i = 0; i < count; i++)
                y[i] = sbp_f32_from_f16(((const uint16_t *)data)[at + i * step]);
        else
            for (int64_t i = 0; i < count; i++)
                y[i] = (float)sbp_element_get(data, dtype, at + i * step);
    }
}

static void run_load(const host_run *r, int32_t index, const sbp_rk_instr *instr) {
    const sbp_rk_operand *operand = &r->kernel->operands[instr->index];
    nest n = begin_nest(r->kernel, instr, r->rows);
    step_in_value(&n, 0, r->kernel, instr);
    step_in_memory(&n, 1, operand, instr, r->views[instr->index].stride);
    merge_loops(&n, 2);
    load_nest(&n, operand->dtype, r->views[instr->index].data, first_of(r, instr), value_of(r, index));
}

static ALWAYS_INLINE void copy_nest(float *data, int64_t count, const nest *n, const float *values) {
    FOR_NEST(n) {
        const float *restrict from = values + AT(n, 1);
        float *restrict to = data + AT(n, 0);
        for (int64_t i = 0; i < count; i++)
            to[i] = from[i];
    }
}

static void run_store(const host_run *r, const sbp_rk_instr *instr) {
    const sbp_rk_operand *operand = &r->kernel->operands[instr->index];
    nest n = begin_nest(r->kernel, instr, r->rows);
    step_in_memory(&n, 0, operand, instr, r->views[instr->index].stride);
    step_in_value(&n, 1, r->kernel, &r->kernel->instrs[instr->a]);
    merge_loops(&n, 2);
    void *data = r->views[instr->index].data;
    const float *values = value_of(r, instr->a);
    const int64_t first = first_of(r, instr), count = n.count[2];
    if (operand->dtype == SBP_F32 && n.step[0][2] == 1 && n.step[1][2] == 1) {
        BY_COUNT(copy_nest, (float *)data + first, count, &n, values);
        return;
    }
    FOR_NEST(&n)
    for (int64_t i = 0; i < count; i++)
        sbp_element_set(data, operand->dtype, first + AT(&n, 0) + i * n.step[0][2],
                        (double)values[AT(&n, 1) + i * n.step[1][2]]);
}

static ALWAYS_INLINE float value_of_two(sbp_rowop op, float a, float b) {
    return op == SBP_ROWOP_add ? a + b : op == SBP_ROWOP_sub ? a - b : a * b;
}

/* Two operands, which move on by 1 or stand still. op and count are constants, or count is any. */
static ALWAYS_INLINE void binary_nest(sbp_rowop op, int64_t count, const nest *n, const float *const *values,
                                      float *to) {
    const int64_t as = n->step[1][2], bs = n->step[2][2];
    FOR_NEST(n) {
        const float *restrict a = values[0] + AT(n, 1), *restrict b = values[1] + AT(n, 2);
        float *restrict y = to + AT(n, 0), a0 = a[0], b0 = b[0];
        if (as == 1 && bs == 1)
            for (int64_t i = 0; i < count; i++)
                y[i] = value_of_two(op, a[i], b[i]);
        else if (bs == 1)
            for (int64_t i = 0; i < count; i++)
                y[i] = value_of_two(op, a0, b[i]);
        else
            for (int64_t i = 0; i < count; i++)
                y[i] = value_of_two(op, a[i], b0);
    }
}

static ALWAYS_INLINE void select_nest(int64_t count, const nest *n, const float *const *values, float *to) {
    const int64_t as = n->step[1][2], bs = n->step[2][2], cs = n->step[3][2];
    FOR_NEST(n) {
        const float *restrict a = values[0] + AT(n, 1), *restrict b = values[1] + AT(n, 2);
        const float *restrict c = values[2] + AT(n, 3);
        float *restrict y = to + AT(n, 0), b0 = b[0], c0 = c[0];
        if (as == 1 && bs == 0 && cs == 0)
            for (int64_t i = 0; i < count; i++)
                y[i] = a[i] != 0 ? b0 : c0;
        else
            for (int64_t i = 0; i < count; i++)
                y[i] = a[i * as] != 0 ? b[i * bs] : c[i * cs];
    }
}

static void map_nest(const nest *n, sbp_rowop op, const float *const values[3], float *to) {
    const int64_t count = n->count[2];
    switch (op) {
    case SBP_ROWOP_add:
        BY_COUNT(binary_nest, SBP_ROWOP_add, count, n, values, to);
        break;
    case SBP_ROWOP_sub:
        BY_COUNT(binary_nest, SBP_ROWOP_sub, count, n, values, to);
        break;
    case SBP_ROWOP_mul:
        BY_COUNT(binary_nest, SBP_ROWOP_mul, count, n, values, to);
        break;
    case SBP_ROWOP_select:
        if (count == 32)
            select_nest(32, n, values, to);
        else
            select_nest(count, n, values, to);
        break;
    default:
        FOR_NEST(n)
        for (int64_t i = 0; i < count; i++)
            to[AT(n, 0) + i] = (float)sbp_rowop_eval(op, (double)values[0][AT(n, 1) + i * n->step[1][2]],
                                                     (double)values[1][AT(n, 2) + i * n->step[2][2]],
                                                     (double)values[2][AT(n, 3) + i * n->step[3][2]]);
    }
}

/* b: the second operand, which moves on by 1 or stands still; where there is none, p is the constant. */
static void integer_nest(const nest *n, const sbp_rk_instr *instr, const float *const *values, float *to) {
    const int64_t count = n->count[2], bs = n->step[2][2];
    const int32_t constant = instr->constants[0], q = instr->constants[1];
    switch (instr->integer) {
#define INTOP(name, arity, constants, value, low, high)                                                      \
    case SBP_INTOP_##name:                                                                                   \
        FOR_NEST(n) {                                                                                        \
            const float *restrict a = values[0] + AT(n, 1), *restrict b = values[1] + AT(n, 2);              \
            const int64_t as = (arity) == 2 ? n->step[1][2] : 1;                                             \
            float *restrict y = to + AT(n, 0);                                                               \
            for (int64_t i = 0; i < count; i++) {                                                            \
                int32_t x = (int32_t)a[i * as], p = (arity) == 2 ? (int32_t)b[i * bs] : constant;            \
                y[i] = (float)(value);                                                                       \
            }                                                                                                \
        }                                                                                                    \
        break;
#include "ir/rowkernel/intops.def"
#undef INTOP
    case SBP_INTOP_COUNT:
        break;
    }
}

static void run_map(const host_run *r, int32_t index, const sbp_rk_instr *instr) {
    const int32_t operands[3] = {instr->a, instr->b < 0 ? instr->a : instr->b,
                                 instr->c < 0 ? instr->a : instr->c};
    const float *values[3];
    float *to = value_of(r, index);
    nest n = begin_nest(r->kernel, instr, r->rows);
    step_in_value(&n, 0, r->kernel, instr);
    if (r->runner->targets[index] >= 0) {
        const sbp_rk_instr *store = &r->kernel->instrs[r->runner->targets[index]];
        const sbp_rk_view *view = &r->views[store->index];
        step_in_memory(&n, 0, &r->kernel->operands[store->index], store, view->stride);
        to = (float *)view->data + first_of(r, store);
    }
    for (int k = 0; k < 3; k++) {
        step_in_value(&n, k + 1, r->kernel, &r->kernel->instrs[operands[k]]);
        values[k] = value_of(r, operands[k]);
    }
    merge_loops(&n, 4);
    if (instr->op == SBP_RK_INTEGER)
        integer_nest(&n, instr, values, to);
    else
        map_nest(&n, instr->map, values, to);
}

static void lookup_run(const sbp_rk_table *table, int64_t n, const float *a, float *y) {
    float numbers[SBP_ROWKERNEL_TABLE_NUMBERS];
    for (int32_t k = 0; k < table->count; k++)
        numbers[k] = (float)table->numbers[k];
    for (int64_t i = 0; i < n; i++)
        y[i] = numbers[(int32_t)a[i]];
}

static void round_run(sbp_dtype dtype, int64_t n, const float *a, float *y) {
    for (int64_t i = 0; i < n; i++)
        y[i] = dtype == SBP_BF16 ? sbp_f32_from_bf16(sbp_bf16_from_f32(a[i]))
                                 : sbp_f32_from_f16(sbp_f16_from_f32(a[i]));
}

static void run_instr(const host_run *r, int32_t index) {
    const sbp_rk_instr *instr = &r->kernel->instrs[index];
    float *y = value_of(r, index);
    int64_t n = (instr->vary & SBP_VARY_ROW ? r->rows : 1) * size_of(r->kernel, instr);
    switch (instr->op) {
    case SBP_RK_LOAD:
        run_load(r, index, instr);
        break;
    case SBP_RK_CONST:
        *y = (float)instr->imm;
        break;
    case SBP_RK_INDEX:
        for (int64_t i = 0; i < n; i++)
            y[i] = (float)(instr->offset + i);
        break;
    case SBP_RK_MAP:
    case SBP_RK_INTEGER:
        run_map(r, index, instr);
        break;
    case SBP_RK_LOOKUP:
        lookup_run(&r->kernel->tables[instr->index], n, value_of(r, instr->a), y);
        break;
    case SBP_RK_STORE:
        if (r->runner->targets[index] < 0)
            run_store(r, instr);
        break;
    case SBP_RK_ROUND: /* one to fp32 has the place of its operand */
        if (is_narrow(instr))
            round_run(instr->dtype, n, value_of(r, instr->a), y);
        break;
    default:
        break;
    }
}

void sbp_rowrunner_run(const sbp_rowrunner *runner, int64_t rows, const sbp_rk_view *views) {
    _Alignas(64) float scratch[HOST_FLOATS];
    host_run r = {.runner = runner, .kernel = runner->kernel, .views = views, .scratch = scratch};
    for (; r.row < rows; r.row += r.rows) {
        r.rows = rows - r.row < runner->rows ? rows - r.row : runner->rows;
        for (int32_t i = 0; i < r.kernel->instr_count; i++)
            run_instr(&r, i);
    }
}
