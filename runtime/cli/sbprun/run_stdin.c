/* run_stdin.c: standard input of several ranks: rank 0 has it, and passes on what it reads, so that all read
 * the same. */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "runtime/cli/sbprun/inputs.h"
#include "runtime/cli/sbprun/interrupt.h"

enum {
    WAIT_MS = 200, /* between words that say that rank 0 is there */
    NOTHING_YET = -1,
    STOPPED = -2,
    FAILED = -3
};

/* Bytes, 0 at the end, or one of the above. */
static double read_some(const sbp_world *world, char *out, size_t room) {
    struct pollfd wanted = {.fd = STDIN_FILENO, .events = POLLIN};
    if (sbp_interrupted())
        return STOPPED;
    if (poll(&wanted, 1, WAIT_MS) <= 0)
        return NOTHING_YET;
    ssize_t got = read(STDIN_FILENO, out, room);
    if (got < 0 && errno == EINTR)
        return NOTHING_YET;
    if (got < 0)
        (void)sbp_fail(world->diag, SBP_IO, "cannot read standard input: %s", strerror(errno));
    return got < 0 ? FAILED : (double)got;
}

static sbp_status read_shared(void *user, sbp_diag *diag, char *out, size_t room, size_t *got) {
    sbp_world *world = user;
    double count = NOTHING_YET;
    while (count == NOTHING_YET) {
        if (world->place.rank == 0)
            count = read_some(world, out, room);
        SBP_TRY(sbp_ranks_broadcast(world->ranks, &count, 1, SBP_F64, 0, diag));
    }
    if (count == STOPPED)
        return SBP_INTERRUPTED;
    if (count == FAILED)
        return world->place.rank == 0 ? SBP_IO : sbp_fail(diag, SBP_IO, "rank 0 cannot read standard input");
    if (count > (double)room)
        return sbp_fail(diag, SBP_INTERNAL,
                        "rank 0 sends %.0f bytes of standard input; this rank reads %llu at a time", count,
                        (unsigned long long)room);
    *got = (size_t)count;
    return sbp_ranks_broadcast(world->ranks, out, (int64_t)*got, SBP_I8, 0, diag);
}

sbp_status sbp_run_open_stdin(sbp_world *world, sbp_inputs *inputs, sbp_source **out) {
    if (!world->ranks)
        return sbp_source_open(world->diag, "-", out);
    inputs->reader = (sbp_reader){read_shared, world};
    return sbp_source_open_reader(world->diag, &inputs->reader, out);
}
