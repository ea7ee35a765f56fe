/* machine.c: memory, cores and the clock of this machine. */
#include "ir/machine.h"

#include <sched.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

/* The number in a file; 0 when there is none ("max", no such file). */
static int64_t read_number(const char *path) {
    long long value = 0;
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    if (fscanf(file, "%lld", &value) != 1)
        value = 0;
    fclose(file);
    return value;
}

int64_t sbp_machine_memory(void) {
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    int64_t memory = pages > 0 && page > 0 ? (int64_t)pages * page : 0;
    int64_t limit = read_number("/sys/fs/cgroup/memory.max");
    if (limit == 0)
        limit = read_number("/sys/fs/cgroup/memory/memory.limit_in_bytes");
    return limit > 0 && (memory == 0 || limit < memory) ? limit : memory;
}

int64_t sbp_machine_memory_available(void) {
    char line[256];
    long long kib = 0;
    FILE *file = fopen("/proc/meminfo", "re");
    while (file && kib == 0 && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %lld kB", &kib) != 1)
            kib = 0;
    if (file)
        fclose(file);
    int64_t available = (int64_t)kib * 1024;
    int64_t limit = read_number("/sys/fs/cgroup/memory.max"),
            used = read_number("/sys/fs/cgroup/memory.current");
    if (limit > 0 && limit - used < available)
        available = limit > used ? limit - used : 0;
    return available;
}

/* The quota of the control group (version 2, then 1), in cores rounded up; 0 when there is none. */
static int64_t quota_cores(void) {
    long long quota = 0, period = 0;
    FILE *file = fopen("/sys/fs/cgroup/cpu.max", "re");
    if (file) {
        if (fscanf(file, "%lld %lld", &quota, &period) != 2)
            quota = 0;
        fclose(file);
    } else {
        quota = read_number("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
        period = read_number("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
    }
    return quota > 0 && period > 0 ? (quota + period - 1) / period : 0;
}

int32_t sbp_machine_cores(void) {
    cpu_set_t set;
    int32_t cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    int64_t quota = quota_cores();
    if (quota > 0 && quota < cores)
        cores = (int32_t)quota;
    return cores > 0 ? cores : 1;
}

double sbp_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}
