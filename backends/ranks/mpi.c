/* mpi.c: the transport over MPI, as a plugin (libsbp_mpi.so): the one file that needs MPI to be built or run.
 */
#include <mpi.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "backends/ranks/transport.h"

enum { TAG = 1 }; /* of channel 0 */
#define LONGEST_POLL_SECONDS 0.5

static MPI_Comm world = MPI_COMM_NULL;
static pthread_mutex_t calls = PTHREAD_MUTEX_INITIALIZER; /* one thread at a time is in MPI */

static int fail(char *error, size_t error_size, const char *format, ...) {
    va_list values;
    va_start(values, format);
    vsnprintf(error, error_size, format, values);
    va_end(values);
    return 1;
}

/* Whether a call failed; with its name and what MPI says. */
static int failed(int code, const char *call, char *error, size_t error_size) {
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    if (code == MPI_SUCCESS)
        return 0;
    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS)
        length = 0;
    return fail(error, error_size, "%s: %.*s", call, length, text);
}

/* "Open MPI v4.1.4" of "Open MPI v4.1.4, package: ...". */
static void describe(char *out, size_t size) {
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    if (MPI_Get_library_version(version, &length) != MPI_SUCCESS)
        length = 0;
    version[length < MPI_MAX_LIBRARY_VERSION_STRING ? length : MPI_MAX_LIBRARY_VERSION_STRING - 1] = '\0';
    version[strcspn(version, ",\n")] = '\0';
    snprintf(out, size, "MPI (%.100s)", version);
}

/* Ranks of every host, if all have as many and their numbers follow each other: then each is where it would
 * be.
 */
static int find_node(sbp_transport_world *out, char *error, size_t error_size) {
    int all[2], mine = out->count % out->local_count == 0 && out->rank % out->local_count == out->local_rank
                           ? out->local_count
                           : 0;
    int own[2] = {mine, -mine}; /* the least of both */
    if (failed(MPI_Allreduce(own, all, 2, MPI_INT, MPI_MIN, world), "MPI_Allreduce", error, error_size))
        return 1;
    out->node = all[0] > 0 && all[0] == -all[1] ? mine : 1;
    return 0;
}

static int join(sbp_transport_world *out, char *error, size_t error_size) {
    int given, begun = 0;
    MPI_Comm host;
    if (failed(MPI_Initialized(&begun), "MPI_Initialized", error, error_size))
        return 1;
    if (!begun && failed(MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &given), "MPI_Init_thread", error,
                         error_size))
        return 1;
    if (!begun && given < MPI_THREAD_SERIALIZED)
        return fail(error, error_size, "this MPI can only be called from the first thread of a process");
    if (failed(MPI_Comm_dup(MPI_COMM_WORLD, &world), "MPI_Comm_dup", error, error_size) ||
        failed(MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler", error,
               error_size) ||
        failed(MPI_Comm_rank(world, &out->rank), "MPI_Comm_rank", error, error_size) ||
        failed(MPI_Comm_size(world, &out->count), "MPI_Comm_size", error, error_size) ||
        failed(MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, out->rank, MPI_INFO_NULL, &host),
               "MPI_Comm_split_type", error, error_size) ||
        failed(MPI_Comm_rank(host, &out->local_rank), "MPI_Comm_rank", error, error_size) ||
        failed(MPI_Comm_size(host, &out->local_count), "MPI_Comm_size", error, error_size) ||
        failed(MPI_Comm_free(&host), "MPI_Comm_free", error, error_size) || find_node(out, error, error_size))
        return 1;
    describe(out->name, sizeof out->name);
    return 0;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Polls, with longer and longer pauses: ranks may share cores, and a rank that waits must be able to give up.
 * Time counts while it polls: who was stopped for a while has waited for nobody. */
static int test_all(MPI_Request *requests, int32_t all, int32_t *still, char *error, size_t error_size) {
    int result = 0;
    *still = 0;
    pthread_mutex_lock(&calls);
    for (int32_t i = 0; i < all && result == 0; i++) {
        int done = 0;
        if (requests[i] == MPI_REQUEST_NULL)
            continue;
        result = failed(MPI_Test(&requests[i], &done, MPI_STATUS_IGNORE), "MPI_Test", error, error_size);
        *still += !done;
    }
    pthread_mutex_unlock(&calls);
    return result;
}

static int wait_all(MPI_Request *requests, const sbp_transport_piece *receive, int32_t count,
                    const sbp_transport_piece *send, int32_t all, double seconds, int32_t *late, char *error,
                    size_t error_size) {
    double last = now(), waited = 0;
    long pause = 0;
    int32_t open = all;
    while (open > 0) {
        int32_t still = 0;
        if (test_all(requests, all, &still, error, error_size))
            return 1;
        double passed = now() - last;
        last += passed;
        waited += passed < LONGEST_POLL_SECONDS ? passed : LONGEST_POLL_SECONDS;
        if (still < open) {
            waited = 0;
            pause = 0;
        } else if (seconds > 0 && waited > seconds) {
            for (int32_t i = 0; i < all && *late < 0; i++)
                if (requests[i] != MPI_REQUEST_NULL)
                    *late = i < count ? receive[i].rank : send[i - count].rank;
            return fail(error, error_size, "no message arrived for %.0f s", seconds);
        } else {
            pause = pause < 200000 ? pause + 1000 : pause;
            nanosleep(&(struct timespec){0, pause}, NULL);
        }
        open = still;
    }
    return 0;
}

/* All pieces under way; *begun: how many. */
static int begin(int tag, const sbp_transport_piece *send, int32_t send_count,
                 const sbp_transport_piece *receive, int32_t receive_count, MPI_Request *requests,
                 int32_t *begun, char *error, size_t error_size) {
    for (int32_t i = 0; i < receive_count; i++)
        if (failed(MPI_Irecv(receive[i].data, (int)receive[i].bytes, MPI_BYTE, receive[i].rank, tag, world,
                             &requests[(*begun)++]),
                   "MPI_Irecv", error, error_size))
            return 1;
    for (int32_t i = 0; i < send_count; i++)
        if (failed(MPI_Isend(send[i].data, (int)send[i].bytes, MPI_BYTE, send[i].rank, tag, world,
                             &requests[(*begun)++]),
                   "MPI_Isend", error, error_size))
            return 1;
    return 0;
}

static int exchange(int channel, const sbp_transport_piece *send, int32_t send_count,
                    const sbp_transport_piece *receive, int32_t receive_count, void *memory, double seconds,
                    int32_t *late, char *error, size_t error_size) {
    MPI_Request *requests = memory;
    int32_t begun = 0;
    *late = -1;
    pthread_mutex_lock(&calls);
    int result =
        begin(TAG + channel, send, send_count, receive, receive_count, requests, &begun, error, error_size);
    pthread_mutex_unlock(&calls);
    if (result)
        return result;
    return wait_all(requests, receive, receive_count, send, begun, seconds, late, error, error_size);
}

static void leave(void) {
    int ended = 0;
    if (MPI_Finalized(&ended) == MPI_SUCCESS && !ended)
        MPI_Finalize();
}

static void end_all(int status) {
    MPI_Abort(MPI_COMM_WORLD, status);
}

__attribute__((visibility("default"))) const sbp_transport sbp_transport_table = {
    SBP_TRANSPORT_VERSION, join, sizeof(MPI_Request), exchange, leave, end_all};
