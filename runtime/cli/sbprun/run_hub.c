/* run_hub.c: data sets by their names on the Hub, and the result sent there. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "frontends/formats/files/hub_fetch.h"
#include "ir/base/file.h"
#include "ir/base/machine.h"
#include "runtime/cli/sbprun/outputs.h"
#include "runtime/data/source/card.h"
#include "runtime/data/source/source.h"

typedef struct hub_data {
    const sbp_world *world;
    sbp_hub_name name;
    const char *snapshot, *config, *split;
    const char **patterns;
    int32_t count, capacity;
} hub_data;

/* Patterns of the files that the card, README.md, has for what is asked for; none: it has no configs. */
static sbp_status read_card(hub_data *d) {
    const char *path = sbp_file_join(d->world->arena, d->snapshot, "README.md"), *text;
    const sbp_card_request request = {.id = d->name.id, .path = path, .config = d->config, .split = d->split};
    size_t length;
    if (!sbp_file_exists(path))
        return SBP_OK;
    SBP_TRY(sbp_hub_check_file(d->world->arena, d->world->diag, d->snapshot, path));
    SBP_TRY(sbp_file_read(d->world->arena, d->world->diag, path, &text, &length));
    SBP_TRY(sbp_card_files(d->world->arena, d->world->diag, &request, text, &d->patterns, &d->count));
    d->capacity = d->count;
    return SBP_OK;
}

/* ---- files ------------------------------------------------------------------------------------------ */

/* Whether files "x-00000-of-00003.parquet" are as many as they say. */
static bool is_whole(const char *const *files, int32_t count) {
    for (int32_t i = 0; i < count; i++) {
        const char *of = strstr(files[i], "-of-");
        if (of && strspn(of + 4, "0123456789") > 0 && strtol(of + 4, NULL, 10) > count)
            return false;
    }
    return count > 0;
}

/* All patterns as one argument of --data. */
static const char *argument_of(const hub_data *d) {
    sbp_text text;
    sbp_text_init(&text, d->world->arena);
    for (int32_t i = 0; i < d->count; i++)
        sbp_text_add(&text, "%s%s/%s", i > 0 ? "," : d->count > 1 ? "{" : "", d->snapshot, d->patterns[i]);
    sbp_text_add(&text, "%s", d->count > 1 ? "}" : "");
    return text.data;
}

static bool expand(const hub_data *d, const char *const **files, int32_t *count) {
    const char *argument = argument_of(d);
    *count = 0;
    return sbp_source_expand(d->world->arena, NULL, argument, files, count) == SBP_OK && *count > 0 &&
           sbp_file_exists((*files)[0]);
}

/* What hf fetched of a commit once, by these patterns: an empty file that says so. */
static bool stamp_of(const hub_data *d, char *out, size_t size) {
    uint64_t hash = 0;
    for (int32_t i = 0; i < d->count; i++)
        hash = sbp_hash_bytes(d->patterns[i], strlen(d->patterns[i]) + 1, hash);
    const char *commit = d->snapshot ? strrchr(d->snapshot, '/') + 1 : "";
    return sbp_cache_path(
        sbp_arena_printf(d->world->arena, "hub/%s-%016llx", commit, (unsigned long long)hash), out, size);
}

static sbp_status find_files(hub_data *d, const char **out) {
    char stamp[4096];
    const char *const *files;
    int32_t count;
    sbp_arena *arena = d->world->arena;
    d->snapshot = sbp_hub_snapshot(arena, &d->name);
    bool known = d->snapshot && stamp_of(d, stamp, sizeof stamp) && sbp_file_exists(stamp);
    if (!known || !expand(d, &files, &count) || !is_whole(files, count)) {
        SBP_PUSH(arena, d->patterns, d->count, d->capacity, NULL);
        d->count--;
        bool there = d->snapshot && expand(d, &files, &count) && is_whole(files, count);
        if (!there || !sbp_hub_is_offline())
            SBP_TRY(sbp_hub_fetch(arena, d->world->diag, &d->name, d->patterns, &d->snapshot));
        if (stamp_of(d, stamp, sizeof stamp) && !sbp_hub_is_offline()) {
            sbp_make_directories_above(stamp);
            (void)!sbp_file_write(NULL, stamp, "", 0); /* else hf is asked again */
        }
    }
    if (!expand(d, &files, &count) || !is_whole(files, count))
        return sbp_fail(
            d->world->diag, SBP_IO,
            "the data set %s (%s) has no files '%s', or not all of them: scripts are not run, and other "
            "files than Parquet, JSON lines and CSV not read",
            d->name.id, d->name.revision, d->patterns[0]);
    for (int32_t i = 0; i < count; i++)
        SBP_TRY(sbp_hub_check_file(arena, d->world->diag, d->snapshot, files[i]));
    *out = argument_of(d);
    return SBP_OK;
}

/* The name of a data set that lies in a cache of the Hub: ../datasets--ORGANISATION--NAME/..;
 * NULL: it does not. */
const char *sbp_run_dataset_name(sbp_arena *arena, const char *path) {
    static const char mark[] = "/datasets--";
    char resolved[4096];
    const char *at = realpath(path, resolved) ? strstr(resolved, mark) : NULL;
    if (!at && !(at = strstr(path, mark)))
        return NULL;
    at += strlen(mark);
    char *name = sbp_arena_strndup(arena, at, strcspn(at, "/")), *gap = strstr(name, "--");
    if (gap) {
        *gap = '/';
        memmove(gap + 1, gap + 2, strlen(gap + 2) + 1);
    }
    return sbp_hub_is_id(name) ? name : NULL;
}

/* NAME, NAME:CONFIG or NAME:CONFIG:SPLIT, where a part that is empty or not there leaves what is; false: it
 * is a path, or will be found to be none. *to: where the split begins, with its ':'. */
static bool parse_data_set(hub_data *d, const char *text, size_t *to) {
    size_t id = strcspn(text, ":"), config = text[id] ? id + 1 + strcspn(text + id + 1, ":") : id;
    *to = config;
    if (access(text, F_OK) == 0 ||
        !sbp_hub_parse(d->world->arena, sbp_arena_strndup(d->world->arena, text, id), &d->name))
        return false;
    d->config =
        config > id + 1 ? sbp_arena_strndup(d->world->arena, text + id + 1, config - id - 1) : d->config;
    d->split = text[config] && text[config + 1] ? text + config + 1 : d->split;
    return true;
}

static sbp_status find_data_set(const sbp_world *world, const char *text, const char *split,
                                const char **out) {
    hub_data d = {.world = world, .split = split};
    size_t to;
    *out = text;
    if (!parse_data_set(&d, text, &to))
        return SBP_OK; /* it is opened later */
    split = d.split;
    d.name.dataset = true;
    d.snapshot = sbp_hub_snapshot(world->arena, &d.name);
    static const char *const readme[] = {"README.md", NULL};
    if (!d.snapshot || !sbp_file_exists(sbp_file_join(world->arena, d.snapshot, "README.md")))
        SBP_TRY(sbp_hub_fetch(world->arena, world->diag, &d.name, readme, &d.snapshot));
    SBP_TRY(read_card(&d));
    if (d.count > 0)
        return find_files(&d, out);
    const char *name = d.config ? d.config : "default";
    if (strpbrk(name, "/*?[{},") || strpbrk(split, "/*?[{},") || strstr(name, ".."))
        return sbp_fail(world->diag, SBP_USAGE,
                        "the data set %s: '%s' and '%s' are no names of a config and a split", d.name.id,
                        name, split);
    d.name.revision = "refs/convert/parquet"; /* what the Hub made of all others */
    SBP_PUSH(world->arena, d.patterns, d.count, d.capacity,
             sbp_arena_printf(world->arena, "%s/%s/*.parquet", name, split));
    sbp_status status = find_files(&d, out);
    if (status == SBP_IO)
        sbp_note(world->diag,
                 "the card of %s names no files ('configs'), so those are read that the Hub made of it; of "
                 "rows that "
                 "are here give the path (--data FILE)",
                 d.name.id);
    return status;
}

/* As TRL has it: of each data set that is trained on, the split for tests. */
static void add_test_splits(const sbp_world *world) {
    sbp_options *o = world->options;
    if (sbp_options_is(o, SBP_OPT_EVAL_STRATEGY, "no") || sbp_options_list_count(o, SBP_OPT_EVAL) > 0 ||
        sbp_options_given(o, SBP_OPT_TEST_SPLIT_SIZE))
        return;
    for (int32_t i = 0; i < sbp_options_list_count(o, SBP_OPT_DATA); i++) {
        hub_data d = {.world = world};
        const char *text = sbp_options_list_at(o, SBP_OPT_DATA, i);
        size_t to;
        if (parse_data_set(&d, text, &to))
            sbp_options_append(o, SBP_OPT_EVAL, sbp_arena_strndup(world->arena, text, to));
        else if (sbp_world_writes(world))
            sbp_note(
                world->diag,
                "--eval-strategy: '%s' has no split 'test', being no data set of the Hub: give rows that "
                "are held out with --eval",
                text);
    }
}

sbp_status sbp_run_find_data(const sbp_world *world) {
    add_test_splits(world);
    static const struct {
        sbp_option_id list;
        const char *split; /* where the name says none */
    } lists[] = {{SBP_OPT_DATA, "train"}, {SBP_OPT_EVAL, "test"}};
    for (int k = 0; k < SBP_COUNT(lists); k++)
        for (int32_t i = 0; i < sbp_options_list_count(world->options, lists[k].list); i++) {
            const char *text = sbp_options_list_at(world->options, lists[k].list, i), *found = text;
            SBP_TRY(find_data_set(world, text, lists[k].split, &found));
            sbp_options_replace(world->options, lists[k].list, i, found);
        }
    return SBP_OK;
}

/* ---- the result ------------------------------------------------------------------------------------- */

/* As transformers has it: without a name, that of the directory; without an organisation, the user's own. */
static const char *hub_id(const sbp_world *world, const sbp_outputs *outputs) {
    const char *id = sbp_options_text(world->options, SBP_OPT_HUB_MODEL_ID), *path = outputs->out;
    if (id)
        return id;
    char *whole = realpath(path, NULL); /* it may be "." */
    char *name = sbp_arena_strdup(world->arena, whole ? whole : path);
    free(whole);
    for (size_t length = strlen(name); length > 1 && name[length - 1] == '/';)
        name[--length] = 0;
    return strrchr(name, '/') ? strrchr(name, '/') + 1 : name;
}

sbp_status sbp_run_check_push(const sbp_world *world, const sbp_session *session,
                              const sbp_outputs *outputs) {
    const char *id;
    if (!sbp_options_on(world->options, SBP_OPT_PUSH_TO_HUB))
        return SBP_OK;
    if (!outputs->out || !session->train)
        return sbp_fail(world->diag, SBP_USAGE,
                        "--push_to_hub needs a training and --out DIR, which is sent");
    id = hub_id(world, outputs);
    if (!sbp_hub_is_id(strchr(id, '/') ? id : sbp_arena_printf(world->arena, "user/%s", id)))
        return sbp_fail(
            world->diag, SBP_USAGE,
            "--push_to_hub: '%s' is no name of the Hub: give --hub_model_id ORGANISATION/NAME, or "
            "NAME for one of your own",
            id);
    bool offline = sbp_hub_is_offline();
    if (sbp_options_on(world->options, SBP_OPT_DRY_RUN)) { /* which sends nothing */
        if (sbp_world_writes(world) && (offline || !sbp_hub_is_installed(world->arena)))
            sbp_note(world->diag, "--push_to_hub: the training would stop here, for %s",
                     offline ? "HF_HUB_OFFLINE is set"
                             : "huggingface_hub, which sends its result, is not "
                               "installed: pip install huggingface_hub");
        return SBP_OK;
    }
    if (offline)
        return sbp_fail(world->diag, SBP_USAGE, "--push_to_hub: HF_HUB_OFFLINE is set: nothing is sent");
    return sbp_hub_has_program(world->arena, world->diag, "--push_to_hub would send the result");
}

sbp_status sbp_run_push(const sbp_world *world, const sbp_outputs *outputs) {
    if (!sbp_options_on(world->options, SBP_OPT_PUSH_TO_HUB) || !sbp_world_writes(world))
        return SBP_OK;
    const char *id = hub_id(world, outputs);
    /* what a model is, not how its run went, which names paths of this machine */
    static const char *const kept_here[] = {"checkpoint-*/*", "plan.bin", "run.json",
                                            "metrics.jsonl",  "*.tmp",    ".lock"};
    sbp_args args = sbp_args_on(world->arena);
    sbp_args_add(&args, "upload");
    SBP_TRY(sbp_args_operand(&args, world->diag, "--hub_model_id", id));
    SBP_TRY(sbp_args_operand(&args, world->diag, "--out", outputs->out));
    sbp_args_add(&args, ".");
    sbp_args_option(&args, "--repo-type", "model");
    for (int i = 0; i < SBP_COUNT(kept_here); i++)
        sbp_args_option(&args, "--exclude", kept_here[i]);
    if (sbp_options_int(world->options, SBP_OPT_SHOW) > 0) /* it shows rows of the data */
        sbp_args_option(&args, "--exclude", "report.html");
    if (sbp_options_on(world->options, SBP_OPT_HUB_PRIVATE_REPO))
        sbp_args_add(&args, "--private");
    sbp_note(world->diag, "sending '%s' to the Hub as %s by huggingface_hub", outputs->out, id);
    return sbp_hub_run(
        world->arena, world->diag,
        sbp_arena_printf(world->arena, "the result in '%s' was not sent to %s", outputs->out, id), &args);
}
