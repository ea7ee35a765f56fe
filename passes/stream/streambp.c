/* streambp: loops over chunks. One schedule serves all modes; (C, g, k, saved set) are its parameters.
 *
 * requires  chunk functions (split) and their reverse sweeps (autodiff)
 * gives     the program, begun; stages of the segments; sbp_segments
 * preserves gradients, for every partition of the rows
 * breaks    the graph: from here on there are stages, loops around SSA bodies bound to views
 *
 * For each kind of segment:
 *   forward   chunks ascending: y[i], keys and values appended; what the saved set names is kept
 *   recompute the same without what is saved already: checkpoints every k segments are run forward once more
 *   backward  chunks ascending: carries only. Then chunks descending: recompute chunk i (only what the
 *             reverse sweep needs), run the reverse sweep; weight gradients and dK, dV accumulate; dK_i, dV_i
 *             are final when chunk i is reached, since no chunk below reads rows of chunk i; dx_i overwrites
 *             dy_i in place
 *
 * States: row i of a buffer of N + 1 rows is the state before chunk i, row 0 is zero. The forward writes row
 * i + 1 and keeps them all; or, where they are dropped, it has one row, read and written over, and the
 * ascending pass of the backward makes all of them. `recompute` reads them, or has one row, too. The
 * cotangent is one row: zero behind the last chunk, chunk i makes of it that of row i.
 *
 * What an op has chosen (SBP_CLASS_CHOICE) is kept from the first forward whatever the saved set names, and
 * read by all that computes again: a choice that fell otherwise would make the gradient of another function.
 *
 * Statistics (sums over rows, which the objective may read: head.c) are added by the first forward alone,
 * those of all calls and chunks into one vector by name. Whatever computes again leaves them out. Their
 * cotangents are vectors, too, made before the first backward and read by every chunk of it.
 *
 * Side values have all their rows from the forward of their writer to its backward. One that is read as a
 * carry is the carry, full already; one that its writer carries is the writer's carry. So nothing but the
 * first forward writes them. Their cotangents are running sums, which the calls' list zeroes: a reader adds
 * to the rows (as a carry: attention does), its writer starts from them.
 */
#include <string.h>

#include "passes/stream/segment.h"

/* ---- functions --------------------------------------------------------------------------------------- */

typedef struct formals {
    int32_t input, output; /* -1: none */
    int32_t *sides;        /* as the function's list of them */
    int32_t *params;       /* per value of d, -1: none */
    int32_t *accums;
    int32_t *saved;  /* per saved value */
    int32_t *cached; /* per cached one */
} formals;

/* What a function of a segment is for. */
typedef enum purpose { FORWARD, AGAIN, BACKWARD, GENERATE } purpose;

static bool same_side(const sbp_side *a, const sbp_side *b) {
    return a->number == b->number && a->output == b->output && a->cotangent == b->cotangent;
}

static void add_side(sbp_segment_builder *b, sbp_function_lowering *lowering, sbp_side side) {
    for (int32_t i = 0; i < lowering->side_count; i++)
        if (same_side(&lowering->sides[i], &side))
            return;
    SBP_PUSH(b->p->arena, lowering->sides, lowering->side_count, lowering->side_capacity, side);
}

static bool is_read(const sbp_func *f, sbp_value v) {
    bool read = false;
    for (int32_t i = 0; i < f->op_count; i++)
        for (int32_t k = 0; k < f->ops[i].operand_count; k++)
            read |= f->ops[i].operands[k] == v;
    for (int32_t i = 0; i < f->result_count; i++)
        read |= f->results[i].value == v;
    return read;
}

/* Side values that the stages of a function read and write. */
static void find_sides(sbp_segment_builder *b, sbp_function_lowering *lowering, const sbp_body_cut *cuts,
                       int32_t count) {
    for (int32_t c = 0; c < count; c++) {
        const sbp_func *f = cuts[c].func;
        for (int32_t i = 0, output = 0; i < f->result_count; i++)
            if (f->results[i].role == SBP_RESULT_VALUE && output++ > 0)
                add_side(b, lowering, (sbp_side){.number = output - 1, .output = true});
        for (int32_t i = 0; i < f->arg_count; i++) {
            sbp_value o = cuts[c].origin[f->args[i]];
            if (o != SBP_NO_VALUE && sbp_segment_is_side(b, o) && is_read(f, f->args[i]))
                add_side(b, lowering, b->sides[o]);
        }
    }
}

/* Whether the values that it stands for are written as a carry, or their cotangents added to as that of one.
 */
static bool is_carried(const sbp_segment_builder *b, const sbp_side *side) {
    for (int32_t i = 0; i < b->d->arg_count; i++) {
        const sbp_value_info *info = &b->d->values[b->d->args[i]];
        bool carry = info->role == SBP_VALUE_CARRY;
        if (info->role == SBP_VALUE_COTANGENT)
            carry = b->d->values[info->binding].role == SBP_VALUE_CARRY;
        if (carry && same_side(&b->sides[b->d->args[i]], side))
            return true;
    }
    return false;
}

/* How a function uses a side value. forward: the one that writes. */
static sbp_access side_access(const sbp_segment_builder *b, const sbp_side *side, bool forward) {
    if (side->cotangent)
        return side->output && !is_carried(b, side) ? SBP_READ : SBP_UPDATE;
    if (!side->output || !forward)
        return SBP_READ;
    return is_carried(b, side) ? SBP_UPDATE : SBP_WRITE;
}

static void add_side_formals(sbp_segment_builder *b, sbp_function_lowering *lowering, bool forward,
                             int32_t *out) {
    for (int32_t i = 0; i < lowering->side_count; i++) {
        const sbp_side *side = &lowering->sides[i];
        const sbp_type *type = &(side->output ? b->kind->outputs : b->kind->inputs)[side->number].type;
        const char *name = sbp_arena_printf(b->p->arena, "%s%s%d", side->cotangent ? "d_" : "",
                                            side->output ? "y" : "x", side->number);
        out[i] = sbp_lower_formal(b->p, lowering->function, name, side_access(b, side, forward),
                                  side->cotangent ? sbp_lower_wide(type->dtype) : type->dtype,
                                  sbp_extent_symbol(sbp_lower_kept_rows(type), 1), sbp_type_row_elems(type));
    }
}

static void add_kept_formals(sbp_segment_builder *b, int32_t function, const char *prefix,
                             const sbp_saved *kept, int32_t count, purpose why, int32_t *out) {
    for (int32_t i = 0; i < count; i++) {
        sbp_access writes = kept[i].is_carry ? SBP_UPDATE : SBP_WRITE;
        out[i] = sbp_lower_formal(
            b->p, function, sbp_arena_printf(b->p->arena, "%s.%s", prefix, kept[i].name),
            why == FORWARD || why == GENERATE ? writes : SBP_READ, kept[i].dtype, kept[i].rows, kept[i].cols);
    }
}

static formals add_formals(sbp_segment_builder *b, sbp_function_lowering *lowering, const sbp_body_cut *cuts,
                           int32_t count, purpose why) {
    sbp_program_builder *p = b->p;
    int32_t function = lowering->function;
    const sbp_func *d = b->d, *bodies[2];
    formals f = {.input = -1, .output = -1};
    f.params = SBP_NEW_ARRAY(p->arena, int32_t, d->value_count + 1);
    f.accums = SBP_NEW_ARRAY(p->arena, int32_t, d->value_count + 1);
    f.saved = SBP_NEW_ARRAY(p->arena, int32_t, b->kind->saved_count + 1);
    f.cached = SBP_NEW_ARRAY(p->arena, int32_t, b->kind->cached_count + 1);
    bool backward = why == BACKWARD;
    sbp_extent t = sbp_extent_symbol(SBP_T, 1);
    const sbp_type *y = &d->values[b->output].type;
    if (b->input != SBP_NO_VALUE)
        f.input = sbp_lower_formal(p, function, "x", SBP_READ, d->values[b->input].type.dtype, t,
                                   sbp_type_row_elems(&d->values[b->input].type));
    f.output = sbp_lower_formal(p, function, backward ? "G" : "y", backward ? SBP_UPDATE : SBP_WRITE,
                                y->dtype, t, sbp_type_row_elems(y));
    find_sides(b, lowering, cuts, count);
    f.sides = SBP_NEW_ARRAY(p->arena, int32_t, lowering->side_count + 1);
    add_side_formals(b, lowering, why == FORWARD || why == GENERATE, f.sides);
    for (int32_t i = 0; i < count; i++)
        bodies[i] = cuts[i].func;
    sbp_lower_param_formals(p, lowering, d, b->number, bodies, count, f.params, backward ? f.accums : NULL);
    if (why == GENERATE)
        add_kept_formals(b, function, "cache", b->kind->cached, b->kind->cached_count, why, f.cached);
    else
        add_kept_formals(b, function, "saved", b->kind->saved, b->kind->saved_count, why, f.saved);
    return f;
}

typedef struct stage_context {
    sbp_segment_builder *b;
    sbp_function_lowering *function;
    formals formals;
    int32_t *carries; /* per carry argument of d: buffer of the function, -1 */
    int32_t *dcarries;
    bool running; /* of a state that is not kept there is one row, not one for each chunk */
    bool generates;
} stage_context;

/* cuts: bodies of the stages that the function will have. */
static stage_context begin_function(sbp_segment_builder *b, const char *suffix, const sbp_body_cut *cuts,
                                    int32_t count, purpose why) {
    sbp_program_builder *p = b->p;
    stage_context c = {.b = b, .running = why == FORWARD || why == AGAIN, .generates = why == GENERATE};
    c.function = sbp_lower_function(p, b->stages, sbp_arena_printf(p->arena, "%s.%s", b->name, suffix));
    c.formals = add_formals(b, c.function, cuts, count, why);
    c.carries = SBP_NEW_ARRAY(p->arena, int32_t, b->d->value_count + 1);
    c.dcarries = SBP_NEW_ARRAY(p->arena, int32_t, b->d->value_count + 1);
    for (int32_t v = 0; v < b->d->value_count; v++)
        c.carries[v] = c.dcarries[v] = -1;
    return c;
}

/* The function's own buffer of a carry (or its cotangent), on first use: all of it. */
static sbp_view carry_view(stage_context *c, sbp_value root, bool cotangent, const sbp_type *type) {
    sbp_program_builder *p = c->b->p;
    const sbp_function *function = &p->program->functions[c->function->function];
    bool state = sbp_body_is_state(c->b->d, root);
    if (c->generates && c->b->cached_number[root] >= 0)
        return sbp_view_formal(function, c->formals.cached[c->b->cached_number[root]]);
    if (!cotangent && c->b->carry_saved[root])
        return sbp_view_formal(function, c->formals.saved[c->b->saved_number[root]]);
    int32_t *buffer = cotangent ? &c->dcarries[root] : &c->carries[root];
    sbp_extent rows =
        state && (cotangent || c->running) ? sbp_extent_const(1) : sbp_segment_rows_to_keep(c->b, root);
    if (*buffer < 0)
        *buffer = sbp_lower_buffer(p,
                                   sbp_arena_printf(p->arena, "%s.%s%s", function->name,
                                                    cotangent ? "d_" : "", c->b->d->values[root].name),
                                   state ? SBP_ROLE_STATES : SBP_ROLE_CARRY, SBP_DEVICE, type->dtype, 1, rows,
                                   sbp_type_row_elems(type), c->function->function);
    return sbp_view_buffer(p->program, *buffer, 0);
}

/* A state before the chunk, or behind it: of as many rows as chunks one; of one row all there is. */
static sbp_view state_view(stage_context *c, sbp_value root, const sbp_type *type, bool behind) {
    sbp_view view = carry_view(c, root, false, type);
    if (view.length.base.c[SBP_N] == 0)
        return view;
    view.start = (sbp_index){.base = sbp_extent_const(behind), .step = sbp_extent_const(1), .column = -1};
    view.length = (sbp_index){.base = sbp_extent_const(1), .column = -1};
    return view;
}

/* A command of its own, before the stages to come. */
static void add_fill(stage_context *c, sbp_view view) {
    sbp_program_builder *p = c->b->p;
    sbp_body fill = {0};
    sbp_lower_fill(p, &fill, view, 0);
    SBP_PUSH(p->arena, c->function->items, c->function->item_count, c->function->item_capacity,
             (sbp_item){.node = fill.nodes[0]});
}

/* The states that a body makes are zero before the first chunk. */
static void begin_states(stage_context *c, const sbp_body_cut *cut) {
    for (int32_t i = 0; i < cut->func->result_count; i++) {
        const sbp_result *result = &cut->func->results[i];
        sbp_value root = result->role == SBP_RESULT_CARRY ? cut->origin[result->target] : SBP_NO_VALUE;
        if (root == SBP_NO_VALUE || c->b->d->values[root].role != SBP_VALUE_CARRY ||
            !sbp_body_is_state(c->b->d, root))
            continue;
        sbp_view first = carry_view(c, root, false, &c->b->d->values[root].type);
        first.length = (sbp_index){.base = sbp_extent_const(1), .column = -1};
        add_fill(c, first);
    }
}

/* The vector of a statistic, or of its cotangent. */
static sbp_view statistic_view(stage_context *c, const char *name, bool cotangent, const sbp_type *type) {
    return sbp_view_buffer(c->b->p->program, sbp_lower_statistic(c->b->p, name, type, cotangent), 0);
}

/* All rows of a side value; nowhere when the function does not name it. */
static sbp_view side_view(const stage_context *c, const sbp_side *side) {
    for (int32_t i = 0; i < c->function->side_count; i++)
        if (same_side(&c->function->sides[i], side))
            return sbp_view_formal(&c->b->p->program->functions[c->function->function], c->formals.sides[i]);
    return sbp_view_none();
}

/* Where an argument of a body is that is a side value, or the cotangent of one. */
static sbp_view side_place(const stage_context *c, const sbp_stage *stage, sbp_value_role role, sbp_value o) {
    sbp_view whole = side_view(c, &c->b->sides[o]);
    bool carry = role == SBP_VALUE_CARRY || role == SBP_VALUE_COTANGENT;
    return whole.ref == SBP_NO_VIEW || carry ? whole : sbp_lower_rows_of(stage, whole);
}

/* While generating nobody reads what the forward saves; it is rounded to where it would be kept, so that what
 * is computed from it has the same bits. */
static sbp_view scratch_of(const stage_context *c, const sbp_saved *saved) {
    sbp_program_builder *p = c->b->p;
    const sbp_function *function = &p->program->functions[c->function->function];
    int32_t buffer =
        sbp_lower_buffer(p, sbp_arena_printf(p->arena, "%s.%s", function->name, saved->name), SBP_ROLE_SAVED,
                         SBP_DEVICE, saved->dtype, 1, saved->rows, saved->cols, c->function->function);
    return sbp_view_buffer(p->program, buffer, 0);
}

/* Where a result of a body goes; nowhere when it stays where it is. output: number of a plain result. */
static sbp_view result_place(const stage_context *c, const sbp_body_cut *cut, const sbp_result *result,
                             int32_t output) {
    const sbp_function *function = &c->b->p->program->functions[c->function->function];
    bool is_stream =
        result->role == SBP_RESULT_GRADIENT && cut->func->values[result->target].role == SBP_VALUE_STREAM;
    if (is_stream && cut->origin[result->target] != c->b->input) {
        sbp_side side = c->b->sides[cut->origin[result->target]];
        side.cotangent = true;
        return side_view(c, &side);
    }
    if (result->role == SBP_RESULT_VALUE && output > 0)
        return side_view(c, &(sbp_side){.number = output, .output = true});
    if (result->role == SBP_RESULT_SAVED && c->generates)
        return scratch_of(c, &c->b->kind->saved[result->target]);
    if (result->role == SBP_RESULT_SAVED)
        return sbp_view_formal(function, c->formals.saved[result->target]);
    return is_stream || result->role == SBP_RESULT_VALUE ? sbp_view_formal(function, c->formals.output)
                                                         : sbp_view_none();
}

/* Makes a stage of a body and binds what comes from outside it. */
static void add_stage(stage_context *c, const char *suffix, const sbp_body_cut *cut, bool descending) {
    sbp_program_builder *p = c->b->p;
    const sbp_func *d = c->b->d;
    const sbp_function *function = &p->program->functions[c->function->function];
    sbp_stage *stage = sbp_lower_stage(p, sbp_arena_printf(p->arena, "%s.%s", function->name, suffix),
                                       cut->func, c->b->chunk_table, descending, (sbp_row_order){0});
    stage->generates = c->generates;
    for (int32_t i = 0; i < cut->func->arg_count; i++) {
        sbp_value v = cut->func->args[i], o = cut->origin[v];
        const sbp_value_info *info = &cut->func->values[v];
        sbp_view *place = &stage->places[v];
        const char *statistic = o == SBP_NO_VALUE ? NULL : sbp_statistic_of(d, o);
        if (statistic) {
            *place = statistic_view(c, statistic, true, &info->type);
        } else if (o != SBP_NO_VALUE && sbp_segment_is_side(c->b, o)) {
            *place = side_place(c, stage, info->role, o);
        } else if (info->role == SBP_VALUE_PARAM) {
            *place = sbp_view_formal(function, c->formals.params[o]);
            stage->pieces[v] = c->function->pieces[o];
            if (info->trainable && c->formals.accums[o] > 0)
                stage->accums[v] = sbp_view_formal(function, c->formals.accums[o]);
        } else if (info->role == SBP_VALUE_CARRY) {
            *place = sbp_body_is_state(d, o) ? state_view(c, o, &info->type, false)
                                             : carry_view(c, o, false, &info->type);
        } else if (info->role == SBP_VALUE_COTANGENT) { /* of a carry */
            *place = carry_view(c, d->values[o].binding, true, &info->type);
        } else if (info->role == SBP_VALUE_STREAM) {
            int32_t formal = o == c->b->input ? c->formals.input
                             : c->b->saved[o] ? c->formals.saved[c->b->saved_number[o]]
                                              : c->formals.output; /* cotangent of y: the gradient stream */
            *place = sbp_lower_rows_of(stage, sbp_view_formal(function, formal));
        }
    }
    for (int32_t i = 0, outputs = 0; i < cut->func->result_count; i++) {
        const sbp_result *result = &cut->func->results[i];
        sbp_value root = result->role == SBP_RESULT_CARRY ? cut->origin[result->target] : SBP_NO_VALUE;
        if (root != SBP_NO_VALUE && d->values[root].role == SBP_VALUE_CARRY && sbp_body_is_state(d, root))
            stage->places[result->value] = state_view(c, root, &d->values[root].type, true);
        if (result->role == SBP_RESULT_STATISTIC)
            stage->accums[result->value] =
                statistic_view(c, result->name, false, &cut->func->values[result->value].type);
        sbp_view whole = result_place(c, cut, result, outputs);
        outputs += result->role == SBP_RESULT_VALUE;
        if (whole.ref == SBP_NO_VIEW)
            continue;
        sbp_view to = sbp_lower_rows_of(stage, whole);
        SBP_PUSH(p->arena, stage->stores, stage->store_count, stage->store_capacity,
                 (sbp_store){.value = result->value, .to = to});
    }
    sbp_lower_add_stage(p, c->function, stage);
}

static bool keeps_forward(const void *user, const sbp_result *result) {
    (void)user;
    return result->role == SBP_RESULT_VALUE || result->role == SBP_RESULT_SAVED ||
           result->role == SBP_RESULT_STATISTIC ||
           (result->role == SBP_RESULT_CARRY &&
            ((const sbp_segment_builder *)user)->d->values[result->target].role == SBP_VALUE_CARRY);
}

/* Carries that the backward has to fill again. */
static bool keeps_carries(const void *user, const sbp_result *result) {
    const sbp_segment_builder *b = user;
    return result->role == SBP_RESULT_CARRY && b->d->values[result->target].role == SBP_VALUE_CARRY &&
           !b->carry_saved[result->target];
}

/* y alone, and what the next chunk needs for it: side values are there. */
static bool keeps_output(const void *user, const sbp_result *result) {
    const sbp_segment_builder *b = user;
    return result == &b->d->results[b->output_result] ||
           (keeps_carries(user, result) && sbp_body_is_state(b->d, result->target));
}

static sbp_status make_body(sbp_segment_builder *b, const bool *given, const bool *filled,
                            bool (*keeps)(const void *, const sbp_result *), const char *suffix,
                            sbp_body_cut *out) {
    return sbp_body_make(
        b->p->module,
        &(sbp_body_spec){.from = b->d, .given = given, .keeps = keeps, .filled = filled, .user = b},
        sbp_arena_printf(b->p->arena, "%s.%s", b->name, suffix), b->p->diag, out);
}

static sbp_status build_forward(sbp_segment_builder *b) {
    bool *none = SBP_NEW_ARRAY(b->p->arena, bool, b->d->value_count + 1);
    bool *full = SBP_NEW_ARRAY(b->p->arena, bool, b->d->value_count + 1);
    for (int32_t v = 0; v < b->d->value_count; v++)
        full[v] = sbp_segment_is_side(b, v) && !b->sides[v].output && b->d->values[v].role == SBP_VALUE_CARRY;
    sbp_body_cut cut;
    SBP_TRY(make_body(b, none, full, keeps_forward, "forward", &cut));
    stage_context c = begin_function(b, "forward", &cut, 1, FORWARD);
    begin_states(&c, &cut);
    add_stage(&c, "chunk", &cut, false);
    b->kind->forward = c.function->function;
    return SBP_OK;
}

/* As the forward, but for what is added up; carries are those of the rows before, and stay. */
static bool keeps_generated(const void *user, const sbp_result *result) {
    return result->role != SBP_RESULT_STATISTIC && keeps_forward(user, result);
}

static sbp_status build_generate(sbp_segment_builder *b) {
    sbp_program_builder *p = b->p;
    bool *none = SBP_NEW_ARRAY(p->arena, bool, b->d->value_count + 1);
    bool *full = SBP_NEW_ARRAY(p->arena, bool, b->d->value_count + 1);
    for (int32_t v = 0; v < b->d->value_count; v++) {
        const sbp_value_info *info = &b->d->values[v];
        bool carry = info->role == SBP_VALUE_CARRY;
        full[v] = sbp_segment_is_side(b, v) && !b->sides[v].output && carry;
        if (!carry || sbp_segment_is_side(b, v))
            continue;
        b->cached_number[v] = b->kind->cached_count;
        sbp_extent rows = sbp_body_is_state(b->d, v) ? sbp_extent_const(1) : sbp_segment_rows_to_keep(b, v);
        SBP_PUSH(p->arena, b->kind->cached, b->kind->cached_count, b->kind->cached_capacity,
                 (sbp_saved){.name = info->name,
                             .dtype = info->type.dtype,
                             .cols = sbp_type_row_elems(&info->type),
                             .rows = rows,
                             .is_carry = true});
    }
    sbp_body_cut cut;
    SBP_TRY(make_body(b, none, full, keeps_generated, "generate", &cut));
    stage_context c = begin_function(b, "generate", &cut, 1, GENERATE);
    add_stage(&c, "chunk", &cut, false);
    b->kind->generate = c.function->function;
    return SBP_OK;
}

static sbp_status build_recompute(sbp_segment_builder *b) {
    bool *given = SBP_NEW_ARRAY(b->p->arena, bool, b->d->value_count + 1);
    for (int32_t v = 0; v < b->d->value_count; v++)
        given[v] = b->saved[v] && v != b->output;
    sbp_body_cut cut;
    SBP_TRY(make_body(b, given, b->carry_saved, keeps_output, "recompute", &cut));
    stage_context c = begin_function(b, "recompute", &cut, 1, AGAIN);
    begin_states(&c, &cut);
    add_stage(&c, "chunk", &cut, false);
    b->kind->recompute = c.function->function;
    return SBP_OK;
}

static sbp_status build_backward(sbp_segment_builder *b) {
    sbp_program_builder *p = b->p;
    bool *all = SBP_NEW_ARRAY(p->arena, bool, b->d->value_count + 1);
    for (int32_t v = 0; v < b->d->value_count; v++)
        all[v] = b->d->values[v].role == SBP_VALUE_CARRY;
    sbp_body_cut main, carries;
    SBP_TRY(make_body(b, b->saved, all, sbp_segment_keeps_backward, "backward", &main));
    SBP_TRY(make_body(b, b->saved, b->carry_saved, keeps_carries, "carries", &carries));
    stage_context c = begin_function(b, "backward", (const sbp_body_cut[]){main, carries},
                                     carries.func->op_count > 0 ? 2 : 1, BACKWARD);
    for (int32_t i = 0; i < main.func->arg_count; i++) {
        const sbp_value_info *info = &main.func->values[main.func->args[i]];
        if (info->role != SBP_VALUE_COTANGENT || sbp_segment_is_side(b, main.origin[main.func->args[i]]))
            continue;
        add_fill(&c,
                 carry_view(&c, b->d->values[main.origin[main.func->args[i]]].binding, true, &info->type));
    }
    if (carries.func->op_count > 0)
        begin_states(&c, &carries);
    if (carries.func->op_count > 0)
        add_stage(&c, "carries", &carries, false);
    add_stage(&c, "chunk", &main, true);
    b->kind->backward = c.function->function;
    return SBP_OK;
}

/* Saved values become results, so that the forward body keeps them. */
static void add_saved_results(sbp_segment_builder *b) {
    const sbp_func *of = b->d;
    if (b->kind->saved_count == 0)
        return;
    sbp_func *d = SBP_NEW(b->p->arena, sbp_func);
    *d = *of; /* with results of its own */
    d->results = SBP_NEW_ARRAY(b->p->arena, sbp_result, d->result_count + 1);
    d->result_capacity = d->result_count;
    memcpy(d->results, of->results, (size_t)d->result_count * sizeof *d->results);
    for (int32_t v = 0; v < d->value_count; v++)
        if (b->saved[v] && b->saved_number[v] >= 0)
            sbp_func_add_result(d, v, SBP_RESULT_SAVED, b->saved_number[v], NULL);
    b->d = d;
}

/* The first carry that a value is appended to; SBP_NO_VALUE: none. */
static sbp_value first_carry(const sbp_segment_builder *b, sbp_value v) {
    for (int32_t i = 0; i < b->forward_ops; i++)
        if (b->d->ops[i].code == SBP_OP_append && b->d->ops[i].operands[1] == v)
            return sbp_body_carry_root(b->d, b->d->ops[i].results[0]);
    return SBP_NO_VALUE;
}

/* Carries that side values are: of one that is read, all; of one that is written, the first. */
static void mark_carries(sbp_segment_builder *b, sbp_value v, sbp_side side) {
    sbp_value first = first_carry(b, v);
    for (int32_t i = 0; i < b->forward_ops; i++) {
        const sbp_op *op = &b->d->ops[i];
        sbp_value root = op->code == SBP_OP_append && op->operands[1] == v
                             ? sbp_body_carry_root(b->d, op->results[0])
                             : SBP_NO_VALUE;
        if (root != SBP_NO_VALUE && (root == first || !side.output))
            b->sides[root] = side;
    }
}

/* Which cotangent of the derivative is whose: of carries the first one's; of results in their order, y's
 * first. */
static void mark_cotangents(sbp_segment_builder *b) {
    const sbp_func *d = b->d;
    bool *matched = SBP_NEW_ARRAY(b->p->arena, bool, b->kind->output_count + 1);
    for (int32_t i = 0; i < d->arg_count; i++) {
        sbp_value arg = d->args[i], of = d->values[arg].binding;
        if (d->values[arg].role != SBP_VALUE_COTANGENT)
            continue;
        sbp_side side = b->sides[of];
        if (d->values[of].role == SBP_VALUE_CARRY) {
            for (int32_t k = 0; k < b->forward_ops; k++) /* another carry of the value */
                if (d->ops[k].code == SBP_OP_append && sbp_body_carry_root(d, d->ops[k].results[0]) == of &&
                    first_carry(b, d->ops[k].operands[1]) != of)
                    side.number = 0;
            if (side.number > 0 && !side.output && !b->kind->inputs[side.number].wanted)
                side.number = 0; /* added to for nothing: its own */
        } else if (d->values[of].role == SBP_VALUE_OP && !sbp_statistic_of(d, arg)) {
            int32_t number = 0, output = -1;
            for (int32_t r = 0; r < d->result_count && output < 0; r++)
                if (d->results[r].role == SBP_RESULT_VALUE) {
                    if (d->results[r].value == of && !matched[number])
                        output = number;
                    number++;
                }
            side = (sbp_side){.number = output > 0 ? output : 0, .output = true};
            matched[output < 0 ? 0 : output] = true;
        }
        side.cotangent = true;
        b->sides[arg] = side;
    }
}

static sbp_crossing crossing(const sbp_segment_builder *b, sbp_value v) {
    return (sbp_crossing){.name = b->d->values[v].name, .type = b->d->values[v].type};
}

static sbp_status find_crossings(sbp_segment_builder *b) {
    const sbp_func *d = b->d;
    sbp_segment_kind *kind = b->kind;
    b->input = b->output = SBP_NO_VALUE;
    for (int32_t i = 0; i < d->arg_count; i++) {
        sbp_value v = d->args[i];
        if (d->values[v].role != SBP_VALUE_STREAM)
            continue;
        if (kind->input_count == 0)
            b->input = v;
        else
            b->sides[v] = (sbp_side){.number = kind->input_count};
        sbp_crossing in = crossing(b, v);
        in.wanted = b->of->wanted[kind->input_count];
        SBP_PUSH(b->p->arena, kind->inputs, kind->input_count, kind->input_capacity, in);
        if (sbp_segment_is_side(b, v))
            mark_carries(b, v, b->sides[v]);
    }
    for (int32_t i = 0; i < d->result_count; i++) {
        sbp_value v = d->results[i].value;
        if (d->results[i].role != SBP_RESULT_VALUE)
            continue;
        if (kind->output_count == 0) {
            b->output = v;
            b->output_result = i;
        } else {
            b->sides[v] = (sbp_side){.number = kind->output_count, .output = true};
            mark_carries(b, v, b->sides[v]);
        }
        SBP_PUSH(b->p->arena, kind->outputs, kind->output_count, kind->output_capacity, crossing(b, v));
    }
    if (kind->output_count == 0)
        return sbp_fail(b->p->diag, SBP_INTERNAL, "streambp: @%s has no output", b->name);
    mark_cotangents(b);
    return SBP_OK;
}

static sbp_status build_kind(sbp_segment_builder b) {
    sbp_program_builder *p = b.p;
    b.d = b.of->derivative ? b.of->derivative : b.of->func;
    b.forward_ops = b.of->func->op_count;
    b.name = p->module->funcs[b.number]->name;
    b.saved = SBP_NEW_ARRAY(p->arena, bool, b.d->value_count + 1);
    b.carry_saved = SBP_NEW_ARRAY(p->arena, bool, b.d->value_count + 1);
    b.saved_number = SBP_NEW_ARRAY(p->arena, int32_t, b.d->value_count + 1);
    b.cached_number = SBP_NEW_ARRAY(p->arena, int32_t, b.d->value_count + 1);
    for (int32_t v = 0; v < b.d->value_count; v++)
        b.cached_number[v] = -1;
    b.sides = SBP_NEW_ARRAY(p->arena, sbp_side, b.d->value_count + 1);
    SBP_TRY(find_crossings(&b));
    SBP_TRY(sbp_segment_choose_saved(&b));
    add_saved_results(&b);
    SBP_TRY(build_forward(&b));
    if (p->options.generates)
        SBP_TRY(build_generate(&b));
    if (!b.of->derivative && b.kind->saved_count == 0 && !sbp_has_statistics(b.d))
        b.kind->recompute = b.kind->forward; /* it saves and adds nothing that could be left out */
    else if (sbp_segment_runs_again(&b))
        SBP_TRY(build_recompute(&b));
    return b.of->derivative ? build_backward(&b) : SBP_OK;
}

static int32_t add_table(sbp_program_builder *p, const char *name, sbp_symbol step) {
    SBP_PUSH(p->arena, p->program->tables, p->program->table_count, p->program->table_capacity,
             (sbp_chunk_table){.name = name, .step = step});
    return p->program->table_count - 1;
}

sbp_status sbp_pass_streambp(const sbp_pass_input *in, sbp_module *m, const sbp_derivatives *derivatives,
                             sbp_program_builder *program, sbp_stages *stages, sbp_segments *out) {
    sbp_lower_begin(in, m, program);
    out->kinds = SBP_NEW_ARRAY(in->arena, sbp_segment_kind, m->func_count);
    out->chunk_table = add_table(program, "chunk", SBP_C);
    out->head_table = add_table(program, "piece", SBP_H);
    int32_t head = m->calls[m->call_count - 1].func;
    for (int32_t f = 0; f < m->func_count; f++) {
        bool called = false;
        out->kinds[f].forward = out->kinds[f].recompute = out->kinds[f].backward = -1;
        out->kinds[f].generate = -1;
        for (int32_t c = 0; c < m->call_count; c++)
            called |= m->calls[c].func == f;
        if (called && f != head)
            SBP_TRY(build_kind((sbp_segment_builder){.p = program,
                                                     .of = &derivatives->of[f],
                                                     .stages = stages,
                                                     .chunk_table = out->chunk_table,
                                                     .kind = &out->kinds[f],
                                                     .number = f}));
    }
    return SBP_OK;
}
