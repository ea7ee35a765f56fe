/* onnx.h: ONNX models in protobuf's JSON mapping, opset 18 to 25; private to frontends/.
 *
 *   onnx_json.c    the JSON of ModelProto as structures
 *   onnx_node.c    errors, operands, attributes and results of a node
 *   onnx_load.c    the way from a file to a module
 *   onnx_import.c  inputs, parameters, what is trained, nodes in order, the result `logits`
 *   onnx_shape.c   ONNX shapes against those of the graph IR; onnx_operands.c: operands as values of that
 *   onnx_fold.c    nodes that only shapes, positions and constants reach;
 *                  onnx_fold_nodes.c: those that rearrange; onnx_numbers.c: their expressions;
 *                  onnx_tables.c: constant tensors as such
 *   onnx_positions.c  such numbers among activations
 *   onnx_scores.c  attention spelled out as matmuls, masks and softmax; onnx_mask.c: what a mask hides
 *   onnx_experts.c mixtures of experts: choices, and products with the matrices that were chosen
 *   onnx_conv.c    convolutions over tokens; onnx_states.c: layers with states, as operators of our own
 *   onnx_ops.c     one function per operator (onnx_ops.def)
 *   onnx_parts.c   parts of values; onnx_rowwise.c: sums inside a row, activations, comparisons
 *   onnx_layers.c  those with parameters, and attention
 *
 * The graph describes one document: axis 0 of an activation is a batch of size 1, some axis is the tokens. In
 * the graph IR rows come first and there is no batch: an activation of ONNX shape [1, a, T, b] is [T, a, b].
 * Exporters spell attention out in products, masks and softmax over [T,T]; the graph IR has no such values,
 * so they are recognised here: a mask is worked out as an expression in positions, and must be causal or
 * windowed.
 */
#ifndef SBP_FRONTENDS_ONNX_ONNX_H
#define SBP_FRONTENDS_ONNX_ONNX_H

#include "frontends/formats/files/protojson.h"
#include "frontends/formats/weights/onnx_tensor.h"
#include "frontends/onnx/onnx_numbers.h"
#include "frontends/source/loading.h"

/* ---- the model as it is written (onnx_json.c) -------------------------------------------------------- */

#define SBP_ONNX_ROWS (-1)  /* dimension: the tokens */
#define SBP_ONNX_OTHER (-2) /* dimension: something else that depends on their number */
/* dimension, of axis 0 alone: the k slots of every token, k above 1, one token after the other; of a VALUE
 * that the graph IR has as [T, k, ..] */
#define SBP_ONNX_SLOTS(k) (-16 - (int64_t)(k))
enum { SBP_ONNX_MOST_SLOTS = 1 << 16 };
/* That k; 0: another dimension. */
static inline int64_t sbp_onnx_slots(int64_t dim) {
    return dim <= SBP_ONNX_SLOTS(2) && dim >= SBP_ONNX_SLOTS(SBP_ONNX_MOST_SLOTS) ? -16 - dim : 0;
}

typedef enum sbp_onnx_attr_kind {
    SBP_ONNX_ATTR_FLOAT,
    SBP_ONNX_ATTR_INT,
    SBP_ONNX_ATTR_STRING,
    SBP_ONNX_ATTR_TENSOR,
    SBP_ONNX_ATTR_FLOATS,
    SBP_ONNX_ATTR_INTS,
    SBP_ONNX_ATTR_OTHER /* graphs, sparse tensors, lists of strings: no operator that is built has one */
} sbp_onnx_attr_kind;

typedef struct sbp_onnx_attribute {
    const char *name;
    sbp_onnx_attr_kind kind;
    double f;
    int64_t i;
    const char *s;
    sbp_onnx_tensor t;
    const double *floats;
    const int64_t *ints;
    int64_t count; /* of floats, ints */
    const sbp_json *node;
} sbp_onnx_attribute;

typedef struct sbp_onnx_node {
    const char *name; /* of the node, of its first output when it has none */
    const char *op, *domain;
    const char **inputs, **outputs; /* "" where an optional one is absent */
    int32_t input_count, output_count;
    sbp_onnx_attribute *attributes;
    int32_t attribute_count;
    bool raised; /* stands for several of the file (onnx_raise.c) */
    const sbp_json *json;
} sbp_onnx_node;

/* A graph input or output, or what is known about a value. */
typedef struct sbp_onnx_info {
    const char *name;
    sbp_onnx_type type;
    bool has_shape;
    int32_t rank;
    int64_t dim[SBP_ONNX_MAX_RANK];       /* -1: symbolic or not known */
    const char *param[SBP_ONNX_MAX_RANK]; /* name of a symbolic dimension; NULL */
    bool buffer;                          /* marked as no parameter by the exporter */
    const sbp_json *json;
} sbp_onnx_info;

typedef struct sbp_onnx_model {
    const char *path;
    int64_t opset;
    sbp_onnx_node *nodes;
    int32_t node_count;
    sbp_onnx_tensor *initializers;
    int32_t initializer_count;
    sbp_onnx_info *inputs, *outputs, *values;
    int32_t input_count, output_count, value_count;
    const sbp_json *root;
    /* What examples/export_model_json.py has said in metadataProps; NULL: nothing. tied: names of
     * initializers, separated by blanks; equal ones among them are one parameter, others are not. */
    const char *tied;
    const char *base; /* the model that was exported, by its name on the Hub or its directory */
} sbp_onnx_model;

/* Checks the form, not the meaning. Below a guard. */
sbp_status sbp_onnx_parse(sbp_arena *arena, sbp_diag *diag, const char *path, const sbp_json *root,
                          sbp_onnx_model *out) SBP_CHECKED;

/* ---- import ------------------------------------------------------------------------------------------ */

typedef enum sbp_onnx_kind {
    SBP_ONNX_CONSTANT,  /* values known now */
    SBP_ONNX_PARAMETER, /* an initializer or float input whose values come at run time */
    SBP_ONNX_VALUE,     /* computed by the graph IR */
    SBP_ONNX_NUMBERS,   /* follows from shapes and positions (onnx_fold.c) */
    SBP_ONNX_SCORES,    /* of attention that is spelled out, or their softmax (onnx_scores.c) */
    SBP_ONNX_NAN,       /* where a softmax is NaN, which it never is here */
    SBP_ONNX_PICKED,    /* parts of a parameter, of axis 0, that tokens have chosen (onnx_experts.c) */
    SBP_ONNX_LONGER     /* a VALUE with further rows behind those of the tokens (onnx_conv.c) */
} sbp_onnx_kind;

/* Products of queries and keys on their way to an attention op. */
typedef struct sbp_onnx_scores {
    sbp_value q, k; /* [T, heads, d], [T, kv_heads, d] */
    int64_t heads, kv_heads, d;
    double scale, softcap;
    bool tanh;            /* taken, and not yet multiplied by the cap */
    bool masked, softmax; /* done */
    sbp_value sink;       /* [heads], a score of no token; SBP_NO_VALUE */
    int64_t window;       /* of the mask, 0: none */
} sbp_onnx_scores;

typedef struct sbp_onnx_value {
    const char *name;
    sbp_onnx_kind kind;
    sbp_onnx_type type;
    int32_t rank;
    int64_t dim[SBP_ONNX_MAX_RANK]; /* as in ONNX; SBP_ONNX_ROWS for the tokens */
    const double *data;             /* CONSTANT, row-major */
    int32_t param;                  /* PARAMETER, PICKED: number in the module */
    bool transposed;                /* PARAMETER: read with its two axes exchanged */
    sbp_value value;                /* VALUE; PICKED: the choice, i32 [T, k] */
    /* VALUE: axis `repeat_axis` stands for every head `repeat` times in a row (keys and values of a group);
     * the IR value has it once. 0: none. */
    int64_t repeat;
    int32_t repeat_axis;
    bool shared; /* VALUE by slots: the same in those of a token; the IR value has no axis of slots */
    sbp_number_tensor numbers; /* NUMBERS */
    const sbp_onnx_scores *scores;
    const sbp_onnx_tensor *tensor; /* PARAMETER: its initializer, or NULL */
    bool frozen;                   /* PARAMETER that is not trained: in the module from its first use on */
} sbp_onnx_value;

/* A frozen tensor whose values were read. */
typedef struct sbp_onnx_table {
    const sbp_onnx_tensor *tensor;
    const double *data;
} sbp_onnx_table;

typedef struct sbp_onnx {
    sbp_loading *loading;
    sbp_arena *arena;
    sbp_diag *diag;
    const sbp_onnx_model *model;
    const sbp_onnx_node *node; /* being imported */
    sbp_builder builder;
    sbp_dtype residual;      /* of embeddings, and of sums of two activations */
    sbp_dtype compute, wide; /* of products and attention; of what is row by row */
    sbp_map names;           /* value name -> index */
    sbp_onnx_value *values;
    int32_t value_count, value_capacity;
    sbp_map read;     /* names that nodes read, or that are the result: how often */
    sbp_map gathered; /* tables that live nodes gather from */
    bool *live;       /* per node: the logits need it */
    bool *wide_node;  /* per node: between the last product and the logits */
    sbp_numbers numbers;
    bool looks; /* a first import, for what patterns want to know */
    bool has_experts;
    sbp_map frozen; /* frozen initializers that became parameters: name -> number in the module */
    sbp_onnx_table *tables;
    int32_t table_count, table_capacity;
} sbp_onnx;

/* An error at the node being imported: "FILE: node 'NAME' (OP): message"; sticks in builder.status. */
sbp_status sbp_onnx_fail(sbp_onnx *o, const char *format, ...) SBP_PRINTF(2, 3);
#ifdef __clang_analyzer__ /* as for sbp_fail */
#define sbp_onnx_fail(...) ((void)sbp_onnx_fail(__VA_ARGS__), SBP_INPUT)
#endif

/* Operands of the node. input: NULL when absent. required: an error then. */
const sbp_onnx_value *sbp_onnx_input(sbp_onnx *o, int32_t index);
sbp_status sbp_onnx_required(sbp_onnx *o, int32_t index, const sbp_onnx_value **out) SBP_CHECKED;
/* Whether somebody reads output `index`. */
bool sbp_onnx_has_output(const sbp_onnx *o, int32_t index);
/* Attributes of the node; *out keeps its value when the attribute is absent. */
const sbp_onnx_attribute *sbp_onnx_attr(const sbp_onnx *o, const char *name);
sbp_status sbp_onnx_attr_int(sbp_onnx *o, const char *name, int64_t *out) SBP_CHECKED;
sbp_status sbp_onnx_attr_float(sbp_onnx *o, const char *name, double *out) SBP_CHECKED;
sbp_status sbp_onnx_attr_string(sbp_onnx *o, const char *name, const char **out) SBP_CHECKED;
/* Every attribute of the node is one of these; NULL at the end. */
sbp_status sbp_onnx_attrs_known(sbp_onnx *o, const char *const *names) SBP_CHECKED;

/* Defines output `index` of the node. */
void sbp_onnx_define(sbp_onnx *o, int32_t index, const sbp_onnx_value *value);
/* A value by its own name. */
void sbp_onnx_add_value(sbp_onnx *o, const sbp_onnx_value *value);
/* Whether some node, or the result, reads what has this name. */
bool sbp_onnx_is_read(const sbp_onnx *o, const char *name);
/* As a VALUE of this ONNX shape; the IR shape of `value` must be the one that sbp_onnx_ir_dims gives. */
void sbp_onnx_define_value(sbp_onnx *o, int32_t index, sbp_value value, sbp_onnx_type type, int32_t rank,
                           const int64_t *dim);
/* The last part of the output's name, for --save and messages. */
const char *sbp_onnx_short_name(sbp_onnx *o);

/* ---- shapes (onnx_shape.c) ---------------------------------------------------------------------------- */

/* An integer of a shape (sbp_onnx_ints) as a dimension. */
int64_t sbp_onnx_dim_of(int64_t size);
/* "[1,T,48]" in the arena. */
const char *sbp_onnx_shape_text(sbp_onnx *o, const sbp_onnx_value *v);
/* The axis of the tokens, or -1; also of a value by slots. */
int32_t sbp_onnx_rows_axis(const sbp_onnx_value *v);
/* The axis of the tokens in a shape, or -1. */
int32_t sbp_onnx_rows_axis_of(int32_t rank, const int64_t *dim);
/* Whether it has a row per token, or slots of them. */
bool sbp_onnx_has_rows(const sbp_onnx_value *v);
/* Constant dimensions of the IR value of this ONNX shape: without batch and tokens, with slots. Fails when
 * axis 0 is neither a batch of size 1 nor the tokens. */
sbp_status sbp_onnx_ir_dims(sbp_onnx *o, int32_t rank, const int64_t *dim, int64_t *out,
                            int32_t *count) SBP_CHECKED;
/* The value with these constant dimensions after its rows: itself, what it was reshaped from, or a reshape.
 */
sbp_value sbp_onnx_with_dims(sbp_onnx *o, sbp_value value, const int64_t *dims, int32_t count);
/* The IR value of v, seen as ONNX shape `dim` of the same elements in the same order, with the constant dims
 * that follow from it. */
sbp_status sbp_onnx_as_shape(sbp_onnx *o, sbp_value value, int32_t rank, const int64_t *dim,
                             sbp_value *out) SBP_CHECKED;
/* Elements of what is constant in all dimensions. */
int64_t sbp_onnx_elements(const sbp_onnx_value *v);
/* A constant as an IR value: a number, or an argument. */
sbp_value sbp_onnx_constant_value(sbp_onnx *o, const sbp_onnx_value *v, sbp_dtype dtype);

/* ---- operands (onnx_operands.c) ------------------------------------------------------------------------ */

/* v as an IR value of `dtype` (constants and parameters become arguments). */
sbp_status sbp_onnx_materialize(sbp_onnx *o, const sbp_onnx_value *v, sbp_dtype dtype,
                                sbp_value *out) SBP_CHECKED;
/* Operands of an element-wise op as IR values that broadcast, and the ONNX shape of the result. */
sbp_status sbp_onnx_broadcast(sbp_onnx *o, const sbp_onnx_value *const *in, int32_t count, sbp_value *out,
                              int32_t *rank, int64_t *dim) SBP_CHECKED;
/* Integers of an operand (shapes, axes), SBP_ONNX_TOKENS for T. what: for messages. */
#define SBP_ONNX_TOKENS (INT64_MIN + 1)
#define SBP_ONNX_TOKENS_TIMES(k) (INT64_MIN + (k)) /* k T, k up to SBP_ONNX_MOST_SLOTS */
sbp_status sbp_onnx_ints(sbp_onnx *o, int32_t input, const char *what, const int64_t **out,
                         int64_t *count) SBP_CHECKED;

/* ---- shapes, positions, masks (onnx_fold.c, onnx_mask.c, onnx_scores.c) ----------------------------------
 */

/* Defines the outputs of the node at hand when it is one of numbers; *folded: whether it was. */
sbp_status sbp_onnx_fold(sbp_onnx *o, bool *folded) SBP_CHECKED;
/* The same for Shape, of any x. */
sbp_status sbp_onnx_fold_shape(sbp_onnx *o, const sbp_onnx_value *x) SBP_CHECKED;
/* The number of a PARAMETER in the module. */
sbp_status sbp_onnx_param(sbp_onnx *o, const sbp_onnx_value *v, int32_t *out) SBP_CHECKED;
/* Lets a parameter that nothing read yet have a matrix's shape: axes of length 1 of its tensor are left out.
 */
sbp_status sbp_onnx_squeeze_param(sbp_onnx *o, int32_t param) SBP_CHECKED;
/* Reads a frozen PARAMETER. */
sbp_status sbp_onnx_table_of(sbp_onnx *o, const sbp_onnx_value *v, sbp_number_tensor *out) SBP_CHECKED;
/* The table with these numbers, or NULL. */
const sbp_onnx_table *sbp_onnx_find_table(const sbp_onnx *o, const double *data);
/* From here on no document has more than `most` tokens; an error when it is below 1. */
sbp_status sbp_onnx_at_most(sbp_onnx *o, double most) SBP_CHECKED;
/* A CONSTANT or NUMBERS as a tensor. */
void sbp_onnx_tensor_of(sbp_onnx *o, const sbp_onnx_value *v, sbp_number_tensor *out);
/* Whether v is the positions 0 .. T - 1 along its last axis, whatever it has before (sizes of 1). */
bool sbp_onnx_is_positions(const sbp_onnx_value *v);
/* NUMBERS as a VALUE of the wide type. */
sbp_status sbp_onnx_numbers_value(sbp_onnx *o, const sbp_onnx_value *v, sbp_onnx_value *out) SBP_CHECKED;
/* What a mask lets query i of key k see, v being numbers that broadcast to [.., T, T]: all up to itself
 * (*window 0), or the last *window of them. BOOL: true is seen; else numbers that are added to scores. An
 * error that says what it shows when it is no such mask. */
sbp_status sbp_onnx_mask_window(sbp_onnx *o, const sbp_onnx_value *v, int64_t *window) SBP_CHECKED;
/* The same beside is_causal, which hides what comes after a token. */
sbp_status sbp_onnx_causal_mask_window(sbp_onnx *o, const sbp_onnx_value *v, int64_t *window) SBP_CHECKED;
/* Defines the output of the node at hand when it is a step of attention that is spelled out. */
sbp_status sbp_onnx_scores_node(sbp_onnx *o, bool *done) SBP_CHECKED;
/* The same for what tokens choose, and for matmuls with what they have chosen (onnx_experts.c). */
sbp_status sbp_onnx_experts_node(sbp_onnx *o, bool *done) SBP_CHECKED;
/* Slice of a LONGER, the node at hand. */
sbp_status sbp_onnx_cut_longer(sbp_onnx *o, const sbp_onnx_value *x) SBP_CHECKED;
/* Defines the output of the node at hand when it adds a bias to a product: y + bias is one op. */
sbp_status sbp_onnx_add_bias(sbp_onnx *o, const sbp_onnx_value *y, const sbp_onnx_value *bias,
                             bool *done) SBP_CHECKED;
/* Queries, keys and values [T, heads, d] as IR values to the result of attention. */
sbp_value sbp_onnx_build_attention(sbp_onnx *o, const sbp_value qkv[3], double scale, double softcap,
                                   int64_t window);
/* Dimensions of v as its IR value has them: each head once. */
void sbp_onnx_own_dims(const sbp_onnx_value *v, int64_t *dim);

/* The node at hand, a cast of an activation to BOOL. */
sbp_status sbp_onnx_cast_truth(sbp_onnx *o, const sbp_onnx_value *x) SBP_CHECKED;
/* Gather with a constant index along an axis of an activation. */
sbp_status sbp_onnx_gather_part(sbp_onnx *o, const sbp_onnx_value *x, const sbp_onnx_value *index,
                                int64_t axis) SBP_CHECKED;

/* ---- import, in steps, which onnx_load.c takes (onnx_import.c, onnx_raise.c) --------------------------- */

void sbp_onnx_create(sbp_onnx *o, sbp_loading *loading, const sbp_onnx_model *model, sbp_module *module);
/* Opset and outputs. */
sbp_status sbp_onnx_check(sbp_onnx *o) SBP_CHECKED;
/* What the logits need; parameters, constants and inputs as values. */
sbp_status sbp_onnx_begin(sbp_onnx *o) SBP_CHECKED;
/* o->node. */
sbp_status sbp_onnx_import_node(sbp_onnx *o) SBP_CHECKED;
/* Both, of all nodes that the logits need, and the result. */
sbp_status sbp_onnx_import(sbp_onnx *o) SBP_CHECKED;
/* Puts single operators in place of what exporters spell out: o->model becomes a copy. */
sbp_status sbp_onnx_raise(sbp_onnx *o) SBP_CHECKED;

/* ---- operators ---------------------------------------------------------------------------------------- */

#define SBP_ONNX_RAISED 1000 /* `since` of what only patterns make */
#define SBP_ONNX_OWN 1001    /* of operators of domain streambp (onnx_states.c) */

typedef struct sbp_onnx_op {
    const char *name;
    int32_t since; /* first opset that has it */
    sbp_status (*import)(sbp_onnx *o);
} sbp_onnx_op;

/* NULL when there is none. */
const sbp_onnx_op *sbp_onnx_find_op(const char *name);

#define ONNX_OP(name, since, function) sbp_status function(sbp_onnx *o) SBP_CHECKED;
#include "frontends/onnx/onnx_ops.def"
#undef ONNX_OP

#endif
