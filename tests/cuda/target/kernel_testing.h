/* kernel_testing.h: what tests of CUDA kernels share: single commands as programs, their kernels compiled. */
#ifndef SBP_TESTS_CUDA_KERNEL_TESTING_H
#define SBP_TESTS_CUDA_KERNEL_TESTING_H

#include "backends/cuda/target/target.h"
#include "tests/common/testing.h"

/* A command of every kind but row, with operands of some types: how they are called in the
 * golden table follows from their keys. */
typedef struct kernel_case {
    sbp_command_kind kind;
    sbp_dtype dtypes[SBP_MAX_COMMAND_OPERANDS]; /* of its operands; SBP_DTYPE_COUNT: absent */
    bool ta, tb;
    sbp_reduce_op op;
    int32_t head; /* attention, delta_rule: columns of one */
    bool corrects;
} kernel_case;

extern const kernel_case kernel_cases[];
extern const int32_t kernel_case_count;

/* The program of such a command. */
sbp_program *kernel_program(testing *t, const kernel_case *c);

/* Prints "skipped: .." and is false where there is no NVRTC. */
bool kernels_can_compile(void);

/* The kernels of a program for these architectures ("sm_80,sm_90a"), all compiled and without a fault;
 * kernels_compile fails the test otherwise. */
typedef struct kernel_set {
    sbp_cuda_source *sources;
    sbp_cuda_object *objects;
    int32_t count, compiled;
} kernel_set;
/* The same; false, and the diagnostics say why, when one does not compile. To be freed in any case. */
bool kernels_try(testing *t, const sbp_program *program, const char *archs, kernel_set *out);
kernel_set kernels_compile(testing *t, const sbp_program *program, const char *archs);
void kernels_free(kernel_set *set);
/* What kernels take, a line each, in the order of sources; and the lines against a file, which
 * SBP_UPDATE_GOLDENS=1 writes anew. The table is of one version of NVRTC; others may take other registers,
 * but never spill. */
void kernels_describe(testing *t, const kernel_set *set, sbp_text *out);
void kernels_compare(testing *t, const char *lines, const char *table);
/* "copy.2 sm_80" */
void kernel_name(const sbp_cuda_source *source, char text[SBP_GPU_NAME + 16]);

#endif
