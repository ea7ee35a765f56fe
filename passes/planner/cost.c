/* cost.c: time and work of a program. What a command computes and moves is its work rule's
 * (ir/program/commands); here that takes time, at the target's throughput: matmuls less what short chunks
 * lose.
 *
 * The full chunks of a loop are alike but for attention, and its pairs are counted over a run of chunks at
 * once: so a loop is measured at its first chunk, for all full ones, and at its last. */
#include "passes/planner/cost.h"

#include "ir/program/collective_steps.h"
#include "passes/planner/makespan.h"

#include <string.h>

/* Ranks of a host that want the same of it at once. A CPU's throughput are those of a rank's own threads. */
static double sharers(const sbp_target_info *target) {
    double ranks = target->throughput.host_ranks;
    return ranks > 1 && !target->shared_memory ? ranks : 1;
}

/* Between host and device: no more than this rank's part of what the host's memory gives and takes. */
static double link_rate(const sbp_target_info *target, double rate) {
    double part = target->throughput.host / sharers(target);
    return sharers(target) > 1 && part < rate ? part : rate;
}

double sbp_cost_copy(const sbp_target_info *target, sbp_space to, sbp_space from, double bytes) {
    const sbp_throughput *r = &target->throughput;
    double ranks = r->host_ranks > 1 ? r->host_ranks : 1;
    switch (sbp_queue_of_copy(to, from)) {
    case SBP_QUEUE_IN:
        return r->command_seconds + bytes / link_rate(target, r->in);
    case SBP_QUEUE_OUT:
        return r->command_seconds + bytes / link_rate(target, r->out);
    case SBP_QUEUE_DISK:
        return r->command_seconds + bytes * ranks / (to == SBP_DISK ? r->disk_write : r->disk_read);
    case SBP_QUEUE_HOST: /* read and written */
        return r->command_seconds + 2 * bytes * sharers(target) / r->host;
    default:
        return r->command_seconds + 2 * bytes / r->memory;
    }
}

/* The part of `bytes` that leaves this host when a rank sends it to the others of `ranks` ranks,
 * `stride` apart. */
static double bytes_away(const sbp_throughput *r, double bytes, int64_t ranks, int64_t stride) {
    int64_t here = (int64_t)r->host_ranks / stride; /* of them */
    here = here < 1 ? 1 : here < ranks ? here : ranks;
    return ranks > 1 ? bytes * (double)(ranks - here) / (double)(ranks - 1) : 0;
}

/* They go another way, beside the others. */
static double sending_seconds(const sbp_throughput *r, double bytes, int64_t ranks, int64_t stride) {
    double net = r->net > 0 ? r->net : r->out;
    if (ranks < 2 || r->between <= 0 || r->between >= net)
        return bytes / net;
    double away = bytes_away(r, bytes, ranks, stride), near = (bytes - away) / net;
    return near > away / r->between ? near : away / r->between;
}

/* Ranks of a host, as those that run find it (backends/ranks/ranks.h). */
static int64_t node_of(const sbp_throughput *r, int64_t ranks) {
    int64_t node = r->host_ranks > 0 ? (int64_t)r->host_ranks : r->between > 0 ? 1 : ranks;
    return ranks % node == 0 ? node : 1;
}

/* What rank 0 sends; its share is no smaller than any other's. */
static sbp_sent sent_of(const sbp_target_info *target, sbp_collective_op op, const sbp_program *program,
                        int64_t elems, sbp_dtype dtype) {
    const sbp_collective_call call = {
        .op = op,
        .world = {.ranks = (int32_t)program->ranks,
                  .group = (int32_t)program->group,
                  .context = (int32_t)program->context,
                  .node = (int32_t)node_of(&target->throughput, program->ranks)},
        .elems = elems,
        .to = dtype,
        .from = dtype};
    return sbp_collective_sent(&call);
}

double sbp_cost_collective(const sbp_target_info *target, sbp_collective_op op, const sbp_program *program,
                           int64_t elems, sbp_dtype dtype) {
    const sbp_throughput *r = &target->throughput;
    if (op == SBP_SHARE)
        return r->command_seconds +
               2 * (double)sbp_dtype_bytes(dtype) * (double)elems / (double)program->group / r->memory;
    sbp_sent sent = sent_of(target, op, program, elems, dtype);
    double seconds = r->command_seconds;
    for (int32_t i = 0; i < SBP_ROUNDS; i++)
        seconds +=
            sending_seconds(r, (double)sent.rounds[i].bytes, sent.rounds[i].ranks, sent.rounds[i].stride);
    return seconds;
}

double sbp_cost_rows(const sbp_target_info *target, bool on_host, double bytes, double ops) {
    const sbp_throughput *r = &target->throughput;
    double ranks = sharers(target), moving = bytes / (on_host ? r->host / ranks : r->memory),
           computing = ops / (on_host ? r->host_ops / ranks : r->row_ops);
    return moving > computing ? moving : computing;
}

/* Where a copy of a function brings something, and when it is there. */
typedef struct arrival {
    int32_t buffer;
    double at;
} arrival;

enum { ARRIVALS = 2 * SBP_MAX_FORMAT_PARTS }; /* that a product may still wait for */

typedef struct meter {
    const sbp_program *program;
    const sbp_target_info *target;
    sbp_position position;
    const sbp_function *function;
    int64_t chunks; /* that stand for each other, from the present one on */
    double seconds, flops;
    double exchanging, exchanged_bytes; /* among the ranks of a context */
    int64_t exchanges;
    int64_t commands;
    /* Where a function is metered: what copies of queue in bring, beside the rest. */
    arrival arrivals[ARRIVALS];
    int64_t arrived;
    double in_clock, in_seconds, in_bytes, waited;
} meter;

static double view_elems(const meter *m, const sbp_view *view) {
    sbp_range range;
    if (view->ref == SBP_NO_VIEW || !sbp_view_resolve(m->program, m->function, view, &m->position, &range))
        return 0;
    return (double)range.rows * (double)view->cols;
}

static sbp_dtype view_dtype(const meter *m, const sbp_view *view) {
    return sbp_view_dtype(m->program, m->function, view);
}

static double view_bytes(const meter *m, const sbp_view *view) {
    return view->ref == SBP_NO_VIEW ? 0 : view_elems(m, view) * (double)sbp_dtype_bytes(view_dtype(m, view));
}

static sbp_space view_space(const meter *m, const sbp_view *view) {
    return view->ref >= 0 ? m->program->buffers[view->ref].space : SBP_DEVICE;
}

/* The operands where the walk stands. Outside of loops queries are the first rows of their document. */
static void shapes_of(const meter *m, const sbp_command *c, sbp_operand_shape *out) {
    for (int32_t k = 0; k < c->view_count; k++) {
        const sbp_view *view = &c->views[k];
        sbp_range range;
        out[k] = (sbp_operand_shape){.space = SBP_SPACE_COUNT};
        if (view->ref == SBP_NO_VIEW)
            continue;
        out[k] = (sbp_operand_shape){
            .cols = view->cols, .dtype = view_dtype(m, view), .space = view_space(m, view)};
        if (!sbp_view_resolve(m->program, m->function, view, &m->position, &range))
            continue;
        out[k].rows = range.rows;
        out[k].first_row = m->position.table >= 0 ? range.first_row : 0;
    }
}

/* Among the ranks of a context: what it sends, beside what is packed and unpacked here. */
static double exchange_seconds(meter *m, const sbp_work *work, double times) {
    const sbp_throughput *r = &m->target->throughput;
    double seconds = r->command_seconds + 2 * work->bytes / r->memory +
                     sending_seconds(r, work->sent, m->program->context, 1);
    m->exchanged_bytes += work->sent * times;
    m->exchanges += work->sent > 0 ? (int64_t)times : 0;
    m->exchanging += work->sent > 0 ? seconds * times : 0;
    return seconds;
}

static double matmul_seconds(const sbp_throughput *r, double rate, const sbp_work *work) {
    return work->rows > 0 ? work->flops / rate * (work->rows + r->half_rows) / work->rows : 0;
}

static double attention_rate(const sbp_target_info *target, const sbp_attention_attrs *a, sbp_dtype dtype,
                             bool backward) {
    int64_t columns = a->d_qk > a->d_v ? a->d_qk : a->d_v;
    if (target->attention_columns > 0 && columns > target->attention_columns)
        return sbp_throughput_scalars(&target->throughput, dtype);
    double rate = sbp_throughput_attention(&target->throughput, dtype);
    if (target->attention_part_columns > 0 && columns > target->attention_part_columns)
        return rate / (backward ? target->attention_part_times_bwd : target->attention_part_times);
    return rate;
}

/* Operations per second of the products inside a kernel. */
static double kernel_rate(const sbp_target_info *target, const sbp_command *c, sbp_dtype dtype) {
    bool backward = c->kind == SBP_CMD_DELTA_RULE_BWD;
    if (target->delta_rate && (backward || c->kind == SBP_CMD_DELTA_RULE))
        return target->delta_rate(target, &c->u.delta, dtype, backward);
    if (c->kind == SBP_CMD_ATTN_FWD || c->kind == SBP_CMD_ATTN_BWD)
        return attention_rate(target, &c->u.attention, dtype, c->kind == SBP_CMD_ATTN_BWD);
    return sbp_throughput_attention(&target->throughput, dtype);
}

/* At the target's throughput. */
static double work_seconds(meter *m, const sbp_command *c, const sbp_operand_shape *operands,
                           const sbp_work *work, double times) {
    const sbp_throughput *r = &m->target->throughput;
    switch (work->kind) {
    case SBP_WORK_MATMUL:
        return r->command_seconds + matmul_seconds(r, sbp_throughput_matmul(r, work->dtype), work);
    case SBP_WORK_EXPERTS: {
        double products = matmul_seconds(r, sbp_target_expert_rate(m->target, work->dtype), work);
        double memory = sbp_cost_rows(m->target, false, work->bytes, 0);
        return r->command_seconds + (products > memory ? products : memory);
    }
    case SBP_WORK_ATTENTION:
        return r->command_seconds + work->flops / kernel_rate(m->target, c, work->dtype);
    case SBP_WORK_COPY:
        if (c->queue == SBP_QUEUE_IN) /* of a formal, too */
            return sbp_cost_copy(m->target, SBP_DEVICE, SBP_HOST, work->bytes / 2);
        return sbp_cost_copy(m->target, operands[SBP_COPY_DST].space, operands[SBP_COPY_SRC].space,
                             work->bytes / 2);
    case SBP_WORK_COLLECTIVE:
        return sbp_cost_collective(m->target, c->u.collective.op, m->program, (int64_t)work->elems,
                                   work->dtype);
    case SBP_WORK_EXCHANGE:
        return exchange_seconds(m, work, times);
    case SBP_WORK_ROWS:
        return r->command_seconds +
               sbp_cost_rows(m->target, c->queue == SBP_QUEUE_HOST, work->bytes, work->row_ops);
    case SBP_WORK_NONE:
        break;
    }
    return 0;
}

/* A copy beside the rest begins when its queue is free, and no earlier than it is given. */
static void bring(meter *m, const sbp_command *c, double seconds, double bytes) {
    m->in_clock = (m->in_clock > m->seconds ? m->in_clock : m->seconds) + seconds;
    m->arrivals[m->arrived++ % ARRIVALS] = (arrival){.buffer = c->views[SBP_COPY_DST].ref, .at = m->in_clock};
    m->in_seconds += seconds;
    m->in_bytes += bytes;
}

/* What is read is there. */
static void wait_for_arrivals(meter *m, const sbp_command *c) {
    for (int64_t i = 0; i < ARRIVALS && i < m->arrived; i++)
        for (int32_t k = 0; k < c->view_count; k++)
            if (c->views[k].ref == m->arrivals[i].buffer && m->arrivals[i].at > m->seconds) {
                m->waited += m->arrivals[i].at - m->seconds;
                m->seconds = m->arrivals[i].at;
            }
}

/* A command that runs `times` in each chunk of the run. */
static void measure_command(meter *m, const sbp_command *c, double times) {
    sbp_operand_shape operands[SBP_MAX_COMMAND_OPERANDS];
    sbp_work work;
    shapes_of(m, c, operands);
    sbp_command_work(&(sbp_work_query){.program = m->program,
                                       .command = c,
                                       .operands = operands,
                                       .chunks = m->chunks,
                                       .ranks = m->program->context},
                     &work);
    if (work.kind == SBP_WORK_NONE) /* fences: the programs that candidates are measured on have none */
        return;
    double seconds = work_seconds(m, c, operands, &work, times) * times;
    wait_for_arrivals(m, c);
    if (m->function && c->queue == SBP_QUEUE_IN)
        bring(m, c, seconds, work.bytes / 2 * times);
    else
        m->seconds += seconds;
    m->flops += work.flops * times;
    m->commands += (int64_t)times;
}

static void measure_body(meter *m, const sbp_body *body, double times);

static void measure_loop(meter *m, const sbp_loop *loop, double times) {
    if (loop->table < 0) {
        measure_body(m, &loop->body, times);
        return;
    }
    int64_t chunks = sbp_table_rows(m->program, loop->table, &m->position.sizes);
    meter outer = *m;
    if (chunks > 1) {
        m->chunks = chunks - 1;
        sbp_position_set(&m->position, m->program, loop->table, 0);
        measure_body(m, &loop->body, times * (double)(chunks - 1));
    }
    m->chunks = 1;
    if (chunks > 0) {
        sbp_position_set(&m->position, m->program, loop->table, chunks - 1);
        measure_body(m, &loop->body, times);
    }
    m->position = outer.position;
    m->chunks = outer.chunks;
}

static void measure_body(meter *m, const sbp_body *body, double times) {
    for (int32_t i = 0; i < body->count; i++)
        if (body->nodes[i].kind == SBP_NODE_COMMAND)
            measure_command(m, body->nodes[i].u.command, times);
        else if (body->nodes[i].kind == SBP_NODE_LOOP)
            measure_loop(m, body->nodes[i].u.loop, times);
}

void sbp_cost_function(const sbp_program *program, int32_t function, int64_t t, const sbp_target_info *target,
                       sbp_cost *out) {
    meter m = {.program = program, .target = target, .function = &program->functions[function], .chunks = 1};
    m.position.sizes = sbp_program_sizes(program, t, 1);
    m.position.table = -1;
    measure_body(&m, &m.function->body, 1);
    *out = (sbp_cost){.seconds = m.seconds, .flops = m.flops, .commands = m.commands};
    out->busy[SBP_QUEUE_COMPUTE] = m.seconds - m.waited;
    out->busy[SBP_QUEUE_IN] = m.in_seconds;
    out->traffic[SBP_TENSOR_PARAM].in = m.in_bytes;
}

/* A loop around commands of an entry runs once here. */
static void add_spot(const sbp_view *view, sbp_access access, sbp_spot *spots, int32_t *count) {
    if (view->ref >= 0)
        spots[(*count)++] = (sbp_spot){view->ref, view->slot, access};
}

static void run_body(meter *m, const sbp_body *body, const sbp_cost *functions, sbp_makespan *span) {
    sbp_command_operand operands[SBP_MAX_COMMAND_OPERANDS];
    sbp_spot spots[SBP_MAX_COMMAND_OPERANDS];
    for (int32_t i = 0; i < body->count; i++) {
        const sbp_node *node = &body->nodes[i];
        if (node->kind == SBP_NODE_LOOP) {
            run_body(m, &node->u.loop->body, functions, span);
        } else if (node->kind == SBP_NODE_CALL) {
            const sbp_call *call = node->u.call;
            const sbp_function *f = &m->program->functions[call->function];
            sbp_spot *formals = SBP_NEW_ARRAY(span->arena, sbp_spot, f->formal_count + 1);
            int32_t count = 0;
            for (int32_t k = 0; k < f->formal_count; k++)
                add_spot(&call->views[k], f->formals[k].access, formals, &count);
            sbp_makespan_call(span, &functions[call->function], formals, count);
            m->flops += functions[call->function].flops;
            m->commands += functions[call->function].commands;
        } else if (node->u.command->kind != SBP_CMD_FENCE) {
            const sbp_command *c = node->u.command;
            int32_t count = 0;
            sbp_command_operands(m->program, c, operands);
            for (int32_t k = 0; k < c->view_count; k++)
                add_spot(&c->views[k], operands[k].access, spots, &count);
            m->seconds = 0;
            measure_command(m, c, 1);
            sbp_makespan_run(span, c->queue, m->seconds, spots, count);
        }
    }
}

/* ---- traffic ----------------------------------------------------------------------------------------- */

void sbp_traffic_add(sbp_traffic *traffic, sbp_space to, sbp_space from, double bytes) {
    if (to == SBP_DISK)
        traffic->written += bytes;
    else if (from == SBP_DISK)
        traffic->read += bytes;
    else if (to != from)
        *(to == SBP_DEVICE ? &traffic->in : &traffic->out) += bytes;
}

/* The class of what a buffer is the placement of; of others only accumulators, and what belongs to the norm,
 * leave the device: as finished gradients. Staging buffers serve one class, but do not say which. */
static sbp_tensor_class class_of_role(sbp_role role) {
    switch (role) {
    case SBP_ROLE_PARAM:
        return SBP_TENSOR_PARAM;
    case SBP_ROLE_STATE:
    case SBP_ROLE_MASTER:
        return SBP_TENSOR_STATE;
    case SBP_ROLE_STREAM:
        return SBP_TENSOR_CHECKPOINT;
    case SBP_ROLE_SAVED:
        return SBP_TENSOR_SAVED;
    case SBP_ROLE_STAGING:
        return SBP_TENSOR_CLASS_COUNT;
    default:
        return SBP_TENSOR_GRAD;
    }
}

/* Copies of a body: their staging buffers get the class of the other side, where it has one; true: some
 * did. */
static bool class_staging(const sbp_body *body, sbp_tensor_class *classes) {
    bool any = false;
    for (int32_t i = 0; i < body->count; i++) {
        const sbp_command *c = body->nodes[i].kind == SBP_NODE_COMMAND ? body->nodes[i].u.command : NULL;
        if (!c || c->kind != SBP_CMD_COPY || c->views[SBP_COPY_DST].ref < 0 || c->views[SBP_COPY_SRC].ref < 0)
            continue;
        sbp_tensor_class *to = &classes[c->views[SBP_COPY_DST].ref],
                         *from = &classes[c->views[SBP_COPY_SRC].ref];
        if ((*to == SBP_TENSOR_CLASS_COUNT) != (*from == SBP_TENSOR_CLASS_COUNT)) {
            *(*to == SBP_TENSOR_CLASS_COUNT ? to : from) = *to == SBP_TENSOR_CLASS_COUNT ? *from : *to;
            any = true;
        }
    }
    return any;
}

/* Per buffer; SBP_TENSOR_CLASS_COUNT: a staging buffer that no copy leads to. What comes from disk passes
 * through two staging buffers. */
static sbp_tensor_class *class_buffers(sbp_arena *arena, const sbp_program *program) {
    sbp_tensor_class *classes = SBP_NEW_ARRAY(arena, sbp_tensor_class, program->buffer_count + 1);
    bool any = true;
    for (int32_t b = 0; b < program->buffer_count; b++)
        classes[b] = class_of_role(program->buffers[b].role);
    for (int32_t b = 0; b < program->buffer_count; b++)
        if (program->buffers[b].part_of > 0)
            classes[program->buffers[b].part_of - 1] = classes[b];
    while (any) {
        any = false;
        for (int32_t e = 0; e < program->entry_count; e++)
            any |= class_staging(&program->entries[e].body, classes);
    }
    return classes;
}

static void add_traffic(const meter *m, const sbp_body *body, const sbp_cost *functions,
                        const sbp_tensor_class *classes, sbp_cost *out) {
    for (int32_t i = 0; i < body->count; i++) {
        if (body->nodes[i].kind == SBP_NODE_CALL)
            out->traffic[SBP_TENSOR_PARAM].in +=
                functions[body->nodes[i].u.call->function].traffic[SBP_TENSOR_PARAM].in;
        const sbp_command *c = body->nodes[i].kind == SBP_NODE_COMMAND ? body->nodes[i].u.command : NULL;
        if (!c || c->kind != SBP_CMD_COPY || c->views[SBP_COPY_DST].ref < 0)
            continue;
        sbp_tensor_class class = classes[c->views[SBP_COPY_DST].ref];
        sbp_traffic_add(&out->traffic[class == SBP_TENSOR_CLASS_COUNT ? SBP_TENSOR_GRAD : class],
                        view_space(m, &c->views[SBP_COPY_DST]), view_space(m, &c->views[SBP_COPY_SRC]),
                        view_bytes(m, &c->views[SBP_COPY_DST]));
    }
}

/* ---- what ranks send ---------------------------------------------------------------------------------- */

/* The operand of a collective that is all there is, where the other is a share of it. */
static const sbp_buffer *larger_operand(const sbp_program *program, const sbp_command *c) {
    const sbp_buffer *dst = &program->buffers[c->views[SBP_COLLECTIVE_DST].ref],
                     *src = &program->buffers[c->views[SBP_COLLECTIVE_SRC].ref];
    return sbp_extent_as_const(src->rows) >= sbp_extent_as_const(dst->rows) ? src : dst;
}

static void add_net(const sbp_program *program, const sbp_command *c, const sbp_target_info *target,
                    bool once, sbp_net_traffic *out) {
    if (c->kind != SBP_CMD_COLLECTIVE || c->queue != SBP_QUEUE_NET || c->u.collective.op == SBP_SHARE)
        return;
    const sbp_buffer *all = larger_operand(program, c);
    int64_t elems = sbp_extent_as_const(all->rows) * all->cols;
    sbp_sent sent = sent_of(target, c->u.collective.op, program, elems, all->dtype);
    *(once ? &out->step_bytes : &out->part_bytes) += sent.bytes;
    ++*(once ? &out->step_collectives : &out->part_collectives);
    for (int32_t i = 0; i < SBP_ROUNDS; i++)
        *(once ? &out->step_away : &out->part_away) += bytes_away(
            &target->throughput, (double)sent.rounds[i].bytes, sent.rounds[i].ranks, sent.rounds[i].stride);
    out->seconds[c->u.collective.op] +=
        sbp_cost_collective(target, c->u.collective.op, program, elems, all->dtype);
}

/* What a step runs for each of its micro-batches before it is trained on them (ir/graph/of_step.h);
 * NULL: nothing. */
static const sbp_entry *counting_entry(const sbp_program *program) {
    const sbp_entry *trains = sbp_program_training_entry(program);
    return trains && !sbp_entry_is(trains->name, SBP_ENTRY_SCORE)
               ? sbp_program_entry(program, SBP_ENTRY_COUNT)
               : NULL;
}

/* A call, with as many rows as there can be. */
static void add_exchanges(const sbp_program *program, int32_t function, const sbp_target_info *target,
                          sbp_net_traffic *out) {
    meter m = {.program = program, .target = target, .function = &program->functions[function], .chunks = 1};
    m.position.sizes = sbp_program_sizes(program, program->t_max, program->s_max);
    m.position.table = -1;
    measure_body(&m, &m.function->body, 1);
    out->context_bytes += (int64_t)m.exchanged_bytes;
    out->context_exchanges += m.exchanges;
    out->context_seconds += m.exchanging;
}

void sbp_cost_net_traffic(const sbp_program *program, const sbp_target_info *target, sbp_net_traffic *out) {
    const sbp_entry *entries[] = {counting_entry(program), sbp_program_training_entry(program),
                                  sbp_program_entry(program, SBP_ENTRY_UPDATE)};
    *out = (sbp_net_traffic){0};
    for (int e = 0; e < SBP_COUNT(entries); e++)
        for (int32_t n = 0; entries[e] && n < entries[e]->body.count; n++) {
            const sbp_node *node = &entries[e]->body.nodes[n];
            bool once = e > 1 || node->kind == SBP_NODE_LOOP;
            const sbp_body *inside = node->kind == SBP_NODE_LOOP ? &node->u.loop->body : NULL;
            for (int32_t k = 0; k < (inside ? inside->count : 1); k++) {
                const sbp_node *at = inside ? &inside->nodes[k] : node;
                if (at->kind == SBP_NODE_CALL && program->context > 1)
                    add_exchanges(program, at->u.call->function, target, out);
                if (at->kind == SBP_NODE_COMMAND)
                    add_net(program, at->u.command, target, once, out);
            }
        }
}

/* ---- steps ------------------------------------------------------------------------------------------- */

static void measure_entry(sbp_arena *arena, const sbp_program *program, const sbp_entry *entry, int64_t t,
                          const sbp_target_info *target, const sbp_cost *functions,
                          const sbp_tensor_class *classes, sbp_cost *out) {
    meter m = {.program = program, .target = target, .chunks = 1};
    m.position.sizes = sbp_program_sizes(program, t, 1);
    m.position.table = -1;
    if (!entry)
        return;
    sbp_makespan span;
    sbp_makespan_begin(arena, program, &span);
    run_body(&m, &entry->body, functions, &span);
    out->seconds += sbp_makespan_end(&span);
    for (int q = 0; q < SBP_QUEUE_COUNT; q++)
        out->busy[q] += span.busy[q];
    out->flops += m.flops;
    out->commands += m.commands;
    add_traffic(&m, &entry->body, functions, classes, out);
}

double sbp_cost_entry(sbp_arena *arena, const sbp_program *program, const sbp_entry *entry,
                      const sbp_target_info *target) {
    sbp_cost *functions = SBP_NEW_ARRAY(arena, sbp_cost, program->function_count + 1), out = {0};
    for (int32_t f = 0; f < program->function_count; f++)
        sbp_cost_function(program, f, program->t_max, target, &functions[f]);
    measure_entry(arena, program, entry, program->t_max, target, functions, class_buffers(arena, program),
                  &out);
    return out.seconds;
}

void sbp_cost_step(sbp_arena *arena, const sbp_program *program, int64_t t, const sbp_target_info *target,
                   sbp_cost *out) {
    sbp_cost *functions = SBP_NEW_ARRAY(arena, sbp_cost, program->function_count + 1);
    for (int32_t f = 0; f < program->function_count; f++)
        sbp_cost_function(program, f, t, target, &functions[f]);
    const sbp_tensor_class *classes = class_buffers(arena, program);
    *out = (sbp_cost){0};
    measure_entry(arena, program, counting_entry(program), t, target, functions, classes, out);
    measure_entry(arena, program, sbp_program_training_entry(program), t, target, functions, classes, out);
    measure_entry(arena, program, sbp_program_entry(program, SBP_ENTRY_UPDATE), t, target, functions, classes,
                  out);
}
