/* rowkernel_text.c: the text form of row kernels.
 *
 *   kernel @norm f32 heads 1 n 576 {
 *     in x : bf16 [row elem] length 576
 *     out y : bf16 [row head elem] length 64 stride 64
 *     partial dw : f32 [elem] length 576
 *     scalar eps
 *     table thirds [0, 1, -1]
 *     %0 = load x                 # the whole operand; x[0:32] elements 0 to 31; x[3] one column, for all
 *     %1 = mul %0, %0             # any function of rowops.def
 *     %2 = sum[elem] %1           # over axes; also max[..], min[..]
 *     %3 = scalar eps
 *     %4 = const 0.5
 *     %5 = index 0:576
 *     %6 = random eps [row elem] 0:576        # also: .., %3, a stream; .., %3, %8, %9: of that row and head
 *     %7 = round bf16 %0
 *     %code = load q              # a value may have a name in place of its number
 *     %low = bits %code, 0, 4     # any function of intops.def: operands, constants
 *     %12 = lookup %low, thirds
 *     store y[0:32], %7
 *     accumulate dw, %1 }
 *
 * Values are numbered in order; axes and lengths that follow from others are not written. */
#include "ir/base/lex.h"
#include "ir/rowkernel/rowkernel.h"

#include <ctype.h>
#include <string.h>

/* ---- printing ------------------------------------------------------------------------------------- */

static void print_name(sbp_text *out, const char *name) {
    bool bare = isalpha((unsigned char)name[0]) || name[0] == '_';
    for (const char *c = name; *c && bare; c++)
        bare = isalnum((unsigned char)*c) || *c == '_' || *c == '.' || *c == '$';
    if (bare)
        sbp_text_add(out, "%s", name);
    else
        sbp_text_add_quoted(out, name);
}

/* "%7", "%low" */
static void print_value(sbp_text *out, const sbp_rowkernel *kernel, int32_t value) {
    if (!kernel->instrs[value].name) {
        sbp_text_add(out, "%%%d", value);
        return;
    }
    sbp_text_add(out, "%%");
    print_name(out, kernel->instrs[value].name);
}

/* After others. */
static void print_next_value(sbp_text *out, const sbp_rowkernel *kernel, int32_t value) {
    sbp_text_add(out, ", ");
    print_value(out, kernel, value);
}

static const struct {
    const char *name;
    uint8_t bit;
} axes_table[] = {{"row", SBP_VARY_ROW}, {"head", SBP_VARY_HEAD}, {"elem", SBP_VARY_ELEM}};

static void print_axes(sbp_text *out, uint8_t axes) {
    const char *gap = "";
    sbp_text_add(out, "[");
    for (int i = 0; i < SBP_COUNT(axes_table); i++)
        if (axes & axes_table[i].bit) {
            sbp_text_add(out, "%s%s", gap, axes_table[i].name);
            gap = " ";
        }
    sbp_text_add(out, "]");
}

static const char *const mode_names[] = {
    [SBP_RK_IN] = "in", [SBP_RK_OUT] = "out", [SBP_RK_PARTIAL] = "partial"};

static void print_operand(sbp_text *out, const sbp_rk_operand *operand) {
    sbp_text_add(out, "  %s ", mode_names[operand->mode]);
    print_name(out, operand->name);
    sbp_text_add(out, " : %s ", sbp_dtype_name(operand->dtype));
    print_axes(out, operand->vary);
    if (operand->vary & SBP_VARY_ELEM)
        sbp_text_add(out, " length %lld", (long long)operand->length);
    if (operand->vary & SBP_VARY_HEAD)
        sbp_text_add(out, " stride %lld", (long long)operand->head_stride);
    sbp_text_add(out, "\n");
}

static void print_range(sbp_text *out, const sbp_rk_instr *instr) {
    sbp_text_add(out, "%lld:%lld", (long long)instr->offset, (long long)(instr->offset + instr->length));
}

/* "x", "x[0:32]" or "x[3]" */
static void print_part(sbp_text *out, const sbp_rowkernel *kernel, const sbp_rk_instr *instr) {
    const sbp_rk_operand *operand = &kernel->operands[instr->index];
    print_name(out, operand->name);
    if (instr->vary != operand->vary) {
        sbp_text_add(out, "[%lld]", (long long)instr->offset);
    } else if (instr->offset != 0 || instr->length != operand->length) {
        sbp_text_add(out, "[");
        print_range(out, instr);
        sbp_text_add(out, "]");
    }
}

static void print_instr(sbp_text *out, const sbp_rowkernel *kernel, int32_t index) {
    const sbp_rk_instr *instr = &kernel->instrs[index];
    sbp_text_add(out, "  ");
    if (instr->op != SBP_RK_STORE && instr->op != SBP_RK_PARTIAL_ADD) {
        print_value(out, kernel, index);
        sbp_text_add(out, " = ");
    }
    switch (instr->op) {
    case SBP_RK_LOAD:
        sbp_text_add(out, "load ");
        print_part(out, kernel, instr);
        break;
    case SBP_RK_CONST:
        sbp_text_add(out, "const ");
        sbp_text_add_double(out, instr->imm);
        break;
    case SBP_RK_SCALAR:
        sbp_text_add(out, "scalar ");
        print_name(out, kernel->scalars[instr->index]);
        break;
    case SBP_RK_INDEX:
        sbp_text_add(out, "index ");
        print_range(out, instr);
        break;
    case SBP_RK_RANDOM:
        sbp_text_add(out, "random ");
        print_name(out, kernel->scalars[instr->index]);
        sbp_text_add(out, " ");
        print_axes(out, instr->vary);
        sbp_text_add(out, " ");
        print_range(out, instr);
        if (instr->a >= 0)
            print_next_value(out, kernel, instr->a);
        if (instr->b >= 0) {
            print_next_value(out, kernel, instr->b);
            print_next_value(out, kernel, instr->c);
        }
        break;
    case SBP_RK_MAP:
        sbp_text_add(out, "%s ", sbp_rowop_name(instr->map));
        print_value(out, kernel, instr->a);
        if (sbp_rowop_arity(instr->map) > 1)
            print_next_value(out, kernel, instr->b);
        if (sbp_rowop_arity(instr->map) > 2)
            print_next_value(out, kernel, instr->c);
        break;
    case SBP_RK_INTEGER:
        sbp_text_add(out, "%s ", sbp_intop_name(instr->integer));
        print_value(out, kernel, instr->a);
        if (sbp_intop_arity(instr->integer) > 1)
            print_next_value(out, kernel, instr->b);
        for (int k = 0; k < sbp_intop_constants(instr->integer); k++)
            sbp_text_add(out, ", %d", instr->constants[k]);
        break;
    case SBP_RK_LOOKUP:
        sbp_text_add(out, "lookup ");
        print_value(out, kernel, instr->a);
        sbp_text_add(out, ", ");
        print_name(out, kernel->tables[instr->index].name);
        break;
    case SBP_RK_ROUND:
        sbp_text_add(out, "round %s ", sbp_dtype_name(instr->dtype));
        print_value(out, kernel, instr->a);
        break;
    case SBP_RK_SUM:
    case SBP_RK_MAX:
    case SBP_RK_MIN:
        sbp_text_add(out, instr->op == SBP_RK_SUM ? "sum" : instr->op == SBP_RK_MAX ? "max" : "min");
        print_axes(out, instr->axes);
        sbp_text_add(out, " ");
        print_value(out, kernel, instr->a);
        break;
    case SBP_RK_STORE:
    case SBP_RK_PARTIAL_ADD:
        sbp_text_add(out, instr->op == SBP_RK_STORE ? "store " : "accumulate ");
        print_part(out, kernel, instr);
        print_next_value(out, kernel, instr->a);
        break;
    }
    sbp_text_add(out, "\n");
}

static void print_table(sbp_text *out, const sbp_rk_table *table) {
    sbp_text_add(out, "  table ");
    print_name(out, table->name);
    for (int32_t k = 0; k < table->count; k++) {
        sbp_text_add(out, k == 0 ? " [" : ", ");
        sbp_text_add_double(out, table->numbers[k]);
    }
    sbp_text_add(out, "]\n");
}

void sbp_rowkernel_print(sbp_text *out, const sbp_rowkernel *kernel) {
    sbp_text_add(out, "kernel @");
    print_name(out, kernel->name);
    sbp_text_add(out, " %s heads %lld n %lld {\n", sbp_dtype_name(kernel->compute), (long long)kernel->heads,
                 (long long)kernel->n);
    for (int32_t i = 0; i < kernel->operand_count; i++)
        print_operand(out, &kernel->operands[i]);
    for (int32_t i = 0; i < kernel->scalar_count; i++) {
        sbp_text_add(out, "  scalar ");
        print_name(out, kernel->scalars[i]);
        sbp_text_add(out, "\n");
    }
    for (int32_t i = 0; i < kernel->table_count; i++)
        print_table(out, &kernel->tables[i]);
    for (int32_t i = 0; i < kernel->instr_count; i++)
        print_instr(out, kernel, i);
    sbp_text_add(out, "}\n");
}

/* ---- parsing -------------------------------------------------------------------------------------- */

typedef struct parser {
    sbp_lexer *lexer;
    sbp_arena *arena;
    sbp_rowkernel *kernel;
} parser;

static sbp_status parse_axes(parser *p, uint8_t *out) {
    *out = 0;
    SBP_TRY(sbp_lexer_expect(p->lexer, "["));
    while (!sbp_lexer_is(p->lexer, "]")) {
        int i = 0;
        while (i < SBP_COUNT(axes_table) && !sbp_lexer_is(p->lexer, axes_table[i].name))
            i++;
        if (i == SBP_COUNT(axes_table))
            return sbp_lexer_fail(p->lexer, "expected row, head, elem or ']'");
        *out |= axes_table[i].bit;
        SBP_TRY(sbp_lexer_next(p->lexer));
    }
    return sbp_lexer_next(p->lexer);
}

static sbp_status parse_operand(parser *p, sbp_rk_mode mode) {
    sbp_rk_operand operand = {.mode = mode, .length = 1};
    SBP_TRY(sbp_lexer_name(p->lexer, &operand.name));
    SBP_TRY(sbp_lexer_expect(p->lexer, ":"));
    SBP_TRY(sbp_lexer_dtype(p->lexer, &operand.dtype));
    SBP_TRY(parse_axes(p, &operand.vary));
    if (operand.vary & SBP_VARY_ELEM) {
        SBP_TRY(sbp_lexer_expect(p->lexer, "length"));
        SBP_TRY(sbp_lexer_int(p->lexer, &operand.length));
    }
    if (operand.vary & SBP_VARY_HEAD) {
        SBP_TRY(sbp_lexer_expect(p->lexer, "stride"));
        SBP_TRY(sbp_lexer_int(p->lexer, &operand.head_stride));
    }
    sbp_rowkernel_add_operand(p->arena, p->kernel, &operand);
    return SBP_OK;
}

/* first:end, not empty */
static sbp_status parse_range(parser *p, sbp_rk_instr *instr) {
    int64_t end;
    SBP_TRY(sbp_lexer_int(p->lexer, &instr->offset));
    SBP_TRY(sbp_lexer_expect(p->lexer, ":"));
    SBP_TRY(sbp_lexer_int(p->lexer, &end));
    if (instr->offset < 0 || end <= instr->offset)
        return sbp_lexer_fail(p->lexer, "the range %lld:%lld is empty", (long long)instr->offset,
                              (long long)end);
    instr->length = end - instr->offset;
    return SBP_OK;
}

/* An operand or a part of it: sets index, offset, length and vary. */
static sbp_status parse_part(parser *p, sbp_rk_instr *instr) {
    const char *name;
    SBP_TRY(sbp_lexer_name(p->lexer, &name));
    instr->index = 0;
    while (instr->index < p->kernel->operand_count &&
           strcmp(p->kernel->operands[instr->index].name, name) != 0)
        instr->index++;
    if (instr->index == p->kernel->operand_count)
        return sbp_lexer_fail(p->lexer, "no operand '%.80s'", name);
    const sbp_rk_operand *operand = &p->kernel->operands[instr->index];
    instr->vary = operand->vary;
    instr->length = operand->length;
    bool part;
    SBP_TRY(sbp_lexer_accept(p->lexer, "[", &part));
    if (!part)
        return SBP_OK;
    sbp_lexer ahead = *p->lexer; /* "first:end" or "column" */
    SBP_TRY(sbp_lexer_int(&ahead, &instr->offset));
    if (sbp_lexer_is(&ahead, ":")) {
        SBP_TRY(parse_range(p, instr));
    } else {
        *p->lexer = ahead;
        instr->length = 1;
        instr->vary = (uint8_t)(operand->vary & ~SBP_VARY_ELEM);
    }
    return sbp_lexer_expect(p->lexer, "]");
}

static bool is_named(const parser *p) {
    return p->lexer->token == SBP_TOKEN_NAME || p->lexer->token == SBP_TOKEN_STRING;
}

static sbp_status parse_value(parser *p, int32_t *out) {
    int64_t number;
    SBP_TRY(sbp_lexer_expect(p->lexer, "%"));
    if (is_named(p)) {
        const char *name;
        SBP_TRY(sbp_lexer_name(p->lexer, &name));
        for (*out = 0; *out < p->kernel->instr_count; (*out)++)
            if (p->kernel->instrs[*out].name && strcmp(p->kernel->instrs[*out].name, name) == 0)
                return SBP_OK;
        return sbp_lexer_fail(p->lexer, "no value %%%.80s before this one", name);
    }
    SBP_TRY(sbp_lexer_int(p->lexer, &number));
    if (number < 0 || number >= p->kernel->instr_count)
        return sbp_lexer_fail(p->lexer, "no value %%%lld before this one", (long long)number);
    *out = (int32_t)number;
    return SBP_OK;
}

static sbp_status parse_scalar(parser *p, int32_t *out) {
    const char *name;
    SBP_TRY(sbp_lexer_name(p->lexer, &name));
    for (*out = 0; *out < p->kernel->scalar_count; (*out)++)
        if (strcmp(p->kernel->scalars[*out], name) == 0)
            return SBP_OK;
    return sbp_lexer_fail(p->lexer, "no scalar '%.80s'", name);
}

static sbp_status parse_integer(parser *p, sbp_rk_instr *instr, sbp_intop op) {
    instr->op = SBP_RK_INTEGER;
    instr->integer = op;
    SBP_TRY(parse_value(p, &instr->a));
    if (sbp_intop_arity(op) > 1) {
        SBP_TRY(sbp_lexer_expect(p->lexer, ","));
        SBP_TRY(parse_value(p, &instr->b));
    }
    for (int k = 0; k < sbp_intop_constants(op); k++) {
        int64_t number;
        SBP_TRY(sbp_lexer_expect(p->lexer, ","));
        SBP_TRY(sbp_lexer_int(p->lexer, &number));
        if (number < 0 || number > 31)
            return sbp_lexer_fail(p->lexer, "%lld is no number of a bit", (long long)number);
        instr->constants[k] = (int32_t)number;
    }
    return SBP_OK;
}

static sbp_status parse_lookup(parser *p, sbp_rk_instr *instr) {
    const char *name;
    instr->op = SBP_RK_LOOKUP;
    SBP_TRY(parse_value(p, &instr->a));
    SBP_TRY(sbp_lexer_expect(p->lexer, ","));
    SBP_TRY(sbp_lexer_name(p->lexer, &name));
    for (instr->index = 0; instr->index < p->kernel->table_count; instr->index++)
        if (strcmp(p->kernel->tables[instr->index].name, name) == 0)
            return SBP_OK;
    return sbp_lexer_fail(p->lexer, "no table '%.80s'", name);
}

static sbp_status parse_map(parser *p, sbp_rk_instr *instr, const char *name) {
    instr->op = SBP_RK_MAP;
    instr->map = sbp_rowop_from_name(name);
    if (instr->map == SBP_ROWOP_COUNT)
        return sbp_lexer_fail(p->lexer, "no operation '%.80s'", name);
    int arity = sbp_rowop_arity(instr->map);
    SBP_TRY(parse_value(p, &instr->a));
    if (arity > 1) {
        SBP_TRY(sbp_lexer_expect(p->lexer, ","));
        SBP_TRY(parse_value(p, &instr->b));
    }
    if (arity > 2) {
        SBP_TRY(sbp_lexer_expect(p->lexer, ","));
        SBP_TRY(parse_value(p, &instr->c));
    }
    return SBP_OK;
}

/* What stands right of "%k = ". */
static sbp_status parse_definition(parser *p, sbp_rk_instr *instr) {
    if (p->lexer->token != SBP_TOKEN_NAME)
        return sbp_lexer_fail(p->lexer, "expected an operation");
    const char *name = p->lexer->text;
    SBP_TRY(sbp_lexer_next(p->lexer));
    if (strcmp(name, "load") == 0) {
        instr->op = SBP_RK_LOAD;
        return parse_part(p, instr);
    }
    if (strcmp(name, "const") == 0) {
        instr->op = SBP_RK_CONST;
        return sbp_lexer_double(p->lexer, &instr->imm);
    }
    if (strcmp(name, "scalar") == 0) {
        instr->op = SBP_RK_SCALAR;
        return parse_scalar(p, &instr->index);
    }
    if (strcmp(name, "index") == 0) {
        instr->op = SBP_RK_INDEX;
        instr->vary = SBP_VARY_ELEM;
        return parse_range(p, instr);
    }
    if (strcmp(name, "random") == 0) {
        instr->op = SBP_RK_RANDOM;
        SBP_TRY(parse_scalar(p, &instr->index));
        SBP_TRY(parse_axes(p, &instr->vary));
        SBP_TRY(parse_range(p, instr));
        bool stream, row = false;
        SBP_TRY(sbp_lexer_accept(p->lexer, ",", &stream));
        if (stream)
            SBP_TRY(parse_value(p, &instr->a));
        if (stream)
            SBP_TRY(sbp_lexer_accept(p->lexer, ",", &row));
        if (!row)
            return SBP_OK;
        SBP_TRY(parse_value(p, &instr->b));
        SBP_TRY(sbp_lexer_expect(p->lexer, ","));
        return parse_value(p, &instr->c);
    }
    if (strcmp(name, "round") == 0) {
        instr->op = SBP_RK_ROUND;
        SBP_TRY(sbp_lexer_dtype(p->lexer, &instr->dtype));
        return parse_value(p, &instr->a);
    }
    if (sbp_lexer_is(p->lexer, "[") || strcmp(name, "sum") == 0) {
        if (strcmp(name, "sum") == 0)
            instr->op = SBP_RK_SUM;
        else if (strcmp(name, "max") == 0)
            instr->op = SBP_RK_MAX;
        else if (strcmp(name, "min") == 0)
            instr->op = SBP_RK_MIN;
        else
            return sbp_lexer_fail(p->lexer, "no reduction '%.80s'", name);
        SBP_TRY(parse_axes(p, &instr->axes));
        return parse_value(p, &instr->a);
    }
    if (strcmp(name, "lookup") == 0)
        return parse_lookup(p, instr);
    sbp_intop integer = sbp_intop_from_name(name);
    return integer == SBP_INTOP_COUNT ? parse_map(p, instr, name) : parse_integer(p, instr, integer);
}

static sbp_status parse_instr(parser *p) {
    sbp_rk_instr instr = {.a = -1, .b = -1, .c = -1, .index = -1};
    bool store, accumulate = false;
    SBP_TRY(sbp_lexer_accept(p->lexer, "store", &store));
    if (!store)
        SBP_TRY(sbp_lexer_accept(p->lexer, "accumulate", &accumulate));
    if (store || accumulate) {
        instr.op = store ? SBP_RK_STORE : SBP_RK_PARTIAL_ADD;
        SBP_TRY(parse_part(p, &instr));
        SBP_TRY(sbp_lexer_expect(p->lexer, ","));
        SBP_TRY(parse_value(p, &instr.a));
    } else {
        int64_t number;
        SBP_TRY(sbp_lexer_expect(p->lexer, "%"));
        if (is_named(p)) {
            SBP_TRY(sbp_lexer_name(p->lexer, &instr.name));
            number = p->kernel->instr_count;
        } else {
            SBP_TRY(sbp_lexer_int(p->lexer, &number));
        }
        if (number != p->kernel->instr_count)
            return sbp_lexer_fail(p->lexer, "value %%%lld where %%%d comes next", (long long)number,
                                  p->kernel->instr_count);
        SBP_TRY(sbp_lexer_expect(p->lexer, "="));
        SBP_TRY(parse_definition(p, &instr));
    }
    if (p->kernel->instr_count == SBP_ROWKERNEL_MAX_INSTRS)
        return sbp_lexer_fail(p->lexer, "more than %d instructions", SBP_ROWKERNEL_MAX_INSTRS);
    sbp_rowkernel_add(p->arena, p->kernel, &instr);
    return SBP_OK;
}

static sbp_status parse_table(parser *p) {
    sbp_rk_table table = {0};
    bool more = true;
    SBP_TRY(sbp_lexer_next(p->lexer));
    SBP_TRY(sbp_lexer_name(p->lexer, &table.name));
    SBP_TRY(sbp_lexer_expect(p->lexer, "["));
    while (more) {
        if (table.count == SBP_ROWKERNEL_TABLE_NUMBERS)
            return sbp_lexer_fail(p->lexer, "more than %d numbers in a table", SBP_ROWKERNEL_TABLE_NUMBERS);
        SBP_TRY(sbp_lexer_double(p->lexer, &table.numbers[table.count++]));
        SBP_TRY(sbp_lexer_accept(p->lexer, ",", &more));
    }
    sbp_rowkernel_add_table(p->arena, p->kernel, &table);
    return sbp_lexer_expect(p->lexer, "]");
}

sbp_status sbp_rowkernel_parse(sbp_lexer *lexer, sbp_arena *arena, sbp_rowkernel **out) {
    parser p = {.lexer = lexer, .arena = arena};
    const char *name;
    sbp_dtype compute;
    int64_t heads, n;
    SBP_TRY(sbp_lexer_expect(lexer, "kernel"));
    SBP_TRY(sbp_lexer_expect(lexer, "@"));
    SBP_TRY(sbp_lexer_name(lexer, &name));
    SBP_TRY(sbp_lexer_dtype(lexer, &compute));
    SBP_TRY(sbp_lexer_expect(lexer, "heads"));
    SBP_TRY(sbp_lexer_int(lexer, &heads));
    SBP_TRY(sbp_lexer_expect(lexer, "n"));
    SBP_TRY(sbp_lexer_int(lexer, &n));
    SBP_TRY(sbp_lexer_expect(lexer, "{"));
    p.kernel = sbp_rowkernel_create(arena, name, compute);
    p.kernel->heads = heads;
    for (;;) { /* operands */
        sbp_rk_mode mode = SBP_RK_IN;
        while (mode <= SBP_RK_PARTIAL && !sbp_lexer_is(lexer, mode_names[mode]))
            mode++;
        if (mode > SBP_RK_PARTIAL)
            break;
        if (p.kernel->operand_count == SBP_ROWKERNEL_MAX_OPERANDS)
            return sbp_lexer_fail(lexer, "more than %d operands", SBP_ROWKERNEL_MAX_OPERANDS);
        SBP_TRY(sbp_lexer_next(lexer));
        SBP_TRY(parse_operand(&p, mode));
    }
    while (sbp_lexer_is(lexer, "scalar")) {
        const char *scalar;
        if (p.kernel->scalar_count == SBP_ROWKERNEL_MAX_SCALARS)
            return sbp_lexer_fail(lexer, "more than %d scalars", SBP_ROWKERNEL_MAX_SCALARS);
        SBP_TRY(sbp_lexer_next(lexer));
        SBP_TRY(sbp_lexer_name(lexer, &scalar));
        sbp_rowkernel_add_scalar(arena, p.kernel, scalar);
    }
    while (sbp_lexer_is(lexer, "table")) {
        if (p.kernel->table_count == SBP_ROWKERNEL_MAX_TABLES)
            return sbp_lexer_fail(lexer, "more than %d tables", SBP_ROWKERNEL_MAX_TABLES);
        SBP_TRY(parse_table(&p));
    }
    while (!sbp_lexer_is(lexer, "}"))
        SBP_TRY(parse_instr(&p));
    p.kernel->n = n;
    *out = p.kernel;
    return sbp_lexer_next(lexer);
}
