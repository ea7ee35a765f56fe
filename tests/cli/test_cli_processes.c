/* Two processes over one directory, each with a signal before a drawn call: however they end and whoever is
 * first, there is one writer at a time, and in the end the bits are those of a run that nobody disturbed. */
#include "tests/cli/cli_testing.h"
#include "tests/common/sweep.h"

#include <time.h>

#define AT "env LD_PRELOAD=" SBP_SIGNAL_AT " "
#define SETTINGS                                                                                             \
    "--data $D/t.jsonl --batch-size 2 --lr 0.001 --warmup 2 --steps 9 --eval $D/e.jsonl --eval-every 4 "

/* ---- drawing ---------------------------------------------------------------------------------------- */

/* One of the words, separated by '|'. */
static const char *pick(io_fixture *f, uint64_t *random, const char *words) {
    int count = 1;
    for (const char *c = words; *c; c++)
        count += *c == '|';
    for (uint32_t at = io_random(random) % (uint32_t)count; at > 0; at--)
        words = strchr(words, '|') + 1;
    return sbp_arena_strndup(f->arena, words, strcspn(words, "|"));
}

/* A process with a signal: in a step, or before any call that changes a file; sometimes without. */
static const char *draw_process(io_fixture *f, uint64_t *random, const char *signals, const char *command) {
    const char *signal = pick(f, random, signals),
               *call = pick(f, random, "fflush|fflush|any|any|rename|fsync|unlink");
    bool step = strcmp(call, "fflush") == 0;
    int n = 1 + (int)(io_random(random) % (step ? 7U : strcmp(call, "any") == 0 ? 80U : 12U));
    if (strcmp(signal, "none") == 0)
        return sbp_arena_printf(f->arena, AT "SBP_CALLS=$D/calls %s", command);
    return sbp_arena_printf(f->arena, AT "SBP_CALLS=$D/calls SBP_AT=%s@%s:%d:%s %s", signal, call, n,
                            step ? "metrics" : "/o", command);
}

/* ---- what must hold --------------------------------------------------------------------------------- */

/* Calls that change something in $D/o other than the lock: a process that came after another never finds that
 * one writing again. Returns how many processes wrote. */
static int check_writers(io_fixture *f, const char *what) {
    const char *prefix = sbp_arena_printf(f->arena, "%s/o/", f->directory);
    long done[400], writer = 0;
    int count = 0;
    char *text = sbp_arena_strdup(f->arena, cli_text(f, "calls"));
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        char call[20], path[600];
        long pid;
        if (sscanf(line, "%ld %19s %599s", &pid, call, path) != 3)
            fail_msg("%s: '%s'", what, line);
        if (strncmp(path, prefix, strlen(prefix)) != 0 || strcmp(path + strlen(prefix), ".lock") == 0 ||
            pid == writer)
            continue;
        for (int i = 0; i < count; i++)
            if (done[i] == pid)
                fail_msg("%s: process %ld writes although %ld does: %s\n%s", what, pid, writer, line,
                         cli_text(f, "calls"));
        assert_true(count < SBP_COUNT(done));
        done[count++] = pid;
        writer = pid;
    }
    return count;
}

/* Same lines, but for what is timed. */
static void check_metrics(io_fixture *f, const char *what) {
    static const char *const keys[] = {"step",      "epoch",         "num_tokens", "loss",
                                       "grad_norm", "learning_rate", "eval_loss"};
    int n, m;
    const sbp_json **x = cli_lines(f, "whole/metrics.jsonl", &n), **y = cli_lines(f, "o/metrics.jsonl", &m);
    if (n != m)
        fail_msg("%s: %d lines of metrics, expected %d", what, m, n);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < SBP_COUNT(keys); k++) {
            const sbp_json *a = sbp_json_member(x[i], keys[k]);
            if (!a != !sbp_json_member(y[i], keys[k]) ||
                (a && cli_number(f, x[i], keys[k]) != cli_number(f, y[i], keys[k])))
                fail_msg("%s: line %d: '%s' differs", what, i + 1, keys[k]);
        }
}

typedef struct tally {
    int trials, models, processes, refused, killed, stopped, writers;
} tally;

/* With --save-every never, a run that came to its end has nothing to go on from. */
static bool is_complete(io_fixture *f, int status, const char *errors) {
    return status == 2 && strstr(cli_text(f, errors), "holds a model and no checkpoint to go on from");
}

/* Exit status of a process: done, by its signal, or refused because of the other. True when the run is done.
 */
static bool count_status(io_fixture *f, const char *what, int status, const char *errors, tally *t) {
    t->processes++;
    if (status == 0 || is_complete(f, status, errors))
        return true;
    if (status == 137)
        t->killed++;
    else if (status == 143 || status == 130)
        t->stopped++;
    else if (status == 4 && strstr(cli_text(f, errors), "belongs to a run that is going on"))
        t->refused++;
    else
        fail_msg("%s: status %d: %s", what, status, cli_text(f, errors));
    return false;
}

/* Two processes at once, or the second while the first is stopped in the middle. True when one came to the
 * end. */
static bool run_two(io_fixture *f, const char *what, const char *a, const char *b, bool stop, tally *t) {
    int x = -1, y = -1;
    cli_ok(f,
           sbp_arena_printf(
               f->arena,
               stop ? "%s 2>$D/ea & P=$!; while grep -q '^State:.[RSD]' /proc/$P/status 2>/dev/null; do "
                      "sleep 0.01; "
                      "done; %s 2>$D/eb; y=$?; kill -CONT $P 2>/dev/null; wait $P; echo $? $y >$D/status"
                    : "%s 2>$D/ea & P=$!; %s 2>$D/eb & Q=$!; wait $P; x=$?; wait $Q; echo $x $? >$D/status",
               a, b));
    assert_int_equal(sscanf(cli_text(f, "status"), "%d %d", &x, &y), 2);
    bool first = count_status(f, what, x, "ea", t), second = count_status(f, what, y, "eb", t);
    return first || second;
}

/* Rounds of two processes until one comes to the end; after ten without signals. */
static void try_directory(io_fixture *f, uint64_t seed, tally *t) {
    uint64_t random = seed;
    bool done = false, model = io_random(&random) % 4 == 0;
    int keep_most = 0;
    const char *keep = pick(f, &random, "1|2|all");
    const char *command =
        sbp_arena_printf(f->arena, "$R %s " SETTINGS "--out $D/o --resume --save-every %s --keep %s",
                         model ? "$S --seq-len 300 --memory 1GiB --threads 2" : "$D/p",
                         pick(f, &random, "1|2|3|5|never"), keep);
    const char *what = sbp_arena_printf(f->arena, "seed %llu: %s", (unsigned long long)seed, command);
    cli_ok(f, "rm -rf $D/o; : >$D/calls");
    for (int round = 0; !done; round++) {
        bool stop = round < 10 && io_random(&random) % 3 == 0;
        const char *signals = round < 10 ? "KILL|KILL|KILL|TERM|INT|TERM|INT|none" : "none";
        const char *a = draw_process(f, &random, stop ? "STOP" : signals, command),
                   *b = draw_process(f, &random, signals, command);
        assert_true(round < 14);
        done = run_two(f, what, a, b, stop, t);
    }
    t->trials++;
    t->models += model;
    t->writers += check_writers(f, what);
    int status = cli(f, command); /* goes on from the end: what a killed one left goes */
    if (status != 0 && !is_complete(f, status, "err"))
        fail_msg("%s: status %d: %s", what, status, cli_text(f, "err"));
    if (cli(f, "cmp $D/whole/model.safetensors $D/o/model.safetensors") != 0)
        fail_msg("%s: another model", what);
    check_metrics(f, what);
    cli_ok(f, "ls -A $D/o | grep -E '^\\.|tmp$' || true");
    if (status == 0 && *cli_text(f, "out"))
        fail_msg("%s: left %s", what, cli_text(f, "out"));
    cli_ok(f, "ls -d $D/o/checkpoint-* 2>/dev/null | wc -l");
    keep_most = strcmp(keep, "all") == 0 ? 9 : atoi(keep);
    if (atoi(cli_text(f, "out")) > keep_most)
        fail_msg("%s: %s checkpoints", what, cli_text(f, "out"));
    io_renew(f);
}

static bool has_seen_all(const tally *t) {
    return t->trials >= 5 && t->models > 0 && t->killed > 3 && t->stopped > 3 && t->refused > 1 &&
           t->writers > 2 * t->trials;
}

static void test_two_processes(void **state) {
    io_fixture *f = *state;
    bool more = testing_all();
    tally t = {0};
    cli_ok(f, "$C compile $S -o $D/p --seq-len 300 --memory 1GiB; head -24 $G/stories260k_trl/train.jsonl "
              ">$D/t.jsonl; "
              "tail -5 $G/stories260k_trl/train.jsonl >$D/e.jsonl; "
              "$R $D/p " SETTINGS "--out $D/whole --save-every never");
    /* a number of them, and until each kind of end was seen */
    for (uint64_t seed = 1; seed <= (more ? 2000 : 60) && (!has_seen_all(&t) || seed <= (more ? 500 : 10));
         seed++)
        try_directory(f, seed, &t);
    print_message("%d directories, %d by models; %d processes: %d killed, %d stopped by signals, %d refused; "
                  "%d wrote\n",
                  t.trials, t.models, t.processes, t.killed, t.stopped, t.refused, t.writers);
    assert_true(has_seen_all(&t));
}

/* One process, killed before each of its calls in turn (of some of them, by default), and resumed: the bits
 * of a run with everything on the device that nobody disturbed. */
static void kill_before_every_call(io_fixture *f, const char *placement, int some) {
    bool more = testing_all();
    static const char run[] = "$R $D/p " SETTINGS "--save-every 4 --keep 1 --resume --out $D/o";
    int killed = 0;
    cli_ok(f, "$C compile $S -o $D/p --seq-len 300; head -24 $G/stories260k_trl/train.jsonl >$D/t.jsonl; "
              "tail -5 $G/stories260k_trl/train.jsonl >$D/e.jsonl; "
              "$R $D/p " SETTINGS "--out $D/whole --save-every never");
    cli_ok(f, sbp_arena_printf(f->arena, "$C compile $S -o $D/p --seq-len 300 --offload %s", placement));
    cli_ok(f, sbp_arena_printf(f->arena, AT "SBP_CALLS=$D/calls %s; grep -c /o $D/calls", run));
    int calls = atoi(cli_text(f, "out"));
    assert_true(calls > 60);
    for (int n = 1; n <= calls; n += more ? 1 : 1 + calls / some) {
        cli_ok(f, "rm -rf $D/o");
        int status = cli(f, sbp_arena_printf(f->arena, AT "SBP_AT=KILL@any:%d:/o %s", n, run));
        killed += status == 137;
        if (status != 137)
            fail_msg("before call %d of %d: status %d: %s", n, calls, status, cli_text(f, "err"));
        cli_ok(f, run);
        cli_same(f, "whole/model.safetensors", "o/model.safetensors");
        check_metrics(f, sbp_arena_printf(f->arena, "before call %d", n));
        cli_ok(f, "test -z \"$(ls -A $D/o | grep -E '^\\.|tmp$')\"; test -d $D/o/checkpoint-9; "
                  "test $(ls -d $D/o/checkpoint-* | wc -l) = 1");
    }
    print_message("--offload %s: killed before %d of %d calls\n", placement, killed, calls);
}

static void test_killed_before_every_call(void **state) {
    kill_before_every_call(*state, "none", 25);
}

static void test_killed_with_placement_on_disk(void **state) {
    kill_before_every_call(*state, "states:disk+gradients:disk+params:disk+checkpoints:disk", 8);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_two_processes, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_killed_before_every_call, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_killed_with_placement_on_disk, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
