/* fuse_lower.c: ops that become one command, by fuse_lower.def; and what a line of that table cannot say of
 * the command: its attributes, its scratch, what it waits for. */
#include <assert.h>

#include "passes/rows/fuse.h"

/* ---- operands ---------------------------------------------------------------------------------------- */

typedef enum source_kind { SOURCE_NONE, SOURCE_VALUE, SOURCE_PLACE, SOURCE_WINDOW } source_kind;

/* What an operand of the command is made of; name: the op's operand or result. */
typedef struct source {
    source_kind kind;
    const char *name;
} source;

typedef struct lowering {
    sbp_opcode op;
    sbp_command_kind command;
    const source *sources; /* one for each operand of the command */
    void (*rest)(sbp_fuser *z, const sbp_op *op, sbp_instr *instr);
} lowering;

sbp_value sbp_fuse_carry_root(const sbp_fuser *z, sbp_value v) {
    for (const sbp_op *op = def(z, v); op; op = def(z, v)) {
        int32_t result = 0;
        while (op->results[result] != v)
            result++;
        v = sbp_op_continues(op, result);
    }
    return v;
}

/* Rows of a carry that attention with this window may read: from the table's lo to the end of the chunk. */
static sbp_view visible_rows(sbp_fuser *z, sbp_view carry, int64_t window) {
    sbp_chunk_table *table = &z->p->program->tables[z->stage->table];
    int32_t w = 0;
    while (w < table->window_count && table->windows[w] != window)
        w++;
    if (w == table->window_count)
        SBP_PUSH(z->p->arena, table->windows, table->window_count, table->window_capacity, window);
    carry.start = (sbp_index){.column = SBP_COLUMN_LO + w};
    carry.length = (sbp_index){.column = carry.length.base.c[SBP_W] != 0 ? SBP_COLUMN_ALL : SBP_COLUMN_HI};
    carry.until = true;
    return carry;
}

static sbp_value operand_of(const sbp_op *op, const char *name) {
    int32_t number = sbp_opcode_operand(op->code, name);
    assert(number >= 0);
    return op->operands[number];
}

static sbp_value result_of(const sbp_op *op, const char *name) {
    int32_t number = sbp_opcode_result(op->code, name);
    assert(number >= 0);
    return op->results[number];
}

/* optional: the command can do without the operand. */
static sbp_term term_of(sbp_fuser *z, const sbp_op *op, const source *from, bool optional) {
    if (from->kind == SOURCE_NONE)
        return sbp_fuse_no_term();
    bool result = sbp_opcode_operand(op->code, from->name) < 0;
    sbp_value v = result ? result_of(op, from->name) : operand_of(op, from->name);
    if (v == SBP_NO_VALUE)
        return sbp_fuse_no_term();
    if (from->kind == SOURCE_VALUE)
        return result && optional && z->uses[v] == 0 ? sbp_fuse_no_term() : sbp_fuse_term(z, v);
    sbp_view place = z->stage->places[result ? v : sbp_fuse_carry_root(z, v)];
    if (from->kind == SOURCE_WINDOW)
        place = visible_rows(z, place, sbp_op_int(op, "window"));
    return place.ref == SBP_NO_VIEW ? sbp_fuse_no_term() : sbp_fuse_view_term(place);
}

bool sbp_fuse_of_all(const sbp_fuser *z, sbp_value v) {
    return sbp_type_rows(&z->f->values[v].type) == SBP_D;
}

/* ---- the rest of a command --------------------------------------------------------------------------- */

static void rest_nothing(sbp_fuser *z, const sbp_op *op, sbp_instr *instr) {
    (void)z, (void)op, (void)instr;
}

/* What is appended is computed into the carry, or copied to where the carry is; after: two. */
static void wait_for_append(sbp_fuser *z, sbp_value state, sbp_value *after) {
    const sbp_op *op = def(z, state);
    bool append = op && op->code == SBP_OP_append;
    after[0] = append ? z->stage->base[op->operands[1]] : SBP_NO_VALUE;
    after[1] = append ? state : SBP_NO_VALUE;
}

static void rest_attention(sbp_fuser *z, const sbp_op *op, sbp_instr *instr) {
    sbp_value k = operand_of(op, "k"), v = operand_of(op, "v");
    const sbp_type *queries = &z->f->values[operand_of(op, "q")].type, *values = &z->f->values[v].type;
    instr->attrs.u.attention =
        (sbp_attention_attrs){.heads = queries->dim[1].n,
                              .kv_heads = values->dim[1].n,
                              .d_qk = queries->dim[2].n,
                              .d_v = values->dim[2].n,
                              .window = sbp_op_int(op, "window"),
                              .scale = sbp_op_double(op, "scale"),
                              .softcap = sbp_op_double(op, "softcap"),
                              .by_rank = sbp_type_rows(queries) == SBP_C && sbp_type_rows(values) == SBP_W};
    wait_for_append(z, k, &instr->after[0]);
    wait_for_append(z, v, &instr->after[2]);
}

static void rest_attention_vjp(sbp_fuser *z, const sbp_op *op, sbp_instr *instr) {
    rest_attention(z, op, instr);
    const sbp_attention_attrs *attrs = &instr->attrs.u.attention;
    sbp_value q = operand_of(op, "q");
    const sbp_temp work = {.dtype = sbp_lower_wide(z->f->values[q].type.dtype),
                           .cols = sbp_target_work_columns(&z->p->target, attrs->heads, attrs->d_qk),
                           .of_all = sbp_fuse_of_all(z, q),
                           .more_rows = z->p->target.attention_more_rows};
    if (work.cols > 0)
        instr->terms[SBP_ATTN_BWD_WORK] = sbp_fuse_temp(z, work);
    instr->after[4] = operand_of(op, "dk"); /* an earlier attention on the same carry */
    instr->after[5] = operand_of(op, "dv");
    instr->defines[0] = result_of(op, "dk_out");
    instr->defines[1] = result_of(op, "dv_out");
}

static void rest_conv_rows_vjp(sbp_fuser *z, const sbp_op *op, sbp_instr *instr) {
    sbp_value dw = result_of(op, "dw");
    const sbp_type *type = &z->f->values[dw].type;
    const sbp_temp partial = {.dtype = type->dtype,
                              .cols = sbp_type_row_elems(type),
                              .blocks = true,
                              .of_all = sbp_fuse_of_all(z, operand_of(op, "x"))};
    if (z->uses[dw] == 0)
        return;
    sbp_term sums = instr->terms[SBP_CONV_ROWS_BWD_DW] = sbp_fuse_temp(z, partial);
    sbp_fuse_colsum(z, dw, sums, instr->position);
}

/* Attributes, and as operand `work` scratch: of the forward the state, which it needs only where the state
 * behind the chunk is not kept, of the backward what it keeps of each block. */
static void delta_rest(sbp_fuser *z, const sbp_op *op, sbp_instr *instr, bool backward, int32_t work) {
    sbp_value k = operand_of(op, "k");
    const sbp_type *keys = &z->f->values[k].type;
    const sbp_type *values = &z->f->values[operand_of(op, "v")].type;
    sbp_delta_attrs *attrs = &instr->attrs.u.delta;
    *attrs = (sbp_delta_attrs){.heads = values->dim[1].n,
                               .key_heads = keys->dim[1].n,
                               .d_k = keys->dim[2].n,
                               .d_v = values->dim[2].n,
                               .corrects = sbp_op_int(op, "corrects") != 0};
    if (!backward && instr->terms[SBP_DELTA_RULE_NEXT].kind != SBP_TERM_NONE)
        return;
    const sbp_target_info *target = &z->p->target;
    int64_t states = !backward ? 0 : attrs->corrects ? 1 : 2;
    const sbp_temp temp = {.dtype = sbp_lower_wide(keys->dtype),
                           .cols = target->delta_columns ? target->delta_columns(attrs, backward)
                                                         : states * attrs->heads * attrs->d_k * attrs->d_v,
                           .more_rows = target->delta_more_rows,
                           .of_all = sbp_fuse_of_all(z, k),
                           .per = SBP_DELTA_BLOCK};
    if (temp.cols > 0)
        instr->terms[work] = sbp_fuse_temp(z, temp);
}

static void rest_delta_rule(sbp_fuser *z, const sbp_op *op, sbp_instr *instr) {
    delta_rest(z, op, instr, false, SBP_DELTA_RULE_WORK);
}

static void rest_delta_rule_vjp(sbp_fuser *z, const sbp_op *op, sbp_instr *instr) {
    delta_rest(z, op, instr, true, SBP_DELTA_RULE_BWD_WORK);
}

static void rest_exchange(sbp_fuser *z, const sbp_op *op, sbp_instr *instr) {
    sbp_collective_op to = SBP_CONTEXT_REDUCE;
    if (sbp_op_symbol_is(op, "to", "heads"))
        to = SBP_TO_HEADS;
    else if (sbp_op_symbol_is(op, "to", "rows"))
        to = SBP_TO_ROWS;
    else if (sbp_op_symbol_is(op, "to", "all"))
        to = SBP_CONTEXT_GATHER;
    instr->attrs.u.collective.op = to;
    if (to == SBP_TO_HEADS || to == SBP_TO_ROWS)
        instr->attrs.u.collective.heads =
            (sbp_context_heads){.heads = sbp_op_int(op, "heads"),
                                .kv_heads = sbp_op_int(op, "kv_heads"),
                                .dim = z->f->values[operand_of(op, "x")].type.dim[2].n,
                                .keys = sbp_op_int(op, "keys") != 0};
}

/* ---- the table --------------------------------------------------------------------------------------- */

#define NONE {SOURCE_NONE, NULL},
#define VALUE(x) {SOURCE_VALUE, #x},
#define PLACE(x) {SOURCE_PLACE, #x},
#define WINDOW(x) {SOURCE_WINDOW, #x},
#define LOWER(op, command, operands, rest)                                                                   \
    static const source sources_of_##op[] = {operands};                                                      \
    _Static_assert(SBP_COUNT(sources_of_##op) == SBP_##command##_OPERANDS, "operands of " #command);
#include "passes/rows/fuse_lower.def"
#undef LOWER
#undef NONE
#undef VALUE
#undef PLACE
#undef WINDOW

static const lowering lowerings[] = {
#define LOWER(op, command, operands, rest) {SBP_OP_##op, SBP_CMD_##command, sources_of_##op, rest_##rest},
#include "passes/rows/fuse_lower.def"
#undef LOWER
};

bool sbp_fuse_lower(sbp_fuser *z, const sbp_op *op, int32_t position) {
    const lowering *l = lowerings;
    while (l < lowerings + SBP_COUNT(lowerings) && l->op != op->code)
        l++;
    if (l == lowerings + SBP_COUNT(lowerings))
        return false;
    const sbp_command command = {.kind = l->command};
    sbp_command_operand operands[SBP_MAX_COMMAND_OPERANDS];
    sbp_term terms[SBP_MAX_COMMAND_OPERANDS];
    int32_t count = sbp_command_operands(z->p->program, &command, operands);
    for (int32_t i = 0; i < count; i++)
        terms[i] = term_of(z, op, &l->sources[i], operands[i].optional);
    l->rest(z, op, sbp_fuse_instr(z, l->command, position, terms, count));
    return true;
}
