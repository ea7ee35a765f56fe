/* json_cases.h: vectors of somebody else's code as a JSON file: an object whose "cases" are each one call of
 * a check. For one test program. */
#ifndef SBP_TESTS_UNIT_JSON_CASES_H
#define SBP_TESTS_UNIT_JSON_CASES_H

#include "frontend_testing.h"

#include "ir/base/json.h"

/* A member that must be there. */
static const sbp_json *member(const sbp_json *object, const char *key) {
    const sbp_json *found = sbp_json_member(object, key);
    if (!found)
        fail_msg("no '%s' in the vectors", key);
    return found;
}

static double number(fixture *f, const sbp_json *node) {
    double value;
    check(f, sbp_json_as_double(f->diag, node, &value));
    return value;
}

typedef struct json_cases {
    fixture *f;
    const char *path;
    int64_t least; /* cases that there are */
    void (*run_case)(fixture *f, const sbp_json *root, const sbp_json *given);
} json_cases;

static sbp_status run_all_cases(void *user) {
    const json_cases *c = user;
    const sbp_json *root;
    check(c->f, sbp_json_read(c->f->arena, c->f->diag, c->path, 0, &root));
    const sbp_json *cases = member(root, "cases");
    for (int64_t i = 0; i < cases->count; i++)
        c->run_case(c->f, root, &cases->items[i]);
    printf("  %lld cases\n", (long long)cases->count);
    assert_true(cases->count >= c->least);
    return SBP_OK;
}

static void run_json_cases(const char *path, int64_t least,
                           void (*run_case)(fixture *f, const sbp_json *root, const sbp_json *given)) {
    fixture f = fixture_create();
    json_cases c = {&f, path, least, run_case};
    assert_int_equal(sbp_guard(f.arena, f.diag, run_all_cases, &c), SBP_OK);
    fixture_destroy(&f);
}

#endif
