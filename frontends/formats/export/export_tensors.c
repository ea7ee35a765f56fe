/* export_tensors.c: rearranged tensors, a few MiB at a time. */
#include <stdlib.h>
#include <string.h>

#include "frontends/formats/export/export_internal.h"

enum { PIECE_ELEMS = 1 << 20, RUN_ELEMS = 1 << 20 };

/* ---- views -------------------------------------------------------------------------------------------- */

bool sbp_exp_view_of(const sbp_gguf_piece *piece, const sbp_weight *weight, exp_view *out) {
    exp_view v = {.weight = weight, .base = piece->hf_base};
    int64_t order[SBP_GGUF_LOOPS], inside = 1;
    for (int32_t k = 0; k < piece->loop_count; k++) { /* widest strides of the file first */
        const sbp_gguf_loop *loop = &piece->loops[k];
        int32_t at = v.rank;
        if (loop->extent == 1)
            continue;
        for (; at > 0 && order[at - 1] < loop->file; at--) {
            order[at] = order[at - 1];
            v.extent[at] = v.extent[at - 1];
            v.stride[at] = v.stride[at - 1];
        }
        order[at] = loop->file;
        v.extent[at] = loop->extent;
        v.stride[at] = loop->hf;
        v.rank++;
    }
    if (v.rank == 0) { /* a scalar */
        v.rank = 1;
        v.extent[0] = v.stride[0] = order[0] = 1;
    }
    for (int32_t d = v.rank - 1; d >= 0; d--) {
        if (order[d] != inside)
            return false;
        inside *= v.extent[d];
    }
    *out = v;
    return true;
}

int64_t sbp_exp_view_elems(const exp_view *v) {
    int64_t elems = 1;
    for (int32_t d = 0; d < v->rank; d++)
        elems *= v->extent[d];
    return elems;
}

/* ---- numbers ------------------------------------------------------------------------------------------ */

typedef struct streamer {
    sbp_diag *diag;
    sbp_gguf_writer *writer;
    const exp_tensor *tensor;
    const exp_piece *piece;
    bool (*stop)(void);
    float *numbers; /* [PIECE_ELEMS + 64] a part of the tensor, in its order */
    float *run;     /* [RUN_ELEMS] what was read, of one run of the source */
    uint8_t *coded;
    bool adding;  /* to what was gathered, what the adapter adds */
    int64_t held; /* of numbers: those left from before, less than a block */
} streamer;

/* Elements of scale x B A that a run of the source covers, within one row of it. */
static void add_part(const exp_low_rank *lr, int64_t row, int64_t column, int64_t count, float *run) {
    double sum[256];
    for (int64_t at = 0; at < count; at += SBP_COUNT(sum)) {
        int64_t n = count - at < SBP_COUNT(sum) ? count - at : SBP_COUNT(sum), first = column + at;
        memset(sum, 0, sizeof sum);
        for (int64_t r = 0; r < lr->rank; r++)
            for (int64_t i = 0; i < n; i++) {
                int64_t o = lr->in_out ? first + i : row, k = lr->in_out ? row : first + i;
                sum[i] += lr->scale * (double)lr->b[o * lr->rank + r] * (double)lr->a[r * lr->in + k];
            }
        for (int64_t i = 0; i < n; i++)
            run[at + i] = (float)((double)run[at + i] + sum[i]);
    }
}

/* In double, one sum an element, as a run that merges its adapter adds it. */
static void add_low_rank(const exp_low_rank *lr, int64_t first, int64_t count, float *run) {
    int64_t width = lr->in_out ? lr->out : lr->in;
    for (int64_t at = 0; at < count;) {
        int64_t row = (first + at) / width, column = (first + at) % width;
        int64_t n = width - column < count - at ? width - column : count - at;
        add_part(lr, row, column, n, run + at);
        at += n;
    }
}

/* Axes of what is gathered, each with its stride in the source and in the piece. */
typedef struct gathering {
    const streamer *s;
    int32_t count;
    int64_t extent[EXP_MAX_AXES], from[EXP_MAX_AXES], to[EXP_MAX_AXES];
    float *out;
} gathering;

/* A run of the source, to every so-manieth number; or what an adapter adds there, added. */
static sbp_status gather_piece(const streamer *s, int64_t from, int64_t count, float *out, int64_t stride) {
    const exp_piece *p = s->piece;
    if (!s->adding) {
        float *to = stride == 1 ? out : s->run;
        SBP_TRY(sbp_weights_read(p->weights, p->view.weight, from, count, SBP_F32, to, s->diag));
    }
    for (int64_t i = 0; s->adding && i < count; i++)
        s->run[i] = out[i * stride];
    if (s->adding)
        add_low_rank(p->adapter, from, count, s->run);
    for (int64_t i = 0; (s->adding || stride != 1) && i < count; i++)
        out[i * stride] = s->run[i];
    return SBP_OK;
}

/* Runs of the innermost axis, which follows the source. */
static sbp_status gather_run(const gathering *g, int64_t from, int64_t to) {
    int32_t last = g->count - 1;
    int64_t stride = g->to[last];
    for (int64_t at = 0; at < g->extent[last]; at += RUN_ELEMS) {
        int64_t n = g->extent[last] - at < RUN_ELEMS ? g->extent[last] - at : RUN_ELEMS;
        SBP_TRY(gather_piece(g->s, from + at, n, g->out + to + at * stride, stride));
    }
    return SBP_OK;
}

static sbp_status gather_axis(const gathering *g, int32_t axis, int64_t from, int64_t to) {
    if (axis == g->count - 1)
        return gather_run(g, from, to);
    for (int64_t i = 0; i < g->extent[axis]; i++)
        SBP_TRY(gather_axis(g, axis + 1, from + i * g->from[axis], to + i * g->to[axis]));
    return SBP_OK;
}

/* Axes from `first` on, of which that one has `length` indices, into out: the source is read in its order. */
static sbp_status gather(const streamer *s, const exp_view *v, int32_t first, int64_t length, int64_t from,
                         float *out) {
    gathering g = {.s = s, .out = out};
    int64_t to = 1;
    for (int32_t d = v->rank - 1; d >= first; d--) {
        int64_t extent = d == first ? length : v->extent[d];
        int32_t at = g.count;
        for (; extent > 1 && at > 0 && g.from[at - 1] < v->stride[d]; at--) { /* widest strides first */
            g.extent[at] = g.extent[at - 1];
            g.from[at] = g.from[at - 1];
            g.to[at] = g.to[at - 1];
        }
        if (extent > 1) {
            g.extent[at] = extent;
            g.from[at] = v->stride[d];
            g.to[at] = to;
            g.count++;
        }
        to *= extent;
    }
    if (g.count == 0 || g.from[g.count - 1] != 1) { /* single elements */
        g.extent[g.count] = g.from[g.count] = g.to[g.count] = 1;
        g.count++;
    }
    int32_t inner = g.count - 1; /* neighbours on both sides are one run */
    while (inner > 0 && g.to[inner] == 1 && g.from[inner - 1] == g.extent[inner] &&
           g.to[inner - 1] == g.extent[inner]) {
        g.extent[inner - 1] *= g.extent[inner];
        g.from[inner - 1] = g.to[inner - 1] = 1;
        inner--;
        g.count--;
    }
    return gather_axis(&g, 0, from, 0);
}

/* ---- writing ------------------------------------------------------------------------------------------ */

static void change(const streamer *s, float *numbers, int64_t count) {
    for (int64_t i = 0; s->tensor->rule != SBP_GGUF_AS_IS && i < count; i++)
        numbers[i] = (float)sbp_gguf_to_file(s->tensor->rule, (double)numbers[i]);
}

/* Writes whole blocks of what is there; what is left of one waits. */
static sbp_status write_numbers(streamer *s, int64_t count) {
    sbp_gguf_tensor_type type = s->tensor->out.type;
    int64_t block = sbp_gguf_block_elems(type), all = s->held + count, whole = all / block * block;
    change(s, s->numbers + s->held, count);
    sbp_gguf_encode(type, s->numbers, whole, s->coded);
    memmove(s->numbers, s->numbers + whole, (size_t)(all - whole) * sizeof *s->numbers);
    s->held = all - whole;
    if (s->stop && s->stop())
        return SBP_INTERRUPTED;
    return sbp_gguf_writer_write(s->writer, s->diag, s->coded, whole / block * sbp_gguf_block_bytes(type));
}

/* Indices of an axis, all that is inside them, as many at a time as fit; an axis whose inside does not fit is
 * taken index by index. The delta has the view's axes. */
static sbp_status write_axis(streamer *s, int32_t axis, int64_t from, int64_t delta_from) {
    const exp_view *v = &s->piece->view, *delta = &s->piece->delta;
    int64_t inside = 1;
    for (int32_t d = axis + 1; d < v->rank; d++)
        inside *= v->extent[d];
    if (inside > PIECE_ELEMS) {
        for (int64_t i = 0; i < v->extent[axis]; i++)
            SBP_TRY(
                write_axis(s, axis + 1, from + i * v->stride[axis], delta_from + i * delta->stride[axis]));
        return SBP_OK;
    }
    int64_t step = PIECE_ELEMS / inside;
    for (int64_t i = 0; i < v->extent[axis]; i += step) {
        int64_t n = v->extent[axis] - i < step ? v->extent[axis] - i : step;
        s->adding = false;
        SBP_TRY(gather(s, v, axis, n, from + i * v->stride[axis], s->numbers + s->held));
        s->adding = s->piece->adapter != NULL;
        if (s->adding)
            SBP_TRY(gather(s, delta, axis, n, delta_from + i * delta->stride[axis], s->numbers + s->held));
        SBP_TRY(write_numbers(s, n * inside));
    }
    return SBP_OK;
}

/* Blocks as they are in the source, a run of them at a time: the last axis of the view follows it. */
static sbp_status write_blocks(streamer *s, const exp_view *v, int32_t axis, int64_t from) {
    enum { BLOCK = 32, CODES = 16, MOST = 1024 };
    if (axis < v->rank - 1) {
        for (int64_t i = 0; i < v->extent[axis]; i++)
            SBP_TRY(write_blocks(s, v, axis + 1, from + i * v->stride[axis]));
        return SBP_OK;
    }
    uint8_t *codes = s->coded, *scales = codes + MOST * CODES, *out = scales + MOST;
    for (int64_t at = 0; at < v->extent[axis]; at += MOST * BLOCK) {
        int64_t n = v->extent[axis] - at < MOST * BLOCK ? v->extent[axis] - at : MOST * BLOCK;
        SBP_TRY(sbp_weights_read_blocks(s->piece->weights, v->weight, (from + at) / BLOCK, n / BLOCK,
                                        (void *const[]){codes, scales}, s->diag));
        for (int64_t b = 0; b < n / BLOCK; b++) {
            out[b * (CODES + 1)] = scales[b];
            memcpy(out + b * (CODES + 1) + 1, codes + b * CODES, CODES);
        }
        SBP_TRY(sbp_gguf_writer_write(s->writer, s->diag, out, n / BLOCK * (CODES + 1)));
    }
    return s->stop && s->stop() ? SBP_INTERRUPTED : SBP_OK;
}

static sbp_status write_tensor(streamer *s) {
    const exp_tensor *t = s->tensor;
    int64_t count = sbp_gguf_tensor_elems(&t->out);
    s->held = 0;
    for (int64_t at = 0; t->numbers && at < count; at += PIECE_ELEMS) {
        int64_t n = count - at < PIECE_ELEMS ? count - at : PIECE_ELEMS;
        memcpy(s->numbers + s->held, t->numbers + at, (size_t)n * sizeof *s->numbers);
        SBP_TRY(write_numbers(s, n));
    }
    for (int32_t p = 0; !t->numbers && p < t->piece_count; p++) {
        s->piece = &t->pieces[p];
        if (t->out.type == SBP_GGUF_TENSOR_MXFP4)
            SBP_TRY(write_blocks(s, &s->piece->view, 0, s->piece->view.base));
        else
            SBP_TRY(write_axis(s, 0, s->piece->view.base, s->piece->delta.base));
    }
    return SBP_OK;
}

sbp_status sbp_exp_write_tensors(sbp_diag *diag, const exp_tensor *tensors, int32_t count, bool (*stop)(void),
                                 sbp_gguf_writer *writer) {
    streamer s = {.diag = diag,
                  .writer = writer,
                  .stop = stop,
                  .numbers = sbp_malloc((PIECE_ELEMS + 64) * sizeof(float)),
                  .run = sbp_malloc(RUN_ELEMS * sizeof(float)),
                  .coded = sbp_malloc((PIECE_ELEMS + 64) * sizeof(float))};
    sbp_status status = SBP_OK;
    if (!s.numbers || !s.run || !s.coded)
        status = sbp_fail(diag, SBP_MACHINE, "out of memory for converting tensors");
    for (int32_t i = 0; status == SBP_OK && i < count; i++) {
        s.tensor = &tensors[i];
        status = write_tensor(&s);
    }
    free(s.numbers);
    free(s.run);
    free(s.coded);
    return status;
}
