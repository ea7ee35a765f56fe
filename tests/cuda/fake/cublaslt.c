/* cublaslt.c: a libcublasLt.so.13 that computes the matmul which it is asked for, by loops, when the stream
 * comes to it. It insists on what the headers say of attributes, sizes and alignments, and writes rubbish
 * into the workspace, as a real one may. Sums are fp32 (fp64 for R_64F), in the order of k; with
 * COMPUTE_32F_FAST_TF32 of factors that are rounded to TF32. It proposes three algorithms for each matmul,
 * whose sums are of pieces of different lengths, and a fourth that cannot be had; how long they take depends
 * on the matmul alone (fake_cuda_take_time), and the first is seldom the fastest. */
#include "tests/cuda/fake/fake.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ir/base/types.h"

enum { ALIVE = 0x5b1a5, WORKSPACE = 1 << 20, MOST_ALIGNMENT = 256, MATRICES = 4, ALGORITHMS = 3 };

/* Terms that are added before they go to the others. */
static const uint64_t terms[ALGORITHMS] = {256, 16, 5};

struct cublas_handle_handle {
    int32_t alive;
};

struct cublas_matmul_handle {
    int32_t alive, compute_type, scale_type, transposed[2];
    uint32_t epilogue;
    cuda_address bias;
};

struct cublas_layout_handle {
    int32_t alive, type;
    uint64_t rows, cols;
    int64_t stride;
};

struct cublas_preference_handle {
    int32_t alive;
    uint64_t workspace_bytes;
    uint32_t schemes, alignment[MATRICES];
};

/* What an algorithm was chosen for, hidden in its 64 bytes. */
typedef struct promise {
    uint64_t what; /* hash of the description */
    uint32_t alignment[MATRICES];
    uint64_t workspace_bytes;
    uint32_t magic, number;
} promise;

_Static_assert(sizeof(promise) <= sizeof(cublas_algorithm), "an algorithm has 64 bytes");

static cublas_status wrong(const char *what) {
    (void)fake_cuda_wrong(CUDA_INVALID_VALUE, "cuBLASLt: %s", what);
    return CUBLAS_INVALID_VALUE;
}

/* As the driver's calls fail, so do these. */
static cublas_status enter(const char *name, bool context) {
    switch (fake_cuda_enter(name, context)) {
    case CUDA_OK:
        return CUBLAS_OK;
    case CUDA_OUT_OF_MEMORY:
        return CUBLAS_ALLOC_FAILED;
    case CUDA_INVALID_CONTEXT:
        return CUBLAS_NOT_INITIALIZED;
    default:
        return CUBLAS_INTERNAL_ERROR;
    }
}

#define ENTER(context)                                                                                       \
    do {                                                                                                     \
        cublas_status entered_ = enter(__func__, context);                                                   \
        if (entered_ != CUBLAS_OK)                                                                           \
            return entered_;                                                                                 \
    } while (0)

#define SYMBOL(name, ...) FAKE_EXPORTED cublas_status name(__VA_ARGS__);
#include "backends/cuda/device/cublaslt.def"
#undef SYMBOL

/* ---- objects ---------------------------------------------------------------------------------------- */

static void *make(size_t bytes) {
    int32_t *object = calloc(1, bytes);
    if (object) {
        *object = ALIVE;
        fake_cuda_count(1);
    }
    return object;
}

static cublas_status unmake(void *object) {
    int32_t *alive = object;
    if (!alive || *alive != ALIVE)
        return wrong("an object that is not there is destroyed");
    *alive = 0;
    free(object);
    fake_cuda_count(-1);
    return CUBLAS_OK;
}

cublas_status cublasLtGetProperty(int32_t property, int32_t *value) {
    const char *words = getenv("SBP_FAKE_CUDA"), *patch = words ? strstr(words, "library=") : NULL;
    ENTER(false);
    *value = property == CUBLAS_MAJOR_VERSION   ? 13
             : property == CUBLAS_MINOR_VERSION ? 1
             : patch                            ? atoi(patch + 8)
                                                : 0;
    return CUBLAS_OK;
}

cublas_status cublasLtCreate(cublas_handle *handle) {
    ENTER(true);
    *handle = make(sizeof **handle);
    return *handle ? CUBLAS_OK : CUBLAS_ALLOC_FAILED;
}

cublas_status cublasLtDestroy(cublas_handle handle) {
    cublas_status status = enter(__func__, true);
    cublas_status gone = unmake(handle);
    return gone != CUBLAS_OK ? gone : status;
}

cublas_status cublasLtMatmulDescCreate(cublas_matmul *matmul, int32_t compute_type, int32_t scale_type) {
    ENTER(false);
    bool narrow = (compute_type == CUBLAS_SUM_32F || compute_type == CUBLAS_SUM_32F_FAST_TF32) &&
                  scale_type == CUBLAS_R_32F;
    bool wide = compute_type == CUBLAS_SUM_64F && scale_type == CUBLAS_R_64F;
    if (!narrow && !wide)
        return wrong("a compute type that the device has no use for");
    *matmul = make(sizeof **matmul);
    if (!*matmul)
        return CUBLAS_ALLOC_FAILED;
    (*matmul)->compute_type = compute_type;
    (*matmul)->scale_type = scale_type;
    (*matmul)->epilogue = CUBLAS_EPILOGUE_DEFAULT;
    return CUBLAS_OK;
}

cublas_status cublasLtMatmulDescDestroy(cublas_matmul matmul) {
    return unmake(matmul);
}

static cublas_status set(void *to, size_t to_bytes, const void *value, size_t bytes) {
    if (!value || bytes != to_bytes)
        return wrong("an attribute of another size");
    memcpy(to, value, bytes);
    return CUBLAS_OK;
}

cublas_status cublasLtMatmulDescSetAttribute(cublas_matmul p, int32_t attribute, const void *value,
                                             size_t bytes) {
    ENTER(false);
    switch (attribute) {
    case CUBLAS_MATMUL_TRANSA:
    case CUBLAS_MATMUL_TRANSB:
        return set(&p->transposed[attribute - CUBLAS_MATMUL_TRANSA], sizeof p->transposed[0], value, bytes);
    case CUBLAS_MATMUL_EPILOGUE:
        return set(&p->epilogue, sizeof p->epilogue, value, bytes);
    case CUBLAS_MATMUL_BIAS_POINTER:
        return set(&p->bias, sizeof p->bias, value, bytes);
    default:
        return wrong("an attribute of a matmul that is not known here");
    }
}

cublas_status cublasLtMatrixLayoutCreate(cublas_layout *layout, int32_t type, uint64_t rows, uint64_t cols,
                                         int64_t stride) {
    ENTER(false);
    if (rows == 0 || cols == 0 || stride < (int64_t)rows)
        return wrong("a matrix of nothing, or whose columns overlap");
    *layout = make(sizeof **layout);
    if (!*layout)
        return CUBLAS_ALLOC_FAILED;
    (*layout)->type = type;
    (*layout)->rows = rows;
    (*layout)->cols = cols;
    (*layout)->stride = stride;
    return CUBLAS_OK;
}

cublas_status cublasLtMatrixLayoutDestroy(cublas_layout layout) {
    return unmake(layout);
}

cublas_status cublasLtMatmulPreferenceCreate(cublas_preference *preference) {
    ENTER(false);
    *preference = make(sizeof **preference);
    if (!*preference)
        return CUBLAS_ALLOC_FAILED;
    (*preference)->schemes = 7;
    for (int i = 0; i < MATRICES; i++)
        (*preference)->alignment[i] = MOST_ALIGNMENT;
    return CUBLAS_OK;
}

cublas_status cublasLtMatmulPreferenceDestroy(cublas_preference preference) {
    return unmake(preference);
}

cublas_status cublasLtMatmulPreferenceSetAttribute(cublas_preference p, int32_t attribute, const void *value,
                                                   size_t bytes) {
    ENTER(false);
    switch (attribute) {
    case CUBLAS_PREFER_WORKSPACE_BYTES:
        return set(&p->workspace_bytes, sizeof p->workspace_bytes, value, bytes);
    case CUBLAS_PREFER_REDUCTION_SCHEME_MASK:
        return set(&p->schemes, sizeof p->schemes, value, bytes);
    case CUBLAS_PREFER_ALIGNMENT_A:
    case CUBLAS_PREFER_ALIGNMENT_B:
    case CUBLAS_PREFER_ALIGNMENT_C:
    case CUBLAS_PREFER_ALIGNMENT_D:
        return set(&p->alignment[attribute - CUBLAS_PREFER_ALIGNMENT_A], sizeof p->alignment[0], value,
                   bytes);
    default:
        return wrong("a preference that is not known here");
    }
}

/* ---- what is described ------------------------------------------------------------------------------ */

typedef struct matrix {
    uint64_t rows, cols;
    int64_t stride;
    int32_t type;
    bool transposed;
} matrix;

typedef struct described {
    matrix m[MATRICES]; /* a, b, c, d */
    uint64_t n[3];      /* rows and columns of d, terms of a sum */
    int32_t compute_type;
    uint32_t epilogue;
} described;

static sbp_dtype dtype_of(int32_t type) {
    switch (type) {
    case CUBLAS_R_64F:
        return SBP_F64;
    case CUBLAS_R_16BF:
        return SBP_BF16;
    case CUBLAS_R_16F:
        return SBP_F16;
    default:
        return SBP_F32;
    }
}

static bool types_agree(const described *x) {
    int32_t a = x->m[0].type, c = x->m[2].type;
    bool wide = x->compute_type == CUBLAS_SUM_64F;
    if (a != x->m[1].type || c != x->m[3].type ||
        (wide && (a != CUBLAS_R_64F || x->epilogue == CUBLAS_EPILOGUE_BIAS)))
        return false;
    return wide ? c == CUBLAS_R_64F : a != CUBLAS_R_64F && (c == a || c == CUBLAS_R_32F);
}

/* False when it is no matmul. */
static bool describe(cublas_matmul p, const cublas_layout layouts[MATRICES], described *x) {
    memset(x, 0, sizeof *x);
    for (int i = 0; i < MATRICES; i++) {
        if (!layouts[i] || layouts[i]->alive != ALIVE)
            return false;
        x->m[i].rows = layouts[i]->rows;
        x->m[i].cols = layouts[i]->cols;
        x->m[i].stride = layouts[i]->stride;
        x->m[i].type = layouts[i]->type;
        x->m[i].transposed = i < 2 && p->transposed[i] == CUBLAS_TRANSPOSED;
    }
    const matrix *a = &x->m[0], *b = &x->m[1], *c = &x->m[2], *d = &x->m[3];
    x->compute_type = p->compute_type;
    x->epilogue = p->epilogue;
    x->n[0] = d->rows;
    x->n[1] = d->cols;
    x->n[2] = a->transposed ? a->rows : a->cols;
    return (a->transposed ? a->cols : a->rows) == d->rows && (b->transposed ? b->rows : b->cols) == d->cols &&
           (b->transposed ? b->cols : b->rows) == x->n[2] && c->rows == d->rows && c->cols == d->cols &&
           types_agree(x);
}

cublas_status cublasLtMatmulAlgoGetHeuristic(cublas_handle handle, cublas_matmul matmul, cublas_layout a,
                                             cublas_layout b, cublas_layout c, cublas_layout d,
                                             cublas_preference preference, int32_t wanted,
                                             cublas_choice *choices, int32_t *found) {
    described x;
    promise p;
    ENTER(true);
    *found = 0;
    if (!handle || handle->alive != ALIVE || wanted < 1)
        return wrong("no handle, or no algorithm is wanted");
    if (!describe(matmul, (const cublas_layout[]){a, b, c, d}, &x))
        return wrong("matrices that do not fit each other, or types that it does not have");
    if (preference->schemes != CUBLAS_REDUCTION_NONE || preference->workspace_bytes < WORKSPACE)
        return wrong("sums may be split, or there is no workspace");
    memset(&p, 0, sizeof p);
    p.what = sbp_hash_bytes(&x, sizeof x, 0);
    memcpy(p.alignment, preference->alignment, sizeof p.alignment);
    p.workspace_bytes = WORKSPACE;
    p.magic = ALIVE;
    if (fake_cuda_number("no-algorithm", -1) >= 0)
        return CUBLAS_NOT_SUPPORTED;
    for (; *found < wanted && *found <= ALGORITHMS; (*found)++) {
        cublas_choice *choice = &choices[*found];
        p.number = (uint32_t)*found;
        memset(choice, 0, sizeof *choice);
        memcpy(choice->algorithm.data, &p, sizeof p);
        choice->workspace_bytes = WORKSPACE;
        choice->state = p.number < ALGORITHMS ? CUBLAS_OK : CUBLAS_NOT_SUPPORTED;
        choice->waves = 1;
    }
    return CUBLAS_OK;
}

cublas_status cublasLtMatmulAlgoCheck(cublas_handle handle, cublas_matmul matmul, cublas_layout a,
                                      cublas_layout b, cublas_layout c, cublas_layout d,
                                      const cublas_algorithm *algorithm, cublas_choice *result) {
    described x;
    promise p;
    ENTER(true);
    if (!handle || handle->alive != ALIVE || !algorithm || !result)
        return wrong("no handle, or no algorithm to check");
    if (!describe(matmul, (const cublas_layout[]){a, b, c, d}, &x))
        return wrong("matrices that do not fit each other, or types that it does not have");
    memcpy(&p, algorithm->data, sizeof p);
    if (p.magic != ALIVE || p.number >= ALGORITHMS || p.what != sbp_hash_bytes(&x, sizeof x, 0))
        return CUBLAS_NOT_SUPPORTED;
    result->algorithm = *algorithm;
    result->workspace_bytes = p.workspace_bytes;
    result->state = CUBLAS_OK;
    return CUBLAS_OK;
}

/* ---- matmuls --------------------------------------------------------------------------------------- */

typedef struct multiplying {
    described x;
    double alpha, beta;
    cuda_address addresses[MATRICES], bias, workspace;
    uint64_t terms;
    double ms;
} multiplying;

static uint64_t bytes_of(const matrix *m) {
    return ((m->cols - 1) * (uint64_t)m->stride + m->rows) * (uint64_t)sbp_dtype_bytes(dtype_of(m->type));
}

static const void *column(const matrix *m, const void *data, uint64_t j) {
    return (const char *)data + j * (uint64_t)m->stride * (uint64_t)sbp_dtype_bytes(dtype_of(m->type));
}

/* Row-major op(m), so that the rows that are added lie in one piece. */
static double *unpack(const matrix *m, const void *data) {
    const sbp_dtype dtype = dtype_of(m->type);
    double *out = malloc(m->rows * m->cols * sizeof *out);
    for (uint64_t j = 0; out && j < m->cols; j++)
        for (uint64_t i = 0; i < m->rows; i++)
            out[m->transposed ? j * m->rows + i : i * m->cols + j] =
                sbp_element_get(column(m, data, j), dtype, (int64_t)i);
    return out;
}

/* To 10 bits of mantissa, as tensor cores take numbers of fp32. */
static void round_tf32(double *x, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
        float f = (float)x[i];
        uint32_t bits;
        memcpy(&bits, &f, sizeof bits);
        bits = (bits + 0x1000) & 0xffffe000u;
        memcpy(&f, &bits, sizeof bits);
        x[i] = (double)f;
    }
}

/* Sums in fp32, `at_once` terms at a time, as tiles do. */
static void add_narrow(const double *a, const double *b, const uint64_t n[3], uint64_t at_once, double *out,
                       float *sums) {
    for (uint64_t i = 0; i < n[0]; i++)
        for (uint64_t k0 = 0; k0 < n[2]; k0 += at_once) {
            memset(sums, 0, n[1] * sizeof *sums);
            for (uint64_t k = k0; k < n[2] && k < k0 + at_once; k++)
                for (uint64_t j = 0; j < n[1]; j++)
                    sums[j] += (float)a[i * n[2] + k] * (float)b[k * n[1] + j];
            for (uint64_t j = 0; j < n[1]; j++)
                out[i * n[1] + j] += (double)sums[j];
        }
}

static void add_wide(const double *a, const double *b, const uint64_t n[3], double *out) {
    for (uint64_t i = 0; i < n[0]; i++)
        for (uint64_t k = 0; k < n[2]; k++)
            for (uint64_t j = 0; j < n[1]; j++)
                out[i * n[1] + j] += a[i * n[2] + k] * b[k * n[1] + j];
}

static cublas_status store(const multiplying *m, const double *sums, const void *const *memory) {
    const described *x = &m->x;
    const matrix *c = &x->m[2], *d = &x->m[3];
    const sbp_dtype dtype = dtype_of(d->type);
    const void *bias = NULL;
    const uint64_t bias_bytes = x->n[0] * (uint64_t)sbp_dtype_bytes(dtype);
    if (x->epilogue == CUBLAS_EPILOGUE_BIAS &&
        !(bias = fake_cuda_memory(m->bias, bias_bytes, "a matmul's bias")))
        return CUBLAS_EXECUTION_FAILED;
    for (uint64_t j = 0; j < x->n[1]; j++) {
        void *to = (void *)(uintptr_t)column(d, memory[3], j);
        for (uint64_t i = 0; i < x->n[0]; i++) {
            double value = m->alpha * sums[i * x->n[1] + j];
            if (m->beta != 0)
                value += m->beta * sbp_element_get(column(c, memory[2], j), dtype, (int64_t)i);
            if (bias)
                value += sbp_element_get(bias, dtype, (int64_t)i);
            sbp_element_set(to, dtype, (int64_t)i, value);
        }
        fake_cuda_written(m->addresses[3] + j * (uint64_t)d->stride * (uint64_t)sbp_dtype_bytes(dtype),
                          bias_bytes);
    }
    return CUBLAS_OK;
}

static cuda_result multiply_now(void *data) {
    static const char *const names[] = {"a matmul's A", "a matmul's B", "a matmul's C", "a matmul's D"};
    const multiplying *m = data;
    const described *x = &m->x;
    const void *memory[MATRICES];
    for (int i = 0; i < MATRICES; i++)
        if (!(memory[i] = fake_cuda_memory(m->addresses[i], bytes_of(&x->m[i]), names[i])))
            return CUDA_ILLEGAL_ADDRESS;
    void *workspace = fake_cuda_memory(m->workspace, WORKSPACE, "a matmul's workspace");
    if (!workspace)
        return CUDA_ILLEGAL_ADDRESS;
    memset(workspace, 0xee, WORKSPACE);
    double *a = unpack(&x->m[0], memory[0]), *b = unpack(&x->m[1], memory[1]);
    double *sums = calloc(x->n[0] * x->n[1], sizeof *sums);
    float *row = malloc(x->n[1] * sizeof *row);
    cublas_status status = CUBLAS_ALLOC_FAILED;
    if (a && b && sums && row) {
        if (x->compute_type == CUBLAS_SUM_32F_FAST_TF32 && x->m[0].type == CUBLAS_R_32F) {
            round_tf32(a, x->n[0] * x->n[2]);
            round_tf32(b, x->n[1] * x->n[2]);
        }
        if (x->compute_type == CUBLAS_SUM_64F)
            add_wide(a, b, x->n, sums);
        else
            add_narrow(a, b, x->n, m->terms, sums, row);
        fake_cuda_take_time(m->ms);
        status = store(m, sums, memory);
    }
    free(a);
    free(b);
    free(sums);
    free(row);
    return status == CUBLAS_OK ? CUDA_OK : CUDA_LAUNCH_FAILED;
}

/* Whether the matrices lie as was promised when the algorithm was chosen. */
static bool is_aligned(const described *x, const cuda_address *addresses, const promise *p) {
    for (int i = 0; i < MATRICES; i++) {
        uint64_t stride = (uint64_t)x->m[i].stride * (uint64_t)sbp_dtype_bytes(dtype_of(x->m[i].type));
        uint32_t promised = p->alignment[i];
        if (promised == 0 || (promised & (promised - 1)) || addresses[i] % promised || stride % promised)
            return false;
    }
    return true;
}

/* Milliseconds: by the matmul, and up to twice that by the algorithm. */
static double time_of(const described *x, uint32_t number) {
    double matmuls = (double)x->n[0] * (double)x->n[1] * (double)x->n[2];
    return (0.004 + matmuls * 1e-9) * (1 + (double)(sbp_hash_bytes(x, sizeof *x, number + 1) % 1000) / 1000);
}

cublas_status cublasLtMatmul(cublas_handle handle, cublas_matmul matmul, const void *alpha, cuda_address a,
                             cublas_layout a_layout, cuda_address b, cublas_layout b_layout, const void *beta,
                             cuda_address c, cublas_layout c_layout, cuda_address d, cublas_layout d_layout,
                             const cublas_algorithm *algorithm, void *workspace, size_t workspace_bytes,
                             cuda_stream stream) {
    multiplying m;
    promise p;
    ENTER(true);
    memset(&m, 0, sizeof m);
    if (!handle || handle->alive != ALIVE || !algorithm)
        return wrong("no handle or algorithm");
    if (!describe(matmul, (const cublas_layout[]){a_layout, b_layout, c_layout, d_layout}, &m.x))
        return wrong("matrices that do not fit each other");
    memcpy(&p, algorithm->data, sizeof p);
    memcpy(m.addresses, (const cuda_address[]){a, b, c, d}, sizeof m.addresses);
    if (p.magic != ALIVE || p.number >= ALGORITHMS || p.what != sbp_hash_bytes(&m.x, sizeof m.x, 0))
        return wrong("an algorithm that was chosen for something else");
    if (!is_aligned(&m.x, m.addresses, &p))
        return wrong("a matrix that is aligned less than was promised");
    if (workspace_bytes < p.workspace_bytes || (uintptr_t)workspace % 256)
        return wrong("a workspace that is too small, or not aligned");
    if (c == d && c_layout->stride != d_layout->stride)
        return wrong("in place, with different strides");
    bool wide = m.x.compute_type == CUBLAS_SUM_64F;
    m.alpha = wide ? *(const double *)alpha : (double)*(const float *)alpha;
    m.beta = wide ? *(const double *)beta : (double)*(const float *)beta;
    m.bias = matmul->bias;
    m.workspace = (cuda_address)(uintptr_t)workspace;
    m.terms = terms[p.number];
    m.ms = time_of(&m.x, p.number);
    fake_cuda_count_matmul();
    fake_cuda_log("cublasLtMatmul %s = %g %s%s %s%s + %g %s%s%s, types %d %d, %llu x %llu x %llu, s%d",
                  fake_cuda_place(d), m.alpha, fake_cuda_place(a), m.x.m[0].transposed ? "'" : "",
                  fake_cuda_place(b), m.x.m[1].transposed ? "'" : "", m.beta, fake_cuda_place(c),
                  m.x.epilogue == CUBLAS_EPILOGUE_BIAS ? " + " : "",
                  m.x.epilogue == CUBLAS_EPILOGUE_BIAS ? fake_cuda_place(m.bias) : "", m.x.m[0].type,
                  m.x.m[3].type, (unsigned long long)m.x.n[0], (unsigned long long)m.x.n[1],
                  (unsigned long long)m.x.n[2], fake_cuda_stream(stream));
    return fake_cuda_enqueue(stream, multiply_now, &m, sizeof m) == CUDA_OK ? CUBLAS_OK
                                                                            : CUBLAS_INTERNAL_ERROR;
}
