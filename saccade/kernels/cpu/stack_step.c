/* One decoding step of all blocks of a Transformer stack in one call: on a CPU, the calls between the matrix products
   of a small model take longer than the products. Matrix products and attention are functions of other files, given as
   pointers. `stack_step.py` compiles this file and is its only caller. */

#include <string.h>

#include "stack_step.h"

/* The input of a sublayer: pre-norm normalizes the residual stream. */
static const float *sublayer_input(const Stack *s, const Norm *norm, int64_t rows, const Scratch *scratch)
{
    if (!s->pre_norm) return scratch->x;
    layer_norm(norm, scratch->x, scratch->normalized, rows, s->dim);
    return scratch->normalized;
}

/* Add the output of a sublayer to the residual stream; post-norm normalizes the sum. */
static void add_to_residual(const Stack *s, const Norm *norm, int64_t rows, const Scratch *scratch)
{
    for (int64_t i = 0; i < rows * s->dim; i++) scratch->x[i] += scratch->y[i];
    if (!s->pre_norm) layer_norm(norm, scratch->x, scratch->x, rows, s->dim);
}

/* Where a row's key or value at a position is stored. */
static float *cell(const TensorView *view, int64_t row, int64_t position)
{
    return (float *)view->data + row * view->row_stride + position * view->position_stride;
}

static void self_attention(const Stack *s, const Block *b, const Cache *cache, const StepPosition *position,
                           const Scratch *scratch)
{
    const int64_t rows = position->rows, width = b->heads * b->head_dim, last = position->length - 1;
    apply_linear(&b->project, sublayer_input(s, &b->norms[0], rows, scratch), scratch->hidden, rows, scratch);
    for (int64_t r = 0; r < rows; r++) {
        const float *new_key = scratch->hidden + (3 * r + 1) * width;
        memcpy(cell(&cache->key, r, last), new_key, width * sizeof *new_key);
        memcpy(cell(&cache->value, r, last), new_key + width, width * sizeof *new_key);
    }
    const AttentionArgs args = {{scratch->hidden, 3 * width, 0, b->head_dim}, cache->key, cache->value, 0,
                                rows, rows, b->heads, position->length, b->head_dim, b->scale};
    s->attend(&args, scratch->attended, scratch->scores, scratch->threads);
    apply_linear(&b->out, scratch->attended, scratch->y, rows, scratch);
    add_to_residual(s, &b->norms[0], rows, scratch);
}

static void cross_attention(const Stack *s, const Block *b, const Cache *cache, const StepPosition *position,
                            const Scratch *scratch)
{
    const int64_t rows = position->rows;
    apply_linear(&b->query, sublayer_input(s, &b->norms[1], rows, scratch), scratch->hidden, rows, scratch);
    const AttentionArgs args = {{scratch->hidden, b->heads * b->head_dim, 0, b->head_dim}, cache->memory_key,
                                cache->memory_value, position->keep, rows, position->memory_rows, b->heads,
                                position->memory_length, b->head_dim, b->cross_scale};
    s->attend(&args, scratch->attended, scratch->scores, scratch->threads);
    apply_linear(&b->cross_out, scratch->attended, scratch->y, rows, scratch);
    add_to_residual(s, &b->norms[1], rows, scratch);
}

void stack_step(const Stack *s, const StepPosition *position, const Scratch *scratch)
{
    const int64_t rows = position->rows;
    for (int64_t i = 0; i < s->num_blocks; i++) {
        const Block *b = s->blocks + i;
        const Norm *last = &b->norms[s->has_cross_attention ? 2 : 1];
        self_attention(s, b, position->caches + i, position, scratch);
        if (s->has_cross_attention) cross_attention(s, b, position->caches + i, position, scratch);
        apply_linear(&b->up, sublayer_input(s, last, rows, scratch), scratch->hidden, rows, scratch);
        apply_linear(&b->down, scratch->hidden, scratch->y, rows, scratch);
        add_to_residual(s, last, rows, scratch);
    }
}
