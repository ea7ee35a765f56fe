/* calls: what is called, in which order: the call lists of `score`, `accumulate` and `update`, or `step`; and
 * of `count`, where the loss wants a statistic of the whole step: the forward up to the last segment that
 * adds to one. Where the program generates, `generate` and `choose`, too.
 *
 * requires  streambp, head, optimizer, schedule (sbp_callables)
 * gives     sbp_call_schedule: tensors and call lists
 * preserves everything there is
 * breaks    nothing
 *
 * Layers are the calls between the first (embedding) and the last (head). I_l is the input of layer l; I_L
 * the head's, which becomes the gradient stream G in place. Every k-th I_l is a checkpoint, the k - 1 behind
 * it live in buffers that all groups share; before a group's backward its layers but the last run forward
 * again (the last group's are still there). Side values, which more than the next segment reads, are tensors
 * of their own from the forward of their writer to its backward; their cotangents from the last reader's
 * backward to the writer's. `step` is: the gradient of a parameter is complete, so it is updated.
 *
 * tensors.c has what they name, gradients.c what happens to gradients. Nothing here knows where anything
 * lives: tasks name tensors, and offload brings them.
 */

#include "passes/calls/builder.h"

/* ---- calls ------------------------------------------------------------------------------------------- */

static void add_call(sbp_calls_builder *e, int32_t function, const sbp_operand *operands, int32_t count) {
    sbp_calls_add_task(e, SBP_TASK_CALL, operands, count)->function = function;
}

static sbp_operand fixed(int32_t buffer, int32_t element) {
    return (sbp_operand){.tensor = -1, .part = -1, .buffer = buffer, .element = element};
}

/* The input of layer l. */
static sbp_operand input_of(const sbp_calls_builder *e, int32_t l) {
    if (l == e->layers)
        return fixed(e->gradient, 0);
    int32_t within = (int32_t)(l % e->k);
    if (within > 0)
        return fixed(e->temporaries, within - 1);
    return sbp_calls_stored(sbp_calls_whole(e->checkpoints[l / e->k]), SBP_READ);
}

/* The tensor that a function of a call names as a side value. */
static int32_t side_tensor(const sbp_calls_builder *e, int32_t call, const sbp_side *side, bool generates) {
    const sbp_calls_side *of = sbp_calls_side_of(e, call, side);
    return side->cotangent ? of->cotangent : generates ? of->cached : of->tensor;
}

/* One call of a segment's function. input, output (y, or G): NULL when there is none. */
static sbp_status call_segment(sbp_calls_builder *e, int32_t call, int32_t function, const sbp_operand *input,
                               const sbp_operand *output, bool backward) {
    sbp_program_builder *p = e->p;
    const sbp_invocation *c = &p->module->calls[call];
    const sbp_func *f = p->module->funcs[c->func];
    if (function < 0)
        return sbp_fail(p->diag, SBP_INTERNAL, "calls: segment '%s' has no function for a call", f->name);
    const sbp_function *callee = &p->program->functions[function];
    const sbp_segment_kind *kind = call + 1 < p->module->call_count ? sbp_calls_kind(e, call) : NULL;
    bool generates = kind && function == kind->generate;
    int32_t kept = !kind ? 0 : generates ? kind->cached_count : kind->saved_count;
    const int32_t *tensors = generates ? &e->cached[call * e->max_cached] : &e->saved[call * e->max_saved];
    int32_t count = 0, number = 0;
    const sbp_function_lowering *lowering = e->from->stages->functions[function];
    sbp_operand *operands = SBP_NEW_ARRAY(p->arena, sbp_operand,
                                          2 + lowering->side_count + lowering->param_count + c->param_count +
                                              f->arg_count + kept + 1);
    if (input)
        operands[count++] = *input;
    if (output)
        operands[count++] = *output;
    for (int32_t i = 0; i < lowering->side_count; i++)
        operands[count++] =
            sbp_calls_stored(sbp_calls_whole(side_tensor(e, call, &lowering->sides[i], generates)), SBP_READ);
    for (int32_t i = 0, part = 0; i < lowering->param_count; i++, count++) {
        int32_t param = c->params[lowering->params[i]];
        sbp_tensor_part what = e->params[param];
        part = i > 0 && lowering->params[i] == lowering->params[i - 1] ? part + 1 : 0;
        if (e->pieces[param].count > 0) {
            what.part = e->pieces[param].format ? part : what.part;
            operands[count] = sbp_calls_stored(what, SBP_READ);
            operands[count].form = e->pieces[param].away ? SBP_FORM_HOST : SBP_FORM_STORED;
            continue;
        }
        bool as_it_is = callee->formals[count].dtype == e->r->tensors[what.tensor].stored;
        operands[count] = sbp_calls_stored(what, SBP_READ);
        operands[count].form = as_it_is ? SBP_FORM_STORED : SBP_FORM_COMPUTED;
    }
    for (int32_t i = 0; backward && i < f->arg_count; i++) {
        const sbp_value_info *info = &f->values[f->args[i]];
        if (info->role != SBP_VALUE_PARAM)
            continue;
        if (info->trainable)
            operands[count++] = sbp_calls_stored(sbp_calls_accum(e, call, number), SBP_UPDATE);
        number++;
    }
    for (int32_t i = 0; i < kept; i++)
        operands[count++] = sbp_calls_stored(sbp_calls_whole(tensors[i]), SBP_READ);
    if (count != callee->formal_count)
        return sbp_fail(p->diag, SBP_INTERNAL, "calls: %d views for the %d formals of @%s", count,
                        callee->formal_count, callee->name);
    for (int32_t i = 0; i < count; i++)
        operands[i].access = callee->formals[i].access;
    add_call(e, function, operands, count);
    return SBP_OK;
}

static void add_bare_call(sbp_calls_builder *e, int32_t function) {
    if (function >= 0)
        add_call(e, function, NULL, 0);
}

/* The segments up to `last`, by their function for training, which alone adds up statistics, or for
 * generating. */
static sbp_status run_segments(sbp_calls_builder *e, int32_t last, bool generates) {
    for (int32_t call = 0; call <= last; call++) {
        const sbp_segment_kind *kind = sbp_calls_kind(e, call);
        sbp_operand input = input_of(e, call > 0 ? call - 1 : 0), output = input_of(e, call);
        SBP_TRY(call_segment(e, call, generates ? kind->generate : kind->forward, call > 0 ? &input : NULL,
                             &output, false));
    }
    return SBP_OK;
}

/* The one forward that adds up statistics: others are called "recompute". */
static sbp_status forward(sbp_calls_builder *e, int32_t last) {
    add_bare_call(e, e->from->head->clear);
    return run_segments(e, last, false);
}

/* Cotangents of side values are zeroed before the first backward that adds to them. */
static void zero_sides(sbp_calls_builder *e, int32_t call) {
    int32_t function = sbp_calls_kind(e, call)->backward;
    const sbp_function_lowering *lowering = function < 0 ? NULL : e->from->stages->functions[function];
    for (int32_t i = 0; lowering && i < lowering->side_count; i++) {
        sbp_calls_side *side = sbp_calls_side_of(e, call, &lowering->sides[i]);
        if (lowering->sides[i].cotangent && !side->zeroed)
            sbp_calls_fill(e, side->cotangent);
        side->zeroed |= lowering->sides[i].cotangent;
    }
}

/* input: NULL for the first segment. */
static sbp_status backward_of(sbp_calls_builder *e, int32_t call, const sbp_operand *input) {
    sbp_operand g = fixed(e->gradient, 0);
    zero_sides(e, call);
    SBP_TRY(call_segment(e, call, sbp_calls_kind(e, call)->backward, input, &g, true));
    sbp_calls_flush_call(e, call);
    return SBP_OK;
}

static sbp_status backward(sbp_calls_builder *e) {
    for (int32_t group = e->groups - 1; group >= 0; group--) {
        int32_t first = (int32_t)(group * e->k), last = sbp_calls_end_of_group(e, group);
        if (!sbp_calls_runs(e, last))
            break;
        for (int32_t l = first; l + 1 < last && group + 1 < e->groups; l++) {
            sbp_operand input = input_of(e, l), output = input_of(e, l + 1);
            SBP_TRY(call_segment(e, l + 1, sbp_calls_kind(e, l + 1)->recompute, &input, &output, false));
        }
        for (int32_t l = last - 1; l >= first && sbp_calls_runs(e, l + 1); l--) {
            sbp_operand input = input_of(e, l);
            SBP_TRY(backward_of(e, l + 1, &input));
        }
    }
    return sbp_calls_runs(e, 0) ? backward_of(e, 0, NULL) : SBP_OK;
}

/* A function of the head that moves rows of its input; -1: none. */
static void move_rows(sbp_calls_builder *e, int32_t function) {
    sbp_operand updated = input_of(e, e->layers);
    updated.access = SBP_UPDATE;
    if (function >= 0)
        add_call(e, function, &updated, 1);
}

static sbp_status head(sbp_calls_builder *e, bool backward_follows) {
    const sbp_head_lowering *h = e->from->head;
    int32_t call = e->layers + 1;
    sbp_operand stream = input_of(e, e->layers);
    move_rows(e, h->gather);
    if (!backward_follows || h->first >= 0)
        SBP_TRY(call_segment(e, call, h->score, &stream, NULL, false));
    if (backward_follows && h->first < 0)
        add_bare_call(e, h->data);
    if (backward_follows && h->first < 0)
        SBP_TRY(call_segment(e, call, h->backward, &stream, NULL, true));
    add_call(e, h->objective, NULL, 0);
    if (backward_follows && h->first >= 0) {
        add_call(e, h->gradient, NULL, 0);
        SBP_TRY(call_segment(e, call, h->backward, &stream, NULL, true));
    }
    add_bare_call(e, h->statistics);
    if (backward_follows)
        add_bare_call(e, h->slopes);
    if (backward_follows)
        move_rows(e, h->scatter);
    if (backward_follows)
        sbp_calls_flush_call(e, call);
    return SBP_OK;
}

/* ---- entries ----------------------------------------------------------------------------------------- */

static sbp_status build_training(sbp_calls_builder *e) {
    sbp_calls_begin_list(e, e->step ? SBP_ENTRY_STEP : SBP_ENTRY_ACCUMULATE);
    sbp_calls_begin_gradients(e);
    SBP_TRY(forward(e, e->layers));
    SBP_TRY(head(e, true));
    SBP_TRY(backward(e));
    if (e->step)
        sbp_calls_finish_norm(e);
    return SBP_OK;
}

/* The statistics of a micro-batch, added to those of the step. */
static sbp_status count_statistics(sbp_calls_builder *e) {
    const sbp_module *m = e->p->module;
    int32_t last = -1;
    if (e->from->head->count < 0)
        return SBP_OK;
    for (int32_t call = 0; call <= e->layers; call++)
        if (sbp_has_statistics(m->funcs[m->calls[call].func]))
            last = call;
    sbp_calls_begin_list(e, SBP_ENTRY_COUNT);
    SBP_TRY(forward(e, last));
    add_bare_call(e, e->from->head->count);
    return SBP_OK;
}

/* `generate`: the rows behind those in the cache, and logits of those that count. `choose`: what labels are
 * worth there. */
static sbp_status build_generation(sbp_calls_builder *e) {
    const sbp_head_lowering *h = e->from->head;
    int32_t call = e->layers + 1;
    sbp_calls_begin_list(e, SBP_ENTRY_GENERATE);
    SBP_TRY(run_segments(e, e->layers, true));
    sbp_operand stream = input_of(e, e->layers);
    move_rows(e, h->gather);
    SBP_TRY(call_segment(e, call, h->logits, &stream, NULL, false));
    sbp_calls_begin_list(e, SBP_ENTRY_CHOOSE);
    return call_segment(e, call, h->choose, &stream, NULL, false);
}

sbp_status sbp_call_lists_make(sbp_program_builder *p, const sbp_callables *from, sbp_call_schedule *out) {
    bool trains = from->head->backward >= 0, optimizes = p->options.optimizer != SBP_OPTIMIZER_NONE;
    *out = (sbp_call_schedule){0};
    sbp_calls_builder e = {.p = p,
                           .from = from,
                           .r = out,
                           .layers = p->module->call_count - 2,
                           .k = p->options.schedule.checkpoint_every,
                           .ranks = p->options.ranks > 1 ? p->options.ranks : 1,
                           .step = trains && p->options.step && optimizes};
    if (e.layers < 0)
        return sbp_fail(p->diag, SBP_INPUT,
                        "the model cannot be cut into layers: nowhere between its embedding and its head "
                        "does a single value cross");
    e.k = e.k < 1 || !trains ? 1 : e.k;
    e.groups = (int32_t)sbp_ceil_div(e.layers, e.k);
    SBP_TRY(sbp_calls_make_lasting(&e));
    sbp_calls_make_streams(&e, trains);
    sbp_calls_make_sides(&e, trains);
    sbp_calls_make_saved(&e);
    if (p->options.generates)
        sbp_calls_make_cache(&e);
    if (trains && !e.step && optimizes)
        sbp_calls_update_list(&e);
    if (trains)
        SBP_TRY(build_training(&e));
    e.step = false;
    sbp_calls_begin_list(&e, SBP_ENTRY_SCORE);
    SBP_TRY(forward(&e, e.layers));
    SBP_TRY(head(&e, false));
    if (p->options.generates)
        SBP_TRY(build_generation(&e));
    SBP_TRY(count_statistics(&e));
    return p->status;
}

sbp_status sbp_pass_calls(sbp_program_builder *p, const sbp_callables *from, sbp_call_schedule **out) {
    *out = SBP_NEW(p->arena, sbp_call_schedule);
    return sbp_call_lists_make(p, from, *out);
}
