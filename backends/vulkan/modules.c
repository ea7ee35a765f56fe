/* modules.c: the container of SPIR-V modules that a plan carries:
 *
 *   "SBPSPIRV" | u32 version | u32 count | count entries | words
 *   entry: key | u32 words offset | u32 word count | u32 features
 *
 * Offsets count from the start; words are aligned to 4. Little endian, as SPIR-V is written here. */
#include "backends/vulkan/abi.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAGIC_BYTES = 8,
    HEADER_BYTES = 16,
    KEY_BYTES = (int)sizeof(sbp_vulkan_key),
    ENTRY_BYTES = KEY_BYTES + 12,
    VERSION = 4
};

static const char magic[MAGIC_BYTES] = {'S', 'B', 'P', 'S', 'P', 'I', 'R', 'V'};

static int compare_modules(const void *a, const void *b) {
    return sbp_vulkan_key_compare(&((const sbp_vulkan_module *)a)->key, &((const sbp_vulkan_module *)b)->key);
}

static void put_u32(char *at, int64_t value) {
    uint32_t word = (uint32_t)value;
    memcpy(at, &word, sizeof word);
}

static uint32_t get_u32(const char *at) {
    uint32_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

void sbp_vulkan_modules_write(sbp_arena *arena, const sbp_vulkan_module *modules, int32_t count,
                              const void **data, int64_t *bytes) {
    sbp_vulkan_module *sorted = SBP_NEW_ARRAY(arena, sbp_vulkan_module, count);
    int64_t size = HEADER_BYTES + (int64_t)count * ENTRY_BYTES;
    for (int32_t i = 0; i < count; i++) {
        sorted[i] = modules[i];
        size += modules[i].word_count * 4;
    }
    if (count > 1)
        qsort(sorted, (size_t)count, sizeof *sorted, compare_modules);
    char *out = sbp_arena_alloc(arena, (size_t)size);
    memcpy(out, magic, MAGIC_BYTES);
    put_u32(out + 8, VERSION);
    put_u32(out + 12, count);
    int64_t at = HEADER_BYTES + (int64_t)count * ENTRY_BYTES;
    for (int32_t i = 0; i < count; i++) {
        const sbp_vulkan_module *m = &sorted[i];
        char *entry = out + HEADER_BYTES + (int64_t)i * ENTRY_BYTES;
        memcpy(entry, &m->key, KEY_BYTES);
        put_u32(entry + KEY_BYTES, at);
        put_u32(entry + KEY_BYTES + 4, m->word_count);
        put_u32(entry + KEY_BYTES + 8, m->features);
        memcpy(out + at, m->words, (size_t)m->word_count * 4);
        at += m->word_count * 4;
    }
    *data = out;
    *bytes = size;
}

static sbp_status damaged(sbp_diag *diag, const char *what) {
    return sbp_fail(diag, SBP_INPUT, "the plan's Vulkan kernels are damaged: %s", what);
}

static sbp_status read_entry(sbp_arena *arena, sbp_diag *diag, const char *data, int64_t bytes,
                             const char *entry, sbp_vulkan_module *out) {
    int64_t words_at = get_u32(entry + KEY_BYTES), word_count = get_u32(entry + KEY_BYTES + 4);
    sbp_vulkan_key key;
    memcpy(&key, entry, sizeof key);
    if (!sbp_vulkan_key_possible(&key))
        return damaged(diag, "a key is none");
    if (word_count < 5 || words_at > bytes || word_count > (bytes - words_at) / 4)
        return damaged(diag, "a module lies outside");
    uint32_t *words = SBP_NEW_ARRAY(arena, uint32_t, word_count);
    memcpy(words, data + words_at, (size_t)word_count * 4);
    if (words[0] != 0x07230203u)
        return damaged(diag, "a module is not SPIR-V");
    *out = (sbp_vulkan_module){
        .key = key, .words = words, .word_count = word_count, .features = get_u32(entry + KEY_BYTES + 8)};
    return SBP_OK;
}

sbp_status sbp_vulkan_modules_read(sbp_arena *arena, sbp_diag *diag, const void *data, int64_t bytes,
                                   sbp_vulkan_modules *out) {
    *out = (sbp_vulkan_modules){0};
    if (!data || bytes < HEADER_BYTES || memcmp(data, magic, MAGIC_BYTES) != 0)
        return damaged(diag, "no such section, or no container of modules");
    const char *in = data;
    if (get_u32(in + 8) != VERSION)
        return sbp_fail(diag, SBP_INPUT,
                        "the plan's Vulkan kernels are of version %u, this program reads %d: compile again",
                        (unsigned)get_u32(in + 8), VERSION);
    int64_t count = get_u32(in + 12);
    if (count > (bytes - HEADER_BYTES) / ENTRY_BYTES)
        return damaged(diag, "fewer modules than it says");
    sbp_vulkan_module *items = SBP_NEW_ARRAY(arena, sbp_vulkan_module, count);
    for (int64_t i = 0; i < count; i++) {
        SBP_TRY(read_entry(arena, diag, in, bytes, in + HEADER_BYTES + i * ENTRY_BYTES, &items[i]));
        if (i > 0 && compare_modules(&items[i - 1], &items[i]) >= 0)
            return damaged(diag, "keys are not in order");
    }
    *out = (sbp_vulkan_modules){.items = items, .count = (int32_t)count};
    return SBP_OK;
}

const sbp_vulkan_module *sbp_vulkan_modules_find(const sbp_vulkan_modules *modules,
                                                 const sbp_vulkan_key *key) {
    if (modules->count == 0)
        return NULL;
    const sbp_vulkan_module wanted = {.key = *key};
    return bsearch(&wanted, modules->items, (size_t)modules->count, sizeof wanted, compare_modules);
}
