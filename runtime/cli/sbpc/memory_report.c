/* memory_report.c: who holds the memory, as numbers and as a picture. */
#include <stdio.h>
#include <string.h>

#include "ir/program/plan_meta.h"
#include "passes/lower/memory.h"
#include "runtime/cli/sbpc/cli.h"

static sbp_status account_of(sbp_arena *arena, sbp_diag *diag, const sbp_program *program, sbp_space space,
                             int64_t alignment, sbp_category *out, int32_t *count) {
    sbp_memory_peak peak;
    SBP_TRY(sbp_memory_find_peak(arena, program, space, alignment, diag, &peak));
    *count = 0;
    for (int r = 0; r < SBP_ROLE_COUNT; r++) {
        const char *name = sbp_role_category((sbp_role)r);
        int32_t at = 0;
        while (at < *count && strcmp(out[at].name, name) != 0)
            at++;
        if (at == *count)
            out[(*count)++] = (sbp_category){.name = name};
        out[at].bytes += peak.roles[r];
    }
    if (peak.arena_bytes > peak.live_bytes)
        out[(*count)++] =
            (sbp_category){.name = "gaps between buffers", .bytes = peak.arena_bytes - peak.live_bytes};
    return SBP_OK;
}

sbp_status sbp_cli_account(sbp_arena *arena, sbp_diag *diag, const sbp_program *program, int64_t alignment,
                           int64_t process_bytes, sbp_account *out) {
    for (int space = 0; space < SBP_SPACE_COUNT; space++)
        SBP_TRY(account_of(arena, diag, program, (sbp_space)space, alignment, out->parts[space],
                           &out->counts[space]));
    out->parts[SBP_DEVICE][out->counts[SBP_DEVICE]++] = (sbp_category){SBP_PLAN_PROCESS, process_bytes};
    return SBP_OK;
}

void sbp_cli_memory_line(const sbp_account *account, sbp_text *out) {
    const sbp_category *parts = account->parts[SBP_DEVICE];
    int32_t count = account->counts[SBP_DEVICE] - 1; /* without the process */
    int64_t all = 0, rest = 0;
    bool any = false;
    char bytes[32];
    for (int32_t i = 0; i < count; i++)
        all += parts[i].bytes;
    for (int32_t i = 0; i < count; i++) {
        if (100 * parts[i].bytes < all) {
            rest += parts[i].bytes;
            continue;
        }
        sbp_text_add(out, "%s%s %s", any ? ", " : "", parts[i].name,
                     sbp_format_bytes(bytes, sizeof bytes, (double)parts[i].bytes));
        any = true;
    }
    if (rest > 0)
        sbp_text_add(out, ", others %s", sbp_format_bytes(bytes, sizeof bytes, (double)rest));
}

void sbp_cli_write_categories(sbp_json_writer *w, const char *key, const sbp_account *account) {
    sbp_json_write_object(w, key);
    for (int32_t i = 0; i < account->counts[SBP_DEVICE]; i++)
        sbp_json_write_int(w, account->parts[SBP_DEVICE][i].name, account->parts[SBP_DEVICE][i].bytes);
    sbp_json_write_end(w);
}

void sbp_cli_write_account(sbp_json_writer *w, const char *key, const sbp_account *account) {
    sbp_json_write_object(w, key);
    for (int space = 0; space < SBP_SPACE_COUNT; space++) {
        sbp_json_write_object(w, sbp_space_names[space]);
        for (int32_t i = 0; i < account->counts[space]; i++)
            if (account->parts[space][i].bytes > 0)
                sbp_json_write_int(w, account->parts[space][i].name, account->parts[space][i].bytes);
        sbp_json_write_end(w);
    }
    sbp_json_write_end(w);
}

/* ---- the picture ------------------------------------------------------------------------------------- */

/* What is there all the time is folded into bands of fixed height; above them, to scale, what comes and goes.
 */
enum { WIDTH = 1000, HEIGHT = 480, BAND = 22, LEFT = 110, TOP = 60, LEGEND = 170 };

/* One for each category, in the order of their first roles; the last is the process's. */
static const char *const colours[] = {"#4e79a7", "#a0cbe8", "#f28e2b", "#ffbe7d", "#59a14f",
                                      "#8cd17d", "#b6992d", "#f1ce63", "#e15759", "#499894",
                                      "#86bcb6", "#d37295", "#b07aa1", "#9d7660", "#79706e"};
static const char style[] =
    "<style>svg{background:#fff;fill:#1c1e21}line{stroke:#ccc}.d{fill:#fff}.l{fill:#1c1e21}"
    "@media(prefers-color-scheme:dark){svg{background:#16181b;fill:#e6e8ea}"
    "line{stroke:#3a3f46}}</style>\n";

static bool is_first_of_category(int role) {
    for (int q = 0; q < role; q++)
        if (strcmp(sbp_role_category((sbp_role)q), sbp_role_category((sbp_role)role)) == 0)
            return false;
    return true;
}

static const char *colour_of(sbp_role role) {
    int category = 0;
    for (int q = 0; q < SBP_ROLE_COUNT; q++) {
        if (strcmp(sbp_role_category((sbp_role)q), sbp_role_category(role)) == 0)
            break;
        category += is_first_of_category(q);
    }
    return colours[category < SBP_COUNT(colours) - 1 ? category : SBP_COUNT(colours) - 2];
}

/* Whether letters on it are to be white. */
static bool is_dark(const char *colour) {
    unsigned r = 0, g = 0, b = 0;
    return sscanf(colour, "#%2x%2x%2x", &r, &g, &b) == 3 && 299 * r + 587 * g + 114 * b < 125000;
}

typedef struct picture {
    sbp_text *out;
    const sbp_program *program;
    double x_scale, y_scale;
    int64_t folded; /* bytes in bands */
} picture;

static bool is_folded(const sbp_buffer *buffer) {
    return buffer->function < 0 && buffer->space == SBP_DEVICE && sbp_memory_is_persistent(buffer->role);
}

/* Parts lie in a bucket, which is drawn and counted. */
static int64_t bytes_of(const sbp_buffer *buffer) {
    return buffer->part_of > 0 ? 0 : buffer->stride * buffer->count;
}

/* An offset without the folded buffers below it. */
static int64_t unfolded(const picture *p, int64_t offset) {
    int64_t below = 0;
    for (int32_t b = 0; b < p->program->buffer_count; b++)
        if (is_folded(&p->program->buffers[b]) && p->program->buffers[b].offset < offset)
            below += bytes_of(&p->program->buffers[b]);
    return offset - below;
}

static void rectangle(picture *p, double begin, double end, const sbp_buffer *buffer, const char *function) {
    char size[32];
    int64_t bytes = bytes_of(buffer), offset = unfolded(p, buffer->offset);
    double y = TOP + HEIGHT - (double)(offset + bytes) * p->y_scale, h = (double)bytes * p->y_scale;
    if (h < 0.05)
        return;
    sbp_text_add(p->out, "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" fill=\"%s\"><title>",
                 LEFT + begin * p->x_scale, y, (end - begin) * p->x_scale, h, colour_of(buffer->role));
    for (const char *c = buffer->name; *c; c++)
        if (*c == '<' || *c == '&')
            sbp_text_add(p->out, "%s", *c == '<' ? "&lt;" : "&amp;");
        else
            sbp_text_add_n(p->out, c, 1);
    sbp_text_add(p->out, ": %s, %s%s%s</title></rect>\n", sbp_role_category(buffer->role),
                 sbp_format_bytes(size, sizeof size, (double)bytes), function ? ", in @" : "",
                 function ? function : "");
}

static void band(const picture *p, int number, const char *name, int64_t bytes, const char *colour) {
    char size[32];
    int y = TOP + HEIGHT + 10 + BAND * number;
    sbp_text_add(p->out,
                 "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"%s\"/><text x=\"%d\" y=\"%d\" "
                 "font-size=\"12\" class=\"%s\">%s %s</text>\n",
                 LEFT, y, WIDTH, BAND - 2, colour, LEFT + 8, y + 15, is_dark(colour) ? "d" : "l", name,
                 sbp_format_bytes(size, sizeof size, (double)bytes));
}

/* What a buffer adds to the category of a role: a part to its own, out of its bucket's. */
static int64_t category_bytes(const sbp_buffer *buffer, sbp_role role) {
    int64_t part = buffer->part_of > 0
                       ? sbp_extent_as_const(buffer->rows) * buffer->cols * sbp_dtype_bytes(buffer->dtype)
                       : 0;
    bool own = strcmp(sbp_role_category(buffer->role), sbp_role_category(role)) == 0;
    return (own ? bytes_of(buffer) + part : 0) - (role == SBP_ROLE_BUCKET ? part : 0);
}

/* The categories that are there all the time, and the process; returns how many. */
static int bands(picture *p, int64_t process_bytes) {
    int number = 0;
    for (int r = 0; r < SBP_ROLE_COUNT; r++) {
        int64_t bytes = 0;
        if (!is_first_of_category(r))
            continue;
        for (int32_t b = 0; b < p->program->buffer_count; b++)
            if (is_folded(&p->program->buffers[b]))
                bytes += category_bytes(&p->program->buffers[b], (sbp_role)r);
        if (bytes > 0)
            band(p, number++, sbp_role_category((sbp_role)r), bytes, colour_of((sbp_role)r));
    }
    if (process_bytes > 0)
        band(p, number++, SBP_PLAN_PROCESS, process_bytes, colours[SBP_COUNT(colours) - 1]);
    return number;
}

/* A round number of bytes that goes into `bytes` at most five times. */
static double tick_of(double bytes) {
    static const double round[] = {1, 2, 5, 10, 20, 50, 100, 200, 500};
    double unit = 1;
    for (;; unit *= 1024)
        for (int i = 0; i < SBP_COUNT(round); i++)
            if (bytes <= 5 * round[i] * unit)
                return round[i] * unit;
}

static void legend(picture *p, const char *entry, int64_t process_bytes, int band_count) {
    char total[32], moving[32];
    int64_t above = p->program->arena_bytes[SBP_DEVICE] - p->folded;
    sbp_text_add(
        p->out, "<text x=\"%d\" y=\"24\">device memory of %s, planned: %s, of which %s come and go</text>\n",
        LEFT,
        sbp_entry_is(entry, SBP_ENTRY_ACCUMULATE) ? "a micro-batch"
        : sbp_entry_is(entry, SBP_ENTRY_SCORE)    ? "scoring"
                                                  : "a step",
        sbp_format_bytes(total, sizeof total, (double)(p->program->arena_bytes[SBP_DEVICE] + process_bytes)),
        sbp_format_bytes(moving, sizeof moving, (double)above));
    sbp_text_add(p->out, "<text x=\"4\" y=\"%d\" font-size=\"12\">all the time</text>\n", TOP + HEIGHT + 26);
    sbp_text_add(p->out, "<text x=\"4\" y=\"%d\" font-size=\"12\">(not to scale)</text>\n",
                 TOP + HEIGHT + 42);
    sbp_text_add(p->out, "<text x=\"%d\" y=\"%d\">time: the step's calls in their order</text>\n", LEFT,
                 TOP + HEIGHT + 34 + BAND * band_count);
    sbp_text_add(
        p->out,
        "<text transform=\"translate(14 %d) rotate(-90)\" text-anchor=\"middle\" font-size=\"12\">bytes "
        "above those below</text>\n",
        TOP + HEIGHT / 2);
    const double step = tick_of((double)above);
    for (int i = 0; i * step <= (double)above; i++) {
        char mark[32];
        double y = TOP + HEIGHT - i * step * p->y_scale;
        sbp_text_add(
            p->out,
            "<text x=\"%d\" y=\"%.1f\" font-size=\"12\" text-anchor=\"end\">%s</text><line x1=\"%d\" "
            "x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>\n",
            LEFT - 6, y + 4, sbp_format_bytes(mark, sizeof mark, i * step), LEFT, LEFT + WIDTH, y, y);
    }
    int line = 0;
    for (int r = 0; r < SBP_ROLE_COUNT; r++) {
        if (!is_first_of_category(r))
            continue;
        int y = TOP + 20 * line++;
        sbp_text_add(
            p->out,
            "<rect x=\"%d\" y=\"%d\" width=\"12\" height=\"12\" fill=\"%s\"/><text x=\"%d\" y=\"%d\" "
            "font-size=\"12\">%s</text>\n",
            LEFT + WIDTH + 12, y, colour_of((sbp_role)r), LEFT + WIDTH + 30, y + 11,
            sbp_role_category((sbp_role)r));
    }
}

/* One call of a function takes one unit of width; its own buffers are drawn inside it. */
static void draw_function(picture *p, const sbp_program *program, const sbp_liveness *live, int32_t f,
                          int32_t at) {
    double steps = live->function_lengths[f] > 0 ? live->function_lengths[f] : 1;
    for (int32_t b = 0; b < program->buffer_count; b++) {
        const sbp_buffer *buffer = &program->buffers[b];
        for (int32_t i = 0; buffer->function == f && i < live->frames[b].count; i++) {
            const sbp_live_range *r = &live->frames[b].ranges[i];
            rectangle(p, at + r->begin / steps, at + (r->end + 1) / steps, buffer,
                      program->functions[f].name);
        }
    }
}

void sbp_cli_memory_svg(sbp_arena *arena, const sbp_program *program, int64_t process_bytes, sbp_text *out) {
    sbp_liveness live;
    sbp_memory_liveness(arena, program, &live);
    const sbp_entry *training = sbp_program_training_entry(program);
    int32_t entry = training ? (int32_t)(training - program->entries) : 0;
    int32_t length = live.lengths[entry] > 0 ? live.lengths[entry] : 1;
    picture p = {.out = out, .program = program, .x_scale = (double)WIDTH / length};
    for (int32_t b = 0; b < program->buffer_count; b++)
        p.folded += is_folded(&program->buffers[b]) ? bytes_of(&program->buffers[b]) : 0;
    int64_t above = program->arena_bytes[SBP_DEVICE] - p.folded;
    p.y_scale = (double)HEIGHT / (double)(above > 0 ? above : 1);
    sbp_text_add(out,
                 "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
                 "font-family=\"sans-serif\">\n%s",
                 LEFT + WIDTH + LEGEND + 40, TOP + HEIGHT + 60 + BAND * 8, style);
    for (int32_t b = 0; b < program->buffer_count; b++) {
        const sbp_buffer *buffer = &program->buffers[b];
        if (buffer->function >= 0 || buffer->space != SBP_DEVICE || is_folded(buffer))
            continue;
        const sbp_live_set *set = &live.buffers[(size_t)entry * (size_t)program->buffer_count + (size_t)b];
        for (int32_t i = 0; i < set->count; i++)
            rectangle(&p, set->ranges[i].begin, set->ranges[i].end + 1, buffer, NULL);
    }
    for (int32_t f = 0; f < program->function_count; f++) {
        const sbp_live_set *calls = &live.calls[(size_t)entry * (size_t)program->function_count + (size_t)f];
        for (int32_t i = 0; i < calls->count; i++)
            draw_function(&p, program, &live, f, calls->ranges[i].begin);
    }
    legend(&p, program->entries[entry].name, process_bytes, bands(&p, process_bytes));
    sbp_text_add(out, "</svg>\n");
}
