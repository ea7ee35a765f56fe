/* test_random_models.c: models of every family with one dimension drawn long, up to 5,000, and the others
 * thin, of 1 to 3,000 rows, through all passes and on the CPU device: gradients of a step against the double
 * evaluator (ir/graph/evaluate.h), which has neither kernels nor schedule in common with them. What is drawn
 * beside: type, instruction set, threads, chunks, segments, checkpoints, what is kept and where, documents,
 * masks.
 *
 *     SBP_RANDOM_DRAW=N test_random_models     draw N alone, and what it is */
#include "tests/common/testing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/cpu/cpu_device.h"
#include "frontends/source/frontend.h"
#include "ir/base/json.h"
#include "runtime/run/executor.h"
#include "tests/common/compile_model.h"
#include "tests/common/documents.h"
#include "tests/common/graphs.h"
#include "tests/common/model_folder.h"
#include "tests/tolerance.h"

/* ---- what is long ------------------------------------------------------------------------------------- */

/* Fields of config.json of a golden case that become long: KEY=$, KEY=$/N, KEY=NUMBER, with a blank between
 * them. $ is a multiple of one number, and at most another; 0: what it may be at most. */
typedef struct axis {
    const char *model, *set;
    int32_t multiple, most;
} axis;

enum { LONGEST = 5000, MOST_ROWS = 3000, WIDEST_HEAD = 512, WIDEST_STATE = 256, MOST_EXPERTS = 400 };

/* Draws by default; an address sanitizer takes six times as long. */
#ifdef __SANITIZE_ADDRESS__
enum { BY_DEFAULT = 12 };
#else
enum { BY_DEFAULT = 200 };
#endif

/* What a draw may cost: parameters times rows, where these are few; rows of a document. */
enum { FEW_ROWS = 100, THIN = 40, SHORT = 64, WORK = 5000000, LONGEST_DOCUMENT = 300 };

static const axis axes[] = {
    {"llama_plain", "hidden_size=$", 1, 0},
    {"llama_plain", "intermediate_size=$", 1, 0},
    {"llama_plain", "vocab_size=$", 1, 0},
    {"llama_plain", "head_dim=$", 2, WIDEST_HEAD},
    {"llama_plain", "num_attention_heads=$ num_key_value_heads=1", 1, 96},
    {"llama_bias", "intermediate_size=$", 1, 0},
    {"llama_bias", "hidden_size=$", 1, 0},
    {"mistral_window", "hidden_size=$ head_dim=6", 1, 0},
    {"mistral_window", "sliding_window=$", 1, 0},
    {"qwen2_sliding", "hidden_size=$ head_dim=6", 1, 0},
    {"qwen2_sliding", "intermediate_size=$", 1, 0},
    {"qwen3_plain", "hidden_size=$", 1, 0},
    {"qwen3_plain", "head_dim=$", 2, WIDEST_HEAD},
    {"gemma3_softcap", "hidden_size=$", 1, 0},
    {"gemma3_softcap", "intermediate_size=$", 1, 0},
    {"gemma3_softcap", "vocab_size=$", 1, 0},
    {"gemma3_softcap", "head_dim=$", 2, WIDEST_HEAD},
    {"gemma4_shared", "hidden_size=$", 1, 0},
    {"gemma4_shared", "intermediate_size=$", 1, 0},
    {"gemma4_shared", "hidden_size_per_layer_input=$", 1, 0},
    {"gemma4_shared", "global_head_dim=$", 8, WIDEST_HEAD},
    {"gemma4_26b_a4b_v", "hidden_size=$", 1, 0},
    {"gemma4_26b_a4b_v", "moe_intermediate_size=$", 1, 0},
    {"gemma4_26b_a4b_v", "num_experts=$", 1, MOST_EXPERTS},
    {"olmo2_plain", "hidden_size=$ head_dim=6", 1, 0},
    {"olmo2_plain", "num_attention_heads=$ num_key_value_heads=$ head_dim=20", 1, 90},
    {"olmo3_released", "hidden_size=$ head_dim=6", 1, 0},
    {"olmo3_released", "intermediate_size=$", 1, 0},
    {"smollm3_windows", "hidden_size=$ head_dim=6", 1, 0},
    {"smollm3_windows", "intermediate_size=$", 1, 0},
    {"glm_plain", "hidden_size=$", 1, 0},
    {"glm_plain", "intermediate_size=$", 1, 0},
    {"glm4_defaults", "hidden_size=$", 1, 0},
    {"glm4_defaults", "intermediate_size=$", 1, 0},
    {"phi3_plain", "hidden_size=$ head_dim=6", 1, 0},
    {"phi3_plain", "intermediate_size=$", 1, 0},
    {"granite_plain", "hidden_size=$ head_dim=6", 1, 0},
    {"granite_plain", "vocab_size=$", 1, 0},
    {"granite_hybrid_groups", "hidden_size=$ num_attention_heads=8 mamba_n_heads=$/32 mamba_d_head=64", 64,
     1152},
    {"granite_hybrid_groups", "shared_intermediate_size=$", 1, 0},
    {"granite_hybrid_groups", "mamba_d_state=$", 1, WIDEST_STATE},
    {"granite_hybrid_v", "intermediate_size=$", 1, 0},
    {"granite_hybrid_v", "num_local_experts=$", 1, MOST_EXPERTS},
    {"nemotron_h_latent", "hidden_size=$", 1, 0},
    {"nemotron_h_latent", "intermediate_size=$", 1, 0},
    {"nemotron_h_latent", "moe_intermediate_size=$", 1, 0},
    {"nemotron_h_latent", "moe_latent_size=$", 1, 0},
    {"nemotron_h_latent", "mamba_head_dim=$", 1, WIDEST_STATE},
    {"nemotron_h_latent", "ssm_state_size=$", 1, WIDEST_STATE},
    {"falcon_h1_plain", "hidden_size=$", 1, 0},
    {"falcon_h1_plain", "mamba_d_state=$", 1, WIDEST_STATE},
    {"falcon_h1_norms", "intermediate_size=$", 1, 0},
    {"gpt_neox_plain", "hidden_size=$ num_attention_heads=8", 64, 1152},
    {"gpt_neox_plain", "intermediate_size=$", 1, 0},
    {"lfm2_v", "hidden_size=$ head_dim=8", 1, 1152},
    {"lfm2_v", "intermediate_size=$", 1, 0},
    {"qwen3_5_dense_v", "hidden_size=$", 1, 0},
    {"qwen3_5_dense_v", "intermediate_size=$", 1, 0},
    {"qwen3_5_dense_v", "linear_key_head_dim=$", 1, WIDEST_STATE},
    {"qwen3_5_dense_v", "linear_value_head_dim=$", 1, WIDEST_STATE},
    {"qwen3_5_dense_v", "linear_num_value_heads=$", 2, 120},
    {"qwen3_next_dense", "hidden_size=$", 1, 0},
    {"qwen3_next_dense", "head_dim=$", 4, WIDEST_HEAD},
    {"qwen3_next_moe_v", "moe_intermediate_size=$", 1, 0},
    {"qwen3_next_moe_v", "shared_expert_intermediate_size=$", 1, 0},
    {"qwen3_5_moe_released_v", "hidden_size=$", 1, 0},
    {"qwen3_5_moe_released_v", "num_experts=$", 1, MOST_EXPERTS},
    {"qwen3_moe_norm_v", "hidden_size=$", 1, 0},
    {"qwen3_moe_norm_v", "moe_intermediate_size=$", 1, 0},
    {"mixtral_v", "hidden_size=$ head_dim=10", 1, 0},
    {"mixtral_v", "intermediate_size=$", 1, 0},
    {"glm4_moe_norms", "hidden_size=$", 1, 0},
    {"glm4_moe_norms", "moe_intermediate_size=$", 1, 0},
    {"glm4_moe_lite_latent", "kv_lora_rank=$", 1, 0},
    {"glm4_moe_lite_latent", "qk_nope_head_dim=$", 1, 500},
    {"deepseek_v3_groups", "hidden_size=$", 1, 0},
    {"deepseek_v3_groups", "q_lora_rank=$", 1, 0},
    {"deepseek_v3_groups", "v_head_dim=$", 1, WIDEST_HEAD},
    {"olmoe_v", "hidden_size=$ head_dim=10", 1, 0},
    {"olmoe_v", "intermediate_size=$", 1, 0},
    {"gpt_oss_v", "hidden_size=$", 1, 0},
    {"gpt_oss_v", "intermediate_size=$", 1, 0},
    {"gpt_oss_v", "num_local_experts=$", 1, MOST_EXPERTS},
};

/* ---- a draw ------------------------------------------------------------------------------------------- */

typedef struct draw {
    int number;
    const axis *axis;
    int64_t size, rows, documents, t_max;
    int32_t *tok, *pos, *first, *label, *doc;
    double *weight, labels;
    sbp_dtype dtype;
    const char *isa;
    int32_t threads;
    int64_t chunk, head_chunk, segment, every;
    bool save_all, attention, drop_states, offload;
} draw;

typedef struct random_model {
    sbp_model model;
    const sbp_func *derivative;
    double **params, **gradients;
    double *moves; /* how far a gradient goes when all is rounded to fp32 once more */
    int64_t *elems;
} random_model;

/* Whether a norm divides rows along this axis. In a row of one number the derivative is 1 - 1 but for
 * epsilon: what rounding leaves of it differs in any two orders of computing. */
static bool is_normed(const axis *a) {
    static const char *const fields[] = {"hidden_size=$", "lora_rank=$", "linear_value_head_dim=$"};
    for (int i = 0; i < SBP_COUNT(fields); i++)
        if (strstr(a->set, fields[i]))
            return true;
    return false;
}

/* Near to where a way of computing changes, or anywhere; thin where rows are many. */
static int64_t draw_size(testing *t, const axis *a, int64_t rows) {
    static const int32_t limits[] = {64, 128, 256, 512, 640, 768, 1024, 2048, 4096};
    int64_t most = rows > FEW_ROWS ? THIN
                   : a->most > 0   ? a->most
                                   : LONGEST,
            size = 1 + sbp_rng_below(&t->rng, 1 + sbp_rng_below(&t->rng, most));
    if (sbp_rng_below(&t->rng, 3) == 0)
        size = limits[sbp_rng_below(&t->rng, SBP_COUNT(limits))] - 2 + sbp_rng_below(&t->rng, 5);
    size = (size < most ? size : most) / a->multiple * a->multiple;
    int64_t least = a->multiple == 1 && is_normed(a) ? 2 : a->multiple;
    return size > least ? size : least;
}

/* ", KEY: NUMBER" for each field that the axis sets. */
static void add_changed(const draw *d, sbp_text *out) {
    char name[80], value[40];
    int used;
    for (const char *at = d->axis->set; sscanf(at, " %79[^=]=%39[^ ]%n", name, value, &used) == 2;
         at += used) {
        long long number = value[0] == '$' ? d->size / (value[1] == '/' ? atoi(value + 2) : 1) : atoi(value);
        sbp_text_add(out, ", \"%s\": %lld", name, number);
    }
}

static bool is_set(const draw *d, const char *key) {
    size_t length = strlen(key);
    for (const char *at = d->axis->set; (at = strstr(at, key)); at += length)
        if ((at == d->axis->set || at[-1] == ' ') && at[length] == '=')
            return true;
    return false;
}

/* config.json of the case, of its text model, with what is drawn long. */
static void write_config(testing *t, const draw *d) {
    const sbp_json *root;
    sbp_text text;
    testing_check(
        t, sbp_json_read(t->arena, t->diag,
                         sbp_arena_printf(t->arena, "tests/golden/%s/model/config.json", d->axis->model),
                         SBP_JSON_PYTHON, &root));
    const sbp_json *inner = sbp_json_member(root, "text_config");
    root = inner ? inner : root;
    sbp_text_init(&text, t->arena);
    for (int64_t i = 0; i < root->count; i++) {
        if (is_set(d, root->items[i].key))
            continue;
        sbp_text_add(&text, "%s\"%s\": ", text.length > 0 ? ", " : "{", root->items[i].key);
        sbp_json_add_value(&text, &root->items[i]);
    }
    add_changed(d, &text);
    sbp_text_add(&text, "}\n");
    testing_check(t, sbp_file_write(t->diag, model_config, text.data, text.length));
}

/* Which is what evaluating a row costs. */
static int64_t count_elems(const random_model *m) {
    int64_t elems = 0;
    for (int32_t p = 0; p < m->model.module->param_count; p++)
        elems += m->elems[p];
    return elems;
}

/* ---- the reference ------------------------------------------------------------------------------------ */

static bool ends_with(const char *text, const char *end) {
    size_t a = strlen(text), b = strlen(end);
    return a >= b && strcmp(text + a - b, end) == 0;
}

/* Values at which scores are of order 1 and no gradient is lost: as in golden/make_wide.py. All are
 * numbers of fp32. */
static double *draw_values(testing *t, const sbp_param *param, const sbp_tensor *shape, const char *type) {
    static const struct {
        const char *end;
        double middle, scale;
    } known[] = {{".A_log", -1.2, 0.7}, {".dt_bias", -0.4, 0.5},   {"bias", 0, 0.15},
                 {"sinks", 0, 1},       {"conv1d.weight", 0, 0.7}, {"conv.conv.weight", 0, 0.7}};
    double *out = SBP_NEW_ARRAY(t->arena, double, shape->elems);
    double middle = 1, scale = 0.15;
    if (shape->type.rank > 1) {
        middle = 0;
        scale = 1.6 / sqrt((double)shape->dim[shape->type.rank - 1]);
    } else if (strstr(type, "gemma4") &&
               (ends_with(param->name, "q_norm.weight") || ends_with(param->name, "k_norm.weight")))
        middle = 0.3; /* nothing else scales scores there */
    for (int i = 0; i < SBP_COUNT(known); i++)
        if (ends_with(param->name, known[i].end)) {
            middle = known[i].middle;
            scale = known[i].scale;
        }
    for (int64_t i = 0; i < shape->elems; i++)
        out[i] = (float)(middle + scale * sbp_rng_unit(&t->rng));
    return out;
}

static void load_model(testing *t, random_model *m) {
    sbp_model_options options = sbp_model_options_for(SBP_F64);
    sbp_func *expanded, *derived, *late;
    testing_check(t, sbp_model_load(t->arena, t->diag, model_folder, &options, &m->model));
    sbp_module *module = m->model.module;
    testing_check(t,
                  sbp_expand_func(module, sbp_module_find_func(module, "model"), false, t->diag, &expanded));
    for (int32_t r = 0; r < expanded->result_count; r++) /* the loss reads logp alone */
        if (expanded->results[r].role != SBP_RESULT_VALUE || strcmp(expanded->results[r].name, "logp") != 0)
            expanded->results[r].role = SBP_RESULT_SAVED;
    testing_check(t, sbp_autodiff_func(module, expanded, false, t->diag, &derived));
    testing_check(t, sbp_expand_func(module, derived, true, t->diag, &late));
    m->derivative = late;
    m->params = SBP_NEW_ARRAY(t->arena, double *, module->param_count + 1);
    m->gradients = SBP_NEW_ARRAY(t->arena, double *, module->param_count + 1);
    m->moves = SBP_NEW_ARRAY(t->arena, double, module->param_count + 1);
    m->elems = SBP_NEW_ARRAY(t->arena, int64_t, module->param_count + 1);
}

static void draw_params(testing *t, random_model *m) {
    const sbp_sizes none = {{1}};
    for (int32_t p = 0; p < m->model.module->param_count; p++) {
        const sbp_param *param = &m->model.module->params[p];
        const sbp_tensor *shape = sbp_tensor_create(t->arena, &param->type, &none);
        m->elems[p] = shape->elems;
        m->params[p] = draw_values(t, param, shape, m->model.model_type);
        m->gradients[p] = param->trainable ? SBP_NEW_ARRAY(t->arena, double, shape->elems) : NULL;
    }
}

/* A whole number stays: an index, a mask. */
static double round_at_random(void *t, double value) {
    return value == rint(value) ? value : value * (1 + SBP_HALF_ULP_F32 * sbp_rng_unit(&((testing *)t)->rng));
}

/* Evaluates the gradients of the loss - sum of w_t logp_t / labels. Tensors of the evaluation
 * are in `arena`. */
static sbp_tensor **evaluate(testing *t, sbp_arena *arena, const random_model *m, const draw *d, bool noisy) {
    const sbp_func *f = m->derivative;
    const document_rows columns = {d->tok, d->pos, d->first, d->label};
    sbp_eval_env env = {
        .arena = arena, .diag = t->diag, .noise = noisy ? round_at_random : NULL, .noise_state = t};
    for (int s = 0; s < SBP_SYMBOL_COUNT; s++)
        env.sizes.v[s] = s == SBP_ONE ? 1 : s == SBP_S ? d->documents : d->rows;
    sbp_tensor **inputs = SBP_NEW_ARRAY(arena, sbp_tensor *, f->arg_count + 1);
    for (int32_t i = 0; i < f->arg_count; i++) {
        const sbp_value_info *info = &f->values[f->args[i]];
        if (info->role == SBP_VALUE_CONST)
            continue;
        sbp_tensor *x = inputs[i] = sbp_tensor_create(arena, &info->type, &env.sizes);
        if (info->role == SBP_VALUE_PARAM)
            memcpy(x->data, m->params[info->binding], (size_t)x->elems * sizeof *x->data);
        for (int64_t r = 0; r < x->elems && info->role == SBP_VALUE_COTANGENT; r++)
            x->data[r] = -d->weight[r] / d->labels;
        for (int64_t r = 0; r < d->rows && info->role == SBP_VALUE_ROW; r++)
            x->data[r] = document_rows_value(&columns, m->model.module->rows[info->binding].name, r);
    }
    return graph_evaluate(t, arena, m->model.module, f, &env, inputs);
}

/* Whether some row is nearly as near to an expert that it does not go to: then fp32 may send it there. */
static bool is_undecided(const sbp_func *f, sbp_tensor *const *values) {
    static double row[4096];
    for (int32_t i = 0; i < f->op_count; i++) {
        const sbp_op *op = &f->ops[i];
        if (op->code != SBP_OP_route)
            continue;
        const sbp_tensor *scores = values[op->operands[0]], *index = values[op->results[0]];
        int64_t experts = scores->dim[1], k = index->dim[1];
        assert_true(experts <= SBP_COUNT(row));
        for (int64_t t = 0; t < scores->dim[0]; t++) {
            memcpy(row, scores->data + t * experts, (size_t)experts * sizeof *row);
            double last = row[(int64_t)index->data[t * k + k - 1]];
            for (int64_t j = 0; j < k; j++)
                row[(int64_t)index->data[t * k + j]] = -INFINITY;
            for (int64_t e = 0; e < experts; e++)
                if (isfinite(row[e]) && last - row[e] < SBP_UNDECIDED_CHOICE * fabs(last))
                    return true;
        }
    }
    return false;
}

static void add_gradients(const random_model *m, sbp_tensor *const *values, double sign, double *const *to) {
    const sbp_func *f = m->derivative;
    for (int32_t r = 0; r < f->result_count; r++) {
        const sbp_result *result = &f->results[r];
        if (result->role != SBP_RESULT_GRADIENT)
            continue;
        int32_t p = f->values[result->target].binding;
        for (int64_t i = 0; i < m->elems[p]; i++)
            to[p][i] += sign * values[result->value]->data[i];
    }
}

/* The gradients; returns whether fp32 may choose other experts. */
static bool make_reference(testing *t, random_model *m, const draw *d) {
    sbp_arena *arena = sbp_arena_create();
    sbp_tensor **values = evaluate(t, arena, m, d, false);
    add_gradients(m, values, 1, m->gradients);
    bool undecided = is_undecided(m->derivative, values);
    sbp_arena_destroy(arena);
    return undecided;
}

/* The same with every parameter, and every value on the way, as far off as a rounding to fp32 may make it:
 * how well the draw is conditioned (Monte Carlo arithmetic: Parker 1997). */
static void find_moves(testing *t, random_model *m, const draw *d) {
    sbp_arena *arena = sbp_arena_create();
    int32_t count = m->model.module->param_count;
    random_model other = *m;
    double **moved = SBP_NEW_ARRAY(arena, double *, count + 1);
    other.params = SBP_NEW_ARRAY(arena, double *, count + 1);
    for (int32_t p = 0; p < count; p++) {
        other.params[p] = SBP_NEW_ARRAY(arena, double, m->elems[p]);
        moved[p] = SBP_NEW_ARRAY(arena, double, m->elems[p]);
        for (int64_t i = 0; i < m->elems[p]; i++)
            other.params[p][i] = round_at_random(t, m->params[p][i]);
        for (int64_t i = 0; m->gradients[p] && i < m->elems[p]; i++)
            moved[p][i] = m->gradients[p][i];
    }
    add_gradients(m, evaluate(t, arena, &other, d, true), -1, moved);
    for (int32_t p = 0; p < count; p++)
        m->moves[p] = testing_norm(moved[p], m->elems[p]);
    sbp_arena_destroy(arena);
}

/* ---- rows and schedule -------------------------------------------------------------------------------- */

/* One draw of ten is of many rows; then nothing else is long. */
static int64_t draw_row_count(testing *t) {
    static const int32_t limits[] = {256, 512, 1024, 2048};
    if (sbp_rng_below(&t->rng, 10) > 0)
        return 4 + sbp_rng_below(&t->rng, 97);
    if (sbp_rng_below(&t->rng, 2))
        return limits[sbp_rng_below(&t->rng, SBP_COUNT(limits))] - 2 + sbp_rng_below(&t->rng, 5);
    return FEW_ROWS + 1 + sbp_rng_below(&t->rng, 1 + sbp_rng_below(&t->rng, MOST_ROWS - FEW_ROWS));
}

static void draw_documents(testing *t, draw *d, int64_t vocabulary) {
    d->tok = SBP_NEW_ARRAY(t->arena, int32_t, d->rows);
    d->pos = SBP_NEW_ARRAY(t->arena, int32_t, d->rows);
    d->first = SBP_NEW_ARRAY(t->arena, int32_t, d->rows);
    d->label = SBP_NEW_ARRAY(t->arena, int32_t, d->rows);
    d->doc = SBP_NEW_ARRAY(t->arena, int32_t, d->rows);
    d->weight = SBP_NEW_ARRAY(t->arena, double, d->rows);
    int64_t mean = 1 + sbp_rng_below(&t->rng, 2 * d->rows);
    for (int32_t r = 0; r < d->rows; r++) {
        bool begins = r == 0 || r - d->first[r - 1] >= LONGEST_DOCUMENT || sbp_rng_below(&t->rng, mean) == 0;
        d->documents += begins;
        d->doc[r] = (int32_t)d->documents - 1;
        d->first[r] = begins ? r : d->first[r - 1];
        d->pos[r] = r - d->first[r];
        d->tok[r] = (int32_t)sbp_rng_below(&t->rng, vocabulary);
        d->label[r] = (int32_t)sbp_rng_below(&t->rng, vocabulary);
        d->weight[r] = r < 2 || sbp_rng_below(&t->rng, 5) > 0;
        d->labels += d->weight[r];
    }
}

/* From rows / 64 on, so that no draw takes minutes. */
static int64_t draw_chunk(testing *t, const draw *d) {
    int64_t least = 1 + d->rows / 64, most = sbp_rng_below(&t->rng, 2) ? d->t_max : 1 + d->t_max / 4;
    return least >= most ? least : least + sbp_rng_below(&t->rng, most - least + 1);
}

static void draw_schedule(testing *t, draw *d) {
    static const char *const sets[] = {"v4_bf16", "v4", "v3", "base"};
    d->isa = sets[sbp_rng_below(&t->rng, SBP_COUNT(sets))];
    d->threads = 1 + (int32_t)sbp_rng_below(&t->rng, 2);
    d->dtype = sbp_rng_below(&t->rng, 3) == 0 ? SBP_F32 : SBP_F64;
    d->t_max = d->rows + (sbp_rng_below(&t->rng, 2) ? sbp_rng_below(&t->rng, 9) : 0);
    int64_t mode = sbp_rng_below(&t->rng, 6); /* 0: standard, 1: checkpoint, else stream */
    d->chunk = mode < 2 ? d->t_max : draw_chunk(t, d);
    d->head_chunk = mode < 2 ? d->t_max : draw_chunk(t, d);
    d->segment = mode < 2 ? 1 : 1 + sbp_rng_below(&t->rng, 3);
    d->every = mode < 2 ? 1 : 1 + sbp_rng_below(&t->rng, 4);
    int64_t kept = mode == 0 ? 0 : mode == 1 ? 3 : sbp_rng_below(&t->rng, 4);
    d->save_all = kept == 0;
    d->attention = kept == 1;
    d->drop_states = kept == 2;
    d->offload = mode > 1 && sbp_rng_below(&t->rng, 4) == 0;
}

static const char *describe(testing *t, const draw *d) {
    return sbp_arena_printf(t->arena,
                            "draw %d: %s, %s ($ = %d); %d rows of at most %d, %d documents; %s, %s, %d "
                            "threads; C %d, C_head %d, g %d, "
                            "k %d, kept: %s%s",
                            d->number, d->axis->model, d->axis->set, (int)d->size, (int)d->rows,
                            (int)d->t_max, (int)d->documents, d->dtype == SBP_F64 ? "fp64" : "fp32", d->isa,
                            d->threads, (int)d->chunk, (int)d->head_chunk, (int)d->segment, (int)d->every,
                            d->save_all      ? "all"
                            : d->attention   ? SBP_SAVE_ATTENTION
                            : d->drop_states ? "no states"
                                             : "states",
                            d->offload ? ", on the host" : "");
}

/* ---- the program -------------------------------------------------------------------------------------- */

static sbp_program *compile_draw(testing *t, const draw *d) {
    static const char *const attention[] = {SBP_SAVE_ATTENTION};
    sbp_program *p;
    compile_request request = compile_request_for(model_folder, d->t_max, d->chunk, d->head_chunk);
    request.compute = request.options.grad_dtype = request.options.state_dtype = d->dtype;
    request.options.schedule.segment = d->segment;
    request.options.schedule.checkpoint_every = d->every;
    request.options.schedule.save_all = d->save_all;
    request.options.schedule.saved = attention;
    request.options.schedule.saved_count = d->attention;
    request.options.schedule.drop_states = d->drop_states;
    compile_offload(&request, d->offload);
    testing_check(t, compile_model(t->arena, t->diag, &request, &p));
    return p;
}

static void run_step(testing *t, sbp_executor *e, const sbp_program *p, const random_model *m,
                     const draw *d) {
    double *copies = SBP_NEW_ARRAY(t->arena, double, d->rows);
    for (int64_t r = 0; r < d->rows; r++)
        copies[r] = 1;
    const sbp_column columns[] = {
        {"tok", SBP_I32, d->tok, d->rows},       {"pos", SBP_I32, d->pos, d->rows},
        {"first", SBP_I32, d->first, d->rows},   {"shared_end", SBP_I32, d->first, d->rows},
        {"own", SBP_I32, d->first, d->rows},     {"label", SBP_I32, d->label, d->rows},
        {"weight", SBP_F64, d->weight, d->rows}, {"doc", SBP_I32, d->doc, d->rows},
        {"copies", SBP_F64, copies, d->rows},
    };
    sbp_executor_set_scalar(e, "labels", d->labels);
    sbp_executor_set_scalar(e, "parts", 1);
    testing_check(t, sbp_executor_fill_role(e, SBP_ROLE_GRAD, 0, t->diag));
    testing_check(t, sbp_executor_fill_role(e, SBP_ROLE_RESULT, 0, t->diag));
    for (int32_t i = 0; i < m->model.module->param_count; i++)
        testing_check(t, sbp_executor_write(e, sbp_program_find_buffer(p, m->model.module->params[i].name), 0,
                                            0, m->elems[i], SBP_F64, m->params[i], t->diag));
    testing_check(t, sbp_executor_bind(e, d->rows, d->documents, columns, SBP_COUNT(columns), t->diag));
    testing_check(t, sbp_executor_run(e, "accumulate", t->diag));
}

typedef struct totals {
    int draws, wrong, fp32, in_pieces, long_rows, conditioned;
    double worst[2]; /* of what is allowed, in fp64, in fp32 */
} totals;

/* The gradient that is off most, measured by what it may be: by how much, relative, and how much it may be.
 * Relative to its norm; where that is 0, as of queries of documents of a row, to what a tensor of its size
 * has of the norm of all. Where all are 0, as with a vocabulary of one, it has to be 0. */
typedef struct verdict {
    const char *worst;
    double error, allowed;
} verdict;

/* moved: find_moves has been here, and a gradient may be off some times what it moves when all is rounded
 * once more. */
static verdict compare(testing *t, sbp_executor *e, const sbp_program *p, const random_model *m,
                       const draw *d, bool moved) {
    const sbp_module *module = m->model.module;
    verdict v = {"none", 0, 1};
    double all = 0, longest = (double)(d->size > d->rows ? d->size : d->rows);
    longest = fmax(longest, SHORT); /* as the other dimensions of golden models */
    for (int32_t i = 0; i < module->param_count; i++)
        all += m->gradients[i] ? pow(testing_norm(m->gradients[i], m->elems[i]), 2) : 0;
    for (int32_t i = 0; i < module->param_count; i++) {
        if (!m->gradients[i])
            continue;
        int64_t n = m->elems[i];
        double *got = SBP_NEW_ARRAY(t->arena, double, n);
        int32_t buffer =
            sbp_program_find_buffer(p, sbp_arena_printf(t->arena, "%s.grad", module->params[i].name));
        assert_true(buffer >= 0);
        testing_check(t, sbp_executor_read(e, buffer, 0, 0, n, SBP_F64, got, t->diag));
        double norm = testing_norm(m->gradients[i], n), allowed = sbp_tolerance(d->dtype);
        double difference = testing_difference(got, m->gradients[i], n);
        double of = norm > 0 ? norm : sqrt(all * (double)n / (double)count_elems(m));
        double error = difference == 0 ? 0 : difference / of, /* infinite where `of` is 0 */
            ulp = d->dtype == SBP_F32 ? 1 : 0x1p-29;
        if (moved && norm > 0)
            allowed = fmax(allowed, SBP_TIMES_ROUNDED_ONCE_MORE * sqrt(longest) * ulp * m->moves[i] / norm);
        if (!(error / allowed <= v.error / v.allowed))
            v = (verdict){module->params[i].name, error, allowed};
    }
    return v;
}

/* Where a gradient is off by more than the type alone explains, the draw may be conditioned so. */
static verdict judge(testing *t, sbp_executor *e, const sbp_program *p, random_model *m, const draw *d,
                     totals *sum) {
    verdict v = compare(t, e, p, m, d, false);
    if (v.error <= v.allowed)
        return v;
    sum->conditioned++;
    find_moves(t, m, d);
    return compare(t, e, p, m, d, true);
}

static void try_draw(int number, totals *sum, bool say) {
    testing t = testing_open((uint64_t)number);
    draw d = {.number = number, .axis = &axes[sbp_rng_below(&t.rng, SBP_COUNT(axes))]};
    random_model m = {0};
    d.rows = draw_row_count(&t);
    d.size = draw_size(&t, d.axis, d.rows);
    write_config(&t, &d);
    load_model(&t, &m);
    draw_params(&t, &m);
    int64_t most = WORK / count_elems(&m);
    if (d.rows <= FEW_ROWS && d.rows > most)
        d.rows = most < 4 ? 4 : most;
    draw_documents(&t, &d, m.model.vocab_size);
    draw_schedule(&t, &d);
    if (make_reference(&t, &m, &d))
        d.dtype = SBP_F64;
    const char *what = describe(&t, &d);
    if (say)
        print_message("%s\n", what);
    sbp_program *p = compile_draw(&t, &d);
    sbp_executor *e;
    sbp_device_options options = {.threads = d.threads};
    setenv("SBP_CPU_ISA", d.isa, 1);
    testing_check(&t, sbp_executor_create(t.diag, &sbp_cpu_device, &options, p, &e));
    run_step(&t, e, p, &m, &d);
    verdict v = judge(&t, e, p, &m, &d, sum);
    sbp_executor_destroy(e);
    sum->draws++;
    sum->fp32 += d.dtype == SBP_F32;
    sum->long_rows += d.rows > 512;
    sum->in_pieces += d.size > 1024;
    double *worst = &sum->worst[d.dtype == SBP_F32];
    *worst = fmax(*worst, v.error / v.allowed);
    if (say)
        print_message("off by %.2g, at most %.2g (%s)\n", v.error, v.allowed, v.worst);
    if (!(v.error <= v.allowed) && sum->wrong++ < 20)
        print_message("%s: gradient of %s is off by %.3g, at most %.2g\n", what, v.worst, v.error, v.allowed);
    testing_close(&t);
}

static void test_draws(void **state) {
    totals sum = {0};
    (void)state;
    const char *one = getenv("SBP_RANDOM_DRAW"), *isa = getenv("SBP_CPU_ISA");
    int count = one ? 1 : testing_sweep(BY_DEFAULT, 20000), first = one ? atoi(one) : 1;
    char *kept = isa ? strdup(isa) : NULL;
    for (int i = 0; i < count; i++)
        try_draw(first + i, &sum, one != NULL);
    if (kept)
        setenv("SBP_CPU_ISA", kept, 1);
    free(kept);
    print_message("%d draws, %d of them in fp32, %d longer than 1,024, %d of more than 512 rows, %d judged "
                  "by their conditioning; worst in "
                  "fp64 %.2g, in fp32 "
                  "%.2g\n",
                  sum.draws, sum.fp32, sum.in_pieces, sum.long_rows, sum.conditioned, sum.worst[0],
                  sum.worst[1]);
    if (sum.wrong > 0)
        fail_msg("%d of %d draws are wrong (SBP_RANDOM_DRAW=N runs draw N alone)", sum.wrong, sum.draws);
    assert_true(count < 100 ||
                (sum.fp32 > count / 8 && sum.in_pieces > count / 6 && sum.long_rows > count / 50));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_draws)};
    return cmocka_run_group_tests(tests, model_folder_make, model_folder_remove);
}
