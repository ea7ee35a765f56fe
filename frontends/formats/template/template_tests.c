/* template_tests.c: what may stand behind `is`. */
#include <math.h>
#include <string.h>

#include "frontends/formats/template/template_internal.h"

#define TEST(name)                                                                                           \
    static sbp_status name(tpl_eval *e, const tpl_value *self, const tpl_value *values, tpl_args *rest,      \
                           tpl_value *out)
#define UNUSED(...) (void)e, (void)self, (void)values, (void)rest

#define SIMPLE(name, condition)                                                                              \
    TEST(name) {                                                                                             \
        UNUSED();                                                                                            \
        *out = sbp_tpl_bool(condition);                                                                      \
        return SBP_OK;                                                                                       \
    }

SIMPLE(is_defined, self->kind != TPL_UNDEFINED)
SIMPLE(is_undefined, self->kind == TPL_UNDEFINED)
SIMPLE(is_none, self->kind == TPL_NONE)
SIMPLE(is_boolean, self->kind == TPL_BOOL)
SIMPLE(is_true, self->kind == TPL_BOOL && self->boolean)
SIMPLE(is_false, self->kind == TPL_BOOL && !self->boolean)
SIMPLE(is_integer, self->kind == TPL_INT)
SIMPLE(is_float, self->kind == TPL_FLOAT)
SIMPLE(is_number, self->kind >= TPL_BOOL && self->kind <= TPL_FLOAT)
SIMPLE(is_string, self->kind == TPL_STRING)
SIMPLE(is_mapping, self->kind == TPL_DICT)
SIMPLE(is_iterable, sbp_tpl_is_iterable(self))
SIMPLE(is_sequence, self->kind == TPL_UNDEFINED || (self->kind >= TPL_STRING && self->kind <= TPL_RANGE) ||
                        self->kind == TPL_DICT)
SIMPLE(is_callable, self->kind == TPL_UNDEFINED || (self->kind >= TPL_MACRO && self->kind <= TPL_LOOP))
SIMPLE(is_escaped, self->kind == TPL_STRING && self->safe)

TEST(is_divisible) {
    tpl_value rest_of;
    UNUSED();
    SBP_TRY(sbp_tpl_binary(e, '%', self, &values[0], &rest_of));
    *out = sbp_tpl_bool(!sbp_tpl_truth(&rest_of));
    return SBP_OK;
}

static sbp_status parity(tpl_eval *e, const tpl_value *self, int wanted, tpl_value *out) {
    tpl_value two = sbp_tpl_int(2), left;
    double number;
    SBP_TRY(sbp_tpl_binary(e, '%', self, &two, &left));
    *out = sbp_tpl_bool(sbp_tpl_number(&left, &number) && number == wanted);
    return SBP_OK;
}

TEST(is_odd) {
    UNUSED();
    return parity(e, self, 1, out);
}

TEST(is_even) {
    UNUSED();
    return parity(e, self, 0, out);
}

TEST(is_lower) {
    UNUSED();
    return sbp_tpl_has_case(e, self, false, out);
}

TEST(is_upper) {
    UNUSED();
    return sbp_tpl_has_case(e, self, true, out);
}

TEST(is_equal) {
    bool equal;
    UNUSED();
    SBP_TRY(sbp_tpl_equal(e, self, &values[0], &equal));
    *out = sbp_tpl_bool(equal);
    return SBP_OK;
}

TEST(is_not_equal) {
    bool equal;
    UNUSED();
    SBP_TRY(sbp_tpl_equal(e, self, &values[0], &equal));
    *out = sbp_tpl_bool(!equal);
    return SBP_OK;
}

static sbp_status order(tpl_eval *e, int op, const tpl_value *a, const tpl_value *b, tpl_value *out) {
    bool holds;
    SBP_TRY(sbp_tpl_less(e, op, a, b, &holds));
    *out = sbp_tpl_bool(holds);
    return SBP_OK;
}

TEST(is_less) {
    UNUSED();
    return order(e, '<', self, &values[0], out);
}

TEST(is_greater) {
    UNUSED();
    return order(e, '>', self, &values[0], out);
}

TEST(is_at_most) {
    UNUSED();
    return order(e, TPL_OP('<', '='), self, &values[0], out);
}

TEST(is_at_least) {
    UNUSED();
    return order(e, TPL_OP('>', '='), self, &values[0], out);
}

TEST(is_in) {
    bool holds;
    UNUSED();
    SBP_TRY(sbp_tpl_contains(e, &values[0], self, &holds));
    *out = sbp_tpl_bool(holds);
    return SBP_OK;
}

/* `is` of Python: the same object. Small numbers and short strings are one object there mostly; here always.
 */
TEST(is_same) {
    bool equal = false;
    UNUSED();
    if (self->kind == values[0].kind && self->kind <= TPL_STRING)
        SBP_TRY(sbp_tpl_equal(e, self, &values[0], &equal));
    else if (self->kind == values[0].kind)
        equal = self->dict == values[0].dict;
    *out = sbp_tpl_bool(equal);
    return SBP_OK;
}

static const tpl_builtin tests[] = {
    {"defined", "", is_defined, 0},
    {"undefined", "", is_undefined, 0},
    {"none", "", is_none, 0},
    {"boolean", "", is_boolean, 0},
    {"true", "", is_true, 0},
    {"false", "", is_false, 0},
    {"integer", "", is_integer, 0},
    {"float", "", is_float, 0},
    {"number", "", is_number, 0},
    {"string", "", is_string, 0},
    {"mapping", "", is_mapping, 0},
    {"iterable", "", is_iterable, 0},
    {"sequence", "", is_sequence, 0},
    {"callable", "", is_callable, 0},
    {"escaped", "", is_escaped, 0},
    {"odd", "", is_odd, 0},
    {"even", "", is_even, 0},
    {"divisibleby", "num", is_divisible, 0},
    {"lower", "", is_lower, 0},
    {"upper", "", is_upper, 0},
    {"sameas", "other", is_same, 0},
    {"in", "seq", is_in, 0},
    {"==", "other", is_equal, 0},
    {"eq", "other", is_equal, 0},
    {"equalto", "other", is_equal, 0},
    {"!=", "other", is_not_equal, 0},
    {"ne", "other", is_not_equal, 0},
    {"<", "other", is_less, 0},
    {"lt", "other", is_less, 0},
    {"lessthan", "other", is_less, 0},
    {">", "other", is_greater, 0},
    {"gt", "other", is_greater, 0},
    {"greaterthan", "other", is_greater, 0},
    {"<=", "other", is_at_most, 0},
    {"le", "other", is_at_most, 0},
    {">=", "other", is_at_least, 0},
    {"ge", "other", is_at_least, 0},
};

const tpl_builtin *sbp_tpl_find_test(tpl_text name) {
    for (int i = 0; i < SBP_COUNT(tests); i++)
        if (sbp_tpl_is(name, tests[i].name))
            return &tests[i];
    return NULL;
}
