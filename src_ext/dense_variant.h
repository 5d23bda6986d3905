/* Dense networks for one instruction set, see each_variant.h.

   A layer computes y = activation(W x + b) from torch's own W [n_out, n_in]. For up to FEW rows, each output is a dot
   product along a row of W. More rows are computed ROWS at a time, with x and y turned over ([n_in, ROWS]), so that
   the vectors lie across the rows of the batch: W is then read once for ROWS rows, and never rearranged. */

/* Applies the activation in place; n is rounded up to whole vectors. */
static inline void VARIANT(activate)(float *y, Py_ssize_t n, int activation, float alpha) {
    if (activation != LINEAR)
        for (Py_ssize_t i = 0; i < n; i += WIDTH) {
            VARIANT(floats) *part = (VARIANT(floats) *)(y + i);
            *part = VARIANT(activated)(*part, activation, alpha);
        }
}

/* Computes `rows` (1 or 2) rows: x [rows, n_in] -> y [rows, n_out]. */
static inline __attribute__((always_inline)) void VARIANT(dots)(
    const dense_layer *layer, const float *restrict x, float *restrict y, const int rows
) {
    const Py_ssize_t n_in = layer->n_in, n_out = layer->n_out, in_vectors = n_in - n_in % WIDTH;
    for (Py_ssize_t o = 0; o < n_out; o += 4) {
        const int outputs = n_out - o < 4 ? (int)(n_out - o) : 4;
        const float *w[4];
        for (int k = 0; k < 4; k++) w[k] = layer->weight + (o + (k < outputs ? k : 0)) * n_in;
        VARIANT(floats) sums[2][4] = {0};
        for (Py_ssize_t i = 0; i < in_vectors; i += WIDTH)
            for (int k = 0; k < 4; k++)
                for (int r = 0; r < rows; r++)
                    sums[r][k] += *(const VARIANT(floats) *)(w[k] + i) * *(const VARIANT(floats) *)(x + r * n_in + i);
        for (int r = 0; r < rows; r++)
            for (int k = 0; k < outputs; k++) {
                float total = VARIANT(sum)(sums[r][k]);
                for (Py_ssize_t i = in_vectors; i < n_in; i++) total += w[k][i] * x[r * n_in + i];
                y[r * n_out + o + k] = total + (layer->bias ? layer->bias[o + k] : 0.0f);
            }
    }
}

#define OUTPUTS (WIDTH == 16 ? 8 : WIDTH == 8 ? 4 : 2) /* at a time, so that their sums stay in registers */
#define PARTS (ROWS / WIDTH)         /* vectors across ROWS rows */

/* Computes ROWS rows: x [n_in, ROWS] -> y [n_out, ROWS]. */
static void VARIANT(across)(const dense_layer *layer, const float *restrict x, float *restrict y) {
    const Py_ssize_t n_in = layer->n_in, n_out = layer->n_out;
    for (Py_ssize_t o = 0; o < n_out; o += OUTPUTS) {
        const int outputs = n_out - o < OUTPUTS ? (int)(n_out - o) : OUTPUTS;
        const float *w[OUTPUTS];
        VARIANT(floats) sums[OUTPUTS][PARTS];
        for (int k = 0; k < OUTPUTS; k++) {
            const Py_ssize_t output = o + (k < outputs ? k : 0);
            w[k] = layer->weight + output * n_in;
            for (int p = 0; p < PARTS; p++)
                sums[k][p] = (VARIANT(floats)){0} + (layer->bias ? layer->bias[output] : 0.0f);
        }
        for (Py_ssize_t i = 0; i < n_in; i++)
            for (int p = 0; p < PARTS; p++) {
                const VARIANT(floats) values = *(const VARIANT(floats) *)(x + i * ROWS + p * WIDTH);
                for (int k = 0; k < OUTPUTS; k++) sums[k][p] += w[k][i] * values;
            }
        for (int k = 0; k < outputs; k++)
            for (int p = 0; p < PARTS; p++)
                *(VARIANT(floats) *)(y + (o + k) * ROWS + p * WIDTH) = sums[k][p];
    }
}

/* Layer normalisation, (x - mean) / sqrt(variance + eps) weight + bias over the numbers of a row, as torch.nn.LayerNorm
   computes it (Ba, Kiros and Hinton, "Layer normalization", 2016). One row: x [n] -> y [n]. */
static void VARIANT(norm)(const dense_layer *layer, const float *restrict x, float *restrict y) {
    const Py_ssize_t n = layer->n_out, in_vectors = n - n % WIDTH;
    VARIANT(floats) sums = {0}, squares = {0};
    for (Py_ssize_t i = 0; i < in_vectors; i += WIDTH) sums += *(const VARIANT(floats) *)(x + i);
    float mean = VARIANT(sum)(sums);
    for (Py_ssize_t i = in_vectors; i < n; i++) mean += x[i];
    mean /= n;
    for (Py_ssize_t i = 0; i < in_vectors; i += WIDTH) {
        const VARIANT(floats) off = *(const VARIANT(floats) *)(x + i) - mean;
        squares += off * off;
    }
    float variance = VARIANT(sum)(squares);
    for (Py_ssize_t i = in_vectors; i < n; i++) variance += (x[i] - mean) * (x[i] - mean);
    const float scale = 1.0f / sqrtf(variance / n + layer->eps);
    for (Py_ssize_t i = 0; i < n; i++) {
        const float normal = (x[i] - mean) * scale * (layer->weight ? layer->weight[i] : 1.0f);
        y[i] = normal + (layer->bias ? layer->bias[i] : 0.0f);
    }
}

/* Layer normalisation of ROWS rows: x [n, ROWS] -> y [n, ROWS]. */
static void VARIANT(norm_across)(const dense_layer *layer, const float *restrict x, float *restrict y) {
    const Py_ssize_t n = layer->n_out;
    for (Py_ssize_t first = 0; first < ROWS; first += WIDTH) {
        VARIANT(floats) mean = {0}, scale = {0};
        for (Py_ssize_t i = 0; i < n; i++) mean += *(const VARIANT(floats) *)(x + i * ROWS + first);
        mean /= (float)n;
        for (Py_ssize_t i = 0; i < n; i++) {
            const VARIANT(floats) off = *(const VARIANT(floats) *)(x + i * ROWS + first) - mean;
            scale += off * off;
        }
        for (int r = 0; r < WIDTH; r++) scale[r] = 1.0f / sqrtf(scale[r] / n + layer->eps);
        for (Py_ssize_t i = 0; i < n; i++) {
            const VARIANT(floats) off = *(const VARIANT(floats) *)(x + i * ROWS + first) - mean;
            const VARIANT(floats) normal = off * scale * (layer->weight ? layer->weight[i] : 1.0f);
            *(VARIANT(floats) *)(y + i * ROWS + first) = normal + (layer->bias ? layer->bias[i] : 0.0f);
        }
    }
}

/* Stores the first n lanes of a vector. */
static inline void VARIANT(store)(float *to, VARIANT(floats) v, Py_ssize_t n) {
    if (n >= WIDTH) *(VARIANT(floats) *)to = v;
    else
        for (Py_ssize_t k = 0; k < n; k++) to[k] = v[k];
}

/* Computes n numbers of a cell's next state from both parts of its gates, which begin `apart` floats from each other. */
static void VARIANT(remember)(
    int kind, const float *restrict source, const float *restrict state, Py_ssize_t apart, const float *restrict h,
    float *restrict c, float *restrict y, Py_ssize_t n
) {
#define PART(part, gate) (*(const VARIANT(floats) *)(part + gate * apart + i))
#define GATE(gate) VARIANT(sigmoid)(PART(source, gate) + PART(state, gate))
    for (Py_ssize_t i = 0; i < n; i += WIDTH) {
        if (kind == LSTM) {
            const VARIANT(floats) new = VARIANT(tanh)(PART(source, 2) + PART(state, 2));
            const VARIANT(floats) next = GATE(1) * *(const VARIANT(floats) *)(c + i) + GATE(0) * new;
            VARIANT(store)(c + i, next, n - i);
            VARIANT(store)(y + i, GATE(3) * VARIANT(tanh)(next), n - i);
        } else {
            const VARIANT(floats) new = VARIANT(tanh)(PART(source, 2) + GATE(0) * PART(state, 2));
            VARIANT(store)(y + i, new + GATE(1) * (*(const VARIANT(floats) *)(h + i) - new), n - i);
        }
    }
#undef GATE
#undef PART
}

static void VARIANT(few_products)(const dense_layer *layer, const float *x, Py_ssize_t n) {
    Py_ssize_t r = 0;
    for (; r + 2 <= n; r += 2) VARIANT(dots)(layer, x + r * layer->n_in, layer->y + r * layer->n_out, 2);
    if (r < n) VARIANT(dots)(layer, x + r * layer->n_in, layer->y + r * layer->n_out, 1);
}

static void VARIANT(few_rows)(const dense_net *net, const float *obs, Py_ssize_t n) {
    for (int l = 0; l < net->n_layers; l++) {
        const dense_layer *layer = net->layers + l;
        const float *x = layer->source < 0 ? obs : net->layers[layer->source].y;
        const dense_cell *cell = layer->cell;
        if (cell) {
            const Py_ssize_t size = layer->n_out, gates = cell->from_state.n_out;
            VARIANT(few_products)(&cell->from_source, x, n);
            VARIANT(few_products)(&cell->from_state, cell->h, n);
            for (Py_ssize_t r = 0; r < n; r++)
                VARIANT(remember)(cell->kind, cell->from_source.y + r * gates, cell->from_state.y + r * gates, size,
                                  cell->h + r * size, cell->c + r * size, layer->y + r * size, size);
        } else if (layer->eps >= 0.0f)
            for (Py_ssize_t r = 0; r < n; r++) VARIANT(norm)(layer, x + r * layer->n_in, layer->y + r * layer->n_out);
        else VARIANT(few_products)(layer, x, n);
        VARIANT(activate)(layer->y, n * layer->n_out, layer->activation, layer->alpha);
    }
}

static void VARIANT(many_rows)(const dense_net *net, const float *obs, Py_ssize_t n) {
    for (Py_ssize_t i = 0; i < net->n_obs; i++)
        for (Py_ssize_t r = 0; r < ROWS; r++) net->turned_obs[i * ROWS + r] = r < n ? obs[r * net->n_obs + i] : 0.0f;
    for (int l = 0; l < net->n_layers; l++) {
        const dense_layer *layer = net->layers + l;
        const float *x = layer->source < 0 ? net->turned_obs : net->layers[layer->source].y;
        const dense_cell *cell = layer->cell;
        if (cell) {
            VARIANT(across)(&cell->from_source, x, cell->from_source.y);
            VARIANT(across)(&cell->from_state, cell->h, cell->from_state.y);
            VARIANT(remember)(cell->kind, cell->from_source.y, cell->from_state.y, layer->n_out * ROWS, cell->h, cell->c,
                              layer->y, layer->n_out * ROWS);
        } else if (layer->eps >= 0.0f) VARIANT(norm_across)(layer, x, layer->y);
        else VARIANT(across)(layer, x, layer->y);
        VARIANT(activate)(layer->y, layer->n_out * ROWS, layer->activation, layer->alpha);
    }
}

/* Computes all layers' y of n <= ROWS rows. */
static void VARIANT(rows)(const dense_net *net, const float *obs, Py_ssize_t n) {
    if (n <= FEW) VARIANT(few_rows)(net, obs, n);
    else VARIANT(many_rows)(net, obs, n);
}

#undef OUTPUTS
#undef PARTS
