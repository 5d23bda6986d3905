cdef extern from "ppo.h" nogil:
    const int PLAIN, AVX2, AVX512
    const int LINEAR, TANH, RELU, SILU, GELU, ELU
    const int LSTM, GRU
    const int CATEGORICAL, GAUSSIAN, GIVEN
    const int COUNTS, ACTIONS, N_SUMS
    ctypedef struct ppo_layer:
        float *weight                       # const in C; so are the biases
        float *bias
        float *d_weight
        float *d_bias
        Py_ssize_t n_in
        Py_ssize_t n_out
        int activation
        float alpha
        int source
        Py_ssize_t in_stride
        Py_ssize_t stride
        float *turned
        float *straight
        float *row_bias
        float *y
        float *d
        float *before
        float *sum_weight
        float *sum_bias
        ppo_cell *cell
    ctypedef struct ppo_cell:
        int kind
        int n_gates
        float *weight                       # const in C; so are bias, given_h and given_c
        float *bias
        float *d_weight
        float *d_bias
        Py_ssize_t gap
        Py_ssize_t row
        float *turned
        float *straight
        float *sum_weight
        float *gates
        float *c
        float *first_h
        float *first_c
        float *d_c
        float *given_h
        float *given_c
    ctypedef struct ppo_loss:
        int kind
        Py_ssize_t n_choices
        Py_ssize_t *sizes
        Py_ssize_t n_logits
        int has_mask
        int has_former
        float clip
        float most_error
        float value_coeff
        float entropy_coeff
        float kl_coeff
        float bound
    ctypedef struct ppo_net:
        int variant
        int n_layers
        ppo_layer *layers
        Py_ssize_t n_obs
        Py_ssize_t obs_stride
        Py_ssize_t block
        float *x
        Py_ssize_t *index
        float *zeros
        int logits
        int values
        float *log_std
        float *d_log_std
        float *lanes
        ppo_loss loss
    ctypedef struct ppo_minibatch:
        float *obs
        float *rows
        Py_ssize_t width
        Py_ssize_t *order
        Py_ssize_t n
        Py_ssize_t length
        float weight
        double *sums
        float *outputs
        int is_forwarded
    int best_variant()
    Py_ssize_t ppo_lanes(Py_ssize_t n_logits, Py_ssize_t n_choices)
    ctypedef struct ppo_part:
        ppo_net *net
        ppo_minibatch *batch                # const in C
    void ppo_part_gradient(const void *parts, int thread, Py_ssize_t part)
