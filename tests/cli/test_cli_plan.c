/* What sbpc compile promises about a plan: that the planner finds what a user could type, that its advice,
 * its longest sequence and the remedies of a refusal are true when they are tried, and that a plan does not
 * grow with depth but for its list of calls. */
#include "tests/cli/cli_testing.h"
#include "tests/common/sweep.h"

#define MODEL "tests/data/configs/SmolLM2-135M.json"

/* The model directory $D/m with only this config.json. */
static void make_model(io_fixture *f, const char *config) {
    cli_ok(f, sbp_arena_printf(f->arena, "mkdir -p $D/m && cp %s $D/m/config.json", config));
}

static void compile(io_fixture *f, const char *options) {
    cli_ok(f, sbp_arena_printf(f->arena, "$C compile $D/m -o $D/p %s", options));
}

static const char *text_of(io_fixture *f, const char *name) {
    return sbp_arena_strdup(f->arena, cli_text(f, name));
}

/* What follows a word at the beginning of a line of the last messages. */
static const char *line_of(io_fixture *f, const char *word) {
    const char *at = strstr(text_of(f, "err"), sbp_arena_printf(f->arena, "\n%s", word));
    if (!at)
        fail_msg("no line '%s' in: %s", word, cli_text(f, "err"));
    at += 1 + strlen(word);
    at += strspn(at, " :");
    sbp_text line; /* with those that go on with it, after blanks */
    sbp_text_init(&line, f->arena);
    for (;;) {
        sbp_text_add_n(&line, at, strcspn(at, "\n"));
        at += strcspn(at, "\n");
        if (strncmp(at, "\n           ", 12) != 0)
            return line.data;
        at += 12;
        sbp_text_add(&line, strchr("+,", line.data[line.length - 1]) ? "" : " ");
    }
}

/* Text between two others. */
static const char *between(io_fixture *f, const char *text, const char *before, const char *after) {
    const char *begin = strstr(text, before), *end = begin ? strstr(begin + strlen(before), after) : NULL;
    if (!end)
        fail_msg("no '%s' .. '%s' in '%s'", before, after, text);
    begin += strlen(before);
    return sbp_arena_strndup(f->arena, begin, (size_t)(end - begin));
}

static int lines_in(const char *text) {
    int n = 0;
    for (; *text; text++)
        n += *text == '\n';
    return n;
}

/* What sbpc says fits a terminal. */
static void check_width(io_fixture *f, int most_lines) {
    const char *text = text_of(f, "err");
    assert_true(lines_in(text) <= most_lines);
    for (const char *line = text; *line; line += strcspn(line, "\n") + 1)
        if (strcspn(line, "\n") >= 100)
            fail_msg("%d characters: '%.*s'", (int)strcspn(line, "\n"), (int)strcspn(line, "\n"), line);
}

static double inspect(io_fixture *f, const char *key) {
    cli_ok(f, "$C inspect $D/p --json");
    return cli_number(f, cli_json(f, "out"), key);
}

/* With a limit the planner is at least as fast as sets of values that a user would try. */
static void test_saved_set(void **state) {
    io_fixture *f = *state;
    static const char *const sets[] = {"none", "attn_out+lse", "gate+up", "q+k+v+attn_out+lse",
                                       "attn_out+lse+gate+up"};
    static const struct {
        const char *limit;
        int64_t bytes;
    } limits[] = {{"2300MiB", INT64_C(2300) << 20}, {"2700MiB", INT64_C(2700) << 20}};
    int fitted = 0;
    make_model(f, MODEL);
    const bool all = testing_all();
    for (int i = all ? 0 : 1; i < SBP_COUNT(limits); i++) {
        compile(f, sbp_arena_printf(f->arena, "--seq-len 1024 --memory %s", limits[i].limit));
        double seconds = inspect(f, "seconds");
        for (int k = 0; k < SBP_COUNT(sets); k++) {
            int status = cli(
                f, sbp_arena_printf(f->arena, "$C compile $D/m -o $D/p --seq-len 1024 --memory %s --save %s",
                                    limits[i].limit, sets[k]));
            if (status == 3) /* does not fit */
                continue;
            assert_int_equal(status, 0);
            double theirs = inspect(f, "seconds");
            if (seconds > theirs * 1.01)
                fail_msg("%s: the planner's choice takes %.3f s, --save %s %.3f s", limits[i].limit, seconds,
                         sets[k], theirs);
            fitted++;
        }
    }
    assert_true(fitted >= (all ? 7 : 3));
}

/* The advice, typed, gives the memory and the time that it promised. */
static void test_advice(void **state) {
    io_fixture *f = *state;
    static const char *const options[] = {
        "--seq-len 1024 --memory 23GiB --save attn_out+lse --checkpoint-every 2",
        "--seq-len 2048 --memory 2700MiB", "--seq-len 2048 --backward standard",
        "--seq-len 1000 --clip none --accumulate 1 --memory 6GiB --save none",
        "--seq-len 65536 --memory 3700MiB",
        /* deep, where programs of other lengths make other processes */
        "--seq-len 700 --save none --chunk 64", "--seq-len 700 --backward standard"};
    enum { DEEP = 5 };
    int followed = 0;
    make_model(f, MODEL);
    for (int i = 0; i < SBP_COUNT(options); i++) {
        if (i == DEEP)
            cli_put(
                f, "m/config.json",
                "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_size\": 64, "
                "\"intermediate_size\": 192, \"num_hidden_layers\": 40, \"num_attention_heads\": 4, "
                "\"num_key_value_heads\": 2, \"vocab_size\": 500, \"rms_norm_eps\": 1e-5, \"rope_theta\": "
                "1e4, "
                "\"max_position_embeddings\": 2048, \"tie_word_embeddings\": false, \"hidden_act\": "
                "\"silu\"}");
        compile(f, options[i]);
        check_width(f, 18);
        if (strstr(text_of(f, "err"), "no single option"))
            continue;
        bool faster = strstr(text_of(f, "err"), "\nfaster") != NULL,
             both = strstr(text_of(f, "err"), "\nfaster and smaller") != NULL;
        const char *advice = line_of(f, both ? "faster and smaller" : faster ? "faster" : "smaller");
        assert_true((strstr(advice, " more: ") != NULL) == (faster && !both));
        const char *change = sbp_arena_strndup(f->arena, advice, strcspn(advice, ":"));
        if (strstr(change, ", for "))
            change = sbp_arena_strndup(f->arena, change, (size_t)(strstr(change, ", for ") - change));
        const char *memory = between(f, advice, " to ", " on the device"), *rest = strstr(advice, " device");
        const char *seconds = between(f, rest, " to ", " a step");
        /* an option given twice is an error: the advice takes the place of what was given */
        const char *name = strstr(change, "checkpoint_every")
                               ? "--checkpoint-every"
                               : sbp_arena_strndup(f->arena, change, strcspn(change, " "));
        const char *given = strstr(options[i], name);
        const char *kept = options[i];
        if (given) {
            const char *after = given + strlen(name);
            after += strspn(after, " ");
            after += strcspn(after, " ");
            kept = sbp_arena_printf(f->arena, "%.*s%s", (int)(given - options[i]), options[i], after);
        }
        /* the rest of the schedule as it was */
        const char *schedule = line_of(f, "schedule"), *fixed = "";
        if (strcmp(name, "--backward") != 0) {
            fixed = sbp_arena_printf(
                f->arena, "--chunk %s --head-chunk %s --segment %s", between(f, schedule, ": chunk ", ","),
                between(f, schedule, "head chunk ", ","), between(f, schedule, "segment ", ","));
            if (strcmp(name, "--checkpoint-every") != 0 && !strstr(kept, "--checkpoint-every"))
                fixed = sbp_arena_printf(f->arena, "%s --checkpoint-every %s", fixed,
                                         between(f, schedule, "checkpoint every ", ","));
            const char *saved = strstr(schedule, "saved: ") + 7;
            if (strcmp(name, "--save") != 0 && !strstr(kept, "--save"))
                fixed = sbp_arena_printf(f->arena, "%s --save %s", fixed,
                                         strncmp(saved, "layer inputs", 12) == 0 ? "none" : saved);
        }
        compile(f, sbp_arena_printf(f->arena, "%s %s %s", kept, fixed, change));
        if (strncmp(line_of(f, "memory"), memory, strlen(memory)) != 0 ||
            !strstr(line_of(f, "time"), sbp_arena_printf(f->arena, "about %s a step", seconds)))
            fail_msg("'%s' after '%s': promised %s and %s, came to:\n%s", change, options[i], memory, seconds,
                     cli_text(f, "err"));
        followed++;
    }
    assert_true(followed >= 5);
}

/* The longest sequence compiles under its limit; a chunk more does not. */
static void test_longest(void **state) {
    io_fixture *f = *state;
    static const char usual[] = "--chunk 512 --head-chunk 256 --segment 1 --checkpoint-every 1 --save none";
    static const struct {
        int more; /* KiB above 3 GiB: less than a row takes */
        const char *schedule;
    } asked[] = {{0, usual},
                 {4, usual},
                 {20, usual},
                 {12, "--chunk 512 --head-chunk 256 --segment 1 --checkpoint-every 3 --save attn_out+lse"},
                 {0, "--chunk 256 --head-chunk 128 --segment 2 --checkpoint-every 1 --save none"}};
    make_model(f, MODEL);
    for (int i = 0; i < SBP_COUNT(asked); i += testing_all() ? 1 : 2) {
        const char *options = sbp_arena_printf(f->arena, "--memory %lld %s",
                                               (3LL << 30) + asked[i].more * 1024, asked[i].schedule);
        compile(f, sbp_arena_printf(f->arena, "--seq-len 1024 %s", options));
        long long rows = strtoll(line_of(f, "longest"), NULL, 10);
        assert_true(rows > 1024);
        compile(f, sbp_arena_printf(f->arena, "--seq-len %lld %s", rows, options));
        cli_fails(f, 3, "B too much", /* by a part of a row */
                  sbp_arena_printf(f->arena, "$C compile $D/m -o $D/p --seq-len %lld %s", rows + 1, options));
        assert_null(strstr(text_of(f, "err"), "MiB too much"));
    }
    compile(f, "--seq-len max --memory 2700MiB");
    double most = inspect(f, "seq_len");
    compile(f, sbp_arena_printf(f->arena, "--seq-len %.0f --memory 2700MiB", most));
    cli_fails(
        f, 3, "too much",
        sbp_arena_printf(f->arena, "$C compile $D/m -o $D/p --seq-len %.0f --memory 2700MiB", most * 1.01));
}

/* Everything that a refusal says would fit does fit. */
static void test_remedies(void **state) {
    io_fixture *f = *state;
    static const char *const refused[] = {"--seq-len 2048 --memory 3GiB --backward standard",
                                          "--seq-len 65536 --memory 3200MiB",
                                          "--seq-len 4096 --memory 2300MiB --chunk 4096",
                                          "--seq-len 65536 --memory 1400MiB --host-memory 2200MiB "
                                          "--device-profile rtx4090-24gb"};
    int tried = 0;
    make_model(f, MODEL);
    for (int i = 0; i < SBP_COUNT(refused); i++) {
        cli_fails(f, 3, "It fits ", sbp_arena_printf(f->arena, "$C compile $D/m -o $D/p %s", refused[i]));
        const char *at = strstr(text_of(f, "err"), "It fits ") + strlen("It fits ");
        if (strstr(refused[i], "--host-memory"))
            assert_int_equal(strncmp(at, "with --clip none --accumulate 1 (", 33), 0);
        for (; at; at = strstr(at, ", or ") ? strstr(at, ", or ") + strlen(", or ") : NULL) {
            const char *option = sbp_arena_strndup(f->arena, at, strcspn(at, "("));
            if (strncmp(option, "with ", 5) == 0)
                option += 5;
            const char *memory = strstr(refused[i], "--memory"), *kept = refused[i];
            if (strncmp(option, "--seq-len", 9) == 0) /* instead of the one that was given */
                kept = memory;
            else if (strncmp(option, "--backward", 10) == 0)
                kept = sbp_arena_strndup(f->arena, refused[i],
                                         (size_t)(strstr(refused[i], "--backward") - refused[i]));
            else if (strncmp(at, "if you drop --chunk 4096 ", 25) == 0) {
                kept = sbp_arena_strndup(f->arena, refused[i],
                                         (size_t)(strstr(refused[i], " --chunk") - refused[i]));
                option = "";
            }
            compile(f, sbp_arena_printf(f->arena, "%s %s", kept, option));
            tried++;
        }
    }
    assert_true(tried >= 6);
}

/* What is written fits, with the process that runs it, also where that grows with the chunk: from 1536 tokens
 * on, for this model in whole sequences. What does not fit is refused, and the shorter length that is named
 * fits. */
static void test_limits_of_whole_sequences(void **state) {
    io_fixture *f = *state;
    static const char *const backward[] = {"standard", "checkpoint"};
    static const char *const lengths[] = {"1530", "1538", "1545", "1560", "max"};
    int fitted = 0, refused = 0;
    for (int b = 0; b < SBP_COUNT(backward); b++)
        for (int i = 0; i < SBP_COUNT(lengths); i++)
            for (int megabytes = 36; megabytes <= 60; megabytes += 12) {
                const char *line = sbp_arena_printf(
                    f->arena,
                    "$C compile tests/data/stories260K -o $D/p --memory %dMB --backward %s --threads 2",
                    megabytes, backward[b]);
                int status = cli(f, sbp_arena_printf(f->arena, "%s --seq-len %s", line, lengths[i]));
                const char *shorter = strstr(text_of(f, "err"), "or with --seq-len ");
                if (status == 3 && shorter)
                    cli_ok(f, sbp_arena_printf(f->arena, "%s --seq-len %ld", line,
                                               atol(shorter + strlen("or with --seq-len "))));
                else
                    assert_true(status == 0 || status == 3);
                fitted += status == 0;
                refused += status == 3;
                if (status == 0 || shorter)
                    assert_non_null(strstr(text_of(f, "err"), "\nfits       yes: "));
            }
    assert_true(fitted >= 8 && refused >= 8);
}

/* Kernels and functions of a program: all but the tensor table and the calls. */
static const char *code_of(io_fixture *f, const char *model, int layers, long *total) {
    cli_ok(f, sbp_arena_printf(f->arena,
                               "mkdir -p $D/m && cp %s $D/m/config.json && $C compile $D/m --seq-len 4096 "
                               "--set num_hidden_layers=%d --stop-after fence",
                               model, layers));
    const char *text = text_of(f, "out"), *begin = strstr(text, "\nkernel "), *end = strstr(text, "\nentry ");
    assert_true(begin && end && begin < end);
    *total = (long)strlen(text);
    return sbp_arena_strndup(f->arena, begin, (size_t)(end - begin));
}

static void test_depth(void **state) {
    io_fixture *f = *state;
    long two, many;
    const char *model = "tests/data/configs/Qwen3-32B.json";
    const char *small = code_of(f, model, 2, &two), *large = code_of(f, model, 64, &many);
    assert_true(many > two); /* call list and tensor table */
    if (strcmp(small, large) != 0)
        fail_msg("kernels or functions of 64 layers differ from those of 2");
    make_model(f, model);
    compile(f, "--seq-len 4096");
    assert_non_null(strstr(text_of(f, "err"), "32.8B parameters"));
}

/* Bytes of parameters that a step stores in their placement, with some of them frozen. */
static double params_out(io_fixture *f, const char *freeze) {
    cli_ok(f, sbp_arena_printf(f->arena,
                               "$C compile tests/golden/llama_plain/model --seq-len 94 --offload params "
                               "--clip none --accumulate 1 %s --json -o $D/p",
                               freeze));
    const sbp_json *traffic = sbp_json_member(cli_json(f, "out"), "traffic");
    return cli_number(f, sbp_json_member(traffic, "params"), "out");
}

/* What nobody changes is not stored again: of three layers 3 x 33 x 24 numbers each. */
static void test_frozen_parameters_stay_in_place(void **state) {
    io_fixture *f = *state;
    assert_true(params_out(f, "") - params_out(f, "--freeze '*mlp*'") >= 4.0 * 3 * 3 * 33 * 24);
}

/* Buckets of a device that allocates no more than so much at once; and there is a longest sequence, though
 * none of those that are tried for it may fit. */
static void test_largest_allocation(void **state) {
    io_fixture *f = *state;
    const char *line;
    int buckets = 0;
    make_model(f, MODEL);
    cli_put(
        f, "small",
        "memory 24GiB process 500MiB bf16_flops 1e14 fp32_flops 5e13 bf16_attention 8e13\n"
        "fp32_attention 3e13 memory_bytes 8e11 row_ops 1e13 link_bytes 2e10 host_bytes 6e10 host_ops 1e11\n"
        "disk_bytes 5e9 half_rows 128 command_seconds 4e-6 chunk 512 head_chunk 256 allocation 128MiB\n");
    cli_ok(
        f,
        "$C compile $D/m --device-profile $D/small --seq-len 1024 --chunk 256 --head-chunk 64 --segment 30 "
        "--checkpoint-every 1 --save none --offload params --clip none --accumulate 1 "
        "--print-after offload");
    assert_true(strtoll(line_of(f, "longest"), NULL, 10) >= 1024);
    for (line = text_of(f, "out"); (line = strstr(line, " bucket host bf16[")); line++, buckets++) {
        long long rows = strtoll(strchr(line, '[') + 1, NULL, 10);
        if (rows * 256 * 2 > 128 << 20)
            fail_msg("a bucket of %lld rows of 256 bf16", rows);
    }
    assert_true(buckets >= 2);
}

static void test_device_profile(void **state) {
    io_fixture *f = *state;
    make_model(f, "tests/data/configs/Qwen3-32B.json");
    cli_fails(f, 3,
              "does not fit: ", "$C compile $D/m --device-profile h100-80gb --seq-len 131072 --offload host");
    assert_non_null(strstr(text_of(f, "err"), "--host-memory is 256.00 GiB")); /* what such a machine has */
    cli_ok(f, "$C compile $D/m --device-profile h100-80gb --seq-len 131072 --clip none --accumulate 1 --json "
              "--host-memory 512GiB -o $D/none");
    assert_non_null(
        strstr(text_of(f, "err"), "Estimate (no plan file is written): m (qwen3), 32.8B parameters"));
    const char *fits = line_of(f, "fits");
    assert_true(strncmp(fits, "yes: ", 5) == 0);
    assert_non_null(strstr(fits, " of 80.00 GiB on the device, "));
    assert_non_null(strstr(fits, " of 512.00 GiB on the host"));
    assert_non_null(strstr(line_of(f, "longest"), " in 80.00 GiB (--device-profile)"));
    assert_non_null(strstr(line_of(f, "time"), " PFLOP)"));
    check_width(f, 22);
    const sbp_json *root = cli_json(f, "out");
    double device = cli_number(f, sbp_json_member(root, "peak_bytes"), "device"),
           host = cli_number(f, sbp_json_member(root, "peak_bytes"), "host");
    assert_true(device > 0 && device <= 80.0 * (1 << 30) && host > 300e9); /* weights, states on the host */
    assert_true(cli_number(f, root, "seconds") > 0);
    assert_false(cli_exists(f, "none"));
    cli_put(f, "small",
            "memory 24GiB process 500MiB bf16_flops 1e14 fp32_flops 5e13 # made up\n"
            "bf16_attention 8e13 fp32_attention 3e13 memory_bytes 8e11 row_ops 1e13 link_bytes 2e10 "
            "host_bytes 6e10 "
            "host_ops 1e11\n"
            "disk_bytes 5e9 half_rows 128 command_seconds 4e-6 chunk 4096 head_chunk 1024\n");
    cli_ok(f, "$C compile $D/m --device-profile $D/small --seq-len 4096 --clip none --accumulate 1");
    cli_fails(f, 3, "too much", "$C compile $D/m --device-profile $D/small --seq-len 4096 --offload none");
    /* updates on the device, which are faster here, would need more than there is */
    cli_ok(f,
           "$C compile $D/m --device-profile rtx4090-24gb --memory 16GiB --seq-len 8192 --param-dtype bf16 "
           "--clip none --accumulate 1 --offload checkpoints+saved+states:disk+params:disk");
    assert_non_null(strstr(text_of(f, "err"), "updates run on the host's cores"));
    assert_non_null(strstr(text_of(f, "err"), "disk bounds it"));
    cli_put(f, "bad", "memory 24GiB speed 3\n");
    cli_fails(f, 1, "unknown key 'speed'", "$C compile $D/m --device-profile $D/bad");
    cli_put(f, "bad", "backend opengl:3 memory 24GiB\n");
    cli_fails(f, 1, "there is no 'opengl' in this build", "$C compile $D/m --device-profile $D/bad");
    cli_fails(f, 2, "h200", "$C compile $D/m --device-profile nothing");
    cli_fails(f, 2, "leave out --backend", "$C compile $D/m --device-profile h200 --backend cpu");
    cli_ok(f, "$C compile $S --device-profile cpu --memory 1GiB --seq-len 256 --json -o $D/none");
    double there = cli_number(f, cli_json(f, "out"), "seconds");
    cli_ok(f, "$C compile $S --backend cpu --memory 1GiB --seq-len 256 --json -o $D/p");
    assert_true(there == cli_number(f, cli_json(f, "out"), "seconds") && !cli_exists(f, "none"));
}

/* The two lines from "traffic" on; "": nothing moves. */
static const char *traffic_of(io_fixture *f, const char *name) {
    const char *line = strstr(text_of(f, name), "\ntraffic ");
    const char *end = line ? strchr(line + 1, '\n') : NULL;
    end = end ? strchr(end + 1, '\n') : NULL;
    return end ? sbp_arena_strndup(f->arena, line + 1, (size_t)(end - line - 1)) : "";
}

/* inspect counts the copies of the plan's program and lets its queues run; compile counted the moves it
 * decided on. Both say what placement costs in the same words, and have the same numbers for scripts. */
static void test_inspect_says_what_placement_costs(void **state) {
    io_fixture *f = *state;
    static const char *const placement[] = {"none", "host", "states:disk+params",
                                            "checkpoints+saved+gradients:disk+params:disk",
                                            "checkpoints:disk+saved:disk+states+gradients"};
    static const char *const steps[] = {"", "--clip none --accumulate 1",
                                        "--dtype bf16 --state-dtype int8 --checkpoint-every 2"};
    int moved = 0, away_from_it = 0;
    const bool all = testing_all();
    for (int h = 0; h < SBP_COUNT(placement); h++)
        for (int s = all ? 0 : h % SBP_COUNT(steps); s < SBP_COUNT(steps);
             s += all ? 1 : SBP_COUNT(steps)) { /* each of both, or all pairs */
            away_from_it += h > 0;
            const char *compile = sbp_arena_printf(
                f->arena, "$C compile $S -o $D/p --seq-len 96 --save gate+up --offload %s %s", placement[h],
                steps[s]);
            cli_ok(f, compile);
            const char *said = traffic_of(f, "err"), *away = strstr(line_of(f, "schedule"), "offloaded: ");
            if (away)
                away = sbp_arena_strndup(f->arena, away, 11 + strcspn(away + 11, " "));
            cli_ok(f, "$C inspect $D/p");
            if (strcmp(said, traffic_of(f, "out")) != 0)
                fail_msg("%s: '%s'; inspect says '%s'", compile, said, traffic_of(f, "out"));
            if (away && !strstr(text_of(f, "out"), away))
                fail_msg("%s: inspect does not say '%s': %s", compile, away, text_of(f, "out"));
            moved += *said != 0;
            cli_ok(f, sbp_arena_printf(f->arena, "%s --json", compile));
            const sbp_json *planned = cli_json(f, "out");
            cli_ok(f, "$C inspect $D/p --json");
            const sbp_json *found = cli_json(f, "out"), *traffic = sbp_json_member(found, "traffic");
            assert_string_equal(sbp_json_member(sbp_json_member(planned, "schedule"), "offload")->string,
                                sbp_json_member(found, "offload")->string);
            for (int64_t c = 0; c < traffic->count; c++) {
                const sbp_json *class = &traffic->items[c];
                const sbp_json *wanted = sbp_json_member(sbp_json_member(planned, "traffic"), class->key);
                for (int64_t w = 0; w < class->count; w++)
                    assert_true(cli_number(f, class, class->items[w].key) ==
                                cli_number(f, wanted, class->items[w].key));
            }
            const sbp_json *busy = sbp_json_member(found, "busy");
            for (int64_t q = 0; q < busy->count; q++) {
                double is = cli_number(f, busy, busy->items[q].key),
                       was = cli_number(f, sbp_json_member(planned, "busy"), busy->items[q].key);
                if (fabs(is - was) > SBP_TOLERANCE_F32 * was)
                    fail_msg("%s: %s is busy for %g s, planned %g", compile, busy->items[q].key, is, was);
            }
        }
    assert_true(moved == away_from_it);
}

/* Every optimizer with every way to keep weights and states: one row kernel that writes over what it reads.
 */
static void test_every_format(void **state) {
    io_fixture *f = *state;
    static const char *const optimizers[] = {"adamw", "sgd", "sgd-momentum", "lion"};
    static const char *const weights[] = {"--dtype fp32",
                                          "--dtype bf16",
                                          "--dtype bf16 --master none",
                                          "--dtype bf16 --master none --rounding nearest",
                                          "--dtype bf16 --param-dtype fp32",
                                          "--param-dtype bf16 --grad-dtype bf16"};
    static const char *const states[] = {"fp32", "bf16", "int8"};
    const bool all = testing_all();
    for (int o = 0; o < SBP_COUNT(optimizers); o++)
        for (int w = 0; w < SBP_COUNT(weights); w++)
            for (int s = 0; s < SBP_COUNT(states); s++)
                if (all || (o + w + s) % 3 == 0) /* every pair of them */
                    cli_ok(f, sbp_arena_printf(
                                  f->arena,
                                  "$C compile $S -o $D/p --seq-len 96 --optimizer %s %s --state-dtype %s %s",
                                  optimizers[o], weights[w], states[s],
                                  (o + w + s) % 2 ? "" : "--clip none --accumulate 1"));
}

/* Layers that no segment can begin with are told of. */
static void test_layers_that_are_not_cut(void **state) {
    io_fixture *f = *state;
    cli_ok(f, "$C compile tests/data/onnx/two_widths.json -o $D/p --seq-len 64");
    assert_non_null(strstr(text_of(f, "err"), "note: 2 layers form one segment with what is before them"));
    cli_ok(f, "$C compile tests/data/onnx/odd_head.json -o $D/p --seq-len 64");
    assert_null(strstr(text_of(f, "err"), "layers form one segment"));
}

/* Parts of a deep model are frozen, with layers below and above what is trained: there is a plan, by the
 * planner's choice and by the user's. */
static void test_frozen_parts(void **state) {
    io_fixture *f = *state;
    static const char *const options[] = {
        "--freeze '*embed*' --freeze '*layers.[0-9].*'", "--seq-len 4096 --segment 3 --train '*layers.2?.*'",
        "--memory 16GiB --freeze '*embed*' --freeze '*layers.?.*' --freeze '*layers.1?.*'",
        "--seq-len 131072 --memory 8GiB --dtype bf16 --param-dtype bf16 --train '*layers.2?.*'"};
    make_model(f, MODEL);
    for (int i = 0; i < SBP_COUNT(options); i++)
        compile(f, options[i]);
    /* below the lowest trained layer nothing is kept: three inputs of 28, 29 and the head, and two that take
     * turns */
    cli_ok(f, "$C compile $D/m -o $D/p --seq-len 8192 --train '*layers.2[89]*' --json");
    double kept =
        cli_number(f, sbp_json_member(cli_json(f, "out"), "categories"), "activations (checkpoints)");
    assert_true(kept <= 5.0 * 8192 * 576 * 4);
    cli_ok(f, "$C compile $S -o $D/p --segment 1 --train '*layers.[34]*'");
    cli_ok(f, "$C compile $S -o $D/p --segment 3 --train '*q_proj*'");
    cli_ok(f, "$C compile $S -o $D/p --freeze '*'");
    assert_non_null(strstr(text_of(f, "err"), "--train and --freeze leave none"));
    cli_fails(f, 2, "--train '*none*' matches none", "$C compile $S -o $D/p --train '*none*'");
}

/* The picture of who holds the memory: what comes and goes fills its field, the rest is in bands with sizes.
 */
static void test_the_picture_of_memory(void **state) {
    io_fixture *f = *state;
    static const char *const texts[] = {
        ">parameters 1015.",    ">gradients 1015.", ">optimizer state 1.98 MiB",
        ">the process itself ", "(not to scale)",   " come and go<"};
    cli_ok(f, "$C compile $S -o $D/p --seq-len 1024 --chunk 64 && $C inspect $D/p --svg $D/m.svg");
    const char *svg = sbp_arena_strdup(f->arena, text_of(f, "m.svg"));
    double least = 1e9, most = 0;
    int count = 0;
    for (int i = 0; i < SBP_COUNT(texts); i++)
        assert_non_null(strstr(svg, texts[i]));
    for (const char *at = strstr(svg, "<rect x="); at; at = strstr(at + 1, "<rect x=")) {
        double x, y, width, height;
        if (sscanf(at, "<rect x=\"%lf\" y=\"%lf\" width=\"%lf\" height=\"%lf\"", &x, &y, &width, &height) !=
                4 ||
            !strstr(at, "<title>") || strcspn(at, "\n") < (size_t)(strstr(at, "<title>") - at))
            continue;
        least = y < least ? y : least;
        most = y + height > most ? y + height : most;
        count++;
    }
    assert_true(count > 50);
    /* a colour for each kind, and the same in the picture as in the list of them */
    const char *colours[40];
    int kinds = 0;
    for (const char *at = strstr(svg, "width=\"12\" height=\"12\" fill=\""); at;
         at = strstr(at + 1, "width=\"12\" height=\"12\" fill=\"")) {
        colours[kinds] = sbp_arena_strndup(f->arena, at + 29, 7);
        for (int i = 0; i < kinds; i++)
            assert_string_not_equal(colours[i], colours[kinds]);
        assert_true(++kinds < 40);
    }
    assert_true(kinds >= 13);
    assert_non_null(strstr(svg, sbp_arena_printf(f->arena, "fill=\"%s\"><title>", colours[4])));
    assert_true(least >= 59.99 && least < 60.01 && most < 540.01 && most > 500); /* pixels, as printed */
}

/* Where a limit makes it plan again, since a program's process is larger than expected. */
static void test_what_is_planned_again_is_said_once(void **state) {
    io_fixture *f = *state;
    cli_ok(f, "$C compile $S -o $D/p --seq-len 933 --memory 40MiB");
    const char *said = strstr(text_of(f, "err"), "longer than the context");
    assert_non_null(said);
    assert_null(strstr(said + 1, "longer than the context"));
}

int main(int argc, char **argv) {
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_what_is_planned_again_is_said_once, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_saved_set, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_advice, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_longest, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_remedies, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_limits_of_whole_sequences, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_depth, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_frozen_parameters_stay_in_place, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_largest_allocation, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_device_profile, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_inspect_says_what_placement_costs, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_every_format, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_layers_that_are_not_cut, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_frozen_parts, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_the_picture_of_memory, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
