/* y = relu(x W^T + b) for int8 weights on processors with AVX-512 VNNI: rows of x become bytes, are multiplied and
   scaled back in one call. `vnni.py` compiles this file, lays the weights out and is the only caller. */

#include "lanes.h"

#define WIDE 32            /* outputs of a block, in two registers */
#define TALL 8             /* rows of a tile: 16 sums hide how long one takes */
#define LINE 64            /* bytes that memory gives at once */
#define WORTH (1 << 20)    /* multiplications from which on a second thread gains more than it costs to wake */

typedef struct {
    const int8_t *weight;  /* (blocks, steps, WIDE, 4): what four inputs add to each output of a block */
    const int32_t *start;  /* (blocks, WIDE): what sums begin with, since bytes do not stand for 0 where they are 0 */
    const float *scale;    /* (blocks, WIDE): what one step of a byte stands for, if the largest of the row were 1 */
    const float *bias;     /* (blocks, WIDE) */
    int64_t inputs, outputs;
    int64_t steps;         /* of four inputs */
    int positive, relu;
} Product;

typedef struct {
    const uint8_t *bytes;  /* (rows, 4 * steps) */
    const float *largest;  /* (rows) */
    float *y;              /* (rows, outputs) */
} Rows;

/* The largest absolute value; NaN where there is one. */
static float magnitude(const float *x, int64_t count)
{
    __m512 largest = _mm512_setzero_ps();
    __mmask16 strange = 0;
    for (int64_t i = 0; i < count; i += 16) {
        const __m512 some = _mm512_abs_ps(_mm512_maskz_loadu_ps(first(count - i), x + i));
        strange |= _mm512_cmp_ps_mask(some, some, _CMP_UNORD_Q);
        largest = _mm512_max_ps(largest, some);
    }
    return strange ? NAN : _mm512_reduce_max_ps(largest);
}

static void to_bytes(const float *x, int64_t count, float factor, int zero, uint8_t *bytes)
{
    const __m512 each = _mm512_set1_ps(factor);
    const __m512i shift = _mm512_set1_epi32(zero);
    for (int64_t i = 0; i < count; i += 16) {
        const __mmask16 there = first(count - i);
        const __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_maskz_loadu_ps(there, x + i), each));
        _mm_mask_storeu_epi8(bytes + i, there, _mm512_cvtepi32_epi8(_mm512_add_epi32(whole, shift)));
    }
}

/* One block of outputs of `tall` rows. Meanwhile `lines` of memory for each step are asked for from `ahead` on. */
static inline __attribute__((always_inline)) void tile(
    const int tall, const int lines, const Product *p, Rows rows, int64_t block, const int8_t *ahead)
{
    const int8_t *weight = p->weight + block * p->steps * WIDE * 4;
    __m512i sum[TALL][2];
#pragma GCC unroll 8
    for (int r = 0; r < tall; r++)
        for (int half = 0; half < 2; half++)
            sum[r][half] = _mm512_loadu_si512(p->start + block * WIDE + 16 * half);
    for (int64_t step = 0; step < p->steps; step++, weight += WIDE * 4) {
        const __m512i left = _mm512_loadu_si512(weight), right = _mm512_loadu_si512(weight + LINE);
        for (int line = 0; line < lines; line++, ahead += LINE) _mm_prefetch((const char *)ahead, _MM_HINT_T1);
#pragma GCC unroll 8
        for (int r = 0; r < tall; r++) {
            const __m512i four = _mm512_set1_epi32(((const int32_t *)rows.bytes)[r * p->steps + step]);
            sum[r][0] = _mm512_dpbusd_epi32(sum[r][0], four, left);
            sum[r][1] = _mm512_dpbusd_epi32(sum[r][1], four, right);
        }
    }
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
        const int64_t at = block * WIDE + 16 * half;
        if (at >= p->outputs) break;
        const __m512 scale = _mm512_loadu_ps(p->scale + at), bias = _mm512_loadu_ps(p->bias + at);
#pragma GCC unroll 8
        for (int r = 0; r < tall; r++) {
            const __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(sum[r][half]), scale);
            __m512 y = _mm512_fmadd_ps(scaled, _mm512_set1_ps(rows.largest[r]), bias);
            if (p->relu) y = _mm512_max_ps(_mm512_setzero_ps(), y);  /* in this order NaN stays */
            _mm512_mask_storeu_ps(rows.y + r * p->outputs + at, first(p->outputs - at), y);
        }
    }
}

/* The same where there are fewer rows than a tile has. */
static void low_tile(int tall, const Product *p, Rows rows, int64_t block, const int8_t *ahead)
{
    switch (tall) {
    case 1: tile(1, 2, p, rows, block, ahead); break;
    case 2: tile(2, 2, p, rows, block, ahead); break;
    case 3: tile(3, 2, p, rows, block, ahead); break;
    case 4: tile(4, 2, p, rows, block, ahead); break;
    case 5: tile(5, 2, p, rows, block, ahead); break;
    case 6: tile(6, 2, p, rows, block, ahead); break;
    case 7: tile(7, 2, p, rows, block, ahead); break;
    }
}

/* All rows for one block of outputs; the weights of the next block are fetched while these are in use. */
static void column(const Product *p, Rows rows, int64_t count, int64_t block, const int8_t *next)
{
    const int64_t half = p->steps * WIDE * 4 / 2;
    for (int64_t r = 0; r < count; r += TALL) {
        const Rows here = {rows.bytes + r * p->steps * 4, rows.largest + r, rows.y + r * p->outputs};
        if (count - r >= TALL)
            tile(TALL, 1, p, here, block, next + (r / TALL % 2) * half);
        else
            low_tile((int)(count - r), p, here, block, next);
    }
}

/* `room` is for one number of each row and then for its bytes. */
void int8_product(const Product *p, const float *x, float *y, float *room, int64_t rows, int threads)
{
    float *largest = room;
    uint8_t *bytes = (uint8_t *)(room + rows);
    const int64_t blocks = (p->outputs + WIDE - 1) / WIDE, size = p->steps * WIDE * 4;
    const int zero = p->positive ? 0 : 128, levels = p->positive ? 255 : 127;
    const int workers = rows * p->inputs * p->outputs < WORTH ? 1 : threads;
    for (int64_t i = 0; i < size; i += LINE) _mm_prefetch((const char *)p->weight + i, _MM_HINT_T1);
#pragma omp parallel for num_threads(workers) if (workers > 1)
    for (int64_t r = 0; r < rows; r++) {
        largest[r] = magnitude(x + r * p->inputs, p->inputs);
        const float factor = largest[r] > 0 ? levels / largest[r] : 0;
        to_bytes(x + r * p->inputs, p->inputs, factor, zero, bytes + r * p->steps * 4);
    }
#pragma omp parallel for num_threads(workers) if (workers > 1)
    for (int64_t block = 0; block < blocks; block++) {
        const int8_t *next = p->weight + (block + 1 < blocks ? block + 1 : block) * size;
        column(p, (Rows){bytes, largest, y}, rows, block, next);
    }
}
