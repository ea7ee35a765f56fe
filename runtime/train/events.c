/* events.c: event files of TensorBoard. */
#include "runtime/train/events.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PREFIX "events.out.tfevents."

enum { MOST_TAG = 200, MOST_RECORD = 300 };

struct sbp_events {
    FILE *file;
    char path[4096];
};

/* ---- records ---------------------------------------------------------------------------------------- */

uint32_t sbp_events_crc(const void *data, size_t length) {
    const uint8_t *bytes = data;
    uint32_t crc = ~0u;
    for (size_t i = 0; i < length; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0); /* the polynomial, bits reversed */
    }
    return ~crc;
}

/* So that a checksum of data that hold checksums is none of these. */
static uint32_t masked(const void *data, size_t length) {
    uint32_t crc = sbp_events_crc(data, length);
    return (crc >> 15 | crc << 17) + 0xA282EAD8u;
}

typedef struct record {
    uint8_t data[MOST_RECORD];
    size_t length;
} record;

static void put(record *r, const void *bytes, size_t length) {
    if (r->length + length <= sizeof r->data)
        memcpy(r->data + r->length, bytes, length);
    r->length += length;
}

static void put_little(record *r, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++)
        put(r, &(uint8_t){(uint8_t)(value >> 8 * i)}, 1);
}

/* ---- Protocol Buffers ------------------------------------------------------------------------------- */

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

static void put_varint(record *r, uint64_t value) {
    for (; value >= 0x80; value >>= 7)
        put(r, &(uint8_t){(uint8_t)(value | 0x80)}, 1);
    put(r, &(uint8_t){(uint8_t)value}, 1);
}

static void put_key(record *r, unsigned field, unsigned type) {
    put_varint(r, field << 3 | type);
}

static void put_double(record *r, unsigned field, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_key(r, field, FIXED64);
    put_little(r, bits, 8);
}

static void put_float(record *r, unsigned field, double value) {
    float narrow = (float)value;
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof bits);
    put_key(r, field, FIXED32);
    put_little(r, bits, 4);
}

static void put_bytes(record *r, unsigned field, const void *bytes, size_t length) {
    put_key(r, field, BYTES);
    put_varint(r, length);
    put(r, bytes, length);
}

/* Event: wall_time = 1, step = 2, file_version = 3, summary = 5, session_log = 7. */
static record begin_event(int64_t step) {
    record r = {.length = 0};
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    put_double(&r, 1, (double)now.tv_sec + (double)now.tv_nsec * 1e-9);
    put_key(&r, 2, VARINT);
    put_varint(&r, (uint64_t)step);
    return r;
}

static sbp_status write_failed(const sbp_events *e, sbp_diag *diag) {
    return sbp_fail(diag, SBP_IO, "cannot write '%s': %s", e->path, strerror(errno));
}

/* uint64 length, its checksum, data, their checksum. */
static sbp_status write_bytes(sbp_events *e, sbp_diag *diag, const uint8_t *event, size_t length) {
    record head = {.length = 0}, tail = {.length = 0};
    put_little(&head, length, 8);
    put_little(&head, masked(head.data, 8), 4);
    put_little(&tail, masked(event, length), 4);
    bool written = fwrite(head.data, head.length, 1, e->file) == 1 &&
                   fwrite(event, length, 1, e->file) == 1 && fwrite(tail.data, tail.length, 1, e->file) == 1;
    return written ? SBP_OK : write_failed(e, diag);
}

static sbp_status write_event(sbp_events *e, sbp_diag *diag, const record *event) {
    return write_bytes(e, diag, event->data, event->length);
}

sbp_status sbp_events_add(sbp_events *e, sbp_diag *diag, int64_t step, const char *tag, double value) {
    record number = {.length = 0}, summary = {.length = 0}, event = begin_event(step);
    size_t length = strnlen(tag, MOST_TAG);
    if (!isfinite(value))
        return SBP_OK;
    put_bytes(&number, 1, tag, length); /* Summary.Value: tag = 1, simple_value = 2 */
    put_float(&number, 2, value);
    put_bytes(&summary, 1, number.data, number.length);
    put_bytes(&event, 5, summary.data, summary.length);
    return write_event(e, diag, &event);
}

/* Bytes of a message that ends in `more` bytes beside those of `rest`. */
static void put_outer(record *r, unsigned field, const record *rest, size_t more) {
    put_key(r, field, BYTES);
    put_varint(r, rest->length + more);
    put(r, rest->data, rest->length);
}

/* The text is last in the message, so all before it is written from the inside out. */
sbp_status sbp_events_add_text(sbp_events *e, sbp_diag *diag, int64_t step, const char *tag, const char *text,
                               size_t length) {
    static const uint8_t of_text[] = {1 << 3 | BYTES, 6, 1 << 3 | BYTES, 4, 't', 'e', 'x', 't'},
                         one[] = {2 << 3 | BYTES, 2, 1 << 3 | VARINT, 1};
    record tensor = {.length = 0}, value = {.length = 0}, summary = {.length = 0}, event = begin_event(step);
    put_key(&tensor, 1, VARINT); /* TensorProto: dtype = 1 (DT_STRING), tensor_shape = 2, string_val = 8 */
    put_varint(&tensor, 7);
    put_bytes(&tensor, 2, one, sizeof one);
    put_key(&tensor, 8, BYTES);
    put_varint(&tensor, length);
    put_bytes(&value, 1, tag, strnlen(tag, MOST_TAG)); /* Summary.Value: tag = 1, tensor = 8, metadata = 9 */
    put_bytes(&value, 9, of_text, sizeof of_text); /* SummaryMetadata: plugin_data = 1 { plugin_name = 1 } */
    put_outer(&value, 8, &tensor, length);
    put_outer(&summary, 1, &value, length);
    put_outer(&event, 5, &summary, length);
    uint8_t *all = sbp_malloc(event.length + length);
    if (!all)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for a text of %zu bytes in '%s'", length, e->path);
    memcpy(all, event.data, event.length);
    memcpy(all + event.length, text, length);
    sbp_status status = write_bytes(e, diag, all, event.length + length);
    free(all);
    return status;
}

sbp_status sbp_events_flush(sbp_events *e, sbp_diag *diag) {
    return fflush(e->file) == 0 ? SBP_OK : write_failed(e, diag);
}

/* ---- files ------------------------------------------------------------------------------------------ */

/* Removes the events of an earlier run where this one begins anew: its curves would be drawn into those. */
static void remove_earlier(const char *folder) {
    DIR *names = opendir(folder);
    struct dirent *entry;
    while (names && (entry = readdir(names)))
        if (strncmp(entry->d_name, PREFIX, strlen(PREFIX)) == 0)
            (void)unlinkat(dirfd(names), entry->d_name, 0);
    if (names)
        closedir(names);
}

/* The time is in the name, by which files of a folder are ordered; never an earlier one again. */
static sbp_status create(sbp_events *e, sbp_diag *diag, const char *folder) {
    int fd = -1;
    long long now = (long long)time(NULL);
    for (int i = 0; i < 100 && fd < 0; i++) {
        int length = snprintf(e->path, sizeof e->path, "%s/" PREFIX "%lld.sbprun.%02d", folder, now, i);
        errno = ENAMETOOLONG;
        if (length >= (int)sizeof e->path)
            break;
        fd = open(e->path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (fd < 0 && errno != EEXIST)
            break;
    }
    e->file = fd < 0 ? NULL : fdopen(fd, "w");
    return e->file ? SBP_OK : write_failed(e, diag);
}

static sbp_status begin_file(sbp_events *e, sbp_diag *diag, int64_t first_step) {
    static const char version[] = "brain.Event:2";
    record event = begin_event(0), start = begin_event(first_step);
    put_bytes(&event, 3, version, sizeof version - 1);
    SBP_TRY(write_event(e, diag, &event));
    put_bytes(&start, 7, (uint8_t[]){1 << 3 | VARINT, 1}, 2); /* SessionLog: status = 1, START = 1 */
    if (first_step > 0)
        SBP_TRY(write_event(e, diag, &start));
    return sbp_events_flush(e, diag);
}

sbp_status sbp_events_open(sbp_diag *diag, const char *folder, bool own, int64_t first_step,
                           sbp_events **out) {
    if (mkdir(folder, 0777) != 0 && errno != EEXIST)
        return sbp_fail(diag, SBP_IO, "cannot make the folder '%s': %s", folder, strerror(errno));
    if (own && first_step == 0)
        remove_earlier(folder);
    sbp_events *e = sbp_malloc(sizeof *e);
    if (!e)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for the event file of TensorBoard");
    sbp_status status = create(e, diag, folder);
    if (status == SBP_OK)
        status = begin_file(e, diag, first_step);
    if (status == SBP_OK) {
        *out = e;
        return SBP_OK;
    }
    if (e->file)
        fclose(e->file);
    free(e);
    return status;
}

sbp_status sbp_events_close(sbp_events *e, sbp_diag *diag) {
    if (!e)
        return SBP_OK;
    bool closed = fclose(e->file) == 0;
    sbp_status status = closed ? SBP_OK : write_failed(e, diag);
    free(e);
    return status;
}
