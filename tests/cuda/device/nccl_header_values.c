/* nccl_header_values.c: the values that nccl_api.h declares, against NCCL's header; compiled where that is
 * installed, and has nothing to run. */
#include <nccl.h>

#include "backends/cuda/device/nccl_api.h"

#define SAME(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #ours)
#define PLACE(our_field, their_field)                                                                        \
    _Static_assert(offsetof(nccl_config, our_field) == offsetof(ncclConfig_t, their_field), #our_field)

SAME(NCCL_OK, ncclSuccess);
SAME(NCCL_CUDA_ERROR, ncclUnhandledCudaError);
SAME(NCCL_SYSTEM_ERROR, ncclSystemError);
SAME(NCCL_INTERNAL_ERROR, ncclInternalError);
SAME(NCCL_INVALID_ARGUMENT, ncclInvalidArgument);
SAME(NCCL_INVALID_USAGE, ncclInvalidUsage);
SAME(NCCL_REMOTE_ERROR, ncclRemoteError);
SAME(NCCL_IN_PROGRESS, ncclInProgress);
SAME(NCCL_BYTES, ncclUint8);
SAME(NCCL_F32, ncclFloat32);
SAME(NCCL_F64, ncclFloat64);
SAME(NCCL_SUM, ncclSum);
SAME(NCCL_UNDEFINED, NCCL_CONFIG_UNDEF_INT);
SAME(NCCL_OLDEST, NCCL_VERSION(2, 18, 0));
SAME(NCCL_ORDERS, NCCL_VERSION(2, 26, 0));
SAME(NCCL_SHARED_DEVICES, NCCL_VERSION(2, 30, 0));
_Static_assert(sizeof(nccl_id) == sizeof(ncclUniqueId), "id");
_Static_assert(sizeof(nccl_config) <= sizeof(ncclConfig_t), "configuration");
PLACE(size, size);
PLACE(magic, magic);
PLACE(version, version);
PLACE(blocking, blocking);
PLACE(cga_cluster_size, cgaClusterSize);
PLACE(min_ctas, minCTAs);
PLACE(max_ctas, maxCTAs);
PLACE(net_name, netName);
PLACE(split_share, splitShare);

/* Parameters, one by one, of functions that have addresses of the device as pointers. */
#define HAS(name, ...) _Static_assert(_Generic(&name, ncclResult_t(*)(__VA_ARGS__) : 1, default : 0), #name)
HAS(ncclGetVersion, int *);
HAS(ncclGetUniqueId, ncclUniqueId *);
HAS(ncclCommInitRankConfig, ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *);
HAS(ncclCommSplit, ncclComm_t, int, int, ncclComm_t *, ncclConfig_t *);
HAS(ncclCommFinalize, ncclComm_t);
HAS(ncclCommDestroy, ncclComm_t);
HAS(ncclCommAbort, ncclComm_t);
HAS(ncclCommGetAsyncError, ncclComm_t, ncclResult_t *);
HAS(ncclSend, const void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
HAS(ncclRecv, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
HAS(ncclAllGather, const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t);
HAS(ncclBroadcast, const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
HAS(ncclAllReduce, const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t);
HAS(ncclReduceScatter, const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t);
