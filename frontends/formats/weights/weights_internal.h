/* weights_internal.h: what the readers of single formats share with weights.c, weights_list.c
 * and weights_read.c. */
#ifndef SBP_FRONTENDS_WEIGHTS_WEIGHTS_INTERNAL_H
#define SBP_FRONTENDS_WEIGHTS_WEIGHTS_INTERNAL_H

#include <string.h>

#include "frontends/formats/weights/weights.h"

/* How the bytes of a tensor are to be understood: 0 .. SBP_DTYPE_COUNT - 1 are plain arrays of that
 * dtype, from CODEC_QUANTIZED on a ggml block type (value minus CODEC_QUANTIZED), CODEC_NONE unreadable; the
 * others have scales in a second tensor; CODEC_VIEW: it is made of others. */
enum {
    CODEC_NONE = -1,
    CODEC_VIEW = 128,
    CODEC_QUANTIZED = 256,
    CODEC_MXFP4 = 1024,
    CODEC_FP8,
    CODEC_INT4,
    CODEC_INT8
};

typedef struct weights_file {
    const char *path;
    int fd;
    int64_t bytes;
    const void *memory; /* the contents, where there is no file (then fd is -1) */
} weights_file;

struct sbp_weights {
    sbp_arena *arena;
    const char *path;
    weights_file *files;
    int32_t file_count, file_capacity;
    sbp_weight *weights;
    int32_t count, capacity;
    sbp_map by_name;
    sbp_weight *pairs; /* of two tensors each, where neither has the name of both */
    int32_t pair_count, pair_capacity;
    sbp_map pair_by_name;
    sbp_weight *stacks;
    sbp_map stack_by_name;
    sbp_weight
        *views; /* of a GGUF file whose architecture gguf_table.def knows, under names of Hugging Face */
    int32_t view_count, view_capacity;
    sbp_map view_by_name;
    const sbp_json *metadata; /* NULL or the __metadata__ object of the first file */
    const struct sbp_gguf *gguf;
    /* Rows and columns that share a scale of FP8, as config.json beside the weights says; of block_file NULL
     * it does not, {0, 0}: all of a matrix. */
    bool block_looked_for;
    const char *block_file;
    int64_t block[2];
    const sbp_format_decoder *decoders[SBP_FORMAT_COUNT]; /* of formats that tensors have */
};

/* Opens files and adds their tensors, below a guard. */
typedef sbp_status (*sbp_weights_adder)(sbp_weights *w, sbp_diag *diag, const char *path);
/* What sbp_weights_open does, of what `add` knows. */
sbp_status sbp_weights_open_as(sbp_arena *arena, sbp_diag *diag, const char *path, sbp_weights_adder add,
                               sbp_weights **out) SBP_CHECKED;
/* Finds what two tensors are together, when all files are open; below a guard. */
sbp_status sbp_weights_pair(sbp_weights *w, sbp_diag *diag) SBP_CHECKED;
enum { MXFP4_BYTES = 16, MXFP4_BLOCK = 2 * MXFP4_BYTES, FP8_BLOCK = 128 };
/* How much of blocks is read at once: QUANTIZED_ELEMS elements, a multiple of every block, in fewer bytes
 * than QUANTIZED_BYTES. */
enum { QUANTIZED_ELEMS = 8192, QUANTIZED_BYTES = 2 * QUANTIZED_ELEMS };
/* 16 bytes whose halves are values 2 i and 2 i + 1 become those whose halves are values i and i + 16. */
static inline void weights_spread_halves(const uint8_t *raw, uint8_t *codes) {
    for (int i = 0; i < MXFP4_BYTES; i++) {
        int first = raw[i / 2] >> (i % 2 * 4) & 15, second = raw[8 + i / 2] >> (i % 2 * 4) & 15;
        codes[i] = (uint8_t)(first | second << 4);
    }
}
/* weights_packed.c: what the tensors beside M.weight_packed are together, whose names go on behind `stem`;
 * below a guard. One that is not understood has a refusal. */
sbp_status sbp_weights_packed_make(sbp_weights *w, sbp_diag *diag, const sbp_weight *packed, size_t stem,
                                   sbp_weight *out) SBP_CHECKED;
/* Elements, and blocks, of such a weight: at most QUANTIZED_ELEMS numbers. */
sbp_status sbp_weights_packed_read(const sbp_weights *w, const sbp_weight *t, int64_t first, int64_t count,
                                   float *out, sbp_diag *diag) SBP_CHECKED;
sbp_status sbp_weights_packed_read_blocks(const sbp_weights *w, const sbp_weight *t, int64_t first,
                                          int64_t count, void *const *to, sbp_diag *diag) SBP_CHECKED;
/* Scales that are powers of two, by their exponents alone. */
static inline bool weights_is_e8m0(const sbp_weight *scales) {
    return strcmp(scales->encoding, "F8_E8M0") == 0;
}
/* Bytes of a tensor as they are in its file. */
sbp_status sbp_weights_read_raw(const sbp_weights *w, const sbp_weight *t, int64_t first, int64_t count,
                                void *out, sbp_diag *diag) SBP_CHECKED;
/* Finds the stacks, when all pairs are found; below a guard. */
void sbp_weights_stack(sbp_weights *w);
/* Finds the views of a GGUF file that is open (gguf_view.c); below a guard. */
sbp_status sbp_weights_view(sbp_weights *w, sbp_diag *diag) SBP_CHECKED;
/* How one is read, as sbp_weights_read and sbp_weights_read_blocks. */
struct sbp_gguf_view {
    sbp_status (*read)(const sbp_weights *w, const sbp_weight *t, int64_t first, int64_t count,
                       sbp_dtype dtype, void *out, sbp_diag *diag);
    sbp_status (*read_blocks)(const sbp_weights *w, const sbp_weight *t, int64_t first, int64_t count,
                              void *const *parts, sbp_diag *diag);
    struct sbp_gguf_part *parts;
    int32_t count, capacity;
};

/* Opens one more file, below a guard. */
sbp_status sbp_weights_add_file(sbp_weights *w, sbp_diag *diag, const char *path, int32_t *index) SBP_CHECKED;
/* Adds a tensor; a name that is there already is an error. */
sbp_status sbp_weights_add(sbp_weights *w, sbp_diag *diag, const sbp_weight *weight) SBP_CHECKED;
/* Checks that no two tensors of `file` overlap and all lie in [begin, file size]; with `tight` also that
 * they fill it without holes, as safetensors demands. */
sbp_status sbp_weights_check_layout(sbp_weights *w, sbp_diag *diag, int32_t file, int64_t begin,
                                    bool tight) SBP_CHECKED;
/* Open a file of one format and add all its tensors. */
sbp_status sbp_safetensors_add(sbp_weights *w, sbp_diag *diag, const char *path) SBP_CHECKED;
sbp_status sbp_gguf_add(sbp_weights *w, sbp_diag *diag, const char *path) SBP_CHECKED;
sbp_status sbp_onnx_add(sbp_weights *w, sbp_diag *diag, const char *path) SBP_CHECKED;

/* A ggml block type (gguf_quant.c); one that is a format too (formats.def) is decoded by its kernel. */
typedef struct sbp_quant {
    const char *name;
    int32_t type;        /* ggml's number */
    int32_t block_elems; /* elements per block; 1 for plain types */
    int32_t block_bytes;
    int32_t dtype;                                    /* of plain types, else -1 */
    void (*decode)(const uint8_t *block, float *out); /* block_elems values; NULL: none of its own */
} sbp_quant;
/* Those of gguf_quant_grid.c. */
void sbp_quant_iq2_xxs(const uint8_t *block, float *out);
void sbp_quant_iq2_xs(const uint8_t *block, float *out);
void sbp_quant_iq2_s(const uint8_t *block, float *out);
void sbp_quant_iq3_xxs(const uint8_t *block, float *out);
void sbp_quant_iq3_s(const uint8_t *block, float *out);
void sbp_quant_iq1_s(const uint8_t *block, float *out);
void sbp_quant_iq1_m(const uint8_t *block, float *out);
void sbp_quant_iq4_nl(const uint8_t *block, float *out);
void sbp_quant_iq4_xs(const uint8_t *block, float *out);
void sbp_quant_tq1_0(const uint8_t *block, float *out);
void sbp_quant_tq2_0(const uint8_t *block, float *out);
void sbp_quant_nvfp4(const uint8_t *block, float *out);
/* NULL for an unknown number. */
const sbp_quant *sbp_quant_of(int32_t type);

#endif
