/* shadow.c: two sets of weights for one place. */
#include "runtime/train/shadow.h"
#include "ir/base/census.h"

#include <stdlib.h>
#include <string.h>

enum { PIECE_BYTES = 1 << 20 };

struct sbp_shadow {
    sbp_executor *executor;
    const sbp_plan *plan;
    unsigned char *bytes; /* of the buffers, one after the other */
    unsigned char *piece;
    int64_t size;
};

/* Buffers of trained parameters, with their low halves: number `index`, -1 behind the last. */
static int32_t buffer_at(const sbp_plan *plan, int32_t index) {
    for (int32_t k = 0; k < plan->tensors->count; k++) {
        if (!plan->tensors->tensors[k].trainable)
            continue;
        if (index-- == 0)
            return plan->buffers[k];
        if (plan->masters[k] >= 0 && index-- == 0)
            return plan->masters[k];
    }
    return -1;
}

static int64_t buffer_bytes(const sbp_shadow *s, int32_t buffer) {
    int64_t first, count; /* of what ranks have shares of, this one's */
    sbp_executor_own(s->executor, buffer, &first, &count);
    return count * sbp_dtype_bytes(sbp_executor_program(s->executor)->buffers[buffer].dtype);
}

/* write: what is in the copy goes to the device, in exchange for what is there. */
static sbp_status move(sbp_shadow *s, bool write, sbp_diag *diag) {
    unsigned char *at = s->bytes;
    for (int32_t i = 0, b; (b = buffer_at(s->plan, i)) >= 0; i++) {
        sbp_dtype dtype = sbp_executor_program(s->executor)->buffers[b].dtype;
        int64_t unit = sbp_dtype_bytes(dtype), most = PIECE_BYTES / unit, own, elems;
        sbp_executor_own(s->executor, b, &own, &elems);
        SBP_CROSS_EITHER(elems > most, train_shadow_pieces, train_shadow_piece);
        for (int64_t first = own; first < own + elems; first += most) {
            int64_t count = own + elems - first < most ? own + elems - first : most;
            SBP_TRY(sbp_executor_read(s->executor, b, 0, first, count, dtype, s->piece, diag));
            if (write)
                SBP_TRY(sbp_executor_write(s->executor, b, 0, first, count, dtype, at, diag));
            memcpy(at, s->piece, (size_t)(count * unit));
            at += count * unit;
        }
    }
    return SBP_OK;
}

sbp_status sbp_shadow_create(sbp_executor *executor, const sbp_plan *plan, sbp_diag *diag, sbp_shadow **out) {
    sbp_shadow *s = sbp_malloc(sizeof *s);
    if (!s)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for the numbers that a reference is computed with");
    *s = (sbp_shadow){.executor = executor, .plan = plan};
    for (int32_t i = 0, b; (b = buffer_at(plan, i)) >= 0; i++)
        s->size += buffer_bytes(s, b);
    s->bytes = sbp_malloc((size_t)s->size + 1);
    s->piece = s->bytes ? sbp_malloc(PIECE_BYTES) : NULL;
    char size[32];
    sbp_status status = s->piece
                            ? move(s, false, diag)
                            : sbp_fail(diag, SBP_MACHINE, "out of memory for a second set of weights, %s",
                                       sbp_format_bytes(size, sizeof size, (double)s->size));
    if (status == SBP_OK)
        *out = s;
    else
        sbp_shadow_destroy(s);
    return status;
}

sbp_status sbp_shadow_exchange(sbp_shadow *s, sbp_diag *diag) {
    return move(s, true, diag);
}

int64_t sbp_shadow_bytes(const sbp_shadow *s) {
    return s->size;
}

void sbp_shadow_destroy(sbp_shadow *s) {
    if (!s)
        return;
    free(s->bytes);
    free(s->piece);
    free(s);
}
