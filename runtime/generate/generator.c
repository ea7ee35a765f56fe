/* generator.c: rows of texts behind those in the cache. */
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

typedef struct text {
    bool begun;
    int64_t begin, most_rows; /* its range of rows */
    int64_t rows, mark;
    int32_t *tokens; /* [token_capacity] */
    int64_t token_capacity;
    double *logits, *marked; /* [vocabulary] */
} text;

struct sbp_generator {
    sbp_executor *executor;
    const sbp_program *program;
    sbp_packer packer;
    sbp_dataset data; /* one document: the text at hand, and a place for what follows */
    sbp_doc doc;
    int64_t first_doc[2];
    int64_t most_rows, vocabulary; /* rows: of all texts, behind them those in which several go on */
    text *texts;
    int32_t text_count;
    int32_t *leaves; /* [text_count] of which text a row of the buffer of logits is; -1: of none */
    sbp_column columns[SBP_PACK_COLUMNS];
    int64_t *numbers[SBP_PACK_COLUMNS]; /* [text_count] memory of these */
    int64_t block, mark_block;          /* rows before the block at hand, where there are states */
    int32_t logits_buffer, logp_buffer;
    int32_t *zeros; /* [text_count] labels of rows that have none yet */
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

static bool generates(const sbp_program *p) {
    return sbp_program_entry(p, SBP_ENTRY_GENERATE) && sbp_program_entry(p, SBP_ENTRY_CHOOSE) &&
           sbp_program_counted(p) && sbp_program_find_buffer(p, SBP_LOGITS) >= 0 &&
           sbp_program_find_buffer(p, "logp") >= 0;
}

/* Texts at a time, however many rows they have. */
static int32_t most_texts(const sbp_program *p) {
    const sbp_sizes sizes = sbp_program_sizes(p, p->t_max, p->s_max);
    for (int32_t b = 0; b < p->buffer_count; b++)
        if (is_state(&p->buffers[b]))
            return 1;
    return (int32_t)sbp_max_i64(sbp_min_i64(sizes.v[SBP_H], INT32_MAX), 1);
}

int64_t sbp_generator_rows_of(int64_t rows, int32_t texts) {
    return texts > 1 ? texts * (rows + 1) : rows;
}

int32_t sbp_generator_texts_of(const sbp_program *program, int64_t rows, int32_t most) {
    int64_t count = sbp_min_i64(sbp_min_i64(most, most_texts(program)), program->t_max - rows);
    return count > 1 ? (int32_t)count : 1;
}

static sbp_status find_buffers(sbp_generator *g, sbp_diag *diag) {
    const sbp_program *p = g->program;
    if (!generates(p))
        return sbp_fail(diag, SBP_USAGE,
                        "the plan does not generate: compile one with --for generate, or give the model");
    g->logits_buffer = sbp_program_find_buffer(p, SBP_LOGITS);
    g->logp_buffer = sbp_program_find_buffer(p, "logp");
    g->vocabulary = p->buffers[g->logits_buffer].cols;
    return SBP_OK;
}

static sbp_status make_texts(sbp_generator *g, sbp_diag *diag) {
    const size_t n = (size_t)g->text_count, bytes = (size_t)g->vocabulary * sizeof(double);
    g->texts = sbp_malloc(n * sizeof *g->texts);
    g->leaves = sbp_malloc(n * sizeof *g->leaves);
    g->zeros = sbp_malloc(n * sizeof *g->zeros);
    bool there = g->texts && g->leaves && g->zeros;
    for (int32_t i = 0; i < g->text_count && g->texts; i++) {
        g->texts[i] = (text){.logits = sbp_malloc(bytes), .marked = sbp_malloc(bytes)};
        there &= g->texts[i].logits && g->texts[i].marked;
    }
    for (int32_t i = 0; i < g->text_count && there; i++) {
        g->leaves[i] = -1;
        g->zeros[i] = 0;
    }
    for (int32_t c = 0; c < g->packer.column_count && g->text_count > 1; c++)
        there &= (g->numbers[c] = sbp_malloc(n * sizeof *g->numbers[c])) != NULL;
    return there ? SBP_OK
                 : sbp_fail(diag, SBP_MACHINE, "out of memory for %d texts at a time", g->text_count);
}

static sbp_status create_in(sbp_generator *g, sbp_diag *diag, int32_t texts) {
    SBP_TRY(find_buffers(g, diag));
    SBP_TRY(find_states(g, diag));
    const int64_t t_max = g->program->t_max;
    g->text_count = (int32_t)sbp_min_i64(sbp_min_i64(texts, most_texts(g->program)), (t_max + 1) / 2);
    g->most_rows = g->text_count > 1 ? t_max - g->text_count : t_max;
    sbp_packer_init(&g->packer, t_max, g->program);
    SBP_TRY(make_texts(g, diag));
    g->data.labels = sbp_malloc((size_t)(t_max + 1) * sizeof *g->data.labels);
    if (!g->data.labels)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for a text of %lld rows", (long long)t_max);
    for (int64_t i = 0; i <= t_max; i++)
        g->data.labels[i] = -100;
    g->first_doc[1] = 1;
    g->data.docs = &g->doc;
    g->data.rows = g->first_doc;
    g->data.doc_count = g->data.row_count = 1;
    return SBP_OK;
}

sbp_status sbp_generator_start(sbp_generator *g, sbp_diag *diag) {
    for (int32_t t = 0; t < g->text_count; t++)
        sbp_generator_release(g, t);
    sbp_executor_set_scalar(g->executor, sbp_scalar_names[SBP_SCALAR_DROPOUT], 0); /* nothing is dropped */
    sbp_executor_set_scalar(g->executor, SBP_RANDOM_PREFIX "dropout", 0);
    return sbp_executor_fill_role(g->executor, SBP_ROLE_CACHE, 0, diag); /* states of no row yet */
}

sbp_status sbp_generator_create(sbp_diag *diag, sbp_executor *executor, int32_t texts, sbp_generator **out) {
    sbp_generator *g = sbp_malloc(sizeof *g);
    if (!g)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for a text");
    *g = (sbp_generator){.executor = executor, .program = sbp_executor_program(executor)};
    sbp_status status = create_in(g, diag, texts);
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
    for (int32_t i = 0; i < g->text_count && g->texts; i++) {
        free(g->texts[i].tokens);
        free(g->texts[i].logits);
        free(g->texts[i].marked);
    }
    for (int32_t c = 0; c < SBP_PACK_COLUMNS; c++)
        free(g->numbers[c]);
    free(g->states);
    free(g->texts);
    free(g->leaves);
    free(g->zeros);
    free(g->data.labels);
    free(g);
}

int32_t sbp_generator_texts(const sbp_generator *g) {
    return g->text_count;
}

int64_t sbp_generator_most_rows(const sbp_generator *g) {
    return g->most_rows;
}

int64_t sbp_generator_vocabulary(const sbp_generator *g) {
    return g->vocabulary;
}

const double *sbp_generator_logits(const sbp_generator *g, int32_t number) {
    return g->texts[number].logits;
}

/* ---- ranges of rows ---------------------------------------------------------------------------------- */

/* The first row of a range that no other text has; -1: there is none. */
static int64_t find_range(const sbp_generator *g, int32_t number, int64_t rows) {
    int64_t begin = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (int32_t i = 0; i < g->text_count; i++) {
            const text *t = &g->texts[i];
            if (i == number || !t->begun || t->begin >= begin + rows || t->begin + t->most_rows <= begin)
                continue;
            begin = t->begin + t->most_rows;
            moved = true;
        }
    }
    return begin + rows <= g->most_rows ? begin : -1;
}

bool sbp_generator_fits(const sbp_generator *g, int32_t number, int64_t rows) {
    return find_range(g, number, rows) >= 0;
}

static sbp_status take_range(sbp_generator *g, sbp_diag *diag, int32_t number, int64_t most_rows) {
    text *t = &g->texts[number];
    int64_t begin = find_range(g, number, most_rows), taken = 0;
    for (int32_t i = 0; i < g->text_count; i++)
        taken += i != number && g->texts[i].begun ? g->texts[i].most_rows : 0;
    if (begin < 0)
        return sbp_fail(diag, SBP_INPUT,
                        "a text of %lld rows: the plan takes %lld, of which other texts have %lld",
                        (long long)most_rows, (long long)g->most_rows, (long long)taken);
    if (!sbp_pack_grow(&t->tokens, &t->token_capacity, most_rows + 1, sizeof *t->tokens))
        return sbp_fail(diag, SBP_MACHINE, "out of memory for a text of %lld rows", (long long)most_rows);
    t->begun = true;
    t->begin = begin;
    t->most_rows = most_rows;
    t->rows = t->mark = 0;
    return SBP_OK;
}

/* What lies in the buffer of logits is no longer of this text. */
static void forget_logits(sbp_generator *g, int32_t number) {
    for (int32_t i = 0; i < g->text_count; i++)
        if (g->leaves[i] == number)
            g->leaves[i] = -1;
}

void sbp_generator_release(sbp_generator *g, int32_t number) {
    g->texts[number].begun = false;
    forget_logits(g, number);
}

/* ---- rows -------------------------------------------------------------------------------------------- */

/* Columns of rows begin .. of a text, of which the last one counts; `next` is its label. */
static sbp_status fill_columns(sbp_generator *g, sbp_diag *diag, text *t, int64_t begin, int32_t next,
                               const sbp_pack_place *place) {
    g->data.tokens = t->tokens;
    g->data.tokens[t->rows] = next;
    g->data.labels[t->rows] = next;
    g->doc.count = (int32_t)(t->rows + 1);
    g->doc.labels = 1;
    sbp_status status = sbp_packer_columns_behind(&g->packer, diag, &g->data, begin, place);
    g->data.labels[t->rows] = -100;
    return status;
}

/* Rows of one text, at their places. */
static sbp_status bind_one(sbp_generator *g, sbp_diag *diag, int32_t number, int64_t begin, int32_t next) {
    text *t = &g->texts[number];
    const sbp_pack_place place = {.first = t->begin, .own = t->begin};
    SBP_TRY(fill_columns(g, diag, t, begin, next, &place));
    return sbp_executor_bind_behind(g->executor, t->begin + begin, t->begin + t->rows, 0, g->packer.columns,
                                    g->packer.column_count, diag);
}

/* The last row of each of these texts, behind those of all. To attention the rows of its text, with its own,
 * are shared ones: it sees these alone. */
static sbp_status bind_together(sbp_generator *g, sbp_diag *diag, const int32_t *numbers, const int32_t *next,
                                int32_t count) {
    for (int32_t i = 0; i < count; i++) {
        text *t = &g->texts[numbers[i]];
        const sbp_pack_place place = {.first = t->begin, .shared = t->rows, .own = g->most_rows + i + 1};
        SBP_TRY(fill_columns(g, diag, t, t->rows - 1, next[i], &place));
        for (int32_t c = 0; c < g->packer.column_count; c++) {
            const sbp_column *from = &g->packer.columns[c];
            size_t bytes = (size_t)sbp_dtype_bytes(from->dtype);
            g->columns[c] = (sbp_column){from->name, from->dtype, g->numbers[c], from->count > 0 ? count : 0};
            memcpy((char *)g->numbers[c] + (size_t)i * bytes, from->data, bytes);
        }
    }
    return sbp_executor_bind_behind(g->executor, g->most_rows, g->most_rows + count, 0, g->columns,
                                    g->packer.column_count, diag);
}

static sbp_status bind_last(sbp_generator *g, sbp_diag *diag, const int32_t *numbers, const int32_t *next,
                            int32_t count) {
    if (count > 1)
        return bind_together(g, diag, numbers, next, count);
    return bind_one(g, diag, numbers[0], g->texts[numbers[0]].rows - 1, next[0]);
}

/* Runs what is bound, whose rows that count are the last ones of these texts. */
static sbp_status run_bound(sbp_generator *g, sbp_diag *diag, const int32_t *numbers, int32_t count) {
    for (int32_t i = 0; i < g->text_count; i++)
        g->leaves[i] = -1;
    SBP_TRY(sbp_executor_run(g->executor, sbp_entry_names[SBP_ENTRY_GENERATE], diag));
    for (int32_t i = 0; i < count; i++) {
        const text *t = &g->texts[numbers[i]];
        SBP_TRY(sbp_executor_read(g->executor, g->logits_buffer, 0, i * g->vocabulary, g->vocabulary, SBP_F64,
                                  t->logits, diag));
        for (int64_t k = 0; k < g->vocabulary; k++)
            if (isnan(t->logits[k]))
                return sbp_fail(diag, SBP_NOT_FINITE, "logits behind row %lld: NaN for token %lld",
                                (long long)(t->rows - 1), (long long)k);
        g->leaves[i] = numbers[i];
    }
    return SBP_OK;
}

static sbp_status run_rows(sbp_generator *g, sbp_diag *diag, int32_t number, int64_t begin) {
    SBP_TRY(bind_one(g, diag, number, begin, 0));
    return run_bound(g, diag, &number, 1);
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

/* Runs the last rows of a text, `fresh` of them not run yet: where there are states, from the beginning of
 * the block. */
static sbp_status run_last(sbp_generator *g, sbp_diag *diag, int32_t number, int64_t fresh) {
    const text *t = &g->texts[number];
    if (g->state_count == 0)
        return run_rows(g, diag, number, t->rows - fresh);
    SBP_TRY(restore_states(g, diag));
    SBP_TRY(run_rows(g, diag, number, g->block));
    if (t->rows - g->block == SBP_DELTA_BLOCK) {
        SBP_TRY(keep_states(g, diag));
        g->block = t->rows;
    }
    return SBP_OK;
}

/* ---- texts ------------------------------------------------------------------------------------------- */

static void exchange_mark(sbp_generator *g, text *t, bool set) {
    for (int32_t i = 0; i < g->state_count; i++) {
        kept_state *s = &g->states[i];
        size_t bytes = (size_t)(s->elems * sbp_dtype_bytes(s->dtype));
        memcpy(set ? s->at_mark : s->before, set ? s->before : s->at_mark, bytes);
    }
    *(set ? &g->mark_block : &g->block) = set ? g->block : g->mark_block;
    memcpy(set ? t->marked : t->logits, set ? t->logits : t->marked,
           (size_t)g->vocabulary * sizeof *t->marked);
}

void sbp_generator_set_longest(sbp_generator *g, int64_t tokens) {
    sbp_executor_set_scalar(g->executor, sbp_totals[SBP_TOTAL_LONGEST].name, (double)tokens);
}

sbp_status sbp_generator_begin(sbp_generator *g, sbp_diag *diag, int32_t number, const int32_t *tokens,
                               int64_t count, int64_t most_rows) {
    text *t = &g->texts[number];
    if (count < 1 || most_rows < count || most_rows > g->most_rows)
        return sbp_fail(diag, SBP_INPUT, "a text of %lld tokens in %lld rows: the plan takes 1 to %lld",
                        (long long)count, (long long)most_rows, (long long)g->most_rows);
    if (!t->begun || t->most_rows < most_rows)
        SBP_TRY(take_range(g, diag, number, most_rows));
    int64_t common = 0; /* the last row has the logits */
    while (g->state_count == 0 && common < t->rows && common + 1 < count &&
           t->tokens[common] == tokens[common])
        common++;
    memcpy(t->tokens, tokens, (size_t)count * sizeof *tokens);
    t->mark = count;
    g->block = 0;
    int64_t whole = g->state_count > 0 ? (count - 1) / SBP_DELTA_BLOCK * SBP_DELTA_BLOCK : 0;
    if (whole > 0) { /* the rows of whole blocks, at once */
        t->rows = whole;
        SBP_TRY(run_rows(g, diag, number, 0));
        g->block = whole;
    }
    if (g->state_count > 0) /* before the first row they are whatever they are: nobody reads them */
        SBP_TRY(keep_states(g, diag));
    t->rows = count;
    SBP_TRY(run_last(g, diag, number, count - common));
    exchange_mark(g, t, true);
    return SBP_OK;
}

/* Copies rows of keys and values, through host memory. */
static sbp_status copy_rows(sbp_generator *g, sbp_diag *diag, int64_t from, int64_t to, int64_t rows) {
    const sbp_program *p = g->program;
    int64_t bytes = 0;
    for (int32_t b = 0; b < p->buffer_count; b++)
        if (p->buffers[b].role == SBP_ROLE_CACHE)
            bytes = sbp_max_i64(bytes, rows * p->buffers[b].cols * sbp_dtype_bytes(p->buffers[b].dtype));
    void *memory = sbp_malloc((size_t)bytes);
    if (!memory)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for %lld rows of a text", (long long)rows);
    sbp_status status = SBP_OK;
    for (int32_t b = 0; b < p->buffer_count; b++) {
        const sbp_buffer *of = &p->buffers[b];
        for (int32_t k = 0; k < of->count && of->role == SBP_ROLE_CACHE && status == SBP_OK; k++) {
            status = sbp_executor_read(g->executor, b, k, from * of->cols, rows * of->cols, of->dtype, memory,
                                       diag);
            if (status == SBP_OK)
                status = sbp_executor_write(g->executor, b, k, to * of->cols, rows * of->cols, of->dtype,
                                            memory, diag);
        }
    }
    free(memory);
    return status;
}

sbp_status sbp_generator_fork(sbp_generator *g, sbp_diag *diag, int32_t number, int32_t from,
                              int64_t most_rows) {
    text *t = &g->texts[number], *other = &g->texts[from];
    const size_t bytes = (size_t)g->vocabulary * sizeof *t->logits;
    if (number == from || !other->begun || most_rows < other->mark)
        return sbp_fail(diag, SBP_INTERNAL, "text %d begins as text %d does, in %lld rows", number, from,
                        (long long)most_rows);
    SBP_TRY(take_range(g, diag, number, most_rows));
    SBP_TRY(copy_rows(g, diag, other->begin, t->begin, other->mark));
    memcpy(t->tokens, other->tokens, (size_t)other->mark * sizeof *t->tokens);
    memcpy(t->logits, other->marked, bytes);
    memcpy(t->marked, other->marked, bytes);
    t->rows = t->mark = other->mark;
    forget_logits(g, number);
    return SBP_OK;
}

sbp_status sbp_generator_rewind(sbp_generator *g, sbp_diag *diag, int32_t number) {
    text *t = &g->texts[number];
    if (!t->begun)
        return sbp_fail(diag, SBP_INTERNAL, "text %d goes back, and was not begun", number);
    if (t->rows == t->mark)
        return SBP_OK;
    t->rows = t->mark;
    exchange_mark(g, t, false);
    forget_logits(g, number);
    return SBP_OK;
}

sbp_status sbp_generator_score(sbp_generator *g, sbp_diag *diag, const int32_t *numbers,
                               const int32_t *tokens, int32_t count, double *logps) {
    for (int32_t i = 0; i < count; i++) { /* `choose` reads them in the order of its rows */
        if (g->leaves[i] == numbers[i])
            continue;
        SBP_TRY(sbp_executor_write(g->executor, g->logits_buffer, 0, i * g->vocabulary, g->vocabulary,
                                   SBP_F64, g->texts[numbers[i]].logits, diag));
        forget_logits(g, numbers[i]);
        g->leaves[i] = numbers[i];
    }
    SBP_TRY(bind_last(g, diag, numbers, tokens, count));
    SBP_TRY(sbp_executor_run(g->executor, sbp_entry_names[SBP_ENTRY_CHOOSE], diag));
    return sbp_executor_read(g->executor, g->logp_buffer, 0, 0, count, SBP_F64, logps, diag);
}

sbp_status sbp_generator_append(sbp_generator *g, sbp_diag *diag, const int32_t *numbers,
                                const int32_t *tokens, int32_t count) {
    for (int32_t i = 0; i < count; i++) {
        const text *t = &g->texts[numbers[i]];
        if (t->rows == t->most_rows)
            return sbp_fail(diag, SBP_INPUT, "the text has %lld tokens, the most that it may have",
                            (long long)t->rows);
    }
    for (int32_t i = 0; i < count; i++) {
        text *t = &g->texts[numbers[i]];
        t->tokens[t->rows++] = tokens[i];
    }
    if (count == 1)
        return run_last(g, diag, numbers[0], 1);
    SBP_TRY(bind_together(g, diag, numbers, g->zeros, count));
    return run_bound(g, diag, numbers, count);
}
