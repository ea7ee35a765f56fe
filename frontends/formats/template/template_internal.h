/* template_internal.h: what the files of this folder share: tokens, the tree, values, the state of a
 * rendering.
 *
 * Values follow Python's: what an operation does to a value of each kind is what CPython and Jinja do. Texts
 * are valid UTF-8 throughout; positions that a template sees count code points.
 *
 * All functions here but the two of template.h are called below a guard on the arena that they use.
 */
#ifndef SBP_FRONTENDS_TEMPLATE_TEMPLATE_INTERNAL_H
#define SBP_FRONTENDS_TEMPLATE_TEMPLATE_INTERNAL_H

#include <time.h>

#include "frontends/formats/template/template.h"

/* ---- values ---------------------------------------------------------------------------------------- */

typedef enum tpl_kind {
    TPL_MISSING, /* no value: an argument that was not given */
    TPL_UNDEFINED,
    TPL_NONE,
    TPL_BOOL,
    TPL_INT,
    TPL_FLOAT,
    TPL_STRING,
    TPL_LIST,
    TPL_TUPLE,
    TPL_RANGE,
    TPL_VIEW,      /* keys, values or items of a dict */
    TPL_GENERATOR, /* what filters such as map make: no length, read once */
    TPL_DICT,
    TPL_NAMESPACE,
    TPL_MACRO,
    TPL_FUNCTION,
    TPL_METHOD,
    TPL_LOOP
} tpl_kind;

typedef struct tpl_text {
    const char *data;
    size_t length;
} tpl_text;

typedef struct tpl_value {
    tpl_kind kind;
    bool safe; /* of a string: Markup, to which other strings are escaped when they are joined */
    union {
        bool boolean;
        int64_t integer;
        double real;
        tpl_text string;
        const char *undefined;         /* why, for messages */
        struct tpl_sequence *sequence; /* of LIST .. GENERATOR */
        struct tpl_dict *dict;         /* of DICT and NAMESPACE */
        struct tpl_macro *macro;
        const struct tpl_function *function;
        struct tpl_method *method;
        struct tpl_loop *loop;
    };
} tpl_value;

typedef struct tpl_sequence {
    tpl_value *items;
    int64_t count;
    int64_t next;              /* of a generator: what was read */
    const char *view;          /* "keys", "values", "items" */
    int64_t start, stop, step; /* of a range */
} tpl_sequence;

typedef struct tpl_entry {
    tpl_value key, value;
    uint64_t hash;
} tpl_entry;

typedef struct tpl_dict {
    tpl_entry *entries; /* in the order in which keys came */
    int32_t count, capacity;
    int32_t *table; /* index + 1 by hash; NULL while there are few */
    int32_t table_size;
    const sbp_json *json; /* the object that it was made of; NULL: the template made it */
} tpl_dict;

/* ---- the tree -------------------------------------------------------------------------------------- */

typedef enum tpl_node_kind {
    TPL_CONST,
    TPL_NAME,
    TPL_ATTRIBUTE, /* a.name */
    TPL_ITEM,      /* a[b] */
    TPL_SLICE,     /* a[b:c:d] */
    TPL_CALL,      /* a(items, named, *b, **c) */
    TPL_FILTER,    /* a | name(items, named, *b, **c) */
    TPL_TEST,      /* a is name(...) */
    TPL_LIST_OF,
    TPL_TUPLE_OF,
    TPL_DICT_OF, /* items: key, value, key, value .. */
    TPL_NOT,
    TPL_NEGATIVE,
    TPL_POSITIVE,
    TPL_AND,
    TPL_OR,
    TPL_BINARY,  /* a op b */
    TPL_CONCAT,  /* items joined by ~ */
    TPL_COMPARE, /* a, and items: operands with op */
    TPL_OPERAND,
    TPL_CONDITION,      /* b if a else c */
    TPL_KEYWORD,        /* name=a, of a call */
    TPL_NAMESPACE_ITEM, /* name.text, as a target */
    /* statements */
    TPL_DATA,
    TPL_OUTPUT,       /* a */
    TPL_IF,           /* a; items, other */
    TPL_FOR,          /* a in b if c; items, other */
    TPL_SET,          /* a = b */
    TPL_SET_BLOCK,    /* a = items, through the filters b */
    TPL_WITH,         /* named: sets; items */
    TPL_MACRO_OF,     /* name(named: keywords with a default or NULL); items */
    TPL_CALL_BLOCK,   /* a call; as a macro without name */
    TPL_FILTER_BLOCK, /* items through b */
    TPL_GENERATION,
    TPL_BREAK,
    TPL_CONTINUE
} tpl_node_kind;

/* Operators: their one or two characters. */
#define TPL_OP(a, b) ((a) | (b) << 8)
enum { TPL_OP_IN = TPL_OP('i', 'n'), TPL_OP_NOT_IN = TPL_OP('n', 'i') };

enum { TPL_USES_CALLER = 1, TPL_USES_VARARGS = 2, TPL_USES_KWARGS = 4 };

typedef struct tpl_node {
    tpl_node_kind kind;
    int32_t line, column;
    int op;
    int32_t symbol;   /* of a name: its number in the template */
    unsigned uses;    /* of a macro */
    const char *name; /* of an attribute, a filter, a keyword, a namespace */
    size_t name_length;
    const struct tpl_builtin *builtin; /* of a filter or test */
    tpl_value value;                   /* of a constant; the attribute of a namespace */
    struct tpl_node *a, *b, *c, *d;
    struct tpl_node *items, *named, *other; /* lists by `next` */
    struct tpl_node *next;
} tpl_node;

struct sbp_template {
    const char *name;
    const char *text;
    size_t length;
    const tpl_node *body;
    bool has_marks;
    int32_t symbol_count;
    const char **symbols;
};

/* ---- tokens ---------------------------------------------------------------------------------------- */

typedef enum tpl_token_kind {
    TPL_TOKEN_END,
    TPL_TOKEN_DATA,
    TPL_TOKEN_BLOCK_BEGIN,
    TPL_TOKEN_BLOCK_END,
    TPL_TOKEN_VARIABLE_BEGIN,
    TPL_TOKEN_VARIABLE_END,
    TPL_TOKEN_NAME,
    TPL_TOKEN_STRING,
    TPL_TOKEN_NUMBER, /* value: INT or FLOAT */
    TPL_TOKEN_OPERATOR
} tpl_token_kind;

typedef struct tpl_token {
    tpl_token_kind kind;
    int32_t line, column; /* from 1 */
    int op;
    tpl_text text; /* as meant: escapes resolved, blanks of data stripped */
    tpl_value value;
} tpl_token;

/* All tokens of a text, TPL_TOKEN_END at their end. */
sbp_status sbp_tpl_lex(sbp_arena *arena, sbp_diag *diag, const char *name, tpl_text text, tpl_token **out,
                       int32_t *count) SBP_CHECKED;

typedef struct tpl_parser {
    sbp_arena *arena;
    sbp_diag *diag;
    sbp_template *template;
    const tpl_token *tokens; /* the current one first */
    int32_t depth, loops;    /* nested expressions and statements; loops around, inside of this macro */
    unsigned uses;           /* of the macro around */
    int32_t symbol_capacity;
    sbp_map symbols;
} tpl_parser;

/* template_expression.c: each leaves the parser behind what it read. */
sbp_status sbp_tpl_parse_expression(tpl_parser *p, bool with_condition, tpl_node **out) SBP_CHECKED;
/* One expression, or several with commas; ends also before the name `end`. */
sbp_status sbp_tpl_parse_tuple(tpl_parser *p, bool with_condition, const char *end,
                               tpl_node **out) SBP_CHECKED;
/* A name, a tuple of them, a namespace's attribute. */
sbp_status sbp_tpl_parse_target(tpl_parser *p, bool names_only, const char *end, tpl_node **out) SBP_CHECKED;
/* `| filter | filter`, or with inline `filter | filter`, on nothing (an innermost a of NULL). */
sbp_status sbp_tpl_parse_filters(tpl_parser *p, bool is_inline, tpl_node **out) SBP_CHECKED;
sbp_status sbp_tpl_parse_body(tpl_parser *p, tpl_node **out) SBP_CHECKED;

sbp_status sbp_tpl_parse_fail(const tpl_parser *p, const tpl_token *at, const char *format, ...)
    SBP_PRINTF(3, 4) SBP_CHECKED;
#ifdef __clang_analyzer__
#define sbp_tpl_parse_fail(...) ((void)sbp_tpl_parse_fail(__VA_ARGS__), SBP_INPUT)
#endif
bool sbp_tpl_at_operator(const tpl_parser *p, int op);
bool sbp_tpl_at_name(const tpl_parser *p, const char *name);
sbp_status sbp_tpl_expect_operator(tpl_parser *p, int op) SBP_CHECKED;
tpl_node *sbp_tpl_node(const tpl_parser *p, tpl_node_kind kind, const tpl_token *at);
sbp_status sbp_tpl_enter(tpl_parser *p) SBP_CHECKED; /* one level deeper; leave with p->depth-- */
int32_t sbp_tpl_symbol(tpl_parser *p, tpl_text name);
/* A token as messages name it. */
const char *sbp_tpl_describe(const tpl_parser *p, const tpl_token *token);

/* ---- rendering ------------------------------------------------------------------------------------- */

typedef struct tpl_binding {
    int32_t symbol;
    tpl_value value;
} tpl_binding;

typedef struct tpl_scope {
    struct tpl_scope *outer;
    tpl_binding *bindings;
    int32_t count, capacity;
    bool kept; /* by a macro that was defined in it */
} tpl_scope;

typedef struct tpl_macro {
    const tpl_node *node;
    tpl_scope *scope; /* where it was defined */
} tpl_macro;

typedef enum tpl_control { TPL_GO_ON, TPL_LEAVE, TPL_NEXT } tpl_control;

typedef struct tpl_eval {
    const sbp_template *template;
    sbp_arena *arena;
    sbp_diag *diag;
    const char *where;
    const tpl_node *at; /* being evaluated: where errors are */
    sbp_template_limits left;
    sbp_template_limits limits;
    int32_t depth;
    tpl_scope *scope;
    sbp_text *out;       /* where text goes now */
    int64_t base;        /* byte of the result where `out` begins; -1: that is not known */
    sbp_text root;       /* the result */
    int64_t (*spans)[2]; /* bytes; a negative end: minus the number of code points behind the begin */
    int32_t span_count, span_capacity;
    sbp_rendered_item *items; /* what loops wrote, in the order of their beginning */
    int32_t item_count, item_capacity;
    tpl_control control;
    struct tm now;
} tpl_eval;

typedef struct tpl_named {
    const char *name;
    size_t length;
    tpl_value value;
} tpl_named;

typedef struct tpl_args {
    tpl_value *items;
    tpl_named *named;
    int32_t count, capacity, named_count, named_capacity;
} tpl_args;

/* Something with a name that takes arguments. `parameters`: names separated by blanks, '?' behind those that
 * may be left out, '*' alone: the rest, unbound. work gets one value for each, TPL_MISSING where there is
 * none. */
typedef sbp_status (*tpl_work)(tpl_eval *e, const tpl_value *self, const tpl_value *values, tpl_args *rest,
                               tpl_value *out);
typedef struct tpl_builtin {
    const char *name;
    const char *parameters;
    tpl_work work;
    tpl_kind kind; /* of a method: whose */
} tpl_builtin;

enum { TPL_MOST_PARAMETERS = 8, TPL_MOST_DEPTH = 400 };

typedef struct tpl_function {
    tpl_builtin builtin;
} tpl_function;

typedef struct tpl_method {
    tpl_value self;
    const tpl_builtin *builtin;
} tpl_method;

typedef struct tpl_loop {
    const tpl_value *items;
    int64_t at, count;
    int32_t depth;
    tpl_args *changed; /* values of the last loop.changed */
} tpl_loop;

/* NULL when there is none of that name. */
const tpl_builtin *sbp_tpl_find_filter(tpl_text name);
const tpl_builtin *sbp_tpl_find_test(tpl_text name);
const tpl_builtin *sbp_tpl_find_method(tpl_kind kind, tpl_text name);
const tpl_function *sbp_tpl_find_function(tpl_text name);
/* Whether Python has this attribute, though it is not built here. */
bool sbp_tpl_python_has(tpl_kind kind, tpl_text name);
/* Whether Jinja has a filter or test of that name, though it is not built here. */
bool sbp_tpl_jinja_has(tpl_text name);

/* "WHERE: TEMPLATE:LINE:COLUMN: message", SBP_INPUT. */
sbp_status sbp_tpl_fail(tpl_eval *e, const char *format, ...) SBP_PRINTF(2, 3) SBP_CHECKED;
#ifdef __clang_analyzer__
#define sbp_tpl_fail(...) ((void)sbp_tpl_fail(__VA_ARGS__), SBP_INPUT)
#endif
/* Takes steps off what is left; fails when a limit is passed. */
sbp_status sbp_tpl_charge(tpl_eval *e, int64_t steps) SBP_CHECKED;
sbp_status sbp_tpl_charge_text(tpl_eval *e, size_t bytes) SBP_CHECKED;
sbp_status sbp_tpl_deeper(tpl_eval *e) SBP_CHECKED; /* leave with e->depth-- */

/* template_eval.c, template_call.c */
sbp_status sbp_tpl_eval(tpl_eval *e, const tpl_node *node, tpl_value *out) SBP_CHECKED;
sbp_status sbp_tpl_call(tpl_eval *e, const tpl_value *callee, tpl_args *args, tpl_value *out) SBP_CHECKED;
sbp_status sbp_tpl_call_builtin(tpl_eval *e, const tpl_builtin *builtin, const char *what,
                                const tpl_value *self, tpl_args *args, tpl_value *out) SBP_CHECKED;
/* Filters of set and filter blocks, on a value. */
sbp_status sbp_tpl_eval_filters(tpl_eval *e, const tpl_node *node, const tpl_value *value,
                                tpl_value *out) SBP_CHECKED;
void sbp_tpl_args_add(tpl_eval *e, tpl_args *args, tpl_value value);
void sbp_tpl_args_name(tpl_eval *e, tpl_args *args, tpl_text name, tpl_value value);

/* template_render.c */
sbp_status sbp_tpl_call_macro(tpl_eval *e, const tpl_macro *macro, tpl_args *args,
                              tpl_value *out) SBP_CHECKED;

/* template_value.c */
tpl_value sbp_tpl_none(void);
tpl_value sbp_tpl_bool(bool value);
tpl_value sbp_tpl_int(int64_t value);
tpl_value sbp_tpl_float(double value);
tpl_value sbp_tpl_string(const char *data, size_t length); /* not copied */
tpl_value sbp_tpl_literal(const char *text);
tpl_value sbp_tpl_undefined(tpl_eval *e, const char *format, ...) SBP_PRINTF(2, 3);
tpl_value sbp_tpl_sequence(tpl_eval *e, tpl_kind kind, int64_t count); /* items zeroed: set them */
const char *sbp_tpl_type(const tpl_value *value);                      /* as Python calls it */
bool sbp_tpl_truth(const tpl_value *value);
bool sbp_tpl_number(const tpl_value *value, double *out);   /* bool, int, float */
bool sbp_tpl_integer(const tpl_value *value, int64_t *out); /* bool, int */
sbp_status sbp_tpl_equal(tpl_eval *e, const tpl_value *a, const tpl_value *b, bool *out) SBP_CHECKED;
/* op: < > <= >= */
sbp_status sbp_tpl_less(tpl_eval *e, int op, const tpl_value *a, const tpl_value *b, bool *out) SBP_CHECKED;
sbp_status sbp_tpl_contains(tpl_eval *e, const tpl_value *in, const tpl_value *value, bool *out) SBP_CHECKED;
/* What a loop over the value sees; a generator is used up by it. */
sbp_status sbp_tpl_iterate(tpl_eval *e, const tpl_value *value, tpl_value **items,
                           int64_t *count) SBP_CHECKED;
/* The same as a new list. */
sbp_status sbp_tpl_copy_items(tpl_eval *e, const tpl_value *value, tpl_value *out) SBP_CHECKED;
bool sbp_tpl_is_iterable(const tpl_value *value);
sbp_status sbp_tpl_length(tpl_eval *e, const tpl_value *value, int64_t *out) SBP_CHECKED;
tpl_value sbp_tpl_dict(tpl_eval *e);
sbp_status sbp_tpl_dict_set(tpl_eval *e, tpl_dict *dict, tpl_value key, tpl_value value) SBP_CHECKED;
/* NULL when absent; *out likewise. Fails for a key that has no hash (a list). */
sbp_status sbp_tpl_dict_get(tpl_eval *e, const tpl_dict *dict, const tpl_value *key,
                            const tpl_value **out) SBP_CHECKED;
bool sbp_tpl_hashable(const tpl_value *value); /* as far as its own kind says */
sbp_status sbp_tpl_from_json(tpl_eval *e, const sbp_json *json, tpl_value *out) SBP_CHECKED;

/* template_operate.c, template_access.c */
sbp_status sbp_tpl_binary(tpl_eval *e, int op, const tpl_value *a, const tpl_value *b,
                          tpl_value *out) SBP_CHECKED;
sbp_status sbp_tpl_attribute(tpl_eval *e, const tpl_value *of, tpl_text name, tpl_value *out) SBP_CHECKED;
sbp_status sbp_tpl_item(tpl_eval *e, const tpl_value *of, const tpl_value *key, tpl_value *out) SBP_CHECKED;
sbp_status sbp_tpl_slice(tpl_eval *e, const tpl_value *of, const tpl_value bounds[3],
                         tpl_value *out) SBP_CHECKED;

/* template_text.c: str(), repr() and json.dumps() appended to a text, which may not pass the limit. */
sbp_status sbp_tpl_add(tpl_eval *e, sbp_text *out, tpl_text text) SBP_CHECKED;
sbp_status sbp_tpl_add_str(tpl_eval *e, sbp_text *out, const tpl_value *value) SBP_CHECKED;
sbp_status sbp_tpl_add_repr(tpl_eval *e, sbp_text *out, const tpl_value *value) SBP_CHECKED;
/* str() as a string; a string as it is. */
sbp_status sbp_tpl_str(tpl_eval *e, const tpl_value *value, tpl_text *out) SBP_CHECKED;
/* As str(), but keeps Markup. */
sbp_status sbp_tpl_soft(tpl_eval *e, const tpl_value *value, tpl_value *out) SBP_CHECKED;
/* & < > ' " as HTML writes them; a safe string stays as it is. */
sbp_status sbp_tpl_escape(tpl_eval *e, const tpl_value *value, tpl_text *out) SBP_CHECKED;
void sbp_tpl_format_float(char out[40], double value); /* repr(float) */
sbp_status sbp_tpl_text_value(tpl_eval *e, const sbp_text *text, bool safe, tpl_value *out) SBP_CHECKED;

/* template_json.c */
typedef struct tpl_json_style {
    bool ascii, sort;
    bool indented;
    tpl_text indent, item_separator, key_separator;
} tpl_json_style;
sbp_status sbp_tpl_add_json(tpl_eval *e, sbp_text *out, const tpl_value *value, const tpl_json_style *style,
                            int32_t level) SBP_CHECKED;
/* Stable, by < of keys[i]; sorts items along with them. */
sbp_status sbp_tpl_sort(tpl_eval *e, tpl_value *keys, tpl_value *items, int64_t count,
                        bool reverse) SBP_CHECKED;

/* template_format.c: "..." % value and "...".format(..) */
sbp_status sbp_tpl_percent(tpl_eval *e, const tpl_value *format, const tpl_value *values,
                           tpl_value *out) SBP_CHECKED;
sbp_status sbp_tpl_str_format(tpl_eval *e, tpl_text format, tpl_args *args, tpl_value *out) SBP_CHECKED;

/* template_lines.c: parts of texts, as str.split, str.splitlines and changes of case have them */
typedef enum tpl_case { TPL_UPPER, TPL_LOWER, TPL_CAPITALIZE, TPL_TITLE, TPL_TITLE_WORDS, TPL_SWAP } tpl_case;
sbp_status sbp_tpl_change_case(tpl_eval *e, const tpl_value *text, tpl_case to, tpl_value *out) SBP_CHECKED;
/* str.islower and str.isupper. */
sbp_status sbp_tpl_has_case(tpl_eval *e, const tpl_value *value, bool upper, tpl_value *out) SBP_CHECKED;
sbp_status sbp_tpl_split_lines(tpl_eval *e, tpl_text text, bool keep_ends, tpl_value *out) SBP_CHECKED;
/* by NULL: at runs of blanks; most < 0: all. */
sbp_status sbp_tpl_split(tpl_eval *e, tpl_text text, const tpl_text *by, int64_t most, bool from_right,
                         tpl_value *out) SBP_CHECKED;
/* most < 0: all. */
sbp_status sbp_tpl_replace(tpl_eval *e, tpl_text text, tpl_text old, tpl_text by, int64_t most,
                           tpl_value *out) SBP_CHECKED;

/* template_unicode.c */
uint32_t sbp_tpl_decode(const char *text, int *bytes); /* of valid UTF-8 */
int sbp_tpl_encode(char out[4], uint32_t code);
bool sbp_tpl_is_space(uint32_t code); /* str.isspace, and \s of patterns */
bool sbp_tpl_is_letter(uint32_t code);
bool sbp_tpl_is_printable(uint32_t code);
bool sbp_tpl_valid_utf8(tpl_text text);
int64_t sbp_tpl_chars(tpl_text text);
size_t sbp_tpl_offset(tpl_text text, int64_t chars); /* bytes of the first `chars` characters */
tpl_text sbp_tpl_strip(tpl_text text, const tpl_text *chars, bool left, bool right); /* chars NULL: blanks */
bool sbp_tpl_same(tpl_text a, tpl_text b);
bool sbp_tpl_is(tpl_text a, const char *b);

#endif
