/* context: several ranks have one micro-batch together, each some of its rows (ir/base/context.h).
 *
 * requires  no composites; rows of the batch (T), not of chunks
 * preserves the meaning of the function, on the ranks together: row-wise ops are each rank's own; sums over
 *           rows are parts of those of all, which gradients become when they cross the interconnect
 * breaks    nothing
 *
 * Two kinds of ops read other rows. Attention gets them in one of two ways (--context-exchange). Heads: its
 * operands become rows of all ranks (W) of some of the heads, its output rows of this rank again; what says
 * which rows a row sees comes with W rows. Keys: keys and values become rows of all ranks, queries and
 * outputs stay. What carries a state goes over all rows in their order: the delta rule of some of the value
 * heads, with the key heads that they read; a convolution of all channels, on one rank. Whatever else reads
 * other rows is refused.
 *
 * Keys and values that other segments read cross between them exchanged: once, by the segment that has made
 * them, whose derivative exchanges the sum of all readers' cotangents, once.
 */
#include <string.h>

#include "passes/graph/rewrite.h"
#include "passes/lower/passes.h"

/* What a value's rows of all ranks may be: queries of some heads (or a column of data), keys of some, of all.
 */
enum { AS_QUERIES, AS_KEYS, WITH_ALL_HEADS, FORMS };

typedef struct exchanger {
    sbp_rewrite rw;
    int64_t ranks;
    sbp_context_exchange way;
    sbp_value *there[FORMS]; /* per value: its rows of all ranks */
    int64_t *queries;        /* per value that is there AS_KEYS: heads that read it */
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
    if (*there == SBP_NO_VALUE || (keys && x->queries[old] != heads)) {
        const sbp_type *type = &x->rw.from->values[old].type;
        int64_t n = type->dim[1].n;
        *there =
            named(x, exchange(x, x->rw.map[old], "heads", keys ? heads : n, keys ? n : kv_heads, keys), old);
        x->queries[old] = heads;
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
static bool moves_keys(sbp_context_exchange way, int64_t ranks, const sbp_op *op, int64_t heads,
                       int64_t kv_heads) {
    const sbp_context_heads queries = {heads, kv_heads, 1, false};
    if (op->code == SBP_OP_attention_sink)
        return true;
    if (way == SBP_CONTEXT_AUTO)
        way = sbp_context_exchange_of(&queries, ranks);
    return way == SBP_CONTEXT_ALL_GATHER;
}

/* Numbers of rows come from the data, where they are those of all ranks' rows. */
static sbp_status check_column(const exchanger *x, const sbp_op *op, int32_t operand) {
    const sbp_func *from = x->rw.from;
    const sbp_value_info *info = &from->values[op->operands[operand]];
    if (info->role == SBP_VALUE_ROW)
        return SBP_OK;
    return sbp_fail(x->rw.builder.diag, SBP_INPUT,
                    "%s%s%s%s reads %%%s, which is computed: context parallelism needs the documents "
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
    bool keys = moves_keys(x->way, x->ranks, op, heads, kv_heads);
    if (keys && x->way == SBP_CONTEXT_ALL_TO_ALL && op->code == SBP_OP_attention_sink)
        return sbp_fail(
            b->diag, SBP_INPUT,
            "%s%s%sits sinks belong to heads, which stay where they are: the ranks' exchange has to be "
            "all-gather or auto (in @%s)",
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

/* x [rows, columns] as heads of `dim` columns each: to where `to` says, and back to columns. */
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
    sbp_value o = sbp_build(b, op->code, NULL, operands, SBP_COUNT(operands), op->attrs, 1, NULL);
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

/* ---- side values ------------------------------------------------------------------------------------- */

/* As what a segment reads a side value: row by row, or as keys (or values) that cross exchanged. */
typedef struct key_form {
    bool used;
    int64_t heads, kv_heads, dim; /* of the attention */
} key_form;

typedef struct reads {
    bool rows;
    key_form keys[FORMS]; /* AS_KEYS, WITH_ALL_HEADS */
} reads;

typedef struct crossings {
    const sbp_pass_input *in;
    sbp_module *module;
    reads **inputs,
        **outputs;         /* per function: per stream argument, per plain result; the first is the stream */
    int32_t *there[FORMS]; /* per value between calls: the one that is it, exchanged; -1 */
    int32_t values;        /* length of each `there`: values of the model */
} crossings;

static bool same_form(const key_form *a, const key_form *b) {
    return a->heads == b->heads && a->kv_heads == b->kv_heads && a->dim == b->dim;
}

/* The value itself, or what it is another shape of. */
static sbp_value shaped(const sbp_func *func, sbp_value v) {
    const sbp_value_info *info = &func->values[v];
    bool reshaped = info->role == SBP_VALUE_OP && func->ops[info->op].code == SBP_OP_reshape;
    return reshaped ? func->ops[info->op].operands[0] : v;
}

static void note_keys(const crossings *c, const sbp_func *func, const sbp_op *op, sbp_value key, reads *r) {
    const sbp_type *type = &func->values[key].type;
    int64_t heads = func->values[op->operands[0]].type.dim[1].n;
    key_form form = {true, heads, type->dim[1].n, type->dim[2].n};
    key_form *to =
        &r->keys[moves_keys(c->in->options.context_exchange, c->in->options.context, op, heads, form.kv_heads)
                     ? WITH_ALL_HEADS
                     : AS_KEYS];
    if (to->used && !same_form(to, &form))
        r->rows = true;
    else
        *to = form;
}

/* What a function does with each of its stream arguments; number: per value, of these, -1. */
static void find_reads(const crossings *c, const sbp_func *func, const int32_t *number, reads *out) {
    for (int32_t i = 0; i < func->op_count; i++) {
        const sbp_op *op = &func->ops[i];
        for (int32_t k = 0; k < op->operand_count; k++) {
            sbp_value v = op->operands[k], base = v == SBP_NO_VALUE ? v : shaped(func, v);
            if (base == SBP_NO_VALUE || number[base] < 0 || (base == v && op->code == SBP_OP_reshape))
                continue;
            if (sbp_opcode_attends(op->code) && (k == 1 || k == 2))
                note_keys(c, func, op, v, &out[number[base]]);
            else
                out[number[base]].rows = true;
        }
    }
    for (int32_t i = 0; i < func->result_count; i++) {
        int32_t n = number[shaped(func, func->results[i].value)];
        if (n >= 0)
            out[n].rows = true;
    }
}

static void begin_reads(crossings *c, int32_t f) {
    const sbp_func *func = c->module->funcs[f];
    int32_t count = 0, *number = SBP_NEW_ARRAY(c->in->arena, int32_t, func->value_count + 1);
    for (int32_t v = 0; v < func->value_count; v++)
        number[v] = -1;
    for (int32_t i = 0; i < func->arg_count; i++)
        if (func->values[func->args[i]].role == SBP_VALUE_STREAM)
            number[func->args[i]] = count++;
    c->inputs[f] = SBP_NEW_ARRAY(c->in->arena, reads, count + 1);
    c->outputs[f] = SBP_NEW_ARRAY(c->in->arena, reads, func->result_count + 1);
    find_reads(c, func, number, c->inputs[f]);
}

/* `from` joins `to`; false where both have keys of one kind that are not the same: `from` has rows then. */
static bool join(reads *to, reads *from) {
    bool same = true;
    for (int form = AS_KEYS; form < FORMS; form++) {
        if (from->keys[form].used && to->keys[form].used && !same_form(&from->keys[form], &to->keys[form])) {
            from->keys[form].used = same = false;
            from->rows = true;
        }
        if (from->keys[form].used)
            to->keys[form] = from->keys[form];
    }
    to->rows |= from->rows;
    return same;
}

/* What all readers of each value want of it; false where one had to give way. */
static bool join_readers(crossings *c, reads *wanted) {
    bool same = true;
    memset(wanted, 0, (size_t)c->values * sizeof *wanted);
    for (int32_t i = 0; i < c->module->call_count; i++) {
        const sbp_invocation *call = &c->module->calls[i];
        for (int32_t n = 1; n < call->stream_count; n++)
            same &= join(&wanted[call->streams[n]], &c->inputs[call->func][n]);
    }
    return same;
}

/* A writer gives what is wanted of any value that it writes; false where that is not the same of all. */
static bool join_writers(crossings *c, reads *wanted) {
    bool same = true;
    for (int32_t f = 0; f < c->module->func_count; f++)
        for (int32_t m = 0; c->outputs[f] && m < c->module->funcs[f]->result_count; m++)
            c->outputs[f][m] = (reads){0};
    for (int32_t i = 0; i < c->module->call_count; i++) {
        const sbp_invocation *call = &c->module->calls[i];
        for (int32_t m = 1; m < call->output_count; m++) {
            reads want = wanted[call->outputs[m]];
            if (join(&c->outputs[call->func][m], &want))
                continue;
            for (int32_t k = 0; k < c->module->call_count; k++)
                for (int32_t n = 1; n < c->module->calls[k].stream_count; n++)
                    if (c->module->calls[k].streams[n] == call->outputs[m])
                        c->inputs[c->module->calls[k].func][n] = (reads){.rows = true};
            same = false;
        }
    }
    return same;
}

static void find_crossings(crossings *c, const sbp_pass_input *in, sbp_module *m) {
    *c = (crossings){.in = in, .module = m, .values = m->model_value_count};
    c->inputs = SBP_NEW_ARRAY(in->arena, reads *, m->func_count + 1);
    c->outputs = SBP_NEW_ARRAY(in->arena, reads *, m->func_count + 1);
    for (int32_t i = 0; i < m->call_count; i++)
        if (!c->inputs[m->calls[i].func])
            begin_reads(c, m->calls[i].func);
    for (int form = AS_KEYS; form < FORMS; form++) {
        c->there[form] = SBP_NEW_ARRAY(in->arena, int32_t, c->values + 1);
        for (int32_t v = 0; v < c->values; v++)
            c->there[form][v] = -1;
    }
    reads *wanted = SBP_NEW_ARRAY(in->arena, reads, c->values + 1);
    while (!join_readers(c, wanted) || !join_writers(c, wanted))
        ;
}

static bool any_keys(const reads *r) {
    return r->keys[AS_KEYS].used || r->keys[WITH_ALL_HEADS].used;
}

/* Whether it crosses as it is, too: nobody may read it. */
static bool crosses_plain(const reads *r) {
    return r->rows || !any_keys(r);
}

/* Rows of all ranks come in, in place of those that the segment would exchange. */
static void add_exchanged_arg(exchanger *x, sbp_value arg, int form, const key_form *keys) {
    const sbp_func *from = x->rw.from;
    const sbp_context_heads heads = {keys->heads, keys->kv_heads, keys->dim, true};
    sbp_type type = sbp_rewrite_rows_type(&from->values[arg].type, SBP_T, SBP_W);
    type.rank = 3;
    type.dim[1] = sbp_dim_const(form == AS_KEYS ? sbp_context_slots(&heads, x->ranks) : keys->kv_heads);
    type.dim[2] = sbp_dim_const(keys->dim);
    const char *name = sbp_arena_printf(x->rw.to->arena, "%s_of_all", from->values[arg].name);
    sbp_value there =
        sbp_func_add_arg(x->rw.to, SBP_VALUE_STREAM, sbp_func_free_name(x->rw.to, name), &type, -1);
    for (sbp_value v = 0; v < from->value_count; v++)
        if (shaped(from, v) == arg && from->values[v].type.rank == 3 &&
            from->values[v].type.dim[1].n == keys->kv_heads) {
            x->there[form][v] = there;
            x->queries[v] = keys->heads;
        }
}

static void add_arguments(exchanger *x, const reads *inputs) {
    const sbp_func *from = x->rw.from;
    for (int32_t i = 0, number = 0; i < from->arg_count; i++) {
        sbp_value arg = from->args[i];
        const reads *r = from->values[arg].role == SBP_VALUE_STREAM && inputs ? &inputs[number++] : NULL;
        if (!r || number == 1 || crosses_plain(r))
            sbp_rewrite_arg(&x->rw, arg, &from->values[arg].type);
        for (int form = AS_KEYS; r && number > 1 && form < FORMS; form++)
            if (r->keys[form].used)
                add_exchanged_arg(x, arg, form, &r->keys[form]);
    }
}

/* What a result is, exchanged: as its own attention has it, or for others alone. */
static sbp_value exchanged_result(exchanger *x, sbp_value v, int form, const key_form *keys) {
    const sbp_func *from = x->rw.from;
    for (sbp_value w = 0; w < from->value_count; w++)
        if ((w == v || shaped(from, w) == v) && x->there[form][w] != SBP_NO_VALUE &&
            (form != AS_KEYS || x->queries[w] == keys->heads))
            return x->there[form][w];
    sbp_value heads = x->rw.map[v];
    if (from->values[v].type.rank != 3 || from->values[v].type.dim[1].n != keys->kv_heads)
        heads = sbp_build_reshape(&x->rw.builder, heads, (int64_t[]){keys->kv_heads, keys->dim}, 2);
    if (form == AS_KEYS)
        return exchange(x, heads, "heads", keys->heads, keys->kv_heads, true);
    return exchange(x, heads, "all", 0, 0, false);
}

static void add_results(exchanger *x, const reads *outputs) {
    const sbp_func *from = x->rw.from;
    for (int32_t i = 0, number = 0; i < from->result_count; i++) {
        const sbp_result *result = &from->results[i];
        const reads *r = result->role == SBP_RESULT_VALUE && outputs ? &outputs[number++] : NULL;
        bool side = r && number > 1;
        if (!side || crosses_plain(r))
            sbp_func_add_result(x->rw.to, x->rw.map[result->value], result->role, result->target,
                                result->name);
        for (int form = AS_KEYS; side && form < FORMS; form++)
            if (r->keys[form].used)
                sbp_func_add_result(x->rw.to, exchanged_result(x, result->value, form, &r->keys[form]),
                                    SBP_RESULT_VALUE, -1, NULL);
    }
}

/* The numbers of what crosses now, in place of those that did: the first stays. */
static int32_t *renumber(crossings *c, const int32_t *values, int32_t *count, const reads *r) {
    int32_t *out = SBP_NEW_ARRAY(c->in->arena, int32_t, FORMS * *count + 1), n = 0;
    for (int32_t i = 0; i < *count; i++) {
        int32_t v = values[i];
        if (i == 0 || crosses_plain(&r[i]))
            out[n++] = v;
        for (int form = AS_KEYS; i > 0 && form < FORMS; form++) {
            if (!r[i].keys[form].used)
                continue;
            if (c->there[form][v] < 0)
                c->there[form][v] = c->module->model_value_count++;
            out[n++] = c->there[form][v];
        }
    }
    *count = n;
    return out;
}

/* ---- the pass ---------------------------------------------------------------------------------------- */

/* inputs, outputs: what a segment reads of side values, and others of its own; NULL: there are none. */
static sbp_status rewrite(const sbp_pass_input *in, sbp_module *module, const sbp_func *func,
                          const reads *inputs, const reads *outputs, sbp_func **out) {
    exchanger x = {.ranks = in->options.context, .way = in->options.context_exchange};
    sbp_rewrite_begin_bare(&x.rw, module, func, in->diag);
    x.queries = SBP_NEW_ARRAY(in->arena, int64_t, func->value_count + 1);
    for (int form = 0; form < FORMS; form++) {
        x.there[form] = SBP_NEW_ARRAY(in->arena, sbp_value, func->value_count + 1);
        for (int32_t v = 0; v < func->value_count; v++)
            x.there[form][v] = SBP_NO_VALUE;
    }
    add_arguments(&x, inputs);
    for (int32_t i = 0; i < func->op_count; i++) {
        const sbp_op *op = &func->ops[i];
        if (op->code == SBP_OP_reshape && x.rw.map[op->operands[0]] == SBP_NO_VALUE)
            continue; /* of keys that come in exchanged */
        if (sbp_opcode_attends(op->code))
            SBP_TRY(rewrite_attention(&x, op));
        else if (op->code == SBP_OP_delta_rule)
            SBP_TRY(rewrite_delta_rule(&x, op));
        else if (op->code == SBP_OP_conv_rows)
            SBP_TRY(rewrite_conv_rows(&x, op));
        else if (sbp_opcode_class(op->code) == SBP_CLASS_RECUR)
            return sbp_fail(
                in->diag, SBP_INPUT,
                "%s%s%s%s carries a state from row to row: context parallelism is not built for that "
                "(in @%s)",
                op->node ? "node '" : "", op->node ? op->node : "", op->node ? "': " : "",
                sbp_opcode_name(op->code), func->name);
        else if (reads_other_rows(func, op)) /* split says what, of what it cannot stream */
            return sbp_fail(in->diag, SBP_INPUT,
                            "%s%s%s%s reads other rows: not with context parallelism (in @%s)",
                            op->node ? "node '" : "", op->node ? op->node : "", op->node ? "': " : "",
                            sbp_opcode_name(op->code), func->name);
        else
            SBP_TRY(sbp_rewrite_copy(&x.rw, op));
    }
    add_results(&x, outputs);
    *out = x.rw.to;
    return x.rw.builder.status;
}

sbp_status sbp_pass_context(const sbp_pass_input *in, sbp_module *module) {
    const sbp_func *objective = sbp_module_find_func(module, "objective"),
                   *statistics = sbp_module_find_func(module, "statistics");
    if (in->options.context < 2)
        return SBP_OK;
    crossings c;
    find_crossings(&c, in, module);
    for (int32_t i = 0; i < module->func_count; i++)
        if (module->funcs[i] != objective && module->funcs[i] != statistics)
            SBP_TRY(rewrite(in, module, module->funcs[i], c.inputs[i], c.outputs[i], &module->funcs[i]));
    for (int32_t i = 0; i < module->call_count; i++) {
        sbp_invocation *call = &module->calls[i];
        call->streams = renumber(&c, call->streams, &call->stream_count, c.inputs[call->func]);
        call->outputs = renumber(&c, call->outputs, &call->output_count, c.outputs[call->func]);
    }
    return SBP_OK;
}
