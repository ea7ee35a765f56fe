/* pipeline.c: runs the passes of passes.def in order. */
#include <string.h>

#include "passes/lowering.h"

static const struct {
    const char *name;
    sbp_status (*run)(sbp_pipeline *pipeline);
} passes[] = {
#define PASS(name, description) {#name, sbp_pass_##name},
#include "passes/passes.def"
#undef PASS
};

const char *sbp_pass_name(int index) {
    return index >= 0 && index < SBP_COUNT(passes) ? passes[index].name : NULL;
}

/* The module, with derivatives in place of the functions that have one by now. */
static sbp_module with_derivatives(const sbp_pipeline *p) {
    sbp_module m = *p->module;
    if (!p->lowering)
        return m;
    m.funcs = SBP_NEW_ARRAY(p->arena, sbp_func *, m.func_count + 1);
    for (int32_t f = 0; f < m.func_count; f++)
        m.funcs[f] =
            p->lowering->kinds[f].derivative ? p->lowering->kinds[f].derivative : p->module->funcs[f];
    return m;
}

/* The furthest form there is: the program, else the stages and what there is of the program, else the graph.
 */
static void print_state(sbp_pipeline *p) {
    if (p->program && p->program->functions && p->program->functions[0].body.count > 0) {
        sbp_program_print(p->printed, p->program);
        return;
    }
    if (!p->program) {
        sbp_module m = with_derivatives(p);
        sbp_module_print(p->printed, &m);
        return;
    }
    for (int32_t f = 0; f < p->lowering->function_count; f++)
        for (int32_t i = 0; i < p->lowering->functions[f]->item_count; i++)
            if (p->lowering->functions[f]->items[i].stage)
                sbp_stage_print(p->printed, p, p->lowering->functions[f]->items[i].stage);
    for (int32_t r = 0; r < p->lowering->rule_stage_count; r++)
        sbp_func_print(p->printed, p->module, p->lowering->rule_stages[r]->body, false);
    if (p->program->entry_count > 0)
        sbp_program_print(p->printed, p->program);
}

static sbp_status verify_state(sbp_pipeline *p) {
#ifdef SBP_VERIFY
    if (p->program && p->program->functions && p->program->functions[0].body.count > 0)
        return sbp_program_verify(p->program, p->diag);
    if (!p->program) {
        sbp_module m = with_derivatives(p);
        return sbp_module_verify(&m, p->diag);
    }
    for (int32_t f = 0; f < p->lowering->function_count; f++)
        for (int32_t i = 0; i < p->lowering->functions[f]->item_count; i++)
            if (p->lowering->functions[f]->items[i].stage)
                SBP_TRY(sbp_func_verify(p->module, p->lowering->functions[f]->items[i].stage->body, p->diag));
#else
    (void)p;
#endif
    return SBP_OK;
}

sbp_status sbp_pipeline_run(sbp_pipeline *p) {
    int first = 0;
    for (int i = 0; p->start_after && i < SBP_COUNT(passes); i++)
        if (strcmp(p->start_after, passes[i].name) == 0)
            first = i + 1;
    for (int i = first; i < SBP_COUNT(passes); i++) {
        SBP_TRY(passes[i].run(p));
        bool stop = p->stop_after && strcmp(p->stop_after, passes[i].name) == 0;
        if (p->printed && (stop || (p->print_after && strcmp(p->print_after, passes[i].name) == 0)))
            print_state(p);
        SBP_TRY(verify_state(p));
        if (stop) {
            p->stopped = true;
            return SBP_OK;
        }
    }
    return SBP_OK;
}

/* ---- stages as text, for --print-after --------------------------------------------------------------- */

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

void sbp_stage_print(sbp_text *out, const sbp_pipeline *p, const sbp_stage *stage) {
    sbp_text_add(out, "stage %s%s%s {\n", stage->name, stage->table >= 0 ? " loop " : " once",
                 stage->table < 0    ? ""
                 : stage->descending ? "descending"
                                     : "ascending");
    if (stage->instr_count == 0)
        sbp_func_print(out, p->module, stage->body, false);
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
