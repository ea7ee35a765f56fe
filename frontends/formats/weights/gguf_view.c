/* gguf_view.c: tensors of a GGUF file under the names, and in the shapes, that a Hugging Face directory has
 * them: so who reads weights need not know that there is such a file. A view is pieces of one or more tensors
 * of the file (gguf_table.h); what is asked of it is read piece by piece, in runs of neighbours. Blocks stay
 * blocks where all pieces have them whole. */
#include "frontends/formats/weights/gguf_traits.h"
#include "frontends/formats/weights/weights_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct sbp_gguf_part {
    const sbp_gguf_piece *piece;
    const sbp_weight *from;
} part;

/* ---- reading ------------------------------------------------------------------------------------------ */

/* Elements (or blocks) first .. end - 1 of the view, on their way out. */
typedef struct reading {
    const sbp_weights *w;
    const sbp_weight *t;
    const part *p;
    sbp_diag *diag;
    int64_t unit; /* elements that loops count as one: 1, or a block */
    int64_t first, end;
    int64_t lowest, highest, runs; /* of the file, once surveyed */
    sbp_dtype dtype;
    char *out;
    const char *span;   /* elements from `lowest` on, where they were read at once; NULL */
    void *const *parts; /* of blocks */
} reading;

typedef sbp_status (*visitor)(reading *r, int64_t hf, int64_t file, int64_t count);

/* How far a loop and those within it reach, in units of hf. */
static int64_t reach_of(const reading *r, int32_t level) {
    int64_t reach = 1;
    for (int32_t k = level; k < r->p->piece->loop_count; k++) {
        const sbp_gguf_loop *loop = &r->p->piece->loops[k];
        bool last = k == r->p->piece->loop_count - 1;
        int64_t extent = last ? loop->extent / r->unit : loop->extent,
                step = last ? loop->hf : loop->hf / r->unit;
        reach += (extent - 1) * step;
    }
    return reach;
}

/* Visits runs of neighbours that lie in [first, end), in the order of hf. */
static sbp_status walk(reading *r, int32_t level, int64_t hf, int64_t file, visitor visit) {
    const sbp_gguf_piece *piece = r->p->piece;
    bool last = level == piece->loop_count - 1;
    const sbp_gguf_loop *loop = &piece->loops[level];
    int64_t extent = last ? loop->extent / r->unit : loop->extent;
    int64_t hf_step = last ? loop->hf : loop->hf / r->unit,
            file_step = last ? loop->file : loop->file / r->unit;
    int64_t within = last ? 1 : reach_of(r, level + 1), low = 0, high = extent;
    if (hf + within <= r->first)
        low = (r->first - hf - within) / hf_step + 1;
    if (hf + (high - 1) * hf_step >= r->end)
        high = r->end <= hf ? 0 : sbp_ceil_div(r->end - hf, hf_step);
    if (low >= high)
        return SBP_OK;
    if (last && hf_step == 1 && file_step == 1)
        return visit(r, hf + low, file + low, high - low);
    for (int64_t i = low; i < high; i++)
        SBP_TRY(last ? visit(r, hf + i * hf_step, file + i * file_step, 1)
                     : walk(r, level + 1, hf + i * hf_step, file + i * file_step, visit));
    return SBP_OK;
}

static sbp_status walk_part(reading *r, visitor visit) {
    return walk(r, 0, r->p->piece->hf_base / r->unit, r->p->piece->file_base / r->unit, visit);
}

static sbp_status survey(reading *r, int64_t hf, int64_t file, int64_t count) {
    (void)hf;
    r->lowest = r->runs == 0 || file < r->lowest ? file : r->lowest;
    r->highest = r->runs == 0 || file + count - 1 > r->highest ? file + count - 1 : r->highest;
    r->runs++;
    return SBP_OK;
}

static sbp_status put(reading *r, int64_t hf, int64_t file, int64_t count) {
    int64_t size = sbp_dtype_bytes(r->dtype);
    char *to = r->out + (hf - r->first) * size;
    if (!r->span)
        return sbp_weights_read(r->w, r->p->from, file, count, r->dtype, to, r->diag);
    memcpy(to, r->span + (file - r->lowest) * size, (size_t)(count * size));
    return SBP_OK;
}

/* Numbers that are not the file's own, computed in fp64. */
static sbp_status put_computed(reading *r, int64_t hf, int64_t file, int64_t count) {
    enum { PIECE = 256 };
    double values[PIECE];
    for (int64_t at = 0; at < count; at += PIECE) {
        int64_t n = count - at < PIECE ? count - at : PIECE;
        SBP_TRY(sbp_weights_read(r->w, r->p->from, file + at, n, SBP_F64, values, r->diag));
        for (int64_t i = 0; i < n; i++) {
            double value = sbp_gguf_to_hf(r->p->piece->rule, values[i]);
            if (isnan(value) && !isnan(values[i]))
                return sbp_fail(
                    r->diag, SBP_INPUT,
                    "%s: tensor '%s': element %lld is %g; a number below 0 is expected, of which '%s' "
                    "has the logarithm",
                    r->t->path, r->p->from->name, (long long)(file + at + i), values[i], r->t->name);
            sbp_element_set(r->out, r->dtype, hf - r->first + at + i, value);
        }
    }
    return SBP_OK;
}

enum {
    MOST = 1 << 16,
    /* elements at a time */ MOST_MORE = 8 /* as many are read at once where runs are short */
};

/* At most MOST elements: run by run, or all between the first and the last at once where those are
 * not many more. */
static sbp_status read_part(reading *r) {
    if (r->p->piece->rule != SBP_GGUF_AS_IS)
        return walk_part(r, put_computed);
    r->runs = 0;
    r->span = NULL;
    SBP_TRY(walk_part(r, survey));
    int64_t count = r->runs > 0 ? r->highest - r->lowest + 1 : 0;
    if (r->runs < 2 || count > (int64_t)MOST_MORE * MOST)
        return walk_part(r, put);
    char *span = sbp_malloc((size_t)(count * sbp_dtype_bytes(r->dtype)));
    if (!span)
        return sbp_fail(r->diag, SBP_MACHINE, "out of memory reading '%s'", r->t->name);
    sbp_status status = sbp_weights_read(r->w, r->p->from, r->lowest, count, r->dtype, span, r->diag);
    r->span = span;
    if (status == SBP_OK)
        status = walk_part(r, put);
    r->span = NULL;
    free(span);
    return status;
}

static sbp_status read_view(const sbp_weights *w, const sbp_weight *t, int64_t first, int64_t count,
                            sbp_dtype dtype, void *out, sbp_diag *diag) {
    for (int64_t at = 0; at < count; at += MOST) {
        int64_t n = count - at < MOST ? count - at : MOST;
        reading r = {.w = w,
                     .t = t,
                     .diag = diag,
                     .unit = 1,
                     .first = first + at,
                     .end = first + at + n,
                     .dtype = dtype,
                     .out = (char *)out + at * sbp_dtype_bytes(dtype)};
        for (int32_t k = 0; k < t->view->count; k++) {
            r.p = &t->view->parts[k];
            SBP_TRY(read_part(&r));
        }
    }
    return SBP_OK;
}

static sbp_status put_blocks(reading *r, int64_t hf, int64_t file, int64_t count) {
    const sbp_format_info *f = sbp_format_of(r->t->format);
    void *to[SBP_MAX_FORMAT_PARTS];
    for (int32_t k = 0; k < f->part_count; k++)
        to[k] =
            (uint8_t *)r->parts[k] + (hf - r->first) * f->parts[k].count * sbp_dtype_bytes(f->parts[k].dtype);
    return sbp_weights_read_blocks(r->w, r->p->from, file, count, to, r->diag);
}

static sbp_status read_view_blocks(const sbp_weights *w, const sbp_weight *t, int64_t first, int64_t count,
                                   void *const *parts, sbp_diag *diag) {
    reading r = {.w = w,
                 .t = t,
                 .diag = diag,
                 .unit = sbp_format_of(t->format)->block,
                 .first = first,
                 .end = first + count,
                 .parts = parts};
    for (int32_t k = 0; k < t->view->count; k++) {
        r.p = &t->view->parts[k];
        SBP_TRY(walk_part(&r, put_blocks));
    }
    return SBP_OK;
}

/* ---- finding ----------------------------------------------------------------------------------------- */

static bool shape_of(void *user, const char *name, int32_t *rank, int64_t *dim) {
    const sbp_weights *w = user;
    int32_t at = sbp_map_get(&w->by_name, name);
    if (at < 0 || w->weights[at].rank > SBP_MAX_RANK)
        return false;
    *rank = w->weights[at].rank;
    memcpy(dim, w->weights[at].dim, (size_t)*rank * sizeof *dim);
    return true;
}

/* Whether blocks of `block` elements are blocks on both sides, too. */
static bool keeps_blocks(const sbp_gguf_piece *p, int64_t block) {
    const sbp_gguf_loop *last = &p->loops[p->loop_count - 1];
    bool whole = p->hf_dim[p->hf_rank - 1] % block == 0 && p->file_dim[p->file_rank - 1] % block == 0 &&
                 p->rule == SBP_GGUF_AS_IS && last->hf == 1 && last->file == 1 && last->extent % block == 0 &&
                 p->hf_base % block == 0 && p->file_base % block == 0;
    for (int32_t k = 0; k < p->loop_count - 1; k++)
        whole = whole && p->loops[k].hf % block == 0 && p->loops[k].file % block == 0;
    return whole;
}

/* What all parts have in common. */
static void describe(sbp_weight *t) {
    const part *first = &t->view->parts[0];
    t->encoding = first->from->encoding;
    t->readable = true;
    t->dtype = first->from->dtype;
    t->format = first->from->format;
    for (const part *p = first; p < first + t->view->count; p++) {
        t->readable = t->readable && p->from->readable;
        t->quantized = t->quantized || p->from->quantized;
        if (!p->from->readable)
            t->encoding = p->from->encoding;
        if (p->from->dtype != t->dtype)
            t->dtype = p->from->dtype == SBP_F64 || t->dtype == SBP_F64 ? SBP_F64 : SBP_F32;
        if (p->from->format != t->format ||
            (t->format && !keeps_blocks(p->piece, sbp_format_of(t->format)->block)))
            t->format = SBP_FORMAT_NONE;
    }
}

static int64_t count_elems(const part *p) {
    int64_t n = 1;
    for (int32_t k = 0; k < p->piece->loop_count; k++)
        n *= p->piece->loops[k].extent;
    return n;
}

/* Whether the parts are the whole tensor. */
static bool is_whole(const sbp_weight *t) {
    int64_t n = 0;
    for (int32_t k = 0; k < t->view->count; k++)
        n += count_elems(&t->view->parts[k]);
    return n == t->elems;
}

static sbp_weight *find_or_add(sbp_weights *w, const sbp_gguf_piece *piece, const sbp_weight *from) {
    int32_t at = sbp_map_get(&w->view_by_name, piece->hf);
    if (at < 0) {
        sbp_weight t = {.name = piece->hf,
                        .path = from->path,
                        .rank = piece->hf_rank,
                        .dim = piece->hf_dim,
                        .elems = 1,
                        .file = from->file,
                        .codec = CODEC_VIEW,
                        .view = SBP_NEW(w->arena, struct sbp_gguf_view)};
        t.view->read = read_view;
        t.view->read_blocks = read_view_blocks;
        for (int32_t d = 0; d < t.rank; d++)
            t.elems *= t.dim[d];
        at = w->view_count;
        sbp_map_set(&w->view_by_name, t.name, at);
        SBP_PUSH(w->arena, w->views, w->view_count, w->view_capacity, t);
    }
    return &w->views[at];
}

static sbp_status add_piece(sbp_weights *w, sbp_diag *diag, const sbp_gguf_piece *piece) {
    const sbp_weight *from = &w->weights[sbp_map_get(&w->by_name, piece->file)];
    sbp_weight *t = find_or_add(w, piece, from);
    if (t->rank != piece->hf_rank || memcmp(t->dim, piece->hf_dim, (size_t)t->rank * sizeof *t->dim) != 0)
        return sbp_fail(diag, SBP_INPUT,
                        "%s: tensors '%s' and '%s' do not make one '%s': their shapes differ", from->path,
                        t->view->parts[0].from->name, from->name, t->name);
    SBP_PUSH(w->arena, t->view->parts, t->view->count, t->view->capacity, (part){piece, from});
    return SBP_OK;
}

static void list_sources(sbp_weights *w, sbp_weight *t) {
    t->sources = SBP_NEW_ARRAY(w->arena, const sbp_weight *, t->view->count);
    for (int32_t k = 0; k < t->view->count; k++)
        t->sources[t->source_count++] = t->view->parts[k].from;
}

/* Numbers that a file has as a key, of each layer or one for all, as tensors "blk.<layer>.<key>". */
static sbp_status add_key(sbp_weights *w, sbp_diag *diag, const sbp_gguf_facts *facts, const char *key) {
    static const int64_t one[] = {1};
    const sbp_gguf_value *v = sbp_gguf_find(w->gguf, key);
    if (!v)
        return SBP_OK; /* then the model has no tensor of it, which who builds it says */
    if (v->type != SBP_GGUF_F32 || (v->is_array && v->count < facts->layers))
        return sbp_fail(diag, SBP_INPUT,
                        "%s: key '%s': expected a number of type f32 for each layer, found %s%s", w->path,
                        key, v->is_array ? "an array of " : "", sbp_gguf_type_name(v->type));
    int32_t file = w->file_count;
    SBP_PUSH(w->arena, w->files, w->file_count, w->file_capacity,
             (weights_file){
                 .path = w->path, .fd = -1, .bytes = v->count * (int64_t)sizeof(float), .memory = v->raw});
    for (int64_t i = 0; i < facts->layers; i++) {
        sbp_weight t = {.name = sbp_arena_printf(w->arena, "blk.%lld.%s", (long long)i, key),
                        .encoding = "F32",
                        .readable = true,
                        .dtype = SBP_F32,
                        .rank = 1,
                        .dim = one,
                        .elems = 1,
                        .path = w->path,
                        .file = file,
                        .codec = SBP_F32,
                        .offset = v->is_array ? i * (int64_t)sizeof(float) : 0,
                        .bytes = sizeof(float)};
        SBP_TRY(sbp_weights_add(w, diag, &t));
    }
    return SBP_OK;
}

static sbp_status add_keys(sbp_weights *w, sbp_diag *diag, const sbp_gguf_facts *facts) {
    static const char *const keys[] = {"xielu.alpha_n", "xielu.alpha_p", "xielu.beta", "xielu.eps"};
    for (int i = 0; sbp_gguf_has(facts->family, XIELU) && i < SBP_COUNT(keys); i++)
        SBP_TRY(add_key(w, diag, facts, keys[i]));
    return SBP_OK;
}

sbp_status sbp_weights_view(sbp_weights *w, sbp_diag *diag) {
    sbp_gguf_facts facts;
    bool found = false;
    if (!w->gguf)
        return SBP_OK;
    SBP_TRY(sbp_gguf_facts_of_keys(diag, w->gguf, &facts, &found));
    if (!found)
        return SBP_OK;
    sbp_gguf_piece *pieces;
    int32_t count;
    sbp_map_init(&w->view_by_name, w->arena);
    SBP_TRY(add_keys(w, diag, &facts));
    SBP_TRY(sbp_gguf_pieces(w->arena, diag, w->path, &facts, SBP_GGUF_FILE, shape_of, w, &pieces, &count));
    for (int32_t i = 0; i < count; i++)
        if (!pieces[i].other_spelling)
            SBP_TRY(add_piece(w, diag, &pieces[i]));
    for (int32_t i = 0; i < w->view_count; i++) {
        sbp_weight *t = &w->views[i];
        if (!is_whole(t))
            return sbp_fail(diag, SBP_INPUT, "%s: beside '%s' a tensor is missing that '%s' is made of, too",
                            t->path, t->view->parts[0].from->name, t->name);
        describe(t);
        list_sources(w, t);
    }
    return SBP_OK;
}
