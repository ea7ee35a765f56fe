/* test_base.c: plans with parameters in blocks: parts in a bucket of bytes, the tensor table's word for it,
 * what does not fit together; and how blocks come out of files whose rows lie in another order. */
#include "runtime/run/plan.h"
#include "tests/common/expect.h"
#include "tests/unit/place.h"

#include <stdio.h>
#include <string.h>

static const char program_text[] =
    "program p\ntarget cpu\nsizes t_max 8, s_max 1, chunk 4, head_chunk 4\narena device 0, host 0\n"
    "scalars T, S\n"
    "buffer q.packed bucket device i8[3, 256]\n"
    "buffer q.codes param device i8[8, 32] in q.packed at 0\n"
    "buffer q.scales param device f16[8, 1] in q.packed at 512\n"
    "buffer w param device f32[2, 4]\n"
    "entry update {\n}\n";

static const char tensors_text[] =
    "{\"tensors\": ["
    "{\"buffer\": \"q\", \"trainable\": false, \"decay\": true, \"format\": \"q8_0\", \"recipes\": "
    "[{\"source\": \"q\", \"shape\": [4, 64]}]},"
    "{\"buffer\": \"w\", \"trainable\": true, \"decay\": true, \"recipes\": [{\"source\": \"w\", \"shape\": "
    "[2, 4]}]}"
    "]}";

typedef struct job {
    sbp_arena *arena;
    sbp_diag *diag;
    const char *program, *tensors;
    const sbp_plan *plan;
    char *printed; /* the tensor table */
} job;

static sbp_status open_plan(void *user) {
    job *j = user;
    sbp_program *program;
    SBP_TRY(sbp_program_parse(j->arena, j->diag, "test", j->program, strlen(j->program), &program));
    place(program);
    sbp_text out, table;
    sbp_text_init(&out, j->arena);
    sbp_text_init(&table, j->arena);
    sbp_program_print(&out, program);
    const sbp_plan_section sections[] = {
        {SBP_PLAN_PROGRAM, out.data, (int64_t)out.length},
        {SBP_PLAN_TENSORS, j->tensors, (int64_t)strlen(j->tensors)},
        {SBP_PLAN_META, "{}", 2},
    };
    const sbp_plan_file file = {"plan.bin", (sbp_plan_section *)sections, SBP_COUNT(sections)};
    SBP_TRY(sbp_plan_load(j->arena, j->diag, &file, &j->plan));
    sbp_tensor_table_print(&table, j->plan->tensors);
    j->printed = table.data;
    return SBP_OK;
}

/* `text` with the first `from` replaced; the text itself when `from` does not occur. */
static const char *changed(sbp_arena *arena, const char *text, const char *from, const char *to) {
    const char *found = strstr(text, from);
    return found ? sbp_arena_printf(arena, "%.*s%s%s", (int)(found - text), text, to, found + strlen(from))
                 : text;
}

static void parts_are_bound_by_their_names(void **state) {
    (void)state;
    static const struct {
        const char *from, *to, *want; /* want "": it opens */
    } cases[] = {
        {"", "", ""},
        {"buffer q.scales param device f16[8, 1]", "buffer q.scales param device bf16[8, 1]",
         "'q.scales' is not the scales of 256 numbers in q8_0"},
        {"buffer q.scales param device f16[8, 1]", "buffer q.scales param device f16[4, 2]",
         "is not the scales"},
        {"buffer q.codes param", "buffer q.code param", "'q.codes' is not the codes"},
        {"buffer q.codes param device i8[8, 32]", "buffer q.codes param device i8[7, 32]",
         "is not the codes"},
        {"buffer q.codes param device", "buffer q.codes grad device", "is not the codes"},
        {"\"shape\": [4, 64]", "\"shape\": [4, 63]", "is not the codes of 252 numbers"},
        {"\"format\": \"q8_0\"", "\"format\": \"q8_1\"", "'q8_1' is not a format of a frozen tensor"},
        {"\"format\": \"q8_0\"", "\"format\": \"nf4\"", "is not the codes of 256 numbers in nf4"},
        {"\"format\": \"q8_0\", ", "", "'q' is not a parameter of the program"},
        {"\"trainable\": false", "\"trainable\": true", "is not a format of a trained tensor"},
        {"\"buffer\": \"w\"", "\"buffer\": \"q.codes\"", "its buffer is i8 of 8 x 32"},
        /* the verifier's */
        {"i8[3, 256]", "bf16[3, 256]", "program_c29"},
        {"at 512", "at 760", "program_c29"},
        {"f16[8, 1] in q.packed at 512", "f16[8, 20] in q.packed at 512",
         "program_c29"}, /* 320 bytes of 256 */
    };
    for (int k = 0; k < SBP_COUNT(cases); k++) {
        job j = {.arena = sbp_arena_create(), .diag = sbp_diag_create()};
        bool same = !cases[k].from[0];
        j.program = same ? program_text : changed(j.arena, program_text, cases[k].from, cases[k].to);
        j.tensors = same ? tensors_text : changed(j.arena, tensors_text, cases[k].from, cases[k].to);
        if (!same && strcmp(j.program, program_text) == 0 && strcmp(j.tensors, tensors_text) == 0)
            fail_msg("'%s' does not occur", cases[k].from);
        sbp_status status = sbp_guard(j.arena, j.diag, open_plan, &j);
        if (status != (cases[k].want[0] ? SBP_INPUT : SBP_OK))
            fail_msg("%s -> %s: %d, %s", cases[k].from, cases[k].to, status, sbp_diag_text(j.diag, SBP_NOTE));
        expect_text(j.diag, cases[k].want);
        if (status == SBP_OK) {
            const sbp_plan *p = j.plan;
            assert_string_equal(p->program->buffers[p->parts[0][0]].name, "q.codes");
            assert_string_equal(p->program->buffers[p->parts[0][1]].name, "q.scales");
            assert_true(p->buffers[0] == p->parts[0][0] && p->tensor_of[p->parts[0][1]] == 0);
            assert_non_null(strstr(j.printed, "\"format\": \"q8_0\""));
        }
        sbp_arena_destroy(j.arena);
        sbp_diag_destroy(j.diag);
    }
}

/* A recipe of blocks does to blocks what the recipe does to elements. */
static void recipes_move_blocks(void **state) {
    (void)state;
    enum { ROWS = 8, COLS = 96, BLOCK = 32 };
    sbp_diag *diag = sbp_diag_create();
    sbp_recipe_step turn = {.op = SBP_RECIPE_DEINTERLEAVE, .heads = 2},
                    some = {.op = SBP_RECIPE_SLICE, .axis = 0, .start = 3, .length = 4}, none = {0};
    const sbp_recipe_step *const kept[] = {&none, &turn, &some};
    for (int k = 0; k < SBP_COUNT(kept); k++) {
        sbp_recipe recipe = {.source = "w",
                             .dtype = SBP_F32,
                             .rank = 2,
                             .dim = {ROWS, COLS},
                             .steps = (sbp_recipe_step *)kept[k],
                             .step_count = k > 0},
                   blocks;
        sbp_recipe_map whole, map;
        assert_true(sbp_recipe_of_blocks(&recipe, BLOCK, &blocks));
        assert_int_equal(sbp_recipe_compile(diag, &recipe, &whole), SBP_OK);
        assert_int_equal(sbp_recipe_compile(diag, &blocks, &map), SBP_OK);
        assert_int_equal(map.elems * BLOCK, whole.elems);
        for (int64_t i = 0; i < whole.elems; i++)
            assert_int_equal(sbp_recipe_source_index(&whole, i),
                             sbp_recipe_source_index(&map, i / BLOCK) * BLOCK + i % BLOCK);
        assert_false(sbp_recipe_of_blocks(&recipe, 64, &blocks));
    }
    static const sbp_recipe_step others[] = {{.op = SBP_RECIPE_TRANSPOSE},
                                             {.op = SBP_RECIPE_ADD, .constant = 1},
                                             {.op = SBP_RECIPE_CAST, .dtype = SBP_BF16},
                                             {.op = SBP_RECIPE_SLICE, .axis = 1, .start = 0, .length = 32}};
    for (int k = 0; k < SBP_COUNT(others); k++) {
        sbp_recipe recipe = {.source = "w",
                             .rank = 2,
                             .dim = {ROWS, COLS},
                             .steps = (sbp_recipe_step *)&others[k],
                             .step_count = 1},
                   blocks;
        assert_false(sbp_recipe_of_blocks(&recipe, BLOCK, &blocks));
    }
    sbp_diag_destroy(diag);
}

static void count_message(void *user, sbp_severity severity, const char *text) {
    (void)text;
    ((int *)user)[severity]++;
}

static void quantities_are_written_for_people(void **state) {
    char out[40];
    (void)state;
    assert_string_equal(sbp_format_seconds(out, sizeof out, 1.48e5), "41.1 h");
    assert_string_equal(sbp_format_seconds(out, sizeof out, 0.324), "0.324 s");
    assert_string_equal(sbp_format_seconds(out, sizeof out, 0.0156), "15.6 ms");
    assert_string_equal(sbp_format_seconds(out, sizeof out, 2e-5), "20 us");
    assert_string_equal(sbp_format_seconds(out, sizeof out, 119), "119 s");
    assert_string_equal(sbp_format_seconds(out, sizeof out, 120), "2 min");
    assert_string_equal(sbp_format_seconds(out, sizeof out, 1e9), "11600 days");
    assert_string_equal(sbp_format_seconds(out, sizeof out, 0), "0 us");
    assert_string_equal(sbp_format_flops(out, sizeof out, 2.82e16), "28.2 PFLOP");
    assert_string_equal(sbp_format_flops(out, sizeof out, 999.7e9), "1000 GFLOP");
    assert_string_equal(sbp_format_three(out, sizeof out, 12599.6), "12600");
    assert_string_equal(sbp_format_three(out, sizeof out, 1.5), "1.5");
}

static void long_lines_are_broken(void **state) {
    static const char text[] = "one two three\nfour\n\nalpha+beta+gamma,delta unbreakable_word\n";
    sbp_arena *arena = sbp_arena_create();
    sbp_text out;
    (void)state;
    sbp_text_init(&out, arena);
    sbp_text_add_wrapped(&out, text, 10, 2);
    assert_string_equal(out.data,
                        "one two\n  three\nfour\n\nalpha+\n  beta+\n  gamma,\n  delta\n  unbreakable_word\n");
    sbp_arena_destroy(arena);
}

static void notes_can_be_left_out(void **state) {
    sbp_diag *diag = sbp_diag_create();
    int seen[3] = {0};
    (void)state;
    sbp_diag_set_sink(diag, count_message, seen);
    sbp_note(diag, "one");
    sbp_diag_set_quiet(diag);
    sbp_note(diag, "two");
    sbp_warn(diag, "three");
    assert_int_equal(sbp_fail(diag, SBP_IO, "four"), SBP_IO);
    assert_true(seen[SBP_NOTE] == 1 && seen[SBP_WARNING] == 1 && seen[SBP_ERROR] == 1);
    assert_int_equal(sbp_diag_count(diag, SBP_NOTE), 2);
    sbp_diag_destroy(diag);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_are_bound_by_their_names),
        cmocka_unit_test(recipes_move_blocks),
        cmocka_unit_test(quantities_are_written_for_people),
        cmocka_unit_test(long_lines_are_broken),
        cmocka_unit_test(notes_can_be_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
