/* Many steps of a Transformer that writes, in one call: greedy search and beam search, with what stands around a stack,
   up to where a row ends. `search_steps.py` compiles this file and is the only caller. */

#include <string.h>

#include "stack_step.h"

#define WORTH (1 << 18)    /* logits from which on a second thread gains more than it costs to wake */

typedef struct {
    void (*step)(const Stack *stack, const Place *place, const Desk *desk);
    const float *table;           /* (words, dim): the vector of each token; or nothing, where it is bytes */
    const int8_t *bytes;
    const float *scales;          /* (words): what one step of a byte stands for */
    const float *places;          /* (positions, dim), or nothing */
    float scale;                  /* of vectors, before their place is added */
    Norm norm;                    /* behind the stack; without a weight there is none */
    Linear head;
    int64_t words;
} Voice;

typedef struct {
    const int64_t *never;         /* tokens that may not be written */
    int64_t count;                /* of them */
    int64_t end, least;           /* END, and the step from which on it may be written */
    int64_t steps;                /* at most */
} Wish;

/* What the stack reads: the vectors of tokens, at one position. */
static void look_up(const Voice *v, const int64_t *tokens, const Place *place, int64_t dim, float *x)
{
    const float *where = v->places ? v->places + (place->seen - 1) * dim : 0;
    for (int64_t r = 0; r < place->rows; r++, x += dim) {
        const int64_t at = tokens[r] * dim;
        for (int64_t i = 0; i < dim; i++) {
            const float one = v->table ? v->table[at + i] : v->bytes[at + i] * v->scales[tokens[r]];
            x[i] = one * v->scale + (where ? where[i] : 0);
        }
    }
}

/* One step: from the tokens that were written last to logits of the next. */
static void speak(const Stack *s, const Place *place, const Desk *desk, const Voice *v, const int64_t *tokens,
                  float *logits)
{
    look_up(v, tokens, place, s->dim, desk->x);
    v->step(s, place, desk);
    if (v->norm.weight) normalise(&v->norm, desk->x, desk->x, place->rows, s->dim);
    through(&v->head, desk->x, logits, place->rows, desk);
}

/* Logits become log-probabilities, and -inf where a token may not be written; NaN is returned where one of them is. */
static float judge(float *logits, const Voice *v, const Wish *wish, int64_t step)
{
    const __m512 top = _mm512_set1_ps(largest_of(logits, v->words));
    __m512 sum = _mm512_setzero_ps();
    for (int64_t i = 0; i < v->words; i += 16) {
        const __mmask16 there = first(v->words - i);
        sum = _mm512_mask_add_ps(
            sum, there, sum, exponential(_mm512_sub_ps(_mm512_maskz_loadu_ps(there, logits + i), top)));
    }
    const float total = logf(_mm512_reduce_add_ps(sum));
    for (int64_t i = 0; i < v->words; i += 16) {
        const __mmask16 there = first(v->words - i);
        const __m512 apart = _mm512_sub_ps(_mm512_maskz_loadu_ps(there, logits + i), top);
        _mm512_mask_storeu_ps(logits + i, there, _mm512_sub_ps(apart, _mm512_set1_ps(total)));
    }
    for (int64_t i = 0; i < wish->count; i++) logits[wish->never[i]] = -INFINITY;
    if (step < wish->least) logits[wish->end] = -INFINITY;
    return total;
}

/* Writes the best token in each row again and again, until one of them is END. `tokens` (steps + 1, rows) begins with
   what was written last; `sums` (rows) of log-probabilities grow; `logits` has room for (rows, words + 1). `taken` is
   the number of steps; one in which something is no number is left to the caller. */
void greedy_steps(const Stack *s, const Place *begin, const Desk *desk, const Voice *v, const Wish *wish, float *logits,
                  int64_t *tokens, float *sums, int64_t *taken)
{
    Place place = *begin;
    const int64_t rows = place.rows;
    const int workers = rows * v->words < WORTH ? 1 : desk->threads;
    float *gains = logits + rows * v->words;
    for (*taken = 0; *taken < wish->steps; place.seen++) {
        int ended = 0;
        speak(s, &place, desk, v, tokens, logits);
#pragma omp parallel for num_threads(workers) if (workers > 1)
        for (int64_t r = 0; r < rows; r++) {
            float *mine = logits + r * v->words;
            const float total = judge(mine, v, wish, *taken), most = largest_of(mine, v->words);
            int64_t token = 0;
            while (token < v->words - 1 && mine[token] != most) token++;
            tokens[rows + r] = token;
            gains[r] = isnan(total) ? total : most;
        }
        for (int64_t r = 0; r < rows; r++) {
            if (!isfinite(gains[r])) return;
            ended |= tokens[rows + r] == wish->end;
        }
        for (int64_t r = 0; r < rows; r++) sums[r] += gains[r];
        tokens += rows;
        ++*taken;
        if (ended) return;
    }
}

/* A way to go on: what it is worth, and the token behind which row of the sentence. */
typedef struct {
    float value;
    int64_t row, token;
} Way;

typedef struct {
    int64_t width;                /* rows of a sentence */
    float *scores;                /* (rows): log-probabilities so far */
    int64_t *origins, room;       /* (rows, room): the row that wrote what a row has at a position */
    int64_t *roots;               /* (rows): where a row stood in the beginning */
    int64_t *history;             /* (rows, steps): what it has written since */
    float *values;                /* (rows), of the last step: the best ways, which the caller goes */
    int64_t *parents, *tokens;
} Beams;

/* Puts a way among the best, which stand in their order; of equal ones those that came before stay before. */
static void enter(Way *best, int64_t width, Way way)
{
    int64_t at = width - 1;
    if (!(way.value > best[at].value)) return;
    for (; at > 0 && way.value > best[at - 1].value; at--) best[at] = best[at - 1];
    best[at] = way;
}

/* The best ways of a sentence; of equal ones the earlier row's, and then that of the smaller token. */
static void compare(float *logits, const Voice *v, const Wish *wish, int64_t step, const Beams *b, int64_t sentence)
{
    Way best[b->width];
    float totals = 0;
    for (int64_t i = 0; i < b->width; i++) best[i] = (Way){-INFINITY, 0, 0};
    logits += sentence * b->width * v->words;
    for (int64_t row = sentence * b->width; row < (sentence + 1) * b->width; row++, logits += v->words) {
        totals += judge(logits, v, wish, step);
        for (int64_t i = 0; i < v->words; i += 16) {
            const __mmask16 there = first(v->words - i);
            const __m512 value = _mm512_add_ps(_mm512_maskz_loadu_ps(there, logits + i), _mm512_set1_ps(b->scores[row]));
            const __m512 worst = _mm512_set1_ps(best[b->width - 1].value);
            for (__mmask16 good = _mm512_mask_cmp_ps_mask(there, value, worst, _CMP_GT_OQ); good; good &= good - 1) {
                const int64_t token = i + __builtin_ctz(good);
                enter(best, b->width, (Way){logits[token] + b->scores[row], row, token});
            }
        }
    }
    if (isnan(totals)) best[0].value = totals;
    for (int64_t i = 0, at = sentence * b->width; i < b->width; i++, at++)
        b->values[at] = best[i].value, b->parents[at] = best[i].row, b->tokens[at] = best[i].token;
}

/* Every row goes on from its parent: keys and values that both do not share already are copied. */
static void follow(const Stack *s, const Place *place, const Beams *b, float *copy)
{
    int64_t origins[place->rows], moved[place->rows];
    for (int64_t at = 0; at < place->seen; at++) {
        int64_t moves = 0;
        for (int64_t r = 0; r < place->rows; r++) {
            origins[r] = b->origins[b->parents[r] * b->room + at];
            if (origins[r] != b->origins[r * b->room + at]) moved[moves++] = r;
        }
        for (int64_t i = 0; moves && i < 2 * s->count; i++) {
            const Part *part = i % 2 ? &place->caches[i / 2].value : &place->caches[i / 2].key;
            const int64_t width = s->blocks[i / 2].heads * s->blocks[i / 2].features;
            float *cells = (float *)part->numbers + at * part->position;
            for (int64_t m = 0; m < moves; m++)
                memcpy(copy + m * width, cells + b->parents[moved[m]] * part->row, width * sizeof *cells);
            for (int64_t m = 0; m < moves; m++)
                memcpy(cells + moved[m] * part->row, copy + m * width, width * sizeof *cells);
        }
        for (int64_t m = 0; m < moves; m++) b->origins[moved[m] * b->room + at] = origins[moved[m]];
    }
}

/* The same for what is known of rows. */
static void inherit(const Beams *b, int64_t rows, int64_t steps, int64_t done, int64_t *copy)
{
    int64_t *history = copy + rows;
    memcpy(copy, b->roots, rows * sizeof *copy);
    memcpy(history, b->history, rows * steps * sizeof *copy);
    for (int64_t r = 0; r < rows; r++) {
        const int64_t parent = b->parents[r];
        b->roots[r] = copy[parent];
        memcpy(b->history + r * steps, history + parent * steps, done * sizeof *copy);
        b->history[r * steps + done] = b->tokens[r];
        b->scores[r] = b->values[r];
    }
}

/* Steps of beam search, up to one in which a sentence finishes something: the best ways of the last step are left to
   the caller. `tokens` of the beams begin with what was written last; `copy` has room for what is moved.
   `taken` is the number of steps, or minus that of those before one in which something is no number. */
void beam_steps(const Stack *s, const Place *begin, const Desk *desk, const Voice *v, const Wish *wish, const Beams *b,
                float *logits, void *copy, int64_t *taken)
{
    Place place = *begin;
    const int64_t rows = place.rows, sentences = rows / b->width;
    const int workers = rows * v->words < WORTH ? 1 : desk->threads;
    for (*taken = 0;; place.seen++) {
        int stop = *taken + 1 == wish->steps;
        speak(s, &place, desk, v, b->tokens, logits);
#pragma omp parallel for num_threads(workers) if (workers > 1)
        for (int64_t n = 0; n < sentences; n++) compare(logits, v, wish, *taken, b, n);
        for (int64_t r = 0; r < rows; r++) {
            if (!isfinite(b->values[r])) {
                *taken = -*taken;
                return;
            }
            b->origins[r * b->room + place.seen - 1] = r;
            stop |= b->tokens[r] == wish->end;
        }
        ++*taken;
        if (stop) return;
        follow(s, &place, b, copy);
        inherit(b, rows, wish->steps, *taken - 1, copy);
    }
}
