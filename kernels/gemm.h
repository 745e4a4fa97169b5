// Formats of the GEMM over packed weights and the few vector operations it is made of, for three instruction sets:
// AVX-512 with VNNI, AVX2, and whatever the compiler makes of plain loops. The contract is in gemm.py.
//
// A panel holds 16 outputs. Lane r of every vector belongs to output r, so no sum ever crosses lanes:
//   words   [blocks][WORDS × 64 bytes]   vector w, lane r: four weights of output r, inputs 4w .. 4w + 3
//   d       [blocks][16] fp16            scale of each output's block
//   m       [blocks][16] fp16            (4-bit only) what is added to every weight of the block
// 4-bit: byte k of vector w holds input 4w + k in its low half and 16 + 4w + k in its high half (4 vectors).
// 8-bit: q + 128, unsigned (8 vectors). A panel is padded to 64 bytes.
// Half and float: no scales; vector i of a block is input i of the 16 outputs, in fp16 or float32.
#pragma once
#include "simd.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

constexpr int BLOCK_SIZE = 32;
enum class Format : int32_t { FOUR_BIT = 4, EIGHT_BIT = 8, HALF = 16, FLOAT = 32 };  // the value is a weight's bits

constexpr int64_t word_bytes(Format f) { return (int64_t)f * 64; }
constexpr int64_t block_bytes(Format f) {
    return word_bytes(f) + (f == Format::FOUR_BIT ? 64 : f == Format::EIGHT_BIT ? 32 : 0);
}
static inline int64_t panel_bytes(Format f, int64_t blocks) { return (blocks * block_bytes(f) + 63) / 64 * 64; }

// How the inputs are rounded (`Activations` of gemm.py). MIXED has a low digit in some blocks only. FLOAT are not
// rounded at all, and go with weights of the same kind.
enum class Inputs : int32_t { EIGHT_BIT = 1, SIXTEEN_BIT = 2, MIXED = 3, FLOAT = 4 };
constexpr int num_digits(Inputs inputs) { return inputs == Inputs::EIGHT_BIT ? 1 : 2; }

// 32 inputs of a row: x ≈ scale · q; sum = scale · Σ q; offset = -128 · Σ q undoes the shift of 8-bit weights.
// q is one int8, or two digits of a 16-bit number, the high one first: q = 256 · q[0] + q[1]. Where `has_low` is zero,
// so are all low digits.
template <int DIGITS>
struct Activation {
    int8_t q[DIGITS][BLOCK_SIZE];
    float scale, sum;
    int32_t offset, has_low;
};
struct FloatActivation {
    float x[BLOCK_SIZE];
};
constexpr float largest_q(int digits) { return digits == 1 ? 127.0f : 32512.0f; }  // 127 · 256: the high digit fits

// A linear layer as the library sees it (`FtLinear` of native.py). `bias` may be null.
struct Linear {
    const uint8_t* panels;
    const float* bias;
    int64_t outputs, blocks;
    int32_t format;
    Inputs inputs;
};

// What other sources build on; defined in gemm_cpu.cpp. Activations of `rows` rows lie as gemm_cpu.cpp says; a range
// of rows begins at a multiple of `row_tile()`.
namespace gemm {
int64_t row_tile();
int64_t activation_bytes(int64_t rows, int64_t blocks, Inputs inputs);
void quantize_row(const float* x, int64_t row, int64_t rows, int64_t blocks, Inputs inputs, void* activations);
// A row of MIXED inputs is not ready before its low digits are dropped where they matter least; `quantize_row` has done so.
void quantize_block(const float* x, int64_t block, int64_t row, int64_t rows, int64_t blocks, Inputs inputs,
                    void* activations);
void drop_low_digits(int64_t row, int64_t rows, int64_t blocks, void* activations);
// The 16 outputs of a panel for rows [first, end): row r to out + (r − first) · stride.
void multiply_panel(const Linear& layer, int64_t panel, const void* activations, int64_t first, int64_t end,
                    int64_t rows, float* out, int64_t stride);
}  // namespace gemm

static inline float from_half(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 1023, bits;
    if (exponent == 0) {
        float tiny = (float)fraction * 5.9604644775390625e-8f;  // 2⁻²⁴
        return sign ? -tiny : tiny;
    }
    bits = sign | (exponent == 31 ? 0x7F800000u : (exponent + 112) << 23) | fraction << 13;
    float out;
    std::memcpy(&out, &bits, 4);
    return out;
}

// Round to nearest, ties to even; beyond 65504 infinity.
static inline uint16_t to_half(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    uint16_t sign = bits >> 16 & 0x8000;
    float size = std::fabs(x);
    if (!(size < 65520.0f)) return sign | (size != size ? 0x7E00 : 0x7C00);
    if (size < 6.103515625e-5f) return sign | (uint16_t)std::nearbyint(size * 16777216.0f);  // subnormal: units of 2⁻²⁴
    bits &= 0x7FFFFFFF;
    bits += 0xFFF + (bits >> 13 & 1);
    return sign | (uint16_t)((bits >> 13) - (112 << 10));
}

namespace lanes {

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VNNI__)

#define UNROLLED _Pragma("GCC unroll 16")  // so that the sums of a tile stay in registers
constexpr int MAX_TILE = 12;  // rows in registers at once: one accumulator each, beside 8 vectors of weights
constexpr bool UNSIGNED_8BIT = true;
using Bytes = __m512i;
using Ints = __m512i;
using Floats = __m512;

static inline Bytes load_bytes(const uint8_t* p) { return _mm512_load_si512(p); }
static inline Bytes low_half(Bytes x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
static inline Bytes high_half(Bytes x) { return _mm512_and_si512(_mm512_srli_epi16(x, 4), _mm512_set1_epi8(15)); }
static inline Ints start(int32_t x) { return _mm512_set1_epi32(x); }
static inline Ints next_digit(Ints x) { return _mm512_slli_epi32(x, 8); }
static inline Ints plus(Ints x, int32_t y) { return _mm512_add_epi32(x, _mm512_set1_epi32(y)); }
template <Format F>
static inline Ints dot4(Ints sum, Bytes weights, const int8_t* x) {
    int32_t word;
    std::memcpy(&word, x, 4);
    return _mm512_dpbusd_epi32(sum, weights, _mm512_set1_epi32(word));
}
static inline Floats zero() { return _mm512_setzero_ps(); }
static inline Floats load_halves(const uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
static inline Floats load_floats(const float* p) { return _mm512_loadu_ps(p); }
static inline Floats scaled(Ints x, Floats by) { return _mm512_mul_ps(_mm512_cvtepi32_ps(x), by); }
static inline Floats add_product(Floats sum, Floats a, float b) { return _mm512_fmadd_ps(a, _mm512_set1_ps(b), sum); }
static inline void store_floats(float* p, Floats x) { _mm512_storeu_ps(p, x); }
static inline float max_of(vf x) { return _mm512_reduce_max_ps((__m512)x); }
static inline bool any_of(vi x) { return _mm512_test_epi32_mask((__m512i)x, (__m512i)x) != 0; }
static inline int32_t round_to_digits(vf x, int8_t* out) {
    const __m512i whole = _mm512_cvtps_epi32((__m512)x);
    _mm_storeu_si128((__m128i*)out, _mm512_cvtepi32_epi8(whole));
    return _mm512_reduce_add_epi32(whole);
}
static inline int32_t round_to_digits(vf x, int8_t* high, int8_t* low) {
    const __m512i whole = _mm512_cvtps_epi32((__m512)x);
    const __m512i top = _mm512_srai_epi32(_mm512_add_epi32(whole, _mm512_set1_epi32(128)), 8);
    _mm_storeu_si128((__m128i*)high, _mm512_cvtepi32_epi8(top));
    _mm_storeu_si128((__m128i*)low, _mm512_cvtepi32_epi8(whole));  // the low byte of q is that of q − 256 · high
    return _mm512_reduce_add_epi32(whole);
}

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#define UNROLLED
constexpr int MAX_TILE = 2;
constexpr bool UNSIGNED_8BIT = false;  // u8 · s8 pairs would overflow 16 bits, so 8-bit weights are made signed again
struct Bytes { __m256i half[2]; };
struct Ints { __m256i half[2]; };
struct Floats { __m256 half[2]; };

static inline Bytes load_bytes(const uint8_t* p) {
    return {{_mm256_load_si256((const __m256i*)p), _mm256_load_si256((const __m256i*)(p + 32))}};
}
static inline Bytes low_half(Bytes x) {
    const __m256i mask = _mm256_set1_epi8(15);
    return {{_mm256_and_si256(x.half[0], mask), _mm256_and_si256(x.half[1], mask)}};
}
static inline Bytes high_half(Bytes x) {
    return low_half({{_mm256_srli_epi16(x.half[0], 4), _mm256_srli_epi16(x.half[1], 4)}});
}
static inline Ints start(int32_t x) { return {{_mm256_set1_epi32(x), _mm256_set1_epi32(x)}}; }
static inline Ints next_digit(Ints x) { return {{_mm256_slli_epi32(x.half[0], 8), _mm256_slli_epi32(x.half[1], 8)}}; }
static inline Ints plus(Ints x, int32_t y) {
    const __m256i all = _mm256_set1_epi32(y);
    return {{_mm256_add_epi32(x.half[0], all), _mm256_add_epi32(x.half[1], all)}};
}
template <Format F>
static inline __m256i dot4_half(__m256i sum, __m256i weights, __m256i x) {
    if (F == Format::EIGHT_BIT) {
        // |x| · (±w): a digit may be −128, which has no opposite; a weight is at least −127.
        const __m256i w = _mm256_sign_epi8(_mm256_xor_si256(weights, _mm256_set1_epi8((char)0x80)), x);
        weights = _mm256_abs_epi8(x);
        x = w;
    }
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(weights, x), _mm256_set1_epi16(1)));
}
template <Format F>
static inline Ints dot4(Ints sum, Bytes weights, const int8_t* x) {
    int32_t word;
    std::memcpy(&word, x, 4);
    const __m256i four = _mm256_set1_epi32(word);
    return {{dot4_half<F>(sum.half[0], weights.half[0], four), dot4_half<F>(sum.half[1], weights.half[1], four)}};
}
static inline Floats zero() { return {{_mm256_setzero_ps(), _mm256_setzero_ps()}}; }
static inline Floats load_halves(const uint16_t* p) {
    return {{_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)))}};
}
static inline Floats load_floats(const float* p) { return {{_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}}; }
static inline Floats scaled(Ints x, Floats by) {
    return {{_mm256_mul_ps(_mm256_cvtepi32_ps(x.half[0]), by.half[0]), _mm256_mul_ps(_mm256_cvtepi32_ps(x.half[1]), by.half[1])}};
}
static inline Floats add_product(Floats sum, Floats a, float b) {
    const __m256 all = _mm256_set1_ps(b);
    return {{_mm256_fmadd_ps(a.half[0], all, sum.half[0]), _mm256_fmadd_ps(a.half[1], all, sum.half[1])}};
}
static inline void store_floats(float* p, Floats x) {
    _mm256_storeu_ps(p, x.half[0]);
    _mm256_storeu_ps(p + 8, x.half[1]);
}

#else

#define UNROLLED
constexpr int MAX_TILE = 4;
constexpr bool UNSIGNED_8BIT = true;
struct Bytes { uint8_t lane[64]; };
using Ints = vi;
using Floats = vf;

static inline Bytes load_bytes(const uint8_t* p) {
    Bytes out;
    std::memcpy(out.lane, p, 64);
    return out;
}
static inline Bytes low_half(Bytes x) {
    for (int i = 0; i < 64; i++) x.lane[i] &= 15;
    return x;
}
static inline Bytes high_half(Bytes x) {
    for (int i = 0; i < 64; i++) x.lane[i] >>= 4;
    return x;
}
static inline Ints start(int32_t x) { return splat(x); }
static inline Ints next_digit(Ints x) { return x * 256; }
static inline Ints plus(Ints x, int32_t y) { return x + splat(y); }
template <Format F>
static inline Ints dot4(Ints sum, const Bytes& weights, const int8_t* x) {
    int32_t out[LANES];
    for (int i = 0; i < LANES; i++) {
        const uint8_t* w = weights.lane + 4 * i;
        out[i] = w[0] * x[0] + w[1] * x[1] + w[2] * x[2] + w[3] * x[3];
    }
    vi products;
    std::memcpy(&products, out, sizeof out);
    return sum + products;
}
static inline Floats zero() { return splat(0.0f); }
static inline Floats load_halves(const uint16_t* p) {
    float out[LANES];
    for (int i = 0; i < LANES; i++) out[i] = from_half(p[i]);
    return load(out);
}
static inline Floats load_floats(const float* p) { return load(p); }
static inline Floats scaled(Ints x, Floats by) { return __builtin_convertvector(x, vf) * by; }
static inline Floats add_product(Floats sum, Floats a, float b) { return a * splat(b) + sum; }
static inline void store_floats(float* p, Floats x) { store(p, x); }

#endif

#if !(defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VNNI__))
static inline float max_of(vf x) { return max_lanes(x); }
static inline bool any_of(vi x) {
    int32_t any = 0;
    for (int i = 0; i < LANES; i++) any |= x[i];
    return any != 0;
}
// Round to nearest, ties to even; returns the sum. (Not by adding a large number: a compiler may fuse that with the
// product before it, and then another machine rounds otherwise.)
static inline int32_t round_to_digits(vf x, int8_t* out) {
    float values[LANES];
    store(values, x);
    int32_t sum = 0;
    for (int i = 0; i < LANES; i++) {
        const auto whole = (int32_t)std::lrintf(values[i]);
        out[i] = (int8_t)whole;
        sum += whole;
    }
    return sum;
}
static inline int32_t round_to_digits(vf x, int8_t* high, int8_t* low) {
    float values[LANES];
    store(values, x);
    int32_t sum = 0;
    for (int i = 0; i < LANES; i++) {
        const auto whole = (int32_t)std::lrintf(values[i]);
        const int32_t top = (whole + 128 + (1 << 16)) / 256 - 256;  // floored: the sum is positive
        high[i] = (int8_t)top;
        low[i] = (int8_t)(whole - 256 * top);
        sum += whole;
    }
    return sum;
}
#endif

}  // namespace lanes
