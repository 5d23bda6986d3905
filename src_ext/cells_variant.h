/* LSTM and GRU cells over time for one instruction set, see ppo_variant.h.

   A block has the same number n of sequences at each step, and its rows lie step by step: row t n + s is step t of
   sequence s. So the products with the inputs, and all sums for gradients, take the rows of all steps at once; only the
   products with the state go step by step. */

/* Places of torch's gates: i, f, g, o of an LSTM; r, z, n of a GRU. Its n has two places, because r stands between its
   parts: that of the input comes first, that of the state last. */
static inline Py_ssize_t VARIANT(input_place)(const ppo_cell *cell, int gate) {
    return cell->gap * (cell->kind == LSTM ? gate : (gate + 1) % 3);
}

static inline Py_ssize_t VARIANT(state_place)(const ppo_cell *cell, int gate) {
    return cell->gap * (cell->kind == LSTM ? gate : gate + 1);
}

#define GATE(k) (*VARIANT(at)(gates + (k) * cell->gap + j))

static void VARIANT(lstm_step)(const ppo_cell *cell, float *gates, const float *c, float *next_c, float *h, Py_ssize_t size) {
    for (Py_ssize_t j = 0; j < size; j += WIDTH) {
        GATE(0) = VARIANT(sigmoid)(GATE(0));
        GATE(1) = VARIANT(sigmoid)(GATE(1));
        GATE(2) = VARIANT(tanh)(GATE(2));
        GATE(3) = VARIANT(sigmoid)(GATE(3));
        const VARIANT(floats) next = GATE(1) * *VARIANT(at)(c + j) + GATE(0) * GATE(2);
        *VARIANT(at)(next_c + j) = next;
        *VARIANT(at)(h + j) = GATE(3) * VARIANT(tanh)(next);
    }
}

static void VARIANT(gru_step)(const ppo_cell *cell, float *gates, const float *h, float *next_h, Py_ssize_t size) {
    for (Py_ssize_t j = 0; j < size; j += WIDTH) {
        GATE(1) = VARIANT(sigmoid)(GATE(1));
        GATE(2) = VARIANT(sigmoid)(GATE(2));
        GATE(0) = VARIANT(tanh)(GATE(0) + GATE(1) * GATE(3));
        *VARIANT(at)(next_h + j) = GATE(0) + GATE(2) * (*VARIANT(at)(h + j) - GATE(0));
    }
}

/* Computes a cell's outputs for n sequences of `length` steps. */
static void VARIANT(cell_forward)(const ppo_net *net, const ppo_layer *layer, Py_ssize_t n, Py_ssize_t length) {
    const ppo_cell *cell = layer->cell;
    const Py_ssize_t gap = cell->gap, row = cell->row, stride = layer->stride;
    const Py_ssize_t of_state = cell->kind == LSTM ? 0 : gap, of_input = cell->kind == LSTM ? 4 * gap : 3 * gap;
    const float *x = layer->source < 0 ? net->x : net->layers[layer->source].y;
    VARIANT(multiply)(
        (VARIANT(product)){x, layer->in_stride, 1, layer->turned, row, cell->gates, row, layer->n_in, layer->row_bias},
        n * length, of_input);
    for (Py_ssize_t r = 0; of_input < 4 * gap && r < n * length; r++)
        memcpy(cell->gates + r * row + of_input, layer->row_bias + of_input, gap * sizeof(float));
    for (Py_ssize_t t = 0; t < length; t++) {
        float *gates = cell->gates + t * n * row, *y = layer->y + t * n * stride, *c = cell->c + t * n * stride;
        const float *h = t ? y - n * stride : cell->first_h, *former_c = t ? c - n * stride : cell->first_c;
        VARIANT(multiply)(
            (VARIANT(product)){h, stride, 1, cell->turned + of_state, row, gates + of_state, row, layer->n_out, NULL},
            n, 4 * gap - of_state);
        for (Py_ssize_t s = 0; s < n; s++) {
            const Py_ssize_t at = s * stride;
            if (cell->kind == LSTM)
                VARIANT(lstm_step)(cell, gates + s * row, former_c + at, c + at, y + at, layer->n_out);
            else VARIANT(gru_step)(cell, gates + s * row, h + at, y + at, layer->n_out);
        }
    }
}

/* Replaces gates by the loss's derivatives before their activations, and d_c by the derivatives by the former c. */
static void VARIANT(lstm_back)(
    const ppo_cell *cell, float *gates, const float *c, const float *next_c, const float *d_h, float *d_c, Py_ssize_t size
) {
    for (Py_ssize_t j = 0; j < size; j += WIDTH) {
        const VARIANT(floats) in = GATE(0), forget = GATE(1), new = GATE(2), out = GATE(3);
        const VARIANT(floats) bent = VARIANT(tanh)(*VARIANT(at)(next_c + j)), d = *VARIANT(at)(d_h + j);
        const VARIANT(floats) by_c = *VARIANT(at)(d_c + j) + d * out * (1.0f - bent * bent);
        GATE(0) = by_c * new * in * (1.0f - in);
        GATE(1) = by_c * *VARIANT(at)(c + j) * forget * (1.0f - forget);
        GATE(2) = by_c * in * (1.0f - new * new);
        GATE(3) = d * bent * out * (1.0f - out);
        *VARIANT(at)(d_c + j) = by_c * forget;
    }
}

/* The same; adds the derivatives by the former h that do not come from gates to d_former, unless this is NULL. */
static void VARIANT(gru_back)(
    const ppo_cell *cell, float *gates, const float *h, const float *d_h, float *d_former, Py_ssize_t size
) {
    for (Py_ssize_t j = 0; j < size; j += WIDTH) {
        const VARIANT(floats) new = GATE(0), reset = GATE(1), keep = GATE(2), of_state = GATE(3), d = *VARIANT(at)(d_h + j);
        const VARIANT(floats) by_new = d * (1.0f - keep) * (1.0f - new * new);
        GATE(0) = by_new;
        GATE(1) = by_new * of_state * reset * (1.0f - reset);
        GATE(2) = d * (*VARIANT(at)(h + j) - new) * keep * (1.0f - keep);
        GATE(3) = by_new * reset;
        if (d_former) *VARIANT(at)(d_former + j) += d * keep;
    }
}

#undef GATE

/* Goes back through the steps: replaces all gates by derivatives, and completes those by the outputs. */
static void VARIANT(back_in_time)(const ppo_layer *layer, Py_ssize_t n, Py_ssize_t length) {
    const ppo_cell *cell = layer->cell;
    const Py_ssize_t row = cell->row, stride = layer->stride, step = n * stride;
    memset(cell->d_c, 0, step * sizeof(float));
    for (Py_ssize_t t = length - 1; t >= 0; t--) {
        float *gates = cell->gates + t * n * row, *d = layer->d + t * step, *former = t ? d - step : NULL;
        const float *y = layer->y + t * step, *c = cell->c + t * step;
        for (Py_ssize_t s = 0; s < n; s++) {
            const Py_ssize_t at = s * stride;
            if (cell->kind == LSTM)
                VARIANT(lstm_back)(cell, gates + s * row, (t ? c - step : cell->first_c) + at, c + at, d + at,
                                   cell->d_c + at, layer->n_out);
            else
                VARIANT(gru_back)(cell, gates + s * row, (t ? y - step : cell->first_h) + at, d + at,
                                  former ? former + at : NULL, layer->n_out);
        }
        for (int k = 0; former && k < cell->n_gates; k++)
            VARIANT(multiply)(
                (VARIANT(product)){gates + VARIANT(state_place)(cell, k), row, 1, cell->straight + k * layer->n_out * stride,
                                   stride, former, stride, layer->n_out, NULL},
                n, layer->n_out);
    }
}

/* Like `backward()`, for a cell. */
static void VARIANT(cell_backward)(
    const ppo_net *net, const ppo_layer *layer, Py_ssize_t n, Py_ssize_t length, int is_more
) {
    const ppo_cell *cell = layer->cell;
    const Py_ssize_t row = cell->row, stride = layer->stride, n_out = layer->n_out, rows = n * length;
    const float *x = layer->source < 0 ? net->x : net->layers[layer->source].y;
    VARIANT(back_in_time)(layer, n, length);
    for (Py_ssize_t j = 0; j < 4 * cell->gap; j += WIDTH) {
        VARIANT(floats) sum = *VARIANT(at)(layer->sum_bias + j);
        for (Py_ssize_t r = 0; r < rows; r++) sum += *VARIANT(at)(cell->gates + r * row + j);
        *VARIANT(at)(layer->sum_bias + j) = sum;
    }
    for (int k = 0; k < cell->n_gates; k++) {
        const float *by_input = cell->gates + VARIANT(input_place)(cell, k), *by_state = cell->gates + VARIANT(state_place)(cell, k);
        float *sum_weight = cell->sum_weight + k * n_out * stride;
        if (layer->d_weight)
            VARIANT(multiply)(
                (VARIANT(product)){by_input, 1, row, x, layer->in_stride, layer->sum_weight + k * n_out * layer->in_stride,
                                   layer->in_stride, rows, NULL},
                n_out, layer->n_in);
        if (cell->d_weight) {
            VARIANT(multiply)(
                (VARIANT(product)){by_state, 1, row, cell->first_h, stride, sum_weight, stride, n, NULL}, n_out, n_out);
            VARIANT(multiply)(
                (VARIANT(product)){by_state + n * row, 1, row, layer->y, stride, sum_weight, stride, rows - n, NULL},
                n_out, n_out);
        }
        if (layer->source >= 0)
            VARIANT(multiply)(
                (VARIANT(product)){by_input, row, 1, layer->straight + k * n_out * layer->in_stride, layer->in_stride,
                                   net->layers[layer->source].d, layer->in_stride, n_out,
                                   k || is_more ? NULL : net->zeros},
                rows, layer->n_in);
    }
}

/* Copies a cell's weights to the layouts of the products, and clears the sums. */
static void VARIANT(prepare_cell)(const ppo_layer *layer) {
    const ppo_cell *cell = layer->cell;
    const Py_ssize_t n_in = layer->n_in, n_out = layer->n_out, rows = cell->n_gates * n_out;
    memset(layer->row_bias, 0, cell->row * sizeof(float));
    for (Py_ssize_t r = 0; r < rows; r++) {
        const int gate = (int)(r / n_out);
        const Py_ssize_t o = r % n_out, of_input = VARIANT(input_place)(cell, gate) + o, of_state = VARIANT(state_place)(cell, gate) + o;
        const float *weight = layer->weight + r * n_in, *state_weight = cell->weight + r * n_out;
        for (Py_ssize_t i = 0; i < n_in; i++) layer->turned[i * cell->row + of_input] = weight[i];
        for (Py_ssize_t i = 0; i < n_out; i++) cell->turned[i * cell->row + of_state] = state_weight[i];
        if (layer->straight) memcpy(layer->straight + r * layer->in_stride, weight, n_in * sizeof(float));
        memcpy(cell->straight + r * layer->stride, state_weight, n_out * sizeof(float));
        if (layer->bias) layer->row_bias[of_input] += layer->bias[r];
        if (cell->bias) layer->row_bias[of_state] += cell->bias[r];
    }
    memset(layer->sum_weight, 0, rows * layer->in_stride * sizeof(float));
    memset(cell->sum_weight, 0, rows * layer->stride * sizeof(float));
    memset(layer->sum_bias, 0, cell->row * sizeof(float));
}

static void VARIANT(finish_cell)(const ppo_layer *layer) {
    const ppo_cell *cell = layer->cell;
    const Py_ssize_t n_in = layer->n_in, n_out = layer->n_out;
    for (Py_ssize_t r = 0; r < cell->n_gates * n_out; r++) {
        const int gate = (int)(r / n_out);
        if (layer->d_weight) memcpy(layer->d_weight + r * n_in, layer->sum_weight + r * layer->in_stride, n_in * sizeof(float));
        if (cell->d_weight) memcpy(cell->d_weight + r * n_out, cell->sum_weight + r * layer->stride, n_out * sizeof(float));
        if (layer->d_bias) layer->d_bias[r] = layer->sum_bias[VARIANT(input_place)(cell, gate) + r % n_out];
        if (cell->d_bias) cell->d_bias[r] = layer->sum_bias[VARIANT(state_place)(cell, gate) + r % n_out];
    }
}
