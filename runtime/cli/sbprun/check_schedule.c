/* check_schedule.c: gradients of a short micro-batch by the plan, and by the plan of the same model and
 * options whose backward keeps everything. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "backends/backends.h"
#include "backends/choice.h"
#include "ir/base/machine.h"
#include "runtime/cli/sbprun/check.h"
#include "runtime/cli/sbprun/child.h"
#include "runtime/train/nudge.h"

sbp_status sbp_check_gradients(sbp_check *check, bool pieces, sbp_sketch **out) {
    sbp_session *session = check->session;
    sbp_diag *diag = check->world->diag;
    double began = sbp_seconds();
    SBP_TRY(sbp_sketch_create(diag, session->plan, check->reads, pieces, out));
    sbp_status status =
        sbp_trainer_gradients(&session->trainer, diag, session->plan, check->inputs->data, check->rows,
                              check->inputs->data->row_count, sbp_sketch_take, *out);
    if (status == SBP_OK && sbp_sketch_missing(*out) >= 0)
        status = sbp_fail(diag, SBP_INPUT, "the plan flushes no gradient of '%.200s'",
                          (*out)->tensors[sbp_sketch_missing(*out)].name);
    if (status != SBP_OK) {
        sbp_sketch_destroy(*out);
        *out = NULL;
    }
    check->gradient_seconds = sbp_seconds() - began;
    return status;
}

/* ---- the other plan ---------------------------------------------------------------------------------- */

static void push(sbp_check *check, const char ***args, int32_t *count, int32_t *capacity, const char *text) {
    SBP_PUSH(check->world->arena, *args, *count, *capacity, text);
}

/* Whether an argument of the plan's compilation decides what is computed, and not how, nor what becomes of
 * gradients. */
static bool is_kept(sbp_arena *arena, const char *argument) {
    static const sbp_option_id dropped[] = {
        SBP_OPT_OPTIMIZER, SBP_OPT_STATE_DTYPE, SBP_OPT_OUTPUT,     SBP_OPT_CLIP,   SBP_OPT_QUIET,
        SBP_OPT_JSON,      SBP_OPT_TUNE,        SBP_OPT_THROUGHPUT, SBP_OPT_MASTER, SBP_OPT_ROUNDING};
    if (strncmp(argument, "--", 2) != 0)
        return false;
    char *name = sbp_arena_strndup(arena, argument + 2, strcspn(argument + 2, "="));
    const sbp_option *option = sbp_option_find(name);
    for (int i = 0; i < SBP_COUNT(dropped) && option; i++)
        if (option->id == dropped[i])
            return false;
    return option && option->resume != SBP_RESUME_OF_THE_SCHEDULE;
}

static const char **compile_args(sbp_check *check, const char *sbpc, const char *backward, const char *plan,
                                 int64_t rows) {
    const sbp_plan_meta *meta = &check->session->info.meta;
    sbp_arena *arena = check->world->arena;
    const char **args = NULL;
    int32_t count = 0, capacity = 0;
    const char *const first[] = {sbpc, "compile", meta->source, "-o", plan};
    for (int i = 0; i < SBP_COUNT(first); i++)
        push(check, &args, &count, &capacity, first[i]);
    for (int64_t i = 0; meta->arguments && i < meta->arguments->count; i++) {
        const sbp_json *argument = &meta->arguments->items[i];
        if (argument->kind == SBP_JSON_STRING && is_kept(arena, argument->string))
            push(check, &args, &count, &capacity, argument->string);
    }
    const sbp_json *arch = sbp_json_member(meta->options, "arch");
    if (arch && arch->kind == SBP_JSON_STRING)
        push(check, &args, &count, &capacity, sbp_arena_printf(arena, "--arch=%s", arch->string));
    push(check, &args, &count, &capacity, sbp_arena_printf(arena, "--backward=%s", backward));
    push(check, &args, &count, &capacity, sbp_arena_printf(arena, "--backend=%s", meta->backend));
    push(check, &args, &count, &capacity, sbp_arena_printf(arena, "--dtype=%s", meta->dtype));
    push(check, &args, &count, &capacity, sbp_arena_printf(arena, "--seq-len=%lld", (long long)rows));
    push(check, &args, &count, &capacity,
         sbp_arena_printf(arena, "--threads=%d", sbp_world_threads(check->world)));
    push(check, &args, &count, &capacity, "--optimizer=none");
    push(check, &args, &count, &capacity, "--clip=none");
    push(check, &args, &count, &capacity, "--quiet");
    sbp_choice choice;
    const sbp_choice_request request = {.backend = meta->backend,
                                        .device =
                                            (int32_t)sbp_options_int(check->world->options, SBP_OPT_DEVICE),
                                        .fp64 = strcmp(meta->dtype, "fp64") == 0};
    int64_t memory = check->session->info.memory_bytes;
    if (sbp_choice_find(&request, check->world->diag, &choice) == SBP_OK && memory == 0)
        memory = choice.memory_bytes / 100 * 95;
    if (memory > 0)
        push(check, &args, &count, &capacity,
             sbp_arena_printf(arena, "--memory=%lldMiB", (long long)(memory >> 20)));
    sbp_options_spell(arena, args, &count);
    push(check, &args, &count, &capacity, NULL);
    return args;
}

static void cannot(sbp_check *check, const char *what, const char *text) {
    sbp_check_add(check, &(sbp_finding){.part = "schedule",
                                        .what = what,
                                        .text = text,
                                        .found = NAN,
                                        .allowed = NAN,
                                        .verdict = SBP_VERDICT_UNCHECKED});
}

/* Whether gradients are kept in bf16: flipped last bits of weights may then change none of their numbers,
 * where another order of sums changes one. */
static bool keeps_bf16(const sbp_program *p) {
    for (int32_t b = 0; b < p->buffer_count; b++)
        if (p->buffers[b].role == SBP_ROLE_GRAD && p->buffers[b].dtype == SBP_BF16)
            return true;
    return false;
}

/* What rounding makes of a gradient: what flipped bits do to it. A few numbers may not have seen these: no
 * less than they do to most of its kind, nor than its last bits; in bf16 those of one number. */
static double rounding_of(const sbp_check *check, bool bf16, int32_t t, double norm) {
    double found = sbp_sketch_difference(check->plain, check->rounded, t);
    double kind = check->noise[check->plain->tensors[t].kind],
           last = check->reads == SBP_F64 ? 0x1p-53 : 0x1p-24;
    if (bf16)
        last = fmax(last, 0x1p-9 / sqrt((double)check->plain->plan->tensors->tensors[t].map.elems));
    return fmax(found, norm * fmax(kind, last));
}

static sbp_status find_difference(sbp_check *check, const sbp_sketch *other, const char *what) {
    const sbp_sketch *plain = check->plain;
    sbp_finding f = {.part = "schedule", .what = what, .allowed = NAN, .found = NAN};
    double worst = -1;
    const char *name = "";
    int32_t count = 0, differ = 0;
    bool bf16 = keeps_bf16(plain->plan->program);
    for (int32_t t = 0; t < plain->plan->tensors->count; t++) {
        if (plain->tensors[t].kind < 0)
            continue;
        double norm = fmax(plain->tensors[t].norm, other->tensors[t].norm);
        double rounding = rounding_of(check, bf16, t, norm);
        double found = sbp_sketch_difference(plain, other, t);
        double over = found == 0 ? 0 : found / (SBP_CHECK_ROUNDING * rounding);
        count++;
        differ += !(over <= 1);
        if (over > worst || isnan(over)) {
            worst = isnan(over) ? INFINITY : over;
            name = plain->tensors[t].name;
            f.found = norm > 0 ? found / norm : 0;
            f.allowed = norm > 0 ? SBP_CHECK_ROUNDING * rounding / norm : 0;
        }
    }
    f.verdict = differ ? SBP_VERDICT_WRONG : SBP_VERDICT_RIGHT;
    f.text = sbp_arena_printf(check->world->arena,
                              "%d gradients, %d of them differ; worst %s: %.2g, rounding makes %.2g", count,
                              differ, name, f.found, f.allowed / SBP_CHECK_ROUNDING);
    sbp_check_add(check, &f);
    return SBP_OK;
}

static sbp_status same_tensors(const sbp_check *check, const sbp_plan *other) {
    const sbp_tensor_table *a = check->session->plan->tensors, *b = other->tensors;
    bool same = a->count == b->count;
    for (int32_t t = 0; same && t < a->count; t++)
        same = strcmp(a->tensors[t].buffer, b->tensors[t].buffer) == 0 &&
               a->tensors[t].trainable == b->tensors[t].trainable &&
               a->tensors[t].map.elems == b->tensors[t].map.elems;
    return same ? SBP_OK
                : sbp_fail(check->world->diag, SBP_INPUT,
                           "'%s' is not what the plan was compiled from: it has other parameters now",
                           check->session->info.meta.source);
}

/* On the device in place of the plan. */
static sbp_status run_other(sbp_check *check, const char *path, const char *what) {
    sbp_world *world = check->world;
    sbp_session *session = check->session;
    const sbp_plan *plan;
    sbp_sketch *sketch;
    int32_t zeros;
    SBP_TRY(sbp_plan_open(world->arena, world->diag, path, &plan));
    SBP_TRY(same_tensors(check, plan));
    sbp_trainer_close(&session->trainer);
    session->trainer = (sbp_trainer){0};
    sbp_world_close_device(world);
    world->executor = NULL;
    session->plan = plan;
    SBP_TRY(sbp_plan_info_read(world->diag, plan, &session->info));
    SBP_TRY(sbp_run_open_device(world, session, check->outputs));
    session->trainer.steady = true;
    SBP_TRY(sbp_run_load_weights(world, session));
    SBP_TRY(sbp_nudge_zeros(world->executor, plan, &zeros, world->diag));
    SBP_TRY(sbp_check_gradients(check, false, &sketch));
    sbp_status status = find_difference(check, sketch, what);
    sbp_sketch_destroy(sketch);
    return status;
}

/* *made: there is a plan at the path. */
static sbp_status compile_other(sbp_check *check, const char *backward, const char *path, int64_t rows,
                                bool *made) {
    const char *sbpc;
    const sbp_world *world = check->world;
    SBP_TRY(sbp_child_find(world->arena, world->diag, "sbpc", &sbpc));
    sbp_status status = sbp_child_compile(world->arena, world->diag,
                                          compile_args(check, sbpc, backward, path, rows), path, -1);
    *made = status == SBP_OK;
    return status == SBP_MACHINE ? SBP_OK : status;
}

sbp_status sbp_check_schedule(sbp_check *check) {
    static const char *const backwards[] = {"standard", "checkpoint"};
    sbp_world *world = check->world;
    char *path;
    int64_t rows = 0;
    bool made = false;
    for (int64_t r = 0; r < check->inputs->data->row_count; r++)
        rows += sbp_dataset_row_tokens(check->inputs->data, r);
    if (!check->session->info.meta.source || access(check->session->info.meta.source, F_OK) != 0) {
        cannot(check, NULL,
               sbp_arena_printf(world->arena, "the model that the plan was compiled from is not there: %s",
                                check->session->info.meta.source ? check->session->info.meta.source : "?"));
        return SBP_OK;
    }
    SBP_TRY(sbp_child_new_file(world->arena, world->diag, SBP_CHILD_PLAN, &path));
    sbp_status status = SBP_OK;
    int used = 0;
    for (int i = 0; i < SBP_COUNT(backwards) && !made && status == SBP_OK; i++) {
        used = i;
        status = compile_other(check, backwards[i], path, rows, &made);
    }
    if (status == SBP_OK && made)
        status = run_other(check, path, sbp_arena_printf(world->arena, "--backward %s", backwards[used]));
    else if (status == SBP_OK)
        cannot(check, NULL, "no other schedule of these rows fits the memory");
    unlink(path);
    return status;
}
