/* export_list.c: the list of tensors of a file, and what each is written as. */
#include "frontends/formats/export/export_internal.h"

#include <string.h>

static bool ends(const char *text, const char *suffix) {
    size_t a = strlen(text), b = strlen(suffix);
    return a >= b && strcmp(text + a - b, suffix) == 0;
}

/* Vectors, norms, routers, short convolutions and what is no weight stay in F32. */
static bool stays_f32(const char *name, int32_t rank) {
    return rank <= 1 || ends(name, "_norm.weight") || ends(name, ".ffn_gate_inp.weight") ||
           ends(name, ".ffn_gate_inp_shexp.weight") || ends(name, ".ssm_conv1d.weight") ||
           ends(name, ".shortconv.conv.weight") ||
           !(ends(name, ".weight") || ends(name, ".lora_a") || ends(name, ".lora_b"));
}

sbp_gguf_tensor_type sbp_exp_type_of(sbp_gguf_tensor_type type, const char *name, int32_t rank,
                                     const int64_t *dim) {
    if (stays_f32(name, rank))
        return SBP_GGUF_TENSOR_F32;
    return dim[rank - 1] % sbp_gguf_block_elems(type) == 0 ? type : SBP_GGUF_TENSOR_F16;
}

exp_tensor *sbp_exp_add_tensor(exp_job *job, const char *name) {
    SBP_PUSH(job->model.arena, job->tensors, job->count, job->capacity, (exp_tensor){.out = {.name = name}});
    return &job->tensors[job->count - 1];
}
