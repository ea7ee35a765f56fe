/* builder.h: what the parts of the entries pass share: items.c makes what outlives a call, gradients.c
 * follows gradients from accumulators to updates, entries.c puts it all in order. */
#ifndef SBP_PASSES_CALLS_BUILDER_H
#define SBP_PASSES_CALLS_BUILDER_H

#include "passes/calls/calls.h"
#include "passes/optimizers/update.h"

/* Accumulators of parameters `members` of a function's calls, or of one that several calls use. */
typedef struct sbp_accums {
    int32_t func, param; /* param -1: of those of func */
    int32_t *members, count;
    bool bucket;
    int32_t turn; /* of flats: calls of the function take turns */
    int32_t item;
} sbp_accums;

/* What sums of so many rows are rounded to before they cross the wire; two take turns. */
typedef struct sbp_entry_wire {
    sbp_space space;
    sbp_extent rows;
    int64_t cols;
    int32_t items[2], uses;
} sbp_entry_wire;

/* Parameters behind each other in buckets of which ranks have shares; trained ones are updated as one. */
typedef struct sbp_flat {
    int32_t *params, count, capacity; /* ascending */
    const char *key;                  /* what its parameters have in common */
    bool small, trained;
    int64_t elems;
    const sbp_update *rule; /* of a share; NULL: it is not updated */
} sbp_flat;

/* A side value: who writes it, and its items. */
typedef struct sbp_entry_side {
    int32_t writer;          /* call; -1: the value is none */
    const sbp_crossing *as;  /* what the writer calls it */
    int32_t item, cotangent; /* items; -1: none */
    bool zeroed;             /* the cotangent, in this list */
} sbp_entry_side;

typedef struct sbp_entry_builder {
    sbp_program_builder *p;
    const sbp_callables *from;
    sbp_residency *r;
    sbp_call_list *list; /* being built */
    int32_t layers;      /* L */
    int32_t groups;
    int64_t k;
    int32_t *checkpoints;          /* per group: item */
    int32_t temporaries, gradient; /* buffers: k - 1 inputs, G; -1: none */
    sbp_entry_side *sides;         /* per value between calls */
    int32_t max_saved;
    int32_t *saved;                /* per call and saved value (call * max_saved + i): item */
    sbp_item_part *params, *grads; /* per parameter; item -1: none */
    int32_t *trained;              /* per parameter: trained ones before it */
    bool *small;                   /* per parameter: nothing of it leaves the device */
    sbp_item_part (*states)[SBP_MAX_UPDATE_OPERANDS]; /* per parameter and operand of its update */
    sbp_item_part clip, norms;                        /* item -1: none */
    sbp_item_part *accums;                            /* per parameter: its accumulator; item -1: none now */
    int32_t *call_of; /* per parameter: the one call that uses it; negative: none, several */
    int64_t largest;  /* elements of a layer's largest parameter, as part of a bucket */
    int32_t *uses;    /* per parameter: calls of the backward still to come */
    sbp_accums *sets; /* accumulators that calls of a kind share */
    int32_t set_count, set_capacity;
    sbp_entry_wire *wires;
    int32_t wire_count, wire_capacity;
    bool step;
    int64_t ranks;
    sbp_flat *flats;
    int32_t flat_count, flat_capacity;
    int32_t *flat_of; /* per parameter: -1: of none */
    int32_t *open;    /* per item: parameters of which gradients are to come in the list */
} sbp_entry_builder;

/* How something of a parameter joins a bucket (bucket.c): not at all; all of its segment that a call wants;
 * what comes to the host one by one. Tables of embedding and head stay alone: they share slots. With several
 * ranks gradients join what crosses the wire with them. */
typedef enum sbp_joining { SBP_JOIN_ALONE, SBP_JOIN_SEGMENT, SBP_JOIN_PIECE } sbp_joining;

enum {
    SBP_BUCKET_MOST = 250000000
}; /* elements, a GB of fp32: 20 ms of a fast link, so that copies and updates overlap */

/* ---- items.c ------------------------------------------------------------------------------------------ */

const sbp_segment_kind *sbp_entry_kind(const sbp_entry_builder *e, int32_t call);
/* Whether the backward of a call runs: of the lowest one with a trained parameter, and of those above it. */
bool sbp_entry_runs(const sbp_entry_builder *e, int32_t call);
/* The layer behind a group's last; the call of its last layer has the same number. */
int32_t sbp_entry_end_of_group(const sbp_entry_builder *e, int32_t group);
/* Of item number n of a class. */
sbp_space sbp_entry_home(const sbp_entry_builder *e, sbp_item_class class, int32_t n);
/* Whether the rule of a parameter runs where its states live. */
bool sbp_entry_updates_on_host(const sbp_entry_builder *e, int32_t param);
/* Gradients can add up where they are kept when the types agree and nothing happens to them on the way. */
bool sbp_entry_accumulates_in_place(const sbp_entry_builder *e, const sbp_param *param);
sbp_joining sbp_entry_joining(const sbp_entry_builder *e, sbp_item_class class, int32_t param,
                              sbp_space space);
/* flats.c: with ZeRO, which parameters are in one bucket; and what add_lasting needs to know of it. */
void sbp_entry_find_flats(sbp_entry_builder *e);
void sbp_entry_flat_key(const sbp_entry_builder *e, int32_t param, int32_t operand, sbp_bucket_key *key);
/* Whether ranks have shares of what belongs to a parameter. */
bool sbp_entry_is_sharded(const sbp_entry_builder *e, sbp_item_class class, int32_t param);
/* The rules of updates, once the items are there. */
sbp_status sbp_entry_make_flat_rules(sbp_entry_builder *e) SBP_CHECKED;
/* Items of parameters, gradients and states; of checkpoints and G; of saved values. */
sbp_status sbp_entry_make_lasting(sbp_entry_builder *e) SBP_CHECKED;
void sbp_entry_make_streams(sbp_entry_builder *e, bool backward);
void sbp_entry_make_saved(sbp_entry_builder *e);
/* Of side values: themselves, and what their cotangents add up in. */
void sbp_entry_make_sides(sbp_entry_builder *e, bool backward);
/* The side value that a function of a call names. */
sbp_entry_side *sbp_entry_side_of(const sbp_entry_builder *e, int32_t call, const sbp_side *side);

/* ---- acts, and gradients.c ------------------------------------------------------------------------------
 */

/* An item, or a part of it, as it is stored; all of an item. */
static inline sbp_operand sbp_entry_stored(sbp_item_part what, sbp_access access) {
    return (sbp_operand){
        .item = what.item, .part = what.part, .access = access, .form = SBP_FORM_STORED, .buffer = -1};
}

static inline sbp_item_part sbp_entry_whole(int32_t item) {
    return (sbp_item_part){item, -1};
}

/* entries.c: the next call list. */
void sbp_entry_begin_list(sbp_entry_builder *e, const char *entry);
/* Operands are copied. */
sbp_act *sbp_entry_act(sbp_entry_builder *e, sbp_act_kind kind, const sbp_operand *operands, int32_t count);
/* Zeroes an item. */
void sbp_entry_fill(sbp_entry_builder *e, int32_t item);
/* Before the list of a step or a micro-batch. */
void sbp_entry_begin_gradients(sbp_entry_builder *e);
/* What the backward of a call adds the gradient of parameter `i` of its segment to. */
sbp_item_part sbp_entry_accum(sbp_entry_builder *e, int32_t call, int32_t i);
/* After a backward call: gradients that are complete leave their accumulators, and cross the wire. */
void sbp_entry_flush_call(sbp_entry_builder *e, int32_t call);
/* In `step`: the norm of all gradients, after the last. */
void sbp_entry_finish_norm(sbp_entry_builder *e);
/* The list `update`. */
void sbp_entry_update_list(sbp_entry_builder *e);

#endif
