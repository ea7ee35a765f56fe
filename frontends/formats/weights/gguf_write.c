/* gguf_write.c: keys, then tensors, streamed into a file that is renamed at the end. */
#include "frontends/formats/weights/gguf_write.h"

#include <math.h>
#include <string.h>

#include "frontends/formats/weights/weights_internal.h"

enum { ALIGNMENT = 32, GGUF_VERSION = 3 };

/* ---- keys --------------------------------------------------------------------------------------------- */

static void add_u32(sbp_text *out, uint32_t value) {
    char bytes[4];
    for (int i = 0; i < 4; i++)
        bytes[i] = (char)(unsigned char)(value >> (8 * i));
    sbp_text_add_n(out, bytes, sizeof bytes);
}

static void add_u64(sbp_text *out, uint64_t value) {
    add_u32(out, (uint32_t)value);
    add_u32(out, (uint32_t)(value >> 32));
}

void sbp_gguf_add_i32(sbp_text *array, int32_t value) {
    add_u32(array, (uint32_t)value);
}

void sbp_gguf_add_f32(sbp_text *array, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    add_u32(array, bits);
}

void sbp_gguf_add_bool(sbp_text *array, bool value) {
    sbp_text_add_n(array, value ? "\1" : "\0", 1);
}

void sbp_gguf_add_string(sbp_text *array, const char *data, int64_t length) {
    add_u64(array, (uint64_t)length);
    sbp_text_add_n(array, data, (size_t)length);
}

void sbp_gguf_keys_init(sbp_gguf_keys *keys, sbp_arena *arena) {
    *keys = (sbp_gguf_keys){.arena = arena};
    sbp_map_init(&keys->by_key, arena);
}

void sbp_gguf_keys_remove(sbp_gguf_keys *keys, const char *key) {
    int32_t at = sbp_map_get(&keys->by_key, key);
    if (at >= 0)
        keys->keys[at].key = NULL;
}

/* Where the value goes, its type already there. */
static sbp_text *put(sbp_gguf_keys *keys, const char *name, sbp_gguf_type type) {
    int32_t at = sbp_map_get(&keys->by_key, name);
    const char *key = at >= 0 ? keys->keys[at].key : NULL;
    if (!key)
        key = sbp_arena_strdup(keys->arena, name);
    if (at < 0) {
        at = keys->count;
        SBP_PUSH(keys->arena, keys->keys, keys->count, keys->capacity, (sbp_gguf_entry){.key = key});
        sbp_map_set(&keys->by_key, key, at);
    }
    keys->keys[at].key = key;
    sbp_text_init(&keys->keys[at].value, keys->arena);
    add_u32(&keys->keys[at].value, (uint32_t)type);
    return &keys->keys[at].value;
}

void sbp_gguf_keys_copy(sbp_gguf_keys *keys, const sbp_gguf_entry *from) {
    sbp_text *out = put(keys, from->key, SBP_GGUF_U32);
    *out = from->value;
}

void sbp_gguf_put_u32(sbp_gguf_keys *keys, const char *key, uint32_t value) {
    add_u32(put(keys, key, SBP_GGUF_U32), value);
}

void sbp_gguf_put_i32(sbp_gguf_keys *keys, const char *key, int32_t value) {
    add_u32(put(keys, key, SBP_GGUF_I32), (uint32_t)value);
}

void sbp_gguf_put_f32(sbp_gguf_keys *keys, const char *key, float value) {
    sbp_gguf_add_f32(put(keys, key, SBP_GGUF_F32), value);
}

void sbp_gguf_put_bool(sbp_gguf_keys *keys, const char *key, bool value) {
    sbp_gguf_add_bool(put(keys, key, SBP_GGUF_BOOL), value);
}

void sbp_gguf_put_bytes(sbp_gguf_keys *keys, const char *key, const char *data, int64_t length) {
    sbp_gguf_add_string(put(keys, key, SBP_GGUF_STRING), data, length);
}

void sbp_gguf_put_string(sbp_gguf_keys *keys, const char *key, const char *value) {
    sbp_gguf_put_bytes(keys, key, value, (int64_t)strlen(value));
}

sbp_text *sbp_gguf_put_array(sbp_gguf_keys *keys, const char *key, sbp_gguf_type type, int64_t count) {
    sbp_text *out = put(keys, key, SBP_GGUF_ARRAY);
    add_u32(out, (uint32_t)type);
    add_u64(out, (uint64_t)count);
    return out;
}

static size_t number_bytes(sbp_gguf_type type) {
    static const uint8_t bytes[SBP_GGUF_TYPE_COUNT] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return bytes[type];
}

void sbp_gguf_put_value(sbp_gguf_keys *keys, const sbp_gguf_value *value) {
    sbp_text *out = value->is_array ? sbp_gguf_put_array(keys, value->key, value->type, value->count)
                                    : put(keys, value->key, value->type);
    if (value->type == SBP_GGUF_STRING)
        for (int64_t i = 0; i < value->count; i++)
            sbp_gguf_add_string(out, value->strings[i].data, value->strings[i].length);
    else
        sbp_text_add_n(out, value->raw, (size_t)value->count * number_bytes(value->type));
}

/* ---- numbers ------------------------------------------------------------------------------------------ */

int32_t sbp_gguf_block_elems(sbp_gguf_tensor_type type) {
    return sbp_quant_of((int32_t)type)->block_elems;
}

int32_t sbp_gguf_block_bytes(sbp_gguf_tensor_type type) {
    return sbp_quant_of((int32_t)type)->block_bytes;
}

static void put_half(uint8_t *out, uint16_t bits) {
    out[0] = (uint8_t)bits;
    out[1] = (uint8_t)(bits >> 8);
}

static void encode_q8_0(const float *x, uint8_t *out) {
    float most = 0;
    for (int i = 0; i < 32; i++)
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    float scale = most / 127, inverse = scale == 0 ? 0 : 1 / scale;
    put_half(out, sbp_f16_from_f32(scale));
    for (int i = 0; i < 32; i++)
        out[2 + i] = (uint8_t)(int8_t)lrintf(roundf(x[i] * inverse));
}

void sbp_gguf_encode(sbp_gguf_tensor_type type, const float *values, int64_t count, uint8_t *out) {
    switch (type) {
    case SBP_GGUF_TENSOR_F32:
        memcpy(out, values, (size_t)count * sizeof *values);
        break;
    case SBP_GGUF_TENSOR_F16:
        for (int64_t i = 0; i < count; i++)
            put_half(out + 2 * i, sbp_f16_from_f32(values[i]));
        break;
    case SBP_GGUF_TENSOR_BF16:
        for (int64_t i = 0; i < count; i++)
            put_half(out + 2 * i, sbp_bf16_from_f32(values[i]));
        break;
    case SBP_GGUF_TENSOR_Q8_0:
        for (int64_t i = 0; i < count; i += 32)
            encode_q8_0(values + i, out + i / 32 * 34);
        break;
    case SBP_GGUF_TENSOR_MXFP4: /* blocks are copied, never made of numbers */
        break;
    }
}

/* ---- files -------------------------------------------------------------------------------------------- */

struct sbp_gguf_writer {
    const char *path;
    const sbp_gguf_tensor *tensors;
    int32_t count, next;   /* next: the tensor that bytes go to */
    int64_t left, padding; /* bytes of it that are missing; behind it */
    sbp_file_out *out;
};

int64_t sbp_gguf_tensor_elems(const sbp_gguf_tensor *tensor) {
    int64_t elems = 1;
    for (int32_t d = 0; d < tensor->rank; d++)
        elems *= tensor->dim[d];
    return elems;
}

static int64_t tensor_bytes(const sbp_gguf_tensor *tensor) {
    return sbp_gguf_tensor_elems(tensor) / sbp_gguf_block_elems(tensor->type) *
           sbp_gguf_block_bytes(tensor->type);
}

/* ggml counts dimensions from the innermost on. */
static void write_entry(sbp_text *head, const sbp_gguf_tensor *t, int64_t offset) {
    sbp_gguf_add_string(head, t->name, (int64_t)strlen(t->name));
    add_u32(head, (uint32_t)t->rank);
    for (int32_t d = t->rank - 1; d >= 0; d--)
        add_u64(head, (uint64_t)t->dim[d]);
    add_u32(head, (uint32_t)t->type);
    add_u64(head, (uint64_t)offset);
}

static void write_keys(sbp_text *head, const sbp_gguf_keys *keys, int32_t tensors) {
    uint64_t count = 0;
    for (int32_t i = 0; i < keys->count; i++)
        count += keys->keys[i].key != NULL;
    sbp_text_add_n(head, "GGUF", 4);
    add_u32(head, GGUF_VERSION);
    add_u64(head, (uint64_t)tensors);
    add_u64(head, count);
    for (int32_t i = 0; i < keys->count; i++) {
        const sbp_gguf_entry *k = &keys->keys[i];
        if (!k->key)
            continue;
        sbp_gguf_add_string(head, k->key, (int64_t)strlen(k->key));
        sbp_text_add_n(head, k->value.data, k->value.length);
    }
}

/* Passes tensors that have all their bytes. */
static void begin_tensor(sbp_gguf_writer *w) {
    if (w->next == w->count)
        return;
    w->left = tensor_bytes(&w->tensors[w->next]);
    w->padding = sbp_round_up(w->left, ALIGNMENT) - w->left;
}

sbp_status sbp_gguf_writer_create(sbp_arena *arena, sbp_diag *diag, const char *path,
                                  const sbp_gguf_keys *keys, const sbp_gguf_tensor *tensors, int32_t count,
                                  int64_t *bytes, sbp_gguf_writer **out) {
    sbp_gguf_writer *w = SBP_NEW(arena, sbp_gguf_writer);
    *w = (sbp_gguf_writer){.path = path, .tensors = tensors, .count = count};
    sbp_text head;
    sbp_text_init(&head, arena);
    write_keys(&head, keys, count);
    int64_t offset = 0;
    for (int32_t i = 0; i < count; i++) {
        write_entry(&head, &tensors[i], offset);
        offset += sbp_round_up(tensor_bytes(&tensors[i]), ALIGNMENT);
    }
    while (head.length % ALIGNMENT != 0)
        sbp_text_add_n(&head, "\0", 1);
    if (bytes)
        *bytes = (int64_t)head.length + offset;
    begin_tensor(w);
    SBP_TRY(sbp_file_out_open(diag, path, &w->out));
    sbp_status status = sbp_file_out_write(w->out, diag, head.data, (int64_t)head.length);
    if (status != SBP_OK)
        sbp_gguf_writer_abort(w);
    else
        *out = w;
    return status;
}

static sbp_status end_tensor(sbp_gguf_writer *w, sbp_diag *diag) {
    static const char zeros[ALIGNMENT];
    SBP_TRY(sbp_file_out_write(w->out, diag, zeros, w->padding));
    w->next++;
    begin_tensor(w);
    return SBP_OK;
}

sbp_status sbp_gguf_writer_write(sbp_gguf_writer *w, sbp_diag *diag, const void *data, int64_t bytes) {
    const char *at = data;
    while (bytes > 0) {
        if (w->next == w->count)
            return sbp_fail(diag, SBP_INTERNAL, "%s: %lld bytes more than its tensors have", w->path,
                            (long long)bytes);
        int64_t n = bytes < w->left ? bytes : w->left;
        SBP_TRY(sbp_file_out_write(w->out, diag, at, n));
        at += n;
        bytes -= n;
        w->left -= n;
        if (w->left == 0)
            SBP_TRY(end_tensor(w, diag));
    }
    return SBP_OK;
}

sbp_status sbp_gguf_writer_commit(sbp_gguf_writer *w, sbp_diag *diag) {
    if (w->next < w->count) {
        sbp_status status = sbp_fail(diag, SBP_INTERNAL, "%s: tensor '%s' lacks %lld bytes", w->path,
                                     w->tensors[w->next].name, (long long)w->left);
        sbp_gguf_writer_abort(w);
        return status;
    }
    sbp_file_out *out = w->out;
    w->out = NULL;
    return sbp_file_out_commit(out, diag);
}

void sbp_gguf_writer_abort(sbp_gguf_writer *w) {
    if (w)
        sbp_file_out_abort(w->out);
    if (w)
        w->out = NULL;
}
