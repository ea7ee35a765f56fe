/* state.c: what the fake driver is told to do, errors, the log; the driver's version and devices. */
#include "tests/cuda/fake/driver.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_DEVICES = 8 };
/* So long nobody has called when the driver's own thread goes on. */
#define IDLE_SECONDS 0.02

struct cuda_context_handle {
    int32_t retained;
};

fake_state fake;
static _Thread_local cuda_context current;
static struct cuda_context_handle contexts[MOST_DEVICES];
static FILE *log_file;

/* ---- the lock, and the driver's own thread ----------------------------------------------------------- */

static pthread_mutex_t mutex;
static pthread_once_t mutex_made = PTHREAD_ONCE_INIT;
static double last_call;
static bool goes_on;
static _Thread_local bool is_own_thread;

static void make_mutex(void) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&mutex, &attributes);
    pthread_mutexattr_destroy(&attributes);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int fake_cuda_lock(void) {
    pthread_once(&mutex_made, make_mutex);
    pthread_mutex_lock(&mutex);
    if (!is_own_thread)
        last_call = now();
    return 1;
}

void fake_cuda_unlock(const int *locked) {
    (void)locked;
    pthread_mutex_unlock(&mutex);
}

static void *go_on(void *user) {
    is_own_thread = true;
    for (;;) {
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
        FAKE_LOCKED;
        if (fake.memory && now() - last_call > IDLE_SECONDS)
            fake_streams_go_on();
    }
    return user;
}

void fake_cuda_go_on(void) {
    pthread_t thread;
    if (!goes_on && pthread_create(&thread, NULL, go_on, NULL) == 0)
        pthread_detach(thread);
    goes_on = true;
}

/* ---- what it shall do ------------------------------------------------------------------------------- */

/* The text behind "key=" of the first word of that key; "" behind the word itself; NULL: there is none. */
static const char *value_of(const char *key) {
    size_t length = strlen(key);
    for (const char *at = fake.words; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (strncmp(at, key, length) == 0 && (at[length] == '=' || at[length] == ',' || !at[length]))
            return at[length] == '=' ? at + length + 1 : at + length;
    return NULL;
}

int64_t fake_number(const char *key, int64_t other) {
    const char *text = value_of(key);
    return text ? strtoll(text, NULL, 10) : other;
}

bool fake_says(const char *key, const char *value) {
    const char *text = value_of(key);
    size_t length = strlen(value);
    return text && strncmp(text, value, length) == 0 && (text[length] == ',' || !text[length]);
}

int64_t fake_cuda_number(const char *key, int64_t other) {
    return fake_number(key, other);
}

int64_t fake_memory_bytes(void) {
    return fake_number("memory", INT64_C(8) << 30);
}

uint64_t fake_random(void) { /* SplitMix64 */
    uint64_t x = fake.random += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (x ^ (x >> 31)) >> 32;
}

FAKE_EXPORTED fake_cuda_reset_function fake_cuda_reset;
FAKE_EXPORTED fake_cuda_look_function fake_cuda_look;

void fake_cuda_reset(const char *words) {
    FAKE_LOCKED;
    fake_streams_reset();
    fake_modules_reset();
    fake_memory_reset();
    memset(&fake, 0, sizeof fake);
    memset(contexts, 0, sizeof contexts);
    snprintf(fake.words, sizeof fake.words, "%s", words ? words : "");
    fake.random = (uint64_t)fake_number("seed", 1);
    const char *path = getenv("SBP_FAKE_CUDA_LOG");
    if (log_file)
        fclose(log_file);
    log_file = path && *path ? fopen(path, "ae") : NULL;
}

void fake_cuda_look(fake_cuda_report *out) {
    *out = fake.report;
}

__attribute__((constructor)) static void begin(void) {
    fake_cuda_reset(getenv("SBP_FAKE_CUDA"));
}

/* What a process leaves behind when it ends. */
__attribute__((destructor)) static void report(void) {
    if (value_of("report"))
        fprintf(stderr,
                "fake cuda: at the end %lld objects, %lld contexts, %llu bytes of device memory, %lld "
                "misuses; %lld "
                "matmuls\n",
                (long long)fake.report.alive, (long long)fake.retained,
                fake.memory ? (unsigned long long)sbp_ptx_memory_used_bytes(fake.memory) : 0,
                (long long)fake.report.wrong, (long long)fake.report.matmuls);
}

/* ---- errors and the log ----------------------------------------------------------------------------- */

void fake_cuda_log(const char *format, ...) {
    va_list args;
    if (!log_file)
        return;
    va_start(args, format);
    vfprintf(log_file, format, args);
    va_end(args);
    fputc('\n', log_file);
    fflush(log_file);
}

cuda_result fake_cuda_wrong(cuda_result result, const char *format, ...) {
    va_list args;
    fake.report.wrong++;
    fprintf(stderr, "fake cuda: ");
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    return result;
}

void fake_cuda_count(int64_t change) {
    fake.report.alive += change;
}

void fake_cuda_count_matmul(void) {
    fake.report.matmuls++;
}

/* CUDA_OK: the call shall be made. */
static cuda_result shall_fail(const char *name) {
    int64_t once = fake_number("fail", 0), from = fake_number("from", 0);
    fake.report.calls++;
    if (value_of("call") && !fake_says("call", name))
        return CUDA_OK;
    fake.counted++;
    if (fake.counted != once && (from == 0 || fake.counted < from))
        return CUDA_OK;
    if (!fake.report.failed)
        fake.report.failed = name;
    return fake_says("error", "lost")    ? CUDA_ECC_UNCORRECTABLE
           : fake_says("error", "other") ? CUDA_UNKNOWN
                                         : CUDA_OUT_OF_MEMORY;
}

cuda_result fake_cuda_enter(const char *name, bool context) {
    cuda_result result = shall_fail(name);
    if (result != CUDA_OK)
        return result;
    if (!fake.initialised && strcmp(name, "cuInit") != 0 && strcmp(name, "cuDriverGetVersion") != 0)
        return fake_cuda_wrong(CUDA_NOT_INITIALIZED, "%s before cuInit", name);
    if (fake.sticky != CUDA_OK)
        return fake.sticky;
    if (context && (!current || current->retained == 0))
        return fake_cuda_wrong(CUDA_INVALID_CONTEXT, "%s without a context on this thread", name);
    return CUDA_OK;
}

/* ---- the driver ------------------------------------------------------------------------------------- */

cuda_result cuInit(uint32_t flags) {
    FAKE_ENTER(false);
    if (flags != 0)
        return fake_cuda_wrong(CUDA_INVALID_VALUE, "cuInit: flags");
    if (fake_number("devices", 1) < 1)
        return CUDA_NO_DEVICE;
    fake.initialised = true;
    return CUDA_OK;
}

cuda_result cuDriverGetVersion(int32_t *version) {
    FAKE_ENTER(false);
    *version = (int32_t)fake_number("version", 13000);
    return CUDA_OK;
}

static const char *error_text(cuda_result error) {
    switch (error) {
    case CUDA_INVALID_VALUE:
        return "invalid argument";
    case CUDA_ECC_UNCORRECTABLE:
        return "uncorrectable ECC error encountered";
    case CUDA_ILLEGAL_ADDRESS:
        return "an illegal memory access was encountered";
    case CUDA_NO_BINARY:
        return "no kernel image is available for execution on the device";
    default:
        return "unknown error";
    }
}

cuda_result cuGetErrorName(cuda_result error, const char **text) {
    *text = error_text(error);
    return CUDA_OK;
}

cuda_result cuGetErrorString(cuda_result error, const char **text) {
    *text = error_text(error);
    return CUDA_OK;
}

/* ---- devices and contexts --------------------------------------------------------------------------- */

static bool is_device(int32_t device) {
    return device >= 0 && device < fake_number("devices", 1) && device < MOST_DEVICES;
}

cuda_result cuDeviceGetCount(int32_t *count) {
    FAKE_ENTER(false);
    *count = (int32_t)fake_number("devices", 1);
    return CUDA_OK;
}

cuda_result cuDeviceGet(int32_t *device, int32_t index) {
    FAKE_ENTER(false);
    if (!is_device(index))
        return fake_cuda_wrong(CUDA_INVALID_DEVICE, "cuDeviceGet: there is no device %d", index);
    *device = index;
    return CUDA_OK;
}

cuda_result cuDeviceGetName(char *name, int32_t bytes, int32_t device) {
    FAKE_ENTER(false);
    if (!is_device(device) || bytes < 1)
        return fake_cuda_wrong(CUDA_INVALID_DEVICE, "cuDeviceGetName: device %d", device);
    snprintf(name, (size_t)bytes, "Fake GPU");
    return CUDA_OK;
}

/* Shared memory that a block may have, in KiB, as the table of compute capabilities in the programming
 * guide has it. */
static int32_t shared_kib(int32_t capability) {
    if (capability == 80 || capability == 87)
        return 163;
    if (capability / 10 == 8 || capability / 10 == 12)
        return 99;
    return capability >= 90 ? 227 : 64;
}

cuda_result cuDeviceGetAttribute(int32_t *value, int32_t attribute, int32_t device) {
    FAKE_ENTER(false);
    int32_t capability = (int32_t)fake_number("capability", 90);
    if (!is_device(device))
        return fake_cuda_wrong(CUDA_INVALID_DEVICE, "cuDeviceGetAttribute: device %d", device);
    switch (attribute) {
    case CUDA_ATTRIBUTE_MULTIPROCESSORS:
        *value = 4;
        return CUDA_OK;
    case CUDA_ATTRIBUTE_CAPABILITY_MAJOR:
        *value = capability / 10;
        return CUDA_OK;
    case CUDA_ATTRIBUTE_CAPABILITY_MINOR:
        *value = capability % 10;
        return CUDA_OK;
    case CUDA_ATTRIBUTE_SHARED_BYTES_OPTIN:
        *value = shared_kib(capability) << 10;
        return CUDA_OK;
    default:
        return fake_cuda_wrong(CUDA_INVALID_VALUE, "cuDeviceGetAttribute: attribute %d", attribute);
    }
}

cuda_result cuDeviceGetUuid(unsigned char *uuid, int32_t device) {
    FAKE_ENTER(false);
    if (!is_device(device))
        return fake_cuda_wrong(CUDA_INVALID_DEVICE, "cuDeviceGetUuid: device %d", device);
    memset(uuid, 0xfa, 16);
    uuid[15] = (unsigned char)device;
    return CUDA_OK;
}

cuda_result cuDeviceTotalMem(size_t *bytes, int32_t device) {
    FAKE_ENTER(false);
    if (!is_device(device))
        return fake_cuda_wrong(CUDA_INVALID_DEVICE, "cuDeviceTotalMem: device %d", device);
    *bytes = (size_t)fake_memory_bytes();
    return CUDA_OK;
}

cuda_result cuDevicePrimaryCtxRetain(cuda_context *context, int32_t device) {
    FAKE_ENTER(false);
    if (!is_device(device))
        return fake_cuda_wrong(CUDA_INVALID_DEVICE, "cuDevicePrimaryCtxRetain: device %d", device);
    if (!fake.memory)
        fake.memory = sbp_ptx_memory_create((uint64_t)fake_memory_bytes());
    if (!fake.memory)
        return CUDA_OUT_OF_MEMORY;
    fake.retained++;
    contexts[device].retained++;
    fake_cuda_count(1);
    *context = &contexts[device];
    fake_cuda_log("cuDevicePrimaryCtxRetain device %d", device);
    return CUDA_OK;
}

/* Gives back, whatever it returns: a failure may be that of something before it. */
cuda_result cuDevicePrimaryCtxRelease(int32_t device) {
    FAKE_LOCKED;
    cuda_result result = fake_cuda_enter(__func__, false);
    if (!is_device(device) || contexts[device].retained == 0)
        return fake_cuda_wrong(CUDA_INVALID_CONTEXT, "cuDevicePrimaryCtxRelease: it is not retained");
    fake.retained--;
    fake_cuda_count(-1);
    fake_cuda_log("cuDevicePrimaryCtxRelease device %d", device);
    if (--contexts[device].retained == 0 && current == &contexts[device])
        return fake_cuda_wrong(CUDA_INVALID_CONTEXT, "cuDevicePrimaryCtxRelease of the current context");
    if (fake.retained == 0)
        fake.sticky = CUDA_OK;
    return result;
}

cuda_result cuCtxSetCurrent(cuda_context context) {
    FAKE_LOCKED;
    cuda_result result = fake_cuda_enter(__func__, false);
    if (context && context->retained == 0)
        return fake_cuda_wrong(CUDA_INVALID_CONTEXT, "cuCtxSetCurrent: it is not retained");
    current = context;
    return result;
}

int32_t fake_cuda_device(void) {
    return current ? (int32_t)(current - contexts) : -1;
}

/* ---- symbols ---------------------------------------------------------------------------------------- */

#define SYMBOL(name, suffix, ...) cuda_result name(__VA_ARGS__);
#include "backends/cuda/device/cuda.def"
#undef SYMBOL

static const cuda_calls calls = {
#define SYMBOL(name, suffix, ...) .name = name,
#include "backends/cuda/device/cuda.def"
#undef SYMBOL
};

static const struct {
    const char *name;
    size_t offset; /* in calls */
} functions[] = {
#define SYMBOL(name, suffix, ...) {#name, offsetof(cuda_calls, name)},
#include "backends/cuda/device/cuda.def"
#undef SYMBOL
};

FAKE_EXPORTED cuda_get_address cuGetProcAddress_v2;

cuda_result cuGetProcAddress_v2(const char *name, void **function, int32_t version, uint64_t flags,
                                int32_t *status) {
    *function = NULL;
    if (version != CUDA_ABI || flags != 0)
        return fake_cuda_wrong(CUDA_INVALID_VALUE, "cuGetProcAddress: version %d", version);
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (strcmp(functions[i].name, name) == 0) {
            memcpy(function, (const char *)&calls + functions[i].offset, sizeof *function);
            if (status)
                *status = 0;
            return CUDA_OK;
        }
    if (status)
        *status = 1;
    return CUDA_NOT_FOUND;
}
