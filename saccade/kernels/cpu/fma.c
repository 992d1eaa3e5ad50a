/* y = relu(x W^T + b) in float32 with AVX-512. Weights are packed in the order in which they are read, so that for few
   rows the speed is that of memory. `fma.py` compiles this file, packs the weights and is its only caller. */

#include "lanes.h"

#define BLOCK_OUTPUTS 32   /* outputs of a block, in two registers */
#define TILE_ROWS 8        /* rows of a tile: 16 independent sums hide the latency of an FMA */
#define CACHED_ROWS 512    /* rows of x that stay in the cache while all weights are read */
#define MIN_PARALLEL_WORK (1 << 20)  /* multiplications: with fewer, waking a second thread costs more than it gains */

typedef struct {
    const float *weight;   /* (blocks, inputs, BLOCK_OUTPUTS) */
    const float *bias;     /* (blocks, BLOCK_OUTPUTS) */
    int64_t inputs, outputs;
    int relu;
} FloatLinear;

/* One block of outputs for `tile_rows` rows; meanwhile weights from `ahead` on are prefetched. */
static inline __attribute__((always_inline)) void tile(
    const int tile_rows, const FloatLinear *p, const float *x, float *y, int64_t block, const float *ahead)
{
    const float *weight = p->weight + block * p->inputs * BLOCK_OUTPUTS;
    __m512 sum[TILE_ROWS][2];
#pragma GCC unroll 8
    for (int r = 0; r < tile_rows; r++)
        for (int half = 0; half < 2; half++)
            sum[r][half] = _mm512_loadu_ps(p->bias + block * BLOCK_OUTPUTS + 16 * half);
    for (int64_t k = 0; k < p->inputs; k++, weight += BLOCK_OUTPUTS, ahead += BLOCK_OUTPUTS) {
        const __m512 left = _mm512_loadu_ps(weight), right = _mm512_loadu_ps(weight + 16);
        _mm_prefetch((const char *)ahead, _MM_HINT_T1);
        _mm_prefetch((const char *)(ahead + 16), _MM_HINT_T1);
#pragma GCC unroll 8
        for (int r = 0; r < tile_rows; r++) {
            const __m512 input = _mm512_set1_ps(x[r * p->inputs + k]);
            sum[r][0] = _mm512_fmadd_ps(input, left, sum[r][0]);
            sum[r][1] = _mm512_fmadd_ps(input, right, sum[r][1]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < tile_rows; r++)
        for (int half = 0; half < 2; half++) {
            const int64_t column = block * BLOCK_OUTPUTS + 16 * half;
            __m512 result = sum[r][half];
            if (p->relu) result = _mm512_max_ps(_mm512_setzero_ps(), result);  /* this order of arguments keeps NaN */
            _mm512_mask_storeu_ps(y + r * p->outputs + column, lane_mask(p->outputs - column), result);
        }
}

/* `tile` with a constant number of rows, which the compiler unrolls. */
static void partial_tile(int tile_rows, const FloatLinear *p, const float *x, float *y, int64_t block,
                         const float *ahead)
{
    switch (tile_rows) {
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

/* `scratch` is unused: other kernels with this signature need it. */
void float_product(const FloatLinear *p, const float *x, float *y, float *scratch, int64_t rows, int threads)
{
    (void)scratch;
    const int64_t blocks = (p->outputs + BLOCK_OUTPUTS - 1) / BLOCK_OUTPUTS, size = p->inputs * BLOCK_OUTPUTS;
    const int workers = rows * p->inputs * p->outputs < MIN_PARALLEL_WORK ? 1 : threads;
    for (int64_t begin = 0; begin < rows; begin += CACHED_ROWS) {
        const int64_t end = begin + CACHED_ROWS < rows ? begin + CACHED_ROWS : rows;
#pragma omp parallel for num_threads(workers) if (workers > 1)
        for (int64_t block = 0; block < blocks; block++) {
            const float *next = p->weight + (block + 1 < blocks ? block + 1 : block) * size;
            for (int64_t r = begin; r < end; r += TILE_ROWS)
                partial_tile(end - r < TILE_ROWS ? (int)(end - r) : TILE_ROWS, p, x + r * p->inputs,
                             y + r * p->outputs, block, next);
        }
    }
}
