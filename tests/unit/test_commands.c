/* test_commands.c: the table of commands against what its users take from it: operands and synopses of
 * commands.def, and the rules access, alias and work. What the other rules say is in test_program.c. */
#include "ir/program/traits.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static const char *const names[] = {
#define COMMAND(id, text, queues, operands, traits, synopsis) #text,
#include "ir/program/commands.def"
#undef COMMAND
};

static const int32_t counts[] = {
#define COMMAND(id, text, queues, operands, traits, synopsis) SBP_##id##_OPERANDS,
#include "ir/program/commands.def"
#undef COMMAND
};

/* Enums, names and synopses are of the same lines; operands have different names. */
static void test_table(void **state) {
    (void)state;
    sbp_program program = {.name = "p"};
    sbp_command_operand operands[SBP_MAX_COMMAND_OPERANDS];
    assert_int_equal(SBP_COUNT(names), SBP_CMD_COUNT);
    for (int kind = 0; kind < SBP_CMD_COUNT; kind++) {
        sbp_command command = {.kind = (sbp_command_kind)kind};
        if (kind == SBP_CMD_ROW)
            continue;
        assert_string_equal(sbp_command_name(command.kind), names[kind]);
        assert_true(strlen(sbp_command_synopsis(command.kind)) > 0);
        assert_int_equal(sbp_command_operands(&program, &command, operands), counts[kind]);
        for (int32_t a = 0; a < counts[kind]; a++)
            for (int32_t b = 0; b < a; b++)
                assert_string_not_equal(operands[a].name, operands[b].name);
    }
    sbp_command attention = {.kind = SBP_CMD_ATTN_BWD};
    (void)sbp_command_operands(&program, &attention, operands);
    const sbp_attention_operands *at = sbp_command_attention(SBP_CMD_ATTN_BWD);
    assert_string_equal(operands[at->q].name, "q");
    assert_string_equal(operands[at->lse].name, "lse");
    assert_string_equal(operands[at->own].name, "own");
    assert_true(operands[at->work].optional && !operands[at->own].optional);
    assert_null(sbp_command_attention(SBP_CMD_GEMM));
}

/* Traits name operands that are there; scratch is called work, and every work is scratch. */
static void test_traits(void **state) {
    (void)state;
    sbp_program program = {.name = "p"};
    sbp_command_operand operands[SBP_MAX_COMMAND_OPERANDS];
    sbp_command_kind found;
    for (int kind = 0; kind < SBP_CMD_COUNT; kind++) {
        sbp_command command = {.kind = (sbp_command_kind)kind};
        const sbp_command_traits *traits = sbp_command_traits_of(command.kind);
        assert_true(sbp_command_find(names[kind], &found) && found == command.kind);
        assert_int_equal(traits->operand_count, counts[kind]);
        assert_int_equal(traits->items == SBP_ITEMS_NONE, traits->keyed == SBP_KEYED_NOTHING);
        assert_int_equal(traits->attributes == SBP_ATTRIBUTES_ROW, traits->keyed == SBP_KEYED_KERNEL);
        if (counts[kind] == 0)
            continue;
        assert_true(traits->item_operand < counts[kind] && traits->empty < counts[kind]);
        assert_int_equal(traits->wide_if >> counts[kind], 0);
        (void)sbp_command_operands(&program, &command, operands);
        for (int32_t k = 0; k < counts[kind]; k++)
            assert_int_equal(strcmp(operands[k].name, "work") == 0, traits->scratch == k && k > 0);
    }
    assert_false(sbp_command_find("gem", &found));
    sbp_dtype dtypes[] = {SBP_F32, SBP_F64, SBP_F64, SBP_F32, SBP_F32};
    assert_true(sbp_command_sums_in_f64(SBP_CMD_GATHER, dtypes)); /* table is f64 */
    assert_false(sbp_command_sums_in_f64(SBP_CMD_GEMM, dtypes));  /* a and b are; d decides */
}

/* What a collective writes whole, it does not read. */
static void test_access(void **state) {
    (void)state;
    for (int op = 0; op < SBP_COLLECTIVE_COUNT; op++) {
        sbp_command c = {.kind = SBP_CMD_COLLECTIVE, .u.collective.op = (sbp_collective_op)op};
        bool whole = op == SBP_SHARE || op == SBP_ALL_GATHER || op == SBP_TO_HEADS || op == SBP_TO_ROWS ||
                     op == SBP_CONTEXT_GATHER || op == SBP_CONTEXT_SHARE || op == SBP_CONTEXT_REDUCE;
        assert_int_equal(sbp_command_access(&c, NULL, SBP_COLLECTIVE_DST), whole ? SBP_WRITE : SBP_UPDATE);
        assert_int_equal(sbp_command_access(&c, NULL, SBP_COLLECTIVE_SRC), SBP_READ);
    }
}

static void test_alias(void **state) {
    (void)state;
    for (int kind = 0; kind < SBP_CMD_COUNT; kind++)
        for (int32_t a = 0; kind != SBP_CMD_ROW && a < counts[kind]; a++)
            for (int32_t b = 0; b < counts[kind]; b++) {
                bool may =
                    (kind == SBP_CMD_GEMM && a == SBP_GEMM_D && b == SBP_GEMM_C) ||
                    (kind == SBP_CMD_COLLECTIVE && a == SBP_COLLECTIVE_DST && b == SBP_COLLECTIVE_SRC) ||
                    (kind == SBP_CMD_SCATTER && a == SBP_SCATTER_DST && b == SBP_SCATTER_SRC) ||
                    (kind == SBP_CMD_CONV_ROWS && a == SBP_CONV_ROWS_NEXT && b == SBP_CONV_ROWS_STATE) ||
                    (kind == SBP_CMD_DELTA_RULE && a == SBP_DELTA_RULE_NEXT && b == SBP_DELTA_RULE_STATE);
                assert_int_equal(sbp_command_may_alias((sbp_command_kind)kind, NULL, a, b), may);
            }
}

static sbp_operand_shape shape(int64_t rows, int64_t cols, sbp_dtype dtype) {
    return (sbp_operand_shape){.rows = rows, .cols = cols, .dtype = dtype, .space = SBP_DEVICE};
}

static sbp_work work_of(const sbp_command *c, const sbp_operand_shape *operands, int64_t ranks) {
    sbp_program program = {.ranks = 4, .group = 4, .context = 2};
    sbp_work work;
    sbp_command_work(
        &(sbp_work_query){
            .program = &program, .command = c, .operands = operands, .chunks = 1, .ranks = ranks},
        &work);
    return work;
}

static void test_work(void **state) {
    (void)state;
    const sbp_operand_shape absent = {.space = SBP_SPACE_COUNT};
    sbp_command gemm = {.kind = SBP_CMD_GEMM, .view_count = SBP_GEMM_OPERANDS, .u.gemm = {.tb = true}};
    const sbp_operand_shape product[] = {shape(3, 5, SBP_F32), shape(3, 7, SBP_BF16), shape(5, 7, SBP_BF16),
                                         absent, absent};
    sbp_work work = work_of(&gemm, product, 1);
    assert_int_equal(work.kind, SBP_WORK_MATMUL);
    assert_true(work.flops == 2 * 3 * 5 * 7 && work.rows == 3 && work.dtype == SBP_BF16);
    assert_true(work.bytes == 3 * 5 * 4 + (3 * 7 + 5 * 7) * 2);

    sbp_command gather = {.kind = SBP_CMD_GATHER, .view_count = SBP_GATHER_OPERANDS};
    const sbp_operand_shape some[] = {shape(4, 8, SBP_F32), shape(1000, 8, SBP_F32), shape(4, 1, SBP_I32)};
    work = work_of(&gather, some, 1);
    assert_true(work.kind == SBP_WORK_ROWS && work.bytes == 2 * 4 * 8 * 4 + 4 * 4);

    /* 2 rows of 3 slots touch no more than 6 of 100 experts, whose sums are read and written */
    sbp_command dw = {.kind = SBP_CMD_EXPERT_GEMM_DW,
                      .view_count = SBP_EXPERT_GEMM_DW_OPERANDS,
                      .u.experts = {.adds = true}};
    const sbp_operand_shape slots[] = {shape(100, 35, SBP_F32), shape(2, 5, SBP_BF16), shape(2, 7, SBP_BF16),
                                       shape(2, 3, SBP_I32), shape(1, 101, SBP_I32)};
    work = work_of(&dw, slots, 1);
    assert_true(work.kind == SBP_WORK_EXPERTS && work.flops == 2 * 6 * 35 && work.dtype == SBP_BF16);
    assert_true(work.bytes == 2 * 6 * 35 * 4 + 2 * (5 + 7) * 2 + (6 + 101) * 4);
    sbp_command experts = {.kind = SBP_CMD_EXPERT_GEMM, .view_count = SBP_EXPERT_GEMM_OPERANDS};
    const sbp_operand_shape few[] = {shape(2, 15, SBP_F32),    shape(2, 7, SBP_BF16),
                                     shape(100, 35, SBP_BF16), absent,
                                     shape(2, 3, SBP_I32),     shape(1, 101, SBP_I32)};
    work = work_of(&experts, few, 1);
    assert_true(work.kind == SBP_WORK_EXPERTS && work.flops == 2 * 6 * 35);
    assert_true(work.bytes == 2 * 15 * 4 + 2 * 7 * 2 + 6 * 35 * 2 + (6 + 101) * 4);
    /* four of 16 experts have a quarter of 80 slots; what others wrote is left */
    experts.u.experts.of = 16;
    const sbp_operand_shape piece[] = {shape(10, 8 * 5, SBP_F32), shape(10, 7, SBP_BF16),
                                       shape(4, 35, SBP_BF16),    absent,
                                       shape(10, 8, SBP_I32),     shape(1, 5, SBP_I32)};
    work = work_of(&experts, piece, 1);
    assert_true(work.flops == 2 * 20 * 35 && work.rows == 5);
    assert_true(work.bytes == (10 * 40 * 4 + 10 * 7 * 2 + (80 + 5) * 4) / 4 + 4 * 35 * 2);
    assert_int_equal(sbp_command_access(&experts, NULL, SBP_EXPERT_GEMM_D), SBP_WRITE);
    experts.u.experts.more = true;
    assert_int_equal(sbp_command_access(&experts, NULL, SBP_EXPERT_GEMM_D), SBP_UPDATE);

    sbp_command attention = {.kind = SBP_CMD_ATTN_FWD, .view_count = SBP_ATTN_FWD_OPERANDS};
    attention.u.attention = (sbp_attention_attrs){.heads = 2, .kv_heads = 1, .d_qk = 3, .d_v = 5};
    sbp_operand_shape q[SBP_ATTN_FWD_OPERANDS];
    for (int32_t k = 0; k < SBP_ATTN_FWD_OPERANDS; k++)
        q[k] = absent;
    q[SBP_ATTN_FWD_Q] = shape(4, 6, SBP_F32);
    q[SBP_ATTN_FWD_Q].first_row = 10;
    work = work_of(&attention, q, 1); /* rows 10 .. 13 see 11 + 12 + 13 + 14 */
    assert_true(work.kind == SBP_WORK_ATTENTION && work.flops == 50.0 * 2 * (6 + 10));
    attention.u.attention.by_rank = true;
    work = work_of(&attention, q, 2); /* rows 20 .. 27, of which this rank has a half */
    assert_true(work.flops == (21 + 28) * 8 / 2 / 2 * 2.0 * (6 + 10));

    sbp_command delta = {.kind = SBP_CMD_DELTA_RULE, .view_count = SBP_DELTA_RULE_OPERANDS};
    delta.u.delta = (sbp_delta_attrs){.heads = 2, .key_heads = 1, .d_k = 3, .d_v = 5, .corrects = true};
    sbp_operand_shape rule[SBP_DELTA_RULE_BWD_OPERANDS];
    for (int32_t k = 0; k < SBP_DELTA_RULE_BWD_OPERANDS; k++)
        rule[k] = absent;
    rule[SBP_DELTA_RULE_K] = shape(7, 3, SBP_BF16); /* the state alone: two products with it, two of rows */
    work = work_of(&delta, rule, 1);
    assert_true(work.kind == SBP_WORK_ATTENTION && work.dtype == SBP_BF16 &&
                work.flops == 2.0 * 7 * 2 * (2 * 3 * 5 + 32 * (3 + 5)));
    rule[SBP_DELTA_RULE_O] = shape(7, 10, SBP_BF16);
    work = work_of(&delta, rule, 1);
    assert_true(work.flops == 2.0 * 7 * 2 * (3 * 3 * 5 + 32 * 2 * (3 + 5)));
    delta.kind = SBP_CMD_DELTA_RULE_BWD;
    delta.view_count = SBP_DELTA_RULE_BWD_OPERANDS;
    rule[SBP_DELTA_RULE_BWD_K] = shape(7, 3, SBP_F32);
    work = work_of(&delta, rule, 1);
    assert_true(work.dtype == SBP_F32 && work.flops == 2.0 * 7 * 2 * (9 * 3 * 5 + 32 * (7 * 3 + 6 * 5)));

    delta.u.delta.corrects = false;
    delta.kind = SBP_CMD_DELTA_RULE;
    delta.view_count = SBP_DELTA_RULE_OPERANDS;
    rule[SBP_DELTA_RULE_O] = absent;
    rule[SBP_DELTA_RULE_K] = shape(7, 3, SBP_BF16); /* the state alone: one product */
    work = work_of(&delta, rule, 1);
    assert_true(work.kind == SBP_WORK_ATTENTION && work.dtype == SBP_BF16 &&
                work.flops == 2.0 * 7 * 2 * 3 * 5);
    rule[SBP_DELTA_RULE_O] = shape(7, 10, SBP_BF16);
    work = work_of(&delta, rule, 1);
    assert_true(work.flops == 2.0 * 7 * 2 * (2 * 3 * 5 + 32 * (3 + 5)));
    delta.kind = SBP_CMD_DELTA_RULE_BWD;
    delta.view_count = SBP_DELTA_RULE_BWD_OPERANDS;
    rule[SBP_DELTA_RULE_BWD_K] = shape(7, 3, SBP_F32);
    work = work_of(&delta, rule, 1);
    assert_true(work.dtype == SBP_F32 && work.flops == 2.0 * 7 * 2 * (5 * 3 * 5 + 32 * (3 * 3 + 2 * 5)));

    sbp_command share = {.kind = SBP_CMD_COLLECTIVE,
                         .view_count = SBP_COLLECTIVE_OPERANDS,
                         .u.collective.op = SBP_REDUCE_SCATTER};
    const sbp_operand_shape sums[] = {shape(2, 8, SBP_F32), shape(8, 8, SBP_BF16)};
    work = work_of(&share, sums, 1);
    assert_true(work.kind == SBP_WORK_COLLECTIVE && work.elems == 64 && work.dtype == SBP_BF16);
    share.u.collective.op = SBP_CONTEXT_GATHER;
    const sbp_operand_shape gathered[] = {shape(6, 8, SBP_F32), shape(3, 8, SBP_F32)};
    work = work_of(&share, gathered, 1);
    assert_true(work.kind == SBP_WORK_EXCHANGE && work.sent == 3 * 8 * 4);
    assert_int_equal(work_of(&(sbp_command){.kind = SBP_CMD_FENCE}, NULL, 1).kind, SBP_WORK_NONE);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_table), cmocka_unit_test(test_traits),
                                       cmocka_unit_test(test_access), cmocka_unit_test(test_alias),
                                       cmocka_unit_test(test_work)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
