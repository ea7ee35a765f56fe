/* parse.c: reads the text form of the graph IR (print.c). Used by tests and for experiments by hand; the text
 * is untrusted all the same. */
#include "ir/base/lex.h"
#include "ir/graph/op.h"

#include <string.h>

/* An argument that is the cotangent of a value further down. */
typedef struct pending {
    sbp_value arg;
    const char *of;
} pending;

typedef struct parser {
    sbp_lexer lexer;
    sbp_arena *arena;
    sbp_module *module;
    sbp_func *func;
    pending *pending; /* of func */
    int32_t pending_count, pending_capacity;
} parser;

static sbp_status parse_word(parser *p, const char *const *words, int count, int *out) {
    for (int i = 0; i < count; i++)
        if (sbp_lexer_is(&p->lexer, words[i])) {
            *out = i;
            return sbp_lexer_next(&p->lexer);
        }
    return sbp_lexer_fail(&p->lexer, "unexpected '%.60s'", p->lexer.text);
}

/* An integer from `least` to 2^31 - 1. */
static sbp_status parse_number(parser *p, int32_t least, int32_t *out) {
    int64_t number;
    SBP_TRY(sbp_lexer_int(&p->lexer, &number));
    if (number < least || number > INT32_MAX)
        return sbp_lexer_fail(&p->lexer, "%lld is out of range", (long long)number);
    *out = (int32_t)number;
    return SBP_OK;
}

/* The value of this name, or -1. The table may still hold the number that a value had before it got its name.
 */
static sbp_value find_value(const parser *p, const char *name) {
    sbp_value value = sbp_map_get(&p->func->names, name);
    return value >= 0 && strcmp(p->func->values[value].name, name) == 0 ? value : -1;
}

/* "%name" of a value that exists, or "-". */
static sbp_status parse_use(parser *p, sbp_value *out) {
    bool none = false;
    SBP_TRY(sbp_lexer_accept(&p->lexer, "-", &none));
    *out = SBP_NO_VALUE;
    if (none)
        return SBP_OK;
    SBP_TRY(sbp_lexer_expect(&p->lexer, "%"));
    const char *name;
    SBP_TRY(sbp_lexer_name(&p->lexer, &name));
    *out = find_value(p, name);
    return *out >= 0 ? SBP_OK : sbp_lexer_fail(&p->lexer, "no value is called %%%.60s", name);
}

static sbp_status parse_new_name(parser *p, const char **out) {
    SBP_TRY(sbp_lexer_expect(&p->lexer, "%"));
    SBP_TRY(sbp_lexer_name(&p->lexer, out));
    if (find_value(p, *out) >= 0)
        return sbp_lexer_fail(&p->lexer, "two values are called %%%.60s", *out);
    return SBP_OK;
}

static int32_t find_const(const sbp_module *module, const char *name) {
    for (int32_t i = 0; i < module->const_count; i++)
        if (strcmp(module->consts[i].name, name) == 0)
            return i;
    return -1;
}

static int32_t find_row(const sbp_module *module, const char *name) {
    for (int32_t i = 0; i < module->row_count; i++)
        if (strcmp(module->rows[i].name, name) == 0)
            return i;
    return -1;
}

static int32_t find_scalar(const sbp_module *module, const char *name) {
    for (int32_t i = 0; i < module->scalar_count; i++)
        if (strcmp(module->scalars[i], name) == 0)
            return i;
    return -1;
}

static sbp_status parse_binding(parser *p, sbp_value_role role, int32_t *binding, bool *trainable) {
    const char *name = NULL;
    *binding = -1;
    if (role == SBP_VALUE_PARAM) {
        sbp_dtype dtype;
        if (sbp_lexer_is(&p->lexer, "trainable"))
            return sbp_lexer_accept(&p->lexer, "trainable", trainable);
        if (p->lexer.token == SBP_TOKEN_NAME &&
            sbp_dtype_from_name(p->lexer.text, strlen(p->lexer.text), &dtype))
            return SBP_OK; /* a formal; a parameter of that name is quoted */
        SBP_TRY(sbp_lexer_name(&p->lexer, &name));
        *binding = sbp_module_find_param(p->module, name);
        SBP_TRY(sbp_lexer_accept(&p->lexer, "trainable", trainable));
    } else if (role == SBP_VALUE_ROW || role == SBP_VALUE_SCALAR || role == SBP_VALUE_CONST) {
        SBP_TRY(sbp_lexer_name(&p->lexer, &name));
        *binding = role == SBP_VALUE_ROW      ? find_row(p->module, name)
                   : role == SBP_VALUE_SCALAR ? find_scalar(p->module, name)
                                              : find_const(p->module, name);
    }
    if (name && *binding < 0)
        return sbp_lexer_fail(&p->lexer, "the module has no '%.60s'", name);
    return SBP_OK;
}

static sbp_status parse_arg(parser *p) {
    static const char *const roles[] = {"op",     "stream", "param", "row",
                                        "scalar", "const",  "carry", "cotangent"};
    const char *name;
    int role = 0;
    int32_t binding = -1;
    bool trainable = false;
    sbp_type type;
    const char *of = NULL;
    SBP_TRY(parse_new_name(p, &name));
    SBP_TRY(sbp_lexer_expect(&p->lexer, ":"));
    SBP_TRY(parse_word(p, roles, SBP_COUNT(roles), &role));
    if (role == SBP_VALUE_OP)
        return sbp_lexer_fail(&p->lexer, "an argument cannot be the result of an op");
    if (role == SBP_VALUE_COTANGENT) {
        bool none = false;
        SBP_TRY(sbp_lexer_accept(&p->lexer, "-", &none));
        if (!none) {
            SBP_TRY(sbp_lexer_expect(&p->lexer, "%"));
            SBP_TRY(sbp_lexer_name(&p->lexer, &of));
        }
    }
    SBP_TRY(parse_binding(p, (sbp_value_role)role, &binding, &trainable));
    SBP_TRY(sbp_lexer_type(&p->lexer, &type));
    sbp_value value = sbp_func_add_arg(p->func, (sbp_value_role)role, name, &type, binding);
    p->func->values[value].trainable = trainable;
    if (of)
        SBP_PUSH(p->arena, p->pending, p->pending_count, p->pending_capacity, (pending){value, of});
    return SBP_OK;
}

static sbp_status bind_cotangents(parser *p) {
    for (int32_t i = 0; i < p->pending_count; i++) {
        sbp_value of = find_value(p, p->pending[i].of);
        if (of < 0)
            return sbp_lexer_fail(&p->lexer, "no value is called %%%.60s (in @%.60s)", p->pending[i].of,
                                  p->func->name);
        p->func->values[p->pending[i].arg].binding = of;
    }
    p->pending_count = 0;
    return SBP_OK;
}

static sbp_status parse_attr(parser *p, const sbp_attr_schema *schema, sbp_attr *out) {
    *out = (sbp_attr){.name = schema->name, .kind = schema->kind};
    SBP_TRY(sbp_lexer_expect(&p->lexer, schema->name));
    if (schema->kind == SBP_ATTR_I || schema->kind == SBP_ATTR_B)
        return sbp_lexer_int(&p->lexer, &out->i);
    if (schema->kind == SBP_ATTR_F)
        return sbp_lexer_double(&p->lexer, &out->f);
    if (schema->kind == SBP_ATTR_S)
        return sbp_lexer_name(&p->lexer, &out->symbol);
    if (schema->kind == SBP_ATTR_D) {
        sbp_dtype dtype;
        SBP_TRY(sbp_lexer_dtype(&p->lexer, &dtype));
        out->i = (int64_t)dtype;
        return SBP_OK;
    }
    int64_t *list = NULL;
    int32_t count = 0, capacity = 0;
    SBP_TRY(sbp_lexer_expect(&p->lexer, "["));
    while (!sbp_lexer_is(&p->lexer, "]")) {
        int64_t entry;
        if (count > 0)
            SBP_TRY(sbp_lexer_expect(&p->lexer, ","));
        SBP_TRY(sbp_lexer_int(&p->lexer, &entry));
        SBP_PUSH(p->arena, list, count, capacity, entry);
    }
    out->list = list;
    out->i = count;
    return sbp_lexer_next(&p->lexer);
}

static sbp_status parse_op(parser *p) {
    const char *names[SBP_MAX_RESULTS];
    sbp_type types[SBP_MAX_RESULTS];
    int32_t results = 0;
    for (bool more = true; more; results++) {
        if (results == SBP_MAX_RESULTS)
            return sbp_lexer_fail(&p->lexer, "more than %d results", SBP_MAX_RESULTS);
        SBP_TRY(parse_new_name(p, &names[results]));
        SBP_TRY(sbp_lexer_expect(&p->lexer, ":"));
        SBP_TRY(sbp_lexer_type(&p->lexer, &types[results]));
        SBP_TRY(sbp_lexer_accept(&p->lexer, ",", &more));
    }
    SBP_TRY(sbp_lexer_expect(&p->lexer, "="));
    const char *word;
    SBP_TRY(sbp_lexer_name(&p->lexer, &word));
    sbp_op op = {.code = sbp_opcode_from_name(word)};
    if (op.code == SBP_OP_COUNT || sbp_opcode_results(op.code) != results)
        return sbp_lexer_fail(&p->lexer, "no op '%.60s' with %d results", word, results);
    sbp_operand_info info[SBP_MAX_OPERANDS];
    sbp_value operands[SBP_MAX_OPERANDS];
    op.operand_count = sbp_opcode_operands(op.code, info);
    op.operands = operands;
    for (int32_t k = 0; k < op.operand_count; k++) {
        if (k > 0)
            SBP_TRY(sbp_lexer_expect(&p->lexer, ","));
        SBP_TRY(parse_use(p, &operands[k]));
    }
    sbp_attr_schema schema[SBP_MAX_ATTRS];
    sbp_attr attrs[SBP_MAX_ATTRS];
    int32_t attr_count = sbp_opcode_attrs(op.code, schema);
    op.attrs = attrs;
    for (int32_t i = 0; i < attr_count; i++) {
        SBP_TRY(sbp_lexer_expect(&p->lexer, i ? "," : "{"));
        SBP_TRY(parse_attr(p, &schema[i], &attrs[i]));
    }
    if (attr_count > 0)
        SBP_TRY(sbp_lexer_expect(&p->lexer, "}"));
    bool has_node = false;
    SBP_TRY(sbp_lexer_accept(&p->lexer, "@", &has_node));
    if (has_node)
        SBP_TRY(sbp_lexer_name(&p->lexer, &op.node));
    int32_t number = sbp_func_add_op(p->func, &op, types, NULL);
    for (int32_t r = 0; r < results; r++) { /* names as written, not made unique */
        sbp_value value = p->func->ops[number].results[r];
        p->func->values[value].name = names[r];
        sbp_map_set(&p->func->names, names[r], value);
    }
    return SBP_OK;
}

static sbp_status parse_result(parser *p) {
    static const char *const roles[] = {"value", "carry", "gradient", "saved", "statistic"};
    sbp_value value, target = SBP_NO_VALUE;
    int role = 0;
    const char *name = NULL;
    SBP_TRY(parse_use(p, &value));
    SBP_TRY(parse_word(p, roles, SBP_COUNT(roles), &role));
    if (role == SBP_RESULT_CARRY || role == SBP_RESULT_GRADIENT) {
        SBP_TRY(parse_use(p, &target));
    } else if (role == SBP_RESULT_SAVED) {
        SBP_TRY(parse_number(p, -1, &target));
    }
    if (p->lexer.token == SBP_TOKEN_STRING)
        SBP_TRY(sbp_lexer_name(&p->lexer, &name));
    sbp_func_add_result(p->func, value, (sbp_result_role)role, target, name);
    return SBP_OK;
}

static sbp_status parse_func(parser *p) {
    const char *name;
    SBP_TRY(sbp_lexer_name(&p->lexer, &name));
    p->func = sbp_module_add_func(p->module, name);
    SBP_TRY(sbp_lexer_expect(&p->lexer, "("));
    while (!sbp_lexer_is(&p->lexer, ")")) {
        if (p->func->arg_count > 0)
            SBP_TRY(sbp_lexer_expect(&p->lexer, ","));
        SBP_TRY(parse_arg(p));
    }
    SBP_TRY(sbp_lexer_next(&p->lexer));
    SBP_TRY(sbp_lexer_expect(&p->lexer, "{"));
    for (;;) {
        bool result = false, end = false;
        SBP_TRY(sbp_lexer_accept(&p->lexer, "}", &end));
        if (end)
            return bind_cotangents(p);
        SBP_TRY(sbp_lexer_accept(&p->lexer, "result", &result));
        SBP_TRY(result ? parse_result(p) : parse_op(p));
    }
}

static sbp_status parse_const(parser *p) {
    const char *name;
    sbp_type type;
    SBP_TRY(sbp_lexer_name(&p->lexer, &name));
    SBP_TRY(sbp_lexer_type(&p->lexer, &type));
    SBP_TRY(sbp_lexer_expect(&p->lexer, "="));
    int64_t elems = sbp_type_row_elems(&type);
    if (elems > 1 << 24)
        return sbp_lexer_fail(&p->lexer, "a constant of %lld elements", (long long)elems);
    double *data = NULL;
    int32_t count = 0, capacity = 0;
    for (int64_t i = 0; i < elems; i++) {
        double number = 0;
        SBP_TRY(sbp_lexer_double(&p->lexer, &number));
        SBP_PUSH(p->arena, data, count, capacity, number);
    }
    int32_t before = p->module->const_count;
    if (elems == 0 || find_const(p->module, name) >= 0 ||
        sbp_module_add_const(p->module, name, &type, data) != before)
        return sbp_lexer_fail(&p->lexer, "constant '%.60s' is empty or a duplicate", name);
    return SBP_OK;
}

static sbp_status parse_param(parser *p) {
    static const char *const inits[] = {"normal", "zeros", "ones", "uniform"};
    sbp_param param = {0};
    int init = 0;
    SBP_TRY(sbp_lexer_name(&p->lexer, &param.name));
    SBP_TRY(sbp_lexer_type(&p->lexer, &param.type));
    SBP_TRY(sbp_lexer_expect(&p->lexer, "storage"));
    if (p->lexer.token == SBP_TOKEN_NAME && sbp_format_from_name(p->lexer.text, &param.format)) {
        param.storage = param.type.dtype;
        SBP_TRY(sbp_lexer_next(&p->lexer));
    } else {
        SBP_TRY(sbp_lexer_dtype(&p->lexer, &param.storage));
    }
    SBP_TRY(sbp_lexer_accept(&p->lexer, "trainable", &param.trainable));
    SBP_TRY(sbp_lexer_accept(&p->lexer, "decay", &param.decay));
    SBP_TRY(sbp_lexer_expect(&p->lexer, "init"));
    SBP_TRY(parse_word(p, inits, SBP_COUNT(inits), &init));
    param.init = (sbp_init)init;
    SBP_TRY(sbp_lexer_double(&p->lexer, &param.init_std));
    SBP_TRY(sbp_lexer_expect(&p->lexer, "pad"));
    SBP_TRY(parse_number(p, -1, &param.pad_row));
    bool is_number;
    SBP_TRY(sbp_lexer_accept(&p->lexer, "number", &is_number));
    if (is_number) {
        double *number = SBP_NEW(p->arena, double);
        SBP_TRY(sbp_lexer_double(&p->lexer, number));
        param.number = number;
    }
    if (sbp_module_find_param(p->module, param.name) >= 0)
        return sbp_lexer_fail(&p->lexer, "two parameters are called '%.60s'", param.name);
    sbp_module_add_param(p->module, &param);
    return SBP_OK;
}

static sbp_status parse_adapter(parser *p) {
    static const char *const layouts[] = {"out_in", "in_out"};
    int32_t params[3];
    sbp_adapter adapter = {0};
    for (int i = 0; i < SBP_COUNT(params); i++) {
        const char *name;
        SBP_TRY(sbp_lexer_name(&p->lexer, &name));
        params[i] = sbp_module_find_param(p->module, name);
        if (params[i] < 0)
            return sbp_lexer_fail(&p->lexer, "no parameter is called '%.60s'", name);
    }
    int layout = 0;
    SBP_TRY(parse_word(p, layouts, SBP_COUNT(layouts), &layout));
    adapter = (sbp_adapter){.weight = params[0], .a = params[1], .b = params[2], .in_out = layout == 1};
    SBP_TRY(sbp_lexer_double(&p->lexer, &adapter.scale));
    bool drops;
    SBP_TRY(sbp_lexer_accept(&p->lexer, "dropout", &drops));
    if (drops)
        SBP_TRY(sbp_lexer_double(&p->lexer, &adapter.dropout));
    SBP_PUSH(p->arena, p->module->adapters, p->module->adapter_count, p->module->adapter_capacity, adapter);
    return SBP_OK;
}

static sbp_status parse_numbers(parser *p, const char *what, int32_t **out, int32_t *count) {
    int32_t capacity = 0;
    *out = NULL;
    *count = 0;
    SBP_TRY(sbp_lexer_expect(&p->lexer, what));
    while (p->lexer.token == SBP_TOKEN_INT) {
        int32_t number = 0;
        SBP_TRY(parse_number(p, 0, &number));
        SBP_PUSH(p->arena, *out, *count, capacity, number);
    }
    return SBP_OK;
}

static sbp_status parse_call(parser *p) {
    const char *name;
    sbp_invocation call = {.func = -1};
    SBP_TRY(sbp_lexer_name(&p->lexer, &name));
    for (int32_t i = 0; i < p->module->func_count; i++)
        if (strcmp(p->module->funcs[i]->name, name) == 0)
            call.func = i;
    if (call.func < 0)
        return sbp_lexer_fail(&p->lexer, "no function is called '%.60s'", name);
    SBP_TRY(parse_numbers(p, "params", &call.params, &call.param_count));
    SBP_TRY(parse_numbers(p, "streams", &call.streams, &call.stream_count));
    SBP_TRY(parse_numbers(p, "outputs", &call.outputs, &call.output_count));
    SBP_PUSH(p->arena, p->module->calls, p->module->call_count, p->module->call_capacity, call);
    return SBP_OK;
}

static sbp_status parse_item(parser *p) {
    static const char *const items[] = {"row",  "scalar", "const", "param",
                                        "func", "values", "call",  "adapter"};
    int item = 0;
    SBP_TRY(parse_word(p, items, SBP_COUNT(items), &item));
    const char *name;
    sbp_dtype dtype;
    switch (item) {
    case 0:
        SBP_TRY(sbp_lexer_name(&p->lexer, &name));
        SBP_TRY(sbp_lexer_dtype(&p->lexer, &dtype));
        if (find_row(p->module, name) >= 0)
            return sbp_lexer_fail(&p->lexer, "two row inputs are called '%.60s'", name);
        sbp_module_add_row(p->module, name, dtype);
        return SBP_OK;
    case 1:
        SBP_TRY(sbp_lexer_name(&p->lexer, &name));
        if (find_scalar(p->module, name) >= 0)
            return sbp_lexer_fail(&p->lexer, "two scalars are called '%.60s'", name);
        sbp_module_add_scalar(p->module, name);
        return SBP_OK;
    case 2:
        return parse_const(p);
    case 3:
        return parse_param(p);
    case 4:
        return parse_func(p);
    case 5:
        return parse_number(p, 0, &p->module->model_value_count);
    case 7:
        return parse_adapter(p);
    default:
        return parse_call(p);
    }
}

sbp_status sbp_module_parse(sbp_arena *arena, sbp_diag *diag, const char *name, const char *text,
                            size_t length, sbp_module **out) {
    parser p = {.arena = arena};
    SBP_TRY(sbp_lexer_init(&p.lexer, arena, diag, name, text, length));
    SBP_TRY(sbp_lexer_expect(&p.lexer, "module"));
    const char *module_name;
    SBP_TRY(sbp_lexer_name(&p.lexer, &module_name));
    p.module = sbp_module_create(arena, module_name);
    SBP_TRY(sbp_lexer_expect(&p.lexer, "{"));
    while (!sbp_lexer_is(&p.lexer, "}"))
        SBP_TRY(parse_item(&p));
    SBP_TRY(sbp_lexer_next(&p.lexer));
    if (p.lexer.token != SBP_TOKEN_END)
        return sbp_lexer_fail(&p.lexer, "the module ends before the text does");
    *out = p.module;
    return SBP_OK;
}
