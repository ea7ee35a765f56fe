/* blas.h: matmuls as cuBLASLt is asked for them; what blas.c (running) and tune.c (choosing by measuring)
 * share. */
#ifndef SBP_CUDA_BLAS_H
#define SBP_CUDA_BLAS_H

#include "backends/cuda/device/cuda.h"

enum { BLAS_A_FACTOR, BLAS_B_FACTOR, BLAS_ADDEND, BLAS_RESULT, BLAS_LAYOUTS };

/* What a matmul is described by while it is asked for and run. */
typedef struct blas_description {
    cublas_matmul matmul;
    cublas_layout layouts[BLAS_LAYOUTS];
    cublas_preference preference;
} blas_description;

typedef struct blas_matmul {
    cuda_blas_shape shape;
    cuda_address a, b, c, d, bias; /* as the program has them; c is d where there is none */
    double alpha, beta;
} blas_matmul;

/* A command as a matmul. */
blas_matmul cuda_blas_matmul_of(const cuda_device *d, const sbp_dispatch *dispatch);
/* *out zeroed before, destroyed in any case. */
sbp_status cuda_blas_describe(cuda_device *d, const blas_matmul *p, blas_description *out,
                              sbp_diag *diag) SBP_CHECKED;
void cuda_blas_description_destroy(cuda_device *d, blas_description *x);
/* What the library proposes under our constraints, the best first: at most `most`. */
sbp_status cuda_blas_propose(cuda_device *d, const blas_matmul *p, blas_description *x, int32_t most,
                             cublas_choice *out, int32_t *count, sbp_diag *diag) SBP_CHECKED;
/* Submits it. */
sbp_status cuda_blas_run(cuda_device *d, const blas_matmul *p, const blas_description *x,
                         const cublas_algorithm *algorithm, sbp_diag *diag) SBP_CHECKED;
sbp_status cuda_blas_fail(cuda_device *d, cublas_status status, const char *what, sbp_diag *diag);
/* Leaves the calling function unless the call succeeded. */
#define BLAS_TRY(d, diag, call)                                                                              \
    do {                                                                                                     \
        cublas_status blas_status_ = (d)->blas.calls.call;                                                   \
        if (blas_status_ != CUBLAS_OK)                                                                       \
            return cuda_blas_fail(d, blas_status_, #call, diag);                                             \
    } while (0)

/* Choices that were measured: that of a shape, NULL: none; one more. */
const cuda_blas_choice *cuda_blas_find_choice(const cuda_blas *blas, const cuda_blas_shape *shape);
sbp_status cuda_blas_add_choice(cuda_device *d, const cuda_blas_choice *choice, sbp_diag *diag) SBP_CHECKED;

#endif
