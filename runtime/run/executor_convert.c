/* executor_convert.c: bytes and elements to and from the device: directly where it maps its memory, else
 * through a bounded staging buffer. */
#include "ir/base/census.h"
#include "runtime/run/executor_internal.h"

#include <string.h>

void *sbp_executor_mapped(sbp_executor *x, sbp_space space, int64_t offset) {
    return x->class->map ? x->class->map(x->device, space, offset) : NULL;
}

void sbp_executor_convert(sbp_dtype to, void *out, sbp_dtype from, const void *in, int64_t count) {
    if (to == from)
        memcpy(out, in, (size_t)(count * sbp_dtype_bytes(to)));
    else
        for (int64_t k = 0; k < count; k++)
            sbp_element_set(out, to, k, sbp_element_get(in, from, k));
}

sbp_status sbp_executor_put(sbp_executor *x, sbp_space space, int64_t offset, const void *data, int64_t bytes,
                            sbp_diag *diag) {
    return bytes > 0 ? x->class->write(x->device, space, offset, data, bytes, diag) : SBP_OK;
}

sbp_status sbp_executor_get(sbp_executor *x, sbp_space space, int64_t offset, void *data, int64_t bytes,
                            sbp_diag *diag) {
    return bytes > 0 ? x->class->read(x->device, space, offset, data, bytes, diag) : SBP_OK;
}

sbp_status sbp_executor_convert_out(sbp_executor *x, sbp_space space, int64_t offset, sbp_dtype from,
                                    int64_t count, sbp_dtype dtype, void *out, sbp_diag *diag) {
    if (from == dtype)
        return sbp_executor_get(x, space, offset, out, count * sbp_dtype_bytes(from), diag);
    const void *direct = sbp_executor_mapped(x, space, offset);
    if (direct) {
        SBP_TRY(x->class->wait(x->device, diag));
        sbp_executor_convert(dtype, out, from, direct, count);
        return SBP_OK;
    }
    int64_t unit = sbp_dtype_bytes(from), piece = SBP_STAGING_BYTES / unit;
    SBP_CROSS_EITHER(count > piece, run_read_pieces, run_read_piece);
    for (int64_t k = 0; k < count; k += piece) {
        int64_t n = count - k < piece ? count - k : piece;
        SBP_TRY(sbp_executor_get(x, space, offset + k * unit, x->staging, n * unit, diag));
        sbp_executor_convert(dtype, (unsigned char *)out + k * sbp_dtype_bytes(dtype), from, x->staging, n);
    }
    return SBP_OK;
}

sbp_status sbp_executor_convert_in(sbp_executor *x, sbp_space space, int64_t offset, sbp_dtype to,
                                   int64_t count, sbp_dtype dtype, const void *data, sbp_diag *diag) {
    if (to == dtype)
        return sbp_executor_put(x, space, offset, data, count * sbp_dtype_bytes(to), diag);
    void *direct = sbp_executor_mapped(x, space, offset);
    if (direct) {
        SBP_TRY(x->class->wait(x->device, diag));
        sbp_executor_convert(to, direct, dtype, data, count);
        return SBP_OK;
    }
    int64_t unit = sbp_dtype_bytes(to), piece = SBP_STAGING_BYTES / unit;
    SBP_CROSS_EITHER(count > piece, run_write_pieces, run_write_piece);
    for (int64_t k = 0; k < count; k += piece) {
        int64_t n = count - k < piece ? count - k : piece;
        sbp_executor_convert(to, x->staging, dtype, (const unsigned char *)data + k * sbp_dtype_bytes(dtype),
                             n);
        SBP_TRY(sbp_executor_put(x, space, offset + k * unit, x->staging, n * unit, diag));
    }
    return SBP_OK;
}

int64_t sbp_executor_elems(const sbp_executor *x, int32_t buffer) {
    const sbp_buffer *b = &x->program->buffers[buffer];
    sbp_sizes most = sbp_program_sizes(x->program, x->program->t_max, x->program->s_max);
    int64_t rows = 0;
    return sbp_extent_eval(b->rows, &most, &rows) ? rows * b->cols : 0;
}
