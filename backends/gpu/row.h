/* row.h: how a row kernel (ir/rowkernel/rowkernel.h) becomes groups of threads (CUDA: blocks; Vulkan:
 * workgroups). The target, which writes the code (emit/), and the device, which launches it, ask the same
 * pure functions.
 *
 * A kernel comes in two variants: one that takes operands wherever they lie, and, where lengths and strides
 * allow it, one whose threads load and store `width` elements at once, for operands whose rows begin at
 * multiples of that. Both give the same bits but for the order of sums over elements.
 *
 * Threads: no state. */
#ifndef SBP_BACKENDS_GPU_ROW_H
#define SBP_BACKENDS_GPU_ROW_H

#include "backends/gpu/gpu.h"

typedef enum sbp_gpu_row_mode {
    SBP_GPU_ROW_FLAT,    /* `width` elements of a row and head per thread: neither reductions nor partials */
    SBP_GPU_ROW_COLUMNS, /* a thread has `width` columns of SBP_PARTIAL_ROWS rows: partials, no reductions */
    SBP_GPU_ROW_HEADS,   /* a team of threads per (row, head) */
    SBP_GPU_ROW_ROWS,    /* a group per row, which loops over the heads */
    SBP_GPU_ROW_BLOCKS   /* a group per SBP_PARTIAL_ROWS rows: reductions and partials */
} sbp_gpu_row_mode;

/* Flat rows and columns of fewer threads stand one after the other, whatever group they are in: their numbers
 * within groups of up to 1024 threads fit into 32 bits. Longer ones begin in a group of their own. */
enum { SBP_GPU_ROW_PACKED = 1 << 22 };

sbp_gpu_row_mode sbp_gpu_row_mode_of(const sbp_rowkernel *kernel);

typedef struct sbp_gpu_row_shape {
    sbp_gpu_row_mode mode;
    int32_t width;   /* elements at once; 1: any alignment */
    int32_t threads; /* of a group; 0: known only when the code is loaded (Vulkan) */
    int32_t lanes;   /* threads of a team, which has a row, or a head of one, to itself; 0: the whole group */
    bool heads_apart; /* blocks: a team takes one head at a time; else it loops over them */
} sbp_gpu_row_shape;

/* For GPUs with warps of 32 threads; vector: the variant for aligned operands. False when there is none. */
bool sbp_gpu_row_shape_of(const sbp_rowkernel *kernel, bool vector, sbp_gpu_row_shape *out);
/* For groups of any number of threads, 0 when that is not known yet: a team is a group. */
sbp_gpu_row_shape sbp_gpu_row_shape_plain(const sbp_rowkernel *kernel, int32_t threads);

/* Teams of a group. */
int32_t sbp_gpu_row_teams(const sbp_gpu_row_shape *shape);
/* Whether rows of a flat kernel, or of one by columns, stand one after the other whatever group they are
 * in. */
bool sbp_gpu_row_packs(const sbp_rowkernel *kernel, const sbp_gpu_row_shape *shape);
/* Groups for `rows` rows: below 2^31 for all that fits into memory. shape->threads is known. */
int64_t sbp_gpu_row_groups(const sbp_rowkernel *kernel, const sbp_gpu_row_shape *shape, int64_t rows);
/* Whether the operands of a launch suit the shape: rows begin at multiples of `width` elements. */
bool sbp_gpu_row_suits(const sbp_rowkernel *kernel, const sbp_gpu_row_shape *shape, const sbp_gpu_args *args);

#endif
