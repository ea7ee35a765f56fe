/* Rows of mixtures: those that numpy and `datasets` choose (tests/data/mixture/make.py). */
#include "tests/unit/io_testing.h"

#include <math.h>

#include "ir/base/json.h"
#include "runtime/data/draw.h"
#include "runtime/data/mixture.h"

enum { MOST_PARTS = 8 };

static const sbp_json *choices(io_fixture *f, const char *key) {
    const sbp_json *root;
    assert_ok(f, sbp_json_read(f->arena, f->diag, "tests/data/mixture/choices.json", 0, &root));
    return sbp_json_member(root, key);
}

static uint64_t add_mark(uint64_t mark, uint64_t row) {
    return mark * 6364136223846793005u + row + 1442695040888963407u;
}

static void assert_marked(const sbp_json *expected, int64_t count, uint64_t mark, const char *what) {
    char text[17];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)mark);
    if (sbp_json_member(expected, "count")->integer != count ||
        strcmp(sbp_json_member(expected, "mark")->string, text) != 0)
        fail_msg("%s: %lld rows, mark %s", what, (long long)count, text);
}

static void test_permutations(void **state) {
    io_fixture *f = *state;
    const sbp_json *all = choices(f, "permutations");
    for (int64_t k = 0; k < all->count; k++) {
        int64_t count = sbp_json_member(&all->items[k], "count")->integer;
        uint32_t *items = calloc((size_t)count + 1, sizeof *items);
        uint64_t mark = 0;
        assert_non_null(items);
        for (int64_t i = 0; i < count; i++)
            items[i] = (uint32_t)i;
        sbp_draw draw = sbp_draw_begin((uint64_t)sbp_json_member(&all->items[k], "seed")->integer);
        sbp_draw_shuffle(&draw, items, count);
        for (int64_t i = 0; i < count; i++)
            mark = add_mark(mark, items[i]);
        assert_marked(&all->items[k], count, mark, "permutation");
        free(items);
    }
    assert_true(all->count > 50);
}

static double number(const sbp_json *node) {
    return node->kind == SBP_JSON_NULL  ? NAN
           : node->kind == SBP_JSON_INT ? (double)node->integer
                                        : node->real;
}

static sbp_mixture_rows rows_of(const char *how) {
    return strcmp(how, "drawn") == 0   ? SBP_MIXTURE_DRAWN
           : strcmp(how, "first") == 0 ? SBP_MIXTURE_FIRST
                                       : SBP_MIXTURE_SHARES;
}

/* A mixture of the table, and how many rows its parts have. */
static void read_case(const sbp_json *one, sbp_mixture *m, sbp_mixture_part *parts, int64_t *counts) {
    const sbp_json *sizes = sbp_json_member(one, "counts"), *weights = sbp_json_member(one, "weights"),
                   *test_size = sbp_json_member(one, "test_size");
    assert_true(sizes->count <= MOST_PARTS);
    *m = (sbp_mixture){.parts = parts,
                       .part_count = (int32_t)sizes->count,
                       .rows = rows_of(sbp_json_member(one, "how")->string),
                       .weighted = weights->kind == SBP_JSON_ARRAY,
                       .seed = (uint64_t)sbp_json_member(one, "seed")->integer,
                       .test_size = test_size->kind == SBP_JSON_NULL ? 0 : number(test_size)};
    for (int64_t p = 0; p < sizes->count; p++) {
        counts[p] = sizes->items[p].integer;
        parts[p] =
            (sbp_mixture_part){.name = "part", .weight = m->weighted ? number(&weights->items[p]) : NAN};
    }
}

static void assert_chosen(io_fixture *f, const sbp_json *one, sbp_mixture *m, const int64_t *counts,
                          bool held_out, const char *what) {
    sbp_mixture_choice choice;
    uint64_t mark = 0;
    int64_t taken = 0;
    m->held_out = held_out;
    assert_ok(f, sbp_mixture_choose(m, f->diag, counts, &choice));
    for (int64_t i = 0; i < choice.count; i++)
        if (sbp_mixture_has(&choice, i)) {
            mark = add_mark(mark, (uint64_t)i);
            taken++;
        }
    assert_int_equal(taken, choice.taken);
    assert_marked(sbp_json_member(one, held_out ? "test" : "train"), taken, mark, what);
    if (!held_out && sbp_mixture_takes_all(m))
        assert_int_equal(taken, choice.count);
    sbp_mixture_close(&choice);
}

static void test_choices(void **state) {
    io_fixture *f = *state;
    const sbp_json *all = choices(f, "cases");
    int refused = 0, whole = 0;
    for (int64_t k = 0; k < all->count; k++) {
        sbp_mixture m;
        sbp_mixture_part parts[MOST_PARTS];
        sbp_mixture_choice choice;
        int64_t counts[MOST_PARTS];
        char what[40];
        snprintf(what, sizeof what, "case %lld", (long long)k);
        read_case(&all->items[k], &m, parts, counts);
        whole += sbp_mixture_takes_all(&m);
        if (sbp_json_member(&all->items[k], "refused")) {
            assert_fails(f, SBP_USAGE, "leaves none to train on: make it smaller",
                         sbp_mixture_choose(&m, f->diag, counts, &choice));
            refused++;
            continue;
        }
        assert_chosen(f, &all->items[k], &m, counts, false, what);
        assert_chosen(f, &all->items[k], &m, counts, true, what);
    }
    assert_true(all->count > 200 && refused > 5 && whole > 5);
}

/* More than a file of 32 bits counts. */
static void test_too_many(void **state) {
    io_fixture *f = *state;
    const sbp_mixture_part parts[] = {{"a", 1, 0.5}, {"b", 1, NAN}};
    const sbp_mixture m = {.parts = parts, .part_count = 2};
    const int64_t counts[] = {(int64_t)1 << 32, 1};
    sbp_mixture_choice choice;
    assert_fails(f, SBP_INPUT, "may choose of 4294967296 rows",
                 sbp_mixture_choose(&m, f->diag, counts, &choice));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_permutations, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_choices, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_too_many, io_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
