/* builder.h: what the parts of the calls pass share: tensors.c makes what outlives a call, gradients.c
 * follows gradients from accumulators to updates, calls.c puts it all in order. */
#ifndef SBP_PASSES_CALLS_BUILDER_H
#define SBP_PASSES_CALLS_BUILDER_H

#include "passes/calls/calls.h"
#include "passes/optimizers/update.h"

/* Accumulators of parameters `members` of a function's calls, or of one that several calls use. */
typedef struct sbp_accums {
    int32_t func, param; /* param -1: of those of func */
    int32_t *members, count;
    bool bucket;
    int32_t ring_index; /* of flats: calls of the function are double-buffered */
    int32_t tensor;
} sbp_accums;

/* Two tensors of one shape and memory space, used alternately: what sums are rounded to before they cross the
 * interconnect. */
typedef struct sbp_calls_rounded {
    sbp_space space;
    sbp_extent rows;
    int64_t cols;
    int32_t tensors[2], uses;
} sbp_calls_rounded;

/* Parameters behind each other in buckets of which ranks have shares; trained ones are updated as one. */
typedef struct sbp_flat {
    int32_t *params, count, capacity; /* ascending */
    const char *key;                  /* what its parameters have in common */
    bool small, trained;
    int64_t elems;
    const sbp_update *rule; /* of a share; NULL: it is not updated */
} sbp_flat;

/* A side value: who writes it, and its tensors. */
typedef struct sbp_calls_side {
    int32_t writer;            /* call; -1: the value is none */
    const sbp_crossing *as;    /* what the writer calls it */
    int32_t tensor, cotangent; /* tensors; -1: none */
    int32_t cached;            /* while generating: its tensor; -1: none */
    bool zeroed;               /* the cotangent, in this list */
} sbp_calls_side;

typedef struct sbp_calls_builder {
    sbp_program_builder *p;
    const sbp_callables *from;
    sbp_call_schedule *r;
    sbp_call_list *list; /* being built */
    int32_t layers;      /* L */
    int32_t groups;
    int64_t k;
    int32_t *checkpoints;          /* per group: tensor */
    int32_t temporaries, gradient; /* buffers: k - 1 inputs, G; -1: none */
    sbp_calls_side *sides;         /* per value between calls */
    int32_t max_saved;
    int32_t *saved;                  /* per call and saved value (call * max_saved + i): tensor */
    int32_t max_cached, *cached;     /* the same of what lasts while generating */
    sbp_tensor_part *params, *grads; /* per parameter; tensor -1: none */
    int32_t *trained;                /* per parameter: trained ones before it */
    bool *small;                     /* per parameter: nothing of it leaves the device */
    sbp_expert_pieces *pieces;       /* per parameter: how it comes to its call */
    sbp_tensor_part (*states)[SBP_MAX_UPDATE_OPERANDS]; /* per parameter and operand of its update */
    sbp_tensor_part clip, norms;                        /* tensor -1: none */
    sbp_tensor_part *accums; /* per parameter: its accumulator; tensor -1: none now */
    int32_t *call_of;        /* per parameter: the one call that uses it; negative: none, several */
    int64_t largest;         /* elements of a layer's largest parameter, as part of a bucket */
    int32_t *uses;           /* per parameter: calls of the backward still to come */
    sbp_accums *sets;        /* accumulators that calls of a kind share */
    int32_t set_count, set_capacity;
    sbp_calls_rounded *rounded;
    int32_t rounded_count, rounded_capacity;
    bool step;
    int64_t ranks;
    sbp_flat *flats;
    int32_t flat_count, flat_capacity;
    int32_t *flat_of; /* per parameter: -1: of none */
    int32_t *open;    /* per tensor: parameters of which gradients are to come in the list */
} sbp_calls_builder;

/* How something of a parameter joins a bucket (bucket.c): not at all; all of its segment that a call wants;
 * what comes to the host one by one. Tables of embedding and head stay alone: they share staging buffers.
 * With several ranks gradients join what crosses the interconnect with them. */
typedef enum sbp_joining { SBP_JOIN_ALONE, SBP_JOIN_SEGMENT, SBP_JOIN_PIECE } sbp_joining;

enum {
    SBP_BUCKET_MOST = 250000000
}; /* elements, a GB of fp32: 20 ms of a fast link, so that copies and updates overlap */

/* ---- tensors.c ----------------------------------------------------------------------------------------- */

const sbp_segment_kind *sbp_calls_kind(const sbp_calls_builder *e, int32_t call);
/* Whether the backward of a call runs: of the lowest one with a trained parameter, and of those above it. */
bool sbp_calls_runs(const sbp_calls_builder *e, int32_t call);
/* The layer behind a group's last; the call of its last layer has the same number. */
int32_t sbp_calls_end_of_group(const sbp_calls_builder *e, int32_t group);
/* Where tensor number n of a class is kept. */
sbp_space sbp_calls_placement(const sbp_calls_builder *e, sbp_tensor_class class, int32_t n);
/* Whether the rule of a parameter runs where its states live. */
bool sbp_calls_updates_on_host(const sbp_calls_builder *e, int32_t param);
/* Gradients can add up where they are kept when the types agree and nothing happens to them on the way. */
bool sbp_calls_accumulates_in_place(const sbp_calls_builder *e, const sbp_param *param);
sbp_joining sbp_calls_joining(const sbp_calls_builder *e, sbp_tensor_class class, int32_t param,
                              sbp_space space);
/* flats.c: with ZeRO, which parameters are in one bucket; and what add_lasting needs to know of it. */
void sbp_calls_find_flats(sbp_calls_builder *e);
void sbp_calls_flat_key(const sbp_calls_builder *e, int32_t param, int32_t operand, sbp_bucket_key *key);
/* Whether ranks have shares of what belongs to a parameter. */
bool sbp_calls_is_sharded(const sbp_calls_builder *e, sbp_tensor_class class, int32_t param);
/* The rules of updates, once the tensors are there. */
sbp_status sbp_calls_make_flat_rules(sbp_calls_builder *e) SBP_CHECKED;
/* Tensors of parameters, gradients and states; of checkpoints and G; of saved values. */
sbp_status sbp_calls_make_lasting(sbp_calls_builder *e) SBP_CHECKED;
void sbp_calls_make_streams(sbp_calls_builder *e, bool backward);
void sbp_calls_make_saved(sbp_calls_builder *e);
/* While generating: keys, values, states and side values of all calls, which last. */
void sbp_calls_make_cache(sbp_calls_builder *e);
/* The tensors of side values, and of the sums that their cotangents add up in. */
void sbp_calls_make_sides(sbp_calls_builder *e, bool backward);
/* The side value that a function of a call names. */
sbp_calls_side *sbp_calls_side_of(const sbp_calls_builder *e, int32_t call, const sbp_side *side);

/* ---- tasks, and gradients.c ------------------------------------------------------------------------------
 */

/* A tensor, or a part of it, as it is stored; all of a tensor. */
static inline sbp_operand sbp_calls_stored(sbp_tensor_part what, sbp_access access) {
    return (sbp_operand){
        .tensor = what.tensor, .part = what.part, .access = access, .form = SBP_FORM_STORED, .buffer = -1};
}

static inline sbp_tensor_part sbp_calls_whole(int32_t tensor) {
    return (sbp_tensor_part){tensor, -1};
}

/* lists.c: the next call list. */
void sbp_calls_begin_list(sbp_calls_builder *e, sbp_entry_id entry);
/* Operands are copied. */
sbp_task *sbp_calls_add_task(sbp_calls_builder *e, sbp_task_kind kind, const sbp_operand *operands,
                             int32_t count);
/* Zeroes a tensor. */
void sbp_calls_fill(sbp_calls_builder *e, int32_t tensor);
/* Before the list of a step or a micro-batch. */
void sbp_calls_begin_gradients(sbp_calls_builder *e);
/* What the backward of a call adds the gradient of parameter `i` of its segment to. */
sbp_tensor_part sbp_calls_accum(sbp_calls_builder *e, int32_t call, int32_t i);
/* After a backward call: gradients that are complete leave their accumulators, and cross the interconnect. */
void sbp_calls_flush_call(sbp_calls_builder *e, int32_t call);
/* In `step`: the norm of all gradients, after the last. */
void sbp_calls_finish_norm(sbp_calls_builder *e);
/* The list `update`. */
void sbp_calls_update_list(sbp_calls_builder *e);

#endif
