/* onnx_json.c: ONNX models in protobuf's JSON mapping. */
#include "frontends/loading.h"

sbp_status sbp_load_onnx(sbp_loading *l, const sbp_json *root) {
    return sbp_json_fail(l->diag, root, "ONNX models are not built yet");
}
