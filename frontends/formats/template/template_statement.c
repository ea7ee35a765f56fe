/* template_statement.c: tags and what stands between them. */
#include <string.h>

#include "frontends/formats/template/template_internal.h"

static sbp_status parse_block(tpl_parser *p, const char *const *ends, tpl_node **out);

static sbp_status expect_block_end(tpl_parser *p) {
    if (p->tokens->kind != TPL_TOKEN_BLOCK_END)
        return sbp_tpl_parse_fail(p, p->tokens, "expected '%%}', found %s", sbp_tpl_describe(p, p->tokens));
    p->tokens++;
    return SBP_OK;
}

/* Statements up to a tag of one of these names, of which the current token is then the name. */
static sbp_status parse_until(tpl_parser *p, const tpl_token *opened, const char *const *ends,
                              tpl_node **out) {
    if (sbp_tpl_at_operator(p, ':'))
        p->tokens++;
    SBP_TRY(expect_block_end(p));
    SBP_TRY(parse_block(p, ends, out));
    if (p->tokens->kind == TPL_TOKEN_END)
        return sbp_tpl_parse_fail(p, opened, "'%.*s' has no '%s'", (int)opened->text.length,
                                  opened->text.data, ends[0]);
    return SBP_OK;
}

/* The same, and behind that name. */
static sbp_status parse_to(tpl_parser *p, const tpl_token *opened, const char *end, tpl_node **out) {
    const char *const ends[] = {end, NULL};
    SBP_TRY(parse_until(p, opened, ends, out));
    p->tokens++;
    return SBP_OK;
}

static sbp_status parse_set(tpl_parser *p, const tpl_token *at, tpl_node **out) {
    tpl_node *node = *out = sbp_tpl_node(p, TPL_SET, at);
    SBP_TRY(sbp_tpl_parse_target(p, false, NULL, &node->a));
    if (sbp_tpl_at_operator(p, '=')) {
        p->tokens++;
        return sbp_tpl_parse_tuple(p, true, NULL, &node->b);
    }
    node->kind = TPL_SET_BLOCK;
    SBP_TRY(sbp_tpl_parse_filters(p, false, &node->b));
    return parse_to(p, at, "endset", &node->items);
}

static sbp_status parse_for(tpl_parser *p, const tpl_token *at, tpl_node **out) {
    static const char *const ends[] = {"endfor", "else", NULL};
    tpl_node *node = *out = sbp_tpl_node(p, TPL_FOR, at);
    p->loops++;
    SBP_TRY(sbp_tpl_parse_target(p, false, "in", &node->a));
    if (!sbp_tpl_at_name(p, "in"))
        return sbp_tpl_parse_fail(p, p->tokens, "expected 'in', found %s", sbp_tpl_describe(p, p->tokens));
    p->tokens++;
    SBP_TRY(sbp_tpl_parse_tuple(p, false, "recursive", &node->b));
    if (sbp_tpl_at_name(p, "if")) {
        p->tokens++;
        SBP_TRY(sbp_tpl_parse_expression(p, true, &node->c));
    }
    if (sbp_tpl_at_name(p, "recursive"))
        return sbp_tpl_parse_fail(p, p->tokens, "recursive loops are not supported");
    SBP_TRY(parse_until(p, at, ends, &node->items));
    p->loops--;
    bool has_else = sbp_tpl_at_name(p, "else");
    p->tokens++;
    return has_else ? parse_to(p, at, "endfor", &node->other) : SBP_OK;
}

static sbp_status parse_if(tpl_parser *p, const tpl_token *at, tpl_node **out) {
    static const char *const ends[] = {"endif", "elif", "else", NULL};
    for (;;) {
        tpl_node *node = *out = sbp_tpl_node(p, TPL_IF, p->tokens);
        SBP_TRY(sbp_tpl_parse_tuple(p, false, NULL, &node->a));
        SBP_TRY(parse_until(p, at, ends, &node->items));
        const tpl_token *end = p->tokens++;
        if (sbp_tpl_is(end->text, "else"))
            return parse_to(p, at, "endif", &node->other);
        if (sbp_tpl_is(end->text, "endif"))
            return SBP_OK;
        out = &node->other;
    }
}

static sbp_status parse_with(tpl_parser *p, const tpl_token *at, tpl_node **out) {
    tpl_node *node = *out = sbp_tpl_node(p, TPL_WITH, at), *last = NULL;
    while (p->tokens->kind != TPL_TOKEN_BLOCK_END) {
        if (last)
            SBP_TRY(sbp_tpl_expect_operator(p, ','));
        tpl_node *set = sbp_tpl_node(p, TPL_SET, p->tokens);
        SBP_TRY(sbp_tpl_parse_target(p, false, NULL, &set->a));
        SBP_TRY(sbp_tpl_expect_operator(p, '='));
        SBP_TRY(sbp_tpl_parse_expression(p, true, &set->b));
        if (last)
            last->next = set;
        else
            node->named = set;
        last = set;
    }
    return parse_to(p, at, "endwith", &node->items);
}

/* "(a, b=1)": keywords whose symbol is the parameter and whose a is the default. */
static sbp_status parse_parameters(tpl_parser *p, tpl_node *node) {
    tpl_node **end = &node->named;
    bool defaults = false;
    SBP_TRY(sbp_tpl_expect_operator(p, '('));
    while (!sbp_tpl_at_operator(p, ')')) {
        if (node->named)
            SBP_TRY(sbp_tpl_expect_operator(p, ','));
        const tpl_token *at = p->tokens;
        if (at->kind != TPL_TOKEN_NAME)
            return sbp_tpl_parse_fail(p, at, "expected the name of a parameter, found %s",
                                      sbp_tpl_describe(p, at));
        tpl_node *word = *end = sbp_tpl_node(p, TPL_KEYWORD, at);
        word->symbol = sbp_tpl_symbol(p, at->text);
        word->name = at->text.data;
        word->name_length = at->text.length;
        end = &word->next;
        p->tokens++;
        if (sbp_tpl_at_operator(p, '=')) {
            p->tokens++;
            defaults = true;
            SBP_TRY(sbp_tpl_parse_expression(p, true, &word->a));
        } else if (defaults) {
            return sbp_tpl_parse_fail(p, at, "a parameter without default follows one that has one");
        }
    }
    p->tokens++;
    return SBP_OK;
}

/* The body of a macro, which sees no loop around it. */
static sbp_status parse_macro_body(tpl_parser *p, const tpl_token *at, const char *end, tpl_node *node) {
    unsigned uses = p->uses;
    int32_t loops = p->loops;
    p->uses = 0;
    p->loops = 0;
    SBP_TRY(parse_to(p, at, end, &node->items));
    node->uses = p->uses;
    p->uses |= uses;
    p->loops = loops;
    return SBP_OK;
}

static sbp_status parse_macro(tpl_parser *p, const tpl_token *at, tpl_node **out) {
    tpl_node *node = *out = sbp_tpl_node(p, TPL_MACRO_OF, at);
    unsigned uses = p->uses;
    SBP_TRY(sbp_tpl_parse_target(p, true, NULL, &node->a));
    if (node->a->kind != TPL_NAME)
        return sbp_tpl_parse_fail(p, at, "expected the name of a macro");
    node->name = p->template->symbols[node->a->symbol];
    SBP_TRY(parse_parameters(p, node));
    SBP_TRY(parse_macro_body(p, at, "endmacro", node));
    p->uses = uses;
    return SBP_OK;
}

static sbp_status parse_call_block(tpl_parser *p, const tpl_token *at, tpl_node **out) {
    tpl_node *node = *out = sbp_tpl_node(p, TPL_CALL_BLOCK, at);
    if (sbp_tpl_at_operator(p, '('))
        SBP_TRY(parse_parameters(p, node));
    SBP_TRY(sbp_tpl_parse_expression(p, true, &node->a));
    if (node->a->kind != TPL_CALL)
        return sbp_tpl_parse_fail(p, at, "expected a call behind 'call'");
    return parse_macro_body(p, at, "endcall", node);
}

static sbp_status parse_filter_block(tpl_parser *p, const tpl_token *at, tpl_node **out) {
    tpl_node *node = *out = sbp_tpl_node(p, TPL_FILTER_BLOCK, at);
    SBP_TRY(sbp_tpl_parse_filters(p, true, &node->b));
    return parse_to(p, at, "endfilter", &node->items);
}

static sbp_status parse_generation(tpl_parser *p, const tpl_token *at, tpl_node **out) {
    tpl_node *node = *out = sbp_tpl_node(p, TPL_GENERATION, at);
    p->template->has_marks = true;
    return parse_macro_body(p, at, "endgeneration", node);
}

static sbp_status parse_print(tpl_parser *p, const tpl_token *at, tpl_node **out) {
    while (p->tokens->kind != TPL_TOKEN_BLOCK_END) {
        if (*out) {
            SBP_TRY(sbp_tpl_expect_operator(p, ','));
            out = &(*out)->next;
        }
        *out = sbp_tpl_node(p, TPL_OUTPUT, at);
        SBP_TRY(sbp_tpl_parse_expression(p, true, &(*out)->a));
    }
    return SBP_OK;
}

static sbp_status parse_leave(tpl_parser *p, const tpl_token *at, tpl_node **out) {
    if (p->loops == 0)
        return sbp_tpl_parse_fail(p, at, "'%.*s' is used outside of a loop", (int)at->text.length,
                                  at->text.data);
    *out = sbp_tpl_node(p, sbp_tpl_is(at->text, "break") ? TPL_BREAK : TPL_CONTINUE, at);
    return SBP_OK;
}

static sbp_status parse_statement(tpl_parser *p, tpl_node **out) {
    static const struct {
        const char *name;
        sbp_status (*parse)(tpl_parser *p, const tpl_token *at, tpl_node **out);
    } statements[] = {
        {"if", parse_if},
        {"for", parse_for},
        {"set", parse_set},
        {"macro", parse_macro},
        {"with", parse_with},
        {"generation", parse_generation},
        {"break", parse_leave},
        {"continue", parse_leave},
        {"call", parse_call_block},
        {"print", parse_print},
        {"filter", parse_filter_block},
    };
    static const char *const refused[] = {"include", "import", "from", "extends", "block", "autoescape"};
    const tpl_token *at = p->tokens;
    if (at->kind != TPL_TOKEN_NAME)
        return sbp_tpl_parse_fail(p, at, "expected the name of a tag, found %s", sbp_tpl_describe(p, at));
    for (int i = 0; i < SBP_COUNT(statements); i++)
        if (sbp_tpl_is(at->text, statements[i].name)) {
            p->tokens++;
            return statements[i].parse(p, at, out);
        }
    for (int i = 0; i < SBP_COUNT(refused); i++)
        if (sbp_tpl_is(at->text, refused[i]))
            return sbp_tpl_parse_fail(p, at,
                                      "'%s' is not supported: a template is one file, and its text is "
                                      "used as it is",
                                      refused[i]);
    return sbp_tpl_parse_fail(p, at, "the tag %s is unknown, or belongs to nothing", sbp_tpl_describe(p, at));
}

static bool at_one_of(const tpl_parser *p, const char *const *names) {
    for (; names && *names; names++)
        if (sbp_tpl_at_name(p, *names))
            return true;
    return false;
}

static sbp_status parse_one(tpl_parser *p, tpl_node **out) {
    const tpl_token *at = p->tokens;
    if (at->kind == TPL_TOKEN_DATA) {
        *out = sbp_tpl_node(p, TPL_DATA, at);
        (*out)->value = sbp_tpl_string(at->text.data, at->text.length);
        p->tokens++;
        return SBP_OK;
    }
    if (at->kind == TPL_TOKEN_VARIABLE_BEGIN) {
        *out = sbp_tpl_node(p, TPL_OUTPUT, at);
        p->tokens++;
        SBP_TRY(sbp_tpl_parse_tuple(p, true, NULL, &(*out)->a));
        if (p->tokens->kind != TPL_TOKEN_VARIABLE_END)
            return sbp_tpl_parse_fail(p, p->tokens, "expected '}}', found %s",
                                      sbp_tpl_describe(p, p->tokens));
        p->tokens++;
        return SBP_OK;
    }
    SBP_TRY(parse_statement(p, out)); /* behind its '{%' */
    return expect_block_end(p);
}

/* Statements up to the end, or to the name of a tag of `ends`. */
static sbp_status parse_block(tpl_parser *p, const char *const *ends, tpl_node **out) {
    SBP_TRY(sbp_tpl_enter(p));
    *out = NULL;
    while (p->tokens->kind != TPL_TOKEN_END) {
        if (p->tokens->kind == TPL_TOKEN_BLOCK_BEGIN) {
            p->tokens++;
            if (at_one_of(p, ends))
                break;
        }
        SBP_TRY(parse_one(p, out));
        while (*out)
            out = &(*out)->next;
    }
    p->depth--;
    return SBP_OK;
}

sbp_status sbp_tpl_parse_body(tpl_parser *p, tpl_node **out) {
    return parse_block(p, NULL, out);
}
