/* fuzz_tables.c: valid files of rows: the input draws a table and how it is written, and what is read must be
 * what was written, also of some of its columns. The first byte chooses the format, the second how the file
 * is compressed as a whole. */
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/data/source/source.h"
#include "tests/fuzz/tables/tables.h"

typedef struct job {
    sbp_arena *arena, *row;
    sbp_diag *diag;
    const uint8_t *data;
    size_t size;
    const sbp_record *record;
    sbp_text found;
} job;

static sbp_status add_row(void *user) {
    job *j = user;
    const sbp_json *tree;
    SBP_TRY(sbp_record_parse(j->record, j->row, j->diag, &tree));
    sbp_json_add_value(&j->found, tree);
    sbp_text_add(&j->found, "\n");
    return SBP_OK;
}

static bool is_even(void *user, const char *name) {
    (void)user;
    return (name[strlen(name) - 1] - '0') % 2 == 0;
}

/* Rows are parsed when several have been read, as batches are. */
static sbp_status read_rows(job *j, sbp_source *source) {
    sbp_status status = SBP_OK;
    for (bool end = false; status == SBP_OK && !end;) {
        sbp_record records[3];
        int count = 0;
        j->row = sbp_arena_create();
        while (status == SBP_OK && !end && count < 3) {
            status = sbp_source_read(source, j->row, j->diag, &records[count], &end);
            count += !end;
        }
        for (int i = 0; i < count && status == SBP_OK; i++) {
            j->record = &records[i];
            status = sbp_guard(j->row, j->diag, add_row, j);
        }
        sbp_arena_destroy(j->row);
    }
    return status;
}

static void fail(job *j, const char *what, const sbp_text *file, const char *expected) {
    fprintf(stderr, "%s\n%sexpected:\n%s\nfound:\n%s\n", what, sbp_diag_text(j->diag, SBP_NOTE), expected,
            j->found.data);
    FILE *out = fopen("/tmp/sbp-fuzz-table", "wb"); /* beside /tmp/sbp-fuzz-input, which draws it */
    if (out && fwrite(file->data, 1, file->length, out) == file->length)
        fclose(out);
    abort();
}

static sbp_status body(void *user) {
    job *j = user;
    static const int codecs[] = {0, 0, 2, 6};
    drawing d = drawing_begin(j->arena, j->data, j->size);
    table_format format = (table_format)draw(&d, TABLE_FORMATS);
    int codec = codecs[draw(&d, 4)];
    table t;
    sbp_text plain, file, expected;
    sbp_source *source = NULL;
    sbp_text_init(&plain, j->arena);
    sbp_text_init(&file, j->arena);
    sbp_text_init(&expected, j->arena);
    sbp_text_init(&j->found, j->arena);
    table_draw(&d, format, &t);
    bool some = (format == TABLE_ARROW || format == TABLE_PARQUET) && draw(&d, 3) == 0;
    table_write(&d, &t, &plain);
    put_compressed(&d, codec, plain.data, plain.length, &file);
    table_expected(&t, &expected, some ? is_even : NULL);
    sbp_status status = sbp_source_open(j->diag, fuzz_file(".table", file.data, file.length), &source);
    if (status == SBP_OK && some)
        sbp_source_select(source, is_even, NULL);
    if (status == SBP_OK)
        status = read_rows(j, source);
    if (status != SBP_OK)
        fail(j, "a file that was written here is not read", &plain, expected.data);
    if (strcmp(j->found.data, expected.data) != 0)
        fail(j, "other rows are read than were written", &plain, expected.data);
    sbp_source_close(source);
    return SBP_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    job j = {.arena = sbp_arena_create(), .diag = sbp_diag_create(), .data = data, .size = size};
    if (sbp_guard(j.arena, j.diag, body, &j) != SBP_OK)
        abort();
    sbp_diag_destroy(j.diag);
    sbp_arena_destroy(j.arena);
    return 0;
}
