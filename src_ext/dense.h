/* Small dense networks on one core: all layers in one call, a few rows at a time. The caller must check all sizes. */
#ifndef FASTMARL_DENSE_H
#define FASTMARL_DENSE_H

#include <Python.h>
#include <math.h>
#include "variants.h"

#define ROWS 16 /* at a time */
#define FEW 4   /* up to this number, rows are computed one by one */

typedef struct {
    const float *weight; /* [n_out, n_in]; of a norm [n_out], or NULL */
    const float *bias;   /* [n_out], or NULL */
    Py_ssize_t n_in, n_out;
    float eps; /* of a norm, else negative */
    int activation;
    float alpha; /* of ELU */
    int source;  /* layer whose outputs it gets; -1: the observations */
    float *y;    /* [n_out * ROWS], the last outputs: [row, output] of up to FEW rows, else [output, ROWS] */
} dense_layer;

typedef struct {
    int variant;
    int n_layers;
    dense_layer *layers;
    Py_ssize_t n_obs;
    float *turned_obs; /* [n_obs, ROWS] */
} dense_net;

#define VARIANT_FILE "dense_variant.h"
#include "each_variant.h"

static void dense_rows(const dense_net *net, const float *obs, Py_ssize_t n) {
    switch (net->variant) {
#ifdef HAS_VARIANTS
    case AVX512: rows_avx512(net, obs, n); break;
    case AVX2: rows_avx2(net, obs, n); break;
#endif
    default: rows_plain(net, obs, n);
    }
}

/* Converts n bytes, signed or unsigned, to floats times `scale`. */
static void dense_floats(const void *restrict from, int is_signed, Py_ssize_t n, float scale, float *restrict out) {
    const unsigned char *bytes = from;
    const signed char *signed_bytes = from;
    if (is_signed)
        for (Py_ssize_t i = 0; i < n; i++) out[i] = scale * (float)signed_bytes[i];
    else
        for (Py_ssize_t i = 0; i < n; i++) out[i] = scale * (float)bytes[i];
}

/* Copies the first n rows of a layer's y to `out`, `stride` floats from row to row. */
static void dense_outputs(const dense_layer *layer, Py_ssize_t n, float *out, Py_ssize_t stride) {
    const Py_ssize_t row_step = n <= FEW ? layer->n_out : 1, output_step = n <= FEW ? 1 : ROWS;
    for (Py_ssize_t r = 0; r < n; r++)
        for (Py_ssize_t o = 0; o < layer->n_out; o++) out[r * stride + o] = layer->y[r * row_step + o * output_step];
}

#endif
