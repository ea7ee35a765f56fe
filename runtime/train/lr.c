/* lr.c: the schedules. k steps are done, W are warmup, S is all; p = (k - W)/max(1, S - W). */
#include "runtime/train/lr.h"

#include <math.h>
#include <string.h>

static const double PI = 3.14159265358979323846;

static double at_least_one(double x) {
    return x > 1 ? x : 1;
}

/* p of the file comment. */
static double progress(const sbp_lr *s, double k) {
    return (k - (double)s->warmup) / at_least_one((double)(s->total - s->warmup));
}

/* k/W while k < W: true. */
static bool warming(const sbp_lr *s, double k, double *factor) {
    *factor = k / at_least_one((double)s->warmup);
    return k < (double)s->warmup;
}

static double cosine_wave(double cycles, double p) {
    return 0.5 * (1 + cos(PI * cycles * 2 * p));
}

static double constant(const sbp_lr *s, double k) {
    (void)s, (void)k;
    return 1;
}

static double constant_with_warmup(const sbp_lr *s, double k) {
    double f;
    return warming(s, k, &f) ? f : 1;
}

static double linear(const sbp_lr *s, double k) {
    double f;
    if (warming(s, k, &f))
        return f;
    f = ((double)s->total - k) / at_least_one((double)(s->total - s->warmup));
    return f > 0 ? f : 0;
}

static double cosine(const sbp_lr *s, double k) {
    double f;
    if (warming(s, k, &f))
        return f;
    f = cosine_wave(s->options.num_cycles, progress(s, k));
    return f > 0 ? f : 0;
}

static double cosine_with_restarts(const sbp_lr *s, double k) {
    double f, p = progress(s, k);
    if (warming(s, k, &f))
        return f;
    if (p >= 1)
        return 0;
    f = 0.5 * (1 + cos(PI * fmod(s->options.num_cycles * p, 1)));
    return f > 0 ? f : 0;
}

static double above_floor(double f, double floor) {
    f = f * (1 - floor) + floor;
    return f > 0 ? f : 0;
}

static double cosine_with_min_lr(const sbp_lr *s, double k) {
    double f;
    return warming(s, k, &f)
               ? f
               : above_floor(cosine_wave(s->options.num_cycles, progress(s, k)), s->options.min_lr_rate);
}

/* The same, a step ahead. */
static double cosine_warmup_with_min_lr(const sbp_lr *s, double k) {
    if (k < (double)s->warmup)
        return (k + 1) / at_least_one((double)s->warmup);
    return above_floor(cosine_wave(s->options.num_cycles, progress(s, k + 1)), s->options.min_lr_rate);
}

static double polynomial(const sbp_lr *s, double k) {
    double f, lr = s->options.lr, end = s->options.lr_end;
    if (warming(s, k, &f))
        return f;
    if (k > (double)s->total)
        return end / lr;
    return ((lr - end) * pow(1 - progress(s, k), s->options.power) + end) / lr;
}

static double inverse_sqrt(const sbp_lr *s, double k) {
    double f, scale = s->options.timescale;
    if (warming(s, k, &f))
        return f;
    return 1 / sqrt((k + scale - (double)s->warmup) / scale);
}

/* From 1 to 0 as u goes from 0 to 1. */
static double decay(const char *type, double cycles, double u) {
    if (strcmp(type, "linear") == 0)
        return 1 - u;
    return strcmp(type, "cosine") == 0 ? cosine_wave(cycles, u) : 1 - sqrt(u);
}

static double rise(const char *type, double u) {
    if (strcmp(type, "linear") == 0)
        return u;
    return strcmp(type, "cosine") == 0 ? 0.5 * (1 - cos(PI * u)) : 1 - sqrt(1 - u);
}

static double warmup_stable_decay(const sbp_lr *s, double k) {
    const sbp_lr_options *o = &s->options;
    double f, stable = (double)s->warmup + (double)o->num_stable_steps, steps = (double)o->num_decay_steps;
    if (warming(s, k, &f))
        return above_floor(rise(o->warmup_type, f), o->min_lr_ratio);
    if (k < stable)
        return 1;
    if (k < stable + steps)
        return above_floor(decay(o->decay_type, o->num_cycles, (k - stable) / at_least_one(steps)),
                           o->min_lr_ratio);
    return o->min_lr_ratio;
}

static const struct schedule {
    const char *name;
    double (*factor)(const sbp_lr *s, double k);
    double cycles;     /* without num_cycles */
    const char *reads; /* options, each between blanks */
} schedules[] = {
#define SCHEDULE(name, function, cycles, reads) {name, function, cycles, reads},
#include "runtime/options/schedules.def"
#undef SCHEDULE
};

static const struct schedule *find(const char *name) {
    for (int i = 0; i < SBP_COUNT(schedules); i++)
        if (strcmp(schedules[i].name, name) == 0)
            return &schedules[i];
    return NULL;
}

/* Whether an option is one of a list, each between blanks. */
static bool lists(const char *list, const char *option) {
    const char *at = strstr(list, option);
    size_t n = strlen(option);
    while (at && !(at > list && at[-1] == ' ' && at[n] == ' '))
        at = strstr(at + 1, option);
    return at != NULL;
}

bool sbp_lr_reads(const char *schedule, const char *option) {
    for (int i = 0; i < SBP_COUNT(schedules); i++)
        if ((!schedule || strcmp(schedules[i].name, schedule) == 0) && lists(schedules[i].reads, option))
            return true;
    return false;
}

static sbp_status resolve_floor(sbp_lr *s, sbp_diag *diag) {
    sbp_lr_options *o = &s->options;
    if (isnan(o->min_lr) == isnan(o->min_lr_rate))
        return sbp_fail(diag, SBP_USAGE, "--schedule %s needs one of the keys min_lr and min_lr_rate%s",
                        o->schedule, isnan(o->min_lr) ? "" : ", not both");
    if (isnan(o->min_lr_rate))
        o->min_lr_rate = o->lr > 0 ? o->min_lr / o->lr : 0;
    return SBP_OK;
}

sbp_status sbp_lr_init(sbp_lr *out, sbp_diag *diag, const sbp_lr_options *options, int64_t total) {
    const struct schedule *found = find(options->schedule);
    if (!found)
        return sbp_fail(diag, SBP_USAGE, "there is no schedule '%.60s'", options->schedule);
    *out = (sbp_lr){.options = *options, .total = total, .factor = found->factor};
    sbp_lr_options *o = &out->options;
    double warmup = o->warmup >= 1 ? floor(o->warmup) : ceil((double)total * o->warmup);
    out->warmup = warmup < 1e15 ? (int64_t)warmup : (int64_t)1e15;
    if (isnan(o->num_cycles))
        o->num_cycles = found->cycles;
    if (isnan(o->timescale))
        o->timescale = out->warmup > 0 ? (double)out->warmup : 10000;
    if (sbp_lr_reads(o->schedule, "min-lr"))
        SBP_TRY(resolve_floor(out, diag));
    if (found->factor == polynomial && !(o->lr > o->lr_end))
        return sbp_fail(diag, SBP_USAGE, "--schedule polynomial: lr_end %g is not below --lr %g", o->lr_end,
                        o->lr);
    if (found->factor == warmup_stable_decay) {
        if (o->num_decay_steps < 0)
            return sbp_fail(diag, SBP_USAGE, "--schedule %s needs the key num_decay_steps", o->schedule);
        if (o->num_stable_steps < 0)
            o->num_stable_steps = total - out->warmup - o->num_decay_steps;
    }
    return SBP_OK;
}

double sbp_lr_at(const sbp_lr *lr, int64_t k) {
    return lr->options.lr * lr->factor(lr, (double)k);
}
