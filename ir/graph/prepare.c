/* prepare.c: @prepare, parsed, checked and run. */
#include "ir/graph/prepare.h"

#include <math.h>
#include <string.h>

#include "ir/graph/op.h"

/* Memory of values: a value has a slot from where it is computed to where it is read for the last time. */
typedef struct sbp_prepare_graph {
    const sbp_func *func;
    int32_t *slots; /* per value: slot of its kind, -1 for row inputs */
    int32_t slot_count[SBP_SYMBOL_COUNT];
    int32_t *arg_places; /* per argument: its number among row inputs or scalars */
} sbp_prepare_graph;

static sbp_symbol rows_of(const sbp_func *func, sbp_value value) {
    return sbp_type_rows(&func->values[value].type);
}

/* ---- checks ------------------------------------------------------------------------------------------- */

static bool is_allowed(sbp_opcode code) {
    static const sbp_opcode list[] = {SBP_OP_cast,      SBP_OP_constant,  SBP_OP_stop_gradient,
                                      SBP_OP_sum_rows,  SBP_OP_group_sum, SBP_OP_group_take,
                                      SBP_OP_broadcast, SBP_OP_scan};
    if (sbp_opcode_rowop(code) != SBP_ROWOP_COUNT)
        return true;
    for (int i = 0; i < SBP_COUNT(list); i++)
        if (list[i] == code)
            return true;
    return false;
}

static sbp_status check_values(const sbp_func *func, sbp_diag *diag, const char *name) {
    for (int32_t v = 0; v < func->value_count; v++) {
        const sbp_value_info *info = &func->values[v];
        sbp_symbol rows = sbp_type_rows(&info->type);
        bool argument = info->role == SBP_VALUE_ROW ? rows == SBP_T : info->role == SBP_VALUE_SCALAR;
        if (info->role != SBP_VALUE_OP && !argument)
            return sbp_fail(diag, SBP_INPUT, "%s: argument '%.80s' is neither a column nor a scalar", name,
                            info->name);
        if (info->type.rank > 1 || (info->type.rank == 1 && rows != SBP_T && rows != SBP_S))
            return sbp_fail(diag, SBP_INPUT, "%s: value '%.80s' is neither a vector over rows nor a number",
                            name, info->name);
    }
    for (int32_t i = 0; i < func->op_count; i++)
        if (!is_allowed(func->ops[i].code))
            return sbp_fail(diag, SBP_INPUT, "%s: %s is not for @prepare", name,
                            sbp_opcode_name(func->ops[i].code));
    for (int32_t i = 0; i < func->result_count; i++)
        if (func->results[i].role != SBP_RESULT_VALUE || !func->results[i].name ||
            rows_of(func, func->results[i].value) == SBP_S)
            return sbp_fail(diag, SBP_INPUT, "%s: result %d is neither a named column nor a named number",
                            name, i + 1);
    return SBP_OK;
}

/* ---- slots -------------------------------------------------------------------------------------------- */

typedef struct free_slots {
    int32_t *items;
    int32_t count;
} free_slots;

static void release(const sbp_prepare_graph *g, free_slots *spare, const int32_t *last, sbp_value value,
                    int32_t op) {
    if (value == SBP_NO_VALUE || last[value] != op || g->slots[value] < 0)
        return;
    free_slots *kind = &spare[rows_of(g->func, value)];
    for (int32_t i = 0; i < kind->count; i++)
        if (kind->items[i] == g->slots[value])
            return; /* an operand twice */
    kind->items[kind->count++] = g->slots[value];
}

static void take_slot(sbp_prepare_graph *g, free_slots *spare, sbp_value value) {
    sbp_symbol rows = rows_of(g->func, value);
    g->slots[value] = spare[rows].count > 0 ? spare[rows].items[--spare[rows].count] : g->slot_count[rows]++;
}

static void assign_slots(sbp_arena *arena, sbp_prepare_graph *g) {
    const sbp_func *f = g->func;
    int32_t *last = SBP_NEW_ARRAY(arena, int32_t, f->value_count); /* op that reads it last */
    free_slots spare[SBP_SYMBOL_COUNT];
    for (int s = 0; s < SBP_SYMBOL_COUNT; s++)
        spare[s] = (free_slots){.items = SBP_NEW_ARRAY(arena, int32_t, f->value_count)};
    for (int32_t i = 0; i < f->op_count; i++) {
        for (int32_t r = 0; r < f->ops[i].result_count; r++)
            last[f->ops[i].results[r]] = i;
        for (int32_t k = 0; k < f->ops[i].operand_count; k++)
            if (f->ops[i].operands[k] != SBP_NO_VALUE)
                last[f->ops[i].operands[k]] = i;
    }
    for (int32_t i = 0; i < f->result_count; i++)
        last[f->results[i].value] = f->op_count;
    for (int32_t i = 0; i < f->arg_count; i++) {
        g->slots[f->args[i]] = -1;
        if (f->values[f->args[i]].role == SBP_VALUE_SCALAR)
            take_slot(g, spare, f->args[i]);
    }
    for (int32_t i = 0; i < f->op_count; i++) {
        const sbp_op *op = &f->ops[i];
        for (int32_t r = 0; r < op->result_count; r++)
            take_slot(g, spare, op->results[r]);
        for (int32_t k = 0; k < op->operand_count; k++)
            release(g, spare, last, op->operands[k], i);
        for (int32_t r = 0; r < op->result_count; r++)
            release(g, spare, last, op->results[r], i);
    }
}

/* ---- parsing ------------------------------------------------------------------------------------------ */

/* Whether a result with rows is a number all the same: 1 the greatest of them, -1 the least; else 0. */
static int extreme_of(const char *name) {
    size_t length = strlen(name);
    const char *end = length > 4 ? name + length - 4 : "";
    return strcmp(end, "/max") == 0 ? 1 : strcmp(end, "/min") == 0 ? -1 : 0;
}

/* Names of arguments of one role, or of results that are columns or numbers. */
typedef struct names {
    const char **items;
    int32_t count;
} names;

static void collect(sbp_arena *arena, const sbp_module *module, sbp_prepare_graph *g, sbp_prepare *p) {
    const sbp_func *f = g->func;
    names rows = {.items = SBP_NEW_ARRAY(arena, const char *, f->arg_count + 1)}, scalars = rows;
    names columns = {.items = SBP_NEW_ARRAY(arena, const char *, f->result_count + 1)}, numbers = columns;
    scalars.items = SBP_NEW_ARRAY(arena, const char *, f->arg_count + 1);
    numbers.items = SBP_NEW_ARRAY(arena, const char *, f->result_count + 1);
    for (int32_t i = 0; i < f->arg_count; i++) {
        const sbp_value_info *info = &f->values[f->args[i]];
        bool row = info->role == SBP_VALUE_ROW;
        names *to = row ? &rows : &scalars;
        g->arg_places[i] = to->count;
        to->items[to->count++] = row ? module->rows[info->binding].name : module->scalars[info->binding];
    }
    for (int32_t i = 0; i < f->result_count; i++) {
        bool column = rows_of(f, f->results[i].value) == SBP_T && !extreme_of(f->results[i].name);
        names *to = column ? &columns : &numbers;
        to->items[to->count++] = f->results[i].name;
    }
    *p = (sbp_prepare){.rows = rows.items,
                       .row_count = rows.count,
                       .scalars = scalars.items,
                       .scalar_count = scalars.count,
                       .columns = columns.items,
                       .column_count = columns.count,
                       .numbers = numbers.items,
                       .number_count = numbers.count,
                       .graph = g};
}

sbp_status sbp_prepare_parse(sbp_arena *arena, sbp_diag *diag, const char *name, const char *text,
                             size_t length, const sbp_prepare **out) {
    sbp_module *module;
    SBP_TRY(sbp_module_parse(arena, diag, name, text, length, &module));
    SBP_TRY(sbp_module_verify(module, diag));
    const sbp_func *func = sbp_module_find_func(module, "prepare");
    if (!func || module->func_count != 1)
        return sbp_fail(diag, SBP_INPUT, "%s: expected one function, @prepare", name);
    SBP_TRY(check_values(func, diag, name));
    sbp_prepare_graph *g = SBP_NEW(arena, sbp_prepare_graph);
    sbp_prepare *p = SBP_NEW(arena, sbp_prepare);
    g->func = func;
    g->slots = SBP_NEW_ARRAY(arena, int32_t, func->value_count);
    g->arg_places = SBP_NEW_ARRAY(arena, int32_t, func->arg_count);
    assign_slots(arena, g);
    collect(arena, module, g, p);
    *out = p;
    return SBP_OK;
}

/* ---- running ------------------------------------------------------------------------------------------ */

typedef struct running {
    const sbp_prepare *p;
    sbp_eval_env env;
    double *const *inputs;
    const double *scalars;
    double *const *columns;
    double *numbers;
    sbp_tensor *tensors; /* per value */
} running;

/* Tensors without row inputs' data, which are the caller's. */
static void make_tensors(running *r) {
    const sbp_prepare_graph *g = r->p->graph;
    double **slots[SBP_SYMBOL_COUNT];
    for (int s = 0; s < SBP_SYMBOL_COUNT; s++) {
        slots[s] = SBP_NEW_ARRAY(r->env.arena, double *, g->slot_count[s]);
        for (int32_t i = 0; i < g->slot_count[s]; i++)
            slots[s][i] = SBP_NEW_ARRAY(r->env.arena, double, r->env.sizes.v[s]);
    }
    r->tensors = SBP_NEW_ARRAY(r->env.arena, sbp_tensor, g->func->value_count);
    for (int32_t v = 0; v < g->func->value_count; v++) {
        sbp_tensor *t = &r->tensors[v];
        sbp_symbol rows = rows_of(g->func, v);
        t->type = g->func->values[v].type;
        t->elems = r->env.sizes.v[rows];
        t->dim[0] = t->elems;
        t->data = g->slots[v] >= 0 ? slots[rows][g->slots[v]] : NULL;
    }
}

static sbp_status run_op(const running *r, const sbp_op *op) {
    sbp_eval eval = {.env = &r->env, .op = op};
    for (int32_t k = 0; k < op->operand_count; k++)
        eval.in[k] = op->operands[k] == SBP_NO_VALUE ? NULL : &r->tensors[op->operands[k]];
    for (int32_t i = 0; i < op->result_count; i++) {
        eval.out[i] = &r->tensors[op->results[i]];
        memset(eval.out[i]->data, 0, (size_t)eval.out[i]->elems * sizeof(double));
    }
    return sbp_opcode_rules(op->code)->eval(&eval);
}

/* The largest (extreme 1) or smallest (-1) number of t; 0 where all are NaN. */
static double reduce(const sbp_tensor *t, int extreme) {
    double best = NAN;
    for (int64_t i = 0; i < t->elems; i++)
        if (!isnan(t->data[i]) && (isnan(best) || extreme * (t->data[i] - best) > 0))
            best = t->data[i];
    return isnan(best) ? 0 : best;
}

static sbp_status run_body(void *user) {
    running *r = user;
    const sbp_prepare_graph *g = r->p->graph;
    const sbp_func *f = g->func;
    make_tensors(r);
    for (int32_t i = 0; i < f->arg_count; i++) {
        sbp_tensor *t = &r->tensors[f->args[i]];
        if (f->values[f->args[i]].role == SBP_VALUE_SCALAR) {
            t->data[0] = r->scalars[g->arg_places[i]];
        } else {
            t->data = r->inputs[g->arg_places[i]]; /* ops do not write into operands */
        }
    }
    for (int32_t i = 0; i < f->op_count; i++)
        SBP_TRY(run_op(r, &f->ops[i]));
    for (int32_t i = 0, column = 0, number = 0; i < f->result_count; i++) {
        const sbp_tensor *t = &r->tensors[f->results[i].value];
        int extreme = extreme_of(f->results[i].name);
        if (rows_of(f, f->results[i].value) == SBP_T && extreme)
            r->numbers[number++] = reduce(t, extreme);
        else if (rows_of(f, f->results[i].value) == SBP_T)
            memcpy(r->columns[column++], t->data, (size_t)t->elems * sizeof(double));
        else
            r->numbers[number++] = t->data[0];
    }
    return SBP_OK;
}

sbp_status sbp_prepare_run(const sbp_prepare *prepare, sbp_diag *diag, int64_t t, int64_t s,
                           double *const *inputs, const double *scalars, double *const *columns,
                           double *numbers) {
    running r = {.p = prepare, .inputs = inputs, .scalars = scalars, .columns = columns, .numbers = numbers};
    sbp_arena *arena = sbp_arena_create();
    if (!arena)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for what a loss needs of a step's data");
    r.env = (sbp_eval_env){.arena = arena, .diag = diag};
    r.env.sizes.v[SBP_ONE] = 1;
    r.env.sizes.v[SBP_T] = t;
    r.env.sizes.v[SBP_S] = s;
    sbp_status status = sbp_guard(arena, diag, run_body, &r);
    sbp_arena_destroy(arena);
    return status;
}
