/* group.c: which row-wise values in memory ("roots") share a kernel.
 *
 * A root joins the latest group that reads or computes a large value that it reads, when neither waits for
 * the other by way of other commands. All walks go to a value once, keep their own stack and mark what they
 * saw with their number; those that would go through the whole body for every root have a limit, beyond which
 * the answer is the one that costs time, not correctness. So the time is linear in the body.
 */
#include <stdlib.h>
#include <string.h>

#include "passes/rows/fuse.h"

enum {
    MOST_OPS = 2 * SBP_ROWKERNEL_MAX_INSTRS,  /* of one root, before they are cut */
    PIECE_OPS = SBP_ROWKERNEL_MAX_INSTRS / 2, /* of what they are cut into */
    PIECE_LEAVES = 2 * SBP_ROWKERNEL_MAX_OPERANDS / 3,
    MOST_CANDIDATES = 64,  /* groups that a root looks at: the latest */
    MOST_VISITS = 1 << 12, /* of a root's search for what waits for what */
    MANY_OPS = 64          /* that several kernels would compute again */
};

/* Groups that read a value from memory, in ascending order. */
typedef struct reader_list {
    int32_t *list;
    int32_t count, capacity;
} reader_list;

/* A kernel that computes a value; entries of one value are linked. */
typedef struct computed {
    int32_t group, next;
} computed;

/* What a value would be computed from, without what was counted elsewhere or cut off. */
typedef struct weight {
    int32_t ops, leaves;
} weight;

/* What is known of one group. */
typedef struct group_info {
    int64_t heads;
    sbp_value *leaves; /* values in memory that its roots read, without its roots */
    int32_t leaf_count, leaf_capacity;
    int32_t mark; /* the last walk that came by */
} group_info;

/* Arrays are indexed by values of the body. */
struct sbp_grouping {
    int32_t *mark; /* the number of the last walk that came by */
    int32_t walk;  /* the number of the present one */
    sbp_value *stack, *list;
    weight *weights;
    sbp_value *leaves;   /* of root_leaves */
    sbp_value *replaces; /* roots: the argument whose memory they take over, SBP_NO_VALUE */
    reader_list *readers;
    int32_t *computed_by; /* into `entries`, -1 */
    computed *entries;
    int32_t entry_count, entry_capacity;
    group_info *info; /* per group */
    int32_t info_capacity;
    int32_t *candidates;
    int32_t candidate_count, candidate_capacity;
    /* Per op i: an op up to i; when it is i itself, no group has roots on both sides of i (before i, and i or
     * behind it). See barrier_before. */
    int32_t *barrier;
};

static bool row_wise_op(const sbp_op *op) {
    return op && sbp_opcode_class(op->code) == SBP_CLASS_ROWWISE;
}

/* Row-wise values in memory: what row kernels compute. */
static bool is_root(const sbp_fuser *z, sbp_value v) {
    return row_wise_op(def(z, v)) && z->materialized[v] && z->stage->base[v] == v &&
           z->matmul_of[v] == SBP_NO_VALUE;
}

bool sbp_fuse_sums_memory(const sbp_fuser *z, sbp_value v) {
    const sbp_op *op = def(z, v);
    sbp_value x = op->operands[0];
    int64_t heads, n;
    sbp_row_form(&z->f->values[x].type, &heads, &n);
    return z->materialized[z->stage->base[x]] &&
           (sbp_op_int(op, "rank") == z->f->values[x].type.rank - 1 || heads == 1);
}

static bool is_partial(const sbp_fuser *z, sbp_value v) {
    const sbp_op *op = def(z, v);
    return op && op->code == SBP_OP_sum_rows && sbp_op_int(op, "rank") > 0 && !sbp_fuse_sums_memory(z, v);
}

static bool is_computed(const sbp_fuser *z, sbp_value v) {
    return def(z, v) && !z->materialized[z->stage->base[v]];
}

/* ---- what a root is computed from --------------------------------------------------------------------- */

/* Whether this walk comes to the value for the first time. */
static bool first_visit(const sbp_fuser *z, sbp_value v) {
    struct sbp_grouping *g = z->grouping;
    bool first = g->mark[v] != g->walk;
    g->mark[v] = g->walk;
    return first;
}

static void see_operands(const sbp_fuser *z, const sbp_op *op, int32_t *pending, int32_t *leaf_count) {
    struct sbp_grouping *g = z->grouping;
    for (int32_t k = 0; k < op->operand_count; k++) {
        sbp_value v = op->operands[k];
        if (v == SBP_NO_VALUE)
            continue;
        if (is_computed(z, v) && first_visit(z, v))
            g->stack[(*pending)++] = v;
        else if (!is_computed(z, v) && first_visit(z, z->stage->base[v]))
            g->leaves[(*leaf_count)++] = z->stage->base[v];
    }
}

/* Values in memory that a root reads, in grouping->leaves; a root's own memory does not count. *ops: of what
 * is computed besides; more than `most` are not looked at. */
static int32_t root_leaves(const sbp_fuser *z, sbp_value root, int32_t most, int32_t *ops) {
    struct sbp_grouping *g = z->grouping;
    int32_t pending = 0, count = 0;
    g->walk++;
    g->mark[root] = g->walk;
    *ops = 0;
    see_operands(z, def(z, root), &pending, &count);
    for (; pending > 0 && *ops <= most; ++*ops)
        see_operands(z, def(z, g->stack[--pending]), &pending, &count);
    return count;
}

/* A value of rows and of more than one element a row: worth a pass over memory. What is done with a parameter
 * is one kernel, also of one that has a single element. */
static bool is_large(const sbp_fuser *z, sbp_value v) {
    const sbp_type *type = &z->f->values[v].type;
    return sbp_type_rows(type) != SBP_ONE && (sbp_type_row_elems(type) > 1 || z->stage->of_param);
}

static const sbp_type *type_of_work(const sbp_fuser *z, sbp_value root) {
    const sbp_op *op = def(z, root);
    return &z->f->values[op->code == SBP_OP_sum_rows ? op->operands[0] : root].type;
}

static int64_t heads_of(const sbp_fuser *z, sbp_value root) {
    int64_t heads, n;
    sbp_row_form(type_of_work(z, root), &heads, &n);
    return heads;
}

static sbp_symbol rows_of(const sbp_fuser *z, sbp_value root) {
    return sbp_type_rows(type_of_work(z, root));
}

/* ---- what no kernel could hold ------------------------------------------------------------------------- */

static bool can_be_cut(const sbp_fuser *z, sbp_value v) {
    return row_wise_op(def(z, v)) && z->stage->base[v] == v && z->matmul_of[v] == SBP_NO_VALUE &&
           sbp_row_can_be_stored(&z->f->values[v].type);
}

static int compare_i32(const void *x, const void *y) {
    int32_t a = *(const int32_t *)x, b = *(const int32_t *)y;
    return (a > b) - (a < b);
}

/* Cuts what a root is computed from into pieces, from the leaves on: where the operands of an op come to more
 * than a piece holds, the heaviest is put into memory. Each value is counted where it is read first. */
static void cut_into_pieces(sbp_fuser *z, sbp_value root, weight *weights) {
    struct sbp_grouping *g = z->grouping;
    int32_t count = 0;
    g->walk++;
    g->list[count++] = root;
    g->mark[root] = g->walk;
    for (int32_t i = 0; i < count; i++) {
        const sbp_op *op = def(z, g->list[i]);
        for (int32_t k = 0; k < op->operand_count; k++)
            if (op->operands[k] != SBP_NO_VALUE && is_computed(z, op->operands[k]) &&
                first_visit(z, op->operands[k]))
                g->list[count++] = op->operands[k];
    }
    for (int32_t i = 0; i < count; i++)
        g->list[i] = z->f->values[g->list[i]].op;
    qsort(g->list, (size_t)count, sizeof *g->list, compare_i32);
    for (int32_t i = 0; i < count; i++) { /* operands come before their readers */
        const sbp_op *op = &z->f->ops[g->list[i]];
        weight sum = {.ops = 1};
        bool cut = true;
        for (int32_t r = 0; r < op->result_count; r++)
            weights[op->results[r]] = (weight){0};
        while (cut) {
            sbp_value heaviest = SBP_NO_VALUE;
            sum = (weight){.ops = 1};
            for (int32_t k = 0; k < op->operand_count; k++) {
                sbp_value v = op->operands[k];
                if (v == SBP_NO_VALUE)
                    continue;
                if (!is_computed(z, v)) {
                    sum.leaves++;
                    continue;
                }
                sum.ops += weights[v].ops;
                sum.leaves += weights[v].leaves;
                if (can_be_cut(z, v) &&
                    (heaviest == SBP_NO_VALUE ||
                     weights[v].ops + weights[v].leaves * (PIECE_OPS / PIECE_LEAVES) >
                         weights[heaviest].ops + weights[heaviest].leaves * (PIECE_OPS / PIECE_LEAVES)))
                    heaviest = v;
            }
            cut = heaviest != SBP_NO_VALUE && (sum.ops > PIECE_OPS || sum.leaves > PIECE_LEAVES);
            if (cut)
                z->materialized[heaviest] = true;
        }
        weights[op->results[0]] = sum;
        for (int32_t k = 0; k < op->operand_count; k++) /* counted here, for good */
            if (op->operands[k] != SBP_NO_VALUE)
                weights[op->operands[k]] = (weight){0};
    }
}

/* In body order: what an earlier root had cut is in memory for the later ones. */
static void cut_large_roots(sbp_fuser *z) {
    weight *weights = z->grouping->weights;
    for (int32_t i = 0; i < z->f->op_count; i++) {
        sbp_value root = z->f->ops[i].results[0];
        int32_t ops;
        if (!is_root(z, root) && !is_partial(z, root))
            continue;
        int32_t leaves = root_leaves(z, root, MOST_OPS, &ops);
        if (ops <= MOST_OPS && leaves < SBP_ROWKERNEL_MAX_OPERANDS)
            continue;
        cut_into_pieces(z, root, weights);
    }
}

/* ---- what waits for what ------------------------------------------------------------------------------- */

/* A search for values that wait for what a group computes. */
typedef struct search {
    const sbp_fuser *z;
    int32_t group, pending;
    int32_t visits;  /* left */
    int32_t barrier; /* ops before it do not wait for the group */
} search;

/* The last op up to `op` that no group lies across: what is before it waits for nothing that is not. */
static int32_t barrier_before(const sbp_fuser *z, int32_t op) {
    int32_t *barrier = z->grouping->barrier, found = op;
    while (barrier[found] != found)
        found = barrier[found];
    while (barrier[op] != found) {
        int32_t next = barrier[op];
        barrier[op] = found;
        op = next;
    }
    return found;
}

static int32_t op_of(const sbp_fuser *z, sbp_value v) {
    return z->f->values[v].role == SBP_VALUE_OP ? z->f->values[v].op : -1;
}

static search begin_search(const sbp_fuser *z, int32_t group, int32_t visits) {
    z->grouping->walk++;
    return (search){.z = z,
                    .group = group,
                    .visits = visits,
                    .barrier = barrier_before(z, op_of(z, z->groups[group].roots[0]))};
}

static void ask(search *s, sbp_value v) {
    if (v == SBP_NO_VALUE)
        return;
    v = s->z->stage->defined_by[s->z->stage->base[v]];
    if (op_of(s->z, v) < s->barrier)
        return;
    if (first_visit(s->z, v))
        s->z->grouping->stack[s->pending++] = v;
}

static void ask_operands(search *s, const sbp_op *op) {
    for (int32_t k = 0; op && k < op->operand_count; k++)
        ask(s, op->operands[k]);
}

/* What a group waits for: all of its roots are computed together. */
static void ask_group(search *s, int32_t group) {
    group_info *info = &s->z->grouping->info[group];
    const sbp_row_group *g = &s->z->groups[group];
    if (info->mark == s->z->grouping->walk)
        return;
    info->mark = s->z->grouping->walk;
    for (int32_t i = 0; i < g->root_count; i++)
        ask_operands(s, def(s->z, g->roots[i]));
}

/* Whether something that was asked about waits for the group; also when that is not known after all visits.
 */
static bool waits(search *s) {
    while (s->pending > 0) {
        sbp_value v = s->z->grouping->stack[--s->pending];
        if (s->z->group_of[v] == s->group || --s->visits < 0)
            return true;
        if (s->z->group_of[v] >= 0)
            ask_group(s, s->z->group_of[v]);
        else
            ask_operands(s, def(s->z, v));
    }
    return false;
}

/* ---- groups -------------------------------------------------------------------------------------------- */

static bool reads(const sbp_fuser *z, int32_t group, sbp_value leaf) {
    const group_info *info = &z->grouping->info[group];
    for (int32_t i = 0; i < info->leaf_count; i++)
        if (info->leaves[i] == leaf)
            return true;
    return false;
}

/* Whether a value that a root of the group reads would be an operand that the kernel does not have yet. */
static bool is_new_operand(const sbp_fuser *z, int32_t group, sbp_value leaf) {
    return z->group_of[leaf] != group && !reads(z, group, leaf);
}

/* Operands of a group's kernel, with another root. */
static int32_t operands_with_another(const sbp_fuser *z, int32_t group) {
    return z->groups[group].root_count + z->grouping->info[group].leaf_count + 1;
}

/* Whether the kernel of a group can take another root: what it reads and computes are operands. */
static bool has_room(const sbp_fuser *z, int32_t group, int32_t leaf_count) {
    int32_t operands = operands_with_another(z, group);
    for (int32_t i = 0; i < leaf_count && operands <= SBP_ROWKERNEL_MAX_OPERANDS; i++)
        operands += is_new_operand(z, group, z->grouping->leaves[i]);
    return operands <= SBP_ROWKERNEL_MAX_OPERANDS;
}

static void add_candidate(sbp_fuser *z, int32_t group) {
    struct sbp_grouping *g = z->grouping;
    if (operands_with_another(z, group) <= SBP_ROWKERNEL_MAX_OPERANDS)
        SBP_PUSH(z->p->arena, g->candidates, g->candidate_count, g->candidate_capacity, group);
}

/* The latest groups with room that read the value; those without are forgotten on the way. */
static void add_readers(sbp_fuser *z, reader_list *readers) {
    struct sbp_grouping *g = z->grouping;
    int32_t begin = g->candidate_count, at = readers->count;
    while (at > 0 && g->candidate_count - begin < MOST_CANDIDATES)
        add_candidate(z, readers->list[--at]);
    for (int32_t i = g->candidate_count - 1; i >= begin; i--)
        readers->list[at++] = g->candidates[i];
    readers->count = at;
}

static int descending(const void *x, const void *y) {
    return compare_i32(y, x);
}

/* Groups that share a large value with a root, the latest first. */
static void find_candidates(sbp_fuser *z, int32_t leaf_count) {
    struct sbp_grouping *g = z->grouping;
    g->candidate_count = 0;
    for (int32_t i = 0; i < leaf_count; i++) {
        sbp_value leaf = g->leaves[i];
        if (!is_large(z, leaf))
            continue;
        if (z->group_of[leaf] >= 0 && !z->alone[z->groups[z->group_of[leaf]].roots[0]])
            add_candidate(z, z->group_of[leaf]);
        add_readers(z, &g->readers[leaf]);
    }
    int32_t kept = 0;
    if (g->candidate_count > 1)
        qsort(g->candidates, (size_t)g->candidate_count, sizeof *g->candidates, descending);
    for (int32_t i = 0; i < g->candidate_count; i++)
        if (kept == 0 || g->candidates[i] != g->candidates[kept - 1])
            g->candidates[kept++] = g->candidates[i];
    g->candidate_count = kept < MOST_CANDIDATES ? kept : MOST_CANDIDATES;
}

/* The group that a root joins: nothing it reads waits for what the group computes by way of other commands.
 * -1: none. */
static int32_t find_group(sbp_fuser *z, sbp_value root, int32_t leaf_count) {
    struct sbp_grouping *g = z->grouping;
    int32_t visits = MOST_VISITS;
    find_candidates(z, leaf_count);
    for (int32_t c = 0; c < g->candidate_count && visits > 0; c++) {
        int32_t group = g->candidates[c];
        if (rows_of(z, root) != rows_of(z, z->groups[group].roots[0]) ||
            heads_of(z, root) != g->info[group].heads || !has_room(z, group, leaf_count))
            continue;
        search s = begin_search(z, group, visits);
        for (int32_t i = 0; i < leaf_count; i++)
            if (z->group_of[g->leaves[i]] != group) /* else read from the kernel itself */
                ask(&s, g->leaves[i]);
        if (!waits(&s))
            return group;
        visits = s.visits;
    }
    return -1;
}

static int32_t new_group(sbp_fuser *z, sbp_value root) {
    struct sbp_grouping *g = z->grouping;
    if (z->group_count == z->group_capacity) {
        int32_t capacity = z->group_capacity;
        z->groups = sbp_array_grow(z->p->arena, z->groups, &capacity, sizeof *z->groups, z->group_count);
        capacity = z->group_capacity;
        z->kernels = sbp_array_grow(z->p->arena, z->kernels, &capacity, sizeof *z->kernels, z->group_count);
        g->info = sbp_array_grow(z->p->arena, g->info, &z->group_capacity, sizeof *g->info, z->group_count);
    }
    sbp_row_group *group = &z->groups[z->group_count];
    group_info *info = &g->info[z->group_count];
    group->root_count = info->leaf_count = 0; /* lists of the time before are used again */
    info->heads = heads_of(z, root);
    info->mark = 0;
    return z->group_count++;
}

static void join(sbp_fuser *z, sbp_value root, int32_t chosen, int32_t leaf_count) {
    struct sbp_grouping *g = z->grouping;
    sbp_row_group *group = &z->groups[chosen];
    group_info *info = &g->info[chosen];
    SBP_PUSH(z->p->arena, group->roots, group->root_count, group->root_capacity, root);
    int32_t first = op_of(z, group->roots[0]); /* the group lies across all ops from behind it up to root's */
    for (int32_t op = barrier_before(z, op_of(z, root)); op > first; op = barrier_before(z, op))
        g->barrier[op] = op - 1;
    for (int32_t i = 0; i < leaf_count; i++) {
        sbp_value leaf = g->leaves[i];
        if (!is_new_operand(z, chosen, leaf))
            continue;
        SBP_PUSH(z->p->arena, info->leaves, info->leaf_count, info->leaf_capacity, leaf);
        reader_list *readers = &g->readers[leaf];
        if (!z->alone[group->roots[0]] && is_large(z, leaf))
            SBP_PUSH(z->p->arena, readers->list, readers->count, readers->capacity, chosen);
    }
    z->group_of[root] = chosen;
}

void sbp_fuse_group(sbp_fuser *z) {
    struct sbp_grouping *g = z->grouping;
    cut_large_roots(z);
    z->group_count = 0;
    for (int32_t i = 0; i < z->f->op_count; i++)
        g->barrier[i] = i;
    for (int32_t v = 0; v < z->f->value_count; v++) {
        z->group_of[v] = -1;
        g->readers[v].count = 0;
    }
    for (int32_t i = 0; i < z->f->op_count; i++) {
        sbp_value root = z->f->ops[i].results[0];
        int32_t ops;
        if (!is_root(z, root) && !is_partial(z, root))
            continue;
        int32_t leaf_count = root_leaves(z, root, INT32_MAX - 1, &ops);
        int32_t chosen = z->alone[root] ? -1 : find_group(z, root, leaf_count);
        join(z, root, chosen >= 0 ? chosen : new_group(z, root), leaf_count);
    }
}

/* ---- results that take the place of an argument ---------------------------------------------------------
 */

/* Whether a command outside of the group reads the argument, and waits for the group. */
static bool readers_wait(const sbp_fuser *z, sbp_value argument, int32_t group) {
    search s = begin_search(z, group, INT32_MAX);
    for (int32_t i = 0; i < z->f->op_count; i++) {
        const sbp_op *op = &z->f->ops[i];
        bool reads_it = false;
        for (int32_t k = 0; k < op->operand_count && !row_wise_op(op); k++)
            reads_it |= op->operands[k] != SBP_NO_VALUE && z->stage->base[op->operands[k]] == argument;
        if (reads_it)
            ask_operands(&s, op);
    }
    for (int32_t g = 0; g < z->group_count; g++)
        if (g != group && reads(z, g, argument))
            ask_group(&s, g);
    return waits(&s);
}

bool sbp_fuse_separate(sbp_fuser *z) {
    bool changed = false;
    for (int32_t g = 0; g < z->group_count; g++)
        for (int32_t i = 0; z->groups[g].root_count > 1 && i < z->groups[g].root_count; i++) {
            sbp_value root = z->groups[g].roots[i], argument = z->grouping->replaces[root];
            if (argument == SBP_NO_VALUE || z->alone[root] || !readers_wait(z, argument, g))
                continue;
            z->alone[root] = changed = true;
        }
    return changed;
}

/* The first argument whose memory each stored value takes over. */
static void find_replaced(sbp_fuser *z) {
    const sbp_stage *s = z->stage;
    sbp_value *replaces = z->grouping->replaces;
    for (int32_t v = 0; v < z->f->value_count; v++)
        replaces[v] = SBP_NO_VALUE;
    for (int32_t i = 0; i < s->store_count; i++)
        for (int32_t a = 0; a < z->f->arg_count; a++) {
            sbp_value root = s->base[s->stores[i].value], argument = z->f->args[a];
            if (s->places[argument].ref == s->stores[i].to.ref && replaces[root] == SBP_NO_VALUE &&
                sbp_view_same_start(&s->places[argument], &s->stores[i].to))
                replaces[root] = argument;
        }
}

/* ---- values worth keeping in memory ---------------------------------------------------------------------
 */

/* Lists for each value the groups that compute it on the way to their roots. */
static void find_computed(sbp_fuser *z) {
    struct sbp_grouping *g = z->grouping;
    g->entry_count = 0;
    for (int32_t v = 0; v < z->f->value_count; v++)
        g->computed_by[v] = -1;
    for (int32_t group = 0; group < z->group_count; group++) {
        int32_t pending = 0, leaves = 0;
        g->walk++;
        for (int32_t i = 0; i < z->groups[group].root_count; i++)
            see_operands(z, def(z, z->groups[group].roots[i]), &pending, &leaves);
        while (pending > 0) {
            sbp_value v = g->stack[--pending];
            computed entry = {.group = group, .next = g->computed_by[v]};
            g->computed_by[v] = g->entry_count;
            SBP_PUSH(z->p->arena, g->entries, g->entry_count, g->entry_capacity, entry);
            see_operands(z, def(z, v), &pending, &leaves);
        }
    }
}

/* Large values that several kernels would compute, from two large values or more, or with many ops; in body
 * order, so that what was put into memory before counts as such. */
bool sbp_fuse_keep_shared(sbp_fuser *z) {
    struct sbp_grouping *g = z->grouping;
    const sbp_func *f = z->f;
    bool any = false;
    find_computed(z);
    for (int32_t i = 0; i < f->op_count; i++) {
        sbp_value v = f->ops[i].results[0];
        int32_t first = g->computed_by[v];
        if (first < 0 || g->entries[first].next < 0 || !is_large(z, v) || z->stage->base[v] != v ||
            f->values[v].type.dtype == SBP_BOOL)
            continue;
        int32_t ops, large = 0, count = root_leaves(z, v, INT32_MAX - 1, &ops);
        for (int32_t j = 0; j < count; j++)
            large += is_large(z, g->leaves[j]);
        if (large < 2 && ops <= MANY_OPS)
            continue;
        z->materialized[v] = any = true;
    }
    return any;
}

/* ---- the state -------------------------------------------------------------------------------------------
 */

void sbp_fuse_group_begin(sbp_fuser *z) {
    sbp_arena *arena = z->p->arena;
    int32_t n = z->f->value_count + 1;
    struct sbp_grouping *g = z->grouping = SBP_NEW(arena, struct sbp_grouping);
    g->mark = SBP_NEW_ARRAY(arena, int32_t, n);
    g->weights = SBP_NEW_ARRAY(arena, weight, n);
    g->stack = SBP_NEW_ARRAY(arena, sbp_value, n);
    g->list = SBP_NEW_ARRAY(arena, sbp_value, n);
    g->leaves = SBP_NEW_ARRAY(arena, sbp_value, n);
    g->replaces = SBP_NEW_ARRAY(arena, sbp_value, n);
    g->barrier = SBP_NEW_ARRAY(arena, int32_t, z->f->op_count + 1);
    g->readers = SBP_NEW_ARRAY(arena, reader_list, n);
    g->computed_by = SBP_NEW_ARRAY(arena, int32_t, n);
    z->group_of = SBP_NEW_ARRAY(arena, int32_t, n);
    find_replaced(z);
}
