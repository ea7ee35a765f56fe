/* weights_joined.c: weights that files hold in several tensors.
 *
 * Tensors of one shape whose names differ in a number are one tensor, too (stacks). Codes and scales of
 * safetensors are one weight (pairs):
 * MXFP4 (transformers, integrations/mxfp4.py): X_blocks U8 [.., G, 16], of which a byte holds two neighbours,
 * the first in its low half, and X_scales U8 [.., G]; together [.., 32 G].
 * FP8 (transformers, integrations/finegrained_fp8.py): X F8_E4M3 [.., rows, columns] and X_scale_inv, of
 * floats or E8M0, one for each block of a matrix, whose rows and columns config.json beside the file says; or
 * one for all. X is M.weight of a linear layer, and M.gate_up_proj and M.down_proj of all experts of a layer,
 * [experts, rows, columns].
 * INT4 and INT8 of compressed-tensors: weights_packed.c. */
#include "frontends/formats/weights/weights_internal.h"
#include "ir/base/census.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* ---- stacks ------------------------------------------------------------------------------------------ */

enum { MOST_DIGITS = 9 };

/* The last part of a name that is a number, between dots: its place and length; false: there is none. */
static bool find_number(const char *name, size_t *begin, size_t *length) {
    size_t end = strlen(name);
    for (;;) {
        size_t from = end;
        while (from > 0 && name[from - 1] != '.')
            from--;
        size_t digits = 0;
        while (digits < end - from && isdigit((unsigned char)name[from + digits]))
            digits++;
        if (digits > 0 && digits == end - from && digits <= MOST_DIGITS &&
            (name[from] != '0' || digits == 1)) {
            *begin = from;
            *length = digits;
            return true;
        }
        if (from == 0)
            return false;
        end = from - 1;
    }
}

static bool is_like(const sbp_weight *a, const sbp_weight *b) {
    return a->readable == b->readable && a->quantized == b->quantized && a->format == b->format &&
           a->dtype == b->dtype && a->codec == b->codec && a->rank == b->rank && !a->scales == !b->scales &&
           memcmp(a->dim, b->dim, (size_t)a->rank * sizeof *a->dim) == 0;
}

/* Makes the stack of parts whose places are taken; false when one is missing, or they are not alike. Where
 * one is refused, so is the stack. */
static bool finish_stack(sbp_weights *w, sbp_weight *stack) {
    const sbp_weight *first = stack->parts[0];
    for (int64_t i = 0; i < stack->part_count; i++)
        if (stack->parts[i] && stack->parts[i]->refusal) {
            const char *name = stack->name;
            *stack = *stack->parts[i];
            stack->name = name;
            return true;
        }
    for (int64_t i = 0; i < stack->part_count; i++)
        if (!stack->parts[i] || !is_like(stack->parts[i], first))
            return false;
    int64_t *dim = SBP_NEW_ARRAY(w->arena, int64_t, first->rank + 1);
    dim[0] = stack->part_count;
    memcpy(dim + 1, first->dim, (size_t)first->rank * sizeof *dim);
    sbp_weight all = *first;
    all.name = stack->name;
    all.rank = first->rank + 1;
    all.dim = dim;
    all.parts = stack->parts;
    all.part_count = stack->part_count;
    *stack = all;
    return first->rank < SBP_MAX_RANK && sbp_mul_i64(first->elems, all.part_count, &stack->elems);
}

/* Tensors of the files, then what several of them are. */
static const sbp_weight *tensor_at(const sbp_weights *w, int32_t i) {
    return i < w->count ? &w->weights[i] : &w->pairs[i - w->count];
}

void sbp_weights_stack(sbp_weights *w) {
    int32_t all = w->count + w->pair_count, count = 0, capacity = 0;
    int32_t *stack_of = SBP_NEW_ARRAY(w->arena, int32_t, all);
    sbp_weight *stacks = NULL;
    sbp_map by_name;
    sbp_map_init(&by_name, w->arena);
    sbp_map_init(&w->stack_by_name, w->arena);
    for (int32_t i = 0; i < all; i++) {
        const char *name = tensor_at(w, i)->name;
        size_t begin, length;
        stack_of[i] = -1;
        if (!find_number(name, &begin, &length))
            continue;
        const char *pattern = sbp_arena_printf(w->arena, "%.*s*%s", (int)begin, name, name + begin + length);
        int32_t known = sbp_map_get(&by_name, pattern);
        stack_of[i] = known >= 0 && known < count ? known : count;
        if (stack_of[i] == count) {
            sbp_map_set(&by_name, pattern, count);
            SBP_PUSH(w->arena, stacks, count, capacity, (sbp_weight){.name = pattern});
        }
        stacks[stack_of[i]].part_count++;
    }
    for (int32_t s = 0; s < count; s++)
        stacks[s].parts = SBP_NEW_ARRAY(w->arena, const sbp_weight *, stacks[s].part_count);
    for (int32_t i = 0; i < all; i++) {
        size_t begin, length;
        if (stack_of[i] < 0 || !find_number(tensor_at(w, i)->name, &begin, &length))
            continue;
        long long number = strtoll(tensor_at(w, i)->name + begin, NULL, 10);
        if (number < stacks[stack_of[i]].part_count)
            stacks[stack_of[i]].parts[number] = tensor_at(w, i);
    }
    w->stacks = stacks;
    for (int32_t s = 0; s < count; s++)
        if (finish_stack(w, &stacks[s]))
            sbp_map_set(&w->stack_by_name, stacks[s].name, s);
}

/* ---- pairs --------------------------------------------------------------------------------------------- */

static const sbp_weight *find_beside(const sbp_weights *w, const char *name, size_t length, const char *end) {
    return sbp_weights_find(w, sbp_arena_printf(w->arena, "%.*s%s", (int)length, name, end));
}

static bool ends_with(const char *name, const char *end, size_t *stem) {
    size_t n = strlen(name), m = strlen(end);
    *stem = n > m ? n - m : 0;
    return n > m && strcmp(name + n - m, end) == 0;
}

static sbp_status need_decoder(sbp_weights *w, sbp_diag *diag, sbp_format format) {
    if (!w->decoders[format])
        w->decoders[format] = sbp_format_decoder_create(w->arena, diag, format);
    return w->decoders[format] ? SBP_OK : SBP_INTERNAL;
}

static bool is_bytes(const sbp_weight *t) {
    return strcmp(t->encoding, "U8") == 0;
}

/* Whether two tensors are blocks and scales of MXFP4. */
static bool is_mxfp4(const sbp_weight *blocks, const sbp_weight *scales) {
    int32_t rank = blocks->rank;
    return scales && is_bytes(blocks) && is_bytes(scales) && rank >= 2 && rank <= SBP_MAX_RANK &&
           scales->rank == rank - 1 && blocks->dim[rank - 1] == MXFP4_BYTES &&
           memcmp(blocks->dim, scales->dim, (size_t)(rank - 1) * sizeof *blocks->dim) == 0 &&
           blocks->elems <= INT64_MAX / 2;
}

static sbp_status add_mxfp4(sbp_weights *w, sbp_diag *diag, const sbp_weight *blocks,
                            const sbp_weight *scales) {
    sbp_weight t = *blocks;
    int64_t *dim = SBP_NEW_ARRAY(w->arena, int64_t, blocks->rank - 1);
    memcpy(dim, blocks->dim, (size_t)(blocks->rank - 1) * sizeof *dim);
    dim[blocks->rank - 2] *= MXFP4_BLOCK;
    t.name = sbp_weights_pair_name(w->arena, blocks->name);
    t.encoding = "MXFP4";
    t.readable = t.quantized = true;
    t.format = SBP_FORMAT_MXFP4;
    t.dtype = SBP_F32;
    t.rank = blocks->rank - 1;
    t.dim = dim;
    t.elems = blocks->elems * 2;
    t.codec = CODEC_MXFP4;
    t.codes = blocks;
    t.scales = scales;
    sbp_map_set(&w->pair_by_name, t.name, w->pair_count);
    SBP_PUSH(w->arena, w->pairs, w->pair_count, w->pair_capacity, t);
    return need_decoder(w, diag, SBP_FORMAT_MXFP4);
}

/* weight_block_size of a quantization_config. What transformers takes where a file with FP8 lacks the field
 * is 128 by 128; null: scales are of whole matrices. */
static sbp_status read_block_size(sbp_diag *diag, const sbp_json *quantization, int64_t block[2]) {
    const sbp_json *field = sbp_json_member(quantization, "weight_block_size");
    block[0] = block[1] = field ? 0 : FP8_BLOCK;
    if (!field || field->kind == SBP_JSON_NULL)
        return SBP_OK;
    SBP_TRY(sbp_json_as_array(diag, field, &field));
    if (field->count != 2)
        return sbp_json_fail(diag, field, "expected two numbers, rows and columns that share a scale");
    for (int i = 0; i < 2; i++) {
        SBP_TRY(sbp_json_as_i64(diag, &field->items[i], &block[i]));
        if (block[i] < 1)
            return sbp_json_fail(diag, &field->items[i], "expected a number of rows and columns above 0");
    }
    return SBP_OK;
}

static const sbp_json *find_quantization(const sbp_json *config) {
    const sbp_json *inner = sbp_json_member(config, "text_config"),
                   *found = sbp_json_member(config, "quantization_config");
    found = found ? found : inner ? sbp_json_member(inner, "quantization_config") : NULL;
    return found && found->kind == SBP_JSON_OBJECT ? found : NULL;
}

/* What config.json beside the weights says of blocks; block_file stays NULL where it is not there, or
 * says nothing. */
static sbp_status read_stated_block(sbp_weights *w, sbp_diag *diag) {
    if (w->block_looked_for)
        return SBP_OK;
    w->block_looked_for = true;
    const char *path = w->files[0].path, *slash = strrchr(path, '/');
    const char *directory = slash ? sbp_arena_strndup(w->arena, path, (size_t)(slash - path) + 1) : ".";
    const char *file = sbp_file_join(w->arena, directory, "config.json");
    const sbp_json *config, *quantization;
    if (w->files[0].memory || !sbp_file_exists(file))
        return SBP_OK;
    SBP_TRY(sbp_json_read(w->arena, diag, file, SBP_JSON_PYTHON, &config));
    quantization = config->kind == SBP_JSON_OBJECT ? find_quantization(config) : NULL;
    if (!quantization)
        return SBP_OK;
    w->block_file = file;
    return read_block_size(diag, quantization, w->block);
}

/* The only number of rows (columns) of which that many scales can be; 0: none, or several are. */
static int64_t only_block(int64_t n, int64_t scales) {
    if (scales < 1 || scales > n)
        return 0;
    int64_t least = sbp_ceil_div(n, scales), most = scales == 1 ? n : (n - 1) / (scales - 1);
    return least == most ? least : 0;
}

/* How many rows (columns) a scale is of; false: that many scales do not go with what the file says. */
static bool find_block(const sbp_weights *w, int axis, int64_t n, int64_t scales, int64_t *block) {
    *block = w->block_file ? w->block[axis] : only_block(n, scales);
    return *block >= 1 && n >= 1 && sbp_ceil_div(n, *block) == scales;
}

static const char *say_scales(const sbp_weights *w, const sbp_weight *t, const sbp_weight *scales) {
    const int64_t *n = &t->dim[t->rank - 2], *s = &scales->dim[t->rank - 2];
    const char *found = sbp_arena_printf(w->arena, "has %lld x %lld scales for %lld x %lld numbers",
                                         (long long)s[0], (long long)s[1], (long long)n[0], (long long)n[1]);
    if (!w->block_file)
        return sbp_arena_printf(
            w->arena,
            "%s, which blocks of several sizes can have: config.json beside it has to say "
            "which (quantization_config.weight_block_size)",
            found);
    if (!w->block[0])
        return sbp_arena_printf(w->arena, "%s, but weight_block_size in %s is null: one scale for all", found,
                                w->block_file);
    return sbp_arena_printf(
        w->arena, "%s, but weight_block_size in %s is [%lld, %lld], which makes %lld x %lld", found,
        w->block_file, (long long)w->block[0], (long long)w->block[1],
        (long long)sbp_ceil_div(n[0], w->block[0]), (long long)sbp_ceil_div(n[1], w->block[1]));
}

sbp_status sbp_weights_check_block_size(const sbp_weights *w, const sbp_json *quantization, sbp_diag *diag) {
    int64_t block[2];
    SBP_TRY(read_block_size(diag, quantization, block));
    if (w->block_file && (block[0] != w->block[0] || block[1] != w->block[1]))
        return sbp_json_fail(
            diag, quantization,
            "weight_block_size is not what %s says, by which the weights beside it are read: "
            "change it there",
            w->block_file);
    return SBP_OK;
}

static sbp_status pair_fp8(sbp_weights *w, sbp_diag *diag, sbp_weight *t, const sbp_weight *scales) {
    int64_t rows = 0, columns = 0, last = t->rank - 1;
    bool one = scales->elems == 1, floats = scales->readable && sbp_dtype_is_float(scales->dtype);
    if ((t->rank == 2 || t->rank == 3) && one) {
        rows = t->dim[last - 1];
        columns = t->dim[last];
    } else if ((t->rank == 2 || t->rank == 3) && scales->rank == t->rank &&
               (t->rank == 2 || t->dim[0] == scales->dim[0])) {
        SBP_TRY(read_stated_block(w, diag));
        if (!find_block(w, 0, t->dim[last - 1], scales->dim[last - 1], &rows) ||
            !find_block(w, 1, t->dim[last], scales->dim[last], &columns)) {
            rows = 0;
            t->refusal = say_scales(w, t, scales);
        }
    }
    if ((!floats && !weights_is_e8m0(scales)) || rows < 1 || columns < 1)
        return SBP_OK; /* it stays what nothing here reads */
    SBP_CROSS_EITHER(t->dim[last - 1] % rows || t->dim[last] % columns, file_fp8_uneven, file_fp8_even);
    t->scales = scales;
    t->readable = t->quantized = true;
    t->dtype = SBP_F32;
    t->codec = CODEC_FP8;
    t->scale_rows = rows;
    t->scale_columns = columns;
    if (t->dim[last] % FP8_BLOCK != 0 || (!one && columns % FP8_BLOCK != 0))
        return SBP_OK; /* numbers, in no blocks of the format */
    t->format = SBP_FORMAT_FP8;
    return need_decoder(w, diag, SBP_FORMAT_FP8);
}

static sbp_status add_packed(sbp_weights *w, sbp_diag *diag, const sbp_weight *packed, size_t stem) {
    sbp_weight t;
    SBP_TRY(sbp_weights_packed_make(w, diag, packed, stem, &t));
    sbp_map_set(&w->pair_by_name, t.name, w->pair_count);
    SBP_PUSH(w->arena, w->pairs, w->pair_count, w->pair_capacity, t);
    return t.format ? need_decoder(w, diag, t.format) : SBP_OK;
}

sbp_status sbp_weights_pair(sbp_weights *w, sbp_diag *diag) {
    sbp_map_init(&w->pair_by_name, w->arena);
    for (int32_t i = 0; i < w->count; i++) {
        sbp_weight *t = &w->weights[i];
        size_t stem;
        const sbp_weight *scales = NULL;
        bool fp8 = strcmp(t->encoding, "F8_E4M3") == 0;
        if (ends_with(t->name, ".weight_packed", &stem)) {
            SBP_TRY(add_packed(w, diag, t, stem));
            continue;
        }
        if (ends_with(t->name, "_blocks", &stem) && is_bytes(t))
            scales = find_beside(w, t->name, stem, "_scales");
        if (scales && is_mxfp4(t, scales)) {
            SBP_TRY(add_mxfp4(w, diag, t, scales));
            continue;
        }
        if (fp8)
            scales = find_beside(w, t->name, strlen(t->name), "_scale_inv");
        if (fp8 && scales)
            SBP_TRY(pair_fp8(w, diag, t, scales));
    }
    return SBP_OK;
}

const char *sbp_weights_pair_name(sbp_arena *arena, const char *blocks) {
    return sbp_arena_printf(arena, "%s+scales", blocks);
}
