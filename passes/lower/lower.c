/* lower.c: building blocks of programs, shared by streambp, head, optimizer and calls. */
#include <string.h>

#include "ir/program/contract.h"
#include "passes/lower/lowering.h"

sbp_dtype sbp_lower_wide(sbp_dtype dtype) {
    return dtype == SBP_F64 ? SBP_F64 : SBP_F32;
}

/* ---- buffers and their names -------------------------------------------------------------------------- */

enum { KEPT = INT32_MAX }; /* in labels: for a buffer that is still to be made */

/* What may belong to a parameter: "<parameter>.<suffix>". */
typedef struct suffixes {
    const char *items[SBP_SUFFIX_COUNT * 2 + SBP_FORMAT_COUNT * SBP_MAX_FORMAT_PARTS];
    int32_t count;
} suffixes;

/* Adds one that is not there yet. */
static void add_suffix(suffixes *s, const char *suffix) {
    for (int32_t i = 0; i < s->count; i++)
        if (strcmp(s->items[i], suffix) == 0)
            return;
    s->items[s->count++] = suffix;
}

/* Those of the contract, and the parts of blocks that parameters may be kept in. */
static suffixes list_suffixes(sbp_arena *arena) {
    suffixes s = {.count = 0};
    for (int i = 0; i < SBP_SUFFIX_COUNT; i++) {
        add_suffix(&s, sbp_suffixes[i].name);
        if (sbp_suffixes[i].kind == SBP_SUFFIX_IS_STATE)
            add_suffix(&s, sbp_arena_printf(arena, "%s" SBP_ABSMAX_SUFFIX, sbp_suffixes[i].name));
    }
    for (int f = SBP_FORMAT_NONE + 1; f < SBP_FORMAT_COUNT; f++)
        for (int32_t k = 0; k < sbp_format_of((sbp_format)f)->part_count; k++)
            add_suffix(&s, sbp_format_of((sbp_format)f)->parts[k].name);
    return s;
}

/* Whether a parameter could be called so: the name, and those of what belongs to it, are free. */
static bool is_free(const sbp_program_builder *p, const suffixes *s, const char *label) {
    bool used = sbp_map_get(&p->labels, label) >= 0;
    for (int32_t i = 0; i < s->count && !used; i++)
        used = sbp_map_get(&p->labels, sbp_arena_printf(p->arena, "%s.%s", label, s->items[i])) >= 0;
    return !used;
}

static void keep_param(sbp_program_builder *p, const suffixes *s, int32_t param, const char *label) {
    p->param_labels[param] = label;
    sbp_map_set(&p->labels, label, KEPT);
    for (int32_t i = 0; i < s->count; i++)
        sbp_map_set(&p->labels, sbp_arena_printf(p->arena, "%s.%s", label, s->items[i]), KEPT);
}

static void keep_names(sbp_program_builder *p) {
    const sbp_module *m = p->module;
    const sbp_func *head = m->funcs[m->calls[m->call_count - 1].func];
    for (int32_t i = 0; i < head->result_count; i++)
        if (head->results[i].name)
            sbp_map_set(&p->labels, head->results[i].name, KEPT);
    p->param_labels = SBP_NEW_ARRAY(p->arena, const char *, m->param_count + 1);
    const suffixes s = list_suffixes(p->arena);
    for (int32_t i = 0; i < m->param_count; i++)
        if (is_free(p, &s, m->params[i].name))
            keep_param(p, &s, i, m->params[i].name);
    for (int32_t i = 0; i < m->param_count; i++) {
        const char *label = NULL;
        for (int32_t n = 2; !p->param_labels[i] && (!label || !is_free(p, &s, label)); n++)
            label = sbp_arena_printf(p->arena, "%s.%d", m->params[i].name, n);
        if (label)
            keep_param(p, &s, i, label);
    }
}

void sbp_lower_begin(const sbp_pass_input *in, sbp_module *module, sbp_program_builder *out) {
    const sbp_pass_options *o = &in->options;
    *out = (sbp_program_builder){.arena = in->arena,
                                 .diag = in->diag,
                                 .module = module,
                                 .target = in->target,
                                 .options = *o,
                                 .program = sbp_program_create(in->arena, module->name)};
    sbp_map_init(&out->buffer_names, in->arena);
    sbp_map_init(&out->labels, in->arena);
    sbp_map_init(&out->rule_keys, in->arena);
    sbp_program *program = out->program;
    program->target = in->target.archs[0]
                          ? sbp_arena_printf(in->arena, "%s:%s", in->target.name, in->target.archs)
                          : in->target.name;
    program->t_max = program->s_max = o->t_max;
    program->chunk = o->schedule.chunk;
    program->head_chunk = o->schedule.head_chunk;
    program->ranks = o->ranks > 1 ? o->ranks : 1;
    program->group = o->group > 0 ? o->group : program->ranks;
    program->context = o->context > 1 ? o->context : 1;
    keep_names(out);
}

const char *sbp_param_label(const sbp_pipeline *p, int32_t param) {
    return p->results->builder.param_labels[param];
}

static int32_t add_buffer(sbp_program_builder *p, const char *label, sbp_role role, sbp_space space,
                          sbp_dtype dtype, int32_t count, sbp_extent rows, int64_t cols, int32_t function) {
    sbp_program *prog = p->program;
    SBP_PUSH(p->arena, prog->buffers, prog->buffer_count, prog->buffer_capacity,
             (sbp_buffer){.name = label,
                          .role = role,
                          .space = space,
                          .dtype = dtype,
                          .count = count,
                          .rows = rows,
                          .cols = cols,
                          .function = function,
                          .offset = -1});
    sbp_map_set(&p->labels, label, prog->buffer_count - 1);
    return prog->buffer_count - 1;
}

static const char *free_label(const sbp_program_builder *p, const char *name) {
    const char *label = sbp_arena_strdup(p->arena, name);
    for (int32_t n = 2; sbp_map_get(&p->labels, label) >= 0; n++)
        label = sbp_arena_printf(p->arena, "%s.%d", name, n);
    return label;
}

int32_t sbp_lower_buffer(sbp_program_builder *p, const char *name, sbp_role role, sbp_space space,
                         sbp_dtype dtype, int32_t count, sbp_extent rows, int64_t cols, int32_t function) {
    int32_t buffer = add_buffer(p, free_label(p, name), role, space, dtype, count, rows, cols, function);
    if (sbp_map_get(&p->buffer_names, name) < 0)
        sbp_map_set(&p->buffer_names, sbp_arena_strdup(p->arena, name), buffer);
    return buffer;
}

int32_t sbp_lower_find_buffer(const sbp_program_builder *p, const char *name) {
    return sbp_map_get(&p->buffer_names, name);
}

/* A buffer by the name that was kept for it; made on first use. */
static int32_t kept_buffer(sbp_program_builder *p, const char *label, sbp_role role, sbp_dtype dtype,
                           sbp_extent rows, int64_t cols) {
    int32_t found = sbp_map_get(&p->labels, label);
    if (found < 0) {
        p->status = sbp_fail(p->diag, SBP_INTERNAL, "lower: no name was kept for '%s'", label);
        found = KEPT;
    }
    return found != KEPT ? found : add_buffer(p, label, role, SBP_DEVICE, dtype, 1, rows, cols, -1);
}

int32_t sbp_lower_output_buffer(sbp_program_builder *p, const char *name, sbp_dtype dtype, sbp_symbol rows) {
    return kept_buffer(p, name, SBP_ROLE_VECTOR, dtype, sbp_extent_symbol(rows, 1), 1);
}

int32_t sbp_lower_statistic(sbp_program_builder *p, const char *name, const sbp_type *type, bool cotangent) {
    const char *label = sbp_arena_printf(p->arena, "%sstatistic.%s", cotangent ? "d_" : "", name);
    int32_t found = sbp_lower_find_buffer(p, label);
    return found >= 0 ? found
                      : sbp_lower_buffer(p, label, SBP_ROLE_VECTOR, SBP_DEVICE, type->dtype, 1,
                                         sbp_extent_const(1), sbp_type_row_elems(type), -1);
}

/* One that is kept in blocks: a buffer for each part, a row per block; the first. */
static int32_t packed_buffers(sbp_program_builder *p, int32_t param) {
    const sbp_param *source = &p->module->params[param];
    const sbp_format_info *format = sbp_format_of(source->format);
    int64_t blocks = sbp_type_row_elems(&source->type) / format->block;
    int32_t first = p->program->buffer_count;
    for (int32_t k = 0; k < format->part_count; k++) {
        const sbp_format_part *part = &format->parts[k];
        const char *label = sbp_arena_printf(p->arena, "%s.%s", p->param_labels[param], part->name);
        (void)kept_buffer(p, label, SBP_ROLE_PARAM, part->dtype, sbp_extent_const(blocks), part->count);
    }
    return first;
}

int32_t sbp_lower_param_buffer(sbp_program_builder *p, int32_t param) {
    const sbp_param *source = &p->module->params[param];
    if (source->format)
        return packed_buffers(p, param);
    sbp_extent rows;
    int64_t cols;
    sbp_lower_shape(&source->type, SBP_C, &rows, &cols);
    if (source->number) {
        int32_t buffer = kept_buffer(p, p->param_labels[param], SBP_ROLE_CONST, source->storage, rows, cols);
        p->program->buffers[buffer].data = source->number;
        return buffer;
    }
    return kept_buffer(p, p->param_labels[param], SBP_ROLE_PARAM, source->storage, rows, cols);
}

int32_t sbp_lower_buffer_of_param(sbp_program_builder *p, int32_t param, const char *what, sbp_role role,
                                  sbp_dtype dtype, sbp_extent rows, int64_t cols) {
    const char *label = sbp_arena_printf(p->arena, "%s.%s", p->program->buffers[param].name, what);
    return kept_buffer(p, label, role, dtype, rows, cols);
}

static sbp_command *add_command(sbp_program_builder *p, sbp_body *body, sbp_command_kind kind,
                                int32_t view_capacity) {
    sbp_command *command = sbp_command_create(p->arena, kind, view_capacity);
    sbp_node node = {.kind = SBP_NODE_COMMAND, .u.command = command};
    SBP_PUSH(p->arena, body->nodes, body->count, body->capacity, node);
    return command;
}

sbp_command *sbp_lower_command(sbp_program_builder *p, sbp_body *body, sbp_command_kind kind) {
    return add_command(p, body, kind, SBP_MAX_COMMAND_OPERANDS);
}

void sbp_lower_call(sbp_program_builder *p, sbp_body *body, int32_t function, const sbp_view *views) {
    int32_t count = p->program->functions[function].formal_count;
    sbp_call *call = SBP_NEW(p->arena, sbp_call);
    call->function = function;
    call->views = SBP_NEW_ARRAY(p->arena, sbp_view, count);
    if (count > 0)
        memcpy(call->views, views, (size_t)count * sizeof *views);
    sbp_node node = {.kind = SBP_NODE_CALL, .u.call = call};
    SBP_PUSH(p->arena, body->nodes, body->count, body->capacity, node);
}

void sbp_lower_fill(sbp_program_builder *p, sbp_body *body, sbp_view view, double value) {
    sbp_command *fill = add_command(p, body, SBP_CMD_FILL, SBP_FILL_OPERANDS);
    fill->views[SBP_FILL_DST] = view;
    fill->view_count = SBP_FILL_OPERANDS;
    fill->u.fill = value;
}

void sbp_lower_copy(sbp_program_builder *p, sbp_body *body, sbp_view to, sbp_view from, int32_t queue) {
    sbp_command *copy = add_command(p, body, SBP_CMD_COPY, SBP_COPY_OPERANDS);
    copy->views[SBP_COPY_DST] = to;
    copy->views[SBP_COPY_SRC] = from;
    copy->view_count = SBP_COPY_OPERANDS;
    copy->queue = queue;
}

void sbp_lower_collective(sbp_program_builder *p, sbp_body *body, sbp_collective_op op, sbp_view to,
                          sbp_view from, int32_t queue) {
    sbp_command *c = add_command(p, body, SBP_CMD_COLLECTIVE, SBP_COLLECTIVE_OPERANDS);
    c->views[SBP_COLLECTIVE_DST] = to;
    c->views[SBP_COLLECTIVE_SRC] = from;
    c->view_count = SBP_COLLECTIVE_OPERANDS;
    c->u.collective.op = op;
    c->queue = queue;
}

void sbp_lower_when(sbp_program_builder *p, sbp_body *body, const char *when, sbp_body conditional) {
    sbp_loop *loop = SBP_NEW(p->arena, sbp_loop);
    *loop = (sbp_loop){
        .table = -1, .scalar = sbp_program_add_scalar(p->arena, p->program, when), .body = conditional};
    sbp_node node = {.kind = SBP_NODE_LOOP, .u.loop = loop};
    SBP_PUSH(p->arena, body->nodes, body->count, body->capacity, node);
}

void sbp_lower_inline(sbp_program_builder *p, sbp_body *body, const sbp_body *commands, const sbp_view *views,
                      int32_t flushes, int32_t gradient, double stream) {
    for (int32_t n = 0; n < commands->count; n++) {
        const sbp_command *from = commands->nodes[n].u.command;
        sbp_command *to = add_command(p, body, from->kind, from->view_count);
        sbp_view *own = to->views;
        *to = *from;
        to->views = memcpy(own, from->views, (size_t)from->view_count * sizeof *own);
        if (to->literals) /* each its own */
            to->literals = SBP_NEW_ARRAY(p->arena, double, to->scalar_count);
        for (int32_t i = 0; to->literals && i < to->scalar_count; i++)
            if (to->scalars[i] == SBP_LITERAL)
                to->literals[i] = stream;
        for (int32_t i = 0; i < to->view_count; i++) {
            if (to->views[i].ref >= 0 || to->views[i].ref == SBP_NO_VIEW)
                continue;
            int32_t operand = ~to->views[i].ref;
            to->views[i].ref = views[operand].ref;
            to->views[i].slot = views[operand].slot;
            if (flushes >= 0 && operand == gradient) {
                to->flushes = flushes;
                to->gradient = i;
            }
        }
    }
}

sbp_symbol sbp_lower_kept_rows(const sbp_type *type) {
    sbp_symbol rows = sbp_type_rows(type);
    return rows == SBP_D || rows == SBP_W ? SBP_W : SBP_T;
}

void sbp_lower_shape(const sbp_type *type, sbp_symbol chunk, sbp_extent *rows, int64_t *cols) {
    sbp_symbol symbol = sbp_type_rows(type);
    *cols = sbp_type_row_elems(type);
    if (symbol == SBP_C)
        symbol = chunk;
    if (symbol != SBP_ONE) {
        *rows = sbp_extent_symbol(symbol, 1);
        return;
    }
    int64_t n = type->rank > 1 ? type->dim[0].n : 1; /* matrices keep their rows, vectors are one row */
    *rows = sbp_extent_const(n);
    *cols = n > 0 ? *cols / n : 0;
}

/* ---- buffers made on first use ----------------------------------------------------------------------- */

static int32_t find_input(const sbp_program *prog, sbp_row_input_kind kind, const char *column,
                          sbp_symbol chunk, bool counted, bool by_rank) {
    for (int32_t i = 0; i < prog->row_input_count; i++) {
        const sbp_row_input *input = &prog->row_inputs[i];
        bool of_all = prog->buffers[input->buffer].rows.c[SBP_W] != 0;
        if (input->kind == kind && input->counted == counted && input->by_rank == by_rank &&
            strcmp(input->column, column) == 0 &&
            (kind == SBP_ROW_COLUMN ? of_all == (chunk == SBP_W) : input->chunk == chunk))
            return input->buffer;
    }
    return -1;
}

static int32_t add_input(sbp_program_builder *p, const char *name, sbp_row_input_kind kind,
                         const char *column, sbp_dtype dtype, sbp_symbol chunk, bool counted, bool by_rank) {
    int32_t buffer = add_buffer(p, free_label(p, name), SBP_ROLE_ROWS, SBP_DEVICE, dtype, 1,
                                sbp_extent_symbol(chunk == SBP_W ? SBP_W : SBP_T, 1), 1,
                                -1); /* found by what it is, not by a name */
    sbp_program *prog = p->program;
    SBP_PUSH(p->arena, prog->row_inputs, prog->row_input_count, prog->row_input_capacity,
             (sbp_row_input){.kind = kind,
                             .buffer = buffer,
                             .column = column,
                             .chunk = kind == SBP_ROW_COLUMN ? SBP_T : chunk,
                             .counted = counted,
                             .by_rank = by_rank});
    return buffer;
}

static const char *order_suffix(bool counted, bool of_all, bool by_rank) {
    if (!of_all)
        return counted ? ".counted" : "";
    return counted ? ".ranks.counted" : by_rank ? ".ranks" : ".all";
}

int32_t sbp_lower_row_buffer(sbp_program_builder *p, const char *name, sbp_dtype dtype, sbp_symbol rows,
                             sbp_row_order order) {
    bool by_rank = order.by_rank && rows == SBP_W;
    int32_t buffer = find_input(p->program, SBP_ROW_COLUMN, name, rows, order.counted, by_rank);
    if (buffer >= 0)
        return buffer;
    const char *label =
        sbp_arena_printf(p->arena, "%s%s", name, order_suffix(order.counted, rows == SBP_W, by_rank));
    return add_input(p, label, SBP_ROW_COLUMN, name, dtype, rows, order.counted, by_rank);
}

int32_t sbp_lower_order_buffer(sbp_program_builder *p, const char *column, sbp_row_input_kind kind,
                               sbp_symbol chunk, bool counted) {
    static const char *const kinds[] = {"column", "order", "segment", "pick", "rank"};
    bool by_rank = chunk == SBP_W;
    int32_t buffer = find_input(p->program, kind, column, chunk, counted, by_rank);
    if (buffer >= 0)
        return buffer;
    const char *name = sbp_arena_printf(p->arena, "%s%s.%s.%s", column, counted ? ".counted" : "",
                                        kinds[kind], sbp_symbol_name(chunk));
    return add_input(p, name, kind, column, SBP_I32, chunk, counted, by_rank);
}

static int32_t const_buffer(sbp_program_builder *p, int32_t constant) {
    const sbp_const *c = &p->module->consts[constant];
    const char *name = sbp_arena_printf(p->arena, "const.%s", c->name);
    int32_t buffer = sbp_lower_find_buffer(p, name);
    if (buffer >= 0)
        return buffer;
    sbp_extent rows;
    int64_t cols;
    sbp_lower_shape(&c->type, SBP_C, &rows, &cols);
    buffer = sbp_lower_buffer(p, name, SBP_ROLE_CONST, SBP_DEVICE, c->type.dtype, 1, rows, cols, -1);
    p->program->buffers[buffer].data = c->data;
    return buffer;
}

/* ---- functions and stages ---------------------------------------------------------------------------- */

sbp_function_lowering *sbp_lower_function(sbp_program_builder *p, sbp_stages *stages, const char *name) {
    sbp_program *prog = p->program;
    SBP_PUSH(p->arena, prog->functions, prog->function_count, prog->function_capacity,
             (sbp_function){.name = sbp_arena_strdup(p->arena, name)});
    sbp_function_lowering *function = SBP_NEW(p->arena, sbp_function_lowering);
    function->function = prog->function_count - 1;
    SBP_PUSH(p->arena, stages->functions, stages->count, stages->capacity, function);
    return function;
}

int32_t sbp_lower_formal(sbp_program_builder *p, int32_t function, const char *name, sbp_access access,
                         sbp_dtype dtype, sbp_extent rows, int64_t cols) {
    sbp_function *f = &p->program->functions[function];
    SBP_PUSH(p->arena, f->formals, f->formal_count, f->formal_capacity,
             (sbp_formal){.name = sbp_arena_strdup(p->arena, name),
                          .access = access,
                          .dtype = dtype,
                          .rows = rows,
                          .cols = cols});
    return f->formal_count - 1;
}

/* How the ops of a body read a parameter. */
typedef enum reading {
    UNREAD,
    GATHERED, /* some rows, by number */
    WHOLE
} reading;

static reading reading_of(const sbp_func *body, const char *name) {
    reading most = UNREAD;
    sbp_value v = sbp_map_get(&body->names, name);
    for (int32_t i = 0; v >= 0 && i < body->op_count; i++)
        for (int32_t k = 0; k < body->ops[i].operand_count; k++)
            if (body->ops[i].operands[k] == v)
                most = body->ops[i].code == SBP_OP_gather && k == 0 && most != WHOLE ? GATHERED : WHOLE;
    for (int32_t i = 0; v >= 0 && i < body->result_count; i++)
        most = body->results[i].value == v ? WHOLE : most;
    return most;
}

/* Whether a call of another segment has the parameter, too. */
static bool is_shared(const sbp_module *m, int32_t segment, int32_t param) {
    for (int32_t c = 0; c < m->call_count; c++)
        for (int32_t i = 0; m->calls[c].func != segment && i < m->calls[c].param_count; i++)
            if (m->calls[c].params[i] == param)
                return true;
    return false;
}

/* The type in which parameter number i of a segment is kept, when all its calls have it so; else the type
 * that is computed with. So also for what is kept wider and converted for others anyway: it would be there
 * twice. */
static sbp_dtype gathered_type(const sbp_module *m, int32_t segment, int32_t i, sbp_dtype computed) {
    int32_t found = -1;
    for (int32_t c = 0; c < m->call_count; c++) {
        if (m->calls[c].func != segment)
            continue;
        int32_t param = m->calls[c].params[i];
        sbp_dtype kept = m->params[param].storage;
        bool wider = sbp_dtype_bytes(kept) > sbp_dtype_bytes(computed);
        if (!sbp_dtype_is_float(kept) || (found >= 0 && (sbp_dtype)found != kept) ||
            (wider && is_shared(m, segment, param)))
            return computed;
        found = (int32_t)kept;
    }
    return found < 0 ? computed : (sbp_dtype)found;
}

static int32_t add_param_formal(sbp_program_builder *p, int32_t function, const char *name, int32_t number,
                                sbp_access access, sbp_dtype dtype, const sbp_type *type) {
    sbp_extent rows;
    int64_t cols;
    sbp_lower_shape(type, SBP_C, &rows, &cols);
    return sbp_lower_formal(p, function, sbp_arena_printf(p->arena, "%s%d", name, number), access, dtype,
                            rows, cols);
}

/* A formal as the parameter is stored, or for each of its parts. */
static void add_piece_formals(sbp_program_builder *p, sbp_function_lowering *function, int32_t number,
                              const sbp_expert_pieces *pieces, const sbp_type *type) {
    const sbp_format_info *format = pieces->format ? sbp_format_of(pieces->format) : NULL;
    for (int32_t k = 0; k < (format ? format->part_count : 1); k++) {
        if (format)
            (void)sbp_lower_formal(
                p, function->function, sbp_arena_printf(p->arena, "p%d.%s", number, format->parts[k].name),
                SBP_READ, format->parts[k].dtype, sbp_extent_const(sbp_type_row_elems(type) / format->block),
                format->parts[k].count);
        else
            (void)add_param_formal(p, function->function, "p", number, SBP_READ, pieces->stored, type);
        SBP_PUSH(p->arena, function->params, function->param_count, function->param_capacity, number);
    }
}

void sbp_lower_param_formals(sbp_program_builder *p, sbp_function_lowering *function, const sbp_func *from,
                             int32_t segment, const sbp_func *const *bodies, int32_t body_count,
                             int32_t *params, int32_t *accums) {
    int32_t number = 0;
    function->pieces = SBP_NEW_ARRAY(p->arena, sbp_expert_pieces, from->value_count + 1);
    for (int32_t i = 0; i < from->arg_count; i++) {
        const sbp_value_info *info = &from->values[from->args[i]];
        sbp_expert_pieces *pieces = &function->pieces[from->args[i]];
        reading most = UNREAD;
        if (info->role != SBP_VALUE_PARAM)
            continue;
        for (int32_t b = 0; b < body_count; b++) {
            reading here = reading_of(bodies[b], info->name);
            most = here > most ? here : most;
        }
        if (most == WHOLE)
            *pieces = sbp_lower_pieces(p, from, segment, from->args[i], number);
        if (pieces->count > 0) {
            params[from->args[i]] = p->program->functions[function->function].formal_count;
            add_piece_formals(p, function, number, pieces, &info->type);
        } else if (most != UNREAD) {
            sbp_dtype dtype = most == GATHERED ? gathered_type(p->module, segment, number, info->type.dtype)
                                               : info->type.dtype;
            params[from->args[i]] =
                add_param_formal(p, function->function, "p", number, SBP_READ, dtype, &info->type);
            SBP_PUSH(p->arena, function->params, function->param_count, function->param_capacity, number);
        }
        number++;
    }
    number = 0;
    for (int32_t i = 0; accums && i < from->arg_count; i++) {
        const sbp_value_info *info = &from->values[from->args[i]];
        if (info->role != SBP_VALUE_PARAM)
            continue;
        if (info->trainable)
            accums[from->args[i]] = add_param_formal(p, function->function, "A", number, SBP_UPDATE,
                                                     sbp_lower_wide(info->type.dtype), &info->type);
        number++;
    }
}

sbp_view sbp_lower_rows_of(const sbp_stage *stage, sbp_view whole) {
    bool of_all = whole.length.base.c[SBP_W] != 0;
    return stage->table >= 0 ? sbp_view_chunk(whole, of_all ? SBP_D : stage->rows) : whole;
}

sbp_stage *sbp_lower_stage(sbp_program_builder *p, const char *name, sbp_func *body, int32_t table,
                           bool descending, sbp_row_order order) {
    sbp_stage *stage = SBP_NEW(p->arena, sbp_stage);
    stage->name = sbp_arena_strdup(p->arena, name);
    stage->body = body;
    stage->table = table;
    stage->rows = table >= 0 ? p->program->tables[table].step : SBP_T;
    stage->descending = descending;
    stage->places = SBP_NEW_ARRAY(p->arena, sbp_place, body->value_count + 1);
    stage->accums = SBP_NEW_ARRAY(p->arena, sbp_view, body->value_count + 1);
    stage->pieces = SBP_NEW_ARRAY(p->arena, sbp_expert_pieces, body->value_count + 1);
    for (int32_t v = 0; v < body->value_count; v++)
        stage->places[v] = stage->accums[v] = sbp_view_none();
    for (int32_t i = 0; i < body->arg_count; i++) {
        sbp_value v = body->args[i];
        const sbp_value_info *info = &body->values[v];
        if (info->role == SBP_VALUE_ROW) {
            const sbp_row *row = &p->module->rows[info->binding];
            sbp_symbol rows = sbp_type_rows(&info->type);
            bool of_groups = rows == SBP_S, of_all = rows == SBP_D || rows == SBP_W;
            sbp_row_order own = {.counted = order.counted && !of_groups, .by_rank = order.by_rank};
            int32_t buffer = sbp_lower_row_buffer(p, row->name, row->dtype, of_all ? SBP_W : SBP_T, own);
            if (of_groups)
                p->program->buffers[buffer].rows = sbp_extent_symbol(SBP_S, 1);
            stage->places[v] = sbp_lower_rows_of(stage, sbp_view_buffer(p->program, buffer, 0));
        } else if (info->role == SBP_VALUE_CONST) {
            stage->places[v] = sbp_view_buffer(p->program, const_buffer(p, info->binding), 0);
        } else if (info->role == SBP_VALUE_SCALAR) {
            sbp_program_add_scalar(p->arena, p->program, p->module->scalars[info->binding]);
        }
    }
    return stage;
}

void sbp_lower_add_stage(sbp_program_builder *p, sbp_function_lowering *function, sbp_stage *stage) {
    SBP_PUSH(p->arena, function->items, function->item_count, function->item_capacity,
             (sbp_item){.stage = stage});
}
