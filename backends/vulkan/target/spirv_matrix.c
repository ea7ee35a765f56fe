/* spirv_matrix.c: cooperative matrices as drivers want them.
 *
 * GL_KHR_cooperative_matrix needs glslang 13, bfloat16 needs glslang 15.2. GL_NV_cooperative_matrix, which
 * every glslang has, makes the same instructions but for three things, changed here: a type of KHR's says
 * what its matrices are used as (a, b or the sum: found where they are multiplied, so the three must be
 * different types, as they are when rows and columns are specialised), loads and stores name the layout by an
 * integer in place of a bool, and the numbers of instructions, capability and extension differ
 * (specifications SPV_NV_cooperative_matrix, SPV_KHR_cooperative_matrix, SPV_KHR_bfloat16). */
#include "backends/vulkan/target/shaders.h"

#include <string.h>

enum {
    OP_EXTENSION = 10,
    OP_CAPABILITY = 17,
    OP_TYPE_FLOAT = 22,
    OP_CONSTANT_TRUE = 41,
    OP_CONSTANT = 43,
    OP_TYPE_NV = 5358,     /* result, component type, scope, rows, columns */
    OP_LOAD_NV = 5359,     /* type, result, pointer, stride, column major (a bool), memory access */
    OP_STORE_NV = 5360,    /* pointer, object, stride, column major, memory access */
    OP_MULTIPLY_NV = 5361, /* type, result, a, b, c */
    OP_LENGTH_NV = 5362,
    OP_TYPE_KHR = 4456, /* ..., use */
    OP_LOAD_KHR = 4457, /* type, result, pointer, layout, stride, memory access */
    OP_STORE_KHR = 4458,
    OP_MULTIPLY_KHR = 4459,
    CAPABILITY_FLOAT16 = 9,
    CAPABILITY_BFLOAT16 = 5116,
    CAPABILITY_BFLOAT16_MATRIX = 5118,
    CAPABILITY_NV = 5357,
    CAPABILITY_KHR = 6022,
    ENCODING_BFLOAT16 = 0,
    USES = 3,       /* a, b, sum: 0, 1, 2; layouts, by rows and by columns: 0, 1 */
    MOST_ADDED = 32 /* words: constants 12, uses 3, an extension 6, a capability 2, an encoding 1 */
};

typedef struct translator {
    const uint32_t *words;
    int64_t count;
    uint32_t ids;         /* bound */
    uint32_t *types;      /* by id of a matrix: its type */
    uint32_t *uses;       /* by id of a type of matrices: 1 + use, 0 unknown */
    bool *is_true;        /* by id of a constant */
    uint32_t *scope_type; /* by id of a constant of 32 bits, as scopes are: its type */
    uint32_t integers[USES];
    uint32_t *out;
    int64_t out_count;
} translator;

/* What each type of matrices is used as. */
static void find_uses(translator *t) {
    bool *is_matrix = t->is_true; /* of types; other ids than those of constants */
    for (int64_t at = SBP_SPIRV_HEADER_WORDS; at < t->count; at += sbp_spirv_length(t->words[at])) {
        const uint32_t *w = t->words + at;
        int64_t length = sbp_spirv_length(t->words[at]);
        if (sbp_spirv_op(t->words[at]) == OP_TYPE_NV)
            is_matrix[w[1]] = true;
        else if (sbp_spirv_op(t->words[at]) == OP_CONSTANT_TRUE)
            t->is_true[w[2]] = true;
        else if (sbp_spirv_op(t->words[at]) == OP_CONSTANT && length == 4)
            t->scope_type[w[2]] = w[1];
        else if (length > 2 && w[1] < t->ids && w[2] < t->ids && is_matrix[w[1]])
            t->types[w[2]] = w[1];
        if (sbp_spirv_op(t->words[at]) == OP_MULTIPLY_NV) {
            t->uses[t->types[w[3]]] = 1;
            t->uses[t->types[w[4]]] = 2;
            t->uses[w[1]] = 3;
        }
    }
}

static void put(translator *t, uint32_t word) {
    t->out[t->out_count++] = word;
}

static void put_all(translator *t, const uint32_t *words, int64_t count) {
    memcpy(t->out + t->out_count, words, (size_t)count * sizeof *words);
    t->out_count += count;
}

static void put_capability(translator *t, uint32_t capability) {
    put(t, 2u << 16 | OP_CAPABILITY);
    put(t, capability);
}

static void put_extension(translator *t, const char *name) {
    uint32_t text[8] = {0};
    int64_t words = (int64_t)strlen(name) / 4 + 1;
    memcpy(text, name, strlen(name));
    put(t, (uint32_t)(words + 1) << 16 | OP_EXTENSION);
    put_all(t, text, words);
}

static void put_type(translator *t, const uint32_t *w) {
    if (t->integers[0] == 0)
        for (uint32_t value = 0; value < USES; value++) {
            t->integers[value] = t->ids++;
            put(t, 4u << 16 | OP_CONSTANT);
            put(t, t->scope_type[w[3]]);
            put(t, t->integers[value]);
            put(t, value);
        }
    put(t, 7u << 16 | OP_TYPE_KHR);
    put_all(t, w + 1, 5);
    put(t, t->integers[t->uses[w[1]] - 1]);
}

/* Load and store have stride and layout as words 4 and 5, or 3 and 4; here they change places. */
static void put_access(translator *t, const uint32_t *w, int64_t length, uint32_t op, int64_t stride_at) {
    put(t, (uint32_t)length << 16 | op);
    put_all(t, w + 1, stride_at - 1);
    put(t, t->integers[t->is_true[w[stride_at + 1]] ? 1 : 0]);
    put(t, w[stride_at]);
    put_all(t, w + stride_at + 2, length - stride_at - 2);
}

static void translate(translator *t, int64_t at, bool bf16) {
    const uint32_t *w = t->words + at;
    int64_t length = sbp_spirv_length(t->words[at]);
    uint32_t op = sbp_spirv_op(t->words[at]);
    if (op == OP_CAPABILITY && w[1] == CAPABILITY_NV) {
        put_capability(t, CAPABILITY_KHR);
    } else if (op == OP_CAPABILITY && w[1] == CAPABILITY_FLOAT16 && bf16) {
        put_capability(t, CAPABILITY_BFLOAT16);
        put_capability(t, CAPABILITY_BFLOAT16_MATRIX);
    } else if (op == OP_EXTENSION && strcmp((const char *)(w + 1), "SPV_NV_cooperative_matrix") == 0) {
        put_extension(t, "SPV_KHR_cooperative_matrix");
        if (bf16)
            put_extension(t, "SPV_KHR_bfloat16");
    } else if (op == OP_TYPE_FLOAT && w[2] == 16 && bf16) {
        put(t, 4u << 16 | OP_TYPE_FLOAT);
        put_all(t, w + 1, 2);
        put(t, ENCODING_BFLOAT16);
    } else if (op == OP_TYPE_NV) {
        put_type(t, w);
    } else if (op == OP_LOAD_NV) {
        put_access(t, w, length, OP_LOAD_KHR, 4);
    } else if (op == OP_STORE_NV) {
        put_access(t, w, length, OP_STORE_KHR, 3);
    } else {
        put_all(t, w, length);
        if (op == OP_MULTIPLY_NV)
            t->out[t->out_count - length] = (uint32_t)length << 16 | OP_MULTIPLY_KHR;
    }
}

sbp_status sbp_vulkan_spirv_matrix(sbp_arena *arena, sbp_diag *diag, const uint32_t **words, int64_t *count,
                                   bool bf16) {
    translator t = {.words = *words, .count = *count, .ids = (*words)[3]};
    int64_t types = 0;
    t.types = SBP_NEW_ARRAY(arena, uint32_t, t.ids);
    t.uses = SBP_NEW_ARRAY(arena, uint32_t, t.ids);
    t.is_true = SBP_NEW_ARRAY(arena, bool, t.ids);
    t.scope_type = SBP_NEW_ARRAY(arena, uint32_t, t.ids);
    find_uses(&t);
    for (int64_t at = SBP_SPIRV_HEADER_WORDS; at < t.count; at += sbp_spirv_length(t.words[at])) {
        if (sbp_spirv_op(t.words[at]) == OP_LENGTH_NV)
            return sbp_fail(diag, SBP_INTERNAL, "a shader asks for the length of a cooperative matrix");
        if (sbp_spirv_op(t.words[at]) != OP_TYPE_NV)
            continue;
        types++;
        if (t.uses[t.words[at + 1]] == 0 || t.scope_type[t.words[at + 3]] == 0)
            return sbp_fail(diag, SBP_INTERNAL, "a shader has cooperative matrices that are not multiplied");
    }
    if (types != USES)
        return sbp_fail(diag, SBP_INTERNAL, "a shader has %lld types of cooperative matrices, not %d",
                        (long long)types, USES);
    t.out = SBP_NEW_ARRAY(arena, uint32_t, t.count + MOST_ADDED);
    put_all(&t, t.words, SBP_SPIRV_HEADER_WORDS);
    for (int64_t at = SBP_SPIRV_HEADER_WORDS; at < t.count; at += sbp_spirv_length(t.words[at]))
        translate(&t, at, bf16);
    t.out[3] = t.ids;
    *words = t.out;
    *count = t.out_count;
    return SBP_OK;
}
