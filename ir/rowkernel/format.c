/* format.c: the table of formats, and its kernels. */
#include "ir/rowkernel/format.h"

#include <string.h>

#include "ir/base/lex.h"

static const sbp_format_info formats[SBP_FORMAT_COUNT] = {
    {.name = "none"},
#define COUNT_OF(...) (int32_t)(sizeof((sbp_format_part[])__VA_ARGS__) / sizeof(sbp_format_part))
#define FORMAT(id, text, block, rows, parts, kernel) {text, block, rows, parts, COUNT_OF(parts), kernel},
#include "ir/rowkernel/formats.def"
#undef FORMAT
};

const sbp_format_info *sbp_format_of(sbp_format format) {
    return &formats[format];
}

bool sbp_format_from_name(const char *name, sbp_format *out) {
    for (int i = SBP_FORMAT_NONE + 1; i < SBP_FORMAT_COUNT; i++)
        if (strcmp(formats[i].name, name) == 0) {
            *out = (sbp_format)i;
            return true;
        }
    return false;
}

bool sbp_format_fits(sbp_format format, int64_t rows, int64_t cols) {
    const sbp_format_info *f = &formats[format];
    int64_t elems;
    return rows > 0 && cols > 0 && sbp_mul_i64(rows, cols, &elems) &&
           (f->whole_rows ? cols : elems) % f->block == 0;
}

int64_t sbp_format_size(sbp_format format, int64_t elems) {
    const sbp_format_info *f = &formats[format];
    int64_t bytes = 0;
    for (int32_t k = 0; k < f->part_count; k++)
        bytes += f->parts[k].count * sbp_dtype_bytes(f->parts[k].dtype);
    return elems / f->block * bytes;
}

sbp_rowkernel *sbp_format_kernel(sbp_arena *arena, sbp_diag *diag, sbp_format format, sbp_dtype to) {
    const sbp_format_info *f = &formats[format];
    sbp_lexer lexer;
    sbp_rowkernel *kernel;
    if (sbp_lexer_init(&lexer, arena, diag, f->name, f->kernel, strlen(f->kernel)) != SBP_OK ||
        sbp_rowkernel_parse(&lexer, arena, &kernel) != SBP_OK)
        return NULL;
    kernel->operands[kernel->operand_count - 1].dtype = to;
    return sbp_rowkernel_verify(kernel, diag) == SBP_OK ? kernel : NULL;
}
