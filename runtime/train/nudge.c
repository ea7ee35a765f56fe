/* nudge.c: small changes of weights. */
#include "runtime/train/nudge.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 1 << 16 };

static uint64_t mixed(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* ---- zeros ------------------------------------------------------------------------------------------ */

static const double ZEROS_DEVIATION = 0.01;

static sbp_status is_zero(sbp_executor *x, int32_t buffer, double *piece, bool *out, sbp_diag *diag) {
    int64_t all = sbp_executor_elems(x, buffer);
    *out = true;
    for (int64_t first = 0; first < all && *out; first += PIECE) {
        int64_t count = all - first < PIECE ? all - first : PIECE;
        SBP_TRY(sbp_executor_read(x, buffer, 0, first, count, SBP_F64, piece, diag));
        for (int64_t i = 0; i < count; i++)
            *out &= piece[i] == 0;
    }
    return SBP_OK;
}

static sbp_status fill(sbp_executor *x, int32_t buffer, uint64_t seed, double *piece, sbp_diag *diag) {
    int64_t all = sbp_executor_elems(x, buffer);
    for (int64_t first = 0; first < all; first += PIECE) {
        int64_t count = all - first < PIECE ? all - first : PIECE;
        for (int64_t i = 0; i < count; i++) /* uniform, of that deviation */
            piece[i] =
                ZEROS_DEVIATION * sqrt(3.0) *
                ((double)(mixed(seed + (uint64_t)(first + i) * 0x9e3779b97f4a7c15u) >> 11) * 0x1p-52 - 1);
        SBP_TRY(sbp_executor_write(x, buffer, 0, first, count, SBP_F64, piece, diag));
    }
    return SBP_OK;
}

static sbp_status nudge_zeros(sbp_executor *x, const sbp_plan *plan, int32_t *count, double *piece,
                              sbp_diag *diag) {
    for (int32_t t = 0; t < plan->tensors->count; t++) {
        const sbp_tensor_entry *entry = &plan->tensors->tensors[t];
        const char *name = entry->recipes[0].source;
        bool zero;
        if (!entry->trainable)
            continue;
        SBP_TRY(is_zero(x, plan->buffers[t], piece, &zero, diag));
        if (!zero)
            continue;
        SBP_TRY(fill(x, plan->buffers[t], sbp_hash_bytes(name, strlen(name), 1), piece, diag));
        ++*count;
    }
    return SBP_OK;
}

sbp_status sbp_nudge_zeros(sbp_executor *x, const sbp_plan *plan, int32_t *count, sbp_diag *diag) {
    double *piece = sbp_malloc(PIECE * sizeof *piece);
    *count = 0;
    if (!piece)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for weights");
    sbp_status status = nudge_zeros(x, plan, count, piece, diag);
    free(piece);
    return status;
}

/* ---- bits ------------------------------------------------------------------------------------------- */

/* The last bit of a number of `stored` that one of `compute` has too; 0: it has no such bits. */
static uint64_t last_bit(sbp_dtype stored, sbp_dtype compute) {
    if (stored == SBP_F64)
        return compute == SBP_F64 ? 1 : compute == SBP_BF16 ? UINT64_C(1) << 45 : UINT64_C(1) << 29;
    if (stored == SBP_F32)
        return compute == SBP_BF16 ? 1 << 16 : 1;
    return stored == SBP_BF16 || stored == SBP_F16;
}

/* 0 stays, which no rounding changes. */
static void flip(void *data, sbp_dtype stored, uint64_t bit, int draw, int64_t first, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        uint64_t mask = mixed((uint64_t)(first + i) * 0x9e3779b97f4a7c15u) >> draw & 1 ? bit : 0;
        if (stored == SBP_F64) {
            uint64_t *at = (uint64_t *)data + i;
            *at ^= *at << 1 ? mask : 0;
        } else if (stored == SBP_F32) {
            uint32_t *at = (uint32_t *)data + i;
            *at ^= (uint32_t)(*at << 1) ? (uint32_t)mask : 0;
        } else {
            uint16_t *at = (uint16_t *)data + i;
            *at ^= (uint16_t)(*at << 1) ? (uint16_t)mask : 0;
        }
    }
}

static sbp_status flip_buffer(sbp_executor *x, int32_t buffer, uint64_t bit, int draw, void *piece,
                              sbp_diag *diag) {
    sbp_dtype stored = sbp_executor_program(x)->buffers[buffer].dtype;
    int64_t all = sbp_executor_elems(x, buffer);
    for (int64_t first = 0; first < all; first += PIECE) {
        int64_t count = all - first < PIECE ? all - first : PIECE;
        SBP_TRY(sbp_executor_read(x, buffer, 0, first, count, stored, piece, diag));
        flip(piece, stored, bit, draw, first, count);
        SBP_TRY(sbp_executor_write(x, buffer, 0, first, count, stored, piece, diag));
    }
    return SBP_OK;
}

typedef struct sized {
    int64_t elems;
    int32_t buffer;
} sized;

static int by_size(const void *a, const void *b) {
    const sized *x = a, *y = b;
    return x->elems != y->elems ? (x->elems < y->elems ? -1 : 1) : x->buffer - y->buffer;
}

static sbp_status nudge_bits(sbp_executor *x, const sbp_plan *plan, sbp_dtype compute, int draw, sized *list,
                             double *piece, sbp_diag *diag) {
    int32_t count = 0;
    int64_t left = SBP_NUDGE_BITS;
    for (int32_t t = 0; t < plan->tensors->count; t++)
        if (!plan->tensors->tensors[t].format)
            list[count++] = (sized){sbp_executor_elems(x, plan->buffers[t]), plan->buffers[t]};
    qsort(list, (size_t)count, sizeof *list, by_size);
    for (int32_t k = 0; k < count && left > 0; k++) {
        uint64_t bit = last_bit(sbp_executor_program(x)->buffers[list[k].buffer].dtype, compute);
        left -= list[k].elems;
        if (bit)
            SBP_TRY(flip_buffer(x, list[k].buffer, bit, draw, piece, diag));
    }
    return SBP_OK;
}

sbp_status sbp_nudge_bits(sbp_executor *x, const sbp_plan *plan, sbp_dtype compute, int draw,
                          sbp_diag *diag) {
    double *piece = sbp_malloc(PIECE * sizeof *piece);
    sized *list = sbp_malloc((size_t)(plan->tensors->count + 1) * sizeof *list);
    sbp_status status = piece && list ? nudge_bits(x, plan, compute, draw, list, piece, diag)
                                      : sbp_fail(diag, SBP_MACHINE, "out of memory for weights");
    free(piece);
    free(list);
    return status;
}

/* ---- along gradients -------------------------------------------------------------------------------- */

static double square(const double *x, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += x[i] * x[i];
    return sum;
}

sbp_status sbp_nudge_begin(sbp_nudge *n, sbp_executor *x, const sbp_sketch *sketch, int32_t kind,
                           sbp_dtype compute, sbp_arena *arena, sbp_diag *diag) {
    *n = (sbp_nudge){
        .executor = x, .sketch = sketch, .kind = &sketch->kinds[kind], .compute = compute, .arena = arena};
    int32_t count = n->kind->count;
    double *squares = SBP_NEW_ARRAY(arena, double, count + 1);
    n->weights = SBP_NEW_ARRAY(arena, double *, count + 1);
    n->scales = SBP_NEW_ARRAY(arena, double, count + 1);
    for (int32_t k = 0; k < count; k++) {
        const sbp_sketch_piece *piece = &n->kind->pieces[k];
        n->weights[k] = sbp_arena_array(arena, (size_t)piece->count, sizeof(double));
        SBP_TRY(sbp_executor_read(x, sketch->plan->buffers[piece->tensor], 0, piece->first, piece->count,
                                  SBP_F64, n->weights[k], diag));
        squares[k] = square(n->weights[k], piece->count);
    }
    for (int32_t k = 0; k < count; k++) {
        double of_weights = 0, of_gradients = 0, elems = 0;
        for (int32_t j = 0; j < count; j++)
            if (n->kind->pieces[j].tensor == n->kind->pieces[k].tensor) {
                of_weights += squares[j];
                of_gradients += n->kind->pieces[j].square;
                elems += (double)n->kind->pieces[j].count;
            }
        double least = ZEROS_DEVIATION * ZEROS_DEVIATION * elems;
        n->scales[k] = sqrt(fmax(of_weights, least) / of_gradients);
        n->slope += n->scales[k] * n->kind->pieces[k].square;
    }
    return SBP_OK;
}

sbp_status sbp_nudge_set(const sbp_nudge *n, double step, double *predicted, sbp_diag *diag) {
    *predicted = 0;
    for (int32_t k = 0; k < n->kind->count; k++) {
        const sbp_sketch_piece *piece = &n->kind->pieces[k];
        int32_t buffer = n->sketch->plan->buffers[piece->tensor];
        sbp_dtype dtype = sbp_executor_program(n->executor)->buffers[buffer].dtype;
        double values[1024];
        for (int64_t first = 0; first < piece->count; first += SBP_COUNT(values)) {
            int64_t count =
                piece->count - first < SBP_COUNT(values) ? piece->count - first : SBP_COUNT(values);
            for (int64_t i = 0; i < count; i++) {
                double w = n->weights[k][first + i], g = piece->gradient[first + i];
                values[i] = step == 0
                                ? w
                                : sbp_round_to(dtype, sbp_round_to(n->compute, w + step * n->scales[k] * g));
                *predicted += (values[i] - w) * g;
            }
            SBP_TRY(sbp_executor_write(n->executor, buffer, 0, piece->first + first, count, SBP_F64, values,
                                       diag));
        }
    }
    return SBP_OK;
}
