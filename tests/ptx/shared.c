/* Shared memory: bounds, bytes that were never written or are pending, races by byte. */
#include "tests/ptx/shadow.h"

#include <stdlib.h>

enum { FIRST_SET = 32, SETS = 31, ANY_LANE = 63, READ_TIMES = 1 << 26 };

void ptx_shared_create(ptx_block *b, uint32_t bytes) {
    ptx_shared *s = &b->shared;
    s->bytes = bytes;
    const size_t n = bytes + 16U;
    s->data = malloc(n);
    s->state = calloc(n, 1);
    s->write_time = calloc(n, 4);
    s->write_line = calloc(n, 4);
    s->writer = calloc(n, 2);
    s->readers = calloc(n, 2);
    s->last_read = calloc(n, 4);
    s->read_base = b->launch->begin;
    if (!s->data || !s->state || !s->write_time || !s->write_line || !s->writer || !s->readers ||
        !s->last_read) {
        ptx_no_memory(b->launch);
    }
    memset(s->data, 0xa5, n);
}

void ptx_shared_destroy(ptx_shared *s) {
    free(s->data);
    free(s->state);
    free(s->write_time);
    free(s->write_line);
    free(s->writer);
    free(s->readers);
    free(s->last_read);
    for (int w = 0; w < PTX_MAX_WARPS; w++) {
        free(s->reads[w]);
    }
}

void ptx_shared_bounds(ptx_warp *w, const ptx_insn *i, int lane, uint32_t address, uint32_t bytes,
                       uint32_t align) {
    const ptx_shared *s = &w->block->shared;
    if (address & (align - 1)) {
        ptx_fault(w, i, lane, "shared address 0x%x is no multiple of %u", address, align);
    }
    if (address > s->bytes || bytes > s->bytes - address) {
        ptx_fault(w, i, lane, "shared address 0x%x, %u bytes: out of bounds, the block has %u bytes", address,
                  bytes, s->bytes);
    }
}

// ---- reads that are remembered ----------------------------------------------------------------------------

static uint32_t lanes_of(const ptx_shared *s, int warp, uint32_t code) {
    return code < FIRST_SET ? 1U << code : code == ANY_LANE ? PTX_FULL : s->lane_sets[warp][code - FIRST_SET];
}

static uint32_t code_of(ptx_shared *s, int warp, uint32_t lanes) {
    if (!(lanes & (lanes - 1))) {
        return (uint32_t)__builtin_ctz(lanes);
    }
    int *count = &s->lane_set_count[warp];
    for (int k = 0; k < *count; k++) {
        if (s->lane_sets[warp][k] == lanes) {
            return (uint32_t)(FIRST_SET + k);
        }
    }
    if (*count == SETS) {
        return ANY_LANE;
    }
    s->lane_sets[warp][*count] = lanes;
    return (uint32_t)(FIRST_SET + (*count)++);
}

// Room for reads of this warp at this time.
static void make_reads(ptx_warp *w) {
    ptx_shared *s = &w->block->shared;
    const uint32_t now = ptx_now(w->launch);
    if (!s->reads[w->index]) {
        s->reads[w->index] = calloc(s->bytes + 16U, sizeof(uint32_t));
        if (!s->reads[w->index]) {
            ptx_no_memory(w->launch);
        }
    }
    if (now - s->read_base >= READ_TIMES) { // older reads are forgotten: times have no more bits
        for (int k = 0; k < w->block->warp_count; k++) {
            if (s->reads[k]) {
                memset(s->reads[k], 0, s->bytes * sizeof(uint32_t));
            }
        }
        s->read_base = now - 1;
    }
}

static void remember_read(ptx_warp *w, uint32_t lanes, uint32_t address, uint32_t bytes) {
    ptx_shared *s = &w->block->shared;
    const int warp = w->index;
    const uint32_t now = ptx_now(w->launch);
    make_reads(w);
    const uint32_t code = code_of(s, warp, lanes), record = (now - s->read_base) << 6 | code;
    uint32_t *r = &s->reads[warp][address], before = 0, after = record;
    for (uint32_t k = 0; k < bytes; k++) {
        if (r[k] != before) { // most bytes are like the one before
            before = r[k];
            const uint32_t time = s->read_base + (before >> 6);
            uint32_t set = lanes;
            if (before && time > w->together && time > w->released) {
                set |= lanes_of(s, warp, before & 63);
            }
            after = set == lanes ? record : (record & ~63U) | code_of(s, warp, set);
        }
        r[k] = after;
    }
    for (uint32_t k = 0; k < bytes; k++) {
        s->last_read[address + k] = now;
    }
}

static void check_reads(ptx_warp *w, const ptx_insn *i, int lane, uint32_t b) {
    const ptx_block *block = w->block;
    const ptx_shared *s = &block->shared;
    for (int r = 0; r < block->warp_count; r++) {
        const uint32_t record = s->reads[r] ? s->reads[r][b] : 0, time = s->read_base + (record >> 6);
        if (!record || time <= block->settled) {
            continue;
        }
        const uint32_t lanes = lanes_of(s, r, record & 63);
        bool some = false;
        int missing = -1;
        PTX_EACH_LANE(l, lanes) {
            if (ptx_knows(w, lane, block->number, (uint32_t)r * PTX_LANES + l, time)) {
                some = true;
            } else {
                missing = (int)l;
            }
        }
        if (missing >= 0 && !((record & 63) == ANY_LANE && some)) {
            char name[96];
            ptx_fault(w, i, lane, "race: shared byte 0x%x is written while %s may still read it", b,
                      ptx_thread_name(w->launch, block->number, (uint32_t)(r * PTX_LANES + missing), name));
        }
    }
}

// ---- accesses ---------------------------------------------------------------------------------------------

static void pending(ptx_warp *w, const ptx_insn *i, int lane, uint32_t b, const char *does) {
    ptx_fault(w, i, lane, "%s shared byte 0x%x, which the asynchronous copy of line %u still writes", does, b,
              w->block->shared.write_line[b]);
}

static void mbarrier(ptx_warp *w, const ptx_insn *i, int lane, uint32_t b, const char *does) {
    ptx_fault(w, i, lane, "%s shared byte 0x%x, which is of an mbarrier that was not invalidated", does, b);
}

static void race(ptx_warp *w, const ptx_insn *i, int lane, uint32_t b, const char *does) {
    char name[96];
    const ptx_shared *s = &w->block->shared;
    ptx_fault(w, i, lane,
              "race: %s shared byte 0x%x, written by %s at line %u, without synchronisation between", does, b,
              ptx_thread_name(w->launch, w->block->number, s->writer[b], name), s->write_line[b]);
}

static void check_read(ptx_warp *w, const ptx_insn *i, int lane, uint32_t b, bool strong) {
    const ptx_shared *s = &w->block->shared;
    const uint8_t state = s->state[b];
    if (state & PTX_BYTE_PENDING) {
        pending(w, i, lane, b, "reads");
    }
    if (state & PTX_BYTE_MBARRIER) {
        mbarrier(w, i, lane, b, "reads");
    }
    if (!(state & PTX_BYTE_WRITTEN)) {
        ptx_fault(w, i, lane, "reads shared byte 0x%x, which was never written", b);
    }
    if ((s->write_time[b] > w->block->settled || state & PTX_BYTE_AGENT) &&
        !(strong && state & PTX_BYTE_ATOMIC) &&
        !ptx_knows(w, lane, w->block->number, s->writer[b], s->write_time[b])) {
        race(w, i, lane, b, "reads");
    }
}

static uint32_t alike(const ptx_warp *w, uint32_t b, uint32_t end) {
    return w->launch->shadow->alike(&w->block->shared, b, end - b);
}

void ptx_shared_read(ptx_warp *w, const ptx_insn *i, uint32_t lanes, uint32_t address, uint32_t bytes,
                     uint32_t align) {
    const ptx_shared *s = &w->block->shared;
    const uint32_t end = address + bytes;
    ptx_shared_bounds(w, i, __builtin_ctz(lanes), address, bytes, align);
    for (uint32_t b = address; b < end; b += alike(w, b, end)) {
        if (s->state[b] != PTX_BYTE_WRITTEN || s->write_time[b] > w->block->settled) {
            PTX_EACH_LANE(l, lanes) {
                check_read(w, i, (int)l, b, false);
            }
        }
    }
    remember_read(w, lanes, address, bytes);
}

static void check_write(ptx_warp *w, const ptx_insn *i, int lane, uint32_t b, bool strong,
                        const uint8_t *value) {
    const ptx_shared *s = &w->block->shared;
    const uint8_t state = s->state[b];
    if (state & PTX_BYTE_PENDING) {
        pending(w, i, lane, b, "writes");
    }
    if (state & PTX_BYTE_MBARRIER) {
        mbarrier(w, i, lane, b, "writes");
    }
    if (s->readers[b]) {
        ptx_fault(w, i, lane, "writes shared byte 0x%x while an asynchronous operation may still read it", b);
    }
    if ((s->write_time[b] > w->block->settled || state & PTX_BYTE_AGENT) &&
        !(strong && state & PTX_BYTE_ATOMIC)) {
        /* Lanes of one instruction: one of them wins. Compilers let all lanes of a warp store what is the
         * same but for the rounding of fused sums. Among several warps: what is the same to the bit. */
        const bool mates = s->writer[b] / PTX_LANES == w->index && s->write_time[b] == ptx_now(w->launch);
        const bool same = value && s->write_line[b] == (uint32_t)i->line && (mates || s->data[b] == *value);
        const bool me = s->writer[b] == (uint32_t)(w->index * PTX_LANES + lane);
        if (!me && !same && !ptx_knows(w, lane, w->block->number, s->writer[b], s->write_time[b])) {
            race(w, i, lane, b, "writes");
        }
    }
    if (s->last_read[b] > w->block->settled && !(strong && state & PTX_BYTE_ATOMIC)) {
        check_reads(w, i, lane, b);
    }
}

// Whether each warp's reads of [b, b + n) are as those of b.
static bool read_alike(const ptx_block *block, uint32_t b, uint32_t n) {
    const ptx_shared *s = &block->shared;
    uint32_t other = 0;
    for (int r = 0; r < block->warp_count; r++) {
        for (uint32_t k = 1; s->reads[r] && k < n; k++) {
            other |= s->reads[r][b + k] ^ s->reads[r][b];
        }
    }
    return !other;
}

/* Checks for a write of [address, end): bytes of one history once. value: what is written, or NULL. proxy: by
 * the async proxy. */
static void check_writes(ptx_warp *w, const ptx_insn *i, int lane, uint32_t address, uint32_t end,
                         bool strong, const uint8_t *value) {
    const ptx_shared *s = &w->block->shared;
    for (uint32_t b = address, n; b < end; b += n) {
        n = alike(w, b, end);
        const bool once = (s->last_read[b] <= w->block->settled || read_alike(w->block, b, n)) &&
                          (!value || s->write_time[b] <= w->block->settled);
        for (uint32_t k = b; k < (once ? b + 1 : b + n); k++) {
            check_write(w, i, lane, k, strong, value ? value + (k - address) : NULL);
        }
    }
}

static void fill32(uint32_t *to, uint32_t value, uint32_t count) {
    for (uint32_t k = 0; k < count; k++) {
        to[k] = value;
    }
}

static void fill16(uint16_t *to, uint16_t value, uint32_t count) {
    for (uint32_t k = 0; k < count; k++) {
        to[k] = value;
    }
}

static void remember_write(ptx_warp *w, const ptx_insn *i, int lane, uint32_t address, uint32_t bytes,
                           uint8_t state) {
    ptx_shared *s = &w->block->shared;
    memset(s->state + address, state, bytes);
    fill32(s->write_time + address, ptx_now(w->launch), bytes);
    fill32(s->write_line + address, (uint32_t)i->line, bytes);
    fill16(s->writer + address, (uint16_t)(w->index * PTX_LANES + lane), bytes);
}

void ptx_shared_mbarrier(ptx_block *b, uint32_t address, bool in_use) {
    for (uint32_t k = address; k < address + 8; k++) {
        b->shared.state[k] = (uint8_t)(in_use ? b->shared.state[k] | PTX_BYTE_MBARRIER
                                              : b->shared.state[k] & ~PTX_BYTE_MBARRIER);
    }
}

void ptx_shared_access(ptx_warp *w, const ptx_insn *i, int lane, uint32_t address, uint32_t bytes,
                       uint32_t align, ptx_access access, const void *data) {
    if (access == PTX_READ) {
        ptx_shared_read(w, i, 1U << lane, address, bytes, align);
        return;
    }
    ptx_shared_bounds(w, i, lane, address, bytes, align);
    const bool strong = access != PTX_WRITE;
    for (uint32_t b = address; b < address + bytes; b++) {
        if (access == PTX_STRONG_READ || (access == PTX_ATOMIC && !data)) {
            check_read(w, i, lane, b, true);
        }
    }
    if (access == PTX_STRONG_READ) {
        remember_read(w, 1U << lane, address, bytes);
        return;
    }
    check_writes(w, i, lane, address, address + bytes, strong, data);
    remember_write(w, i, lane, address, bytes, (uint8_t)(PTX_BYTE_WRITTEN | (strong ? PTX_BYTE_ATOMIC : 0)));
}

uint32_t ptx_shared_warp(ptx_warp *w, const ptx_insn *i, const uint32_t at[PTX_LANES], uint32_t mask,
                         uint32_t bytes, bool write) {
    ptx_shared *s = &w->block->shared;
    if (bytes > s->bytes) {
        return mask;
    }
    const uint32_t last = s->bytes - bytes;
    uint32_t wrong = 0;
    PTX_EACH_LANE(l, mask) {
        wrong |= (at[l] & (bytes - 1)) | (at[l] > last);
    }
    if (wrong) {
        return mask;
    }
    make_reads(w);
    const ptx_shadow_lanes x = {.at = at,
                                .mask = mask,
                                .bytes = bytes,
                                .now = ptx_now(w->launch),
                                .before = w->block->settled,
                                .known = w->together > w->released ? w->together : w->released,
                                .line = (uint32_t)i->line,
                                .warp = w->index};
    return (write ? w->launch->shadow->write : w->launch->shadow->read)(s, &x);
}

// ---- asynchronous operations ------------------------------------------------------------------------------

void ptx_shared_write_done(ptx_block *b, uint32_t address, uint32_t bytes, uint32_t who, bool proxy) {
    ptx_shared *s = &b->shared;
    memset(s->state + address,
           PTX_BYTE_WRITTEN | (proxy ? PTX_BYTE_ASYNC : 0) | (who >= b->launch->threads ? PTX_BYTE_AGENT : 0),
           bytes);
    fill32(s->write_time + address, ptx_now(b->launch), bytes);
    fill16(s->writer + address, (uint16_t)who, bytes);
}

// Generic writes that the async proxy reads or replaces.
static void check_proxy(ptx_warp *w, const ptx_insn *i, int lane, int who, uint32_t b, const char *does) {
    const ptx_shared *s = &w->block->shared;
    if (s->state[b] & PTX_BYTE_WRITTEN && !(s->state[b] & PTX_BYTE_ASYNC) &&
        !ptx_knows_proxy(w, who, w->block->number, s->writer[b], s->write_time[b])) {
        char name[96];
        ptx_fault(
            w, i, lane,
            "the async proxy %s shared byte 0x%x, written by %s at line %u, without a fence.proxy.async "
            "between",
            does, b, ptx_thread_name(w->launch, w->block->number, s->writer[b], name), s->write_line[b]);
    }
}

void ptx_shared_async_write(ptx_warp *w, const ptx_insn *i, int lane, uint32_t address, uint32_t bytes,
                            bool proxy) {
    const uint32_t end = address + bytes;
    check_writes(w, i, lane, address, end, false, NULL);
    for (uint32_t b = address; proxy && b < end; b += alike(w, b, end)) {
        check_proxy(w, i, lane, lane, b, "replaces");
    }
    remember_write(w, i, lane, address, bytes, PTX_BYTE_PENDING);
}

void ptx_shared_async_read(ptx_warp *w, const ptx_insn *i, int lane, uint32_t address, uint32_t bytes,
                           bool proxy) {
    ptx_shared *s = &w->block->shared;
    const int who = lane < 0 ? __builtin_ctz(w->live) : lane;
    const uint32_t end = address + bytes;
    for (uint32_t b = address; b < end; b += alike(w, b, end)) {
        check_read(w, i, who, b, false);
        if (proxy) {
            check_proxy(w, i, lane, who, b, "reads");
        }
        if (s->readers[b] == UINT16_MAX) {
            ptx_unable(w, i, "more than 65535 operations under way read shared byte 0x%x", b);
        }
    }
    for (uint32_t b = address; b < end; b++) {
        s->readers[b]++;
    }
}

void ptx_shared_read_done(ptx_warp *w, int lane, uint32_t address, uint32_t bytes) {
    ptx_shared *s = &w->block->shared;
    for (uint32_t b = address; b < address + bytes; b++) {
        s->readers[b]--;
    }
    const uint32_t lanes = lane < 0 ? w->live : 1U << lane;
    if (lanes) {
        remember_read(w, lanes, address, bytes);
    }
}
