/* compile.c: sbpc compile: from a model and options to a plan. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "backends/backends.h"
#include "frontends/formats/files/hub_fetch.h"
#include "frontends/objectives/objective.h"
#include "ir/base/machine.h"
#include "ir/program/plan_file.h"
#include "ir/program/routed.h"
#include "runtime/cli/sbpc/cli.h"

/* ---- options ----------------------------------------------------------------------------------------- */

/* In a plan that generates: rows whose logits are there at a time, where nothing is trained and where the
 * head trains by as many, too. */
enum { LOGITS_ROWS = 16, TRAINED_LOGITS_ROWS = 256 };

static sbp_dtype dtype_option(const sbp_options *o, sbp_option_id id, sbp_dtype fallback) {
    if (sbp_options_is(o, id, "fp64"))
        return SBP_F64;
    if (sbp_options_is(o, id, "fp32"))
        return SBP_F32;
    if (sbp_options_is(o, id, "bf16"))
        return SBP_BF16;
    if (sbp_options_is(o, id, "int8"))
        return SBP_D8;
    return fallback;
}

/* A machine that is not here: its memory is the limit unless another is given. */
static sbp_status choose_profile(sbp_compilation *c, const char *name) {
    if (sbp_options_given(c->options, SBP_OPT_BACKEND))
        return sbp_fail(c->diag, SBP_USAGE, "--device-profile says what to plan for: leave out --backend");
    SBP_TRY(sbp_profile_find(c->arena, c->diag, sbp_option_name(SBP_OPT_DEVICE_PROFILE), name, &c->profile));
    c->pipeline.target = c->profile.info;
    c->choice.backend = c->profile.name;
    snprintf(c->choice.reason, sizeof c->choice.reason, "--device-profile");
    return SBP_OK;
}

/* What --arch says, else what the device that was chosen has; NULL: neither. */
static const char *arch_of(const sbp_compilation *c) {
    if (sbp_options_given(c->options, SBP_OPT_ARCH))
        return sbp_options_text(c->options, SBP_OPT_ARCH);
    return c->choice.arch[0] ? c->choice.arch : NULL;
}

static sbp_status choose_target(sbp_compilation *c) {
    const char *profile = sbp_options_text(c->options, SBP_OPT_DEVICE_PROFILE);
    if (profile && *profile)
        return choose_profile(c, profile);
    const sbp_choice_request request = {.backend = sbp_options_text(c->options, SBP_OPT_BACKEND),
                                        .fp64 = sbp_options_is(c->options, SBP_OPT_DTYPE, "fp64")};
    if (strcmp(request.backend, "auto") == 0)
        SBP_TRY(sbp_choice_find(&request, c->diag, &c->choice));
    else /* compiling needs no device */
        sbp_choice_make(&request, NULL, 0, 0, &c->choice);
    const char *name = c->choice.backend;
    c->target = sbp_target_find(name);
    if (!c->target) {
        const char *without = sbp_backend_find(name)->without;
        return sbp_fail(c->diag, SBP_USAGE, "--backend %s: this build has no %s backend%s%s%s", name, name,
                        *without ? " (" : "", without, *without ? ")" : "");
    }
    return c->target->describe(arch_of(c), c->diag, &c->pipeline.target);
}

static sbp_status choose_types(sbp_compilation *c) {
    c->dtype = dtype_option(c->options, SBP_OPT_DTYPE, c->pipeline.target.default_compute);
    if (!c->pipeline.target.supports[c->dtype])
        return sbp_fail(c->diag, SBP_USAGE, "--dtype %s: the %s backend does not support this type",
                        sbp_options_text(c->options, SBP_OPT_DTYPE), c->pipeline.target.name);
    const char *name = c->pipeline.target.name;
    char names[80];
    if (sbp_options_on(c->options, SBP_OPT_TF32) &&
        (!sbp_backend_is_a(name, SBP_BACKEND_HAS_TF32) || c->dtype != SBP_F32))
        return sbp_fail(c->diag, SBP_USAGE, "--precision tf32=on needs --backend %s --dtype fp32",
                        sbp_backend_names(SBP_BACKEND_HAS_TF32, names, sizeof names));
    if (sbp_options_text(c->options, SBP_OPT_TUNE) && !sbp_backend_is_a(name, SBP_BACKEND_TUNES))
        return sbp_fail(c->diag, SBP_USAGE,
                        "--tune: backend %s has one way to compute each matmul; leave it out",
                        c->pipeline.target.name);
    sbp_dtype wide = c->dtype == SBP_F64 ? SBP_F64 : SBP_F32;
    c->grad_dtype = dtype_option(c->options, SBP_OPT_GRAD_DTYPE, wide);
    c->state_dtype = dtype_option(c->options, SBP_OPT_STATE_DTYPE, wide);
    sbp_dtype residual = dtype_option(c->options, SBP_OPT_RESIDUAL_DTYPE, c->dtype);
    if (residual != c->dtype && c->dtype != SBP_BF16)
        return sbp_fail(c->diag, SBP_USAGE, "--precision residual=%s needs --dtype bf16",
                        sbp_options_text(c->options, SBP_OPT_RESIDUAL_DTYPE));
    bool none = sbp_options_is(c->options, SBP_OPT_MASTER, "none");
    c->halves = c->dtype == SBP_BF16 && !sbp_options_is(c->options, SBP_OPT_OPTIMIZER, "none") &&
                !sbp_options_given(c->options, SBP_OPT_PARAM_DTYPE);
    if (none && !c->halves && !sbp_options_is(c->options, SBP_OPT_PARAM_DTYPE, "bf16"))
        return sbp_fail(c->diag, SBP_USAGE,
                        "--precision master=none needs trained weights in bf16: add param=bf16");
    if (!none && sbp_options_is(c->options, SBP_OPT_ROUNDING, "nearest"))
        return sbp_fail(
            c->diag, SBP_USAGE,
            "--precision rounding=nearest needs master=none: with an exact master nothing is rounded away");
    static const sbp_option_id kept[] = {SBP_OPT_PARAM_DTYPE, SBP_OPT_GRAD_DTYPE, SBP_OPT_STATE_DTYPE};
    for (int i = 0; i < SBP_COUNT(kept); i++)
        if (c->dtype == SBP_F64 && sbp_options_given(c->options, kept[i]) &&
            !sbp_options_is(c->options, kept[i], "fp64"))
            return sbp_fail(c->diag, SBP_USAGE, "%s %s: --dtype fp64 keeps everything in fp64; leave it out",
                            sbp_option_typed(c->arena, sbp_option_at((int32_t)kept[i])),
                            sbp_options_text(c->options, kept[i]));
    return SBP_OK;
}

/* Which all models can do. */
static bool asks_for_no_balance(const sbp_compilation *c, sbp_option_id id) {
    return id == SBP_OPT_ROUTER_AUX_LOSS_COEF && sbp_options_double(c->options, id) == 0;
}

/* Every setting of the objective is an option, and a number that was given is a setting of it. */
static sbp_status check_settings(const sbp_compilation *c) {
    sbp_text idle;
    sbp_text_init(&idle, c->arena);
    for (int32_t k = 0; k < c->settings.count; k++)
        if (!sbp_option_setting(c->settings.items[k].name))
            return sbp_fail(c->diag, SBP_INTERNAL, "objective %s: its setting '%s' is not an option",
                            c->objective, c->settings.items[k].name);
    for (int32_t i = 0; sbp_option_setting_at(i); i++) {
        const sbp_option *option = sbp_option_setting_at(i);
        bool has = false;
        for (int32_t k = 0; k < c->settings.count; k++)
            has |= sbp_option_setting(c->settings.items[k].name) == option;
        if (!sbp_options_chosen(c->options, option->id) || has || asks_for_no_balance(c, option->id))
            continue;
        sbp_text_add(&idle, "%s%s", idle.length > 0 ? ", " : "", option->name);
    }
    if (idle.length > 0)
        sbp_note(c->diag, "these settings have no effect with this objective: %s", idle.data);
    return SBP_OK;
}

/* The scalar by which all adapters are scaled is set as those of objectives are. */
static void add_adapter_setting(sbp_compilation *c) {
    sbp_setting *items = SBP_NEW_ARRAY(c->arena, sbp_setting, c->settings.count + 1);
    for (int32_t i = 0; i < c->settings.count; i++)
        items[i] = c->settings.items[i];
    items[c->settings.count++] = (sbp_setting){.name = sbp_scalar_names[SBP_SCALAR_ADAPTER], .value = 1};
    c->settings.items = items;
}

static bool only_generates(const sbp_compilation *c) {
    return sbp_options_is(c->options, SBP_OPT_FOR, "generate");
}

static bool generates(const sbp_compilation *c) {
    return only_generates(c) || sbp_options_is(c->options, SBP_OPT_FOR, "both");
}

/* What a plan that generates has no use for, or cannot do yet. */
static sbp_status check_generating(const sbp_compilation *c) {
    if (!generates(c))
        return SBP_OK;
    const char *what = sbp_options_text(c->options, SBP_OPT_FOR);
    if (only_generates(c) && !sbp_options_is(c->options, SBP_OPT_OBJECTIVE, "sft"))
        return sbp_fail(c->diag, SBP_USAGE, "--for generate: leave out --objective %s: nothing is trained",
                        sbp_options_text(c->options, SBP_OPT_OBJECTIVE));
    if (sbp_options_int(c->options, SBP_OPT_RANKS) > 1)
        return sbp_fail(c->diag, SBP_USAGE, "--for %s: one process generates: leave out --ranks", what);
    if (sbp_options_given(c->options, SBP_OPT_HEAD_ROWS) &&
        !sbp_options_is(c->options, SBP_OPT_HEAD_ROWS, "counted"))
        return sbp_fail(c->diag, SBP_USAGE, "--for %s: leave out --head-rows: logits of the last row count",
                        what);
    return SBP_OK;
}

/* --routed-experts is about experts that the model has. */
static sbp_status check_routed(const sbp_compilation *c) {
    const sbp_module *module = c->model.module;
    bool has = !sbp_options_on(c->options, SBP_OPT_ROUTED_EXPERTS);
    for (int32_t i = 0; i < module->row_count; i++)
        has |= strncmp(module->rows[i].name, SBP_ROUTED_PREFIX, strlen(SBP_ROUTED_PREFIX)) == 0;
    return has ? SBP_OK
               : sbp_fail(
                     c->diag, SBP_USAGE,
                     "--routed-experts on: models of type %s have no experts that rows could name; leave "
                     "it out",
                     c->model.model_type);
}

static sbp_status load_model(sbp_compilation *c) {
    sbp_model_options o = sbp_model_options_for(c->dtype);
    o.residual = dtype_option(c->options, SBP_OPT_RESIDUAL_DTYPE, SBP_DTYPE_COUNT);
    o.trainable_storage = dtype_option(c->options, SBP_OPT_PARAM_DTYPE, SBP_DTYPE_COUNT);
    o.trainable_as_computed = c->halves;
    if (sbp_options_given(c->options, SBP_OPT_BASE_DTYPE))
        (void)sbp_format_from_name(sbp_options_text(c->options, SBP_OPT_BASE_DTYPE), &o.base_format);
    o.set = sbp_options_list(c->options, c->arena, SBP_OPT_SET, &o.set_count);
    o.train = sbp_options_list(c->options, c->arena, SBP_OPT_TRAIN, &o.train_count);
    o.freeze = sbp_options_list(c->options, c->arena, SBP_OPT_FREEZE, &o.freeze_count);
    o.frozen = only_generates(c);
    c->objective = sbp_options_text(c->options, SBP_OPT_OBJECTIVE);
    c->loss_type = sbp_options_text(c->options, SBP_OPT_LOSS_TYPE);
    o.head = sbp_objective_head(c->objective);
    SBP_TRY(sbp_cli_read_lora(c, sbp_model_is_adapter(c->arena, c->model_path), &o.lora));
    if (sbp_options_chosen(c->options, SBP_OPT_LORA_DROPOUT))
        o.lora_dropout = sbp_options_double(c->options, SBP_OPT_LORA_DROPOUT);
    o.base = sbp_options_text(c->options, SBP_OPT_BASE);
    o.base_name = sbp_options_text(c->options, SBP_OPT_BASE_NAME);
    const double balance = sbp_options_chosen(c->options, SBP_OPT_ROUTER_AUX_LOSS_COEF)
                               ? sbp_options_double(c->options, SBP_OPT_ROUTER_AUX_LOSS_COEF)
                               : 0;
    o.routed_experts = sbp_options_on(c->options, SBP_OPT_ROUTED_EXPERTS);
    o.balance = sbp_options_chosen(c->options, SBP_OPT_ROUTER_AUX_LOSS_COEF) ? &balance : NULL;
    SBP_TRY(sbp_model_load(c->arena, c->diag, c->model_path, &o, &c->model));
    if (balance != 0 && c->model.balance.coefficient == 0)
        return sbp_fail(
            c->diag, SBP_USAGE,
            "--loss router_aux_loss_coef=%g: models of type %s have no loss that balances experts; "
            "leave it out",
            balance, c->model.model_type);
    SBP_TRY(check_routed(c));
    bool of_step = sbp_options_is(c->options, SBP_OPT_ROUTER_AUX_SCOPE, "step");
    if (of_step && c->model.balance.coefficient == 0)
        return sbp_fail(
            c->diag, SBP_USAGE,
            "--loss router_aux_scope=step: there is no loss that balances experts (router_aux_loss_coef); "
            "leave it out");
    c->model.balance.of_step = of_step;
    c->model.balance.say = !sbp_options_is(c->options, SBP_OPT_ACCUMULATE, "1");
    const sbp_objective_request request = {
        .by_sequence = sbp_options_is(c->options, SBP_OPT_IMPORTANCE, "sequence"),
        .sampling_mode = sbp_options_text(c->options, SBP_OPT_VLLM_IMPORTANCE_SAMPLING_MODE),
        .sampling_ignored = !sbp_options_on(c->options, SBP_OPT_VLLM_IMPORTANCE_SAMPLING_CORRECTION),
        .entropy_bonus = sbp_options_chosen(c->options, SBP_OPT_ENTROPY_COEF),
        .balance = c->model.balance};
    const sbp_objective_choice choice = {.name = c->objective, .loss_type = c->loss_type, .request = request};
    SBP_TRY(sbp_objective_add(c->model.module, c->diag, &choice, &c->settings));
    if (c->model.adapter)
        add_adapter_setting(c);
    SBP_TRY(check_settings(c));
    if (sbp_options_is(c->options, SBP_OPT_HEAD_ROWS, "counted")) {
        c->pipeline.options.counted = c->settings.counted;
        if (!c->settings.counted && sbp_options_given(c->options, SBP_OPT_HEAD_ROWS))
            return sbp_fail(c->diag, SBP_USAGE,
                            "--head-rows counted: objective %s may read every row; use --head-rows all",
                            c->objective);
    }
    c->pipeline.module = c->model.module;
    return SBP_OK;
}

/* For the plan; the runs keep its text in memory. */
static sbp_status load_tokenizer(sbp_compilation *c) {
    if (!c->target || !c->model.tokenizer)
        return SBP_OK;
    SBP_TRY(sbp_tokenizer_load_optional(c->arena, c->diag, c->model.tokenizer, &c->tokenizer));
    if (!c->tokenizer)
        return SBP_OK;
    return sbp_tokenizer_to_json(c->tokenizer, c->arena, c->diag, &c->tokenizer_text, &c->tokenizer_bytes);
}

/* "attn_out+lse" */
static void split_names(sbp_compilation *c, const char *names) {
    const char **list = NULL;
    int32_t count = 0, capacity = 0;
    for (const char *at = names; *at;) {
        size_t length = strcspn(at, "+");
        if (length > 0)
            SBP_PUSH(c->arena, list, count, capacity, sbp_arena_strndup(c->arena, at, length));
        at += length + (at[length] == '+');
    }
    c->request.saved = list;
    c->request.saved_count = count;
}

static int64_t number_or_auto(const sbp_options *o, sbp_option_id id) {
    return sbp_options_int(o, id) > 0 ? sbp_options_int(o, id) : SBP_AUTO;
}

/* Reads "states", "states:disk" or "states:host:12", `length` characters of text; false: it is
 * none of these. */
static bool read_placement(sbp_schedule_request *w, const char *text, size_t length) {
    size_t name = strcspn(text, "+:");
    int class = 0;
    while (class < SBP_TENSOR_CLASS_COUNT && (strlen(sbp_tensor_class_names[class]) != name ||
                                              strncmp(sbp_tensor_class_names[class], text, name) != 0))
        class ++;
    if (class == SBP_TENSOR_CLASS_COUNT)
        return false;
    bool disk = strncmp(text + name, ":disk", 5) == 0, host = strncmp(text + name, ":host", 5) == 0;
    const char *rest = text + name + (disk || host ? 5 : 0);
    int64_t first = 0;
    if ((disk || host) && *rest == ':') {
        char *end;
        first = strtoll(rest + 1, &end, 10);
        if (!isdigit((unsigned char)rest[1]) || first < 1 || first > INT32_MAX)
            return false;
        rest = end;
    }
    w->placement[class] = disk ? SBP_DISK : SBP_HOST;
    w->first[class] = (int32_t)first;
    return rest == text + length;
}

/* "auto", "none", "host", or classes with their placements joined by "+". */
static sbp_status read_offload(sbp_compilation *c) {
    const char *text = sbp_options_text(c->options, SBP_OPT_OFFLOAD);
    sbp_schedule_request *w = &c->request;
    w->offload = strcmp(text, "auto") == 0   ? SBP_OFFLOAD_AUTO
                 : strcmp(text, "none") == 0 ? SBP_OFFLOAD_OFF
                 : strcmp(text, "host") == 0 ? SBP_OFFLOAD_ON
                                             : SBP_OFFLOAD_GIVEN;
    for (const char *at = text; *at && w->offload == SBP_OFFLOAD_GIVEN;) {
        size_t length = strcspn(at, "+");
        if (!read_placement(w, at, length))
            return sbp_fail(c->diag, SBP_USAGE,
                            "--offload %s: '%.*s' is unknown; give auto, none, host, or checkpoints, saved, "
                            "states, gradients, params, joined by '+'; ':disk' behind one places it on disk, "
                            "':host:12' only its first 12 tensors on the host",
                            text, (int)length, at);
        at += length + (at[length] == '+');
    }
    return SBP_OK;
}

static sbp_status read_request(sbp_compilation *c) {
    const sbp_options *o = c->options;
    bool standard = sbp_options_is(o, SBP_OPT_BACKWARD, "standard"),
         checkpoint = sbp_options_is(o, SBP_OPT_BACKWARD, "checkpoint");
    const char *save = sbp_options_text(o, SBP_OPT_SAVE);
    sbp_schedule_request *w = &c->request;
    sbp_cli_speller(&c->speller);
    w->speller = &c->speller;
    w->terse = c->terse;
    w->tries_for_remedies = c->tries_for_remedies;
    w->t_max = number_or_auto(o, SBP_OPT_SEQ_LEN);
    w->chunk = number_or_auto(o, SBP_OPT_CHUNK);
    w->head_chunk = number_or_auto(o, SBP_OPT_HEAD_CHUNK);
    if (generates(c) && w->head_chunk == SBP_AUTO)
        w->head_chunk = only_generates(c) ? LOGITS_ROWS : TRAINED_LOGITS_ROWS;
    w->segment = number_or_auto(o, SBP_OPT_SEGMENT);
    w->checkpoint_every = number_or_auto(o, SBP_OPT_CHECKPOINT_EVERY);
    w->expert_pieces = (int32_t)number_or_auto(o, SBP_OPT_EXPERT_PIECES);
    w->whole = standard || checkpoint;
    if (w->whole) { /* the presets: one chunk of all rows, one layer per segment, a checkpoint for each */
        w->segment = w->segment == SBP_AUTO ? 1 : w->segment;
        w->checkpoint_every = w->checkpoint_every == SBP_AUTO ? 1 : w->checkpoint_every;
    }
    w->save_mode = strcmp(save, "auto") == 0 && !w->whole ? SBP_SAVE_AUTO : SBP_SAVE_GIVEN;
    w->save_all = standard && strcmp(save, "auto") == 0;
    if (strcmp(save, "auto") != 0 && strcmp(save, "none") != 0)
        split_names(c, save);
    w->drop_states = strcmp(save, "auto") != 0;
    for (int32_t i = 0; i < w->saved_count; i++)
        w->drop_states &= strcmp(w->saved[i], SBP_SAVE_STATES) != 0;
    SBP_TRY(read_offload(c));
    if (w->whole && w->offload == SBP_OFFLOAD_AUTO)
        w->offload = SBP_OFFLOAD_OFF;
    int64_t gathered = number_or_auto(o, SBP_OPT_KEEP_GATHERED);
    w->gathered = sbp_options_is(o, SBP_OPT_KEEP_GATHERED, "none")  ? 0
                  : sbp_options_is(o, SBP_OPT_KEEP_GATHERED, "all") ? INT32_MAX
                                                                    : (int32_t)gathered;
    w->memory_bytes = sbp_options_int(o, SBP_OPT_MEMORY) > 0 ? sbp_options_int(o, SBP_OPT_MEMORY) : 0;
    if (w->memory_bytes == 0 && !c->target) {
        w->memory_bytes = c->profile.memory_bytes;
        c->speller.memory = sbp_arena_printf(c->arena, "the memory of --device-profile %s", c->profile.name);
    }
    w->host_memory_bytes =
        sbp_options_int(o, SBP_OPT_HOST_MEMORY) > 0 ? sbp_options_int(o, SBP_OPT_HOST_MEMORY) : 0;
    int64_t ranks = sbp_options_int(o, SBP_OPT_RANKS), node = sbp_options_int(o, SBP_OPT_NODE);
    w->sharers = ranks < node ? ranks : node;
    w->host_memory_bytes /= w->sharers;
    if (w->host_memory_bytes == 0 && !c->target) {
        w->host_memory_bytes = c->profile.host_memory_bytes;
        c->host_assumed = w->host_memory_bytes > 0;
    }
    if (c->pipeline.target.shared_memory)
        w->memory_bytes /= w->sharers;
    return SBP_OK;
}

static void read_training(sbp_compilation *c) {
    const sbp_options *o = c->options;
    sbp_pass_options *p = &c->pipeline.options;
    for (int i = 0; i < SBP_OPTIMIZER_COUNT; i++)
        if (sbp_options_is(o, SBP_OPT_OPTIMIZER, sbp_optimizer_names[i]))
            p->optimizer = (sbp_optimizer)i;
    p->generates = generates(c);
    if (only_generates(c))
        p->optimizer = SBP_OPTIMIZER_NONE;
    p->ranks = sbp_options_int(o, SBP_OPT_RANKS);
    if (sbp_options_int(o, SBP_OPT_CONTEXT_PARALLEL) > 0) /* else it is planned */
        p->context = sbp_options_int(o, SBP_OPT_CONTEXT_PARALLEL);
    p->context_exchange = sbp_options_is(o, SBP_OPT_CONTEXT_EXCHANGE, "all-gather")   ? SBP_CONTEXT_ALL_GATHER
                          : sbp_options_is(o, SBP_OPT_CONTEXT_EXCHANGE, "all-to-all") ? SBP_CONTEXT_ALL_TO_ALL
                                                                                      : SBP_CONTEXT_AUTO;
    p->zero = (int32_t)sbp_options_int(o, SBP_OPT_ZERO);
    p->group = sbp_options_is(o, SBP_OPT_SHARD_GROUP, "all")    ? p->ranks
               : sbp_options_is(o, SBP_OPT_SHARD_GROUP, "node") ? sbp_options_int(o, SBP_OPT_NODE)
                                                                : sbp_options_int(o, SBP_OPT_SHARD_GROUP);
    if (sbp_options_is(o, SBP_OPT_SHARD_GROUP, "node") && p->group > p->ranks)
        p->group = p->ranks;
    p->reduce_bf16 = sbp_options_is(o, SBP_OPT_REDUCE_DTYPE, "bf16");
    p->grad_dtype = c->grad_dtype;
    p->state_dtype = c->state_dtype;
    p->master = !sbp_options_is(o, SBP_OPT_MASTER, "none");
    p->stochastic = sbp_options_is(o, SBP_OPT_ROUNDING, "stochastic");
    c->step = sbp_options_is(o, SBP_OPT_CLIP, "none") && sbp_options_int(o, SBP_OPT_ACCUMULATE) == 1 &&
              p->optimizer != SBP_OPTIMIZER_NONE;
    p->step = c->step;
    p->skip_streambp = sbp_options_on(o, SBP_OPT_SKIP_STREAMBP);
}

/* What several ranks do not do yet. */
static sbp_status check_ranks(const sbp_compilation *c) {
    const sbp_pass_options *p = &c->pipeline.options;
    if (p->context > 0 && p->ranks % p->context != 0)
        return sbp_fail(c->diag, SBP_USAGE,
                        "--context-parallel %lld: --ranks (%lld) must be a multiple of it",
                        (long long)p->context, (long long)p->ranks);
    if (p->context == 1 && p->context_exchange != SBP_CONTEXT_AUTO)
        return sbp_fail(c->diag, SBP_USAGE, "--context-exchange %s needs --context-parallel above 1",
                        sbp_options_text(c->options, SBP_OPT_CONTEXT_EXCHANGE));
    if (p->ranks == 1 && p->zero > 0)
        return sbp_fail(c->diag, SBP_USAGE, "--zero %d needs several ranks: add --ranks N", (int)p->zero);
    if (p->zero == 0 && !sbp_options_is(c->options, SBP_OPT_SHARD_GROUP, "all"))
        return sbp_fail(c->diag, SBP_USAGE, "--shard-group needs --zero 1, 2 or 3");
    const char *reduce = sbp_options_text(c->options, SBP_OPT_REDUCE_DTYPE);
    if (reduce && p->ranks == 1)
        return sbp_fail(c->diag, SBP_USAGE, "--precision reduce=%s needs several ranks: add --ranks N",
                        reduce);
    if (reduce && (c->dtype == SBP_F64 || (!p->reduce_bf16 && p->zero < 2 && c->grad_dtype == SBP_BF16)))
        return sbp_fail(
            c->diag, SBP_USAGE,
            "--precision reduce=%s does not apply: gradients are %s, and are sent in that type; leave it out",
            reduce, c->dtype == SBP_F64 ? "fp64" : "bf16");
    if (p->ranks % p->group != 0)
        return sbp_fail(
            c->diag, SBP_USAGE, "--shard-group %s: %lld ranks cannot be divided into groups of %lld",
            sbp_options_text(c->options, SBP_OPT_SHARD_GROUP), (long long)p->ranks, (long long)p->group);
    if (p->zero < 3 && !sbp_options_is(c->options, SBP_OPT_KEEP_GATHERED, "auto"))
        return sbp_fail(c->diag, SBP_USAGE, "--keep-gathered needs --zero 3");
    return SBP_OK;
}

static sbp_status check_length(const sbp_compilation *c, int64_t t) {
    int64_t limit = c->model.max_positions;
    if (c->model.length_rule && t > c->model.length_limit)
        sbp_note(c->diag, "%s", c->model.length_rule);
    if (limit <= 0 || t <= limit)
        return SBP_OK;
    if (c->model.learned_positions)
        return sbp_fail(c->diag, SBP_INPUT, "--seq-len %lld: %s has learned positions for %lld rows",
                        (long long)t, c->model.name, (long long)limit);
    sbp_note(c->diag, "--seq-len %lld is longer than the context of %s (max_position_embeddings %lld)",
             (long long)t, c->model.name, (long long)limit);
    return SBP_OK;
}

/* ---- the passes -------------------------------------------------------------------------------------- */

static sbp_status check_saved_names(const sbp_compilation *c) {
    const sbp_schedule_options *s = &c->estimate.schedule;
    for (int32_t i = 0; i < s->saved_count; i++)
        if (!sbp_saved_name_exists(&c->pipeline, s->saved[i])) {
            sbp_text names;
            sbp_text_init(&names, c->arena);
            sbp_saved_names(&c->pipeline, &names);
            if (sbp_saved_name_is_keepable(&c->pipeline, s->saved[i]))
                return sbp_fail(c->diag, SBP_USAGE,
                                "--save: with the others kept, the backward does not read '%s': leave it out",
                                s->saved[i]);
            return sbp_fail(c->diag, SBP_USAGE,
                            "--save: the backward reads no value called '%s'; it could keep %s", s->saved[i],
                            names.data);
        }
    return SBP_OK;
}

static sbp_status check_pass_names(const sbp_compilation *c, const char *stop, const char *after) {
    bool stop_known = !stop, after_known = !after;
    for (int i = 0; sbp_pass_name(i); i++) {
        stop_known |= stop && strcmp(stop, sbp_pass_name(i)) == 0;
        after_known |= after && strcmp(after, sbp_pass_name(i)) == 0;
    }
    if (stop_known && after_known)
        return SBP_OK;
    sbp_text names;
    sbp_text_init(&names, c->arena);
    for (int i = 0; sbp_pass_name(i); i++)
        sbp_text_add(&names, " %s", sbp_pass_name(i));
    return sbp_fail(c->diag, SBP_USAGE, "no pass is called '%s'; the passes are%s", stop_known ? after : stop,
                    names.data);
}

static sbp_status plan(sbp_compilation *c) {
    sbp_text printed;
    sbp_planned planned = {.estimate = {.refused = false}};
    sbp_plan_request plan_request = {.request = c->request,
                                     .length_most = sbp_options_int(c->options, SBP_OPT_SEQ_LEN_MOST),
                                     .options = c->pipeline.options,
                                     .stop_after = sbp_options_text(c->options, SBP_OPT_STOP_AFTER),
                                     .print_after = sbp_options_text(c->options, SBP_OPT_PRINT_AFTER)};
    SBP_TRY(check_pass_names(c, plan_request.stop_after, plan_request.print_after));
    sbp_text_init(&printed, c->arena);
    if (plan_request.stop_after || plan_request.print_after)
        plan_request.printed = &printed;
    SBP_TRY(sbp_cli_describe_process(c, &plan_request.process));
    sbp_status status =
        sbp_plan_make(c->arena, c->diag, c->model.module, &c->pipeline.target, &plan_request, &planned);
    c->estimate = planned.estimate;
    SBP_TRY(status);
    c->request = planned.request;
    c->pipeline = planned.pipeline;
    c->pipeline.printed = NULL; /* it is of this call */
    c->process = planned.process;
    c->threads = plan_request.process.threads;
    fputs(printed.data, stdout);
    return SBP_OK;
}

/* What is said of a plan that was made. */
static sbp_status check_plan(const sbp_compilation *c) {
    const sbp_pipeline *p = &c->pipeline;
    SBP_TRY(check_length(c, c->estimate.t_max * p->options.context));
    if (p->uncut_layers > 0)
        sbp_note(c->diag,
                 "%d layers form one segment with what is before them: nowhere between them does a single "
                 "value of the head's width cross; --backward segment cannot divide them",
                 p->uncut_layers);
    if (p->stopped)
        return SBP_OK;
    SBP_TRY(check_saved_names(c));
    return sbp_program_verify(p->program, c->diag);
}

sbp_status sbp_cli_plan(sbp_compilation *c) {
    c->machine_bytes = sbp_machine_memory(); /* limits stand in dozens of files: they are read once */
    c->machine_source = sbp_machine_memory_source();
    SBP_TRY(choose_target(c));
    SBP_TRY(sbp_cli_choose_throughput(c));
    SBP_TRY(choose_types(c));
    SBP_TRY(check_generating(c));
    SBP_TRY(load_model(c));
    SBP_TRY(load_tokenizer(c));
    SBP_TRY(read_request(c));
    read_training(c);
    SBP_TRY(check_ranks(c));
    SBP_TRY(plan(c));
    return check_plan(c);
}

/* All that the process will hold where --memory counts. */
static int64_t needed_bytes(const sbp_compilation *c) {
    return c->estimate.device_bytes + c->process.bytes +
           (c->pipeline.target.shared_memory ? c->estimate.host_bytes : 0);
}

static void warn_if_more(const sbp_compilation *c, const char *of, int64_t need, const char *who,
                         int64_t have) {
    char needs[32], has[32];
    if (have > 0 && need > have)
        sbp_warn(c->diag,
                 "the plan needs %s%s%s, and %s allows %s: sbprun will not run it here; --memory SIZE plans "
                 "for less, "
                 "--device-profile for another machine",
                 sbp_format_bytes(needs, sizeof needs, (double)need), of,
                 c->request.sharers > 1 ? " for each rank" : "", who,
                 sbp_format_bytes(has, sizeof has, (double)have));
}

/* A plan that cannot run on this machine may be meant for another one, but that is said. */
static void warn_of_memory(const sbp_compilation *c) {
    int64_t machine = c->machine_bytes / c->request.sharers;
    const char *source = c->machine_source;
    bool is_host = sbp_backend_is_a(c->target->name, SBP_BACKEND_HOST);
    if (is_host)
        warn_if_more(c, "", needed_bytes(c), source, machine);
    else
        warn_if_more(c, " on the device", needed_bytes(c), "the device of this machine",
                     c->choice.memory_bytes);
    if (!is_host && c->choice.memory_bytes > 0) /* it is here */
        warn_if_more(c, " of the host's memory", c->pipeline.program->arena_bytes[SBP_HOST], source, machine);
}

static sbp_status compile(sbp_compilation *c) {
    SBP_TRY(sbp_cli_plan(c));
    if (c->pipeline.stopped)
        return SBP_OK;
    sbp_text summary;
    sbp_text_init(&summary, c->arena);
    SBP_TRY(sbp_cli_summary(c, &summary));
    if (c->target)
        SBP_TRY(sbp_cli_write_plan(c));
    if (!sbp_options_on(c->options, SBP_OPT_QUIET))
        fputs(summary.data, stderr);
    if (c->target)
        warn_of_memory(c);
    if (!sbp_options_on(c->options, SBP_OPT_JSON))
        return SBP_OK;
    sbp_text json;
    sbp_text_init(&json, c->arena);
    SBP_TRY(sbp_cli_summary_json(c, &json));
    fputs(json.data, stdout);
    return SBP_OK;
}

/* A plan may be written over, or an empty file; what else lies there may be what is read. */
static sbp_status check_output(const sbp_compilation *c) {
    struct stat info;
    if (!c->output || stat(c->output, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size == 0 ||
        sbp_plan_file_probe(c->output))
        return SBP_OK;
    return sbp_fail(c->diag, SBP_USAGE, "-o '%s' exists and is not a plan: remove it, or choose another name",
                    c->output);
}

void sbp_cli_compile_help(sbp_arena *arena, const char *topic) {
    sbp_text text;
    sbp_text_init(&text, arena);
    if (!topic || !sbp_options_is_topic(SBP_PHASE_COMPILE, topic))
        sbp_text_add(
            &text,
            "usage: sbpc compile MODEL -o plan.bin [options]      a plan for sbprun\n"
            "       sbpc compile MODEL --device-profile h200      what it would take there\n"
            "       sbpc inspect plan.bin [options]               who holds which byte, when\n\n"
            "MODEL: a Hugging Face model directory (config.json is enough), a model.json (ONNX), or a\n"
            ".gguf file. Compiling needs no device and no weights. For example:\n\n"
            "  sbpc compile Qwen3-8B -o plan.bin --lora --seq-len 32768 --memory 24GiB\n");
    sbp_options_print_topic(&text, SBP_PHASE_COMPILE, SBP_PHASE_COMPILE, topic);
    fputs(text.data, stdout);
}

sbp_status sbp_cli_compile(sbp_arena *arena, sbp_diag *diag, int argc, char **argv) {
    sbp_compilation *c = SBP_NEW(arena, sbp_compilation);
    sbp_options *options;
    *c = (sbp_compilation){.arena = arena, .diag = diag};
    SBP_TRY(sbp_options_parse(arena, diag, "sbpc compile", SBP_PHASE_COMPILE, argc, argv, &options));
    c->options = options;
    if (sbp_options_on(options, SBP_OPT_QUIET))
        sbp_diag_set_quiet(diag);
    c->pipeline.arena = arena;
    c->pipeline.diag = diag;
    if (sbp_options_on(options, SBP_OPT_HELP)) {
        int32_t count = sbp_options_arg_count(options);
        sbp_cli_compile_help(arena, count > 0 ? sbp_options_arg(options, count - 1) : NULL);
        return SBP_OK;
    }
    if (sbp_options_arg_count(options) != 1)
        return sbp_fail(diag, SBP_USAGE, "%s; usage: sbpc compile MODEL -o plan.bin (sbpc compile --help)",
                        sbp_options_arg_count(options) == 0 ? "no MODEL was given"
                                                            : "more than one MODEL was given");
    c->output = sbp_options_text(options, SBP_OPT_OUTPUT);
    const char *profile = sbp_options_text(options, SBP_OPT_DEVICE_PROFILE);
    if (!c->output && !sbp_options_text(options, SBP_OPT_STOP_AFTER) && !(profile && *profile))
        return sbp_fail(diag, SBP_USAGE, "no output file was given: add -o plan.bin");
    SBP_TRY(sbp_hub_model(arena, diag, sbp_options_arg(options, 0), c->output != NULL, &c->model_path));
    SBP_TRY(check_output(c));
    return compile(c);
}
