/* card.c: files of a data set by its card. */
#include "runtime/data/source/card.h"

#include <string.h>

#include "frontends/formats/files/named_path.h"
#include "ir/base/file.h"
#include "ir/base/yaml.h"

typedef struct card_reader {
    sbp_arena *arena;
    sbp_diag *diag;
    const sbp_card_request *request;
    const char **patterns;
    int32_t count, capacity;
} card_reader;

static const char *text_of(const sbp_yaml *map, const char *key) {
    const sbp_yaml *found = sbp_yaml_member(map, key);
    return found && found->kind == SBP_YAML_SCALAR ? found->text : NULL;
}

static bool is_config(const sbp_yaml *config, const char *name) {
    const char *own = text_of(config, "config_name");
    return own && strcmp(own, name) == 0;
}

/* The one that is asked for; without that the default. */
static sbp_status choose_config(card_reader *c, const sbp_yaml *configs, const sbp_yaml **out) {
    sbp_text names;
    sbp_text_init(&names, c->arena);
    *out = NULL;
    for (int32_t i = 0; i < configs->count; i++) {
        const sbp_yaml *config = &configs->items[i];
        const char *usual = text_of(config, "default"), *name = text_of(config, "config_name");
        sbp_text_add(&names, "%s%s", i > 0 ? ", " : "", name ? name : "?");
        bool is = c->request->config ? is_config(config, c->request->config)
                                     : configs->count == 1 || (usual && strcmp(usual, "true") == 0) ||
                                           (!*out && is_config(config, "default"));
        if (is)
            *out = config;
    }
    if (*out)
        return SBP_OK;
    return sbp_fail(c->diag, SBP_USAGE, "the data set %s has the configs %s: give one as NAME:CONFIG",
                    c->request->id, names.data);
}

/* A place of files within the repository. */
static sbp_status add_pattern(card_reader *c, const sbp_yaml *config, const sbp_yaml *path) {
    const char *folder = text_of(config, "data_dir"), *text = path->kind == SBP_YAML_SCALAR ? path->text : "";
    if (folder && *folder && *text && *text != '/') /* of which "." and "" are the repository itself */
        text = sbp_file_join(c->arena, folder, text);
    while (strncmp(text, "./", 2) == 0)
        text += 2;
    if (!sbp_named_path_stays(text) || *text == '-' || strstr(text, "://") || strpbrk(text, "{},"))
        return sbp_fail(
            c->diag, SBP_INPUT,
            "the card of the data set %s (README.md, line %d) names files that are not read: '%.100s'",
            c->request->id, (int)path->line, text);
    SBP_PUSH(c->arena, c->patterns, c->count, c->capacity, text);
    return SBP_OK;
}

static sbp_status add_patterns(card_reader *c, const sbp_yaml *config, const sbp_yaml *paths) {
    if (!paths || paths->kind == SBP_YAML_SCALAR)
        return paths ? add_pattern(c, config, paths) : SBP_OK;
    for (int32_t i = 0; i < paths->count; i++)
        SBP_TRY(add_pattern(c, config, &paths->items[i]));
    return SBP_OK;
}

/* data_files: a path or paths (of train), paths by split, or a list of {split, path}. */
static sbp_status choose_split(card_reader *c, const sbp_yaml *config) {
    const sbp_yaml *files = sbp_yaml_member(config, "data_files");
    bool single =
        files && (files->kind == SBP_YAML_SCALAR || (files->kind == SBP_YAML_LIST && files->count > 0 &&
                                                     files->items[0].kind == SBP_YAML_SCALAR));
    sbp_text names;
    sbp_text_init(&names, c->arena);
    sbp_text_add(&names, "%s", single ? "train" : "");
    if (single && strcmp(c->request->split, "train") == 0)
        return add_patterns(c, config, files);
    for (int32_t i = 0; files && !single && i < files->count; i++) {
        const sbp_yaml *item = &files->items[i];
        bool map = files->kind == SBP_YAML_MAP;
        const char *split = map ? item->key : text_of(item, "split");
        sbp_text_add(&names, "%s%s", i > 0 ? ", " : "", split ? split : "?");
        if (split && strcmp(split, c->request->split) == 0)
            SBP_TRY(add_patterns(c, config, map ? item : sbp_yaml_member(item, "path")));
    }
    return c->count > 0 ? SBP_OK
                        : sbp_fail(c->diag, SBP_USAGE,
                                   "the data set %s has no split '%s', but: %s (give one as "
                                   "NAME:CONFIG:SPLIT)",
                                   c->request->id, c->request->split,
                                   names.length > 0 ? names.data : "none with data_files");
}

/* Front matter: between the first two lines "---"; NULL: there is none. */
static sbp_status read_front(const card_reader *c, const char *text, const sbp_yaml **out) {
    *out = NULL;
    if (strncmp(text, "---\n", 4) != 0 && strncmp(text, "---\r\n", 5) != 0)
        return SBP_OK;
    const char *begin = strchr(text, '\n') + 1, *end = strstr(begin, "\n---");
    if (!end)
        return SBP_OK;
    return sbp_yaml_parse(c->arena, c->diag, SBP_INPUT, c->request->path, begin, (size_t)(end + 1 - begin),
                          out);
}

sbp_status sbp_card_files(sbp_arena *arena, sbp_diag *diag, const sbp_card_request *request, const char *text,
                          const char ***patterns, int32_t *count) {
    card_reader c = {.arena = arena, .diag = diag, .request = request};
    const sbp_yaml *card, *config, *configs;
    SBP_TRY(read_front(&c, text, &card));
    configs = sbp_yaml_member(card, "configs");
    if (configs && configs->kind == SBP_YAML_LIST && configs->count > 0) {
        SBP_TRY(choose_config(&c, configs, &config));
        SBP_TRY(choose_split(&c, config));
    }
    *patterns = c.patterns;
    *count = c.count;
    return SBP_OK;
}
