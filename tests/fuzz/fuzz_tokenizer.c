/* fuzz_tokenizer.c: tokenizer.json: the input is its text up to a NUL, then a text to encode. */
#include <string.h>

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/tokenizer_case.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sbp_arena *arena = sbp_arena_create();
    const char *text = (const char *)data;
    size_t end = strnlen(text, size);
    if (arena)
        fuzz_tokenizer_case(arena, text, end, end < size ? text + end + 1 : NULL,
                            end < size ? size - end - 1 : 0);
    sbp_arena_destroy(arena);
    return 0;
}
