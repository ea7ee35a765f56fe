/* template_eval.c: expressions, and how names are found. */
#include <string.h>

#include "frontends/formats/template/template_internal.h"

/* ---- arguments ------------------------------------------------------------------------------------- */

static sbp_status add_rest(tpl_eval *e, const tpl_node *node, tpl_args *args) {
    tpl_value rest, *items;
    int64_t count;
    SBP_TRY(sbp_tpl_eval(e, node, &rest));
    SBP_TRY(sbp_tpl_iterate(e, &rest, &items, &count));
    SBP_TRY(sbp_tpl_charge(e, count));
    for (int64_t i = 0; i < count; i++)
        sbp_tpl_args_add(e, args, items[i]);
    return SBP_OK;
}

static sbp_status add_named_rest(tpl_eval *e, const tpl_node *node, tpl_args *args) {
    tpl_value rest;
    SBP_TRY(sbp_tpl_eval(e, node, &rest));
    if (rest.kind != TPL_DICT)
        return sbp_tpl_fail(e, "expected a dict behind '**', found %s", sbp_tpl_type(&rest));
    for (int32_t i = 0; i < rest.dict->count; i++) {
        const tpl_entry *entry = &rest.dict->entries[i];
        if (entry->key.kind != TPL_STRING)
            return sbp_tpl_fail(e, "an argument's name is a %s", sbp_tpl_type(&entry->key));
        sbp_tpl_args_name(e, args, entry->key.string, entry->value);
    }
    return SBP_OK;
}

static sbp_status eval_arguments(tpl_eval *e, const tpl_node *node, tpl_args *args) {
    for (const tpl_node *item = node->items; item; item = item->next) {
        tpl_value value;
        SBP_TRY(sbp_tpl_eval(e, item, &value));
        sbp_tpl_args_add(e, args, value);
    }
    for (const tpl_node *word = node->named; word; word = word->next) {
        tpl_value value;
        SBP_TRY(sbp_tpl_eval(e, word->a, &value));
        sbp_tpl_args_name(e, args, (tpl_text){word->name, word->name_length}, value);
    }
    if (node->b)
        SBP_TRY(add_rest(e, node->b, args));
    return node->c ? add_named_rest(e, node->c, args) : SBP_OK;
}

sbp_status sbp_tpl_call(tpl_eval *e, const tpl_value *callee, tpl_args *args, tpl_value *out) {
    switch (callee->kind) {
    case TPL_MACRO:
        return sbp_tpl_call_macro(e, callee->macro, args, out);
    case TPL_FUNCTION:
        return sbp_tpl_call_builtin(e, &callee->function->builtin, "function", callee, args, out);
    case TPL_METHOD:
        return sbp_tpl_call_builtin(e, callee->method->builtin, "method", &callee->method->self, args, out);
    case TPL_UNDEFINED:
        return sbp_tpl_fail(e, "%s", callee->undefined);
    default:
        return sbp_tpl_fail(e, "a %s cannot be called", sbp_tpl_type(callee));
    }
}

/* ---- parts ----------------------------------------------------------------------------------------- */

static sbp_status eval_name(tpl_eval *e, const tpl_node *node, tpl_value *out) {
    for (const tpl_scope *scope = e->scope; scope; scope = scope->outer)
        for (int32_t i = 0; i < scope->count; i++)
            if (scope->bindings[i].symbol == node->symbol) {
                *out = scope->bindings[i].value;
                return SBP_OK;
            }
    const char *name = e->template->symbols[node->symbol];
    const tpl_function *function = sbp_tpl_find_function((tpl_text){name, strlen(name)});
    *out = function ? (tpl_value){.kind = TPL_FUNCTION, .function = function}
                    : sbp_tpl_undefined(e, "'%.100s' is undefined", name);
    return SBP_OK;
}

static sbp_status eval_items(tpl_eval *e, const tpl_node *node, tpl_kind kind, tpl_value *out) {
    int64_t count = 0;
    for (const tpl_node *item = node->items; item; item = item->next)
        count++;
    *out = sbp_tpl_sequence(e, kind, count);
    tpl_value *to = out->sequence->items;
    for (const tpl_node *item = node->items; item; item = item->next)
        SBP_TRY(sbp_tpl_eval(e, item, to++));
    return SBP_OK;
}

static sbp_status eval_dict(tpl_eval *e, const tpl_node *node, tpl_value *out) {
    *out = sbp_tpl_dict(e);
    for (const tpl_node *key = node->items; key; key = key->next->next) {
        tpl_value name, value;
        SBP_TRY(sbp_tpl_eval(e, key, &name));
        SBP_TRY(sbp_tpl_eval(e, key->next, &value));
        SBP_TRY(sbp_tpl_dict_set(e, out->dict, name, value));
    }
    return SBP_OK;
}

static sbp_status eval_concat(tpl_eval *e, const tpl_node *node, tpl_value *out) {
    sbp_text text;
    sbp_text_init(&text, e->arena);
    for (const tpl_node *item = node->items; item; item = item->next) {
        tpl_value value;
        SBP_TRY(sbp_tpl_eval(e, item, &value));
        SBP_TRY(sbp_tpl_add_str(e, &text, &value));
    }
    return sbp_tpl_text_value(e, &text, false, out);
}

static sbp_status compare(tpl_eval *e, int op, const tpl_value *a, const tpl_value *b, bool *out) {
    switch (op) {
    case TPL_OP('=', '='):
        return sbp_tpl_equal(e, a, b, out);
    case TPL_OP('!', '='):
        SBP_TRY(sbp_tpl_equal(e, a, b, out));
        *out = !*out;
        return SBP_OK;
    case TPL_OP_IN:
        return sbp_tpl_contains(e, b, a, out);
    case TPL_OP_NOT_IN:
        SBP_TRY(sbp_tpl_contains(e, b, a, out));
        *out = !*out;
        return SBP_OK;
    default:
        return sbp_tpl_less(e, op, a, b, out);
    }
}

static sbp_status eval_compare(tpl_eval *e, const tpl_node *node, tpl_value *out) {
    tpl_value left, right;
    bool holds = true;
    SBP_TRY(sbp_tpl_eval(e, node->a, &left));
    for (const tpl_node *operand = node->items; operand && holds; operand = operand->next) {
        SBP_TRY(sbp_tpl_eval(e, operand->a, &right));
        e->at = operand;
        SBP_TRY(compare(e, operand->op, &left, &right, &holds));
        left = right;
    }
    *out = sbp_tpl_bool(holds);
    return SBP_OK;
}

static sbp_status eval_sign(tpl_eval *e, const tpl_node *node, tpl_value *out) {
    tpl_value value;
    int64_t integer;
    SBP_TRY(sbp_tpl_eval(e, node->a, &value));
    bool negative = node->kind == TPL_NEGATIVE;
    if (value.kind == TPL_FLOAT)
        *out = sbp_tpl_float(negative ? -value.real : value.real);
    else if (sbp_tpl_integer(&value, &integer) && integer != INT64_MIN)
        *out = sbp_tpl_int(negative ? -integer : integer);
    else if (value.kind == TPL_UNDEFINED)
        return sbp_tpl_fail(e, "%s", value.undefined);
    else
        return sbp_tpl_fail(e, "a %s has no sign", sbp_tpl_type(&value));
    return SBP_OK;
}

static sbp_status eval_slice(tpl_eval *e, const tpl_node *node, const tpl_value *of, tpl_value *out) {
    const tpl_node *const nodes[3] = {node->b, node->c, node->d};
    tpl_value bounds[3] = {{.kind = TPL_MISSING}, {.kind = TPL_MISSING}, {.kind = TPL_MISSING}};
    for (int i = 0; i < 3; i++)
        if (nodes[i])
            SBP_TRY(sbp_tpl_eval(e, nodes[i], &bounds[i]));
    e->at = node;
    return sbp_tpl_slice(e, of, bounds, out);
}

static sbp_status eval_call(tpl_eval *e, const tpl_node *node, tpl_value *out) {
    tpl_args args = {0};
    tpl_value callee;
    SBP_TRY(sbp_tpl_eval(e, node->a, &callee));
    SBP_TRY(eval_arguments(e, node, &args));
    e->at = node;
    return sbp_tpl_call(e, &callee, &args, out);
}

/* A filter or test of a value. */
static sbp_status apply(tpl_eval *e, const tpl_node *node, const char *what, const tpl_value *value,
                        tpl_value *out) {
    tpl_args args = {0};
    SBP_TRY(eval_arguments(e, node, &args));
    e->at = node;
    return sbp_tpl_call_builtin(e, node->builtin, what, value, &args, out);
}

/* Operations on the value of node->a. */
static sbp_status eval_on(tpl_eval *e, const tpl_node *node, const tpl_value *a, tpl_value *out) {
    tpl_value b;
    switch (node->kind) {
    case TPL_ATTRIBUTE:
        return sbp_tpl_attribute(e, a, (tpl_text){node->name, node->name_length}, out);
    case TPL_ITEM:
        SBP_TRY(sbp_tpl_eval(e, node->b, &b));
        e->at = node;
        return sbp_tpl_item(e, a, &b, out);
    case TPL_SLICE:
        return eval_slice(e, node, a, out);
    case TPL_FILTER:
        return apply(e, node, "filter", a, out);
    case TPL_TEST:
        return apply(e, node, "test", a, out);
    case TPL_NOT:
        *out = sbp_tpl_bool(!sbp_tpl_truth(a));
        return SBP_OK;
    case TPL_AND:
    case TPL_OR:
        if (sbp_tpl_truth(a) == (node->kind == TPL_AND))
            return sbp_tpl_eval(e, node->b, out);
        *out = *a;
        return SBP_OK;
    case TPL_BINARY:
        SBP_TRY(sbp_tpl_eval(e, node->b, &b));
        e->at = node;
        return sbp_tpl_binary(e, node->op, a, &b, out);
    default: /* TPL_CONDITION */
        if (sbp_tpl_truth(a))
            return sbp_tpl_eval(e, node->b, out);
        if (node->c)
            return sbp_tpl_eval(e, node->c, out);
        *out = sbp_tpl_undefined(e, "the condition of an inline if does not hold, and it has no else");
        return SBP_OK;
    }
}

static sbp_status eval_node(tpl_eval *e, const tpl_node *node, tpl_value *out) {
    tpl_value a;
    switch (node->kind) {
    case TPL_CONST:
        *out = node->value;
        return SBP_OK;
    case TPL_NAME:
        return eval_name(e, node, out);
    case TPL_LIST_OF:
        return eval_items(e, node, TPL_LIST, out);
    case TPL_TUPLE_OF:
        return eval_items(e, node, TPL_TUPLE, out);
    case TPL_DICT_OF:
        return eval_dict(e, node, out);
    case TPL_CONCAT:
        return eval_concat(e, node, out);
    case TPL_COMPARE:
        return eval_compare(e, node, out);
    case TPL_NEGATIVE:
    case TPL_POSITIVE:
        return eval_sign(e, node, out);
    case TPL_CALL:
        return eval_call(e, node, out);
    default:
        SBP_TRY(sbp_tpl_eval(e, node->a, &a));
        e->at = node;
        return eval_on(e, node, &a, out);
    }
}

sbp_status sbp_tpl_eval(tpl_eval *e, const tpl_node *node, tpl_value *out) {
    e->at = node;
    SBP_TRY(sbp_tpl_deeper(e));
    SBP_TRY(eval_node(e, node, out));
    e->depth--;
    return SBP_OK;
}

sbp_status sbp_tpl_eval_filters(tpl_eval *e, const tpl_node *node, const tpl_value *value, tpl_value *out) {
    tpl_value inner = *value;
    SBP_TRY(sbp_tpl_deeper(e));
    if (node->a)
        SBP_TRY(sbp_tpl_eval_filters(e, node->a, value, &inner));
    e->at = node;
    SBP_TRY(apply(e, node, "filter", &inner, out));
    e->depth--;
    return SBP_OK;
}
