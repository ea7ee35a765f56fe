/* command_export.c: `sbprun export`: what a run has written, or any model's directory, as a GGUF file. */
#include <string.h>

#include "frontends/formats/export/export.h"
#include "frontends/formats/files/hub_fetch.h"
#include "ir/base/json_write.h"
#include "runtime/cli/sbprun/commands.h"
#include "runtime/cli/sbprun/interrupt.h"
#include "runtime/options/options.h"

typedef struct export_job {
    sbp_arena *arena;
    sbp_diag *diag;
    int argc;
    char *const *argv;
    sbp_options *options;
} export_job;

static sbp_status check_output(const export_job *job, const char *output) {
    if (!output)
        return sbp_fail(job->diag, SBP_USAGE, "-o FILE.gguf is missing: the file to write");
    if (sbp_directory_exists(output))
        return sbp_fail(job->diag, SBP_USAGE, "-o %s is a directory; name a file in it", output);
    if (sbp_file_exists(output) && !sbp_options_on(job->options, SBP_OPT_OVERWRITE))
        return sbp_fail(job->diag, SBP_USAGE, "'%s' is there already; --overwrite replaces it", output);
    return SBP_OK;
}

static sbp_status report(const export_job *job, const sbp_export_request *request,
                         const sbp_export_report *r) {
    sbp_text out;
    char bytes[32];
    sbp_text_init(&out, job->arena);
    if (sbp_options_on(job->options, SBP_OPT_JSON)) {
        sbp_json_writer w = sbp_json_writer_on(&out);
        sbp_json_write_object(&w, NULL);
        sbp_json_write_string(&w, "file", request->output);
        sbp_json_write_string(&w, "architecture", r->architecture);
        sbp_json_write_string(&w, "type", r->type);
        sbp_json_write_bool(&w, "adapter", r->adapter);
        sbp_json_write_int(&w, "tensors", r->tensors);
        sbp_json_write_int(&w, "keys", r->keys);
        sbp_json_write_int(&w, "bytes", r->bytes);
        sbp_json_write_end(&w);
        sbp_text_add(&out, "\n");
    } else {
        sbp_text_add(&out, "%s: %s of architecture %s, %d tensors, %s\n", request->output,
                     r->adapter ? "an adapter" : "a model", r->architecture, r->tensors,
                     sbp_format_bytes(bytes, sizeof bytes, (double)r->bytes));
    }
    return sbp_print(job->diag, out.data, out.length);
}

static sbp_status export_body(void *user) {
    export_job *job = user;
    sbp_export_request r = {.stop = sbp_interrupted};
    sbp_export_report done = {0};
    SBP_TRY(sbp_options_parse(job->arena, job->diag, "sbprun export", SBP_PHASE_EXPORT, job->argc, job->argv,
                              &job->options));
    if (sbp_options_on(job->options, SBP_OPT_HELP)) {
        sbp_text text;
        sbp_text_init(&text, job->arena);
        sbp_text_add(&text, "%s", sbp_help_of_export);
        sbp_options_print_help(&text, SBP_PHASE_EXPORT);
        return sbp_print(job->diag, text.data, text.length);
    }
    if (sbp_options_arg_count(job->options) != 1)
        return sbp_fail(job->diag, SBP_USAGE,
                        "expected one model or adapter, found %d arguments; see sbprun export --help",
                        sbp_options_arg_count(job->options));
    if (sbp_options_on(job->options, SBP_OPT_QUIET))
        sbp_diag_set_quiet(job->diag);
    r.output = sbp_options_text(job->options, SBP_OPT_OUTPUT);
    SBP_TRY(check_output(job, r.output));
    SBP_TRY(sbp_hub_model(job->arena, job->diag, sbp_options_arg(job->options, 0), true, &r.source));
    r.base = sbp_options_text(job->options, SBP_OPT_BASE);
    r.type = sbp_options_text(job->options, SBP_OPT_TYPE);
    r.pre = sbp_options_text(job->options, SBP_OPT_PRE);
    r.merge = sbp_options_on(job->options, SBP_OPT_MERGE);
    sbp_interrupt_install();
    sbp_status status = sbp_export_gguf(job->arena, job->diag, &r, &done);
    if (status == SBP_INTERRUPTED)
        return sbp_fail(job->diag, sbp_interrupt_status(), "interrupted; '%s' was not written", r.output);
    SBP_TRY(status);
    return report(job, &r, &done);
}

sbp_status sbp_command_export(sbp_diag *diag, int argc, char *const *argv) {
    export_job job = {.arena = sbp_arena_create(), .diag = diag, .argc = argc, .argv = argv};
    if (!job.arena)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for the export");
    sbp_status status = sbp_guard(job.arena, diag, export_body, &job);
    sbp_arena_destroy(job.arena);
    return status;
}
