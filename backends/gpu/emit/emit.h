/* emit.h: a row kernel (ir/rowkernel/rowkernel.h) as text in the language of a backend.
 *
 * The text is the end of a source file, kernel included. Before it come, by the backend:
 *
 *   GLSL    prelude.glsl, rowmath.h, group.glsl (backends/vulkan/target/shaders; not for FLAT and COLUMNS)
 *   CUDA C  prelude.cuh, elements.cuh, rowmath.h, rows.cuh (backends/cuda/kernels)
 *
 * Threads: no state. */
#ifndef SBP_GPU_EMIT_H
#define SBP_GPU_EMIT_H

#include "backends/gpu/row.h"

typedef struct sbp_gpu_dialect sbp_gpu_dialect;
extern const sbp_gpu_dialect sbp_gpu_glsl, sbp_gpu_cuda;

/* Appends the text of a verified kernel. Below a guard (the arena of `out`). */
void sbp_gpu_emit_row(sbp_text *out, const sbp_rowkernel *kernel, const sbp_gpu_row_shape *shape,
                      const sbp_gpu_dialect *dialect);

/* For each operand that a command has, by its name in commands.def: q_OPERAND, q_BYTES, LOAD_q, STORE_q, and
 * INDEX_q for whole numbers; `more` adds what is the backend's own, NULL: nothing. */
typedef void sbp_gpu_define(sbp_text *out, const char *name, sbp_dtype dtype);
void sbp_gpu_define_operands(sbp_text *out, const sbp_program *program, const sbp_command *command,
                             const sbp_dtype *dtypes, sbp_gpu_define *more);

#endif
