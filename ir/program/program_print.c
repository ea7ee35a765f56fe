/* program_print.c: the text form of programs. What an operand's field has as its default is not written:
 *
 *   X@3[i*C for C, 64 for 32]   rows of the current chunk of X[3], 32 columns from 64 on
 *   %x                          all rows and columns of formal x
 *   K[lo0 until hi]             columns of the chunk table: row0 rows hi blocks lo0 lo1 ...
 *   d := ...   a = ...   dk += ...    written, read, updated
 */
#include "ir/program/command.h"
#include "ir/program/traits.h"

#include <math.h>
#include <string.h>

static const char *const access_names[] = {"in", "out", "inout"};
static const char *const access_signs[] = {"=", ":=", "+="};

typedef struct printer {
    sbp_text *out;
    const sbp_program *program;
    const sbp_function *function; /* NULL in entries */
    int depth;
} printer;

/* ---- names and numbers ------------------------------------------------------------------------------ */

static bool is_plain_name(const char *name) {
    for (const char *c = name; *c; c++) {
        bool letter = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || *c == '_';
        bool later = (*c >= '0' && *c <= '9') || *c == '.' || *c == '$';
        if (!letter && !(later && c > name))
            return false;
    }
    return *name != 0;
}

static void print_name(sbp_text *out, const char *name) {
    if (name && is_plain_name(name))
        sbp_text_add(out, "%s", name);
    else
        sbp_text_add_quoted(out, name ? name : "");
}

static void print_int(sbp_text *out, int64_t value) {
    sbp_text_add(out, "%lld", (long long)value);
}

/* The name of item `index`, or a mark that does not parse: only programs that verify round-trip. */
static void print_ref(sbp_text *out, const char *name, int64_t index) {
    if (name)
        print_name(out, name);
    else
        sbp_text_add(out, "?%lld", (long long)index);
}

static const char *scalar_name(const sbp_program *program, int32_t index) {
    return index >= 0 && index < program->scalar_count ? program->scalars[index] : NULL;
}

static const char *table_name(const sbp_program *program, int32_t index) {
    return index >= 0 && index < program->table_count ? program->tables[index].name : NULL;
}

static const char *buffer_name(const sbp_program *program, int32_t index) {
    return index >= 0 && index < program->buffer_count ? program->buffers[index].name : NULL;
}

static const char *function_name(const sbp_program *program, int32_t index) {
    return index >= 0 && index < program->function_count ? program->functions[index].name : NULL;
}

static const char *kernel_name(const sbp_program *program, int32_t index) {
    return index >= 0 && index < program->kernel_count ? program->kernels[index]->name : NULL;
}

/* ---- views ------------------------------------------------------------------------------------------ */

static bool extent_is_zero(sbp_extent extent) {
    return sbp_extent_as_const(extent) == 0;
}

/* i, i*C, i*(2*C+1) */
static void print_step(sbp_text *out, sbp_extent step) {
    int terms = 0;
    for (int s = 0; s < SBP_SYMBOL_COUNT; s++)
        terms += step.c[s] != 0;
    bool single = terms == 1;
    for (int s = 1; s < SBP_SYMBOL_COUNT; s++)
        single = single && (step.c[s] == 0 || step.c[s] == 1);
    single = single && step.c[SBP_ONE] >= 0;
    sbp_text_add(out, single ? "i*" : "i*(");
    sbp_extent_print(out, step);
    sbp_text_add(out, single ? "" : ")");
}

static void print_index(sbp_text *out, const sbp_index *index) {
    bool any = false;
    if (!extent_is_zero(index->base) || (extent_is_zero(index->step) && index->column < 0)) {
        sbp_extent_print(out, index->base);
        any = true;
    }
    if (!extent_is_zero(index->step)) {
        sbp_text_add(out, any ? "+" : "");
        print_step(out, index->step);
        any = true;
    }
    static const char *const columns[] = {"row0", "rows", "hi", "blocks", "all", "all_blocks"};
    if (index->column >= 0) {
        sbp_text_add(out, any ? "+" : "");
        if (index->column < SBP_COLUMN_LO)
            sbp_text_add(out, "%s", columns[index->column]);
        else
            sbp_text_add(out, "lo%d", index->column - SBP_COLUMN_LO);
    }
}

static void print_view(printer *p, const sbp_view *view) {
    bool known = view->ref >= 0 ? view->ref < p->program->buffer_count
                                : p->function && ~view->ref < p->function->formal_count;
    if (view->ref >= 0) {
        print_ref(p->out, buffer_name(p->program, view->ref), view->ref);
    } else {
        sbp_text_add(p->out, "%%");
        print_ref(p->out, known ? p->function->formals[~view->ref].name : NULL, ~view->ref);
    }
    if (view->slot != 0 || (known && view->ref >= 0 && p->program->buffers[view->ref].count > 1))
        sbp_text_add(p->out, "@%d", view->slot);
    if (view->width != 0)
        sbp_text_add(p->out, "/%lld", (long long)view->width);
    sbp_extent rows;
    int64_t cols;
    known = known && sbp_view_shape(p->program, p->function, view, &rows, &cols);
    bool all_rows = known && extent_is_zero(view->start.base) && extent_is_zero(view->start.step) &&
                    view->start.column < 0 && !view->until && view->length.column < 0 &&
                    extent_is_zero(view->length.step) && sbp_extent_equal(view->length.base, rows);
    bool all_cols = known && view->col == 0 && view->cols == cols;
    if (all_rows && all_cols)
        return;
    sbp_text_add(p->out, "[");
    if (all_rows) {
        sbp_text_add(p->out, "*");
    } else {
        print_index(p->out, &view->start);
        sbp_text_add(p->out, view->until ? " until " : " for ");
        print_index(p->out, &view->length);
    }
    if (!all_cols)
        sbp_text_add(p->out, ", %lld for %lld", (long long)view->col, (long long)view->cols);
    sbp_text_add(p->out, "]");
}

/* ---- commands --------------------------------------------------------------------------------------- */

/* Attributes in braces, each after the first behind a comma. */
static void begin_attr(sbp_text *out, bool *any, const char *name) {
    sbp_text_add(out, "%s%s", *any ? ", " : " {", name);
    *any = true;
}

static bool same_bits(double a, double b) {
    return a == b ? signbit(a) == signbit(b) : isnan(a) && isnan(b);
}

static void print_word_attr(sbp_text *out, bool *any, const char *name, const char *word) {
    begin_attr(out, any, name);
    sbp_text_add(out, " = %s", word);
}

static const char *queue_name(int32_t queue) {
    return queue >= 0 && queue < SBP_QUEUE_COUNT ? sbp_queue_names[queue] : "?";
}

static void print_field(sbp_text *out, bool *any, const sbp_field *field) {
    switch (field->type) {
    case SBP_FIELD_FLAG:
        if (*(const bool *)field->at)
            begin_attr(out, any, field->name);
        break;
    case SBP_FIELD_INT: {
        int64_t value = *(const int64_t *)field->at;
        if (!field->always && (double)value == field->fallback)
            break;
        begin_attr(out, any, field->name);
        sbp_text_add(out, " = %lld", (long long)value);
        break;
    }
    case SBP_FIELD_DOUBLE: {
        double value = *(const double *)field->at;
        if (!field->always && same_bits(value, field->fallback))
            break;
        begin_attr(out, any, field->name);
        sbp_text_add(out, " = ");
        sbp_text_add_double(out, value);
        break;
    }
    case SBP_FIELD_WORD: {
        int32_t word;
        memcpy(&word, field->at, sizeof word);
        print_word_attr(out, any, field->name,
                        word >= 0 && word < field->word_count ? field->words[word] : "?");
        break;
    }
    }
}

static void print_attrs(printer *p, const sbp_command *c, const sbp_command_operand *operands,
                        int32_t operand_count) {
    sbp_text *out = p->out;
    sbp_command own = *c;
    sbp_fields fields;
    bool any = false;
    sbp_command_fields(&own, &fields);
    for (int32_t k = 0; k < fields.count; k++)
        if (!fields.list[k].hidden)
            print_field(out, &any, &fields.list[k]);
    if (c->queue != SBP_QUEUE_COMPUTE)
        print_word_attr(out, &any, "queue", queue_name(c->queue));
    if (c->flushes >= 0) {
        begin_attr(out, &any, "flushes = ");
        print_ref(out, buffer_name(p->program, c->flushes), c->flushes);
        begin_attr(out, &any, "gradient = ");
        bool known = c->gradient >= 0 && c->gradient < operand_count;
        print_ref(out, known ? operands[c->gradient].name : NULL, c->gradient);
    }
    if (any)
        sbp_text_add(out, "}");
}

static void print_command(printer *p, const sbp_command *c) {
    sbp_text *out = p->out;
    sbp_command_operand operands[SBP_MAX_COMMAND_OPERANDS];
    int32_t count = sbp_command_signature(p->program, c, operands);
    sbp_text_add(out, "%s", sbp_command_name(c->kind));
    bool of_kernel = sbp_command_attributes(c) == SBP_ATTRIBUTES_ROW;
    if (of_kernel) {
        sbp_text_add(out, " @");
        print_ref(out, kernel_name(p->program, c->kernel), c->kernel);
    }
    bool any = false;
    for (int32_t k = 0; k < count && k < c->view_count; k++) {
        if (c->views[k].ref == SBP_NO_VIEW)
            continue;
        sbp_text_add(out, any ? ", " : "(");
        any = true;
        print_name(out, operands[k].name);
        sbp_text_add(out, " %s ", access_signs[operands[k].access]);
        print_view(p, &c->views[k]);
    }
    sbp_text_add(out, any ? ")" : "");
    for (int32_t s = 0; s < c->scalar_count; s++) {
        sbp_text_add(out, s == 0 ? " with " : ", ");
        const sbp_rowkernel *kernel =
            of_kernel && kernel_name(p->program, c->kernel) ? p->program->kernels[c->kernel] : NULL;
        print_ref(out, kernel && s < kernel->scalar_count ? kernel->scalars[s] : NULL, s);
        sbp_text_add(out, " = ");
        if (c->scalars[s] == SBP_LITERAL && c->literals)
            sbp_text_add_double(out, c->literals[s]);
        else
            print_ref(out, scalar_name(p->program, c->scalars[s]), c->scalars[s]);
    }
    print_attrs(p, c, operands, count);
    sbp_text_add(out, "\n");
}

static void print_call(printer *p, const sbp_call *call) {
    sbp_text *out = p->out;
    sbp_text_add(out, "call @");
    print_ref(out, function_name(p->program, call->function), call->function);
    if (function_name(p->program, call->function)) {
        const sbp_function *callee = &p->program->functions[call->function];
        for (int32_t k = 0; k < callee->formal_count; k++) {
            sbp_text_add(out, k == 0 ? "(" : ", ");
            print_name(out, callee->formals[k].name);
            sbp_text_add(out, " %s ", access_signs[callee->formals[k].access]);
            print_view(p, &call->views[k]);
        }
        sbp_text_add(out, callee->formal_count > 0 ? ")" : "");
    }
    sbp_text_add(out, "\n");
}

static void print_body(printer *p, const sbp_body *body) {
    p->depth++;
    for (int32_t n = 0; n < body->count; n++) {
        const sbp_node *node = &body->nodes[n];
        sbp_text_add(p->out, "%*s", 2 * p->depth, "");
        if (node->kind == SBP_NODE_COMMAND) {
            print_command(p, node->u.command);
        } else if (node->kind == SBP_NODE_CALL) {
            print_call(p, node->u.call);
        } else {
            const sbp_loop *loop = node->u.loop;
            sbp_text_add(p->out, loop->table >= 0 ? "loop i in " : "loop below ");
            if (loop->table >= 0)
                print_ref(p->out, table_name(p->program, loop->table), loop->table);
            else
                print_ref(p->out, scalar_name(p->program, loop->scalar), loop->scalar);
            sbp_text_add(p->out, loop->descending ? " descending {\n" : " {\n");
            print_body(p, &loop->body);
            sbp_text_add(p->out, "%*s}\n", 2 * p->depth, "");
        }
    }
    p->depth--;
}

/* ---- declarations ----------------------------------------------------------------------------------- */

static void print_header(sbp_text *out, const sbp_program *program) {
    sbp_text_add(out, "program ");
    print_name(out, program->name);
    sbp_text_add(out, "\ntarget ");
    print_name(out, program->target);
    sbp_text_add(out, "\nsizes t_max %lld, s_max %lld, chunk %lld, head_chunk %lld",
                 (long long)program->t_max, (long long)program->s_max, (long long)program->chunk,
                 (long long)program->head_chunk);
    if (program->ranks != 1)
        sbp_text_add(out, ", ranks %lld", (long long)program->ranks);
    if (program->group != program->ranks)
        sbp_text_add(out, ", group %lld", (long long)program->group);
    if (program->context != 1)
        sbp_text_add(out, ", context %lld", (long long)program->context);
    sbp_text_add(out, "\narena ");
    for (int space = 0; space < SBP_SPACE_COUNT; space++)
        if (space != SBP_DISK || program->arena_bytes[space] != 0)
            sbp_text_add(out, "%s%s %lld", space ? ", " : "", sbp_space_names[space],
                         (long long)program->arena_bytes[space]);
    sbp_text_add(out, "\nscalars");
    for (int32_t s = 0; s < program->scalar_count; s++) {
        sbp_text_add(out, s ? ", " : " ");
        print_name(out, program->scalars[s]);
    }
    sbp_text_add(out, "\n");
    for (int32_t t = 0; t < program->table_count; t++) {
        const sbp_chunk_table *table = &program->tables[t];
        sbp_text_add(out, "table ");
        print_name(out, table->name);
        sbp_text_add(out, " step %s%s", sbp_symbol_name(table->step), table->counted ? " counted" : "");
        for (int32_t w = 0; w < table->window_count; w++)
            sbp_text_add(out, "%s%lld", w ? ", " : " windows ", (long long)table->windows[w]);
        sbp_text_add(out, "\n");
    }
}

static void print_shape(sbp_text *out, sbp_dtype dtype, sbp_extent rows, int64_t cols) {
    sbp_text_add(out, "%s[", sbp_dtype_name(dtype));
    sbp_extent_print(out, rows);
    sbp_text_add(out, ", ");
    print_int(out, cols);
    sbp_text_add(out, "]");
}

static void print_buffer(sbp_text *out, const sbp_program *program, const sbp_buffer *buffer) {
    sbp_text_add(out, "buffer ");
    print_name(out, buffer->name);
    if (buffer->count != 1)
        sbp_text_add(out, "[%d]", buffer->count);
    sbp_text_add(out, " %s %s ", sbp_role_name(buffer->role), sbp_space_names[buffer->space]);
    print_shape(out, buffer->dtype, buffer->rows, buffer->cols);
    if (buffer->function >= 0) {
        sbp_text_add(out, " of @");
        print_ref(out, function_name(program, buffer->function), buffer->function);
    }
    if (buffer->sharding != SBP_WHOLE)
        sbp_text_add(out, buffer->sharding == SBP_OWN ? " own" : " sharded");
    if (buffer->part_of > 0) {
        sbp_text_add(out, " in ");
        print_ref(out, buffer_name(program, buffer->part_of - 1), buffer->part_of - 1);
        sbp_text_add(out, " at %lld", (long long)buffer->place);
    }
    if (buffer->offset != -1)
        sbp_text_add(out, " offset %lld", (long long)buffer->offset);
    if (buffer->stride != 0)
        sbp_text_add(out, " stride %lld", (long long)buffer->stride);
    int64_t numbers = buffer->data ? sbp_extent_as_const(buffer->rows) * buffer->cols : 0;
    for (int64_t i = 0; i < numbers; i++) {
        sbp_text_add(out, i ? " " : " data ");
        sbp_text_add_double(out, buffer->data[i]);
    }
    sbp_text_add(out, "\n");
}

static void print_data(sbp_text *out, const sbp_program *program) {
    static const char *const kinds[] = {"column", "order", "segment", "pick", "rank"};
    for (int32_t b = 0; b < program->buffer_count; b++)
        print_buffer(out, program, &program->buffers[b]);
    for (int32_t r = 0; r < program->row_input_count; r++) {
        const sbp_row_input *input = &program->row_inputs[r];
        sbp_text_add(out, "input ");
        print_ref(out, buffer_name(program, input->buffer), input->buffer);
        sbp_text_add(out, " %s%s%s ", kinds[input->kind], input->counted ? " counted" : "",
                     input->by_rank ? " by_rank" : "");
        print_name(out, input->column);
        if (input->kind != SBP_ROW_COLUMN)
            sbp_text_add(out, " chunk %s", sbp_symbol_name(input->chunk));
        sbp_text_add(out, "\n");
    }
    for (int32_t o = 0; o < program->output_count; o++) {
        const sbp_output *output = &program->outputs[o];
        sbp_text_add(out, "output ");
        print_name(out, output->name);
        sbp_text_add(out, " ");
        print_ref(out, buffer_name(program, output->buffer), output->buffer);
        sbp_text_add(out, " %d\n", output->index);
    }
}

void sbp_program_print(sbp_text *out, const sbp_program *program) {
    print_header(out, program);
    print_data(out, program);
    for (int32_t k = 0; k < program->kernel_count; k++) {
        sbp_rowkernel_print(out, program->kernels[k]);
        if (out->length > 0 && out->data[out->length - 1] != '\n')
            sbp_text_add(out, "\n");
    }
    printer p = {.out = out, .program = program};
    for (int32_t f = 0; f < program->function_count; f++) {
        const sbp_function *function = &program->functions[f];
        sbp_text_add(out, "function @");
        print_name(out, function->name);
        for (int32_t k = 0; k < function->formal_count; k++) {
            const sbp_formal *formal = &function->formals[k];
            sbp_text_add(out, "%s%s ", k ? ", " : "(", access_names[formal->access]);
            print_name(out, formal->name);
            sbp_text_add(out, " ");
            print_shape(out, formal->dtype, formal->rows, formal->cols);
        }
        sbp_text_add(out, function->formal_count > 0 ? ") {\n" : " {\n");
        p.function = function;
        print_body(&p, &function->body);
        sbp_text_add(out, "}\n");
    }
    p.function = NULL;
    for (int32_t e = 0; e < program->entry_count; e++) {
        sbp_text_add(out, "entry ");
        print_name(out, program->entries[e].name);
        sbp_text_add(out, " {\n");
        print_body(&p, &program->entries[e].body);
        sbp_text_add(out, "}\n");
    }
}
