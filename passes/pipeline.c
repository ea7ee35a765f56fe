/* pipeline.c: runs the passes of passes.def in order: which takes what, and what it gives. */
#include <string.h>

#include "passes/lower/lowering.h"

typedef enum pass {
#define PASS(name, description) PASS_##name,
#include "passes/passes.def"
#undef PASS
    PASS_COUNT
} pass;

static const char *const names[PASS_COUNT] = {
#define PASS(name, description) #name,
#include "passes/passes.def"
#undef PASS
};

const char *sbp_pass_name(int index) {
    return index >= 0 && index < PASS_COUNT ? names[index] : NULL;
}

/* ---- what there is, as text and verified --------------------------------------------------------------- */

static bool has_commands(const sbp_program *program) {
    return program && program->functions && program->functions[0].body.count > 0;
}

/* The module, with derivatives in place of the functions that have one by now. */
static sbp_module with_derivatives(const sbp_pipeline *p) {
    sbp_module m = *p->module;
    if (!p->results->derivatives.of)
        return m;
    m.funcs = SBP_NEW_ARRAY(p->arena, sbp_func *, m.func_count + 1);
    for (int32_t f = 0; f < m.func_count; f++) {
        const sbp_func *derivative = p->results->derivatives.of[f].derivative;
        m.funcs[f] = derivative ? (sbp_func *)derivative : p->module->funcs[f]; /* to be read */
    }
    return m;
}

static void print_term(sbp_text *out, const sbp_stage *stage, const sbp_term *term) {
    switch (term->kind) {
    case SBP_TERM_NONE:
        sbp_text_add(out, "-");
        break;
    case SBP_TERM_VALUE:
        sbp_text_add(out, "%%%s", stage->body->values[term->value].name);
        break;
    case SBP_TERM_TEMP:
        sbp_text_add(out, "temp%d", term->value);
        break;
    case SBP_TERM_VIEW:
        sbp_text_add(out, "[%s %d]", term->view.ref < 0 ? "formal" : "buffer",
                     term->view.ref < 0 ? ~term->view.ref : term->view.ref);
        break;
    }
}

/* Text of a stage: its body, or its instructions once there are any. */
static void print_stage(sbp_text *out, const sbp_module *module, const sbp_stage *stage) {
    sbp_text_add(out, "stage %s%s%s {\n", stage->name, stage->table >= 0 ? " loop " : " once",
                 stage->table < 0    ? ""
                 : stage->descending ? "descending"
                                     : "ascending");
    if (stage->instr_count == 0)
        sbp_func_print(out, module, stage->body, false);
    for (int32_t i = 0; i < stage->instr_count; i++) {
        const sbp_instr *instr = &stage->instrs[i];
        sbp_text_add(out, "  %s", sbp_command_name(instr->kind));
        if (instr->kernel)
            sbp_text_add(out, " @%s", instr->kernel->name);
        for (int32_t t = 0; t < instr->term_count; t++) {
            sbp_text_add(out, t ? ", " : " ");
            print_term(out, stage, &instr->terms[t]);
        }
        sbp_text_add(out, "\n");
    }
    sbp_text_add(out, "}\n");
    for (int32_t i = 0; i < stage->instr_count; i++)
        if (stage->instrs[i].kernel)
            sbp_rowkernel_print(out, stage->instrs[i].kernel);
}

/* The furthest form there is: the program, else the stages and what there is of the program, else the graph.
 */
static void print_state(sbp_pipeline *p) {
    if (has_commands(p->program)) {
        sbp_program_print(p->printed, p->program);
        return;
    }
    if (!p->program) {
        sbp_module m = with_derivatives(p);
        sbp_module_print(p->printed, &m);
        return;
    }
    const sbp_stages *stages = &p->results->stages;
    for (int32_t f = 0; f < stages->count; f++)
        for (int32_t i = 0; i < stages->functions[f]->item_count; i++)
            if (stages->functions[f]->items[i].stage)
                print_stage(p->printed, p->module, stages->functions[f]->items[i].stage);
    const sbp_program_builder *builder = &p->results->builder;
    for (int32_t r = 0; r < builder->rule_stage_count; r++)
        sbp_func_print(p->printed, p->module, builder->rule_stages[r]->body, false);
    if (p->program->entry_count > 0)
        sbp_program_print(p->printed, p->program);
}

static sbp_status verify_state(sbp_pipeline *p) {
#ifdef SBP_VERIFY
    if (has_commands(p->program))
        return sbp_program_verify(p->program, p->diag);
    if (!p->program) {
        sbp_module m = with_derivatives(p);
        return sbp_module_verify(&m, p->diag);
    }
    const sbp_stages *stages = &p->results->stages;
    for (int32_t f = 0; f < stages->count; f++)
        for (int32_t i = 0; i < stages->functions[f]->item_count; i++)
            if (stages->functions[f]->items[i].stage)
                SBP_TRY(sbp_func_verify(p->module, stages->functions[f]->items[i].stage->body, p->diag));
#else
    (void)p;
#endif
    return SBP_OK;
}

/* ---- the passes ---------------------------------------------------------------------------------------- */

/* Nothing works without it: the first pass that needs a program says so. */
static sbp_status without_streambp(const sbp_pipeline *p, pass which) {
    if (which < PASS_schedule)
        return SBP_OK;
    return sbp_fail(
        p->diag, SBP_INTERNAL,
        "schedule: there is nothing to schedule: the streambp pass did not make loops and entries");
}

/* What each pass takes and gives. */
sbp_status sbp_pipeline_step(sbp_pipeline *p, int index) {
    const sbp_pass_input in = {p->arena, p->diag, p->target, p->options};
    if (!p->results)
        p->results = SBP_NEW(p->arena, sbp_pass_results);
    sbp_module *m = p->module;
    sbp_pass_results *r = p->results;
    sbp_program_builder *program = &r->builder;
    const sbp_callables callables = {&r->derivatives, &r->stages, &r->segments, &r->head, &r->lasting};
    if (p->options.skip_streambp && index >= PASS_streambp)
        return without_streambp(p, (pass)index);
    switch ((pass)index) {
    case PASS_infer:
        return sbp_pass_infer(&in, m);
    case PASS_canonicalize:
        return sbp_pass_canonicalize(&in, m);
    case PASS_lora:
        return sbp_pass_lora(&in, m);
    case PASS_sink:
        return sbp_pass_sink(&in, m);
    case PASS_segment:
        return sbp_pass_segment(&in, m, &p->uncut_layers);
    case PASS_expand:
        return sbp_pass_expand(&in, m);
    case PASS_context:
        return sbp_pass_context(&in, m);
    case PASS_split:
        return sbp_pass_split(&in, m);
    case PASS_autodiff:
        return sbp_pass_autodiff(&in, m, &r->derivatives);
    case PASS_streambp:
        SBP_TRY(sbp_pass_streambp(&in, m, &r->derivatives, program, &r->stages, &r->segments));
        p->program = program->program;
        return SBP_OK;
    case PASS_head:
        return sbp_pass_head(program, &r->derivatives, &r->segments, &r->stages, &r->head);
    case PASS_optimizer:
        return sbp_pass_optimizer(program, &r->head, &r->lasting);
    case PASS_fuse:
        return sbp_pass_fuse(program, &r->stages);
    case PASS_schedule:
        return sbp_pass_schedule(program, &r->stages);
    case PASS_calls:
        return sbp_pass_calls(program, &callables, &r->call_schedule);
    case PASS_offload:
        return sbp_pass_offload(program, &r->lasting, r->call_schedule);
    case PASS_memory:
        return sbp_pass_memory(&in, p->program);
    case PASS_fence:
        return sbp_pass_fence(&in, p->program);
    case PASS_COUNT:
        break;
    }
    return sbp_fail(p->diag, SBP_INTERNAL, "there is no pass number %d", index);
}

sbp_status sbp_pipeline_run(sbp_pipeline *p) {
    int first = 0;
    for (int i = 0; p->start_after && i < PASS_COUNT; i++)
        if (strcmp(p->start_after, names[i]) == 0)
            first = i + 1;
    p->results = NULL; /* its own */
    for (int i = first; i < PASS_COUNT; i++) {
        SBP_TRY(sbp_pipeline_step(p, i));
        bool stop = p->stop_after && strcmp(p->stop_after, names[i]) == 0;
        if (p->printed && (stop || (p->print_after && strcmp(p->print_after, names[i]) == 0)))
            print_state(p);
        SBP_TRY(verify_state(p));
        if (stop) {
            p->stopped = true;
            return SBP_OK;
        }
    }
    return SBP_OK;
}
