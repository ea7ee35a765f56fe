/* row_case.c: a row kernel as a case of the suite. */
#include "tests/conformance/row_case.h"

#include "ir/base/lex.h"

#include <math.h>

const char *row_case_text(suite_case *c) {
    sbp_text text;
    sbp_text_init(&text, c->arena);
    sbp_rowkernel_print(&text, c->kernel);
    return text.data;
}

/* Marks what the stores of an out operand, or the sums of a partial one, write. */
static void mark_written(const suite_case *c, int32_t operand, suite_tensor *t) {
    const sbp_rk_operand *o = &c->kernel->operands[operand];
    for (int32_t i = 0; i < c->kernel->instr_count; i++) {
        const sbp_rk_instr *instr = &c->kernel->instrs[i];
        if ((instr->op != SBP_RK_STORE && instr->op != SBP_RK_PARTIAL_ADD) || instr->index != operand)
            continue;
        for (int64_t r = 0; r < t->rows; r++)
            for (int64_t h = 0; h < (o->vary & SBP_VARY_HEAD ? c->kernel->heads : 1); h++)
                for (int64_t j = 0; j < instr->length; j++)
                    t->written[r * t->cols + h * o->head_stride + instr->offset + j] = true;
    }
}

int32_t row_case_rounds(const sbp_rowkernel *k) {
    int32_t count = 0;
    for (int32_t i = 0; i < k->instr_count; i++)
        count += k->instrs[i].op == SBP_RK_ROUND && sbp_dtype_bytes(k->instrs[i].dtype) == 2;
    return count;
}

void row_case_check(suite_case *c, const int32_t *alias) {
    const sbp_rowkernel *k = c->kernel;
    sbp_diag *diag = sbp_diag_create();
    CHECK_OK(sbp_rowkernel_verify(k, diag), diag);
    sbp_diag_destroy(diag);
    c->command.kind = SBP_CMD_ROW;
    sbp_rk_view views[SBP_ROWKERNEL_MAX_OPERANDS];
    for (int32_t i = 0; i < k->operand_count; i++) {
        const sbp_rk_operand *o = &k->operands[i];
        int64_t heads = o->vary & SBP_VARY_HEAD ? k->heads : 1;
        int64_t rows = o->vary & SBP_VARY_ROW      ? c->rows
                       : o->mode == SBP_RK_PARTIAL ? sbp_ceil_div(c->rows, SBP_PARTIAL_ROWS)
                                                   : 1;
        suite_tensor *t = suite_add(c, o->dtype, rows, (heads - 1) * o->head_stride + o->length);
        if (!sbp_dtype_is_float(o->dtype) && !sbp_dtype_is_dynamic(o->dtype))
            for (int64_t j = 0; j < t->rows * t->cols; j++)
                t->values[j] = (double)sbp_rng_below(&c->rng, 5) - 2;
        t->same_as = alias ? alias[i] : -1;
        if (t->same_as >= 0)
            t->values = c->tensors[t->same_as].values;
        views[i] = (sbp_rk_view){.data = suite_alloc(c, rows * t->cols + 1, 8), .stride = t->cols};
        for (int64_t j = 0; j < rows * t->cols; j++)
            sbp_element_set(views[i].data, o->dtype, j, t->values[j]);
    }
    if (!suite_wants(c))
        return;
    assert_int_equal(sbp_rowkernel_run_reference(k, c->rows, c->row0, views, c->scalars), SBP_OK);
    for (int32_t i = 0; i < k->operand_count; i++) {
        suite_tensor *t = &c->tensors[i];
        if (k->operands[i].mode == SBP_RK_IN)
            continue;
        suite_expect(c, t);
        t->written = suite_alloc(c, t->rows * t->cols, sizeof(bool));
        mark_written(c, i, t);
        for (int64_t j = 0; j < t->rows * t->cols; j++)
            t->expected[j] = sbp_element_get(views[i].data, t->dtype, j);
        t->tolerance = fmax(sbp_tolerance(t->dtype), sbp_tolerance(k->compute));
        if (k->compute == SBP_F32 && row_case_rounds(k) > 0)
            t->tolerance = fmax(t->tolerance, SBP_TOLERANCE_ROUNDED_INSIDE);
    }
    suite_check(c);
}

void row_case_parse(suite_case *c, const char *text) {
    sbp_diag *diag = sbp_diag_create();
    sbp_lexer lexer;
    CHECK_OK(sbp_lexer_init(&lexer, c->arena, diag, c->name, text, strlen(text)), diag);
    CHECK_OK(sbp_rowkernel_parse(&lexer, c->arena, &c->kernel), diag);
    sbp_diag_destroy(diag);
}

void row_case_run(const char *text, int64_t rows, const int32_t *alias, uint64_t seed, double scalar) {
    suite_case *c = suite_begin("", seed);
    row_case_parse(c, text);
    c->name = c->kernel->name;
    c->rows = rows;
    c->scalars[0] = scalar;
    row_case_check(c, alias);
    suite_end(c);
}
