/* graph.h: the graph IR: SSA tensor ops in functions, and how to build them.
 *
 * A module has named row inputs (one number per packed row), named scalars of the step, constants,
 * parameters and functions. A function has arguments, straight-line ops and results; there is no control
 * flow. The row axis (T rows of the batch; C rows of a chunk after `split`; S groups) is axis 0 of a value
 * or absent.
 *
 * Broadcasting of the row-wise ops: operands with a row axis have equal rank and row axis, their other
 * dimensions are equal or 1; operands without row axis have lower rank and are aligned at the last axis.
 *
 * Ownership: everything lives in the module's arena. Values, ops, functions and parameters are numbers;
 * pointers into a function's arrays are invalid after the next op was added.
 */
#ifndef SBP_IR_GRAPH_GRAPH_H
#define SBP_IR_GRAPH_GRAPH_H

#include "ir/graph/seq.h"
#include "ir/rowkernel/format.h"

typedef int32_t sbp_value; /* number of a value in its function */
#define SBP_NO_VALUE (-1)

typedef enum sbp_opcode {
#define ROWOP(name, arity, cost, vjp, value) SBP_OP_##name,
#include "ir/rowkernel/rowops.def"
#undef ROWOP
#define OP(name, operands, results, class) SBP_OP_##name,
#define ATTR(op, name, kind, default)
#include "ir/graph/ops.def"
#undef OP
#undef ATTR
    SBP_OP_COUNT
} sbp_opcode;

typedef enum sbp_op_class {
    SBP_CLASS_ROWWISE,
    SBP_CLASS_STRUCTURAL,
    SBP_CLASS_RECUR,
    SBP_CLASS_BACKWARD,
    SBP_CLASS_CHOICE,
    SBP_CLASS_COMPOSITE,
    SBP_CLASS_LATE
} sbp_op_class;

enum { SBP_MAX_OPERANDS = 12, SBP_MAX_RESULTS = 6, SBP_MAX_ATTRS = 6 };

typedef enum sbp_attr_kind {
    SBP_ATTR_I,
    SBP_ATTR_F,
    SBP_ATTR_B,
    SBP_ATTR_L,
    SBP_ATTR_S,
    SBP_ATTR_D
} sbp_attr_kind;

typedef struct sbp_attr {
    const char *name;
    sbp_attr_kind kind;
    int64_t i; /* I, B, D; L: number of entries */
    double f;
    const int64_t *list;
    const char *symbol;
} sbp_attr;

static inline sbp_attr sbp_attr_int(const char *name, int64_t i) {
    return (sbp_attr){.name = name, .kind = SBP_ATTR_I, .i = i};
}
static inline sbp_attr sbp_attr_bool(const char *name, bool i) {
    return (sbp_attr){.name = name, .kind = SBP_ATTR_B, .i = i};
}
static inline sbp_attr sbp_attr_double(const char *name, double f) {
    return (sbp_attr){.name = name, .kind = SBP_ATTR_F, .f = f};
}
static inline sbp_attr sbp_attr_symbol(const char *name, const char *symbol) {
    return (sbp_attr){.name = name, .kind = SBP_ATTR_S, .symbol = symbol};
}
static inline sbp_attr sbp_attr_dtype(const char *name, sbp_dtype dtype) {
    return (sbp_attr){.name = name, .kind = SBP_ATTR_D, .i = (int64_t)dtype};
}
static inline sbp_attr sbp_attr_list(const char *name, const int64_t *list, int64_t count) {
    return (sbp_attr){.name = name, .kind = SBP_ATTR_L, .i = count, .list = list};
}

typedef struct sbp_op {
    sbp_opcode code;
    int32_t operand_count, result_count;
    sbp_value *operands; /* SBP_NO_VALUE for an absent optional one */
    sbp_value *results;
    sbp_attr *attrs;  /* all of the schema, in its order */
    const char *node; /* name of the source node, for messages; may be NULL */
} sbp_op;

typedef enum sbp_value_role {
    SBP_VALUE_OP,        /* result of an op */
    SBP_VALUE_STREAM,    /* argument handed over by the caller */
    SBP_VALUE_PARAM,     /* argument: a parameter */
    SBP_VALUE_ROW,       /* argument: a row input of the module, by number */
    SBP_VALUE_SCALAR,    /* argument: a scalar of the step, by number, f64[] */
    SBP_VALUE_CONST,     /* argument: a constant of the module, by number */
    SBP_VALUE_CARRY,     /* argument: rows of all chunks so far, [T,..]; or, without rows, a state */
    SBP_VALUE_COTANGENT, /* argument: cotangent of a result, or of a carry */
    SBP_VALUE_ROLE_COUNT
} sbp_value_role;

typedef struct sbp_value_info {
    sbp_type type;
    const char *name; /* unique in the function */
    sbp_value_role role;
    int32_t op;      /* defining op, -1 for arguments */
    int32_t binding; /* row, scalar, const: number in the module. param: number in the module, or -1 for a
                        formal. cotangent: the value it is the cotangent of */
    bool trainable;  /* params */
} sbp_value_info;

typedef enum sbp_result_role {
    SBP_RESULT_VALUE,    /* a plain result */
    SBP_RESULT_CARRY,    /* the final state of carry argument `target` */
    SBP_RESULT_GRADIENT, /* cotangent of argument `target`; several may add up */
    SBP_RESULT_SAVED,    /* kept for the backward; target: number of the saved value */
    SBP_RESULT_STATISTIC /* a vector, the sum over rows of something, by name: those of all calls add up */
} sbp_result_role;

typedef struct sbp_result {
    sbp_value value;
    sbp_result_role role;
    sbp_value target; /* argument the role speaks of, or -1 */
    const char *name;
} sbp_result;

typedef struct sbp_func {
    const char *name;
    sbp_arena *arena;
    sbp_value_info *values;
    int32_t value_count, value_capacity;
    sbp_op *ops;
    int32_t op_count, op_capacity;
    sbp_value *args;
    int32_t arg_count, arg_capacity;
    sbp_result *results;
    int32_t result_count, result_capacity;
    sbp_map names;
    sbp_map numbers; /* per name: the last number that was put behind it to make another */
} sbp_func;

struct sbp_recipe;

typedef struct sbp_param {
    const char *name;  /* as the source calls it */
    sbp_type type;     /* dtype: the compute type */
    sbp_dtype storage; /* as it is kept; equal to type.dtype unless storage differs, or there is a format */
    sbp_format format; /* of one that is frozen: blocks in which it is kept */
    sbp_dtype source;  /* as the source keeps it, which a master in two halves gives back */
    bool trainable;
    bool decay; /* weight decay applies */
    sbp_init init;
    double init_std; /* NORMAL: deviation; UNIFORM: bound on both sides of 0 */
    sbp_owner owner;
    const char *merged; /* of an adapter: what the model calls the tensor whose place it takes; or NULL */
    int32_t pad_row;    /* row that starts as zeros (padding token), -1: none */
    bool fresh;         /* files may lack it: then it begins by its rule */
    /* How it is read and written (frontends/formats/weights/recipe.h); the name, shape and layout under which
     * weights and gradients leave the program. NULL: the tensor `name` as it is. */
    const struct sbp_recipe *recipe;
    /* How the file that the model came from keeps it, when that is another way (GGUF); NULL: the same way. */
    const struct sbp_recipe *stored;
    /* The name that transformers' class gives to what this weight is a part of; adapters take their names and
     * shapes from it. Experts: the tensor of all experts, of each of whose matrices this has `length` rows
     * from fused_start on, of fused_total; or all of them. A router, or a map that is called otherwise there:
     * its own name. NULL: adapters go by `name`. */
    const char *fused;
    int64_t fused_start, fused_total;
    bool
        linear_router; /* a router that the class has as a linear layer: adapters find it as they do others */
    const char *const *aliases; /* other names that files give the tensor */
    int32_t alias_count;
    /* One number of the program's own, [1], as it is here: functions that calls share are told it as they are
     * told weights. In no file and no tensor table. NULL: a parameter. */
    const double *number;
} sbp_param;

/* What pass `lora` adds to every matmul with a weight: y = W x + B (s A x). Experts have an A
 * and a B each. */
typedef struct sbp_adapter {
    int32_t weight, a, b; /* parameters: W as its products have it; A [r, in], B [out, r] */
    bool in_out;          /* W is [in, out], not [out, in] */
    double scale;         /* s, times the scalar `adapter` of the step: 0 turns all of them off */
    double dropout;       /* the share of x that A does not see, times the scalar `dropout`; below 1 */
} sbp_adapter;

typedef struct sbp_row {
    const char *name;
    sbp_dtype dtype;
} sbp_row;

typedef struct sbp_const {
    const char *name;
    sbp_type type; /* static dimensions */
    const double *data;
} sbp_const;

/* One call of the model, made by the segment pass: function, and what its arguments are bound to. */
typedef struct sbp_invocation {
    int32_t func;
    int32_t *params; /* parameter number per PARAM argument, in argument order */
    int32_t param_count;
    int32_t *streams; /* model value per STREAM argument: the stream, then side values */
    int32_t stream_count;
    int32_t *outputs; /* model value per plain result, in the same order */
    int32_t output_count;
} sbp_invocation;

typedef struct sbp_module {
    sbp_arena *arena;
    const char *name;
    sbp_row *rows;
    int32_t row_count, row_capacity;
    const char **scalars;
    int32_t scalar_count, scalar_capacity;
    sbp_const *consts;
    int32_t const_count, const_capacity;
    sbp_param *params;
    int32_t param_count, param_capacity;
    sbp_adapter *adapters; /* none is left after `lora` */
    int32_t adapter_count, adapter_capacity;
    sbp_func **funcs;
    int32_t func_count, func_capacity;
    sbp_invocation *calls; /* empty before `segment` */
    int32_t call_count, call_capacity;
    int32_t model_value_count; /* values between calls are 0 .. count-1 */
    sbp_map param_names;
} sbp_module;

/* ---- op table ------------------------------------------------------------------------------------- */

typedef struct sbp_operand_info {
    const char *name; /* `length` characters, not terminated */
    int32_t length;
    bool optional;
} sbp_operand_info;

typedef struct sbp_attr_schema {
    const char *name;
    sbp_attr_kind kind;
    const char *fallback; /* text of the default; NULL: must be given */
} sbp_attr_schema;

const char *sbp_opcode_name(sbp_opcode code);
/* SBP_OP_COUNT when there is none of that name. */
sbp_opcode sbp_opcode_from_name(const char *name);
sbp_op_class sbp_opcode_class(sbp_opcode code);
/* The scalar function of a row-wise op of rowops.def; SBP_ROWOP_COUNT for others. */
sbp_rowop sbp_opcode_rowop(sbp_opcode code);
sbp_opcode sbp_opcode_of_rowop(sbp_rowop op);
/* Operand and attribute schema; at most SBP_MAX_OPERANDS and SBP_MAX_ATTRS entries. Return the counts. */
int32_t sbp_opcode_operands(sbp_opcode code, sbp_operand_info out[SBP_MAX_OPERANDS]);
/* The operand, or the result, of this name; -1: the op has none. */
int32_t sbp_opcode_operand(sbp_opcode code, const char *name);
int32_t sbp_opcode_result(sbp_opcode code, const char *name);
int32_t sbp_opcode_attrs(sbp_opcode code, sbp_attr_schema out[SBP_MAX_ATTRS]);
int32_t sbp_opcode_results(sbp_opcode code);
/* The operand that a result is a later state of: of result `x_out` operand `x`; -1: none. Rows of a carry are
 * added in its place; a state and its later one are two values. */
int32_t sbp_opcode_continues(sbp_opcode code, int32_t result);
/* The value that `result` of an op is a later state of; SBP_NO_VALUE: none. */
sbp_value sbp_op_continues(const sbp_op *op, int32_t result);
/* Whether queries read keys and values of other rows: attention, with a sink or without. */
bool sbp_opcode_attends(sbp_opcode code);
/* The number of the operand that is a state, of a RECUR op or what makes that state; -1: others. */
int32_t sbp_opcode_state(sbp_opcode code);
/* What makes the state of a RECUR op and nothing else, <op>_state; SBP_OP_COUNT: nothing. operands: per
 * operand of it, that of the op; room for SBP_MAX_OPERANDS. */
sbp_opcode sbp_opcode_state_form(sbp_opcode code, int32_t *operands);

/* Attribute of an op by name; the name must be in its schema. */
const sbp_attr *sbp_op_attr(const sbp_op *op, const char *name);
static inline int64_t sbp_op_int(const sbp_op *op, const char *name) {
    return sbp_op_attr(op, name)->i;
}
static inline double sbp_op_double(const sbp_op *op, const char *name) {
    return sbp_op_attr(op, name)->f;
}
bool sbp_op_symbol_is(const sbp_op *op, const char *name, const char *symbol);

/* ---- modules and functions ------------------------------------------------------------------------ */

sbp_module *sbp_module_create(sbp_arena *arena, const char *name);
/* A module that passes may change without changing the original: they replace functions and add to lists,
 * never write into either. */
sbp_module *sbp_module_copy(sbp_arena *arena, const sbp_module *from);
int32_t sbp_module_add_row(sbp_module *module, const char *name, sbp_dtype dtype); /* or the existing one */
int32_t sbp_module_add_scalar(sbp_module *module, const char *name);               /* or the existing one */
int32_t sbp_module_add_const(sbp_module *module, const char *name, const sbp_type *type, const double *data);
int32_t sbp_module_add_param(sbp_module *module, const sbp_param *param);
int32_t sbp_module_find_param(const sbp_module *module, const char *name); /* -1 when absent */
sbp_func *sbp_module_add_func(sbp_module *module, const char *name);
sbp_func *sbp_module_find_func(const sbp_module *module, const char *name); /* NULL when absent */

sbp_func *sbp_func_create(sbp_arena *arena, const char *name);
sbp_value sbp_func_add_arg(sbp_func *func, sbp_value_role role, const char *name, const sbp_type *type,
                           int32_t binding);
void sbp_func_add_result(sbp_func *func, sbp_value value, sbp_result_role role, sbp_value target,
                         const char *name);
/* Appends an op whose result types are known; results become new values. Returns the op's number. */
int32_t sbp_func_add_op(sbp_func *func, const sbp_op *op, const sbp_type *result_types, const char *name);
/* Copies ops of `from` into `to`. map: value of `to` per value of `from`, SBP_NO_VALUE where not yet defined;
 * filled in for the results of every copied op. keep: per op of `from`, or NULL for all. */
void sbp_func_copy_ops(const sbp_func *from, sbp_func *to, sbp_value *map, const bool *keep);
/* `name` when no value of the function has it, else name.2, name.3 ... */
const char *sbp_func_free_name(sbp_func *func, const char *name);

/* Removes ops that no result needs. */
void sbp_func_prune(sbp_func *func);

/* ---- builder -------------------------------------------------------------------------------------- */

/* Appends ops to a function. The first error sticks: later calls return SBP_NO_VALUE at once, and
 * `status` tells. So code that builds reads straight. */
typedef struct sbp_builder {
    sbp_module *module;
    sbp_func *func;
    sbp_diag *diag;
    sbp_status status;
    const char *node; /* put on every op that is added; may be NULL */
} sbp_builder;

sbp_builder sbp_builder_on(sbp_module *module, sbp_func *func, sbp_diag *diag);
/* The general form. attrs: those that differ from the defaults. name: of the (first) result, made unique;
 * NULL: numbered. out: all results, or NULL. Returns the first result. */
sbp_value sbp_build(sbp_builder *builder, sbp_opcode code, const char *name, const sbp_value *operands,
                    int32_t operand_count, const sbp_attr *attrs, int32_t attr_count, sbp_value *out);
sbp_value sbp_build1(sbp_builder *builder, sbp_opcode code, sbp_value a);
sbp_value sbp_build2(sbp_builder *builder, sbp_opcode code, sbp_value a, sbp_value b);
sbp_value sbp_build3(sbp_builder *builder, sbp_opcode code, sbp_value a, sbp_value b, sbp_value c);
/* A scalar of the given type, to be broadcast. */
sbp_value sbp_build_const(sbp_builder *builder, sbp_dtype dtype, double value);
/* x in another type; x itself when it has that type. */
sbp_value sbp_build_cast(sbp_builder *builder, sbp_value x, sbp_dtype to);
/* The same, as one value for all readers: their cotangents add up before they are rounded. */
sbp_value sbp_build_rounded(sbp_builder *builder, sbp_value x, sbp_dtype to);
/* dims: the constant dimensions of the result. */
sbp_value sbp_build_reshape(sbp_builder *builder, sbp_value x, const int64_t *dims, int32_t count);
/* Broadcast to the shape of `like`. */
sbp_value sbp_build_broadcast(sbp_builder *builder, sbp_value x, const sbp_type *like);
/* f32 random numbers of the shape of `like`, which has rows (ops/random.c). */
sbp_value sbp_build_random(sbp_builder *builder, const sbp_type *like, sbp_value stream, sbp_value key);
/* The same of 2 or 4 operands: stream, key, and what stands for row and head. */
sbp_value sbp_build_random_of(sbp_builder *builder, const sbp_type *like, const sbp_value *operands,
                              int32_t count);
sbp_value sbp_build_slice(sbp_builder *builder, sbp_value x, int64_t start, int64_t length);
/* Arguments; the existing one when the function has it already. */
sbp_value sbp_build_row(sbp_builder *builder, const char *row, sbp_dtype dtype, sbp_symbol rows);
sbp_value sbp_build_param(sbp_builder *builder, int32_t param);
sbp_value sbp_build_scalar(sbp_builder *builder, const char *name);
sbp_value sbp_build_vector(sbp_builder *builder, const char *name, sbp_dtype dtype, const double *data,
                           int64_t n);
const sbp_type *sbp_build_type(const sbp_builder *builder, sbp_value value);
/* Gives a value a name that --save and messages can use, made unique. */
void sbp_build_name(sbp_builder *builder, sbp_value value, const char *name);

/* ---- text, verification --------------------------------------------------------------------------- */

void sbp_module_print(sbp_text *out, const sbp_module *module);
/* canonical: values numbered in order and parameters by position, no names: equal text means that two
 * functions do the same. */
void sbp_func_print(sbp_text *out, const sbp_module *module, const sbp_func *func, bool canonical);
sbp_status sbp_module_parse(sbp_arena *arena, sbp_diag *diag, const char *name, const char *text,
                            size_t length, sbp_module **out) SBP_CHECKED;

/* Structure (constraints module_c1 ...) and the shape rule of every op. */
sbp_status sbp_module_verify(const sbp_module *module, sbp_diag *diag) SBP_CHECKED;
sbp_status sbp_func_verify(const sbp_module *module, const sbp_func *func, sbp_diag *diag) SBP_CHECKED;

#endif
