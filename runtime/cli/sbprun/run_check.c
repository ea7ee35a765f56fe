/* run_check.c: `sbprun check`, with the plan and its weights on the device. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backends/backends.h"
#include "ir/base/machine.h"
#include "runtime/cli/sbprun/check.h"
#include "runtime/train/nudge.h"

/* Seconds that losses along gradients may take, about. */
static const double SLOPES_SECONDS = 12;
enum { LEAST_ROWS = 48 };

/* Whether rows carry numbers of how weights score them, which are not those of shorter ones. */
static bool has_scores(const sbp_check *check) {
    bool optional;
    return sbp_pack_rows_wanted(check->session->plan->program) != SBP_ROWS_TEXTS ||
           sbp_pack_reads(check->session->plan->program, "old_logps", &optional);
}

/* What the objective reads of older weights and of a reference. */
static sbp_status score_rows(sbp_check *check) {
    sbp_world *world = check->world;
    SBP_TRY(sbp_run_reference(world, check->inputs, check->session, check->outputs, NULL));
    SBP_TRY(sbp_run_score_older(world, check->session, check->inputs->data));
    return sbp_run_score_mismatched(world, check->session, check->inputs->data, check->rows,
                                    check->inputs->data->row_count);
}

static void judge_bits(sbp_check *check, const sbp_sketch *again) {
    const sbp_sketch *plain = check->plain;
    sbp_finding f = {.part = "twice", .found = 0, .allowed = 0};
    int32_t count = 0;
    const char *name = "";
    for (int32_t t = 0; t < plain->plan->tensors->count; t++) {
        if (plain->tensors[t].kind < 0)
            continue;
        count++;
        if (plain->tensors[t].hash == again->tensors[t].hash)
            continue;
        name = f.found == 0 ? plain->tensors[t].name : name;
        f.found++;
    }
    f.verdict = f.found > 0 ? SBP_VERDICT_WRONG : SBP_VERDICT_RIGHT;
    f.text = f.found > 0
                 ? sbp_arena_printf(check->world->arena, "other bits in %.0f of %d gradients, first %s",
                                    f.found, count, name)
                 : sbp_arena_printf(check->world->arena, "the same bits in %d gradients", count);
    if (f.found > 0 && !check->session->info.deterministic)
        f.verdict = SBP_VERDICT_RIGHT; /* it says so */
    sbp_check_add(check, &f);
}

static bool judge_finite(sbp_check *check) {
    int32_t count = 0, bad = 0;
    const char *name = "";
    for (int32_t t = 0; t < check->plain->plan->tensors->count; t++) {
        if (check->plain->tensors[t].kind < 0)
            continue;
        count++;
        if (isfinite(check->plain->tensors[t].norm))
            continue;
        name = bad++ == 0 ? check->plain->tensors[t].name : name;
    }
    sbp_check_add(
        check,
        &(sbp_finding){.part = "finite",
                       .text = bad ? sbp_arena_printf(check->world->arena,
                                                      "%d of %d gradients are not finite, first %s", bad,
                                                      count, name)
                                   : sbp_arena_printf(check->world->arena, "all %d gradients are", count),
                       .found = bad,
                       .allowed = 0,
                       .verdict = bad ? SBP_VERDICT_WRONG : SBP_VERDICT_RIGHT});
    return bad == 0;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* What rounding does to gradients of each kind. */
static void find_noise(sbp_check *check) {
    const sbp_sketch *p = check->plain;
    int32_t tensors = p->plan->tensors->count;
    double *of_kind = SBP_NEW_ARRAY(check->world->arena, double, tensors + 1);
    check->noise = SBP_NEW_ARRAY(check->world->arena, double, p->kind_count + 1);
    for (int32_t k = 0; k < p->kind_count; k++) {
        int32_t count = 0;
        for (int32_t t = 0; t < tensors; t++)
            if (p->tensors[t].kind == k && p->tensors[t].norm > 0)
                of_kind[count++] = sbp_sketch_difference(p, check->rounded, t) / p->tensors[t].norm;
        qsort(of_kind, (size_t)count, sizeof *of_kind, by_value);
        check->noise[k] = count > 0 ? of_kind[count / 2] : 0;
    }
}

static void judge_memory(sbp_check *check, int64_t planned) {
    char a[32], b[32];
    sbp_finding f = {.part = "memory", .found = (double)check->peak_bytes, .allowed = 1.01 * (double)planned};
    f.verdict = check->peak_bytes == 0 ? SBP_VERDICT_UNSEEN
                : f.found <= f.allowed ? SBP_VERDICT_RIGHT
                                       : SBP_VERDICT_WRONG;
    f.text = sbp_arena_printf(check->world->arena, "%s planned, %s%s",
                              sbp_format_bytes(a, sizeof a, (double)planned),
                              check->peak_bytes ? sbp_format_bytes(b, sizeof b, f.found) : "",
                              check->peak_bytes ? " measured" : "the driver reports none");
    sbp_check_add(check, &f);
}

/* Gradients as they are, again, and by flipped bits. *finite: there are, and the rest can be checked. */
static sbp_status run_gradients(sbp_check *check, bool *finite) {
    sbp_executor *x = check->world->executor;
    sbp_diag *diag = check->world->diag;
    const sbp_plan *plan = check->session->plan;
    sbp_sketch *again;
    sbp_status status = sbp_check_gradients(check, false, &check->plain);
    *finite = status == SBP_OK;
    if (status == SBP_NOT_FINITE) {
        sbp_check_add(check, &(sbp_finding){.part = "finite",
                                            .text = "the loss is not",
                                            .found = 1,
                                            .allowed = 0,
                                            .verdict = SBP_VERDICT_WRONG});
        return SBP_OK;
    }
    SBP_TRY(status);
    *finite = judge_finite(check);
    if (!*finite)
        return SBP_OK;
    SBP_TRY(sbp_check_gradients(check, false, &again));
    judge_bits(check, again);
    sbp_sketch_destroy(again);
    SBP_TRY(sbp_nudge_bits(x, plan, check->compute, 0, diag));
    SBP_TRY(sbp_check_gradients(check, false, &check->rounded));
    SBP_TRY(sbp_nudge_bits(x, plan, check->compute, 0, diag));
    find_noise(check);
    return SBP_OK;
}

/* Fewer rows, where losses of all would take too long. */
static sbp_status run_slopes(sbp_check *check, int64_t rows) {
    double forwards = 4.0 * check->plain->kind_count + 6, seconds = forwards * check->gradient_seconds / 3.5;
    int64_t fewer = (int64_t)((double)rows * SLOPES_SECONDS / seconds);
    if (seconds > SLOPES_SECONDS && !has_scores(check) && fewer < rows)
        SBP_TRY(sbp_check_take_rows(check, fewer > LEAST_ROWS ? fewer : LEAST_ROWS));
    SBP_TRY(sbp_check_slopes(check));
    return has_scores(check) ? SBP_OK : sbp_check_take_rows(check, rows);
}

static sbp_status run_all(sbp_check *check) {
    sbp_world *world = check->world;
    sbp_session *session = check->session;
    int64_t rows = sbp_check_most_rows(session->plan->program),
            planned = sbp_run_peak_planned(world, session);
    int32_t zeros;
    bool finite;
    if (!sbp_trainer_has_gradients(session->plan->program))
        return sbp_fail(world->diag, SBP_MACHINE, "'%s' trains nothing: there are no gradients to check",
                        session->plan_path);
    SBP_TRY(sbp_check_take_rows(check, rows));
    SBP_TRY(sbp_nudge_zeros(world->executor, session->plan, &zeros, world->diag));
    if (zeros > 0)
        sbp_note(
            world->diag,
            "%d trained tensors are all 0: for the check they get small random numbers, so that what they "
            "multiply has gradients",
            (int)zeros);
    SBP_TRY(score_rows(check));
    SBP_TRY(run_gradients(check, &finite));
    if (finite)
        SBP_TRY(run_slopes(check, rows));
    SBP_TRY(sbp_check_commands(check));
    check->peak_bytes = sbp_run_peak_measured(world);
    judge_memory(check, planned + 3 * sbp_sketch_bytes(session->plan, false) +
                            sbp_sketch_bytes(session->plan, true));
    if (finite)
        SBP_TRY(sbp_check_schedule(check));
    return sbp_check_print(check);
}

sbp_status sbp_run_check(sbp_world *world, sbp_inputs *inputs, sbp_session *session, sbp_outputs *outputs) {
    sbp_check check = {
        .world = world, .inputs = inputs, .session = session, .outputs = outputs, .began = sbp_seconds()};
    const char *dtype = session->info.meta.dtype;
    check.compute = strcmp(dtype, "bf16") == 0 ? SBP_BF16 : strcmp(dtype, "fp64") == 0 ? SBP_F64 : SBP_F32;
    check.reads = check.compute == SBP_F64 ? SBP_F64 : SBP_F32;
    session->trainer.steady = true;
    sbp_status status = run_all(&check);
    sbp_sketch_destroy(check.plain);
    sbp_sketch_destroy(check.rounded);
    return status;
}
