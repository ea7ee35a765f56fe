/* statistics.c: sums over all rows of a micro-batch that enter the loss.
 *
 * requires  @statistics: arguments named as statistics of @model, vectors; results [1], fp64, numbers of the
 *           micro-batch: of those called as results of @objective the sum counts
 * gives     the functions around the forward and before the backward (sbp_head_lowering)
 * preserves loss, metrics, gradients
 * breaks    nothing
 *
 * A statistic is zeroed before the forward, which alone adds to it (streambp.c), chunk by chunk and call by
 * call; where ranks have the micro-batch together their sums are added. Then it is whole, and so is its
 * cotangent: a vector, in which nothing is left of rows, that every chunk of the backward reads. So the
 * gradient of what is no sum over rows is exact, whatever the chunks are.
 *
 * Where @statistics wants a statistic of the whole step (SBP_OF_STEP), entry `count` adds it to a result
 * buffer of that name, for each micro-batch, before any of them is trained on; the runtime adds up those of
 * all ranks. */
#include <string.h>

#include "ir/graph/of_step.h"
#include "passes/lower/lowering.h"
#include "passes/stream/body.h"

typedef struct statistics_builder {
    sbp_program_builder *p;
    sbp_stages *stages;
    const sbp_func *func; /* without composites */
} statistics_builder;

static bool is_of_step(const char *name) {
    return strncmp(name, SBP_OF_STEP, sizeof SBP_OF_STEP - 1) == 0;
}

static sbp_view vector_of(const statistics_builder *s, const sbp_func *f, sbp_value arg, bool cotangent) {
    const sbp_value_info *info = &f->values[arg];
    if (is_of_step(info->name)) {
        int32_t buffer = sbp_lower_find_buffer(s->p, info->name);
        if (buffer < 0)
            buffer = sbp_lower_buffer(s->p, info->name, SBP_ROLE_RESULT, SBP_DEVICE, SBP_F64, 1,
                                      sbp_extent_const(1), sbp_type_row_elems(&info->type), -1);
        return sbp_view_buffer(s->p->program, buffer, 0);
    }
    return sbp_view_buffer(s->p->program, sbp_lower_statistic(s->p, info->name, &info->type, cotangent), 0);
}

static void add_command(const statistics_builder *s, sbp_function_lowering *function, sbp_body body) {
    SBP_PUSH(s->p->arena, function->items, function->item_count, function->item_capacity,
             (sbp_item){.node = body.nodes[0]});
}

/* A command for each statistic: it becomes zero, or what it is on all ranks of the context. */
static void for_each(const statistics_builder *s, sbp_function_lowering *function, bool sum) {
    for (int32_t i = 0; i < s->func->arg_count; i++) {
        sbp_body body = {0};
        const sbp_value_info *info = &s->func->values[s->func->args[i]];
        if (info->role != SBP_VALUE_STREAM || is_of_step(info->name))
            continue;
        sbp_view view = vector_of(s, s->func, s->func->args[i], false);
        if (sum)
            sbp_lower_collective(s->p, &body, SBP_CONTEXT_SUM, view, view, SBP_QUEUE_COMPUTE);
        else
            sbp_lower_fill(s->p, &body, view, 0);
        add_command(s, function, body);
    }
}

/* Where a result is added up over micro-batches: its place, if @objective has one of that name,
 * or a new one. */
static sbp_view place_of(const statistics_builder *s, const char *name, int32_t buffer, int32_t *known) {
    sbp_program *program = s->p->program;
    sbp_view view = {.ref = SBP_NO_VIEW};
    for (int32_t i = 0; i < program->output_count && view.ref == SBP_NO_VIEW; i++)
        if (strcmp(program->outputs[i].name, name) == 0) {
            view = sbp_view_buffer(program, program->outputs[i].buffer, 0);
            view.col = program->outputs[i].index;
        }
    if (view.ref == SBP_NO_VIEW) {
        SBP_PUSH(s->p->arena, program->outputs, program->output_count, program->output_capacity,
                 (sbp_output){.name = name, .buffer = buffer, .index = *known});
        view = sbp_view_buffer(program, buffer, 0);
        view.col = (*known)++;
    }
    view.cols = 1;
    return view;
}

static sbp_stage *make_stage(const statistics_builder *s, sbp_func *body) {
    sbp_stage *stage = sbp_lower_stage(s->p, body->name, body, -1, false, (sbp_row_order){0});
    for (int32_t i = 0; i < body->arg_count; i++)
        if (body->values[body->args[i]].role == SBP_VALUE_STREAM)
            stage->places[body->args[i]] = vector_of(s, body, body->args[i], false);
    return stage;
}

/* The results, each added to what it is so far. */
static sbp_status build_results(const statistics_builder *s, int32_t *out) {
    sbp_program_builder *p = s->p;
    int32_t count = s->func->result_count, known = 0;
    int32_t buffer = sbp_lower_buffer(p, "statistics", SBP_ROLE_RESULT, SBP_DEVICE, SBP_F64, 1,
                                      sbp_extent_const(1), count, -1);
    sbp_rewrite rw;
    sbp_rewrite_begin(&rw, p->module, s->func, p->diag);
    rw.to->name = "statistics.results";
    sbp_value *sums = SBP_NEW_ARRAY(p->arena, sbp_value, count + 1);
    for (int32_t i = 0; i < count; i++) {
        const char *name = sbp_func_free_name(rw.to, sbp_arena_printf(p->arena, "sum%d", i));
        sums[i] = sbp_func_add_arg(rw.to, SBP_VALUE_PARAM, name,
                                   &s->func->values[s->func->results[i].value].type, -1);
    }
    for (int32_t i = 0; i < s->func->op_count; i++)
        SBP_TRY(sbp_rewrite_copy(&rw, &s->func->ops[i]));
    for (int32_t i = 0; i < count; i++) {
        const sbp_result *result = &s->func->results[i];
        sbp_value sum = sbp_build2(&rw.builder, SBP_OP_add, sums[i], rw.map[result->value]);
        sbp_func_add_result(rw.to, sum, SBP_RESULT_VALUE, SBP_NO_VALUE, result->name);
    }
    SBP_TRY(rw.builder.status);
    sbp_function_lowering *function = sbp_lower_function(p, s->stages, "statistics");
    if (p->program->context > 1)
        for_each(s, function, true);
    sbp_stage *stage = make_stage(s, rw.to);
    for (int32_t i = 0; i < count; i++) {
        sbp_view place = place_of(s, s->func->results[i].name, buffer, &known);
        stage->places[sums[i]] = place;
        SBP_PUSH(p->arena, stage->stores, stage->store_count, stage->store_capacity,
                 (sbp_store){.value = rw.to->results[i].value, .to = place});
    }
    sbp_lower_add_stage(p, function, stage);
    *out = function->function;
    return SBP_OK;
}

/* The cotangents of statistics. */
static sbp_status build_slopes(const statistics_builder *s, int32_t *out) {
    sbp_func *slope;
    SBP_TRY(sbp_loss_slope(s->p, s->func, "statistics.gradient", &slope));
    if (slope->result_count == 0)
        return SBP_OK;
    sbp_function_lowering *function = sbp_lower_function(s->p, s->stages, "statistics.gradient");
    sbp_stage *stage = make_stage(s, slope);
    for (int32_t i = 0; i < slope->result_count; i++)
        SBP_PUSH(s->p->arena, stage->stores, stage->store_count, stage->store_capacity,
                 (sbp_store){.value = slope->results[i].value,
                             .to = vector_of(s, slope, slope->results[i].target, true)});
    sbp_lower_add_stage(s->p, function, stage);
    *out = function->function;
    return SBP_OK;
}

/* What is of the whole step, and what it adds: the statistic of that name, as it is. */
static sbp_status build_count(const statistics_builder *s, int32_t *out) {
    sbp_program_builder *p = s->p;
    sbp_func *body = sbp_func_create(p->arena, "statistics.count");
    sbp_builder b = sbp_builder_on(p->module, body, p->diag);
    b.node = "statistics";
    int32_t count = s->func->arg_count;
    sbp_value *sums = SBP_NEW_ARRAY(p->arena, sbp_value, count + 1);
    for (int32_t i = 0; i < count; i++) {
        const sbp_value_info *info = &s->func->values[s->func->args[i]];
        sums[i] = SBP_NO_VALUE;
        if (info->role != SBP_VALUE_STREAM || !is_of_step(info->name))
            continue;
        const char *of = info->name + sizeof SBP_OF_STEP - 1;
        for (int32_t k = 0; k < count; k++) {
            const sbp_value_info *part = &s->func->values[s->func->args[k]];
            if (strcmp(part->name, of) != 0)
                continue;
            sums[i] = sbp_func_add_arg(body, SBP_VALUE_STREAM, info->name, &info->type, -1);
            sbp_value add = sbp_func_add_arg(body, SBP_VALUE_STREAM, of, &part->type, -1);
            add = sbp_build2(&b, SBP_OP_add, sums[i], sbp_build_cast(&b, add, SBP_F64));
            if (b.status == SBP_OK)
                sbp_func_add_result(body, add, SBP_RESULT_VALUE, SBP_NO_VALUE, info->name);
        }
    }
    SBP_TRY(b.status);
    if (body->result_count == 0)
        return SBP_OK;
    sbp_function_lowering *function = sbp_lower_function(p, s->stages, "statistics.count");
    if (s->p->program->context > 1)
        for_each(s, function, true);
    sbp_stage *stage = make_stage(s, body);
    for (int32_t i = 0, r = 0; i < count; i++)
        if (sums[i] != SBP_NO_VALUE)
            SBP_PUSH(p->arena, stage->stores, stage->store_count, stage->store_capacity,
                     (sbp_store){.value = body->results[r++].value, .to = stage->places[sums[i]]});
    sbp_lower_add_stage(p, function, stage);
    *out = function->function;
    return SBP_OK;
}

const char *sbp_statistic_of(const sbp_func *f, sbp_value cotangent) {
    for (int32_t i = 0; i < f->result_count && f->values[cotangent].role == SBP_VALUE_COTANGENT; i++)
        if (f->results[i].role == SBP_RESULT_STATISTIC && f->results[i].value == f->values[cotangent].binding)
            return f->results[i].name;
    return NULL;
}

bool sbp_has_statistics(const sbp_func *f) {
    bool has = false;
    for (int32_t i = 0; i < f->result_count; i++)
        has |= f->results[i].role == SBP_RESULT_STATISTIC;
    return has;
}

/* Whether a backward reads the cotangent of a statistic, of which the loss is made. */
static bool is_differentiated(const statistics_builder *s, const sbp_derivatives *derivatives) {
    bool any = false;
    for (int32_t f = 0; f < s->p->module->func_count; f++)
        any |= derivatives->of[f].derivative && sbp_has_statistics(derivatives->of[f].derivative);
    return any && strcmp(s->func->results[0].name, "loss") == 0;
}

sbp_status sbp_statistics_lower(sbp_program_builder *p, const sbp_derivatives *derivatives,
                                sbp_stages *stages, sbp_head_lowering *out) {
    statistics_builder s = {.p = p, .stages = stages, .func = sbp_module_find_func(p->module, "statistics")};
    sbp_func *expanded;
    if (!s.func)
        return SBP_OK;
    SBP_TRY(sbp_expand_func(p->module, s.func, true, p->diag, &expanded));
    s.func = expanded;
    sbp_function_lowering *clear = sbp_lower_function(p, stages, "statistics.clear");
    for_each(&s, clear, false);
    out->clear = clear->function;
    SBP_TRY(build_results(&s, &out->statistics));
    SBP_TRY(build_count(&s, &out->count));
    return is_differentiated(&s, derivatives) ? build_slopes(&s, &out->slopes) : SBP_OK;
}
