/* trainer.c: steps, evaluations and scorings on an executor. */
#include "runtime/train/trainer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backends/ranks/ranks.h"
#include "ir/program/traits.h"
#include "runtime/data/groups.h"
#include "runtime/data/mismatched.h"
#include "runtime/run/weights.h"
#include "runtime/train/step_scalars.h"

/* Documents are scored this many rows of data, for each rank, at a time, so that lines can come in file
 * order. */
enum { SCORE_ROWS = 256 };

static int32_t find_output(const sbp_program *program, const char *name) {
    for (int32_t i = 0; i < program->output_count; i++)
        if (strcmp(program->outputs[i].name, name) == 0)
            return i;
    return -1;
}

/* Sets scalars that scoring does not use; the executor needs them set. */
static void set_unknown(const sbp_trainer *t) {
    const sbp_prepare *prepare = t->program->prepare;
    sbp_executor_set(t->executor, SBP_SCALAR_MISMATCHED_LOGPS, 0);
    sbp_executor_set(t->executor, SBP_SCALAR_MISMATCHED_REF_LOGPS, 0);
    for (int32_t i = 0; prepare && i < prepare->number_count; i++)
        sbp_executor_set_scalar(t->executor, prepare->numbers[i], 1);
}

sbp_status sbp_trainer_init(sbp_trainer *t, sbp_diag *diag, sbp_executor *executor) {
    const sbp_program *program = sbp_executor_program(executor);
    *t = (sbp_trainer){.executor = executor,
                       .program = program,
                       .beta1 = 0.9,
                       .beta2 = 0.999,
                       .momentum = 0.9,
                       .eps = 1e-8,
                       .max_grad_norm = INFINITY,
                       .loss = find_output(program, "loss"),
                       .grad_norm = find_output(program, "grad_norm")};
    t->same_parts = sbp_program_entry_communicates(program, SBP_ENTRY_ACCUMULATE) ||
                    sbp_program_entry_communicates(program, SBP_ENTRY_SCORE);
    SBP_TRY(sbp_prepared_init(&t->prepared, diag, program->prepare));
    set_unknown(t);
    sbp_packer_init(&t->packer, sbp_program_most_rows(program), program);
    t->packer.prepared = &t->prepared;
    t->results = sbp_malloc((size_t)(program->output_count + 1) * sizeof *t->results);
    return t->results ? SBP_OK : sbp_fail(diag, SBP_MACHINE, "out of memory for the results of a step");
}

void sbp_trainer_close(sbp_trainer *t) {
    sbp_packer_close(&t->packer);
    sbp_prepared_close(&t->prepared);
    free(t->results);
    free(t->row);
    t->results = t->row = NULL;
}

static bool has_entry(const sbp_program *program, sbp_entry_id id) {
    return sbp_program_entry(program, id) != NULL;
}

bool sbp_trainer_can_step(const sbp_program *program) {
    return has_entry(program, SBP_ENTRY_STEP) ||
           (has_entry(program, SBP_ENTRY_ACCUMULATE) && has_entry(program, SBP_ENTRY_UPDATE));
}

bool sbp_trainer_has_gradients(const sbp_program *program) {
    return has_entry(program, SBP_ENTRY_STEP) || has_entry(program, SBP_ENTRY_ACCUMULATE);
}

sbp_status sbp_trainer_reset(sbp_trainer *t, sbp_diag *diag) {
    SBP_TRY(sbp_executor_fill_role(t->executor, SBP_ROLE_GRAD, 0, diag));
    return sbp_executor_fill_role(t->executor, SBP_ROLE_STATE, 0, diag);
}

/* ---- ranks ------------------------------------------------------------------------------------------ */

/* For the packer, before it packs. */
static void know_ranks(sbp_trainer *t) {
    sbp_ranks_info info = {.count = 1};
    if (t->ranks)
        sbp_ranks_info_of(t->ranks, &info);
    t->rank = info.rank;
    t->rank_count = info.count;
    sbp_packer_share(&t->packer, t->program, info.rank, info.count);
}

static bool is_alone(const sbp_trainer *t) {
    return t->rank_count == 1;
}

/* Whether this rank's results and scores count: others that have the same micro-batches have the same. */
static bool speaks(const sbp_trainer *t) {
    return t->rank % t->program->context == 0;
}

/* Sums over all ranks, when the device has no collectives under way. */
static sbp_status add_up(const sbp_trainer *t, double *numbers, int64_t count, sbp_diag *diag) {
    if (is_alone(t) || count == 0)
        return SBP_OK;
    SBP_TRY(sbp_executor_wait(t->executor, diag));
    return sbp_ranks_all_reduce(t->ranks, numbers, count, SBP_F64, diag);
}

/* Gradients are brought together by the program, and only among as many ranks as it is for. */
static sbp_status check_ranks(const sbp_trainer *t, sbp_diag *diag) {
    long long planned = t->program->ranks > 1 ? t->program->ranks : 1;
    if (t->rank_count == planned)
        return SBP_OK;
    return sbp_fail(diag, SBP_INPUT, "the plan trains on %lld rank%s, here %s %d: compile with --ranks %d",
                    planned, planned == 1 ? "" : "s", is_alone(t) ? "is" : "are", t->rank_count,
                    t->rank_count);
}

/* ---- results ---------------------------------------------------------------------------------------- */

static sbp_status clear_results(sbp_trainer *t, sbp_diag *diag) {
    return sbp_executor_fill_role(t->executor, SBP_ROLE_RESULT, 0, diag);
}

/* Reads what micro-batches have summed up, over all ranks. Every rank has the whole norm, for gradients are
 * brought together before. */
static sbp_status read_results(sbp_trainer *t, sbp_diag *diag) {
    int32_t count = t->program->output_count;
    for (int32_t i = 0; i < count; i++)
        SBP_TRY(sbp_executor_output(t->executor, t->program->outputs[i].name, &t->results[i], diag));
    double norm = t->grad_norm >= 0 ? t->results[t->grad_norm] : 0;
    for (int32_t i = 0; i < count && !speaks(t); i++)
        t->results[i] = 0;
    SBP_TRY(add_up(t, t->results, count, diag));
    if (t->grad_norm >= 0)
        t->results[t->grad_norm] = norm;
    return SBP_OK;
}

/* What an update adds to them. */
static sbp_status read_norm(sbp_trainer *t, sbp_diag *diag) {
    if (!is_alone(t)) /* parameters may still be on their way, and others want to use the interconnect */
        SBP_TRY(sbp_executor_wait(t->executor, diag));
    if (t->grad_norm < 0)
        return SBP_OK;
    return sbp_executor_output(t->executor, t->program->outputs[t->grad_norm].name, &t->results[t->grad_norm],
                               diag);
}

static sbp_status check_finite(const sbp_trainer *t, sbp_diag *diag, int32_t output, const char *what) {
    if (output < 0 || isfinite(t->results[output]))
        return SBP_OK;
    return sbp_fail(diag, SBP_NOT_FINITE, "%s is %g", what, t->results[output]);
}

/* ---- micro-batches ---------------------------------------------------------------------------------- */

static bool stop_asked(const sbp_trainer *t) {
    return is_alone(t) && t->interrupted && t->interrupted();
}

/* The same of all ranks, where all come by. */
static sbp_status agree_to_stop(const sbp_trainer *t, sbp_diag *diag, bool *out) {
    double asked = t->interrupted && t->interrupted();
    SBP_TRY(add_up(t, &asked, 1, diag));
    *out = asked > 0;
    return SBP_OK;
}

/* Numbers of the whole step, of which no micro-batch knows. */
static void set_totals(sbp_trainer *t, const sbp_dataset *data, const int64_t *rows, int64_t row_count) {
    double value;
    for (int32_t s = 0; s < t->program->scalar_count; s++)
        if (sbp_pack_total(data, rows, row_count, t->program->scalars[s], &value))
            sbp_executor_set_scalar(t->executor, t->program->scalars[s], value);
}

void sbp_trainer_set(sbp_trainer *t, const char *name, double value) {
    sbp_executor_set_scalar(t->executor, name, value);
    sbp_prepared_set(&t->prepared, name, value);
}

/* What is computed of all the data of the step, before any of it runs. */
static sbp_status prepare_data(sbp_trainer *t, sbp_diag *diag, const sbp_dataset *data, const int64_t *rows,
                               int64_t row_count) {
    const sbp_prepare *prepare = t->prepared.prepare;
    SBP_TRY(sbp_prepared_run(&t->prepared, diag, data, rows, row_count));
    for (int32_t i = 0; prepare && i < prepare->number_count; i++)
        sbp_executor_set_scalar(t->executor, prepare->numbers[i], t->prepared.numbers[i]);
    return SBP_OK;
}

/* last: no other follows it in the step. */
static sbp_status run_part(sbp_trainer *t, sbp_diag *diag, const sbp_dataset *data,
                           const sbp_micro_batch *part, sbp_entry_id entry, bool last) {
    bool drops = !t->steady && !t->evaluates && entry != SBP_ENTRY_SCORE;
    sbp_trainer_set_scalars(t, SBP_BEFORE_PART, &(sbp_moment){.part = part, .last = last, .drops = drops});
    if (!drops)
        sbp_executor_set_scalar(t->executor, SBP_RANDOM_PREFIX "dropout", 0);
    SBP_TRY(sbp_packer_columns(&t->packer, diag, data, part));
    SBP_TRY(sbp_executor_bind(t->executor, part->rows, part->groups, t->packer.columns,
                              t->packer.column_count, diag));
    return sbp_executor_run(t->executor, sbp_entry_names[entry], diag);
}

/* How many micro-batches of the packed step run here. */
static int32_t count_runs(const sbp_trainer *t, bool trains) {
    const sbp_packer *p = &t->packer;
    int32_t least = t->same_parts ? p->most_own : trains && !is_alone(t);
    return p->own_count > least ? p->own_count : least;
}

/* Number i of them. */
static const sbp_micro_batch *part_at(const sbp_trainer *t, int32_t i) {
    static const sbp_micro_batch nothing = {.rows = 1};
    return i < t->packer.own_count ? &t->packer.parts[t->packer.own + i] : &nothing;
}

/* A result of the whole step, which its micro-batches read: the others are outputs. */
static bool is_of_step(const sbp_program *program, int32_t buffer) {
    bool is = program->buffers[buffer].role == SBP_ROLE_RESULT;
    for (int32_t i = 0; i < program->output_count; i++)
        is &= program->outputs[i].buffer != buffer;
    return is;
}

static sbp_status add_up_counts(sbp_trainer *t, sbp_diag *diag) {
    for (int32_t b = 0; b < t->program->buffer_count && !is_alone(t); b++) {
        int64_t n = sbp_executor_elems(t->executor, b);
        if (!is_of_step(t->program, b))
            continue;
        double *sums = sbp_malloc((size_t)n * sizeof *sums);
        if (!sums)
            return sbp_fail(diag, SBP_MACHINE, "out of memory for what a step counts");
        sbp_status status = sbp_executor_read(t->executor, b, 0, 0, n, SBP_F64, sums, diag);
        for (int64_t i = 0; i < n && !speaks(t); i++)
            sums[i] = 0;
        if (status == SBP_OK)
            status = add_up(t, sums, n, diag);
        if (status == SBP_OK)
            status = sbp_executor_write(t->executor, b, 0, 0, n, SBP_F64, sums, diag);
        free(sums);
        SBP_TRY(status);
    }
    return SBP_OK;
}

/* What the loss reads of all micro-batches of the packed step, before any of it runs. */
static sbp_status count_parts_of_step(sbp_trainer *t, sbp_diag *diag, const sbp_dataset *data) {
    int32_t count = has_entry(t->program, SBP_ENTRY_COUNT) ? count_runs(t, true) : 0;
    for (int32_t i = 0; i < count; i++) {
        if (i > 0 && stop_asked(t))
            return SBP_INTERRUPTED;
        SBP_TRY(run_part(t, diag, data, part_at(t, i), SBP_ENTRY_COUNT, false));
    }
    return count > 0 ? add_up_counts(t, diag) : SBP_OK;
}

/* All micro-batches of the packed step. */
static sbp_status accumulate(sbp_trainer *t, sbp_diag *diag, const sbp_dataset *data) {
    SBP_TRY(count_parts_of_step(t, diag, data));
    int32_t count = count_runs(t, true);
    sbp_entry_id entry = has_entry(t->program, SBP_ENTRY_STEP) ? SBP_ENTRY_STEP : SBP_ENTRY_ACCUMULATE;
    for (int32_t i = 0; i < count; i++) {
        if (i > 0 && stop_asked(t))
            return SBP_INTERRUPTED;
        SBP_TRY(run_part(t, diag, data, part_at(t, i), entry, i + 1 == count));
    }
    return SBP_OK;
}

static sbp_status pack_rows(sbp_trainer *t, sbp_diag *diag, const sbp_dataset *data, const int64_t *rows,
                            int64_t row_count) {
    SBP_TRY(sbp_packer_pack(&t->packer, diag, data, rows, row_count));
    sbp_trainer_set_scalars(t, SBP_BY_PACKING, &(sbp_moment){0});
    return SBP_OK;
}

sbp_status sbp_trainer_pack(sbp_trainer *t, sbp_diag *diag, const sbp_dataset *data, const int64_t *rows,
                            int64_t row_count) {
    know_ranks(t);
    set_totals(t, data, rows, row_count);
    SBP_TRY(prepare_data(t, diag, data, rows, row_count));
    SBP_TRY(pack_rows(t, diag, data, rows, row_count));
    return sbp_packer_check(&t->packer, diag);
}

/* ---- steps ------------------------------------------------------------------------------------------ */

double sbp_trainer_random(uint64_t seed, int64_t number, const char *name) {
    const uint64_t of_step[] = {seed, (uint64_t)number};
    uint64_t hash = sbp_hash_bytes(name, strlen(name), sbp_hash_bytes(of_step, sizeof of_step, 0));
    return (double)(hash >> 11);
}

/* Keys of stochastic rounding and dropout, of which the program says which it has. */
static void set_random_scalars(sbp_trainer *t, int64_t number) {
    static const char prefix[] = SBP_RANDOM_PREFIX;
    for (int32_t s = 0; s < t->program->scalar_count; s++) {
        const char *name = t->program->scalars[s];
        if (strncmp(name, prefix, sizeof prefix - 1) == 0)
            sbp_executor_set_scalar(t->executor, name, sbp_trainer_random(t->seed, number, name));
    }
}

static void set_step_scalars(sbp_trainer *t, int64_t number, double lr) {
    sbp_trainer_set_scalars(t, SBP_BEFORE_STEP, &(sbp_moment){.number = number, .lr = lr});
    set_random_scalars(t, number);
}

sbp_status sbp_trainer_step(sbp_trainer *t, sbp_diag *diag, const sbp_dataset *data, const int64_t *rows,
                            int64_t row_count, int64_t number, double lr) {
    bool at_once = has_entry(t->program, SBP_ENTRY_STEP);
    SBP_TRY(sbp_trainer_pack(t, diag, data, rows, row_count));
    SBP_TRY(check_ranks(t, diag));
    set_step_scalars(t, number, lr);
    SBP_TRY(clear_results(t, diag));
    SBP_TRY(accumulate(t, diag, data));
    SBP_TRY(read_results(t, diag));
    SBP_TRY(check_finite(t, diag, t->loss, "the loss"));
    if (!at_once) {
        SBP_TRY(sbp_executor_run(t->executor, sbp_entry_names[SBP_ENTRY_UPDATE], diag));
        SBP_TRY(read_norm(t, diag));
    }
    return check_finite(t, diag, t->grad_norm, "the norm of the gradients");
}

/* What is done with each gradient; take NULL: nothing. */
typedef struct taker {
    sbp_flush_hook take;
    void *user;
} taker;

/* Programs without an optimizer keep gradients in the buffers "<parameter>.grad". */
static sbp_status take_gradients(sbp_trainer *t, sbp_diag *diag, const sbp_plan *plan, const taker *to) {
    for (int32_t b = 0; to->take && b < t->program->buffer_count; b++) {
        const sbp_buffer *grad = &t->program->buffers[b];
        size_t length;
        if (grad->role != SBP_ROLE_GRAD || !sbp_suffix_stem(grad->name, SBP_SUFFIX_GRAD, &length))
            continue;
        for (int32_t k = 0; k < plan->tensors->count; k++) {
            const char *param = t->program->buffers[plan->buffers[k]].name;
            sbp_gradient gradient = sbp_gradient_of(t->executor, plan->buffers[k], b);
            bool skip;
            if (strlen(param) == length && memcmp(param, grad->name, length) == 0)
                SBP_TRY(to->take(to->user, &gradient, &skip, diag));
        }
    }
    return SBP_OK;
}

/* Where ranks have shares of them, or of what is updated. */
static sbp_status take_shares(sbp_trainer *t, sbp_diag *diag, const sbp_plan *plan, const taker *to) {
    SBP_TRY(take_gradients(t, diag, plan, to));
    return sbp_executor_finish_reading(t->executor, diag);
}

static sbp_status collect_gradients(sbp_trainer *t, sbp_diag *diag, const sbp_plan *plan,
                                    const sbp_dataset *data, const taker *to) {
    bool at_once = has_entry(t->program, SBP_ENTRY_STEP);
    set_step_scalars(t, 1, 0);
    SBP_TRY(clear_results(t, diag));
    SBP_TRY(accumulate(t, diag, data));
    SBP_TRY(read_results(t, diag));
    SBP_TRY(check_finite(t, diag, t->loss, "the loss"));
    if (at_once)
        return SBP_OK;
    if (!has_entry(t->program, SBP_ENTRY_UPDATE) || sbp_executor_has_shares(t->executor)) {
        if (t->grad_norm >= 0) /* which an update computes */
            t->results[t->grad_norm] = NAN;
        return take_shares(t, diag, plan, to);
    }
    SBP_TRY(sbp_executor_run(t->executor, sbp_entry_names[SBP_ENTRY_UPDATE], diag));
    return read_norm(t, diag);
}

static sbp_status skip_gradient(void *user, const sbp_gradient *gradient, bool *skip, sbp_diag *diag) {
    (void)user;
    (void)gradient;
    (void)diag;
    *skip = true;
    return SBP_OK;
}

/* take NULL: on a rank that only takes part. */
static sbp_status visit_gradients(sbp_trainer *t, sbp_diag *diag, const sbp_plan *plan,
                                  const sbp_dataset *data, const taker *to) {
    sbp_executor_set_flush_hook(t->executor, to->take ? to->take : skip_gradient, to->user);
    sbp_status status = collect_gradients(t, diag, plan, data, to);
    sbp_executor_set_flush_hook(t->executor, NULL, NULL);
    return status;
}

/* Dumps gradients of a program that keeps them; else the dump's own hook takes them. */
static sbp_status dump_gradient(void *user, const sbp_gradient *gradient, bool *skip, sbp_diag *diag) {
    *skip = true;
    return sbp_gradient_dump_take(user, gradient->parameter, gradient->buffer, diag);
}

/* Shares that are updated as their gradients come are all that is left of these. */
static sbp_status check_dump(const sbp_trainer *t, sbp_diag *diag) {
    const sbp_entry *step = sbp_program_entry(t->program, SBP_ENTRY_STEP);
    for (int32_t n = 0; step && n < step->body.count; n++) {
        const sbp_node *node = &step->body.nodes[n];
        if (node->kind == SBP_NODE_COMMAND &&
            sbp_command_attributes(node->u.command) == SBP_ATTRIBUTES_COLLECTIVE &&
            node->u.command->u.collective.op == SBP_REDUCE_OWN)
            return sbp_fail(
                diag, SBP_USAGE,
                "--dump-gradients: this plan updates shares as soon as their gradients are there, "
                "and no rank has all of one: compile it with --zero 0, or with --accumulate any");
    }
    return SBP_OK;
}

sbp_status sbp_trainer_dump_gradients(sbp_trainer *t, sbp_diag *diag, const sbp_plan *plan,
                                      const sbp_dataset *data, const int64_t *rows, int64_t row_count,
                                      const char *path, sbp_dtype dtype) {
    sbp_gradient_dump *dump;
    SBP_TRY(check_dump(t, diag));
    SBP_TRY(sbp_trainer_pack(t, diag, data, rows, row_count));
    SBP_TRY(check_ranks(t, diag));
    if (t->rank > 0)
        return visit_gradients(t, diag, plan, data, &(taker){0});
    SBP_TRY(sbp_gradient_dump_begin(t->executor, plan, path, dtype, diag, &dump));
    sbp_status status = collect_gradients(t, diag, plan, data, &(taker){.take = dump_gradient, .user = dump});
    if (status == SBP_OK)
        return sbp_gradient_dump_end(dump, diag);
    sbp_gradient_dump_abort(dump);
    return status;
}

sbp_status sbp_trainer_gradients(sbp_trainer *t, sbp_diag *diag, const sbp_plan *plan,
                                 const sbp_dataset *data, const int64_t *rows, int64_t row_count,
                                 sbp_flush_hook take, void *user) {
    SBP_TRY(sbp_executor_fill_role(t->executor, SBP_ROLE_GRAD, 0, diag));
    SBP_TRY(sbp_trainer_pack(t, diag, data, rows, row_count));
    return visit_gradients(t, diag, plan, data, &(taker){.take = take, .user = user});
}

/* ---- evaluations ------------------------------------------------------------------------------------ */

typedef struct scoring {
    sbp_trainer *t;
    sbp_diag *diag;
    const sbp_dataset *data;
    sbp_score_visitor visit;
    void *user;
    sbp_entry_id entry;
    const int64_t *only; /* [row_count] rows that are scored, ascending; NULL: all */
    int64_t row_count;
    int32_t vector;    /* buffer of the log-probabilities */
    double *logps;     /* of the counted labels of the documents at hand, in order */
    int64_t *docs;     /* [doc_count] documents at hand, ascending */
    int64_t *logps_at; /* [doc_count] */
    int64_t doc_count;
    int64_t *rows; /* of the window */
} scoring;

static int64_t row_at(const scoring *s, int64_t place) {
    return s->only ? s->only[place] : place;
}

static int compare_docs(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* A vector of the program, of the rows of a micro-batch, into t->row. */
static sbp_status read_vector(sbp_trainer *t, sbp_diag *diag, int32_t vector, const sbp_micro_batch *part) {
    if (part->rows > t->row_capacity) {
        free(t->row);
        t->row = sbp_malloc((size_t)part->rows * sizeof *t->row);
        t->row_capacity = t->row ? part->rows : 0;
        if (!t->row)
            return sbp_fail(diag, SBP_MACHINE, "out of memory for the scores of %lld rows",
                            (long long)part->rows);
    }
    return sbp_executor_read_rows(t->executor, vector, part->rows, t->row, diag);
}

/* Log-probabilities of a micro-batch to their documents. */
static sbp_status take_scores(const scoring *s, const sbp_micro_batch *part) {
    sbp_trainer *t = s->t;
    SBP_TRY(read_vector(t, s->diag, s->vector, part));
    int64_t row = 0;
    for (int64_t k = 0; k < part->count; k++) {
        const sbp_doc *doc = &s->data->docs[part->docs[k]];
        const int64_t *place =
            bsearch(&part->docs[k], s->docs, (size_t)s->doc_count, sizeof *s->docs, compare_docs);
        double *out = s->logps + s->logps_at[place - s->docs];
        int64_t shared = part->shared ? part->shared[k] : 0; /* none of these counts */
        for (int64_t i = shared; i + 1 < doc->count; i++)
            if (s->data->labels[doc->first + i + 1] >= 0)
                *out++ = t->row[row + i - shared];
        row += doc->count - shared;
    }
    return SBP_OK;
}

static sbp_status visit_scores(const scoring *s) {
    for (int64_t k = 0; k < s->doc_count; k++) {
        sbp_score score = {.doc = &s->data->docs[s->docs[k]], .logps = s->logps + s->logps_at[k]};
        SBP_TRY(s->visit(s->user, &score));
    }
    return SBP_OK;
}

/* Rows at places [first, end), which have the documents at hand. */
static sbp_status score_window(scoring *s, int64_t first, int64_t end) {
    sbp_trainer *t = s->t;
    int64_t labels = 0;
    bool stop;
    SBP_TRY(agree_to_stop(t, s->diag, &stop));
    if (stop)
        return SBP_INTERRUPTED;
    SBP_TRY(sbp_packer_pack(&t->packer, s->diag, s->data, s->rows, end - first));
    for (int64_t k = 0; s->visit && k < s->doc_count; k++) {
        s->logps_at[k] = labels;
        labels += s->data->docs[s->docs[k]].labels;
    }
    for (int64_t i = 0; s->visit && i < labels; i++)
        s->logps[i] = 0;
    for (int32_t i = 0; i < count_runs(t, false); i++) {
        if (stop_asked(t))
            return SBP_INTERRUPTED;
        SBP_TRY(run_part(t, s->diag, s->data, part_at(t, i), s->entry, false));
        if (s->visit && speaks(t))
            SBP_TRY(take_scores(s, part_at(t, i)));
    }
    if (!s->visit)
        return SBP_OK;
    SBP_TRY(add_up(t, s->logps, labels, s->diag));
    return visit_scores(s);
}

/* Where a window ends that begins at place `first`: no group of rows is parted. */
static int64_t window_end(const scoring *s, int64_t first) {
    int64_t rows = (int64_t)SCORE_ROWS * s->t->packer.ranks;
    int64_t end = rows < s->row_count - first ? first + rows : s->row_count;
    while (end < s->row_count && !sbp_dataset_begins_group(s->data, row_at(s, end)))
        end++;
    return end;
}

static void close_window(scoring *s) {
    free(s->rows);
    free(s->docs);
    free(s->logps);
    free(s->logps_at);
    s->rows = s->docs = s->logps_at = NULL;
    s->logps = NULL;
}

/* The rows at places [first, end), and where there is a visitor, their documents and room for these. */
static bool open_window(scoring *s, int64_t first, int64_t end) {
    const sbp_dataset *data = s->data;
    int64_t labels = 1;
    s->doc_count = 0;
    s->rows = sbp_malloc((size_t)(end - first) * sizeof *s->rows);
    for (int64_t k = first; s->rows && k < end; k++) {
        s->rows[k - first] = row_at(s, k);
        s->doc_count += data->rows[row_at(s, k) + 1] - data->rows[row_at(s, k)];
    }
    if (!s->rows || !s->visit)
        return s->rows != NULL;
    s->docs = sbp_malloc((size_t)(s->doc_count + 1) * sizeof *s->docs);
    s->logps_at = sbp_malloc((size_t)(s->doc_count + 1) * sizeof *s->logps_at);
    s->doc_count = 0;
    for (int64_t k = first; s->docs && k < end; k++)
        for (int64_t d = data->rows[row_at(s, k)]; d < data->rows[row_at(s, k) + 1]; d++) {
            s->docs[s->doc_count++] = d;
            labels += data->docs[d].labels;
        }
    s->logps = sbp_malloc((size_t)labels * sizeof *s->logps);
    return s->docs && s->logps_at && s->logps;
}

static sbp_status score_rows(scoring *s) {
    for (int64_t first = 0, end; first < s->row_count; first = end) {
        end = window_end(s, first);
        sbp_status status = open_window(s, first, end)
                                ? score_window(s, first, end)
                                : sbp_fail(s->diag, SBP_MACHINE, "out of memory for scores");
        close_window(s);
        SBP_TRY(status);
    }
    return SBP_OK;
}

/* A vector that the entry `score` leaves; from NULL: only that there is the entry. */
static sbp_status find_vector(const sbp_trainer *t, sbp_diag *diag, const char *from, int32_t *out) {
    *out = from ? sbp_program_find_buffer(t->program, from) : -1;
    if (!has_entry(t->program, SBP_ENTRY_SCORE))
        return sbp_fail(diag, SBP_INPUT, "the plan cannot score: it has no entry 'score'");
    if (from && *out < 0)
        return sbp_fail(diag, SBP_INPUT, "the plan cannot score: it has no vector '%s'", from);
    if (from && (t->program->buffers[*out].cols != 1 || t->program->buffers[*out].count != 1 ||
                 sbp_executor_elems(t->executor, *out) < sbp_program_most_rows(t->program)))
        return sbp_fail(diag, SBP_INPUT, "the plan cannot score: '%s' is not one number per row", from);
    return SBP_OK;
}

/* What a micro-batch says of labels, to the tokens that they are. */
static void put_step(const sbp_dataset *data, const sbp_micro_batch *part, const double *row,
                     double *values) {
    for (int64_t k = 0; k < part->count; k++) {
        const sbp_doc *doc = &data->docs[part->docs[k]];
        int64_t shared = part->shared ? part->shared[k] : 0; /* none of these counts */
        for (int64_t i = shared + 1; i < doc->count; i++)
            if (data->labels[doc->first + i] >= 0)
                values[doc->first + i] = row[i - 1 - shared];
        row += doc->count - shared;
        values[doc->first] = row[-1]; /* the last row has no label, the first token is none */
    }
}

/* Rows of all micro-batches of the packed step, one after the other, for each column. */
static sbp_status score_parts(sbp_trainer *t, sbp_diag *diag, const sbp_dataset *data,
                              const sbp_score_column *columns, int32_t column_count, double *all) {
    int32_t vector;
    int64_t at = 0;
    for (int32_t i = 0; i < t->packer.own; i++)
        at += t->packer.parts[i].rows;
    for (int32_t i = 0; i < count_runs(t, false); i++) {
        const sbp_micro_batch *part = part_at(t, i);
        if (i > 0 && stop_asked(t))
            return SBP_INTERRUPTED;
        SBP_TRY(run_part(t, diag, data, part, SBP_ENTRY_SCORE, false));
        for (int32_t k = 0; k < column_count && part->count > 0 && speaks(t); k++) {
            SBP_TRY(find_vector(t, diag, columns[k].vector, &vector));
            SBP_TRY(read_vector(t, diag, vector, part));
            memcpy(all + k * t->packer.run_rows + at, t->row, (size_t)part->rows * sizeof *all);
        }
        at += part->count > 0 ? part->rows : 0;
    }
    return add_up(t, all, column_count * t->packer.run_rows, diag);
}

static bool is_column(const sbp_prepare *prepare, const char *name) {
    for (int32_t i = 0; name && prepare && i < prepare->column_count; i++)
        if (strcmp(prepare->columns[i], name) == 0)
            return true;
    return false;
}

/* Nobody asks a scoring for losses: what these read of @prepare is 0, or of the data; unless that says which
 * rows may be shared, or which the head computes. */
static sbp_status prepare_scoring(sbp_trainer *t, sbp_diag *diag, const sbp_dataset *data,
                                  const int64_t *rows, int64_t row_count) {
    const sbp_prepare *prepare = t->prepared.prepare;
    set_totals(t, data, rows, row_count);
    if (is_column(prepare, t->packer.counted) || is_column(prepare, sbp_program_counted(t->program)))
        return prepare_data(t, diag, data, rows, row_count);
    t->packer.prepared = NULL;
    return SBP_OK;
}

static sbp_status end_scoring(sbp_trainer *t, sbp_status status) {
    t->packer.prepared = &t->prepared;
    return status;
}

static sbp_status score_rows_of_step(sbp_trainer *t, sbp_diag *diag, const sbp_dataset *data,
                                     const int64_t *rows, int64_t row_count, const sbp_score_column *columns,
                                     int32_t column_count) {
    SBP_TRY(pack_rows(t, diag, data, rows, row_count));
    SBP_TRY(clear_results(t, diag));
    int64_t numbers = column_count * t->packer.run_rows;
    double *all = sbp_malloc((size_t)(numbers + 1) * sizeof *all);
    if (!all)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for the scores of %lld rows",
                        (long long)t->packer.run_rows);
    memset(all, 0, (size_t)(numbers + 1) * sizeof *all);
    sbp_status status = score_parts(t, diag, data, columns, column_count, all);
    for (int32_t k = 0; k < column_count && status == SBP_OK; k++) {
        const double *row = all + k * t->packer.run_rows;
        for (int32_t i = 0; i < t->packer.part_count; i++) {
            put_step(data, &t->packer.parts[i], row, columns[k].values);
            row += t->packer.parts[i].rows;
        }
    }
    free(all);
    return status;
}

sbp_status sbp_trainer_score_step(sbp_trainer *t, sbp_diag *diag, const sbp_dataset *data,
                                  const int64_t *rows, int64_t row_count, const sbp_score_column *columns,
                                  int32_t column_count) {
    int32_t vector;
    know_ranks(t);
    for (int32_t k = 0; k < column_count; k++)
        SBP_TRY(find_vector(t, diag, columns[k].vector, &vector));
    SBP_TRY(prepare_scoring(t, diag, data, rows, row_count));
    return end_scoring(t, score_rows_of_step(t, diag, data, rows, row_count, columns, column_count));
}

/* Micro-batches of all windows, where the objective asks for their number. */
static sbp_status count_parts(scoring *s) {
    int64_t parts = 0;
    if (sbp_program_find_scalar(s->t->program, sbp_scalar_names[SBP_SCALAR_PARTS]) < 0)
        return SBP_OK;
    for (int64_t first = 0, end; first < s->row_count; first = end) {
        end = window_end(s, first);
        int64_t *rows = sbp_malloc((size_t)(end - first) * sizeof *rows);
        for (int64_t k = first; rows && k < end; k++)
            rows[k - first] = row_at(s, k);
        sbp_status status = rows ? sbp_packer_pack(&s->t->packer, s->diag, s->data, rows, end - first)
                                 : sbp_fail(s->diag, SBP_MACHINE, "out of memory for scores");
        free(rows);
        SBP_TRY(status);
        parts += s->t->packer.part_count;
    }
    sbp_executor_set(s->t->executor, SBP_SCALAR_PARTS, parts > 1 ? (double)parts : 1);
    return SBP_OK;
}

/* What the loss reads of all rows, before any is evaluated. */
static sbp_status count_rows(scoring *s) {
    if (!has_entry(s->t->program, SBP_ENTRY_COUNT))
        return SBP_OK;
    s->entry = SBP_ENTRY_COUNT;
    s->t->evaluates = true;
    sbp_status status = score_rows(s);
    s->t->evaluates = false;
    return status == SBP_OK ? add_up_counts(s->t, s->diag) : status;
}

static sbp_status evaluate(scoring *s) {
    sbp_trainer *t = s->t;
    know_ranks(t);
    SBP_TRY(find_vector(t, s->diag, s->visit ? "logp" : NULL, &s->vector));
    SBP_TRY(clear_results(t, s->diag));
    if (s->visit) {
        SBP_TRY(prepare_scoring(t, s->diag, s->data, s->only, s->row_count));
    } else {
        set_totals(t, s->data, s->only, s->row_count);
        SBP_TRY(prepare_data(t, s->diag, s->data, s->only, s->row_count));
    }
    sbp_status status = count_parts(s);
    if (status == SBP_OK && !s->visit)
        status = count_rows(s);
    s->entry = SBP_ENTRY_SCORE;
    if (status == SBP_OK)
        status = score_rows(s);
    SBP_TRY(end_scoring(t, status));
    return read_results(t, s->diag);
}

sbp_status sbp_trainer_evaluate(sbp_trainer *t, sbp_diag *diag, const sbp_dataset *data,
                                sbp_score_visitor visit, void *user) {
    scoring s = {
        .t = t, .diag = diag, .data = data, .visit = visit, .user = user, .row_count = data->row_count};
    return evaluate(&s);
}

sbp_status sbp_trainer_score_rows(sbp_trainer *t, sbp_diag *diag, const sbp_dataset *data,
                                  const int64_t *rows, int64_t row_count, sbp_score_visitor visit,
                                  void *user) {
    scoring s = {.t = t,
                 .diag = diag,
                 .data = data,
                 .visit = visit,
                 .user = user,
                 .only = rows,
                 .row_count = row_count};
    return evaluate(&s);
}
