/* inspect.c: sbpc inspect: what a plan needs and does. */
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "frontends/formats/files/hub_fetch.h"
#include "ir/base/json.h"
#include "ir/base/machine.h"
#include "ir/program/plan_file.h"
#include "ir/program/plan_meta.h"
#include "passes/planner/cost.h"
#include "runtime/cli/sbpc/cli.h"

typedef struct inspection {
    sbp_arena *arena;
    sbp_diag *diag;
    const char *path;
    sbp_program *program;
    sbp_plan_meta meta;
    const sbp_target *target;
    sbp_target_info info;
    const char *throughput_source;
    int64_t kernel_bytes;
} inspection;

static sbp_status section(const inspection *in, const sbp_plan_file *file, const char *name,
                          const sbp_plan_section **out) {
    *out = sbp_plan_file_find(file, name);
    return *out ? SBP_OK : sbp_fail(in->diag, SBP_INPUT, "%s: no section '%s'", in->path, name);
}

static sbp_status read_meta(inspection *in, const sbp_plan_section *section) {
    const sbp_json *root;
    SBP_TRY(sbp_json_parse(in->arena, in->diag, in->path, section->data, (size_t)section->length, 0, &root));
    SBP_TRY(sbp_plan_meta_read(in->diag, root, &in->meta));
    const char *missing = !in->meta.schedule    ? "schedule"
                          : !in->meta.backend   ? "backend"
                          : !in->meta.objective ? "objective"
                          : !in->meta.dtype     ? "dtype"
                                                : NULL;
    if (missing)
        return sbp_fail(in->diag, SBP_INPUT, "%s: section '%s': no '%s'; compile the plan again", in->path,
                        SBP_PLAN_META, missing);
    return SBP_OK;
}

static sbp_status open_plan(inspection *in) {
    const sbp_plan_file *file;
    const sbp_plan_section *program, *meta;
    SBP_TRY(sbp_plan_file_read(in->arena, in->diag, in->path, &file));
    SBP_TRY(section(in, file, SBP_PLAN_PROGRAM, &program));
    SBP_TRY(section(in, file, SBP_PLAN_META, &meta));
    SBP_TRY(sbp_program_parse(in->arena, in->diag, in->path, program->data, (size_t)program->length,
                              &in->program));
    SBP_TRY(sbp_program_verify(in->program, in->diag));
    SBP_TRY(read_meta(in, meta));
    in->target = sbp_target_find(in->meta.backend);
    if (!in->target)
        return sbp_fail(in->diag, SBP_INPUT, "%s: made for backend '%s', which this build does not have",
                        in->path, in->meta.backend);
    const char *archs = strchr(in->program->target, ':'); /* "cuda:sm_80,sm_90a" */
    if (in->target->describe(archs ? archs + 1 : NULL, NULL, &in->info) != SBP_OK)
        return sbp_fail(in->diag, SBP_INPUT, "%s: made for '%s', which this build does not know", in->path,
                        in->program->target);
    const sbp_plan_section *kernels = sbp_plan_file_find(file, SBP_PLAN_KERNELS);
    in->kernel_bytes = kernels ? kernels->length : 0;
    in->throughput_source = "table";
    in->info.runtime_bytes = in->meta.runtime_bytes;
    return sbp_cli_read_throughput(in->diag, in->meta.throughput, &in->info.throughput,
                                   &in->throughput_source);
}

static int64_t schedule_number(const inspection *in, const char *key) {
    int64_t value = 0;
    if (sbp_json_get_i64(NULL, in->meta.schedule, key, SBP_JSON_OPTIONAL, &value) != SBP_OK)
        return 0;
    return value;
}

/* Where classes live that are away from the device, as --offload takes it; "none". */
static const char *placement(const inspection *in) {
    const char *text = NULL;
    if (sbp_json_get_string(NULL, in->meta.schedule, "offload", SBP_JSON_NULLABLE, &text) != SBP_OK || !text)
        return "none";
    return text;
}

static bool updates_on_host(const inspection *in) {
    bool value = false;
    return sbp_json_get_bool(NULL, in->meta.schedule, "host_update", SBP_JSON_OPTIONAL, &value) == SBP_OK &&
           value;
}

static sbp_status print_json(const inspection *in, sbp_text *out) {
    const sbp_program *p = in->program;
    sbp_account account;
    double device, host;
    sbp_cost cost;
    SBP_TRY(
        sbp_cli_account(in->arena, in->diag, p, in->info.alignment_bytes, in->info.runtime_bytes, &account));
    SBP_TRY(sbp_planner_bytes_per_token(in->arena, in->diag, p, &in->info, &device, &host));
    sbp_cost_step(in->arena, p, p->t_max, &in->info, &cost);
    static const char *const numbers[] = {"chunk", "head_chunk", "segment", "checkpoint_every"};
    const sbp_json *saved = sbp_json_member(in->meta.schedule, "saved");
    sbp_json_writer w = sbp_json_writer_on(out);
    sbp_json_write_object(&w, NULL);
    sbp_cli_write_peak(&w, p, in->info.runtime_bytes);
    sbp_cli_write_categories(&w, "categories", &account);
    sbp_cli_write_account(&w, "memory", &account);
    sbp_json_write_double(&w, "bytes_per_token", device);
    sbp_json_write_double(&w, "host_bytes_per_token", host);
    for (int i = 0; i < SBP_COUNT(numbers); i++)
        sbp_json_write_int(&w, numbers[i], schedule_number(in, numbers[i]));
    if (saved)
        sbp_json_write_value(&w, "saved", saved);
    else
        sbp_json_write_raw(&w, "saved", "[]");
    sbp_json_write_string(&w, "offload", placement(in));
    sbp_json_write_bool(&w, "host_update", updates_on_host(in));
    if (schedule_number(in, "expert_pieces") > 1 && sbp_program_has_expert_pieces(in->program))
        sbp_json_write_int(&w, "expert_pieces", schedule_number(in, "expert_pieces"));
    sbp_json_write_double(&w, "flops", cost.flops);
    sbp_json_write_double(&w, "seconds", cost.seconds);
    sbp_cli_write_traffic(&w, cost.traffic, cost.busy);
    sbp_cli_write_net(&w, p, &in->info);
    sbp_cli_write_throughput(&w, "throughput", in->throughput_source, &in->info.throughput);
    sbp_json_write_int(&w, "kernel_bytes", in->kernel_bytes);
    sbp_json_write_string(&w, "archs", in->info.archs);
    sbp_json_write_int(&w, "seq_len", sbp_program_most_rows(p));
    sbp_json_write_int(&w, "commands", cost.commands);
    sbp_json_write_end(&w);
    sbp_text_add(out, "\n");
    return SBP_OK;
}

/* A line for each part, with its share of the space. */
static sbp_status print_account(const inspection *in, sbp_text *out) {
    const sbp_program *p = in->program;
    sbp_account account;
    char size[32];
    SBP_TRY(
        sbp_cli_account(in->arena, in->diag, p, in->info.alignment_bytes, in->info.runtime_bytes, &account));
    for (int space = 0; space < SBP_SPACE_COUNT; space++) {
        int64_t all = p->arena_bytes[space] + (space == SBP_DEVICE ? in->info.runtime_bytes : 0);
        if (space != SBP_DEVICE && all > 0)
            sbp_text_add(out, "           on %s:\n", space == SBP_HOST ? "the host" : "disk");
        for (int32_t i = 0; i < account.counts[space]; i++)
            if (account.parts[space][i].bytes > 0)
                sbp_text_add(out, "           %-28s %12s  %5.1f %%\n", account.parts[space][i].name,
                             sbp_format_bytes(size, sizeof size, (double)account.parts[space][i].bytes),
                             100.0 * (double)account.parts[space][i].bytes / (double)all);
    }
    return SBP_OK;
}

static sbp_status print_text(const inspection *in, sbp_text *out) {
    const sbp_program *p = in->program;
    char size[32], host[32], time[32], flops[32];
    double row, row_away;
    sbp_cost cost;
    const char *name = in->meta.name ? in->meta.name : p->name;
    SBP_TRY(sbp_planner_bytes_per_token(in->arena, in->diag, p, &in->info, &row, &row_away));
    sbp_cost_step(in->arena, p, p->t_max, &in->info, &cost);
    sbp_text_add(out, "%s: %s, %s on %s in %s, up to %lld tokens in a micro-batch\n", in->path, name,
                 in->meta.objective, in->info.name, in->meta.dtype, (long long)sbp_program_most_rows(p));
    sbp_text_add(
        out, "memory     %s on the device, %s on the host",
        sbp_format_bytes(size, sizeof size, (double)(p->arena_bytes[SBP_DEVICE] + in->info.runtime_bytes)),
        sbp_format_bytes(host, sizeof host, (double)p->arena_bytes[SBP_HOST]));
    if (p->arena_bytes[SBP_DISK] > 0)
        sbp_text_add(out, ", %s on disk",
                     sbp_format_bytes(size, sizeof size, (double)p->arena_bytes[SBP_DISK]));
    sbp_text_add(out, "\n");
    SBP_TRY(print_account(in, out));
    sbp_text kept;
    sbp_text_init(&kept, in->arena);
    if (sbp_program_describe_kept(in->arena, p, &kept))
        sbp_text_add(out, "trained    %s\n", kept.data);
    sbp_text_add(out, "per row    %.0f bytes on the device, %.0f on the host\n", row, row_away);
    if (in->kernel_bytes > 0)
        sbp_text_add(out, "kernels    %s%s%s%s%s\n",
                     sbp_format_bytes(size, sizeof size, (double)in->kernel_bytes),
                     in->info.archs[0] ? " for " : "", in->info.archs, in->info.driver ? "; they need " : "",
                     in->info.driver ? in->info.driver : "");
    bool away = strcmp(placement(in), "none") != 0;
    sbp_text_add(out, "schedule   chunk %lld, head chunk %lld, segment %lld, checkpoint every %lld%s%s\n",
                 (long long)schedule_number(in, "chunk"), (long long)schedule_number(in, "head_chunk"),
                 (long long)schedule_number(in, "segment"),
                 (long long)schedule_number(in, "checkpoint_every"), away ? ", offloaded: " : "",
                 away ? placement(in) : "");
    if (schedule_number(in, "expert_pieces") > 1 && sbp_program_has_expert_pieces(in->program))
        sbp_text_add(out, "           experts come to the device in %lld pieces\n",
                     (long long)schedule_number(in, "expert_pieces"));
    if (updates_on_host(in))
        sbp_text_add(out, "           updates run on the host's cores, where the states are\n");
    sbp_text_add(
        out, "time       about %s a step of one full micro-batch (%s, %lld commands), by the cost model\n",
        sbp_format_seconds(time, sizeof time, cost.seconds),
        sbp_format_flops(flops, sizeof flops, cost.flops), (long long)cost.commands);
    sbp_text lines;
    sbp_text_init(&lines, in->arena);
    sbp_cli_traffic_lines(cost.traffic, cost.busy, cost.seconds, &lines);
    sbp_cli_net_line(p, &in->info, cost.busy, cost.seconds, &lines);
    sbp_text_add_wrapped(out, lines.data, SBP_CLI_WIDTH, SBP_CLI_INDENT);
    sbp_text_add(out, "throughput %s: ", in->throughput_source);
    sbp_throughput_describe(out, &in->info.throughput, "\n           ");
    sbp_text_add(out, "\n");
    int64_t machine = in->info.shared_memory ? sbp_machine_memory() : 0, longest = 0;
    if (machine > in->info.runtime_bytes) {
        SBP_TRY(sbp_planner_longest(in->arena, in->diag, p, &in->info, machine - in->info.runtime_bytes,
                                    INT64_MAX, &longest));
        sbp_text_add(out, "longest    %lld tokens with this schedule in the %s of this machine\n",
                     (long long)(longest * p->context), sbp_format_bytes(size, sizeof size, (double)machine));
    }
    if (in->meta.advice)
        sbp_text_add(out, "%s\n", in->meta.advice);
    return SBP_OK;
}

/* ---- with more ranks ---------------------------------------------------------------------------------- */

static bool asks_for_ranks(int argc, char **argv) {
    for (int i = 0; i < argc; i++)
        if (strncmp(argv[i], "--ranks", 7) == 0 && (argv[i][7] == '=' || argv[i][7] == '\0'))
            return true;
    return false;
}

/* Whether an argument is this option of the command line again: what is said now counts. */
static bool is_said_again(const sbp_options *options, const char *argument) {
    const char *end = strchr(argument, '=');
    char name[64];
    size_t length = end ? (size_t)(end - argument) - 2 : 0;
    if (length < 1 || length >= sizeof name)
        return true;
    memcpy(name, argument + 2, length);
    name[length] = '\0';
    const sbp_option *option = sbp_option_find(name);
    return option && sbp_options_given(options, option->id);
}

/* A plan says what it was made from; of that and what is said here, options as of a model. */
static sbp_status options_of_plan(const inspection *in, const sbp_options *own, const char **model,
                                  sbp_options **out) {
    const sbp_json *arguments = in->meta.arguments;
    const char **argv, **said;
    int32_t argc = 0, count;
    *model = in->meta.source;
    if (!*model || !arguments || access(*model, R_OK) != 0)
        return sbp_fail(in->diag, SBP_INPUT,
                        "%s: the plan's model%s%s was not found; name the model: sbpc inspect MODEL --ranks "
                        "N, with the options of compile",
                        in->path, *model ? " " : "", *model ? *model : "");
    sbp_options_to_args(own, SBP_PHASE_COMPILE | SBP_PHASE_INSPECT, 0, in->arena, &said, &count);
    argv = SBP_NEW_ARRAY(in->arena, const char *, count + arguments->count + 1);
    for (int64_t i = 0; i < arguments->count; i++) {
        const sbp_json *item = &arguments->items[i];
        if (item->kind == SBP_JSON_STRING && !is_said_again(own, item->string))
            argv[argc++] = item->string;
    }
    for (int32_t i = 0; i < count; i++)
        argv[argc++] = said[i];
    sbp_options_spell(in->arena, argv, &argc);
    char **list = (char **)(void *)argv; /* which are only read */
    return sbp_options_parse(in->arena, in->diag, "sbpc inspect", SBP_PHASE_COMPILE | SBP_PHASE_INSPECT, argc,
                             list, out);
}

static sbp_status inspect_ranks(sbp_arena *arena, sbp_diag *diag, int argc, char **argv) {
    sbp_options *options;
    sbp_text text;
    sbp_text_init(&text, arena);
    SBP_TRY(sbp_options_parse(arena, diag, "sbpc inspect", SBP_PHASE_COMPILE | SBP_PHASE_INSPECT, argc, argv,
                              &options));
    if (sbp_options_arg_count(options) != 1)
        return sbp_fail(diag, SBP_USAGE,
                        "which plan or model? usage: sbpc inspect MODEL --ranks N [options]");
    inspection in = {.arena = arena, .diag = diag};
    SBP_TRY(sbp_hub_model(arena, diag, sbp_options_arg(options, 0), false, &in.path));
    const char *model = in.path;
    if (sbp_plan_file_probe(in.path)) {
        SBP_TRY(open_plan(&in));
        SBP_TRY(options_of_plan(&in, options, &model, &options));
    }
    SBP_TRY(sbp_cli_scale(arena, diag, model, options, &text));
    fputs(text.data, stdout);
    return SBP_OK;
}

sbp_status sbp_cli_inspect(sbp_arena *arena, sbp_diag *diag, int argc, char **argv) {
    sbp_options *options;
    sbp_text text;
    sbp_text_init(&text, arena);
    if (asks_for_ranks(argc, argv))
        return inspect_ranks(arena, diag, argc, argv);
    SBP_TRY(sbp_options_parse(arena, diag, "sbpc inspect", SBP_PHASE_INSPECT, argc, argv, &options));
    if (sbp_options_on(options, SBP_OPT_HELP)) {
        sbp_text_add(&text,
                     "usage: sbpc inspect plan.bin [options]\n"
                     "       sbpc inspect plan.bin|MODEL --ranks N [options of compile]   with 1, 2, 4 .. N "
                     "ranks: memory,\n       bytes sent and time, and where more ranks stop to pay\n");
        sbp_options_print_help(&text, SBP_PHASE_INSPECT);
        fputs(text.data, stdout);
        return SBP_OK;
    }
    if (sbp_options_arg_count(options) != 1)
        return sbp_fail(diag, SBP_USAGE, "which plan? usage: sbpc inspect plan.bin (sbpc inspect --help)");
    inspection in = {.arena = arena, .diag = diag, .path = sbp_options_arg(options, 0)};
    static const sbp_option_id of_ranks[] = {SBP_OPT_LINK, SBP_OPT_NODE, SBP_OPT_BATCH_TOKENS};
    for (int i = 0; i < SBP_COUNT(of_ranks); i++)
        if (sbp_options_given(options, of_ranks[i]))
            return sbp_fail(diag, SBP_USAGE, "--%s needs --ranks N", sbp_option_name(of_ranks[i]));
    SBP_TRY(open_plan(&in));
    const char *svg = sbp_options_text(options, SBP_OPT_SVG);
    if (svg && sbp_same_file(svg, in.path))
        return sbp_fail(diag, SBP_USAGE, "--svg '%s' is the plan, which is read: choose another name", svg);
    const char *dot = svg ? strrchr(svg, '.') : NULL;
    if (dot && (strcasecmp(dot, ".png") == 0 || strcasecmp(dot, ".pdf") == 0 || strcasecmp(dot, ".jpg") == 0))
        return sbp_fail(diag, SBP_USAGE,
                        "--svg '%s': the file name must end in .svg (rsvg-convert makes other formats)", svg);
    if (svg) {
        sbp_text picture;
        sbp_text_init(&picture, arena);
        sbp_cli_memory_svg(arena, in.program, in.info.runtime_bytes, &picture);
        SBP_TRY(sbp_file_write(diag, svg, picture.data, picture.length));
    }
    SBP_TRY(sbp_options_on(options, SBP_OPT_JSON) ? print_json(&in, &text) : print_text(&in, &text));
    fputs(text.data, stdout);
    return SBP_OK;
}
