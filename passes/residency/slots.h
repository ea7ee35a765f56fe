/* slots.h: what stands where while a call list is walked, and the moves that this takes. reside.c walks and
 * emits; slots.c decides. */
#ifndef SBP_PASSES_RESIDENCY_SLOTS_H
#define SBP_PASSES_RESIDENCY_SLOTS_H

#include "passes/residency/residency.h"

/* Where an item may stand. Its home is one of these places too, under the name HOME. Content comes to a place
 * from the one before it on the way from home: disk, host, device, whole, computed; home device, host. What
 * ranks have shares of is gathered at WHOLE. Of what each has all, SHARE is this rank's share, which an
 * update takes, and which is gathered on its way home. */
typedef enum sbp_place_kind {
    SBP_PLACE_HOME,
    SBP_PLACE_HOST,
    SBP_PLACE_DEVICE,
    SBP_PLACE_WHOLE,
    SBP_PLACE_COMPUTED,
    SBP_PLACE_SHARE,
    SBP_PLACE_COUNT
} sbp_place_kind;

typedef struct sbp_slot_pool {
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
    int32_t buffers; /* per piece: the slots themselves and all parts */
    int32_t items;   /* that may stand in it */
    int32_t most;    /* that one act wants there at once */
    int32_t fetched; /* that one act reads there */
    bool hurries;    /* acts close to each other read different ones */
    int32_t last_act; /* while they are counted: the last one that wanted any */
    int32_t buffer;   /* of the first `piece` of `count` slots; the others follow, each with its parts. Those
                       * of buckets may be larger than what stands in them */
    int32_t piece;
    int32_t count;
    int32_t *wanted;     /* of the last 2 * fetched items that were brought: the act that they were for, -1 */
    int32_t brought;     /* so many of them in the list being walked */
    int32_t *tenant;     /* per slot: item, -1 */
    int32_t *free_after; /* per slot: the last act, or move behind that act, that touches what was in it */
} sbp_slot_pool;

typedef struct sbp_slots {
    sbp_program_builder *p;
    const sbp_residency *r;
    sbp_slot_pool *pools;
    int32_t pool_count, pool_capacity;
    struct sbp_standing *standing; /* per item */
    sbp_move *moves;               /* of the list being walked, in the order decided */
    int32_t move_count, move_capacity;
    const sbp_call_list *list;
    int32_t latest[SBP_QUEUE_COUNT]; /* per queue: `after` of its last fetch; fetches keep their order */
} sbp_slots;

/* Pools for all items and lists, with buffers for their slots. */
sbp_status sbp_slots_make(sbp_program_builder *p, const sbp_residency *r, sbp_slots *out) SBP_CHECKED;
/* Every item is at home, what lasts with content. */
void sbp_slots_begin(sbp_slots *s, const sbp_call_list *list);
/* Brings what act number `at` of the list wants; spots: one per operand. */
sbp_status sbp_slots_act(sbp_slots *s, int32_t at, sbp_spot *spots) SBP_CHECKED;
/* What lasts goes home. */
sbp_status sbp_slots_end(sbp_slots *s) SBP_CHECKED;

#endif
