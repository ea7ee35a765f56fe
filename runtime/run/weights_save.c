/* weights_save.c: parameters and gradients back under the names and layouts of their sources. */
#include "runtime/run/weights_internal.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "frontends/formats/weights/safetensors.h"
#include "ir/base/census.h"

enum { PIECE_ELEMS = 1 << 16 };

/* Reads elements of what is being saved. */
typedef sbp_status (*element_reader)(void *user, int32_t tensor, int64_t first, int64_t count,
                                     sbp_dtype dtype, void *out, sbp_diag *diag);

/* The elements of one tensor, ready to be put where the source has them. */
typedef struct part {
    const sbp_tensor_entry *tensor;
    int32_t index;
    element_reader read;
    void *user;
    sbp_diag *diag;
    sbp_dtype dtype;     /* F64 or F32 */
    unsigned char *copy; /* all elements, where they change places; else NULL: read run by run */
    bool save_values;    /* undo what the recipe did to values (weights, not gradients) */
    /* the piece of the source that is being put together */
    int64_t first;
    unsigned char *out;
} part;

static sbp_status open_part(part *p) {
    p->copy = NULL;
    if (sbp_recipe_is_one_run(&p->tensor->map))
        return SBP_OK;
    int64_t elems = p->tensor->map.elems;
    p->copy = sbp_malloc((size_t)(elems * sbp_dtype_bytes(p->dtype)));
    if (!p->copy)
        return sbp_fail(p->diag, SBP_MACHINE, "out of memory while saving '%.200s'",
                        p->tensor->recipes[0].source);
    for (int64_t at = 0; at < elems; at += PIECE_ELEMS)
        SBP_TRY(p->read(p->user, p->index, at, elems - at < PIECE_ELEMS ? elems - at : PIECE_ELEMS, p->dtype,
                        p->copy + at * sbp_dtype_bytes(p->dtype), p->diag));
    return SBP_OK;
}

static sbp_status put_run(void *user, const sbp_recipe_run *run) {
    part *p = user;
    int64_t unit = sbp_dtype_bytes(p->dtype);
    unsigned char *out = p->out + (run->source - p->first) * unit;
    if (p->copy)
        memcpy(out, p->copy + run->target * unit, (size_t)(run->count * unit));
    else
        SBP_TRY(p->read(p->user, p->index, run->target, run->count, p->dtype, out, p->diag));
    if (p->save_values && p->tensor->map.changes_values)
        for (int64_t k = 0; k < run->count; k++)
            sbp_element_set(out, p->dtype, k,
                            sbp_recipe_save_value(&p->tensor->recipes[0], sbp_element_get(out, p->dtype, k)));
    return SBP_OK;
}

/* Puts the tensor's elements of source range [first, first + count) into out. */
static sbp_status put_part(part *p, int64_t first, int64_t count, void *out) {
    p->first = first;
    p->out = out;
    return sbp_recipe_walk_source(&p->tensor->map, first, first + count, put_run, p);
}

/* ---- saving parameters ------------------------------------------------------------------------------ */

typedef struct saver {
    sbp_arena *arena;
    sbp_executor *x;
    const sbp_plan *plan;
    const char *path;
    const sbp_save_options *options;
    sbp_diag *diag;
    sbp_dtype to;               /* of the tensor that is being written */
    sbp_tensor_source *sources; /* those of no tensors are carried */
    int32_t source_count;
    sbp_weights *carried; /* open, where there are such */
    sbp_safetensors_writer *writer;
    void *staging, *converted; /* [PIECE_ELEMS] doubles */
} saver;

/* What a parameter's two halves are together. */
static sbp_status read_halves(sbp_executor *x, const sbp_plan *plan, int32_t tensor, int64_t first,
                              int64_t count, sbp_dtype dtype, void *out, sbp_diag *diag) {
    enum { PART = 1 << 14 }; /* not too small: a read of shares is a message */
    uint16_t high[PART];
    int16_t low[PART];
    for (int64_t at = 0; at < count; at += PART) {
        int64_t n = count - at < PART ? count - at : PART;
        SBP_TRY(sbp_executor_read(x, plan->buffers[tensor], 0, first + at, n, SBP_BF16, high, diag));
        SBP_TRY(sbp_executor_read(x, plan->masters[tensor], 0, first + at, n, SBP_I16, low, diag));
        for (int64_t k = 0; k < n; k++)
            sbp_element_set(out, dtype, at + k, (double)sbp_f32_join(high[k], low[k]));
    }
    return SBP_OK;
}

/* The numbers that blocks stand for. */
static sbp_status read_packed(sbp_executor *x, const sbp_plan *plan, int32_t tensor, int64_t first,
                              int64_t count, sbp_dtype dtype, void *out, sbp_diag *diag) {
    enum { BLOCKS = 32 };
    const sbp_format_info *f = sbp_format_of(plan->tensors->tensors[tensor].format);
    float values[BLOCKS * SBP_FORMAT_LARGEST_BLOCK];
    _Alignas(8) unsigned char bytes[SBP_MAX_FORMAT_PARTS][BLOCKS * SBP_FORMAT_LARGEST_BLOCK];
    const void *parts[SBP_MAX_FORMAT_PARTS];
    for (int64_t done = 0; done < count;) {
        int64_t block = (first + done) / f->block, skip = (first + done) % f->block;
        int64_t blocks = sbp_ceil_div(skip + count - done, f->block);
        blocks = blocks < BLOCKS ? blocks : BLOCKS;
        for (int32_t k = 0; k < f->part_count; k++) {
            parts[k] = bytes[k];
            SBP_TRY(sbp_executor_read(x, plan->parts[tensor][k], 0, block * f->parts[k].count,
                                      blocks * f->parts[k].count, f->parts[k].dtype, bytes[k], diag));
        }
        sbp_format_decode(plan->decoders[plan->tensors->tensors[tensor].format], parts, blocks, values);
        int64_t n = blocks * f->block - skip < count - done ? blocks * f->block - skip : count - done;
        for (int64_t k = 0; k < n; k++)
            sbp_element_set(out, dtype, done + k, (double)values[skip + k]);
        done += n;
    }
    return SBP_OK;
}

sbp_status sbp_params_read(sbp_executor *x, const sbp_plan *plan, int32_t tensor, bool high_half,
                           int64_t first, int64_t count, sbp_dtype dtype, void *out, sbp_diag *diag) {
    if (plan->tensors->tensors[tensor].format)
        return read_packed(x, plan, tensor, first, count, dtype, out, diag);
    if (plan->masters[tensor] >= 0 && !high_half)
        return read_halves(x, plan, tensor, first, count, dtype, out, diag);
    return sbp_executor_read(x, plan->buffers[tensor], 0, first, count, dtype, out, diag);
}

/* A file in bf16 has the high half, which is the weight that the model computes with. */
static sbp_status read_buffer(void *user, int32_t tensor, int64_t first, int64_t count, sbp_dtype dtype,
                              void *out, sbp_diag *diag) {
    const saver *s = user;
    return sbp_params_read(s->x, s->plan, tensor, s->to == SBP_BF16, first, count, dtype, out, diag);
}

/* Specs of safetensors for the tensors of the sources; dtype SBP_DTYPE_COUNT: their own. */
static sbp_tensor_spec *make_specs(sbp_arena *arena, const sbp_tensor_source *sources, int32_t count,
                                   sbp_dtype dtype, int32_t *spec_count) {
    sbp_tensor_spec *specs = NULL;
    int32_t capacity = 0;
    *spec_count = 0;
    for (int32_t k = 0; k < count; k++) {
        const sbp_recipe *recipe = sources[k].recipe;
        int32_t outer = recipe->stacked ? 1 : 0; /* axes that are no tensor's own */
        for (int64_t t = 0; t < sbp_recipe_tensors(recipe); t++)
            SBP_PUSH(arena, specs, *spec_count, capacity,
                     (sbp_tensor_spec){
                         .name = sbp_recipe_tensor_name(arena, recipe, t),
                         .dtype = dtype == SBP_DTYPE_COUNT || sources[k].count == 0 ? recipe->dtype : dtype,
                         .rank = recipe->rank - outer,
                         .dim = recipe->dim + outer});
    }
    return specs;
}

static const sbp_key_value default_metadata = {"format", "pt"};

/* Numbers as the file has them. What is finite stays so: fp16 ends at 65504. */
static sbp_status convert(const saver *s, const sbp_tensor_source *source, sbp_dtype staged, sbp_dtype dtype,
                          int64_t count) {
    for (int64_t k = 0; k < count; k++) {
        double value = sbp_element_get(s->staging, staged, k);
        sbp_element_set(s->converted, dtype, k, value);
        if (dtype == SBP_F16 && isfinite(value) && !isfinite(sbp_element_get(s->converted, dtype, k)))
            return sbp_fail(s->diag, SBP_INPUT,
                            "'%.200s' has the number %g, which fp16 cannot hold: take bf16",
                            source->recipe->source, value);
    }
    return SBP_OK;
}

static sbp_status save_pieces(saver *s, const sbp_tensor_source *source, part *parts, sbp_dtype dtype) {
    sbp_dtype staged = dtype == SBP_F64 ? SBP_F64 : SBP_F32;
    SBP_CROSS_EITHER(source->elems > PIECE_ELEMS, run_save_pieces, run_save_piece);
    for (int64_t at = 0; at < source->elems; at += PIECE_ELEMS) {
        int64_t count = source->elems - at < PIECE_ELEMS ? source->elems - at : PIECE_ELEMS;
        memset(s->staging, 0, (size_t)(count * sbp_dtype_bytes(staged)));
        for (int32_t k = 0; k < source->count; k++)
            SBP_TRY(put_part(&parts[k], at, count, s->staging));
        const void *out = s->staging;
        if (dtype != staged) {
            SBP_TRY(convert(s, source, staged, dtype, count));
            out = s->converted;
        }
        SBP_TRY(sbp_safetensors_writer_write(s->writer, s->diag, out, count * sbp_dtype_bytes(dtype)));
    }
    return SBP_OK;
}

static sbp_dtype dtype_of(const saver *s, const sbp_tensor_source *source) {
    return s->options->own_dtype || source->count == 0 ? source->recipe->dtype : s->options->dtype;
}

/* One that is carried: as its file has it. */
static sbp_status copy_carried(saver *s, const sbp_tensor_source *source) {
    const sbp_weight *w = sbp_weights_find(s->carried, source->recipe->source);
    for (int64_t at = 0; at < source->elems; at += PIECE_ELEMS) {
        int64_t count = source->elems - at < PIECE_ELEMS ? source->elems - at : PIECE_ELEMS;
        SBP_TRY(sbp_weights_read(s->carried, w, at, count, w->dtype, s->staging, s->diag));
        SBP_TRY(
            sbp_safetensors_writer_write(s->writer, s->diag, s->staging, count * sbp_dtype_bytes(w->dtype)));
    }
    return SBP_OK;
}

static sbp_status save_source(saver *s, const sbp_tensor_source *source) {
    const sbp_save_options *o = s->options;
    sbp_dtype dtype = dtype_of(s, source);
    if (source->count == 0)
        return copy_carried(s, source);
    part *parts = SBP_NEW_ARRAY(s->arena, part, source->count);
    s->to = dtype;
    sbp_status status = SBP_OK;
    for (int32_t k = 0; k < source->count && status == SBP_OK; k++) {
        parts[k] = (part){.tensor = source->tensors[k],
                          .index = (int32_t)(source->tensors[k] - s->plan->tensors->tensors),
                          .read = o->read ? o->read : read_buffer,
                          .user = o->read ? o->read_user : s,
                          .diag = s->diag,
                          .dtype = dtype == SBP_F64 ? SBP_F64 : SBP_F32,
                          .save_values = true};
        status = open_part(&parts[k]);
    }
    if (status == SBP_OK)
        status = save_pieces(s, source, parts, dtype);
    for (int32_t k = 0; k < source->count; k++)
        free(parts[k].copy);
    return status;
}

/* What a parameter was read from, where that is tensors with names of their own; NULL. */
static const sbp_weight *find_codes(const sbp_weights *weights, const sbp_tensor_entry *tensor) {
    const sbp_weight *w = NULL;
    for (int32_t k = 0; k < tensor->recipe_count && !w; k++)
        w = sbp_weights_find(weights, tensor->recipes[k].source);
    for (int32_t k = 0; k < tensor->alias_count && !w; k++)
        w = sbp_weights_find(weights, tensor->aliases[k]);
    return w && w->codes ? w : NULL;
}

/* Whether codes become numbers: where an adapter is merged into some, and where a parameter has numbers of
 * which the file has codes. */
static bool writes_numbers(const saver *s) {
    const sbp_tensor_table *table = s->plan->tensors;
    bool numbers = s->options->part == SBP_SAVE_MERGED && sbp_params_merge_base(s->plan);
    for (int32_t t = 0; t < table->count; t++)
        numbers |= !table->tensors[t].format && find_codes(s->carried, &table->tensors[t]);
    return numbers;
}

/* Leaves out what is kept in blocks: all of it, or what `in` has in two tensors. */
static void leave_base(saver *s, const sbp_weights *in) {
    int32_t kept = 0;
    for (int32_t i = 0; i < s->source_count; i++) {
        bool base = true;
        for (int32_t k = 0; k < s->sources[i].count; k++)
            base &= s->sources[i].tensors[k]->format != SBP_FORMAT_NONE &&
                    (!in || find_codes(in, s->sources[i].tensors[k]) != NULL);
        if (!base)
            s->sources[kept++] = s->sources[i];
    }
    s->source_count = kept;
}

/* Opens what is carried and adds its tensors that no parameter is read from. */
static sbp_status add_carried(saver *s) {
    const sbp_tensor_table *table = s->plan->tensors;
    sbp_map used;
    sbp_map_init(&used, s->arena);
    SBP_TRY(sbp_weights_open(s->arena, s->diag, s->options->carried, &s->carried));
    bool numbers = writes_numbers(s);
    for (int32_t t = 0; t < table->count; t++) {
        for (int32_t k = 0; k < table->tensors[t].recipe_count; k++) {
            const sbp_recipe *recipe = &table->tensors[t].recipes[k];
            for (int64_t i = 0; i < sbp_recipe_tensors(recipe); i++)
                sbp_map_set(&used, sbp_recipe_tensor_name(s->arena, recipe, i), 1);
        }
        for (int32_t k = 0; k < table->tensors[t].alias_count; k++)
            sbp_map_set(&used, table->tensors[t].aliases[k], 1);
        const sbp_weight *pair = find_codes(s->carried, &table->tensors[t]);
        bool stays = table->tensors[t].format && !s->options->without_base && !numbers;
        if (pair && !stays) /* written as numbers, or not at all */
            sbp_weight_add_names(pair, &used);
    }
    if (!numbers)
        leave_base(s, s->carried);
    int32_t more = sbp_weights_count(s->carried);
    sbp_tensor_source *all = SBP_NEW_ARRAY(s->arena, sbp_tensor_source, s->source_count + more);
    memcpy(all, s->sources, (size_t)s->source_count * sizeof *all);
    s->sources = all;
    for (int32_t i = 0; i < more; i++) {
        const sbp_weight *w = sbp_weights_at(s->carried, i);
        if (sbp_map_get(&used, w->name) >= 0)
            continue;
        if (!w->readable || w->quantized || w->rank > SBP_MAX_RANK)
            return sbp_fail(s->diag, SBP_INPUT,
                            "%s: tensor '%.200s' is %s of %d axes, which cannot be carried", w->path, w->name,
                            w->encoding, (int)w->rank);
        sbp_recipe *recipe = SBP_NEW(s->arena, sbp_recipe);
        *recipe = (sbp_recipe){.source = w->name, .dtype = w->dtype, .rank = w->rank};
        memcpy(recipe->dim, w->dim, (size_t)w->rank * sizeof *w->dim);
        s->sources[s->source_count++] = (sbp_tensor_source){.recipe = recipe, .elems = w->elems};
    }
    return SBP_OK;
}

/* Sources first .. first + count - 1, in one file, or cut at max_shard_bytes. */
static sbp_status save_sources(saver *s, const char *path, int32_t first, int32_t count,
                               int64_t max_shard_bytes) {
    const sbp_save_options *o = s->options;
    int32_t spec_count;
    sbp_tensor_spec *specs = make_specs(s->arena, s->sources + first, count,
                                        o->own_dtype ? SBP_DTYPE_COUNT : o->dtype, &spec_count);
    SBP_TRY(sbp_safetensors_writer_create(s->arena, s->diag, path, specs, spec_count,
                                          o->metadata ? o->metadata : &default_metadata,
                                          o->metadata ? o->metadata_count : 1, max_shard_bytes, &s->writer));
    for (int32_t k = first; k < first + count; k++)
        SBP_TRY(save_source(s, &s->sources[k]));
    return sbp_safetensors_writer_commit(s->writer, s->diag);
}

/* ---- by several ranks ------------------------------------------------------------------------------- */

const char *sbp_params_shard_path(sbp_arena *arena, const char *path, int32_t shard, int32_t count) {
    static const char suffix[] = ".safetensors";
    size_t stem = strlen(path) - (sizeof suffix - 1);
    if (count == 1)
        return path;
    return sbp_arena_printf(arena, "%.*s-%05d-of-%05d%s", (int)stem, path, (int)shard + 1, (int)count,
                            suffix);
}

static int64_t bytes_of(const saver *s, int32_t source) {
    return s->sources[source].elems * sbp_dtype_bytes(dtype_of(s, &s->sources[source]));
}

/* The first source behind a shard that begins with `first`. */
static int32_t end_of_shard(const saver *s, int32_t first, int64_t most) {
    int64_t filled = bytes_of(s, first);
    int32_t end = first + 1;
    while (end < s->source_count && filled + bytes_of(s, end) <= most)
        filled += bytes_of(s, end++);
    return end;
}

static sbp_status write_index(const saver *s, int64_t most, int32_t count, int64_t total) {
    sbp_text out;
    sbp_text_init(&out, s->arena);
    sbp_json_writer w = sbp_safetensors_index_begin(&out, total);
    for (int32_t at = 0, shard = 0; at < s->source_count; shard++) {
        const char *path = sbp_params_shard_path(s->arena, s->path, shard, count),
                   *slash = strrchr(path, '/');
        path = slash ? slash + 1 : path;
        for (int32_t end = end_of_shard(s, at, most); at < end; at++)
            for (int64_t t = 0; t < sbp_recipe_tensors(s->sources[at].recipe); t++)
                sbp_json_write_string(&w, sbp_recipe_tensor_name(s->arena, s->sources[at].recipe, t), path);
    }
    sbp_safetensors_index_end(&w);
    return sbp_file_write(s->diag, sbp_arena_printf(s->arena, "%s.index.json", s->path), out.data,
                          out.length);
}

static sbp_status save_shards(saver *s) {
    const sbp_save_options *o = s->options;
    int64_t total = 0;
    int32_t count = 0;
    for (int32_t k = 0; k < s->source_count; k++)
        total += bytes_of(s, k);
    int64_t most = sbp_ceil_div(total, o->ranks);
    most = o->max_shard_bytes > 0 && most > o->max_shard_bytes ? o->max_shard_bytes : most;
    for (int32_t at = 0; at < s->source_count; count++)
        at = end_of_shard(s, at, most);
    *o->shard_count = count;
    for (int32_t at = 0, shard = 0; at < s->source_count; shard++) {
        int32_t end = end_of_shard(s, at, most);
        if (shard % o->ranks == o->rank)
            SBP_TRY(save_sources(s, sbp_params_shard_path(s->arena, s->path, shard, count), at, end - at, 0));
        at = end;
    }
    return o->rank == 0 && count > 1 ? write_index(s, most, count, total) : SBP_OK;
}

static sbp_status save_body(void *user) {
    saver *s = user;
    const sbp_save_options *o = s->options;
    sbp_tensor_table_sources(s->arena, s->plan->tensors, o->trainable_only, &s->sources, &s->source_count);
    if (o->without_base)
        leave_base(s, NULL);
    if (o->carried)
        SBP_TRY(add_carried(s));
    s->staging = SBP_NEW_ARRAY(s->arena, double, PIECE_ELEMS);
    s->converted = SBP_NEW_ARRAY(s->arena, double, PIECE_ELEMS);
    return o->ranks > 0 ? save_shards(s) : save_sources(s, s->path, 0, s->source_count, o->max_shard_bytes);
}

sbp_status sbp_params_save_plan(sbp_executor *x, const sbp_plan *plan, const char *path,
                                const sbp_save_options *options, sbp_diag *diag) {
    saver s = {.x = x, .plan = plan, .path = path, .options = options, .diag = diag};
    s.arena = sbp_arena_create();
    if (!s.arena)
        return sbp_fail(diag, SBP_MACHINE, "out of memory while saving weights");
    sbp_status status = sbp_guard(s.arena, diag, save_body, &s);
    sbp_safetensors_writer_abort(s.writer);
    sbp_weights_close(s.carried);
    sbp_arena_destroy(s.arena);
    return status;
}

/* ---- dumping gradients ------------------------------------------------------------------------------ */

struct sbp_gradient_dump {
    sbp_arena *arena;
    sbp_executor *x;
    const sbp_plan *plan;
    const char *path;
    sbp_dtype dtype;
    sbp_diag *diag; /* of the call in progress */
    sbp_tensor_source *sources;
    int32_t source_count;
    int64_t *spool_at; /* per tensor: bytes before its source in the spool */
    bool *seen;        /* per tensor */
    int64_t bytes;
    int spool;
    unsigned char *staging; /* [PIECE_ELEMS] of dtype */
    sbp_safetensors_writer *writer;
};

static sbp_status fail_spool(const sbp_gradient_dump *d, sbp_diag *diag) {
    return sbp_fail(diag, SBP_IO, "%s: gradients do not go into the file beside it: %s", d->path,
                    strerror(errno));
}

static sbp_status spool_write(const sbp_gradient_dump *d, const void *data, int64_t bytes, int64_t offset,
                              sbp_diag *diag) {
    for (const char *at = data; bytes > 0;) {
        ssize_t n = pwrite(d->spool, at, (size_t)bytes, offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return fail_spool(d, diag);
        at += n;
        bytes -= n;
        offset += n;
    }
    return SBP_OK;
}

static sbp_status dump_prepare(void *user) {
    sbp_gradient_dump *d = user;
    d->path = sbp_arena_strdup(d->arena, d->path);
    d->staging = sbp_arena_array(d->arena, PIECE_ELEMS, sizeof(double));
    d->spool_at = SBP_NEW_ARRAY(d->arena, int64_t, d->plan->tensors->count);
    d->seen = SBP_NEW_ARRAY(d->arena, bool, d->plan->tensors->count);
    sbp_tensor_table_sources(d->arena, d->plan->tensors, true, &d->sources, &d->source_count);
    for (int32_t k = 0; k < d->source_count; k++) {
        for (int32_t j = 0; j < d->sources[k].count; j++)
            d->spool_at[d->sources[k].tensors[j] - d->plan->tensors->tensors] = d->bytes;
        d->bytes += d->sources[k].elems * sbp_dtype_bytes(d->dtype);
    }
    char *name = sbp_arena_printf(d->arena, "%s.XXXXXX", d->path);
    d->spool = mkstemp(name);
    if (d->spool < 0)
        return fail_spool(d, d->diag);
    unlink(name); /* it goes when the descriptor does */
    return ftruncate(d->spool, d->bytes) == 0 ? SBP_OK : fail_spool(d, d->diag);
}

static sbp_status read_gradient(void *user, int32_t tensor, int64_t first, int64_t count, sbp_dtype dtype,
                                void *out, sbp_diag *diag) {
    (void)tensor;
    return sbp_gradient_read(user, first, count, dtype, out, diag);
}

/* The tensor's part of the spool; pieces that other tensors share are read first. */
static sbp_status spool_tensor(sbp_gradient_dump *d, part *p, sbp_diag *diag) {
    const sbp_recipe_map *map = &p->tensor->map;
    int64_t unit = sbp_dtype_bytes(d->dtype), first = map->source_base, end = sbp_recipe_source_end(map);
    int64_t base = d->spool_at[p->index];
    SBP_CROSS_EITHER(end - first > PIECE_ELEMS, run_spool_pieces, run_spool_piece);
    for (int64_t at = first; at < end; at += PIECE_ELEMS) {
        int64_t count = end - at < PIECE_ELEMS ? end - at : PIECE_ELEMS;
        if (p->copy)
            SBP_TRY(sbp_file_pread(diag, d->spool, d->path, d->staging, count * unit, base + at * unit));
        SBP_TRY(put_part(p, at, count, d->staging));
        SBP_TRY(spool_write(d, d->staging, count * unit, base + at * unit, diag));
    }
    return SBP_OK;
}

static sbp_status take_gradient(void *user, const sbp_gradient *gradient, bool *skip, sbp_diag *diag) {
    sbp_gradient_dump *d = user;
    *skip = true;
    int32_t t = d->plan->tensor_of[gradient->parameter];
    const sbp_tensor_entry *tensor = t < 0 ? NULL : &d->plan->tensors->tensors[t];
    if (!tensor || !tensor->trainable || d->seen[t] ||
        gradient->span.rows * gradient->span.cols != tensor->map.elems)
        return sbp_fail(diag, SBP_INPUT,
                        "the plan's gradient of '%.200s': not of a trainable parameter, or a second one",
                        d->plan->program->buffers[gradient->parameter].name);
    d->seen[t] = true;
    sbp_gradient copy = *gradient;
    part p = {
        .tensor = tensor, .index = t, .read = read_gradient, .user = &copy, .diag = diag, .dtype = d->dtype};
    sbp_status status = open_part(&p);
    if (status == SBP_OK)
        status = spool_tensor(d, &p, diag);
    free(p.copy);
    return status;
}

sbp_gradient sbp_gradient_of(sbp_executor *x, int32_t parameter, int32_t buffer) {
    const sbp_buffer *b = &sbp_executor_program(x)->buffers[buffer];
    return (sbp_gradient){.executor = x,
                          .parameter = parameter,
                          .buffer = buffer,
                          .span = {.space = b->space,
                                   .dtype = b->dtype,
                                   .offset = b->offset,
                                   .rows = sbp_executor_elems(x, buffer) / b->cols,
                                   .cols = b->cols,
                                   .stride = b->cols}};
}

sbp_status sbp_gradient_dump_take(sbp_gradient_dump *d, int32_t parameter, int32_t buffer, sbp_diag *diag) {
    sbp_gradient gradient = sbp_gradient_of(d->x, parameter, buffer);
    bool skip;
    return take_gradient(d, &gradient, &skip, diag);
}

sbp_status sbp_gradient_dump_begin(sbp_executor *x, const sbp_plan *plan, const char *path, sbp_dtype dtype,
                                   sbp_diag *diag, sbp_gradient_dump **out) {
    if (dtype != SBP_F32 && dtype != SBP_F64)
        return sbp_fail(diag, SBP_INTERNAL, "gradients are dumped as f32 or f64");
    sbp_arena *arena = sbp_arena_create();
    sbp_gradient_dump *d = sbp_malloc(sizeof *d);
    if (!arena || !d) {
        sbp_arena_destroy(arena);
        free(d);
        return sbp_fail(diag, SBP_MACHINE, "out of memory while dumping gradients");
    }
    *d = (sbp_gradient_dump){
        .arena = arena, .x = x, .plan = plan, .path = path, .dtype = dtype, .diag = diag, .spool = -1};
    sbp_status status = sbp_guard(arena, diag, dump_prepare, d);
    if (status != SBP_OK) {
        sbp_gradient_dump_abort(d);
        return status;
    }
    sbp_executor_set_flush_hook(x, take_gradient, d);
    *out = d;
    return SBP_OK;
}

static sbp_status dump_write(void *user) {
    sbp_gradient_dump *d = user;
    for (int32_t t = 0; t < d->plan->tensors->count; t++)
        if (d->plan->tensors->tensors[t].trainable && !d->seen[t])
            return sbp_fail(d->diag, SBP_INPUT, "the plan flushes no gradient of '%.200s'",
                            d->plan->tensors->tensors[t].recipes[0].source);
    int32_t spec_count;
    sbp_tensor_spec *specs = make_specs(d->arena, d->sources, d->source_count, d->dtype, &spec_count);
    SBP_TRY(sbp_safetensors_writer_create(d->arena, d->diag, d->path, specs, spec_count, &default_metadata, 1,
                                          0, &d->writer));
    const int64_t piece = PIECE_ELEMS * (int64_t)sizeof(double);
    for (int64_t at = 0; at < d->bytes; at += piece) {
        int64_t bytes = d->bytes - at < piece ? d->bytes - at : piece;
        SBP_TRY(sbp_file_pread(d->diag, d->spool, d->path, d->staging, bytes, at));
        SBP_TRY(sbp_safetensors_writer_write(d->writer, d->diag, d->staging, bytes));
    }
    return sbp_safetensors_writer_commit(d->writer, d->diag);
}

sbp_status sbp_gradient_dump_end(sbp_gradient_dump *d, sbp_diag *diag) {
    d->diag = diag;
    sbp_status status = sbp_guard(d->arena, diag, dump_write, d);
    sbp_gradient_dump_abort(d);
    return status;
}

void sbp_gradient_dump_abort(sbp_gradient_dump *d) {
    if (!d)
        return;
    sbp_executor_set_flush_hook(d->x, NULL, NULL);
    sbp_safetensors_writer_abort(d->writer);
    if (d->spool >= 0)
        close(d->spool);
    sbp_arena_destroy(d->arena);
    free(d);
}
