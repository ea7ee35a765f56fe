/* passes_structure_graph.c: functions and stages: infer .. head. */
#include "passes/stream/body.h"
#include "tests/property/passes_structure.h"

static const char *module_text(bench *b) {
    sbp_text out;
    sbp_text_init(&out, b->t.arena);
    sbp_module_print(&out, b->p.module);
    return out.data;
}

void same_text(bench *b, const char *now) {
    size_t line = 0, k = 0;
    for (; now[k] && now[k] == b->before[k]; k++)
        if (now[k] == '\n')
            line = k + 1;
    ensure(b, now[k] == b->before[k], "it changed more than it says: '%.100s' was '%.100s'", now + line,
           b->before + line);
}

/* ---- the graph ----------------------------------------------------------------------------------------- */

void before_infer(bench *b) {
    b->before = module_text(b);
}

void after_infer(bench *b) {
    same_text(b, module_text(b));
}

/* A second time it finds nothing. */
void after_canonicalize(bench *b) {
    b->before = module_text(b);
    testing_check(&b->t, sbp_pipeline_step(&b->p, 1));
    same_text(b, module_text(b));
}

static int32_t count_matmuls(const bench *b, bool adapted) {
    const sbp_module *m = b->p.module;
    int32_t count = 0;
    for (int32_t n = 0; n < m->func_count; n++)
        for (int32_t i = 0; i < m->funcs[n]->op_count; i++) {
            const sbp_op *op = &m->funcs[n]->ops[i];
            count += op->code == SBP_OP_linear && !adapted;
            for (int32_t a = 0; op->code == SBP_OP_linear && adapted && a < m->adapter_count; a++)
                count += m->funcs[n]->values[op->operands[1]].binding == m->adapters[a].weight;
        }
    return count;
}

/* A and B for each product that has an adapter; where there is none, nothing changes. */
void before_lora(bench *b) {
    b->before = module_text(b);
    b->products = count_matmuls(b, false) + 2 * count_matmuls(b, true);
}

void after_lora(bench *b) {
    ensure(b, b->p.module->adapter_count == 0, "%d adapters are left", b->p.module->adapter_count);
    ensure(b, count_matmuls(b, false) == b->products, "there are %d products, not %d",
           count_matmuls(b, false), b->products);
    if (!b->mode->lora)
        same_text(b, module_text(b));
}

/* What depends on data alone, parameters and streams apart. */
static bool *data_alone(bench *b, const sbp_func *f) {
    bool *sunk = SBP_NEW_ARRAY(b->t.arena, bool, f->value_count + 1);
    for (int32_t i = 0; i < f->arg_count; i++) {
        sbp_value_role role = f->values[f->args[i]].role;
        sunk[f->args[i]] = role == SBP_VALUE_ROW || role == SBP_VALUE_SCALAR || role == SBP_VALUE_CONST;
    }
    for (int32_t i = 0; i < f->op_count; i++) {
        const sbp_op *op = &f->ops[i];
        sbp_op_class class = sbp_opcode_class(op->code);
        bool all = class == SBP_CLASS_ROWWISE || class == SBP_CLASS_COMPOSITE;
        for (int32_t k = 0; k < op->operand_count; k++)
            all &= op->operands[k] == SBP_NO_VALUE || sunk[op->operands[k]];
        for (int32_t r = 0; r < op->result_count; r++)
            sunk[op->results[r]] = all;
    }
    return sunk;
}

/* Such a value serves one reader. */
void after_sink(bench *b) {
    for (int32_t n = 0; n < b->p.module->func_count; n++) {
        const sbp_func *f = b->p.module->funcs[n];
        const bool *sunk = data_alone(b, f);
        int32_t *reader = SBP_NEW_ARRAY(b->t.arena, int32_t, f->value_count + 1); /* op number + 1 */
        for (int32_t i = f->op_count - 1; i >= 0; i--) {
            const sbp_op *op = &f->ops[i];
            int32_t by = sunk[op->results[0]] ? reader[op->results[0]] : i + 1;
            for (int32_t k = 0; k < op->operand_count; k++) {
                sbp_value v = op->operands[k];
                if (v == SBP_NO_VALUE || !sunk[v] || f->values[v].role != SBP_VALUE_OP || by == 0)
                    continue;
                ensure(b, reader[v] == 0 || reader[v] == by, "%%%s of @%s has two readers", f->values[v].name,
                       f->name);
                reader[v] = by;
            }
        }
    }
}

static int32_t count_args(const sbp_func *f, sbp_value_role role) {
    int32_t count = 0;
    for (int32_t i = 0; i < f->arg_count; i++)
        count += f->values[f->args[i]].role == role;
    return count;
}

/* Whether a call before this one gives a value beside the stream. */
static bool is_side_value_of_earlier(const sbp_module *m, int32_t call, int32_t value) {
    for (int32_t c = 0; c < call; c++)
        for (int32_t i = 1; i < m->calls[c].output_count; i++)
            if (m->calls[c].outputs[i] == value)
                return true;
    return false;
}

/* Whether a call behind this one, but for the head, reads a value beside its stream. */
static bool is_read_beyond(const sbp_module *m, int32_t call, int32_t value) {
    for (int32_t c = call + 1; c + 1 < m->call_count; c++)
        for (int32_t i = 1; i < m->calls[c].stream_count; i++)
            if (m->calls[c].streams[i] == value)
                return true;
    return false;
}

/* Calls in a chain over one stream; functions differ; every parameter is somewhere, with its type. */
void after_segment(bench *b) {
    const sbp_module *m = b->p.module;
    ensure(b, !sbp_module_find_func(m, "model"), "@model is still there");
    ensure(b, m->call_count >= 3, "%d calls", m->call_count);
    sbp_map texts;
    sbp_map_init(&texts, b->t.arena);
    for (int32_t n = 0; n < m->func_count; n++) {
        sbp_text out;
        sbp_text_init(&out, b->t.arena);
        sbp_func_print(&out, m, m->funcs[n], true);
        ensure(b, sbp_map_get(&texts, out.data) < 0, "@%s is there twice", m->funcs[n]->name);
        sbp_map_set(&texts, out.data, n);
    }
    bool *used = SBP_NEW_ARRAY(b->t.arena, bool, m->param_count + 1);
    for (int32_t c = 0; c < m->call_count; c++) {
        const sbp_invocation *call = &m->calls[c];
        const sbp_func *f = m->funcs[call->func];
        bool ends = c == 0 || c + 1 == m->call_count; /* the first reads nothing, the head no side value */
        ensure(b, ends ? call->stream_count == (c > 0) : call->stream_count > 0, "call %d reads %d streams",
               c, call->stream_count);
        ensure(b, count_args(f, SBP_VALUE_STREAM) == call->stream_count, "@%s: streams", f->name);
        ensure(b, count_args(f, SBP_VALUE_PARAM) == call->param_count, "@%s: parameters", f->name);
        if (c > 0 && call->stream_count > 0)
            ensure(b, call->streams[0] == m->calls[c - 1].outputs[0], "call %d reads another value", c);
        for (int32_t i = 1; i < call->stream_count; i++)
            ensure(b, is_side_value_of_earlier(m, c, call->streams[i]),
                   "call %d: no call before gives value %d", c, call->streams[i]);
        for (int32_t i = 1; c + 1 < m->call_count && i < call->output_count; i++)
            ensure(b, is_read_beyond(m, c, call->outputs[i]), "call %d: who reads value %d?", c,
                   call->outputs[i]);
        int32_t number = 0;
        for (int32_t i = 0; i < f->arg_count; i++) {
            const sbp_value_info *info = &f->values[f->args[i]];
            if (info->role != SBP_VALUE_PARAM || number == call->param_count)
                continue;
            const sbp_param *param = &m->params[call->params[number]];
            ensure(b, sbp_type_equal(&info->type, &param->type) && info->trainable == param->trainable,
                   "@%s: parameter %d is not '%s'", f->name, number, param->name);
            used[call->params[number++]] = true;
        }
    }
    for (int32_t i = 0; i < m->param_count; i++)
        ensure(b, used[i], "nobody reads '%s'", m->params[i].name);
}

void after_expand(bench *b) {
    const sbp_module *m = b->p.module;
    for (int32_t c = 0; c < m->call_count; c++) {
        const sbp_func *f = m->funcs[m->calls[c].func];
        for (int32_t i = 0; i < f->op_count; i++)
            ensure(b, sbp_opcode_class(f->ops[i].code) != SBP_CLASS_COMPOSITE, "%s is left in @%s",
                   sbp_opcode_name(f->ops[i].code), f->name);
    }
}

/* Where ranks have micro-batches together, attention alone sees all their rows, of what was exchanged. */
void after_context(bench *b) {
    const sbp_module *m = b->p.module;
    for (int32_t n = 0; n < m->func_count; n++) {
        const sbp_func *f = m->funcs[n];
        int32_t exchanges = 0, of_all = 0;
        for (int32_t i = 0; i < f->op_count; i++) {
            const sbp_op *op = &f->ops[i];
            sbp_symbol rows = sbp_type_rows(&f->values[op->results[0]].type);
            exchanges += op->code == SBP_OP_exchange;
            of_all += rows == SBP_W;
            if (sbp_opcode_attends(op->code)) {
                sbp_symbol keys = sbp_type_rows(&f->values[op->operands[1]].type);
                ensure(b, keys == (b->mode->context > 1 ? SBP_W : SBP_T), "attention of @%s sees other rows",
                       f->name);
            } else if (op->code != SBP_OP_exchange)
                ensure(b, rows != SBP_W, "%s of @%s has rows of all ranks", sbp_opcode_name(op->code),
                       f->name);
        }
        ensure(b, b->mode->context > 1 || (exchanges == 0 && of_all == 0), "@%s of one rank exchanges rows",
               f->name);
    }
}

/* Values of T rows, or W, are carries: arguments, or the state after an op that adds to one. */
static void only_carries_are_long(bench *b, const sbp_func *f) {
    for (int32_t v = 0; v < f->value_count; v++) {
        const sbp_value_info *info = &f->values[v];
        if (sbp_type_rows(&info->type) != SBP_T && sbp_type_rows(&info->type) != SBP_W)
            continue;
        bool carry = info->role == SBP_VALUE_CARRY;
        if (info->role == SBP_VALUE_COTANGENT)
            carry = info->binding < 0 || f->values[info->binding].role == SBP_VALUE_CARRY;
        if (info->role == SBP_VALUE_OP)
            carry = f->ops[info->op].code == SBP_OP_append ||
                    (f->ops[info->op].code == SBP_OP_attention_vjp && f->ops[info->op].results[0] != v);
        ensure(b, carry, "%%%s of @%s has all rows", info->name, f->name);
    }
}

/* Rows of other chunks are read from carries alone, and each carry is appended to once. */
void after_split(bench *b) {
    const sbp_module *m = b->p.module;
    for (int32_t n = 0; n < m->func_count; n++) {
        const sbp_func *f = m->funcs[n];
        if (strcmp(f->name, "objective") == 0 || strcmp(f->name, "statistics") == 0)
            continue;
        only_carries_are_long(b, f);
        int32_t appends = 0; /* and states that go on */
        for (int32_t i = 0; i < f->op_count; i++) {
            const sbp_op *op = &f->ops[i];
            bool has_state = sbp_opcode_class(op->code) == SBP_CLASS_RECUR;
            appends += op->code == SBP_OP_append || has_state;
            for (int32_t k = 0; k < op->operand_count; k++)
                for (int32_t r = 0; op->operands[k] != SBP_NO_VALUE && r < op->result_count; r++) {
                    sbp_seq_kind kind = sbp_op_seq(f, op, k, r).kind;
                    bool back = kind == SBP_SEQ_PREFIX || kind == SBP_SEQ_WINDOW;
                    if (back)
                        ensure(b, sbp_body_carry_root(f, op->operands[k]) != SBP_NO_VALUE,
                               "@%s reads rows of other chunks of %%%s", f->name,
                               f->values[op->operands[k]].name);
                    else
                        ensure(b,
                               kind == SBP_SEQ_NONE || kind == SBP_SEQ_ROW || kind == SBP_SEQ_REDUCE ||
                                   op->code == SBP_OP_append || (kind == SBP_SEQ_RECUR && has_state),
                               "@%s reads %%%s as %s", f->name, f->values[op->operands[k]].name,
                               sbp_seq_name(kind));
                }
        }
        ensure(b, appends == count_args(f, SBP_VALUE_CARRY), "@%s: %d appends for %d carries", f->name,
               appends, count_args(f, SBP_VALUE_CARRY));
    }
}

static int32_t gradients_of(const sbp_func *f, sbp_value target) {
    int32_t count = 0;
    for (int32_t r = 0; r < f->result_count; r++)
        count += f->results[r].role == SBP_RESULT_GRADIENT && f->results[r].target == target;
    return count;
}

/* The forward is what it was; each trainable parameter has one gradient, a frozen one none. */
void after_autodiff(bench *b) {
    const sbp_module *m = b->p.module;
    const sbp_derivatives *l = &b->p.results->derivatives;
    ensure(b, l->of, "there are no derivatives");
    if (!l->of)
        return;
    bool *wanted = SBP_NEW_ARRAY(b->t.arena, bool, m->func_count);
    for (int32_t c = 0; c + 1 < m->call_count; c++)
        wanted[m->calls[c].func] |= c >= l->first_trainable;
    for (int32_t n = 0; n < m->func_count; n++) {
        const sbp_func *f = m->funcs[n], *d = l->of[n].derivative;
        ensure(b, (d != NULL) == wanted[n], "@%s: derivative", f->name);
        if (!d)
            continue;
        for (int32_t i = 0; i < f->op_count && i < d->op_count; i++)
            ensure(b, d->ops[i].code == f->ops[i].code, "op %d of @%s is another one", i, f->name);
        for (int32_t i = 0; i < f->arg_count; i++) {
            const sbp_value_info *info = &d->values[d->args[i]];
            if (info->role == SBP_VALUE_PARAM)
                ensure(b, gradients_of(d, d->args[i]) == info->trainable, "@%s: %d gradients of %%%s",
                       f->name, gradients_of(d, d->args[i]), info->name);
        }
    }
}

/* ---- stages -------------------------------------------------------------------------------------------- */

static bool is_function(const bench *b, const sbp_function_lowering *f, const char *suffix) {
    const char *name = b->p.program->functions[f->function].name;
    size_t length = strlen(name), n = strlen(suffix);
    return length > n && strcmp(name + length - n, suffix) == 0;
}

bool same_view(const sbp_view *x, const sbp_view *y) {
    return x->ref == y->ref && x->slot == y->slot && x->until == y->until && x->col == y->col &&
           x->cols == y->cols && sbp_extent_equal(x->start.base, y->start.base) &&
           sbp_extent_equal(x->start.step, y->start.step) && x->start.column == y->start.column &&
           sbp_extent_equal(x->length.base, y->length.base) && x->length.column == y->length.column;
}

/* Only primitives, nothing that no result needs, no argument that nothing reads, nothing as long as T. */
static void examine_body(bench *b, const sbp_stage *stage) {
    const sbp_func *f = stage->body;
    bool *read = SBP_NEW_ARRAY(b->t.arena, bool, f->value_count + 1);
    for (int32_t i = 0; i < f->result_count; i++)
        read[f->results[i].value] = true;
    for (int32_t i = f->op_count - 1; i >= 0; i--) {
        const sbp_op *op = &f->ops[i];
        sbp_op_class class = sbp_opcode_class(op->code);
        bool needed = false;
        for (int32_t r = 0; r < op->result_count; r++)
            needed |= read[op->results[r]];
        ensure(b, needed, "stage %s computes %%%s for nothing", stage->name, f->values[op->results[0]].name);
        ensure(b, class != SBP_CLASS_COMPOSITE && class != SBP_CLASS_LATE, "stage %s has a %s", stage->name,
               sbp_opcode_name(op->code));
        for (int32_t k = 0; k < op->operand_count; k++)
            if (op->operands[k] != SBP_NO_VALUE)
                read[op->operands[k]] = true;
    }
    for (int32_t i = 0; i < f->arg_count; i++)
        ensure(b, read[f->args[i]] || gradients_of(f, f->args[i]) > 0, "stage %s: nothing reads %%%s",
               stage->name, f->values[f->args[i]].name);
}

/* dx is written where dy was, and over its rows alone. */
static void gradient_in_place(bench *b, const sbp_stage *stage) {
    const sbp_func *f = stage->body;
    for (int32_t i = 0; i < f->result_count; i++) {
        sbp_value target = f->results[i].target;
        if (f->results[i].role != SBP_RESULT_GRADIENT || f->values[target].role != SBP_VALUE_STREAM)
            continue;
        int32_t stores = 0, places = 0;
        for (int32_t s = 0; s < stage->store_count; s++) {
            if (stage->stores[s].value != f->results[i].value)
                continue;
            stores++;
            for (int32_t a = 0; a < f->arg_count; a++)
                places += f->values[f->args[a]].role == SBP_VALUE_STREAM &&
                          same_view(&stage->places[f->args[a]], &stage->stores[s].to);
        }
        ensure(b, stores == 1 && places == 1, "stage %s: dx has %d places, dy is at %d of them", stage->name,
               stores, places);
    }
}

/* Each trainable parameter of the function has one gradient, and one place where it adds up. */
static void gradients_have_places(bench *b, const sbp_stage *stage, const sbp_func *whole) {
    const sbp_func *f = stage->body;
    int32_t gradients = 0, trainable = 0;
    for (int32_t i = 0; i < whole->arg_count; i++)
        trainable +=
            whole->values[whole->args[i]].role == SBP_VALUE_PARAM && whole->values[whole->args[i]].trainable;
    for (int32_t i = 0; i < f->arg_count; i++) {
        const sbp_value_info *info = &f->values[f->args[i]];
        if (info->role != SBP_VALUE_PARAM)
            continue;
        int32_t count = gradients_of(f, f->args[i]);
        ensure(b, count == info->trainable, "stage %s: %d gradients of %%%s", stage->name, count, info->name);
        ensure(b, (stage->accums[f->args[i]].ref != SBP_NO_VIEW) == info->trainable,
               "stage %s: accumulator of %%%s", stage->name, info->name);
        gradients += count;
    }
    ensure(b, gradients == trainable, "stage %s: %d gradients of %d parameters", stage->name, gradients,
           trainable);
}

static void examine_segment_stage(bench *b, const sbp_function_lowering *function, const sbp_stage *stage,
                                  int32_t number) {
    const sbp_func *f = stage->body;
    bool backward = is_function(b, function, ".backward");
    bool carries = backward && is_function(b, function, ".backward") && strstr(stage->name, ".carries");
    ensure(b, stage->table == b->p.results->segments.chunk_table && stage->rows == SBP_C,
           "stage %s is no loop over chunks", stage->name);
    ensure(b, stage->descending == (backward && !carries), "stage %s runs the wrong way", stage->name);
    ensure(b, number == (backward && !carries ? 1 : 0) || !backward || !carries, "stage %s: order",
           stage->name);
    examine_body(b, stage);
    only_carries_are_long(b, f);
    for (int32_t i = 0; i < f->result_count; i++) {
        sbp_result_role role = f->results[i].role;
        if (!backward)
            ensure(b, role != SBP_RESULT_GRADIENT, "stage %s has a gradient", stage->name);
        else if (carries)
            ensure(b, role == SBP_RESULT_CARRY, "stage %s does more than fill carries", stage->name);
        else
            ensure(b, role != SBP_RESULT_VALUE && role != SBP_RESULT_SAVED,
                   "stage %s computes what the forward computed", stage->name);
    }
    if (backward && !carries)
        gradient_in_place(b, stage);
}

void after_streambp(bench *b) {
    const sbp_pass_results *l = b->p.results;
    const sbp_module *m = b->p.module;
    ensure(b, b->p.program, "there is no program");
    for (int32_t c = 0; b->p.program && c + 1 < m->call_count; c++)
        ensure(b, l->segments.kinds[m->calls[c].func].forward >= 0, "call %d has no forward", c);
    if (b->broken[0])
        return;
    for (int32_t n = 0; n < l->stages.count; n++) {
        const sbp_function_lowering *function = l->stages.functions[n];
        int32_t stages = 0;
        for (int32_t i = 0; i < function->item_count; i++)
            if (function->items[i].stage)
                examine_segment_stage(b, function, function->items[i].stage, stages++);
            else
                ensure(b, stages == 0 && function->items[i].node.u.command->kind == SBP_CMD_FILL,
                       "@%s: a command between loops", b->p.program->functions[function->function].name);
        ensure(b, stages >= 1 && stages <= 2, "%d loops", stages);
    }
    for (int32_t n = 0; n < m->func_count; n++) {
        const sbp_segment_kind *kind = &l->segments.kinds[n];
        const sbp_func *derivative = l->derivatives.of[n].derivative;
        if (kind->forward < 0)
            continue;
        bool again = derivative && b->p.options.schedule.checkpoint_every > 1;
        if (!derivative) /* it saves nothing that could be left out */
            ensure(b, kind->recompute == kind->forward, "@%s: another forward, of a frozen segment",
                   m->funcs[n]->name);
        else
            ensure(b, (kind->recompute >= 0) == again, "@%s: forward once more", m->funcs[n]->name);
        ensure(b, (kind->backward >= 0) == (derivative != NULL), "@%s: backward", m->funcs[n]->name);
        for (int32_t i = 0; kind->backward >= 0 && i < l->stages.count; i++) {
            const sbp_function_lowering *f = l->stages.functions[i];
            if (f->function == kind->backward)
                gradients_have_places(b, f->items[f->item_count - 1].stage, m->funcs[n]);
        }
        for (int32_t i = 0; i < kind->saved_count && !b->p.options.schedule.save_all; i++)
            ensure(b, sbp_saved_is_state(&kind->saved[i]), "@%s saves %s", m->funcs[n]->name,
                   kind->saved[i].name);
    }
    for (int32_t i = 0; i < b->p.program->buffer_count; i++)
        if (b->p.program->buffers[i].rows.c[SBP_T] != 0 && b->p.program->buffers[i].function >= 0)
            ensure(b, b->p.program->buffers[i].role == SBP_ROLE_CARRY, "buffer %s has T rows",
                   b->p.program->buffers[i].name);
}

/* No value has rows of all the batch and of the vocabulary: the head's loops know chunks, the objective's
 * stages vectors. The dependence of the objective alone decides between one pass and two. */
void after_head(bench *b) {
    const sbp_pass_results *l = b->p.results;
    int32_t logits = 0;
    for (int32_t n = 0; n < l->stages.count; n++) {
        const sbp_function_lowering *function = l->stages.functions[n];
        const char *name = b->p.program->functions[function->function].name;
        bool head = strncmp(name, "head.", 5) == 0;
        if (!head && strncmp(name, "objective", 9) != 0)
            continue;
        for (int32_t i = 0; i < function->item_count; i++) {
            const sbp_stage *stage = function->items[i].stage;
            if (!stage) /* a command of its own */
                continue;
            const sbp_func *f = stage->body;
            ensure(b, stage->table == (head ? l->segments.head_table : -1), "stage %s: loop", stage->name);
            ensure(b, stage->rows == (head ? SBP_H : SBP_T), "stage %s: rows", stage->name);
            examine_body(b, stage);
            for (int32_t v = 0; v < f->value_count; v++) {
                const sbp_type *type = &f->values[v].type;
                if (head)
                    ensure(b, sbp_type_rows(type) != SBP_T, "%%%s of %s has T rows", f->values[v].name, name);
                else
                    ensure(b, sbp_type_rows(type) == SBP_ONE || sbp_type_row_elems(type) == 1,
                           "%%%s of %s is no vector", f->values[v].name, name);
                logits += head && sbp_type_rows(type) == SBP_C && sbp_type_row_elems(type) == b->vocabulary;
            }
            if (function->function == l->head.backward) {
                gradient_in_place(b, stage);
                gradients_have_places(
                    b, stage, b->p.module->funcs[b->p.module->calls[b->p.module->call_count - 1].func]);
            }
        }
    }
    ensure(b, logits > 0, "no logits at all");
    ensure(b, (l->head.first >= 0) == b->mode->two_pass && (l->head.gradient >= 0) == b->mode->two_pass,
           "passes of the head");
}
