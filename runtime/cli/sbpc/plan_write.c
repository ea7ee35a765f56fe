/* plan_write.c: the sections of plan.bin. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "frontends/weights/tensor_table.h"
#include "ir/base/json.h"
#include "ir/program/plan_file.h"
#include "runtime/cli/sbpc/cli.h"

static void add_recipe(const sbp_compilation *c, sbp_tensor_entry *tensor, const sbp_param *param,
                       const sbp_recipe *recipe) {
    bool wider = sbp_dtype_bytes(param->source) > sbp_dtype_bytes(param->storage);
    sbp_recipe own = {
        .source = param->name, .dtype = wider ? param->source : param->storage, .rank = param->type.rank};
    for (int32_t d = 0; d < param->type.rank; d++)
        own.dim[d] = param->type.dim[d].n;
    SBP_PUSH(c->arena, tensor->recipes, tensor->recipe_count, tensor->recipe_capacity,
             recipe ? *recipe : own);
}

/* What its adapter adds to a weight, for who merges them. */
static void add_low_rank(const sbp_compilation *c, int32_t param, sbp_low_rank *out) {
    const sbp_module *m = c->model.module;
    for (int32_t i = 0; i < m->adapter_count; i++)
        if (m->adapters[i].weight == param)
            *out = (sbp_low_rank){.a = sbp_param_label(&c->pipeline, m->adapters[i].a),
                                  .b = sbp_param_label(&c->pipeline, m->adapters[i].b),
                                  .in_out = m->adapters[i].in_out,
                                  .scale = m->adapters[i].scale};
}

static sbp_status tensor_section(const sbp_compilation *c, sbp_text *out) {
    const sbp_module *m = c->model.module;
    sbp_tensor_table table = {0};
    for (int32_t i = 0; i < m->param_count; i++) {
        const sbp_param *param = &m->params[i];
        sbp_tensor_entry tensor = {.buffer = sbp_param_label(&c->pipeline, i),
                                   .trainable = param->trainable,
                                   .decay = param->decay,
                                   .format = param->format,
                                   .fresh = param->fresh,
                                   .init = param->init,
                                   .deviation = param->init_std,
                                   .pad_row = param->pad_row,
                                   .of_adapter = param->owner == SBP_OF_ADAPTER,
                                   .merged = param->merged};
        add_recipe(c, &tensor, param, param->recipe);
        if (param->stored)
            add_recipe(c, &tensor, param, param->stored);
        add_low_rank(c, i, &tensor.low_rank);
        for (int32_t a = 0; a < param->alias_count; a++)
            SBP_PUSH(c->arena, tensor.aliases, tensor.alias_count, tensor.alias_capacity, param->aliases[a]);
        SBP_PUSH(c->arena, table.tensors, table.count, table.capacity, tensor);
    }
    SBP_TRY(sbp_tensor_table_verify(c->arena, c->diag, &table));
    sbp_tensor_table_print(out, &table);
    return SBP_OK;
}

/* "key": "text" | null */
static void add_text(sbp_text *out, const char *key, const char *value) {
    sbp_text_add(out, ", \"%s\": ", key);
    if (value)
        sbp_json_add_string(out, value, strlen(value));
    else
        sbp_text_add(out, "null");
}

static void add_id(sbp_text *out, const char *key, int32_t id) {
    if (id >= 0)
        sbp_text_add(out, ", \"%s\": %d", key, id);
    else
        sbp_text_add(out, ", \"%s\": null", key);
}

static const char *absolute_path(const sbp_compilation *c, const char *path) {
    char resolved[4096];
    return path && realpath(path, resolved) ? sbp_arena_strdup(c->arena, resolved) : path;
}

/* --tune: the file may be still to come. */
static const char *tune_path(const sbp_compilation *c) {
    const char *path = sbp_options_text(c->options, SBP_OPT_TUNE);
    char here[4096];
    return *path == '/' || !getcwd(here, sizeof here) ? path : sbp_file_join(c->arena, here, path);
}

void sbp_cli_add_schedule(const sbp_compilation *c, sbp_text *out) {
    const sbp_schedule_options *s = &c->estimate.schedule;
    const char *homes = sbp_planner_homes(c->arena, s, "");
    sbp_text_add(
        out,
        ", \"schedule\": {\"seq_len\": %lld, \"chunk\": %lld, \"head_chunk\": %lld, \"segment\": %lld, "
        "\"checkpoint_every\": %lld, \"offload\": \"%s\", \"host_update\": %s, \"keep_gathered\": %s, "
        "\"saved\": [",
        (long long)sbp_program_most_rows(c->pipeline.program), (long long)s->chunk, (long long)s->head_chunk,
        (long long)s->segment, (long long)s->checkpoint_every, *homes ? homes : "none",
        s->host_update ? "true" : "false",
        s->gathered == INT32_MAX ? "\"all\""
        : s->gathered == 0       ? "\"none\""
                                 : sbp_arena_printf(c->arena, "%d", (int)s->gathered));
    sbp_text names;
    sbp_text_init(&names, c->arena);
    sbp_saved_list(&c->pipeline, ",", &names);
    for (const char *at = names.data; *at;) {
        size_t length = strcspn(at, ",");
        sbp_text_add(out, "%s", at == names.data ? "" : ", ");
        sbp_json_add_string(out, at, length);
        at += length + (at[length] == ',');
    }
    sbp_text_add(out, "]}");
}

/* What was given on the command line, for who plans the same again with more ranks. */
static void add_arguments(const sbp_compilation *c, sbp_text *out) {
    const char **args;
    int32_t count;
    sbp_options_to_args(c->options, SBP_PHASE_COMPILE, 0, c->arena, &args, &count);
    sbp_text_add(out, ", \"arguments\": [");
    for (int32_t i = 0; i < count; i++) {
        sbp_text_add(out, i > 0 ? ", " : "");
        sbp_json_add_string(out, args[i], strlen(args[i]));
    }
    sbp_text_add(out, "]");
}

static void meta_section(const sbp_compilation *c, sbp_text *out) {
    const sbp_model *m = &c->model;
    sbp_text_add(out, "{\"sbpc\": \"%s\", \"options\": {", SBP_VERSION);
    sbp_options_print_json(out, c->options, SBP_PHASE_COMPILE);
    sbp_text_add(out, "}");
    add_text(out, "source", absolute_path(c, c->model_path));
    add_arguments(c, out);
    sbp_text_add(out, ", \"model\": {\"vocab_size\": %lld, \"max_positions\": %lld", (long long)m->vocab_size,
                 (long long)m->max_positions);
    add_text(out, "name", m->name);
    add_text(out, "model_type", m->model_type);
    add_id(out, "eos_id", m->eos_count > 0 ? m->eos_ids[0] : -1);
    sbp_text_add(out, ", \"eos_ids\": [");
    for (int32_t i = 0; i < m->eos_count; i++)
        sbp_text_add(out, "%s%d", i ? ", " : "", m->eos_ids[i]);
    sbp_text_add(out, "]");
    add_id(out, "bos_id", m->bos_id);
    add_id(out, "pad_id", m->pad_id);
    add_text(out, "weights", absolute_path(c, m->weights));
    add_text(out, "tokenizer", absolute_path(c, m->tokenizer));
    add_text(out, "config", m->config);
    add_text(out, "adapter", m->adapter);
    add_text(out, "adapter_weights", absolute_path(c, m->adapter_weights));
    sbp_text_add(out, ", \"special_tokens\": {");
    for (int32_t i = 0; c->tokenizer && i < sbp_tokenizer_named_count(c->tokenizer); i++) {
        const char *name, *value;
        sbp_tokenizer_named_at(c->tokenizer, i, &name, &value);
        sbp_text_add(out, "%s", i ? ", " : "");
        sbp_json_add_string(out, name, strlen(name));
        sbp_text_add(out, ": ");
        sbp_json_add_string(out, value, strlen(value));
    }
    sbp_text_add(out, "}}");
    add_text(out, "objective", c->objective);
    add_text(out, "objective_of_pairs", sbp_objective_of_pairs());
    add_text(out, "loss_type", c->loss_type);
    add_text(out, "counted", c->settings.counted);
    add_text(out, "backend", c->target->name);
    add_text(out, "dtype", c->dtype == SBP_F64 ? "fp64" : c->dtype == SBP_BF16 ? "bf16" : "fp32");
    const sbp_target_info *target = &c->pipeline.target;
    sbp_text_add(out, ", \"runtime_bytes\": %lld, \"threads\": %lld, \"thread_bytes\": %lld",
                 (long long)c->process.bytes, (long long)c->threads, (long long)c->process.thread_bytes);
    sbp_cli_add_schedule(c, out);
    sbp_text_add(out, ", \"estimate\": {\"seconds\": ");
    sbp_text_add_double(out, c->estimate.seconds);
    sbp_text_add(out, ", \"flops\": ");
    sbp_text_add_double(out, c->estimate.flops);
    sbp_text_add(out, "}");
    sbp_cli_add_rates(out, c->rates_source, &target->rates);
    add_text(out, "advice", c->advice);
    sbp_text_add(out, ", \"memory_bytes\": %lld", (long long)c->wish.memory_bytes);
    sbp_text_add(out, ", \"defaults\": {");
    const char *separator = "";
    if (sbp_options_text(c->options, SBP_OPT_TUNE)) {
        const char *path = tune_path(c);
        sbp_text_add(out, "\"tune\": ");
        sbp_json_add_string(out, path, strlen(path));
        separator = ", ";
    }
    if (c->settings.passes > 1) {
        sbp_text_add(out, "%s\"inner-epochs\": %d", separator, c->settings.passes);
        separator = ", ";
    }
    for (int32_t i = 0; i < c->settings.count; i++) { /* settings of the objective */
        const sbp_setting *setting = &c->settings.items[i];
        const sbp_option *option = sbp_option_setting(setting->name);
        double value = sbp_options_given(c->options, option->id) ? sbp_options_double(c->options, option->id)
                                                                 : setting->value;
        sbp_text_add(out, "%s\"%s\": ", separator, option->name);
        if (option->kind == SBP_OPTION_ENUM)
            sbp_text_add(out, "\"%s\"", sbp_option_word(c->arena, option, (int32_t)value));
        else if (option->kind == SBP_OPTION_ONOFF)
            sbp_text_add(out, value > 0 ? "true" : "false");
        else
            sbp_text_add_double(out, value);
        separator = ", ";
    }
    sbp_text_add(out, "}}\n");
}

sbp_status sbp_cli_write_plan(const sbp_compilation *c) {
    sbp_text program, tensors, meta, prepare;
    sbp_text_init(&program, c->arena);
    sbp_text_init(&tensors, c->arena);
    sbp_text_init(&meta, c->arena);
    sbp_text_init(&prepare, c->arena);
    sbp_program_print(&program, c->pipeline.program);
    if (c->settings.prepare)
        sbp_module_print(&prepare, c->settings.prepare);
    SBP_TRY(tensor_section(c, &tensors));
    meta_section(c, &meta);
    const void *kernels = NULL;
    int64_t kernel_bytes = 0;
    if (c->target->compile)
        SBP_TRY(c->target->compile(c->arena, c->diag, c->pipeline.program, &kernels, &kernel_bytes));
    const char *template = c->model.chat_template;
    const sbp_plan_section sections[] = {
        {SBP_PLAN_PROGRAM, program.data, (int64_t)program.length},
        {SBP_PLAN_TENSORS, tensors.data, (int64_t)tensors.length},
        {SBP_PLAN_META, meta.data, (int64_t)meta.length},
        {SBP_PLAN_TOKENIZER, c->tokenizer_text, (int64_t)c->tokenizer_bytes},
        {SBP_PLAN_TEMPLATE, template, template ? (int64_t)strlen(template) : 0},
        {SBP_PLAN_KERNELS, kernels, kernel_bytes},
        {SBP_PLAN_PREPARE, prepare.data, (int64_t)prepare.length},
    };
    return sbp_plan_file_write(c->diag, c->output, sections, SBP_COUNT(sections));
}
