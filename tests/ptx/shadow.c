/* See shadow.h. Loops without an early end, that a compiler makes vectors of. */
#include "tests/ptx/shadow.h"

#define JOIN2(a, b) a##b
#define JOIN(a, b) JOIN2(a, b)

static inline uint32_t larger(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

// Whether n bytes from b are like byte `first`.
static inline bool same_block(const ptx_shared *s, uint32_t first, uint32_t b, uint32_t n) {
    const uint8_t state = s->state[first];
    const uint16_t writer = s->writer[first], readers = s->readers[first];
    const uint32_t time = s->write_time[first], read = s->last_read[first];
    uint8_t other8 = 0;
    uint16_t other16 = 0;
    uint32_t other32 = 0;
    for (uint32_t k = 0; k < n; k++) {
        other8 |= s->state[b + k] ^ state;
    }
    for (uint32_t k = 0; k < n; k++) {
        other16 |= (uint16_t)((s->writer[b + k] ^ writer) | (s->readers[b + k] ^ readers));
    }
    for (uint32_t k = 0; k < n; k++) {
        other32 |= (s->write_time[b + k] ^ time) | (s->last_read[b + k] ^ read);
    }
    return !(other8 | other16 | other32);
}

static uint32_t alike(const ptx_shared *s, uint32_t b, uint32_t n) {
    uint32_t k = 0;
    while (k + 64 <= n && same_block(s, b, b + k, 64)) {
        k += 64;
    }
    while (k + 16 <= n && same_block(s, b, b + k, 16)) {
        k += 16;
    }
    while (k < n && same_block(s, b, b + k, 1)) {
        k++;
    }
    return k;
}

// ---- shared memory ----------------------------------------------------------------------------------------

// n bytes from b on, 1 << shift of them for each lane from `lane` on.
static inline bool read_range(ptx_shared *s, const ptx_shadow_lanes *x, uint32_t b, uint32_t n, int shift,
                              uint32_t lane) {
    const uint8_t *state = s->state + b;
    const uint32_t *time = s->write_time + b;
    uint32_t *r = s->reads[x->warp] + b, *last = s->last_read + b;
    const uint32_t known = x->known > s->read_base ? x->known - s->read_base : 0;
    const uint16_t *writer = s->writer + b, first = (uint16_t)((uint32_t)x->warp * PTX_LANES + lane);
    uint8_t odd = 0;
    uint16_t others = 0;
    uint32_t latest = 0, kept = 0;
    for (uint32_t k = 0; k < n; k++) {
        odd |= state[k] ^ PTX_BYTE_WRITTEN;
    }
    for (uint32_t k = 0; k < n; k++) {
        others |= (uint16_t)(writer[k] ^ (uint16_t)(first + (k >> shift)));
    }
    for (uint32_t k = 0; k < n; k++) {
        latest = larger(latest, time[k]);
    }
    for (uint32_t k = 0; k < n; k++) {
        kept |= (uint32_t)((r[k] >> 6) > known) & (uint32_t)((r[k] & 63) != lane + (k >> shift));
    }
    if (odd | kept || (latest > x->before && others)) {
        return false;
    }
    const uint32_t record = (x->now - s->read_base) << 6 | lane;
    for (uint32_t k = 0; k < n; k++) {
        r[k] = record + (k >> shift);
    }
    for (uint32_t k = 0; k < n; k++) {
        last[k] = x->now;
    }
    return true;
}

static inline bool write_range(ptx_shared *s, const ptx_shadow_lanes *x, uint32_t b, uint32_t n, int shift,
                               uint32_t lane) {
    uint8_t *state = s->state + b;
    uint32_t *time = s->write_time + b, *line = s->write_line + b;
    uint16_t *writer = s->writer + b;
    const uint16_t first = (uint16_t)((uint32_t)x->warp * PTX_LANES + lane);
    uint8_t odd = 0;
    uint16_t readers = 0, others = 0;
    uint32_t read = 0, latest = 0;
    for (uint32_t k = 0; k < n; k++) {
        odd |= state[k] & (PTX_BYTE_PENDING | PTX_BYTE_AGENT | PTX_BYTE_MBARRIER);
    }
    for (uint32_t k = 0; k < n; k++) {
        readers |= s->readers[b + k];
    }
    for (uint32_t k = 0; k < n; k++) {
        read = larger(read, s->last_read[b + k]);
        latest = larger(latest, time[k]);
    }
    for (uint32_t k = 0; k < n; k++) {
        others |= (uint16_t)(writer[k] ^ (uint16_t)(first + (k >> shift)));
    }
    if (odd | readers || read > x->before || (latest > x->before && others)) {
        return false;
    }
    for (uint32_t k = 0; k < n; k++) {
        state[k] = PTX_BYTE_WRITTEN;
    }
    for (uint32_t k = 0; k < n; k++) {
        time[k] = x->now;
        line[k] = x->line;
    }
    for (uint32_t k = 0; k < n; k++) {
        writer[k] = (uint16_t)(first + (k >> shift));
    }
    return true;
}

#define LANES_OF(name, range)                                                                                \
    static inline uint32_t name##_each(ptx_shared *s, const ptx_shadow_lanes *x, uint32_t bytes,             \
                                       int shift) {                                                          \
        uint32_t left = 0;                                                                                   \
        if (x->mask == PTX_FULL) {                                                                           \
            uint32_t apart = 0;                                                                              \
            for (uint32_t l = 0; l < PTX_LANES; l++) {                                                       \
                apart |= x->at[l] ^ (x->at[0] + l * bytes);                                                  \
            }                                                                                                \
            if (!apart && range(s, x, x->at[0], PTX_LANES * bytes, shift, 0)) {                              \
                return 0;                                                                                    \
            }                                                                                                \
        }                                                                                                    \
        PTX_EACH_LANE(l, x->mask) {                                                                          \
            left |= (uint32_t)!range(s, x, x->at[l], bytes, shift, l) << l;                                  \
        }                                                                                                    \
        return left;                                                                                         \
    }                                                                                                        \
    static uint32_t name(ptx_shared *s, const ptx_shadow_lanes *x) {                                         \
        switch (x->bytes) {                                                                                  \
        case 1:                                                                                              \
            return name##_each(s, x, 1, 0);                                                                  \
        case 2:                                                                                              \
            return name##_each(s, x, 2, 1);                                                                  \
        case 4:                                                                                              \
            return name##_each(s, x, 4, 2);                                                                  \
        case 8:                                                                                              \
            return name##_each(s, x, 8, 3);                                                                  \
        case 16:                                                                                             \
            return name##_each(s, x, 16, 4);                                                                 \
        default:                                                                                             \
            return x->mask;                                                                                  \
        }                                                                                                    \
    }
LANES_OF(read_lanes, read_range)
LANES_OF(write_lanes, write_range)

// ---- global memory ----------------------------------------------------------------------------------------

static bool page_read(ptx_page *page, uint32_t first, uint32_t count, uint32_t per, uint32_t who,
                      uint32_t begin, uint32_t now) {
    const uint32_t *written = page->write_time + first;
    uint32_t *time = page->read_time + first, *reader = page->reader + first;
    const int shift = __builtin_ctz(per);
    uint32_t latest = 0, others = 0;
    for (uint32_t k = 0; k < count; k++) {
        latest = larger(latest, written[k]);
        const uint32_t me = who + (k >> shift); // of lanes that read at one time the last is kept
        others |= (uint32_t)(time[k] > begin) & (uint32_t)(reader[k] != me) &
                  ((uint32_t)(time[k] != now) | (uint32_t)(reader[k] / PTX_LANES != me / PTX_LANES));
    }
    if (others || latest > begin) {
        return false;
    }
    for (uint32_t k = 0; k < count; k++) {
        time[k] = now;
        reader[k] = who + (k >> shift);
    }
    return true;
}

static bool page_write(ptx_page *page, uint32_t first, uint32_t count, uint32_t per, uint32_t who,
                       uint32_t begin, uint32_t now) {
    uint32_t *time = page->write_time + first, *writer = page->writer + first;
    const uint32_t *read = page->read_time + first, *reader = page->reader + first;
    const int shift = __builtin_ctz(per);
    const bool more = page->more != NULL;
    uint32_t others = 0;
    for (uint32_t k = 0; k < count; k++) {
        const uint32_t me = who + (k >> shift);
        others |= (uint32_t)(time[k] > begin) & (uint32_t)(writer[k] != me);
        others |= (uint32_t)(read[k] > begin) & ((uint32_t)(reader[k] != me) | more);
    }
    if (others) {
        return false;
    }
    for (uint32_t k = 0; k < count; k++) {
        time[k] = now;
        writer[k] = who + (k >> shift);
    }
    return true;
}

const ptx_shadow_ops JOIN(ptx_shadow_, PTX_ISA) = {.alike = alike,
                                                   .read = read_lanes,
                                                   .write = write_lanes,
                                                   .page_read = page_read,
                                                   .page_write = page_write};
