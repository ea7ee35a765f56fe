// pairs.glsl: what stands in for double where a device has none: numbers as two floats, x + y, with y at most
// half a unit in the last place of x: 47 bits or more. f64 in memory is read and written by its bits; what is
// beyond the range of fp32 becomes infinite or 0. Counts on every operation being done as it stands.

layout(buffer_reference, scalar, buffer_reference_align = 8) buffer M_f64bits { uvec2 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) buffer M_pair { vec2 v[]; };

float finite_or_0(float x) {
    return (floatBitsToUint(x) & 0x7f800000u) == 0x7f800000u ? 0.0 : x;
}
float power_of_two(int k) { // -126 .. 127
    return uintBitsToFloat(uint(k + 127) << 23);
}

// a + b and a b with what rounding took from them (Knuth, Dekker); nothing where they are not finite.
vec2 two_sum(float a, float b) {
    float s = a + b, c = s - a;
    float e = (a - (s - c)) + (b - c);
    return vec2(s, finite_or_0(e));
}
vec2 two_product(float a, float b) {
    float p = a * b, ca = 4097.0 * a, cb = 4097.0 * b;
    float ah = ca - (ca - a), bh = cb - (cb - b);
    float al = a - ah, bl = b - bh;
    float e = ((ah * bh - p) + ah * bl + al * bh) + al * bl;
    return vec2(p, finite_or_0(e));
}
vec2 pair_add(vec2 a, vec2 b) {
    vec2 s = two_sum(a.x, b.x), t = two_sum(a.y, b.y);
    s = two_sum(s.x, s.y + t.x);
    return two_sum(s.x, s.y + t.y);
}
vec2 pair_multiply(vec2 a, vec2 b) {
    vec2 p = two_product(a.x, b.x);
    return two_sum(p.x, p.y + finite_or_0(a.x * b.y + a.y * b.x));
}
vec2 pair_larger(vec2 a, vec2 b) { // NaN wins
    return a.x > b.x || (a.x == b.x && a.y > b.y) || is_nan(a.x) ? a : b;
}

vec2 pair_from_f64(uvec2 u) {
    uint sign = u.y & 0x80000000u, high = u.y & 0xfffffu;
    int e = int((u.y >> 20) & 0x7ffu) - 1023;
    if (e > 127)
        return vec2(uintBitsToFloat(sign | (e == 1024 && (high | u.x) != 0u ? 0x7fc00000u : 0x7f800000u)), 0.0);
    if (e < -126)
        return vec2(uintBitsToFloat(sign), 0.0);
    float x = uintBitsToFloat(sign | uint(e + 127) << 23 | high << 3 | u.x >> 29);
    float y = float((u.x >> 5) & 0xffffffu) + float(u.x & 31u) * 0.03125; // in units of 2^(e - 47)
    y *= e - 47 < -126 ? 0.0 : power_of_two(e - 47);
    return two_sum(x, sign != 0u ? -y : y);
}
uvec2 f64_from_pair(vec2 p) {
    uint u = floatBitsToUint(p.x), sign = u & 0x80000000u, rest = u & 0x7fffffffu;
    if (rest >= 0x7f800000u)
        return uvec2(0u, sign | (rest > 0x7f800000u ? 0x7ff80000u : 0x7ff00000u));
    if (rest < 0x00800000u)
        return uvec2(0u, sign);
    int e = int(rest >> 23) - 127, k = 55 - e;
    float y = (sign != 0u ? -p.y : p.y) * power_of_two(k / 2) * power_of_two(k - k / 2);
    // in units of 2^(e - 55): 55 or 56 bits, of which 53 stay
    uint64_t m = uint64_t((int64_t((rest & 0x7fffffu) | 0x800000u) << 32) + int64_t(y));
    bool shorter = m < (uint64_t(1) << 55);
    int drop = shorter ? 2 : 3;
    m = (m + (uint64_t(1) << (drop - 1)) - uint64_t(1) + ((m >> drop) & uint64_t(1))) >> drop;
    uint64_t bits = (uint64_t(uint(e + 1022 - (shorter ? 1 : 0))) << 52) + m;
    return uvec2(uint(bits & uint64_t(0xffffffffu)), uint(bits >> 32) | sign);
}

float load_f64(uint64_t at, int i) {
    return pair_from_f64(M_f64bits(at).v[i]).x;
}
void store_f64(uint64_t at, int i, float x) {
    M_f64bits(at).v[i] = f64_from_pair(vec2(x, 0.0));
}
