/* cpu_footprint_target.c: what a process takes beside the arenas where the CPU is the device. The constants
 * are measured; tests/cli/test_cli_memory.c compares the sums with processes. */
#include "backends/cpu/cpu_target.h"
#include "ir/graph/graph.h"

static const struct {
    int64_t tensor,
        adapter; /* of the model, each; of an adapter more, for the part of the table that is written */
    /* Bytes for each part of a program: an operand of a command or call, a command, a buffer, a row kernel,
     * its instructions. */
    int64_t view, command, buffer, kernel, instr;
    int64_t disk;    /* once, where the disk has something as large as that */
    int64_t text;    /* the code that reads text */
    int64_t prepare; /* the code that runs @prepare */
    int64_t states;  /* the code of ops with a state */
    /* Packed operands of matmuls: at most, each; the columns of a panel of b, the rows of one of a; elements
     * between rows of a; bytes at which rows fall into the same sets; sums, at most; all in whole pages. */
    int64_t operand, panel, panel_a, gap, same_sets, sums, page;
    int64_t thread; /* a huge page of scratch memory, a stack */
    /* Tiles of attention that fit into it, of fp32, bf16 and fp64: wider heads take two. */
    int64_t head_elems[SBP_DTYPE_COUNT];
    int64_t ranks, rank; /* Open MPI 4.1, 2 to 8 ranks on a host: once, and for each */
    int64_t sum;         /* what backends/ranks adds gradients up in, at most */
} takes = {.tensor = 3100,
           .adapter = 1650,
           .view = 280,
           .command = 540,
           .buffer = 1410,
           .kernel = 1240,
           .instr = 510,
           .disk = 1 << 20,
           .text = 288 << 10,
           .prepare = 640 << 10,
           .states = 704 << 10,
           .operand = 7 << 20,
           .panel = 48,
           .panel_a = 96,
           .gap = 32,
           .same_sets = 4096,
           .sums = 2 << 20,
           .page = 2 << 20,
           .thread = 2090 << 10,
           .head_elems = {[SBP_F32] = 240, [SBP_BF16] = 184, [SBP_F64] = 160},
           .ranks = 11776 << 10,
           .rank = 118 << 10,
           .sum = 2 << 20};

static int64_t wide_bytes(sbp_dtype dtype) {
    return dtype == SBP_F64 ? 8 : 4;
}

/* ---- the program ------------------------------------------------------------------------------------- */

/* Operands of all commands and calls, as they stand in the text of the program and lie prepared in memory. */
static int64_t body_bytes(const sbp_program *program, const sbp_body *body) {
    int64_t bytes = 0;
    for (int32_t n = 0; n < body->count; n++) {
        const sbp_node *node = &body->nodes[n];
        if (node->kind == SBP_NODE_COMMAND)
            bytes += takes.command + node->u.command->view_count * takes.view;
        else if (node->kind == SBP_NODE_CALL)
            bytes += program->functions[node->u.call->function].formal_count * takes.view;
        else
            bytes += body_bytes(program, &node->u.loop->body);
    }
    return bytes;
}

/* Before there is a program: the least or the most that it can come to, most of it by tensor: its calls, its
 * update, and the copies between placement and staging buffers with what orders them. */
static int64_t bound_bytes(const sbp_process *p) {
    static const struct {
        int64_t of_a_program, of_a_tensor[SBP_SPACE_COUNT]; /* where most is that is kept for it */
    } bounds[] = {{300000, {7000, 8000, 10000}}, {1200000, {31000, 40000, 60000}}};
    return bounds[p->most].of_a_program + bounds[p->most].of_a_tensor[p->farthest] * p->module->param_count;
}

static int64_t program_bytes(const sbp_process *p) {
    const sbp_program *program = p->program;
    if (!program)
        return bound_bytes(p);
    int64_t bytes = program->buffer_count * takes.buffer + program->kernel_count * takes.kernel;
    for (int32_t k = 0; k < program->kernel_count; k++)
        bytes += program->kernels[k]->instr_count * takes.instr;
    for (int32_t f = 0; f < program->function_count; f++)
        bytes += body_bytes(program, &program->functions[f].body);
    for (int32_t e = 0; e < program->entry_count; e++)
        bytes += body_bytes(program, &program->entries[e].body);
    return bytes;
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

/* Bytes of an operand that is packed: `lines` rows or columns, in whole panels of `panel`, of `depth`
 * elements. */
static int64_t packed_bytes(const sbp_process *p, int64_t lines, int64_t panel, int64_t depth) {
    int64_t deep = sbp_min_i64(depth, SBP_CPU_DEPTH_MOST);
    return sbp_min_i64(sbp_round_up(lines, panel) * deep * sbp_dtype_bytes(p->dtype), takes.operand);
}

/* What a product d[m, n] = a[m, k] b[k, n] packs (backends/cpu/kernels/gemm_body.h): all of b; a, where it is
 * transposed, or its rows are gathered or fall into the same sets of the cache; and sums, where d has not the
 * type that they are made in. */
static int64_t product_bytes(const sbp_process *p, int64_t m, int64_t n, int64_t k, bool with_a) {
    int64_t bytes = packed_bytes(p, n, takes.panel, k);
    if (with_a || k * sbp_dtype_bytes(p->dtype) % takes.same_sets == 0)
        bytes += packed_bytes(p, m, takes.panel_a, sbp_min_i64(k, SBP_CPU_DEPTH_MOST) + takes.gap);
    if (p->dtype == SBP_BF16 && k > SBP_CPU_DEPTH_MOST)
        bytes += sbp_min_i64(sbp_round_up(m, takes.panel_a) * sbp_round_up(n, takes.panel) * 4, takes.sums);
    return bytes;
}

/* What packed operands of matmuls take: those of the largest product of a weight and a chunk. The head has
 * the widest. Rows of experts are gathered, and all may choose one. */
static int64_t matmul_bytes(const sbp_process *p) {
    const sbp_module *module = p->module;
    int64_t largest = 0, widest = 0;
    for (int32_t i = 0; i < module->param_count; i++)
        if (module->params[i].type.rank > 1)
            widest = sbp_max_i64(widest, module->params[i].type.dim[0].n);
    for (int32_t i = 0; i < module->param_count; i++) {
        const sbp_type *type = &module->params[i].type;
        if (type->rank < 2)
            continue;
        int64_t out = type->dim[type->rank - 2].n, in = type->dim[type->rank - 1].n;
        int64_t rows = sbp_min_i64(out == widest ? p->head_chunk : p->chunk, SBP_CPU_CHUNK_MOST);
        bool gathered = type->rank > 2;
        largest = sbp_max_i64(largest, product_bytes(p, rows, out, in, gathered)); /* y = x w^T */
        largest = sbp_max_i64(largest, product_bytes(p, rows, in, out, gathered)); /* dx = dy w */
        if (module->params[i].trainable)
            largest = sbp_max_i64(largest, product_bytes(p, out, in, rows, true)); /* dw = dy^T x */
    }
    return sbp_round_up(largest, takes.page);
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

static int64_t tensor_bytes(const sbp_module *module) {
    int64_t bytes = module->param_count * takes.tensor;
    for (int32_t i = 0; i < module->param_count; i++)
        bytes += module->params[i].owner == SBP_OF_ADAPTER ? takes.adapter : 0;
    return bytes;
}

sbp_footprint sbp_cpu_footprint(const sbp_process *p) {
    sbp_footprint out = {.bytes = SBP_CPU_RUNTIME_BYTES, .thread_bytes = takes.thread};
    if (widest_head(p->module) > takes.head_elems[p->dtype])
        out.thread_bytes *= 2;
    out.bytes += matmul_bytes(p) + p->threads * out.thread_bytes + ranks_bytes(p);
    out.bytes += tensor_bytes(p->module) + program_bytes(p);
    out.bytes += p->tokenizer_bytes > 0 ? p->tokenizer_bytes + takes.text : 0;
    out.bytes += p->vocabulary_in_weights ? p->tokenizer_bytes / 2 * 3 : 0;
    out.bytes += p->reordered_bytes + (has_on_disk(p) ? takes.disk : 0) + (p->prepare ? takes.prepare : 0);
    out.bytes += has_states(p->module) ? takes.states : 0;
    return out;
}
