/* Models and data sets by name with the real huggingface_hub, against a server of the Hub's interface on the
 * loopback (tests/hub/fake_hub.py). Skipped where there is no `hf` of huggingface_hub 1.0 or later. */
#include "tests/cli/cli_testing.h"

#include <signal.h>

/* In commands: $H the directory of the server, $T where huggingface_hub keeps things. */
static int hub_setup(void **state) {
    if (cli_setup(state) != 0)
        return -1;
    io_fixture *f = *state;
    unsetenv("HF_HUB_OFFLINE");
    unsetenv("HF_HUB_CACHE");
    setenv("H", io_path(f, "hub"), 1);
    setenv("T", io_path(f, "home"), 1);
    setenv("HF_HOME", io_path(f, "home"), 1);
    setenv("XDG_CACHE_HOME", io_path(f, "cache"), 1);
    setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1", 1);
    setenv("no_proxy", "127.0.0.1", 1);
    cli_ok(
        f,
        "mkdir -p $H/models/org $H/datasets/org/rows/data \"$H/datasets/org/plain\" "
        "\"$H/datasets/org/plain@refs%2Fconvert%2Fparquet/default/train\"; cp -r $G/llama_plain/model "
        "$H/models/org/tiny; echo x >$H/models/org/tiny/pytorch_model.bin; echo x "
        ">$H/models/org/tiny/modeling.py; echo x >$H/models/org/tiny/consolidated.safetensors; "
        "for i in 0 1; do head -4 $G/llama_plain/train.jsonl "
        ">$H/datasets/org/rows/data/train-0000$i-of-00002.jsonl; done; for i in test small; do tail -2 "
        "$G/llama_plain/train.jsonl >$H/datasets/org/rows/data/$i.jsonl; done; echo x "
        ">$H/datasets/org/rows/rows.py; "
        "printf -- '---\\nconfigs:\\n- config_name: default\\n  data_files:\\n  - split: train\\n    path: "
        "data/train-*\\n  - split: test\\n    path: data/test.jsonl\\n- config_name: small\\n  data_files: "
        "data/small.jsonl\\n---\\n# Rows\\n' >$H/datasets/org/rows/README.md; echo x "
        ">$H/datasets/org/plain/README.md; "
        "cp tests/data/rows/plain.parquet "
        "\"$H/datasets/org/plain@refs%2Fconvert%2Fparquet/default/train/0000.parquet\"");
    cli_ok(
        f,
        "python3 tests/hub/fake_hub.py $H $D/port >/dev/null 2>&1 & echo $! >$D/pid; for i in $(seq 200); do "
        "test -s $D/port && break; sleep 0.05; done; test -s $D/port");
    setenv("HF_ENDPOINT", sbp_arena_printf(f->arena, "http://127.0.0.1:%s", cli_text(f, "port")), 1);
    return 0;
}

static int hub_teardown(void **state) {
    io_fixture *f = *state;
    kill((pid_t)strtol(cli_text(f, "pid"), NULL, 10), SIGKILL);
    unsetenv("HF_ENDPOINT");
    return io_teardown(state);
}

static bool is_there(void) {
    return system("hf download --help >/dev/null 2>&1 && python3 -c '' && hf version 2>/dev/null | grep -q "
                  "'version: [1-9]'") == 0;
}

#define TRAIN "$R org/tiny --data org/rows --steps 1 --out none"
#define WIPE "rm -rf $T $D/cache $H/log $H/fault; "

static void test_cold_warm_offline(void **state) {
    io_fixture *f = *state;
    if (!is_there())
        skip();
    cli_ok(f, TRAIN);
    const char *log = cli_text(f, "hub/log");
    static const char *const fetched[] = {"/model.safetensors", "/config.json",
                                          "/data/train-00000-of-00002.jsonl",
                                          "/data/train-00001-of-00002.jsonl", "/README.md"},
                             *const not_fetched[] = {".bin", ".py", "consolidated"};
    for (int i = 0; i < SBP_COUNT(fetched); i++)
        assert_non_null(strstr(log, fetched[i]));
    for (int i = 0; i < SBP_COUNT(not_fetched); i++)
        assert_null(strstr(log, not_fetched[i]));
    cli_ok(f, "rm $H/log; " TRAIN "; test ! -e $H/log"); /* nothing is asked for what is there */
    cli_ok(f, "HF_HUB_OFFLINE=1 " TRAIN "; test ! -e $H/log");
    cli_ok(f, "HF_HUB_OFFLINE=1 $C compile org/tiny -o $D/p; $C compile org/tiny@main -o $D/p");
    cli_fails(f, 4, "HF_HUB_OFFLINE is set", "HF_HUB_OFFLINE=1 $R org/other --data org/rows");
    cli_fails(f, 4, "what it said stands above", "$R org/other --data org/rows");
    cli_fails(f, 4, "what it said stands above", "$R org/tiny@v9 --data org/rows");
    cli_fails(f, 2, "has no split 'dev', but: train, test",
              "$R org/tiny --data org/rows --dataset_train_split dev");
    cli_fails(f, 2, "has the configs default", "$R org/tiny --data org/rows --dataset_config x");
    cli_ok(f, "cp -r $H/models/org/tiny $D/x; mkdir -p $D/org; mv $D/x $D/org/tiny; cp "
              "$G/llama_plain/train.jsonl $D; "
              "rm $H/log; R=$(realpath $R); cd $D; HF_HOME=$D/none $R org/tiny --data train.jsonl --steps 1 "
              "--out none; "
              "test ! -e $H/log"); /* a path of that name */
}

static void test_what_goes_wrong(void **state) {
    io_fixture *f = *state;
    if (!is_there())
        skip();
    cli_fails(f, 4, "what it said stands above",
              "echo cut >$H/fault; HF_HUB_DOWNLOAD_TIMEOUT=1 timeout 100 " TRAIN);
    cli_ok(f, "rm $H/fault; " TRAIN); /* resumed, or fetched anew */
    cli_fails(f, 1, "is damaged: its SHA-256 is", WIPE "echo wrong >$H/fault; " TRAIN);
    cli_ok(f, "rm $H/fault; find $T -path '*/blobs/*' -size +20k -delete; " TRAIN);
    if (system("unshare -rm true 2>/dev/null") == 0) { /* a full disk */
        cli_fails(f, 4, "No space left on device",
                  WIPE "mkdir $T; unshare -rm sh -c 'mount -t tmpfs -o size=40k tmpfs $T; " TRAIN "'");
        assert_non_null(strstr(cli_unfolded(f, "err"), "what it said stands above"));
    }
    cli_fails(f, 3, "is not installed: pip install huggingface_hub",
              WIPE "VIRTUAL_ENV= PATH=/nowhere " TRAIN);
    cli_fails(f, 4, "what it said stands above",
              WIPE "HF_ENDPOINT=http://127.0.0.1:1 " TRAIN); /* no network */
}

/* The split for tests where something is to be evaluated, and parts of a mixture that say config and
 * split. */
static void test_splits(void **state) {
    io_fixture *f = *state;
    if (!is_there())
        skip();
    cli_ok(f, "$R sft --model_name_or_path org/tiny --dataset_name org/rows --eval_strategy no --max_steps 1 "
              "--output_dir none");
    assert_null(strstr(cli_text(f, "hub/log"), "/data/test.jsonl"));
    cli_ok(f, "printf 'model_name_or_path: org/tiny\\ndataset_name: org/rows\\neval_strategy: epoch\\n"
              "per_device_train_batch_size: 4\\nnum_train_epochs: 3\\noutput_dir: %s/o\\n' $D >$D/c.yaml; "
              "$R sft --config $D/c.yaml; grep -c eval_loss $D/o/metrics.jsonl");
    assert_string_equal(cli_text(f, "out"), "4\n"); /* before, after the first two passes, at the end */
    assert_non_null(strstr(cli_text(f, "hub/log"), "/data/test.jsonl"));
    assert_null(strstr(cli_text(f, "hub/log"), "/data/small.jsonl"));
    cli_ok(f, "printf 'datasets:\\n- path: org/rows\\n  name: small\\n- path: org/rows\\n  split: test\\n' "
              ">$D/c.yaml; $R sft --model_name_or_path org/tiny --config $D/c.yaml --output_dir none "
              "--dry-run");
    assert_non_null(strstr(cli_unfolded(f, "out"), "data 4 rows, "));
    assert_non_null(strstr(cli_text(f, "hub/log"), "/data/small.jsonl"));
    cli_fails(f, 2, "has no split 'test', but: train",
              "$R org/tiny --data org/rows:small --eval-strategy steps --out none");
    cli_fails(f, 2, "has the configs default, small: give one",
              "$R org/tiny --data org/rows:none:train --out none");
    cli_ok(f, "$R org/tiny --data $G/llama_plain/train.jsonl --steps 1 --eval-strategy epoch --out none");
    assert_non_null(strstr(cli_unfolded(f, "err"), "has no split 'test', being no data set of the Hub"));
}

/* An adapter names its base, which is fetched; the adapter may lie on the Hub, too. */
static void test_base_of_an_adapter(void **state) {
    io_fixture *f = *state;
    if (!is_there())
        skip();
    cli_ok(f, "$R org/tiny --data org/rows --steps 1 --lora r=2 --out $D/a; grep base_model_name_or_path "
              "$D/a/adapter_config.json");
    assert_non_null(strstr(cli_text(f, "out"), "\"org/tiny\""));
    cli_ok(f, WIPE "$R $D/a --data org/rows --steps 1 --out none");
    assert_non_null(strstr(cli_text(f, "hub/log"), "/org/tiny/resolve/"));
    cli_ok(f, WIPE "mkdir $H/models/org/adapter; cp $D/a/adapter_* $H/models/org/adapter; "
                   "$R org/adapter --data org/rows --steps 1 --out none");
    assert_non_null(strstr(cli_text(f, "hub/log"), "/org/adapter/resolve/"));
    assert_non_null(strstr(cli_text(f, "hub/log"), "/org/tiny/resolve/"));
    cli_ok(f, "rm $H/log; HF_HUB_OFFLINE=1 $R org/adapter --data org/rows --steps 1 --out none; test ! -e "
              "$H/log");
    cli_fails(f, 4, "HF_HUB_OFFLINE is set",
              WIPE "HF_HUB_OFFLINE=1 $R $D/a --data $G/llama_plain/train.jsonl --steps 1 --out none");
}

/* Without configs in its card: what the Hub converted; a script is not fetched. */
static void test_converted_rows(void **state) {
    io_fixture *f = *state;
    if (!is_there())
        skip();
    (void)cli(f, "$R org/tiny --data org/plain --steps 1 --out none");
    assert_non_null(strstr(cli_text(f, "hub/log"), "/default/train/0000.parquet"));
    cli_fails(f, 4, "has no files 'x/train/*.parquet'", "$R org/tiny --data org/plain --dataset_config x");
    cli_fails(
        f, 4,
        "lacks 'x/train/*.parquet' of the data set org/plain (refs/convert/parquet), and HF_HUB_OFFLINE",
        "HF_HUB_OFFLINE=1 $R org/tiny --data org/plain --dataset_config x");
    assert_non_null(strstr(cli_text(f, "err"), "the card of org/plain names no files ('configs')"));
}

#define SECRET "datasets--me--private/snapshots/0123456789012345678901234567890123456789"

static void put_card(const io_fixture *f, const char *config) {
    const char *text =
        sbp_arena_printf(f->arena, "---\nconfigs:\n- config_name: default\n  %s\n---\n", config);
    io_put(io_path(f, "home/hub/datasets--org--evil/snapshots/x/README.md"), text, strlen(text));
}

/* A card names files of its own repository, and nothing that is an option of `hf`: with the network and
 * without, both of which get no further. */
static void test_hostile_cards(void **state) {
    io_fixture *f = *state;
    static const struct {
        const char *config, *message;
    } cases[] = {
        {"data_files:\n  - split: train\n    path: [\"--local-dir=elsewhere\", authorized_keys]",
         "names files that are not read: '--local-dir=elsewhere'"},
        {"data_files: authorized_keys\n  data_dir: --local-dir=elsewhere",
         "names files that are not read: '--local-dir=elsewhere/auth"},
        {"data_files: secret.jsonl\n  data_dir: ../../../" SECRET,
         "names files that are not read: '../../../datasets--me"},
        {"data_files: secret.jsonl\n  data_dir: /etc", "names files that are not read: '/etc/secret"},
        {"data_files: .?/.?/.?/" SECRET "/secret.jsonl", "names files that are not read: '.?/.?"},
    };
    cli_ok(f, "mkdir -p $T/hub/" SECRET
              " $T/hub/datasets--org--evil/snapshots/x $T/hub/datasets--org--evil/refs; "
              "printf x >$T/hub/datasets--org--evil/refs/main; cp $G/llama_plain/train.jsonl $T/hub/" SECRET
              "/secret.jsonl");
#define EVIL "$R $G/llama_plain/model --data org/evil --steps 1 --out none"
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        put_card(f, cases[i].config);
        cli_fails(f, 1, cases[i].message, EVIL);
        cli_fails(f, 1, cases[i].message, "HF_HUB_OFFLINE=1 " EVIL);
    }
    put_card(f, "data_files: rows.jsonl");
    cli_ok(f, "ln -s ../../../" SECRET "/secret.jsonl $T/hub/datasets--org--evil/snapshots/x/rows.jsonl");
    cli_fails(f, 1, "leads out of its repository", "HF_HUB_OFFLINE=1 " EVIL);
    cli_ok(f, "cd $T/hub/datasets--org--evil/snapshots/x; rm rows.jsonl; mkdir data; cp $T/hub/" SECRET
              "/secret.jsonl data/rows.jsonl");
    put_card(f, "data_files: rows.jsonl\n  data_dir: ./data");
    cli_ok(f, "HF_HUB_OFFLINE=1 " EVIL); /* what stays is read */
}

/* A huggingface_hub that reads the last of many --exclude would send what must stay here: it is not asked. */
static void test_an_old_program(void **state) {
    io_fixture *f = *state;
    cli_ok(f, "mkdir $D/bin; printf '#!/bin/sh\\necho \"$@\" >>%s/asked; echo huggingface_hub version: "
              "0.36.2\\n' $D "
              ">$D/bin/hf; chmod +x $D/bin/hf");
    cli_fails(f, 3, "is of huggingface_hub below 1.0: pip install -U huggingface_hub",
              "VIRTUAL_ENV= PATH=$D/bin:$PATH $R org/tiny --data org/rows --out none");
    cli_fails(f, 3, "was not sent to me/result, and '",
              "VIRTUAL_ENV= PATH=$D/bin:$PATH $R $G/llama_plain/model --data $G/llama_plain/train.jsonl "
              "--steps 1 --out "
              "$D/o --push_to_hub --hub_model_id me/result");
    cli_ok(f, "sort -u $D/asked");
    assert_string_equal(cli_text(f, "out"), "version\n");
}

static void test_push(void **state) {
    io_fixture *f = *state;
    if (!is_there())
        skip();
    cli_ok(f,
           "$R org/tiny --data org/rows --steps 1 --out $D/o --push_to_hub --hub_model_id me/result && cmp "
           "$D/o/model.safetensors "
           "$H/models/me/result/model.safetensors && cmp $D/o/config.json $H/models/me/result/config.json && "
           "test ! -e $H/models/me/result/plan.bin && test ! -e $H/models/me/result/run.json");
    cli_ok(f,
           "$R org/tiny --data org/rows --steps 1 --out $D/named --push_to_hub && cmp $D/named/config.json "
           "$H/models/user/named/config.json"); /* as transformers names it: by the directory */
    cli_fails(f, 2, "'a b' is no name of the Hub",
              "$R org/tiny --data org/rows --out $D/q --push_to_hub --hub_model_id 'a b'");
    cli_fails(f, 3, "is not installed",
              "VIRTUAL_ENV= PATH= $R org/tiny --data org/rows --out $D/q --push_to_hub --hub_model_id a/b");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_cold_warm_offline, hub_setup, hub_teardown),
        cmocka_unit_test_setup_teardown(test_what_goes_wrong, hub_setup, hub_teardown),
        cmocka_unit_test_setup_teardown(test_splits, hub_setup, hub_teardown),
        cmocka_unit_test_setup_teardown(test_base_of_an_adapter, hub_setup, hub_teardown),
        cmocka_unit_test_setup_teardown(test_converted_rows, hub_setup, hub_teardown),
        cmocka_unit_test_setup_teardown(test_hostile_cards, hub_setup, hub_teardown),
        cmocka_unit_test_setup_teardown(test_an_old_program, hub_setup, hub_teardown),
        cmocka_unit_test_setup_teardown(test_push, hub_setup, hub_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
