/* fuzz_tokenizer_file.c: files of tokenizers that are no tokenizer.json: SentencePiece's, tekken.json,
 * tiktoken's. What is read is written out as tokenizer.json, read again, and gives the same ids. */
#include <stdlib.h>
#include <string.h>

#include "frontends/formats/tokenizer/tokenizer.h"
#include "tests/fuzz/fuzz.h"

static const char text[] = " One  day</s>  \xe2\x96\x81"
                           "ABC\n\n\xe4\xb8\xad\xe6\x96\x87 Ａ\xff\xf0\x9f\x98\x80 12 aaaa ";

static void run(sbp_arena *arena, const char *path) {
    const sbp_tokenizer *t, *again;
    const char *json;
    size_t length;
    sbp_encoding first, second;
    if (sbp_tokenizer_load(arena, NULL, path, &t) != SBP_OK)
        return;
    int failed =
        sbp_tokenizer_encode(t, arena, NULL, text, sizeof text - 1, SBP_WITH_OFFSETS, &first) != SBP_OK;
    if (sbp_tokenizer_to_json(t, arena, NULL, &json, &length) != SBP_OK)
        return;
    if (sbp_tokenizer_from_json(arena, NULL, "again", json, length, &again) != SBP_OK)
        abort();
    if ((sbp_tokenizer_encode(again, arena, NULL, text, sizeof text - 1, 0, &second) != SBP_OK) != failed)
        abort();
    if (!failed && (first.count != second.count ||
                    memcmp(first.ids, second.ids, (size_t)first.count * sizeof *first.ids)))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sbp_arena *arena = sbp_arena_create();
    if (arena)
        run(arena, fuzz_file(".model", data, size));
    sbp_arena_destroy(arena);
    return 0;
}
