/* Attention of whole prompts, in blocks that stay in the processor's cache (Dao et al., 2022, FlashAttention).

   Included by fast_cpu_avx512.c, whose product() does all the multiplying: scores are queries times keys, results are
   weights times values. Keys and values are brought once into the order in which it reads its right side. */

/* KEYS, 64: tokens of a block of keys, four registers of scores. */
#define QUERIES 48  /* queries of a block; a multiple of SIDE */

/* KEYS tokens of one head in the order in which product() reads them. keys: [HEAD_DIM / 2][KEYS] pairs of dimensions;
   values: [HEAD_DIM / 64][KEYS / 2][64] pairs of tokens. */
static void pack_block(const elem **k, const elem **v, elem *keys, elem *values) {
    for (int t = 0; t < KEYS; t++)
        for (int c = 0; c < HEAD_DIM / 2; c++) memcpy(keys + (c * KEYS + t) * 2, k[t] + 2 * c, 4);
    for (int part = 0; part < HEAD_DIM; part += 64)
        for (int t = 0; t < KEYS; t += 2)
            for (int c = 0; c < 64; c++) {
                elem *to = values + (part * KEYS / 2 + t / 2 * 64 + c) * 2;
                to[0] = v[t][part + c], to[1] = v[t + 1][part + c];
            }
}

/* Up to QUERIES queries of one head, the first at position `at`, over packed blocks. q, out: a row every `row` numbers. */
static void attend_block(const elem *q, const elem *keys, const elem *values, elem *out, long count, long at, long q_row,
                         long out_row, float scale) {
    elem query[QUERIES][HEAD_DIM], p[SIDE][KEYS];
    float acc[HEAD_DIM / 64][QUERIES][64], s[SIDE][KEYS], top[QUERIES], sum[QUERIES];
    memset(query, 0, sizeof query), memset(acc, 0, sizeof acc);
    for (int i = 0; i < QUERIES; i++) top[i] = -INFINITY, sum[i] = 0.0f;
    for (long i = 0; i < count; i++) memcpy(query[i], q + i * q_row, HEAD_DIM * sizeof(elem));
    for (long t = 0; t < at + count; t += KEYS) {
        const elem *kb = keys + t * HEAD_DIM, *vb = values + t * HEAD_DIM;
        for (long i = 0; i < count; i += SIDE) {
            const elem *left[SIDE], *weights[SIDE];
            for (int r = 0; r < SIDE; r++) left[r] = query[i + r], weights[r] = p[r];
            product(left, kb, HEAD_DIM / 2, s[0], 0, 0);
            for (int r = 0; r < SIDE; r++) {
                const long seen = at + i + r + 1 - t; /* of this block, by this query */
                __m512 x[4], most = _mm512_set1_ps(top[i + r]), total = _mm512_setzero_ps();
                __mmask16 real[4];
                for (int j = 0; j < 4; j++) {
                    const long left = seen - j * LANES;
                    real[j] = left >= LANES ? 0xffff : left <= 0 ? 0 : (1u << left) - 1;
                    x[j] = _mm512_mask_mul_ps(_mm512_set1_ps(-INFINITY), real[j], _mm512_loadu_ps(s[r] + j * LANES),
                                              _mm512_set1_ps(scale));
                    most = _mm512_max_ps(most, x[j]);
                }
                const float before = top[i + r], now = _mm512_reduce_max_ps(most);
                for (int j = 0; j < 4; j++) {
                    x[j] = _mm512_maskz_mov_ps(real[j], exps(_mm512_sub_ps(x[j], _mm512_set1_ps(now))));
                    total = _mm512_add_ps(total, x[j]);
                    _mm256_storeu_si256((__m256i *)(p[r] + j * LANES), rounded(x[j]));
                }
                if (now > before) { /* what was summed under a smaller maximum is worth less */
                    const __m512 less = exps(_mm512_set1_ps(before - now));
                    top[i + r] = now, sum[i + r] *= _mm512_cvtss_f32(less);
                    for (int part = 0; part < HEAD_DIM / 64; part++)
                        for (int c = 0; c < 64; c += LANES) {
                            float *a = acc[part][i + r] + c;
                            _mm512_storeu_ps(a, _mm512_mul_ps(_mm512_loadu_ps(a), less));
                        }
                }
                sum[i + r] += _mm512_reduce_add_ps(total);
            }
            for (int part = 0; part < HEAD_DIM / 64; part++)
                product(weights, vb + part * KEYS * 64, KEYS / 2, acc[part][i], 1, 0);
        }
    }
    for (long i = 0; i < count; i++)
        for (int c = 0; c < HEAD_DIM; c++) out[i * out_row + c] = store(acc[c / 64][i][c % 64] / sum[i]);
}

/* Attention of `rows` tokens of one prompt over all that is in the cache up to each: rows first to first + rows - 1 of the
   forward, of which the first is at position `start`. Called after attend(). table: the prompt's block ids.
   packed: scratch of 2 * kv_heads * HEAD_DIM * (start + rows, rounded up to KEYS) numbers. */
void paged_prefill(const Step *s, const elem *qkv, long layer, long first, long rows, long start, const int32_t *table,
                   elem *packed) {
    const elem *keys = s->keys + layer * s->layer_size, *values = s->values + layer * s->layer_size;
    const long kv_heads = s->kv_heads, block_size = s->block_size;
    const long n = start + rows, blocks = (n + KEYS - 1) / KEYS, head = blocks * KEYS * HEAD_DIM;
    const long heads = kv_heads * GROUP, parts = (rows + QUERIES - 1) / QUERIES;
    const long threads = team(s, rows * n * heads);
    elem *out = s->attended + first * heads * HEAD_DIM;
    qkv += first * (heads + 2 * kv_heads) * HEAD_DIM;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (long item = 0; item < blocks * kv_heads; item++) {
        const long b = item / kv_heads, h = item % kv_heads;
        const elem *k[KEYS], *v[KEYS];
        tokens_at(keys + h * HEAD_DIM, table, b * KEYS, KEYS, n, block_size, kv_heads * HEAD_DIM, k);
        tokens_at(values + h * HEAD_DIM, table, b * KEYS, KEYS, n, block_size, kv_heads * HEAD_DIM, v);
        pack_block(k, v, packed + 2 * h * head + b * KEYS * HEAD_DIM, packed + (2 * h + 1) * head + b * KEYS * HEAD_DIM);
    }
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
    for (long item = parts * heads - 1; item >= 0; item--) { /* the last queries see most: first, so that none ends late */
        const long i = item / heads * QUERIES, g = item % heads, count = rows - i < QUERIES ? rows - i : QUERIES;
        const elem *kv = packed + 2 * (g / GROUP) * head;
        attend_block(qkv + (i * (heads + 2 * kv_heads) + g) * HEAD_DIM, kv, kv + head, out + (i * heads + g) * HEAD_DIM,
                     count, start + i, (heads + 2 * kv_heads) * HEAD_DIM, heads * HEAD_DIM, s->scale);
    }
}
