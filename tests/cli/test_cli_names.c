/* A model whose parameters are called as row inputs, buffers of the passes, outputs of the head and each
 * other's gradients are, through compile, training and resume: the bits of the model with names of its own,
 * under the names of the source. */
#include "tests/cli/cli_testing.h"

#define PLAIN "tests/data/onnx/odd_layers.json"

/* Parameters, then values between operators. */
static const struct {
    const char *plain, *odd;
} names[] = {
    {"embed", "tok"},
    {"norm", "weight"},
    {"head", "label"},
    {"first.norm", "first"},
    {"first.qkv", "clip"},
    {"first.o", "G"},
    {"first.o.bias", "X"},
    {"parallel.norm", "X.recompute"},
    {"parallel.q", "X.host"},
    {"parallel.k", "norms"},
    {"parallel.v", "norm_squared"},
    {"parallel.o", "grad_norm"},
    {"parallel.o.bias", "logp"},
    {"parallel.left", "results"},
    {"parallel.left.bias", "W"},
    {"parallel.right", "W.grad"},
    {"parallel.right.bias", "W.exp_avg"},
    {"parallel.gate", "W.exp_avg_sq"},
    {"parallel.gate.bias", "W.grad.grad"},
    {"parallel.down", "d_logp"},
    {"parallel.down.bias", "saved.attn_out"},
    {"sharing.norm", "tok.order.C"},
    {"sharing.q", "order"},
    {"sharing.q.bias", "T"},
    {"sharing.k", "layer0.forward"},
    {"sharing.k.bias", "layer0.forward.carry_k"},
    {"sharing.o", "A.layer0.p0"},
    {"sharing.twice", "compute.layer0.p0"},
    {"sharing.twice.bias", "loss"},
    {"crossing.norm", "hit"},
    {"crossing.q", "own"},
    {"crossing.k", "pos"},
    {"crossing.v", "p0"},
    {"crossing.o", "x"},
    {"crossing.o.bias", "lr"},
    {"crossing.more", "logp.2"},
    {"crossing.less", "W.2"},
    {"v1", "x0"},
    {"v5", "shared_end"},
    {"v9", "entropy"},
    {"v14", "carry_k"},
    {"v20", "d_x0"},
};

/* The model in $D/odd.json with the odd names, in $D/plain.json with its own: neither finds weights beside it
 * that the other has not. */
static void write_models(io_fixture *f) {
    const char *text;
    size_t length;
    assert_ok(f, sbp_file_read(f->arena, f->diag, PLAIN, &text, &length));
    cli_put(f, "plain.json", text);
    sbp_text odd;
    sbp_text_init(&odd, f->arena);
    while (*text) {
        size_t quoted = *text == '"' ? 2 + strcspn(text + 1, "\"") : 0;
        const char *name = NULL;
        for (int i = 0; quoted > 0 && i < SBP_COUNT(names); i++)
            if (strlen(names[i].plain) + 2 == quoted && memcmp(names[i].plain, text + 1, quoted - 2) == 0)
                name = names[i].odd;
        if (name)
            sbp_text_add(&odd, "\"%s\"", name);
        else
            sbp_text_add(&odd, "%.*s", (int)(quoted ? quoted : 1), text);
        text += quoted ? quoted : 1;
    }
    cli_put(f, "odd.json", odd.data);
}

static const char *odd_name(io_fixture *f, const char *plain) {
    for (int i = 0; i < SBP_COUNT(names); i++) {
        size_t length = strlen(names[i].plain);
        if (strncmp(plain, names[i].plain, length) != 0)
            continue;
        if (plain[length] == 0)
            return names[i].odd;
        const char *what = plain + length + 1; /* a state: the parameter's name and one word */
        if (plain[length] == '.' && !strchr(what, '.') && strncmp(what, "exp_avg", 7) == 0)
            return sbp_arena_printf(f->arena, "%s.%s", names[i].odd, what);
    }
    return plain;
}

/* The same bits under both names, and nothing else. */
static void same_tensors(io_fixture *f, const char *what, const char *file) {
    sbp_weights *plain, *odd;
    assert_ok(f, sbp_weights_open(f->arena, f->diag, io_path(f, sbp_arena_printf(f->arena, "plain.%s", file)),
                                  &plain));
    assert_ok(
        f, sbp_weights_open(f->arena, f->diag, io_path(f, sbp_arena_printf(f->arena, "odd.%s", file)), &odd));
    if (sbp_weights_count(plain) != sbp_weights_count(odd) || sbp_weights_count(plain) < 37)
        fail_msg("%s: %s: %d and %d tensors", what, file, sbp_weights_count(plain), sbp_weights_count(odd));
    for (int32_t i = 0; i < sbp_weights_count(plain); i++) {
        const sbp_weight *a = sbp_weights_at(plain, i), *b = sbp_weights_find(odd, odd_name(f, a->name));
        if (!b || a->elems != b->elems || a->rank != b->rank)
            fail_msg("%s: %s: no '%s' for '%s'", what, file, odd_name(f, a->name), a->name);
        double *x = cli_read_tensor(f, plain, a), *y = cli_read_tensor(f, odd, b);
        if (memcmp(x, y, (size_t)a->elems * sizeof *x) != 0)
            fail_msg("%s: %s: '%s' and '%s' differ", what, file, a->name, b->name);
        free(x);
        free(y);
    }
    sbp_weights_close(plain);
    sbp_weights_close(odd);
}

static const char rows[] =
    "{\"input_ids\": [1, 2, 3, 4, 5, 6, 7, 8, 9], \"labels\": [1, 2, 3, 4, 5, 6, 7, 8, 9]}\n"
    "{\"input_ids\": [11, 12, 13, 4, 5], \"labels\": [-100, 12, 13, 4, 5]}\n"
    "{\"input_ids\": [40, 2], \"labels\": [40, 2]}\n";

static void test_names(void **state) {
    io_fixture *f = *state;
    static const char *const settings[] = {
        "",
        "--dtype fp64 --checkpoint-every 2 --chunk 5 --offload host --save attn_out+lse",
        "--clip none --accumulate 1",
        "--optimizer none",
        "--param-dtype bf16 --grad-dtype bf16",
        "--seq-len max --memory 18MiB",
    };
    write_models(f);
    cli_put(f, "t.jsonl", rows);
    for (int i = 0; i < SBP_COUNT(settings); i++) {
        cli_ok(f, sbp_arena_printf(f->arena,
                                   "for m in plain odd; do "
                                   "$C compile $D/$m.json -o $D/p --seq-len 16 %s && "
                                   "$R $D/p --data $D/t.jsonl --batch-size 3 --score $D/$m.scores && "
                                   "$R $D/p --data $D/t.jsonl --batch-size 3 --dump-gradients "
                                   "$D/$m.g.safetensors || exit 1; done",
                                   settings[i]));
        same_tensors(f, settings[i], "g.safetensors");
        cli_same(f, "plain.scores", "odd.scores");
    }
}

/* Training, its checkpoints, and going on from one. */
static void test_training(void **state) {
    io_fixture *f = *state;
    static const char *const files[] = {"checkpoint-1/model.safetensors",
                                        "checkpoint-1/optimizer.safetensors", "model.safetensors"};
    write_models(f);
    cli_put(f, "t.jsonl", rows);
    cli_ok(f, "for m in plain odd; do $C compile $D/$m.json -o $D/p --seq-len 16 && "
              "$R $D/p --data $D/t.jsonl --batch-size 3 --lr 0.01 --steps 2 --save-every 1 --out $D/$m && "
              "rm -r $D/$m/model.safetensors && "
              "$R $D/p --data $D/t.jsonl --batch-size 3 --lr 0.01 --steps 2 --save-every 1 --out $D/$m "
              "--resume || exit 1; done");
    for (int i = 0; i < SBP_COUNT(files); i++) {
        cli_ok(f, sbp_arena_printf(f->arena, "for m in plain odd; do cp $D/$m/%s $D/$m.w.safetensors; done",
                                   files[i]));
        same_tensors(f, files[i], "w.safetensors");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_names, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_training, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
