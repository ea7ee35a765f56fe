/* pack_ranks.c: what is whole to ranks, so that they end together.
 *
 * What takes time is counted in operations of the entry that runs for each micro-batch: matmuls for each
 * row, and attention for each pair of a row and one that it sees. (Everything else goes with the rows too;
 * matmuls and attention are as fast as each other, near enough.) The longest work first, each to the rank
 * that has the least: no rank has more than 4/3 of the least that is possible (Graham 1969). */
#include <stdlib.h>

#include "ir/program/traits.h"
#include "runtime/data/pack.h"

/* ---- work of a document ----------------------------------------------------------------------------- */

/* Whether a view has as many rows as the chunk, or the micro-batch, at hand. */
static bool goes_with_rows(const sbp_view *view) {
    const sbp_extent *rows = &view->length.base;
    return view->ref != SBP_NO_VIEW &&
           (view->length.column >= 0 || rows->c[SBP_T] != 0 || rows->c[SBP_C] != 0 || rows->c[SBP_H] != 0);
}

static void add_attention(sbp_pack_work *w, const sbp_attention_attrs *a, bool backward, int64_t context) {
    double of_pair =
        sbp_attention_flops(1, (double)(a->heads * a->d_qk), (double)(a->heads * a->d_v), backward) /
        (double)(a->by_rank ? context : 1); /* else of this rank's heads */
    int32_t i = 0;
    while (i < w->attention_count && w->attention[i].window != a->window)
        i++;
    if (i == SBP_MAX_WINDOWS) /* near enough */
        i--;
    else if (i == w->attention_count)
        w->attention[w->attention_count++].window = a->window;
    w->attention[i].per_pair += of_pair;
}

static void add_command(sbp_pack_work *w, const sbp_program *program, const sbp_command *c) {
    const sbp_attention_operands *attention = sbp_command_attention(c->kind);
    if (attention)
        add_attention(w, &c->u.attention, attention->backward, program->context);
    else if (sbp_command_attributes(c) == SBP_ATTRIBUTES_GEMM &&
             goes_with_rows(&c->views[SBP_GEMM_A])) /* of either's columns */
        w->per_row += 2.0 * (double)c->views[SBP_GEMM_D].cols * (double)c->views[SBP_GEMM_A].cols;
}

/* Calls stand in entries alone (c13). */
static void add_body(sbp_pack_work *w, const sbp_program *program, const sbp_body *body) {
    for (int32_t n = 0; n < body->count; n++) {
        const sbp_node *node = &body->nodes[n];
        if (node->kind == SBP_NODE_COMMAND)
            add_command(w, program, node->u.command);
        else if (node->kind == SBP_NODE_LOOP)
            add_body(w, program, &node->u.loop->body);
        else
            add_body(w, program, &program->functions[node->u.call->function].body);
    }
}

sbp_pack_work sbp_pack_work_of(const sbp_program *program) {
    const sbp_entry *entry = program ? sbp_program_training_entry(program) : NULL;
    sbp_pack_work w = {0};
    if (entry)
        add_body(&w, program, &entry->body);
    if (!(w.per_row > 0))
        w.per_row = 1;
    return w;
}

double sbp_pack_rows_work(const sbp_pack_work *w, int64_t first, int64_t rows) {
    double sum = w->per_row * (double)rows;
    for (int32_t i = 0; i < w->attention_count; i++)
        sum += w->attention[i].per_pair * sbp_attention_pairs(first, rows, w->attention[i].window);
    return sum;
}

/* ---- ranks ------------------------------------------------------------------------------------------ */

/* A rank: the work that it has, in how many parts. Or a part: its work, and then its rank. */
typedef struct sbp_pack_load {
    double work;
    int64_t count, number;
} sbp_pack_load;

/* The rank with the least work that has room; of equal ones the first. */
static int32_t least_loaded(const sbp_pack_load *ranks, int32_t count, int64_t most) {
    int32_t best = -1;
    for (int32_t r = 0; r < count; r++)
        if ((most == 0 || ranks[r].count < most) && (best < 0 || ranks[r].work < ranks[best].work))
            best = r;
    return best;
}

static int32_t give(sbp_pack_load *ranks, int32_t count, int64_t most, double work) {
    int32_t r = least_loaded(ranks, count, most);
    ranks[r].work += work;
    ranks[r].count++;
    return r;
}

static int most_work_first(const void *a, const void *b) {
    const sbp_pack_item *x = a, *y = b;
    if (x->work != y->work)
        return x->work > y->work ? -1 : 1;
    return x->doc < y->doc ? -1 : x->doc > y->doc;
}

bool sbp_pack_share_items(sbp_packer *p, int64_t items) {
    if (!sbp_pack_grow(&p->loads, &p->load_capacity, p->ranks, sizeof *p->loads))
        return false;
    for (int32_t r = 0; r < p->ranks; r++)
        p->loads[r] = (sbp_pack_load){0};
    qsort(p->items, (size_t)items, sizeof *p->items, most_work_first);
    for (int64_t i = 0; i < items; i++)
        p->items[i].rank = give(p->loads, p->ranks, 0, p->items[i].work);
    return true;
}

static int heaviest_first(const void *a, const void *b) {
    const sbp_pack_load *x = a, *y = b;
    if (x->work != y->work)
        return x->work > y->work ? -1 : 1;
    return x->number < y->number ? -1 : x->number > y->number;
}

static int by_number(const void *a, const void *b) {
    const sbp_pack_load *x = a, *y = b;
    return x->number < y->number ? -1 : x->number > y->number;
}

bool sbp_pack_share_bins(sbp_packer *p, int64_t items, int64_t bins) {
    if (!sbp_pack_grow(&p->loads, &p->load_capacity, p->ranks + bins, sizeof *p->loads))
        return false;
    sbp_pack_load *ranks = p->loads, *parts = p->loads + p->ranks;
    for (int32_t r = 0; r < p->ranks; r++)
        ranks[r] = (sbp_pack_load){0};
    for (int64_t b = 0; b < bins; b++)
        parts[b] = (sbp_pack_load){.number = b};
    for (int64_t i = 0; i < items; i++)
        parts[p->items[i].bin].work += p->items[i].work;
    qsort(parts, (size_t)bins, sizeof *parts, heaviest_first);
    for (int64_t b = 0; b < bins; b++)
        parts[b].count = give(ranks, p->ranks, p->most_parts, parts[b].work);
    qsort(parts, (size_t)bins, sizeof *parts, by_number);
    for (int64_t i = 0; i < items; i++)
        p->items[i].rank = (int32_t)parts[p->items[i].bin].count;
    return true;
}
