/* test_data_sources.c: files of rows in every format. Oracle: tests/data/rows (rows.jsonl and what pyarrow,
 * polars and pandas write of the same rows), and drawn rows written here as lines, arrays and CSV. */
#include "io_testing.h"

#include <stdarg.h>
#include <sys/stat.h>
#include <zlib.h>
#include <zstd.h>

#include "runtime/data/source/source.h"

#define ROWS "tests/data/rows/"

/* ---- what is read, as text --------------------------------------------------------------------------- */

typedef struct read_job {
    io_fixture *f;
    const char *path;
    sbp_arena *arena;
    const sbp_record *record;
    sbp_text *out;            /* NULL: the trees are enough */
    bool places;              /* where rows are, as well */
    const sbp_reader *reader; /* NULL: of the file */
} read_job;

static sbp_status add_row(void *user) {
    read_job *job = user;
    const sbp_json *tree;
    SBP_TRY(sbp_record_parse(job->record, job->arena, job->f->diag, &tree));
    if (!job->out)
        return SBP_OK;
    if (job->places)
        sbp_text_add(job->out, "%s ", strrchr(job->record->where, '/') + 1);
    sbp_json_add_value(job->out, tree);
    sbp_text_add(job->out, "\n");
    return SBP_OK;
}

static sbp_status read_rows(read_job *job) {
    sbp_source *source;
    sbp_status status = job->reader ? sbp_source_open_reader(job->f->diag, job->reader, &source)
                                    : sbp_source_open(job->f->diag, job->path, &source);
    SBP_TRY(status);
    for (bool end = false; status == SBP_OK && !end;) {
        sbp_record record;
        job->record = &record;
        job->arena = sbp_arena_create();
        status = job->arena ? sbp_source_read(source, job->arena, job->f->diag, &record, &end) : SBP_MACHINE;
        if (status == SBP_OK && !end)
            status = sbp_guard(job->arena, job->f->diag, add_row, job);
        sbp_arena_destroy(job->arena);
    }
    sbp_source_close(source);
    return status;
}

static sbp_status read_body(void *user) {
    return read_rows(user);
}

/* All rows, a line each; the text is the fixture's. */
static sbp_status try_text(io_fixture *f, const char *path, bool places, const char **out) {
    sbp_text text;
    sbp_text_init(&text, f->arena);
    read_job job = {.f = f, .path = path, .out = &text, .places = places};
    sbp_status status = sbp_guard(f->arena, f->diag, read_body, &job);
    *out = text.data;
    return status;
}

static const char *text_of(io_fixture *f, const char *path) {
    const char *text;
    assert_ok(f, try_text(f, path, false, &text));
    return text;
}

/* ---- the same rows in every format ------------------------------------------------------------------- */

static void test_formats(void **state) {
    io_fixture *f = *state;
    static const char *const files[] = {
        "rows.json",        "snappy.parquet",    "gzip.parquet",      "zstd.parquet",   "lz4.parquet",
        "v2.parquet",       "plain.parquet",     "encodings.parquet", "polars.parquet", "plain.stream.arrow",
        "lz4.stream.arrow", "zstd.stream.arrow", "file.arrow",        "views.arrow"};
    const char *expected = text_of(f, ROWS "rows.jsonl");
    assert_true(strlen(expected) > 4000);
    for (int i = 0; i < SBP_COUNT(files); i++) {
        const char *found = text_of(f, sbp_arena_printf(f->arena, ROWS "%s", files[i]));
        if (strcmp(found, expected) != 0)
            fail_msg("%s has other rows:\n%s", files[i], found);
    }
    const char *csv = text_of(f, ROWS "rows.csv");
    assert_string_equal(csv, text_of(f, ROWS "rows.tsv.gz"));
    assert_non_null(
        strstr(csv, "{\"id\":\"9223372036854775805\",\"text\":\"a \\\"quoted\\\", text\\nover two lines\","));
}

static void put(io_fixture *f, const char *name, const char *text) {
    io_put(io_path(f, name), text, strlen(text));
}

/* Bytes of a file, one to seven at a time, as if they came from elsewhere. */
typedef struct bringing {
    const char *text;
    size_t length, at;
    uint64_t random;
} bringing;

static sbp_status bring(void *user, sbp_diag *diag, char *out, size_t room, size_t *got) {
    bringing *b = user;
    size_t some = 1 + io_random(&b->random) % 7, left = b->length - b->at;
    (void)diag;
    some = b->at > 4000 ? 1 << 16 : some;
    *got = left < some ? left : some;
    *got = *got < room ? *got : room;
    memcpy(out, b->text + b->at, *got);
    b->at += *got;
    return SBP_OK;
}

static sbp_status fail_to_bring(void *user, sbp_diag *diag, char *out, size_t room, size_t *got) {
    (void)user;
    (void)out;
    (void)room;
    (void)got;
    return sbp_fail(diag, SBP_IO, "nothing comes");
}

static void test_readers(void **state) {
    io_fixture *f = *state;
    static const char *const files[] = {"rows.jsonl", "rows.json", "snappy.parquet", "file.arrow"};
    const char *expected = text_of(f, ROWS "rows.jsonl");
    for (int i = 0; i < SBP_COUNT(files); i++) {
        bringing b = {.random = 7};
        sbp_text text;
        sbp_text_init(&text, f->arena);
        assert_ok(f, sbp_file_read(f->arena, f->diag, sbp_arena_printf(f->arena, ROWS "%s", files[i]),
                                   &b.text, &b.length));
        read_job job = {.f = f, .out = &text, .reader = &(sbp_reader){bring, &b}};
        assert_ok(f, sbp_guard(f->arena, f->diag, read_body, &job));
        assert_string_equal(text.data, expected);
        assert_int_equal(b.at, b.length);
    }
    sbp_source *source;
    assert_fails(f, SBP_IO, "nothing comes",
                 sbp_source_open_reader(f->diag, &(sbp_reader){fail_to_bring, NULL}, &source));
}

/* Where rows are, and what is no row. */
static void test_places(void **state) {
    io_fixture *f = *state;
    static const struct {
        const char *text, *rows;
    } cases[] = {
        {"{\"a\":1}\n\n \r\n{\"a\":2}\r\n{\"a\":3}", "f:1 {\"a\":1}\nf:4 {\"a\":2}\nf:5 {\"a\":3}\n"},
        {"\xef\xbb\xbf{\"a\":1}\n", "f:1 {\"a\":1}\n"},
        {"", ""},
        {"\n \n", ""},
        {"[]", ""},
        {" [\n]\n", ""},
        {"[{\"a\":\"]}\\\"\"},\n\n {\"b\":[{\n}]} , {}\n]\n",
         "f:1 {\"a\":\"]}\\\"\"}\nf:3 {\"b\":[{}]}\nf:4 {}\n"},
        {"[{\"a\":1},2,\"x\"]", "f:1 {\"a\":1}\nf:1 2\nf:1 \"x\"\n"},
        {"a,b\n1,\n\"x\ny\",\"q\"\"q\"\n\n,2\n",
         "f:2 {\"a\":\"1\",\"b\":\"\"}\nf:3 {\"a\":\"x\\ny\",\"b\":\"q\\\"q\"}\nf:6 "
         "{\"a\":\"\",\"b\":\"2\"}\n"},
        {"text\n\"\"\n\n\"x\"\n", "f:2 {\"text\":\"\"}\nf:4 {\"text\":\"x\"}\n"},
        {"text\r\nx\r\ny\r", "f:2 {\"text\":\"x\"}\nf:3 {\"text\":\"y\"}\n"},
        {",text\n0,x\n", "f:2 {\"text\":\"x\"}\n"},
        {"a;b\n1,5;2\n", "f:2 {\"a\":\"1,5\",\"b\":\"2\"}\n"},
        {"label,input_ids,label2\nTrue,\"[1, 2]\",True\n,[3],x\n",
         "f:2 {\"label\":true,\"input_ids\":[1,2],\"label2\":\"True\"}\nf:3 "
         "{\"label\":null,\"input_ids\":[3],"
         "\"label2\":\"x\"}\n"},
    };
    const char *found;
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        put(f, "f", cases[i].text);
        assert_ok(f, try_text(f, io_path(f, "f"), true, &found));
        assert_string_equal(found, cases[i].rows);
    }
}

static void test_errors(void **state) {
    io_fixture *f = *state;
    static const struct {
        const char *text;
        size_t length;
        const char *message;
    } cases[] = {
        {"[{\"a\":1}", 8, "f:1: expected ',' or ']', found the end of the file"},
        {"[{\"a\":1} {}]", 12, "f:1: expected ',' or ']', found '{'"},
        {"[{\"a\":1},\n]", 11, "f:2: expected a row, found ']'"},
        {"[{\"a\":1}]\nx", 11, "f:2: expected the end of the file behind the array, found 'x'"},
        {"[{\"a\":\n1", 8, "f:2: expected the end of a row, found the end of the file"},
        {"[{\"a\":}]", 8, "f:1"},
        {"a,b\n1\n", 6, "f:2: 1 field, the first line names 2 columns"},
        {"a,b\n1,\"2\n\n", 10, "f:2: a quoted field has no end"},
        {"a,a\n1,2\n", 8, "f:1: two columns are called 'a'"},
        {"input_ids,n\n[1 2],3\n", 19, "f:2: input_ids"},
        {"PK\3\4zip", 7, "f' is a zip archive (or a spreadsheet), which is not read here: unzip '"},
        {"BZh9", 4, "f' is compressed by bzip2, which is not read here: bzcat '"},
        {"\x1f\x8b\x08\0\0\0\0\0\0\0abc", 13, "the compressed data"},
        {"\x28\xb5\x2f\xfd\x04", 5, "the compressed data"},
        {"PAR1\0\0\0\0PAR1", 12, "its footer is damaged"},
        {"PAR1\xff\0\0\0PAR1", 12, "its end is missing"},
        {"ARROW1\0\0", 8, "it ends in the middle"},
        {"\xff\xff\xff\xff\x10\0\0\0", 8, "it ends in the middle of a message"},
    };
    const char *found;
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        io_put(io_path(f, "f"), cases[i].text, cases[i].length);
        assert_fails(f, SBP_INPUT, cases[i].message, try_text(f, io_path(f, "f"), false, &found));
    }
    assert_fails(f, SBP_IO, "No such file", try_text(f, io_path(f, "none"), false, &found));
    assert_fails(f, SBP_IO, "it is a directory", try_text(f, f->directory, false, &found));
}

/* ---- drawn rows ---------------------------------------------------------------------------------------- */

static void add_json(sbp_text *out, const char *const *fields) {
    static const char *const names[] = {"prompt", "completion", "n"};
    sbp_text_add(out, "{");
    for (int i = 0; i < 3; i++) {
        sbp_text_add(out, "%s\"%s\": ", i ? ", " : "", names[i]);
        sbp_json_add_string(out, fields[i], strlen(fields[i]));
    }
    sbp_text_add(out, "}");
}

static void add_csv(sbp_text *out, const char *const *fields, char delimiter, bool quote, const char *end) {
    for (int i = 0; i < 3; i++) {
        bool needs = quote || strpbrk(fields[i], ",\t\"\n\r");
        sbp_text_add(out, i ? "%.1s" : "", (char[]){delimiter, 0});
        sbp_text_add(out, needs ? "\"" : "");
        for (const char *c = fields[i]; *c; c++)
            sbp_text_add(out, *c == '"' ? "\"\"" : "%c", *c);
        sbp_text_add(out, needs ? "\"" : "");
    }
    sbp_text_add(out, "%s", end);
}

static const char *draw(io_fixture *f, uint64_t *random) {
    static const char *const pieces[] = {"a",    "word ", ",", "\"", "\n", "\r\n", "é",
                                         "日本", "\t",    "'", "{",  "]",  "\\"};
    sbp_text out;
    sbp_text_init(&out, f->arena);
    uint32_t count = io_random(random) % 8, repeat = io_random(random) % 50 == 0 ? 60000 : 1;
    for (uint32_t i = 0; i < count * repeat; i++)
        sbp_text_add(&out, "%s", pieces[io_random(random) % SBP_COUNT(pieces)]);
    return out.data;
}

static void put_gzip(io_fixture *f, const char *name, const sbp_text *text) {
    gzFile file = gzopen(io_path(f, name), "wb1");
    size_t half = text->length / 2;
    assert_non_null(file);
    assert_int_equal(gzwrite(file, text->data, (unsigned)half), half);
    assert_int_equal(gzclose(file), Z_OK);
    file = gzopen(io_path(f, name), "ab1"); /* a second member */
    assert_int_equal(gzwrite(file, text->data + half, (unsigned)(text->length - half)), text->length - half);
    assert_int_equal(gzclose(file), Z_OK);
}

static void put_zstd(io_fixture *f, const char *name, const sbp_text *text) {
    size_t bound = ZSTD_compressBound(text->length);
    char *out = sbp_arena_alloc(f->arena, bound);
    size_t length = ZSTD_compress(out, bound, text->data, text->length, 1);
    io_put(io_path(f, name), out, length);
}

static void draw_files(io_fixture *f, uint64_t *random) {
    static const char *const header[] = {"prompt", "completion", "n"};
    sbp_text lines, array, comma, tab;
    bool quote = io_random(random) % 2;
    const char *end = io_random(random) % 2 ? "\n" : "\r\n";
    int rows = (int)(io_random(random) % 30);
    sbp_text_init(&lines, f->arena);
    sbp_text_init(&array, f->arena);
    sbp_text_init(&comma, f->arena);
    sbp_text_init(&tab, f->arena);
    sbp_text_add(&array, "[");
    add_csv(&comma, header, ',', quote, end);
    add_csv(&tab, header, '\t', quote, end);
    for (int i = 0; i < rows; i++) {
        const char *const fields[] = {draw(f, random), draw(f, random), sbp_arena_printf(f->arena, "%d", i)};
        add_json(&lines, fields);
        sbp_text_add(&lines, "%s", end);
        sbp_text_add(&array, i ? ",\n" : "\n");
        add_json(&array, fields);
        add_csv(&comma, fields, ',', quote, end);
        add_csv(&tab, fields, '\t', quote, end);
    }
    sbp_text_add(&array, "\n]");
    io_put(io_path(f, "lines"), lines.data, lines.length);
    io_put(io_path(f, "array"), array.data, array.length);
    io_put(io_path(f, "comma"), comma.data, comma.length);
    io_put(io_path(f, "tab"), tab.data, tab.length);
    put_gzip(f, "lines.gz", &lines);
    put_gzip(f, "array.gz", &array);
    put_zstd(f, "comma.zst", &comma);
    put_zstd(f, "lines.zst", &lines);
}

static void test_drawn_rows(void **state) {
    io_fixture *f = *state;
    static const char *const names[] = {"array",    "comma",     "tab",      "lines.gz",
                                        "array.gz", "comma.zst", "lines.zst"};
    uint64_t random = 5;
    for (int round = 0; round < 25; round++) {
        io_renew(f);
        draw_files(f, &random);
        char *expected = strdup(text_of(f, io_path(f, "lines")));
        for (int i = 0; i < SBP_COUNT(names); i++)
            if (strcmp(text_of(f, io_path(f, names[i])), expected) != 0)
                fail_msg("round %d: %s has other rows", round, names[i]);
        free(expected);
    }
}

/* Bytes changed at random: any status, no crash; most must be noticed or change what is read. */
static void test_damage(void **state) {
    io_fixture *f = *state;
    static const char *const files[] = {"v2.parquet",        "encodings.parquet", "snappy.parquet",
                                        "zstd.stream.arrow", "file.arrow",        "views.arrow"};
    uint64_t random = 9;
    int refused = 0, rounds = 0;
    for (int i = 0; i < SBP_COUNT(files); i++) {
        const char *data, *found;
        size_t length;
        io_renew(f);
        assert_ok(f, sbp_file_read(f->arena, f->diag, sbp_arena_printf(f->arena, ROWS "%s", files[i]), &data,
                                   &length));
        char *copy = malloc(length);
        memcpy(copy, data, length);
        for (int round = 0; round < 60; round++, rounds++) {
            size_t at = io_random(&random) % length;
            char was = copy[at];
            copy[at] = (char)io_random(&random);
            io_put(io_path(f, "f"), copy, round % 10 ? length : at);
            io_renew(f);
            sbp_status status = try_text(f, io_path(f, "f"), false, &found);
            if (status != SBP_OK && (status != SBP_INPUT || !*sbp_diag_text(f->diag, SBP_ERROR)))
                fail_msg("%s round %d: status %d", files[i], round, status);
            refused += status != SBP_OK;
            copy[at] = was;
        }
        free(copy);
    }
    printf("%d of %d damaged files refused\n", refused, rounds);
    assert_true(refused > rounds / 5 && refused < rounds);
}

/* ---- bounds -------------------------------------------------------------------------------------------- */

#define CORPUS "tests/fuzz/corpus/"

static bool is_text(void *user, const char *name) {
    (void)user;
    return strcmp(name, "text") == 0;
}

/* Few bytes that stand for many: what all allocations together take is bounded, and so is the most at a time.
 */
static void test_bombs(void **state) {
    io_fixture *f = *state;
    static const struct {
        const char *path, *message;
        int64_t most_bytes;
    } cases[] = {
        {CORPUS "arrow/nested_nulls",
         "row 1: it takes more than 128.66 MiB, more than 680 B of file may stand for", (int64_t)160 << 20},
        {CORPUS "parquet/long_list", "a page says that it has more values than may be read", 1 << 20},
        {CORPUS "parquet/claimed_rows", "says that it has 8589934592 rows or more in 150 bytes", 1 << 20},
        {CORPUS "parquet/groups_of_another_type", "its row groups are damaged", 1 << 20},
        {CORPUS "parquet/half_lengths", "a page ends in the middle, or its values are damaged", 1 << 20},
    };
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        int64_t before = sbp_test_allocated_bytes();
        read_job job = {.f = f, .path = cases[i].path};
        assert_fails(f, SBP_INPUT, cases[i].message, read_rows(&job));
        int64_t taken = sbp_test_allocated_bytes() - before;
        if (taken > cases[i].most_bytes)
            fail_msg("%s took %lld bytes", cases[i].path, (long long)taken);
    }
}

/* What a batch of Arrow says of its nulls: more than rows, or some and nothing that says which; of none, as
 * pyarrow reads it, whatever lies where that would be. */
static void test_counts_of_nulls(void **state) {
    io_fixture *f = *state;
    static const char *const wrong[] = {CORPUS "arrow/nulls_without_bitmap",
                                        CORPUS "arrow/more_nulls_than_rows"};
    for (int i = 0; i < SBP_COUNT(wrong); i++) {
        read_job job = {.f = f, .path = wrong[i]};
        assert_fails(f, SBP_INPUT, "a batch of rows does not fit the schema", read_rows(&job));
    }
    assert_string_equal(text_of(f, CORPUS "arrow/bitmap_of_no_nulls"), "{\"a\":7}\n{\"a\":0}\n{\"a\":9}\n");
}

/* A column that nobody wants takes nothing, whatever it has; that it is there is known. */
static void test_unwanted_columns(void **state) {
    io_fixture *f = *state;
    static const char *const files[] = {CORPUS "parquet/long_list", ROWS "v2.parquet",
                                        ROWS "zstd.stream.arrow"};
    for (int i = 0; i < SBP_COUNT(files); i++) {
        sbp_source *source;
        sbp_record record;
        bool end;
        int64_t before = sbp_test_allocated_bytes();
        assert_ok(f, sbp_source_open(f->diag, files[i], &source));
        sbp_source_select(source, is_text, NULL);
        for (int64_t row = 0; row < (i ? 12 : 1); row++) {
            assert_ok(f, sbp_source_read(source, f->arena, f->diag, &record, &end));
            assert_false(end);
            for (int64_t k = 0; k < record.tree->count; k++) {
                const sbp_json *member = &record.tree->items[k];
                assert_int_equal(member->kind,
                                 strcmp(member->key, "text") == 0 ? SBP_JSON_STRING : SBP_JSON_UNREAD);
            }
        }
        assert_ok(f, sbp_source_read(source, f->arena, f->diag, &record, &end));
        assert_true(end);
        sbp_source_close(source);
        assert_true(sbp_test_allocated_bytes() - before < 3 << 20);
    }
}

/* Buffers of batches that have no rows are given back, once: seen by the allocator, or by ASan. */
static void test_batches_of_no_rows(void **state) {
    io_fixture *f = *state;
    const char *text = text_of(f, CORPUS "arrow/views_no_rows");
    assert_non_null(strstr(text, "once upon a time"));
}

/* Blocks of one byte each 131,071 times, as zstd has them. */
static void put_blank_zstd(io_fixture *f, const char *name, const char *begin, int blocks) {
    sbp_text out;
    sbp_text_init(&out, f->arena);
    sbp_text_add_n(&out, "\x28\xb5\x2f\xfd\x00\x58", 6); /* a window of 2 MiB, no length */
    uint32_t head = (uint32_t)strlen(begin) << 3;
    sbp_text_add_n(&out, (const char *)&head, 3);
    sbp_text_add(&out, "%s", begin);
    for (int i = 0; i < blocks; i++) {
        head = 131071u << 3 | 1 << 1 | (i + 1 == blocks);
        sbp_text_add_n(&out, (const char *)&head, 3);
        sbp_text_add(&out, "a");
    }
    io_put(io_path(f, name), out.data, out.length);
}

/* A row that 8 KiB become. */
static void test_rows_of_compressed_files(void **state) {
    io_fixture *f = *state;
    const char *found;
    static const char *const begins[] = {"[{\"text\": \"", "text,b\n"};
    for (int i = 0; i < SBP_COUNT(begins); i++) {
        put_blank_zstd(f, "f", begins[i], 2100);
        assert_fails(f, SBP_INPUT, "a row of more than 256.00 MiB in a compressed file",
                     try_text(f, io_path(f, "f"), false, &found));
    }
    put_blank_zstd(f, "f", "PAR1", 600); /* copied to a file before it is read */
    assert_fails(f, SBP_INPUT, "2413 compressed bytes become more than",
                 try_text(f, io_path(f, "f"), false, &found));
}

/* ---- files and columns --------------------------------------------------------------------------------- */

static int expand(io_fixture *f, const char *argument, const char *expected) {
    const char *const *files;
    int32_t count;
    sbp_text out;
    sbp_text_init(&out, f->arena);
    assert_ok(f, sbp_source_expand(f->arena, f->diag, argument, &files, &count));
    for (int32_t i = 0; i < count; i++)
        sbp_text_add(&out, "%s%s", i ? " " : "", files[i] + strlen(f->directory) + 1);
    return strcmp(out.data, expected);
}

/* What a file names lies beside it. */
static sbp_status expand_elsewhere(void *user) {
    io_fixture *f = user;
    const char *const *files;
    int32_t count;
    return sbp_source_expand(f->arena, f->diag, io_path(f, "saved"), &files, &count);
}

static sbp_status expand_body(void *user) {
    io_fixture *f = user;
    const char *const *files;
    int32_t count;
    assert_int_equal(expand(f, io_path(f, "*.jsonl"), "a.jsonl b.jsonl"), 0);
    assert_int_equal(expand(f, io_path(f, "b.jsonl"), "b.jsonl"), 0);
    assert_int_equal(
        expand(f, io_path(f, "saved"), "saved/data-00001-of-00002.arrow saved/data-00000-of-00002.arrow"), 0);
    assert_int_equal(expand(f, io_path(f, "shards"), "shards/x.csv shards/y.parquet"), 0);
    assert_int_equal(expand(f, io_path(f, "repo"), "repo/data/train-0.parquet"), 0);
    assert_fails(f, SBP_IO, "no file matches",
                 sbp_source_expand(f->arena, f->diag, io_path(f, "*.none"), &files, &count));
    assert_fails(f, SBP_USAGE, "has several splits",
                 sbp_source_expand(f->arena, f->diag, io_path(f, "dict"), &files, &count));
    assert_fails(f, SBP_USAGE, "has files of several splits",
                 sbp_source_expand(f->arena, f->diag, io_path(f, "mixed"), &files, &count));
    assert_fails(f, SBP_IO, "has no files of rows",
                 sbp_source_expand(f->arena, f->diag, io_path(f, "empty"), &files, &count));
    return SBP_OK;
}

static void test_files(void **state) {
    io_fixture *f = *state;
    static const char *const folders[] = {"saved", "shards", "repo", "repo/data", "dict", "mixed", "empty"};
    static const char *const files[] = {"a.jsonl",
                                        "b.jsonl",
                                        "shards/y.parquet",
                                        "shards/x.csv",
                                        "shards/README.md",
                                        "shards/dataset_info.json",
                                        "repo/README.md",
                                        "repo/data/train-0.parquet",
                                        "dict/dataset_dict.json",
                                        "mixed/train-0.parquet",
                                        "mixed/test-0.parquet",
                                        "empty/README.md",
                                        "saved/data-00000-of-00002.arrow"};
    for (int i = 0; i < SBP_COUNT(folders); i++)
        assert_int_equal(mkdir(io_path(f, folders[i]), 0700), 0);
    for (int i = 0; i < SBP_COUNT(files); i++)
        put(f, files[i], "x");
    put(f, "saved/state.json",
        "{\"_data_files\": [{\"filename\": \"data-00001-of-00002.arrow\"}, {\"filename\": "
        "\"data-00000-of-00002.arrow\"}]}");
    assert_ok(f, sbp_guard(f->arena, f->diag, expand_body, f));
    put(f, "saved/state.json", "{\"_data_files\": [{\"filename\": \"../one/train-0.parquet\"}]}");
    assert_fails(f, SBP_INPUT, "names '../one/train-0.parquet', which is no file below its folder",
                 sbp_guard(f->arena, f->diag, expand_elsewhere, f));
}

static sbp_status columns_body(void *user) {
    io_fixture *f = user;
    sbp_columns columns;
    const sbp_json *row, *renamed;
    static const char text[] = "{\"question\": 1, \"answer\": 2, \"prompt\": 3, \"id\": 4}";
    SBP_TRY(sbp_json_parse(f->arena, f->diag, "f:1", text, strlen(text), SBP_JSON_ROW, &row));
    SBP_TRY(sbp_columns_parse(f->arena, f->diag, "prompt=question,completion=answer", &columns));
    SBP_TRY(sbp_columns_rename(&columns, f->arena, f->diag, "f:1", row, true, &renamed));
    sbp_text out;
    sbp_text_init(&out, f->arena);
    sbp_json_add_value(&out, renamed);
    assert_string_equal(out.data, "{\"prompt\":1,\"completion\":2,\"id\":4}");
    SBP_TRY(sbp_columns_parse(f->arena, f->diag, "text=nothing", &columns));
    assert_fails(
        f, SBP_INPUT,
        "f:1: --columns: there is no column 'nothing'; there are 'question', 'answer', 'prompt', 'id'",
        sbp_columns_rename(&columns, f->arena, f->diag, "f:1", row, true, &renamed));
    SBP_TRY(sbp_columns_parse(f->arena, f->diag, "text=nothing?,prompt=answer?,completion=a+id?", &columns));
    SBP_TRY(sbp_columns_rename(&columns, f->arena, f->diag, "f:1", row, true, &renamed));
    sbp_text_init(&out, f->arena);
    sbp_json_add_value(&out, renamed);
    assert_string_equal(out.data, "{\"prompt\":2,\"question\":1,\"id\":4}");
    assert_true(sbp_columns_take(&columns, "nothing") && sbp_columns_take(&columns, "a") &&
                sbp_columns_take(&columns, "id"));
    assert_false(sbp_columns_take(&columns, "prompt") || sbp_columns_take(&columns, "i") ||
                 sbp_columns_take(&columns, ""));
    static const char *const wrong[] = {"", "a", "a=", "a=?", "=b", "a=b=c", "a=b,a=c", "a=b,,c=d"};
    for (int i = 0; i < SBP_COUNT(wrong); i++)
        assert_fails(f, SBP_USAGE, "--columns: ", sbp_columns_parse(f->arena, f->diag, wrong[i], &columns));
    return SBP_OK;
}

/* Several as one: those that are empty are left out; only of the first row all must be there. */
static sbp_status joined_body(void *user) {
    io_fixture *f = user;
    static const struct {
        const char *row, *want; /* or the error */
        bool all, wrong;
    } cases[] = {
        {"{\"a\": \"x\", \"b\": \"y\", \"c\": 1}", "{\"prompt\":\"x\\n\\ny\",\"c\":1}", true, false},
        {"{\"b\": \"\", \"a\": \"x\"}", "{\"prompt\":\"x\"}", true, false},
        {"{\"a\": \"\", \"b\": \"y\"}", "{\"prompt\":\"y\"}", true, false},
        {"{\"a\": \"x\", \"b\": null}", "{\"prompt\":\"x\"}", true, false},
        {"{\"a\": \"\", \"b\": \"\"}", "{\"prompt\":\"\"}", true, false},
        {"{\"a\": \"x\"}", "{\"prompt\":\"x\"}", false, false},
        {"{\"a+b\": 5, \"a\": \"x\", \"b\": \"y\"}", "{\"prompt\":5,\"a\":\"x\",\"b\":\"y\"}", true, false},
        {"{\"a\": \"x\"}", "there is no column 'b'; there are 'a'", true, true},
        {"{\"b\": \"x\"}", "there is no column 'a'; there are 'b'", false, true},
        {"{\"a\": \"x\", \"b\": [1]}", "only texts are joined, and 'b' is an array", true, true},
    };
    sbp_columns columns;
    SBP_TRY(sbp_columns_parse(f->arena, f->diag, "prompt=a+b", &columns));
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        const sbp_json *row, *renamed;
        sbp_text out;
        SBP_TRY(
            sbp_json_parse(f->arena, f->diag, "f:1", cases[i].row, strlen(cases[i].row), SBP_JSON_ROW, &row));
        if (cases[i].wrong) {
            assert_fails(f, SBP_INPUT, cases[i].want,
                         sbp_columns_rename(&columns, f->arena, f->diag, "f:1", row, cases[i].all, &renamed));
            continue;
        }
        assert_ok(f, sbp_columns_rename(&columns, f->arena, f->diag, "f:1", row, cases[i].all, &renamed));
        sbp_text_init(&out, f->arena);
        sbp_json_add_value(&out, renamed);
        assert_string_equal(out.data, cases[i].want);
    }
    return SBP_OK;
}

static void test_columns(void **state) {
    io_fixture *f = *state;
    assert_ok(f, sbp_guard(f->arena, f->diag, columns_body, f));
    assert_ok(f, sbp_guard(f->arena, f->diag, joined_body, f));
}

/* ---- memory -------------------------------------------------------------------------------------------- */

static sbp_status attempt(io_fixture *f, void *user) {
    read_job job = {.f = f, .path = user};
    return read_rows(&job);
}

static void test_memory_failures(void **state) {
    io_fixture *f = *state;
    static const char *const files[] = {"rows.json",         "rows.tsv.gz", "v2.parquet",
                                        "encodings.parquet", "views.arrow", "zstd.stream.arrow"};
    for (int i = 0; i < SBP_COUNT(files); i++) {
        char path[100];
        snprintf(path, sizeof path, ROWS "%s", files[i]);
        assert_true(io_fail_allocations(f, attempt, path) > 4);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_formats, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_readers, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_places, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_errors, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_drawn_rows, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_damage, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_bombs, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_counts_of_nulls, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_unwanted_columns, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_batches_of_no_rows, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_rows_of_compressed_files, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_files, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_columns, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_memory_failures, io_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
