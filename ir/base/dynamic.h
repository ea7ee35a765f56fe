/* dynamic.h: the numbers of the dtypes d8 and ud8, in which optimizer states are kept: the dynamic maps of
 * 8-bit Adam (Dettmers, Lewis, Shleifer, Zettlemoyer: 8-bit Optimizers via Block-wise Quantization, 2022; in
 * bitsandbytes create_dynamic_map(signed, 7 exponent bits, 8 bits)). Decades are cut into twice as many equal
 * parts from one to the next, a number is the middle of a part:
 *
 *     d8    k = 2^e + f, e = 0 .. 6, 0 <= f < 2^e:      10^(e-6) (0.1 + 0.9 (f + 1/2) / 2^e)
 *     ud8   k + 1 = 2^e + f, e = 1 .. 7, 0 <= f < 2^e:  10^(e-7) (0.1 + 0.9 (f + 1/2) / 2^e)
 *
 * rounded to fp32; k = 0 is 0 and the last one, 128 or 255, is 1. d8 has the negatives of 1 .. 127 too.
 *
 * A byte of ud8 is k. A byte of d8 is k in its low seven bits and the sign in the highest; 1 is 0x80, where
 * -0 would be. So byte 0 is 0 in both, and memory that is cleared is full of zeros.
 *
 * Rounding is to nearest of the value as fp32. The border between two neighbours is their mean, rounded to
 * fp32, and belongs to the one nearer to 0. What is below 0 never becomes 0 in d8 but its smallest negative,
 * so that a state keeps its sign, and always 0 in ud8; what is too large becomes the last number; NaN becomes
 * 0. */
#ifndef SBP_IR_BASE_DYNAMIC_H
#define SBP_IR_BASE_DYNAMIC_H

#include <stdint.h>

/* By byte. */
extern const float sbp_d8_numbers[256], sbp_ud8_numbers[256];
/* [k]: the border between magnitudes k and k + 1. */
extern const float sbp_d8_borders[128], sbp_ud8_borders[255];

uint8_t sbp_d8_from_f32(float value);
uint8_t sbp_ud8_from_f32(float value);

#endif
