/* Which rank packs what: drawn documents, pairs and groups over drawn numbers of ranks. Against the best that
 * there is (all assignments tried), Graham's bound, and the packing of one rank. */
#include "tests/unit/io_testing.h"

#include "tests/unit/pack_testing.h"

enum { MOST = 80, RANKS = 9 };

/* Documents of drawn lengths; by_row: how many are in a row; groups: some rows belong together. */
typedef struct drawn {
    sbp_dataset data;
    sbp_doc docs[2 * MOST];
    int64_t rows[MOST + 1], order[MOST];
    uint64_t groups[MOST];
    int32_t ids[2 * MOST * 64];
} drawn;

static uint32_t below(uint64_t *random, int most) {
    return io_random(random) % (uint32_t)most;
}

/* uneven: one document in six is many times as long. */
static void draw(drawn *d, uint64_t *random, int rows, int by_row, bool grouped, bool uneven) {
    int64_t tokens = 0;
    memset(d, 0, sizeof *d);
    for (int r = 0; r < rows; r++) {
        d->rows[r] = r * by_row;
        d->order[r] = grouped ? r : rows - 1 - r; /* rows of a group come in their order */
        d->groups[r] = grouped ? (uint64_t)(1 + r / 3) : 0;
        for (int k = 0; k < by_row; k++) {
            int32_t count = 1 + (int32_t)below(random, uneven && below(random, 6) ? 6 : 60);
            d->docs[r * by_row + k] =
                (sbp_doc){.row = r, .first = tokens, .count = count, .labels = count - 1};
            tokens += count;
        }
    }
    d->rows[rows] = rows * by_row;
    d->data = (sbp_dataset){.docs = d->docs,
                            .doc_count = rows * by_row,
                            .rows = d->rows,
                            .row_count = rows,
                            .groups = grouped ? d->groups : NULL,
                            .tokens = d->ids,
                            .labels = d->ids,
                            .token_count = tokens};
}

/* The row input that keeps documents of a row, or rows of a group, in one micro-batch. */
static sbp_buffer buffer = {.name = "unit", .rows = {.c = {[SBP_T] = 1}}, .cols = 1};
static sbp_row_input input = {.kind = SBP_ROW_COLUMN, .column = "unit"};
static sbp_program program = {.context = 1,
                              .t_max = 1000,
                              .buffers = &buffer,
                              .buffer_count = 1,
                              .row_inputs = &input,
                              .row_input_count = 1};

static void open_packer(sbp_packer *p, const char *whole, int64_t most_rows, int ranks, int rank) {
    input.column = whole;
    sbp_packer_init(p, most_rows, whole ? &program : NULL);
    p->ranks = ranks;
    p->rank = rank;
    p->work = (sbp_pack_work){.per_row = 30, .attention = {{7, 1}, {0, 2}}, .attention_count = 2};
}

static double work_of(const sbp_packer *p, const drawn *d, const sbp_micro_batch *part) {
    double sum = 0;
    for (int64_t k = 0; k < part->count; k++) {
        double n = (double)d->docs[part->docs[k]].count, w = n < 7 ? n : 7;
        sum += 30 * n + (w * (w + 1) / 2 + (n - w) * 7) + 2 * n * (n + 1) / 2;
    }
    assert_true(p->ranks >= 1);
    return sum;
}

/* All ranks pack the same, whole and once; what is whole is in one micro-batch. */
static void check_ranks(io_fixture *f, const drawn *d, const char *whole, int64_t most_rows, int ranks,
                        double *loads) {
    int32_t parts = 0, most_own = 0;
    int64_t taken = 0, part_of[2 * MOST];
    for (int rank = 0; rank < ranks; rank++) {
        sbp_packer p;
        open_packer(&p, whole, most_rows, ranks, rank);
        assert_ok(f, sbp_packer_pack(&p, f->diag, &d->data, d->order, d->data.row_count));
        assert_int_equal(p.rows, d->data.token_count); /* of all ranks */
        assert_int_equal(p.doc_count, d->data.doc_count);
        if (p.own_count > 0)
            assert_int_equal(p.own, parts); /* one rank behind the other */
        loads[rank] = 0;
        for (int32_t b = p.own; b < p.own + p.own_count; b++) {
            loads[rank] += work_of(&p, d, &p.parts[b]);
            assert_true(p.parts[b].rows <= most_rows && p.parts[b].count > 0);
            for (int64_t k = 0; k < p.parts[b].count; k++) {
                assert_true(k == 0 || p.parts[b].docs[k - 1] < p.parts[b].docs[k]);
                part_of[p.parts[b].docs[k]] = b;
                taken++;
            }
        }
        parts += p.own_count;
        most_own = p.own_count > most_own ? p.own_count : most_own;
        if (rank == ranks - 1) {
            assert_int_equal(parts, p.part_count);
            assert_int_equal(most_own, p.most_own);
        }
        sbp_packer_close(&p);
    }
    assert_int_equal(taken, d->data.doc_count);
    for (int64_t k = 1; k < d->data.doc_count && whole; k++) {
        int64_t a = d->docs[k - 1].row, b = d->docs[k].row;
        if (a == b || (strcmp(whole, "group") == 0 && d->groups[a] == d->groups[b]))
            assert_int_equal(part_of[k - 1], part_of[k]);
    }
}

static void test_units_go_to_ranks(void **state) {
    io_fixture *f = *state;
    static const char *const wholes[] = {NULL, "unit", "group"};
    static drawn d;
    uint64_t random = 3;
    for (int round = 0; round < 150; round++) {
        const char *whole = wholes[round % 3];
        int rows = 1 + (int)below(&random, round % 5 ? MOST : 6), ranks = 1 + (int)below(&random, RANKS);
        double loads[RANKS], sum = 0, most = 0, longest = 0;
        draw(&d, &random, rows, round % 3 == 1 ? 2 : 1, round % 3 == 2, round & 1);
        check_ranks(f, &d, whole, 400, ranks, loads);
        for (int r = 0; r < ranks; r++) {
            sum += loads[r];
            most = loads[r] > most ? loads[r] : most;
        }
        for (int64_t k = 0; k < d.data.doc_count && !whole; k++) {
            sbp_packer p = {.ranks = 1};
            sbp_micro_batch one = {.docs = &k, .count = 1};
            double work = work_of(&p, &d, &one);
            longest = work > longest ? work : longest;
        }
        if (!whole) /* of any list: no rank waits for more than the last document that it took */
            assert_true(most <= sum / ranks + longest * (1 - 1.0 / ranks) + 1e-6);
    }
}

/* The least that the rank with the most can have: every assignment of n documents. */
static double best_of_all(const double *work, int n, double *loads, int ranks, int at) {
    double best = 1e300, most = 0;
    if (at == n) {
        for (int r = 0; r < ranks; r++)
            most = loads[r] > most ? loads[r] : most;
        return most;
    }
    for (int r = 0; r < ranks; r++) {
        loads[r] += work[at];
        double with = best_of_all(work, n, loads, ranks, at + 1);
        best = with < best ? with : best;
        loads[r] -= work[at];
    }
    return best;
}

static void test_near_the_best(void **state) {
    io_fixture *f = *state;
    static drawn d;
    uint64_t random = 8;
    double worst = 1;
    for (int round = 0; round < 60; round++) {
        int rows = 1 + (int)below(&random, 9), ranks = 2 + (int)below(&random, 2);
        double loads[RANKS], work[9], most = 0, zeros[RANKS] = {0};
        draw(&d, &random, rows, 1, false, round & 1);
        check_ranks(f, &d, NULL, 100, ranks, loads);
        for (int64_t k = 0; k < rows; k++) {
            sbp_packer p = {.ranks = 1};
            work[k] = work_of(&p, &d, &(sbp_micro_batch){.docs = &k, .count = 1});
        }
        for (int r = 0; r < ranks; r++)
            most = loads[r] > most ? loads[r] : most;
        double best = best_of_all(work, rows, zeros, ranks, 0);
        assert_true(most >= best * (1 - 1e-12));
        assert_true(most <= best * (4.0 / 3 - 1 / (3.0 * ranks) + 1e-12));
        worst = most / best > worst ? most / best : worst;
    }
    assert_true(worst > 1.001); /* it is no search: the bound is worth a test */
    print_message("at worst %.3f times the best\n", worst);
}

/* More ranks than documents: some have none. */
static void test_ranks_without_rows(void **state) {
    io_fixture *f = *state;
    static drawn d;
    uint64_t random = 5;
    double loads[RANKS];
    int idle = 0;
    draw(&d, &random, 4, 1, false, false);
    check_ranks(f, &d, NULL, 64, RANKS, loads);
    for (int r = 0; r < RANKS; r++)
        idle += loads[r] == 0;
    assert_int_equal(idle, RANKS - 4);
    static const sbp_micro_batch nothing = {.rows = 1};
    sbp_packer p;
    sbp_packer_init(&p, 64, NULL); /* all columns */
    assert_ok(f, sbp_packer_columns(&p, f->diag, &d.data, &nothing));
    for (int32_t c = 0; c < p.column_count; c++) {
        assert_int_equal(p.columns[c].count, 1);
        assert_true(sbp_element_get(p.columns[c].data, p.columns[c].dtype, 0) == 0);
    }
    sbp_packer_close(&p);
}

/* A plan with a limit of micro-batches: where work alone gives a rank more, they are packed first. */
static void test_no_more_than_the_plan_has(void **state) {
    io_fixture *f = *state;
    static drawn d;
    uint64_t random = 21;
    int rescued = 0, refused = 0;
    draw(&d, &random, 13, 1, false, false);
    for (int k = 0; k < 13; k++) /* one that has all the work, and 12 that have the rows */
        d.docs[k].count = k == 4 ? 100 : 20;
    for (int most = 0; most < 4; most++) {
        for (int rank = 0; rank < 2; rank++) {
            sbp_packer p;
            open_packer(&p, NULL, 120, 2, rank);
            p.work.per_row = 1;
            p.most_parts = most;
            assert_ok(f, sbp_packer_pack(&p, f->diag, &d.data, d.order, 13));
            /* 340 rows: 3 micro-batches, so that one rank has 2; by work the rank without the long one has 2
             */
            if (most == 1) {
                assert_fails(
                    f, SBP_INPUT,
                    "needs 3 micro-batches of at most 120 tokens, the plan accumulates 1 on each of 2 "
                    "ranks: give a smaller --batch-size or --batch-tokens 240",
                    sbp_packer_check(&p, f->diag));
                refused++;
            } else {
                assert_ok(f, sbp_packer_check(&p, f->diag));
            }
            sbp_packer_close(&p);
        }
    }
    for (int rank = 0; rank < 2; rank++) { /* 11 short ones: 220 rows and 100, in 3 and 1 by work, 2 and 1 */
        sbp_packer p;
        d.docs[4].count = 110;
        open_packer(&p, NULL, 110, 2, rank);
        p.work.per_row = 1;
        assert_ok(f, sbp_packer_pack(&p, f->diag, &d.data, d.order, 12));
        int32_t by_work = p.most_own;
        p.most_parts = 2;
        assert_ok(f, sbp_packer_pack(&p, f->diag, &d.data, d.order, 12));
        assert_ok(f, sbp_packer_check(&p, f->diag));
        assert_int_equal(p.most_own, 2);
        assert_int_equal(p.own_count, 2);
        assert_int_equal(p.part_count, 4);
        rescued += by_work > 2;
        sbp_packer_close(&p);
    }
    assert_int_equal(refused, 2);
    assert_int_equal(rescued, 2);
}

static sbp_status attempt(io_fixture *f, void *user) {
    const drawn *d = user;
    sbp_packer p;
    open_packer(&p, NULL, 60, 3, 1);
    p.most_parts = 2;
    sbp_status status = sbp_packer_pack(&p, f->diag, &d->data, d->order, d->data.row_count);
    sbp_packer_close(&p);
    return status;
}

static void test_memory_failures(void **state) {
    static drawn d;
    uint64_t random = 13;
    draw(&d, &random, 8, 1, false, false);
    assert_true(io_fail_allocations(*state, attempt, &d) >= 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_units_go_to_ranks, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_near_the_best, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_ranks_without_rows, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_no_more_than_the_plan_has, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_memory_failures, io_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
