/* staging.h: what stands where while a call list is walked, and the moves that this takes. offload.c walks
 * and emits; staging.c decides. */
#ifndef SBP_PASSES_OFFLOAD_STAGING_H
#define SBP_PASSES_OFFLOAD_STAGING_H

#include "passes/offload/offload.h"

/* Where a tensor may stand. Its placement is one of these places too, under the name KEPT. Content comes to a
 * place from the one before it on the way from the placement: disk, host, device, whole, computed; placement
 * device, host. What ranks have shares of is gathered at WHOLE. Where each rank has all of a tensor, SHARE is
 * this rank's share, which an update takes, and which is gathered on its way back. */
typedef enum sbp_place_kind {
    SBP_PLACE_KEPT,
    SBP_PLACE_HOST,
    SBP_PLACE_DEVICE,
    SBP_PLACE_WHOLE,
    SBP_PLACE_COMPUTED,
    SBP_PLACE_SHARE,
    SBP_PLACE_COUNT
} sbp_place_kind;

typedef struct sbp_staging_pool {
    const char *name;
    sbp_place_kind place;
    sbp_role of;    /* of what stands in it */
    bool shared;    /* by all such buckets of that role */
    bool unpacked;  /* numbers of what is kept in blocks */
    int32_t layout; /* of the first that stood there; -1 */
    sbp_role role;
    sbp_dtype dtype;
    sbp_extent rows;
    int64_t cols;
    int32_t *parts;  /* of buckets, per layout: buffer of the first part, in the first piece; -1: none here */
    int32_t buffers; /* per piece: the staging buffers themselves and all parts */
    int32_t tensors; /* that may stand in it */
    int32_t most;    /* that one task wants there at once */
    int32_t fetched; /* that one task reads there */
    bool hurries;    /* tasks close to each other read different ones */
    int32_t last_task; /* while they are counted: the last one that wanted any */
    /* of the first `piece` of `count` staging buffers; the others follow, each with its parts. Those of
     * buckets may be larger than what stands in them */
    int32_t buffer;
    int32_t piece;
    int32_t count;
    int32_t *wanted; /* of the last 2 * fetched tensors that were brought: the task that they were for, -1 */
    int32_t brought; /* how many have been brought in the list being walked */
    int32_t *holds;  /* per staging buffer: tensor, -1 */
    /* per staging buffer: the last task, or move behind that task, that touches what was in it */
    int32_t *free_after;
} sbp_staging_pool;

typedef struct sbp_staging {
    sbp_program_builder *p;
    const sbp_call_schedule *r;
    sbp_staging_pool *pools;
    int32_t pool_count, pool_capacity;
    struct sbp_standing *standing; /* per tensor */
    sbp_move *moves;               /* of the list being walked, in the order decided */
    int32_t move_count, move_capacity;
    const sbp_call_list *list;
    int32_t latest[SBP_QUEUE_COUNT]; /* per queue: `after` of its last fetch; fetches keep their order */
    int32_t fetching[2]; /* the last two tasks so far whose functions fetch something themselves; -1 */
} sbp_staging;

/* Pools for all tensors and lists, with all of their staging buffers. */
sbp_status sbp_staging_make(sbp_program_builder *p, const sbp_call_schedule *r, sbp_staging *out) SBP_CHECKED;
/* Every tensor is in its placement, what lasts with content. */
void sbp_staging_begin(sbp_staging *s, const sbp_call_list *list);
/* Brings what task number `at` of the list wants; spots: one per operand. */
sbp_status sbp_staging_bring(sbp_staging *s, int32_t at, sbp_spot *spots) SBP_CHECKED;
/* What lasts is written back. */
sbp_status sbp_staging_end(sbp_staging *s) SBP_CHECKED;

#endif
