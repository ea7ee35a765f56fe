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

#include "ir/base/json_write.h"
#include "ir/base/machine.h"
#include "runtime/data/jsonl.h"

static const double SECONDS_BETWEEN_LINES = 5;
static bool line_is_open; /* a rewritten line of progress has no end yet */

void sbp_progress_break(void) {
    if (line_is_open)
        fputc('\n', stderr);
    line_is_open = false;
}

void sbp_progress_say(const sbp_metrics *m, const char *text) {
    if (!m->terminal || m->quiet)
        return;
    fprintf(stderr, "\r\033[K%s", text);
    fflush(stderr);
    line_is_open = true;
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
        return sbp_fail(k->diag, SBP_MACHINE, "out of memory for the lines of metrics.jsonl");
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
                       .evaluated_step = -1,
                       .started = sbp_seconds()};
    if (!path)
        return SBP_OK;
    if (keep_steps >= 0)
        SBP_TRY(keep_lines(diag, path, keep_steps, keep_evaluations));
    m->file = open_file(path, keep_steps < 0);
    if (!m->file && errno == ENOMEM)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for writing '%s'", path);
    return m->file ? SBP_OK : sbp_fail(diag, SBP_IO, "cannot write '%s': %s", path, strerror(errno));
}

static sbp_status write_failed(const sbp_metrics *m) {
    return sbp_fail(m->diag, SBP_IO, "cannot write '%s': %s", m->path, strerror(errno));
}

sbp_status sbp_metrics_close(sbp_metrics *m) {
    sbp_progress_break();
    sbp_events *events = m->events;
    m->events = NULL;
    SBP_TRY(sbp_events_close(events, m->diag));
    if (!m->file)
        return SBP_OK;
    FILE *file = m->file;
    m->file = NULL;
    bool arrived = fflush(file) == 0 && fsync(fileno(file)) == 0;
    return fclose(file) == 0 && arrived ? SBP_OK : write_failed(m);
}

/* A line of the file: of a step, or of an evaluation. */
typedef struct metrics_line {
    const sbp_metrics *metrics;
    sbp_arena *arena;
    int64_t step;
    double epoch;
    const sbp_step_report *report; /* NULL: an evaluation, */
    const char *file;              /* of this file */
    const char *of;                /* what its events are called by, where it is not the only one: "test_" */
    sbp_status status;             /* of events */
} metrics_line;

/* Tags are those of transformers: train/loss, eval/loss. */
static void add_event(metrics_line *l, const char *key, double value) {
    if (!l->metrics->events || l->status != SBP_OK)
        return;
    bool eval = strncmp(key, "eval_", 5) == 0;
    const char *tag = sbp_arena_printf(l->arena, "%s%s%s", eval ? "eval/" : "train/", eval ? l->of : "",
                                       eval ? key + 5 : key);
    l->status = sbp_events_add(l->metrics->events, l->metrics->diag, l->step, tag, value);
}

/* A number of the line: into it, and as an event. */
static void write_number(metrics_line *l, sbp_json_writer *w, const char *key, double value) {
    sbp_json_write_double(w, key, value);
    add_event(l, key, value);
}

static void write_in_line(metrics_line *l, sbp_json_writer *w, const char *key, double value) {
    (void)l;
    sbp_json_write_double(w, key, value);
}

/* The outputs of the program, and the numbers of its @prepare; events: as events, too. */
static void write_outputs(metrics_line *l, sbp_json_writer *w, const char *prefix, bool events) {
    void (*const write)(metrics_line *, sbp_json_writer *, const char *, double) =
        events ? write_number : write_in_line;
    const sbp_trainer *t = l->metrics->trainer;
    const sbp_program *p = t->program;
    for (int32_t i = 0; i < p->output_count; i++)
        if (l->report || i != t->grad_norm)
            write(l, w, sbp_arena_printf(l->arena, "%s%s", prefix, p->outputs[i].name), t->results[i]);
    for (int32_t i = 0; p->prepare && i < p->prepare->number_count; i++)
        write(l, w, sbp_arena_printf(l->arena, "%s%s", prefix, p->prepare->numbers[i]),
              t->prepared.numbers[i]);
}

/* The same by transformers' names where there are several files: eval_FILE_loss. */
static void write_named(metrics_line *l, sbp_json_writer *w) {
    char file[80];
    sbp_metrics_eval_name(l->file, file, sizeof file);
    write_outputs(l, w, sbp_arena_printf(l->arena, "eval_%s_", file), false);
}

static void write_step(metrics_line *l, sbp_json_writer *w) {
    const sbp_step_report *r = l->report;
    write_outputs(l, w, "", true);
    for (int32_t i = 0; i < l->metrics->more_count; i++)
        write_number(l, w, l->metrics->more[i].name, l->metrics->more[i].value);
    write_number(l, w, "learning_rate", r->learning_rate);
    sbp_json_write_int(w, "num_tokens", r->num_tokens);
    add_event(l, "num_tokens", (double)r->num_tokens);
    write_number(l, w, "tokens_per_second", r->seconds > 0 ? (double)r->tokens / r->seconds : (double)NAN);
    write_number(l, w, "step_seconds", r->seconds);
    if (isfinite(r->utilisation))
        write_number(l, w, "mfu", r->utilisation);
    write_number(l, w, "memory_peak_bytes",
                 r->memory_peak_bytes > 0 ? (double)r->memory_peak_bytes : (double)NAN);
}

/* On standard output too, where that is asked for. */
static sbp_status write_text(const sbp_metrics *m, const sbp_text *line) {
    if (m->lines && (fwrite(line->data, 1, line->length, stdout) != line->length || fflush(stdout) != 0))
        return sbp_fail(m->diag, SBP_IO, "cannot write to standard output: %s", strerror(errno));
    if (m->file && (fwrite(line->data, 1, line->length, m->file) != line->length || fflush(m->file) != 0))
        return write_failed(m);
    return SBP_OK;
}

static sbp_status write_line_body(void *user) {
    metrics_line *l = user;
    const sbp_metrics *m = l->metrics;
    sbp_text out;
    sbp_text_init(&out, l->arena);
    sbp_json_writer w = sbp_json_writer_on(&out);
    sbp_json_write_object(&w, NULL);
    sbp_json_write_int(&w, "step", l->step);
    sbp_json_write_string(&w, "kind", l->report ? "train" : "eval");
    write_number(l, &w, "epoch", l->epoch);
    if (l->report) {
        write_step(l, &w);
    } else {
        sbp_json_write_string(&w, "eval_file", l->file);
        write_outputs(l, &w, "eval_", true);
        if (m->several)
            write_named(l, &w);
    }
    sbp_json_write_end(&w);
    sbp_text_add(&out, "\n");
    SBP_TRY(write_text(m, &out));
    SBP_TRY(l->status);
    return m->events ? sbp_events_flush(m->events, m->diag) : SBP_OK;
}

static sbp_status write_line(metrics_line line) {
    line.arena = sbp_arena_create();
    if (!line.arena)
        return sbp_fail(line.metrics->diag, SBP_MACHINE, "out of memory for the lines of metrics.jsonl");
    sbp_status status = sbp_guard(line.arena, line.metrics->diag, write_line_body, &line);
    sbp_arena_destroy(line.arena);
    return status;
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
    *stays = last || logged || !m->terminal || m->verbose;
    if (m->verbose)
        return true;
    if (last || logged || (m->log_every > 0 && !m->terminal))
        return last || logged;
    return m->done == 1 || now - m->last_shown >= (m->terminal ? 0.1 : SECONDS_BETWEEN_LINES);
}

/* What else the program gives, and its @prepare. */
static void show_outputs(const sbp_metrics *m) {
    const sbp_trainer *t = m->trainer;
    const sbp_program *p = t->program;
    for (int32_t i = 0; i < p->output_count; i++)
        if (i != t->loss)
            fprintf(stderr, "  %s %.4g", p->outputs[i].name, t->results[i]);
    for (int32_t i = 0; p->prepare && i < p->prepare->number_count; i++)
        fprintf(stderr, "  %s %.4g", p->prepare->numbers[i], t->prepared.numbers[i]);
    for (int32_t i = 0; i < m->more_count; i++)
        fprintf(stderr, "  %s %.4g", m->more[i].name, m->more[i].value);
}

/* The mean reward, which says more of such a step than its loss. */
static void show_reward(const sbp_metrics *m) {
    const sbp_trainer *t = m->trainer;
    const sbp_prepare *prepare = t->program->prepare;
    for (int32_t i = 0; prepare && i < prepare->number_count; i++)
        if (strcmp(prepare->numbers[i], sbp_data_columns[SBP_DATA_REWARD].name) == 0)
            fprintf(stderr, "  reward %.4f", t->prepared.numbers[i]);
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
    char used[24] = "";
    if (isfinite(r->utilisation))
        snprintf(used, sizeof used, "  MFU %.1f %%", 100 * r->utilisation);
    fprintf(stderr, "step %lld%s  loss %.4f", (long long)r->step, total, loss);
    if (!m->verbose)
        show_reward(m);
    fprintf(stderr, "  lr %.3g  %.0f tokens/s%s  %s", r->learning_rate,
            r->seconds > 0 ? (double)r->tokens / r->seconds : 0, used,
            r->memory_peak_bytes > 0 ? sbp_format_bytes(memory, sizeof memory, (double)r->memory_peak_bytes)
                                     : "memory unknown");
    if (m->total_steps > 0)
        fprintf(stderr, "  %s left", left);
    if (m->verbose)
        show_outputs(m);
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
    if (!m->file && !m->lines)
        return SBP_OK;
    return write_line((metrics_line){.metrics = m, .step = r->step, .epoch = r->epoch, .report = r});
}

void sbp_metrics_eval_name(const char *file, char *out, size_t size) {
    const char *slash = strrchr(file, '/'), *name = slash ? slash + 1 : file;
    snprintf(out, size, "%.*s", (int)strcspn(name, "."), name);
}

sbp_status sbp_metrics_evaluation(sbp_metrics *m, int64_t step, double epoch, const char *file) {
    const sbp_trainer *t = m->trainer;
    const char *slash = strrchr(file, '/'), *name = slash ? slash + 1 : file;
    if (!m->quiet) {
        sbp_progress_break();
        fprintf(stderr, "step %lld  eval_loss %.4f  %s\n", (long long)step,
                t->loss >= 0 ? t->results[t->loss] : NAN, name);
    }
    if (!m->file && !m->lines)
        return SBP_OK;
    char of[80] = "";
    if (m->evaluated_step == step) { /* transformers' names where there are several */
        sbp_metrics_eval_name(file, of, sizeof of - 1);
        of[strlen(of)] = '_';
    }
    m->evaluated_step = step;
    return write_line((metrics_line){.metrics = m, .step = step, .epoch = epoch, .file = file, .of = of});
}

double sbp_metrics_train_loss(const sbp_metrics *m) {
    return m->loss_count > 0 ? m->loss_sum / (double)m->loss_count : NAN;
}
