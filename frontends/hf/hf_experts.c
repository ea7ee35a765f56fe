/* hf_experts.c: mixtures of experts: a router, and for each row the gated MLPs that it has chosen. Formulas:
 * transformers, modeling_qwen3_moe.py (Qwen3MoeTopKRouter, Qwen3MoeExperts), modeling_mixtral.py and
 * modeling_gpt_oss.py. */
#include <string.h>

#include "frontends/hf/hf.h"
#include "frontends/objectives/objective.h"
#include "ir/graph/op.h"
#include "ir/program/routed.h"

const sbp_hf_expert_names sbp_hf_projections = {.module = "mlp",
                                                .router = "gate",
                                                .experts = {[SBP_HF_EXPERT_GATE] = "gate_proj",
                                                            [SBP_HF_EXPERT_UP] = "up_proj",
                                                            [SBP_HF_EXPERT_DOWN] = "down_proj"},
                                                .fused = "gate_up_proj"};

const sbp_hf_expert_names sbp_hf_block_sparse = {
    .module = "block_sparse_moe",
    .class_module = "mlp",
    .router = "gate",
    .experts = {[SBP_HF_EXPERT_GATE] = "w1", [SBP_HF_EXPERT_UP] = "w3", [SBP_HF_EXPERT_DOWN] = "w2"}};

/* ---- configuration -------------------------------------------------------------------------------- */

/* As in TRL: wherever its coefficient is not 0. transformers asks for output_router_logits, too. */
static void read_balance(sbp_hf *hf, const sbp_hf_experts_defaults *defaults, int64_t chosen) {
    double coefficient = sbp_hf_double(hf, "router_aux_loss_coef", defaults->balance);
    (void)sbp_hf_bool(hf, "output_router_logits", false);
    if (hf->balance && defaults->balance != 0) /* this model type has one */
        coefficient = *hf->balance;
    hf->model->balance = (sbp_balance){.coefficient = coefficient, .chosen = chosen};
}

/* mlp_only_layers have no experts. */
static void leave_out(sbp_hf *hf, int64_t layers, bool *sparse) {
    const sbp_json *dense = sbp_hf_field(hf, "mlp_only_layers");
    if (dense && dense->kind != SBP_JSON_ARRAY)
        sbp_hf_fail(hf, dense, "expected an array of layer numbers");
    for (int64_t i = 0; dense && i < dense->count && hf->builder.status == SBP_OK; i++) {
        int64_t layer = 0;
        hf->builder.status = sbp_json_as_i64(hf->diag, &dense->items[i], &layer);
        if (hf->builder.status == SBP_OK && layer >= 0 && layer < layers)
            sparse[layer] = false;
    }
}

/* The last layer that may have experts. */
static int64_t read_last(sbp_hf *hf, int64_t layers, const char *key) {
    const sbp_json *field = key ? sbp_hf_field(hf, key) : NULL;
    int64_t last = -1;
    if (field)
        hf->builder.status = sbp_json_as_i64(hf->diag, field, &last);
    return last == -1 ? layers - 1 : last;
}

/* Which layers have experts; NULL: none. */
static bool *read_layers(sbp_hf *hf, int64_t layers, const sbp_hf_experts_defaults *defaults) {
    bool *sparse = SBP_NEW_ARRAY(hf->arena, bool, hf->builder.status == SBP_OK ? layers : 1), any = false;
    const char *step_key = defaults->stepped ? "decoder_sparse_step" : defaults->step_key;
    int64_t first = defaults->dense_key ? sbp_hf_count(hf, defaults->dense_key, defaults->dense)
                                        : defaults->dense,
            step = step_key ? sbp_hf_size(hf, step_key, 1) : 1,
            last = read_last(hf, layers, defaults->last_key);
    if (defaults->stepped && sbp_hf_count(hf, defaults->count_key, defaults->count) == 0) {
        (void)sbp_hf_field(hf, "mlp_only_layers");
        return NULL;
    }
    for (int64_t i = 0; i < layers && hf->builder.status == SBP_OK; i++)
        sparse[i] = (i + 1) % step == 0 && i >= first && i <= last;
    if (defaults->stepped)
        leave_out(hf, layers, sparse);
    if (defaults->typed && hf->builder.status == SBP_OK)
        (void)sbp_hf_layer_words(hf, "mlp_layer_types", layers, "dense", "sparse", sparse);
    for (int64_t i = 0; i < layers && hf->builder.status == SBP_OK; i++)
        any |= sparse[i];
    return any ? sparse : NULL;
}

/* Fields that say nothing where no layer has experts. */
static void skip_fields(sbp_hf *hf, const sbp_hf_experts_defaults *defaults) {
    const char *const fields[] = {defaults->count_key,    defaults->inner_key,    defaults->other_count_key,
                                  defaults->shared_key,   "num_experts_per_tok",  "norm_topk_prob",
                                  "output_router_logits", "router_aux_loss_coef", defaults->chosen_key};
    for (int32_t i = 0; i < SBP_COUNT(fields); i++)
        if (fields[i])
            (void)sbp_hf_field(hf, fields[i]);
}

sbp_hf_experts sbp_hf_experts_read(sbp_hf *hf, int64_t layers, const sbp_hf_experts_defaults *defaults) {
    sbp_hf_experts e = {
        .sparse = read_layers(hf, layers, defaults), .fused = defaults->fused, .names = defaults->names};
    if (!e.sparse) {
        skip_fields(hf, defaults);
        return e;
    }
    bool other = defaults->other_count_key && sbp_hf_field(hf, defaults->count_key) == NULL;
    const char *chosen_key = defaults->chosen_key ? defaults->chosen_key : "num_experts_per_tok";
    e.inner = sbp_hf_size(hf, defaults->inner_key, defaults->inner);
    e.chosen = sbp_hf_size(hf, chosen_key, defaults->chosen);
    e.count = sbp_hf_size(hf, other ? defaults->other_count_key : defaults->count_key, defaults->count);
    e.router.normalized =
        defaults->always_normalized || sbp_hf_bool(hf, "norm_topk_prob", defaults->normalized);
    e.shared_name = "shared_expert";
    e.shared_gated = true;
    if (defaults->shared_key)
        e.shared = sbp_hf_size(hf, defaults->shared_key, defaults->shared);
    if (hf->builder.status == SBP_OK && e.chosen > e.count)
        sbp_hf_fail(hf, sbp_hf_field(hf, chosen_key), "%lld of %lld experts", (long long)e.chosen,
                    (long long)e.count);
    read_balance(hf, defaults, e.chosen);
    return e;
}

sbp_hf_experts sbp_hf_deepseek_experts_read(sbp_hf *hf, int64_t layers,
                                            const sbp_hf_deepseek_experts *defaults) {
    int64_t groups = sbp_hf_size(hf, "n_group", defaults->groups),
            kept = sbp_hf_size(hf, "topk_group", defaults->chosen_groups),
            shared = sbp_hf_count(hf, "n_shared_experts", 1);
    (void)sbp_hf_field(hf, "num_nextn_predict_layers"); /* layers behind the last, which nothing here reads */
    sbp_hf_experts e = sbp_hf_experts_read(hf, layers,
                                           &(sbp_hf_experts_defaults){.count_key = "n_routed_experts",
                                                                      .other_count_key = "num_local_experts",
                                                                      .count = defaults->count,
                                                                      .chosen = defaults->chosen,
                                                                      .inner_key = "moe_intermediate_size",
                                                                      .inner = defaults->inner,
                                                                      .normalized = true,
                                                                      .dense_key = "first_k_dense_replace",
                                                                      .dense = defaults->dense,
                                                                      .typed = defaults->typed,
                                                                      .names = &sbp_hf_projections});
    e.router = (sbp_hf_router){.score = SBP_HF_SCORE_SIGMOID,
                               .wide = true,
                               .correction = "gate.e_score_correction_bias",
                               .groups = groups,
                               .chosen_groups = kept,
                               .normalized = e.router.normalized,
                               .epsilon = 1e-20,
                               .scaling = sbp_hf_double(hf, "routed_scaling_factor", defaults->scaling)};
    e.shared = shared * e.inner;
    e.shared_name = "shared_experts";
    e.shared_gated = false;
    if (hf->builder.status == SBP_OK && e.sparse &&
        (kept > groups || e.count % groups != 0 ||
         (groups > 1 && (e.count / groups < 2 || e.chosen > kept * (e.count / groups)))))
        sbp_hf_fail(
            hf, sbp_hf_field(hf, "n_group"),
            "%lld of %lld experts in %lld of %lld groups, which must be of equal size, at least 2, and have "
            "as many",
            (long long)e.chosen, (long long)e.count, (long long)kept, (long long)groups);
    return e;
}

/* ---- graph ---------------------------------------------------------------------------------------- */

sbp_value sbp_hf_softmax(sbp_builder *b, sbp_value x) {
    sbp_value top = sbp_build1(b, SBP_OP_stop_gradient, sbp_build1(b, SBP_OP_row_max, x));
    sbp_value p = sbp_build1(b, SBP_OP_exp, sbp_build2(b, SBP_OP_sub, x, top));
    sbp_value sum = sbp_build1(b, SBP_OP_row_sum, p);
    return sbp_build2(b, SBP_OP_div, p, sum);
}

/* As the files that are here have them, or those that are not. */
static bool is_fused(sbp_hf *hf, const sbp_hf_experts *e, const char *module) {
    if (!e->names->fused || !hf->weights)
        return e->fused;
    return e->names->always_fused ||
           sbp_hf_has_tensor(hf, sbp_hf_path(hf, "%s.experts.%s", module, e->names->fused));
}

/* What transformers' class calls a module. */
static const char *class_module(sbp_hf *hf, const sbp_hf_experts *e, const char *module) {
    const char *own = e->names->class_module, *dot = own ? strrchr(module, '.') : NULL;
    return dot ? sbp_arena_printf(hf->arena, "%.*s.%s", (int)(dot - module), module, own) : module;
}

/* What the class of all families calls the tensors of all experts, by which peft adapts them. */
static void name_for_adapters(sbp_hf *hf, const sbp_hf_experts *e, const char *module, int part,
                              sbp_value matrices, int64_t start, int64_t total) {
    if (hf->builder.status != SBP_OK)
        return;
    module = class_module(hf, e, module);
    sbp_param *param = &hf->builder.module->params[hf->builder.func->values[matrices].binding];
    param->fused = sbp_arena_printf(hf->arena, "%s.experts.%s", module,
                                    part == SBP_HF_EXPERT_DOWN ? "down_proj" : "gate_up_proj");
    param->fused_start = start;
    param->fused_total = total;
}

/* Whether matrices in a tensor are [in, out] in the files: as the shapes of gates with ups and of downs say,
 * which are never both the same either way; where there are no files, as they are published. */
static bool is_turned(sbp_hf *hf, const sbp_hf_experts *e, const char *module, int64_t hidden) {
    const sbp_weight *both = sbp_hf_find_tensor(hf, sbp_hf_path(hf, "%s.%s", module, e->names->fused));
    const sbp_weight *down =
        sbp_hf_find_tensor(hf, sbp_hf_path(hf, "%s.%s", module, e->names->experts[SBP_HF_EXPERT_DOWN]));
    if (!e->turned || !both || !down || both->rank != 3 || down->rank != 3)
        return e->turned;
    return !(both->dim[1] == 2 * e->inner && both->dim[2] == hidden && down->dim[1] == hidden &&
             down->dim[2] == e->inner);
}

/* The matrices of all experts, which files keep one by one, or in a tensor. */
static sbp_value read_matrices(sbp_hf *hf, const sbp_hf_experts *e, const char *module, int part, int64_t out,
                               int64_t in) {
    const char *name = e->names->experts[part], *fused = e->names->fused;
    const int64_t dims[] = {e->count, out, in}, both[] = {e->count, 2 * out, in};
    if (e->names->stacked)
        return sbp_hf_param(hf, sbp_hf_path(hf, "%s.%s.weight", module, name), SBP_INIT_NORMAL, 3, dims);
    if (!is_fused(hf, e, module))
        return sbp_hf_stack(hf, sbp_hf_path(hf, "%s.experts.%s.weight", module, name),
                            sbp_hf_path(hf, "%s.experts.*.%s.weight", module, name), 3, dims);
    if (!e->names->always_fused)
        module = sbp_hf_path(hf, "%s.experts", module);
    bool is_down = part == SBP_HF_EXPERT_DOWN;
    if (is_turned(hf, e, module, is_down ? out : in)) {
        const char *own = sbp_hf_path(hf, "%s.%s", module, is_down ? name : fused);
        return sbp_hf_turned_part(hf, is_down ? own : sbp_hf_path(hf, "%s.%s", own, name), own, 3,
                                  (int64_t[]){e->count, in, is_down ? out : 2 * out},
                                  part == SBP_HF_EXPERT_UP ? out : 0, out);
    }
    if (is_down)
        return sbp_hf_param(hf, sbp_hf_path(hf, "%s.%s", module, name), SBP_INIT_NORMAL, 3, dims);
    return sbp_hf_part(hf, sbp_hf_path(hf, "%s.%s.%s", module, fused, name),
                       sbp_hf_path(hf, "%s.%s", module, fused), SBP_INIT_NORMAL, 3, both, 1,
                       part == SBP_HF_EXPERT_GATE ? 0 : out, out);
}

static sbp_value expert_matrices(sbp_hf *hf, const sbp_hf_experts *e, const char *module, int part,
                                 int64_t out, int64_t in) {
    sbp_value w = read_matrices(hf, e, module, part, out, in);
    name_for_adapters(hf, e, module, part, w, part == SBP_HF_EXPERT_UP ? out : 0,
                      part == SBP_HF_EXPERT_DOWN ? out : 2 * out);
    return w;
}

static sbp_value expert_linear(sbp_hf *hf, const char *name, sbp_value x, sbp_value index, sbp_value w,
                               sbp_value bias, const char *layout, bool wide) {
    return sbp_build(&hf->builder, SBP_OP_expert_linear, name,
                     (sbp_value[]){sbp_hf_operand(hf, x), index, w, bias}, 4,
                     (sbp_attr[]){sbp_attr_symbol("layout", layout), sbp_attr_bool("wide", wide)}, 2, NULL);
}

/* Scores to choose by: those of groups that are not chosen are put below all others, or are 0. A group is
 * chosen when fewer than chosen_groups come before it: groups with a larger sum of their two best scores, or
 * with an equal sum and a lower number. */
static sbp_value within_groups(sbp_hf *hf, const sbp_hf_experts *e, sbp_value scores) {
    sbp_builder *b = &hf->builder;
    const sbp_hf_router *r = &e->router;
    int64_t groups = r->groups, each = e->count / r->groups;
    sbp_dtype wide = sbp_rule_wide(hf->compute);
    sbp_value least = sbp_build_const(b, wide, -1e30), zero = sbp_build_const(b, wide, 0),
              one = sbp_build_const(b, wide, 1);
    sbp_value x = sbp_build_reshape(b, scores, (int64_t[]){groups, each}, 2);
    sbp_value best = sbp_build1(b, SBP_OP_row_max, x); /* [T, groups, 1] */
    sbp_value below = sbp_build2(b, SBP_OP_lt, x, best);
    sbp_value next = sbp_build1(b, SBP_OP_row_max, sbp_build3(b, SBP_OP_select, below, x, least));
    sbp_value equals = sbp_build1(b, SBP_OP_row_sum, sbp_build3(b, SBP_OP_select, below, zero, one));
    next = sbp_build3(b, SBP_OP_select, sbp_build2(b, SBP_OP_lt, one, equals), best, next);
    sbp_value sum = sbp_build2(b, SBP_OP_add, best, next);
    sbp_value other = sbp_build_reshape(b, sum, (int64_t[]){1, groups}, 2);
    sbp_value number =
        sbp_build(b, SBP_OP_iota, NULL, NULL, 0,
                  (sbp_attr[]){sbp_attr_int("n", groups), sbp_attr_dtype("dtype", wide)}, 2, NULL);
    sbp_value mine = sbp_build_reshape(b, number, (int64_t[]){groups, 1}, 2),
              theirs = sbp_build_reshape(b, number, (int64_t[]){1, groups}, 2);
    sbp_value before = sbp_build2(b, SBP_OP_or, sbp_build2(b, SBP_OP_lt, sum, other),
                                  sbp_build2(b, SBP_OP_and, sbp_build2(b, SBP_OP_eq, sum, other),
                                             sbp_build2(b, SBP_OP_lt, theirs, mine)));
    sbp_value rank = sbp_build1(b, SBP_OP_row_sum, sbp_build3(b, SBP_OP_select, before, one, zero));
    sbp_value chosen = sbp_build2(b, SBP_OP_lt, rank, sbp_build_const(b, wide, (double)r->chosen_groups));
    x = sbp_build3(b, SBP_OP_select, chosen, x, r->others_zero ? zero : least);
    return sbp_build_reshape(b, x, (int64_t[]){e->count}, 1);
}

/* What the routers of all layers do, as sums over rows (frontends/objectives/statistics.c). A row counts as
 * often as sequences have it: not where there is none, several times where they share it. The loss that
 * transformers makes of them looks at a softmax over all experts, and at its largest, whatever chose. */
static void add_statistics(sbp_hf *hf, const sbp_hf_experts *e, sbp_value logits, sbp_value scores,
                           sbp_value index) {
    sbp_builder *b = &hf->builder;
    sbp_dtype wide = sbp_rule_wide(hf->compute);
    const sbp_attr iota[] = {sbp_attr_int("n", e->count), sbp_attr_dtype("dtype", wide)};
    const sbp_attr rank = sbp_attr_int("rank", 1), k = sbp_attr_int("k", e->chosen);
    bool balanced = hf->model->balance.coefficient != 0;
    sbp_value copies =
        sbp_build_cast(b, sbp_build_row(b, sbp_data_columns[SBP_DATA_COPIES].name, SBP_F32, SBP_T), wide);
    sbp_value expert = sbp_build(b, SBP_OP_iota, NULL, NULL, 0, iota, SBP_COUNT(iota), NULL);
    if (balanced && e->router.correction)
        index = sbp_build(b, SBP_OP_route, NULL, &logits, 1, &k, 1, NULL);
    index = sbp_build_reshape(b, sbp_build_cast(b, index, wide), (int64_t[]){e->chosen, 1}, 2);
    sbp_value term =
        sbp_build3(b, SBP_OP_select, sbp_build2(b, SBP_OP_eq, index, expert),
                   sbp_build_reshape(b, copies, (int64_t[]){1, 1}, 2), sbp_build_const(b, wide, 0));
    sbp_value sum = sbp_build(b, SBP_OP_sum_rows, NULL, &term, 1, &rank, 1, NULL);
    if (b->status == SBP_OK)
        sbp_func_add_result(b->func, sum, SBP_RESULT_STATISTIC, SBP_NO_VALUE, SBP_STATISTIC_CHOICES);
    if (!balanced)
        return;
    scores = e->router.score == SBP_HF_SCORE_SOFTMAX ? scores : sbp_hf_softmax(b, logits);
    term = sbp_build2(b, SBP_OP_mul, scores, sbp_build_reshape(b, copies, (int64_t[]){1}, 1));
    sum = sbp_build(b, SBP_OP_sum_rows, NULL, &term, 1, &rank, 1, NULL);
    if (b->status == SBP_OK)
        sbp_func_add_result(b->func, sum, SBP_RESULT_STATISTIC, SBP_NO_VALUE, SBP_STATISTIC_PROBABILITIES);
}

/* x, or the limit beyond it: x that is the limit still has its gradient, as torch.clamp has it. */
static sbp_value not_above(sbp_builder *b, sbp_value x, sbp_value limit) {
    return sbp_build3(b, SBP_OP_select, sbp_build2(b, SBP_OP_lt, limit, x), limit, x);
}

static sbp_value not_below(sbp_builder *b, sbp_value x, sbp_value limit) {
    return sbp_build3(b, SBP_OP_select, sbp_build2(b, SBP_OP_lt, x, limit), limit, x);
}

sbp_value sbp_hf_gate_within(sbp_hf *hf, const char *activation, const char *name, sbp_value gate,
                             sbp_value up, double limit) {
    sbp_builder *b = &hf->builder;
    if (limit == 0 || b->status != SBP_OK)
        return sbp_hf_gate(hf, activation, name, gate, up);
    sbp_dtype type = sbp_build_type(b, gate)->dtype;
    sbp_value most = sbp_build_const(b, type, sbp_round_to(type, limit)),
              least = sbp_build_const(b, type, sbp_round_to(type, -limit));
    gate = sbp_hf_activate(hf, activation, NULL, gate);
    gate = not_above(b, gate, most);
    up = not_above(b, up, most);
    up = not_below(b, up, least);
    gate = sbp_build2(b, SBP_OP_mul, gate, up);
    sbp_build_name(b, gate, name);
    return gate;
}

/* Scores as they are chosen by. */
static sbp_value build_ranked(sbp_hf *hf, const sbp_hf_experts *e, sbp_value scores, const char *module) {
    sbp_builder *b = &hf->builder;
    const sbp_hf_router *r = &e->router;
    if (r->correction) {
        int64_t dims[] = {1, e->count};
        sbp_value correction = sbp_hf_buffer(hf, sbp_hf_path(hf, "%s.%s", module, r->correction),
                                             r->correction_row ? 2 : 1, r->correction_row ? dims : dims + 1);
        if (r->correction_row)
            correction = sbp_build_reshape(b, correction, dims + 1, 1);
        scores = sbp_build2(b, SBP_OP_add, scores, correction);
    }
    return r->groups > 1 ? within_groups(hf, e, scores) : scores;
}

/* The weights of those chosen, of their scores. */
static sbp_value build_weights(sbp_hf *hf, const sbp_hf_router *r, sbp_value w) {
    sbp_builder *b = &hf->builder;
    sbp_dtype wide = sbp_rule_wide(hf->compute);
    if (r->score == SBP_HF_SCORE_LOGIT) {
        w = sbp_hf_softmax(b, w);
    } else if (r->score == SBP_HF_SCORE_LOGIT_SIGMOID) {
        w = sbp_build1(b, SBP_OP_sigmoid, w);
    } else if (r->normalized) {
        sbp_value sum = sbp_build1(b, SBP_OP_row_sum, w);
        if (r->epsilon != 0)
            sum = sbp_build2(b, SBP_OP_add, sum, sbp_build_const(b, wide, sbp_round_to(wide, r->epsilon)));
        if (r->floor != 0)
            sum = not_below(b, sum, sbp_build_const(b, wide, sbp_round_to(wide, r->floor)));
        w = sbp_build2(b, SBP_OP_div, w, sum);
    }
    if (r->scaling != 0 && r->scaling != 1)
        w = sbp_build2(b, SBP_OP_mul, w, sbp_build_const(b, wide, sbp_round_to(wide, r->scaling)));
    return w;
}

/* The experts that the row of data names, [T, chosen]; where its first is below 0, those of index. */
static sbp_value build_routed(sbp_hf *hf, const sbp_hf_experts *e, sbp_value index) {
    sbp_builder *b = &hf->builder;
    sbp_dtype wide = sbp_rule_wide(hf->compute);
    int32_t layer = hf->routers++;
    sbp_value given = SBP_NO_VALUE;
    if (!hf->routed_experts)
        return index;
    for (int64_t j = 0; j < e->chosen; j++) {
        const char *name = sbp_arena_printf(hf->arena, SBP_ROUTED_PREFIX "%lld.%lld.%d.%lld",
                                            (long long)e->count, (long long)e->chosen, layer, (long long)j);
        sbp_value one = sbp_build_cast(b, sbp_build_row(b, name, SBP_I32, SBP_T), wide);
        one = sbp_build_reshape(b, one, (int64_t[]){1}, 1);
        given = j == 0 ? one : sbp_build2(b, SBP_OP_concat, given, one);
    }
    sbp_value none = sbp_build2(b, SBP_OP_lt, given, sbp_build_const(b, wide, 0));
    given = sbp_build3(b, SBP_OP_select, none, sbp_build_cast(b, index, wide), given);
    return sbp_build_cast(b, given, SBP_I32);
}

sbp_hf_choice sbp_hf_choose(sbp_hf *hf, const sbp_hf_experts *e, sbp_value logits, const char *module) {
    sbp_builder *b = &hf->builder;
    const sbp_hf_router *r = &e->router;
    const sbp_attr k = sbp_attr_int("k", e->chosen), cap = sbp_attr_double("cap", r->softcap);
    logits = sbp_build_cast(b, logits, sbp_rule_wide(hf->compute));
    if (r->softcap != 0)
        logits = sbp_build(b, SBP_OP_softcap, NULL, &logits, 1, &cap, 1, NULL);
    sbp_value scores = r->score == SBP_HF_SCORE_SIGMOID   ? sbp_build1(b, SBP_OP_sigmoid, logits)
                       : r->score == SBP_HF_SCORE_SOFTMAX ? sbp_hf_softmax(b, logits)
                                                          : logits;
    sbp_value ranked = build_ranked(hf, e, scores, module);
    sbp_hf_choice c = {.index = sbp_build(b, SBP_OP_route, "chosen", &ranked, 1, &k, 1, NULL)};
    c.index = build_routed(hf, e, c.index);
    c.weight = sbp_build2(b, SBP_OP_take_at, scores, c.index);
    add_statistics(hf, e, logits, scores, c.index);
    c.weight = build_weights(hf, r, c.weight);
    return c;
}

void sbp_hf_linear_router(sbp_hf *hf, const char *module) {
    int32_t found = sbp_module_find_param(hf->builder.module, sbp_hf_path(hf, "%s.weight", module));
    if (hf->builder.status == SBP_OK && found >= 0)
        hf->builder.module->params[found].linear_router = true;
}

/* What the module's own map makes of x chooses. */
static sbp_hf_choice build_choice(sbp_hf *hf, const sbp_hf_experts *e, sbp_value x, const char *module,
                                  int64_t hidden) {
    const char *router = sbp_hf_path(hf, "%s.%s", module, e->names->router);
    sbp_value logits = e->router.wide
                           ? sbp_hf_linear_wide(hf, "router", x, router, e->count, hidden)
                           : sbp_hf_linear(hf, "router", x, router, e->count, hidden, e->router.bias);
    sbp_hf_class_name(hf, router,
                      sbp_hf_path(hf, "%s.%s", class_module(hf, e, module),
                                  e->names->class_router ? e->names->class_router : e->names->router));
    if (e->names->linear_router)
        sbp_hf_linear_router(hf, router);
    sbp_hf_choice c = sbp_hf_choose(hf, e, logits, module);
    c.weight = sbp_build_reshape(&hf->builder, c.weight, (int64_t[]){e->chosen, 1}, 2);
    return c;
}

/* A row for each of the chosen, times its weight: [T, chosen, hidden]. */
static sbp_value build_weighed(sbp_hf *hf, sbp_value x, sbp_hf_choice c, int64_t hidden) {
    sbp_builder *b = &hf->builder;
    x = sbp_build_reshape(b, sbp_build_cast(b, x, sbp_rule_wide(hf->compute)), (int64_t[]){1, hidden}, 2);
    x = sbp_hf_operand(hf, sbp_build2(b, SBP_OP_mul, x, c.weight));
    sbp_build_name(b, x, "expert_rows");
    return x;
}

/* An expert's answer is weighted before its last product, which is linear: then nothing as wide as all
 * answers together is read by the gradient of a weight. The answers in the wide type, [T, chosen, hidden]. */
static sbp_value build_gated(sbp_hf *hf, const sbp_hf_experts *e, const char *activation, sbp_value x,
                             sbp_hf_choice c, const char *module, int64_t hidden) {
    sbp_builder *b = &hf->builder;
    sbp_dtype wide = sbp_rule_wide(hf->compute);
    if (e->weighs_rows)
        x = build_weighed(hf, x, c, hidden);
    sbp_value w = expert_matrices(hf, e, module, SBP_HF_EXPERT_GATE, e->inner, hidden);
    sbp_value gate = expert_linear(hf, "expert_gate", x, c.index, w, SBP_NO_VALUE, "out_in", false);
    w = expert_matrices(hf, e, module, SBP_HF_EXPERT_UP, e->inner, hidden);
    sbp_value up = expert_linear(hf, "expert_up", x, c.index, w, SBP_NO_VALUE, "out_in", false);
    sbp_value h = sbp_hf_gate_within(hf, activation, "expert_act", gate, up, e->limit);
    h = sbp_build_cast(b, h, wide);
    if (!e->weighs_rows)
        h = sbp_build2(b, SBP_OP_mul, h, c.weight);
    w = expert_matrices(hf, e, module, SBP_HF_EXPERT_DOWN, hidden, e->inner);
    return expert_linear(hf, NULL, h, c.index, w, SBP_NO_VALUE, "out_in", wide != hf->compute);
}

/* The same without a gate. */
static sbp_value build_plain(sbp_hf *hf, const sbp_hf_experts *e, const char *activation, sbp_value x,
                             sbp_hf_choice c, const char *module, int64_t hidden) {
    sbp_dtype wide = sbp_rule_wide(hf->compute);
    sbp_value w = expert_matrices(hf, e, module, SBP_HF_EXPERT_UP, e->inner, hidden);
    sbp_value h = expert_linear(hf, "expert_up", x, c.index, w, SBP_NO_VALUE, "out_in", false);
    h = sbp_build_cast(&hf->builder, sbp_hf_activate(hf, activation, "expert_act", h), wide);
    h = sbp_build2(&hf->builder, SBP_OP_mul, h, c.weight);
    w = expert_matrices(hf, e, module, SBP_HF_EXPERT_DOWN, hidden, e->inner);
    return expert_linear(hf, NULL, h, c.index, w, SBP_NO_VALUE, "out_in", wide != hf->compute);
}

/* (u + 1) g sigmoid(alpha g) in the wide type. */
static sbp_value build_clamped_gate(sbp_hf *hf, const sbp_hf_experts *e, sbp_value both) {
    sbp_builder *b = &hf->builder;
    sbp_dtype wide = sbp_rule_wide(hf->compute);
    sbp_value limit = sbp_build_const(b, wide, sbp_round_to(wide, e->limit)),
              least = sbp_build_const(b, wide, sbp_round_to(wide, -e->limit)),
              alpha = sbp_build_const(b, wide, sbp_round_to(wide, e->alpha));
    both = sbp_build_cast(b, both, wide);
    sbp_value gate = not_above(b, sbp_hf_every_other(b, both, e->chosen, e->inner, 0), limit);
    sbp_value up = not_above(b, sbp_hf_every_other(b, both, e->chosen, e->inner, 1), limit);
    up = not_below(b, up, least);
    sbp_value open = sbp_build1(b, SBP_OP_sigmoid, sbp_build2(b, SBP_OP_mul, gate, alpha));
    up = sbp_build2(b, SBP_OP_add, up, sbp_build_const(b, wide, 1));
    return sbp_build2(b, SBP_OP_mul, up, sbp_build2(b, SBP_OP_mul, gate, open));
}

/* Matrices [in, out] of all experts; as files have them in blocks, [out, in]. */
static sbp_value clamped_matrices(sbp_hf *hf, const sbp_hf_experts *e, const char *name, int64_t in,
                                  int64_t out) {
    if (e->blocks)
        return sbp_hf_mxfp4(hf, name, 3, (int64_t[]){e->count, out, in}, e->frozen_blocks);
    return sbp_hf_param(hf, name, SBP_INIT_NORMAL, 3, (int64_t[]){e->count, in, out});
}

/* As build_gated; the last bias has the weight for an input. */
static sbp_value build_clamped(sbp_hf *hf, const sbp_hf_experts *e, sbp_value x, sbp_hf_choice c,
                               const char *module, int64_t hidden) {
    sbp_builder *b = &hf->builder;
    sbp_dtype wide = sbp_rule_wide(hf->compute);
    const char *name = sbp_hf_path(hf, "%s.experts.%s", module, e->names->fused),
               *down = sbp_hf_path(hf, "%s.experts.%s", module, e->names->experts[SBP_HF_EXPERT_DOWN]);
    const char *layout = e->blocks ? "out_in" : "in_out";
    sbp_value w = clamped_matrices(hf, e, name, hidden, 2 * e->inner);
    name_for_adapters(hf, e, module, SBP_HF_EXPERT_GATE, w, 0, 2 * e->inner);
    sbp_value bias = sbp_hf_param(hf, sbp_hf_path(hf, "%s_bias", name), SBP_INIT_ZEROS, 2,
                                  (int64_t[]){e->count, 2 * e->inner});
    sbp_value h = expert_linear(hf, "expert_gate_up", x, c.index, w, bias, layout, false);
    h = sbp_build2(b, SBP_OP_mul, build_clamped_gate(hf, e, h), c.weight);
    w = clamped_matrices(hf, e, down, e->inner, hidden);
    name_for_adapters(hf, e, module, SBP_HF_EXPERT_DOWN, w, 0, hidden);
    sbp_value y = expert_linear(hf, NULL, h, c.index, w, SBP_NO_VALUE, layout, wide != hf->compute);
    bias =
        sbp_hf_param(hf, sbp_hf_path(hf, "%s_bias", down), SBP_INIT_ZEROS, 2, (int64_t[]){e->count, hidden});
    bias = sbp_build_reshape(b, bias, (int64_t[]){e->count, 1, hidden}, 3);
    bias = expert_linear(hf, NULL, c.weight, c.index, bias, SBP_NO_VALUE, "in_out", wide != hf->compute);
    return sbp_build2(b, SBP_OP_add, y, bias);
}

/* The answer of the shared expert, times its gate where it has one, in the wide type. */
static sbp_value build_shared(sbp_hf *hf, const sbp_hf_experts *e, const char *activation, sbp_value x,
                              const char *module, int64_t hidden) {
    sbp_builder *b = &hf->builder;
    sbp_dtype wide = sbp_rule_wide(hf->compute);
    const char *expert = sbp_hf_path(hf, "%s.%s", module, e->shared_name);
    sbp_value gate = SBP_NO_VALUE;
    if (!e->plain)
        gate = sbp_hf_linear(hf, "shared_gate", x, sbp_hf_path(hf, "%s.gate_proj", expert), e->shared, hidden,
                             e->shared_bias);
    sbp_value up = sbp_hf_linear(hf, "shared_up", x, sbp_hf_path(hf, "%s.up_proj", expert), e->shared, hidden,
                                 e->shared_bias);
    sbp_value y = e->plain ? sbp_hf_activate(hf, activation, "shared_act", up)
                           : sbp_hf_gate(hf, activation, "shared_act", gate, up);
    y = sbp_hf_linear(hf, "shared_proj", y, sbp_hf_path(hf, "%s.down_proj", expert), hidden, e->shared,
                      e->shared_bias);
    for (int part = 0; part < SBP_HF_EXPERT_PARTS && e->class_shared; part++)
        sbp_hf_class_name(hf, sbp_hf_path(hf, "%s.%s", expert, sbp_hf_projections.experts[part]),
                          sbp_hf_path(hf, "%s.%s.%s", class_module(hf, e, module), e->class_shared,
                                      sbp_hf_projections.experts[part]));
    if (!e->shared_gated)
        return sbp_build_cast(b, y, wide);
    sbp_value share = sbp_hf_linear(hf, "shared_score", x, sbp_hf_path(hf, "%s_gate", expert), 1, hidden,
                                    false); /* [T, 1] */
    share = sbp_build1(b, SBP_OP_sigmoid, sbp_build_cast(b, share, wide));
    return sbp_build2(b, SBP_OP_mul, sbp_build_cast(b, y, wide), share);
}

sbp_value sbp_hf_experts_apply(sbp_hf *hf, const sbp_hf_experts *e, const char *activation, sbp_value x,
                               sbp_hf_choice c, const char *module, int64_t hidden) {
    sbp_value y = e->clamped ? build_clamped(hf, e, x, c, module, hidden)
                  : e->plain ? build_plain(hf, e, activation, x, c, module, hidden)
                             : build_gated(hf, e, activation, x, c, module, hidden);
    y = sbp_build(&hf->builder, SBP_OP_row_sum, NULL, &y, 1, (sbp_attr[]){sbp_attr_int("axis", -2)}, 1, NULL);
    return sbp_build_reshape(&hf->builder, y, (int64_t[]){hidden}, 1);
}

/* Experts between two maps, into a latent of the row and out of it. */
static sbp_value build_in_latent(sbp_hf *hf, const sbp_hf_experts *e, const char *activation, sbp_value x,
                                 sbp_hf_choice c, const char *module, int64_t hidden) {
    x = sbp_hf_linear(hf, "latent", x, sbp_hf_path(hf, "%s.fc1_latent_proj", module), e->latent, hidden,
                      false);
    sbp_value y = sbp_hf_experts_apply(hf, e, activation, x, c, module, e->latent);
    y = sbp_hf_linear(hf, NULL, y, sbp_hf_path(hf, "%s.fc2_latent_proj", module), hidden, e->latent, false);
    return sbp_build_cast(&hf->builder, y, sbp_rule_wide(hf->compute));
}

sbp_value sbp_hf_experts_build(sbp_hf *hf, const sbp_hf_experts *e, const char *activation, const char *name,
                               sbp_value x, const char *module, int64_t hidden) {
    sbp_builder *b = &hf->builder;
    sbp_hf_choice c = build_choice(hf, e, x, module, hidden);
    sbp_value y = e->latent > 0 ? build_in_latent(hf, e, activation, x, c, module, hidden)
                                : sbp_hf_experts_apply(hf, e, activation, x, c, module, hidden);
    if (e->shared > 0) {
        sbp_value shared = build_shared(hf, e, activation, x, module, hidden);
        y = sbp_build2(b, SBP_OP_add, y, shared);
    }
    y = sbp_build_cast(b, y, hf->compute);
    sbp_build_name(b, y, name);
    return y;
}
