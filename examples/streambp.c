/* streambp.c: the idea of this project on plain C arrays, to be read first: cc -O2 streambp.c -lm && ./a.out
 *
 * A backward needs the activations of the forward, and they grow with the sequence. StreamBP (Luo, Li, Zhao,
 * Li, arXiv 2506.03077) does not keep them, and its gradients are exact all the same. Let a layer with the
 * weight W make Z, a row for each token. The chain rule is linear in Z, which may be cut into chunks of rows:
 *
 *     dL/dvec(W) = sum over i of (dvec(Z(i)) / dvec(W))^T dL/dvec(Z(i))
 *
 * A term needs the activations of its own chunk alone: recompute them, add the term to the sum, drop them.
 * Only attention reads other rows: keys and values of those before, the carries. They have all rows, but of
 * one layer at a time. The head is cut likewise, so that the logits of all rows never exist.
 *
 * Here are the gradients of a small model as usual, all activations kept, and by chunks of several sizes: the
 * table says how far they are apart, and the most bytes of activations at once. Exit status 1: one is wrong.
 * In the compiler: passes/graph/split.c (chunks, carries), autodiff.c beside it, passes/stream (loops). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* T rows, C of them in a chunk, which begins at row `at`; [..] are shapes. */
enum { T = 199, LAYERS = 2, D = 16, INNER = 40, VOCAB = 300 };

static int label[T]; /* the next token of each row */

typedef struct layer { /* weights: [out, in] */
    double wq[D * D], wk[D * D], wv[D * D], wo[D * D], gate[INNER * D], up[INNER * D], down[D * INNER];
} layer;

typedef struct model { /* or the gradients of all of it; x, the input, stands for an embedding */
    layer layers[LAYERS];
    double head[VOCAB * D], x[T * D];
} model;

/* What a layer has of all rows: [T, D] each. g, the gradient stream: dy before its backward, dx behind it. */
typedef struct sequence {
    double *x, *y, *k, *v, *dk, *dv, *g;
} sequence;

/* What else the backward reads of a chunk: [C, D], of gate, up, act [C, INNER], of lse [C]. */
typedef struct activations {
    double *n1, *q, *o, *h, *n2, *gate, *up, *act, *lse;
} activations;

static double memory[1 << 20]; /* of all of these, a stack */
static size_t used, peak;

static double *take(int count) { /* zeros */
    double *p = memset(memory + used, 0, (size_t)count * sizeof *p);
    used += (size_t)count;
    peak = used > peak ? used : peak;
    return p;
}

static void drop(const double *p) { /* and all that was taken after it */
    used = (size_t)(p - memory);
}

static activations take_activations(int C) {
    double *p = take(5 * C * D), *m = take(3 * C * INNER);
    return (activations){p, p + C * D,     p + 2 * C * D,     p + 3 * C * D, p + 4 * C * D,
                         m, m + C * INNER, m + 2 * C * INNER, take(C)};
}

/* ---- ops and their derivatives: "=" overwrites, "+=" adds to what is there ---------------------------- */
static double dot(const double *a, const double *b, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* y += x w^T     x: [C, in], y: [C, out] */
static void linear(double *y, const double *x, const double *w, int C, int out, int in) {
    for (int r = 0; r < C; r++)
        for (int o = 0; o < out; o++)
            y[r * out + o] += dot(x + r * in, w + o * in, in);
}

/* dx += dy w, dw += dy^T x: a sum over rows, the one that the formula above cuts */
static void linear_bwd(double *dx, double *dw, const double *dy, const double *x, const double *w, int C,
                       int out, int in) {
    for (int r = 0; r < C; r++)
        for (int o = 0; o < out; o++)
            for (int i = 0; i < in; i++) {
                dx[r * in + i] += dy[r * out + o] * w[o * in + i];
                dw[o * in + i] += dy[r * out + o] * x[r * in + i];
            }
}

/* y = x / rms(x)     x, y: [C, D] */
static void rms_norm(double *y, const double *x, int C) {
    for (int i = 0; i < C * D; i++)
        y[i] = x[i] / sqrt(dot(x + i / D * D, x + i / D * D, D) / D);
}

/* dx += .. */
static void rms_norm_bwd(double *dx, const double *dy, const double *x, const double *y, int C) {
    for (int i = 0, row = 0; i < C * D; i++, row = i / D * D)
        dx[i] += (dy[i] - y[i] * dot(dy + row, y + row, D) / D) / sqrt(dot(x + row, x + row, D) / D);
}

/* o += softmax(q k^T / sqrt(D)) v: a row sees the keys up to its own, so that none behind the chunk is read.
 * The probabilities, [C, T], are not kept, only lse, the log of their sum. (Scores are small here.) */
static void attention(const activations *a, const sequence *s, int at, int C) {
    for (int r = 0; r < C; r++) {
        double *q = a->q + r * D, *o = a->o + r * D, sum = 0;
        for (int j = 0; j <= at + r; j++)
            sum += exp(dot(q, s->k + j * D, D) / sqrt(D));
        a->lse[r] = log(sum);
        for (int j = 0; j <= at + r; j++)
            for (int i = 0; i < D; i++)
                o[i] += exp(dot(q, s->k + j * D, D) / sqrt(D) - a->lse[r]) * s->v[j * D + i];
    }
}

/* d->q += ..; dk += .. and dv += .. in the rows of the chunk and in those before it */
static void attention_bwd(const activations *d, const activations *a, const sequence *s, int at, int C) {
    for (int r = 0; r < C; r++)
        for (int j = 0; j <= at + r; j++) {
            const double *q = a->q + r * D, *k = s->k + j * D, *v = s->v + j * D, *d_o = d->o + r * D;
            double p = exp(dot(q, k, D) / sqrt(D) - a->lse[r]);
            double dscore = p * (dot(d_o, v, D) - dot(d_o, a->o + r * D, D)) / sqrt(D);
            for (int i = 0; i < D; i++) {
                d->q[r * D + i] += dscore * k[i];
                s->dk[j * D + i] += dscore * q[i];
                s->dv[j * D + i] += p * d_o[i];
            }
        }
}

/* ---- a chunk of a layer; the head ---------------------------------------------------------------------- */
/* Keys and values of the chunk, into the carries. */
static void append(const layer *w, const sequence *s, int at, int C) {
    double *n1 = take(C * D), *k = s->k + at * D, *v = s->v + at * D;
    rms_norm(n1, s->x + at * D, C);
    linear(memset(k, 0, (size_t)(C * D) * sizeof *k), n1, w->wk, C, D, D);
    linear(memset(v, 0, (size_t)(C * D) * sizeof *v), n1, w->wv, C, D, D);
    drop(n1);
}

/* h = x + attention(norm(x)), y = h + mlp(norm(h)); keys and values are in the carries. */
static void forward(const layer *w, const sequence *s, const activations *a, int at, int C) {
    size_t bytes = (size_t)(C * D) * sizeof(double);
    rms_norm(a->n1, s->x + at * D, C);
    linear(a->q, a->n1, w->wq, C, D, D);
    attention(a, s, at, C);
    linear(memcpy(a->h, s->x + at * D, bytes), a->o, w->wo, C, D, D);
    rms_norm(a->n2, a->h, C);
    linear(a->gate, a->n2, w->gate, C, INNER, D);
    linear(a->up, a->n2, w->up, C, INNER, D);
    for (int i = 0; i < C * INNER; i++)
        a->act[i] = a->gate[i] / (1 + exp(-a->gate[i])) * a->up[i];
    if (s->y) /* else it is recomputed: no derivative reads y */
        linear(memcpy(s->y + at * D, a->h, bytes), a->act, w->down, C, D, INNER);
}

/* The same backwards: dw += .., dk += .., dv += ..; in g dx takes the place of dy, residuals stay there. */
static void backward(const layer *w, layer *dw, const sequence *s, const activations *a, int at, int C) {
    double *g = s->g + at * D;
    activations d = take_activations(C);
    linear_bwd(d.act, dw->down, g, a->act, w->down, C, D, INNER);
    for (int i = 0; i < C * INNER; i++) {
        double sigmoid = 1 / (1 + exp(-a->gate[i]));
        d.up[i] = d.act[i] * a->gate[i] * sigmoid;
        d.gate[i] = d.act[i] * a->up[i] * sigmoid * (1 + a->gate[i] * (1 - sigmoid));
    }
    linear_bwd(d.n2, dw->up, d.up, a->n2, w->up, C, INNER, D);
    linear_bwd(d.n2, dw->gate, d.gate, a->n2, w->gate, C, INNER, D);
    rms_norm_bwd(g, d.n2, a->h, a->n2, C); /* g is dh */
    linear_bwd(d.o, dw->wo, g, a->o, w->wo, C, D, D);
    attention_bwd(&d, a, s, at, C);
    linear_bwd(d.n1, dw->wq, d.q, a->n1, w->wq, C, D, D);
    linear_bwd(d.n1, dw->wk, s->dk + at * D, a->n1, w->wk, C, D, D);
    linear_bwd(d.n1, dw->wv, s->dv + at * D, a->n1, w->wv, C, D, D);
    rms_norm_bwd(g, d.n1, s->x + at * D, a->n1, C);
    drop(d.n1);
}

/* Both of the head, by chunks: the mean cross-entropy is returned; dw += .., g += .. */
static double head(const double *w, double *dw, const double *x, double *g, int C) {
    double loss = 0;
    for (int at = 0, rows; (rows = C < T - at ? C : T - at) > 0; at += C) { /* the last may have fewer rows */
        double *logits = take(rows * VOCAB);                                /* [C, VOCAB] */
        linear(logits, x + at * D, w, rows, VOCAB, D);
        for (int r = 0; r < rows; r++) {
            double *row = logits + r * VOCAB, sum = 0;
            for (int i = 0; i < VOCAB; i++)
                sum += exp(row[i]);
            loss += (log(sum) - row[label[at + r]]) / T;
            for (int i = 0; i < VOCAB; i++) /* their gradient takes their place */
                row[i] = (exp(row[i]) / sum - (i == label[at + r])) / T;
        }
        linear_bwd(g + at * D, dw, logits, x + at * D, w, rows, VOCAB, D);
        drop(logits);
    }
    return loss;
}

/* ---- two schedules of layer l and those above: the loss is returned, dw += .. -------------------------- */
/* As usual: the activations of a layer stay from its forward to its backward, while those above have both. */
static double plain(model *w, model *dw, int l, double *x) {
    if (l == LAYERS)
        return head(w->head, dw->head, x, dw->x, T);
    sequence s = {.x = x, .y = take(T * D), .k = take(T * D), .v = take(T * D), .g = dw->x};
    activations a = take_activations(T);
    append(&w->layers[l], &s, 0, T);
    forward(&w->layers[l], &s, &a, 0, T);
    double loss = plain(w, dw, l + 1, s.y);
    s.dk = take(T * D), s.dv = take(T * D);
    backward(&w->layers[l], &dw->layers[l], &s, &a, 0, T);
    drop(s.y);
    return loss;
}

/* By chunks of C rows: only the input of a layer stays, its checkpoint. (C = T is gradient checkpointing.) */
static double streambp(model *w, model *dw, int C, int l, double *x, double *k, double *v) {
    if (l == LAYERS)
        return head(w->head, dw->head, x, dw->x, C);
    sequence s = {.x = x, .y = take(T * D), .k = k, .v = v, .g = dw->x};
    for (int at = 0, rows; (rows = C < T - at ? C : T - at) > 0; at += C) { /* ascending: carries grow */
        activations a = take_activations(rows);
        append(&w->layers[l], &s, at, rows);
        forward(&w->layers[l], &s, &a, at, rows);
        drop(a.n1);
    }
    double loss = streambp(w, dw, C, l + 1, s.y, k, v);
    drop(s.y);
    s.y = NULL, s.dk = take(T * D), s.dv = take(T * D);
    for (int at = 0, rows; (rows = C < T - at ? C : T - at) > 0; at += C) /* the layer above */
        append(&w->layers[l], &s, at, rows);                              /* has overwritten them */
    /* Descending: rows are keys of their own chunk and of those behind it, so their dk, dv are complete. */
    for (int at = (T - 1) / C * C, rows = T - at; at >= 0; at -= C, rows = C) {
        activations a = take_activations(rows);
        forward(&w->layers[l], &s, &a, at, rows); /* recompute */
        backward(&w->layers[l], &dw->layers[l], &s, &a, at, rows);
        drop(a.n1);
    }
    drop(s.dk);
    return loss;
}

/* ---- the comparison ------------------------------------------------------------------------------------ */
enum { SQUARE = D * D, WIDE = INNER * D, HEAD = VOCAB * D, X = T * D };
static const int counts[] = {SQUARE, SQUARE, SQUARE, SQUARE, WIDE, WIDE, WIDE, /* elements, as in model */
                             SQUARE, SQUARE, SQUARE, SQUARE, WIDE, WIDE, WIDE, HEAD, X};
enum { TENSORS = sizeof counts / sizeof *counts, ALL = sizeof(model) / sizeof(double) };

/* The largest ||a - b|| / ||b|| of a weight; NaN is larger than all. */
static double worst_difference(const double *a, const double *b) {
    double worst = 0;
    for (int t = 0; t < TENSORS; a += counts[t], b += counts[t], t++) {
        double squares = 0;
        for (int i = 0; i < counts[t]; i++)
            squares += (a[i] - b[i]) * (a[i] - b[i]) / dot(b, b, counts[t]);
        worst = isnan(worst) || worst >= sqrt(squares) ? worst : sqrt(squares);
    }
    return worst;
}

/* How far slopes by dw and by the loss on both sides are apart, along random signs of a weight by itself. */
static double worst_slope(const double *w, const double *dw) {
    static double moved[ALL], unused[ALL], sign[ALL];
    double worst = 0, step = 3e-6;
    for (int t = 0, first = 0; t < TENSORS; first += counts[t++]) {
        double slope = 0, norm = sqrt(dot(dw + first, dw + first, counts[t]));
        for (int i = 0; i < ALL; i++)
            sign[i] = i < first || i >= first + counts[t] ? 0 : rand() % 2 * 2 - 1;
        for (int side = -1; side <= 1; side += 2) {
            for (int i = 0; i < ALL; i++)
                moved[i] = w[i] + side * step * sign[i];
            slope += side * plain((model *)moved, (model *)unused, 0, moved + ALL - X) / (2 * step);
        }
        slope = fabs(slope - dot(dw, sign, ALL)) / norm;
        worst = isnan(worst) || worst >= slope ? worst : slope;
    }
    return worst;
}

int main(void) {
    static const int sizes[] = {1, 7, 64, T / 2, T - 1, T, 2 * T};
    static double w[ALL], dw[ALL], streamed[ALL], *x = w + ALL - X;
    for (int i = 0; i < ALL; i++)
        w[i] = rand() / (double)RAND_MAX - 0.5, label[i % T] = rand() % VOCAB;
    plain((model *)w, (model *)dw, 0, x);
    double worst = worst_slope(w, dw);
    int wrong = !(worst <= 1e-6);
    printf("%d rows        worst gradient          activations\n", T);
    printf("plain           %.1e from slopes   %8zu bytes\n", worst, peak * sizeof(double));
    for (int i = 0; i < (int)(sizeof sizes / sizeof *sizes); i++) {
        memset(streamed, 0, sizeof streamed);
        used = peak = 0;
        double *k = take(X), *v = take(X);
        streambp((model *)w, (model *)streamed, sizes[i], 0, x, k, v);
        worst = worst_difference(streamed, dw);
        wrong |= !(worst <= 1e-12);
        printf("chunks of %-5d %.1e from plain    %8zu bytes\n", sizes[i], worst, peak * sizeof(double));
    }
    return wrong;
}
