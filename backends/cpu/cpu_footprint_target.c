/* cpu_footprint_target.c: what a process takes beside the arenas where the CPU is the device. The constants
 * are measured; tests/cli/test_cli_memory.c compares the sums with processes. */
#include "backends/cpu/cpu_target.h"
#include "ir/graph/graph.h"

static const struct {
    int64_t tensor;       /* of the model, each */
    int64_t view, buffer; /* of the program: per operand of a command, per buffer */
    int64_t disk;         /* once, where the disk has something as large as that */
    int64_t prepare;      /* the code that runs @prepare */
    int64_t states;       /* the code of ops with a state */
    int64_t matmul, page; /* packed operands of matmuls: at most, each; in whole pages */
    int64_t thread;       /* a huge page of scratch memory, a stack */
    int64_t head_elems;   /* tiles of attention that fit into it: wider heads take two */
    int64_t ranks, rank;  /* Open MPI 4.1, 2 to 8 ranks on a host: once, and for each */
    int64_t sum;          /* what backends/ranks adds gradients up in, at most */
} takes = {.tensor = 5100,
           .view = 280,
           .buffer = 900,
           .disk = 1 << 20,
           .prepare = 512 << 10,
           .states = 512 << 10,
           .matmul = 7 << 20,
           .page = 2 << 20,
           .thread = 2090 << 10,
           .head_elems = 160,
           .ranks = 11776 << 10,
           .rank = 118 << 10,
           .sum = 2 << 20};

static int64_t wide_bytes(sbp_dtype dtype) {
    return dtype == SBP_F64 ? 8 : 4;
}

/* ---- the program ------------------------------------------------------------------------------------- */

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

/* Before there is a program: the least or the most that it can come to, most of it by tensor: its calls, its
 * update, and the copies between placement and staging buffers with what orders them. */
static int64_t bound_bytes(const sbp_process *p) {
    static const struct {
        int64_t of_a_program, of_a_tensor[SBP_SPACE_COUNT]; /* where most is that is kept for it */
        int64_t buffers;                                    /* of a tensor */
    } bounds[] = {{800, {18, 35, 50}, 2}, {4000, {40, 75, 135}, 10}};
    int64_t tensors = p->module->param_count;
    int64_t views = bounds[p->most].of_a_program + bounds[p->most].of_a_tensor[p->farthest] * tensors;
    return views * takes.view + bounds[p->most].buffers * tensors * takes.buffer;
}

/* Operands of all commands, as they stand in the text of the program and lie prepared in memory, and buffers.
 */
static int64_t program_bytes(const sbp_process *p) {
    const sbp_program *program = p->program;
    int64_t views = 0;
    if (!program)
        return bound_bytes(p);
    for (int32_t f = 0; f < program->function_count; f++)
        views += count_views(program, &program->functions[f].body);
    for (int32_t e = 0; e < program->entry_count; e++)
        views += count_views(program, &program->entries[e].body);
    return views * takes.view + program->buffer_count * takes.buffer;
}

/* Whether something that is worth it lies on disk. */
static bool has_on_disk(const sbp_process *p) {
    bool found = !p->program && p->on_disk;
    for (int32_t b = 0; p->program && b < p->program->buffer_count; b++)
        found |= p->program->buffers[b].space == SBP_DISK && p->program->buffers[b].stride >= takes.disk;
    return found;
}

/* ---- the model --------------------------------------------------------------------------------------- */

/* Elements of the widest head of attention. */
static int64_t widest_head(const sbp_module *module) {
    int64_t widest = 0;
    for (int32_t f = 0; f < module->func_count; f++)
        for (int32_t i = 0; i < module->funcs[f]->op_count; i++) {
            const sbp_func *func = module->funcs[f];
            const sbp_op *op = &func->ops[i];
            for (int32_t k = 0; sbp_opcode_attends(op->code) && k < 3; k++) { /* q, k, v */
                const sbp_type *type = &func->values[op->operands[k]].type;
                widest = sbp_max_i64(widest, type->rank > 0 ? type->dim[type->rank - 1].n : 0);
            }
        }
    return widest;
}

static bool has_states(const sbp_module *module) {
    bool found = false;
    for (int32_t f = 0; f < module->func_count; f++)
        for (int32_t i = 0; i < module->funcs[f]->op_count; i++)
            found |= sbp_opcode_class(module->funcs[f]->ops[i].code) == SBP_CLASS_RECUR;
    return found;
}

/* What packed operands of matmuls take: a weight matrix, or the two factors of its gradient, which is a sum
 * over a chunk of so many rows; of the widest, that of the head. */
static int64_t matmul_bytes(const sbp_process *p) {
    const sbp_module *module = p->module;
    int64_t largest = 0, widest = 0, bytes = sbp_dtype_bytes(p->dtype);
    int64_t most = takes.matmul / bytes; /* of one operand */
    for (int32_t i = 0; i < module->param_count; i++)
        if (module->params[i].type.rank > 1)
            widest = sbp_max_i64(widest, module->params[i].type.dim[0].n);
    for (int32_t i = 0; i < module->param_count; i++) {
        const sbp_type *type = &module->params[i].type;
        int64_t out = type->rank > 1 ? type->dim[0].n : 0, in = type->rank > 1 ? type->dim[1].n : 0;
        int64_t rows = sbp_min_i64(out == widest ? p->head_chunk : p->chunk, SBP_CPU_CHUNK_MOST);
        largest = sbp_max_i64(largest, sbp_min_i64(out * in, most));
        largest = sbp_max_i64(largest, sbp_min_i64(out * rows, most) + sbp_min_i64(in * rows, most));
    }
    return sbp_round_up(largest * bytes, takes.page);
}

/* What one of several ranks takes more: the transport; what the sum of the largest gradient is added in, and
 * the others' shares as they arrive. */
static int64_t ranks_bytes(const sbp_process *p) {
    int64_t largest = 0;
    if (p->ranks < 2)
        return 0;
    for (int32_t i = 0; i < p->module->param_count; i++) {
        const sbp_param *param = &p->module->params[i];
        int64_t elems = 1;
        for (int32_t d = 0; d < param->type.rank; d++)
            elems *= param->type.dim[d].n;
        largest = param->trainable ? sbp_max_i64(largest, elems) : largest;
    }
    int64_t sums = sbp_min_i64(largest * wide_bytes(p->dtype), takes.sum);
    return takes.ranks + p->ranks * takes.rank + sums + sums / p->ranks * (p->ranks - 1);
}

/* ---- the sum ----------------------------------------------------------------------------------------- */

sbp_footprint sbp_cpu_footprint(const sbp_process *p) {
    sbp_footprint out = {.bytes = SBP_CPU_RUNTIME_BYTES, .thread_bytes = takes.thread};
    if (widest_head(p->module) > takes.head_elems)
        out.thread_bytes *= 2;
    out.bytes += matmul_bytes(p) + p->threads * out.thread_bytes + ranks_bytes(p);
    out.bytes += p->module->param_count * takes.tensor + program_bytes(p) + p->tokenizer_bytes;
    out.bytes += p->reordered_bytes + (has_on_disk(p) ? takes.disk : 0) + (p->prepare ? takes.prepare : 0);
    out.bytes += has_states(p->module) ? takes.states : 0;
    return out;
}
