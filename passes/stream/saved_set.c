/* saved_set.c: which values of a segment the forward keeps for the backward. */
#include <string.h>

#include "passes/stream/segment.h"

/* Rows of the chunk: this rank's, or those of all. */
static bool has_rows(const sbp_func *f, sbp_value v) {
    sbp_symbol rows = sbp_type_rows(&f->values[v].type);
    return rows == SBP_C || rows == SBP_D;
}

static bool is_row_wise(const sbp_func *f, sbp_value v) {
    return sbp_opcode_class(f->ops[f->values[v].op].code) == SBP_CLASS_ROWWISE;
}

/* A forward value that the reverse sweep reads: it is kept; or, row-wise, is computed from others, which are
 * read then. */
static bool is_recomputed(sbp_segment_builder *b, sbp_value *value, bool by_matmul) {
    const sbp_func *d = b->d;
    sbp_value v = *value;
    while (v != SBP_NO_VALUE && d->values[v].role == SBP_VALUE_OP &&
           (d->ops[d->values[v].op].code == SBP_OP_reshape ||
            d->ops[d->values[v].op].code == SBP_OP_stop_gradient))
        v = d->ops[d->values[v].op].operands[0]; /* the same memory */
    if (v == SBP_NO_VALUE || d->values[v].role != SBP_VALUE_OP || d->values[v].op >= b->forward_ops)
        return false;
    *value = v;
    sbp_value root = sbp_body_carry_root(d, v);
    if (root != SBP_NO_VALUE) {
        b->carry_saved[root] = true;
        return false;
    }
    if (is_row_wise(d, v) && !by_matmul)
        return true;
    if (has_rows(d, v))
        b->saved[v] = true;
    return false;
}

/* Marks a value and what it is computed from; `seen` are those whose operands were looked at. */
static void mark_read(sbp_segment_builder *b, sbp_value value, bool by_matmul, bool *seen, sbp_value *stack) {
    int32_t count = 0;
    for (bool first = true; first || count > 0; first = false) {
        sbp_value v = first ? value : stack[--count];
        if (!is_recomputed(b, &v, first && by_matmul) || seen[v])
            continue;
        seen[v] = true;
        const sbp_op *op = &b->d->ops[b->d->values[v].op];
        for (int32_t k = 0; k < op->operand_count; k++)
            if (op->operands[k] != SBP_NO_VALUE && !seen[op->operands[k]])
                stack[count++] = op->operands[k];
    }
}

static void save_everything(sbp_segment_builder *b) {
    bool *seen = SBP_NEW_ARRAY(b->p->arena, bool, b->d->value_count + 1);
    sbp_value *stack = SBP_NEW_ARRAY(b->p->arena, sbp_value, SBP_MAX_OPERANDS * (b->d->op_count + 1));
    for (int32_t i = b->forward_ops; i < b->d->op_count; i++) {
        const sbp_op *op = &b->d->ops[i];
        bool matmul = sbp_opcode_class(op->code) != SBP_CLASS_ROWWISE && op->code != SBP_OP_sum_rows;
        for (int32_t k = 0; k < op->operand_count; k++)
            mark_read(b, op->operands[k], matmul, seen, stack);
    }
}

static bool is_asked_for(const sbp_func *d, const sbp_op *op, sbp_value v, const char *asked) {
    if (strcmp(asked, SBP_SAVE_ATTENTION) == 0)
        return sbp_opcode_attends(op->code);
    return sbp_saved_name_matches(d->values[v].name, asked);
}

/* The carry that a value is appended to; SBP_NO_VALUE when it is to none. */
static sbp_value carry_of(const sbp_segment_builder *b, sbp_value v) {
    const sbp_func *d = b->d;
    for (int32_t j = b->forward_ops - 1; j >= 0; j--)
        if (d->ops[j].code == SBP_OP_append && d->ops[j].operands[1] == v)
            return sbp_body_carry_root(d, d->ops[j].results[0]);
    return SBP_NO_VALUE;
}

static void save_by_name(sbp_segment_builder *b, const char *asked) {
    const sbp_func *d = b->d;
    for (int32_t i = 0; i < b->forward_ops; i++) {
        const sbp_op *op = &d->ops[i];
        for (int32_t r = 0; r < op->result_count; r++) {
            sbp_value v = op->results[r], carry;
            if (!is_asked_for(d, op, v, asked))
                continue;
            if ((carry = carry_of(b, v)) != SBP_NO_VALUE)
                b->carry_saved[carry] = true;
            else if (v != b->output)
                b->saved[v] = has_rows(d, v);
        }
    }
}

bool sbp_segment_keeps_backward(const void *user, const sbp_result *result) {
    (void)user;
    return result->role == SBP_RESULT_GRADIENT ||
           (result->role == SBP_RESULT_CARRY &&
            ((const sbp_segment_builder *)user)->d->values[result->target].role == SBP_VALUE_COTANGENT);
}

/* What the backward of a chunk computes and reads when the values of `given` are kept. */
static sbp_status cut_backward(sbp_segment_builder *b, const bool *given, sbp_body_cut *cut) {
    bool *filled = SBP_NEW_ARRAY(b->p->arena, bool, b->d->value_count + 1);
    for (int32_t v = 0; v < b->d->value_count; v++)
        filled[v] = b->d->values[v].role == SBP_VALUE_CARRY;
    return sbp_body_make(
        b->p->module,
        &(sbp_body_spec){
            .from = b->d, .given = given, .keeps = sbp_segment_keeps_backward, .filled = filled, .user = b},
        "probe", b->p->diag, cut);
}

static bool is_argument(const sbp_body_cut *cut, sbp_value v) {
    for (int32_t i = 0; i < cut->func->arg_count; i++)
        if (cut->map[v] != SBP_NO_VALUE && cut->func->args[i] == cut->map[v])
            return true;
    return false;
}

/* Whether this kind of segment keeps nothing of a name that was asked for. */
static bool lacks_a_name(const sbp_segment_builder *b) {
    const sbp_schedule_options *s = &b->p->options.schedule;
    for (int32_t i = 0; i < s->saved_count; i++) {
        bool kept = strcmp(s->saved[i], SBP_SAVE_ATTENTION) == 0;
        for (int32_t k = 0; k < b->kind->saved_count && !kept; k++)
            kept = sbp_saved_is_state(&b->kind->saved[k])
                       ? strcmp(s->saved[i], SBP_SAVE_STATES) == 0
                       : sbp_saved_name_matches(b->kind->saved[k].name, s->saved[i]);
        for (int32_t k = 1; k < b->kind->output_count && !kept; k++) /* is there all the time */
            kept = sbp_saved_name_matches(b->kind->outputs[k].name, s->saved[i]);
        if (!kept)
            return true;
    }
    return false;
}

/* Lists the forward values that the backward would read if they alone were kept. */
static sbp_status find_keepable(sbp_segment_builder *b) {
    const sbp_func *d = b->d;
    for (int32_t i = 0; i < b->forward_ops; i++)
        for (int32_t r = 0; r < d->ops[i].result_count; r++) {
            sbp_value v = d->ops[i].results[r], carry = carry_of(b, v);
            bool *given = SBP_NEW_ARRAY(b->p->arena, bool, d->value_count + 1);
            sbp_body_cut cut;
            if (d->ops[i].code == SBP_OP_append || v == b->output || sbp_segment_is_side(b, v) ||
                !has_rows(d, v))
                continue;
            given[v] = carry == SBP_NO_VALUE;
            SBP_TRY(cut_backward(b, given, &cut));
            if (is_argument(&cut, carry == SBP_NO_VALUE ? v : carry))
                SBP_PUSH(b->p->arena, b->kind->keepable, b->kind->keepable_count, b->kind->keepable_capacity,
                         d->values[v].name);
        }
    return SBP_OK;
}

static bool is_chosen(const sbp_segment_builder *b, sbp_value v) {
    const sbp_value_info *info = &b->d->values[v];
    return info->role == SBP_VALUE_OP && info->op < b->forward_ops &&
           sbp_opcode_class(b->d->ops[info->op].code) == SBP_CLASS_CHOICE;
}

/* Chooses the saved set and leaves out what the backward would not read. */
sbp_status sbp_segment_choose_saved(sbp_segment_builder *b) {
    sbp_program_builder *p = b->p;
    const sbp_schedule_options *s = &p->options.schedule;
    for (int32_t v = 0; v < b->d->value_count; v++) { /* side values are there */
        b->saved_number[v] = -1;
        b->saved[v] = sbp_segment_is_side(b, v) && b->d->values[v].role == SBP_VALUE_OP;
        b->carry_saved[v] = b->d->values[v].role == SBP_VALUE_CARRY &&
                            (sbp_segment_is_side(b, v) || (sbp_body_is_state(b->d, v) && !s->drop_states));
        b->saved[v] |= is_chosen(b, v);
    }
    if (b->of->derivative && s->save_all)
        save_everything(b);
    for (int32_t i = 0; b->of->derivative && i < s->saved_count; i++)
        save_by_name(b, s->saved[i]);
    sbp_body_cut cut;
    SBP_TRY(cut_backward(b, b->saved, &cut));
    for (int32_t v = 0; v < b->d->value_count; v++) {
        bool read = is_argument(&cut, v) || (sbp_segment_runs_again(b) && is_chosen(b, v));
        if (sbp_segment_is_side(b, v))
            continue;
        b->saved[v] &= read;
        b->carry_saved[v] &= read;
        if (!b->saved[v] && !b->carry_saved[v])
            continue;
        const sbp_value_info *info = &b->d->values[v];
        b->saved_number[v] = b->kind->saved_count;
        SBP_PUSH(p->arena, b->kind->saved, b->kind->saved_count, b->kind->saved_capacity,
                 (sbp_saved){.name = info->name,
                             .dtype = info->type.dtype,
                             .cols = sbp_type_row_elems(&info->type),
                             .rows = sbp_segment_rows_to_keep(b, v),
                             .is_carry = b->carry_saved[v]});
    }
    return b->of->derivative && p->options.list_keepable && lacks_a_name(b) ? find_keepable(b) : SBP_OK;
}
