/* Rows of mixtures: those that numpy and `datasets` choose (tests/data/mixture/make.py), whatever files they
 * are in, and whatever is wrong with others. */
#include "tests/unit/io_testing.h"

#include <math.h>
#include <sys/stat.h>

#include "ir/base/json.h"
#include "runtime/data/dataset.h"
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
    return strcmp(how, "random") == 0  ? SBP_MIXTURE_RANDOM
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

/* ---- files ------------------------------------------------------------------------------------------ */

/* How rows of a case are read. */
typedef struct reading {
    int32_t most_files; /* of a part */
    int32_t wrong;      /* the last of each `wrong` rows is, and is left out; 0: none */
    int32_t threads;
    bool cache, compressed;
} reading;

enum { BASE = 500 }; /* row i is the tokens [i % BASE, i / BASE] */

static bool is_wrong(const reading *how, int64_t row) {
    return how->wrong > 0 && row % how->wrong == how->wrong - 1;
}

/* The rows of all parts in files, whose names are *files; some files are empty. */
static void put_parts(io_fixture *f, const reading *how, const int64_t *counts, sbp_mixture_part *parts,
                      int32_t part_count, uint64_t *random, sbp_dataset_options *o) {
    int64_t row = 0;
    const char **files = SBP_NEW_ARRAY(f->arena, const char *, part_count * how->most_files + 1);
    o->file_count = 0;
    for (int32_t p = 0; p < part_count; p++) {
        int64_t left = counts[p];
        parts[p].file_count = 1 + (int32_t)(io_random(random) % (uint32_t)how->most_files);
        for (int32_t i = 0; i < parts[p].file_count; i++) {
            int64_t here =
                i + 1 == parts[p].file_count ? left : (int64_t)(io_random(random) % (uint64_t)(left + 1));
            const char *path =
                sbp_arena_strdup(f->arena, io_path(f, sbp_arena_printf(f->arena, "%d.%d", p, i)));
            FILE *file = fopen(path, "w");
            assert_non_null(file);
            left -= here;
            for (int64_t end = row + here; row < end; row++)
                if (is_wrong(how, row))
                    fprintf(file, "{\"input_ids\": \"%lld\"}\n", (long long)row);
                else
                    fprintf(file, "%s{\"input_ids\": [%lld, %lld]}\n", row % 3 ? "" : "\n",
                            (long long)(row % BASE), (long long)(row / BASE));
            fclose(file);
            if (how->compressed && here > 0)
                assert_int_equal(
                    system(sbp_arena_printf(f->arena, "gzip -f %s && mv %s.gz %s", path, path, path)), 0);
            files[o->file_count++] = path;
        }
    }
    o->files = files;
}

/* What was loaded is what was chosen, without what is wrong, in the order of the files. */
static void assert_loaded(const sbp_dataset *d, const sbp_mixture_choice *choice, const reading *how) {
    int64_t at = 0, wrong = 0;
    for (int64_t row = 0; row < choice->count; row++) {
        if (!sbp_mixture_has(choice, row))
            continue;
        if (is_wrong(how, row)) {
            wrong++;
            continue;
        }
        assert_true(at < d->doc_count);
        assert_int_equal(d->docs[at].row, row);
        assert_int_equal(d->docs[at].count, 2);
        assert_int_equal(d->tokens[d->docs[at].first], row % BASE);
        assert_int_equal(d->tokens[d->docs[at].first + 1], row / BASE);
        at++;
    }
    assert_int_equal(d->doc_count, at);
    assert_int_equal(d->bad, wrong);
    assert_int_equal(d->read_count, choice->count);
    assert_int_equal(d->unchosen, choice->count - choice->taken);
}

/* Loads one side of a mixture, twice where there is a cache. */
static void load_side(io_fixture *f, const reading *how, const sbp_dataset_options *options, sbp_mixture *m,
                      const int64_t *counts, bool held_out) {
    sbp_dataset_options o = *options;
    sbp_mixture_choice choice;
    int64_t good = 0;
    m->held_out = held_out;
    o.mixture = m;
    assert_ok(f, sbp_mixture_choose(m, f->diag, counts, &choice));
    for (int64_t row = 0; row < choice.count; row++)
        good += sbp_mixture_has(&choice, row) && !is_wrong(how, row);
    for (int i = 0; i <= how->cache; i++) {
        sbp_dataset *d = NULL;
        sbp_diag_clear(f->diag);
        if (good == 0) {
            assert_fails(f, SBP_INPUT, choice.count > 0 && choice.taken == 0 ? "take none of" : ": no rows",
                         sbp_dataset_load(f->diag, &o, &d));
            continue;
        }
        assert_ok(f, sbp_dataset_load(f->diag, &o, &d));
        assert_loaded(d, &choice, how);
        assert_true(!m->weighted || held_out || sbp_mixture_takes_all(m) ||
                    strstr(sbp_diag_text(f->diag, SBP_NOTE), "rows of the mixture: "));
        sbp_dataset_destroy(d);
    }
    sbp_mixture_close(&choice);
}

static void test_files(void **state) {
    io_fixture *f = *state;
    static const reading readings[] = {{1, 0, 0, false, false}, {3, 7, 0, false, false},
                                       {2, 0, 3, false, true},  {2, 2, 2, true, false},
                                       {1, 3, 0, false, false}, {4, 0, 0, false, false}};
    uint64_t random = 5;
    int cases = 0;
    for (int64_t k = 0;; k++) {
        const sbp_json *all = choices(f, "cases");
        if (k == all->count)
            break;
        sbp_mixture m;
        sbp_mixture_part parts[MOST_PARTS];
        int64_t counts[MOST_PARTS], rows = 0;
        const reading *how = &readings[k % SBP_COUNT(readings)];
        read_case(&all->items[k], &m, parts, counts);
        for (int32_t p = 0; p < m.part_count; p++)
            rows += counts[p];
        if (rows <= 1000 && !sbp_json_member(&all->items[k], "refused")) {
            sbp_dataset_options o = {.vocab_size = 512,
                                     .threads = how->threads,
                                     .skip_bad_rows = how->wrong > 0,
                                     .cache =
                                         how->cache ? sbp_arena_strdup(f->arena, io_path(f, "cache")) : NULL};
            put_parts(f, how, counts, parts, m.part_count, &random, &o);
            load_side(f, how, &o, &m, counts, false);
            if (m.test_size > 0)
                load_side(f, how, &o, &m, counts, true);
            cases++;
        }
        io_renew(f);
    }
    assert_true(cases > 150);
}

/* Enough rows for several threads, and batches of which none is taken. */
static void test_threads(void **state) {
    io_fixture *f = *state;
    const reading how = {.most_files = 2, .wrong = 1000, .threads = 3};
    const int64_t counts[] = {120000, 90000};
    static const double weights[][2] = {{0.3, 0.001}, {0.00005, 0.9}, {NAN, 0}};
    sbp_mixture_part parts[2] = {{"a", 0, 0}, {"b", 0, 0}};
    uint64_t random = 1;
    sbp_dataset_options o = {.vocab_size = 512, .threads = 3, .skip_bad_rows = true};
    put_parts(f, &how, counts, parts, 2, &random, &o);
    for (int i = 0; i < SBP_COUNT(weights); i++)
        for (int rows = SBP_MIXTURE_RANDOM; rows <= SBP_MIXTURE_FIRST; rows++) {
            sbp_mixture m = {.parts = parts,
                             .part_count = 2,
                             .rows = (sbp_mixture_rows)rows,
                             .weighted = true,
                             .seed = 1,
                             .test_size = 0.1};
            parts[0].weight = weights[i][0];
            parts[1].weight = weights[i][1];
            load_side(f, &how, &o, &m, counts, false);
            load_side(f, &how, &o, &m, counts, true);
        }
}

/* The same rows of each format. */
static void test_formats(void **state) {
    io_fixture *f = *state;
    static const char *const files[] = {"rows.jsonl",       "rows.json",      "snappy.parquet",
                                        "v2.parquet",       "polars.parquet", "encodings.parquet",
                                        "lz4.stream.arrow", "file.arrow",     "views.arrow"};
    const sbp_renaming renaming = {.to = "input_ids", .from = "ids"};
    uint64_t hash = 0;
    for (int i = 0; i < SBP_COUNT(files); i++) {
        const char *twice[2] = {sbp_arena_printf(f->arena, "tests/data/rows/%s", files[i]),
                                "tests/data/rows/rows.jsonl"};
        const sbp_mixture_part parts[] = {{"a", 1, 0.5}, {"b", 1, 0.3}};
        const sbp_mixture m = {.parts = parts, .part_count = 2, .weighted = true, .seed = 9};
        const sbp_dataset_options o = {
            .files = twice, .file_count = 2, .columns = {&renaming, 1}, .mixture = &m};
        sbp_dataset *d = NULL;
        assert_ok(f, sbp_dataset_load(f->diag, &o, &d));
        assert_int_equal(d->read_count, 24);
        assert_int_equal(d->unchosen, 24 - 6 - 3);
        hash = hash ? hash : d->hash;
        if (d->hash != hash)
            fail_msg("%s: other rows", files[i]);
        sbp_dataset_destroy(d);
    }
    sbp_diag_clear(f->diag);
}

/* What cannot be read twice, and a file that another process writes to. */
static void test_what_cannot_be_counted(void **state) {
    io_fixture *f = *state;
    const char *fifo = io_path(f, "fifo"), *files[] = {fifo}, *none[] = {"-"};
    const sbp_mixture_part part = {"a", 1, 0.5};
    const sbp_mixture m = {.parts = &part, .part_count = 1, .weighted = true};
    sbp_dataset_options o = {.files = files, .file_count = 1, .mixture = &m};
    sbp_dataset *d;
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_fails(f, SBP_USAGE, "cannot be read twice", sbp_dataset_load(f->diag, &o, &d));
    o.files = none;
    assert_fails(f, SBP_USAGE, "standard input cannot be read twice", sbp_dataset_load(f->diag, &o, &d));
    files[0] = io_path(f, "absent");
    o.files = files;
    assert_fails(f, SBP_IO, "absent", sbp_dataset_load(f->diag, &o, &d));
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
        cmocka_unit_test_setup_teardown(test_files, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_threads, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_formats, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_what_cannot_be_counted, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_too_many, io_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
