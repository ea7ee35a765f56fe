/* What goes wrong: exit statuses and messages of sbprun, and nothing half-written. */
#include "tests/cli/cli_testing.h"

#include "frontends/formats/weights/safetensors.h"

#define COMPILE "$C compile $S -o $D/p --seq-len 300"
#define DATA "$G/stories260k_trl/train.jsonl"

static void test_usage(void **state) {
    io_fixture *f = *state;
    cli_ok(f, COMPILE " --chunk 64");
    static const struct {
        const char *command, *message;
    } cases[] = {
        {"$R", "expected one plan or model, found 0 arguments"},
        {"$R $D/p", "--data FILE.jsonl is missing"},
        {"$R $D/p $D/p --data " DATA, "found 2 arguments"},
        {"$R $D/p --data " DATA " --lerning_rate 1", "the nearest is '--learning_rate'"},
        {"$R $D/p --data " DATA " --chunk 32", "--chunk was decided when"},
        {"$R $D/p --data " DATA " --chunk 32", "as 64; compile again"},
        {"$R $D/p --data " DATA " --max_length 100", "--seq-len was decided when"},
        {"echo 'chunk: 32' >$D/c; $R $D/p --data " DATA " --config $D/c", "c: --chunk was decided when"},
        {"$R $D/p --data " DATA " --lora r=8", "--lora was decided when"},
        {"$R export $D/o --to gguf", "unknown option '--to'"},
        {"$R $D/p --data " DATA " --num-cycles 2",
         "--schedule num_cycles has no effect with --schedule linear"},
        {"$R $D/p --data " DATA " --schedule cosine_with_min_lr",
         "needs one of the keys min_lr and min_lr_rate"},
        {"$R $D/p --data " DATA " --batch-size 4 --batch-tokens 100", "give one of them"},
        {"$R $D/p --eval " DATA " --score $D/s", "--score needs --data"},
        {"$R $D/p --data " DATA " --reward-weights 1,2", "--reward-weights needs --reward"},
        {"$R $D/p --data " DATA " --weights random:x", "expected a whole number as seed"},
        {"$R $D/p " DATA, "rows are given with --data FILE.jsonl"},
        {"$C compile $S -o $D/p --memory 16",
         "--memory: found '16', which is too small; expected a size such as 80GiB"},
        {"$R $D/p --data " DATA " --bf16", "--dtype was decided when"},
        {"$R $D/p --data " DATA " --fp16", "--fp16: use --dtype bf16"},
        {"$R $D/p --data " DATA " --use_peft --lr 1", "--lora was decided when"},
        {"$R $D/p --data " DATA " --lora_r 8", "--lora r was decided when"},
        {"$R $D/p --data " DATA " --neftune_noise_alpha 5", "there is no noise on embeddings"},
        {"$C inspect $D/p --svg $D/x.png", "the file name must end in .svg"},
        {"$R tokenize", "expected one model or plan, found 0"},
        {"$R tokenize $S --chat-template nothing", "no file, no directory with a template"},
        {"$R tokenize $S --lr 1", "--lr is an option of sbprun"},
        {"echo '{\"chosen\": \"a\", \"rejected\": \"b\"}' | $R $D/p --data -",
         "are preference pairs, and sft trains on single texts: use --objective dpo"},
    };
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        cli_fails(f, 2, cases[i].message, cases[i].command);
        assert_null(strstr(cli_text(f, "err"), "error: sbprun: ")); /* said once */
    }
    cli_ok(f, COMPILE " --optimizer none");
    cli_fails(f, 2, "has no optimizer", "$R $D/p --data " DATA);
    cli_ok(f, "$R $D/p --data " DATA " --score $D/s.jsonl");
    cli_ok(f, "$R $D/p --data " DATA " --dump-gradients $D/g.safetensors");
    cli_ok(f, COMPILE);
    cli_ok(f, "echo 'chunk: auto' >$D/c; $R $D/p --data " DATA " --config $D/c --steps 1 --out none");
}

static void test_help_and_version(void **state) {
    io_fixture *f = *state;
    cli_ok(f, "$R --help");
    assert_non_null(strstr(cli_text(f, "out"), "--lr 2e-4"));
    assert_null(strstr(cli_text(f, "out"), "--zero"));
    assert_string_equal(cli_text(f, "err"), "");
    cli_ok(f, "$R tokenize --help");
    assert_non_null(strstr(cli_text(f, "out"), "--decode"));
    cli_ok(f, "$R --version");
    assert_non_null(strstr(cli_text(f, "out"), "sbprun "));
    cli_ok(f, "$R --devices");
    assert_non_null(strstr(cli_text(f, "out"), "cpu: "));
    cli_ok(f, "$R --devices --json");
    const sbp_json *devices = cli_json(f, "out");
    int processors = 0; /* GPUs, real or in software, may be listed beside it */
    for (int64_t i = 0; i < devices->count; i++)
        if (strcmp(sbp_json_member(&devices->items[i], "backend")->string, "cpu") == 0) {
            assert_true(cli_number(f, &devices->items[i], "threads") >= 1);
            processors++;
        }
    assert_int_equal(processors, 1);
    cli_fails(f, 4, "cannot write to standard output", "$R --help >/dev/full");
}

static void test_rows(void **state) {
    io_fixture *f = *state;
    cli_ok(f, COMPILE);
    static const struct {
        const char *rows, *message;
    } cases[] = {
        {"{\"text\": \"a\"}\n{\"text\": 3}\n", "d:2: text: expected a string, found an integer"},
        {"{\"text\": \"a\"}\n\n{\"txt\": \"a\"}\n",
         "d:3: found 'txt'; the first row has 'text', and so must all"},
        {"{\"text\": \"a\"}\n{\"input_ids\": [1]}\n", "d:2: found a row with 'input_ids'"},
        {"{\"text\": \"a\"\n", "d:1:12: not valid JSON: '}' expected"},
        {"{\"text\": \"a\"}\nhello\n", "d:2:5: not valid JSON: invalid token near 'hello'"},
        {"[\n{\"text\": \"a\"},\n {\"text\": 3}]\n", "d:3: text: expected a string, found an integer"},
        {"[{\"text\": \"a\"}\n", "d:2: expected ',' or ']', found the end of the file"},
        {"text,n\na,1\n\"b\n", "d:3: a quoted field has no end"},
        {"text,n\na,1\nb\n", "d:3: 1 field, the first line names 2 columns (the file is read as CSV)"},
        {"Once upon\na time\n", "/d').read()}))\" > data.jsonl"},
        {"[1]\n", "note: rows are JSON objects, each on a line of its own"},
        {"{\"input_ids\": [1, 512]}\n",
         "d:1: input_ids[1]: expected an id below the vocabulary's 512, found 512"},
        {"{\"input_ids\": [1, 2], \"labels\": [1]}\n", "labels: expected as many items"},
        {"", "no rows"},
        {"{\"prompt\": \"a\"}\n", "expected 'text', 'messages', 'prompt' and 'completion'"},
    };
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        cli_put(f, "d", cases[i].rows);
        cli_fails(f, 1, cases[i].message, "$R $D/p --data $D/d --out $D/o");
        cli_fails(f, 1, cases[i].message, "$R $D/p --eval $D/d --data " DATA " --out $D/o");
    }
    cli_fails(f, 1, "standard input:1: text: expected a string", "echo '{\"text\": 1}' | $R $D/p --data -");
    assert_false(sbp_directory_exists(io_path(f, "o"))); /* nothing was begun */
    /* what `sbprun MODEL` looks at before there is a plan */
    cli_fails(f, 1, "none' is neither a plan nor a model", ": >$D/none; $R $D/none --data " DATA);
    cli_fails(f, 1, "LICENSE' is neither a plan nor a model", "$R LICENSE --data " DATA);
    cli_fails(f, 1, "'tests' has no config.json", "$R tests --data " DATA);
    cli_fails(f, 1, "/m' has no weights: give --weights",
              "mkdir $D/m; cp $S/config.json $S/tokenizer.json $D/m; $R $D/m --data " DATA);
    /* pickles */
    cli_fails(f, 1,
              "m/pytorch_model.bin: weights in pickle are not read, since loading them can run any code",
              "printf 'PK\\003\\004 and more' >$D/m/pytorch_model.bin; $R $D/m --data " DATA);
    cli_fails(f, 1, "M.from_pretrained('", "$R $S --weights $D/m --data " DATA);
    cli_fails(f, 1, "weights in pickle are not read", "$R $S --weights $D/m/pytorch_model.bin --data " DATA);
    cli_ok(
        f,
        "$C compile $D/m -o $D/q && cp $S/model.safetensors $D/m/other.bin && $R $S --weights $D/m/other.bin "
        "--steps 1 --out none --data " DATA);
    assert_true(cli_exists(f, "q"));
    cli_put(f, "d", "{\"input_ids\": [1, 2]}\n{\"input_ids\": [1, 600]}\n");
    cli_fails(f, 1, "data row 2 (from 1): token 1: id 600 is not below the model's vocabulary of 512",
              "$R $S --data $D/d");
}

/* A tokenizer of another kind: ids can still be trained on, and the model keeps its files. */
static void test_tokenizers_that_cannot_be_used(void **state) {
    io_fixture *f = *state;
    static const char kind[] = "/m/tokenizer.json: model: the model type 'Markov' is not supported, only BPE";
    cli_ok(f, "mkdir $D/m; cp $S/config.json $S/model.safetensors $D/m");
    cli_put(f, "m/tokenizer.json", "{\"model\": {\"type\": \"Markov\", \"vocab\": {\"a\": 0}}}\n");
    cli_put(f, "t", "{\"text\": \"a\"}\n");
    cli_put(f, "d", "{\"input_ids\": [1, 2, 3]}\n");
    cli_ok(f, "$C compile $D/m -o $D/p");
    assert_non_null(strstr(cli_text(f, "err"), kind));
    cli_fails(f, 1,
              "t:1: rows of text need a tokenizer, and no tokenizer.json was read: add one, or use input_ids",
              "$R $D/p --data $D/t");
    cli_fails(f, 1, "t:1: rows of text need a tokenizer", "$R $D/m --data $D/t --out $D/o");
    assert_non_null(strstr(cli_text(f, "err"), kind));
    cli_fails(f, 1, kind, "$R tokenize $D/m <$D/t");
    cli_ok(f, "$R $D/m --data $D/d --steps 1 --out $D/o; cmp $D/m/tokenizer.json $D/o/tokenizer.json");
    cli_ok(f, "mv $D/m/tokenizer.json $D/m/tokenizer.model; $R $D/m --data $D/d --steps 1 --out $D/o2");
    cli_ok(f, "cmp $D/m/tokenizer.model $D/o2/tokenizer.model");
}

/* A tokenizer.model alone: the result has what it was read as, too. */
static void test_tokenizers_of_other_formats(void **state) {
    io_fixture *f = *state;
    cli_ok(f, "mkdir $D/m; cp $S/config.json $S/model.safetensors $D/m; cp tests/data/tokenizers/llama.model "
              "$D/m/tokenizer.model");
    cli_put(f, "t", "{\"text\": \"One day a girl\"}\n");
    cli_ok(f, "$C compile $D/m -o $D/p && $R $D/p --data $D/t --steps 1 --out $D/o");
    cli_ok(f, "cmp $D/m/tokenizer.model $D/o/tokenizer.model && $R tokenize $D/m <$D/t >$D/a && rm "
              "$D/o/tokenizer.model && "
              "$R tokenize $D/o <$D/t >$D/b && cmp $D/a $D/b && grep -q '\"input_ids\": .1, ' $D/a");
}

static void test_long_documents(void **state) {
    io_fixture *f = *state;
    cli_ok(f, "$C compile $S -o $D/p --seq-len 200");
    cli_fails(f, 1,
              "the plan has room for 200; 8 such rows, the longest of 255 tokens: compile with --seq-len 255",
              "$R $D/p --data " DATA " --out $D/o");
    assert_false(sbp_directory_exists(io_path(f, "o")));
    cli_ok(f, "$R $D/p --data " DATA " --overlong truncate --dry-run --json");
    assert_int_equal(cli_number(f, cli_json(f, "out"), "longest"), 200);
    assert_int_equal(cli_number(f, cli_json(f, "out"), "rows"), 200);
    assert_non_null(strstr(cli_text(f, "err"), "8 of 200 rows cut"));
    cli_ok(f, "$R $D/p --data " DATA " --overlong drop --dry-run --json");
    assert_int_equal(cli_number(f, cli_json(f, "out"), "rows"), 192);
    cli_ok(f, "$R $D/p --data " DATA " --overlong split --dry-run --json");
    assert_int_equal(cli_number(f, cli_json(f, "out"), "documents"), 208);
    assert_int_equal(cli_number(f, cli_json(f, "out"), "tokens"), 12996);
    cli_ok(f, "$C compile $S -o $D/p --seq-len 300 --accumulate 1");
    cli_fails(f, 1,
              "micro-batches of at most 300 tokens, the plan accumulates 1: give a smaller --batch-size",
              "$R $D/p --data " DATA " --out $D/o --steps 5");
    assert_false(sbp_directory_exists(io_path(f, "o")));
    cli_ok(f, "$R $D/p --data " DATA " --steps 5 --batch-tokens 300 --out none");
}

static void test_files(void **state) {
    io_fixture *f = *state;
    cli_ok(f, COMPILE);
    static const struct {
        const char *command, *message;
    } cases[] = {
        {"$R $D/none --data " DATA, "cannot read"},
        {"$R $D/p --data $D/none", "none': No such file"},
        {"$R $D/p --data $D", "has no files of rows (.jsonl, "},
        {"$R $D/p --data " DATA " --eval $D/none", "none': No such file"},
        {"$R $D/p --data " DATA " --config $D/none", "none': No such file"},
        {"$R $D/p --data " DATA " --weights $D/none", "none"},
        {"$R $D/p --data " DATA " --out $D/p", "not a directory"},
        {"$R $D/p --data " DATA " --out $D/p/o", "cannot create the directory"},
        {"$R $D/p --data " DATA " --out /proc/o", "cannot create the directory"},
        {"$R $D/p --data " DATA " --score $D/none/s", "cannot"},
        {"$R $D/p --data " DATA " --dump-gradients $D/none/g", "none/g"},
        {"$R $D/p --data " DATA " --score /dev/full", "No space left"},
        {"$R $D/p --data " DATA " --steps 1 --out none --json >/dev/full", "cannot write to standard output"},
        {"mkdir $D/full; ln -s /dev/full $D/full/metrics.jsonl; $R $D/p --data " DATA
         " --out $D/full --steps 2",
         "metrics.jsonl': No space left"},
        {"$R tokenize $D/none", "none"},
    };
    for (int i = 0; i < SBP_COUNT(cases); i++)
        cli_fails(f, 4, cases[i].message, cases[i].command);
    cli_ok(f, "ls -A $D");
    assert_null(strstr(cli_text(f, "out"), "XX"));
}

/* Checkpoints are counted before the first step; where they do not fit, nothing is left behind. */
static void test_no_room_for_checkpoints(void **state) {
    io_fixture *f = *state;
    cli_ok(f, COMPILE);
    cli_fails(f, 3, "--keep, --save-every and --out",
              "$R $D/p --data " DATA " --out $D/o --steps 1000000000000 --save-every 1 --keep all");
    cli_ok(f, "test ! -e $D/o");
}

/* Every part of a plan is covered by a checksum; a prefix of it is no plan. */
static void test_broken_plans(void **state) {
    io_fixture *f = *state;
    cli_ok(f, COMPILE);
    static const char *const cuts[] = {"8", "20", "40", "100", "5000", "$(($(stat -c %s $D/p) - 1))"};
    for (int i = 0; i < SBP_COUNT(cuts); i++)
        cli_fails(f, 1, "q",
                  sbp_arena_printf(f->arena, "head -c %s $D/p >$D/q; $R $D/q --data " DATA, cuts[i]));
    cli_fails(
        f, 1, "q",
        "cp $D/p $D/q; printf X | dd of=$D/q bs=1 seek=3000 conv=notrunc status=none; $R $D/q --data " DATA);
    cli_fails(f, 1, "q",
              "head -c 4 $D/p >$D/q; $R $D/q --data " DATA " --seq-len 300"); /* taken for a model */
}

/* ---- weights ---------------------------------------------------------------------------------------- */

/* A copy of the model in $D/m without, or with another, tensor. */
static void put_model(io_fixture *f, const char *leave_out, const char *spoil, double value) {
    sbp_weights *w;
    cli_ok(f, "rm -rf $D/m; cp -r $S $D/m; rm $D/m/model.safetensors");
    assert_ok(f, sbp_weights_open(f->arena, f->diag, "tests/data/stories260K", &w));
    sbp_tensor_spec specs[100];
    int32_t count = 0, kept[100];
    for (int32_t i = 0; i < sbp_weights_count(w); i++) {
        const sbp_weight *t = sbp_weights_at(w, i);
        if (leave_out && strcmp(t->name, leave_out) == 0)
            continue;
        kept[count] = i;
        specs[count++] = (sbp_tensor_spec){t->name, SBP_F32, t->rank, t->dim};
    }
    sbp_safetensors_writer *writer;
    assert_ok(f, sbp_safetensors_writer_create(f->arena, f->diag, io_path(f, "m/model.safetensors"), specs,
                                               count, NULL, 0, 0, &writer));
    for (int32_t i = 0; i < count; i++) {
        const sbp_weight *t = sbp_weights_at(w, kept[i]);
        float *data = calloc((size_t)t->elems, sizeof *data);
        assert_ok(f, sbp_weights_read(w, t, 0, t->elems, SBP_F32, data, f->diag));
        if (spoil && strcmp(t->name, spoil) == 0)
            data[3] = (float)value;
        assert_ok(f, sbp_safetensors_writer_write(writer, f->diag, data, t->elems * (int64_t)sizeof *data));
        free(data);
    }
    assert_ok(f, sbp_safetensors_writer_commit(writer, f->diag));
    sbp_weights_close(w);
}

static void test_weights(void **state) {
    io_fixture *f = *state;
    static const char name[] = "model.layers.2.mlp.up_proj.weight";
    cli_ok(f, COMPILE);
    put_model(f, name, NULL, 0);
    cli_fails(f, 1, name, "$R $D/p --data " DATA " --weights $D/m --out $D/o");
    put_model(f, NULL, name, NAN);
    cli_fails(f, 1, name, "$R $D/p --data " DATA " --weights $D/m --out $D/o");
    put_model(f, NULL, name, 0.5);
    cli_ok(f, "$R $D/p --data " DATA " --weights $D/m --steps 1 --out none");
    cli_fails(f, 1, "model.safetensors",
              "truncate -s 500000 $D/m/model.safetensors; $R $D/p --data " DATA " --weights $D/m --out $D/o");
    cli_fails(f, 1, "shape",
              "$C compile $G/llama_plain/model -o $D/q --seq-len 100; $R $D/q --data "
              "$G/llama_plain/train.jsonl --weights "
              "$G/llama_mha/model");
    cli_fails(f, 1, "compiled without weights: give --weights",
              "mkdir $D/c; cp $S/config.json $S/tokenizer.json $D/c; $C compile $D/c -o $D/q; $R $D/q "
              "--data " DATA);
    assert_false(cli_exists(f, "o/model.safetensors"));
}

/* The run ends before bad numbers reach a file. */
static void test_numbers_that_are_not_finite(void **state) {
    io_fixture *f = *state;
    cli_ok(f, COMPILE " --clip none");
    cli_fails(
        f, 5, "training ends; the last checkpoint stays",
        "$R $D/p --data " DATA
        " --lr 1 --weight-decay 1e6 --schedule constant --steps 40 --save-every 1 --out $D/o --shuffle off");
    assert_false(cli_exists(f, "o/model.safetensors"));
    cli_ok(f, "ls -d $D/o/checkpoint-1 || ls -d $D/o/checkpoint-*");
    put_model(f, NULL, "model.embed_tokens.weight", 3e38);
    cli_fails(f, 5, "step 1", "$R $D/p --data " DATA " --weights $D/m --steps 3 --out $D/n");
    assert_null(strstr(cli_text(f, "err"), "checkpoint")); /* there is none */
    cli_fails(f, 5, "", "$R $D/p --data " DATA " --weights $D/m --dump-gradients $D/g");
    assert_false(cli_exists(f, "g"));
    cli_fails(f, 5, "log-probability", "$R $D/p --data " DATA " --weights $D/m --score $D/s");
    assert_false(cli_exists(f, "s"));
}

static void test_memory(void **state) {
    io_fixture *f = *state;
    cli_ok(f, "$C compile $S -o $D/p --seq-len 1000000000");
    cli_fails(f, 3, "needs", "$R $D/p --data " DATA " --out $D/o");
    assert_false(cli_exists(f, "o/run.json"));
}

/* Data in other formats, and models that are not here: what makes of them what is read. */
static void test_other_formats_and_places(void **state) {
    io_fixture *f = *state;
    static const struct {
        int status;
        const char *command, *message;
    } cases[] = {
        {1, "(printf PAR1; head -c 100 /dev/zero) >$D/d.parquet; $R $D/p --data $D/d.parquet",
         "d.parquet' (Parquet) is damaged: its end is missing: was it downloaded as a whole?"},
        {1, "gzip -c " DATA " | head -c 100 >$D/d.gz; $R $D/p --data $D/d.gz",
         "d.gz': the compressed data end in the middle"},
        {1, "printf 'PK\\3\\4' >$D/d.xlsx; $R $D/p --data $D/d.xlsx",
         "d.xlsx' is a zip archive (or a spreadsheet), which is not read here: unzip '"},
        {4, "$R $D/p --data '$D/*.none'", "no file matches '"},
        {4, "HF_HUB_CACHE=$D/hub $R org/name --data " DATA, "HF_HUB_OFFLINE is set: nothing is fetched"},
        {3, "HF_HUB_OFFLINE=0 VIRTUAL_ENV= PATH= HF_HUB_CACHE=$D/hub $R org/name --data " DATA,
         "is not installed: pip install huggingface_hub"},
        {4, "HF_HUB_CACHE=$D/hub $R org/name@../x --data " DATA, "cannot read 'org/name@../x'"},
        {0, "$R help", ""},
        {0, "$R $D/p --data " DATA " --steps 0 --out none", "0 steps: nothing was trained"},
        {0, "head -3 " DATA " | $R $D/p --data - --score $D/s.jsonl",
         "the log-probabilities of 3 documents are in"},
    };
    cli_ok(f, COMPILE);
    for (int i = 0; i < SBP_COUNT(cases); i++)
        cli_fails(f, cases[i].status, cases[i].message, cases[i].command);
}

/* What is lacking is said by the limit that is the nearest. */
static void test_limits_of_the_process(void **state) {
    io_fixture *f = *state;
    static const struct {
        int kib;
        const char *command, *message;
    } cases[] = {
        {24000, "$R $D/p --data " DATA " --out none", "' needs "},
        {60000, "$R $D/p --data " DATA " --out none --steps 1",
         "cannot start 8 threads with their stacks and"},
        {30000, "$C compile $S -o $D/q --seq-len 300", "out of memory ("},
        {40000, "yes aaaaaaaa | head -c 10000000 | tr -d '\\n' | sed 's/.*/\"&\"/' | $R tokenize $S",
         "standard input:1: out of memory"},
    };
    cli_ok(f, COMPILE " --chunk 64");
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        cli_fails(f, 3, cases[i].message,
                  sbp_arena_printf(f->arena, "ulimit -v %d; %s%s", cases[i].kib, cases[i].command,
                                   i == 1 ? " --threads 8" : ""));
        assert_true(i == 3 || strstr(cli_text(f, "err"), " (ulimit -v)"));
    }
}

/* A limit of memory that nobody gave, and a plan that is too large for this machine, say whose limit it is.
 */
static void test_whose_limit_it_is(void **state) {
    io_fixture *f = *state;
    cli_fails(f, 3, "sbprun: note: --memory was not given: ",
              "ulimit -v 400000; $R $S --data " DATA " --out $D/o --steps 1 --seq-len 500000 --save none");
    const char *err = sbp_arena_strdup(f->arena, cli_text(f, "err"));
    if (!strstr(err, ", --memory is ") || !strstr(err, " MiB are left of 390.62 MiB (ulimit -v)") ||
        strstr(err, "out of memory")) /* sbpc has said why */
        fail_msg("%s", err);
    static const char compile[] = "ulimit -v 400000; $C compile $S --save none --seq-len ";
    cli_ok(f, sbp_arena_printf(f->arena, "%s 500000 -o $D/q", compile));
    assert_non_null(
        strstr(cli_text(f, "err"), " GiB, and ulimit -v allows 390.62 MiB: sbprun will not run it here"));
    assert_non_null(strstr(cli_text(f, "err"), "fits       no: "));
    assert_non_null(strstr(cli_text(f, "err"), " in 390.62 MiB (ulimit -v)"));
    cli_ok(f, sbp_arena_printf(f->arena, "%s 500 -o $D/q", compile));
    assert_null(strstr(cli_text(f, "err"), "warning"));
    cli_ok(f, sbp_arena_printf(f->arena, "%s 500000 --device-profile rtx4090-24gb", compile));
    assert_null(strstr(cli_text(f, "err"), "warning"));
    cli_fails(f, 3, ", the memory of --device-profile cpu is 390.62 MiB: ",
              sbp_arena_printf(f->arena, "%s 500000 --device-profile cpu", compile));
}

static void test_more_threads_than_help(void **state) {
    io_fixture *f = *state;
    cli_ok(f, COMPILE " --chunk 64");
    cli_ok(f, "$R $D/p --data " DATA " --steps 2 --out $D/a --threads 2");
    cli_ok(f, "$R $D/p --data " DATA " --steps 2 --out $D/b --threads 1000");
    static const char begin[] = "note: --threads 1000: ";
    const char *note = strstr(sbp_arena_strdup(f->arena, cli_text(f, "err")), begin);
    assert_non_null(note);
    int used = atoi(note + strlen(begin));
    assert_true(used >= 16 && used < 1000);
    cli_same(f, "a/model.safetensors", "b/model.safetensors");
}

/* Nobody ever writes into this pipe. */
static void test_pipes_do_not_block(void **state) {
    io_fixture *f = *state;
    cli_ok(f, COMPILE);
    cli_ok(
        f,
        "mkfifo $D/w.safetensors && mkdir $D/m && cp $S/config.json $D/m && mkfifo $D/m/model.safetensors");
    cli_fails(f, 4, "w.safetensors': it is not a regular file",
              "timeout -k 1 300 $R $D/p --data " DATA " --out none --weights $D/w.safetensors");
    cli_fails(f, 4, "w.safetensors': it is not a regular file",
              "timeout -k 1 300 $R $D/w.safetensors --data " DATA);
    cli_fails(f, 4, "m/model.safetensors': it is not a regular file",
              "timeout -k 1 300 $C compile $D/m -o $D/q --seq-len 300");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_usage, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_help_and_version, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_rows, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_tokenizers_that_cannot_be_used, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_tokenizers_of_other_formats, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_long_documents, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_files, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_no_room_for_checkpoints, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_broken_plans, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_weights, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_numbers_that_are_not_finite, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_memory, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_other_formats_and_places, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_limits_of_the_process, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_whose_limit_it_is, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_more_threads_than_help, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_pipes_do_not_block, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
