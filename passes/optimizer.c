/* optimizer: the entry `update`, and the row kernels that consume a finished gradient.
 *
 * requires  head
 * preserves everything there is
 * breaks    nothing
 *
 * update: the norm over all gradients, its clipping factor, then per parameter the optimizer's row kernel;
 * gradients are cleared. AdamW as torch.optim.AdamW: p -= lr wd p; m += (1-b1)(g - m); v = b2 v + (1-b2) g^2;
 * p -= lr/(1-b1^t) m / (sqrt(v)/sqrt(1-b2^t) + eps) Weight decay only where the parameter is marked for it.
 * SGD: p -= lr (g + wd p).
 */
#include <string.h>

#include "passes/update.h"

typedef struct kernel_builder {
    sbp_arena *arena;
    sbp_rowkernel *k;
} kernel_builder;

static int32_t operand(kernel_builder *b, const char *name, sbp_rk_mode mode, sbp_dtype dtype, uint8_t vary,
                       int64_t n) {
    return sbp_rowkernel_add_operand(
        b->arena, b->k,
        &(sbp_rk_operand){.name = name, .mode = mode, .dtype = dtype, .vary = vary, .length = n});
}

static int32_t load(kernel_builder *b, int32_t index) {
    return sbp_rowkernel_add(b->arena, b->k,
                             &(sbp_rk_instr){.op = SBP_RK_LOAD, .index = index, .a = -1, .b = -1, .c = -1});
}

static int32_t scalar(kernel_builder *b, const char *name) {
    int32_t index = sbp_rowkernel_add_scalar(b->arena, b->k, name);
    return sbp_rowkernel_add(b->arena, b->k,
                             &(sbp_rk_instr){.op = SBP_RK_SCALAR, .index = index, .a = -1, .b = -1, .c = -1});
}

static int32_t constant(kernel_builder *b, double value) {
    return sbp_rowkernel_add(
        b->arena, b->k,
        &(sbp_rk_instr){.op = SBP_RK_CONST, .imm = value, .index = -1, .a = -1, .b = -1, .c = -1});
}

static int32_t map(kernel_builder *b, sbp_rowop op, int32_t x, int32_t y) {
    return sbp_rowkernel_add(
        b->arena, b->k, &(sbp_rk_instr){.op = SBP_RK_MAP, .map = op, .a = x, .b = y, .c = -1, .index = -1});
}

static void store(kernel_builder *b, int32_t index, int32_t value) {
    sbp_rowkernel_add(b->arena, b->k,
                      &(sbp_rk_instr){.op = SBP_RK_STORE, .index = index, .a = value, .b = -1, .c = -1});
}

enum { MATRIX = SBP_VARY_ROW | SBP_VARY_ELEM };

static kernel_builder begin(sbp_pipeline *p, const char *name, sbp_dtype compute) {
    return (kernel_builder){.arena = p->arena, .k = sbp_rowkernel_create(p->arena, name, compute)};
}

/* Emits a row command: views in operand order; scalars are those of the kernel, by name. */
static sbp_command *emit(sbp_pipeline *p, sbp_body *body, kernel_builder *b, const sbp_view *views) {
    sbp_command *row = sbp_lower_command(p, body, SBP_CMD_ROW);
    row->view_count = b->k->operand_count;
    memcpy(row->views, views, (size_t)row->view_count * sizeof *views);
    row->scalar_count = b->k->scalar_count;
    row->scalars = SBP_NEW_ARRAY(p->arena, int32_t, row->scalar_count);
    for (int32_t i = 0; i < row->scalar_count; i++)
        row->scalars[i] = sbp_program_add_scalar(p->arena, p->program, b->k->scalars[i]);
    row->kernel = sbp_program_add_kernel(p->arena, p->program, b->k);
    return row;
}

/* dst += src */
void sbp_lower_flush(sbp_pipeline *p, sbp_body *body, int32_t param, sbp_view grad, sbp_dtype grad_dtype,
                     sbp_view accum, sbp_dtype accum_dtype) {
    kernel_builder b = begin(p, "flush", sbp_lower_wide(accum_dtype));
    int32_t a = operand(&b, "accum", SBP_RK_IN, accum_dtype, MATRIX, accum.cols);
    int32_t g = operand(&b, "grad_in", SBP_RK_IN, grad_dtype, MATRIX, accum.cols);
    int32_t out = operand(&b, "grad", SBP_RK_OUT, grad_dtype, MATRIX, accum.cols);
    store(&b, out, map(&b, SBP_ROWOP_add, load(&b, g), load(&b, a)));
    (void)param;
    emit(p, body, &b, (sbp_view[]){accum, grad, grad});
}

/* A parameter in its compute type. */
void sbp_lower_convert(sbp_pipeline *p, sbp_body *body, sbp_view to, sbp_dtype to_dtype, sbp_view from,
                       sbp_dtype from_dtype) {
    kernel_builder b = begin(p, "convert", to_dtype == SBP_F64 || from_dtype == SBP_F64 ? SBP_F64 : SBP_F32);
    int32_t in = operand(&b, "from", SBP_RK_IN, from_dtype, MATRIX, from.cols);
    int32_t out = operand(&b, "to", SBP_RK_OUT, to_dtype, MATRIX, to.cols);
    store(&b, out, load(&b, in));
    emit(p, body, &b, (sbp_view[]){from, to});
}

static int32_t state_buffer(sbp_pipeline *p, int32_t param, const char *suffix) {
    const sbp_buffer *w = &p->program->buffers[param];
    const char *name = sbp_arena_printf(p->arena, "%s.%s", w->name, suffix);
    int32_t found = sbp_lower_find_buffer(p, name);
    if (found >= 0)
        return found;
    return sbp_lower_buffer(p, name, SBP_ROLE_STATE, SBP_DEVICE, p->options.state_dtype, 1, w->rows, w->cols,
                            -1);
}

static void adamw(sbp_pipeline *p, sbp_body *body, int32_t param, bool decay, sbp_view grad,
                  sbp_dtype grad_dtype, int32_t clip) {
    const sbp_buffer w = p->program->buffers[param];
    int32_t m = state_buffer(p, param, "exp_avg"), v = state_buffer(p, param, "exp_avg_sq");
    sbp_dtype state = p->options.state_dtype;
    kernel_builder b = begin(p, "adamw", w.dtype == SBP_F64 ? SBP_F64 : SBP_F32);
    int32_t in_g = operand(&b, "grad", SBP_RK_IN, grad_dtype, MATRIX, w.cols);
    int32_t in_w = operand(&b, "param_in", SBP_RK_IN, w.dtype, MATRIX, w.cols);
    int32_t in_m = operand(&b, "exp_avg_in", SBP_RK_IN, state, MATRIX, w.cols);
    int32_t in_v = operand(&b, "exp_avg_sq_in", SBP_RK_IN, state, MATRIX, w.cols);
    int32_t out_w = operand(&b, "param", SBP_RK_OUT, w.dtype, MATRIX, w.cols);
    int32_t out_m = operand(&b, "exp_avg", SBP_RK_OUT, state, MATRIX, w.cols);
    int32_t out_v = operand(&b, "exp_avg_sq", SBP_RK_OUT, state, MATRIX, w.cols);
    int32_t in_c = clip >= 0 ? operand(&b, "clip", SBP_RK_IN, p->program->buffers[clip].dtype, 0, 1) : -1;
    int32_t lr = scalar(&b, "lr"), one = constant(&b, 1);
    int32_t g = load(&b, in_g), x = load(&b, in_w), m0 = load(&b, in_m), v0 = load(&b, in_v);
    if (in_c >= 0)
        g = map(&b, SBP_ROWOP_mul, g, load(&b, in_c));
    if (decay)
        x = map(&b, SBP_ROWOP_sub, x,
                map(&b, SBP_ROWOP_mul, map(&b, SBP_ROWOP_mul, lr, scalar(&b, "weight_decay")), x));
    int32_t beta1 = scalar(&b, "beta1"), beta2 = scalar(&b, "beta2");
    int32_t m1 =
        map(&b, SBP_ROWOP_add, m0,
            map(&b, SBP_ROWOP_mul, map(&b, SBP_ROWOP_sub, one, beta1), map(&b, SBP_ROWOP_sub, g, m0)));
    int32_t v1 =
        map(&b, SBP_ROWOP_add, map(&b, SBP_ROWOP_mul, beta2, v0),
            map(&b, SBP_ROWOP_mul, map(&b, SBP_ROWOP_sub, one, beta2), map(&b, SBP_ROWOP_mul, g, g)));
    int32_t root = map(&b, SBP_ROWOP_div, map(&b, SBP_ROWOP_sqrt, v1, -1), scalar(&b, "bias2_sqrt"));
    int32_t step =
        map(&b, SBP_ROWOP_div, map(&b, SBP_ROWOP_mul, map(&b, SBP_ROWOP_div, lr, scalar(&b, "bias1")), m1),
            map(&b, SBP_ROWOP_add, root, scalar(&b, "eps")));
    x = map(&b, SBP_ROWOP_sub, x, step);
    store(&b, out_w, x);
    store(&b, out_m, m1);
    store(&b, out_v, v1);
    sbp_view vw = sbp_view_buffer(p->program, param, 0), vm = sbp_view_buffer(p->program, m, 0),
             vv = sbp_view_buffer(p->program, v, 0);
    sbp_view vc = clip >= 0 ? sbp_view_buffer(p->program, clip, 0) : sbp_view_none();
    sbp_command *row = emit(p, body, &b, (sbp_view[]){grad, vw, vm, vv, vw, vm, vv, vc});
    row->flushes = param;
    row->gradient = 0;
}

static void sgd(sbp_pipeline *p, sbp_body *body, int32_t param, bool decay, sbp_view grad,
                sbp_dtype grad_dtype, int32_t clip) {
    const sbp_buffer w = p->program->buffers[param];
    kernel_builder b = begin(p, "sgd", w.dtype == SBP_F64 ? SBP_F64 : SBP_F32);
    int32_t in_g = operand(&b, "grad", SBP_RK_IN, grad_dtype, MATRIX, w.cols);
    int32_t in_w = operand(&b, "param_in", SBP_RK_IN, w.dtype, MATRIX, w.cols);
    int32_t out_w = operand(&b, "param", SBP_RK_OUT, w.dtype, MATRIX, w.cols);
    int32_t in_c = clip >= 0 ? operand(&b, "clip", SBP_RK_IN, p->program->buffers[clip].dtype, 0, 1) : -1;
    int32_t g = load(&b, in_g), x = load(&b, in_w);
    if (in_c >= 0)
        g = map(&b, SBP_ROWOP_mul, g, load(&b, in_c));
    if (decay)
        g = map(&b, SBP_ROWOP_add, g, map(&b, SBP_ROWOP_mul, scalar(&b, "weight_decay"), x));
    store(&b, out_w, map(&b, SBP_ROWOP_sub, x, map(&b, SBP_ROWOP_mul, scalar(&b, "lr"), g)));
    sbp_view vw = sbp_view_buffer(p->program, param, 0);
    sbp_view vc = clip >= 0 ? sbp_view_buffer(p->program, clip, 0) : sbp_view_none();
    sbp_command *row = emit(p, body, &b, (sbp_view[]){grad, vw, vw, vc});
    row->flushes = param;
    row->gradient = 0;
}

void sbp_lower_update(sbp_pipeline *p, sbp_body *body, int32_t param, bool decay, sbp_view grad,
                      sbp_dtype grad_dtype, int32_t clip) {
    if (p->options.optimizer == SBP_OPTIMIZER_ADAMW)
        adamw(p, body, param, decay, grad, grad_dtype, clip);
    else
        sgd(p, body, param, decay, grad, grad_dtype, clip);
}

void sbp_lower_sumsq(sbp_pipeline *p, sbp_body *body, sbp_view grad, double beta) {
    sbp_command *reduce = sbp_lower_command(p, body, SBP_CMD_REDUCE);
    reduce->views[0] = sbp_view_buffer(p->program, sbp_lower_find_buffer(p, "norm_squared"), 0);
    reduce->views[1] = grad;
    reduce->view_count = 2;
    reduce->u.reduce.op = SBP_REDUCE_SUMSQ;
    reduce->u.reduce.beta = beta;
}

/* grad_norm = sqrt(norm_squared); clip = min(1, max_grad_norm / (grad_norm + 1e-6)). Without clipping the
 * host sets max_grad_norm to infinity. */
void sbp_lower_norm(sbp_pipeline *p, sbp_body *body, int32_t clip) {
    kernel_builder b = begin(p, "norm", SBP_F64);
    int32_t in = operand(&b, "norm_squared", SBP_RK_IN, SBP_F64, SBP_VARY_ROW, 1);
    int32_t out = operand(&b, "grad_norm", SBP_RK_OUT, SBP_F64, SBP_VARY_ROW, 1);
    int32_t norm = map(&b, SBP_ROWOP_sqrt, load(&b, in), -1);
    sbp_view views[3] = {sbp_view_buffer(p->program, sbp_lower_find_buffer(p, "norm_squared"), 0),
                         sbp_view_buffer(p->program, sbp_lower_find_buffer(p, "grad_norm"), 0)};
    if (clip >= 0) {
        int32_t out_clip = operand(&b, "clip", SBP_RK_OUT, p->program->buffers[clip].dtype, SBP_VARY_ROW, 1);
        int32_t ratio = map(&b, SBP_ROWOP_div, scalar(&b, "max_grad_norm"),
                            map(&b, SBP_ROWOP_add, norm, constant(&b, 1e-6)));
        int32_t factor = map(&b, SBP_ROWOP_min, constant(&b, 1), ratio);
        store(&b, out, norm);
        store(&b, out_clip, factor);
        views[2] = sbp_view_buffer(p->program, clip, 0);
    } else {
        store(&b, out, norm);
    }
    emit(p, body, &b, views);
}

int32_t sbp_lower_grad_buffer(sbp_pipeline *p, int32_t param) {
    const sbp_buffer *w = &p->program->buffers[param];
    const char *name = sbp_arena_printf(p->arena, "%s.grad", w->name);
    int32_t found = sbp_lower_find_buffer(p, name);
    if (found >= 0)
        return found;
    return sbp_lower_buffer(p, name, SBP_ROLE_GRAD, SBP_DEVICE, p->options.grad_dtype, 1, w->rows, w->cols,
                            -1);
}

static sbp_entry *add_entry(sbp_pipeline *p, const char *name) {
    SBP_PUSH(p->arena, p->program->entries, p->program->entry_count, p->program->entry_capacity,
             (sbp_entry){.name = name});
    return &p->program->entries[p->program->entry_count - 1];
}

sbp_status sbp_pass_optimizer(sbp_pipeline *p) {
    if (!p->program || p->lowering->head.backward < 0)
        return SBP_OK;
    sbp_program *prog = p->program;
    sbp_extent one = sbp_extent_const(1);
    sbp_lower_buffer(p, "norm_squared", SBP_ROLE_RESULT, SBP_DEVICE, SBP_F64, 1, one, 1, -1);
    int32_t norm = sbp_lower_buffer(p, "grad_norm", SBP_ROLE_RESULT, SBP_DEVICE, SBP_F64, 1, one, 1, -1);
    SBP_PUSH(p->arena, prog->outputs, prog->output_count, prog->output_capacity,
             (sbp_output){.name = "grad_norm", .buffer = norm, .index = 0});
    if (p->options.step || p->options.optimizer == SBP_OPTIMIZER_NONE)
        return SBP_OK;
    int32_t clip = sbp_lower_buffer(p, "clip", SBP_ROLE_RESULT, SBP_DEVICE, SBP_F64, 1, one, 1, -1);
    sbp_body body = {0};
    bool first = true;
    for (int pass = 0; pass < 2; pass++) {
        for (int32_t i = 0; i < p->module->param_count; i++) {
            const sbp_param *param = &p->module->params[i];
            if (!param->trainable)
                continue;
            int32_t w = sbp_lower_param_buffer(p, i);
            sbp_view grad = sbp_view_buffer(prog, sbp_lower_grad_buffer(p, w), 0);
            if (pass == 0) {
                sbp_lower_sumsq(p, &body, grad, first ? 0 : 1);
                first = false;
            } else {
                sbp_lower_update(p, &body, w, param->decay, grad, p->options.grad_dtype, clip);
                sbp_lower_fill(p, &body, grad, 0);
            }
        }
        if (pass == 0)
            sbp_lower_norm(p, &body, clip);
    }
    add_entry(p, "update")->body = body;
    return SBP_OK;
}
