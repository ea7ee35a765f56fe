/* plan_meta.c: the section "meta" of a plan, by plan_meta.def. */
#include "ir/program/plan_meta.h"

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
#define TREE(object, kind, key, what)                                                                        \
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

static sbp_status read_tree(sbp_diag *diag, const sbp_json *object, sbp_json_kind kind, const char *key,
                            const sbp_json **out) {
    const sbp_json *member = sbp_json_member(object, key);
    *out = member && member->kind != SBP_JSON_NULL ? member : NULL;
    if (*out && member->kind != kind)
        return sbp_json_fail(diag, member, "expected %s, found %s", sbp_json_kind_name(kind),
                             sbp_json_kind_name(member->kind));
    return SBP_OK;
}

sbp_status sbp_plan_meta_read(sbp_diag *diag, const sbp_json *root, sbp_plan_meta *out) {
    static const sbp_json nothing = {.kind = SBP_JSON_OBJECT};
    const sbp_json *objects[] = {[TOP] = root, [MODEL] = &nothing};
    SBP_TRY(sbp_json_get_object(diag, root, "model", SBP_JSON_NULLABLE, &objects[MODEL]));
#define TEXT(object, key, what) SBP_TRY(read_text(diag, objects[object], #key, &out->key));
#define COUNT(object, key, most, what) SBP_TRY(read_count(diag, objects[object], #key, most, &out->key));
#define ID(object, key, what) SBP_TRY(read_id(diag, objects[object], #key, &out->key));
#define TREE(object, kind, key, what)                                                                        \
    SBP_TRY(read_tree(diag, objects[object], SBP_JSON_##kind, #key, &out->key));
#include "ir/program/plan_meta.def"
    return SBP_OK;
}
