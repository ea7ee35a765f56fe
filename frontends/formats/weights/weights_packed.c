/* weights_packed.c: weights of linear layers as compressed-tensors has them in its format pack-quantized
 * (compressors/pack_quantized). Of a layer M [rows, columns] a file has
 *   M.weight_packed      I32 [rows, words]: codes of 4 or 8 bits, the first of a word in its lowest bits;
 *                        a row begins with a word of its own
 *   M.weight_scale       BF16, F16 or F32 [rows, groups]: a group is columns / groups neighbours of a row
 *   M.weight_zero_point  I32 [words, groups]: codes of the rows' zeros, packed along the rows; may be absent
 *   M.weight_shape       rows, columns
 * Together they are M.weight, whose numbers are (code - zero) * scale, rounded to the type of the scales, as
 * the package has them; without zeros a zero is half of what a code can be. Groups that are whole blocks of a
 * format are kept in these. */
#include "frontends/formats/weights/weights_internal.h"

#include <string.h>

enum { PACKED_BLOCK = 32, WORD_BITS = 32 };

/* What a file has of a layer. */
typedef struct parts {
    const sbp_weight *packed, *scales, *zeros, *shape, *order;
    int64_t rows, columns, groups;
    int bits;
} parts;

/* How many bits a code has where `columns` of them fill the words of a row; 0: neither 4 nor 8, or either. */
static int bits_of(int64_t columns, int64_t words) {
    int found = 0;
    for (int bits = 4; bits <= 8; bits += 4) {
        int64_t per_word = WORD_BITS / bits;
        if (columns > 0 && (columns - 1) / per_word + 1 == words)
            found = found ? -1 : bits;
    }
    return found > 0 ? found : 0;
}

static bool is_scale(const sbp_weight *t) {
    return t->readable && (t->dtype == SBP_BF16 || t->dtype == SBP_F16 || t->dtype == SBP_F32);
}

/* "weight_scale BF16 [3, 2]". */
static const char *say(sbp_arena *arena, const char *name, const sbp_weight *t) {
    sbp_text text;
    sbp_text_init(&text, arena);
    sbp_text_add(&text, "%s %s [", name, t->encoding);
    for (int32_t d = 0; d < t->rank; d++)
        sbp_text_add(&text, "%s%lld", d ? ", " : "", (long long)t->dim[d]);
    sbp_text_add(&text, "]");
    return text.data;
}

/* Whether the scale of a group is found by its place alone, whatever config.json says of groups: where the
 * last one were shorter, no power of two had as many. */
static bool is_group(int64_t columns, int64_t groups) {
    int64_t group = groups > 0 && columns % groups == 0 ? columns / groups : 0;
    return groups == 1 || (group > 0 && (group & (group - 1)) == 0);
}

/* Why the tensors are not read; NULL: they are. */
static const char *find_refusal(sbp_arena *arena, parts *p) {
    const sbp_weight *packed = p->packed, *scales = p->scales, *zeros = p->zeros;
    if (p->order)
        return "has weight_g_idx (actorder 'group'), which is not read";
    if (strcmp(packed->encoding, "I32") != 0 || packed->rank != 2)
        return sbp_arena_printf(arena, "has %s, expected I32 of two axes",
                                say(arena, "weight_packed", packed));
    if (!scales || !p->shape)
        return sbp_arena_printf(arena, "has weight_packed without %s",
                                scales ? "weight_shape" : "weight_scale");
    p->bits = p->rows == packed->dim[0] ? bits_of(p->columns, packed->dim[1]) : 0;
    if (!p->bits)
        return sbp_arena_printf(
            arena, "has %s, in which [%lld, %lld] codes (weight_shape) of 4 or 8 bits (num_bits) do not lie",
            say(arena, "weight_packed", packed), (long long)p->rows, (long long)p->columns);
    if (!is_scale(scales) || scales->rank != 2 || scales->dim[0] != p->rows ||
        !is_group(p->columns, scales->dim[1]))
        return sbp_arena_printf(
            arena,
            "has %s for [%lld, %lld] codes: of each row one, or one for 32, 64 or another "
            "power of two of neighbours, is expected",
            say(arena, "weight_scale", scales), (long long)p->rows, (long long)p->columns);
    p->groups = scales->dim[1];
    if (zeros && (strcmp(zeros->encoding, "I32") != 0 || zeros->rank != 2 || zeros->dim[1] != p->groups ||
                  zeros->dim[0] != sbp_ceil_div(p->rows, WORD_BITS / p->bits)))
        return sbp_arena_printf(arena, "has %s for %s: packed zeros of the same groups are expected",
                                say(arena, "weight_zero_point", zeros), say(arena, "weight_scale", scales));
    return NULL;
}

sbp_format sbp_packed_format(const sbp_packed_scheme *scheme, sbp_dtype scale, int64_t columns) {
    static const sbp_format formats[2][2][3] = {
        {{SBP_FORMAT_INT4, SBP_FORMAT_INT4_F16, SBP_FORMAT_INT4_F32},
         {SBP_FORMAT_INT4_ZERO, SBP_FORMAT_INT4_ZERO_F16, SBP_FORMAT_INT4_ZERO_F32}},
        {{SBP_FORMAT_INT8, SBP_FORMAT_INT8_F16, SBP_FORMAT_INT8_F32},
         {SBP_FORMAT_INT8_ZERO, SBP_FORMAT_INT8_ZERO_F16, SBP_FORMAT_INT8_ZERO_F32}}};
    int at = scale == SBP_BF16 ? 0 : scale == SBP_F16 ? 1 : 2;
    if (columns % PACKED_BLOCK != 0 || scheme->group % PACKED_BLOCK != 0)
        return SBP_FORMAT_NONE;
    return formats[scheme->bits == 8][!scheme->symmetric][at];
}

static const sbp_weight *find_part(const sbp_weights *w, const char *name, size_t stem, const char *end) {
    return sbp_weights_find(w, sbp_arena_printf(w->arena, "%.*s%s", (int)stem, name, end));
}

/* What is not two integers stands for no codes. */
static sbp_status read_shape(const sbp_weights *w, parts *p, sbp_diag *diag) {
    int64_t wide[2];
    int32_t narrow[2];
    if (p->shape && p->shape->elems == 2 && strcmp(p->shape->encoding, "I64") == 0) {
        SBP_TRY(sbp_weights_read_raw(w, p->shape, 0, sizeof wide, wide, diag));
        p->rows = wide[0];
        p->columns = wide[1];
    } else if (p->shape && p->shape->elems == 2 && strcmp(p->shape->encoding, "I32") == 0) {
        SBP_TRY(sbp_weights_read_raw(w, p->shape, 0, sizeof narrow, narrow, diag));
        p->rows = narrow[0];
        p->columns = narrow[1];
    }
    return SBP_OK;
}

sbp_status sbp_weights_packed_make(sbp_weights *w, sbp_diag *diag, const sbp_weight *packed, size_t stem,
                                   sbp_weight *out) {
    parts p = {.packed = packed,
               .scales = find_part(w, packed->name, stem, ".weight_scale"),
               .zeros = find_part(w, packed->name, stem, ".weight_zero_point"),
               .shape = find_part(w, packed->name, stem, ".weight_shape"),
               .order = find_part(w, packed->name, stem, ".weight_g_idx")};
    SBP_TRY(read_shape(w, &p, diag));
    const char *refusal = find_refusal(w->arena, &p);
    int64_t *dim = SBP_NEW_ARRAY(w->arena, int64_t, 2), elems = 0;
    if (!refusal && (!sbp_mul_i64(p.rows, p.columns, &elems) || p.rows < 1))
        refusal = "has no numbers, or too many";
    *out = *packed;
    out->name = sbp_arena_printf(w->arena, "%.*s.weight", (int)stem, packed->name);
    out->encoding = "pack-quantized";
    out->refusal = refusal;
    out->readable = !refusal;
    out->quantized = true;
    out->codes = packed;
    out->scales = p.scales;
    out->zeros = p.zeros;
    out->shape = p.shape;
    if (refusal)
        return SBP_OK;
    dim[0] = p.rows;
    dim[1] = p.columns;
    out->encoding = p.bits == 4 ? "INT4" : "INT8";
    out->dtype = SBP_F32;
    out->rank = 2;
    out->dim = dim;
    out->elems = elems;
    out->codec = p.bits == 4 ? CODEC_INT4 : CODEC_INT8;
    out->scale_rows = 1;
    out->scale_columns = p.columns / p.groups;
    out->format = sbp_packed_format(
        &(sbp_packed_scheme){.bits = p.bits, .group = p.columns / p.groups, .symmetric = !p.zeros},
        p.scales->dtype, p.columns);
    return SBP_OK;
}

sbp_status sbp_weights_check_packed(const sbp_weights *w, const sbp_packed_scheme *schemes, int32_t count,
                                    const sbp_json *quantization, sbp_diag *diag) {
    for (int32_t i = 0; i < w->pair_count; i++) {
        const sbp_weight *t = &w->pairs[i];
        bool found = t->codec != CODEC_INT4 && t->codec != CODEC_INT8;
        for (int32_t k = 0; k < count && !found; k++) {
            int64_t group = schemes[k].group ? schemes[k].group : t->dim[1];
            found = schemes[k].bits == (t->codec == CODEC_INT4 ? 4 : 8) &&
                    schemes[k].symmetric == !t->zeros && t->scale_columns == group;
        }
        if (!found)
            return sbp_json_fail(diag, quantization,
                                 "no group of config_groups is of weights in %s with groups of %lld and %s "
                                 "zero points, as '%s' of %s is",
                                 t->encoding, (long long)t->scale_columns, t->zeros ? "with" : "without",
                                 t->name, t->path);
    }
    return SBP_OK;
}

/* ---- reading ------------------------------------------------------------------------------------------- */

/* Codes, and what belongs to them, of neighbours. */
typedef struct run {
    int64_t first_byte, first_group; /* of the arrays, in the file */
    uint8_t codes[QUANTIZED_ELEMS + 4], zeros[QUANTIZED_ELEMS];
    float scales[QUANTIZED_ELEMS];
} run;

static int bits_in(const sbp_weight *t) {
    return t->codec == CODEC_INT4 ? 4 : 8;
}

/* Codes of a row, with those that fill its last word. */
static int64_t stride_of(const sbp_weight *t) {
    return t->codes->dim[1] * (WORD_BITS / bits_in(t));
}

/* How many elements from `first` on are neighbours in a run, at most `count`: those of a row, or all where
 * the next row follows at once and nothing is packed along the rows. */
static int64_t length_of(const sbp_weight *t, int64_t first, int64_t count) {
    int64_t left = t->dim[1] - first % t->dim[1];
    count = count < QUANTIZED_ELEMS ? count : QUANTIZED_ELEMS;
    return count <= left || (stride_of(t) == t->dim[1] && !t->zeros) ? count : left;
}

static int64_t group_at(const sbp_weight *t, int64_t element) {
    return element / t->dim[1] * t->scales->dim[1] + element % t->dim[1] / t->scale_columns;
}

/* The byte with the code of an element; of two in a byte an even place is the low half. */
static int64_t byte_at(const sbp_weight *t, int64_t element) {
    return (element / t->dim[1] * stride_of(t) + element % t->dim[1]) * bits_in(t) / 8;
}

static sbp_status read_scales(const sbp_weights *w, const sbp_weight *t, int64_t first, int64_t count,
                              float *out, sbp_diag *diag) {
    enum { PIECE = 256 };
    _Alignas(8) uint8_t raw[4 * PIECE];
    int64_t bytes = sbp_dtype_bytes(t->scales->dtype);
    for (int64_t done = 0; done < count;) {
        int64_t n = count - done < PIECE ? count - done : PIECE;
        SBP_TRY(sbp_weights_read_raw(w, t->scales, bytes * (first + done), bytes * n, raw, diag));
        for (int64_t g = 0; g < n; g++)
            out[done + g] = (float)sbp_element_get(raw, t->scales->dtype, g);
        done += n;
    }
    return SBP_OK;
}

static sbp_status read_zeros(const sbp_weights *w, const sbp_weight *t, int64_t row, int64_t first_group,
                             int64_t count, uint8_t *out, sbp_diag *diag) {
    int bits = bits_in(t), per_word = WORD_BITS / bits;
    int64_t groups = t->scales->dim[1], first = row / per_word * groups + first_group % groups;
    uint8_t words[4 * 256];
    for (int64_t done = 0; done < count;) {
        int64_t n = count - done < 256 ? count - done : 256;
        SBP_TRY(sbp_weights_read_raw(w, t->zeros, 4 * (first + done), 4 * n, words, diag));
        for (int64_t g = 0; g < n; g++) {
            int64_t bit = row % per_word * bits;
            out[done + g] = (uint8_t)(words[4 * g + bit / 8] >> bit % 8 & ((1 << bits) - 1));
        }
        done += n;
    }
    return SBP_OK;
}

static sbp_status read_run(const sbp_weights *w, const sbp_weight *t, int64_t first, int64_t count, run *r,
                           sbp_diag *diag) {
    int64_t groups = group_at(t, first + count - 1) + 1 - (r->first_group = group_at(t, first));
    int64_t bytes = byte_at(t, first + count - 1) + 1 - (r->first_byte = byte_at(t, first));
    SBP_TRY(sbp_weights_read_raw(w, t->codes, r->first_byte, bytes, r->codes, diag));
    SBP_TRY(read_scales(w, t, r->first_group, groups, r->scales, diag));
    if (t->zeros)
        return read_zeros(w, t, first / t->dim[1], r->first_group, groups, r->zeros, diag);
    memset(r->zeros, 1 << (bits_in(t) - 1), (size_t)groups);
    return SBP_OK;
}

sbp_status sbp_weights_packed_read(const sbp_weights *w, const sbp_weight *t, int64_t first, int64_t count,
                                   float *out, sbp_diag *diag) {
    run r;
    while (count > 0) {
        int64_t n = length_of(t, first, count);
        SBP_TRY(read_run(w, t, first, n, &r, diag));
        for (int64_t i = 0; i < n; i++) {
            uint8_t code = r.codes[byte_at(t, first + i) - r.first_byte];
            int64_t group = group_at(t, first + i) - r.first_group;
            if (bits_in(t) == 4)
                code = (first + i) % t->dim[1] % 2 ? code >> 4 : code & 15;
            out[i] = (float)sbp_round_to(t->scales->dtype,
                                         (double)((float)(code - r.zeros[group]) * r.scales[group]));
        }
        first += n;
        count -= n;
        out += n;
    }
    return SBP_OK;
}

sbp_status sbp_weights_packed_read_blocks(const sbp_weights *w, const sbp_weight *t, int64_t first,
                                          int64_t count, void *const *to, sbp_diag *diag) {
    run r;
    int64_t block_bytes = PACKED_BLOCK * bits_in(t) / 8;
    sbp_dtype scale = sbp_format_of(t->format)->parts[1].dtype;
    uint8_t sign = t->codec == CODEC_INT8 ? 128 : 0; /* codes of 8 bits are signed in a format */
    for (int64_t b = 0; b < count;) {
        int64_t element = (first + b) * PACKED_BLOCK, n = length_of(t, element, (count - b) * PACKED_BLOCK);
        SBP_TRY(read_run(w, t, element, n, &r, diag));
        for (int64_t k = 0; k < n / PACKED_BLOCK; k++, b++) {
            uint8_t *codes = (uint8_t *)to[0] + b * block_bytes;
            int64_t group = group_at(t, (first + b) * PACKED_BLOCK) - r.first_group;
            if (sign)
                for (int i = 0; i < PACKED_BLOCK; i++)
                    codes[i] = r.codes[k * block_bytes + i] ^ sign;
            else
                weights_spread_halves(r.codes + k * block_bytes, codes);
            sbp_element_set(to[1], scale, b, (double)r.scales[group]);
            if (t->zeros)
                ((uint8_t *)to[2])[b] = r.zeros[group] ^ sign;
        }
    }
    return SBP_OK;
}
