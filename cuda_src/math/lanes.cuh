// Arithmetic that formulas need on a scalar (float, double; host and device) and on native
// vector registers (host): the same expression serves a GPU lane and 2 to 16 pixels at a time.
//
// A host file that wants registers wider than SSE's 16 bytes defines SPX_ISA and SPX_VECTOR_BYTES
// (32: AVX2 with FMA, 64: AVX-512F) and says `#pragma GCC target` before it includes this header
// (g++ defines __AVX2__ and the like only for options of the command line). Wider vector types
// than the target's own would spill badly.
#pragma once

#include "math/common.cuh"

#ifndef __CUDACC__
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#endif

SPX_NAMESPACE_BEGIN

// ---- scalars ----

// a b + c, in one rounding where the hardware has it.
SPX_HD float multiply_add(float a, float b, float c) {
#ifdef __CUDACC__
    return fmaf(a, b, c);
#else
    return a * b + c;
#endif
}
SPX_HD double multiply_add(double a, double b, double c) {
#ifdef __CUDACC__
    return fma(a, b, c);
#else
    return a * b + c;
#endif
}

// a b and a + b that the compiler must not contract: the same bits wherever they are computed.
// On the host -ffp-contract=off (setup.py) sees to that.
#ifdef __CUDA_ARCH__
SPX_HD float exact_product(float a, float b) { return __fmul_rn(a, b); }
SPX_HD double exact_product(double a, double b) { return __dmul_rn(a, b); }
SPX_HD float exact_sum(float a, float b) { return __fadd_rn(a, b); }
SPX_HD double exact_sum(double a, double b) { return __dadd_rn(a, b); }
#else
SPX_HD float exact_product(float a, float b) { return a * b; }
SPX_HD double exact_product(double a, double b) { return a * b; }
SPX_HD float exact_sum(float a, float b) { return a + b; }
SPX_HD double exact_sum(double a, double b) { return a + b; }
#endif

SPX_HD float minimum(float a, float b) { return a < b ? a : b; }
SPX_HD double minimum(double a, double b) { return a < b ? a : b; }
SPX_HD float maximum(float a, float b) { return a > b ? a : b; }
SPX_HD double maximum(double a, double b) { return a > b ? a : b; }
SPX_HD float root(float a) { return sqrtf(a); }
SPX_HD double root(double a) { return sqrt(a); }

SPX_HD bool at_least(float a, float b) { return a >= b; }
SPX_HD bool at_least(double a, double b) { return a >= b; }
SPX_HD bool below(float a, float b) { return a < b; }
SPX_HD bool below(double a, double b) { return a < b; }
SPX_HD float keep(bool mask, float a) { return mask ? a : 0.0f; }
SPX_HD double keep(bool mask, double a) { return mask ? a : 0.0; }

// The number x in every lane.
template <class F>
struct Constant {
    typedef F Scalar;
    SPX_HD static F of(Scalar x) { return x; }
};
template <class F>
SPX_HD F constant(typename Constant<F>::Scalar x) {
    return Constant<F>::of(x);
}

#ifndef __CUDACC__

SPX_HD int32_t bits_of(float x) {
    int32_t i;
    __builtin_memcpy(&i, &x, sizeof i);
    return i;
}
SPX_HD int64_t bits_of(double x) {
    int64_t i;
    __builtin_memcpy(&i, &x, sizeof i);
    return i;
}
SPX_HD float real_of(int32_t i) {
    float x;
    __builtin_memcpy(&x, &i, sizeof x);
    return x;
}
SPX_HD double real_of(int64_t i) {
    double x;
    __builtin_memcpy(&x, &i, sizeof x);
    return x;
}

// ---- native vectors ----

#ifndef SPX_VECTOR_BYTES
#define SPX_VECTOR_BYTES 16
#endif

typedef float Float __attribute__((vector_size(SPX_VECTOR_BYTES)));
typedef double Double __attribute__((vector_size(SPX_VECTOR_BYTES)));
typedef int32_t Int __attribute__((vector_size(SPX_VECTOR_BYTES)));
typedef int64_t Long __attribute__((vector_size(SPX_VECTOR_BYTES)));

// Registers of a scalar type and the integers that go with it.
template <class T>
struct Lanes;
template <>
struct Lanes<float> {
    typedef Float Real;
    typedef Int Integer;
    typedef int32_t Index;
    static constexpr int width = SPX_VECTOR_BYTES / 4;
};
template <>
struct Lanes<double> {
    typedef Double Real;
    typedef Long Integer;
    typedef int64_t Index;
    static constexpr int width = SPX_VECTOR_BYTES / 8;
};

template <>
struct Constant<Float> {
    typedef float Scalar;
    static Float of(float x) { return x - Float{}; }
};
template <>
struct Constant<Double> {
    typedef double Scalar;
    static Double of(double x) { return x - Double{}; }
};

SPX_HD Int bits_of(Float x) { return (Int)x; }
SPX_HD Long bits_of(Double x) { return (Long)x; }
SPX_HD Float real_of(Int i) { return (Float)i; }
SPX_HD Double real_of(Long i) { return (Double)i; }

// PRE and SUF name the intrinsics of a register type: _mm256_sqrt_ps is PRE##sqrt##SUF.
#define SPX_VECTOR_ARITHMETIC(F, PRE, SUF)                          \
    SPX_HD F minimum(F a, F b) { return PRE##min##SUF(a, b); }      \
    SPX_HD F maximum(F a, F b) { return PRE##max##SUF(a, b); }      \
    SPX_HD F root(F a) { return PRE##sqrt##SUF(a); }

#if SPX_VECTOR_BYTES == 64

// Comparisons live in mask registers here: combining them costs next to nothing.
#define SPX_VECTOR_MASKS(F, I, M, SUF, ISUF)                                                   \
    SPX_HD F multiply_add(F a, F b, F c) { return _mm512_fmadd##SUF(a, b, c); }                \
    SPX_HD M at_least(F a, F b) { return _mm512_cmp##SUF##_mask(a, b, _CMP_GE_OQ); }           \
    SPX_HD M below(F a, F b) { return _mm512_cmp##SUF##_mask(a, b, _CMP_LT_OQ); }              \
    SPX_HD M at_least(I a, I b) {                                                              \
        return _mm512_cmp##ISUF##_mask((__m512i)a, (__m512i)b, _MM_CMPINT_NLT);                \
    }                                                                                          \
    SPX_HD F keep(M mask, F a) { return _mm512_maskz_mov##SUF(mask, a); }                      \
    SPX_HD I select(M mask, I a, I b) {                                                        \
        return (I)_mm512_mask_mov##ISUF((__m512i)b, mask, (__m512i)a);                         \
    }
SPX_VECTOR_ARITHMETIC(Float, _mm512_, _ps)
SPX_VECTOR_ARITHMETIC(Double, _mm512_, _pd)
SPX_VECTOR_MASKS(Float, Int, __mmask16, _ps, _epi32)
SPX_VECTOR_MASKS(Double, Long, __mmask8, _pd, _epi64)
SPX_HD uint32_t lane_bits(__mmask16 mask) { return mask; }
SPX_HD uint32_t lane_bits(__mmask8 mask) { return mask; }

#else

#if SPX_VECTOR_BYTES == 32
SPX_VECTOR_ARITHMETIC(Float, _mm256_, _ps)
SPX_VECTOR_ARITHMETIC(Double, _mm256_, _pd)
SPX_HD Float multiply_add(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
SPX_HD Double multiply_add(Double a, Double b, Double c) { return _mm256_fmadd_pd(a, b, c); }
SPX_HD uint32_t lane_bits(Int mask) { return _mm256_movemask_ps((Float)mask); }
SPX_HD uint32_t lane_bits(Long mask) { return _mm256_movemask_pd((Double)mask); }
#else
SPX_VECTOR_ARITHMETIC(Float, _mm_, _ps)
SPX_VECTOR_ARITHMETIC(Double, _mm_, _pd)
SPX_HD Float multiply_add(Float a, Float b, Float c) { return a * b + c; }
SPX_HD Double multiply_add(Double a, Double b, Double c) { return a * b + c; }
SPX_HD uint32_t lane_bits(Int mask) { return _mm_movemask_ps((Float)mask); }
SPX_HD uint32_t lane_bits(Long mask) { return _mm_movemask_pd((Double)mask); }
#endif

// Comparisons are integers of the same width, all ones where true.
#define SPX_VECTOR_MASKS(F, I)                                         \
    SPX_HD I at_least(F a, F b) { return a >= b; }                     \
    SPX_HD I below(F a, F b) { return a < b; }                         \
    SPX_HD I at_least(I a, I b) { return a >= b; }                     \
    SPX_HD F keep(I mask, F a) { return (F)(mask & (I)a); }            \
    SPX_HD I select(I mask, I a, I b) { return (mask & a) | (~mask & b); }
SPX_VECTOR_MASKS(Float, Int)
SPX_VECTOR_MASKS(Double, Long)

#endif

#endif  // host

SPX_NAMESPACE_END
