/* Rows that are longer than there is room for: single documents, pairs, prompts, what stands beside tokens.
 */
#include "tests/unit/io_testing.h"

#include "runtime/data/fit.h"

/* Documents of ids 0, 1, 2 .. whose labels begin where their prompts end. */
typedef struct fit_case {
    const char *name;
    int64_t counts[2], prompt; /* counts[1] 0: a single one */
    const char *part;
    bool column;
    int64_t room;
    sbp_overlong overlong;
    sbp_fit want;
    int64_t left[3]; /* tokens of the documents afterwards */
} fit_case;

static const fit_case cases[] = {
    {"fits", {5, 0}, 2, "completion", false, 5, SBP_OVERLONG_ERROR, SBP_FIT_WHOLE, {5}},
    {"any room", {500, 0}, 2, "completion", false, 0, SBP_OVERLONG_TRUNCATE, SBP_FIT_WHOLE, {500}},
    {"too long", {6, 0}, 2, "completion", false, 5, SBP_OVERLONG_ERROR, SBP_FIT_OVERLONG, {6}},
    {"dropped", {6, 0}, 2, "completion", false, 5, SBP_OVERLONG_DROP, SBP_FIT_DROPPED, {6}},
    {"cut", {6, 0}, 2, "completion", true, 5, SBP_OVERLONG_TRUNCATE, SBP_FIT_CUT, {5}},
    {"all prompt", {9, 0}, 5, "completion", false, 5, SBP_OVERLONG_TRUNCATE, SBP_FIT_CUT_AWAY, {0}},
    {"nothing counts", {3, 0}, 3, "completion", false, 5, SBP_OVERLONG_TRUNCATE, SBP_FIT_CUT_AWAY, {3}},
    {"all prompt, kept", {9, 0}, 5, "completion", false, 5, SBP_OVERLONG_CUT, SBP_FIT_CUT, {5}},
    {"nothing counts, kept", {3, 0}, 3, "completion", false, 5, SBP_OVERLONG_CUT, SBP_FIT_WHOLE, {3}},
    {"prompt fills a pair's", {9, 6}, 5, NULL, false, 10, SBP_OVERLONG_CUT, SBP_FIT_CUT_AWAY, {0}},
    {"empty", {0, 0}, 0, "text", false, 5, SBP_OVERLONG_TRUNCATE, SBP_FIT_EMPTY, {0}},
    {"split", {11, 0}, 7, "completion", false, 5, SBP_OVERLONG_SPLIT, SBP_FIT_SPLIT, {5, 5, 1}},
    {"not split", {11, 0}, 7, "completion", true, 5, SBP_OVERLONG_SPLIT, SBP_FIT_OVERLONG, {11}},
    {"a pair", {6, 4}, 2, NULL, true, 10, SBP_OVERLONG_ERROR, SBP_FIT_WHOLE, {6, 4}},
    {"a long pair", {6, 4}, 2, NULL, false, 9, SBP_OVERLONG_ERROR, SBP_FIT_OVERLONG, {6, 4}},
    {"drop a pair", {6, 4}, 2, NULL, false, 9, SBP_OVERLONG_DROP, SBP_FIT_DROPPED, {6, 4}},
    {"no half pairs", {6, 4}, 2, NULL, false, 9, SBP_OVERLONG_SPLIT, SBP_FIT_OVERLONG, {6, 4}},
    {"each to its half", {9, 4}, 2, NULL, true, 10, SBP_OVERLONG_TRUNCATE, SBP_FIT_CUT, {5, 4}},
    {"though it fits", {6, 4}, 2, NULL, true, 10, SBP_OVERLONG_TRUNCATE, SBP_FIT_CUT, {5, 4}},
    {"halves of odd room", {9, 7}, 2, NULL, true, 11, SBP_OVERLONG_TRUNCATE, SBP_FIT_CUT, {5, 5}},
    {"prompt fills it", {9, 6}, 5, NULL, false, 10, SBP_OVERLONG_TRUNCATE, SBP_FIT_CUT_AWAY, {0}},
    {"prompt fills it, answers short",
     {6, 6},
     5,
     NULL,
     false,
     10,
     SBP_OVERLONG_TRUNCATE,
     SBP_FIT_CUT_AWAY,
     {0}},
    {"a prompt", {5, 0}, 5, "prompt", false, 5, SBP_OVERLONG_TRUNCATE, SBP_FIT_WHOLE, {5}},
    {"no cut prompts", {6, 0}, 6, "prompt", false, 5, SBP_OVERLONG_TRUNCATE, SBP_FIT_CUT_AWAY, {6}},
    {"no half prompts", {6, 0}, 6, "prompt", false, 5, SBP_OVERLONG_SPLIT, SBP_FIT_OVERLONG, {6}},
};

static sbp_document document(sbp_arena *arena, const fit_case *c, int i) {
    static const char *const parts[] = {"chosen", "rejected"};
    sbp_document d = {.count = c->counts[i], .prompt = c->prompt, .part = c->part ? c->part : parts[i]};
    d.ids = SBP_NEW_ARRAY(arena, int32_t, d.count);
    d.labels = SBP_NEW_ARRAY(arena, int32_t, d.count);
    double *values = SBP_NEW_ARRAY(arena, double, d.count);
    for (int64_t k = 0; k < d.count; k++) {
        d.ids[k] = (int32_t)k;
        d.labels[k] = k < d.prompt ? -100 : (int32_t)k;
        values[k] = (double)k;
    }
    if (c->column)
        d.columns[d.column_count++] = (sbp_document_column){"old_logps", values};
    return d;
}

static sbp_status run_case(void *user) {
    const struct {
        io_fixture *f;
        const fit_case *c;
    } *job = user;
    const fit_case *c = job->c;
    sbp_arena *arena = job->f->arena;
    sbp_documents made = {.documents = SBP_NEW_ARRAY(arena, sbp_document, 2), .count = c->part ? 1 : 2};
    for (int i = 0; i < made.count; i++)
        made.documents[i] = document(arena, c, i);
    sbp_fit got = sbp_documents_fit(arena, &made, c->room, c->overlong);
    if (got != c->want)
        fail_msg("%s: %d, expected %d", c->name, got, c->want);
    if (got == SBP_FIT_CUT_AWAY || got == SBP_FIT_EMPTY)
        return SBP_OK;
    int64_t at = 0;
    for (int i = 0; i < made.count; i++) {
        const sbp_document *d = &made.documents[i];
        if (d->count != c->left[i])
            fail_msg("%s: document %d has %lld tokens", c->name, i, (long long)d->count);
        if (c->part == NULL)
            at = 0;
        for (int64_t k = 0; k < d->count; k++, at++) {
            assert_int_equal(d->ids[k], at);
            assert_int_equal(d->labels[k] < 0, k < d->prompt);
            assert_true(!d->column_count || d->columns[0].values[k] == (double)at);
        }
    }
    return SBP_OK;
}

static void test_what_becomes_of_rows(void **state) {
    io_fixture *f = *state;
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        struct {
            io_fixture *f;
            const fit_case *c;
        } job = {f, &cases[i]};
        assert_ok(f, sbp_guard(f->arena, f->diag, run_case, &job));
    }
}

static sbp_status say(void *user) {
    io_fixture *f = user;
    sbp_document two[2] = {{.count = 7, .part = "chosen"}, {.count = 5, .part = "rejected"}};
    sbp_documents pair = {.documents = two, .count = 2}, one = {.documents = two, .count = 1};
    assert_string_equal(sbp_documents_lengths(f->arena, &pair), "a pair of 7 + 5 tokens (chosen, rejected)");
    assert_string_equal(sbp_documents_lengths(f->arena, &one), "a document of 7 tokens");
    assert_int_equal(sbp_documents_tokens(&pair), 12);
    return SBP_OK;
}

static void test_what_is_said(void **state) {
    io_fixture *f = *state;
    assert_ok(f, sbp_guard(f->arena, f->diag, say, f));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_what_becomes_of_rows, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_what_is_said, io_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
