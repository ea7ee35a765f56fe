/* savings.c: greedy order of the values that the forward could keep, by time bought per byte. */
#include "passes/planner/savings.h"

#include <string.h>

/* A name as --save takes it; it may stand for values of several kinds of segment. */
typedef struct item {
    const char *name;
    bool kept;
    struct holder *holders;
    int32_t holder_count, holder_capacity;
} item;

/* A value under that name, in a segment; those of one segment follow each other. */
typedef struct holder {
    int32_t segment;
    sbp_value value;
} holder;

/* One kind of segment that is differentiated. */
typedef struct segment {
    const sbp_func *d;
    int32_t forward_ops, calls;
    int32_t *item;  /* per value of d: its item, -1 */
    bool *kept;     /* per value of d */
    bool *visited;  /* per op */
    int32_t *stack; /* of ops */
    bool *needed;   /* per op: the last search found it, where keeping its results would spare it */
    double seconds; /* per row, of the last search over all segments */
    int32_t trial;  /* the last that it was part of */
} segment;

typedef struct ranking {
    const sbp_pipeline *p;
    int64_t t;
    segment *segments;
    int32_t segment_count;
    item *items;
    int32_t item_count, item_capacity;
    int32_t trial;
} ranking;

/* ---- cost of computing ops again --------------------------------------------------------------------- */

static double row_bytes(const sbp_type *type) {
    return (double)sbp_type_row_elems(type) * (double)sbp_dtype_bytes(type->dtype);
}

/* Whether a value has rows of the chunk: this rank's, or those of all ranks, several for each of its own. */
static bool has_rows(const sbp_type *type) {
    return sbp_type_rows(type) == SBP_C || sbp_type_rows(type) == SBP_D;
}

/* Seconds per row of this rank. */
static double op_seconds(const ranking *r, const sbp_func *f, const sbp_op *op) {
    const sbp_throughput *throughput = &r->p->target.throughput;
    const sbp_type *out = &f->values[op->results[0]].type;
    double rows = sbp_type_rows(out) == SBP_D ? (double)r->p->program->context : 1;
    if (op->code == SBP_OP_linear || op->code == SBP_OP_expert_linear) { /* of experts as often as slots */
        const sbp_type *in = &f->values[op->operands[0]].type;
        return 2 * (double)in->dim[in->rank - 1].n * (double)sbp_type_row_elems(out) /
               (op->code == SBP_OP_linear ? sbp_throughput_matmul(throughput, in->dtype)
                                          : sbp_target_expert_rate(&r->p->target, in->dtype));
    }
    if (sbp_opcode_attends(op->code)) {
        double all = rows * (double)r->t;
        double pairs = rows * sbp_attention_pairs(0, (int64_t)all, sbp_op_int(op, "window")) / all;
        const sbp_type *q = &f->values[op->operands[0]].type;
        return sbp_attention_flops(pairs, (double)sbp_type_row_elems(q), (double)sbp_type_row_elems(out),
                                   false) /
               sbp_throughput_attention(throughput, q->dtype);
    }
    if (op->code == SBP_OP_reshape || op->code == SBP_OP_stop_gradient || op->code == SBP_OP_append ||
        !has_rows(out))
        return 0;
    return rows * row_bytes(out) /
           (4 * throughput->memory); /* fused: about one value in four goes to memory */
}

/* An op that has to run for a value to be there, and was not counted yet; -1: none. */
static int32_t missing_op(const segment *s, sbp_value v) {
    if (v == SBP_NO_VALUE || s->d->values[v].role != SBP_VALUE_OP || s->d->values[v].op >= s->forward_ops ||
        s->kept[v] || s->visited[s->d->values[v].op])
        return -1;
    return s->d->values[v].op;
}

/* Seconds per row to have a value, and marks what that takes. */
static double need(const ranking *r, segment *s, sbp_value v) {
    int32_t count = 0, first = missing_op(s, v);
    double seconds = 0;
    if (first < 0)
        return 0;
    s->visited[first] = true;
    s->stack[count++] = first;
    while (count > 0) {
        const sbp_op *op = &s->d->ops[s->stack[--count]];
        if (op->code == SBP_OP_append) /* the carry is full already */
            continue;
        seconds += op_seconds(r, s->d, op);
        for (int32_t k = 0; k < op->operand_count; k++) {
            int32_t next = missing_op(s, op->operands[k]);
            if (next < 0)
                continue;
            s->visited[next] = true;
            s->stack[count++] = next;
        }
    }
    return seconds;
}

/* Seconds per row of what the backward of a segment computes again: its own values, then the carries. */
static double segment_seconds(const ranking *r, segment *s) {
    double seconds = 0;
    memset(s->visited, 0, (size_t)s->d->op_count * sizeof *s->visited);
    for (int32_t i = s->forward_ops; i < s->d->op_count; i++)
        for (int32_t k = 0; k < s->d->ops[i].operand_count; k++)
            seconds += need(r, s, s->d->ops[i].operands[k]);
    memcpy(s->needed, s->visited, (size_t)s->d->op_count * sizeof *s->needed);
    memset(s->visited, 0, (size_t)s->d->op_count * sizeof *s->visited);
    for (int32_t i = 0; i < s->forward_ops; i++) {
        if (s->d->ops[i].code != SBP_OP_append)
            continue;
        sbp_value row = s->d->ops[i].operands[1]; /* of what goes into carries, only the rows themselves */
        seconds += need(r, s, row);
        if (s->d->values[row].role == SBP_VALUE_OP && !s->kept[row])
            s->needed[s->d->values[row].op] = true;
    }
    return seconds;
}

static double all_seconds(const ranking *r) {
    double seconds = 0;
    for (int32_t i = 0; i < r->segment_count; i++) {
        r->segments[i].seconds = segment_seconds(r, &r->segments[i]);
        seconds += r->segments[i].seconds * r->segments[i].calls;
    }
    return seconds * (double)r->t;
}

/* ---- items ------------------------------------------------------------------------------------------- */

/* Per value: whether it is computed from the segment's input, not from positions and parameters alone. */
static bool *find_dependent(const ranking *r, const segment *s) {
    bool *dependent = SBP_NEW_ARRAY(r->p->arena, bool, s->d->value_count);
    for (int32_t i = 0; i < s->d->arg_count; i++) {
        sbp_value_role role = s->d->values[s->d->args[i]].role;
        dependent[s->d->args[i]] = role == SBP_VALUE_STREAM || role == SBP_VALUE_CARRY;
    }
    for (int32_t i = 0; i < s->forward_ops; i++) {
        bool any = false;
        for (int32_t k = 0; k < s->d->ops[i].operand_count; k++)
            any |= s->d->ops[i].operands[k] != SBP_NO_VALUE && dependent[s->d->ops[i].operands[k]];
        for (int32_t k = 0; k < s->d->ops[i].result_count; k++)
            dependent[s->d->ops[i].results[k]] = any;
    }
    return dependent;
}

/* Side values that it gives are there, whatever is kept. */
static void mark_sides(segment *s) {
    for (int32_t i = 0, outputs = 0; i < s->d->result_count; i++)
        if (s->d->results[i].role == SBP_RESULT_VALUE && outputs++ > 0)
            s->kept[s->d->results[i].value] = true;
}

/* What can be kept: results of products and attention, and what has a name. */
static bool is_candidate(const segment *s, const bool *dependent, sbp_value v) {
    const sbp_value_info *info = &s->d->values[v];
    if (s->kept[v] || info->role != SBP_VALUE_OP || info->op >= s->forward_ops || !has_rows(&info->type) ||
        !dependent[v])
        return false;
    sbp_opcode code = s->d->ops[info->op].code;
    return code == SBP_OP_linear || code == SBP_OP_expert_linear || sbp_opcode_attends(code) ||
           !sbp_saved_is_numbered(info->name);
}

static void add_segments(ranking *r) {
    const sbp_module *m = r->p->module;
    r->segments = SBP_NEW_ARRAY(r->p->arena, segment, m->func_count);
    sbp_map names;
    sbp_map_init(&names, r->p->arena);
    for (int32_t f = 0; f < m->func_count; f++) {
        const sbp_derivative *of = &r->p->results->derivatives.of[f];
        segment s = {.d = of->derivative};
        for (int32_t c = r->p->results->derivatives.first_trainable; c + 1 < m->call_count; c++)
            s.calls += m->calls[c].func == f;
        if (!s.d || s.calls == 0)
            continue;
        s.forward_ops = of->func->op_count;
        s.item = SBP_NEW_ARRAY(r->p->arena, int32_t, s.d->value_count);
        s.kept = SBP_NEW_ARRAY(r->p->arena, bool, s.d->value_count);
        s.visited = SBP_NEW_ARRAY(r->p->arena, bool, s.d->op_count);
        s.stack = SBP_NEW_ARRAY(r->p->arena, int32_t, s.d->op_count + 1);
        s.needed = SBP_NEW_ARRAY(r->p->arena, bool, s.d->op_count);
        mark_sides(&s);
        const bool *dependent = find_dependent(r, &s);
        for (int32_t v = 0; v < s.d->value_count; v++) {
            s.item[v] = -1;
            if (!is_candidate(&s, dependent, v))
                continue;
            const char *full = s.d->values[v].name;
            const char *name = sbp_arena_strndup(r->p->arena, full, sbp_saved_base_length(full));
            holder here = {.segment = r->segment_count, .value = v};
            int32_t known = sbp_map_get(&names, name);
            s.item[v] = known >= 0 && known < r->item_count ? known : r->item_count;
            if (s.item[v] == r->item_count) {
                SBP_PUSH(r->p->arena, r->items, r->item_count, r->item_capacity, (item){.name = name});
                sbp_map_set(&names, name, s.item[v]);
            }
            item *it = &r->items[s.item[v]];
            SBP_PUSH(r->p->arena, it->holders, it->holder_count, it->holder_capacity, here);
        }
        r->segments[r->segment_count++] = s;
    }
}

static void set_kept(ranking *r, int32_t number, bool kept) {
    item *it = &r->items[number];
    it->kept = kept;
    for (int32_t h = 0; h < it->holder_count; h++)
        r->segments[it->holders[h].segment].kept[it->holders[h].value] = kept;
}

/* Adds a tensor that is not kept yet; its bytes per row as far as the last search needed its values. */
static void add_item(const ranking *r, int32_t number, sbp_recompute_saving *step) {
    if (r->items[number].kept)
        return;
    const item *it = &r->items[number];
    step->names[step->name_count++] = it->name;
    for (int32_t h = 0; h < it->holder_count; h++) {
        const segment *s = &r->segments[it->holders[h].segment];
        const sbp_value_info *value = &s->d->values[it->holders[h].value];
        if (!s->needed[value->op])
            continue;
        int64_t rows = sbp_type_rows(&value->type) == SBP_D ? r->p->program->context : 1;
        step->row_bytes += rows * (int64_t)row_bytes(&value->type) * s->calls;
        step->call_row_bytes += rows * (int64_t)row_bytes(&value->type);
    }
}

/* ---- the order --------------------------------------------------------------------------------------- */

typedef struct candidate {
    int32_t items[SBP_MAX_RESULTS], count;
} candidate;

/* A tensor alone, and the results of an op together: attention's output without its log-sum-exp buys nothing.
 */
static int32_t list_candidates(const ranking *r, candidate *out) {
    int32_t n = 0;
    for (int32_t i = 0; i < r->item_count; i++)
        out[n++] = (candidate){.items = {i}, .count = 1};
    for (int32_t k = 0; k < r->segment_count; k++)
        for (int32_t i = 0; i < r->segments[k].forward_ops && n < 2 * r->item_count; i++) {
            const sbp_op *op = &r->segments[k].d->ops[i];
            candidate c = {.count = 0};
            for (int32_t j = 0; j < op->result_count; j++)
                if (r->segments[k].item[op->results[j]] >= 0)
                    c.items[c.count++] = r->segments[k].item[op->results[j]];
            bool known = c.count < 2;
            for (int32_t j = 0; j < n && !known; j++)
                known = out[j].count == c.count && memcmp(out[j].items, c.items, sizeof c.items) == 0;
            if (!known)
                out[n++] = c;
        }
    return n;
}

/* By keeping the items as well; since the last search over all segments. */
static double seconds_spared(ranking *r, const candidate *c) {
    double seconds = 0;
    for (int32_t k = 0; k < c->count; k++)
        set_kept(r, c->items[k], true);
    r->trial++;
    for (int32_t k = 0; k < c->count; k++) {
        const item *it = &r->items[c->items[k]];
        for (int32_t h = 0; h < it->holder_count; h++) {
            segment *s = &r->segments[it->holders[h].segment];
            if (s->trial == r->trial)
                continue;
            s->trial = r->trial;
            seconds += (s->seconds - segment_seconds(r, s)) * s->calls;
        }
    }
    for (int32_t k = 0; k < c->count; k++)
        set_kept(r, c->items[k], false);
    return seconds * (double)r->t;
}

void sbp_recompute_savings(const sbp_pipeline *p, int64_t t, sbp_recompute_saving **out, int32_t *count) {
    ranking r = {.p = p, .t = t};
    int32_t capacity = 0;
    *out = NULL;
    *count = 0;
    add_segments(&r);
    if (r.item_count == 0)
        return;
    candidate *list = SBP_NEW_ARRAY(p->arena, candidate, 2 * r.item_count + 1);
    int32_t n = list_candidates(&r, list);
    sbp_recompute_saving *steps = SBP_NEW_ARRAY(p->arena, sbp_recompute_saving, n + 1);
    for (double first = 0;;) {
        double now = all_seconds(&r);
        first = now > first ? now : first;
        for (int32_t i = 0; i < n; i++) { /* while it is known what is needed without them */
            steps[i] = (sbp_recompute_saving){.name_count = 0};
            for (int32_t k = 0; k < list[i].count; k++)
                add_item(&r, list[i].items[k], &steps[i]);
        }
        int32_t chosen = -1;
        for (int32_t i = 0; i < n; i++) {
            sbp_recompute_saving *step = &steps[i];
            if (step->name_count < list[i].count || step->row_bytes == 0)
                continue;
            step->seconds = seconds_spared(&r, &list[i]);
            if (step->seconds > first * 1e-3 && /* less is not worth a name */
                (chosen < 0 || step->seconds / (double)step->row_bytes >
                                   steps[chosen].seconds / (double)steps[chosen].row_bytes * (1 + 1e-9)))
                chosen = i;
        }
        if (chosen < 0)
            return;
        for (int32_t k = 0; k < list[chosen].count; k++)
            set_kept(&r, list[chosen].items[k], true);
        SBP_PUSH(p->arena, *out, *count, capacity, steps[chosen]);
    }
}
