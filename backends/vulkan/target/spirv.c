/* spirv.c: the last pass over a module (SPIR-V specification, section 2.3 for the layout of instructions). It
 * takes out what no driver needs, so that plans stay small, and marks arithmetic that must not be contracted:
 * `precise` in the text would have to stand at every variable of rowmath.h. */
#include "backends/vulkan/target/shaders.h"

#include <string.h>

enum {
    OP_SOURCE_CONTINUED = 2,
    OP_SOURCE = 3,
    OP_SOURCE_EXTENSION = 4,
    OP_NAME = 5,
    OP_MEMBER_NAME = 6,
    OP_STRING = 7,
    OP_LINE = 8,
    OP_ENTRY_POINT = 15,
    OP_CAPABILITY = 17,
    OP_FUNCTION = 54,
    OP_FUNCTION_END = 56,
    OP_FUNCTION_CALL = 57,
    OP_DECORATE = 71,
    OP_MEMBER_DECORATE = 72,
    OP_F_NEGATE = 127,
    OP_F_ADD = 129,
    OP_F_SUB = 131,
    OP_F_MUL = 133,
    OP_F_DIV = 136,
    OP_NO_LINE = 317,
    OP_MODULE_PROCESSED = 330,
    DECORATION_NO_CONTRACTION = 42,
    CAPABILITY_FLOAT16 = 9,
    CAPABILITY_FLOAT64 = 10,
    CAPABILITY_BFLOAT16 = 5116,
    CAPABILITY_COOPERATIVE_MATRIX = 6022
};

/* Capabilities that become features of the module. */
static uint32_t feature_of(uint32_t capability) {
    switch (capability) {
    case CAPABILITY_FLOAT16:
        return SBP_VULKAN_FLOAT16;
    case CAPABILITY_FLOAT64:
        return SBP_VULKAN_FLOAT64;
    case CAPABILITY_BFLOAT16:
        return SBP_VULKAN_BFLOAT16;
    case CAPABILITY_COOPERATIVE_MATRIX:
        return SBP_VULKAN_COOPMAT;
    default:
        return 0;
    }
}

typedef struct finisher {
    const uint32_t *words;
    int64_t count;
    uint32_t ids;        /* bound */
    int64_t *function;   /* by id: where its OpFunction stands, 0 none */
    bool *reached;       /* by id of a function */
    bool *gone;          /* by id: made by a function that is not reached */
    uint32_t *stack;     /* functions to look into */
    int64_t stack_count; /* each is put there once */
} finisher;

static void reach(finisher *f, uint32_t id) {
    if (id < f->ids && f->function[id] > 0 && !f->reached[id]) {
        f->reached[id] = true;
        f->stack[f->stack_count++] = id;
    }
}

/* Marks the functions that the entry point reaches. */
static void find_reached(finisher *f) {
    uint32_t entry = 0;
    for (int64_t at = SBP_SPIRV_HEADER_WORDS; at < f->count; at += sbp_spirv_length(f->words[at])) {
        if (sbp_spirv_op(f->words[at]) == OP_ENTRY_POINT)
            entry = f->words[at + 2];
        else if (sbp_spirv_op(f->words[at]) == OP_FUNCTION)
            f->function[f->words[at + 2]] = at;
    }
    reach(f, entry);
    while (f->stack_count > 0) {
        int64_t at = f->function[f->stack[--f->stack_count]];
        for (; sbp_spirv_op(f->words[at]) != OP_FUNCTION_END; at += sbp_spirv_length(f->words[at]))
            if (sbp_spirv_op(f->words[at]) == OP_FUNCTION_CALL)
                reach(f, f->words[at + 3]);
    }
}

static bool is_debug(uint32_t op) {
    return (op >= OP_SOURCE_CONTINUED && op <= OP_LINE) || op == OP_NO_LINE || op == OP_MODULE_PROCESSED;
}

static bool is_arithmetic(uint32_t op) {
    return op == OP_F_NEGATE || op == OP_F_ADD || op == OP_F_SUB || op == OP_F_MUL || op == OP_F_DIV;
}

/* Ids that instructions of a function define: word 2 where word 1 is a type. All that GLSL makes and
 * decorates is of that form, and marking an id that is no result does no harm: it would be a literal, never
 * decorated. */
static void mark_gone(finisher *f, int64_t at) {
    for (; sbp_spirv_op(f->words[at]) != OP_FUNCTION_END; at += sbp_spirv_length(f->words[at]))
        if (sbp_spirv_length(f->words[at]) > 2 && f->words[at + 2] < f->ids && f->words[at + 1] < f->ids)
            f->gone[f->words[at + 2]] = true;
}

void sbp_vulkan_spirv_finish(sbp_arena *arena, const uint32_t *words, int64_t count, bool exact,
                             sbp_vulkan_module *out) {
    finisher f = {.words = words, .count = count, .ids = words[3]};
    f.function = SBP_NEW_ARRAY(arena, int64_t, f.ids);
    f.reached = SBP_NEW_ARRAY(arena, bool, f.ids);
    f.gone = SBP_NEW_ARRAY(arena, bool, f.ids);
    f.stack = SBP_NEW_ARRAY(arena, uint32_t, f.ids);
    find_reached(&f);
    bool inside = false, dead = false;
    int64_t arithmetic = 0;
    bool *kept = SBP_NEW_ARRAY(arena, bool, f.ids);
    for (int64_t at = SBP_SPIRV_HEADER_WORDS; at < count; at += sbp_spirv_length(f.words[at])) {
        uint32_t op = sbp_spirv_op(f.words[at]);
        if (op == OP_FUNCTION) {
            inside = true;
            dead = !f.reached[words[at + 2]];
            if (dead)
                mark_gone(&f, at);
        }
        if (inside && !dead && sbp_spirv_length(f.words[at]) > 2 && words[at + 2] < f.ids)
            kept[words[at + 2]] = true;
        if (inside && !dead && is_arithmetic(op))
            arithmetic++;
        if (op == OP_FUNCTION_END)
            inside = dead = false;
    }
    uint32_t *made = SBP_NEW_ARRAY(arena, uint32_t, count + 3 * arithmetic);
    memcpy(made, words, SBP_SPIRV_HEADER_WORDS * sizeof *made);
    int64_t to = SBP_SPIRV_HEADER_WORDS;
    bool decorated = false;
    for (int64_t at = SBP_SPIRV_HEADER_WORDS; at < count; at += sbp_spirv_length(f.words[at])) {
        uint32_t op = sbp_spirv_op(f.words[at]);
        if (op == OP_CAPABILITY)
            out->features |= feature_of(words[at + 1]);
        if (op == OP_FUNCTION)
            dead = !f.reached[words[at + 2]];
        bool skip = dead || is_debug(op) ||
                    ((op == OP_DECORATE || op == OP_MEMBER_DECORATE) && f.gone[words[at + 1]] &&
                     !kept[words[at + 1]]);
        if (op == OP_FUNCTION_END)
            dead = false;
        if (skip)
            continue;
        /* Our decorations stand before the first one of the module: every module has one. */
        if (exact && !decorated && op == OP_DECORATE) {
            decorated = true;
            bool alive = false;
            for (int64_t i = SBP_SPIRV_HEADER_WORDS; i < count; i += sbp_spirv_length(f.words[i])) {
                if (sbp_spirv_op(f.words[i]) == OP_FUNCTION)
                    alive = f.reached[words[i + 2]];
                if (alive && is_arithmetic(sbp_spirv_op(f.words[i]))) {
                    made[to++] = 3u << 16 | OP_DECORATE;
                    made[to++] = words[i + 2];
                    made[to++] = DECORATION_NO_CONTRACTION;
                }
            }
        }
        memcpy(made + to, words + at, (size_t)sbp_spirv_length(f.words[at]) * sizeof *made);
        to += sbp_spirv_length(f.words[at]);
    }
    out->words = made;
    out->word_count = to;
}
