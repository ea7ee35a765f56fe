/* pack_columns.c: what a program wants to know of each row, of each group of rows, and of a whole step; all
 * by name (pack.h). */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ir/graph/prepare.h"
#include "ir/program/routed.h"
#include "runtime/data/groups.h"
#include "runtime/data/pack.h"
#include "runtime/data/prepared.h"
#include "runtime/data/routed.h"

typedef enum source {
    TOK,
    POS,
    FIRST,
    SHARED_END,
    OWN,
    FIRST_IN, /* first of what is in the row's part of its document, of N positions: "first.in.N" */
    OWN_IN,
    PLACE,
    LABEL,
    WEIGHT,
    PREDICTED, /* 1 where there is a next token */
    COPIES,    /* how many documents have the row */
    DOC,
    UNIT,
    GROUP,
    SAMPLE,
    TOK_BELOW,  /* the token, 0 where it is not below the name's number */
    DOC_LABELS, /* counted labels of the row's document */
    IN_PART,    /* 1 in documents of the part */
    HAS,        /* 1 in documents that have the column or number */
    ONE_OF,     /* 1 in documents that have one of several */
    OF_ROWS,    /* a column that is about rows, not labels: token 0 has what is of the last row */
    ROUTED,     /* an expert that the row goes to; -1: the router chooses */
    COLUMN_OF_DATA,
    OF_PART /* per group: the number of its document of that part */
} source;

/* By the columns of ir/program/contract.def: packed ones have a source each, what rows of data carry is a
 * column or number of the data. */
#define PACKED(id) id
#define GIVEN(id) COLUMN_OF_DATA
static const source sources[SBP_DATA_COUNT] = {
#define COLUMN(id, name, dtype, from, what) from(id),
#include "ir/program/contract.def"
};
#undef PACKED
#undef GIVEN

static bool begins(const char *name, const char *prefix) {
    return strncmp(name, prefix, strlen(prefix)) == 0;
}

/* The column of the contract that is called so; SBP_DATA_COUNT: none. */
static int column_called(const char *name) {
    int c = 0;
    while (c < SBP_DATA_COUNT && strcmp(sbp_data_columns[c].name, name) != 0)
        c++;
    return c;
}

static source source_of(const char *name, bool by_group) {
    int column = column_called(name);
    if (by_group)
        return OF_PART;
    if (column == SBP_DATA_OLD_VALUES)
        return OF_ROWS;
    if (column < SBP_DATA_COUNT)
        return sources[column];
    return begins(name, SBP_ROUTED_PREFIX)                     ? ROUTED
           : begins(name, SBP_IN_PREFIX)                       ? IN_PART
           : begins(name, SBP_HAS_PREFIX)                      ? HAS
           : begins(name, SBP_ONE_OF_PREFIX)                   ? ONE_OF
           : sbp_column_number(name, SBP_TOK_BELOW_PREFIX) > 0 ? TOK_BELOW
           : sbp_column_number(name, SBP_FIRST_IN_PREFIX) > 0  ? FIRST_IN
           : sbp_column_number(name, SBP_OWN_IN_PREFIX) > 0    ? OWN_IN
                                                               : COLUMN_OF_DATA;
}

/* Which column of @prepare is called so; -1: none. */
static int32_t prepared_place(const sbp_prepare *prepare, const char *name) {
    for (int32_t i = 0; prepare && i < prepare->column_count; i++)
        if (strcmp(prepare->columns[i], name) == 0)
            return i;
    return -1;
}

static sbp_dtype dtype_of(const char *name) {
    int column = column_called(name);
    return column < SBP_DATA_COUNT ? sbp_data_columns[column].dtype
           : begins(name, SBP_ROUTED_PREFIX) || sbp_column_names_rows(name) ||
                   sbp_column_number(name, SBP_TOK_BELOW_PREFIX) > 0
               ? SBP_I32
               : SBP_F64;
}

static bool want(sbp_packer *p, const char *name, bool by_group) {
    for (int32_t c = 0; c < p->column_count; c++)
        if (strcmp(p->columns[c].name, name) == 0)
            return true;
    if (p->column_count == SBP_PACK_COLUMNS)
        return false;
    p->by_group[p->column_count] = by_group;
    p->columns[p->column_count++] = (sbp_column){.name = name, .dtype = dtype_of(name)};
    return true;
}

void sbp_packer_want(sbp_packer *p, const sbp_program *program) {
    if (!program)
        for (int i = 0; i < SBP_DATA_COUNT; i++) {
            if (sbp_data_columns[i].packed)
                want(p, sbp_data_columns[i].name, false);
        }
    else
        want(p, sbp_data_columns[SBP_DATA_FIRST].name, false); /* chunk tables always need it */
    for (int32_t i = 0; program && i < program->row_input_count; i++) {
        const sbp_row_input *input = &program->row_inputs[i];
        bool by_group = program->buffers[input->buffer].rows.c[SBP_S] != 0;
        if (input->kind == SBP_ROW_COLUMN)
            p->too_many |= !want(p, input->column, by_group);
        p->units |= strcmp(input->column, "unit") == 0;
        p->rollouts |= strcmp(input->column, "group") == 0;
        p->groups |= p->rollouts || strcmp(input->column, "unit") == 0 || strcmp(input->column, "doc") == 0;
    }
}

/* ---- numbers of the data by name -------------------------------------------------------------------- */

static int32_t find(const char *const *names, int32_t count, const char *name, size_t length) {
    for (int32_t i = 0; i < count; i++)
        if (strlen(names[i]) == length && memcmp(names[i], name, length) == 0)
            return i;
    return -1;
}

/* A document's column or number of this name, as one number per token; all 0 where it has none. */
typedef struct beside {
    int32_t column, number; /* of the data; -1: no such */
} beside;

static beside beside_of(const sbp_dataset *data, const char *name) {
    size_t length = strlen(name);
    return (beside){find(data->column_names, data->column_count, name, length),
                    find(data->number_names, data->number_count, name, length)};
}

static bool has_column(const sbp_dataset *data, const sbp_doc *doc, int32_t column) {
    return column >= 0 && ((doc->columns | data->added_columns) >> column & 1);
}

static bool has_number(const sbp_dataset *data, const sbp_doc *doc, int32_t number) {
    return number >= 0 && ((doc->numbers | data->added_numbers) >> number & 1);
}

/* ---- columns ---------------------------------------------------------------------------------------- */

typedef struct filling {
    const sbp_dataset *data;
    const sbp_micro_batch *part;
    const char *name;
    source source;
} filling;

/* Where a document is in its micro-batch. */
typedef struct counters {
    int64_t row, unit, group;
    int64_t first;  /* row of its token 0, which may be another document's */
    int32_t shared; /* its rows from there on that are */
    int64_t from;   /* the first of its rows that is wanted */
} counters;

/* What a document shares, and with which. */
static void count_shared(counters *at, const sbp_micro_batch *part, int64_t k) {
    at->shared = part->shared ? part->shared[k] : 0;
    at->from = at->shared;
    if (at->shared == 0)
        at->first = at->row;
}

/* The row of data that a document is of, counted like data->rows. */
static int64_t row_of(const sbp_dataset *data, int64_t doc) {
    int64_t low = 0, high = data->row_count;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (data->rows[middle] <= doc)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* N of a column whose name ends in it; 0: of another. */
static int64_t number_of(const filling *f) {
    return f->source == TOK_BELOW  ? sbp_column_number(f->name, SBP_TOK_BELOW_PREFIX)
           : f->source == FIRST_IN ? sbp_column_number(f->name, SBP_FIRST_IN_PREFIX)
           : f->source == OWN_IN   ? sbp_column_number(f->name, SBP_OWN_IN_PREFIX)
                                   : 0;
}

/* One document of a column of integers; out: of its token 0, as if it shared nothing. */
static void fill_integers(const filling *f, const sbp_doc *doc, int64_t k, const counters *at, int32_t *out) {
    const int32_t *tokens = f->data->tokens + doc->first, *labels = f->data->labels + doc->first;
    const int64_t number = number_of(f);
    for (int64_t i = at->from; i < doc->count; i++) {
        bool last = i + 1 == doc->count;
        switch (f->source) {
        case TOK:
            out[i] = tokens[i];
            break;
        case TOK_BELOW:
            out[i] = tokens[i] < number ? tokens[i] : 0;
            break;
        case POS:
            out[i] = (int32_t)i;
            break;
        case LABEL: /* of a position that does not count: the token that follows */
            out[i] = last ? 0 : labels[i + 1] >= 0 ? labels[i + 1] : tokens[i + 1];
            break;
        case DOC:
            out[i] = (int32_t)k;
            break;
        case UNIT:
            out[i] = (int32_t)at->unit;
            break;
        case GROUP:
            out[i] = (int32_t)at->group;
            break;
        case SAMPLE:
            out[i] = (int32_t)f->part->docs[k];
            break;
        case FIRST:
            out[i] = (int32_t)at->first;
            break;
        case SHARED_END:
            out[i] = (int32_t)(at->first + at->shared);
            break;
        case FIRST_IN:
            out[i] = (int32_t)(at->first + sbp_min_i64(i - i % number, at->shared));
            break;
        case OWN_IN:
            out[i] = (int32_t)(at->row + sbp_max_i64(i - i % number - at->shared, 0));
            break;
        case PLACE:
            out[i] = (int32_t)(i < at->shared ? at->first + i : at->row + i - at->shared);
            break;
        default: /* own */
            out[i] = (int32_t)at->row;
        }
    }
}

/* Experts are about the token itself, not about its label. */
static void fill_routed(const filling *f, const sbp_doc *doc, const counters *at, int32_t *out) {
    const beside b = beside_of(f->data, SBP_ROUTED);
    const double *places =
        has_column(f->data, doc, b.column) ? f->data->columns[b.column] + doc->first : NULL;
    sbp_routed r = {0};
    (void)sbp_routed_of(f->name, &r);
    for (int64_t i = at->from; i < doc->count; i++)
        out[i] = !places || isnan(places[i])
                     ? -1
                     : f->data->routed[((int64_t)places[i] * f->data->routed_layers + r.layer) *
                                           f->data->routed_chosen +
                                       r.slot];
}

static void fill_weights(const filling *f, const sbp_doc *doc, const counters *at, float *out) {
    const int32_t *labels = f->data->labels + doc->first;
    for (int64_t i = at->from; i < doc->count && f->source == COPIES; i++)
        out[i] = 1;
    if (f->source == COPIES)
        return;
    const beside weight = beside_of(f->data, sbp_data_columns[SBP_DATA_WEIGHT].name);
    const double *values = f->source == WEIGHT && has_column(f->data, doc, weight.column)
                               ? f->data->columns[weight.column] + doc->first
                               : NULL;
    for (int64_t i = at->from; i < doc->count; i++) {
        bool counts = i + 1 < doc->count && (labels[i + 1] >= 0 || f->source == PREDICTED);
        out[i] = !counts ? 0 : values ? (float)values[i + 1] : 1;
    }
}

/* Whether a document has one of the columns or numbers "A.B". */
static bool has_one_of(const sbp_dataset *data, const sbp_doc *doc, const char *names) {
    for (const char *at = names; *at;) {
        size_t length = strcspn(at, ".");
        if (has_column(data, doc, find(data->column_names, data->column_count, at, length)) ||
            has_number(data, doc, find(data->number_names, data->number_count, at, length)))
            return true;
        at += length + (at[length] == '.');
    }
    return false;
}

/* A row's number is about the token that is its label: the next one. NaN stands for none. */
static void fill_doubles(const filling *f, const sbp_doc *doc, const counters *at, double *out) {
    double all = 0;
    const double *values = NULL, *there = NULL;
    beside b = beside_of(f->data, f->source == HAS ? f->name + strlen(SBP_HAS_PREFIX) : f->name);
    if (f->source == DOC_LABELS)
        all = (double)doc->labels;
    else if (f->source == IN_PART)
        all = strcmp(sbp_doc_part(doc), f->name + strlen(SBP_IN_PREFIX)) == 0;
    else if (f->source == HAS && has_column(f->data, doc, b.column))
        there = f->data->columns[b.column] + doc->first;
    else if (f->source == HAS)
        all = has_number(f->data, doc, b.number);
    else if (f->source == ONE_OF)
        all = has_one_of(f->data, doc, f->name + strlen(SBP_ONE_OF_PREFIX));
    else if (has_column(f->data, doc, b.column))
        values = f->data->columns[b.column] + doc->first;
    else if (has_number(f->data, doc, b.number))
        all = f->data->numbers[b.number][doc - f->data->docs];
    for (int64_t i = at->from; i < doc->count; i++) {
        bool last = i + 1 == doc->count;
        if (there)
            out[i] = last || !isnan(there[i + 1]);
        else if (last && values)
            out[i] = f->source == OF_ROWS ? values[0] : 0;
        else
            out[i] = !values ? all : isnan(values[i + 1]) ? 0 : values[i + 1];
    }
}

/* Whether document k of the micro-batch is the first of its row of data. */
static bool begins_unit(const filling *f, int64_t k) {
    const sbp_doc *docs = f->data->docs;
    return k == 0 || docs[f->part->docs[k]].row != docs[f->part->docs[k - 1]].row;
}

/* "ref_logps_sum.chosen" */
static void fill_group(const filling *f, double *out) {
    const char *dot = strrchr(f->name, '.');
    size_t length = dot ? (size_t)(dot - f->name) : strlen(f->name);
    int32_t number = find(f->data->number_names, f->data->number_count, f->name, length);
    for (int64_t k = 0, unit = -1; k < f->part->count; k++) {
        const sbp_doc *doc = &f->data->docs[f->part->docs[k]];
        if (!f->part->by_unit || begins_unit(f, k))
            out[++unit] = 0;
        bool is_part = !dot || strcmp(sbp_doc_part(doc), dot + 1) == 0;
        if (is_part && has_number(f->data, doc, number))
            out[unit] = f->data->numbers[number][doc - f->data->docs];
    }
}

/* One document; out: of its token 0, as if it shared nothing. */
static void fill_document(const filling *f, sbp_dtype dtype, const sbp_doc *doc, int64_t k,
                          const counters *at, char *out) {
    if (dtype == SBP_F64)
        fill_doubles(f, doc, at, (double *)(void *)out);
    else if (dtype == SBP_F32)
        fill_weights(f, doc, at, (float *)(void *)out);
    else if (f->source == ROUTED)
        fill_routed(f, doc, at, (int32_t *)(void *)out);
    else
        fill_integers(f, doc, k, at, (int32_t *)(void *)out);
}

static void fill(const filling *f, sbp_dtype dtype, void *memory) {
    counters at = {.unit = -1, .group = -1};
    if (f->source == OF_PART) {
        fill_group(f, memory);
        return;
    }
    for (int64_t k = 0; k < f->part->count; k++) {
        int64_t number = f->part->docs[k], row = f->source == GROUP ? row_of(f->data, number) : 0;
        const sbp_doc *doc = &f->data->docs[number];
        at.unit += begins_unit(f, k);
        bool begins = number == f->data->rows[row] && sbp_dataset_begins_group(f->data, row);
        at.group += k == 0 || begins;
        count_shared(&at, f->part, k);
        int64_t place = at.row - at.shared; /* what is shared stands before it */
        fill_document(f, dtype, doc, k, &at, (char *)memory + place * sbp_dtype_bytes(dtype));
        for (int32_t i = 0; i < at.shared && f->source == COPIES; i++)
            ((float *)memory)[at.first + i] += 1;
        at.row += doc->count - at.shared;
    }
}

/* A column of the step, of the documents of a micro-batch. */
static void fill_prepared(const filling *f, const sbp_prepared *of, int32_t column, double *out) {
    for (int64_t k = 0; k < f->part->count; k++) {
        int64_t number = f->part->docs[k], low = 0, high = of->doc_count;
        int64_t shared = f->part->shared ? f->part->shared[k] : 0;
        int64_t count = f->data->docs[number].count - shared;
        while (high - low > 1) {
            int64_t middle = low + (high - low) / 2;
            if (of->docs[middle] <= number)
                low = middle;
            else
                high = middle;
        }
        assert(of->doc_count > 0 && of->docs[low] == number);
        memcpy(out, of->columns[column] + of->places[low] + shared, (size_t)count * sizeof *out);
        out += count;
    }
}

sbp_status sbp_pack_column(sbp_diag *diag, const sbp_dataset *data, const int64_t *docs, int64_t doc_count,
                           int64_t rows, const char *name, double *out) {
    const sbp_micro_batch part = {.docs = docs, .count = doc_count, .rows = rows};
    const filling f = {data, &part, name, source_of(name, false)};
    sbp_dtype dtype = dtype_of(name);
    if (dtype == SBP_F64) {
        fill(&f, dtype, out);
        return SBP_OK;
    }
    void *narrow = sbp_malloc((size_t)(rows + 1) * 4);
    if (!narrow)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for a column of %lld rows", (long long)rows);
    fill(&f, dtype, narrow);
    for (int64_t i = 0; i < rows; i++)
        out[i] = dtype == SBP_F32 ? (double)((const float *)narrow)[i] : (double)((const int32_t *)narrow)[i];
    free(narrow);
    return SBP_OK;
}

sbp_status sbp_pack_document(const sbp_packer *p, sbp_diag *diag, const sbp_dataset *data, int64_t doc,
                             const char *name, double *out) {
    const sbp_micro_batch part = {.docs = &doc, .count = 1, .rows = data->docs[doc].count};
    int32_t place = p->prepared ? prepared_place(p->prepared->prepare, name) : -1;
    if (place < 0)
        return sbp_pack_column(diag, data, &doc, 1, part.rows, name, out);
    const filling f = {.data = data, .part = &part};
    fill_prepared(&f, p->prepared, place, out);
    return SBP_OK;
}

static bool is_bound(source of) {
    return of == FIRST || of == SHARED_END || of == OWN;
}

/* An earlier column with the same numbers: where nothing is shared, first, shared_end and own are one. NULL:
 * there is none. */
static const sbp_column *twin_of(const sbp_packer *p, const sbp_micro_batch *part, int32_t column,
                                 source of) {
    for (int32_t c = 0; !part->shared && is_bound(of) && c < column; c++)
        if (is_bound(source_of(p->columns[c].name, p->by_group[c])))
            return &p->columns[c];
    return NULL;
}

sbp_status sbp_packer_columns(sbp_packer *p, sbp_diag *diag, const sbp_dataset *data,
                              const sbp_micro_batch *part) {
    if (p->too_many)
        return sbp_fail(diag, SBP_INPUT, "the plan reads more than %d columns of the data", SBP_PACK_COLUMNS);
    for (int32_t c = 0; c < p->column_count; c++) {
        sbp_column *column = &p->columns[c];
        filling f = {data, part, column->name, source_of(column->name, p->by_group[c])};
        column->count = p->by_group[c] ? part->groups : part->rows;
        const sbp_column *twin = twin_of(p, part, c, f.source);
        if (twin) {
            column->data = twin->data;
            continue;
        }
        if (!sbp_pack_grow(&p->memory[c], &p->row_capacity[c], column->count,
                           (size_t)sbp_dtype_bytes(column->dtype)))
            return sbp_fail(diag, SBP_MACHINE, "out of memory for the columns of %lld rows",
                            (long long)part->rows);
        if (part->count == 0) {
            memset(p->memory[c], f.source == ROUTED ? 0xff : 0,
                   (size_t)(column->count * sbp_dtype_bytes(column->dtype)));
            column->data = p->memory[c];
            continue;
        }
        int32_t place = p->prepared ? prepared_place(p->prepared->prepare, column->name) : -1;
        if (place >= 0)
            fill_prepared(&f, p->prepared, place, p->memory[c]);
        else
            fill(&f, column->dtype, p->memory[c]);
        column->data = p->memory[c];
    }
    return SBP_OK;
}

sbp_status sbp_packer_columns_behind(sbp_packer *p, sbp_diag *diag, const sbp_dataset *data, int64_t begin,
                                     const sbp_pack_place *place) {
    const int64_t docs[] = {0}, rows = data->docs->count - 1 - begin;
    const sbp_micro_batch part = {.docs = docs, .count = 1, .rows = rows};
    const counters at = {
        .row = place->own, .first = place->first, .shared = (int32_t)place->shared, .from = begin};
    if (p->too_many)
        return sbp_fail(diag, SBP_INPUT, "the plan reads more than %d columns of the data", SBP_PACK_COLUMNS);
    for (int32_t c = 0; c < p->column_count; c++) {
        sbp_column *column = &p->columns[c];
        filling f = {data, &part, column->name, source_of(column->name, p->by_group[c])};
        int64_t bytes = sbp_dtype_bytes(column->dtype);
        column->count = p->by_group[c] ? 0 : rows;
        if (!sbp_pack_grow(&p->memory[c], &p->row_capacity[c], rows + 1, (size_t)bytes))
            return sbp_fail(diag, SBP_MACHINE, "out of memory for the columns of %lld rows", (long long)rows);
        column->data = p->memory[c];
        if (!p->by_group[c])
            fill_document(&f, column->dtype, data->docs, 0, &at, (char *)p->memory[c] - begin * bytes);
    }
    return SBP_OK;
}

/* ---- numbers of a step ------------------------------------------------------------------------------ */

/* What a row of data adds to a total that goes by rows. */
static int64_t of_row(const sbp_dataset *data, int64_t row, sbp_total_id total) {
    return total == SBP_TOTAL_UNITS || (total == SBP_TOTAL_GROUPS && sbp_dataset_begins_group(data, row));
}

/* The total so far, with one document more. */
static int64_t with_document(const sbp_doc *doc, sbp_total_id total, int64_t sum) {
    switch (total) {
    case SBP_TOTAL_DOCS:
        return sum + 1;
    case SBP_TOTAL_LONGEST:
        return doc->count > sum ? doc->count : sum;
    case SBP_TOTAL_LABELS:
        return sum + doc->labels;
    case SBP_TOTAL_PREDICTED:
        return sum + (doc->count > 0 ? doc->count - 1 : 0);
    default: /* of rows */
        return sum;
    }
}

bool sbp_pack_total(const sbp_dataset *data, const int64_t *rows, int64_t row_count, const char *name,
                    double *out) {
    sbp_total_id total;
    sbp_part_id part;
    int64_t sum = 0;
    if (!sbp_total_of(name, &total, &part))
        return false;
    for (int64_t r = 0; r < row_count; r++) {
        int64_t row = rows ? rows[r] : r;
        sum += of_row(data, row, total);
        for (int64_t d = data->rows[row]; d < data->rows[row + 1]; d++) {
            const sbp_doc *doc = &data->docs[sbp_dataset_doc_at(data, d)];
            if (part == SBP_PART_COUNT || part == (sbp_part_id)doc->part)
                sum = with_document(doc, total, sum);
        }
    }
    *out = sum > 1 ? (double)sum : 1;
    return true;
}

/* ---- what rows must have ---------------------------------------------------------------------------- */

static bool asks_for(const sbp_program *program, const char *name) {
    for (int32_t i = 0; i < program->row_input_count; i++)
        if (program->row_inputs[i].kind == SBP_ROW_COLUMN && strcmp(program->row_inputs[i].column, name) == 0)
            return true;
    return false;
}

/* What is read of the data: row inputs of the program that are not made by its @prepare, and those of
 * @prepare. */
typedef struct asked {
    const char *name; /* NULL: nothing of the data */
    bool by_group;
} asked;

static int32_t asked_count(const sbp_program *program) {
    return program->row_input_count + (program->prepare ? program->prepare->row_count : 0);
}

static asked asked_at(const sbp_program *program, int32_t index) {
    if (index >= program->row_input_count)
        return (asked){.name = program->prepare->rows[index - program->row_input_count]};
    const sbp_row_input *input = &program->row_inputs[index];
    bool made = input->kind != SBP_ROW_COLUMN || prepared_place(program->prepare, input->column) >= 0;
    return (asked){.name = made ? NULL : input->column,
                   .by_group = program->buffers[input->buffer].rows.c[SBP_S] != 0};
}

static bool reads(const sbp_program *program, const char *name) {
    for (int32_t i = 0; i < asked_count(program); i++) {
        asked a = asked_at(program, i);
        if (a.name && strcmp(a.name, name) == 0)
            return true;
    }
    return false;
}

static bool is_number(source of) {
    return of == COLUMN_OF_DATA || of == OF_ROWS || of == OF_PART;
}

/* The name of a number beside tokens or documents in what is read; length 0: it is of another kind. */
static size_t number_length(asked a, const char **part) {
    const char *dot = a.name && a.by_group ? strrchr(a.name, '.') : NULL;
    *part = dot ? dot + 1 : NULL;
    if (!a.name || !is_number(source_of(a.name, a.by_group)))
        return 0;
    return dot ? (size_t)(dot - a.name) : strlen(a.name);
}

/* Computed where rows lack it (runtime/train/scored.h). */
static bool is_scored(const char *name, size_t length) {
    static const char *const names[] = {"old_logps", "old_values", "ref_logps", "ref_logps_sum"};
    return find(names, SBP_COUNT(names), name, length) >= 0;
}

bool sbp_pack_reads(const sbp_program *program, const char *name, bool *optional) {
    const char *part;
    char has[80];
    snprintf(has, sizeof has, SBP_HAS_PREFIX "%s", name);
    *optional = reads(program, has);
    for (int32_t i = 0; i < asked_count(program); i++) {
        asked a = asked_at(program, i);
        size_t length = number_length(a, &part);
        if (a.name && length > 0 && length == strlen(name) && memcmp(a.name, name, length) == 0)
            return true;
    }
    return false;
}

const char *sbp_pack_cannot_share(const sbp_program *program, const char *counted) {
    if (!counted)
        return "the objective may read all rows of a document";
    for (int32_t b = 0; b < program->buffer_count; b++)
        if (program->buffers[b].role == SBP_ROLE_STATES || program->buffers[b].rows.c[SBP_N] != 0)
            return "the model carries states from row to row, which several completions would each have to "
                   "go on from";
    if (asks_for(program, "first") && !(asks_for(program, "shared_end") && asks_for(program, "own")))
        return "the model sees rows only as documents that stand alone";
    for (int32_t i = 0; i < program->row_input_count; i++)
        if (begins(program->row_inputs[i].column, SBP_ROUTED_PREFIX))
            return "each row of data says which experts its prompt goes to (--routed-experts)";
    return asks_for(program, "sample") ? "random numbers of a row belong to its document" : NULL;
}

bool sbp_pack_keeps_rows(const sbp_program *program) {
    return asks_for(program, "unit") || asks_for(program, "group");
}

sbp_rows_wanted sbp_pack_rows_wanted(const sbp_program *program) {
    const char *part;
    if (asks_for(program, "unit"))
        return SBP_ROWS_PAIRS;
    for (int32_t i = 0; i < asked_count(program); i++)
        if (number_length(asked_at(program, i), &part) > 0)
            return SBP_ROWS_SCORED;
    return asks_for(program, "group") ? SBP_ROWS_SCORED : SBP_ROWS_TEXTS;
}

/* What rows call a number of documents of this part. */
static const char *key_of(const char *name, size_t length, const char *part) {
    for (int f = 0; f < SBP_FIELD_COUNT; f++) {
        const char *of = sbp_row_field_part((sbp_row_field)f), *called = sbp_row_field_name((sbp_row_field)f);
        if (strlen(called) == length && memcmp(called, name, length) == 0 &&
            (!part || !of ? part == of : strcmp(part, of) == 0))
            return sbp_row_field_key((sbp_row_field)f);
    }
    return name;
}

/* Groups that are packed whole have to fit, and have no numbers of their own. */
static sbp_status check_groups(const sbp_program *program, sbp_diag *diag, const sbp_dataset *data) {
    for (int32_t i = 0; i < program->row_input_count; i++)
        if (program->buffers[program->row_inputs[i].buffer].rows.c[SBP_S] != 0)
            return sbp_fail(diag, SBP_INPUT,
                            "the plan reads '%.80s' of groups of rows, which have no numbers of their own",
                            program->row_inputs[i].column);
    for (int64_t r = 0, tokens = 0, rows = 0; r < data->row_count; r++) {
        bool begins = sbp_dataset_begins_group(data, r);
        tokens = (begins ? 0 : tokens) + sbp_dataset_row_tokens(data, r);
        rows = (begins ? 0 : rows) + 1;
        bool ends = r + 1 == data->row_count || sbp_dataset_begins_group(data, r + 1);
        if (ends && tokens > sbp_program_most_rows(program))
            return sbp_fail(
                diag, SBP_INPUT,
                "data row %lld (from 1) ends a group of %lld rows with %lld tokens, which stay together; the "
                "plan has room for %lld: compile with --seq-len %lld",
                (long long)data->docs[data->rows[r]].row + 1, (long long)rows, (long long)tokens,
                (long long)sbp_program_most_rows(program), (long long)tokens);
    }
    return SBP_OK;
}

/* Tokens that count half are for losses that are a sum over tokens, of rows that stand alone. */
static sbp_status check_weights(const sbp_program *program, sbp_diag *diag, const sbp_dataset *data) {
    int32_t column = sbp_dataset_column(data, sbp_data_columns[SBP_DATA_WEIGHT].name);
    if (column < 0 || sbp_pack_rows_wanted(program) == SBP_ROWS_TEXTS)
        return SBP_OK;
    for (int64_t d = 0; d < data->doc_count; d++)
        if (has_column(data, &data->docs[d], column))
            return sbp_fail(diag, SBP_INPUT,
                            "data row %lld (from 1): a message has a 'weight' other than 0 and 1, which the "
                            "objective of the plan does not read: --objective sft does",
                            (long long)data->docs[d].row + 1);
    return SBP_OK;
}

/* Columns or numbers of which there must be some: "one.of.A.B". */
static sbp_status check_one_of(sbp_diag *diag, const sbp_dataset *data, const char *names) {
    for (int64_t d = 0; d < data->doc_count; d++)
        if (has_one_of(data, &data->docs[d], names))
            return SBP_OK;
    char list[200] = "";
    for (const char *at = names; *at;) {
        size_t length = strcspn(at, "."), used = strlen(list);
        if (find(data->number_names, data->number_count, at, length) >= 0) {
            /* as TRL: a step that nobody has scored is one in which nothing is learned */
            sbp_warn(diag, "'%.*s' is null in all rows: their advantages are 0", (int)length, at);
            return SBP_OK;
        }
        snprintf(list + used, sizeof list - used, "%s'%.*s'", at == names ? "" : " or ", (int)length, at);
        at += length + (at[length] == '.');
    }
    return sbp_fail(
        diag, SBP_INPUT,
        "data row %lld (from 1): %s is missing, as in all rows; the objective of the plan reads it",
        (long long)(data->doc_count > 0 ? data->docs[0].row + 1 : 0), list);
}

sbp_status sbp_pack_check_data(const sbp_program *program, sbp_diag *diag, const sbp_dataset *data) {
    if (data->row_count == 0) /* a step of a stream: its rows say nothing */
        return SBP_OK;
    SBP_TRY(check_weights(program, diag, data));
    SBP_TRY(sbp_routed_check(program, diag, data));
    if (asks_for(program, "group"))
        SBP_TRY(check_groups(program, diag, data));
    for (int32_t i = 0; i < asked_count(program); i++) {
        asked a = asked_at(program, i);
        const char *name = a.name, *part;
        size_t length = number_length(a, &part);
        char has[80];
        if (name && source_of(name, a.by_group) == ONE_OF)
            SBP_TRY(check_one_of(diag, data, name + strlen(SBP_ONE_OF_PREFIX)));
        snprintf(has, sizeof has, SBP_HAS_PREFIX "%.*s", (int)length, name ? name : "");
        if (!name || length == 0 || reads(program, has))
            continue;
        int32_t column = find(data->column_names, data->column_count, name, length);
        int32_t number = find(data->number_names, data->number_count, name, length);
        if (column < 0 && number < 0 && is_scored(name, length))
            continue;
        for (int64_t d = 0; d < data->doc_count; d++) {
            const sbp_doc *doc = &data->docs[d];
            bool there = has_column(data, doc, column) || has_number(data, doc, number);
            if (!there && (!part || strcmp(sbp_doc_part(doc), part) == 0))
                return sbp_fail(diag, SBP_INPUT,
                                "data row %lld (from 1): '%s' is missing; the objective of the plan reads it",
                                (long long)doc->row + 1, key_of(name, length, part));
        }
    }
    return SBP_OK;
}
