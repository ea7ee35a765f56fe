/* ranks_numbers.h: rows drawn as uneven as can be, and numbers of several ranks compared with those of one.
 */
#ifndef SBP_TESTS_CLI_RANKS_NUMBERS_H
#define SBP_TESTS_CLI_RANKS_NUMBERS_H

#include "tests/cli/drawing.h"
#include "tests/cli/ranks_testing.h"

enum { RANKS_VOCABULARY = 31 };

/* SAMPLED: REWARDED, with log-probabilities of what sampled them, and of weights before. */
typedef enum kind { TEXTS, PAIRS, REWARDED, JUDGED, SAMPLED } kind;

static inline void draw_logps(sbp_rng *rng, sbp_text *out, const char *key, int64_t count) {
    sbp_text_add(out, ", \"%s\": [", key);
    for (int64_t i = 0; i < count; i++)
        sbp_text_add(out, "%s%.4f", i ? ", " : "", -1 - 0.001 * (double)sbp_rng_below(rng, 4000));
    sbp_text_add(out, "]");
}

/* $D/NAME: one row in five is long; groups of rollouts have one to four rows. */
static inline void write_rows(io_fixture *f, const char *name, kind of, int rows, uint64_t seed) {
    sbp_rng rng = {.state = seed};
    sbp_text out;
    sbp_text_init(&out, f->arena);
    for (int r = 0, group = 0, left = 0; r < rows; r++, left--) {
        int64_t prompt = 1 + sbp_rng_below(&rng, 6), most = r % 5 == 3 ? 40 : 7;
        sbp_text_add(&out, "{");
        if (left == 0) {
            left = 1 + (int)sbp_rng_below(&rng, 4);
            group++;
        }
        if (of == TEXTS) {
            draw_ids(&rng, &out, "input_ids", 1 + sbp_rng_below(&rng, most), RANKS_VOCABULARY);
        } else {
            draw_ids(&rng, &out, "prompt_ids", prompt, RANKS_VOCABULARY);
            sbp_text_add(&out, ", ");
            int64_t length = 1 + sbp_rng_below(&rng, most);
            draw_ids(&rng, &out, of == PAIRS ? "chosen_ids" : "completion_ids", length, RANKS_VOCABULARY);
            if (of == PAIRS) {
                sbp_text_add(&out, ", ");
                draw_ids(&rng, &out, "rejected_ids", 1 + sbp_rng_below(&rng, most), RANKS_VOCABULARY);
            } else if (of == JUDGED) {
                sbp_text_add(&out, ", \"label\": %s", r % 3 ? "true" : "false");
            } else {
                sbp_text_add(&out, ", \"group\": %d, \"reward\": %.3f", group,
                             0.001 * (double)sbp_rng_below(&rng, 4000) - 2);
                if (of == SAMPLED) {
                    draw_logps(&rng, &out, "old_per_token_logps", length);
                    draw_logps(&rng, &out, "sampling_per_token_logps", length);
                }
            }
        }
        sbp_text_add(&out, "}\n");
    }
    cli_put(f, name, out.data);
}

/* ---- comparing -------------------------------------------------------------------------------------- */

static const char *comparing; /* for messages */

static inline bool is_of_time(const char *key) {
    static const char *const keys[] = {"tokens_per_second", "step_seconds", "memory_peak_bytes"};
    for (int i = 0; i < SBP_COUNT(keys); i++)
        if (strcmp(keys[i], key) == 0)
            return true;
    return false;
}

/* Whether a figure is a mean over micro-batches: it differs where they have other documents. */
static inline bool is_of_parts(const char *key) {
    return strstr(key, "expert_load/") != NULL;
}

static inline bool is_number(const sbp_json *j) {
    return j->kind == SBP_JSON_INT || j->kind == SBP_JSON_REAL;
}

/* Numbers of two JSON values, at any depth, all else of the same form; returns how many. */
static inline int compare_json(const char *what, const sbp_json *a, const sbp_json *b) {
    int count = 0;
    if (!a || !b || is_number(a) != is_number(b) || (!is_number(a) && a->kind != b->kind))
        fail_msg("%s: another form", what);
    if (is_number(a)) {
        double x = NAN, y = NAN;
        (void)!sbp_json_as_double(NULL, a, &x);
        (void)!sbp_json_as_double(NULL, b, &y);
        if (!(fabs(x - y) <= SBP_TOLERANCE_F64 * (1 + fabs(y))))
            fail_msg("%s: %s: %.17g, expected %.17g", comparing, what, x, y);
        return 1;
    }
    bool array = a->kind == SBP_JSON_ARRAY, object = a->kind == SBP_JSON_OBJECT;
    if ((array || object) && a->count != b->count)
        fail_msg("%s: %lld, expected %lld", what, (long long)a->count, (long long)b->count);
    for (int64_t i = 0; i < a->count && (array || object); i++) {
        const sbp_json *x = &a->items[i];
        if (array || !(is_of_time(x->key) || is_of_parts(x->key)))
            count +=
                compare_json(array ? what : x->key, x, array ? &b->items[i] : sbp_json_member(b, x->key));
    }
    return count;
}

static inline int compare_lines(io_fixture *f, const char *what, const char *got, const char *want) {
    int got_count, want_count, numbers = 0;
    comparing = what;
    const sbp_json **a = cli_lines(f, got, &got_count), **b = cli_lines(f, want, &want_count);
    if (got_count != want_count)
        fail_msg("%s: %d lines, expected %d", what, got_count, want_count);
    for (int i = 0; i < got_count; i++)
        numbers += compare_json(what, a[i], b[i]);
    return numbers;
}

#endif
