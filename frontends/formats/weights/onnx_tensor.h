/* onnx_tensor.h: tensors of ONNX models in JSON (TensorProto), for the frontend that builds the graph and for
 * the runtime that reads weights: sbp_weights_open takes a model.json, whose float initializers are its
 * tensors.
 *
 * Values are inline (raw_data, or a typed list) or in a file beside the model (external_data): bytes at an
 * offset, or without an offset in a .safetensors file the tensor of the same name.
 *
 * Ownership: everything lives in the arena. Threads: may be read by many. Errors: SBP_INPUT, naming file and
 * path.
 */
#ifndef SBP_FRONTENDS_WEIGHTS_ONNX_TENSOR_H
#define SBP_FRONTENDS_WEIGHTS_ONNX_TENSOR_H

#include "ir/base/json.h"
#include "ir/base/types.h"

/* The numbers are those of TensorProto.DataType. */
typedef enum sbp_onnx_type {
    SBP_ONNX_UNDEFINED = 0,
    SBP_ONNX_FLOAT,
    SBP_ONNX_UINT8,
    SBP_ONNX_INT8,
    SBP_ONNX_UINT16,
    SBP_ONNX_INT16,
    SBP_ONNX_INT32,
    SBP_ONNX_INT64,
    SBP_ONNX_STRING,
    SBP_ONNX_BOOL,
    SBP_ONNX_FLOAT16,
    SBP_ONNX_DOUBLE,
    SBP_ONNX_UINT32,
    SBP_ONNX_UINT64,
    SBP_ONNX_COMPLEX64,
    SBP_ONNX_COMPLEX128,
    SBP_ONNX_BFLOAT16,
    SBP_ONNX_TYPE_COUNT
} sbp_onnx_type;

/* "FLOAT"; and by name or number, for elem_type and data_type. */
const char *sbp_onnx_type_name(sbp_onnx_type type);
sbp_status sbp_onnx_type_parse(sbp_diag *diag, const sbp_json *node, sbp_onnx_type *out) SBP_CHECKED;
/* The dtype of FLOAT, DOUBLE, FLOAT16, BFLOAT16; false for others. */
bool sbp_onnx_type_float(sbp_onnx_type type, sbp_dtype *out);

enum { SBP_ONNX_MAX_RANK = 8 };

typedef struct sbp_onnx_tensor {
    const char *name; /* "" when it has none */
    const sbp_json *node;
    sbp_onnx_type type;
    int32_t rank;
    int64_t dim[SBP_ONNX_MAX_RANK];
    int64_t elems, bytes;
    const uint8_t *data;    /* inline: packed little-endian elements; NULL: external */
    const char *location;   /* external: a path relative to the model's directory; NULL: inline */
    int64_t offset, length; /* external: -1 where not given */
} sbp_onnx_tensor;

/* Below a guard. */
sbp_status sbp_onnx_tensor_parse(sbp_arena *arena, sbp_diag *diag, const sbp_json *node,
                                 sbp_onnx_tensor *out) SBP_CHECKED;
/* Reads external values, so that tensor->data is there. model: path of the model.json. Below a guard. */
sbp_status sbp_onnx_tensor_load(sbp_arena *arena, sbp_diag *diag, const char *model,
                                sbp_onnx_tensor *tensor) SBP_CHECKED;
/* The same, of the first `rows` of axis 0 alone: *tensor becomes that part of itself. */
sbp_status sbp_onnx_tensor_load_rows(sbp_arena *arena, sbp_diag *diag, const char *model, int64_t rows,
                                     sbp_onnx_tensor *tensor) SBP_CHECKED;
/* Element i of a loaded tensor. Integers beyond 2^53 are rounded. */
double sbp_onnx_tensor_at(const sbp_onnx_tensor *tensor, int64_t i);

#endif
