/* hf_common.c: reading config.json, parameters, and the end of every model. */
#include "frontends/hf/hf.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "frontends/formats/weights/recipe.h"

enum { MAX_LAYERS = 1000 }; /* several times more than any model has; a bound for time and memory */

/* ---- config.json ---------------------------------------------------------------------------------- */

void sbp_hf_fail(sbp_hf *hf, const sbp_json *field, const char *format, ...) {
    if (hf->builder.status != SBP_OK)
        return;
    va_list args;
    va_start(args, format);
    char message[600];
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    hf->builder.status = sbp_json_fail(hf->diag, field ? field : hf->config, "%s", message);
}

static const sbp_json *member(sbp_hf *hf, const char *key) {
    if (hf->builder.status != SBP_OK)
        return NULL;
    sbp_map_set(&hf->read, sbp_arena_strdup(hf->arena, key), 1);
    return sbp_json_member(hf->config, key);
}

const sbp_json *sbp_hf_field(sbp_hf *hf, const char *key) {
    const sbp_json *field = member(hf, key);
    return field && field->kind != SBP_JSON_NULL ? field : NULL;
}

bool sbp_hf_is_null(sbp_hf *hf, const char *key) {
    const sbp_json *field = member(hf, key);
    return field && field->kind == SBP_JSON_NULL;
}

/* The field, or NULL for the fallback; a missing required field is an error. */
static const sbp_json *wanted(sbp_hf *hf, const char *key, bool required) {
    const sbp_json *field = sbp_hf_field(hf, key);
    if (!field && required)
        sbp_hf_fail(hf, NULL, "the field '%s' is missing", key);
    return field;
}

static int64_t integer(sbp_hf *hf, const char *key, int64_t fallback, int64_t least) {
    const sbp_json *field = wanted(hf, key, fallback == SBP_HF_REQUIRED);
    int64_t value = fallback == SBP_HF_REQUIRED ? 1 : fallback;
    if (field)
        hf->builder.status = sbp_json_as_i64(hf->diag, field, &value);
    if (hf->builder.status == SBP_OK && field && (value < least || value > INT32_MAX))
        sbp_hf_fail(hf, field, "%lld is out of range; a number from %lld to 2147483647 is expected",
                    (long long)value, (long long)least);
    return hf->builder.status == SBP_OK ? value : 1;
}

int64_t sbp_hf_size(sbp_hf *hf, const char *key, int64_t fallback) {
    return integer(hf, key, fallback, 1);
}

int64_t sbp_hf_count(sbp_hf *hf, const char *key, int64_t fallback) {
    return integer(hf, key, fallback, 0);
}

double sbp_hf_double(sbp_hf *hf, const char *key, double fallback) {
    const sbp_json *field = wanted(hf, key, false);
    double value = fallback;
    if (field)
        hf->builder.status = sbp_json_as_double(hf->diag, field, &value);
    return value;
}

bool sbp_hf_bool(sbp_hf *hf, const char *key, bool fallback) {
    const sbp_json *field = wanted(hf, key, false);
    bool value = fallback;
    if (field)
        hf->builder.status = sbp_json_as_bool(hf->diag, field, &value);
    return value;
}

const char *sbp_hf_string(sbp_hf *hf, const char *key, const char *fallback) {
    const sbp_json *field = wanted(hf, key, false);
    const char *value = fallback;
    if (field)
        hf->builder.status = sbp_json_as_string(hf->diag, field, &value);
    return value;
}

bool sbp_hf_tied(sbp_hf *hf, bool fallback) {
    const sbp_json *field = sbp_json_member(hf->wrapper, "tie_word_embeddings");
    bool inside = sbp_hf_bool(hf, "tie_word_embeddings", fallback), tied = inside;
    if (field && field->kind != SBP_JSON_NULL && hf->builder.status == SBP_OK)
        hf->builder.status = sbp_json_as_bool(hf->diag, field, &tied);
    return tied;
}

/* The list `key` with an item for each layer, or for each of the further ones behind the last, too. */
static const sbp_json *find_list(sbp_hf *hf, const char *key, int64_t layers, const char *items) {
    const sbp_json *list = sbp_hf_field(hf, key),
                   *more = sbp_json_member(hf->config, "num_nextn_predict_layers");
    int64_t further = 0;
    if (!list)
        return NULL;
    if (more && more->kind == SBP_JSON_INT)
        further = more->integer;
    if (list->kind == SBP_JSON_ARRAY && (list->count == layers || list->count == layers + further))
        return list;
    sbp_hf_fail(hf, list, "expected an array of %lld %s (num_hidden_layers), found %s of %lld",
                (long long)layers, items, sbp_json_kind_name(list->kind), (long long)list->count);
    return NULL;
}

const sbp_json *sbp_hf_layer_list(sbp_hf *hf, const char *key, int64_t layers) {
    return find_list(hf, key, layers, "items");
}

double sbp_hf_layer_number(sbp_hf *hf, const sbp_json *list, int64_t layer, double fallback) {
    double number = fallback;
    if (list && list->items[layer].kind != SBP_JSON_NULL && hf->builder.status == SBP_OK)
        hf->builder.status = sbp_json_as_double(hf->diag, &list->items[layer], &number);
    return number;
}

bool sbp_hf_layer_words(sbp_hf *hf, const char *key, int64_t layers, const char *no, const char *yes,
                        bool *is_yes) {
    const sbp_json *list = find_list(hf, key, layers, "layer types");
    if (!list)
        return false;
    for (int64_t i = 0; i < layers; i++) {
        const sbp_json *item = &list->items[i];
        const char *word = item->kind == SBP_JSON_STRING ? item->string : sbp_json_kind_name(item->kind);
        is_yes[i] = item->kind == SBP_JSON_STRING && strcmp(word, yes) == 0;
        if (!is_yes[i] && !(item->kind == SBP_JSON_STRING && strcmp(word, no) == 0))
            sbp_hf_fail(hf, item, "layer type %s is not supported; %s or %s expected", word, no, yes);
    }
    return true;
}

void sbp_hf_check_multiple(sbp_hf *hf, const char *count_key, int64_t count, const char *of_key, int64_t of) {
    if (of > 0 && count % of != 0)
        sbp_hf_fail(hf, sbp_hf_field(hf, of_key), "%s %lld is not a multiple of %s %lld", count_key,
                    (long long)count, of_key, (long long)of);
}

void sbp_hf_set_facts(sbp_hf *hf, int64_t vocab, int64_t layers, int64_t max_positions) {
    if (layers > MAX_LAYERS)
        sbp_hf_fail(hf, sbp_hf_field(hf, "num_hidden_layers"), "%lld layers; at most %d are expected",
                    (long long)layers, MAX_LAYERS);
    hf->model->vocab_size = vocab;
    hf->model->max_positions = max_positions;
    if (hf->model->pad_id >= 0 && hf->model->pad_id < vocab)
        hf->pad_row = hf->model->pad_id;
}

/* ---- graph ---------------------------------------------------------------------------------------- */

const char *sbp_hf_path(sbp_hf *hf, const char *format, ...) {
    va_list args;
    va_start(args, format);
    char text[200];
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return sbp_arena_strdup(hf->arena, text);
}

sbp_value sbp_hf_row(sbp_hf *hf, sbp_column_id column) {
    return sbp_build_row(&hf->builder, sbp_data_columns[column].name, SBP_I32, SBP_T);
}

/* Whether a path component of `name` is "norm" or ends with "_norm". */
static bool has_norm_component(const char *name) {
    for (const char *at = name; *at;) {
        size_t length = strcspn(at, ".");
        if (length >= 4 && memcmp(at + length - 4, "norm", 4) == 0 && (length == 4 || at[length - 5] == '_'))
            return true;
        at += length + (at[length] == '.');
    }
    return false;
}

/* Weight decay skips norms and biases, by name: what contains "bias", "layernorm" or "rmsnorm", or has a path
 * component that is "norm" or ends with "_norm" (transformers 5.23: Trainer.get_decay_parameter_names). */
static bool decays(sbp_hf *hf, const char *name) {
    char *lower = sbp_arena_strdup(hf->arena, name);
    for (char *c = lower; *c; c++)
        *c = (char)tolower((unsigned char)*c);
    return !strstr(lower, "bias") && !strstr(lower, "layernorm") && !strstr(lower, "rmsnorm") &&
           !has_norm_component(lower);
}

static void add_alias(sbp_hf *hf, sbp_param *param, const char *alias) {
    const char **aliases = SBP_NEW_ARRAY(hf->arena, const char *, param->alias_count + 1);
    for (int32_t i = 0; i < param->alias_count; i++)
        aliases[i] = param->aliases[i];
    aliases[param->alias_count++] = sbp_arena_strdup(hf->arena, alias);
    param->aliases = aliases;
}

/* `source` with each of the other beginnings, if it begins with `root` and a dot. */
static void add_spellings(sbp_hf *hf, sbp_param *param, const char *source, const char *root,
                          const char *const *others, int32_t count) {
    size_t n = strlen(root);
    for (int32_t i = 0; i < count && strncmp(source, root, n) == 0 && source[n] == '.'; i++)
        if (strcmp(root, others[i]) != 0)
            add_alias(hf, param, sbp_hf_path(hf, "%s%s", others[i], source + n));
}

/* The name without the prefix that the bare model (without head) does not have, and what it is called in
 * files of a text model and of multimodal ones: by the classes of transformers since 4.52, and before; and in
 * those of a bare multimodal model. */
static void add_other_names(sbp_hf *hf, sbp_param *param, const char *source) {
    static const char *const roots[] = {"model", "model.language_model", "language_model.model",
                                        "language_model"},
                             *const heads[] = {"lm_head", "language_model.lm_head"};
    size_t n = hf->base_prefix ? strlen(hf->base_prefix) : 0;
    if (n > 0 && !hf->wrapper && strncmp(source, hf->base_prefix, n) == 0)
        add_alias(hf, param, source + n);
    if (hf->within_multimodal) {
        add_spellings(hf, param, source, hf->root, roots, SBP_COUNT(roots));
        add_spellings(hf, param, source, hf->head_module, heads, SBP_COUNT(heads));
    }
}

const sbp_weight *sbp_hf_find_tensor(sbp_hf *hf, const char *name) {
    sbp_param param = {.name = name};
    add_other_names(hf, &param, name);
    return hf->weights ? sbp_loading_find(hf->weights, &param) : NULL;
}

bool sbp_hf_has_tensor(sbp_hf *hf, const char *name) {
    return sbp_hf_find_tensor(hf, name) != NULL;
}

static sbp_value build_param(sbp_hf *hf, const char *name, sbp_dtype dtype, sbp_init init, int32_t rank,
                             const int64_t *dims, const sbp_recipe *recipe) {
    if (hf->builder.status != SBP_OK)
        return SBP_NO_VALUE;
    int32_t number = sbp_module_find_param(hf->builder.module, name);
    if (number >= 0)
        return sbp_build_param(&hf->builder, number);
    sbp_type type = {.dtype = dtype, .rank = rank};
    for (int32_t d = 0; d < rank; d++)
        type.dim[d] = sbp_dim_const(dims[d]);
    sbp_param param = {.name = name,
                       .type = type,
                       .storage = dtype,
                       .trainable = true,
                       .decay = init == SBP_INIT_NORMAL && decays(hf, recipe ? recipe->source : name),
                       .init = init,
                       .init_std = init == SBP_INIT_NORMAL ? hf->initializer_range : 0,
                       .pad_row = -1,
                       .recipe = recipe};
    add_other_names(hf, &param, recipe ? recipe->source : name);
    number = sbp_module_add_param(hf->builder.module, &param);
    return hf->builder.status == SBP_OK ? sbp_build_param(&hf->builder, number) : SBP_NO_VALUE;
}

sbp_value sbp_hf_param(sbp_hf *hf, const char *name, sbp_init init, int32_t rank, const int64_t *dims) {
    return build_param(hf, name, hf->compute, init, rank, dims, NULL);
}

/* The parameter that a slice of `source` is. */
static sbp_value build_part(sbp_hf *hf, const char *name, const char *source, sbp_init init, int32_t rank,
                            const int64_t *source_dims, sbp_recipe_step slice) {
    sbp_recipe *recipe = SBP_NEW(hf->arena, sbp_recipe);
    sbp_recipe_step *step = SBP_NEW(hf->arena, sbp_recipe_step);
    int64_t dims[SBP_MAX_RANK];
    *step = slice;
    *recipe = (sbp_recipe){.source = sbp_arena_strdup(hf->arena, source),
                           .dtype = hf->published,
                           .rank = rank,
                           .steps = step,
                           .step_count = 1};
    for (int32_t d = 0; d < rank; d++) {
        recipe->dim[d] = source_dims[d];
        dims[d] = d == slice.axis ? slice.length * slice.heads : source_dims[d];
    }
    return build_param(hf, name, hf->compute, init, rank, dims, recipe);
}

sbp_value sbp_hf_part(sbp_hf *hf, const char *name, const char *source, sbp_init init, int32_t rank,
                      const int64_t *source_dims, int32_t axis, int64_t start, int64_t length) {
    return build_part(
        hf, name, source, init, rank, source_dims,
        (sbp_recipe_step){
            .op = SBP_RECIPE_SLICE, .axis = axis, .start = start, .length = length, .heads = 1});
}

sbp_value sbp_hf_part_of_heads(sbp_hf *hf, const char *name, const char *source, int64_t rows,
                               int64_t columns, int64_t heads, int64_t start, int64_t length) {
    return build_part(
        hf, name, source, SBP_INIT_NORMAL, 2, (int64_t[]){rows, columns},
        (sbp_recipe_step){.op = SBP_RECIPE_SLICE, .start = start, .length = length, .heads = heads});
}

sbp_value sbp_hf_turned_part(sbp_hf *hf, const char *name, const char *source, int32_t rank,
                             const int64_t *source_dims, int64_t start, int64_t length) {
    sbp_recipe *recipe = SBP_NEW(hf->arena, sbp_recipe);
    sbp_recipe_step *steps = SBP_NEW_ARRAY(hf->arena, sbp_recipe_step, 2);
    int64_t dims[SBP_MAX_RANK];
    steps[0] = (sbp_recipe_step){
        .op = SBP_RECIPE_SLICE, .axis = rank - 1, .start = start, .length = length, .heads = 1};
    steps[1] = (sbp_recipe_step){.op = SBP_RECIPE_TRANSPOSE};
    *recipe = (sbp_recipe){.source = sbp_arena_strdup(hf->arena, source),
                           .dtype = hf->published,
                           .rank = rank,
                           .steps = steps,
                           .step_count = 2};
    memcpy(recipe->dim, source_dims, (size_t)rank * sizeof *dims);
    memcpy(dims, source_dims, (size_t)rank * sizeof *dims);
    dims[rank - 1] = source_dims[rank - 2];
    dims[rank - 2] = length;
    return build_param(hf, name, hf->compute, SBP_INIT_NORMAL, rank, dims, recipe);
}

sbp_value sbp_hf_stack(sbp_hf *hf, const char *name, const char *source, int32_t rank, const int64_t *dims) {
    sbp_recipe *recipe = SBP_NEW(hf->arena, sbp_recipe);
    *recipe = (sbp_recipe){
        .source = sbp_arena_strdup(hf->arena, source), .dtype = hf->published, .rank = rank, .stacked = true};
    memcpy(recipe->dim, dims, (size_t)rank * sizeof *dims);
    return build_param(hf, name, hf->compute, SBP_INIT_NORMAL, rank, dims, recipe);
}

sbp_value sbp_hf_mxfp4(sbp_hf *hf, const char *name, int32_t rank, const int64_t *dims, bool frozen) {
    sbp_recipe *numbers = SBP_NEW(hf->arena, sbp_recipe), *blocks = SBP_NEW(hf->arena, sbp_recipe);
    sbp_recipe_step *step = SBP_NEW(hf->arena, sbp_recipe_step);
    *step = (sbp_recipe_step){.op = SBP_RECIPE_TRANSPOSE};
    *blocks = (sbp_recipe){.source = sbp_weights_pair_name(hf->arena, sbp_hf_path(hf, "%s_blocks", name)),
                           .rank = rank};
    memcpy(blocks->dim, dims, (size_t)rank * sizeof *dims);
    blocks->dtype = hf->published;
    *numbers = *blocks;
    numbers->source = sbp_arena_strdup(hf->arena, name);
    numbers->dim[rank - 1] = dims[rank - 2];
    numbers->dim[rank - 2] = dims[rank - 1];
    numbers->steps = step;
    numbers->step_count = 1;
    sbp_value w = build_param(hf, name, hf->compute, SBP_INIT_NORMAL, rank, dims, numbers);
    if (hf->builder.status == SBP_OK) {
        sbp_param *param = &hf->builder.module->params[hf->builder.func->values[w].binding];
        param->stored = blocks;
        param->trainable = !frozen;
        param->format = frozen ? SBP_FORMAT_MXFP4 : SBP_FORMAT_NONE;
    }
    return w;
}

sbp_value sbp_hf_vector(sbp_hf *hf, const char *name, sbp_init init, int64_t n) {
    return sbp_hf_param(hf, name, init, 1, (int64_t[]){n});
}

sbp_value sbp_hf_row_vector(sbp_hf *hf, const char *name, sbp_init init, int64_t n) {
    return build_param(hf, name, hf->residual, init, 1, (int64_t[]){n}, NULL);
}

sbp_value sbp_hf_buffer(sbp_hf *hf, const char *name, int32_t rank, const int64_t *dims) {
    sbp_dtype wide = hf->compute == SBP_F64 ? SBP_F64 : SBP_F32;
    sbp_value x = build_param(hf, name, wide, SBP_INIT_ZEROS, rank, dims, NULL);
    if (hf->builder.status == SBP_OK)
        hf->builder.module->params[hf->builder.func->values[x].binding].trainable = false;
    return x;
}

sbp_value sbp_hf_matrix(sbp_hf *hf, const char *name, int64_t rows, int64_t columns) {
    return sbp_hf_param(hf, name, SBP_INIT_NORMAL, 2, (int64_t[]){rows, columns});
}

sbp_value sbp_hf_table(sbp_hf *hf, const char *name, int64_t vocab, int64_t columns) {
    sbp_value table = sbp_hf_matrix(hf, name, vocab, columns);
    if (hf->builder.status == SBP_OK)
        hf->builder.module->params[hf->builder.func->values[table].binding].pad_row = (int32_t)hf->pad_row;
    return table;
}

/* Whether two tensors hold different values; piece by piece, since they are large. */
static bool differ(sbp_hf *hf, const sbp_weight *a, const sbp_weight *b) {
    enum { PIECE = 1 << 15 };
    double *x = SBP_NEW_ARRAY(hf->arena, double, 2 * PIECE), *y = x + PIECE;
    if (a->elems != b->elems)
        return true;
    for (int64_t at = 0; at < a->elems && hf->builder.status == SBP_OK; at += PIECE) {
        int64_t n = a->elems - at < PIECE ? a->elems - at : PIECE;
        hf->builder.status = sbp_weights_read(hf->weights, a, at, n, SBP_F64, x, hf->diag);
        if (hf->builder.status == SBP_OK)
            hf->builder.status = sbp_weights_read(hf->weights, b, at, n, SBP_F64, y, hf->diag);
        if (hf->builder.status == SBP_OK && memcmp(x, y, (size_t)n * sizeof *x) != 0)
            return true;
    }
    return false;
}

sbp_value sbp_hf_head_matrix(sbp_hf *hf, const char *name, sbp_value table, bool tied) {
    if (hf->builder.status != SBP_OK)
        return SBP_NO_VALUE;
    sbp_param *param = &hf->builder.module->params[hf->builder.func->values[table].binding];
    const sbp_weight *head = hf->weights ? sbp_weights_find(hf->weights, name) : NULL;
    const sbp_weight *embed = hf->weights ? sbp_loading_find(hf->weights, param) : NULL;
    hf->untied = tied && head && embed && !hf->names_only && differ(hf, head, embed);
    if (hf->untied)
        sbp_warn(hf->diag,
                 "config.json ties '%s' to '%s', but the weights hold both with different values: not tied",
                 name, param->name);
    if (tied && !hf->untied) {
        add_alias(hf, param, name);
        add_other_names(hf, param, name);
        return table;
    }
    return sbp_hf_matrix(hf, name, param->type.dim[0].n, param->type.dim[1].n);
}

void sbp_hf_class_name(sbp_hf *hf, const char *module, const char *class_module) {
    int32_t found = sbp_module_find_param(hf->builder.module, sbp_hf_path(hf, "%s.weight", module));
    if (hf->builder.status == SBP_OK && found >= 0)
        hf->builder.module->params[found].fused = sbp_hf_path(hf, "%s.weight", class_module);
}

void sbp_hf_decays(sbp_hf *hf, sbp_value param) {
    if (hf->builder.status == SBP_OK)
        hf->builder.module->params[hf->builder.func->values[param].binding].decay = true;
}

void sbp_hf_alias(sbp_hf *hf, sbp_value param, const char *alias) {
    if (hf->builder.status == SBP_OK)
        add_alias(hf, &hf->builder.module->params[hf->builder.func->values[param].binding], alias);
}

sbp_value sbp_hf_operand(sbp_hf *hf, sbp_value x) {
    return sbp_build_rounded(&hf->builder, x, hf->compute);
}

static sbp_value build_wide(sbp_hf *hf, const char *name, sbp_value x, sbp_value w) {
    return sbp_build(&hf->builder, SBP_OP_linear, name, (sbp_value[]){sbp_hf_operand(hf, x), w}, 2,
                     (sbp_attr[]){sbp_attr_bool("wide", true)}, 1, NULL);
}

sbp_value sbp_hf_linear_wide(sbp_hf *hf, const char *name, sbp_value x, const char *module, int64_t out,
                             int64_t in) {
    sbp_value w = sbp_hf_matrix(hf, sbp_hf_path(hf, "%s.weight", module), out, in);
    return build_wide(hf, name, x, w);
}

sbp_value sbp_hf_logits(sbp_hf *hf, sbp_value x, sbp_value matrix) {
    return build_wide(hf, "logits", x, matrix);
}

void sbp_hf_finish(sbp_hf *hf, sbp_value logits) {
    sbp_head_finish(&hf->builder, hf->head, logits);
}
