/* transport.h: how ranks meet that have a device each and no MPI: over NCCL, as the variables of torchrun
 * say. */
#ifndef SBP_CUDA_TRANSPORT_H
#define SBP_CUDA_TRANSPORT_H

#include "backends/cuda/device/nccl.h"

/* Device LOCAL_RANK modulo how many there are; rank 0 listens at NCCL_COMM_ID=HOST:PORT, which is the port
 * behind MASTER_PORT of MASTER_ADDR where it is not set. */
extern const struct sbp_transport cuda_transport;

/* The world that it has joined, which the device of that number may use too, call by call in the same order
 * on all ranks; NULL: it did not join one, or on another device. */
cuda_nccl *cuda_transport_nccl(int32_t device);
/* The device on which it has joined one; -1: it has not. */
int32_t cuda_transport_device(void);

#endif
