/* softmax(q K^T) V for one query per row and head, as in decoding, with AVX-512. Consecutive rows may share a row of
   keys and values. `step_attention.py` compiles this file and has the reference implementation. */

#include <string.h>

#include "lanes.h"
#include "step_attention.h"

#define MAX_HEAD_REGISTERS 8           /* registers of 16 features for a query and for a sum */
#define MIN_PARALLEL_WORK (1 << 18)  /* multiplications: with fewer, waking a second thread costs more than it gains */

/* Replace scores by their exponentials, and return their sum: the softmax before normalization. */
static float exp_scores(float *scores, int64_t keys)
{
    const float largest = max_of(scores, keys);
    const __m512 top = _mm512_set1_ps(isfinite(largest) ? largest : 0);
    __m512 sum = _mm512_setzero_ps();
    for (int64_t k = 0; k < keys; k += 16) {
        const __mmask16 lanes = lane_mask(keys - k);
        const __m512 weight = exp_nonpositive(_mm512_sub_ps(_mm512_maskz_loadu_ps(lanes, scores + k), top));
        _mm512_mask_storeu_ps(scores + k, lanes, weight);
        sum = _mm512_mask_add_ps(sum, lanes, sum, weight);
    }
    return _mm512_reduce_add_ps(sum);
}

/* The sums over the lanes of four registers. */
static __m128 sum_lanes(__m512 a, __m512 b, __m512 c, __m512 d)
{
    const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    const __m512 all = _mm512_add_ps(
        _mm512_shuffle_ps(ab, cd, _MM_SHUFFLE(1, 0, 1, 0)), _mm512_shuffle_ps(ab, cd, _MM_SHUFFLE(3, 2, 3, 2)));
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
    return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

/* Attention of one query whose features fill `registers` registers. */
static inline __attribute__((always_inline)) void attend_query(
    const int registers, const AttentionArgs *a, const float *query, const float *key, const float *value,
    const uint8_t *keep, float *scores, float *y)
{
    const __mmask16 last = lane_mask(a->head_dim - 16 * (registers - 1));
    __m512 scaled_query[MAX_HEAD_REGISTERS], sum[MAX_HEAD_REGISTERS];
#pragma GCC unroll 8
    for (int i = 0; i < registers; i++) {
        scaled_query[i] = _mm512_maskz_loadu_ps(i == registers - 1 ? last : 0xffff, query + 16 * i);
        scaled_query[i] = _mm512_mul_ps(scaled_query[i], _mm512_set1_ps(a->scale));
        sum[i] = _mm512_setzero_ps();
    }
    for (int64_t k = 0; k < a->keys; k += 4) {
        __m512 four[4];
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            const float *at = key + (k + j < a->keys ? k + j : k) * a->key.position_stride;  /* past the end: ignored */
            four[j] = _mm512_setzero_ps();
#pragma GCC unroll 8
            for (int i = 0; i < registers; i++) {
                const __m512 chunk = _mm512_maskz_loadu_ps(i == registers - 1 ? last : 0xffff, at + 16 * i);
                four[j] = _mm512_fmadd_ps(scaled_query[i], chunk, four[j]);
            }
        }
        _mm_mask_storeu_ps(scores + k, lane_mask(a->keys - k) & 0xf, sum_lanes(four[0], four[1], four[2], four[3]));
    }
    if (keep)
        for (int64_t k = 0; k < a->keys; k++) scores[k] = keep[k] ? scores[k] : -INFINITY;
    const float total = exp_scores(scores, a->keys);
    for (int64_t k = 0; k < a->keys; k++) {
        const __m512 weight = _mm512_set1_ps(scores[k]);
#pragma GCC unroll 8
        for (int i = 0; i < registers; i++) {
            const float *at = value + k * a->value.position_stride + 16 * i;
            sum[i] = _mm512_fmadd_ps(weight, _mm512_maskz_loadu_ps(i == registers - 1 ? last : 0xffff, at), sum[i]);
        }
    }
    const __m512 share = _mm512_set1_ps(total > 0 || isnan(total) ? 1 / total : 0);  /* no key to attend to: zeros */
#pragma GCC unroll 8
    for (int i = 0; i < registers; i++)
        _mm512_mask_storeu_ps(y + 16 * i, i == registers - 1 ? last : 0xffff, _mm512_mul_ps(sum[i], share));
}

/* y (rows, heads, head_dim); `scores` is a buffer of (memory_rows, heads, keys). */
void attend_once(const AttentionArgs *a, float *y, float *scores, int threads)
{
    const int64_t pairs = a->memory_rows * a->heads, group = a->memory_rows > 0 ? a->rows / a->memory_rows : 0;
    if (group == 0) {  /* no memory to attend to: zeros */
        memset(y, 0, sizeof(float) * a->rows * a->heads * a->head_dim);
        return;
    }
    const int workers = a->rows * a->heads * a->keys * a->head_dim < MIN_PARALLEL_WORK ? 1 : threads;
#pragma omp parallel for num_threads(workers) if (workers > 1)
    for (int64_t pair = 0; pair < pairs; pair++) {
        const int64_t memory = pair / a->heads, head = pair % a->heads;
        const float *key = a->key.data + memory * a->key.row_stride + head * a->key.head_stride;
        const float *value = a->value.data + memory * a->value.row_stride + head * a->value.head_stride;
        const uint8_t *keep = a->keep ? a->keep + memory * a->keys : 0;
        float *row_scores = scores + pair * a->keys;
        for (int64_t row = memory * group; row < (memory + 1) * group; row++) {
            const float *query = a->query.data + row * a->query.row_stride + head * a->query.head_stride;
            float *out = y + (row * a->heads + head) * a->head_dim;
            switch ((a->head_dim + 15) / 16) {
            case 1: attend_query(1, a, query, key, value, keep, row_scores, out); break;
            case 2: attend_query(2, a, query, key, value, keep, row_scores, out); break;
            case 3: attend_query(3, a, query, key, value, keep, row_scores, out); break;
            case 4: attend_query(4, a, query, key, value, keep, row_scores, out); break;
            case 5: attend_query(5, a, query, key, value, keep, row_scores, out); break;
            case 6: attend_query(6, a, query, key, value, keep, row_scores, out); break;
            case 7: attend_query(7, a, query, key, value, keep, row_scores, out); break;
            case 8: attend_query(8, a, query, key, value, keep, row_scores, out); break;
            }
        }
    }
}
