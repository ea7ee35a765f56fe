/* fence: puts fences between commands that must not run in another order, or at the same time.
 *
 * requires  memory: offsets; a program that verifies: what a call writes is in no other argument of it
 *           and not in the function's own memory
 * preserves everything but fences; those that are there already are replaced
 * breaks    nothing
 *
 * Two commands conflict when one writes bytes that the other reads or writes. Within a loop over chunks,
 * views of one buffer element are compared by rows and columns, iteration by iteration: K[lo until hi] reads
 * what K[i*C for C] of iterations before wrote, and nothing of those behind; lo is anything from 0 to row0.
 * Outside of loops by the rows that they reach at any size, and different buffers by the bytes of these,
 * since they may be packed into the same memory.
 *
 * Commands that conflict must be ordered by fences, maybe by several in a row, through commands of another
 * queue. This is looked at along traces: the commands that a body executes at some size T. T = 1 makes every
 * loop run once: that shows all hazards between commands that are not in one loop, with the fewest fences
 * between them. T of a chunk and a row, two chunks and a row, and t_max show those between iterations, with a
 * short last chunk and with a whole one. Loops over a scalar run 0, 1 and 2 times.
 *
 * Functions first, each on its own: fences inside are right for every call. Then entries, in which a call is
 * what it does before its first fence, what it does after its last, and the rest. Entries may follow each
 * other in any order without waiting, so the trace of entries runs through all pairs of them. Where two or
 * more calls of a function wait at its beginning, the fence stands in the function. A function that nothing
 * calls gets none.
 *
 * Within a queue a fence stands as late as it can, right before the first command that needs it, which makes
 * their number smallest along a straight line. Between queues it stands before the next command of the queue
 * that is waited for, so that a copy can run beside the call that follows it. What others make redundant is
 * taken out again: every fence is needed for some hazard at some size.
 *
 * An example: a loop over chunks in which attention reads keys that the same loop writes.
 *
 *   loop i in chunk {
 *     gemm     a           K[i*C for C] := x[i*C for C] W^T
 *     attn_fwd b           o := .., K[lo until hi]
 *   }
 *
 * Trace at T = 1 (i = 0): a0 writes K[0, 1), b0 reads K[0, 1): a fence between a and b.
 * Trace at T = C + 1 (i = 0, 1): b0 reads K[0, C), a1 writes K[C, C+1): rows differ, no hazard from b to the
 * next a; a0 and a1 write different rows too; b1 reads K[0, C+1), behind the fence already. So one fence
 * stands in the loop, before b. Had a written a buffer of one chunk (K'[0 for C]), b0 would read what a1
 * writes: then the trace at C + 1 asks for a second one, and it stands before a, where iteration 0 passes it
 * for nothing.
 */
#include "passes/fences/fence.h"

enum { MAX_TRIP_SCALARS = 4, MAX_TRIPS = 3, MAX_SIZES = 16 };

/* ---- sizes and trips --------------------------------------------------------------------------------- */

typedef struct size_list {
    int64_t t[MAX_SIZES];
    int32_t count;
} size_list;

static void add_size(const sbp_fence_pass *pass, size_list *sizes, int64_t t) {
    for (int32_t k = 0; k < sizes->count; k++)
        if (sizes->t[k] == t)
            return;
    if (t >= 1 && t <= pass->program->t_max && sizes->count < MAX_SIZES)
        sizes->t[sizes->count++] = t;
}

static void add_loop_sizes(const sbp_fence_pass *pass, size_list *sizes, const sbp_body *body) {
    for (int32_t n = 0; n < body->count; n++) {
        if (body->nodes[n].kind != SBP_NODE_LOOP)
            continue;
        const sbp_loop *loop = body->nodes[n].u.loop;
        if (loop->table >= 0) {
            sbp_sizes at_most = sbp_program_sizes(pass->program, pass->program->t_max, 0);
            int64_t step = at_most.v[pass->program->tables[loop->table].step];
            for (int64_t chunks = 1; chunks <= 2 && step < pass->program->t_max; chunks++)
                add_size(pass, sizes, chunks * step + 1);
        }
        add_loop_sizes(pass, sizes, &loop->body);
    }
}

static size_list sizes_of(const sbp_fence_pass *pass, const sbp_body *body) {
    size_list sizes = {.count = 0};
    add_size(pass, &sizes, 1);
    add_loop_sizes(pass, &sizes, body);
    add_size(pass, &sizes, pass->program->t_max);
    return sizes;
}

static int32_t variant_count(const sbp_fence_pass *pass) {
    int32_t count = 1;
    for (int32_t s = 0; s < pass->trip_scalar_count; s++)
        count *= MAX_TRIPS;
    return count;
}

static void choose_variant(sbp_fence_pass *pass, int32_t variant) {
    for (int32_t s = 0; s < pass->trip_scalar_count; s++, variant /= MAX_TRIPS)
        pass->trips[s] = variant % MAX_TRIPS;
}

/* ---- functions --------------------------------------------------------------------------------------- */

static sbp_status solve_function(sbp_fence_pass *pass, int32_t function) {
    const sbp_function *f = &pass->program->functions[function];
    size_list sizes = sizes_of(pass, &f->body);
    int32_t variants = variant_count(pass), count = 0;
    sbp_fence_trace *traces = SBP_NEW_ARRAY(pass->arena, sbp_fence_trace, sizes.count * variants);
    for (int32_t v = 0; v < variants; v++) {
        choose_variant(pass, v);
        for (int32_t k = 0; k < sizes.count; k++)
            SBP_TRY(sbp_fence_trace_body(pass, pass->functions[function], f, sizes.t[k], &traces[count++]));
    }
    sbp_fence_list list = {0};
    SBP_TRY(sbp_fence_place(pass, traces, count, &list));
    sbp_fence_reduce(pass, traces, count, &list);
    return SBP_OK;
}

/* ---- entries ----------------------------------------------------------------------------------------- */

/* All entries, such that each stands right before each. */
static sbp_status trace_entries(sbp_fence_pass *pass, int64_t t, sbp_fence_trace *trace) {
    int32_t n = pass->program->entry_count;
    sbp_fence_trace *alone = SBP_NEW_ARRAY(pass->arena, sbp_fence_trace, n + 1);
    for (int32_t f = 0; f < pass->program->function_count; f++)
        if (pass->called[f])
            SBP_TRY(sbp_fence_summarize(pass, f, t));
    for (int32_t e = 0; e < n; e++)
        SBP_TRY(sbp_fence_trace_body(pass, pass->entries[e], NULL, t, &alone[e]));
    for (int32_t i = 0; i < n; i++) {
        sbp_fence_trace_append(pass, trace, &alone[i]);
        for (int32_t j = i + 1; j < n; j++) {
            sbp_fence_trace_append(pass, trace, &alone[i]);
            sbp_fence_trace_append(pass, trace, &alone[j]);
        }
    }
    if (n > 0)
        sbp_fence_trace_append(pass, trace, &alone[0]);
    return SBP_OK;
}

static void clear_fences(sbp_fence_pass *pass, const sbp_fence_region *region) {
    for (int32_t n = 0; n <= region->body->count; n++) {
        pass->fences[region->first_gap + n] = 0;
        if (n < region->body->count && region->loops[n])
            clear_fences(pass, region->loops[n]);
    }
}

/* Counts, per function, the calls with a fence 0 -> 0 right before them. */
static void count_waiting_calls(const sbp_fence_pass *pass, const sbp_fence_region *region, int32_t *counts) {
    for (int32_t n = 0; n < region->body->count; n++) {
        const sbp_node *node = &region->body->nodes[n];
        if (region->loops[n])
            count_waiting_calls(pass, region->loops[n], counts);
        else if (node->kind == SBP_NODE_CALL && (pass->fences[region->first_gap + n] & sbp_fence_bit(0, 0)))
            counts[node->u.call->function]++;
    }
}

/* T = 1 will do, unless there are loops over chunks outside functions. */
static size_list sizes_of_entries(const sbp_fence_pass *pass) {
    size_list sizes = {.count = 0};
    add_size(pass, &sizes, 1);
    for (int32_t e = 0; e < pass->program->entry_count; e++)
        add_loop_sizes(pass, &sizes, &pass->program->entries[e].body);
    if (sizes.count > 1)
        add_size(pass, &sizes, pass->program->t_max);
    return sizes;
}

/* A fence waits for all that its queue was given before it. What an entry finds on the interconnect is waited
 * for at its beginning, not where it is needed: there collectives of the entry itself would be waited for as
 * well.
 */
static void wait_for_net(sbp_fence_pass *pass, sbp_fence_list *list) {
    int32_t net = pass->number_of[SBP_QUEUE_NET];
    for (int32_t e = 0; e < pass->program->entry_count && net > 0; e++)
        sbp_fence_add(pass, list, pass->entries[e]->first_gap, sbp_fence_bit(net, 0));
}

/* Fences that several calls of a function need move to its beginning. */
static bool move_into_functions(sbp_fence_pass *pass, sbp_fence_list *list) {
    const sbp_program *program = pass->program;
    int32_t *waiting = SBP_NEW_ARRAY(pass->arena, int32_t, program->function_count + 1);
    bool any = false;
    for (int32_t e = 0; e < program->entry_count; e++)
        count_waiting_calls(pass, pass->entries[e], waiting);
    for (int32_t f = 0; f < program->function_count; f++)
        any |= waiting[f] >= 2;
    if (!any)
        return false;
    for (int32_t e = 0; e < program->entry_count; e++)
        clear_fences(pass, pass->entries[e]);
    list->count = 0;
    wait_for_net(pass, list);
    for (int32_t f = 0; f < program->function_count; f++)
        if (waiting[f] >= 2)
            sbp_fence_add(pass, list, pass->functions[f]->first_gap, sbp_fence_bit(0, 0));
    return true;
}

static sbp_status solve_entries(sbp_fence_pass *pass) {
    size_list sizes = sizes_of_entries(pass);
    sbp_fence_list list = {0};
    int32_t variants = variant_count(pass), count = 0;
    sbp_fence_trace *traces = SBP_NEW_ARRAY(pass->arena, sbp_fence_trace, sizes.count * variants);
    for (int32_t v = 0; v < variants; v++) {
        choose_variant(pass, v);
        for (int32_t k = 0; k < sizes.count; k++)
            SBP_TRY(trace_entries(pass, sizes.t[k], &traces[count++]));
    }
    wait_for_net(pass, &list);
    SBP_TRY(sbp_fence_place(pass, traces, count, &list));
    if (move_into_functions(pass, &list))
        SBP_TRY(sbp_fence_place(pass, traces, count, &list));
    sbp_fence_reduce(pass, traces, count, &list);
    return SBP_OK;
}

/* ---- the pass ---------------------------------------------------------------------------------------- */

static void strip(sbp_body *body) {
    int32_t count = 0;
    for (int32_t n = 0; n < body->count; n++) {
        if (body->nodes[n].kind == SBP_NODE_LOOP)
            strip(&body->nodes[n].u.loop->body);
        if (body->nodes[n].kind != SBP_NODE_COMMAND || body->nodes[n].u.command->kind != SBP_CMD_FENCE)
            body->nodes[count++] = body->nodes[n];
    }
    body->count = count;
}

static void write_gap(sbp_fence_pass *pass, sbp_body *body, int32_t gap) {
    for (int32_t from = 0; from < pass->queue_count; from++)
        for (int32_t to = 0; to < pass->queue_count; to++) {
            if (!(pass->fences[gap] & sbp_fence_bit(from, to)))
                continue;
            sbp_command *fence = sbp_command_create(pass->arena, SBP_CMD_FENCE, 0);
            fence->u.fence.from = pass->queues[from];
            fence->u.fence.to = pass->queues[to];
            sbp_node node = {.kind = SBP_NODE_COMMAND, .u.command = fence};
            SBP_PUSH(pass->arena, body->nodes, body->count, body->capacity, node);
        }
}

static void write_fences(sbp_fence_pass *pass, const sbp_fence_region *region) {
    sbp_body body = {0};
    for (int32_t n = 0; n <= region->body->count; n++) {
        write_gap(pass, &body, region->first_gap + n);
        if (n == region->body->count)
            break;
        if (region->loops[n])
            write_fences(pass, region->loops[n]);
        SBP_PUSH(pass->arena, body.nodes, body.count, body.capacity, region->body->nodes[n]);
    }
    *region->body = body;
}

static void number_queues(sbp_fence_pass *pass) {
    for (int32_t q = 0; q < SBP_FENCE_QUEUES; q++)
        if (pass->number_of[q] >= 0) {
            pass->number_of[q] = pass->queue_count;
            pass->queues[pass->queue_count++] = q;
        }
}

static sbp_status prepare(sbp_fence_pass *pass) {
    sbp_program *program = pass->program;
    for (int32_t q = 0; q < SBP_FENCE_QUEUES; q++)
        pass->number_of[q] = q == SBP_QUEUE_COMPUTE ? 0 : -1;
    pass->functions = SBP_NEW_ARRAY(pass->arena, sbp_fence_region *, program->function_count + 1);
    pass->entries = SBP_NEW_ARRAY(pass->arena, sbp_fence_region *, program->entry_count + 1);
    pass->called = SBP_NEW_ARRAY(pass->arena, bool, program->function_count + 1);
    for (int32_t f = 0; f < program->function_count; f++) {
        sbp_function *function = &program->functions[f];
        strip(&function->body);
        SBP_TRY(sbp_fence_region_make(pass, &function->body, function, &pass->functions[f]));
    }
    for (int32_t e = 0; e < program->entry_count; e++) {
        strip(&program->entries[e].body);
        SBP_TRY(sbp_fence_region_make(pass, &program->entries[e].body, NULL, &pass->entries[e]));
    }
    if (pass->trip_scalar_count > MAX_TRIP_SCALARS)
        return sbp_fail(pass->diag, SBP_INTERNAL, "fence: %d scalars count the trips of loops; at most %d",
                        pass->trip_scalar_count, MAX_TRIP_SCALARS);
    number_queues(pass);
    pass->trips = SBP_NEW_ARRAY(pass->arena, int32_t, pass->trip_scalar_count + 1);
    return SBP_OK;
}

static sbp_status solve(void *user) {
    sbp_fence_pass *pass = user;
    pass->summaries = SBP_NEW_ARRAY(pass->arena, sbp_fence_summary, pass->program->function_count + 1);
    for (int32_t f = 0; f < pass->program->function_count; f++)
        if (pass->called[f])
            SBP_TRY(solve_function(pass, f));
    return solve_entries(pass);
}

sbp_status sbp_pass_fence(const sbp_pass_input *in, sbp_program *program) {
    sbp_fence_pass pass = {.diag = in->diag, .arena = in->arena, .program = program};
    SBP_TRY(prepare(&pass));
    pass.arena = sbp_arena_create(); /* traces are large; nothing of the pipeline's is allocated meanwhile */
    if (!pass.arena)
        return sbp_fail(in->diag, SBP_MACHINE, "out of memory while placing fences");
    sbp_status status = sbp_guard(pass.arena, in->diag, solve, &pass);
    sbp_arena_destroy(pass.arena);
    pass.arena = in->arena;
    if (status != SBP_OK)
        return status;
    for (int32_t f = 0; f < program->function_count; f++)
        write_fences(&pass, pass.functions[f]);
    for (int32_t e = 0; e < program->entry_count; e++)
        write_fences(&pass, pass.entries[e]);
    return SBP_OK;
}
