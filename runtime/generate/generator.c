/* generator.c: rows of one text behind those in the cache. */
#include "runtime/generate/generator.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A state: what it was before the block at hand, and before that of the mark. */
typedef struct kept_state {
    int32_t buffer, slot;
    sbp_dtype dtype;
    int64_t elems;
    void *before, *at_mark;
} kept_state;

struct sbp_generator {
    sbp_executor *executor;
    const sbp_program *program;
    sbp_packer packer;
    sbp_dataset data; /* one document: the text, and a place for what follows */
    sbp_doc doc;
    int64_t first_doc[2];
    int64_t rows, mark, vocabulary;
    int64_t block, mark_block; /* rows before the block at hand, where there are states */
    int32_t logits_buffer, logp_buffer;
    double *logits, *marked;
    kept_state *states;
    int32_t state_count;
};

/* Buffers of the cache that have no row for each of the batch. */
static bool is_state(const sbp_buffer *b) {
    return b->role == SBP_ROLE_CACHE && b->rows.c[SBP_T] == 0 && b->rows.c[SBP_W] == 0;
}

static sbp_status find_states(sbp_generator *g, sbp_diag *diag) {
    const sbp_program *p = g->program;
    int32_t count = 0;
    for (int32_t b = 0; b < p->buffer_count; b++)
        count += is_state(&p->buffers[b]) ? p->buffers[b].count : 0;
    g->states = sbp_malloc((size_t)(count + 1) * sizeof *g->states);
    if (!g->states)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for the states of a text");
    for (int32_t b = 0; b < p->buffer_count; b++)
        for (int32_t k = 0; is_state(&p->buffers[b]) && k < p->buffers[b].count; k++) {
            kept_state *s = &g->states[g->state_count];
            *s = (kept_state){.buffer = b,
                              .slot = k,
                              .dtype = p->buffers[b].dtype,
                              .elems = sbp_executor_elems(g->executor, b)};
            g->state_count++;
            size_t bytes = (size_t)(s->elems * sbp_dtype_bytes(s->dtype));
            s->before = sbp_malloc(bytes);
            s->at_mark = sbp_malloc(bytes);
            if (!s->before || !s->at_mark)
                return sbp_fail(diag, SBP_MACHINE, "out of memory for the states of a text");
        }
    return SBP_OK;
}

static sbp_status find_buffers(sbp_generator *g, sbp_diag *diag) {
    const sbp_program *p = g->program;
    g->logits_buffer = sbp_program_find_buffer(p, SBP_LOGITS);
    g->logp_buffer = sbp_program_find_buffer(p, "logp");
    if (!sbp_program_entry(p, SBP_ENTRY_GENERATE) || !sbp_program_entry(p, SBP_ENTRY_CHOOSE) ||
        !sbp_program_counted(p) || g->logits_buffer < 0 || g->logp_buffer < 0)
        return sbp_fail(diag, SBP_USAGE,
                        "the plan does not generate: compile one with --for generate, or give the model");
    g->vocabulary = p->buffers[g->logits_buffer].cols;
    return SBP_OK;
}

static sbp_status create_in(sbp_generator *g, sbp_diag *diag) {
    SBP_TRY(find_buffers(g, diag));
    SBP_TRY(find_states(g, diag));
    int64_t most = sbp_generator_most_rows(g);
    g->logits = sbp_malloc((size_t)g->vocabulary * sizeof *g->logits);
    g->marked = sbp_malloc((size_t)g->vocabulary * sizeof *g->marked);
    g->data.tokens = sbp_malloc((size_t)(most + 1) * sizeof *g->data.tokens);
    g->data.labels = sbp_malloc((size_t)(most + 1) * sizeof *g->data.labels);
    if (!g->logits || !g->marked || !g->data.tokens || !g->data.labels)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for a text of %lld rows", (long long)most);
    for (int64_t i = 0; i <= most; i++)
        g->data.labels[i] = -100;
    g->first_doc[1] = 1;
    g->data.docs = &g->doc;
    g->data.rows = g->first_doc;
    g->data.doc_count = g->data.row_count = 1;
    sbp_packer_init(&g->packer, most, g->program);
    return sbp_executor_fill_role(g->executor, SBP_ROLE_CACHE, 0, diag); /* states of no row yet */
}

sbp_status sbp_generator_create(sbp_diag *diag, sbp_executor *executor, sbp_generator **out) {
    sbp_generator *g = sbp_malloc(sizeof *g);
    if (!g)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for a text");
    *g = (sbp_generator){.executor = executor, .program = sbp_executor_program(executor)};
    sbp_status status = create_in(g, diag);
    if (status != SBP_OK) {
        sbp_generator_destroy(g);
        return status;
    }
    *out = g;
    return SBP_OK;
}

void sbp_generator_destroy(sbp_generator *g) {
    if (!g)
        return;
    sbp_packer_close(&g->packer);
    for (int32_t i = 0; i < g->state_count; i++) {
        free(g->states[i].before);
        free(g->states[i].at_mark);
    }
    free(g->states);
    free(g->logits);
    free(g->marked);
    free(g->data.tokens);
    free(g->data.labels);
    free(g);
}

int64_t sbp_generator_most_rows(const sbp_generator *g) {
    return g->program->t_max;
}

int64_t sbp_generator_vocabulary(const sbp_generator *g) {
    return g->vocabulary;
}

const double *sbp_generator_logits(const sbp_generator *g) {
    return g->logits;
}

/* Rows begin .. rows - 1, of which the last one counts; `next` is its label. */
static sbp_status bind(sbp_generator *g, sbp_diag *diag, int64_t begin, int32_t next) {
    g->data.tokens[g->rows] = next;
    g->data.labels[g->rows] = next;
    g->doc.count = (int32_t)(g->rows + 1);
    g->doc.labels = 1;
    sbp_status status = sbp_packer_columns_behind(&g->packer, diag, &g->data, begin);
    g->data.labels[g->rows] = -100;
    SBP_TRY(status);
    return sbp_executor_bind_behind(g->executor, begin, g->rows, 0, g->packer.columns, g->packer.column_count,
                                    diag);
}

static sbp_status run_rows(sbp_generator *g, sbp_diag *diag, int64_t begin) {
    SBP_TRY(bind(g, diag, begin, 0));
    return sbp_executor_run(g->executor, sbp_entry_names[SBP_ENTRY_GENERATE], diag);
}

static sbp_status read_logits(sbp_generator *g, sbp_diag *diag) {
    SBP_TRY(sbp_executor_read(g->executor, g->logits_buffer, 0, 0, g->vocabulary, SBP_F64, g->logits, diag));
    for (int64_t i = 0; i < g->vocabulary; i++)
        if (isnan(g->logits[i]))
            return sbp_fail(diag, SBP_NOT_FINITE, "logits behind row %lld: NaN for token %lld",
                            (long long)(g->rows - 1), (long long)i);
    return SBP_OK;
}

/* The states, which are those before the block at hand. */
static sbp_status keep_states(sbp_generator *g, sbp_diag *diag) {
    for (int32_t i = 0; i < g->state_count; i++) {
        const kept_state *s = &g->states[i];
        SBP_TRY(sbp_executor_read(g->executor, s->buffer, s->slot, 0, s->elems, s->dtype, s->before, diag));
    }
    return SBP_OK;
}

static sbp_status restore_states(sbp_generator *g, sbp_diag *diag) {
    for (int32_t i = 0; i < g->state_count; i++) {
        const kept_state *s = &g->states[i];
        SBP_TRY(sbp_executor_write(g->executor, s->buffer, s->slot, 0, s->elems, s->dtype, s->before, diag));
    }
    return SBP_OK;
}

/* Runs the last rows, `fresh` of them not run yet: where there are states, from the beginning of the block.
 */
static sbp_status run_last(sbp_generator *g, sbp_diag *diag, int64_t fresh) {
    if (g->state_count == 0)
        SBP_TRY(run_rows(g, diag, g->rows - fresh));
    else {
        SBP_TRY(restore_states(g, diag));
        SBP_TRY(run_rows(g, diag, g->block));
        if (g->rows - g->block == SBP_DELTA_BLOCK) {
            SBP_TRY(keep_states(g, diag));
            g->block = g->rows;
        }
    }
    return read_logits(g, diag);
}

static void exchange_mark(sbp_generator *g, bool set) {
    for (int32_t i = 0; i < g->state_count; i++) {
        kept_state *s = &g->states[i];
        size_t bytes = (size_t)(s->elems * sbp_dtype_bytes(s->dtype));
        memcpy(set ? s->at_mark : s->before, set ? s->before : s->at_mark, bytes);
    }
    *(set ? &g->mark_block : &g->block) = set ? g->block : g->mark_block;
    memcpy(set ? g->marked : g->logits, set ? g->logits : g->marked,
           (size_t)g->vocabulary * sizeof *g->marked);
}

sbp_status sbp_generator_begin(sbp_generator *g, sbp_diag *diag, const int32_t *tokens, int64_t count) {
    if (count < 1 || count > sbp_generator_most_rows(g))
        return sbp_fail(diag, SBP_INPUT, "a text of %lld tokens: the plan takes 1 to %lld", (long long)count,
                        (long long)sbp_generator_most_rows(g));
    int64_t common = 0; /* the last row has the logits */
    while (g->state_count == 0 && common < g->rows && common + 1 < count &&
           g->data.tokens[common] == tokens[common])
        common++;
    memcpy(g->data.tokens, tokens, (size_t)count * sizeof *tokens);
    g->mark = count;
    g->block = 0;
    int64_t whole = g->state_count > 0 ? (count - 1) / SBP_DELTA_BLOCK * SBP_DELTA_BLOCK : 0;
    if (whole > 0) { /* the rows of whole blocks, at once */
        g->rows = whole;
        SBP_TRY(run_rows(g, diag, 0));
        g->block = whole;
    }
    if (g->state_count > 0) /* before the first row they are whatever they are: nobody reads them */
        SBP_TRY(keep_states(g, diag));
    g->rows = count;
    SBP_TRY(run_last(g, diag, count - common));
    exchange_mark(g, true);
    return SBP_OK;
}

sbp_status sbp_generator_rewind(sbp_generator *g, sbp_diag *diag) {
    if (g->rows == g->mark)
        return SBP_OK;
    g->rows = g->mark;
    exchange_mark(g, false);
    /* `choose` reads the logits of the row at hand */
    return sbp_executor_write(g->executor, g->logits_buffer, 0, 0, g->vocabulary, SBP_F64, g->logits, diag);
}

sbp_status sbp_generator_score(sbp_generator *g, sbp_diag *diag, int32_t token, double *logp) {
    SBP_TRY(bind(g, diag, g->rows - 1, token));
    SBP_TRY(sbp_executor_run(g->executor, sbp_entry_names[SBP_ENTRY_CHOOSE], diag));
    return sbp_executor_read(g->executor, g->logp_buffer, 0, 0, 1, SBP_F64, logp, diag);
}

sbp_status sbp_generator_append(sbp_generator *g, sbp_diag *diag, int32_t token) {
    if (g->rows == sbp_generator_most_rows(g))
        return sbp_fail(diag, SBP_INPUT, "the text has %lld tokens, the most that the plan takes",
                        (long long)g->rows);
    g->data.tokens[g->rows++] = token;
    return run_last(g, diag, 1);
}
