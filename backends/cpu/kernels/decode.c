/* decode.c: numbers of parameters kept in blocks (ir/rowkernel/formats.def), as the block evaluator makes
 * them of the kernels there, bit for bit: one loop per block, without steps between. */
#include "backends/cpu/kernels/convert.h"
#include "backends/cpu/kernels/kernels.h"
#include "backends/cpu/rows.h"

enum { ITEM_ELEMS = 1 << 15 };

typedef struct decode_parts {
    const char *at[SBP_MAX_FORMAT_PARTS];
} decode_parts;

INLINE float f16_at(const char *at, int i) {
    return from_f16(((const uint16_t *)(const void *)at)[i]);
}

INLINE const uint8_t *bytes_of(const decode_parts *p, int part) {
    return (const uint8_t *)(const void *)p->at[part];
}

INLINE const int8_t *signed_of(const decode_parts *p, int part) {
    return (const int8_t *)(const void *)p->at[part];
}

INLINE void decode_q8_0(const decode_parts *p, float *restrict out) {
    const int8_t *codes = signed_of(p, 0);
    float d = f16_at(p->at[1], 0);
    for (int i = 0; i < 32; i++)
        out[i] = d * (float)codes[i];
}

INLINE void decode_q4_0(const decode_parts *p, float *restrict out) {
    const uint8_t *codes = bytes_of(p, 0);
    float d = f16_at(p->at[1], 0);
    for (int i = 0; i < 16; i++)
        out[i] = d * (float)((codes[i] & 15) - 8);
    for (int i = 0; i < 16; i++)
        out[i + 16] = d * (float)((codes[i] >> 4) - 8);
}

INLINE void decode_q4_1(const decode_parts *p, float *restrict out) {
    const uint8_t *codes = bytes_of(p, 0);
    float d = f16_at(p->at[1], 0), m = f16_at(p->at[2], 0);
    for (int i = 0; i < 16; i++)
        out[i] = d * (float)(codes[i] & 15) + m;
    for (int i = 0; i < 16; i++)
        out[i + 16] = d * (float)(codes[i] >> 4) + m;
}

INLINE void decode_q4_k(const decode_parts *p, float *restrict out) {
    float d = f16_at(p->at[2], 0), least = f16_at(p->at[2], 1);
    for (int h = 0; h < 4; h++, out += 64) {
        const uint8_t *codes = bytes_of(p, 0) + h * 32, *steps = bytes_of(p, 1) + h * 3;
        int m1 = (steps[0] >> 6) + (steps[1] >> 6 << 2) + (steps[2] >> 6 << 4);
        float d0 = d * (float)(steps[0] & 63), d1 = d * (float)(steps[1] & 63);
        float min0 = least * (float)(steps[2] & 63), min1 = least * (float)m1;
        for (int i = 0; i < 32; i++)
            out[i] = d0 * (float)(codes[i] & 15) - min0;
        for (int i = 0; i < 32; i++)
            out[i + 32] = d1 * (float)(codes[i] >> 4) - min1;
    }
}

INLINE void decode_q6_k(const decode_parts *p, float *restrict out) {
    float d = f16_at(p->at[3], 0);
    for (int h = 0; h < 2; h++) {
        const uint8_t *codes = bytes_of(p, 0) + h * 64, *high = bytes_of(p, 1) + h * 32;
        const int8_t *steps = signed_of(p, 2) + h * 8;
        for (int k = 0; k < 4; k++) /* 32 numbers each, of two steps */
            for (int half = 0; half < 2; half++, out += 16) {
                const uint8_t *low = codes + k % 2 * 32 + half * 16, *top = high + half * 16;
                float scale = d * (float)steps[2 * k + half];
                for (int i = 0; i < 16; i++)
                    out[i] = scale * (float)((low[i] >> k / 2 * 4 & 15) + ((top[i] >> 2 * k & 3) << 4) - 32);
            }
    }
}

static const float nf4_numbers[] = {SBP_NF4_NUMBERS};

INLINE void decode_nf4(const decode_parts *p, float *restrict out) {
    const uint8_t *codes = bytes_of(p, 0);
    float largest = *(const float *)(const void *)p->at[1];
#if CPU_VECTOR_BYTES == 64
    __m512 numbers = _mm512_loadu_ps(nf4_numbers), scale = _mm512_set1_ps(largest);
    for (int i = 0; i < 32; i += 16) {
        __m512i code = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(codes + i)));
        __m512i above = _mm512_srli_epi32(code, 4); /* only the low four bits of a code choose */
        _mm512_storeu_ps(out + i, _mm512_mul_ps(scale, _mm512_permutexvar_ps(code, numbers)));
        _mm512_storeu_ps(out + i + 32, _mm512_mul_ps(scale, _mm512_permutexvar_ps(above, numbers)));
    }
#else
    for (int i = 0; i < 32; i++) {
        out[i] = largest * nf4_numbers[codes[i] & 15];
        out[i + 32] = largest * nf4_numbers[codes[i] >> 4];
    }
#endif
}

/* `blocks` of a format from `first` on, one behind the other. */
void ISA_NAME(decode)(const cpu_command *command, int64_t first, int64_t blocks, char *out) {
    const sbp_format_info *f = sbp_format_of(command->plan->decodes);
    sbp_dtype to = command->views[f->part_count].dtype;
    decode_parts p;
    int64_t part_bytes[SBP_MAX_FORMAT_PARTS] = {0};
    for (int32_t k = 0; k < f->part_count; k++) {
        part_bytes[k] = command->views[k].stride * sbp_dtype_bytes(command->views[k].dtype);
        p.at[k] = command->views[k].data + first * part_bytes[k];
    }
    _Alignas(64) float numbers[SBP_FORMAT_LARGEST_BLOCK];
#define DECODE(id, decoder)                                                                                  \
    case SBP_FORMAT_##id:                                                                                    \
        for (int64_t b = 0; b < blocks; b++) {                                                               \
            decoder(&p, to == SBP_F32 ? (float *)(void *)out : numbers);                                     \
            if (to != SBP_F32)                                                                               \
                store_row_f32(out, to, numbers, f->block);                                                   \
            out += f->block * sbp_dtype_bytes(to);                                                           \
            for (int32_t k = 0; k < f->part_count; k++)                                                      \
                p.at[k] += part_bytes[k];                                                                    \
        }                                                                                                    \
        break;
    switch (command->plan->decodes) {
        DECODE(Q8_0, decode_q8_0)
        DECODE(Q4_0, decode_q4_0)
        DECODE(Q4_1, decode_q4_1)
        DECODE(Q4_K, decode_q4_k)
        DECODE(Q6_K, decode_q6_k)
        DECODE(NF4, decode_nf4)
    default:
        break;
    }
#undef DECODE
}

static void decode_item(void *arg, int64_t item, char *scratch) {
    const cpu_command *command = arg;
    const sbp_format_info *f = sbp_format_of(command->plan->decodes);
    const cpu_view *to = &command->views[f->part_count];
    int64_t blocks = ITEM_ELEMS / f->block, first = item * blocks;
    (void)scratch;
    if (command->rows - first < blocks)
        blocks = command->rows - first;
    ISA_NAME(decode)(command, first, blocks, to->data + first * to->stride * sbp_dtype_bytes(to->dtype));
}

void ISA_NAME(decode_rows)(cpu_lane *lane, const cpu_command *command) {
    cpu_command copy = *command; /* the pool takes what it may write to */
    int64_t blocks = ITEM_ELEMS / sbp_format_of(command->plan->decodes)->block;
    cpu_pool_run(lane->pool, sbp_ceil_div(command->rows, blocks), decode_item, &copy);
}
