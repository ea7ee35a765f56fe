/* pieces.c: writes and reads the files of ranks. */
#include "runtime/train/pieces.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "frontends/formats/weights/safetensors.h"

#define INDEX "optimizer.safetensors.index.json"

enum { PIECE_ELEMS = 1 << 16 };

/* Elements of a buffer. */
typedef struct elem_range {
    int64_t first, end;
} elem_range;

static int64_t unit_of(const sbp_pieces *p, int32_t buffer) {
    return sbp_dtype_bytes(sbp_executor_program(p->executor)->buffers[buffer].dtype);
}

static int64_t bytes_of(const sbp_pieces *p, int32_t buffer) {
    return sbp_executor_elems(p->executor, buffer) * unit_of(p, buffer);
}

/* ---- who writes what -------------------------------------------------------------------------------- */

/* Bytes before each buffer of the list, and of all, counting those that every rank has all of. */
static int64_t *find_places(const sbp_pieces *p) {
    int64_t *before = SBP_NEW_ARRAY(p->arena, int64_t, p->count + 1);
    for (int32_t i = 0; i < p->count; i++)
        before[i + 1] =
            before[i] +
            (sbp_executor_is_shared(p->executor, p->list[i].buffer) ? 0 : bytes_of(p, p->list[i].buffer));
    return before;
}

static elem_range clamp(int64_t first, int64_t end, int64_t elems) {
    elem_range r = {first < 0 ? 0 : first, end < elems ? end : elems};
    r.end = r.end > r.first ? r.end : r.first;
    return r;
}

/* The elements of buffer number `i` of the list that a rank writes. */
static elem_range range_of(const sbp_pieces *p, const int64_t *before, int32_t i, int64_t rank,
                           int64_t ranks) {
    int32_t buffer = p->list[i].buffer;
    int64_t unit = unit_of(p, buffer), first, count;
    if (sbp_executor_is_shared(p->executor,
                               buffer)) { /* groups have the same shares: each writes a part of them */
        int64_t group = sbp_executor_program(p->executor)->group, groups = ranks / group,
                number = rank / group;
        sbp_executor_own_of(p->executor, buffer, rank, &first, &count);
        return (elem_range){first + count * number / groups, first + count * (number + 1) / groups};
    }
    int64_t each = sbp_ceil_div(before[p->count], ranks), begin = rank * each - before[i], end = begin + each;
    return clamp(begin <= 0 ? 0 : sbp_ceil_div(begin, unit), end <= 0 ? 0 : sbp_ceil_div(end, unit),
                 sbp_executor_elems(p->executor, buffer));
}

static const char *piece_name(const sbp_pieces *p, int32_t i, elem_range r) {
    return sbp_arena_printf(p->arena, "%s[%lld:%lld]", p->list[i].name, (long long)r.first, (long long)r.end);
}

static const char *file_name(const sbp_pieces *p, int32_t rank, int32_t ranks) {
    return sbp_arena_printf(p->arena, "optimizer-%05d-of-%05d.safetensors", (int)rank + 1, (int)ranks);
}

/* ---- writing ---------------------------------------------------------------------------------------- */

static sbp_status write_range(const sbp_pieces *p, void *staging, int32_t buffer, elem_range r) {
    sbp_dtype dtype = sbp_executor_program(p->executor)->buffers[buffer].dtype;
    for (int64_t at = r.first; at < r.end; at += PIECE_ELEMS) {
        int64_t n = r.end - at < PIECE_ELEMS ? r.end - at : PIECE_ELEMS;
        SBP_TRY(sbp_executor_read(p->executor, buffer, 0, at, n, dtype, staging, p->diag));
        SBP_TRY(sbp_safetensors_writer_write(p->writer, p->diag, staging, n * unit_of(p, buffer)));
    }
    return SBP_OK;
}

static sbp_status write_ranges(const sbp_pieces *p, const elem_range *ranges) {
    void *staging = SBP_NEW_ARRAY(p->arena, double, PIECE_ELEMS);
    for (int32_t i = 0; i < p->count; i++)
        SBP_TRY(write_range(p, staging, p->list[i].buffer, ranges[i]));
    return sbp_safetensors_writer_commit(p->writer, p->diag);
}

static sbp_status write_file(sbp_pieces *p, const int64_t *before, int32_t rank, int32_t ranks,
                             const char *name) {
    sbp_tensor_spec *specs = SBP_NEW_ARRAY(p->arena, sbp_tensor_spec, p->count + 1);
    elem_range *ranges = SBP_NEW_ARRAY(p->arena, elem_range, p->count + 1);
    int64_t *dims = SBP_NEW_ARRAY(p->arena, int64_t, p->count + 1);
    int32_t count = 0;
    for (int32_t i = 0; i < p->count; i++) {
        ranges[i] = range_of(p, before, i, rank, ranks);
        dims[i] = ranges[i].end - ranges[i].first;
        if (dims[i] > 0)
            specs[count++] = (sbp_tensor_spec){
                .name = piece_name(p, i, ranges[i]),
                .dtype = sbp_executor_program(p->executor)->buffers[p->list[i].buffer].dtype,
                .rank = 1,
                .dim = &dims[i]};
    }
    const sbp_key_value metadata = {"checkpoint", p->checkpoint};
    SBP_TRY(sbp_safetensors_writer_create(p->arena, p->diag, sbp_file_join(p->arena, p->directory, name),
                                          specs, count, &metadata, p->checkpoint ? 1 : 0, 0, &p->writer));
    return write_ranges(p, ranges);
}

static sbp_status write_index(const sbp_pieces *p, const int64_t *before, int32_t ranks) {
    sbp_text out;
    int64_t total = 0;
    sbp_text_init(&out, p->arena);
    for (int32_t i = 0; i < p->count; i++)
        total += bytes_of(p, p->list[i].buffer);
    sbp_json_writer w = sbp_safetensors_index_begin(&out, total);
    for (int32_t rank = 0; rank < ranks; rank++)
        for (int32_t i = 0; i < p->count; i++) {
            elem_range r = range_of(p, before, i, rank, ranks);
            if (r.end > r.first)
                sbp_json_write_string(&w, piece_name(p, i, r), file_name(p, rank, ranks));
        }
    sbp_safetensors_index_end(&w);
    return sbp_file_write(p->diag, sbp_file_join(p->arena, p->directory, INDEX), out.data, out.length);
}

sbp_status sbp_pieces_save(sbp_pieces *p, int32_t rank, int32_t ranks, const char **name) {
    const int64_t *before = find_places(p);
    *name = NULL;
    if (p->count == 0)
        return SBP_OK;
    const char *own = file_name(p, rank, ranks);
    SBP_TRY(write_file(p, before, rank, ranks, own));
    *name = own;
    return rank == 0 ? write_index(p, before, ranks) : SBP_OK;
}

/* ---- reading ---------------------------------------------------------------------------------------- */

bool sbp_pieces_exist(sbp_arena *arena, const char *directory) {
    return sbp_file_exists(sbp_file_join(arena, directory, INDEX));
}

/* A tensor of the files. */
typedef struct found_piece {
    const sbp_weight *weight;
    int32_t of; /* in the list */
    elem_range range;
} found_piece;

static int by_place(const void *a, const void *b) {
    const found_piece *x = a, *y = b;
    return x->of != y->of ? x->of - y->of
                          : (x->range.first > y->range.first) - (x->range.first < y->range.first);
}

static sbp_status fail_piece(const sbp_pieces *p, const char *name, const char *what) {
    return sbp_fail(
        p->diag, SBP_INPUT,
        "%s: '%.200s' in optimizer-*.safetensors %s: the plan must keep weights and states in the "
        "types of the run that is to go on",
        p->directory, name, what);
}

static sbp_status parse_piece(const sbp_pieces *p, const sbp_map *names, const sbp_weight *weight,
                              found_piece *out) {
    const char *bracket = strrchr(weight->name, '[');
    long long first = -1, end = -1;
    int used = 0;
    if (!bracket || sscanf(bracket, "[%lld:%lld]%n", &first, &end, &used) != 2 || bracket[used] != 0)
        return fail_piece(p, weight->name, "is not NAME[FIRST:END]");
    int32_t of =
        sbp_map_get(names, sbp_arena_strndup(p->arena, weight->name, (size_t)(bracket - weight->name)));
    if (of < 0)
        return fail_piece(p, weight->name, "is nothing that this plan keeps");
    *out = (found_piece){weight, of, {first, end}};
    int64_t elems = sbp_executor_elems(p->executor, p->list[of].buffer);
    if (first < 0 || end < first || end > elems || end - first != weight->elems)
        return fail_piece(p, weight->name, "is not of the parameter's size");
    if (strcmp(weight->encoding,
               sbp_safetensors_dtype(sbp_executor_program(p->executor)->buffers[p->list[of].buffer].dtype)) !=
        0)
        return fail_piece(p, weight->name, "is of another type than this plan keeps");
    return SBP_OK;
}

/* That sorted pieces have every element of all buffers once. */
static sbp_status check_pieces(const sbp_pieces *p, const found_piece *found, int32_t count) {
    int32_t at = 0;
    for (int32_t i = 0; i < p->count; i++) {
        int64_t end = 0, elems = sbp_executor_elems(p->executor, p->list[i].buffer);
        for (; at < count && found[at].of == i && found[at].range.first == end; at++)
            end = found[at].range.end;
        if (end != elems || (at < count && found[at].of == i))
            return fail_piece(p, p->list[i].name, "is not there from its first element to its last, once");
    }
    return SBP_OK;
}

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

sbp_status sbp_state_check(sbp_diag *diag, const sbp_weight *weight, const char *name, sbp_dtype dtype,
                           const void *values, int64_t count) {
    if (!sbp_dtype_is_float(dtype))
        return SBP_OK;
    const bool is_signed = !ends_with(name, "_sq") && !ends_with(name, "_absmax");
    for (int64_t i = 0; i < count; i++) {
        double value = sbp_element_get(values, dtype, i);
        if (!isfinite(value) || (!is_signed && value < 0))
            return sbp_fail(diag, SBP_INPUT, "%s: '%.200s' is %s, with which no run goes on", weight->path,
                            weight->name,
                            isfinite(value) ? "negative"
                            : isnan(value)  ? "not a number"
                                            : "infinite");
    }
    return SBP_OK;
}

/* What this process has of a piece. */
static sbp_status read_piece(const sbp_pieces *p, const found_piece *f, void *staging) {
    int32_t buffer = p->list[f->of].buffer;
    sbp_dtype dtype = sbp_executor_program(p->executor)->buffers[buffer].dtype;
    int64_t own, count;
    sbp_executor_own(p->executor, buffer, &own, &count);
    elem_range r = clamp(f->range.first > own ? f->range.first : own,
                         f->range.end < own + count ? f->range.end : own + count, INT64_MAX);
    for (int64_t at = r.first; at < r.end; at += PIECE_ELEMS) {
        int64_t n = r.end - at < PIECE_ELEMS ? r.end - at : PIECE_ELEMS;
        SBP_TRY(sbp_weights_read(p->files, f->weight, at - f->range.first, n, dtype, staging, p->diag));
        SBP_TRY(sbp_state_check(p->diag, f->weight, p->list[f->of].name, dtype, staging, n));
        SBP_TRY(sbp_executor_write(p->executor, buffer, 0, at, n, dtype, staging, p->diag));
    }
    return SBP_OK;
}

sbp_status sbp_pieces_load(sbp_pieces *p) {
    int32_t count = sbp_weights_count(p->files);
    found_piece *found = SBP_NEW_ARRAY(p->arena, found_piece, count + 1);
    void *staging = SBP_NEW_ARRAY(p->arena, double, PIECE_ELEMS);
    sbp_map names;
    sbp_map_init(&names, p->arena);
    for (int32_t i = 0; i < p->count; i++)
        sbp_map_set(&names, p->list[i].name, i);
    for (int32_t i = 0; i < count; i++)
        SBP_TRY(parse_piece(p, &names, sbp_weights_at(p->files, i), &found[i]));
    if (count > 0)
        qsort(found, (size_t)count, sizeof *found, by_place);
    SBP_TRY(check_pieces(p, found, count));
    for (int32_t i = 0; i < count; i++)
        SBP_TRY(read_piece(p, &found[i], staging));
    return SBP_OK;
}

sbp_status sbp_pieces_open(sbp_pieces *p) {
    return sbp_weights_open(p->arena, p->diag, sbp_file_join(p->arena, p->directory, INDEX), &p->files);
}

void sbp_pieces_close(sbp_pieces *p) {
    sbp_safetensors_writer_abort(p->writer);
    sbp_weights_close(p->files);
}
