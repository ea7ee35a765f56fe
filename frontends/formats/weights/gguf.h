/* gguf.h: the metadata of GGUF files, versions 2 and 3, little-endian. Tensors:
 * frontends/formats/weights/weights.h.
 *
 * Layout: "GGUF", version, tensor count, key count, keys with typed values, tensor entries, padding to
 * general.alignment (32), data. https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
 * Every count, length and offset is checked against the file's size before memory is taken for it.
 *
 * Ownership: everything lives in the arena given to open. Threads: may be read by many threads.
 */
#ifndef SBP_FRONTENDS_WEIGHTS_GGUF_H
#define SBP_FRONTENDS_WEIGHTS_GGUF_H

#include "ir/base/json.h"

typedef struct sbp_gguf sbp_gguf;

/* The numbers are those of the format. */
typedef enum sbp_gguf_type {
    SBP_GGUF_U8 = 0,
    SBP_GGUF_I8,
    SBP_GGUF_U16,
    SBP_GGUF_I16,
    SBP_GGUF_U32,
    SBP_GGUF_I32,
    SBP_GGUF_F32,
    SBP_GGUF_BOOL,
    SBP_GGUF_STRING,
    SBP_GGUF_ARRAY,
    SBP_GGUF_U64,
    SBP_GGUF_I64,
    SBP_GGUF_F64,
    SBP_GGUF_TYPE_COUNT
} sbp_gguf_type;

typedef struct sbp_gguf_string {
    const char *data; /* NUL after length bytes; not necessarily UTF-8 */
    int64_t length;
} sbp_gguf_string;

typedef struct sbp_gguf_value {
    const char *key;
    sbp_gguf_type type; /* of the items, when it is an array */
    bool is_array;
    int64_t count;   /* items of an array; 1 otherwise */
    const void *raw; /* numbers as in the file, count of them */
    const sbp_gguf_string *strings;
} sbp_gguf_value;

/* Reads header, keys and tensor entries (checking them); the file is closed again. Needs no guard. */
sbp_status sbp_gguf_open(sbp_arena *arena, sbp_diag *diag, const char *path,
                         const sbp_gguf **out) SBP_CHECKED;

const char *sbp_gguf_path(const sbp_gguf *gguf);
int32_t sbp_gguf_count(const sbp_gguf *gguf);
const sbp_gguf_value *sbp_gguf_at(const sbp_gguf *gguf, int32_t index);
/* NULL when the file does not have the key. */
const sbp_gguf_value *sbp_gguf_find(const sbp_gguf *gguf, const char *key);

/* Item i of a value of any integer or boolean type; of any number type. Values beyond int64 saturate. */
int64_t sbp_gguf_i64_at(const sbp_gguf_value *value, int64_t i);
double sbp_gguf_double_at(const sbp_gguf_value *value, int64_t i);
bool sbp_gguf_is_integer(sbp_gguf_type type);
const char *sbp_gguf_type_name(sbp_gguf_type type);

/* Typed access; `need` as for JSON (there is no null: nullable means optional). SBP_INPUT with file, key,
 * found and expected. A u64 above 2^63 - 1 is out of range. get_array also checks the item type:
 * SBP_GGUF_STRING for strings, SBP_GGUF_F64 for any numbers, SBP_GGUF_I64 for any integers. */
sbp_status sbp_gguf_get_i64(sbp_diag *diag, const sbp_gguf *gguf, const char *key, sbp_json_need need,
                            int64_t *out) SBP_CHECKED;
sbp_status sbp_gguf_get_double(sbp_diag *diag, const sbp_gguf *gguf, const char *key, sbp_json_need need,
                               double *out) SBP_CHECKED;
sbp_status sbp_gguf_get_bool(sbp_diag *diag, const sbp_gguf *gguf, const char *key, sbp_json_need need,
                             bool *out) SBP_CHECKED;
sbp_status sbp_gguf_get_string(sbp_diag *diag, const sbp_gguf *gguf, const char *key, sbp_json_need need,
                               const char **out) SBP_CHECKED;
sbp_status sbp_gguf_get_array(sbp_diag *diag, const sbp_gguf *gguf, const char *key, sbp_gguf_type items,
                              sbp_json_need need, const sbp_gguf_value **out) SBP_CHECKED;

#endif
