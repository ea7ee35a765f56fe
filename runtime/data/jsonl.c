/* jsonl.c: files to lines. */
#include "runtime/data/jsonl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ir/base/file.h"

static bool is_blank(const char *text, size_t length) {
    for (size_t i = 0; i < length; i++)
        if (!strchr(" \t\r\n", text[i]) || !text[i])
            return false;
    return true;
}

static sbp_status read_lines(sbp_diag *diag, FILE *file, const char *path, sbp_line_visitor visit,
                             void *user) {
    char *text = NULL;
    size_t capacity = 0;
    sbp_status status = SBP_OK;
    int64_t line = 0;
    for (;;) {
        errno = 0;
        ssize_t got = getline(&text, &capacity, file);
        if (got < 0) {
            if (errno == ENOMEM)
                status = sbp_fail(diag, SBP_MACHINE, "%s:%lld: out of memory for a line", path,
                                  (long long)line + 1);
            else if (ferror(file))
                status = sbp_fail(diag, SBP_IO, "cannot read '%s': %s", path, strerror(errno));
            break;
        }
        line++;
        size_t length = (size_t)got;
        const char *begin = text;
        if (line == 1 && length >= 3 && memcmp(begin, "\xef\xbb\xbf", 3) == 0) { /* byte order mark */
            begin += 3;
            length -= 3;
        }
        while (length > 0 && (begin[length - 1] == '\n' || begin[length - 1] == '\r'))
            length--;
        if (!is_blank(begin, length))
            status = visit(user, path, line, begin, length);
        if (status != SBP_OK)
            break;
    }
    free(text);
    return status;
}

sbp_status sbp_lines_read(sbp_diag *diag, const char *path, sbp_line_visitor visit, void *user) {
    if (strcmp(path, "-") == 0)
        return read_lines(diag, stdin, "standard input", visit, user);
    if (sbp_directory_exists(path))
        return sbp_fail(diag, SBP_IO, "cannot read '%s': it is a directory", path);
    FILE *file = fopen(path, "re");
    if (!file)
        return sbp_fail(diag, SBP_IO, "cannot read '%s': %s", path, strerror(errno));
    sbp_status status = read_lines(diag, file, path, visit, user);
    fclose(file);
    return status;
}
