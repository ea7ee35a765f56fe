/* in_process.h: the commands of sbpc and sbprun, called in the process of the test, so that an allocation can
 * be made to fail and thousands of damaged files can be tried.
 *
 * A command is one line of words; in it, $D is the directory of the fixture. What it prints goes to $D.out
 * and $D.err beside the directory, so that the directory holds what the command wrote and nothing else. */
#ifndef SBP_TESTS_COMMON_IN_PROCESS_H
#define SBP_TESTS_COMMON_IN_PROCESS_H

#include "tests/unit/io_testing.h"

typedef struct outcome {
    sbp_status status;
    int errors;         /* messages of that severity */
    char message[1000]; /* the first of them */
} outcome;

/* "sbpc compile ...", "sbpc inspect ...", "sbprun ...", with "check", "export" or "tokenize" or without, as
 * their main would. The n-th allocation fails, when n > 0; *left (unless NULL) is what remained of n. input:
 * standard input, or NULL. */
outcome in_process(const io_fixture *f, const char *command, const char *input, int64_t n, int64_t *left);

/* The first argument, when there is one, is the name of the test to run; a name of none makes the program
 * fail. */
#define in_process_choose(argc, argv) in_process_choose_of(argc, argv, tests, sizeof tests / sizeof tests[0])
void in_process_choose_of(int argc, char **argv, const struct CMUnitTest *tests, size_t count);

/* From here on this process gets at most so much more memory. Without a limit a damaged plan may ask for what
 * the machine has, and get it; then the system ends the largest process there is, which has no last word. */
void in_process_limit_memory(int64_t bytes);

/* io_teardown, and what lies beside the directory. */
int in_process_teardown(void **state);

/* What the last command printed, of at most size - 1 characters. */
const char *in_process_output(const io_fixture *f, const char *which, char *out, size_t size);

/* Removes everything in the directory but the names given, separated by spaces. */
void in_process_clean(const io_fixture *f, const char *kept);

/* What a command that failed may leave in the directory: the names in `kept`, and files that match `whole`, a
 * pattern of the shell, each of them complete. what: for the message. */
void in_process_check_files(io_fixture *f, const char *what, const char *kept, const char *whole);

/* The names below the directory, each followed by a space, sorted. */
const char *in_process_files(io_fixture *f);

#endif
