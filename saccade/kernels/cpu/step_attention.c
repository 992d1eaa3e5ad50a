/* softmax(q K^T) V of one query in each row and head, as in decoding, on processors with AVX-512. Rows next to each
   other may share a row of memory. `step_attention.py` is the only caller, and has the same in its own words. */

#include "lanes.h"
#include "step_attention.h"

#define WIDEST 8           /* registers of 16 features that a query and a sum may take */
#define WORTH (1 << 18)    /* multiplications from which on a second thread gains more than it costs to wake */

/* Scores become weights, which are still to be divided by the sum that is returned. */
static float to_weights(float *scores, int64_t keys)
{
    const float largest = largest_of(scores, keys);
    const __m512 top = _mm512_set1_ps(isfinite(largest) ? largest : 0);
    __m512 sum = _mm512_setzero_ps();
    for (int64_t k = 0; k < keys; k += 16) {
        const __mmask16 there = first(keys - k);
        const __m512 weight = exponential(_mm512_sub_ps(_mm512_maskz_loadu_ps(there, scores + k), top));
        _mm512_mask_storeu_ps(scores + k, there, weight);
        sum = _mm512_mask_add_ps(sum, there, sum, weight);
    }
    return _mm512_reduce_add_ps(sum);
}

/* The sums of four registers. */
static __m128 sums(__m512 a, __m512 b, __m512 c, __m512 d)
{
    const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    const __m512 all = _mm512_add_ps(
        _mm512_shuffle_ps(ab, cd, _MM_SHUFFLE(1, 0, 1, 0)), _mm512_shuffle_ps(ab, cd, _MM_SHUFFLE(3, 2, 3, 2)));
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
    return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

static inline __attribute__((always_inline)) void one(
    const int wide, const Attention *a, const float *query, const float *key, const float *value, const uint8_t *keep,
    float *scores, float *y)
{
    const __mmask16 last = first(a->features - 16 * (wide - 1));
    __m512 asked[WIDEST], sum[WIDEST];
#pragma GCC unroll 8
    for (int i = 0; i < wide; i++) {
        asked[i] = _mm512_maskz_loadu_ps(i == wide - 1 ? last : 0xffff, query + 16 * i);
        asked[i] = _mm512_mul_ps(asked[i], _mm512_set1_ps(a->scale));
        sum[i] = _mm512_setzero_ps();
    }
    for (int64_t k = 0; k < a->keys; k += 4) {
        __m512 four[4];
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            const float *at = key + (k + j < a->keys ? k + j : k) * a->key.position;  /* beyond the end: anything */
            four[j] = _mm512_setzero_ps();
#pragma GCC unroll 8
            for (int i = 0; i < wide; i++) {
                const __m512 some = _mm512_maskz_loadu_ps(i == wide - 1 ? last : 0xffff, at + 16 * i);
                four[j] = _mm512_fmadd_ps(asked[i], some, four[j]);
            }
        }
        _mm_mask_storeu_ps(scores + k, first(a->keys - k) & 0xf, sums(four[0], four[1], four[2], four[3]));
    }
    if (keep)
        for (int64_t k = 0; k < a->keys; k++) scores[k] = keep[k] ? scores[k] : -INFINITY;
    const float total = to_weights(scores, a->keys);
    for (int64_t k = 0; k < a->keys; k++) {
        const __m512 weight = _mm512_set1_ps(scores[k]);
#pragma GCC unroll 8
        for (int i = 0; i < wide; i++) {
            const float *at = value + k * a->value.position + 16 * i;
            sum[i] = _mm512_fmadd_ps(weight, _mm512_maskz_loadu_ps(i == wide - 1 ? last : 0xffff, at), sum[i]);
        }
    }
    const __m512 share = _mm512_set1_ps(total > 0 || isnan(total) ? 1 / total : 0);  /* nothing to attend to: zeros */
#pragma GCC unroll 8
    for (int i = 0; i < wide; i++)
        _mm512_mask_storeu_ps(y + 16 * i, i == wide - 1 ? last : 0xffff, _mm512_mul_ps(sum[i], share));
}

/* y (rows, heads, features); `scores` has room for (memories, heads, keys). */
void attend_once(const Attention *a, float *y, float *scores, int threads)
{
    const int64_t group = a->rows / a->memories, cells = a->memories * a->heads;
    const int workers = a->rows * a->heads * a->keys * a->features < WORTH ? 1 : threads;
#pragma omp parallel for num_threads(workers) if (workers > 1)
    for (int64_t cell = 0; cell < cells; cell++) {
        const int64_t memory = cell / a->heads, head = cell % a->heads;
        const float *key = a->key.numbers + memory * a->key.row + head * a->key.head;
        const float *value = a->value.numbers + memory * a->value.row + head * a->value.head;
        const uint8_t *keep = a->keep ? a->keep + memory * a->keys : 0;
        float *mine = scores + cell * a->keys;
        for (int64_t row = memory * group; row < (memory + 1) * group; row++) {
            const float *query = a->query.numbers + row * a->query.row + head * a->query.head;
            float *to = y + (row * a->heads + head) * a->features;
            switch ((a->features + 15) / 16) {
            case 1: one(1, a, query, key, value, keep, mine, to); break;
            case 2: one(2, a, query, key, value, keep, mine, to); break;
            case 3: one(3, a, query, key, value, keep, mine, to); break;
            case 4: one(4, a, query, key, value, keep, mine, to); break;
            case 5: one(5, a, query, key, value, keep, mine, to); break;
            case 6: one(6, a, query, key, value, keep, mine, to); break;
            case 7: one(7, a, query, key, value, keep, mine, to); break;
            case 8: one(8, a, query, key, value, keep, mine, to); break;
            }
        }
    }
}
