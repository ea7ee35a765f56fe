/* gguf_write.h: writing GGUF files, version 3, little-endian (reading: frontends/formats/weights/gguf.h).
 *
 * Keys are collected first, then the tensors' names, types and shapes; the data are streamed behind them, in
 * the order of the list. Needs as much memory as the head, not as the data. Threads: none of this is safe. */
#ifndef SBP_FRONTENDS_WEIGHTS_GGUF_WRITE_H
#define SBP_FRONTENDS_WEIGHTS_GGUF_WRITE_H

#include "frontends/formats/weights/gguf.h"
#include "ir/rowkernel/format.h"

/* ---- keys --------------------------------------------------------------------------------------------- */

typedef struct sbp_gguf_entry {
    const char *key;
    sbp_text value; /* type and value as in the file */
} sbp_gguf_entry;

/* In the order in which they were first put; putting a key again replaces its value. Below a guard. */
typedef struct sbp_gguf_keys {
    sbp_arena *arena;
    sbp_gguf_entry *keys;
    int32_t count, capacity;
    sbp_map by_key;
} sbp_gguf_keys;

void sbp_gguf_keys_init(sbp_gguf_keys *keys, sbp_arena *arena);
/* A key of another list. */
void sbp_gguf_keys_copy(sbp_gguf_keys *keys, const sbp_gguf_entry *from);
/* Takes a key away, if it is there. */
void sbp_gguf_keys_remove(sbp_gguf_keys *keys, const char *key);

/* Names of keys are copied. A number of any type, given as what can hold it. */
void sbp_gguf_put_u32(sbp_gguf_keys *keys, const char *key, uint32_t value);
void sbp_gguf_put_i32(sbp_gguf_keys *keys, const char *key, int32_t value);
void sbp_gguf_put_f32(sbp_gguf_keys *keys, const char *key, float value);
void sbp_gguf_put_bool(sbp_gguf_keys *keys, const char *key, bool value);
void sbp_gguf_put_string(sbp_gguf_keys *keys, const char *key, const char *value);
void sbp_gguf_put_bytes(sbp_gguf_keys *keys, const char *key, const char *data, int64_t length);
/* Arrays: begun by their type and count, filled by as many items of that type. */
sbp_text *sbp_gguf_put_array(sbp_gguf_keys *keys, const char *key, sbp_gguf_type type, int64_t count);
void sbp_gguf_add_i32(sbp_text *array, int32_t value);
void sbp_gguf_add_f32(sbp_text *array, float value);
void sbp_gguf_add_bool(sbp_text *array, bool value);
void sbp_gguf_add_string(sbp_text *array, const char *data, int64_t length);
/* A key of another file as it is there. */
void sbp_gguf_put_value(sbp_gguf_keys *keys, const sbp_gguf_value *value);

/* ---- types of tensors --------------------------------------------------------------------------------- */

/* Those that numbers can be written in; the values are ggml's. */
typedef enum sbp_gguf_tensor_type {
    SBP_GGUF_TENSOR_F32 = 0,
    SBP_GGUF_TENSOR_F16 = 1,
    SBP_GGUF_TENSOR_Q8_0 = 8,
    SBP_GGUF_TENSOR_BF16 = 30,
    SBP_GGUF_TENSOR_MXFP4 = 39
} sbp_gguf_tensor_type;

/* Elements of a block (1: of a plain type), and its bytes. */
int32_t sbp_gguf_block_elems(sbp_gguf_tensor_type type);
int32_t sbp_gguf_block_bytes(sbp_gguf_tensor_type type);

/* Numbers to F32, F16, BF16 or Q8_0, bit for bit as the Python package `gguf` makes them; count is a multiple
 * of the block's elements. Q8_0: 32 numbers x with a scale d = max|x| / 127 in fp16, and x / d rounded to
 * integers, halves away from zero, by the scale before it was rounded. */
void sbp_gguf_encode(sbp_gguf_tensor_type type, const float *values, int64_t count, uint8_t *out);

/* ---- files -------------------------------------------------------------------------------------------- */

typedef struct sbp_gguf_tensor {
    const char *name;
    sbp_gguf_tensor_type type;
    int32_t rank;
    int64_t dim[SBP_MAX_RANK]; /* row-major, outermost first; the last one holds whole blocks */
} sbp_gguf_tensor;

int64_t sbp_gguf_tensor_elems(const sbp_gguf_tensor *tensor);

typedef struct sbp_gguf_writer sbp_gguf_writer;

/* Writes the head to a temporary file beside `path`. Keys and tensors must stay until it ends; below a guard,
 * after which nothing is owned but by the writer. *bytes, if wanted: of the whole file. */
sbp_status sbp_gguf_writer_create(sbp_arena *arena, sbp_diag *diag, const char *path,
                                  const sbp_gguf_keys *keys, const sbp_gguf_tensor *tensors, int32_t count,
                                  int64_t *bytes, sbp_gguf_writer **out) SBP_CHECKED;
/* The next bytes of the data; where a tensor ends, the next one is aligned. Needs no guard. */
sbp_status sbp_gguf_writer_write(sbp_gguf_writer *writer, sbp_diag *diag, const void *data,
                                 int64_t bytes) SBP_CHECKED;
/* Renames the file into place. */
sbp_status sbp_gguf_writer_commit(sbp_gguf_writer *writer, sbp_diag *diag) SBP_CHECKED;
/* Removes what there is; harmless after commit. NULL is allowed. */
void sbp_gguf_writer_abort(sbp_gguf_writer *writer);

#endif
