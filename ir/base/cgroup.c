/* cgroup.c: limits of the control groups of this process. */
#include "ir/base/cgroup.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 4096, LINE_BYTES = 3 * PATH_BYTES };

/* ---- files ------------------------------------------------------------------------------------------- */

static FILE *open_in(const char *directory, const char *name) {
    char path[PATH_BYTES + 64];
    int length = snprintf(path, sizeof path, "%s/%s", directory, name);
    return length > 0 && length < (int)sizeof path ? fopen(path, "re") : NULL;
}

/* The number in a file; 0 when there is none ("max", no such file). */
static int64_t read_number(const char *directory, const char *name) {
    long long value = 0;
    FILE *file = open_in(directory, name);
    if (!file)
        return 0;
    if (fscanf(file, "%lld", &value) != 1)
        value = 0;
    fclose(file);
    return value;
}

/* A whole line without its end; one that is too long is skipped. */
static bool read_line(FILE *file, char *line, size_t size) {
    while (fgets(line, (int)size, file)) {
        size_t length = strlen(line);
        if (length > 0 && line[length - 1] == '\n') {
            line[length - 1] = 0;
            return true;
        }
        if (feof(file))
            return true;
        for (int c = 0; c != '\n' && c != EOF;)
            c = fgetc(file);
    }
    return false;
}

/* ---- where the group is ------------------------------------------------------------------------------ */

/* Whether "a,b,c" has the word. */
static bool has_word(const char *list, const char *word) {
    size_t length = strlen(word);
    for (const char *at = list; *at; at += strcspn(at, ","), at += *at == ',')
        if (strncmp(at, word, length) == 0 && (at[length] == 0 || at[length] == ','))
            return true;
    return false;
}

/* "ID:CONTROLLERS:PATH": the path of this process in the hierarchy of a controller; NULL: of version 2. */
static bool find_path(const char *root, const char *controller, char *out) {
    char line[LINE_BYTES];
    bool found = false;
    FILE *file = open_in(root, "proc/self/cgroup");
    while (file && !found && read_line(file, line, sizeof line)) {
        char *list = strchr(line, ':'), *path = list ? strchr(list + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = 0;
        found = controller ? has_word(list + 1, controller) : list[1] == 0;
        if (found)
            snprintf(out, PATH_BYTES, "%s", path);
    }
    if (file)
        fclose(file);
    return found;
}

/* Spaces and the like stand as \040 in mountinfo. */
static void decode(char *text) {
    char *to = text;
    for (const char *at = text; *at; at++)
        if (at[0] == '\\' && at[1] >= '0' && at[1] <= '3' && at[2] >= '0' && at[2] <= '7' && at[3] >= '0' &&
            at[3] <= '7') {
            *to++ = (char)((at[1] - '0') * 64 + (at[2] - '0') * 8 + (at[3] - '0'));
            at += 3;
        } else
            *to++ = *at;
    *to = 0;
}

/* "ID PARENT MAJOR:MINOR ROOT MOUNT_POINT OPTIONS .. - TYPE SOURCE OPTIONS" of the hierarchy of a controller,
 * or of version 2. */
static bool parse_mount(char *line, const char *controller, char **mounted, char **place) {
    char *word[6], *rest = strstr(line, " - "), *save = NULL;
    if (!rest)
        return false;
    *rest = 0;
    char *type = strtok_r(rest + 3, " ", &save), *source = strtok_r(NULL, " ", &save);
    char *options = strtok_r(NULL, " ", &save);
    if (!source || strcmp(type, controller ? "cgroup" : "cgroup2") != 0 ||
        (controller && !(options && has_word(options, controller))))
        return false;
    for (int i = 0; i < 6; i++)
        if (!(word[i] = strtok_r(i ? NULL : line, " ", &save)))
            return false;
    decode(word[3]);
    decode(word[4]);
    *mounted = word[3];
    *place = word[4];
    return true;
}

/* What of a group's path is below the part of the hierarchy that is mounted; "": it is that, or not in it. */
static const char *below(const char *path, const char *mounted) {
    size_t length = strcmp(mounted, "/") == 0 ? 0 : strlen(mounted);
    if (strncmp(path, mounted, length) != 0 || (path[length] && path[length] != '/') ||
        strstr(path + length, "/.."))
        return "";
    return strcmp(path + length, "/") == 0 ? "" : path + length;
}

typedef struct group {
    char directory[PATH_BYTES];
    size_t top; /* length of the directory that is mounted */
} group;

static bool make_group(group *g, const char *root, const char *place, const char *rest) {
    int all = snprintf(g->directory, sizeof g->directory, "%s%s%s", root, place, rest);
    g->top = strlen(root) + strlen(place);
    return all >= 0 && all < (int)sizeof g->directory;
}

/* The group of this process by a controller of version 1, or, NULL, of version 2. usual: where it is where
 * nothing can be read of mounts. */
static bool find_group(group *g, const char *root, const char *controller, const char *usual) {
    char path[PATH_BYTES], line[LINE_BYTES], *mounted, *place;
    bool found = false;
    FILE *file = open_in(root, "proc/self/mountinfo");
    if (!file || !find_path(root, controller, path))
        found = !file && make_group(g, root, usual, "");
    else
        while (!found && read_line(file, line, sizeof line))
            found = parse_mount(line, controller, &mounted, &place) &&
                    make_group(g, root, place, below(path, mounted));
    if (file)
        fclose(file);
    return found;
}

/* From a group to that above it; false: it was the topmost. */
static bool go_up(group *g) {
    if (strlen(g->directory) <= g->top)
        return false;
    *strrchr(g->directory, '/') = 0;
    return true;
}

/* ---- memory ------------------------------------------------------------------------------------------ */

/* The sum of two lines "NAME NUMBER" of memory.stat. */
static int64_t read_cached(const char *directory, const char *first, const char *second) {
    char line[256], name[64];
    long long value, sum = 0;
    FILE *file = open_in(directory, "memory.stat");
    while (file && read_line(file, line, sizeof line))
        if (sscanf(line, "%63s %lld", name, &value) == 2 &&
            (strcmp(name, first) == 0 || strcmp(name, second) == 0))
            sum += value;
    if (file)
        fclose(file);
    return sum;
}

static void visit_limit(const group *g, const char *limit, const char *usage, int64_t cached,
                        sbp_cgroup_visitor visit, void *user) {
    int64_t bytes = read_number(g->directory, limit), used = read_number(g->directory, usage);
    used = cached < used ? used - cached : 0;
    if (bytes > 0 && bytes < INT64_C(1) << 62) /* version 1 has a number for none */
        visit(user, bytes, used);
}

void sbp_cgroup_memory(const char *root, sbp_cgroup_visitor visit, void *user) {
    group g;
    int64_t cached;
    if (find_group(&g, root, NULL, "/sys/fs/cgroup"))
        do {
            cached = read_cached(g.directory, "inactive_file", "active_file");
            visit_limit(&g, "memory.max", "memory.current", cached, visit, user);
            visit_limit(&g, "memory.high", "memory.current", cached, visit, user);
        } while (go_up(&g));
    if (!find_group(&g, root, "memory", "/sys/fs/cgroup/memory"))
        return;
    do {
        cached = read_cached(g.directory, "total_inactive_file", "total_active_file");
        visit_limit(&g, "memory.limit_in_bytes", "memory.usage_in_bytes", cached, visit, user);
        /* a group that does not count those below it: those above it do not either */
    } while (go_up(&g) && read_number(g.directory, "memory.use_hierarchy") > 0);
}

/* ---- cores ------------------------------------------------------------------------------------------- */

static int64_t least_of(int64_t least, long long quota, long long period) {
    int64_t cores = quota > 0 && period > 0 ? quota / period + (quota % period > 0) : 0;
    return cores > 0 && (least == 0 || cores < least) ? cores : least;
}

int64_t sbp_cgroup_cores(const char *root) {
    group g;
    int64_t least = 0;
    long long quota, period;
    if (find_group(&g, root, NULL, "/sys/fs/cgroup"))
        do {
            FILE *file = open_in(g.directory, "cpu.max");
            if (file && fscanf(file, "%lld %lld", &quota, &period) == 2)
                least = least_of(least, quota, period);
            if (file)
                fclose(file);
        } while (go_up(&g));
    if (find_group(&g, root, "cpu", "/sys/fs/cgroup/cpu"))
        do
            least = least_of(least, read_number(g.directory, "cpu.cfs_quota_us"),
                             read_number(g.directory, "cpu.cfs_period_us"));
        while (go_up(&g));
    return least;
}
