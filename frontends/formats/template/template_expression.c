/* template_expression.c: expressions, by descent. Weakest first: inline if, or, and, not, comparisons, + -,
 * ~,
 * * / // %, ** (to the left, as in Jinja), signs, then calls, attributes, filters and tests. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "frontends/formats/template/template_internal.h"

/* ---- tokens ---------------------------------------------------------------------------------------- */

sbp_status(sbp_tpl_parse_fail)(const tpl_parser *p, const tpl_token *at, const char *format, ...) {
    char text[600];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return sbp_fail(p->diag, SBP_INPUT, "%s:%d:%d: %s", p->template->name, at->line, at->column, text);
}

const char *sbp_tpl_describe(const tpl_parser *p, const tpl_token *token) {
    switch (token->kind) {
    case TPL_TOKEN_END:
        return "the end of the template";
    case TPL_TOKEN_DATA:
        return "text";
    case TPL_TOKEN_BLOCK_BEGIN:
        return "'{%'";
    case TPL_TOKEN_BLOCK_END:
        return "'%}'";
    case TPL_TOKEN_VARIABLE_BEGIN:
        return "'{{'";
    case TPL_TOKEN_VARIABLE_END:
        return "'}}'";
    case TPL_TOKEN_STRING:
        return "a string";
    default:
        return sbp_arena_printf(p->arena, "'%.*s'", (int)(token->text.length < 40 ? token->text.length : 40),
                                token->text.data);
    }
}

bool sbp_tpl_at_operator(const tpl_parser *p, int op) {
    return p->tokens->kind == TPL_TOKEN_OPERATOR && p->tokens->op == op;
}

bool sbp_tpl_at_name(const tpl_parser *p, const char *name) {
    return p->tokens->kind == TPL_TOKEN_NAME && sbp_tpl_is(p->tokens->text, name);
}

static bool skip_operator(tpl_parser *p, int op) {
    bool found = sbp_tpl_at_operator(p, op);
    p->tokens += found;
    return found;
}

static bool skip_name(tpl_parser *p, const char *name) {
    bool found = sbp_tpl_at_name(p, name);
    p->tokens += found;
    return found;
}

sbp_status sbp_tpl_expect_operator(tpl_parser *p, int op) {
    if (skip_operator(p, op))
        return SBP_OK;
    return sbp_tpl_parse_fail(p, p->tokens, "expected '%c', found %s", op, sbp_tpl_describe(p, p->tokens));
}

tpl_node *sbp_tpl_node(const tpl_parser *p, tpl_node_kind kind, const tpl_token *at) {
    tpl_node *node = SBP_NEW(p->arena, tpl_node);
    node->kind = kind;
    node->line = at->line;
    node->column = at->column;
    return node;
}

sbp_status sbp_tpl_enter(tpl_parser *p) {
    if (++p->depth > TPL_MOST_DEPTH)
        return sbp_tpl_parse_fail(p, p->tokens, "values are nested too deep");
    return SBP_OK;
}

int32_t sbp_tpl_symbol(tpl_parser *p, tpl_text name) {
    sbp_template *t = p->template;
    const char *text = sbp_arena_strndup(p->arena, name.data, name.length);
    int32_t symbol = sbp_map_get(&p->symbols, text);
    if (symbol < 0) {
        symbol = t->symbol_count;
        SBP_PUSH(p->arena, t->symbols, t->symbol_count, p->symbol_capacity, text);
        sbp_map_set(&p->symbols, text, symbol);
    }
    return symbol;
}

/* ---- parts ----------------------------------------------------------------------------------------- */

static sbp_status parse_or(tpl_parser *p, tpl_node **out);
static sbp_status parse_unary(tpl_parser *p, bool with_filters, tpl_node **out);

/* Where what follows a node goes, which was parsed. */
static tpl_node **behind(tpl_node *node) {
    assert(node);
    return &node->next;
}

static sbp_status parse_list(tpl_parser *p, tpl_node **out) {
    tpl_node *node = *out = sbp_tpl_node(p, TPL_LIST_OF, p->tokens++), **end = &node->items;
    while (!sbp_tpl_at_operator(p, ']')) {
        if (node->items) {
            SBP_TRY(sbp_tpl_expect_operator(p, ','));
            if (sbp_tpl_at_operator(p, ']'))
                break;
        }
        SBP_TRY(sbp_tpl_parse_expression(p, true, end));
        end = behind(*end);
    }
    p->tokens++;
    return SBP_OK;
}

static sbp_status parse_dict(tpl_parser *p, tpl_node **out) {
    tpl_node *node = *out = sbp_tpl_node(p, TPL_DICT_OF, p->tokens++), **end = &node->items;
    while (!sbp_tpl_at_operator(p, '}')) {
        if (node->items) {
            SBP_TRY(sbp_tpl_expect_operator(p, ','));
            if (sbp_tpl_at_operator(p, '}'))
                break;
        }
        SBP_TRY(sbp_tpl_parse_expression(p, true, end));
        end = behind(*end);
        SBP_TRY(sbp_tpl_expect_operator(p, ':'));
        SBP_TRY(sbp_tpl_parse_expression(p, true, end));
        end = behind(*end);
    }
    p->tokens++;
    return SBP_OK;
}

static tpl_node *constant(tpl_parser *p, tpl_value value) {
    tpl_node *node = sbp_tpl_node(p, TPL_CONST, p->tokens);
    node->value = value;
    return node;
}

/* true, none and so on; NULL for other names. */
static tpl_node *word_constant(tpl_parser *p) {
    tpl_text name = p->tokens->text;
    if (sbp_tpl_is(name, "true") || sbp_tpl_is(name, "True"))
        return constant(p, sbp_tpl_bool(true));
    if (sbp_tpl_is(name, "false") || sbp_tpl_is(name, "False"))
        return constant(p, sbp_tpl_bool(false));
    if (sbp_tpl_is(name, "none") || sbp_tpl_is(name, "None"))
        return constant(p, sbp_tpl_none());
    return NULL;
}

static tpl_node *parse_name(tpl_parser *p) {
    tpl_node *node = word_constant(p);
    if (!node) {
        tpl_text name = p->tokens->text;
        node = sbp_tpl_node(p, TPL_NAME, p->tokens);
        node->symbol = sbp_tpl_symbol(p, name);
        p->uses |= sbp_tpl_is(name, "caller")    ? TPL_USES_CALLER
                   : sbp_tpl_is(name, "varargs") ? TPL_USES_VARARGS
                   : sbp_tpl_is(name, "kwargs")  ? TPL_USES_KWARGS
                                                 : 0u;
    }
    p->tokens++;
    return node;
}

/* Strings one after the other are one. */
static tpl_node *parse_strings(tpl_parser *p) {
    sbp_text all;
    tpl_node *node = constant(p, sbp_tpl_none());
    sbp_text_init(&all, p->arena);
    for (; p->tokens->kind == TPL_TOKEN_STRING; p->tokens++)
        sbp_text_add_n(&all, p->tokens->text.data, p->tokens->text.length);
    node->value = sbp_tpl_string(all.length ? all.data : "", all.length);
    return node;
}

static sbp_status parse_primary(tpl_parser *p, tpl_node **out) {
    const tpl_token *token = p->tokens;
    if (token->kind == TPL_TOKEN_NAME) {
        *out = parse_name(p);
        return SBP_OK;
    }
    if (token->kind == TPL_TOKEN_STRING) {
        *out = parse_strings(p);
        return SBP_OK;
    }
    if (token->kind == TPL_TOKEN_NUMBER) {
        *out = constant(p, token->value);
        p->tokens++;
        return SBP_OK;
    }
    if (skip_operator(p, '(')) {
        if (sbp_tpl_at_operator(p, ')'))
            *out = sbp_tpl_node(p, TPL_TUPLE_OF, token);
        else
            SBP_TRY(sbp_tpl_parse_tuple(p, true, NULL, out));
        return sbp_tpl_expect_operator(p, ')');
    }
    if (sbp_tpl_at_operator(p, '['))
        return parse_list(p, out);
    if (sbp_tpl_at_operator(p, '{'))
        return parse_dict(p, out);
    return sbp_tpl_parse_fail(p, token, "expected an expression, found %s", sbp_tpl_describe(p, token));
}

/* ---- what stands behind ---------------------------------------------------------------------------- */

static sbp_status parse_argument(tpl_parser *p, tpl_node *call, tpl_node ***items, tpl_node ***named) {
    const tpl_token *at = p->tokens;
    if (at->kind == TPL_TOKEN_NAME && at[1].kind == TPL_TOKEN_OPERATOR && at[1].op == '=' && !call->c) {
        tpl_node *word = **named = sbp_tpl_node(p, TPL_KEYWORD, at);
        word->name = at->text.data;
        word->name_length = at->text.length;
        *named = &word->next;
        p->tokens += 2;
        return sbp_tpl_parse_expression(p, true, &word->a);
    }
    if (!call->b && !call->c && skip_operator(p, '*'))
        return sbp_tpl_parse_expression(p, true, &call->b);
    if (!call->c && skip_operator(p, TPL_OP('*', '*')))
        return sbp_tpl_parse_expression(p, true, &call->c);
    if (call->b || call->c || call->named)
        return sbp_tpl_parse_fail(p, at, "an argument by position follows one by name");
    SBP_TRY(sbp_tpl_parse_expression(p, true, *items));
    *items = &(**items)->next;
    return SBP_OK;
}

/* "( .. )" into the lists of a call, filter or test. */
static sbp_status parse_arguments(tpl_parser *p, tpl_node *call) {
    tpl_node **items = &call->items, **named = &call->named;
    SBP_TRY(sbp_tpl_expect_operator(p, '('));
    for (bool first = true; !sbp_tpl_at_operator(p, ')'); first = false) {
        if (!first) {
            SBP_TRY(sbp_tpl_expect_operator(p, ','));
            if (sbp_tpl_at_operator(p, ')'))
                break;
        }
        SBP_TRY(parse_argument(p, call, &items, &named));
    }
    p->tokens++;
    return SBP_OK;
}

/* [a], [a:b:c] or [a, b] */
static sbp_status parse_brackets(tpl_parser *p, tpl_node *of, tpl_node **out) {
    const tpl_token *at = p->tokens++;
    tpl_node *bounds[3] = {NULL};
    int colons = 0;
    for (; !sbp_tpl_at_operator(p, ']');) {
        if (colons < 2 && skip_operator(p, ':'))
            colons++;
        else if (bounds[colons])
            break;
        else
            SBP_TRY(sbp_tpl_parse_tuple(p, true, colons ? "" : NULL, &bounds[colons]));
    }
    if (colons == 0 && !bounds[0])
        return sbp_tpl_parse_fail(p, p->tokens, "expected an expression, found ']'");
    tpl_node *node = *out = sbp_tpl_node(p, colons ? TPL_SLICE : TPL_ITEM, at);
    node->a = of;
    node->b = bounds[0];
    node->c = bounds[1];
    node->d = bounds[2];
    return sbp_tpl_expect_operator(p, ']');
}

static sbp_status parse_dot(tpl_parser *p, tpl_node *of, tpl_node **out) {
    const tpl_token *at = p->tokens++, *name = p->tokens;
    tpl_node *node = *out = sbp_tpl_node(p, TPL_ATTRIBUTE, at);
    node->a = of;
    if (name->kind == TPL_TOKEN_NUMBER && name->value.kind == TPL_INT) {
        node->kind = TPL_ITEM;
        node->b = constant(p, name->value);
    } else if (name->kind == TPL_TOKEN_NAME) {
        node->name = name->text.data;
        node->name_length = name->text.length;
    } else {
        return sbp_tpl_parse_fail(p, name, "expected a name behind '.', found %s", sbp_tpl_describe(p, name));
    }
    p->tokens++;
    return SBP_OK;
}

static sbp_status parse_call(tpl_parser *p, tpl_node **node) {
    tpl_node *call = sbp_tpl_node(p, TPL_CALL, p->tokens);
    call->a = *node;
    *node = call;
    return parse_arguments(p, call);
}

static sbp_status parse_postfix(tpl_parser *p, tpl_node **node) {
    for (;;) {
        if (sbp_tpl_at_operator(p, '.'))
            SBP_TRY(parse_dot(p, *node, node));
        else if (sbp_tpl_at_operator(p, '['))
            SBP_TRY(parse_brackets(p, *node, node));
        else if (sbp_tpl_at_operator(p, '('))
            SBP_TRY(parse_call(p, node));
        else
            return SBP_OK;
    }
}

static sbp_status expect_name(tpl_parser *p, const char *what, tpl_text *out) {
    if (p->tokens->kind != TPL_TOKEN_NAME)
        return sbp_tpl_parse_fail(p, p->tokens, "expected the name of a %s, found %s", what,
                                  sbp_tpl_describe(p, p->tokens));
    *out = p->tokens++->text;
    return SBP_OK;
}

static sbp_status unknown(const tpl_parser *p, const tpl_token *at, const char *what, tpl_text name) {
    return sbp_tpl_parse_fail(
        p, at, sbp_tpl_jinja_has(name) ? "the %s '%.*s' is not supported" : "there is no %s '%.*s'", what,
        (int)(name.length < 60 ? name.length : 60), name.data);
}

sbp_status sbp_tpl_parse_filters(tpl_parser *p, bool is_inline, tpl_node **out) {
    while (is_inline || sbp_tpl_at_operator(p, '|')) {
        p->tokens += !is_inline;
        is_inline = false;
        const tpl_token *at = p->tokens;
        tpl_text name;
        SBP_TRY(expect_name(p, "filter", &name));
        tpl_node *node = sbp_tpl_node(p, TPL_FILTER, at);
        node->a = *out;
        node->builtin = sbp_tpl_find_filter(name);
        if (!node->builtin)
            return unknown(p, at, "filter", name);
        if (sbp_tpl_at_operator(p, '('))
            SBP_TRY(parse_arguments(p, node));
        *out = node;
    }
    return SBP_OK;
}

/* Whether what stands here is the argument of a test without brackets. */
static bool at_argument(const tpl_parser *p) {
    switch (p->tokens->kind) {
    case TPL_TOKEN_NAME:
        return !sbp_tpl_at_name(p, "else") && !sbp_tpl_at_name(p, "or") && !sbp_tpl_at_name(p, "and");
    case TPL_TOKEN_STRING:
    case TPL_TOKEN_NUMBER:
        return true;
    case TPL_TOKEN_OPERATOR: /* "(" was looked for before */
        return p->tokens->op == '[' || p->tokens->op == '{';
    default:
        return false;
    }
}

static sbp_status parse_test(tpl_parser *p, tpl_node **out) {
    const tpl_token *at = p->tokens++;
    bool negated = skip_name(p, "not");
    const tpl_token *name_at = p->tokens;
    tpl_text name;
    SBP_TRY(expect_name(p, "test", &name));
    tpl_node *node = sbp_tpl_node(p, TPL_TEST, at);
    node->a = *out;
    node->builtin = sbp_tpl_find_test(name);
    if (!node->builtin)
        return unknown(p, name_at, "test", name);
    if (sbp_tpl_at_operator(p, '(')) {
        SBP_TRY(parse_arguments(p, node));
    } else if (at_argument(p)) {
        if (sbp_tpl_at_name(p, "is"))
            return sbp_tpl_parse_fail(p, p->tokens, "tests are not chained with 'is'");
        SBP_TRY(parse_primary(p, &node->items));
        SBP_TRY(parse_postfix(p, &node->items));
    }
    *out = node;
    if (negated) {
        *out = sbp_tpl_node(p, TPL_NOT, at);
        (*out)->a = node;
    }
    return SBP_OK;
}

static sbp_status parse_filters_and_tests(tpl_parser *p, tpl_node **node) {
    for (;;) {
        if (sbp_tpl_at_operator(p, '|'))
            SBP_TRY(sbp_tpl_parse_filters(p, false, node));
        else if (sbp_tpl_at_name(p, "is"))
            SBP_TRY(parse_test(p, node));
        else if (sbp_tpl_at_operator(p, '('))
            SBP_TRY(parse_call(p, node));
        else
            return SBP_OK;
    }
}

/* ---- operators ------------------------------------------------------------------------------------- */

static sbp_status parse_unary(tpl_parser *p, bool with_filters, tpl_node **out) {
    const tpl_token *at = p->tokens;
    SBP_TRY(sbp_tpl_enter(p));
    if (skip_operator(p, '-') || skip_operator(p, '+')) {
        tpl_node *node = sbp_tpl_node(p, at->op == '-' ? TPL_NEGATIVE : TPL_POSITIVE, at);
        SBP_TRY(parse_unary(p, false, &node->a));
        *out = node;
    } else {
        SBP_TRY(parse_primary(p, out));
    }
    SBP_TRY(parse_postfix(p, out));
    p->depth--;
    return with_filters ? parse_filters_and_tests(p, out) : SBP_OK;
}

typedef sbp_status (*parse_level)(tpl_parser *p, tpl_node **out);

/* Operands of one level, joined to the left. */
static sbp_status parse_binary(tpl_parser *p, parse_level operand, const int *ops, int op_count,
                               tpl_node **out) {
    SBP_TRY(operand(p, out));
    for (int32_t length = 0;; length++) {
        const tpl_token *at = p->tokens;
        bool found = false;
        for (int i = 0; i < op_count; i++)
            found |= sbp_tpl_at_operator(p, ops[i]);
        if (!found)
            return SBP_OK;
        if (length == TPL_MOST_DEPTH / 2)
            return sbp_tpl_parse_fail(p, at, "too many operators in one expression");
        tpl_node *node = sbp_tpl_node(p, TPL_BINARY, at);
        p->tokens++;
        node->op = at->op;
        node->a = *out;
        SBP_TRY(operand(p, &node->b));
        *out = node;
    }
}

static sbp_status parse_signed(tpl_parser *p, tpl_node **out) {
    return parse_unary(p, true, out);
}

static sbp_status parse_power(tpl_parser *p, tpl_node **out) {
    static const int ops[] = {TPL_OP('*', '*')};
    return parse_binary(p, parse_signed, ops, 1, out);
}

static sbp_status parse_product(tpl_parser *p, tpl_node **out) {
    static const int ops[] = {'*', '/', TPL_OP('/', '/'), '%'};
    return parse_binary(p, parse_power, ops, SBP_COUNT(ops), out);
}

static sbp_status parse_concat(tpl_parser *p, tpl_node **out) {
    SBP_TRY(parse_product(p, out));
    if (!sbp_tpl_at_operator(p, '~'))
        return SBP_OK;
    tpl_node *node = sbp_tpl_node(p, TPL_CONCAT, p->tokens), **end = &(*out)->next;
    node->items = *out;
    while (skip_operator(p, '~')) {
        SBP_TRY(parse_product(p, end));
        end = behind(*end);
    }
    *out = node;
    return SBP_OK;
}

static sbp_status parse_sum(tpl_parser *p, tpl_node **out) {
    static const int ops[] = {'+', '-'};
    return parse_binary(p, parse_concat, ops, SBP_COUNT(ops), out);
}

/* The operator of a comparison that stands here, 0: none. */
static int skip_comparison(tpl_parser *p) {
    static const int ops[] = {
        TPL_OP('=', '='), TPL_OP('!', '='), TPL_OP('>', '='), TPL_OP('<', '='), '>', '<'};
    for (int i = 0; i < SBP_COUNT(ops); i++)
        if (skip_operator(p, ops[i]))
            return ops[i];
    if (skip_name(p, "in"))
        return TPL_OP_IN;
    if (sbp_tpl_at_name(p, "not") && p->tokens[1].kind == TPL_TOKEN_NAME &&
        sbp_tpl_is(p->tokens[1].text, "in")) {
        p->tokens += 2;
        return TPL_OP_NOT_IN;
    }
    return 0;
}

static sbp_status parse_comparison(tpl_parser *p, tpl_node **out) {
    SBP_TRY(parse_sum(p, out));
    tpl_node *node = NULL, **end = NULL;
    for (;;) {
        const tpl_token *at = p->tokens;
        int op = skip_comparison(p);
        if (op == 0)
            return SBP_OK;
        if (!node) {
            node = sbp_tpl_node(p, TPL_COMPARE, at);
            node->a = *out;
            end = &node->items;
            *out = node;
        }
        *end = sbp_tpl_node(p, TPL_OPERAND, at);
        (*end)->op = op;
        SBP_TRY(parse_sum(p, &(*end)->a));
        end = behind(*end);
    }
}

static sbp_status parse_not(tpl_parser *p, tpl_node **out) {
    const tpl_token *at = p->tokens;
    if (!skip_name(p, "not"))
        return parse_comparison(p, out);
    SBP_TRY(sbp_tpl_enter(p));
    tpl_node *node = sbp_tpl_node(p, TPL_NOT, at);
    SBP_TRY(parse_not(p, &node->a));
    *out = node;
    p->depth--;
    return SBP_OK;
}

static sbp_status parse_words(tpl_parser *p, const char *word, tpl_node_kind kind, parse_level operand,
                              tpl_node **out) {
    SBP_TRY(operand(p, out));
    for (int32_t length = 0;; length++) {
        const tpl_token *at = p->tokens;
        if (!skip_name(p, word))
            return SBP_OK;
        if (length == TPL_MOST_DEPTH / 2)
            return sbp_tpl_parse_fail(p, at, "too many operators in one expression");
        tpl_node *node = sbp_tpl_node(p, kind, at);
        node->a = *out;
        SBP_TRY(operand(p, &node->b));
        *out = node;
    }
}

static sbp_status parse_and(tpl_parser *p, tpl_node **out) {
    return parse_words(p, "and", TPL_AND, parse_not, out);
}

static sbp_status parse_or(tpl_parser *p, tpl_node **out) {
    return parse_words(p, "or", TPL_OR, parse_and, out);
}

static sbp_status parse_condition(tpl_parser *p, tpl_node **out) {
    SBP_TRY(sbp_tpl_enter(p));
    SBP_TRY(parse_or(p, out));
    int32_t entered = 1;
    for (const tpl_token *at = p->tokens; skip_name(p, "if"); at = p->tokens, entered++) {
        tpl_node *node = sbp_tpl_node(p, TPL_CONDITION, at);
        node->b = *out;
        SBP_TRY(sbp_tpl_enter(p));
        SBP_TRY(parse_or(p, &node->a));
        if (skip_name(p, "else"))
            SBP_TRY(parse_condition(p, &node->c));
        *out = node;
    }
    p->depth -= entered;
    return SBP_OK;
}

sbp_status sbp_tpl_parse_expression(tpl_parser *p, bool with_condition, tpl_node **out) {
    *out = NULL;
    if (with_condition)
        return parse_condition(p, out);
    SBP_TRY(sbp_tpl_enter(p));
    SBP_TRY(parse_or(p, out));
    p->depth--;
    return SBP_OK;
}

/* ---- tuples and targets ---------------------------------------------------------------------------- */

static bool at_tuple_end(const tpl_parser *p, const char *end) {
    return p->tokens->kind == TPL_TOKEN_VARIABLE_END || p->tokens->kind == TPL_TOKEN_BLOCK_END ||
           sbp_tpl_at_operator(p, ')') || sbp_tpl_at_operator(p, ']') || (end && sbp_tpl_at_name(p, end));
}

/* Items by `item`, one of them as it is. */
static sbp_status parse_items(tpl_parser *p, const char *end, bool with_condition, bool targets,
                              tpl_node **out) {
    const tpl_token *at = p->tokens;
    tpl_node *first = NULL, **last = &first;
    bool is_tuple = false;
    for (;;) {
        if (first)
            SBP_TRY(sbp_tpl_expect_operator(p, ','));
        if (at_tuple_end(p, end))
            break;
        SBP_TRY(targets ? sbp_tpl_parse_target(p, true, end, last)
                        : sbp_tpl_parse_expression(p, with_condition, last));
        last = behind(*last);
        if (!sbp_tpl_at_operator(p, ','))
            break;
        is_tuple = true;
    }
    if (!first)
        return sbp_tpl_parse_fail(p, at, "expected %s, found %s", targets ? "a name to set" : "an expression",
                                  sbp_tpl_describe(p, at));
    *out = first;
    if (is_tuple) {
        *out = sbp_tpl_node(p, TPL_TUPLE_OF, at);
        (*out)->items = first;
    }
    return SBP_OK;
}

sbp_status sbp_tpl_parse_tuple(tpl_parser *p, bool with_condition, const char *end, tpl_node **out) {
    return parse_items(p, end, with_condition, false, out);
}

/* One target: a name, a namespace's attribute, or targets in brackets. */
static sbp_status parse_one_target(tpl_parser *p, const char *end, tpl_node **out) {
    const tpl_token *at = p->tokens;
    SBP_TRY(sbp_tpl_enter(p));
    if (skip_operator(p, '(')) {
        SBP_TRY(parse_items(p, end, false, true, out));
        SBP_TRY(sbp_tpl_expect_operator(p, ')'));
    } else if (at->kind != TPL_TOKEN_NAME || word_constant(p)) {
        return sbp_tpl_parse_fail(p, at, "expected a name to set, found %s", sbp_tpl_describe(p, at));
    } else if (p->loops > 0 && sbp_tpl_is(at->text, "loop")) {
        return sbp_tpl_parse_fail(p, at, "'loop' cannot be set inside of a loop");
    } else {
        tpl_node *node = *out = sbp_tpl_node(p, TPL_NAME, at);
        node->symbol = sbp_tpl_symbol(p, at->text);
        p->tokens++;
        if (skip_operator(p, '.')) {
            tpl_text name = {"", 0};
            SBP_TRY(expect_name(p, "namespace's attribute", &name));
            node->kind = TPL_NAMESPACE_ITEM;
            node->value = sbp_tpl_string(name.data, name.length);
        }
    }
    p->depth--;
    return SBP_OK;
}

sbp_status sbp_tpl_parse_target(tpl_parser *p, bool names_only, const char *end, tpl_node **out) {
    return names_only ? parse_one_target(p, end, out) : parse_items(p, end, false, true, out);
}
