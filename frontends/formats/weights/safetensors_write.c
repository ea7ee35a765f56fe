/* safetensors_write.c: streaming tensors into one file or several shards, all of them renamed at the end. */
#include "frontends/formats/weights/safetensors.h"
#include "ir/base/census.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct planned {
    sbp_tensor_spec spec;
    int64_t bytes;
    int64_t offset; /* in its file */
    int32_t shard;
} planned;

typedef struct shard {
    const char *path;
    sbp_text header; /* with the 8 bytes before it */
    int64_t bytes;   /* of data */
    sbp_file_out *out;
} shard;

struct sbp_safetensors_writer {
    sbp_arena *arena;
    const char *path;
    planned *tensors;
    int32_t count;
    shard *shards;
    int32_t shard_count;
    const char *index; /* text of the index file; NULL when there is one shard */
    bool may_shard;    /* so an index beside the file is of what was there before */
    int32_t next;      /* tensor being written */
    int64_t position;  /* bytes of it that are */
    int32_t open;      /* shard being written */
    bool finished;
};

/* ---- layout ---------------------------------------------------------------------------------------- */

/* The order in which the safetensors library places dtypes: an alignment never falls short. */
static int placement(sbp_dtype dtype) {
    static const sbp_dtype order[] = {SBP_I64, SBP_F64, SBP_F32, SBP_I32, SBP_BF16, SBP_F16,
                                      SBP_I16, SBP_I8,  SBP_UD8, SBP_D8,  SBP_BOOL};
    int at = 0;
    while (order[at] != dtype)
        at++;
    return at;
}

static int by_placement(const void *a, const void *b) {
    const planned *x = *(const planned *const *)a, *y = *(const planned *const *)b;
    int p = placement(x->spec.dtype), q = placement(y->spec.dtype);
    return p != q ? p - q : strcmp(x->spec.name, y->spec.name);
}

static int by_name(const void *a, const void *b) {
    return strcmp((*(const planned *const *)a)->spec.name, (*(const planned *const *)b)->spec.name);
}

static void write_metadata(sbp_json_writer *w, const sbp_key_value *metadata, int32_t count) {
    if (count == 0)
        return;
    sbp_json_write_object(w, "__metadata__");
    for (int32_t i = 0; i < count; i++)
        sbp_json_write_string(w, metadata[i].key, metadata[i].value);
    sbp_json_write_end(w);
}

/* Bytes [first, end) of the data. */
static void write_tensor(sbp_json_writer *w, const sbp_tensor_spec *spec, int64_t first, int64_t end) {
    sbp_json_write_object(w, spec->name);
    sbp_json_write_string(w, "dtype", sbp_safetensors_dtype(spec->dtype));
    sbp_json_write_array(w, "shape");
    for (int32_t d = 0; d < spec->rank; d++)
        sbp_json_write_int(w, NULL, spec->dim[d]);
    sbp_json_write_end(w);
    sbp_json_write_array(w, "data_offsets");
    sbp_json_write_int(w, NULL, first);
    sbp_json_write_int(w, NULL, end);
    sbp_json_write_end(w);
    sbp_json_write_end(w);
}

static void lay_out_shard(sbp_safetensors_writer *w, int32_t index, const sbp_key_value *metadata,
                          int32_t metadata_count) {
    shard *s = &w->shards[index];
    planned **order = SBP_NEW_ARRAY(w->arena, planned *, w->count);
    int32_t n = 0;
    for (int32_t i = 0; i < w->count; i++)
        if (w->tensors[i].shard == index)
            order[n++] = &w->tensors[i];
    if (n > 0)
        qsort(order, (size_t)n, sizeof *order, by_placement);

    sbp_text_init(&s->header, w->arena);
    sbp_text_add_n(&s->header, "\0\0\0\0\0\0\0\0", 8);
    sbp_json_writer header = sbp_json_writer_on(&s->header);
    header.compact = true;
    sbp_json_write_object(&header, NULL);
    write_metadata(&header, metadata, metadata_count);
    for (int32_t i = 0; i < n; i++) {
        planned *t = order[i];
        write_tensor(&header, &t->spec, s->bytes, s->bytes + t->bytes);
        t->offset = s->bytes;
        s->bytes += t->bytes;
    }
    sbp_json_write_end(&header);
    while (s->header.length % 8 != 0)
        sbp_text_add_n(&s->header, " ", 1);
    uint64_t header_bytes = s->header.length - 8;
    for (int i = 0; i < 8; i++)
        s->header.data[i] = (char)(unsigned char)(header_bytes >> (8 * i));
    for (int32_t i = 0; i < n; i++)
        order[i]->offset += (int64_t)s->header.length;
}

static const char *file_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

sbp_json_writer sbp_safetensors_index_begin(sbp_text *out, int64_t total_bytes) {
    sbp_json_writer w = sbp_json_writer_on(out);
    w.lines = 2;
    sbp_json_write_object(&w, NULL);
    sbp_json_write_object(&w, "metadata");
    sbp_json_write_int(&w, "total_size", total_bytes);
    sbp_json_write_end(&w);
    sbp_json_write_object(&w, "weight_map");
    return w;
}

void sbp_safetensors_index_end(sbp_json_writer *w) {
    sbp_json_write_end(w);
    sbp_json_write_end(w);
    sbp_text_add(w->out, "\n");
}

static void make_index(sbp_safetensors_writer *w, int64_t total_bytes) {
    planned **order = SBP_NEW_ARRAY(w->arena, planned *, w->count);
    for (int32_t i = 0; i < w->count; i++)
        order[i] = &w->tensors[i];
    qsort(order, (size_t)w->count, sizeof *order, by_name);
    sbp_text text;
    sbp_text_init(&text, w->arena);
    sbp_json_writer index = sbp_safetensors_index_begin(&text, total_bytes);
    for (int32_t i = 0; i < w->count; i++)
        sbp_json_write_string(&index, order[i]->spec.name, file_name(w->shards[order[i]->shard].path));
    sbp_safetensors_index_end(&index);
    w->index = text.data;
}

typedef struct creation {
    sbp_safetensors_writer *w;
    sbp_arena *arena;
    sbp_diag *diag;
    const char *path;
    const sbp_tensor_spec *tensors;
    int32_t count;
    const sbp_key_value *metadata;
    int32_t metadata_count;
    int64_t max_shard_bytes;
} creation;

static sbp_status copy_tensors(const creation *c, sbp_safetensors_writer *w, int64_t *total) {
    sbp_map names;
    sbp_map_init(&names, c->arena);
    for (int32_t i = 0; i < c->count; i++) {
        const sbp_tensor_spec *given = &c->tensors[i];
        planned *t = &w->tensors[i];
        t->spec = *given;
        t->spec.name = sbp_arena_strdup(c->arena, given->name);
        t->bytes = sbp_dtype_bytes(given->dtype);
        int64_t *dim = SBP_NEW_ARRAY(c->arena, int64_t, given->rank);
        for (int32_t d = 0; d < given->rank; d++) {
            dim[d] = given->dim[d];
            if (dim[d] < 0 || !sbp_mul_i64(t->bytes, dim[d], &t->bytes))
                return sbp_fail(c->diag, SBP_INTERNAL, "%s: the shape of tensor '%s' is invalid", c->path,
                                given->name);
        }
        t->spec.dim = dim;
        if (!sbp_add_i64(*total, t->bytes, total))
            return sbp_fail(c->diag, SBP_INTERNAL, "%s: the tensors do not fit 64 bits", c->path);
        if (sbp_map_get(&names, given->name) >= 0 || strcmp(given->name, "__metadata__") == 0)
            return sbp_fail(c->diag, SBP_INTERNAL, "%s: tensor name '%s' is used twice or reserved", c->path,
                            given->name);
        sbp_map_set(&names, t->spec.name, i);
    }
    return SBP_OK;
}

static sbp_status create_guarded(void *user) {
    creation *c = user;
    sbp_safetensors_writer *w = SBP_NEW(c->arena, sbp_safetensors_writer);
    w->arena = c->arena;
    w->path = sbp_arena_strdup(c->arena, c->path);
    w->count = c->count;
    w->tensors = SBP_NEW_ARRAY(c->arena, planned, c->count);
    int64_t total = 0;
    SBP_TRY(copy_tensors(c, w, &total));

    w->may_shard = c->max_shard_bytes > 0;
    bool sharded = w->may_shard && total > c->max_shard_bytes;
    SBP_CROSS_EITHER(sharded, file_shards, file_whole);
    w->shard_count = 1;
    int64_t filled = 0;
    for (int32_t i = 0; i < w->count; i++) {
        int64_t bytes = w->tensors[i].bytes;
        if (sharded && filled > 0 && filled + bytes > c->max_shard_bytes) {
            w->shard_count++;
            filled = 0;
        }
        filled += bytes;
        w->tensors[i].shard = w->shard_count - 1;
    }
    w->shards = SBP_NEW_ARRAY(c->arena, shard, w->shard_count);
    static const char suffix[] = ".safetensors";
    size_t stem = strlen(w->path);
    if (stem >= strlen(suffix) && strcmp(w->path + stem - strlen(suffix), suffix) == 0)
        stem -= strlen(suffix);
    for (int32_t i = 0; i < w->shard_count; i++) {
        w->shards[i].path = w->shard_count == 1 ? w->path
                                                : sbp_arena_printf(c->arena, "%.*s-%05d-of-%05d%s", (int)stem,
                                                                   w->path, i + 1, w->shard_count, suffix);
        lay_out_shard(w, i, c->metadata, c->metadata_count);
    }
    if (w->shard_count > 1)
        make_index(w, total);
    c->w = w;
    return SBP_OK;
}

/* ---- streaming ------------------------------------------------------------------------------------- */

static sbp_status open_shard(sbp_safetensors_writer *w, sbp_diag *diag, int32_t index) {
    shard *s = &w->shards[index];
    SBP_TRY(sbp_file_out_open(diag, s->path, &s->out));
    w->open = index;
    return sbp_file_out_write(s->out, diag, s->header.data, (int64_t)s->header.length);
}

sbp_status sbp_safetensors_writer_create(sbp_arena *arena, sbp_diag *diag, const char *path,
                                         const sbp_tensor_spec *tensors, int32_t count,
                                         const sbp_key_value *metadata, int32_t metadata_count,
                                         int64_t max_shard_bytes, sbp_safetensors_writer **out) {
    creation c = {.arena = arena,
                  .diag = diag,
                  .path = path,
                  .tensors = tensors,
                  .count = count,
                  .metadata = metadata,
                  .metadata_count = metadata_count,
                  .max_shard_bytes = max_shard_bytes};
    SBP_TRY(sbp_guard(arena, diag, create_guarded, &c));
    sbp_status status = open_shard(c.w, diag, 0);
    if (status != SBP_OK)
        sbp_safetensors_writer_abort(c.w);
    else
        *out = c.w;
    return status;
}

sbp_status sbp_safetensors_writer_write(sbp_safetensors_writer *w, sbp_diag *diag, const void *data,
                                        int64_t bytes) {
    const char *at = data;
    while (bytes > 0) {
        while (w->next < w->count && w->position == w->tensors[w->next].bytes) {
            w->next++;
            w->position = 0;
        }
        if (w->next == w->count)
            return sbp_fail(diag, SBP_INTERNAL, "%s: %lld bytes more than its tensors have", w->path,
                            (long long)bytes);
        const planned *t = &w->tensors[w->next];
        if (t->shard != w->open) {
            SBP_TRY(sbp_file_out_finish(w->shards[w->open].out, diag));
            SBP_TRY(open_shard(w, diag, t->shard));
        }
        int64_t n = t->bytes - w->position < bytes ? t->bytes - w->position : bytes;
        SBP_TRY(sbp_file_out_write_at(w->shards[w->open].out, diag, at, n, t->offset + w->position));
        w->position += n;
        at += n;
        bytes -= n;
    }
    return SBP_OK;
}

static sbp_status remove_stale(sbp_diag *diag, const char *path) {
    if (unlink(path) != 0 && errno != ENOENT)
        return sbp_fail(diag, SBP_IO, "cannot remove '%s': %s", path, strerror(errno));
    return SBP_OK;
}

static sbp_status commit_all(sbp_safetensors_writer *w, sbp_diag *diag, const char *index_path) {
    while (w->next < w->count && w->position == w->tensors[w->next].bytes) {
        w->next++;
        w->position = 0;
    }
    if (w->next < w->count)
        return sbp_fail(diag, SBP_INTERNAL, "%s: tensor '%s' got %lld of %lld bytes", w->path,
                        w->tensors[w->next].spec.name, (long long)w->position,
                        (long long)w->tensors[w->next].bytes);
    /* A shard that holds nothing but empty tensors at the end has not been opened yet. */
    while (w->open < w->shard_count - 1) {
        SBP_TRY(sbp_file_out_finish(w->shards[w->open].out, diag));
        SBP_TRY(open_shard(w, diag, w->open + 1));
    }
    SBP_TRY(sbp_file_out_finish(w->shards[w->open].out, diag));
    for (int32_t i = 0; i < w->shard_count; i++) {
        sbp_file_out *out = w->shards[i].out;
        w->shards[i].out = NULL;
        SBP_TRY(sbp_file_out_commit(out, diag));
    }
    if (!w->index)
        return w->may_shard ? remove_stale(diag, index_path) : SBP_OK;
    SBP_TRY(sbp_file_write(diag, index_path, w->index, strlen(w->index)));
    return remove_stale(diag, w->path);
}

static sbp_status make_index_path(void *user) {
    creation *c = user;
    c->path = sbp_arena_printf(c->arena, "%s.index.json", c->path);
    return SBP_OK;
}

sbp_status sbp_safetensors_writer_commit(sbp_safetensors_writer *w, sbp_diag *diag) {
    creation c = {.arena = w->arena, .path = w->path};
    sbp_status status = sbp_guard(w->arena, diag, make_index_path, &c);
    if (status == SBP_OK)
        status = commit_all(w, diag, c.path);
    sbp_safetensors_writer_abort(w); /* only what a failure has left */
    return status;
}

void sbp_safetensors_writer_abort(sbp_safetensors_writer *w) {
    if (!w || w->finished)
        return;
    for (int32_t i = 0; i < w->shard_count; i++) {
        sbp_file_out_abort(w->shards[i].out);
        w->shards[i].out = NULL;
    }
    w->finished = true;
}
