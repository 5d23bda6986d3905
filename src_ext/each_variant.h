/* Includes VARIANT_FILE once for each instruction set of variants.h, with these macros defined:

     VARIANT(name)  the name with the variant's suffix
     WIDTH          floats in a vector register: 4, 8 or 16 */

#define VARIANT(name) name##_plain
#define WIDTH 4
#include "vectors_variant.h"
#include VARIANT_FILE
#undef VARIANT
#undef WIDTH

#ifdef HAS_VARIANTS
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define VARIANT(name) name##_avx2
#define WIDTH 8
#include "vectors_variant.h"
#include VARIANT_FILE
#undef VARIANT
#undef WIDTH
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512vl,avx2,fma")
#define VARIANT(name) name##_avx512
#define WIDTH 16
#include "vectors_variant.h"
#include VARIANT_FILE
#undef VARIANT
#undef WIDTH
#pragma GCC pop_options
#endif
