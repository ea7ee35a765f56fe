/* metrics.c: metrics.jsonl and progress. */
#include "runtime/train/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "ir/base/json.h"
#include "ir/base/machine.h"
#include "runtime/data/jsonl.h"

static const double SECONDS_BETWEEN_LINES = 5;
static bool line_is_open; /* a rewritten line of progress has no end yet */

void sbp_progress_break(void) {
    if (line_is_open)
        fputc('\n', stderr);
    line_is_open = false;
}

/* ---- the file --------------------------------------------------------------------------------------- */

typedef struct metrics_keeper {
    sbp_diag *diag;
    sbp_file_out *out;
    int64_t keep_steps, keep_evaluations;
} metrics_keeper;

/* Lines of later steps, and the half line of a crash, go. */
static sbp_status keep_line(void *user, const char *path, int64_t line, const char *text, size_t length) {
    metrics_keeper *k = user;
    sbp_arena *arena = sbp_arena_create();
    const sbp_json *root;
    int64_t step = 0;
    (void)line;
    if (!arena)
        return sbp_fail(k->diag, SBP_MACHINE, "out of memory");
    bool keep = sbp_json_parse(arena, NULL, path, text, length, 0, &root) == SBP_OK &&
                root->kind == SBP_JSON_OBJECT &&
                sbp_json_get_i64(NULL, root, "step", SBP_JSON_REQUIRED, &step) == SBP_OK &&
                step <= (sbp_json_member(root, "eval_file") ? k->keep_evaluations : k->keep_steps);
    sbp_arena_destroy(arena);
    if (!keep)
        return SBP_OK;
    SBP_TRY(sbp_file_out_write(k->out, k->diag, text, (int64_t)length));
    return sbp_file_out_write(k->out, k->diag, "\n", 1);
}

static sbp_status keep_lines(sbp_diag *diag, const char *path, int64_t steps, int64_t evaluations) {
    metrics_keeper k = {.diag = diag, .keep_steps = steps, .keep_evaluations = evaluations};
    if (!sbp_file_exists(path))
        return SBP_OK;
    SBP_TRY(sbp_file_out_open(diag, path, &k.out));
    sbp_status status = sbp_lines_read(diag, path, keep_line, &k);
    if (status == SBP_OK)
        return sbp_file_out_commit(k.out, diag);
    sbp_file_out_abort(k.out);
    return status;
}

/* Never writes into another file by a link; into a device or a pipe, it does. */
static FILE *open_file(const char *path, bool anew) {
    struct stat info;
    int flags = O_WRONLY | O_APPEND | O_CLOEXEC, fd;
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode)) {
        fd = open(path, flags);
    } else {
        if (anew && unlink(path) != 0 && errno != ENOENT)
            return NULL;
        fd = open(path, flags | O_CREAT | O_NOFOLLOW, 0666);
    }
    FILE *file = fd < 0 ? NULL : fdopen(fd, "a");
    if (!file && fd >= 0)
        close(fd);
    return file;
}

sbp_status sbp_metrics_open(sbp_metrics *m, sbp_diag *diag, const sbp_trainer *trainer, const char *path,
                            int64_t keep_steps, int64_t keep_evaluations, int64_t total_steps) {
    *m = (sbp_metrics){.trainer = trainer,
                       .diag = diag,
                       .path = path,
                       .terminal = isatty(STDERR_FILENO),
                       .total_steps = total_steps,
                       .started = sbp_seconds()};
    if (!path)
        return SBP_OK;
    if (keep_steps >= 0)
        SBP_TRY(keep_lines(diag, path, keep_steps, keep_evaluations));
    m->file = open_file(path, keep_steps < 0);
    return m->file ? SBP_OK : sbp_fail(diag, SBP_IO, "cannot write '%s': %s", path, strerror(errno));
}

static sbp_status write_failed(const sbp_metrics *m) {
    return sbp_fail(m->diag, SBP_IO, "cannot write '%s': %s", m->path, strerror(errno));
}

sbp_status sbp_metrics_close(sbp_metrics *m) {
    sbp_progress_break();
    if (!m->file)
        return SBP_OK;
    FILE *file = m->file;
    m->file = NULL;
    bool arrived = fflush(file) == 0 && fsync(fileno(file)) == 0;
    return fclose(file) == 0 && arrived ? SBP_OK : write_failed(m);
}

static void put_number(FILE *file, const char *prefix, const char *name, double value) {
    char text[40];
    sbp_format_double(text, sizeof text, value);
    fprintf(file, ", \"%s%s\": %s", prefix, name, isfinite(value) ? text : "null");
}

/* The outputs of the program, and the numbers of its @prepare; names are its own and need no escapes beyond
 * what JSON strings may hold. */
static void put_outputs(const sbp_metrics *m, const char *prefix, bool norm) {
    const sbp_program *p = m->trainer->program;
    for (int32_t i = 0; i < p->output_count; i++)
        if ((norm || i != m->trainer->grad_norm) && !strpbrk(p->outputs[i].name, "\"\\\n"))
            put_number(m->file, prefix, p->outputs[i].name, m->trainer->results[i]);
    for (int32_t i = 0; p->prepare && i < p->prepare->number_count; i++)
        if (!strpbrk(p->prepare->numbers[i], "\"\\\n"))
            put_number(m->file, prefix, p->prepare->numbers[i], m->trainer->prepared.numbers[i]);
}

/* ---- progress --------------------------------------------------------------------------------------- */

static void format_time(char *out, size_t size, double seconds) {
    long long s = seconds < 1e9 ? (long long)(seconds + 0.5) : (long long)1e9;
    if (s >= 3600)
        snprintf(out, size, "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(out, size, "%lld:%02lld", s / 60, s % 60);
}

/* Whether a step has a line; *stays: that is not rewritten. */
static bool is_shown(const sbp_metrics *m, int64_t step, double now, bool *stays) {
    bool last = step == m->total_steps, logged = m->log_every > 0 && step % m->log_every == 0;
    *stays = last || logged || !m->terminal;
    if (last || logged || (m->log_every > 0 && !m->terminal))
        return last || logged;
    return m->done == 1 || now - m->last_shown >= (m->terminal ? 0.1 : SECONDS_BETWEEN_LINES);
}

static void show(sbp_metrics *m, const sbp_step_report *r) {
    double now = sbp_seconds(), loss = m->trainer->loss >= 0 ? m->trainer->results[m->trainer->loss] : NAN;
    bool stays;
    if (m->quiet || !is_shown(m, r->step, now, &stays))
        return;
    m->last_shown = now;
    char memory[32], left[32], total[40] = "";
    format_time(left, sizeof left, (now - m->started) / (double)m->done * (double)(m->total_steps - r->step));
    if (m->total_steps > 0)
        snprintf(total, sizeof total, "/%lld", (long long)m->total_steps);
    if (m->terminal)
        fputs("\r\033[K", stderr);
    fprintf(stderr, "step %lld%s  loss %.4f  lr %.3g  %.0f tokens/s  %s", (long long)r->step, total, loss,
            r->learning_rate, r->seconds > 0 ? (double)r->tokens / r->seconds : 0,
            r->memory_peak_bytes > 0 ? sbp_format_bytes(memory, sizeof memory, (double)r->memory_peak_bytes)
                                     : "memory unknown");
    if (m->total_steps > 0)
        fprintf(stderr, "  %s left", left);
    line_is_open = m->terminal;
    if (!m->terminal)
        fputc('\n', stderr);
    if (stays)
        sbp_progress_break();
    fflush(stderr);
}

sbp_status sbp_metrics_step(sbp_metrics *m, const sbp_step_report *r) {
    m->done++;
    if (m->trainer->loss >= 0) {
        m->loss_sum += m->trainer->results[m->trainer->loss];
        m->loss_count++;
    }
    show(m, r);
    if (!m->file)
        return SBP_OK;
    fprintf(m->file, "{\"step\": %lld, \"kind\": \"train\"", (long long)r->step);
    put_number(m->file, "", "epoch", r->epoch);
    put_outputs(m, "", true);
    put_number(m->file, "", "learning_rate", r->learning_rate);
    fprintf(m->file, ", \"num_tokens\": %lld", (long long)r->num_tokens);
    put_number(m->file, "", "tokens_per_second", r->seconds > 0 ? (double)r->tokens / r->seconds : NAN);
    put_number(m->file, "", "step_seconds", r->seconds);
    put_number(m->file, "", "memory_peak_bytes",
               r->memory_peak_bytes > 0 ? (double)r->memory_peak_bytes : NAN);
    fputs("}\n", m->file);
    return fflush(m->file) == 0 ? SBP_OK : write_failed(m);
}

sbp_status sbp_metrics_evaluation(sbp_metrics *m, int64_t step, double epoch, const char *file) {
    const sbp_trainer *t = m->trainer;
    if (!m->quiet) {
        sbp_progress_break();
        fprintf(stderr, "step %lld  eval_loss %.4f  %s\n", (long long)step,
                t->loss >= 0 ? t->results[t->loss] : NAN, file);
    }
    if (!m->file)
        return SBP_OK;

    fprintf(m->file, "{\"step\": %lld, \"kind\": \"eval\"", (long long)step);
    put_number(m->file, "", "epoch", epoch);
    fputs(", \"eval_file\": \"", m->file);
    for (const char *p = file; *p; p++) /* as JSON */
        if (*p == '"' || *p == '\\' || (unsigned char)*p < 32)
            fprintf(m->file, "\\u%04x", (unsigned char)*p);
        else
            fputc(*p, m->file);
    fputc('"', m->file);
    put_outputs(m, "eval_", false);
    fputs("}\n", m->file);
    return fflush(m->file) == 0 ? SBP_OK : write_failed(m);
}

double sbp_metrics_train_loss(const sbp_metrics *m) {
    return m->loss_count > 0 ? m->loss_sum / (double)m->loss_count : NAN;
}
