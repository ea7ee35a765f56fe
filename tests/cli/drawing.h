/* drawing.h: settings drawn for the black-box tests: the same for the same seed. */
#ifndef SBP_TESTS_CLI_DRAWING_H
#define SBP_TESTS_CLI_DRAWING_H

#include "tests/cli/cli_testing.h"
#include "tests/rowkernel_random.h"

static inline const char *draw_one(sbp_rng *rng, const char *const *list, int count) {
    return list[sbp_rng_below(rng, count)];
}
#define PICK(rng, ...)                                                                                       \
    draw_one((rng), (const char *const[]){__VA_ARGS__}, SBP_COUNT(((const char *const[]){__VA_ARGS__})))

/* "--offload saved+states:disk+params:host:3"; at least one class is away, of some only the first items. */
static inline const char *draw_placement(io_fixture *f, sbp_rng *rng) {
    static const char *const classes[] = {"checkpoints", "saved", "states", "gradients", "params"};
    sbp_text text;
    sbp_text_init(&text, f->arena);
    while (text.length == 0)
        for (int i = 0; i < SBP_COUNT(classes); i++) {
            int64_t placement = sbp_rng_below(rng, 3);
            bool some = sbp_rng_below(rng, 3) == 0;
            if (placement > 0)
                sbp_text_add(&text, "%s%s%s", text.length > 0 ? "+" : "--offload ", classes[i],
                             placement == 2 ? ":disk"
                             : some         ? ":host"
                                            : "");
            if (placement > 0 && some)
                sbp_text_add(&text, ":%d", 1 + (int)sbp_rng_below(rng, i < 2 ? 6 : 50));
        }
    return text.data;
}

/* "key": [count ids below `vocabulary`, none of the first three] */
static inline void draw_ids(sbp_rng *rng, sbp_text *out, const char *key, int64_t count, int vocabulary) {
    sbp_text_add(out, "\"%s\": [", key);
    for (int64_t i = 0; i < count; i++)
        sbp_text_add(out, "%s%d", i ? ", " : "", 3 + (int)sbp_rng_below(rng, vocabulary - 3));
    sbp_text_add(out, "]");
}

#endif
