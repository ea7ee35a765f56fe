/* profile.c: times every command of a device. */
#include "runtime/profile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { NAME_BYTES = 96 };

typedef struct timing {
    char name[NAME_BYTES];
    double seconds, flops, bytes;
    int64_t count;
} timing;

typedef struct profile_device {
    sbp_device base;
    sbp_device *inner;
    timing *timings;
    int32_t count, capacity;
} profile_device;

/* A class has no place for data of its own, so the one that is wrapped is kept here. */
static const sbp_device_class *inner_class;
static sbp_device_class profile_class;

static sbp_device *inner_of(sbp_device *base) {
    return ((profile_device *)base)->inner;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_seconds(const void *a, const void *b) {
    double x = ((const timing *)a)->seconds, y = ((const timing *)b)->seconds;
    return (x < y) - (x > y);
}

static void print_table(profile_device *p) {
    double all = 0;
    for (int32_t i = 0; i < p->count; i++)
        all += p->timings[i].seconds;
    qsort(p->timings, (size_t)p->count, sizeof *p->timings, by_seconds);
    fprintf(stderr, "%9s %6s %8s %9s %8s  command\n", "seconds", "share", "count", "GFLOP/s", "GB/s");
    for (int32_t i = 0; i < p->count; i++) {
        const timing *t = &p->timings[i];
        char rate[32] = "";
        if (t->flops > 0)
            snprintf(rate, sizeof rate, "%.1f", t->flops / t->seconds / 1e9);
        fprintf(stderr, "%9.3f %5.1f%% %8lld %9s %8.1f  %s\n", t->seconds, 100 * t->seconds / all,
                (long long)t->count, rate, t->bytes / t->seconds / 1e9, t->name);
    }
    fprintf(stderr, "%9.3f 100.0%% in all commands\n", all);
}

/* ---- what a command is called, and what it does ---------------------------------------------------------
 */

/* Multiply-adds count as two. Attention: the pairs of rows that a causal mask or the window leaves, as if the
 * rows were one document. */
static double describe(const sbp_dispatch *d, char name[NAME_BYTES]) {
    const sbp_command *c = d->command;
    const char *kind = sbp_command_name(c->kind);
    const sbp_span *s = d->spans;
    if (c->kind == SBP_CMD_ROW) {
        snprintf(name, NAME_BYTES, "row %s", d->kernel->name);
        return 0;
    }
    if (c->kind == SBP_CMD_GEMM) {
        int64_t k = c->u.gemm.ta ? s[1].rows : s[1].cols;
        snprintf(name, NAME_BYTES, "%s %lldx%lldx%lld%s%s%s", kind, (long long)s[0].rows,
                 (long long)s[0].cols, (long long)k, c->u.gemm.ta ? " a^T" : "", c->u.gemm.tb ? " b^T" : "",
                 c->u.gemm.beta != 0 && s[3].space != SBP_SPACE_COUNT ? " +c" : "");
        return 2.0 * (double)s[0].rows * (double)s[0].cols * (double)k;
    }
    if (c->kind == SBP_CMD_ATTN_FWD || c->kind == SBP_CMD_ATTN_BWD) {
        const sbp_attention_attrs *a = &c->u.attention;
        bool backward = c->kind == SBP_CMD_ATTN_BWD;
        const sbp_span *q = &s[backward ? 3 : 2];
        double pairs = 0;
        for (int64_t i = 0; i < q->rows; i++) {
            int64_t keys = q->first_row + i + 1;
            pairs += (double)(a->window > 0 && keys > a->window ? a->window : keys);
        }
        snprintf(name, NAME_BYTES, "%s %lld rows, %lld heads of %lld", kind, (long long)q->rows,
                 (long long)a->heads, (long long)a->d_qk);
        return pairs * (double)a->heads *
               (backward ? 6.0 * (double)a->d_qk + 4.0 * (double)a->d_v : 2.0 * (double)(a->d_qk + a->d_v));
    }
    snprintf(name, NAME_BYTES, "%s", kind);
    return 0;
}

static double bytes_of(const sbp_dispatch *d) {
    double bytes = 0;
    for (int32_t i = 0; i < d->span_count; i++)
        if (d->spans[i].space != SBP_SPACE_COUNT)
            bytes += (double)d->spans[i].rows * (double)d->spans[i].cols *
                     (double)sbp_dtype_bytes(d->spans[i].dtype);
    return bytes;
}

static timing *find_timing(profile_device *p, const char *name) {
    for (int32_t i = 0; i < p->count; i++)
        if (strcmp(p->timings[i].name, name) == 0)
            return &p->timings[i];
    if (p->count == p->capacity) {
        int32_t capacity = p->capacity ? 2 * p->capacity : 64;
        timing *grown = sbp_realloc(p->timings, (size_t)capacity * sizeof *grown);
        if (!grown)
            return NULL;
        p->timings = grown;
        p->capacity = capacity;
    }
    timing *t = &p->timings[p->count++];
    memset(t, 0, sizeof *t);
    memcpy(t->name, name, NAME_BYTES);
    return t;
}

/* ---- the device ------------------------------------------------------------------------------------------
 */

static void profile_destroy(sbp_device *base) {
    profile_device *p = (profile_device *)base;
    if (p->count > 0)
        print_table(p);
    inner_class->destroy(p->inner);
    free(p->timings);
    free(p);
}

static sbp_status profile_create(const sbp_device_options *options, sbp_diag *diag, sbp_device **out) {
    *out = NULL;
    profile_device *p = sbp_malloc(sizeof *p);
    if (!p)
        return sbp_fail(diag, SBP_MACHINE, "out of memory");
    memset(p, 0, sizeof *p);
    p->base.class = &profile_class;
    sbp_status status = inner_class->create(options, diag, &p->inner);
    if (status != SBP_OK)
        free(p);
    else
        *out = &p->base;
    return status;
}

static void profile_info(sbp_device *base, sbp_device_info *out) {
    inner_class->info(inner_of(base), out);
}

static sbp_status profile_load(sbp_device *base, const sbp_program *program, sbp_diag *diag) {
    return inner_class->load(inner_of(base), program, diag);
}

static sbp_status profile_write(sbp_device *base, sbp_space space, int64_t offset, const void *data,
                                int64_t bytes, sbp_diag *diag) {
    return inner_class->write(inner_of(base), space, offset, data, bytes, diag);
}

static sbp_status profile_read(sbp_device *base, sbp_space space, int64_t offset, void *data, int64_t bytes,
                               sbp_diag *diag) {
    return inner_class->read(inner_of(base), space, offset, data, bytes, diag);
}

static sbp_status profile_submit(sbp_device *base, const sbp_dispatch *dispatch, sbp_diag *diag) {
    profile_device *p = (profile_device *)base;
    if (dispatch->command->kind == SBP_CMD_FENCE)
        return inner_class->submit(p->inner, dispatch, diag);
    char name[NAME_BYTES] = "";
    double flops = describe(dispatch, name), begun = now();
    SBP_TRY(inner_class->submit(p->inner, dispatch, diag));
    SBP_TRY(inner_class->wait(p->inner, diag));
    double seconds = now() - begun;
    timing *t = find_timing(p, name);
    if (!t)
        return sbp_fail(diag, SBP_MACHINE, "out of memory");
    t->seconds += seconds;
    t->flops += flops;
    t->bytes += bytes_of(dispatch);
    t->count++;
    return SBP_OK;
}

static sbp_status profile_wait(sbp_device *base, sbp_diag *diag) {
    return inner_class->wait(inner_of(base), diag);
}

static void *profile_map(sbp_device *base, sbp_space space, int64_t offset) {
    return inner_class->map(inner_of(base), space, offset);
}

const sbp_device_class *sbp_profile_class(const sbp_device_class *class) {
    const char *wanted = getenv("SBP_PROFILE");
    if (!wanted || !*wanted || strcmp(wanted, "0") == 0)
        return class;
    inner_class = class;
    profile_class = (sbp_device_class){.name = class->name,
                                       .count = class->count,
                                       .create = profile_create,
                                       .destroy = profile_destroy,
                                       .info = profile_info,
                                       .load = profile_load,
                                       .write = profile_write,
                                       .read = profile_read,
                                       .submit = profile_submit,
                                       .wait = profile_wait,
                                       .map = profile_map};
    return &profile_class;
}
