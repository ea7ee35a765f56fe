/* parquet_meta.c: the footer: columns, and where they lie. */
#include <string.h>

#include "runtime/data/source/parquet.h"
#include "runtime/data/source/thrift.h"

enum {
    MOST_DEPTH = 64,
    CONVERTED_UTF8 = 0,
    CONVERTED_MAP = 1,
    CONVERTED_MAP_KEY_VALUE = 2,
    CONVERTED_LIST = 3
};
enum { REQUIRED = 0, OPTIONAL = 1, REPEATED = 2 };
/* Fields of LogicalType. */
enum {
    LOGICAL_STRING = 1,
    LOGICAL_MAP = 2,
    LOGICAL_LIST = 3,
    LOGICAL_ENUM = 4,
    LOGICAL_INTEGER = 10,
    LOGICAL_NULL = 11,
    LOGICAL_JSON = 12,
    LOGICAL_FLOAT16 = 15
};

static const int64_t most_footer_bytes = (int64_t)1 << 28;

/* A SchemaElement. */
typedef struct element {
    int64_t type, type_length, repetition, children, converted;
    int logical; /* 0: none */
    bool is_unsigned;
    const char *name;
} element;

typedef struct meta_reader {
    const sbp_source *source;
    sbp_diag *diag;
    sbp_arena *arena; /* of the source */
    sbp_thrift thrift;
    element *elements;
    int64_t element_count, next;
    int32_t leaf_capacity, other_count;
    sbp_parquet_meta *meta;
    const char *other; /* the first column that is left out */
} meta_reader;

static sbp_status damaged(const meta_reader *r, const char *what) {
    return sbp_source_damaged(r->source, r->diag, "%s", what);
}

/* ---- the schema ------------------------------------------------------------------------------------- */

static void read_logical(sbp_thrift *t, element *e) {
    for (sbp_thrift_field_head f = {0}; sbp_thrift_field(t, &f);) {
        e->logical = f.id;
        if (f.id != LOGICAL_INTEGER || f.type != SBP_THRIFT_STRUCT) {
            sbp_thrift_skip(t, f.type);
            continue;
        }
        for (sbp_thrift_field_head g = {0}; sbp_thrift_field(t, &g);) {
            e->is_unsigned |= g.id == 2 && g.type == SBP_THRIFT_FALSE;
            sbp_thrift_skip(t, g.type);
        }
    }
}

static void read_element(meta_reader *r, element *e) {
    sbp_thrift *t = &r->thrift;
    int64_t length;
    *e = (element){.type = -1, .converted = -1};
    for (sbp_thrift_field_head f = {0}; sbp_thrift_field(t, &f);) {
        if (f.id == 1)
            sbp_thrift_take(t, &f, SBP_THRIFT_I32, &e->type);
        else if (f.id == 2)
            sbp_thrift_take(t, &f, SBP_THRIFT_I32, &e->type_length);
        else if (f.id == 3)
            sbp_thrift_take(t, &f, SBP_THRIFT_I32, &e->repetition);
        else if (f.id == 4 && f.type == SBP_THRIFT_BINARY) {
            const char *name = sbp_thrift_binary(t, &length);
            e->name = sbp_arena_strndup(r->arena, name, (size_t)length);
            t->failed |= !sbp_is_utf8(name, length);
        } else if (f.id == 5)
            sbp_thrift_take(t, &f, SBP_THRIFT_I32, &e->children);
        else if (f.id == 6)
            sbp_thrift_take(t, &f, SBP_THRIFT_I32, &e->converted);
        else if (f.id == 10 && f.type == SBP_THRIFT_STRUCT)
            read_logical(t, e);
        else
            sbp_thrift_skip(t, f.type);
    }
    t->failed |= !e->name;
    e->is_unsigned |= e->converted >= 11 && e->converted <= 14; /* UINT_8 .. UINT_64 */
}

static sbp_parquet_kind kind_of(const element *e) {
    bool whole = (e->converted == -1 || (e->converted >= 11 && e->converted <= 18)) &&
                 (e->logical == 0 || e->logical == LOGICAL_INTEGER);
    bool text =
        (e->converted == -1 || e->converted == CONVERTED_UTF8 || e->converted == 4 || e->converted == 19) &&
        (e->logical == 0 || e->logical == LOGICAL_STRING || e->logical == LOGICAL_ENUM ||
         e->logical == LOGICAL_JSON);
    if (e->logical == LOGICAL_NULL)
        return SBP_PARQUET_NULLS;
    switch (e->type) {
    case SBP_PARQUET_BOOLEAN:
        return SBP_PARQUET_BOOLS;
    case SBP_PARQUET_INT32:
    case SBP_PARQUET_INT64:
        return !whole ? SBP_PARQUET_OTHER : e->is_unsigned ? SBP_PARQUET_WORDS : SBP_PARQUET_INTS;
    case SBP_PARQUET_FLOAT:
    case SBP_PARQUET_DOUBLE:
        return SBP_PARQUET_REALS;
    case SBP_PARQUET_BYTES:
        return !text                                   ? SBP_PARQUET_OTHER
               : e->converted == -1 && e->logical == 0 ? SBP_PARQUET_BYTE_TEXTS
                                                       : SBP_PARQUET_TEXTS;
    default:
        return e->type == SBP_PARQUET_FIXED && e->logical == LOGICAL_FLOAT16 && e->type_length == 2
                   ? SBP_PARQUET_HALVES
                   : SBP_PARQUET_OTHER;
    }
}

static sbp_status make_leaf(meta_reader *r, const element *e, const char *path, int def, int rep,
                            sbp_parquet_node *out) {
    sbp_parquet_meta *m = r->meta;
    out->kind = kind_of(e);
    if (e->type < 0 || e->type > SBP_PARQUET_FIXED || e->type_length < 0)
        return damaged(r, "a column has no known type");
    if (out->kind == SBP_PARQUET_OTHER) {
        r->other = r->other ? r->other : path;
        r->other_count++;
    }
    SBP_PUSH(r->arena, m->leaves, m->leaf_count, r->leaf_capacity,
             (sbp_parquet_leaf){.type = (sbp_parquet_type)e->type,
                                .type_length = e->type_length,
                                .max_def = def,
                                .max_rep = rep,
                                .used = out->kind != SBP_PARQUET_OTHER,
                                .path = path});
    return SBP_OK;
}

/* What has no column that can be read is left out as a whole. */
static void finish_node(const sbp_parquet_meta *m, sbp_parquet_node *node) {
    bool used = false;
    node->last = m->leaf_count;
    for (int32_t i = node->first; i < node->last; i++)
        used |= m->leaves[i].used;
    if (!used)
        node->kind = SBP_PARQUET_OTHER;
}

static sbp_status make_node(meta_reader *r, const char *above, int def, int rep, int depth,
                            sbp_parquet_node *out);

/* The next `count` elements as members of a struct. */
static sbp_status make_members(meta_reader *r, const char *path, int64_t count, int def, int rep, int depth,
                               sbp_parquet_node *out) {
    if (count < 0 || count > r->element_count - r->next)
        return damaged(r, "its schema is damaged");
    out->children = SBP_NEW_ARRAY(r->arena, sbp_parquet_node, count);
    out->child_count = (int32_t)count;
    for (int64_t i = 0; i < count; i++)
        SBP_TRY(make_node(r, path, def, rep, depth + 1, &out->children[i]));
    return SBP_OK;
}

/* What a list or map repeats: the element at r->next. Lists: one child, the item; maps: key and value. */
static sbp_status make_items(meta_reader *r, const element *list, const char *path, int rep, int depth,
                             sbp_parquet_node *out) {
    if (r->next >= r->element_count)
        return damaged(r, "its schema is damaged");
    const element *e = &r->elements[r->next];
    out->rep = rep + 1;
    out->item_def = out->def + 1;
    if (e->repetition != REPEATED)
        return damaged(r, "a list of its schema repeats nothing");
    if (out->kind == SBP_PARQUET_MAP) {
        r->next++;
        if (e->children != 2)
            return damaged(r, "a map of its schema has no keys and values");
        return make_members(r, path, 2, out->item_def, out->rep, depth, out);
    }
    out->children = SBP_NEW(r->arena, sbp_parquet_node);
    out->child_count = 1;
    const char *tuple = sbp_arena_printf(r->arena, "%s_tuple", list->name);
    bool is_item = e->children != 1 || strcmp(e->name, "array") == 0 || strcmp(e->name, tuple) == 0;
    r->next++;
    if (!is_item) /* three levels: the repeated group has the item in it */
        return make_node(r, path, out->item_def, out->rep, depth + 1, out->children);
    sbp_parquet_node *item = out->children;
    item->name = e->name;
    item->def = out->item_def;
    item->first = r->meta->leaf_count;
    item->kind = SBP_PARQUET_STRUCT;
    if (e->children > 0)
        SBP_TRY(make_members(r, path, e->children, out->item_def, out->rep, depth + 1, item));
    else
        SBP_TRY(make_leaf(r, e, path, out->item_def, out->rep, item));
    finish_node(r->meta, item);
    return SBP_OK;
}

/* A field that is repeated itself, without a list around it. */
static sbp_status make_repeated(meta_reader *r, const element *e, const char *path, int def, int rep,
                                int depth, sbp_parquet_node *out) {
    out->kind = SBP_PARQUET_LIST;
    out->def = def;
    out->item_def = def + 1;
    out->rep = rep + 1;
    out->children = SBP_NEW(r->arena, sbp_parquet_node);
    out->child_count = 1;
    out->children->name = e->name;
    out->children->def = def + 1;
    out->children->kind = SBP_PARQUET_STRUCT;
    out->children->first = r->meta->leaf_count;
    if (e->children > 0)
        SBP_TRY(make_members(r, path, e->children, def + 1, rep + 1, depth, out->children));
    else
        SBP_TRY(make_leaf(r, e, path, def + 1, rep + 1, out->children));
    finish_node(r->meta, out->children);
    return SBP_OK;
}

/* def, rep: levels of what it lies in. */
static sbp_status make_node(meta_reader *r, const char *above, int def, int rep, int depth,
                            sbp_parquet_node *out) {
    if (r->next >= r->element_count || depth > MOST_DEPTH)
        return damaged(r, "its schema is damaged, or nests too deep");
    const element *e = &r->elements[r->next++];
    const char *path = above ? sbp_arena_printf(r->arena, "%.200s.%.200s", above, e->name) : e->name;
    out->name = e->name;
    out->first = r->meta->leaf_count;
    out->def = def + (e->repetition == OPTIONAL);
    bool list = e->converted == CONVERTED_LIST || e->logical == LOGICAL_LIST;
    bool map =
        e->converted == CONVERTED_MAP || e->converted == CONVERTED_MAP_KEY_VALUE || e->logical == LOGICAL_MAP;
    if (e->repetition == REPEATED) {
        SBP_TRY(make_repeated(r, e, path, def, rep, depth, out));
    } else if (e->children == 0 && e->type >= 0) {
        SBP_TRY(make_leaf(r, e, path, out->def, rep, out));
    } else if ((list || map) && e->children == 1) {
        out->kind = list ? SBP_PARQUET_LIST : SBP_PARQUET_MAP;
        SBP_TRY(make_items(r, e, path, rep, depth, out));
    } else {
        out->kind = SBP_PARQUET_STRUCT;
        SBP_TRY(make_members(r, path, e->children, out->def, rep, depth, out));
    }
    finish_node(r->meta, out);
    return SBP_OK;
}

static sbp_status make_schema(meta_reader *r) {
    if (r->element_count < 1)
        return damaged(r, "it has no schema");
    sbp_parquet_node *root = &r->meta->root;
    root->kind = SBP_PARQUET_STRUCT;
    root->name = "";
    r->next = 1;
    SBP_TRY(make_members(r, NULL, r->elements[0].children, 0, 0, 0, root));
    if (r->next != r->element_count)
        return damaged(r, "its schema is damaged");
    finish_node(r->meta, root);
    if (root->kind == SBP_PARQUET_OTHER)
        return sbp_fail(r->diag, SBP_INPUT, "'%s' has no column of a supported type", r->source->path);
    if (r->other_count > 0)
        sbp_note(r->diag, "'%s': column '%s'%s of an unsupported type%s left out", r->source->path, r->other,
                 r->other_count > 1 ? " and others are" : " is",
                 r->other_count > 1 ? ": they are" : ": it is");
    return SBP_OK;
}

/* ---- row groups ------------------------------------------------------------------------------------- */

static void read_chunk_meta(sbp_thrift *t, sbp_parquet_chunk *chunk) {
    int64_t data = -1, dictionary = -1;
    *chunk = (sbp_parquet_chunk){.codec = -1, .values = -1, .bytes = -1};
    for (sbp_thrift_field_head f = {0}; sbp_thrift_field(t, &f);) {
        if (f.id == 4)
            sbp_thrift_take(t, &f, SBP_THRIFT_I32, &chunk->codec);
        else if (f.id == 5)
            sbp_thrift_take(t, &f, SBP_THRIFT_I64, &chunk->values);
        else if (f.id == 7)
            sbp_thrift_take(t, &f, SBP_THRIFT_I64, &chunk->bytes);
        else if (f.id == 9)
            sbp_thrift_take(t, &f, SBP_THRIFT_I64, &data);
        else if (f.id == 11)
            sbp_thrift_take(t, &f, SBP_THRIFT_I64, &dictionary);
        else
            sbp_thrift_skip(t, f.type);
    }
    chunk->offset = dictionary > 0 && dictionary < data ? dictionary : data;
}

static sbp_status read_chunk(meta_reader *r, const sbp_parquet_leaf *leaf, sbp_parquet_chunk *chunk) {
    static const char *const codecs[] = {"", "", "", "lzo", "brotli", "lz4 (hadoop)"};
    bool elsewhere = false, encrypted = false, there = false;
    for (sbp_thrift_field_head f = {0}; sbp_thrift_field(&r->thrift, &f);) {
        elsewhere |= f.id == 1;
        encrypted |= f.id == 8;
        if (f.id == 3 && f.type == SBP_THRIFT_STRUCT) {
            read_chunk_meta(&r->thrift, chunk);
            there = true;
        } else
            sbp_thrift_skip(&r->thrift, f.type);
    }
    if (r->thrift.failed)
        return damaged(r, "its footer ends in the middle");
    if (elsewhere || encrypted || !there)
        return sbp_fail(r->diag, SBP_INPUT, "'%s': column '%s' is %s, which is not read", r->source->path,
                        leaf->path, elsewhere ? "in another file" : "encrypted");
    if (chunk->codec == -1)
        return damaged(r, "a column does not say how it is compressed");
    if (chunk->codec < 0 || chunk->codec > 7 || (chunk->codec > 2 && chunk->codec < 6))
        return sbp_fail(
            r->diag, SBP_INPUT,
            "'%s': column '%s' is compressed by %s, which is not read: python3 -c \"import pyarrow.parquet "
            "as p; p.write_table(p.read_table('%s'), 'data.parquet', compression='zstd')\"",
            r->source->path, leaf->path,
            chunk->codec > 2 && chunk->codec < 6 ? codecs[chunk->codec] : "something unknown",
            r->source->path);
    if (chunk->offset < 0 || chunk->bytes < 0 || chunk->values < 0 || chunk->offset > r->source->size ||
        chunk->bytes > r->source->size - chunk->offset)
        return damaged(r, "a column lies beyond its end");
    return SBP_OK;
}

static sbp_status read_group(meta_reader *r, sbp_parquet_group *group) {
    sbp_thrift *t = &r->thrift;
    int type;
    group->chunks = SBP_NEW_ARRAY(r->arena, sbp_parquet_chunk, r->meta->leaf_count);
    group->rows = -1;
    bool there = false;
    for (sbp_thrift_field_head f = {0}; sbp_thrift_field(t, &f);) {
        if (f.id == 1 && f.type == SBP_THRIFT_LIST) {
            if (sbp_thrift_list(t, &type) != r->meta->leaf_count || type != SBP_THRIFT_STRUCT || t->failed)
                return damaged(r, "a row group has other columns than the schema");
            for (int32_t i = 0; i < r->meta->leaf_count; i++)
                SBP_TRY(read_chunk(r, &r->meta->leaves[i], &group->chunks[i]));
            there = true;
        } else if (f.id == 3)
            sbp_thrift_take(t, &f, SBP_THRIFT_I64, &group->rows);
        else
            sbp_thrift_skip(t, f.type);
    }
    return there && group->rows >= 0 ? SBP_OK : damaged(r, "a row group is damaged");
}

/* A row takes a node at least: what claims more of them than may be made is refused before the first is read.
 */
static sbp_status check_rows(const meta_reader *r) {
    int64_t rows = 0, most = sbp_source_most_made(r->source) / (int64_t)sizeof(sbp_json);
    for (int64_t i = 0; i < r->meta->group_count; i++)
        if (!sbp_add_i64(rows, r->meta->groups[i].rows, &rows) || rows > most)
            return sbp_fail(
                r->diag, SBP_INPUT,
                "'%s' (Parquet) says that it has %lld rows or more in %lld bytes, of which no more "
                "than %lld are read",
                r->source->path, (long long)rows, (long long)r->source->size, (long long)most);
    return SBP_OK;
}

static sbp_status read_footer(meta_reader *r) {
    sbp_thrift *t = &r->thrift;
    int type;
    for (sbp_thrift_field_head f = {0}; sbp_thrift_field(t, &f);) {
        if (f.id == 2 && f.type == SBP_THRIFT_LIST && !r->elements) {
            r->element_count = sbp_thrift_list(t, &type);
            r->elements = SBP_NEW_ARRAY(r->arena, element, r->element_count);
            for (int64_t i = 0; i < r->element_count && type == SBP_THRIFT_STRUCT; i++)
                read_element(r, &r->elements[i]);
            if (t->failed || type != SBP_THRIFT_STRUCT)
                return damaged(r, "its schema is damaged");
            SBP_TRY(make_schema(r));
        } else if (f.id == 3) {
            sbp_thrift_take(t, &f, SBP_THRIFT_I64, &r->meta->rows);
        } else if (f.id == 4 && f.type == SBP_THRIFT_LIST && r->elements && !r->meta->groups) {
            r->meta->group_count = sbp_thrift_list(t, &type);
            r->meta->groups = SBP_NEW_ARRAY(r->arena, sbp_parquet_group, r->meta->group_count);
            if (r->meta->group_count > 0 && type != SBP_THRIFT_STRUCT)
                return damaged(r, "its row groups are damaged");
            for (int64_t i = 0; i < r->meta->group_count; i++)
                SBP_TRY(read_group(r, &r->meta->groups[i]));
        } else
            sbp_thrift_skip(t, f.type);
    }
    if (t->failed || !r->elements || !r->meta->groups || r->meta->rows < 0)
        return damaged(r, "its footer is damaged");
    return check_rows(r);
}

sbp_status sbp_parquet_meta_read(const sbp_source *source, sbp_diag *diag, sbp_parquet_meta *out) {
    uint8_t tail[8];
    uint32_t length;
    if (source->size < 12)
        return sbp_source_damaged(source, diag, "it ends in the middle");
    SBP_TRY(sbp_source_pread(source, diag, tail, source->size - 8, 8));
    memcpy(&length, tail, sizeof length);
    if (memcmp(tail + 4, "PARE", 4) == 0)
        return sbp_fail(diag, SBP_INPUT, "'%s' is encrypted Parquet, which is not read", source->path);
    if (memcmp(tail + 4, "PAR1", 4) != 0 || length > source->size - 12 || length > most_footer_bytes)
        return sbp_source_damaged(source, diag, "its end is missing: was it downloaded as a whole?");
    uint8_t *footer = sbp_arena_alloc(source->arena, length);
    SBP_TRY(sbp_source_pread(source, diag, footer, source->size - 8 - (int64_t)length, length));
    *out = (sbp_parquet_meta){.rows = -1};
    meta_reader r = {.source = source,
                     .diag = diag,
                     .arena = source->arena,
                     .thrift = {.data = footer, .length = length},
                     .meta = out};
    return read_footer(&r);
}
