/* options_access.c: what was given, by option. */
#include "runtime/options/options_internal.h"

#include <assert.h>
#include <math.h>
#include <string.h>

static const sbp_option *option_of(sbp_option_id id) {
    return sbp_option_at((int32_t)id);
}

static const option_value *value_of(const sbp_options *o, sbp_option_id id, unsigned kinds) {
    assert((int32_t)id < sbp_option_count() && (kinds >> option_of(id)->kind & 1));
    (void)kinds;
    return &o->values[id];
}

enum {
    ANY_KIND = ~0u >> 1,
    WHOLE = 1 << SBP_OPTION_INT | 1 << SBP_OPTION_SIZE,
    NUMERIC = 1 << SBP_OPTION_INT | 1 << SBP_OPTION_NUMBER | 1 << SBP_OPTION_ENUM,
    BOOLEAN = 1 << SBP_OPTION_ONOFF | 1 << SBP_OPTION_SWITCH
};

int32_t sbp_options_arg_count(const sbp_options *o) {
    return o->arg_count;
}

const char *sbp_options_arg(const sbp_options *o, int32_t index) {
    return o->args[index];
}

unsigned sbp_options_phases(const sbp_options *o) {
    return o->phases;
}

bool sbp_options_given(const sbp_options *o, sbp_option_id id) {
    return value_of(o, id, ANY_KIND)->given;
}

const char *sbp_options_from_config(const sbp_options *o, sbp_option_id id) {
    return value_of(o, id, ANY_KIND)->config;
}

bool sbp_options_from_bundle(const sbp_options *o, sbp_option_id id) {
    return value_of(o, id, ANY_KIND)->bundle != NULL;
}

const char *sbp_options_text(const sbp_options *o, sbp_option_id id) {
    return value_of(o, id, ANY_KIND)->text;
}

bool sbp_options_is(const sbp_options *o, sbp_option_id id, const char *word) {
    const char *text = sbp_options_text(o, id);
    return text && strcmp(text, word) == 0;
}

int64_t sbp_options_int(const sbp_options *o, sbp_option_id id) {
    return value_of(o, id, WHOLE)->integer;
}

double sbp_options_double(const sbp_options *o, sbp_option_id id) {
    const option_value *v = value_of(o, id, NUMERIC | BOOLEAN);
    bool is_number = NUMERIC >> option_of(id)->kind & 1;
    return is_number ? v->number : sbp_options_on(o, id);
}

void sbp_options_pair(const sbp_options *o, sbp_option_id id, double out[2]) {
    const option_value *v = value_of(o, id, 1 << SBP_OPTION_PAIR);
    out[0] = v->number;
    out[1] = v->second;
}

bool sbp_options_on(const sbp_options *o, sbp_option_id id) {
    const option_value *v = value_of(o, id, BOOLEAN);
    return v->text && strcmp(v->text, "on") == 0;
}

int32_t sbp_options_list_count(const sbp_options *o, sbp_option_id id) {
    return value_of(o, id, 1 << SBP_OPTION_LIST)->count;
}

const char *sbp_options_list_at(const sbp_options *o, sbp_option_id id, int32_t index) {
    return value_of(o, id, 1 << SBP_OPTION_LIST)->list[index];
}

void sbp_options_replace(sbp_options *o, sbp_option_id id, int32_t index, const char *text) {
    o->values[id].list[index] = text;
}

const char *const *sbp_options_list(const sbp_options *o, sbp_arena *arena, sbp_option_id id,
                                    int32_t *count) {
    *count = sbp_options_list_count(o, id);
    const char **list = SBP_NEW_ARRAY(arena, const char *, *count);
    for (int32_t i = 0; i < *count; i++)
        list[i] = sbp_options_list_at(o, id, i);
    return list;
}

sbp_status sbp_options_set_default(sbp_options *o, sbp_diag *diag, sbp_option_id id, const char *text) {
    assert(id < SBP_TRL_END && option_of(id)->kind != SBP_OPTION_LIST);
    option_setting setting = {.where = o->program, .key = option_of(id)->name};
    option_value fresh = {0};
    SBP_TRY(sbp_option_convert(o, diag, &setting, option_of(id), text, &fresh));
    if (!o->values[id].given)
        o->values[id] = fresh;
    return SBP_OK;
}

sbp_status sbp_options_forget_usual(sbp_options *o, sbp_diag *diag) {
    for (int32_t i = 0; i < sbp_option_count(); i++) {
        const sbp_option *option = sbp_option_at(i);
        if (!o->values[i].usual)
            continue;
        o->values[i] = (option_value){.integer = -1, .number = NAN, .second = NAN};
        if (*option->fallback)
            SBP_TRY(sbp_options_set_default(o, diag, option->id, option->fallback));
    }
    return SBP_OK;
}

const sbp_option *sbp_options_next_given(const sbp_options *o, unsigned phases, unsigned not_phases,
                                         int32_t *at) {
    for (; *at < sbp_option_count(); (*at)++) {
        const sbp_option *option = sbp_option_at(*at);
        if (o->values[*at].given && (option->phases & phases) && !(option->phases & not_phases)) {
            (*at)++;
            return option;
        }
    }
    return NULL;
}

void sbp_options_to_args(const sbp_options *o, unsigned phases, unsigned not_phases, sbp_arena *arena,
                         const char ***out, int32_t *count) {
    const sbp_option *option;
    int32_t at = 0, capacity = 0;
    *out = NULL;
    *count = 0;
    while ((option = sbp_options_next_given(o, phases, not_phases, &at))) {
        const option_value *v = &o->values[option->id];
        int32_t values = option->kind == SBP_OPTION_LIST ? v->count : 1;
        for (int32_t i = 0; i < values; i++) {
            const char *text = option->kind == SBP_OPTION_LIST ? v->list[i] : v->text;
            SBP_PUSH(arena, *out, *count, capacity, sbp_arena_printf(arena, "--%s=%s", option->name, text));
        }
    }
}
