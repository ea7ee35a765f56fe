/* hf_packed.c: quantization_config of compressed-tensors: weights in INT4 and INT8, packed (Kimi-K2, w4a16).
 * The names of tensors say where they are; what this says of them has to be what they are. Fields and their
 * defaults: compressed-tensors, quantization/quant_config.py, quant_scheme.py and quant_args.py. */
#include <string.h>

#include "frontends/formats/weights/recipe.h"
#include "frontends/hf/hf.h"
#include "frontends/hf/hf_load.h"
#include "ir/base/pattern.h"

enum { MOST_SCHEMES = 16 };

typedef struct reading {
    sbp_hf *hf;
    sbp_packed_scheme schemes[MOST_SCHEMES];
    int32_t count;
} reading;

static bool is_nothing(const sbp_json *field) {
    return !field || field->kind == SBP_JSON_NULL || (field->kind == SBP_JSON_BOOL && !field->boolean) ||
           ((field->kind == SBP_JSON_OBJECT || field->kind == SBP_JSON_ARRAY) && field->count == 0);
}

/* "num_bits: 3", with the place of the field before it. */
static void refuse(sbp_hf *hf, const sbp_json *field, const char *expected) {
    sbp_text value;
    sbp_text_init(&value, hf->arena);
    sbp_json_add_value(&value, field);
    sbp_hf_fail(hf, field, "%.200s: of weights in codes of compressed-tensors %s", value.data, expected);
}

/* Fields that change nothing here, and those that have to be absent, null, false or empty. */
static void check_fields(sbp_hf *hf, const sbp_json *object, const char *harmless, const char *read) {
    for (int64_t i = 0; i < object->count && hf->builder.status == SBP_OK; i++) {
        const sbp_json *field = &object->items[i];
        if (!sbp_hf_is_listed(harmless, field->key) && !sbp_hf_is_listed(read, field->key) &&
            !is_nothing(field))
            refuse(hf, field, "this field is not read, which may change what is computed");
    }
}

static bool is_text(const sbp_json *field, const char *text) {
    return field && field->kind == SBP_JSON_STRING && strcmp(field->string, text) == 0;
}

/* One of the texts, which have blanks between them; absent and null are as well. */
static void check_text(sbp_hf *hf, const sbp_json *object, const char *key, const char *texts,
                       const char *expected) {
    const sbp_json *field = sbp_json_member(object, key);
    if (!is_nothing(field) && !(field->kind == SBP_JSON_STRING && sbp_hf_is_listed(texts, field->string)))
        refuse(hf, field, expected);
}

static void read_group(reading *r, const sbp_json *group) {
    sbp_hf *hf = r->hf;
    const sbp_json *weights = sbp_json_member(group, "weights"), *strategy;
    sbp_packed_scheme scheme = {.symmetric = true, .bits = 8};
    int64_t size = 0;
    if (group->kind != SBP_JSON_OBJECT || !weights || weights->kind != SBP_JSON_OBJECT) {
        refuse(hf, group, "a group is expected to say what its \"weights\" are");
        return;
    }
    check_fields(hf, group, "targets", "weights format");
    check_text(hf, group, "format", "pack-quantized", "\"pack-quantized\" is read");
    check_fields(hf, weights, "observer observer_kwargs scale_dtype zp_dtype",
                 "num_bits type strategy group_size symmetric actorder");
    check_text(hf, weights, "type", "int", "\"int\" is read");
    check_text(hf, weights, "strategy", "group channel", "\"group\" and \"channel\" are read");
    check_text(hf, weights, "actorder", "weight static", "null, \"weight\" and \"static\" are read");
    if (hf->builder.status != SBP_OK)
        return;
    hf->builder.status = sbp_json_get_i64(hf->diag, weights, "num_bits", SBP_JSON_OPTIONAL, &scheme.bits);
    if (hf->builder.status == SBP_OK)
        hf->builder.status =
            sbp_json_get_bool(hf->diag, weights, "symmetric", SBP_JSON_OPTIONAL, &scheme.symmetric);
    if (hf->builder.status == SBP_OK)
        hf->builder.status = sbp_json_get_i64(hf->diag, weights, "group_size", SBP_JSON_NULLABLE, &size);
    if (hf->builder.status != SBP_OK)
        return;
    strategy = sbp_json_member(weights, "strategy");
    bool groups = is_text(strategy, "group") || (is_nothing(strategy) && size > 0),
         channels = is_text(strategy, "channel") || (is_nothing(strategy) && size == -1);
    if (scheme.bits != 4 && scheme.bits != 8)
        refuse(hf, sbp_json_member(weights, "num_bits"), "4 and 8 are read");
    else if (groups && (size < 1 || (size & (size - 1)) != 0))
        refuse(hf, sbp_json_member(weights, "group_size") ? sbp_json_member(weights, "group_size") : weights,
               "a group_size of 32, 64, 128 or another power of two is read");
    else if (!groups && !channels)
        refuse(hf, weights, "a strategy of \"group\" or \"channel\" is read");
    scheme.group = groups ? size : 0;
    if (r->count < MOST_SCHEMES)
        r->schemes[r->count++] = scheme;
    else
        refuse(hf, group, "16 groups at most are read");
}

void sbp_hf_read_packed(sbp_hf *hf, const sbp_json *quantization) {
    reading r = {.hf = hf};
    const sbp_json *groups = sbp_json_member(quantization, "config_groups");
    (void)sbp_hf_field(hf, "quantization_config");
    if (!is_text(sbp_json_member(quantization, "format"), "pack-quantized")) {
        const sbp_json *format = sbp_json_member(quantization, "format");
        refuse(hf, format ? format : quantization, "those of the format \"pack-quantized\" are read");
    }
    check_fields(hf, quantization,
                 "ignore quantization_status global_compression_ratio version run_compressed",
                 "quant_method format config_groups sparsity_config");
    const sbp_json *sparsity = sbp_json_member(quantization, "sparsity_config");
    if (!is_nothing(sparsity) && !is_text(sbp_json_member(sparsity, "format"), "dense"))
        refuse(hf, sparsity, "such as are not sparse are read");
    if (!groups || groups->kind != SBP_JSON_OBJECT || groups->count == 0)
        refuse(hf, groups ? groups : quantization, "\"config_groups\" are expected");
    for (int64_t i = 0; hf->builder.status == SBP_OK && i < groups->count; i++)
        read_group(&r, &groups->items[i]);
    hf->packed = true;
    hf->packing = quantization;
    if (hf->weights && hf->builder.status == SBP_OK)
        hf->builder.status =
            sbp_weights_check_packed(hf->weights, r.schemes, r.count, quantization, hf->diag);
}

/* ---- without weights --------------------------------------------------------------------------------- */

/* Whether a list names a module: whole, as a pattern behind "re:", or as the class of all linear layers. */
static bool names_module(sbp_hf *hf, const sbp_json *list, const char *module) {
    bool found = false;
    for (int64_t i = 0; list && list->kind == SBP_JSON_ARRAY && i < list->count && !found; i++) {
        const char *item = list->items[i].kind == SBP_JSON_STRING ? list->items[i].string : "";
        if (strncmp(item, "re:", 3) != 0)
            found = strcmp(item, module) == 0 || strcmp(item, "Linear") == 0;
        else if (hf->builder.status == SBP_OK)
            hf->builder.status = sbp_pattern_match(hf->arena, hf->diag, "quantization_config", item + 3,
                                                   SBP_PATTERN_BEGIN, module, &found);
    }
    return found;
}

/* "model.layers.0.mlp.experts.0.up_proj", of the first one where a parameter is of all experts. */
static const char *module_of(sbp_hf *hf, const sbp_param *param) {
    static const char end[] = ".weight";
    char *name = sbp_arena_strdup(hf->arena, sbp_loading_source_name(param)), *star;
    size_t length = strlen(name);
    while ((star = strchr(name, '*')))
        *star = '0';
    if (length >= sizeof end && strcmp(name + length - (sizeof end - 1), end) == 0)
        name[length - (sizeof end - 1)] = 0;
    return name;
}

void sbp_hf_plan_packed(sbp_hf *hf) {
    const sbp_json *groups = sbp_json_member(hf->packing, "config_groups");
    for (int32_t p = 0; p < hf->builder.module->param_count; p++) {
        sbp_param *param = &hf->builder.module->params[p];
        const sbp_type *t = &param->type;
        const char *module = module_of(hf, param);
        sbp_recipe blocks;
        if (t->rank < 2 || names_module(hf, sbp_json_member(hf->packing, "ignore"), module))
            continue;
        for (int64_t g = 0; g < groups->count && !param->format; g++) {
            reading r = {.hf = hf};
            if (!names_module(hf, sbp_json_member(&groups->items[g], "targets"), module))
                continue;
            read_group(&r, &groups->items[g]);
            sbp_format format = sbp_packed_format(&r.schemes[0], hf->published, t->dim[t->rank - 1].n);
            if (format && (!param->recipe ||
                           sbp_recipe_of_blocks(param->recipe, sbp_format_of(format)->block, &blocks)))
                param->format = format;
        }
    }
}
