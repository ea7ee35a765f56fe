/* plan_write.c: the sections of plan.bin. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "frontends/formats/weights/tensor_table.h"
#include "ir/program/plan_file.h"
#include "ir/program/plan_meta.h"
#include "passes/planner/useful.h"
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

void sbp_cli_write_schedule(sbp_json_writer *w, const char *key, const sbp_compilation *c) {
    const sbp_schedule_options *s = &c->estimate.schedule;
    const char *placement = sbp_planner_placement(c->arena, s, "");
    sbp_text names;
    sbp_json_write_object(w, key);
    sbp_json_write_int(w, "seq_len", sbp_program_most_rows(c->pipeline.program));
    sbp_json_write_int(w, "chunk", s->chunk);
    sbp_json_write_int(w, "head_chunk", s->head_chunk);
    sbp_json_write_int(w, "segment", s->segment);
    sbp_json_write_int(w, "checkpoint_every", s->checkpoint_every);
    sbp_json_write_string(w, "offload", *placement ? placement : "none");
    sbp_json_write_bool(w, "host_update", s->host_update);
    if (s->expert_pieces > 1)
        sbp_json_write_int(w, "expert_pieces", s->expert_pieces);
    if (s->gathered == INT32_MAX || s->gathered == 0)
        sbp_json_write_string(w, "keep_gathered", s->gathered ? "all" : "none");
    else
        sbp_json_write_int(w, "keep_gathered", s->gathered);
    sbp_json_write_array(w, "saved");
    sbp_text_init(&names, c->arena);
    sbp_saved_list(&c->pipeline, ",", &names);
    for (const char *at = names.data; *at;) {
        size_t length = strcspn(at, ",");
        sbp_json_write_bytes(w, NULL, at, length);
        at += length + (at[length] == ',');
    }
    sbp_json_write_end(w);
    sbp_json_write_end(w);
}

/* A tree of meta, made in a text of its own. */
typedef struct tree {
    sbp_text text;
    sbp_json_writer w;
} tree;

static sbp_json_writer *begin_tree(const sbp_compilation *c, tree *t) {
    sbp_text_init(&t->text, c->arena);
    t->w = sbp_json_writer_on(&t->text);
    return &t->w;
}

static const char *options_tree(const sbp_compilation *c) {
    tree t;
    sbp_json_writer *w = begin_tree(c, &t);
    sbp_json_write_object(w, NULL);
    sbp_options_write_json(w, c->options, SBP_PHASE_COMPILE);
    sbp_json_write_end(w);
    return t.text.data;
}

/* What was given on the command line, for who plans the same again with more ranks. */
static const char *arguments_tree(const sbp_compilation *c) {
    const char **args;
    int32_t count;
    tree t;
    sbp_json_writer *w = begin_tree(c, &t);
    sbp_options_to_args(c->options, SBP_PHASE_COMPILE, 0, c->arena, &args, &count);
    sbp_json_write_array(w, NULL);
    for (int32_t i = 0; i < count; i++)
        sbp_json_write_string(w, NULL, args[i]);
    sbp_json_write_end(w);
    return t.text.data;
}

static const char *eos_tree(const sbp_compilation *c) {
    tree t;
    sbp_json_writer *w = begin_tree(c, &t);
    sbp_json_write_array(w, NULL);
    for (int32_t i = 0; i < c->model.eos_count; i++)
        sbp_json_write_int(w, NULL, c->model.eos_ids[i]);
    sbp_json_write_end(w);
    return t.text.data;
}

static const char *special_tokens_tree(const sbp_compilation *c) {
    tree t;
    sbp_json_writer *w = begin_tree(c, &t);
    sbp_json_write_object(w, NULL);
    for (int32_t i = 0; c->tokenizer && i < sbp_tokenizer_named_count(c->tokenizer); i++) {
        const char *name, *value;
        sbp_tokenizer_named_at(c->tokenizer, i, &name, &value);
        sbp_json_write_string(w, name, value);
    }
    sbp_json_write_end(w);
    return t.text.data;
}

static const char *schedule_tree(const sbp_compilation *c) {
    tree t;
    sbp_cli_write_schedule(begin_tree(c, &t), NULL, c);
    return t.text.data;
}

static const char *throughput_tree(const sbp_compilation *c) {
    tree t;
    sbp_cli_write_throughput(begin_tree(c, &t), NULL, c->throughput_source, &c->pipeline.target.throughput);
    return t.text.data;
}

/* Operations that a step cannot do without (useful.h). */
static void write_useful(sbp_json_writer *w, const sbp_useful_work *work) {
    sbp_json_write_object(w, "useful_flops");
    sbp_json_write_double(w, "per_token", work->per_row);
    sbp_json_write_double(w, "per_label", work->per_label);
    sbp_json_write_array(w, "attention");
    for (int32_t i = 0; i < work->attention_count; i++) {
        sbp_json_write_object(w, NULL);
        sbp_json_write_int(w, "window", work->attention[i].window);
        sbp_json_write_double(w, "per_pair", work->attention[i].per_pair);
        sbp_json_write_end(w);
    }
    sbp_json_write_end(w);
    sbp_json_write_end(w);
}

static const char *estimate_tree(const sbp_compilation *c, const sbp_useful_work *work) {
    tree t;
    sbp_json_writer *w = begin_tree(c, &t);
    sbp_json_write_object(w, NULL);
    sbp_json_write_double(w, "seconds", c->estimate.seconds);
    sbp_json_write_double(w, "flops", c->estimate.flops);
    write_useful(w, work);
    sbp_json_write_end(w);
    return t.text.data;
}

/* Writes a setting of the objective: what was given, or the objective's own value. */
static void write_setting(sbp_json_writer *w, const sbp_compilation *c, const sbp_setting *setting) {
    const sbp_option *option = sbp_option_setting(setting->name);
    double value = sbp_options_given(c->options, option->id) ? sbp_options_double(c->options, option->id)
                                                             : setting->value;
    if (option->kind == SBP_OPTION_ENUM)
        sbp_json_write_string(w, option->name, sbp_option_word(c->arena, option, (int32_t)value));
    else if (option->kind == SBP_OPTION_ONOFF)
        sbp_json_write_bool(w, option->name, value > 0);
    else
        sbp_json_write_double(w, option->name, value);
}

static const char *defaults_tree(const sbp_compilation *c) {
    tree t;
    sbp_json_writer *w = begin_tree(c, &t);
    sbp_json_write_object(w, NULL);
    if (sbp_options_text(c->options, SBP_OPT_TUNE))
        sbp_json_write_string(w, sbp_option_name(SBP_OPT_TUNE), tune_path(c));
    if (c->settings.passes > 1)
        sbp_json_write_int(w, sbp_option_name(SBP_OPT_INNER_EPOCHS), c->settings.passes);
    for (int32_t i = 0; i < c->settings.count; i++)
        write_setting(w, c, &c->settings.items[i]);
    sbp_json_write_end(w);
    return t.text.data;
}

static sbp_status memory_tree(const sbp_compilation *c, const char **out) {
    tree t;
    sbp_json_writer *w = begin_tree(c, &t);
    sbp_account account;
    SBP_TRY(sbp_cli_account(c->arena, c->diag, c->pipeline.program, c->pipeline.target.alignment_bytes,
                            c->process.bytes, &account));
    sbp_cli_write_account(w, NULL, &account);
    *out = t.text.data;
    return SBP_OK;
}

static void meta_section(const sbp_compilation *c, const sbp_useful_work *work, const char *memory,
                         sbp_text *out) {
    const sbp_model *m = &c->model;
    const sbp_plan_meta meta = {
        .sbpc = SBP_VERSION,
        .source = absolute_path(c, c->model_path),
        .vocab_size = m->vocab_size,
        .max_positions = m->max_positions,
        .length_limit = m->length_limit,
        .length_rule = m->length_rule,
        .name = m->name,
        .model_type = m->model_type,
        .eos_id = m->eos_count > 0 ? m->eos_ids[0] : -1,
        .bos_id = m->bos_id,
        .pad_id = m->pad_id,
        .weights = absolute_path(c, m->weights),
        .carried = m->carries ? absolute_path(c, m->weights) : NULL,
        .tokenizer = absolute_path(c, m->tokenizer),
        .config = m->config,
        .adapter = m->adapter,
        .adapter_weights = absolute_path(c, m->adapter_weights),
        .objective = c->objective,
        .objective_of_pairs = sbp_objective_of_pairs(),
        .loss_type = c->loss_type,
        .counted = c->settings.counted,
        .held = c->settings.held,
        .backend = c->target->name,
        .dtype = sbp_dtype_spelling(c->dtype),
        .runtime_bytes = c->process.bytes,
        .threads = c->threads,
        .thread_bytes = c->process.thread_bytes,
        .advice = c->advice,
        .memory_bytes = c->request.memory_bytes,
    };
    const sbp_plan_trees trees = {
        .options = options_tree(c),
        .arguments = arguments_tree(c),
        .eos_ids = eos_tree(c),
        .memory = memory,
        .special_tokens = special_tokens_tree(c),
        .schedule = schedule_tree(c),
        .estimate = estimate_tree(c, work),
        .throughput = throughput_tree(c),
        .defaults = defaults_tree(c),
    };
    sbp_plan_meta_write(out, &meta, &trees);
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
    sbp_useful_work work;
    sbp_pipeline before = c->pipeline;
    before.module = c->model.module;
    SBP_TRY(sbp_planner_useful_work(&before, &work));
    const char *memory;
    SBP_TRY(memory_tree(c, &memory));
    meta_section(c, &work, memory, &meta);
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
