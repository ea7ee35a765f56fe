/* useful.c: what a step must compute, op by op of the model with its adapters.
 *
 *     y = x w:  2 a column of x for each number of y; as much again for dx, if something before x is trained,
 *               and for dw, if w is
 *     attention, and what carries a state: a forward, and twice that backward */
#include "passes/planner/useful.h"

#include <string.h>

typedef struct counter {
    const sbp_func *f;
    bool *trains; /* per value: it depends on what is trained */
    bool *head;   /* per value: logits, or what becomes them */
    sbp_useful_work *out;
} counter;

static double elems_of(const counter *n, sbp_value value) {
    return (double)sbp_type_row_elems(&n->f->values[value].type);
}

static double last_of(const counter *n, sbp_value value) {
    const sbp_type *type = &n->f->values[value].type;
    return (double)type->dim[type->rank - 1].n;
}

static void find_trained(counter *n) {
    const sbp_func *f = n->f;
    for (int32_t i = 0; i < f->arg_count; i++)
        n->trains[f->args[i]] =
            f->values[f->args[i]].role == SBP_VALUE_PARAM && f->values[f->args[i]].trainable;
    for (int32_t i = 0; i < f->op_count; i++) {
        const sbp_op *op = &f->ops[i];
        bool trains = false;
        for (int32_t k = 0; k < op->operand_count && op->code != SBP_OP_stop_gradient; k++)
            trains |= op->operands[k] != SBP_NO_VALUE && n->trains[op->operands[k]];
        for (int32_t k = 0; k < op->result_count; k++)
            n->trains[op->results[k]] = trains;
    }
}

/* From log-probabilities back to the products that logits come from. */
static void find_head(counter *n) {
    for (int32_t i = n->f->op_count - 1; i >= 0; i--) {
        const sbp_op *op = &n->f->ops[i];
        bool reads = op->code == SBP_OP_log_prob;
        for (int32_t k = 0; k < op->result_count && op->code != SBP_OP_linear; k++)
            reads |= n->head[op->results[k]];
        for (int32_t k = 0; k < op->operand_count && reads; k++)
            if (op->operands[k] != SBP_NO_VALUE)
                n->head[op->operands[k]] = true;
    }
}

static void add_product(counter *n, const sbp_op *op) {
    double once = 2 * last_of(n, op->operands[0]) * elems_of(n, op->results[0]);
    sbp_value w = op->operands[op->code == SBP_OP_linear ? 1 : 2];
    double all = once * (1 + n->trains[op->operands[0]] + n->trains[w]);
    if (op->code == SBP_OP_linear && n->head[op->results[0]])
        n->out->per_label += all;
    else
        n->out->per_row += all;
}

static void add_attention(counter *n, const sbp_op *op) {
    sbp_useful_work *w = n->out;
    int64_t window = sbp_op_int(op, "window");
    bool trains = n->trains[op->results[0]];
    int32_t i = 0;
    while (i < w->attention_count && w->attention[i].window != window)
        i++;
    if (i == SBP_USEFUL_WINDOWS) /* near enough */
        i--;
    else if (i == w->attention_count)
        w->attention[w->attention_count++].window = window;
    w->attention[i].per_pair += (trains ? 3 : 1) * sbp_attention_flops(1, elems_of(n, op->operands[0]),
                                                                       elems_of(n, op->results[0]), false);
}

/* Counts what a head with a state of d_k x d_v does for a row, whose q has d_k columns and whose result
 * d_v: adding the row's part to the state, and reading it; where that corrects, also reading what is there
 * already. */
static void add_state(counter *n, const sbp_op *op, int products) {
    double columns = last_of(n, op->operands[0]), results = elems_of(n, op->results[0]);
    n->out->per_row += (n->trains[op->results[0]] ? 3 : 1) * 2 * products * columns * results;
}

static void count_op(counter *n, const sbp_op *op) {
    if (op->code == SBP_OP_linear || op->code == SBP_OP_expert_linear)
        add_product(n, op);
    else if (sbp_opcode_attends(op->code))
        add_attention(n, op);
    else if (op->code == SBP_OP_delta_rule)
        add_state(n, op, sbp_op_int(op, "corrects") ? 3 : 2);
}

sbp_status sbp_planner_useful_work(const sbp_pipeline *pipeline, sbp_useful_work *out) {
    sbp_pipeline p = *pipeline;
    *out = (sbp_useful_work){0};
    p.module = sbp_module_copy(p.arena, pipeline->module);
    p.print_after = p.start_after = NULL;
    p.printed = NULL;
    p.stopped = false;
    p.stop_after = "lora";
    SBP_TRY(sbp_pipeline_run(&p));
    counter n = {.f = sbp_module_find_func(p.module, "model"), .out = out};
    if (!n.f)
        return SBP_OK;
    n.trains = SBP_NEW_ARRAY(p.arena, bool, n.f->value_count);
    n.head = SBP_NEW_ARRAY(p.arena, bool, n.f->value_count);
    find_trained(&n);
    find_head(&n);
    for (int32_t i = 0; i < n.f->op_count; i++)
        count_op(&n, &n.f->ops[i]);
    return SBP_OK;
}
