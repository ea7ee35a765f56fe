/* test_out_of_memory.c: every allocation of every command fails, one at a time.
 *
 * Whatever n, with the n-th allocation failing a command ends with status 3 and a message, or does without
 * that memory; it leaves no half-written file, and (as the sanitizer build sees) leaks nothing. Counted are
 * malloc, realloc and the blocks of arenas; then, for as many n as there is time for, every piece of an arena
 * as if it needed a block of its own. Not counted: what libraries take by themselves (jansson's comes from an
 * arena, pcre2's and stdio's does not). SBP_TEST_ALL=1 tries every n of the first kind and a hundred times as
 * many of the second. */
#include "tests/common/in_process.h"
#include "tests/common/sweep.h"

#include <inttypes.h>

#define ROWS "$D/rows"
#define MODEL "tests/data/stories260K"

static const char rows[] = "{\"text\": \"Once upon a time, there was\"}\n"
                           "{\"text\": \"a dog\"}\n";

typedef struct trial {
    const char *prepare; /* a command that must work, or NULL */
    const char *command, *input;
    const char *kept;   /* names in the directory that were there before */
    const char *whole;  /* names that the command may have written, each complete; a pattern of the shell */
    bool same;          /* a command that worked all the same wrote the same bytes */
    int blocks, pieces; /* how many n to try by default */
} trial;

/* Exit status of a command in which %1$s is the directory. */
static int shell(const io_fixture *f, const char *format) {
    char command[300];
    snprintf(command, sizeof command, format, f->directory);
    return system(command);
}

/* One n; whether the command worked all the same. */
static bool attempt(io_fixture *f, const trial *t, int64_t n) {
    char what[400];
    in_process_clean(f, t->kept);
    outcome o = in_process(f, t->command, t->input, n, NULL);
    if (o.status != SBP_OK && (o.status != SBP_MACHINE || o.errors == 0 || !o.message[0]))
        fail_msg("%s: allocation %" PRId64 " failing gave status %d with %d messages: '%s'", t->command, n,
                 o.status, o.errors, o.message);
    snprintf(what, sizeof what, "%s: allocation %" PRId64 " failing", t->command, n);
    in_process_check_files(f, what, t->kept, t->whole);
    if (o.status == SBP_OK && t->same && shell(f, "diff -r %1$s %1$s.whole >/dev/null") != 0)
        fail_msg("%s: allocation %" PRId64 " failing changed the result", t->command, n);
    return o.status == SBP_OK;
}

/* The first `few` and the last, and about `count` in all, at places that differ from trial to trial. */
static int sweep(io_fixture *f, const trial *t, int64_t total, int64_t count, int *worked) {
    enum { FEW = 8 };
    uint64_t random = 20261121;
    int tried = 0;
    *worked = 0;
    double step = count >= total ? 1 : (double)total / (double)count;
    for (int64_t k = 1; k <= FEW && step > 1; k++, tried++)
        *worked += attempt(f, t, k);
    for (double at = 1; at < (double)total + 1; at += step, tried++) {
        int64_t n = (int64_t)at + (step > 1 ? (int64_t)(io_random(&random) % (uint32_t)step) : 0);
        *worked += attempt(f, t, n < total ? n : total);
    }
    return tried;
}

static void run_trial(void **state, const trial *t) {
    enum { MANY = 1000000000 };
    io_fixture *f = *state;
    in_process_clean(f, "");
    io_put(io_path(f, "rows"), rows, strlen(rows));
    outcome o;
    if (t->prepare && (o = in_process(f, t->prepare, NULL, 0, NULL)).status != SBP_OK)
        fail_msg("%s: status %d: %s", t->prepare, o.status, o.message);
    for (int pieces = 0; pieces < 2; pieces++) {
        int64_t left;
        int worked;
        sbp_test_count_pieces(pieces);
        in_process_clean(f, t->kept);
        o = in_process(f, t->command, t->input, MANY, &left);
        if (o.status != SBP_OK)
            fail_msg("%s: status %d: %s", t->command, o.status, o.message);
        assert_int_equal(shell(f, "rm -rf %1$s.whole && cp -r %1$s %1$s.whole"), 0);
        int64_t total = MANY - left, count = pieces ? t->pieces : t->blocks;
        if (testing_all())
            count = pieces ? 100 * count : total;
        int tried = sweep(f, t, total, count, &worked);
        printf("%.60s: %" PRId64 " %s, %d tried, %d not missed\n", t->command, total,
               pieces ? "pieces" : "allocations", tried, worked);
        sbp_test_count_pieces(false);
    }
}

#define TRIAL(name, ...)                                                                                     \
    static void test_##name(void **state) {                                                                  \
        static const trial t = {__VA_ARGS__};                                                                \
        run_trial(state, &t);                                                                                \
    }
#define COMPILE "sbpc compile " MODEL " -o $D/p --seq-len 256 --chunk 64"

TRIAL(compile, .command = COMPILE, .kept = "rows", .whole = "p", .same = true, .blocks = 60, .pieces = 20)
TRIAL(plan, .command = COMPILE " --memory 100MiB --seq-len max --dtype bf16", .kept = "rows", .whole = "p",
      .same = true, .blocks = 20, .pieces = 5)
TRIAL(inspect, .prepare = COMPILE, .command = "sbpc inspect $D/p --json --svg $D/s", .kept = "p rows",
      .whole = "s", .blocks = 40, .pieces = 20)
TRIAL(train, .prepare = COMPILE,
      .command = "sbprun $D/p --data " ROWS " --eval " ROWS
                 " --out $D/o --steps 2 --batch-size 1 --save-every 1",
      .kept = "p rows", .whole = "o/*.json|o/*.jsonl|o/*.safetensors|o/README.md|o/report.html", .blocks = 60,
      .pieces = 20)
TRIAL(score, .prepare = COMPILE, .command = "sbprun $D/p --data " ROWS " --score $D/s", .kept = "p rows",
      .whole = "s", .blocks = 20, .pieces = 20)
TRIAL(dump, .prepare = COMPILE,
      .command = "sbprun $D/p --data " ROWS " --dump-gradients $D/g.safetensors --batch-size 2",
      .kept = "p rows", .whole = "g.safetensors", .blocks = 20, .pieces = 20)
/* What is scored before a step, by two sets of weights. */
TRIAL(scored, .prepare = COMPILE " --objective kto",
      .command = "sbprun $D/p --data tests/data/kto/steps.jsonl --out $D/o --steps 2 --batch-size 4",
      .kept = "p rows", .whole = "o/*.json|o/*.jsonl|o/*.safetensors|o/README.md|o/report.html", .blocks = 30,
      .pieces = 10)
TRIAL(dry_run, .prepare = COMPILE,
      .command = "sbprun $D/p --data " ROWS " --data " ROWS
                 " --mixture-weights 1,0.5 --test-split-size 1 --dry-run --json",
      .kept = "p rows", .whole = "-", .blocks = 20, .pieces = 20)
TRIAL(tokenize, .command = "sbprun tokenize " MODEL " --chat-template tests/golden/rows/think.jinja",
      .input = "\"Once upon a time\"\n{\"text\": \"there was\"}\n"
               "{\"conversations\": [{\"from\": \"human\", \"value\": [{\"type\": \"text\", \"text\": "
               "\"a\"}]}, {\"from\": \"function_call\", \"value\": \"{\\\"name\\\": \\\"f\\\"}\"}]}\n",
      .kept = "rows", .whole = "-", .blocks = 20, .pieces = 20)
TRIAL(export, .command = "sbprun export " MODEL " -o $D/g --type q8_0 --overwrite", .kept = "rows",
      .whole = "g", .blocks = 20, .pieces = 20)

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_compile), cmocka_unit_test(test_plan),     cmocka_unit_test(test_inspect),
        cmocka_unit_test(test_train),   cmocka_unit_test(test_score),    cmocka_unit_test(test_dump),
        cmocka_unit_test(test_dry_run), cmocka_unit_test(test_tokenize), cmocka_unit_test(test_scored),
        cmocka_unit_test(test_export),
    };
    in_process_choose(argc, argv);
    return cmocka_run_group_tests(tests, io_setup, in_process_teardown);
}
