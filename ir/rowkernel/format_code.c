/* format_code.c: blocks on the host: out of files, into formats and back to numbers. The values are those of
 * the kernels in formats.def, which tests compare bit by bit. */
#include "ir/rowkernel/format.h"

#include <math.h>
#include <string.h>

static uint8_t at(const void *bytes, int64_t i) {
    return (uint8_t)(((const uint8_t *)bytes)[i] ^ 0x80);
}

static void put(void *bytes, int64_t i, int value) {
    ((uint8_t *)bytes)[i] = (uint8_t)(value ^ 0x80);
}

static float half(const void *halves, int64_t i) {
    uint16_t bits;
    memcpy(&bits, (const uint8_t *)halves + 2 * i, 2);
    return sbp_f32_from_f16(bits);
}

/* ---- decoding --------------------------------------------------------------------------------------- */

static const float nf4_numbers[16] = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};

static void decode_q8_0(const void *const *parts, int64_t b, float *out) {
    for (int i = 0; i < 32; i++)
        out[i] = half(parts[1], b) * (float)((const int8_t *)parts[0])[32 * b + i];
}

static void decode_q4_0(const void *const *parts, int64_t b, float *out) {
    for (int i = 0; i < 16; i++) {
        out[i] = half(parts[1], b) * (float)((at(parts[0], 16 * b + i) & 15) - 8);
        out[i + 16] = half(parts[1], b) * (float)((at(parts[0], 16 * b + i) >> 4) - 8);
    }
}

static void decode_q4_1(const void *const *parts, int64_t b, float *out) {
    for (int i = 0; i < 16; i++) {
        out[i] = half(parts[1], b) * (float)(at(parts[0], 16 * b + i) & 15) + half(parts[2], b);
        out[i + 16] = half(parts[1], b) * (float)(at(parts[0], 16 * b + i) >> 4) + half(parts[2], b);
    }
}

static void decode_q4_k(const void *const *parts, int64_t b, float *out) {
    float d = half(parts[2], 2 * b), dmin = half(parts[2], 2 * b + 1);
    for (int h = 0; h < 4; h++) {
        int x = at(parts[1], 12 * b + 3 * h), y = at(parts[1], 12 * b + 3 * h + 1),
            z = at(parts[1], 12 * b + 3 * h + 2);
        float s0 = d * (float)(x & 63), s1 = d * (float)(y & 63), m0 = dmin * (float)(z & 63),
              m1 = dmin * (float)(x >> 6 | y >> 6 << 2 | z >> 6 << 4);
        for (int i = 0; i < 32; i++) {
            int code = at(parts[0], 128 * b + 32 * h + i);
            out[64 * h + i] = s0 * (float)(code & 15) - m0;
            out[64 * h + 32 + i] = s1 * (float)(code >> 4) - m1;
        }
    }
}

static void decode_q6_k(const void *const *parts, int64_t b, float *out) {
    float d = half(parts[3], b);
    for (int i = 0; i < 256; i++) {
        int h = i / 64, low = at(parts[0], 128 * b + 32 * h + i % 32) >> (i % 64 / 32 * 4) & 15,
            high = at(parts[1], 64 * b + 16 * h + i % 16) >> (i % 64 / 16 * 2) & 3;
        float scale = d * (float)((const int8_t *)parts[2])[16 * b + i / 16];
        out[i] = scale * (float)((low | high << 4) - 32);
    }
}

static void decode_nf4(const void *const *parts, int64_t b, float *out) {
    float largest = ((const float *)parts[1])[b];
    for (int i = 0; i < 32; i++) {
        out[i] = largest * nf4_numbers[at(parts[0], 32 * b + i) & 15];
        out[i + 32] = largest * nf4_numbers[at(parts[0], 32 * b + i) >> 4];
    }
}

/* ---- out of files ----------------------------------------------------------------------------------- */

static void move_codes(const uint8_t *raw, int count, void *codes, int64_t first) {
    for (int i = 0; i < count; i++)
        put(codes, first + i, raw[i]);
}

static void move_half(const uint8_t *raw, void *halves, int64_t i) {
    memcpy((uint8_t *)halves + 2 * i, raw, 2);
}

static void split_q8_0(const uint8_t *raw, int64_t b, void *const *parts) {
    memcpy((uint8_t *)parts[0] + 32 * b, raw + 2, 32);
    move_half(raw, parts[1], b);
}

static void split_q4_0(const uint8_t *raw, int64_t b, void *const *parts) {
    move_codes(raw + 2, 16, parts[0], 16 * b);
    move_half(raw, parts[1], b);
}

static void split_q4_1(const uint8_t *raw, int64_t b, void *const *parts) {
    move_codes(raw + 4, 16, parts[0], 16 * b);
    move_half(raw, parts[1], b);
    move_half(raw + 2, parts[2], b);
}

/* Scale and minimum of group g, as ggml packs them. */
static void step_of(const uint8_t *packed, int g, int *s, int *m) {
    *s = g < 4 ? packed[g] & 63 : (packed[g + 4] & 15) | packed[g - 4] >> 6 << 4;
    *m = g < 4 ? packed[g + 4] & 63 : packed[g + 4] >> 4 | packed[g] >> 6 << 4;
}

static void split_q4_k(const uint8_t *raw, int64_t b, void *const *parts) {
    move_codes(raw + 16, 128, parts[0], 128 * b);
    for (int h = 0; h < 4; h++) {
        int s[2], m[2];
        step_of(raw + 4, 2 * h, &s[0], &m[0]);
        step_of(raw + 4, 2 * h + 1, &s[1], &m[1]);
        put(parts[1], 12 * b + 3 * h, s[0] | (m[1] & 3) << 6);
        put(parts[1], 12 * b + 3 * h + 1, s[1] | (m[1] >> 2 & 3) << 6);
        put(parts[1], 12 * b + 3 * h + 2, m[0] | m[1] >> 4 << 6);
    }
    move_half(raw, parts[2], 2 * b);
    move_half(raw + 2, parts[2], 2 * b + 1);
}

static void split_q6_k(const uint8_t *raw, int64_t b, void *const *parts) {
    uint8_t codes[256];
    for (int i = 0; i < 256; i++) {
        int low = raw[i / 128 * 64 + i % 64] >> (i % 128 / 64 * 4) & 15;
        int high = raw[128 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
        codes[i] = (uint8_t)(low | high << 4);
    }
    for (int h = 0; h < 4; h++) {
        const uint8_t *c = codes + 64 * h;
        for (int i = 0; i < 32; i++)
            put(parts[0], 128 * b + 32 * h + i, (c[i] & 15) | (c[i + 32] & 15) << 4);
        for (int i = 0; i < 16; i++)
            put(parts[1], 64 * b + 16 * h + i,
                c[i] >> 4 | c[i + 16] >> 4 << 2 | c[i + 32] >> 4 << 4 | c[i + 48] >> 4 << 6);
    }
    memcpy((uint8_t *)parts[2] + 16 * b, raw + 192, 16);
    move_half(raw + 208, parts[3], b);
}

/* ---- into formats ----------------------------------------------------------------------------------- */

static float largest_of(const float *x, int count) {
    float largest = 0;
    for (int i = 0; i < count; i++)
        largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
    return largest;
}

/* quantize_row_q8_0_ref of ggml: the codes are of the scale before it is rounded. */
static void encode_q8_0(const float *x, int64_t b, void *const *parts) {
    float d = largest_of(x, 32) / 127, inverse = d != 0 ? 1 / d : 0;
    uint16_t bits = sbp_f16_from_f32(d);
    memcpy((uint8_t *)parts[1] + 2 * b, &bits, 2);
    for (int i = 0; i < 32; i++)
        ((int8_t *)parts[0])[32 * b + i] = (int8_t)roundf(x[i] * inverse);
}

/* How many borders between neighbours, their means, lie below the share. */
static int nf4_code(float x, float inverse) {
    float share = fminf(fmaxf(x * inverse, -1), 1);
    int code = 0;
    while (code < 15 && (nf4_numbers[code] + nf4_numbers[code + 1]) / 2 < share)
        code++;
    return code;
}

static void encode_nf4(const float *x, int64_t b, void *const *parts) {
    float largest = largest_of(x, 64), inverse = 1 / fmaxf(largest, 1e-38f);
    ((float *)parts[1])[b] = largest;
    for (int i = 0; i < 32; i++)
        put(parts[0], 32 * b + i, nf4_code(x[i], inverse) | nf4_code(x[i + 32], inverse) << 4);
}

/* ---- by format -------------------------------------------------------------------------------------- */

static const struct {
    void (*decode)(const void *const *parts, int64_t block, float *out);
    int32_t raw_bytes; /* of a block in a GGUF file */
    void (*split)(const uint8_t *raw, int64_t block, void *const *parts);
    void (*encode)(const float *values, int64_t block, void *const *parts);
} codes[SBP_FORMAT_COUNT] = {
    [SBP_FORMAT_Q8_0] = {decode_q8_0, 34, split_q8_0, encode_q8_0},
    [SBP_FORMAT_Q4_0] = {decode_q4_0, 18, split_q4_0, NULL},
    [SBP_FORMAT_Q4_1] = {decode_q4_1, 20, split_q4_1, NULL},
    [SBP_FORMAT_Q4_K] = {decode_q4_k, 144, split_q4_k, NULL},
    [SBP_FORMAT_Q6_K] = {decode_q6_k, 210, split_q6_k, NULL},
    [SBP_FORMAT_NF4] = {decode_nf4, 0, NULL, encode_nf4},
};

void sbp_format_decode(sbp_format format, const void *const *parts, int64_t blocks, float *out) {
    for (int64_t b = 0; b < blocks; b++)
        codes[format].decode(parts, b, out + b * sbp_format_of(format)->block);
}

bool sbp_format_split(sbp_format format, const uint8_t *raw, int64_t blocks, void *const *parts) {
    for (int64_t b = 0; b < blocks && codes[format].split; b++)
        codes[format].split(raw + b * codes[format].raw_bytes, b, parts);
    return codes[format].split != NULL;
}

bool sbp_format_can_encode(sbp_format format) {
    return codes[format].encode != NULL;
}

void sbp_format_encode(sbp_format format, const float *values, int64_t blocks, void *const *parts) {
    for (int64_t b = 0; b < blocks; b++)
        codes[format].encode(values + b * sbp_format_of(format)->block, b, parts);
}
