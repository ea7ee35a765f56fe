/* gguf_quant.c: the block types of ggml; those that are no format of frozen weights
 * (ir/rowkernel/formats.def, which decodes the others) are decoded to floats here. Layouts follow
 * ggml-quants.c; the tests compare bit for bit with the Python package `gguf`. All fields are little-endian
 * and may be unaligned. */
#include "frontends/formats/weights/weights_internal.h"

#include <string.h>

static uint32_t little32(const uint8_t *bytes) {
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

static float half(const uint8_t *bytes) {
    return sbp_f32_from_f16((uint16_t)(bytes[0] | bytes[1] << 8));
}

/* Blocks of 32: scale d, for Q5_1 also minimum m, a fifth bit per value, then 4-bit codes: value i is in the
 * low half of byte i, value i + 16 in the high half. */
static void decode_q5_0(const uint8_t *block, float *out) {
    float d = half(block);
    uint32_t high = little32(block + 2);
    for (int i = 0; i < 16; i++) {
        int low = (block[6 + i] & 15) | (int)((high >> i & 1) << 4);
        int top = (block[6 + i] >> 4) | (int)((high >> (i + 16) & 1) << 4);
        out[i] = d * (float)(low - 16);
        out[i + 16] = d * (float)(top - 16);
    }
}

static void decode_q5_1(const uint8_t *block, float *out) {
    float d = half(block), m = half(block + 2);
    uint32_t high = little32(block + 4);
    for (int i = 0; i < 16; i++) {
        int low = (block[8 + i] & 15) | (int)((high >> i & 1) << 4);
        int top = (block[8 + i] >> 4) | (int)((high >> (i + 16) & 1) << 4);
        out[i] = d * (float)low + m;
        out[i + 16] = d * (float)top + m;
    }
}

/* Blocks of 256 in 16 groups of 16: 4-bit scale and minimum a group, 2-bit codes. Codes of 32 consecutive
 * bytes hold 128 values: byte i has values i, i + 32, i + 64, i + 96. */
static void decode_q2_k(const uint8_t *block, float *out) {
    const uint8_t *scales = block, *codes = block + 16;
    float d = half(block + 80), dmin = half(block + 82);
    for (int i = 0; i < 256; i++) {
        int group = i / 16, code = codes[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
        out[i] = d * (float)(scales[group] & 15) * (float)code - dmin * (float)(scales[group] >> 4);
    }
}

/* As Q2_K with a third bit (hmask, inverted) and signed 6-bit scales packed into 12 bytes. */
static void decode_q3_k(const uint8_t *block, float *out) {
    const uint8_t *mask = block, *codes = block + 32, *packed = block + 96;
    float d = half(block + 108);
    float scale[16];
    for (int g = 0; g < 16; g++) {
        int low = g < 8 ? packed[g] & 15 : packed[g - 8] >> 4;
        int high = packed[8 + g % 4] >> (g / 4 * 2) & 3;
        scale[g] = d * (float)((low | high << 4) - 32);
    }
    for (int i = 0; i < 256; i++) {
        int code = codes[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
        int high = mask[i % 32] >> (i / 32) & 1;
        out[i] = scale[i / 16] * (float)(code - (high ? 0 : 4));
    }
}

/* 8 groups of 32: 6-bit scale and minimum, packed into 12 bytes. */
static void scales_k4(const uint8_t *packed, float d, float dmin, float *scale, float *minimum) {
    for (int g = 0; g < 8; g++) {
        int s, m;
        if (g < 4) {
            s = packed[g] & 63;
            m = packed[g + 4] & 63;
        } else {
            s = (packed[g + 4] & 15) | (packed[g - 4] >> 6) << 4;
            m = packed[g + 4] >> 4 | (packed[g] >> 6) << 4;
        }
        scale[g] = d * (float)s;
        minimum[g] = dmin * (float)m;
    }
}

static void decode_q5_k(const uint8_t *block, float *out) {
    float scale[8], minimum[8];
    scales_k4(block + 4, half(block), half(block + 2), scale, minimum);
    const uint8_t *high = block + 16, *codes = block + 48;
    for (int i = 0; i < 256; i++) {
        int code = codes[i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4) & 15;
        code |= (high[i % 32] >> (i / 32) & 1) << 4;
        out[i] = scale[i / 32] * (float)code - minimum[i / 32];
    }
}

/* Q8_1, Q8_K: of what is computed on the way, in no files. */
static const sbp_quant quants[] = {
    {"F32", 0, 1, 4, SBP_F32, NULL},
    {"F16", 1, 1, 2, SBP_F16, NULL},
    {"Q4_0", 2, 32, 18, -1, NULL},
    {"Q4_1", 3, 32, 20, -1, NULL},
    {"Q5_0", 6, 32, 22, -1, decode_q5_0},
    {"Q5_1", 7, 32, 24, -1, decode_q5_1},
    {"Q8_0", 8, 32, 34, -1, NULL},
    {"Q8_1", 9, 32, 40, -1, NULL},
    {"Q2_K", 10, 256, 84, -1, decode_q2_k},
    {"Q3_K", 11, 256, 110, -1, decode_q3_k},
    {"Q4_K", 12, 256, 144, -1, NULL},
    {"Q5_K", 13, 256, 176, -1, decode_q5_k},
    {"Q6_K", 14, 256, 210, -1, NULL},
    {"Q8_K", 15, 256, 292, -1, NULL},
    {"IQ2_XXS", 16, 256, 66, -1, sbp_quant_iq2_xxs},
    {"IQ2_XS", 17, 256, 74, -1, sbp_quant_iq2_xs},
    {"IQ3_XXS", 18, 256, 98, -1, sbp_quant_iq3_xxs},
    {"IQ1_S", 19, 256, 50, -1, sbp_quant_iq1_s},
    {"IQ4_NL", 20, 32, 18, -1, sbp_quant_iq4_nl},
    {"IQ3_S", 21, 256, 110, -1, sbp_quant_iq3_s},
    {"IQ2_S", 22, 256, 82, -1, sbp_quant_iq2_s},
    {"IQ4_XS", 23, 256, 136, -1, sbp_quant_iq4_xs},
    {"I8", 24, 1, 1, SBP_I8, NULL},
    {"I16", 25, 1, 2, -1, NULL},
    {"I32", 26, 1, 4, SBP_I32, NULL},
    {"I64", 27, 1, 8, SBP_I64, NULL},
    {"F64", 28, 1, 8, SBP_F64, NULL},
    {"IQ1_M", 29, 256, 56, -1, sbp_quant_iq1_m},
    {"BF16", 30, 1, 2, SBP_BF16, NULL},
    {"TQ1_0", 34, 256, 54, -1, sbp_quant_tq1_0},
    {"TQ2_0", 35, 256, 66, -1, sbp_quant_tq2_0},
    {"MXFP4", 39, 32, 17, -1, NULL},
    {"NVFP4", 40, 64, 36, -1, sbp_quant_nvfp4},
};

const sbp_quant *sbp_quant_of(int32_t type) {
    for (int i = 0; i < SBP_COUNT(quants); i++)
        if (quants[i].type == type)
            return &quants[i];
    return NULL;
}
