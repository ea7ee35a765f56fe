// prelude.cuh: the argument record of backends/gpu/gpu.h, in CUDA C.
struct Operand { unsigned long long address; int rows, cols, stride, first_row; };
struct Args { unsigned long long scratch; long long row0; int rows, count; int ints[10]; float floats[16]; double doubles[16]; unsigned keys[32]; Operand operands[24]; };
