/* test_cli_ranks_start.c: `sbprun --ranks N`, and under mpirun: what is started, who says what, what is
 * refused before anything is computed, and that the exit status is that of the rank that failed. */
#include "tests/cli/ranks_testing.h"

static int setup(void **state) {
    if (cli_setup(state) != 0)
        return -1;
    io_fixture *f = *state;
    cli_ok(f, "head -24 $G/stories260k_trl/train.jsonl >$D/t.jsonl; tail -5 $G/stories260k_trl/train.jsonl "
              ">$D/e.jsonl");
    if (cli_has_ranks(f, NULL))
        cli_ok(f, "$C compile $S -o $D/p1 --seq-len 300 --threads 1; "
                  "$C compile $S -o $D/p2 --seq-len 300 --threads 1 --ranks 2; "
                  "$C compile $S -o $D/p3 --seq-len 300 --threads 1 --ranks 3");
    return 0;
}

/* ---- starting --------------------------------------------------------------------------------------- */

static void test_started_here(void **state) {
    io_fixture *f = *state;
    if (!cli_has_ranks(f, "ranks on this host"))
        skip();
    cli_ok(
        f,
        "rm -rf $D/o; $R $D/p3 --ranks 3 --data $D/t.jsonl --batch-size 6 --steps 3 --eval $D/e.jsonl --json "
        "--out $D/o >$D/summary 2>$D/messages");
    (void)cli_json(f, "summary"); /* of one rank */
    const char *text = sbp_arena_strdup(f->arena, cli_text(f, "messages"));
    const char *world = strstr(text, "rank 0: one of 3 ranks over MPI (");
    assert_non_null(world);
    assert_non_null(strstr(world, "), all on this host: --ranks 3 started them\n"));
    assert_null(strstr(strchr(world, '\n'), "one of 3 ranks")); /* once */
    cli_ok(f, "grep -vE '^step |^\\+ |^sbprun: [a-z]+: rank 0: ' $D/messages || true");
    if (*cli_text(f, "out"))
        fail_msg("not by rank 0: %s", cli_text(f, "out"));
    int count;
    cli_lines(f, "o/metrics.jsonl", &count);
    assert_int_equal(count, 5); /* three steps, two evaluations */
    const sbp_json *ranks = sbp_json_member(cli_json(f, "o/run.json"), "ranks");
    assert_int_equal((int)cli_number(f, ranks, "count"), 3);
    assert_int_equal((int)cli_number(f, sbp_json_member(cli_json(f, "o/run.json"), "device"), "threads"),
                     threads_of_each(3));
    cli_ok(f, "test -z \"$(ls -A $D/o | grep -E '^\\.|tmp$')\"");
}

static void test_joined(void **state) {
    io_fixture *f = *state;
    if (!cli_has_ranks(f, "ranks under mpirun"))
        skip();
    cli_ok(f, "$M -n 2 $R $D/p2 --data $D/t.jsonl --steps 1 --out none");
    assert_non_null(strstr(cli_text(f, "err"), "rank 0: one of 2 ranks over MPI ("));
    assert_non_null(strstr(cli_text(f, "err"), "OMPI_COMM_WORLD_SIZE is 2\n"));
    cli_ok(f, "$M -n 2 $R --version >$D/version");
    cli_ok(f, "test $(wc -l <$D/version) = 1"); /* said once */
    cli_fails(f, 2, "rank 0: --ranks 3, but this process was started as one of 2 (OMPI_COMM_WORLD_SIZE is 2)",
              "$M -n 2 $R $D/p3 --ranks 3 --data $D/t.jsonl --out none");
}

/* A model: one of them compiles it, for all. */
static void test_a_model(void **state) {
    io_fixture *f = *state;
    if (!cli_has_ranks(f, "ranks of a model"))
        skip();
    cli_ok(f, "rm -rf $D/o; $R $S --ranks 2 --data $D/t.jsonl --batch-size 4 --steps 2 --verbose --out $D/o");
    const char *text = sbp_arena_strdup(f->arena, cli_text(f, "err"));
    assert_non_null(strstr(text, "/sbpc compile "));
    assert_non_null(strstr(text, "--ranks=2"));
    assert_null(strstr(strstr(text, "/sbpc compile ") + 1, "/sbpc compile "));
    assert_true(cli_exists(f, "o/plan.bin"));
    cli_ok(f, "$R $S --out $D/o --resume --steps 4"); /* as many again */
    assert_non_null(strstr(cli_text(f, "err"), "one of 2 ranks"));
    assert_non_null(strstr(cli_text(f, "err"), "going on after step 2"));
    cli_fails(f, 1, "rank 0: ", "$R $D/t.jsonl --ranks 2 --data $D/t.jsonl --out $D/x");
    assert_false(cli_exists(f, "x"));
}

/* ---- statuses --------------------------------------------------------------------------------------- */

/* The message is there once. */
static void fails_once(io_fixture *f, int status, const char *message, const char *command) {
    cli_fails(f, status, message, command);
    const char *text = sbp_arena_strdup(f->arena, cli_text(f, "err"));
    if (strstr(strstr(text, message) + 1, message))
        fail_msg("%s: said more than once: %s", command, text);
}

static void test_statuses(void **state) {
    io_fixture *f = *state;
    if (!cli_has_ranks(f, "exit statuses of ranks"))
        skip();
    cli_put(f, "bad.jsonl", "{\"text\": 5}\n");
    fails_once(f, 1, "bad.jsonl:1: text: expected a string",
               "$R $D/p2 --ranks 2 --data $D/bad.jsonl --out none");
    fails_once(f, 2, "unknown option '--bogus'", "$R $D/p2 --ranks 2 --data $D/t.jsonl --bogus");
    fails_once(f, 2, "rank 0: --data -: with several ranks, standard input must be the only --data",
               "$R $D/p2 --ranks 2 --data - --data $D/t.jsonl --out none");
    /* one would find room */
    cli_ok(f, "$C compile $S -o $D/large --seq-len 30000 --backward standard --threads 1 --ranks 2");
    fails_once(f, 3, "for each of the 2 ranks on this host: ",
               "(ulimit -v 1200000; $R $D/large --ranks 2 --data $D/t.jsonl --out none)");
    fails_once(f, 4, "rank 0: cannot read ", "$R $D/p2 --ranks 2 --data $D/none.jsonl --out none");
    fails_once(f, 4, "rank 0: cannot create the directory ",
               "$R $D/p2 --ranks 2 --data $D/t.jsonl --out /proc/none");
    cli_ok(f, "$C compile $S -o $D/free --seq-len 300 --threads 1 --ranks 2 --clip none");
    fails_once(f, 5, ": training ends",
               "$R $D/free --ranks 2 --data $D/t.jsonl --lr 1 --weight-decay 1e6 --schedule constant "
               "--steps 40 --shuffle off --out none");
    cli_ok(f, "rm -rf $D/o; $R $D/p2 --ranks 2 --data $D/t.jsonl --steps 1 --out $D/o");
    fails_once(f, 2, "holds checkpoints of another run",
               "$R $D/p2 --ranks 2 --data $D/t.jsonl --steps 1 --out $D/o");
}

static void test_the_number_is_the_plans(void **state) {
    io_fixture *f = *state;
    if (!cli_has_ranks(f, "plans for other numbers of ranks"))
        skip();
    static const char *const others[][2] = {
        {"$R $D/p3 --data $D/t.jsonl",
         "was compiled for 3 ranks, this is one: start it with --ranks 3 (on this host) or "
         "mpirun -n 3, or compile it with --ranks 1"},
        {"$R $D/p3 --ranks 2 --data $D/t.jsonl",
         "was compiled for 3 ranks, this run has 2: compile it with --ranks 2"},
        {"$R $D/p1 --ranks 2 --data $D/t.jsonl",
         "was compiled for 1 rank, this run has 2: compile it with --ranks 2"},
        {"$M -n 2 $R $D/p3 --data $D/t.jsonl",
         "rank 0: '$D/p3' was compiled for 3 ranks, this run has 2: compile it with --ranks 2"},
        {"$R $D/p3 --ranks 2 --data $D/t.jsonl --dry-run", "was compiled for 3 ranks, this run has 2"}};
    cli_ok(f, "rm -rf $D/o");
    for (int i = 0; i < SBP_COUNT(others); i++) {
        const char *message = others[i][1], *name = strstr(message, "$D");
        if (name)
            message = sbp_arena_printf(f->arena, "%.*s%s%s", (int)(name - message), message, f->directory,
                                       name + 2);
        fails_once(f, 2, message, sbp_arena_printf(f->arena, "%s --out $D/o", others[i][0]));
        assert_false(cli_exists(f, "o"));
    }
    cli_ok(f, "$R $D/p3 --ranks 3 --data $D/t.jsonl --dry-run");
    assert_non_null(strstr(cli_text(f, "out"), " planned for each rank, "));
}

/* What one of several ranks takes more than a process alone is planned. */
static void test_memory_of_a_rank(void **state) {
    io_fixture *f = *state;
    double planned[3], measured[3];
    if (!cli_has_ranks(f, "planned against measured memory of ranks"))
        skip();
    for (int i = 0; i < 3; i++) {
        cli_ok(f, sbp_arena_printf(
                      f->arena,
                      "$R $D/p%d --ranks %d --data $D/t.jsonl --batch-size 8 --threads 1 --json --out none",
                      i + 1, i + 1));
        planned[i] = cli_number(f, cli_json(f, "out"), "peak_bytes_planned") - (i ? planned[0] : 0);
        measured[i] = cli_number(f, cli_json(f, "out"), "peak_bytes_measured") - (i ? measured[0] : 0);
        if (i > 0)
            print_message("  %d ranks: %.2f MiB more planned, %.2f measured\n", i + 1, planned[i] / (1 << 20),
                          measured[i] / (1 << 20));
        assert_true(i == 0 || fabs(planned[i] - measured[i]) < SBP_TOLERANCE_PROCESS_BYTES);
    }
    assert_true(planned[1] > 4.0 * SBP_TOLERANCE_PROCESS_BYTES); /* or nothing was seen */
}

/* What is installed starts ranks from where it lies, and its doctor says so. */
static void test_installed(void **state) {
    io_fixture *f = *state;
    if (!cli_has_ranks(f, "ranks of what is installed"))
        skip();
    cli_ok(f, "cmake --install " SBP_BINARIES " --prefix $D/installed >$D/installing");
    assert_true(cli_exists(f, "installed/lib/streambp/libsbp_mpi.so"));
    cli_ok(f, "$D/installed/bin/sbprun doctor | grep -E '^ok +MPI +--ranks N starts .*/mpirun$'");
    cli_ok(f,
           "$D/installed/bin/sbprun $D/p2 --ranks 2 --data $D/t.jsonl --batch-size 2 --steps 1 --out none");
    assert_non_null(strstr(cli_text(f, "err"), "--ranks 2 started them"));
    cli_ok(f, "echo no library >$D/installed/lib/streambp/libsbp_mpi.so");
    cli_ok(f,
           "$D/installed/bin/sbprun doctor | grep -E '^none +MPI +--ranks N, but .*/libsbp_mpi.so. cannot be "
           "opened: .* .Debian: openmpi-bin.$'");
}

/* Without MPI: said before anything is started. */
static void test_without_mpi(void **state) {
    io_fixture *f = *state;
    if (!cli_has_ranks(f, "what is said without MPI"))
        skip();
    cli_fails(f, 3, "--ranks 2, but no mpirun was found where PATH says (Debian: openmpi-bin)",
              "PATH=/nonexistent $R $D/p2 --ranks 2 --data $D/t.jsonl --out none");
    cli_ok(f, "mkdir -p $D/bin; cp $R $D/bin/sbprun");
    cli_fails(f, 3, "--ranks 2, but this sbprun was built without MPI (libsbp_mpi.so is neither beside it,",
              "$D/bin/sbprun $D/p2 --ranks 2 --data $D/t.jsonl --out none");
    assert_non_null(strstr(cli_text(f, "err"), "(Debian: libopenmpi-dev, openmpi-bin) and build it again"));
    cli_ok(f,
           "$D/bin/sbprun doctor | grep -E '^none +MPI +--ranks N, but this sbprun was built without MPI'");
    cli_ok(f, "PATH=/nonexistent $R doctor | grep -E '^none +MPI +--ranks N, but no mpirun was found'");
}

/* Ranks that do not see the same files say so. */
static void test_what_all_must_see(void **state) {
    io_fixture *f = *state;
    if (!cli_has_ranks(f, "ranks that see other files"))
        skip();
    cli_ok(
        f,
        "mkdir -p $D/a $D/b; cp $D/t.jsonl $D/a/d; cp $D/e.jsonl $D/b/d; cp $D/p2 $D/a/p; cp $D/p2 $D/b/p; "
        "cp $D/p3 $D/b/q");
    cli_fails(f, 1, "rank 1 has other data than rank 0",
              "$M -n 1 --wdir $D/a $R p --data d --out none : -n 1 --wdir $D/b $R p --data d --out none");
    cli_ok(f, "cp $D/a/d $D/b/d; $M -n 2 --wdir $D/a $R p --data d --steps 1 --out o");
    cli_fails(f, 4, "rank 1: what rank 0 wrote in 'o' is not there for this rank",
              "cp -r $D/a/o $D/b/o; $M -n 1 --wdir $D/a $R p --data d --out o --resume --steps 2 : "
              "-n 1 --wdir $D/b $R p --data d --out o --resume --steps 2");
    cli_ok(f, "test -z \"$(ls -A $D/a/o | grep tmp)\"");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_started_here),      cmocka_unit_test(test_joined),
        cmocka_unit_test(test_a_model),           cmocka_unit_test(test_installed),
        cmocka_unit_test(test_statuses),          cmocka_unit_test(test_the_number_is_the_plans),
        cmocka_unit_test(test_memory_of_a_rank),  cmocka_unit_test(test_without_mpi),
        cmocka_unit_test(test_what_all_must_see),
    };
    return cmocka_run_group_tests(tests, setup, io_teardown);
}
