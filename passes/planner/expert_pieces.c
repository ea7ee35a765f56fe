/* expert_pieces.c: for which models and placements plans with experts in pieces are tried. */
#include "passes/planner/search.h"

bool sbp_search_has_experts(const sbp_search *s) {
    const sbp_module *m = s->pl.base->module;
    for (int32_t f = 0; f < m->func_count; f++)
        for (int32_t i = 0; i < m->funcs[f]->op_count; i++)
            if (m->funcs[f]->ops[i].code == SBP_OP_expert_linear)
                return true;
    return false;
}

bool sbp_search_pieces_matter(const sbp_search *s, const sbp_schedule_options *o) {
    const sbp_module *m = s->pl.base->module;
    if (o->expert_pieces < 2 || o->placement[SBP_TENSOR_PARAM] != SBP_DEVICE ||
        s->request->expert_pieces != SBP_AUTO)
        return true;
    for (int32_t i = 0; i < m->param_count; i++)
        if (m->params[i].format && m->params[i].type.rank == 3)
            return true;
    return false;
}
