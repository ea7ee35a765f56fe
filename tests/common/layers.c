/* layers.c: random functions that look like transformer layers. */
#include "tests/common/layers.h"

#include <stdio.h>
#include <string.h>

enum { VOCABULARY = 9 };

typedef struct maker {
    testing *t;
    sbp_module *m;
    sbp_builder b;
    layers_features *has;
    int64_t d, heads, kv_heads, head_size;
    sbp_value pos, first, shared_end, own;
    sbp_value key, value; /* of the block before, NO_VALUE */
    sbp_value weight;     /* some [d, d] weight, for a second use */
} maker;

static bool coin(maker *k, int64_t of) {
    return sbp_rng_below(&k->t->rng, of) == 0;
}

static sbp_value param(maker *k, int32_t rank, int64_t n0, int64_t n1) {
    sbp_type type = {.dtype = SBP_F64, .rank = rank, .dim = {sbp_dim_const(n0), sbp_dim_const(n1)}};
    bool trainable = !(k->has->frozen && coin(k, 2));
    char name[32];
    snprintf(name, sizeof name, "p%d", k->m->param_count);
    int32_t number = sbp_module_add_param(
        k->m,
        &(sbp_param){.name = name, .type = type, .storage = SBP_F64, .trainable = trainable, .pad_row = -1});
    return sbp_build_param(&k->b, number);
}

static sbp_value linear(maker *k, sbp_value x, int64_t in, int64_t out) {
    bool bias = coin(k, 3), turned = coin(k, 3);
    sbp_value w = param(k, 2, turned ? in : out, turned ? out : in);
    if (!turned && in == k->d && out == k->d) {
        if (k->weight != SBP_NO_VALUE && coin(k, 2)) {
            w = k->weight;
            k->has->tied = true;
        }
        k->weight = w;
    }
    return sbp_build(&k->b, SBP_OP_linear, NULL,
                     (sbp_value[]){x, w, bias ? param(k, 1, out, 0) : SBP_NO_VALUE}, 3,
                     (sbp_attr[]){sbp_attr_symbol("layout", turned ? "in_out" : "out_in")}, 1, NULL);
}

static sbp_value norm(maker *k, sbp_value x, int64_t n) {
    if (coin(k, 3))
        return sbp_build(&k->b, SBP_OP_layer_norm, NULL,
                         (sbp_value[]){x, param(k, 1, n, 0), param(k, 1, n, 0)}, 3,
                         (sbp_attr[]){sbp_attr_double("eps", 1e-2)}, 1, NULL);
    bool gemma = coin(k, 2);
    return sbp_build(&k->b, SBP_OP_rms_norm, NULL, (sbp_value[]){x, param(k, 1, n, 0)}, 2,
                     (sbp_attr[]){sbp_attr_double("eps", 1e-2), sbp_attr_double("offset", gemma),
                                  sbp_attr_symbol("cast", gemma ? "after" : "before")},
                     3, NULL);
}

static sbp_value heads_of(maker *k, sbp_value x, int64_t heads) {
    return sbp_build_reshape(&k->b, x, (int64_t[]){heads, k->head_size}, 2);
}

static sbp_value rope(maker *k, sbp_value x) {
    static const double frequencies[] = {1, 0.1};
    int64_t n = k->head_size / 2;
    sbp_value angle =
        sbp_build2(&k->b, SBP_OP_mul,
                   sbp_build_reshape(&k->b, sbp_build_cast(&k->b, k->pos, SBP_F64), (int64_t[]){1}, 1),
                   sbp_build_vector(&k->b, "inv_freq", SBP_F64, frequencies, n));
    return sbp_build3(&k->b, SBP_OP_rope, x, sbp_build1(&k->b, SBP_OP_cos, angle),
                      sbp_build1(&k->b, SBP_OP_sin, angle));
}

/* Keys or values: projected, or those of the block before, or an argument. */
static sbp_value projected(maker *k, sbp_value a, sbp_value before, const char *argument, bool turn) {
    if (before != SBP_NO_VALUE && coin(k, 3)) {
        k->has->shared_keys = true;
        return before;
    }
    if (coin(k, 8)) {
        sbp_type type = {
            .dtype = SBP_F64,
            .rank = 3,
            .dim = {sbp_dim_symbol(SBP_T), sbp_dim_const(k->kv_heads), sbp_dim_const(k->head_size)}};
        k->has->key_argument = true;
        return sbp_func_add_arg(k->b.func, SBP_VALUE_STREAM, argument, &type, -1);
    }
    sbp_value y = heads_of(k, linear(k, a, k->d, k->kv_heads * k->head_size), k->kv_heads);
    if (turn && coin(k, 2))
        y = norm(k, y, k->head_size);
    if (turn)
        y = rope(k, y);
    if (k->has->stopped && coin(k, 2))
        y = sbp_build1(&k->b, SBP_OP_stop_gradient, y);
    return y;
}

static sbp_value attention(maker *k, sbp_value a) {
    static const int64_t windows[] = {0, 0, 1, 3, 5};
    int64_t window = windows[sbp_rng_below(&k->t->rng, SBP_COUNT(windows))];
    double softcap = coin(k, 3) ? 0.7 : 0;
    k->has->window |= window > 0;
    k->has->softcap |= softcap > 0;
    k->has->grouped |= k->kv_heads < k->heads;
    sbp_value q = rope(k, heads_of(k, linear(k, a, k->d, k->heads * k->head_size), k->heads));
    sbp_value key = projected(k, a, k->key, "keys", true);
    sbp_value value = coin(k, 6) ? key : projected(k, a, k->value, "values", false), out[2];
    sbp_build(&k->b, SBP_OP_attention, "attn", (sbp_value[]){q, key, value, k->first, k->shared_end, k->own},
              6,
              (sbp_attr[]){sbp_attr_double("scale", 0.9), sbp_attr_int("window", window),
                           sbp_attr_double("softcap", softcap)},
              3, out);
    k->key = key;
    k->value = value;
    sbp_value o = sbp_build_reshape(&k->b, out[0], (int64_t[]){k->heads * k->head_size}, 1);
    o = linear(k, o, k->heads * k->head_size, k->d);
    if (coin(k, 5)) { /* a carried value that is read by its own row too */
        sbp_value mean = sbp_build1(
            &k->b, SBP_OP_row_sum, sbp_build_reshape(&k->b, key, (int64_t[]){k->kv_heads * k->head_size}, 1));
        o = sbp_build2(&k->b, SBP_OP_add, o, mean);
    }
    return o;
}

/* A short convolution; of documents that share a prompt each its own rows. */
static sbp_value convolution(maker *k, sbp_value a) {
    sbp_type type = {
        .dtype = SBP_F64,
        .rank = 3,
        .dim = {sbp_dim_const(k->d), sbp_dim_const(1), sbp_dim_const(2 + sbp_rng_below(&k->t->rng, 4))}};
    char name[32];
    snprintf(name, sizeof name, "p%d", k->m->param_count);
    bool trainable = !(k->has->frozen && coin(k, 2));
    int32_t w = sbp_module_add_param(
        k->m,
        &(sbp_param){.name = name, .type = type, .storage = SBP_F64, .trainable = trainable, .pad_row = -1});
    sbp_value bias = coin(k, 2) ? param(k, 1, k->d, 0) : SBP_NO_VALUE;
    k->has->convolution = true;
    return sbp_build(&k->b, SBP_OP_conv_rows, "conv",
                     (sbp_value[]){linear(k, a, k->d, k->d), sbp_build_param(&k->b, w), bias, k->own}, 4,
                     NULL, 0, NULL);
}

/* The delta rule, with corrections or without, with two value heads for a key head or one; of documents that
 * share a prompt each its own. */
static sbp_value delta(maker *k, sbp_value a, bool corrects) {
    int64_t heads = k->kv_heads * (1 + sbp_rng_below(&k->t->rng, 2)), dv = 1 + sbp_rng_below(&k->t->rng, 3);
    sbp_value q = heads_of(k, linear(k, a, k->d, k->kv_heads * k->head_size), k->kv_heads);
    sbp_value key = heads_of(k, linear(k, a, k->d, k->kv_heads * k->head_size), k->kv_heads);
    sbp_value v = linear(k, a, k->d, heads * dv);
    v = sbp_build_reshape(&k->b, v, (int64_t[]){heads, dv}, 2);
    sbp_value decay = sbp_build1(&k->b, SBP_OP_exp, linear(k, a, k->d, heads));
    decay = sbp_build1(&k->b, SBP_OP_neg, decay);
    sbp_value beta = sbp_build1(&k->b, SBP_OP_sigmoid, linear(k, a, k->d, heads));
    const sbp_attr attr = sbp_attr_bool("corrects", corrects);
    sbp_value o = sbp_build(&k->b, SBP_OP_delta_rule, "delta", (sbp_value[]){q, key, v, decay, beta, k->own},
                            6, &attr, 1, NULL);
    *(corrects ? &k->has->delta : &k->has->uncorrected) = true;
    return linear(k, sbp_build_reshape(&k->b, o, (int64_t[]){heads * dv}, 1), heads * dv, k->d);
}

static sbp_value mlp(maker *k, sbp_value a) {
    int64_t inner = 2 * k->d;
    sbp_value up = linear(k, a, k->d, inner);
    static const sbp_opcode gated[] = {SBP_OP_swiglu, SBP_OP_geglu};
    int64_t which = sbp_rng_below(&k->t->rng, 4);
    const sbp_attr approximate = sbp_attr_symbol("approximate", coin(k, 2) ? "tanh" : "none");
    if (which < 2)
        up = sbp_build(&k->b, gated[which], NULL, (sbp_value[]){up, linear(k, a, k->d, inner)}, 2,
                       &approximate, which == 1, NULL);
    else
        up = sbp_build(&k->b, which == 2 ? SBP_OP_gelu : SBP_OP_silu, NULL, &up, 1, &approximate, which == 2,
                       NULL);
    return linear(k, up, inner, k->d);
}

static sbp_value expert_param(maker *k, int64_t experts, int64_t out, int64_t in) {
    sbp_value flat = param(k, 2, experts, out * in);
    sbp_value_info *info = &k->b.func->values[flat];
    sbp_type type = {
        .dtype = SBP_F64, .rank = 3, .dim = {sbp_dim_const(experts), sbp_dim_const(out), sbp_dim_const(in)}};
    info->type = k->m->params[info->binding].type = type;
    return flat;
}

static sbp_value expert_linear(maker *k, sbp_value x, sbp_value index, int64_t experts, int64_t in,
                               int64_t out) {
    bool turned = coin(k, 3);
    sbp_value w = expert_param(k, experts, turned ? in : out, turned ? out : in);
    sbp_value bias = coin(k, 3) ? param(k, 2, experts, out) : SBP_NO_VALUE;
    return sbp_build(&k->b, SBP_OP_expert_linear, NULL, (sbp_value[]){x, index, w, bias}, 4,
                     (sbp_attr[]){sbp_attr_symbol("layout", turned ? "in_out" : "out_in")}, 1, NULL);
}

/* Experts, weighted before their last products or behind them. */
static sbp_value experts(maker *k, sbp_value a) {
    int64_t count = 3 + sbp_rng_below(&k->t->rng, 3), slots = 1 + sbp_rng_below(&k->t->rng, 2),
            inner = k->d + 1;
    bool before = coin(k, 2);
    sbp_value scores = linear(k, a, k->d, count);
    sbp_value index =
        sbp_build(&k->b, SBP_OP_route, "index", &scores, 1, (sbp_attr[]){sbp_attr_int("k", slots)}, 1, NULL);
    sbp_value weight = sbp_build1(&k->b, SBP_OP_sigmoid, sbp_build2(&k->b, SBP_OP_take_at, scores, index));
    weight = sbp_build_reshape(&k->b, weight, (int64_t[]){slots, 1}, 2);
    sbp_value h = sbp_build1(&k->b, SBP_OP_silu, expert_linear(k, a, index, count, k->d, inner));
    if (before)
        h = sbp_build2(&k->b, SBP_OP_mul, h, weight);
    sbp_value y = expert_linear(k, h, index, count, inner, k->d);
    if (!before)
        y = sbp_build2(&k->b, SBP_OP_mul, y, weight);
    y = sbp_build(&k->b, SBP_OP_row_sum, NULL, &y, 1, (sbp_attr[]){sbp_attr_int("axis", -2)}, 1, NULL);
    k->has->experts = true;
    return sbp_build_reshape(&k->b, y, (int64_t[]){k->d}, 1);
}

sbp_module *layers_random(testing *t, layers_features *has) {
    maker k = {.t = t, .m = sbp_module_create(t->arena, "layers"), .has = has};
    k.key = k.value = k.weight = SBP_NO_VALUE;
    k.d = 4 + 2 * sbp_rng_below(&t->rng, 2);
    k.kv_heads = 1 + sbp_rng_below(&t->rng, 2);
    k.heads = k.kv_heads * (1 + sbp_rng_below(&t->rng, 2));
    k.head_size = 2 + 2 * sbp_rng_below(&t->rng, 2);
    has->frozen = coin(&k, 3);
    has->stopped = coin(&k, 4);
    has->head = coin(&k, 4);
    sbp_func *f = sbp_module_add_func(k.m, "f");
    k.b = sbp_builder_on(k.m, f, t->diag);
    sbp_type type = {.dtype = SBP_F64, .rank = 2, .dim = {sbp_dim_symbol(SBP_T), sbp_dim_const(k.d)}};
    sbp_value x = sbp_func_add_arg(f, SBP_VALUE_STREAM, "x", &type, -1);
    k.pos = sbp_build_row(&k.b, "pos", SBP_I32, SBP_T);
    k.first = sbp_build_row(&k.b, "first", SBP_I32, SBP_T);
    k.shared_end = sbp_build_row(&k.b, "shared_end", SBP_I32, SBP_T);
    k.own = sbp_build_row(&k.b, "own", SBP_I32, SBP_T);
    for (int64_t block = 1 + sbp_rng_below(&t->rng, 3); block > 0; block--) {
        bool parallel = coin(&k, 4);
        sbp_value a = norm(&k, x, k.d);
        int64_t kind = sbp_rng_below(&k.t->rng, 5);
        sbp_value mixed = kind == 0   ? convolution(&k, a)
                          : kind <= 2 ? delta(&k, a, kind != 2)
                                      : attention(&k, a);
        sbp_value h = sbp_build2(&k.b, SBP_OP_add, x, mixed);
        sbp_value inner = parallel ? a : norm(&k, h, k.d);
        x = sbp_build2(&k.b, SBP_OP_add, h, coin(&k, 3) ? experts(&k, inner) : mlp(&k, inner));
    }
    sbp_func_add_result(f, x, SBP_RESULT_VALUE, SBP_NO_VALUE, "y");
    if (has->head) {
        sbp_value out[4], label = sbp_build_row(&k.b, "label", SBP_I32, SBP_T);
        sbp_value logits = linear(&k, norm(&k, x, k.d), k.d, VOCABULARY);
        sbp_build(&k.b, SBP_OP_log_prob, NULL, (sbp_value[]){logits, label}, 2, NULL, 0, out);
        sbp_func_add_result(f, out[0], SBP_RESULT_VALUE, SBP_NO_VALUE, "logp");
        sbp_func_add_result(f, out[1], SBP_RESULT_VALUE, SBP_NO_VALUE, "entropy");
    }
    testing_check(t, k.b.status);
    testing_check(t, sbp_module_verify(k.m, t->diag));
    return k.m;
}

static double row_value(testing *t, const documents *rows, const char *name, int64_t row) {
    if (strcmp(name, "pos") == 0)
        return (double)rows->position[row];
    if (strcmp(name, "first") == 0)
        return (double)rows->first[row];
    if (strcmp(name, "shared_end") == 0)
        return (double)rows->shared_end[row];
    if (strcmp(name, "own") == 0)
        return (double)rows->own[row];
    assert_string_equal(name, "label");
    return (double)sbp_rng_below(&t->rng, VOCABULARY);
}

sbp_tensor **layers_inputs(testing *t, const sbp_module *m, const sbp_func *f, const documents *rows,
                           const sbp_eval_env *env) {
    sbp_tensor **inputs = SBP_NEW_ARRAY(t->arena, sbp_tensor *, f->arg_count + 1);
    for (int32_t i = 0; i < f->arg_count; i++) {
        const sbp_value_info *info = &f->values[f->args[i]];
        inputs[i] = graph_tensor(t, &info->type, env, -1, 1);
        if (info->role == SBP_VALUE_CONST)
            memcpy(inputs[i]->data, m->consts[info->binding].data, (size_t)inputs[i]->elems * sizeof(double));
        for (int64_t r = 0; info->role == SBP_VALUE_ROW && r < rows->rows; r++)
            inputs[i]->data[r] = row_value(t, rows, m->rows[info->binding].name, r);
    }
    return inputs;
}
