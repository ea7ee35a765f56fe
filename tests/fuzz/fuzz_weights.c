/* fuzz_weights.c: headers of weight files, .gguf where they begin as such, else .safetensors; each tensor's
 * first values are read, of packed ones what they are together, first and last and in blocks, and of a GGUF
 * file those of Hugging Face's names, first and last. */
#include <stdio.h>
#include <string.h>

#include "frontends/formats/tokenizer/tokenizer.h"
#include "frontends/formats/weights/gguf_table.h"
#include "frontends/formats/weights/weights.h"

#include "tests/fuzz/fuzz.h"

static void read_packed(const sbp_weights *weights, const char *packed) {
    static uint8_t bytes[SBP_MAX_FORMAT_PARTS][4 * SBP_FORMAT_LARGEST_BLOCK];
    void *parts[SBP_MAX_FORMAT_PARTS];
    char name[256];
    double values[64];
    int length = (int)strlen(packed) - (int)strlen("_packed");
    snprintf(name, sizeof name, "%.*s", length < 0 ? 0 : length, packed);
    const sbp_weight *w = sbp_weights_find(weights, name);
    if (!w || !w->readable || w->elems < 1)
        return;
    int64_t n = w->elems < 64 ? w->elems : 64;
    (void)!sbp_weights_read(weights, w, 0, n, SBP_F64, values, NULL);
    (void)!sbp_weights_read(weights, w, w->elems - n, n, SBP_F64, values, NULL);
    for (int k = 0; k < SBP_MAX_FORMAT_PARTS; k++)
        parts[k] = bytes[k];
    if (w->format)
        (void)!sbp_weights_read_blocks(weights, w, w->elems / sbp_format_of(w->format)->block - 1, 1, parts,
                                       NULL);
}

static void read_values(sbp_weights *weights) {
    double values[64];
    for (int32_t i = 0; i < sbp_weights_count(weights) && i < 64; i++) {
        const sbp_weight *w = sbp_weights_at(weights, i);
        (void)!sbp_weights_read(weights, w, 0, w->elems < 64 ? w->elems : 64, SBP_F64, values, NULL);
        if (strstr(w->name, ".weight_packed"))
            read_packed(weights, w->name);
    }
}

static bool shape_of(void *user, const char *name, int32_t *rank, int64_t *dim) {
    const sbp_weight *w = sbp_weights_find(user, name);
    if (!w || w->source_count > 0 || w->rank > SBP_MAX_RANK)
        return false;
    *rank = w->rank;
    memcpy(dim, w->dim, (size_t)w->rank * sizeof *dim);
    return true;
}

typedef struct views {
    sbp_arena *arena;
    sbp_weights *weights;
} views;

/* Below a guard, as the pieces want it. */
static sbp_status read_views(void *user) {
    const views *v = user;
    double values[64];
    sbp_gguf_facts facts;
    sbp_gguf_piece *pieces;
    int32_t count;
    bool found = false;
    SBP_TRY(sbp_gguf_facts_of_keys(NULL, sbp_weights_gguf(v->weights), &facts, &found));
    if (!found)
        return SBP_OK;
    SBP_TRY(sbp_gguf_pieces(v->arena, NULL, "x.gguf", &facts, SBP_GGUF_FILE, shape_of, v->weights, &pieces,
                            &count));
    for (int32_t i = 0; i < count && i < 200; i++) {
        const sbp_weight *w = sbp_weights_find(v->weights, pieces[i].hf);
        int64_t n = w && w->elems < 64 ? w->elems : 64;
        if (w) {
            (void)!sbp_weights_read(v->weights, w, 0, n, SBP_F64, values, NULL);
            (void)!sbp_weights_read(v->weights, w, w->elems - n, n, SBP_F64, values, NULL);
        }
    }
    return SBP_OK;
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
        views v = {arena, weights};
        if (weights && sbp_weights_gguf(weights))
            (void)!sbp_guard(arena, NULL, read_views, &v);
        if (gguf)
            (void)!sbp_tokenizer_load(arena, NULL, path, &t);
    }
    sbp_weights_close(weights);
    sbp_arena_destroy(arena);
    return 0;
}
