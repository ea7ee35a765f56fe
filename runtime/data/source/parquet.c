/* parquet.c: rows of a Parquet file, put together from its columns by their levels (Dremel). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/data/source/parquet.h"

typedef struct parquet_state {
    sbp_parquet_meta meta;
    sbp_parquet_column *columns; /* [leaf_count] */
    int64_t group, left;         /* rows of the group before, that are to come */
} parquet_state;

typedef struct row_job {
    sbp_source *source;
    parquet_state *state;
    sbp_arena *arena;
    sbp_diag *diag;
    sbp_row_budget *budget;
} row_job;

static sbp_status parquet_open(sbp_source *s, sbp_diag *diag) {
    parquet_state *p = SBP_NEW(s->arena, parquet_state);
    SBP_TRY(sbp_parquet_meta_read(s, diag, &p->meta));
    p->columns = SBP_NEW_ARRAY(s->arena, sbp_parquet_column, p->meta.leaf_count);
    for (int32_t i = 0; i < p->meta.leaf_count; i++) {
        p->columns[i].source = s;
        p->columns[i].leaf = &p->meta.leaves[i];
    }
    s->state = p;
    return SBP_OK;
}

static void parquet_close(sbp_source *s) {
    parquet_state *p = s->state;
    for (int32_t i = 0; p && i < p->meta.leaf_count; i++)
        sbp_parquet_column_close(&p->columns[i]);
}

/* ---- values ----------------------------------------------------------------------------------------- */

/* IEEE binary16. */
static double half(const uint8_t *p) {
    unsigned bits = (unsigned)p[0] | (unsigned)p[1] << 8, exponent = bits >> 10 & 31, fraction = bits & 1023;
    double value = exponent == 0    ? ldexp(fraction, -24)
                   : exponent == 31 ? (fraction ? NAN : INFINITY)
                                    : ldexp(1024 + fraction, (int)exponent - 25);
    return bits >> 15 ? -value : value;
}

static sbp_status set_value(const row_job *job, const sbp_parquet_leaf *leaf, sbp_parquet_kind kind,
                            const sbp_parquet_value *value, sbp_json *out) {
    if (kind == SBP_PARQUET_TEXTS || kind == SBP_PARQUET_BYTE_TEXTS)
        SBP_TRY(sbp_row_budget_take(job->budget, job->diag, 0, value->length));
    switch (kind) {
    case SBP_PARQUET_BOOLS:
        sbp_json_set_bool(out, value->integer != 0);
        break;
    case SBP_PARQUET_INTS:
        sbp_json_set_int(out, value->integer);
        break;
    case SBP_PARQUET_WORDS:
        if (leaf->type == SBP_PARQUET_INT32)
            sbp_json_set_int(out, (int64_t)(uint32_t)value->integer);
        else if (value->integer >= 0)
            sbp_json_set_int(out, value->integer);
        else
            sbp_json_set_real(out, (double)(uint64_t)value->integer);
        break;
    case SBP_PARQUET_REALS:
        sbp_json_set_real(out, value->real);
        break;
    case SBP_PARQUET_HALVES:
        sbp_json_set_real(out, half(value->bytes));
        break;
    case SBP_PARQUET_TEXTS:
        sbp_json_set_text(job->arena, out, value->bytes, value->length);
        break;
    case SBP_PARQUET_BYTE_TEXTS:
        sbp_json_set_text(job->arena, out, value->bytes, value->length);
        if (out->kind == SBP_JSON_BYTES)
            out->kind = SBP_JSON_NULL;
        break;
    default:
        break;
    }
    return SBP_OK;
}

static sbp_status damaged(const row_job *job) {
    return sbp_source_damaged(job->source, job->diag, "row %lld: its columns do not fit together",
                              (long long)job->source->rows + 1);
}

static int32_t first_used(const row_job *job, const sbp_parquet_node *node) {
    int32_t i = node->first;
    while (i + 1 < node->last && !job->state->meta.leaves[i].used)
        i++;
    return i;
}

/* The levels of what comes next in a node, by its first column. */
static sbp_status peek(const row_job *job, const sbp_parquet_node *node, const sbp_parquet_column **out,
                       bool *end) {
    sbp_parquet_column *column = &job->state->columns[first_used(job, node)];
    SBP_TRY(sbp_parquet_column_peek(column, job->diag, end));
    *out = column;
    return SBP_OK;
}

/* One entry of every column below: of a node that is null or empty. */
static sbp_status skip(const row_job *job, const sbp_parquet_node *node, int def) {
    SBP_TRY(sbp_row_budget_take(job->budget, job->diag, 0, node->last - node->first)); /* it takes time */
    for (int32_t i = node->first; i < node->last; i++) {
        sbp_parquet_column *column = &job->state->columns[i];
        sbp_parquet_value value;
        bool end;
        if (!column->leaf->used)
            continue;
        SBP_TRY(sbp_parquet_column_peek(column, job->diag, &end));
        if (end || column->def >= def)
            return damaged(job);
        SBP_TRY(sbp_parquet_column_take(column, job->diag, &value));
    }
    return SBP_OK;
}

static sbp_status read_node(const row_job *job, const sbp_parquet_node *node, sbp_json *out);

static sbp_status read_struct(const row_job *job, const sbp_parquet_node *node, sbp_json *out) {
    sbp_growing members = {.arena = job->arena};
    for (int32_t i = 0; i < node->child_count; i++) {
        const sbp_parquet_node *child = &node->children[i];
        if (child->kind == SBP_PARQUET_OTHER)
            continue;
        sbp_json *member = sbp_growing_add(&members, out, child->name);
        if (child->unread) {
            member->kind = SBP_JSON_UNREAD;
            continue;
        }
        SBP_TRY(read_node(job, child, member));
        if (member->kind == SBP_JSON_NULL)
            sbp_growing_drop(&members);
    }
    sbp_growing_end(&members, SBP_JSON_OBJECT, out);
    return SBP_OK;
}

/* Key and value of a map, as a member where keys are strings. */
static sbp_status read_entry(const row_job *job, const sbp_parquet_node *node, const sbp_json *map,
                             sbp_growing *members) {
    sbp_json key = {0}, scratch = {0};
    if (node->children[0].kind != SBP_PARQUET_OTHER)
        SBP_TRY(read_node(job, &node->children[0], &key));
    bool named = key.kind == SBP_JSON_STRING && !memchr(key.string, 0, (size_t)key.count);
    sbp_json *value = named ? sbp_growing_add(members, map, key.string) : &scratch;
    if (node->children[1].kind != SBP_PARQUET_OTHER)
        SBP_TRY(read_node(job, &node->children[1], value));
    if (named && value->kind == SBP_JSON_NULL)
        sbp_growing_drop(members);
    return SBP_OK;
}

static sbp_status read_list(const row_job *job, const sbp_parquet_node *node, sbp_json *out) {
    sbp_growing items = {.arena = job->arena};
    const sbp_parquet_column *column;
    bool end, map = node->kind == SBP_PARQUET_MAP;
    SBP_TRY(peek(job, node, &column, &end));
    if (column->def < node->item_def)
        SBP_TRY(skip(job, node, node->item_def));
    else
        do {
            if (map)
                SBP_TRY(read_entry(job, node, out, &items));
            else if (node->children->kind != SBP_PARQUET_OTHER)
                SBP_TRY(read_node(job, node->children, sbp_growing_add(&items, out, NULL)));
            SBP_TRY(peek(job, node, &column, &end));
            if (items.count >= SBP_MOST_ITEMS)
                return damaged(job);
        } while (!end && column->rep >= node->rep);
    sbp_growing_end(&items, map ? SBP_JSON_OBJECT : SBP_JSON_ARRAY, out);
    return SBP_OK;
}

/* out is null before. */
static sbp_status read_node(const row_job *job, const sbp_parquet_node *node, sbp_json *out) {
    const sbp_parquet_column *column;
    sbp_parquet_value value;
    bool end;
    SBP_TRY(sbp_row_budget_take(job->budget, job->diag, 1, 0));
    SBP_TRY(peek(job, node, &column, &end));
    if (end)
        return damaged(job);
    if (column->def < node->def)
        return skip(job, node, node->def);
    if (node->kind == SBP_PARQUET_STRUCT)
        return read_struct(job, node, out);
    if (node->kind == SBP_PARQUET_LIST || node->kind == SBP_PARQUET_MAP)
        return read_list(job, node, out);
    SBP_TRY(sbp_parquet_column_take(&job->state->columns[node->first], job->diag, &value));
    return set_value(job, column->leaf, node->kind, &value, out);
}

/* ---- rows ------------------------------------------------------------------------------------------- */

/* That each column begins a new row, or, `at_end`, has no more. */
static sbp_status check_columns(const row_job *job, bool at_end) {
    for (int32_t i = 0; i < job->state->meta.leaf_count; i++) {
        sbp_parquet_column *column = &job->state->columns[i];
        bool end;
        if (!column->leaf->used)
            continue;
        SBP_TRY(sbp_parquet_column_peek(column, job->diag, &end));
        if (end != at_end || (!end && column->rep != 0))
            return damaged(job);
    }
    return SBP_OK;
}

static sbp_status next_group(const row_job *job) {
    parquet_state *p = job->state;
    const sbp_parquet_group *group = &p->meta.groups[p->group++];
    for (int32_t i = 0; i < p->meta.leaf_count; i++)
        sbp_parquet_column_begin(&p->columns[i], &group->chunks[i]);
    p->left = group->rows;
    return SBP_OK;
}

static sbp_status parquet_next(sbp_source *s, sbp_arena *arena, sbp_diag *diag, sbp_record *out, bool *end) {
    parquet_state *p = s->state;
    sbp_row_budget budget = sbp_row_budget_begin(s, arena);
    row_job job = {s, p, arena, diag, &budget};
    while (p->left == 0) {
        if (p->group > 0)
            SBP_TRY(check_columns(&job, true));
        *end = p->group == p->meta.group_count;
        if (*end)
            return SBP_OK;
        SBP_TRY(next_group(&job));
    }
    sbp_json *root = SBP_NEW(arena, sbp_json);
    out->where = root->key = sbp_arena_printf(arena, "%s: row %lld", s->path, (long long)s->rows + 1);
    SBP_TRY(check_columns(&job, false));
    SBP_TRY(sbp_row_budget_take(&budget, diag, 1 + p->meta.root.child_count, 0));
    SBP_TRY(read_struct(&job, &p->meta.root, root));
    sbp_row_budget_end(&budget);
    p->left--;
    out->tree = root;
    return SBP_OK;
}

static double parquet_share(const sbp_source *s) {
    const parquet_state *p = s->state;
    return p->meta.rows > 0 ? (double)s->rows / (double)p->meta.rows : 0;
}

static void parquet_select(sbp_source *s, bool (*wanted)(void *user, const char *name), void *user) {
    parquet_state *p = s->state;
    for (int32_t i = 0; i < p->meta.root.child_count; i++) {
        sbp_parquet_node *column = &p->meta.root.children[i];
        column->unread = !wanted(user, column->name);
        for (int32_t k = column->first; column->unread && k < column->last; k++)
            p->meta.leaves[k].used = false;
    }
}

const sbp_format sbp_format_parquet = {.select = parquet_select,
                                       .share = parquet_share,
                                       .name = "Parquet",
                                       .by_position = true,
                                       .open = parquet_open,
                                       .next = parquet_next,
                                       .close = parquet_close};
