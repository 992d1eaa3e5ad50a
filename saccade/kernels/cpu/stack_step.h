/* The description of a Transformer stack for `stack_step.c` (one decoding step) and `search_steps.c` (many steps). The
   structures have the same fields in `stack_step.py`. */

#include "lanes.h"
#include "step_attention.h"

typedef struct {
    void (*multiply)(const void *product, const float *x, float *y, float *scratch, int64_t rows, int threads);
    const void *product;
} Linear;

typedef struct {
    const float *weight, *bias;
    float epsilon;
} Norm;

typedef struct {
    Linear project, out;          /* self-attention: to (3, heads, head_dim) for each row, and back */
    Linear query, cross_out;      /* cross-attention: query and output projection, where there is any */
    Linear up, down;              /* feed-forward network; `up` applies the ReLU */
    Norm norms[3];                /* of the sublayers, in order */
    int64_t heads, head_dim;
    float scale, cross_scale;
} Block;

typedef struct {
    TensorView key, value;        /* cached positions */
    TensorView memory_key, memory_value;
} Cache;

typedef struct {
    const Block *blocks;
    void (*attend)(const AttentionArgs *args, float *y, float *scores, int threads);
    int64_t num_blocks, dim;
    int pre_norm, has_cross_attention;
} Stack;

typedef struct {
    const Cache *caches;          /* one per block */
    const uint8_t *keep;          /* mask of memory (memory_rows, memory_length), or null without padding */
    int64_t rows, length;         /* positions of each row, including the new one */
    int64_t memory_rows, memory_length;
} StepPosition;

typedef struct {
    float *x;                     /* the residual stream (rows, dim): input and output of the step */
    float *normalized, *hidden, *attended, *y, *scores, *scratch;  /* buffers for intermediate results */
    int threads;
} Scratch;

/* y = LayerNorm(x) for each row; x and y may be the same. */
static inline void layer_norm(const Norm *norm, const float *x, float *y, int64_t rows, int64_t dim)
{
    for (int64_t r = 0; r < rows; r++, x += dim, y += dim) {
        __m512 sum = _mm512_setzero_ps(), squares = _mm512_setzero_ps();
        for (int64_t i = 0; i < dim; i += 16)
            sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(lane_mask(dim - i), x + i));
        const __m512 mean = _mm512_set1_ps(_mm512_reduce_add_ps(sum) / dim);
        for (int64_t i = 0; i < dim; i += 16) {
            const __mmask16 lanes = lane_mask(dim - i);
            const __m512 centered = _mm512_maskz_sub_ps(lanes, _mm512_maskz_loadu_ps(lanes, x + i), mean);
            squares = _mm512_fmadd_ps(centered, centered, squares);
        }
        const __m512 factor = _mm512_set1_ps(1 / sqrtf(_mm512_reduce_add_ps(squares) / dim + norm->epsilon));
        for (int64_t i = 0; i < dim; i += 16) {
            const __mmask16 lanes = lane_mask(dim - i);
            const __m512 centered = _mm512_sub_ps(_mm512_maskz_loadu_ps(lanes, x + i), mean);
            const __m512 weight = _mm512_maskz_loadu_ps(lanes, norm->weight + i);
            const __m512 scaled = _mm512_mul_ps(_mm512_mul_ps(centered, factor), weight);
            _mm512_mask_storeu_ps(y + i, lanes, _mm512_add_ps(scaled, _mm512_maskz_loadu_ps(lanes, norm->bias + i)));
        }
    }
}

static inline void apply_linear(const Linear *linear, const float *x, float *y, int64_t rows, const Scratch *scratch)
{
    linear->multiply(linear->product, x, y, scratch->scratch, rows, scratch->threads);
}
