/* Draws choices by their logits, LANES rows at a time. */
#ifndef FASTMARL_DRAWS_H
#define FASTMARL_DRAWS_H

#include <math.h>
#include "variants.h"

#define LANES 16
#define FEW 4   /* up to this number, rows of MANY or more choices are drawn one by one; so is a single row */
#define MANY 32

#define VARIANT_FILE "draws_variant.h"
#include "each_variant.h"

/* Draws one choice for each of n <= LANES rows. */
static void draw_choices(
    int variant,
    const float *logits,    /* IN  n rows of k, `stride` numbers from one to the next */
    Py_ssize_t n,
    Py_ssize_t k,
    Py_ssize_t stride,
    const double *uniform,  /* IN  [LANES], 0 .. 1; the first n are used */
    float *weights,         /* scratch of LANES * k floats */
    long long *choice,      /* OUT [LANES], 0 if a row has NaN or +inf, or only -inf */
    float *logp             /* IN  [n], OUT with the log-probabilities added, NaN in such rows */
) {
    switch (variant) {
#ifdef HAS_VARIANTS
    case AVX512: draw_avx512(logits, n, k, stride, uniform, weights, choice, logp); break;
    case AVX2: draw_avx2(logits, n, k, stride, uniform, weights, choice, logp); break;
#endif
    default: draw_plain(logits, n, k, stride, uniform, weights, choice, logp);
    }
}

#endif
