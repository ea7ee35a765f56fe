/* test_cli_ranks_hosts.c: ranks on two hosts, which two_hosts.sh makes of this machine, joined by Open MPI
 * over their network: the numbers of one rank; threads and memory are those of a host; ranks, mpirun, a host
 * and the network between hosts fail, and all ends in time, whoever it was is named, and the run goes on to
 * the bits of one that nobody disturbed; what another host does not see is said. */
#include "tests/cli/ranks_testing.h"
#include "tests/common/sweep.h"

#define RUN                                                                                                  \
    "$R $D/p --data $D/t.jsonl --batch-size 6 --lr 0.001 --schedule constant --steps 60 --save-every 10 "    \
    "--keep 2 --timeout 3 "                                                                                  \
    "--out $D/o "

enum { LIMIT_SECONDS = 30 };

static bool have_hosts;

/* $H is two_hosts.sh, $D/h its directory, $T mpirun on sbpa, $N its four ranks. */
static int setup(void **state) {
    if (cli_setup(state) != 0)
        return -1;
    io_fixture *f = *state;
    if (!cli_has_ranks(f, "ranks on two hosts"))
        return 0;
    setenv("H", "tests/cli/two_hosts.sh", 1);
    setenv("OWNER", sbp_arena_printf(f->arena, "%ld", (long)getpid()), 1);
    setenv(
        "T",
        sbp_arena_printf(f->arena,
                         "$H on $D/h sbpa %s --mca orte_base_help_aggregate 0 --hostfile $D/h/hostfile --mca "
                         "plm_rsh_agent \"$(realpath $H) rsh $D/h\"",
                         getenv("M")),
        1);
    int status = cli(f, "mkdir $D/h; $H begin $D/h $OWNER $D $PWD " SBP_BINARIES);
    if (status == 77) {
        print_message("skipped: ranks on two hosts: %s", cli_text(f, "out"));
        return 0;
    }
    if (status != 0)
        fail_msg("no hosts: %d: %s", status, cli_text(f, "err"));
    have_hosts = true;
    cli_ok(f, "head -24 $G/stories260k_trl/train.jsonl >$D/t.jsonl; "
              "$C compile $S -o $D/p --seq-len 300 --threads 1 --ranks 4; eval $T -n 4 " RUN
              "; mv $D/o $D/whole");
    return 0;
}

static int teardown(void **state) {
    io_fixture *f = *state;
    if (have_hosts)
        (void)cli(f, "$H end $D/h");
    return io_teardown(state);
}

/* In a file of messages. */
static void says(io_fixture *f, const char *name, const char *message) {
    const char *text = sbp_arena_strdup(f->arena, cli_text(f, name));
    if (!strstr(text, message))
        fail_msg("no '%s': %s", message, text);
}

/* ---- numbers ---------------------------------------------------------------------------------------- */

/* Expects in run.json the threads of rank 0, and how many ranks are on its host. */
static void runs_with(io_fixture *f, int threads, int ranks) {
    const sbp_json *root = cli_json(f, "o/run.json");
    assert_int_equal((int)cli_number(f, sbp_json_member(root, "device"), "threads"), threads);
    assert_int_equal((int)cli_number(f, sbp_json_member(root, "ranks"), "on_this_host"), ranks);
}

static void test_numbers(void **state) {
    static const struct {
        const char *start;
        int ranks, here, zero;
        bool orderly;
    } cases[] = {{"-n 4", 4, 2, 0, true},
                 {"-n 3", 3, 2, 3, false},
                 {"-n 2 --map-by node", 2, 1, 2, true},
                 {"-n 4 --map-by node", 4, 2, 1, false}};
    static const char run[] = "--data $D/t.jsonl --batch-size 6 --lr 0.001 --steps 4 --out $D/";
    io_fixture *f = *state;
    double worst = 0;
    if (!have_hosts)
        skip();
    cli_ok(f, sbp_arena_printf(f->arena,
                               "$C compile $S -o $D/q --seq-len 300 --threads 1 --dtype fp64; $R $D/q %sone",
                               run));
    const char *want = sbp_arena_strdup(f->arena, io_path(f, "one/model.safetensors"));
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        cli_ok(f,
               sbp_arena_printf(f->arena,
                                "rm -rf $D/o; $C compile $S -o $D/q --seq-len 300 --threads 1 --dtype fp64 "
                                "--ranks %d --zero %d; eval $T %s $R $D/q %so",
                                cases[i].ranks, cases[i].zero, cases[i].start, run));
        says(f, "err", sbp_arena_printf(f->arena, ", %d of them on this host: ", cases[i].here));
        assert_int_equal(strstr(cli_text(f, "err"), "consecutive ranks (") == NULL, cases[i].orderly);
        runs_with(f, threads_of_each(cases[i].here), cases[i].here);
        double off =
            cli_compare(f, cases[i].start, io_path(f, "o/model.safetensors"), want, SBP_TOLERANCE_F64);
        worst = off > worst ? off : worst;
    }
    print_message("  weights are off by %.2g\n", worst);
}

/* Sums of hosts before those of all: the bits of four ranks on one. */
static void test_bits_are_those_of_one_host(void **state) {
    io_fixture *f = *state;
    if (!have_hosts)
        skip();
    cli_ok(f, "$M -n 4 " RUN "--out $D/here");
    cli_same(f, "here/model.safetensors", "whole/model.safetensors");
}

/* Two ranks on sbpb, which has room for one such; sbpa has one. */
static void test_memory_is_of_a_host(void **state) {
    io_fixture *f = *state;
    if (!have_hosts)
        skip();
    cli_ok(f, "cp $D/h/hostfile $D/hostfile; printf 'sbpa slots=1\nsbpb slots=2\n' >$D/h/hostfile; "
              "$C compile $S -o $D/large --seq-len 30000 --backward standard --threads 1 --ranks 3");
    cli_fails(f, 3, "for each of the 2 ranks on this host: ",
              "eval $T -n 3 sh -c '\"ulimit -v 1200000; exec $R $D/large --data "
              "$D/t.jsonl --out none\"'");
    bool first = strstr(cli_text(f, "err"), "rank 0: '"), second = strstr(cli_text(f, "err"), "rank 1: '");
    if (first || !second)
        fail_msg("%s", cli_text(f, "err"));
    cli_ok(f, "cp $D/hostfile $D/h/hostfile");
}

/* ---- files ------------------------------------------------------------------------------------------ */

static void test_what_another_host_does_not_see(void **state) {
    io_fixture *f = *state;
    if (!have_hosts || !testing_all()) /* these wait */
        skip();
    cli_ok(f, "eval $T -n 4 $R $D/p --data $D/t.jsonl --steps 4 --out $D/h/own/o");
    cli_ok(f, "$H on $D/h sbpa test -e $D/h/own/o/model.safetensors; ! $H on $D/h sbpb test -e $D/h/own/o");
    static const char *const others[][2] = {
        {"$D/p --data $D/t.jsonl --steps 6 --out $D/h/own/o --resume", "rank 2: what rank 0 wrote in '"},
        {"$S --data $D/t.jsonl --steps 2 --out none",
         "', which is not there for this rank: give --out DIR on a file system"},
        {"$S --data $D/t.jsonl --steps 2 --out $D/h/own/x",
         "', which is not there for this rank: give --out DIR on a file system"},
        {"$D/away --data $D/t.jsonl --out $D/h/own/y", "No such file or directory (--offload-dir)"},
        {"$D/p --data $D/h/own/t --out none", "rank 2: cannot read '"}};
    cli_ok(f, "$C compile $S -o $D/away --seq-len 300 --threads 1 --ranks 4 --offload states:disk; "
              "$H on $D/h sbpa cp $D/t.jsonl $D/h/own/t");
    for (int i = 0; i < SBP_COUNT(others); i++)
        cli_fails(f, 4, others[i][1], sbp_arena_printf(f->arena, "eval $T -n 4 $R %s", others[i][0]));
    cli_ok(f, "eval $T -n 4 $R $D/away --data $D/t.jsonl --steps 2 --out $D/h/own/z --offload-dir /tmp");
}

/* ---- faults ----------------------------------------------------------------------------------------- */

/* After some steps of RUN something happens; returns the exit status of what started it, whose end must come
 * in time and with everything. `after`: what happens then. */
static int fails_by(io_fixture *f, const char *what, const char *happens, const char *after) {
    cli_ok(f, sbp_arena_printf(
                  f->arena,
                  "rm -rf $D/o; eval exec $T $N " RUN "--steps 100000 >$D/o.out 2>$D/o.err & pid=$!\n"
                  "for wait in $(seq 600); do test \"$(cat $D/o/metrics.jsonl 2>/dev/null | wc -l)\" -ge "
                  "12 && break; sleep 0.05; done\n"
                  "%s\nbegin=$(date +%%s); (sleep 60; kill -9 $pid) & late=$!\n"
                  "wait $pid; status=$?; took=$(($(date +%%s) - begin)); kill $late\n"
                  "%s\nfor wait in $(seq 300); do left=$($H left $D/h); test -z \"$left\" && break; "
                  "sleep 0.1; done\n"
                  "echo $status $took >$D/result; test -z \"$left\"",
                  happens, after));
    int status = -1, seconds = -1;
    if (sscanf(cli_text(f, "result"), "%d %d", &status, &seconds) != 2 || seconds > LIMIT_SECONDS)
        fail_msg("%s: %d s: %s", what, seconds, cli_text(f, "o.err"));
    print_message("  %s: exit status %d after %d s\n", what, status, seconds);
    return status;
}

/* On from the last checkpoint to the same bits. */
static void goes_on(io_fixture *f, const char *what) {
    cli_ok(f, "eval $T $N " RUN "--resume");
    if (!strstr(cli_text(f, "err"), "going on after step "))
        fail_msg("%s: it begins again: %s", what, cli_text(f, "err"));
    cli_same(f, "whole/model.safetensors", "o/model.safetensors");
}

static void test_a_rank_is_killed(void **state) {
    io_fixture *f = *state;
    if (!have_hosts)
        skip();
    assert_true(fails_by(f, "rank 3 killed", "kill -9 $($H rank $D/h 3)", ":") != 0);
    says(f, "o.err", "process rank 3 with PID ");
    says(f, "o.err", " on node sbpb exited on signal 9");
    goes_on(f, "rank 3 was killed");
}

/* Without the processes of ranks, nothing stays: the daemon on sbpb ends them. */
static void test_mpirun_is_killed(void **state) {
    io_fixture *f = *state;
    if (!have_hosts)
        skip();
    assert_int_equal(fails_by(f, "mpirun killed", "kill -9 $pid", ":"), 137);
    goes_on(f, "mpirun was killed");
}

/* Ranks on the other host give up and say so; mpirun, which would wait for ever, is ended. The host that
 * comes back finds that nobody is there. */
static void test_a_host_hangs(void **state) {
    io_fixture *f = *state;
    if (!have_hosts || !testing_all()) /* these wait */
        skip();
    assert_true(fails_by(f, "sbpb hangs", "$H signal $D/h sbpb STOP", "$H signal $D/h sbpb CONT") != 0);
    says(f, "o.err", "sbprun: error: rank 0: rank ");
    says(f, "o.err", " does not answer (");
    goes_on(f, "a host hung");
}

static void test_the_network_breaks(void **state) {
    io_fixture *f = *state;
    if (!have_hosts || !testing_all())
        skip();
    assert_true(fails_by(f, "no network", "$H cable $D/h down", ":") != 0);
    says(f, "o.err", " does not answer (");
    cli_ok(f, "$H cable $D/h up");
    goes_on(f, "the network broke");
}

/* ---- Slurm ------------------------------------------------------------------------------------------ */

/* $T is srun, from here on. */
static bool have_slurm(io_fixture *f) {
    if (!have_hosts || !testing_all())
        return false;
    int status = cli(f, "tests/cli/slurm.sh begin $D/s $D/h");
    if (status == 77)
        print_message("skipped: ranks under Slurm: %s", cli_text(f, "out"));
    else if (status != 0)
        fail_msg("no Slurm: %s%s", cli_text(f, "out"), cli_text(f, "err"));
    setenv("SLURM_CONF", io_path(f, "s/slurm.conf"), 1);
    setenv("A", "$H on $D/h sbpa", 1);
    setenv("T", "$H on $D/h sbpa srun --mpi=pmix", 1);
    setenv("N", "-n 4 -N 2 --ntasks-per-node=2", 1);
    return status == 0;
}

static void check_slurm(io_fixture *f) {
    cli_ok(f, "rm -rf $D/o; eval $T $N " RUN);
    says(f, "err", ", 2 of them on this host: SLURM_NTASKS is 4\n");
    cli_same(f, "whole/model.safetensors", "o/model.safetensors");
    runs_with(f, threads_of_each(2), 2);
    cli_ok(f, "eval $A salloc $N $R $D/p --ranks 4 --data $D/t.jsonl --steps 2 --out none");
    says(f, "err", ", all on this host: --ranks 4 started them\n");
    says(f, "err", "--ranks 4: all on this host, of the 2 that Slurm gave");
    cli_fails(f, 2, "one of 4 Slurm tasks, without MPI: it runs alone (srun --mpi=pmix starts ranks)",
              "eval $A srun $N $R $D/p --data $D/t.jsonl --steps 2 --out none");

    assert_int_equal(fails_by(f, "Slurm: rank 3 killed", "kill -9 $($H rank $D/h 3)", ":"), 137);
    says(f, "o.err", "srun: error: sbpb: task 3: Killed");
    goes_on(f, "rank 3 was killed");
    assert_int_equal(fails_by(f, "Slurm: scancel", "eval $A scancel -u root", ":"), 143);
    says(f, "o.err", "sbprun: note: rank 0: interrupted after ");
    goes_on(f, "scancel");
    assert_true(fails_by(f, "Slurm: sbpb hangs", "$H signal $D/h sbpb STOP", "$H signal $D/h sbpb CONT") !=
                0);
    says(f, "o.err", "sbprun: error: rank 0: rank ");
}

static void test_slurm(void **state) {
    io_fixture *f = *state;
    if (!have_slurm(f))
        skip();
    check_slurm(f);
}

static int end_slurm(void **state) {
    io_fixture *f = *state;
    return have_hosts ? cli(f, "tests/cli/slurm.sh end $D/s") : 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_bits_are_those_of_one_host),
        cmocka_unit_test(test_memory_is_of_a_host),
        cmocka_unit_test(test_what_another_host_does_not_see),
        cmocka_unit_test(test_a_rank_is_killed),
        cmocka_unit_test(test_mpirun_is_killed),
        cmocka_unit_test(test_a_host_hangs),
        cmocka_unit_test(test_the_network_breaks),
        cmocka_unit_test_teardown(test_slurm, end_slurm),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
