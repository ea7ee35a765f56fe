/* options_trl.c: settings of TRL that have no option of their own: those without effect, and those that are
 * put together from several. */
#include <string.h>
#include <strings.h>

#include "ir/io/options/options_internal.h"

static const struct ignored {
    const char *name, *usual;
} ignored[] = {
#define IGNORED(name, usual) {name, usual},
#include "ir/io/options/trl.def"
};

const char *sbp_options_ignored(const char *key, size_t length) {
    for (int i = 0; i < SBP_COUNT(ignored); i++)
        if (sbp_option_same_name(ignored[i].name, key, length))
            return ignored[i].usual;
    return NULL;
}

const char *sbp_options_ignored_at(int32_t index) {
    return index < SBP_COUNT(ignored) ? ignored[index].name : NULL;
}

bool sbp_option_is_blank(const char *text) {
    static const char *const blank[] = {"", "~", "none", "null", "{}", "[]"};
    for (int i = 0; i < SBP_COUNT(blank); i++)
        if (strcasecmp(text, blank[i]) == 0)
            return true;
    return false;
}

void sbp_options_say_ignored(sbp_options *o, const option_setting *s, const char *usual, const char *text) {
    if (sbp_option_is_blank(text) || strcasecmp(text, "false") == 0 || sbp_option_accepts(usual, text))
        return;
    if (o->without_effect.length == 0)
        sbp_text_init(&o->without_effect, o->arena);
    sbp_text_add(&o->without_effect, "%s%s%s", o->without_effect.length > 0 ? ", " : "",
                 s->config ? "" : "--", s->key);
}

/* ---- several into one ------------------------------------------------------------------------------- */

static option_value *value_of(sbp_options *o, const char *name) {
    return &o->values[sbp_options_find(name, strlen(name)).index];
}

/* Puts a value where the option was not given. */
static sbp_status settle(sbp_options *o, sbp_diag *diag, const char *name, const char *text,
                         const char *config) {
    option_setting setting = {.where = o->program, .config = config, .key = name};
    option_target target = {.index = sbp_options_find(name, strlen(name)).index};
    return sbp_options_assign(o, diag, &setting, &target, text);
}

static sbp_status settle_model(sbp_options *o, sbp_diag *diag) {
    option_value *model = value_of(o, "model-name-or-path");
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
    option_value *bf16 = value_of(o, "bf16"), *dtype = value_of(o, "dtype");
    bool on = bf16->given && strcmp(bf16->text, "on") == 0;
    bool typed = dtype->given && !dtype->config && bf16->config; /* the command line wins */
    bf16->given = false;
    if (!on || typed || (dtype->given && strcmp(dtype->text, "fp64") == 0))
        return SBP_OK;
    return settle(o, diag, "dtype", "bf16", bf16->config);
}

sbp_status sbp_options_settle(sbp_options *o, sbp_diag *diag) {
    if (o->without_effect.length > 0 && !sbp_options_on(o, "quiet"))
        sbp_note(diag, "without effect here: %s", o->without_effect.data);
    SBP_TRY(settle_model(o, diag));
    return settle_bf16(o, diag);
}

sbp_status sbp_options_settle_batch(sbp_options *o, sbp_diag *diag, int64_t ranks) {
    static const char part_name[] = "per-device-train-batch-size",
                      passes_name[] = "gradient-accumulation-steps";
    option_value *part = value_of(o, part_name), *passes = value_of(o, passes_name);
    const option_value *rows = value_of(o, "batch-size"), *tokens = value_of(o, "batch-tokens");
    int64_t together = sbp_options_int(o, "context-parallel"), product;
    const char *config = part->given ? part->config : passes->config;
    bool given = part->given || passes->given, other = rows->given || tokens->given;
    const char *other_config = rows->given ? rows->config : tokens->config;
    part->given = passes->given = false;
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
    if (!sbp_options_on(o, "quiet"))
        sbp_note(diag,
                 "--batch-size %lld: per_device_train_batch_size %lld x gradient_accumulation_steps %lld x "
                 "%lld rank%s",
                 (long long)product, (long long)part->integer, (long long)passes->integer, (long long)ranks,
                 ranks == 1 ? "" : "s");
    return settle(o, diag, "batch-size", sbp_arena_printf(o->arena, "%lld", (long long)product), config);
}
