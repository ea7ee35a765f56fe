/* weight_target.c: numbers of a parameter on their way into its buffers: as they are, in two halves, or
 * encoded. */
#include "ir/base/census.h"
#include "runtime/run/weights_internal.h"

typedef sbp_weight_target target;

target sbp_weight_target_of(sbp_executor *x, const sbp_plan *plan, int32_t tensor, sbp_diag *diag) {
    target t = {.x = x, .diag = diag, .buffer = plan->buffers[tensor], .master = plan->masters[tensor]};
    t.format = plan->tensors->tensors[tensor].format;
    t.parts = plan->parts[tensor];
    t.elems = plan->tensors->tensors[tensor].map.elems;
    t.dtype = t.master >= 0 || t.format ? SBP_F32 : plan->program->buffers[t.buffer].dtype;
    return t;
}

static sbp_status write_halves(const target *t, int64_t first, int64_t count, sbp_dtype dtype,
                               const void *data) {
    enum { PART = 4096 };
    uint16_t high[PART];
    int16_t low[PART];
    SBP_CROSS_EITHER(count > PART, run_halves_pieces, run_halves_piece);
    for (int64_t at = 0; at < count; at += PART) {
        int64_t n = count - at < PART ? count - at : PART;
        for (int64_t k = 0; k < n; k++)
            sbp_f32_split((float)sbp_element_get(data, dtype, at + k), &high[k], &low[k]);
        SBP_TRY(sbp_executor_write(t->x, t->buffer, 0, first + at, n, SBP_BF16, high, t->diag));
        SBP_TRY(sbp_executor_write(t->x, t->master, 0, first + at, n, SBP_I16, low, t->diag));
    }
    return SBP_OK;
}

sbp_status sbp_weight_parts_write(const target *t, int64_t first, int64_t count, void *const *parts,
                                  int64_t from) {
    const sbp_format_info *f = sbp_format_of(t->format);
    for (int32_t k = 0; k < f->part_count; k++) {
        int64_t n = f->parts[k].count, unit = sbp_dtype_bytes(f->parts[k].dtype);
        SBP_TRY(sbp_executor_write(t->x, t->parts[k], 0, first * n, count * n, f->parts[k].dtype,
                                   (unsigned char *)parts[k] + from * n * unit, t->diag));
    }
    return SBP_OK;
}

void sbp_weight_parts_begin(sbp_weight_parts *a) {
    for (int k = 0; k < SBP_MAX_FORMAT_PARTS; k++)
        a->parts[k] = a->bytes[k];
}

/* Whole blocks, numbers that become codes. */
static sbp_status write_packed(const target *t, int64_t first, int64_t count, sbp_dtype dtype,
                               const void *data) {
    float values[SBP_PACKED_ELEMS];
    sbp_weight_parts arrays;
    int32_t block = sbp_format_of(t->format)->block;
    sbp_weight_parts_begin(&arrays);
    SBP_CROSS_EITHER(count > SBP_PACKED_ELEMS, run_pack_pieces, run_pack_piece);
    for (int64_t at = 0; at < count; at += SBP_PACKED_ELEMS) {
        int64_t n = count - at < SBP_PACKED_ELEMS ? count - at : SBP_PACKED_ELEMS;
        for (int64_t k = 0; k < n; k++)
            values[k] = (float)sbp_element_get(data, dtype, at + k);
        sbp_format_encode(t->format, values, n / block, arrays.parts);
        SBP_TRY(sbp_weight_parts_write(t, (first + at) / block, n / block, arrays.parts, 0));
    }
    return SBP_OK;
}

sbp_status sbp_weight_target_write(const target *t, int64_t first, int64_t count, sbp_dtype dtype,
                                   const void *data) {
    if (t->format)
        return write_packed(t, first, count, dtype, data);
    return t->master >= 0 ? write_halves(t, first, count, dtype, data)
                          : sbp_executor_write(t->x, t->buffer, 0, first, count, dtype, data, t->diag);
}

sbp_status sbp_weight_fail_format(const target *t, const char *path, const char *name, const char *encoding) {
    const char *kept = sbp_format_of(t->format)->name;
    return sbp_fail(t->diag, SBP_INPUT,
                    "%s: tensor '%.200s' is %s, and the plan keeps it as %s, as the file has it that it was "
                    "compiled from: compile again with these weights",
                    path, name, encoding, kept);
}
