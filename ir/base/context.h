/* context.h: several ranks that have one micro-batch together, each some of its rows.
 *
 * `context` consecutive ranks have the same documents. Their W rows are cut into chunks of D = context times
 * C rows, and every chunk into equal parts, one per rank: chunk i of rank r are the rows of the sequence from
 * i D + r c on, c of them, c being C or what the last chunk has. (The packer makes W a multiple of
 * `context`.) So every rank has as many rows of every chunk as the others, chunks come in the order of the
 * sequence on all of them, and what was appended to a carry in front of a chunk is what rows of the chunk
 * see.
 *
 * Attention runs over all rows of a chunk and its carries, of some of the heads: before it rows of all heads
 * become all rows of this rank's heads (command collective, to_heads), after it back. Carries have W rows of
 * a rank's share of heads: no more memory than T rows of all of them. Queries of every row are as many on
 * every rank, so causal work is even.
 *
 * Heads. A unit is a key head and some of the query heads that read it; units are numbered, and each rank has
 * the same number of slots for them. With more ranks than key heads a key head is in several units, each with
 * other queries; their gradients of keys are added on the way back. Slots without a head are zeros, which
 * change nothing: their outputs go nowhere, and no gradient comes to them.
 * (Splitting attention by heads: Jacobs et al. 2023, DeepSpeed Ulysses, arXiv:2309.14509.)
 *
 * States go over all rows as well, so what carries one has them by heads: the delta rule those of values, a
 * short convolution one of all channels, which the first rank has (passes/graph/context.c).
 *
 * The other way moves keys: those and values of all ranks' rows of a chunk are gathered, with all heads, and
 * attention runs over this rank's queries. Their gradients, of all rows in front of the chunk's end, are
 * parts of sums over ranks; those of the chunk's rows are whole when every rank has been there, in the
 * order of chunks that all have, and are added up and shared. Work is even for any number of ranks: that of
 * a chunk's last rows differs from that of its first by less than a chunk. Carries have W rows of all heads.
 * In bf16 parts of sums are rounded to it before they cross, and added in fp32.
 * (As all-gather based context parallelism in Llama 3, arXiv:2407.21783, 3.3.2.) */
#ifndef SBP_IR_BASE_CONTEXT_H
#define SBP_IR_BASE_CONTEXT_H

#include "ir/base/base.h"

typedef struct sbp_context_heads {
    int64_t heads, kv_heads; /* of the attention; heads a multiple of kv_heads */
    int64_t dim;             /* elements of one */
    bool keys;               /* these are heads of keys or values, else of queries or outputs */
} sbp_context_heads;

/* Heads of one row before the exchange. */
static inline int64_t sbp_context_count(const sbp_context_heads *h) {
    return h->keys ? h->kv_heads : h->heads;
}
/* In how many units a key head is, and how many query heads a unit has. */
int64_t sbp_context_copies(const sbp_context_heads *heads, int64_t ranks);
int64_t sbp_context_queries(const sbp_context_heads *heads, int64_t ranks);
/* Slots of one rank. */
int64_t sbp_context_slots(const sbp_context_heads *heads, int64_t ranks);
/* The head in a slot, 0 .. ranks * slots - 1, those of rank 0 first; -1: none. */
int64_t sbp_context_head(const sbp_context_heads *heads, int64_t ranks, int64_t slot);
/* How many slots, all neighbours, have the same head: its copies of keys, 1 of queries. */
int64_t sbp_context_same(const sbp_context_heads *heads, int64_t ranks);

/* How rows of one rank's see those of another's (--context-exchange). */
typedef enum sbp_context_exchange {
    SBP_CONTEXT_AUTO,
    SBP_CONTEXT_ALL_TO_ALL,
    SBP_CONTEXT_ALL_GATHER
} sbp_context_exchange;
/* auto: heads, which need least memory; keys where with slots that are empty a rank would have half as many
 * query heads again as its share. */
sbp_context_exchange sbp_context_exchange_of(const sbp_context_heads *queries, int64_t ranks);

/* Row of the sequence of a rank's row; t: how many rows it has, chunk: C. */
int64_t sbp_context_row(int64_t row, int64_t t, int64_t chunk, int64_t rank, int64_t ranks);

#endif
