/* config_testing.h: what tests of config.json files share: models that they make, and messages. */
#ifndef SBP_TESTS_UNIT_CONFIG_TESTING_H
#define SBP_TESTS_UNIT_CONFIG_TESTING_H

#include "frontend_testing.h"

static inline void load(fixture *f, const char *path, sbp_dtype compute, const char *const *set,
                        int32_t set_count, sbp_model *model) {
    sbp_model_options options = sbp_model_options_for(compute);
    options.set = set;
    options.set_count = set_count;
    check(f, sbp_model_load(f->arena, f->diag, path, &options, model));
}

static inline int32_t count_ops(const sbp_module *m, sbp_opcode code) {
    const sbp_func *func = sbp_module_find_func(m, "model");
    int32_t n = 0;
    for (int32_t i = 0; i < func->op_count; i++)
        n += func->ops[i].code == code;
    return n;
}

static inline const sbp_param *param(const sbp_model *model, const char *name) {
    int32_t p = sbp_module_find_param(model->module, name);
    if (p < 0)
        fail_msg("no parameter '%s'", name);
    return &model->module->params[p];
}

static inline void expect_with(const char *path, const char *const *sets, int32_t count, sbp_status status,
                               const char *message) {
    fixture f = fixture_create();
    sbp_model_options options = sbp_model_options_for(SBP_F32);
    options.set = sets;
    options.set_count = count;
    sbp_model model;
    check_fails(&f, sbp_model_load(f.arena, f.diag, path, &options, &model), status, message);
    fixture_destroy(&f);
}

static inline void expect(const char *path, const char *set, sbp_status status, const char *message) {
    expect_with(path, &set, set ? 1 : 0, status, message);
}

#endif
