/* run.h: a case of attention on the PTX machine. */
#ifndef SBP_TESTS_CUDA_RUN_H
#define SBP_TESTS_CUDA_RUN_H

#include "tests/cuda/attention/case.h"
#include "tests/cuda/attention/kernels.h"
#include "tests/ptx/ptx.h"

typedef struct attention_run {
    /* the caller's */
    sbp_cuda_variant variant;
    sbp_cuda_arch arch;
    sbp_ptx_options options;
    bool counts; /* fills step_counts */
    char *(*edit)(const sbp_gpu_key *key,
                  char *text); /* changes a kernel's text (and may free it); NULL: does not */
    /* what came of it */
    sbp_ptx_status status;
    uint64_t hash; /* of all outputs */
    char text[2400];
    /* What sbp_ptx_counts_print says of each step, to be freed by the caller; "" where there was none. */
    char *step_counts[SBP_CUDA_STEPS];
} attention_run;

/* Runs every step and compares: true when the machine found no fault and every output is what it should be;
 * else run->text says what is wrong. The case must have been made. */
bool attention_run_case(attention_run *run, attention_case *c);
/* Frees what was compiled. */
void attention_run_end(void);

#endif
