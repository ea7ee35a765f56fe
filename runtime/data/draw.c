/* draw.c: numpy's PCG64, its seeds, and its shuffle. */
#include "runtime/data/draw.h"

/* ---- SeedSequence ------------------------------------------------------------------------------------ */

enum { POOL_WORDS = 4 };

static uint32_t stir(uint32_t value, uint32_t *constant) {
    value ^= *constant;
    *constant *= 0x931e8875u;
    value *= *constant;
    return value ^ value >> 16;
}

static uint32_t mix(uint32_t a, uint32_t b) {
    uint32_t value = 0xca01f9ddu * a - 0x4973f715u * b;
    return value ^ value >> 16;
}

/* SeedSequence(seed).generate_state(4, uint64) */
static void spread(uint64_t seed, uint64_t out[4]) {
    uint32_t pool[POOL_WORDS] = {(uint32_t)seed, (uint32_t)(seed >> 32)}, constant = 0x43b0d7e5u;
    for (int i = 0; i < POOL_WORDS; i++)
        pool[i] = stir(pool[i], &constant);
    for (int from = 0; from < POOL_WORDS; from++)
        for (int to = 0; to < POOL_WORDS; to++)
            if (from != to)
                pool[to] = mix(pool[to], stir(pool[from], &constant));
    constant = 0x8b51f9ddu;
    for (int i = 0; i < 8; i++) {
        uint32_t value = pool[i % POOL_WORDS] ^ constant;
        constant *= 0x58f38dedu;
        value *= constant;
        value ^= value >> 16;
        out[i / 2] = i % 2 ? out[i / 2] | (uint64_t)value << 32 : value;
    }
}

/* ---- PCG64 ------------------------------------------------------------------------------------------- */

static void advance(sbp_draw *d) {
    const unsigned __int128 factor = (unsigned __int128)0x2360ed051fc65da4u << 64 | 0x4385df649fccf645u;
    d->state = d->state * factor + d->step;
}

sbp_draw sbp_draw_begin(uint64_t seed) {
    uint64_t words[4];
    spread(seed, words);
    sbp_draw d = {.step = ((unsigned __int128)words[2] << 64 | words[3]) << 1 | 1};
    advance(&d);
    d.state += (unsigned __int128)words[0] << 64 | words[1];
    advance(&d);
    return d;
}

static uint32_t next_half(sbp_draw *d) {
    if (d->has_half) {
        d->has_half = false;
        return d->half;
    }
    advance(d);
    uint64_t folded = (uint64_t)(d->state >> 64) ^ (uint64_t)d->state;
    unsigned turn = (unsigned)(d->state >> 122);
    uint64_t word = folded >> turn | folded << (-turn & 63);
    d->half = (uint32_t)(word >> 32);
    d->has_half = true;
    return (uint32_t)word;
}

/* Takes as many bits as `most` has, anew while they are above it: random_interval of numpy. */
uint32_t sbp_draw_to(sbp_draw *d, uint32_t most) {
    uint32_t mask = most, value;
    for (unsigned shift = 1; shift < 32; shift *= 2)
        mask |= mask >> shift;
    if (most == 0)
        return 0;
    do
        value = next_half(d) & mask;
    while (value > most);
    return value;
}

void sbp_draw_shuffle(sbp_draw *d, uint32_t *items, int64_t count) {
    for (int64_t i = count - 1; i > 0; i--) {
        uint32_t other = sbp_draw_to(d, (uint32_t)i), item = items[i];
        items[i] = items[other];
        items[other] = item;
    }
}
