#include "tests/ptx/tensor/wgmma.h"

// ---- descriptors ------------------------------------------------------------------------------------------

static uint32_t field(uint64_t bits, int low) {
    return (uint32_t)(bits >> low & 0x3fff) << 4;
}

sbp_ptx_descriptor sbp_ptx_descriptor_decode(uint64_t bits) {
    static const uint32_t spans[] = {0, 128, 64, 32};
    return (sbp_ptx_descriptor){
        .start = field(bits, 0),
        .leading = field(bits, 16),
        .stride = field(bits, 32),
        .base_offset = (uint32_t)(bits >> 49 & 7),
        .span = spans[bits >> 62],
    };
}

uint64_t sbp_ptx_descriptor_encode(const sbp_ptx_descriptor *descriptor) {
    const uint64_t mode = descriptor->span == 128  ? 1
                          : descriptor->span == 64 ? 2
                          : descriptor->span == 32 ? 3
                                                   : 0;
    return (uint64_t)(descriptor->start >> 4 & 0x3fff) | (uint64_t)(descriptor->leading >> 4 & 0x3fff) << 16 |
           (uint64_t)(descriptor->stride >> 4 & 0x3fff) << 32 |
           (uint64_t)(descriptor->base_offset & 7) << 49 | mode << 62;
}

const char *sbp_ptx_descriptor_fault(uint64_t bits) {
    const uint64_t fields = UINT64_C(0x3fff) | UINT64_C(0x3fff) << 16 | UINT64_C(0x3fff) << 32 |
                            UINT64_C(7) << 49 | UINT64_C(3) << 62;
    if (bits & ~fields) {
        return "reserved bits of a matrix descriptor are set";
    }
    return bits >> 49 & 7 ? "matrix descriptors with a base offset are not supported" : NULL;
}

uint32_t sbp_ptx_descriptor_piece(const sbp_ptx_descriptor *descriptor, bool mn_major, int element_bytes,
                                  int x, int k) {
    const uint32_t t = 16 / (uint32_t)element_bytes, w = descriptor->span / 16;
    const uint32_t ux = (uint32_t)x, uk = (uint32_t)k, lbo = descriptor->leading, sbo = descriptor->stride;
    uint32_t offset;
    if (!mn_major) {
        offset = w == 0 ? ux % 8 * 16 + ux / 8 * sbo + uk / t * lbo
                        : ux % 8 * descriptor->span + ux / 8 * sbo + uk / t * 16;
    } else if (w == 0) {
        offset = uk % 8 * 16 + uk / 8 * lbo + ux / t * sbo;
    } else {
        offset = uk % 8 * descriptor->span + uk / 8 * sbo + ux / t % w * 16 + ux / (t * w) * lbo;
    }
    return sbp_ptx_swizzle(descriptor->span, (descriptor->start + offset) & 0x3ffff);
}

// ---- forms and fragments ----------------------------------------------------------------------------------

static bool eight_bits(sbp_ptx_type type) {
    return type == SBP_PTX_E4M3 || type == SBP_PTX_E5M2;
}

static bool integer(sbp_ptx_type type) {
    return type == SBP_PTX_S8 || type == SBP_PTX_U8;
}

const char *sbp_ptx_wgmma_make(sbp_ptx_wgmma *op) {
    const bool sixteen = op->a == SBP_PTX_BF16 || op->a == SBP_PTX_F16, integers = integer(op->a);
    if (!(sixteen || op->a == SBP_PTX_TF32 || eight_bits(op->a) || integers) ||
        !(op->a == op->b || (eight_bits(op->a) && eight_bits(op->b)) || (integers && integer(op->b)))) {
        return "no wgmma of these types of A and B";
    }
    if (integers ? op->d != SBP_PTX_S32
                 : op->d != SBP_PTX_F32 &&
                       !(op->d == SBP_PTX_F16 && (op->a == SBP_PTX_F16 || eight_bits(op->a)))) {
        return "no wgmma with this type of D";
    }
    if (op->n < 8 || op->n > 256 || op->n % 8 != 0 || (integers && op->n > 32 && op->n % 16 != 0)) {
        return "no wgmma of this n";
    }
    if ((op->a_trans || op->b_trans) && !sixteen) {
        return "wgmma transposes elements of 16 bits only";
    }
    if (op->a_trans && op->a_from_registers) {
        return "wgmma does not transpose A in registers";
    }
    op->k = 256 / sbp_ptx_type_bits(op->a);
    op->a_regs = 4;
    op->d_regs = op->d == SBP_PTX_F16 ? op->n / 4 : op->n / 2;
    return NULL;
}

// The form of mma.sync whose fragment of A a warp of the group holds.
static sbp_ptx_mma warp_form(const sbp_ptx_wgmma *op) {
    return (sbp_ptx_mma){.m = 16, .n = 8, .k = op->k, .a = op->a, .b = op->b, .cd = op->d, .a_regs = 4};
}

sbp_ptx_place sbp_ptx_wgmma_a(const sbp_ptx_wgmma *op, int thread, int element) {
    const sbp_ptx_mma form = warp_form(op);
    const sbp_ptx_place at = sbp_ptx_mma_a(&form, thread % 32, element);
    return (sbp_ptx_place){16 * (thread / 32) + at.row, at.col};
}

sbp_ptx_place sbp_ptx_wgmma_d(const sbp_ptx_wgmma *op, int thread, int element) {
    (void)op;
    const int lane = thread % 32;
    return (sbp_ptx_place){16 * (thread / 32) + lane / 4 + 8 * (element / 2 % 2),
                           8 * (element / 4) + 2 * (lane % 4) + element % 2};
}

// ---- the product ------------------------------------------------------------------------------------------

// Reads a matrix of `size` along M or N into out, where element (x, k) goes to out[x * x_step + k * k_step].
static bool read_matrix(uint64_t bits, bool mn_major, sbp_ptx_type type, int size, int depth, int x_step,
                        int k_step, double sign, sbp_ptx_read_fn read, void *user, double *out) {
    const sbp_ptx_descriptor descriptor = sbp_ptx_descriptor_decode(bits);
    const int bytes = sbp_ptx_type_bits(type) / 8, t = 16 / bytes;
    for (int x = 0; x < size; x += mn_major ? t : 1) {
        for (int k = 0; k < depth; k += mn_major ? 1 : t) {
            uint8_t piece[16];
            if (!read(user, sbp_ptx_descriptor_piece(&descriptor, mn_major, bytes, x, k), piece)) {
                return false;
            }
            for (int e = 0; e < t; e++) {
                uint32_t element = 0;
                memcpy(&element, piece + e * bytes, (size_t)bytes);
                const int at_x = mn_major ? x + e : x, at_k = mn_major ? k : k + e;
                out[at_x * x_step + at_k * k_step] = sign * sbp_ptx_value(type, element);
            }
        }
    }
    return true;
}

static void gather_a(const sbp_ptx_wgmma *op, const uint32_t *const *a, double *out) {
    const int w = 32 / sbp_ptx_type_bits(op->a);
    for (int warp = 0; warp < 4; warp++) {
        for (int r = 0; r < op->a_regs; r++) {
            double values[4][32];
            sbp_ptx_values(op->a, a[warp * op->a_regs + r], values);
            for (int e = 0; e < 32 * w; e++) {
                const sbp_ptx_place at = sbp_ptx_wgmma_a(op, warp * 32 + e % 32, r * w + e / 32);
                out[at.row * op->k + at.col] = op->a_minus ? -values[e / 32][e % 32] : values[e / 32][e % 32];
            }
        }
    }
}

// Where register r of a warp begins in D, element j of it: of lane 0; see sbp_ptx_wgmma_d.
static double *d_start(const sbp_ptx_wgmma *op, double *matrix, int warp, int element) {
    const sbp_ptx_place at = sbp_ptx_wgmma_d(op, warp * 32, element);
    return matrix + at.row * op->n + at.col;
}

static void gather_d(const sbp_ptx_wgmma *op, uint32_t *const *d, double *out) {
    const int w = 32 / sbp_ptx_type_bits(op->d);
    if (!op->keep_d) {
        memset(out, 0, sizeof *out * 64 * (size_t)op->n);
        return;
    }
    for (int i = 0; i < 4 * op->d_regs; i++) {
        double values[4][32];
        sbp_ptx_values(op->d, d[i], values);
        for (int j = 0; j < w; j++) {
            double *start = d_start(op, out, i / op->d_regs, i % op->d_regs * w + j);
            for (int lane = 0; lane < 32; lane++) {
                start[lane / 4 * op->n + lane % 4 * 2] = values[j][lane];
            }
        }
    }
}

static void scatter_d(const sbp_ptx_wgmma *op, double *values, uint32_t *const *d) {
    const int w = 32 / sbp_ptx_type_bits(op->d);
    for (int i = 0; i < 4 * op->d_regs; i++) {
        double parts[4][32];
        for (int j = 0; j < w; j++) {
            const double *start = d_start(op, values, i / op->d_regs, i % op->d_regs * w + j);
            for (int lane = 0; lane < 32; lane++) {
                parts[j][lane] = start[lane / 4 * op->n + lane % 4 * 2];
            }
        }
        sbp_ptx_rounded(op->d, parts, d[i]);
    }
}

bool sbp_ptx_wgmma_group(const sbp_ptx_wgmma *op, const uint32_t *const *a, uint64_t a_desc, uint64_t b_desc,
                         uint32_t *const *d, sbp_ptx_read_fn read, void *user, uint64_t seed) {
    double am[64 * 32], bm[32 * 256], dm[64 * 256];
    if (op->a_from_registers) {
        gather_a(op, a, am);
    } else if (!read_matrix(a_desc, op->a_trans, op->a, 64, op->k, op->k, 1, op->a_minus ? -1 : 1, read, user,
                            am)) {
        return false;
    }
    if (!read_matrix(b_desc, op->b_trans, op->b, op->n, op->k, 1, op->n, op->b_minus ? -1 : 1, read, user,
                     bm)) {
        return false;
    }
    gather_d(op, d, dm);
    sbp_ptx_multiply(64, op->n, op->k, am, bm, dm, dm, op->d, sbp_ptx_accumulation_of(seed));
    scatter_d(op, dm, d);
    return true;
}
