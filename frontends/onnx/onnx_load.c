/* onnx_load.c: the way from a file of ONNX to a module: read, checked, raised, imported. */
#include "frontends/onnx/onnx.h"

static bool has_values(const sbp_onnx_model *m) {
    sbp_dtype dtype;
    for (int32_t i = 0; i < m->initializer_count; i++)
        if (sbp_onnx_type_float(m->initializers[i].type, &dtype) && m->initializers[i].elems > 1)
            return true;
    return false;
}

sbp_status sbp_load_onnx(sbp_loading *l, const sbp_json *root) {
    sbp_onnx_model model;
    SBP_TRY(sbp_onnx_parse(l->arena, l->diag, l->path, root, &model));
    l->origin = model.base && *model.base ? model.base : NULL;
    l->model->model_type = "onnx";
    l->model->initializer_range = 0.02;
    l->model->module = sbp_module_create(l->arena, l->model->name);
    l->own_initializers = !l->model->weights && has_values(&model);
    if (l->own_initializers)
        l->model->weights = l->path;
    sbp_onnx o;
    sbp_onnx_create(&o, l, &model, l->model->module);
    SBP_TRY(sbp_onnx_check(&o));
    SBP_TRY(sbp_onnx_raise(&o));
    SBP_TRY(sbp_onnx_import(&o));
    return sbp_loading_open_weights(l);
}
