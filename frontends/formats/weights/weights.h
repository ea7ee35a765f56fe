/* weights.h: named tensors in files, whatever the format: a .safetensors file, a Hugging Face directory
 * (model.safetensors, or model.safetensors.index.json with its shards), a .gguf file, or an ONNX model as
 * .json, whose float initializers these are.
 *
 * Shapes are row-major, outermost first, as PyTorch and safetensors have them (GGUF's reversed `ne`).
 * Files are untrusted: every header value is checked, and what is wrong is SBP_INPUT with file, tensor,
 * found and expected. A file that is missing or unreadable is SBP_IO.
 *
 * Ownership. Everything lives in the arena given to open, except file descriptors, which
 * sbp_weights_close returns. Threads: an open sbp_weights may be used by many threads; files are read
 * with pread, so a file that shrinks meanwhile is an error, not a crash.
 */
#ifndef SBP_FRONTENDS_WEIGHTS_WEIGHTS_H
#define SBP_FRONTENDS_WEIGHTS_WEIGHTS_H

#include "ir/base/json.h"
#include "ir/rowkernel/format.h"

typedef struct sbp_weights sbp_weights;
struct sbp_gguf;
struct sbp_gguf_view;

typedef struct sbp_weight {
    const char *name;
    const char *encoding; /* as the file spells it: "BF16", "Q4_K", "F8_E4M3" */
    bool readable;        /* false: sbp_weights_read refuses this encoding */
    bool quantized;       /* values are computed from codes (GGUF, MXFP4, FP8, INT4, INT8) */
    sbp_format format;    /* in which a parameter can be kept as it is; NONE */
    sbp_dtype dtype;      /* holds every value exactly; F32 for quantized ones; meaningless unless readable */
    int32_t rank;
    const int64_t *dim; /* [rank] */
    int64_t elems;      /* product of dim; 1 for a scalar */
    const char *path;   /* of the file that holds it; of a stack the first one */
    /* A stack has the tensors that it is made of, along axis 0, which differ in the last number of their
     * names; in its own name that is "*". NULL: a tensor of its own. */
    const struct sbp_weight **parts;
    int64_t part_count;
    /* Where the file has it as two tensors: its scales, and, unless they have its name, its codes
     * (weights_joined.c). A scale is that of scale_rows rows and scale_columns columns. */
    const struct sbp_weight *codes, *scales;
    const struct sbp_weight *zeros, *shape; /* beside those two, of pack-quantized (weights_packed.c); NULL */
    int64_t scale_rows, scale_columns;
    const char *refusal; /* what sbp_weight_check says of one whose scales are not understood; NULL */
    /* Where a tensor of a GGUF file goes by the name and shape that Hugging Face gives it: the tensors of the
     * file that it is made of. */
    const struct sbp_weight **sources;
    int64_t source_count;
    /* For the readers: */
    struct sbp_gguf_view *view;
    int32_t file, codec;
    int64_t offset, bytes; /* in the file */
} sbp_weight;

/* Needs no guard by the caller. */
sbp_status sbp_weights_open(sbp_arena *arena, sbp_diag *diag, const char *path,
                            sbp_weights **out) SBP_CHECKED;
/* NULL is allowed. */
void sbp_weights_close(sbp_weights *weights);

int32_t sbp_weights_count(const sbp_weights *weights);
/* In file order. */
const sbp_weight *sbp_weights_at(const sbp_weights *weights, int32_t index);
/* What two tensors, X_blocks and X_scales, are together, is called so: X_blocks+scales. */
const char *sbp_weights_pair_name(sbp_arena *arena, const char *blocks);
/* Or two of a name that sbp_weights_pair_name gives. Or the stack of tensors of that name, where there is one
 * from 0 on without a gap, all of one shape and type. Or of a GGUF file what Hugging Face calls so. NULL when
 * there is none of that name. */
const sbp_weight *sbp_weights_find(const sbp_weights *weights, const char *name);
/* SBP_INPUT when a parameter of this type cannot be read from the tensor: its encoding is not supported, or
 * it holds integers, which for a parameter of floats are codes of some quantization. */
sbp_status sbp_weight_check(const sbp_weight *weight, sbp_dtype parameter, sbp_diag *diag) SBP_CHECKED;
/* Adds the name of a weight, and those of the tensors that it is made of. */
void sbp_weight_add_names(const sbp_weight *weight, sbp_map *names);
/* What a config.json says of weights of compressed-tensors: group 0 is a whole row. SBP_INPUT where one in
 * INT4 or INT8 is like none of them. */
typedef struct sbp_packed_scheme {
    int64_t bits, group;
    bool symmetric;
} sbp_packed_scheme;
/* In which such weights of [.., columns] are kept, whose scales are of that type; NONE: in numbers. */
sbp_format sbp_packed_format(const sbp_packed_scheme *scheme, sbp_dtype scale, int64_t columns);
sbp_status sbp_weights_check_packed(const sbp_weights *weights, const sbp_packed_scheme *schemes,
                                    int32_t count, const sbp_json *quantization, sbp_diag *diag) SBP_CHECKED;
/* SBP_INPUT where a quantization_config says another weight_block_size than the config.json beside the
 * weights, by which they are read. */
sbp_status sbp_weights_check_block_size(const sbp_weights *weights, const sbp_json *quantization,
                                        sbp_diag *diag) SBP_CHECKED;
/* The path given to open. */
const char *sbp_weights_path(const sbp_weights *weights);
/* A text entry of __metadata__ (the first shard's), or NULL. */
const char *sbp_weights_metadata(const sbp_weights *weights, const char *key);
/* By content, so that a file of any name is recognized. */
bool sbp_weights_is_gguf(const char *path);
/* The metadata of a GGUF file (frontends/formats/weights/gguf.h); NULL for other formats. */
const struct sbp_gguf *sbp_weights_gguf(const sbp_weights *weights);

/* Elements first .. first + count - 1 (row-major) of `weight`, converted to `dtype`, into out[count].
 * Floats round to nearest even; integers and booleans convert to any float, and to integers that can
 * hold them (else SBP_INPUT with index and value); floats do not convert to integers. */
sbp_status sbp_weights_read(const sbp_weights *weights, const sbp_weight *weight, int64_t first,
                            int64_t count, sbp_dtype dtype, void *out, sbp_diag *diag) SBP_CHECKED;

/* Blocks first .. first + count - 1 of a tensor that has a format, as its parts: arrays with
 * `count` blocks each. */
sbp_status sbp_weights_read_blocks(const sbp_weights *weights, const sbp_weight *weight, int64_t first,
                                   int64_t count, void *const *parts, sbp_diag *diag) SBP_CHECKED;

/* The file of a directory, or the path itself, that holds weights as pickle, which no reader here reads since
 * loading it can run any code; NULL: there is none. */
const char *sbp_weights_find_pickle(sbp_arena *arena, const char *path);
/* A sentence on how to convert the weights of a model's directory. */
const char *sbp_weights_convert_pickle(sbp_arena *arena, const char *path);

#endif
