/* fuzz_parquet_head.c: the footer of a Parquet file, behind pages that are good: the input is its Thrift
 * alone, so that a change need not keep its length. Whatever it is, the rows are read or refused, once and
 * again alike. */
#include <stdlib.h>
#include <string.h>

#include "ir/base/base.h"
#include "runtime/data/source/source.h"
#include "tests/fuzz/fuzz.h"

enum { MOST_INPUT = 1 << 16 };

/* PAR1, and a page of one string, as tests/fuzz/corpus/parquet/groups_of_another_type begins. */
static const uint8_t pages[] = {0x50, 0x41, 0x52, 0x31, 0x15, 0x00, 0x15, 0x28, 0x15, 0x28, 0x2c,
                                0x15, 0x02, 0x15, 0x00, 0x15, 0x06, 0x15, 0x06, 0x00, 0x00, 0x10,
                                0x00, 0x00, 0x00, 'o',  'n',  'c',  'e',  ' ',  'u',  'p',  'o',
                                'n',  ' ',  'a',  ' ',  't',  'i',  'm',  'e'};

/* Rows that were read, and a hash of them; the status. */
static sbp_status read_all(const char *path, int64_t *rows, uint64_t *hash) {
    sbp_source *source = NULL;
    sbp_diag *diag = sbp_diag_create();
    sbp_status status = sbp_source_open(diag, path, &source);
    bool end = false;
    *rows = 0;
    *hash = 0;
    while (*rows < 500 && status == SBP_OK && !end) {
        sbp_record record;
        sbp_arena *arena = sbp_arena_create();
        status = sbp_source_read(source, arena, diag, &record, &end);
        if (status == SBP_OK && !end) {
            ++*rows;
            *hash = sbp_hash_bytes(record.where, strlen(record.where), *hash);
        }
        sbp_arena_destroy(arena);
    }
    if (status != SBP_OK && sbp_diag_count(diag, SBP_ERROR) == 0)
        abort();
    sbp_source_close(source);
    sbp_diag_destroy(diag);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static uint8_t file[sizeof pages + MOST_INPUT + 8];
    uint32_t length = (uint32_t)size;
    int64_t rows, again;
    uint64_t hash, other;
    if (size > MOST_INPUT)
        return 0;
    memcpy(file, pages, sizeof pages);
    memcpy(file + sizeof pages, data, size);
    memcpy(file + sizeof pages + size, &length, sizeof length);
    memcpy(file + sizeof pages + size + 4, "PAR1", 4);
    const char *path = fuzz_file(".parquet", file, sizeof pages + size + 8);
    sbp_status status = read_all(path, &rows, &hash);
    if (read_all(path, &again, &other) != status || again != rows || other != hash)
        abort();
    return 0;
}
