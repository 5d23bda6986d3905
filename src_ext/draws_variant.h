/* Draws choices for one instruction set, see each_variant.h. With enough rows, vectors lie across them. */

typedef float VARIANT(half_floats) __attribute__((vector_size(2 * WIDTH), aligned(4), may_alias));
typedef double VARIANT(doubles) __attribute__((vector_size(4 * WIDTH), aligned(8), may_alias));
typedef long long VARIANT(longs) __attribute__((vector_size(4 * WIDTH), aligned(8), may_alias));

/* exp(x) for x <= 0: exactly 1 at 0, and exactly 0 below -80. */
static inline VARIANT(floats) VARIANT(weight)(VARIANT(floats) x) {
    VARIANT(floats) power;
    const VARIANT(floats) p = VARIANT(reduced)(x, &power);
    return WHERE(x < -80.0f, (VARIANT(floats)){0}, power * p + power);
}

/* Draws one choice for each of n <= WIDTH rows; `highest` and `log_sum` (of the weights) give log-probabilities. */
static inline void VARIANT(draw_vector)(
    const float *logits, Py_ssize_t n, Py_ssize_t k, Py_ssize_t stride, const double *uniform, float *weights,
    long long *choice, float *highest, float *log_sum
) {
    VARIANT(floats) *columns = (VARIANT(floats) *)weights, most = (VARIANT(floats)){0} - INFINITY;
    Py_ssize_t at[WIDTH]; /* offsets of the rows; missing ones repeat the last */
    for (int r = 0; r < WIDTH; r++) at[r] = (r < n ? r : n - 1) * stride;
    for (Py_ssize_t j = 0; j < k; j++) {
        VARIANT(floats) column;
        for (int r = 0; r < WIDTH; r++) column[r] = logits[at[r] + j];
        columns[j] = column;
        most = WHERE(column > most, column, most);
    }
    for (Py_ssize_t j = 0; j < k; j++) columns[j] = VARIANT(weight)(columns[j] - most);
    *(VARIANT(floats) *)highest = most;
    float near[WIDTH], rest[WIDTH]; /* the sums in float, and their rounding errors: log(x + y) is log(x) + y / x */
    for (int first = 0; first < WIDTH; first += WIDTH / 2) {
        VARIANT(doubles) sum = {0}, reached = {0}; /* both add in one order, so that the last choice reaches the sum */
        VARIANT(longs) passed = {0};
        for (Py_ssize_t j = 0; j < k; j++)
            sum += __builtin_convertvector(*(VARIANT(half_floats) *)(weights + j * WIDTH + first), VARIANT(doubles));
        const VARIANT(doubles) goal = sum * *(const VARIANT(doubles) *)(uniform + first);
        for (Py_ssize_t j = 0; j < k; j++) {
            reached += __builtin_convertvector(*(VARIANT(half_floats) *)(weights + j * WIDTH + first), VARIANT(doubles));
            passed -= reached <= goal;
        }
        *(VARIANT(longs) *)(choice + first) = passed;
        const VARIANT(half_floats) rounded = __builtin_convertvector(sum, VARIANT(half_floats));
        *(VARIANT(half_floats) *)(near + first) = rounded;
        sum -= __builtin_convertvector(rounded, VARIANT(doubles));
        *(VARIANT(half_floats) *)(rest + first) = __builtin_convertvector(sum, VARIANT(half_floats));
    }
    const VARIANT(floats) x = *(VARIANT(floats) *)near;
    *(VARIANT(floats) *)log_sum = VARIANT(log)(x) + *(VARIANT(floats) *)rest / x;
}

/* Draws the choice of one row, bit-identically, by vectors along its choices. */
static inline void VARIANT(draw_row)(
    const float *logits, Py_ssize_t k, double uniform, float *weights, long long *choice, float *highest, float *log_sum
) {
    float most = -INFINITY;
    for (Py_ssize_t j = 0; j < k; j++) most = logits[j] > most ? logits[j] : most;
    for (Py_ssize_t j = 0; j < k; j++) weights[j] = logits[j] - most;
    for (Py_ssize_t j = 0; j < k; j += WIDTH) {
        VARIANT(floats) *part = (VARIANT(floats) *)(weights + j);
        *part = VARIANT(weight)(*part);
    }
    double sum = 0.0, reached = 0.0;
    long long passed = 0;
    for (Py_ssize_t j = 0; j < k; j++) sum += weights[j];
    const double goal = sum * uniform;
    for (Py_ssize_t j = 0; j < k; j++) {
        reached += weights[j];
        passed += reached <= goal;
    }
    const VARIANT(floats) x = (VARIANT(floats)){0} + (float)sum;
    *choice = passed;
    *highest = most;
    *log_sum = (VARIANT(log)(x) + (float)(sum - x[0]) / x)[0];
}

/* Implements draw_choices(). */
static void VARIANT(draw)(
    const float *logits, Py_ssize_t n, Py_ssize_t k, Py_ssize_t stride, const double *uniform, float *weights,
    long long *choice, float *logp
) {
    float highest[LANES], log_sum[LANES];
    const int by_rows = n == 1 || (n <= FEW && k >= MANY);
    for (Py_ssize_t r = 0; by_rows && r < n; r++)
        VARIANT(draw_row)(logits + r * stride, k, uniform[r], weights, choice + r, highest + r, log_sum + r);
    for (Py_ssize_t first = 0; !by_rows && first < n; first += WIDTH)
        VARIANT(draw_vector)(
            logits + first * stride, n - first, k, stride, uniform + first, weights, choice + first, highest + first,
            log_sum + first
        );
    for (Py_ssize_t r = 0; r < n; r++) logp[r] += logits[r * stride + choice[r]] - highest[r] - log_sum[r];
}
