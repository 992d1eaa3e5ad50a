/* Many decoding steps of a Transformer writer in one call: greedy search and beam search with embedding, stack and
   output projection, until a row emits END. `search_steps.py` compiles this file and is its only caller. */

#include <string.h>

#include "stack_step.h"

#define MIN_PARALLEL_WORK (1 << 18)  /* logits: with fewer, waking a second thread costs more than it gains */

typedef struct {
    void (*step)(const Stack *stack, const StepPosition *position, const Scratch *scratch);
    const float *table;           /* token embeddings (vocabulary, dim), or null where they are int8 */
    const int8_t *int8_table;     /* quantized token embeddings, or null */
    const float *scales;          /* (vocabulary): quantization scales of `int8_table` */
    const float *positions;       /* positional encodings (positions, dim), or null */
    float scale;                  /* of token embeddings, before positions are added */
    Norm norm;                    /* final norm; its weight is null where there is none */
    Linear head;                  /* projection to the vocabulary */
    int64_t vocabulary;
} OutputHead;

typedef struct {
    const int64_t *suppressed;    /* tokens that are never generated */
    int64_t num_suppressed;
    int64_t end, min_length;      /* END, and the first step in which it may be generated */
    int64_t max_steps;
} SearchParams;

/* Embed the token of each row, all at the same position. */
static void embed_tokens(const OutputHead *out, const int64_t *tokens, const StepPosition *position, int64_t dim,
                         float *x)
{
    const float *position_vector = out->positions ? out->positions + (position->length - 1) * dim : 0;
    for (int64_t r = 0; r < position->rows; r++, x += dim) {
        const int64_t at = tokens[r] * dim;
        for (int64_t i = 0; i < dim; i++) {
            const float value = out->table ? out->table[at + i] : out->int8_table[at + i] * out->scales[tokens[r]];
            x[i] = value * out->scale + (position_vector ? position_vector[i] : 0);
        }
    }
}

/* One decoding step: logits of the next token, given the last one. */
static void compute_logits(const Stack *s, const StepPosition *position, const Scratch *scratch, const OutputHead *out,
                           const int64_t *tokens, float *logits)
{
    embed_tokens(out, tokens, position, s->dim, scratch->x);
    out->step(s, position, scratch);
    if (out->norm.weight) layer_norm(&out->norm, scratch->x, scratch->x, position->rows, s->dim);
    apply_linear(&out->head, scratch->x, logits, position->rows, scratch);
}

/* Replace logits by log-probabilities, and by -inf for forbidden tokens. Returns NaN where a logit is NaN. */
static float to_log_probs(float *logits, const OutputHead *out, const SearchParams *params, int64_t step)
{
    const __m512 top = _mm512_set1_ps(max_of(logits, out->vocabulary));
    __m512 sum = _mm512_setzero_ps();
    for (int64_t i = 0; i < out->vocabulary; i += 16) {
        const __mmask16 lanes = lane_mask(out->vocabulary - i);
        sum = _mm512_mask_add_ps(
            sum, lanes, sum, exp_nonpositive(_mm512_sub_ps(_mm512_maskz_loadu_ps(lanes, logits + i), top)));
    }
    const float total = logf(_mm512_reduce_add_ps(sum));
    for (int64_t i = 0; i < out->vocabulary; i += 16) {
        const __mmask16 lanes = lane_mask(out->vocabulary - i);
        const __m512 centered = _mm512_sub_ps(_mm512_maskz_loadu_ps(lanes, logits + i), top);
        _mm512_mask_storeu_ps(logits + i, lanes, _mm512_sub_ps(centered, _mm512_set1_ps(total)));
    }
    for (int64_t i = 0; i < params->num_suppressed; i++) logits[params->suppressed[i]] = -INFINITY;
    if (step < params->min_length) logits[params->end] = -INFINITY;
    return total;
}

/* Greedy search until a row emits END. `tokens` (max_steps + 1, rows) starts with the last token of each row; `sums`
   (rows) accumulates log-probabilities; `logits` is a buffer of (rows, vocabulary + 1). `taken` is the number of steps;
   a step with values that are not finite is not counted and is left to the caller. */
void greedy_steps(const Stack *s, const StepPosition *begin, const Scratch *scratch, const OutputHead *out,
                  const SearchParams *params, float *logits, int64_t *tokens, float *sums, int64_t *taken)
{
    StepPosition position = *begin;
    const int64_t rows = position.rows;
    const int workers = rows * out->vocabulary < MIN_PARALLEL_WORK ? 1 : scratch->threads;
    float *gains = logits + rows * out->vocabulary;
    for (*taken = 0; *taken < params->max_steps; position.length++) {
        int ended = 0;
        compute_logits(s, &position, scratch, out, tokens, logits);
#pragma omp parallel for num_threads(workers) if (workers > 1)
        for (int64_t r = 0; r < rows; r++) {
            float *row_logits = logits + r * out->vocabulary;
            const float total = to_log_probs(row_logits, out, params, *taken);
            const float best = max_of(row_logits, out->vocabulary);
            int64_t token = 0;
            while (token < out->vocabulary - 1 && row_logits[token] != best) token++;
            tokens[rows + r] = token;
            gains[r] = isnan(total) ? total : best;
        }
        for (int64_t r = 0; r < rows; r++) {
            if (!isfinite(gains[r])) return;
            ended |= tokens[rows + r] == params->end;
        }
        for (int64_t r = 0; r < rows; r++) sums[r] += gains[r];
        tokens += rows;
        ++*taken;
        if (ended) return;
    }
}

/* A candidate of beam search: its score, the row that it extends, and the token that it adds. */
typedef struct {
    float value;
    int64_t row, token;
} Candidate;

typedef struct {
    int64_t width;                /* beams of a sentence */
    float *scores;                /* (rows): log-probabilities so far */
    int64_t *origins, capacity;   /* (rows, capacity): the row that first wrote each cached position */
    int64_t *roots;               /* (rows): the row at the first step from which each row descends */
    int64_t *history;             /* (rows, max_steps): tokens of each row since the first step */
    float *values;                /* (rows): scores of the best candidates of the last step, for the caller */
    int64_t *parents, *tokens;    /* (rows): their rows and tokens */
    Candidate *candidates;        /* (rows): memory to select and to reorder rows */
} Beams;

/* Insert a candidate into the sorted list of the best; among equal ones, earlier candidates stay first. */
static void insert_candidate(Candidate *best, int64_t width, Candidate candidate)
{
    int64_t at = width - 1;
    if (!(candidate.value > best[at].value)) return;
    for (; at > 0 && candidate.value > best[at - 1].value; at--) best[at] = best[at - 1];
    best[at] = candidate;
}

/* The best candidates of a sentence; ties go to the earlier row, then to the smaller token. */
static void select_candidates(float *logits, const OutputHead *out, const SearchParams *params, int64_t step,
                              const Beams *b, int64_t sentence)
{
    Candidate *best = b->candidates + sentence * b->width;
    float totals = 0;
    for (int64_t i = 0; i < b->width; i++) best[i] = (Candidate){-INFINITY, 0, 0};
    logits += sentence * b->width * out->vocabulary;
    for (int64_t row = sentence * b->width; row < (sentence + 1) * b->width; row++, logits += out->vocabulary) {
        totals += to_log_probs(logits, out, params, step);
        for (int64_t i = 0; i < out->vocabulary; i += 16) {
            const __mmask16 lanes = lane_mask(out->vocabulary - i);
            const __m512 log_probs = _mm512_maskz_loadu_ps(lanes, logits + i);
            const __m512 value = _mm512_add_ps(log_probs, _mm512_set1_ps(b->scores[row]));
            const __m512 worst = _mm512_set1_ps(best[b->width - 1].value);
            __mmask16 better = _mm512_mask_cmp_ps_mask(lanes, value, worst, _CMP_GT_OQ);
            for (; better; better &= better - 1) {
                const int64_t token = i + __builtin_ctz(better);
                insert_candidate(best, b->width, (Candidate){logits[token] + b->scores[row], row, token});
            }
        }
    }
    if (isnan(totals)) best[0].value = totals;
    for (int64_t i = 0, at = sentence * b->width; i < b->width; i++, at++)
        b->values[at] = best[i].value, b->parents[at] = best[i].row, b->tokens[at] = best[i].token;
}

/* Reorder the key-value caches so that every row continues its parent; only positions that differ are copied. */
static void reorder_caches(const Stack *s, const StepPosition *position, const Beams *b, float *buffer)
{
    int64_t *origins = (int64_t *)b->candidates, *moved = origins + position->rows;  /* a candidate has three numbers */
    for (int64_t at = 0; at < position->length; at++) {
        int64_t moves = 0;
        for (int64_t r = 0; r < position->rows; r++) {
            origins[r] = b->origins[b->parents[r] * b->capacity + at];
            if (origins[r] != b->origins[r * b->capacity + at]) moved[moves++] = r;
        }
        for (int64_t i = 0; moves && i < 2 * s->num_blocks; i++) {
            const TensorView *view = i % 2 ? &position->caches[i / 2].value : &position->caches[i / 2].key;
            const int64_t width = s->blocks[i / 2].heads * s->blocks[i / 2].head_dim;
            float *cells = (float *)view->data + at * view->position_stride;
            for (int64_t m = 0; m < moves; m++)
                memcpy(buffer + m * width, cells + b->parents[moved[m]] * view->row_stride, width * sizeof *cells);
            for (int64_t m = 0; m < moves; m++)
                memcpy(cells + moved[m] * view->row_stride, buffer + m * width, width * sizeof *cells);
        }
        for (int64_t m = 0; m < moves; m++) b->origins[moved[m] * b->capacity + at] = origins[moved[m]];
    }
}

/* Reorder roots, histories and scores in the same way. */
static void reorder_history(const Beams *b, int64_t rows, int64_t steps, int64_t done, int64_t *buffer)
{
    int64_t *history = buffer + rows;
    memcpy(buffer, b->roots, rows * sizeof *buffer);
    memcpy(history, b->history, rows * steps * sizeof *buffer);
    for (int64_t r = 0; r < rows; r++) {
        const int64_t parent = b->parents[r];
        b->roots[r] = buffer[parent];
        memcpy(b->history + r * steps, history + parent * steps, done * sizeof *buffer);
        b->history[r * steps + done] = b->tokens[r];
        b->scores[r] = b->values[r];
    }
}

/* Beam search until a candidate ends; the candidates of the last step are left to the caller. `tokens` of the beams
   start as the last token of each row; `buffer` is memory for reordering. `taken` is the number of steps, or, where a
   step has values that are not finite, minus the number of steps before it. */
void beam_steps(const Stack *s, const StepPosition *begin, const Scratch *scratch, const OutputHead *out,
                const SearchParams *params, const Beams *b, float *logits, void *buffer, int64_t *taken)
{
    StepPosition position = *begin;
    const int64_t rows = position.rows, sentences = b->width > 0 ? rows / b->width : 0;
    const int workers = rows * out->vocabulary < MIN_PARALLEL_WORK ? 1 : scratch->threads;
    *taken = 0;
    if (sentences == 0) return;
    for (;; position.length++) {
        int stop = *taken + 1 == params->max_steps;
        compute_logits(s, &position, scratch, out, b->tokens, logits);
#pragma omp parallel for num_threads(workers) if (workers > 1)
        for (int64_t n = 0; n < sentences; n++) select_candidates(logits, out, params, *taken, b, n);
        for (int64_t r = 0; r < rows; r++) {
            if (!isfinite(b->values[r])) {
                *taken = -*taken;
                return;
            }
            b->origins[r * b->capacity + position.length - 1] = r;
            stop |= b->tokens[r] == params->end;
        }
        ++*taken;
        if (stop) return;
        reorder_caches(s, &position, b, buffer);
        reorder_history(b, rows, params->max_steps, *taken - 1, buffer);
    }
}
