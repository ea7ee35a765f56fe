/* reward_testing.h: what the tests of rewards share. */
#ifndef SBP_TESTS_UNIT_REWARD_TESTING_H
#define SBP_TESTS_UNIT_REWARD_TESTING_H

#include "tests/unit/io_testing.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>

#include "runtime/reward/rewarder.h"

#define FUNCTIONS "tests/data/reward/functions.py:"
/* A program of one line: it answers with what it was given as arguments. */
#define SED(answer) "sed -un 's/^{\"id\":\\([0-9]*\\),.*/{\"id\":\\1," answer "}/p'"

enum { MOST = 4 };

/* Two prompts with two answers each. */
typedef struct batch {
    sbp_reward_sample samples[MOST];
    sbp_reward_batch b;
} batch;

static inline const sbp_json *json(io_fixture *f, const char *text) {
    const sbp_json *out;
    assert_ok(f, sbp_json_parse(f->arena, f->diag, "test", text, strlen(text), 0, &out));
    return out;
}

static const char *const answers[MOST] = {"eleven", "twelve", "seven", ""};
static const int32_t ids[MOST][3] = {{1, 2, 3}, {4, 5, 6}, {7, 8, 9}, {0, 0, 0}};

/* rows: JSON of the two. */
static inline batch *make_batch(io_fixture *f, const char *prompts, const char *rows) {
    batch *out = sbp_arena_alloc(f->arena, sizeof *out);
    const sbp_json *p = json(f, prompts), *r = json(f, rows);
    for (int i = 0; i < MOST; i++)
        out->samples[i] = (sbp_reward_sample){.prompt = &p->items[i / 2],
                                              .row = &r->items[i / 2],
                                              .completion = answers[i],
                                              .completion_bytes = strlen(answers[i]),
                                              .ids = ids[i],
                                              .id_count = i == 3 ? 0 : 3};
    out->b =
        (sbp_reward_batch){.samples = out->samples, .count = MOST, .per_prompt = 2, .step = 3, .steps = 8};
    return out;
}

static inline batch *plain_batch(io_fixture *f) {
    return make_batch(
        f, "[\"ten and one\", \"ten less three\"]",
        "[{\"prompt\": \"ten and one\", \"answer\": \"even\"},"
        " {\"prompt\": \"ten less three\", \"completion\": \"x\", \"group\": 7, \"answer\": null}]");
}

static inline const char *file_in(io_fixture *f, const char *name) {
    return sbp_arena_strdup(f->arena, io_path(f, name));
}

/* Each row names a file of the test's directory. */
static inline batch *file_batch(io_fixture *f, const char *file) {
    return make_batch(f, "[\"a\", \"b\"]",
                      sbp_arena_printf(f->arena, "[{\"file\": \"%s\"}, {\"file\": \"%s\"}]", file, file));
}

static int log_end = -1; /* of the test that is on; -1: none */

static inline sbp_rewarder *open_all(io_fixture *f, const char *const *specs, const double *weights,
                                     int count, double seconds, int restarts) {
    const sbp_reward_options options = {.timeout_seconds = seconds, .restarts = restarts, .log = log_end};
    sbp_rewarder *r;
    assert_ok(f, sbp_rewarder_open(f->arena, f->diag, specs, weights, count, &options, &r));
    assert_int_equal(sbp_rewarder_count(r), count);
    return r;
}

static inline sbp_rewarder *open_one(io_fixture *f, const char *spec, double seconds, int restarts) {
    const char **specs = sbp_arena_alloc(f->arena, sizeof *specs);
    *specs = sbp_arena_strdup(f->arena, spec);
    return open_all(f, specs, NULL, 1, seconds, restarts);
}

/* NaN equals NaN. */
static inline void assert_rewards(const double *found, const double *expected, int count) {
    for (int i = 0; i < count; i++)
        if (found[i] != expected[i] && !(isnan(found[i]) && isnan(expected[i])))
            fail_msg("reward %d is %.17g, expected %.17g", i, found[i], expected[i]);
}

#define EXPECT(found, ...) assert_rewards((found), (const double[MOST]){__VA_ARGS__}, MOST)

static inline int ready(void **state) {
    signal(SIGPIPE, SIG_IGN);
    return io_setup(state);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, ready, io_teardown)

#endif
