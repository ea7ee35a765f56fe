/* rows_check.c: runs the steps of a prepared row kernel (rows.h) on paper and says whether they compute what
 * the kernel means: all loads, then all stores (ir/rowkernel/rowkernel.h), also where results lie over
 * operands. It shares no code with rows_plan.c, which chooses the steps, nor with kernels/rows_body.h, which
 * runs them.
 *
 * Instead of numbers a place holds the name of a value and of which rows, heads and elements it is, or where
 * in an operand it is read. Each element of an operand remembers what was written over it: by any result that
 * may lie over that operand, all at once, since what goes wrong in several goes wrong in one. */
#include "backends/cpu/rows.h"

#include <stdio.h>
#include <string.h>

enum { NOTHING = -1 };

/* What a place holds. */
typedef struct held {
    int32_t value; /* instruction; NOTHING: no value yet */
    uint8_t shape;
    int64_t row, rows, head, heads, elem, elems;
    int32_t operand; /* whose memory it is; NOTHING: the place itself */
    int64_t at;      /* element of that memory */
} held;

/* The memory of an operand, [rows, stride]. */
typedef struct memory {
    int64_t rows, stride, elems;
    uint8_t *over;   /* in: the out that was written there, + 1 */
    int16_t *stored; /* out: the value that is there, + 1 */
    int32_t *added;  /* partial: how often something was */
} memory;

typedef struct checker {
    sbp_arena *arena;
    sbp_diag *diag;
    const cpu_row_plan *plan;
    const sbp_rowkernel *kernel;
    bool aliases[SBP_ROWKERNEL_MAX_OPERANDS][SBP_ROWKERNEL_MAX_OPERANDS]; /* [out][in] */
    memory memories[SBP_ROWKERNEL_MAX_OPERANDS];
    held *places;
    int64_t *summed; /* per reduction in pieces: elements so far */
    /* the block at hand */
    int64_t row, rows, head, heads, elem, elems;
    /* for messages */
    const char *list;
    int64_t list_number;
    int32_t step;
    const row_step *current;
} checker;

static const char *const kind_names[] = {
    [ROW_LOAD] = "load",       [ROW_INDEX] = "index",   [ROW_RANDOM] = "random",  [ROW_MAP] = "map",
    [ROW_INTEGER] = "integer", [ROW_LOOKUP] = "lookup", [ROW_ROUND] = "round",    [ROW_EXPAND] = "expand",
    [ROW_REDUCE] = "reduce",   [ROW_STORE] = "store",   [ROW_PARTIAL] = "partial"};

static sbp_status SBP_PRINTF(2, 3) object(const checker *c, const char *format, ...) {
    char what[300], number[32] = "";
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    if (c->list_number >= 0)
        snprintf(number, sizeof number, " %lld", (long long)c->list_number);
    return sbp_fail(c->diag, SBP_INTERNAL, "cpu: kernel '%s', step %d of %s%s (%s): %s", c->kernel->name,
                    c->step, c->list, number, kind_names[c->current->kind], what);
}

static int64_t many(const checker *c, uint8_t shape, uint8_t axis) {
    return !(shape & axis) ? 1 : axis == SBP_VARY_ROW ? c->rows : axis == SBP_VARY_HEAD ? c->heads : c->elems;
}

/* Elements along n of a step of the list at hand. */
static int64_t length_of(const checker *c, uint8_t shape, int64_t length) {
    return !(shape & SBP_VARY_ELEM) ? 1 : c->plan->pieces ? c->elems : length;
}

/* Where row r, head h of the block of a load or store begin in the memory of its operand. */
static int64_t begins_at(const checker *c, const sbp_rk_instr *instr, uint8_t shape, int64_t r, int64_t h) {
    const sbp_rk_operand *o = &c->kernel->operands[instr->index];
    int64_t row = o->vary & SBP_VARY_ROW ? c->row + r : 0;
    int64_t head = o->vary & SBP_VARY_HEAD ? c->head + h : 0;
    int64_t elem = shape & SBP_VARY_ELEM ? c->elem : 0;
    return row * c->memories[instr->index].stride + head * o->head_stride + instr->offset + elem;
}

/* Whether a block of `count` elements a run is one piece of memory. */
static bool in_one_piece(const checker *c, const sbp_rk_instr *instr, uint8_t shape, int64_t count) {
    int64_t rows = many(c, shape, SBP_VARY_ROW), heads = many(c, shape, SBP_VARY_HEAD);
    int64_t first = begins_at(c, instr, shape, 0, 0);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t h = 0; h < heads; h++)
            if (begins_at(c, instr, shape, r, h) != first + (r * heads + h) * count)
                return false;
    return true;
}

/* ---- memory ------------------------------------------------------------------------------------------- */

static sbp_status read_operand(const checker *c, int32_t operand, int64_t at, int64_t count) {
    const memory *m = &c->memories[operand];
    if (at < 0 || at + count > m->elems)
        return object(c, "reads operand '%s' from element %lld to %lld of %lld",
                      c->kernel->operands[operand].name, (long long)at, (long long)(at + count),
                      (long long)m->elems);
    for (int64_t i = at; i < at + count; i++)
        if (m->over[i])
            return object(c, "reads operand '%s' at row %lld, column %lld, where '%s' was written before",
                          c->kernel->operands[operand].name, (long long)(i / m->stride),
                          (long long)(i % m->stride), c->kernel->operands[m->over[i] - 1].name);
    return SBP_OK;
}

/* Elements of an out that hold a value, as what was computed there. */
static sbp_status read_result(const checker *c, int32_t operand, int64_t at, int64_t count, int32_t value) {
    const memory *m = &c->memories[operand];
    for (int64_t i = at; i < at + count; i++)
        if (m->stored[i] != value + 1)
            return object(c, "reads %%%d in operand '%s' at row %lld, column %lld, which holds %%%d", value,
                          c->kernel->operands[operand].name, (long long)(i / m->stride),
                          (long long)(i % m->stride), m->stored[i] - 1);
    return SBP_OK;
}

static sbp_status write_operand(const checker *c, int32_t operand, int64_t at, int64_t count, int32_t value) {
    const memory *m = &c->memories[operand];
    if (at < 0 || at + count > m->elems)
        return object(c, "writes operand '%s' from element %lld to %lld of %lld",
                      c->kernel->operands[operand].name, (long long)at, (long long)(at + count),
                      (long long)m->elems);
    for (int64_t i = at; i < at + count; i++)
        m->stored[i] = (int16_t)(value + 1);
    for (int32_t in = 0; in < c->kernel->operand_count; in++)
        if (c->aliases[operand][in])
            memset(c->memories[in].over + at, operand + 1, (size_t)count);
    return SBP_OK;
}

/* ---- places ------------------------------------------------------------------------------------------- */

/* A step reads a place, in which `value` is expected with a shape, `count` elements along n. */
static sbp_status read_place(const checker *c, int32_t place, int32_t value, uint8_t shape, int64_t count) {
    if (place < 0 || place >= c->plan->place_count)
        return object(c, "has no place for %%%d", value);
    const held *p = &c->places[place];
    const sbp_rk_instr *instr = &c->kernel->instrs[value];
    if (p->value != value)
        return object(c, "reads %%%d in place %d, which holds %%%d", value, place, p->value);
    bool elsewhere = ((instr->vary & SBP_VARY_ROW) && p->row != c->row) ||
                     ((instr->vary & SBP_VARY_HEAD) && p->head != c->head) ||
                     ((p->shape & SBP_VARY_ELEM) && p->elem != c->elem);
    if (elsewhere)
        return object(c, "reads %%%d of row %lld, head %lld, element %lld, which is that of %lld, %lld, %lld",
                      value, (long long)c->row, (long long)c->head, (long long)c->elem, (long long)p->row,
                      (long long)p->head, (long long)p->elem);
    int64_t rows = many(c, shape, SBP_VARY_ROW), heads = many(c, shape, SBP_VARY_HEAD);
    bool inner = p->heads == heads || (rows == 1 && p->heads > heads);
    if (p->shape != shape || p->elems != count || p->rows < rows || !inner)
        return object(c, "reads %%%d as %lld x %lld x %lld elements, which is %lld x %lld x %lld", value,
                      (long long)rows, (long long)heads, (long long)count, (long long)p->rows,
                      (long long)p->heads, (long long)p->elems);
    if (p->operand == NOTHING)
        return SBP_OK;
    bool in = c->kernel->operands[p->operand].mode == SBP_RK_IN;
    return in ? read_operand(c, p->operand, p->at, rows * heads * count)
              : read_result(c, p->operand, p->at, rows * heads * count, value);
}

/* A step reads operand k of the instruction it computes, and writes its own place. */
static sbp_status read_value(const checker *c, const row_step *step, int32_t place, int32_t value,
                             uint8_t shape, int64_t count) {
    if (place == step->dst && c->places[place].operand == NOTHING)
        return object(c, "reads %%%d in place %d, into which it writes", value, place);
    return read_place(c, place, value, shape, count);
}

static held new_value(const checker *c, int32_t value, uint8_t shape, int64_t count) {
    return (held){.value = value,
                  .shape = shape,
                  .row = c->row,
                  .rows = many(c, shape, SBP_VARY_ROW),
                  .head = c->head,
                  .heads = many(c, shape, SBP_VARY_HEAD),
                  .elem = c->elem,
                  .elems = count,
                  .operand = NOTHING};
}

/* ---- steps -------------------------------------------------------------------------------------------- */

static sbp_status run_load(const checker *c, const row_step *step, int64_t count, held *out) {
    const sbp_rk_instr *instr = step->instr;
    int64_t rows = many(c, step->shape, SBP_VARY_ROW), heads = many(c, step->shape, SBP_VARY_HEAD);
    if (step->in_memory && in_one_piece(c, instr, step->shape, count)) {
        if (c->kernel->operands[instr->index].dtype != c->kernel->compute)
            return object(c, "leaves operand '%s' in its memory, which is of another type",
                          c->kernel->operands[instr->index].name);
        out->operand = instr->index;
        out->at = begins_at(c, instr, step->shape, 0, 0);
        return SBP_OK;
    }
    for (int64_t r = 0; r < rows; r++)
        for (int64_t h = 0; h < heads; h++)
            SBP_TRY(read_operand(c, instr->index, begins_at(c, instr, step->shape, r, h), count));
    return SBP_OK;
}

/* A map that computes in the operand which is to hold its result: element by element, what it reads there is
 * not written before. */
static sbp_status check_overlap(const checker *c, int32_t place, bool scalar, int32_t out, int64_t at,
                                int64_t elems) {
    const held *p = place < 0 ? NULL : &c->places[place];
    if (!p || p->operand == NOTHING || !(c->aliases[out][p->operand] || p->operand == out))
        return SBP_OK;
    int64_t read = scalar ? 1 : elems;
    bool apart = p->at + read <= at || at + elems <= p->at;
    if (apart || (p->at == at && read == elems))
        return SBP_OK;
    return object(c, "reads operand '%s' from element %lld on and writes '%s' over it from %lld on",
                  c->kernel->operands[p->operand].name, (long long)p->at, c->kernel->operands[out].name,
                  (long long)at);
}

static sbp_status run_map(const checker *c, const row_step *step, int64_t count, held *out) {
    const sbp_rk_instr *instr = step->instr;
    const int32_t places[] = {step->a, step->b, step->c}, values[] = {instr->a, instr->b, instr->c};
    for (int k = 0; k < sbp_rowop_arity(instr->map); k++) {
        bool scalar = step->scalars >> k & 1;
        SBP_TRY(read_value(c, step, places[k], values[k], scalar ? 0 : step->shape, scalar ? 1 : count));
    }
    const row_step *target = step->target;
    if (!target ||
        !in_one_piece(c, target->instr, target->shape, length_of(c, target->shape, target->length)))
        return SBP_OK;
    int32_t to = target->instr->index;
    if (c->kernel->operands[to].dtype != c->kernel->compute || target->shape != step->shape ||
        target->length != step->length || target->instr->a != (int32_t)(instr - c->kernel->instrs))
        return object(c, "computes in operand '%s', which is to hold something else",
                      c->kernel->operands[to].name);
    out->operand = to;
    out->at = begins_at(c, target->instr, target->shape, 0, 0);
    int64_t elems = many(c, step->shape, SBP_VARY_ROW) * many(c, step->shape, SBP_VARY_HEAD) * count;
    for (int k = 0; k < sbp_rowop_arity(instr->map); k++)
        SBP_TRY(check_overlap(c, places[k], step->scalars >> k & 1, to, out->at, elems));
    return write_operand(c, to, out->at, elems, out->value);
}

static sbp_status run_reduce(const checker *c, const row_step *step, held *out) {
    const sbp_rk_instr *instr = step->instr, *value = &c->kernel->instrs[instr->a];
    int64_t count = length_of(c, step->a_shape, value->length);
    SBP_TRY(read_value(c, step, step->a, instr->a, step->a_shape, count));
    if (c->plan->pieces) {
        if (c->summed[step->reduction] != c->elem)
            return object(c, "adds element %lld on, where %lld are there", (long long)c->elem,
                          (long long)c->summed[step->reduction]);
        c->summed[step->reduction] += count;
        return SBP_OK;
    }
    if ((instr->axes & SBP_VARY_HEAD) && (c->head != 0 || c->heads != c->kernel->heads))
        return object(c, "sums %lld of %lld heads", (long long)c->heads, (long long)c->kernel->heads);
    if ((instr->axes & SBP_VARY_ELEM) && count != value->length)
        return object(c, "sums %lld of %lld elements", (long long)count, (long long)value->length);
    out->elems = out->shape & SBP_VARY_ELEM ? count : 1;
    return SBP_OK;
}

static sbp_status run_store(const checker *c, const row_step *step, int64_t count) {
    const sbp_rk_instr *instr = step->instr;
    SBP_TRY(read_place(c, step->a, instr->a, step->shape, count));
    const held *p = &c->places[step->a];
    if (p->operand == instr->index && p->at == begins_at(c, instr, step->shape, 0, 0))
        return SBP_OK; /* computed there */
    for (int64_t r = 0; r < many(c, step->shape, SBP_VARY_ROW); r++)
        for (int64_t h = 0; h < many(c, step->shape, SBP_VARY_HEAD); h++)
            SBP_TRY(write_operand(c, instr->index, begins_at(c, instr, step->shape, r, h), count, instr->a));
    return SBP_OK;
}

static sbp_status run_partial(const checker *c, const row_step *step, int64_t count) {
    const sbp_rk_instr *instr = step->instr;
    const sbp_rk_operand *o = &c->kernel->operands[instr->index];
    const memory *m = &c->memories[instr->index];
    SBP_TRY(read_place(c, step->a, instr->a, step->shape, count));
    for (int64_t r = 0; r < many(c, step->shape, SBP_VARY_ROW); r++)
        for (int64_t h = 0; h < many(c, step->shape, SBP_VARY_HEAD); h++) {
            int64_t at = (c->row + r) / SBP_PARTIAL_ROWS * m->stride +
                         (o->vary & SBP_VARY_HEAD ? c->head + h : 0) * o->head_stride + instr->offset +
                         (step->shape & SBP_VARY_ELEM ? c->elem : 0);
            if (at + count > m->elems)
                return object(c, "adds to operand '%s' beyond its end", o->name);
            for (int64_t j = 0; j < count; j++)
                m->added[at + j]++;
        }
    return SBP_OK;
}

static sbp_status run_step(checker *c, const row_step *step) {
    const sbp_rk_instr *instr = step->instr;
    int64_t count = length_of(c, step->shape, step->length);
    int32_t value = instr ? (int32_t)(instr - c->kernel->instrs) : NOTHING;
    held out = new_value(c, value, step->shape, count);
    if (step->target && step->kind != ROW_MAP)
        return object(c, "computes in operand '%s', though it is no map",
                      c->kernel->operands[step->target->instr->index].name);
    if (!instr && step->kind != ROW_EXPAND)
        return object(c, "is of no instruction of the kernel");
    switch (step->kind) {
    case ROW_LOAD:
        SBP_TRY(run_load(c, step, count, &out));
        break;
    case ROW_INDEX:
        break;
    case ROW_RANDOM:
        if (instr->a >= 0)
            SBP_TRY(read_value(c, step, step->a, instr->a, 0, 1));
        if (instr->b >= 0) {
            SBP_TRY(read_value(c, step, step->b, instr->b, step->shape & SBP_VARY_ROW, 1));
            SBP_TRY(read_value(c, step, step->c, instr->c, step->shape & SBP_VARY_ROW, 1));
        }
        break;
    case ROW_MAP:
        SBP_TRY(run_map(c, step, count, &out));
        break;
    case ROW_INTEGER:
    case ROW_LOOKUP:
    case ROW_ROUND:
        SBP_TRY(read_value(c, step, step->a, instr->a, step->shape, count));
        if (instr->b >= 0)
            SBP_TRY(read_value(c, step, step->b, instr->b, step->shape, count));
        break;
    case ROW_EXPAND:
        if (!instr)
            out.value = step->a < 0 ? NOTHING : c->places[step->a].value;
        if (out.value == NOTHING)
            return object(c, "expands nothing");
        SBP_TRY(read_value(c, step, step->a, instr ? instr->a : out.value, step->a_shape,
                           step->a_shape & SBP_VARY_ELEM ? count : 1));
        break;
    case ROW_REDUCE:
        SBP_TRY(run_reduce(c, step, &out));
        break;
    case ROW_STORE:
        return run_store(c, step, count);
    case ROW_PARTIAL:
        return run_partial(c, step, count);
    }
    if (step->dst >= 0)
        c->places[step->dst] = out;
    return SBP_OK;
}

static sbp_status run_list(checker *c, const row_list *list, const char *name, int64_t number) {
    c->list = name;
    c->list_number = number;
    for (int32_t i = 0; i < list->count; i++) {
        c->step = i;
        c->current = &list->steps[i];
        if (c->current->last_head && c->head + c->heads < c->kernel->heads)
            continue;
        SBP_TRY(run_step(c, c->current));
    }
    return SBP_OK;
}

/* ---- whole, pieces ------------------------------------------------------------------------------------ */

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static sbp_status run_whole(checker *c, int64_t first, int64_t end) {
    const cpu_row_plan *plan = c->plan;
    c->elem = c->head = 0;
    c->row = first;
    c->rows = least(plan->block_rows, end - first);
    c->heads = plan->block_heads;
    SBP_TRY(run_list(c, &plan->once, "what an item computes once", NOTHING));
    for (; c->row < end; c->row += plan->block_rows) {
        c->rows = least(plan->block_rows, end - c->row);
        c->head = 0;
        c->heads = plan->block_heads;
        SBP_TRY(run_list(c, &plan->per_rows, "a block of rows", NOTHING));
        for (; c->head < c->kernel->heads; c->head += plan->block_heads) {
            c->heads = least(plan->block_heads, c->kernel->heads - c->head);
            SBP_TRY(run_list(c, &plan->per_heads, "a block of heads", NOTHING));
            SBP_TRY(run_list(c, &plan->head_stores, "the stores of a block of heads", NOTHING));
        }
        c->head = 0;
        c->heads = plan->block_heads;
        SBP_TRY(run_list(c, &plan->row_stores, "the stores of a block of rows", NOTHING));
    }
    return SBP_OK;
}

static sbp_status run_pieces(checker *c) {
    const cpu_row_plan *plan = c->plan;
    memset(c->summed, 0, (size_t)plan->reduction_count * sizeof *c->summed);
    for (int32_t p = 0; p < plan->pass_count; p++) {
        const row_pass *pass = &plan->passes[p];
        c->elem = 0;
        c->elems = 1;
        SBP_TRY(run_list(c, &pass->scalars, "the scalars of pass", p));
        for (int32_t l = 0; l < pass->list_count; l++)
            for (c->elem = 0; c->elem < pass->lists[l].length; c->elem += ROW_BLOCK) {
                c->elems = least(ROW_BLOCK, pass->lists[l].length - c->elem);
                SBP_TRY(run_list(c, &pass->lists[l], "the pieces of pass", p));
            }
        c->elem = 0;
        c->elems = 1;
        for (int32_t r = 0; r < plan->reduction_count; r++) {
            const row_reduction *sum = &plan->reductions[r];
            if (sum->level != p)
                continue;
            if (c->summed[r] != c->kernel->instrs[sum->instr->a].length)
                return object(c, "is behind %%%d, a sum of %lld of %lld elements",
                              (int)(sum->instr - c->kernel->instrs), (long long)c->summed[r],
                              (long long)c->kernel->instrs[sum->instr->a].length);
            c->places[sum->place] = new_value(c, (int32_t)(sum->instr - c->kernel->instrs), 0, 1);
        }
    }
    return run_list(c, &plan->final_stores, "the last stores", NOTHING);
}

static sbp_status run_item(checker *c, int64_t first, int64_t end) {
    for (int32_t i = 0; i < c->plan->place_count; i++)
        c->places[i] = (held){.value = NOTHING, .operand = NOTHING};
    c->row = first;
    for (int32_t i = 0; i < c->kernel->instr_count; i++)
        if (c->plan->constants[i] >= 0)
            c->places[c->plan->constants[i]] =
                (held){.value = i, .rows = 1, .heads = 1, .elems = 1, .operand = NOTHING};
    if (!c->plan->pieces)
        return run_whole(c, first, end);
    c->rows = c->heads = 1;
    for (c->row = first; c->row < end; c->row++)
        for (c->head = 0; c->head < c->kernel->heads; c->head++)
            SBP_TRY(run_pieces(c));
    return SBP_OK;
}

/* ---- the end ------------------------------------------------------------------------------------------ */

/* Everything was stored, and added as often as there are rows (and heads) in a block. */
static sbp_status check_results(checker *c, int64_t rows) {
    for (int32_t i = 0; i < c->kernel->instr_count; i++) {
        const sbp_rk_instr *instr = &c->kernel->instrs[i];
        if (!sbp_rk_is_store(instr))
            continue;
        const sbp_rk_operand *o = &c->kernel->operands[instr->index];
        const memory *m = &c->memories[instr->index];
        bool heads = o->vary & SBP_VARY_HEAD;
        int64_t each = !heads && (c->kernel->instrs[instr->a].vary & SBP_VARY_HEAD) ? c->kernel->heads : 1;
        for (int64_t r = 0; r < m->rows; r++)
            for (int64_t h = 0; h < (heads ? c->kernel->heads : 1); h++)
                for (int64_t j = 0; j < instr->length; j++) {
                    int64_t at = r * m->stride + h * o->head_stride + instr->offset + j;
                    bool right = m->stored ? m->stored[at] == instr->a + 1
                                           : m->added[at] ==
                                                 each * least(SBP_PARTIAL_ROWS, rows - r * SBP_PARTIAL_ROWS);
                    if (!right)
                        return sbp_fail(
                            c->diag, SBP_INTERNAL,
                            "cpu: kernel '%s': operand '%s' does not hold %%%d at row %lld, head %lld, "
                            "element %lld",
                            c->kernel->name, o->name, instr->a, (long long)r, (long long)h,
                            (long long)(instr->offset + j));
                }
    }
    return SBP_OK;
}

/* With rows one behind the other, or `gap` elements apart. */
static sbp_status check_layout(checker *c, int64_t rows, int64_t gap) {
    for (int32_t i = 0; i < c->kernel->operand_count; i++) {
        const sbp_rk_operand *o = &c->kernel->operands[i];
        memory *m = &c->memories[i];
        *m = (memory){.rows = o->vary & SBP_VARY_ROW      ? rows
                              : o->mode == SBP_RK_PARTIAL ? sbp_ceil_div(rows, SBP_PARTIAL_ROWS)
                                                          : 1,
                      .stride = (o->vary & SBP_VARY_HEAD ? (c->kernel->heads - 1) * o->head_stride : 0) +
                                o->length + gap};
        m->elems = m->rows * m->stride;
        if (o->mode == SBP_RK_IN)
            m->over = SBP_NEW_ARRAY(c->arena, uint8_t, m->elems);
        else if (o->mode == SBP_RK_OUT)
            m->stored = SBP_NEW_ARRAY(c->arena, int16_t, m->elems);
        else
            m->added = SBP_NEW_ARRAY(c->arena, int32_t, m->elems);
    }
    for (int64_t first = 0; first < rows; first += c->plan->item_rows)
        SBP_TRY(run_item(c, first, least(first + c->plan->item_rows, rows)));
    return check_results(c, rows);
}

typedef struct check_job {
    sbp_arena *arena;
    sbp_diag *diag;
    const cpu_row_plan *plan;
    int64_t rows;
} check_job;

static sbp_status check_body(void *user) {
    const check_job *job = user;
    checker *c = SBP_NEW(job->arena, checker);
    c->arena = job->arena;
    c->diag = job->diag;
    c->plan = job->plan;
    c->kernel = job->plan->kernel;
    c->places = SBP_NEW_ARRAY(c->arena, held, job->plan->place_count + 1);
    c->summed = SBP_NEW_ARRAY(c->arena, int64_t, job->plan->reduction_count + 1);
    for (int32_t out = 0; out < c->kernel->operand_count; out++)
        for (int32_t in = 0; in < c->kernel->operand_count; in++)
            c->aliases[out][in] = sbp_rowkernel_may_alias(c->kernel, out, in);
    SBP_TRY(check_layout(c, job->rows, 0));
    return check_layout(c, job->rows, 3);
}

sbp_status cpu_row_plan_check(const cpu_row_plan *plan, int64_t rows, sbp_diag *diag) {
    check_job job = {.arena = sbp_arena_create(), .diag = diag, .plan = plan, .rows = rows};
    if (!job.arena)
        return sbp_fail(diag, SBP_MACHINE, "out of memory");
    sbp_status status = sbp_guard(job.arena, diag, check_body, &job);
    sbp_arena_destroy(job.arena);
    return status;
}
