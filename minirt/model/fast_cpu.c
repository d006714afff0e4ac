/* What a decode step does between its matrix products, in C: four small kernels that fast_cpu.py compiles.

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

/* x += delta (unless NULL), out = x / rms(x) * weight. x, delta, out: [rows, width]. */
void add_rms_norm(elem *x, const elem *delta, const elem *weight, elem *out, long rows, long width, float eps,
                  int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (long i = 0; i < rows; i++) {
        elem *row = x + i * width;
        if (delta)
            for (long c = 0; c < width; c++) row[c] = store(load(row[c]) + load(delta[i * width + c]));
        float sum = 0.0f;
        for (long c = 0; c < width; c++) sum += load(row[c]) * load(row[c]);
        float scale = 1.0f / sqrtf(sum / width + eps);
        for (long c = 0; c < width; c++) out[i * width + c] = store(load(store(load(row[c]) * scale)) * load(weight[c]));
    }
}

/* out = silu(gate) * up. gate_up: [rows, 2 * width], gate first; out: [rows, width]. */
void silu_mul(const elem *gate_up, elem *out, long rows, long width, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (long i = 0; i < rows; i++) {
        const elem *gate = gate_up + i * 2 * width, *up = gate + width;
        for (long c = 0; c < width; c++) {
            float g = load(gate[c]);
            out[i * width + c] = store(load(store(g / (1.0f + exp_(-g)))) * load(up[c]));
        }
    }
}

/* RoPE on the query and key heads of qkv, in place, then K and V into the cache.
   qkv: [rows, heads + 2 * kv_heads, HEAD_DIM]; cos, sin: [rows, HEAD_DIM / 2]; slots: [rows], the place of each row in
   keys and values [places, kv_heads, HEAD_DIM], or -1 for padding, which is stored nowhere. */
void rope_store(elem *qkv, const float *cos, const float *sin, const int64_t *slots, elem *keys, elem *values,
                long rows, long heads, long kv_heads, int threads) {
    const long half = HEAD_DIM / 2, size = kv_heads * HEAD_DIM;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (long i = 0; i < rows; i++) {
        elem *row = qkv + i * (heads + 2 * kv_heads) * HEAD_DIM, *k = row + heads * HEAD_DIM;
        for (long h = 0; h < heads + kv_heads; h++) {
            elem *x = row + h * HEAD_DIM;
            for (long c = 0; c < half; c++) {
                float a = load(x[c]), b = load(x[c + half]), co = cos[i * half + c], si = sin[i * half + c];
                x[c] = store(a * co - b * si);
                x[c + half] = store(b * co + a * si);
            }
        }
        if (slots[i] >= 0) {
            memcpy(keys + slots[i] * size, k, size * sizeof(elem));
            memcpy(values + slots[i] * size, k + size, size * sizeof(elem));
        }
    }
}

/* Where head h of a row's token t lies. A block holds block_size tokens of kv_heads * HEAD_DIM numbers. */
#define AT(cache, t) (cache + (table[(t) / block_size] * block_size + (t) % block_size) * kv_heads * HEAD_DIM + h * HEAD_DIM)

/* Blocks lie anywhere, so the processor can't guess which memory comes next: ask for it one block ahead. */
static inline void fetch(const elem *head) {
    for (int c = 0; c < HEAD_DIM; c += 64 / sizeof(elem)) __builtin_prefetch(head + c);
}

/* Attention of one new token a row over its paged context, read where it lies (Kwon et al., 2023).
   qkv: as above, RoPE applied. keys, values: [blocks, block_size, kv_heads, HEAD_DIM]. tables: [rows, width] block ids.
   lens: [rows] tokens in the cache, the new one included. scores: [rows * kv_heads, GROUP, longest] floats of
   scratch. out: [rows, kv_heads * GROUP, HEAD_DIM]. */
void paged_decode(const elem *qkv, const elem *keys, const elem *values, const int32_t *tables, const int32_t *lens,
                  float *scores, elem *out, long rows, long kv_heads, long block_size, long width, long longest,
                  float scale, int threads) {
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
    for (long item = 0; item < rows * kv_heads; item++) {
        const long i = item / kv_heads, h = item % kv_heads, n = lens[i];
        const int32_t *table = tables + i * width;
        const elem *query = qkv + (i * kv_heads * (GROUP + 2) + h * GROUP) * HEAD_DIM;
        elem *result = out + item * GROUP * HEAD_DIM;
        float *score = scores + item * GROUP * longest;
        float q[GROUP][HEAD_DIM], sum[GROUP], acc[GROUP][HEAD_DIM];
        for (int j = 0; j < GROUP; j++)
            for (int c = 0; c < HEAD_DIM; c++) q[j][c] = load(query[j * HEAD_DIM + c]) * scale;

        for (long t = 0; t < n; t++) { /* each key is read once for all heads of the group */
            const elem *k = AT(keys, t);
            if (t + block_size < n) fetch(AT(keys, t + block_size));
            for (int j = 0; j < GROUP; j++) {
                float dot = 0.0f;
                for (int c = 0; c < HEAD_DIM; c++) dot += q[j][c] * load(k[c]);
                score[j * longest + t] = dot;
            }
        }
        for (int j = 0; j < GROUP; j++) { /* softmax; the division by the sum comes last */
            float *s = score + j * longest, top = s[0];
            for (long t = 1; t < n; t++) top = s[t] > top ? s[t] : top;
            sum[j] = 0.0f;
            for (long t = 0; t < n; t++) s[t] = exp_(s[t] - top), sum[j] += s[t];
        }
        memset(acc, 0, sizeof acc);
        for (long t = 0; t < n; t++) {
            const elem *v = AT(values, t);
            if (t + block_size < n) fetch(AT(values, t + block_size));
            for (int j = 0; j < GROUP; j++)
                for (int c = 0; c < HEAD_DIM; c++) acc[j][c] += score[j * longest + t] * load(v[c]);
        }
        for (int j = 0; j < GROUP; j++)
            for (int c = 0; c < HEAD_DIM; c++) result[j * HEAD_DIM + c] = store(acc[j][c] / sum[j]);
    }
}
