/* checkpoint.c: writes and reads checkpoints. */
#include "runtime/train/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/ranks/ranks.h"
#include "ir/base/census.h"
#include "ir/base/json_write.h"
#include "runtime/train/checkpoint_state.h"
#include "runtime/train/checksums.h"
#include "runtime/train/pieces.h"

enum { PIECE_ELEMS = 1 << 17 };

/* A tensor of optimizer.safetensors: what has the shape of a parameter, its states, or itself, in the layout
 * of the source; or a buffer as it is. */
typedef struct extra {
    const sbp_tensor_source *source; /* NULL: a buffer as it is */
    const char *suffix;              /* "exp_avg"; of a buffer its name */
    sbp_dtype dtype;
    int32_t rank;
    int64_t elems;
    const int64_t *dim;
    int32_t *buffers; /* per tensor of the source: the buffer, -1: none */
} extra;

typedef struct checkpoint_job {
    sbp_arena *arena;
    sbp_diag *diag;
    sbp_executor *executor;
    const sbp_plan *plan;
    const sbp_plan_info *info;
    const sbp_rundir *directory;  /* while saving: where it goes */
    const char *path;             /* the checkpoint itself */
    const sbp_together *together; /* NULL: this process writes all */
    int32_t rank, ranks;          /* of those that verify */
    sbp_pieces pieces;
    sbp_text sums; /* of the files that this rank writes for the others: an object of entries */
    sbp_json_writer entries;
    char *all_sums; /* the same of all others, members of a list; NULL: there are none */
    sbp_run_state *state;
    sbp_keep keep;
    char temporary[80];     /* its name while it is being written */
    const char *state_text; /* of trainer_state.json */
    sbp_checkpoint_mark mark;
    extra *extras;
    int32_t extra_count, extra_capacity;
    unsigned char *staging; /* [PIECE_ELEMS] doubles */
    sbp_safetensors_writer *writer;
    sbp_weights *weights;
} checkpoint_job;

/* ---- which files are of one checkpoint ---------------------------------------------------------------- */

static sbp_status check_file(const checkpoint_job *job, const char *path) {
    sbp_weights *file;
    SBP_TRY(sbp_weights_open(job->arena, job->diag, path, &file));
    const char *found = sbp_weights_metadata(file, "checkpoint");
    sbp_status status = SBP_OK;
    if (!found)
        status = sbp_fail(job->diag, SBP_INPUT,
                          "'%s' is of no checkpoint, which its metadata would name as '%s'; delete '%s', and "
                          "--resume goes on from the checkpoint before it",
                          path, job->mark.text, job->path);
    else if (strcmp(found, job->mark.text) != 0)
        status = sbp_fail(
            job->diag, SBP_INPUT,
            "'%s' is of another checkpoint than trainer_state.json: its metadata name '%.40s', not '%s' "
            "(a step and a hash of that file); delete '%s', and --resume goes on from the checkpoint before "
            "it",
            path, found, job->mark.text, job->path);
    sbp_weights_close(file);
    return status;
}

/* Each file of weights that was opened is of this checkpoint. */
static sbp_status check_mark(const checkpoint_job *job, const sbp_weights *weights) {
    const char *last = NULL; /* tensors of a file follow one another */
    for (int32_t i = 0; *job->mark.text && i < sbp_weights_count(weights); i++) {
        const char *path = sbp_weights_at(weights, i)->path;
        if (last && strcmp(path, last) == 0)
            continue;
        SBP_TRY(check_file(job, path));
        last = path;
    }
    return SBP_OK;
}

/* ---- what there is besides weights ------------------------------------------------------------------ */

static int32_t tensor_number(const checkpoint_job *job, const sbp_tensor_source *source, int32_t k) {
    return (int32_t)(source->tensors[k] - job->plan->tensors->tensors);
}

static extra *find_extra(checkpoint_job *job, const sbp_tensor_source *source, const char *suffix,
                         sbp_dtype dtype) {
    for (int32_t i = 0; i < job->extra_count; i++)
        if (job->extras[i].source == source && strcmp(job->extras[i].suffix, suffix) == 0)
            return &job->extras[i];
    extra fresh = {.source = source,
                   .suffix = suffix,
                   .dtype = dtype,
                   .rank = source->recipe->rank,
                   .dim = source->recipe->dim,
                   .elems = source->elems};
    fresh.buffers = SBP_NEW_ARRAY(job->arena, int32_t, source->count);
    for (int32_t k = 0; k < source->count; k++)
        fresh.buffers[k] = -1;
    SBP_PUSH(job->arena, job->extras, job->extra_count, job->extra_capacity, fresh);
    return &job->extras[job->extra_count - 1];
}

static void add_buffer(checkpoint_job *job, int32_t buffer) {
    const sbp_buffer *b = &job->plan->program->buffers[buffer];
    extra e = {
        .suffix = b->name, .dtype = b->dtype, .rank = 2, .elems = sbp_executor_elems(job->executor, buffer)};
    int64_t *dim = SBP_NEW_ARRAY(job->arena, int64_t, 2);
    dim[0] = e.elems / b->cols;
    dim[1] = b->cols;
    e.dim = dim;
    e.buffers = SBP_NEW_ARRAY(job->arena, int32_t, 1);
    e.buffers[0] = buffer;
    SBP_PUSH(job->arena, job->extras, job->extra_count, job->extra_capacity, e);
}

/* In the layout of the source, where an element is one of the parameter. */
static void add_extra(checkpoint_job *job, const sbp_tensor_source *source, int32_t k, const char *suffix,
                      int32_t buffer) {
    const sbp_buffer *b = &job->plan->program->buffers[buffer];
    bool of_blocks = !sbp_dtype_is_float(b->dtype) && b->dtype != SBP_I16;
    if (of_blocks || b->count != 1 ||
        sbp_executor_elems(job->executor, buffer) != source->tensors[k]->map.elems) {
        add_buffer(job, buffer);
        return;
    }
    extra *e = find_extra(job, source, suffix, b->dtype);
    if (e->dtype == b->dtype)
        e->buffers[k] = buffer;
    else
        add_buffer(job, buffer);
}

/* Buffers of states and masters are named "<parameter buffer>.<what>". */
static void add_states(checkpoint_job *job, const sbp_tensor_source *source, int32_t k) {
    const sbp_program *p = job->plan->program;
    const char *param = p->buffers[job->plan->buffers[tensor_number(job, source, k)]].name;
    size_t length = strlen(param);
    for (int32_t b = 0; b < p->buffer_count; b++) {
        const char *name = p->buffers[b].name;
        bool kept = p->buffers[b].role == SBP_ROLE_STATE || p->buffers[b].role == SBP_ROLE_MASTER;
        if (kept && strncmp(name, param, length) == 0 && name[length] == '.' &&
            !strchr(name + length + 1, '.'))
            add_extra(job, source, k, name + length + 1, b);
    }
}

static void list_extras(checkpoint_job *job) {
    sbp_tensor_source *sources;
    int32_t count;
    bool adapter = sbp_tensor_table_has_adapter(job->plan->tensors);
    sbp_tensor_table_sources(job->arena, job->plan->tensors, false, &sources, &count);
    for (int32_t i = 0; i < count; i++)
        for (int32_t k = 0; k < sources[i].count; k++) {
            add_states(job, &sources[i], k);
            if (sources[i].tensors[k]->map.changes_values && (!adapter || sources[i].tensors[k]->of_adapter))
                add_extra(job, &sources[i], k, "exact",
                          job->plan->buffers[tensor_number(job, &sources[i], k)]);
        }
}

/* ---- moving them ------------------------------------------------------------------------------------ */

/* Elements of one tensor of an extra, between its buffer and a piece of the source. */
typedef struct mover {
    checkpoint_job *job;
    int32_t buffer;
    sbp_dtype dtype;
    unsigned char *copy; /* all elements of the buffer; NULL: run by run */
    unsigned char *piece;
    int64_t first; /* source index of the piece */
    bool load;
} mover;

static sbp_status move_run(void *user, const sbp_recipe_run *run) {
    mover *m = user;
    int64_t unit = sbp_dtype_bytes(m->dtype);
    unsigned char *piece = m->piece + (run->source - m->first) * unit;
    if (m->copy && m->load)
        memcpy(m->copy + run->target * unit, piece, (size_t)(run->count * unit));
    else if (m->copy)
        memcpy(piece, m->copy + run->target * unit, (size_t)(run->count * unit));
    else if (m->load)
        return sbp_executor_write(m->job->executor, m->buffer, 0, run->target, run->count, m->dtype, piece,
                                  m->job->diag);
    else
        return sbp_executor_read(m->job->executor, m->buffer, 0, run->target, run->count, m->dtype, piece,
                                 m->job->diag);
    return SBP_OK;
}

/* Where elements change places, the whole buffer passes through memory of its size. */
static sbp_status open_mover(mover *m, const sbp_tensor_entry *tensor) {
    if (sbp_recipe_is_one_run(&tensor->map))
        return SBP_OK;
    m->copy = sbp_malloc((size_t)(tensor->map.elems * sbp_dtype_bytes(m->dtype)));
    if (!m->copy)
        return sbp_fail(m->job->diag, SBP_MACHINE, "out of memory for a checkpoint");
    return m->load ? SBP_OK
                   : sbp_executor_read(m->job->executor, m->buffer, 0, 0, tensor->map.elems, m->dtype,
                                       m->copy, m->job->diag);
}

static sbp_status close_mover(mover *m, const sbp_tensor_entry *tensor, sbp_status status) {
    if (status == SBP_OK && m->load && m->copy)
        status = sbp_executor_write(m->job->executor, m->buffer, 0, 0, tensor->map.elems, m->dtype, m->copy,
                                    m->job->diag);
    free(m->copy);
    m->copy = NULL;
    return status;
}

/* All pieces of an extra, one way or the other. */
static sbp_status move_pieces(checkpoint_job *job, const extra *e, mover *movers, const sbp_weight *weight) {
    int64_t unit = sbp_dtype_bytes(e->dtype);
    SBP_CROSS_EITHER(e->source->elems > PIECE_ELEMS, train_checkpoint_pieces, train_checkpoint_piece);
    for (int64_t at = 0; at < e->source->elems; at += PIECE_ELEMS) {
        int64_t count = e->source->elems - at < PIECE_ELEMS ? e->source->elems - at : PIECE_ELEMS;
        if (weight)
            SBP_TRY(sbp_weights_read(job->weights, weight, at, count, e->dtype, job->staging, job->diag));
        if (weight)
            SBP_TRY(sbp_state_check(job->diag, weight, e->suffix, e->dtype, job->staging, count));
        else
            memset(job->staging, 0, (size_t)(count * unit));
        for (int32_t k = 0; k < e->source->count; k++) {
            if (e->buffers[k] < 0)
                continue;
            movers[k].piece = job->staging;
            movers[k].first = at;
            SBP_TRY(
                sbp_recipe_walk_source(&e->source->tensors[k]->map, at, at + count, move_run, &movers[k]));
        }
        if (!weight)
            SBP_TRY(sbp_safetensors_writer_write(job->writer, job->diag, job->staging, count * unit));
    }
    return SBP_OK;
}

/* A buffer as it is. */
static sbp_status move_buffer(checkpoint_job *job, const extra *e, const sbp_weight *weight) {
    SBP_CROSS_EITHER(e->elems > PIECE_ELEMS, train_checkpoint_buffer_pieces, train_checkpoint_buffer_piece);
    for (int64_t at = 0; at < e->elems; at += PIECE_ELEMS) {
        int64_t count = e->elems - at < PIECE_ELEMS ? e->elems - at : PIECE_ELEMS;
        if (!weight) {
            SBP_TRY(sbp_executor_read(job->executor, e->buffers[0], 0, at, count, e->dtype, job->staging,
                                      job->diag));
            SBP_TRY(sbp_safetensors_writer_write(job->writer, job->diag, job->staging,
                                                 count * sbp_dtype_bytes(e->dtype)));
            continue;
        }
        SBP_TRY(sbp_weights_read(job->weights, weight, at, count, e->dtype, job->staging, job->diag));
        SBP_TRY(sbp_state_check(job->diag, weight, e->suffix, e->dtype, job->staging, count));
        SBP_TRY(sbp_executor_write(job->executor, e->buffers[0], 0, at, count, e->dtype, job->staging,
                                   job->diag));
    }
    return SBP_OK;
}

/* weight: where to load from; NULL: save. */
static sbp_status move_extra(checkpoint_job *job, const extra *e, const sbp_weight *weight) {
    if (!e->source)
        return move_buffer(job, e, weight);
    mover *movers = SBP_NEW_ARRAY(job->arena, mover, e->source->count);
    sbp_status status = SBP_OK;
    for (int32_t k = 0; k < e->source->count && status == SBP_OK; k++) {
        movers[k] = (mover){.job = job, .buffer = e->buffers[k], .dtype = e->dtype, .load = weight != NULL};
        if (e->buffers[k] >= 0)
            status = open_mover(&movers[k], e->source->tensors[k]);
    }
    if (status == SBP_OK)
        status = move_pieces(job, e, movers, weight);
    for (int32_t k = 0; k < e->source->count; k++)
        status = close_mover(&movers[k], e->source->tensors[k], status);
    return status;
}

static const char *extra_name(const checkpoint_job *job, const extra *e) {
    return e->source ? sbp_arena_printf(job->arena, "%s.%s", e->source->recipe->source, e->suffix)
                     : e->suffix;
}

/* The buffers of what there is, by names of their own. */
static void list_pieces(checkpoint_job *job) {
    const sbp_program *program = job->plan->program;
    sbp_kept_buffer *list = NULL;
    int32_t count = 0, capacity = 0;
    for (int32_t i = 0; i < job->extra_count; i++) {
        const extra *e = &job->extras[i];
        for (int32_t k = 0; k < (e->source ? e->source->count : 1); k++) {
            if (e->buffers[k] < 0)
                continue;
            const char *name = program->buffers[e->buffers[k]].name;
            if (e->source && strcmp(e->suffix, "exact") == 0)
                name = sbp_arena_printf(job->arena, "%s.exact", name);
            SBP_PUSH(job->arena, list, count, capacity, (sbp_kept_buffer){name, e->buffers[k]});
        }
    }
    job->pieces = (sbp_pieces){.arena = job->arena,
                               .diag = job->diag,
                               .executor = job->executor,
                               .directory = job->path,
                               .checkpoint = job->mark.text,
                               .list = list,
                               .count = count};
}

static sbp_status save_pieces(checkpoint_job *job) {
    const char *name;
    list_extras(job);
    list_pieces(job);
    SBP_TRY(sbp_pieces_save(&job->pieces, job->together->rank, job->together->count, &name));
    return name && job->together->rank > 0
               ? sbp_checksums_add(job->arena, job->diag, job->path, name, &job->entries)
               : SBP_OK;
}

static sbp_status save_extras(checkpoint_job *job) {
    list_extras(job);
    if (job->extra_count == 0)
        return SBP_OK;
    sbp_tensor_spec *specs = SBP_NEW_ARRAY(job->arena, sbp_tensor_spec, job->extra_count);
    for (int32_t i = 0; i < job->extra_count; i++)
        specs[i] = (sbp_tensor_spec){.name = extra_name(job, &job->extras[i]),
                                     .dtype = job->extras[i].dtype,
                                     .rank = job->extras[i].rank,
                                     .dim = job->extras[i].dim};
    const sbp_key_value mark = {"checkpoint", job->mark.text};
    SBP_TRY(sbp_safetensors_writer_create(job->arena, job->diag,
                                          sbp_file_join(job->arena, job->path, "optimizer.safetensors"),
                                          specs, job->extra_count, &mark, 1, 0, &job->writer));
    for (int32_t i = 0; i < job->extra_count; i++)
        SBP_TRY(move_extra(job, &job->extras[i], NULL));
    return sbp_safetensors_writer_commit(job->writer, job->diag);
}

/* What the run kept and the plan does not would be lost without a word. */
static sbp_status check_known(const checkpoint_job *job) {
    sbp_map known;
    sbp_map_init(&known, job->arena);
    for (int32_t i = 0; i < job->extra_count; i++)
        sbp_map_set(&known, extra_name(job, &job->extras[i]), i);
    for (int32_t i = 0; i < sbp_weights_count(job->weights); i++) {
        const sbp_weight *weight = sbp_weights_at(job->weights, i);
        if (sbp_map_get(&known, weight->name) < 0)
            return sbp_fail(
                job->diag, SBP_INPUT,
                "%s: optimizer.safetensors has '%.200s' as %s, this plan keeps nothing of that name: "
                "it must keep weights and states in the types of the run that is to go on",
                job->path, weight->name, weight->encoding);
    }
    return SBP_OK;
}

static bool has_shape(const sbp_weight *weight, const extra *e) {
    return weight->rank == e->rank && memcmp(weight->dim, e->dim, (size_t)e->rank * sizeof *e->dim) == 0;
}

static sbp_status load_extra(checkpoint_job *job, const extra *e) {
    const char *name = extra_name(job, e), *wanted = sbp_safetensors_dtype(e->dtype);
    const sbp_weight *weight = sbp_weights_find(job->weights, name);
    if (!weight)
        return sbp_fail(
            job->diag, SBP_INPUT,
            "%s: optimizer.safetensors has no '%.200s', which this plan keeps as %s: it must keep "
            "weights and states in the types of the run that is to go on",
            job->path, name, wanted);
    if (weight->elems == e->elems && !has_shape(weight, e))
        return sbp_fail(
            job->diag, SBP_INPUT,
            "%s: '%.200s' in optimizer.safetensors has the elements of the parameter, but not its shape",
            job->path, name);
    if (weight->elems != e->elems || strcmp(weight->encoding, wanted) != 0)
        return sbp_fail(
            job->diag, SBP_INPUT,
            "%s: optimizer.safetensors has '%.200s' as %s, %lld elements; this plan keeps it as %s, "
            "%lld elements: it must keep weights and states in the types of the run that is to go on",
            job->path, name, weight->encoding, (long long)weight->elems, wanted, (long long)e->elems);
    return move_extra(job, e, weight);
}

static sbp_status load_extras(checkpoint_job *job) {
    const char *path = sbp_file_join(job->arena, job->path, "optimizer.safetensors");
    list_extras(job);
    if (sbp_pieces_exist(job->arena, job->path)) {
        list_pieces(job);
        SBP_TRY(sbp_pieces_open(&job->pieces));
        SBP_TRY(check_mark(job, job->pieces.files));
        return sbp_pieces_load(&job->pieces);
    }
    if (job->extra_count == 0 && !sbp_file_exists(path))
        return SBP_OK;
    SBP_TRY(sbp_weights_open(job->arena, job->diag, path, &job->weights));
    SBP_TRY(check_mark(job, job->weights));
    for (int32_t i = 0; i < job->extra_count; i++)
        SBP_TRY(load_extra(job, &job->extras[i]));
    return check_known(job);
}

/* ---- the batch at hand ------------------------------------------------------------------------------- */

#define BATCH "batch.safetensors"

void sbp_kept_release(sbp_run_state *state) {
    for (int32_t k = 0; k < state->kept_count; k++)
        free(state->kept[k].values);
    state->kept_count = 0;
}

static sbp_status save_kept(checkpoint_job *job) {
    const sbp_run_state *s = job->state;
    sbp_tensor_spec specs[SBP_MOST_KEPT];
    if (s->inner == 0 || s->kept_count == 0)
        return SBP_OK;
    for (int32_t k = 0; k < s->kept_count; k++)
        specs[k] = (sbp_tensor_spec){s->kept[k].name, SBP_F64, 1, &s->kept[k].count};
    const sbp_key_value mark = {"checkpoint", job->mark.text};
    SBP_TRY(sbp_safetensors_writer_create(job->arena, job->diag, sbp_file_join(job->arena, job->path, BATCH),
                                          specs, s->kept_count, &mark, 1, 0, &job->writer));
    for (int32_t k = 0; k < s->kept_count; k++)
        SBP_TRY(sbp_safetensors_writer_write(job->writer, job->diag, s->kept[k].values,
                                             s->kept[k].count * (int64_t)sizeof(double)));
    return sbp_safetensors_writer_commit(job->writer, job->diag);
}

static sbp_status load_one_kept(const checkpoint_job *job, const sbp_weights *file, const sbp_weight *weight,
                                sbp_kept *out) {
    *out = (sbp_kept){.values = sbp_malloc((size_t)(weight->elems + 1) * sizeof(double)),
                      .count = weight->elems};
    snprintf(out->name, sizeof out->name, "%s", weight->name);
    if (!out->values)
        return sbp_fail(job->diag, SBP_MACHINE, "out of memory for a checkpoint");
    return sbp_weights_read(file, weight, 0, weight->elems, SBP_F64, out->values, job->diag);
}

static sbp_status load_kept(checkpoint_job *job) {
    const char *path = sbp_file_join(job->arena, job->path, BATCH);
    sbp_run_state *s = job->state;
    sbp_weights *file;
    sbp_status status = SBP_OK;
    sbp_kept_release(s);
    if (s->inner == 0 || !sbp_file_exists(path))
        return SBP_OK;
    SBP_TRY(sbp_weights_open(job->arena, job->diag, path, &file));
    status = check_mark(job, file);
    for (int32_t i = 0; i < sbp_weights_count(file) && i < SBP_MOST_KEPT && status == SBP_OK; i++)
        status = load_one_kept(job, file, sbp_weights_at(file, i), &s->kept[s->kept_count++]);
    sbp_weights_close(file);
    return status;
}

/* ---- trainer_state.json ----------------------------------------------------------------------------- */

static sbp_status save_state(const checkpoint_job *job) {
    return sbp_file_write(job->diag, sbp_file_join(job->arena, job->path, SBP_RUNDIR_CHECKPOINT),
                          job->state_text, strlen(job->state_text));
}

static sbp_status load_state(checkpoint_job *job) {
    sbp_kept_release(job->state);
    return sbp_checkpoint_state_read(job->arena, job->diag, job->path, job->state, &job->mark);
}

/* ---- directories ------------------------------------------------------------------------------------ */

const char *sbp_checkpoint_find(sbp_arena *arena, const sbp_rundir *directory) {
    int64_t step = sbp_rundir_newest(directory, INT64_MAX);
    return step < 0 ? NULL : sbp_arena_printf(arena, "%s/checkpoint-%lld", directory->path, (long long)step);
}

/* All but those that are kept. */
static void remove_old(const checkpoint_job *job) {
    int64_t *steps = NULL;
    int32_t count = 0, capacity = 0;
    for (int64_t step = job->state->step + 1; (step = sbp_rundir_newest(job->directory, step)) >= 0;)
        SBP_PUSH(job->arena, steps, count, capacity, step);
    bool *goes = SBP_NEW_ARRAY(job->arena, bool, count + 1);
    sbp_best_discards(steps, count, job->keep.count, job->keep.best, goes);
    for (int32_t i = 0; i < count; i++) {
        int error = goes[i] ? sbp_rundir_discard(job->directory, steps[i]) : 0;
        if (error)
            sbp_warn(job->diag, "cannot remove '%s/checkpoint-%lld', which --keep %lld does not count: %s",
                     job->directory->path, (long long)steps[i], (long long)job->keep.count,
                     sbp_rundir_error(error));
    }
}

static sbp_status sync_directory(sbp_diag *diag, const char *path) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool synced = fd >= 0 && fsync(fd) == 0;
    if (fd >= 0)
        close(fd);
    return synced ? SBP_OK : sbp_fail(diag, SBP_IO, "cannot sync '%s': %s", path, strerror(errno));
}

/* ---- the whole -------------------------------------------------------------------------------------- */

static bool is_first(const checkpoint_job *job) {
    return !job->together || job->together->rank == 0;
}

static sbp_status agree(const checkpoint_job *job, sbp_status status) {
    return job->together ? job->together->agree(job->together->user, status) : status;
}

static sbp_status prepare_body(void *user) {
    checkpoint_job *job = user;
    if (!job->together)
        job->staging = sbp_arena_array(job->arena, PIECE_ELEMS, sizeof(double));
    sbp_text_init(&job->sums, job->arena);
    job->entries = sbp_json_writer_on(&job->sums);
    job->path = sbp_arena_printf(job->arena, "%s/%s", job->directory->path, job->temporary);
    job->state_text = sbp_checkpoint_state_text(job->arena, job->state, &job->mark);
    if (is_first(job) && mkdir(job->path, 0777) != 0)
        return sbp_fail(job->diag, SBP_IO, "cannot create '%s': %s", job->path, strerror(errno));
    return SBP_OK;
}

static sbp_status write_body(void *user) {
    checkpoint_job *job = user;
    SBP_TRY(sbp_output_save_model(job->diag, job->executor, job->plan, job->info, job->path, job->mark.text));
    SBP_TRY(save_extras(job));
    SBP_TRY(save_kept(job));
    return save_state(job);
}

/* What this rank writes, and the checksums of that. */
static sbp_status write_part_body(void *user) {
    checkpoint_job *job = user;
    const sbp_together *t = job->together;
    sbp_output_part part = {.rank = t->rank, .ranks = t->count, .checkpoint = job->mark.text};
    sbp_json_write_object(&job->entries, NULL);
    SBP_TRY(sbp_output_save_part(job->diag, job->executor, job->plan, job->info, job->path, &part));
    for (int32_t i = t->rank; t->rank > 0 && i < part.shard_count; i += t->count) {
        const char *name = sbp_params_shard_path(job->arena, "model.safetensors", i, part.shard_count);
        SBP_TRY(sbp_checksums_add(job->arena, job->diag, job->path, name, &job->entries));
    }
    SBP_TRY(save_pieces(job));
    sbp_json_write_end(&job->entries);
    if (t->rank > 0)
        return SBP_OK;
    SBP_TRY(save_kept(job));
    return save_state(job);
}

static sbp_status publish_body(void *user) {
    checkpoint_job *job = user;
    const char *at = job->directory->path;
    const char *name = sbp_arena_printf(job->arena, "checkpoint-%lld", (long long)job->state->step);
    const sbp_json *known = NULL;
    if (job->all_sums) {
        const char *text = sbp_arena_printf(job->arena, "[%s]", job->all_sums);
        SBP_TRY(sbp_json_parse(job->arena, job->diag, "checksums", text, strlen(text), 0, &known));
        SBP_TRY(sbp_json_as_array(job->diag, known, &known));
    }
    SBP_TRY(sbp_checksums_write(job->arena, job->diag, job->path, known));
    SBP_TRY(sync_directory(job->diag, job->path));
    int error = sbp_rundir_discard(job->directory, job->state->step);
    if (error)
        return sbp_fail(job->diag, SBP_IO, "cannot replace '%s/%s': %s", at, name, sbp_rundir_error(error));
    error = sbp_rundir_rename(job->directory, job->temporary, name);
    if (error)
        return sbp_fail(job->diag, SBP_IO, "cannot rename '%s' to '%s/%s': %s", job->path, at, name,
                        strerror(error));
    SBP_TRY(sync_directory(job->diag, at));
    remove_old(job);
    return SBP_OK;
}

static sbp_status run_job(checkpoint_job *job, sbp_status (*body)(void *user)) {
    if (!job->arena)
        job->arena = sbp_arena_create();
    if (!job->arena)
        return sbp_fail(job->diag, SBP_MACHINE, "out of memory for a checkpoint");
    sbp_status status = sbp_guard(job->arena, job->diag, body, job);
    sbp_safetensors_writer_abort(job->writer);
    sbp_weights_close(job->weights);
    sbp_pieces_close(&job->pieces);
    job->writer = NULL;
    job->weights = NULL;
    job->pieces = (sbp_pieces){0};
    return status;
}

static sbp_status send_sums(checkpoint_job *job, const double *lengths) {
    const sbp_together *t = job->together;
    char *at = job->all_sums;
    for (int32_t rank = 1; rank < t->count; rank++) {
        int64_t length = (int64_t)lengths[rank];
        if (at && rank > 1)
            *at++ = ',';
        sbp_ranks_piece mine = {0, job->sums.data, length}, theirs = {rank, at, length};
        SBP_TRY(sbp_ranks_swap(t->ranks, &mine, t->rank == rank, &theirs, t->rank == 0, job->diag));
        at += t->rank == 0 ? length : 0;
    }
    if (t->rank == 0 && at)
        *at = 0;
    return SBP_OK;
}

/* What the other ranks say of their files, to rank 0. */
static sbp_status gather_sums(checkpoint_job *job) {
    const sbp_together *t = job->together;
    double *lengths = sbp_malloc((size_t)t->count * sizeof *lengths), all = 0;
    sbp_status status = lengths ? SBP_OK : sbp_fail(job->diag, SBP_MACHINE, "out of memory for a checkpoint");
    status = agree(job, status);
    if (!lengths) /* then it has failed for all */
        return status;
    if (status == SBP_OK) {
        memset(lengths, 0, (size_t)t->count * sizeof *lengths);
        lengths[t->rank] = (double)job->sums.length;
        status = sbp_ranks_all_reduce(t->ranks, lengths, t->count, SBP_F64, job->diag);
    }
    for (int32_t rank = 0; status == SBP_OK && rank < t->count; rank++)
        all += lengths[rank] + 1;
    if (status == SBP_OK && t->rank == 0 && !(job->all_sums = sbp_malloc((size_t)all + 1)))
        status = sbp_fail(job->diag, SBP_MACHINE, "out of memory for a checkpoint");
    status = agree(job, status);
    if (status == SBP_OK)
        status = send_sums(job, lengths);
    free(lengths);
    return status;
}

/* Its own part, by every rank; then they know of all files. */
static sbp_status write_together(checkpoint_job *job) {
    sbp_status status = run_job(job, write_part_body),
               end = sbp_executor_finish_reading(job->executor, job->diag);
    SBP_TRY(agree(job, status != SBP_OK ? status : end));
    return gather_sums(job);
}

/* The number in the temporary name is that of rank 0. */
static sbp_status name_temporary(checkpoint_job *job) {
    int64_t pid = (int64_t)getpid();
    if (job->together)
        SBP_TRY(sbp_ranks_broadcast(job->together->ranks, &pid, 1, SBP_I64, 0, job->diag));
    snprintf(job->temporary, sizeof job->temporary, SBP_RUNDIR_TEMPORARY "%lld-%lld",
             (long long)job->state->step, (long long)pid);
    return SBP_OK;
}

static sbp_status save(checkpoint_job *job) {
    SBP_TRY(name_temporary(job));
    sbp_status status = agree(job, run_job(job, prepare_body));
    if (status == SBP_OK && job->together) /* rank 0 writes the state */
        status = sbp_ranks_broadcast(job->together->ranks, &job->mark, sizeof job->mark / sizeof(int64_t),
                                     SBP_I64, 0, job->diag);
    if (status == SBP_OK)
        status = job->together ? write_together(job) : run_job(job, write_body);
    if (status == SBP_OK)
        status = agree(job, is_first(job) ? run_job(job, publish_body) : SBP_OK);
    if (status != SBP_OK && is_first(job))
        sbp_rundir_remove(job->directory, job->temporary);
    return status;
}

sbp_status sbp_checkpoint_save(sbp_diag *diag, sbp_executor *executor, const sbp_plan *plan,
                               const sbp_plan_info *info, const sbp_rundir *directory,
                               const sbp_run_state *state, sbp_keep keep, const sbp_together *together) {
    sbp_run_state copy = *state;
    checkpoint_job job = {.diag = diag,
                          .executor = executor,
                          .plan = plan,
                          .info = info,
                          .directory = directory,
                          .state = &copy,
                          .keep = keep,
                          .together = together};
    sbp_status status = save(&job);
    free(job.all_sums);
    sbp_arena_destroy(job.arena);
    return status;
}

static sbp_status load_body(void *user) {
    checkpoint_job *job = user;
    sbp_weights *weights;
    job->staging = sbp_arena_array(job->arena, PIECE_ELEMS, sizeof(double));
    SBP_TRY(load_state(job));
    SBP_TRY(load_kept(job));
    bool adapter = sbp_tensor_table_has_adapter(job->plan->tensors);
    const char *file = sbp_file_join(job->arena, job->path, "adapter_model.safetensors");
    SBP_TRY(sbp_weights_open(job->arena, job->diag, adapter ? file : job->path, &weights));
    sbp_status status = check_mark(job, weights);
    if (status == SBP_OK)
        status = adapter ? sbp_params_load_adapter(job->executor, job->plan, weights, job->diag)
                         : sbp_params_load_trained(job->executor, job->plan, weights, job->diag);
    sbp_weights_close(weights);
    return status == SBP_OK ? load_extras(job) : status;
}

static sbp_status verify_body(void *user) {
    checkpoint_job *job = user;
    return sbp_checksums_verify(job->arena, job->diag, job->path, job->rank, job->ranks);
}

sbp_status sbp_checkpoint_verify(sbp_diag *diag, const char *path, int32_t rank, int32_t ranks) {
    checkpoint_job job = {.diag = diag, .path = path, .rank = rank, .ranks = ranks};
    sbp_status status = run_job(&job, verify_body);
    sbp_arena_destroy(job.arena);
    return status;
}

sbp_status sbp_checkpoint_load(sbp_diag *diag, sbp_executor *executor, const sbp_plan *plan, const char *path,
                               sbp_run_state *state) {
    checkpoint_job job = {.diag = diag, .executor = executor, .plan = plan, .path = path, .state = state};
    sbp_status status = run_job(&job, load_body);
    sbp_arena_destroy(job.arena);
    return status;
}
