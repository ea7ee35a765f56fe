/* nccl_api.h: as much of NCCL's interface as the device uses, declared by ourselves, so that its header is
 * not needed to build. Values and layouts are those of NCCL 2.18 and later; where nccl.h is installed,
 * tests/cuda compares them with it. Private to backends/cuda/device and tests/cuda. */
#ifndef SBP_CUDA_NCCL_API_H
#define SBP_CUDA_NCCL_API_H

#include <limits.h>

#include "backends/cuda/device/cuda_api.h"

typedef struct nccl_comm_handle *nccl_comm; /* ncclComm_t */

typedef struct nccl_id { /* ncclUniqueId */
    char bytes[128];
} nccl_id;

typedef enum nccl_result { /* ncclResult_t */
                           NCCL_OK = 0,
                           NCCL_CUDA_ERROR = 1,
                           NCCL_SYSTEM_ERROR = 2,
                           NCCL_INTERNAL_ERROR = 3,
                           NCCL_INVALID_ARGUMENT = 4,
                           NCCL_INVALID_USAGE = 5,
                           NCCL_REMOTE_ERROR = 6,
                           NCCL_IN_PROGRESS = 7
} nccl_result;

enum {
    NCCL_BYTES = 1, /* ncclUint8 */
    NCCL_F32 = 7,
    NCCL_F64 = 8,
    NCCL_SUM = 0,
    NCCL_CONFIG_MAGIC = (int)0xcafebeef,
    NCCL_UNDEFINED = INT_MIN,
    NCCL_OLDEST = 21800,        /* that has all of this (NCCL_VERSION_CODE) */
    NCCL_ORDERS = 22600,        /* from here on it can put what several communicators do in order */
    NCCL_SHARED_DEVICES = 23000 /* from here on several ranks may share a device, when told to */
};

/* ncclConfig_t as it was in 2.18: later ones take it by its size and version. */
typedef struct nccl_config {
    size_t size;
    uint32_t magic, version;
    int32_t blocking, cga_cluster_size, min_ctas, max_ctas;
    const char *net_name;
    int32_t split_share;
} nccl_config;

#define NCCL_CONFIG                                                                                          \
    {                                                                                                        \
        sizeof(nccl_config), (uint32_t)NCCL_CONFIG_MAGIC, NCCL_OLDEST, 0, NCCL_UNDEFINED, NCCL_UNDEFINED,    \
            NCCL_UNDEFINED, NULL, NCCL_UNDEFINED                                                             \
    }

/* The functions, by their names. */
typedef struct nccl_calls {
#define SYMBOL(name, ...) nccl_result (*name)(__VA_ARGS__);
#include "backends/cuda/device/nccl.def"
#undef SYMBOL
    const char *(*ncclGetErrorString)(nccl_result result);
    const char *(*ncclGetLastError)(nccl_comm comm);
} nccl_calls;

#endif
