/* executor_io.c: reading and writing buffers. */
#include "ir/base/census.h"
#include "runtime/run/executor_internal.h"

#include <string.h>

/* ---- buffers ---------------------------------------------------------------------------------------- */

static sbp_status check_range(const sbp_executor *x, int32_t buffer, int32_t slot, int64_t first,
                              int64_t count, sbp_diag *diag) {
    if (buffer < 0 || buffer >= x->program->buffer_count)
        return sbp_fail(diag, SBP_INTERNAL, "no buffer %d", buffer);
    const sbp_buffer *b = &x->program->buffers[buffer];
    int64_t elems = sbp_executor_elems(x, buffer);
    if (slot < 0 || slot >= b->count || first < 0 || count < 0 || count > elems || first > elems - count)
        return sbp_fail(diag, SBP_INTERNAL,
                        "buffer '%.200s': elements %lld+%lld of slot %d; it has %d of %lld", b->name,
                        (long long)first, (long long)count, slot, b->count, (long long)elems);
    return SBP_OK;
}

static int64_t byte_offset(const sbp_executor *x, int32_t buffer, int32_t slot, int64_t element) {
    const sbp_buffer *b = &x->program->buffers[buffer];
    return b->offset + slot * b->stride + element * sbp_dtype_bytes(b->dtype);
}

sbp_status sbp_executor_read(sbp_executor *x, int32_t buffer, int32_t slot, int64_t first, int64_t count,
                             sbp_dtype dtype, void *out, sbp_diag *diag) {
    SBP_TRY(check_range(x, buffer, slot, first, count, diag));
    const sbp_buffer *b = &x->program->buffers[buffer];
    if (sbp_executor_is_shared(x, buffer))
        return sbp_executor_read_shared(x, buffer, first, count, dtype, out, diag);
    return sbp_executor_convert_out(x, b->space, byte_offset(x, buffer, slot, first), b->dtype, count, dtype,
                                    out, diag);
}

sbp_status sbp_executor_write(sbp_executor *x, int32_t buffer, int32_t slot, int64_t first, int64_t count,
                              sbp_dtype dtype, const void *data, sbp_diag *diag) {
    SBP_TRY(check_range(x, buffer, slot, first, count, diag));
    const sbp_buffer *b = &x->program->buffers[buffer];
    if (sbp_executor_is_shared(x, buffer))
        return sbp_executor_write_shared(x, buffer, first, count, dtype, data, diag);
    return sbp_executor_convert_in(x, b->space, byte_offset(x, buffer, slot, first), b->dtype, count, dtype,
                                   data, diag);
}

sbp_status sbp_executor_hash(sbp_executor *x, int32_t buffer, uint64_t *hash, sbp_diag *diag) {
    SBP_TRY(check_range(x, buffer, 0, 0, 0, diag));
    const sbp_buffer *b = &x->program->buffers[buffer];
    int64_t unit = sbp_dtype_bytes(b->dtype), piece = SBP_STAGING_BYTES / unit;
    int64_t elems = sbp_executor_elems(x, buffer);
    for (int64_t at = 0; at < elems; at += piece) {
        int64_t n = elems - at < piece ? elems - at : piece;
        SBP_TRY(
            sbp_executor_is_shared(x, buffer)
                ? sbp_executor_bring(x, buffer, at, n, diag)
                : sbp_executor_get(x, b->space, byte_offset(x, buffer, 0, at), x->staging, n * unit, diag));
        *hash = sbp_hash_bytes(x->staging, (size_t)(n * unit), *hash);
    }
    return SBP_OK;
}

static sbp_status fill(sbp_executor *x, int32_t buffer, double value, sbp_diag *diag) {
    const sbp_buffer *b = &x->program->buffers[buffer];
    int64_t unit = sbp_dtype_bytes(b->dtype), piece = SBP_STAGING_BYTES / unit;
    int64_t elems = sbp_executor_elems(x, buffer);
    SBP_CROSS_EITHER(elems > piece, run_fill_pieces, run_fill_piece);
    for (int64_t e = 0; e < piece && e < elems; e++)
        sbp_element_set(x->staging, b->dtype, e, value);
    for (int32_t slot = 0; slot < b->count; slot++)
        for (int64_t e = 0; e < elems; e += piece) {
            int64_t n = elems - e < piece ? elems - e : piece;
            SBP_TRY(
                sbp_executor_put(x, b->space, byte_offset(x, buffer, slot, e), x->staging, n * unit, diag));
        }
    return SBP_OK;
}

/* Fills buffers of a role. What lies in shares is filled as a whole, padding too, with its first part. */
sbp_status sbp_executor_fill_role(sbp_executor *x, sbp_role role, double value, sbp_diag *diag) {
    for (int32_t k = 0; k < x->program->buffer_count; k++) {
        const sbp_buffer *b = &x->program->buffers[k];
        bool shares = sbp_buffer_in_shares(x->program, k);
        if (b->role == role && !(shares && b->place > 0))
            SBP_TRY(fill(x, shares ? b->part_of - 1 : k, value, diag));
    }
    return SBP_OK;
}

void *sbp_executor_map(sbp_executor *x, int32_t buffer, int32_t slot) {
    if (sbp_executor_is_shared(x, buffer))
        return NULL;
    return sbp_executor_mapped(x, x->program->buffers[buffer].space, byte_offset(x, buffer, slot, 0));
}

sbp_status sbp_executor_output(sbp_executor *x, const char *name, double *out, sbp_diag *diag) {
    for (int32_t o = 0; o < x->program->output_count; o++)
        if (strcmp(x->program->outputs[o].name, name) == 0)
            return sbp_executor_read(x, x->program->outputs[o].buffer, 0, x->program->outputs[o].index, 1,
                                     SBP_F64, out, diag);
    return sbp_fail(diag, SBP_INPUT, "the plan has no output '%.200s'", name);
}

/* ---- gradients -------------------------------------------------------------------------------------- */

sbp_status sbp_gradient_read(const sbp_gradient *gradient, int64_t first, int64_t count, sbp_dtype dtype,
                             void *out, sbp_diag *diag) {
    const sbp_span *span = &gradient->span;
    if (first < 0 || count < 0 || count > span->rows * span->cols || first > span->rows * span->cols - count)
        return sbp_fail(diag, SBP_INTERNAL, "elements %lld+%lld of a gradient of %lld x %lld",
                        (long long)first, (long long)count, (long long)span->rows, (long long)span->cols);
    if (gradient->buffer >= 0)
        return sbp_executor_read(gradient->executor, gradient->buffer, 0, first, count, dtype, out, diag);
    int64_t unit = sbp_dtype_bytes(span->dtype);
    unsigned char *to = out;
    while (count > 0) { /* a run per row, or all at once when rows follow each other */
        int64_t row = first / span->cols, col = first % span->cols;
        int64_t n = span->stride == span->cols || count < span->cols - col ? count : span->cols - col;
        SBP_TRY(sbp_executor_convert_out(gradient->executor, span->space,
                                         span->offset + (row * span->stride + col) * unit, span->dtype, n,
                                         dtype, to, diag));
        to += n * sbp_dtype_bytes(dtype);
        first += n;
        count -= n;
    }
    return SBP_OK;
}
