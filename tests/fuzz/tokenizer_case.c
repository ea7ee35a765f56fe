/* tokenizer_case.c: see the header. */
#include "tests/fuzz/tokenizer_case.h"

#include <stdlib.h>
#include <string.h>

static const char text[] = "One day, it's <s>A\xc3\xa9\xcc\x81</s> 123\n\n  "
                           "\xe4\xb8\xad\xe6\x96\x87\xff\xf0\x9f\x98\x80 \t[MASK]x aaaa";

/* 0: all is well, or an error; the ids in *out. */
static int encode(sbp_arena *arena, const sbp_tokenizer *t, const char *data, size_t size,
                  sbp_encoding *out) {
    const char *back;
    size_t length;
    if (sbp_tokenizer_encode(t, arena, NULL, data, size, SBP_WITH_OFFSETS | SBP_ADD_SPECIAL_TOKENS, out) !=
        SBP_OK)
        return 1;
    for (int64_t i = 0; i < out->count; i++)
        if (out->offsets[i][0] < 0 || out->offsets[i][1] > (int64_t)size || out->ids[i] < 0)
            abort();
    return sbp_tokenizer_decode(t, arena, NULL, out->ids, out->count, false, &back, &length) != SBP_OK;
}

void fuzz_tokenizer_case(sbp_arena *arena, const char *data, size_t end, const char *other,
                         size_t other_length) {
    const sbp_tokenizer *t, *again;
    const char *json;
    size_t length;
    sbp_encoding first, second;
    if (sbp_tokenizer_from_json(arena, NULL, "input", data, end, &t) != SBP_OK)
        return;
    int failed = encode(arena, t, text, sizeof text - 1, &first);
    if (other)
        (void)encode(arena, t, other, other_length, &second);
    if (sbp_tokenizer_to_json(t, arena, NULL, &json, &length) != SBP_OK)
        return;
    if (sbp_tokenizer_from_json(arena, NULL, "again", json, length, &again) != SBP_OK)
        abort();
    if (encode(arena, again, text, sizeof text - 1, &second) != failed)
        abort();
    if (!failed && (first.count != second.count ||
                    memcmp(first.ids, second.ids, (size_t)first.count * sizeof *first.ids)))
        abort();
}
