/* memory_report.c: who holds the memory, as numbers and as a picture. */
#include <stdio.h>
#include <string.h>

#include "frontends/cli/cli.h"
#include "passes/memory.h"

sbp_status sbp_cli_categories(sbp_arena *arena, sbp_diag *diag, const sbp_program *program, int64_t alignment,
                              sbp_category out[SBP_ROLE_COUNT + 1], int32_t *count) {
    sbp_memory_peak peak;
    SBP_TRY(sbp_memory_find_peak(arena, program, SBP_DEVICE, alignment, diag, &peak));
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

sbp_status sbp_cli_memory_line(sbp_arena *arena, sbp_diag *diag, const sbp_program *program,
                               int64_t alignment, sbp_text *out) {
    sbp_category categories[SBP_ROLE_COUNT + 1];
    int32_t count;
    SBP_TRY(sbp_cli_categories(arena, diag, program, alignment, categories, &count));
    bool any = false;
    for (int32_t i = 0; i < count; i++) {
        char bytes[32];
        if (categories[i].bytes == 0)
            continue;
        sbp_text_add(out, "%s%s %s", any ? ", " : "", categories[i].name,
                     sbp_format_bytes(bytes, sizeof bytes, (double)categories[i].bytes));
        any = true;
    }
    return SBP_OK;
}

/* ---- the picture ------------------------------------------------------------------------------------- */

enum { WIDTH = 1000, HEIGHT = 600, LEFT = 90, TOP = 40, LEGEND = 170 };

static const char *const colours[] = {"#4e79a7", "#4e79a7", "#f28e2b", "#e15759", "#af7aa1",
                                      "#59a14f", "#8cd17d", "#edc948", "#bab0ac", "#bab0ac",
                                      "#bab0ac", "#76b7b2", "#9c755f"};

typedef struct picture {
    sbp_text *out;
    double x_scale, y_scale;
} picture;

static void rectangle(picture *p, double begin, double end, int64_t offset, int64_t bytes, sbp_role role,
                      const char *name, const char *function) {
    char size[32];
    double y = TOP + HEIGHT - (double)(offset + bytes) * p->y_scale, h = (double)bytes * p->y_scale;
    if (h < 0.05)
        return;
    sbp_text_add(p->out, "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" fill=\"%s\"><title>",
                 LEFT + begin * p->x_scale, y, (end - begin) * p->x_scale, h,
                 colours[role % SBP_COUNT(colours)]);
    for (const char *c = name; *c; c++)
        if (*c == '<' || *c == '&')
            sbp_text_add(p->out, "%s", *c == '<' ? "&lt;" : "&amp;");
        else
            sbp_text_add_n(p->out, c, 1);
    sbp_text_add(p->out, ": %s, %s%s%s</title></rect>\n", sbp_role_category(role),
                 sbp_format_bytes(size, sizeof size, (double)bytes), function ? ", in @" : "",
                 function ? function : "");
}

static void legend(picture *p, const sbp_program *program, const char *entry) {
    char peak[32];
    sbp_format_bytes(peak, sizeof peak, (double)program->arena_bytes[SBP_DEVICE]);
    sbp_text_add(p->out, "<text x=\"%d\" y=\"24\">device memory of one %s, planned: %s</text>\n", LEFT, entry,
                 peak);
    sbp_text_add(p->out, "<text x=\"%d\" y=\"%d\">calls in order of time</text>\n", LEFT, TOP + HEIGHT + 24);
    for (int i = 0; i <= 4; i++) {
        char mark[32];
        double y = TOP + HEIGHT - HEIGHT * i / 4.0;
        sbp_text_add(p->out,
                     "<text x=\"4\" y=\"%.1f\" font-size=\"12\">%s</text><line x1=\"%d\" x2=\"%d\" "
                     "y1=\"%.1f\" y2=\"%.1f\" "
                     "stroke=\"#ccc\"/>\n",
                     y + 4,
                     sbp_format_bytes(mark, sizeof mark, (double)program->arena_bytes[SBP_DEVICE] * i / 4),
                     LEFT, LEFT + WIDTH, y, y);
    }
    int line = 0;
    for (int r = 0; r < SBP_ROLE_COUNT; r++) {
        bool repeated = false;
        for (int q = 0; q < r; q++)
            repeated |= strcmp(sbp_role_category((sbp_role)q), sbp_role_category((sbp_role)r)) == 0;
        if (repeated)
            continue;
        int y = TOP + 20 * line++;
        sbp_text_add(
            p->out,
            "<rect x=\"%d\" y=\"%d\" width=\"12\" height=\"12\" fill=\"%s\"/><text x=\"%d\" y=\"%d\" "
            "font-size=\"12\">%s</text>\n",
            LEFT + WIDTH + 12, y, colours[r % SBP_COUNT(colours)], LEFT + WIDTH + 30, y + 11,
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
            rectangle(p, at + r->begin / steps, at + (r->end + 1) / steps, buffer->offset,
                      buffer->stride * buffer->count, buffer->role, buffer->name, program->functions[f].name);
        }
    }
}

void sbp_cli_memory_svg(sbp_arena *arena, const sbp_program *program, sbp_text *out) {
    sbp_liveness live;
    sbp_memory_liveness(arena, program, &live);
    int32_t entry = 0;
    static const char *const preferred[] = {"step", "accumulate", "score"};
    for (int i = SBP_COUNT(preferred) - 1; i >= 0; i--)
        for (int32_t e = 0; e < program->entry_count; e++)
            if (strcmp(program->entries[e].name, preferred[i]) == 0)
                entry = e;
    int64_t bytes = program->arena_bytes[SBP_DEVICE] > 0 ? program->arena_bytes[SBP_DEVICE] : 1;
    int32_t length = live.lengths[entry] > 0 ? live.lengths[entry] : 1;
    picture p = {.out = out, .x_scale = (double)WIDTH / length, .y_scale = (double)HEIGHT / (double)bytes};
    sbp_text_add(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\">\n"
        "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
        LEFT + WIDTH + LEGEND + 40, TOP + HEIGHT + 40);
    for (int32_t b = 0; b < program->buffer_count; b++) {
        const sbp_buffer *buffer = &program->buffers[b];
        if (buffer->function >= 0 || buffer->space != SBP_DEVICE)
            continue;
        if (sbp_memory_is_persistent(buffer->role)) {
            rectangle(&p, 0, length, buffer->offset, buffer->stride * buffer->count, buffer->role,
                      buffer->name, NULL);
            continue;
        }
        const sbp_live_set *set = &live.buffers[(size_t)entry * (size_t)program->buffer_count + (size_t)b];
        for (int32_t i = 0; i < set->count; i++)
            rectangle(&p, set->ranges[i].begin, set->ranges[i].end + 1, buffer->offset,
                      buffer->stride * buffer->count, buffer->role, buffer->name, NULL);
    }
    for (int32_t f = 0; f < program->function_count; f++) {
        const sbp_live_set *calls = &live.calls[(size_t)entry * (size_t)program->function_count + (size_t)f];
        for (int32_t i = 0; i < calls->count; i++)
            draw_function(&p, program, &live, f, calls->ranges[i].begin);
    }
    legend(&p, program, program->entries[entry].name);
    sbp_text_add(out, "</svg>\n");
}
