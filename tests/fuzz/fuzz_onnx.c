/* fuzz_onnx.c: ONNX models, JSON where they begin as such, else protobuf's wire format, as sbpc loads them:
 * raised, imported, verified; then the first values of their tensors, as sbprun reads them. Whatever comes, a
 * module or an error with a message. */
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>

#include "frontends/formats/weights/weights.h"
#include "frontends/source/frontend.h"

static void read_values(sbp_arena *arena, sbp_diag *diag, const char *path) {
    sbp_weights *weights = NULL;
    if (sbp_weights_open(arena, diag, path, &weights) == SBP_OK) {
        double values[64];
        for (int32_t i = 0; i < sbp_weights_count(weights) && i < 64; i++) {
            const sbp_weight *w = sbp_weights_at(weights, i);
            (void)!sbp_weights_read(weights, w, 0, w->elems < 64 ? w->elems : 64, SBP_F64, values, diag);
        }
    }
    sbp_weights_close(weights);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    bool json = size > 0 && (data[0] == '{' || data[0] == '/' || data[0] == ' ' || data[0] == '\n');
    const char *path = fuzz_file(json ? ".json" : ".onnx", data, size);
    sbp_model_options options = sbp_model_options_for(SBP_F32);
    sbp_arena *arena = sbp_arena_create();
    sbp_diag *diag = sbp_diag_create();
    sbp_model model;
    if (!arena || !diag)
        abort();
    if (sbp_model_load(arena, diag, path, &options, &model) == SBP_OK) {
        if (sbp_module_verify(model.module, diag) != SBP_OK)
            abort();
    } else if (sbp_diag_count(diag, SBP_ERROR) == 0) {
        abort();
    }
    read_values(arena, diag, path);
    sbp_arena_destroy(arena);
    sbp_diag_destroy(diag);
    return 0;
}
