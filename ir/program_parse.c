/* program_parse.c: reads the text form of programs (program_print.c). The text is untrusted: recursion is
 * bounded by MAX_DEPTH, counts by the length of the text, and names are looked up in tables. What is read
 * may still be nonsense: sbp_program_verify() decides. */
#include "ir/lex.h"
#include "ir/program.h"

#include <string.h>

enum { MAX_DEPTH = 8 };

/* Buffers of one function (scope 0: of the program), as a list through parser.next_in_scope. */
typedef struct scope {
    const char *name;
    int32_t first;
    int line;
} scope;

typedef struct parser {
    sbp_lexer lexer;
    sbp_arena *arena;
    int name_line; /* of the latest name read */
    sbp_program *program;
    sbp_map buffers, scalars, tables, kernels, functions, scope_names;
    scope *scopes; /* one per function that buffers name */
    int32_t scope_count, scope_capacity;
    int32_t *next_in_scope, next_count, next_capacity; /* per buffer */
    /* the function being read */
    const sbp_function *function;
    sbp_map formals, local_buffers;
} parser;

/* ---- small things ----------------------------------------------------------------------------------- */

/* The lexer stands behind a name that turns out to be wrong, maybe on the next line. */
static sbp_status read_name(parser *p, const char **out) {
    p->name_line = p->lexer.line;
    return sbp_lexer_name(&p->lexer, out);
}

static sbp_status fail_name(parser *p, const char *what, const char *name) {
    p->lexer.line = p->name_line;
    return sbp_lexer_fail(&p->lexer, "%s '%.80s'", what, name);
}

static sbp_status read_int32(parser *p, int64_t least, int64_t most, int32_t *out) {
    int64_t value;
    SBP_TRY(sbp_lexer_int(&p->lexer, &value));
    if (value < least || value > most)
        return sbp_lexer_fail(&p->lexer, "%lld is not within %lld to %lld", (long long)value,
                              (long long)least, (long long)most);
    *out = (int32_t)value;
    return SBP_OK;
}

/* A name that must be new in `map`; it gets the number `index`. */
static sbp_status read_new_name(parser *p, sbp_map *map, int32_t index, const char *what, const char **out) {
    SBP_TRY(read_name(p, out));
    if (sbp_map_get(map, *out) >= 0)
        return fail_name(p, sbp_arena_printf(p->arena, "a second %s", what), *out);
    sbp_map_set(map, *out, index);
    return SBP_OK;
}

static sbp_status read_known_name(parser *p, const sbp_map *map, const char *what, int32_t *out) {
    const char *name;
    SBP_TRY(read_name(p, &name));
    *out = sbp_map_get(map, name);
    return *out >= 0 ? SBP_OK : fail_name(p, sbp_arena_printf(p->arena, "no %s", what), name);
}

/* One of `words`. */
static sbp_status read_word(parser *p, const char *const *words, int count, const char *what, int *out) {
    for (int w = 0; w < count; w++)
        if (sbp_lexer_is(&p->lexer, words[w])) {
            *out = w;
            return sbp_lexer_next(&p->lexer);
        }
    return sbp_lexer_fail(&p->lexer, "expected %s, found '%.60s'", what, p->lexer.text);
}

static bool is_symbol(const sbp_lexer *lexer, sbp_symbol *out) {
    for (int s = 1; s < SBP_SYMBOL_COUNT; s++)
        if (sbp_lexer_is(lexer, sbp_symbol_name((sbp_symbol)s))) {
            *out = (sbp_symbol)s;
            return true;
        }
    return false;
}

static sbp_status read_symbol(parser *p, sbp_symbol *out) {
    if (!is_symbol(&p->lexer, out))
        return sbp_lexer_fail(&p->lexer, "expected T, S, C or H, found '%.60s'", p->lexer.text);
    return sbp_lexer_next(&p->lexer);
}

static sbp_status read_field(parser *p, const char *keyword, int64_t *out) {
    SBP_TRY(sbp_lexer_expect(&p->lexer, keyword));
    return sbp_lexer_int(&p->lexer, out);
}

/* f32[T, 8] */
static sbp_status read_shape(parser *p, sbp_dtype *dtype, sbp_extent *rows, int64_t *cols) {
    SBP_TRY(sbp_lexer_dtype(&p->lexer, dtype));
    SBP_TRY(sbp_lexer_expect(&p->lexer, "["));
    SBP_TRY(sbp_lexer_extent(&p->lexer, rows));
    SBP_TRY(sbp_lexer_expect(&p->lexer, ","));
    SBP_TRY(sbp_lexer_int(&p->lexer, cols));
    return sbp_lexer_expect(&p->lexer, "]");
}

/* ---- views ------------------------------------------------------------------------------------------ */

/* row0 rows hi blocks lo0 lo1 ... */
static bool is_column(const sbp_lexer *lexer, int32_t *out) {
    static const char *const columns[] = {"row0", "rows", "hi", "blocks"};
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
static sbp_status read_step(parser *p, sbp_extent *out) {
    bool parenthesis;
    sbp_symbol symbol;
    SBP_TRY(sbp_lexer_accept(&p->lexer, "(", &parenthesis));
    if (parenthesis) {
        SBP_TRY(sbp_lexer_extent(&p->lexer, out));
        return sbp_lexer_expect(&p->lexer, ")");
    }
    if (is_symbol(&p->lexer, &symbol)) {
        *out = sbp_extent_symbol(symbol, 1);
        return sbp_lexer_next(&p->lexer);
    }
    int64_t factor;
    SBP_TRY(sbp_lexer_int(&p->lexer, &factor));
    *out = sbp_extent_const(factor);
    return SBP_OK;
}

/* 5 | T | 2*T */
static sbp_status read_base_term(parser *p, sbp_extent *base) {
    sbp_symbol symbol = SBP_ONE;
    int64_t factor = 1;
    if (p->lexer.token == SBP_TOKEN_INT) {
        SBP_TRY(sbp_lexer_int(&p->lexer, &factor));
        bool star;
        SBP_TRY(sbp_lexer_accept(&p->lexer, "*", &star));
        if (star)
            SBP_TRY(read_symbol(p, &symbol));
    } else {
        SBP_TRY(read_symbol(p, &symbol));
    }
    if (!sbp_add_i64(base->c[symbol], factor, &base->c[symbol]))
        return sbp_lexer_fail(&p->lexer, "extent out of range");
    return SBP_OK;
}

/* base + i*step + column, any of them absent */
static sbp_status read_index(parser *p, sbp_index *out) {
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

static sbp_status read_view_base(parser *p, sbp_view *out) {
    bool formal;
    SBP_TRY(sbp_lexer_accept(&p->lexer, "%", &formal));
    if (formal) {
        int32_t index;
        if (!p->function)
            return sbp_lexer_fail(&p->lexer, "a formal outside functions");
        SBP_TRY(read_known_name(p, &p->formals, "formal", &index));
        *out = sbp_view_formal(p->function, index);
    } else {
        const char *name;
        SBP_TRY(read_name(p, &name));
        int32_t index = p->function ? sbp_map_get(&p->local_buffers, name) : -1;
        if (index < 0)
            index = sbp_map_get(&p->buffers, name);
        if (index < 0)
            return fail_name(p, "no buffer", name);
        *out = sbp_view_buffer(p->program, index, 0);
    }
    bool slot;
    SBP_TRY(sbp_lexer_accept(&p->lexer, "@", &slot));
    return slot ? read_int32(p, 0, INT32_MAX, &out->slot) : SBP_OK;
}

static sbp_status read_view(parser *p, sbp_view *out) {
    SBP_TRY(read_view_base(p, out));
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
static sbp_status expect_access(parser *p, sbp_access access) {
    SBP_TRY(sbp_lexer_expect(&p->lexer, access == SBP_READ ? "=" : access == SBP_WRITE ? ":" : "+"));
    return access == SBP_READ ? SBP_OK : sbp_lexer_expect(&p->lexer, "=");
}

/* (name = view, ...) in the order of names[0 .. count); operands may be left out where `optional` says so. */
static sbp_status read_operands(parser *p, const sbp_command_operand *operands, int32_t count,
                                sbp_view *views) {
    for (int32_t k = 0; k < count; k++)
        views[k] = sbp_view_none();
    bool more;
    SBP_TRY(sbp_lexer_accept(&p->lexer, "(", &more));
    for (int32_t at = 0; more; at++) {
        const char *name;
        SBP_TRY(read_name(p, &name));
        while (at < count && strcmp(operands[at].name, name) != 0)
            at++;
        if (at >= count)
            return fail_name(p, "unknown, repeated or misplaced operand", name);
        SBP_TRY(expect_access(p, operands[at].access));
        SBP_TRY(read_view(p, &views[at]));
        SBP_TRY(sbp_lexer_accept(&p->lexer, ",", &more));
        if (!more)
            SBP_TRY(sbp_lexer_expect(&p->lexer, ")"));
    }
    for (int32_t k = 0; k < count; k++)
        if (views[k].ref == SBP_NO_VIEW && !operands[k].optional)
            return fail_name(p, "no operand", operands[k].name);
    return SBP_OK;
}

/* ---- commands --------------------------------------------------------------------------------------- */

static sbp_status read_scalars(parser *p, sbp_command *c, const sbp_rowkernel *kernel) {
    c->scalar_count = kernel->scalar_count;
    c->scalars = SBP_NEW_ARRAY(p->arena, int32_t, kernel->scalar_count);
    for (int32_t s = 0; s < kernel->scalar_count; s++) {
        SBP_TRY(sbp_lexer_expect(&p->lexer, s == 0 ? "with" : ","));
        const char *name;
        SBP_TRY(read_name(p, &name));
        if (strcmp(name, kernel->scalars[s]) != 0)
            return sbp_lexer_fail(&p->lexer, "expected scalar '%.60s', found '%.60s'", kernel->scalars[s],
                                  name);
        SBP_TRY(sbp_lexer_expect(&p->lexer, "="));
        SBP_TRY(read_known_name(p, &p->scalars, "scalar", &c->scalars[s]));
    }
    return SBP_OK;
}

static sbp_status read_gradient(parser *p, sbp_command *c, const sbp_command_operand *operands,
                                int32_t count) {
    const char *name;
    SBP_TRY(read_name(p, &name));
    for (int32_t k = 0; k < count; k++)
        if (strcmp(operands[k].name, name) == 0) {
            c->gradient = k;
            return SBP_OK;
        }
    return fail_name(p, "no operand", name);
}

typedef enum attr_type {
    ATTR_FLAG,
    ATTR_INT,
    ATTR_INT32,
    ATTR_DOUBLE,
    ATTR_REDUCE,
    ATTR_COLLECTIVE
} attr_type;

typedef struct attr {
    const char *name;
    attr_type type;
    void *field;
} attr;

enum { MAX_ATTRS = 8 };

/* The attributes of a command besides queue, flushes and gradient; sets their defaults. */
static int command_attrs(sbp_command *c, attr *out) {
    int n = 0;
#define ATTR(...)                                                                                            \
    out[n++] = (attr) {                                                                                      \
        __VA_ARGS__                                                                                          \
    }
    switch (c->kind) {
    case SBP_CMD_FILL:
        ATTR("value", ATTR_DOUBLE, &c->u.fill);
        break;
    case SBP_CMD_GEMM:
        c->u.gemm.alpha = 1;
        ATTR("ta", ATTR_FLAG, &c->u.gemm.ta);
        ATTR("tb", ATTR_FLAG, &c->u.gemm.tb);
        ATTR("alpha", ATTR_DOUBLE, &c->u.gemm.alpha);
        ATTR("beta", ATTR_DOUBLE, &c->u.gemm.beta);
        break;
    case SBP_CMD_COLSUM:
        ATTR("beta", ATTR_DOUBLE, &c->u.reduce.beta);
        break;
    case SBP_CMD_REDUCE:
        ATTR("op", ATTR_REDUCE, &c->u.reduce.op);
        ATTR("beta", ATTR_DOUBLE, &c->u.reduce.beta);
        break;
    case SBP_CMD_ATTN_FWD:
    case SBP_CMD_ATTN_BWD:
        ATTR("heads", ATTR_INT, &c->u.attention.heads);
        ATTR("kv_heads", ATTR_INT, &c->u.attention.kv_heads);
        ATTR("d_qk", ATTR_INT, &c->u.attention.d_qk);
        ATTR("d_v", ATTR_INT, &c->u.attention.d_v);
        ATTR("scale", ATTR_DOUBLE, &c->u.attention.scale);
        ATTR("window", ATTR_INT, &c->u.attention.window);
        ATTR("softcap", ATTR_DOUBLE, &c->u.attention.softcap);
        break;
    case SBP_CMD_COLLECTIVE:
        ATTR("op", ATTR_COLLECTIVE, &c->u.collective);
        break;
    case SBP_CMD_FENCE:
        ATTR("from", ATTR_INT32, &c->u.fence.from);
        ATTR("to", ATTR_INT32, &c->u.fence.to);
        break;
    default:
        break;
    }
#undef ATTR
    return n;
}

static sbp_status read_attr_value(parser *p, const attr *a) {
    static const char *const reduce_ops[] = {"sum", "max", "sumsq"};
    static const char *const collective_ops[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast"};
    int word = 0;
    if (a->type == ATTR_FLAG) {
        *(bool *)a->field = true;
        return SBP_OK;
    }
    SBP_TRY(sbp_lexer_expect(&p->lexer, "="));
    switch (a->type) {
    case ATTR_INT:
        return sbp_lexer_int(&p->lexer, a->field);
    case ATTR_INT32:
        return read_int32(p, INT32_MIN, INT32_MAX, a->field);
    case ATTR_DOUBLE:
        return sbp_lexer_double(&p->lexer, a->field);
    case ATTR_REDUCE:
        SBP_TRY(read_word(p, reduce_ops, SBP_COUNT(reduce_ops), "a reduction", &word));
        *(sbp_reduce_op *)a->field = (sbp_reduce_op)word;
        return SBP_OK;
    case ATTR_COLLECTIVE:
        SBP_TRY(read_word(p, collective_ops, SBP_COUNT(collective_ops), "a collective operation", &word));
        *(sbp_collective_op *)a->field = (sbp_collective_op)word;
        return SBP_OK;
    default:
        return SBP_OK;
    }
}

/* {name, name = value, ...} */
static sbp_status read_attrs(parser *p, sbp_command *c, const sbp_command_operand *operands, int32_t count) {
    attr attrs[MAX_ATTRS];
    int attr_count = command_attrs(c, attrs);
    bool more, seen[MAX_ATTRS] = {false};
    SBP_TRY(sbp_lexer_accept(&p->lexer, "{", &more));
    while (more) {
        const char *name;
        SBP_TRY(read_name(p, &name));
        if (strcmp(name, "queue") == 0) {
            SBP_TRY(sbp_lexer_expect(&p->lexer, "="));
            SBP_TRY(read_int32(p, INT32_MIN, INT32_MAX, &c->queue));
        } else if (strcmp(name, "flushes") == 0) {
            SBP_TRY(sbp_lexer_expect(&p->lexer, "="));
            SBP_TRY(read_known_name(p, &p->buffers, "buffer", &c->flushes));
        } else if (strcmp(name, "gradient") == 0) {
            SBP_TRY(sbp_lexer_expect(&p->lexer, "="));
            SBP_TRY(read_gradient(p, c, operands, count));
        } else {
            int k = 0;
            while (k < attr_count && strcmp(attrs[k].name, name) != 0)
                k++;
            if (k == attr_count || seen[k])
                return fail_name(p, "unknown or repeated attribute", name);
            seen[k] = true;
            SBP_TRY(read_attr_value(p, &attrs[k]));
        }
        SBP_TRY(sbp_lexer_accept(&p->lexer, ",", &more));
        if (!more)
            SBP_TRY(sbp_lexer_expect(&p->lexer, "}"));
    }
    return SBP_OK;
}

static sbp_status read_command(parser *p, sbp_command_kind kind, sbp_command **out) {
    sbp_command *c = SBP_NEW(p->arena, sbp_command);
    c->kind = kind;
    c->flushes = -1;
    c->gradient = c->kernel = -1;
    if (kind == SBP_CMD_ROW) {
        SBP_TRY(sbp_lexer_expect(&p->lexer, "@"));
        SBP_TRY(read_known_name(p, &p->kernels, "kernel", &c->kernel));
    }
    sbp_command_operand operands[SBP_MAX_COMMAND_OPERANDS];
    c->view_count = sbp_command_operands(p->program, c, operands);
    SBP_TRY(read_operands(p, operands, c->view_count, c->views));
    if (kind == SBP_CMD_ROW)
        SBP_TRY(read_scalars(p, c, p->program->kernels[c->kernel]));
    SBP_TRY(read_attrs(p, c, operands, c->view_count));
    *out = c;
    return SBP_OK;
}

/* ---- bodies ----------------------------------------------------------------------------------------- */

static sbp_status read_call(parser *p, sbp_call **out) {
    sbp_call *call = SBP_NEW(p->arena, sbp_call);
    SBP_TRY(sbp_lexer_expect(&p->lexer, "@"));
    SBP_TRY(read_known_name(p, &p->functions, "function before this line", &call->function));
    const sbp_function *callee = &p->program->functions[call->function];
    call->views = SBP_NEW_ARRAY(p->arena, sbp_view, callee->formal_count);
    for (int32_t k = 0; k < callee->formal_count; k++) {
        SBP_TRY(sbp_lexer_expect(&p->lexer, k == 0 ? "(" : ","));
        const char *name;
        SBP_TRY(read_name(p, &name));
        if (strcmp(name, callee->formals[k].name) != 0)
            return sbp_lexer_fail(&p->lexer, "expected formal '%.60s', found '%.60s'",
                                  callee->formals[k].name, name);
        SBP_TRY(expect_access(p, callee->formals[k].access));
        SBP_TRY(read_view(p, &call->views[k]));
    }
    *out = call;
    return callee->formal_count > 0 ? sbp_lexer_expect(&p->lexer, ")") : SBP_OK;
}

static sbp_status read_body(parser *p, sbp_body *body, int depth);

/* in TABLE | below SCALAR, [descending], body */
static sbp_status read_loop(parser *p, sbp_loop **out, int depth) {
    sbp_loop *loop = SBP_NEW(p->arena, sbp_loop);
    loop->table = loop->scalar = -1;
    bool below;
    SBP_TRY(sbp_lexer_accept(&p->lexer, "below", &below));
    if (below) {
        SBP_TRY(read_known_name(p, &p->scalars, "scalar", &loop->scalar));
    } else {
        SBP_TRY(sbp_lexer_expect(&p->lexer, "i"));
        SBP_TRY(sbp_lexer_expect(&p->lexer, "in"));
        SBP_TRY(read_known_name(p, &p->tables, "table", &loop->table));
    }
    SBP_TRY(sbp_lexer_accept(&p->lexer, "descending", &loop->descending));
    *out = loop;
    return read_body(p, &loop->body, depth);
}

static sbp_status read_node(parser *p, sbp_node *out, int depth) {
    const char *word;
    if (p->lexer.token != SBP_TOKEN_NAME)
        return sbp_lexer_fail(&p->lexer, "expected a command, found '%.60s'", p->lexer.text);
    SBP_TRY(read_name(p, &word));
    if (strcmp(word, "loop") == 0) {
        out->kind = SBP_NODE_LOOP;
        return read_loop(p, &out->u.loop, depth);
    }
    if (strcmp(word, "call") == 0) {
        out->kind = SBP_NODE_CALL;
        return read_call(p, &out->u.call);
    }
    for (int kind = 0; kind < SBP_CMD_COUNT; kind++)
        if (strcmp(word, sbp_command_name((sbp_command_kind)kind)) == 0) {
            out->kind = SBP_NODE_COMMAND;
            return read_command(p, (sbp_command_kind)kind, &out->u.command);
        }
    return fail_name(p, "unknown command", word);
}

/* { node ... } */
static sbp_status read_body(parser *p, sbp_body *body, int depth) {
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

/* ---- declarations ----------------------------------------------------------------------------------- */

static sbp_status read_target(parser *p) {
    return read_name(p, &p->program->target);
}

static sbp_status read_sizes(parser *p) {
    sbp_program *program = p->program;
    SBP_TRY(read_field(p, "t_max", &program->t_max));
    SBP_TRY(sbp_lexer_expect(&p->lexer, ","));
    SBP_TRY(read_field(p, "s_max", &program->s_max));
    SBP_TRY(sbp_lexer_expect(&p->lexer, ","));
    SBP_TRY(read_field(p, "chunk", &program->chunk));
    SBP_TRY(sbp_lexer_expect(&p->lexer, ","));
    return read_field(p, "head_chunk", &program->head_chunk);
}

static sbp_status read_arena(parser *p) {
    SBP_TRY(read_field(p, "device", &p->program->arena_bytes[SBP_DEVICE]));
    SBP_TRY(sbp_lexer_expect(&p->lexer, ","));
    return read_field(p, "host", &p->program->arena_bytes[SBP_HOST]);
}

static sbp_status read_scalar_names(parser *p) {
    sbp_program *program = p->program;
    for (bool more = true; more;) {
        const char *name;
        SBP_TRY(read_new_name(p, &p->scalars, program->scalar_count, "scalar", &name));
        SBP_PUSH(p->arena, program->scalars, program->scalar_count, program->scalar_capacity, name);
        SBP_TRY(sbp_lexer_accept(&p->lexer, ",", &more));
    }
    return SBP_OK;
}

static sbp_status read_table(parser *p) {
    sbp_program *program = p->program;
    sbp_chunk_table table = {0};
    SBP_TRY(read_new_name(p, &p->tables, program->table_count, "table", &table.name));
    SBP_TRY(sbp_lexer_expect(&p->lexer, "step"));
    SBP_TRY(read_symbol(p, &table.step));
    bool more;
    SBP_TRY(sbp_lexer_accept(&p->lexer, "windows", &more));
    while (more) {
        int64_t window;
        SBP_TRY(sbp_lexer_int(&p->lexer, &window));
        SBP_PUSH(p->arena, table.windows, table.window_count, table.window_capacity, window);
        SBP_TRY(sbp_lexer_accept(&p->lexer, ",", &more));
    }
    SBP_PUSH(p->arena, program->tables, program->table_count, program->table_capacity, table);
    return SBP_OK;
}

/* Names the buffer in the program or chains it into the list of its function. */
static sbp_status enter_buffer(parser *p, const char *name, const char *function, int32_t index) {
    int32_t next = -1;
    if (!function) {
        if (sbp_map_get(&p->buffers, name) >= 0)
            return fail_name(p, "a second buffer", name);
        sbp_map_set(&p->buffers, name, index);
    } else {
        int32_t s = sbp_map_get(&p->scope_names, function);
        if (s < 0) {
            s = p->scope_count;
            sbp_map_set(&p->scope_names, function, s);
            SBP_PUSH(p->arena, p->scopes, p->scope_count, p->scope_capacity,
                     (scope){.name = function, .first = -1, .line = p->lexer.line});
        }
        next = p->scopes[s].first;
        p->scopes[s].first = index;
        p->program->buffers[index].function = s; /* until the end of the text */
    }
    SBP_PUSH(p->arena, p->next_in_scope, p->next_count, p->next_capacity, next);
    return SBP_OK;
}

/* The numbers of a constant: as many as it has elements. */
static sbp_status read_data(parser *p, sbp_buffer *b) {
    int64_t rows = sbp_extent_as_const(b->rows), numbers;
    if (b->role != SBP_ROLE_CONST || rows <= 0 || b->cols <= 0 || !sbp_mul_i64(rows, b->cols, &numbers) ||
        numbers > p->lexer.end - p->lexer.at) /* each takes two characters at least */
        return sbp_lexer_fail(&p->lexer, "buffer '%.60s' cannot carry data", b->name);
    double *data = SBP_NEW_ARRAY(p->arena, double, numbers);
    for (int64_t i = 0; i < numbers; i++)
        SBP_TRY(sbp_lexer_double(&p->lexer, &data[i]));
    b->data = data;
    return SBP_OK;
}

static sbp_status read_buffer(parser *p) {
    static const char *const spaces[] = {"device", "host"};
    static const char *const role_words[] = {
#define ROLE(id, text, category) text,
#include "ir/roles.def"
#undef ROLE
    };
    sbp_program *program = p->program;
    sbp_buffer b = {.count = 1, .function = -1, .offset = -1};
    const char *function = NULL;
    bool given;
    int word = 0;
    SBP_TRY(read_name(p, &b.name));
    SBP_TRY(sbp_lexer_accept(&p->lexer, "[", &given));
    if (given) {
        SBP_TRY(read_int32(p, 1, INT32_MAX, &b.count));
        SBP_TRY(sbp_lexer_expect(&p->lexer, "]"));
    }
    SBP_TRY(read_word(p, role_words, SBP_COUNT(role_words), "a role", &word));
    b.role = (sbp_role)word;
    SBP_TRY(read_word(p, spaces, SBP_COUNT(spaces), "a memory space", &word));
    b.space = (sbp_space)word;
    SBP_TRY(read_shape(p, &b.dtype, &b.rows, &b.cols));
    SBP_TRY(sbp_lexer_accept(&p->lexer, "of", &given));
    if (given) {
        SBP_TRY(sbp_lexer_expect(&p->lexer, "@"));
        SBP_TRY(read_name(p, &function));
    }
    SBP_TRY(sbp_lexer_accept(&p->lexer, "offset", &given));
    if (given)
        SBP_TRY(sbp_lexer_int(&p->lexer, &b.offset));
    SBP_TRY(sbp_lexer_accept(&p->lexer, "stride", &given));
    if (given)
        SBP_TRY(sbp_lexer_int(&p->lexer, &b.stride));
    SBP_TRY(sbp_lexer_accept(&p->lexer, "data", &given));
    if (given)
        SBP_TRY(read_data(p, &b));
    SBP_PUSH(p->arena, program->buffers, program->buffer_count, program->buffer_capacity, b);
    return enter_buffer(p, b.name, function, program->buffer_count - 1);
}

static sbp_status read_input(parser *p) {
    static const char *const kinds[] = {"column", "order", "segment"};
    sbp_row_input input = {.chunk = SBP_T};
    int kind = 0;
    SBP_TRY(read_known_name(p, &p->buffers, "buffer", &input.buffer));
    SBP_TRY(read_word(p, kinds, SBP_COUNT(kinds), "column, order or segment", &kind));
    input.kind = (sbp_row_input_kind)kind;
    SBP_TRY(read_name(p, &input.column));
    if (input.kind != SBP_ROW_COLUMN) {
        SBP_TRY(sbp_lexer_expect(&p->lexer, "chunk"));
        SBP_TRY(read_symbol(p, &input.chunk));
    }
    SBP_PUSH(p->arena, p->program->row_inputs, p->program->row_input_count, p->program->row_input_capacity,
             input);
    return SBP_OK;
}

static sbp_status read_output(parser *p) {
    sbp_output output = {0};
    SBP_TRY(read_name(p, &output.name));
    SBP_TRY(read_known_name(p, &p->buffers, "buffer", &output.buffer));
    SBP_TRY(read_int32(p, 0, INT32_MAX, &output.index));
    SBP_PUSH(p->arena, p->program->outputs, p->program->output_count, p->program->output_capacity, output);
    return SBP_OK;
}

static sbp_status read_kernel(parser *p) {
    sbp_program *program = p->program;
    sbp_rowkernel *kernel;
    SBP_TRY(sbp_rowkernel_parse(&p->lexer, p->arena, &kernel));
    if (sbp_map_get(&p->kernels, kernel->name) >= 0)
        return fail_name(p, "a second kernel", kernel->name);
    sbp_map_set(&p->kernels, kernel->name, program->kernel_count);
    SBP_PUSH(p->arena, program->kernels, program->kernel_count, program->kernel_capacity, kernel);
    return SBP_OK;
}

static sbp_status read_formals(parser *p, sbp_function *f) {
    static const char *const accesses[] = {"in", "out", "inout"};
    sbp_map_init(&p->formals, p->arena);
    bool more;
    SBP_TRY(sbp_lexer_accept(&p->lexer, "(", &more));
    while (more) {
        sbp_formal formal = {0};
        int access = 0;
        SBP_TRY(read_word(p, accesses, SBP_COUNT(accesses), "in, out or inout", &access));
        formal.access = (sbp_access)access;
        SBP_TRY(read_new_name(p, &p->formals, f->formal_count, "formal", &formal.name));
        SBP_TRY(read_shape(p, &formal.dtype, &formal.rows, &formal.cols));
        SBP_PUSH(p->arena, f->formals, f->formal_count, f->formal_capacity, formal);
        SBP_TRY(sbp_lexer_accept(&p->lexer, ",", &more));
        if (!more)
            SBP_TRY(sbp_lexer_expect(&p->lexer, ")"));
    }
    return SBP_OK;
}

/* The buffers of this function by name. */
static sbp_status enter_scope(parser *p, const char *function) {
    sbp_map_init(&p->local_buffers, p->arena);
    int32_t s = sbp_map_get(&p->scope_names, function);
    for (int32_t b = s < 0 ? -1 : p->scopes[s].first; b >= 0; b = p->next_in_scope[b]) {
        if (sbp_map_get(&p->local_buffers, p->program->buffers[b].name) >= 0)
            return fail_name(p, "a second buffer", p->program->buffers[b].name);
        sbp_map_set(&p->local_buffers, p->program->buffers[b].name, b);
    }
    return SBP_OK;
}

static sbp_status read_function(parser *p) {
    sbp_program *program = p->program;
    sbp_function f = {0};
    SBP_TRY(sbp_lexer_expect(&p->lexer, "@"));
    SBP_TRY(read_name(p, &f.name));
    if (sbp_map_get(&p->functions, f.name) >= 0)
        return fail_name(p, "a second function", f.name);
    SBP_TRY(read_formals(p, &f));
    SBP_TRY(enter_scope(p, f.name));
    p->function = &f;
    SBP_TRY(read_body(p, &f.body, 0));
    p->function = NULL;
    sbp_map_set(&p->functions, f.name, program->function_count);
    SBP_PUSH(p->arena, program->functions, program->function_count, program->function_capacity, f);
    return SBP_OK;
}

static sbp_status read_entry(parser *p) {
    sbp_entry entry = {0};
    SBP_TRY(read_name(p, &entry.name));
    SBP_TRY(read_body(p, &entry.body, 0));
    SBP_PUSH(p->arena, p->program->entries, p->program->entry_count, p->program->entry_capacity, entry);
    return SBP_OK;
}

/* Buffers named their function before it was read. */
static sbp_status bind_scopes(parser *p) {
    for (int32_t b = 0; b < p->program->buffer_count; b++) {
        sbp_buffer *buffer = &p->program->buffers[b];
        if (buffer->function < 0)
            continue;
        const scope *s = &p->scopes[buffer->function];
        buffer->function = sbp_map_get(&p->functions, s->name);
        if (buffer->function < 0)
            return sbp_fail(p->lexer.diag, SBP_INPUT, "%s:%d: buffer '%.80s' of unknown function '%.80s'",
                            p->lexer.name, s->line, buffer->name, s->name);
    }
    return SBP_OK;
}

sbp_status sbp_program_parse(sbp_arena *arena, sbp_diag *diag, const char *name, const char *text,
                             size_t length, sbp_program **out) {
    static const struct {
        const char *keyword;
        sbp_status (*read)(parser *p);
    } sections[] = {
        {"target", read_target},        {"sizes", read_sizes},   {"arena", read_arena},
        {"scalars", read_scalar_names}, {"table", read_table},   {"buffer", read_buffer},
        {"input", read_input},          {"output", read_output}, {"function", read_function},
        {"entry", read_entry},
    };
    if (length > INT32_MAX / 4)
        return sbp_fail(diag, SBP_INPUT, "%s: a program text of %zu bytes", name, length);
    parser *p = SBP_NEW(arena, parser);
    p->arena = arena;
    SBP_TRY(sbp_lexer_init(&p->lexer, arena, diag, name, text, length));
    SBP_TRY(sbp_lexer_expect(&p->lexer, "program"));
    const char *program_name;
    SBP_TRY(read_name(p, &program_name));
    p->program = sbp_program_create(arena, program_name);
    p->program->scalar_count = 0; /* the text lists them all */
    sbp_map *const maps[] = {&p->buffers, &p->scalars,   &p->tables,
                             &p->kernels, &p->functions, &p->scope_names};
    for (int m = 0; m < SBP_COUNT(maps); m++)
        sbp_map_init(maps[m], arena);
    while (p->lexer.token != SBP_TOKEN_END) {
        if (sbp_lexer_is(&p->lexer, "kernel")) { /* its parser wants the keyword */
            SBP_TRY(read_kernel(p));
            continue;
        }
        int k = 0;
        while (k < SBP_COUNT(sections) && !sbp_lexer_is(&p->lexer, sections[k].keyword))
            k++;
        if (k == SBP_COUNT(sections))
            return sbp_lexer_fail(&p->lexer, "expected a declaration, found '%.60s'", p->lexer.text);
        SBP_TRY(sbp_lexer_next(&p->lexer));
        SBP_TRY(sections[k].read(p));
    }
    SBP_TRY(bind_scopes(p));
    *out = p->program;
    return SBP_OK;
}
