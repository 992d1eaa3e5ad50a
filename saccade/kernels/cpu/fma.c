/* y = relu(x W^T + b) in float32 on processors with AVX-512: weights are read in the order in which they lie, for few
   rows as fast as memory gives them. `fma.py` compiles this file, lays the weights out and is the only caller. */

#include "lanes.h"

#define WIDE 32            /* outputs of a block, in two registers */
#define TALL 8             /* rows of a tile: 16 sums hide how long one takes */
#define NEAR 512           /* rows that stay in the cache while all weights pass by */
#define WORTH (1 << 20)    /* multiplications from which on a second thread gains more than it costs to wake */

typedef struct {
    const float *weight;   /* (blocks, inputs, WIDE): what one input adds to each output of a block */
    const float *bias;     /* (blocks, WIDE) */
    int64_t inputs, outputs;
    int relu;
} Product;

/* One block of outputs of `tall` rows; the same block of the next rows, or the next block, is asked for meanwhile. */
static inline __attribute__((always_inline)) void tile(
    const int tall, const Product *p, const float *x, float *y, int64_t block, const float *ahead)
{
    const float *weight = p->weight + block * p->inputs * WIDE;
    __m512 sum[TALL][2];
#pragma GCC unroll 8
    for (int r = 0; r < tall; r++)
        for (int half = 0; half < 2; half++) sum[r][half] = _mm512_loadu_ps(p->bias + block * WIDE + 16 * half);
    for (int64_t k = 0; k < p->inputs; k++, weight += WIDE, ahead += WIDE) {
        const __m512 left = _mm512_loadu_ps(weight), right = _mm512_loadu_ps(weight + 16);
        _mm_prefetch((const char *)ahead, _MM_HINT_T1);
        _mm_prefetch((const char *)(ahead + 16), _MM_HINT_T1);
#pragma GCC unroll 8
        for (int r = 0; r < tall; r++) {
            const __m512 one = _mm512_set1_ps(x[r * p->inputs + k]);
            sum[r][0] = _mm512_fmadd_ps(one, left, sum[r][0]);
            sum[r][1] = _mm512_fmadd_ps(one, right, sum[r][1]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < tall; r++)
        for (int half = 0; half < 2; half++) {
            const int64_t at = block * WIDE + 16 * half;
            __m512 some = sum[r][half];
            if (p->relu) some = _mm512_max_ps(_mm512_setzero_ps(), some);  /* in this order NaN stays */
            _mm512_mask_storeu_ps(y + r * p->outputs + at, first(p->outputs - at), some);
        }
}

static void low_tile(int tall, const Product *p, const float *x, float *y, int64_t block, const float *ahead)
{
    switch (tall) {
    case 1: tile(1, p, x, y, block, ahead); break;
    case 2: tile(2, p, x, y, block, ahead); break;
    case 3: tile(3, p, x, y, block, ahead); break;
    case 4: tile(4, p, x, y, block, ahead); break;
    case 5: tile(5, p, x, y, block, ahead); break;
    case 6: tile(6, p, x, y, block, ahead); break;
    case 7: tile(7, p, x, y, block, ahead); break;
    default: tile(8, p, x, y, block, ahead); break;
    }
}

/* `room` is not needed: other products of this form want some. */
void float_product(const Product *p, const float *x, float *y, float *room, int64_t rows, int threads)
{
    (void)room;
    const int64_t blocks = (p->outputs + WIDE - 1) / WIDE, size = p->inputs * WIDE;
    const int workers = rows * p->inputs * p->outputs < WORTH ? 1 : threads;
    for (int64_t begin = 0; begin < rows; begin += NEAR) {
        const int64_t end = begin + NEAR < rows ? begin + NEAR : rows;
#pragma omp parallel for num_threads(workers) if (workers > 1)
        for (int64_t block = 0; block < blocks; block++) {
            const float *next = p->weight + (block + 1 < blocks ? block + 1 : block) * size;
            for (int64_t r = begin; r < end; r += TALL)
                low_tile(end - r < TALL ? (int)(end - r) : TALL, p, x + r * p->inputs, y + r * p->outputs, block, next);
        }
    }
}
