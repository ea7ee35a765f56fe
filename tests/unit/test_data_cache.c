/* Datasets made by threads and kept on disk: the same data, messages and errors as by one thread in memory,
 * whatever happens to the files between two starts; and rows that are packed. */
#include "tests/unit/io_testing.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "frontends/formats/tokenizer/tokenizer.h"
#include "runtime/data/cache.h"
#include "runtime/data/groups.h"

enum { ROWS = 60000 }; /* more than the 4 MiB from which on there are threads */

/* Rows of input_ids of drawn lengths; row `wrong` and every `often`-th have none. */
static void put_rows(io_fixture *f, int rows, int wrong, int often, uint64_t seed) {
    FILE *file = fopen(io_path(f, "d"), "w");
    assert_non_null(file);
    for (int r = 0; r < rows; r++) {
        int count = (int)(io_random(&seed) % 30);
        fprintf(file, "{\"input_ids\": ");
        if (r == wrong || (often && r % often == often - 1))
            fprintf(file, "\"%d\"}\n", r);
        else {
            for (int i = 0; i < count; i++)
                fprintf(file, "%s%u", i ? ", " : "[", io_random(&seed) % 500);
            fprintf(file, "%s], \"n\": \"%060d\"}\n", count ? "" : "[", r);
        }
    }
    fclose(file);
}

typedef struct setting {
    int threads;
    bool cache, skip;
    int64_t most;
    sbp_rows_wanted rows;
} setting;

static sbp_status load(io_fixture *f, const setting *s, sbp_dataset **out) {
    static char path[200], cache[200];
    snprintf(path, sizeof path, "%s", io_path(f, "d"));
    snprintf(cache, sizeof cache, "%s", io_path(f, "cache"));
    const char *files[] = {path};
    sbp_dataset_options o = {.files = files,
                             .file_count = 1,
                             .vocab_size = 512,
                             .threads = s->threads,
                             .cache = s->cache ? cache : NULL,
                             .skip_bad_rows = s->skip,
                             .max_tokens = s->most,
                             .rows = s->rows,
                             .overlong = s->most ? SBP_OVERLONG_TRUNCATE : SBP_OVERLONG_ERROR};
    return sbp_dataset_load(f->diag, &o, out);
}

static void assert_same(const sbp_dataset *a, const sbp_dataset *b) {
    assert_int_equal(a->token_count, b->token_count);
    assert_int_equal(a->doc_count, b->doc_count);
    assert_int_equal(a->row_count, b->row_count);
    assert_int_equal(a->label_count, b->label_count);
    assert_int_equal(a->longest, b->longest);
    assert_int_equal(a->bad, b->bad);
    assert_int_equal(a->empty, b->empty);
    assert_int_equal(a->truncated, b->truncated);
    assert_int_equal(a->greatest_id, b->greatest_id);
    assert_true(a->hash == b->hash);
    assert_memory_equal(a->tokens, b->tokens, (size_t)a->token_count * sizeof *a->tokens);
    assert_memory_equal(a->labels, b->labels, (size_t)a->token_count * sizeof *a->labels);
    assert_memory_equal(a->docs, b->docs, (size_t)a->doc_count * sizeof *a->docs);
    assert_memory_equal(a->rows, b->rows, (size_t)(a->row_count + 1) * sizeof *a->rows);
    assert_true(a->texts == b->texts && a->grouped == b->grouped && !a->groups == !b->groups);
    if (a->groups)
        assert_memory_equal(a->groups, b->groups, (size_t)a->row_count * sizeof *a->groups);
    assert_int_equal(a->column_count, b->column_count);
    for (int32_t k = 0; k < a->column_count; k++) {
        assert_string_equal(a->column_names[k], b->column_names[k]);
        assert_memory_equal(a->columns[k], b->columns[k], (size_t)a->token_count * sizeof(double));
    }
    assert_int_equal(a->number_count, b->number_count);
    for (int32_t k = 0; k < a->number_count; k++) {
        assert_string_equal(a->number_names[k], b->number_names[k]);
        assert_memory_equal(a->numbers[k], b->numbers[k], (size_t)a->doc_count * sizeof(double));
    }
}

static sbp_dataset *load_ok(io_fixture *f, const setting *s) {
    sbp_dataset *d = NULL;
    sbp_diag_clear(f->diag);
    assert_ok(f, load(f, s, &d));
    return d;
}

static bool said(io_fixture *f, const char *text) {
    return strstr(sbp_diag_text(f->diag, SBP_NOTE), text) != NULL;
}

/* Whatever number of threads: the same data, and the same messages. */
static void test_threads(void **state) {
    io_fixture *f = *state;
    put_rows(f, ROWS, -1, 9000, 3);
    const setting one = {.skip = true, .most = 25};
    sbp_dataset *expected = load_ok(f, &one);
    char *messages = strdup(sbp_diag_text(f->diag, SBP_NOTE));
    assert_int_equal(expected->bad, ROWS / 9000);
    assert_non_null(
        strstr(messages, "d:9000: input_ids: expected an array, found the string '8999' (row left out)"));
    for (int threads = 2; threads <= 7; threads += 5) {
        const setting s = {.skip = true, .most = 25, .threads = threads};
        sbp_dataset *d = load_ok(f, &s);
        assert_same(d, expected);
        assert_string_equal(sbp_diag_text(f->diag, SBP_NOTE), messages);
        sbp_dataset_destroy(d);
    }
    free(messages);
    sbp_dataset_destroy(expected);
}

/* Files that are read and closed while threads still make documents of their rows. */
static void test_threads_of_many_files(void **state) {
    io_fixture *f = *state;
    enum { FILES = 450, ROWS_OF_A_FILE = 12 };
    const char *files[FILES];
    sbp_renaming ids = {.to = "input_ids", .from = "ids"};
    for (int i = 0; i < FILES; i++)
        files[i] = i % 2 ? "tests/data/rows/plain.parquet" : "tests/data/rows/plain.stream.arrow";
    sbp_dataset_options o = {.files = files, .file_count = FILES, .columns = {&ids, 1}, .vocab_size = 512};
    sbp_dataset *expected, *d;
    assert_ok(f, sbp_dataset_load(f->diag, &o, &expected));
    assert_int_equal(expected->read_count, FILES * ROWS_OF_A_FILE);
    o.threads = 3;
    assert_ok(f, sbp_dataset_load(f->diag, &o, &d));
    assert_same(d, expected);
    sbp_dataset_destroy(d);
    sbp_dataset_destroy(expected);
}

/* A row that is long is never there several times. */
static void test_memory_of_a_row(void **state) {
    io_fixture *f = *state;
    enum { TOKENS = 200000 };
    FILE *file = fopen(io_path(f, "d"), "w");
    fprintf(file, "{\"input_ids\": [0");
    for (int i = 1; i < TOKENS; i++)
        fprintf(file, ", %d", i % 500);
    fprintf(file, "]}\n");
    double bytes = (double)ftell(file);
    fclose(file);
    int64_t before = sbp_test_allocated_bytes();
    sbp_dataset *d = load_ok(f, &(setting){0});
    double taken = (double)(sbp_test_allocated_bytes() - before) / bytes;
    assert_int_equal(d->token_count, TOKENS);
    if (taken > 20)
        fail_msg("all allocations together are %.1f bytes a byte", taken);
    sbp_dataset_destroy(d);
}

/* The first wrong row of the file is the one that is named. */
static void test_first_error(void **state) {
    io_fixture *f = *state;
    sbp_dataset *d;
    put_rows(f, ROWS, 40001, 41000, 4);
    for (int threads = 1; threads <= 4; threads += 3) {
        const setting s = {.threads = threads};
        assert_fails(f, SBP_INPUT, "d:40002: input_ids: ", load(f, &s, &d));
    }
    assert_fails(f, SBP_INPUT, "d:40002: input_ids: ", load(f, &(setting){.threads = 3, .cache = true}, &d));
    DIR *dir = opendir(io_path(f, "cache"));
    struct dirent *entry;
    while ((entry = readdir(dir)))
        assert_int_equal(entry->d_name[0], '.');
    closedir(dir);
}

static const char *cache_of(io_fixture *f, char *out, size_t size) {
    DIR *dir = opendir(io_path(f, "cache"));
    struct dirent *entry;
    int count = 0;
    assert_non_null(dir);
    while ((entry = readdir(dir)))
        if (entry->d_name[0] != '.') {
            snprintf(out, size, "%s/cache/%.30s", f->directory, entry->d_name);
            count++;
        }
    closedir(dir);
    assert_int_equal(count, 1);
    return out;
}

static void test_cache(void **state) {
    io_fixture *f = *state;
    const setting kept = {.cache = true, .skip = true, .threads = 2}, plain = {.skip = true};
    put_rows(f, ROWS, 5, 0, 6);
    sbp_dataset *expected = load_ok(f, &plain), *d = load_ok(f, &kept);
    char *messages = strdup(sbp_diag_text(f->diag, SBP_WARNING));
    assert_same(d, expected);
    assert_true(said(f, "tokens are kept in "));
    assert_true(said(f, "(row left out)"));
    sbp_dataset_destroy(d);
    d = load_ok(f, &kept);
    assert_same(d, expected);
    assert_false(said(f, "tokens are kept in "));
    assert_string_equal(sbp_diag_text(f->diag, SBP_WARNING), messages); /* said again */
    sbp_dataset_release(d);
    assert_same(d, expected);
    sbp_dataset_destroy(d);
    free(messages);

    /* Other settings are another cache. */
    d = load_ok(f, &(setting){.cache = true, .skip = true, .most = 7});
    assert_int_equal(d->longest, 7);
    assert_true(said(f, "tokens are kept in "));
    sbp_dataset_destroy(d);

    /* Another file under the same name, of the same length. */
    sbp_dataset_destroy(expected);
    put_rows(f, ROWS, 5, 0, 6);
    FILE *file = fopen(io_path(f, "d"), "r+");
    fseek(file, -3000, SEEK_END);
    fputc(' ', file);
    fclose(file);
    expected = load_ok(f, &plain);
    d = load_ok(f, &kept);
    assert_same(d, expected);
    assert_true(said(f, "of other files, or damaged"));
    sbp_dataset_destroy(d);
    sbp_dataset_destroy(expected);
}

static void put_list(FILE *file, const char *key, const char *item, int count, uint64_t *seed) {
    fprintf(file, "\"%s\": [", key);
    for (int i = 0; i < count; i++)
        fprintf(file, "%s%s%u", i ? ", " : "", item, io_random(seed) % 500);
    fprintf(file, "], ");
}

/* Rollouts in groups, with numbers of tokens and of rows; or pairs with numbers of both answers. */
static void put_scored(io_fixture *f, int rows, bool pairs, uint64_t seed) {
    FILE *file = fopen(io_path(f, "d"), "w");
    assert_non_null(file);
    for (int r = 0; r < rows; r++) {
        int count = 1 + (int)(io_random(&seed) % 20);
        fprintf(file, "{");
        put_list(file, "prompt_ids", "", 2, &seed);
        put_list(file, pairs ? "chosen_ids" : "completion_ids", "", count, &seed);
        if (pairs) {
            put_list(file, "rejected_ids", "", 3, &seed);
            fprintf(file, "\"ref_chosen_logps\": -%d.5, \"ref_rejected_logps\": -%d.25}\n", r, r);
        } else {
            put_list(file, "old_per_token_logps", "-0.", count, &seed);
            fprintf(file, "\"reward\": %d.5, \"group\": \"%d\"}\n", r, r / 3);
        }
    }
    fclose(file);
}

/* What stands beside tokens and rows is kept too, cut like them, and makes another hash. */
static void test_numbers_are_kept(void **state) {
    io_fixture *f = *state;
    for (int pairs = 0; pairs < 2; pairs++) {
        sbp_rows_wanted rows = pairs ? SBP_ROWS_PAIRS : SBP_ROWS_SCORED;
        const setting one = {.rows = rows, .most = 16},
                      kept = {.rows = rows, .most = 16, .cache = true, .threads = 3};
        put_scored(f, 30000, pairs, 21);
        sbp_dataset *expected = load_ok(f, &one);
        assert_true(expected->truncated > 0 && expected->texts != pairs);
        assert_true(pairs || (expected->grouped && expected->column_count == 1));
        assert_int_equal(expected->number_count, 1);
        for (int start = 0; start < 2; start++) {
            sbp_dataset *d = load_ok(f, &kept);
            assert_true(said(f, "tokens are kept in ") == (start == 0));
            assert_same(d, expected);
            for (int64_t r = 0; r < d->row_count; r++)
                assert_true(sbp_dataset_begins_group(d, r) == sbp_dataset_begins_group(expected, r));
            sbp_dataset_destroy(d);
        }
        /* The same rows without what was asked for are other data. */
        if (!pairs) {
            sbp_dataset *d = load_ok(f, &(setting){.most = 16, .cache = true});
            assert_true(d->hash != expected->hash && !d->column_count && !d->number_count && !d->grouped);
            sbp_dataset_destroy(d);
        }
        sbp_dataset_destroy(expected);
    }
}

/* One byte of each file of a cache, in turn; then each cut short, or gone. */
static void test_damage(void **state) {
    io_fixture *f = *state;
    static const char *const names[] = {"tokens", "labels", "docs", "rows", "meta.json"};
    const setting s = {.cache = true};
    char cache[120], path[200];
    put_rows(f, 3000, -1, 0, 7);
    sbp_dataset *expected = load_ok(f, &(setting){0});
    sbp_dataset_destroy(load_ok(f, &s));
    for (int i = 0; i < SBP_COUNT(names); i++)
        for (int kind = 0; kind < 3; kind++) {
            struct stat info;
            snprintf(path, sizeof path, "%s/%s", cache_of(f, cache, sizeof cache), names[i]);
            assert_int_equal(stat(path, &info), 0);
            if (kind == 0) {
                FILE *file = fopen(path, "r+");
                fseek(file, info.st_size / 3, SEEK_SET);
                int byte = fgetc(file);
                fseek(file, info.st_size / 3, SEEK_SET);
                fputc(byte ^ 4, file);
                fclose(file);
            } else {
                assert_int_equal(kind == 1 ? truncate(path, info.st_size - 1) : unlink(path), 0);
            }
            sbp_dataset *d = load_ok(f, &s);
            assert_same(d, expected);
            assert_true(said(f, "or damaged: they are made anew"));
            sbp_dataset_destroy(d);
            d = load_ok(f, &s);
            assert_false(said(f, "made anew"));
            assert_false(said(f, "tokens are kept in "));
            sbp_dataset_destroy(d);
        }
    sbp_dataset_destroy(expected);
}

/* Several processes that find no cache: each has its data, one cache is left, and what a killed one left is
 * gone. */
static void test_processes(void **state) {
    io_fixture *f = *state;
    const setting s = {.cache = true};
    char cache[120], dead[200];
    put_rows(f, 3000, -1, 0, 8);
    sbp_dataset *expected = load_ok(f, &(setting){0});
    pid_t children[4];
    assert_int_equal(mkdir(io_path(f, "cache"), 0700), 0);
    for (int i = 0; i < SBP_COUNT(children); i++) {
        children[i] = fork();
        if (children[i] == 0) {
            sbp_dataset *d = NULL;
            _exit(load(f, &s, &d) == SBP_OK && d->hash == expected->hash ? 0 : 1);
        }
    }
    for (int i = 0; i < SBP_COUNT(children); i++) {
        int status = 1;
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        assert_int_equal(status, 0);
    }
    cache_of(f, cache, sizeof cache);
    snprintf(dead, sizeof dead, "%s.%ld.0.tmp", cache, (long)children[0]);
    assert_int_equal(mkdir(dead, 0700), 0);
    snprintf(dead, sizeof dead, "%s.%ld.0.tmp/tokens", cache, (long)children[0]);
    io_put(dead, "x", 1);
    /* not what one left: a link, and a name that is no key */
    char link[200], other[200], file[208];
    const char *root = sbp_arena_strdup(f->arena, io_path(f, "cache"));
    snprintf(link, sizeof link, "%s/0123456789abcdef.%ld.0.tmp", root, (long)children[0]);
    snprintf(other, sizeof other, "%s/ab.%ld.0.tmp", root, (long)children[0]);
    snprintf(file, sizeof file, "%s/mine", other);
    assert_true(mkdir(other, 0700) == 0 && symlink(other, link) == 0);
    io_put(file, "x", 1);
    put_rows(f, 3001, -1, 0, 8);
    sbp_dataset_destroy(load_ok(f, &s));
    assert_true(unlink(file) == 0 && rmdir(other) == 0 && unlink(link) == 0);
    cache_of(f, cache, sizeof cache);
    sbp_dataset_destroy(expected);
}

static int caches_of(io_fixture *f) {
    DIR *dir = opendir(io_path(f, "cache"));
    struct dirent *entry;
    int count = 0;
    assert_non_null(dir);
    while ((entry = readdir(dir)))
        count += entry->d_name[0] != '.';
    closedir(dir);
    return count;
}

/* What was long not used goes first, and nothing that is no cache. */
static void test_old_ones_go(void **state) {
    io_fixture *f = *state;
    char cache[120], path[200];
    const char *const root = strdup(io_path(f, "cache"));
    put_rows(f, 3000, -1, 0, 8);
    sbp_dataset_destroy(load_ok(f, &(setting){.cache = true}));
    snprintf(path, sizeof path, "%s/meta.json", cache_of(f, cache, sizeof cache));
    const struct timespec old[2] = {{.tv_sec = time(NULL) - 29 * 86400}, {.tv_sec = time(NULL) - 29 * 86400}},
                          older[2] = {{.tv_sec = old[0].tv_sec - 2 * 86400},
                                      {.tv_sec = old[0].tv_sec - 2 * 86400}};
    assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
    sbp_dataset_destroy(load_ok(f, &(setting){.cache = true, .most = 40})); /* another one */
    assert_int_equal(caches_of(f), 2);
    assert_int_equal(utimensat(AT_FDCWD, path, older, 0), 0); /* now for 31 days */
    sbp_dataset_destroy(load_ok(f, &(setting){.cache = true}));
    assert_false(said(f, "are kept in ")); /* it is read: from now on the youngest */
    sbp_dataset *d = load_ok(f, &(setting){.cache = true, .most = 41});
    assert_int_equal(caches_of(f), 3);
    assert_int_equal(utimensat(AT_FDCWD, path, older, 0), 0);
    sbp_dataset_destroy(load_ok(f, &(setting){.cache = true, .most = 42}));
    assert_int_equal(caches_of(f), 3);
    assert_int_equal(access(path, F_OK), -1);
    assert_true(said(f, "not used for long, were removed from "));

    /* by their bytes; whose data are in use still has them */
    assert_int_equal(mkdir(io_path(f, "cache/0123456789abcdef"), 0700), 0);
    io_put(io_path(f, "cache/0123456789abcdef/notes"), "x", 1);
    io_put(io_path(f, "cache/notes"), "x", 1);
    assert_int_equal(sbp_cache_clear(root, INT64_MAX, 3600), 0);
    uint64_t sum = sbp_hash_bytes(d->tokens, (size_t)d->token_count * sizeof *d->tokens, 0);
    assert_int_equal(sbp_cache_clear(root, 0, 3600), 3);
    assert_true(sum == sbp_hash_bytes(d->tokens, (size_t)d->token_count * sizeof *d->tokens, 0));
    assert_int_equal(caches_of(f), 2);
    sbp_dataset_destroy(d);
    free((char *)root);
}

/* ---- packing ------------------------------------------------------------------------------------------- */

/* The longest first, each into the row with the least space; documents of other thousands of rows stay apart.
 */
static void test_packing(void **state) {
    io_fixture *f = *state;
    static const int lengths[] = {3, 10, 4, 7, 1, 6, 3, 2};
    static const int64_t rows[] = {0, 1, 3, 5, 8}, docs[] = {1, 3, 0, 5, 2, 6, 7, 4};
    FILE *file = fopen(io_path(f, "d"), "w");
    for (int r = 0; r < SBP_COUNT(lengths); r++) {
        fprintf(file, "{\"input_ids\": [1");
        for (int i = 1; i < lengths[r]; i++)
            fprintf(file, ", %d", i);
        fprintf(file, "]}\n");
    }
    fclose(file);
    sbp_dataset *d = load_ok(f, &(setting){0});
    uint64_t hash = d->hash;
    assert_ok(f, sbp_dataset_pack(f->diag, d, 10));
    /* 10; 7 + 3; 6 + 4; then 3 (row 6), 2 and 1 in a row of their own */
    assert_int_equal(d->row_count, 4);
    assert_memory_equal(d->rows, rows, sizeof rows);
    assert_memory_equal(d->row_docs, docs, sizeof docs);
    assert_int_equal(sbp_dataset_row_tokens(d, 3), 6);
    assert_true(d->hash != hash);
    sbp_dataset_destroy(d);

    put_rows(f, 2500, -1, 0, 11);
    d = load_ok(f, &(setting){0});
    assert_ok(f, sbp_dataset_pack(f->diag, d, 64));
    char *seen = calloc((size_t)d->doc_count, 1);
    for (int64_t r = 0; r < d->row_count; r++) {
        assert_true(sbp_dataset_row_tokens(d, r) <= 64 && sbp_dataset_row_tokens(d, r) > 0);
        int64_t block = d->docs[sbp_dataset_doc_at(d, d->rows[r])].row / 1000;
        for (int64_t k = d->rows[r]; k < d->rows[r + 1]; k++) {
            assert_int_equal(d->docs[sbp_dataset_doc_at(d, k)].row / 1000, block);
            assert_int_equal(seen[sbp_dataset_doc_at(d, k)]++, 0);
        }
    }
    assert_int_equal(d->rows[d->row_count], d->doc_count);
    assert_true((double)d->token_count > 0.95 * 64 * (double)d->row_count);
    free(seen);
    sbp_dataset_destroy(d);
}

/* ---- memory -------------------------------------------------------------------------------------------- */

static sbp_status attempt(io_fixture *f, void *user) {
    sbp_dataset *d;
    SBP_TRY(load(f, user, &d));
    sbp_status status = sbp_dataset_pack(f->diag, d, 40);
    sbp_dataset_destroy(d);
    return status;
}

/* Making a cache, and reading one. */
static void test_memory_failures(void **state) {
    io_fixture *f = *state;
    setting s = {.cache = true};
    put_rows(f, 40, -1, 0, 9);
    assert_true(io_fail_allocations(f, attempt, &s) > 10);
    int failed = io_fail_allocations(f, attempt, &s);
    assert_true(failed > 5 && failed < 60);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_threads, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_threads_of_many_files, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_memory_of_a_row, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_first_error, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_cache, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_numbers_are_kept, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_damage, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_processes, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_old_ones_go, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_packing, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_memory_failures, io_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
