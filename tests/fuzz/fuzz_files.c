/* fuzz_files.c: files of rows from anywhere: JSON lines and arrays, CSV, Parquet, Arrow, compressed or not.
 * Reads all rows (at most 2000: a few bytes of Parquet may stand for many) and makes their trees. Whatever
 * comes, rows or an error with a message. */
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>

#include "runtime/data/source/source.h"

typedef struct job {
    sbp_arena *arena;
    sbp_diag *diag;
    const sbp_record *record;
} job;

static sbp_status parse(void *user) {
    job *j = user;
    const sbp_json *tree;
    sbp_text text;
    SBP_TRY(sbp_record_parse(j->record, j->arena, j->diag, &tree));
    sbp_text_init(&text, j->arena);
    sbp_json_add_value(&text, tree); /* looks at all of it */
    return SBP_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sbp_source *source = NULL;
    sbp_diag *diag = sbp_diag_create();
    sbp_status status = sbp_source_open(diag, fuzz_file(".rows", data, size), &source);
    bool end = false;
    for (int i = 0; i < 2000 && status == SBP_OK && !end; i++) {
        sbp_record record;
        job j = {.arena = sbp_arena_create(), .diag = diag, .record = &record};
        status = sbp_source_read(source, j.arena, diag, &record, &end);
        if (status == SBP_OK && !end)
            (void)!sbp_guard(j.arena, diag, parse, &j);
        sbp_arena_destroy(j.arena);
    }
    if (status != SBP_OK && sbp_diag_count(diag, SBP_ERROR) == 0)
        abort();
    sbp_source_close(source);
    sbp_diag_destroy(diag);
    return 0;
}
