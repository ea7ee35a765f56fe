/* safetensors.h: writing .safetensors files (reading: frontends/formats/weights/weights.h, included here).
 *
 * The format: 8 bytes little-endian header size, a JSON header {"name":{"dtype","shape",
 * "data_offsets"}}, padded with spaces so that the data begin at a multiple of 8, the data.
 * https://github.com/huggingface/safetensors
 */
#ifndef SBP_FRONTENDS_WEIGHTS_SAFETENSORS_H
#define SBP_FRONTENDS_WEIGHTS_SAFETENSORS_H

#include "frontends/formats/weights/weights.h"
#include "ir/base/json_write.h"

typedef struct sbp_tensor_spec {
    const char *name;
    sbp_dtype dtype;
    int32_t rank;
    const int64_t *dim; /* [rank], row-major */
} sbp_tensor_spec;

typedef struct sbp_key_value {
    const char *key, *value;
} sbp_key_value;

/* "F32", "BF16", ...; the spelling of safetensors. */
const char *sbp_safetensors_dtype(sbp_dtype dtype);

/* Writes tensors in the order of the list, each in as many pieces as the caller likes. Within a file they
 * are placed as the safetensors library places them (wide types first, then by name), so that every one
 * is aligned. Needs as much memory as the headers, not as the data. Not thread safe. */
typedef struct sbp_safetensors_writer sbp_safetensors_writer;

/* `path` names the file. With max_shard_bytes > 0 and more bytes than that in total, it becomes
 * STEM-00001-of-0000N.safetensors beside it and an index PATH.index.json, cut as Hugging Face does: a new
 * shard before the tensor that would exceed the limit; then, or as one file, it takes the place of what was
 * there of either kind. Without max_shard_bytes nothing but the file is replaced. All strings and shapes are
 * copied into the arena, which must outlive the writer. Needs no guard by the caller. Files are temporary
 * until commit. */
sbp_status sbp_safetensors_writer_create(sbp_arena *arena, sbp_diag *diag, const char *path,
                                         const sbp_tensor_spec *tensors, int32_t count,
                                         const sbp_key_value *metadata, int32_t metadata_count,
                                         int64_t max_shard_bytes, sbp_safetensors_writer **out) SBP_CHECKED;
/* The next `bytes` bytes of the tensors in list order; a piece may span tensors. More than the list
 * declares is SBP_INTERNAL. */
sbp_status sbp_safetensors_writer_write(sbp_safetensors_writer *writer, sbp_diag *diag, const void *data,
                                        int64_t bytes) SBP_CHECKED;
/* Syncs and renames every file, the index last, then removes what would shadow it (a single file beside
 * an index, or an index beside a single file). Missing bytes are SBP_INTERNAL. The writer is finished in
 * any case. */
sbp_status sbp_safetensors_writer_commit(sbp_safetensors_writer *writer, sbp_diag *diag) SBP_CHECKED;
/* Removes the temporary files. NULL and finished writers are allowed. */
void sbp_safetensors_writer_abort(sbp_safetensors_writer *writer);

/* Text of MODEL.safetensors.index.json, as huggingface_hub writes it, for files that others lay out: between
 * the two, sbp_json_write_string(w, TENSOR, FILE) for each tensor. Below a guard of the text's arena. */
sbp_json_writer sbp_safetensors_index_begin(sbp_text *out, int64_t total_bytes);
void sbp_safetensors_index_end(sbp_json_writer *w);

#endif
