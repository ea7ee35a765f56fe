/* template.h: chat templates: the part of Jinja 3.1 that the templates of models use, with the results of
 * transformers 5 (its sandbox: trim_blocks, lstrip_blocks, loop controls, {% generation %}; autoescape off).
 *
 * What a template may hold: text, {{ }}, {# #}, raw; for (with if, else, loop.*, break, continue), if, set
 * (also of blocks, tuples and namespaces), with, macro, call, filter, print, generation; Python's operators,
 * slices, inline if; strings' methods; the filters, tests and functions of the tables in template_filters.c,
 * template_tests.c, template_methods.c and template_functions.c. Anything else is an error when the template
 * is parsed, or, where only a value can tell (a method that is not built), when it is reached. README.md says
 * what differs from Jinja.
 *
 * Templates are data from anywhere: time, memory, depth and length of the output are bounded; what goes
 * beyond is SBP_INPUT like any other mistake: "ROW: TEMPLATE:LINE:COLUMN: message". A template reads nothing
 * but its variables and the date that it is given.
 *
 * Ownership. A parsed template lives in its arena, with the text it was made from; rendered text in the arena
 * of the call. Threads: a parsed template is constant, any number of threads may render it.
 */
#ifndef SBP_FRONTENDS_TEMPLATE_TEMPLATE_H
#define SBP_FRONTENDS_TEMPLATE_TEMPLATE_H

#include "ir/base/json.h"

typedef struct sbp_template sbp_template;

/* `name` is for messages. The text, UTF-8, is copied. Needs no guard. */
sbp_status sbp_template_parse(sbp_arena *arena, sbp_diag *diag, const char *name, const char *text,
                              size_t length, const sbp_template **out) SBP_CHECKED;
/* Whether there is a {% generation %} block in it. */
bool sbp_template_has_marks(const sbp_template *template);

/* A variable of the template: `json` where there is one, else `text`, else a boolean. If two have one name,
 * the last one counts. */
typedef struct sbp_template_variable {
    const char *name;
    const sbp_json *json;
    const char *text; /* UTF-8 */
    bool boolean;
} sbp_template_variable;

typedef struct sbp_template_limits {
    int64_t steps;        /* evaluated nodes, items of loops, 64 bytes of text each */
    int64_t memory_bytes; /* that rendering takes */
    int64_t output_bytes; /* of any one text */
} sbp_template_limits;

extern const sbp_template_limits sbp_template_default_limits;

typedef struct sbp_template_call {
    const char *where; /* of the row, for messages; NULL: none */
    const sbp_template_variable *variables;
    int32_t variable_count;
    const char *date;                  /* "2026-03-01": what strftime_now calls now, at midnight */
    const sbp_template_limits *limits; /* NULL: the default */
} sbp_template_call;

/* What the body of a loop wrote for one of its items, an object of the variables. */
typedef struct sbp_rendered_item {
    int64_t begin, end; /* bytes of the text; begin < end */
    const sbp_json *json;
} sbp_rendered_item;

typedef struct sbp_rendering {
    const char *text; /* NUL after its bytes */
    size_t length;
    int64_t (*spans)[2]; /* bytes [begin, end) of what generation blocks wrote, in their order */
    int32_t span_count;
    /* In the order in which they begin. Their loops write to the result as it is: none is in a macro or in
     * {% set %}. */
    sbp_rendered_item *items;
    int32_t item_count;
} sbp_rendering;

/* Needs no guard. */
sbp_status sbp_template_render(const sbp_template *template, sbp_arena *arena, sbp_diag *diag,
                               const sbp_template_call *call, sbp_rendering *out) SBP_CHECKED;

#endif
