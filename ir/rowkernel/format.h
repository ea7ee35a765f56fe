/* format.h: block formats in which frozen parameters are kept: codes, scales and minima, each a buffer.
 *
 * A format cuts the elements of a parameter, in row-major order, into blocks of equal size. Each block has a
 * fixed number of elements in each part; a part holds those of block 0, then of block 1, and so on.
 * formats.def has what a block's values are, as a row kernel over its parts, and nothing else says it: passes
 * emit it, devices run it, the host runs it (rowkernel_host.c) where files are read or written.
 *
 * Values are those of the fp32 arithmetic that defines the format, bit for bit, on every device and in every
 * type that they are stored to afterwards: products of scales and codes are exact, so that one rounding is
 * left, and a contraction of a product and a sum changes nothing.
 *
 * Parts are what files have, in the order of the file or in one that makes the kernel one formula for all
 * heads: nothing is larger than in the file, but for scales that a file has once for several blocks (fp8).
 *
 * Threads: constant tables and pure functions. */
#ifndef SBP_IR_ROWKERNEL_FORMAT_H
#define SBP_IR_ROWKERNEL_FORMAT_H

#include "ir/rowkernel/rowkernel.h"

typedef enum sbp_format {
    SBP_FORMAT_NONE, /* plain numbers */
#define FORMAT(id, text, block, whole_rows, parts, kernel) SBP_FORMAT_##id,
#include "ir/rowkernel/formats.def"
#undef FORMAT
    SBP_FORMAT_COUNT
} sbp_format;

enum { SBP_MAX_FORMAT_PARTS = 4, SBP_FORMAT_LARGEST_BLOCK = 256 };

typedef struct sbp_format_part {
    const char *name; /* "codes": the buffer is called "<parameter>.codes" */
    sbp_dtype dtype;
    int32_t count; /* per block */
} sbp_format_part;

typedef struct sbp_format_info {
    const char *name;
    int32_t block;   /* elements */
    bool whole_rows; /* a block lies in one row of the matrix */
    sbp_format_part parts[SBP_MAX_FORMAT_PARTS];
    int32_t part_count;
    const char *kernel; /* text: a block is a row; operands are the parts in their order, then the values */
} sbp_format_info;

/* Not of NONE. */
const sbp_format_info *sbp_format_of(sbp_format format);
/* False when there is none of that name. */
bool sbp_format_from_name(const char *name, sbp_format *out);
/* Whether a parameter of this shape can be kept so: cols elements in a row. */
bool sbp_format_fits(sbp_format format, int64_t rows, int64_t cols);
/* Bytes of that many elements, whole blocks. */
int64_t sbp_format_size(sbp_format format, int64_t elems);
/* What makes values of type `to` of the parts; NULL, with a message, when the text of the table is wrong. */
sbp_rowkernel *sbp_format_kernel(sbp_arena *arena, sbp_diag *diag, sbp_format format, sbp_dtype to);

/* ---- on the host (format_code.c) -------------------------------------------------------------------- */

/* The kernel of the table, made ready. NULL, with a message, when the text of the table is wrong. */
typedef struct sbp_format_decoder sbp_format_decoder;
sbp_format_decoder *sbp_format_decoder_create(sbp_arena *arena, sbp_diag *diag, sbp_format format);
/* parts: one array per part. Any number of threads at once. */
void sbp_format_decode(const sbp_format_decoder *decoder, const void *const *parts, int64_t blocks,
                       float *out);
/* Blocks as a GGUF file has them; false where it has none of the format. */
bool sbp_format_split(sbp_format format, const uint8_t *raw, int64_t blocks, void *const *parts);
/* The first block that stands for what is no finite number, by parts that are not floats; -1:
 * there is none. */
int64_t sbp_format_find_bad(sbp_format format, const void *const *parts, int64_t blocks);
/* Whether weights can be brought into the format, and that: q8_0 as ggml's reference does, nf4 as
 * bitsandbytes. Values must be finite. */
bool sbp_format_can_encode(sbp_format format);
void sbp_format_encode(sbp_format format, const float *values, int64_t blocks, void *const *parts);

#endif
