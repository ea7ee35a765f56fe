/* context: several ranks have one micro-batch together, each some of its rows (ir/base/context.h).
 *
 * requires  no composites; rows of the batch (T), not of chunks
 * preserves the meaning of the function, on the ranks together: row-wise ops are each rank's own; sums over
 *           rows are parts of those of all, which gradients become when they cross the interconnect
 * breaks    nothing
 *
 * Two kinds of ops read other rows. Of attention there are two ways to give them to it (--context-exchange).
 * Heads: its operands become rows of all ranks (W) of some of the heads, its output rows of this rank again;
 * what says which rows a row sees comes with W rows. Keys: keys and values become rows of all ranks, queries
 * and outputs stay. What carries a state goes over all rows in their order: the delta rule of some of the value
 * heads, with the key heads that they read; a convolution of all channels, on one rank. Whatever else reads
 * other rows is refused.
 */
#include "passes/graph/rewrite.h"
#include "passes/passes.h"

/* What a value's rows of all ranks may be: queries of some heads (or a column of data), keys of some, of all.
 */
enum { AS_QUERIES, AS_KEYS, WITH_ALL_HEADS, FORMS };

typedef struct exchanger {
    sbp_rewrite rw;
    int64_t ranks;
    sbp_context_exchange way;
    sbp_value *there[FORMS]; /* per value: its rows of all ranks */
} exchanger;

static sbp_value exchange(exchanger *x, sbp_value value, const char *to, int64_t heads, int64_t kv_heads,
                          bool keys) {
    return sbp_build(&x->rw.builder, SBP_OP_exchange, NULL, &value, 1,
                     (sbp_attr[]){sbp_attr_symbol("to", to), sbp_attr_int("heads", heads),
                                  sbp_attr_int("kv_heads", kv_heads), sbp_attr_bool("keys", keys),
                                  sbp_attr_int("ranks", x->ranks)},
                     5, NULL);
}

/* It keeps its name for --save. */
static sbp_value named(exchanger *x, sbp_value there, sbp_value old) {
    sbp_build_name(&x->rw.builder, there, x->rw.from->values[old].name);
    return there;
}

/* An operand of attention, once for all that read it. */
static sbp_value to_heads(exchanger *x, sbp_value old, int64_t heads, int64_t kv_heads, bool keys) {
    sbp_value *there = &x->there[keys ? AS_KEYS : AS_QUERIES][old];
    if (*there == SBP_NO_VALUE) {
        const sbp_type *type = &x->rw.from->values[old].type;
        int64_t n = type->dim[1].n;
        *there =
            named(x, exchange(x, x->rw.map[old], "heads", keys ? heads : n, keys ? n : kv_heads, keys), old);
    }
    return *there;
}

/* Keys or values, of all ranks' rows. */
static sbp_value to_all(exchanger *x, sbp_value old) {
    sbp_value *there = &x->there[WITH_ALL_HEADS][old];
    if (*there == SBP_NO_VALUE)
        *there = named(x, exchange(x, x->rw.map[old], "all", 0, 0, false), old);
    return *there;
}

/* Whether keys go to queries, not heads to ranks: always where something belongs to a head (a sink). */
static bool moves_keys(const exchanger *x, const sbp_op *op, int64_t heads, int64_t kv_heads) {
    const sbp_context_heads queries = {heads, kv_heads, 1, false};
    sbp_context_exchange way = x->way;
    if (op->code == SBP_OP_attention_sink)
        return true;
    if (way == SBP_CONTEXT_AUTO)
        way = sbp_context_exchange_of(&queries, x->ranks);
    return way == SBP_CONTEXT_ALL_GATHER;
}

/* Numbers of rows come from the data, where they are those of all ranks' rows. */
static sbp_status check_column(const exchanger *x, const sbp_op *op, int32_t operand) {
    const sbp_func *from = x->rw.from;
    const sbp_value_info *info = &from->values[op->operands[operand]];
    if (info->role == SBP_VALUE_ROW)
        return SBP_OK;
    return sbp_fail(x->rw.builder.diag, SBP_INPUT,
                    "%s%s%s%s reads %%%s, which is computed: --context-parallel needs the documents "
                    "of its rows from the data (in @%s)",
                    op->node ? "node '" : "", op->node ? op->node : "", op->node ? "': " : "",
                    sbp_opcode_attends(op->code) ? "attention" : sbp_opcode_name(op->code), info->name,
                    from->name);
}

/* A column of the data, with the rows of all ranks. */
static sbp_value column_of_all(exchanger *x, sbp_value old) {
    const sbp_value_info *info = &x->rw.from->values[old];
    sbp_value *there = &x->there[AS_QUERIES][old];
    if (*there == SBP_NO_VALUE) {
        sbp_type type = sbp_rewrite_rows_type(&info->type, SBP_T, SBP_W);
        const char *name = sbp_arena_printf(x->rw.to->arena, "%s_of_all", info->name);
        *there = sbp_func_add_arg(x->rw.to, SBP_VALUE_ROW, sbp_func_free_name(x->rw.to, name), &type,
                                  info->binding);
    }
    return *there;
}

static sbp_status rewrite_attention(exchanger *x, const sbp_op *op) {
    const sbp_func *from = x->rw.from;
    sbp_builder *b = &x->rw.builder;
    int64_t heads = from->values[op->operands[0]].type.dim[1].n;
    int64_t kv_heads = from->values[op->operands[1]].type.dim[1].n;
    sbp_value operands[SBP_MAX_OPERANDS], results[SBP_MAX_RESULTS];
    sbp_attr_schema schema[SBP_MAX_ATTRS];
    bool keys = moves_keys(x, op, heads, kv_heads);
    if (keys && x->way == SBP_CONTEXT_ALL_TO_ALL && op->code == SBP_OP_attention_sink)
        return sbp_fail(
            b->diag, SBP_INPUT,
            "%s%s%sits sinks belong to heads, which stay where they are: --context-exchange all-gather "
            "or auto (in @%s)",
            op->node ? "node '" : "", op->node ? op->node : "", op->node ? "': " : "", from->name);
    b->node = op->node;
    for (int32_t k = 0; k < 3; k++)
        if (!keys)
            operands[k] = to_heads(x, op->operands[k], heads, kv_heads, k > 0);
        else
            operands[k] = k > 0 ? to_all(x, op->operands[k]) : x->rw.map[op->operands[k]];
    for (int32_t k = 3; k < op->operand_count; k++) {
        if (k < 6)
            SBP_TRY(check_column(x, op, k));
        operands[k] = keys ? x->rw.map[op->operands[k]] : column_of_all(x, op->operands[k]);
    }
    sbp_build(b, op->code, NULL, operands, op->operand_count, op->attrs, sbp_opcode_attrs(op->code, schema),
              results);
    SBP_TRY(b->status);
    for (int32_t r = 0; r < op->result_count; r++)
        sbp_rewrite_replace(&x->rw, op->results[r], results[r]);
    if (keys)
        return b->status;
    x->rw.map[op->results[0]] = exchange(x, results[0], "rows", heads, kv_heads, false);
    x->rw.map[op->results[1]] = SBP_NO_VALUE; /* for the derivative alone, which stays there */
    return b->status;
}

/* ---- states ------------------------------------------------------------------------------------------ */

/* x: [rows, columns], as heads of so many columns there and back. */
static sbp_value turn_columns(exchanger *x, sbp_value value, const char *to, int64_t heads, int64_t kv_heads,
                              int64_t dim) {
    sbp_builder *b = &x->rw.builder;
    if (b->status != SBP_OK)
        return SBP_NO_VALUE;
    int64_t columns = sbp_build_type(b, value)->dim[1].n;
    value = sbp_build_reshape(b, value, (int64_t[]){columns / dim, dim}, 2);
    value = exchange(x, value, to, heads, kv_heads, false);
    if (b->status != SBP_OK)
        return SBP_NO_VALUE;
    return sbp_build_reshape(b, value, (int64_t[]){sbp_build_type(b, value)->dim[1].n * dim}, 1);
}

/* ssd has c, b and x in the places of q, k and v, and numbers of heads in those of others. */
static sbp_status rewrite_delta_rule(exchanger *x, const sbp_op *op) {
    enum { Q, K, V, DECAY, BETA, FIRST };
    const sbp_func *from = x->rw.from;
    sbp_builder *b = &x->rw.builder;
    int64_t heads = from->values[op->operands[V]].type.dim[1].n;
    int64_t kv_heads = from->values[op->operands[K]].type.dim[1].n;
    sbp_value operands[FIRST + 1];
    SBP_TRY(check_column(x, op, FIRST));
    b->node = op->node;
    for (int32_t k = Q; k <= V; k++)
        operands[k] = to_heads(x, op->operands[k], heads, kv_heads, k != V);
    for (int32_t k = DECAY; k <= BETA; k++)
        operands[k] = named(x, turn_columns(x, x->rw.map[op->operands[k]], "heads", heads, kv_heads, 1),
                            op->operands[k]);
    operands[FIRST] = column_of_all(x, op->operands[FIRST]);
    sbp_value o = sbp_build(b, op->code, NULL, operands, SBP_COUNT(operands), NULL, 0, NULL);
    sbp_rewrite_replace(&x->rw, op->results[0], o);
    x->rw.map[op->results[0]] = exchange(x, o, "rows", heads, kv_heads, false);
    return b->status;
}

/* On the first rank, which has the one head that all channels are: the taps are a parameter's, and whole. The
 * others have zeros, from which no gradient of the taps comes. */
static sbp_status rewrite_conv_rows(exchanger *x, const sbp_op *op) {
    enum { X, W, BIAS, FIRST };
    sbp_builder *b = &x->rw.builder;
    int64_t channels = x->rw.from->values[op->operands[X]].type.dim[1].n;
    sbp_value operands[FIRST + 1];
    SBP_TRY(check_column(x, op, FIRST));
    b->node = op->node;
    sbp_rewrite_operands(&x->rw, op, operands);
    operands[X] = named(x, turn_columns(x, operands[X], "heads", 1, 1, channels), op->operands[X]);
    operands[FIRST] = column_of_all(x, op->operands[FIRST]);
    sbp_value y = sbp_build(b, op->code, NULL, operands, SBP_COUNT(operands), NULL, 0, NULL);
    sbp_rewrite_replace(&x->rw, op->results[0], y);
    x->rw.map[op->results[0]] = turn_columns(x, y, "rows", 1, 1, channels);
    return b->status;
}

static bool reads_other_rows(const sbp_func *func, const sbp_op *op) {
    for (int32_t k = 0; k < op->operand_count; k++)
        for (int32_t r = 0; r < op->result_count && op->operands[k] != SBP_NO_VALUE; r++) {
            sbp_seq_kind kind = sbp_op_seq(func, op, k, r).kind;
            if (kind != SBP_SEQ_NONE && kind != SBP_SEQ_ROW && kind != SBP_SEQ_REDUCE)
                return true;
        }
    return false;
}

static sbp_status rewrite(const sbp_pass_input *in, sbp_module *module, const sbp_func *func,
                          sbp_func **out) {
    exchanger x = {.ranks = in->options.context, .way = in->options.context_exchange};
    sbp_rewrite_begin(&x.rw, module, func, in->diag);
    for (int form = 0; form < FORMS; form++) {
        x.there[form] = SBP_NEW_ARRAY(in->arena, sbp_value, func->value_count + 1);
        for (int32_t v = 0; v < func->value_count; v++)
            x.there[form][v] = SBP_NO_VALUE;
    }
    for (int32_t i = 0; i < func->op_count; i++) {
        const sbp_op *op = &func->ops[i];
        if (sbp_opcode_attends(op->code))
            SBP_TRY(rewrite_attention(&x, op));
        else if (op->code == SBP_OP_delta_rule || op->code == SBP_OP_ssd)
            SBP_TRY(rewrite_delta_rule(&x, op));
        else if (op->code == SBP_OP_conv_rows)
            SBP_TRY(rewrite_conv_rows(&x, op));
        else if (sbp_opcode_class(op->code) == SBP_CLASS_RECUR)
            return sbp_fail(
                in->diag, SBP_INPUT,
                "%s%s%s%s carries a state from row to row: --context-parallel is not built for that "
                "(in @%s)",
                op->node ? "node '" : "", op->node ? op->node : "", op->node ? "': " : "",
                sbp_opcode_name(op->code), func->name);
        else if (reads_other_rows(func, op)) /* split says what, of what it cannot stream */
            return sbp_fail(in->diag, SBP_INPUT,
                            "%s%s%s%s reads other rows: not with --context-parallel (in @%s)",
                            op->node ? "node '" : "", op->node ? op->node : "", op->node ? "': " : "",
                            sbp_opcode_name(op->code), func->name);
        else
            SBP_TRY(sbp_rewrite_copy(&x.rw, op));
    }
    *out = sbp_rewrite_end(&x.rw);
    return x.rw.builder.status;
}

sbp_status sbp_pass_context(const sbp_pass_input *in, sbp_module *module) {
    const sbp_func *objective = sbp_module_find_func(module, "objective"),
                   *statistics = sbp_module_find_func(module, "statistics");
    if (in->options.context < 2)
        return SBP_OK;
    for (int32_t i = 0; i < module->func_count; i++)
        if (module->funcs[i] != objective && module->funcs[i] != statistics)
            SBP_TRY(rewrite(in, module, module->funcs[i], &module->funcs[i]));
    return SBP_OK;
}
