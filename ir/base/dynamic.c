/* dynamic.c: the tables of dynamic.h, written out by the compiler, and rounding by a search in them. */
#include "ir/base/dynamic.h"

/* Part f of n of the decade that ends at `ten`, and the border above it; after: the number behind the decade.
 */
#define NUMBER(ten, n, f, after) ((float)((ten) * (0.1 + 0.9 * ((f) + 0.5) / (n))))
#define NEGATIVE(ten, n, f, after) -NUMBER(ten, n, f, after)
#define BORDER(ten, n, f, after)                                                                             \
    (0.5f * (NUMBER(ten, n, f, after) + ((f) + 1 < (n) ? NUMBER(ten, n, (f) + 1, after) : (after))))

#define PARTS1(what, ten, n, f, after) what(ten, n, f, after)
#define PARTS2(what, ten, n, f, after) PARTS1(what, ten, n, f, after), PARTS1(what, ten, n, (f) + 1, after)
#define PARTS4(what, ten, n, f, after) PARTS2(what, ten, n, f, after), PARTS2(what, ten, n, (f) + 2, after)
#define PARTS8(what, ten, n, f, after) PARTS4(what, ten, n, f, after), PARTS4(what, ten, n, (f) + 4, after)
#define PARTS16(what, ten, n, f, after) PARTS8(what, ten, n, f, after), PARTS8(what, ten, n, (f) + 8, after)
#define PARTS32(what, ten, n, f, after)                                                                      \
    PARTS16(what, ten, n, f, after), PARTS16(what, ten, n, (f) + 16, after)
#define PARTS64(what, ten, n, f, after)                                                                      \
    PARTS32(what, ten, n, f, after), PARTS32(what, ten, n, (f) + 32, after)
#define PARTS128(what, ten, n, f, after)                                                                     \
    PARTS64(what, ten, n, f, after), PARTS64(what, ten, n, (f) + 64, after)

#define D8(what)                                                                                             \
    PARTS1(what, 1e-6, 1, 0, NUMBER(1e-5, 2, 0, )), PARTS2(what, 1e-5, 2, 0, NUMBER(1e-4, 4, 0, )),          \
        PARTS4(what, 1e-4, 4, 0, NUMBER(1e-3, 8, 0, )), PARTS8(what, 1e-3, 8, 0, NUMBER(1e-2, 16, 0, )),     \
        PARTS16(what, 1e-2, 16, 0, NUMBER(1e-1, 32, 0, )), PARTS32(what, 1e-1, 32, 0, NUMBER(1, 64, 0, )),   \
        PARTS64(what, 1, 64, 0, 1.0f)
#define UD8(what)                                                                                            \
    PARTS2(what, 1e-6, 2, 0, NUMBER(1e-5, 4, 0, )), PARTS4(what, 1e-5, 4, 0, NUMBER(1e-4, 8, 0, )),          \
        PARTS8(what, 1e-4, 8, 0, NUMBER(1e-3, 16, 0, )), PARTS16(what, 1e-3, 16, 0, NUMBER(1e-2, 32, 0, )),  \
        PARTS32(what, 1e-2, 32, 0, NUMBER(1e-1, 64, 0, )), PARTS64(what, 1e-1, 64, 0, NUMBER(1, 128, 0, )),  \
        PARTS128(what, 1, 128, 0, 1.0f)

const float sbp_d8_numbers[256] = {0, D8(NUMBER), 1, D8(NEGATIVE)};
const float sbp_ud8_numbers[256] = {0, UD8(NUMBER), 1};
const float sbp_d8_borders[128] = {0.5f * NUMBER(1e-6, 1, 0, ), D8(BORDER)};
const float sbp_ud8_borders[255] = {0.5f * NUMBER(1e-6, 2, 0, ), UD8(BORDER)};

/* How many of the ascending borders are below the value. */
static int magnitude(const float *borders, int count, float value) {
    int low = 0, high = count; /* between them */
    while (low < high) {
        int middle = (low + high) / 2;
        if (value > borders[middle])
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

uint8_t sbp_d8_from_f32(float value) {
    int k = magnitude(sbp_d8_borders, 128, value < 0 ? -value : value);
    if (!(value < 0))
        return (uint8_t)k; /* 128 is 1 */
    return (uint8_t)(0x80 | (k < 1 ? 1 : k > 127 ? 127 : k));
}

uint8_t sbp_ud8_from_f32(float value) {
    return (uint8_t)magnitude(sbp_ud8_borders, 255, value);
}
