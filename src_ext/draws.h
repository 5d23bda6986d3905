/* Choices drawn by their logits, LANES rows at a time. */
#ifndef FASTMARL_DRAWS_H
#define FASTMARL_DRAWS_H

#include <math.h>
#include "variants.h"

#define LANES 16
#define FEW 4   /* rows, which of MANY choices are drawn one by one; so is a single row */
#define MANY 32

#define VARIANT_FILE "draws_variant.h"
#include "each_variant.h"

/* One choice of each of n <= LANES rows. */
static void draw_choices(
    int variant,
    const float *logits,    /* IN  n rows of k, `stride` numbers from one to the next */
    Py_ssize_t n,
    Py_ssize_t k,
    Py_ssize_t stride,
    const double *uniform,  /* IN  [LANES] of 0 .. 1, of which n are used */
    float *weights,         /* of LANES * k floats, to work in */
    long long *choice,      /* OUT [LANES], 0 if a row has NaN or +inf, or nothing but -inf */
    float *logp             /* IN  [n], OUT with the log-probabilities added, which are NaN then */
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
