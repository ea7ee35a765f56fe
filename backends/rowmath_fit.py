"""Fits the polynomials of rowmath.h: minimax in relative error, by the Remez exchange in 50 digits.

    python3 -m venv v && v/bin/pip install mpmath && v/bin/python backends/rowmath_fit.py

Prints, for each polynomial, its largest relative error and its coefficients, lowest first, rounded to the
type (in fp32 one after the other: the coefficients still to be found make up for each rounding)."""
import struct
import sys
from mpmath import mp, mpf, matrix, lu_solve, exp, log, sin, cos, tanh, erf, erfc, sqrt, pi, taylor

mp.dps = 50


def rounded(value, single):
    if single:
        return mpf(struct.unpack("f", struct.pack("f", float(value)))[0])
    return mpf(float(value))


def remez(function, weight, powers, low, high):
    """Coefficients c of sum c_i x^powers[i] that minimise max |weight (p - function)|."""
    n = len(powers) + 1
    nodes = [(low + high) / 2 - (high - low) / 2 * cos(pi * i / (n - 1)) for i in range(n)]
    for _ in range(30):
        a = matrix(n, n)
        b = matrix(n, 1)
        for i, x in enumerate(nodes):
            for j, p in enumerate(powers):
                a[i, j] = x ** p if x else mpf(p == 0)
            a[i, n - 1] = (-1) ** i / weight(x)
            b[i] = function(x)
        c = lu_solve(a, b)
        error = lambda x: weight(x) * (sum(c[j] * x ** p for j, p in enumerate(powers)) - function(x))
        grid = [low + (high - low) * k / (60 * n) for k in range(60 * n + 1)]
        values = [error(x) for x in grid]
        extrema, sign, best = [], None, None
        for x, v in zip(grid, values):
            s = v > 0
            if sign is None or s != sign:
                if best is not None:
                    extrema.append(best)
                sign, best = s, (x, v)
            elif abs(v) > abs(best[1]):
                best = (x, v)
        extrema.append(best)
        while len(extrema) > n:
            extrema.pop(0 if abs(extrema[0][1]) < abs(extrema[-1][1]) else -1)
        if len(extrema) < n:
            break
        new = [x for x, _ in extrema]
        done = max(abs(x - y) for x, y in zip(new, nodes)) < (high - low) * mpf("1e-9")
        nodes = new
        if done:
            break
    return [c[j] for j in range(len(powers))], max(abs(v) for v in values)


def fit(name, function, weight, powers, low, high, single, refit=True):
    low, high = mpf(low), mpf(high)
    left, found = list(powers), []
    rest = function
    while left:
        c, _ = remez(rest, weight, left, low, high)
        value = rounded(c[0], single)
        found.append((left[0], value))
        if not (single and refit):
            found = [(p, rounded(v, single)) for p, v in zip(left, c)]
            break
        rest = lambda x, known=tuple(found): function(x) - sum(v * x ** p for p, v in known)
        left = left[1:]
    grid = [low + (high - low) * k / 4000 for k in range(4001)]
    worst = max(abs(weight(x) * (sum(v * x ** p for p, v in found) - function(x))) for x in grid)
    digits = 9 if single else 17
    print(f"{name}: 2^{float(log(worst, 2)):.1f}")
    for p, v in found:
        print(f"    x^{p}: {mp.nstr(v, digits)}")
    sys.stdout.flush()


LN2H = log(mpf(2)) / 2 * mpf("1.0001")
Q = pi / 4 * mpf("1.0001")


def exp_rest(r):  # (e^r - 1 - r) / r^2
    return sum(r ** k / mp.factorial(k + 2) for k in range(40))


def sin_rest(z):  # (sin r - r) / r^3, z = r^2
    return sum((-1) ** (k + 1) * z ** k / mp.factorial(2 * k + 3) for k in range(30))


def cos_rest(z):  # (cos r - 1 + z/2) / z^2
    return sum((-1) ** k * z ** k / mp.factorial(2 * k + 4) for k in range(30))


TANH = taylor(tanh, 0, 121)
ERF = taylor(erf, 0, 121)


def tanh_rest(z):  # (tanh x - x) / x^3
    return sum(TANH[2 * k + 3] * z ** k for k in range(59))


def erf_rest(z):  # erf x / x - 1
    return sum(ERF[2 * k + 1] * z ** k for k in range(60)) - 1


def minus_log_erfc(t, centre):
    return -log(erfc(t + centre))


for single in (True, False):
    kind = "f32" if single else "f64"
    fit(f"exp {kind}: (e^r - 1 - r) / r^2", exp_rest, lambda r: mpf(1), range(5 if single else 11), -LN2H, LN2H, single)
    fit(f"sin {kind}: (sin r - r) / r^3 in r^2", sin_rest, lambda z: mpf(1), range(3 if single else 7), 0, Q * Q, single)
    fit(f"cos {kind}: (cos r - 1 + r^2/2) / r^4 in r^2", cos_rest, lambda z: mpf(1), range(3 if single else 7), 0, Q * Q, single)
    fit(f"tanh {kind}: (tanh x - x) / x^3 in x^2, x < 0.55", tanh_rest, lambda z: mpf(1), range(5 if single else 12), 0, mpf("0.3026"), single)
    fit(f"erf {kind}: erf x / x - 1 in x^2, x < 1", erf_rest, lambda z: 1 / (1 + erf_rest(z)), range(7 if single else 14), 0, mpf("1.0001"), single)
    if single:
        fit("erfc f32: -log erfc x in x - 2.5, 1 to 4", lambda t: minus_log_erfc(t, mpf("2.5")),
            lambda t: erfc(t + mpf("2.5")), range(9), -1.5, 1.5, True)
    else:
        fit("erfc f64: -log erfc x in x - 1.75, 1 to 2.5", lambda t: minus_log_erfc(t, mpf("1.75")),
            lambda t: erfc(t + mpf("1.75")), range(15), -0.75, 0.75, False)
        fit("erfc f64: -log erfc x in x - 4.25, 2.5 to 6", lambda t: minus_log_erfc(t, mpf("4.25")),
            lambda t: erfc(t + mpf("4.25")), range(13), -1.75, 1.75, False)
fit("exp2 f32 (attention): (2^f - 1) / f, |f| < 1/2", lambda f: sum(log(mpf(2)) ** (k + 1) * f ** k / mp.factorial(k + 1) for k in range(40)),
    lambda f: mpf(1), range(6), mpf("-0.5001"), mpf("0.5002"), True, refit=False)
log_rest = lambda z: (lambda s: (log((1 + s) / (1 - s)) - 2 * s) / (s ** 3))(sqrt(z)) if z > mpf("1e-12") else mpf(2) / 3 + z * 2 / 5
S = (sqrt(mpf(2)) - 1) / (sqrt(mpf(2)) + 1) * mpf("1.0001")
for single in (True, False):
    fit(f"log {'f32' if single else 'f64'}: (log((1+s)/(1-s)) - 2s) / s^3 in s^2", log_rest, lambda z: mpf(1),
        range(4 if single else 7), 0, S * S, single)
