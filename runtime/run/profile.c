/* profile.c: times commands, adds up, prints. */
#include "runtime/run/profile.h"

#include <stdlib.h>
#include <string.h>

#include "ir/base/machine.h"

enum { NAME_BYTES = 96 };

typedef struct timing {
    char name[NAME_BYTES];
    double seconds, flops, bytes;
    int64_t count;
} timing;

struct sbp_profile {
    timing *timings;
    int32_t count, capacity;
};

sbp_profile *sbp_profile_create(void) {
    sbp_profile *p = sbp_malloc(sizeof *p);
    if (p)
        *p = (sbp_profile){0};
    return p;
}

void sbp_profile_destroy(sbp_profile *p) {
    if (p)
        free(p->timings);
    free(p);
}

static int by_seconds(const void *a, const void *b) {
    double x = ((const timing *)a)->seconds, y = ((const timing *)b)->seconds;
    return (x < y) - (x > y);
}

void sbp_profile_print(sbp_profile *p, FILE *out) {
    double all = 0;
    if (p->count == 0)
        return;
    for (int32_t i = 0; i < p->count; i++)
        all += p->timings[i].seconds;
    qsort(p->timings, (size_t)p->count, sizeof *p->timings, by_seconds);
    fprintf(out, "%9s %6s %8s %9s %8s  command (one after the other; @queue where not compute)\n", "seconds",
            "share", "count", "GFLOP/s", "GB/s");
    for (int32_t i = 0; i < p->count; i++) {
        const timing *t = &p->timings[i];
        char rate[32] = "";
        if (t->flops > 0)
            snprintf(rate, sizeof rate, "%.1f", t->flops / t->seconds / 1e9);
        fprintf(out, "%9.3f %5.1f%% %8lld %9s %8.1f  %s\n", t->seconds, 100 * t->seconds / all,
                (long long)t->count, rate, t->bytes / t->seconds / 1e9, t->name);
    }
    fprintf(out, "%9.3f 100.0%% in all commands\n", all);
}

/* ---- what a command is called, and what it does ---- */

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
        snprintf(name, NAME_BYTES, "%s %lld rows, %lld heads of %lld", kind, (long long)q->rows,
                 (long long)a->heads, (long long)a->d_qk);
        return sbp_attention_flops(sbp_attention_pairs(q->first_row, q->rows, a->window),
                                   (double)(a->heads * a->d_qk), (double)(a->heads * a->d_v), backward);
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

static timing *find_timing(sbp_profile *p, const char *name) {
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

sbp_status sbp_profile_run(sbp_profile *p, const sbp_device_class *class, sbp_device *device,
                           const sbp_dispatch *dispatch, sbp_diag *diag) {
    char name[NAME_BYTES] = "";
    double flops = describe(dispatch, name), begun = sbp_seconds();
    size_t length = strlen(name);
    if (dispatch->command->queue != SBP_QUEUE_COMPUTE)
        snprintf(name + length, sizeof name - length, " @%s", sbp_queue_names[dispatch->command->queue]);
    SBP_TRY(class->submit(device, dispatch, diag));
    SBP_TRY(class->wait(device, diag));
    double seconds = sbp_seconds() - begun;
    timing *t = find_timing(p, name);
    if (!t)
        return sbp_fail(diag, SBP_MACHINE, "out of memory");
    t->seconds += seconds;
    t->flops += flops;
    t->bytes += bytes_of(dispatch);
    t->count++;
    return SBP_OK;
}
