/* sbprun.c: runs plans. Messages go to stderr, results to stdout; the exit status is that of ir/base/base.h.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "ir/base/census.h"
#include "ir/base/machine.h"
#include "runtime/cli/sbprun/commands.h"
#include "runtime/cli/sbprun/messages.h"

static sbp_status dispatch(sbp_diag *diag, int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "tokenize") == 0)
        return sbp_command_tokenize(diag, argc - 2, argv + 2);
    if (argc > 1 && strcmp(argv[1], "generate") == 0)
        return sbp_command_generate(diag, argc - 2, argv + 2);
    if (argc > 1 && strcmp(argv[1], "chat") == 0)
        return sbp_command_chat(diag, argc - 2, argv + 2);
    if (argc > 1 && strcmp(argv[1], "doctor") == 0)
        return sbp_command_doctor(diag, argc - 2, argv + 2);
    if (argc > 1 && strcmp(argv[1], "check") == 0)
        return sbp_command_check(diag, argc - 2, argv + 2);
    if (argc > 1 && strcmp(argv[1], "export") == 0)
        return sbp_command_export(diag, argc - 2, argv + 2);
    if (argc >= 2 && strcmp(argv[1], "help") == 0)
        argv[1] = "--help";
    return sbp_command_run(diag, argc - 1, argv + 1);
}

int main(int argc, char **argv) {
    sbp_diag *diag = sbp_diag_create();
    if (!diag) {
        fputs("sbprun: error: out of memory for messages\n", stderr);
        return SBP_MACHINE;
    }
    signal(SIGPIPE, SIG_IGN); /* a write that fails says so itself, with the file's name */
    signal(SIGXFSZ, SIG_IGN);
    sbp_diag_set_sink(diag, sbp_messages_sink, NULL);
    sbp_status status = dispatch(diag, argc, argv);
    if (fflush(stdout) != 0 && status == SBP_OK)
        status = sbp_fail(diag, SBP_IO, "cannot write to standard output");
    if (status == SBP_INTERNAL)
        sbp_note(
            diag,
            "this is an error of sbprun itself: please report it, with the command and the messages above");
    if (status == SBP_MACHINE && sbp_diag_count(diag, SBP_ERROR) == 0 && sbp_memory_ran_out())
        (void)sbp_fail(diag, status, "out of memory for what was at hand, and for saying what");
    sbp_diag_destroy(diag);
    if (status != SBP_OK)
        sbp_census_forget();
    return (int)status;
}
