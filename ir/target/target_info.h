/* target_info.h: what the passes know of a backend, as plain data. Targets (backends/<name>/<name>_target.c)
 * fill it in; passes never include a backend header. */
#ifndef SBP_IR_TARGET_TARGET_INFO_H
#define SBP_IR_TARGET_TARGET_INFO_H

#include "ir/target/rates.h"

enum { SBP_TARGET_ARCHS = 160 };

typedef struct sbp_target_info {
    const char *name;             /* "cpu", "cuda" */
    char archs[SBP_TARGET_ARCHS]; /* that a plan carries code for, as --arch takes them: "sm_80,sm_90a"; "":
                                     the backend has none */
    const char *driver; /* what a machine needs to run the code, for people: "NVIDIA's driver 580 or newer";
                           NULL: nothing to say */
    int64_t alignment_bytes;      /* of every buffer */
    int64_t max_allocation_bytes; /* no buffer may be larger or lie across a multiple of it in an arena; 0: no
                                     limit */
    /* Measured: what the process needs on the device beside the arena. runtime_bytes for a tiny model; then
     * per parameter tensor, and per operand of a command and per buffer of the program; for packed operands
     * of products what the largest layer and chunk need, each at most runtime_product_bytes, in whole
     * runtime_page_bytes; per thread, twice that where a head has more than runtime_head_elems elements; and
     * once where the disk has something of at least runtime_disk_bytes; with several ranks, for their
     * transport, and for each of them, and what sums of gradients are added in, twice runtime_sum_bytes at
     * most. sbpc adds these to runtime_bytes, for as many threads as
     * --threads says (runtime/cli/sbpc/process.c). Per operand 0: the device has memory of its own. */
    int64_t runtime_bytes, runtime_tensor_bytes, runtime_view_bytes, runtime_buffer_bytes;
    int64_t runtime_disk_bytes;
    int64_t runtime_prepare_bytes; /* and with @prepare (ir/graph/prepare.h): the code that runs it */
    int64_t runtime_product_bytes, runtime_page_bytes, runtime_thread_bytes;
    int64_t runtime_head_elems;
    int64_t runtime_ranks_bytes, runtime_rank_bytes, runtime_sum_bytes;
    /* Operand `work` of attn_bwd, in elements of the type of its sums: a row has attention_partials copies of
     * dq's, attention_head_elems for each head and attention_row_elems more; it has attention_more_rows rows
     * more than q. No columns: no workspace. */
    int32_t attention_partials, attention_head_elems, attention_row_elems, attention_more_rows;
    bool has_copy_queue;
    bool shared_memory; /* host and device memory are the same: offloading saves nothing, limits count both */
    sbp_dtype default_compute;
    bool supports[SBP_DTYPE_COUNT]; /* compute types */
    /* Rows per chunk that `auto` means, and for the head: products are near their full rate. Without a memory
     * limit a chunk grows to at most chunk_most where that does not raise the peak. */
    int64_t chunk, head_chunk;
    int64_t chunk_most; /* beyond this products do not get faster; 0: chunk */
    sbp_rates rates;    /* of the cost model */
} sbp_target_info;

/* Columns of attn_bwd's workspace; 0: there is none. */
static inline int64_t sbp_target_work_columns(const sbp_target_info *info, int64_t heads, int64_t d_qk) {
    return heads * (info->attention_partials * d_qk + info->attention_head_elems) + info->attention_row_elems;
}

#endif
