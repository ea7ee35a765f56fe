/* rowkernel_run.c: the reference interpreter of row kernels, in double precision, and Philox. Slow and plain:
 * every value of a row is kept for all its heads and elements, then the stores run. */
#include "ir/rowkernel/rowkernel.h"

#include <math.h>
#include <stdlib.h>

typedef struct run {
    const sbp_rowkernel *kernel;
    const sbp_rk_view *views;
    const double *scalars;
    double **values; /* per instruction: [heads or 1, length] */
    int64_t row, row0;
} run;

static int64_t value_heads(const run *r, const sbp_rk_instr *instr) {
    return instr->vary & SBP_VARY_HEAD ? r->kernel->heads : 1;
}

/* Value `index` at (head, j), broadcast along the axes it does not have. */
static double value_at(const run *r, int32_t index, int64_t head, int64_t j) {
    const sbp_rk_instr *instr = &r->kernel->instrs[index];
    if (!(instr->vary & SBP_VARY_HEAD))
        head = 0;
    if (!(instr->vary & SBP_VARY_ELEM))
        j = 0;
    return r->values[index][head * instr->length + j];
}

/* Element number in the memory of the operand of a load or store. */
static int64_t element_of(const run *r, const sbp_rk_instr *instr, int64_t head, int64_t j) {
    const sbp_rk_operand *operand = &r->kernel->operands[instr->index];
    int64_t row = operand->vary & SBP_VARY_ROW      ? r->row
                  : operand->mode == SBP_RK_PARTIAL ? r->row / SBP_PARTIAL_ROWS
                                                    : 0;
    return row * r->views[instr->index].stride + head * operand->head_stride + instr->offset + j;
}

/* An integer below `limit`, or 0. */
static uint64_t integer_of(double value, double limit) {
    return value >= 0 && value < limit ? (uint64_t)value : 0;
}

uint32_t sbp_random_word(double number) {
    return (uint32_t)integer_of(number, 0x1p32);
}

double sbp_random_at(double key, double stream, int64_t row, int64_t head, int64_t element) {
    uint64_t k = integer_of(key, 0x1p63);
    uint32_t keys[2] = {(uint32_t)k, (uint32_t)(k >> 32)}, words[4];
    uint32_t counter[4] = {(uint32_t)row, sbp_random_word(stream), (uint32_t)head, (uint32_t)(element / 4)};
    sbp_philox_words(counter, keys, words);
    return (double)(words[element % 4] >> 8) * 0x1p-24;
}

bool sbp_rowkernel_rows_fit(int64_t row0, int64_t rows) {
    return row0 >= 0 && rows >= 0 && rows <= INT64_C(1) << 32 && row0 <= (INT64_C(1) << 32) - rows;
}

static double reduce(sbp_rk_op op, double sum, double value) {
    if (op == SBP_RK_SUM)
        return sum + value;
    if (isnan(sum) || isnan(value))
        return (double)NAN;
    return op == SBP_RK_MAX ? fmax(sum, value) : fmin(sum, value);
}

/* One element of a reduction: over all heads or this one, all elements or this one. */
static double reduce_at(const run *r, const sbp_rk_instr *instr, int64_t head, int64_t j) {
    const sbp_rk_instr *value = &r->kernel->instrs[instr->a];
    bool heads = instr->axes & SBP_VARY_HEAD, elems = instr->axes & SBP_VARY_ELEM;
    double result = instr->op == SBP_RK_SUM ? 0 : instr->op == SBP_RK_MAX ? -HUGE_VAL : HUGE_VAL;
    for (int64_t h = heads ? 0 : head; h < (heads ? r->kernel->heads : head + 1); h++)
        for (int64_t e = elems ? 0 : j; e < (elems ? value->length : j + 1); e++)
            result = reduce(instr->op, result, value_at(r, instr->a, h, e));
    return result;
}

static double evaluate(const run *r, const sbp_rk_instr *instr, int64_t head, int64_t j) {
    const sbp_rk_operand *operands = r->kernel->operands;
    switch (instr->op) {
    case SBP_RK_LOAD:
        return sbp_element_get(r->views[instr->index].data, operands[instr->index].dtype,
                               element_of(r, instr, head, j));
    case SBP_RK_CONST:
        return instr->imm;
    case SBP_RK_SCALAR:
        return r->scalars[instr->index];
    case SBP_RK_INDEX:
        return (double)(instr->offset + j);
    case SBP_RK_RANDOM:
        return sbp_random_at(r->scalars[instr->index], instr->a < 0 ? 0 : value_at(r, instr->a, 0, 0),
                             instr->b < 0 ? r->row0 + r->row : sbp_random_word(value_at(r, instr->b, 0, 0)),
                             instr->b < 0 ? (instr->vary & SBP_VARY_HEAD ? head : 0)
                                          : sbp_random_word(value_at(r, instr->c, 0, 0)),
                             instr->offset + j);
    case SBP_RK_MAP:
        return sbp_rowop_eval(instr->map, value_at(r, instr->a, head, j),
                              instr->b < 0 ? 0 : value_at(r, instr->b, head, j),
                              instr->c < 0 ? 0 : value_at(r, instr->c, head, j));
    case SBP_RK_INTEGER:
        return sbp_intop_eval(instr->integer, (int32_t)value_at(r, instr->a, head, j),
                              instr->b < 0 ? instr->constants[0] : (int32_t)value_at(r, instr->b, head, j),
                              instr->constants[1]);
    case SBP_RK_LOOKUP:
        return r->kernel->tables[instr->index].numbers[(int32_t)value_at(r, instr->a, head, j)];
    case SBP_RK_ROUND:
        return sbp_round_to(instr->dtype, value_at(r, instr->a, head, j));
    case SBP_RK_SUM:
    case SBP_RK_MAX:
    case SBP_RK_MIN:
        return reduce_at(r, instr, head, j);
    case SBP_RK_STORE:
    case SBP_RK_PARTIAL_ADD:
        break;
    }
    return (double)NAN;
}

static void run_store(const run *r, const sbp_rk_instr *instr) {
    const sbp_rk_operand *operand = &r->kernel->operands[instr->index];
    for (int64_t head = 0; head < value_heads(r, instr); head++)
        for (int64_t j = 0; j < instr->length; j++)
            sbp_element_set(r->views[instr->index].data, operand->dtype, element_of(r, instr, head, j),
                            value_at(r, instr->a, head, j));
}

/* Adds this row to the sums of its block, which are kept in values[] (the instruction has no value). */
static void run_partial(const run *r, int32_t index, int64_t rows) {
    const sbp_rk_instr *instr = &r->kernel->instrs[index], *value = &r->kernel->instrs[instr->a];
    double *sums = r->values[index];
    int64_t heads = value_heads(r, instr);
    int64_t summed = heads == 1 && (value->vary & SBP_VARY_HEAD) ? r->kernel->heads : 1;
    bool ends = (r->row + 1) % SBP_PARTIAL_ROWS == 0 || r->row + 1 == rows;
    for (int64_t head = 0; head < heads; head++)
        for (int64_t j = 0; j < instr->length; j++) {
            double *sum = &sums[head * instr->length + j];
            if (r->row % SBP_PARTIAL_ROWS == 0)
                *sum = 0;
            for (int64_t h = 0; h < summed; h++)
                *sum += value_at(r, instr->a, head + h, j);
            if (ends)
                sbp_element_set(r->views[instr->index].data, r->kernel->operands[instr->index].dtype,
                                element_of(r, instr, head, j), *sum);
        }
}

static void run_row(const run *r, int64_t rows) {
    for (int32_t i = 0; i < r->kernel->instr_count; i++) {
        const sbp_rk_instr *instr = &r->kernel->instrs[i];
        if (instr->op == SBP_RK_STORE) {
            run_store(r, instr);
        } else if (instr->op == SBP_RK_PARTIAL_ADD) {
            run_partial(r, i, rows);
        } else {
            for (int64_t head = 0; head < value_heads(r, instr); head++)
                for (int64_t j = 0; j < instr->length; j++)
                    r->values[i][head * instr->length + j] = evaluate(r, instr, head, j);
        }
    }
}

sbp_status sbp_rowkernel_run_reference(const sbp_rowkernel *kernel, int64_t rows, int64_t row0,
                                       const sbp_rk_view *views, const double *scalars) {
    run r = {.kernel = kernel, .views = views, .scalars = scalars, .row0 = row0};
    size_t bytes = (size_t)kernel->instr_count * sizeof(double *);
    if (!sbp_rowkernel_rows_fit(row0, rows))
        return SBP_INPUT;
    for (int32_t i = 0; i < kernel->instr_count; i++) {
        int64_t elements;
        if (!sbp_mul_i64(value_heads(&r, &kernel->instrs[i]), kernel->instrs[i].length, &elements) ||
            (uint64_t)elements > (SIZE_MAX - bytes) / sizeof(double))
            return SBP_MACHINE;
        bytes += (size_t)elements * sizeof(double);
    }
    r.values = sbp_malloc(bytes + 1);
    if (!r.values)
        return SBP_MACHINE;
    double *at = (double *)(void *)(r.values + kernel->instr_count);
    for (int32_t i = 0; i < kernel->instr_count; i++) {
        r.values[i] = at;
        at += value_heads(&r, &kernel->instrs[i]) * kernel->instrs[i].length;
    }
    for (r.row = 0; r.row < rows; r.row++)
        run_row(&r, rows);
    free(r.values);
    return SBP_OK;
}
