/* format_code.c: blocks on the host: out of files, into formats and, by the kernels of formats.def, back to
 * numbers. */
#include "ir/rowkernel/format.h"

#include <math.h>
#include <string.h>

/* ---- decoding --------------------------------------------------------------------------------------- */

struct sbp_format_decoder {
    const sbp_format_info *format;
    const sbp_rowrunner *runner;
};

sbp_format_decoder *sbp_format_decoder_create(sbp_arena *arena, sbp_diag *diag, sbp_format format) {
    const sbp_rowkernel *kernel = sbp_format_kernel(arena, diag, format, SBP_F32);
    const sbp_rowrunner *runner = kernel ? sbp_rowrunner_create(arena, kernel) : NULL;
    if (kernel && !runner)
        (void)!sbp_fail(diag, SBP_INTERNAL, "the host cannot run kernel '%s'", kernel->name);
    if (!runner)
        return NULL;
    sbp_format_decoder *decoder = SBP_NEW(arena, sbp_format_decoder);
    *decoder = (sbp_format_decoder){.format = sbp_format_of(format), .runner = runner};
    return decoder;
}

void sbp_format_decode(const sbp_format_decoder *decoder, const void *const *parts, int64_t blocks,
                       float *out) {
    const sbp_format_info *f = decoder->format;
    sbp_rk_view views[SBP_MAX_FORMAT_PARTS + 1];
    for (int32_t k = 0; k < f->part_count; k++)
        views[k] = (sbp_rk_view){.data = (void *)(uintptr_t)parts[k], .stride = f->parts[k].count};
    views[f->part_count] = (sbp_rk_view){.data = out, .stride = f->block};
    sbp_rowrunner_run(decoder->runner, blocks, views);
}

/* ---- out of files ----------------------------------------------------------------------------------- */

static void move_codes(const uint8_t *raw, int count, void *codes, int64_t first) {
    memcpy((uint8_t *)codes + first, raw, (size_t)count);
}

static void move_half(const uint8_t *raw, void *halves, int64_t i) {
    memcpy((uint8_t *)halves + 2 * i, raw, 2);
}

static void split_q8_0(const uint8_t *raw, int64_t b, void *const *parts) {
    move_codes(raw + 2, 32, parts[0], 32 * b);
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
        uint8_t *steps = (uint8_t *)parts[1] + 12 * b + 3 * h;
        steps[0] = (uint8_t)(s[0] | (m[1] & 3) << 6);
        steps[1] = (uint8_t)(s[1] | (m[1] >> 2 & 3) << 6);
        steps[2] = (uint8_t)(m[0] | m[1] >> 4 << 6);
    }
    move_half(raw, parts[2], 2 * b);
    move_half(raw + 2, parts[2], 2 * b + 1);
}

static void split_q6_k(const uint8_t *raw, int64_t b, void *const *parts) {
    move_codes(raw, 128, parts[0], 128 * b);
    move_codes(raw + 128, 64, parts[1], 64 * b);
    move_codes(raw + 192, 16, parts[2], 16 * b);
    move_half(raw + 208, parts[3], b);
}

static void split_mxfp4(const uint8_t *raw, int64_t b, void *const *parts) {
    move_codes(raw + 1, 16, parts[0], 16 * b);
    move_codes(raw, 1, parts[1], b);
}

/* ---- what is no number ------------------------------------------------------------------------------- */

/* Six, the largest code, times 2^125 is finite. */
static bool is_bad_mxfp4(const void *const *parts, int64_t b) {
    return ((const uint8_t *)parts[1])[b] > 252;
}

static bool is_bad_fp8(const void *const *parts, int64_t b) {
    const uint8_t *codes = (const uint8_t *)parts[0] + 128 * b;
    bool bad = false;
    for (int i = 0; i < 128; i++)
        bad |= (codes[i] & 127) == 127;
    return bad;
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

static const float nf4_numbers[16] = {SBP_NF4_NUMBERS};

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
        ((uint8_t *)parts[0])[32 * b + i] =
            (uint8_t)(nf4_code(x[i], inverse) | nf4_code(x[i + 32], inverse) << 4);
}

/* ---- by format -------------------------------------------------------------------------------------- */

static const struct {
    int32_t raw_bytes; /* of a block in a GGUF file */
    void (*split)(const uint8_t *raw, int64_t block, void *const *parts);
    void (*encode)(const float *values, int64_t block, void *const *parts);
    bool (*is_bad)(const void *const *parts, int64_t block); /* NULL: no block is */
} codes[SBP_FORMAT_COUNT] = {
    [SBP_FORMAT_Q8_0] = {34, split_q8_0, encode_q8_0, NULL},
    [SBP_FORMAT_Q4_0] = {18, split_q4_0, NULL, NULL},
    [SBP_FORMAT_Q4_1] = {20, split_q4_1, NULL, NULL},
    [SBP_FORMAT_Q4_K] = {144, split_q4_k, NULL, NULL},
    [SBP_FORMAT_Q6_K] = {210, split_q6_k, NULL, NULL},
    [SBP_FORMAT_NF4] = {0, NULL, encode_nf4, NULL},
    [SBP_FORMAT_MXFP4] = {17, split_mxfp4, NULL, is_bad_mxfp4},
    [SBP_FORMAT_FP8] = {0, NULL, NULL, is_bad_fp8},
};

int64_t sbp_format_find_bad(sbp_format format, const void *const *parts, int64_t blocks) {
    for (int64_t b = 0; b < blocks && codes[format].is_bad; b++)
        if (codes[format].is_bad(parts, b))
            return b;
    return -1;
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
