/* AVX-512 helpers for vectors of 16 floats. */

#include <immintrin.h>
#include <math.h>
#include <stdint.h>

/* The mask of the first `count` lanes, at most 16. */
static inline __mmask16 lane_mask(int64_t count)
{
    return count >= 16 ? 0xffff : count <= 0 ? 0 : (__mmask16)((1u << count) - 1);
}

/* e^x for x <= 0 up to its last bits: 2^whole times a polynomial of the remainder. */
static inline __m512 exp_nonpositive(__m512 x)
{
    x = _mm512_max_ps(_mm512_set1_ps(-110), x);  /* e^-110 is 0; this order of arguments keeps NaN */
    const __m512 whole = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT);
    __m512 rest = _mm512_fnmadd_ps(whole, _mm512_set1_ps(0.693359375f), x);
    rest = _mm512_fnmadd_ps(whole, _mm512_set1_ps(-2.12194440e-4f), rest);
    static const float terms[] = {1.f / 720, 1.f / 120, 1.f / 24, 1.f / 6, 0.5f, 1.f, 1.f};
    __m512 y = _mm512_set1_ps(1.f / 5040);
    for (int i = 0; i < 7; i++) y = _mm512_fmadd_ps(y, rest, _mm512_set1_ps(terms[i]));
    return _mm512_scalef_ps(y, whole);
}

/* The largest of `count` floats. */
static inline float max_of(const float *x, int64_t count)
{
    __m512 top = _mm512_set1_ps(-INFINITY);
    for (int64_t i = 0; i < count; i += 16)
        top = _mm512_mask_max_ps(top, lane_mask(count - i), top, _mm512_maskz_loadu_ps(lane_mask(count - i), x + i));
    return _mm512_reduce_max_ps(top);
}
