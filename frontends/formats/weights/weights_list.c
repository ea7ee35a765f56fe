/* weights_list.c: the list of tensors of any format: adding, finding, bytes, closing. */
#include "frontends/formats/weights/weights_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

sbp_status sbp_weights_add_file(sbp_weights *w, sbp_diag *diag, const char *path, int32_t *index) {
    path = sbp_arena_strdup(w->arena, path);
    *index = w->file_count;
    SBP_PUSH(w->arena, w->files, w->file_count, w->file_capacity, (weights_file){.path = path, .fd = -1});
    weights_file *file = &w->files[*index];
    struct stat info;
    int fd;
    SBP_TRY(sbp_file_open_regular(diag, path, &fd));
    file->fd = fd;
    if (fstat(file->fd, &info) != 0)
        return sbp_fail(diag, SBP_IO, "cannot read '%s': %s", path, strerror(errno));
    file->bytes = info.st_size;
    return SBP_OK;
}

sbp_status sbp_weights_add(sbp_weights *w, sbp_diag *diag, const sbp_weight *weight) {
    int32_t before = sbp_map_get(&w->by_name, weight->name);
    if (before >= 0)
        return sbp_fail(diag, SBP_INPUT, "%s: tensor '%s' occurs twice (before in %s)", weight->path,
                        weight->name, w->weights[before].path);
    sbp_map_set(&w->by_name, weight->name, w->count);
    SBP_PUSH(w->arena, w->weights, w->count, w->capacity, *weight);
    return SBP_OK;
}

static int by_offset(const void *a, const void *b) {
    const sbp_weight *x = *(const sbp_weight *const *)a, *y = *(const sbp_weight *const *)b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes); /* empty tensors before the one at their place */
}

sbp_status sbp_weights_check_layout(sbp_weights *w, sbp_diag *diag, int32_t file, int64_t begin, bool tight) {
    const weights_file *f = &w->files[file];
    const sbp_weight **order = SBP_NEW_ARRAY(w->arena, const sbp_weight *, w->count);
    int32_t n = 0;
    for (int32_t i = 0; i < w->count; i++)
        if (w->weights[i].file == file)
            order[n++] = &w->weights[i];
    if (n > 0) /* qsort must not be given NULL or nothing to do */
        qsort(order, (size_t)n, sizeof *order, by_offset);
    int64_t end = begin;
    const char *previous = "the header";
    for (int32_t i = 0; i < n; i++) {
        const sbp_weight *t = order[i];
        /* offset >= begin and bytes >= 0 hold; the sum was checked by the reader. */
        if (t->offset + t->bytes > f->bytes)
            return sbp_fail(diag, SBP_INPUT, "%s: tensor '%s' ends at byte %lld, but the file has %lld bytes",
                            f->path, t->name, (long long)(t->offset + t->bytes), (long long)f->bytes);
        if (t->offset < end)
            return sbp_fail(diag, SBP_INPUT,
                            "%s: tensor '%s' begins at byte %lld inside '%s', which ends at %lld", f->path,
                            t->name, (long long)t->offset, previous, (long long)end);
        if (tight && t->offset > end)
            return sbp_fail(diag, SBP_INPUT,
                            "%s: tensor '%s' begins at byte %lld, expected %lld, the end of '%s'", f->path,
                            t->name, (long long)t->offset, (long long)end, previous);
        end = t->offset + t->bytes;
        previous = t->name;
    }
    if (tight && end != f->bytes)
        return sbp_fail(diag, SBP_INPUT, "%s: the file has %lld bytes, but its tensors end at %lld", f->path,
                        (long long)f->bytes, (long long)end);
    return SBP_OK;
}

void sbp_weights_close(sbp_weights *w) {
    if (!w)
        return;
    for (int32_t i = 0; i < w->file_count; i++) {
        if (w->files[i].fd >= 0)
            close(w->files[i].fd);
        w->files[i].fd = -1;
    }
}

/* Ranges were checked when the tensor was added. */
sbp_status sbp_weights_read_raw(const sbp_weights *w, const sbp_weight *t, int64_t first, int64_t count,
                                void *out, sbp_diag *diag) {
    const weights_file *f = &w->files[t->file];
    if (!f->memory)
        return sbp_file_pread(diag, f->fd, f->path, out, count, t->offset + first);
    memcpy(out, (const char *)f->memory + t->offset + first, (size_t)count);
    return SBP_OK;
}

int32_t sbp_weights_count(const sbp_weights *w) {
    return w->count;
}

const sbp_weight *sbp_weights_at(const sbp_weights *w, int32_t index) {
    return &w->weights[index];
}

const sbp_weight *sbp_weights_find(const sbp_weights *w, const char *name) {
    int32_t at = sbp_map_get(&w->by_name, name);
    if (at >= 0)
        return &w->weights[at];
    at = w->pairs ? sbp_map_get(&w->pair_by_name, name) : -1;
    if (at >= 0)
        return &w->pairs[at];
    at = w->views ? sbp_map_get(&w->view_by_name, name) : -1;
    if (at >= 0)
        return &w->views[at];
    at = w->stacks && strchr(name, '*') ? sbp_map_get(&w->stack_by_name, name) : -1;
    return at < 0 ? NULL : &w->stacks[at];
}

void sbp_weight_add_names(const sbp_weight *w, sbp_map *names) {
    const sbp_weight *const beside[] = {w->codes, w->scales, w->zeros, w->shape};
    sbp_map_set(names, w->name, 1);
    for (int64_t i = 0; i < w->part_count; i++)
        sbp_weight_add_names(w->parts[i], names);
    for (int64_t i = 0; i < w->source_count; i++)
        sbp_weight_add_names(w->sources[i], names);
    for (int i = 0; i < SBP_COUNT(beside); i++)
        if (beside[i])
            sbp_map_set(names, beside[i]->name, 1);
}

const char *sbp_weights_path(const sbp_weights *w) {
    return w->path;
}

const char *sbp_weights_metadata(const sbp_weights *w, const char *key) {
    const sbp_json *node = sbp_json_member(w->metadata, key);
    return node && node->kind == SBP_JSON_STRING ? node->string : NULL;
}

const struct sbp_gguf *sbp_weights_gguf(const sbp_weights *w) {
    return w->gguf;
}
