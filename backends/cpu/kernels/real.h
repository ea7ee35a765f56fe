/* real.h: the arithmetic of a *_body.h file, which is included once for fp32 and once for fp64. Before:
 * REAL_IS_F64 is 0 or 1. After: REAL, VEC, VEC_MEMORY, NAME(x), R(constant). Included again, it redefines
 * them. */
#undef REAL
#undef VEC
#undef VEC_MEMORY
#undef VEC_FMA
#undef VL
#undef NAME
#undef R
#undef REAL_DTYPE
#if REAL_IS_F64
#define REAL double
#define VEC vec_f64
#define VEC_MEMORY vec_f64_memory
#define VEC_FMA vec_fma_f64
#define NAME(name) name##_f64
#define REAL_DTYPE SBP_F64
#else
#define REAL float
#define VEC vec_f32
#define VEC_MEMORY vec_f32_memory
#define VEC_FMA vec_fma_f32
#define NAME(name) name##_f32
#define REAL_DTYPE SBP_F32
#endif
#define VL ((int64_t)(CPU_VECTOR_BYTES / sizeof(REAL))) /* elements of a vector */
#define R(x) ((REAL)(x))
