/* Processes that give rewards: those that end, hang or write rubbish are started again; none is left over. */
#include "tests/unit/reward_testing.h"

#include <sys/wait.h>

/* ---- processes --------------------------------------------------------------------------------------- */

static void check_given_up(io_fixture *f, const char *spec, double seconds, const char *const *texts) {
    double rewards[MOST];
    sbp_rewarder *r = open_one(f, spec, seconds, 1);
    sbp_diag_clear(f->diag);
    assert_int_equal(sbp_rewarder_run(r, f->diag, &plain_batch(f)->b, rewards, NULL), SBP_INPUT);
    assert_int_equal(sbp_diag_count(f->diag, SBP_WARNING), 1); /* started again once */
    const char *message = sbp_diag_text(f->diag, SBP_ERROR);
    for (; *texts; texts++)
        if (!strstr(message, *texts))
            fail_msg("'%s' is not in '%s'", *texts, message);
    sbp_rewarder_close(r);
}

#define CHECK_GIVEN_UP(f, spec, seconds, ...)                                                                \
    check_given_up((f), (spec), (seconds), (const char *const[]){__VA_ARGS__, NULL})

static void what_fails_again_and_again_is_given_up(void **state) {
    io_fixture *f = *state;
    CHECK_GIVEN_UP(f, FUNCTIONS "dies", 0,
                   "step 3: the Python process ended with status 7, and was started again 1 times",
                   "wrote to stderr:\n  about to end");
    CHECK_GIVEN_UP(f, FUNCTIONS "hangs", 0.2, "gave no answer within 0.2 s", "in hangs");
    CHECK_GIVEN_UP(f, "sleep 1000", 0.1, "gave no answer within 0.1 s");
    CHECK_GIVEN_UP(f, "sh -c 'read x; kill -9 $$'", 0, "was ended by signal 9 (Killed)");
    CHECK_GIVEN_UP(f, "sh -c 'read x; exec >&-; sleep 1000'", 0, "closed its standard output");
    CHECK_GIVEN_UP(f, "sh -c 'read x; sleep 1000 & exit 3'", 0,
                   "ended with status 3"); /* a child holds its stdout */
    CHECK_GIVEN_UP(f, "true", 0, "ended with status 0");
    CHECK_GIVEN_UP(f, "sed -un 's/.*/hello\\t/p'", 0, "wrote what is no answer to standard output",
                   ": hello");
    CHECK_GIVEN_UP(f, "sed -un 's/.*/[1,2,3,4]/p'", 0,
                   "expected a line that is an object of JSON): [1,2,3,4]");
    CHECK_GIVEN_UP(f, "sed -un 's/.*/{\"id\":77,\"rewards\":[1,2,3,4]}/p'", 0,
                   "expected the \"id\" of the request");
    CHECK_GIVEN_UP(
        f, "sh -c 'read x; for i in 1 2 3 4 5 6 7 8 9 10 11 12 13; do echo line $i >&2; done; exit 1'", 0,
        ":\n  line 4\n  line 5\n", "\n  line 13");
}

static void a_process_is_started_again(void **state) {
    io_fixture *f = *state;
    double rewards[MOST];
    batch *b = file_batch(f, file_in(f, "python"));
    sbp_rewarder *r = open_one(f, FUNCTIONS "dies_once", 0, 1);
    for (int round = 0; round < 2; round++) {
        assert_ok(f, sbp_rewarder_run(r, f->diag, &b->b, rewards, NULL));
        EXPECT(rewards, 1, 1, 1, 1);
        assert_int_equal(sbp_diag_count(f->diag, SBP_WARNING), 1);
    }
    assert_non_null(
        strstr(sbp_diag_text(f->diag, SBP_WARNING), "ended with status 7; it is started again (1 of 1)"));
    sbp_rewarder_close(r);
    /* the first hangs, and what comes then answers each request twice: the second answer is one too many */
    const char *file = file_in(f, "program");
    sbp_diag_clear(f->diag);
    r = open_one(
        f,
        sbp_arena_printf(f->arena,
                         "sh -c 'if test -e %s; then exec sed -un \"s/^{.id.:\\([0-9]*\\),.*/{\\\"id\\\":\\1,"
                         "\\\"rewards\\\":[1,1,1,1]}/p;p\"; else : > %s; exec sleep 1000; fi'",
                         file, file),
        0.5, 20);
    assert_ok(f, sbp_rewarder_run(r, f->diag, &plain_batch(f)->b, rewards, NULL));
    EXPECT(rewards, 1, 1, 1, 1);
    assert_non_null(strstr(sbp_diag_text(f->diag, SBP_WARNING), "gave no answer within 0.5 s"));
    assert_ok(f, sbp_rewarder_run(r, f->diag, &plain_batch(f)->b, rewards, NULL));
    EXPECT(rewards, 1, 1, 1, 1);
    assert_non_null(strstr(sbp_diag_text(f->diag, SBP_WARNING), "expected the \"id\" of the request"));
    sbp_rewarder_close(r);
}

static void a_program_that_reads_no_more(void **state) {
    io_fixture *f = *state;
    double rewards[MOST];
    sbp_rewarder *r = open_one(f, "python3 tests/data/reward/program.py once", 1,
                               20); /* too late where it closes behind the request */
    for (int round = 0; round < 2; round++) {
        assert_ok(f, sbp_rewarder_run(r, f->diag, &plain_batch(f)->b, rewards, NULL));
        EXPECT(rewards, 3, 3, 3, 0);
    }
    sbp_rewarder_close(r);
}

/* One completion is longer than pipes hold. */
static batch *long_batch(io_fixture *f) {
    enum { BYTES = 1 << 20 };
    char *text = sbp_arena_alloc(f->arena, BYTES + 1);
    memset(text, 'a', BYTES);
    batch *out = plain_batch(f);
    out->samples[0].completion = text;
    out->samples[0].completion_bytes = BYTES;
    return out;
}

static void a_program_that_reads_not_enough(void **state) {
    io_fixture *f = *state;
    double rewards[MOST];
    batch *b = long_batch(f);
    sbp_rewarder *r = open_one(f,
                               "sh -c 'head -c 7 >/dev/null; echo {\\\"id\\\":1,\\\"rewards\\\":[1,2,3,4]};"
                               " exec sleep 1000'",
                               0, 0);
    assert_ok(f, sbp_rewarder_run(r, f->diag, &b->b, rewards, NULL));
    EXPECT(rewards, 1, 2, 3, 4);
    assert_fails(f, SBP_INPUT, "answered without reading the whole request",
                 sbp_rewarder_run(r, f->diag, &b->b, rewards, NULL));
    sbp_rewarder_close(r);
}

/* It waits until somebody reads, while somebody waits until it reads. */
static void a_program_that_writes_before_it_reads(void **state) {
    io_fixture *f = *state;
    double rewards[MOST];
    sbp_rewarder *r =
        open_one(f, "sh -c 'head -c 300000 /dev/zero >&2; exec python3 tests/data/reward/program.py'", 0, 0);
    assert_ok(f, sbp_rewarder_run(r, f->diag, &long_batch(f)->b, rewards, NULL));
    EXPECT(rewards, 3, 3, 3, 0);
    sbp_rewarder_close(r);
}

static int interruptions;

static sbp_status interrupts(void) {
    return interruptions++ > 1 ? SBP_INTERRUPTED : SBP_OK;
}

static void an_interruption_ends_the_wait(void **state) {
    io_fixture *f = *state;
    const char *spec = "sleep 1000";
    const sbp_reward_options options = {.log = -1, .interrupted = interrupts};
    double rewards[MOST];
    sbp_rewarder *r;
    interruptions = 0;
    assert_ok(f, sbp_rewarder_open(f->arena, f->diag, &spec, NULL, 1, &options, &r));
    assert_int_equal(sbp_rewarder_run(r, f->diag, &plain_batch(f)->b, rewards, NULL), SBP_INTERRUPTED);
    assert_int_equal(sbp_diag_count(f->diag, SBP_ERROR), 0);
    sbp_rewarder_close(r);
}

/* Whether a process is there and no zombie of somebody's. */
static bool runs(long pid) {
    char path[64], state = 'Z';
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    FILE *file = fopen(path, "r");
    if (!file)
        return false;
    if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
        state = 'Z';
    fclose(file);
    return state != 'Z';
}

static void assert_gone(long pid) {
    for (int i = 0; i < 1000 && runs(pid); i++)
        usleep(10000);
    assert_false(runs(pid));
}

static void read_pids(const char *path, long *one, long *other) {
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%ld %ld", one, other), 2);
    fclose(file);
}

static void nothing_is_left_running(void **state) {
    io_fixture *f = *state;
    double rewards[MOST];
    long worker = 0, child = 0;
    const char *path = file_in(f, "pids");
    batch *b = file_batch(f, path);
    sbp_rewarder *r = open_one(f, FUNCTIONS "pids", 0, 0);
    assert_ok(f, sbp_rewarder_run(r, f->diag, &b->b, rewards, NULL));
    read_pids(path, &worker, &child);
    assert_true(rewards[0] == (double)worker);
    assert_int_equal(getpgid((pid_t)worker), (pid_t)worker); /* a group of its own */
    assert_int_equal(getpgid((pid_t)child), (pid_t)worker);
    assert_ok(f, sbp_rewarder_run(r, f->diag, &b->b, rewards, NULL));
    assert_true(rewards[0] == (double)worker); /* one process for the whole run */
    assert_true(runs(worker) && runs(child));
    sbp_rewarder_close(r);
    assert_gone(worker);
    assert_gone(child);
}

/* A program sees the end of its input and may take its time for what it does then. */
static void the_end_of_input_ends_a_program(void **state) {
    io_fixture *f = *state;
    const char *path = file_in(f, "ended");
    sbp_rewarder *r = open_one(
        f, sbp_arena_printf(f->arena, "sh -c 'while read x; do :; done; echo over > %s'", path), 0, 0);
    sbp_rewarder_close(r);
    assert_int_equal(access(path, F_OK), 0);
}

/* The parent is killed, and can do nothing about its processes; one of them never looks at its input. */
static void a_killed_parent_leaves_nothing(void **state) {
    io_fixture *f = *state;
    const char *path = file_in(f, "pids"), *deaf = file_in(f, "deaf");
    long worker = 0, grandchild = 0, sleeper = 0, again = 0;
    pid_t child = fork();
    if (child == 0) {
        double rewards[MOST];
        sbp_rewarder *r = open_one(f, FUNCTIONS "pids", 0, 0);
        (void)open_one(f,
                       sbp_arena_printf(f->arena,
                                        "sh -c 'echo $$ $$ > %s.part; mv %s.part %s; exec sleep 1000'", deaf,
                                        deaf, deaf),
                       0, 0);
        if (sbp_rewarder_run(r, f->diag, &file_batch(f, path)->b, rewards, NULL) == SBP_OK)
            for (int i = 0; i < 1000; i++, usleep(10000))
                if (access(deaf, F_OK) == 0)
                    kill(getpid(), SIGKILL);
        _exit(1);
    }
    int how;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
    read_pids(path, &worker, &grandchild);
    assert_gone(worker);
    kill((pid_t)grandchild, SIGKILL); /* the function's own: nobody ends these here */
    read_pids(deaf, &sleeper, &again);
    assert_gone(sleeper);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(what_fails_again_and_again_is_given_up),
        TEST(a_process_is_started_again),
        TEST(a_program_that_reads_no_more),
        TEST(a_program_that_reads_not_enough),
        TEST(a_program_that_writes_before_it_reads),
        TEST(an_interruption_ends_the_wait),
        TEST(nothing_is_left_running),
        TEST(the_end_of_input_ends_a_program),
        TEST(a_killed_parent_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
