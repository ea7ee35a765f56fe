/* options_help.c: the table of options as text: --help, the README, and resolved values as JSON. */
#include <ctype.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "ir/base/json_write.h"
#include "runtime/options/options_internal.h"

enum { HELP_COLUMN = 34, HELP_WIDTH = 98 };

/* "N|auto" without what is hidden. */
static void add_values(sbp_text *out, const sbp_option *option, const char *separator) {
    const char *at = NULL, *begin;
    size_t length;
    bool hidden, first = true;
    while (sbp_option_alternative(option->values, &at, &begin, &length, &hidden)) {
        if (hidden)
            continue;
        sbp_text_add(out, "%s%.*s", first ? "" : separator, (int)length, begin);
        first = false;
    }
}

const char *sbp_option_values(sbp_arena *arena, const sbp_option *option, const char *separator) {
    sbp_text out;
    sbp_text_init(&out, arena);
    add_values(&out, option, separator);
    return out.length ? out.data : "";
}

/* Adds words, broken so that no line is longer than HELP_WIDTH. A separator other than a blank stays. */
static void add_wrapped(sbp_text *out, const char *text, const char *separators) {
    size_t column = HELP_COLUMN;
    bool blank = false;
    while (*text) {
        size_t word = strcspn(text, separators);
        word += text[word] && text[word] != ' ';
        if (column + blank + word > HELP_WIDTH && column > HELP_COLUMN) {
            sbp_text_add(out, "\n%*s", HELP_COLUMN, "");
            column = HELP_COLUMN;
        } else if (blank) {
            sbp_text_add(out, " ");
            column++;
        }
        sbp_text_add_n(out, text, word);
        column += word;
        text += word;
        blank = *text == ' ';
        text += blank;
    }
}

/* As one of the options, or as a key of a bundle. */
static void add_option(sbp_text *out, const sbp_option *option, const char *key) {
    size_t start = out->length;
    if (key)
        sbp_text_add(out, "  %s=", key);
    else if (option->letter)
        sbp_text_add(out, "  -%c, --%s", option->letter, option->name);
    else
        sbp_text_add(out, "  --%s", option->name);
    sbp_text values;
    sbp_text_init(&values, out->arena);
    if (option->kind != SBP_OPTION_SWITCH)
        add_values(&values, option, "|");
    bool aside = out->length - start + !key + values.length + 2 <= HELP_COLUMN;
    if (aside && values.length)
        sbp_text_add(out, "%s%s", key ? "" : " ", values.data);
    size_t used = out->length - start;
    if (used + 2 <= HELP_COLUMN)
        sbp_text_add(out, "%*s", (int)(HELP_COLUMN - used), "");
    else
        sbp_text_add(out, "\n%*s", HELP_COLUMN, "");
    const char *fallback = option->kind == SBP_OPTION_SWITCH ? "" : option->fallback;
    add_wrapped(
        out, *fallback ? sbp_arena_printf(out->arena, "%s (%s)", option->help, fallback) : option->help, " ");
    if (!aside) {
        sbp_text_add(out, "\n%*s", HELP_COLUMN, "");
        add_wrapped(out, values.data, "|");
    }
    sbp_text_add(out, "\n");
}

/* The keys of a bundle, where it is of the phases. */
static void add_keys(sbp_text *out, sbp_option_id bundle, unsigned phases) {
    const char *key;
    sbp_option_id id;
    sbp_text_add(out, "\nKeys of --%s, each KEY=VALUE, joined by ',':\n", sbp_option_name(bundle));
    for (int32_t i = 0; (key = sbp_option_key_at(bundle, i, &id)); i++)
        if (sbp_option_at((int32_t)id)->phases & phases)
            add_option(out, sbp_option_at((int32_t)id), key);
}

/* Whether any of a group is an option of the phases; with out, prints them. */
static bool add_group(sbp_text *out, int group, unsigned phases) {
    bool any = false;
    for (int32_t i = 0; i < sbp_option_count(); i++) {
        const sbp_option *option = sbp_option_at(i);
        if (option->group != group || !(option->phases & phases) || option->state != SBP_OPTION_BUILT)
            continue;
        if (out && !any)
            sbp_text_add(out, "\n%s:\n", sbp_option_group_title(group));
        any = true;
        if (out)
            add_option(out, option, NULL);
    }
    return any;
}

void sbp_options_print_help(sbp_text *out, unsigned phases) {
    for (int group = 0; group < sbp_option_group_count(); group++)
        (void)add_group(out, group, phases);
}

/* ---- the first page --------------------------------------------------------------------------------- */

static const struct first {
    sbp_phase command;
    const char *name, *example, *help;
} firsts[] = {
#define FIRST(phase, name, example, help) {SBP_PHASE_##phase, name, example, help},
#include "runtime/options/options.def"
};

/* Names of the groups, which are the topics of --help. */
static const char *const topics[] = {
#define GROUP(id, title) #id,
#include "runtime/options/options.def"
};

const char *sbp_option_group_topic(int group) {
    return topics[group];
}

bool sbp_option_first_at(int32_t index, sbp_phase *command, const char **name, const char **example) {
    if (index >= SBP_COUNT(firsts))
        return false;
    *command = firsts[index].command;
    *name = firsts[index].name;
    *example = firsts[index].example;
    return true;
}

/* "cpu, cuda or vulkan": the words of an option, but for its default. */
static const char *words_of(sbp_arena *arena, const sbp_option *option) {
    sbp_text out;
    sbp_text_init(&out, arena);
    const char *last = NULL, *at = NULL, *begin;
    size_t length;
    bool hidden;
    while (sbp_option_alternative(option->values, &at, &begin, &length, &hidden)) {
        const char *word = sbp_arena_strndup(arena, begin, length);
        if (hidden || strcmp(word, option->fallback) == 0)
            continue;
        if (last)
            sbp_text_add(&out, "%s%s", out.length ? ", " : "", last);
        last = word;
    }
    sbp_text_add(&out, "%s%s", out.length ? " or " : "", last ? last : "");
    return out.data;
}

static void add_first(sbp_text *out, const struct first *f) {
    enum { COLUMN = 30 };
    const char *words = strstr(f->help, "{}");
    char option[80];
    snprintf(option, sizeof option, "--%s%s%s", f->name, *f->example ? " " : "", f->example);
    sbp_text line;
    sbp_text_init(&line, out->arena);
    sbp_text_add(&line, "  %-*s%.*s", COLUMN - 2, option, words ? (int)(words - f->help) : INT_MAX, f->help);
    if (words)
        sbp_text_add(&line, "%s%s", words_of(out->arena, sbp_option_find(f->name)), words + 2);
    sbp_text_add(&line, "\n");
    sbp_text_add_wrapped(out, line.data, HELP_WIDTH, COLUMN);
}

/* Whether a group has options, or keys that belong to options of the phases. */
static bool is_topic(int group, unsigned phases) {
    for (int32_t i = 0; i < sbp_option_count(); i++) {
        const sbp_option *option = sbp_option_at(i);
        if (option->group == group && (option->phases & phases) &&
            (option->state == SBP_OPTION_BUILT || option->state == SBP_OPTION_KEY))
            return true;
    }
    return false;
}

static void add_topics(sbp_text *out, unsigned phases) {
    sbp_text line;
    sbp_text_init(&line, out->arena);
    sbp_text_add(&line, "\n--help all has all options, --help TOPIC some:");
    for (int group = 0; group < sbp_option_group_count(); group++)
        if (is_topic(group, phases)) {
            sbp_text_add(&line, " ");
            for (const char *c = topics[group]; *c; c++)
                sbp_text_add(&line, "%c", tolower((unsigned char)*c));
        }
    sbp_text_add(&line, ".\n");
    sbp_text_add_wrapped(out, line.data, HELP_WIDTH, 0);
}

/* The bundle whose keys are a topic, which is called as it is; NULL: it is none. */
static const sbp_option *find_bundle(unsigned phases, const char *topic) {
    const sbp_option *option = topic ? sbp_option_find(topic) : NULL;
    return option && (option->phases & phases) && sbp_option_is_bundle(option->id) ? option : NULL;
}

static int find_topic(unsigned phases, const char *topic) {
    for (int group = 0; group < sbp_option_group_count(); group++)
        if (strcasecmp(topics[group], topic) == 0 && add_group(NULL, group, phases))
            return group;
    return -1;
}

bool sbp_options_is_topic(unsigned phases, const char *topic) {
    return find_topic(phases, topic) >= 0 || find_bundle(phases, topic);
}

void sbp_options_print_topic(sbp_text *out, sbp_phase command, unsigned phases, const char *topic) {
    if (topic && strcmp(topic, "all") == 0) {
        sbp_options_print_help(out, phases);
        return;
    }
    if (topic && sbp_options_is_topic(phases, topic)) {
        const int group = find_topic(phases, topic);
        if (group >= 0)
            (void)add_group(out, group, phases);
        if (find_bundle(phases, topic))
            add_keys(out, find_bundle(phases, topic)->id, phases);
        return;
    }
    sbp_text_add(out, "\n");
    for (int i = 0; i < SBP_COUNT(firsts); i++)
        if (firsts[i].command == command)
            add_first(out, &firsts[i]);
    add_topics(out, phases);
}

/* ---- Markdown --------------------------------------------------------------------------------------- */

static void add_row(sbp_text *out, const sbp_option *option, const char *key) {
    sbp_text_add(out, key ? "| `%s" : "| `--%s", key ? key : option->name);
    if (option->kind != SBP_OPTION_SWITCH) {
        sbp_text_add(out, key ? "=" : " ");
        add_values(out, option, "\\|");
    }
    const char *fallback = option->kind == SBP_OPTION_SWITCH ? "" : option->fallback;
    sbp_text_add(out, *fallback ? "` | `%s` | " : "` | %s | ", fallback);
    const char *name;
    bool first = true;
    for (int32_t i = 0; (name = sbp_options_trl_name_at(option, i)); i++)
        if (strcmp(name, option->name) != 0) {
            sbp_text_add(out, "%s`%s`", first ? "" : ", ", name);
            first = false;
        }
    sbp_text_add(out, " | %s |\n", option->help);
}

/* Names of TRL that are no options. */
static void add_trl(sbp_text *out) {
    const char *name, *reason;
    sbp_text_add(out, "\n**Settings of TRL** that are neither above nor named there, on command lines and in "
                      "files. Refused, where "
                      "they are not at their default:\n\n| TRL | |\n|---|---|\n");
    for (int32_t i = 0; sbp_options_refused_at(i, &name, &reason); i++)
        sbp_text_add(out, "| `%s` | %s |\n", name, reason);
    sbp_text_add(out, "\nTaken as part of another option:\n\n| TRL | here |\n|---|---|\n");
    for (int32_t i = SBP_TRL_BEFORE + 1; i < SBP_TRL_END; i++)
        if (*sbp_option_at(i)->help)
            sbp_text_add(out, "| `%s` | `%s` |\n", sbp_option_at(i)->name, sbp_option_at(i)->help);
    sbp_text_add(out, "\nWithout effect here:");
    for (int32_t i = 0; sbp_options_ignored_at(i); i++)
        sbp_text_add(out, "%s `%s`", i > 0 ? "," : "", sbp_options_ignored_at(i));
    sbp_text_add(out, ".\n");
}

/* A table of the options of phases that are in `state`, under a title. */
static void add_table(sbp_text *out, unsigned phases, sbp_option_state state, const char *title) {
    bool first = true;
    for (int32_t i = 0; i < sbp_option_count(); i++) {
        const sbp_option *option = sbp_option_at(i);
        if (!(option->phases & phases) || option->state != state || option->phases == SBP_PHASE_ALL)
            continue;
        if (first)
            sbp_text_add(out, "%s**%s**\n\n| option | default | TRL | |\n|---|---|---|---|\n",
                         out->length ? "\n" : "", title);
        first = false;
        add_row(out, option, NULL);
    }
}

static void add_bundle(sbp_text *out, const sbp_option *bundle) {
    const char *key;
    sbp_option_id id;
    sbp_text_add(out, "\n**Keys of --%s**\n\n| key | default | TRL | |\n|---|---|---|---|\n", bundle->name);
    for (int32_t i = 0; (key = sbp_option_key_at(bundle->id, i, &id)); i++)
        add_row(out, sbp_option_at((int32_t)id), key);
}

void sbp_options_print_markdown(sbp_text *out) {
    static const unsigned phases[] = {SBP_PHASE_COMPILE,  SBP_PHASE_INSPECT, SBP_PHASE_RUN,
                                      SBP_PHASE_TOKENIZE, SBP_PHASE_EXPORT,  SBP_PHASE_GENERATE};
    for (int p = 0; p < SBP_COUNT(phases); p++)
        add_table(out, phases[p], SBP_OPTION_BUILT, sbp_phase_title(phases[p]));
    for (int32_t i = 0; i < sbp_option_count(); i++)
        if (sbp_option_is_bundle(sbp_option_at(i)->id))
            add_bundle(out, sbp_option_at(i));
    add_table(out, SBP_PHASE_ALL, SBP_OPTION_HIDDEN, "Options that --help leaves out");
    add_trl(out);
}

/* ---- JSON ------------------------------------------------------------------------------------------- */

/* As `text` would stand for an option; NULL: as an empty one. */
static void write_text(sbp_json_writer *w, const char *key, const sbp_option *option, const char *text) {
    char *end;
    text = text ? text : "";
    double number = strtod(text, &end);
    if (option->kind == SBP_OPTION_ONOFF || option->kind == SBP_OPTION_SWITCH)
        sbp_json_write_bool(w, key, strcmp(text, "on") == 0);
    else if ((option->kind == SBP_OPTION_INT || option->kind == SBP_OPTION_NUMBER) && *text && !*end &&
             isfinite(number))
        sbp_json_write_double(w, key, number);
    else
        sbp_json_write_string(w, key, text);
}

static void write_value(sbp_json_writer *w, const char *key, const sbp_option *option,
                        const option_value *v) {
    if (option->kind == SBP_OPTION_LIST) {
        sbp_json_write_array(w, key);
        for (int32_t i = 0; i < v->count; i++)
            sbp_json_write_string(w, NULL, v->list[i]);
        sbp_json_write_end(w);
    } else if (!v->text) {
        sbp_json_write_null(w, key);
    } else if (v->integer >= 0) {
        sbp_json_write_int(w, key, v->integer);
    } else if (option->kind == SBP_OPTION_PAIR) {
        sbp_json_write_array(w, key);
        sbp_json_write_double(w, NULL, v->number);
        sbp_json_write_double(w, NULL, v->second);
        sbp_json_write_end(w);
    } else {
        write_text(w, key, option, v->text);
    }
}

/* The value of an option, or what `text` in its place would be. */
static const char *as_json(sbp_arena *arena, const sbp_option *option, const option_value *v,
                           const char *text) {
    sbp_text out;
    sbp_text_init(&out, arena);
    sbp_json_writer w = sbp_json_writer_on(&out);
    if (v)
        write_value(&w, NULL, option, v);
    else
        write_text(&w, NULL, option, text);
    return out.data;
}

bool sbp_options_same(const sbp_options *o, const sbp_option *option, const sbp_json *value) {
    const char *mine = as_json(o->arena, option, &o->values[option->id], NULL);
    const sbp_json *parsed;
    if (!value || sbp_json_parse(o->arena, NULL, "value", mine, strlen(mine), 0, &parsed) != SBP_OK)
        return strcmp(mine, "null") == 0;
    sbp_text own, other;
    sbp_text_init(&own, o->arena);
    sbp_text_init(&other, o->arena);
    sbp_json_add_value(&own, parsed); /* both by one printer */
    sbp_json_add_value(&other, value);
    return strcmp(own.data, other.data) == 0;
}

bool sbp_option_is_kept(const sbp_option *option) {
    return option->state != SBP_OPTION_PRIVATE && option->state != SBP_OPTION_LATER &&
           option->kind != SBP_OPTION_BUNDLE && option->phases != SBP_PHASE_ALL;
}

void sbp_options_write_json(sbp_json_writer *w, const sbp_options *o, unsigned phases) {
    for (int32_t i = 0; i < sbp_option_count(); i++) {
        const sbp_option *option = sbp_option_at(i);
        if ((option->phases & phases) && sbp_option_is_kept(option))
            write_value(w, option->name, option, &o->values[i]);
    }
}

/* The keys of a bundle that are of the phases, and its word. */
static void write_bundle(sbp_json_writer *w, const sbp_options *o, const sbp_option *bundle,
                         unsigned phases) {
    sbp_json_write_object(w, bundle->name);
    if (bundle->kind != SBP_OPTION_BUNDLE)
        write_value(w, "type", bundle, &o->values[bundle->id]);
    for (int32_t i = 0; i < sbp_option_count(); i++)
        if (sbp_option_at(i)->bundle == bundle->id && (sbp_option_at(i)->phases & phases))
            write_value(w, sbp_option_at(i)->key, sbp_option_at(i), &o->values[i]);
    sbp_json_write_end(w);
}

void sbp_options_write_config(sbp_json_writer *w, const sbp_options *o, unsigned phases) {
    for (int32_t i = 0; i < sbp_option_count(); i++) {
        const sbp_option *option = sbp_option_at(i);
        if (!(option->phases & phases) || option->state == SBP_OPTION_KEY)
            continue;
        if (sbp_option_is_bundle(option->id))
            write_bundle(w, o, option, phases);
        else if (sbp_option_is_kept(option))
            write_value(w, option->name, option, &o->values[i]);
    }
}

const sbp_json *sbp_options_member(sbp_arena *arena, const sbp_json *members, const sbp_option *option) {
    const sbp_json *value = sbp_json_member(members, option->name);
    if (option->bundle != SBP_OPT_NONE && !value)
        value = sbp_json_member(sbp_json_member(members, sbp_option_name(option->bundle)), option->key);
    else if (value && value->kind == SBP_JSON_OBJECT)
        value = sbp_json_member(value, "type");
    if (!value)
        return NULL;
    sbp_json *named = SBP_NEW(arena, sbp_json);
    *named = *value;
    named->key = option->name;
    return named;
}

/* ---- defaults --------------------------------------------------------------------------------------- */

bool sbp_options_chosen(const sbp_options *o, sbp_option_id id) {
    const sbp_option *option = sbp_option_at((int32_t)id);
    const option_value *v = &o->values[id];
    if (!v->given)
        return false;
    if (!v->config || !v->text || option->kind == SBP_OPTION_LIST)
        return true;
    return strcmp(as_json(o->arena, option, v, NULL), as_json(o->arena, option, NULL, option->fallback)) != 0;
}
