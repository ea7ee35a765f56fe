// gemm.glsl: what the variants of gemm share. d = alpha op(a) op(b) + beta c + bias; sums in REAL.
// TA, TB: op transposes. LOAD_x, STORE_x, x_BYTES, x_OPERAND of the operands that are there.

// Terms that one chain of sums has; then those sums are added. A single chain over a vocabulary of 50,000
// loses more than a digit of fp32.
const int BLOCK = 256;

#ifdef SBP_REAL_F64
#define REAL4 dvec4
#else
#define REAL4 vec4
#endif

// Four elements that follow each other in memory.
#if defined(a_IS_F32) && !defined(SBP_REAL_F64)
#define LOAD4_A(at, i) M_f32x4((at) + uint64_t(i) * 4u).v
#else
#define LOAD4_A(at, i) REAL4(LOAD_a(at, i), LOAD_a(at, (i) + 1), LOAD_a(at, (i) + 2), LOAD_a(at, (i) + 3))
#endif
#if defined(b_IS_F32) && !defined(SBP_REAL_F64)
#define LOAD4_B(at, i) M_f32x4((at) + uint64_t(i) * 4u).v
#else
#define LOAD4_B(at, i) REAL4(LOAD_b(at, i), LOAD_b(at, (i) + 1), LOAD_b(at, (i) + 2), LOAD_b(at, (i) + 3))
#endif

// op(a) at (m, k), op(b) at (k, n)
REAL a_at(Operand a, int m, int k) {
#if TA
    return LOAD_a(row_address(a, k, a_BYTES), m);
#else
    return LOAD_a(row_address(a, m, a_BYTES), k);
#endif
}
REAL b_at(Operand b, int k, int n) {
#if TB
    return LOAD_b(row_address(b, n, b_BYTES), k);
#else
    return LOAD_b(row_address(b, k, b_BYTES), n);
#endif
}

void finish(int m, int n, REAL sum) {
    REAL x = ARG_NUMBER(0) * sum;
#ifdef c_OPERAND
    if (ARG_NUMBER(1) != REAL(0.0))
        x += ARG_NUMBER(1) * LOAD_c(row_address(args.operands[c_OPERAND], m, c_BYTES), n);
#endif
#ifdef bias_OPERAND
    x += LOAD_bias(args.operands[bias_OPERAND].address, n);
#endif
    STORE_d(row_address(args.operands[d_OPERAND], m, d_BYTES), n, x);
}
