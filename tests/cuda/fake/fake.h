/* fake.h: a libcuda.so.1, a libcublasLt.so.13 and a libnccl.so.2 without a GPU, for tests of the CUDA
 * device.
 *
 * The driver keeps device memory in the host's, at addresses that mean nothing there, and runs kernels from
 * their PTX on the PTX machine (tests/ptx). It does what makes mistakes show that hardware forgives now and
 * then: what is submitted to a stream runs late, when somebody waits, and streams run in any order that their
 * events allow (a seed chooses it); copies read and write the host's memory as late; new memory holds NaN;
 * freed memory, foreign handles, a missing context, sizes and alignments that the headers forbid are errors.
 * What it says about hardware: nothing. Cubins are not run: the device must be asked for PTX
 * (SBP_CUDA_IMAGE=ptx).
 *
 * SBP_FAKE_CUDA says what it does, a list of words:
 *
 *     devices=N         how many there are (1)
 *     capability=N      10 * major + minor (90)
 *     version=N         of CUDA that the driver is made for (13000)
 *     memory=BYTES      of a device (8 GiB)
 *     taken=BYTES       of it, by others
 *     broken_up=BYTES   said to be free, and not to be had
 *     pinned=BYTES      of the host's memory that can be pinned (no limit)
 *     seed=N            order of the streams (1)
 *     kernels=N         order of blocks and warps, and how approximations err (1); numbers depend on it
 *     library=N         patch level of cuBLASLt 13.1 (0)
 *     no-algorithm      cuBLASLt proposes none for any matmul
 *     nccl=N            version of NCCL (22809); what it does: nccl.c
 *     ring=N            by how many ranks NCCL's sums are turned (0): nccl.c
 *     nccl_lost=N       from the N-th group of its calls on, another rank is lost
 *     late              nothing runs before it must; else a coin decides
 *     fail=N            the N-th call that can fail does (the first is 1), and no other
 *     call=NAME         counting calls of that function alone ("cuMemAlloc")
 *     from=N            the N-th and every later call fail: as with a lost device
 *     error=memory|lost|other   with what
 *     report            at the end of the process standard error says what was not given back
 *
 * SBP_FAKE_CUDA_LOG=FILE appends a line for each call, without addresses: memory and handles are numbered.
 *
 * What is wrong in how it is used goes to standard error, "fake cuda: ...", and makes the call fail.
 * Threads: one at a time is what the device promises. With NCCL a thread of the driver's own goes on with
 * what other processes may wait for, when nobody has called for a while: a lock is around every call. */
#ifndef SBP_TESTS_CUDA_FAKE_H
#define SBP_TESTS_CUDA_FAKE_H

#include <stdbool.h>

#include "backends/cuda/device/cuda_api.h"

typedef struct fake_cuda_report {
    int64_t calls;      /* that can fail, since the last reset */
    int64_t alive;      /* objects made and not given back */
    int64_t launches;   /* of kernels */
    int64_t matmuls;    /* of cuBLASLt */
    int64_t wrong;      /* uses that were wrong */
    const char *failed; /* the function that was made to fail; NULL: none */
} fake_cuda_report;

/* Forgets everything and does as `words` say. Symbol "fake_cuda_reset" of libcuda.so.1. */
typedef void fake_cuda_reset_function(const char *words);
/* Symbol "fake_cuda_look". */
typedef void fake_cuda_look_function(fake_cuda_report *out);

/* ---- between the two libraries ---------------------------------------------------------------------- */

#define FAKE_EXPORTED __attribute__((visibility("default")))

/* Counts a call that can fail; CUDA_OK: it shall be done. context: whether one must be current. */
FAKE_EXPORTED cuda_result fake_cuda_enter(const char *name, bool context);
/* A use that is wrong; for returning. */
FAKE_EXPORTED cuda_result fake_cuda_wrong(cuda_result result, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* A line of the log. */
FAKE_EXPORTED void fake_cuda_log(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* "d1+64" for an address in the device's memory; valid until the eighth call from now. */
FAKE_EXPORTED const char *fake_cuda_place(cuda_address address);
FAKE_EXPORTED int32_t fake_cuda_stream(cuda_stream stream); /* its number; 0: there is no such stream */
/* Objects made (1) and given back (-1). */
FAKE_EXPORTED void fake_cuda_count(int64_t change);
/* The host's address of device memory; NULL, and said so, when it is not within one allocation. */
FAKE_EXPORTED void *fake_cuda_memory(cuda_address address, uint64_t bytes, const char *what);
/* That the memory there was written. */
FAKE_EXPORTED void fake_cuda_written(cuda_address address, uint64_t bytes);
/* Runs work(data) when the stream comes to it; data is copied, to a multiple of 64. CUDA_NOT_READY: it is not
 * done yet, and will be called again. */
typedef cuda_result fake_cuda_work(void *data);
FAKE_EXPORTED cuda_result fake_cuda_enqueue(cuda_stream stream, fake_cuda_work *work, const void *data,
                                            size_t bytes);
/* Also not before what `*last` stands for, in whatever stream that is; from now on it stands for this. NULL:
 * for nothing. */
struct record;
FAKE_EXPORTED cuda_result fake_cuda_enqueue_behind(struct record **last, cuda_stream stream,
                                                   fake_cuda_work *work, const void *data, size_t bytes);
FAKE_EXPORTED void fake_cuda_forget(struct record **last);
/* Called by work that is not ready: it waits for what is in another stream. */
FAKE_EXPORTED void fake_cuda_wait_for_others(void);
/* From now on work that is not ready is tried again when nobody calls. */
FAKE_EXPORTED void fake_cuda_go_on(void);
FAKE_EXPORTED int32_t fake_cuda_device(void); /* of the current context; -1: none */
/* The number of a word of SBP_FAKE_CUDA. */
FAKE_EXPORTED int64_t fake_cuda_number(const char *key, int64_t other);
FAKE_EXPORTED void fake_cuda_count_matmul(void);
/* Work that runs takes so long, of the clock that events tell. */
FAKE_EXPORTED void fake_cuda_take_time(double ms);

FAKE_EXPORTED int fake_cuda_lock(void);
FAKE_EXPORTED void fake_cuda_unlock(const int *locked);
/* Until the calling function returns. */
#define FAKE_LOCKED                                                                                          \
    __attribute__((cleanup(fake_cuda_unlock), unused)) const int fake_locked_ = fake_cuda_lock()

/* Leaves the calling function when the call shall fail; holds the lock until it returns. */
#define FAKE_ENTER(context)                                                                                  \
    FAKE_LOCKED;                                                                                             \
    do {                                                                                                     \
        cuda_result entered_ = fake_cuda_enter(__func__, context);                                           \
        if (entered_ != CUDA_OK)                                                                             \
            return entered_;                                                                                 \
    } while (0)

#endif
