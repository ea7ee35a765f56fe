/* args.c: the argument record of a kernel. */
#include "backends/gpu/gpu.h"

#include <string.h>

/* ---- the record ----------------------------------------------------------------------------------- */

bool sbp_gpu_fits(const sbp_dispatch *dispatch) {
    for (int32_t i = 0; i < dispatch->span_count; i++) {
        const sbp_span *s = &dispatch->spans[i];
        if (s->space != SBP_SPACE_COUNT && (s->rows > INT32_MAX - 4096 || s->cols > INT32_MAX - 4096 ||
                                            s->stride > INT32_MAX || s->first_row > INT32_MAX - 4096))
            return false;
    }
    return dispatch->rows <= INT32_MAX - 4096 &&
           (sbp_command_attributes(dispatch->command) != SBP_ATTRIBUTES_ROW ||
            sbp_rowkernel_rows_fit(dispatch->row0, dispatch->rows));
}

/* What fill writes, as the bits of one element. */
static void fill_bits(sbp_dtype dtype, double value, int32_t out[2]) {
    out[0] = out[1] = 0;
    sbp_element_set(out, dtype, 0, value);
}

static void fill_scalars(const sbp_dispatch *dispatch, sbp_gpu_args *out) {
    out->row0 = dispatch->row0;
    out->rows = (int32_t)dispatch->rows;
    for (int32_t i = 0; i < dispatch->kernel->scalar_count; i++) {
        double value = dispatch->scalars[i];
        out->doubles[i] = value;
        out->floats[i] = (float)value;
        uint64_t key = value >= 0 && value < 0x1p63 ? (uint64_t)value : 0;
        out->keys[2 * i] = (uint32_t)key;
        out->keys[2 * i + 1] = (uint32_t)(key >> 32);
    }
}

static void fill_attributes(const sbp_dispatch *dispatch, sbp_gpu_args *out) {
    const sbp_command *command = dispatch->command;
    const sbp_attention_attrs *at = &command->u.attention;
    double numbers[4] = {0};
    int32_t count = 0;
    switch (sbp_command_attributes(command)) {
    case SBP_ATTRIBUTES_ROW:
        fill_scalars(dispatch, out);
        break;
    case SBP_ATTRIBUTES_FILL: /* ints: the bits */
        fill_bits(dispatch->spans[SBP_FILL_DST].dtype, command->u.fill, out->ints);
        break;
    case SBP_ATTRIBUTES_GEMM: /* floats: alpha, beta (0 without c) */
        numbers[0] = command->u.gemm.alpha;
        numbers[1] = dispatch->spans[SBP_GEMM_C].space == SBP_SPACE_COUNT ? 0 : command->u.gemm.beta;
        count = 2;
        break;
    case SBP_ATTRIBUTES_ATTENTION: /* ints: heads, kv_heads, window; floats: scale, softcap */
        out->ints[0] = (int32_t)at->heads;
        out->ints[1] = (int32_t)at->kv_heads;
        out->ints[2] = at->window > INT32_MAX ? INT32_MAX : (int32_t)at->window;
        numbers[0] = at->scale;
        numbers[1] = at->softcap;
        count = 2;
        break;
    case SBP_ATTRIBUTES_DELTA: /* ints: heads, key_heads */
        out->ints[0] = (int32_t)command->u.delta.heads;
        out->ints[1] = (int32_t)command->u.delta.key_heads;
        break;
    case SBP_ATTRIBUTES_EXPERTS: /* ints: a_by_slot, b_by_slot, adds */
        out->ints[0] = command->u.experts.a_by_slot;
        out->ints[1] = command->u.experts.b_by_slot;
        out->ints[2] = command->u.experts.adds;
        break;
    case SBP_ATTRIBUTES_REDUCE: /* floats: beta */
        numbers[0] = command->u.reduce.beta;
        count = 1;
        break;
    default:
        break;
    }
    for (int32_t i = 0; i < count; i++) {
        out->doubles[i] = numbers[i];
        out->floats[i] = (float)numbers[i];
    }
}

int64_t sbp_gpu_args_fill(const sbp_dispatch *dispatch, const uint64_t addresses[SBP_SPACE_COUNT],
                          uint64_t scratch, sbp_gpu_args *out) {
    memset(out, 0, offsetof(sbp_gpu_args, operands));
    out->scratch = scratch;
    out->count = dispatch->span_count;
    fill_attributes(dispatch, out);
    for (int32_t i = 0; i < dispatch->span_count; i++) {
        const sbp_span *s = &dispatch->spans[i];
        out->operands[i] = (sbp_gpu_operand){0};
        if (s->space == SBP_SPACE_COUNT)
            continue;
        out->operands[i] = (sbp_gpu_operand){.address = addresses[s->space] + (uint64_t)s->offset,
                                             .rows = (int32_t)s->rows,
                                             .cols = (int32_t)s->cols,
                                             .stride = (int32_t)s->stride,
                                             .first_row = (int32_t)s->first_row};
    }
    return (int64_t)offsetof(sbp_gpu_args, operands) +
           (int64_t)dispatch->span_count * (int64_t)sizeof(sbp_gpu_operand);
}

sbp_status sbp_gpu_span_bytes(const sbp_span *span, const char *backend, sbp_diag *diag, int64_t *out) {
    int64_t before;
    *out = 0;
    if (sbp_gpu_is_empty(span))
        return SBP_OK;
    if (span->rows < 0 || span->cols < 0 || span->stride < 0 || (unsigned)span->dtype >= SBP_DTYPE_COUNT ||
        (span->rows > 1 && span->stride < span->cols))
        return sbp_fail(diag, SBP_INTERNAL, "%s: an operand of %lld x %lld, stride %lld", backend,
                        (long long)span->rows, (long long)span->cols, (long long)span->stride);
    if (!sbp_mul_i64(span->rows - 1, span->stride, &before) || !sbp_add_i64(before, span->cols, out) ||
        !sbp_mul_i64(*out, sbp_dtype_bytes(span->dtype), out))
        return sbp_fail(diag, SBP_INTERNAL, "%s: the size of an operand overflows", backend);
    return SBP_OK;
}
