/* fuzz_weights.c: headers of weight files, .gguf where they begin as such, else .safetensors; each tensor's
 * first values are read. */
#include <string.h>

#include "frontends/tokenizer/tokenizer.h"
#include "frontends/weights/weights.h"
#include "tests/fuzz/fuzz.h"

static void read_values(sbp_weights *weights) {
    double values[64];
    for (int32_t i = 0; i < sbp_weights_count(weights) && i < 64; i++) {
        const sbp_weight *w = sbp_weights_at(weights, i);
        (void)!sbp_weights_read(weights, w, 0, w->elems < 64 ? w->elems : 64, SBP_F64, values, NULL);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sbp_arena *arena = sbp_arena_create();
    bool gguf = size >= 4 && memcmp(data, "GGUF", 4) == 0;
    sbp_weights *weights = NULL;
    const sbp_tokenizer *t;
    if (arena) {
        const char *path = fuzz_file(gguf ? ".gguf" : ".safetensors", data, size);
        if (sbp_weights_open(arena, NULL, path, &weights) == SBP_OK)
            read_values(weights);
        if (gguf)
            (void)!sbp_tokenizer_load(arena, NULL, path, &t);
    }
    sbp_weights_close(weights);
    sbp_arena_destroy(arena);
    return 0;
}
