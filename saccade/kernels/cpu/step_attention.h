/* Arguments of the attention kernel in `step_attention.c`, which `stack_step.c` calls too. */

#include <stdint.h>

typedef struct {
    const float *data;     /* the features of one row, position and head are contiguous */
    int64_t row_stride, position_stride, head_stride;  /* in floats */
} TensorView;

typedef struct {
    TensorView query, key, value;
    const uint8_t *keep;   /* mask (memory_rows, keys) of keys that may be attended, or null for all */
    int64_t rows, memory_rows, heads, keys, head_dim;
    float scale;
} AttentionArgs;
