/* y = relu(x W^T + b) with int8 weights and AVX-512 VNNI: rows of x are quantized, multiplied and dequantized in one
   call. `vnni.py` compiles this file, packs the weights and is its only caller. */

#include "lanes.h"

#define BLOCK_OUTPUTS 32   /* outputs of a block, in two registers */
#define TILE_ROWS 8        /* rows of a tile: 16 independent sums hide the latency of a multiplication */
#define CACHE_LINE 64      /* bytes */
#define MIN_PARALLEL_WORK (1 << 20)  /* multiplications: with fewer, waking a second thread costs more than it gains */

typedef struct {
    const int8_t *weight;  /* (blocks, steps, BLOCK_OUTPUTS, 4): a step multiplies four inputs */
    const int32_t *start;  /* (blocks, BLOCK_OUTPUTS): initial sums, which correct for the zero point of x */
    const float *scale;    /* (blocks, BLOCK_OUTPUTS): dequantization scale for rows with maximum 1 */
    const float *bias;     /* (blocks, BLOCK_OUTPUTS) */
    int64_t inputs, outputs;
    int64_t steps;         /* inputs / 4, rounded up */
    int nonnegative, relu;
} Int8Linear;

typedef struct {
    const uint8_t *bytes;  /* quantized inputs (rows, 4 * steps) */
    const float *largest;  /* maximum absolute value of each row (rows) */
    float *y;              /* (rows, outputs) */
} Rows;

/* The largest absolute value; NaN where x contains NaN. */
static float max_abs(const float *x, int64_t count)
{
    __m512 largest = _mm512_setzero_ps();
    __mmask16 nan_lanes = 0;
    for (int64_t i = 0; i < count; i += 16) {
        const __m512 some = _mm512_abs_ps(_mm512_maskz_loadu_ps(lane_mask(count - i), x + i));
        nan_lanes |= _mm512_cmp_ps_mask(some, some, _CMP_UNORD_Q);
        largest = _mm512_max_ps(largest, some);
    }
    return nan_lanes ? NAN : _mm512_reduce_max_ps(largest);
}

static void quantize_row(const float *x, int64_t count, float factor, int zero, uint8_t *bytes)
{
    const __m512 each = _mm512_set1_ps(factor);
    const __m512i shift = _mm512_set1_epi32(zero);
    for (int64_t i = 0; i < count; i += 16) {
        const __mmask16 lanes = lane_mask(count - i);
        const __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, x + i), each));
        _mm_mask_storeu_epi8(bytes + i, lanes, _mm512_cvtepi32_epi8(_mm512_add_epi32(whole, shift)));
    }
}

/* One block of outputs for `tile_rows` rows; meanwhile `lines` cache lines per step are prefetched from `ahead` on. */
static inline __attribute__((always_inline)) void tile(
    const int tile_rows, const int lines, const Int8Linear *p, Rows rows, int64_t block, const int8_t *ahead)
{
    const int8_t *weight = p->weight + block * p->steps * BLOCK_OUTPUTS * 4;
    __m512i sum[TILE_ROWS][2];
#pragma GCC unroll 8
    for (int r = 0; r < tile_rows; r++)
        for (int half = 0; half < 2; half++)
            sum[r][half] = _mm512_loadu_si512(p->start + block * BLOCK_OUTPUTS + 16 * half);
    for (int64_t step = 0; step < p->steps; step++, weight += BLOCK_OUTPUTS * 4) {
        const __m512i left = _mm512_loadu_si512(weight), right = _mm512_loadu_si512(weight + CACHE_LINE);
        for (int line = 0; line < lines; line++, ahead += CACHE_LINE) _mm_prefetch((const char *)ahead, _MM_HINT_T1);
#pragma GCC unroll 8
        for (int r = 0; r < tile_rows; r++) {
            const __m512i four = _mm512_set1_epi32(((const int32_t *)rows.bytes)[r * p->steps + step]);
            sum[r][0] = _mm512_dpbusd_epi32(sum[r][0], four, left);
            sum[r][1] = _mm512_dpbusd_epi32(sum[r][1], four, right);
        }
    }
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
        const int64_t column = block * BLOCK_OUTPUTS + 16 * half;
        if (column >= p->outputs) break;
        const __m512 scale = _mm512_loadu_ps(p->scale + column), bias = _mm512_loadu_ps(p->bias + column);
#pragma GCC unroll 8
        for (int r = 0; r < tile_rows; r++) {
            const __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(sum[r][half]), scale);
            __m512 y = _mm512_fmadd_ps(scaled, _mm512_set1_ps(rows.largest[r]), bias);
            if (p->relu) y = _mm512_max_ps(_mm512_setzero_ps(), y);  /* this order of arguments keeps NaN */
            _mm512_mask_storeu_ps(rows.y + r * p->outputs + column, lane_mask(p->outputs - column), y);
        }
    }
}

/* `tile` for fewer rows than a full tile. */
static void partial_tile(int tile_rows, const Int8Linear *p, Rows rows, int64_t block, const int8_t *ahead)
{
    switch (tile_rows) {
    case 1: tile(1, 2, p, rows, block, ahead); break;
    case 2: tile(2, 2, p, rows, block, ahead); break;
    case 3: tile(3, 2, p, rows, block, ahead); break;
    case 4: tile(4, 2, p, rows, block, ahead); break;
    case 5: tile(5, 2, p, rows, block, ahead); break;
    case 6: tile(6, 2, p, rows, block, ahead); break;
    case 7: tile(7, 2, p, rows, block, ahead); break;
    }
}

/* One block of outputs for all rows, while the weights of the next block are prefetched. */
static void output_block(const Int8Linear *p, Rows rows, int64_t count, int64_t block, const int8_t *next)
{
    const int64_t half = p->steps * BLOCK_OUTPUTS * 4 / 2;
    for (int64_t r = 0; r < count; r += TILE_ROWS) {
        const Rows here = {rows.bytes + r * p->steps * 4, rows.largest + r, rows.y + r * p->outputs};
        if (count - r >= TILE_ROWS)
            tile(TILE_ROWS, 1, p, here, block, next + (r / TILE_ROWS % 2) * half);
        else
            partial_tile((int)(count - r), p, here, block, next);
    }
}

/* `scratch` holds the maximum of each row, then the quantized rows. */
void int8_product(const Int8Linear *p, const float *x, float *y, float *scratch, int64_t rows, int threads)
{
    float *largest = scratch;
    uint8_t *bytes = (uint8_t *)(scratch + rows);
    const int64_t blocks = (p->outputs + BLOCK_OUTPUTS - 1) / BLOCK_OUTPUTS, size = p->steps * BLOCK_OUTPUTS * 4;
    const int zero = p->nonnegative ? 0 : 128, levels = p->nonnegative ? 255 : 127;
    const int workers = rows * p->inputs * p->outputs < MIN_PARALLEL_WORK ? 1 : threads;
    for (int64_t i = 0; i < size; i += CACHE_LINE) _mm_prefetch((const char *)p->weight + i, _MM_HINT_T1);
#pragma omp parallel for num_threads(workers) if (workers > 1)
    for (int64_t r = 0; r < rows; r++) {
        largest[r] = max_abs(x + r * p->inputs, p->inputs);
        const float factor = largest[r] > 0 ? levels / largest[r] : 0;
        quantize_row(x + r * p->inputs, p->inputs, factor, zero, bytes + r * p->steps * 4);
    }
#pragma omp parallel for num_threads(workers) if (workers > 1)
    for (int64_t block = 0; block < blocks; block++) {
        const int8_t *next = p->weight + (block + 1 < blocks ? block + 1 : block) * size;
        output_block(p, (Rows){bytes, largest, y}, rows, block, next);
    }
}
