/* One position further through all blocks of a Transformer, in one call: on a CPU a small model waits longer for what
   stands around its products than for them. The products and attention are those of other files, whose functions come
   as addresses. `stack_step.py` compiles this file and is the only caller. */

#include <immintrin.h>
#include <math.h>
#include <string.h>

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

static __mmask16 first(int64_t count) { return count >= 16 ? 0xffff : (__mmask16)((1u << count) - 1); }

/* y = norm(x), row by row; both may be the same. */
static void normalise(const Norm *norm, const float *x, float *y, int64_t rows, int64_t dim)
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

static void through(const Linear *linear, const float *x, float *y, int64_t rows, const Desk *desk)
{
    linear->multiply(linear->product, x, y, desk->room, rows, desk->threads);
}

/* What a sublayer reads. */
static const float *into(const Stack *s, const Norm *norm, int64_t rows, const Desk *desk)
{
    if (!s->pre) return desk->x;
    normalise(norm, desk->x, desk->normal, rows, s->dim);
    return desk->normal;
}

/* What it wrote, onto what runs along. */
static void onto(const Stack *s, const Norm *norm, int64_t rows, const Desk *desk)
{
    for (int64_t i = 0; i < rows * s->dim; i++) desk->x[i] += desk->y[i];
    if (!s->pre) normalise(norm, desk->x, desk->x, rows, s->dim);
}

static void to_itself(const Stack *s, const Block *b, const Cache *cache, const Place *place, const Desk *desk)
{
    const int64_t width = b->heads * b->features, last = place->seen - 1;
    through(&b->project, into(s, &b->norms[0], place->rows, desk), desk->wide, place->rows, desk);
    for (int64_t r = 0; r < place->rows; r++) {
        const float *new = desk->wide + (3 * r + 1) * width;
        memcpy((float *)cache->key.numbers + r * cache->key.row + last * cache->key.position, new, width * sizeof *new);
        memcpy((float *)cache->value.numbers + r * cache->value.row + last * cache->value.position, new + width,
               width * sizeof *new);
    }
    const Attention asked = {{desk->wide, 3 * width, 0, b->features}, cache->key, cache->value, 0,
                             place->rows, place->rows, b->heads, place->seen, b->features, b->scale};
    s->attend(&asked, desk->mixed, desk->scores, desk->threads);
    through(&b->out, desk->mixed, desk->y, place->rows, desk);
    onto(s, &b->norms[0], place->rows, desk);
}

static void to_memory(const Stack *s, const Block *b, const Cache *cache, const Place *place, const Desk *desk)
{
    through(&b->query, into(s, &b->norms[1], place->rows, desk), desk->wide, place->rows, desk);
    const Attention asked = {{desk->wide, b->heads * b->features, 0, b->features}, cache->memory_key,
                             cache->memory_value, place->keep, place->rows, place->memories, b->heads, place->source,
                             b->features, b->memory_scale};
    s->attend(&asked, desk->mixed, desk->scores, desk->threads);
    through(&b->back, desk->mixed, desk->y, place->rows, desk);
    onto(s, &b->norms[1], place->rows, desk);
}

void stack_step(const Stack *s, const Place *place, const Desk *desk)
{
    for (int64_t i = 0; i < s->count; i++) {
        const Block *b = s->blocks + i;
        const Norm *last = &b->norms[s->crosses ? 2 : 1];
        to_itself(s, b, place->caches + i, place, desk);
        if (s->crosses) to_memory(s, b, place->caches + i, place, desk);
        through(&b->up, into(s, last, place->rows, desk), desk->wide, place->rows, desk);
        through(&b->down, desk->wide, desk->y, place->rows, desk);
        onto(s, last, place->rows, desk);
    }
}
