/* options_testing.h: what tests of options share: command lines and config files, parsed. */
#ifndef SBP_TESTS_UNIT_OPTIONS_TESTING_H
#define SBP_TESTS_UNIT_OPTIONS_TESTING_H

#include "tests/unit/io_testing.h"

#include "ir/base/json.h"
#include "runtime/options/options.h"

enum { MAX_ARGS = 24 };

/* Parses a line of blank-separated arguments for `phases`. */
static inline sbp_status parse(io_fixture *f, unsigned phases, const char *line, sbp_options **out) {
    char *argv[MAX_ARGS];
    int argc = 0;
    char *copy = sbp_arena_strdup(f->arena, line);
    for (char *word = strtok(copy, " "); word && argc < MAX_ARGS; word = strtok(NULL, " "))
        argv[argc++] = word;
    return sbp_options_parse(f->arena, f->diag, "prog", phases, argc, argv, out);
}

static inline const char *put_config(io_fixture *f, const char *text) {
    const char *path = io_path(f, "config");
    io_put(path, text, strlen(text));
    return sbp_arena_printf(f->arena, "--config %s ", path);
}

static inline sbp_status parse_config(io_fixture *f, unsigned phases, const char *text, const char *more,
                                      sbp_options **o) {
    return parse(f, phases, sbp_arena_printf(f->arena, "%s%s", put_config(f, text), more), o);
}

#endif
