/* One position further through all blocks of a Transformer, in one call: on a CPU a small model waits longer for what
   stands around its products than for them. The products and attention are those of other files, whose functions come
   as addresses. `stack_step.py` compiles this file and is the only caller. */

#include <string.h>

#include "stack_step.h"

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
