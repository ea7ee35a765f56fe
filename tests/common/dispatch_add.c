#include "tests/common/dispatch_add.h"

void dispatch_add(sbp_arena *arena, sbp_program *program, const sbp_dispatch *dispatch) {
    sbp_command *command = SBP_NEW(arena, sbp_command);
    *command = *dispatch->command;
    command->views = SBP_NEW_ARRAY(arena, sbp_view, dispatch->span_count);
    command->view_count = dispatch->span_count;
    for (int32_t i = 0; i < dispatch->span_count; i++) {
        const sbp_span *span = &dispatch->spans[i];
        command->views[i] = sbp_view_none();
        if (span->space == SBP_SPACE_COUNT)
            continue;
        sbp_buffer buffer = {.name = sbp_arena_printf(arena, "b%d", program->buffer_count),
                             .role = SBP_ROLE_SCRATCH,
                             .space = span->space,
                             .dtype = span->dtype,
                             .count = 1,
                             .rows = sbp_extent_const(span->rows),
                             .cols = span->cols,
                             .function = -1,
                             .offset = -1};
        SBP_PUSH(arena, program->buffers, program->buffer_count, program->buffer_capacity, buffer);
        command->views[i] = sbp_view_buffer(program, program->buffer_count - 1, 0);
    }
    if (program->entry_count == 0) {
        sbp_entry entry = {.name = "accumulate"};
        SBP_PUSH(arena, program->entries, program->entry_count, program->entry_capacity, entry);
    }
    sbp_body *body = &program->entries[0].body;
    sbp_node node = {.kind = SBP_NODE_COMMAND, .u.command = command};
    SBP_PUSH(arena, body->nodes, body->count, body->capacity, node);
}
