// gather.comp: dst[r, :] = table[index[r], :], 0 where the index is no row of the table. One
// invocation per element.

#if BYTES == 1
#define MEMORY M_u8
#define MEMORY_ZERO uint8_t(0u)
#elif BYTES == 2
#define MEMORY M_u16
#define MEMORY_ZERO uint16_t(0u)
#elif BYTES == 4
#define MEMORY M_u32
#define MEMORY_ZERO 0u
#else
#define MEMORY M_u64
#define MEMORY_ZERO uint64_t(0u)
#endif

void main() {
    Operand dst = args.operands[dst_OPERAND], table = args.operands[table_OPERAND];
    uint row, column;
    flat_position(uint(dst.cols), row, column);
    if (row >= uint(dst.rows))
        return;
    int from = INDEX_index(row_address(args.operands[index_OPERAND], int(row), index_BYTES));
    bool exists = from >= 0 && from < table.rows;
    uint64_t to = row_address(dst, int(row), dst_BYTES);
    if (!exists) {
        MEMORY(to).v[column] = MEMORY_ZERO;
        return;
    }
#ifdef SAME
    MEMORY(to).v[column] = MEMORY(row_address(table, from, BYTES)).v[column];
#else
    STORE_dst(to, int(column), LOAD_table(row_address(table, from, table_BYTES), int(column)));
#endif
}
