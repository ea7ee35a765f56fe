/* optimizer: the rules that consume finished gradients, and the buffers that last: parameters, gradients,
 * states.
 *
 * requires  head
 * preserves everything there is
 * breaks    nothing
 *
 * AdamW as torch.optim.AdamW: p -= lr wd p; m += (1-b1)(g - m); v = b2 v + (1-b2) g^2;
 * p -= lr/(1-b1^t) m / (sqrt(v)/sqrt(1-b2^t) + eps). 1-b1 and 1-b2 come from the host, where they are
 * computed in double: 1 - 0.999f is off by 2e-5. Weight decay only where the parameter is marked for it. SGD:
 * p -= lr (g + wd p).
 */
#include <stdio.h>
#include <string.h>

#include "ir/lex.h"
#include "passes/update.h"

/* ---- row kernels, as text ---------------------------------------------------------------------------- */

/* The number of the kernel of this text. Hundreds of parameters share a few texts: each is parsed once. */
static int32_t kernel_of(sbp_pipeline *p, const char *text) {
    int32_t found = sbp_map_get(&p->lowering->kernel_texts, text);
    if (found >= 0)
        return found;
    sbp_lexer lexer;
    sbp_rowkernel *kernel = NULL;
    if (sbp_lexer_init(&lexer, p->arena, p->diag, "optimizer", text, strlen(text)) != SBP_OK ||
        sbp_rowkernel_parse(&lexer, p->arena, &kernel) != SBP_OK) {
        p->lowering->failed = true; /* the text is ours; the pass reports it */
        return -1;
    }
    found = sbp_program_add_kernel(p->arena, p->program, kernel);
    sbp_map_set(&p->lowering->kernel_texts, text, found);
    return found;
}

/* Emits the row command that runs a kernel of ours. views: in operand order; scalars of the kernel are
 * program scalars of the same name. */
static sbp_command *emit(sbp_pipeline *p, sbp_body *body, const char *text, const sbp_view *views) {
    int32_t number = kernel_of(p, text);
    if (number < 0)
        return NULL;
    const sbp_rowkernel *kernel = p->program->kernels[number];
    sbp_command *row = sbp_lower_command(p, body, SBP_CMD_ROW);
    row->view_count = kernel->operand_count;
    memcpy(row->views, views, (size_t)row->view_count * sizeof *views);
    row->scalar_count = kernel->scalar_count;
    row->scalars = SBP_NEW_ARRAY(p->arena, int32_t, row->scalar_count);
    for (int32_t i = 0; i < row->scalar_count; i++)
        row->scalars[i] = sbp_program_add_scalar(p->arena, p->program, kernel->scalars[i]);
    row->kernel = number;
    return row;
}

/* An operand [rows, cols], or with `rows` false one that does not vary with the row. */
static void add_operand(sbp_text *text, const char *mode, const char *name, sbp_dtype dtype, bool rows,
                        int64_t cols) {
    sbp_text_add(text, "  %s %s : %s [%s%s%s]", mode, name, sbp_dtype_name(dtype), rows ? "row" : "",
                 rows && cols > 1 ? " " : "", cols > 1 ? "elem" : "");
    if (cols > 1)
        sbp_text_add(text, " length %lld", (long long)cols);
    sbp_text_add(text, "\n");
}

static sbp_text begin(sbp_pipeline *p, const char *name, sbp_dtype compute, int64_t cols) {
    sbp_text text;
    sbp_text_init(&text, p->arena);
    sbp_text_add(&text, "kernel @%s %s heads 1 n %lld {\n", name, sbp_dtype_name(compute), (long long)cols);
    return text;
}

/* grad += accum */
void sbp_lower_flush(sbp_pipeline *p, sbp_body *body, sbp_view grad, sbp_dtype grad_dtype, sbp_view accum,
                     sbp_dtype accum_dtype) {
    sbp_text k = begin(p, "flush", sbp_lower_wide(accum_dtype), accum.cols);
    add_operand(&k, "in", "accum", accum_dtype, true, accum.cols);
    add_operand(&k, "in", "grad_in", grad_dtype, true, accum.cols);
    add_operand(&k, "out", "grad", grad_dtype, true, accum.cols);
    sbp_text_add(&k,
                 "  %%0 = load accum\n  %%1 = load grad_in\n  %%2 = add %%1, %%0\n  store grad, %%2\n}\n");
    emit(p, body, k.data, (sbp_view[]){accum, grad, grad});
}

/* A parameter in its compute type. */
void sbp_lower_convert(sbp_pipeline *p, sbp_body *body, sbp_view to, sbp_dtype to_dtype, sbp_view from,
                       sbp_dtype from_dtype) {
    sbp_text k =
        begin(p, "convert", to_dtype == SBP_F64 || from_dtype == SBP_F64 ? SBP_F64 : SBP_F32, from.cols);
    add_operand(&k, "in", "from", from_dtype, true, from.cols);
    add_operand(&k, "out", "to", to_dtype, true, to.cols);
    sbp_text_add(&k, "  %%0 = load from\n  store to, %%0\n}\n");
    emit(p, body, k.data, (sbp_view[]){from, to});
}

/* ---- rules ------------------------------------------------------------------------------------------- */

/* What a rule's text is made from. */
typedef struct rule {
    sbp_update *update;
    sbp_text text; /* of its kernel */
    sbp_dtype compute;
    int64_t cols;
} rule;

/* An operand of the rule, and of its kernel: read, and when it is updated stored under its own name. */
static void add_rule_operand(rule *r, const sbp_param *param, sbp_update_operand operand, const char *name) {
    if (operand.kind == SBP_UPDATE_CLIP) {
        operand.rows = sbp_extent_const(1);
        operand.cols = 1;
    } else {
        sbp_lower_shape(&param->type, SBP_C, &operand.rows, &operand.cols);
    }
    bool in_place = operand.access == SBP_UPDATE;
    r->update->operands[r->update->operand_count++] = operand;
    char in[32];
    snprintf(in, sizeof in, "%s%s", name, in_place ? "_in" : "");
    add_operand(&r->text, "in", in, operand.dtype, operand.kind != SBP_UPDATE_CLIP, operand.cols);
}

/* The command of the rule: operands as they were added, then those that are updated once more, to be written.
 */
static void finish_rule(sbp_pipeline *p, rule *r) {
    sbp_view views[2 * SBP_MAX_UPDATE_OPERANDS];
    sbp_formal formals[SBP_MAX_UPDATE_OPERANDS];
    int32_t count = 0;
    for (int32_t i = 0; i < r->update->operand_count; i++)
        formals[i] = (sbp_formal){.rows = r->update->operands[i].rows, .cols = r->update->operands[i].cols};
    for (int pass = 0; pass < 2; pass++)
        for (int32_t i = 0; i < r->update->operand_count; i++) {
            const sbp_update_operand *o = &r->update->operands[i];
            if (pass == 1 && o->access != SBP_UPDATE)
                continue;
            views[count++] = sbp_view_formal(&(sbp_function){.formals = formals}, i);
        }
    emit(p, &r->update->body, r->text.data, views);
}

/* What every rule has: gradient, factor, parameter; then its states. Everything but the first two is written.
 */
static void begin_rule(sbp_pipeline *p, const char *name, const sbp_param *param, sbp_dtype grad_dtype,
                       bool clip, const char *const *states, int state_count, rule *r) {
    r->text = begin(p, name, r->compute, r->cols);
    add_rule_operand(r, param, (sbp_update_operand){SBP_UPDATE_GRAD, .dtype = grad_dtype, .access = SBP_READ},
                     "grad");
    if (clip)
        add_rule_operand(r, param,
                         (sbp_update_operand){SBP_UPDATE_CLIP, .dtype = SBP_F64, .access = SBP_READ}, "clip");
    add_rule_operand(r, param,
                     (sbp_update_operand){SBP_UPDATE_PARAM, .dtype = param->storage, .access = SBP_UPDATE},
                     "param");
    for (int i = 0; i < state_count; i++)
        add_rule_operand(r, param,
                         (sbp_update_operand){SBP_UPDATE_STATE, .suffix = states[i],
                                              .dtype = p->options.state_dtype, .access = SBP_UPDATE},
                         states[i]);
    add_operand(&r->text, "out", "param", param->storage, true, r->cols);
    for (int i = 0; i < state_count; i++)
        add_operand(&r->text, "out", states[i], p->options.state_dtype, true, r->cols);
}

static void adamw(sbp_pipeline *p, const sbp_param *param, sbp_dtype grad_dtype, bool clip, rule *r) {
    static const char *const states[] = {"exp_avg", "exp_avg_sq"};
    sbp_text *k = &r->text;
    begin_rule(p, "adamw", param, grad_dtype, clip, states, SBP_COUNT(states), r);
    sbp_text_add(
        k, "  scalar lr\n  scalar weight_decay\n  scalar one_minus_beta1\n  scalar beta2\n"
           "  scalar one_minus_beta2\n  scalar bias1\n  scalar bias2_sqrt\n  scalar eps\n"
           "  %%0 = load grad\n  %%1 = load param_in\n  %%2 = load exp_avg_in\n  %%3 = load exp_avg_sq_in\n"
           "  %%4 = scalar one_minus_beta2\n  %%5 = scalar lr\n  %%6 = scalar weight_decay\n"
           "  %%7 = scalar one_minus_beta1\n  %%8 = scalar beta2\n  %%9 = scalar bias1\n  %%10 = scalar "
           "bias2_sqrt\n  %%11 = scalar eps\n");
    sbp_text_add(k, clip ? "  %%12 = load clip\n" : "  %%12 = const 1\n");
    sbp_text_add(k, "  %%13 = mul %%0, %%12\n" /* g, clipped */
                    "  %%14 = mul %%5, %%6\n"
                    "  %%15 = mul %%14, %%1\n"
                    "  %%16 = sub %%1, %%15\n" /* p (1 - lr wd) */
                    "  %%17 = sub %%13, %%2\n"
                    "  %%18 = mul %%7, %%17\n"
                    "  %%19 = add %%2, %%18\n" /* m */
                    "  %%20 = mul %%8, %%3\n"
                    "  %%21 = mul %%13, %%13\n"
                    "  %%22 = mul %%4, %%21\n"
                    "  %%23 = add %%20, %%22\n" /* v */
                    "  %%24 = sqrt %%23\n"
                    "  %%25 = div %%24, %%10\n"
                    "  %%26 = add %%25, %%11\n"
                    "  %%27 = div %%5, %%9\n"
                    "  %%28 = mul %%27, %%19\n"
                    "  %%29 = div %%28, %%26\n");
    sbp_text_add(
        k,
        "  %%30 = sub %%%d, %%29\n  store param, %%30\n  store exp_avg, %%19\n  store exp_avg_sq, %%23\n}\n",
        param->decay ? 16 : 1);
}

static void sgd(sbp_pipeline *p, const sbp_param *param, sbp_dtype grad_dtype, bool clip, rule *r) {
    sbp_text *k = &r->text;
    begin_rule(p, "sgd", param, grad_dtype, clip, NULL, 0, r);
    sbp_text_add(
        k, "  scalar lr\n  scalar weight_decay\n"
           "  %%0 = load grad\n  %%1 = load param_in\n  %%2 = scalar lr\n  %%3 = scalar weight_decay\n");
    sbp_text_add(k, clip ? "  %%4 = load clip\n" : "  %%4 = const 1\n");
    sbp_text_add(k,
                 "  %%5 = mul %%0, %%4\n"
                 "  %%6 = mul %%3, %%1\n"
                 "  %%7 = add %%5, %%6\n" /* g + wd p */
                 "  %%8 = mul %%2, %%%d\n"
                 "  %%9 = sub %%1, %%8\n  store param, %%9\n}\n",
                 param->decay ? 7 : 5);
}

/* Parameters of equal shape, storage and decay share a rule. */
static sbp_status make_rules(sbp_pipeline *p) {
    sbp_map seen;
    sbp_map_init(&seen, p->arena);
    int32_t count = p->module->param_count;
    p->lowering->updates = SBP_NEW_ARRAY(p->arena, const struct sbp_update *, count + 1);
    for (int32_t i = 0; i < count; i++) {
        const sbp_param *param = &p->module->params[i];
        if (!param->trainable || p->options.optimizer == SBP_OPTIMIZER_NONE)
            continue;
        sbp_extent rows;
        int64_t cols;
        sbp_lower_shape(&param->type, SBP_C, &rows, &cols);
        const char *key = sbp_arena_printf(p->arena, "%lld %lld %d %d %d", (long long)rows.c[SBP_ONE],
                                           (long long)cols, param->storage, param->type.dtype, param->decay);
        int32_t same = sbp_map_get(&seen, key);
        if (same >= 0) {
            p->lowering->updates[i] = p->lowering->updates[same];
            continue;
        }
        sbp_map_set(&seen, key, i);
        sbp_update *update = SBP_NEW(p->arena, sbp_update);
        rule r = {.update = update, .compute = param->storage == SBP_F64 ? SBP_F64 : SBP_F32, .cols = cols};
        bool step = p->options.step;
        sbp_dtype grad = step ? sbp_lower_wide(param->type.dtype) : p->options.grad_dtype;
        (p->options.optimizer == SBP_OPTIMIZER_ADAMW ? adamw : sgd)(p, param, grad, !step, &r);
        finish_rule(p, &r);
        p->lowering->updates[i] = update;
    }
    return p->lowering->failed ? SBP_INTERNAL : SBP_OK;
}

const sbp_update *sbp_update_of(const sbp_pipeline *p, int32_t param) {
    return p->lowering->updates[param];
}

/* Every trainable parameter has a place of its own, so that the sums wait for nothing but their gradients. */
void sbp_lower_sumsq(sbp_pipeline *p, sbp_body *body, int32_t param, sbp_view norms, sbp_view grad) {
    int32_t column = 0;
    for (int32_t i = 0; i < param; i++)
        column += p->module->params[i].trainable;
    sbp_command *reduce = sbp_lower_command(p, body, SBP_CMD_REDUCE);
    norms.col = column;
    norms.cols = 1;
    reduce->views[0] = norms;
    reduce->views[1] = grad;
    reduce->view_count = 2;
    reduce->u.reduce.op = SBP_REDUCE_SUMSQ;
}

/* grad_norm = sqrt(norm_squared); clip = min(1, max_grad_norm / (grad_norm + 1e-6)). Without clipping the
 * host sets max_grad_norm to infinity. */
void sbp_lower_norm(sbp_pipeline *p, sbp_body *body, sbp_view norms, sbp_view clip) {
    static const char *const with_clip = "kernel @norm f64 heads 1 n 1 {\n"
                                         "  in norm_squared : f64 [row]\n"
                                         "  out grad_norm : f64 [row]\n"
                                         "  out clip : f64 [row]\n"
                                         "  scalar max_grad_norm\n"
                                         "  %0 = load norm_squared\n"
                                         "  %1 = sqrt %0\n"
                                         "  %2 = const 1e-06\n"
                                         "  %3 = add %1, %2\n"
                                         "  %4 = scalar max_grad_norm\n"
                                         "  %5 = div %4, %3\n"
                                         "  %6 = const 1\n"
                                         "  %7 = min %6, %5\n"
                                         "  store grad_norm, %1\n"
                                         "  store clip, %7\n}\n";
    static const char *const without = "kernel @norm f64 heads 1 n 1 {\n"
                                       "  in norm_squared : f64 [row]\n"
                                       "  out grad_norm : f64 [row]\n"
                                       "  %0 = load norm_squared\n"
                                       "  %1 = sqrt %0\n"
                                       "  store grad_norm, %1\n}\n";
    sbp_view views[3] = {sbp_view_buffer(p->program, p->lowering->norm_squared, 0),
                         sbp_view_buffer(p->program, p->lowering->grad_norm, 0), clip};
    sbp_command *reduce = sbp_lower_command(p, body, SBP_CMD_REDUCE);
    reduce->views[0] = views[0];
    reduce->views[1] = norms;
    reduce->view_count = 2;
    reduce->u.reduce.op = SBP_REDUCE_SUM;
    emit(p, body, clip.ref != SBP_NO_VIEW ? with_clip : without, views);
}

/* ---- homes ------------------------------------------------------------------------------------------- */

static int32_t result_buffer(sbp_pipeline *p, const char *name, int64_t cols) {
    return sbp_lower_buffer(p, name, SBP_ROLE_RESULT, SBP_DEVICE, SBP_F64, 1, sbp_extent_const(1), cols, -1);
}

/* Where gradients and states are kept between calls; reside may move them. */
static void make_homes(sbp_pipeline *p) {
    sbp_lowering *l = p->lowering;
    int32_t count = p->module->param_count;
    l->grad_buffers = SBP_NEW_ARRAY(p->arena, int32_t, count + 1);
    l->state_buffers = SBP_NEW_ARRAY(p->arena, int32_t, count * SBP_MAX_UPDATE_OPERANDS + 1);
    bool keeps = !p->options.step || p->options.optimizer == SBP_OPTIMIZER_NONE;
    for (int32_t i = 0; i < count; i++) {
        const sbp_buffer w = p->program->buffers[l->param_buffers[i]];
        const sbp_update *update = l->updates[i];
        bool trainable = p->module->params[i].trainable;
        l->grad_buffers[i] = trainable && keeps
                                 ? sbp_lower_buffer_of_param(p, l->param_buffers[i], "grad", SBP_ROLE_GRAD,
                                                             p->options.grad_dtype, w.rows, w.cols)
                                 : -1;
        for (int32_t o = 0; o < SBP_MAX_UPDATE_OPERANDS; o++) {
            const sbp_update_operand *operand = update ? &update->operands[o] : NULL;
            bool state = operand && o < update->operand_count && operand->kind == SBP_UPDATE_STATE;
            l->state_buffers[i * SBP_MAX_UPDATE_OPERANDS + o] =
                state ? sbp_lower_buffer_of_param(p, l->param_buffers[i], operand->suffix, SBP_ROLE_STATE,
                                                  operand->dtype, operand->rows, operand->cols)
                      : -1;
        }
    }
}

sbp_status sbp_pass_optimizer(sbp_pipeline *p) {
    if (!p->program)
        return SBP_OK;
    sbp_lowering *l = p->lowering;
    l->param_buffers = SBP_NEW_ARRAY(p->arena, int32_t, p->module->param_count + 1);
    for (int32_t i = 0; i < p->module->param_count; i++)
        l->param_buffers[i] = sbp_lower_param_buffer(p, i);
    l->norms = l->norm_squared = l->grad_norm = l->clip = -1;
    if (l->head.backward < 0)
        return SBP_OK;
    int64_t trainable = 0;
    for (int32_t i = 0; i < p->module->param_count; i++)
        trainable += p->module->params[i].trainable;
    l->norms = result_buffer(p, "norms", trainable);
    l->norm_squared = result_buffer(p, "norm_squared", 1);
    l->grad_norm = result_buffer(p, "grad_norm", 1);
    SBP_PUSH(p->arena, p->program->outputs, p->program->output_count, p->program->output_capacity,
             (sbp_output){.name = "grad_norm", .buffer = l->grad_norm, .index = 0});
    SBP_TRY(make_rules(p));
    make_homes(p);
    if (!p->options.step && p->options.optimizer != SBP_OPTIMIZER_NONE)
        l->clip = result_buffer(p, "clip", 1);
    return l->failed ? SBP_INTERNAL : SBP_OK;
}
