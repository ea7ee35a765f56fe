/* evaluate.c: skeletons, structures, and their bytes and seconds at given sizes. */
#include "passes/planner/evaluate.h"
#include "ir/program/traits.h"

#include <string.h>

#include "passes/calls/calls.h"
#include "passes/optimizers/update.h"
#include "passes/planner/cost.h"
#include "passes/planner/makespan.h"

void sbp_evaluator_end(sbp_evaluator *pl) {
    for (int i = 0; i < SBP_STRUCTURES; i++)
        sbp_arena_destroy(pl->structures[i].arena);
    memset(pl->structures, 0, sizeof pl->structures);
}

/* ---- skeletons --------------------------------------------------------------------------------------- */

static bool same_functions(const sbp_skeleton *s, const sbp_schedule_options *o) {
    bool away = o->placement[SBP_TENSOR_PARAM] != SBP_DEVICE; /* then experts' pieces come from there */
    if (s->schedule.segment != o->segment || s->schedule.save_all != o->save_all ||
        s->schedule.expert_pieces != o->expert_pieces ||
        (o->expert_pieces > 1 && (s->schedule.placement[SBP_TENSOR_PARAM] != SBP_DEVICE) != away) ||
        s->schedule.drop_states != o->drop_states || s->schedule.saved_count != o->saved_count)
        return false;
    for (int32_t i = 0; i < o->saved_count; i++)
        if (strcmp(s->schedule.saved[i], o->saved[i]) != 0)
            return false;
    return true;
}

/* What skeletons do not depend on is cleared. */
static sbp_pass_options options_of_functions(const sbp_pass_options *options) {
    sbp_pass_options out = *options;
    memset(&out.schedule, 0, sizeof out.schedule);
    out.t_max = 0;
    out.list_keepable = false;
    return out;
}

/* Those of the pipeline, if they are of the same module and options; else it begins to keep others. */
static sbp_skeletons *skeletons_of(sbp_evaluator *pl) {
    const sbp_pipeline *base = pl->base;
    sbp_skeletons *kept = base->skeletons;
    if (!kept)
        return &pl->own;
    const sbp_pass_options options = options_of_functions(&base->options);
    if (kept->module != base->module || memcmp(&kept->options, &options, sizeof options) != 0 ||
        memcmp(&kept->target, &base->target, sizeof kept->target) != 0) {
        *kept = (sbp_skeletons){.module = base->module};
        memcpy(&kept->options, &options, sizeof options); /* with the bytes between members */
        memcpy(&kept->target, &base->target, sizeof kept->target);
    }
    return kept;
}

static sbp_status find_cut(sbp_evaluator *pl, const sbp_schedule_options *o, int64_t t, const sbp_cut **out) {
    sbp_skeletons *kept = skeletons_of(pl);
    for (sbp_cut *c = kept->cuts; c; c = c->next)
        if (c->segment == o->segment) {
            *out = c;
            return SBP_OK;
        }
    sbp_pipeline p = *pl->base;
    p.module = sbp_module_copy(pl->arena, pl->base->module);
    p.program = NULL;
    p.printed = NULL;
    p.print_after = NULL;
    p.stop_after = "split";
    p.options.t_max = t;
    p.options.schedule = *o;
    SBP_TRY(sbp_pipeline_run(&p));
    sbp_cut *c = SBP_NEW(pl->arena, sbp_cut);
    *c = (sbp_cut){.segment = o->segment, .pipeline = p, .next = kept->cuts};
    *out = kept->cuts = c;
    return SBP_OK;
}

sbp_status sbp_evaluator_skeleton(sbp_evaluator *pl, const sbp_schedule_options *o, int64_t t,
                                  sbp_skeleton **out) {
    sbp_skeletons *kept = skeletons_of(pl);
    for (sbp_skeleton *s = kept->list; s; s = s->next)
        if (same_functions(s, o)) {
            s->pipeline.diag = pl->diag; /* who asked before may be gone */
            *out = s;
            return SBP_OK;
        }
    const sbp_cut *cut;
    SBP_TRY(find_cut(pl, o, t, &cut));
    sbp_pipeline p = cut->pipeline;
    p.diag = pl->diag;
    p.module = sbp_module_copy(pl->arena, p.module);
    p.stopped = false;
    p.start_after = p.stop_after;
    p.stop_after = "schedule";
    p.options.t_max = t;
    p.options.list_keepable = false;
    p.options.schedule = *o;
    p.options.schedule.checkpoint_every = 2; /* then there are functions for every k */
    SBP_TRY(sbp_pipeline_run(&p));
    sbp_skeleton *s = SBP_NEW(pl->arena, sbp_skeleton);
    *s =
        (sbp_skeleton){.pipeline = p, .schedule = *o, .layers = p.module->call_count - 2, .next = kept->list};
    kept->list = *out = s;
    return SBP_OK;
}

bool sbp_same_placement(const sbp_schedule_options *a, const sbp_schedule_options *b) {
    return a->host_update == b->host_update && a->sparing == b->sparing && a->gathered == b->gathered &&
           memcmp(a->placement, b->placement, sizeof a->placement) == 0 &&
           memcmp(a->first, b->first, sizeof a->first) == 0;
}

/* ---- structures -------------------------------------------------------------------------------------- */

static bool same_calls(const sbp_structure *s, const sbp_skeleton *of, const sbp_schedule_options *o,
                       int64_t t) {
    bool cut =
        s->skeleton && s->skeleton->pipeline.target.max_allocation_bytes > 0; /* arrays, by their bytes */
    return s->arena && s->skeleton == of && (!cut || s->builder.options.t_max == t) &&
           s->schedule.checkpoint_every == o->checkpoint_every && sbp_same_placement(&s->schedule, o);
}

static void touch_move(sbp_structure *s, int32_t list, const sbp_move *move) {
    sbp_spot both[] = {move->to, move->from};
    sbp_memory_touch(s->arena, s->builder.program, &s->live, list, move->parts ? move->parts : both,
                     move->parts ? move->part_count : 2, -1);
}

/* Lists of its own, to which rules of shares add kernels and scalars. */
static void own_lists(sbp_arena *arena, sbp_program *p) {
    sbp_rowkernel **kernels = SBP_NEW_ARRAY(arena, sbp_rowkernel *, p->kernel_count + 1);
    const char **scalars = SBP_NEW_ARRAY(arena, const char *, p->scalar_count + 1);
    memcpy(kernels, p->kernels, (size_t)p->kernel_count * sizeof *kernels);
    memcpy(scalars, p->scalars, (size_t)p->scalar_count * sizeof *scalars);
    p->kernels = kernels;
    p->kernel_capacity = p->kernel_count;
    p->scalars = scalars;
    p->scalar_capacity = p->scalar_count;
    const sbp_map texts = p->kernel_texts;
    sbp_map_copy(&p->kernel_texts, arena, &texts);
}

/* What calls and offload would do, on a copy of the program that has a list of buffers of its own; and what
 * that touches, position by position. */
static sbp_status build_structure(void *user) {
    sbp_structure *s = user;
    sbp_program_builder *p = &s->builder;
    const sbp_pass_results *made = s->skeleton->pipeline.results;
    const sbp_program *base = made->builder.program;
    const sbp_callables from = {&made->derivatives, &made->stages, &made->segments, &made->head,
                                &made->lasting};
    int64_t t = p->options.t_max;
    *p = made->builder;
    p->diag = s->skeleton->pipeline.diag;
    p->options.t_max = t;
    p->arena = s->arena;
    p->options.schedule = s->schedule;
    p->program = sbp_memory_resize(s->arena, base, t, base->chunk, base->head_chunk);
    if (p->options.zero > 0)
        own_lists(s->arena, p->program);
    sbp_map_init(&p->buffer_names, s->arena); /* of the new ones */
    sbp_map_init(&p->labels, s->arena);
    SBP_TRY(sbp_call_lists_make(p, &from, &s->call_schedule));
    SBP_TRY(sbp_offload_walk(p, &s->call_schedule, &s->walks));
    sbp_memory_frames(s->arena, p->program, s->call_schedule.list_count, &s->live);
    for (int32_t l = 0; l < s->call_schedule.list_count; l++) {
        const sbp_walk *w = &s->walks[l];
        for (int32_t a = -1, m = 0; a < w->list->task_count; a++) {
            const sbp_task *task = a >= 0 ? &w->list->tasks[a] : NULL;
            if (task)
                sbp_memory_touch(s->arena, p->program, &s->live, l, w->spots[a], task->operand_count,
                                 task->function);
            for (; m < w->move_count && w->moves[m].after <= a; m++)
                touch_move(s, l, &w->moves[m]);
        }
        sbp_memory_keep_cache(s->arena, p->program, &s->live, l, w->list->entry);
    }
    return SBP_OK;
}

static sbp_status find_structure(sbp_evaluator *pl, const sbp_skeleton *of, const sbp_schedule_options *o,
                                 int64_t t, sbp_structure **out) {
    sbp_structure *oldest = &pl->structures[0];
    for (int i = 0; i < SBP_STRUCTURES; i++) {
        sbp_structure *s = &pl->structures[i];
        if (same_calls(s, of, o, t)) {
            s->age = ++pl->clock;
            *out = s;
            return SBP_OK;
        }
        oldest = s->age < oldest->age ? s : oldest;
    }
    sbp_arena_destroy(oldest->arena);
    *oldest =
        (sbp_structure){.arena = sbp_arena_create(), .skeleton = of, .schedule = *o, .age = ++pl->clock};
    oldest->builder.options.t_max = t;
    if (!oldest->arena)
        return sbp_fail(pl->diag, SBP_MACHINE, "out of memory for trying a schedule");
    sbp_status status = sbp_guard(oldest->arena, pl->diag, build_structure, oldest);
    if (status != SBP_OK) {
        sbp_arena_destroy(oldest->arena);
        *oldest = (sbp_structure){0};
        return status;
    }
    *out = oldest;
    return SBP_OK;
}

/* One evaluation, in an arena of its own: a search makes tens of thousands. */
typedef struct evaluation {
    sbp_evaluator *pl;
    sbp_arena *arena;
    sbp_structure *s;
    bool timed;
    sbp_plan_estimate *out;
} evaluation;

/* Scalar operations of the row kernels of an update. */
static double update_ops(const evaluation *e, const sbp_update *update) {
    double ops = 0;
    for (int32_t i = 0; i < update->body.count; i++) {
        const sbp_command *c =
            update->body.nodes[i].kind == SBP_NODE_COMMAND ? update->body.nodes[i].u.command : NULL;
        const sbp_rowkernel *kernel = c ? sbp_command_kernel(e->s->builder.program, c) : NULL;
        if (kernel && c->views[0].ref < 0)
            ops += sbp_rowkernel_ops(kernel) *
                   (double)sbp_extent_as_const(c->views[0].length.base); /* of blocks, where it sees these */
    }
    return ops;
}

/* Seconds of a task that is no call: what it moves, at the rate of its queue. */
static double task_seconds(const evaluation *e, const sbp_program *sized, const sbp_task *task,
                           const sbp_spot *spots) {
    const sbp_target_info *target = &e->pl->base->target;
    double bytes = 0, commands = 1, ops = 0;
    if (task->kind == SBP_TASK_COLLECTIVE) { /* of all that there is of it, which is its last operand */
        const sbp_buffer *b = &sized->buffers[spots[task->operand_count - 1].buffer];
        return sbp_cost_collective(target, task->collective, sized, sbp_extent_as_const(b->rows) * b->cols,
                                   b->dtype);
    }
    if (task->kind == SBP_TASK_NORM) /* the sum, its root, and with it the factor */
        commands = task->operand_count + 1;
    for (int32_t i = 0; i < task->operand_count; i++) {
        const sbp_buffer *b = &sized->buffers[spots[i].buffer];
        double times = task->operands[i].access == SBP_UPDATE ? 2 : 1,
               elems = (double)(sbp_extent_as_const(b->rows) * b->cols);
        if (task->kind == SBP_TASK_SUM_SQUARES && i == 0) /* of the norms it writes one */
            times = elems = 1;
        bytes += times * elems * (double)sbp_dtype_bytes(b->dtype);
    }
    if (task->kind == SBP_TASK_UPDATE) {
        const sbp_lasting *lasting = &e->s->skeleton->pipeline.results->lasting;
        const sbp_update *update = task->rule ? task->rule : lasting->updates[task->param];
        commands = update->body.count;
        ops = update_ops(e, update);
    }
    return commands * target->throughput.command_seconds + sbp_cost_rows(target, task->on_host, bytes, ops);
}

static double move_elems(const evaluation *e, const sbp_program *sized, const sbp_move *move) {
    const sbp_placed_tensor *tensor = &e->s->call_schedule.tensors[move->tensor];
    sbp_sizes sizes = sbp_program_sizes(sized, sized->t_max, 1);
    int64_t rows = 0;
    (void)sbp_extent_eval(move->to_rows, &sizes, &rows);
    return (double)rows * (double)tensor->cols;
}

/* Seconds of the row kernels that decode a tensor's blocks: launching them, bytes moved, scalar
 * operations. */
static double unpack_seconds(const evaluation *e, const sbp_move *move) {
    const sbp_placed_tensor *tensor = &e->s->call_schedule.tensors[move->tensor];
    double bytes = 0, ops = 0;
    for (int32_t i = 0; i < tensor->packed_count; i++) {
        const sbp_packed *what = &tensor->packed[i];
        int64_t elems = sbp_extent_as_const(what->rows) * what->cols;
        const sbp_rowkernel *kernel = sbp_dequantize_kernel(&e->s->builder, what->format, move->to_dtype);
        bytes += (double)(sbp_format_size(what->format, elems) + elems * sbp_dtype_bytes(move->to_dtype));
        ops += kernel ? sbp_rowkernel_ops(kernel) * (double)elems / sbp_format_of(what->format)->block : 0;
    }
    return e->pl->base->target.throughput.command_seconds * tensor->packed_count +
           sbp_cost_rows(&e->pl->base->target, false, bytes, ops);
}

static double move_seconds(const evaluation *e, const sbp_program *sized, const sbp_move *move) {
    const sbp_target_info *target = &e->pl->base->target;
    const sbp_buffer *b = &sized->buffers[move->to.buffer];
    double elems = move_elems(e, sized, move);
    if (move->parts)
        return unpack_seconds(e, move);
    if (move->collective >= 0) {
        int64_t rows = sbp_extent_as_const(move->to_rows), from = sbp_extent_as_const(move->from_rows);
        return sbp_cost_collective(
            target, (sbp_collective_op)move->collective, sized,
            (rows > from ? rows : from) * e->s->call_schedule.tensors[move->tensor].cols, move->to_dtype);
    }
    if (move->from_dtype != move->to_dtype) /* a kernel that loads and stores */
        return target->throughput.command_seconds +
               sbp_cost_rows(
                   target, move->queue == SBP_QUEUE_HOST,
                   elems * (double)(sbp_dtype_bytes(move->to_dtype) + sbp_dtype_bytes(move->from_dtype)),
                   2 * elems);
    return sbp_cost_copy(target, b->space, sized->buffers[move->from.buffer].space,
                         elems * (double)sbp_dtype_bytes(move->to_dtype));
}

static void add_traffic(const evaluation *e, const sbp_program *sized, const sbp_move *move) {
    sbp_tensor_class class = e->s->call_schedule.tensors[move->tensor].class;
    if (move->collective >= 0)
        return;
    /* of the others only accumulators leave the device, as finished gradients */
    sbp_traffic_add(&e->out->traffic[class == SBP_TENSOR_OTHER ? SBP_TENSOR_GRAD : class],
                    sized->buffers[move->to.buffer].space, sized->buffers[move->from.buffer].space,
                    move_elems(e, sized, move) * (double)sbp_dtype_bytes(move->to_dtype));
}

static double walk_seconds(const evaluation *e, const sbp_program *sized, const sbp_walk *w,
                           const sbp_cost *functions) {
    sbp_makespan span;
    sbp_makespan_begin(e->arena, sized, &span);
    for (int32_t a = -1, m = 0; a < w->list->task_count; a++) {
        const sbp_task *task = a >= 0 ? &w->list->tasks[a] : NULL;
        if (task) {
            int32_t queue = task->kind == SBP_TASK_COLLECTIVE ? SBP_QUEUE_NET
                            : task->on_host                   ? SBP_QUEUE_HOST
                                                              : SBP_QUEUE_COMPUTE;
            if (task->kind == SBP_TASK_CALL) {
                const sbp_cost *function = &functions[task->function];
                sbp_makespan_call(&span, function, w->spots[a], task->operand_count);
                e->out->flops += function->flops;
                e->out->traffic[SBP_TENSOR_PARAM].in += function->traffic[SBP_TENSOR_PARAM].in;
            } else {
                sbp_makespan_run(&span, queue, task_seconds(e, sized, task, w->spots[a]), w->spots[a],
                                 task->operand_count);
            }
        }
        for (; m < w->move_count && w->moves[m].after <= a; m++) {
            add_traffic(e, sized, &w->moves[m]);
            sbp_makespan_run(&span, w->moves[m].queue, move_seconds(e, sized, &w->moves[m]),
                             (sbp_spot[]){w->moves[m].to, w->moves[m].from}, 2);
        }
    }
    for (int q = 0; q < SBP_QUEUE_COUNT; q++)
        e->out->busy[q] += span.busy[q];
    return sbp_makespan_end(&span);
}

/* Seconds of a step of one micro-batch, or of scoring when nothing trains. */
static void estimate_time(const evaluation *e, const sbp_program *sized) {
    const sbp_call_schedule *r = &e->s->call_schedule;
    sbp_cost *functions = SBP_NEW_ARRAY(e->arena, sbp_cost, sized->function_count + 1);
    for (int32_t f = 0; f < sized->function_count; f++)
        sbp_cost_function(sized, f, sized->t_max, &e->pl->base->target, &functions[f]);
    for (int32_t l = 0; l < r->list_count; l++)
        if (r->list_count == 1 || !sbp_entry_is(r->lists[l].entry, SBP_ENTRY_SCORE))
            e->out->seconds += walk_seconds(e, sized, &e->s->walks[l], functions);
}

static sbp_status evaluate_body(void *user) {
    evaluation *e = user;
    const sbp_schedule_options *o = &e->out->schedule;
    sbp_program *sized =
        sbp_memory_resize(e->arena, e->s->builder.program, e->out->t_max, o->chunk, o->head_chunk);
    SBP_TRY(sbp_memory_pack(e->arena, e->pl->diag, sized, &e->s->live, &e->pl->base->target));
    e->out->device_bytes = sized->arena_bytes[SBP_DEVICE];
    e->out->host_bytes = sized->arena_bytes[SBP_HOST];
    e->out->disk_bytes = sized->arena_bytes[SBP_DISK];
    if (e->timed)
        estimate_time(e, sized);
    return SBP_OK;
}

sbp_status sbp_evaluator_run(sbp_evaluator *pl, int64_t t, const sbp_schedule_options *o, bool timed,
                             sbp_plan_estimate *out) {
    sbp_skeleton *functions;
    sbp_structure *s = NULL;
    if (pl->tries_most > 0 && pl->tries == pl->tries_most) {
        pl->ended = true;
        return SBP_MACHINE;
    }
    pl->tries++;
    if (pl->tried)
        ++*pl->tried;
    SBP_TRY(sbp_evaluator_skeleton(pl, o, t, &functions));
    SBP_TRY(find_structure(pl, functions, o, t, &s));
    *out = (sbp_plan_estimate){.t_max = t, .schedule = *o};
    evaluation e = {.pl = pl, .arena = sbp_arena_create(), .s = s, .timed = timed, .out = out};
    if (!e.arena)
        return sbp_fail(pl->diag, SBP_MACHINE, "out of memory for trying a schedule");
    sbp_status status = sbp_guard(e.arena, pl->diag, evaluate_body, &e);
    sbp_arena_destroy(e.arena);
    return status;
}

typedef struct settings {
    sbp_evaluator pl;
    int64_t t_max;
    const sbp_schedule_options *schedules;
    int32_t count;
    sbp_plan_estimate *out;
} settings;

static sbp_status estimate(void *user) {
    settings *s = user;
    for (int32_t i = 0; i < s->count; i++)
        SBP_TRY(sbp_evaluator_run(&s->pl, s->t_max, &s->schedules[i], true, &s->out[i]));
    return SBP_OK;
}

sbp_status sbp_planner_estimate(const sbp_pipeline *pipeline, int64_t t_max,
                                const sbp_schedule_options *schedules, int32_t count,
                                sbp_plan_estimate *out) {
    settings s = {.pl = {.base = pipeline, .arena = pipeline->arena, .diag = pipeline->diag},
                  .t_max = t_max,
                  .schedules = schedules,
                  .count = count,
                  .out = out};
    sbp_status status = sbp_guard(pipeline->arena, pipeline->diag, estimate, &s);
    sbp_evaluator_end(&s.pl);
    return status;
}
