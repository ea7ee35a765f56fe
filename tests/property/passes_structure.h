/* passes_structure.h: what the header of each pass promises, as checks after (and snapshots before) the pass.
 * The first broken promise of a bench is kept as text. */
#ifndef SBP_TESTS_PROPERTY_PASSES_STRUCTURE_H
#define SBP_TESTS_PROPERTY_PASSES_STRUCTURE_H

#include <stdio.h>
#include <string.h>

#include "passes/lower/lowering.h"
#include "tests/common/testing.h"

typedef struct setting {
    const char *name;
    bool whole, save_all, offload, step, two_pass, bf16, bf16_gradients, frozen, no_optimizer, lora;
    int64_t segment, every, context; /* 0: 1 */
} setting;

typedef struct bench {
    testing t;
    sbp_pipeline p;
    const char *model, *pass;
    const setting *mode;
    int64_t vocabulary;
    const char *before;      /* text that the pass must keep */
    int32_t products;        /* before `lora`, and those it is to add */
    int32_t buffers, copies; /* before `schedule` */
    int64_t checks;
    char broken[400]; /* the first promise that was not kept */
} bench;

#define ensure(b, condition, ...)                                                                            \
    do {                                                                                                     \
        (b)->checks++;                                                                                       \
        if (!(condition) && !(b)->broken[0])                                                                 \
            snprintf((b)->broken, sizeof(b)->broken, __VA_ARGS__);                                           \
    } while (0)

/* For every pass that has one: before_<pass> looks, after_<pass> checks. */
void before_infer(bench *b);
void after_infer(bench *b);
void after_canonicalize(bench *b);
void before_lora(bench *b);
void after_lora(bench *b);
void after_sink(bench *b);
void after_segment(bench *b);
void after_expand(bench *b);
void after_context(bench *b);
void after_split(bench *b);
void after_autodiff(bench *b);
void after_streambp(bench *b);
void after_head(bench *b);
void after_calls(bench *b);
void after_offload(bench *b);
void after_fuse(bench *b);
void before_schedule(bench *b);
void after_schedule(bench *b);
void before_memory(bench *b);
void after_memory(bench *b);
void before_fence(bench *b);
void after_fence(bench *b);

void same_text(bench *b, const char *now); /* as before the pass */
bool same_view(const sbp_view *x, const sbp_view *y);

#endif
