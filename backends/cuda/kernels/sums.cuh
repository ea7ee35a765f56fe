// sums.cuh: sums that lose nothing that matters (Kahan): fp32 with the error of one rounding,
// however many terms.

struct Sum {
    REAL sum, lost; // what `sum` has too much
};

DEVICE void add(Sum &s, REAL x) {
    REAL y = x - s.lost;
    REAL t = s.sum + y;
    REAL lost = (t - s.sum) - y;
    s.lost = is_nan(lost) ? (REAL)0.0 : lost; // inf stays inf
    s.sum = t;
}
