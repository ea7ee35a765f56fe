/* cli_testing.h: what the black-box tests of sbpc and sbprun share: commands through the shell, in a fresh
 * directory, and what they left.
 *
 * In commands, $C and $R are the two programs, $D the directory, $G tests/golden, $S the model stories260K;
 * the current directory is the root of the sources. Standard output goes to $D/out, standard error to $D/err.
 */
#ifndef SBP_TESTS_CLI_TESTING_H
#define SBP_TESTS_CLI_TESTING_H

#include "tests/unit/io_testing.h"

#include <math.h>
#include <sys/wait.h>

#include "frontends/formats/weights/weights.h"
#include "ir/base/json.h"
#include "tests/common/sweep.h"
#include "tests/tolerance.h"

static inline int cli_setup(void **state) {
    if (io_setup(state) != 0)
        return -1;
    const char *moved = getenv("SBP_TEST_BINARIES"); /* to another machine, say */
    const char *folder = moved ? moved : SBP_BINARIES;
    sbp_arena *arena = ((io_fixture *)*state)->arena;
    setenv("C", sbp_arena_printf(arena, "%s/sbpc", folder), 1);
    setenv("R", sbp_arena_printf(arena, "%s/sbprun", folder), 1);
    setenv("D", ((io_fixture *)*state)->directory, 1);
    setenv("G", "tests/golden", 1);
    setenv("HF_HUB_OFFLINE", "1", 1); /* a name is no reason to go out */
    setenv("S", "tests/data/stories260K", 1);
    return 0;
}

/* Exit status of a shell command; 128 + number when a signal ended it. */
static inline int cli(io_fixture *f, const char *command) {
    char *line = sbp_arena_printf(f->arena, "exec >$D/out 2>$D/err </dev/null; (%s)", command);
    int status = system(line);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Text of a file in the directory. */
static inline const char *cli_text(io_fixture *f, const char *name) {
    const char *text = "";
    size_t length;
    if (sbp_file_read(f->arena, f->diag, io_path(f, name), &text, &length) != SBP_OK)
        fail_msg("cannot read %s", io_path(f, name));
    return text;
}

/* The same with each run of blanks and ends of lines as one blank: messages are folded for people. */
static inline const char *cli_unfolded(io_fixture *f, const char *name) {
    char *text = sbp_arena_strdup(f->arena, cli_text(f, name)), *to = text;
    for (const char *from = text; *from; from++)
        if (!strchr(" \n", *from))
            *to++ = *from;
        else if (to == text || to[-1] != ' ')
            *to++ = ' ';
    *to = 0;
    return text;
}

#define cli_ok(f, command)                                                                                   \
    do {                                                                                                     \
        int status_ = cli(f, command);                                                                       \
        if (status_ != 0) {                                                                                  \
            fputs(cli_text(f, "err"), stderr); /* whole: fail_msg cuts after 1,024 characters */             \
            fail_msg("%s: exit status %d", command, status_);                                                \
        }                                                                                                    \
    } while (0)

/* The command ends with this status, and its messages contain the text. */
static inline void cli_fails(io_fixture *f, int expected, const char *message, const char *command) {
    int status = cli(f, command);
    const char *text = cli_text(f, "err");
    if (status != expected || !strstr(text, message))
        fail_msg("%s: exit status %d, '%s'; expected %d with '%s'", command, status, text, expected, message);
}

/* A file in the directory as JSON; its lines, with line_count, as an array of documents. */
static inline const sbp_json *cli_json(io_fixture *f, const char *name) {
    const sbp_json *root = NULL;
    assert_ok(f, sbp_json_read(f->arena, f->diag, io_path(f, name), 0, &root));
    return root;
}

static inline const sbp_json **cli_lines(io_fixture *f, const char *name, int *count) {
    char *text = sbp_arena_strdup(f->arena, cli_text(f, name));
    const sbp_json **lines = NULL;
    int32_t n = 0, capacity = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        const sbp_json *root = NULL;
        assert_ok(f, sbp_json_parse(f->arena, f->diag, name, line, strlen(line), 0, &root));
        SBP_PUSH(f->arena, lines, n, capacity, root);
    }
    *count = n;
    return lines;
}

static inline double cli_number(io_fixture *f, const sbp_json *object, const char *key) {
    double value = NAN;
    assert_ok(f, sbp_json_get_double(f->diag, object, key, SBP_JSON_REQUIRED, &value));
    return value;
}

static inline bool cli_exists(io_fixture *f, const char *name) {
    return sbp_file_exists(io_path(f, name));
}

static inline void cli_put(io_fixture *f, const char *name, const char *text) {
    io_put(io_path(f, name), text, strlen(text));
}

/* Writes the checksums of a checkpoint in the directory anew, after a change that its loading is to find. */
static inline void cli_sum_again(io_fixture *f, const char *checkpoint) {
    enum { PIECE = 1 << 16 };
    sbp_text out;
    sbp_text_init(&out, f->arena);
    cli_ok(f, sbp_arena_printf(f->arena, "cd $D/%s; rm -f checksums.json; find * -type f", checkpoint));
    char *names = sbp_arena_strdup(f->arena, cli_text(f, "out"));
    for (char *name = strtok(names, "\n"); name; name = strtok(NULL, "\n")) {
        const char *data, *path = sbp_arena_printf(f->arena, "%s/%s", checkpoint, name);
        size_t length;
        uint64_t sum = 0;
        assert_ok(f, sbp_file_read(f->arena, f->diag, io_path(f, path), &data, &length));
        for (size_t at = 0; at < length; at += PIECE)
            sum = sbp_hash_bytes(data + at, length - at < PIECE ? length - at : PIECE, sum);
        sbp_text_add(&out, "%s\"%s\": {\"bytes\": %zu, \"checksum\": \"%016llx\"}", out.length ? ",\n" : "{",
                     name, length, (unsigned long long)sum);
    }
    sbp_text_add(&out, "}\n");
    cli_put(f, sbp_arena_printf(f->arena, "%s/checksums.json", checkpoint), out.data);
}

/* The bytes of two files in the directory are the same. */
static inline void cli_same(io_fixture *f, const char *a, const char *b) {
    const char *x, *y;
    size_t nx, ny;
    assert_ok(f, sbp_file_read(f->arena, f->diag, io_path(f, a), &x, &nx));
    assert_ok(f, sbp_file_read(f->arena, f->diag, io_path(f, b), &y, &ny));
    if (nx != ny || memcmp(x, y, nx) != 0)
        fail_msg("%s and %s differ", a, b);
}

static inline double *cli_read_tensor(io_fixture *f, const sbp_weights *w, const sbp_weight *t) {
    double *data = calloc((size_t)t->elems + 1, sizeof *data);
    assert_non_null(data);
    assert_ok(f, sbp_weights_read(w, t, 0, t->elems, SBP_F64, data, f->diag));
    return data;
}

static inline const char *cli_bytes_of(io_fixture *f, const sbp_weight *t) {
    const char *text;
    size_t length;
    assert_ok(f, sbp_file_read(f->arena, f->diag, t->path, &text, &length));
    assert_true((size_t)(t->offset + t->bytes) <= length);
    return text + t->offset;
}

/* ||got - want|| <= tolerance ||want|| for each tensor of got, which want has as well; returns the worst. */
static inline double cli_compare_some(io_fixture *f, const char *what, const char *got_path,
                                      const char *want_path, double tolerance) {
    sbp_weights *got, *want;
    double worst = 0;
    assert_ok(f, sbp_weights_open(f->arena, f->diag, got_path, &got));
    assert_ok(f, sbp_weights_open(f->arena, f->diag, want_path, &want));
    for (int32_t i = 0; i < sbp_weights_count(got); i++) {
        const sbp_weight *g = sbp_weights_at(got, i), *w = sbp_weights_find(want, g->name);
        if (!w || g->rank != w->rank || memcmp(g->dim, w->dim, (size_t)w->rank * sizeof *w->dim) != 0)
            fail_msg("%s: no tensor '%s' of that shape is expected", what, g->name);
        if (sbp_weight_check(g, SBP_F64, NULL) != SBP_OK) {
            /* codes and scales, of which nobody makes numbers alone */
            if (g->bytes != w->bytes || memcmp(cli_bytes_of(f, g), cli_bytes_of(f, w), (size_t)g->bytes) != 0)
                fail_msg("%s: '%s' has other bytes", what, g->name);
            continue;
        }
        double *x = cli_read_tensor(f, got, g), *y = cli_read_tensor(f, want, w), error = 0, norm = 0;
        for (int64_t k = 0; k < w->elems; k++) {
            error += (x[k] - y[k]) * (x[k] - y[k]);
            norm += y[k] * y[k];
        }
        free(x);
        free(y);
        error = norm > 0 ? sqrt(error / norm) : sqrt(error);
        if (!(error <= tolerance))
            fail_msg("%s: '%s' is off by %.3g, at most %g", what, g->name, error, tolerance);
        worst = error > worst ? error : worst;
    }
    sbp_weights_close(got);
    sbp_weights_close(want);
    return worst;
}

static inline int32_t cli_count_tensors(io_fixture *f, const char *path) {
    sbp_weights *w;
    assert_ok(f, sbp_weights_open(f->arena, f->diag, path, &w));
    int32_t count = sbp_weights_count(w);
    sbp_weights_close(w);
    return count;
}

/* Likewise, and both have the same names. */
static inline double cli_compare(io_fixture *f, const char *what, const char *got_path, const char *want_path,
                                 double tolerance) {
    int32_t got = cli_count_tensors(f, got_path), want = cli_count_tensors(f, want_path);
    if (got != want)
        fail_msg("%s: %d tensors, expected %d", what, got, want);
    return cli_compare_some(f, what, got_path, want_path, tolerance);
}

/* A way to cut a step, and how exactly its gradients are those of the whole. */
typedef struct cli_cut {
    const char *compile;
    double tolerance;
} cli_cut;

/* Compiles to $D/p, dumps the gradients of a step, compares them with a file and says how far off they are.
 */
static inline void cli_check_cut(io_fixture *f, const char *what, const cli_cut *cut, const char *compile,
                                 const char *run, const char *want) {
    cli_ok(f, sbp_arena_printf(f->arena, "%s %s -o $D/p && $R $D/p %s --out none --dump-gradients $D/got",
                               compile, cut->compile, run));
    print_message("%s: off by %.2g\n", what, cli_compare(f, what, io_path(f, "got"), want, cut->tolerance));
}

/* Whether this machine and this build can run and compile for a backend; says why not, and what is skipped.
 */
static inline bool cli_has_device(io_fixture *f, const char *backend, const char *what) {
    const char *reason = "sbprun was built without it";
    cli_ok(f, "$R --devices");
    const char *line = strstr(sbp_arena_strdup(f->arena, cli_text(f, "out")), backend);
    if (line && !strstr(line, sbp_arena_printf(f->arena, "%s 0: ", backend)))
        reason = sbp_arena_strndup(f->arena, line, strcspn(line, "\n"));
    else if (line) {
        int status = cli(
            f, sbp_arena_printf(f->arena, "$C compile $G/llama_plain/model -o $D/p --backend %s", backend));
        if (status == 0)
            return true;
        reason = sbp_arena_strdup(f->arena, cli_text(f, "err"));
        if (status != 3) /* not this machine's fault */
            fail_msg("compiling for %s: %s", backend, reason);
    }
    print_message("skipped: %s on %s: %s\n", what, backend, reason);
    return false;
}

/* Whether the CPU runs the instruction set that SBP_CPU_ISA asks for, and nothing less. */
static inline bool cli_has_isa(io_fixture *f, const char *what) {
    const char *set = getenv("SBP_CPU_ISA");
    cli_ok(f, "$R --devices");
    if (!set || strstr(cli_text(f, "out"), sbp_arena_printf(f->arena, "(%s)", set)))
        return true;
    print_message("skipped: %s with the instruction set %s: this CPU has not all of it\n", what, set);
    return false;
}

/* A real model, where SBP_TEST_ALL asks for what takes minutes and there is one; NULL, and it is
 * said, where not. */
static inline const char *cli_real_model(const char *what) {
    const char *model = getenv("SBP_MODEL");
    if (!model)
        model = "demo-out/SmolLM2-135M-Instruct.Q4_1.gguf";
    if (testing_all() && sbp_file_exists(model))
        return model;
    print_message(
        "skipped: %s: it takes minutes (SBP_TEST_ALL=1) and %s (./run-demo brings it; SBP_MODEL names "
        "another)\n",
        what, model);
    return NULL;
}

static inline bool cli_has_vulkan(io_fixture *f, const char *what) {
    return cli_has_device(f, "vulkan", what);
}

#endif
