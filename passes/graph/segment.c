/* segment: cuts the model where one float value crosses, beside those that more than the next layer reads;
 * segments whose text is equal share one function.
 *
 * requires  one function @model, sunk
 * preserves values of all results
 * breaks    @model is replaced by segment functions and a list of calls
 *
 * A cut is a place between two ops over which exactly one float value crosses, and has rows (what has none
 * stands before its reader: sink); the ops between two cuts are an atom. An atom in which a row reads other
 * rows (attention, a state) begins a unit, what follows without belongs to it: that is a layer. Atoms before
 * the first unit are the first segment (the embedding). The last atom that holds a matmul, with the cheap
 * atoms before it (no matmul, no carry), is the head. g units make a segment. What crosses between segments
 * is one stream, of one width, and the head reads it as well: where another value crosses, the cut is made at
 * an atom before, or not at all. A head that would read another width than most layers pass on begins
 * earlier: a projection behind the last layer is part of it.
 *
 * Where an atom holds more attentions than most do, values in it that are read beyond the next unit (keys and
 * values that later layers share, embedded rows) are side values, and it is cut further, where exactly one
 * crosses beside these: the stream, defined last, of the width that the head reads, read before the next
 * attention. A segment reads the stream and whatever side values it needs; it gives the stream first, then
 * its side values. The head reads no side value.
 *
 * Statistics of @model are results of the segments that they are sums in, and cross nothing.
 */
#include "passes/lower/passes.h"

#include <string.h>

#include "ir/graph/op.h"

typedef struct atom {
    int32_t begin, end; /* ops */
    sbp_value crossing; /* the value that crosses before it; SBP_NO_VALUE for the first */
    int32_t beside;     /* side values that cross there, too */
    bool has_matmul;
    int32_t reads_rows; /* ops in it in which a row reads other rows */
} atom;

typedef struct cutter {
    const sbp_pass_input *in;
    sbp_module *module;
    int32_t uncut; /* layers that stay with what is before them */
    const sbp_func *func;
    atom *atoms;
    int32_t atom_count, atom_capacity;
    int32_t *starts; /* first atom of each segment */
    int32_t start_count, start_capacity;
    sbp_map functions; /* canonical text -> function number */
    sbp_func **funcs;
    int32_t func_count, func_capacity;
    int32_t *model_value; /* per value of @model: number between calls, -1 */
    int32_t *last_reader; /* per value of @model: the last op that reads it, -1 */
    int32_t *last_use;    /* the same; behind the last op, of a result */
    int32_t *first_use;   /* the first op that reads it, -1 */
    int32_t *reading;     /* per op: of those before it, how many read other rows */
    bool *attended;       /* per value: one that reads other rows reads it as it is */
    sbp_value *map;       /* of the outline at hand; SBP_NO_VALUE between them */
} cutter;

static bool may_cross(const sbp_value_info *info) {
    return info->role == SBP_VALUE_OP && sbp_dtype_is_float(info->type.dtype);
}

/* The one value that crosses before op `at` is *value, and has rows; false when there are none or several. */
static bool single_crossing(const sbp_func *func, const int32_t *last_use, int32_t at, const int32_t *live,
                            int32_t live_count, sbp_value *value) {
    int32_t crossing = 0;
    for (int32_t i = 0; i < live_count; i++)
        if (last_use[live[i]] >= at) {
            crossing++;
            *value = live[i];
        }
    return crossing == 1 && sbp_type_rows(&func->values[*value].type) != SBP_ONE;
}

static bool reads_rows(const sbp_func *func, const sbp_op *op) {
    for (int32_t k = 0; k < op->operand_count; k++) {
        sbp_seq_kind kind = sbp_op_seq(func, op, k, 0).kind;
        if (kind == SBP_SEQ_PREFIX || kind == SBP_SEQ_WINDOW || kind == SBP_SEQ_RECUR)
            return true;
    }
    return false;
}

static void add_atom(cutter *c, int32_t begin, int32_t end, sbp_value crossing, int32_t beside) {
    atom a = {.begin = begin, .end = end, .crossing = crossing, .beside = beside};
    a.reads_rows = c->reading[end] - c->reading[begin];
    for (int32_t i = begin; i < end; i++)
        a.has_matmul |= c->func->ops[i].code == SBP_OP_linear || c->func->ops[i].code == SBP_OP_expert_linear;
    SBP_PUSH(c->in->arena, c->atoms, c->atom_count, c->atom_capacity, a);
}

static void find_uses(cutter *c) {
    const sbp_func *f = c->func;
    c->last_use = SBP_NEW_ARRAY(c->in->arena, int32_t, f->value_count + 1);
    c->first_use = SBP_NEW_ARRAY(c->in->arena, int32_t, f->value_count + 1);
    c->reading = SBP_NEW_ARRAY(c->in->arena, int32_t, f->op_count + 2);
    for (int32_t v = 0; v < f->value_count; v++)
        c->first_use[v] = c->last_reader[v] = -1;
    for (int32_t i = 0; i < f->op_count; i++) {
        c->reading[i + 1] = c->reading[i] + reads_rows(f, &f->ops[i]);
        for (int32_t k = 0; k < f->ops[i].operand_count; k++) {
            sbp_value v = f->ops[i].operands[k];
            if (v == SBP_NO_VALUE)
                continue;
            c->last_use[v] = c->last_reader[v] = i;
            c->first_use[v] = c->first_use[v] < 0 ? i : c->first_use[v];
        }
    }
    c->reading[f->op_count + 1] = c->reading[f->op_count];
    c->attended = SBP_NEW_ARRAY(c->in->arena, bool, f->value_count + 1);
    for (int32_t i = f->op_count - 1; i >= 0; i--) {
        const sbp_op *op = &f->ops[i];
        bool attends =
            c->reading[i + 1] > c->reading[i] || (op->code == SBP_OP_reshape && c->attended[op->results[0]]);
        for (int32_t k = 0; k < op->operand_count && attends; k++)
            if (op->operands[k] != SBP_NO_VALUE)
                c->attended[op->operands[k]] = true;
    }
    for (int32_t i = 0; i < f->result_count; i++)
        if (f->results[i].role != SBP_RESULT_STATISTIC) /* which crosses nothing */
            c->last_use[f->results[i].value] = f->op_count;
}

/* Values that cross from one op to the next, while walking over the ops. */
typedef struct crossings {
    int32_t *live;
    int32_t count, capacity;
} crossings;

static void pass_op(cutter *c, crossings *x, int32_t i) {
    const sbp_func *f = c->func;
    int32_t kept = 0;
    for (int32_t j = 0; j < x->count; j++)
        if (c->last_use[x->live[j]] > i)
            x->live[kept++] = x->live[j];
    x->count = kept;
    for (int32_t r = 0; r < f->ops[i].result_count; r++)
        if (may_cross(&f->values[f->ops[i].results[r]]) && c->last_use[f->ops[i].results[r]] > i)
            SBP_PUSH(c->in->arena, x->live, x->count, x->capacity, f->ops[i].results[r]);
}

static void find_atoms(cutter *c) {
    const sbp_func *f = c->func;
    crossings x = {0};
    int32_t begin = 0;
    sbp_value entered = SBP_NO_VALUE;
    for (int32_t i = 0; i < f->op_count; i++) {
        sbp_value crossing;
        if (i > begin && single_crossing(f, c->last_use, i, x.live, x.count, &crossing)) {
            add_atom(c, begin, i, entered, 0);
            begin = i;
            entered = crossing;
        }
        pass_op(c, &x, i);
    }
    add_atom(c, begin, f->op_count, entered, 0);
}

/* ---- the head ---------------------------------------------------------------------------------------- */

/* Whether the same buffers hold what crosses before two atoms. */
static bool same_stream(const cutter *c, int32_t a, int32_t b) {
    const sbp_value_info *values = c->func->values;
    const sbp_type *x = &values[c->atoms[a].crossing].type, *y = &values[c->atoms[b].crossing].type;
    return x->dtype == y->dtype && sbp_type_row_elems(x) == sbp_type_row_elems(y);
}

/* Where a segment can begin that holds the unit beginning with atom `unit`, behind atom `after`: where the
 * fewest values cross, as late as can be; -1: nowhere. */
static int32_t cut_before(const cutter *c, int32_t unit, int32_t after, int32_t head) {
    int32_t best = -1;
    for (int32_t i = unit; i > after && (i == unit || !c->atoms[i].reads_rows); i--)
        if (same_stream(c, i, head) && (best < 0 || c->atoms[i].beside < c->atoms[best].beside))
            best = i;
    return best;
}

/* Units that could each begin a segment if the head began here. */
static int32_t count_cuts(const cutter *c, int32_t head) {
    int32_t count = 0;
    for (int32_t i = 1; i < head; i++)
        count += c->atoms[i].reads_rows > 0 && cut_before(c, i, 0, head) >= 0;
    return count;
}

/* The first atom of the head: where the stream is of the width that gives most cuts, the last such. */
static int32_t choose_head(const cutter *c) {
    int32_t head = c->atom_count - 1;
    while (head > 0 && (!c->atoms[head].has_matmul || c->atoms[head].beside))
        head--;
    while (head > 1 && !c->atoms[head - 1].has_matmul && !c->atoms[head - 1].reads_rows &&
           !c->atoms[head - 1].beside)
        head--;
    int32_t best = head, most = head > 0 ? count_cuts(c, head) : 0;
    int32_t *tried = SBP_NEW_ARRAY(c->in->arena, int32_t, c->atom_count + 1), tried_count = 0;
    for (int32_t h = head - 1; h > 0 && !c->atoms[h].reads_rows; h--) {
        bool known = c->atoms[h].beside || same_stream(c, h, head);
        for (int32_t i = 0; i < tried_count && !known; i++)
            known = same_stream(c, h, tried[i]);
        if (known)
            continue;
        tried[tried_count++] = h;
        int32_t cuts = count_cuts(c, h);
        if (cuts > most) {
            best = h;
            most = cuts;
        }
    }
    return best;
}

/* ---- side values ------------------------------------------------------------------------------------- */

/* How many attentions a unit has: as most atoms with any; of two as frequent, the fewer. One atom alone says
 * nothing. */
static int32_t usual_reads(const cutter *c) {
    int32_t best = 1, most = 1;
    for (int32_t i = 0; i < c->atom_count; i++) {
        int32_t reads = c->atoms[i].reads_rows, count = 0;
        for (int32_t j = 0; j < c->atom_count && reads > 0; j++)
            count += c->atoms[j].reads_rows == reads;
        if (count > most || (count == most && count > 1 && reads < best)) {
            best = reads;
            most = count;
        }
    }
    return best;
}

/* Whether a value is read beyond the unit behind the one that it is defined in. */
static bool is_read_beyond(const cutter *c, sbp_value v, int32_t unit) {
    int32_t last = c->last_use[v] < c->func->op_count ? c->last_use[v] + 1 : c->func->op_count;
    return c->reading[last] - c->reading[c->func->values[v].op + 1] > unit &&
           sbp_type_rows(&c->func->values[v].type) != SBP_ONE;
}

/* The stream that crosses before op `at`, beside side values alone; SBP_NO_VALUE: there is no cut. begin: of
 * the atom so far. A query is no stream: its cotangent takes the place of the one that came in, at once with
 * those of keys and values; cotangents of side values may need these and what came in. */
static sbp_value stream_crossing(const cutter *c, const crossings *x, int32_t begin, int32_t at, int32_t unit,
                                 const sbp_type *head) {
    sbp_value stream = SBP_NO_VALUE;
    for (int32_t i = 0; i < x->count; i++) {
        sbp_value v = x->live[i];
        const sbp_value_info *info = &c->func->values[v];
        bool fits = !c->attended[v] && c->last_use[v] >= at && info->op >= begin && c->first_use[v] >= at &&
                    c->reading[c->first_use[v]] == c->reading[at] && info->type.dtype == head->dtype &&
                    sbp_type_rows(&info->type) != SBP_ONE &&
                    sbp_type_row_elems(&info->type) == sbp_type_row_elems(head);
        if (fits && (stream == SBP_NO_VALUE || info->op > c->func->values[stream].op))
            stream = v;
    }
    for (int32_t i = 0; i < x->count && stream != SBP_NO_VALUE; i++)
        if (x->live[i] != stream && c->last_use[x->live[i]] >= at && !is_read_beyond(c, x->live[i], unit))
            stream = SBP_NO_VALUE;
    return stream;
}

static int32_t count_crossing(const cutter *c, const crossings *x, int32_t at) {
    int32_t count = 0;
    for (int32_t i = 0; i < x->count; i++)
        count += c->last_use[x->live[i]] >= at;
    return count;
}

/* Cuts atoms further that hold several units. */
static void part_atoms(cutter *c) {
    const atom *whole = c->atoms;
    int32_t count = c->atom_count, unit = usual_reads(c), last = choose_head(c);
    const sbp_type *head = &c->func->values[whole[last].crossing].type;
    crossings x = {0};
    c->atoms = NULL;
    c->atom_count = c->atom_capacity = 0;
    for (int32_t a = 0; a < count; a++) {
        int32_t begin = whole[a].begin;
        sbp_value entered = whole[a].crossing;
        int32_t beside = 0;
        for (int32_t i = whole[a].begin; i < whole[a].end; i++) {
            sbp_value stream = SBP_NO_VALUE;
            if (i > begin && a < last && whole[a].reads_rows > unit)
                stream = stream_crossing(c, &x, begin, i, unit, head);
            if (stream != SBP_NO_VALUE) {
                add_atom(c, begin, i, entered, beside);
                begin = i;
                entered = stream;
                beside = count_crossing(c, &x, i) - 1;
            }
            pass_op(c, &x, i);
        }
        add_atom(c, begin, whole[a].end, entered, beside);
    }
}

/* ---- segments ---------------------------------------------------------------------------------------- */

/* First atoms of the segments: the embedding, g layers each, the head. */
static void choose_segments(cutter *c) {
    int32_t head = choose_head(c), units = 0;
    int64_t g = c->in->options.schedule.segment;
    SBP_PUSH(c->in->arena, c->starts, c->start_count, c->start_capacity, 0);
    for (int32_t i = 0; i < head; i++) {
        if (!c->atoms[i].reads_rows)
            continue;
        int32_t at = cut_before(c, i, c->starts[c->start_count - 1], head);
        c->uncut += at < 0;
        if (units++ % g == 0 && at > 0)
            SBP_PUSH(c->in->arena, c->starts, c->start_count, c->start_capacity, at);
    }
    if (head > 0)
        SBP_PUSH(c->in->arena, c->starts, c->start_count, c->start_capacity, head);
}

typedef struct outline {
    cutter *c;
    sbp_func *func;
    sbp_value *map; /* values of @model to values of the new function */
    sbp_invocation call;
    int32_t param_capacity, stream_capacity, output_capacity;
} outline;

static int32_t model_value(cutter *c, sbp_value v) {
    if (c->model_value[v] < 0)
        c->model_value[v] = c->module->model_value_count++;
    return c->model_value[v];
}

/* The argument of the new function for a value from outside. */
static void import_value(outline *o, sbp_value v) {
    sbp_arena *arena = o->c->in->arena;
    const sbp_value_info *info = &o->c->func->values[v];
    sbp_value_role role = info->role == SBP_VALUE_OP ? SBP_VALUE_STREAM : info->role;
    const char *name = info->name;
    int32_t binding = info->binding;
    if (role == SBP_VALUE_PARAM) {
        name = sbp_arena_printf(arena, "p%d", o->call.param_count);
        SBP_PUSH(arena, o->call.params, o->call.param_count, o->param_capacity, binding);
        binding = -1;
    } else if (role == SBP_VALUE_STREAM) {
        name = sbp_arena_printf(arena, "x%d", o->call.stream_count);
        SBP_PUSH(arena, o->call.streams, o->call.stream_count, o->stream_capacity, model_value(o->c, v));
        binding = -1;
    }
    o->map[v] = sbp_func_add_arg(o->func, role, name, &info->type, binding);
    o->func->values[o->map[v]].trainable = info->trainable;
}

/* Names are made equal across layers: "gate.7" becomes "gate" when that is free in the segment. */
static void restore_names(outline *o, int32_t begin, int32_t end) {
    sbp_func *f = o->func;
    sbp_map_init(&f->names, f->arena);
    sbp_map_init(&f->numbers, f->arena);
    for (int32_t i = 0; i < f->arg_count; i++)
        sbp_map_set(&f->names, f->values[f->args[i]].name, f->args[i]);
    for (int32_t i = begin; i < end; i++)
        for (int32_t r = 0; r < o->c->func->ops[i].result_count; r++) {
            sbp_value v = o->map[o->c->func->ops[i].results[r]];
            const char *full = o->c->func->values[o->c->func->ops[i].results[r]].name;
            size_t length = strlen(full);
            while (length > 0 && full[length - 1] >= '0' && full[length - 1] <= '9')
                length--;
            bool suffixed = length > 0 && length < strlen(full) && full[length - 1] == '.';
            const char *base = suffixed ? sbp_arena_strndup(f->arena, full, length - 1) : full;
            const char *name = sbp_func_free_name(f, base);
            f->values[v].name = name;
            sbp_map_set(&f->names, name, v);
        }
}

/* Between outlines. */
static void clear_map(outline *o, int32_t begin, int32_t end) {
    const sbp_func *from = o->c->func;
    for (int32_t i = begin; i < end; i++) {
        for (int32_t k = 0; k < from->ops[i].operand_count; k++)
            if (from->ops[i].operands[k] != SBP_NO_VALUE)
                o->map[from->ops[i].operands[k]] = SBP_NO_VALUE;
        for (int32_t r = 0; r < from->ops[i].result_count; r++)
            o->map[from->ops[i].results[r]] = SBP_NO_VALUE;
    }
}

/* Whether ops read a value from outside them that crosses beside `stream`. */
static bool reads_beside(const cutter *c, int32_t begin, int32_t end, sbp_value stream) {
    const sbp_func *f = c->func;
    for (int32_t i = begin; i < end; i++)
        for (int32_t k = 0; k < f->ops[i].operand_count; k++) {
            sbp_value v = f->ops[i].operands[k];
            if (v != SBP_NO_VALUE && v != stream && f->values[v].role == SBP_VALUE_OP &&
                f->values[v].op < begin)
                return true;
        }
    return false;
}

static void export_value(outline *o, sbp_value v) {
    sbp_func_add_result(o->func, o->map[v], SBP_RESULT_VALUE, -1, NULL);
    SBP_PUSH(o->c->in->arena, o->call.outputs, o->call.output_count, o->output_capacity,
             model_value(o->c, v));
}

/* What others read: the stream that crosses behind the segment, then the rest; the stream itself again, where
 * more than the next segment reads it, whose end is `next`. */
static void export_values(outline *o, int32_t begin, int32_t end, sbp_value stream, int32_t next) {
    const cutter *c = o->c;
    if (stream != SBP_NO_VALUE)
        export_value(o, stream);
    for (int32_t i = begin; i < end; i++)
        for (int32_t r = 0; r < c->func->ops[i].result_count; r++) {
            sbp_value v = c->func->ops[i].results[r];
            if (c->last_reader[v] >= (v == stream ? next : end))
                export_value(o, v);
        }
}

/* First op of a segment; behind the last op, where there is none of that number. */
static int32_t begin_of(const cutter *c, int32_t number) {
    return number < c->start_count ? c->atoms[c->starts[number]].begin : c->func->op_count;
}

static sbp_status outline_segment(cutter *c, int32_t number) {
    sbp_arena *arena = c->in->arena;
    const sbp_func *from = c->func;
    int32_t begin = begin_of(c, number), end = begin_of(c, number + 1);
    sbp_value enters = c->atoms[c->starts[number]].crossing,
              leaves = number + 1 < c->start_count ? c->atoms[c->starts[number + 1]].crossing : SBP_NO_VALUE;
    outline o = {.c = c, .func = sbp_func_create(arena, "segment"), .map = c->map};
    if (enters != SBP_NO_VALUE && reads_beside(c, begin, end, enters))
        import_value(&o, enters); /* the stream is the first */
    for (int32_t i = begin; i < end; i++)
        for (int32_t k = 0; k < from->ops[i].operand_count; k++) {
            sbp_value v = from->ops[i].operands[k];
            bool inside = v != SBP_NO_VALUE && from->values[v].op >= begin && from->values[v].op < end;
            if (v != SBP_NO_VALUE && !inside && o.map[v] == SBP_NO_VALUE)
                import_value(&o, v);
        }
    sbp_func part = *from;
    part.ops += begin;
    part.op_count = end - begin;
    sbp_func_copy_ops(&part, o.func, o.map, NULL);
    restore_names(&o, begin, end);
    export_values(&o, begin, end, leaves, begin_of(c, number + 2));
    for (int32_t i = 0; i < from->result_count; i++) {
        sbp_value v = from->results[i].value;
        if (from->values[v].op < begin || from->values[v].op >= end)
            continue;
        sbp_func_add_result(o.func, o.map[v], from->results[i].role, -1, from->results[i].name);
        if (from->results[i].role == SBP_RESULT_STATISTIC)
            continue;
        SBP_PUSH(arena, o.call.outputs, o.call.output_count, o.output_capacity, model_value(c, v));
    }
    clear_map(&o, begin, end);
    if (enters != SBP_NO_VALUE)
        o.map[enters] = SBP_NO_VALUE;
    sbp_func *segment;
    SBP_TRY(sbp_canonicalize_func(c->module, o.func, c->in->diag, &segment)); /* merges what sink cloned */
    sbp_text text;
    sbp_text_init(&text, arena);
    sbp_func_print(&text, c->module, segment, true);
    o.call.func = sbp_map_get(&c->functions, text.data);
    if (o.call.func < 0) {
        o.call.func = c->func_count;
        segment->name = number == 0 ? "embed"
                        : number == c->start_count - 1
                            ? "head"
                            : sbp_arena_printf(arena, "layer%d", c->func_count - 1);
        sbp_map_set(&c->functions, text.data, c->func_count);
        SBP_PUSH(arena, c->funcs, c->func_count, c->func_capacity, segment);
    }
    SBP_PUSH(arena, c->module->calls, c->module->call_count, c->module->call_capacity, o.call);
    return SBP_OK;
}

sbp_status sbp_pass_segment(const sbp_pass_input *in, sbp_module *m, int32_t *uncut) {
    cutter c = {.in = in, .module = m, .func = sbp_module_find_func(m, "model")};
    sbp_map_init(&c.functions, in->arena);
    c.model_value = SBP_NEW_ARRAY(in->arena, int32_t, c.func->value_count + 1);
    c.last_reader = SBP_NEW_ARRAY(in->arena, int32_t, c.func->value_count + 1);
    c.map = SBP_NEW_ARRAY(in->arena, sbp_value, c.func->value_count + 1);
    for (int32_t v = 0; v < c.func->value_count; v++) {
        c.model_value[v] = -1;
        c.map[v] = SBP_NO_VALUE;
    }
    find_uses(&c);
    find_atoms(&c);
    if (choose_head(&c) > 0)
        part_atoms(&c);
    choose_segments(&c);
    *uncut = c.uncut;
    for (int32_t i = 0; i < c.start_count; i++)
        SBP_TRY(outline_segment(&c, i));
    sbp_func *objective = sbp_module_find_func(m, "objective"),
             *statistics = sbp_module_find_func(m, "statistics");
    m->funcs = NULL;
    m->func_count = m->func_capacity = 0;
    for (int32_t i = 0; i < c.func_count; i++)
        SBP_PUSH(in->arena, m->funcs, m->func_count, m->func_capacity, c.funcs[i]);
    SBP_PUSH(in->arena, m->funcs, m->func_count, m->func_capacity, objective);
    if (statistics)
        SBP_PUSH(in->arena, m->funcs, m->func_count, m->func_capacity, statistics);
    return SBP_OK;
}
