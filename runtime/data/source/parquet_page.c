/* parquet_page.c: a column of a row group, page after page: levels and values. */
#include <dlfcn.h>
#include <lz4.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

#include "runtime/data/source/parquet.h"
#include "runtime/data/source/thrift.h"

enum { PAGE_DATA = 0, PAGE_INDEX = 1, PAGE_DICTIONARY = 2, PAGE_DATA_2 = 3 };
enum { CODEC_NONE = 0, CODEC_SNAPPY = 1, CODEC_GZIP = 2, CODEC_ZSTD = 6, CODEC_LZ4_RAW = 7 };

static const int64_t most_page_bytes = (int64_t)1 << 30;

typedef struct page_head {
    int64_t type, bytes, compressed_bytes, values, encoding;
    int64_t def_bytes, rep_bytes; /* of version 2 */
    bool compressed;
} page_head;

static sbp_status damaged(const sbp_parquet_column *c, sbp_diag *diag, const char *what) {
    return sbp_source_damaged(c->source, diag, "column '%s': %s", c->leaf->path, what);
}

static sbp_status out_of_memory(const sbp_parquet_column *c, sbp_diag *diag) {
    return sbp_fail(diag, SBP_MACHINE, "'%s': out of memory for a page of column '%s'", c->source->path,
                    c->leaf->path);
}

void sbp_parquet_column_begin(sbp_parquet_column *c, const sbp_parquet_chunk *chunk) {
    c->codec = (int)chunk->codec;
    c->offset = chunk->offset;
    c->end = chunk->offset + chunk->bytes;
    c->left = chunk->values;
    c->page_left = 0;
    c->loaded = false;
    c->dictionary_count = 0;
    c->text.length = 0;
}

void sbp_parquet_column_close(sbp_parquet_column *c) {
    free(c->raw.data);
    free(c->page.data);
    free(c->dictionary_page.data);
    free(c->text.data);
    free(c->dictionary);
}

/* Bytes of the column, of which the source knows how many it holds. */
static sbp_status reserve(sbp_parquet_column *c, sbp_diag *diag, sbp_bytes *bytes, int64_t capacity) {
    int64_t before = (int64_t)bytes->capacity;
    if (capacity <= before && bytes->data)
        return SBP_OK;
    SBP_TRY(sbp_source_hold(c->source, diag, capacity - before));
    bool done = sbp_bytes_reserve(bytes, (size_t)capacity);
    c->source->held += (int64_t)bytes->capacity - capacity; /* it takes some more, or got none */
    return done ? SBP_OK : out_of_memory(c, diag);
}

/* ---- heads ------------------------------------------------------------------------------------------ */

static void read_data_head(sbp_thrift *r, page_head *head, bool second) {
    for (sbp_thrift_field_head f = {0}; sbp_thrift_field(r, &f);) {
        if (f.id == 1)
            sbp_thrift_take(r, &f, SBP_THRIFT_I32, &head->values);
        else if (f.id == (second ? 4 : 2))
            sbp_thrift_take(r, &f, SBP_THRIFT_I32, &head->encoding);
        else if (second && f.id == 5)
            sbp_thrift_take(r, &f, SBP_THRIFT_I32, &head->def_bytes);
        else if (second && f.id == 6)
            sbp_thrift_take(r, &f, SBP_THRIFT_I32, &head->rep_bytes);
        else {
            if (second && f.id == 7 && f.type == SBP_THRIFT_FALSE)
                head->compressed = false;
            sbp_thrift_skip(r, f.type);
        }
    }
}

static void parse_head(sbp_thrift *r, page_head *head) {
    *head = (page_head){.type = -1, .bytes = -1, .compressed_bytes = -1, .encoding = -1, .compressed = true};
    for (sbp_thrift_field_head f = {0}; sbp_thrift_field(r, &f);) {
        if (f.id == 1)
            sbp_thrift_take(r, &f, SBP_THRIFT_I32, &head->type);
        else if (f.id == 2)
            sbp_thrift_take(r, &f, SBP_THRIFT_I32, &head->bytes);
        else if (f.id == 3)
            sbp_thrift_take(r, &f, SBP_THRIFT_I32, &head->compressed_bytes);
        else if ((f.id == 5 || f.id == 7 || f.id == 8) && f.type == SBP_THRIFT_STRUCT)
            read_data_head(r, head, f.id == 8);
        else
            sbp_thrift_skip(r, f.type);
    }
}

/* Reads the head of the next page and goes behind it. Statistics may make it long. */
static sbp_status read_head(sbp_parquet_column *c, sbp_diag *diag, page_head *head) {
    for (int64_t window = 4096;; window *= 16) {
        int64_t there = c->end - c->offset;
        int64_t take = there < window ? there : window;
        SBP_TRY(reserve(c, diag, &c->raw, take));
        SBP_TRY(sbp_source_pread(c->source, diag, c->raw.data, c->offset, take));
        sbp_thrift r = {.data = (const uint8_t *)c->raw.data, .length = (size_t)take};
        parse_head(&r, head);
        if (!r.failed) {
            c->offset += (int64_t)r.at;
            break;
        }
        if (take == there || window > 1 << 24)
            return damaged(c, diag, "the head of a page is damaged");
    }
    if (head->bytes < 0 || head->compressed_bytes < 0 || head->compressed_bytes > c->end - c->offset ||
        head->bytes > most_page_bytes || head->compressed_bytes > most_page_bytes || head->values < 0)
        return damaged(c, diag, "a page says that it is larger than its column");
    if (head->values > sbp_source_most_made(c->source) / (int64_t)sizeof(sbp_json))
        return damaged(c, diag, "a page says that it has more values than may be read");
    return SBP_OK;
}

/* ---- compression ------------------------------------------------------------------------------------ */

/* libsnappy brings the runtime of C++, more than a megabyte that every run would hold: it is opened by the
 * first page that needs it. Its C interface (snappy-c.h): 0 is success, lengths go through pointers. */
typedef struct snappy {
    int (*length)(const char *in, size_t length, size_t *out);
    int (*uncompress)(const char *in, size_t length, char *out, size_t *out_length);
} snappy;

static snappy opened;
static pthread_once_t open_once = PTHREAD_ONCE_INIT;

#ifdef SBP_SNAPPY_IS_LINKED /* a build that needs no libraries but C's */
int snappy_uncompressed_length(const char *in, size_t length, size_t *out);
int snappy_uncompress(const char *in, size_t length, char *out, size_t *out_length);

static void open_snappy(void) {
    opened = (snappy){snappy_uncompressed_length, snappy_uncompress};
}
#else
static void open_snappy(void) {
    void *library = dlopen("libsnappy.so.1", RTLD_NOW | RTLD_LOCAL); /* for good */
    if (!library)
        return;
    void *length = dlsym(library, "snappy_uncompressed_length"),
         *uncompress = dlsym(library, "snappy_uncompress");
    if (!length || !uncompress)
        return;
    memcpy(&opened.length, &length, sizeof length); /* C has no cast between these */
    memcpy(&opened.uncompress, &uncompress, sizeof uncompress);
}
#endif

bool sbp_parquet_has_snappy(void) {
    pthread_once(&open_once, open_snappy);
    return opened.uncompress != NULL;
}

static bool unzip(const char *in, int64_t length, char *out, int64_t bytes) {
    z_stream z = {.next_in = (unsigned char *)(uintptr_t)in,
                  .avail_in = (unsigned)length,
                  .next_out = (unsigned char *)out,
                  .avail_out = (unsigned)bytes};
    if (inflateInit2(&z, 15 + 32) != Z_OK)
        return false;
    int result = inflate(&z, Z_FINISH);
    inflateEnd(&z);
    return result == Z_STREAM_END && z.avail_out == 0;
}

static sbp_status decompress(const sbp_parquet_column *c, sbp_diag *diag, const char *in, int64_t length,
                             char *out, int64_t bytes) {
    size_t got = (size_t)bytes, there;
    bool good = false;
    switch (c->codec) {
    case CODEC_SNAPPY:
        pthread_once(&open_once, open_snappy);
        if (!opened.uncompress)
            return sbp_fail(diag, SBP_MACHINE,
                            "libsnappy.so.1, which decompresses this Parquet file, is not there (Debian: "
                            "libsnappy1v5)");
        good = opened.length(in, (size_t)length, &there) == 0 && there == got &&
               opened.uncompress(in, (size_t)length, out, &got) == 0;
        break;
    case CODEC_GZIP:
        good = unzip(in, length, out, bytes);
        break;
    case CODEC_ZSTD:
        good = ZSTD_decompress(out, (size_t)bytes, in, (size_t)length) == (size_t)bytes;
        break;
    case CODEC_LZ4_RAW:
        good = LZ4_decompress_safe(in, out, (int)length, (int)bytes) == (int)bytes;
        break;
    default:
        good = length == bytes;
        if (good && bytes)
            memcpy(out, in, (size_t)bytes);
    }
    return good ? SBP_OK : damaged(c, diag, "a compressed page is damaged");
}

/* The body of a page into `out`, of which the first `plain` bytes are never compressed. */
static sbp_status read_body(sbp_parquet_column *c, sbp_diag *diag, const page_head *head, int64_t plain,
                            sbp_bytes *out) {
    int64_t length = head->compressed_bytes;
    if (plain > length || plain > head->bytes)
        return damaged(c, diag, "the levels of a page are longer than it");
    SBP_TRY(reserve(c, diag, &c->raw, length + 1));
    SBP_TRY(reserve(c, diag, out, head->bytes + 1));
    SBP_TRY(sbp_source_pread(c->source, diag, c->raw.data, c->offset, length));
    c->offset += length;
    out->length = (size_t)head->bytes;
    if (plain)
        memcpy(out->data, c->raw.data, (size_t)plain);
    if (head->compressed && c->codec != CODEC_NONE &&
        head->bytes == plain) /* nothing, compressed, is something */
        return SBP_OK;
    if (head->compressed && c->codec != CODEC_NONE)
        return decompress(c, diag, c->raw.data + plain, length - plain, out->data + plain,
                          head->bytes - plain);
    if (length != head->bytes)
        return damaged(c, diag, "a page has another length than it says");
    memcpy(out->data + plain, c->raw.data + plain, (size_t)(length - plain));
    return SBP_OK;
}

/* ---- plain values ----------------------------------------------------------------------------------- */

static uint32_t word(const uint8_t *p) {
    uint32_t w;
    memcpy(&w, p, sizeof w);
    return w;
}

static int64_t width_of(const sbp_parquet_leaf *leaf) {
    switch (leaf->type) {
    case SBP_PARQUET_INT32:
    case SBP_PARQUET_FLOAT:
        return 4;
    case SBP_PARQUET_INT64:
    case SBP_PARQUET_DOUBLE:
        return 8;
    case SBP_PARQUET_INT96:
        return 12;
    case SBP_PARQUET_FIXED:
        return leaf->type_length;
    default:
        return 0;
    }
}

static void set_fixed(sbp_parquet_type type, const uint8_t *p, int64_t width, sbp_parquet_value *out) {
    float f;
    switch (type) {
    case SBP_PARQUET_INT32:
        out->integer = (int32_t)word(p);
        break;
    case SBP_PARQUET_INT64:
        memcpy(&out->integer, p, sizeof out->integer);
        break;
    case SBP_PARQUET_FLOAT:
        memcpy(&f, p, sizeof f);
        out->real = (double)f;
        break;
    case SBP_PARQUET_DOUBLE:
        memcpy(&out->real, p, sizeof out->real);
        break;
    default:
        out->bytes = p;
        out->length = width;
    }
}

static bool plain_value(const sbp_parquet_leaf *leaf, sbp_parquet_span *in, sbp_parquet_value *out) {
    int64_t width = width_of(leaf), there = in->length - in->at;
    const uint8_t *p = in->data + in->at;
    if (leaf->type == SBP_PARQUET_BYTES) {
        if (there < 4 || word(p) > there - 4)
            return false;
        out->bytes = p + 4;
        out->length = word(p);
        in->at += 4 + out->length;
        return true;
    }
    if (width <= 0 || there < width)
        return false;
    set_fixed(leaf->type, p, width, out);
    in->at += width;
    return true;
}

/* ---- pages ------------------------------------------------------------------------------------------ */

static sbp_status reserve_dictionary(sbp_parquet_column *c, sbp_diag *diag, int64_t count) {
    int64_t more = (count - c->dictionary_capacity) * (int64_t)sizeof *c->dictionary;
    SBP_TRY(sbp_source_hold(c->source, diag, more));
    sbp_parquet_value *values = sbp_realloc(c->dictionary, (size_t)count * sizeof *values);
    if (!values) {
        c->source->held -= more;
        return out_of_memory(c, diag);
    }
    c->dictionary = values;
    c->dictionary_capacity = count;
    return SBP_OK;
}

static sbp_status load_dictionary(sbp_parquet_column *c, sbp_diag *diag, const page_head *head) {
    SBP_TRY(read_body(c, diag, head, 0, &c->dictionary_page));
    sbp_parquet_span in = {(const uint8_t *)c->dictionary_page.data, 0, head->bytes};
    int64_t least = c->leaf->type == SBP_PARQUET_BYTES ? 4 : width_of(c->leaf);
    if (least <= 0 || head->values > head->bytes / least)
        return damaged(c, diag, "a dictionary says that it is larger than its page");
    if (head->values >= c->dictionary_capacity)
        SBP_TRY(reserve_dictionary(c, diag, head->values + 1));
    sbp_parquet_value *values = c->dictionary;
    for (c->dictionary_count = 0; c->dictionary_count < head->values; c->dictionary_count++)
        if (!plain_value(c->leaf, &in, &values[c->dictionary_count]))
            return damaged(c, diag, "a dictionary ends in the middle");
    return SBP_OK;
}

static int bits_for(int most) {
    int width = 0;
    while (most >> width)
        width++;
    return width;
}

/* Levels of version 1: four bytes of length before them. */
static bool begin_levels(sbp_parquet_runs *runs, sbp_parquet_span *in, int most) {
    if (most == 0)
        return true;
    if (in->length - in->at < 4)
        return false;
    int64_t bytes = word(in->data + in->at);
    in->at += 4;
    if (bytes > in->length - in->at)
        return false;
    sbp_parquet_runs_begin(runs, in->data + in->at, bytes, bits_for(most));
    in->at += bytes;
    return true;
}

static bool begin_values(sbp_parquet_column *c, sbp_parquet_span in) {
    const uint8_t *data = in.data + in.at;
    int64_t length = in.length - in.at, width = width_of(c->leaf), used;
    c->values = (sbp_parquet_span){data, 0, length};
    c->bit = 0;
    switch (c->encoding) {
    case SBP_PARQUET_PLAIN:
        return true;
    case SBP_PARQUET_PLAIN_DICTIONARY:
    case SBP_PARQUET_RLE_DICTIONARY:
        if (length == 0) /* all are null */
            return true;
        if (data[0] > 32)
            return false;
        sbp_parquet_runs_begin(&c->indexes, data + 1, length - 1, data[0]);
        return true;
    case SBP_PARQUET_RLE:
        if (c->leaf->type != SBP_PARQUET_BOOLEAN || length < 4 || word(data) > length - 4)
            return length == 0;
        sbp_parquet_runs_begin(&c->indexes, data + 4, word(data), 1);
        return true;
    case SBP_PARQUET_DELTA:
        return length == 0 || ((c->leaf->type == SBP_PARQUET_INT32 || c->leaf->type == SBP_PARQUET_INT64) &&
                               sbp_parquet_delta_begin(&c->delta, data, length));
    case SBP_PARQUET_DELTA_LENGTH:
    case SBP_PARQUET_DELTA_BYTES:
        if (length == 0)
            return true;
        if ((c->leaf->type != SBP_PARQUET_BYTES && c->leaf->type != SBP_PARQUET_FIXED) ||
            !sbp_parquet_delta_begin(&c->delta, data, length) || c->delta.left > c->page_left ||
            (used = sbp_parquet_delta_bytes(c->delta)) < 0)
            return false;
        if (c->encoding == SBP_PARQUET_DELTA_BYTES) {
            data += used;
            length -= used;
            if (!sbp_parquet_delta_begin(&c->suffixes, data, length) || c->suffixes.left > c->page_left ||
                (used = sbp_parquet_delta_bytes(c->suffixes)) < 0)
                return false;
        }
        c->values = (sbp_parquet_span){data + used, 0, length - used};
        c->text.length = 0;
        return true;
    case SBP_PARQUET_SPLIT:
        c->split_rows = width > 0 ? length / width : 0;
        return width > 0 && width <= 16;
    default:
        return false;
    }
}

static sbp_status begin_page(sbp_parquet_column *c, sbp_diag *diag, const page_head *head) {
    bool second = head->type == PAGE_DATA_2;
    int64_t levels = second ? head->def_bytes + head->rep_bytes : 0;
    char unknown[80];
    if (head->def_bytes < 0 || head->rep_bytes < 0 || head->def_bytes > head->bytes ||
        head->rep_bytes > head->bytes)
        return damaged(c, diag, "the levels of a page are longer than it");
    SBP_TRY(read_body(c, diag, head, levels, &c->page));
    sbp_parquet_span in = {(const uint8_t *)c->page.data, 0, head->bytes};
    if (second) {
        sbp_parquet_runs_begin(&c->reps, in.data, head->rep_bytes, bits_for(c->leaf->max_rep));
        sbp_parquet_runs_begin(&c->defs, in.data + head->rep_bytes, head->def_bytes,
                               bits_for(c->leaf->max_def));
        in.at = levels;
    } else if (!begin_levels(&c->reps, &in, c->leaf->max_rep) ||
               !begin_levels(&c->defs, &in, c->leaf->max_def)) {
        return damaged(c, diag, "the levels of a page are longer than it");
    }
    c->encoding = (int)head->encoding;
    c->page_left = head->values;
    if (begin_values(c, in))
        return SBP_OK;
    snprintf(unknown, sizeof unknown, "values of encoding %d are damaged, or not known", c->encoding);
    return damaged(c, diag, unknown);
}

static sbp_status next_page(sbp_parquet_column *c, sbp_diag *diag) {
    page_head head;
    SBP_TRY(read_head(c, diag, &head));
    if (head.type == PAGE_DICTIONARY)
        return load_dictionary(c, diag, &head);
    if (head.type != PAGE_DATA && head.type != PAGE_DATA_2) {
        c->offset += head.compressed_bytes;
        return SBP_OK;
    }
    if (head.values > c->left)
        return damaged(c, diag, "its pages have more values than it");
    c->left -= head.values;
    return begin_page(c, diag, &head);
}

/* ---- values ----------------------------------------------------------------------------------------- */

sbp_status sbp_parquet_column_peek(sbp_parquet_column *c, sbp_diag *diag, bool *end) {
    *end = false;
    if (c->loaded)
        return SBP_OK;
    while (c->page_left == 0) {
        *end = c->left == 0;
        if (*end)
            return SBP_OK;
        if (c->offset >= c->end)
            return damaged(c, diag, "it has fewer values than it says");
        SBP_TRY(next_page(c, diag));
    }
    uint64_t rep = 0, def = (uint64_t)c->leaf->max_def;
    if ((c->leaf->max_rep > 0 && !sbp_parquet_runs_next(&c->reps, &rep)) ||
        (c->leaf->max_def > 0 && !sbp_parquet_runs_next(&c->defs, &def)) ||
        rep > (uint64_t)c->leaf->max_rep || def > (uint64_t)c->leaf->max_def)
        return damaged(c, diag, "the levels of a page are damaged");
    c->rep = (int)rep;
    c->def = (int)def;
    c->page_left--;
    c->loaded = true;
    return SBP_OK;
}

/* Strings of which the first bytes are those of the string before. Values of a fixed length have that. */
static bool delta_text(sbp_parquet_column *c, sbp_parquet_value *out) {
    int64_t prefix = 0, suffix;
    if (c->encoding == SBP_PARQUET_DELTA_BYTES) {
        if (!sbp_parquet_delta_next(&c->delta, &prefix) || !sbp_parquet_delta_next(&c->suffixes, &suffix))
            return false;
    } else if (!sbp_parquet_delta_next(&c->delta, &suffix)) {
        return false;
    }
    if (prefix < 0 || suffix < 0 || prefix > (int64_t)c->text.length ||
        suffix > c->values.length - c->values.at)
        return false;
    if (c->leaf->type == SBP_PARQUET_FIXED && prefix + suffix != c->leaf->type_length)
        return false;
    const uint8_t *data = c->values.data + c->values.at;
    c->values.at += suffix;
    if (c->encoding == SBP_PARQUET_DELTA_LENGTH) {
        out->bytes = data;
        out->length = suffix;
        return true;
    }
    c->text.length = (size_t)prefix;
    if (!sbp_bytes_add(&c->text, (const char *)data, (size_t)suffix))
        return false;
    out->bytes = (const uint8_t *)c->text.data;
    out->length = (int64_t)c->text.length;
    return true;
}

static bool boolean(sbp_parquet_column *c, sbp_parquet_value *out) {
    if (c->bit >= c->values.length * 8)
        return false;
    out->integer = c->values.data[c->bit >> 3] >> (c->bit & 7) & 1;
    c->bit++;
    return true;
}

static bool split_value(sbp_parquet_column *c, sbp_parquet_value *out) {
    int64_t width = width_of(c->leaf);
    uint8_t bytes[16];
    if (c->values.at >= c->split_rows || c->leaf->type == SBP_PARQUET_BYTES)
        return false;
    for (int64_t b = 0; b < width; b++)
        bytes[b] = c->values.data[b * c->split_rows + c->values.at];
    c->values.at++;
    c->text.length = 0; /* where it stays until the next one */
    if (!sbp_bytes_add(&c->text, (const char *)bytes, (size_t)width))
        return false;
    set_fixed(c->leaf->type, (const uint8_t *)c->text.data, width, out);
    return true;
}

static bool next_value(sbp_parquet_column *c, sbp_parquet_value *out) {
    uint64_t index;
    switch (c->encoding) {
    case SBP_PARQUET_PLAIN:
        return c->leaf->type == SBP_PARQUET_BOOLEAN ? boolean(c, out) : plain_value(c->leaf, &c->values, out);
    case SBP_PARQUET_RLE:
        if (c->values.length == 0 || !sbp_parquet_runs_next(&c->indexes, &index))
            return false;
        out->integer = (int64_t)index;
        return true;
    case SBP_PARQUET_DELTA:
        if (c->values.length == 0 || !sbp_parquet_delta_next(&c->delta, &out->integer))
            return false;
        if (c->leaf->type == SBP_PARQUET_INT32) /* differences go around at 2^32 */
            out->integer = (int32_t)(uint32_t)out->integer;
        return true;
    case SBP_PARQUET_DELTA_LENGTH:
    case SBP_PARQUET_DELTA_BYTES:
        return c->values.data && delta_text(c, out);
    case SBP_PARQUET_SPLIT:
        return split_value(c, out);
    default:
        if (c->values.length == 0 || !sbp_parquet_runs_next(&c->indexes, &index) ||
            index >= (uint64_t)c->dictionary_count)
            return false;
        *out = c->dictionary[index];
        return true;
    }
}

sbp_status sbp_parquet_column_take(sbp_parquet_column *c, sbp_diag *diag, sbp_parquet_value *value) {
    c->loaded = false;
    if (c->def < c->leaf->max_def)
        return SBP_OK;
    return next_value(c, value) ? SBP_OK
                                : damaged(c, diag, "a page ends in the middle, or its values are damaged");
}
