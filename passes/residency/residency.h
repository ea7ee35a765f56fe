/* residency.h: call lists (made in passes/calls), and where everything lives that outlives one call
 * (reside.c).
 *
 * An item is a parameter, a gradient, an optimizer state, a checkpoint, a saved value, an accumulator. It has
 * a home: a buffer in some space, in the type it is kept in. Acts want it in a space and a form: on the
 * device in the type that functions compute in, or as it is stored; on the host as it is stored. Where that
 * is not its home, it stands in a slot meanwhile. Acts say which items they read and write, never where these
 * are.
 *
 * Parameters of one segment and what belongs to them may be one item, a bucket (bucket.c): acts name its
 * parts, and it moves in one piece.
 */
#ifndef SBP_PASSES_RESIDENCY_RESIDENCY_H
#define SBP_PASSES_RESIDENCY_RESIDENCY_H

#include "passes/lowering.h"
#include "passes/memory.h"

/* Matrices behind each other in a bucket: [rows, cols] each, from element `place` on. */
typedef struct sbp_layout {
    int32_t count;
    int64_t unit;     /* elements: parts begin at multiples of it */
    int64_t whole;    /* elements: all of it is a multiple of this */
    sbp_extent *rows; /* constant */
    int64_t *cols, *place;
    sbp_dtype *dtypes; /* of the parts of a bucket of bytes; NULL: the bucket's */
    int64_t elems;     /* of the bucket */
} sbp_layout;

/* A parameter that is kept in blocks (ir/rowkernel/format.h), and what it is computed with as. */
typedef struct sbp_packed {
    sbp_format format;
    int32_t first; /* of the buffers of its parts, which follow each other */
    sbp_extent rows;
    int64_t cols;
} sbp_packed;

typedef struct sbp_resident {
    sbp_item_class class;
    sbp_role role;  /* of the home; slots of what lasts have a role of their own */
    int32_t pool;   /* items of one pool share slots: number in sbp_residency */
    int32_t buffer; /* home; -1: none, what is given up before it was read for the last time is lost */
    int32_t element;
    int32_t *parts;  /* of a bucket: buffers, as its layout has them */
    bool sharded;    /* the home has this rank's share of a bucket; rows are those of the share */
    bool shared;     /* of a bucket: on the host it stands in slots that all such buckets of its role share */
    sbp_space space; /* of the home */
    sbp_dtype stored, computed;
    sbp_extent rows;
    int64_t cols;
    bool lasts; /* beyond the entry: comes from its home, and is back there at the end */
    /* Parameters in blocks: the item is a bucket of bytes with all their parts, and acts name, of its
     * computed form, the parameters (or all of it, where it is one). NULL: the item is no such bucket. */
    sbp_packed *packed;
    int32_t packed_count;
} sbp_resident;

typedef enum sbp_form {
    SBP_FORM_STORED,
    SBP_FORM_SHARE,   /* what this rank has a share of, as it is stored */
    SBP_FORM_COMPUTED /* on the device only, and only read */
} sbp_form;

/* An item, or a part of one: -1, all of it. */
typedef struct sbp_item_part {
    int32_t item, part;
} sbp_item_part;

/* What an act touches: an item, or with item < 0 an element of a buffer that stays. */
typedef struct sbp_operand {
    int32_t item, part;
    sbp_access access; /* SBP_WRITE: all of it (or of the part), nothing of what it was remains */
    sbp_form form;
    int32_t buffer, element; /* where item < 0; else buffer is -1 */
} sbp_operand;

typedef enum sbp_act_kind {
    SBP_ACT_CALL,        /* of `function`: operands in the order of its formals */
    SBP_ACT_FILL,        /* operand 0 = 0 */
    SBP_ACT_FLUSH,       /* gradient (operand 0) += accumulator (1) */
    SBP_ACT_CONVERT,     /* operand 0 = operand 1, in another type */
    SBP_ACT_SUM_SQUARES, /* the place of `param` in the norms (0) = of its gradient (1) */
    SBP_ACT_NORM,        /* of all norms (0); the clipping factor (1), where there is one */
    SBP_ACT_COLLECTIVE,  /* `collective` into operand 0 of operand 1, or where there is one, in place */
    SBP_ACT_UPDATE       /* the optimizer's rule for `param`: operands in the order of the rule */
} sbp_act_kind;

typedef struct sbp_act {
    sbp_act_kind kind;
    int32_t function; /* CALL */
    int32_t param;    /* number in the module */
    sbp_collective_op collective;
    const struct sbp_update
        *rule;        /* UPDATE, SUM_SQUARES: of shares, that of their bucket; NULL: that of `param` */
    const char *when; /* only where this scalar is 1; NULL: always */
    sbp_operand *operands;
    int32_t operand_count;
    bool on_host; /* runs on the host's cores: operands are items, wanted in host memory */
} sbp_act;

typedef struct sbp_call_list {
    const char *entry;
    sbp_act *acts;
    int32_t act_count, act_capacity;
} sbp_call_list;

/* Items of equal shapes and types. */
typedef struct sbp_resident_pool {
    const char *name; /* NULL: of what lasts, named after its shape */
    sbp_role role;
    sbp_dtype stored, computed;
    sbp_extent rows;
    int64_t cols;
    int32_t layout; /* number in sbp_residency; -1: no buckets */
    /* The computed form, where that is not of the shape of the stored one (else cols is 0). */
    struct {
        sbp_extent rows;
        int64_t cols;
        int32_t layout;
    } unpacked;
} sbp_resident_pool;

typedef struct sbp_residency {
    sbp_resident_pool *pools;
    int32_t pool_count, pool_capacity;
    sbp_layout *layouts;
    int32_t layout_count, layout_capacity;
    sbp_resident *items;
    int32_t item_count, item_capacity;
    sbp_call_list *lists;
    int32_t list_count, list_capacity;
} sbp_residency;

/* A copy between spaces, or a conversion, of an item. It follows act `after` (-1: it precedes all), and all
 * that was decided before it (`order`) for the same place. */
typedef struct sbp_move {
    int32_t item, after, order;
    sbp_spot from, to; /* a slot may be larger than the item */
    sbp_dtype from_dtype, to_dtype;
    sbp_extent from_rows, to_rows;
    int32_t queue;
    int32_t collective; /* sbp_collective_op; -1: none */
    sbp_spot
        *parts; /* of a packed item that becomes numbers: of each part, and behind these of each parameter */
    int32_t part_count; /* of both */
} sbp_move;

/* A list with everything in its place: where each act's operands are, and moves in the order they are given
 * to their queues. */
typedef struct sbp_walk {
    const sbp_call_list *list;
    sbp_spot **spots; /* per act and operand */
    sbp_move *moves;
    int32_t move_count;
} sbp_walk;

/* Walks every list; p->program gets the buffers of slots. walks: one per list, in p->arena. */
sbp_status sbp_residency_walk(sbp_program_builder *p, const sbp_residency *r, sbp_walk **walks) SBP_CHECKED;

/* The number of the pool of this description; there are few, many items have the same. */
int32_t sbp_residency_pool(sbp_program_builder *p, sbp_residency *r, sbp_resident_pool pool);
/* An item alone whose home is a buffer that is there already; returns its number. */
int32_t sbp_residency_add(sbp_program_builder *p, sbp_residency *r, sbp_item_class class, int32_t buffer,
                          sbp_dtype computed, bool lasts);

/* ---- buckets (bucket.c) ------------------------------------------------------------------------------- */

/* What parts of one bucket have in common. */
typedef struct sbp_bucket_key {
    sbp_item_class class;
    int32_t call;    /* of the segment; the number of calls: of small ones in all of them */
    int32_t operand; /* class states: of the update; else 0 */
    bool updated;    /* on the host's cores */
    bool trained;
    sbp_space space;
    sbp_dtype stored, computed;
    int64_t most; /* elements: no larger, but for one part that is */
    bool shared;
    /* Of what ranks have shares of: the number of its bucket, from 1 on, and how it lies there (sbp_layout),
     * whatever the rest of the key is; 0: none. cols: of the bucket. */
    int32_t flat;
    int64_t unit, whole, cols;
    sbp_sharding sharding;
} sbp_bucket_key;

typedef struct sbp_bucket_member {
    sbp_packed packed;  /* format NONE: `first` is the buffer, and there is nothing else */
    sbp_item_part *ref; /* where the number of its item is written */
} sbp_bucket_member;

/* A bucket while its parts come together. */
typedef struct sbp_bucket_plan {
    sbp_bucket_key key;
    sbp_bucket_member *members;
    int32_t count, capacity;
    int64_t elems;
    int32_t before; /* the plan of the same call that was made before this; -1 */
} sbp_bucket_plan;

typedef struct sbp_bucket_list {
    sbp_bucket_plan *plans;
    int32_t count, capacity;
    int32_t *last; /* per call: 1 + number of its latest plan; 0: none */
} sbp_bucket_list;

/* Elements of a bucket at most: as many, and what the target allocates at once. */
int64_t sbp_bucket_most(const sbp_program_builder *p, sbp_dtype stored, sbp_dtype computed, int64_t most);
/* The buffer (or those of all parts) is to be a part of the bucket of this key, and *ref to name it. */
void sbp_bucket_add(sbp_program_builder *p, sbp_bucket_list *list, const sbp_bucket_key *key,
                    const sbp_packed *what, sbp_item_part *ref);
/* Makes the items. One part alone is a bucket only where these share slots. */
void sbp_bucket_finish(sbp_program_builder *p, sbp_residency *r, const sbp_bucket_list *list);
/* A bucket of this name of buffers that are there, of the space and type of the first; returns its item, of
 * which the caller fills in the class. computed: the type that functions compute in. */
int32_t sbp_bucket_make(sbp_program_builder *p, sbp_residency *r, const char *name, sbp_role role,
                        sbp_dtype computed, const int32_t *buffers, int32_t count, bool shared);
/* The same, laid out as the bucket that is another item; of arrays of buffers, the first of their elements.
 */
int32_t sbp_bucket_make_like(sbp_program_builder *p, sbp_residency *r, const char *name, sbp_role role,
                             const int32_t *buffers, const sbp_resident *like);
/* A bucket of bytes of parameters in blocks; of one alone too. Returns its item. */
int32_t sbp_bucket_pack(sbp_program_builder *p, sbp_residency *r, const char *name, sbp_dtype computed,
                        const sbp_packed *packed, int32_t count);
/* Makes buffers for the parts of bucket number `bucket`, behind each other: as many as its layout has. */
void sbp_bucket_parts(sbp_program_builder *p, int32_t bucket, const sbp_layout *layout);

/* ---- parameters in blocks (dequantize.c) -------------------------------------------------------------- */

/* What makes numbers of that type of blocks; NULL when the table of formats is wrong. */
const sbp_rowkernel *sbp_dequantize_kernel(sbp_program_builder *p, sbp_format format, sbp_dtype to);
/* to = the numbers that the parts stand for. */
void sbp_lower_dequantize(sbp_program_builder *p, sbp_body *body, sbp_format format, sbp_view to,
                          sbp_dtype dtype, const sbp_view *parts);

/* How many of `count` such elements one buffer may hold: an array is cut where the target allocates no more
 * at once. At least 1. */
int32_t sbp_residency_piece(const sbp_program_builder *p, sbp_space space, sbp_dtype dtype, sbp_extent rows,
                            int64_t cols, int32_t count);

#endif
