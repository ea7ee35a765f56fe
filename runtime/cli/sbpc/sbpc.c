/* sbpc.c: the compiler's main. */
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "ir/base/census.h"
#include "ir/base/machine.h"
#include "runtime/cli/sbpc/cli.h"

typedef struct invocation {
    sbp_arena *arena;
    sbp_diag *diag;
    int argc;
    char **argv;
} invocation;

static void print_message(void *user, sbp_severity severity, const char *text) {
    static const char *const prefix[] = {"note: ", "warning: ", "error: "};
    (void)user;
    fprintf(stderr, "sbpc: %s%s\n", prefix[severity], text);
}

static const char usage[] =
    "usage: sbpc compile MODEL -o plan.bin [options]   (sbpc compile --help)\n"
    "       sbpc inspect plan.bin [options]           (sbpc inspect --help)\n"
    "       sbpc fit MODEL.. [options]                does it fit which card? (sbpc fit --help)\n"
    "       sbpc --version\n"
    "MODEL: a Hugging Face model directory (config.json is enough), a model.json (ONNX), or a .gguf\n";

static sbp_status dispatch(void *user) {
    invocation *in = user;
    const char *command = in->argc > 1 ? in->argv[1] : "";
    if (strcmp(command, "compile") == 0)
        return sbp_cli_compile(in->arena, in->diag, in->argc - 2, in->argv + 2);
    if (strcmp(command, "inspect") == 0)
        return sbp_cli_inspect(in->arena, in->diag, in->argc - 2, in->argv + 2);
    if (strcmp(command, "fit") == 0)
        return sbp_cli_fit(in->arena, in->diag, in->argc - 2, in->argv + 2);
    if (strcmp(command, "--help") == 0 || strcmp(command, "-h") == 0 || strcmp(command, "help") == 0) {
        sbp_cli_compile_help(in->arena, in->argc > 2 ? in->argv[2] : NULL);
        return SBP_OK;
    }
    if (strcmp(command, "--version") == 0) {
        printf("sbpc %s\n", SBP_VERSION);
        return SBP_OK;
    }
    if (strcmp(command, "--help-markdown") == 0) {
        sbp_text text;
        sbp_text_init(&text, in->arena);
        sbp_options_print_markdown(&text);
        fputs(text.data, stdout);
        return SBP_OK;
    }
    if (*command)
        return sbp_fail(in->diag, SBP_USAGE,
                        "unknown command '%s'; sbpc has compile, inspect and fit (sbpc --help)", command);
    fputs(usage, stderr);
    return SBP_USAGE;
}

int main(int argc, char **argv) {
    /* The planner makes and drops what it tries by the hundred: that memory is not given back in between. */
    (void)mallopt(M_MMAP_THRESHOLD, 32 << 20);
    (void)mallopt(M_TRIM_THRESHOLD, 256 << 20);
    sbp_arena *arena = sbp_arena_create();
    sbp_diag *diag = sbp_diag_create();
    if (!arena || !diag) {
        fputs("sbpc: error: out of memory for messages\n", stderr);
        return SBP_MACHINE;
    }
    signal(SIGXFSZ, SIG_IGN); /* a write beyond `ulimit -f` fails and says where */
    sbp_diag_set_sink(diag, print_message, NULL);
    invocation in = {.arena = arena, .diag = diag, .argc = argc, .argv = argv};
    sbp_status status = sbp_guard(arena, diag, dispatch, &in);
    if (status == SBP_OK && (fflush(stdout) != 0 || ferror(stdout)))
        status = sbp_fail(diag, SBP_IO, "standard output could not be written");
    if (status == SBP_INTERNAL)
        sbp_note(
            diag,
            "this is an error of sbpc itself: please report it, with the command and the messages above");
    if (status == SBP_MACHINE && sbp_diag_count(diag, SBP_ERROR) == 0 && sbp_memory_ran_out())
        (void)sbp_fail(diag, status, "out of memory for what was at hand, and for saying what");
    sbp_arena_destroy(arena);
    sbp_diag_destroy(diag);
    if (status != SBP_OK)
        sbp_census_forget();
    return (int)status;
}
