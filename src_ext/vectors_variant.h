/* Vectors of WIDTH floats for one instruction set, see each_variant.h: sums, exponentials, logarithms, activations. */

typedef float VARIANT(floats) __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef int VARIANT(ints) __attribute__((vector_size(4 * WIDTH)));

static inline float VARIANT(sum)(VARIANT(floats) v) {
#if WIDTH == 16
    v += SHUFFLED(v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
    v += SHUFFLED(v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
    v += SHUFFLED(v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
    v += SHUFFLED(v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
#elif WIDTH == 8
    v += SHUFFLED(v, 4, 5, 6, 7, 0, 1, 2, 3);
    v += SHUFFLED(v, 2, 3, 0, 1, 6, 7, 4, 5);
    v += SHUFFLED(v, 1, 0, 3, 2, 5, 4, 7, 6);
#else
    v += SHUFFLED(v, 2, 3, 0, 1);
    v += SHUFFLED(v, 1, 0, 3, 2);
#endif
    return v[0];
}

/* x = n ln 2 + r with |r| <= ln(2) / 2 (Cody and Waite, "Software manual for the elementary functions", 1980), and
   Taylor's series up to r^7: returns exp(r) - 1 and *power = 2^n, with a relative error of about 1e-7. */
static inline VARIANT(floats) VARIANT(reduced)(VARIANT(floats) x, VARIANT(floats) *power) {
    const VARIANT(floats) zero = {0};
    x = WHERE(x < -80.0f, zero - 80.0f, x); /* written so that NaN stays NaN */
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

static inline VARIANT(floats) VARIANT(expm1)(VARIANT(floats) x) {
    VARIANT(floats) power;
    const VARIANT(floats) p = VARIANT(reduced)(x, &power);
    return power * p + (power - 1.0f); /* in this order no accuracy is lost */
}

/* Returns exp(x): 0 below -87, where the exact result is hardly greater, and infinity above 88. */
static inline VARIANT(floats) VARIANT(exp)(VARIANT(floats) x) {
    const VARIANT(floats) zero = {0};
    VARIANT(floats) power;
    const VARIANT(floats) p = VARIANT(reduced)(WHERE(x < -80.0f, x + 40.0f, x), &power);
    const VARIANT(floats) e = power * p + power;
    const VARIANT(floats) less = WHERE(x < -87.0f, zero, e * 4.24835426e-18f); /* exp(-40) */
    return WHERE(x < -80.0f, less, WHERE(x > 88.0f, zero + INFINITY, e));
}

/* x = m 2^n with m in [sqrt(1/2), sqrt(2)); the logarithm of m = (1 + s) / (1 - s) is 2 (s + s^3 / 3 + s^5 / 5 ...).
   Valid for normal numbers; infinity and NaN give NaN. */
static inline VARIANT(floats) VARIANT(log)(VARIANT(floats) x) {
    const VARIANT(ints) bits = (VARIANT(ints))x - 0x3f3504f3; /* of sqrt(1/2) */
    const VARIANT(floats) n = __builtin_convertvector(bits >> 23, VARIANT(floats));
    const VARIANT(floats) m = (VARIANT(floats))((bits & 0x7fffff) + 0x3f3504f3);
    const VARIANT(floats) s = (m - 1.0f) / (m + 1.0f), t = s * s;
    VARIANT(floats) p = t * 0.111111111f + 0.142857143f;
    p = p * t + 0.2f;
    p = p * t + 0.333333333f;
    return (n * 0.693359375f + ((p * t * s + s) * 2.0f - n * 2.12194440e-4f)) + (x - x);
}

static inline VARIANT(floats) VARIANT(sigmoid)(VARIANT(floats) x) { return 1.0f / (2.0f + VARIANT(expm1)(-x)); }

static inline VARIANT(floats) VARIANT(tanh)(VARIANT(floats) x) {
    const VARIANT(floats) zero = {0}, e = VARIANT(expm1)(2.0f * WHERE(x > 10.0f, zero + 10.0f, x));
    return e / (e + 2.0f);
}

/* Cumulative normal distribution. Below 0 it is t exp(-x^2 / 2 + p(t)), t = 1 / (1 - 0.27 x),
   with a polynomial p fitted at Chebyshev points of x in [-14, 0]; the relative error is at most 6e-8. */
static inline VARIANT(floats) VARIANT(normal_cdf)(VARIANT(floats) x) {
    const VARIANT(floats) zero = {0};
    const VARIANT(floats) size = (VARIANT(floats))((VARIANT(ints))x & INT_MAX);
    const VARIANT(floats) t = (zero + 1.0f) / (size * 0.27f + 1.0f);
    VARIANT(floats) power, p = t * -0.24262929f + 1.17400059f;
    p = p * t - 2.135504f;
    p = p * t + 1.78977403f;
    p = p * t - 0.93127159f;
    p = p * t + 0.51266585f;
    p = p * t + 0.3609408f;
    p = p * t + 1.00751225f;
    p = p * t - 2.22863584f;
    const VARIANT(floats) e = VARIANT(reduced)(p - 0.5f * size * size, &power);
    const VARIANT(floats) below = t * (power * e + power);
    return WHERE(x < 0.0f, below, 1.0f - below);
}

static inline VARIANT(floats) VARIANT(activated)(VARIANT(floats) x, int activation, float alpha) {
    const VARIANT(floats) zero = {0};
    switch (activation) {
    case TANH:
        return VARIANT(tanh)(x);
    case RELU:
        return WHERE(x < 0.0f, zero, x);
    case SILU:
        return x / (2.0f + VARIANT(expm1)(-x));
    case GELU:
        return x * VARIANT(normal_cdf)(x);
    case ELU:
        return WHERE(x > 0.0f, x, alpha * VARIANT(expm1)(WHERE(x > 0.0f, zero, x)));
    default:
        return x;
    }
}

