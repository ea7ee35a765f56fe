/* options_assign.c: puts values in: what words and aliases stand for, and what an option refuses. */
#include "runtime/options/options_internal.h"

#include <string.h>
#include <strings.h>

/* ---- words that stand for several options ------------------------------------------------------------ */

static const struct {
    const char *name, *word, *value, *others;
} elsewhere[] = {
#define ELSEWHERE(name, word, value, others) {name, word, value, others},
#include "runtime/options/trl.def"
};

/* "state-dtype=int8": where it was not given otherwise. */
static sbp_status take_other(sbp_options *o, sbp_diag *diag, const option_setting *s, const char *other,
                             sbp_text *said) {
    const char *value = strchr(other, '=') + 1;
    const sbp_option *option =
        sbp_option_find(sbp_arena_strndup(o->arena, other, (size_t)(value - 1 - other)));
    const option_target target = {.index = (int32_t)option->id};
    if (!(option->phases & o->phases) || o->values[option->id].given)
        return SBP_OK;
    sbp_text_add(said, " --%s %s", option->name, value);
    return sbp_options_assign(o, diag, s, &target, value);
}

static sbp_status take_elsewhere(sbp_options *o, sbp_diag *diag, const option_setting *s,
                                 const sbp_option *option, const char **text) {
    int line = 0;
    sbp_text said;
    for (; line < SBP_COUNT(elsewhere); line++)
        if (strcmp(elsewhere[line].name, option->name) == 0 &&
            sbp_option_same_name(elsewhere[line].word, strlen(elsewhere[line].word), *text, strlen(*text)))
            break;
    if (line == SBP_COUNT(elsewhere))
        return SBP_OK;
    sbp_text_init(&said, o->arena);
    sbp_text_add(&said, "%s %s: taken as --%s %s", sbp_option_shown(o, s, s->key), *text, option->name,
                 elsewhere[line].value);
    char *others = sbp_arena_strdup(o->arena, elsewhere[line].others), *rest = others;
    for (char *other; (other = strtok_r(rest, " ", &rest));)
        SBP_TRY(take_other(o, diag, s, other, &said));
    *text = elsewhere[line].value;
    SBP_PUSH(o->arena, o->notes, o->note_count, o->note_capacity, said.data);
    return SBP_OK;
}

/* ---- values ----------------------------------------------------------------------------------------- */

static sbp_status put(sbp_options *o, sbp_diag *diag, const option_setting *s, int32_t index,
                      const char *text) {
    const sbp_option *option = sbp_option_at(index);
    option_value *v = &o->values[index];
    if (option->id == SBP_OPT_DTYPE && sbp_option_same_name("float16", 7, text, strlen(text))) {
        o->half = sbp_arena_printf(o->arena, "%s: %s float16", s->where, sbp_option_shown(o, s, s->key));
        return SBP_OK;
    }
    SBP_TRY(take_elsewhere(o, diag, s, option, &text));
    sbp_options_note_name(o, s, option, text);
    if (option->kind == SBP_OPTION_LIST) {
        v->count = v->bundle == s->bundle ? v->count : 0;
        v->bundle = s->bundle;
        v->given = true;
        v->config = s->config;
        v->text = text;
        SBP_PUSH(o->arena, v->list, v->count, v->capacity, text);
        return SBP_OK;
    }
    option_value fresh = {.given = true, .config = s->config, .noted = v->noted, .bundle = s->bundle};
    SBP_TRY(sbp_option_convert(o, diag, s, option, text, &fresh));
    *v = fresh;
    return SBP_OK;
}

/* ---- aliases ---------------------------------------------------------------------------------------- */

/* What an alias' map {from=to;..} makes of a value. */
static const char *map_value(sbp_arena *arena, const char *alias, const char *text) {
    if (*alias != '{')
        return text;
    for (const char *p = alias + 1; *p && *p != '}';) {
        size_t from = strcspn(p, "="), whole = strcspn(p, ";}");
        if (sbp_option_same_value(p, from, text))
            return sbp_arena_strndup(arena, p + from + 1, whole - from - 1);
        p += whole + (p[whole] == ';');
    }
    return text;
}

/* alias: what follows the alias' name in the table. */
static sbp_status assign_alias(sbp_options *o, sbp_diag *diag, const option_setting *s, int32_t index,
                               const char *alias, const char *text) {
    text = map_value(o->arena, alias, text);
    if (!*text)
        return SBP_OK;
    size_t end = strcspn(alias, " ");
    const char *plus = memchr(alias, '+', end), *component = memchr(alias, '#', end);
    if (plus) {
        size_t name = strcspn(plus + 1, "="), whole = strcspn(plus + 1, " ");
        option_target other = sbp_options_find(plus + 1, name);
        const char *value = sbp_arena_strndup(o->arena, plus + 2 + name, whole - name - 1);
        if ((sbp_option_at(other.index)->phases & o->phases) && !o->values[other.index].given)
            SBP_TRY(put(o, diag, s, other.index, value));
    }
    if (component) { /* the other component stays */
        const option_value *v = &o->values[index];
        char first[32], second[32];
        sbp_format_double(first, sizeof first, v->number);
        sbp_format_double(second, sizeof second, v->second);
        text = component[1] == '0' ? sbp_arena_printf(o->arena, "%s,%s", text, second)
                                   : sbp_arena_printf(o->arena, "%s,%s", first, text);
    }
    return put(o, diag, s, index, text);
}

bool sbp_options_leaves_default(sbp_options *o, const option_setting *s, const option_target *t,
                                const char *text) {
    const sbp_option *option = t->index >= 0 ? sbp_option_at(t->index) : NULL;
    if (!option || (!s->config && !t->alias))
        return false;
    bool leaves = (t->alias && !*map_value(o->arena, t->alias, text)) ||
                  (sbp_option_is_blank(text) && !sbp_option_is_word(option, text));
    o->values[t->index].left |= leaves;
    return leaves;
}

sbp_status sbp_options_assign(sbp_options *o, sbp_diag *diag, const option_setting *s, const option_target *t,
                              const char *text) {
    bool off = sbp_option_is_blank(text) ||
               (strcasecmp(text, "false") == 0 && strcmp(t->accepted ? t->accepted : "", "true") != 0);
    if (t->usual) {
        sbp_options_say_ignored(o, s, t->usual, text);
        return SBP_OK;
    }
    if (t->reason)
        return off || sbp_option_accepts(t->accepted, text)
                   ? SBP_OK
                   : sbp_fail(diag, SBP_USAGE, "%s: %s: %s", s->where, sbp_option_shown(o, s, s->key),
                              t->reason);
    if (t->index < 0)
        return sbp_options_unknown(o, diag, s);
    const sbp_option *option = sbp_option_at(t->index);
    if (!(option->phases & o->phases)) {
        const char *usual =
            sbp_options_ignored(s->key, strlen(s->key)); /* of TRL: what trains takes no note */
        if (usual)
            sbp_options_say_ignored(o, s, usual, text);
        return usual || s->config /* for the other program */
                   ? SBP_OK
                   : sbp_fail(diag, SBP_USAGE, "%s: %s is an option of %s", s->where,
                              sbp_option_shown(o, s, s->key), sbp_phase_title(option->phases));
    }
    if (option->state == SBP_OPTION_LATER)
        return sbp_fail(diag, SBP_USAGE, "%s: %s is not supported yet", s->where,
                        sbp_option_shown(o, s, s->key));
    if ((s->config || t->alias) && sbp_options_leaves_default(o, s, t, text))
        return SBP_OK;
    if (t->alias)
        return assign_alias(o, diag, s, t->index, t->alias, text);
    const char *values = sbp_options_trl_values(option->name); /* its word may be ours, with other values */
    if (values)
        text = map_value(o->arena, values, text);
    return put(o, diag, s, t->index, text);
}
