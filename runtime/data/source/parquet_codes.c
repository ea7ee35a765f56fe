/* parquet_codes.c: numbers of a few bits: runs, packed groups, deltas. */
#include <string.h>

#include "runtime/data/source/parquet.h"

static bool varint(sbp_parquet_span *in, uint64_t *out) {
    *out = 0;
    for (int shift = 0; shift < 64 && in->at < in->length; shift += 7) {
        uint8_t b = in->data[in->at++];
        *out |= (uint64_t)(b & 0x7f) << shift;
        if (!(b & 0x80))
            return true;
    }
    return false;
}

/* `width` bits (at most 64) from bit `at`, least first; the caller has seen that they are there. */
static uint64_t bits(const uint8_t *data, int64_t at, int width) {
    uint64_t value = 0;
    for (int got = 0; got < width;) {
        int shift = (int)(at & 7), take = 8 - shift < width - got ? 8 - shift : width - got;
        value |= (uint64_t)((data[at >> 3] >> shift) & ((1 << take) - 1)) << got;
        got += take;
        at += take;
    }
    return value;
}

/* ---- runs ------------------------------------------------------------------------------------------- */

void sbp_parquet_runs_begin(sbp_parquet_runs *runs, const uint8_t *data, int64_t length, int width) {
    *runs = (sbp_parquet_runs){.in = {data, 0, length}, .width = width};
}

static bool next_run(sbp_parquet_runs *r) {
    uint64_t head;
    if (!varint(&r->in, &head) || head >> 1 == 0 || head >> 1 > (uint64_t)1 << 40)
        return false;
    r->packed = head & 1;
    if (r->packed) {
        int64_t groups = (int64_t)(head >> 1), bytes = groups * r->width;
        int64_t there = r->in.length - r->in.at;
        r->bit = r->in.at * 8;
        if (bytes > there) { /* the last group may be cut short */
            if (r->width == 0 || there <= 0)
                return false;
            r->left = there * 8 / r->width;
            r->in.at = r->in.length;
            return r->left > 0;
        }
        r->left = groups * 8;
        r->in.at += bytes;
        return true;
    }
    r->left = (int64_t)(head >> 1);
    int bytes = (r->width + 7) / 8;
    if (bytes > r->in.length - r->in.at)
        return false;
    r->value = bits(r->in.data, r->in.at * 8, bytes * 8);
    r->in.at += bytes;
    return true;
}

bool sbp_parquet_runs_next(sbp_parquet_runs *r, uint64_t *out) {
    if (r->left == 0 && !next_run(r))
        return false;
    r->left--;
    if (r->packed) {
        r->value = bits(r->in.data, r->bit, r->width);
        r->bit += r->width;
    }
    *out = r->value;
    return true;
}

/* ---- deltas ----------------------------------------------------------------------------------------- */

static uint64_t unzigzag(uint64_t n) {
    return n >> 1 ^ (0 - (n & 1));
}

bool sbp_parquet_delta_begin(sbp_parquet_delta *d, const uint8_t *data, int64_t length) {
    uint64_t block, minis, count, first;
    *d = (sbp_parquet_delta){.in = {data, 0, length}, .first = true};
    if (!varint(&d->in, &block) || !varint(&d->in, &minis) || !varint(&d->in, &count) ||
        !varint(&d->in, &first))
        return false;
    if (minis == 0 || minis > sizeof d->widths || block > 1 << 24 || block == 0 || block % (minis * 8) != 0 ||
        count > (uint64_t)1 << 40)
        return false;
    d->block = (int64_t)block;
    d->minis = (int64_t)minis;
    d->per_mini = d->block / d->minis;
    d->left = (int64_t)count;
    d->value = unzigzag(first);
    return true;
}

static bool next_block(sbp_parquet_delta *d) {
    uint64_t least;
    if (!varint(&d->in, &least) || d->in.length - d->in.at < d->minis)
        return false;
    d->least = unzigzag(least);
    memcpy(d->widths, d->in.data + d->in.at, (size_t)d->minis);
    d->in.at += d->minis;
    d->in_block = d->block;
    d->mini = -1;
    return true;
}

/* The next part; those of the last block that have no value have no bytes. */
static bool next_mini(sbp_parquet_delta *d) {
    d->mini++;
    d->in_mini = d->per_mini;
    int64_t bytes = d->per_mini * d->widths[d->mini] / 8;
    if (d->widths[d->mini] > 64 || bytes > d->in.length - d->in.at)
        return false;
    d->bit = d->in.at * 8;
    d->in.at += bytes;
    return true;
}

bool sbp_parquet_delta_next(sbp_parquet_delta *d, int64_t *out) {
    if (d->left == 0)
        return false;
    if (!d->first) {
        if (d->in_block == 0 && !next_block(d))
            return false;
        if (d->in_mini == 0 && !next_mini(d))
            return false;
        d->value += d->least + bits(d->in.data, d->bit, d->widths[d->mini]);
        d->bit += d->widths[d->mini];
        d->in_mini--;
        d->in_block--;
    }
    d->first = false;
    d->left--;
    *out = (int64_t)d->value;
    return true;
}

int64_t sbp_parquet_delta_bytes(sbp_parquet_delta d) {
    int64_t value;
    while (d.left > 0)
        if (!sbp_parquet_delta_next(&d, &value))
            return -1;
    return d.in.at;
}
