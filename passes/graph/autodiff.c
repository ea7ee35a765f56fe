/* autodiff: appends the reverse sweep to a function: straight-line code, one VJP rule per op.
 *
 * requires  no composites; linear use of carries (func_c7)
 * gives     sbp_derivatives; the module's functions stay
 * preserves the forward ops and plain results
 * breaks    log_prob and other LATE ops appear in derivatives next to their results: run `expand` again with
 * late
 *
 * With respect to: stream arguments (if wanted), trainable parameters, carries. Ops that depend on none of
 * these get no cotangent, so a frozen weight has no dW line and nothing runs below the lowest trainable
 * parameter. The cotangent of a carry is one running value (dK): readers add to it, `append` takes this
 * chunk's rows. That of a state is one, too: of what is behind the chunk the op makes that of what is before.
 *
 * Terms of a cotangent add up in the wide type, and the sum is rounded once, to the type of the value; that
 * of a value without rows is an accumulator and stays wide.
 *
 * In a segment, stream arguments and results behind the first are side values: their cotangents are sums over
 * all readers, in the wide type, that live outside. A reader takes the sum so far and gives it back with its
 * own terms; where the value is read as a carry the sum is dK, from which nothing is taken but to add other
 * terms. The writer starts from the sum; where it carries the value, that is in its dK.
 */
#include "passes/lower/passes.h"

#include <string.h>

#include "passes/graph/rewrite.h"
#include "passes/lower/lowering.h"

typedef struct sweep {
    sbp_rewrite rw;
    bool *wants;           /* per value of the new function: depends on something differentiated */
    sbp_value *cotangent;  /* per value; SBP_NO_VALUE: zero so far */
    sbp_value *carry_root; /* per value: the carry argument it is a state of, or SBP_NO_VALUE */
    sbp_value *dcarry;     /* per carry argument: the running cotangent */
    /* In a segment, per value: whether it is a side value that is read; the sum that its cotangent begins as,
     * and the carry argument whose running cotangent is that sum, or SBP_NO_VALUE. NULL: no segment. */
    bool *side;
    sbp_value *sum, *sum_carry;
    int32_t forward_values;
} sweep;

static bool is_float(const sbp_func *func, sbp_value v) {
    return sbp_dtype_is_float(func->values[v].type.dtype);
}

/* wanted: per stream argument, or NULL: all of them, or none. */
static void mark_arguments(sweep *s, bool want_streams, const bool *wanted) {
    const sbp_func *f = s->rw.to;
    for (int32_t i = 0, streams = 0; i < f->arg_count; i++) {
        sbp_value v = f->args[i];
        const sbp_value_info *info = &f->values[v];
        bool stream = info->role == SBP_VALUE_STREAM && (wanted ? wanted[streams] : want_streams);
        streams += info->role == SBP_VALUE_STREAM;
        s->wants[v] = (stream && is_float(f, v)) || (info->role == SBP_VALUE_PARAM && info->trainable) ||
                      info->role == SBP_VALUE_CARRY;
        if (info->role == SBP_VALUE_CARRY)
            s->carry_root[v] = v;
    }
}

/* An op that reads carries adds to their cotangents in its derivative (attention: dk and dv, beside dq): to
 * all of them or, when it has no derivative at all, to none. So that a query that is wanted keeps those of
 * frozen keys and values, too: a T of memory in the lowest trained segment. */
static bool join_carries(const sweep *s, const sbp_op *op, bool *live) {
    bool any = false, changed = false;
    for (int pass = 0; pass < 2; pass++)
        for (int32_t k = 0; k < op->operand_count; k++) {
            sbp_value v = op->operands[k], root = v == SBP_NO_VALUE ? v : s->carry_root[v];
            if (root == SBP_NO_VALUE) {
                any |= v != SBP_NO_VALUE && s->wants[v];
                continue;
            }
            changed |= pass == 1 && any && !live[root];
            live[root] |= pass == 1 && any;
            any |= live[root];
        }
    return changed;
}

/* Results that are later states of carries: whose. A carry is live once something that is wanted goes into
 * it.
 */
static bool continue_carries(sweep *s, const sbp_op *op, bool wants, bool *live) {
    bool changed = false;
    for (int32_t r = 0; r < op->result_count; r++) {
        sbp_value from = sbp_op_continues(op, r),
                  root = from == SBP_NO_VALUE ? SBP_NO_VALUE : s->carry_root[from];
        s->carry_root[op->results[r]] = root;
        changed |= root != SBP_NO_VALUE && wants && !live[root];
        if (root != SBP_NO_VALUE)
            live[root] |= wants;
    }
    return changed;
}

/* A carry that only takes rows nobody differentiates would be wanted for nothing: drop those. */
static void mark_ops(sweep *s) {
    const sbp_func *f = s->rw.to;
    bool *live = SBP_NEW_ARRAY(f->arena, bool, f->value_count + 1); /* carry roots that take wanted rows */
    for (bool changed = true; changed;) {
        changed = false;
        for (int32_t i = 0; i < f->op_count; i++) {
            const sbp_op *op = &f->ops[i];
            bool wants = false;
            for (int32_t k = 0; k < op->operand_count; k++) {
                sbp_value v = op->operands[k];
                if (v == SBP_NO_VALUE)
                    continue;
                bool carry = s->carry_root[v] != SBP_NO_VALUE;
                wants |= carry ? live[s->carry_root[v]] : s->wants[v];
            }
            changed |= join_carries(s, op, live);
            if (op->code == SBP_OP_stop_gradient)
                wants = false;
            changed |= continue_carries(s, op, wants, live);
            for (int32_t r = 0; r < op->result_count; r++)
                s->wants[op->results[r]] = wants && is_float(f, op->results[r]);
        }
    }
    for (int32_t i = 0; i < f->arg_count; i++)
        if (f->values[f->args[i]].role == SBP_VALUE_CARRY)
            s->wants[f->args[i]] = live[f->args[i]];
}

static sbp_value add_cotangent_arg(sweep *s, sbp_value of, const sbp_type *type) {
    sbp_func *f = s->rw.to;
    const char *name = sbp_arena_printf(f->arena, "d_%s", f->values[of].name);
    return sbp_func_add_arg(f, SBP_VALUE_COTANGENT, name, type, of);
}

static void accumulate(sweep *s, sbp_value value, sbp_value cotangent) {
    if (value >= s->forward_values || cotangent == SBP_NO_VALUE)
        return;
    sbp_builder *b = &s->rw.builder;
    sbp_dtype wide = sbp_rule_wide(s->rw.to->values[value].type.dtype);
    sbp_value *sum = &s->cotangent[value];
    if (*sum == SBP_NO_VALUE)
        *sum = cotangent;
    else {
        sbp_value so_far = sbp_build_cast(b, *sum, wide), term = sbp_build_cast(b, cotangent, wide);
        *sum = sbp_build2(b, SBP_OP_add, so_far, term);
    }
}

/* The whole cotangent of a value, in its type. */
static sbp_value whole_cotangent(sweep *s, sbp_value value) {
    const sbp_type type = s->rw.to->values[value].type;
    return sbp_build_cast(&s->rw.builder, s->cotangent[value], sbp_cotangent_dtype(&type));
}

/* A side value was read as a carry: adds what was added to its rows there. Nothing to do for the carry whose
 * running cotangent is the value's sum already. */
static void take_rows(sweep *s, sbp_value v, sbp_value root) {
    if (!s->wants[v] || s->dcarry[root] == SBP_NO_VALUE ||
        (s->sum_carry[v] == root && s->cotangent[v] == SBP_NO_VALUE))
        return;
    accumulate(s, v, sbp_build1(&s->rw.builder, SBP_OP_take, s->dcarry[root]));
}

/* The reverse of one op. */
static sbp_status reverse_op(sweep *s, int32_t number) {
    sbp_func *f = s->rw.to;
    const sbp_op *op = &f->ops[number];
    sbp_vjp vjp = {.builder = &s->rw.builder, .op = *op, .in = op->operands, .out = op->results};
    bool any = false, needed = false;
    for (int32_t r = 0; r < op->result_count; r++)
        any |= s->cotangent[op->results[r]] != SBP_NO_VALUE;
    for (int32_t k = 0; k < op->operand_count; k++) {
        sbp_value v = op->operands[k];
        vjp.din[k] = vjp.dcarry[k] = SBP_NO_VALUE;
        if (v == SBP_NO_VALUE)
            continue;
        sbp_value root = s->carry_root[v];
        vjp.need[k] = s->wants[v];
        needed |= vjp.need[k];
        if (root != SBP_NO_VALUE && s->wants[v])
            vjp.dcarry[k] = s->dcarry[root];
    }
    bool is_append = op->code == SBP_OP_append;
    if (is_append && s->side && s->side[op->operands[1]]) {
        take_rows(s, op->operands[1], s->carry_root[op->operands[0]]);
        return SBP_OK;
    }
    if (!needed || (!any && !is_append) || (is_append && vjp.dcarry[0] == SBP_NO_VALUE))
        return SBP_OK;
    int32_t operand_count = op->operand_count;
    sbp_value operands[SBP_MAX_OPERANDS];
    memcpy(operands, op->operands, (size_t)operand_count * sizeof *operands);
    for (int32_t r = 0; r < vjp.op.result_count; r++)
        vjp.dout[r] = whole_cotangent(s, vjp.op.results[r]);
    const sbp_op_rules *rules = sbp_opcode_rules(op->code);
    if (!rules->vjp)
        return sbp_fail(s->rw.builder.diag, SBP_INTERNAL, "autodiff: %s has no derivative (in @%s)",
                        sbp_opcode_name(op->code), f->name);
    s->rw.builder.node = op->node;
    SBP_TRY(rules->vjp(&vjp));
    for (int32_t k = 0; k < operand_count; k++) {
        if (operands[k] == SBP_NO_VALUE || vjp.din[k] == SBP_NO_VALUE)
            continue;
        if (vjp.dcarry[k] != SBP_NO_VALUE)
            s->dcarry[s->carry_root[operands[k]]] = vjp.din[k];
        else if (s->wants[operands[k]])
            accumulate(s, operands[k], vjp.din[k]);
    }
    return SBP_OK;
}

static void add_gradients(sweep *s) {
    sbp_func *f = s->rw.to;
    int32_t args = f->arg_count;
    for (int32_t i = 0; i < args; i++) {
        sbp_value v = f->args[i];
        sbp_value_role role = f->values[v].role;
        if (v < s->forward_values && (role == SBP_VALUE_STREAM || role == SBP_VALUE_PARAM) &&
            s->cotangent[v] != SBP_NO_VALUE && !(s->side && s->side[v]))
            sbp_func_add_result(f, whole_cotangent(s, v), SBP_RESULT_GRADIENT, v, NULL);
        if (v < s->forward_values && s->side && s->side[v] && s->cotangent[v] != s->sum[v])
            sbp_func_add_result(f, s->cotangent[v], SBP_RESULT_GRADIENT, v, NULL);
        if (role == SBP_VALUE_CARRY && s->dcarry[v] != SBP_NO_VALUE) {
            sbp_value start = SBP_NO_VALUE; /* the argument that dK came in by */
            for (int32_t j = 0; j < f->arg_count; j++)
                if (f->values[f->args[j]].role == SBP_VALUE_COTANGENT && f->values[f->args[j]].binding == v)
                    start = f->args[j];
            sbp_func_add_result(f, s->dcarry[v], SBP_RESULT_CARRY, start, NULL);
        }
    }
}

/* ---- side values ------------------------------------------------------------------------------------- */

/* The first carry that a value is appended to, if that is differentiated; SBP_NO_VALUE: none. */
static sbp_value live_carry(const sweep *s, sbp_value v) {
    const sbp_func *f = s->rw.to;
    for (int32_t i = 0; i < f->op_count; i++)
        if (f->ops[i].code == SBP_OP_append && f->ops[i].operands[1] == v) {
            sbp_value root = s->carry_root[f->ops[i].results[0]];
            return root != SBP_NO_VALUE && s->wants[root] ? root : SBP_NO_VALUE;
        }
    return SBP_NO_VALUE;
}

/* The sum over readers as an argument; it has a name of its own, for there may be two cotangents of a value.
 */
static sbp_value add_sum(sweep *s, sbp_value v) {
    sbp_func *f = s->rw.to;
    sbp_type type = f->values[v].type;
    const char *name = sbp_func_free_name(f, sbp_arena_printf(f->arena, "d_%s", f->values[v].name));
    type.dtype = sbp_rule_wide(type.dtype);
    return sbp_func_add_arg(f, SBP_VALUE_COTANGENT, name, &type, v);
}

/* Before the sweep, behind the cotangents of carries. */
static void begin_sides(sweep *s) {
    const sbp_func *f = s->rw.to;
    int32_t n = f->value_count + 1, args = f->arg_count;
    s->side = SBP_NEW_ARRAY(f->arena, bool, n);
    s->sum = SBP_NEW_ARRAY(f->arena, sbp_value, n);
    s->sum_carry = SBP_NEW_ARRAY(f->arena, sbp_value, n);
    for (int32_t v = 0; v < n; v++)
        s->sum[v] = s->sum_carry[v] = SBP_NO_VALUE;
    for (int32_t i = 0, streams = 0; i < args; i++) {
        sbp_value v = f->args[i];
        if (f->values[v].role != SBP_VALUE_STREAM || streams++ == 0)
            continue;
        s->side[v] = true;
        if (!s->wants[v])
            continue;
        s->sum_carry[v] = live_carry(s, v);
        if (s->sum_carry[v] == SBP_NO_VALUE)
            s->cotangent[v] = s->sum[v] = add_sum(s, v);
    }
}

/* ---- functions --------------------------------------------------------------------------------------- */

/* That of a statistic: one argument for all layers of a segment that add to it. */
static sbp_value statistic_cotangent(sweep *s, int32_t result) {
    const sbp_func *f = s->rw.to;
    sbp_type type = f->values[f->results[result].value].type;
    for (int32_t i = 0; i < result; i++)
        if (f->results[i].role == SBP_RESULT_STATISTIC && s->wants[f->results[i].value] &&
            strcmp(f->results[i].name, f->results[result].name) == 0)
            return s->cotangent[f->results[i].value];
    return add_cotangent_arg(s, f->results[result].value, &type);
}

/* The cotangents of plain results, and of statistics: vectors that all chunks read. */
static void add_seeds(sweep *s, int32_t results) {
    const sbp_func *f = s->rw.to;
    for (int32_t i = 0, outputs = 0; i < results; i++) {
        sbp_value v = f->results[i].value;
        if (f->results[i].role == SBP_RESULT_STATISTIC && s->wants[v])
            accumulate(s, v, statistic_cotangent(s, i));
        if (f->results[i].role != SBP_RESULT_VALUE)
            continue;
        bool side = s->side && outputs++ > 0;
        if (!s->wants[v] || (side && live_carry(s, v) != SBP_NO_VALUE))
            continue;
        sbp_type type = f->values[v].type;
        accumulate(s, v, side ? add_sum(s, v) : add_cotangent_arg(s, v, &type));
    }
}

static sbp_status differentiate(sbp_module *module, const sbp_func *func, bool want_streams,
                                const bool *wanted, sbp_diag *diag, sbp_func **out) {
    sweep s = {0};
    sbp_rewrite_begin(&s.rw, module, func, diag);
    sbp_func *f = s.rw.to;
    for (int32_t i = 0; i < func->op_count; i++)
        SBP_TRY(sbp_rewrite_copy(&s.rw, &func->ops[i]));
    sbp_rewrite_end(&s.rw);
    /* Values of the backward are numbered from here on; the per-value arrays only speak of forward ones. */
    s.forward_values = f->value_count;
    s.wants = SBP_NEW_ARRAY(f->arena, bool, f->value_count + 1);
    s.cotangent = SBP_NEW_ARRAY(f->arena, sbp_value, f->value_count + 1);
    s.carry_root = SBP_NEW_ARRAY(f->arena, sbp_value, f->value_count + 1);
    s.dcarry = SBP_NEW_ARRAY(f->arena, sbp_value, f->value_count + 1);
    for (int32_t v = 0; v < f->value_count; v++)
        s.cotangent[v] = s.carry_root[v] = s.dcarry[v] = SBP_NO_VALUE;
    mark_arguments(&s, want_streams, wanted);
    mark_ops(&s);
    int32_t results = f->result_count, args = f->arg_count, ops = f->op_count;
    for (int32_t i = 0; i < args; i++) {
        sbp_value v = f->args[i];
        if (f->values[v].role != SBP_VALUE_CARRY || !s.wants[v])
            continue;
        sbp_type type = f->values[v].type; /* sums over queries: fp32 at least */
        type.dtype = type.dtype == SBP_F64 ? SBP_F64 : SBP_F32;
        s.dcarry[v] = add_cotangent_arg(&s, v, &type);
    }
    if (wanted)
        begin_sides(&s);
    add_seeds(&s, results);
    for (int32_t i = ops - 1; i >= 0; i--)
        SBP_TRY(reverse_op(&s, i));
    add_gradients(&s);
    *out = f;
    return s.rw.builder.status;
}

sbp_status sbp_autodiff_func(sbp_module *module, const sbp_func *func, bool want_streams, sbp_diag *diag,
                             sbp_func **out) {
    return differentiate(module, func, want_streams, NULL, diag, out);
}

/* Whether the backward of the call that writes a value runs. */
static bool is_written_above(const sbp_module *m, int32_t value, int32_t first_trainable) {
    for (int32_t c = first_trainable; c < m->call_count; c++)
        for (int32_t i = 0; i < m->calls[c].output_count; i++)
            if (m->calls[c].outputs[i] == value)
                return true;
    return false;
}

/* Which functions of the module are differentiated, and which of their stream arguments are: nothing runs
 * below the lowest trainable parameter. Calls that share a function want what any of them wants. The head
 * waits for the objective (pass `head`). */
sbp_status sbp_pass_autodiff(const sbp_pass_input *in, sbp_module *m, sbp_derivatives *out) {
    out->of = SBP_NEW_ARRAY(in->arena, sbp_derivative, m->func_count);
    out->first_trainable = m->call_count;
    for (int32_t c = m->call_count - 1; c >= 0; c--)
        for (int32_t i = 0; i < m->calls[c].param_count; i++)
            if (m->params[m->calls[c].params[i]].trainable)
                out->first_trainable = c;
    int32_t head = m->calls[m->call_count - 1].func;
    for (int32_t f = 0; f < m->func_count; f++) {
        bool differentiated = false, *wanted = SBP_NEW_ARRAY(in->arena, bool, m->funcs[f]->arg_count + 1);
        for (int32_t c = 0; c < m->call_count; c++)
            if (m->calls[c].func == f && f != head && c >= out->first_trainable) {
                differentiated = true;
                for (int32_t i = 0; i < m->calls[c].stream_count; i++)
                    wanted[i] |= is_written_above(m, m->calls[c].streams[i], out->first_trainable);
            }
        sbp_func *derivative = NULL;
        if (differentiated)
            SBP_TRY(differentiate(m, m->funcs[f], false, wanted, in->diag, &derivative));
        out->of[f] = (sbp_derivative){.func = m->funcs[f], .derivative = derivative, .wanted = wanted};
    }
    return SBP_OK;
}
