/* fuzz_seeds.c: inputs to begin with, and files in memory. */
#include "tests/fuzz/fuzz.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void die(const char *what, const char *name) {
    fprintf(stderr, "%s '%s'\n", what, name);
    abort();
}

/* ---- seeds
 * -----------------------------------------------------------------------------------------------------------
 */

static void add(fuzz_seeds *seeds, const char *data, size_t size) {
    if (seeds->count == seeds->capacity) {
        seeds->capacity = seeds->capacity * 2 + 16;
        seeds->list = realloc(seeds->list, seeds->capacity * sizeof *seeds->list);
    }
    fuzz_seed seed = {malloc(size + 1), size};
    if (!seeds->list || !seed.data)
        die("out of memory for seeds of", "fuzz");
    memcpy(seed.data, data, size);
    seeds->list[seeds->count++] = seed;
}

static char *read_whole(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    struct stat about;
    if (!file || fstat(fileno(file), &about) != 0)
        die("cannot read", path);
    char *text = malloc((size_t)about.st_size + 1);
    if (!text || fread(text, 1, (size_t)about.st_size, file) != (size_t)about.st_size)
        die("cannot read all of", path);
    fclose(file);
    *size = (size_t)about.st_size;
    return text;
}

static void add_file(fuzz_seeds *seeds, const char *path) {
    size_t size;
    char *text = read_whole(path, &size);
    add(seeds, text, size);
    free(text);
}

static void add_parts(fuzz_seeds *seeds, const char *path, const char *between) {
    size_t size, gap = strlen(between);
    char *text = read_whole(path, &size);
    for (size_t at = 0; at < size;) {
        const char *end = memmem(text + at, size - at, between, gap);
        size_t length = end ? (size_t)(end - text) - at : size - at;
        if (length > 0)
            add(seeds, text + at, length);
        at += length + gap;
    }
    free(text);
}

static void add_folder(fuzz_seeds *seeds, const char *path) {
    struct dirent **names;
    int count = scandir(path, &names, NULL, alphasort);
    for (int i = 0; i < count; i++) {
        char name[4096];
        snprintf(name, sizeof name, "%s/%s", path, names[i]->d_name);
        if (names[i]->d_name[0] != '.')
            add_file(seeds, name);
        free(names[i]);
    }
    if (count >= 0)
        free(names);
}

void fuzz_seeds_add(fuzz_seeds *seeds, const char *argument) {
    size_t before = seeds->count;
    struct stat about;
    if (strncmp(argument, "lines:", 6) == 0)
        add_parts(seeds, argument + 6, "\n");
    else if (strncmp(argument, "blocks:", 7) == 0)
        add_parts(seeds, argument + 7, "\n---\n");
    else if (stat(argument, &about) == 0 && S_ISDIR(about.st_mode))
        add_folder(seeds, argument);
    else
        add_file(seeds, argument);
    if (seeds->count == before)
        die("no seeds in", argument);
}

void fuzz_seeds_free(fuzz_seeds *seeds) {
    for (size_t i = 0; i < seeds->count; i++)
        free(seeds->list[i].data);
    free(seeds->list);
}

/* ---- files
 * -----------------------------------------------------------------------------------------------------------
 */

enum { MAX_FILES = 8 };

static char paths[MAX_FILES][128];

static void remove_files(void) {
    for (int i = 0; i < MAX_FILES; i++)
        if (paths[i][0])
            unlink(paths[i]);
}

const char *fuzz_file(const char *ending, const void *data, size_t size) {
    int at = 0;
    char name[128];
    snprintf(name, sizeof name, "/dev/shm/sbp-fuzz-%d%s", (int)getpid(), ending);
    while (at < MAX_FILES && paths[at][0] && strcmp(paths[at], name) != 0)
        at++;
    if (at == MAX_FILES)
        die("too many endings:", ending);
    if (!paths[0][0])
        atexit(remove_files);
    memcpy(paths[at], name, sizeof name);
    FILE *file = fopen(name, "wb");
    if (!file || fwrite(data, 1, size, file) != size || fclose(file) != 0)
        die("cannot write", name);
    return paths[at];
}
