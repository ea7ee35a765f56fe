/* census.c: the names that were crossed, and the line that says so. */
#include "ir/base/census.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

unsigned char sbp_census_crossed[SBP_PATH_COUNT];

static const char *const names[SBP_PATH_COUNT] = {
#define SBP_PATH(name, when) #name,
#include "ir/base/census.def"
#undef SBP_PATH
};

void sbp_census_forget(void) {
    for (int i = 0; i < SBP_PATH_COUNT; i++)
        __atomic_store_n(&sbp_census_crossed[i], 0, __ATOMIC_RELAXED);
}

sbp_census_mark sbp_census_now(void) {
    sbp_census_mark mark;
    for (int i = 0; i < SBP_PATH_COUNT; i++)
        mark.crossed[i] = __atomic_load_n(&sbp_census_crossed[i], __ATOMIC_RELAXED);
    return mark;
}

void sbp_census_return(const sbp_census_mark *mark) {
    for (int i = 0; i < SBP_PATH_COUNT; i++)
        __atomic_store_n(&sbp_census_crossed[i], mark->crossed[i], __ATOMIC_RELAXED);
}

/* In one write, so that processes beside each other do not mix theirs. */
void sbp_census_write(void) {
    const char *file = getenv("SBP_TEST_PATHS"), *test = getenv("SBP_TEST_NAME");
    char line[256 + SBP_PATH_COUNT * 48];
    int length = snprintf(line, 256, "%s", test ? test : "-"), before = length;
    for (int i = 0; file && *file && i < SBP_PATH_COUNT; i++)
        if (__atomic_load_n(&sbp_census_crossed[i], __ATOMIC_RELAXED) && length > 0 &&
            length < (int)sizeof line - 64)
            length += snprintf(line + length, 48, " %s", names[i]);
    sbp_census_forget();
    if (length == before)
        return;
    line[length++] = '\n';
    int fd = open(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0 || write(fd, line, (size_t)length) != length)
        perror(file);
    if (fd >= 0)
        close(fd);
}

static __attribute__((destructor)) void write_at_end(void) {
    sbp_census_write();
}
