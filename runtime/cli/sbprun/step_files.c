/* step_files.c: a file for some of the steps of a run. */
#include "runtime/cli/sbprun/step_files.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ir/base/file.h"

enum { MOST_DIGITS = 18 }; /* of an int64_t, whatever they are */

const char *sbp_step_file(sbp_arena *arena, const char *out, const char *folder, int64_t step) {
    return sbp_arena_printf(arena, "%s/%s/step-%lld.jsonl", out, folder, (long long)step);
}

/* *rest: what stands behind ".jsonl". */
static int64_t parse(const char *name, const char **rest) {
    static const char begin[] = "step-", ending[] = ".jsonl";
    const size_t digits =
        strncmp(name, begin, strlen(begin)) == 0 ? strspn(name + strlen(begin), "0123456789") : 0;
    const char *behind = name + strlen(begin) + digits;
    if (digits == 0 || digits > MOST_DIGITS || strncmp(behind, ending, strlen(ending)) != 0)
        return -1;
    *rest = behind + strlen(ending);
    return strtoll(name + strlen(begin), NULL, 10);
}

int64_t sbp_step_file_step(const char *name) {
    const char *rest = "";
    int64_t step = parse(name, &rest);
    return *rest ? -1 : step;
}

static bool goes(const char *name, int64_t from) {
    const char *rest = "";
    int64_t step = parse(name, &rest);
    return step >= 0 && (*rest ? sbp_file_is_temporary(name) : step >= from);
}

sbp_status sbp_step_files_begin(sbp_diag *diag, const char *folder, int64_t from) {
    int failed = 0;
    if (mkdir(folder, 0777) != 0 && errno != EEXIST)
        return sbp_fail(diag, SBP_IO, "cannot create '%s': %s", folder, strerror(errno));
    DIR *names = opendir(folder);
    if (!names)
        return sbp_fail(diag, SBP_IO, "cannot read '%s': %s", folder, strerror(errno));
    for (const struct dirent *entry; (entry = readdir(names));)
        if (goes(entry->d_name, from) && unlinkat(dirfd(names), entry->d_name, 0) != 0)
            failed = errno;
    closedir(names);
    return failed ? sbp_fail(diag, SBP_IO, "cannot remove what an earlier run left in '%s': %s", folder,
                             strerror(failed))
                  : SBP_OK;
}
