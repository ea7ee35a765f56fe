/* offload.h: call lists (made in passes/calls), and where everything lives that outlives one call
 * (offload.c).
 *
 * A tensor is a parameter, a gradient, an optimizer state, a checkpoint, a saved value, an accumulator. It
 * has a placement: a buffer in some space, in the type it is kept in. Tasks want it in a space and a form: on
 * the device in the type that functions compute in, or as it is stored; on the host as it is stored. Where
 * that is not its placement, it stands in a staging buffer meanwhile. Tasks say which tensors they read and
 * write, never where these are.
 *
 * Parameters of one segment and what belongs to them may be one tensor, a bucket (bucket.c): tasks name its
 * parts, and it moves in one piece.
 */
#ifndef SBP_PASSES_OFFLOAD_OFFLOAD_H
#define SBP_PASSES_OFFLOAD_OFFLOAD_H

#include "passes/lower/lowering.h"
#include "passes/lower/memory.h"

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

typedef struct sbp_placed_tensor {
    sbp_tensor_class class;
    sbp_role role;  /* of the placement; staging buffers of what lasts have a role of their own */
    int32_t pool;   /* tensors of one pool share staging buffers: number in sbp_call_schedule */
    int32_t buffer; /* placement; -1: none, what is given up before it was read for the last time is lost */
    int32_t element;
    int32_t *parts; /* of a bucket: buffers, as its layout has them */
    bool sharded;   /* the placement has this rank's share of a bucket; rows are those of the share */
    /* of a bucket: on the host it stands in staging buffers that all such buckets of its role share */
    bool shared;
    sbp_space space; /* of the placement */
    sbp_dtype stored, computed;
    sbp_extent rows;
    int64_t cols;
    bool lasts; /* beyond the entry: comes from its placement, and is back there at the end */
    /* Parameters in blocks: the tensor is a bucket of bytes with all their parts, and tasks name, of its
     * computed form, the parameters (or all of it, where it is one). NULL: the tensor is no such bucket. */
    sbp_packed *packed;
    int32_t packed_count;
} sbp_placed_tensor;

typedef enum sbp_form {
    SBP_FORM_STORED,
    SBP_FORM_HOST,    /* likewise, in host memory, whatever runs */
    SBP_FORM_SHARE,   /* what this rank has a share of, as it is stored */
    SBP_FORM_COMPUTED /* on the device only, and only read */
} sbp_form;

/* A tensor, or a part of one: -1, all of it. */
typedef struct sbp_tensor_part {
    int32_t tensor, part;
} sbp_tensor_part;

/* What a task touches: a tensor, or with tensor < 0 an element of a buffer that stays. */
typedef struct sbp_operand {
    int32_t tensor, part;
    sbp_access access; /* SBP_WRITE: all of it (or of the part), nothing of what it was remains */
    sbp_form form;
    int32_t buffer, element; /* where tensor < 0; else buffer is -1 */
} sbp_operand;

typedef enum sbp_task_kind {
    SBP_TASK_CALL,        /* of `function`: operands in the order of its formals */
    SBP_TASK_FILL,        /* operand 0 = 0 */
    SBP_TASK_FLUSH,       /* gradient (operand 0) += accumulator (1) */
    SBP_TASK_CONVERT,     /* operand 0 = operand 1, in another type */
    SBP_TASK_SUM_SQUARES, /* the place of `param` in the norms (0) = of its gradient (1) */
    SBP_TASK_NORM,        /* of all norms (0); the clipping factor (1), where there is one */
    SBP_TASK_COLLECTIVE,  /* `collective` into operand 0 of operand 1, or where there is one, in place */
    SBP_TASK_UPDATE       /* the optimizer's rule for `param`: operands in the order of the rule */
} sbp_task_kind;

typedef struct sbp_task {
    sbp_task_kind kind;
    int32_t function; /* CALL */
    int32_t param;    /* number in the module */
    sbp_collective_op collective;
    /* UPDATE, SUM_SQUARES: of shares, that of their bucket; NULL: that of `param` */
    const struct sbp_update *rule;
    const char *when; /* only where this scalar is 1; NULL: always */
    sbp_operand *operands;
    int32_t operand_count;
    bool on_host; /* runs on the host's cores: operands are tensors, wanted in host memory */
} sbp_task;

typedef struct sbp_call_list {
    const char *entry;
    sbp_task *tasks;
    int32_t task_count, task_capacity;
} sbp_call_list;

/* Tensors of equal shapes and types. */
typedef struct sbp_tensor_pool {
    const char *name; /* NULL: of what lasts, named after its shape */
    sbp_role role;
    sbp_dtype stored, computed;
    sbp_extent rows;
    int64_t cols;
    int32_t layout; /* number in sbp_call_schedule; -1: no buckets */
    /* The computed form, where that is not of the shape of the stored one (else cols is 0). */
    struct {
        sbp_extent rows;
        int64_t cols;
        int32_t layout;
    } unpacked;
} sbp_tensor_pool;

typedef struct sbp_call_schedule {
    sbp_tensor_pool *pools;
    int32_t pool_count, pool_capacity;
    sbp_layout *layouts;
    int32_t layout_count, layout_capacity;
    sbp_placed_tensor *tensors;
    int32_t tensor_count, tensor_capacity;
    sbp_call_list *lists;
    int32_t list_count, list_capacity;
} sbp_call_schedule;

/* A copy between spaces, or a conversion, of a tensor. It follows task `after` (-1: it precedes all), and all
 * that was decided before it (`order`) for the same place. */
typedef struct sbp_move {
    int32_t tensor, after, order;
    sbp_spot from, to; /* a staging buffer may be larger than the tensor */
    sbp_dtype from_dtype, to_dtype;
    sbp_extent from_rows, to_rows;
    int32_t queue;
    int32_t collective; /* sbp_collective_op; -1: none */
    /* of a packed tensor that becomes numbers: of each part, and behind these of each parameter */
    sbp_spot *parts;
    int32_t part_count; /* of both */
} sbp_move;

/* A list with everything in its place: where each task's operands are, and moves in the order they are given
 * to their queues. */
typedef struct sbp_walk {
    const sbp_call_list *list;
    sbp_spot **spots; /* per task and operand */
    sbp_move *moves;
    int32_t move_count;
} sbp_walk;

/* Walks every list; p->program gets the staging buffers. walks: one per list, in p->arena. */
sbp_status sbp_offload_walk(sbp_program_builder *p, const sbp_call_schedule *r, sbp_walk **walks) SBP_CHECKED;

/* The number of the pool of this description; there are few, many tensors have the same. */
int32_t sbp_call_schedule_pool(sbp_program_builder *p, sbp_call_schedule *r, sbp_tensor_pool pool);
/* A tensor alone whose placement is a buffer that is there already; returns its number. */
int32_t sbp_call_schedule_add(sbp_program_builder *p, sbp_call_schedule *r, sbp_tensor_class class,
                              int32_t buffer, sbp_dtype computed, bool lasts);

/* ---- buckets (bucket.c) ------------------------------------------------------------------------------- */

/* What parts of one bucket have in common. */
typedef struct sbp_bucket_key {
    sbp_tensor_class class;
    int32_t call;    /* of the segment; the number of calls: of small ones in all of them */
    int32_t operand; /* class states: of the update; else 0 */
    bool updated;    /* on the host's cores */
    bool trained;
    sbp_space space;
    sbp_dtype stored, computed;
    int64_t most; /* elements: no larger, but for one part that is */
    bool shared;
    /* For what ranks have shares of: the number of its bucket, from 1 on, and how it lies there (sbp_layout),
     * whatever the rest of the key is; 0: none. cols: of the bucket. */
    int32_t flat;
    int64_t unit, whole, cols;
    sbp_sharding sharding;
} sbp_bucket_key;

typedef struct sbp_bucket_member {
    sbp_packed packed;    /* format NONE: `first` is the buffer, and there is nothing else */
    sbp_tensor_part *ref; /* where the number of its tensor is written */
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
                    const sbp_packed *what, sbp_tensor_part *ref);
/* Makes the tensors. One part alone is a bucket only where these share staging buffers. */
void sbp_bucket_finish(sbp_program_builder *p, sbp_call_schedule *r, const sbp_bucket_list *list);
/* A bucket of this name of buffers that are there, of the space and type of the first; returns its tensor, of
 * which the caller fills in the class. computed: the type that functions compute in. */
int32_t sbp_bucket_make(sbp_program_builder *p, sbp_call_schedule *r, const char *name, sbp_role role,
                        sbp_dtype computed, const int32_t *buffers, int32_t count, bool shared);
/* The same, laid out as the bucket that is another tensor; of arrays of buffers, the first of their elements.
 */
int32_t sbp_bucket_make_like(sbp_program_builder *p, sbp_call_schedule *r, const char *name, sbp_role role,
                             const int32_t *buffers, const sbp_placed_tensor *like);
/* A bucket of bytes of parameters in blocks; of one alone too. Returns its tensor. */
int32_t sbp_bucket_pack(sbp_program_builder *p, sbp_call_schedule *r, const char *name, sbp_dtype computed,
                        const sbp_packed *packed, int32_t count);
/* Makes buffers for the parts of bucket number `bucket`, behind each other: as many as its layout has. */
void sbp_bucket_parts(sbp_program_builder *p, int32_t bucket, const sbp_layout *layout);

/* How many of `count` such elements one buffer may hold: an array is cut where the target allocates no more
 * at once. At least 1. */
int32_t sbp_offload_piece(const sbp_program_builder *p, sbp_space space, sbp_dtype dtype, sbp_extent rows,
                          int64_t cols, int32_t count);

#endif
