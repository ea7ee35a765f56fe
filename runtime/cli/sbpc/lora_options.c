/* lora_options.c: --lora, and the options behind it, for sbp_model_load. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cli/sbpc/cli.h"

/* What --lora may set: "--lora r=8" is --lora-r 8. */
static const sbp_option_id members[] = {SBP_OPT_LORA_R,
                                        SBP_OPT_LORA_ALPHA,
                                        SBP_OPT_LORA_DROPOUT,
                                        SBP_OPT_LORA_RSLORA,
                                        SBP_OPT_LORA_TARGETS,
                                        SBP_OPT_LORA_TARGET_PARAMETERS,
                                        SBP_OPT_LORA_EXCLUDE,
                                        SBP_OPT_LORA_MODULES_TO_SAVE,
                                        SBP_OPT_LORA_LAYERS,
                                        SBP_OPT_LORA_LAYERS_PATTERN,
                                        SBP_OPT_LORA_RANK_PATTERN,
                                        SBP_OPT_LORA_ALPHA_PATTERN};

typedef struct reader {
    const sbp_compilation *c;
    const char *texts[SBP_COUNT(members)]; /* of each member in --lora; NULL: not there */
} reader;

/* "modules-to-save" */
static const char *key_of(sbp_option_id member) {
    return sbp_option_name(member) + strlen("lora-");
}

/* "r=16,alpha=32,.."; "modules_to_save" is "modules-to-save". */
static sbp_status split_members(reader *r, const char *text) {
    sbp_arena *arena = r->c->arena;
    for (const char *at = text; *at;) {
        size_t length = strcspn(at, ","), name = strcspn(at, "=");
        char *key = sbp_arena_strndup(arena, at, name < length ? name : length);
        int k = 0;
        for (char *c = strchr(key, '_'); c; c = strchr(c, '_'))
            *c = '-';
        while (k < SBP_COUNT(members) && strcmp(key_of(members[k]), key) != 0)
            k++;
        if (k == SBP_COUNT(members) || name >= length)
            return sbp_fail(r->c->diag, SBP_USAGE,
                            "--lora: '%.*s' is unknown; give r, alpha, dropout, rslora, targets, "
                            "target_parameters, exclude, modules_to_save, layers, layers_pattern, "
                            "rank_pattern, alpha_pattern, each with "
                            "'=' and a value",
                            (int)length, at);
        r->texts[k] = sbp_arena_strndup(arena, at + name + 1, length - name - 1);
        at += length + (at[length] == ',');
    }
    return SBP_OK;
}

/* What --lora says where the option itself was not given; NULL: nothing. */
static const char *member(const reader *r, sbp_option_id id) {
    if (sbp_options_given(r->c->options, id))
        return NULL;
    for (int k = 0; k < SBP_COUNT(members); k++)
        if (members[k] == id)
            return r->texts[k];
    return NULL;
}

static sbp_status number(const reader *r, sbp_option_id id, double least, double most, double *out) {
    const char *text = member(r, id);
    char *end;
    *out = sbp_options_double(r->c->options, id);
    if (!text)
        return SBP_OK;
    *out = strtod(text, &end);
    if (!*text || *end || !(*out >= least && *out <= most))
        return sbp_fail(r->c->diag, SBP_USAGE, "--lora %s=%s: expected a number from %g to %g", key_of(id),
                        text, least, most);
    return SBP_OK;
}

/* All values of an option, or the one of --lora. */
static const char *const *values(const reader *r, sbp_option_id id, int32_t *count) {
    const char *text = member(r, id);
    const char **one = SBP_NEW(r->c->arena, const char *);
    if (!text)
        return sbp_options_list(r->c->options, r->c->arena, id, count);
    *one = text;
    *count = 1;
    return one;
}

/* "[q_proj, 'v_proj']", a list of YAML: no regular expression of a whole name is one class of letters. */
static bool is_yaml_list(const char *text) {
    size_t n = strlen(text);
    return n >= 2 && text[0] == '[' && text[n - 1] == ']' && !strpbrk(text + 1, "[*?(){}|\\^$") &&
           strchr(text, ']') == text + n - 1 && !strstr(text, "-");
}

/* Names joined by '+', also of an option that is repeated; one that is written like a regular expression is
 * one, where `patterns`, and stands alone. */
static sbp_status names(const reader *r, sbp_option_id id, bool patterns, sbp_lora_names *out) {
    int32_t given, count = 0, capacity = 0;
    const char *const *texts = values(r, id, &given);
    const char **list = NULL;
    *out = (sbp_lora_names){0};
    for (int32_t i = 0; i < given; i++) {
        bool list_of_yaml = is_yaml_list(texts[i]);
        if (patterns && !list_of_yaml && (strpbrk(texts[i], "*?[](){}|\\^$") || strstr(texts[i], ".+"))) {
            if (given > 1)
                return sbp_fail(r->c->diag, SBP_USAGE,
                                "--lora-%s '%s': a regular expression stands alone, for whole names",
                                key_of(id), texts[i]);
            *out = (sbp_lora_names){.names = texts, .count = 1, .pattern = true};
            return SBP_OK;
        }
        for (const char *at = texts[i]; *at;) {
            size_t length = strcspn(at, list_of_yaml ? "[]\"', " : "+, ");
            if (length > 0)
                SBP_PUSH(r->c->arena, list, count, capacity, sbp_arena_strndup(r->c->arena, at, length));
            at += length + (at[length] != 0);
        }
    }
    *out = (sbp_lora_names){.names = list, .count = count};
    return SBP_OK;
}

static sbp_status layers(const reader *r, sbp_lora_options *out) {
    sbp_lora_names list;
    SBP_TRY(names(r, SBP_OPT_LORA_LAYERS, false, &list));
    int64_t *numbers = SBP_NEW_ARRAY(r->c->arena, int64_t, list.count);
    for (int32_t i = 0; i < list.count; i++) {
        char *end;
        numbers[i] = strtoll(list.names[i], &end, 10);
        if (*end || numbers[i] < 0)
            return sbp_fail(r->c->diag, SBP_USAGE, "--lora-layers '%s': expected numbers of layers, from 0",
                            list.names[i]);
    }
    out->layers = numbers;
    out->layer_count = list.count;
    return SBP_OK;
}

/* "REGEX=X" each. */
static sbp_status patterns(const reader *r, sbp_option_id id, const sbp_lora_number **out, int32_t *count) {
    const char *const *texts = values(r, id, count);
    sbp_lora_number *numbers = SBP_NEW_ARRAY(r->c->arena, sbp_lora_number, *count);
    for (int32_t i = 0; i < *count; i++) {
        const char *equals = strrchr(texts[i], '=');
        char *end = NULL;
        if (equals)
            numbers[i].value = strtod(equals + 1, &end);
        if (!equals || !equals[1] || *end || !isfinite(numbers[i].value))
            return sbp_fail(r->c->diag, SBP_USAGE, "--lora-%s '%s': expected REGEX=NUMBER", key_of(id),
                            texts[i]);
        numbers[i].pattern = sbp_arena_strndup(r->c->arena, texts[i], (size_t)(equals - texts[i]));
    }
    *out = numbers;
    return SBP_OK;
}

/* Whether any option but `but` asks for new adapters. */
static bool is_wanted(const reader *r, const char *text, sbp_option_id but) {
    bool off = strcmp(text, "off") == 0, any = !off;
    for (int k = 0; k < SBP_COUNT(members) && !(off && sbp_options_given(r->c->options, SBP_OPT_LORA)); k++)
        any |= members[k] != but && sbp_options_chosen(r->c->options, members[k]);
    return any;
}

sbp_status sbp_cli_read_lora(const sbp_compilation *c, bool adapter, const sbp_lora_options **out) {
    reader r = {.c = c};
    const char *text = sbp_options_text(c->options, SBP_OPT_LORA), *rslora;
    double rank;
    *out = NULL;
    if (!is_wanted(&r, text, adapter ? SBP_OPT_LORA_DROPOUT : SBP_OPT_COUNT))
        return SBP_OK;
    if (strcmp(text, "on") != 0 && strcmp(text, "off") != 0)
        SBP_TRY(split_members(&r, text));
    sbp_lora_options *o = SBP_NEW(c->arena, sbp_lora_options);
    SBP_TRY(number(&r, SBP_OPT_LORA_R, 1, 1e6, &rank));
    SBP_TRY(number(&r, SBP_OPT_LORA_ALPHA, 0, 1e9, &o->alpha));
    SBP_TRY(number(&r, SBP_OPT_LORA_DROPOUT, 0, SBP_BELOW_ONE, &o->dropout));
    if (rank != floor(rank))
        return sbp_fail(c->diag, SBP_USAGE, "--lora r=%g: a rank is a whole number", rank);
    o->rank = (int64_t)rank;
    rslora = member(&r, SBP_OPT_LORA_RSLORA);
    o->rslora = rslora ? strcmp(rslora, "on") == 0 || strcmp(rslora, "true") == 0
                       : sbp_options_on(c->options, SBP_OPT_LORA_RSLORA);
    SBP_TRY(names(&r, SBP_OPT_LORA_TARGETS, true, &o->targets));
    SBP_TRY(names(&r, SBP_OPT_LORA_TARGET_PARAMETERS, false, &o->parameters));
    SBP_TRY(names(&r, SBP_OPT_LORA_EXCLUDE, true, &o->exclude));
    SBP_TRY(names(&r, SBP_OPT_LORA_MODULES_TO_SAVE, false, &o->save));
    SBP_TRY(names(&r, SBP_OPT_LORA_LAYERS_PATTERN, false, &o->layers_pattern));
    if (o->targets.count == 1 && strcmp(o->targets.names[0], "all-linear") == 0) {
        o->all_linear = true;
        o->targets = (sbp_lora_names){0};
    }
    SBP_TRY(layers(&r, o));
    SBP_TRY(patterns(&r, SBP_OPT_LORA_RANK_PATTERN, &o->ranks, &o->rank_count));
    SBP_TRY(patterns(&r, SBP_OPT_LORA_ALPHA_PATTERN, &o->alphas, &o->alpha_count));
    *out = o;
    return SBP_OK;
}
