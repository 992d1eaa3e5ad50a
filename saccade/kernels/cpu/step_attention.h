/* What attention of a step is asked: `step_attention.c` answers, and `stack_step.c` asks too. */

#include <stdint.h>

typedef struct {
    const float *numbers;
    int64_t row, position, head;  /* how far apart these are */
} Part;

typedef struct {
    Part query, key, value;
    const uint8_t *keep;   /* (memories, keys): which may be attended; or nothing, where all may */
    int64_t rows, memories, heads, keys, features;
    float scale;
} Attention;
