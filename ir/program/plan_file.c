/* plan_file.c: the container format of plan.bin (plan_file.h). */
#include "ir/program/plan_file.h"

#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

enum {
    HEADER_BYTES = 32,
    ENTRY_BYTES = SBP_PLAN_NAME_BYTES + 24,
    SECTION_ALIGNMENT = 64,
    AT_VERSION = 8,
    AT_COUNT = 12,
    AT_FILE_BYTES = 16,
    AT_CHECKSUM = 24,
    MAX_TABLE_BYTES = HEADER_BYTES + SBP_PLAN_MAX_SECTIONS * ENTRY_BYTES
};

static const char magic[8] = {'S', 'B', 'P', 'P', 'L', 'A', 'N', '\n'};

static void put_u32(unsigned char *out, uint32_t value) {
    for (int k = 0; k < 4; k++)
        out[k] = (unsigned char)(value >> (8 * k));
}

static void put_u64(unsigned char *out, uint64_t value) {
    put_u32(out, (uint32_t)value);
    put_u32(out + 4, (uint32_t)(value >> 32));
}

static uint32_t get_u32(const unsigned char *in) {
    return (uint32_t)in[0] | (uint32_t)in[1] << 8 | (uint32_t)in[2] << 16 | (uint32_t)in[3] << 24;
}

static uint64_t get_u64(const unsigned char *in) {
    return (uint64_t)get_u32(in) | (uint64_t)get_u32(in + 4) << 32;
}

/* The checksum of header and table, computed with the checksum field as 0. */
static uint64_t table_checksum(const unsigned char *header, size_t table_bytes) {
    unsigned char copy[MAX_TABLE_BYTES];
    memcpy(copy, header, table_bytes);
    memset(copy + AT_CHECKSUM, 0, 8);
    return sbp_hash_bytes(copy, table_bytes, 0);
}

/* ---- writing ---------------------------------------------------------------------------------------- */

static sbp_status check_sections(sbp_diag *diag, const char *path, const sbp_plan_section *sections,
                                 int32_t count) {
    if (count < 0 || count > SBP_PLAN_MAX_SECTIONS)
        return sbp_fail(diag, SBP_INTERNAL, "%s: %d sections; at most %d", path, count,
                        SBP_PLAN_MAX_SECTIONS);
    for (int32_t k = 0; k < count; k++) {
        size_t length = strlen(sections[k].name);
        if (length == 0 || length >= SBP_PLAN_NAME_BYTES || sections[k].length < 0)
            return sbp_fail(diag, SBP_INTERNAL, "%s: section '%s' of %" PRId64 " bytes", path,
                            sections[k].name, sections[k].length);
        for (int32_t j = 0; j < k; j++)
            if (strcmp(sections[j].name, sections[k].name) == 0)
                return sbp_fail(diag, SBP_INTERNAL, "%s: two sections '%s'", path, sections[k].name);
    }
    return SBP_OK;
}

static sbp_status write_all(sbp_file_out *file, sbp_diag *diag, const unsigned char *table,
                            int64_t table_bytes, const sbp_plan_section *sections, int32_t count) {
    static const unsigned char zeros[SECTION_ALIGNMENT];
    SBP_TRY(sbp_file_out_write(file, diag, table, table_bytes));
    int64_t at = table_bytes;
    for (int32_t k = 0; k < count; k++) {
        int64_t start = sbp_round_up(at, SECTION_ALIGNMENT);
        SBP_TRY(sbp_file_out_write(file, diag, zeros, start - at));
        if (sections[k].length > 0)
            SBP_TRY(sbp_file_out_write(file, diag, sections[k].data, sections[k].length));
        at = start + sections[k].length;
    }
    return SBP_OK;
}

sbp_status sbp_plan_file_write(sbp_diag *diag, const char *path, const sbp_plan_section *sections,
                               int32_t count) {
    SBP_TRY(check_sections(diag, path, sections, count));
    unsigned char table[MAX_TABLE_BYTES] = {0};
    int64_t table_bytes = HEADER_BYTES + (int64_t)count * ENTRY_BYTES, at = table_bytes;
    for (int32_t k = 0; k < count; k++) {
        unsigned char *entry = table + HEADER_BYTES + k * ENTRY_BYTES;
        at = sbp_round_up(at, SECTION_ALIGNMENT);
        memcpy(entry, sections[k].name, strlen(sections[k].name));
        put_u64(entry + SBP_PLAN_NAME_BYTES, (uint64_t)at);
        put_u64(entry + SBP_PLAN_NAME_BYTES + 8, (uint64_t)sections[k].length);
        put_u64(
            entry + SBP_PLAN_NAME_BYTES + 16,
            sbp_hash_bytes(sections[k].length > 0 ? sections[k].data : "", (size_t)sections[k].length, 0));
        at += sections[k].length;
    }
    memcpy(table, magic, sizeof magic);
    put_u32(table + AT_VERSION, SBP_PLAN_VERSION);
    put_u32(table + AT_COUNT, (uint32_t)count);
    put_u64(table + AT_FILE_BYTES, (uint64_t)at);
    put_u64(table + AT_CHECKSUM, table_checksum(table, (size_t)table_bytes));

    sbp_file_out *file;
    SBP_TRY(sbp_file_out_open(diag, path, &file));
    sbp_status status = write_all(file, diag, table, table_bytes, sections, count);
    if (status != SBP_OK) {
        sbp_file_out_abort(file);
        return status;
    }
    return sbp_file_out_commit(file, diag);
}

/* ---- reading ---------------------------------------------------------------------------------------- */

/* Reads the header; `bytes` of it at least must be there. False as well when the file is no plan. */
static bool read_header(const char *path, unsigned char header[HEADER_BYTES], ssize_t bytes) {
    int fd;
    if (sbp_file_open_regular(NULL, path, &fd) != SBP_OK)
        return false;
    ssize_t got = pread(fd, header, HEADER_BYTES, 0);
    close(fd);
    return got >= bytes && memcmp(header, magic, sizeof magic) == 0;
}

bool sbp_plan_file_probe(const char *path) {
    unsigned char header[HEADER_BYTES];
    return read_header(path, header, sizeof magic);
}

uint64_t sbp_plan_file_checksum(const char *path) {
    unsigned char header[HEADER_BYTES];
    return read_header(path, header, HEADER_BYTES) ? get_u64(header + AT_CHECKSUM) : 0;
}

/* Header and table, before any section is touched. */
static sbp_status check_header(sbp_diag *diag, const char *path, const unsigned char *data, uint64_t length,
                               uint32_t *count) {
    if (length < sizeof magic || memcmp(data, magic, sizeof magic) != 0)
        return sbp_fail(diag, SBP_INPUT, "%s: not a plan", path);
    if (length < HEADER_BYTES)
        return sbp_fail(diag, SBP_INPUT, "%s: header: ends after %" PRIu64 " bytes", path, length);
    uint32_t version = get_u32(data + AT_VERSION);
    if (version != SBP_PLAN_VERSION)
        return sbp_fail(diag, SBP_INPUT,
                        "%s: header: the plan has version %" PRIu32
                        ", this program reads version %d: compile it again",
                        path, version, SBP_PLAN_VERSION);
    *count = get_u32(data + AT_COUNT);
    if (*count > SBP_PLAN_MAX_SECTIONS)
        return sbp_fail(diag, SBP_INPUT, "%s: header: %" PRIu32 " sections; at most %d", path, *count,
                        SBP_PLAN_MAX_SECTIONS);
    uint64_t table_bytes = HEADER_BYTES + *count * (uint64_t)ENTRY_BYTES;
    uint64_t file_bytes = get_u64(data + AT_FILE_BYTES);
    if (file_bytes != length || table_bytes > length)
        return sbp_fail(diag, SBP_INPUT,
                        "%s: header: %" PRIu64 " bytes long, expected %" PRIu64 ": the file is damaged", path,
                        length, file_bytes);
    uint64_t found = table_checksum(data, (size_t)table_bytes), expected = get_u64(data + AT_CHECKSUM);
    if (found != expected)
        return sbp_fail(diag, SBP_INPUT,
                        "%s: header: checksum %016" PRIx64 ", expected %016" PRIx64 ": the file is damaged",
                        path, found, expected);
    return SBP_OK;
}

/* One section that must begin at the multiple of 64 after `end`, which then moves to its end. */
static sbp_status read_section(sbp_arena *arena, sbp_diag *diag, const char *path, const unsigned char *data,
                               uint64_t length, const unsigned char *entry, uint64_t *end,
                               sbp_plan_section *out) {
    size_t name_bytes = strnlen((const char *)entry, SBP_PLAN_NAME_BYTES);
    if (name_bytes == 0 || name_bytes == SBP_PLAN_NAME_BYTES)
        return sbp_fail(diag, SBP_INPUT, "%s: header: a section has no proper name", path);
    out->name = sbp_arena_strndup(arena, (const char *)entry, name_bytes);
    uint64_t offset = get_u64(entry + SBP_PLAN_NAME_BYTES), bytes = get_u64(entry + SBP_PLAN_NAME_BYTES + 8);
    uint64_t start = (*end + SECTION_ALIGNMENT - 1) / SECTION_ALIGNMENT * SECTION_ALIGNMENT;
    if (offset != start || offset > length || bytes > length - offset)
        return sbp_fail(diag, SBP_INPUT,
                        "%s: section '%s': bytes %" PRIu64 " to %" PRIu64 "+%" PRIu64
                        " do not lie where they should in a file of %" PRIu64,
                        path, out->name, offset, offset, bytes, length);
    for (uint64_t k = *end; k < start; k++)
        if (data[k] != 0)
            return sbp_fail(diag, SBP_INPUT, "%s: section '%s': byte %" PRIu64 " before it is not 0", path,
                            out->name, k);
    uint64_t found = sbp_hash_bytes(data + offset, (size_t)bytes, 0);
    uint64_t expected = get_u64(entry + SBP_PLAN_NAME_BYTES + 16);
    if (found != expected)
        return sbp_fail(diag, SBP_INPUT,
                        "%s: section '%s': checksum %016" PRIx64 ", expected %016" PRIx64
                        ": the file is damaged",
                        path, out->name, found, expected);
    out->data = sbp_arena_strndup(arena, (const char *)data + offset, (size_t)bytes);
    out->length = (int64_t)bytes;
    *end = offset + bytes;
    return SBP_OK;
}

sbp_status sbp_plan_file_parse(sbp_arena *arena, sbp_diag *diag, const char *path, const void *data,
                               size_t length, const sbp_plan_file **out) {
    const unsigned char *bytes = data;
    uint32_t count = 0;
    SBP_TRY(check_header(diag, path, bytes, length, &count));
    sbp_plan_file *file = SBP_NEW(arena, sbp_plan_file);
    file->path = sbp_arena_strdup(arena, path);
    file->sections = SBP_NEW_ARRAY(arena, sbp_plan_section, count);
    uint64_t end = HEADER_BYTES + count * (uint64_t)ENTRY_BYTES;
    for (uint32_t k = 0; k < count; k++) {
        sbp_plan_section section = {0};
        SBP_TRY(read_section(arena, diag, path, bytes, length, bytes + HEADER_BYTES + k * ENTRY_BYTES, &end,
                             &section));
        if (sbp_plan_file_find(file, section.name))
            return sbp_fail(diag, SBP_INPUT, "%s: header: two sections '%s'", path, section.name);
        file->sections[file->count++] = section;
    }
    if (end != length)
        return sbp_fail(diag, SBP_INPUT, "%s: %" PRIu64 " bytes after the last section", path,
                        (uint64_t)length - end);
    *out = file;
    return SBP_OK;
}

typedef struct read_job {
    sbp_arena *arena;
    sbp_diag *diag;
    const char *path, *data;
    size_t length;
    const sbp_plan_file **out;
} read_job;

static sbp_status parse_job(void *user) {
    read_job *job = user;
    return sbp_plan_file_parse(job->arena, job->diag, job->path, job->data, job->length, job->out);
}

sbp_status sbp_plan_file_read(sbp_arena *arena, sbp_diag *diag, const char *path, const sbp_plan_file **out) {
    sbp_arena *bytes = sbp_arena_create(); /* of the file as a whole: gone when the sections are copied */
    if (!bytes)
        return sbp_fail(diag, SBP_MACHINE, "%s: out of memory for the plan", path);
    read_job job = {.arena = arena, .diag = diag, .path = path, .out = out};
    sbp_status status = sbp_file_read(bytes, diag, path, &job.data, &job.length);
    if (status == SBP_OK)
        status = sbp_guard(arena, diag, parse_job, &job);
    sbp_arena_destroy(bytes);
    return status;
}

const sbp_plan_section *sbp_plan_file_find(const sbp_plan_file *file, const char *name) {
    for (int32_t k = 0; k < file->count; k++)
        if (strcmp(file->sections[k].name, name) == 0)
            return &file->sections[k];
    return NULL;
}
