/* memory.c: memory of the fake driver, copies and fills. */
#include "tests/cuda/fake/driver.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* LARGE: more than any test uses. Such an allocation has nothing behind it: somebody sees what can be had. */
enum { MOST_PLACES = 256, LARGE = 1 << 30 };

/* Pinned memory, and allocations of the device by number. */
typedef struct host_memory {
    char *memory;
    size_t bytes;
    int32_t id;
    bool registered; /* the caller's */
} host_memory;

typedef struct device_memory {
    cuda_address address;
    size_t bytes;
    int32_t id;
} device_memory;

static host_memory hosts[MOST_PLACES];
static device_memory devices[MOST_PLACES];
static int32_t ids;

void fake_memory_reset(void) {
    for (int i = 0; i < MOST_PLACES; i++) {
        if (!hosts[i].registered)
            free(hosts[i].memory);
        hosts[i] = (host_memory){0};
        devices[i] = (device_memory){0};
    }
    ids = 0;
    if (fake.memory)
        sbp_ptx_memory_destroy(fake.memory);
    fake.memory = NULL;
}

/* ---- where something lies --------------------------------------------------------------------------- */

static const host_memory *host_of(const void *memory) {
    for (int i = 0; i < MOST_PLACES; i++)
        if (hosts[i].memory && (const char *)memory >= hosts[i].memory &&
            (const char *)memory < hosts[i].memory + hosts[i].bytes)
            return &hosts[i];
    return NULL;
}

static char *next_text(void) {
    static char texts[8][48];
    static int at;
    return texts[at++ % 8];
}

const char *fake_cuda_place(cuda_address address) {
    char *text = next_text();
    snprintf(text, 48, "%s", "nowhere");
    for (int i = 0; i < MOST_PLACES; i++)
        if (devices[i].address && address >= devices[i].address &&
            address - devices[i].address <= devices[i].bytes)
            snprintf(text, 48, "d%d+%" PRIu64, devices[i].id, address - devices[i].address);
    return text;
}

static const char *host_place(const void *memory) {
    const host_memory *host = host_of(memory);
    char *text = next_text();
    if (!host)
        return "host";
    snprintf(text, 48, "h%d+%td", host->id, (const char *)memory - host->memory);
    return text;
}

void *fake_cuda_memory(cuda_address address, uint64_t bytes, const char *what) {
    void *memory = fake.memory ? sbp_ptx_memory_host(fake.memory, address, bytes) : NULL;
    if (!memory)
        (void)fake_cuda_wrong(CUDA_ILLEGAL_ADDRESS, "%s: %" PRIu64 " bytes at %s are not in one allocation",
                              what, bytes, fake_cuda_place(address));
    return memory;
}

void fake_cuda_written(cuda_address address, uint64_t bytes) {
    (void)sbp_ptx_memory_mark(fake.memory, address, bytes, true);
}

/* ---- allocating ------------------------------------------------------------------------------------- */

static uint64_t free_bytes(void) {
    uint64_t used = sbp_ptx_memory_used_bytes(fake.memory) + (uint64_t)fake_number("taken", 0);
    for (int i = 0; i < MOST_PLACES; i++)
        used += devices[i].bytes > LARGE ? devices[i].bytes : 0;
    uint64_t all = (uint64_t)fake_memory_bytes();
    return all > used ? all - used : 0;
}

cuda_result cuMemGetInfo(size_t *free_out, size_t *total) {
    FAKE_ENTER(true);
    *free_out = (size_t)(free_bytes() + (uint64_t)fake_number("broken_up", 0));
    *total = (size_t)fake_memory_bytes();
    return CUDA_OK;
}

/* NaN in every float type until something is written. */
static void poison(cuda_address address, size_t bytes) {
    void *memory = sbp_ptx_memory_host(fake.memory, address, bytes);
    if (memory)
        memset(memory, 0xff, bytes);
}

cuda_result cuMemAlloc(cuda_address *address, size_t bytes) {
    FAKE_ENTER(true);
    if (bytes == 0)
        return fake_cuda_wrong(CUDA_INVALID_VALUE, "cuMemAlloc of no bytes");
    for (int i = 0; i < MOST_PLACES; i++)
        if (!devices[i].address) {
            cuda_address found = 0;
            if (bytes <= free_bytes())
                found = bytes > LARGE ? (cuda_address)1 << 60 : sbp_ptx_memory_alloc(fake.memory, bytes);
            if (!found)
                return CUDA_OUT_OF_MEMORY;
            if (bytes <= LARGE)
                poison(found, bytes);
            devices[i] = (device_memory){found, bytes, ++ids};
            fake_cuda_count(1);
            fake_cuda_log("cuMemAlloc %zu -> d%d", bytes, ids);
            *address = found;
            return CUDA_OK;
        }
    return CUDA_OUT_OF_MEMORY;
}

/* Gives back, whatever it returns. */
cuda_result cuMemFree(cuda_address address) {
    FAKE_LOCKED;
    cuda_result result = fake_cuda_enter(__func__, true);
    for (int i = 0; i < MOST_PLACES; i++)
        if (address && devices[i].address == address) {
            fake_cuda_log("cuMemFree d%d", devices[i].id);
            if (devices[i].bytes <= LARGE)
                (void)sbp_ptx_memory_free(fake.memory, address);
            devices[i] = (device_memory){0};
            fake_cuda_count(-1);
            return result;
        }
    return fake_cuda_wrong(CUDA_INVALID_VALUE, "cuMemFree: no memory begins there, or not any more");
}

/* Whether `bytes` bytes more may be pinned. */
static bool may_pin(size_t bytes) {
    for (int i = 0; i < MOST_PLACES; i++)
        bytes += hosts[i].bytes;
    return bytes <= (size_t)fake_number("pinned", INT64_MAX);
}

/* Takes note of pinned memory; false: there is no place for it. */
static bool pin(char *memory, size_t bytes, bool registered) {
    for (int i = 0; i < MOST_PLACES; i++)
        if (!hosts[i].memory) {
            hosts[i] = (host_memory){memory, bytes, ++ids, registered};
            fake_cuda_count(1);
            return true;
        }
    return false;
}

/* Forgets pinned memory that begins there; false: none of that kind does. */
static bool unpin(const char *name, const void *memory, bool registered) {
    for (int i = 0; i < MOST_PLACES; i++)
        if (memory && hosts[i].memory == memory && hosts[i].registered == registered) {
            fake_cuda_log("%s h%d", name, hosts[i].id);
            hosts[i] = (host_memory){0};
            fake_cuda_count(-1);
            return true;
        }
    return false;
}

cuda_result cuMemHostAlloc(void **memory, size_t bytes, uint32_t flags) {
    FAKE_ENTER(true);
    if (bytes == 0 || flags > 7)
        return fake_cuda_wrong(CUDA_INVALID_VALUE, "cuMemHostAlloc: %zu bytes, flags %u", bytes, flags);
    char *found = may_pin(bytes) ? aligned_alloc(4096, (bytes + 4095) / 4096 * 4096) : NULL;
    if (!found || !pin(found, bytes, false)) {
        free(found);
        return CUDA_OUT_OF_MEMORY;
    }
    memset(found, 0xff, bytes);
    fake_cuda_log("cuMemHostAlloc %zu, flags %u -> h%d", bytes, flags, ids);
    *memory = found;
    return CUDA_OK;
}

cuda_result cuMemFreeHost(void *memory) {
    FAKE_LOCKED;
    cuda_result result = fake_cuda_enter(__func__, true);
    if (!unpin(__func__, memory, false))
        return fake_cuda_wrong(CUDA_INVALID_VALUE, "cuMemFreeHost: no pinned memory begins there");
    free(memory);
    return result;
}

static bool registers(const char *memory, size_t bytes) {
    for (int i = 0; i < MOST_PLACES; i++)
        if (hosts[i].memory && memory < hosts[i].memory + hosts[i].bytes && hosts[i].memory < memory + bytes)
            return true;
    return false;
}

cuda_result cuMemHostRegister(void *memory, size_t bytes, uint32_t flags) {
    FAKE_ENTER(true);
    if (!memory || bytes == 0 || flags > 15 || (uintptr_t)memory % 4096 != 0 || registers(memory, bytes))
        return fake_cuda_wrong(CUDA_INVALID_VALUE, "cuMemHostRegister: %zu bytes, flags %u", bytes, flags);
    if (!may_pin(bytes) || !pin(memory, bytes, true))
        return CUDA_OUT_OF_MEMORY;
    fake_cuda_log("cuMemHostRegister %zu, flags %u -> h%d", bytes, flags, ids);
    return CUDA_OK;
}

cuda_result cuMemHostUnregister(void *memory) {
    FAKE_LOCKED;
    cuda_result result = fake_cuda_enter(__func__, true);
    if (!unpin(__func__, memory, true))
        return fake_cuda_wrong(CUDA_INVALID_VALUE, "cuMemHostUnregister: no registered memory begins there");
    return result;
}

/* ---- copies ----------------------------------------------------------------------------------------- */

/* One end of a copy: the device's memory, or the host's, with the number of its pinned memory (0: it is the
 * caller's). */
typedef struct end {
    cuda_address device;
    char *host;
    int32_t pinned;
    size_t pitch;
} end;

typedef struct copying {
    end to, from;
    size_t width, height;
} copying;

static end device_end(cuda_address address, size_t pitch) {
    return (end){.device = address, .pitch = pitch};
}

static end host_end(const void *memory, size_t pitch) {
    const host_memory *host = host_of(memory);
    return (end){.host = (char *)(uintptr_t)memory, .pinned = host ? host->id : 0, .pitch = pitch};
}

/* Bytes from the first to the last of `height` rows that lie `pitch` apart. */
static uint64_t extent(const end *e, size_t width, size_t height) {
    return (uint64_t)(height - 1) * e->pitch + width;
}

/* Whether bytes are pinned to their end; registered memory may lie in several pieces, one behind the
 * other. */
static bool is_pinned(const char *memory, uint64_t bytes) {
    for (const host_memory *host; (host = host_of(memory)) != NULL;) {
        uint64_t here = (uint64_t)(host->memory + host->bytes - memory);
        if (here >= bytes)
            return true;
        if (!host->registered)
            return false;
        memory += here;
        bytes -= here;
    }
    return false;
}

/* Whether all of it is there; the host's address of it. A copy of which a part alone is pinned is refused, as
 * by the driver. */
static char *reach(const end *e, size_t width, size_t height, const char *what) {
    if (!e->host)
        return fake_cuda_memory(e->device, extent(e, width, height), what);
    const host_memory *host = host_of(e->host);
    if (e->pinned == 0 && !registers(e->host, extent(e, width, height)))
        return e->host;
    bool same = host && host->id == e->pinned && is_pinned(e->host, extent(e, width, height));
    if (!same)
        (void)fake_cuda_wrong(CUDA_ILLEGAL_ADDRESS, "%s: pinned memory h%d ends before, or is given back",
                              what, e->pinned);
    return same ? e->host : NULL;
}

static cuda_result copy_now(void *data) {
    const copying *c = data;
    char *to = reach(&c->to, c->width, c->height, "a copy's destination");
    const char *from = reach(&c->from, c->width, c->height, "a copy's source");
    if (!to || !from)
        return CUDA_ILLEGAL_ADDRESS;
    for (size_t row = 0; row < c->height; row++) {
        uint64_t from_device = c->from.device + row * c->from.pitch,
                 to_device = c->to.device + row * c->to.pitch;
        if (!c->to.host && !c->from.host)
            (void)sbp_ptx_memory_copy(fake.memory, to_device, from_device, c->width);
        else
            memcpy(to + row * c->to.pitch, from + row * c->from.pitch, c->width);
        if (!c->to.host && c->from.host)
            fake_cuda_written(to_device, c->width);
    }
    return CUDA_OK;
}

static const char *end_text(const end *e) {
    return e->host ? host_place(e->host) : fake_cuda_place(e->device);
}

static cuda_result copy(const char *name, end to, end from, size_t width, size_t height, cuda_stream stream) {
    copying c = {.to = to, .from = from, .width = width, .height = height};
    if (width == 0 || height == 0)
        return fake_cuda_wrong(CUDA_INVALID_VALUE, "%s of nothing", name);
    if (height > 1 &&
        (to.pitch < width || from.pitch < width || to.pitch > INT32_MAX || from.pitch > INT32_MAX))
        return fake_cuda_wrong(CUDA_INVALID_VALUE, "%s: rows of %zu bytes, pitches %zu and %zu", name, width,
                               to.pitch, from.pitch);
    if (!reach(&to, width, height, name) || !reach(&from, width, height, name))
        return CUDA_INVALID_VALUE;
    fake_cuda_log("%s %s <- %s, %zu x %zu, s%d", name, end_text(&to), end_text(&from), height, width,
                  fake_cuda_stream(stream));
    return fake_cuda_enqueue(stream, copy_now, &c, sizeof c);
}

cuda_result cuMemcpyHtoDAsync(cuda_address to, const void *from, size_t bytes, cuda_stream stream) {
    FAKE_ENTER(true);
    return copy(__func__, device_end(to, bytes), host_end(from, bytes), bytes, 1, stream);
}

cuda_result cuMemcpyDtoHAsync(void *to, cuda_address from, size_t bytes, cuda_stream stream) {
    FAKE_ENTER(true);
    return copy(__func__, host_end(to, bytes), device_end(from, bytes), bytes, 1, stream);
}

cuda_result cuMemcpyDtoDAsync(cuda_address to, cuda_address from, size_t bytes, cuda_stream stream) {
    FAKE_ENTER(true);
    if (to < from + bytes && from < to + bytes)
        return fake_cuda_wrong(CUDA_INVALID_VALUE, "cuMemcpyDtoDAsync: memory that overlaps");
    return copy(__func__, device_end(to, bytes), device_end(from, bytes), bytes, 1, stream);
}

cuda_result cuMemcpy2DAsync(const cuda_copy_2d *c, cuda_stream stream) {
    FAKE_ENTER(true);
    bool known = (c->to_type == CUDA_MEMORY_DEVICE || c->to_type == CUDA_MEMORY_HOST) &&
                 (c->from_type == CUDA_MEMORY_DEVICE || c->from_type == CUDA_MEMORY_HOST);
    if (!known || c->from_x || c->from_y || c->to_x || c->to_y)
        return fake_cuda_wrong(CUDA_INVALID_VALUE, "cuMemcpy2DAsync: types of memory %d and %d, or an offset",
                               c->to_type, c->from_type);
    end to = c->to_type == CUDA_MEMORY_DEVICE ? device_end(c->to_device, c->to_pitch)
                                              : host_end(c->to_host, c->to_pitch);
    end from = c->from_type == CUDA_MEMORY_DEVICE ? device_end(c->from_device, c->from_pitch)
                                                  : host_end(c->from_host, c->from_pitch);
    return copy(__func__, to, from, c->width_bytes, c->height, stream);
}

/* ---- fills ------------------------------------------------------------------------------------------ */

typedef struct filling {
    cuda_address to;
    size_t pitch, width, height; /* width: elements */
    uint32_t value;
    int32_t unit;
} filling;

static cuda_result fill_now(void *data) {
    const filling *f = data;
    size_t bytes = f->width * (size_t)f->unit;
    if (!fake_cuda_memory(f->to, (f->height - 1) * f->pitch + bytes, "a fill"))
        return CUDA_ILLEGAL_ADDRESS;
    for (size_t row = 0; row < f->height; row++)
        (void)sbp_ptx_memory_fill(fake.memory, f->to + row * f->pitch, f->value, f->unit, f->width);
    return CUDA_OK;
}

static cuda_result fill(const char *name, const filling *f, cuda_stream stream) {
    size_t unit = (size_t)f->unit, bytes = f->width * unit;
    if (f->width == 0 || f->height == 0 || f->to % unit != 0 ||
        (f->height > 1 && (f->pitch % unit != 0 || f->pitch < bytes || f->pitch > INT32_MAX)))
        return fake_cuda_wrong(CUDA_INVALID_VALUE, "%s: %zu x %zu of %zu bytes, pitch %zu, at %s", name,
                               f->height, f->width, unit, f->pitch, fake_cuda_place(f->to));
    if (!fake_cuda_memory(f->to, (f->height - 1) * f->pitch + bytes, name))
        return CUDA_INVALID_VALUE;
    fake_cuda_log("%s %s, %zu x %zu, 0x%x, s%d", name, fake_cuda_place(f->to), f->height, f->width, f->value,
                  fake_cuda_stream(stream));
    return fake_cuda_enqueue(stream, fill_now, f, sizeof *f);
}

cuda_result cuMemsetD8Async(cuda_address to, uint8_t value, size_t count, cuda_stream stream) {
    FAKE_ENTER(true);
    return fill(__func__, &(filling){to, count, count, 1, value, 1}, stream);
}

cuda_result cuMemsetD16Async(cuda_address to, uint16_t value, size_t count, cuda_stream stream) {
    FAKE_ENTER(true);
    return fill(__func__, &(filling){to, count, count, 1, value, 2}, stream);
}

cuda_result cuMemsetD32Async(cuda_address to, uint32_t value, size_t count, cuda_stream stream) {
    FAKE_ENTER(true);
    return fill(__func__, &(filling){to, count, count, 1, value, 4}, stream);
}

cuda_result cuMemsetD2D8Async(cuda_address to, size_t pitch, uint8_t value, size_t width, size_t height,
                              cuda_stream stream) {
    FAKE_ENTER(true);
    return fill(__func__, &(filling){to, pitch, width, height, value, 1}, stream);
}

cuda_result cuMemsetD2D16Async(cuda_address to, size_t pitch, uint16_t value, size_t width, size_t height,
                               cuda_stream stream) {
    FAKE_ENTER(true);
    return fill(__func__, &(filling){to, pitch, width, height, value, 2}, stream);
}

cuda_result cuMemsetD2D32Async(cuda_address to, size_t pitch, uint32_t value, size_t width, size_t height,
                               cuda_stream stream) {
    FAKE_ENTER(true);
    return fill(__func__, &(filling){to, pitch, width, height, value, 4}, stream);
}
