/* check_slopes.c: gradients against the loss itself: weights are moved a little along the gradients of each
 * kind of parameter, and the loss must change by what these say. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "ir/program/traits.h"
#include "runtime/cli/sbprun/check.h"
#include "runtime/train/nudge.h"

/* Shares of the loss by which a step is to change it: no less than many times what rounding does, no more
 * than what is still nearly straight; and the longest step, as a share of the weights. */
static const double LEAST_CHANGE = 1e-4, MOST_CHANGE = 3e-2, ROUNDINGS = 2000, LONGEST = 0.03, BENT = 1.2;

typedef struct slopes {
    sbp_check *check;
    const sbp_sketch *sketch;
    double loss, rounding; /* of the loss */
    bool jumps;            /* the loss may: rows choose their experts, and a step may change the choice */
} slopes;

static sbp_status loss_at(const sbp_check *check, double *out) {
    sbp_trainer *t = &check->session->trainer;
    SBP_TRY(sbp_trainer_evaluate(t, check->world->diag, check->inputs->data, NULL, NULL));
    *out = t->results[t->loss];
    return SBP_OK;
}

static bool has_choices(const sbp_body *body) {
    for (int32_t n = 0; n < body->count; n++) {
        const sbp_node *node = &body->nodes[n];
        if (node->kind == SBP_NODE_LOOP
                ? has_choices(&node->u.loop->body)
                : node->kind == SBP_NODE_COMMAND &&
                      sbp_command_traits_of(node->u.command->kind)->items == SBP_ITEMS_CHOICES)
            return true;
    }
    return false;
}

static bool may_jump(const sbp_program *p) {
    for (int32_t f = 0; f < p->function_count; f++)
        if (has_choices(&p->functions[f].body))
            return true;
    return false;
}

/* What flipped last bits do to the loss, in the mean of a few draws: one may do nearly nothing. */
static sbp_status measure_rounding(slopes *s) {
    enum { DRAWS = 4 };
    const sbp_check *check = s->check;
    sbp_executor *x = check->world->executor;
    double other, squares = 0;
    SBP_TRY(loss_at(check, &s->loss));
    for (int draw = 0; draw < DRAWS; draw++) {
        SBP_TRY(sbp_nudge_bits(x, check->session->plan, check->compute, draw, check->world->diag));
        sbp_status status = loss_at(check, &other);
        SBP_TRY(sbp_nudge_bits(x, check->session->plan, check->compute, draw, check->world->diag));
        SBP_TRY(status);
        squares += (other - s->loss) * (other - s->loss) / DRAWS;
    }
    s->rounding = fmax(sqrt(squares), fabs(s->loss) * (check->compute == SBP_F64 ? 1e-15 : 1e-8));
    return SBP_OK;
}

/* Change of the loss between a step to one side and to the other, over what gradients say. */
static sbp_status measure(const slopes *s, const sbp_nudge *nudge, double step, double *ratio,
                          double *rounding) {
    double up, down, predicted_up, predicted_down;
    sbp_diag *diag = s->check->world->diag;
    SBP_TRY(sbp_nudge_set(nudge, step, &predicted_up, diag));
    SBP_TRY(loss_at(s->check, &up));
    SBP_TRY(sbp_nudge_set(nudge, -step, &predicted_down, diag));
    SBP_TRY(loss_at(s->check, &down));
    double predicted = predicted_up - predicted_down;
    *ratio = predicted != 0 ? (up - down) / predicted : 0; /* 0: no weight changes by so little */
    *rounding = predicted != 0 ? s->rounding / fabs(predicted) : INFINITY;
    return SBP_OK;
}

/* What steps of one length and its half say. */
typedef struct estimate {
    double step, value, error; /* value: of the loss' change over what gradients say */
    double curved, rounding;   /* parts of the error */
    bool other;                /* shorter steps do not say so */
    bool bent;                 /* half a step does much more than half of it: the slope is steeper yet */
} estimate;

static sbp_status estimate_at(const slopes *s, const sbp_nudge *nudge, double step, double noise,
                              estimate *out) {
    double ratio[2], rounding[2];
    for (int k = 0; k < 2; k++)
        SBP_TRY(measure(s, nudge, k ? step / 2 : step, &ratio[k], &rounding[k]));
    *out = (estimate){.step = step, .value = (4 * ratio[1] - ratio[0]) / 3, .rounding = rounding[1]};
    out->curved = fabs(ratio[1] - ratio[0]);
    out->bent = ratio[0] * ratio[1] > 0 && fabs(ratio[1]) > BENT * fabs(ratio[0]);
    out->error = SBP_CHECK_ESTIMATE * (out->curved + out->rounding + noise);
    return SBP_OK;
}

/* Too curved to say much. */
static bool is_blurred(const estimate *e) {
    return !(e->curved <= 0.005) || e->bent;
}

static double off(const estimate *e) {
    return fabs(e->value - 1);
}

/* Shorter steps, where the loss is too curved for these, or is not what gradients say; as long as rounding
 * lets one see. */
static bool wants_shorter(const estimate *e) {
    return (!(off(e) <= e->error) || is_blurred(e)) && 8 * e->rounding * SBP_CHECK_ESTIMATE < 0.1;
}

/* Whether what shorter steps say takes the place of this: not where it is clear and they see less. */
static bool is_better(const estimate *shorter, const estimate *e) {
    if (is_blurred(e) && off(e) <= e->error)
        return shorter->error < e->error;
    return shorter->error <= (is_blurred(e) ? 0.5 : off(e) / 2);
}

static void judge(const slopes *s, int32_t kind, const estimate *e) {
    sbp_check *check = s->check;
    const sbp_sketch_kind *k = &s->sketch->kinds[kind];
    sbp_arena *arena = check->world->arena;
    sbp_finding f = {.part = "loss along gradient", .found = off(e), .allowed = e->error};
    f.what = sbp_arena_strdup(arena, k->name);
    const char *why = e->other  ? ", in which rows choose other experts"
                      : e->bent ? ", in which the slope changes"
                                : "";
    f.text = sbp_arena_printf(arena, "changes by %.4f of what %s, +-%.2g (steps of %.2g%s)", e->value,
                              k->tensors == 1 ? "its gradient says"
                                              : sbp_arena_printf(arena, "%d gradients say", k->tensors),
                              e->error, e->step, why);
    bool unseen = e->other || e->bent || e->error > 0.5;
    f.verdict = !(off(e) <= e->error) && !e->other && !e->bent ? SBP_VERDICT_WRONG
                : unseen                                       ? SBP_VERDICT_UNSEEN
                                                               : SBP_VERDICT_RIGHT;
    sbp_check_add(check, &f);
}

/* Where the loss jumps an estimate is only as wrong as shorter steps say, too: a wrong gradient is as wrong
 * in those, and a jump is not. */
static sbp_status estimate_kind(const slopes *s, const sbp_nudge *nudge, double noise, estimate *out) {
    enum { MOST_TRIES = 4 };
    double size = fmax(fabs(s->loss), 0.1);
    double change = fmin(fmax(ROUNDINGS * s->rounding, LEAST_CHANGE * size), MOST_CHANGE * size);
    double step = fmin(change / nudge->slope, LONGEST);
    bool other = s->jumps;
    SBP_TRY(estimate_at(s, nudge, step, noise, out));
    for (int i = 1; i < MOST_TRIES && wants_shorter(out); i++) {
        estimate shorter;
        SBP_TRY(estimate_at(s, nudge, step /= 8, noise, &shorter));
        other &= off(&shorter) <= shorter.error || shorter.error > 0.5;
        if (is_better(&shorter, out))
            *out = shorter;
        else if (!s->jumps)
            break;
    }
    if (off(out) <= out->error)
        return SBP_OK;
    /* Two lengths may be off by as much as each other by chance, where the loss is curved or has few bits:
     * another two say so, unless the gradient is wrong. */
    estimate again;
    SBP_TRY(estimate_at(s, nudge, 0.6 * out->step, noise, &again));
    out->error = fmax(fmax(out->error, again.error), SBP_CHECK_ESTIMATE * fabs(again.value - out->value));
    out->other = other && !(off(out) <= out->error);
    return SBP_OK;
}

static sbp_status check_kind(const slopes *s, int32_t kind, sbp_arena *arena) {
    sbp_check *check = s->check;
    const sbp_sketch_kind *k = &s->sketch->kinds[kind];
    sbp_nudge nudge;
    estimate e;
    double nothing;
    if (k->count == 0) {
        sbp_check_add(check, &(sbp_finding){.part = "loss along gradient",
                                            .what = sbp_arena_strdup(check->world->arena, k->name),
                                            .text = "all gradients are 0",
                                            .found = NAN,
                                            .allowed = NAN,
                                            .verdict = SBP_VERDICT_UNSEEN});
        return SBP_OK;
    }
    SBP_TRY(sbp_nudge_begin(&nudge, check->world->executor, s->sketch, kind, check->compute, arena,
                            check->world->diag));
    sbp_status status = estimate_kind(s, &nudge, check->noise[kind], &e);
    SBP_TRY(sbp_nudge_set(&nudge, 0, &nothing, check->world->diag));
    SBP_TRY(status);
    judge(s, kind, &e);
    return SBP_OK;
}

typedef struct kind_job {
    const slopes *slopes;
    int32_t kind;
    sbp_arena *arena;
} kind_job;

static sbp_status kind_body(void *user) {
    const kind_job *job = user;
    return check_kind(job->slopes, job->kind, job->arena);
}

static sbp_status all_kinds(slopes *s) {
    SBP_TRY(measure_rounding(s));
    for (int32_t k = 0; k < s->sketch->kind_count; k++) {
        kind_job job = {.slopes = s, .kind = k, .arena = sbp_arena_create()};
        if (!job.arena)
            return sbp_fail(s->check->world->diag, SBP_MACHINE, "out of memory for weights");
        sbp_status status = sbp_guard(job.arena, s->check->world->diag, kind_body, &job);
        sbp_arena_destroy(job.arena);
        SBP_TRY(status);
    }
    return SBP_OK;
}

/* NULL: they can be. */
static const char *why_not(const sbp_check *check) {
    const char *held = check->session->info.meta.held;
    if (check->session->trainer.loss < 0 ||
        !sbp_program_entry(check->session->plan->program, SBP_ENTRY_SCORE))
        return "the plan cannot evaluate a loss";
    if (held)
        return sbp_arena_printf(check->world->arena,
                                "gradients of this loss take %s for a constant: they are not its derivatives",
                                held);
    return NULL;
}

sbp_status sbp_check_slopes(sbp_check *check) {
    sbp_sketch *sketch;
    const char *why = why_not(check);
    if (why) {
        sbp_check_add(check, &(sbp_finding){.part = "loss along gradient",
                                            .text = why,
                                            .found = NAN,
                                            .allowed = NAN,
                                            .verdict = SBP_VERDICT_UNCHECKED});
        return SBP_OK;
    }
    SBP_TRY(sbp_check_gradients(check, true, &sketch));
    slopes s = {.check = check, .sketch = sketch, .jumps = may_jump(check->session->plan->program)};
    sbp_status status = all_kinds(&s);
    sbp_sketch_destroy(sketch);
    return status;
}
