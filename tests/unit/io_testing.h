/* io_testing.h: what the tests of file formats share. */
#ifndef SBP_TESTS_UNIT_IO_TESTING_H
#define SBP_TESTS_UNIT_IO_TESTING_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ir/base/file.h"

typedef struct io_fixture {
    sbp_arena *arena;
    sbp_diag *diag;
    char directory[64]; /* empty, removed at the end */
} io_fixture;

static inline int io_setup(void **state) {
    io_fixture *f = calloc(1, sizeof *f);
    f->arena = sbp_arena_create();
    f->diag = sbp_diag_create();
    snprintf(f->directory, sizeof f->directory, "/tmp/sbp-io-XXXXXX");
    if (!mkdtemp(f->directory))
        return -1;
    *state = f;
    return 0;
}

static inline int io_teardown(void **state) {
    io_fixture *f = *state;
    char command[100];
    snprintf(command, sizeof command, "rm -rf %s", f->directory);
    int rc = system(command);
    sbp_arena_destroy(f->arena);
    sbp_diag_destroy(f->diag);
    free(f);
    return rc;
}

/* A fresh pair, for loops that would pile up memory. */
static inline void io_renew(io_fixture *f) {
    sbp_arena_destroy(f->arena);
    f->arena = sbp_arena_create();
    sbp_diag_clear(f->diag);
}

#define assert_ok(f, call)                                                                                   \
    do {                                                                                                     \
        sbp_status status_ = (call);                                                                         \
        if (status_ != SBP_OK)                                                                               \
            fail_msg("%s gave %d: %s", #call, status_, sbp_diag_text((f)->diag, SBP_ERROR));                 \
    } while (0)

/* The call fails with this status, and its message contains the text. */
#define assert_fails(f, expected, text, call)                                                                \
    do {                                                                                                     \
        sbp_diag_clear((f)->diag);                                                                           \
        sbp_status status_ = (call);                                                                         \
        const char *message_ = sbp_diag_text((f)->diag, SBP_ERROR);                                          \
        if (status_ != (expected) || !strstr(message_, (text)))                                              \
            fail_msg("%s gave %d, '%s'; expected %d with '%s'", #call, status_, message_, (expected),        \
                     (text));                                                                                \
        sbp_diag_clear((f)->diag);                                                                           \
    } while (0)

/* "DIRECTORY/name" in one of four buffers, in turn: two may be arguments of a call. */
static inline const char *io_path(const io_fixture *f, const char *name) {
    static char paths[4][200];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", f->directory, name);
    return path;
}

static inline void io_put(const char *path, const void *data, size_t length) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, length, file), length);
    assert_int_equal(fclose(file), 0);
}

/* The number of entries in the directory, for checking that nothing was left behind. */
static inline int io_count_files(const io_fixture *f) {
    char command[120];
    int n = -1;
    snprintf(command, sizeof command, "ls -A %s | wc -l", f->directory);
    FILE *pipe = popen(command, "r");
    if (!pipe || fscanf(pipe, "%d", &n) != 1)
        n = -1;
    if (pipe)
        pclose(pipe);
    return n;
}

/* Runs `attempt` with the 1st, 2nd, ... allocation failing until it succeeds; every failure must be
 * SBP_MACHINE. Returns how many failed. */
static inline int io_fail_allocations(io_fixture *f, sbp_status (*attempt)(io_fixture *f, void *user),
                                      void *user) {
    for (int n = 1;; n++) {
        io_renew(f);
        sbp_test_fail_allocation(n);
        sbp_status status = attempt(f, user);
        sbp_test_fail_allocation(0);
        if (status == SBP_OK)
            return n - 1;
        if (status != SBP_MACHINE)
            fail_msg("allocation %d failing gave %d: %s", n, status, sbp_diag_text(f->diag, SBP_ERROR));
    }
}

/* A reproducible random number. */
static inline uint32_t io_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

#endif
