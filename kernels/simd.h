// Sixteen floats at a time, written once for every processor: the compiler lowers the vector type to what the
// machine has. Every value takes the same instructions whatever lane or row it stands in, so that a row's bits
// never depend on its neighbours. (No -ffast-math: the order of operations is part of the contract.)
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

constexpr int LANES = 16;
typedef float vf __attribute__((vector_size(64)));
typedef int32_t vi __attribute__((vector_size(64)));
typedef float vf_unaligned __attribute__((vector_size(64), aligned(4), may_alias));

static inline vf load(const float* p) { return *reinterpret_cast<const vf_unaligned*>(p); }
static inline void store(float* p, vf x) { *reinterpret_cast<vf_unaligned*>(p) = x; }
static inline vf splat(float x) { return vf{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }
static inline vi splat(int32_t x) { return vi{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }
static inline vf vmax(vf a, vf b) { return a > b ? a : b; }

static const vi LANE_INDEX = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// The first `n` lanes from memory, the others zero; memory past them is not touched.
static inline vf load_first(const float* p, int64_t n) {
    if (n >= LANES) return load(p);
    float lanes[LANES] = {0};
    if (n > 0) std::memcpy(lanes, p, n * sizeof(float));
    return load(lanes);
}

static inline void store_first(float* p, vf x, int64_t n) {
    if (n >= LANES) { store(p, x); return; }
    float lanes[LANES];
    store(lanes, x);
    if (n > 0) std::memcpy(p, lanes, n * sizeof(float));
}

static inline float sum_lanes(vf x) {
    float lanes[LANES];
    store(lanes, x);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lanes[i] += lanes[i + half];
    return lanes[0];
}

static inline float max_lanes(vf x) {
    float lanes[LANES];
    store(lanes, x);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lanes[i] = lanes[i] > lanes[i + half] ? lanes[i] : lanes[i + half];
    return lanes[0];
}

// Exponential, about 2 units in the last place; exp(0) is exactly 1; flushes below about 1e-38. Range reduction
// by ln 2 and the polynomial of Cephes' expf.c (S. Moshier, public domain).
static inline vf vexp(vf x) {
    const vf low = splat(-87.3f), high = splat(88.7f);
    x = x < low ? low : x;
    x = x > high ? high : x;
    const vf magic = splat(12582912.0f);  // 1.5 · 2²³: adding it rounds to an integer in the low bits
    vf t = x * 1.44269504088896341f + magic;
    vf n = t - magic;
    vf r = x - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    vf p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r;
    p = p + 1.0f;
    vi bits = (reinterpret_cast<vi>(t) - 0x4B400000 + 127) << 23;
    return p * reinterpret_cast<vf>(bits);
}

// A thread's scratch, 64-byte aligned, freed at the end of the scope.
struct Scratch {
    float* data;
    explicit Scratch(int64_t floats) {
        int64_t bytes = (floats * (int64_t)sizeof(float) + 63) / 64 * 64;
        data = static_cast<float*>(std::aligned_alloc(64, bytes > 0 ? bytes : 64));
    }
    ~Scratch() { std::free(data); }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
};
