/* protowire.h: messages in protobuf's wire format, read by a schema into the tree that its JSON mapping gives
 * (protojson.h), so that one reader serves both. Bytes fields are SBP_JSON_BYTES and point into the data.
 * https://protobuf.dev/programming-guides/encoding/
 *
 * Fields that the schema does not have are errors that name message and number, as unknown fields of JSON
 * are. If a field that is not repeated is given more than once, the last one counts. Groups
 * (deprecated) are refused.
 *
 * Errors: SBP_INPUT with the byte. Threads: no state. */
#ifndef SBP_FRONTENDS_FILES_PROTOWIRE_H
#define SBP_FRONTENDS_FILES_PROTOWIRE_H

#include "ir/base/json.h"

typedef enum sbp_wire_kind {
    SBP_WIRE_INT,    /* int32, int64, enums: varint, two's complement */
    SBP_WIRE_UINT,   /* uint64: varint, kept modulo 2^64 */
    SBP_WIRE_FLOAT,  /* 32 bits */
    SBP_WIRE_DOUBLE, /* 64 bits */
    SBP_WIRE_STRING, /* UTF-8 */
    SBP_WIRE_BYTES,
    SBP_WIRE_MESSAGE, /* of `message` */
    SBP_WIRE_OPAQUE   /* a message that nobody looks into: an empty object */
} sbp_wire_kind;

typedef struct sbp_wire_field {
    int32_t message; /* number of the message that has the field */
    int32_t number;
    const char *name; /* camelCase */
    sbp_wire_kind kind;
    bool repeated;
    int32_t type; /* MESSAGE: number of the message that it is */
} sbp_wire_field;

typedef struct sbp_wire_schema {
    const sbp_wire_field *fields;
    int32_t count;
    const char *const *messages; /* their names, for errors */
} sbp_wire_schema;

/* Reads a message of number `message`. `file` is for errors; data must stay as long as the tree. Needs no
 * guard by the caller. */
sbp_status sbp_wire_parse(sbp_arena *arena, sbp_diag *diag, const char *file, const void *data, size_t bytes,
                          const sbp_wire_schema *schema, int32_t message, const sbp_json **out) SBP_CHECKED;

#endif
