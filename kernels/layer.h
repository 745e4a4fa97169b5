// What stands between the linear layers, a row at a time, for whoever has a team of threads. Contracts are in norm.py,
// rotary.py and activation.py.
#pragma once
#include <cstdint>

// Angles of every position [positions, head_dim / 2]; norms of query and key heads may be null. Row r stands at
// positions[r] and its keys and values go to slots[r].
struct Rotary {
    const float *cos, *sin, *q_norm, *k_norm;
    const int64_t *positions, *slots;
    int64_t q_heads, kv_heads, head_dim;
    float eps;
};

namespace layer {
// `delta` may be null; otherwise residual += delta first. out = residual / rms · weight.
void add_and_normalize(float* residual, const float* delta, const float* weight, int64_t n, float eps, float* out);
// One row of [q_heads | kv_heads | kv_heads] × head_dim; `scratch` holds a head.
void rotate_and_write(const Rotary& r, int64_t row, const float* qkv, float* q, float* k_pages, float* v_pages,
                      float* scratch);
void silu_mul(const float* gate, const float* up, float* out, int64_t n);
}  // namespace layer
