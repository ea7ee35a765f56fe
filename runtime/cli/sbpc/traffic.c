/* traffic.c: what is copied in a step, by class, and what the step waits for: of compile and of inspect. */
#include "runtime/cli/sbpc/cli.h"

void sbp_cli_traffic_lines(const sbp_traffic *traffic, const double *busy, double seconds, sbp_text *out) {
    const char *before = "traffic    ";
    char size[32];
    for (int class = 0; class < SBP_TENSOR_CLASS_COUNT; class ++) {
        const sbp_traffic *t = &traffic[class];
        const struct {
            double bytes;
            const char *way;
        } ways[] = {{t->in, "in"}, {t->out, "out"}, {t->read, "from disk"}, {t->written, "to disk"}};
        bool any = false;
        for (int w = 0; w < SBP_COUNT(ways); w++)
            if (ways[w].bytes > 0) {
                sbp_text_add(out, "%s%s %s %s", any ? "," : before, any ? "" : sbp_tensor_class_names[class],
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

void sbp_cli_write_traffic(sbp_json_writer *w, const sbp_traffic *traffic, const double *busy) {
    sbp_json_write_object(w, "busy");
    for (int q = 0; q < SBP_QUEUE_COUNT; q++)
        sbp_json_write_double(w, sbp_queue_names[q], busy[q]);
    sbp_json_write_end(w);
    sbp_json_write_object(w, "traffic");
    for (int class = 0; class < SBP_TENSOR_CLASS_COUNT; class ++) {
        const sbp_traffic *t = &traffic[class];
        sbp_json_write_object(w, sbp_tensor_class_names[class]);
        sbp_json_write_double(w, "in", t->in);
        sbp_json_write_double(w, "out", t->out);
        sbp_json_write_double(w, "read", t->read);
        sbp_json_write_double(w, "written", t->written);
        sbp_json_write_end(w);
    }
    sbp_json_write_end(w);
}

/* Attention that has heads of all rows, or keys of all rows (--context-exchange). */
static bool is_attention(const sbp_command *command) {
    const sbp_attention_operands *operands = sbp_command_attention(command->kind);
    return operands && !operands->backward;
}

static void count_ways(const sbp_body *body, int32_t *heads, int32_t *keys) {
    for (int32_t n = 0; n < body->count; n++) {
        const sbp_node *node = &body->nodes[n];
        if (node->kind == SBP_NODE_LOOP)
            count_ways(&node->u.loop->body, heads, keys);
        else if (node->kind == SBP_NODE_COMMAND && is_attention(node->u.command))
            *(node->u.command->u.attention.by_rank ? keys : heads) += 1;
    }
}

static const char *context_exchange(const sbp_program *program) {
    int32_t heads = 0, keys = 0;
    for (int32_t f = 0; f < program->function_count; f++)
        count_ways(&program->functions[f].body, &heads, &keys);
    return keys == 0 ? "all-to-all" : heads == 0 ? "all-gather" : "all-to-all and all-gather";
}

void sbp_cli_net_line(const sbp_program *program, const sbp_target_info *target, const double *busy,
                      double seconds, sbp_text *out) {
    char part[32], step[32], net[32], all[32];
    double other = busy[SBP_QUEUE_COMPUTE], sending = busy[SBP_QUEUE_NET];
    sbp_net_traffic w;
    sbp_cost_net_traffic(program, target, &w);
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
    sbp_text_add(out, "; busy %s of %s", sbp_format_seconds(net, sizeof net, sending),
                 sbp_format_seconds(all, sizeof all, seconds));
    sbp_text_add(out,
                 sending > other ? ": this bounds the step; more rows or a faster link would hide it\n"
                                 : ", %.0f %% of them waited for\n",
                 seconds > other ? 100 * (seconds - other) / seconds : 0);
    if (program->context > 1)
        sbp_text_add(
            out,
            "context    %lld ranks share each micro-batch (--context-exchange %s); each sends the others "
            "%s in %lld exchanges of rows of a full one: %s, not overlapped\n",
            (long long)program->context, context_exchange(program),
            sbp_format_bytes(part, sizeof part, (double)w.context_bytes), (long long)w.context_exchanges,
            sbp_format_seconds(all, sizeof all, w.context_seconds));
}

void sbp_cli_write_net(sbp_json_writer *j, const sbp_program *program, const sbp_target_info *target) {
    sbp_net_traffic w;
    sbp_cost_net_traffic(program, target, &w);
    sbp_json_write_int(j, "ranks", program->ranks);
    sbp_json_write_object(j, "interconnect");
    sbp_json_write_int(j, "micro_batch_bytes", w.part_bytes);
    sbp_json_write_int(j, "micro_batch_collectives", w.part_collectives);
    sbp_json_write_int(j, "step_bytes", w.step_bytes);
    sbp_json_write_int(j, "step_collectives", w.step_collectives);
    sbp_json_write_fixed(j, "micro_batch_bytes_between_hosts", w.part_away, 0);
    sbp_json_write_fixed(j, "step_bytes_between_hosts", w.step_away, 0);
    sbp_json_write_int(j, "context_bytes", w.context_bytes);
    sbp_json_write_int(j, "context_exchanges", w.context_exchanges);
    sbp_json_write_end(j);
    sbp_json_write_int(j, "context", program->context);
    sbp_json_write_string(j, "context_exchange", program->context > 1 ? context_exchange(program) : "");
}
