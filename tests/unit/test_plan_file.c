/* test_plan_file.c: the container of plan.bin, recipes, and the tensor table. */
#include "frontends/formats/weights/tensor_table.h"
#include "ir/program/plan_file.h"
#include "ir/program/plan_meta.h"
#include "tests/common/expect.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

typedef struct tools {
    sbp_arena *arena;
    sbp_diag *diag;
    char directory[64];
} tools;

static int set_up(void **state) {
    tools *t = calloc(1, sizeof *t);
    t->arena = sbp_arena_create();
    t->diag = sbp_diag_create();
    strcpy(t->directory, "/tmp/sbp_plan_XXXXXX");
    assert_non_null(mkdtemp(t->directory));
    *state = t;
    return 0;
}

static int tear_down(void **state) {
    tools *t = *state;
    rmdir(t->directory);
    sbp_arena_destroy(t->arena);
    sbp_diag_destroy(t->diag);
    free(t);
    return 0;
}

/* ---- plan files ------------------------------------------------------------------------------------- */

typedef struct parse_job {
    tools *t;
    const void *data;
    size_t length;
    const sbp_plan_file *file;
} parse_job;

static sbp_status parse_body(void *user) {
    parse_job *j = user;
    return sbp_plan_file_parse(j->t->arena, j->t->diag, "plan.bin", j->data, j->length, &j->file);
}

static const sbp_plan_section sample[] = {
    {"program", "program x", 9}, {"tensors", "{}", 2},     {"meta", "{\"a\": 1}", 8},
    {"tokenizer", NULL, 0},      {"kernels", "\0\1\2", 3},
};

/* The bytes of the sample, to be freed. */
static char *sample_bytes(tools *t, size_t *length) {
    char path[96];
    snprintf(path, sizeof path, "%s/plan.bin", t->directory);
    assert_int_equal(sbp_plan_file_write(t->diag, path, sample, SBP_COUNT(sample)), SBP_OK);
    assert_true(sbp_plan_file_probe(path));
    const sbp_plan_file *file;
    assert_int_equal(sbp_plan_file_read(t->arena, t->diag, path, &file), SBP_OK);
    assert_int_equal(file->count, SBP_COUNT(sample));
    for (int k = 0; k < SBP_COUNT(sample); k++) {
        const sbp_plan_section *found = sbp_plan_file_find(file, sample[k].name);
        assert_non_null(found);
        assert_int_equal(found->length, sample[k].length);
        assert_int_equal(((const char *)found->data)[found->length], 0);
        if (found->length > 0)
            assert_memory_equal(found->data, sample[k].data, (size_t)found->length);
    }
    assert_null(sbp_plan_file_find(file, "template"));
    FILE *in = fopen(path, "rb");
    char *bytes = malloc(4096);
    *length = fread(bytes, 1, 4096, in);
    fclose(in);
    unlink(path);
    return bytes;
}

static void plan_files_round_trip(void **state) {
    size_t length;
    free(sample_bytes(*state, &length));
    assert_false(sbp_plan_file_probe("/"));
    assert_false(sbp_plan_file_probe("/dev/null/plan.bin"));
}

static void every_flipped_bit_is_found(void **state) {
    tools *t = *state;
    size_t length;
    char *bytes = sample_bytes(t, &length);
    for (size_t bit = 0; bit < length * 8; bit++) {
        char *copy = malloc(length);
        memcpy(copy, bytes, length);
        copy[bit / 8] = (char)(copy[bit / 8] ^ (1 << bit % 8));
        parse_job j = {t, copy, length, NULL};
        assert_int_equal(sbp_guard(t->arena, t->diag, parse_body, &j), SBP_INPUT);
        expect_text(t->diag, "error: plan.bin: ");
        free(copy);
    }
    bytes[length - 1] ^= 1;
    parse_job j = {t, bytes, length, NULL};
    assert_int_equal(sbp_guard(t->arena, t->diag, parse_body, &j), SBP_INPUT);
    expect_text(t->diag, "plan.bin: section 'kernels': checksum");
    free(bytes);
}

static void every_truncation_is_found(void **state) {
    tools *t = *state;
    size_t length;
    char *bytes = sample_bytes(t, &length);
    for (size_t n = 0; n < length; n++) {
        char *copy = malloc(n ? n : 1);
        memcpy(copy, bytes, n);
        parse_job j = {t, copy, n, NULL};
        assert_int_equal(sbp_guard(t->arena, t->diag, parse_body, &j), SBP_INPUT);
        expect_text(t->diag, "error: plan.bin: ");
        free(copy);
    }
    char *longer = malloc(length + 1);
    memcpy(longer, bytes, length);
    longer[length] = 0;
    parse_job j = {t, longer, length + 1, NULL};
    assert_int_equal(sbp_guard(t->arena, t->diag, parse_body, &j), SBP_INPUT);
    expect_text(t->diag, "bytes long, expected");
    free(longer);
    free(bytes);
}

static void bad_sections_are_our_bug(void **state) {
    tools *t = *state;
    const sbp_plan_section twice[] = {{"a", "", 0}, {"a", "", 0}};
    const sbp_plan_section long_name[] = {{"a-name-of-sixteen", "", 0}};
    assert_int_equal(sbp_plan_file_write(t->diag, "/dev/null/x", twice, 2), SBP_INTERNAL);
    assert_int_equal(sbp_plan_file_write(t->diag, "/dev/null/x", long_name, 1), SBP_INTERNAL);
    assert_int_equal(sbp_plan_file_write(t->diag, "/dev/null/x", twice, 1), SBP_IO);
}

/* ---- recipes ---------------------------------------------------------------------------------------- */

static sbp_recipe recipe(int32_t rank, const int64_t *dim, const sbp_recipe_step *steps, int32_t count) {
    sbp_recipe r = {.source = "w", .dtype = SBP_F32, .rank = rank, .step_count = count};
    r.steps = (sbp_recipe_step *)(uintptr_t)steps;
    memcpy(r.dim, dim, (size_t)rank * sizeof *dim);
    return r;
}

/* What the steps mean, done slowly on whole arrays of indices: out[target] = source. */
static int64_t slow(const sbp_recipe *r, int64_t *out) {
    int64_t dim[2] = {r->dim[0], r->rank > 1 ? r->dim[1] : 1}, n = dim[0] * dim[1];
    static int64_t now[4096], next[4096];
    for (int64_t k = 0; k < n; k++)
        now[k] = k;
    for (int32_t s = 0; s < r->step_count; s++) {
        const sbp_recipe_step *step = &r->steps[s];
        int64_t to[2] = {dim[0], dim[1]}, k = 0;
        if (step->op == SBP_RECIPE_SLICE)
            to[step->axis] = step->length * (step->heads > 1 ? step->heads : 1);
        if (step->op == SBP_RECIPE_TRANSPOSE) {
            to[0] = dim[1];
            to[1] = dim[0];
        }
        for (int64_t i = 0; i < to[0]; i++)
            for (int64_t j = 0; j < to[1]; j++, k++) {
                int64_t row = i, col = j;
                if (step->op == SBP_RECIPE_SLICE) {
                    int64_t *at = step->axis == 0 ? &row : &col, head = 0;
                    if (step->heads > 1)
                        head = *at / step->length * (dim[step->axis] / step->heads);
                    *at = head + step->start + (step->heads > 1 ? *at % step->length : *at);
                }
                if (step->op == SBP_RECIPE_TRANSPOSE) {
                    row = j;
                    col = i;
                }
                if (step->op == SBP_RECIPE_DEINTERLEAVE) {
                    int64_t head = dim[0] / step->heads, in = i % head;
                    row = i - in + (in < head / 2 ? 2 * in : 2 * (in - head / 2) + 1);
                }
                next[k] = now[row * dim[1] + col];
            }
        memcpy(now, next, sizeof now);
        dim[0] = to[0];
        dim[1] = to[1];
        n = k;
    }
    memcpy(out, now, (size_t)n * sizeof *out);
    return n;
}

typedef struct collected {
    int64_t target_of[4096]; /* per source element, -1 none */
    int64_t source_of[4096]; /* per target element */
    int64_t last, first, end;
    bool by_source;
    int runs;
} collected;

static sbp_status collect(void *user, const sbp_recipe_run *run) {
    collected *c = user;
    int64_t near = c->by_source ? run->source : run->target;
    assert_true(near > c->last && near >= c->first && near + run->count <= c->end && run->count > 0);
    c->last = near + run->count - 1;
    for (int64_t k = 0; k < run->count; k++) {
        c->target_of[run->source + k] = run->target + k;
        c->source_of[run->target + k] = run->source + k;
    }
    c->runs++;
    return SBP_OK;
}

static void recipes_move_elements_as_they_say(void **state) {
    tools *t = *state;
    const sbp_recipe_step slice0 = {.op = SBP_RECIPE_SLICE, .axis = 0, .start = 8, .length = 16};
    const sbp_recipe_step slice1 = {.op = SBP_RECIPE_SLICE, .axis = 1, .start = 3, .length = 5};
    const sbp_recipe_step heads0 = {.op = SBP_RECIPE_SLICE, .axis = 0, .start = 1, .length = 4, .heads = 3};
    const sbp_recipe_step heads1 = {.op = SBP_RECIPE_SLICE, .axis = 1, .start = 2, .length = 2, .heads = 2};
    const sbp_recipe_step turn = {.op = SBP_RECIPE_TRANSPOSE};
    const sbp_recipe_step part = {.op = SBP_RECIPE_DEINTERLEAVE, .heads = 2};
    const sbp_recipe_step lists[][4] = {{slice0},
                                        {slice1},
                                        {turn},
                                        {part},
                                        {slice0, part},
                                        {slice0, turn},
                                        {turn, slice0},
                                        {slice0, slice1, turn},
                                        {slice0, part, turn},
                                        {slice1, slice0, part, turn},
                                        {heads0, heads1, turn},
                                        {heads0}};
    const int counts[] = {1, 1, 1, 1, 2, 2, 2, 3, 3, 4, 3, 1};
    for (int k = 0; k < SBP_COUNT(counts); k++)
        for (int rank = 1; rank <= 2; rank++) {
            const int64_t dim[2] = {24, rank == 2 ? (k == 6 ? 30 : 10) : 1};
            sbp_recipe r = recipe(rank, dim, lists[k], counts[k]);
            sbp_recipe_map map;
            sbp_status status = sbp_recipe_compile(t->diag, &r, &map);
            if (rank == 1 && (k == 1 || k == 2 || (k >= 5 && k < 11))) {
                assert_int_equal(status, SBP_INPUT);
                continue;
            }
            assert_int_equal(status, SBP_OK);
            static int64_t want[4096];
            int64_t n = slow(&r, want);
            assert_int_equal(map.elems, n);
            for (int64_t e = 0; e < n; e++)
                assert_int_equal(sbp_recipe_source_index(&map, e), want[e]);
            static collected c;
            for (int side = 0; side < 2; side++)
                for (int64_t piece = 1; piece <= 300; piece = piece * 3 + 4) {
                    memset(&c, 0xff, sizeof c);
                    c.by_source = side == 0;
                    int64_t total = side == 0 ? map.source_elems : map.elems;
                    for (c.first = 0; c.first < total; c.first = c.end) {
                        c.end = c.first + piece;
                        assert_int_equal((side == 0 ? sbp_recipe_walk_source : sbp_recipe_walk_target)(
                                             &map, c.first, c.end, collect, &c),
                                         SBP_OK);
                    }
                    int64_t covered = 0;
                    for (int64_t e = 0; e < map.source_elems; e++)
                        if (c.target_of[e] >= 0) {
                            assert_int_equal(want[c.target_of[e]], e);
                            covered++;
                        }
                    assert_int_equal(covered, n);
                }
        }
}

static void recipes_drop_axes(void **state) {
    tools *t = *state;
    const sbp_recipe_step one = {.op = SBP_RECIPE_SLICE, .axis = 0, .start = 4, .length = 1};
    const sbp_recipe_step drop = {.op = SBP_RECIPE_SQUEEZE, .axis = 0},
                          none = {.op = SBP_RECIPE_SQUEEZE, .axis = 1};
    const sbp_recipe_step good[] = {one, drop}, wide[] = {one, none};
    sbp_recipe r = recipe(2, (const int64_t[]){24, 10}, good, 2);
    sbp_recipe_map map;
    assert_int_equal(sbp_recipe_compile(t->diag, &r, &map), SBP_OK);
    assert_int_equal(map.rank, 1);
    assert_int_equal(map.dim[0], 10);
    for (int64_t e = 0; e < 10; e++)
        assert_int_equal(sbp_recipe_source_index(&map, e), 40 + e);
    r = recipe(2, (const int64_t[]){24, 10}, wide, 2);
    assert_int_equal(sbp_recipe_compile(t->diag, &r, &map), SBP_INPUT); /* 10 long */
}

static void plain_recipes_are_one_run(void **state) {
    tools *t = *state;
    const sbp_recipe_step slice0 = {.op = SBP_RECIPE_SLICE, .axis = 0, .start = 8, .length = 8};
    sbp_recipe whole = recipe(2, (const int64_t[]){24, 10}, NULL, 0);
    sbp_recipe rows = recipe(2, (const int64_t[]){24, 10}, &slice0, 1);
    static collected c;
    sbp_recipe_map map;
    for (int k = 0; k < 2; k++) {
        memset(&c, 0, sizeof c);
        c.last = -1;
        c.by_source = true;
        c.end = 1000;
        assert_int_equal(sbp_recipe_compile(t->diag, k ? &rows : &whole, &map), SBP_OK);
        assert_int_equal(sbp_recipe_walk_source(&map, 0, 1000, collect, &c), SBP_OK);
        assert_int_equal(c.runs, 1);
    }
    sbp_recipe scalar = recipe(0, (const int64_t[]){0}, NULL, 0);
    memset(&c, 0, sizeof c);
    c.last = -1;
    c.end = 10;
    assert_int_equal(sbp_recipe_compile(t->diag, &scalar, &map), SBP_OK);
    assert_int_equal(sbp_recipe_walk_target(&map, 0, 10, collect, &c), SBP_OK);
    assert_int_equal(c.runs, 1);
}

static void recipes_change_values_and_back(void **state) {
    (void)state;
    const sbp_recipe_step steps[] = {{.op = SBP_RECIPE_CAST, .dtype = SBP_BF16},
                                     {.op = SBP_RECIPE_ADD, .constant = 1}};
    sbp_recipe r = recipe(1, (const int64_t[]){4}, steps, 2);
    assert_true(sbp_recipe_load_value(&r, 1 + 0x1p-9) == 2);
    assert_true(sbp_recipe_save_value(&r, 2.25) == 1.25);
}

static void bad_recipes_are_refused(void **state) {
    tools *t = *state;
    const sbp_recipe_step steps[] = {
        {.op = SBP_RECIPE_SLICE, .axis = 2, .length = 1},
        {.op = SBP_RECIPE_SLICE, .axis = -1, .length = 1},
        {.op = SBP_RECIPE_SLICE, .axis = 0, .start = 20, .length = 5},
        {.op = SBP_RECIPE_SLICE, .axis = 0, .start = INT64_MAX, .length = 5},
        {.op = SBP_RECIPE_SLICE, .axis = 0, .start = 4, .length = 5, .heads = 3},
        {.op = SBP_RECIPE_SLICE, .axis = 0, .length = 1, .heads = 5},
        {.op = SBP_RECIPE_SLICE, .axis = 0, .length = 1, .heads = -3},
        {.op = SBP_RECIPE_DEINTERLEAVE, .heads = 5},
        {.op = SBP_RECIPE_DEINTERLEAVE, .heads = 8},
        {.op = SBP_RECIPE_DEINTERLEAVE, .heads = 0},
        {.op = SBP_RECIPE_CAST, .dtype = SBP_I32},
        {.op = SBP_RECIPE_ADD, .constant = 1e308 * 10},
        {.op = SBP_RECIPE_OP_COUNT},
    };
    for (int k = 0; k < SBP_COUNT(steps); k++) {
        sbp_recipe r = recipe(2, (const int64_t[]){24, 10}, &steps[k], 1);
        sbp_recipe_map map;
        assert_int_equal(sbp_recipe_compile(t->diag, &r, &map), SBP_INPUT);
        expect_text(t->diag, "tensor 'w'");
    }
    sbp_recipe huge = recipe(2, (const int64_t[]){INT64_C(1) << 40, INT64_C(1) << 40}, NULL, 0);
    sbp_recipe_map map;
    assert_int_equal(sbp_recipe_compile(t->diag, &huge, &map), SBP_INPUT);
    huge.dim[0] = 0;
    assert_int_equal(sbp_recipe_compile(t->diag, &huge, &map), SBP_INPUT);
    const sbp_recipe_step split_then_slice[] = {{.op = SBP_RECIPE_DEINTERLEAVE, .heads = 2},
                                                {.op = SBP_RECIPE_SLICE, .axis = 0, .length = 2}};
    sbp_recipe r = recipe(2, (const int64_t[]){24, 10}, split_then_slice, 2);
    assert_int_equal(sbp_recipe_compile(t->diag, &r, &map), SBP_INPUT);
}

/* ---- tensor tables ---------------------------------------------------------------------------------- */

static const char table_text[] =
    "{\"tensors\": [\n"
    "{\"buffer\": \"L0.wq\", \"trainable\": true, \"decay\": true, \"init\": {\"normal\": 0.02}, "
    "\"pad_row\": 3, "
    "\"recipes\": "
    "[{\"source\": \"qkv\", \"dtype\": \"bf16\", \"shape\": [12, 4], \"steps\": [{\"slice\": [0, 0, 8]}]}, "
    "{\"source\": \"blk.0.attn_q.weight\", \"dtype\": \"f32\", \"shape\": [8, 4], \"steps\": "
    "[{\"deinterleave\": 2}, {\"add\": -1}, {\"cast\": \"f16\"}]}]},\n"
    "{\"buffer\": \"L0.wk\", \"trainable\": false, \"decay\": true, \"init\": \"zeros\", \"recipes\": "
    "[{\"source\": \"qkv\", \"dtype\": \"bf16\", \"shape\": [12, 4], \"steps\": [{\"slice\": [0, 8, 4]}, "
    "{\"transpose\": true}]}]},\n"
    "{\"buffer\": \"norm\", \"trainable\": true, \"decay\": false, \"fresh\": true, \"init\": \"ones\", "
    "\"recipes\": [{\"source\": \"norm.weight\", \"dtype\": \"f32\", \"shape\": [4]}], \"aliases\": "
    "[\"n1\", \"\\\"n2\\\"\"]},\n"
    "{\"buffer\": \"b\", \"trainable\": false, \"decay\": false, \"init\": \"zeros\", \"recipes\": "
    "[{\"source\": \"ba\", \"dtype\": \"f32\", \"shape\": [6], \"steps\": [{\"slice\": [0, 0, 1, 2]}]}]},\n"
    "{\"buffer\": \"a\", \"trainable\": false, \"decay\": false, \"init\": \"zeros\", \"recipes\": "
    "[{\"source\": \"ba\", \"dtype\": \"f32\", \"shape\": [6], \"steps\": [{\"slice\": [0, 1, 2, 2]}]}]}\n"
    "]}\n";

typedef struct table_job {
    tools *t;
    const char *text;
    size_t length;
    sbp_tensor_table *table;
    sbp_text printed;
    sbp_tensor_source *sources, *trainable;
    int32_t source_count, trainable_count;
} table_job;

static sbp_status table_body(void *user) {
    table_job *j = user;
    SBP_TRY(sbp_tensor_table_parse(j->t->arena, j->t->diag, "tensors", j->text, j->length, &j->table));
    sbp_text_init(&j->printed, j->t->arena);
    sbp_tensor_table_print(&j->printed, j->table);
    sbp_tensor_table_sources(j->t->arena, j->table, false, &j->sources, &j->source_count);
    sbp_tensor_table_sources(j->t->arena, j->table, true, &j->trainable, &j->trainable_count);
    return SBP_OK;
}

static void tensor_tables_round_trip(void **state) {
    tools *t = *state;
    table_job j = {.t = t, .text = table_text, .length = strlen(table_text)};
    if (sbp_guard(t->arena, t->diag, table_body, &j) != SBP_OK)
        fail_msg("%s", sbp_diag_text(t->diag, SBP_ERROR));
    assert_string_equal(j.printed.data, table_text);
    assert_int_equal(j.source_count, 3);
    assert_int_equal(j.sources[0].count, 2);
    assert_int_equal(j.sources[2].count, 2);
    assert_int_equal(j.trainable_count, 2);
    assert_int_equal(j.trainable[0].count, 1);
    assert_ptr_equal(sbp_tensor_table_find(j.table, "norm"), &j.table->tensors[2]);
    assert_null(sbp_tensor_table_find(j.table, "nothing"));
    assert_int_equal(j.table->tensors[1].map.dim[0], 4);
    assert_int_equal(j.table->tensors[1].map.elems, 16);
}

static void bad_tensor_tables_are_refused(void **state) {
    tools *t = *state;
    static const struct {
        const char *from, *to, *want;
    } cases[] = {
        {"\"L0.wk\"", "\"L0.wq\"", "buffer 'L0.wq' is there twice"},
        {"[0, 8, 4]", "[0, 7, 4]", "hold the same part of 'qkv'"},
        {"[0, 1, 2, 2]", "[0, 0, 2, 2]", "hold the same part of 'ba'"},
        {"[0, 1, 2, 2]", "[0, 2, 4]", "hold the same part of 'ba'"},
        {"[0, 1, 2, 2]", "[0, 1, 1, 2]", "hold 4 of its 6 elements"},
        {"[0, 8, 4]", "[0, 8, 3]", "hold 44 of its 48 elements"},
        {"[0, 8, 4]", "[0, 8]", "expected axis, start and length"},
        {"[0, 8, 4]", "[0, 8, 5]", "tensor 'qkv': cannot take 5 from 8 on of axis 0"},
        {"[8, 4]", "[8, 5]", "give different shapes"},
        {"\"deinterleave\": 2", "\"deinterleave\": 3", "cannot deinterleave 3 heads"},
        {"\"deinterleave\"", "\"interleave\"", "unknown step"},
        {"\"f16\"", "\"i32\"", "'i32' is not a float type"},
        {"\"zeros\"", "\"sevens\"", "unknown rule 'sevens'"},
        {"{\"normal\": 0.02}", "{\"normal\": -1}", "deviation -1"},
        {"\"pad_row\": 3", "\"pad_row\": 12", "pad_row 12 of 12"},
        {"[{\"source\": \"norm.weight\", \"dtype\": \"f32\", \"shape\": [4]}]", "[]", "has no recipe"},
        {"\"trainable\": true", "\"trainable\": 1", "trainable"},
        {"\"buffer\": \"norm\", ", "", "buffer"},
        {"[4]", "[1,1,1,1,1,1,4]", "7 numbers"},
        {"{\"tensors\": [", "[", "tensors"},
    };
    for (int k = 0; k < SBP_COUNT(cases); k++) {
        const char *at = strstr(table_text, cases[k].from);
        assert_non_null(at);
        char text[2048];
        int n = snprintf(text, sizeof text, "%.*s%s%s", (int)(at - table_text), table_text, cases[k].to,
                         at + strlen(cases[k].from));
        table_job j = {.t = t, .text = text, .length = (size_t)n};
        assert_int_equal(sbp_guard(t->arena, t->diag, table_body, &j), SBP_INPUT);
        expect_text(t->diag, cases[k].want);
    }
}

/* ---- what a plan says of itself --------------------------------------------------------------------- */

/* A member that is to be looked up by name is no list, and a list no object: nobody behind asks again. */
static void trees_of_another_kind_are_refused(void **state) {
    tools *t = *state;
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"{\"defaults\": [\"beta\"]}", "defaults: expected an object, found an array"},
        {"{\"memory\": [1]}", "memory: expected an object, found an array"},
        {"{\"options\": \"none\"}", "options: expected an object, found a string"},
        {"{\"arguments\": {\"lr\": 1}}", "arguments: expected an array, found an object"},
        {"{\"model\": {\"eos_ids\": {\"a\": 1}}}", "eos_ids: expected an array, found an object"},
        /* and so down to the leaves */
        {"{\"arguments\": [\"--lr=1\", 2]}", "arguments[1]: expected a string, found an integer"},
        {"{\"memory\": {\"device\": {\"a\": 1, \"b\": \"2\"}}}",
         "memory.device.b: expected a number, found a string"},
        {"{\"schedule\": {\"chunk\": 1.5}}", "schedule.chunk: expected an integer, found a number"},
        {"{\"estimate\": {\"useful_flops\": {\"attention\": \"none\"}}}",
         "attention: expected an array, found a string"},
        {"{\"estimate\": {\"useful_flops\": {\"attention\": [{\"window\": 0}, 1]}}}",
         "attention[1]: expected an object, found an integer"},
        {"{\"estimate\": {\"useful_flops\": {\"attention\": [{\"window\": []}]}}}",
         "attention[0].window: expected an integer, found an array"},
        {"{\"throughput\": {\"source\": \"table\", \"row_ops\": true}}",
         "throughput.row_ops: expected a number, found a boolean"},
    };
    for (int k = 0; k < SBP_COUNT(cases); k++) {
        const sbp_json *root;
        sbp_plan_meta meta;
        expect_ok(t->diag,
                  sbp_json_parse(t->arena, t->diag, "meta", cases[k].text, strlen(cases[k].text), 0, &root));
        assert_int_equal(sbp_plan_meta_read(t->diag, root, &meta), SBP_INPUT);
        expect_text(t->diag, cases[k].want);
        sbp_diag_clear(t->diag);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plan_files_round_trip),
        cmocka_unit_test(every_flipped_bit_is_found),
        cmocka_unit_test(every_truncation_is_found),
        cmocka_unit_test(bad_sections_are_our_bug),
        cmocka_unit_test(recipes_move_elements_as_they_say),
        cmocka_unit_test(recipes_drop_axes),
        cmocka_unit_test(plain_recipes_are_one_run),
        cmocka_unit_test(recipes_change_values_and_back),
        cmocka_unit_test(bad_recipes_are_refused),
        cmocka_unit_test(tensor_tables_round_trip),
        cmocka_unit_test(bad_tensor_tables_are_refused),
        cmocka_unit_test(trees_of_another_kind_are_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
