/* test_cli_ranks_faults.c: ranks that die, hang or are interrupted: all end in time, whoever it was is named,
 * no process stays, and --resume goes on to the bits of a run that nobody disturbed. */
#include "tests/cli/ranks_testing.h"
#include "tests/common/sweep.h"

#include <dirent.h>
#include <signal.h>
#include <time.h>

#define RUN                                                                                                  \
    "$R $D/p --ranks 3 --data $D/t.jsonl --batch-size 6 --lr 0.001 --steps 60 --save-every 10 --keep 2 "     \
    "--out $D/o "

enum { RANKS = 3, LIMIT_SECONDS = 600 };

static int setup(void **state) {
    if (cli_setup(state) != 0)
        return -1;
    io_fixture *f = *state;
    if (cli_has_ranks(f, NULL))
        cli_ok(f, "head -24 $G/stories260k_trl/train.jsonl >$D/t.jsonl; "
                  "$C compile $S -o $D/p --seq-len 300 --threads 1 --ranks 3; " RUN "; mv $D/o $D/whole");
    return 0;
}

/* ---- processes -------------------------------------------------------------------------------------- */

typedef struct world {
    pid_t launcher, mpirun, rank[RANKS];
    bool ended; /* the launcher, with this status */
    int status;
} world;

static double now(void) {
    return sbp_seconds();
}

static void pause_briefly(void) {
    nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
}

/* State and parent of a process; false: there is none. */
static bool look(pid_t pid, char *state, pid_t *parent) {
    char path[64], text[400] = "";
    int of = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    bool found = file && fgets(text, sizeof text, file) && strrchr(text, ')') &&
                 sscanf(strrchr(text, ')') + 1, " %c %d", state, &of) == 2;
    if (file)
        fclose(file);
    *parent = (pid_t)of;
    return found;
}

static bool is_gone(pid_t pid) {
    char state;
    pid_t parent;
    return !look(pid, &state, &parent) || state == 'Z' || state == 'X';
}

/* The number of a rank, from what its launcher told it; -1: it is none yet. */
static int number_of(pid_t pid) {
    static const char name[] = "OMPI_COMM_WORLD_RANK=";
    static char text[1 << 16];
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/environ", (int)pid);
    FILE *file = fopen(path, "r");
    size_t length = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file)
        fclose(file);
    text[length] = 0;
    for (size_t at = 0; at < length; at += strlen(text + at) + 1)
        if (strncmp(text + at, name, sizeof name - 1) == 0)
            return atoi(text + at + sizeof name - 1);
    return -1;
}

/* Fills in what there is of it; whether that is all. */
static bool find_world(world *w) {
    DIR *names = opendir("/proc");
    struct dirent *entry;
    int found = 0;
    assert_non_null(names);
    while ((entry = readdir(names))) {
        pid_t pid = (pid_t)atoi(entry->d_name), parent;
        char state;
        if (pid <= 0 || !look(pid, &state, &parent))
            continue;
        if (parent == w->launcher)
            w->mpirun = pid;
        int rank = w->mpirun && parent == w->mpirun ? number_of(pid) : -1;
        if (rank >= 0 && rank < RANKS)
            w->rank[rank] = pid;
    }
    closedir(names);
    for (int r = 0; r < RANKS; r++)
        found += w->rank[r] > 0;
    return found == RANKS;
}

static world start(io_fixture *f, const char *command) {
    world w = {0};
    double begin = now();
    const char *line = sbp_arena_printf(f->arena, "exec >$D/out 2>$D/err </dev/null; exec %s", command);
    w.launcher = fork();
    if (w.launcher == 0) {
        execl("/bin/sh", "sh", "-c", line, (char *)NULL);
        _exit(127);
    }
    while (!find_world(&w)) {
        if (now() - begin > LIMIT_SECONDS)
            fail_msg("%s: no ranks: %s", command, cli_text(f, "err"));
        pause_briefly();
    }
    return w;
}

static bool has_ended(world *w) {
    w->ended = w->ended || waitpid(w->launcher, &w->status, WNOHANG) == w->launcher;
    return w->ended;
}

static int count_steps(io_fixture *f) {
    FILE *file = fopen(io_path(f, "o/metrics.jsonl"), "r");
    int lines = 0;
    for (int c; file && (c = fgetc(file)) != EOF;)
        lines += c == '\n';
    if (file)
        fclose(file);
    return lines;
}

/* Until $D/o/metrics.jsonl has that many lines, or the run is over. */
static void wait_for_steps(io_fixture *f, world *w, int count) {
    double begin = now();
    while (count_steps(f) < count && !has_ended(w)) {
        pause_briefly();
        if (now() - begin > LIMIT_SECONDS)
            fail_msg("no steps: %s", cli_text(f, "err"));
    }
}

/* Exit status of the launcher, and that nothing stays; all within the limit. */
static int finish(io_fixture *f, world *w, const char *what) {
    double begin = now();
    while (!has_ended(w)) {
        if (now() - begin > LIMIT_SECONDS)
            fail_msg("%s: it goes on: %s", what, cli_text(f, "err"));
        pause_briefly();
    }
    for (int r = -1; r < RANKS; r++)
        while (!is_gone(r < 0 ? w->mpirun : w->rank[r])) {
            if (now() - begin > LIMIT_SECONDS)
                fail_msg("%s: process of rank %d stays: %s", what, r, cli_text(f, "err"));
            pause_briefly();
        }
    print_message("  %s: ended in %.1f s\n", what, now() - begin);
    return WIFEXITED(w->status) ? WEXITSTATUS(w->status) : 128 + WTERMSIG(w->status);
}

static void ends_with(io_fixture *f, world *w, const char *what, int expected, const char *message) {
    int status = finish(f, w, what);
    const char *text = sbp_arena_strdup(f->arena, cli_text(f, "err"));
    if (status != expected || !strstr(text, message))
        fail_msg("%s: exit status %d, '%s'; expected %d with '%s'", what, status, text, expected, message);
}

/* Whether the launcher says which rank it was. */
static bool is_named(io_fixture *f, const world *w, int rank) {
    const char *text = sbp_arena_strdup(f->arena, cli_text(f, "err"));
    return strstr(text, sbp_arena_printf(f->arena, "rank %d (process %d) ", rank, (int)w->rank[rank])) ||
           strstr(text, sbp_arena_printf(f->arena, "rank %d did not start", rank));
}

/* On from the last checkpoint to the same bits. */
static void goes_on(io_fixture *f, const char *what) {
    cli_ok(f, RUN "--resume");
    if (!strstr(cli_text(f, "err"), "going on after step "))
        fail_msg("%s: it begins again: %s", what, cli_text(f, "err"));
    cli_same(f, "whole/model.safetensors", "o/model.safetensors");
    cli_ok(f, "test -z \"$(ls -A $D/o | grep -E '^\\.|tmp$')\"");
}

/* ---- deaths ----------------------------------------------------------------------------------------- */

static void test_a_rank_is_killed(void **state) {
    io_fixture *f = *state;
    if (!cli_has_ranks(f, "ranks that are killed"))
        skip();
    for (int r = 0; r < RANKS; r += 2) {
        cli_ok(f, "rm -rf $D/o");
        world w = start(f, RUN);
        wait_for_steps(f, &w, 12);
        kill(w.rank[r], SIGKILL);
        ends_with(
            f, &w, sbp_arena_printf(f->arena, "rank %d killed", r), 3,
            sbp_arena_printf(f->arena, "rank %d (process %d) is gone, ended by signal 9", r, (int)w.rank[r]));
        goes_on(f, "a rank was killed");
    }
}

static void test_mpirun_is_killed(void **state) {
    io_fixture *f = *state;
    if (!cli_has_ranks(f, "an mpirun that is killed"))
        skip();
    cli_ok(f, "rm -rf $D/o");
    world w = start(f, RUN);
    wait_for_steps(f, &w, 12);
    kill(w.mpirun, SIGKILL);
    ends_with(f, &w, "mpirun killed", 3, "mpirun could not run 3 ranks: ended by signal 9");
    goes_on(f, "mpirun was killed");
}

static void test_the_launcher_is_killed(void **state) {
    io_fixture *f = *state;
    if (!cli_has_ranks(f, "a launcher that is killed"))
        skip();
    cli_ok(f, "rm -rf $D/o");
    world w = start(f, RUN);
    wait_for_steps(f, &w, 12);
    kill(w.launcher, SIGKILL);
    assert_int_equal(finish(f, &w, "the launcher killed"), 128 + SIGKILL);
}

static void test_a_rank_hangs(void **state) {
    io_fixture *f = *state;
    if (!cli_has_ranks(f, "ranks that hang"))
        skip();
    for (int r = 0; r < RANKS; r += 2) {
        cli_ok(f, "rm -rf $D/o");
        world w = start(f, RUN "--timeout 5");
        wait_for_steps(f, &w, 12);
        kill(w.rank[r], SIGSTOP);
        ends_with(f, &w, sbp_arena_printf(f->arena, "rank %d stopped", r), 3,
                  sbp_arena_printf(f->arena, "rank %d (process %d) did not answer: all", r, (int)w.rank[r]));
        assert_non_null(
            strstr(cli_text(f, "err"), sbp_arena_printf(f->arena, ": rank %d does not answer (", r)));
    }
    goes_on(f, "a rank hung");
}

/* MPI itself waits for ever. */
static void test_a_rank_hangs_at_the_start(void **state) {
    io_fixture *f = *state;
    if (!cli_has_ranks(f, "ranks that hang at the start"))
        skip();
    cli_ok(f, "rm -rf $D/o");
    world w = start(f, RUN "--timeout 5");
    kill(w.rank[0], SIGSTOP);
    ends_with(f, &w, "stopped at the start", 3, "rank 0 ");
    if (!is_named(f, &w, 0))
        fail_msg("%s", cli_text(f, "err"));
    assert_false(cli_exists(f, "o/run.json"));
}

/* ---- interruptions ---------------------------------------------------------------------------------- */

static void test_interrupted(void **state) {
    static const struct {
        int number, of; /* of: rank, -1: the launcher */
    } signals[] = {{SIGINT, -1}, {SIGTERM, -1}, {SIGTERM, 0}, {SIGINT, 2}};
    io_fixture *f = *state;
    if (!cli_has_ranks(f, "ranks that are interrupted"))
        skip();
    cli_ok(f, "rm -rf $D/o");
    for (int i = 0; i < SBP_COUNT(signals); i++) {
        world w = start(f, i ? RUN "--resume" : RUN);
        wait_for_steps(f, &w, 10 * (i + 1));
        kill(signals[i].of < 0 ? w.launcher : w.rank[signals[i].of], signals[i].number);
        ends_with(f, &w, sbp_arena_printf(f->arena, "signal %d to %d", signals[i].number, signals[i].of),
                  128 + signals[i].number, "rank 0: interrupted after ");
        if (strstr(cli_text(f, "err"), "error"))
            fail_msg("%s", cli_text(f, "err"));
    }
    goes_on(f, "interruptions");
}

/* Twice at once: nobody waits for a checkpoint. */
static void test_interrupted_twice(void **state) {
    io_fixture *f = *state;
    if (!cli_has_ranks(f, "ranks that are interrupted twice"))
        skip();
    cli_ok(f, "rm -rf $D/o");
    world w = start(f, RUN "--timeout 0");
    wait_for_steps(f, &w, 12);
    kill(w.rank[1], SIGSTOP); /* so that there is no next step */
    kill(w.launcher, SIGINT);
    nanosleep(&(struct timespec){.tv_sec = 2}, NULL);
    kill(w.launcher, SIGINT);
    assert_int_equal(finish(f, &w, "two signals"), 130);
}

/* ---- another number of ranks ------------------------------------------------------------------------ */

/* A run of three ranks goes on with two, then with one: to the numbers of one that stayed with three. */
static void test_other_numbers_of_ranks(void **state) {
    static const char steps[] =
        "--data $D/t.jsonl --batch-size 6 --lr 0.001 --schedule constant --save-every 3 ";
    io_fixture *f = *state;
    if (!cli_has_ranks(f, "runs that go on with other numbers of ranks"))
        skip();
    for (int n = 1; n <= 3; n++)
        cli_ok(f, sbp_arena_printf(
                      f->arena, "$C compile $S -o $D/n%d --seq-len 300 --threads 1 --dtype fp64 --ranks %d",
                      n, n));
    cli_ok(f, "rm -rf $D/o $D/three");
    cli_ok(f, sbp_arena_printf(f->arena, "$R $D/n3 --ranks 3 --steps 9 --out $D/three %s", steps));
    for (int n = 3; n >= 1; n--) {
        cli_ok(f, sbp_arena_printf(f->arena, "$R $D/n%d --ranks %d --steps %d --out $D/o %s --resume", n, n,
                                   12 - 3 * n, steps));
        assert_true((strstr(cli_text(f, "err"), "going on after step ") != NULL) == (n < 3));
    }
    double worst = cli_compare(f, "other numbers of ranks", io_path(f, "o/model.safetensors"),
                               io_path(f, "three/model.safetensors"), SBP_TOLERANCE_F64);
    assert_true(worst > 0); /* it was not the same run */
    print_message("  weights of 3, 2 and 1 ranks are off by %.2g\n", worst);
}

/* ---- drawn ------------------------------------------------------------------------------------------ */

typedef struct drawn_fault {
    int victim; /* rank, -1: mpirun, -2: the launcher */
    int number, status;
    bool names; /* the rank */
} drawn_fault;

static drawn_fault draw_fault(uint64_t *random) {
    static const int signals[] = {SIGKILL, SIGKILL, SIGSTOP, SIGTERM, SIGINT};
    drawn_fault d = {.victim = (int)(io_random(random) % (RANKS + 2)) - 2,
                     .number = signals[io_random(random) % SBP_COUNT(signals)]};
    if (d.victim == -1 || (d.victim == -2 && d.number == SIGSTOP))
        d.number = SIGKILL;
    bool asks = d.number == SIGTERM || d.number == SIGINT;
    d.status = asks || d.victim == -2 ? 128 + d.number : 3;
    d.names = d.victim >= 0 && !asks;
    return d;
}

/* Signals anywhere until the run comes to its end; returns how many it took. */
static int try_run(io_fixture *f, uint64_t seed) {
    uint64_t random = seed;
    int faults = 0;
    cli_ok(f, "rm -rf $D/o");
    for (int done = 0; !done; faults += !done) {
        drawn_fault d = draw_fault(&random);
        const char *what = sbp_arena_printf(f->arena, "seed %llu: signal %d to %d", (unsigned long long)seed,
                                            d.number, d.victim);
        world w = start(f, RUN "--resume --timeout 5");
        wait_for_steps(f, &w, count_steps(f) + (int)(io_random(&random) % 40));
        nanosleep(&(struct timespec){.tv_nsec = (long)(io_random(&random) % 40) * 1000000}, NULL);
        kill(d.victim == -2 ? w.launcher : d.victim == -1 ? w.mpirun : w.rank[d.victim], d.number);
        int status = finish(f, &w, what);
        done = status == 0;
        if (!done && status != d.status)
            fail_msg("%s: exit status %d: %s", what, status, cli_text(f, "err"));
        if (!done && d.names && !is_named(f, &w, d.victim))
            fail_msg("%s: it is not named: %s", what, cli_text(f, "err"));
        io_renew(f);
    }
    cli_same(f, "whole/model.safetensors", "o/model.safetensors");
    return faults;
}

static void test_drawn_faults(void **state) {
    io_fixture *f = *state;
    int wanted = testing_all() ? 100 : 4, faults = 0;
    if (!cli_has_ranks(f, "faults of ranks anywhere"))
        skip();
    for (uint64_t seed = 1; faults < wanted; seed++)
        faults += try_run(f, seed);
    print_message("  %d faults\n", faults);
}

/* ---- files ------------------------------------------------------------------------------------------ */

static void test_two_runs(void **state) {
    io_fixture *f = *state;
    if (!cli_has_ranks(f, "two runs of ranks in a directory"))
        skip();
    cli_ok(f, "rm -rf $D/o");
    world w = start(f, RUN);
    wait_for_steps(f, &w, 2);
    kill(w.rank[0], SIGSTOP); /* it stays the writer */
    cli_ok(f, "cp $D/err $D/first");
    cli_fails(f, 4, "rank 0: '", RUN "--resume");
    assert_non_null(
        strstr(cli_text(f, "err"),
               sbp_arena_printf(f->arena, "belongs to a run that is going on (process %d)", (int)w.rank[0])));
    kill(w.rank[0], SIGCONT);
    assert_int_equal(finish(f, &w, "the first of two"), 0);
    cli_same(f, "whole/model.safetensors", "o/model.safetensors");
}

/* What rank 0 cannot write ends all, with its reason. */
static void test_rank_0_cannot_write(void **state) {
    io_fixture *f = *state;
    if (!cli_has_ranks(f, "files that rank 0 cannot write"))
        skip();
    cli_fails(f, 4, "rank 0: ", "$R $D/p --ranks 3 --data $D/t.jsonl --score /dev/full --out none");
    cli_ok(f, "rm -rf $D/o $D/moved");
    world w = start(f, RUN);
    wait_for_steps(f, &w, 2);
    cli_ok(f, "cp $D/err $D/first; mv $D/o $D/moved");
    int status = finish(f, &w, "the directory is gone");
    assert_int_equal(status, 4);
    cli_ok(f, "ls $D/moved");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_rank_is_killed),
        cmocka_unit_test(test_mpirun_is_killed),
        cmocka_unit_test(test_the_launcher_is_killed),
        cmocka_unit_test(test_a_rank_hangs),
        cmocka_unit_test(test_a_rank_hangs_at_the_start),
        cmocka_unit_test(test_interrupted),
        cmocka_unit_test(test_interrupted_twice),
        cmocka_unit_test(test_other_numbers_of_ranks),
        cmocka_unit_test(test_drawn_faults),
        cmocka_unit_test(test_two_runs),
        cmocka_unit_test(test_rank_0_cannot_write),
    };
    return cmocka_run_group_tests(tests, setup, io_teardown);
}
