// Paged attention over fixed splits of KV: one split × every query that sees it, then an ordered merge.
// The contract is in attention.py. A query is one (row, query head); its partial result over a split is
//   m = max score,  l = Σ exp(score − m),  o = Σ exp(score − m) · v        (tokens in order, one FMA each)
// and comes out of the same instructions whether the split is read for it alone or for many.
#include "attention.h"

#include <type_traits>

#include "simd.h"

namespace {

constexpr int BLOCK = 6;        // queries in registers at once: BLOCK × 4 accumulators, 4 loads, 1 broadcast
constexpr int64_t CHUNK = 64;   // tokens whose keys, and whose values, stay in the first-level cache
constexpr int64_t QUERIES = 48;  // that read a chunk one block after another; a multiple of BLOCK

struct Shape {
    int64_t q_heads, kv_heads, head_dim, padded_dim, split;
};

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define HAVE_SHUFFLE 1
#endif
#endif

#ifdef HAVE_SHUFFLE
#define EXCHANGE(S, LOW, HIGH)                                    \
    for (int i = 0; i < LANES; i++)                               \
        if (!(i & S)) {                                           \
            vf a = r[i], b = r[i + S];                            \
            r[i] = __builtin_shufflevector(a, b, LOW);            \
            r[i + S] = __builtin_shufflevector(a, b, HIGH);       \
        }
#define LOW1 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30
#define HIGH1 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31
#define LOW2 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29
#define HIGH2 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31
#define LOW4 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27
#define HIGH4 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31
#define LOW8 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23
#define HIGH8 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31

// [16 tokens][16 dims] → [16 dims][16 tokens], in registers.
inline void transpose_tile(const float* const* rows, int64_t count, int64_t dim, float* out, int64_t stride) {
    vf r[LANES];
    for (int i = 0; i < LANES; i++) r[i] = i < count ? load(rows[i] + dim) : splat(0.0f);
    EXCHANGE(1, LOW1, HIGH1)
    EXCHANGE(2, LOW2, HIGH2)
    EXCHANGE(4, LOW4, HIGH4)
    EXCHANGE(8, LOW8, HIGH8)
    for (int i = 0; i < LANES; i++) store(out + i * stride, r[i]);
}
#endif

inline void prefetch(const float* from, int64_t floats) {
    for (int64_t i = 0; i < floats; i += 16) __builtin_prefetch(from + i, 0, 2);
}

// Keys of one split and head to [chunks][head_dim][CHUNK]; columns past `count` up to the vector's end are zero, so
// that a free slot is never read. A head's rows lie a token apart, which hides them from the processor's own
// prefetching: the keys ahead and the values that are needed next are asked for by hand.
void transpose_keys(const float* const* keys, const float* const* values, int64_t count, const Shape& s, float* out) {
    for (int64_t t = 0; t < count; t += LANES) {
        for (int64_t i = t; i < t + LANES && i < count; i++) {
            if (i + 2 * LANES < count) prefetch(keys[i + 2 * LANES], s.head_dim);
            prefetch(values[i], s.head_dim);
        }
        const int64_t here = count - t < LANES ? count - t : LANES;
        float* to = out + t / CHUNK * CHUNK * s.head_dim + t % CHUNK;
        int64_t d = 0;
#ifdef HAVE_SHUFFLE
        for (; d + LANES <= s.head_dim; d += LANES) transpose_tile(keys + t, here, d, to + d * CHUNK, CHUNK);
#endif
        for (; d < s.head_dim; d++)
            for (int i = 0; i < LANES; i++) to[d * CHUNK + i] = i < here ? keys[t + i][d] : 0.0f;
    }
}

// scores[query][t .. t + NV·16) = Σ_d q[query][d] · k[d][t …] of a chunk.
template <int NQ, int NV>
inline void score_tile(const float* q, const float* kt, const Shape& s, int64_t t, float* scores) {
    vf acc[NQ][NV];
#pragma GCC unroll 8
    for (int j = 0; j < NQ; j++)
#pragma GCC unroll 8
        for (int v = 0; v < NV; v++) acc[j][v] = splat(0.0f);
    for (int64_t d = 0; d < s.head_dim; d++) {
        vf k[NV];
#pragma GCC unroll 8
        for (int v = 0; v < NV; v++) k[v] = load(kt + d * CHUNK + t + v * LANES);
#pragma GCC unroll 8
        for (int j = 0; j < NQ; j++) {
            vf x = splat(q[j * s.head_dim + d]);
#pragma GCC unroll 8
            for (int v = 0; v < NV; v++) acc[j][v] = x * k[v] + acc[j][v];
        }
    }
#pragma GCC unroll 8
    for (int j = 0; j < NQ; j++)
#pragma GCC unroll 8
        for (int v = 0; v < NV; v++) store(scores + j * s.split + t + v * LANES, acc[j][v]);
}

template <int NQ>
void score_chunk(const float* q, const float* kt, const Shape& s, int64_t count, float* scores) {
    if (count == CHUNK) return score_tile<NQ, CHUNK / LANES>(q, kt, s, 0, scores);
    for (int64_t t = 0; t < count; t += LANES) score_tile<NQ, 1>(q, kt, s, t, scores);
}

// out[query] += Σ_{t in [begin, end)} p[query][t] · v[t], one token after another.
template <int NQ, int NV>
inline void weigh_tile(const float* p, const float* const* values, const Shape& s, int64_t d, int64_t begin,
                       int64_t end, float* const* out) {
    vf sum[NQ][NV];
#pragma GCC unroll 8
    for (int j = 0; j < NQ; j++)
#pragma GCC unroll 8
        for (int v = 0; v < NV; v++) sum[j][v] = begin ? load(out[j] + d + v * LANES) : splat(0.0f);
    for (int64_t t = begin; t < end; t++) {
        vf x[NV];
#pragma GCC unroll 8
        for (int v = 0; v < NV; v++) x[v] = load(values[t] + d + v * LANES);
#pragma GCC unroll 8
        for (int j = 0; j < NQ; j++) {
            vf w = splat(p[j * s.split + t]);
#pragma GCC unroll 8
            for (int v = 0; v < NV; v++) sum[j][v] = w * x[v] + sum[j][v];
        }
    }
#pragma GCC unroll 8
    for (int j = 0; j < NQ; j++)
#pragma GCC unroll 8
        for (int v = 0; v < NV; v++) store(out[j] + d + v * LANES, sum[j][v]);
}

template <int NQ>
void weigh_range(const float* p, const float* const* values, const Shape& s, int64_t begin, int64_t end,
                 float* const* out) {
    if (begin >= end) return;
    int64_t d = 0;
    for (; d + 4 * LANES <= s.padded_dim; d += 4 * LANES) weigh_tile<NQ, 4>(p, values, s, d, begin, end, out);
    for (; d < s.padded_dim; d += LANES) weigh_tile<NQ, 1>(p, values, s, d, begin, end, out);
}

inline int64_t at_most(int64_t x, int64_t most) { return x < most ? x : most; }

// The tokens [begin, end) of a chunk that all of the block see together, then for each query what it sees beyond.
template <int NQ>
void weigh_chunk(const float* p, const float* const* values, const Shape& s, int64_t begin, int64_t end,
                 const int32_t* counts, float* const* out) {
    int64_t shortest = end;
    for (int j = 0; j < NQ; j++) shortest = at_most(shortest, counts[j]);
    if (shortest < begin) shortest = begin;
    weigh_range<NQ>(p, values, s, begin, shortest, out);
    for (int j = 0; j < NQ; j++)
        weigh_range<1>(p + j * s.split, values, s, shortest, at_most(end, counts[j]), out + j);
}

template <class F>
inline void with_block(int64_t n, F&& f) {
    switch (n) {
        case 1: return f(std::integral_constant<int, 1>());
        case 2: return f(std::integral_constant<int, 2>());
        case 3: return f(std::integral_constant<int, 3>());
        case 4: return f(std::integral_constant<int, 4>());
        case 5: return f(std::integral_constant<int, 5>());
        default: return f(std::integral_constant<int, BLOCK>());
    }
}

// Scores of one query to weights, in place: returns {max, sum of weights}. Lanes past `count` become zero.
struct MaxSum { float max, sum; };

MaxSum soften(float* scores, int64_t count) {
    const vf lowest = splat(-INFINITY);
    vf top = lowest;
    for (int64_t t = 0; t < count; t += LANES) {
        vf seen = LANE_INDEX < splat((int32_t)(count - t)) ? load(scores + t) : lowest;
        top = vmax(seen, top);
    }
    float max = max_lanes(top);
    vf sum = splat(0.0f);
    for (int64_t t = 0; t < count; t += LANES) {
        vf weight = vexp(load(scores + t) - max);
        weight = LANE_INDEX < splat((int32_t)(count - t)) ? weight : splat(0.0f);
        store(scores + t, weight);
        sum = sum + weight;
    }
    return {max, sum_lanes(sum)};
}

// Up to QUERIES queries over the tokens of one split: query j sees the first counts[j], at least one.
void attend_queries(int64_t n, const float* q, const float* kt, const float* const* values, const Shape& s,
                    const int32_t* counts, float* scores, float* const* out, MaxSum* stats) {
    int64_t longest = 0;
    for (int64_t j = 0; j < n; j++) longest = counts[j] > longest ? counts[j] : longest;
    for (int64_t begin = 0; begin < longest; begin += CHUNK)
        for (int64_t j = 0; j < n; j += BLOCK)
            with_block(n - j, [&](auto block) {
                int64_t most = 0;
                for (int i = 0; i < block; i++) most = counts[j + i] > most ? counts[j + i] : most;
                if (most > begin)
                    score_chunk<block>(q + j * s.head_dim, kt + begin * s.head_dim, s, at_most(most - begin, CHUNK),
                                       scores + j * s.split + begin);
            });
    for (int64_t j = 0; j < n; j++) stats[j] = soften(scores + j * s.split, counts[j]);
    for (int64_t begin = 0; begin < longest; begin += CHUNK)
        for (int64_t j = 0; j < n; j += BLOCK)
            with_block(n - j, [&](auto block) {
                weigh_chunk<block>(scores + j * s.split, values, s, begin, at_most(begin + CHUNK, longest), counts + j,
                                   out + j);
            });
}

// The rows of keys and values that these readers of an item see, in order of position; returns how many.
int64_t list_slots(const Attention& a, const Readers& readers, int64_t head, const float** keys, const float** values) {
    const AttentionPlan& plan = a.plan;
    const int64_t stride = a.kv_heads * a.head_dim, unit = plan.item_unit[readers.item];
    int64_t count = 0;
    for (int32_t e = readers.begin; e < readers.end; e++)
        if (plan.entry_count[e] > count) count = plan.entry_count[e];
    const int32_t* pages = plan.item_pages + plan.item_page_start[readers.item];
    for (int64_t t = 0, page = 0; t < count; page++)
        for (int64_t offset = 0; offset < unit && t < count; offset++, t++) {
            const int64_t at = ((int64_t)pages[page] * unit + offset) * stride + head * a.head_dim;
            keys[t] = a.k_pages + at;
            values[t] = a.v_pages + at;
        }
    return count;
}

// Values whose head is no whole number of vectors, padded with zeros.
void pad_values(const float** values, int64_t count, const Shape& s, float* copy) {
    for (int64_t t = 0; t < count; t++) {
        std::memcpy(copy + t * s.padded_dim, values[t], s.head_dim * sizeof(float));
        std::memset(copy + t * s.padded_dim + s.head_dim, 0, (s.padded_dim - s.head_dim) * sizeof(float));
        values[t] = copy + t * s.padded_dim;
    }
}

}  // namespace

namespace attention {

int64_t padded_dim(int64_t head_dim) { return (head_dim + LANES - 1) / LANES * LANES; }

int64_t scratch_floats(int64_t head_dim, int64_t split) {
    const int64_t padded = padded_dim(head_dim), pointers = 2 * sizeof(float*) / sizeof(float);
    const int64_t chunks = (split + CHUNK - 1) / CHUNK;
    return head_dim * chunks * CHUNK + QUERIES * (head_dim + split) + split * (padded + pointers);
}

void attend_item(const Attention& a, const Partials& to, const Readers& readers, int64_t head, float* scratch) {
    const AttentionPlan& plan = a.plan;
    const Shape s{a.q_heads, a.kv_heads, a.head_dim, padded_dim(a.head_dim), plan.split};
    const int64_t group = a.q_heads / a.kv_heads;
    auto** keys = reinterpret_cast<const float**>(scratch);
    const float** values = keys + s.split;
    float* kt = reinterpret_cast<float*>(values + s.split);
    float* qs = kt + s.head_dim * ((s.split + CHUNK - 1) / CHUNK * CHUNK);
    float* scores = qs + QUERIES * s.head_dim;
    const int64_t count = list_slots(a, readers, head, keys, values);
    transpose_keys(keys, values, count, s, kt);
    if (s.padded_dim != s.head_dim) pad_values(values, count, s, scores + QUERIES * s.split);
    const int32_t first = readers.begin;
    const int64_t queries = (readers.end - first) * group;
    for (int64_t begin = 0; begin < queries; begin += QUERIES) {
        const int64_t n = at_most(queries - begin, QUERIES);
        int32_t counts[QUERIES];
        MaxSum ms[QUERIES];
        int64_t at[QUERIES];
        float* out[QUERIES];
        for (int64_t j = 0; j < n; j++) {
            const int32_t e = first + (int32_t)((begin + j) / group);
            const int64_t q_head = head * group + (begin + j) % group;
            const float* from = a.q + (plan.entry_row[e] * s.q_heads + q_head) * s.head_dim;
            counts[j] = plan.entry_count[e];
            at[j] = to.at(plan.entry_pair[e], q_head);
            out[j] = to.partial + at[j] * s.padded_dim;
            for (int64_t d = 0; d < s.head_dim; d++) qs[j * s.head_dim + d] = from[d] * a.scale;
        }
        attend_queries(n, qs, kt, values, s, counts, scores, out, ms);
        for (int64_t j = 0; j < n; j++) {
            to.stats[2 * at[j]] = ms[j].max;
            to.stats[2 * at[j] + 1] = ms[j].sum;
        }
    }
}

// A row's partials lie together, in order of their splits.
void merge_head(const Attention& a, const Partials& from, int64_t row, int64_t head, float* scratch, float* out) {
    const int64_t padded = padded_dim(a.head_dim);
    const int32_t begin = a.plan.row_pair_start[row], end = a.plan.row_pair_start[row + 1];
    float max = -INFINITY, sum = 0.0f;
    for (int32_t p = begin; p < end; p++) {
        const float m = from.stats[2 * from.at(p, head)];
        max = m > max ? m : max;
    }
    std::memset(scratch, 0, padded * sizeof(float));
    for (int32_t p = begin; p < end; p++) {
        const int64_t at = from.at(p, head);
        const float factor = vexp(splat(from.stats[2 * at] - max))[0];
        sum = std::fma(factor, from.stats[2 * at + 1], sum);
        for (int64_t d = 0; d < padded; d += LANES)
            store(scratch + d, factor * load(from.partial + at * padded + d) + load(scratch + d));
    }
    for (int64_t d = 0; d < padded; d += LANES) store_first(out + d, load(scratch + d) / sum, a.head_dim - d);
}

}  // namespace attention

extern "C" {

void ft_attend(const Attention* a, float* out, int32_t threads) {
    const int64_t heads = a->q_heads;
    const Partials all{a->partial, a->stats, 0, 0, heads};
#pragma omp parallel num_threads(threads)
    {
        Scratch scratch(attention::scratch_floats(a->head_dim, a->plan.split));
#pragma omp for schedule(dynamic, 1)
        for (int64_t work = 0; work < a->plan.items * a->kv_heads; work++)
            attention::attend_item(*a, all, attention::readers_of(a->plan, work / a->kv_heads), work % a->kv_heads,
                                   scratch.data);
#pragma omp for schedule(static)
        for (int64_t work = 0; work < a->plan.rows * heads; work++)
            attention::merge_head(*a, all, work / heads, work % heads, scratch.data, out + work * a->head_dim);
    }
}

}  // extern "C"
