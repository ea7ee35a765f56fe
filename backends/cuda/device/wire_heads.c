/* wire_heads.c: heads of attention in place of rows, and back, among the ranks of a context
 * (ir/base/context.h): what backends/ranks/heads.c does, with copies of columns on the stream. */
#include "backends/cuda/device/wire.h"

enum { ALIGNMENT = 256 };

/* What both ways work with. Rows go in blocks, of which what is packed for all ranks fits into the workspace.
 */
typedef struct turning {
    const cuda_task *t;
    const sbp_team *team;
    const sbp_context_heads *heads;
    int64_t rows, block;            /* of each rank; of those at most so many at once */
    int64_t own_bytes, slots_bytes; /* of a row, of all heads and of a rank's slots */
    int64_t head_bytes, slots;
    cuda_address own, all, sums,
        packed;     /* sums: of a head that several ranks have; the last two: workspace */
    sbp_dtype wide; /* of sums */
} turning;

static sbp_status begin(const cuda_task *t, const sbp_span *own, const sbp_span *all, turning *out) {
    const sbp_context_heads *heads = &t->command->u.collective.heads;
    int64_t ranks = t->w->context.count;
    *out = (turning){.t = t, .team = &t->w->context, .heads = heads, .rows = own->rows};
    out->head_bytes = heads->dim * sbp_dtype_bytes(own->dtype);
    out->slots = sbp_context_slots(heads, ranks);
    out->own_bytes = sbp_context_count(heads) * out->head_bytes;
    out->slots_bytes = out->slots * out->head_bytes;
    out->wide = sbp_cuda_sum_wide(own->dtype);
    int64_t sums = heads->dim * sbp_dtype_bytes(out->wide), room = t->work_bytes - ALIGNMENT;
    out->block = room / (ranks * out->slots_bytes + sums);
    out->sums = t->work;
    out->packed = t->work + (uint64_t)sbp_round_up(out->block * sums, ALIGNMENT);
    out->own = cuda_place_address(t, cuda_place_of(own, 0));
    out->all = cuda_place_address(t, cuda_place_of(all, 0));
    if (own->space != SBP_DEVICE || all->space != SBP_DEVICE)
        return sbp_fail(t->diag, SBP_INTERNAL, "cuda: heads of rows that are not on the device");
    return out->block > 0 ? SBP_OK : cuda_wire_too_little(t);
}

static int64_t head_of(const turning *x, int64_t slot) {
    return sbp_context_head(x->heads, x->team->count, slot);
}

/* Rows `first` on of a rank, of the slots of this one or of another. */
static cuda_address rows_of(const turning *x, int32_t rank, int64_t first) {
    return x->all + (uint64_t)((rank * x->rows + first) * x->slots_bytes);
}

/* Slots of one rank, from one on, whose heads are neighbours too, or that have none. */
static int64_t run_of(const turning *x, int64_t slot) {
    int64_t head = head_of(x, slot), end = (slot / x->slots + 1) * x->slots, count = 1;
    while (slot + count < end && head_of(x, slot + count) == (head < 0 ? -1 : head + count))
        count++;
    return count;
}

/* Columns of so many heads, of so many rows. */
static sbp_status copy_columns(const turning *x, cuda_address to, int64_t to_pitch, cuda_address from,
                               int64_t from_pitch, int64_t heads, int64_t rows) {
    const cuda_task *t = x->t;
    const cuda_copy_2d copy = {.from_type = CUDA_MEMORY_DEVICE,
                               .from_device = from,
                               .from_pitch = (size_t)from_pitch,
                               .to_type = CUDA_MEMORY_DEVICE,
                               .to_device = to,
                               .to_pitch = (size_t)to_pitch,
                               .width_bytes = (size_t)(heads * x->head_bytes),
                               .height = (size_t)rows};
    CUDA_TRY(t->d, t->diag, cuMemcpy2DAsync(&copy, t->stream));
    return SBP_OK;
}

/* The heads of a rank, of some rows; zeros where it has none. */
static sbp_status pack(const turning *x, cuda_address to, cuda_address own, int64_t rows, int32_t rank) {
    const cuda_task *t = x->t;
    for (int64_t slot = 0, run; slot < x->slots; slot += run) {
        int64_t head = head_of(x, rank * x->slots + slot);
        cuda_address at = to + (uint64_t)(slot * x->head_bytes);
        run = run_of(x, rank * x->slots + slot);
        if (head >= 0)
            SBP_TRY(copy_columns(x, at, x->slots_bytes, own + (uint64_t)(head * x->head_bytes), x->own_bytes,
                                 run, rows));
        else
            CUDA_TRY(t->d, t->diag,
                     cuMemsetD2D8Async(at, (size_t)x->slots_bytes, 0, (size_t)(run * x->head_bytes),
                                       (size_t)rows, t->stream));
    }
    return SBP_OK;
}

sbp_status cuda_wire_to_heads(const cuda_task *t) {
    turning x;
    SBP_TRY(begin(t, t->from, t->to, &x));
    for (int64_t first = 0; first < x.rows; first += x.block) {
        int64_t count = x.rows - first < x.block ? x.rows - first : x.block, bytes = count * x.slots_bytes;
        int32_t me = x.team->me;
        for (int32_t m = 0; m < x.team->count; m++)
            SBP_TRY(pack(&x, m == me ? rows_of(&x, m, first) : x.packed + (uint64_t)(m * bytes),
                         x.own + (uint64_t)(first * x.own_bytes), count, m));
        SBP_TRY(cuda_wire_begin(t));
        for (int32_t m = 0; m < x.team->count; m++) {
            if (m == me)
                continue;
            SBP_TRY(cuda_wire_send(t, sbp_team_rank(x.team, m), x.packed + (uint64_t)(m * bytes), bytes));
            SBP_TRY(cuda_wire_receive(t, sbp_team_rank(x.team, m), rows_of(&x, m, first), bytes));
        }
        SBP_TRY(cuda_wire_end(t));
    }
    return SBP_OK;
}

/* Where the numbers of a slot are, of a block of rows. */
static cuda_address slot_at(const turning *x, int64_t first, int64_t bytes, int64_t slot) {
    int32_t m = (int32_t)(slot / x->slots);
    cuda_address rows = m == x->team->me ? rows_of(x, m, first) : x->packed + (uint64_t)(m * bytes);
    return rows + (uint64_t)(slot % x->slots * x->head_bytes);
}

/* Of a head's slots, which are neighbours, the sum: in fp32 (f64: in f64), rounded once. */
static sbp_status add_slots(const turning *x, cuda_address to, int64_t first, int64_t rows, int64_t slot,
                            int64_t count) {
    const cuda_task *t = x->t;
    const sbp_dtype dtype = t->to->dtype;
    int64_t unit = sbp_dtype_bytes(dtype), wide = sbp_dtype_bytes(x->wide), dim = x->heads->dim;
    bool direct = dtype == x->wide;
    sbp_cuda_sum sum = {.adds = true,
                        .to = direct ? to : x->sums,
                        .to_dtype = x->wide,
                        .from_dtype = dtype,
                        .elems = rows * dim,
                        .count = 1,
                        .rows = rows,
                        .to_stride = direct ? x->own_bytes / unit : dim,
                        .own_stride = x->slots_bytes / unit};
    CUDA_TRY(t->d, t->diag,
             cuMemsetD2D8Async(sum.to, (size_t)(sum.to_stride * wide), 0, (size_t)(dim * wide), (size_t)rows,
                               t->stream));
    for (int64_t c = 0; c < count; c++) {
        sum.own = slot_at(x, first, rows * x->slots_bytes, slot + c);
        SBP_TRY(cuda_wire_add(t, &sum));
    }
    if (direct)
        return SBP_OK;
    return cuda_wire_add(t, &(sbp_cuda_sum){.to = to,
                                            .own = x->sums,
                                            .to_dtype = dtype,
                                            .from_dtype = x->wide,
                                            .elems = rows * dim,
                                            .count = 1,
                                            .rows = rows,
                                            .to_stride = x->own_bytes / unit,
                                            .own_stride = dim});
}

/* What has come of some rows, to their heads. A head's copies are neighbours, as many of each head: without
 * them heads that are neighbours go at once. */
static sbp_status unpack(const turning *x, int64_t first, int64_t rows) {
    int64_t copies = sbp_context_same(x->heads, x->team->count);
    for (int64_t slot = 0, run; slot < x->team->count * x->slots; slot += run) {
        int64_t head = head_of(x, slot);
        cuda_address to = x->own + (uint64_t)(first * x->own_bytes + head * x->head_bytes);
        run = copies > 1 && head >= 0 ? copies : run_of(x, slot);
        if (head < 0)
            continue;
        SBP_TRY(copies > 1 ? add_slots(x, to, first, rows, slot, copies)
                           : copy_columns(x, to, x->own_bytes, slot_at(x, first, rows * x->slots_bytes, slot),
                                          x->slots_bytes, run, rows));
    }
    return SBP_OK;
}

sbp_status cuda_wire_to_rows(const cuda_task *t) {
    turning x;
    SBP_TRY(begin(t, t->to, t->from, &x));
    for (int64_t first = 0; first < x.rows; first += x.block) {
        int64_t count = x.rows - first < x.block ? x.rows - first : x.block, bytes = count * x.slots_bytes;
        int32_t me = x.team->me;
        SBP_TRY(cuda_wire_begin(t));
        for (int32_t m = 0; m < x.team->count; m++) {
            if (m == me)
                continue;
            SBP_TRY(cuda_wire_send(t, sbp_team_rank(x.team, m), rows_of(&x, m, first), bytes));
            SBP_TRY(cuda_wire_receive(t, sbp_team_rank(x.team, m), x.packed + (uint64_t)(m * bytes), bytes));
        }
        SBP_TRY(cuda_wire_end(t));
        SBP_TRY(unpack(&x, first, count));
    }
    return SBP_OK;
}
