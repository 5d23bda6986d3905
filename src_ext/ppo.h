/* PPO's gradient of dense networks on one core, in blocks of rows, so that activations stay in the processor's caches:
   forward pass, the loss's derivatives, and backward pass. The caller must check all sizes. */
#ifndef FASTMARL_PPO_H
#define FASTMARL_PPO_H

#include <Python.h>
#include <math.h>
#include <string.h>
#include "variants.h"

#define LEAST (-3.402823466e38f) /* logit of masked choices */
#define LOG_ROOT_2_PI 0.9189385332f

struct ppo_cell;

typedef struct {
    const float *weight;           /* [n_out, n_in] */
    const float *bias;             /* [n_out], or NULL */
    float *d_weight, *d_bias;      /* of these shapes, or NULL */
    Py_ssize_t n_in, n_out;
    int activation;
    float alpha;                   /* of ELU */
    int source;                    /* layer whose outputs it gets; -1: the observations */
    /* The layer's own memory. Rows are `stride` floats apart, in whole vectors; floats beyond n_out are undefined. */
    Py_ssize_t in_stride, stride;
    float *turned;                 /* [n_in, stride], the weight transposed */
    float *straight;               /* [n_out, in_stride], the weight; NULL if the source is the observations */
    float *row_bias;               /* [stride] */
    float *y, *d;                  /* [block, stride], outputs and the loss's derivatives by them */
    float *before;                 /* [block, stride], outputs before the activation, or NULL if y suffices */
    float *sum_weight, *sum_bias;  /* [n_out, in_stride] and [stride]: gradients of the blocks so far */
    struct ppo_cell *cell;         /* NULL: no memory */
} ppo_layer;

/* The memory of a layer, an LSTM or a GRU, whose outputs are its h. Its gates lie side by side, `gap` floats apart. The
   layer's weight is that of all gates for its source, [n_gates * n_out, n_in], and with `row` in place of `stride` its
   memory for weights and biases is, too. */
typedef struct ppo_cell {
    int kind, n_gates;
    const float *weight, *bias;    /* of the state: [n_gates * n_out, n_out] and [n_gates * n_out] */
    float *d_weight, *d_bias;
    Py_ssize_t gap, row;
    float *turned, *straight;      /* [n_out, row] and [n_gates * n_out, stride] */
    float *sum_weight;             /* [n_gates * n_out, stride] */
    float *gates;                  /* [block, row], gates, and then the loss's derivatives before their activations */
    float *c;                      /* [block, stride], of an LSTM */
    float *first_h, *first_c, *d_c; /* [block, stride] for one step */
    const float *given_h, *given_c; /* [., n_out], states before each sequence */
} ppo_cell;

enum {CATEGORICAL, GAUSSIAN, GIVEN}; /* the last: no loss, rows are derivatives by the logits */
/* Columns of `rows`, before the actions. */
enum {LOGP, ADVANTAGE, TARGET, COUNTS, ACTIONS};
/* Sums over the rows that count. */
enum {N_COUNTED, SURROGATE, VALUE_LOSS, ENTROPY, KL, CLIPPED, ERROR_, SQUARED_ERROR, TARGET_, SQUARED_TARGET, FORMER_KL, N_SUMS};

typedef struct {
    int kind;
    Py_ssize_t n_choices;     /* of a CATEGORICAL: simultaneous choices; of a GAUSSIAN: numbers */
    const Py_ssize_t *sizes;  /* [n_choices], options of each; of a CATEGORICAL */
    Py_ssize_t n_logits;
    int has_mask, has_former;
    float clip, most_error, value_coeff, entropy_coeff, kl_coeff, bound;
} ppo_loss;

typedef struct {
    int variant;
    int n_layers;
    ppo_layer *layers;
    Py_ssize_t n_obs, obs_stride, block;  /* `block`: rows at a time */
    float *x;                             /* [block, obs_stride] */
    Py_ssize_t *index;                    /* [block], numbers of the block's rows */
    float *zeros;                         /* [widest stride] */
    int logits, values;                   /* layers; -1: no values */
    const float *log_std;                 /* [n_choices] of a GAUSSIAN whose logits are only means; or NULL */
    float *d_log_std;                     /* [n_choices], or NULL */
    float *lanes;                         /* see `loss_rows()` */
    ppo_loss loss;
} ppo_net;

typedef struct {
    const float *obs;        /* [., n_obs] */
    const float *rows;       /* [., width]: LOGP, ADVANTAGE, TARGET, COUNTS, actions, mask, former logits */
    Py_ssize_t width;
    const Py_ssize_t *order; /* [n], indices of sequences */
    Py_ssize_t n, length;    /* rows of a sequence; 1 without memory */
    float weight;            /* weight of each row that counts */
    double *sums;            /* [N_SUMS] */
    float *outputs;          /* [., logits], or NULL: compute the gradient */
    int is_forwarded;        /* its only block has just had its forward pass */
} ppo_minibatch;

/* Returns the number of floats in `lanes`. */
static inline Py_ssize_t ppo_lanes(Py_ssize_t n_logits, Py_ssize_t n_choices) {
    return 16 * (4 * n_logits + 4 * n_choices + ACTIONS);
}

#define VARIANT_FILE "ppo_variant.h"
#include "each_variant.h"

static void ppo_gradient(ppo_net *net, const ppo_minibatch *batch) {
    switch (net->variant) {
#ifdef HAS_VARIANTS
    case AVX512: gradient_avx512(net, batch); break;
    case AVX2: gradient_avx2(net, batch); break;
#endif
    default: gradient_plain(net, batch);
    }
}

/* One of several parts, each with a network of its own. */
typedef struct {
    ppo_net *net;
    const ppo_minibatch *batch;
} ppo_part;

static void ppo_part_gradient(const void *parts, int thread, Py_ssize_t part) {
    (void)thread;
    ppo_gradient(((const ppo_part *)parts)[part].net, ((const ppo_part *)parts)[part].batch);
}

#endif
