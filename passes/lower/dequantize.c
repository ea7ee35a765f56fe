/* dequantize.c: commands that make numbers of parameters kept in blocks (ir/rowkernel/format.h). */
#include "passes/lower/lowering.h"

const sbp_rowkernel *sbp_dequantize_kernel(sbp_program_builder *p, sbp_format format, sbp_dtype to) {
    sbp_rowkernel **kernel = &p->dequantize[format][to];
    if (!*kernel)
        *kernel = sbp_format_kernel(p->arena, p->diag, format, to);
    if (!*kernel)
        p->status = SBP_INTERNAL;
    return *kernel;
}

void sbp_lower_dequantize(sbp_program_builder *p, sbp_body *body, sbp_format format, sbp_view to,
                          sbp_dtype dtype, const sbp_view *parts) {
    const sbp_format_info *f = sbp_format_of(format);
    if (!sbp_dequantize_kernel(p, format, dtype))
        return;
    sbp_command *row = sbp_lower_command(p, body, SBP_CMD_ROW);
    row->kernel = sbp_program_add_kernel(p->arena, p->program, p->dequantize[format][dtype]);
    for (int32_t k = 0; k < f->part_count; k++)
        row->views[k] = parts[k];
    row->views[f->part_count] = sbp_view_wide(p->program, NULL, &to, f->block);
    row->view_count = f->part_count + 1;
}
