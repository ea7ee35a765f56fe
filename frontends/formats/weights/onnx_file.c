/* onnx_file.c: model.json or model.onnx as one tree. */
#include "frontends/formats/weights/onnx_file.h"

#include <string.h>

#include "frontends/formats/files/protowire.h"

enum {
#define MESSAGE(id, name) id,
#define FIELD(message, number, name, kind, repeated, type)
#include "frontends/formats/weights/onnx_schema.def"
#undef MESSAGE
#undef FIELD
    MESSAGES
};

static const char *const messages[MESSAGES] = {
#define MESSAGE(id, name) name,
#define FIELD(message, number, name, kind, repeated, type)
#include "frontends/formats/weights/onnx_schema.def"
#undef MESSAGE
#undef FIELD
};

static const sbp_wire_field fields[] = {
#define MESSAGE(id, name)
#define FIELD(message, number, name, kind, repeated, type)                                                   \
    {message, number, #name, SBP_WIRE_##kind, repeated, type},
#include "frontends/formats/weights/onnx_schema.def"
#undef MESSAGE
#undef FIELD
};

static bool is_binary(const char *path) {
    size_t length = strlen(path);
    return length > 5 && strcmp(path + length - 5, ".onnx") == 0;
}

sbp_status sbp_onnx_file_read(sbp_arena *arena, sbp_diag *diag, const char *path, const sbp_json **out) {
    static const sbp_wire_schema schema = {
        .fields = fields, .count = SBP_COUNT(fields), .messages = messages};
    const char *data;
    size_t bytes;
    if (!is_binary(path))
        return sbp_json_read(arena, diag, path, SBP_JSON_COMMENTS, out);
    SBP_TRY(sbp_file_read(arena, diag, path, &data, &bytes));
    return sbp_wire_parse(arena, diag, path, data, bytes, &schema, MODEL, out);
}
