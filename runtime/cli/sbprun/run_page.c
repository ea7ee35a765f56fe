/* run_page.c: report.html, a run as a page: one file, without scripts, which a policy in it forbids together
 * with everything that would be loaded. Light or dark as the reader's browser is. All text is escaped. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cli/sbprun/run_samples.h"

enum { MOST_POINTS = 400, WIDTH = 640, HEIGHT = 200, LEFT = 70, RIGHT = 10, TOP = 10, BOTTOM = 24 };

/* The curves, in order: a member of the lines of metrics.jsonl, a title, and what a value is divided by. */
static const struct curve {
    const char *key, *title;
    double unit;
    bool evaluated;
} curves[] = {{"loss", "Loss (dots: evaluation)", 1, true},
              {"grad_norm", "Norm of the gradients", 1, false},
              {"learning_rate", "Learning rate", 1, false},
              {"tokens_per_second", "Tokens per second", 1, false},
              {"mfu", "Model FLOP utilisation, %", 0.01, false},
              {"memory_peak_bytes", "Peak of memory, MiB", 1 << 20, false}};

enum { CURVES = SBP_COUNT(curves) };
_Static_assert((int)CURVES <= (int)SBP_CURVE_VALUES, "points have room for all curves");

typedef struct range {
    double least, most;
} range;

typedef struct page {
    sbp_arena *arena;
    sbp_text text;
    sbp_curve curve;
    range steps;
    int64_t best; /* step of the best evaluation, 0: unknown */
} page;

static void add_row(void *user, const char *name, const char *value) {
    page *p = user;
    sbp_text_add(&p->text, "<tr><th>");
    sbp_text_add_escaped(&p->text, name);
    sbp_text_add(&p->text, "</th><td>");
    sbp_text_add_escaped(&p->text, value);
    sbp_text_add(&p->text, "</td></tr>\n");
}

/* ---- curves ----------------------------------------------------------------------------------------- */

static void widen(range *r, double value) {
    if (isfinite(value)) {
        r->least = fmin(r->least, value);
        r->most = fmax(r->most, value);
    }
}

static double place_x(const page *p, double step) {
    double from = p->steps.least, to = p->steps.most;
    return LEFT + (WIDTH - LEFT - RIGHT) * (to > from ? (step - from) / (to - from) : 0.5);
}

static double place_y(const range *r, double value) {
    return TOP + (HEIGHT - TOP - BOTTOM) *
                     (1 - (r->most > r->least ? (value - r->least) / (r->most - r->least) : 0.5));
}

static void add_axes(page *p, const range *r) {
    for (int i = 0; i <= 2; i++) {
        double value = r->least + (r->most - r->least) * i / 2, y = place_y(r, value);
        char label[32];
        if (i > 0 && r->most <= r->least)
            break;
        snprintf(label, sizeof label, fabs(value) >= 1000 ? "%.0f" : "%.3g", value);
        sbp_text_add(
            &p->text,
            "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/><text x=\"%d\" y=\"%.1f\" "
            "text-anchor=\"end\">%s</text>\n",
            LEFT, WIDTH - RIGHT, y, y, LEFT - 6, y + 4, label);
    }
    sbp_text_add(
        &p->text,
        "<text x=\"%d\" y=\"%d\">step %.0f</text><text x=\"%d\" y=\"%d\" text-anchor=\"end\">%.0f</text>\n",
        LEFT, HEIGHT - 6, p->steps.least, WIDTH - RIGHT, HEIGHT - 6, p->steps.most);
}

/* Dots at the steps of the evaluations. */
static void add_evaluations(page *p, const range *r) {
    for (int32_t i = 0; i < p->curve.eval_count; i++) {
        const sbp_curve_point *eval = &p->curve.evals[i];
        const bool best = p->best > 0 && eval->step == (double)p->best;
        if (isfinite(eval->eval_loss))
            sbp_text_add(
                &p->text,
                "<circle class=\"eval\" cx=\"%.1f\" cy=\"%.1f\" r=\"%d\"><title>step %.0f: %.4f%s</title>"
                "</circle>\n",
                place_x(p, eval->step), place_y(r, eval->eval_loss), best ? 6 : 4, eval->step,
                eval->eval_loss, best ? ", the best" : "");
    }
}

/* A gap where a value is not known. */
static void add_curve(page *p, int which) {
    range r = {INFINITY, -INFINITY};
    double unit = curves[which].unit;
    for (int32_t i = 0; i < p->curve.count; i++)
        widen(&r, p->curve.points[i].values[which] / unit);
    for (int32_t i = 0; curves[which].evaluated && i < p->curve.eval_count; i++)
        widen(&r, p->curve.evals[i].eval_loss);
    if (!isfinite(r.least))
        return;
    sbp_text_add(&p->text, "<figure><figcaption>%s</figcaption><svg viewBox=\"0 0 %d %d\" role=\"img\">\n",
                 curves[which].title, WIDTH, HEIGHT);
    add_axes(p, &r);
    sbp_text_add(&p->text, "<path class=\"curve\" d=\"");
    bool open = false;
    for (int32_t i = 0; i < p->curve.count; i++) {
        double value = p->curve.points[i].values[which] / unit;
        if (isfinite(value))
            sbp_text_add(&p->text, "%c%.1f %.1f", open ? 'L' : 'M', place_x(p, p->curve.points[i].step),
                         place_y(&r, value));
        open = isfinite(value);
    }
    sbp_text_add(&p->text, "\"/>\n");
    if (curves[which].evaluated)
        add_evaluations(p, &r);
    sbp_text_add(&p->text, "</svg></figure>\n");
}

static sbp_status read_curve(const sbp_world *world, const sbp_outputs *outputs, page *p) {
    const char *keys[CURVES];
    for (int i = 0; i < CURVES; i++)
        keys[i] = curves[i].key;
    SBP_TRY(sbp_run_read_curve(world, outputs, keys, CURVES, MOST_POINTS, &p->curve));
    p->steps = (range){INFINITY, -INFINITY};
    for (int32_t i = 0; i < p->curve.count; i++)
        widen(&p->steps, p->curve.points[i].step);
    for (int32_t i = 0; i < p->curve.eval_count; i++)
        widen(&p->steps, p->curve.evals[i].step);
    return SBP_OK;
}

/* ---- memory ----------------------------------------------------------------------------------------- */

/* A bar for each part, to the scale of the space. */
static void add_space(page *p, const sbp_run_account *account, const char *title) {
    char text[32];
    if (account->bytes <= 0)
        return;
    sbp_text_add(&p->text, "<h3>%s: %s</h3>\n<table class=\"bars\">\n", title,
                 sbp_format_bytes(text, sizeof text, (double)account->bytes));
    for (int32_t i = 0; i < account->count; i++) {
        const sbp_run_part *part = &account->parts[i];
        sbp_text_add(&p->text, "<tr><th>");
        sbp_text_add_escaped(&p->text, part->name);
        sbp_text_add(
            &p->text,
            "</th><td>%s</td><td><svg viewBox=\"0 0 300 14\" width=\"300\" height=\"14\"><rect class=\"bar\" "
            "width=\"%.1f\" height=\"14\"/></svg></td></tr>\n",
            sbp_format_bytes(text, sizeof text, (double)part->bytes),
            300 * (double)part->bytes / (double)account->bytes);
    }
    sbp_text_add(&p->text, "</table>\n");
}

static void add_memory(page *p, const sbp_world *world, const sbp_session *session) {
    static const char *const titles[] = {[SBP_DEVICE] = "Device", [SBP_HOST] = "Host", [SBP_DISK] = "Disk"};
    sbp_text_add(
        &p->text,
        "<h2>Memory of the plan</h2>\n<p>When most of it is held; <code>sbpc inspect</code> says the "
        "same.</p>\n");
    for (int space = 0; space < SBP_SPACE_COUNT; space++) {
        sbp_run_account account = sbp_run_account_of(world, session, (sbp_space)space);
        add_space(p, &account, titles[space]);
    }
}

/* The last parts of the names of files, or the names of data sets. */
static void add_files(page *p, const sbp_world *world, sbp_option_id option, const char *title) {
    sbp_text names;
    int32_t count = sbp_options_list_count(world->options, option);
    sbp_text_init(&names, p->arena);
    for (int32_t i = 0; i < count; i++) {
        const char *path = sbp_options_list_at(world->options, option, i), *slash = strrchr(path, '/');
        const char *name = sbp_run_dataset_name(p->arena, path);
        sbp_text_add(&names, "%s%s", i > 0 ? ", " : "", name ? name : slash && slash[1] ? slash + 1 : path);
    }
    if (count > 0)
        add_row(p, title, names.data);
}

/* ---- all of it -------------------------------------------------------------------------------------- */

static const char head[] =
    "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
    "'unsafe-inline'\">\n"
    "<meta name=\"viewport\" content=\"width=device-width\">\n"
    "<style>\n"
    ":root { color-scheme: light dark; --ink: #1c1e21; --paper: #fff; --faint: #d5d9de; --one: #2563ab; "
    "--two: #c2410c }\n"
    "@media (prefers-color-scheme: dark) { :root { --ink: #e6e8ea; --paper: #16181b; --faint: #3a3f46; "
    "--one: #7db7f0; "
    "--two: #fb923c } }\n"
    "body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: "
    "1360px; margin: "
    "2em auto; padding: 0 1em }\n"
    ".curves { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); gap: "
    "1em 2em }\nfigure { margin: 0 }\n"
    "figcaption { font-weight: 600 } svg text { fill: var(--ink); font-size: 12px }\n"
    ".grid { stroke: var(--faint) } .curve { fill: none; stroke: var(--one); stroke-width: 1.6 } .eval { "
    "fill: var(--two) "
    "} .bar { fill: var(--one) }\n"
    "table { border-collapse: collapse } th { text-align: left; font-weight: 400; padding: 1px 1.5em 1px 0 } "
    "td { padding: "
    "1px 1.5em 1px 0; font-variant-numeric: tabular-nums; overflow-wrap: anywhere }\n"
    ".bars td { white-space: nowrap } .bars td + td { width: 300px; padding-right: 0 } .bars svg { width: "
    "100% }\n"
    "@media (max-width: 700px) { figure svg { overflow: visible } svg text { font-size: 18px } .bars th, "
    ".bars td { padding-right: .7em } }\n"
    "pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: 0 0 1em } .yes { background: "
    "color-mix(in srgb, var(--one) 25%, transparent) } .part { background: color-mix(in srgb, var(--two) "
    "25%, "
    "transparent) } .no { opacity: .65 } .special { border: 1px solid var(--faint); border-radius: 3px }\n"
    "</style>\n<title>";

static void add_summary(const sbp_world *world, const sbp_session *session, const sbp_outputs *outputs,
                        page *p) {
    char text[40];
    double loss = sbp_metrics_train_loss(&outputs->metrics);
    int64_t measured = sbp_run_peak_measured(world);
    const char *verdict = sbp_run_verdict(p->arena, session);
    if (session->info.meta.name)
        add_row(p, "model", session->info.meta.name);
    add_row(p, "steps", sbp_arena_printf(p->arena, "%lld", (long long)session->state.step));
    add_row(p, "tokens", sbp_arena_printf(p->arena, "%lld", (long long)session->state.num_tokens));
    add_row(p, "time", sbp_format_seconds(text, sizeof text, outputs->seconds));
    if (outputs->utilised > 0)
        add_row(p, "model FLOP utilisation",
                sbp_arena_printf(p->arena, "%.1f %% of %s a second, %s",
                                 100 * outputs->utilised / outputs->seconds,
                                 sbp_format_flops(text, sizeof text, outputs->utilisation.peak),
                                 outputs->utilisation.measured ? "measured here" : "of the data sheet"));
    if (isfinite(loss))
        add_row(p, "mean loss", sbp_arena_printf(p->arena, "%.4f", loss));
    if (isfinite(outputs->eval_loss))
        add_row(p, "evaluation loss", sbp_arena_printf(p->arena, "%.4f", outputs->eval_loss));
    if (verdict)
        add_row(p, "evaluations", verdict);
    add_row(p, "memory planned",
            sbp_format_bytes(text, sizeof text, (double)sbp_run_peak_planned(world, session)));
    if (measured > 0)
        add_row(p, "memory measured", sbp_format_bytes(text, sizeof text, (double)measured));
    add_row(p, "backend", session->info.meta.backend);
    add_row(p, "sbprun", SBP_VERSION);
}

sbp_status sbp_run_write_page(const sbp_world *world, const sbp_session *session,
                              const sbp_outputs *outputs) {
    const char *name = sbp_run_model_name(world->arena, outputs->out);
    page *p = SBP_NEW(world->arena, page);
    p->arena = world->arena;
    sbp_text_init(&p->text, world->arena);
    SBP_TRY(read_curve(world, outputs, p));
    p->best = session->best.is_loss ? session->state.best.step : 0;
    sbp_text_add_n(&p->text, head, sizeof head - 1);
    sbp_text_add_escaped(&p->text, name);
    sbp_text_add(&p->text, "</title>\n</head>\n<body>\n<h1>");
    sbp_text_add_escaped(&p->text, name);
    sbp_text_add(&p->text, "</h1>\n<table>\n");
    add_summary(world, session, outputs, p);
    sbp_text_add(&p->text, "</table>\n<h2>Curves</h2>\n<div class=\"curves\">\n");
    for (int i = 0; i < CURVES && p->curve.count > 0; i++)
        add_curve(p, i);
    sbp_text_add(&p->text, "</div>\n");
    add_memory(p, world, session);
    SBP_TRY(sbp_samples_add_page(world, outputs, &p->text));
    if (session->rows)
        sbp_text_add(&p->text, "<h2>Rows</h2>\n%s", session->rows);
    sbp_text_add(&p->text, "<h2>Settings</h2>\n<table>\n");
    add_files(p, world, SBP_OPT_DATA, "data");
    add_files(p, world, SBP_OPT_EVAL, "evaluation");
    sbp_run_each_setting(world, session, add_row, p);
    sbp_text_add(&p->text, "</table>\n</body>\n</html>\n");
    return sbp_file_write(world->diag, sbp_file_join(world->arena, outputs->out, "report.html"), p->text.data,
                          p->text.length);
}
