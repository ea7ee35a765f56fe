/* process.c: what the process that runs a plan takes beside the arenas. The constants are the target's and
 * measured (cpu_target.c; tests/cli/test_cli_memory.c compares the sums with processes); here is what they
 * are multiplied with. */
#include "frontends/weights/recipe.h"
#include "runtime/cli/sbpc/cli.h"

enum { USUAL_THREADS = 2 }; /* a plan does not depend on the machine that it is made on */

/* ---- commands --------------------------------------------------------------------------------------- */

static int64_t count_views(const sbp_program *program, const sbp_body *body) {
    int64_t views = 0;
    for (int32_t n = 0; n < body->count; n++) {
        const sbp_node *node = &body->nodes[n];
        views += 1; /* for the node itself */
        if (node->kind == SBP_NODE_COMMAND)
            views += node->u.command->view_count;
        else if (node->kind == SBP_NODE_CALL)
            views += program->functions[node->u.call->function].formal_count;
        else
            views += count_views(program, &node->u.loop->body);
    }
    return views;
}

/* Operands of all commands, as they stand in the text of the program and lie prepared in memory, and buffers.
 * Before there is a program: the least or the most that it can come to, most of them by tensor: its calls,
 * its update, and the copies between homes and slots with what orders them. */
static int64_t program_bytes(const sbp_compilation *c, const sbp_target_info *target, bool most) {
    static const struct {
        int64_t of_a_program, of_a_tensor[SBP_SPACE_COUNT]; /* where most is that is kept for it */
        int64_t buffers;                                    /* of a tensor */
    } bounds[] = {{800, {18, 35, 50}, 2}, {4000, {40, 75, 135}, 10}};
    const sbp_program *program = c->pipeline.program;
    int64_t views = 0, tensors = c->model.module->param_count;
    int farthest = SBP_DEVICE;
    for (int32_t f = 0; program && f < program->function_count; f++)
        views += count_views(program, &program->functions[f].body);
    for (int32_t e = 0; program && e < program->entry_count; e++)
        views += count_views(program, &program->entries[e].body);
    if (program)
        return views * target->runtime_view_bytes + program->buffer_count * target->runtime_buffer_bytes;
    if (most && c->wish.offload != SBP_OFFLOAD_OFF && c->wish.offload != SBP_OFFLOAD_GIVEN)
        farthest = SBP_HOST;
    for (int class = SBP_ITEM_STATE; class < SBP_ITEM_CLASS_COUNT; class ++)
        if (c->wish.offload == SBP_OFFLOAD_GIVEN && (int)c->wish.homes[class] > farthest)
            farthest = (int)c->wish.homes[class];
    views = bounds[most].of_a_program + bounds[most].of_a_tensor[farthest] * tensors;
    return views * target->runtime_view_bytes + bounds[most].buffers * tensors * target->runtime_buffer_bytes;
}

/* ---- buffers ---------------------------------------------------------------------------------------- */

/* Whether something that large lies on disk; before there is a program: anything. */
static bool has_on_disk(const sbp_compilation *c, int64_t least_bytes) {
    const sbp_program *program = c->pipeline.program;
    bool found = false;
    for (int class = 0; class < SBP_ITEM_CLASS_COUNT && !program; class ++)
        found |= c->wish.offload == SBP_OFFLOAD_GIVEN && c->wish.homes[class] == SBP_DISK;
    for (int32_t b = 0; program && b < program->buffer_count; b++)
        found |= program->buffers[b].space == SBP_DISK && program->buffers[b].stride >= least_bytes;
    return found;
}

/* The largest tensor whose elements stand elsewhere in its file than in the program: it is put in order in
 * memory when it is read or written. */
static sbp_status reordered_bytes(const sbp_compilation *c, int64_t *out) {
    const sbp_module *module = c->model.module;
    *out = 0;
    for (int32_t i = 0; i < module->param_count; i++) {
        sbp_recipe_map map;
        if (!module->params[i].recipe)
            continue;
        SBP_TRY(sbp_recipe_compile(c->diag, module->params[i].recipe, &map));
        int64_t bytes = map.elems * (c->dtype == SBP_F64 ? 8 : 4);
        if (!sbp_recipe_is_one_run(&map) && bytes > *out)
            *out = bytes;
    }
    return SBP_OK;
}

/* Elements of the widest head of attention. */
static int64_t widest_head(const sbp_module *module) {
    int64_t widest = 0;
    for (int32_t f = 0; f < module->func_count; f++)
        for (int32_t i = 0; i < module->funcs[f]->op_count; i++) {
            const sbp_func *func = module->funcs[f];
            const sbp_op *op = &func->ops[i];
            for (int32_t k = 0; op->code == SBP_OP_attention && k < 3; k++) { /* q, k, v */
                const sbp_type *type = &func->values[op->operands[k]].type;
                int64_t elems = type->rank > 0 ? type->dim[type->rank - 1].n : 0;
                widest = elems > widest ? elems : widest;
            }
        }
    return widest;
}

/* What packed operands of products take: a weight matrix, or the two factors of its gradient, which is a sum
 * over a chunk of so many rows; of the widest, that of the head. */
static int64_t product_bytes(const sbp_compilation *c, const sbp_target_info *target,
                             const sbp_schedule_options *chunks) {
    const sbp_module *module = c->model.module;
    int64_t largest = 0, widest = 0, bytes = sbp_dtype_bytes(c->dtype), page = target->runtime_page_bytes;
    int64_t most = target->runtime_product_bytes / bytes; /* of one operand */
    for (int32_t i = 0; i < module->param_count; i++) {
        const sbp_type *type = &module->params[i].type;
        widest = type->rank > 1 && type->dim[0].n > widest ? type->dim[0].n : widest;
    }
    for (int32_t i = 0; i < module->param_count; i++) {
        const sbp_type *type = &module->params[i].type;
        int64_t out = type->rank > 1 ? type->dim[0].n : 0, in = type->rank > 1 ? type->dim[1].n : 0;
        int64_t rows = out == widest ? chunks->head_chunk : chunks->chunk;
        rows = rows < target->chunk_most ? rows : target->chunk_most;
        int64_t weight = out * in < most ? out * in : most;
        int64_t gradient = (out * rows < most ? out * rows : most) + (in * rows < most ? in * rows : most);
        largest = largest > weight ? largest : weight;
        largest = largest > gradient ? largest : gradient;
    }
    return page > 0 ? sbp_round_up(largest * bytes, page) : largest * bytes;
}

/* What one of several ranks takes more: the transport; what the sum of the largest gradient is added in, and
 * the others' shares as they arrive. */
static int64_t ranks_bytes(const sbp_compilation *c, const sbp_target_info *target) {
    const sbp_module *module = c->model.module;
    int64_t ranks = sbp_options_int(c->options, SBP_OPT_RANKS), largest = 0;
    if (ranks < 2 || target->runtime_ranks_bytes == 0)
        return 0;
    if (target->runtime_view_bytes == 0) /* a device of its own */
        return target->runtime_ranks_bytes;
    for (int32_t i = 0; i < module->param_count; i++) {
        const sbp_param *p = &module->params[i];
        int64_t elems = 1;
        for (int32_t d = 0; d < p->type.rank; d++)
            elems *= p->type.dim[d].n;
        largest = p->trainable && elems > largest ? elems : largest;
    }
    int64_t sums = largest * (c->dtype == SBP_F64 ? 8 : 4);
    sums = sums < target->runtime_sum_bytes ? sums : target->runtime_sum_bytes;
    return target->runtime_ranks_bytes + ranks * target->runtime_rank_bytes + sums +
           sums / ranks * (ranks - 1);
}

/* ---- the sum ---------------------------------------------------------------------------------------- */

sbp_status sbp_cli_size_process(sbp_compilation *c, const sbp_schedule_options *chunks, bool most) {
    sbp_target_info *target = &c->pipeline.target, fresh;
    int64_t threads = sbp_options_int(c->options, SBP_OPT_THREADS), reordered;
    if (c->target)
        SBP_TRY(c->target->describe(sbp_cli_arch(c), c->diag, &fresh));
    else
        fresh = c->profile.info;
    if (widest_head(c->model.module) > target->runtime_head_elems)
        fresh.runtime_thread_bytes *= 2;
    c->threads = threads > 0 ? threads : USUAL_THREADS;
    target->runtime_thread_bytes = fresh.runtime_thread_bytes;
    target->runtime_bytes =
        fresh.runtime_bytes + product_bytes(c, target, chunks) + c->threads * target->runtime_thread_bytes;
    target->runtime_bytes += ranks_bytes(c, target);
    if (target->runtime_view_bytes == 0) /* a device of its own */
        return SBP_OK;
    SBP_TRY(reordered_bytes(c, &reordered));
    target->runtime_bytes += c->model.module->param_count * target->runtime_tensor_bytes +
                             program_bytes(c, target, most) + (int64_t)c->tokenizer_bytes + reordered;
    if (has_on_disk(c, target->runtime_disk_bytes))
        target->runtime_bytes += target->runtime_disk_bytes;
    if (c->settings.prepare)
        target->runtime_bytes += target->runtime_prepare_bytes;
    return SBP_OK;
}
