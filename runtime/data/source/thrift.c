/* thrift.c: see https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md */
#include "runtime/data/source/thrift.h"

enum { MOST_DEPTH = 32 };

static uint8_t byte(sbp_thrift *r) {
    if (r->failed || r->at >= r->length) {
        r->failed = true;
        return 0;
    }
    return r->data[r->at++];
}

static uint64_t varint(sbp_thrift *r) {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        uint8_t b = byte(r);
        value |= (uint64_t)(b & 0x7f) << shift;
        if (!(b & 0x80))
            return value;
    }
    r->failed = true;
    return 0;
}

static int64_t read_int(sbp_thrift *r) {
    uint64_t n = varint(r);
    return (int64_t)(n >> 1) ^ -(int64_t)(n & 1);
}

bool sbp_thrift_field(sbp_thrift *r, sbp_thrift_field_head *field) {
    uint8_t head = byte(r);
    if (r->failed || head == 0)
        return false;
    field->type = head & 15;
    field->id = head >> 4 ? field->id + (head >> 4) : (int)(int16_t)read_int(r);
    return !r->failed;
}

int64_t sbp_thrift_list(sbp_thrift *r, int *type) {
    uint8_t head = byte(r);
    uint64_t count = head >> 4;
    *type = head & 15;
    if (count == 15)
        count = varint(r);
    if (count > r->length - r->at)
        r->failed = true;
    return r->failed ? 0 : (int64_t)count;
}

const char *sbp_thrift_binary(sbp_thrift *r, int64_t *length) {
    uint64_t count = varint(r);
    if (r->failed || count > r->length - r->at) {
        r->failed = true;
        *length = 0;
        return "";
    }
    const char *data = (const char *)r->data + r->at;
    r->at += (size_t)count;
    *length = (int64_t)count;
    return data;
}

static void skip_bytes(sbp_thrift *r, size_t count) {
    if (count > r->length - r->at)
        r->failed = true;
    else
        r->at += count;
}

static void skip_items(sbp_thrift *r, int64_t count, int type) {
    for (int64_t i = 0; i < count && !r->failed; i++) {
        if (type == SBP_THRIFT_TRUE || type == SBP_THRIFT_FALSE)
            byte(r);
        else
            sbp_thrift_skip(r, type);
    }
}

void sbp_thrift_skip(sbp_thrift *r, int type) {
    sbp_thrift_field_head f = {0};
    int64_t length;
    int item;
    if (++r->depth > MOST_DEPTH)
        r->failed = true;
    if (!r->failed)
        switch (type) {
        case SBP_THRIFT_TRUE:
        case SBP_THRIFT_FALSE:
            break;
        case SBP_THRIFT_BYTE:
            byte(r);
            break;
        case SBP_THRIFT_I16:
        case SBP_THRIFT_I32:
        case SBP_THRIFT_I64:
            varint(r);
            break;
        case SBP_THRIFT_DOUBLE:
            skip_bytes(r, 8);
            break;
        case SBP_THRIFT_BINARY:
            sbp_thrift_binary(r, &length);
            break;
        case SBP_THRIFT_LIST:
        case SBP_THRIFT_SET:
            length = sbp_thrift_list(r, &item);
            skip_items(r, length, item);
            break;
        case SBP_THRIFT_MAP: {
            uint64_t count = varint(r);
            uint8_t types = count ? byte(r) : 0;
            for (uint64_t i = 0; i < count && !r->failed; i++) {
                skip_items(r, 1, types >> 4);
                skip_items(r, 1, types & 15);
            }
            break;
        }
        case SBP_THRIFT_STRUCT:
            while (sbp_thrift_field(r, &f))
                sbp_thrift_skip(r, f.type);
            break;
        default:
            r->failed = true;
        }
    r->depth--;
}

void sbp_thrift_take(sbp_thrift *r, const sbp_thrift_field_head *field, int type, int64_t *out) {
    if (field->type == type)
        *out = read_int(r);
    else
        sbp_thrift_skip(r, field->type);
}
