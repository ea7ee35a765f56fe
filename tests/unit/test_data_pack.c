/* Data in memory: overlong documents, order of the rows, packing, columns. */
#include "tests/unit/io_testing.h"

#include <math.h>

#include "tests/unit/pack_testing.h"

/* A file of rows with input_ids of these lengths; row r holds ids r*20 + i, every third label is masked. */
static void put_rows(io_fixture *f, const int *lengths, int count) {
    FILE *file = fopen(io_path(f, "rows.jsonl"), "w");
    assert_non_null(file);
    for (int r = 0; r < count; r++) {
        fprintf(file, "{\"input_ids\": [");
        for (int i = 0; i < lengths[r]; i++)
            fprintf(file, "%s%d", i ? ", " : "", r * 20 + i % 20);
        fprintf(file, "], \"labels\": [");
        for (int i = 0; i < lengths[r]; i++)
            fprintf(file, "%s%d", i ? ", " : "", i % 3 == 2 ? -100 : r * 20 + i % 20);
        fprintf(file, "]}\n");
    }
    fclose(file);
}

static sbp_status load(io_fixture *f, int64_t most, sbp_overlong overlong, sbp_dataset **out) {
    const char *files[] = {sbp_arena_strdup(f->arena, io_path(f, "rows.jsonl"))};
    sbp_dataset_options o = {.files = files, .file_count = 1, .max_tokens = most, .overlong = overlong};
    return sbp_dataset_load(f->diag, &o, out);
}

static void test_loading(void **state) {
    io_fixture *f = *state;
    sbp_dataset *d;
    put_rows(f, (int[]){4, 1, 0, 9}, 4);
    assert_ok(f, load(f, 0, SBP_OVERLONG_ERROR, &d));
    assert_int_equal(d->read_count, 4);
    assert_int_equal(d->row_count, 3);
    assert_int_equal(d->empty, 1);
    assert_int_equal(d->doc_count, 3);
    assert_int_equal(d->token_count, 14);
    assert_int_equal(d->docs[0].labels, 2); /* positions 1 and 3 */
    assert_int_equal(d->docs[1].labels, 0); /* the first token is never a label */
    assert_int_equal(d->docs[2].labels, 5); /* 1 3 4 6 7 */
    assert_int_equal(d->docs[2].row, 3);
    assert_int_equal(d->longest, 9);
    assert_int_equal(sbp_dataset_row_tokens(d, 2), 9);
    sbp_dataset_destroy(d);
    io_put(io_path(f, "rows.jsonl"), "\n\n", 2);
    assert_fails(f, SBP_INPUT, "no rows", load(f, 0, SBP_OVERLONG_ERROR, &d));
    io_put(io_path(f, "rows.jsonl"), "{\"input_ids\": [1]}\n", 19);
    assert_ok(f, load(f, 0, SBP_OVERLONG_ERROR, &d)); /* nothing counts: a warning */
    assert_int_equal(sbp_diag_count(f->diag, SBP_WARNING), 1);
    sbp_dataset_destroy(d);
}

static void test_overlong(void **state) {
    io_fixture *f = *state;
    sbp_dataset *d;
    put_rows(f, (int[]){4, 11, 7, 3}, 4);
    assert_fails(f, SBP_INPUT,
                 "rows.jsonl:2: a document of 11 tokens, the plan has room for 5; 2 such rows, the longest "
                 "of 11 tokens: "
                 "compile with --seq-len 11",
                 load(f, 5, SBP_OVERLONG_ERROR, &d));
    assert_ok(f, load(f, 5, SBP_OVERLONG_TRUNCATE, &d));
    assert_int_equal(d->row_count, 4);
    assert_int_equal(d->truncated, 2);
    assert_int_equal(d->docs[1].count, 5);
    assert_int_equal(d->tokens[d->docs[1].first + 4], 24);
    sbp_dataset_destroy(d);
    assert_ok(f, load(f, 5, SBP_OVERLONG_DROP, &d));
    assert_int_equal(d->row_count, 2);
    assert_int_equal(d->dropped, 2);
    assert_int_equal(d->docs[1].row, 3);
    sbp_dataset_destroy(d);
    assert_ok(f, load(f, 5, SBP_OVERLONG_SPLIT, &d));
    assert_int_equal(d->row_count, 4);
    assert_int_equal(d->doc_count, 1 + 3 + 2 + 1);
    assert_int_equal(d->rows[2] - d->rows[1], 3);
    assert_int_equal(d->docs[3].count, 1);
    assert_int_equal(d->token_count, 25);
    sbp_dataset_destroy(d);
    /* what is left has no label */
    static const char masked[] = "{\"input_ids\": [1, 2, 3], \"labels\": [-100, -100, 3]}\n"
                                 "{\"input_ids\": [1, 2, 3], \"labels\": [-100, 2, 3]}\n";
    io_put(io_path(f, "rows.jsonl"), masked, sizeof masked - 1);
    assert_ok(f, load(f, 2, SBP_OVERLONG_TRUNCATE, &d));
    assert_int_equal(d->row_count, 1);
    assert_int_equal(d->docs[0].row, 1);
    sbp_dataset_destroy(d);
}

/* ---- order ------------------------------------------------------------------------------------------ */

static sbp_dataset *make_data(io_fixture *f, int rows) {
    int lengths[200];
    sbp_dataset *d;
    for (int r = 0; r < rows; r++)
        lengths[r] = 1 + r * 7 % 13;
    put_rows(f, lengths, rows);
    assert_ok(f, load(f, 0, SBP_OVERLONG_ERROR, &d));
    return d;
}

static void test_order_of_the_file(void **state) {
    io_fixture *f = *state;
    sbp_dataset *d = make_data(f, 11);
    sbp_sampler s;
    assert_ok(f, sbp_sampler_init(&s, f->diag, d, 42, false, 4, 0));
    assert_int_equal(sbp_sampler_epoch_steps(&s, 0), 3);
    assert_int_equal(sbp_sampler_total_steps(&s, 2.5), 8); /* ceil(2.5 * 3) */
    for (int step = 0; step < 7; step++) {
        int64_t count;
        const int64_t *rows = sbp_sampler_next(&s, &count);
        assert_int_equal(count, step % 3 == 2 ? 3 : 4); /* the last step of an epoch is smaller */
        assert_int_equal(s.epoch, step / 3);
        for (int64_t i = 0; i < count; i++)
            assert_int_equal(rows[i], step % 3 * 4 + i);
    }
    sbp_sampler_close(&s);
    sbp_dataset_destroy(d);
}

static void take_epoch(sbp_sampler *s, int64_t *out, int64_t rows) {
    for (int64_t at = 0; at < rows;) {
        int64_t count;
        const int64_t *next = sbp_sampler_next(s, &count);
        memcpy(out + at, next, (size_t)count * sizeof *out);
        at += count;
    }
}

static void test_shuffled_order(void **state) {
    io_fixture *f = *state;
    enum { ROWS = 101 };
    sbp_dataset *d = make_data(f, ROWS);
    int64_t order[3][ROWS], again[ROWS], moved = 0;
    sbp_sampler s;
    assert_ok(f, sbp_sampler_init(&s, f->diag, d, 42, true, 8, 0));
    for (int e = 0; e < 3; e++) {
        bool seen[ROWS] = {false};
        take_epoch(&s, order[e], ROWS);
        for (int i = 0; i < ROWS; i++) {
            assert_false(seen[order[e][i]]);
            seen[order[e][i]] = true;
            moved += order[e][i] != i;
        }
    }
    assert_true(moved > 3 * ROWS * 9 / 10);
    assert_memory_not_equal(order[0], order[1], sizeof order[0]);
    /* any position can be reached without the ones before */
    sbp_sampler_seek(&s, 1, 0);
    take_epoch(&s, again, ROWS);
    assert_memory_equal(again, order[1], sizeof again);
    sbp_sampler_seek(&s, 2, 16);
    int64_t count;
    assert_int_equal(sbp_sampler_next(&s, &count)[0], order[2][16]);
    sbp_sampler_close(&s);
    assert_ok(f, sbp_sampler_init(&s, f->diag, d, 43, true, 8, 0));
    take_epoch(&s, again, ROWS);
    assert_memory_not_equal(again, order[0], sizeof again);
    sbp_sampler_close(&s);
    sbp_dataset_destroy(d);
}

static void test_steps_by_tokens(void **state) {
    io_fixture *f = *state;
    sbp_dataset *d = make_data(f, 60);
    sbp_sampler s;
    assert_ok(f, sbp_sampler_init(&s, f->diag, d, 7, true, 8, 20));
    int64_t total = sbp_sampler_total_steps(&s, 2), steps = 0;
    assert_int_equal(s.epoch, 0);
    while (s.epoch < 2) {
        int64_t count, tokens = 0;
        const int64_t *rows = sbp_sampler_next(&s, &count);
        if (s.epoch == 2)
            break;
        steps++;
        for (int64_t i = 0; i < count; i++)
            tokens += sbp_dataset_row_tokens(d, rows[i]);
        assert_true(count == 1 || tokens <= 20);
        if (s.at < d->row_count) /* the next row did not fit */
            assert_true(tokens + sbp_dataset_row_tokens(d, s.order[s.at]) > 20);
    }
    assert_int_equal(steps, total);
    /* Epochs differ in steps: a fraction is one of the epoch that it is of. */
    int64_t each[3];
    for (int e = 0; e < 3; e++)
        each[e] = sbp_sampler_epoch_steps(&s, e);
    for (int k = 1; k < 30; k++) {
        double epochs = k / 10.0;
        int64_t want = 0;
        for (int e = 0; e < 3; e++) {
            double share = epochs - e;
            want += share >= 1 ? each[e] : share > 0 ? (int64_t)ceil(share * (double)each[e]) : 0;
        }
        assert_int_equal(sbp_sampler_total_steps(&s, epochs), want);
    }
    sbp_sampler_close(&s);
    assert_ok(f, sbp_sampler_init(&s, f->diag, d, 7, true, 8, 1)); /* smaller than any row: one at a time */
    assert_true(sbp_sampler_epoch_steps(&s, 0) == 60);
    sbp_sampler_close(&s);
    sbp_dataset_destroy(d);
}

/* ---- packing ---------------------------------------------------------------------------------------- */

static void test_best_fit(void **state) {
    io_fixture *f = *state;
    sbp_dataset *d;
    put_rows(f, (int[]){3, 6, 4, 5, 2, 8, 1}, 7);
    assert_ok(f, load(f, 10, SBP_OVERLONG_ERROR, &d));
    sbp_packer p;
    sbp_packer_init(&p, 10, NULL);
    assert_ok(f, sbp_packer_pack(&p, f->diag, d, (int64_t[]){0, 1, 2, 3, 4, 5, 6}, 7));
    /* 8 | 6 | 5; 4 fits 6 exactly; 3 goes to 5; 2 fits 8 exactly; 1 goes to 5+3 */
    assert_int_equal(p.part_count, 3);
    static const int64_t want[3][3] = {{4, 5, -1}, {1, 2, -1}, {0, 3, 6}};
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++)
            if (want[i][j] >= 0)
                assert_int_equal(p.parts[i].docs[j], want[i][j]);
    assert_int_equal(p.parts[2].rows, 9);
    assert_int_equal(p.rows, 29);
    assert_int_equal(p.longest, 8);
    assert_ok(f, sbp_packer_pack(&p, f->diag, d, (int64_t[]){0, 4, 2}, 3));
    assert_int_equal(p.longest, 4); /* of this step */
    sbp_packer_close(&p);
    sbp_dataset_destroy(d);
}

/* Every document once, whole, in order inside its micro-batch; no two micro-batches would fit into one. */
static void test_packing_invariants(void **state) {
    io_fixture *f = *state;
    uint64_t random = 5;
    for (int round = 0; round < 60; round++) {
        int count = 1 + (int)(io_random(&random) % 60), most = 5 + (int)(io_random(&random) % 60),
            lengths[60];
        int64_t rows[60];
        for (int r = 0; r < count; r++) {
            lengths[r] = 1 + (int)(io_random(&random) % (uint32_t)most);
            rows[r] = count - 1 - r;
        }
        put_rows(f, lengths, count);
        sbp_dataset *d;
        assert_ok(f, load(f, most, SBP_OVERLONG_ERROR, &d));
        sbp_packer p;
        sbp_packer_init(&p, most, NULL);
        assert_ok(f, sbp_packer_pack(&p, f->diag, d, rows, count));
        bool seen[60] = {false};
        int64_t total = 0, labels = 0, open = 0;
        for (int32_t b = 0; b < p.part_count; b++) {
            int64_t sum = 0;
            for (int64_t k = 0; k < p.parts[b].count; k++) {
                int64_t doc = p.parts[b].docs[k];
                assert_false(seen[doc]);
                seen[doc] = true;
                assert_true(k == 0 || doc > p.parts[b].docs[k - 1]);
                sum += d->docs[doc].count;
            }
            assert_int_equal(sum, p.parts[b].rows);
            assert_true(sum <= most);
            open += 2 * sum <= most;
            total += sum;
            labels += p.parts[b].labels;
        }
        assert_true(open <= 1);
        assert_int_equal(total, d->token_count);
        assert_int_equal(total, p.rows);
        assert_int_equal(labels, d->label_count);
        assert_int_equal(labels, p.labels);
        sbp_packer_close(&p);
        sbp_dataset_destroy(d);
    }
}

static void test_columns(void **state) {
    io_fixture *f = *state;
    sbp_dataset *d;
    put_rows(f, (int[]){4, 1, 3}, 3);
    assert_ok(f, load(f, 0, SBP_OVERLONG_ERROR, &d));
    sbp_packer p;
    sbp_packer_init(&p, 8, NULL);
    assert_ok(f, sbp_packer_pack(&p, f->diag, d, (int64_t[]){0, 1, 2}, 3));
    assert_int_equal(p.part_count, 1);
    assert_ok(f, sbp_packer_columns(&p, f->diag, d, &p.parts[0]));
    assert_int_equal(p.column_count, 15);
    static const int32_t tok[] = {0, 1, 2, 3, 20, 40, 41, 42}, pos[] = {0, 1, 2, 3, 0, 0, 1, 2},
                         first[] = {0, 0, 0, 0, 4, 5, 5, 5}, label[] = {1, 2, 3, 0, 0, 41, 42, 0},
                         place[] = {0, 1, 2, 3, 4, 5, 6, 7}, doc[] = {0, 0, 0, 0, 1, 2, 2, 2};
    static const float weight[] = {1, 0, 1, 0, 0, 1, 0, 0}, predicted[] = {1, 1, 1, 0, 0, 1, 1, 0};
    assert_memory_equal(ints(&p, "tok"), tok, sizeof tok);
    assert_memory_equal(ints(&p, "pos"), pos, sizeof pos);
    static const double below_41[] = {0, 1, 2, 3, 20, 40, 0, 0};
    double below[SBP_COUNT(below_41)];
    assert_ok(f, sbp_pack_column(f->diag, d, (int64_t[]){0, 1, 2}, 3, 8, SBP_TOK_BELOW_PREFIX "41", below));
    assert_memory_equal(below, below_41, sizeof below);
    assert_memory_equal(ints(&p, "first"), first, sizeof first);
    assert_memory_equal(ints(&p, "shared_end"), first, sizeof first);
    assert_memory_equal(ints(&p, "own"), first, sizeof first);
    assert_memory_equal(ints(&p, "place"), place, sizeof place);
    assert_memory_equal(ints(&p, "label"), label, sizeof label);
    assert_memory_equal(ints(&p, "doc"), doc, sizeof doc);
    assert_memory_equal(ints(&p, "sample"), doc, sizeof doc);
    assert_memory_equal(ints(&p, "unit"), doc, sizeof doc);
    assert_memory_equal(ints(&p, "group"), doc, sizeof doc); /* each row alone */
    assert_memory_equal(ints(&p, "weight"), weight, sizeof weight);
    assert_memory_equal(ints(&p, "predicted"), predicted, sizeof predicted);
    static const float copies[] = {1, 1, 1, 1, 1, 1, 1, 1};
    assert_memory_equal(ints(&p, "copies"), copies, sizeof copies);
    double total;
    assert_true(sbp_pack_total(d, NULL, 3, "predicted", &total) && total == 5);
    assert_true(sbp_pack_total(d, NULL, 3, "predicted.text", &total) && total == 5);
    assert_true(sbp_pack_total(d, NULL, 3, "labels.chosen", &total) && total == 1); /* at least */
    assert_false(sbp_pack_total(d, NULL, 3, "predict", &total));
    sbp_packer_close(&p);
    sbp_dataset_destroy(d);
}

/* ---- memory ----------------------------------------------------------------------------------------- */

static sbp_status attempt(io_fixture *f, void *user) {
    sbp_dataset *d;
    sbp_sampler s;
    sbp_packer p;
    int64_t count;
    const char *files[] = {user};
    sbp_dataset_options o = {
        .files = files,
        .file_count = 1,
    };
    SBP_TRY(sbp_dataset_load(f->diag, &o, &d));
    sbp_status status = sbp_sampler_init(&s, f->diag, d, 1, true, 3, 0);
    if (status == SBP_OK) {
        sbp_packer_init(&p, 40, NULL);
        const int64_t *rows = sbp_sampler_next(&s, &count);
        status = sbp_packer_pack(&p, f->diag, d, rows, count);
        if (status == SBP_OK)
            status = sbp_packer_columns(&p, f->diag, d, &p.parts[0]);
        sbp_packer_close(&p);
    }
    sbp_sampler_close(&s);
    sbp_dataset_destroy(d);
    return status;
}

static void test_memory_failures(void **state) {
    io_fixture *f = *state;
    char path[200];
    put_rows(f, (int[]){4, 1, 9, 30}, 4);
    snprintf(path, sizeof path, "%s", io_path(f, "rows.jsonl"));
    assert_true(io_fail_allocations(f, attempt, path) > 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_loading, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_overlong, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_order_of_the_file, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_shuffled_order, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_steps_by_tokens, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_best_fit, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_packing_invariants, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_columns, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_memory_failures, io_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
