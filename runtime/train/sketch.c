/* sketch.c: sketches, hashes and pieces of gradients. */
#include "runtime/train/sketch.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 1 << 13, READ = 64 * PIECE, PIECES = 1 << 10 }; /* elements; pieces of all kinds together */

/* "a.12.b" is "a.*.b". */
static const char *kind_of(sbp_arena *arena, const char *name) {
    char *out = sbp_arena_strdup(arena, name), *to = out;
    for (const char *from = name; *from;) {
        size_t digits = strspn(from, "0123456789");
        bool begins = from == name || from[-1] == '.';
        if (begins && digits > 0 && (from[digits] == '.' || from[digits] == '\0')) {
            *to++ = '*';
            from += digits;
        } else
            *to++ = *from++;
    }
    *to = '\0';
    return out;
}

static int32_t find_kind(sbp_sketch *p, const char *name) {
    const char *kind = kind_of(p->arena, name);
    for (int32_t k = 0; k < p->kind_count; k++)
        if (strcmp(p->kinds[k].name, kind) == 0)
            return k;
    SBP_PUSH(p->arena, p->kinds, p->kind_count, p->kind_capacity, (sbp_sketch_kind){.name = kind});
    return p->kind_count - 1;
}

static int32_t count_trained(const sbp_plan *plan) {
    int32_t count = 0;
    for (int32_t t = 0; t < plan->tensors->count; t++)
        count += plan->tensors->tensors[t].trainable;
    return count;
}

static int32_t pieces_each(const sbp_plan *plan) {
    int32_t each = PIECES / (count_trained(plan) + 1);
    return each > 1 ? each : 1;
}

int64_t sbp_sketch_bytes(const sbp_plan *plan, bool pieces) {
    int64_t each = SBP_SKETCH_SUMS + (pieces ? (int64_t)pieces_each(plan) * PIECE : 0);
    return (count_trained(plan) * each + READ) * (int64_t)sizeof(double);
}

typedef struct create_job {
    sbp_sketch *sketch;
    bool pieces;
} create_job;

static sbp_status prepare(void *user) {
    create_job *job = user;
    sbp_sketch *p = job->sketch;
    const sbp_tensor_table *table = p->plan->tensors;
    p->tensors = SBP_NEW_ARRAY(p->arena, sbp_sketch_tensor, table->count);
    p->buffer = sbp_arena_array(p->arena, READ, sizeof(double));
    for (int32_t t = 0; t < table->count; t++) {
        sbp_sketch_tensor *tensor = &p->tensors[t];
        tensor->name = table->tensors[t].recipes[0].source;
        tensor->kind = -1;
        if (!table->tensors[t].trainable)
            continue;
        tensor->kind = find_kind(p, tensor->name);
        p->kinds[tensor->kind].tensors++;
        tensor->sums = SBP_NEW_ARRAY(p->arena, double, SBP_SKETCH_SUMS);
    }
    p->pieces_each = job->pieces ? pieces_each(p->plan) : 0;
    for (int32_t k = 0; k < p->kind_count && job->pieces; k++)
        p->kinds[k].pieces =
            SBP_NEW_ARRAY(p->arena, sbp_sketch_piece, (int64_t)p->kinds[k].tensors * p->pieces_each);
    return SBP_OK;
}

sbp_status sbp_sketch_create(sbp_diag *diag, const sbp_plan *plan, sbp_dtype dtype, bool pieces,
                             sbp_sketch **out) {
    sbp_arena *arena = sbp_arena_create();
    sbp_sketch *p = sbp_malloc(sizeof *p);
    if (!arena || !p) {
        sbp_arena_destroy(arena);
        free(p);
        return sbp_fail(diag, SBP_MACHINE, "out of memory for gradients");
    }
    *p = (sbp_sketch){.arena = arena, .plan = plan, .dtype = dtype};
    create_job job = {.sketch = p, .pieces = pieces};
    sbp_status status = sbp_guard(arena, diag, prepare, &job);
    if (status != SBP_OK)
        sbp_sketch_destroy(p);
    else
        *out = p;
    return status;
}

void sbp_sketch_destroy(sbp_sketch *p) {
    if (!p)
        return;
    sbp_arena_destroy(p->arena);
    free(p);
}

/* Signs of elements 64 n .. 64 n + 63, by bit. */
static uint64_t signs_of(int64_t n) {
    uint64_t x = (uint64_t)n * 0x9e3779b97f4a7c15u + 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static double number_at(const sbp_sketch *p, int64_t i) {
    return p->dtype == SBP_F64 ? p->buffer[i] : (double)((const float *)(const void *)p->buffer)[i];
}

/* Elements [at, at + count) of the buffer are first + .. of the tensor; PIECE divides `first`. The square of
 * their norm. */
static double add_to_sketch(const sbp_sketch *p, sbp_sketch_tensor *tensor, int64_t at, int64_t first,
                            int64_t count) {
    double square = 0;
    for (int64_t i = 0; i < count; i += 64) {
        uint64_t signs = signs_of((first + i) / 64);
        double *sums = tensor->sums + (first + i) % SBP_SKETCH_SUMS;
        int64_t n = count - i < 64 ? count - i : 64;
        for (int64_t k = 0; k < n; k++, signs >>= 1) {
            double g = number_at(p, at + i + k);
            sums[k] += signs & 1 ? g : -g;
            square += g * g;
        }
    }
    return square;
}

/* The place that a piece of this norm takes; NULL: those of the tensor that are there are larger. */
static sbp_sketch_piece *place_of(sbp_sketch *p, int32_t tensor, double square) {
    sbp_sketch_kind *kind = &p->kinds[p->tensors[tensor].kind];
    sbp_sketch_piece *least = NULL;
    int32_t count = 0;
    for (int32_t k = 0; k < kind->count; k++) {
        sbp_sketch_piece *piece = &kind->pieces[k];
        if (piece->tensor != tensor)
            continue;
        count++;
        if (!least || piece->square < least->square)
            least = piece;
    }
    if (count == p->pieces_each)
        return least && least->square < square ? least : NULL;
    least = &kind->pieces[kind->count++];
    least->gradient = sbp_arena_array(p->arena, PIECE, sizeof(double));
    return least;
}

static void keep_piece(sbp_sketch *p, int32_t tensor, int64_t at, int64_t first, int64_t count,
                       double square) {
    sbp_sketch_piece *piece = p->pieces_each > 0 && square > 0 ? place_of(p, tensor, square) : NULL;
    if (!piece)
        return;
    *piece = (sbp_sketch_piece){
        .tensor = tensor, .first = first, .count = count, .square = square, .gradient = piece->gradient};
    for (int64_t i = 0; i < count; i++)
        piece->gradient[i] = number_at(p, at + i);
}

typedef struct take_job {
    sbp_sketch *sketch;
    const sbp_gradient *gradient;
    int32_t tensor;
    sbp_diag *diag;
} take_job;

static sbp_status take(void *user) {
    const take_job *job = user;
    sbp_sketch *p = job->sketch;
    sbp_sketch_tensor *tensor = &p->tensors[job->tensor];
    int64_t all = p->plan->tensors->tensors[job->tensor].map.elems;
    double square = 0;
    tensor->seen = true;
    tensor->hash = 0;
    for (int64_t first = 0; first < all; first += READ) {
        int64_t count = all - first < READ ? all - first : READ;
        SBP_TRY(sbp_gradient_read(job->gradient, first, count, p->dtype, p->buffer, job->diag));
        tensor->hash = sbp_hash_bytes(p->buffer, (size_t)(count * sbp_dtype_bytes(p->dtype)), tensor->hash);
        for (int64_t at = 0; at < count; at += PIECE) {
            int64_t n = count - at < PIECE ? count - at : PIECE;
            double of_piece = add_to_sketch(p, tensor, at, first + at, n);
            square += of_piece;
            keep_piece(p, job->tensor, at, first + at, n, of_piece);
        }
    }
    tensor->norm = sqrt(square);
    return SBP_OK;
}

sbp_status sbp_sketch_take(void *user, const sbp_gradient *gradient, bool *skip, sbp_diag *diag) {
    sbp_sketch *p = user;
    int32_t t = p->plan->tensor_of[gradient->parameter];
    const sbp_tensor_entry *entry = t < 0 ? NULL : &p->plan->tensors->tensors[t];
    *skip = true;
    if (!entry || !entry->trainable || p->tensors[t].seen ||
        gradient->span.rows * gradient->span.cols != entry->map.elems)
        return sbp_fail(diag, SBP_INPUT,
                        "the plan's gradient of '%.200s': not of a trainable parameter, or a second one",
                        p->plan->program->buffers[gradient->parameter].name);
    take_job job = {.sketch = p, .gradient = gradient, .tensor = t, .diag = diag};
    return sbp_guard(p->arena, diag, take, &job);
}

int32_t sbp_sketch_missing(const sbp_sketch *p) {
    for (int32_t t = 0; t < p->plan->tensors->count; t++)
        if (p->tensors[t].kind >= 0 && !p->tensors[t].seen)
            return t;
    return -1;
}

double sbp_sketch_difference(const sbp_sketch *a, const sbp_sketch *b, int32_t tensor) {
    double square = 0;
    for (int32_t k = 0; k < SBP_SKETCH_SUMS; k++) {
        double d = a->tensors[tensor].sums[k] - b->tensors[tensor].sums[k];
        square += d * d;
    }
    return sqrt(square);
}
