/* Small dense networks on one core: all layers in one call, a few rows at a time. The caller must check all sizes. */
#ifndef FASTMARL_DENSE_H
#define FASTMARL_DENSE_H

#include <Python.h>
#include <math.h>
#include <string.h>
#include "variants.h"

#define ROWS 16 /* at a time */
#define BLOCK_ROWS (4 * ROWS) /* that a thread computes at a time */
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
    float *as_floats;  /* [ROWS, n_obs], of observations of integers */
} dense_net;

/* One pass over n rows. */
typedef struct {
    const dense_net *const *nets; /* by thread: the same network, each with memory of its own */
    Py_ssize_t n;
    const char *obs;     /* [n, n_obs]: float32, int8 or, with neither flag, uint8 */
    int is_float, is_signed;
    float scale;         /* of integers */
    int logits, values;  /* indices of layers; without values -1 */
    Py_ssize_t n_means, n_logits;
    const float *log_std; /* [n_logits - n_means], or NULL */
    const float *bound;   /* [1], or NULL */
    float *out_logits;    /* [n, n_logits] */
    float *out_values;    /* [n], or NULL */
} dense_call;

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

/* Writes the logits and values of rows first .. first + n, n <= ROWS. */
static void dense_answer(const dense_call *call, const dense_net *net, Py_ssize_t first, Py_ssize_t n) {
    const char *obs = call->obs + first * net->n_obs * (call->is_float ? sizeof(float) : 1);
    float *logits = call->out_logits + first * call->n_logits;
    const Py_ssize_t n_stds = call->n_logits - call->n_means;
    if (!call->is_float) dense_floats(obs, call->is_signed, n * net->n_obs, call->scale, net->as_floats);
    dense_steps(net, call->is_float ? (const float *)obs : net->as_floats, first, n);
    dense_outputs(net->layers[call->logits].y, call->n_means, n, logits, call->n_logits);
    if (call->out_values) dense_outputs(net->layers[call->values].y, 1, n, call->out_values + first, 1);
    if (call->log_std)
        for (Py_ssize_t r = 0; r < n; r++) memcpy(logits + r * call->n_logits + call->n_means, call->log_std, n_stds * sizeof(float));
    if (call->bound) { /* clips the second half of each row; NaN stays */
        const float bound = *call->bound;
        for (Py_ssize_t r = 0; r < n; r++)
            for (Py_ssize_t j = call->n_logits / 2; j < call->n_logits; j++) {
                float *value = logits + r * call->n_logits + j;
                *value = *value < -bound ? -bound : *value > bound ? bound : *value;
            }
    }
}

/* Answers the rows of a block. Its parts begin at multiples of ROWS, so that results don't depend on blocks. */
static void dense_block(const void *context, int thread, Py_ssize_t block) {
    const dense_call *call = context;
    const Py_ssize_t begin = block * BLOCK_ROWS, end = call->n - begin < BLOCK_ROWS ? call->n : begin + BLOCK_ROWS;
    for (Py_ssize_t first = begin; first < end; first += ROWS)
        dense_answer(call, call->nets[thread], first, end - first < ROWS ? end - first : ROWS);
}

#endif
