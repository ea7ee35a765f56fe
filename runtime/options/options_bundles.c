/* options_bundles.c: options with keys, --loss grpo,epsilon=0.2: cut, looked up, and put together again. */
#include "runtime/options/options_internal.h"

#include <string.h>

static const struct {
    sbp_option_id bundle, head; /* head: set by the word before the keys */
} bundles[] = {
#define BUNDLE(id, head) {SBP_OPT_##id, SBP_OPT_##head},
#include "runtime/options/options.def"
};

/* Keys that are options by themselves. */
static const struct {
    sbp_option_id bundle;
    const char *key;
    sbp_option_id option;
} also[] = {
#define ALSO(bundle, key, id) {SBP_OPT_##bundle, key, SBP_OPT_##id},
#include "runtime/options/options.def"
};

static int find_bundle(sbp_option_id id) {
    int i = 0;
    while (i < SBP_COUNT(bundles) && bundles[i].bundle != id)
        i++;
    return i;
}

bool sbp_option_is_bundle(sbp_option_id id) {
    return find_bundle(id) < SBP_COUNT(bundles);
}

const char *sbp_option_key_at(sbp_option_id bundle, int32_t index, sbp_option_id *option) {
    for (int i = 0; i < SBP_COUNT(also); i++)
        if (also[i].bundle == bundle && index-- == 0) {
            *option = also[i].option;
            return also[i].key;
        }
    for (int32_t i = 0; i < sbp_option_count(); i++)
        if (sbp_option_at(i)->bundle == bundle && index-- == 0) {
            *option = sbp_option_at(i)->id;
            return sbp_option_at(i)->key;
        }
    return NULL;
}

sbp_option_id sbp_option_find_key(sbp_option_id bundle, const char *key, size_t length) {
    sbp_option_id option;
    const char *name;
    for (int32_t i = 0; (name = sbp_option_key_at(bundle, i, &option)); i++)
        if (sbp_option_same_name(name, strlen(name), key, length) ||
            sbp_option_same_name(sbp_option_name(option), strlen(sbp_option_name(option)), key, length))
            return option;
    return SBP_OPT_NONE;
}

/* ---- apart ------------------------------------------------------------------------------------------ */

sbp_status sbp_options_unknown_key(sbp_options *o, sbp_diag *diag, const option_setting *s,
                                   sbp_option_id bundle, const char *key) {
    sbp_option_id option;
    const char *name, **names = NULL;
    int32_t count = 0, capacity = 0;
    for (int32_t i = 0; (name = sbp_option_key_at(bundle, i, &option)); i++)
        if (s->config || (sbp_option_at((int32_t)option)->phases & o->phases))
            SBP_PUSH(o->arena, names, count, capacity, name);
    const char *shown = sbp_option_shown(o, s, sbp_option_name(bundle)),
               *near = sbp_option_nearest_of(o->arena, key, names, count);
    if (near)
        return sbp_fail(diag, SBP_USAGE,
                        "%s: %s: '%.100s' is unknown; the nearest is '%s' (--help %s has all)", s->where,
                        shown, key, near, sbp_option_name(bundle));
    sbp_text keys;
    sbp_text_init(&keys, o->arena);
    for (int32_t i = 0; i < count; i++)
        sbp_text_add(&keys, "%s%s", i > 0 ? ", " : "", names[i]);
    return sbp_fail(diag, SBP_USAGE, "%s: %s: '%.100s' is unknown; its keys are %s", s->where, shown, key,
                    keys.data);
}

/* The part of a bundle up to the next comma, in which "\," is a comma. */
static const char *next_part(sbp_arena *arena, const char **at) {
    char *part = sbp_arena_strdup(arena, *at), *to = part;
    const char *c = *at;
    while (*c && *c != ',') {
        c += c[0] == '\\' && c[1] == ',';
        *to++ = *c++;
    }
    *to = 0;
    *at = *c ? c + 1 : c;
    return part;
}

static void add_piece(sbp_arena *arena, option_pieces *out, sbp_option_id option, const char *key,
                      const char *value) {
    const option_piece piece = {.option = option, .key = key, .value = value};
    SBP_PUSH(arena, out->items, out->count, out->capacity, piece);
}

sbp_status sbp_options_cut(sbp_options *o, sbp_diag *diag, const option_setting *s, sbp_option_id bundle,
                           const char *text, option_pieces *out) {
    const sbp_option_id head = bundles[find_bundle(bundle)].head;
    const char *name = sbp_option_name(bundle);
    *out = (option_pieces){0};
    for (const char *at = text; *at || out->count == 0;) {
        const char *part = next_part(o->arena, &at), *equals = strchr(part, '=');
        if (!equals && out->count == 0 && head != SBP_OPT_NONE) {
            add_piece(o->arena, out, head, s->key, part);
            continue;
        }
        if (!equals)
            return sbp_fail(diag, SBP_USAGE, "%s: %s: found '%.100s', expected KEY=VALUE%s", s->where,
                            sbp_option_shown(o, s, name), part,
                            out->count > 0 ? " (a comma of a value is written \\,)" : "");
        size_t length = (size_t)(equals - part);
        sbp_option_id option = sbp_option_find_key(bundle, part, length);
        const char *key = sbp_arena_strndup(o->arena, part, length);
        if (option == SBP_OPT_NONE)
            return sbp_options_unknown_key(o, diag, s, bundle, key);
        if (out->count == 0 && option != bundle)
            sbp_options_imply(bundle, o->arena, out);
        add_piece(o->arena, out, option, sbp_arena_printf(o->arena, "%s %s", name, key), equals + 1);
    }
    return SBP_OK;
}

void sbp_options_imply(sbp_option_id bundle, sbp_arena *arena, option_pieces *out) {
    if (strncmp(sbp_option_at((int32_t)bundle)->values, "on|off", 6) == 0)
        add_piece(arena, out, bundle, sbp_option_name(bundle), "on");
}

/* ---- together --------------------------------------------------------------------------------------- */

static void add_escaped(sbp_text *out, const char *value) {
    for (; *value; value++)
        sbp_text_add(out, *value == ',' ? "\\%c" : "%c", *value);
}

const char *sbp_option_typed(sbp_arena *arena, const sbp_option *option) {
    return option->bundle == SBP_OPT_NONE
               ? sbp_arena_printf(arena, "--%s", option->name)
               : sbp_arena_printf(arena, "--%s %s", sbp_option_name(option->bundle), option->key);
}

/* "--loss" where an argument is "--loss" or "--loss=..". */
static const char *find_argument(const char **args, int32_t count, const char *name, int32_t *at) {
    size_t length = strlen(name);
    for (*at = count - 1; *at >= 0; (*at)--)
        if (strncmp(args[*at], "--", 2) == 0 && strncmp(args[*at] + 2, name, length) == 0 &&
            args[*at][2 + length] == '=')
            return args[*at] + 3 + length;
    return NULL;
}

void sbp_options_spell(sbp_arena *arena, const char **args, int32_t *count) {
    int32_t kept = 0, at;
    for (int32_t i = 0; i < *count; i++) {
        const char *equals = strchr(args[i], '=');
        const sbp_option *option =
            strncmp(args[i], "--", 2) == 0 && equals
                ? sbp_option_find(sbp_arena_strndup(arena, args[i] + 2, (size_t)(equals - args[i] - 2)))
                : NULL;
        if (!option || option->bundle == SBP_OPT_NONE) {
            args[kept++] = args[i];
            continue;
        }
        const char *bundle = sbp_option_name(option->bundle),
                   *before = find_argument(args, kept, bundle, &at);
        sbp_text text;
        sbp_text_init(&text, arena);
        sbp_text_add(&text, "--%s=", bundle);
        if (before && strcmp(before, "on") != 0) /* which keys mean */
            sbp_text_add(&text, "%s,", before);
        sbp_text_add(&text, "%s=", option->key);
        add_escaped(&text, equals + 1);
        args[before ? at : kept++] = text.data;
    }
    *count = kept;
}

const char *sbp_options_bundle(const sbp_options *o, sbp_option_id bundle) {
    const char **args, *text;
    int32_t count, at;
    sbp_options_to_args(o, SBP_PHASE_ALL, 0, o->arena, &args, &count);
    sbp_options_spell(o->arena, args, &count);
    text = find_argument(args, count, sbp_option_name(bundle), &at);
    return text ? text : o->values[bundle].text;
}

/* ---- the names that keys had ------------------------------------------------------------------------ */

void sbp_options_note_name(sbp_options *o, const option_setting *s, const sbp_option *option,
                           const char *text) {
    sbp_text note, value;
    if (option->bundle == SBP_OPT_NONE || s->bundle || s->strict || o->settled ||
        o->values[option->id].noted ||
        !sbp_option_same_name(option->name, strlen(option->name), s->key, strlen(s->key)))
        return;
    o->values[option->id].noted = true;
    sbp_text_init(&note, o->arena);
    sbp_text_init(&value, o->arena);
    add_escaped(&value, text);
    const char *bundle = sbp_option_name(option->bundle), *key = option->key;
    const char *quote = text[strcspn(text, " '\"*?()|[]{}\\$^<>&;")] ? "'" : "";
    if (s->config)
        sbp_text_add(&note, "%s: %s: write %s: {%s: %s}", s->where, s->key, bundle, key, text);
    else
        sbp_text_add(&note, "--%s %s: write --%s %s%s=%s%s", s->key, text, bundle, quote, key, value.data,
                     quote);
    const struct option_name name = {.note = note.data, .of_file = s->config};
    SBP_PUSH(o->arena, o->names, o->name_count, o->name_capacity, name);
}
