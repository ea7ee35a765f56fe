/* links.h: cases beside the sources may hold links, which a copy of the folder without links has as
 * files of a line. */
#ifndef SBP_TESTS_COMMON_LINKS_H
#define SBP_TESTS_COMMON_LINKS_H

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Whether a file is the path of another. */
static inline bool testing_is_path_of_another(const char *path) {
    char begin[4] = "";
    FILE *file = fopen(path, "rb");
    bool found = file && fread(begin, 1, 3, file) == 3 && strcmp(begin, "../") == 0;
    if (file)
        fclose(file);
    return found;
}

#endif
