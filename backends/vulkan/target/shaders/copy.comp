// copy.comp: dst = src, element by element. One invocation per element. BYTES: of an element.

#if BYTES == 1
#define MEMORY M_u8
#elif BYTES == 2
#define MEMORY M_u16
#elif BYTES == 4
#define MEMORY M_u32
#else
#define MEMORY M_u64
#endif

void main() {
    Operand dst = args.operands[0], src = args.operands[1];
    uint row, column;
    flat_position(uint(dst.cols), row, column);
    if (row >= uint(dst.rows))
        return;
    MEMORY(row_address(dst, int(row), BYTES)).v[column] = MEMORY(row_address(src, int(row), BYTES)).v[column];
}
