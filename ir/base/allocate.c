/* allocate.c: memory, and the hook by which fault tests make an allocation fail. */
#include "ir/base/base.h"
#include "ir/base/machine.h"

#include <stdatomic.h>
#include <stdlib.h>

static _Atomic int64_t fail_countdown;
static _Atomic bool count_pieces;
static _Atomic int64_t allocated_bytes;
static _Atomic bool ran_out;

int64_t sbp_test_fail_allocation(int64_t n) {
    return atomic_exchange(&fail_countdown, n);
}

void sbp_test_count_pieces(bool on) {
    atomic_store(&count_pieces, on);
}

static bool allocation_fails(void) {
    if (atomic_load(&fail_countdown) == 0)
        return false;
    return atomic_fetch_sub(&fail_countdown, 1) == 1;
}

bool sbp_test_piece_fails(void) {
    return atomic_load(&count_pieces) && allocation_fails();
}

int64_t sbp_test_allocated_bytes(void) {
    return atomic_load(&allocated_bytes);
}

static void count_bytes(size_t bytes) {
    atomic_fetch_add_explicit(&allocated_bytes, (int64_t)bytes, memory_order_relaxed);
}

/* What an allocation gave, remembered where that was nothing. */
static void *note_failure(void *got) {
    if (!got)
        atomic_store_explicit(&ran_out, true, memory_order_relaxed);
    return got;
}

void *sbp_malloc(size_t bytes) {
    count_bytes(bytes);
    return note_failure(allocation_fails() ? NULL : malloc(bytes ? bytes : 1));
}

void *sbp_realloc(void *old, size_t bytes) {
    count_bytes(bytes);
    return note_failure(allocation_fails() ? NULL : realloc(old, bytes ? bytes : 1));
}

bool sbp_memory_ran_out(void) {
    return atomic_load(&ran_out);
}
