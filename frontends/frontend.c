/* frontend.c: finds out what a path holds, has it loaded, and applies what the options say about every
 * parameter: which are trained, how they are kept, and whether the weights fit. */
#include "frontends/source/loading.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "frontends/formats/files/hub_fetch.h"
#include "frontends/formats/files/named_path.h"
#include "frontends/formats/template/template_source.h"
#include "frontends/formats/tokenizer/tokenizer.h"
#include "frontends/formats/weights/onnx_file.h"
#include "frontends/formats/weights/recipe.h"
#include "frontends/lora/lora.h"

sbp_model_options sbp_model_options_for(sbp_dtype compute) {
    return (sbp_model_options){.compute = compute,
                               .residual = SBP_DTYPE_COUNT,
                               .trainable_storage = SBP_DTYPE_COUNT,
                               .frozen_storage = SBP_DTYPE_COUNT,
                               .lora_dropout = -1};
}

/* ---- which parameters are trained ------------------------------------------------------------------ */

static bool matches(const char *const *globs, int32_t count, const char *name) {
    for (int32_t i = 0; i < count; i++)
        if (fnmatch(globs[i], name, 0) == 0)
            return true;
    return false;
}

/* With adapters only what is of them. */
static bool may_be_trained(const sbp_loading *l, const sbp_param *param) {
    return !l->lora || param->owner == SBP_OF_ADAPTER;
}

static sbp_status check_globs(const sbp_loading *l, const char *option, const char *const *globs,
                              int32_t count) {
    const sbp_module *m = l->model->module;
    for (int32_t i = 0; i < count; i++) {
        const char *first = NULL, *last = "-";
        int32_t candidates = 0;
        bool any = false;
        for (int32_t p = 0; p < m->param_count; p++) {
            if (!may_be_trained(l, &m->params[p]))
                continue;
            last = sbp_loading_source_name(&m->params[p]);
            first = first ? first : last;
            candidates++;
            any |= fnmatch(globs[i], last, 0) == 0;
        }
        if (!any)
            return sbp_fail(l->diag, SBP_USAGE,
                            "%s '%s' matches none of the %d parameters%s (the first is %s, the last %s)",
                            option, globs[i], candidates, l->lora ? " of the adapter" : "",
                            first ? first : "-", last);
    }
    return SBP_OK;
}

enum { MOST_NAMED = 45 }; /* characters of names in a note: a line */

static void list_frozen(const sbp_loading *l) {
    const sbp_module *m = l->model->module;
    sbp_text names;
    sbp_text_init(&names, l->arena);
    int32_t count = 0, named = 0;
    for (int32_t p = 0; p < m->param_count; p++) {
        if (m->params[p].trainable)
            continue;
        const char *name = sbp_loading_source_name(&m->params[p]);
        if (count++ == named && (named == 0 || names.length + strlen(name) < MOST_NAMED)) {
            sbp_text_add(&names, "%s%s", named > 0 ? ", " : "", name);
            named++;
        }
    }
    if (count > 0 && !l->lora)
        sbp_note(l->diag, "%d of %d parameters are frozen: %s%s", count, m->param_count, names.data,
                 count > named ? ", .." : "");
    if (count == m->param_count)
        sbp_warn(l->diag, "no parameter is trained%s",
                 l->options->train_count + l->options->freeze_count > 0 ? ": --train and --freeze leave none"
                                                                        : "");
}

static sbp_status choose_trainable(sbp_loading *l) {
    const sbp_model_options *o = l->options;
    sbp_module *m = l->model->module;
    SBP_TRY(check_globs(l, "--train", o->train, o->train_count));
    SBP_TRY(check_globs(l, "--freeze", o->freeze, o->freeze_count));
    for (int32_t p = 0; p < m->param_count; p++)
        m->params[p].trainable = m->params[p].trainable && !o->frozen &&
                                 (o->train_count == 0 || matches(o->train, o->train_count,
                                                                 sbp_loading_source_name(&m->params[p]))) &&
                                 !matches(o->freeze, o->freeze_count, sbp_loading_source_name(&m->params[p]));
    for (int32_t f = 0; f < m->func_count; f++) {
        sbp_func *func = m->funcs[f];
        for (int32_t a = 0; a < func->arg_count; a++) {
            sbp_value_info *info = &func->values[func->args[a]];
            if (info->role == SBP_VALUE_PARAM && info->binding >= 0)
                info->trainable = m->params[info->binding].trainable;
        }
    }
    if (!o->frozen)
        list_frozen(l);
    return SBP_OK;
}

/* ---- weights --------------------------------------------------------------------------------------- */

/* The tensor of the open weights that a parameter is read from, and its recipe (NULL: as it is). NULL when
 * the weights do not have it. */
static const sbp_weight *source_of(const sbp_loading *l, const sbp_param *param, const sbp_recipe **recipe) {
    *recipe = param->recipe;
    if (l->adapter && param->owner == SBP_OF_ADAPTER)
        return sbp_weights_find(l->adapter, sbp_loading_source_name(param));
    if (!l->weights)
        return NULL;
    const sbp_weight *w = sbp_loading_find(l->weights, param);
    if (w || !param->stored)
        return w;
    *recipe = param->stored;
    return sbp_weights_find(l->weights, param->stored->source);
}

static void print_shape(sbp_text *text, int32_t rank, const int64_t *dim) {
    sbp_text_add(text, "[");
    for (int32_t d = 0; d < rank; d++)
        sbp_text_add(text, "%s%lld", d ? "," : "", (long long)dim[d]);
    sbp_text_add(text, "]");
}

static sbp_status check_tensor(const sbp_loading *l, const sbp_param *param) {
    const sbp_recipe *recipe;
    const sbp_weight *w = source_of(l, param, &recipe);
    if (w)
        SBP_TRY(sbp_weight_check(w, param->type.dtype, l->diag));
    int64_t dim[SBP_MAX_RANK];
    int32_t rank = recipe ? recipe->rank : param->type.rank;
    for (int32_t d = 0; d < rank; d++)
        dim[d] = recipe ? recipe->dim[d] : param->type.dim[d].n;
    if (!w || (w->rank == rank && memcmp(w->dim, dim, (size_t)rank * sizeof *dim) == 0))
        return SBP_OK;
    sbp_text text;
    sbp_text_init(&text, l->arena);
    print_shape(&text, w->rank, w->dim);
    sbp_text_add(&text, ", the model expects ");
    print_shape(&text, rank, dim);
    return sbp_fail(l->diag, SBP_INPUT, "%s: tensor '%s' is %s", w->path, w->name, text.data);
}

/* Tensors that no parameter is read from: said, since transformers drops them as well. */
static void list_unused(const sbp_loading *l) {
    const sbp_module *m = l->model->module;
    sbp_map used;
    sbp_map_init(&used, l->arena);
    for (int32_t p = 0; p < m->param_count; p++) {
        const sbp_recipe *recipe;
        const sbp_weight *w = source_of(l, &m->params[p], &recipe);
        if (w)
            sbp_weight_add_names(w, &used);
    }
    sbp_text names;
    sbp_text_init(&names, l->arena);
    int32_t count = 0;
    if (l->own_initializers) /* constants are there too, and the importer named those that nothing reads */
        return;
    for (int32_t i = 0; i < sbp_weights_count(l->weights); i++) {
        const char *name = sbp_weights_at(l->weights, i)->name;
        if (sbp_map_get(&used, name) < 0 && count++ < 8)
            sbp_text_add(&names, "%s%s", count > 1 ? ", " : "", name);
    }
    if (count > 0)
        sbp_note(l->diag, "'%s': %d tensors are not part of the %s: %s%s", l->model->weights, count,
                 l->model->carries ? "text model, and go unchanged into what is written" : "model",
                 names.data, count > 8 ? ", ..." : "");
}

static sbp_status check_weights(const sbp_loading *l) {
    const sbp_module *m = l->model->module;
    int32_t missing = 0;
    const char *first = NULL;
    if (!l->weights)
        return SBP_OK;
    for (int32_t p = 0; p < m->param_count; p++) {
        const sbp_recipe *recipe;
        SBP_TRY(check_tensor(l, &m->params[p]));
        if (!source_of(l, &m->params[p], &recipe) && !m->params[p].fresh && missing++ == 0)
            first = sbp_loading_source_name(&m->params[p]);
    }
    list_unused(l);
    if (missing > 0)
        sbp_warn(l->diag, "'%s' lacks %d of %d parameters, the first is %s: these weights cannot be run",
                 l->model->weights, missing, m->param_count, first);
    return SBP_OK;
}

/* What an adapter has must all have a place, and all of it must be there. */
static sbp_status check_adapter(const sbp_loading *l) {
    const sbp_module *m = l->model->module;
    sbp_map used;
    sbp_map_init(&used, l->arena);
    for (int32_t p = 0; l->adapter && p < m->param_count; p++) {
        if (m->params[p].owner != SBP_OF_ADAPTER)
            continue;
        const char *name = sbp_loading_source_name(&m->params[p]);
        SBP_TRY(check_tensor(l, &m->params[p]));
        bool head = m->params[p].fresh && m->params[p].merged; /* of an objective: it may begin now */
        if (!sbp_weights_find(l->adapter, name) && !head)
            return sbp_fail(l->diag, SBP_INPUT, "%s: no tensor '%s', which adapter_config.json asks for",
                            sbp_weights_path(l->adapter), name);
        sbp_map_set(&used, name, 1);
    }
    for (int32_t i = 0; l->adapter && i < sbp_weights_count(l->adapter); i++)
        if (sbp_map_get(&used, sbp_weights_at(l->adapter, i)->name) < 0)
            return sbp_lora_is_outside(l->model, sbp_weights_at(l->adapter, i)->name)
                       ? sbp_fail(l->diag, SBP_INPUT,
                                  "%s: tensor '%s' adapts another part of the multimodal model than its text "
                                  "model, which alone is trained: make the adapter with PEFT's "
                                  "exclude_modules=\"%s\"",
                                  sbp_weights_path(l->adapter), sbp_weights_at(l->adapter, i)->name,
                                  sbp_lora_outside(l->arena, l->model->text_part))
                       : sbp_fail(l->diag, SBP_INPUT,
                                  "%s: tensor '%s' belongs to nothing that adapter_config.json asks for",
                                  sbp_weights_path(l->adapter), sbp_weights_at(l->adapter, i)->name);
    return SBP_OK;
}

/* As the file keeps a parameter; `quantized`: where that is no float type. Without a file what config.json
 * says of one, else `unknown`. */
static sbp_dtype file_dtype(const sbp_loading *l, const sbp_param *param, sbp_dtype quantized,
                            sbp_dtype unknown) {
    const sbp_recipe *recipe;
    const sbp_weight *w = source_of(l, param, &recipe);
    if (w)
        return w->readable && !w->quantized && sbp_dtype_is_float(w->dtype) ? w->dtype : quantized;
    return l->published != SBP_DTYPE_COUNT ? l->published : unknown;
}

static sbp_dtype storage_of(const sbp_loading *l, const sbp_param *param) {
    const sbp_model_options *o = l->options;
    if (o->compute == SBP_F64)
        return SBP_F64;
    sbp_dtype asked = param->trainable ? o->trainable_storage : o->frozen_storage;
    if (asked != SBP_DTYPE_COUNT)
        return asked;
    if (param->trainable)
        return o->trainable_as_computed ? param->type.dtype : SBP_F32;
    if (param->owner == SBP_OF_ADAPTER) /* frozen for now, and written as it was */
        return SBP_F32;
    return file_dtype(l, param, o->compute, o->compute);
}

/* ---- blocks ----------------------------------------------------------------------------------------- */

/* Elements of a row of the results that log-probabilities are taken of. */
static int64_t count_logits(const sbp_func *f) {
    for (int32_t i = 0; i < f->op_count; i++)
        if (f->ops[i].code == SBP_OP_log_prob)
            return sbp_type_row_elems(&f->values[f->ops[i].operands[0]].type);
    return 0;
}

/* Per parameter, whether all that reads it are products, of experts too, which are not the
 * logits or a router. */
static bool *find_linear(const sbp_loading *l) {
    const sbp_module *m = l->model->module;
    bool *linear = SBP_NEW_ARRAY(l->arena, bool, m->param_count + 1),
         *other = SBP_NEW_ARRAY(l->arena, bool, m->param_count + 1);
    for (int32_t n = 0; n < m->func_count; n++) {
        const sbp_func *f = m->funcs[n];
        int64_t logits = count_logits(f);
        const bool *routes = sbp_loading_find_routers(l->arena, f);
        for (int32_t i = 0; i < f->op_count; i++)
            for (int32_t k = 0; k < f->ops[i].operand_count; k++) {
                const sbp_value_info *v =
                    f->ops[i].operands[k] >= 0 ? &f->values[f->ops[i].operands[k]] : NULL;
                if (!v || v->role != SBP_VALUE_PARAM || v->binding < 0)
                    continue;
                bool product = (f->ops[i].code == SBP_OP_expert_linear && k == 2) ||
                               (f->ops[i].code == SBP_OP_linear && k == 1 && !routes[f->ops[i].results[0]] &&
                                sbp_type_row_elems(&f->values[f->ops[i].results[0]].type) != logits);
                linear[v->binding] |= product;
                other[v->binding] |= !product;
            }
    }
    for (int32_t p = 0; p < m->param_count; p++)
        linear[p] &= !other[p];
    return linear;
}

/* Whole blocks in each matrix, so that an expert's are those of its matrix alone. */
static bool can_keep(const sbp_param *param, sbp_format format) {
    const sbp_type *t = &param->type;
    int64_t cols = t->rank > 0 ? t->dim[t->rank - 1].n : 0, matrices = t->rank == 3 ? t->dim[0].n : 1;
    return t->rank > 1 && cols > 0 && matrices > 0 &&
           sbp_format_fits(format, sbp_type_row_elems(t) / cols / matrices, cols);
}

/* The blocks of the file, where the parameter has them whole. */
static sbp_format format_in_file(const sbp_loading *l, const sbp_param *param) {
    const sbp_recipe *recipe;
    sbp_recipe blocks;
    const sbp_weight *w = source_of(l, param, &recipe);
    if (!l->weights)
        return param->format; /* as config.json says */
    if (!w || !w->format || !can_keep(param, w->format) ||
        (recipe && !sbp_recipe_of_blocks(recipe, sbp_format_of(w->format)->block, &blocks)))
        return SBP_FORMAT_NONE;
    return w->format;
}

/* Frozen weights that have no whole blocks stay as they are, which is said; SBP_USAGE where all are such. */
static sbp_status say_unfit(const sbp_loading *l, const sbp_param *first, int32_t unfit, int64_t elems,
                            int32_t kept) {
    const sbp_format_info *format = sbp_format_of(l->options->base_format);
    sbp_text shape;
    sbp_text_init(&shape, l->arena);
    sbp_type_print(&shape, &first->type);
    const char *where = sbp_arena_printf(
        l->arena, "'%s' is %s; whole blocks of %d elements are expected in a %s",
        sbp_loading_source_name(first), shape.data, format->block, format->whole_rows ? "row" : "matrix");
    if (kept == 0)
        return sbp_fail(l->diag, SBP_USAGE, "--base-dtype %s: no weight can be kept so: %s", format->name,
                        where);
    sbp_warn(l->diag, "--base-dtype %s: %d weights of %lld numbers stay as they are: %s", format->name, unfit,
             (long long)elems, where);
    return SBP_OK;
}

/* In which blocks frozen parameters are kept. */
static sbp_status choose_formats(const sbp_loading *l) {
    sbp_format asked = l->options->base_format;
    sbp_module *m = l->model->module;
    bool *linear = find_linear(l);
    const sbp_param *first = NULL;
    int32_t count = 0, unfit = 0;
    int64_t unfit_elems = 0;
    for (int32_t i = 0; i < m->param_count; i++) {
        sbp_param *param = &m->params[i];
        bool ask = asked && linear[i] && !param->trainable;
        if (ask && !can_keep(param, asked)) {
            unfit += 1;
            unfit_elems += sbp_type_row_elems(&param->type);
            first = first ? first : param;
            ask = false;
        }
        bool named = !linear[i] && l->numbers_config && !l->weights; /* which is no linear layer */
        param->format = param->trainable || named ? SBP_FORMAT_NONE : ask ? asked : format_in_file(l, param);
        count += ask;
    }
    if (first)
        SBP_TRY(say_unfit(l, first, unfit, unfit_elems, count));
    else if (asked && count == 0)
        return sbp_fail(l->diag, SBP_USAGE,
                        "--base-dtype %s: no weight of a linear layer is frozen; what is trained is kept in "
                        "--precision param",
                        sbp_format_of(asked)->name);
    return SBP_OK;
}

/* Where a weight that is codes in tensors of their own is not kept so, all are written as numbers
 * (runtime/run/weights_save.c), and config.json says nothing of codes. */
static void choose_config(sbp_loading *l) {
    const sbp_module *m = l->model->module;
    bool numbers = !l->weights;
    for (int32_t p = 0; p < m->param_count && l->numbers_config; p++) {
        const sbp_recipe *recipe;
        const sbp_weight *w = source_of(l, &m->params[p], &recipe);
        numbers |= w && w->codes && !m->params[p].format;
    }
    if (numbers && l->numbers_config)
        l->model->config = l->numbers_config;
}

/* ---- what is there --------------------------------------------------------------------------------- */

static bool has_suffix(const char *text, const char *suffix) {
    size_t n = strlen(text), m = strlen(suffix);
    return n > m && strcmp(text + n - m, suffix) == 0;
}

/* The last component of the path, without its suffix. */
const char *sbp_model_name(sbp_arena *arena, const char *path) {
    const char *id = sbp_hub_id_of(arena, path); /* else it were a commit's hash */
    path = id ? id : path;
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/')
        end--;
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/')
        begin--;
    char *name = sbp_arena_strndup(arena, path + begin, end - begin);
    static const char *const suffixes[] = {".json", ".onnx", ".gguf"};
    for (int32_t i = 0; i < SBP_COUNT(suffixes); i++)
        if (has_suffix(name, suffixes[i]))
            name[strlen(name) - strlen(suffixes[i])] = 0;
    return strspn(name, "./") == strlen(name) ? "model" : name;
}

static const char *directory_of(sbp_arena *arena, const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? sbp_arena_strndup(arena, path, (size_t)(slash - path) + (slash == path)) : ".";
}

/* What lies in a directory beside the model's own file. */
static void look_around(sbp_loading *l, const char *directory) {
    static const char *const weights[] = {"model.safetensors", "model.safetensors.index.json"};
    static const char *const not_read[] = {"consolidated.safetensors", "adapter_model.safetensors"};
    const char *other = NULL;
    for (int32_t i = 0; i < SBP_COUNT(weights); i++)
        if (!l->model->weights && sbp_file_exists(sbp_file_join(l->arena, directory, weights[i])))
            l->model->weights = directory;
    for (int32_t i = 0; i < SBP_COUNT(not_read); i++)
        if (!other && sbp_file_exists(sbp_file_join(l->arena, directory, not_read[i])))
            other = not_read[i];
    const char *pickle = l->model->weights ? NULL : sbp_weights_find_pickle(l->arena, directory);
    if (pickle)
        sbp_warn(l->diag, "%s: %s; without weights this plan can be looked at, or run with --weights", pickle,
                 sbp_weights_convert_pickle(l->arena, pickle));
    else if (other && !l->model->weights)
        sbp_warn(l->diag,
                 "'%s' has no model.safetensors, and its %s is not read: without weights this plan can be "
                 "looked at, or run with --weights (transformers' save_pretrained writes model.safetensors)",
                 directory, other);
    if (sbp_tokenizer_is_in(l->arena, directory))
        l->model->tokenizer = directory;
}

static sbp_status load_hf_file(sbp_loading *l, const sbp_json *config, const char *directory) {
    look_around(l, directory);
    SBP_TRY(sbp_loading_open_weights(l));
    return sbp_load_hf(l, config);
}

static sbp_status load_json(sbp_loading *l) {
    const sbp_json *root;
    SBP_TRY(sbp_onnx_file_read(l->arena, l->diag, l->path, &root));
    const char *directory = directory_of(l->arena, l->path);
    if (sbp_json_member(root, "graph")) {
        if (l->options->set_count > 0)
            return sbp_fail(l->diag, SBP_USAGE, "--set %s: an ONNX model has no config.json to override",
                            l->options->set[0]);
        if (sbp_tokenizer_is_in(l->arena, directory))
            l->model->tokenizer = directory;
        return sbp_load_onnx(l, root);
    }
    if (sbp_json_member(root, "model_type"))
        return load_hf_file(l, root, directory);
    return sbp_json_fail(l->diag, root,
                         "neither an ONNX model (field 'graph') nor a config.json (field 'model_type')");
}

static sbp_status load_directory(sbp_loading *l) {
    const char *config = sbp_file_join(l->arena, l->path, "config.json");
    if (!sbp_file_exists(config))
        return sbp_fail(l->diag, SBP_INPUT,
                        "'%s' has no config.json: a Hugging Face model directory is expected", l->path);
    const sbp_json *root;
    SBP_TRY(sbp_json_read(l->arena, l->diag, config, SBP_JSON_PYTHON, &root));
    return load_hf_file(l, root, l->path);
}

static sbp_status load_source(sbp_loading *l) {
    if (sbp_directory_exists(l->path))
        return load_directory(l);
    if (has_suffix(l->path, ".gguf"))
        return sbp_load_gguf(l);
    if (has_suffix(l->path, ".safetensors"))
        return sbp_fail(l->diag, SBP_INPUT,
                        "'%s' holds weights only: give the directory with its config.json", l->path);
    return load_json(l);
}

/* What a directory has of a chat template. */
static sbp_status read_template(sbp_loading *l) {
    const char *from = l->model->tokenizer;
    sbp_template_source source;
    if (l->model->chat_template || !from || !sbp_directory_exists(from))
        return SBP_OK;
    SBP_TRY(sbp_template_source_of_model(l->arena, l->diag, from, &source));
    l->model->chat_template = source.text;
    return SBP_OK;
}

/* ---- adapters ---------------------------------------------------------------------------------------- */

/* The model that an adapter is of: --base, or what its configuration names. */
static sbp_status find_base(sbp_loading *l, const char *adapter, const char *name) {
    const char *base = l->options->base ? l->options->base : name;
    if (!base || !*base)
        return sbp_fail(l->diag, SBP_INPUT,
                        "'%s': adapter_config.json names no base_model_name_or_path: give --base MODEL",
                        adapter);
    sbp_hub_name hub;
    l->path = sbp_hub_base(l->arena, l->options->base ? NULL : adapter, base);
    if (sbp_hub_parse(l->arena, base, &hub) && (!l->path || sbp_hub_id_of(l->arena, l->path)))
        return sbp_hub_model(l->arena, l->diag, base, true, &l->path);
    if (l->path)
        return SBP_OK;
    if (!l->options->base && sbp_named_repository(l->arena, adapter))
        return sbp_fail(l->diag, SBP_INPUT,
                        "'%s' came from the Hub, and its adapter_config.json names the model '%s', which is "
                        "neither a name of the Hub nor a folder of its own: give --base MODEL",
                        adapter, base);
    return sbp_fail(
        l->diag, SBP_INPUT,
        "'%s' is an adapter of '%s', which is neither a path%s nor a model in the cache of the Hub: "
        "give --base MODEL",
        adapter, base, base[0] != '/' && !l->options->base ? ", from there or from here," : "");
}

bool sbp_model_is_adapter(sbp_arena *arena, const char *path) {
    return sbp_directory_exists(path) && sbp_lora_is_adapter(arena, path);
}

/* What drops while an adapter goes on to be trained. */
static void choose_dropout(const sbp_loading *l, const char *adapter, sbp_lora_options *options) {
    double given = l->options->lora_dropout, configured = options->dropout;
    if (given >= 0)
        options->dropout = given;
    else if (l->options->head.no_dropout && configured > 0) {
        options->dropout = 0;
        sbp_note(l->diag,
                 "%s: its lora_dropout of %g is off, as in TRL with this objective; --lora dropout sets it",
                 adapter, configured);
    }
}

/* A path that is an adapter's stands for that of its base. */
static sbp_status find_adapter(sbp_loading *l) {
    const char *adapter = l->path, *name = NULL;
    l->lora = l->options->lora;
    if (!sbp_model_is_adapter(l->arena, adapter))
        return l->options->base ? sbp_fail(l->diag, SBP_USAGE, "--base: '%s' is not an adapter", adapter)
                                : SBP_OK;
    if (l->lora)
        return sbp_fail(l->diag, SBP_USAGE,
                        "--lora: '%s' is an adapter, and goes on with what its adapter_config.json says",
                        adapter);
    sbp_lora_options *options = SBP_NEW(l->arena, sbp_lora_options);
    SBP_TRY(sbp_lora_read(l->arena, l->diag, adapter, options, &name));
    choose_dropout(l, adapter, options);
    const char *file = sbp_file_join(l->arena, adapter, "adapter_model.safetensors"),
               *pickle = sbp_file_exists(file) ? NULL : sbp_weights_find_pickle(l->arena, adapter);
    if (pickle)
        return sbp_fail(l->diag, SBP_INPUT,
                        "%s: weights in pickle are not read, since loading them can run any code; peft "
                        "converts them: PeftModel.from_pretrained(..).save_pretrained(..)",
                        pickle);
    SBP_TRY(sbp_weights_open(l->arena, l->diag, file, &l->adapter));
    SBP_TRY(find_base(l, adapter, name));
    l->lora = options;
    l->model->adapter_weights = adapter;
    return SBP_OK;
}

/* What transformers can open, where that is known: an absolute path, or what the Hub calls it. */
static const char *lasting_name(const sbp_loading *l, const char *path) {
    if (l->options->base_name || l->origin)
        return l->options->base_name ? l->options->base_name : l->origin;
    if (!sbp_directory_exists(path))
        sbp_warn(l->diag,
                 "adapter_config.json will name the model '%s', which transformers cannot open: --base-name "
                 "NAME says the model that it was made of%s%s",
                 path, l->parent ? "; its file knows of " : "", l->parent ? l->parent : "");
    char resolved[4096];
    const char *whole = realpath(path, resolved) ? sbp_arena_strdup(l->arena, resolved) : path;
    const char *id = sbp_hub_id_of(l->arena, whole);
    return id ? id : whole;
}

/* The model that was loaded gets its adapters. */
static sbp_status adapt(sbp_loading *l) {
    sbp_lora_names targets;
    const char *adapter = l->model->adapter_weights;
    if (!l->lora)
        return SBP_OK;
    if (adapter && sbp_tokenizer_is_in(l->arena, adapter)) {
        l->model->tokenizer = adapter;
        l->model->chat_template = NULL;
    }
    SBP_TRY(sbp_lora_apply(l, l->lora, &targets));
    l->model->adapter =
        sbp_lora_config(l->arena, l->lora, &targets, lasting_name(l, l->path), l->model->text_part);
    return SBP_OK;
}

static sbp_status load_guarded(void *user) {
    sbp_loading *l = user;
    l->model->name = sbp_model_name(l->arena, l->path);
    l->model->weights = l->options->weights ? sbp_arena_strdup(l->arena, l->options->weights) : NULL;
    l->path = sbp_arena_strdup(l->arena, l->path);
    SBP_TRY(find_adapter(l));
    SBP_TRY(load_source(l));
    SBP_TRY(adapt(l));
    SBP_TRY(read_template(l));
    SBP_TRY(choose_trainable(l));
    SBP_TRY(check_weights(l));
    SBP_TRY(check_adapter(l));
    SBP_TRY(choose_formats(l));
    choose_config(l);
    sbp_module *m = l->model->module;
    for (int32_t p = 0; p < m->param_count; p++) {
        bool ours = m->params[p].owner == SBP_OF_ADAPTER;
        sbp_dtype published = l->published != SBP_DTYPE_COUNT ? l->published : SBP_F32;
        m->params[p].storage = m->params[p].format ? m->params[p].type.dtype : storage_of(l, &m->params[p]);
        m->params[p].source = ours ? SBP_F32 : file_dtype(l, &m->params[p], published, SBP_F32);
    }
    return sbp_module_verify(m, l->diag);
}

sbp_status sbp_model_load(sbp_arena *arena, sbp_diag *diag, const char *path,
                          const sbp_model_options *options, sbp_model *out) {
    *out = (sbp_model){.bos_id = -1, .pad_id = -1};
    if (options->compute != SBP_F64 && options->compute != SBP_F32 && options->compute != SBP_BF16)
        return sbp_fail(diag, SBP_USAGE, "models compute in f64, f32 or bf16, not in %s",
                        sbp_dtype_name(options->compute));
    sbp_dtype residual = options->residual == SBP_DTYPE_COUNT ? options->compute : options->residual;
    if (residual != options->compute && !(options->compute == SBP_BF16 && residual == SBP_F32))
        return sbp_fail(diag, SBP_USAGE, "the residual stream of a model that computes in %s cannot be %s",
                        sbp_dtype_name(options->compute), sbp_dtype_name(residual));
    sbp_loading l = {.arena = arena,
                     .diag = diag,
                     .residual = residual,
                     .path = path,
                     .options = options,
                     .model = out,
                     .published = SBP_DTYPE_COUNT};
    sbp_status status = sbp_guard(arena, diag, load_guarded, &l);
    sbp_weights_close(l.weights);
    sbp_weights_close(l.source);
    sbp_weights_close(l.adapter);
    return status;
}
