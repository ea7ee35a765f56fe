/* operands.c: what kernels that are written by hand know of their operands. */
#include "backends/gpu/emit/emit.h"

static void define(sbp_text *out, const char *name, int32_t index, sbp_dtype dtype) {
    const char *type = sbp_dtype_name(dtype);
    sbp_text_add(out, "#define %s_OPERAND %d\n#define %s_BYTES %d\n", name, (int)index, name,
                 (int)sbp_dtype_bytes(dtype));
    sbp_text_add(out, "#define LOAD_%s load_%s\n#define STORE_%s store_%s\n", name, type, name, type);
    if (dtype == SBP_I32 || dtype == SBP_I64)
        sbp_text_add(out, "#define INDEX_%s index_%s\n", name, type);
}

void sbp_gpu_define_operands(sbp_text *out, const sbp_program *program, const sbp_command *command,
                             const sbp_dtype *dtypes, sbp_gpu_define *more) {
    sbp_command_operand operands[SBP_MAX_COMMAND_OPERANDS];
    int32_t count = sbp_command_operands(program, command, operands);
    for (int32_t i = 0; i < count; i++) {
        if (dtypes[i] == SBP_DTYPE_COUNT) /* it is absent */
            continue;
        define(out, operands[i].name, i, dtypes[i]);
        if (more)
            more(out, operands[i].name, dtypes[i]);
    }
}
