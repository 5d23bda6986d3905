/* PPO's gradient for one instruction set, see each_variant.h.

   All matrix products are c[r, j] = sum over k of a(r, k) b[k, j]: rows of b are read as vectors, elements of a one by
   one with strides, so that the same code multiplies by a matrix and by its transpose. */

typedef VARIANT(floats) VARIANT(vector);
typedef double VARIANT(doubles) __attribute__((vector_size(8 * WIDTH), aligned(8)));

static inline VARIANT(vector) *VARIANT(at)(const float *x) { return (VARIANT(vector) *)x; }

#if WIDTH == 16
#define MOST_VECTORS 4
#else
#define MOST_VECTORS 2
#endif
#define DEPTH 192 /* rows of b at a time: with MOST_VECTORS vectors each, they fit the first cache */

typedef struct {
    const float *a;
    Py_ssize_t a_row, a_step;
    const float *b;
    Py_ssize_t b_step;
    float *c;
    Py_ssize_t c_row;
    Py_ssize_t depth;
    const float *first; /* start of the sums, equal in each row; NULL: c */
} VARIANT(product);

/* Computes a tile of `rows` x `vectors` sums, which stay in registers. */
static inline __attribute__((always_inline)) void VARIANT(tile)(
    const VARIANT(product) *p, Py_ssize_t row, Py_ssize_t column, const int rows, const int vectors
) {
    const float *restrict a = p->a + row * p->a_row, *restrict b = p->b + column;
    const Py_ssize_t a_row = p->a_row, a_step = p->a_step, b_step = p->b_step;
    float *c = p->c + row * p->c_row + column;
    VARIANT(floats) sums[12][MOST_VECTORS];
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            sums[r][v] = *VARIANT(at)((p->first ? p->first + column : c + r * p->c_row) + v * WIDTH);
    for (Py_ssize_t k = 0; k < p->depth; k++) {
        VARIANT(floats) part[MOST_VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) part[v] = *VARIANT(at)(b + v * WIDTH);
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) {
            const float factor = a[r * a_row];
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++) sums[r][v] += factor * part[v];
        }
        a += a_step;
        b += b_step;
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) *VARIANT(at)(c + r * p->c_row + v * WIDTH) = sums[r][v];
}

/* Computes a column of `vectors` vectors and `rows` rows. */
#define COLUMN(VECTORS, ROWS_AT_A_TIME) \
    { \
        for (; r + ROWS_AT_A_TIME <= rows; r += ROWS_AT_A_TIME) VARIANT(tile)(p, r, column, ROWS_AT_A_TIME, VECTORS); \
        for (; r + 4 <= rows; r += 4) VARIANT(tile)(p, r, column, 4, VECTORS); \
        for (; r < rows; r++) VARIANT(tile)(p, r, column, 1, VECTORS); \
        break; \
    }

static void VARIANT(column)(const VARIANT(product) *p, Py_ssize_t rows, Py_ssize_t column, int vectors) {
    Py_ssize_t r = 0;
    switch (vectors) {
#if MOST_VECTORS == 4
    case 4: COLUMN(4, 6)
    case 3: COLUMN(3, 8)
    case 2: COLUMN(2, 12)
    default: COLUMN(1, 12)
#else
    case 2: COLUMN(2, 6)
    default: COLUMN(1, 8)
#endif
    }
}

/* Computes c [rows, columns] from a and b, of depth p.depth. */
static void VARIANT(multiply)(VARIANT(product) p, Py_ssize_t rows, Py_ssize_t columns) {
    const Py_ssize_t depth = p.depth;
    Py_ssize_t k = 0;
    do { /* once, even if there is nothing to add to `first` */
        p.depth = depth - k < DEPTH ? depth - k : DEPTH;
        for (Py_ssize_t column = 0; column < columns; column += MOST_VECTORS * WIDTH) {
            const Py_ssize_t left = (columns - column + WIDTH - 1) / WIDTH;
            VARIANT(column)(&p, rows, column, left < MOST_VECTORS ? (int)left : MOST_VECTORS);
        }
        p.first = NULL;
        p.a += DEPTH * p.a_step;
        p.b += DEPTH * p.b_step;
        k += DEPTH;
    } while (k < depth);
}

/* Returns the activation's derivative, from its outputs y or its inputs `before`. */
static inline VARIANT(floats) VARIANT(slope)(
    VARIANT(floats) y, VARIANT(floats) before, int activation, float alpha
) {
    const VARIANT(floats) zero = {0};
    VARIANT(floats) s;
    switch (activation) {
    case TANH:
        return 1.0f - y * y;
    case RELU:
        return WHERE(y <= 0.0f, zero, zero + 1.0f);
    case SILU:
        s = 1.0f / (2.0f + VARIANT(expm1)(-before));
        return s * (1.0f + before * (1.0f - s));
    case GELU:
        return VARIANT(normal_cdf)(before) + before * 0.398942280f * VARIANT(exp)(-0.5f * before * before);
    case ELU:
        return WHERE(before > 0.0f, zero + 1.0f, alpha * (1.0f + VARIANT(expm1)(WHERE(before > 0.0f, zero, before))));
    default:
        return zero + 1.0f;
    }
}

/* Computes the layer's outputs for `rows` rows of its source. */
static void VARIANT(forward)(const ppo_net *net, const ppo_layer *layer, Py_ssize_t rows) {
    float *out = layer->before ? layer->before : layer->y;
    const float *x = layer->source < 0 ? net->x : net->layers[layer->source].y;
    VARIANT(multiply)(
        (VARIANT(product)){x, layer->in_stride, 1, layer->turned, layer->stride, out, layer->stride, layer->n_in,
                           layer->row_bias},
        rows, layer->n_out);
    if (layer->activation == LINEAR) return;
    for (Py_ssize_t r = 0; r < rows; r++)
        for (Py_ssize_t j = r * layer->stride; j < r * layer->stride + layer->n_out; j += WIDTH)
            *VARIANT(at)(layer->y + j) = VARIANT(activated)(*VARIANT(at)(out + j), layer->activation, layer->alpha);
}

/* Replaces derivatives by the layer's outputs with those by the inputs of its activation, and adds them up. */
static void VARIANT(through_activation)(const ppo_layer *layer, Py_ssize_t rows) {
    const float *before = layer->before ? layer->before : layer->y;
    for (Py_ssize_t j = 0; j < layer->n_out; j += WIDTH) {
        VARIANT(floats) sum = *VARIANT(at)(layer->sum_bias + j);
        for (Py_ssize_t i = j; i < rows * layer->stride; i += layer->stride) {
            VARIANT(floats) d = *VARIANT(at)(layer->d + i);
            if (layer->activation != LINEAR) {
                d *= VARIANT(slope)(*VARIANT(at)(layer->y + i), *VARIANT(at)(before + i), layer->activation, layer->alpha);
                *VARIANT(at)(layer->d + i) = d;
            }
            sum += d;
        }
        *VARIANT(at)(layer->sum_bias + j) = sum;
    }
}

/* Adds a layer's gradients to the sums, and computes derivatives by its source's outputs; adds these to those of later
   layers (`is_more`), or overwrites them. */
static void VARIANT(backward)(const ppo_net *net, const ppo_layer *layer, Py_ssize_t rows, int is_more) {
    const float *x = layer->source < 0 ? net->x : net->layers[layer->source].y;
    VARIANT(through_activation)(layer, rows);
    if (layer->d_weight)
        VARIANT(multiply)(
            (VARIANT(product)){layer->d, 1, layer->stride, x, layer->in_stride, layer->sum_weight, layer->in_stride, rows,
                               NULL},
            layer->n_out, layer->n_in);
    if (layer->source >= 0)
        VARIANT(multiply)(
            (VARIANT(product)){layer->d, layer->stride, 1, layer->straight, layer->in_stride,
                               net->layers[layer->source].d, layer->in_stride, layer->n_out, is_more ? NULL : net->zeros},
            rows, layer->n_in);
}

static inline VARIANT(floats) VARIANT(clipped)(VARIANT(floats) x, float low, float high) {
    const VARIANT(floats) zero = {0};
    x = WHERE(x < low, zero + low, x);
    return WHERE(x > high, zero + high, x);
}

static inline VARIANT(floats) VARIANT(less)(VARIANT(floats) x, VARIANT(floats) y) { return WHERE(x < y, x, y); }

/* WIDTH rows, one in each lane. */
typedef struct {
    VARIANT(floats) counts, weight, logp, advantage, entropy, surrogate; /* the last: derivative by logp */
    VARIANT(floats) *logits, *derivatives, *former; /* [n_logits] */
    VARIANT(floats) *mask;                          /* [n_logits] */
    VARIANT(floats) *actions;                       /* [n_choices] */
    VARIANT(floats) *entropies;                     /* [n_choices] */
} VARIANT(group);

/* Replaces logits by log-probabilities, and derivatives by probabilities. */
static void VARIANT(categorical)(const ppo_loss *loss, VARIANT(group) *g) {
    const VARIANT(floats) zero = {0};
    Py_ssize_t at = 0;
    for (Py_ssize_t c = 0; c < loss->n_choices; at += loss->sizes[c++]) {
        const Py_ssize_t n = loss->sizes[c];
        VARIANT(floats) *z = g->logits + at, *q = g->derivatives + at, total = {0}, entropy = {0};
        if (loss->has_mask)
            for (Py_ssize_t j = 0; j < n; j++) z[j] = WHERE(g->mask[at + j] == 0.0f, zero + LEAST, z[j]);
        VARIANT(floats) top = z[0];
        for (Py_ssize_t j = 1; j < n; j++) top = WHERE(z[j] > top, z[j], top);
        for (Py_ssize_t j = 0; j < n; j++) {
            z[j] -= top;
            q[j] = VARIANT(exp)(z[j]);
            total += q[j];
        }
        const VARIANT(floats) log_total = VARIANT(log)(total), share = 1.0f / total;
        for (Py_ssize_t j = 0; j < n; j++) {
            z[j] -= log_total;
            q[j] *= share;
            entropy -= WHERE(q[j] == 0.0f, zero, q[j] * z[j]);
            g->logp += WHERE(g->actions[c] == (float)j, z[j], zero);
        }
        g->entropies[c] = entropy;
        g->entropy += entropy;
    }
}

static void VARIANT(categorical_derivatives)(const ppo_loss *loss, VARIANT(group) *g, VARIANT(floats) *sums) {
    const VARIANT(floats) zero = {0};
    Py_ssize_t at = 0;
    for (Py_ssize_t c = 0; c < loss->n_choices; at += loss->sizes[c++]) {
        const Py_ssize_t n = loss->sizes[c];
        VARIANT(floats) *logp = g->logits + at, *q = g->derivatives + at, shared = {0};
        if (loss->has_former) { /* KL(former || now), where 0 log 0 is 0 */
            VARIANT(floats) *p = g->former + at, top = p[0], total = {0};
            for (Py_ssize_t j = 1; j < n; j++) top = WHERE(p[j] > top, p[j], top);
            for (Py_ssize_t j = 0; j < n; j++) total += VARIANT(exp)(p[j] - top);
            const VARIANT(floats) log_total = VARIANT(log)(total);
            for (Py_ssize_t j = 0; j < n; j++) {
                const VARIANT(floats) log_p = p[j] - top - log_total;
                p[j] = VARIANT(exp)(p[j] - top) / total;
                shared += p[j];
                sums[FORMER_KL] += WHERE((p[j] == 0.0f) | (g->counts == 0.0f), zero, p[j] * (log_p - logp[j]));
            }
        }
        for (Py_ssize_t j = 0; j < n; j++) {
            const VARIANT(floats) chosen = WHERE(g->actions[c] == (float)j, zero + 1.0f, zero);
            const VARIANT(floats) by_entropy = WHERE(q[j] == 0.0f, zero, q[j] * (logp[j] + g->entropies[c]));
            VARIANT(floats) d = g->surrogate * (chosen - q[j]) + g->weight * loss->entropy_coeff * by_entropy;
            if (loss->has_former) d += g->weight * loss->kl_coeff * (q[j] * shared - g->former[at + j]);
            if (loss->has_mask) d = WHERE(g->mask[at + j] == 0.0f, zero, d);
            g->derivatives[at + j] = d;
        }
    }
}

static void VARIANT(gaussian)(const ppo_loss *loss, VARIANT(group) *g) {
    const Py_ssize_t n = loss->n_choices;
    for (Py_ssize_t j = 0; j < n; j++) {
        const VARIANT(floats) log_std = VARIANT(clipped)(g->logits[n + j], -loss->bound, loss->bound);
        const VARIANT(floats) off = (g->actions[j] - g->logits[j]) * VARIANT(exp)(-log_std);
        g->logp -= 0.5f * off * off + log_std + LOG_ROOT_2_PI;
        g->entropy += log_std + (0.5f + LOG_ROOT_2_PI);
    }
}

static void VARIANT(gaussian_derivatives)(const ppo_loss *loss, VARIANT(group) *g, VARIANT(floats) *sums) {
    const VARIANT(floats) zero = {0};
    const Py_ssize_t n = loss->n_choices;
    for (Py_ssize_t j = 0; j < n; j++) {
        const VARIANT(floats) log_std = VARIANT(clipped)(g->logits[n + j], -loss->bound, loss->bound);
        const VARIANT(floats) inverse = VARIANT(exp)(-log_std);
        const VARIANT(floats) off = (g->actions[j] - g->logits[j]) * inverse;
        const VARIANT(floats) by_off = g->surrogate * off; /* its square may be infinite */
        VARIANT(floats) d_mean = by_off * inverse;
        VARIANT(floats) d_log_std = by_off * off - g->surrogate - g->weight * loss->entropy_coeff;
        if (loss->has_former) {
            const VARIANT(floats) former_off = (g->logits[j] - g->former[j]) * inverse;
            const VARIANT(floats) ratio = VARIANT(exp)(g->former[n + j]) * inverse;
            const VARIANT(floats) kl = log_std - g->former[n + j] + 0.5f * (ratio * ratio + former_off * former_off - 1.0f);
            sums[FORMER_KL] += WHERE(g->counts == 0.0f, zero, kl);
            d_mean += g->weight * loss->kl_coeff * (former_off * inverse);
            d_log_std += g->weight * loss->kl_coeff * (1.0f - ratio * ratio - former_off * former_off);
        }
        const VARIANT(floats) raw = g->logits[n + j];
        g->derivatives[j] = d_mean;
        g->derivatives[n + j] = WHERE((raw < -loss->bound) | (raw > loss->bound), zero, d_log_std);
    }
}

/* Computes the clipped surrogate's derivative by logp; adds to the sums over lanes. */
static void VARIANT(surrogate)(const ppo_loss *loss, VARIANT(group) *g, VARIANT(floats) former_logp, VARIANT(floats) *sums) {
    const VARIANT(floats) zero = {0};
    const VARIANT(floats) log_ratio = g->logp - former_logp, ratio = VARIANT(exp)(log_ratio);
    const VARIANT(floats) gain = g->advantage * ratio;
    const VARIANT(floats) clipped = g->advantage * VARIANT(clipped)(ratio, 1.0f - loss->clip, 1.0f + loss->clip);
    g->surrogate = -g->weight * g->advantage * WHERE(gain <= clipped, zero + 1.0f, zero) * ratio;
    const VARIANT(floats) off = ratio - 1.0f;
    sums[SURROGATE] += WHERE(g->counts == 0.0f, zero, VARIANT(less)(gain, clipped));
    sums[ENTROPY] += WHERE(g->counts == 0.0f, zero, g->entropy);
    sums[KL] += WHERE(g->counts == 0.0f, zero, off - log_ratio);
    sums[CLIPPED] += WHERE((g->counts == 0.0f) | ((off <= loss->clip) & (off >= -loss->clip)), zero, zero + 1.0f);
}

static inline VARIANT(floats) VARIANT(value)(
    const ppo_loss *loss, VARIANT(group) *g, VARIANT(floats) error, VARIANT(floats) *sums
) {
    const VARIANT(floats) zero = {0}, square = error * error;
    sums[VALUE_LOSS] += WHERE(g->counts == 0.0f, zero, VARIANT(clipped)(square, 0.0f, loss->most_error));
    return g->weight * loss->value_coeff * 2.0f * error * WHERE(square > loss->most_error, zero, zero + 1.0f);
}

/* Adds to ERROR_ and the three sums after it. In doubles, because the variances may be tiny beside the sums. */
static inline void VARIANT(moments)(VARIANT(floats) errors, VARIANT(floats) targets, VARIANT(doubles) *sums) {
    const VARIANT(doubles) error = __builtin_convertvector(errors, VARIANT(doubles));
    const VARIANT(doubles) target = __builtin_convertvector(targets, VARIANT(doubles));
    sums[0] += error;
    sums[1] += error * error;
    sums[2] += target;
    sums[3] += target * target;
}

/* Gathers one column of WIDTH rows. */
static inline VARIANT(floats) VARIANT(gathered)(const float *const *rows, Py_ssize_t column) {
    VARIANT(floats) found;
    for (int lane = 0; lane < WIDTH; lane++) found[lane] = rows[lane][column];
    return found;
}

/* Computes the loss's derivatives by the outputs of a block of n rows. */
static void VARIANT(loss_rows)(const ppo_net *net, const ppo_minibatch *batch, Py_ssize_t n) {
    const ppo_loss *loss = &net->loss;
    const ppo_layer *head = net->layers + net->logits, *value_head = net->values < 0 ? NULL : net->layers + net->values;
    const Py_ssize_t n_logits = loss->n_logits, n_choices = loss->n_choices, n_out = head->n_out;
    const Py_ssize_t mask_at = ACTIONS + n_choices, former_at = mask_at + (loss->has_mask ? n_logits : 0);
    const VARIANT(floats) zero = {0};
    VARIANT(doubles) moments[4] = {0};
    VARIANT(floats) sums[N_SUMS] = {0}, *lanes = (VARIANT(floats) *)net->lanes;
    VARIANT(group) g;
    g.logits = lanes;
    g.derivatives = g.logits + n_logits;
    g.mask = g.derivatives + n_logits;
    g.former = g.mask + n_logits;
    g.actions = g.former + n_logits;
    g.entropies = g.actions + n_choices;
    for (Py_ssize_t i = 0; i < n; i += WIDTH) {
        const float *rows[WIDTH], *outputs[WIDTH];
        const int used = n - i < WIDTH ? (int)(n - i) : WIDTH;
        for (int lane = 0; lane < WIDTH; lane++) {
            const Py_ssize_t r = i + (lane < used ? lane : used - 1);
            rows[lane] = batch->rows + net->index[r] * batch->width;
            outputs[lane] = head->y + r * head->stride;
        }
        g.counts = VARIANT(gathered)(rows, COUNTS);
        for (int lane = used; lane < WIDTH; lane++) g.counts[lane] = 0.0f;
        g.weight = g.counts * batch->weight;
        g.advantage = VARIANT(gathered)(rows, ADVANTAGE);
        g.logp = g.entropy = (VARIANT(floats)){0};
        for (Py_ssize_t j = 0; j < n_out; j++) g.logits[j] = VARIANT(gathered)(outputs, j);
        for (Py_ssize_t j = n_out; j < n_logits; j++) g.logits[j] = (VARIANT(floats)){0} + net->log_std[j - n_out];
        for (Py_ssize_t c = 0; c < n_choices; c++) g.actions[c] = VARIANT(gathered)(rows, ACTIONS + c);
        for (Py_ssize_t j = 0; loss->has_mask && j < n_logits; j++) g.mask[j] = VARIANT(gathered)(rows, mask_at + j);
        for (Py_ssize_t j = 0; loss->has_former && j < n_logits; j++)
            g.former[j] = VARIANT(gathered)(rows, former_at + j);
        (loss->kind == CATEGORICAL ? VARIANT(categorical) : VARIANT(gaussian))(loss, &g);
        VARIANT(surrogate)(loss, &g, VARIANT(gathered)(rows, LOGP), sums);
        (loss->kind == CATEGORICAL ? VARIANT(categorical_derivatives) : VARIANT(gaussian_derivatives))(loss, &g, sums);
        for (Py_ssize_t j = 0; j < n_out; j++)
            for (int lane = 0; lane < used; lane++) head->d[(i + lane) * head->stride + j] = g.derivatives[j][lane];
        for (Py_ssize_t j = n_out; net->d_log_std && j < n_logits; j++)
            for (int lane = 0; lane < used; lane++) net->d_log_std[j - n_out] += g.derivatives[j][lane];
        if (value_head) {
            VARIANT(floats) values;
            for (int lane = 0; lane < WIDTH; lane++)
                values[lane] = value_head->y[(i + (lane < used ? lane : used - 1)) * value_head->stride];
            const VARIANT(floats) targets = VARIANT(gathered)(rows, TARGET), errors = values - targets;
            const VARIANT(floats) d = VARIANT(value)(loss, &g, errors, sums);
            for (int lane = 0; lane < used; lane++) value_head->d[(i + lane) * value_head->stride] = d[lane];
            VARIANT(moments)(WHERE(g.counts == 0.0f, zero, errors), WHERE(g.counts == 0.0f, zero, targets), moments);
        }
        sums[N_COUNTED] += g.counts;
    }
    for (int k = 0; k < N_SUMS; k++) batch->sums[k] += VARIANT(sum)(sums[k]);
    for (int k = 0; k < 4; k++)
        for (int lane = 0; lane < WIDTH; lane++) batch->sums[ERROR_ + k] += moments[k][lane];
}

/* Takes the derivatives by a block's outputs from its rows. */
static void VARIANT(given_rows)(const ppo_net *net, const ppo_minibatch *batch, Py_ssize_t n) {
    const ppo_layer *head = net->layers + net->logits;
    for (Py_ssize_t r = 0; r < n; r++)
        memcpy(head->d + r * head->stride, batch->rows + net->index[r] * batch->width, head->n_out * sizeof(float));
}

#include "cells_variant.h"

/* Copies the weights to the layouts of the products, and clears the sums. */
static void VARIANT(prepare)(const ppo_net *net) {
    for (int l = 0; l < net->n_layers; l++) {
        const ppo_layer *layer = net->layers + l;
        if (layer->cell) {
            VARIANT(prepare_cell)(layer);
            continue;
        }
        for (Py_ssize_t o = 0; o < layer->n_out; o++) {
            const float *row = layer->weight + o * layer->n_in;
            for (Py_ssize_t i = 0; i < layer->n_in; i++) layer->turned[i * layer->stride + o] = row[i];
            if (layer->straight) memcpy(layer->straight + o * layer->in_stride, row, layer->n_in * sizeof(float));
        }
        for (Py_ssize_t o = 0; o < layer->n_out; o++) layer->row_bias[o] = layer->bias ? layer->bias[o] : 0.0f;
        memset(layer->sum_weight, 0, layer->n_out * layer->in_stride * sizeof(float));
        memset(layer->sum_bias, 0, layer->stride * sizeof(float));
    }
    if (net->d_log_std) memset(net->d_log_std, 0, net->loss.n_choices * sizeof(float));
}

static void VARIANT(finish)(const ppo_net *net) {
    for (int l = 0; l < net->n_layers; l++) {
        const ppo_layer *layer = net->layers + l;
        if (layer->cell) {
            VARIANT(finish_cell)(layer);
            continue;
        }
        for (Py_ssize_t o = 0; layer->d_weight && o < layer->n_out; o++)
            memcpy(layer->d_weight + o * layer->n_in, layer->sum_weight + o * layer->in_stride, layer->n_in * sizeof(float));
        if (layer->d_bias) memcpy(layer->d_bias, layer->sum_bias, layer->n_out * sizeof(float));
    }
}

/* Gathers the observations and the first states of n sequences. */
static void VARIANT(gather)(const ppo_net *net, const ppo_minibatch *batch, const Py_ssize_t *order, Py_ssize_t n) {
    for (Py_ssize_t t = 0; t < batch->length; t++)
        for (Py_ssize_t s = 0; s < n; s++) {
            const Py_ssize_t r = t * n + s, from = net->index[r] = order[s] * batch->length + t;
            memcpy(net->x + r * net->obs_stride, batch->obs + from * net->n_obs, net->n_obs * sizeof(float));
        }
    for (int l = 0; l < net->n_layers; l++) {
        const ppo_layer *layer = net->layers + l;
        const ppo_cell *cell = layer->cell;
        const Py_ssize_t size = layer->n_out;
        for (Py_ssize_t s = 0; cell && s < n; s++) {
            memcpy(cell->first_h + s * layer->stride, cell->given_h + order[s] * size, size * sizeof(float));
            if (cell->kind == LSTM)
                memcpy(cell->first_c + s * layer->stride, cell->given_c + order[s] * size, size * sizeof(float));
        }
    }
}

static void VARIANT(backward_pass)(const ppo_net *net, Py_ssize_t n, Py_ssize_t length) {
    for (int l = net->n_layers - 1; l >= 0; l--) {
        const ppo_layer *layer = net->layers + l;
        /* True if its source already has derivatives from the loss or a later layer. */
        int is_more = layer->source >= 0 && (layer->source == net->logits || layer->source == net->values);
        for (int after = l + 1; after < net->n_layers; after++)
            is_more |= net->layers[after].source == layer->source;
        if (layer->cell) VARIANT(cell_backward)(net, layer, n, length, is_more);
        else VARIANT(backward)(net, layer, n * length, is_more);
    }
}

/* Computes the gradient or, if the minibatch has room for them, the outputs. */
static void VARIANT(gradient)(ppo_net *net, const ppo_minibatch *batch) {
    const Py_ssize_t at_a_time = net->block / batch->length;
    const ppo_layer *head = net->layers + net->logits;
    VARIANT(prepare)(net);
    for (Py_ssize_t begin = 0; begin < batch->n; begin += at_a_time) {
        const Py_ssize_t n = batch->n - begin < at_a_time ? batch->n - begin : at_a_time, rows = n * batch->length;
        if (!batch->is_forwarded) {
            VARIANT(gather)(net, batch, batch->order + begin, n);
            for (int l = 0; l < net->n_layers; l++)
                if (net->layers[l].cell) VARIANT(cell_forward)(net, net->layers + l, n, batch->length);
                else VARIANT(forward)(net, net->layers + l, rows);
        }
        if (batch->outputs) {
            for (Py_ssize_t r = 0; r < rows; r++)
                memcpy(batch->outputs + net->index[r] * head->n_out, head->y + r * head->stride, head->n_out * sizeof(float));
            continue;
        }
        (net->loss.kind == GIVEN ? VARIANT(given_rows) : VARIANT(loss_rows))(net, batch, rows);
        VARIANT(backward_pass)(net, n, batch->length);
    }
    if (!batch->outputs) VARIANT(finish)(net);
}

#undef MOST_VECTORS
#undef DEPTH
#undef COLUMN
