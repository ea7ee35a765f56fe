/* Rollouts of one prompt stay in one step: drawn groups, batches by rows and by tokens, shuffled or not; and
 * in one micro-batch, where a program asks for groups. */
#include "tests/unit/io_testing.h"

#include "runtime/data/groups.h"
#include "tests/unit/pack_testing.h"

enum { MOST = 120 };

/* Rows of groups[r] (0: without a key, each alone). */
static sbp_dataset *load(io_fixture *f, const int *groups, const int *lengths, int count) {
    FILE *file = fopen(io_path(f, "rows.jsonl"), "w");
    assert_non_null(file);
    for (int r = 0; r < count; r++) {
        fprintf(file, "{\"prompt_ids\": [%d], \"completion_ids\": [7", 1 + r % 50);
        for (int i = 1; i < lengths[r]; i++)
            fprintf(file, ", 8");
        fprintf(file, "], \"reward\": 1, \"group\": \"%d\"}\n", groups[r]);
    }
    fclose(file);
    const char *files[] = {sbp_arena_strdup(f->arena, io_path(f, "rows.jsonl"))};
    const sbp_dataset_options o = {.files = files, .file_count = 1, .rows = SBP_ROWS_SCORED};
    sbp_dataset *data;
    assert_ok(f, sbp_dataset_load(f->diag, &o, &data));
    assert_int_equal(data->row_count, count);
    return data;
}

/* One epoch: every row once, no group parted, no step that could have taken another group. */
static int check_epoch(sbp_sampler *s, const int *groups, int count, int64_t *out) {
    bool seen[MOST] = {false};
    int steps = 0;
    for (int at = 0; at < count; steps++) {
        int64_t taken, tokens = 0, last_group = 0;
        const int64_t *rows = sbp_sampler_next(s, &taken);
        for (int64_t i = 0; i < taken; i++) {
            int64_t r = rows[i];
            assert_false(seen[r]);
            seen[r] = true;
            out[at + i] = r;
            tokens += sbp_dataset_row_tokens(s->data, r);
            bool begins = r == 0 || groups[r] != groups[r - 1];
            assert_true(begins || (i > 0 && rows[i - 1] == r - 1)); /* whole, in the order of the file */
            last_group = begins ? i : last_group;
        }
        int64_t end = rows[taken - 1] + 1;
        assert_true(end == count || groups[end] != groups[end - 1]);
        bool more = s->batch_tokens > 0 ? tokens > s->batch_tokens : taken > s->batch_rows;
        assert_true(!more || last_group == 0); /* more than asked for: a single group */
        at += (int)taken;
    }
    return steps;
}

static void test_groups_are_not_parted(void **state) {
    io_fixture *f = *state;
    uint64_t random = 11;
    for (int round = 0; round < 40; round++) {
        int groups[MOST], lengths[MOST], count = 1 + (int)(io_random(&random) % MOST), sizes = 1 + round % 9;
        for (int r = 0, left = 0, key = 0; r < count; r++, left--) {
            if (left == 0) {
                left = 1 + (int)(io_random(&random) % (uint32_t)sizes);
                key++;
            }
            groups[r] = key;
            lengths[r] = 1 + (int)(io_random(&random) % 9);
        }
        sbp_dataset *d = load(f, groups, lengths, count);
        for (int by = 0; by < 4; by++) {
            sbp_sampler s;
            int64_t first[MOST], again[MOST], batch = 1 + (int64_t)(io_random(&random) % 20);
            assert_ok(f, sbp_sampler_init(&s, f->diag, d, 42, by % 2, batch, by < 2 ? 0 : batch * 4));
            int64_t planned = sbp_sampler_epoch_steps(&s, 0);
            sbp_sampler_seek(&s, 0, 0);
            assert_int_equal(check_epoch(&s, groups, count, first), planned);
            for (int i = 0; i < count && by % 2 == 0; i++)
                assert_int_equal(first[i], i);
            assert_int_equal(check_epoch(&s, groups, count, again), sbp_sampler_epoch_steps(&s, 1));
            sbp_sampler_seek(&s, 0, 0);
            check_epoch(&s, groups, count, again);
            assert_memory_equal(first, again, (size_t)count * sizeof *first);
            sbp_sampler_close(&s);
        }
        sbp_dataset_destroy(d);
    }
}

/* Groups of one row are rows: the order of data without groups. */
static void test_groups_of_one(void **state) {
    io_fixture *f = *state;
    int groups[MOST], lengths[MOST];
    int64_t grouped[MOST], alone[MOST];
    for (int r = 0; r < MOST; r++) {
        groups[r] = r;
        lengths[r] = 1 + r % 5;
    }
    sbp_dataset *d = load(f, groups, lengths, MOST);
    assert_non_null(d->groups);
    for (int k = 0; k < 2; k++) {
        sbp_sampler s;
        assert_ok(f, sbp_sampler_init(&s, f->diag, d, 42, true, 7, 0));
        check_epoch(&s, groups, MOST, k ? alone : grouped);
        sbp_sampler_close(&s);
        d->groups = NULL; /* the memory is of d->arrays */
    }
    assert_memory_equal(grouped, alone, sizeof alone);
    sbp_dataset_destroy(d);
}

/* ---- packing --------------------------------------------------------------------------------------------
 */

/* A program that asks for the group of each row has groups whole in a micro-batch, numbered as they come. */
static void test_groups_as_units(void **state) {
    io_fixture *f = *state;
    uint64_t random = 17;
    sbp_buffer buffers[] = {{.name = "group", .rows = sbp_extent_symbol(SBP_T, 1), .cols = 1}};
    sbp_row_input inputs[] = {{.kind = SBP_ROW_COLUMN, .buffer = 0, .column = "group"}};
    sbp_program program = {.context = 1,
                           .t_max = 60,
                           .buffers = buffers,
                           .buffer_count = 1,
                           .row_inputs = inputs,
                           .row_input_count = 1};
    assert_int_equal(sbp_pack_rows_wanted(&program), SBP_ROWS_SCORED);
    for (int round = 0; round < 30; round++) {
        int groups[MOST], lengths[MOST], count = 1 + (int)(io_random(&random) % 40), keys = 0, most = 0;
        int64_t rows[MOST];
        for (int r = 0, left = 0, tokens = 0; r < count; r++, left--) {
            if (left == 0) {
                left = 1 + (int)(io_random(&random) % 5);
                keys++;
                tokens = 0;
            }
            groups[r] = keys;
            lengths[r] = 1 + (int)(io_random(&random) % 9);
            tokens += lengths[r] + 1; /* with the prompt */
            most = tokens > most ? tokens : most;
            rows[r] = r;
        }
        sbp_dataset *d = load(f, groups, lengths, count);
        program.t_max = most;
        assert_ok(f, sbp_pack_check_data(&program, f->diag, d));
        double total;
        assert_true(sbp_pack_total(d, rows, count, "groups", &total) && total == keys);
        sbp_packer p;
        sbp_packer_init(&p, most, &program);
        assert_ok(f, sbp_packer_pack(&p, f->diag, d, rows, count));
        int64_t documents = 0, seen = 0;
        for (int32_t b = 0; b < p.part_count; b++) {
            const sbp_micro_batch *part = &p.parts[b];
            assert_true(part->rows <= most);
            assert_ok(f, sbp_packer_columns(&p, f->diag, d, part));
            const int32_t *group = ints(&p, "group");
            int64_t at = 0, number = -1;
            for (int64_t k = 0; k < part->count; k++) {
                int64_t doc = part->docs[k]; /* a row has one here */
                bool begins = doc == 0 || groups[doc] != groups[doc - 1];
                assert_true(begins || part->docs[k - 1] == doc - 1);
                number += begins;
                for (int64_t i = 0; i < d->docs[doc].count; i++)
                    assert_int_equal(group[at++], number);
            }
            int64_t last = part->docs[part->count - 1];
            assert_true(last + 1 == count || groups[last + 1] != groups[last]);
            assert_int_equal(part->groups, number + 1);
            documents += part->count;
            seen += part->groups;
        }
        assert_int_equal(documents, count);
        assert_int_equal(seen, keys);
        sbp_packer_close(&p);
        if (most > 2) {
            program.t_max = most - 1;
            assert_fails(f, SBP_INPUT, "tokens, which stay together; the plan has room for",
                         sbp_pack_check_data(&program, f->diag, d));
        }
        sbp_dataset_destroy(d);
    }
    buffers[0].rows = sbp_extent_symbol(SBP_S, 1); /* numbers of groups: there are none */
    sbp_dataset *d = load(f, (int[]){1, 1}, (int[]){1, 1}, 2);
    assert_fails(f, SBP_INPUT, "reads 'group' of groups of rows", sbp_pack_check_data(&program, f->diag, d));
    sbp_dataset_destroy(d);
}

/* Rows that begin in the middle of a group are what is there of it. */
static void test_the_rest_of_a_group(void **state) {
    io_fixture *f = *state;
    sbp_buffer buffers[] = {{.name = "group", .rows = sbp_extent_symbol(SBP_T, 1), .cols = 1}};
    sbp_row_input inputs[] = {{.kind = SBP_ROW_COLUMN, .buffer = 0, .column = "group"}};
    sbp_program program = {.context = 1,
                           .t_max = 20,
                           .buffers = buffers,
                           .buffer_count = 1,
                           .row_inputs = inputs,
                           .row_input_count = 1};
    sbp_dataset *d = load(f, (int[]){1, 1, 1, 2}, (int[]){2, 2, 2, 2}, 4);
    sbp_packer p;
    sbp_packer_init(&p, 20, &program);
    assert_ok(f, sbp_packer_pack(&p, f->diag, d, (int64_t[]){1, 2, 3}, 3));
    assert_int_equal(p.part_count, 1);
    assert_int_equal(p.parts[0].count, 3);
    assert_int_equal(p.parts[0].groups, 2);
    assert_int_equal(p.parts[0].docs[0], 1);
    assert_ok(f, sbp_packer_columns(&p, f->diag, d, &p.parts[0]));
    assert_memory_equal(ints(&p, "group"), ((const int32_t[]){0, 0, 0, 0, 0, 0, 1, 1, 1}), 36);
    sbp_packer_close(&p);
    sbp_dataset_destroy(d);
}

static void test_groups_come_from_prompts(void **state) {
    io_fixture *f = *state;
    static const char rows[] = "{\"prompt_ids\": [1, 2], \"completion_ids\": [3], \"reward\": 0}\n"
                               "{\"prompt_ids\": [1, 2], \"completion_ids\": [4], \"reward\": 0}\n"
                               "{\"prompt_ids\": [1], \"completion_ids\": [2, 3], \"reward\": 0}\n";
    io_put(io_path(f, "rows.jsonl"), rows, sizeof rows - 1);
    const char *files[] = {sbp_arena_strdup(f->arena, io_path(f, "rows.jsonl"))};
    sbp_dataset_options o = {.files = files, .file_count = 1, .rows = SBP_ROWS_SCORED};
    sbp_dataset *d;
    assert_ok(f, sbp_dataset_load(f->diag, &o, &d));
    assert_true(d->groups[0] == d->groups[1] && d->groups[0] != d->groups[2]);
    sbp_dataset_destroy(d);
    o.rows = SBP_ROWS_TEXTS; /* what is not asked for is not there */
    assert_ok(f, sbp_dataset_load(f->diag, &o, &d));
    assert_null(d->groups);
    sbp_dataset_destroy(d);
}

/* ---- rows of a group that are no neighbours -------------------------------------------------------------
 */

/* A row of data; as "reward" it has its own number. */
typedef struct apart_row {
    int group, prompt, number;
} apart_row;

/* kept: tokens lie on disk; named: rows say their group, a string or an integer. */
static sbp_status load_apart(io_fixture *f, const apart_row *rows, int count, bool named, bool kept,
                             sbp_dataset **out) {
    sbp_text text;
    sbp_text_init(&text, f->arena);
    for (int r = 0; r < count; r++) {
        sbp_text_add(&text, "{\"prompt_ids\": [%d, 4], \"completion_ids\": [7, %d], \"reward\": %d",
                     1 + rows[r].prompt, 1 + rows[r].number % 50, rows[r].number);
        if (named)
            sbp_text_add(&text, rows[r].group % 2 ? ", \"group\": \"g%d\"" : ", \"group\": %d",
                         rows[r].group);
        sbp_text_add(&text, "}\n");
    }
    io_put(io_path(f, "apart.jsonl"), text.data, text.length);
    const char *files[] = {sbp_arena_strdup(f->arena, io_path(f, "apart.jsonl"))};
    const sbp_dataset_options o = {.files = files,
                                   .file_count = 1,
                                   .rows = SBP_ROWS_SCORED,
                                   .cache = kept ? sbp_arena_strdup(f->arena, io_path(f, "kept")) : NULL};
    return sbp_dataset_load(f->diag, &o, out);
}

/* The data have these rows in this order; keys[k]: of the group of the row at place k. */
static void check_order(const sbp_dataset *d, const apart_row *rows, const int *order, const int *keys,
                        int count) {
    assert_int_equal(d->row_count, count);
    int32_t reward = sbp_dataset_number(d, "reward");
    for (int k = 0; k < count; k++) {
        const sbp_doc *doc = &d->docs[k];
        assert_int_equal(d->rows[k], k);
        assert_int_equal(doc->row, order[k]);
        assert_true(d->numbers[reward][k] == rows[order[k]].number);
        assert_int_equal(d->tokens[doc->first], 1 + rows[order[k]].prompt);
        assert_int_equal(d->tokens[doc->first + 3], 1 + rows[order[k]].number % 50);
        assert_int_equal(sbp_dataset_begins_group(d, k), k == 0 || keys[k] != keys[k - 1]);
    }
}

/* Rows in drawn order are those of each group in turn, the groups by their first rows: from memory, on disk,
 * from there; with groups that have a prompt each, by name or by prompt, and with a prompt for every row. */
static void test_groups_wherever_rows_stand(void **state) {
    io_fixture *f = *state;
    uint64_t random = 23;
    int moved = 0;
    for (int round = 0; round < 40; round++) {
        apart_row rows[MOST], swap;
        int order[MOST], keys[MOST], count = 1 + (int)(io_random(&random) % 50), way = round % 3, at = 0;
        for (int r = 0, key = 0; r < count; r++) {
            key += io_random(&random) % 4 == 0;
            rows[r] = (apart_row){key, way == 2 ? r : key, r};
        }
        for (int r = count - 1; r > 0; r--) {
            int other = (int)(io_random(&random) % (uint32_t)(r + 1));
            swap = rows[r];
            rows[r] = rows[other];
            rows[other] = swap;
        }
        for (int r = 0; r < count; r++) {
            bool first = true;
            for (int i = 0; i < r; i++)
                first &= rows[i].group != rows[r].group;
            for (int i = r; first && i < count; i++)
                if (rows[i].group == rows[r].group) {
                    keys[at] = rows[r].group;
                    order[at++] = i;
                }
        }
        uint64_t hash = 0;
        for (int k = 0; k < (round < 3 ? 3 : 1); k++) {
            sbp_dataset *d;
            int64_t *file_order;
            assert_ok(f, load_apart(f, rows, count, way != 1, k > 0, &d));
            check_order(d, rows, order, keys, count);
            assert_true(k == 0 || d->hash == hash);
            hash = d->hash;
            assert_ok(f, sbp_dataset_file_order(f->diag, d, &file_order));
            for (int r = 0; file_order && r < count; r++)
                assert_int_equal(d->docs[file_order[r]].row, r);
            moved += file_order != NULL;
            free(file_order);
            sbp_dataset_destroy(d);
        }
    }
    assert_true(moved > 35);
}

/* What `groups` are, of rows in the order of the file, by letters of them and of prompts; "": it is not
 * clear. */
static const struct {
    const char *groups, *prompts, *order, *found;
} uses[] = {
    {"aabbaabb", "ppqqrrss", "01234567", "00112233"}, /* counted anew, each batch by group */
    {"ababbaab", "pqpqsrrs", "02134756", "00112233"}, /* and in any order */
    {"aabbaabb", "ppqqppqq", "01452367", "00001111"}, /* the same prompts: the same groups */
    {"aabbaabb", "pqrstuvw", "01452367", "00001111"}, /* a prompt for each row: `group` alone says it */
    {"aabbaabb", "pprrqqss", "01234567", "00112233"},
    {"abababab", "pqrqpqrq", "04135726", "00111122"},
    {"aabbaabbaabb", "ppqqrrssppxx", "0189234567:;", "000011223344"}, /* and one prompt again */
    {"abcabcabc", "ppprrrsss", "036147258", "000111222"},             /* a prompt for each row of a group */
    {"aabba", "ppqqr", "01423", "00011"}, /* as many prompts have one row as have more */
    {"abbaabbcc", "pqqrrssxx", "", ""},   /* one is alone, most are not */
    {"aaaa", "pqrs", "0123", "0000"},     /* neighbours are one group, whatever their prompts */
    {"aabaac", "pqxpqy", "031425", "001123"},
    {"aabbbbaa", "ppqqssrr", "01234567", "00112233"}, /* the last of a batch and the first of the next */
    {"aabbbbaa", "ppqrqrpp", "01672345", "00001111"},
};

static void test_groups_counted_anew(void **state) {
    io_fixture *f = *state;
    for (int i = 0; i < SBP_COUNT(uses); i++) {
        apart_row rows[MOST];
        int order[MOST], keys[MOST], count = (int)strlen(uses[i].groups);
        sbp_dataset *d;
        for (int r = 0; r < count; r++)
            rows[r] = (apart_row){uses[i].groups[r] - 'a', uses[i].prompts[r] - 'a', r};
        for (int r = 0; uses[i].order[0] && r < count; r++) {
            order[r] = uses[i].order[r] - '0';
            keys[r] = uses[i].found[r];
        }
        if (!uses[i].order[0]) {
            assert_fails(f, SBP_INPUT, "are both of it, apart from each other and with different prompts",
                         load_apart(f, rows, count, true, false, &d));
            continue;
        }
        assert_ok(f, load_apart(f, rows, count, true, false, &d));
        check_order(d, rows, order, keys, count);
        sbp_dataset_destroy(d);
    }
    sbp_dataset *d;
    const apart_row lonely[] = {{0, 1, 0}, {1, 2, 1}, {1, 2, 2}, {0, 3, 3}, {0, 3, 4}, {1, 4, 5}, {1, 4, 6}};
    assert_fails(f, SBP_INPUT, "group '0': data rows 1 and 4 (from 1)",
                 load_apart(f, lonely, SBP_COUNT(lonely), true, false, &d));
}

static sbp_status gather_apart(io_fixture *f, void *user) {
    sbp_dataset *d = NULL;
    int64_t *order = NULL;
    const sbp_dataset_options o = {.files = user, .file_count = 1, .rows = SBP_ROWS_SCORED};
    SBP_TRY(sbp_dataset_load(f->diag, &o, &d));
    sbp_status status = sbp_dataset_file_order(f->diag, d, &order);
    free(order);
    sbp_dataset_destroy(d);
    return status;
}

static void test_groups_without_memory(void **state) {
    io_fixture *f = *state;
    static const apart_row rows[] = {{1, 1, 0}, {2, 2, 1}, {1, 1, 2}, {2, 2, 3}, {1, 1, 4}, {3, 3, 5}};
    sbp_dataset *d;
    assert_ok(f, load_apart(f, rows, SBP_COUNT(rows), true, false, &d));
    sbp_dataset_destroy(d);
    char path[200]; /* the arena is another one at each attempt */
    snprintf(path, sizeof path, "%s", io_path(f, "apart.jsonl"));
    const char *files[] = {path};
    assert_true(io_fail_allocations(f, gather_apart, files) > 10);
}

/* ---- shared prompts -------------------------------------------------------------------------------------
 */

static sbp_dataset *load_lines(io_fixture *f, const char *lines) {
    io_put(io_path(f, "rows.jsonl"), lines, strlen(lines));
    const char *files[] = {sbp_arena_strdup(f->arena, io_path(f, "rows.jsonl"))};
    const sbp_dataset_options o = {.files = files, .file_count = 1, .rows = SBP_ROWS_SCORED};
    sbp_dataset *data;
    assert_ok(f, sbp_dataset_load(f->diag, &o, &data));
    return data;
}

/* Two answers to a prompt of three tokens, one of which is empty; one to another prompt. */
static const char answers[] =
    "{\"prompt_ids\": [4, 5, 6], \"completion_ids\": [7, 8], \"advantage\": 1, \"group\": 1}\n"
    "{\"prompt_ids\": [4, 5, 6], \"completion_ids\": [7, 9, 2], \"advantage\": 2, \"group\": 1}\n"
    "{\"prompt_ids\": [4, 5, 6], \"completion_ids\": [], \"advantage\": 3, \"group\": 1}\n"
    "{\"prompt_ids\": [4, 5], \"completion_ids\": [3], \"advantage\": 4, \"group\": 2}\n";

static void test_shared_prompts(void **state) {
    io_fixture *f = *state;
    sbp_dataset *d = load_lines(f, answers);
    sbp_packer p;
    sbp_packer_init(&p, 20, NULL);
    p.counted = "weight";
    assert_ok(f, sbp_packer_pack(&p, f->diag, d, (int64_t[]){0, 1, 2, 3}, 4));
    assert_int_equal(p.part_count, 1);
    assert_int_equal(p.rows, 17); /* tokens: 5 + 6 + 3 + 3 */
    assert_int_equal(p.run_rows, 13);
    assert_int_equal(p.parts[0].rows, 13);
    assert_int_equal(p.parts[0].count, 4);
    assert_memory_equal(p.parts[0].shared, ((const int32_t[]){0, 2, 2, 0}), 16);
    for (int i = 0; i < 2; i++) /* which the contract has no lines for */
        p.columns[p.column_count++] =
            (sbp_column){.name = i ? SBP_OWN_IN_PREFIX "3" : SBP_FIRST_IN_PREFIX "3", .dtype = SBP_I32};
    assert_ok(f, sbp_packer_columns(&p, f->diag, d, &p.parts[0]));
    static const struct {
        const char *name;
        int32_t want[13];
    } columns[] = {
        {"tok", {4, 5, 6, 7, 8, 6, 7, 9, 2, 6, 4, 5, 3}},
        {"pos", {0, 1, 2, 3, 4, 2, 3, 4, 5, 2, 0, 1, 2}},
        {"first", {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 10, 10}},
        {"shared_end", {0, 0, 0, 0, 0, 2, 2, 2, 2, 2, 10, 10, 10}},
        {"own", {0, 0, 0, 0, 0, 5, 5, 5, 5, 9, 10, 10, 10}},
        {"first.in.3", {0, 0, 0, 0, 0, 0, 2, 2, 2, 0, 10, 10, 10}},
        {"own.in.3", {0, 0, 0, 3, 3, 5, 6, 6, 6, 9, 10, 10, 10}},
        {"label", {5, 6, 7, 8, 0, 7, 9, 2, 0, 0, 5, 3, 0}},
        {"doc", {0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 3, 3, 3}},
        {"group", {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1}},
    };
    for (int i = 0; i < SBP_COUNT(columns); i++)
        assert_memory_equal(ints(&p, columns[i].name), columns[i].want, sizeof columns[i].want);
    static const float weight[] = {0, 0, 1, 1, 0, 1, 1, 1, 0, 0, 0, 1, 0};
    assert_memory_equal(ints(&p, "weight"), weight, sizeof weight);
    static const float copies[] = {3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    assert_memory_equal(ints(&p, "copies"), copies, sizeof copies);
    p.most_rows = 9; /* two of the group together, and what is left alone */
    assert_ok(f, sbp_packer_pack(&p, f->diag, d, (int64_t[]){0, 1, 2, 3}, 4));
    assert_int_equal(p.part_count, 2);
    assert_int_equal(p.run_rows, 9 + 3 + 3);
    assert_memory_equal(p.parts[1].shared, ((const int32_t[]){0, 0}), 8);
    p.counted = "predicted"; /* what reads all rows shares none */
    assert_ok(f, sbp_packer_pack(&p, f->diag, d, (int64_t[]){0, 1, 2, 3}, 4));
    assert_int_equal(p.run_rows, 17);
    p.counted = "in.none"; /* a score is asked for where a label counts, whatever the objective reads */
    p.most_rows = 20;
    assert_ok(f, sbp_packer_pack(&p, f->diag, d, (int64_t[]){0, 1, 2, 3}, 4));
    assert_int_equal(p.run_rows, 13);
    sbp_packer_close(&p);
    sbp_dataset_destroy(d);
}

static void test_what_cannot_share(void **state) {
    (void)state;
    sbp_row_input inputs[] = {{.kind = SBP_ROW_COLUMN, .column = "first"},
                              {.kind = SBP_ROW_COLUMN, .column = "shared_end"},
                              {.kind = SBP_ROW_COLUMN, .column = "own"},
                              {.kind = SBP_ROW_COLUMN, .column = "sample"}};
    sbp_program program = {.context = 1, .row_inputs = inputs, .row_input_count = 3};
    assert_null(sbp_pack_cannot_share(&program, "weight"));
    assert_non_null(strstr(sbp_pack_cannot_share(&program, NULL), "may read all rows"));
    program.row_input_count = 1;
    assert_non_null(strstr(sbp_pack_cannot_share(&program, "weight"), "stand alone"));
    program.row_input_count = 4;
    assert_non_null(strstr(sbp_pack_cannot_share(&program, "weight"), "random numbers"));
}

static sbp_status share(io_fixture *f, void *user) {
    sbp_packer p;
    sbp_packer_init(&p, 20, NULL);
    p.counted = "weight";
    sbp_status status = sbp_packer_pack(&p, f->diag, user, (int64_t[]){0, 1, 2, 3}, 4);
    if (status == SBP_OK)
        status = sbp_packer_columns(&p, f->diag, user, &p.parts[0]);
    sbp_packer_close(&p);
    return status;
}

static void test_sharing_without_memory(void **state) {
    io_fixture *f = *state;
    sbp_dataset *d = load_lines(f, answers);
    assert_true(io_fail_allocations(f, share, d) > 10);
    sbp_dataset_destroy(d);
}

static sbp_status attempt(io_fixture *f, void *user) {
    const char *files[] = {user};
    const sbp_dataset_options o = {.files = files, .file_count = 1, .rows = SBP_ROWS_SCORED};
    sbp_dataset *d;
    sbp_sampler s;
    int64_t count;
    SBP_TRY(sbp_dataset_load(f->diag, &o, &d));
    sbp_status status = sbp_sampler_init(&s, f->diag, d, 1, true, 2, 0);
    if (status == SBP_OK)
        sbp_sampler_next(&s, &count);
    sbp_sampler_close(&s);
    sbp_dataset_destroy(d);
    return status;
}

static void test_memory_failures(void **state) {
    io_fixture *f = *state;
    char path[200];
    sbp_dataset_destroy(load(f, (int[]){1, 1, 2, 3, 3}, (int[]){1, 2, 3, 4, 5}, 5));
    snprintf(path, sizeof path, "%s", io_path(f, "rows.jsonl"));
    assert_true(io_fail_allocations(f, attempt, path) > 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_groups_are_not_parted, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_groups_of_one, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_groups_as_units, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_the_rest_of_a_group, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_groups_come_from_prompts, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_groups_wherever_rows_stand, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_groups_counted_anew, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_groups_without_memory, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_shared_prompts, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_what_cannot_share, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_sharing_without_memory, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_memory_failures, io_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
