/* template_render.c: statements, scopes, macros; parsing and rendering as a whole. */
#include <stdio.h>
#include <string.h>

#include "frontends/formats/template/template_internal.h"

const sbp_template_limits sbp_template_default_limits = {
    .steps = 20000000, .memory_bytes = 1 << 28, .output_bytes = 1 << 26};

/* ---- scopes ---------------------------------------------------------------------------------------- */

static void set_symbol(tpl_eval *e, int32_t symbol, tpl_value value) {
    tpl_scope *scope = e->scope;
    for (int32_t i = 0; i < scope->count; i++)
        if (scope->bindings[i].symbol == symbol) {
            scope->bindings[i].value = value;
            return;
        }
    SBP_PUSH(e->arena, scope->bindings, scope->count, scope->capacity, (tpl_binding){symbol, value});
}

static tpl_scope *open_scope(tpl_eval *e, tpl_scope *outer) {
    tpl_scope *scope = SBP_NEW(e->arena, tpl_scope);
    scope->outer = outer;
    return scope;
}

static sbp_status run(tpl_eval *e, const tpl_node *body);

/* Byte of the result where the next text goes; -1: that is not known. */
static int64_t place(const tpl_eval *e) {
    return e->base < 0 ? -1 : e->base + (int64_t)e->out->length;
}

/* A body in a scope of its own. */
static sbp_status run_inner(tpl_eval *e, const tpl_node *body) {
    tpl_scope *outer = e->scope;
    e->scope = open_scope(e, outer);
    SBP_TRY(run(e, body));
    e->scope = outer;
    return SBP_OK;
}

/* The same, its text into a value. base: byte of the result where it will stand; -1: that is not known. */
static sbp_status capture(tpl_eval *e, const tpl_node *body, int64_t base, tpl_value *out) {
    sbp_text text, *outer = e->out;
    int64_t outer_base = e->base;
    sbp_text_init(&text, e->arena);
    e->out = &text;
    e->base = base;
    SBP_TRY(run_inner(e, body));
    e->out = outer;
    e->base = outer_base;
    return sbp_tpl_text_value(e, &text, false, out);
}

static sbp_status assign(tpl_eval *e, const tpl_node *target, const tpl_value *value);

static sbp_status unpack(tpl_eval *e, const tpl_node *target, const tpl_value *value) {
    tpl_value *items;
    int64_t count, wanted = 0;
    SBP_TRY(sbp_tpl_iterate(e, value, &items, &count));
    for (const tpl_node *t = target->items; t; t = t->next)
        wanted++;
    if (count != wanted)
        return sbp_tpl_fail(e, "there are %lld values for %lld names", (long long)count, (long long)wanted);
    for (const tpl_node *t = target->items; t; t = t->next)
        SBP_TRY(assign(e, t, items++));
    return SBP_OK;
}

static sbp_status assign(tpl_eval *e, const tpl_node *target, const tpl_value *value) {
    e->at = target;
    if (target->kind == TPL_NAME) {
        set_symbol(e, target->symbol, *value);
        return SBP_OK;
    }
    if (target->kind == TPL_TUPLE_OF)
        return unpack(e, target, value);
    tpl_node name = {
        .kind = TPL_NAME, .line = target->line, .column = target->column, .symbol = target->symbol};
    tpl_value space;
    SBP_TRY(sbp_tpl_eval(e, &name, &space));
    e->at = target;
    if (space.kind != TPL_NAMESPACE)
        return sbp_tpl_fail(e, "attributes can be set on namespaces only, found %s", sbp_tpl_type(&space));
    if (target->value.string.data[0] == '_')
        return sbp_tpl_fail(e, "attributes of namespaces do not begin with '_'");
    return sbp_tpl_dict_set(e, space.dict, target->value, *value);
}

/* ---- loops ----------------------------------------------------------------------------------------- */

/* Items for which the condition of the loop holds. */
static sbp_status select_items(tpl_eval *e, const tpl_node *node, tpl_value **items, int64_t *count) {
    tpl_value *kept = SBP_NEW_ARRAY(e->arena, tpl_value, *count), holds;
    int64_t kept_count = 0;
    tpl_scope *outer = e->scope;
    for (int64_t i = 0; i < *count; i++) {
        e->scope = open_scope(e, outer);
        SBP_TRY(assign(e, node->a, &(*items)[i]));
        SBP_TRY(sbp_tpl_eval(e, node->c, &holds));
        if (sbp_tpl_truth(&holds))
            kept[kept_count++] = (*items)[i];
    }
    e->scope = outer;
    *items = kept;
    *count = kept_count;
    return SBP_OK;
}

static int32_t loop_symbol(const tpl_eval *e) {
    for (int32_t i = 0; i < e->template->symbol_count; i++)
        if (strcmp(e->template->symbols[i], "loop") == 0)
            return i;
    return -1;
}

/* Begins what an object of the variables has of the result; its place in the list, -1: it is no such. */
static int32_t begin_item(tpl_eval *e, const tpl_value *value) {
    int64_t begin = place(e);
    if (value->kind != TPL_DICT || !value->dict->json || begin < 0)
        return -1;
    SBP_PUSH(e->arena, e->items, e->item_count, e->item_capacity,
             (sbp_rendered_item){begin, begin, value->dict->json});
    return e->item_count - 1;
}

/* One that wrote nothing is the last of the list: what loops within it wrote stands there no more either. */
static void end_item(tpl_eval *e, int32_t item) {
    if (item < 0)
        return;
    e->items[item].end = place(e);
    if (e->items[item].end == e->items[item].begin)
        e->item_count = item;
}

static sbp_status run_items(tpl_eval *e, const tpl_node *node, const tpl_value *items, int64_t count) {
    tpl_scope *outer = e->scope;
    tpl_loop *loop = SBP_NEW(e->arena, tpl_loop);
    int32_t symbol = loop_symbol(e);
    *loop = (tpl_loop){.items = items, .count = count};
    tpl_scope *inner = open_scope(e, outer);
    for (; loop->at < count; loop->at++) {
        if (inner->kept) /* a macro may still look into it */
            inner = open_scope(e, outer);
        inner->count = 0;
        e->scope = inner;
        if (symbol >= 0)
            set_symbol(e, symbol, (tpl_value){.kind = TPL_LOOP, .loop = loop});
        SBP_TRY(assign(e, node->a, &items[loop->at]));
        int32_t item = begin_item(e, &items[loop->at]);
        SBP_TRY(run(e, node->items));
        end_item(e, item);
        bool leave = e->control == TPL_LEAVE;
        e->control = TPL_GO_ON;
        if (leave)
            break;
    }
    e->scope = outer;
    return SBP_OK;
}

static sbp_status run_for(tpl_eval *e, const tpl_node *node) {
    tpl_value over, *items;
    int64_t count;
    SBP_TRY(sbp_tpl_eval(e, node->b, &over));
    e->at = node;
    SBP_TRY(sbp_tpl_iterate(e, &over, &items, &count));
    if (node->c)
        SBP_TRY(select_items(e, node, &items, &count));
    return count > 0 ? run_items(e, node, items, count) : run_inner(e, node->other);
}

/* ---- macros ---------------------------------------------------------------------------------------- */

static sbp_status unexpected_name(tpl_eval *e, const tpl_macro *macro, const tpl_named *named) {
    return sbp_tpl_fail(e, "macro '%s' has no parameter '%.*s'",
                        macro->node->name ? macro->node->name : "caller", (int)named->length, named->name);
}

/* What was given by name and is no parameter: the caller, or into kwargs. */
static sbp_status bind_other_names(tpl_eval *e, const tpl_macro *macro, const tpl_args *args,
                                   const bool *taken, tpl_value *caller, tpl_value *kwargs) {
    *kwargs = sbp_tpl_dict(e);
    *caller = sbp_tpl_undefined(e, "'caller' is undefined");
    for (int32_t i = 0; i < args->named_count; i++) {
        const tpl_named *named = &args->named[i];
        tpl_text name = {named->name, named->length};
        if (taken[i])
            continue;
        if ((macro->node->uses & TPL_USES_CALLER) && sbp_tpl_is(name, "caller"))
            *caller = named->value;
        else if (macro->node->uses & TPL_USES_KWARGS)
            SBP_TRY(sbp_tpl_dict_set(e, kwargs->dict, sbp_tpl_string(name.data, name.length), named->value));
        else
            return unexpected_name(e, macro, named);
    }
    return SBP_OK;
}

static void set_word(tpl_eval *e, const char *word, tpl_value value) {
    for (int32_t i = 0; i < e->template->symbol_count; i++)
        if (strcmp(e->template->symbols[i], word) == 0)
            set_symbol(e, i, value);
}

/* What is left of the arguments, as the names that a body may ask for. */
static sbp_status bind_rest(tpl_eval *e, const tpl_macro *macro, const tpl_args *args, const bool *taken,
                            int32_t used) {
    tpl_value caller, kwargs,
        varargs = sbp_tpl_sequence(e, TPL_TUPLE, args->count > used ? args->count - used : 0);
    SBP_TRY(bind_other_names(e, macro, args, taken, &caller, &kwargs));
    for (int32_t i = used; i < args->count; i++)
        varargs.sequence->items[i - used] = args->items[i];
    if (args->count > used && !(macro->node->uses & TPL_USES_VARARGS))
        return sbp_tpl_fail(e, "macro '%s' takes %d arguments, found %d",
                            macro->node->name ? macro->node->name : "caller", used, args->count);
    if (macro->node->uses & TPL_USES_CALLER)
        set_word(e, "caller", caller);
    if (macro->node->uses & TPL_USES_KWARGS)
        set_word(e, "kwargs", kwargs);
    if (macro->node->uses & TPL_USES_VARARGS)
        set_word(e, "varargs", varargs);
    return SBP_OK;
}

static sbp_status bind_parameter(tpl_eval *e, const tpl_node *word, const tpl_args *args, int32_t index,
                                 bool *taken) {
    tpl_value value = {.kind = TPL_MISSING};
    if (index < args->count)
        value = args->items[index];
    for (int32_t i = 0; i < args->named_count && value.kind == TPL_MISSING; i++)
        if (sbp_tpl_same((tpl_text){word->name, word->name_length},
                         (tpl_text){args->named[i].name, args->named[i].length})) {
            value = args->named[i].value;
            taken[i] = true;
        }
    if (value.kind == TPL_MISSING && word->a)
        SBP_TRY(sbp_tpl_eval(e, word->a, &value));
    else if (value.kind == TPL_MISSING)
        value = sbp_tpl_undefined(e, "parameter '%.*s' was not provided", (int)word->name_length, word->name);
    set_symbol(e, word->symbol, value);
    return SBP_OK;
}

sbp_status sbp_tpl_call_macro(tpl_eval *e, const tpl_macro *macro, tpl_args *args, tpl_value *out) {
    tpl_scope *outer = e->scope;
    const tpl_node *at = e->at;
    sbp_text text, *outer_out = e->out;
    int64_t outer_base = e->base;
    bool *taken = SBP_NEW_ARRAY(e->arena, bool, args->named_count);
    int32_t used = 0;
    SBP_TRY(sbp_tpl_deeper(e));
    e->scope = open_scope(e, macro->scope);
    for (const tpl_node *word = macro->node->named; word; word = word->next)
        SBP_TRY(bind_parameter(e, word, args, used++, taken));
    e->at = at;
    SBP_TRY(bind_rest(e, macro, args, taken, used));
    sbp_text_init(&text, e->arena);
    e->out = &text;
    e->base = -1;
    SBP_TRY(run(e, macro->node->items));
    e->out = outer_out;
    e->base = outer_base;
    e->scope = outer;
    e->depth--;
    return sbp_tpl_text_value(e, &text, false, out);
}

static tpl_value macro_value(tpl_eval *e, const tpl_node *node) {
    tpl_macro *macro = SBP_NEW(e->arena, tpl_macro);
    *macro = (tpl_macro){node, e->scope};
    for (tpl_scope *scope = e->scope; scope; scope = scope->outer)
        scope->kept = true;
    return (tpl_value){.kind = TPL_MACRO, .macro = macro};
}

/* {% call f(x) %} */
static sbp_status run_call_block(tpl_eval *e, const tpl_node *node) {
    tpl_args args = {0};
    tpl_value callee, result;
    SBP_TRY(sbp_tpl_eval(e, node->a->a, &callee));
    for (const tpl_node *item = node->a->items; item; item = item->next) {
        tpl_value value;
        SBP_TRY(sbp_tpl_eval(e, item, &value));
        sbp_tpl_args_add(e, &args, value);
    }
    for (const tpl_node *word = node->a->named; word; word = word->next) {
        tpl_value value;
        SBP_TRY(sbp_tpl_eval(e, word->a, &value));
        sbp_tpl_args_name(e, &args, (tpl_text){word->name, word->name_length}, value);
    }
    e->at = node;
    if (node->a->b || node->a->c)
        return sbp_tpl_fail(e, "'*' and '**' in the call of a call block are not supported");
    sbp_tpl_args_name(e, &args, (tpl_text){"caller", 6}, macro_value(e, node));
    SBP_TRY(sbp_tpl_call(e, &callee, &args, &result));
    return sbp_tpl_add_str(e, e->out, &result);
}

/* ---- generation ------------------------------------------------------------------------------------ */

/* As transformers has it: the span begins where the result ends now, also inside of a macro, whose text is
 * not there yet. */
static sbp_status run_generation(tpl_eval *e, const tpl_node *node) {
    tpl_value text;
    SBP_TRY(capture(e, node->items, place(e), &text));
    if (e->span_count == e->span_capacity) {
        int32_t capacity = e->span_capacity ? e->span_capacity * 2 : 16;
        int64_t(*spans)[2] = sbp_arena_array(e->arena, (size_t)capacity, sizeof *spans);
        if (e->span_count)
            memcpy(spans, e->spans, (size_t)e->span_count * sizeof *spans);
        e->spans = spans;
        e->span_capacity = capacity;
    }
    int64_t begin = (int64_t)e->root.length;
    e->spans[e->span_count][0] = begin;
    e->spans[e->span_count++][1] =
        e->out == &e->root ? begin + (int64_t)text.string.length : -sbp_tpl_chars(text.string);
    return sbp_tpl_add(e, e->out, text.string);
}

/* ---- statements ------------------------------------------------------------------------------------ */

static sbp_status run_if(tpl_eval *e, const tpl_node *node) {
    for (;;) {
        tpl_value holds;
        SBP_TRY(sbp_tpl_eval(e, node->a, &holds));
        if (sbp_tpl_truth(&holds))
            return run(e, node->items);
        bool is_elif = node->other && node->other->kind == TPL_IF && !node->other->next;
        if (!is_elif)
            return run(e, node->other);
        node = node->other;
    }
}

static sbp_status run_set(tpl_eval *e, const tpl_node *node) {
    tpl_value value;
    if (node->kind == TPL_SET) {
        SBP_TRY(sbp_tpl_eval(e, node->b, &value));
        return assign(e, node->a, &value);
    }
    SBP_TRY(capture(e, node->items, -1, &value));
    if (node->b)
        SBP_TRY(sbp_tpl_eval_filters(e, node->b, &value, &value));
    return assign(e, node->a, &value);
}

static sbp_status run_with(tpl_eval *e, const tpl_node *node) {
    tpl_scope *outer = e->scope, *inner = open_scope(e, outer);
    for (const tpl_node *set = node->named; set; set = set->next) {
        tpl_value value;
        SBP_TRY(sbp_tpl_eval(e, set->b, &value)); /* in the outer scope */
        e->scope = inner;
        SBP_TRY(assign(e, set->a, &value));
        e->scope = outer;
    }
    e->scope = inner;
    SBP_TRY(run(e, node->items));
    e->scope = outer;
    return SBP_OK;
}

static sbp_status run_statement(tpl_eval *e, const tpl_node *node) {
    tpl_value value;
    switch (node->kind) {
    case TPL_DATA:
        return sbp_tpl_add(e, e->out, node->value.string);
    case TPL_OUTPUT:
        SBP_TRY(sbp_tpl_eval(e, node->a, &value));
        e->at = node->a;
        return sbp_tpl_add_str(e, e->out, &value);
    case TPL_IF:
        return run_if(e, node);
    case TPL_FOR:
        return run_for(e, node);
    case TPL_SET:
    case TPL_SET_BLOCK:
        return run_set(e, node);
    case TPL_WITH:
        return run_with(e, node);
    case TPL_MACRO_OF:
        value = macro_value(e, node);
        return assign(e, node->a, &value);
    case TPL_CALL_BLOCK:
        return run_call_block(e, node);
    case TPL_FILTER_BLOCK:
        SBP_TRY(capture(e, node->items, -1, &value));
        SBP_TRY(sbp_tpl_eval_filters(e, node->b, &value, &value));
        return sbp_tpl_add_str(e, e->out, &value);
    case TPL_GENERATION:
        return run_generation(e, node);
    default: /* break, continue */
        e->control = node->kind == TPL_BREAK ? TPL_LEAVE : TPL_NEXT;
        return SBP_OK;
    }
}

static sbp_status run(tpl_eval *e, const tpl_node *body) {
    SBP_TRY(sbp_tpl_deeper(e));
    for (; body && e->control == TPL_GO_ON; body = body->next) {
        e->at = body;
        SBP_TRY(sbp_tpl_charge(e, 1));
        SBP_TRY(run_statement(e, body));
    }
    e->depth--;
    return SBP_OK;
}

/* ---- the whole ------------------------------------------------------------------------------------- */

typedef struct parse_job {
    sbp_arena *arena;
    sbp_diag *diag;
    const char *name, *text;
    size_t length;
    const sbp_template **out;
} parse_job;

static sbp_status parse_body(void *user) {
    parse_job *job = user;
    sbp_template *t = SBP_NEW(job->arena, sbp_template);
    tpl_parser p = {.arena = job->arena, .diag = job->diag, .template = t};
    tpl_token *tokens;
    int32_t count;
    t->name = sbp_arena_strdup(job->arena, job->name);
    t->text = sbp_arena_strndup(job->arena, job->text, job->length);
    t->length = job->length;
    sbp_map_init(&p.symbols, job->arena);
    SBP_TRY(sbp_tpl_lex(job->arena, job->diag, t->name, (tpl_text){t->text, t->length}, &tokens, &count));
    p.tokens = tokens;
    tpl_node *body;
    SBP_TRY(sbp_tpl_parse_body(&p, &body));
    t->body = body;
    *job->out = t;
    return SBP_OK;
}

sbp_status sbp_template_parse(sbp_arena *arena, sbp_diag *diag, const char *name, const char *text,
                              size_t length, const sbp_template **out) {
    parse_job job = {arena, diag, name, text, length, out};
    if (length > (1 << 22))
        return sbp_fail(diag, SBP_INPUT, "%s: the template of %zu bytes is larger than 4 MiB", name, length);
    return sbp_guard(arena, diag, parse_body, &job);
}

bool sbp_template_has_marks(const sbp_template *template) {
    return template->has_marks;
}

static sbp_status set_variables(tpl_eval *e, const sbp_template_call *call) {
    for (int32_t i = 0; i < call->variable_count; i++) {
        const sbp_template_variable *v = &call->variables[i];
        tpl_value value;
        int32_t symbol = 0;
        while (symbol < e->template->symbol_count && strcmp(e->template->symbols[symbol], v->name) != 0)
            symbol++;
        if (symbol == e->template->symbol_count)
            continue; /* the template does not ask for it */
        if (v->json)
            SBP_TRY(sbp_tpl_from_json(e, v->json, &value));
        else
            value = v->text ? sbp_tpl_literal(v->text) : sbp_tpl_bool(v->boolean);
        if (value.kind == TPL_STRING && !sbp_tpl_valid_utf8(value.string))
            return sbp_tpl_fail(e, "the value of '%s' is not UTF-8", v->name);
        set_symbol(e, symbol, value);
    }
    return SBP_OK;
}

static sbp_status read_date(tpl_eval *e, const char *date) {
    int year, month, day;
    if (!date || sscanf(date, "%4d-%2d-%2d", &year, &month, &day) != 3)
        return sbp_tpl_fail(e, "expected a date as 2026-03-01, found '%s'", date ? date : "nothing");
    e->now = (struct tm){.tm_year = year - 1900, .tm_mon = month - 1, .tm_mday = day};
    time_t at = timegm(&e->now); /* fills the day of the week and of the year */
    return at == (time_t)-1 ? sbp_tpl_fail(e, "'%s' is not a date", date) : SBP_OK;
}

typedef struct render_job {
    tpl_eval *e;
    const sbp_template_call *call;
    sbp_arena *to;
    sbp_rendering *out;
} render_job;

static sbp_status render_body(void *user) {
    render_job *job = user;
    tpl_eval *e = job->e;
    SBP_TRY(read_date(e, job->call->date));
    sbp_text_init(&e->root, e->arena);
    e->out = &e->root;
    e->scope = open_scope(e, NULL);
    SBP_TRY(set_variables(e, job->call));
    e->scope = open_scope(e, e->scope);
    return run(e, e->template->body);
}

static sbp_status copy_body(void *user) {
    render_job *job = user;
    const tpl_eval *e = job->e;
    sbp_rendering *out = job->out;
    tpl_text text = {e->root.length ? e->root.data : "", e->root.length};
    *out = (sbp_rendering){.text = sbp_arena_strndup(job->to, text.data, text.length),
                           .length = text.length,
                           .spans = sbp_arena_array(job->to, (size_t)e->span_count, sizeof *out->spans),
                           .span_count = e->span_count,
                           .items = sbp_arena_array(job->to, (size_t)e->item_count, sizeof *out->items),
                           .item_count = e->item_count};
    if (e->item_count > 0)
        memcpy(out->items, e->items, (size_t)e->item_count * sizeof *out->items);
    for (int32_t i = 0; i < e->span_count; i++) {
        int64_t begin = e->spans[i][0], end = e->spans[i][1];
        tpl_text rest = {text.data + begin, text.length - (size_t)begin};
        out->spans[i][0] = begin;
        out->spans[i][1] = end >= begin ? end : begin + (int64_t)sbp_tpl_offset(rest, -end);
    }
    return SBP_OK;
}

sbp_status sbp_template_render(const sbp_template *template, sbp_arena *arena, sbp_diag *diag,
                               const sbp_template_call *call, sbp_rendering *out) {
    tpl_eval e = {.template = template,
                  .arena = sbp_arena_create(),
                  .diag = diag,
                  .where = call->where,
                  .limits = call->limits ? *call->limits : sbp_template_default_limits};
    render_job job = {&e, call, arena, out};
    if (!e.arena)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for rendering the chat template");
    e.left = e.limits;
    sbp_status status = sbp_guard(e.arena, diag, render_body, &job);
    if (status == SBP_OK)
        status = sbp_guard(arena, diag, copy_body, &job);
    sbp_arena_destroy(e.arena);
    return status;
}
