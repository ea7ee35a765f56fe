/* options_settle.c: settings that are put together, after all has been read. */
#include "ir/base/file.h"
#include "runtime/options/options_internal.h"

#include <math.h>
#include <string.h>

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
    option_value *revision = &o->values[SBP_TRL_MODEL_REVISION];
    bool given = revision->given && strcmp(revision->text, "main") != 0;
    revision->given = false;
    if (given && o->arg_count > 0 && !strchr(o->args[0], '@') && !sbp_file_exists(o->args[0]) &&
        !sbp_directory_exists(o->args[0]))
        o->args[0] = sbp_arena_printf(o->arena, "%s@%s", o->args[0], revision->text);
}

static sbp_status settle_model(sbp_options *o, sbp_diag *diag) {
    option_value *model = &o->values[SBP_TRL_MODEL_NAME_OR_PATH];
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
    option_value *bf16 = &o->values[SBP_TRL_BF16], *dtype = &o->values[SBP_OPT_DTYPE];
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

/* eval_strategy: no, where it is said: eval_steps beside it means nothing. The command line wins. steps
 * without eval_steps: those of logging_steps, whose default is transformers', or TRL's. */
static sbp_status settle_evaluations(sbp_options *o, sbp_diag *diag) {
    const option_value *strategy = &o->values[SBP_OPT_EVAL_STRATEGY];
    option_value *every = &o->values[SBP_OPT_EVAL_EVERY];
    bool no = strategy->given && strcmp(strategy->text, "no") == 0;
    if (no && every->given && (every->config || !strategy->config))
        *every = (option_value){.integer = -1, .number = NAN, .second = NAN};
    if (!strategy->given || strcmp(strategy->text, "steps") != 0 || every->given ||
        sbp_options_on(o, SBP_OPT_RESUME)) /* which has those of the run */
        return SBP_OK;
    const option_value *log = &o->values[SBP_OPT_LOG_EVERY];
    return settle(o, diag, SBP_OPT_EVAL_EVERY,
                  log->given                 ? log->text
                  : o->trl || o->file_of_trl ? "10"
                                             : "500",
                  strategy->config);
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
    option_value *strategy = &o->values[SBP_TRL_PACKING_STRATEGY], *overlong = &o->values[SBP_OPT_OVERLONG];
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

/* Whether it could be ORGANISATION/NAME of the Hub, with :CONFIG:SPLIT or not, and is no file here. */
static bool is_data_set(const char *text) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-@/:";
    const char *slash = strchr(text, '/');
    return slash && slash > text && text[0] != '.' && slash[1] != '.' && slash[1] &&
           strspn(text, letters) == strlen(text) && !strchr(slash + 1, '/') && !sbp_file_exists(text) &&
           !sbp_directory_exists(text);
}

/* NAME:CONFIG:SPLIT of what a name says already and, where it does not, of these. */
static const char *with_parts(sbp_arena *arena, const char *text, const char *config, const char *split) {
    const size_t name = strcspn(text, ":");
    const char *at = text + name + (text[name] == ':');
    const size_t own = strcspn(at, ":");
    const char *own_split = at[own] ? at + own + 1 : "";
    if (own > 0)
        config = sbp_arena_strndup(arena, at, own);
    if (*own_split)
        split = own_split;
    return sbp_arena_printf(arena, "%.*s:%s%s%s", (int)name, text, config ? config : "", split ? ":" : "",
                            split ? split : "");
}

/* A value of TRL that is taken up here; NULL: it was not given, or is its default. */
static const char *take_value(sbp_options *o, sbp_option_id id) {
    option_value *v = &o->values[id];
    const char *text =
        v->given && strcmp(v->text, sbp_option_at((int32_t)id)->fallback) != 0 ? v->text : NULL;
    v->given = false;
    return text;
}

static void name_parts(sbp_options *o, sbp_option_id id, const char *config, const char *split) {
    option_value *v = &o->values[id];
    for (int32_t i = 0; i < v->count && (config || split); i++)
        if (is_data_set(v->list[i]))
            v->list[i] = with_parts(o->arena, v->list[i], config, split);
}

/* dataset_config and the splits are parts of the names in --data and --eval: NAME:CONFIG:SPLIT. */
static void settle_data_sets(sbp_options *o, sbp_diag *diag) {
    const char *config = take_value(o, SBP_TRL_DATASET_CONFIG),
               *train = take_value(o, SBP_TRL_DATASET_TRAIN_SPLIT),
               *test = take_value(o, SBP_TRL_DATASET_TEST_SPLIT);
    const option_value *data = &o->values[SBP_OPT_DATA], *eval = &o->values[SBP_OPT_EVAL];
    if (!config && !train && !test)
        return;
    if (data->count == 0 && eval->count == 0 && !sbp_options_on(o, SBP_OPT_QUIET))
        sbp_note(diag, "dataset_config and the splits say which part of --data is meant, and there is none");
    if (test && eval->count == 0 && !sbp_options_is(o, SBP_OPT_EVAL_STRATEGY, "no") &&
        !o->values[SBP_OPT_TEST_SPLIT_SIZE].given)
        for (int32_t i = 0; i < data->count; i++)
            if (is_data_set(data->list[i])) {
                const size_t name = strcspn(data->list[i], ":");
                const size_t whole =
                    name + (data->list[i][name] ? 1 + strcspn(data->list[i] + name + 1, ":") : 0);
                sbp_options_append(o, SBP_OPT_EVAL, sbp_arena_strndup(o->arena, data->list[i], whole));
            }
    name_parts(o, SBP_OPT_DATA, config, train);
    name_parts(o, SBP_OPT_EVAL, config, test);
}

/* dataset_text_field names the column of the text: --columns text=NAME, of rows that have it. */
static sbp_status settle_text_field(sbp_options *o, sbp_diag *diag) {
    const char *config = o->values[SBP_TRL_DATASET_TEXT_FIELD].config,
               *field = take_value(o, SBP_TRL_DATASET_TEXT_FIELD);
    const option_value *columns = &o->values[SBP_OPT_COLUMNS];
    const char *given = columns->given ? columns->text : NULL;
    if (!field || (given && (strncmp(given, "text=", 5) == 0 || strstr(given, ",text="))))
        return SBP_OK;
    const char *text =
        sbp_arena_printf(o->arena, "%s%stext=%s?", given ? given : "", given ? "," : "", field);
    o->values[SBP_OPT_COLUMNS].given = false;
    return settle(o, diag, SBP_OPT_COLUMNS, text, config);
}

/* logging_dir: where tensorboard's files go. */
static void settle_logging_dir(sbp_options *o) {
    const char *folder = take_value(o, SBP_TRL_LOGGING_DIR);
    const option_value *reports = &o->values[SBP_OPT_REPORT_TO];
    for (int32_t i = 0; i < reports->count && folder; i++)
        if (strcmp(reports->list[i], "tensorboard") == 0)
            reports->list[i] = sbp_arena_printf(o->arena, "tensorboard:%s", folder);
}

static sbp_status settle_usual(sbp_options *o, sbp_diag *diag, sbp_option_id id, const char *text) {
    SBP_TRY(settle(o, diag, id, text, NULL));
    o->values[id].usual = true;
    return SBP_OK;
}

/* What TRL's command has where nothing is said. */
static sbp_status settle_trl(sbp_options *o, sbp_diag *diag) {
    option_value *command = &o->values[SBP_TRL_COMMAND];
    const option_value *lr = &o->values[SBP_OPT_LR], *length = &o->values[SBP_OPT_SEQ_LEN];
    bool given = command->given,
         samples = given && (strcmp(command->text, "grpo") == 0 || strcmp(command->text, "ppo") == 0);
    command->given = false;
    o->trl = given;
    if (!given)
        return SBP_OK;
    if (!lr->given && strcmp(command->text, "sft") != 0)
        SBP_TRY(settle_usual(o, diag, SBP_OPT_LR, strcmp(command->text, "ppo") == 0 ? "3e-6" : "1e-6"));
    if (strcmp(command->text, "cpo") == 0)
        SBP_TRY(settle_cpo(o, diag));
    if (samples || length->given || length->left || o->values[SBP_OPT_OVERLONG].given)
        return SBP_OK;
    if (!sbp_options_on(o, SBP_OPT_QUIET))
        sbp_note(diag,
                 "max_length 1024, as TRL has it: longer rows are cut; --max_length none: they are not");
    SBP_TRY(settle_usual(o, diag, SBP_OPT_SEQ_LEN, "1024"));
    return settle_usual(o, diag, SBP_OPT_OVERLONG, "truncate");
}

/* Keys that have their names of before. A command of TRL, and a file for it, say them as TRL does. */
static void note_names(const sbp_options *o, sbp_diag *diag) {
    for (int32_t i = 0; i < o->name_count; i++)
        if (!o->values[SBP_TRL_COMMAND].given && !(o->names[i].of_file && o->file_of_trl))
            sbp_note(diag, "%s", o->names[i].note);
}

/* `loss: {type: grpo}` and no objective: that is one. */
static sbp_status settle_loss(sbp_options *o, sbp_diag *diag) {
    option_value *type = &o->values[SBP_OPT_LOSS_TYPE];
    if (!type->given || !type->bundle || o->values[SBP_OPT_OBJECTIVE].given ||
        !sbp_option_is_word(sbp_option_at(SBP_OPT_OBJECTIVE), type->text))
        return SBP_OK;
    type->given = false;
    const char *objective = type->text, *config = type->config;
    type->text = NULL;
    SBP_TRY(settle(o, diag, SBP_OPT_OBJECTIVE, objective, config));
    o->values[SBP_OPT_OBJECTIVE].bundle = type->bundle;
    return SBP_OK;
}

sbp_status sbp_options_settle(sbp_options *o, sbp_diag *diag) {
    if (o->without_effect.length > 0 && !sbp_options_on(o, SBP_OPT_QUIET))
        sbp_note(diag, "these settings have no effect here: %s", o->without_effect.data);
    if (o->unknown.length > 0 && !sbp_options_on(o, SBP_OPT_QUIET))
        sbp_note(diag, "%s: nobody here reads these keys: %s (--config-unknown error: stop at such keys)",
                 sbp_options_text(o, SBP_OPT_CONFIG), o->unknown.data);
    for (int32_t i = 0; i < o->note_count && !sbp_options_on(o, SBP_OPT_QUIET); i++)
        sbp_note(diag, "%s", o->notes[i]);
    if (!sbp_options_on(o, SBP_OPT_QUIET))
        note_names(o, diag);
    o->settled = true;
    SBP_TRY(settle_loss(o, diag));
    SBP_TRY(settle_model(o, diag));
    settle_revision(o);
    SBP_TRY(settle_trl(o, diag));
    SBP_TRY(settle_packing(o, diag));
    SBP_TRY(settle_evaluations(o, diag));
    settle_data_sets(o, diag);
    SBP_TRY(settle_text_field(o, diag));
    settle_logging_dir(o);
    return settle_bf16(o, diag);
}

sbp_status sbp_options_settle_batch(sbp_options *o, sbp_diag *diag, int64_t ranks) {
    option_value *part = &o->values[SBP_TRL_PER_DEVICE_TRAIN_BATCH_SIZE],
                 *passes = &o->values[SBP_TRL_GRADIENT_ACCUMULATION_STEPS];
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
