"""Adam's arithmetic: before and after its square root, in two passes over memory instead of nine; and all in one pass.

The two passes multiply and add in one rounding where torch does (`fmaf`). `fastmarl.rllib.learner.adam` checks that
torch's results are equal before it relies on this.
"""

cdef extern from *:
    """
    #include <math.h>
    #include <stddef.h>

    #define MOMENTS(NAME) \\
        static void NAME(const float *restrict g, float *restrict m, float *restrict v, size_t n, float rate1, \\
                         float beta2, float rate2) { \\
            for (size_t i = 0; i < n; i++) { \\
                m[i] = fmaf(rate1, g[i] - m[i], m[i]); \\
                v[i] = fmaf(rate2 * g[i], g[i], v[i] * beta2); \\
            } \\
        }
    #define PARAMETERS(NAME) \\
        static void NAME(float *restrict p, const float *restrict m, const float *restrict root, size_t n, \\
                         float correction, float eps, float step) { \\
            for (size_t i = 0; i < n; i++) p[i] = p[i] + step * m[i] / (root[i] / correction + eps); \\
        }

    #define STEP(NAME) \\
        static void NAME(float *restrict p, const float *restrict g, float *restrict m, float *restrict v, size_t n, \\
                         float rate1, float beta2, float rate2, float scale, float eps, float step) { \\
            for (size_t i = 0; i < n; i++) { \\
                m[i] = m[i] + rate1 * (g[i] - m[i]); \\
                v[i] = beta2 * v[i] + rate2 * g[i] * g[i]; \\
                p[i] = p[i] + step * m[i] / (sqrtf(v[i]) * scale + eps); \\
            } \\
        }

    MOMENTS(moments_plain)
    PARAMETERS(parameters_plain)
    STEP(step_plain)

    #if defined(__x86_64__) && defined(__GNUC__)
    #define WIDE __attribute__((target("avx2,fma")))
    WIDE MOMENTS(moments_wide)
    WIDE PARAMETERS(parameters_wide)
    WIDE STEP(step_wide)
    static int is_wide(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
    #include <xmmintrin.h>
    static unsigned int float_mode(void) { return _mm_getcsr(); }
    static void set_float_mode(unsigned int mode) { _mm_setcsr(mode); }
    #define FLUSHED 0x8040u  /* results and operands that are subnormal count as 0 */
    #else
    #define moments_wide moments_plain
    #define parameters_wide parameters_plain
    #define step_wide step_plain
    static int is_wide(void) { return 0; }
    static unsigned int float_mode(void) { return 0; }
    static void set_float_mode(unsigned int mode) { (void)mode; }
    #define FLUSHED 0u
    #endif
    """
    void moments_plain(const float *g, float *m, float *v, size_t n, float rate1, float beta2, float rate2) nogil
    void moments_wide(const float *g, float *m, float *v, size_t n, float rate1, float beta2, float rate2) nogil
    void parameters_plain(float *p, const float *m, const float *root, size_t n, float correction, float eps,
                          float step) nogil
    void parameters_wide(float *p, const float *m, const float *root, size_t n, float correction, float eps,
                         float step) nogil
    void step_plain(float *p, const float *g, float *m, float *v, size_t n, float rate1, float beta2, float rate2,
                    float scale, float eps, float step) nogil
    void step_wide(float *p, const float *g, float *m, float *v, size_t n, float rate1, float beta2, float rate2,
                   float scale, float eps, float step) nogil
    int is_wide()
    unsigned int float_mode() nogil
    void set_float_mode(unsigned int mode) nogil
    const unsigned int FLUSHED

cdef bint WIDE = is_wide()


def update_moments(size_t gradient, size_t mean, size_t square, size_t n, double beta1, double beta2):
    """Update the running means of a gradient and of its square, in place.

    Args:
        gradient, mean, square: addresses of float32 [n], which don't overlap.
        n: number of values.
        beta1, beta2: decay rates of the means.
    """
    cdef float rate1 = <float>(1 - beta1), rate2 = <float>(1 - beta2), keep = <float>beta2
    with nogil:
        if WIDE:
            moments_wide(<const float*>gradient, <float*>mean, <float*>square, n, rate1, keep, rate2)
        else:
            moments_plain(<const float*>gradient, <float*>mean, <float*>square, n, rate1, keep, rate2)


def update_parameters(size_t parameter, size_t mean, size_t root, size_t n, double correction, double eps, double step):
    """Add `step * mean / (root / correction + eps)` to a parameter, in place.

    Args:
        parameter, mean, root: addresses of float32 [n], which don't overlap; `root` is that of the mean square.
    """
    cdef float divisor = <float>correction, least = <float>eps, factor = <float>step
    with nogil:
        if WIDE:
            parameters_wide(<float*>parameter, <const float*>mean, <const float*>root, n, divisor, least, factor)
        else:
            parameters_plain(<float*>parameter, <const float*>mean, <const float*>root, n, divisor, least, factor)


def step(const size_t[:, ::1] places, double lr, double beta1, double beta2, double eps):
    """Make a whole step of parameters that have made equally many steps: torch's results but for rounding.

    Moments of units that have no gradient shrink to subnormal numbers, which make a step 15 times slower; on x86, they
    count as 0 here.

    Args:
        places: for each parameter the addresses of itself, its gradient, its running mean and mean square (float32 [n],
            which don't overlap) and of its number of steps (one float32), and n.
        lr, beta1, beta2, eps: as in torch.optim.Adam.
    """
    cdef float rate1 = <float>(1 - beta1), rate2 = <float>(1 - beta2), keep = <float>beta2
    cdef float scale, size
    cdef double n_steps
    cdef unsigned int mode = float_mode()
    cdef Py_ssize_t i
    with nogil:
        set_float_mode(mode | FLUSHED)
        for i in range(places.shape[0]):
            (<float*>places[i, 4])[0] += 1
            n_steps = (<float*>places[i, 4])[0]
            scale, size = <float>((1 - beta2**n_steps)**-0.5), <float>(-lr / (1 - beta1**n_steps))
            (step_wide if WIDE else step_plain)(
                <float*>places[i, 0], <const float*>places[i, 1], <float*>places[i, 2], <float*>places[i, 3],
                places[i, 5], rate1, keep, rate2, scale, <float>eps, size)
        set_float_mode(mode)
