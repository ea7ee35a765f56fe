/* weights_random.c: initialises parameters at random: a crew of threads draws, in the type that is kept, and
 * this thread writes to the device what was drawn before meanwhile. */
#include "ir/base/census.h"
#include "runtime/run/executor_internal.h"
#include "runtime/run/weights_internal.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Pieces of a tensor: where the device maps its memory they are drawn into it or are small, else they are
 * large, so that what a copy costs beside its bytes is nothing. */
enum { SMALL_ELEMS = 1 << 15, LARGE_ELEMS = 1 << 22, BLOCK_ELEMS = 1 << 12, MAX_THREADS = 64 };

/* Numbers for target elements [first, first + count) of a tensor, in dtype at out; then also in halves. */
typedef struct draw {
    const sbp_tensor_entry *tensor;
    const sbp_recipe *recipe;
    sbp_normal_source source;
    int64_t row_elems; /* of the source */
    sbp_dtype dtype;
    int64_t first, count;
    unsigned char *out;
    int16_t *low; /* out has the high halves, in bf16; NULL: no halves */
} draw;

/* A part of a draw on its way through double precision. */
typedef struct block {
    const draw *d;
    int64_t first, count;
    double values[BLOCK_ELEMS];
} block;

/* ---- numbers ----------------------------------------------------------------------------------------- */

static sbp_status sample_run(void *user, const sbp_recipe_run *run) {
    block *b = user;
    const draw *d = b->d;
    double *out = b->values + (run->target - b->first);
    bool as_is = d->tensor->map.changes_values; /* what is rounded is another number */
    if (d->tensor->init == SBP_INIT_NORMAL)
        sbp_normal_sample(&d->source, as_is ? SBP_F64 : d->dtype, run->source, run->count, out);
    else
        for (int64_t k = 0; k < run->count; k++)
            out[k] = d->tensor->deviation * (2 * sbp_normal_uniform(&d->source, run->source + k) - 1);
    return SBP_OK;
}

static sbp_status clear_pad_row(void *user, const sbp_recipe_run *run) {
    block *b = user;
    for (int64_t k = 0; k < run->count; k++)
        if ((run->source + k) / b->d->row_elems == b->d->tensor->pad_row)
            b->values[run->target - b->first + k] = 0;
    return SBP_OK;
}

/* Through fp32, which is a second rounding only where it ends in the middle of two. */
static void keep_bf16(uint16_t *out, const double *values, int64_t count) {
    for (int64_t k = 0; k < count; k++) {
        float near = (float)values[k];
        uint32_t bits;
        memcpy(&bits, &near, 4);
        if ((bits & 0xffff) == 0x8000)
            sbp_element_set(out, SBP_BF16, k, values[k]);
        else
            out[k] = (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
    }
}

static void keep_block(const block *b) {
    const draw *d = b->d;
    int64_t to = b->first - d->first;
    if (d->low)
        for (int64_t k = 0; k < b->count; k++)
            sbp_f32_split((float)b->values[k], (uint16_t *)(void *)d->out + to + k, d->low + to + k);
    else if (d->dtype == SBP_BF16)
        keep_bf16((uint16_t *)(void *)d->out + to, b->values, b->count);
    else
        sbp_executor_convert(d->dtype, d->out + to * sbp_dtype_bytes(d->dtype), SBP_F64, b->values, b->count);
}

static void sample_block(const draw *d, int64_t first, int64_t count) {
    block b;
    const sbp_tensor_entry *t = d->tensor;
    b.d = d;
    b.first = first;
    b.count = count;
    if (t->init == SBP_INIT_NORMAL || t->init == SBP_INIT_UNIFORM)
        (void)!sbp_recipe_walk_target(&t->map, first, first + count, sample_run, &b);
    else
        for (int64_t k = 0; k < count; k++)
            b.values[k] = t->init == SBP_INIT_ONES ? 1 : 0;
    if (t->pad_row >= 0)
        (void)!sbp_recipe_walk_target(&t->map, first, first + count, clear_pad_row, &b);
    if (t->map.changes_values)
        for (int64_t k = 0; k < count; k++)
            b.values[k] = sbp_recipe_load_value(d->recipe, b.values[k]);
    keep_block(&b);
}

/* ---- the crew ---------------------------------------------------------------------------------------- */

/* One draw at a time. Whoever waits for it helps, so that there need be no threads. */
typedef struct crew {
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    pthread_t threads[MAX_THREADS];
    int32_t thread_count;
    draw job;
    int64_t next, left; /* elements of the job that nobody has taken, that are not drawn */
    bool ends;
} crew;

/* Takes blocks while there are some; the lock is held before and after. */
static void take_blocks(crew *c) {
    while (c->next < c->job.count) {
        draw job = c->job;
        int64_t at = c->next, count = job.count - at < BLOCK_ELEMS ? job.count - at : BLOCK_ELEMS;
        c->next += count;
        pthread_mutex_unlock(&c->lock);
        sample_block(&job, job.first + at, count);
        pthread_mutex_lock(&c->lock);
        c->left -= count;
        if (c->left == 0)
            pthread_cond_signal(&c->done);
    }
}

static void *run_thread(void *user) {
    crew *c = user;
    pthread_mutex_lock(&c->lock);
    while (!c->ends) {
        take_blocks(c);
        if (!c->ends)
            pthread_cond_wait(&c->work, &c->lock);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* Threads beside the caller; as many as can be had. */
static void crew_begin(crew *c, int32_t threads) {
    memset(c, 0, sizeof *c);
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->work, NULL);
    pthread_cond_init(&c->done, NULL);
    int32_t wanted = threads - 1 < MAX_THREADS ? threads - 1 : MAX_THREADS;
    while (c->thread_count < wanted && pthread_create(&c->threads[c->thread_count], NULL, run_thread, c) == 0)
        c->thread_count++;
}

static void crew_end(crew *c) {
    pthread_mutex_lock(&c->lock);
    c->ends = true;
    pthread_cond_broadcast(&c->work);
    pthread_mutex_unlock(&c->lock);
    for (int32_t i = 0; i < c->thread_count; i++)
        pthread_join(c->threads[i], NULL);
    pthread_cond_destroy(&c->done);
    pthread_cond_destroy(&c->work);
    pthread_mutex_destroy(&c->lock);
}

static void crew_start(crew *c, const draw *job) {
    pthread_mutex_lock(&c->lock);
    c->job = *job;
    c->next = 0;
    c->left = job->count;
    pthread_cond_broadcast(&c->work);
    pthread_mutex_unlock(&c->lock);
}

static void crew_finish(crew *c) {
    pthread_mutex_lock(&c->lock);
    take_blocks(c);
    while (c->left > 0)
        pthread_cond_wait(&c->done, &c->lock);
    pthread_mutex_unlock(&c->lock);
}

/* ---- tensors ----------------------------------------------------------------------------------------- */

typedef struct randomizer {
    crew crew;
    sbp_executor *x;
    const sbp_plan *plan;
    uint64_t seed;
    unsigned char *staging[2];
    int64_t piece; /* elements that each has room for, of any type, when it is needed */
} randomizer;

/* What was drawn, from staging to its place. */
static sbp_status write_piece(const sbp_weight_target *to, const draw *d) {
    if (!d->low)
        return sbp_weight_target_write(to, d->first, d->count, d->dtype, d->out);
    SBP_TRY(sbp_executor_write(to->x, to->buffer, 0, d->first, d->count, SBP_BF16, d->out, to->diag));
    return sbp_executor_write(to->x, to->master, 0, d->first, d->count, SBP_I16, d->low, to->diag);
}

/* A piece is drawn while the one before is written; of a format whole blocks. */
static sbp_status randomize_pieces(randomizer *r, const sbp_weight_target *to, draw d) {
    sbp_status status = SBP_OK;
    for (int k = 0; k < 2; k++)
        if (!r->staging[k] && (r->staging[k] = sbp_malloc((size_t)r->piece * sizeof(double))) == NULL)
            return sbp_fail(to->diag, SBP_MACHINE, "out of memory while initialising weights");
    draw before = {.count = 0};
    bool halves = to->master >= 0;
    for (int which = 0; d.first < to->elems && status == SBP_OK; which = !which) {
        d.count = to->elems - d.first < r->piece ? to->elems - d.first : r->piece;
        d.out = r->staging[which];
        d.low = halves ? (int16_t *)(void *)(d.out + 2 * r->piece) : NULL;
        crew_start(&r->crew, &d);
        if (before.count > 0)
            status = write_piece(to, &before);
        crew_finish(&r->crew);
        before = d;
        d.first += d.count;
    }
    return status == SBP_OK && before.count > 0 ? write_piece(to, &before) : status;
}

static sbp_status randomize_tensor(randomizer *r, int32_t t, sbp_diag *diag) {
    const sbp_tensor_entry *tensor = &r->plan->tensors->tensors[t];
    const sbp_recipe *recipe = &tensor->recipes[0];
    sbp_weight_target to = sbp_weight_target_of(r->x, r->plan, t, diag);
    if (to.format && !sbp_format_can_encode(to.format))
        return sbp_weight_fail_format(&to, "random weights", recipe->source, "drawn");
    draw d = {.tensor = tensor,
              .recipe = recipe,
              .source = {.seed = r->seed,
                         .name_hash = sbp_hash_bytes(recipe->source, strlen(recipe->source), 0),
                         .deviation = tensor->deviation},
              .row_elems = recipe->rank > 0 ? tensor->map.source_elems / recipe->dim[0] : 1,
              .dtype = to.dtype};
    bool whole = to.master < 0 && !to.format && !sbp_executor_is_shared(r->x, to.buffer);
    unsigned char *memory = whole ? sbp_executor_map(r->x, to.buffer, 0) : NULL;
    if (!memory)
        SBP_CROSS_EITHER(to.elems > r->piece, run_random_pieces, run_random_piece);
    else
        SBP_CROSS_EITHER(to.elems > BLOCK_ELEMS, run_random_mapped_blocks, run_random_mapped_block);
    if (!memory)
        return randomize_pieces(r, &to, d);
    SBP_TRY(sbp_executor_wait(r->x, diag));
    d.count = to.elems;
    d.out = memory;
    crew_start(&r->crew, &d);
    crew_finish(&r->crew);
    return SBP_OK;
}

static void randomizer_begin(randomizer *r, sbp_executor *x, const sbp_plan *plan, uint64_t seed,
                             int32_t threads) {
    *r = (randomizer){.x = x, .plan = plan, .seed = seed, .piece = SMALL_ELEMS};
    bool mapped = x->class->map && x->class->map(x->device, SBP_DEVICE, 0);
    for (int32_t t = 0; t < plan->tensors->count && !mapped; t++)
        while (r->piece < plan->tensors->tensors[t].map.elems && r->piece < LARGE_ELEMS)
            r->piece *= 2;
    crew_begin(&r->crew, threads);
}

static void randomizer_end(randomizer *r) {
    crew_end(&r->crew);
    free(r->staging[0]);
    free(r->staging[1]);
}

sbp_status sbp_params_randomize_pieces(sbp_executor *x, const sbp_plan *plan, uint64_t seed, int32_t threads,
                                       int64_t piece, sbp_diag *diag) {
    randomizer r;
    randomizer_begin(&r, x, plan, seed, threads);
    r.piece = piece > 0 ? piece : r.piece;
    sbp_status status = SBP_OK;
    for (int32_t t = 0; t < plan->tensors->count && status == SBP_OK; t++)
        status = randomize_tensor(&r, t, diag);
    randomizer_end(&r);
    return status;
}

sbp_status sbp_params_randomize(sbp_executor *x, const sbp_plan *plan, uint64_t seed, int32_t threads,
                                sbp_diag *diag) {
    return sbp_params_randomize_pieces(x, plan, seed, threads, 0, diag);
}

sbp_status sbp_weight_randomize(sbp_executor *x, const sbp_plan *plan, int32_t tensor, uint64_t seed,
                                sbp_diag *diag) {
    randomizer r;
    randomizer_begin(&r, x, plan, seed, 1);
    sbp_status status = randomize_tensor(&r, tensor, diag);
    randomizer_end(&r);
    return status;
}
