/* steps.c: the launches of a command: which kernels, with how many threads. */
#include "backends/cuda/abi.h"
#include "backends/cuda/cuda_attention.h"
#include "backends/cuda/cuda_delta.h"
#include "backends/cuda/cuda_experts.h"
#include "backends/gpu/row.h"
#include "ir/base/census.h"

enum {
    THREADS = SBP_CUDA_THREADS,
    MOST_SUM_BLOCKS = 1024, /* of sums over ranks, which run beside products */
    UNIT = 16,              /* bytes at once, where addresses allow it */
    COLSUM_COLUMNS = SBP_CUDA_COLSUM_COLUMNS
};

/* ---- one thread per element ------------------------------------------------------------------------- */

/* Whether every row begins at a multiple of 16 bytes. */
static bool is_aligned(const sbp_gpu_operand *o, int64_t bytes) {
    return o->address % UNIT == 0 && (o->rows == 1 || o->stride * bytes % UNIT == 0);
}

/* fill, copy, gather: `moved` operands from the first on have the same elements. One row where the memory is
 * in one piece. */
static void spread_units(sbp_cuda_step *step, sbp_gpu_args *args, int32_t moved, bool joins, int64_t bytes) {
    sbp_gpu_operand *o = args->operands;
    int64_t all = (int64_t)o[0].rows * o[0].cols;
    bool whole = joins && all <= INT32_MAX, aligned = true;
    for (int32_t i = 0; i < moved; i++)
        whole &= o[i].rows == 1 || o[i].stride == o[i].cols;
    for (int32_t i = 0; i < moved; i++) {
        if (whole) {
            o[i].rows = 1;
            o[i].cols = o[i].stride = (int32_t)all;
        }
        aligned &= is_aligned(&o[i], bytes);
    }
    args->ints[8] = aligned;
    SBP_CROSS_EITHER(aligned, cuda_units_of_16, cuda_units_of_elements);
    SBP_CROSS_EITHER(whole, cuda_units_in_one_row, cuda_units_in_rows);
    sbp_cuda_step_spread(step, o[0].rows, aligned ? sbp_ceil_div(o[0].cols * bytes, UNIT) : o[0].cols);
}

/* ---- the others ------------------------------------------------------------------------------------- */

static void set_blocks(sbp_cuda_step *step, int64_t blocks, uint32_t threads) {
    step->grid[0] = (uint32_t)blocks;
    step->block[0] = threads;
}

static int64_t reduce_blocks(const sbp_span *src) {
    int64_t blocks = sbp_ceil_div(src->rows * src->cols, SBP_CUDA_REDUCE_ELEMS);
    return blocks < 1 ? 1 : blocks < SBP_CUDA_REDUCE_BLOCKS ? blocks : SBP_CUDA_REDUCE_BLOCKS;
}

static bool has_kernel(const sbp_cuda_machine *machine, const sbp_gpu_key *key) {
    return !machine->has || machine->has(machine->owner, key);
}

static void cross_row(const sbp_rowkernel *kernel, const sbp_gpu_row_shape *shape) {
    bool flat = shape->mode == SBP_GPU_ROW_FLAT || shape->mode == SBP_GPU_ROW_COLUMNS;
    SBP_CROSS_EITHER(shape->width > 1, cuda_row_vector, cuda_row_plain);
    SBP_CROSS_IF(shape->width == 2, cuda_row_by_2);
    SBP_CROSS_IF(shape->width == 4, cuda_row_by_4);
    SBP_CROSS_IF(shape->width == 8, cuda_row_by_8);
    SBP_CROSS_IF(shape->mode == SBP_GPU_ROW_FLAT, cuda_row_flat);
    SBP_CROSS_IF(shape->mode == SBP_GPU_ROW_COLUMNS, cuda_row_columns);
    SBP_CROSS_IF(shape->mode == SBP_GPU_ROW_HEADS, cuda_row_heads);
    SBP_CROSS_IF(shape->mode == SBP_GPU_ROW_ROWS, cuda_row_rows);
    SBP_CROSS_IF(shape->mode == SBP_GPU_ROW_BLOCKS, cuda_row_blocks);
    if (flat)
        SBP_CROSS_EITHER(sbp_gpu_row_packs(kernel, shape), cuda_row_packed, cuda_row_apart);
    else if (shape->lanes > 0)
        SBP_CROSS_EITHER(shape->lanes > 32, cuda_row_team_of_warps, cuda_row_team_in_warp);
}

/* The variant for aligned operands where there is one and they are. */
static void set_row(sbp_cuda_step *step, const sbp_dispatch *dispatch, const sbp_cuda_machine *machine,
                    const sbp_gpu_args *args) {
    sbp_gpu_row_shape shape;
    step->key.variant = SBP_CUDA_VECTOR;
    if (!sbp_gpu_row_shape_of(dispatch->kernel, true, &shape) ||
        !sbp_gpu_row_suits(dispatch->kernel, &shape, args) || !has_kernel(machine, &step->key)) {
        step->key.variant = SBP_CUDA_PLAIN;
        (void)sbp_gpu_row_shape_of(dispatch->kernel, false, &shape);
    }
    cross_row(dispatch->kernel, &shape);
    set_blocks(step, sbp_gpu_row_groups(dispatch->kernel, &shape, dispatch->rows), (uint32_t)shape.threads);
}

static sbp_attributes attributes_of(const sbp_gpu_key *key) {
    return sbp_command_traits_of((sbp_command_kind)key->kind)->attributes;
}

static sbp_cuda_variant choose(const sbp_gpu_key *key, const sbp_gpu_args *args, sbp_cuda_arch arch,
                               int32_t most) {
    if (attributes_of(key) == SBP_ATTRIBUTES_DELTA)
        return sbp_cuda_delta_choose(key, arch, args, (sbp_cuda_variant)most);
    if (attributes_of(key) == SBP_ATTRIBUTES_EXPERTS)
        return sbp_cuda_experts_choose(key, arch, args, (sbp_cuda_variant)most);
    return sbp_cuda_attention_choose(key, arch, args, (sbp_cuda_variant)most);
}

static int32_t launch(const sbp_gpu_key *key, const sbp_gpu_args *args, const sbp_cuda_machine *machine,
                      sbp_cuda_step *steps) {
    if (attributes_of(key) == SBP_ATTRIBUTES_DELTA)
        return sbp_cuda_delta_launch(key, machine->arch, args, steps);
    if (attributes_of(key) == SBP_ATTRIBUTES_EXPERTS)
        return sbp_cuda_experts_launch(key, machine, args, steps);
    return sbp_cuda_attention_launch(key, machine->arch, args, steps);
}

/* For attention, the delta rule and products of experts: the best variant for these operands that the plan
 * has and whose blocks get the shared memory they want. How it is launched depends on the variant. */
static sbp_gpu_key variant_key(const sbp_command *command, const sbp_dtype *dtypes, const sbp_gpu_args *args,
                               const sbp_cuda_machine *machine) {
    sbp_gpu_key key = sbp_gpu_key_of(command, dtypes, 0, SBP_CUDA_PLAIN);
    int32_t most = machine->variant < SBP_CUDA_VARIANTS ? machine->variant : SBP_CUDA_WGMMA;
    for (; most > SBP_CUDA_PLAIN; most = key.variant - 1) {
        sbp_cuda_step steps[SBP_CUDA_STEPS];
        bool fits = true;
        key.variant = (uint8_t)choose(&key, args, machine->arch, most);
        int32_t count = launch(&key, args, machine, steps);
        for (int32_t i = 0; i < count; i++)
            fits &= has_kernel(machine, &steps[i].key) &&
                    (machine->shared_bytes <= 0 || steps[i].shared_bytes <= (uint32_t)machine->shared_bytes);
        if (fits)
            return key;
    }
    key.variant = SBP_CUDA_PLAIN;
    return key;
}

/* Whether a command has nothing to do. */
static bool does_nothing(const sbp_dispatch *dispatch, const sbp_command_traits *traits) {
    const sbp_span *span = &dispatch->spans[traits->empty];
    if (traits->keyed == SBP_KEYED_KERNEL)
        return dispatch->rows <= 0;
    return traits->keyed == SBP_KEYED_NOTHING ||
           (!traits->never_empty && (span->rows <= 0 || span->cols <= 0));
}

static void cross_variant(const sbp_gpu_key *key, const sbp_cuda_machine *machine) {
    bool plain = key->variant == SBP_CUDA_PLAIN;
    if (attributes_of(key) == SBP_ATTRIBUTES_EXPERTS)
        SBP_CROSS_EITHER(plain, cuda_experts_plain, cuda_experts_mma);
    else if (attributes_of(key) == SBP_ATTRIBUTES_DELTA)
        sbp_cuda_delta_cross(key);
    else
        sbp_cuda_attention_cross(key, machine->arch);
}

/* How many blocks of how many threads one step has. */
static void set_grid(sbp_cuda_step *steps, const sbp_dispatch *dispatch, const sbp_dtype *dtypes,
                     const sbp_cuda_machine *machine, sbp_gpu_args *args) {
    const sbp_command_traits *traits = sbp_command_traits_of(dispatch->command->kind);
    const sbp_span *of = &dispatch->spans[traits->item_operand];
    switch (traits->items) {
    case SBP_ITEMS_ELEMENTS: /* of one type: 16 bytes at once where addresses allow it */
        if (traits->operand_count > 1 && dtypes[1] != dtypes[0])
            sbp_cuda_step_spread(steps, of->rows, of->cols);
        else
            spread_units(steps, args, traits->operand_count > 1 ? 2 : 1, traits->keyed == SBP_KEYED_BYTES,
                         sbp_dtype_bytes(dtypes[0]));
        break;
    case SBP_ITEMS_RUNS:
        sbp_cuda_step_spread(steps, of->rows, of->cols);
        break;
    case SBP_ITEMS_BLOCKS:
        sbp_cuda_step_spread(steps, sbp_ceil_div(of->rows, SBP_PARTIAL_ROWS), of->cols);
        break;
    case SBP_ITEMS_CHOICES: /* a warp per row */
        set_blocks(steps, sbp_ceil_div(of->rows, THREADS / 32), THREADS);
        break;
    case SBP_ITEMS_EXPERTS: /* a block per expert */
        set_blocks(steps, of->cols - 1, THREADS);
        break;
    case SBP_ITEMS_COLUMNS:
        set_blocks(steps, sbp_ceil_div(of->cols, COLSUM_COLUMNS), THREADS);
        break;
    case SBP_ITEMS_PARTS:
        args->ints[8] = (int32_t)reduce_blocks(of);
        SBP_CROSS_EITHER(args->ints[8] > 1, cuda_reduce_blocks, cuda_reduce_block);
        SBP_CROSS_IF(args->ints[8] == SBP_CUDA_REDUCE_BLOCKS, cuda_reduce_most_blocks);
        set_blocks(&steps[0], args->ints[8], THREADS);
        set_blocks(&steps[1], 1, THREADS);
        break;
    case SBP_ITEMS_TILES:
        set_blocks(steps,
                   sbp_ceil_div(of->rows, SBP_CUDA_GEMM_TILE) * sbp_ceil_div(of->cols, SBP_CUDA_GEMM_TILE),
                   THREADS);
        break;
    case SBP_ITEMS_KERNEL_ROWS:
        set_row(steps, dispatch, machine, args);
        break;
    case SBP_ITEMS_QUERIES: /* these have variants */
    case SBP_ITEMS_STATES:
    case SBP_ITEMS_SLOTS:
    case SBP_ITEMS_NONE:
        break;
    }
}

int32_t sbp_cuda_steps(const sbp_dispatch *dispatch, const sbp_cuda_machine *machine, sbp_gpu_args *args,
                       sbp_cuda_step *steps) {
    const sbp_command *command = dispatch->command;
    const sbp_command_traits *traits = sbp_command_traits_of(command->kind);
    sbp_dtype dtypes[SBP_MAX_COMMAND_OPERANDS];
    int32_t count = sbp_cuda_plain_steps(traits);
    sbp_gpu_dispatch_dtypes(dispatch, dtypes);
    if (sbp_cuda_has_variants(traits)) {
        sbp_gpu_key key = variant_key(command, dtypes, args, machine);
        cross_variant(&key, machine);
        return launch(&key, args, machine, steps);
    }
    if (does_nothing(dispatch, traits) ||
        (traits->items == SBP_ITEMS_TILES && machine->blas && sbp_cuda_blas_has(dtypes)))
        return 0;
    for (int32_t i = 0; i < count; i++)
        steps[i] = (sbp_cuda_step){
            .key = sbp_gpu_key_of(command, dtypes, i, SBP_CUDA_PLAIN), .grid = {1, 1, 1}, .block = {1, 1, 1}};
    set_grid(steps, dispatch, dtypes, machine, args);
    return count;
}

void sbp_cuda_sum_step(const sbp_cuda_sum *sum, sbp_gpu_args *args, sbp_cuda_step *step) {
    int64_t blocks = sbp_ceil_div(sum->elems, THREADS);
    int32_t rows = sum->rows > 0 ? (int32_t)sum->rows : 1, cols = (int32_t)(sum->elems / rows);
    args->operands[SBP_COLLECTIVE_DST] =
        (sbp_gpu_operand){.address = sum->to, .rows = rows, .cols = cols, .stride = (int32_t)sum->to_stride};
    args->operands[SBP_COLLECTIVE_SRC] = (sbp_gpu_operand){
        .address = sum->own, .rows = rows, .cols = cols, .stride = (int32_t)sum->own_stride};
    args->row0 = sum->stride;
    args->scratch = sum->arrived;
    args->count = SBP_COLLECTIVE_OPERANDS;
    args->ints[0] = sum->me;
    args->ints[1] = sum->count;
    *step = (sbp_cuda_step){.key = sbp_cuda_sum_key(sum->adds, sum->to_dtype, sum->from_dtype),
                            .grid = {1, 1, 1},
                            .block = {1, 1, 1}};
    set_blocks(step, blocks < MOST_SUM_BLOCKS ? blocks : MOST_SUM_BLOCKS, THREADS);
}

const sbp_span *sbp_cuda_scratch_planned(const sbp_dispatch *dispatch) {
    int32_t place = sbp_command_traits_of(dispatch->command->kind)->scratch;
    if (place == 0 || dispatch->span_count <= place)
        return NULL;
    const sbp_span *work = &dispatch->spans[place];
    return work->space == SBP_DEVICE && work->stride == work->cols ? work : NULL;
}

int64_t sbp_cuda_scratch_bytes(const sbp_dispatch *dispatch, const sbp_cuda_machine *machine) {
    const sbp_command_traits *traits = sbp_command_traits_of(dispatch->command->kind);
    if (traits->items == SBP_ITEMS_PARTS)
        return SBP_CUDA_REDUCE_BLOCKS * 8;
    if (!sbp_cuda_has_variants(traits))
        return 0;
    const uint64_t addresses[SBP_SPACE_COUNT] = {0};
    sbp_dtype dtypes[SBP_MAX_COMMAND_OPERANDS];
    sbp_gpu_args args;
    sbp_gpu_dispatch_dtypes(dispatch, dtypes);
    sbp_gpu_args_fill(dispatch, addresses, 0, &args);
    sbp_gpu_key key = variant_key(dispatch->command, dtypes, &args, machine);
    if (traits->attributes == SBP_ATTRIBUTES_DELTA)
        return sbp_cuda_delta_scratch(&key, &args);
    if (traits->attributes == SBP_ATTRIBUTES_EXPERTS)
        return sbp_cuda_experts_scratch(&key, &args);
    return sbp_cuda_attention_scratch(&key, machine->arch, &args);
}
