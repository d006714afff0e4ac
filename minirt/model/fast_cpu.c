/* What a step does beside its matrix products, in C: small kernels that fast_cpu.py compiles.

   Why: with one token a row these parts are a few kilobytes each. As torch operations they cost more in calls and
   temporaries than in arithmetic, and torch has no attention that reads a paged cache where it lies.
   HEAD_DIM, GROUP (query heads that share a key head) and the storage type are fixed when this is compiled, so that
   the compiler can unroll the inner loops and keep a head in registers. All arithmetic is in float.

   Rows are split over `threads` OpenMP threads (torch's own pool, see fast_cpu.py), or done by one without OpenMP. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef BF16
typedef uint16_t elem; /* bfloat16: the upper half of a float */
static inline float load(elem x) {
    uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}
static inline elem store(float f) { /* to the nearest, ties to even, as torch rounds */
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return (elem)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
#else
typedef float elem;
static inline float load(elem x) { return x; }
static inline elem store(float f) { return f; }
#endif

/* exp(x) for x in float's range, to about one unit in the last place: 2^n times a polynomial (Cephes' expf).
   Written out because the compiler can run it over many numbers at once; a call of expf it can not. */
static inline float exp_(float x) {
    x = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
    float n = floorf(x * 1.44269504f + 0.5f);
    float r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    uint32_t bits = (uint32_t)((int32_t)n + 127) << 23;
    float scale;
    memcpy(&scale, &bits, 4);
    return p * scale;
}

/* One forward: where its arrays lie and how large they are, the same for every layer. Step in fast_cpu.py is this
   structure field by field. One pointer to it, instead of a dozen arguments, makes a call from Python cheap. */
typedef struct {
    elem *x, *normed, *attended, *active;      /* [rows, hidden], the same, [rows, heads * HEAD_DIM], [rows, inner] */
    elem *keys, *values;                       /* of layer 0: [blocks, block_size, kv_heads, HEAD_DIM] */
    const float *cos, *sin;                    /* [rows, HEAD_DIM / 2] */
    const int64_t *places;                     /* [rows], where a row's key and value go, or -1 for padding */
    const int32_t *tables, *lens;              /* [decodes, width] block ids; [decodes] tokens, the new one included */
    float *scores;                             /* [decodes * heads, stride] of scratch */
    long rows, decodes, hidden, inner, kv_heads, block_size, width, stride, layer_size; /* layer_size: of keys, in numbers */
    float eps, scale;
    int threads;
} Step;

#define FEW (1 << 14) /* numbers that one thread is through with before a second one has started */
static inline int team(const Step *s, long numbers) { return numbers < FEW ? 1 : s->threads; }

/* Blocks lie anywhere, so the processor can't guess which memory comes next: ask for it ahead. */
static inline void fetch(const elem *head) {
    for (int c = 0; c < HEAD_DIM; c += 64 / sizeof(elem)) __builtin_prefetch(head + c);
}

#if defined(BF16) && defined(__AVX512BF16__) && defined(__AVX512BW__)
#define WIDE
#include "fast_cpu_avx512.c"
#endif

/* x += delta (unless NULL), normed = x / rms(x) * weight. delta: [rows, hidden]. */
void add_rms_norm(const Step *s, const elem *delta, const elem *weight) {
    const long width = s->hidden, threads = team(s, s->rows * width);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (long i = 0; i < s->rows; i++) {
        elem *row = s->x + i * width, *out = s->normed + i * width;
        if (delta)
            for (long c = 0; c < width; c++) row[c] = store(load(row[c]) + load(delta[i * width + c]));
        float sum = 0.0f;
        for (long c = 0; c < width; c++) sum += load(row[c]) * load(row[c]);
        float scale = 1.0f / sqrtf(sum / width + s->eps);
        for (long c = 0; c < width; c++) out[c] = store(load(store(load(row[c]) * scale)) * load(weight[c]));
    }
}

#ifndef WIDE
static void silu_row(const elem *gate, const elem *up, elem *out, long width) {
    for (long c = 0; c < width; c++) {
        float g = load(gate[c]);
        out[c] = store(load(store(g / (1.0f + exp_(-g)))) * load(up[c]));
    }
}
#endif

/* active = silu(gate) * up. gate_up: [rows, 2 * inner], gate first. */
void silu_mul(const Step *s, const elem *gate_up) {
    const long width = s->inner, threads = team(s, s->rows * width);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (long i = 0; i < s->rows; i++)
        silu_row(gate_up + i * 2 * width, gate_up + (i * 2 + 1) * width, s->active + i * width, width);
}

/* RoPE on the query and key heads of qkv, in place, then K and V to their places in the layer's cache.
   qkv: [rows, heads + 2 * kv_heads, HEAD_DIM]. */
static void rope_store(const Step *s, elem *qkv, elem *keys, elem *values) {
    const long kv_heads = s->kv_heads, heads = kv_heads * GROUP, threads = team(s, s->rows * (heads + 2 * kv_heads) * HEAD_DIM);
    const float *cos = s->cos, *sin = s->sin;
    const int64_t *places = s->places;
    const long half = HEAD_DIM / 2, size = kv_heads * HEAD_DIM;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (long i = 0; i < s->rows; i++) {
        elem *row = qkv + i * (heads + 2 * kv_heads) * HEAD_DIM, *k = row + heads * HEAD_DIM;
        for (long h = 0; h < heads + kv_heads; h++) {
            elem *x = row + h * HEAD_DIM;
            for (long c = 0; c < half; c++) {
                float a = load(x[c]), b = load(x[c + half]), co = cos[i * half + c], si = sin[i * half + c];
                x[c] = store(a * co - b * si);
                x[c + half] = store(b * co + a * si);
            }
        }
        if (places[i] >= 0) {
            memcpy(keys + places[i] * size, k, size * sizeof(elem));
            memcpy(values + places[i] * size, k + size, size * sizeof(elem));
        }
    }
}

/* bfloat16's bits as a whole number that stands in the numbers' order: sign and size become a signed number. */
static inline int16_t in_order(int16_t bits) { return bits < 0 ? -(bits & 0x7fff) : bits; }

#define INFINITE 0x7f80 /* the bits of infinity; a larger size is NaN */

/* The first largest of each row of bfloat16 numbers, or its first NaN. bits: [rows, width]; out: [rows]. */
void first_largest(const int16_t *bits, int64_t *out, long rows, long width, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (long i = 0; i < rows; i++) {
        const int16_t *row = bits + i * width;
        long where = 0;
        int16_t top = INT16_MIN, widest = 0;
        for (long c = 0; c < width; c += 1024) { /* a part at a time: which part is quick to tell, then where in it */
            const long end = c + 1024 < width ? c + 1024 : width;
            int16_t most = INT16_MIN;
            for (long x = c; x < end; x++) {
                const int16_t size = row[x] & 0x7fff;
                most = in_order(row[x]) > most ? in_order(row[x]) : most;
                widest = size > widest ? size : widest;
            }
            if (most > top) top = most, where = c;
        }
        if (widest > INFINITE)
            for (where = 0; (row[where] & 0x7fff) <= INFINITE;) where++;
        else
            while (in_order(row[where]) != top) where++;
        out[i] = where;
    }
}

#ifndef WIDE_ATTENTION

/* Where head h of a row's token t lies. A block holds block_size tokens of kv_heads * HEAD_DIM numbers. */
#define AT(cache, t) (cache + (table[(t) / block_size] * block_size + (t) % block_size) * kv_heads * HEAD_DIM + h * HEAD_DIM)

/* Attention of one new token a row over its paged context, read where it lies (Kwon et al., 2023). qkv: as above, RoPE
   applied. */
static void paged_decode(const Step *s, const elem *qkv, const elem *keys, const elem *values) {
    const long kv_heads = s->kv_heads, block_size = s->block_size, stride = s->stride;
    const long threads = team(s, s->decodes * stride * kv_heads * HEAD_DIM);
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
    for (long item = 0; item < s->decodes * kv_heads; item++) {
        const long i = item / kv_heads, h = item % kv_heads, n = s->lens[i];
        const int32_t *table = s->tables + i * s->width;
        const elem *query = qkv + (i * kv_heads * (GROUP + 2) + h * GROUP) * HEAD_DIM;
        elem *result = s->attended + item * GROUP * HEAD_DIM;
        float *score = s->scores + item * GROUP * stride;
        float q[GROUP][HEAD_DIM], sum[GROUP], acc[GROUP][HEAD_DIM];
        for (int j = 0; j < GROUP; j++)
            for (int c = 0; c < HEAD_DIM; c++) q[j][c] = load(query[j * HEAD_DIM + c]) * s->scale;

        for (long t = 0; t < n; t++) { /* each key is read once for all heads of the group */
            const elem *k = AT(keys, t);
            if (t + block_size < n) fetch(AT(keys, t + block_size));
            for (int j = 0; j < GROUP; j++) {
                float dot = 0.0f;
                for (int c = 0; c < HEAD_DIM; c++) dot += q[j][c] * load(k[c]);
                score[j * stride + t] = dot;
            }
        }
        for (int j = 0; j < GROUP; j++) { /* softmax; the division by the sum comes last */
            float *p = score + j * stride, top = p[0];
            for (long t = 1; t < n; t++) top = p[t] > top ? p[t] : top;
            sum[j] = 0.0f;
            for (long t = 0; t < n; t++) p[t] = exp_(p[t] - top), sum[j] += p[t];
        }
        memset(acc, 0, sizeof acc);
        for (long t = 0; t < n; t++) {
            const elem *v = AT(values, t);
            if (t + block_size < n) fetch(AT(values, t + block_size));
            for (int j = 0; j < GROUP; j++)
                for (int c = 0; c < HEAD_DIM; c++) acc[j][c] += score[j * stride + t] * load(v[c]);
        }
        for (int j = 0; j < GROUP; j++)
            for (int c = 0; c < HEAD_DIM; c++) result[j * HEAD_DIM + c] = store(acc[j][c] / sum[j]);
    }
}
#endif

/* What lies between the query, key and value product and the next one: RoPE, K and V into the cache, and attention of the
   rows that decode. Those of prompts come from paged_prefill, or from torch. */
void attend(const Step *s, elem *qkv, long layer) {
    elem *keys = s->keys + layer * s->layer_size, *values = s->values + layer * s->layer_size;
    rope_store(s, qkv, keys, values);
    if (s->decodes) paged_decode(s, qkv, keys, values);
}
