/* cuda_api.h: as much of the interfaces of CUDA's driver and of cuBLASLt as the device uses, declared by
 * ourselves, so that neither's headers are needed to build. Values and layouts are those of CUDA 12 and 13,
 * which do not change them; where the toolkit is installed, tests/cuda compares them with its headers.
 *
 * Handles are pointers to nothing; device addresses are numbers. All calls use the C convention of x86-64 and
 * arm64. Private to backends/cuda/device and tests/cuda. */
#ifndef SBP_CUDA_API_H
#define SBP_CUDA_API_H

#include <stddef.h>
#include <stdint.h>

/* ---- the driver ------------------------------------------------------------------------------------- */

enum { CUDA_ABI = 12000 }; /* cuGetProcAddress: functions as they were in CUDA 12.0 */

typedef uint64_t cuda_address; /* CUdeviceptr */
typedef struct cuda_context_handle *cuda_context;
typedef struct cuda_module_handle *cuda_module;
typedef struct cuda_function_handle *cuda_function;
typedef struct cuda_stream_handle *cuda_stream;
typedef struct cuda_event_handle *cuda_event;

/* CUresult. Those that the device tells apart. */
typedef enum cuda_result {
    CUDA_OK = 0,
    CUDA_INVALID_VALUE = 1,
    CUDA_OUT_OF_MEMORY = 2,
    CUDA_NOT_INITIALIZED = 3,
    CUDA_STUB_LIBRARY = 34,
    CUDA_NEWER_DRIVER_NEEDED = 36,
    CUDA_DEVICE_UNAVAILABLE = 46,
    CUDA_NO_DEVICE = 100,
    CUDA_INVALID_DEVICE = 101,
    CUDA_INVALID_IMAGE = 200,
    CUDA_INVALID_CONTEXT = 201,
    CUDA_MAP_FAILED = 205,
    CUDA_NO_BINARY = 209,
    CUDA_ECC_UNCORRECTABLE = 214,
    CUDA_INVALID_PTX = 218,
    CUDA_JIT_COMPILER_NOT_FOUND = 221,
    CUDA_UNSUPPORTED_PTX_VERSION = 222,
    CUDA_JIT_DISABLED = 223,
    CUDA_OPERATING_SYSTEM = 304,
    CUDA_INVALID_HANDLE = 400,
    CUDA_NOT_FOUND = 500,
    CUDA_NOT_READY = 600,
    CUDA_ILLEGAL_ADDRESS = 700,
    CUDA_LAUNCH_OUT_OF_RESOURCES = 701,
    CUDA_LAUNCH_TIMEOUT = 702,
    CUDA_MISALIGNED_ADDRESS = 716,
    CUDA_LAUNCH_FAILED = 719,
    CUDA_NOT_PERMITTED = 800,
    CUDA_NOT_SUPPORTED = 801,
    CUDA_SYSTEM_NOT_READY = 802,
    CUDA_DRIVER_MISMATCH = 803,
    CUDA_UNKNOWN = 999
} cuda_result;

enum { /* CUdevice_attribute */
       CUDA_ATTRIBUTE_MULTIPROCESSORS = 16,
       CUDA_ATTRIBUTE_CAPABILITY_MAJOR = 75,
       CUDA_ATTRIBUTE_CAPABILITY_MINOR = 76,
       CUDA_ATTRIBUTE_SHARED_BYTES_OPTIN = 97 /* most of a block after cuFuncSetAttribute */
};

enum {
    CUDA_HOST_ALLOC_PORTABLE = 1,       /* CU_MEMHOSTALLOC_ */
    CUDA_STREAM_NON_BLOCKING = 1,       /* CU_STREAM_: not behind the default stream */
    CUDA_EVENT_DISABLE_TIMING = 2,      /* CU_EVENT_ */
    CUDA_FUNCTION_DYNAMIC_SHARED = 8,   /* CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES */
    CUDA_JIT_ERROR_LOG = 5,             /* CU_JIT_ERROR_LOG_BUFFER */
    CUDA_JIT_ERROR_LOG_BYTES = 6,       /* CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES */
    CUDA_SHARED_BYTES_ALWAYS = 48 << 10 /* dynamic shared memory that needs no attribute */
};

enum { CUDA_MEMORY_HOST = 1, CUDA_MEMORY_DEVICE = 2 }; /* CUmemorytype */

/* CUDA_MEMCPY2D: Height rows of WidthInBytes, each a pitch of bytes from the next. */
typedef struct cuda_copy_2d {
    size_t from_x, from_y;
    int32_t from_type;
    const void *from_host;
    cuda_address from_device;
    void *from_array;
    size_t from_pitch;
    size_t to_x, to_y;
    int32_t to_type;
    void *to_host;
    cuda_address to_device;
    void *to_array;
    size_t to_pitch;
    size_t width_bytes, height;
} cuda_copy_2d;

/* CUtensorMap: opaque; a parameter of a kernel. */
typedef struct cuda_tensor_map {
    _Alignas(128) uint64_t opaque[16];
} cuda_tensor_map;

enum { /* CUtensorMapDataType */
       CUDA_TENSOR_UINT8 = 0,
       CUDA_TENSOR_INT32 = 3,
       CUDA_TENSOR_FLOAT16 = 6,
       CUDA_TENSOR_FLOAT32 = 7,
       CUDA_TENSOR_FLOAT64 = 8,
       CUDA_TENSOR_BFLOAT16 = 9
};
enum { /* CUtensorMapSwizzle */
       CUDA_SWIZZLE_NONE = 0,
       CUDA_SWIZZLE_32B = 1,
       CUDA_SWIZZLE_64B = 2,
       CUDA_SWIZZLE_128B = 3
};
enum {
    CUDA_INTERLEAVE_NONE = 0,
    CUDA_L2_PROMOTION_128B = 2,
    CUDA_OUTSIDE_IS_ZERO = 0, /* CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE */
    CUDA_TENSOR_RANK = 5,     /* most dimensions of a map */
    CUDA_TENSOR_BOX = 256     /* most elements of a box in one dimension */
};

/* The table: functions by their plain names; the one that finds the others is not in it. */
typedef struct cuda_calls {
#define SYMBOL(name, suffix, ...) cuda_result (*name)(__VA_ARGS__);
#include "backends/cuda/device/cuda.def"
#undef SYMBOL
} cuda_calls;

/* "cuGetProcAddress_v2" of libcuda.so.1; status, which may be NULL, gets 0 or why there is none. */
typedef cuda_result cuda_get_address(const char *name, void **function, int32_t version, uint64_t flags,
                                     int32_t *status);

/* ---- cuBLASLt --------------------------------------------------------------------------------------- */

typedef struct cublas_handle_handle *cublas_handle;
typedef struct cublas_matmul_handle *cublas_matmul;         /* cublasLtMatmulDesc_t */
typedef struct cublas_layout_handle *cublas_layout;         /* cublasLtMatrixLayout_t: column-major */
typedef struct cublas_preference_handle *cublas_preference; /* cublasLtMatmulPreference_t */

typedef enum cublas_status {
    CUBLAS_OK = 0,
    CUBLAS_NOT_INITIALIZED = 1,
    CUBLAS_ALLOC_FAILED = 3,
    CUBLAS_INVALID_VALUE = 7,
    CUBLAS_ARCH_MISMATCH = 8,
    CUBLAS_EXECUTION_FAILED = 13,
    CUBLAS_INTERNAL_ERROR = 14,
    CUBLAS_NOT_SUPPORTED = 15
} cublas_status;

enum { CUBLAS_R_32F = 0, CUBLAS_R_64F = 1, CUBLAS_R_16F = 2, CUBLAS_R_16BF = 14 }; /* cudaDataType */
enum { CUBLAS_SUM_32F = 68, CUBLAS_SUM_64F = 70, CUBLAS_SUM_32F_FAST_TF32 = 77 };  /* cublasComputeType_t */
enum { CUBLAS_AS_IS = 0, CUBLAS_TRANSPOSED = 1 };                                  /* cublasOperation_t */
enum { CUBLAS_EPILOGUE_DEFAULT = 1, CUBLAS_EPILOGUE_BIAS = 4 };
enum { CUBLAS_REDUCTION_NONE = 0 };
enum { CUBLAS_MAJOR_VERSION, CUBLAS_MINOR_VERSION, CUBLAS_PATCH_LEVEL }; /* libraryPropertyType */

enum {                                   /* cublasLtMatmulDescAttributes_t, with the size of their values */
       CUBLAS_MATMUL_TRANSA = 3,         /* int32 */
       CUBLAS_MATMUL_TRANSB = 4,         /* int32 */
       CUBLAS_MATMUL_EPILOGUE = 7,       /* uint32 */
       CUBLAS_MATMUL_BIAS_POINTER = 8,   /* device address: a number per row of D */
       CUBLAS_MATMUL_BIAS_DATA_TYPE = 26 /* int32; by default D's */
};
enum {                                          /* cublasLtMatmulPreferenceAttributes_t */
       CUBLAS_PREFER_WORKSPACE_BYTES = 1,       /* uint64; by default 0 */
       CUBLAS_PREFER_REDUCTION_SCHEME_MASK = 3, /* uint32 */
       CUBLAS_PREFER_ALIGNMENT_A = 5,           /* uint32, and B, C, D behind it; by default 256 */
       CUBLAS_PREFER_ALIGNMENT_B = 6,
       CUBLAS_PREFER_ALIGNMENT_C = 7,
       CUBLAS_PREFER_ALIGNMENT_D = 8
};

typedef struct cublas_algorithm {
    uint64_t data[8];
} cublas_algorithm;

typedef struct cublas_choice { /* cublasLtMatmulHeuristicResult_t */
    cublas_algorithm algorithm;
    size_t workspace_bytes;
    cublas_status state;
    float waves;
    int32_t reserved[4];
} cublas_choice;

typedef struct cublas_calls {
#define SYMBOL(name, ...) cublas_status (*name)(__VA_ARGS__);
#include "backends/cuda/device/cublaslt.def"
#undef SYMBOL
} cublas_calls;

#endif
