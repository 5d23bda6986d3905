/* Instruction sets for which code is compiled; the best one of the processor is chosen at run time. */
#ifndef FASTMARL_VARIANTS_H
#define FASTMARL_VARIANTS_H

#include <Python.h>
#include <limits.h>

enum {PLAIN, AVX2, AVX512};
enum {LINEAR, TANH, RELU, SILU, GELU, ELU}; /* activations */
enum {LSTM = 1, GRU};                       /* cells with memory */

#if defined(__x86_64__) && !defined(__clang__)
#define HAS_VARIANTS 1
#endif

/* Returns the best variant that this processor supports. */
static inline int best_variant(void) {
#ifdef HAS_VARIANTS
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return PLAIN;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return AVX512;
    return AVX2;
#else
    return PLAIN;
#endif
}

#ifdef __clang__
#define SHUFFLED(v, ...) __builtin_shufflevector(v, v, __VA_ARGS__)
#else
#define SHUFFLED(v, ...) __builtin_shuffle(v, (VARIANT(ints)){__VA_ARGS__})
#endif

#define WHERE(condition, then, otherwise) \
    ((VARIANT(floats))(((condition) & (VARIANT(ints))(then)) | (~(condition) & (VARIANT(ints))(otherwise))))

#endif
