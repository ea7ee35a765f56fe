/* protojson.h: reading messages in protobuf's JSON mapping, as ONNX models come (MessageToJson).
 *
 * Field names are camelCase or snake_case; a field is given once; null means absent. 64-bit integers are
 * numbers or strings, enums names or numbers, floats numbers or "NaN", "Infinity", "-Infinity"; bytes are
 * standard or URL-safe base64, padded or not. Names below are always camelCase.
 * https://protobuf.dev/programming-guides/json/
 *
 * Errors: SBP_INPUT, naming file and path. Threads: none of this keeps state.
 */
#ifndef SBP_FRONTENDS_FILES_PROTOJSON_H
#define SBP_FRONTENDS_FILES_PROTOJSON_H

#include "ir/base/json.h"

/* The message must be an object whose fields are all listed, each once. fields: NULL at the end. */
sbp_status sbp_proto_check(sbp_diag *diag, const sbp_json *message, const char *const *fields) SBP_CHECKED;
/* The field, or NULL when absent or null; also NULL when `message` is. */
const sbp_json *sbp_proto_field(const sbp_json *message, const char *field);

/* Single values; `node` must not be NULL. */
sbp_status sbp_proto_i64(sbp_diag *diag, const sbp_json *node, int64_t *out) SBP_CHECKED;
/* As i64, but values up to 2^64 - 1 are allowed, kept modulo 2^64. */
sbp_status sbp_proto_u64(sbp_diag *diag, const sbp_json *node, int64_t *out) SBP_CHECKED;
sbp_status sbp_proto_double(sbp_diag *diag, const sbp_json *node, double *out) SBP_CHECKED;
/* names[i] is called i; NULL where there is none. */
sbp_status sbp_proto_enum(sbp_diag *diag, const sbp_json *node, const char *const *names, int32_t count,
                          int32_t *out) SBP_CHECKED;
/* Into the arena (below a guard). */
sbp_status sbp_proto_bytes(sbp_arena *arena, sbp_diag *diag, const sbp_json *node, const uint8_t **out,
                           int64_t *length) SBP_CHECKED;

/* Fields: *out keeps its value when the field is absent; a repeated field that is absent has no items. */
sbp_status sbp_proto_get_i64(sbp_diag *diag, const sbp_json *message, const char *field,
                             int64_t *out) SBP_CHECKED;
sbp_status sbp_proto_get_string(sbp_diag *diag, const sbp_json *message, const char *field,
                                const char **out) SBP_CHECKED;
sbp_status sbp_proto_get_repeated(sbp_diag *diag, const sbp_json *message, const char *field,
                                  const sbp_json **items, int64_t *count) SBP_CHECKED;

#endif
