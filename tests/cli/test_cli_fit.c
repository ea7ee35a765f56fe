/* sbpc fit: each cell is what compile plans, whatever the number of threads; what does not fit has a change
 * by which it does; the page is one that runs nothing of a name. */
#include "tests/cli/cli_testing.h"

#include "frontends/formats/files/sha256.h"

#define QWEN "tests/data/configs/Qwen3-0.6B.json"
#define SMALL                                                                                                \
    "memory 3GiB host_memory 3GiB process 500MiB bf16_flops 1e14 fp32_flops 5e13 bf16_attention 8e13\n"      \
    "fp32_attention 3e13 memory_bytes 8e11 row_ops 1e13 link_bytes 2e10 host_bytes 6e10 host_ops 1e11\n"     \
    "disk_bytes 5e9 half_rows 128 command_seconds 4e-6 chunk 512 head_chunk 256\n"

static const sbp_json *cell_of(io_fixture *f, const sbp_json *root, const char *kind, int length) {
    const sbp_json *cells = sbp_json_member(root, "cells");
    for (int64_t i = 0; i < cells->count; i++) {
        const sbp_json *cell = &cells->items[i], *tokens = sbp_json_member(cell, "tokens");
        const char *name;
        assert_ok(f, sbp_json_get_string(f->diag, cell, "kind", SBP_JSON_REQUIRED, &name));
        if (strcmp(name, kind) == 0 && (length > 0 ? tokens->kind == SBP_JSON_INT && tokens->integer == length
                                                   : tokens->kind == SBP_JSON_STRING))
            return cell;
    }
    fail_msg("no cell %s %d", kind, length);
    return NULL;
}

/* What fits is what compile says of the same; what does not is refused there with the change. */
static void test_cells_are_plans(void **state) {
    io_fixture *f = *state;
    static const struct {
        const char *kind, *options;
    } kinds[] = {{"full", ""}, {"lora", "--lora r=4"}, {"qlora", "--lora r=4 --base-dtype nf4"}};
    cli_put(f, "small", SMALL);
    cli_ok(f, "$C fit " QWEN " --cards $D/small --lengths 1k --lora r=4 --host-memory 5GiB --json -j 2");
    const sbp_json *root = cli_json(f, "out");
    for (int k = 0; k < SBP_COUNT(kinds); k++) {
        const sbp_json *cell = cell_of(f, root, kinds[k].kind, 1024),
                       *longest = cell_of(f, root, kinds[k].kind, 0);
        bool fits = sbp_json_member(cell, "fits")->boolean;
        const char *compile = sbp_arena_printf(
            f->arena, "$C compile " QWEN " --device-profile $D/small --host-memory 5GiB --json %s --seq-len",
            kinds[k].options);
        assert_int_equal(fits, k > 0);
        if (!fits) {
            const sbp_json *cheapest = sbp_json_member(cell, "cheapest");
            const char *change;
            assert_non_null(cheapest);
            assert_ok(f, sbp_json_get_string(f->diag, cheapest, "change", SBP_JSON_REQUIRED, &change));
            double seconds = cli_number(f, cheapest, "seconds");
            assert_true(seconds > 0);
            assert_false(sbp_json_member(longest, "fits")->boolean);
            cli_fails(f, 3, change, sbp_arena_printf(f->arena, "%s 1024", compile));
            cli_ok(f, sbp_arena_printf(f->arena, "%s 1024 %s", compile, change));
            /* no other change that trains the same is faster */
            const sbp_json *changes = sbp_json_member(cell, "changes");
            assert_true(changes->count > 2);
            for (int64_t i = 0; i < changes->count; i++) {
                assert_ok(f, sbp_json_get_string(f->diag, &changes->items[i], "change", SBP_JSON_REQUIRED,
                                                 &change));
                if (strncmp(change, "--optimizer", 11) != 0 && strncmp(change, "--seq-len", 9) != 0)
                    assert_true(cli_number(f, &changes->items[i], "seconds") >= seconds);
            }
            continue;
        }
        cli_ok(f, sbp_arena_printf(f->arena, "%s 1024", compile));
        const sbp_json *plan = cli_json(f, "out"), *peak = sbp_json_member(plan, "peak_bytes");
        assert_true(cli_number(f, plan, "seconds") == cli_number(f, cell, "seconds"));
        assert_true(cli_number(f, peak, "device") == cli_number(f, cell, "device_bytes"));
        assert_true(cli_number(f, peak, "host") == cli_number(f, cell, "host_bytes"));
        if (k == 1) {
            cli_ok(f, sbp_arena_printf(f->arena, "%s max", compile));
            assert_true(cli_number(f, sbp_json_member(cli_json(f, "out"), "schedule"), "seq_len") ==
                        cli_number(f, longest, "longest"));
        }
    }
}

/* The table of two models, one with a name that is markup, is as it was when somebody last read it, with any
 * number of threads. */
static void test_table(void **state) {
    io_fixture *f = *state;
    static const char golden[] = "tests/data/fit/small.txt";
    cli_put(f, "small", SMALL);
    cli_ok(f, "mkdir -p \"$D/<b>x&\" && cp $S/config.json \"$D/<b>x&\" && "
              "$C fit $S \"$D/<b>x&/config.json\" " QWEN
              " --cards $D/small,h200 --kinds full,lora --lengths 1k,3000 "
              "-j 3 --html $D/page.html && cp $D/out $D/table");
    const char *table = cli_text(f, "table");
    if (getenv("SBP_UPDATE_GOLDENS"))
        assert_ok(f, sbp_file_write(f->diag, golden, table, strlen(table)));
    const char *wanted;
    size_t length;
    assert_ok(f, sbp_file_read(f->arena, f->diag, golden, &wanted, &length));
    assert_string_equal(table, wanted);
    assert_null(strstr(table, f->directory));
    for (const char *line = table; *line; line += strcspn(line, "\n") + 1)
        if (strcspn(line, "\n") > 98)
            fail_msg("a long line: '%.*s'", (int)strcspn(line, "\n"), line);
    cli_ok(f,
           "$C fit $S \"$D/<b>x&\" " QWEN " --cards $D/small --cards h200 --kinds full+lora --lengths 1024 "
           "--lengths 3000 -j 1 && cmp $D/out $D/table");
}

static int digit_of(char c) {
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = strchr(letters, c);
    return c && at ? (int)(at - letters) : -1;
}

/* The policy allows this one script, by its hash, and nothing that is loaded; a name is text. */
static void test_page(void **state) {
    io_fixture *f = *state;
    cli_ok(f, "mkdir -p \"$D/<img src=x onerror=a()>\\\"'\" && cp $S/config.json \"$D/<img src=x "
              "onerror=a()>\\\"'\" && "
              "$C fit \"$D/<img src=x onerror=a()>\\\"'\" --cards h200 --kinds full --lengths 256 --html "
              "$D/page.html");
    const char *page = sbp_arena_strdup(f->arena, cli_text(f, "page.html"));
    assert_non_null(strstr(page, "&lt;img src=x onerror=a()&gt;&quot;&#39;</td>"));
    static const char *const absent[] = {"<img",  "http:", "https:",  " src=\"",
                                         "href=", "url(",  "import(", "fetch("};
    for (int i = 0; i < SBP_COUNT(absent); i++)
        if (strstr(page, absent[i]))
            fail_msg("the page has '%s'", absent[i]);
    assert_null(strstr(page, f->directory));
    const char *policy = strstr(
                   page, "content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-"),
               *begin = strstr(page, "<script>"), *end = strstr(page, "</script>");
    assert_true(policy && begin && end && !strstr(begin + 1, "<script"));
    char hex[65], told[65];
    sbp_sha256 hash = sbp_sha256_begin();
    sbp_sha256_add(&hash, begin + 8, (size_t)(end - begin - 8));
    sbp_sha256_end(&hash, hex);
    const char *letters = strstr(policy, "sha256-") + 7;
    unsigned bits = 0;
    int have = 0, bytes = 0;
    for (; digit_of(*letters) >= 0; letters++) {
        bits = bits << 6 | (unsigned)digit_of(*letters);
        have += 6;
        if (have >= 8 && bytes < 32) {
            have -= 8;
            snprintf(told + 2 * bytes++, 3, "%02x", bits >> have & 255);
        }
    }
    assert_string_equal(told, hex);
    assert_int_equal(strncmp(letters, "='\">", 4), 0);
}

static void test_host_memory(void **state) {
    io_fixture *f = *state;
    cli_ok(f, "$C fit $S --cards rtx4090-24gb,l40s-48gb,rtx5090-32gb,h200 --kinds full --lengths 64");
    assert_non_null(strstr(cli_unfolded(f, "out"),
                           "rtx4090-24gb 24.00 GiB and 64.00 GiB; l40s-48gb 44.70 GiB and 128.00 "
                           "GiB; rtx5090-32gb 32.00 GiB and 64.00 GiB; h200 131.32 GiB and 256.00 GiB"));
    cli_ok(f, "$C fit $S --cards rtx4090-24gb --kinds full --lengths 64 --host-memory 5GiB");
    assert_non_null(strstr(cli_unfolded(f, "out"), "rtx4090-24gb 24.00 GiB and 5.00 GiB"));
    cli_ok(f, "$C fit --cards list");
    assert_non_null(strstr(cli_text(f, "out"), "h200           131.32 GiB, 256.00 GiB of the host\n"));
}

/* For a name on the Hub config.json is fetched, and nothing else. */
static void test_hub_name(void **state) {
    io_fixture *f = *state;
    cli_put(f, "hf",
            "#!/bin/sh\necho \"$@\" >>$D/args\nm=$HF_HUB_CACHE/models--org--name\nmkdir -p $m/refs "
            "$m/snapshots/1\n"
            "printf 1 >$m/refs/main\ncp tests/data/stories260K/config.json $m/snapshots/1\n");
    cli_ok(f, "unset HF_HUB_OFFLINE VIRTUAL_ENV; export HF_HUB_CACHE=$D/hub PATH=$D:$PATH; chmod +x $D/hf && "
              "$C fit org/name --cards h200 --kinds lora --lengths 64");
    assert_string_equal(
        cli_text(f, "args"),
        "version\ndownload org/name --repo-type=model --revision=main --include=config.json\n");
    assert_int_equal(strncmp(cli_text(f, "out"), "name (llama), 260K parameters, made for 512 tokens\n", 50),
                     0);
}

static void test_errors(void **state) {
    io_fixture *f = *state;
    cli_fails(f, 2, "no MODEL was given", "$C fit --lengths 8k");
    cli_fails(f, 2, "--kinds dora: expected full, lora or qlora", "$C fit $S --kinds full,dora");
    cli_fails(f, 2, "--lengths 8x: expected numbers of tokens", "$C fit $S --lengths 8x");
    cli_fails(f, 2, "it is neither a file, nor a size such as 24GiB, nor one of h100-80gb",
              "$C fit $S --cards h300");
    cli_fails(f, 2, "--seq-len is not for sbpc fit: use --lengths", "$C fit $S --seq-len 8");
    cli_fails(f, 2, "--device-profile is not for sbpc fit: use --cards", "$C fit $S --device-profile h200");
    cli_fails(f, 2, "--zero 2 needs several ranks", "$C fit $S --zero 2 --cards h200 --lengths 64");
    cli_put(f, "other.json", "{\"model_type\": \"rwkv7\"}");
    cli_fails(f, 1, "'rwkv7'", "$C fit $D/other.json --cards h200 --lengths 64");
    cli_ok(f, "$C fit $D/other.json $S --cards h200 --lengths 64 --kinds lora");
    assert_non_null(strstr(cli_text(f, "err"), "other.json: "));
    assert_non_null(strstr(cli_text(f, "err"), "'rwkv7'"));
    assert_null(strstr(cli_text(f, "out"), "other"));
    assert_non_null(strstr(cli_text(f, "out"), "\nh200           lora"));
    cli_ok(f, "$C fit --help");
    assert_non_null(strstr(cli_text(f, "out"), "\n  --cards h200 "));
}

/* A card goes by what tells it from the others, or by its memory; and what "full" leaves frozen, and the
 * context that a model was made for, are said. */
static void test_cards_and_parts(void **state) {
    io_fixture *f = *state;
    static const char *const names[] = {"rtx4090-24gb", "l4-24gb", "a100-40gb", "10GiB"};
    const char *name;
    cli_ok(f, "$C fit $S --cards 4090,L4,a100-40gb,10GiB --kinds full --lengths 256 --json");
    const sbp_json *cards = sbp_json_member(cli_json(f, "out"), "cards");
    assert_int_equal(cards->count, SBP_COUNT(names));
    for (int i = 0; i < SBP_COUNT(names); i++) {
        assert_ok(f, sbp_json_get_string(f->diag, &cards->items[i], "card", SBP_JSON_REQUIRED, &name));
        assert_string_equal(name, names[i]);
    }
    assert_true(cli_number(f, &cards->items[3], "memory_bytes") == 10.0 * (1 << 30));
    cli_fails(f, 2, "--cards T4: it is neither", "$C fit $S --cards T4 --lengths 256");
    cli_fails(f, 2, "--cards a100: it is neither",
              "$C fit $S --cards a100 --lengths 256"); /* there are two */
    cli_fails(f, 2, "no card that is known here has as much memory",
              "$C fit $S --cards 900GiB --lengths 256");

    cli_ok(f, "$C fit $G/gpt_oss_mxfp4_v/model --cards l4 --kinds full,lora --lengths 64 --html $D/page.html "
              ">$D/text && "
              "$C fit $G/gpt_oss_mxfp4_v/model --cards l4 --kinds full --lengths 64 --json");
    const sbp_json *root = cli_json(f, "out"), *cell = &sbp_json_member(root, "cells")->items[0],
                   *model = &sbp_json_member(root, "models")->items[0];
    assert_true(cli_number(f, cell, "trained") > 0 &&
                cli_number(f, cell, "trained") < cli_number(f, model, "parameters"));
    assert_true(cli_number(f, model, "context") > 0);
    const char *text = sbp_arena_strdup(f->arena, cli_text(f, "text")),
               *at = strstr(text, " parameters: the rest is frozen\n");
    assert_true(at && !strstr(at + 20, "the rest is frozen")); /* adapters promise nothing else */
    assert_non_null(strstr(text, " parameters, made for "));
    assert_non_null(strstr(cli_text(f, "page.html"), "full<small>"));
    assert_non_null(strstr(cli_text(f, "page.html"), "<th class=\"c\">Context</th>"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_cells_are_plans, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_table, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_cards_and_parts, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_page, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_host_memory, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_hub_name, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_errors, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
