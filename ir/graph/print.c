/* print.c: the text form of the graph IR. Deterministic; parse.c reads it back exactly. Recipes of parameters
 * belong to the tensor table and are not part of it. */
#include "ir/graph/op.h"

#include <string.h>

typedef struct printer {
    sbp_text *out;
    const sbp_module *module;
    const sbp_func *func;
    bool canonical;
    int32_t *number; /* canonical: of each value, in order of definition */
} printer;

static bool is_plain(const char *name) {
    if (!((*name >= 'a' && *name <= 'z') || (*name >= 'A' && *name <= 'Z') || *name == '_'))
        return false;
    return name[strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.$")] == 0;
}

static void print_name(sbp_text *out, const char *name) {
    if (is_plain(name))
        sbp_text_add(out, "%s", name);
    else
        sbp_text_add_quoted(out, name);
}

static void print_value(const printer *p, sbp_value value) {
    if (value == SBP_NO_VALUE) {
        sbp_text_add(p->out, "-");
        return;
    }
    sbp_text_add(p->out, "%%");
    if (p->canonical)
        sbp_text_add(p->out, "v%d", p->number[value]);
    else
        print_name(p->out, p->func->values[value].name);
}

static const char *const roles[SBP_VALUE_ROLE_COUNT] = {"op",     "stream", "param", "row",
                                                        "scalar", "const",  "carry", "cotangent"};

static void print_arg(const printer *p, sbp_value arg) {
    const sbp_value_info *info = &p->func->values[arg];
    print_value(p, arg);
    sbp_text_add(p->out, ": %s ", roles[info->role]);
    if (info->role == SBP_VALUE_PARAM) {
        if (info->binding >= 0 && !p->canonical) {
            const char *name = p->module->params[info->binding].name;
            sbp_dtype dtype;
            if (strcmp(name, "trainable") == 0 || sbp_dtype_from_name(name, strlen(name), &dtype))
                sbp_text_add_quoted(p->out, name); /* would read as what may stand there instead */
            else
                print_name(p->out, name);
            sbp_text_add(p->out, " ");
        }
        if (info->trainable)
            sbp_text_add(p->out, "trainable ");
    } else if (info->role == SBP_VALUE_ROW || info->role == SBP_VALUE_SCALAR ||
               info->role == SBP_VALUE_CONST) {
        const char *name = info->role == SBP_VALUE_ROW      ? p->module->rows[info->binding].name
                           : info->role == SBP_VALUE_SCALAR ? p->module->scalars[info->binding]
                                                            : p->module->consts[info->binding].name;
        print_name(p->out, name);
        sbp_text_add(p->out, " ");
    } else if (info->role == SBP_VALUE_COTANGENT) {
        print_value(p, info->binding);
        sbp_text_add(p->out, " ");
    }
    sbp_type_print(p->out, &info->type);
}

static void print_attr(const printer *p, const sbp_attr *attr) {
    sbp_text_add(p->out, "%s ", attr->name);
    switch (attr->kind) {
    case SBP_ATTR_I:
    case SBP_ATTR_B:
        sbp_text_add(p->out, "%lld", (long long)attr->i);
        break;
    case SBP_ATTR_F:
        sbp_text_add_double(p->out, attr->f);
        break;
    case SBP_ATTR_L:
        sbp_text_add(p->out, "[");
        for (int64_t i = 0; i < attr->i; i++)
            sbp_text_add(p->out, "%s%lld", i ? "," : "", (long long)attr->list[i]);
        sbp_text_add(p->out, "]");
        break;
    case SBP_ATTR_S:
        print_name(p->out, attr->symbol);
        break;
    case SBP_ATTR_D:
        sbp_text_add(p->out, "%s", sbp_dtype_name((sbp_dtype)attr->i));
        break;
    }
}

static void print_op(const printer *p, const sbp_op *op) {
    sbp_attr_schema schema[SBP_MAX_ATTRS];
    int32_t attrs = sbp_opcode_attrs(op->code, schema);
    sbp_text_add(p->out, "    ");
    for (int32_t r = 0; r < op->result_count; r++) {
        sbp_text_add(p->out, r ? ", " : "");
        print_value(p, op->results[r]);
        sbp_text_add(p->out, ": ");
        sbp_type_print(p->out, &p->func->values[op->results[r]].type);
    }
    sbp_text_add(p->out, " = %s", sbp_opcode_name(op->code));
    for (int32_t k = 0; k < op->operand_count; k++) {
        sbp_text_add(p->out, k ? ", " : " ");
        print_value(p, op->operands[k]);
    }
    for (int32_t i = 0; i < attrs; i++) {
        sbp_text_add(p->out, i ? ", " : " {");
        print_attr(p, &op->attrs[i]);
    }
    sbp_text_add(p->out, attrs > 0 ? "}" : "");
    if (op->node && !p->canonical) {
        sbp_text_add(p->out, " @ ");
        sbp_text_add_quoted(p->out, op->node);
    }
    sbp_text_add(p->out, "\n");
}

static void print_result(const printer *p, const sbp_result *result) {
    static const char *const names[] = {"value", "carry", "gradient", "saved", "statistic"};
    sbp_text_add(p->out, "    result ");
    print_value(p, result->value);
    sbp_text_add(p->out, " %s", names[result->role]);
    if (result->role == SBP_RESULT_CARRY || result->role == SBP_RESULT_GRADIENT) {
        sbp_text_add(p->out, " ");
        print_value(p, result->target);
    } else if (result->role == SBP_RESULT_SAVED) {
        sbp_text_add(p->out, " %d", result->target);
    }
    if (result->name) {
        sbp_text_add(p->out, " ");
        sbp_text_add_quoted(p->out, result->name);
    }
    sbp_text_add(p->out, "\n");
}

void sbp_func_print(sbp_text *out, const sbp_module *module, const sbp_func *func, bool canonical) {
    printer p = {.out = out, .module = module, .func = func, .canonical = canonical};
    if (canonical) {
        int32_t next = 0;
        p.number = SBP_NEW_ARRAY(out->arena, int32_t, func->value_count + 1);
        for (int32_t i = 0; i < func->arg_count; i++)
            p.number[func->args[i]] = next++;
        for (int32_t i = 0; i < func->op_count; i++)
            for (int32_t r = 0; r < func->ops[i].result_count; r++)
                p.number[func->ops[i].results[r]] = next++;
        sbp_text_add(out, "  func(");
    } else {
        sbp_text_add(out, "  func ");
        print_name(out, func->name);
        sbp_text_add(out, "(");
    }
    for (int32_t i = 0; i < func->arg_count; i++) {
        sbp_text_add(out, i ? ",\n       " : "");
        print_arg(&p, func->args[i]);
    }
    sbp_text_add(out, ") {\n");
    for (int32_t i = 0; i < func->op_count; i++)
        print_op(&p, &func->ops[i]);
    for (int32_t i = 0; i < func->result_count; i++)
        print_result(&p, &func->results[i]);
    sbp_text_add(out, "  }\n");
}

static void print_param(sbp_text *out, const sbp_param *param) {
    static const char *const inits[] = {"normal", "zeros", "ones", "uniform"};
    sbp_text_add(out, "  param ");
    print_name(out, param->name);
    sbp_text_add(out, " ");
    sbp_type_print(out, &param->type);
    sbp_text_add(out, " storage %s%s%s init %s ",
                 param->format ? sbp_format_of(param->format)->name : sbp_dtype_name(param->storage),
                 param->trainable ? " trainable" : "", param->decay ? " decay" : "", inits[param->init]);
    sbp_text_add_double(out, param->init_std);
    sbp_text_add(out, " pad %d", param->pad_row);
    if (param->number) {
        sbp_text_add(out, " number ");
        sbp_text_add_double(out, *param->number);
    }
    sbp_text_add(out, "\n");
}

static void print_adapter(sbp_text *out, const sbp_module *module, const sbp_adapter *adapter) {
    const int32_t params[] = {adapter->weight, adapter->a, adapter->b};
    sbp_text_add(out, "  adapter");
    for (int i = 0; i < SBP_COUNT(params); i++) {
        sbp_text_add(out, " ");
        print_name(out, module->params[params[i]].name);
    }
    sbp_text_add(out, " %s ", adapter->in_out ? "in_out" : "out_in");
    sbp_text_add_double(out, adapter->scale);
    if (adapter->dropout > 0) {
        sbp_text_add(out, " dropout ");
        sbp_text_add_double(out, adapter->dropout);
    }
    sbp_text_add(out, "\n");
}

static void print_numbers(sbp_text *out, const char *what, const int32_t *numbers, int32_t count) {
    sbp_text_add(out, " %s", what);
    for (int32_t i = 0; i < count; i++)
        sbp_text_add(out, " %d", numbers[i]);
}

void sbp_module_print(sbp_text *out, const sbp_module *module) {
    sbp_text_add(out, "module ");
    sbp_text_add_quoted(out, module->name);
    sbp_text_add(out, " {\n");
    for (int32_t i = 0; i < module->row_count; i++) {
        sbp_text_add(out, "  row ");
        print_name(out, module->rows[i].name);
        sbp_text_add(out, " %s\n", sbp_dtype_name(module->rows[i].dtype));
    }
    for (int32_t i = 0; i < module->scalar_count; i++) {
        sbp_text_add(out, "  scalar ");
        print_name(out, module->scalars[i]);
        sbp_text_add(out, "\n");
    }
    for (int32_t i = 0; i < module->const_count; i++) {
        sbp_text_add(out, "  const ");
        print_name(out, module->consts[i].name);
        sbp_text_add(out, " ");
        sbp_type_print(out, &module->consts[i].type);
        sbp_text_add(out, " =");
        for (int64_t j = 0; j < sbp_type_row_elems(&module->consts[i].type); j++) {
            sbp_text_add(out, " ");
            sbp_text_add_double(out, module->consts[i].data[j]);
        }
        sbp_text_add(out, "\n");
    }
    for (int32_t i = 0; i < module->param_count; i++)
        print_param(out, &module->params[i]);
    for (int32_t i = 0; i < module->adapter_count; i++)
        print_adapter(out, module, &module->adapters[i]);
    for (int32_t i = 0; i < module->func_count; i++)
        sbp_func_print(out, module, module->funcs[i], false);
    if (module->call_count > 0)
        sbp_text_add(out, "  values %d\n", module->model_value_count);
    for (int32_t i = 0; i < module->call_count; i++) {
        const sbp_invocation *call = &module->calls[i];
        sbp_text_add(out, "  call ");
        print_name(out, module->funcs[call->func]->name);
        print_numbers(out, "params", call->params, call->param_count);
        print_numbers(out, "streams", call->streams, call->stream_count);
        print_numbers(out, "outputs", call->outputs, call->output_count);
        sbp_text_add(out, "\n");
    }
    sbp_text_add(out, "}\n");
}
