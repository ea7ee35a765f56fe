/* target_info.h: what the passes know of a backend, as plain data. Targets (backends/<name>/<name>_target.c)
 * fill it in; passes never include a backend header. */
#ifndef SBP_IR_TARGET_TARGET_INFO_H
#define SBP_IR_TARGET_TARGET_INFO_H

#include "ir/target/throughput.h"

enum { SBP_TARGET_ARCHS = 160 };

typedef struct sbp_process sbp_process;
typedef struct sbp_footprint sbp_footprint;
typedef struct sbp_delta_attrs sbp_delta_attrs; /* ir/program/program.h */

typedef struct sbp_target_info {
    const char *name;             /* "cpu", "cuda" */
    char archs[SBP_TARGET_ARCHS]; /* that a plan carries code for, as --arch takes them: "sm_80,sm_90a"; "":
                                     the backend has none */
    const char *driver; /* what a machine needs to run the code, for people: "NVIDIA's driver 580 or newer";
                           NULL: nothing to say */
    int64_t alignment_bytes;      /* of every buffer */
    int64_t max_allocation_bytes; /* no buffer may be larger or lie across a multiple of it in an arena; 0: no
                                     limit */
    /* Measured: what a process that runs a tiny model needs on the device beside the arena; and what any
     * other does (footprint.h). NULL: the same. */
    int64_t runtime_bytes;
    sbp_footprint (*footprint)(const sbp_process *process);
    /* Operand `work` of attn_bwd, in elements of the type of its sums: a row has attention_partials copies of
     * dq's, attention_head_elems for each head and attention_row_elems more; it has attention_more_rows rows
     * more than q. No columns: no workspace. */
    int32_t attention_partials, attention_head_elems, attention_row_elems, attention_more_rows;
    /* Heads of more columns, of q and k or of v, are computed by scalars, at their throughput; 0: none
     * are. */
    int64_t attention_columns;
    /* Heads of more columns than these are summed in parts. The scores are made anew for each part,
     * so that attention takes attention_part_times as long forward and attention_part_times_bwd
     * backward; 0: none are. */
    int64_t attention_part_columns;
    double attention_part_times, attention_part_times_bwd;
    /* Operand `work` of delta_rule without `next`, and of delta_rule_bwd: its columns; it has delta_more_rows
     * rows more than blocks of SBP_DELTA_BLOCK. NULL: forward none, backward those of a state, or
     * of two where it does not correct. */
    int64_t (*delta_columns)(const sbp_delta_attrs *attrs, bool backward);
    int64_t delta_more_rows;
    /* Operations per second of delta_rule, or of delta_rule_bwd, on rows of this type, at its own throughput,
     * which may be another machine's than describe() said. NULL: as attention. */
    double (*delta_rate)(const struct sbp_target_info *info, const sbp_delta_attrs *attrs, sbp_dtype dtype,
                         bool backward);
    bool has_copy_queue;
    bool shared_memory; /* host and device memory are the same: offloading saves nothing, limits count both */
    sbp_dtype default_compute;
    bool supports[SBP_DTYPE_COUNT]; /* compute types */
    /* Rows per chunk that `auto` means, and for the head: matmuls are near their full rate. Without a memory
     * limit a chunk grows to at most chunk_most where that does not raise the peak. */
    int64_t chunk, head_chunk;
    int64_t chunk_most;        /* beyond this matmuls do not get faster; 0: chunk */
    sbp_throughput throughput; /* of the cost model */
    /* Products of experts are kernels of the backend's own, which reach what those of attention do: by
     * mma.sync in 16 bits, else scalar. Without it they are as fast as any. */
    bool own_expert_products;
} sbp_target_info;

/* Operations of products of experts per second. */
static inline double sbp_target_expert_rate(const sbp_target_info *info, sbp_dtype dtype) {
    return info->own_expert_products ? sbp_throughput_attention(&info->throughput, dtype)
                                     : sbp_throughput_matmul(&info->throughput, dtype);
}

/* Columns of attn_bwd's workspace; 0: there is none. */
static inline int64_t sbp_target_work_columns(const sbp_target_info *info, int64_t heads, int64_t d_qk) {
    return heads * (info->attention_partials * d_qk + info->attention_head_elems) + info->attention_row_elems;
}

#endif
