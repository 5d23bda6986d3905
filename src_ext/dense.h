/* Small dense networks on one core: all layers in one call, a few rows at a time. The caller must check all sizes. */
#ifndef FASTMARL_DENSE_H
#define FASTMARL_DENSE_H

#include <Python.h>
#include <math.h>
#include <string.h>
#include "variants.h"

#define ROWS 16 /* at a time */
#define FEW 4   /* up to this number, rows are computed one by one */

struct dense_cell;

typedef struct {
    const float *weight; /* [n_out, n_in]; of a norm [n_out], or NULL */
    const float *bias;   /* [n_out], or NULL */
    Py_ssize_t n_in, n_out;
    float eps; /* of a norm, else negative */
    int activation;
    float alpha; /* of ELU */
    int source;  /* layer whose outputs it gets; -1: the observations */
    float *y;    /* [n_out * ROWS], the last outputs: [row, output] of up to FEW rows, else [output, ROWS] */
    struct dense_cell *cell; /* NULL: no memory; otherwise the layer's outputs are the cell's next h */
} dense_layer;

/* A cell as in torch, whose gates stand one after another, each of n_out numbers: input, forget, new and output of an
   LSTM; reset, update and new of a GRU. */
typedef struct dense_cell {
    int kind;
    dense_layer from_source, from_state; /* the gates' two parts; used for weight, bias, n_in, n_out and y */
    float *h, *c;                        /* like the layer's y: the state before the step; c becomes the next one */
    const float *given_h, *given_c;      /* [n, n_out] of all rows; no c in a GRU */
    float *next_h, *next_c;
} dense_cell;

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

/* Copies n rows of `size` numbers, in the order of a layer's y, to `out`, `stride` floats from row to row. */
static void dense_outputs(const float *restrict y, Py_ssize_t size, Py_ssize_t n, float *restrict out, Py_ssize_t stride) {
    const Py_ssize_t row_step = n <= FEW ? size : 1, output_step = n <= FEW ? 1 : ROWS;
    for (Py_ssize_t r = 0; r < n; r++)
        for (Py_ssize_t o = 0; o < size; o++) out[r * stride + o] = y[r * row_step + o * output_step];
}

/* Copies rows [n, size] to the order of a layer's y, in which rows that are missing are 0. */
static void dense_inputs(const float *restrict rows, Py_ssize_t size, Py_ssize_t n, float *restrict y) {
    if (n <= FEW) memcpy(y, rows, n * size * sizeof(float));
    else
        for (Py_ssize_t o = 0; o < size; o++)
            for (Py_ssize_t r = 0; r < ROWS; r++) y[o * ROWS + r] = r < n ? rows[r * size + o] : 0.0f;
}

/* Computes n <= ROWS rows, of which the state is that of the rows from `first`. */
static void dense_steps(const dense_net *net, const float *obs, Py_ssize_t first, Py_ssize_t n) {
    for (int l = 0; l < net->n_layers; l++) {
        const dense_cell *cell = net->layers[l].cell;
        const Py_ssize_t size = net->layers[l].n_out;
        if (!cell) continue;
        dense_inputs(cell->given_h + first * size, size, n, cell->h);
        if (cell->kind == LSTM) dense_inputs(cell->given_c + first * size, size, n, cell->c);
    }
    dense_rows(net, obs, n);
    for (int l = 0; l < net->n_layers; l++) {
        const dense_cell *cell = net->layers[l].cell;
        const Py_ssize_t size = net->layers[l].n_out;
        if (!cell) continue;
        dense_outputs(net->layers[l].y, size, n, cell->next_h + first * size, size);
        if (cell->kind == LSTM) dense_outputs(cell->c, size, n, cell->next_c + first * size, size);
    }
}

#endif
