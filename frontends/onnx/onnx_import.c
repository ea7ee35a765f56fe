/* onnx_import.c: from the structures of onnx_json.c to a module: which initializers are parameters and which
 * of them are trained, the graph inputs, nodes in order, and the result `logits`. */
#include "frontends/onnx/onnx.h"
#include "ir/program/contract.h"

#include <string.h>

enum { MIN_OPSET = 18, MAX_OPSET = 25 };

/* ---- names ------------------------------------------------------------------------------------------ */

static void count_read(sbp_onnx *o, const char *name) {
    int32_t before = sbp_map_get(&o->read, name);
    sbp_map_set(&o->read, name, before > 0 ? before + 1 : 1);
}

/* Names that nodes read, and the result, with how often. */
static void collect_read(sbp_onnx *o) {
    sbp_map_init(&o->read, o->arena);
    sbp_map_set(&o->read, "logits", 1);
    for (int32_t i = 0; i < o->model->node_count; i++)
        for (int32_t k = 0; k < o->model->nodes[i].input_count; k++)
            count_read(o, o->model->nodes[i].inputs[k]);
}

/* No output is called as another one, as an input or as an initializer. */
static sbp_status check_outputs_differ(sbp_onnx *o) {
    sbp_map defined;
    sbp_map_init(&defined, o->arena);
    for (int32_t i = 0; i < o->model->initializer_count; i++)
        sbp_map_set(&defined, o->model->initializers[i].name, 0);
    for (int32_t i = 0; i < o->model->input_count; i++)
        sbp_map_set(&defined, o->model->inputs[i].name, 0);
    for (int32_t i = 0; i < o->model->node_count; i++) {
        o->node = &o->model->nodes[i];
        for (int32_t k = 0; k < o->node->output_count; k++) {
            const char *name = o->node->outputs[k];
            if (name[0] && sbp_map_get(&defined, name) >= 0)
                return sbp_onnx_fail(o, "output '%s' is defined twice", name);
            sbp_map_set(&defined, name, i);
        }
    }
    o->node = NULL;
    return SBP_OK;
}

/* ---- what the logits need --------------------------------------------------------------------------------
 */

static bool is_one_of(const char *op, const char *const *names) {
    while (*names && strcmp(*names, op) != 0)
        names++;
    return *names != NULL;
}

/* Whether the cotangent of this node's result reaches input k. */
static bool differentiable(const sbp_onnx_node *node, int32_t k) {
    static const char *const never[] = {
        "Cos",  "Sin",         "Shape",          "Size",  "Range", "Equal", "Greater",
        "Less", "LessOrEqual", "GreaterOrEqual", "Not",   "And",   "Or",    "ConstantOfShape",
        "Sign", "Floor",       "Ceil",           "IsNaN", NULL};
    static const struct {
        const char *op;
        int32_t first, last;
    } some[] = {{"RotaryEmbedding", 1, 3},
                {"RotaryHalves", 1, 2},
                {"RotaryPairs", 1, 2},
                {"Put", 2, 2},
                {"Attention", 3, 9},
                {"TopK", 1, 1},
                {"GatherElements", 1, 1},
                {"ScatterElements", 1, 1},
                {"Where", 0, 0},
                {"Gather", 1, 1},
                {"GatherND", 1, 1},
                {"Reshape", 1, 1},
                {"Squeeze", 1, 1},
                {"Unsqueeze", 1, 1},
                {"Expand", 1, 1},
                {"Slice", 1, 4},
                {"Split", 1, 1},
                {"Dropout", 1, 2},
                {"Pow", 1, 1},
                {"Clip", 1, 2}};
    if (is_one_of(node->op, never))
        return false;
    for (int32_t i = 0; i < SBP_COUNT(some); i++)
        if (strcmp(node->op, some[i].op) == 0 && k >= some[i].first && k <= some[i].last)
            return false;
    return true;
}

/* Marks what the logits need, going backwards through the nodes, which are sorted. trained: only along paths
 * that a cotangent takes. */
static void mark_needed(sbp_onnx *o, bool *live, sbp_map *trained) {
    sbp_map needed;
    sbp_map_init(&needed, o->arena);
    sbp_map_set(&needed, "logits", 1);
    sbp_map_set(trained, "logits", 1);
    for (int32_t i = o->model->node_count - 1; i >= 0; i--) {
        const sbp_onnx_node *node = &o->model->nodes[i];
        bool trains = false;
        for (int32_t k = 0; k < node->output_count; k++) {
            if (node->outputs[k][0] == 0)
                continue;
            live[i] |= sbp_map_get(&needed, node->outputs[k]) >= 0;
            trains |= sbp_map_get(trained, node->outputs[k]) >= 0;
        }
        for (int32_t k = 0; k < node->input_count; k++) {
            if (live[i])
                sbp_map_set(&needed, node->inputs[k], 1);
            if (trains && differentiable(node, k))
                sbp_map_set(trained, node->inputs[k], 1);
        }
    }
}

/* Nodes from the logits back to the product that makes them: computed in fp32 also when the rest is bf16. */
static void mark_wide(sbp_onnx *o) {
    static const char *const through[] = {"Add",  "Sub",  "Mul",      "Div",     "Neg",
                                          "Tanh", "Cast", "Identity", "Softcap", NULL},
                             *const product[] = {"MatMul", "Gemm", NULL};
    sbp_map wide;
    sbp_map_init(&wide, o->arena);
    sbp_map_set(&wide, "logits", 1);
    for (int32_t i = o->model->node_count - 1; i >= 0; i--) {
        const sbp_onnx_node *node = &o->model->nodes[i];
        if (sbp_map_get(&wide, node->outputs[0]) < 0)
            continue;
        o->wide_node[i] = is_one_of(node->op, through) || is_one_of(node->op, product);
        for (int32_t k = 0; is_one_of(node->op, through) && k < node->input_count; k++)
            sbp_map_set(&wide, node->inputs[k], 1);
    }
}

/* ---- parameters -----------------------------------------------------------------------------------------
 */

/* Values that the graph is built from: integers (axes, shapes) and frozen numbers along one axis. */
static sbp_status add_constant(sbp_onnx *o, const sbp_onnx_tensor *t) {
    sbp_onnx_tensor loaded = *t;
    SBP_TRY(sbp_onnx_tensor_load(o->arena, o->diag, o->model->path, &loaded));
    double *data = SBP_NEW_ARRAY(o->arena, double, t->elems);
    for (int64_t i = 0; i < t->elems; i++)
        data[i] = sbp_onnx_tensor_at(&loaded, i);
    sbp_onnx_value v = {
        .name = t->name, .kind = SBP_ONNX_CONSTANT, .type = t->type, .rank = t->rank, .data = data};
    memcpy(v.dim, t->dim, (size_t)t->rank * sizeof *t->dim);
    sbp_onnx_add_value(o, &v);
    return SBP_OK;
}

static sbp_status add_parameter(sbp_onnx *o, const char *name, sbp_onnx_type type, int32_t rank,
                                const int64_t *dim, bool trainable) {
    int64_t elems = 1;
    if (rank > SBP_MAX_RANK)
        return sbp_onnx_fail(o, "parameter '%s' has rank %d; at most %d is supported", name, rank,
                             SBP_MAX_RANK);
    for (int32_t d = 0; d < rank; d++)
        if (dim[d] < 1 || !sbp_mul_i64(elems, dim[d], &elems) || elems > INT64_C(1) << 48)
            return sbp_onnx_fail(o, "parameter '%s' has no elements, or too many", name);
    sbp_param param = {.name = name,
                       .type = {.dtype = o->compute, .rank = rank},
                       .storage = o->compute,
                       .trainable = trainable,
                       .decay = rank > 1,
                       .init = SBP_INIT_NORMAL,
                       .init_std = o->loading->model->initializer_range,
                       .pad_row = -1};
    for (int32_t d = 0; d < rank; d++)
        param.type.dim[d] = sbp_dim_const(dim[d]);
    sbp_onnx_value v = {.name = name, .kind = SBP_ONNX_PARAMETER, .type = type, .rank = rank};
    memcpy(v.dim, dim, (size_t)rank * sizeof *dim);
    v.param = sbp_module_add_param(o->builder.module, &param);
    sbp_onnx_add_value(o, &v);
    return SBP_OK;
}

/* What is not trained: tables that the graph is built from, or a parameter from its first use on. */
static sbp_status add_frozen(sbp_onnx *o, const sbp_onnx_tensor *t) {
    sbp_onnx_value v = {.name = t->name, .kind = SBP_ONNX_PARAMETER, .type = t->type, .rank = t->rank};
    if (t->rank > SBP_MAX_RANK || t->elems < 1 || t->elems > INT64_C(1) << 48)
        return sbp_onnx_fail(o, "initializer '%s' has rank %d and %lld elements", t->name, t->rank,
                             (long long)t->elems);
    memcpy(v.dim, t->dim, (size_t)t->rank * sizeof *t->dim);
    v.param = -1;
    v.tensor = t;
    v.frozen = true;
    sbp_onnx_add_value(o, &v);
    return SBP_OK;
}

static bool marked_buffer(const sbp_onnx_model *m, const char *name) {
    for (int32_t i = 0; i < m->value_count; i++)
        if (m->values[i].buffer && strcmp(m->values[i].name, name) == 0)
            return true;
    for (int32_t i = 0; i < m->input_count; i++)
        if (m->inputs[i].buffer && strcmp(m->inputs[i].name, name) == 0)
            return true;
    return false;
}

/* Whether all elements lie along the last axis. */
static bool is_vector(int32_t rank, const int64_t *dim) {
    for (int32_t d = 0; d + 1 < rank; d++)
        if (dim[d] != 1)
            return false;
    return true;
}

/* ---- one matrix stored twice ----
 *
 * Exporters that fold transposes store an embedding that is also the head twice: as it is, and transposed.
 * Both are one parameter, or training would take them apart. Where the export says what is tied, nothing else
 * is: two parameters may have equal values. */

static void collect_gathered(sbp_onnx *o) {
    sbp_map_init(&o->gathered, o->arena);
    for (int32_t i = 0; i < o->model->node_count; i++) {
        const sbp_onnx_node *node = &o->model->nodes[i];
        if (o->live[i] && strcmp(node->op, "Gather") == 0 && node->input_count > 0)
            sbp_map_set(&o->gathered, node->inputs[0], 1);
    }
}

static bool is_gathered(const sbp_onnx *o, const char *name) {
    return sbp_map_get(&o->gathered, name) >= 0;
}

/* Two matrices: whether b has the values of a, transposed or not. */
typedef struct comparison {
    sbp_arena *arena;
    sbp_diag *diag;
    const char *model;
    const sbp_onnx_tensor *a, *b;
    bool transposed, same;
} comparison;

/* Compares the first rows and columns of both tensors, below `limit`. */
static sbp_status compare_part(comparison *c, int64_t limit) {
    sbp_onnx_tensor x = *c->a, y = *c->b;
    SBP_TRY(sbp_onnx_tensor_load_rows(c->arena, c->diag, c->model, limit, &x));
    SBP_TRY(sbp_onnx_tensor_load_rows(c->arena, c->diag, c->model, limit, &y));
    int64_t cols = x.dim[1] < limit ? x.dim[1] : limit;
    c->same = true;
    for (int64_t i = 0; c->same && i < x.dim[0]; i++)
        for (int64_t k = 0; c->same && k < cols; k++) {
            int64_t there = c->transposed ? k * y.dim[1] + i : i * y.dim[1] + k;
            c->same = sbp_onnx_tensor_at(&x, i * x.dim[1] + k) == sbp_onnx_tensor_at(&y, there);
        }
    return SBP_OK;
}

/* A corner first: of matrices that differ not much more is read. */
static sbp_status compare(void *user) {
    comparison *c = user;
    SBP_TRY(compare_part(c, 16));
    return c->same ? compare_part(c, INT64_MAX) : SBP_OK;
}

/* What cannot be read is no tie; its error comes when weights are read. */
static sbp_status same_values(sbp_onnx *o, const sbp_onnx_tensor *a, const sbp_onnx_tensor *b,
                              bool transposed, bool *same) {
    comparison c = {.arena = sbp_arena_create(),
                    .diag = sbp_diag_create(),
                    .model = o->model->path,
                    .a = a,
                    .b = b,
                    .transposed = transposed};
    sbp_status status = c.arena && c.diag ? sbp_guard(c.arena, c.diag, compare, &c) : SBP_MACHINE;
    sbp_arena_destroy(c.arena);
    sbp_diag_destroy(c.diag);
    *same = status == SBP_OK && c.same;
    return status == SBP_MACHINE
               ? sbp_fail(o->diag, SBP_MACHINE, "out of memory for comparing tensors of an ONNX model")
               : SBP_OK;
}

/* Whether the export leaves it open, or says, that an initializer is stored twice. */
static bool may_be_tied(const sbp_onnx_model *m, const char *name) {
    size_t n = strlen(name);
    for (const char *at = m->tied; at && *at; at += strcspn(at, " "), at += *at == ' ')
        if (strcspn(at, " ") == n && memcmp(at, name, n) == 0)
            return true;
    return !m->tied;
}

/* *out: the gathered parameter that t is a copy of; -1: none. */
static sbp_status find_tie(sbp_onnx *o, const sbp_onnx_tensor *t, bool *transposed, int32_t *out) {
    *out = -1;
    for (int32_t i = 0; i < o->model->initializer_count; i++) {
        const sbp_onnx_tensor *table = &o->model->initializers[i];
        int32_t value = sbp_map_get(&o->names, table->name);
        if (table == t || table->rank != 2 || table->type != t->type || value < 0 ||
            o->values[value].kind != SBP_ONNX_PARAMETER || !is_gathered(o, table->name) ||
            !may_be_tied(o->model, t->name) || !may_be_tied(o->model, table->name))
            continue;
        for (int way = 0; way < 2; way++) {
            *transposed = way == 0;
            bool same = t->dim[0] == table->dim[way == 0] && t->dim[1] == table->dim[way != 0];
            if (same)
                SBP_TRY(same_values(o, table, t, *transposed, &same));
            if (same) {
                *out = value;
                return SBP_OK;
            }
        }
    }
    return SBP_OK;
}

static sbp_status add_matrix(sbp_onnx *o, const sbp_onnx_tensor *t) {
    bool transposed = false;
    int32_t tie = -1;
    if (t->rank == 2 && !o->looks && !is_gathered(o, t->name))
        SBP_TRY(find_tie(o, t, &transposed, &tie));
    if (tie < 0) {
        SBP_TRY(add_parameter(o, t->name, t->type, t->rank, t->dim, true));
        o->values[o->value_count - 1].tensor = t;
        return SBP_OK;
    }
    sbp_note(o->diag, "%s: initializer '%s' is '%s'%s: they are trained as one parameter, '%s'",
             o->model->path, t->name, o->values[tie].name, transposed ? " transposed" : "",
             o->values[tie].name);
    sbp_onnx_value v = o->values[tie];
    v.name = t->name;
    v.transposed = transposed;
    memcpy(v.dim, t->dim, (size_t)t->rank * sizeof *t->dim);
    sbp_onnx_add_value(o, &v);
    return SBP_OK;
}

/* Tables that are gathered come first, so that copies of them are seen. */
static sbp_status add_initializers_of(sbp_onnx *o, const sbp_map *trained, bool gathered) {
    for (int32_t i = 0; i < o->model->initializer_count; i++) {
        const sbp_onnx_tensor *t = &o->model->initializers[i];
        sbp_dtype dtype;
        if (is_gathered(o, t->name) != gathered)
            continue;
        if (sbp_map_get(&o->names, t->name) >= 0)
            return sbp_onnx_fail(o, "initializer '%s' is given twice", t->name);
        if (!sbp_onnx_is_read(o, t->name)) {
            sbp_note(o->diag, "%s: initializer '%s' is not used", o->model->path, t->name);
            continue;
        }
        bool is_float = sbp_onnx_type_float(t->type, &dtype);
        bool trainable = is_float && t->elems > 1 && sbp_map_get(trained, t->name) >= 0 &&
                         !marked_buffer(o->model, t->name);
        if (!trainable && t->rank <= SBP_MAX_RANK && (!is_float || is_vector(t->rank, t->dim)))
            SBP_TRY(add_constant(o, t));
        else if (!is_float)
            return sbp_onnx_fail(o, "initializer '%s' has rank %d", t->name, t->rank);
        else if (trainable)
            SBP_TRY(add_matrix(o, t));
        else
            SBP_TRY(add_frozen(o, t));
    }
    return SBP_OK;
}

/* ---- inputs and outputs -----------------------------------------------------------------------------------
 */

/* [1, T], T symbolic. */
static sbp_status check_token_input(sbp_onnx *o, const sbp_onnx_info *info) {
    if (info->type != SBP_ONNX_INT64 && info->type != SBP_ONNX_INT32)
        return sbp_onnx_fail(o, "input '%s' is %s, INT64 expected", info->name,
                             sbp_onnx_type_name(info->type));
    if (!info->has_shape || info->rank != 2)
        return sbp_onnx_fail(o, "input '%s' has rank %d; [1, T] is expected", info->name, info->rank);
    if (info->dim[0] != 1 && info->dim[0] != -1)
        return sbp_onnx_fail(o, "input '%s' has a batch of %lld; the graph must describe one document (1)",
                             info->name, (long long)info->dim[0]);
    if (info->dim[1] != -1 || !info->param[1])
        return sbp_onnx_fail(o,
                             "input '%s' has the fixed length %lld; its axis 1 must be symbolic (dimParam)",
                             info->name, (long long)info->dim[1]);
    return SBP_OK;
}

/* Keys and values of tokens before the document: a batch, one axis of unknown length, of which there are
 * none. */
static bool is_cache(const sbp_onnx_info *info) {
    sbp_dtype dtype;
    int32_t open = 0;
    for (int32_t d = 1; d < info->rank; d++)
        open += info->dim[d] < 0;
    return sbp_onnx_type_float(info->type, &dtype) && info->has_shape && info->rank >= 3 && open == 1 &&
           (info->dim[0] == 1 || info->dim[0] == -1) && strstr(info->name, "past") != NULL;
}

static void add_cache(sbp_onnx *o, const sbp_onnx_info *info) {
    sbp_onnx_value v = {
        .name = info->name, .kind = SBP_ONNX_CONSTANT, .type = info->type, .rank = info->rank};
    for (int32_t d = 0; d < info->rank; d++)
        v.dim[d] = d == 0 ? 1 : info->dim[d] < 0 ? 0 : info->dim[d];
    v.data = SBP_NEW_ARRAY(o->arena, double, 1);
    sbp_onnx_add_value(o, &v);
}

/* Positions as one list [T]. */
static void add_cache_position(sbp_onnx *o, const char *name) {
    sbp_onnx_value v = {
        .name = name, .kind = SBP_ONNX_NUMBERS, .type = SBP_ONNX_INT64, .rank = 1, .dim = {SBP_ONNX_ROWS}};
    v.numbers = (sbp_number_tensor){.rank = 1};
    v.numbers.size[0] = sbp_number_tokens(&o->numbers);
    v.numbers.element = sbp_number_axis(&o->numbers, 0);
    sbp_onnx_add_value(o, &v);
}

static sbp_status add_float_input(sbp_onnx *o, const sbp_onnx_info *info, const sbp_map *trained) {
    sbp_dtype dtype;
    int64_t elems = 1;
    if (is_cache(info)) {
        add_cache(o, info);
        return SBP_OK;
    }
    if (strcmp(info->name, "cache_position") == 0 && info->has_shape && info->rank == 1) {
        add_cache_position(o, info->name);
        return SBP_OK;
    }
    if (strstr(info->name, "logits_to_keep"))
        return sbp_onnx_fail(
            o,
            "input '%s' chooses the tokens whose logits are returned; export a model that returns those of "
            "every token",
            info->name);
    if (!sbp_onnx_type_float(info->type, &dtype))
        return sbp_onnx_fail(
            o,
            "input '%s' is %s: besides input_ids, position_ids and attention_mask, inputs are float "
            "parameters",
            info->name, sbp_onnx_type_name(info->type));
    for (int32_t d = 0; d < info->rank; d++)
        if (!info->has_shape || info->dim[d] < 1 || !sbp_mul_i64(elems, info->dim[d], &elems))
            return sbp_onnx_fail(o, "input '%s' is a parameter, but dimension %d is not known", info->name,
                                 d);
    if (!sbp_onnx_is_read(o, info->name)) {
        sbp_note(o->diag, "%s: input '%s' is not used", o->model->path, info->name);
        return SBP_OK;
    }
    bool trainable = elems > 1 && !info->buffer && sbp_map_get(trained, info->name) >= 0;
    return add_parameter(o, info->name, info->type, info->rank, info->dim, trainable);
}

/* Token ids are data; positions are 0 .. T - 1, and every token of the mask is there. */
static void add_token_input(sbp_onnx *o, const char *name, bool ids, bool positions) {
    sbp_onnx_value v = {.name = name, .type = SBP_ONNX_INT64, .rank = 2, .dim = {1, SBP_ONNX_ROWS}};
    v.kind = ids ? SBP_ONNX_VALUE : SBP_ONNX_NUMBERS;
    if (ids && sbp_onnx_is_read(o, name))
        v.value = sbp_build_row(&o->builder, sbp_data_columns[SBP_DATA_TOK].name, SBP_I32, SBP_T);
    v.numbers = (sbp_number_tensor){.rank = 2};
    v.numbers.size[0] = sbp_number_constant(&o->numbers, 1);
    v.numbers.size[1] = sbp_number_tokens(&o->numbers);
    v.numbers.element = positions ? sbp_number_axis(&o->numbers, 1) : v.numbers.size[0];
    sbp_onnx_add_value(o, &v);
}

static sbp_status add_inputs(sbp_onnx *o, const sbp_map *trained) {
    static const char *const tokens[] = {"input_ids", "position_ids", "attention_mask"};
    bool has_ids = false;
    for (int32_t i = 0; i < o->model->input_count; i++) {
        const sbp_onnx_info *info = &o->model->inputs[i];
        int32_t known = 0;
        while (known < SBP_COUNT(tokens) && strcmp(tokens[known], info->name) != 0)
            known++;
        if (known == SBP_COUNT(tokens)) {
            if (sbp_map_get(&o->names, info->name) < 0) /* old models list initializers here, too */
                SBP_TRY(add_float_input(o, info, trained));
            continue;
        }
        SBP_TRY(check_token_input(o, info));
        has_ids |= known == 0;
        add_token_input(o, info->name, known == 0, known == 1);
    }
    return has_ids ? SBP_OK : sbp_onnx_fail(o, "the graph has no input 'input_ids'");
}

static sbp_status check_outputs(sbp_onnx *o) {
    bool found = false;
    const char *first = NULL;
    int32_t others = 0;
    for (int32_t i = 0; i < o->model->output_count; i++) {
        if (strcmp(o->model->outputs[i].name, "logits") == 0)
            found = true;
        else if (others++ == 0)
            first = o->model->outputs[i].name;
    }
    if (others == 1)
        sbp_note(o->diag, "%s: output '%s' is ignored", o->model->path, first);
    else if (others > 1)
        sbp_note(o->diag, "%s: output '%s' and %d others are ignored", o->model->path, first, others - 1);
    if (!found)
        return sbp_onnx_fail(o, "the graph has no output 'logits'%s%s",
                             o->model->output_count ? "; the first is " : "",
                             o->model->output_count ? o->model->outputs[0].name : "");
    return SBP_OK;
}

/* ---- nodes ------------------------------------------------------------------------------------------------
 */

sbp_status sbp_onnx_import_node(sbp_onnx *o) {
    bool own = strcmp(o->node->domain, "streambp") == 0;
    if (!own && o->node->domain[0] != 0 && strcmp(o->node->domain, "ai.onnx") != 0)
        return sbp_onnx_fail(o, "operators of domain '%s' are not supported", o->node->domain);
    bool done = false;
    o->builder.node = o->node->name;
    if (!own)
        SBP_TRY(sbp_onnx_fold(o, &done));
    if (!done && !own)
        SBP_TRY(sbp_onnx_scores_node(o, &done));
    if (!done && !own)
        SBP_TRY(sbp_onnx_experts_node(o, &done));
    if (done)
        return o->builder.status;
    const sbp_onnx_op *op = sbp_onnx_find_op(o->node->op);
    if (!op || own != (op->since == SBP_ONNX_OWN) || (op->since == SBP_ONNX_RAISED && !o->node->raised))
        return sbp_onnx_fail(o, "this operator is not supported for activations");
    if (op->since > o->model->opset && !o->node->raised && !own)
        return sbp_onnx_fail(o, "the operator came with opset %d, the model declares opset %lld", op->since,
                             (long long)o->model->opset);
    SBP_TRY(op->import(o));
    return o->builder.status;
}

static sbp_status finish(sbp_onnx *o) {
    o->node = NULL;
    int32_t index = sbp_map_get(&o->names, "logits");
    if (index < 0)
        return sbp_onnx_fail(o, "no node computes 'logits'");
    const sbp_onnx_value *logits = &o->values[index];
    bool fits = logits->kind == SBP_ONNX_VALUE && logits->rank == 3 && logits->dim[0] == 1 &&
                logits->dim[1] == SBP_ONNX_ROWS && logits->dim[2] >= 1;
    if (!fits)
        return sbp_onnx_fail(
            o, "logits is %s; [1,T,V] is expected%s", sbp_onnx_shape_text(o, logits),
            logits->rank == 3 && logits->dim[1] == 1
                ? ": the graph keeps the logits of one token (logits_to_keep), all are needed"
                : "");
    o->loading->model->vocab_size = logits->dim[2];
    sbp_builder builder = o->builder;
    builder.node = "logits";
    sbp_head_finish(&builder, o->loading->options->head, sbp_build_cast(&builder, logits->value, o->wide));
    sbp_func_prune(builder.func);
    return builder.status;
}

/* ---- the whole --------------------------------------------------------------------------------------------
 */

void sbp_onnx_create(sbp_onnx *o, sbp_loading *loading, const sbp_onnx_model *model, sbp_module *module) {
    sbp_dtype compute = loading->options->compute;
    *o = (sbp_onnx){.loading = loading,
                    .arena = loading->arena,
                    .diag = loading->diag,
                    .model = model,
                    .compute = compute,
                    .residual = loading->residual,
                    .wide = compute == SBP_F64 ? SBP_F64 : SBP_F32};
    o->builder = sbp_builder_on(module, sbp_module_add_func(module, "model"), loading->diag);
    sbp_map_init(&o->names, o->arena);
    sbp_map_init(&o->frozen, o->arena);
    sbp_numbers_init(&o->numbers, o->arena);
}

sbp_status sbp_onnx_begin(sbp_onnx *o) {
    const sbp_onnx_model *m = o->model;
    o->live = SBP_NEW_ARRAY(o->arena, bool, m->node_count);
    o->wide_node = SBP_NEW_ARRAY(o->arena, bool, m->node_count);
    sbp_map trained;
    sbp_map_init(&trained, o->arena);
    collect_read(o);
    mark_needed(o, o->live, &trained);
    mark_wide(o);
    collect_gathered(o);
    SBP_TRY(add_initializers_of(o, &trained, true));
    SBP_TRY(add_initializers_of(o, &trained, false));
    return add_inputs(o, &trained);
}

sbp_status sbp_onnx_check(sbp_onnx *o) {
    const sbp_onnx_model *m = o->model;
    if (m->opset < MIN_OPSET || m->opset > MAX_OPSET)
        return sbp_onnx_fail(o, "opset %lld; %d to %d are supported", (long long)m->opset, MIN_OPSET,
                             MAX_OPSET);
    SBP_TRY(check_outputs_differ(o));
    return check_outputs(o);
}

sbp_status sbp_onnx_import(sbp_onnx *o) {
    SBP_TRY(sbp_onnx_begin(o));
    for (int32_t i = 0; i < o->model->node_count; i++) {
        o->node = &o->model->nodes[i];
        if (o->live[i])
            SBP_TRY(sbp_onnx_import_node(o));
    }
    return finish(o);
}
