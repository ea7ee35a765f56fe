/* rows_ops_body.h: a loop per scalar function and per pattern of one-element operands; per function of
 * integers; and the lookup in a table. See real.h. */

/* y may be a, b or c (a store in place), else it overlaps none of them. */
typedef void (*NAME(map_loop))(int64_t n, const REAL *a, const REAL *b, const REAL *c, REAL *y);

#define LOOP(name, pattern, first, second, third, expression)                                                \
    static void NAME(name##_##pattern)(int64_t n, const REAL *pa, const REAL *pb, const REAL *pc, REAL *y) { \
        (void)pb;                                                                                            \
        (void)pc;                                                                                            \
        first;                                                                                               \
        second;                                                                                              \
        third;                                                                                               \
        _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++) {                                               \
            GET_##pattern y[i] = (expression);                                                               \
        }                                                                                                    \
    }

#define GET_v REAL a = pa[i];
#define GET_vv                                                                                               \
    REAL a = pa[i];                                                                                          \
    REAL b = pb[i];
#define GET_sv REAL b = pb[i];
#define GET_vs REAL a = pa[i];
#define GET_vvv                                                                                              \
    REAL a = pa[i];                                                                                          \
    REAL b = pb[i];                                                                                          \
    REAL c = pc[i];
#define GET_vsv                                                                                              \
    REAL a = pa[i];                                                                                          \
    REAL c = pc[i];
#define GET_vvs                                                                                              \
    REAL a = pa[i];                                                                                          \
    REAL b = pb[i];
#define GET_vss REAL a = pa[i];

#define UNARY(name, expression) LOOP(name, v, (void)0, (void)0, (void)0, expression)
#define BINARY(name, expression)                                                                             \
    LOOP(name, vv, (void)0, (void)0, (void)0, expression)                                                    \
    LOOP(name, sv, REAL a = *pa, (void)0, (void)0, expression)                                               \
    LOOP(name, vs, (void)0, REAL b = *pb, (void)0, expression)
#define TERNARY(name, expression)                                                                            \
    LOOP(name, vvv, (void)0, (void)0, (void)0, expression)                                                   \
    LOOP(name, vsv, (void)0, REAL b = *pb, (void)0, expression)                                              \
    LOOP(name, vvs, (void)0, (void)0, REAL c = *pc, expression)                                              \
    LOOP(name, vss, (void)0, REAL b = *pb, REAL c = *pc, expression)

UNARY(neg, -a)
UNARY(abs, NAME(sbp_abs)(a))
UNARY(floor, NAME(sbp_floor)(a))
UNARY(exp, NAME(sbp_exp)(a))
UNARY(log, NAME(sbp_log)(a))
UNARY(sqrt, NAME(sbp_sqrt)(a))
UNARY(rsqrt, NAME(sbp_rsqrt)(a))
UNARY(tanh, NAME(sbp_tanh)(a))
UNARY(erf, NAME(sbp_erf)(a))
UNARY(sin, NAME(sbp_sin)(a))
UNARY(cos, NAME(sbp_cos)(a))
UNARY(sigmoid, NAME(sbp_sigmoid)(a))
UNARY(log_sigmoid, NAME(sbp_log_sigmoid)(a))
BINARY(add, a + b)
BINARY(sub, a - b)
BINARY(mul, a *b)
BINARY(div, a / b)
BINARY(max, a > b || a != a ? a : b)
BINARY(min, a < b || a != a ? a : b)
BINARY(eq, a == b ? R(1) : R(0))
BINARY(lt, a < b ? R(1) : R(0))
BINARY(le, a <= b ? R(1) : R(0))
BINARY(and, a != 0 && b != 0 ? R(1) : R(0))
BINARY(or, a != 0 || b != 0 ? R(1) : R(0))
UNARY(not, a == 0 ? R(1) : R(0))
TERNARY(select, a != 0 ? b : c)
UNARY(bf16_high, NAME(sbp_bf16_high)(a))
UNARY(bf16_low, NAME(sbp_bf16_low)(a))
BINARY(bf16_join, NAME(sbp_bf16_join)(a, b))
BINARY(bf16_random, NAME(sbp_bf16_random)(a, b))

/* By function, then by the bits of row_step.scalars. A function of rowops.def without a line here leaves a
 * NULL, which test_rowops of the conformance suite would meet. */
#define TABLE1(name) [SBP_ROWOP_##name] = {[0] = NAME(name##_v)}
#define TABLE2(name)                                                                                         \
    [SBP_ROWOP_##name] = {[0] = NAME(name##_vv), [1] = NAME(name##_sv), [2] = NAME(name##_vs)}
#define TABLE3(name)                                                                                         \
    [SBP_ROWOP_##name] = {                                                                                   \
        [0] = NAME(name##_vvv), [2] = NAME(name##_vsv), [4] = NAME(name##_vvs), [6] = NAME(name##_vss)}

static const NAME(map_loop) NAME(map_loops)[SBP_ROWOP_COUNT][8] = {
    TABLE1(neg),    TABLE1(abs),       TABLE1(floor),    TABLE1(exp),         TABLE1(log),
    TABLE1(sqrt),   TABLE1(rsqrt),     TABLE1(tanh),     TABLE1(erf),         TABLE1(sin),
    TABLE1(cos),    TABLE1(not ),      TABLE1(sigmoid),  TABLE1(log_sigmoid), TABLE2(add),
    TABLE2(sub),    TABLE2(mul),       TABLE2(div),      TABLE2(max),         TABLE2(min),
    TABLE2(eq),     TABLE2(lt),        TABLE2(le),       TABLE2(and),         TABLE2(or),
    TABLE3(select), TABLE1(bf16_high), TABLE1(bf16_low), TABLE2(bf16_join),   TABLE2(bf16_random)};

#undef LOOP
#undef GET_v
#undef GET_vv
#undef GET_sv
#undef GET_vs
#undef GET_vvv
#undef GET_vsv
#undef GET_vvs
#undef GET_vss
#undef UNARY
#undef BINARY
#undef TERNARY
#undef TABLE1
#undef TABLE2
#undef TABLE3

/* ---- integers ------------------------------------------------------------------------------------- */

/* b: the second operand; where there is none, p is the constant. */
typedef void (*NAME(integer_loop))(int64_t n, const REAL *a, const REAL *b, int32_t constant, int32_t q,
                                   REAL *y);

#define INTOP(name, arity, constants, value, low, high)                                                      \
    static void NAME(integer_##name)(int64_t n, const REAL *restrict a, const REAL *restrict b,              \
                                     int32_t constant, int32_t q, REAL *restrict y) {                        \
        (void)q;                                                                                             \
        for (int64_t i = 0; i < n; i++) {                                                                    \
            int32_t x = (int32_t)a[i], p = (arity) == 2 ? (int32_t)b[i] : constant;                          \
            y[i] = (REAL)(value);                                                                            \
        }                                                                                                    \
    }
#include "ir/rowkernel/intops.def"
#undef INTOP

static const NAME(integer_loop) NAME(integer_loops)[SBP_INTOP_COUNT] = {
#define INTOP(name, arity, constants, value, low, high) NAME(integer_##name),
#include "ir/rowkernel/intops.def"
#undef INTOP
};

/* numbers: SBP_ROWKERNEL_TABLE_NUMBERS of them, aligned; a: places among them. */
static void NAME(lookup)(int64_t n, const REAL *restrict a, const REAL *restrict numbers, REAL *restrict y) {
    int64_t i = 0;
#if !REAL_IS_F64 && CPU_VECTOR_BYTES >= 32 && __has_builtin(__builtin_shuffle)
    /* the table is one vector or two, which an instruction picks from; the builtin is gcc's */
    for (; i + VL <= n; i += VL) {
        BITS at = __builtin_convertvector(*(const VEC_MEMORY *)(a + i), BITS);
#if CPU_VECTOR_BYTES == 64
        VEC found = __builtin_shuffle(*(const VEC *)numbers, at);
#else
        VEC found = __builtin_shuffle(*(const VEC *)numbers, *(const VEC *)(numbers + VL), at);
#endif
        *(VEC_MEMORY *)(y + i) = found;
    }
#endif
    for (; i < n; i++)
        y[i] = numbers[(int32_t)a[i]];
}
