/* onnx_file.h: an ONNX model as a file: protobuf's JSON mapping of ModelProto, or its wire format
 * (model.onnx). Both give the same tree (frontends/formats/files/protojson.h). Errors: SBP_IO, SBP_INPUT.
 * Threads: no state. */
#ifndef SBP_FRONTENDS_WEIGHTS_ONNX_FILE_H
#define SBP_FRONTENDS_WEIGHTS_ONNX_FILE_H

#include "ir/base/json.h"

/* By the name of the file: "*.onnx" is wire format. */
sbp_status sbp_onnx_file_read(sbp_arena *arena, sbp_diag *diag, const char *path,
                              const sbp_json **out) SBP_CHECKED;

#endif
