/* gguf_table.c: the rows of gguf_table.def, and how elements are arranged on either side. */
#include "frontends/formats/weights/gguf_traits.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* How hf and file differ. Axes are counted from the first; n, m: sizes that are the same on both sides. */
typedef enum kind {
    AS_IS,
    NORM,           /* where norms are SHIFTED the file has 1 + w */
    QUERIES,        /* where rows are INTERLEAVED, those of a head in halves (0 1 .., n / 2 ..); the file has
                       row 0, n / 2, 1, n / 2 + 1 .. */
    KEYS,           /* likewise, kv_heads */
    QKV_OF_HEADS,   /* q, k, v of each head; the file has q of all heads, then k, then v */
    FIRST_HALF,     /* [.., 2 n, m], of which the file's tensor is the first n of the last axis but one */
    SECOND_HALF,    /* the others */
    FIRST_OF_FILE,  /* [.., n, m], and the file has [.., 2 n, m] */
    SECOND_OF_FILE, /* likewise, the others */
    EVEN_ROWS,      /* [e, 2 n, m], of which the file's tensor [e, n, m] is every second row */
    ODD_ROWS,       /* the others */
    EVEN_COLUMNS,   /* [e, m, 2 n]; the file has the transpose [e, n, m] of every second column */
    ODD_COLUMNS,    /* of the others */
    FIRST_COLUMNS,  /* [e, m, 2 n]; the file has the transpose [e, n, m] of the first n columns */
    SECOND_COLUMNS, /* of the others */
    EVEN_OF_BIAS,   /* [e, 2 n], [e, n] */
    ODD_OF_BIAS,    /* the others */
    OF_STREAMS,     /* [a, b] of each stream but the first, its number for "#"; [streams - 1, a, b] */
    TRANSPOSED,     /* the last two axes */
    LATENT_KEYS,    /* [heads * (fixed + value), m]; the file has [heads, m, fixed] */
    LATENT_VALUES,  /* .. and [heads, value, m] */
    TAPS,           /* [n, 1, m]; [n, m] */
    COLUMN,         /* [n]; [n, 1] */
    SCALAR,         /* []; [1] */
    DECAY,          /* A_log; the file has -exp(A_log) */
    DECAY_COLUMN,   /* likewise; [n, 1] */
    GROUPS,         /* [n]; [groups, n / groups] */
    GROUPED_QKV,    /* q, k, v, z of each key head; the file has q of all, then k, then v */
    GROUPED_Z,      /* .. and z of all */
    DELTA_QKV,      /* q, k, v of all heads; the file has the value heads of all key heads in turn */
    DELTA_ROWS,     /* of the value heads alone */
    DELTA_HEADS,    /* one row each */
    DELTA_DECAY,    /* likewise, A_log */
    DELTA_TAPS,     /* [n, 1, m], rows as DELTA_QKV; [n, m] */
    DELTA_COLUMNS   /* the columns are DELTA_ROWS */
} kind;

static const struct row {
    sbp_gguf_traits traits;
    const char *hf, *file;
    kind kind;
    bool parts; /* <name>.weight and <name>.bias; else names are whole */
    bool only_read;
} rows[] = {
#define MODULE(traits, hf, file, kind) {traits, hf, file, kind, true, false},
#define TENSOR(traits, hf, file, kind) {traits, hf, file, kind, false, false},
#define READ(traits, hf, file, kind) {traits, hf, file, kind, false, true},
#include "frontends/formats/weights/gguf_table.def"
};

static const sbp_gguf_family families[] = {
#define FAMILY(id, architecture, model_type, class_name, layers, tokens, traits)                             \
    {architecture, model_type, class_name, layers, ALL | traits},
#include "frontends/formats/weights/gguf_table.def"
};

static const sbp_gguf_key keys[] = {
#define KEY(traits, key, field, kind, required) {traits, key, field, SBP_GGUF_KEY_##kind, required},
#include "frontends/formats/weights/gguf_table.def"
};

static const sbp_gguf_constant constants[] = {
#define BY_CODE(model_type, field, value, said) {model_type, field, value, said},
#include "frontends/formats/weights/gguf_table.def"
};

static const struct {
    sbp_gguf_traits traits;
    const char *word;
} activations[] = {
#define ACTIVATION(traits, word) {traits, word},
#include "frontends/formats/weights/gguf_table.def"
};

enum { MOST_DEFAULTS = 8 };

static const struct {
    const char *model_type;
    struct {
        const char *field;
        double value;
    } of[MOST_DEFAULTS];
} defaults[] = {
#define DEFAULTS(model_type, ...) {model_type, {__VA_ARGS__}},
#include "frontends/formats/weights/gguf_table.def"
};

const sbp_gguf_family *sbp_gguf_family_of(sbp_gguf_family_id id) {
    return &families[id];
}

const sbp_gguf_key *sbp_gguf_find_key(sbp_gguf_family_id family, const char *key) {
    for (const sbp_gguf_key *row = keys; row < keys + SBP_COUNT(keys); row++)
        if (sbp_gguf_has(family, row->traits) && strcmp(row->key, key) == 0)
            return row;
    return NULL;
}

const sbp_gguf_key *sbp_gguf_next_key(sbp_gguf_family_id family, const sbp_gguf_key *row) {
    for (row = row ? row + 1 : keys; row < keys + SBP_COUNT(keys); row++)
        if (sbp_gguf_has(family, row->traits) && sbp_gguf_find_key(family, row->key) == row)
            return row;
    return NULL;
}

const sbp_gguf_constant *sbp_gguf_next_constant(sbp_gguf_family_id family, const sbp_gguf_constant *row) {
    for (row = row ? row + 1 : constants; row < constants + SBP_COUNT(constants); row++)
        if (strcmp(row->model_type, families[family].model_type) == 0)
            return row;
    return NULL;
}

const char *sbp_gguf_activation(sbp_gguf_family_id family) {
    int k = 0;
    while (!sbp_gguf_has(family, activations[k].traits)) /* the last row is of all */
        k++;
    return activations[k].word;
}

double sbp_gguf_default(sbp_gguf_family_id family, const char *field) {
    for (int i = 0; i < SBP_COUNT(defaults); i++) {
        if (defaults[i].model_type && strcmp(defaults[i].model_type, families[family].model_type) != 0)
            continue;
        for (int k = 0; k < MOST_DEFAULTS && defaults[i].of[k].field; k++)
            if (strcmp(defaults[i].of[k].field, field) == 0)
                return defaults[i].of[k].value;
    }
    return NAN;
}

int64_t sbp_gguf_query_scalar(const sbp_gguf_facts *facts, int64_t hidden, int64_t head_dim) {
    if (facts->family != SBP_GGUF_GEMMA3)
        return -1;
    return facts->layers == 62 ? hidden / facts->heads : head_dim;
}

double sbp_gguf_to_file(sbp_gguf_value_rule rule, double value) {
    return rule == SBP_GGUF_PLUS_ONE ? value + 1 : rule == SBP_GGUF_MINUS_EXP ? -exp(value) : value;
}

double sbp_gguf_to_hf(sbp_gguf_value_rule rule, double value) {
    return rule == SBP_GGUF_PLUS_ONE ? value - 1 : rule == SBP_GGUF_MINUS_EXP ? log(-value) : value;
}

/* ---- shapes ------------------------------------------------------------------------------------------ */

typedef struct extent {
    int32_t rank;
    int64_t dim[SBP_MAX_RANK];
} extent;

typedef struct maker {
    sbp_arena *arena;
    sbp_diag *diag;
    const char *path;
    const sbp_gguf_facts *facts;
    sbp_gguf_side had;
    sbp_gguf_shape shape;
    void *user;
    sbp_gguf_piece *pieces;
    int32_t count, capacity;
} maker;

/* One tensor's rows: what they have in common. */
typedef struct job {
    maker *m;
    sbp_gguf_piece piece; /* of which loops and bases are set last */
    extent hf, file;
    int64_t number; /* of a stream */
} job;

static sbp_status refuse(const job *j) {
    bool file = j->m->had == SBP_GGUF_FILE;
    const extent *s = file ? &j->file : &j->hf;
    char text[200] = "";
    size_t at = 0;
    for (int32_t d = 0; d < s->rank && at < sizeof text; d++)
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%lld", d ? ", " : "", (long long)s->dim[d]);
    return sbp_fail(j->m->diag, SBP_INPUT,
                    "%s: tensor '%s' is [%s], which is no shape of it in a model of type %s", j->m->path,
                    file ? j->piece.file : j->piece.hf, text, families[j->m->facts->family].model_type);
}

static bool double_axis(extent *s, int32_t axis) {
    return sbp_mul_i64(s->dim[axis], 2, &s->dim[axis]);
}

static bool halve_axis(extent *s, int32_t axis) {
    bool even = s->dim[axis] % 2 == 0;
    s->dim[axis] /= 2;
    return even;
}

static void swap_axes(extent *s, int32_t a, int32_t b) {
    int64_t dim = s->dim[a];
    s->dim[a] = s->dim[b];
    s->dim[b] = dim;
}

/* The part of [heads * (fixed + value), m] that the file has as [heads, m, fixed] or [heads, value, m]. */
static bool latent_shape(const sbp_gguf_facts *f, bool to_file, bool keys_part, const extent *from,
                         extent *to) {
    int64_t head = f->fixed + f->value, own = keys_part ? f->fixed : f->value;
    if (f->heads < 1 || f->fixed < 1 || f->value < 1 || from->rank != (to_file ? 2 : 3))
        return false;
    int64_t m = to_file ? from->dim[1] : from->dim[keys_part ? 1 : 2];
    if (to_file)
        *to = keys_part ? (extent){3, {f->heads, m, own}} : (extent){3, {f->heads, own, m}};
    else
        *to = (extent){2, {f->heads * head, m}};
    return to_file ? from->dim[0] == f->heads * head
                   : from->dim[0] == f->heads && from->dim[keys_part ? 2 : 1] == own;
}

/* Rows of the tensors that Qwen3-Next has as one, by key heads, and of the parts that the file has of it. */
static bool grouped_shape(const sbp_gguf_facts *f, bool to_file, bool z, const extent *from, extent *to) {
    int64_t values = f->value_heads * f->value_size, keys_rows = f->key_heads * f->key_size;
    int64_t all = 2 * keys_rows + 2 * values, part = z ? values : 2 * keys_rows + values;
    if (from->rank != 2 || f->key_heads < 1 || values < 1 || keys_rows < 1 ||
        f->value_heads % f->key_heads != 0)
        return false;
    *to = (extent){2, {to_file ? part : all, from->dim[1]}};
    return from->dim[0] == (to_file ? all : part);
}

/* The shape of the other side; false: it cannot be. */
static bool other_shape(const sbp_gguf_facts *f, kind k, bool to_file, const extent *from, extent *to) {
    *to = *from;
    int32_t last = from->rank - 1;
    switch (k) {
    case FIRST_HALF:
    case SECOND_HALF:
        return last >= 1 && (to_file ? halve_axis(to, last - 1) : double_axis(to, last - 1));
    case FIRST_OF_FILE:
    case SECOND_OF_FILE:
        return last >= 1 && (to_file ? double_axis(to, last - 1) : halve_axis(to, last - 1));
    case EVEN_ROWS:
    case ODD_ROWS:
        return last == 2 && (to_file ? halve_axis(to, 1) : double_axis(to, 1));
    case EVEN_OF_BIAS:
    case ODD_OF_BIAS:
        return last == 1 && (to_file ? halve_axis(to, 1) : double_axis(to, 1));
    case EVEN_COLUMNS:
    case ODD_COLUMNS:
    case FIRST_COLUMNS:
    case SECOND_COLUMNS:
        if (last != 2)
            return false;
        swap_axes(to, 1, 2);
        return to_file ? halve_axis(to, 1) : double_axis(to, 2);
    case OF_STREAMS:
        if (from->rank != (to_file ? 2 : 3) || (!to_file && from->dim[0] != f->streams - 1))
            return false;
        *to = to_file ? (extent){3, {f->streams - 1, from->dim[0], from->dim[1]}}
                      : (extent){2, {from->dim[1], from->dim[2]}};
        return true;
    case TRANSPOSED:
        if (last < 1)
            return false;
        swap_axes(to, last, last - 1);
        return true;
    case LATENT_KEYS:
    case LATENT_VALUES:
        return latent_shape(f, to_file, k == LATENT_KEYS, from, to);
    case GROUPED_QKV:
    case GROUPED_Z:
        return grouped_shape(f, to_file, k == GROUPED_Z, from, to);
    case TAPS:
    case DELTA_TAPS:
        if (from->rank != (to_file ? 3 : 2) || (to_file && from->dim[1] != 1))
            return false;
        *to = to_file ? (extent){2, {from->dim[0], from->dim[2]}}
                      : (extent){3, {from->dim[0], 1, from->dim[1]}};
        return true;
    case SCALAR:
        *to = to_file ? (extent){1, {1}} : (extent){0, {0}};
        return from->rank == (to_file ? 0 : 1) && (to_file || from->dim[0] == 1);
    case COLUMN:
    case DECAY_COLUMN:
        if (from->rank != (to_file ? 1 : 2) || (!to_file && from->dim[1] != 1))
            return false;
        *to = to_file ? (extent){2, {from->dim[0], 1}} : (extent){1, {from->dim[0]}};
        return true;
    case GROUPS:
        if (f->groups < 1 || from->rank != (to_file ? 1 : 2))
            return false;
        *to = to_file ? (extent){2, {f->groups, from->dim[0] / f->groups}}
                      : (extent){1, {from->dim[0] * from->dim[1]}};
        return to_file ? from->dim[0] % f->groups == 0 : from->dim[0] == f->groups;
    default:
        return true;
    }
}

/* Whether it is one, with so few elements that no stride overflows. */
static bool is_sane(const extent *s) {
    int64_t elems = 1;
    bool sane = s->rank >= 0 && s->rank <= SBP_MAX_RANK;
    for (int32_t d = 0; sane && d < s->rank; d++)
        sane = s->dim[d] >= 1 && sbp_mul_i64(elems, s->dim[d], &elems) && elems <= INT64_MAX / 8;
    return sane;
}

static int64_t elems_of(const extent *s) {
    int64_t n = 1;
    for (int32_t d = 0; d < s->rank; d++)
        n *= s->dim[d];
    return n;
}

/* Elements of one entry of an axis. */
static int64_t stride_of(const extent *s, int32_t axis) {
    int64_t n = 1;
    for (int32_t d = axis + 1; d < s->rank; d++)
        n *= s->dim[d];
    return n;
}

/* ---- nests ------------------------------------------------------------------------------------------- */

/* Adds a piece of these loops. */
static void add(job *j, int64_t hf_base, int64_t file_base, const sbp_gguf_loop *loops, int32_t count) {
    sbp_gguf_piece p = j->piece;
    p.hf_rank = j->hf.rank;
    p.file_rank = j->file.rank;
    memcpy(p.hf_dim, j->hf.dim, sizeof p.hf_dim);
    memcpy(p.file_dim, j->file.dim, sizeof p.file_dim);
    p.hf_base = hf_base;
    p.file_base = file_base;
    memcpy(p.loops, loops, (size_t)count * sizeof *loops);
    p.loop_count = count;
    SBP_PUSH(j->m->arena, j->m->pieces, j->m->count, j->m->capacity, p);
}

static void add_run(job *j, int64_t hf_base, int64_t file_base, int64_t elems) {
    add(j, hf_base, file_base, (const sbp_gguf_loop[]){{elems, 1, 1}}, 1);
}

/* `outer` times a run of `length`, so far from each other. */
static void add_runs(job *j, int64_t hf_base, int64_t file_base, sbp_gguf_loop outer, int64_t length) {
    add(j, hf_base, file_base, (const sbp_gguf_loop[]){outer, {length, 1, 1}}, 2);
}

/* Rows in `a` blocks of `b` parts of `each` elements; the file has the parts outside: [b, a, each]. */
static void add_swapped(job *j, int64_t hf_base, int64_t file_base, int64_t a, int64_t b, int64_t each) {
    add(j, hf_base, file_base,
        (const sbp_gguf_loop[]){{a, b * each, each}, {b, each, a * each}, {each, 1, 1}}, 3);
}

static bool permute_heads(job *j, int64_t heads) {
    int64_t n = j->hf.dim[0], row = stride_of(&j->hf, 0), half = heads > 0 ? n / heads / 2 : 0;
    if (half < 1 || n != heads * 2 * half)
        return false;
    add(j, 0, 0,
        (const sbp_gguf_loop[]){
            {heads, 2 * half * row, 2 * half * row}, {2, half * row, row}, {half, row, 2 * row}, {row, 1, 1}},
        4);
    return true;
}

/* part: which; the last axis but one is in halves on the side that has both. */
static void add_half(job *j, bool of_file, int64_t part) {
    const extent *own = of_file ? &j->hf : &j->file;
    int64_t length = stride_of(own, own->rank - 3), outer = elems_of(own) / length;
    if (of_file)
        add_runs(j, 0, part * length, (sbp_gguf_loop){outer, length, 2 * length}, length);
    else
        add_runs(j, part * length, 0, (sbp_gguf_loop){outer, 2 * length, length}, length);
}

static bool add_latent(job *j, bool keys_part) {
    const sbp_gguf_facts *f = j->m->facts;
    int64_t m = j->hf.dim[1], head = (f->fixed + f->value) * m, own = (keys_part ? f->fixed : f->value) * m;
    if (keys_part)
        add(j, 0, 0, (const sbp_gguf_loop[]){{f->heads, head, own}, {f->fixed, m, 1}, {m, 1, f->fixed}}, 3);
    else
        add_runs(j, f->fixed * m, 0, (sbp_gguf_loop){f->heads, head, own}, own);
    return true;
}

static void add_grouped(job *j, bool z) {
    const sbp_gguf_facts *f = j->m->facts;
    int64_t m = j->hf.dim[1], k = f->key_size * m, v = f->value_heads / f->key_heads * f->value_size * m;
    int64_t head = 2 * k + 2 * v, n = f->key_heads;
    if (z) {
        add_runs(j, 2 * k + v, 0, (sbp_gguf_loop){n, head, v}, v);
        return;
    }
    add_runs(j, 0, 0, (sbp_gguf_loop){n, head, k}, k);
    add_runs(j, k, n * k, (sbp_gguf_loop){n, head, k}, k);
    add_runs(j, 2 * k, 2 * n * k, (sbp_gguf_loop){n, head, v}, v);
}

/* Value heads of `size` rows, behind rows of queries and keys where there are any. */
static bool add_delta(job *j, int64_t before, int64_t size) {
    const sbp_gguf_facts *f = j->m->facts;
    int64_t row = stride_of(&j->hf, 0), each = f->key_heads > 0 ? f->value_heads / f->key_heads : 0;
    if (each < 1 || size < 1 || f->value_heads % f->key_heads != 0 ||
        j->hf.dim[0] != before + f->value_heads * size)
        return false;
    if (before > 0)
        add_run(j, 0, 0, before * row);
    add_swapped(j, before * row, before * row, f->key_heads, each, size * row);
    return true;
}

static bool add_delta_columns(job *j) {
    const sbp_gguf_facts *f = j->m->facts;
    int64_t columns = f->value_heads * f->value_size,
            each = f->key_heads > 0 ? f->value_heads / f->key_heads : 0, size = f->value_size;
    if (each < 1 || j->hf.rank != 2 || j->hf.dim[1] != columns || f->value_heads % f->key_heads != 0)
        return false;
    add(j, 0, 0,
        (const sbp_gguf_loop[]){{j->hf.dim[0], columns, columns},
                                {f->key_heads, each * size, size},
                                {each, size, f->key_heads * size},
                                {size, 1, 1}},
        4);
    return true;
}

static bool add_qkv_of_heads(job *j) {
    int64_t n = j->hf.dim[0], heads = j->m->facts->heads, row = stride_of(&j->hf, 0);
    if (heads < 1 || n % (3 * heads) != 0)
        return false;
    add_swapped(j, 0, 0, heads, 3, n / heads / 3 * row);
    return true;
}

/* Every second row or column of [e, 2 n, m] and [e, m, 2 n]. */
static void add_every_other(job *j, kind k) {
    int64_t e = j->file.dim[0], n = j->file.dim[1], m = j->file.rank > 2 ? j->file.dim[2] : 1;
    int64_t odd = k == ODD_ROWS || k == ODD_COLUMNS || k == ODD_OF_BIAS;
    if (k == EVEN_COLUMNS || k == ODD_COLUMNS)
        add(j, odd, 0, (const sbp_gguf_loop[]){{e, 2 * n * m, n * m}, {m, 2 * n, 1}, {n, 2, m}}, 3);
    else
        add(j, odd * m, 0, (const sbp_gguf_loop[]){{e, 2 * n * m, n * m}, {n, 2 * m, m}, {m, 1, 1}}, 3);
}

/* Half of the columns of [e, m, 2 n]. */
static void add_half_of_columns(job *j, bool second) {
    int64_t e = j->file.dim[0], n = j->file.dim[1], m = j->file.dim[2];
    add(j, second ? n : 0, 0, (const sbp_gguf_loop[]){{e, 2 * n * m, n * m}, {m, 2 * n, 1}, {n, 1, m}}, 3);
}

static void add_transposed(job *j) {
    int32_t last = j->hf.rank - 1;
    int64_t a = j->hf.dim[last - 1], b = j->hf.dim[last], outer = elems_of(&j->hf) / (a * b);
    add(j, 0, 0, (const sbp_gguf_loop[]){{outer, a * b, a * b}, {a, b, 1}, {b, 1, a}}, 3);
}

static bool make_pieces(job *j, kind k) {
    const sbp_gguf_facts *f = j->m->facts;
    int64_t keys_rows = 2 * f->key_heads * f->key_size;
    switch (k) {
    case QUERIES:
        return permute_heads(j, f->heads);
    case KEYS:
        return permute_heads(j, f->kv_heads);
    case QKV_OF_HEADS:
        return add_qkv_of_heads(j);
    case FIRST_HALF:
    case SECOND_HALF:
        add_half(j, false, k == SECOND_HALF);
        return true;
    case FIRST_OF_FILE:
    case SECOND_OF_FILE:
        add_half(j, true, k == SECOND_OF_FILE);
        return true;
    case EVEN_ROWS:
    case ODD_ROWS:
    case EVEN_COLUMNS:
    case ODD_COLUMNS:
    case EVEN_OF_BIAS:
    case ODD_OF_BIAS:
        add_every_other(j, k);
        return true;
    case FIRST_COLUMNS:
    case SECOND_COLUMNS:
        add_half_of_columns(j, k == SECOND_COLUMNS);
        return true;
    case OF_STREAMS:
        add_run(j, 0, j->number * elems_of(&j->hf), elems_of(&j->hf));
        return true;
    case TRANSPOSED:
        add_transposed(j);
        return true;
    case LATENT_KEYS:
    case LATENT_VALUES:
        return add_latent(j, k == LATENT_KEYS);
    case GROUPED_QKV:
    case GROUPED_Z:
        add_grouped(j, k == GROUPED_Z);
        return true;
    case DELTA_QKV:
    case DELTA_TAPS:
        return add_delta(j, keys_rows, f->value_size);
    case DELTA_ROWS:
        return add_delta(j, 0, f->value_size);
    case DELTA_HEADS:
    case DELTA_DECAY:
        return add_delta(j, 0, 1);
    case DELTA_COLUMNS:
        return add_delta_columns(j);
    default:
        add_run(j, 0, 0, elems_of(&j->hf));
        return true;
    }
}

/* ---- rows -------------------------------------------------------------------------------------------- */

/* The kind of a row in a family: what that does not have is as it is. */
static kind kind_of(const struct row *row, sbp_gguf_family_id family) {
    sbp_gguf_traits needed = row->kind == NORM                           ? SHIFTED
                             : row->kind == QUERIES || row->kind == KEYS ? INTERLEAVED
                                                                         : ALL;
    return sbp_gguf_has(family, needed) ? row->kind : AS_IS;
}

static sbp_gguf_value_rule rule_of(kind k) {
    return k == NORM                                             ? SBP_GGUF_PLUS_ONE
           : k == DECAY || k == DECAY_COLUMN || k == DELTA_DECAY ? SBP_GGUF_MINUS_EXP
                                                                 : SBP_GGUF_AS_IS;
}

/* Whether a row before this one has the same tensor of the file under another name. */
static bool is_other_spelling(const maker *m, const struct row *row) {
    for (const struct row *r = rows; r < row; r++)
        if (sbp_gguf_has(m->facts->family, r->traits) && strcmp(r->file, row->file) == 0 &&
            r->parts == row->parts && strcmp(r->hf, row->hf) != 0 &&
            !(r->kind == FIRST_OF_FILE && row->kind == SECOND_OF_FILE))
            return true;
    return false;
}

/* Whether TURNED_EXPERTS of a directory are [out, in], as transformers 5 saves them, and not as they are
 * published: what gates with ups and what downs are is never both the same either way. */
static bool is_straight(const maker *m, const char *hf) {
    static const char mark[] = ".mlp.experts.";
    const sbp_gguf_facts *f = m->facts;
    const char *at = strstr(hf, mark);
    extent both, down;
    if (m->had != SBP_GGUF_HF || !at || !sbp_gguf_has(f->family, TURNED_EXPERTS))
        return false;
    int n = (int)(at - hf) + (int)strlen(mark);
    return m->shape(m->user, sbp_arena_printf(m->arena, "%.*sgate_up_proj", n, hf), &both.rank, both.dim) &&
           m->shape(m->user, sbp_arena_printf(m->arena, "%.*sdown_proj", n, hf), &down.rank, down.dim) &&
           both.rank == 3 && down.rank == 3 && both.dim[1] == 2 * f->expert_inner &&
           both.dim[2] == f->hidden && down.dim[1] == f->hidden && down.dim[2] == f->expert_inner;
}

static sbp_status make_tensor(maker *m, const struct row *row, const char *hf, const char *file,
                              int64_t number) {
    kind k = kind_of(row, m->facts->family);
    if (is_straight(m, hf))
        k = k == FIRST_COLUMNS ? FIRST_HALF : k == SECOND_COLUMNS ? SECOND_HALF : k == TRANSPOSED ? AS_IS : k;
    job j = {.m = m, .piece = {.hf = hf, .file = file, .rule = rule_of(k)}, .number = number};
    bool to_file = m->had == SBP_GGUF_HF;
    extent *own = to_file ? &j.hf : &j.file, *other = to_file ? &j.file : &j.hf;
    if (!m->shape(m->user, to_file ? hf : file, &own->rank, own->dim))
        return SBP_OK;
    j.piece.other_spelling = is_other_spelling(m, row);
    bool fits =
        is_sane(own) && other_shape(m->facts, k, to_file, own, other) && is_sane(other) && make_pieces(&j, k);
    return fits ? SBP_OK : refuse(&j);
}

static sbp_status make_streams(maker *m, const struct row *row) {
    int before = (int)strcspn(row->hf, "#");
    for (int64_t i = 0; i < m->facts->streams - 1; i++)
        SBP_TRY(make_tensor(
            m, row,
            sbp_arena_printf(m->arena, "%.*s%lld%s", before, row->hf, (long long)i, row->hf + before + 1),
            row->file, i));
    return SBP_OK;
}

/* A row's tensors of a layer, of -1: of none. */
static sbp_status make_row(maker *m, const struct row *row, int64_t layer) {
    static const char *const parts[] = {".weight", ".bias"};
    const char *prefix = families[m->facts->family].layers;
    if (row->kind == OF_STREAMS)
        return make_streams(m, row);
    for (int k = 0; k < (row->parts ? 2 : 1); k++) {
        const char *part = row->parts ? parts[k] : "";
        const char *hf =
            layer < 0 ? sbp_arena_printf(m->arena, "%s%s", row->hf, part)
                      : sbp_arena_printf(m->arena, "%s%lld.%s%s", prefix, (long long)layer, row->hf, part);
        const char *file = layer < 0 ? sbp_arena_printf(m->arena, "%s%s", row->file, part)
                                     : sbp_arena_printf(m->arena, "blk.%lld.%s%s", (long long)layer,
                                                        row->file + strlen("blk."), part);
        SBP_TRY(make_tensor(m, row, hf, file, 0));
    }
    return SBP_OK;
}

sbp_status sbp_gguf_pieces(sbp_arena *arena, sbp_diag *diag, const char *path, const sbp_gguf_facts *facts,
                           sbp_gguf_side had, sbp_gguf_shape shape, void *user, sbp_gguf_piece **out,
                           int32_t *count) {
    maker m = {
        .arena = arena, .diag = diag, .path = path, .facts = facts, .had = had, .shape = shape, .user = user};
    for (int64_t layer = -1; layer < facts->layers; layer++)
        for (const struct row *row = rows; row < rows + SBP_COUNT(rows); row++)
            if (sbp_gguf_has(facts->family, row->traits) &&
                (strncmp(row->file, "blk.", 4) == 0) == (layer >= 0) &&
                !(row->only_read && had == SBP_GGUF_HF))
                SBP_TRY(make_row(&m, row, layer));
    *out = m.pieces;
    *count = m.count;
    return SBP_OK;
}
