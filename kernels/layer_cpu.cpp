// What stands between the linear layers: RMS norm with the residual added, rotary positions with the write of
// keys and values to their slots, SiLU · up, and the log-sum-exp of a row of logits. Contracts are in norm.py,
// rotary.py, activation.py and logits.py. A row is computed by one thread, in one order.
#include "layer.h"

#include "simd.h"

namespace {

constexpr int64_t FEW_ROWS = 4;  // below, starting the other threads costs more than the work

// out = x / rms(x) · weight; the scale of a row, from the sum of squares of sixteen interleaved columns.
inline float inverse_rms(const float* x, int64_t n, float eps) {
    vf sum = splat(0.0f);
    for (int64_t d = 0; d < n; d += LANES) {
        vf v = load_first(x + d, n - d);
        sum = v * v + sum;
    }
    return 1.0f / std::sqrt(sum_lanes(sum) / (float)n + eps);
}

inline void scale_row(const float* x, const float* weight, int64_t n, float by, float* out) {
    for (int64_t d = 0; d < n; d += LANES)
        store_first(out + d, load_first(x + d, n - d) * by * load_first(weight + d, n - d), n - d);
}

// Rotate the halves (x1, x2) by the position's angles, after an optional norm of the head.
inline void rotate_head(const float* x, const float* norm, float eps, const float* cos, const float* sin, int64_t n,
                        float* normed, float* out) {
    if (norm) {
        scale_row(x, norm, n, inverse_rms(x, n, eps), normed);
        x = normed;
    }
    const int64_t half = n / 2;
    for (int64_t d = 0; d < half; d += LANES) {
        const int64_t left = half - d;
        vf a = load_first(x + d, left), b = load_first(x + half + d, left);
        vf c = load_first(cos + d, left), s = load_first(sin + d, left);
        vf bs = b * s, as = a * s;
        store_first(out + d, a * c - bs, left);
        store_first(out + half + d, b * c + as, left);
    }
}

}  // namespace

namespace layer {

void add_and_normalize(float* residual, const float* delta, const float* weight, int64_t n, float eps, float* out) {
    if (delta)
        for (int64_t d = 0; d < n; d++) residual[d] += delta[d];
    scale_row(residual, weight, n, inverse_rms(residual, n, eps), out);
}

void rotate_and_write(const Rotary& r, int64_t row, const float* qkv, float* q, float* k_pages, float* v_pages,
                      float* scratch) {
    const int64_t n = r.head_dim, width = r.kv_heads * n;
    const float *c = r.cos + r.positions[row] * (n / 2), *s = r.sin + r.positions[row] * (n / 2);
    float* k = k_pages + r.slots[row] * width;
    for (int64_t h = 0; h < r.q_heads; h++, qkv += n) rotate_head(qkv, r.q_norm, r.eps, c, s, n, scratch, q + h * n);
    for (int64_t h = 0; h < r.kv_heads; h++, qkv += n) rotate_head(qkv, r.k_norm, r.eps, c, s, n, scratch, k + h * n);
    std::memcpy(v_pages + r.slots[row] * width, qkv, width * sizeof(float));
}

void silu_mul(const float* gate, const float* up, float* out, int64_t n) {
    for (int64_t d = 0; d < n; d += LANES) {
        vf g = load_first(gate + d, n - d), u = load_first(up + d, n - d);
        store_first(out + d, g / (vexp(-g) + 1.0f) * u, n - d);
    }
}

}  // namespace layer

extern "C" {

// `delta` may be null; otherwise residual += delta first, in place.
void ft_rms_norm(float* residual, const float* delta, const float* weight, float* out, int64_t rows, int64_t n,
                 float eps, int32_t threads) {
#pragma omp parallel for num_threads(threads) if (rows > FEW_ROWS) schedule(static)
    for (int64_t row = 0; row < rows; row++)
        layer::add_and_normalize(residual + row * n, delta ? delta + row * n : nullptr, weight, n, eps, out + row * n);
}

// qkv rows are [q_heads | kv_heads | kv_heads] × head_dim. Norm weights may be null.
void ft_rotate_and_write(const float* qkv, const float* cos, const float* sin, const int64_t* positions,
                         const int64_t* slots, const float* q_norm, const float* k_norm, float eps, float* q,
                         float* k_pages, float* v_pages, int64_t rows, int64_t q_heads, int64_t kv_heads,
                         int64_t head_dim, int32_t threads) {
    const Rotary r{cos, sin, q_norm, k_norm, positions, slots, q_heads, kv_heads, head_dim, eps};
    const int64_t width = (q_heads + 2 * kv_heads) * head_dim;
#pragma omp parallel num_threads(threads) if (rows > FEW_ROWS)
    {
        Scratch scratch(head_dim);
#pragma omp for schedule(static)
        for (int64_t row = 0; row < rows; row++)
            layer::rotate_and_write(r, row, qkv + row * width, q + row * q_heads * head_dim, k_pages, v_pages,
                                    scratch.data);
    }
}

// gate_up rows are [gate | up]; out = gate / (1 + exp(-gate)) · up.
void ft_silu_mul(const float* gate_up, float* out, int64_t rows, int64_t n, int32_t threads) {
#pragma omp parallel for num_threads(threads) if (rows > FEW_ROWS) schedule(static)
    for (int64_t row = 0; row < rows; row++)
        layer::silu_mul(gate_up + 2 * row * n, gate_up + 2 * row * n + n, out + row * n, n);
}

// Natural log of Σ exp(logit) of the chosen rows; a NaN among the logits gives NaN.
void ft_logsumexp(const float* logits, const int64_t* chosen, double* out, int64_t rows, int64_t n, int32_t threads) {
#pragma omp parallel for num_threads(threads) if (rows > 1) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        const float* x = logits + chosen[row] * n;
        vf top = splat(-INFINITY);
        vi bad = {};
        for (int64_t d = 0; d < n; d += LANES) {
            vf v = LANE_INDEX < splat((int32_t)(n - d > LANES ? LANES : n - d)) ? load_first(x + d, n - d) : splat(-INFINITY);
            bad |= v != v;
            top = vmax(v, top);
        }
        int32_t any = 0;
        for (int i = 0; i < LANES; i++) any |= bad[i];
        float max = max_lanes(top);
        if (any || !(max > -INFINITY)) { out[row] = any ? NAN : -INFINITY; continue; }
        double sum = 0.0;
        vf part = splat(0.0f);
        int64_t d = 0;
        for (int k = 1; d < n; d += LANES, k++) {
            vf w = vexp(load_first(x + d, n - d) - max);
            part = part + (LANE_INDEX < splat((int32_t)(n - d > LANES ? LANES : n - d)) ? w : splat(0.0f));
            if (k % 64 == 0) { sum += sum_lanes(part); part = splat(0.0f); }  // short float sums, long double ones
        }
        sum += sum_lanes(part);
        out[row] = (double)max + std::log(sum);
    }
}

// Version of this interface: the loader refuses a library that says another.
int32_t ft_abi(void) { return 7; }

}  // extern "C"
