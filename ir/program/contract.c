/* contract.c: the tables of contract.def. */
#include "ir/program/contract.h"

#include <string.h>

const char *const sbp_entry_names[SBP_ENTRIES] = {
#define ENTRY(id, name, what) name,
#include "ir/program/contract.def"
};

const char *const sbp_scalar_names[SBP_SCALAR_COUNT] = {
#define SCALAR(id, name, when, what) name,
#include "ir/program/contract.def"
};

const sbp_total_info sbp_totals[SBP_TOTAL_COUNT] = {
#define TOTAL(id, name, parted, what) {name, parted},
#include "ir/program/contract.def"
};

const sbp_column_info sbp_data_columns[SBP_DATA_COUNT] = {
#define PACKED true
#define GIVEN false
#define COLUMN(id, name, dtype, from, what) {name, SBP_##dtype, from},
#include "ir/program/contract.def"
#undef PACKED
#undef GIVEN
};

const sbp_suffix_info sbp_suffixes[SBP_SUFFIX_COUNT] = {
#define SUFFIX(id, name, kind, what) {name, SBP_SUFFIX_IS_##kind},
#include "ir/program/contract.def"
};

const char *const sbp_part_names[SBP_PART_COUNT] = {
#define PART_OF_ROW(id, name) name,
#include "ir/program/contract.def"
};

int64_t sbp_column_number(const char *column, const char *prefix) {
    size_t length = strlen(prefix);
    int64_t n = 0;
    if (strncmp(column, prefix, length) != 0 || column[length] == '0')
        return 0;
    for (const char *at = column + length; *at; at++) {
        if (*at < '0' || *at > '9' || n > INT32_MAX / 10)
            return 0;
        n = n * 10 + (*at - '0');
    }
    return n <= INT32_MAX ? n : 0;
}

bool sbp_column_names_rows(const char *column) {
    static const sbp_column_id rows[] = {SBP_DATA_FIRST, SBP_DATA_SHARED_END, SBP_DATA_OWN, SBP_DATA_PLACE};
    for (int i = 0; i < SBP_COUNT(rows); i++)
        if (strcmp(column, sbp_data_columns[rows[i]].name) == 0)
            return true;
    return sbp_column_number(column, SBP_FIRST_IN_PREFIX) > 0 ||
           sbp_column_number(column, SBP_OWN_IN_PREFIX) > 0;
}

bool sbp_suffix_stem(const char *buffer, sbp_suffix_id suffix, size_t *stem) {
    size_t length = strlen(buffer), end = strlen(sbp_suffixes[suffix].name);
    if (length <= end + 1 || buffer[length - end - 1] != '.' ||
        strcmp(buffer + length - end, sbp_suffixes[suffix].name) != 0)
        return false;
    *stem = length - end - 1;
    return true;
}

bool sbp_total_of(const char *scalar, sbp_total_id *total, sbp_part_id *part) {
    const char *dot = strchr(scalar, '.');
    size_t length = dot ? (size_t)(dot - scalar) : strlen(scalar);
    for (int t = 0; t < SBP_TOTAL_COUNT; t++) {
        const sbp_total_info *info = &sbp_totals[t];
        if (strlen(info->name) != length || memcmp(info->name, scalar, length) != 0 || (dot && !info->parted))
            continue;
        int p = dot ? 0 : SBP_PART_COUNT;
        while (p < SBP_PART_COUNT && strcmp(sbp_part_names[p], dot + 1) != 0)
            p++;
        if (dot && p == SBP_PART_COUNT)
            return false;
        *total = (sbp_total_id)t;
        *part = (sbp_part_id)p;
        return true;
    }
    return false;
}

bool sbp_contract_sets(const char *scalar) {
    sbp_total_id total;
    sbp_part_id part;
    for (int s = 0; s < SBP_SCALAR_COUNT; s++)
        if (strcmp(sbp_scalar_names[s], scalar) == 0)
            return true;
    return strncmp(scalar, SBP_RANDOM_PREFIX, strlen(SBP_RANDOM_PREFIX)) == 0 ||
           sbp_total_of(scalar, &total, &part);
}
