#include "tests/common/odd_graphs.h"

#include "ir/base/file.h"

typedef struct writer {
    testing *t;
    sbp_text nodes, initializers, inputs;
    int32_t count; /* of values */
    int32_t node_count;
    bool values; /* of parameters */
} writer;

static void separate(sbp_text *text) {
    if (text->length > 0)
        sbp_text_add(text, ",\n");
}

/* A node; attributes and c, b may be NULL. Returns its output. */
static const char *node(writer *w, const char *op, const char *attributes, const char *a, const char *b,
                        const char *c) {
    const char *inputs[] = {a, b, c}, *output = sbp_arena_printf(w->t->arena, "x%d", w->count++);
    separate(&w->nodes);
    sbp_text_add(&w->nodes, "{\"opType\":\"%s\",\"name\":\"n.%s\",\"input\":[", op, output);
    for (int i = 0; i < SBP_COUNT(inputs) && inputs[i]; i++)
        sbp_text_add(&w->nodes, "%s\"%s\"", i ? "," : "", inputs[i]);
    sbp_text_add(&w->nodes, "],\"output\":[\"%s\"],\"attribute\":[%s]}", output,
                 attributes ? attributes : "");
    w->node_count++;
    return output;
}

/* A parameter [rows, cols], or [cols] when rows is 0. */
static const char *param(writer *w, const char *name, int64_t rows, int64_t cols) {
    if (w->values) {
        separate(&w->initializers);
        sbp_text_add(&w->initializers, "{\"name\":\"%s\",\"dataType\":1,\"dims\":[", name);
        if (rows > 0)
            sbp_text_add(&w->initializers, "\"%lld\",", (long long)rows);
        sbp_text_add(&w->initializers, "\"%lld\"", (long long)cols);
        sbp_text_add(&w->initializers, "],\"floatData\":[");
        for (int64_t i = 0; i < (rows > 0 ? rows : 1) * cols; i++)
            sbp_text_add(&w->initializers, "%s%.6g", i ? "," : "", testing_uniform(w->t, -1, 1));
        sbp_text_add(&w->initializers, "]}");
        return name;
    }
    separate(&w->inputs);
    sbp_text_add(&w->inputs, "{\"name\":\"%s\",\"type\":{\"tensorType\":{\"elemType\":1,\"shape\":{\"dim\":[",
                 name);
    if (rows > 0)
        sbp_text_add(&w->inputs, "{\"dimValue\":\"%lld\"},", (long long)rows);
    sbp_text_add(&w->inputs, "{\"dimValue\":\"%lld\"}]}}}}", (long long)cols);
    return name;
}

static const char *numbered(writer *w, const char *name, int32_t i) {
    return sbp_arena_printf(w->t->arena, "%s%d", name, i);
}

static const char *square(writer *w, const char *name, int32_t i) {
    return param(w, numbered(w, name, i), ODD_WIDTH, ODD_WIDTH);
}

static const char *integer(writer *w, const char *name, int64_t value) {
    separate(&w->initializers);
    sbp_text_add(&w->initializers,
                 "{\"name\":\"%s\",\"dataType\":7,\"dims\":[\"1\"],\"int64Data\":[\"%lld\"]}", name,
                 (long long)value);
    return name;
}

static const char *slice(writer *w, const char *x, const char *begin, const char *end) {
    const char *inputs = sbp_arena_printf(w->t->arena, "%s\",\"%s\",\"%s\",\"last", x, begin, end);
    return node(w, "Slice", NULL, inputs, NULL, NULL);
}

static const char *add_up(writer *w, const char **list, int32_t count) {
    const char *sum = list[0];
    for (int32_t i = 1; i < count; i++)
        sum = node(w, "Add", NULL, sum, list[i], NULL);
    return sum;
}

static const char *sigmoid(writer *w, const char *x) {
    return node(w, "Sigmoid", NULL, x, NULL, NULL);
}

static const char *product(writer *w, const char *x, const char *weight) {
    return node(w, "MatMul", NULL, x, weight, NULL);
}

static const char *random_op(writer *w, const char *a, const char *b) {
    switch (sbp_rng_below(&w->t->rng, 4)) {
    case 0:
        return sigmoid(w, a);
    case 1:
        return node(w, "Tanh", NULL, a, NULL, NULL);
    case 2:
        return node(w, "Mul", NULL, a, b, NULL);
    default:
        return node(w, "Tanh", NULL, node(w, "Sub", NULL, a, b, NULL), NULL, NULL);
    }
}

static const char *attend(writer *w, const char *q, const char *k, const char *v) {
    const char *heads = "{\"name\":\"is_causal\",\"i\":\"1\",\"type\":\"INT\"},"
                        "{\"name\":\"q_num_heads\",\"i\":\"2\",\"type\":\"INT\"},"
                        "{\"name\":\"kv_num_heads\",\"i\":\"2\",\"type\":\"INT\"}";
    return node(w, "Attention", heads, q, k, v);
}

/* A layer: x + attention of `in`, and `steps` row-wise operators, which tell kinds of layers apart. */
static const char *layer(writer *w, const char *x, const char *in, int32_t i, int32_t steps) {
    const char *q = product(w, in, square(w, "q", i)), *k = product(w, in, square(w, "k", i)),
               *v = product(w, in, square(w, "v", i));
    const char *y = product(w, attend(w, q, k, v), square(w, "o", i));
    for (int32_t s = 0; s < steps; s++)
        y = s % 2 ? sigmoid(w, y) : node(w, "Tanh", NULL, y, NULL, NULL);
    return node(w, "Add", NULL, x, y, NULL);
}

static const char *rotate(writer *w, const char *x, int32_t i) {
    const char *at = sbp_arena_printf(w->t->arena, "at%d", 1 + i * 3 % (ODD_WIDTH - 1));
    const char *right = slice(w, x, at, "end"), *left = slice(w, x, "begin", at);
    return sigmoid(w,
                   node(w, "Concat", "{\"name\":\"axis\",\"i\":\"-1\",\"type\":\"INT\"}", right, left, NULL));
}

static const char *norm(writer *w, const char *x, const char *scale) {
    const char *attributes = "{\"name\":\"axis\",\"i\":\"-1\",\"type\":\"INT\"},"
                             "{\"name\":\"epsilon\",\"f\":0.001,\"type\":\"FLOAT\"}";
    return node(w, "RMSNormalization", attributes, x, scale, NULL);
}

/* What layers of the shape `shared` read of each other: as a carry, and by row. */
typedef struct shared {
    const char **carried, **by_row;
    int32_t *since; /* per value by row: the layer that it comes from; -1: from before all */
    int32_t carried_count, by_row_count;
} shared;

static void share(shared *s, const char *value, int32_t layer) {
    s->since[s->by_row_count] = layer;
    s->by_row[s->by_row_count++] = value;
}

/* Keys or values: the layer's own, which later ones may read, or those of an earlier one, or (but for layer
 * 0) rows that everybody reads. */
static const char *carried(writer *w, shared *s, const char *x, const char *name, int32_t i) {
    if (s->carried_count > 0 && sbp_rng_below(&w->t->rng, 2))
        return s->carried[sbp_rng_below(&w->t->rng, (uint64_t)s->carried_count)];
    if (i > 0 && sbp_rng_below(&w->t->rng, 6) == 0)
        return s->by_row[0];
    const char *own = product(w, x, square(w, name, i));
    return s->carried[s->carried_count++] = own;
}

/* x + attention, with values by row of layers before the last. What is read is small, so that gradients are
 * neither huge nor nothing. */
static const char *sharing_layer(writer *w, shared *s, const char *x, int32_t i) {
    const char *a = node(w, "Tanh", NULL, x, NULL, NULL);
    const char *q = product(w, a, square(w, "q", i)), *k = carried(w, s, a, "k", i),
               *v = sbp_rng_below(&w->t->rng, 4) ? carried(w, s, a, "v", i) : k;
    const char *y = sigmoid(w, product(w, attend(w, q, k, v), square(w, "o", i)));
    for (int32_t j = s->by_row_count - 1; j >= 0; j--)
        if (s->since[j] < i - 1 && sbp_rng_below(&w->t->rng, 2)) {
            const char *other = s->by_row[j];
            if (sbp_rng_below(&w->t->rng, 2))
                other = product(w, other, square(w, "s", i * 100 + j));
            other = node(w, "Tanh", NULL, other, NULL, NULL);
            y = node(w, sbp_rng_below(&w->t->rng, 2) ? "Mul" : "Add", NULL, y, other, NULL);
        }
    if (sbp_rng_below(&w->t->rng, 4) == 0)
        share(s, q, i);
    if (sbp_rng_below(&w->t->rng, 4) == 0)
        share(s, x, i - 1); /* a stream that is read again */
    return node(w, "Add", NULL, x, y, NULL);
}

/* x through n steps of the shape. */
static const char *steps(writer *w, odd_shape shape, int32_t n, const char *x) {
    const char **values = SBP_NEW_ARRAY(w->t->arena, const char *, n + 1), *p = NULL;
    const char **scales = SBP_NEW_ARRAY(w->t->arena, const char *, n);
    values[0] = x;
    for (int32_t i = 0; shape == ODD_SCALES && i < n; i++) {
        const char *root = param(w, numbered(w, "scale", i), 0, ODD_WIDTH);
        scales[i] = node(w, "Mul", NULL, root, root, NULL);
    }
    if (shape == ODD_NORMS)
        param(w, "scale", 0, ODD_WIDTH);
    for (int64_t i = 0; shape == ODD_ROTATIONS && i <= ODD_WIDTH; i++)
        integer(w, i == 0 ? "begin" : i == ODD_WIDTH ? "end" : numbered(w, "at", (int32_t)i), i);
    if (shape == ODD_ROTATIONS)
        integer(w, "last", -1);
    if (shape == ODD_POSITIONS)
        p = node(
            w, "Unsqueeze", NULL,
            node(w, "Cast", "{\"name\":\"to\",\"i\":\"1\",\"type\":\"INT\"}", "position_ids", NULL, NULL),
            integer(w, "last", -1), NULL);
    shared kept = {.carried = SBP_NEW_ARRAY(w->t->arena, const char *, 2 * n + 1),
                   .by_row = SBP_NEW_ARRAY(w->t->arena, const char *, 2 * n + 2),
                   .since = SBP_NEW_ARRAY(w->t->arena, int32_t, 2 * n + 2)};
    if (shape == ODD_SHARED)
        share(&kept, node(w, "Tanh", NULL, x, NULL, NULL), -1);
    for (int32_t i = 0; i < n; i++) {
        const char *y = values[i];
        switch (shape) {
        case ODD_SHARED:
            y = sharing_layer(w, &kept, y, i);
            break;
        case ODD_DOUBLING:
            y = node(w, "Add", NULL, y, y, NULL);
            break;
        case ODD_DIAMONDS:
            y = node(w, "Mul", NULL, sigmoid(w, y), node(w, "Tanh", NULL, y, NULL, NULL), NULL);
            break;
        case ODD_RANDOM:
            y = random_op(w, y, values[sbp_rng_below(&w->t->rng, (uint64_t)i + 1)]);
            break;
        case ODD_ROTATIONS:
            y = rotate(w, y, i);
            break;
        case ODD_NORMS:
            y = sigmoid(w, norm(w, y, "scale"));
            break;
        case ODD_FAN:
            y = sigmoid(w, node(w, "Add", NULL, x, param(w, numbered(w, "b", i), 0, ODD_WIDTH), NULL));
            break;
        case ODD_PRODUCTS:
            y = sigmoid(w, product(w, y, square(w, "w", i)));
            break;
        case ODD_PRODUCT_FAN:
            y = product(w, x, square(w, "w", i));
            break;
        case ODD_RESIDUALS:
            y = node(w, "Add", NULL, y, sigmoid(w, product(w, y, square(w, "w", i))), NULL);
            break;
        case ODD_POSITIONS:
            p = sigmoid(w, p);
            y = node(w, "Mul", NULL, sigmoid(w, y), p, NULL);
            break;
        case ODD_SCALES:
            y = layer(w, y, norm(w, y, scales[i]), i, 1);
            break;
        case ODD_LAYERS:
        case ODD_KINDS:
            y = layer(w, y, y, i, shape == ODD_KINDS ? i + 1 : 1);
            break;
        default:
            y = sigmoid(w, y);
            break;
        }
        values[i + 1] = y;
    }
    bool sum = shape == ODD_SKIPS || shape == ODD_FAN || shape == ODD_PRODUCT_FAN;
    return sum ? add_up(w, values + 1, n) : values[n];
}

const char *odd_shape_name(odd_shape shape) {
    static const char *const names[] = {
        "chain",    "doubling",    "diamonds",  "skips",     "random", "rotations", "norms",  "fan",
        "products", "product fan", "residuals", "positions", "layers", "kinds",     "scales", "shared"};
    return names[shape];
}

int32_t odd_graph_write(testing *t, odd_shape shape, int32_t n, bool values, const char *path) {
    writer w = {.t = t, .values = values};
    sbp_text all;
    sbp_text_init(&w.nodes, t->arena);
    sbp_text_init(&w.initializers, t->arena);
    sbp_text_init(&w.inputs, t->arena);
    sbp_text_init(&all, t->arena);
    const char *table = param(&w, "embed", ODD_VOCABULARY, ODD_WIDTH);
    const char *x = node(&w, "Gather", NULL, table, "input_ids", NULL);
    const char *y = product(&w, steps(&w, shape, n, x), param(&w, "head", ODD_WIDTH, ODD_VOCABULARY));
    sbp_text_add(&all,
                 "{\"irVersion\":11,\"opsetImport\":[{\"version\":\"23\"}],\"graph\":{\"name\":\"odd\",\n");
    sbp_text_add(&all,
                 "\"node\":[%s,\n{\"opType\":\"Identity\",\"input\":[\"%s\"],\"output\":[\"logits\"]}],\n",
                 w.nodes.data, y);
    sbp_text_add(&all, "\"initializer\":[%s],\n\"input\":[%s%s", w.initializers.data, w.inputs.data,
                 w.inputs.length > 0 ? ",\n" : "");
    for (int i = 0; i < 2; i++)
        sbp_text_add(&all,
                     "%s{\"name\":\"%s\",\"type\":{\"tensorType\":{\"elemType\":7,\"shape\":{\"dim\":[{"
                     "\"dimValue\":\"1\"},"
                     "{\"dimParam\":\"T\"}]}}}}",
                     i ? ",\n" : "", i ? "position_ids" : "input_ids");
    sbp_text_add(&all, "],\n\"output\":[{\"name\":\"logits\"}]}}\n");
    testing_check(t, sbp_file_write(t->diag, path, all.data, all.length));
    return w.node_count + 1;
}
