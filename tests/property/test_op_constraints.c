/* test_op_constraints.c: the shape rule of every op.
 *
 * Every numbered constraint that the rule files state (read from their source) has at least one broken op
 * here, or is listed as one that cannot fail for that op; the message names it. And what the shape rule
 * promises is what the evaluator needs: with buffers of exactly that many elements it neither reads nor
 * writes beyond them (the address sanitizer watches), and leaves no element unwritten, for several numbers of
 * rows. */
#include <ctype.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/common/graphs.h"

/* ---- broken ops ---------------------------------------------------------------------------------------- */

typedef struct broken {
    const char *op;
    int constraint;
    const char *operands; /* types; - for an absent one */
    const char *attrs;
} broken;

static const broken cases[] = {
    {"reshape", 1, "f64[T,1]", "dims [1,1,1,1,1,1]"},
    {"reshape", 1, "f64[1]", "dims [1,1,1,1,1,1,1]"},
    {"reshape", 2, "f64[T,4]", "dims [2,-2]"},
    {"reshape", 3, "f64[T,4]", "dims [3]"},
    {"reshape", 3, "f64[T,4]", "dims [2147483647,2147483647,2147483647]"},
    {"slice", 1, "f64[T]", "start 0, length 1"},
    {"slice", 1, "f64[]", "start 0, length 1"},
    {"slice", 2, "f64[T,4]", "start -1, length 2"},
    {"slice", 2, "f64[T,4]", "start 0, length -1"},
    {"slice", 2, "f64[T,4]", "start 3, length 2"},
    {"slice", 2, "f64[T,4]", "start 5, length 0"},
    {"slice", 2, "f64[T,4]", "start 1, length 9223372036854775807"},
    {"concat", 1, "f64[T] f64[T,1]", ""},
    {"concat", 1, "f64[T,1] f64[T]", ""},
    {"concat", 2, "f64[T,3] f64[T,1,3]", ""},
    {"concat", 2, "f64[T,2,3] f64[T,1,3]", ""},
    {"concat", 2, "f64[T,3] f32[T,3]", ""},
    {"concat", 2, "f64[T,3] f64[C,3]", ""},
    {"pad", 1, "f64[T]", "before 0, after 1"},
    {"pad", 2, "f64[T,3]", "before -1, after 1"},
    {"pad", 2, "f64[T,3]", "before 1, after -1"},
    {"pad", 2, "f64[T,3]", "before 1, after 9223372036854775807"},
    {"cast", 1, "f64[T]", "to i64"},
    {"cast", 1, "f64[T]", "to bool"},
    {"iota", 1, "", "n 0, dtype f64"},
    {"iota", 1, "", "n 16777217, dtype f64"},
    {"random", 1, "f32[] f64[] - -", "dims [1,1,1,1,1,1], rows T"},
    {"random", 2, "f32[] f64[] - -", "dims [-1], rows T"},
    {"random", 3, "f32[] f64[] - -", "dims [3], rows none"},
    {"random", 6, "f32[] f64[] f32[T] -", "dims [3], rows T"},
    {"random", 7, "f32[] f64[] f32[T] f32[T,1]", "dims [3], rows T"},
    {"random", 7, "f32[] f64[] f32[T] f32[T]", "dims [2,3], rows T"},
    {"random", 4, "f64[] f64[] - -", "dims [3], rows T"},
    {"random", 4, "f32[T] f64[] - -", "dims [3], rows T"},
    {"random", 4, "f32[2] f64[] - -", "dims [3], rows T"},
    {"random", 5, "f32[] f32[] - -", "dims [3], rows T"},
    {"random", 5, "f32[] f64[1] - -", "dims [3], rows T"},
    {"broadcast", 1, "f64[]", "dims [1,1,1,1,1,1], rows T"},
    {"broadcast", 2, "f64[]", "dims [-1], rows none"},
    {"broadcast", 3, "f64[3,4]", "dims [4], rows none"},
    {"broadcast", 3, "f64[T,4]", "dims [4], rows S"},
    {"broadcast", 3, "f64[T]", "dims [4], rows none"},
    {"broadcast", 3, "f64[1,4]", "dims [4], rows T"},
    {"broadcast", 4, "f64[3]", "dims [4], rows T"},
    {"broadcast", 4, "f64[T,3]", "dims [4], rows T"},
    {"row_sum", 1, "f64[T,3]", "axis 0"},
    {"row_sum", 1, "f64[T,3]", "axis -2"},
    {"row_sum", 1, "f64[T,3]", "axis -3"},
    {"row_sum", 2, "i32[T,3]", "axis -1"},
    {"row_max", 1, "f64[T]", ""},
    {"row_max", 1, "f64[]", ""},
    {"row_max", 2, "bool[T,3]", ""},
    {"row_min", 1, "f64[T]", ""},
    {"row_min", 2, "i32[T,3]", ""},
    {"sum_rows", 1, "f64[3]", "rank 0"},
    {"sum_rows", 2, "f64[T,3]", "rank 2"},
    {"sum_rows", 2, "f64[T,3]", "rank -1"},
    {"sum_rows", 3, "i32[T,3]", "rank 0"},
    {"group_sum", 1, "f64[T,2] i32[T]", ""},
    {"group_sum", 1, "f64[S] i32[T]", ""},
    {"group_sum", 1, "i32[T] i32[T]", ""},
    {"group_sum", 2, "f64[T] f64[T]", ""},
    {"group_sum", 2, "f64[T] i32[S]", ""},
    {"group_sum", 2, "f64[T] i32[T,1]", ""},
    {"scan", 1, "f64[S] f64[S] i32[T]", "reverse 0"},
    {"scan", 1, "i32[T] i32[T] i32[T]", "reverse 0"},
    {"scan", 2, "f64[T] f32[T] i32[T]", "reverse 1"},
    {"scan", 3, "f64[T] f64[T] f64[T]", "reverse 0"},
    {"group_take", 1, "f64[T] i32[T]", ""},
    {"group_take", 1, "i32[S] i32[T]", ""},
    {"group_take", 2, "f64[S] i32[S]", ""},
    {"linear", 1, "f64[T,4] f64[3,4] -", "layout sideways, wide 0"},
    {"linear", 2, "f64[T,1,4] f64[3,4] -", "layout out_in, wide 0"},
    {"linear", 2, "f64[T] f64[3,4] -", "layout out_in, wide 0"},
    {"linear", 2, "f64[T,4] f64[T,4] -", "layout out_in, wide 0"},
    {"linear", 2, "f64[T,4] f64[4] -", "layout out_in, wide 0"},
    {"linear", 3, "f64[T,4] f64[4,3] -", "layout out_in, wide 0"},
    {"linear", 3, "f64[T,4] f64[3,4] -", "layout in_out, wide 0"},
    {"linear", 4, "f64[T,4] f32[3,4] -", "layout out_in, wide 0"},
    {"linear", 4, "i32[T,4] i32[3,4] -", "layout out_in, wide 0"},
    {"linear", 5, "f64[T,4] f64[3,4] f64[4]", "layout out_in, wide 0"},
    {"linear", 5, "f64[T,4] f64[3,4] f32[3]", "layout out_in, wide 0"},
    {"linear", 5, "f64[T,4] f64[0,4] f64[T]", "layout out_in, wide 0"},
    {"linear", 5, "f64[T,4] f64[3,4] f64[1,3]", "layout out_in, wide 0"},
    {"linear_dw", 1, "f64[T,3] f64[T,4]", "layout sideways"},
    {"linear_dw", 2, "f64[T,3] f64[T,1,4]", "layout out_in"},
    {"linear_dw", 2, "f64[T,3] f64[C,4]", "layout out_in"},
    {"linear_dw", 2, "f64[T,3] f32[T,4]", "layout out_in"},
    {"linear_dw", 2, "f64[5,3] f64[5,4]", "layout out_in"},
    {"gather", 1, "f64[6,3] i32[5]", ""},
    {"gather", 1, "f64[6,3] f64[T]", ""},
    {"gather", 1, "f64[6,3] i32[T,1]", ""},
    {"gather", 2, "f64[6] i32[T]", ""},
    {"gather", 2, "f64[T,3] i32[T]", ""},
    {"gather", 2, "i32[6,3] i32[T]", ""},
    {"scatter_add", 1, "f64[T,3] f64[T]", "rows 6"},
    {"scatter_add", 2, "f64[T] i32[T]", "rows 6"},
    {"scatter_add", 2, "f64[C,3] i32[T]", "rows 6"},
    {"scatter_add", 2, "i32[T,3] i32[T]", "rows 6"},
    {"scatter_add", 3, "f64[T,3] i32[T]", "rows -1"},
    {"conv_rows", 1, "f64[T] f64[3,1,3] - i32[T] -", ""},
    {"conv_rows", 1, "f64[4,3] f64[3,1,3] - i32[T] -", ""},
    {"conv_rows", 1, "i32[T,3] i32[3,1,3] - i32[T] -", ""},
    {"conv_rows", 2, "f64[T,3] f64[3,3] - i32[T] -", ""},
    {"conv_rows", 2, "f64[T,3] f64[2,1,3] - i32[T] -", ""},
    {"conv_rows", 2, "f64[T,3] f64[3,2,3] - i32[T] -", ""},
    {"conv_rows", 2, "f64[T,3] f64[3,1,1] - i32[T] -", ""},
    {"conv_rows", 2, "f64[T,3] f32[3,1,3] - i32[T] -", ""},
    {"conv_rows", 3, "f64[T,3] f64[3,1,3] - i32[C] -", ""},
    {"conv_rows", 3, "f64[T,3] f64[3,1,3] - f64[T] -", ""},
    {"conv_rows", 4, "f64[T,3] f64[3,1,3] f64[2] i32[T] -", ""},
    {"conv_rows", 4, "f64[T,3] f64[3,1,3] f32[3] i32[T] -", ""},
    {"conv_rows", 9, "f64[T,3] f64[3,1,3] - i32[T] f64[2,3]", ""},
    {"conv_rows", 9, "f64[C,3] f64[3,1,3] - i32[C] -", ""},
    {"conv_rows", 9, "f64[C,3] f64[3,1,3] - i32[C] f64[3,3]", ""},
    {"conv_rows_state", 1, "f64[T,3] f64[2,3]", ""},
    {"conv_rows_state", 1, "f64[C,3] f64[2,2]", ""},
    {"conv_rows_state", 1, "f64[C,3] f64[0,3]", ""},
    {"conv_rows_vjp", 1, "f64[T] f64[T] f64[3,1,3] i32[T] - -", ""},
    {"conv_rows_vjp", 2, "f64[T,3] f64[T,3] f64[3,3] i32[T] - -", ""},
    {"conv_rows_vjp", 3, "f64[T,3] f64[T,3] f64[3,1,3] f64[T] - -", ""},
    {"conv_rows_vjp", 4, "f64[T,2] f64[T,3] f64[3,1,3] i32[T] - -", ""},
    {"conv_rows_vjp", 5, "f64[T,3] f64[T,3] f64[3,1,3] i32[T] - f64[2,3]", ""},
    {"conv_rows_vjp", 5, "f64[C,3] f64[C,3] f64[3,1,3] i32[C] f64[2,3] -", ""},
    {"conv_rows_vjp", 5, "f64[C,3] f64[C,3] f64[3,1,3] i32[C] f64[2,3] f64[1,3]", ""},
    {"delta_rule", 1, "f64[T,2,3] f64[T,6] f64[T,4,5] f64[T,4] f64[T,4] i32[T] -", "corrects 1"},
    {"delta_rule", 1, "f64[T,2,3] f64[4,2,3] f64[T,4,5] f64[T,4] f64[T,4] i32[T] -", "corrects 1"},
    {"delta_rule", 1, "f64[T,2,3] i32[T,2,3] f64[T,4,5] f64[T,4] f64[T,4] i32[T] -", "corrects 1"},
    {"delta_rule", 1, "f64[T,2,3] f64[T,0,3] f64[T,4,5] f64[T,4] f64[T,4] i32[T] -", "corrects 1"},
    {"delta_rule", 1, "f64[T,2,3] f64[T,2,0] f64[T,4,5] f64[T,4] f64[T,4] i32[T] -", "corrects 1"},
    {"delta_rule", 2, "f64[T,2,3] f64[T,2,3] f64[T,20] f64[T,4] f64[T,4] i32[T] -", "corrects 1"},
    {"delta_rule", 2, "f64[T,2,3] f64[T,2,3] f32[T,4,5] f64[T,4] f64[T,4] i32[T] -", "corrects 1"},
    {"delta_rule", 2, "f64[T,2,3] f64[T,2,3] f64[C,4,5] f64[T,4] f64[T,4] i32[T] -", "corrects 1"},
    {"delta_rule", 2, "f64[T,2,3] f64[T,2,3] f64[T,3,5] f64[T,4] f64[T,4] i32[T] -", "corrects 1"},
    {"delta_rule", 2, "f64[T,2,3] f64[T,2,3] f64[T,0,5] f64[T,4] f64[T,4] i32[T] -", "corrects 1"},
    {"delta_rule", 2, "f64[T,2,3] f64[T,2,3] f64[T,4,0] f64[T,4] f64[T,4] i32[T] -", "corrects 1"},
    {"delta_rule", 3, "f64[T,2,3] f64[T,2,3] f64[T,4,5] f64[T] f64[T,4] i32[T] -", "corrects 1"},
    {"delta_rule", 3, "f64[T,2,3] f64[T,2,3] f64[T,4,5] f32[T,4] f64[T,4] i32[T] -", "corrects 1"},
    {"delta_rule", 3, "f64[T,2,3] f64[T,2,3] f64[T,4,5] f64[T,4] f64[T,2] i32[T] -", "corrects 1"},
    {"delta_rule", 3, "f64[T,2,3] f64[T,2,3] f64[T,4,5] f64[T,4] f64[C,4] i32[T] -", "corrects 1"},
    {"delta_rule", 3, "bf16[T,2,3] bf16[T,2,3] bf16[T,4,5] bf16[T,4] bf16[T,4] i32[T] -", "corrects 1"},
    {"delta_rule", 4, "f64[T,2,3] f64[T,2,3] f64[T,4,5] f64[T,4] f64[T,4] f64[T] -", "corrects 1"},
    {"delta_rule", 4, "f64[T,2,3] f64[T,2,3] f64[T,4,5] f64[T,4] f64[T,4] i32[C] -", "corrects 1"},
    {"delta_rule", 4, "f64[T,2,3] f64[T,2,3] f64[T,4,5] f64[T,4] f64[T,4] i32[T,1] -", "corrects 1"},
    {"delta_rule", 5, "f64[T,4,3] f64[T,2,3] f64[T,4,5] f64[T,4] f64[T,4] i32[T] -", "corrects 1"},
    {"delta_rule", 5, "f32[T,2,3] f64[T,2,3] f64[T,4,5] f64[T,4] f64[T,4] i32[T] -", "corrects 1"},
    {"delta_rule", 9, "f64[T,2,3] f64[T,2,3] f64[T,4,5] f64[T,4] f64[T,4] i32[T] f64[4,3,5]", "corrects 1"},
    {"delta_rule", 9, "f64[C,2,3] f64[C,2,3] f64[C,4,5] f64[C,4] f64[C,4] i32[C] -", "corrects 1"},
    {"delta_rule", 9, "f64[C,2,3] f64[C,2,3] f64[C,4,5] f64[C,4] f64[C,4] i32[C] f64[2,3,5]", "corrects 1"},
    {"delta_rule", 9, "f64[C,2,3] f64[C,2,3] f64[C,4,5] f64[C,4] f64[C,4] i32[C] f32[4,3,5]", "corrects 1"},
    {"delta_rule_state", 1, "f64[C,6] f64[C,4,5] f64[C,4] f64[C,4] i32[C] f64[4,3,5]", "corrects 1"},
    {"delta_rule_state", 2, "f64[C,2,3] f64[C,3,5] f64[C,4] f64[C,4] i32[C] f64[4,3,5]", "corrects 1"},
    {"delta_rule_state", 3, "f64[C,2,3] f64[C,4,5] f64[C,4] f64[C,2] i32[C] f64[4,3,5]", "corrects 1"},
    {"delta_rule_state", 4, "f64[C,2,3] f64[C,4,5] f64[C,4] f64[C,4] i32[T] f64[4,3,5]", "corrects 1"},
    {"delta_rule_state", 6, "f64[C,2,3] f64[C,4,5] f64[C,4] f64[C,4] i32[C] f64[4,5,3]", "corrects 1"},
    {"delta_rule_state", 6, "f64[T,2,3] f64[T,4,5] f64[T,4] f64[T,4] i32[T] f64[4,3,5]", "corrects 1"},
    {"delta_rule_vjp", 1, "f64[T,4,5] f64[T,2,3] f64[T,6] f64[T,4,5] f64[T,4] f64[T,4] i32[T] - -",
     "corrects 1"},
    {"delta_rule_vjp", 2, "f64[T,4,5] f64[T,2,3] f64[T,2,3] f64[T,3,5] f64[T,4] f64[T,4] i32[T] - -",
     "corrects 1"},
    {"delta_rule_vjp", 3, "f64[T,4,5] f64[T,2,3] f64[T,2,3] f64[T,4,5] f64[T,2] f64[T,4] i32[T] - -",
     "corrects 1"},
    {"delta_rule_vjp", 4, "f64[T,4,5] f64[T,2,3] f64[T,2,3] f64[T,4,5] f64[T,4] f64[T,4] f64[T] - -",
     "corrects 1"},
    {"delta_rule_vjp", 5, "f64[T,4,5] f64[T,4,3] f64[T,2,3] f64[T,4,5] f64[T,4] f64[T,4] i32[T] - -",
     "corrects 1"},
    {"delta_rule_vjp", 7, "f64[T,4,3] f64[T,2,3] f64[T,2,3] f64[T,4,5] f64[T,4] f64[T,4] i32[T] - -",
     "corrects 1"},
    {"delta_rule_vjp", 8, "f64[T,4,5] f64[T,2,3] f64[T,2,3] f64[T,4,5] f64[T,4] f64[T,4] i32[T] - f64[4,3,5]",
     "corrects 1"},
    {"delta_rule_vjp", 8,
     "f64[T,4,5] f64[T,2,3] f64[T,2,3] f64[T,4,5] f64[T,4] f64[T,4] i32[T] f64[4,3,5] f64[4,3,5]",
     "corrects 1"},
    {"delta_rule_vjp", 8, "f64[C,4,5] f64[C,2,3] f64[C,2,3] f64[C,4,5] f64[C,4] f64[C,4] i32[C] - -",
     "corrects 1"},
    {"delta_rule_vjp", 8, "f64[C,4,5] f64[C,2,3] f64[C,2,3] f64[C,4,5] f64[C,4] f64[C,4] i32[C] f64[4,3,5] -",
     "corrects 1"},
    {"delta_rule_vjp", 8,
     "f64[C,4,5] f64[C,2,3] f64[C,2,3] f64[C,4,5] f64[C,4] f64[C,4] i32[C] f64[4,3,5] f32[4,3,5]",
     "corrects 1"},
    {"delta_rule_vjp", 8,
     "f64[C,4,5] f64[C,2,3] f64[C,2,3] f64[C,4,5] f64[C,4] f64[C,4] i32[C] f64[2,3,5] f64[4,3,5]",
     "corrects 1"},
    {"route", 1, "f64[T]", "k 1"},
    {"route", 1, "f64[4,3]", "k 1"},
    {"route", 1, "i32[T,3]", "k 1"},
    {"route", 2, "f64[T,3]", "k 0"},
    {"route", 2, "f64[T,3]", "k 4"},
    {"take_at", 1, "f64[T] i32[T,2]", ""},
    {"take_at", 1, "f64[4,3] i32[T,2]", ""},
    {"take_at", 1, "i32[T,3] i32[T,2]", ""},
    {"take_at", 2, "f64[T,3] i32[T]", ""},
    {"take_at", 2, "f64[T,3] f64[T,2]", ""},
    {"take_at", 2, "f64[T,3] i32[C,2]", ""},
    {"expert_linear", 1, "f64[T,4] i32[T,2] f64[3,5,4] -", "layout rows, wide 0"},
    {"expert_linear", 2, "f64[T,4] i32[T] f64[3,5,4] -", "layout out_in, wide 0"},
    {"expert_linear", 2, "f64[T,4] f64[T,2] f64[3,5,4] -", "layout out_in, wide 0"},
    {"expert_linear", 2, "f64[T,4] i32[7,2] f64[3,5,4] -", "layout out_in, wide 0"},
    {"expert_linear", 3, "f64[T] i32[T,2] f64[3,5,4] -", "layout out_in, wide 0"},
    {"expert_linear", 3, "f64[T,3,4] i32[T,2] f64[3,5,4] -", "layout out_in, wide 0"},
    {"expert_linear", 3, "f64[C,4] i32[T,2] f64[3,5,4] -", "layout out_in, wide 0"},
    {"expert_linear", 3, "i32[T,4] i32[T,2] i32[3,5,4] -", "layout out_in, wide 0"},
    {"expert_linear", 4, "f64[T,4] i32[T,2] f64[5,4] -", "layout out_in, wide 0"},
    {"expert_linear", 4, "f64[T,4] i32[T,2] f64[3,5,3] -", "layout out_in, wide 0"},
    {"expert_linear", 4, "f64[T,4] i32[T,2] f64[3,5,4] -", "layout in_out, wide 0"},
    {"expert_linear", 4, "f64[T,4] i32[T,2] f32[3,5,4] -", "layout out_in, wide 0"},
    {"expert_linear", 4, "f64[T,4] i32[T,2] f64[T,5,4] -", "layout out_in, wide 0"},
    {"expert_linear", 5, "f64[T,4] i32[T,2] f64[3,5,4] f64[5]", "layout out_in, wide 0"},
    {"expert_linear", 5, "f64[T,4] i32[T,2] f64[3,5,4] f64[2,5]", "layout out_in, wide 0"},
    {"expert_linear", 5, "f64[T,4] i32[T,2] f64[3,5,4] f64[3,4]", "layout out_in, wide 0"},
    {"expert_linear", 5, "f64[T,4] i32[T,2] f64[3,5,4] f32[3,5]", "layout out_in, wide 0"},
    {"expert_linear_dw", 1, "f64[T,2,5] f64[T,4] i32[T,2]", "experts 3, layout rows"},
    {"expert_linear_dw", 2, "f64[T,2,5] f64[T,4] i32[T]", "experts 3, layout out_in"},
    {"expert_linear_dw", 3, "f64[T,2,5] f64[T] i32[T,2]", "experts 3, layout out_in"},
    {"expert_linear_dw", 4, "f64[T,5] f64[T,4] i32[T,2]", "experts 3, layout out_in"},
    {"expert_linear_dw", 4, "f64[T,3,5] f64[T,4] i32[T,2]", "experts 3, layout out_in"},
    {"expert_linear_dw", 4, "f64[C,2,5] f64[T,4] i32[T,2]", "experts 3, layout out_in"},
    {"expert_linear_dw", 4, "f32[T,2,5] f64[T,4] i32[T,2]", "experts 3, layout out_in"},
    {"expert_linear_dw", 5, "f64[T,2,5] f64[T,4] i32[T,2]", "experts 0, layout out_in"},
    {"attention", 1, "f64[T,2,4] f64[T,1,4] f64[T,1,4] f64[T] i32[T] i32[T]", "scale 1, window 0, softcap 0"},
    {"attention", 1, "f64[T,2,4] f64[T,1,4] f64[T,1,4] i32[T] i32[C] i32[T]", "scale 1, window 0, softcap 0"},
    {"attention", 1, "f64[T,2,4] f64[T,1,4] f64[T,1,4] i32[T] i32[T] i32[T,1]",
     "scale 1, window 0, softcap 0"},
    {"attention", 2, "f64[T,8] f64[T,1,4] f64[T,1,4] i32[T] i32[T] i32[T]", "scale 1, window 0, softcap 0"},
    {"attention", 2, "f64[T,2,4] f64[T,4] f64[T,1,4] i32[T] i32[T] i32[T]", "scale 1, window 0, softcap 0"},
    {"attention", 3, "f64[T,2,4] f64[C,1,4] f64[C,1,4] i32[T] i32[T] i32[T]", "scale 1, window 0, softcap 0"},
    {"attention", 3, "f64[C,2,4] f64[T,1,4] f64[C,1,4] i32[C] i32[C] i32[C]", "scale 1, window 0, softcap 0"},
    {"attention", 3, "f64[5,2,4] f64[5,1,4] f64[5,1,4] i32[T] i32[T] i32[T]", "scale 1, window 0, softcap 0"},
    {"attention", 4, "f64[T,2,4] f64[T,1,3] f64[T,1,4] i32[T] i32[T] i32[T]", "scale 1, window 0, softcap 0"},
    {"attention", 5, "f64[T,3,4] f64[T,2,4] f64[T,2,4] i32[T] i32[T] i32[T]", "scale 1, window 0, softcap 0"},
    {"attention", 5, "f64[T,2,4] f64[T,2,4] f64[T,1,4] i32[T] i32[T] i32[T]", "scale 1, window 0, softcap 0"},
    {"attention", 5, "f64[T,2,4] f64[T,0,4] f64[T,0,4] i32[T] i32[T] i32[T]", "scale 1, window 0, softcap 0"},
    {"attention", 6, "f64[T,2,4] f32[T,1,4] f64[T,1,4] i32[T] i32[T] i32[T]", "scale 1, window 0, softcap 0"},
    {"attention", 6, "i32[T,2,4] i32[T,1,4] i32[T,1,4] i32[T] i32[T] i32[T]", "scale 1, window 0, softcap 0"},
    {"attention", 7, "f64[T,2,4] f64[T,1,4] f64[T,1,4] i32[T] i32[T] i32[T]",
     "scale nan, window 0, softcap 0"},
    {"attention", 7, "f64[T,2,4] f64[T,1,4] f64[T,1,4] i32[T] i32[T] i32[T]",
     "scale 1, window -1, softcap 0"},
    {"attention", 7, "f64[T,2,4] f64[T,1,4] f64[T,1,4] i32[T] i32[T] i32[T]",
     "scale 1, window 0, softcap -1"},
    {"attention", 7, "f64[T,2,4] f64[T,1,4] f64[T,1,4] i32[T] i32[T] i32[T]",
     "scale 1, window 0, softcap nan"},
    {"attention", 7, "f64[T,2,4] f64[T,1,4] f64[T,1,4] i32[T] i32[T] i32[T]",
     "scale 1, window 0, softcap inf"},
    {"append", 1, "f64[T,3] f64[T,3]", ""},
    {"append", 1, "f64[C,3] f64[C,3]", ""},
    {"append", 1, "f64[T,3] f64[C,4]", ""},
    {"append", 1, "f64[T,3] f32[C,3]", ""},
    {"take", 1, "f64[C,3]", ""},
    {"append", 1, "f64[W,3] f64[C,3]", ""},
    {"exchange", 1, "f64[T,2,3]", "to others, heads 2, kv_heads 1, keys 0, ranks 1"},
    {"exchange", 2, "f64[T,2,3]", "to heads, heads 2, kv_heads 1, keys 0, ranks 0"},
    {"exchange", 2, "f64[T,3,3]", "to heads, heads 3, kv_heads 2, keys 0, ranks 1"},
    {"exchange", 2, "f64[T,2,3]", "to heads, heads 2, kv_heads 0, keys 0, ranks 1"},
    {"exchange", 3, "f64[T,3]", "to heads, heads 2, kv_heads 1, keys 0, ranks 1"},
    {"exchange", 3, "f64[T,1,3]", "to heads, heads 2, kv_heads 1, keys 0, ranks 2"},
    {"exchange", 3, "f64[W,2,3]", "to heads, heads 2, kv_heads 1, keys 0, ranks 1"},
    {"exchange", 3, "f64[T,2,3]", "to rows, heads 2, kv_heads 1, keys 0, ranks 1"},
    {"exchange", 3, "f64[W,2,3]", "to rows, heads 2, kv_heads 1, keys 0, ranks 2"},
    {"exchange", 2, "f64[T,2,3]", "to all, heads 2, kv_heads 1, keys 0, ranks 1"},
    {"exchange", 2, "f64[T,2,3]", "to all, heads 0, kv_heads 0, keys 1, ranks 1"},
    {"exchange", 2, "f64[T,2,3]", "to all, heads 0, kv_heads 0, keys 0, ranks 0"},
    {"exchange", 2, "f64[W,2,3]", "to own, heads 0, kv_heads 2, keys 0, ranks 1"},
    {"exchange", 3, "f64[T,3]", "to all, heads 0, kv_heads 0, keys 0, ranks 2"},
    {"exchange", 3, "f64[W,2,3]", "to all, heads 0, kv_heads 0, keys 0, ranks 1"},
    {"exchange", 3, "f64[T,2,3]", "to own, heads 0, kv_heads 0, keys 0, ranks 1"},
    {"exchange", 3, "i32[W,2,3]", "to own, heads 0, kv_heads 0, keys 0, ranks 1"},
    {"exchange", 3, "i32[T,2,3]", "to heads, heads 2, kv_heads 1, keys 0, ranks 1"},
    {"take", 1, "f64[3]", ""},
    {"rms_norm", 1, "f64[T] f64[1]", "eps 0.1, offset 0, cast before"},
    {"rms_norm", 1, "f64[T,6] f64[5]", "eps 0.1, offset 0, cast before"},
    {"rms_norm", 1, "f64[T,6] f64[1,6]", "eps 0.1, offset 0, cast before"},
    {"rms_norm", 2, "f64[T,6] f32[6]", "eps 0.1, offset 0, cast before"},
    {"rms_norm", 2, "i32[T,6] i32[6]", "eps 0.1, offset 0, cast before"},
    {"rms_norm", 3, "f64[T,6] f64[6]", "eps -1, offset 0, cast before"},
    {"rms_norm", 3, "f64[T,6] f64[6]", "eps nan, offset 0, cast before"},
    {"rms_norm", 4, "f64[T,6] f64[6]", "eps 0.1, offset 0, cast never"},
    {"layer_norm", 1, "f64[T,6] f64[5] -", "eps 0.1"},
    {"layer_norm", 2, "f64[T,6] f32[6] -", "eps 0.1"},
    {"layer_norm", 3, "f64[T,6] f64[6] -", "eps inf"},
    {"layer_norm", 4, "f64[T,6] f64[6] f64[5]", "eps 0.1"},
    {"layer_norm", 4, "f64[T,6] f64[6] f32[6]", "eps 0.1"},
    {"silu", 2, "i32[T]", ""},
    {"gelu", 2, "i32[T]", "approximate none"},
    {"gelu", 3, "f64[T]", "approximate roughly"},
    {"swiglu", 1, "f64[T,3] f64[T,4]", ""},
    {"swiglu", 1, "f64[T,3] f32[T,3]", ""},
    {"swiglu", 2, "i32[T] i32[T]", ""},
    {"geglu", 1, "f64[T,3] f64[3]", "approximate tanh"},
    {"geglu", 2, "bool[T] bool[T]", "approximate tanh"},
    {"geglu", 3, "f64[T] f64[T]", "approximate roughly"},
    {"softcap", 2, "i32[T]", "cap 1"},
    {"softcap", 3, "f64[T]", "cap 0"},
    {"softcap", 3, "f64[T]", "cap -1"},
    {"softcap", 3, "f64[T]", "cap inf"},
    {"softcap", 3, "f64[T]", "cap nan"},
    {"rope", 1, "f64[T,6] f64[T,2] f64[T,2]", ""},
    {"rope", 1, "f64[5,1,6] f64[T,2] f64[T,2]", ""},
    {"rope", 2, "f64[T,1,6] f64[T,4] f64[T,4]", ""},
    {"rope", 2, "f64[T,1,6] f64[T,2] f64[T,3]", ""},
    {"rope", 2, "f64[T,1,6] f32[T,2] f32[T,2]", ""},
    {"rope", 2, "f64[T,1,6] f64[S,2] f64[S,2]", ""},
    {"log_prob", 1, "f64[T] i32[T]", ""},
    {"log_prob", 1, "f64[5,7] i32[T]", ""},
    {"log_prob", 1, "i32[T,7] i32[T]", ""},
    {"log_prob", 1, "f64[T,0] i32[T]", ""},
    {"log_prob", 2, "f64[T,7] i32[C]", ""},
    {"log_prob", 2, "f64[T,7] i32[T,1]", ""},
    {"log_prob", 2, "f64[T,7] f64[T]", ""},
    {"attention_sink", 8, "f64[T,2,4] f64[T,1,4] f64[T,1,4] i32[T] i32[T] i32[T] f64[3]",
     "scale 1, window 0, softcap 0"},
    {"attention_sink", 8, "f64[T,2,4] f64[T,1,4] f64[T,1,4] i32[T] i32[T] i32[T] i32[2]",
     "scale 1, window 0, softcap 0"},
    {"attention_sink", 8, "f64[T,2,4] f64[T,1,4] f64[T,1,4] i32[T] i32[T] i32[T] f64[T,2]",
     "scale 1, window 0, softcap 0"},
};

/* attention_vjp: q k v o lse dout first shared_end own dk dv, one at a time replaced in a valid list. */
static const char *const vjp_valid[] = {"f64[T,2,4]", "f64[T,1,4]", "f64[T,1,3]", "f64[T,2,3]",
                                        "f64[T,2]",   "f64[T,2,3]", "i32[T]",     "i32[T]",
                                        "i32[T]",     "f64[T,1,4]", "f64[T,1,3]"};
static const struct {
    int constraint, operand;
    const char *type, *attrs;
} vjp_cases[] = {
    {1, 6, "i32[C]", NULL},       {1, 7, "f64[T]", NULL},
    {1, 8, "i32[T,1]", NULL},     {2, 0, "f64[T,8]", NULL},
    {3, 1, "f64[C,1,4]", NULL},   {4, 1, "f64[T,1,3]", NULL},
    {5, 1, "f64[T,2,4]", NULL},   {6, 2, "f32[T,1,3]", NULL},
    {8, 3, "f64[T,2,4]", NULL},   {8, 3, "f32[T,2,3]", NULL},
    {8, 5, "f64[T,1,3]", NULL},   {9, 9, "-", NULL},
    {9, 10, "-", NULL},           {10, 9, "f64[T,2,4]", NULL},
    {10, 10, "f64[C,1,3]", NULL}, {10, 9, "i32[T,1,4]", NULL},
    {10, 10, "i32[T,1,3]", NULL}, {11, 4, "f64[T,1]", NULL},
    {11, 4, "f64[T]", NULL},      {11, 4, "f32[T,2]", NULL},
    {11, 4, "f64[C,2]", NULL},    {7, 0, "f64[T,2,4]", "scale inf, window 0, softcap 0"},
};

/* Row-wise ops of one, two and three operands. and, or, not and select take truth values. */
static const broken unary[] = {{NULL, 6, "i32[T]", ""}, {NULL, 6, "bool[T]", ""}};
static const broken binary[] = {
    {NULL, 1, "f64[T] f64[S]", ""}, {NULL, 2, "f64[T,2] f64[1,2]", ""}, {NULL, 2, "f64[T,2] f64[T]", ""},
    {NULL, 2, "f64[2] f64[T]", ""}, {NULL, 3, "f64[T,3] f64[4]", ""},   {NULL, 3, "f64[T,3] f64[T,4]", ""},
    {NULL, 4, "f64[T] f32[T]", ""}, {NULL, 6, "i32[T] i32[T]", ""},     {NULL, 6, "bool[T] bool[T]", ""}};
static const broken selects[] = {
    {NULL, 1, "bool[T] f64[S] f64[S]", ""},   {NULL, 2, "bool[T] f64[1] f64[T]", ""},
    {NULL, 3, "bool[T,3] f64[4] f64[3]", ""}, {NULL, 4, "bool[T] f64[T] f32[T]", ""},
    {NULL, 5, "f64[T] f64[T] f64[T]", ""},    {NULL, 5, "i32[T] f64[T] f64[T]", ""}};

/* Constraints that an op shares with others but cannot break. */
static bool cannot_fail(sbp_opcode code, int constraint) {
    sbp_rowop rowop = sbp_opcode_rowop(code);
    if (rowop == SBP_ROWOP_select)
        return constraint == 6; /* its values may have any one type */
    if (rowop != SBP_ROWOP_COUNT)
        return sbp_rowop_arity(rowop) == 1 ? constraint != 6 /* nothing to differ from */ : constraint == 5;
    bool alone = code == SBP_OP_silu || code == SBP_OP_gelu || code == SBP_OP_softcap;
    return alone && constraint == 1; /* one operand */
}

/* ---- what the sources state ---------------------------------------------------------------------------- */

enum { MAX_FUNCTIONS = 512, MAX_CONSTRAINT = 31 };

typedef struct source_function {
    const char *name, *body; /* body up to its end */
    uint32_t constraints;
    bool visited;
} source_function;

typedef struct sources {
    testing *t;
    source_function functions[MAX_FUNCTIONS];
    int count;
} sources;

static const char *read_file(testing *t, const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file)
        fail_msg("cannot open %s", path);
    sbp_text text;
    sbp_text_init(&text, t->arena);
    char block[4096];
    for (size_t n; (n = fread(block, 1, sizeof block, file)) > 0;)
        sbp_text_add_n(&text, block, n);
    fclose(file);
    return text.data;
}

static bool is_identifier(char c) {
    return isalnum((unsigned char)c) || c == '_';
}

/* The numbers that the requirements of a body begin with. */
static uint32_t stated(const char *body) {
    static const char macro[] = "SBP_SHAPE_REQUIRE(";
    uint32_t constraints = 0;
    for (const char *at = body; (at = strstr(at, macro)); at++) {
        const char *number = strchr(at, ',');
        int constraint = number ? atoi(number + 1) : 0;
        if (constraint < 1 || constraint > MAX_CONSTRAINT)
            fail_msg("no constraint number in '%.60s'", at);
        constraints |= 1u << constraint;
    }
    return constraints;
}

/* Functions begin at the start of a line and end with a brace there (clang-format sees to that). */
static void add_functions(sources *s, const char *text) {
    for (const char *line = text; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        size_t head = strcspn(line, "(\n;=");
        if (line[head] != '(' || !(isalpha((unsigned char)*line) || *line == '_'))
            continue;
        int depth = 0;
        const char *at = line + head;
        do
            depth += *at == '(' ? 1 : *at == ')' ? -1 : 0;
        while (*at++ && depth > 0);
        at += strspn(at, " \n");
        const char *end = *at == '{' ? strstr(at, "\n}") : NULL;
        if (!end)
            continue;
        size_t begin = head;
        while (begin > 0 && is_identifier(line[begin - 1]))
            begin--;
        assert_true(s->count < MAX_FUNCTIONS);
        const char *body = sbp_arena_strndup(s->t->arena, at, (size_t)(end - at));
        s->functions[s->count++] =
            (source_function){.name = sbp_arena_strndup(s->t->arena, line + begin, head - begin),
                              .body = body,
                              .constraints = stated(body)};
        line = end;
    }
}

static void read_rule_files(sources *s) {
    DIR *folder = opendir("ir/graph/ops");
    assert_non_null(folder);
    int files = 0;
    for (struct dirent *entry; (entry = readdir(folder));) {
        size_t length = strlen(entry->d_name);
        if (length > 2 && strcmp(entry->d_name + length - 2, ".c") == 0) {
            add_functions(s,
                          read_file(s->t, sbp_arena_printf(s->t->arena, "ir/graph/ops/%s", entry->d_name)));
            files++;
        }
    }
    closedir(folder);
    assert_true(files >= 10);
}

static uint32_t constraints_from(sources *s, const char *name) {
    uint32_t constraints = 0;
    for (int i = 0; i < s->count; i++) {
        source_function *f = &s->functions[i];
        if (f->visited || strcmp(f->name, name) != 0)
            continue;
        f->visited = true;
        constraints |= f->constraints;
        for (const char *at = f->body; (at = strchr(at, '(')); at++) {
            const char *begin = at;
            while (begin > f->body && is_identifier(begin[-1]))
                begin--;
            if (begin < at)
                constraints |=
                    constraints_from(s, sbp_arena_strndup(s->t->arena, begin, (size_t)(at - begin)));
        }
    }
    return constraints;
}

static uint32_t constraints_of(sources *s, sbp_opcode code) {
    for (int i = 0; i < s->count; i++)
        s->functions[i].visited = false;
    if (sbp_opcode_rowop(code) != SBP_ROWOP_COUNT)
        return constraints_from(s, "sbp_shape_rowop");
    return constraints_from(s, sbp_arena_printf(s->t->arena, "sbp_shape_%s", sbp_opcode_name(code)));
}

/* ---- trying -------------------------------------------------------------------------------------------- */

/* "module m { func f(%a0: stream f64[T], ...) { %r0: f64[], ... = op %a0, ... {attrs} } }" */
static const char *op_text(testing *t, sbp_opcode code, const char *operands, const char *attrs) {
    sbp_text args, uses, results;
    sbp_text_init(&args, t->arena);
    sbp_text_init(&uses, t->arena);
    sbp_text_init(&results, t->arena);
    int count = 0;
    for (const char *at = operands; *at; at += strspn(at, " ")) {
        size_t length = strcspn(at, " ");
        bool absent = length == 1 && *at == '-';
        bool carry = count == 0 && (code == SBP_OP_append || code == SBP_OP_take);
        if (!absent)
            sbp_text_add(&args, "%s%%a%d: %s %.*s", args.length ? ", " : "", count,
                         carry ? "carry" : "stream", (int)length, at);
        sbp_text_add(&uses, absent ? "%s-" : "%s%%a%d", count ? ", " : "", count);
        count++;
        at += length;
    }
    for (int32_t r = 0; r < sbp_opcode_results(code); r++)
        sbp_text_add(&results, "%s%%r%d: f64[]", r ? ", " : "", r);
    return sbp_arena_printf(t->arena, "module m { func f(%s) { %s = %s %s %s%s%s @ \"some.node\" } }",
                            args.data, results.data, sbp_opcode_name(code), uses.data, *attrs ? "{" : "",
                            attrs, *attrs ? "}" : "");
}

static void expect_broken(sbp_opcode code, int constraint, const char *operands, const char *attrs,
                          uint32_t *seen) {
    testing t = testing_open(1);
    const char *text = op_text(&t, code, operands, attrs);
    sbp_module *m;
    testing_check(&t, sbp_module_parse(t.arena, t.diag, "case", text, strlen(text), &m));
    sbp_status status = sbp_module_verify(m, t.diag);
    const char *message = sbp_diag_text(t.diag, SBP_ERROR);
    if (!strstr(message, sbp_arena_printf(t.arena, "%s_c%d: ", sbp_opcode_name(code), constraint)))
        fail_msg("%s\nexpected %s_c%d, got status %d: %s", text, sbp_opcode_name(code), constraint,
                 (int)status, message);
    assert_non_null(strstr(message, "node 'some.node', in @f"));
    assert_int_equal(status, SBP_INPUT);
    *seen |= 1u << constraint;
    testing_close(&t);
}

/* and, or, not take truth values and refuse numbers. */
static const char *for_op(testing *t, sbp_rowop rowop, const char *operands) {
    bool logical = rowop == SBP_ROWOP_and || rowop == SBP_ROWOP_or || rowop == SBP_ROWOP_not;
    sbp_text out;
    sbp_text_init(&out, t->arena);
    for (const char *at = operands; *at;) {
        if (logical && strncmp(at, "f64", 3) == 0) {
            sbp_text_add(&out, "bool");
            at += 3;
        } else if (logical && strncmp(at, "bool", 4) == 0) {
            sbp_text_add(&out, "f64");
            at += 4;
        } else {
            sbp_text_add_n(&out, at++, 1);
        }
    }
    return out.data;
}

static int try_op(testing *t, sbp_opcode code, uint32_t *seen) {
    sbp_rowop rowop = sbp_opcode_rowop(code);
    int tried = 0;
    if (rowop != SBP_ROWOP_COUNT) {
        int arity = sbp_rowop_arity(rowop);
        const broken *list = arity == 1 ? unary : arity == 2 ? binary : selects;
        int count = arity == 1 ? SBP_COUNT(unary) : arity == 2 ? SBP_COUNT(binary) : SBP_COUNT(selects);
        for (int i = 0; i < count; i++, tried++)
            expect_broken(code, list[i].constraint,
                          arity == 3 ? list[i].operands : for_op(t, rowop, list[i].operands), "", seen);
    }
    for (int i = 0; i < SBP_COUNT(cases); i++)
        if (strcmp(cases[i].op, sbp_opcode_name(code)) == 0) {
            expect_broken(code, cases[i].constraint, cases[i].operands, cases[i].attrs, seen);
            tried++;
        }
    for (int i = 0; code == SBP_OP_attention_vjp && i < SBP_COUNT(vjp_cases); i++, tried++) {
        sbp_text operands;
        sbp_text_init(&operands, t->arena);
        for (int k = 0; k < SBP_COUNT(vjp_valid); k++)
            sbp_text_add(&operands, "%s%s", k ? " " : "",
                         k == vjp_cases[i].operand ? vjp_cases[i].type : vjp_valid[k]);
        expect_broken(code, vjp_cases[i].constraint, operands.data,
                      vjp_cases[i].attrs ? vjp_cases[i].attrs : "scale 1, window 0, softcap 0", seen);
    }
    return tried;
}

static void every_constraint(void **state) {
    (void)state;
    testing t = testing_open(1);
    sources *s = SBP_NEW(t.arena, sources);
    s->t = &t;
    read_rule_files(s);
    int tried = 0, constraints = 0, impossible = 0;
    for (int code = 0; code < SBP_OP_COUNT; code++) {
        uint32_t want = constraints_of(s, (sbp_opcode)code), seen = 0;
        tried += try_op(&t, (sbp_opcode)code, &seen);
        for (int c = 1; c <= MAX_CONSTRAINT; c++) {
            bool is_stated = want >> c & 1, is_seen = seen >> c & 1,
                 is_impossible = is_stated && cannot_fail((sbp_opcode)code, c);
            constraints += is_seen;
            impossible += is_impossible;
            if (is_seen == is_impossible && is_stated)
                fail_msg("%s_c%d %s", sbp_opcode_name((sbp_opcode)code), c,
                         is_seen ? "is listed as one that cannot fail" : "has no broken op here");
            if (is_seen && !is_stated)
                fail_msg("%s_c%d: not found in the sources", sbp_opcode_name((sbp_opcode)code), c);
        }
    }
    printf("  %d broken ops break %d constraints; %d cannot fail\n", tried, constraints, impossible);
    assert_true(tried > 300 && constraints > 150);
    testing_close(&t);
}

/* ---- evaluator ----------------------------------------------------------------------------------------- */

/* Ops whose results hold zeros for other reasons than that nothing was written. */
static bool makes_zeros(sbp_opcode code) {
    static const sbp_opcode list[] = {SBP_OP_floor,
                                      SBP_OP_eq,
                                      SBP_OP_lt,
                                      SBP_OP_le,
                                      SBP_OP_and,
                                      SBP_OP_or,
                                      SBP_OP_not,
                                      SBP_OP_pad,
                                      SBP_OP_iota,
                                      SBP_OP_scatter_add,
                                      SBP_OP_group_sum,
                                      SBP_OP_scan,
                                      SBP_OP_log_prob,
                                      SBP_OP_bf16_low,
                                      SBP_OP_conv_rows,
                                      SBP_OP_conv_rows_vjp,
                                      SBP_OP_delta_rule_vjp,
                                      SBP_OP_route,
                                      SBP_OP_expert_linear_dw};
    for (int i = 0; i < SBP_COUNT(list); i++)
        if (list[i] == code)
            return true;
    return false;
}

static sbp_tensor *exact(testing *t, const sbp_tensor *from) {
    sbp_tensor *copy = SBP_NEW(t->arena, sbp_tensor);
    *copy = *from;
    size_t bytes = (size_t)from->elems * sizeof(double);
    copy->data = malloc(bytes ? bytes : 1);
    memcpy(copy->data, from->data, bytes);
    return copy;
}

/* Runs the op once on buffers of exactly the size that the types say; marks elements that are not zero. */
static void run_exact(testing *t, const example_graph *g, const documents *rows, const sbp_eval_env *env,
                      bool *written[SBP_MAX_RESULTS], int64_t elems[SBP_MAX_RESULTS]) {
    sbp_tensor **inputs = example_inputs(t, g, rows, env);
    const sbp_op *op = &g->func->ops[0];
    sbp_eval eval = {.env = env, .op = op};
    sbp_tensor *outs[SBP_MAX_RESULTS];
    for (int32_t i = 0; i < g->func->arg_count; i++)
        eval.in[g->operand[i]] = exact(t, inputs[i]);
    for (int32_t r = 0; r < op->result_count; r++) {
        eval.out[r] = outs[r] =
            exact(t, sbp_tensor_create(t->arena, &g->func->values[op->results[r]].type, &env->sizes));
        elems[r] = outs[r]->elems;
        if (!written[r])
            written[r] = SBP_NEW_ARRAY(t->arena, bool, elems[r]);
    }
    testing_check(t, sbp_opcode_rules(g->code)->eval(&eval));
    for (int32_t i = 0; i < g->func->arg_count; i++) {
        assert_memory_equal(eval.in[g->operand[i]]->data, inputs[i]->data,
                            (size_t)inputs[i]->elems * sizeof(double)); /* operands are left alone */
        free(eval.in[g->operand[i]]->data);
    }
    for (int32_t r = 0; r < op->result_count; r++) {
        for (int64_t j = 0; j < elems[r]; j++) {
            written[r][j] |= outs[r]->data[j] != 0;
            assert_true(isfinite(outs[r]->data[j]));
        }
        free(outs[r]->data);
    }
}

static void evaluator_fills_what_the_rule_says(void **state) {
    (void)state;
    static const int64_t sizes[] = {1, 2, 3, 7, 11};
    int runs = 0, examples = 0;
    for (int code = 0; code < SBP_OP_COUNT; code++)
        for (int n = 0; n < SBP_COUNT(sizes); n++) {
            testing t = testing_open((uint64_t)code);
            example_graph g;
            for (int32_t i = 0; example_graph_build(&t, (sbp_opcode)code, i, SBP_F64, &g); i++, examples++) {
                documents rows = documents_layout(sizes[n]);
                sbp_eval_env env = example_env(&t, sizes[n]);
                bool *written[SBP_MAX_RESULTS] = {0};
                int64_t elems[SBP_MAX_RESULTS];
                for (int pass = 0; pass < 3; pass++, runs++)
                    run_exact(&t, &g, &rows, &env, written, elems);
                for (int32_t r = 0; r < g.func->ops[0].result_count; r++)
                    for (int64_t j = 0; j < elems[r]; j++)
                        if (!written[r][j] && !makes_zeros((sbp_opcode)code))
                            fail_msg("%s: element %lld of result %d is never written for T = %lld",
                                     sbp_opcode_name((sbp_opcode)code), (long long)j, r, (long long)sizes[n]);
            }
            testing_close(&t);
        }
    printf("  %d examples, %d runs\n", examples, runs);
    assert_true(examples > 5 * 3 * SBP_OP_COUNT / 2);
}

/* Numbers from outside are checked where they index: a label, a token, a group. */
static void indices_out_of_range(void **state) {
    (void)state;
    static const struct {
        sbp_opcode code;
        int32_t arg;
        double value;
        const char *message;
    } list[] = {
        {SBP_OP_gather, 1, 6, "gather: index 6 of 6 in row 1"},
        {SBP_OP_gather, 1, -1, "gather: index -1 of 6"},
        {SBP_OP_scatter_add, 1, 6, "scatter_add: index 6 of 6"},
        {SBP_OP_group_sum, 1, 3, "group_sum: group 3 of 3"},
        {SBP_OP_group_take, 1, -1, "group_take: group -1 of 3"},
        {SBP_OP_scan, 2, 3, "scan: group 3 of 3"},
        {SBP_OP_log_prob, 1, 7, "log_prob: label 7 of 7"},
        {SBP_OP_take_at, 1, 5, "take_at: column 5 of 5"},
        {SBP_OP_expert_linear, 1, 3, "expert_linear: expert 3 of 3 in row 0"},
        {SBP_OP_expert_linear_dw, 2, -1, "expert_linear_dw: expert -1 of 3 in row 0"},
    };
    for (int i = 0; i < SBP_COUNT(list); i++) {
        testing t = testing_open(1);
        example_graph g;
        assert_true(example_graph_build(&t, list[i].code, 0, SBP_F64, &g));
        documents rows = documents_layout(3);
        sbp_eval_env env = example_env(&t, 3);
        sbp_tensor **inputs = example_inputs(&t, &g, &rows, &env);
        inputs[list[i].arg]->data[1] = list[i].value;
        sbp_tensor **values = SBP_NEW_ARRAY(t.arena, sbp_tensor *, g.func->value_count);
        for (int32_t k = 0; k < g.func->arg_count; k++)
            values[g.func->args[k]] = inputs[k];
        testing_check_fails(&t, sbp_evaluate(g.module, g.func, &env, values), SBP_INPUT, list[i].message);
        testing_close(&t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_constraint),
                                       cmocka_unit_test(evaluator_fills_what_the_rule_says),
                                       cmocka_unit_test(indices_out_of_range)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
