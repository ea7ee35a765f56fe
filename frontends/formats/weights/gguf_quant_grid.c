/* gguf_quant_grid.c: ggml's block types whose codes are no numbers: ternary ones, those of tables of 16
 * numbers, and those of grids, in which a code stands for four or eight neighbours (gguf_grids.def). Layouts
 * follow ggml-quants.c; the tests compare bit for bit with the Python package `gguf`. Products of a scale and
 * a number of a grid are exact, whatever their order. */
#include "frontends/formats/weights/weights_internal.h"

#include <string.h>

#define GRID(name, count, ...) static const uint16_t name[count] = {__VA_ARGS__};
#include "frontends/formats/weights/gguf_grids.def"

static uint16_t little16(const uint8_t *bytes) {
    return (uint16_t)(bytes[0] | bytes[1] << 8);
}

static uint32_t little32(const uint8_t *bytes) {
    return (uint32_t)little16(bytes) | (uint32_t)little16(bytes + 2) << 16;
}

static float half(const uint8_t *bytes) {
    return sbp_f32_from_f16(little16(bytes));
}

/* IQ2: a code's entry has eight numbers of two bits, each one of these three. */
static const int8_t thirds[4] = {8, 25, 43, 0}, ternary[4] = {-1, 0, 1, 0};
/* IQ3: a code's entry has four numbers of three bits, each one of these eight. */
static const int8_t coarse[8] = {4, 12, 20, 28, 36, 44, 52, 62}, odd[8] = {1, 3, 5, 7, 9, 11, 13, 15};

/* Eight signs of seven bits: the eighth makes their number even. */
static uint32_t with_parity(uint32_t bits) {
    uint32_t sum = bits ^ bits >> 4;
    sum ^= sum >> 2;
    return bits | ((sum ^ sum >> 1) & 1) << 7;
}

static void put_eight(uint16_t entry, const int8_t *levels, uint32_t signs, float scale, float *out) {
    for (int i = 0; i < 8; i++) {
        float x = scale * (float)levels[entry >> 2 * i & 3];
        out[i] = signs >> i & 1 ? -x : x;
    }
}

static void put_four(uint16_t entry, const int8_t *levels, uint32_t signs, float scale, float *out) {
    for (int i = 0; i < 4; i++) {
        float x = scale * (float)levels[entry >> 3 * i & 7];
        out[i] = signs >> i & 1 ? -x : x;
    }
}

/* Groups of 32: four codes of a byte, then 28 bits of signs and a scale of 4. */
void sbp_quant_iq2_xxs(const uint8_t *block, float *out) {
    for (int g = 0; g < 8; g++) {
        const uint8_t *codes = block + 2 + 8 * g;
        uint32_t rest = little32(codes + 4);
        float scale = half(block) * (0.5F + (float)(rest >> 28)) * 0.25F;
        for (int k = 0; k < 4; k++)
            put_eight(iq2_xxs[codes[k]], thirds, with_parity(rest >> 7 * k & 127), scale,
                      out + 32 * g + 8 * k);
    }
}

/* 32 codes of 9 bits with 7 bits of signs, then a scale of 4 bits for each 16. */
void sbp_quant_iq2_xs(const uint8_t *block, float *out) {
    for (int k = 0; k < 32; k++) {
        uint16_t code = little16(block + 2 + 2 * k);
        float scale = half(block) * (0.5F + (float)(block[66 + k / 4] >> k / 2 % 2 * 4 & 15)) * 0.25F;
        put_eight(iq2_xs[code & 511], thirds, with_parity(code >> 9), scale, out + 8 * k);
    }
}

/* 32 codes of 10 bits: a byte each, then their signs, then two bits each; a scale of 4 bits for each 16. */
void sbp_quant_iq2_s(const uint8_t *block, float *out) {
    for (int k = 0; k < 32; k++) {
        int code = block[2 + k] | (block[66 + k / 4] >> k % 4 * 2 & 3) << 8;
        float scale = half(block) * (0.5F + (float)(block[74 + k / 4] >> k / 2 % 2 * 4 & 15)) * 0.25F;
        put_eight(iq2_s[code], thirds, block[34 + k], scale, out + 8 * k);
    }
}

/* 64 codes of a byte; then for each 32 numbers 28 bits of signs and a scale of 4. */
void sbp_quant_iq3_xxs(const uint8_t *block, float *out) {
    for (int k = 0; k < 64; k++) {
        uint32_t rest = little32(block + 66 + 4 * (k / 8)),
                 signs = with_parity(rest >> 7 * (k / 2 % 4) & 127);
        float scale = half(block) * (0.5F + (float)(rest >> 28)) * 0.5F;
        put_four(iq3_xxs[block[2 + k]], coarse, signs >> k % 2 * 4, scale, out + 4 * k);
    }
}

/* 64 codes of 9 bits: a byte each, then a bit each; then signs, and a scale of 4 bits for each 32. */
void sbp_quant_iq3_s(const uint8_t *block, float *out) {
    for (int k = 0; k < 64; k++) {
        int code = block[2 + k] | (block[66 + k / 8] >> k % 8 & 1) << 8;
        float scale = half(block) * (float)(1 + 2 * (block[106 + k / 16] >> k / 8 % 2 * 4 & 15));
        put_four(iq3_s[code], odd, (uint32_t)block[74 + k / 2] >> k % 2 * 4, scale, out + 4 * k);
    }
}

/* Eight of -1, 0, 1, all of them an eighth more or less. */
static void put_ternary(int code, bool less, float scale, float *out) {
    for (int i = 0; i < 8; i++)
        out[i] = scale * ((float)ternary[iq1_s[code] >> 2 * i & 3] + (less ? -0.125F : 0.125F));
}

/* 32 codes of 11 bits: a byte each, then for each 32 numbers three bits each, a scale of 3 and
 * which eighth. */
void sbp_quant_iq1_s(const uint8_t *block, float *out) {
    for (int k = 0; k < 32; k++) {
        int rest = little16(block + 34 + 2 * (k / 4)), code = block[2 + k] | (rest >> 3 * (k % 4) & 7) << 8;
        put_ternary(code, rest >> 15 != 0, half(block) * (float)(2 * (rest >> 12 & 7) + 1), out + 8 * k);
    }
}

/* The same with a nibble for each code: three bits and which eighth; scales of 3 bits for each 16 numbers,
 * four in 16 bits, whose highest four are a part of the block's. */
void sbp_quant_iq1_m(const uint8_t *block, float *out) {
    uint32_t d = 0;
    for (int i = 0; i < 4; i++)
        d |= (uint32_t)(little16(block + 48 + 2 * i) >> 12) << 4 * i;
    for (int k = 0; k < 32; k++) {
        int rest = block[32 + k / 2] >> k % 2 * 4 & 15, code = block[k] | (rest & 7) << 8;
        int step = little16(block + 48 + 2 * (k / 8)) >> 3 * (k / 2 % 4) & 7;
        put_ternary(code, (rest & 8) != 0, sbp_f32_from_f16((uint16_t)d) * (float)(2 * step + 1),
                    out + 8 * k);
    }
}

static const int8_t sixteen[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

/* Blocks of 32: byte i has the codes of values i and i + 16. */
static void put_sixteen(const uint8_t *codes, float scale, float *out) {
    for (int i = 0; i < 16; i++) {
        out[i] = scale * (float)sixteen[codes[i] & 15];
        out[i + 16] = scale * (float)sixteen[codes[i] >> 4];
    }
}

void sbp_quant_iq4_nl(const uint8_t *block, float *out) {
    put_sixteen(block + 2, half(block), out);
}

/* Groups of 32 with a scale of 6 bits: two of them in 16 bits for all, then four each. */
void sbp_quant_iq4_xs(const uint8_t *block, float *out) {
    int high = little16(block + 2);
    for (int g = 0; g < 8; g++) {
        int step = (block[4 + g / 2] >> g % 2 * 4 & 15) | (high >> 2 * g & 3) << 4;
        put_sixteen(block + 8 + 16 * g, half(block) * (float)(step - 32), out + 32 * g);
    }
}

/* Five numbers of -1, 0, 1 in a byte as the first digits of a fraction in base 3; `count` bytes
 * side by side. */
static float *put_digits(const uint8_t *codes, int count, int digits, float scale, float *out) {
    int power = 1;
    for (int n = 0; n < digits; n++, power *= 3)
        for (int i = 0; i < count; i++)
            *out++ = scale * (float)(((uint8_t)(codes[i] * power) * 3 >> 8) - 1);
    return out;
}

void sbp_quant_tq1_0(const uint8_t *block, float *out) {
    float scale = half(block + 52);
    out = put_digits(block, 32, 5, scale, out);
    out = put_digits(block + 32, 16, 5, scale, out);
    put_digits(block + 48, 4, 4, scale, out);
}

/* Two bits each: byte i of 32 has values i, i + 32, i + 64, i + 96. */
void sbp_quant_tq2_0(const uint8_t *block, float *out) {
    float scale = half(block + 64);
    for (int i = 0; i < 256; i++)
        out[i] = scale * (float)((block[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3) - 1);
}

/* Four groups of 16 codes of E2M1, doubled, with scales of E4M3 without a sign, halved. */
void sbp_quant_nvfp4(const uint8_t *block, float *out) {
    static const int8_t doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    for (int g = 0; g < 4; g++) {
        int exponent = block[g] >> 3 & 15, mantissa = block[g] & 7;
        uint32_t size = (uint32_t)(exponent ? 8 + mantissa : mantissa) << (exponent ? exponent - 1 : 0);
        float scale = block[g] == 0x7f ? 0 : (float)size * 0x1p-10F; /* 2^-9 halved */
        for (int i = 0; i < 8; i++) {
            out[16 * g + i] = scale * (float)doubled[block[4 + 8 * g + i] & 15];
            out[16 * g + i + 8] = scale * (float)doubled[block[4 + 8 * g + i] >> 4];
        }
    }
}
