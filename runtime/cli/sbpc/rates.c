/* rates.c: --rates: the target's table, what this machine was measured at, or a file.
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

/* What the rates depend on, as one line. */
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
                            info.threads, (unsigned long long)drive.st_dev, throttled ? ", rates " : "",
                            throttled ? throttled : "");
    return SBP_OK;
}

/* NULL: there is no place for it. */
static const char *cache_path(const sbp_compilation *c, const char *machine) {
    char path[4096];
    const char *name = sbp_arena_printf(c->arena, "rates-%016llx",
                                        (unsigned long long)sbp_hash_bytes(machine, strlen(machine), 0));
    return sbp_cache_path(name, path, sizeof path) ? sbp_arena_strdup(c->arena, path) : NULL;
}

static bool read_cache(const sbp_compilation *c, const char *path, const char *machine, sbp_rates *out) {
    const char *text;
    size_t length, n = strlen(machine);
    sbp_diag *none = sbp_diag_create();
    bool good = none && path && sbp_file_exists(path) &&
                sbp_file_read(c->arena, none, path, &text, &length) == SBP_OK && length > n + 3 &&
                strncmp(text, "# ", 2) == 0 && strncmp(text + 2, machine, n) == 0 && text[n + 2] == '\n' &&
                sbp_rates_parse(c->arena, none, path, text, out) == SBP_OK;
    sbp_diag_destroy(none);
    return good;
}

/* Missing directories are made; a failure only costs the next measurement. */
static void write_cache(const sbp_compilation *c, const char *path, const char *machine,
                        const sbp_rates *rates) {
    sbp_text text;
    sbp_diag *none = sbp_diag_create();
    if (!path || !none) {
        sbp_diag_destroy(none);
        return;
    }
    sbp_make_directories_above(path);
    sbp_text_init(&text, c->arena);
    sbp_text_add(&text, "# %s\n", machine);
    sbp_rates_print(&text, rates);
    if (sbp_file_write(none, path, text.data, text.length) != SBP_OK)
        sbp_note(c->diag, "measured rates are not kept: %s cannot be written", path);
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
        return sbp_fail(c->diag, SBP_MACHINE, "--rates measured: this build cannot run on %s",
                        c->target->name);
    SBP_TRY(describe_machine(c, class, &options, &machine));
    const char *path = cache_path(c, machine);
    sbp_rates *rates = &c->pipeline.target.rates;
    if (!again && read_cache(c, path, machine, rates)) {
        c->rates_source = sbp_arena_printf(c->arena, "measured before (%s; --rates again: anew)", path);
        return SBP_OK;
    }
    sbp_diag *none = sbp_diag_create();
    if (!none)
        return sbp_fail(c->diag, SBP_MACHINE, "out of memory");
    sbp_status status = sbp_measure_rates(c->arena, none, c->target, class, &options, rates, &share);
    if (status == SBP_MACHINE || status == SBP_IO) { /* no room on the drive? */
        options.offload_dir = NULL;
        status = sbp_measure_rates(c->arena, c->diag, c->target, class, &options, rates, &share);
        if (status == SBP_OK)
            sbp_note(c->diag, "the drive of %s was not measured: its rates are those of the throughput table",
                     directory);
    } else if (status != SBP_OK) {
        status = sbp_fail(c->diag, status, "%s", sbp_diag_text(none, SBP_ERROR));
    }
    sbp_diag_destroy(none);
    SBP_TRY(status);
    if (share < 0.75)
        sbp_note(c->diag,
                 "other programs were running: matmuls had %.0f %% of the processors while rates were "
                 "measured; measure again on a quiet machine (--rates again)",
                 100 * share);
    write_cache(c, path, machine, rates);
    c->rates_source = "measured now";
    return SBP_OK;
}

static sbp_status choose(sbp_compilation *c) {
    const char *wish = sbp_options_text(c->options, SBP_OPT_RATES);
    c->rates_source = c->target ? "table" : "profile";
    if (strcmp(wish, "table") == 0)
        return SBP_OK;
    if (strcmp(wish, "measured") == 0 || strcmp(wish, "again") == 0) {
        if (!c->target)
            return sbp_fail(
                c->diag, SBP_USAGE,
                "--rates %s: the machine of --device-profile cannot be measured here; leave --rates out",
                wish);
        return measure(c, strcmp(wish, "again") == 0);
    }
    const char *text;
    size_t length;
    if (!sbp_file_exists(wish))
        return sbp_fail(c->diag, SBP_USAGE, "--rates %s: expected table, measured, again or a file", wish);
    SBP_TRY(sbp_file_read(c->arena, c->diag, wish, &text, &length));
    SBP_TRY(sbp_rates_parse(c->arena, c->diag, wish, text, &c->pipeline.target.rates));
    c->rates_source = wish;
    return SBP_OK;
}

/* ---- in plans ---------------------------------------------------------------------------------------- */

void sbp_cli_write_rates(sbp_json_writer *w, const char *key, const char *source, const sbp_rates *rates) {
    sbp_json_write_object(w, key);
    sbp_json_write_string(w, "source", source);
    for (int i = 0; sbp_rates_key(i); i++)
        if (sbp_rates_value(rates, i) > 0)
            sbp_json_write_double(w, sbp_rates_key(i), sbp_rates_value(rates, i));
    sbp_json_write_end(w);
}

sbp_status sbp_cli_read_rates(sbp_diag *diag, const sbp_json *meta, sbp_rates *out, const char **source) {
    const sbp_json *object = sbp_json_member(meta, "rates");
    if (!object)
        return SBP_OK;
    SBP_TRY(sbp_json_get_string(diag, object, "source", SBP_JSON_REQUIRED, source));
    sbp_rates rates = {0};
    for (int i = 0; sbp_rates_key(i); i++) {
        double value = 0;
        SBP_TRY(sbp_json_get_double(diag, object, sbp_rates_key(i), SBP_JSON_OPTIONAL, &value));
        if (value > 0 && isfinite(value))
            (void)sbp_rates_set(&rates, sbp_rates_key(i), value);
    }
    const char *missing = sbp_rates_missing(&rates);
    if (missing)
        return sbp_fail(diag, SBP_INPUT, "the plan's rates lack '%s'", missing);
    *out = rates;
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

sbp_status sbp_cli_choose_rates(sbp_compilation *c) {
    const char *link = sbp_options_text(c->options, SBP_OPT_LINK);
    int64_t ranks = sbp_options_int(c->options, SBP_OPT_RANKS),
            node = sbp_options_int(c->options, SBP_OPT_NODE);
    sbp_rates *rates = &c->pipeline.target.rates;
    double bytes = 0;
    SBP_TRY(choose(c));
    if (link)
        SBP_TRY(read_link(c, link, &bytes));
    if (ranks > 1)
        rates->host_ranks = (double)(ranks < node ? ranks : node);
    if (link && ranks > node)
        rates->between = bytes;
    return SBP_OK;
}
