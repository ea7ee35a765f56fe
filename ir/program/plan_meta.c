/* plan_meta.c: the section "meta" of a plan, by plan_meta.def. */
#include "ir/program/plan_meta.h"

#include <string.h>

typedef enum meta_object { TOP, MODEL } meta_object;

static void write_id(sbp_json_writer *w, const char *key, int64_t id) {
    if (id >= 0)
        sbp_json_write_int(w, key, id);
    else
        sbp_json_write_null(w, key);
}

static void write_members(sbp_json_writer *w, const sbp_plan_meta *meta, const sbp_plan_trees *trees,
                          meta_object wanted) {
#define TEXT(object, key, what)                                                                              \
    if (object == wanted)                                                                                    \
        sbp_json_write_string(w, #key, meta->key);
#define COUNT(object, key, most, what)                                                                       \
    if (object == wanted)                                                                                    \
        sbp_json_write_int(w, #key, meta->key);
#define ID(object, key, what)                                                                                \
    if (object == wanted)                                                                                    \
        write_id(w, #key, meta->key);
#define TREE(object, shape, key, what)                                                                       \
    if (object == wanted)                                                                                    \
        sbp_json_write_raw(w, #key, trees->key ? trees->key : "null");
#include "ir/program/plan_meta.def"
}

void sbp_plan_meta_write(sbp_text *out, const sbp_plan_meta *meta, const sbp_plan_trees *trees) {
    sbp_json_writer w = sbp_json_writer_on(out);
    sbp_json_write_object(&w, NULL);
    write_members(&w, meta, trees, TOP);
    sbp_json_write_object(&w, "model");
    write_members(&w, meta, trees, MODEL);
    sbp_json_write_end(&w);
    sbp_json_write_end(&w);
    sbp_text_add(out, "\n");
}

static sbp_status read_text(sbp_diag *diag, const sbp_json *object, const char *key, const char **out) {
    *out = NULL;
    return sbp_json_get_string(diag, object, key, SBP_JSON_NULLABLE, out);
}

/* A number that may be added and multiplied: of a file, so that it is not to be trusted. */
static sbp_status read_count(sbp_diag *diag, const sbp_json *object, const char *key, int64_t most,
                             int64_t *out) {
    *out = 0;
    SBP_TRY(sbp_json_get_i64(diag, object, key, SBP_JSON_NULLABLE, out));
    if (*out < 0 || *out > most)
        return sbp_json_fail(diag, sbp_json_member(object, key), "expected 0 to %lld, found %lld",
                             (long long)most, (long long)*out);
    return SBP_OK;
}

static sbp_status read_id(sbp_diag *diag, const sbp_json *object, const char *key, int64_t *out) {
    *out = -1;
    return sbp_json_get_i64(diag, object, key, SBP_JSON_NULLABLE, out);
}

/* ---- shapes (plan_meta.def) -------------------------------------------------------------------------- */

static const char *end_of_shape(const char *shape) {
    int depth = 0;
    do {
        depth += (*shape == '{' || *shape == '[') - (*shape == '}' || *shape == ']');
        shape++;
    } while (depth > 0);
    return shape;
}

/* That of a member of an object with this shape; NULL: it may be what it likes. */
static const char *shape_of_member(const char *shape, const char *key) {
    size_t length = strlen(key);
    for (const char *at = shape + 1; *at != '}';) {
        size_t name = strcspn(at, ":");
        if ((name == length && memcmp(at, key, length) == 0) || *at == '*')
            return at + name + 1;
        at = end_of_shape(at + name + 1);
        at += *at == ',';
    }
    return NULL;
}

static sbp_status check_shape(sbp_diag *diag, const sbp_json *node, const char *shape) {
    static const char letters[] = "nisb[{";
    static const sbp_json_kind kinds[] = {SBP_JSON_REAL, SBP_JSON_INT,   SBP_JSON_STRING,
                                          SBP_JSON_BOOL, SBP_JSON_ARRAY, SBP_JSON_OBJECT};
    if (node->kind == SBP_JSON_NULL || *shape == '*')
        return SBP_OK;
    sbp_json_kind kind = kinds[strchr(letters, *shape) - letters];
    if (node->kind != kind && !(kind == SBP_JSON_REAL && node->kind == SBP_JSON_INT))
        return sbp_json_fail(diag, node, "expected %s, found %s", sbp_json_kind_name(kind),
                             sbp_json_kind_name(node->kind));
    for (int64_t i = 0; (*shape == '[' || *shape == '{') && i < node->count; i++) {
        const sbp_json *item = &node->items[i];
        const char *of_item = *shape == '[' ? shape + 1 : shape_of_member(shape, item->key);
        if (of_item)
            SBP_TRY(check_shape(diag, item, of_item));
    }
    return SBP_OK;
}

static sbp_status read_tree(sbp_diag *diag, const sbp_json *object, const char *shape, const char *key,
                            const sbp_json **out) {
    const sbp_json *member = sbp_json_member(object, key);
    *out = member && member->kind != SBP_JSON_NULL ? member : NULL;
    return *out ? check_shape(diag, member, shape) : SBP_OK;
}

sbp_status sbp_plan_meta_read(sbp_diag *diag, const sbp_json *root, sbp_plan_meta *out) {
    static const sbp_json nothing = {.kind = SBP_JSON_OBJECT};
    const sbp_json *objects[] = {[TOP] = root, [MODEL] = &nothing};
    SBP_TRY(sbp_json_get_object(diag, root, "model", SBP_JSON_NULLABLE, &objects[MODEL]));
#define TEXT(object, key, what) SBP_TRY(read_text(diag, objects[object], #key, &out->key));
#define COUNT(object, key, most, what) SBP_TRY(read_count(diag, objects[object], #key, most, &out->key));
#define ID(object, key, what) SBP_TRY(read_id(diag, objects[object], #key, &out->key));
#define TREE(object, shape, key, what) SBP_TRY(read_tree(diag, objects[object], shape, #key, &out->key));
#include "ir/program/plan_meta.def"
    return SBP_OK;
}
