/* traffic.c: what is copied in a step, by class, and what the step waits for: of compile and of inspect. */
#include "runtime/cli/sbpc/cli.h"

void sbp_cli_traffic_lines(const sbp_traffic *traffic, const double *busy, double seconds, sbp_text *out) {
    const char *before = "traffic    ";
    char size[32];
    for (int class = 0; class < SBP_ITEM_CLASS_COUNT; class ++) {
        const sbp_traffic *t = &traffic[class];
        const struct {
            double bytes;
            const char *way;
        } ways[] = {{t->in, "in"}, {t->out, "out"}, {t->read, "from disk"}, {t->written, "to disk"}};
        bool any = false;
        for (int w = 0; w < SBP_COUNT(ways); w++)
            if (ways[w].bytes > 0) {
                sbp_text_add(out, "%s%s %s %s", any ? "," : before, any ? "" : sbp_item_class_names[class],
                             sbp_format_bytes(size, sizeof size, ways[w].bytes), ways[w].way);
                any = true;
                before = "; ";
            }
    }
    if (*before == 't')
        return; /* nothing moves */
    int most = 0;
    sbp_text_add(out, " a step\n           busy: ");
    for (int q = 0; q < SBP_QUEUE_COUNT; q++) {
        most = busy[q] > busy[most] ? q : most;
        if (busy[q] > 0)
            sbp_text_add(out, "%s%s %s", q > 0 ? ", " : "", sbp_queue_names[q],
                         sbp_format_seconds(size, sizeof size, busy[q]));
    }
    sbp_text_add(out, "; %s bounds it (%.0f %% of the step)\n", sbp_queue_names[most],
                 seconds > 0 ? 100 * busy[most] / seconds : 0);
}

void sbp_cli_add_traffic(const sbp_traffic *traffic, const double *busy, sbp_text *out) {
    sbp_text_add(out, ", \"busy\": {");
    for (int q = 0; q < SBP_QUEUE_COUNT; q++)
        sbp_text_add(out, "%s\"%s\": %.6g", q > 0 ? ", " : "", sbp_queue_names[q], busy[q]);
    sbp_text_add(out, "}, \"traffic\": {");
    for (int class = 0; class < SBP_ITEM_CLASS_COUNT; class ++) {
        const sbp_traffic *t = &traffic[class];
        sbp_text_add(out, "%s\"%s\": {\"in\": %.6g, \"out\": %.6g, \"read\": %.6g, \"written\": %.6g}",
                     class > 0 ? ", " : "", sbp_item_class_names[class], t->in, t->out, t->read, t->written);
    }
    sbp_text_add(out, "}");
}

/* Attention that has heads of all rows, or keys of all rows (--context-way). */
static void count_ways(const sbp_body *body, int32_t *heads, int32_t *keys) {
    for (int32_t n = 0; n < body->count; n++) {
        const sbp_node *node = &body->nodes[n];
        if (node->kind == SBP_NODE_LOOP)
            count_ways(&node->u.loop->body, heads, keys);
        else if (node->kind == SBP_NODE_COMMAND && node->u.command->kind == SBP_CMD_ATTN_FWD)
            *(node->u.command->u.attention.by_rank ? keys : heads) += 1;
    }
}

static const char *context_way(const sbp_program *program) {
    int32_t heads = 0, keys = 0;
    for (int32_t f = 0; f < program->function_count; f++)
        count_ways(&program->functions[f].body, &heads, &keys);
    return keys == 0 ? "heads" : heads == 0 ? "keys" : "heads and keys";
}

void sbp_cli_wire_line(const sbp_program *program, const sbp_target_info *target, const double *busy,
                       double seconds, sbp_text *out) {
    char part[32], step[32], net[32], all[32];
    double other = busy[SBP_QUEUE_COMPUTE], wire = busy[SBP_QUEUE_NET];
    sbp_wire w;
    sbp_cost_wire_of(program, target, &w);
    if (program->ranks < 2)
        return;
    sbp_text_add(
        out, "ranks      %lld; each sends %s in %d collectives with every micro-batch, %s in %d once a step",
        (long long)program->ranks, sbp_format_bytes(part, sizeof part, (double)w.part_bytes),
        (int)w.part_collectives, sbp_format_bytes(step, sizeof step, (double)w.step_bytes),
        (int)w.step_collectives);
    if (w.part_away + w.step_away > 0)
        sbp_text_add(out, ", of these %s and %s to other hosts",
                     sbp_format_bytes(part, sizeof part, w.part_away),
                     sbp_format_bytes(step, sizeof step, w.step_away));
    sbp_text_add(out, "; busy %s of %s", sbp_format_seconds(net, sizeof net, wire),
                 sbp_format_seconds(all, sizeof all, seconds));
    sbp_text_add(out,
                 wire > other ? ": this bounds the step; more rows or a faster link would hide it\n"
                              : ", %.0f %% of them waited for\n",
                 seconds > other ? 100 * (seconds - other) / seconds : 0);
    if (program->context > 1)
        sbp_text_add(out,
                     "context    %lld ranks share each micro-batch (--context-way %s); each sends the others "
                     "%s in %lld exchanges around attention of a full one: %s, not overlapped\n",
                     (long long)program->context, context_way(program),
                     sbp_format_bytes(part, sizeof part, (double)w.context_bytes),
                     (long long)w.context_exchanges, sbp_format_seconds(all, sizeof all, w.context_seconds));
}

void sbp_cli_add_wire(const sbp_program *program, const sbp_target_info *target, sbp_text *out) {
    sbp_wire w;
    sbp_cost_wire_of(program, target, &w);
    sbp_text_add(
        out,
        ", \"ranks\": %lld, \"wire\": {\"micro_batch_bytes\": %lld, \"micro_batch_collectives\": %d, "
        "\"step_bytes\": %lld, \"step_collectives\": %d, \"micro_batch_bytes_between_hosts\": %.0f, "
        "\"step_bytes_between_hosts\": %.0f, \"context_bytes\": %lld, "
        "\"context_exchanges\": %lld}, \"context\": %lld, \"context_way\": \"%s\"",
        (long long)program->ranks, (long long)w.part_bytes, (int)w.part_collectives, (long long)w.step_bytes,
        (int)w.step_collectives, w.part_away, w.step_away, (long long)w.context_bytes,
        (long long)w.context_exchanges, (long long)program->context,
        program->context > 1 ? context_way(program) : "");
}
