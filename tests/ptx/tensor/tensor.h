/* What PTX says of numbers, matrix fragments, tensor copies and approximations, as pure functions without
 * state: the machine that executes PTX (the folder above) asks here where an element lives and what an
 * operation gives. Nothing here knows registers by name, memory or time.
 *
 * Section numbers are those of the PTX ISA 9.0. Thread safety: every function is pure. */
#ifndef SBP_PTX_TENSOR_H
#define SBP_PTX_TENSOR_H

#include "tests/ptx/tensor/approx.h"
#include "tests/ptx/tensor/formats.h"
#include "tests/ptx/tensor/matrix.h"
#include "tests/ptx/tensor/mma.h"
#include "tests/ptx/tensor/tma.h"
#include "tests/ptx/tensor/wgmma.h"

#endif
