/* Vectors of WIDTH floats, and their exponential function, for one instruction set: see each_variant.h. */

typedef float VARIANT(floats) __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef int VARIANT(ints) __attribute__((vector_size(4 * WIDTH)));

/* x = n ln 2 + r with |r| <= ln(2) / 2 (Cody and Waite, "Software manual for the elementary functions", 1980), and
   Taylor's series up to r^7: returns exp(r) - 1 and *power = 2^n, to about 1e-7 of the results. */
static inline VARIANT(floats) VARIANT(reduced)(VARIANT(floats) x, VARIANT(floats) *power) {
    const VARIANT(floats) zero = {0};
    x = WHERE(x < -80.0f, zero - 80.0f, x); /* so written, NaN stays NaN */
    x = WHERE(x > 88.0f, zero + 88.0f, x);
    const VARIANT(floats) scaled = x * 1.44269504f;
    const VARIANT(floats) half = (VARIANT(floats))(((VARIANT(ints))scaled & INT_MIN) | (VARIANT(ints))(zero + 0.5f));
    const VARIANT(ints) n = __builtin_convertvector(scaled + half, VARIANT(ints));
    const VARIANT(floats) whole = __builtin_convertvector(n, VARIANT(floats));
    const VARIANT(floats) r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
    VARIANT(floats) p = r * 1.98412698e-4f + 1.38888889e-3f;
    p = p * r + 8.33333333e-3f;
    p = p * r + 4.16666667e-2f;
    p = p * r + 1.66666667e-1f;
    p = p * r + 5.00000000e-1f;
    *power = (VARIANT(floats))((n + 127) << 23);
    return p * r * r + r;
}
