/* profile.c: times commands, adds up, prints. */
#include "runtime/run/profile.h"

#include <stdlib.h>
#include <string.h>

#include "ir/base/machine.h"
#include "ir/program/traits.h"

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

static void name_of(const sbp_dispatch *d, char name[NAME_BYTES]) {
    const sbp_command *c = d->command;
    const char *kind = sbp_command_name(c->kind);
    const sbp_span *s = d->spans;
    const sbp_attention_operands *attention = sbp_command_attention(c->kind);
    if (sbp_command_attributes(c) == SBP_ATTRIBUTES_ROW) {
        snprintf(name, NAME_BYTES, "row %s", d->kernel->name);
    } else if (sbp_command_attributes(c) == SBP_ATTRIBUTES_GEMM) {
        int64_t k = c->u.gemm.ta ? s[SBP_GEMM_A].rows : s[SBP_GEMM_A].cols;
        snprintf(name, NAME_BYTES, "%s %lldx%lldx%lld%s%s%s", kind, (long long)s[SBP_GEMM_D].rows,
                 (long long)s[SBP_GEMM_D].cols, (long long)k, c->u.gemm.ta ? " a^T" : "",
                 c->u.gemm.tb ? " b^T" : "",
                 c->u.gemm.beta != 0 && s[SBP_GEMM_C].space != SBP_SPACE_COUNT ? " +c" : "");
    } else if (attention) {
        snprintf(name, NAME_BYTES, "%s %lld rows, %lld heads of %lld", kind, (long long)s[attention->q].rows,
                 (long long)c->u.attention.heads, (long long)c->u.attention.d_qk);
    } else {
        snprintf(name, NAME_BYTES, "%s", kind);
    }
}

/* Multiply-adds count as two. Attention: the pairs of rows that a causal mask or the window leaves, as if the
 * rows were one document. */
static sbp_work work_of(const sbp_program *program, const sbp_dispatch *d) {
    sbp_operand_shape operands[SBP_MAX_COMMAND_OPERANDS];
    sbp_work work;
    for (int32_t i = 0; i < d->span_count; i++) {
        const sbp_span *s = &d->spans[i];
        operands[i] = (sbp_operand_shape){.rows = s->rows,
                                          .cols = s->cols,
                                          .first_row = s->first_row,
                                          .dtype = s->dtype,
                                          .space = s->space};
    }
    sbp_command_work(
        &(sbp_work_query){
            .program = program, .command = d->command, .operands = operands, .chunks = 1, .ranks = 1},
        &work);
    return work;
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
                           const sbp_program *program, const sbp_dispatch *dispatch, sbp_diag *diag) {
    char name[NAME_BYTES] = "";
    name_of(dispatch, name);
    sbp_work work = work_of(program, dispatch);
    double begun = sbp_seconds();
    size_t length = strlen(name);
    if (dispatch->command->queue != SBP_QUEUE_COMPUTE)
        snprintf(name + length, sizeof name - length, " @%s", sbp_queue_names[dispatch->command->queue]);
    SBP_TRY(class->submit(device, dispatch, diag));
    SBP_TRY(class->wait(device, diag));
    double seconds = sbp_seconds() - begun;
    timing *t = find_timing(p, name);
    if (!t)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for the profile");
    t->seconds += seconds;
    t->flops += work.flops;
    t->bytes += work.bytes;
    t->count++;
    return SBP_OK;
}
