/* weights.c: the list of tensors of any format: adding, finding, and reading with conversion. */
#include "frontends/formats/weights/weights_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the list of tensors --------------------------------------------------------------------------- */

sbp_status sbp_weights_add_file(sbp_weights *w, sbp_diag *diag, const char *path, int32_t *index) {
    path = sbp_arena_strdup(w->arena, path);
    *index = w->file_count;
    SBP_PUSH(w->arena, w->files, w->file_count, w->file_capacity, (weights_file){.path = path, .fd = -1});
    weights_file *file = &w->files[*index];
    struct stat info;
    int fd;
    SBP_TRY(sbp_file_open_regular(diag, path, &fd));
    file->fd = fd;
    if (fstat(file->fd, &info) != 0)
        return sbp_fail(diag, SBP_IO, "cannot read '%s': %s", path, strerror(errno));
    file->bytes = info.st_size;
    return SBP_OK;
}

sbp_status sbp_weights_add(sbp_weights *w, sbp_diag *diag, const sbp_weight *weight) {
    int32_t before = sbp_map_get(&w->by_name, weight->name);
    if (before >= 0)
        return sbp_fail(diag, SBP_INPUT, "%s: tensor '%s' occurs twice (before in %s)", weight->path,
                        weight->name, w->weights[before].path);
    sbp_map_set(&w->by_name, weight->name, w->count);
    SBP_PUSH(w->arena, w->weights, w->count, w->capacity, *weight);
    return SBP_OK;
}

static int by_offset(const void *a, const void *b) {
    const sbp_weight *x = *(const sbp_weight *const *)a, *y = *(const sbp_weight *const *)b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes); /* empty tensors before the one at their place */
}

sbp_status sbp_weights_check_layout(sbp_weights *w, sbp_diag *diag, int32_t file, int64_t begin, bool tight) {
    const weights_file *f = &w->files[file];
    const sbp_weight **order = SBP_NEW_ARRAY(w->arena, const sbp_weight *, w->count);
    int32_t n = 0;
    for (int32_t i = 0; i < w->count; i++)
        if (w->weights[i].file == file)
            order[n++] = &w->weights[i];
    if (n > 0) /* qsort must not be given NULL or nothing to do */
        qsort(order, (size_t)n, sizeof *order, by_offset);
    int64_t end = begin;
    const char *previous = "the header";
    for (int32_t i = 0; i < n; i++) {
        const sbp_weight *t = order[i];
        /* offset >= begin and bytes >= 0 hold; the sum was checked by the reader. */
        if (t->offset + t->bytes > f->bytes)
            return sbp_fail(diag, SBP_INPUT, "%s: tensor '%s' ends at byte %lld, but the file has %lld bytes",
                            f->path, t->name, (long long)(t->offset + t->bytes), (long long)f->bytes);
        if (t->offset < end)
            return sbp_fail(diag, SBP_INPUT,
                            "%s: tensor '%s' begins at byte %lld inside '%s', which ends at %lld", f->path,
                            t->name, (long long)t->offset, previous, (long long)end);
        if (tight && t->offset > end)
            return sbp_fail(diag, SBP_INPUT,
                            "%s: tensor '%s' begins at byte %lld, expected %lld, the end of '%s'", f->path,
                            t->name, (long long)t->offset, (long long)end, previous);
        end = t->offset + t->bytes;
        previous = t->name;
    }
    if (tight && end != f->bytes)
        return sbp_fail(diag, SBP_INPUT, "%s: the file has %lld bytes, but its tensors end at %lld", f->path,
                        (long long)f->bytes, (long long)end);
    return SBP_OK;
}

/* ---- opening and closing --------------------------------------------------------------------------- */

typedef struct opening {
    sbp_arena *arena;
    sbp_diag *diag;
    const char *path;
    sbp_weights_adder add;
    sbp_weights *w; /* set as soon as files may be open */
} opening;

static sbp_status open_guarded(void *user) {
    opening *o = user;
    o->w = SBP_NEW(o->arena, sbp_weights);
    o->w->arena = o->arena;
    sbp_map_init(&o->w->by_name, o->arena);
    o->w->path = sbp_arena_strdup(o->arena, o->path);
    SBP_TRY(o->add(o->w, o->diag, o->w->path));
    SBP_TRY(sbp_weights_pair(o->w, o->diag));
    sbp_weights_stack(o->w);
    return SBP_OK;
}

sbp_status sbp_weights_open_as(sbp_arena *arena, sbp_diag *diag, const char *path, sbp_weights_adder add,
                               sbp_weights **out) {
    opening o = {.arena = arena, .diag = diag, .path = path, .add = add};
    sbp_status status = sbp_guard(arena, diag, open_guarded, &o);
    if (status != SBP_OK)
        sbp_weights_close(o.w);
    else
        *out = o.w;
    return status;
}

void sbp_weights_close(sbp_weights *w) {
    if (!w)
        return;
    for (int32_t i = 0; i < w->file_count; i++) {
        if (w->files[i].fd >= 0)
            close(w->files[i].fd);
        w->files[i].fd = -1;
    }
}

int32_t sbp_weights_count(const sbp_weights *w) {
    return w->count;
}

const sbp_weight *sbp_weights_at(const sbp_weights *w, int32_t index) {
    return &w->weights[index];
}

const sbp_weight *sbp_weights_find(const sbp_weights *w, const char *name) {
    int32_t at = sbp_map_get(&w->by_name, name);
    if (at >= 0)
        return &w->weights[at];
    at = w->pairs ? sbp_map_get(&w->pair_by_name, name) : -1;
    if (at >= 0)
        return &w->pairs[at];
    at = w->views ? sbp_map_get(&w->view_by_name, name) : -1;
    if (at >= 0)
        return &w->views[at];
    at = w->stacks && strchr(name, '*') ? sbp_map_get(&w->stack_by_name, name) : -1;
    return at < 0 ? NULL : &w->stacks[at];
}

const char *sbp_weights_path(const sbp_weights *w) {
    return w->path;
}

const char *sbp_weights_metadata(const sbp_weights *w, const char *key) {
    const sbp_json *node = sbp_json_member(w->metadata, key);
    return node && node->kind == SBP_JSON_STRING ? node->string : NULL;
}

const struct sbp_gguf *sbp_weights_gguf(const sbp_weights *w) {
    return w->gguf;
}

/* ---- reading --------------------------------------------------------------------------------------- */

/* Bytes of a file or of memory; ranges were checked when the tensor was added. */
static sbp_status read_bytes(sbp_diag *diag, const weights_file *f, void *out, int64_t length,
                             int64_t offset) {
    if (!f->memory)
        return sbp_file_pread(diag, f->fd, f->path, out, length, offset);
    memcpy(out, (const char *)f->memory + offset, (size_t)length);
    return SBP_OK;
}

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
    const weights_file *f = &w->files[t->file];
    sbp_dtype from = t->dtype;
    int64_t from_bytes = sbp_dtype_bytes(from), to_bytes = sbp_dtype_bytes(to);
    bool to_float = sbp_dtype_is_float(to);
    for (int64_t done = 0; done < count;) {
        int64_t n = count - done < CHUNK_ELEMS ? count - done : CHUNK_ELEMS;
        char *target = out + done * to_bytes;
        SBP_TRY(read_bytes(diag, f, raw, n * from_bytes, t->offset + (first + done) * from_bytes));
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

sbp_status sbp_weights_read_raw(const sbp_weights *w, const sbp_weight *t, int64_t first, int64_t count,
                                void *out, sbp_diag *diag) {
    return read_bytes(diag, &w->files[t->file], out, count, t->offset + first);
}

/* How much of blocks is read at once: QUANTIZED_ELEMS elements, a multiple of every block, in fewer bytes
 * than QUANTIZED_BYTES. */
enum { QUANTIZED_ELEMS = 8192, QUANTIZED_BYTES = 2 * QUANTIZED_ELEMS };

/* Blocks of a format as its parts: at most QUANTIZED_ELEMS numbers. */
static sbp_status read_parts(const sbp_weights *w, const sbp_weight *t, int64_t first, int64_t count,
                             void *const *parts, sbp_diag *diag) {
    if (t->scales)
        return sbp_weights_pair_blocks(w, t, first, count, parts, diag);
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
    if (t->codec == CODEC_FP8)
        return 1;
    return t->format ? sbp_format_of(t->format)->block
                     : sbp_quant_of(t->codec - CODEC_QUANTIZED)->block_elems;
}

static sbp_status read_quantized(const sbp_weights *w, const sbp_weight *t, int64_t first, int64_t count,
                                 sbp_dtype to, char *out, sbp_diag *diag) {
    float values[QUANTIZED_ELEMS];
    int64_t per_block = block_of(t), to_bytes = sbp_dtype_bytes(to);
    int64_t block = first / per_block, last = first + count; /* one past */
    while (block * per_block < last) {
        int64_t left = (last + per_block - 1) / per_block - block;
        int64_t n = left < QUANTIZED_ELEMS / per_block ? left : QUANTIZED_ELEMS / per_block;
        if (t->codec == CODEC_FP8)
            SBP_TRY(sbp_weights_read_fp8(w, t, block, n, values, diag));
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
    for (int64_t done = 0; done < count;) {
        int64_t most = QUANTIZED_ELEMS / f->block, n = count - done < most ? count - done : most;
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
        "than GGUF, MXFP4 and FP8 are not read",
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
        return sbp_weights_read_stack(w, t, first, count, dtype, out, diag);
    if (t->view)
        return t->view->read(w, t, first, count, dtype, out, diag);
    if (t->codec >= CODEC_QUANTIZED)
        return read_quantized(w, t, first, count, dtype, out, diag);
    if (dtype != t->dtype)
        return read_converted(w, t, first, count, dtype, out, diag);
    int64_t size = sbp_dtype_bytes(dtype);
    const weights_file *f = &w->files[t->file];
    return read_bytes(diag, f, out, count * size, t->offset + first * size);
}
