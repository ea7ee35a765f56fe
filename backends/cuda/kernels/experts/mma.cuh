// mma.cuh: what tiles.cuh wants of the products of experts by tensor cores: numbers of types (TYPE_Q: of both
// factors; TYPE_D), and elements of an operand.

// Rows of pairs, without a division: exact where pairs times slots of a row are below 2^32 (cuda_experts.c
// sees to that).
struct RowOf {
    int slots;
    u32 inverse;
    __device__ explicit RowOf(int all) : slots(all), inverse(0xffffffffu / (u32)all + 1) {
    }
    DEVICE int operator()(int pair) const {
        return slots == 1 ? pair : (int)__umulhi((u32)pair, inverse);
    }
};

enum { F64, F32, BF16, F16 };

template <int TYPE> DEVICE char *element_address(const Operand &o, int row, int column) {
    return at_element<char>(o.address, 0) + ((i64)row * o.stride + column) * (TYPE == F64 ? 8 : TYPE == F32 ? 4 : 2);
}
