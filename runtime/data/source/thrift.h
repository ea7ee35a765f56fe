/* thrift.h: the compact protocol of Thrift, which Parquet's metadata are written in: reading only.
 *
 * A reader that runs beyond its bytes, or nests too deep, has `failed` set and gives zeros from then on:
 * callers ask once, at the end.
 */
#ifndef SBP_RUNTIME_DATA_SOURCE_THRIFT_H
#define SBP_RUNTIME_DATA_SOURCE_THRIFT_H

#include "ir/base/base.h"

typedef struct sbp_thrift {
    const uint8_t *data;
    size_t at, length;
    int depth;
    bool failed;
} sbp_thrift;

enum {
    SBP_THRIFT_TRUE = 1,
    SBP_THRIFT_FALSE = 2,
    SBP_THRIFT_BYTE = 3,
    SBP_THRIFT_I16 = 4,
    SBP_THRIFT_I32 = 5,
    SBP_THRIFT_I64 = 6,
    SBP_THRIFT_DOUBLE = 7,
    SBP_THRIFT_BINARY = 8,
    SBP_THRIFT_LIST = 9,
    SBP_THRIFT_SET = 10,
    SBP_THRIFT_MAP = 11,
    SBP_THRIFT_STRUCT = 12
};

/* Fields of a struct: for (f = {0}; sbp_thrift_field(r, &f);) each is read or skipped. */
typedef struct sbp_thrift_field_head {
    int id, type;
} sbp_thrift_field_head;

bool sbp_thrift_field(sbp_thrift *reader, sbp_thrift_field_head *field);
/* The value of a field that should be a whole number of this type (I32, I64); of another type it is skipped,
 * as if it were not there, and *out stays: what readers do that Thrift generates. */
void sbp_thrift_take(sbp_thrift *reader, const sbp_thrift_field_head *field, int type, int64_t *out);
/* Items of a list, and their type; at most as many as there are bytes left. */
int64_t sbp_thrift_list(sbp_thrift *reader, int *type);
/* *length bytes in the data of the reader. */
const char *sbp_thrift_binary(sbp_thrift *reader, int64_t *length);
void sbp_thrift_skip(sbp_thrift *reader, int type);

#endif
