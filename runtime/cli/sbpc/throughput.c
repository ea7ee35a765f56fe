/* throughput.c: --throughput: the target's table, what this machine was measured at, or a file.
 *
 * What was measured is kept in $XDG_CACHE_HOME/streambp (or ~/.cache/streambp), a file for each thing that
 * could make it another: processor, device, threads, program, drive. Whatever is wrong with it, it is as if
 * it were not there. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "backends/measure.h"
#include "ir/base/json.h"
#include "ir/base/machine.h"
#include "runtime/cli/sbpc/cli.h"

/* ---- the cache --------------------------------------------------------------------------------------- */

/* Where the plan will be written: nearest to what is known of --offload-dir. */
static const char *directory_of(const sbp_compilation *c) {
    const char *slash = c->output ? strrchr(c->output, '/') : NULL;
    if (!slash)
        return ".";
    return slash == c->output ? "/" : sbp_arena_strndup(c->arena, c->output, (size_t)(slash - c->output));
}

/* What the throughput depend on, as one line. */
static sbp_status describe_machine(const sbp_compilation *c, const sbp_device_class *class,
                                   const sbp_device_options *options, const char **out) {
    sbp_device *device;
    sbp_device_info info = {0};
    struct stat drive = {0};
    char processor[192];
    const char *throttled = getenv("SBP_TEST_RATES");
    SBP_TRY(class->create(options, c->diag, &device));
    class->info(device, &info);
    class->destroy(device);
    (void)stat(options->offload_dir, &drive);
    *out = sbp_arena_printf(c->arena, "sbpc %s, %s: %s, %s, %d threads, drive %llx%s%s", SBP_VERSION,
                            class->name, info.name, sbp_machine_processor(processor, sizeof processor),
                            info.threads, (unsigned long long)drive.st_dev, throttled ? ", throughput " : "",
                            throttled ? throttled : "");
    return SBP_OK;
}

/* NULL: there is no place for it. */
static const char *cache_path(const sbp_compilation *c, const char *machine) {
    char path[4096];
    const char *name = sbp_arena_printf(c->arena, "throughput-%016llx",
                                        (unsigned long long)sbp_hash_bytes(machine, strlen(machine), 0));
    return sbp_cache_path(name, path, sizeof path) ? sbp_arena_strdup(c->arena, path) : NULL;
}

static bool read_cache(const sbp_compilation *c, const char *path, const char *machine, sbp_throughput *out) {
    const char *text;
    size_t length, n = strlen(machine);
    sbp_diag *none = sbp_diag_create();
    bool good = none && path && sbp_file_exists(path) &&
                sbp_file_read(c->arena, none, path, &text, &length) == SBP_OK && length > n + 3 &&
                strncmp(text, "# ", 2) == 0 && strncmp(text + 2, machine, n) == 0 && text[n + 2] == '\n' &&
                sbp_throughput_parse(c->arena, none, path, text, out) == SBP_OK;
    sbp_diag_destroy(none);
    return good;
}

/* Missing directories are made; a failure only costs the next measurement. */
static void write_cache(const sbp_compilation *c, const char *path, const char *machine,
                        const sbp_throughput *throughput) {
    sbp_text text;
    sbp_diag *none = sbp_diag_create();
    if (!path || !none) {
        sbp_diag_destroy(none);
        return;
    }
    sbp_make_directories_above(path);
    sbp_text_init(&text, c->arena);
    sbp_text_add(&text, "# %s\n", machine);
    sbp_throughput_print(&text, throughput);
    if (sbp_file_write(none, path, text.data, text.length) != SBP_OK)
        sbp_note(c->diag, "measured throughput is not kept: %s cannot be written", path);
    sbp_diag_destroy(none);
}

/* ---- the choice -------------------------------------------------------------------------------------- */

static sbp_status measure(sbp_compilation *c, bool again) {
    const sbp_device_class *class = sbp_device_find(c->target->name);
    const char *machine, *directory = directory_of(c);
    sbp_device_options options = {.offload_dir = directory};
    double share = 1;
    int64_t threads = sbp_options_int(c->options, SBP_OPT_THREADS);
    options.threads = threads > 0 ? (int32_t)threads : 0;
    if (!class)
        return sbp_fail(c->diag, SBP_MACHINE, "--throughput measured: this build cannot run on %s",
                        c->target->name);
    SBP_TRY(describe_machine(c, class, &options, &machine));
    const char *path = cache_path(c, machine);
    sbp_throughput *throughput = &c->pipeline.target.throughput;
    if (!again && read_cache(c, path, machine, throughput)) {
        c->throughput_source =
            sbp_arena_printf(c->arena, "measured before (%s; --throughput again: anew)", path);
        return SBP_OK;
    }
    sbp_diag *none = sbp_diag_create();
    if (!none)
        return sbp_fail(c->diag, SBP_MACHINE, "out of memory for measuring throughput");
    sbp_status status =
        sbp_measure_throughput(c->arena, none, c->target, class, &options, throughput, &share);
    if (status == SBP_MACHINE || status == SBP_IO) { /* no room on the drive? */
        options.offload_dir = NULL;
        status = sbp_measure_throughput(c->arena, c->diag, c->target, class, &options, throughput, &share);
        if (status == SBP_OK)
            sbp_note(c->diag, "the drive of %s was not measured: its throughput is that of the table",
                     directory);
    } else if (status != SBP_OK) {
        status = sbp_fail(c->diag, status, "%s", sbp_diag_text(none, SBP_ERROR));
    }
    sbp_diag_destroy(none);
    SBP_TRY(status);
    if (share < 0.75)
        sbp_note(c->diag,
                 "other programs were running: matmuls had %.0f %% of the processors while throughput was "
                 "measured; measure again on a quiet machine (--throughput again)",
                 100 * share);
    write_cache(c, path, machine, throughput);
    c->throughput_source = "measured now";
    return SBP_OK;
}

static sbp_status choose(sbp_compilation *c) {
    const char *request = sbp_options_text(c->options, SBP_OPT_THROUGHPUT);
    c->throughput_source = c->target ? "table" : "profile";
    if (strcmp(request, "table") == 0)
        return SBP_OK;
    if (strcmp(request, "measured") == 0 || strcmp(request, "again") == 0) {
        if (!c->target)
            return sbp_fail(c->diag, SBP_USAGE,
                            "--throughput %s: the machine of --device-profile cannot be measured here; leave "
                            "--throughput out",
                            request);
        return measure(c, strcmp(request, "again") == 0);
    }
    const char *text;
    size_t length;
    if (!sbp_file_exists(request))
        return sbp_fail(c->diag, SBP_USAGE, "--throughput %s: expected table, measured, again or a file",
                        request);
    SBP_TRY(sbp_file_read(c->arena, c->diag, request, &text, &length));
    SBP_TRY(sbp_throughput_parse(c->arena, c->diag, request, text, &c->pipeline.target.throughput));
    c->throughput_source = request;
    return SBP_OK;
}

/* ---- in plans ---------------------------------------------------------------------------------------- */

void sbp_cli_write_throughput(sbp_json_writer *w, const char *key, const char *source,
                              const sbp_throughput *throughput) {
    sbp_json_write_object(w, key);
    sbp_json_write_string(w, "source", source);
    for (int i = 0; sbp_throughput_key(i); i++)
        if (sbp_throughput_value(throughput, i) > 0)
            sbp_json_write_double(w, sbp_throughput_key(i), sbp_throughput_value(throughput, i));
    sbp_json_write_end(w);
}

sbp_status sbp_cli_read_throughput(sbp_diag *diag, const sbp_json *object, sbp_throughput *out,
                                   const char **source) {
    if (!object)
        return SBP_OK;
    SBP_TRY(sbp_json_get_string(diag, object, "source", SBP_JSON_REQUIRED, source));
    sbp_throughput throughput = {0};
    for (int i = 0; sbp_throughput_key(i); i++) {
        double value = 0;
        SBP_TRY(sbp_json_get_double(diag, object, sbp_throughput_key(i), SBP_JSON_OPTIONAL, &value));
        if (value > 0 && isfinite(value))
            (void)sbp_throughput_set(&throughput, sbp_throughput_key(i), value);
    }
    const char *missing = sbp_throughput_missing(&throughput);
    if (missing)
        return sbp_fail(diag, SBP_INPUT, "the plan's throughput lacks '%s'", missing);
    *out = throughput;
    return SBP_OK;
}

/* "400Gb/s": bytes per second. */
static sbp_status read_link(sbp_compilation *c, const char *text, double *out) {
    static const struct {
        const char *unit;
        double bytes;
    } units[] = {{"Gb/s", 1e9 / 8}, {"GB/s", 1e9}, {"Mb/s", 1e6 / 8}, {"MB/s", 1e6}, {"Tb/s", 1e12 / 8}};
    char *end;
    double number = strtod(text, &end);
    for (int i = 0; i < SBP_COUNT(units); i++)
        if (end > text && number > 0 && number < 1e9 && strcmp(end, units[i].unit) == 0) {
            *out = number * units[i].bytes;
            return SBP_OK;
        }
    return sbp_fail(c->diag, SBP_USAGE, "--link: found '%.100s', expected a rate such as 400Gb/s or 50GB/s",
                    text);
}

sbp_status sbp_cli_choose_throughput(sbp_compilation *c) {
    const char *link = sbp_options_text(c->options, SBP_OPT_LINK);
    int64_t ranks = sbp_options_int(c->options, SBP_OPT_RANKS),
            node = sbp_options_int(c->options, SBP_OPT_NODE);
    sbp_throughput *throughput = &c->pipeline.target.throughput;
    double bytes = 0;
    SBP_TRY(choose(c));
    if (link)
        SBP_TRY(read_link(c, link, &bytes));
    if (ranks > 1)
        throughput->host_ranks = (double)(ranks < node ? ranks : node);
    if (link && ranks > node)
        throughput->between = bytes;
    return SBP_OK;
}
