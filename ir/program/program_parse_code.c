/* program_parse_code.c: the parser's half for views, commands, loops and calls. */
#include "ir/program/command.h"
#include "ir/program/program_parse.h"
#include "ir/program/traits.h"

#include <string.h>

enum { MAX_DEPTH = 8 };

/* ---- views ------------------------------------------------------------------------------------------ */

/* row0 rows hi blocks all lo0 lo1 ... */
static bool is_column(const sbp_lexer *lexer, int32_t *out) {
    static const char *const columns[] = {"row0", "rows", "hi", "blocks", "all", "all_blocks"};
    if (lexer->token != SBP_TOKEN_NAME)
        return false;
    for (int32_t c = 0; c < SBP_COUNT(columns); c++)
        if (strcmp(lexer->text, columns[c]) == 0) {
            *out = c;
            return true;
        }
    const char *text = lexer->text;
    if (text[0] != 'l' || text[1] != 'o' || text[2] == 0 || (text[2] == '0' && text[3] != 0))
        return false;
    int32_t window = 0;
    for (text += 2; *text; text++) {
        if (*text < '0' || *text > '9' || window >= SBP_MAX_WINDOWS)
            return false;
        window = window * 10 + (*text - '0');
    }
    *out = SBP_COLUMN_LO + window;
    return window < SBP_MAX_WINDOWS;
}

/* C | 16 | (2*C+1), after "i*" */
static sbp_status read_step(sbp_program_parser *p, sbp_extent *out) {
    bool parenthesis;
    sbp_symbol symbol;
    SBP_TRY(sbp_lexer_accept(&p->lexer, "(", &parenthesis));
    if (parenthesis) {
        SBP_TRY(sbp_lexer_extent(&p->lexer, out));
        return sbp_lexer_expect(&p->lexer, ")");
    }
    if (sbp_parser_is_symbol(&p->lexer, &symbol)) {
        *out = sbp_extent_symbol(symbol, 1);
        return sbp_lexer_next(&p->lexer);
    }
    int64_t factor;
    SBP_TRY(sbp_lexer_int(&p->lexer, &factor));
    *out = sbp_extent_const(factor);
    return SBP_OK;
}

/* 5 | T | 2*T */
static sbp_status read_base_term(sbp_program_parser *p, sbp_extent *base) {
    sbp_symbol symbol = SBP_ONE;
    int64_t factor = 1;
    if (p->lexer.token == SBP_TOKEN_INT) {
        SBP_TRY(sbp_lexer_int(&p->lexer, &factor));
        bool star;
        SBP_TRY(sbp_lexer_accept(&p->lexer, "*", &star));
        if (star)
            SBP_TRY(sbp_parser_symbol(p, &symbol));
    } else {
        SBP_TRY(sbp_parser_symbol(p, &symbol));
    }
    if (!sbp_add_i64(base->c[symbol], factor, &base->c[symbol]))
        return sbp_lexer_fail(&p->lexer, "extent out of range");
    return SBP_OK;
}

/* base + i*step + column, any of them absent */
static sbp_status read_index(sbp_program_parser *p, sbp_index *out) {
    *out = (sbp_index){.column = -1};
    bool stepped = false;
    for (bool first = true;; first = false) {
        bool plus = false;
        if (!first) {
            SBP_TRY(sbp_lexer_accept(&p->lexer, "+", &plus));
            if (!plus && !(p->lexer.token == SBP_TOKEN_INT && p->lexer.integer < 0))
                return SBP_OK;
        }
        int32_t column;
        if (sbp_lexer_is(&p->lexer, "i")) {
            if (stepped)
                return sbp_lexer_fail(&p->lexer, "i occurs twice in an index");
            stepped = true;
            SBP_TRY(sbp_lexer_next(&p->lexer));
            SBP_TRY(sbp_lexer_expect(&p->lexer, "*"));
            SBP_TRY(read_step(p, &out->step));
        } else if (is_column(&p->lexer, &column)) {
            if (out->column >= 0)
                return sbp_lexer_fail(&p->lexer, "two table columns in an index");
            out->column = column;
            SBP_TRY(sbp_lexer_next(&p->lexer));
        } else {
            SBP_TRY(read_base_term(p, &out->base));
        }
    }
}

static sbp_status read_view_base(sbp_program_parser *p, sbp_view *out) {
    bool formal;
    SBP_TRY(sbp_lexer_accept(&p->lexer, "%", &formal));
    if (formal) {
        int32_t index;
        if (!p->function)
            return sbp_lexer_fail(&p->lexer, "a formal outside functions");
        SBP_TRY(sbp_parser_known_name(p, &p->formals, "formal", &index));
        *out = sbp_view_formal(p->function, index);
    } else {
        const char *name;
        SBP_TRY(sbp_parser_name(p, &name));
        int32_t index = p->function ? sbp_map_get(&p->local_buffers, name) : -1;
        if (index < 0)
            index = sbp_map_get(&p->buffers, name);
        if (index < 0)
            return sbp_parser_fail_name(p, "no buffer", name);
        *out = sbp_view_buffer(p->program, index, 0);
    }
    bool slot;
    SBP_TRY(sbp_lexer_accept(&p->lexer, "@", &slot));
    return slot ? sbp_parser_int32(p, 0, INT32_MAX, &out->slot) : SBP_OK;
}

/* [/width], behind which the view is of all rows of that width */
static sbp_status read_width(sbp_program_parser *p, sbp_view *view) {
    bool wide;
    int64_t width, cols;
    sbp_extent rows;
    SBP_TRY(sbp_lexer_accept(&p->lexer, "/", &wide));
    if (!wide)
        return SBP_OK;
    SBP_TRY(sbp_lexer_int(&p->lexer, &width));
    view->width = width;
    if (width < 1 || !sbp_view_shape(p->program, p->function, view, &rows, &cols))
        return sbp_lexer_fail(&p->lexer,
                              "no width of %lld here: rows must be constant, their elements a multiple",
                              (long long)width);
    view->length.base = rows;
    view->cols = cols;
    return SBP_OK;
}

static sbp_status read_view(sbp_program_parser *p, sbp_view *out) {
    SBP_TRY(read_view_base(p, out));
    SBP_TRY(read_width(p, out));
    bool some, all, until, columns;
    SBP_TRY(sbp_lexer_accept(&p->lexer, "[", &some));
    if (!some)
        return SBP_OK;
    SBP_TRY(sbp_lexer_accept(&p->lexer, "*", &all));
    if (!all) {
        SBP_TRY(read_index(p, &out->start));
        SBP_TRY(sbp_lexer_accept(&p->lexer, "until", &until));
        out->until = until;
        if (!until)
            SBP_TRY(sbp_lexer_expect(&p->lexer, "for"));
        SBP_TRY(read_index(p, &out->length));
    }
    SBP_TRY(sbp_lexer_accept(&p->lexer, ",", &columns));
    if (columns) {
        SBP_TRY(sbp_lexer_int(&p->lexer, &out->col));
        SBP_TRY(sbp_lexer_expect(&p->lexer, "for"));
        SBP_TRY(sbp_lexer_int(&p->lexer, &out->cols));
    }
    return sbp_lexer_expect(&p->lexer, "]");
}

/* = | := | += as the access demands */
static sbp_status expect_access(sbp_program_parser *p, sbp_access access) {
    SBP_TRY(sbp_lexer_expect(&p->lexer, access == SBP_READ ? "=" : access == SBP_WRITE ? ":" : "+"));
    return access == SBP_READ ? SBP_OK : sbp_lexer_expect(&p->lexer, "=");
}

/* (name = view, ...) in the order of names[0 .. count); operands may be left out where `optional` says so. */
static sbp_status read_operands(sbp_program_parser *p, const sbp_command_operand *operands, int32_t count,
                                sbp_view *views) {
    for (int32_t k = 0; k < count; k++)
        views[k] = sbp_view_none();
    bool more;
    SBP_TRY(sbp_lexer_accept(&p->lexer, "(", &more));
    for (int32_t at = 0; more; at++) {
        const char *name;
        SBP_TRY(sbp_parser_name(p, &name));
        while (at < count && strcmp(operands[at].name, name) != 0)
            at++;
        if (at >= count)
            return sbp_parser_fail_name(p, "unknown, repeated or misplaced operand", name);
        SBP_TRY(expect_access(p, operands[at].access));
        SBP_TRY(read_view(p, &views[at]));
        SBP_TRY(sbp_lexer_accept(&p->lexer, ",", &more));
        if (!more)
            SBP_TRY(sbp_lexer_expect(&p->lexer, ")"));
    }
    for (int32_t k = 0; k < count; k++)
        if (views[k].ref == SBP_NO_VIEW && !operands[k].optional)
            return sbp_parser_fail_name(p, "no operand", operands[k].name);
    return SBP_OK;
}

/* ---- commands --------------------------------------------------------------------------------------- */

static sbp_status read_scalars(sbp_program_parser *p, sbp_command *c, const sbp_rowkernel *kernel) {
    c->scalar_count = kernel->scalar_count;
    c->scalars = SBP_NEW_ARRAY(p->arena, int32_t, kernel->scalar_count);
    for (int32_t s = 0; s < kernel->scalar_count; s++) {
        SBP_TRY(sbp_lexer_expect(&p->lexer, s == 0 ? "with" : ","));
        const char *name;
        SBP_TRY(sbp_parser_name(p, &name));
        if (strcmp(name, kernel->scalars[s]) != 0)
            return sbp_lexer_fail(&p->lexer, "expected scalar '%.60s', found '%.60s'", kernel->scalars[s],
                                  name);
        SBP_TRY(sbp_lexer_expect(&p->lexer, "="));
        if (p->lexer.token != SBP_TOKEN_INT && p->lexer.token != SBP_TOKEN_FLOAT) {
            SBP_TRY(sbp_parser_known_name(p, &p->scalars, "scalar", &c->scalars[s]));
            continue;
        }
        if (!c->literals)
            c->literals = SBP_NEW_ARRAY(p->arena, double, kernel->scalar_count);
        c->scalars[s] = SBP_LITERAL;
        SBP_TRY(sbp_lexer_double(&p->lexer, &c->literals[s]));
    }
    return SBP_OK;
}

static sbp_status read_gradient(sbp_program_parser *p, sbp_command *c, const sbp_command_operand *operands,
                                int32_t count) {
    const char *name;
    SBP_TRY(sbp_parser_name(p, &name));
    for (int32_t k = 0; k < count; k++)
        if (strcmp(operands[k].name, name) == 0) {
            c->gradient = k;
            return SBP_OK;
        }
    return sbp_parser_fail_name(p, "no operand", name);
}

static sbp_status read_queue(sbp_program_parser *p, int32_t *out) {
    int word = 0;
    SBP_TRY(sbp_parser_word(p, sbp_queue_names, SBP_QUEUE_COUNT, "a queue", &word));
    *out = word;
    return SBP_OK;
}

static sbp_status read_field(sbp_program_parser *p, const sbp_field *field) {
    int word = 0;
    if (field->type == SBP_FIELD_FLAG) {
        *(bool *)field->at = true;
        return SBP_OK;
    }
    SBP_TRY(sbp_lexer_expect(&p->lexer, "="));
    if (field->type == SBP_FIELD_INT)
        return sbp_lexer_int(&p->lexer, field->at);
    if (field->type == SBP_FIELD_DOUBLE)
        return sbp_lexer_double(&p->lexer, field->at);
    SBP_TRY(sbp_parser_word(p, field->words, field->word_count, field->what, &word));
    memcpy(field->at, &(int32_t){word}, sizeof(int32_t));
    return SBP_OK;
}

/* What a command has of attributes that its text does not name. The others are 0. */
static void set_fallbacks(const sbp_fields *fields) {
    for (int32_t k = 0; k < fields->count; k++)
        if (fields->list[k].type == SBP_FIELD_DOUBLE)
            *(double *)fields->list[k].at = fields->list[k].fallback;
}

/* {name, name = value, ...} */
static sbp_status read_attrs(sbp_program_parser *p, sbp_command *c, const sbp_command_operand *operands,
                             int32_t count) {
    sbp_fields fields;
    bool more, seen[SBP_MAX_FIELDS] = {false};
    sbp_command_fields(c, &fields);
    set_fallbacks(&fields);
    SBP_TRY(sbp_lexer_accept(&p->lexer, "{", &more));
    while (more) {
        const char *name;
        SBP_TRY(sbp_parser_name(p, &name));
        if (strcmp(name, "queue") == 0) {
            SBP_TRY(sbp_lexer_expect(&p->lexer, "="));
            SBP_TRY(read_queue(p, &c->queue));
        } else if (strcmp(name, "flushes") == 0) {
            SBP_TRY(sbp_lexer_expect(&p->lexer, "="));
            SBP_TRY(sbp_parser_known_name(p, &p->buffers, "buffer", &c->flushes));
        } else if (strcmp(name, "gradient") == 0) {
            SBP_TRY(sbp_lexer_expect(&p->lexer, "="));
            SBP_TRY(read_gradient(p, c, operands, count));
        } else {
            int k = 0;
            while (k < fields.count && strcmp(fields.list[k].name, name) != 0)
                k++;
            if (k == fields.count || seen[k])
                return sbp_parser_fail_name(p, "unknown or repeated attribute", name);
            seen[k] = true;
            SBP_TRY(read_field(p, &fields.list[k]));
        }
        SBP_TRY(sbp_lexer_accept(&p->lexer, ",", &more));
        if (!more)
            SBP_TRY(sbp_lexer_expect(&p->lexer, "}"));
    }
    return SBP_OK;
}

static sbp_status read_command(sbp_program_parser *p, sbp_command_kind kind, sbp_command **out) {
    int32_t kernel = -1;
    bool of_kernel = sbp_command_traits_of(kind)->attributes == SBP_ATTRIBUTES_ROW;
    if (of_kernel) {
        SBP_TRY(sbp_lexer_expect(&p->lexer, "@"));
        SBP_TRY(sbp_parser_known_name(p, &p->kernels, "kernel", &kernel));
    }
    sbp_command_operand operands[SBP_MAX_COMMAND_OPERANDS];
    int32_t count =
        sbp_command_signature(p->program, &(sbp_command){.kind = kind, .kernel = kernel}, operands);
    sbp_command *c = sbp_command_create(p->arena, kind, count);
    c->kernel = kernel;
    c->view_count = count;
    SBP_TRY(read_operands(p, operands, c->view_count, c->views));
    if (of_kernel)
        SBP_TRY(read_scalars(p, c, p->program->kernels[c->kernel]));
    SBP_TRY(read_attrs(p, c, operands, c->view_count));
    *out = c;
    return SBP_OK;
}

/* ---- bodies ----------------------------------------------------------------------------------------- */

static sbp_status read_call(sbp_program_parser *p, sbp_call **out) {
    sbp_call *call = SBP_NEW(p->arena, sbp_call);
    SBP_TRY(sbp_lexer_expect(&p->lexer, "@"));
    SBP_TRY(sbp_parser_known_name(p, &p->functions, "function before this line", &call->function));
    const sbp_function *callee = &p->program->functions[call->function];
    call->views = SBP_NEW_ARRAY(p->arena, sbp_view, callee->formal_count);
    for (int32_t k = 0; k < callee->formal_count; k++) {
        SBP_TRY(sbp_lexer_expect(&p->lexer, k == 0 ? "(" : ","));
        const char *name;
        SBP_TRY(sbp_parser_name(p, &name));
        if (strcmp(name, callee->formals[k].name) != 0)
            return sbp_lexer_fail(&p->lexer, "expected formal '%.60s', found '%.60s'",
                                  callee->formals[k].name, name);
        SBP_TRY(expect_access(p, callee->formals[k].access));
        SBP_TRY(read_view(p, &call->views[k]));
    }
    *out = call;
    return callee->formal_count > 0 ? sbp_lexer_expect(&p->lexer, ")") : SBP_OK;
}

static sbp_status read_body(sbp_program_parser *p, sbp_body *body, int depth);

/* in TABLE | below SCALAR, [descending], body */
static sbp_status read_loop(sbp_program_parser *p, sbp_loop **out, int depth) {
    sbp_loop *loop = SBP_NEW(p->arena, sbp_loop);
    loop->table = loop->scalar = -1;
    bool below;
    SBP_TRY(sbp_lexer_accept(&p->lexer, "below", &below));
    if (below) {
        SBP_TRY(sbp_parser_known_name(p, &p->scalars, "scalar", &loop->scalar));
    } else {
        SBP_TRY(sbp_lexer_expect(&p->lexer, "i"));
        SBP_TRY(sbp_lexer_expect(&p->lexer, "in"));
        SBP_TRY(sbp_parser_known_name(p, &p->tables, "table", &loop->table));
    }
    SBP_TRY(sbp_lexer_accept(&p->lexer, "descending", &loop->descending));
    *out = loop;
    return read_body(p, &loop->body, depth);
}

static sbp_status read_node(sbp_program_parser *p, sbp_node *out, int depth) {
    const char *word;
    if (p->lexer.token != SBP_TOKEN_NAME)
        return sbp_lexer_fail(&p->lexer, "expected a command, found '%.60s'", p->lexer.text);
    SBP_TRY(sbp_parser_name(p, &word));
    if (strcmp(word, "loop") == 0) {
        out->kind = SBP_NODE_LOOP;
        return read_loop(p, &out->u.loop, depth);
    }
    if (strcmp(word, "call") == 0) {
        out->kind = SBP_NODE_CALL;
        return read_call(p, &out->u.call);
    }
    sbp_command_kind kind;
    if (sbp_command_find(word, &kind)) {
        out->kind = SBP_NODE_COMMAND;
        return read_command(p, kind, &out->u.command);
    }
    return sbp_parser_fail_name(p, "unknown command", word);
}

/* { node ... } */
static sbp_status read_body(sbp_program_parser *p, sbp_body *body, int depth) {
    if (depth > MAX_DEPTH)
        return sbp_lexer_fail(&p->lexer, "loops nest more than %d deep", MAX_DEPTH);
    SBP_TRY(sbp_lexer_expect(&p->lexer, "{"));
    while (!sbp_lexer_is(&p->lexer, "}")) {
        sbp_node node = {0};
        SBP_TRY(read_node(p, &node, depth + 1));
        SBP_PUSH(p->arena, body->nodes, body->count, body->capacity, node);
    }
    return sbp_lexer_next(&p->lexer);
}

sbp_status sbp_parser_body(sbp_program_parser *p, sbp_body *body) {
    return read_body(p, body, 0);
}
