/* process.c: what the planner has to be told of the process that will run a plan. What it takes is the
 * backend's to say (ir/target/footprint.h). */
#include "frontends/formats/weights/recipe.h"
#include "frontends/formats/weights/weights.h"
#include "runtime/cli/sbpc/cli.h"

enum { USUAL_THREADS = 2 }; /* a plan does not depend on the machine that it is made on */

/* The largest tensor whose elements stand elsewhere in its file than in the program: it is put in order in
 * memory when it is read or written. */
static sbp_status reordered_bytes(const sbp_compilation *c, int64_t *out) {
    const sbp_module *module = c->model.module;
    *out = 0;
    for (int32_t i = 0; i < module->param_count; i++) {
        sbp_recipe_map map;
        if (!module->params[i].recipe)
            continue;
        SBP_TRY(sbp_recipe_compile(c->diag, module->params[i].recipe, &map));
        int64_t bytes = map.elems * (c->dtype == SBP_F64 ? 8 : 4);
        if (!sbp_recipe_is_one_run(&map) && bytes > *out)
            *out = bytes;
    }
    return SBP_OK;
}

sbp_status sbp_cli_describe_process(const sbp_compilation *c, sbp_process *out) {
    int64_t threads = sbp_options_int(c->options, SBP_OPT_THREADS);
    *out = (sbp_process){.dtype = c->dtype,
                         .threads = threads > 0 ? threads : USUAL_THREADS,
                         .ranks = sbp_options_int(c->options, SBP_OPT_RANKS),
                         .tokenizer_bytes = (int64_t)c->tokenizer_bytes,
                         .vocabulary_in_weights = sbp_weights_is_gguf(c->model_path),
                         .prepare = c->settings.prepare};
    return c->pipeline.target.footprint ? reordered_bytes(c, &out->reordered_bytes) : SBP_OK;
}
