/* options_config.c: options from a file, JSON or YAML; settings of TRL that are put together. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "ir/base/json.h"
#include "ir/base/yaml.h"
#include "runtime/options/options_internal.h"

typedef struct config_reader {
    sbp_options *o;
    sbp_diag *diag;
    const char *path;
    bool *seen;  /* per line of the table: set by an earlier line of this file */
    bool strict; /* within a map whose members are options */
} config_reader;

static bool is_list(const option_target *t) {
    return t->index >= 0 && sbp_option_at(t->index)->kind == SBP_OPTION_LIST;
}

/* One value of one key. */
static sbp_status take(config_reader *r, const char *where, const char *key, const char *text) {
    option_setting setting = {.where = where, .config = r->path, .key = key};
    option_target t = sbp_options_find(key, strlen(key));
    if (t.index < 0)
        return sbp_options_assign(r->o, r->diag, &setting, &t, text);
    if (sbp_options_leaves_default(r->o, &setting, &t, text))
        return SBP_OK;
    if (strcmp(sbp_option_at(t.index)->name, "config") == 0)
        return sbp_fail(r->diag, SBP_USAGE, "%s: a config file cannot name another", where);
    const option_value *v = &r->o->values[t.index];
    if (v->given && !v->config)
        return SBP_OK;                           /* the command line wins */
    bool component = t.alias && *t.alias == '#'; /* the other one may follow */
    if (r->seen[t.index] && !is_list(&t) && !component)
        return sbp_fail(r->diag, SBP_USAGE, "%s: '%.100s' is given twice (as '%s')", where, key,
                        sbp_option_at(t.index)->name);
    r->seen[t.index] = true;
    return sbp_options_assign(r->o, r->diag, &setting, &t, text);
}

/* Maps whose members are options: TRL's trainers hand them on. */
static bool is_bundle(const char *key) {
    static const char *const names[] = {"lr_scheduler_kwargs", "model_init_kwargs"};
    for (int i = 0; i < SBP_COUNT(names); i++)
        if (sbp_option_same_name(names[i], strlen(names[i]), key, strlen(key)))
            return true;
    return false;
}

/* ---- JSON ------------------------------------------------------------------------------------------- */

static const char *json_text(sbp_arena *arena, const sbp_json *node) {
    sbp_text out;
    sbp_text_init(&out, arena);
    if (node->kind == SBP_JSON_STRING)
        return strlen(node->string) == (size_t)node->count ? node->string : NULL;
    if (node->kind == SBP_JSON_BOOL)
        return node->boolean ? "true" : "false";
    if (node->kind == SBP_JSON_INT)
        return sbp_arena_printf(arena, "%lld", (long long)node->integer);
    if (node->kind != SBP_JSON_REAL)
        return NULL;
    sbp_text_add_double(&out, node->real);
    return out.data;
}

/* Several values of a key: of a list, two numbers, or losses that are added. A wrong number of them is of
 * `status`, which says where it was. */
static sbp_status take_values(config_reader *r, const char *where, const char *key, const char *const *texts,
                              int64_t count, bool *taken) {
    option_target t = sbp_options_find(key, strlen(key));
    const sbp_option *option = t.index >= 0 ? sbp_option_at(t.index) : NULL;
    *taken = true;
    if (option && option->kind == SBP_OPTION_PAIR && count == 2)
        return take(r, where, key, sbp_arena_printf(r->o->arena, "%s,%s", texts[0], texts[1]));
    if (!option || (option->kind == SBP_OPTION_TEXT && strcmp(option->name, "loss-type") == 0)) {
        sbp_text all; /* "sigmoid+sft"; of what has no effect, or is refused, any text */
        sbp_text_init(&all, r->o->arena);
        for (int64_t i = 0; i < count; i++)
            sbp_text_add(&all, "%s%s", i > 0 ? "+" : "", texts[i]);
        return take(r, where, key, all.data);
    }
    *taken = is_list(&t) || count == 0;
    for (int64_t i = 0; i < count && *taken; i++)
        SBP_TRY(take(r, where, key, texts[i]));
    return SBP_OK;
}

static sbp_status take_array(config_reader *r, const char *where, const sbp_json *array) {
    bool taken = true;
    const char **texts = SBP_NEW_ARRAY(r->o->arena, const char *, array->count + 1);
    for (int64_t i = 0; i < array->count && taken; i++)
        taken = (texts[i] = json_text(r->o->arena, &array->items[i])) != NULL;
    if (taken)
        SBP_TRY(take_values(r, where, array->key, texts, array->count, &taken));
    return taken ? SBP_OK : sbp_json_fail(r->diag, array, "expected one value, found an array");
}

static sbp_status take_member(config_reader *r, const sbp_json *member) {
    option_target t = sbp_options_find(member->key, strlen(member->key));
    option_setting setting = {.where = r->path, .config = r->path, .key = member->key, .strict = r->strict};
    if (member->kind == SBP_JSON_OBJECT && is_bundle(member->key)) {
        sbp_status first = SBP_OK;
        r->strict = true;
        for (int64_t i = 0; i < member->count; i++) {
            sbp_status status = take_member(r, &member->items[i]);
            first = first == SBP_OK ? status : first;
        }
        r->strict = false;
        return first;
    }
    if (t.index < 0 && !t.reason && !t.usual)
        return sbp_options_unknown(r->o, r->diag, &setting);
    if (member->kind == SBP_JSON_NULL)
        return SBP_OK;
    if (member->kind == SBP_JSON_ARRAY)
        return take_array(r, r->path, member);
    const char *value = json_text(r->o->arena, member);
    if (!value && (t.reason || t.usual))
        value = member->count == 0 ? "{}" : "{..}"; /* an object as a refused key: its reason says more */
    if (!value)
        return sbp_json_fail(r->diag, member, "expected a number, a string or true or false, found %s",
                             sbp_json_kind_name(member->kind));
    return take(r, r->path, member->key, value);
}

static sbp_status read_json(config_reader *r, const char *text, size_t length) {
    const sbp_json *root;
    sbp_status first = SBP_OK;
    SBP_TRY(sbp_json_parse(r->o->arena, r->diag, r->path, text, length, SBP_JSON_COMMENTS, &root));
    SBP_TRY(sbp_json_as_object(r->diag, root, &root));
    for (int64_t i = 0; i < root->count; i++) { /* all that is wrong is said */
        sbp_status status = take_member(r, &root->items[i]);
        first = first == SBP_OK ? status : first;
    }
    return first;
}

sbp_status sbp_options_inherit(sbp_options *o, sbp_diag *diag, const char *path, const sbp_json *member) {
    config_reader r = {.o = o, .diag = diag, .path = path};
    r.seen = SBP_NEW_ARRAY(o->arena, bool, sbp_option_count());
    return take_member(&r, member);
}

/* ---- YAML ------------------------------------------------------------------------------------------- */

static sbp_status take_list(config_reader *r, const char *where, const sbp_yaml *list) {
    const char **texts = SBP_NEW_ARRAY(r->o->arena, const char *, list->count + 1);
    option_target t = sbp_options_find(list->key, strlen(list->key));
    bool taken;
    for (int32_t i = 0; i < list->count; i++) {
        if (list->items[i].kind != SBP_YAML_SCALAR)
            return t.usual || t.reason
                       ? take(r, where, list->key, "{..}") /* it has no effect, or its reason says more */
                       : sbp_fail(r->diag, SBP_USAGE,
                                  "%s:%d: '%s': expected single values in the list, found %s", r->path,
                                  list->items[i].line, list->key,
                                  list->items[i].kind == SBP_YAML_MAP ? "a map" : "a list");
        texts[i] = list->items[i].text;
    }
    SBP_TRY(take_values(r, where, list->key, texts, list->count, &taken));
    return taken
               ? SBP_OK
               : sbp_fail(r->diag, SBP_USAGE, "%s: '%s': expected one value, found a list", where, list->key);
}

static sbp_status take_members(config_reader *r, const sbp_yaml *map);

/* Something without effect here, once for all parts of a mixture. */
static void say_once(sbp_options *o, const char *key, const char *what) {
    const char *text = sbp_arena_printf(o->arena, "%s%s", key, what);
    if (o->without_effect.length > 0 && strstr(o->without_effect.data, text))
        return;
    if (o->without_effect.length == 0)
        sbp_text_init(&o->without_effect, o->arena);
    sbp_text_add(&o->without_effect, "%s%s", o->without_effect.length > 0 ? ", " : "", text);
}

/* What a part of a mixture says; TRL's names, and those of alignment-handbook. */
typedef struct mixture_part {
    const char *path, *name, *split;
    const char *weight, *rows; /* and how rows are taken by it; NULL: it says neither */
} mixture_part;

/* A member that is a single value. */
static bool put_member(mixture_part *part, const char *key, const char *text) {
    const struct {
        const char *name;
        const char **to;
    } members[] = {{"path", &part->path},      {"id", &part->path},     {"name", &part->name},
                   {"config", &part->name},    {"split", &part->split}, {"weight", &part->weight},
                   {"fraction", &part->weight}};
    for (int i = 0; i < SBP_COUNT(members); i++)
        if (strcmp(key, members[i].name) == 0) {
            *members[i].to = text;
            return true;
        }
    return false;
}

/* A weight is a part of a data set's rows, a fraction a share of the mixture's. */
static sbp_status say_rows(const config_reader *r, const char *key, const sbp_yaml *member,
                           mixture_part *part) {
    const char *rows = strcmp(member->key, "weight") == 0 ? "random" : "shares";
    if (part->rows && strcmp(part->rows, rows) != 0)
        return sbp_fail(r->diag, SBP_USAGE,
                        "%s:%d: '%s': weight is a part of a data set's rows, fraction a share of the "
                        "mixture's: give one of them",
                        r->path, (int)member->line, key);
    part->rows = rows;
    return SBP_OK;
}

static sbp_status read_part(config_reader *r, const char *key, const sbp_yaml *item, mixture_part *part) {
    for (int32_t k = 0; k < item->count; k++) {
        const sbp_yaml *member = &item->items[k];
        bool scalar = member->kind == SBP_YAML_SCALAR, weight = strcmp(member->key, "weight") == 0;
        const char *text = scalar && strcmp(member->key, "split") == 0 && strcmp(member->text, "train") == 0
                               ? ""
                               : member->text;
        if (scalar && sbp_option_is_blank(member->text)) {
            part->weight = weight ? "none" : part->weight; /* which is not as if it were not there */
            continue;
        }
        if (strcmp(member->key, "columns") == 0) { /* rows are read by the keys that they have */
            say_once(r->o, key, ": columns of a part");
            continue;
        }
        if (!scalar || !put_member(part, member->key, text))
            return sbp_fail(r->diag, SBP_USAGE,
                            "%s:%d: '%s': %s: of a part, path (or id), name (or config), split, and weight "
                            "or fraction are taken: give files of what is meant with --data",
                            r->path, (int)member->line, key, member->key);
        if (weight || strcmp(member->key, "fraction") == 0)
            SBP_TRY(say_rows(r, key, member, part));
    }
    return SBP_OK;
}

/* A part of a mixture as an argument of --data: a path, or NAME:CONFIG:SPLIT of the Hub. */
static sbp_status take_part(config_reader *r, const char *where, const char *key, const mixture_part *part) {
    const char *path = part->path, *name = part->name, *split = part->split;
    if (!path)
        return take(r, where, key, "{..}");
    bool local = sbp_file_exists(path) || sbp_directory_exists(path);
    if (local && (*name || *split))
        return sbp_fail(r->diag, SBP_USAGE,
                        "%s: '%s': %s of '%.200s', which is a path here and no data set of the Hub: give the "
                        "files that are meant",
                        where, key, *name ? "name" : "split", path);
    if (!local && (*name || *split))
        path = sbp_arena_printf(r->o->arena, "%s:%s%s%s", path, name, *split ? ":" : "", split);
    return take(r, where, "data", path);
}

/* Whether --data was typed, which then is there in place of the mixture. */
static bool has_other_data(const config_reader *r) {
    const option_value *data = &r->o->values[SBP_OPT_DATA];
    return data->given && !data->config;
}

/* A mixture of data sets; of alignment-handbook a part's weight is 1 where it has none. */
static sbp_status take_mixture(config_reader *r, const sbp_yaml *list, bool handbook) {
    const char *rows = NULL, *usual = handbook ? "1" : "none";
    mixture_part *parts = SBP_NEW_ARRAY(r->o->arena, mixture_part, list->count + 1);
    if (has_other_data(r))
        return SBP_OK;
    for (int32_t i = 0; i < list->count; i++) {
        const sbp_yaml *item = &list->items[i];
        const char *where = sbp_arena_printf(r->o->arena, "%s:%d", r->path, (int)item->line);
        if (item->kind != SBP_YAML_MAP)
            return take(r, where, list->key, "{..}");
        parts[i] = (mixture_part){.name = "", .split = "", .rows = rows};
        SBP_TRY(read_part(r, list->key, item, &parts[i]));
        SBP_TRY(take_part(r, where, list->key, &parts[i]));
        rows = parts[i].rows ? parts[i].rows : rows;
    }
    for (int32_t i = 0; i < list->count && (rows || handbook); i++)
        SBP_TRY(take(r, r->path, "mixture_weights", parts[i].weight ? parts[i].weight : usual));
    return rows ? take(r, r->path, "mixture_rows", rows) : SBP_OK;
}

/* dataset_mixture: {datasets, seed, test_split_size} of alignment-handbook and open-r1. */
static sbp_status take_handbook_mixture(config_reader *r, const sbp_yaml *map) {
    for (int32_t i = 0; i < map->count; i++) {
        const sbp_yaml *member = &map->items[i];
        const char *where = sbp_arena_printf(r->o->arena, "%s:%d", r->path, (int)member->line);
        bool scalar = member->kind == SBP_YAML_SCALAR, size = strcmp(member->key, "test_split_size") == 0;
        if (strcmp(member->key, "datasets") == 0 && member->kind == SBP_YAML_LIST)
            SBP_TRY(take_mixture(r, member, true));
        else if (scalar && (size || strcmp(member->key, "seed") == 0))
            SBP_TRY(has_other_data(r) ? SBP_OK
                                      : take(r, where, size ? member->key : "mixture_seed", member->text));
        else
            return sbp_fail(r->diag, SBP_USAGE,
                            "%s: '%s': %s: datasets, seed and test_split_size are known there", where,
                            map->key, member->key);
    }
    return SBP_OK;
}

/* dataset_mixer: {NAME: 0.5, ..}, its older form, which takes the first rows of each. */
static sbp_status take_mixer(config_reader *r, const sbp_yaml *map) {
    if (has_other_data(r))
        return SBP_OK;
    for (int32_t i = 0; i < map->count; i++) {
        const sbp_yaml *member = &map->items[i];
        const char *where = sbp_arena_printf(r->o->arena, "%s:%d", r->path, (int)member->line);
        if (member->kind != SBP_YAML_SCALAR)
            return sbp_fail(r->diag, SBP_USAGE, "%s: '%s': %s: expected the part of its rows, as 0.5", where,
                            map->key, member->key);
        SBP_TRY(take(r, where, "data", member->key));
        SBP_TRY(take(r, where, "mixture_weights", member->text));
    }
    return take(r, r->path, "mixture_rows", "first");
}

/* dataset_splits: [train_prefs, test_prefs]: what they are for stands in their names. */
static sbp_status take_splits(config_reader *r, const sbp_yaml *list) {
    for (int32_t i = 0; i < list->count; i++) {
        const sbp_yaml *item = &list->items[i];
        const char *where = sbp_arena_printf(r->o->arena, "%s:%d", r->path, (int)item->line);
        bool scalar = item->kind == SBP_YAML_SCALAR, test = scalar && strstr(item->text, "test");
        if (!scalar || (!test && !strstr(item->text, "train")))
            return sbp_fail(r->diag, SBP_USAGE, "%s: '%s': names with train or test in them are expected",
                            where, list->key);
        SBP_TRY(take(r, where, test ? "dataset_test_split" : "dataset_train_split", item->text));
    }
    return SBP_OK;
}

static sbp_status take_yaml(config_reader *r, const sbp_yaml *member) {
    const char *where = sbp_arena_printf(r->o->arena, "%s:%d", r->path, (int)member->line),
               *key = member->key;
    option_setting setting = {.where = where, .config = r->path, .key = key, .strict = r->strict};
    option_target t = sbp_options_find(key, strlen(key));
    if (member->kind == SBP_YAML_MAP && is_bundle(key)) {
        r->strict = true;
        sbp_status status = take_members(r, member);
        r->strict = false;
        return status;
    }
    if (member->kind == SBP_YAML_LIST && strcmp(key, "datasets") == 0)
        return take_mixture(r, member, false);
    if (member->kind == SBP_YAML_MAP && strcmp(key, "dataset_mixture") == 0)
        return take_handbook_mixture(r, member);
    if (member->kind == SBP_YAML_MAP && strcmp(key, "dataset_mixer") == 0)
        return take_mixer(r, member);
    if (member->kind == SBP_YAML_LIST && strcmp(key, "dataset_splits") == 0)
        return take_splits(r, member);
    if (strcmp(key, "env") == 0)
        return sbp_options_take_environment(r->o, r->diag, r->path, member);
    if (t.index < 0 && !t.reason && !t.usual)
        return sbp_options_unknown(r->o, r->diag, &setting);
    if (member->kind == SBP_YAML_SCALAR)
        return take(r, where, key, member->text);
    if (member->kind == SBP_YAML_LIST)
        return take_list(r, where, member);
    if (t.reason || t.usual)
        return take(r, where, key, member->count > 0 ? "{..}" : "{}");
    return sbp_fail(r->diag, SBP_USAGE, "%s: '%s': expected a value or a list of them, found a map", where,
                    key);
}

/* All that is wrong is said. */
static sbp_status take_members(config_reader *r, const sbp_yaml *map) {
    sbp_status first = SBP_OK;
    for (int32_t i = 0; i < map->count; i++) {
        sbp_status status = take_yaml(r, &map->items[i]);
        first = first == SBP_OK ? status : first;
    }
    return first;
}

static sbp_status read_yaml(config_reader *r, const char *text, size_t length) {
    const sbp_yaml *root;
    SBP_TRY(sbp_yaml_parse(r->o->arena, r->diag, SBP_USAGE, r->path, text, length, &root));
    if (!root || (root->kind == SBP_YAML_SCALAR && !*root->text))
        return SBP_OK; /* nothing but comments */
    if (root->kind != SBP_YAML_MAP)
        return sbp_fail(r->diag, SBP_USAGE, "%s:%d: expected 'key: value'", r->path, (int)root->line);
    return take_members(r, root);
}

sbp_status sbp_options_take_bundle(sbp_options *o, sbp_diag *diag, const char *key, const char *text,
                                   bool *taken) {
    const sbp_yaml *root;
    *taken = is_bundle(key) && *text == '{';
    if (!*taken)
        return SBP_OK;
    config_reader r = {.o = o, .diag = diag, .path = sbp_arena_printf(o->arena, "--%s", key), .strict = true};
    r.seen = SBP_NEW_ARRAY(o->arena, bool, sbp_option_count());
    SBP_TRY(sbp_yaml_parse(o->arena, diag, SBP_USAGE, r.path, text, strlen(text), &root));
    return root && root->kind == SBP_YAML_MAP ? take_members(&r, root) : SBP_OK;
}

sbp_status sbp_options_read_config(sbp_options *o, sbp_diag *diag, const char *path) {
    const char *text;
    size_t length;
    config_reader r = {.o = o, .diag = diag, .path = path};
    r.seen = SBP_NEW_ARRAY(o->arena, bool, sbp_option_count());
    SBP_TRY(sbp_file_read(o->arena, diag, path, &text, &length));
    if (length >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) { /* byte order mark */
        text += 3;
        length -= 3;
    }
    size_t first = 0;
    while (first < length && isspace((unsigned char)text[first]))
        first++;
    if (first < length && text[first] == '{')
        return read_json(&r, text, length);
    return read_yaml(&r, text, length);
}

/* ---- several into one ------------------------------------------------------------------------------- */

void sbp_options_append(sbp_options *o, sbp_option_id id, const char *text) {
    option_value *v = &o->values[id];
    v->given = true;
    SBP_PUSH(o->arena, v->list, v->count, v->capacity, text);
}

/* Puts a value where the option was not given. */
static sbp_status settle(sbp_options *o, sbp_diag *diag, sbp_option_id id, const char *text,
                         const char *config) {
    option_setting setting = {.where = o->program, .config = config, .key = sbp_option_name(id)};
    option_target target = {.index = (int32_t)id};
    return sbp_options_assign(o, diag, &setting, &target, text);
}

/* MODEL@REVISION. */
static void settle_revision(sbp_options *o) {
    option_value *revision = &o->values[SBP_OPT_MODEL_REVISION];
    bool given = revision->given && strcmp(revision->text, "main") != 0;
    revision->given = false;
    if (given && o->arg_count > 0 && !strchr(o->args[0], '@') && !sbp_file_exists(o->args[0]) &&
        !sbp_directory_exists(o->args[0]))
        o->args[0] = sbp_arena_printf(o->arena, "%s@%s", o->args[0], revision->text);
}

static sbp_status settle_model(sbp_options *o, sbp_diag *diag) {
    option_value *model = &o->values[SBP_OPT_MODEL_NAME_OR_PATH];
    if (!model->given)
        return SBP_OK;
    model->given = false;
    if (o->arg_count == 0)
        SBP_PUSH(o->arena, o->args, o->arg_count, o->arg_capacity, model->text);
    else if (!model->config && strcmp(o->args[0], model->text) != 0)
        return sbp_fail(diag, SBP_USAGE,
                        "%s: --model_name_or_path is '%.200s' and MODEL '%.200s': give one of them",
                        o->program, model->text, o->args[0]);
    return SBP_OK;
}

/* With weights in fp32 it is autocast, which keeps them so, as --dtype bf16 does. */
static sbp_status settle_bf16(sbp_options *o, sbp_diag *diag) {
    option_value *bf16 = &o->values[SBP_OPT_BF16], *dtype = &o->values[SBP_OPT_DTYPE];
    bool on = bf16->given && strcmp(bf16->text, "on") == 0;
    bool typed = dtype->given && !dtype->config && bf16->config; /* the command line wins */
    bf16->given = false;
    if (o->half && !on)
        return sbp_fail(diag, SBP_USAGE, "%s: fp16 is not built: use bf16", o->half);
    if (o->half && !sbp_options_on(o, SBP_OPT_QUIET))
        sbp_note(
            diag,
            "%s: weights are read as their file has them and computed in bf16, not rounded to fp16 before",
            o->half);
    if (!on || typed || (dtype->given && strcmp(dtype->text, "fp64") == 0))
        return SBP_OK;
    return settle(o, diag, SBP_OPT_DTYPE, "bf16", bf16->config);
}

/* eval_strategy: no, where it is said: eval_steps beside it means nothing. The command line wins. */
static void settle_evaluations(sbp_options *o) {
    const option_value *strategy = &o->values[SBP_OPT_EVAL_STRATEGY];
    option_value *every = &o->values[SBP_OPT_EVAL_EVERY];
    bool no = strategy->given && strcmp(strategy->text, "no") == 0;
    if (no && every->given && (every->config || !strategy->config))
        *every = (option_value){.integer = -1, .number = NAN, .second = NAN};
}

/* TRL's cpo has SimPO's loss under that name; its own, without a margin, is not here. */
static sbp_status settle_cpo(sbp_options *o, sbp_diag *diag) {
    option_value *loss = &o->values[SBP_OPT_LOSS_TYPE];
    if (!loss->given || strcmp(loss->text, "simpo") != 0)
        return sbp_fail(
            diag, SBP_USAGE,
            "%s: cpo with --loss_type %s is not built: --loss_type simpo is (with --cpo_alpha and "
            "--simpo_gamma)",
            loss->given && loss->config ? loss->config : o->program,
            loss->given ? loss->text : "sigmoid, which TRL takes without it,");
    loss->given = false;
    return SBP_OK;
}

/* How TRL names the way of packing; only bfd is there, and what splits in place of cutting. */
static sbp_status settle_packing(sbp_options *o, sbp_diag *diag) {
    option_value *strategy = &o->values[SBP_OPT_PACKING_STRATEGY], *overlong = &o->values[SBP_OPT_OVERLONG];
    bool given = strategy->given && sbp_options_is(o, SBP_OPT_PACKING, "bfd");
    const char *said = strategy->text, *quiet = sbp_options_on(o, SBP_OPT_QUIET) ? "" : NULL;
    strategy->given = false;
    if (!given || strcmp(said, "bfd") == 0)
        return SBP_OK;
    if (strcmp(said, "ffd") == 0) {
        if (!quiet)
            sbp_note(diag, "packing_strategy ffd: taken as bfd, the best fit in place of the first");
        return SBP_OK;
    }
    if (overlong->given && strcmp(overlong->text, "truncate") != 0)
        return SBP_OK;
    if (!quiet)
        sbp_note(diag, "packing_strategy %s: taken as --packing bfd --overlong split", said);
    return settle(o, diag, SBP_OPT_OVERLONG, "split", strategy->config);
}

/* What TRL's command has where nothing is said. */
static sbp_status settle_trl(sbp_options *o, sbp_diag *diag) {
    option_value *command = &o->values[SBP_OPT_TRL];
    const option_value *lr = &o->values[SBP_OPT_LR], *length = &o->values[SBP_OPT_SEQ_LEN];
    bool given = command->given,
         samples = given && (strcmp(command->text, "grpo") == 0 || strcmp(command->text, "ppo") == 0);
    command->given = false;
    o->trl = given;
    if (!given)
        return SBP_OK;
    if (!lr->given && strcmp(command->text, "sft") != 0)
        SBP_TRY(settle(o, diag, SBP_OPT_LR, strcmp(command->text, "ppo") == 0 ? "3e-6" : "1e-6", NULL));
    if (strcmp(command->text, "cpo") == 0)
        SBP_TRY(settle_cpo(o, diag));
    if (samples || length->given || length->left || o->values[SBP_OPT_OVERLONG].given)
        return SBP_OK;
    if (!sbp_options_on(o, SBP_OPT_QUIET))
        sbp_note(diag,
                 "max_length 1024, as TRL has it: longer rows are cut; --max_length none: they are not");
    SBP_TRY(settle(o, diag, SBP_OPT_SEQ_LEN, "1024", NULL));
    return settle(o, diag, SBP_OPT_OVERLONG, "truncate", NULL);
}

sbp_status sbp_options_settle(sbp_options *o, sbp_diag *diag) {
    if (o->without_effect.length > 0 && !sbp_options_on(o, SBP_OPT_QUIET))
        sbp_note(diag, "these settings have no effect here: %s", o->without_effect.data);
    if (o->unknown.length > 0 && !sbp_options_on(o, SBP_OPT_QUIET))
        sbp_note(diag, "%s: nobody here reads these keys: %s (--config-unknown error: stop at such keys)",
                 sbp_options_text(o, SBP_OPT_CONFIG), o->unknown.data);
    for (int32_t i = 0; i < o->note_count && !sbp_options_on(o, SBP_OPT_QUIET); i++)
        sbp_note(diag, "%s", o->notes[i]);
    o->settled = true;
    SBP_TRY(settle_model(o, diag));
    settle_revision(o);
    SBP_TRY(settle_trl(o, diag));
    SBP_TRY(settle_packing(o, diag));
    settle_evaluations(o);
    return settle_bf16(o, diag);
}

sbp_status sbp_options_settle_batch(sbp_options *o, sbp_diag *diag, int64_t ranks) {
    option_value *part = &o->values[SBP_OPT_PER_DEVICE_TRAIN_BATCH_SIZE],
                 *passes = &o->values[SBP_OPT_GRADIENT_ACCUMULATION_STEPS];
    const option_value *rows = &o->values[SBP_OPT_BATCH_SIZE], *tokens = &o->values[SBP_OPT_BATCH_TOKENS];
    int64_t together = sbp_options_int(o, SBP_OPT_CONTEXT_PARALLEL), product;
    const char *config = part->given ? part->config : passes->config;
    bool given = part->given || passes->given, other = rows->given || tokens->given;
    const char *other_config = rows->given ? rows->config : tokens->config;
    part->given = passes->given = false;
    if (o->trl && ranks <= 1) { /* there, one process shares with none */
        o->values[SBP_OPT_ZERO].given = false;
        SBP_TRY(sbp_options_set_default(o, diag, SBP_OPT_ZERO, "0"));
    }
    if (!given || (other && config && !other_config)) /* the command line wins */
        return SBP_OK;
    if (other)
        return sbp_fail(
            diag, SBP_USAGE,
            "%s: --batch-size is per_device_train_batch_size x gradient_accumulation_steps x ranks: "
            "give one or the others",
            config ? config : o->program);
    if (together < 0)
        return sbp_fail(diag, SBP_USAGE,
                        "%s: with --context-parallel auto, give --batch-size N: rows of a step",
                        config ? config : o->program);
    ranks = ranks / together > 1 ? ranks / together : 1;
    if (!sbp_mul_i64(part->integer, passes->integer, &product) || !sbp_mul_i64(product, ranks, &product))
        return sbp_fail(diag, SBP_USAGE, "%s: per_device_train_batch_size is too large", o->program);
    if (!sbp_options_on(o, SBP_OPT_QUIET))
        sbp_note(diag,
                 "--batch-size %lld: per_device_train_batch_size %lld x gradient_accumulation_steps %lld x "
                 "%lld rank%s",
                 (long long)product, (long long)part->integer, (long long)passes->integer, (long long)ranks,
                 ranks == 1 ? "" : "s");
    return settle(o, diag, SBP_OPT_BATCH_SIZE, sbp_arena_printf(o->arena, "%lld", (long long)product),
                  config);
}
