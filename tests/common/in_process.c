#include "tests/common/in_process.h"

#include <fcntl.h>
#include <stdio_ext.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "frontends/formats/weights/weights.h"
#include "ir/program/plan_file.h"
#include "runtime/cli/sbpc/cli.h"
#include "runtime/cli/sbprun/commands.h"

enum { MAX_WORDS = 64 };

typedef struct sbpc_call {
    sbp_arena *arena;
    sbp_diag *diag;
    bool inspect;
    int argc;
    char **argv;
} sbpc_call;

static sbp_status sbpc_body(void *user) {
    sbpc_call *call = user;
    return call->inspect ? sbp_cli_inspect(call->arena, call->diag, call->argc, call->argv)
                         : sbp_cli_compile(call->arena, call->diag, call->argc, call->argv);
}

static void note_error(void *user, sbp_severity severity, const char *text) {
    outcome *o = user;
    if (severity == SBP_ERROR && o->errors++ == 0)
        snprintf(o->message, sizeof o->message, "%s", text);
}

/* words[0] is the program. */
static sbp_status call(sbp_diag *diag, int count, char **words) {
    if (strcmp(words[0], "sbprun") == 0 && count > 1 && strcmp(words[1], "export") == 0)
        return sbp_command_export(diag, count - 2, words + 2);
    if (strcmp(words[0], "sbprun") == 0 && count > 1 && strcmp(words[1], "check") == 0)
        return sbp_command_check(diag, count - 2, words + 2);
    if (strcmp(words[0], "sbprun") == 0)
        return count > 1 && strcmp(words[1], "tokenize") == 0
                   ? sbp_command_tokenize(diag, count - 2, words + 2)
                   : sbp_command_run(diag, count - 1, words + 1);
    sbp_arena *arena = sbp_arena_create();
    if (!arena)
        return sbp_fail(diag, SBP_MACHINE, "out of memory");
    sbpc_call c = {arena, diag, strcmp(words[1], "inspect") == 0, count - 2, words + 2};
    sbp_status status = sbp_guard(arena, diag, sbpc_body, &c);
    sbp_arena_destroy(arena);
    return status;
}

/* Standard stream `to` becomes the file; returns a copy of what it was. */
static int redirect(int to, const char *path, int flags) {
    int kept = dup(to), fd = open(path, flags, 0600);
    assert_true(kept >= 0 && fd >= 0);
    assert_int_equal(dup2(fd, to), to);
    close(fd);
    return kept;
}

static int streams[3] = {-1, -1, -1}; /* what the standard streams were while a command runs */

static void restore(void) {
    fflush(NULL);
    for (int i = 0; i < 3; i++)
        if (streams[i] >= 0) {
            dup2(streams[i], i);
            close(streams[i]);
            streams[i] = -1;
        }
}

/* After a command that crashed (cmocka caught the signal): the streams are still those of the command, and so
 * is what cmocka said. */
static void recover(const io_fixture *f) {
    static char text[20000];
    if (streams[0] < 0)
        return;
    restore();
    static const char *const names[] = {"out", "err"};
    for (int i = 0; i < 2; i++)
        fprintf(stderr, "%s", in_process_output(f, names[i], text, sizeof text));
}

outcome in_process(const io_fixture *f, const char *command, const char *input, int64_t n, int64_t *left) {
    recover(f);
    char line[2000], *words[MAX_WORDS + 1], stream[3][100];
    size_t length = 0;
    int count = 0;
    for (const char *c = command; *c; c++) {
        bool directory = c[0] == '$' && c[1] == 'D';
        length += (size_t)snprintf(line + length, sizeof line - length, "%.*s", directory ? 64 : 1,
                                   directory ? f->directory : c);
        assert_true(length < sizeof line);
        c += directory;
    }
    for (char *word = strtok(line, " "); word; word = strtok(NULL, " ")) {
        assert_true(count < MAX_WORDS);
        words[count++] = word;
    }
    words[count] = NULL;
    static const char *const names[] = {"in", "out", "err"};
    for (int i = 0; i < 3; i++)
        snprintf(stream[i], sizeof stream[i], "%s.%s", f->directory, names[i]);
    io_put(stream[0], input ? input : "", input ? strlen(input) : 0);

    outcome o = {0};
    sbp_diag *diag = sbp_diag_create();
    assert_non_null(diag);
    sbp_diag_set_sink(diag, note_error, &o);
    fflush(NULL);
    streams[0] = redirect(0, stream[0], O_RDONLY);
    for (int i = 1; i < 3; i++)
        streams[i] = redirect(i, stream[i], O_WRONLY | O_CREAT | O_TRUNC);
    __fpurge(stdin); /* of what an earlier command left unread */
    clearerr(stdin);
    sbp_test_fail_allocation(n);
    o.status = call(diag, count, words);
    int64_t rest = sbp_test_fail_allocation(0);
    restore();
    sbp_diag_destroy(diag);
    if (left)
        *left = rest;
    return o;
}

void in_process_choose_of(int argc, char **argv, const struct CMUnitTest *tests, size_t count) {
    if (argc < 2)
        return;
    for (size_t i = 0; i < count; i++)
        if (strcmp(tests[i].name, argv[1]) == 0) {
            cmocka_set_test_filter(argv[1]);
            return;
        }
    fprintf(stderr, "no test is called '%s'\n", argv[1]);
    exit(1);
}

/* Counted is private memory that can be written, which is what a sanitizer maps as well: on top of what there
 * is. */
void in_process_limit_memory(int64_t bytes) {
    char line[256];
    long long kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    assert_non_null(file);
    while (kib == 0 && fgets(line, sizeof line, file))
        if (sscanf(line, "VmData: %lld kB", &kib) != 1)
            kib = 0;
    fclose(file);
    rlim_t limit = (rlim_t)kib * 1024 + (rlim_t)bytes;
    assert_int_equal(setrlimit(RLIMIT_DATA, &(struct rlimit){limit, limit}), 0);
    void *pages =
        mmap(NULL, (size_t)bytes + (64 << 20), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(pages == MAP_FAILED); /* or nothing is limited */
}

int in_process_teardown(void **state) {
    char command[100];
    recover(*state);
    snprintf(command, sizeof command, "rm -rf %s.*", ((io_fixture *)*state)->directory);
    int rc = system(command);
    return io_teardown(state) | rc;
}

const char *in_process_output(const io_fixture *f, const char *which, char *out, size_t size) {
    char path[100];
    snprintf(path, sizeof path, "%s.%s", f->directory, which);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t length = fread(out, 1, size - 1, file);
    out[length] = 0;
    fclose(file);
    return out;
}

void in_process_clean(const io_fixture *f, const char *kept) {
    char command[1200];
    snprintf(command, sizeof command,
             "cd %s && for f in * .[!.]*; do case ' %s ' in *\" $f \"*) ;; *) rm -rf \"$f\";; esac; done",
             f->directory, kept);
    assert_int_equal(system(command), 0);
}

const char *in_process_files(io_fixture *f) {
    static char names[4000];
    char command[200];
    snprintf(command, sizeof command, "cd %s && find . -type f | cut -c3- | LC_ALL=C sort", f->directory);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    size_t length = fread(names, 1, sizeof names - 1, pipe);
    names[length] = 0;
    assert_int_equal(pclose(pipe), 0);
    for (char *c = names; *c; c++)
        *c = *c == '\n' ? ' ' : *c;
    return names;
}

void in_process_check_files(io_fixture *f, const char *what, const char *kept, const char *whole) {
    char names[4000], command[500];
    snprintf(names, sizeof names, "%s", in_process_files(f));
    for (char *name = strtok(names, " "); name; name = strtok(NULL, " ")) {
        snprintf(command, sizeof command,
                 "case ' %s ' in *' %s '*) exit 0;; esac; case %s in %s) exit 0;; esac; exit 1", kept, name,
                 name, whole);
        if (system(command) != 0)
            fail_msg("%s left '%s'", what, name);
        const char *path = io_path(f, name), *dot = strrchr(name, '.');
        io_renew(f);
        if (dot && strcmp(dot, ".safetensors") == 0) {
            sbp_weights *w;
            assert_ok(f, sbp_weights_open(f->arena, f->diag, path, &w));
            sbp_weights_close(w);
        }
        if (strcmp(name, "p") == 0 && !sbp_plan_file_probe(path))
            fail_msg("%s left half a plan", what);
    }
}
