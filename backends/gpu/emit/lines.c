/* lines.c: lines, scopes and loops of the text. */
#include "backends/gpu/emit/emitter.h"

#include <stdio.h>

void emit_line(emitter *e, const char *format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    sbp_text_add(e->out, "%*s%s\n", 4 * e->indent, "", text);
}

void emit_open(emitter *e) {
    e->indent++;
}

void emit_close(emitter *e) {
    for (int32_t k = 0; k < e->kernel->instr_count; k++)
        if (e->declared[k] == e->indent)
            e->declared[k] = 0;
    e->indent--;
    emit_line(e, "}");
}

int64_t emit_turns(const emitter *e, int64_t length) {
    int64_t lanes = e->shape->lanes > 0 ? e->shape->lanes : e->shape->threads;
    return sbp_ceil_div(length, e->width * lanes);
}

void emit_begin_elements(emitter *e, int64_t length) {
    if (!e->kept) {
        emit_line(e, "for (int j = lane * WIDTH, i = 0; j < %lld; j += LANES * WIDTH, i++) {",
                  (long long)length);
        emit_open(e);
        return;
    }
    emit_line(e, "%s", e->dialect->unroll);
    emit_line(e, "for (int i = 0; i < %lld; i++) {", (long long)emit_turns(e, length));
    emit_open(e);
    emit_line(e, "const int j = (i * LANES + lane) * WIDTH;");
    emit_line(e, "if (j < %lld) {", (long long)length);
    emit_open(e);
}

void emit_end_elements(emitter *e) {
    if (e->kept)
        emit_close(e);
    emit_close(e);
    e->unmet = true;
}

/* Opens the loop over elements that a thread has at once. */
void emit_open_each(emitter *e) {
    if (e->width == 1)
        return;
    emit_line(e, "%s", e->dialect->unroll);
    emit_line(e, "for (int q = 0; q < WIDTH; q++) {");
    emit_open(e);
}

void emit_close_each(emitter *e) {
    if (e->width > 1)
        emit_close(e);
}

/* Opens a loop over the heads where a team has them all; else nothing is opened. */
bool emit_open_heads(emitter *e, bool wanted) {
    if (!wanted || e->units)
        return false;
    emit_line(e, "for (int h = 0; h < HEADS; h++) {");
    emit_open(e);
    return true;
}
