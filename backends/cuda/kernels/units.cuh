// units.cuh: rows of elements that are moved as they are, BYTES each: by 16 bytes where every row begins at a
// multiple of them (ints[8]), else one by one.

#if BYTES == 1
typedef u8 Element;
#elif BYTES == 2
typedef u16 Element;
#elif BYTES == 4
typedef u32 Element;
#else
typedef u64 Element;
#endif

enum { PER_UNIT = 16 / BYTES };

DEVICE Element &element(const Operand &o, int row, int column) {
    return *at_element<Element>(row_address(o, row, BYTES), column);
}
DEVICE uint4 &unit(const Operand &o, int row, int column) {
    return *at_element<uint4>(row_address(o, row, BYTES) + (u64)column * BYTES, 0);
}
