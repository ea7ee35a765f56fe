/* machine.c: memory, cores and the clock of this machine. */
#include "ir/base/machine.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "ir/base/cgroup.h"

/* A limit of memory: so much, of which so much is in use. */
typedef struct limit {
    const char *name;            /* who sets it */
    const char *before, *behind; /* what it is, around its bytes */
    int64_t bytes, used;
} limit;

static int64_t physical_memory(void) {
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (int64_t)pages * page : 0;
}

static int64_t free_memory(void) {
    char line[256];
    long long kib = 0;
    FILE *file = fopen("/proc/meminfo", "re");
    while (file && kib == 0 && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %lld kB", &kib) != 1)
            kib = 0;
    if (file)
        fclose(file);
    return (int64_t)kib * 1024;
}

/* Pages of the address space, and of data and stacks, in use. */
static void process_memory(int64_t *all, int64_t *data) {
    long long pages = 0, data_pages = 0, page = sysconf(_SC_PAGESIZE);
    FILE *file = fopen("/proc/self/statm", "re");
    if (file && fscanf(file, "%lld %*d %*d %*d %*d %lld", &pages, &data_pages) != 2)
        pages = data_pages = 0;
    if (file)
        fclose(file);
    *all = pages * page;
    *data = data_pages * page;
}

static int64_t left_of(const limit *l) {
    return l->used < l->bytes ? l->bytes - l->used : 0;
}

/* The limit that leaves the least, and the least of all; bytes 0: none is known. */
typedef struct limits {
    limit nearest, least;
} limits;

static void add_limit(limits *l, limit next) {
    bool first = l->least.bytes == 0;
    if (first || left_of(&next) < left_of(&l->nearest))
        l->nearest = next;
    if (first || next.bytes < l->least.bytes)
        l->least = next;
}

static void add_group(void *user, int64_t bytes, int64_t used) {
    add_limit(user, (limit){"the control group", "left of the control group's ", "", bytes, used});
}

static limits find_limits(void) {
    limits l = {.least = {.bytes = 0}};
    int64_t memory = physical_memory(), available = free_memory(), all, data;
    if (memory > 0)
        add_limit(&l, (limit){"this machine", "free of this machine's ", "", memory,
                              available > 0 && available < memory ? memory - available : 0});
    sbp_cgroup_memory("", add_group, &l);
    struct rlimit process;
    process_memory(&all, &data);
    if (getrlimit(RLIMIT_AS, &process) == 0 && process.rlim_cur < (rlim_t)INT64_MAX)
        add_limit(&l, (limit){"ulimit -v", "left of ", " (ulimit -v)", (int64_t)process.rlim_cur, all});
    if (getrlimit(RLIMIT_DATA, &process) == 0 && process.rlim_cur < (rlim_t)INT64_MAX)
        add_limit(&l, (limit){"ulimit -d", "left of ", " (ulimit -d)", (int64_t)process.rlim_cur, data});
    return l;
}

int64_t sbp_machine_memory(void) {
    return find_limits().least.bytes;
}

const char *sbp_machine_memory_source(void) {
    const char *name = find_limits().least.name;
    return name ? name : "this machine";
}

int64_t sbp_machine_memory_available(void) {
    const limits l = find_limits();
    return l.least.bytes > 0 ? left_of(&l.nearest) : 0;
}

static double mebibytes(int64_t bytes) {
    return (double)bytes / 1048576;
}

const char *sbp_machine_memory_text(char *out, size_t size) {
    const limits l = find_limits();
    const limit *found = &l.nearest;
    if (l.least.bytes > 0)
        snprintf(out, size, "%.2f MiB are %s%.2f MiB%s", mebibytes(left_of(found)), found->before,
                 mebibytes(found->bytes), found->behind);
    else
        snprintf(out, size, "the limits are not known");
    return out;
}

int32_t sbp_machine_cores(void) {
    cpu_set_t set;
    int32_t cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    int64_t quota = sbp_cgroup_cores("");
    if (quota > 0 && quota < cores)
        cores = (int32_t)quota;
    return cores > 0 ? cores : 1;
}

uint64_t sbp_machine_core_set(void) {
    char name[256] = "";
    cpu_set_t set;
    uint64_t hash = 14695981039346656037u; /* FNV-1a */
    CPU_ZERO(&set);
    (void)sched_getaffinity(0, sizeof set, &set);
    (void)gethostname(name, sizeof name - 1);
    for (size_t i = 0; i < sizeof name; i++)
        hash = (hash ^ (uint8_t)name[i]) * 1099511628211u;
    for (size_t i = 0; i < CPU_SETSIZE; i++)
        hash = (hash ^ (CPU_ISSET(i, &set) ? 1u : 0u)) * 1099511628211u;
    return hash;
}

const char *sbp_machine_processor(char *out, size_t size) {
    char line[256], name[128] = "unknown processor";
    int family = -1, model = -1;
    FILE *file = fopen("/proc/cpuinfo", "re");
    while (file && fgets(line, sizeof line, file) && line[0] != '\n') { /* of the first one */
        (void)sscanf(line, "model name : %127[^\n]", name);
        (void)sscanf(line, "cpu family : %d", &family);
        (void)sscanf(line, "model : %d", &model);
    }
    if (file)
        fclose(file);
    snprintf(out, size, "%s, family %d model %d", name, family, model);
    return out;
}

bool sbp_cache_path(const char *name, char *out, size_t size) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    struct stat s;
    /* a home that is not there (/nonexistent, of Debian's user nobody) is not made */
    if (!(cache && *cache == '/') && home && (stat(home, &s) != 0 || !S_ISDIR(s.st_mode)))
        return false;
    int n = cache && *cache == '/' ? snprintf(out, size, "%s/streambp/%s", cache, name)
            : home && *home == '/' ? snprintf(out, size, "%s/.cache/streambp/%s", home, name)
                                   : -1;
    return n >= 0 && (size_t)n < size;
}

void sbp_make_directories_above(const char *path) {
    char above[4096];
    for (const char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        size_t length = (size_t)(slash - path);
        if (length >= sizeof above)
            return;
        memcpy(above, path, length);
        above[length] = 0;
        (void)mkdir(above, 0700);
    }
}

double sbp_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}
