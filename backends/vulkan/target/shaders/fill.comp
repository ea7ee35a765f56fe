// fill.comp: dst = the bits in args.ints. One invocation per element. BYTES: of an element.

void main() {
    Operand dst = args.operands[0];
    uint row, column;
    flat_position(uint(dst.cols), row, column);
    if (row >= uint(dst.rows))
        return;
    uint64_t at = row_address(dst, int(row), BYTES) + uint64_t(column) * BYTES;
#if BYTES == 1
    M_u8(at).v[0] = uint8_t(args.ints[0]);
#elif BYTES == 2
    M_u16(at).v[0] = uint16_t(args.ints[0]);
#elif BYTES == 4
    M_i32(at).v[0] = args.ints[0];
#else
    M_u64(at).v[0] = uint64_t(uint(args.ints[0])) | uint64_t(uint(args.ints[1])) << 32;
#endif
}
