/* pieces.c: which parameters come to expert_linear in pieces: the matrices of experts that nothing else
 * reads, of a layer that has them to itself, where they are kept away from the device or in blocks. Small
 * ones (adapters) come whole: a piece of them would be nothing. */
#include "passes/lower/lowering.h"

enum { LARGE = 8 }; /* small: below 1/8 of the elements of a layer's largest matrix */

/* Whether a value is the matrices of experts and nothing else. */
static bool is_of_experts(const sbp_func *f, sbp_value v) {
    bool any = false;
    for (int32_t i = 0; i < f->op_count; i++)
        for (int32_t k = 0; k < f->ops[i].operand_count; k++) {
            if (f->ops[i].operands[k] != v)
                continue;
            if (f->ops[i].code != SBP_OP_expert_linear || k != 2)
                return false;
            any = true;
        }
    for (int32_t i = 0; i < f->result_count; i++)
        any &= f->results[i].value != v;
    return any;
}

static bool is_large(const sbp_func *f, sbp_value v) {
    int64_t most = 0;
    for (int32_t i = 0; i < f->arg_count; i++) {
        const sbp_value_info *info = &f->values[f->args[i]];
        int64_t elems = sbp_type_row_elems(&info->type);
        if (info->role == SBP_VALUE_PARAM && elems > most && is_of_experts(f, f->args[i]))
            most = elems;
    }
    return sbp_type_row_elems(&f->values[v].type) >= most / LARGE;
}

/* A call of another segment has it, too. */
static bool is_shared(const sbp_module *m, int32_t call, int32_t param) {
    for (int32_t c = 0; c < m->call_count; c++)
        for (int32_t i = 0; c != call && i < m->calls[c].param_count; i++)
            if (m->calls[c].params[i] == param)
                return true;
    return false;
}

/* Ranks that have shares of a parameter, or update shares of it, have it in a bucket with others. */
static bool is_in_shares(const sbp_pass_options *o, const sbp_param *param) {
    return o->ranks > 1 && o->zero > 0 && (param->trainable || o->zero > 2);
}

sbp_expert_pieces sbp_lower_pieces(const sbp_program_builder *p, const sbp_func *from, int32_t segment,
                                   sbp_value value, int32_t number) {
    const sbp_schedule_options *s = &p->options.schedule;
    const sbp_module *m = p->module;
    const sbp_type *type = &from->values[value].type;
    const sbp_expert_pieces whole = {0};
    sbp_expert_pieces out = {.away = s->placement[SBP_TENSOR_PARAM] != SBP_DEVICE};
    if (s->expert_pieces < 2 || type->rank != 3 || type->dim[0].n < 2 || !is_of_experts(from, value) ||
        !is_large(from, value))
        return whole;
    for (int32_t c = 0; c < m->call_count; c++) {
        if (m->calls[c].func != segment)
            continue;
        const sbp_param *param = &m->params[m->calls[c].params[number]];
        bool first = out.count == 0;
        if (c == 0 || c == m->call_count - 1 || param->number || is_in_shares(&p->options, param) ||
            is_shared(m, c, m->calls[c].params[number]) ||
            (!first && (param->format != out.format || param->storage != out.stored)))
            return whole;
        out.format = param->format;
        out.stored = param->storage;
        out.count = (int32_t)(s->expert_pieces < type->dim[0].n ? s->expert_pieces : type->dim[0].n);
    }
    int64_t elems = sbp_type_row_elems(type) / type->dim[0].n;
    if (out.format ? elems % sbp_format_of(out.format)->block != 0 : !out.away)
        return whole;
    return out;
}
