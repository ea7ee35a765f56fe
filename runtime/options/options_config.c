/* options_config.c: options from a file or a map, JSON or YAML. */
#include <ctype.h>
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

/* One value of an option, where the command line does not have it. */
static sbp_status take_target(config_reader *r, const option_setting *s, const option_target *t,
                              const char *text) {
    if (sbp_options_leaves_default(r->o, s, t, text))
        return SBP_OK;
    if (strcmp(sbp_option_at(t->index)->name, "config") == 0)
        return sbp_fail(r->diag, SBP_USAGE, "%s: a config file cannot name another", s->where);
    const option_value *v = &r->o->values[t->index];
    if (v->given && !v->config)
        return SBP_OK;                             /* the command line wins */
    bool component = t->alias && *t->alias == '#'; /* the other one may follow */
    if (r->seen[t->index] && !is_list(t) && !component)
        return sbp_fail(r->diag, SBP_USAGE, "%s: '%.100s' is given twice (as '%s')", s->where, s->key,
                        sbp_option_typed(r->o->arena, sbp_option_at(t->index)) + 2);
    r->seen[t->index] = true;
    return sbp_options_take(r->o, r->diag, s, t, text);
}

/* Keys of a bundle, which is `map` or a text. */
static sbp_status take_pieces(config_reader *r, const char *where, const void *map,
                              const option_pieces *pieces) {
    for (int32_t i = 0; i < pieces->count; i++) {
        const option_piece *piece = &pieces->items[i];
        const option_setting setting = {.where = where, .config = r->path, .key = piece->key, .bundle = map};
        const option_target target = {.index = (int32_t)piece->option};
        SBP_TRY(take_target(r, &setting, &target, piece->value));
    }
    return SBP_OK;
}

/* Whether it has keys as it is spelled: of an alias, and where another command reads it, it is a value. */
static bool has_keys(const option_target *t) {
    return t->index >= 0 && !t->alias && sbp_option_is_bundle(sbp_option_at(t->index)->id);
}

/* One value of one key. */
static sbp_status take(config_reader *r, const char *where, const char *key, const char *text) {
    option_setting setting = {.where = where, .config = r->path, .key = key, .strict = r->strict};
    option_target t = sbp_options_find(key, strlen(key));
    option_pieces pieces;
    if (has_keys(&t) && !sbp_options_leaves_default(r->o, &setting, &t, text)) {
        SBP_TRY(sbp_options_cut(r->o, r->diag, &setting, (sbp_option_id)t.index, text, &pieces));
        return take_pieces(r, where, text, &pieces);
    }
    r->o->file_of_trl |=
        t.reason || t.usual ||
        (t.alias && !sbp_option_same_name(sbp_option_at(t.index)->name, strlen(sbp_option_at(t.index)->name),
                                          key, strlen(key)));
    return t.index < 0 ? sbp_options_take(r->o, r->diag, &setting, &t, text)
                       : take_target(r, &setting, &t, text);
}

/* Adds what a member of the map of a bundle says, `count` values. */
static sbp_status add_member(config_reader *r, const char *where, sbp_option_id bundle, const char *key,
                             const char *const *texts, int32_t count, option_pieces *out) {
    const option_setting setting = {.where = where, .config = r->path, .key = key};
    const sbp_option_id option = sbp_option_find_key(bundle, key, strlen(key));
    const char *shown = sbp_arena_printf(r->o->arena, "%s %s", sbp_option_name(bundle), key);
    if (option == SBP_OPT_NONE)
        return sbp_options_unknown_key(r->o, r->diag, &setting, bundle, key);
    if (count > 1 && sbp_option_at((int32_t)option)->kind != SBP_OPTION_LIST)
        return sbp_fail(r->diag, SBP_USAGE, "%s: '%s': expected one value, found a list", where, shown);
    if (out->count == 0 && option != bundle) /* which says it itself */
        sbp_options_imply(bundle, r->o->arena, out);
    for (int32_t i = 0; i < count; i++) {
        const option_piece piece = {.option = option, .key = shown, .value = texts[i]};
        SBP_PUSH(r->o->arena, out->items, out->count, out->capacity, piece);
    }
    return SBP_OK;
}

/* Maps whose members are options: TRL's trainers hand them on. */
static bool is_map_of_options(const char *key) {
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

/* loss: {objective: grpo, epsilon: 0.2} */
static sbp_status take_json_map(config_reader *r, sbp_option_id bundle, const sbp_json *map) {
    option_pieces pieces = {0};
    for (int64_t i = 0; i < map->count; i++) {
        const sbp_json *member = &map->items[i];
        const bool list = member->kind == SBP_JSON_ARRAY;
        const int64_t count = list ? member->count : member->kind != SBP_JSON_NULL;
        const char **texts = SBP_NEW_ARRAY(r->o->arena, const char *, count + 1);
        for (int64_t k = 0; k < count; k++)
            if (!(texts[k] = json_text(r->o->arena, list ? &member->items[k] : member)))
                return sbp_json_fail(r->diag, member, "expected a value or a list of them");
        SBP_TRY(add_member(r, r->path, bundle, member->key, texts, (int32_t)count, &pieces));
    }
    return take_pieces(r, r->path, map, &pieces);
}

static sbp_status take_member(config_reader *r, const sbp_json *member) {
    option_target t = sbp_options_find(member->key, strlen(member->key));
    option_setting setting = {.where = r->path, .config = r->path, .key = member->key, .strict = r->strict};
    if (member->kind == SBP_JSON_OBJECT && is_map_of_options(member->key)) {
        sbp_status first = SBP_OK;
        r->strict = true;
        for (int64_t i = 0; i < member->count; i++) {
            sbp_status status = take_member(r, &member->items[i]);
            first = first == SBP_OK ? status : first;
        }
        r->strict = false;
        return first;
    }
    if (member->kind == SBP_JSON_OBJECT && has_keys(&t))
        return take_json_map(r, (sbp_option_id)t.index, member);
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
    r.seen = SBP_NEW_ARRAY(o->arena, bool, SBP_TRL_END);
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

/* loss: {objective: grpo, epsilon: 0.2} */
static sbp_status take_yaml_map(config_reader *r, sbp_option_id bundle, const sbp_yaml *map) {
    option_pieces pieces = {0};
    for (int32_t i = 0; i < map->count; i++) {
        const sbp_yaml *member = &map->items[i];
        const char *where = sbp_arena_printf(r->o->arena, "%s:%d", r->path, (int)member->line);
        const bool list = member->kind == SBP_YAML_LIST;
        const int32_t count = list ? member->count : 1;
        const char **texts = SBP_NEW_ARRAY(r->o->arena, const char *, count + 1);
        for (int32_t k = 0; k < count; k++) {
            const sbp_yaml *item = list ? &member->items[k] : member;
            if (item->kind != SBP_YAML_SCALAR)
                return sbp_fail(r->diag, SBP_USAGE, "%s: '%s %s': expected a value or a list of them", where,
                                sbp_option_name(bundle), member->key);
            texts[k] = item->text;
        }
        SBP_TRY(add_member(r, where, bundle, member->key, texts, count, &pieces));
    }
    return take_pieces(r, sbp_arena_printf(r->o->arena, "%s:%d", r->path, (int)map->line), map, &pieces);
}

static sbp_status take_yaml(config_reader *r, const sbp_yaml *member) {
    const char *where = sbp_arena_printf(r->o->arena, "%s:%d", r->path, (int)member->line),
               *key = member->key;
    option_setting setting = {.where = where, .config = r->path, .key = key, .strict = r->strict};
    option_target t = sbp_options_find(key, strlen(key));
    if (member->kind == SBP_YAML_MAP && is_map_of_options(key)) {
        r->strict = true;
        sbp_status status = take_members(r, member);
        r->strict = false;
        return status;
    }
    if (member->kind == SBP_YAML_MAP && has_keys(&t))
        return take_yaml_map(r, (sbp_option_id)t.index, member);
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

sbp_status sbp_options_read_config(sbp_options *o, sbp_diag *diag, const char *path) {
    const char *text;
    size_t length;
    config_reader r = {.o = o, .diag = diag, .path = path};
    r.seen = SBP_NEW_ARRAY(o->arena, bool, SBP_TRL_END);
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

sbp_status sbp_options_take(sbp_options *o, sbp_diag *diag, const option_setting *s, const option_target *t,
                            const char *text) {
    const sbp_yaml *root;
    bool known = t->index >= 0 && (sbp_option_at(t->index)->phases & o->phases);
    option_pieces pieces;
    if (known && has_keys(t) && !s->bundle) {
        SBP_TRY(sbp_options_cut(o, diag, s, (sbp_option_id)t->index, text, &pieces));
        for (int32_t i = 0; i < pieces.count; i++) {
            const option_setting setting = {
                .where = s->where, .config = s->config, .key = pieces.items[i].key, .bundle = text};
            const option_target target = {.index = (int32_t)pieces.items[i].option};
            SBP_TRY(sbp_options_assign(o, diag, &setting, &target, pieces.items[i].value));
        }
        return SBP_OK;
    }
    if (!known || !is_map_of_options(s->key) || *text != '{')
        return sbp_options_assign(o, diag, s, t, text);
    config_reader r = {
        .o = o, .diag = diag, .path = sbp_arena_printf(o->arena, "--%s", s->key), .strict = true};
    r.seen = SBP_NEW_ARRAY(o->arena, bool, SBP_TRL_END);
    SBP_TRY(sbp_yaml_parse(o->arena, diag, SBP_USAGE, r.path, text, strlen(text), &root));
    return root && root->kind == SBP_YAML_MAP ? take_members(&r, root) : SBP_OK;
}
