/* program_parse.c: reads the text form of programs (program_print.c): names and declarations; bodies are
 * read in program_parse_code.c. The text is untrusted: recursion and counts are bounded, names are looked
 * up in tables. What is read may still be nonsense: sbp_program_verify() decides. */
#include "ir/program/program_parse.h"

#include <string.h>

/* ---- small things ----------------------------------------------------------------------------------- */

/* A name that must be new in `map`; it gets the number `index`. */
static sbp_status read_new_name(sbp_program_parser *p, sbp_map *map, int32_t index, const char *what,
                                const char **out) {
    SBP_TRY(sbp_parser_name(p, out));
    if (sbp_map_get(map, *out) >= 0)
        return sbp_parser_fail_name(p, sbp_arena_printf(p->arena, "a second %s", what), *out);
    sbp_map_set(map, *out, index);
    return SBP_OK;
}

static sbp_status read_field(sbp_program_parser *p, const char *keyword, int64_t *out) {
    SBP_TRY(sbp_lexer_expect(&p->lexer, keyword));
    return sbp_lexer_int(&p->lexer, out);
}

/* f32[T, 8] */
static sbp_status read_shape(sbp_program_parser *p, sbp_dtype *dtype, sbp_extent *rows, int64_t *cols) {
    SBP_TRY(sbp_lexer_dtype(&p->lexer, dtype));
    SBP_TRY(sbp_lexer_expect(&p->lexer, "["));
    SBP_TRY(sbp_lexer_extent(&p->lexer, rows));
    SBP_TRY(sbp_lexer_expect(&p->lexer, ","));
    SBP_TRY(sbp_lexer_int(&p->lexer, cols));
    return sbp_lexer_expect(&p->lexer, "]");
}

/* ---- declarations ----------------------------------------------------------------------------------- */

static sbp_status read_target(sbp_program_parser *p) {
    return sbp_parser_name(p, &p->program->target);
}

static sbp_status read_sizes(sbp_program_parser *p) {
    sbp_program *program = p->program;
    SBP_TRY(read_field(p, "t_max", &program->t_max));
    SBP_TRY(sbp_lexer_expect(&p->lexer, ","));
    SBP_TRY(read_field(p, "s_max", &program->s_max));
    SBP_TRY(sbp_lexer_expect(&p->lexer, ","));
    SBP_TRY(read_field(p, "chunk", &program->chunk));
    SBP_TRY(sbp_lexer_expect(&p->lexer, ","));
    SBP_TRY(read_field(p, "head_chunk", &program->head_chunk));
    bool more;
    SBP_TRY(sbp_lexer_accept(&p->lexer, ",", &more));
    if (more)
        SBP_TRY(read_field(p, "ranks", &program->ranks));
    program->group = program->ranks;
    if (more)
        SBP_TRY(sbp_lexer_accept(&p->lexer, ",", &more));
    if (more && sbp_lexer_is(&p->lexer, "group")) {
        SBP_TRY(read_field(p, "group", &program->group));
        SBP_TRY(sbp_lexer_accept(&p->lexer, ",", &more));
    }
    return more ? read_field(p, "context", &program->context) : SBP_OK;
}

static sbp_status read_arena(sbp_program_parser *p) {
    SBP_TRY(read_field(p, "device", &p->program->arena_bytes[SBP_DEVICE]));
    SBP_TRY(sbp_lexer_expect(&p->lexer, ","));
    SBP_TRY(read_field(p, "host", &p->program->arena_bytes[SBP_HOST]));
    bool disk;
    SBP_TRY(sbp_lexer_accept(&p->lexer, ",", &disk));
    return disk ? read_field(p, "disk", &p->program->arena_bytes[SBP_DISK]) : SBP_OK;
}

static sbp_status read_scalar_names(sbp_program_parser *p) {
    sbp_program *program = p->program;
    for (bool more = true; more;) {
        const char *name;
        SBP_TRY(read_new_name(p, &p->scalars, program->scalar_count, "scalar", &name));
        SBP_PUSH(p->arena, program->scalars, program->scalar_count, program->scalar_capacity, name);
        SBP_TRY(sbp_lexer_accept(&p->lexer, ",", &more));
    }
    return SBP_OK;
}

static sbp_status read_table(sbp_program_parser *p) {
    sbp_program *program = p->program;
    sbp_chunk_table table = {0};
    SBP_TRY(read_new_name(p, &p->tables, program->table_count, "table", &table.name));
    SBP_TRY(sbp_lexer_expect(&p->lexer, "step"));
    SBP_TRY(sbp_parser_symbol(p, &table.step));
    SBP_TRY(sbp_lexer_accept(&p->lexer, "counted", &table.counted));
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
static sbp_status enter_buffer(sbp_program_parser *p, const char *name, const char *function, int32_t index) {
    int32_t next = -1;
    if (!function) {
        if (sbp_map_get(&p->buffers, name) >= 0)
            return sbp_parser_fail_name(p, "a second buffer", name);
        sbp_map_set(&p->buffers, name, index);
    } else {
        int32_t s = sbp_map_get(&p->scope_names, function);
        if (s < 0) {
            s = p->scope_count;
            sbp_map_set(&p->scope_names, function, s);
            SBP_PUSH(p->arena, p->scopes, p->scope_count, p->scope_capacity,
                     (sbp_parser_scope){.name = function, .first = -1, .line = p->lexer.line});
        }
        next = p->scopes[s].first;
        p->scopes[s].first = index;
        p->program->buffers[index].function = s; /* until the end of the text */
    }
    SBP_PUSH(p->arena, p->next_in_scope, p->next_count, p->next_capacity, next);
    return SBP_OK;
}

/* The numbers of a constant: as many as it has elements. */
static sbp_status read_data(sbp_program_parser *p, sbp_buffer *b) {
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

/* Room for all of them: there are thousands of a deep model, and an arena keeps what an array leaves behind.
 */
static void reserve_buffers(sbp_program_parser *p) {
    static const char line[] = "\nbuffer ";
    sbp_program *program = p->program;
    int32_t count = 0;
    for (const char *at = p->lexer.at; count < INT32_MAX && p->lexer.end > at; count++) {
        const char *found = memmem(at, (size_t)(p->lexer.end - at), line, sizeof line - 1);
        if (!found)
            break;
        at = found + sizeof line - 1;
    }
    if (count == 0)
        return;
    program->buffers = SBP_NEW_ARRAY(p->arena, sbp_buffer, count);
    p->next_in_scope = SBP_NEW_ARRAY(p->arena, int32_t, count);
    program->buffer_capacity = p->next_capacity = count;
}

static sbp_status read_buffer(sbp_program_parser *p) {
    static const char *const role_words[] = {
#define ROLE(id, text, category) text,
#include "ir/program/roles.def"
#undef ROLE
    };
    sbp_program *program = p->program;
    sbp_buffer b = {.count = 1, .function = -1, .offset = -1};
    const char *function = NULL;
    bool given;
    int word = 0;
    SBP_TRY(sbp_parser_name(p, &b.name));
    SBP_TRY(sbp_lexer_accept(&p->lexer, "[", &given));
    if (given) {
        SBP_TRY(sbp_parser_int32(p, 1, INT32_MAX, &b.count));
        SBP_TRY(sbp_lexer_expect(&p->lexer, "]"));
    }
    SBP_TRY(sbp_parser_word(p, role_words, SBP_COUNT(role_words), "a role", &word));
    b.role = (sbp_role)word;
    SBP_TRY(sbp_parser_word(p, sbp_space_names, SBP_SPACE_COUNT, "a memory space", &word));
    b.space = (sbp_space)word;
    SBP_TRY(read_shape(p, &b.dtype, &b.rows, &b.cols));
    SBP_TRY(sbp_lexer_accept(&p->lexer, "of", &given));
    if (given) {
        SBP_TRY(sbp_lexer_expect(&p->lexer, "@"));
        SBP_TRY(sbp_parser_name(p, &function));
    }
    SBP_TRY(sbp_lexer_accept(&p->lexer, "sharded", &given));
    b.sharding = given ? SBP_SHARDED : SBP_WHOLE;
    if (!given)
        SBP_TRY(sbp_lexer_accept(&p->lexer, "own", &given));
    b.sharding = given && !b.sharding ? SBP_OWN : b.sharding;
    SBP_TRY(sbp_lexer_accept(&p->lexer, "in", &given));
    if (given) {
        sbp_parser_part part = {.buffer = program->buffer_count, .line = p->lexer.line};
        SBP_TRY(sbp_parser_name(p, &part.bucket));
        SBP_TRY(sbp_lexer_expect(&p->lexer, "at"));
        SBP_TRY(sbp_lexer_int(&p->lexer, &b.place));
        SBP_PUSH(p->arena, p->parts, p->part_count, p->part_capacity, part);
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

static sbp_status read_input(sbp_program_parser *p) {
    static const char *const kinds[] = {"column", "order", "segment", "pick", "rank"};
    sbp_row_input input = {.chunk = SBP_T};
    int kind = 0;
    SBP_TRY(sbp_parser_known_name(p, &p->buffers, "buffer", &input.buffer));
    SBP_TRY(sbp_parser_word(p, kinds, SBP_COUNT(kinds), "column, order, segment, pick or rank", &kind));
    input.kind = (sbp_row_input_kind)kind;
    SBP_TRY(sbp_lexer_accept(&p->lexer, "counted", &input.counted));
    SBP_TRY(sbp_lexer_accept(&p->lexer, "by_rank", &input.by_rank));
    SBP_TRY(sbp_parser_name(p, &input.column));
    if (input.kind != SBP_ROW_COLUMN) {
        SBP_TRY(sbp_lexer_expect(&p->lexer, "chunk"));
        SBP_TRY(sbp_parser_symbol(p, &input.chunk));
    }
    SBP_PUSH(p->arena, p->program->row_inputs, p->program->row_input_count, p->program->row_input_capacity,
             input);
    return SBP_OK;
}

static sbp_status read_output(sbp_program_parser *p) {
    sbp_output output = {0};
    SBP_TRY(sbp_parser_name(p, &output.name));
    SBP_TRY(sbp_parser_known_name(p, &p->buffers, "buffer", &output.buffer));
    SBP_TRY(sbp_parser_int32(p, 0, INT32_MAX, &output.index));
    SBP_PUSH(p->arena, p->program->outputs, p->program->output_count, p->program->output_capacity, output);
    return SBP_OK;
}

static sbp_status read_kernel(sbp_program_parser *p) {
    sbp_program *program = p->program;
    sbp_rowkernel *kernel;
    SBP_TRY(sbp_rowkernel_parse(&p->lexer, p->arena, &kernel));
    if (sbp_map_get(&p->kernels, kernel->name) >= 0)
        return sbp_parser_fail_name(p, "a second kernel", kernel->name);
    sbp_map_set(&p->kernels, kernel->name, program->kernel_count);
    SBP_PUSH(p->arena, program->kernels, program->kernel_count, program->kernel_capacity, kernel);
    return SBP_OK;
}

static sbp_status read_formals(sbp_program_parser *p, sbp_function *f) {
    static const char *const accesses[] = {"in", "out", "inout"};
    sbp_map_init(&p->formals, p->arena);
    bool more;
    SBP_TRY(sbp_lexer_accept(&p->lexer, "(", &more));
    while (more) {
        sbp_formal formal = {0};
        int access = 0;
        SBP_TRY(sbp_parser_word(p, accesses, SBP_COUNT(accesses), "in, out or inout", &access));
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
static sbp_status enter_scope(sbp_program_parser *p, const char *function) {
    sbp_map_init(&p->local_buffers, p->arena);
    int32_t s = sbp_map_get(&p->scope_names, function);
    for (int32_t b = s < 0 ? -1 : p->scopes[s].first; b >= 0; b = p->next_in_scope[b]) {
        if (sbp_map_get(&p->local_buffers, p->program->buffers[b].name) >= 0)
            return sbp_parser_fail_name(p, "a second buffer", p->program->buffers[b].name);
        sbp_map_set(&p->local_buffers, p->program->buffers[b].name, b);
    }
    return SBP_OK;
}

static sbp_status read_function(sbp_program_parser *p) {
    sbp_program *program = p->program;
    sbp_function f = {0};
    SBP_TRY(sbp_lexer_expect(&p->lexer, "@"));
    SBP_TRY(sbp_parser_name(p, &f.name));
    if (sbp_map_get(&p->functions, f.name) >= 0)
        return sbp_parser_fail_name(p, "a second function", f.name);
    SBP_TRY(read_formals(p, &f));
    SBP_TRY(enter_scope(p, f.name));
    p->function = &f;
    SBP_TRY(sbp_parser_body(p, &f.body));
    p->function = NULL;
    sbp_map_set(&p->functions, f.name, program->function_count);
    SBP_PUSH(p->arena, program->functions, program->function_count, program->function_capacity, f);
    return SBP_OK;
}

static sbp_status read_entry(sbp_program_parser *p) {
    sbp_entry entry = {0};
    SBP_TRY(sbp_parser_name(p, &entry.name));
    SBP_TRY(sbp_parser_body(p, &entry.body));
    SBP_PUSH(p->arena, p->program->entries, p->program->entry_count, p->program->entry_capacity, entry);
    return SBP_OK;
}

/* Buffers named their function before it was read. */
static sbp_status bind_scopes(sbp_program_parser *p) {
    for (int32_t b = 0; b < p->program->buffer_count; b++) {
        sbp_buffer *buffer = &p->program->buffers[b];
        if (buffer->function < 0)
            continue;
        const sbp_parser_scope *s = &p->scopes[buffer->function];
        buffer->function = sbp_map_get(&p->functions, s->name);
        if (buffer->function < 0)
            return sbp_fail(p->lexer.diag, SBP_INPUT, "%s:%d: buffer '%.80s' of unknown function '%.80s'",
                            p->lexer.name, s->line, buffer->name, s->name);
    }
    return SBP_OK;
}

static sbp_status bind_parts(sbp_program_parser *p) {
    for (int32_t i = 0; i < p->part_count; i++) {
        const sbp_parser_part *part = &p->parts[i];
        int32_t bucket = sbp_map_get(&p->buffers, part->bucket);
        if (bucket < 0)
            return sbp_fail(p->lexer.diag, SBP_INPUT, "%s:%d: buffer '%.80s' in unknown buffer '%.80s'",
                            p->lexer.name, part->line, p->program->buffers[part->buffer].name, part->bucket);
        p->program->buffers[part->buffer].part_of = bucket + 1;
    }
    return SBP_OK;
}

sbp_status sbp_program_parse(sbp_arena *arena, sbp_diag *diag, const char *name, const char *text,
                             size_t length, sbp_program **out) {
    static const struct {
        const char *keyword;
        sbp_status (*read)(sbp_program_parser *p);
    } sections[] = {
        {"target", read_target},        {"sizes", read_sizes},   {"arena", read_arena},
        {"scalars", read_scalar_names}, {"table", read_table},   {"buffer", read_buffer},
        {"input", read_input},          {"output", read_output}, {"function", read_function},
        {"entry", read_entry},
    };
    if (length > INT32_MAX / 4)
        return sbp_fail(diag, SBP_INPUT, "%s: a program text of %zu bytes", name, length);
    sbp_program_parser *p = SBP_NEW(arena, sbp_program_parser);
    p->arena = arena;
    SBP_TRY(sbp_lexer_init(&p->lexer, arena, diag, name, text, length));
    SBP_TRY(sbp_lexer_expect(&p->lexer, "program"));
    const char *program_name;
    SBP_TRY(sbp_parser_name(p, &program_name));
    p->program = sbp_program_create(arena, program_name);
    p->program->scalar_count = 0; /* the text lists them all */
    reserve_buffers(p);
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
    SBP_TRY(bind_parts(p));
    *out = p->program;
    return SBP_OK;
}
