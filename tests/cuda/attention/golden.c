/* golden.c: tables of lines; the first says by which version of NVRTC they were made. */
#include "tests/cuda/attention/golden.h"
#include "tests/common/sweep.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/cuda/attention/kernels.h"

bool golden_everything(void) {
    return testing_all();
}

static char *read_table(const char *path) {
    FILE *file = fopen(path, "r");
    char *text = calloc(1, 1 << 16);
    assert_non_null(text);
    if (file) {
        assert_true(fread(text, 1, (1 << 16) - 1, file) > 0);
        fclose(file);
    }
    return text;
}

static bool has_line(const char *text, const char *line) {
    size_t length = strlen(line);
    for (const char *at = text; (at = strstr(at, line)) != NULL; at++)
        if (at > text && at[-1] == '\n' && at[length] == '\n')
            return true;
    return false;
}

int golden_check(const char *path, const sbp_text *lines, bool whole) {
    int missing = 0;
    if (getenv("SBP_UPDATE_GOLDENS") && whole) {
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        assert_true(fprintf(file, "%s\n%s", kernels_version(), lines->data) > 0);
        assert_int_equal(fclose(file), 0);
    }
    char *want = read_table(path), *copy = strdup(lines->data), *rest = NULL;
    assert_non_null(copy);
    if (strncmp(want, kernels_version(), strlen(kernels_version())) != 0) {
        print_message("skipped: %s is not of %s\n", path, kernels_version());
    } else {
        for (char *line = strtok_r(copy, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
            if (!has_line(want, line)) {
                print_message("not in %s: %s\n", path, line);
                missing++;
            }
    }
    free(copy);
    free(want);
    return missing;
}
