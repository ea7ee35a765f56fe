/* weights_read.c: numbers of tensors of any format, with conversion; also of those that files hold in several
 * tensors (weights_joined.c). */
#include "frontends/formats/weights/weights_internal.h"
#include "ir/base/census.h"

#include <math.h>
#include <string.h>

/* ---- reading --------------------------------------------------------------------------------------- */

/* n floats to a float type. */
static void store_floats(const float *in, sbp_dtype dtype, void *out, int64_t n) {
    switch (dtype) {
    case SBP_F32:
        memcpy(out, in, (size_t)n * sizeof *in);
        break;
    case SBP_BF16:
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)out)[i] = sbp_bf16_from_f32(in[i]);
        break;
    case SBP_F16:
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)out)[i] = sbp_f16_from_f32(in[i]);
        break;
    default: /* SBP_F64: the only other float type */
        for (int64_t i = 0; i < n; i++)
            ((double *)out)[i] = (double)in[i];
    }
}

/* n elements of a float type of at most 32 bits to floats. */
static void load_floats(const void *in, sbp_dtype dtype, float *out, int64_t n) {
    switch (dtype) {
    case SBP_BF16:
        for (int64_t i = 0; i < n; i++)
            out[i] = sbp_f32_from_bf16(((const uint16_t *)in)[i]);
        break;
    case SBP_F16:
        for (int64_t i = 0; i < n; i++)
            out[i] = sbp_f32_from_f16(((const uint16_t *)in)[i]);
        break;
    default:
        memcpy(out, in, (size_t)n * sizeof *out);
    }
}

static int64_t integer_at(const void *in, sbp_dtype dtype, int64_t i) {
    switch (dtype) {
    case SBP_I8:
        return ((const int8_t *)in)[i];
    case SBP_I16:
        return ((const int16_t *)in)[i];
    case SBP_I32:
        return ((const int32_t *)in)[i];
    case SBP_BOOL:
        return ((const uint8_t *)in)[i] != 0;
    default:
        return ((const int64_t *)in)[i];
    }
}

/* Returns false when the value does not fit. */
static bool integer_store(void *out, sbp_dtype dtype, int64_t i, int64_t value) {
    switch (dtype) {
    case SBP_I8:
        ((int8_t *)out)[i] = (int8_t)value;
        return value >= INT8_MIN && value <= INT8_MAX;
    case SBP_I16:
        ((int16_t *)out)[i] = (int16_t)value;
        return value >= INT16_MIN && value <= INT16_MAX;
    case SBP_I32:
        ((int32_t *)out)[i] = (int32_t)value;
        return value >= INT32_MIN && value <= INT32_MAX;
    case SBP_BOOL:
        ((uint8_t *)out)[i] = value != 0;
        return value == 0 || value == 1;
    default:
        ((int64_t *)out)[i] = value;
        return true;
    }
}

enum { CHUNK_ELEMS = 8192 };

/* Reads elements of a plain array through a small buffer; from != to. */
static sbp_status read_converted(const sbp_weights *w, const sbp_weight *t, int64_t first, int64_t count,
                                 sbp_dtype to, char *out, sbp_diag *diag) {
    _Alignas(16) char raw[CHUNK_ELEMS * 8];
    float floats[CHUNK_ELEMS];
    sbp_dtype from = t->dtype;
    int64_t from_bytes = sbp_dtype_bytes(from), to_bytes = sbp_dtype_bytes(to);
    bool to_float = sbp_dtype_is_float(to);
    SBP_CROSS_EITHER(count > CHUNK_ELEMS, file_convert_pieces, file_convert_piece);
    for (int64_t done = 0; done < count;) {
        int64_t n = count - done < CHUNK_ELEMS ? count - done : CHUNK_ELEMS;
        char *target = out + done * to_bytes;
        SBP_TRY(sbp_weights_read_raw(w, t, (first + done) * from_bytes, n * from_bytes, raw, diag));
        if (sbp_dtype_is_float(from) && from != SBP_F64) {
            load_floats(raw, from, floats, n);
            store_floats(floats, to, target, n);
        } else if (from == SBP_F64) {
            for (int64_t i = 0; i < n; i++)
                sbp_element_set(target, to, i, ((const double *)(const void *)raw)[i]);
        } else if (to_float) {
            for (int64_t i = 0; i < n; i++)
                sbp_element_set(target, to, i, (double)integer_at(raw, from, i));
        } else {
            for (int64_t i = 0; i < n; i++) {
                int64_t value = integer_at(raw, from, i);
                if (!integer_store(target, to, i, value))
                    return sbp_fail(diag, SBP_INPUT,
                                    "%s: tensor '%s': element %lld is %lld, which %s cannot hold", t->path,
                                    t->name, (long long)(first + done + i), (long long)value,
                                    sbp_dtype_name(to));
            }
        }
        done += n;
    }
    return SBP_OK;
}

/* ---- of several tensors -------------------------------------------------------------------------------- */

/* Elements first .. first + count - 1 of a stack, part by part. */
static sbp_status read_stack(const sbp_weights *w, const sbp_weight *t, int64_t first, int64_t count,
                             sbp_dtype dtype, void *out, sbp_diag *diag) {
    int64_t size = t->elems / t->part_count;
    for (int64_t done = 0; done < count;) {
        int64_t at = first + done, left = size - at % size, n = count - done < left ? count - done : left;
        SBP_TRY(sbp_weights_read(w, t->parts[at / size], at % size, n, dtype,
                                 (char *)out + done * sbp_dtype_bytes(dtype), diag));
        done += n;
    }
    return SBP_OK;
}

static sbp_status read_mxfp4(const sbp_weights *w, const sbp_weight *t, int64_t first, int64_t count,
                             void *const *parts, sbp_diag *diag) {
    uint8_t raw[QUANTIZED_ELEMS / 2], *codes = parts[0]; /* two values a byte */
    SBP_TRY(sbp_weights_read_raw(w, t->codes, first * MXFP4_BYTES, count * MXFP4_BYTES, raw, diag));
    for (int64_t b = 0; b < count; b++)
        weights_spread_halves(raw + b * MXFP4_BYTES, codes + b * MXFP4_BYTES);
    return sbp_weights_read_raw(w, t->scales, first, count, parts[1], diag);
}

/* The place of an element's scale; rows are those of all matrices. */
static int64_t scale_at(const sbp_weight *t, int64_t row, int64_t column) {
    if (t->scales->elems == 1)
        return 0;
    int64_t rows = t->dim[t->rank - 2], here = row % rows / t->scale_rows;
    const int64_t *scales = &t->scales->dim[t->rank - 2];
    return (row / rows * scales[0] + here) * scales[1] + column / t->scale_columns;
}

static sbp_status read_scale(const sbp_weights *w, const sbp_weight *t, int64_t at, float *out,
                             sbp_diag *diag) {
    uint8_t exponent;
    if (!weights_is_e8m0(t->scales))
        return sbp_weights_read(w, t->scales, at, 1, SBP_F32, out, diag);
    SBP_TRY(sbp_weights_read_raw(w, t->scales, at, 1, &exponent, diag));
    *out = exponent == 255 ? NAN : ldexpf(1, exponent - 127);
    return SBP_OK;
}

static sbp_status read_fp8_blocks(const sbp_weights *w, const sbp_weight *t, int64_t first, int64_t count,
                                  void *const *parts, sbp_diag *diag) {
    float *scales = parts[1];
    int64_t last = -1, per_row = t->dim[t->rank - 1] / FP8_BLOCK;
    for (int64_t b = 0; b < count; b++) {
        int64_t at = scale_at(t, (first + b) / per_row, (first + b) % per_row * FP8_BLOCK);
        if (at == last)
            scales[b] = scales[b - 1];
        else
            SBP_TRY(read_scale(w, t, at, &scales[b], diag));
        last = at;
    }
    return sbp_weights_read_raw(w, t, first * FP8_BLOCK, count * FP8_BLOCK, parts[0], diag);
}

static bool is_packed(const sbp_weight *t) {
    return t->codec == CODEC_INT4 || t->codec == CODEC_INT8;
}

static sbp_status read_pair_blocks(const sbp_weights *w, const sbp_weight *t, int64_t first, int64_t count,
                                   void *const *parts, sbp_diag *diag) {
    if (is_packed(t))
        return sbp_weights_packed_read_blocks(w, t, first, count, parts, diag);
    return t->codec == CODEC_MXFP4 ? read_mxfp4(w, t, first, count, parts, diag)
                                   : read_fp8_blocks(w, t, first, count, parts, diag);
}

/* What the kernel of format fp8 makes of a code, where it has a scale of 1. */
static float fp8_value(uint8_t code) {
    int exponent = code >> 3 & 15, mantissa = code & 7;
    float size = (float)(exponent ? mantissa + 8 : mantissa) *
                 (exponent >= 10 ? (float)(1 << (exponent - 10))
                                 : 1.0F / (float)(1 << (10 - (exponent ? exponent : 1))));
    return code & 128 ? -size : size;
}

static sbp_status read_fp8(const sbp_weights *w, const sbp_weight *t, int64_t first, int64_t count,
                           float *out, sbp_diag *diag) {
    uint8_t codes[QUANTIZED_ELEMS];
    int64_t columns = t->dim[t->rank - 1], last = -1;
    float scale = 0;
    SBP_TRY(sbp_weights_read_raw(w, t, first, count, codes, diag));
    for (int64_t i = 0; i < count; i++) {
        int64_t element = first + i, here = scale_at(t, element / columns, element % columns);
        if (here != last)
            SBP_TRY(read_scale(w, t, here, &scale, diag));
        last = here;
        /* nothing stands for NaN but these two */
        out[i] = (codes[i] & 127) == 127 ? (float)NAN : fp8_value(codes[i]) * scale;
    }
    return SBP_OK;
}

/* ---- of all -------------------------------------------------------------------------------------------- */

/* Blocks of a format as its parts: at most QUANTIZED_ELEMS numbers. */
static sbp_status read_parts(const sbp_weights *w, const sbp_weight *t, int64_t first, int64_t count,
                             void *const *parts, sbp_diag *diag) {
    if (t->scales)
        return read_pair_blocks(w, t, first, count, parts, diag);
    uint8_t raw[QUANTIZED_BYTES];
    int64_t bytes = sbp_quant_of(t->codec - CODEC_QUANTIZED)->block_bytes;
    SBP_TRY(sbp_weights_read_raw(w, t, first * bytes, count * bytes, raw, diag));
    if (!sbp_format_split(t->format, raw, count, parts))
        return sbp_fail(diag, SBP_INTERNAL, "%s: tensor '%s' is not in blocks", t->path, t->name);
    return SBP_OK;
}

/* Up to QUANTIZED_ELEMS numbers, of one block at least. */
static sbp_status decode_blocks(const sbp_weights *w, const sbp_weight *t, int64_t first, int64_t blocks,
                                float *values, sbp_diag *diag) {
    _Alignas(8) unsigned char bytes[SBP_MAX_FORMAT_PARTS][QUANTIZED_ELEMS];
    void *parts[SBP_MAX_FORMAT_PARTS];
    if (!t->format) {
        const sbp_quant *quant = sbp_quant_of(t->codec - CODEC_QUANTIZED);
        uint8_t raw[QUANTIZED_BYTES];
        SBP_TRY(
            sbp_weights_read_raw(w, t, first * quant->block_bytes, blocks * quant->block_bytes, raw, diag));
        int64_t b = 0;
        do {
            quant->decode(raw + b * quant->block_bytes, values + b * quant->block_elems);
        } while (++b < blocks);
        return SBP_OK;
    }
    for (int k = 0; k < SBP_MAX_FORMAT_PARTS; k++)
        parts[k] = bytes[k];
    SBP_TRY(read_parts(w, t, first, blocks, parts, diag));
    sbp_format_decode(w->decoders[t->format], (const void *const *)parts, blocks, values);
    return SBP_OK;
}

static int64_t block_of(const sbp_weight *t) {
    if (t->codec == CODEC_FP8 || is_packed(t))
        return 1;
    return t->format ? sbp_format_of(t->format)->block
                     : sbp_quant_of(t->codec - CODEC_QUANTIZED)->block_elems;
}

static sbp_status read_quantized(const sbp_weights *w, const sbp_weight *t, int64_t first, int64_t count,
                                 sbp_dtype to, char *out, sbp_diag *diag) {
    float values[QUANTIZED_ELEMS];
    int64_t per_block = block_of(t), to_bytes = sbp_dtype_bytes(to);
    int64_t block = first / per_block, last = first + count; /* one past */
    SBP_CROSS_EITHER(last - block * per_block > QUANTIZED_ELEMS, file_numbers_pieces, file_numbers_piece);
    while (block * per_block < last) {
        int64_t left = (last + per_block - 1) / per_block - block;
        int64_t n = left < QUANTIZED_ELEMS / per_block ? left : QUANTIZED_ELEMS / per_block;
        if (t->codec == CODEC_FP8)
            SBP_TRY(read_fp8(w, t, block, n, values, diag));
        else if (is_packed(t))
            SBP_TRY(sbp_weights_packed_read(w, t, block, n, values, diag));
        else
            SBP_TRY(decode_blocks(w, t, block, n, values, diag));
        int64_t start = block * per_block, end = start + n * per_block;
        int64_t from = start < first ? first - start : 0;
        int64_t to_end = (end > last ? last : end) - start;
        store_floats(values + from, to, out + (start + from - first) * to_bytes, to_end - from);
        block += n;
    }
    return SBP_OK;
}

/* Blocks of a stack, each of one of its tensors. */
static sbp_status read_stacked_parts(const sbp_weights *w, const sbp_weight *t, int64_t first, int64_t count,
                                     void *const *parts, sbp_diag *diag) {
    const sbp_format_info *f = sbp_format_of(t->format);
    int64_t size = t->elems / t->part_count / f->block;
    for (int64_t done = 0; done < count;) {
        int64_t at = first + done, left = size - at % size, n = count - done < left ? count - done : left;
        void *to[SBP_MAX_FORMAT_PARTS] = {NULL};
        for (int32_t k = 0; k < f->part_count; k++)
            to[k] = (uint8_t *)parts[k] + done * f->parts[k].count * sbp_dtype_bytes(f->parts[k].dtype);
        SBP_TRY(read_parts(w, t->parts[at / size], at % size, n, to, diag));
        done += n;
    }
    return SBP_OK;
}

sbp_status sbp_weights_read_blocks(const sbp_weights *w, const sbp_weight *t, int64_t first, int64_t count,
                                   void *const *parts, sbp_diag *diag) {
    const sbp_format_info *f = t->format ? sbp_format_of(t->format) : NULL;
    if (!f || first < 0 || count < 0 || count > t->elems / f->block - first)
        return sbp_fail(diag, SBP_INTERNAL, "%s: tensor '%s' has no %lld blocks from %lld on", t->path,
                        t->name, (long long)count, (long long)first);
    if (t->view)
        return t->view->read_blocks(w, t, first, count, parts, diag);
    int64_t most = QUANTIZED_ELEMS / f->block;
    SBP_CROSS_EITHER(count > most, file_blocks_pieces, file_blocks_piece);
    for (int64_t done = 0; done < count;) {
        int64_t n = count - done < most ? count - done : most;
        void *to[SBP_MAX_FORMAT_PARTS] = {NULL};
        for (int32_t k = 0; k < f->part_count; k++)
            to[k] = (uint8_t *)parts[k] + done * f->parts[k].count * sbp_dtype_bytes(f->parts[k].dtype);
        if (t->parts)
            SBP_TRY(read_stacked_parts(w, t, first + done, n, to, diag));
        else
            SBP_TRY(read_parts(w, t, first + done, n, to, diag));
        done += n;
    }
    return SBP_OK;
}

static sbp_status check_readable(const sbp_weight *t, sbp_diag *diag) {
    if (t->readable)
        return SBP_OK;
    if (t->refusal)
        return sbp_fail(diag, SBP_INPUT, "%s: tensor '%s' %s", t->path, t->name, t->refusal);
    return sbp_fail(diag, SBP_INPUT, "%s: tensor '%s' is stored as %s, which is not supported", t->path,
                    t->name, t->encoding);
}

sbp_status sbp_weight_check(const sbp_weight *t, sbp_dtype parameter, sbp_diag *diag) {
    SBP_TRY(check_readable(t, diag));
    if (!sbp_dtype_is_float(parameter) || sbp_dtype_is_float(t->dtype))
        return SBP_OK;
    return sbp_fail(
        diag, SBP_INPUT,
        "%s: tensor '%.200s' is stored as %s: integers are not weights, and quantized models other "
        "than GGUF, MXFP4, FP8 and pack-quantized are not read",
        t->path, t->name, t->encoding);
}

sbp_status sbp_weights_read(const sbp_weights *w, const sbp_weight *t, int64_t first, int64_t count,
                            sbp_dtype dtype, void *out, sbp_diag *diag) {
    SBP_TRY(check_readable(t, diag));
    if (first < 0 || count < 0 || first > t->elems || count > t->elems - first)
        return sbp_fail(diag, SBP_INTERNAL,
                        "%s: tensor '%s' has %lld elements; %lld from %lld on were asked for", t->path,
                        t->name, (long long)t->elems, (long long)count, (long long)first);
    if (sbp_dtype_is_dynamic(t->dtype) && sbp_dtype_is_dynamic(dtype))
        dtype = t->dtype;
    if ((sbp_dtype_is_float(t->dtype) && !sbp_dtype_is_float(dtype)) ||
        (dtype != t->dtype && (sbp_dtype_is_dynamic(t->dtype) || sbp_dtype_is_dynamic(dtype))))
        return sbp_fail(diag, SBP_INPUT, "%s: tensor '%s' is %s, expected %s", t->path, t->name, t->encoding,
                        sbp_dtype_name(dtype));
    if (count == 0)
        return SBP_OK;
    if (t->parts)
        return read_stack(w, t, first, count, dtype, out, diag);
    if (t->view)
        return t->view->read(w, t, first, count, dtype, out, diag);
    if (t->codec >= CODEC_QUANTIZED)
        return read_quantized(w, t, first, count, dtype, out, diag);
    if (dtype != t->dtype)
        return read_converted(w, t, first, count, dtype, out, diag);
    int64_t size = sbp_dtype_bytes(dtype);
    return sbp_weights_read_raw(w, t, first * size, count * size, out, diag);
}
