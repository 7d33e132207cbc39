// IEEE half precision as 16 bits, the same on host and device (design section 6, stream
// precision): to nearest even, with subnormals, infinities and NaN.
#pragma once

#include "math/common.cuh"

SPX_NAMESPACE_BEGIN

union FloatBits {
    float value;
    unsigned bits;
};

SPX_HD unsigned short half_of(float value) {
    FloatBits x;
    x.value = value;
    const unsigned sign = x.bits >> 16 & 0x8000u;
    x.bits &= 0x7fffffffu;
    if (x.bits >= 0x47800000u)  // 2^16 and more, infinity, NaN
        return static_cast<unsigned short>(sign | (x.bits > 0x7f800000u ? 0x7e00u : 0x7c00u));
    if (x.bits < 0x38800000u) {  // below 2^-14: in steps of 2^-24, those of 0.5 as a float
        x.value += 0.5f;
        return static_cast<unsigned short>(sign | (x.bits - 0x3f000000u));
    }
    // exponent bias 15 for 127; a carry out of the fraction rounds up to the next exponent
    x.bits += 0xc8000fffu + (x.bits >> 13 & 1u);
    return static_cast<unsigned short>(sign | x.bits >> 13);
}

SPX_HD float float_of_half(unsigned short half) {
    const unsigned sign = (half & 0x8000u) << 16, rest = half & 0x7fffu;
    FloatBits x, scale;
    x.bits = rest << 13;
    scale.bits = 0x77800000u;  // 2^112 moves the exponent's bias
    if (rest >= 0x7c00u)
        x.bits |= 0x7f800000u;
    else
        x.value *= scale.value;
    x.bits |= sign;
    return x.value;
}

SPX_NAMESPACE_END
