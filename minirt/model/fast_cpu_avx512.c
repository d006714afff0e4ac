/* Kernels for processors with AVX512-BF16, which fast_cpu.c includes there.

   Why: an instruction that multiplies 32 pairs of bfloat16 and adds them in float does half the work of a float one, and
   keys need no conversion first. What they compute: the same as those of fast_cpu.c, products of a few rows with weights
   that oneDNN has packed, and, in fast_cpu_prefill.c, attention of prompts. Attention wants a HEAD_DIM of 64 or 128.
   TILE (tokens whose scores fill one register), KEYS and FEW_ROWS come from cpu_kernels.py, like HEAD_DIM.
   A register holds 16 floats or 32 bfloat16 numbers; a "pair" is two bfloat16 neighbours, what one lane of 16 takes. */

#include <immintrin.h>

#define LANES 16
#define SIDE 6      /* rows of a product that fit the 32 registers: 6 x 4 sums, 4 of b, 1 of a */
#define PART 96     /* pairs of a weight that stay in the nearest cache: 24 KB */
#define AHEAD 8192  /* numbers by which memory is asked for before it is used: 16 KB */

static inline __m512bh pairs(const elem *p) { return (__m512bh)_mm512_loadu_si512(p); }

/* exp_ of fast_cpu.c for a register of numbers that are not above 88. (max gives its second operand where one is NaN.) */
static inline __m512 exps(__m512 x) {
    x = _mm512_max_ps(_mm512_set1_ps(-87.0f), x);
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    r = _mm512_fmadd_ps(n, _mm512_set1_ps(2.12194440e-4f), r);
    __m512 p = _mm512_set1_ps(1.9875691500e-4f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
    p = _mm512_fmadd_ps(_mm512_mul_ps(p, r), r, _mm512_add_ps(r, _mm512_set1_ps(1.0f)));
    return _mm512_scalef_ps(p, n);
}

static inline __m512 floats(__m256i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16)); }
static inline __m256i rounded(__m512 x) { return (__m256i)_mm512_cvtneps_pbh(x); }

/* silu of one row, rounded where torch rounds it. */
static void silu_row(const elem *gate, const elem *up, elem *out, long width) {
    const __m512 one = _mm512_set1_ps(1.0f);
    for (long c = 0; c < width; c += LANES) {
        const __mmask16 real = width - c < LANES ? (1u << (width - c)) - 1 : 0xffff;
        __m512 g = floats(_mm256_maskz_loadu_epi16(real, gate + c)), u = floats(_mm256_maskz_loadu_epi16(real, up + c));
        __m512 below = exps(_mm512_sub_ps(_mm512_setzero_ps(), _mm512_max_ps(g, _mm512_set1_ps(-88.0f))));
        __m512 silu = floats(rounded(_mm512_div_ps(g, _mm512_add_ps(one, below))));
        _mm256_mask_storeu_epi16(out + c, real, rounded(_mm512_mul_ps(silu, u)));
    }
}

/* -- products -------------------------------------------------------------------------------------
   c[SIDE][64] = (or +=) a times b. a: SIDE rows of `count` pairs; b: [count][64] pairs, and as many again behind AHEAD. */
static inline void product(const elem **a, const elem *b, int count, float *c, int add, int fetching) {
    __m512 acc[SIDE][4];
    for (int i = 0; i < SIDE; i++)
        for (int j = 0; j < 4; j++) acc[i][j] = add ? _mm512_loadu_ps(c + i * 64 + j * LANES) : _mm512_setzero_ps();
    for (int p = 0; p < count; p++) {
        __m512bh right[4];
        for (int j = 0; j < 4; j++) {
            right[j] = pairs(b + (p * 64 + j * LANES) * 2);
            if (fetching) __builtin_prefetch(b + (p * 64 + j * LANES) * 2 + AHEAD);
        }
        for (int i = 0; i < SIDE; i++) {
            int32_t pair;
            memcpy(&pair, a[i] + 2 * p, 4);
            const __m512bh left = (__m512bh)_mm512_set1_epi32(pair);
            for (int j = 0; j < 4; j++) acc[i][j] = _mm512_dpbf16_ps(acc[i][j], left, right[j]);
        }
    }
    for (int i = 0; i < SIDE; i++)
        for (int j = 0; j < 4; j++) _mm512_storeu_ps(c + i * 64 + j * LANES, acc[i][j]);
}

/* out = x W^T + bias (unless NULL) for at most FEW_ROWS rows, where reading W is most of the time. x: [rows, in]; out: [rows,
   outs]. packed: W in oneDNN's own layout for AVX512-BF16, [outs / 64][in / 2][64] pairs: 64 outputs at a time are read once
   from memory, a part that stays in the cache before every group of rows. A row's sums don't depend on the other rows. */
void few_rows(const elem *x, const elem *packed, const elem *bias, elem *out, long rows, long in, long outs, int threads) {
    const long n = in / 2, part = rows > SIDE ? PART : n;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (long b = 0; b < outs / 64; b++) {
        float c[FEW_ROWS + SIDE][64];
        for (long k = 0; k < n; k += part)
            for (long i = 0; i < rows; i += SIDE) {
                const elem *left[SIDE], *w = packed + (b * n + k) * 128;
                const int count = n - k < part ? n - k : part;
                for (int r = 0; r < SIDE; r++) left[r] = x + (i + r < rows ? i + r : rows - 1) * in + 2 * k;
                if (i) product(left, w, count, c[i], k > 0, 0);
                else product(left, w, count, c[i], k > 0, 1);
            }
        for (long i = 0; i < rows; i++)
            for (int j = 0; j < 64; j += LANES) {
                __m512 y = _mm512_loadu_ps(c[i] + j);
                if (bias) y = _mm512_add_ps(y, floats(_mm256_loadu_si256((const __m256i *)(bias + b * 64 + j))));
                _mm256_storeu_si256((__m256i *)(out + i * outs + b * 64 + j), rounded(y));
            }
    }
}

#if HEAD_DIM % 64 == 0
#define WIDE_ATTENTION

/* The sum of each of 16 registers, as one register: halves are added until one number of each is left. */
static inline __m512 sums(const __m512 *v) {
    __m512 a[8], b[4], c[2];
    for (int i = 0; i < 8; i++)
        a[i] = _mm512_add_ps(_mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]), _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]));
    for (int i = 0; i < 4; i++) {
        __m512d x = _mm512_castps_pd(a[2 * i]), y = _mm512_castps_pd(a[2 * i + 1]);
        b[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
    }
    for (int i = 0; i < 2; i++)
        c[i] = _mm512_add_ps(_mm512_shuffle_f32x4(b[2 * i], b[2 * i + 1], 0x88),
                             _mm512_shuffle_f32x4(b[2 * i], b[2 * i + 1], 0xdd));
    return _mm512_add_ps(_mm512_shuffle_f32x4(c[0], c[1], 0x88), _mm512_shuffle_f32x4(c[0], c[1], 0xdd));
}

/* Where tokens t to t + count - 1 of a row lie; places behind its last token n - 1 repeat that one. */
static inline void tokens_at(const elem *cache, const int32_t *table, long t, long count, long n, long block_size,
                             long size, const elem **at) {
    const long last = n - 1;
    long from = t < n ? t : last, block = from / block_size, offset = from % block_size;
    for (long u = 0; u < count; u++) {
        at[u] = cache + (table[block] * block_size + offset) * size;
        if (t + u < last && ++offset == block_size) offset = 0, block++;
    }
}

/* -- decode ---------------------------------------------------------------------------------------
   One new token of a row: its heads that use key heads first to last - 1. scores: [heads, stride] of scratch.
   Memory is what this waits for, and each request for it takes as long as the work on a hundred tokens: while a tile is
   computed, the next one is asked for, a head at a time, so that requests and work overlap evenly. Behind the last tile
   comes `after`: the first of the row that this thread is likely to take next. */
static void decode_row(const elem *query, const elem *keys, const elem *values, const int32_t *table, long n, long first,
                       long last, long kv_heads, long block_size, float scale, float *scores, long stride, elem *result,
                       const elem **after) {
    const long size = kv_heads * HEAD_DIM;
    const elem *at[TILE], *next[TILE];
    float sum[kv_heads * GROUP], out[kv_heads * GROUP][HEAD_DIM];

    tokens_at(keys, table, 0, TILE, n, block_size, size, next);
    for (long t = 0; t < n; t += TILE) {
        memcpy(at, next, sizeof at);
        if (t + TILE < n) tokens_at(keys, table, t + TILE, TILE, n, block_size, size, next);
        else tokens_at(values, table, 0, TILE, n, block_size, size, next);
        const __mmask16 real = n - t < TILE ? (1u << (n - t)) - 1 : 0xffff;
        for (long h = first; h < last; h++)
            for (int j = 0; j < GROUP; j++) {
                const elem *q = query + (h * GROUP + j) * HEAD_DIM;
                __m512 dot[TILE];
                for (int u = 0; u < TILE; u++) {
                    if (u % GROUP == j) fetch(next[u] + h * HEAD_DIM);
                    dot[u] = _mm512_setzero_ps();
                    for (int c = 0; c < HEAD_DIM; c += 32)
                        dot[u] = _mm512_dpbf16_ps(dot[u], pairs(q + c), pairs(at[u] + h * HEAD_DIM + c));
                }
                __m512 s = _mm512_mask_mul_ps(_mm512_set1_ps(-INFINITY), real, sums(dot), _mm512_set1_ps(scale));
                _mm512_storeu_ps(scores + (h * GROUP + j) * stride + t, s);
            }
    }
    for (long g = first * GROUP; g < last * GROUP; g++) { /* softmax; the division by the sum comes last */
        float *s = scores + g * stride;
        __m512 top = _mm512_loadu_ps(s), total = _mm512_setzero_ps();
        for (long t = TILE; t < n; t += TILE) top = _mm512_max_ps(top, _mm512_loadu_ps(s + t));
        top = _mm512_set1_ps(_mm512_reduce_max_ps(top));
        for (long t = 0; t < n; t += TILE) {
            const __mmask16 real = n - t < TILE ? (1u << (n - t)) - 1 : 0xffff;
            __m512 e = _mm512_maskz_mov_ps(real, exps(_mm512_sub_ps(_mm512_loadu_ps(s + t), top)));
            total = _mm512_add_ps(total, e);
            _mm512_storeu_ps(s + t, e);
        }
        sum[g] = _mm512_reduce_add_ps(total);
    }
    memset(out[first * GROUP], 0, (last - first) * GROUP * sizeof out[0]);
    const __m512i upper = _mm512_set1_epi32(0xffff0000);
    for (long t = 0; t < n; t += TILE) {
        memcpy(at, next, sizeof at);
        if (t + TILE < n) tokens_at(values, table, t + TILE, TILE, n, block_size, size, next);
        else memcpy(next, after, sizeof next);
        for (long h = first; h < last; h++)
            for (int part = 0; part < HEAD_DIM; part += 64) {
                __m512 acc[GROUP][4];
                for (int j = 0; j < GROUP; j++)
                    for (int c = 0; c < 4; c++) acc[j][c] = _mm512_loadu_ps(out[h * GROUP + j] + part + c * LANES);
                for (int u = 0; u < TILE; u++) {
                    if (!part) fetch(next[u] + h * HEAD_DIM);
                    for (int c = 0; c < 2; c++) { /* bfloat16 to float without a shuffle: even numbers, then odd ones */
                        __m512i x = _mm512_loadu_si512(at[u] + h * HEAD_DIM + part + c * 32);
                        __m512 even = _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
                        __m512 odd = _mm512_castsi512_ps(_mm512_and_si512(x, upper));
                        for (int j = 0; j < GROUP; j++) {
                            __m512 p = _mm512_set1_ps(scores[(h * GROUP + j) * stride + t + u]);
                            acc[j][2 * c] = _mm512_fmadd_ps(p, even, acc[j][2 * c]);
                            acc[j][2 * c + 1] = _mm512_fmadd_ps(p, odd, acc[j][2 * c + 1]);
                        }
                    }
                }
                for (int j = 0; j < GROUP; j++)
                    for (int c = 0; c < 4; c++) _mm512_storeu_ps(out[h * GROUP + j] + part + c * LANES, acc[j][c]);
            }
    }
    for (long g = first * GROUP; g < last * GROUP; g++)
        for (int c = 0; c < HEAD_DIM; c += 32)
            for (int e = 0; e < LANES; e++) {
                result[g * HEAD_DIM + c + 2 * e] = store(out[g][c + e] / sum[g]);
                result[g * HEAD_DIM + c + 2 * e + 1] = store(out[g][c + LANES + e] / sum[g]);
            }
}

/* As in fast_cpu.c. One thread takes a whole row, because a row's blocks are then read from end to end; where there are
   too few rows to share out, one key head of a row. */
static void paged_decode(const Step *s, const elem *qkv, const elem *keys, const elem *values) {
    const long kv_heads = s->kv_heads, threads = team(s, s->decodes * s->stride * kv_heads * HEAD_DIM);
    const long parts = s->decodes < 2 * threads ? kv_heads : 1, heads = kv_heads / parts, all = kv_heads * GROUP;
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
    for (long item = 0; item < s->decodes * parts; item++) {
        const long i = item / parts, first = item % parts * heads, soon = i + threads < s->decodes ? i + threads : i;
        const elem *after[TILE];
        tokens_at(keys, s->tables + soon * s->width, 0, TILE, s->lens[soon], s->block_size, kv_heads * HEAD_DIM, after);
        decode_row(qkv + i * (all + 2 * kv_heads) * HEAD_DIM, keys, values, s->tables + i * s->width, s->lens[i], first,
                   first + heads, kv_heads, s->block_size, s->scale, s->scores + i * all * s->stride, s->stride,
                   s->attended + i * all * HEAD_DIM, after);
    }
}

#include "fast_cpu_prefill.c"
#endif
