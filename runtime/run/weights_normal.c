/* weights_normal.c: normal numbers by the formula of weights.h, a hundred at a time.
 *
 * What is kept of a number is its rounding to fp32 or to 16 bits. So each pair is computed by polynomials
 * that compilers make vectors of, to ROOM at least, and where the numbers up to ROOM below and above do not
 * round to the same, which is one of 10^4 or fewer, by the C library's functions as the formula says: the
 * bits are the formula's on every machine. */
#include "runtime/run/weights_internal.h"

#include <math.h>
#include <string.h>

enum { PAIRS = 128 };

/* How far a normal number may be off: the polynomials below are right to 10^-15, and so is the formula's own
 * angle; the radius, at most 6.8, is times cosine or sine. */
#define ROOM 1e-12

/* The same loops for wider vectors where the processor has them. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) &&     \
    !defined(__SANITIZE_THREAD__)
#define FOR_EACH_PROCESSOR                                                                                   \
    __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"), optimize("O3")))
#else
#define FOR_EACH_PROCESSOR
#endif

static double of_bits(uint64_t bits) {
    double value;
    memcpy(&value, &bits, 8);
    return value;
}

static uint64_t bits_of(double value) {
    uint64_t bits;
    memcpy(&bits, &value, 8);
    return bits;
}

double sbp_normal_uniform(const sbp_normal_source *n, int64_t index) {
    const uint32_t counter[4] = {(uint32_t)index, (uint32_t)((uint64_t)index >> 32), (uint32_t)n->name_hash,
                                 (uint32_t)(n->name_hash >> 32)};
    const uint32_t key[2] = {(uint32_t)n->seed, (uint32_t)(n->seed >> 32)};
    return ((double)sbp_philox(counter, key) + 0.5) * 0x1p-32;
}

double sbp_normal_at(const sbp_normal_source *n, int64_t index) {
    int64_t pair = index / 2;
    double radius = n->deviation * sqrt(-2 * log(sbp_normal_uniform(n, 2 * pair)));
    double angle = 6.283185307179586 * sbp_normal_uniform(n, 2 * pair + 1);
    return radius * (index % 2 ? sin(angle) : cos(angle));
}

/* Words of pairs first .. first + PAIRS. */
FOR_EACH_PROCESSOR static void sample_words(const sbp_normal_source *n, uint64_t first, uint32_t *words) {
    uint32_t h0 = (uint32_t)n->name_hash, h1 = (uint32_t)(n->name_hash >> 32);
    uint32_t s0 = (uint32_t)n->seed, s1 = (uint32_t)(n->seed >> 32);
    for (uint32_t i = 0; i < 2 * PAIRS; i++) {
        uint64_t index = 2 * first + i;
        uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32), c2 = h0, c3 = h1, k0 = s0, k1 = s1;
        for (int round = 0; round < 10; round++) { /* as sbp_philox_words */
            uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
            c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
            c1 = (uint32_t)p1;
            c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
            c3 = (uint32_t)p0;
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        words[i] = c0;
    }
}

/* (word + 1/2) / 2^32 exactly: the word in the low bits of 2^52. */
static double uniform_of(uint32_t word) {
    return (of_bits(0x4330000000000000u | word) - 0x1p52 + 0.5) * 0x1p-32;
}

/* log u = e log 2 + 2 atanh((m - 1) / (m + 1)), m between the roots of 1/2 and 2; for u below 1. */
static double log_of(double u) {
    const uint64_t root = 0x3fe6a09e667f3bcdu, one = 0x3ff0000000000000u;
    uint64_t bits = bits_of(u) + (one - root);
    double m = of_bits((bits & 0xfffffffffffffu) + root);
    double e = of_bits(0x4330000000000000u | (bits >> 52)) - (0x1p52 + 1023);
    double s = (m - 1) / (m + 1), z = s * s, sum = 1.0 / 23;
    sum = sum * z + 1.0 / 21;
    sum = sum * z + 1.0 / 19;
    sum = sum * z + 1.0 / 17;
    sum = sum * z + 1.0 / 15;
    sum = sum * z + 1.0 / 13;
    sum = sum * z + 1.0 / 11;
    sum = sum * z + 1.0 / 9;
    sum = sum * z + 1.0 / 7;
    sum = sum * z + 1.0 / 5;
    sum = sum * z + 1.0 / 3;
    sum = sum * z + 1;
    return e * 0.6931471805599453 + 2 * s * sum;
}

/* Taylor's series, up to a quarter of pi. */
static double sin_of(double x) {
    double z = x * x, sum = -1.0 / 1307674368000;
    sum = sum * z + 1.0 / 6227020800;
    sum = sum * z - 1.0 / 39916800;
    sum = sum * z + 1.0 / 362880;
    sum = sum * z - 1.0 / 5040;
    sum = sum * z + 1.0 / 120;
    sum = sum * z - 1.0 / 6;
    return x + x * z * sum;
}

static double cos_of(double x) {
    double z = x * x, sum = 1.0 / 20922789888000;
    sum = sum * z - 1.0 / 87178291200;
    sum = sum * z + 1.0 / 479001600;
    sum = sum * z - 1.0 / 3628800;
    sum = sum * z + 1.0 / 40320;
    sum = sum * z - 1.0 / 720;
    sum = sum * z + 1.0 / 24;
    sum = sum * z - 0.5;
    return 1 + z * sum;
}

static double chosen(uint64_t all_or_none, double yes, double no) {
    return of_bits((bits_of(yes) & all_or_none) | (bits_of(no) & ~all_or_none));
}

/* Pairs of words to pairs of numbers. */
FOR_EACH_PROCESSOR static void make_pairs(const uint32_t *words, double deviation, double *out) {
    double radius[PAIRS], angle[PAIRS];
    for (int i = 0; i < PAIRS; i++)
        radius[i] = -2 * log_of(uniform_of(words[2 * i]));
    for (int i = 0; i < PAIRS; i++) {
        radius[i] = deviation * sqrt(radius[i]);
        angle[i] = uniform_of(words[2 * i + 1]);
    }
    for (int i = 0; i < PAIRS; i++) {
        const double whole = 0x1.8p52; /* what is added to it is rounded to an integer */
        double quarter = 4 * angle[i] + whole, x = (4 * angle[i] - (quarter - whole)) * 1.5707963267948966;
        uint64_t q = bits_of(quarter), odd = 0 - (q & 1);
        double s = sin_of(x), c = cos_of(x), first = chosen(odd, s, c), second = chosen(odd, c, s);
        out[2 * i] = radius[i] * of_bits(bits_of(first) ^ (((q + 1) & 2) << 62));
        out[2 * i + 1] = radius[i] * of_bits(bits_of(second) ^ ((q & 2) << 62));
    }
}

/* Where rounding is in doubt: what lies up to room below and above is not one number of fp32, or it is one
 * that lies in the middle of two of 16 bits, or near to where f16 has fewer digits. Returns how many are. */
FOR_EACH_PROCESSOR static int32_t doubt(sbp_dtype dtype, const double *a, double room, uint32_t *doubts) {
    uint32_t rest = dtype == SBP_BF16 ? 0xffff : dtype == SBP_F16 ? 0x1fff : 0;
    uint32_t middle = dtype == SBP_BF16 ? 0x8000 : dtype == SBP_F16 ? 0x1000 : 1;
    float least = dtype == SBP_F16 ? 0x1p-14F : 0;
    uint32_t count = 0;
    for (int i = 0; i < 2 * PAIRS; i++) {
        float low = (float)(a[i] - room), high = (float)(a[i] + room);
        uint32_t bits;
        memcpy(&bits, &low, 4);
        doubts[i] =
            (uint32_t)(low != high) | (uint32_t)((bits & rest) == middle) | (uint32_t)(fabsf(low) < least);
        count += doubts[i];
    }
    return (int32_t)count;
}

/* The pairs from `pair` on, as the formula has them or rounding to the same. */
static void sample_pairs(const sbp_normal_source *n, sbp_dtype dtype, int64_t pair, double *out) {
    uint32_t words[2 * PAIRS], doubts[2 * PAIRS];
    sample_words(n, (uint64_t)pair, words);
    make_pairs(words, n->deviation, out);
    if (doubt(dtype, out, fabs(n->deviation) * ROOM, doubts) == 0)
        return;
    for (int i = 0; i < 2 * PAIRS; i++)
        if (doubts[i])
            out[i] = sbp_normal_at(n, 2 * pair + i);
}

void sbp_normal_sample(const sbp_normal_source *n, sbp_dtype dtype, int64_t first, int64_t count,
                       double *out) {
    double pairs[2 * PAIRS];
    bool exact = dtype != SBP_F32 && dtype != SBP_BF16 && dtype != SBP_F16;
    for (int64_t done = 0, some; done < count; done += some) {
        int64_t skip = (first + done) % 2;
        some = 2 * PAIRS - skip < count - done ? 2 * PAIRS - skip : count - done;
        if (exact || some < PAIRS) {
            for (int64_t k = 0; k < some; k++)
                out[done + k] = sbp_normal_at(n, first + done + k);
            continue;
        }
        sample_pairs(n, dtype, (first + done) / 2, pairs);
        memcpy(out + done, pairs + skip, (size_t)some * sizeof *out);
    }
}
