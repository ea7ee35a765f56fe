/* test_cuda_interfaces.c: our tables of NVIDIA's functions against the libraries themselves, where they are
 * installed: the toolkit's stub of the driver, which has every symbol, and cuBLASLt and NCCL, of which some
 * needs no driver. */
#include "tests/cuda/device/testing.h"

#include "backends/cuda/device/nccl.h"
#include "backends/cuda/library.h"

#define STUB "/usr/local/cuda/lib64/stubs/libcuda.so"

static const char *const driver_symbols[] = {
#define SYMBOL(name, suffix, ...) #name #suffix,
#include "backends/cuda/device/cuda.def"
#undef SYMBOL
    "cuGetProcAddress_v2"};

static void test_driver_symbols(void **state) {
    (void)state;
    void *stub = dlopen(STUB, RTLD_NOW | RTLD_LOCAL);
    if (!stub) {
        print_message("skipped: the driver's names: there is no " STUB "\n");
        skip();
    }
    for (size_t i = 0; i < sizeof driver_symbols / sizeof *driver_symbols; i++)
        if (!dlsym(stub, driver_symbols[i]))
            fail_msg("no %s", driver_symbols[i]);
    dlclose(stub);
}

static const sbp_cuda_symbol blas_symbols[] = {
#define SYMBOL(name, ...) {#name, offsetof(cublas_calls, name)},
#include "backends/cuda/device/cublaslt.def"
#undef SYMBOL
};

#define WORKS(call) assert_int_equal(call, CUBLAS_OK)

/* Attributes have the sizes that we give them, and no others. */
static void test_blas_descriptions(void **state) {
    (void)state;
    sbp_diag *diag = sbp_diag_create();
    sbp_cuda_library library;
    cublas_calls blas;
    cublas_matmul matmul;
    cublas_layout layout;
    cublas_preference preference;
    const int32_t transposed = CUBLAS_TRANSPOSED;
    const uint32_t epilogue = CUBLAS_EPILOGUE_BIAS, none = CUBLAS_REDUCTION_NONE, alignment = 2;
    const uint64_t bytes = 32 << 20;
    const cuda_address bias = 4096;
    if (sbp_cuda_library_open(SBP_CUDA_CUBLASLT, diag, &library) != SBP_OK) {
        print_message("skipped: descriptions of cuBLASLt: %s", sbp_diag_text(diag, SBP_ERROR));
        sbp_diag_destroy(diag);
        skip();
    }
    assert_int_equal(sbp_cuda_library_symbols(&library, blas_symbols, SBP_COUNT(blas_symbols), &blas, diag),
                     SBP_OK);
    WORKS(blas.cublasLtMatmulDescCreate(&matmul, CUBLAS_SUM_32F, CUBLAS_R_32F));
    WORKS(blas.cublasLtMatmulDescSetAttribute(matmul, CUBLAS_MATMUL_TRANSA, &transposed, 4));
    WORKS(blas.cublasLtMatmulDescSetAttribute(matmul, CUBLAS_MATMUL_TRANSB, &transposed, 4));
    WORKS(blas.cublasLtMatmulDescSetAttribute(matmul, CUBLAS_MATMUL_EPILOGUE, &epilogue, 4));
    WORKS(blas.cublasLtMatmulDescSetAttribute(matmul, CUBLAS_MATMUL_BIAS_POINTER, &bias, 8));
    assert_int_not_equal(blas.cublasLtMatmulDescSetAttribute(matmul, CUBLAS_MATMUL_BIAS_POINTER, &bias, 4),
                         0);
    assert_int_not_equal(blas.cublasLtMatmulDescSetAttribute(matmul, CUBLAS_MATMUL_TRANSA, &bytes, 8), 0);
    WORKS(blas.cublasLtMatrixLayoutCreate(&layout, CUBLAS_R_16BF, 128, 64, 136));
    WORKS(blas.cublasLtMatmulPreferenceCreate(&preference));
    WORKS(blas.cublasLtMatmulPreferenceSetAttribute(preference, CUBLAS_PREFER_WORKSPACE_BYTES, &bytes, 8));
    WORKS(
        blas.cublasLtMatmulPreferenceSetAttribute(preference, CUBLAS_PREFER_REDUCTION_SCHEME_MASK, &none, 4));
    for (int32_t a = CUBLAS_PREFER_ALIGNMENT_A; a <= CUBLAS_PREFER_ALIGNMENT_D; a++)
        WORKS(blas.cublasLtMatmulPreferenceSetAttribute(preference, a, &alignment, 4));
    assert_int_not_equal(
        blas.cublasLtMatmulPreferenceSetAttribute(preference, CUBLAS_PREFER_ALIGNMENT_A, &bytes, 8), 0);
    WORKS(blas.cublasLtMatmulPreferenceDestroy(preference));
    WORKS(blas.cublasLtMatrixLayoutDestroy(layout));
    WORKS(blas.cublasLtMatmulDescDestroy(matmul));
    sbp_cuda_library_close(&library);
    sbp_diag_destroy(diag);
}

/* NCCL's functions are there, and a world that is named has that name on every rank. */
static void test_nccl(void **state) {
    (void)state;
    sbp_diag *diag = sbp_diag_create();
    cuda_nccl nccl;
    nccl_id one, other;
    if (cuda_nccl_open(&nccl, diag) != SBP_OK) {
        print_message("skipped: functions of NCCL: %s", sbp_diag_text(diag, SBP_ERROR));
        sbp_diag_destroy(diag);
        skip();
    }
    setenv("NCCL_COMM_ID", "127.0.0.1:29501", 1);
    assert_int_equal(cuda_nccl_new_id(&nccl, &one, diag), SBP_OK);
    assert_int_equal(cuda_nccl_new_id(&nccl, &other, diag), SBP_OK);
    unsetenv("NCCL_COMM_ID");
    assert_memory_equal(&one, &other, sizeof one);
    print_message("NCCL %d\n", nccl.version);
    cuda_nccl_close(&nccl);
    sbp_diag_destroy(diag);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_driver_symbols),
                                       cmocka_unit_test(test_blas_descriptions), cmocka_unit_test(test_nccl)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
