/* plan_file.h: the container format of plan.bin: named sections of bytes with checksums. What the sections
 * mean is the business of its writer (runtime/cli/sbpc) and reader (runtime/run/plan.h).
 *
 * Format, version SBP_PLAN_VERSION, little-endian:
 *   0   "SBPPLAN\n"
 *   8   u32 version, u32 number of sections
 *   16  u64 bytes of the file
 *   24  u64 xxh64 of header and section table, this field taken as 0
 *   32  per section: name (16 bytes, zero-padded), u64 offset, u64 length, u64 xxh64 of its bytes
 *   then the sections in the order of the table, each at the next multiple of 64, zeros between.
 * Every byte is covered: any truncation, extension or changed bit is SBP_INPUT with file and section.
 *
 * Ownership. What is read lives in the arena. Threads: none of this keeps state.
 */
#ifndef SBP_IR_PROGRAM_PLAN_FILE_H
#define SBP_IR_PROGRAM_PLAN_FILE_H

#include "ir/base/file.h"

enum { SBP_PLAN_VERSION = 4, SBP_PLAN_MAX_SECTIONS = 64, SBP_PLAN_NAME_BYTES = 16 };

/* The sections that this version knows; each may be empty except the first three. */
#define SBP_PLAN_PROGRAM "program"     /* text (ir/program/program.h) */
#define SBP_PLAN_TENSORS "tensors"     /* JSON (frontends/formats/weights/tensor_table.h) */
#define SBP_PLAN_META "meta"           /* JSON: resolved compile options, model info, run-time defaults */
#define SBP_PLAN_TOKENIZER "tokenizer" /* the text of tokenizer.json */
#define SBP_PLAN_TEMPLATE "template"   /* chat template */
#define SBP_PLAN_KERNELS "kernels"     /* device code, as its target packs it */
#define SBP_PLAN_PREPARE "prepare"     /* text of the module of @prepare (ir/graph/prepare.h) */

typedef struct sbp_plan_section {
    const char *name; /* 1 to 15 bytes */
    const void *data; /* NULL when length is 0; when read, a NUL byte follows that is not counted */
    int64_t length;
} sbp_plan_section;

typedef struct sbp_plan_file {
    const char *path;
    sbp_plan_section *sections;
    int32_t count;
} sbp_plan_file;

/* Replaces `path` atomically. Names must differ. */
sbp_status sbp_plan_file_write(sbp_diag *diag, const char *path, const sbp_plan_section *sections,
                               int32_t count) SBP_CHECKED;
/* Whether a file begins as a plan does; false as well when it cannot be read. */
bool sbp_plan_file_probe(const char *path);
/* The checksum of everything in a plan, as its header has it (unchecked); 0 when it cannot be read. */
uint64_t sbp_plan_file_checksum(const char *path);
/* Reads and checks everything. Needs no guard by the caller. */
sbp_status sbp_plan_file_read(sbp_arena *arena, sbp_diag *diag, const char *path,
                              const sbp_plan_file **out) SBP_CHECKED;
/* As read, of bytes in memory; `path` is for messages. Below a guard. */
sbp_status sbp_plan_file_parse(sbp_arena *arena, sbp_diag *diag, const char *path, const void *data,
                               size_t length, const sbp_plan_file **out) SBP_CHECKED;
/* NULL when absent. */
const sbp_plan_section *sbp_plan_file_find(const sbp_plan_file *file, const char *name);

#endif
