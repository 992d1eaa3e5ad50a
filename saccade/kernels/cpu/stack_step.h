/* What a Transformer's stack is to the sources: `stack_step.c` takes a step of it, and `search_steps.c` many. */

#include "lanes.h"
#include "step_attention.h"

typedef struct {
    void (*multiply)(const void *product, const float *x, float *y, float *room, int64_t rows, int threads);
    const void *product;
} Linear;

typedef struct {
    const float *weight, *bias;
    float epsilon;
} Norm;

typedef struct {
    Linear project, out;          /* to (3, heads, features) of each row, and back */
    Linear query, back;           /* the same for the question to memory, where there is one */
    Linear up, down;
    Norm norms[3];                /* of the sublayers, in the order of use */
    int64_t heads, features;
    float scale, memory_scale;
} Block;

typedef struct {
    Part key, value;              /* of what was written */
    Part memory_key, memory_value;
} Cache;

typedef struct {
    const Block *blocks;
    void (*attend)(const Attention *asked, float *y, float *scores, int threads);
    int64_t count, dim;
    int pre, crosses;             /* norms stand before sublayers; there is memory */
} Stack;

typedef struct {
    const Cache *caches;          /* one for each block */
    const uint8_t *keep;          /* of memory, or nothing */
    int64_t rows, seen;           /* positions, with the new one */
    int64_t memories, source;     /* rows and positions of memory */
} Place;

typedef struct {
    float *x, *normal, *wide, *mixed, *y, *scores, *room;
    int threads;
} Desk;

/* y = norm(x), row by row; both may be the same. */
static inline void normalise(const Norm *norm, const float *x, float *y, int64_t rows, int64_t dim)
{
    for (int64_t r = 0; r < rows; r++, x += dim, y += dim) {
        __m512 sum = _mm512_setzero_ps(), squares = _mm512_setzero_ps();
        for (int64_t i = 0; i < dim; i += 16) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(first(dim - i), x + i));
        const __m512 mean = _mm512_set1_ps(_mm512_reduce_add_ps(sum) / dim);
        for (int64_t i = 0; i < dim; i += 16) {
            const __m512 apart = _mm512_maskz_sub_ps(first(dim - i), _mm512_maskz_loadu_ps(first(dim - i), x + i), mean);
            squares = _mm512_fmadd_ps(apart, apart, squares);
        }
        const __m512 factor = _mm512_set1_ps(1 / sqrtf(_mm512_reduce_add_ps(squares) / dim + norm->epsilon));
        for (int64_t i = 0; i < dim; i += 16) {
            const __mmask16 there = first(dim - i);
            const __m512 apart = _mm512_sub_ps(_mm512_maskz_loadu_ps(there, x + i), mean);
            const __m512 scaled = _mm512_mul_ps(_mm512_mul_ps(apart, factor), _mm512_maskz_loadu_ps(there, norm->weight + i));
            _mm512_mask_storeu_ps(y + i, there, _mm512_add_ps(scaled, _mm512_maskz_loadu_ps(there, norm->bias + i)));
        }
    }
}

static inline void through(const Linear *linear, const float *x, float *y, int64_t rows, const Desk *desk)
{
    linear->multiply(linear->product, x, y, desk->room, rows, desk->threads);
}
