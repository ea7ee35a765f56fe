/* update.c: the graphs of what happens to gradients: flush, norm, the optimizer's rule for a parameter with
 * casts around it; and conversions.
 *
 * Clipping as torch.nn.utils.clip_grad_norm_: factor min(1, max_grad_norm / (norm + 1e-6)). */
#include "passes/optimizers/update.h"
#include "ir/base/census.h"

#include <string.h>

#include "passes/optimizers/maker.h"

/* ---- rules without states ------------------------------------------------------------------------------ */

/* A rule that was made before, by its key; NULL. */
static const sbp_rule *find_rule(const sbp_program_builder *p, const char *key) {
    int32_t found = sbp_map_get(&p->rule_keys, key);
    return found >= 0 ? p->rules[found] : NULL;
}

/* Lowers a rule and remembers it. What fails is our own; the pass reports it. */
static const sbp_rule *finish_rule(sbp_rule *rule, const char *key) {
    sbp_program_builder *p = rule->p;
    sbp_rule *kept = SBP_NEW(p->arena, sbp_rule);
    if (sbp_rule_end(rule) != SBP_OK) {
        p->status = SBP_INTERNAL;
        rule->code.body = (sbp_body){0};
    }
    *kept = *rule;
    sbp_map_set(&p->rule_keys, key, p->rule_count);
    SBP_PUSH(p->arena, p->rules, p->rule_count, p->rule_capacity, kept);
    return kept;
}

static void inline_rule(sbp_program_builder *p, sbp_body *body, const sbp_rule *rule, const sbp_view *views) {
    sbp_lower_inline(p, body, &rule->code.body, views, -1, -1, 0);
}

/* What a rule between two buffers of one shape is called. */
static const char *key_of(sbp_program_builder *p, const char *name, sbp_dtype to, sbp_dtype from,
                          sbp_view shape) {
    sbp_text key;
    sbp_text_init(&key, p->arena);
    sbp_text_add(&key, "%s %d %d %lld ", name, to, from, (long long)shape.cols);
    sbp_extent_print(&key, p->program->buffers[shape.ref].rows);
    return key.data;
}

void sbp_lower_flush(sbp_program_builder *p, sbp_body *body, sbp_view grad, sbp_dtype grad_dtype,
                     sbp_view accum, sbp_dtype accum_dtype) {
    const char *key = key_of(p, "flush", grad_dtype, accum_dtype, grad);
    sbp_extent rows = p->program->buffers[grad.ref].rows;
    const sbp_rule *rule = find_rule(p, key);
    if (!rule) {
        sbp_rule r;
        sbp_dtype wide = sbp_lower_wide(accum_dtype);
        sbp_rule_begin(p, "flush", &r);
        sbp_value a = sbp_rule_operand(&r, "accum", SBP_READ, accum_dtype, rows, accum.cols);
        sbp_value g = sbp_rule_operand(&r, "grad", SBP_UPDATE, grad_dtype, rows, grad.cols);
        sbp_rule_store(&r, 1,
                       sbp_build2(&r.builder, SBP_OP_add, sbp_build_cast(&r.builder, g, wide),
                                  sbp_build_cast(&r.builder, a, wide)));
        rule = finish_rule(&r, key);
    }
    inline_rule(p, body, rule, (sbp_view[]){accum, grad});
}

void sbp_lower_convert(sbp_program_builder *p, sbp_body *body, sbp_view to, sbp_dtype to_dtype, sbp_view from,
                       sbp_dtype from_dtype) {
    const char *key = key_of(p, "convert", to_dtype, from_dtype, from);
    sbp_extent rows = p->program->buffers[from.ref].rows;
    const sbp_rule *rule = find_rule(p, key);
    if (!rule) {
        sbp_rule r;
        sbp_rule_begin(p, "convert", &r);
        sbp_value x = sbp_rule_operand(&r, "from", SBP_READ, from_dtype, rows, from.cols);
        sbp_rule_operand(&r, "to", SBP_WRITE, to_dtype, rows, to.cols);
        sbp_rule_store(&r, 1, x);
        rule = finish_rule(&r, key);
    }
    inline_rule(p, body, rule, (sbp_view[]){from, to});
}

/* Every trainable parameter has a place of its own, so that the sums wait for nothing but their gradients. */
void sbp_lower_sumsq(sbp_program_builder *p, sbp_body *body, int32_t param, sbp_view norms, sbp_view grad) {
    int32_t column = 0;
    for (int32_t i = 0; i < param; i++)
        column += p->module->params[i].trainable;
    sbp_command *reduce = sbp_lower_command(p, body, SBP_CMD_REDUCE);
    norms.col = column;
    norms.cols = 1;
    reduce->views[SBP_REDUCE_DST] = norms;
    reduce->views[SBP_REDUCE_SRC] = grad;
    reduce->view_count = SBP_REDUCE_OPERANDS;
    reduce->u.reduce.op = SBP_REDUCE_SUMSQ;
}

/* grad_norm = sqrt(norm_squared); clip = min(1, max_grad_norm / (grad_norm + 1e-6)). Without clipping the
 * host sets max_grad_norm to infinity. */
static const sbp_rule *norm_rule(sbp_program_builder *p, bool clips) {
    const char *key = clips ? "norm clip" : "norm";
    const sbp_rule *found = find_rule(p, key);
    if (found)
        return found;
    sbp_rule r;
    sbp_extent one = sbp_extent_const(1);
    sbp_rule_begin(p, "norm", &r);
    sbp_builder *b = &r.builder;
    sbp_value square = sbp_rule_operand(&r, "norm_squared", SBP_READ, SBP_F64, one, 1);
    sbp_rule_operand(&r, "grad_norm", SBP_WRITE, SBP_F64, one, 1);
    sbp_value norm = sbp_build1(b, SBP_OP_sqrt, square);
    sbp_rule_store(&r, 1, norm);
    if (clips) {
        sbp_rule_operand(&r, "clip", SBP_WRITE, SBP_F64, one, 1);
        sbp_value below = sbp_build2(b, SBP_OP_add, norm, sbp_build_const(b, SBP_F64, 1e-6));
        sbp_value factor =
            sbp_build2(b, SBP_OP_div, sbp_build_scalar(b, sbp_scalar_names[SBP_SCALAR_MAX_GRAD_NORM]), below);
        sbp_rule_store(&r, 2, sbp_build2(b, SBP_OP_min, sbp_build_const(b, SBP_F64, 1), factor));
    }
    return finish_rule(&r, key);
}

void sbp_lower_norm(sbp_program_builder *p, sbp_body *body, const sbp_lasting *lasting, sbp_view norms,
                    sbp_view clip) {
    sbp_view views[3] = {sbp_view_buffer(p->program, lasting->norm_squared, 0),
                         sbp_view_buffer(p->program, lasting->grad_norm, 0), clip};
    sbp_command *reduce = sbp_lower_command(p, body, SBP_CMD_REDUCE);
    reduce->views[SBP_REDUCE_DST] = views[0];
    reduce->views[SBP_REDUCE_SRC] = norms;
    reduce->view_count = SBP_REDUCE_OPERANDS;
    reduce->u.reduce.op = SBP_REDUCE_SUM;
    inline_rule(p, body, norm_rule(p, clip.ref != SBP_NO_VIEW), views);
}

/* ---- the optimizer's rule ------------------------------------------------------------------------------ */

static int64_t elems_of(const sbp_param *param) {
    return sbp_type_row_elems(&param->type);
}

static bool has_master(const sbp_pass_options *options, const sbp_param *param) {
    return param->storage == SBP_BF16 && options->master;
}

/* Whether its elements are whole blocks, as which updates may see it. */
static bool has_blocks(const sbp_param *param) {
    sbp_extent rows;
    int64_t cols;
    sbp_lower_shape(&param->type, SBP_C, &rows, &cols);
    return cols > 1 && elems_of(param) % SBP_BLOCK == 0;
}

/* Whether the states of a parameter are in 8 bits. */
static bool in_blocks(const sbp_program_builder *p, const sbp_param *param) {
    bool fits = elems_of(param) >= SBP_BLOCK_LEAST && elems_of(param) % SBP_BLOCK == 0;
    if (p->options.state_dtype == SBP_D8)
        SBP_CROSS_EITHER(fits, plan_states_in_blocks, plan_states_wide);
    return p->options.state_dtype == SBP_D8 && fits;
}

const char *const sbp_optimizer_names[SBP_OPTIMIZER_COUNT] = {
    "none",
#define OPTIMIZER(id, name, text, states) text,
#include "passes/lower/optimizers.def"
#undef OPTIMIZER
};

static const struct {
    void (*make)(sbp_optimizer_rule *);
    int states;
} optimizers[SBP_OPTIMIZER_COUNT] = {
    {NULL, 0},
#define OPTIMIZER(id, name, text, states) {sbp_optimizer_##name, states},
#include "passes/lower/optimizers.def"
#undef OPTIMIZER
};

bool sbp_update_keeps_states(const sbp_module *module, const sbp_pass_options *options) {
    bool master = false;
    for (int32_t i = 0; i < module->param_count; i++)
        master |= module->params[i].trainable && has_master(options, &module->params[i]);
    return optimizers[options->optimizer].states > 0 || (master && options->optimizer != SBP_OPTIMIZER_NONE);
}

bool sbp_update_is_random(const sbp_program_builder *p, int32_t param) {
    const sbp_param *source = &p->module->params[param];
    const sbp_pass_options *o = &p->options;
    return source->trainable && o->optimizer != SBP_OPTIMIZER_NONE &&
           ((o->state_dtype == SBP_BF16 && optimizers[o->optimizer].states > 0) ||
            (source->storage == SBP_BF16 && !o->master && o->stochastic));
}

bool sbp_update_has_shares(const sbp_program_builder *p, int32_t param) {
    return !sbp_update_is_random(p, param) || has_blocks(&p->module->params[param]);
}

/* With states in blocks the weight is stored when the largest of the block is known: what is stored after
 * that is computed again from everything that was read, and so must find the weight as it was. */
static void store_weight(sbp_optimizer_rule *r) {
    sbp_update_maker *m = r->maker;
    const sbp_pass_options *o = &m->rule.p->options;
    sbp_value value = m->next_weight;
    if (m->largest != SBP_NO_VALUE) {
        sbp_value known = sbp_build2(r->b, SBP_OP_le, sbp_build_const(r->b, r->compute, 0), m->largest);
        value = sbp_build3(r->b, SBP_OP_select, known, value, m->largest); /* else it is no number */
    }
    if (m->low >= 0) {
        sbp_rule_store(&m->rule, m->low, sbp_build1(r->b, SBP_OP_bf16_low, value));
        value = sbp_build1(r->b, SBP_OP_bf16_high, value);
    } else if (m->param->storage == SBP_BF16 && o->stochastic) {
        value = sbp_maker_round(&m->rule, value, "param");
    }
    sbp_rule_store(&m->rule, m->weight, value);
}

/* The weight, all of it. */
static sbp_value read_weight(sbp_optimizer_rule *r) {
    sbp_update_maker *m = r->maker;
    m->weight = m->update->operand_count;
    sbp_value weight = sbp_build_cast(
        r->b, sbp_maker_like_param(m, SBP_UPDATE_PARAM, NULL, m->param->storage, SBP_UPDATE), r->compute);
    m->low = -1;
    if (!has_master(&m->rule.p->options, m->param))
        return weight;
    m->low = m->update->operand_count;
    sbp_value low = sbp_maker_like_param(m, SBP_UPDATE_MASTER, sbp_suffixes[SBP_SUFFIX_MASTER_LO].name,
                                         SBP_I16, SBP_UPDATE);
    return sbp_build2(r->b, SBP_OP_bf16_join, weight, sbp_build_cast(r->b, low, r->compute));
}

/* The gradient, clipped. */
static sbp_value read_gradient(sbp_optimizer_rule *r) {
    sbp_update_maker *m = r->maker;
    const sbp_pass_options *o = &m->rule.p->options;
    sbp_value grad = sbp_build_cast(
        r->b,
        sbp_maker_like_param(m, SBP_UPDATE_GRAD, NULL,
                             o->step ? sbp_lower_wide(m->param->type.dtype) : o->grad_dtype, SBP_READ),
        r->compute);
    if (o->step)
        return grad;
    sbp_value clip = sbp_maker_operand(m, (sbp_update_operand){.kind = SBP_UPDATE_CLIP,
                                                               .dtype = SBP_F64,
                                                               .rows = sbp_extent_const(1),
                                                               .cols = 1,
                                                               .access = SBP_READ});
    return sbp_build2(r->b, SBP_OP_mul, grad, sbp_build_cast(r->b, clip, r->compute));
}

const char *sbp_update_key(const sbp_program_builder *p, const sbp_param *param) {
    sbp_extent rows;
    int64_t cols;
    sbp_lower_shape(&param->type, SBP_C, &rows, &cols);
    return sbp_arena_printf(p->arena, "%lld %lld %d %d %d", (long long)rows.c[SBP_ONE], (long long)cols,
                            param->storage, param->type.dtype, param->decay);
}

const char *sbp_update_flat_key(const sbp_program_builder *p, const sbp_param *param) {
    return sbp_arena_printf(p->arena, "%d %d %d %d", param->storage, param->type.dtype, param->decay,
                            in_blocks(p, param));
}

/* The rule of a parameter, for this many of its rows and columns. */
static sbp_status make(sbp_program_builder *p, const sbp_param *param, sbp_extent rows, int64_t cols,
                       const sbp_update **out) {
    sbp_update_maker m = {.param = param, .update = SBP_NEW(p->arena, sbp_update), .largest = SBP_NO_VALUE};
    m.rows = rows;
    m.cols = cols;
    m.bytes = in_blocks(p, param);
    m.block = m.bytes || (has_blocks(param) && sbp_update_is_random(p, (int32_t)(param - p->module->params)))
                  ? SBP_BLOCK
                  : 0;
    sbp_rule_begin(p, sbp_arena_printf(p->arena, "update.%s", sbp_optimizer_names[p->options.optimizer]),
                   &m.rule);
    m.rule.of_param = true;
    sbp_optimizer_rule r = {.b = &m.rule.builder,
                            .compute = param->storage == SBP_F64 ? SBP_F64 : SBP_F32,
                            .decay = param->decay,
                            .maker = &m};
    r.grad = read_gradient(&r);
    r.weight = read_weight(&r);
    optimizers[p->options.optimizer].make(&r);
    store_weight(&r);
    SBP_TRY(sbp_rule_end(&m.rule));
    m.update->body = m.rule.code.body;
    *out = m.update;
    return SBP_OK;
}

sbp_status sbp_update_make(sbp_program_builder *p, const sbp_param *param, const sbp_update **out) {
    sbp_extent rows;
    int64_t cols;
    sbp_lower_shape(&param->type, SBP_C, &rows, &cols);
    return make(p, param, rows, cols, out);
}

sbp_status sbp_update_make_flat(sbp_program_builder *p, const sbp_param *like, int64_t rows,
                                const sbp_update **out) {
    return make(p, like, sbp_extent_const(rows), SBP_BLOCK, out);
}

double sbp_update_stream(const sbp_program_builder *p, int32_t param) {
    const char *name = p->module->params[param].name;
    return (double)(sbp_hash_bytes(name, strlen(name), 0) & 0xffffff);
}
