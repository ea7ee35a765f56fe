/* run_report.c: what a run says of itself: --dry-run, run.json, the summary. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "backends/backends.h"
#include "ir/base/json_write.h"
#include "ir/base/machine.h"
#include "runtime/cli/sbprun/commands.h"
#include "runtime/cli/sbprun/outputs.h"

/* ---- dry run ---------------------------------------------------------------------------------------- */

static int ascending(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* Lengths of all documents, sorted. */
static int64_t *sorted_lengths(const sbp_world *world, const sbp_inputs *inputs) {
    const sbp_dataset *d = inputs->data;
    int64_t *lengths = SBP_NEW_ARRAY(world->arena, int64_t, d->doc_count);
    for (int64_t k = 0; k < d->doc_count; k++)
        lengths[k] = d->docs[k].count;
    qsort(lengths, (size_t)d->doc_count, sizeof *lengths, ascending);
    return lengths;
}

/* The middle one, or between the two. */
static double median(const int64_t *sorted, int64_t count) {
    int64_t low = sorted[(count - 1) / 2], high = sorted[count / 2];
    return ((double)low + (double)high) / 2;
}

/* The least that 95 % do not exceed. */
static int64_t most_of_95(const int64_t *sorted, int64_t count) {
    return sorted[(count * 95 + 99) / 100 - 1];
}

/* By the planner's cost model, of a micro-batch with as many rows as there is room for; NaN: unknown. */
static double micro_batch_seconds(const sbp_session *session) {
    double seconds = NAN;
    const sbp_json *value = sbp_json_member(sbp_json_member(session->plan->meta, "estimate"), "seconds");
    return value && sbp_json_as_double(NULL, value, &seconds) == SBP_OK ? seconds : NAN;
}

/* Micro-batches of one epoch, and their rows. */
static sbp_status count_parts(const sbp_world *world, sbp_inputs *inputs, const sbp_session *session,
                              int64_t *out, int64_t *run_rows) {
    sbp_packer packer;
    sbp_status status = SBP_OK;
    *out = *run_rows = 0;
    sbp_packer_init(&packer, sbp_program_most_rows(session->plan->program), session->plan->program);
    sbp_packer_share(&packer, session->plan->program, world->place.rank, world->place.count);
    SBP_TRY(sbp_run_shared(world, session, &packer.counted));
    for (int64_t step = 0; step < inputs->steps_per_epoch && status == SBP_OK; step++) {
        int64_t count;
        const int64_t *rows = sbp_sampler_next(&inputs->sampler, &count);
        status = sbp_packer_pack(&packer, world->diag, inputs->data, rows, count);
        *out += packer.most_own; /* the others wait */
        *run_rows += packer.run_rows;
    }
    sbp_packer_close(&packer);
    sbp_sampler_seek(&inputs->sampler, 0, 0);
    return status;
}

static sbp_status dry_text(const sbp_world *world, sbp_inputs *inputs, const sbp_session *session,
                           sbp_text *out, const int64_t *lengths, int64_t parts, int64_t run_rows) {
    const sbp_dataset *d = inputs->data;
    sbp_text_add(out, "data       %lld rows", (long long)(d->packed_rows ? d->doc_count : d->row_count));
    if (d->packed_rows)
        sbp_text_add(out, " packed into %lld items of the batch", (long long)d->row_count);
    else if (d->doc_count != d->row_count)
        sbp_text_add(out, " of %lld texts", (long long)d->doc_count);
    sbp_text_add(out, ", %lld tokens, %lld of them trained (%.1f %%)\n", (long long)d->token_count,
                 (long long)d->label_count, 100.0 * (double)d->label_count / (double)d->token_count);
    sbp_text_add(out, "lengths    shortest %lld, median %g, mean %.1f, 95 %% at most %lld, longest %lld\n",
                 (long long)lengths[0], median(lengths, d->doc_count),
                 (double)d->token_count / (double)d->doc_count, (long long)most_of_95(lengths, d->doc_count),
                 (long long)d->longest);
    sbp_text_add(out, "steps      %lld in all, %lld per epoch, %.2f micro-batches each%s\n",
                 (long long)session->total_steps, (long long)inputs->steps_per_epoch,
                 (double)parts / (double)inputs->steps_per_epoch,
                 world->place.count > 1 ? " on the rank with the most" : "");
    if (run_rows < d->token_count)
        sbp_text_add(out,
                     "shared     %lld tokens are run in place of %lld: prompts once for several answers\n",
                     (long long)run_rows, (long long)d->token_count);
    sbp_text kept;
    sbp_text_init(&kept, world->arena);
    if (sbp_program_describe_kept(world->arena, session->plan->program, &kept))
        sbp_text_add(out, "trained    %s\n", kept.data);
    double seconds = micro_batch_seconds(session),
           all = seconds * (double)parts / (double)inputs->steps_per_epoch;
    char a[32], b[32];
    sbp_text_add(out, "memory     %s planned%s, %s backend\n",
                 sbp_format_bytes(a, sizeof a, (double)sbp_run_peak_planned(world, session)),
                 world->place.count > 1 ? " for each rank" : "", session->info.meta.backend);
    if (isfinite(seconds))
        sbp_text_add(out,
                     "time       about %s for a micro-batch of %lld tokens by the cost model, at most %s for "
                     "all steps\n",
                     sbp_format_seconds(a, sizeof a, seconds),
                     (long long)sbp_program_most_rows(session->plan->program),
                     sbp_format_seconds(b, sizeof b, all * (double)session->total_steps));
    return sbp_run_show_rows(world, inputs, session, sbp_run_showing(), out);
}

sbp_status sbp_run_print_dry(const sbp_world *world, sbp_inputs *inputs, const sbp_session *session) {
    const sbp_dataset *d = inputs->data;
    sbp_text out;
    int64_t parts, run_rows, *lengths = sorted_lengths(world, inputs);
    sbp_text_init(&out, world->arena);
    SBP_TRY(count_parts(world, inputs, session, &parts, &run_rows));
    if (sbp_options_on(world->options, SBP_OPT_JSON)) {
        sbp_json_writer w = sbp_json_writer_on(&out);
        sbp_json_write_object(&w, NULL);
        sbp_json_write_int(&w, "rows", d->row_count);
        sbp_json_write_int(&w, "documents", d->doc_count);
        sbp_json_write_int(&w, "tokens", d->token_count);
        sbp_json_write_int(&w, "trained_tokens", d->label_count);
        sbp_json_write_int(&w, "longest", d->longest);
        sbp_json_write_double(&w, "median", median(lengths, d->doc_count));
        sbp_json_write_int(&w, "at_most_95_percent", most_of_95(lengths, d->doc_count));
        sbp_json_write_int(&w, "steps", session->total_steps);
        sbp_json_write_int(&w, "steps_per_epoch", inputs->steps_per_epoch);
        sbp_json_write_int(&w, "micro_batches_per_epoch", parts);
        sbp_json_write_int(&w, "rows_per_epoch", run_rows);
        sbp_json_write_int(&w, "peak_bytes_planned", sbp_run_peak_planned(world, session));
        sbp_json_write_double(&w, "micro_batch_seconds", micro_batch_seconds(session));
        sbp_json_write_end(&w);
        sbp_text_add(&out, "\n");
    } else
        SBP_TRY(dry_text(world, inputs, session, &out, lengths, parts, run_rows));
    return sbp_print(world->diag, out.data, out.length);
}

/* ---- memory ----------------------------------------------------------------------------------------- */

int64_t sbp_run_peak_measured(const sbp_world *world) {
    sbp_device_info info = {0};
    sbp_device *device = sbp_executor_device(world->executor);
    device->class->info(device, &info);
    return info.used_bytes;
}

/* ---- run.json --------------------------------------------------------------------------------------- */

static void write_data(sbp_json_writer *w, const char *key, const sbp_dataset *d) {
    sbp_json_write_object(w, key);
    sbp_json_write_int(w, "rows", d->row_count);
    sbp_json_write_int(w, "documents", d->doc_count);
    sbp_json_write_int(w, "tokens", d->token_count);
    sbp_json_write_int(w, "trained_tokens", d->label_count);
    sbp_json_write_hash(w, "hash", d->hash);
    sbp_json_write_end(w);
}

static void write_machine(sbp_json_writer *w, const sbp_world *world, const sbp_session *session) {
    sbp_device_info info = {0};
    sbp_device *device = sbp_executor_device(world->executor);
    device->class->info(device, &info);
    sbp_json_write_object(w, "device");
    sbp_json_write_string(w, "backend", session->info.meta.backend);
    sbp_json_write_string(w, "name", info.name);
    sbp_json_write_int(w, "threads", info.threads);
    sbp_json_write_int(w, "memory_bytes", info.memory_bytes);
    sbp_json_write_end(w);
}

/* "--eos-token" is one, whose value is no secret. */
static bool is_an_option(const char *name, size_t length) {
    for (int32_t i = 0; i < sbp_option_count(); i++) {
        const char *own = sbp_option_at(i)->name;
        size_t k = 0;
        while (k < length && (own[k] == name[k] || (own[k] == '-' && name[k] == '_')))
            k++;
        if (k == length && !own[k])
            return true;
    }
    return false;
}

/* "--hub_token": what stands behind it nobody else may know. */
static bool names_a_secret(const char *argument) {
    static const char *const words[] = {"token", "api_key", "api-key", "password", "secret"};
    size_t length = strcspn(argument, "=");
    for (int i = 0; i < SBP_COUNT(words); i++) {
        size_t n = strlen(words[i]);
        if (strncmp(argument, "--", 2) == 0 && length > n &&
            strncasecmp(argument + length - n, words[i], n) == 0)
            return !is_an_option(argument + 2, length - 2);
    }
    return false;
}

static bool is_secret(const char *text) {
    static const char *const names[] = {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY"};
    for (int i = 0; i < SBP_COUNT(names); i++) {
        const char *value = getenv(names[i]);
        if (value && *value && strcmp(value, text) == 0)
            return true;
    }
    return strncmp(text, "hf_", 3) == 0 && strlen(text) >= 20 && strcspn(text, "/._-") >= 20;
}

/* The command line, without secrets. */
static void write_arguments(sbp_json_writer *w, const sbp_world *world) {
    for (int i = 0; i < world->argc; i++) {
        const char *text = world->argv[i];
        bool named = i > 0 && names_a_secret(world->argv[i - 1]) && !strchr(world->argv[i - 1], '=');
        if (names_a_secret(text) && strchr(text, '='))
            text = sbp_arena_printf(world->arena, "%.*s=***", (int)strcspn(text, "="), text);
        sbp_json_write_string(w, NULL, named || is_secret(text) ? "***" : text);
    }
}

sbp_status sbp_run_write_json(const sbp_world *world, const sbp_inputs *inputs, const sbp_session *session,
                              const sbp_outputs *outputs, const char *resumed) {
    sbp_text out;
    sbp_text_init(&out, world->arena);
    sbp_json_writer w = sbp_json_writer_on(&out);
    w.lines = 1;
    sbp_json_write_object(&w, NULL);
    sbp_json_write_string(&w, "sbprun", SBP_VERSION);
    sbp_json_write_array(&w, "command");
    sbp_json_write_string(&w, NULL, "sbprun");
    write_arguments(&w, world);
    sbp_json_write_end(&w);
    sbp_json_write_string(&w, "plan", session->plan_path);
    sbp_json_write_hash(&w, "plan_checksum", session->plan_checksum);
    sbp_json_write_string(&w, "resumed_from", resumed);
    sbp_json_write_object(&w, "options");
    sbp_options_write_config(&w, world->options, SBP_PHASE_RUN);
    sbp_json_write_end(&w);
    sbp_json_write_int(&w, "steps", session->total_steps < SBP_STEPS_UNKNOWN ? session->total_steps : 0);
    sbp_json_write_int(&w, "warmup_steps", session->lr.warmup);
    if (inputs->data) {
        sbp_json_write_int(&w, "steps_per_epoch", inputs->steps_per_epoch);
        write_data(&w, "data", inputs->data);
    }
    sbp_json_write_array(&w, "eval");
    for (int32_t i = 0; i < inputs->eval_count; i++)
        write_data(&w, NULL, inputs->evals[i]);
    sbp_json_write_end(&w);
    write_machine(&w, world, session);
    sbp_json_write_value(&w, "compiled", session->plan->meta);
    if (world->ranks) {
        sbp_json_write_object(&w, "ranks");
        sbp_json_write_int(&w, "count", world->place.count);
        sbp_json_write_int(&w, "on_this_host", world->place.local_count);
        sbp_json_write_string(&w, "transport", world->place.transport);
        sbp_json_write_end(&w);
    }
    if (session->matmuls) {
        sbp_json_write_object(&w, "matmuls");
        sbp_json_write_string(&w, "file", "matmuls.txt");
        sbp_json_write_hash(&w, "hash", session->state.matmuls);
        sbp_json_write_end(&w);
    }
    sbp_json_write_end(&w);
    sbp_text_add(&out, "\n");
    return sbp_file_write(world->diag, sbp_file_join(world->arena, outputs->out, "run.json"), out.data,
                          out.length);
}

/* ---- the end ---------------------------------------------------------------------------------------- */

static sbp_status print_summary_json(const sbp_world *world, const sbp_session *session,
                                     const sbp_outputs *outputs, double loss, int64_t planned,
                                     int64_t measured) {
    sbp_text out;
    sbp_text_init(&out, world->arena);
    sbp_json_writer w = sbp_json_writer_on(&out);
    sbp_json_write_object(&w, NULL);
    sbp_json_write_int(&w, "steps", session->state.step);
    sbp_json_write_int(&w, "resumed_after", session->resumed_after);
    sbp_json_write_double(&w, "train_loss", loss);
    sbp_json_write_double(&w, "eval_loss", outputs->eval_loss);
    sbp_run_write_best(&w, session);
    sbp_json_write_int(&w, "num_tokens", session->state.num_tokens);
    sbp_json_write_double(&w, "train_seconds", outputs->seconds);
    sbp_json_write_double(&w, "fastest_step_seconds",
                          outputs->fastest_seconds > 0 ? outputs->fastest_seconds : (double)NAN);
    if (outputs->utilised > 0)
        sbp_json_write_double(&w, "mfu", outputs->utilised / outputs->seconds);
    sbp_json_write_int(&w, "zero_gradient_steps", outputs->zero_gradients);
    sbp_json_write_int(&w, "peak_bytes_planned", planned);
    if (measured > 0)
        sbp_json_write_int(&w, "peak_bytes_measured", measured);
    else
        sbp_json_write_null(&w, "peak_bytes_measured");
    if (session->plan->program->arena_bytes[SBP_DISK] > 0) {
        int64_t read_bytes, written_bytes;
        sbp_run_disk_traffic(world, outputs, &read_bytes, &written_bytes);
        sbp_json_write_int(&w, "disk_bytes_read", read_bytes);
        sbp_json_write_int(&w, "disk_bytes_written", written_bytes);
    }
    if (world->ranks) {
        sbp_device_info info = {0};
        sbp_device *device = sbp_executor_device(world->executor);
        device->class->info(device, &info);
        sbp_json_write_int(&w, "ranks", world->place.count);
        sbp_json_write_int(&w, "interconnect_bytes_sent", info.net_sent_bytes);
        sbp_json_write_int(&w, "interconnect_bytes_between_hosts", info.net_away_bytes);
    }
    sbp_json_write_end(&w);
    sbp_text_add(&out, "\n");
    return sbp_print(world->diag, out.data, out.length);
}

sbp_status sbp_run_print_summary(sbp_world *world, const sbp_session *session, sbp_outputs *outputs) {
    double loss = sbp_metrics_train_loss(&outputs->metrics);
    int64_t planned = sbp_run_peak_planned(world, session), measured = sbp_run_peak_measured(world);
    SBP_TRY(sbp_world_largest(world, &measured));
    if (!sbp_world_writes(world))
        return SBP_OK;
    if (sbp_options_on(world->options, SBP_OPT_JSON))
        return print_summary_json(world, session, outputs, loss, planned, measured);
    char a[32], b[32], done[80];
    long long steps = session->state.step, here = session->state.step - session->resumed_after;
    snprintf(done, sizeof done, here == steps ? "%lld" : "%lld of %lld", here, steps);
    if (steps > 0)
        sbp_note(world->diag, "%s step%s in %.1f s, mean loss %.4f; peak memory%s %s planned, %s%s%s%s", done,
                 steps == 1 ? "" : "s", outputs->seconds, loss, world->ranks ? " of a rank" : "",
                 sbp_format_bytes(a, sizeof a, (double)planned),
                 measured > 0 ? sbp_format_bytes(b, sizeof b, (double)measured) : "the driver reports none",
                 measured > 0 ? " measured" : "", outputs->out ? "; the model is in " : "",
                 outputs->out ? outputs->out : "");
    const char *verdict = sbp_run_verdict(world->arena, session);
    if (verdict)
        sbp_note(world->diag, "%s", verdict);
    if (outputs->zero_gradients > 0)
        sbp_warn(world->diag,
                 "in %lld of these steps all gradients were exactly 0: they taught the model nothing",
                 (long long)outputs->zero_gradients);
    sbp_run_note_disk(world, session, outputs);
    if (measured > planned + planned / 100)
        sbp_note(world->diag, "the %s device holds %s more than was planned", session->info.meta.backend,
                 sbp_format_bytes(a, sizeof a, (double)(measured - planned)));
    return SBP_OK;
}

sbp_status sbp_run_print_gradients(const sbp_world *world, const sbp_inputs *inputs,
                                   const sbp_session *session, const char *path) {
    const sbp_trainer *t = &session->trainer;
    double loss = t->loss >= 0 ? t->results[t->loss] : NAN,
           norm = t->grad_norm >= 0 ? t->results[t->grad_norm] : NAN;
    char text[60] = "";
    if (!sbp_world_writes(world))
        return SBP_OK;
    if (!sbp_options_on(world->options, SBP_OPT_JSON)) {
        if (isfinite(norm))
            snprintf(text, sizeof text, ", norm of the gradients %.6g", norm);
        sbp_note(world->diag, "loss %.6g%s, of %lld row%s with %lld tokens; the gradients are in %s", loss,
                 text, (long long)inputs->row_count, inputs->row_count == 1 ? "" : "s",
                 (long long)t->packer.rows, path);
        return SBP_OK;
    }
    sbp_text out;
    sbp_text_init(&out, world->arena);
    sbp_json_writer w = sbp_json_writer_on(&out);
    sbp_json_write_object(&w, NULL);
    sbp_json_write_double(&w, "loss", loss);
    sbp_json_write_double(&w, "grad_norm", norm);
    sbp_json_write_int(&w, "rows", inputs->row_count);
    sbp_json_write_int(&w, "num_tokens", t->packer.rows);
    sbp_json_write_string(&w, "gradients", path);
    sbp_json_write_end(&w);
    sbp_text_add(&out, "\n");
    return sbp_print(world->diag, out.data, out.length);
}
