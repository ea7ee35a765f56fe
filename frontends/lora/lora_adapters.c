/* lora_adapters.c: which weights get an adapter, by the rules of PEFT's tuners_utils.py
 * (check_target_module_exists) and other.py (_set_trainable, get_pattern_key), and what becomes
 * of the module. */
#include "frontends/lora/lora.h"

#include <math.h>
#include <string.h>

#include "frontends/formats/weights/recipe.h"
#include "ir/base/pattern.h"

#define PREFIX "base_model.model."

/* A weight that something is multiplied by. */
typedef struct site {
    int32_t param;
    bool in_out; /* the matrix is [in, out] */
    const char
        *module; /* "model.layers.0.self_attn.q_proj"; of experts "model.layers.0.mlp.experts.down_proj" */
    const char
        *tensor;      /* of experts and routers: the name by which alone it is a target; NULL: as a module */
    bool head, taken; /* taken: a target */
    bool experts;     /* a matrix for each */
} site;

typedef struct tuning {
    sbp_loading *l;
    sbp_module *m;
    const sbp_lora_options *o;
    site *sites;
    int32_t site_count, site_capacity;
    int32_t base_params; /* those of the model */
    bool *saved;         /* per parameter of the model: trained whole */
    bool *gathered;      /* likewise: rows of it are looked up */
    bool *target_used;   /* per name of the targets */
} tuning;

/* ---- names ------------------------------------------------------------------------------------------- */

static const char *module_of(sbp_arena *arena, const char *source) {
    static const char suffix[] = ".weight";
    size_t n = strlen(source), m = sizeof suffix - 1;
    return n > m && strcmp(source + n - m, suffix) == 0 ? sbp_arena_strndup(arena, source, n - m) : source;
}

/* A name in files as the class of the model has it. */
static const char *in_class(const tuning *t, const char *name) {
    const sbp_model *model = t->l->model;
    for (int32_t i = 0; i < SBP_COUNT(model->prefix) && model->prefix[i].file; i++) {
        size_t n = strlen(model->prefix[i].file);
        if (strncmp(name, model->prefix[i].file, n) == 0)
            return sbp_arena_printf(t->l->arena, "%s%s", model->prefix[i].in_class, name + n);
    }
    return name;
}

/* "a.b.c" ends with "b.c", with a dot before it or as a whole. */
static bool ends_with(const char *module, const char *name) {
    size_t n = strlen(module), m = strlen(name);
    return n >= m && strcmp(module + n - m, name) == 0 && (n == m || module[n - m - 1] == '.');
}

/* The first name that a module goes by, *at; -1: none. */
static sbp_status find_name(const tuning *t, const char *what, const sbp_lora_names *names,
                            const char *module, int32_t *at) {
    bool matches = false;
    *at = -1;
    if (names->pattern)
        SBP_TRY(sbp_pattern_match(t->l->arena, t->l->diag, what, names->names[0], SBP_PATTERN_WHOLE, module,
                                  &matches));
    for (int32_t i = 0; i < names->count && *at < 0; i++)
        if (names->pattern ? matches : ends_with(module, names->names[i]))
            *at = i;
    return SBP_OK;
}

static sbp_status number_of(const tuning *t, const char *what, const sbp_lora_number *numbers, int32_t count,
                            const char *module, double *value) {
    for (int32_t i = 0; i < count; i++) {
        bool matches;
        /* As PEFT writes it: its first group is counted by what the pattern refers to. */
        const char *pattern = sbp_arena_printf(t->l->arena, "(.*\\.)?(%s)$", numbers[i].pattern);
        SBP_TRY(
            sbp_pattern_match(t->l->arena, t->l->diag, what, pattern, SBP_PATTERN_BEGIN, module, &matches));
        if (matches) {
            *value = numbers[i].value;
            return SBP_OK;
        }
    }
    return SBP_OK;
}

/* ---- what the graph multiplies by --------------------------------------------------------------------- */

static void add_site(tuning *t, int32_t param, bool in_out, bool experts, bool router) {
    for (int32_t i = 0; i < t->site_count; i++)
        if (t->sites[i].param == param)
            return;
    const char *source = sbp_loading_source_name(&t->m->params[param]);
    site s = {.param = param, .in_out = in_out, .experts = experts};
    if (t->m->params[param].fused)
        source = t->m->params[param].fused;
    if (experts || router)
        s.tensor = source;
    s.module = in_class(t, module_of(t->l->arena, source));
    SBP_PUSH(t->l->arena, t->sites, t->site_count, t->site_capacity, s);
}

/* The parameter that an operand of an op is; -1: none. */
static int32_t param_operand(const sbp_func *f, const sbp_op *op, int32_t k) {
    const sbp_value_info *info = &f->values[op->operands[k]];
    return info->role == SBP_VALUE_PARAM ? info->binding : -1;
}

/* The product that the logits come from. */
static const sbp_op *find_head(const sbp_func *f) {
    sbp_value v = SBP_NO_VALUE;
    for (int32_t i = 0; i < f->op_count; i++)
        if (f->ops[i].code == SBP_OP_log_prob)
            v = f->ops[i].operands[0];
    while (v != SBP_NO_VALUE && f->values[v].op >= 0) {
        const sbp_op *op = &f->ops[f->values[v].op];
        if (op->code == SBP_OP_linear)
            return op;
        v = op->operand_count > 0 ? op->operands[0] : SBP_NO_VALUE;
    }
    return NULL;
}

static void find_sites(tuning *t) {
    const sbp_func *f = sbp_module_find_func(t->m, "model");
    const bool *routes = sbp_loading_find_routers(t->l->arena, f);
    const sbp_op *head = find_head(f);
    int32_t of_head = head ? param_operand(f, head, 1) : -1;
    for (int32_t i = 0; i < f->op_count; i++) {
        const sbp_op *op = &f->ops[i];
        int32_t p = op->code == SBP_OP_linear          ? param_operand(f, op, 1)
                    : op->code == SBP_OP_expert_linear ? param_operand(f, op, 2)
                    : op->code == SBP_OP_gather        ? param_operand(f, op, 0)
                                                       : -1;
        bool experts = op->code == SBP_OP_expert_linear, router = !experts && routes[op->results[0]];
        router = router && !(p >= 0 && t->m->params[p].linear_router);
        if (p < 0 || ((experts || router) && !t->m->params[p].fused))
            continue;
        if (op->code == SBP_OP_gather)
            t->gathered[p] = true;
        else
            add_site(t, p, sbp_op_symbol_is(op, "layout", "in_out"), experts, router);
    }
    for (int32_t i = 0; i < t->site_count; i++)
        t->sites[i].head = t->sites[i].param == of_head;
}

/* ---- modules that are trained whole -------------------------------------------------------------------- */

/* Whether a name is the end of one of the modules around a parameter, as PEFT looks for it: without a dot. */
static bool around(const char *source, const char *name) {
    size_t n = strlen(name);
    for (const char *dot = strchr(source, '.'); dot; dot = strchr(dot + 1, '.'))
        if ((size_t)(dot - source) >= n && memcmp(dot - n, name, n) == 0)
            return true;
    return false;
}

static sbp_status find_saved(tuning *t) {
    for (int32_t p = 0; p < t->base_params; p++) /* what begins with the objective, as a value head */
        t->saved[p] = t->m->params[p].fresh;
    for (int32_t i = 0; i < t->o->save.count; i++) {
        const char *name = t->o->save.names[i];
        bool any = false;
        for (int32_t p = 0; p < t->base_params; p++) {
            const sbp_param *param = &t->m->params[p];
            bool here = around(sbp_loading_source_name(param), name);
            for (int32_t a = 0; a < param->alias_count; a++) /* a tied head is called as the table, too */
                here |= t->gathered[p] && around(param->aliases[a], name);
            t->saved[p] |= here;
            any |= here;
        }
        if (!any)
            return sbp_fail(t->l->diag, SBP_USAGE, "--lora modules_to_save=%s: there is no such module",
                            name);
    }
    for (int32_t i = 0; i < t->site_count; i++)
        if (t->sites[i].head && t->saved[t->sites[i].param] && t->gathered[t->sites[i].param])
            return sbp_fail(
                t->l->diag, SBP_USAGE,
                "--lora modules_to_save: %s is the table of the embedding and the head at once, of which "
                "PEFT would train a copy of one alone: untie them (--set tie_word_embeddings=false, with "
                "weights that hold both), or leave it out",
                t->sites[i].module);
    return SBP_OK;
}

static void rename_saved(tuning *t, int32_t p) {
    sbp_arena *arena = t->l->arena;
    sbp_param *param = &t->m->params[p];
    const char *source = sbp_loading_source_name(param);
    const char **aliases = SBP_NEW_ARRAY(arena, const char *, param->alias_count + 1);
    aliases[0] = source;
    for (int32_t a = 0; a < param->alias_count; a++)
        aliases[a + 1] = param->aliases[a];
    param->aliases = aliases;
    param->alias_count++;
    param->merged = source;
    if (param->recipe) {
        sbp_recipe *recipe = SBP_NEW(arena, sbp_recipe);
        *recipe = *param->recipe;
        recipe->source = sbp_arena_printf(arena, PREFIX "%s", in_class(t, source));
        param->recipe = recipe;
    }
    param->name = sbp_arena_printf(arena, PREFIX "%s", in_class(t, param->name));
    sbp_map_set(&t->m->param_names, param->name, p);
    param->trainable = true;
    param->owner = SBP_OF_ADAPTER;
}

/* ---- targets ------------------------------------------------------------------------------------------- */

/* Whether the layer that a module is in is one of those asked for. */
static sbp_status in_layers(const tuning *t, const char *module, bool *out) {
    const sbp_lora_names *patterns = &t->o->layers_pattern;
    int64_t layer = -1;
    bool matches = false;
    *out = t->o->layer_count == 0;
    for (int32_t i = 0; !*out && i < (patterns->count ? patterns->count : 1) && !matches; i++) {
        const char *pattern =
            patterns->count /* as PEFT writes it, also where it has an alternative without a number */
                ? sbp_arena_printf(t->l->arena, "(?:^|.*?\\.)%s\\.(?P<idx>[0-9]+)\\.", patterns->names[i])
                : ".*?\\.[^.]*\\.(?P<idx>[0-9]+)\\.";
        SBP_TRY(sbp_pattern_number(t->l->arena, t->l->diag, "--lora layers_pattern", pattern,
                                   SBP_PATTERN_BEGIN, module, "idx", &matches, &layer));
    }
    for (int32_t i = 0; i < t->o->layer_count; i++)
        *out |= t->o->layers[i] == layer;
    return SBP_OK;
}

static sbp_status is_target(const tuning *t, const sbp_lora_names *targets, const site *s, bool *out) {
    int32_t at = -1, excluded;
    *out = false;
    if (s->tensor)
        return SBP_OK;
    SBP_TRY(find_name(t, "--lora exclude", &t->o->exclude, s->module, &excluded));
    if (!t->o->all_linear)
        SBP_TRY(find_name(t, "--lora targets", targets, s->module, &at));
    if (at >= 0) /* a name is used also where all that it names is left out */
        t->target_used[at] = true;
    if (excluded >= 0 || t->saved[s->param])
        return SBP_OK;
    if (t->o->all_linear && s->head)
        return SBP_OK;
    if (t->o->all_linear)
        return in_layers(t, s->module, out);
    if (at < 0)
        return SBP_OK;
    *out = true;
    /* PEFT looks at layers only where a name is the end of a longer one. */
    if (!targets->pattern && strcmp(targets->names[at], s->module) != 0)
        return in_layers(t, s->module, out);
    return SBP_OK;
}

/* A name of a module that is there and is no product, or the head: PEFT may have an adapter for it, this has
 * not. */
static sbp_status check_unused(const tuning *t, const char *name, bool *used) {
    for (int32_t p = 0; p < t->base_params; p++) {
        const sbp_param *param = &t->m->params[p];
        bool here = false;
        for (int32_t a = -1; a < (t->gathered[p] ? param->alias_count : 0) && !here; a++) {
            const char *module = in_class(
                t, module_of(t->l->arena, a < 0 ? sbp_loading_source_name(param) : param->aliases[a]));
            int32_t excluded = -1;
            if (ends_with(module, name))
                SBP_TRY(find_name(t, "--lora exclude", &t->o->exclude, module, &excluded));
            here = ends_with(module, name) && excluded < 0;
            *used |= excluded >= 0;
        }
        if (here && !t->saved[p])
            return sbp_fail(
                t->l->diag, SBP_USAGE,
                "--lora targets=%s: %s is not the weight of a linear layer; adapters of embeddings, norms "
                "and the head are not supported (--lora modules_to_save trains a module whole)",
                name, param->name);
    }
    return SBP_OK;
}

/* Experts and routers, by the names of their tensors; excluded modules and layers are not asked, as
 * peft does not. */
static sbp_status choose_parameters(tuning *t) {
    const sbp_lora_names *names = &t->o->parameters;
    const char *known = NULL;
    for (int32_t i = 0; i < t->site_count; i++)
        known = t->sites[i].experts ? t->sites[i].tensor : known;
    for (int32_t k = 0; k < names->count; k++) {
        bool any = false;
        for (int32_t i = 0; i < t->site_count; i++)
            if (t->sites[i].tensor && ends_with(t->sites[i].tensor, names->names[k]))
                any = t->sites[i].taken = true;
        if (!any)
            return sbp_fail(
                t->l->diag, SBP_USAGE,
                "--lora target_parameters=%s: no tensor of experts or routers has such a name; %s%s",
                names->names[k], known ? "one is " : "the model has none", known ? known : "");
    }
    if (names->count > 0 && t->o->dropout > 0)
        return sbp_fail(t->l->diag, SBP_USAGE,
                        "--lora dropout=%g: adapters of experts have none, in PEFT neither: leave "
                        "--lora target_parameters out, or set it to 0",
                        t->o->dropout);
    return SBP_OK;
}

static sbp_status choose_targets(tuning *t, sbp_lora_names *targets) {
    static const char *const usual[] = {"q_proj", "v_proj"}, *const joined[] = {"qkv_proj"},
                             *const by_head[] = {"query_key_value"};
    static const sbp_lora_names defaults[] = {{usual, 2, false}, {joined, 1, false}, {by_head, 1, false}};
    const sbp_model *model = t->l->model;
    int32_t count = 0;
    bool given = t->o->targets.count > 0 || t->o->all_linear;
    *targets = (sbp_lora_names){0};
    SBP_TRY(choose_parameters(t));
    if (!given && t->o->parameters.count > 0)
        return SBP_OK;
    if (t->o->targets.pattern && t->o->layer_count > 0)
        return sbp_fail(t->l->diag, SBP_USAGE,
                        "--lora layers: a regular expression for targets, '%s', says itself which layers",
                        t->o->targets.names[0]);
    for (int32_t d = 0; d < (given ? 1 : SBP_COUNT(defaults)) && count == 0; d++) {
        *targets = given ? t->o->targets : defaults[d];
        t->target_used = SBP_NEW_ARRAY(t->l->arena, bool, targets->count + 1);
        for (int32_t i = 0; i < t->site_count; i++) {
            site *s = &t->sites[i];
            if (s->tensor)
                continue;
            SBP_TRY(is_target(t, targets, s, &s->taken));
            if (s->taken && s->head)
                return sbp_fail(t->l->diag, SBP_USAGE,
                                "--lora targets: an adapter on the head, %s, is not supported; "
                                "--lora modules_to_save trains it whole",
                                s->module);
            if (s->taken && model->unadapted && ends_with(s->module, model->unadapted))
                return sbp_fail(t->l->diag, SBP_USAGE,
                                "--lora targets: PEFT refuses adapters of %s in model_type %s; "
                                "--lora exclude=%s leaves such modules out",
                                s->module, model->model_type, model->unadapted);
            count += s->taken;
        }
    }
    for (int32_t i = 0; i < targets->count && !targets->pattern && !t->o->all_linear; i++) {
        if (!t->target_used[i])
            SBP_TRY(check_unused(t, targets->names[i], &t->target_used[i]));
        if (!t->target_used[i] && count > 0)
            sbp_warn(t->l->diag, "--lora targets=%s: there is no such module", targets->names[i]);
    }
    if (count > 0)
        return SBP_OK;
    bool named = false;
    for (int32_t i = 0; i < targets->count; i++)
        named |= t->target_used[i];
    if (given && named)
        return sbp_fail(t->l->diag, SBP_USAGE,
                        "--lora targets%s%s: every module of such a name is left out, by --lora exclude, "
                        "--lora layers or --lora modules_to_save",
                        targets->count ? " " : "", targets->count ? targets->names[0] : "");
    return sbp_fail(
        t->l->diag, SBP_USAGE, "--lora targets%s%s: no weight has such a name; modules look like %s%s",
        targets->count && given ? " " : "", targets->count && given ? targets->names[0] : "",
        t->site_count ? t->sites[0].module : "-",
        given ? "" : " (there are neither q_proj and v_proj nor qkv_proj nor query_key_value here)");
}

/* ---- the parameters of an adapter ---------------------------------------------------------------------- */

/* The rows of B that belong to a weight: `length` from `start` on of `total`, in each of `heads` heads; all
 * where the graph reads the tensor as a whole. */
typedef struct rows {
    int64_t start, length, total, heads;
} rows;

static sbp_status rows_of(const tuning *t, const site *s, rows *out) {
    const sbp_param *param = &t->m->params[s->param];
    int32_t axis = s->in_out ? 1 : 0;
    int64_t n = param->type.dim[axis].n;
    bool sliced = false;
    *out = (rows){0, n, n, 1};
    for (int32_t k = param->recipe ? param->recipe->step_count - 1 : -1; k >= 0; k--) {
        const sbp_recipe_step *step = &param->recipe->steps[k]; /* backwards: where the axis came from */
        if (step->op == SBP_RECIPE_TRANSPOSE)
            axis = 1 - axis;
        else if (step->op == SBP_RECIPE_SQUEEZE)
            axis += step->axis <= axis;
        else if (step->op == SBP_RECIPE_SLICE && (step->axis != axis || sliced))
            return sbp_fail(
                t->l->diag, SBP_USAGE,
                "--lora targets: %s is a part of %s that no adapter of the whole has; leave it out",
                param->name, param->recipe->source);
        else if (step->op == SBP_RECIPE_SLICE) {
            sliced = true;
            out->start = step->start;
            out->heads = step->heads > 1 ? step->heads : 1;
        }
    }
    if (sliced)
        out->total = param->recipe->dim[axis];
    return SBP_OK;
}

static int32_t add_matrix(tuning *t, const char *name, int64_t n, int64_t columns, const rows *part,
                          const char *source, double bound, sbp_dtype dtype) {
    int32_t found = sbp_module_find_param(t->m, name);
    if (found >= 0)
        return found;
    sbp_param param = {.name = name,
                       .type = {.dtype = dtype, .rank = 2, .dim = {sbp_dim_const(n), sbp_dim_const(columns)}},
                       .storage = dtype,
                       .trainable = true,
                       .decay = true,
                       .init = bound > 0 ? SBP_INIT_UNIFORM : SBP_INIT_ZEROS,
                       .init_std = bound,
                       .owner = SBP_OF_ADAPTER,
                       .fresh = true,
                       .pad_row = -1};
    if (part->length != part->total) {
        sbp_recipe *recipe = SBP_NEW(t->l->arena, sbp_recipe);
        sbp_recipe_step *step = SBP_NEW(t->l->arena, sbp_recipe_step);
        *step = (sbp_recipe_step){.op = SBP_RECIPE_SLICE,
                                  .axis = 0,
                                  .start = part->start,
                                  .length = part->length / part->heads,
                                  .heads = part->heads};
        *recipe = (sbp_recipe){.source = source,
                               .dtype = SBP_F32,
                               .rank = 2,
                               .dim = {part->total, columns},
                               .steps = step,
                               .step_count = 1};
        param.recipe = recipe;
    }
    return sbp_module_add_param(t->m, &param);
}

/* Names of A and B without their ends. peft wraps the experts once for each tensor that it adapts, the last
 * of which is down_proj. */
static const char *name_of_experts(const tuning *t, const site *s) {
    const char *dot = strrchr(s->module, '.');
    size_t n = (size_t)(dot - s->module);
    bool within = false;
    for (int32_t i = 0; i < t->site_count; i++)
        within |= t->sites[i].experts && t->sites[i].taken && strcmp(dot, ".gate_up_proj") == 0 &&
                  strncmp(t->sites[i].module, s->module, n) == 0 &&
                  strcmp(t->sites[i].module + n, ".down_proj") == 0;
    return sbp_arena_printf(t->l->arena, PREFIX "%.*s%s", (int)n, s->module, within ? ".base_layer" : "");
}

static int32_t add_stack(tuning *t, const char *name, const sbp_recipe *recipe, const int64_t *dims,
                         double bound, sbp_dtype dtype) {
    int32_t found = sbp_module_find_param(t->m, name);
    if (found >= 0)
        return found;
    sbp_recipe *own = SBP_NEW(t->l->arena, sbp_recipe);
    *own = *recipe;
    sbp_param param = {
        .name = name,
        .type = {.dtype = dtype,
                 .rank = 3,
                 .dim = {sbp_dim_const(dims[0]), sbp_dim_const(dims[1]), sbp_dim_const(dims[2])}},
        .storage = dtype,
        .trainable = true,
        .decay = true,
        .init = bound > 0 ? SBP_INIT_UNIFORM : SBP_INIT_ZEROS,
        .init_std = bound,
        .owner = SBP_OF_ADAPTER,
        .fresh = true,
        .pad_row = -1,
        .recipe = own};
    return sbp_module_add_param(t->m, &param);
}

/* Adds the adapter of experts. peft has A [experts r, in], expert by expert, and B [out, r experts], whose
 * last axis has the experts of each rank together. */
static void add_of_experts(tuning *t, const site *s, int64_t r, sbp_adapter *adapter) {
    sbp_arena *arena = t->l->arena;
    const sbp_param w = t->m->params[s->param];
    int64_t experts = w.type.dim[0].n, in = w.type.dim[s->in_out ? 1 : 2].n,
            out = w.type.dim[s->in_out ? 2 : 1].n;
    const char *stem = name_of_experts(t, s);
    sbp_recipe_step *a = SBP_NEW_ARRAY(arena, sbp_recipe_step, 1),
                    *b = SBP_NEW_ARRAY(arena, sbp_recipe_step, 3);
    a[0] = (sbp_recipe_step){.op = SBP_RECIPE_SPLIT, .axis = 0, .length = experts};
    b[0] = (sbp_recipe_step){.op = SBP_RECIPE_SLICE, .axis = 0, .start = w.fused_start, .length = out};
    b[1] = (sbp_recipe_step){.op = SBP_RECIPE_SPLIT, .axis = 1, .length = r};
    b[2] = (sbp_recipe_step){.op = SBP_RECIPE_FRONT, .axis = 2};
    const sbp_recipe of_a = {.source = sbp_arena_printf(arena, "%s.lora_A.weight", stem),
                             .dtype = SBP_F32,
                             .rank = 2,
                             .dim = {experts * r, in},
                             .steps = a,
                             .step_count = 1},
                     of_b = {.source = sbp_arena_printf(arena, "%s.lora_B.weight", stem),
                             .dtype = SBP_F32,
                             .rank = 2,
                             .dim = {w.fused_total, r * experts},
                             .steps = b,
                             .step_count = 3};
    const char *name = w.fused_total == out
                           ? of_b.source
                           : sbp_arena_printf(arena, "%s.%lld.lora_B.weight", stem, (long long)w.fused_start);
    adapter->a =
        add_stack(t, of_a.source, &of_a, (int64_t[]){experts, r, in}, 1 / sqrt((double)in), w.type.dtype);
    adapter->b = add_stack(t, name, &of_b, (int64_t[]){experts, out, r}, 0, w.type.dtype);
}

static sbp_status add_adapter(tuning *t, const site *s) {
    sbp_arena *arena = t->l->arena;
    const sbp_param weight = t->m->params[s->param];
    double rank = (double)t->o->rank, alpha = t->o->alpha;
    rows part = {0};
    if (!s->experts)
        SBP_TRY(rows_of(t, s, &part));
    const char *called = s->tensor ? s->tensor : s->module;
    SBP_TRY(number_of(t, "--lora rank_pattern", t->o->ranks, t->o->rank_count, called, &rank));
    SBP_TRY(number_of(t, "--lora alpha_pattern", t->o->alphas, t->o->alpha_count, called, &alpha));
    if (!(rank >= 1 && rank <= 1e6) || rank != floor(rank))
        return sbp_fail(t->l->diag, SBP_USAGE, "--lora rank_pattern: %g for %s is not a rank", rank,
                        s->module);
    int64_t r = (int64_t)rank, in = weight.type.dim[s->in_out ? 0 : 1].n;
    const rows whole = {0, r, r, 1};
    const char *a = sbp_arena_printf(arena, PREFIX "%s.lora_A.weight", s->module),
               *b = sbp_arena_printf(arena, PREFIX "%s.lora_B.weight", s->module),
               *own = s->tensor || part.length == part.total
                          ? b
                          : sbp_arena_printf(arena, PREFIX "%s.lora_B.weight",
                                             module_of(arena, in_class(t, weight.name)));
    sbp_adapter adapter = {.weight = s->param,
                           .in_out = s->in_out,
                           .scale = alpha / (t->o->rslora ? sqrt(rank) : rank),
                           .dropout = t->o->dropout};
    if (s->experts) {
        add_of_experts(t, s, r, &adapter);
        SBP_PUSH(arena, t->m->adapters, t->m->adapter_count, t->m->adapter_capacity, adapter);
        return SBP_OK;
    }
    /* torch's kaiming_uniform_ with a = sqrt(5): the bound is sqrt(6 / ((1 + 5) in)) */
    adapter.a = add_matrix(t, a, r, in, &whole, a, 1 / sqrt((double)in), weight.type.dtype);
    adapter.b = add_matrix(t, own, part.length, r, &part, b, 0, weight.type.dtype);
    SBP_PUSH(arena, t->m->adapters, t->m->adapter_count, t->m->adapter_capacity, adapter);
    return SBP_OK;
}

/* ---- the whole ----------------------------------------------------------------------------------------- */

/* What adapter_config.json says of all-linear: the ends of the names, where nothing else is called so. */
static sbp_lora_names short_names(const tuning *t) {
    sbp_arena *arena = t->l->arena;
    const char **names = NULL;
    int32_t count = 0, capacity = 0;
    bool ambiguous = false;
    for (int32_t i = 0; i < t->site_count; i++) {
        const char *dot = strrchr(t->sites[i].module, '.'), *end = dot ? dot + 1 : t->sites[i].module;
        bool known = !t->sites[i].taken || t->sites[i].tensor;
        for (int32_t k = 0; k < count && !known; k++)
            known = strcmp(names[k], end) == 0;
        if (!known)
            SBP_PUSH(arena, names, count, capacity, end);
    }
    for (int32_t i = 0; i < t->site_count; i++)
        for (int32_t k = 0; k < count; k++)
            ambiguous |= !t->sites[i].taken && !t->sites[i].tensor && ends_with(t->sites[i].module, names[k]);
    if (!ambiguous)
        return (sbp_lora_names){.names = names, .count = count};
    count = 0;
    for (int32_t i = 0; i < t->site_count; i++) {
        bool known = !t->sites[i].taken || t->sites[i].tensor;
        for (int32_t k = 0; k < count && !known; k++)
            known = strcmp(names[k], t->sites[i].module) == 0;
        if (!known)
            SBP_PUSH(arena, names, count, capacity, t->sites[i].module);
    }
    return (sbp_lora_names){.names = names, .count = count};
}

sbp_status sbp_lora_apply(sbp_loading *l, const sbp_lora_options *options, sbp_lora_names *targets) {
    sbp_module *m = l->model->module;
    tuning t = {.l = l, .m = m, .o = options, .base_params = m->param_count};
    t.saved = SBP_NEW_ARRAY(l->arena, bool, m->param_count + 1);
    t.gathered = SBP_NEW_ARRAY(l->arena, bool, m->param_count + 1);
    find_sites(&t);
    SBP_TRY(find_saved(&t));
    SBP_TRY(choose_targets(&t, targets));
    for (int32_t p = 0; p < t.base_params; p++)
        m->params[p].trainable = false;
    for (int32_t p = 0; p < t.base_params; p++)
        if (t.saved[p])
            rename_saved(&t, p);
    for (int32_t i = 0; i < t.site_count; i++)
        if (t.sites[i].taken)
            SBP_TRY(add_adapter(&t, &t.sites[i]));
    if (options->all_linear)
        *targets = short_names(&t);
    if (options->all_linear && l->model->text_part)
        sbp_note(l->diag,
                 "all-linear: modules of the text model, %s*, get adapters; those of other parts, "
                 "which PEFT would adapt as well, are left out (exclude_modules)",
                 l->model->text_part);
    return SBP_OK;
}
