/* test_cli_ranks_nccl.c: several ranks whose devices send each other what they have, over a NCCL that is a
 * fake between processes: with MPI, and as torchrun starts them, without. Bits are those of the way through
 * the host, whatever has shares, unless NCCL is asked to add up itself; who dies or hangs is noticed; what
 * stands in the way of NCCL is said, and the run goes on. */
#include "tests/cli/drawing.h"
#include "tests/cli/ranks_testing.h"
#include "tests/common/sweep.h"

#define SIZES "--seq-len 64 --chunk 9 --threads 1 --dtype fp32 --backend cuda"
#define MODEL "$G/gemma3_softcap/model " SIZES
#define RUN "--data $D/t --batch-size 4 --lr 1e-3 --weight-decay 0.1"
#define OVER "cuda: ranks send each other from device to device, over NCCL 2."

enum { ROWS = 9, LIMIT_SECONDS = 600 };

static bool can_run;

/* $N COUNT PORT COMMAND..: as torchrun starts it, on this host. RANK_1 in the environment: variables that
 * rank 1 has besides. When one fails the others are killed, as torchrun does it, a moment later; ends with
 * the first status of what was not killed. */
static const char start_script[] = "count=$1 port=$2; shift 2; all=; rank=0\n"
                                   "while [ $rank -lt $count ]; do\n"
                                   "  more=; [ $rank = 1 ] && more=$RANK_1\n"
                                   "  env $more RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=$count "
                                   "LOCAL_WORLD_SIZE=$count MASTER_ADDR=127.0.0.1 \\\n"
                                   "    MASTER_PORT=$port \"$@\" &\n"
                                   "  all=\"$all $!\"; rank=$((rank + 1))\n"
                                   "done\n"
                                   "status=0\n"
                                   "for one in $all; do\n"
                                   "  wait -n; s=$?\n"
                                   "  [ $s = 137 ] || [ $status != 0 ] || status=$s\n"
                                   "  [ $s = 0 ] || [ $s = 137 ] || { sleep 0.5; kill -9 $all; }\n"
                                   "done 2>/dev/null\n"
                                   "rm -rf /dev/shm/fake-nccl-at-127.0.0.1:$((port + 1))*\n"
                                   "exit $status\n";

static int setup(void **state) {
    sbp_text rows;
    if (cli_setup(state) != 0)
        return -1;
    io_fixture *f = *state;
    sbp_text_init(&rows, f->arena);
    for (int r = 0; r < ROWS; r++) {
        sbp_text_add(&rows, "{\"input_ids\": [1");
        for (int i = 0; i < 5 + r * 5 % 23; i++)
            sbp_text_add(&rows, ", %d", (r * 17 + i * 7) % 51);
        sbp_text_add(&rows, "]}\n");
    }
    cli_put(f, "t", rows.data);
    cli_put(f, "start", start_script);
    setenv("N", sbp_arena_printf(f->arena, "timeout %d bash %s", LIMIT_SECONDS, io_path(f, "start")), 1);
    setenv("SIGNAL_AT", SBP_SIGNAL_AT, 1);
    setenv("SBP_FAKE_CUDA", "devices=4,report", 1);
    can_run = cli_has_ranks(f, "ranks over NCCL") && cli_has_device(f, "cuda", "ranks over NCCL");
    if (can_run)
        for (int zero = 0; zero <= 3; zero++)
            cli_ok(f, sbp_arena_printf(f->arena, "$C compile " MODEL " --ranks 2 --zero %d %s -o $D/p%d",
                                       zero, zero == 2 ? "--offload states+params" : "", zero));
    return 0;
}

static int port(void) { /* of one's own, also beside other tests */
    static int used;
    return 20000 + ((int)getpid() * 37 + 2 * used++) % 40000;
}

/* A line of standard error says so, once for all ranks; all ranks gave everything back and used nothing
 * wrongly. */
static void says(io_fixture *f, const char *text, int ranks) {
    const char *err = sbp_arena_strdup(f->arena, cli_text(f, "err")), *found = strstr(err, text);
    int clean = 0;
    if (!found || strstr(found + 1, text))
        fail_msg("expected '%s' once: %s", text, err);
    for (const char *at = err;
         (at = strstr(at, "at the end 0 objects, 0 contexts, 0 bytes of device memory, 0 "
                          "misuses")) != NULL;
         at++)
        clean++;
    if (clean != ranks)
        fail_msg("%d of %d ranks ended clean: %s", clean, ranks, err);
}

#define BEGIN(f)                                                                                             \
    io_fixture *f = *state;                                                                                  \
    if (!can_run)                                                                                            \
    skip()

/* ---- numbers ---------------------------------------------------------------------------------------- */

/* The same numbers as of one rank in fp64 on the CPU; the same bits as through the host, and in every run. */
static void test_shares(void **state) {
    BEGIN(f);
    cli_ok(
        f,
        "$C compile $G/gemma3_softcap/model --seq-len 64 --threads 1 --dtype fp64 --backend cpu -o $D/one && "
        "$R $D/one " RUN " --steps 2 --out $D/one.o && $R $D/one " RUN
        " --out none --dump-gradients $D/one.g");
    for (int zero = testing_all() ? 0 : 2; zero <= 3; zero++) {
        cli_ok(f,
               sbp_arena_printf(f->arena,
                                "rm -rf $D/all* && $R $D/p%d --ranks 2 " RUN " --steps 2 --out $D/all --json "
                                ">$D/summary",
                                zero));
        says(f, OVER, 2);
        cli_ok(f, sbp_arena_printf(f->arena,
                                   "$R $D/p%d --ranks 2 " RUN " --out none --dump-gradients $D/all.g", zero));
        cli_compare(f, "gradients", sbp_arena_strdup(f->arena, io_path(f, "all.g")),
                    sbp_arena_strdup(f->arena, io_path(f, "one.g")), SBP_TOLERANCE_F32);
        cli_compare(f, "weights", sbp_arena_strdup(f->arena, io_path(f, "all/model.safetensors")),
                    sbp_arena_strdup(f->arena, io_path(f, "one.o/model.safetensors")), SBP_TOLERANCE_F32);
        if (zero % 2 == 1 && !testing_all())
            continue;
        cli_ok(f, sbp_arena_printf(f->arena,
                                   "SBP_FAKE_CUDA=devices=4,late,seed=5 $R $D/p%d --ranks 2 " RUN
                                   " --steps 2 --out $D/all2 && SBP_CUDA_NCCL=off $R $D/p%d --ranks 2 " RUN
                                   " --steps 2 --out $D/all3 --json >$D/summary3",
                                   zero, zero));
        cli_same(f, "all/model.safetensors", "all2/model.safetensors");
        cli_same(f, "all/model.safetensors", "all3/model.safetensors");
        assert_true(cli_number(f, cli_json(f, "summary"), "interconnect_bytes_sent") ==
                    cli_number(f, cli_json(f, "summary3"), "interconnect_bytes_sent"));
    }
}

/* Shares within groups, sums across them, gradients that cross the interconnect in bf16, documents that ranks
 * have together, as on two hosts: the bits of the way through the host, as on one, and as many bytes. */
static void test_groups(void **state) {
    BEGIN(f);
    static const char *const ways[] = {"--zero 3 --shard-group 2",
                                       "--zero 2 --shard-group 2 --reduce-dtype bf16",
                                       "--zero 3 --context-parallel 2"};
    for (int i = testing_all() ? 0 : 1; i < SBP_COUNT(ways); i++) {
        cli_ok(f, sbp_arena_printf(f->arena, "rm -rf $D/g*; $C compile " MODEL " --ranks 4 %s -o $D/g",
                                   ways[i]));
        cli_ok(f, "SBP_TEST_NODE=2 $R $D/g --ranks 4 " RUN " --steps 2 --out $D/g1 --json >$D/summary");
        says(f, OVER, 4);
        cli_ok(f, "SBP_CUDA_NCCL=off $R $D/g --ranks 4 " RUN " --steps 2 --out $D/g2 --json >$D/summary2");
        cli_same(f, "g1/model.safetensors", "g2/model.safetensors");
        assert_true(cli_number(f, cli_json(f, "summary"), "interconnect_bytes_sent") ==
                    cli_number(f, cli_json(f, "summary2"), "interconnect_bytes_sent"));
        assert_true(cli_number(f, cli_json(f, "summary"), "interconnect_bytes_between_hosts") > 0);
        assert_true(cli_number(f, cli_json(f, "summary2"), "interconnect_bytes_between_hosts") == 0);
    }
}

typedef struct context_case {
    const char *model;
    int ranks, together, zero;
    const char *way;
} context_case;

/* $D/one.o and $D/one.g: of one rank in fp64 on the CPU. */
static void train_one(io_fixture *f, const char *model) {
    cli_ok(f, sbp_arena_printf(f->arena,
                               "rm -rf $D/one*; $C compile $G/%s/model --seq-len 64 --threads 1 --dtype fp64 "
                               "--backend cpu -o $D/one && $R $D/one " RUN
                               " --steps 2 --out $D/one.o && $R $D/one " RUN
                               " --out none --dump-gradients $D/one.g",
                               model));
}

static void try_context(io_fixture *f, const context_case *c) {
    static const char run[] = "$R $D/c " RUN " --steps 2 --out ";
    cli_ok(f, sbp_arena_printf(f->arena,
                               "rm -rf $D/c*; $C compile $G/%s/model " SIZES
                               " --ranks %d --context-parallel %d --zero %d --context-exchange %s -o $D/c",
                               c->model, c->ranks, c->together, c->zero, c->way));
    cli_ok(f, sbp_arena_printf(f->arena, "%s $D/c1 --ranks %d --json >$D/summary", run, c->ranks));
    says(f, OVER, c->ranks);
    cli_ok(f, sbp_arena_printf(f->arena, "$N %d %d %s $D/c2", c->ranks, port(), run));
    says(f, OVER, c->ranks);
    cli_ok(f, sbp_arena_printf(f->arena,
                               "SBP_FAKE_CUDA=devices=4,late,seed=5,version=12020 %s none "
                               "--dump-gradients $D/c.g --ranks "
                               "%d && SBP_CUDA_NCCL=off %s $D/c3 --ranks %d --json >$D/summary3",
                               run, c->ranks, run, c->ranks));
    cli_same(f, "c1/model.safetensors", "c2/model.safetensors");
    cli_same(f, "c1/model.safetensors", "c3/model.safetensors");
    cli_compare(f, "gradients", sbp_arena_strdup(f->arena, io_path(f, "c.g")),
                sbp_arena_strdup(f->arena, io_path(f, "one.g")), SBP_TOLERANCE_F32);
    cli_compare(f, "weights", sbp_arena_strdup(f->arena, io_path(f, "c1/model.safetensors")),
                sbp_arena_strdup(f->arena, io_path(f, "one.o/model.safetensors")), SBP_TOLERANCE_F32);
    assert_true(cli_number(f, cli_json(f, "summary"), "interconnect_bytes_sent") ==
                cli_number(f, cli_json(f, "summary3"), "interconnect_bytes_sent"));
}

/* Documents that ranks have together, whose heads, or keys, go from device to device: the numbers of one
 * rank, the bits and bytes of the way through the host, with MPI and without. In llama_mqa four ranks have
 * the same key head, and the last has slots without a query head. With a driver before CUDA 12.3 NCCL has
 * what two communicators do one behind the other: nothing hangs, as all ranks ask in the same order. */
static void test_contexts(void **state) {
    BEGIN(f);
    static const context_case cases[] = {
        {"gemma3_softcap", 2, 2, 0, "all-to-all"}, {"gemma3_softcap", 4, 2, 3, "all-gather"},
        {"llama_mqa", 4, 4, 3, "all-to-all"},      {"llama_mqa", 4, 4, 0, "all-gather"},
        {"gemma3_softcap", 2, 2, 3, "all-gather"}, {"gemma3_softcap", 4, 2, 0, "all-to-all"}};
    const char *model = "";
    for (int i = testing_all() ? 0 : 1; i < (testing_all() ? SBP_COUNT(cases) : 3); i++) {
        if (strcmp(model, cases[i].model) != 0)
            train_one(f, cases[i].model);
        model = cases[i].model;
        try_context(f, &cases[i]);
    }
}

/* ---- sums by NCCL itself ---------------------------------------------------------------------------- */

/* Another topology is another order of its sums, and no other bits where they are ours. After test_shares,
 * which has trained one rank. */
static void test_deterministic(void **state) {
    BEGIN(f);
    static const char run[] = "$R $D/n --ranks 3 " RUN " --steps 2 --json --out $D/", *const names[] = {
                                                                                          "n1", "n2", "n3"};
    for (int off = 1; off >= (testing_all() ? 0 : 1); off--) {
        /* by itself: sbpc asks the driver for its version, too */
        cli_ok(f, sbp_arena_printf(f->arena,
                                   "rm -rf $D/n*; $C compile " MODEL
                                   " --ranks 3 --zero 2 --deterministic %s -o $D/n",
                                   off ? "off" : "on"));
        cli_ok(f, sbp_arena_printf(f->arena, "%sn1 >$D/n1.json", run));
        says(f, OVER, 3);
        cli_ok(f, sbp_arena_printf(f->arena,
                                   "SBP_FAKE_CUDA=devices=4,ring=1 %sn2 >$D/n2.json && "
                                   "SBP_CUDA_NCCL=off %sn3 >$D/n3.json && "
                                   "%scmp -s $D/n1/model.safetensors $D/n2/model.safetensors",
                                   run, run, off ? "! " : ""));
        for (int i = 0; i < SBP_COUNT(names); i++) {
            cli_compare(
                f, "weights",
                sbp_arena_strdup(f->arena,
                                 io_path(f, sbp_arena_printf(f->arena, "%s/model.safetensors", names[i]))),
                sbp_arena_strdup(f->arena, io_path(f, "one.o/model.safetensors")), SBP_TOLERANCE_F32);
            assert_true(cli_number(f, cli_json(f, sbp_arena_printf(f->arena, "%s.json", names[i])),
                                   "interconnect_bytes_sent") ==
                        cli_number(f, cli_json(f, "n3.json"), "interconnect_bytes_sent"));
        }
    }
}

typedef struct drawn_way {
    int ranks, zero, group, context;
    bool off, torchrun, old; /* old: NCCL that has no order of launches */
    const char *model, *more, *placement, *reduce;
} drawn_way;

static drawn_way draw_way(sbp_rng *rng) {
    static const char *const models[] = {"gemma3_softcap", "llama_mqa"}, *const placement[] = {
                                                                             "", "--offload states",
                                                                             "--offload states+params",
                                                                             "--offload gradients"};
    drawn_way w = {.ranks = 2 + (int)sbp_rng_below(rng, 3),
                   .zero = (int)sbp_rng_below(rng, 4),
                   .off = sbp_rng_below(rng, 3) > 0,
                   .torchrun = sbp_rng_below(rng, 2),
                   .model = models[sbp_rng_below(rng, 2)],
                   .placement = placement[sbp_rng_below(rng, SBP_COUNT(placement))],
                   .reduce = sbp_rng_below(rng, 4) ? "" : "--reduce-dtype bf16",
                   .more = ""};
    w.group = w.zero && w.ranks == 4 && sbp_rng_below(rng, 2) ? 2 : w.ranks;
    w.context = w.ranks % 2 == 0 && sbp_rng_below(rng, 2) ? 2 : 1;
    w.old = sbp_rng_below(rng, 4) == 0;
    if (w.zero == 3 && sbp_rng_below(rng, 2))
        w.more = sbp_rng_below(rng, 2) ? "--keep-gathered all" : "--keep-gathered 1";
    return w;
}

/* On: the bits of the way through the host; off: near to them. As many bytes as that sends. */
static void try_way(io_fixture *f, const drawn_way *w) {
    static const char run[] = "$R $D/w " RUN " --steps 2 --json --out $D/";
    const char *ranks = sbp_arena_printf(f->arena, "--ranks %d", w->ranks),
               *group = w->zero ? sbp_arena_printf(f->arena, "--shard-group %d", w->group) : "";
    cli_ok(f, sbp_arena_printf(f->arena,
                               "rm -rf $D/w*; $C compile $G/%s/model " SIZES
                               " %s --zero %d %s %s %s %s --context-parallel %d --deterministic %s -o $D/w",
                               w->model, ranks, w->zero, group, w->more, w->placement, w->reduce, w->context,
                               w->off ? "off" : "on"));
    const char *environment = w->old ? "SBP_FAKE_CUDA=devices=4,report,nccl=22500 " : "",
               *start = w->torchrun ? sbp_arena_printf(f->arena, "$N %d %d ", w->ranks, port()) : "";
    cli_ok(f, sbp_arena_printf(f->arena, "%s%s%sw1 %s >$D/summary", environment, start, run,
                               w->torchrun ? "" : ranks));
    says(f, OVER, w->ranks);
    cli_ok(f, sbp_arena_printf(f->arena, "SBP_CUDA_NCCL=off %sw2 %s >$D/summary2", run, ranks));
    if (!w->off)
        cli_same(f, "w1/model.safetensors", "w2/model.safetensors");
    cli_compare(f, "weights", sbp_arena_strdup(f->arena, io_path(f, "w1/model.safetensors")),
                sbp_arena_strdup(f->arena, io_path(f, "w2/model.safetensors")), SBP_TOLERANCE_F32);
    assert_true(cli_number(f, cli_json(f, "summary"), "interconnect_bytes_sent") ==
                cli_number(f, cli_json(f, "summary2"), "interconnect_bytes_sent"));
}

/* Whatever has shares, wherever it lies, however ranks met. */
static void test_drawn_ways(void **state) {
    BEGIN(f);
    sbp_rng rng = {.state = 3};
    for (int i = 0; i < (testing_all() ? 60 : 1); i++) {
        drawn_way w = draw_way(&rng);
        if (testing_all())
            print_message("%s: %d ranks, zero %d, group %d, context %d, %s%s%s %s %s %s\n", w.model, w.ranks,
                          w.zero, w.group, w.context, w.off ? "off" : "on", w.torchrun ? " torchrun" : "",
                          w.old ? " old" : "", w.more, w.placement, w.reduce);
        try_way(f, &w);
    }
}

/* What each rank takes is what was planned, to the byte, less what a context and NCCL are guessed to take. */
static void test_memory(void **state) {
    BEGIN(f);
    const sbp_json *peak;
    cli_ok(
        f,
        "rm -f $D/log; SBP_FAKE_CUDA=devices=2 SBP_FAKE_CUDA_LOG=$D/log $R $D/p3 --ranks 2 " RUN
        " --steps 1 --out none && awk '/^cuMemAlloc/ {n += $2} END {printf \"{\\\"bytes\\\": %d}\\n\", n}' "
        "$D/log >$D/used && $C inspect $D/p3 --json >$D/plan");
    assert_ok(f, sbp_json_get_object(f->diag, cli_json(f, "plan"), "peak_bytes", SBP_JSON_REQUIRED, &peak));
    double planned = cli_number(f, peak, "device") - ((500 + 512) << 20);
    assert_int_equal((int64_t)cli_number(f, cli_json(f, "used"), "bytes"), (int64_t)(2 * planned));
}

/* ---- started without MPI ---------------------------------------------------------------------------- */

/* As with MPI: bits, checkpoints that are written from shares, scores, and going on. */
static void test_torchrun(void **state) {
    BEGIN(f);
    cli_ok(f, "$R $D/p3 --ranks 2 " RUN " --steps 2 --save-every 1 --out $D/mpi");
    cli_ok(f, sbp_arena_printf(f->arena, "$N 2 %d $R $D/p3 " RUN " --steps 2 --save-every 1 --out $D/env",
                               port()));
    says(f, OVER, 2);
    const char *err = sbp_arena_strdup(f->arena, cli_text(f, "err"));
    assert_non_null(strstr(err, "rank 0: one of 2 ranks over NCCL 2.28.9 at 127.0.0.1:"));
    assert_non_null(strstr(err, ", all on this host: WORLD_SIZE (of torchrun) is 2\n"));
    cli_same(f, "mpi/model.safetensors", "env/model.safetensors");
    cli_ok(f, "for file in $D/mpi/checkpoint-2/*.safetensors; do cmp $file $D/env/checkpoint-2/$(basename "
              "$file) || exit; done");
    cli_ok(f, sbp_arena_printf(f->arena,
                               "$R $D/p3 --ranks 2 " RUN " --resume --steps 3 --out $D/mpi && "
                               "$N 2 %d $R $D/p3 " RUN " --resume --steps 3 --out $D/env",
                               port()));
    cli_same(f, "mpi/model.safetensors", "env/model.safetensors");
    cli_ok(f, sbp_arena_printf(
                  f->arena,
                  "$R $D/p3 --ranks 2 --data $D/t --out none --score $D/scores.mpi && "
                  "TORCHELASTIC_RUN_ID=none SLURM_NTASKS=7 PMIX_RANK=3 " /* it was started by srun */
                  "$N 2 %d $R $D/p3 --data $D/t --out none --score $D/scores.env",
                  port()));
    cli_same(f, "scores.mpi", "scores.env");
}

/* A rank that fails alone says why, and ends all. */
static void test_torchrun_fails(void **state) {
    BEGIN(f);
    cli_fails(f, 2, "was compiled for 2 ranks, this run has 3",
              sbp_arena_printf(f->arena, "$N 3 %d $R $D/p3 " RUN " --out none", port()));
    cli_fails(f, 4, "rank 0: cannot read ",
              sbp_arena_printf(f->arena, "$N 2 %d $R $D/p3 --data $D/none --out none", port()));
    cli_fails(f, 3, "rank 1: cuda: what ranks send each other needs 64.00 MiB of device memory",
              sbp_arena_printf(f->arena,
                               "RANK_1=SBP_FAKE_CUDA=devices=4,call=cuMemAlloc,fail=4 $N 2 %d $R $D/p3 " RUN
                               " --timeout 20 --out none",
                               port()));
    cli_fails(f, 3, "RANK is '7x'",
              sbp_arena_printf(f->arena,
                               "RANK=7x LOCAL_RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=%d $R "
                               "$D/p3 " RUN " --out none",
                               port()));
    /* variables that are the hosts', not the processes': one process */
    cli_fails(f, 2, "was compiled for 2 ranks, this is one",
              "RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=9 $R $D/p3 " RUN " --out none");
}

/* ---- faults ----------------------------------------------------------------------------------------- */

/* Rank 1 is killed, or stopped, before the N-th message that it sends: while the run begins, and in a step.
 */
static void test_faults(void **state) {
    BEGIN(f);
    static const char *const faults[] = {"KILL@rename:45", "STOP@rename:160"};
    for (int i = 0; i < SBP_COUNT(faults); i++)
        cli_fails(f, 3, "takes longer than --timeout",
                  sbp_arena_printf(f->arena,
                                   "RANK_1=\"LD_PRELOAD=$SIGNAL_AT SBP_AT=%s:/1.0.\" $N 2 %d $R $D/p3 " RUN
                                   " --steps 40 --timeout 4 --out none",
                                   faults[i], port()));
    cli_fails(f, 3, "did not answer: all ranks were ended",
              "LD_PRELOAD=$SIGNAL_AT SBP_AT=STOP@rename:30:/1.0. $R $D/p3 --ranks 2 " RUN
              " --steps 40 --timeout 4 --out none");
    if (!strstr(cli_text(f, "err"),
                ", over NCCL: other ranks did not come for 4 s; one hangs, is gone or takes "
                "longer than --timeout"))
        fail_msg("%s", cli_text(f, "err"));
    /* within an exchange of heads, which is in a communicator of its own */
    cli_ok(f, "$C compile " MODEL " --ranks 2 --context-parallel 2 -o $D/h");
    cli_fails(f, 3, "did not answer: all ranks were ended",
              "LD_PRELOAD=$SIGNAL_AT SBP_AT=STOP@rename:30:-1-0/1.0. $R $D/h --ranks 2 " RUN
              " --steps 40 --timeout 4 --out none");
    if (!strstr(cli_text(f, "err"), "rank 0: to_") ||
        !strstr(cli_text(f, "err"), ", over NCCL: other ranks did not come for 4 s;"))
        fail_msg("%s", cli_text(f, "err"));
    if (testing_all()) /* while it is made */
        cli_fails(f, 3, "NCCL: ncclCommSplit: others did not come for 4 s",
                  sbp_arena_printf(f->arena,
                                   "RANK_1=\"LD_PRELOAD=$SIGNAL_AT SBP_AT=STOP@rename:1:/split.1.1\" $N 2 %d "
                                   "$R $D/h " RUN " --timeout 4 --out none",
                                   port()));
    cli_fails(f, 3, "NCCL: remote process exited or there was a network error (6, in ",
              "SBP_FAKE_CUDA=devices=2,nccl_lost=30 $R $D/p3 --ranks 2 " RUN " --out none");
}

/* ---- what stands in the way ------------------------------------------------------------------------- */

static void test_through_the_host(void **state) {
    BEGIN(f);
    static const char run[] = "$R $D/p1 --ranks 2 " RUN " --steps 2 --out $D/o", way[] = "right but slow: ";
    cli_ok(f, sbp_arena_printf(f->arena, "rm -rf $D/o; %s; mv $D/o $D/over", run));
    static const struct {
        const char *environment, *reason;
    } cases[] = {
        {"SBP_FAKE_CUDA=report", "ranks 0 and 1 have one device, and NCCL wants one for each"},
        {"SBP_FAKE_CUDA=report,nccl=23000", "ranks 0 and 1 have one device, and NCCL wants one for each"},
        {"NCCL_MULTI_RANK_GPU_ENABLE=1 SBP_FAKE_CUDA=report", "ranks 0 and 1 have one device"},
        {"SBP_FAKE_CUDA=devices=2,report,nccl=21700", "libnccl.so.2 is NCCL 2.17.0; NCCL 2.18 or newer"},
        {"SBP_CUDA_NCCL=off", "SBP_CUDA_NCCL=off"},
        {"LD_LIBRARY_PATH= SBP_CUDA_LIBRARIES=$D/lib",
         "libnccl.so.2 (NCCL, which joins several devices) was not found"}};
    cli_ok(f, "mkdir $D/lib; for file in libcuda.so.1 libcublasLt.so.13; do for folder in $(echo "
              "$LD_LIBRARY_PATH | "
              "tr : ' '); do [ -e $folder/$file ] && ln -s $folder/$file $D/lib/; done; done; true");
    for (int i = testing_all() ? 0 : 4; i < SBP_COUNT(cases); i++) {
        cli_ok(f, sbp_arena_printf(f->arena, "rm -rf $D/o; %s %s", cases[i].environment, run));
        says(f, sbp_arena_printf(f->arena, "%s", way), 2);
        if (!strstr(cli_text(f, "err"), cases[i].reason))
            fail_msg("%s: %s", cases[i].environment, cli_text(f, "err"));
        cli_same(f, "o/model.safetensors", "over/model.safetensors");
    }
    cli_ok(f, sbp_arena_printf(f->arena,
                               "rm -rf $D/o; NCCL_MULTI_RANK_GPU_ENABLE=1 "
                               "SBP_FAKE_CUDA=report,nccl=23000 %s",
                               run));
    says(f, OVER, 2);
    cli_same(f, "o/model.safetensors", "over/model.safetensors");
    cli_ok(f, sbp_arena_printf(
                  f->arena, "rm -rf $D/o; $N 2 %d $R $D/p1 " RUN " --steps 2 --device 3 --out $D/o", port()));
    says(f, "ranks use other devices than --device says: this one uses device 0", 2);
    cli_same(f, "o/model.safetensors", "over/model.safetensors");
    cli_fails(f, 3, "WORLD_SIZE (of torchrun) is 2, but NCCL does not begin: libnccl.so.2 (NCCL, which joins",
              sbp_arena_printf(
                  f->arena, "LD_LIBRARY_PATH= SBP_CUDA_LIBRARIES=$D/lib $N 2 %d $R $D/p3 " RUN " --out none",
                  port()));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shares),     cmocka_unit_test(test_deterministic),
        cmocka_unit_test(test_groups),     cmocka_unit_test(test_contexts),
        cmocka_unit_test(test_drawn_ways), cmocka_unit_test(test_memory),
        cmocka_unit_test(test_torchrun),   cmocka_unit_test(test_torchrun_fails),
        cmocka_unit_test(test_faults),     cmocka_unit_test(test_through_the_host),
    };
    return cmocka_run_group_tests(tests, setup, io_teardown);
}
