/* optable.c: the op table: schemas from ops.def and rowops.def, rules by name. */
#include "ir/graph/op.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- rules ---------------------------------------------------------------------------------------- */

sbp_status sbp_shape_rowop(sbp_shape *shape);
sbp_seq sbp_seq_rowop(const sbp_op *op, int32_t operand, int32_t result);
sbp_status sbp_vjp_rowop(sbp_vjp *vjp);
sbp_status sbp_eval_rowop(const sbp_eval *eval);
bool sbp_examples_rowop(sbp_opcode code, int32_t index, sbp_example *out);

#define DECLARE_COMMON(name)                                                                                 \
    sbp_status sbp_shape_##name(sbp_shape *shape);                                                           \
    sbp_seq sbp_seq_##name(const sbp_op *op, int32_t operand, int32_t result);                               \
    sbp_status sbp_eval_##name(const sbp_eval *eval);                                                        \
    bool sbp_examples_##name(int32_t index, sbp_example *out);
#define DECLARE_ROWWISE(name) DECLARE_COMMON(name) sbp_status sbp_vjp_##name(sbp_vjp *vjp);
#define DECLARE_STRUCTURAL(name) DECLARE_ROWWISE(name)
#define DECLARE_RECUR(name)                                                                                  \
    DECLARE_ROWWISE(name) sbp_status sbp_state_##name(const sbp_shape *shape, sbp_type *out);
#define DECLARE_BACKWARD(name) DECLARE_COMMON(name)
#define DECLARE_CHOICE(name) DECLARE_COMMON(name)
#define DECLARE_COMPOSITE(name) DECLARE_COMMON(name) sbp_status sbp_expand_##name(sbp_expand *expand);
#define DECLARE_LATE(name) DECLARE_ROWWISE(name) sbp_status sbp_expand_##name(sbp_expand *expand);
#define OP(name, operands, results, class) DECLARE_##class(name)
#define ATTR(op, name, kind, default)
#include "ir/graph/ops.def"
#undef OP
#undef ATTR

#define RULES(name, vjp, expand, state)                                                                      \
    {sbp_shape_##name, sbp_seq_##name, vjp, expand, sbp_eval_##name, sbp_examples_##name, state, NULL},
#define RULES_ROWWISE(name) RULES(name, sbp_vjp_##name, NULL, NULL)
#define RULES_STRUCTURAL(name) RULES(name, sbp_vjp_##name, NULL, NULL)
#define RULES_RECUR(name) RULES(name, sbp_vjp_##name, NULL, sbp_state_##name)
#define RULES_BACKWARD(name) RULES(name, NULL, NULL, NULL)
#define RULES_CHOICE(name) RULES(name, NULL, NULL, NULL)
#define RULES_COMPOSITE(name) RULES(name, NULL, sbp_expand_##name, NULL)
#define RULES_LATE(name) RULES(name, sbp_vjp_##name, sbp_expand_##name, NULL)

static const sbp_op_rules rules[SBP_OP_COUNT] = {
#define ROWOP(name, arity, cost, vjp, value)                                                                 \
    {sbp_shape_rowop, sbp_seq_rowop, sbp_vjp_rowop, NULL, sbp_eval_rowop, NULL, NULL, sbp_examples_rowop},
#include "ir/rowkernel/rowops.def"
#undef ROWOP
#define OP(name, operands, results, class) RULES_##class(name)
#define ATTR(op, name, kind, default)
#include "ir/graph/ops.def"
#undef OP
#undef ATTR
};

const sbp_op_rules *sbp_opcode_rules(sbp_opcode code) {
    return &rules[code];
}

bool sbp_opcode_example(sbp_opcode code, int32_t index, sbp_example *out) {
    memset(out, 0, sizeof *out);
    return rules[code].examples ? rules[code].examples(index, out)
                                : rules[code].rowop_example(code, index, out);
}

/* ---- schemas -------------------------------------------------------------------------------------- */

static const struct {
    const char *name, *operands, *results;
    sbp_op_class class;
} schemas[SBP_OP_COUNT] = {
#define ROWOP(name, arity, cost, vjp, value)                                                                 \
    {#name, (arity) == 1 ? "a" : (arity) == 2 ? "a b" : "a b c", "y", SBP_CLASS_ROWWISE},
#include "ir/rowkernel/rowops.def"
#undef ROWOP
#define OP(name, operands, results, class) {#name, operands, results, SBP_CLASS_##class},
#define ATTR(op, name, kind, default)
#include "ir/graph/ops.def"
#undef OP
#undef ATTR
};

static const struct {
    sbp_opcode op;
    sbp_attr_schema schema;
} attributes[] = {
#define OP(name, operands, results, class)
#define ATTR(op, name, kind, default) {SBP_OP_##op, {#name, SBP_ATTR_##kind, default}},
#include "ir/graph/ops.def"
#undef OP
#undef ATTR
};

const char *sbp_opcode_name(sbp_opcode code) {
    return schemas[code].name;
}

sbp_opcode sbp_opcode_from_name(const char *name) {
    int code = 0;
    while (code < SBP_OP_COUNT && strcmp(schemas[code].name, name) != 0)
        code++;
    return (sbp_opcode)code;
}

sbp_op_class sbp_opcode_class(sbp_opcode code) {
    return schemas[code].class;
}

/* The opcodes of rowops.def come first, in its order. */
sbp_rowop sbp_opcode_rowop(sbp_opcode code) {
    return (int)code < (int)SBP_ROWOP_COUNT ? (sbp_rowop)code : SBP_ROWOP_COUNT;
}

sbp_opcode sbp_opcode_of_rowop(sbp_rowop op) {
    return (sbp_opcode)op;
}

static int32_t count_words(const char *words) {
    int32_t count = 0;
    for (const char *c = words; *c; c++)
        if (*c != ' ' && (c == words || c[-1] == ' '))
            count++;
    return count;
}

int32_t sbp_opcode_results(sbp_opcode code) {
    return count_words(schemas[code].results);
}

int32_t sbp_opcode_operands(sbp_opcode code, sbp_operand_info out[SBP_MAX_OPERANDS]) {
    int32_t count = 0;
    for (const char *at = schemas[code].operands; *at && count < SBP_MAX_OPERANDS;) {
        size_t length = strcspn(at, " ");
        bool optional = at[length - 1] == '?';
        out[count++] = (sbp_operand_info){
            .name = at, .length = (int32_t)length - (optional ? 1 : 0), .optional = optional};
        at += length;
        at += strspn(at, " ");
    }
    return count;
}

/* The number of a word of this name, with or without "?"; -1: there is none. */
static int32_t word_called(const char *words, const char *name, size_t length) {
    for (int32_t n = 0; *words; n++) {
        if (strcspn(words, " ?") == length && strncmp(words, name, length) == 0)
            return n;
        words += strcspn(words, " ");
        words += strspn(words, " ");
    }
    return -1;
}

int32_t sbp_opcode_operand(sbp_opcode code, const char *name) {
    return word_called(schemas[code].operands, name, strlen(name));
}

int32_t sbp_opcode_result(sbp_opcode code, const char *name) {
    return word_called(schemas[code].results, name, strlen(name));
}

int32_t sbp_opcode_continues(sbp_opcode code, int32_t result) {
    static const char suffix[] = "_out";
    const size_t behind = sizeof suffix - 1;
    const char *at = schemas[code].results;
    if (schemas[code].class == SBP_CLASS_ROWWISE)
        return -1;
    for (; result > 0; result--) {
        at += strcspn(at, " ");
        if (!*at++) /* there are fewer */
            return -1;
    }
    size_t length = strcspn(at, " ");
    if (length <= behind || strncmp(at + length - behind, suffix, behind) != 0)
        return -1;
    return word_called(schemas[code].operands, at, length - behind);
}

sbp_value sbp_op_continues(const sbp_op *op, int32_t result) {
    int32_t operand = sbp_opcode_continues(op->code, result);
    return operand < 0 ? SBP_NO_VALUE : op->operands[operand];
}

bool sbp_opcode_attends(sbp_opcode code) {
    return code == SBP_OP_attention || code == SBP_OP_attention_sink;
}

int32_t sbp_opcode_state(sbp_opcode code) {
    return schemas[code].class == SBP_CLASS_ROWWISE ? -1 : sbp_opcode_operand(code, "state");
}

sbp_opcode sbp_opcode_state_form(sbp_opcode code, int32_t *operands) {
    char name[64];
    snprintf(name, sizeof name, "%s_state", schemas[code].name);
    sbp_opcode form = sbp_opcode_from_name(name);
    sbp_operand_info info[SBP_MAX_OPERANDS];
    int32_t count = form == SBP_OP_COUNT ? 0 : sbp_opcode_operands(form, info);
    for (int32_t k = 0; k < count; k++)
        operands[k] = word_called(schemas[code].operands, info[k].name, (size_t)info[k].length);
    return form;
}

int32_t sbp_opcode_attrs(sbp_opcode code, sbp_attr_schema out[SBP_MAX_ATTRS]) {
    int32_t count = 0;
    for (int i = 0; i < SBP_COUNT(attributes); i++)
        if (attributes[i].op == code) {
            out[count] = attributes[i].schema;
            if (strcmp(out[count].fallback, "-") == 0)
                out[count].fallback = NULL;
            count++;
        }
    return count;
}

const sbp_attr *sbp_op_attr(const sbp_op *op, const char *name) {
    for (const sbp_attr *attr = op->attrs;; attr++) /* the name is in the schema, so this ends */
        if (strcmp(attr->name, name) == 0)
            return attr;
}

bool sbp_op_symbol_is(const sbp_op *op, const char *name, const char *symbol) {
    return strcmp(sbp_op_attr(op, name)->symbol, symbol) == 0;
}

/* ---- helpers of the rule files -------------------------------------------------------------------- */

const char *sbp_shape_text(const sbp_type *type) {
    static _Thread_local char ring[8][96];
    static _Thread_local unsigned next;
    char *out = ring[next++ % 8];
    size_t room = sizeof ring[0];
    int n = snprintf(out, room, "%s[", sbp_dtype_name(type->dtype));
    for (int i = 0; i < type->rank; i++)
        if (type->dim[i].symbol != SBP_ONE)
            n += snprintf(out + n, room - (size_t)n, "%s%s", i ? "," : "",
                          sbp_symbol_name(type->dim[i].symbol));
        else
            n += snprintf(out + n, room - (size_t)n, "%s%lld", i ? "," : "", (long long)type->dim[i].n);
    snprintf(out + n, room - (size_t)n, "]");
    return out;
}

sbp_status sbp_shape_fail(const sbp_shape *shape, int constraint, const char *format, ...) {
    char message[512];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return sbp_fail(shape->diag, SBP_INPUT, "%s_c%d: %s (%s%s%sin @%s)", sbp_opcode_name(shape->op->code),
                    constraint, message, shape->op->node ? "node '" : "",
                    shape->op->node ? shape->op->node : "", shape->op->node ? "', " : "", shape->func);
}

/* Reads "f32[T,6,4]" of a rule file; the text is ours, so it is well formed. */
static sbp_type type_from_text(const char *text) {
    sbp_type type = {0};
    size_t length = strcspn(text, "[");
    if (!sbp_dtype_from_name(text, length, &type.dtype))
        return type;
    for (const char *at = text + length + 1; *at && *at != ']';) {
        char *end = NULL;
        sbp_dim dim = sbp_dim_const(0);
        if (*at >= '0' && *at <= '9') {
            dim.n = strtoll(at, &end, 10);
            at = end;
        } else {
            dim.symbol = *at == 'T' ? SBP_T : *at == 'S' ? SBP_S : *at == 'W' ? SBP_W : SBP_C;
            at++;
        }
        type.dim[type.rank++] = dim;
        if (*at == ',')
            at++;
    }
    return type;
}

sbp_example_operand sbp_example_float(const char *type, double lo, double hi) {
    return (sbp_example_operand){.type = type_from_text(type), .fill = SBP_FILL_FLOAT, .lo = lo, .hi = hi};
}

sbp_example_operand sbp_example_int(const char *type, int64_t lo, int64_t hi) {
    return (sbp_example_operand){
        .type = type_from_text(type), .fill = SBP_FILL_INT, .lo = (double)lo, .hi = (double)hi};
}

sbp_example_operand sbp_example_rows(sbp_example_fill fill) {
    return (sbp_example_operand){.type = type_from_text("i32[T]"), .fill = fill};
}

sbp_seq sbp_op_seq(const sbp_func *func, const sbp_op *op, int32_t operand, int32_t result) {
    if (op->operands[operand] == SBP_NO_VALUE ||
        sbp_type_rows(&func->values[op->operands[operand]].type) == SBP_ONE)
        return sbp_seq_of(SBP_SEQ_NONE);
    return rules[op->code].seq(op, operand, result);
}
