// From float32 weights to the panels of gemm.h. A block that was dequantised from 4-bit or 8-bit blocks is recovered
// to the bit; each function counts the blocks whose panel does not give back the very weights.
#include <atomic>

#include "gemm.h"

namespace {

struct Block {
    int32_t q[BLOCK_SIZE];
    uint16_t d, m;
};

// w = d · q + m with q in 0..15. The file's quantiser took m = min and d = (max − min) / 15; where the largest q is
// less than 15, the divisor is less as well.
bool recover_four_bit(const float* w, Block* out) {
    float least = w[0], most = w[0];
    for (int i = 1; i < BLOCK_SIZE; i++) {
        least = w[i] < least ? w[i] : least;
        most = w[i] > most ? w[i] : most;
    }
    out->m = to_half(least);
    if (from_half(out->m) != least) return false;
    for (int top = 15; top > 0; top--) {
        out->d = to_half((most - least) / (float)top);
        const float d = from_half(out->d);
        int32_t num_fitting = 0;  // no early end, so that all are computed side by side
        for (int i = 0; i < BLOCK_SIZE; i++) {
            const float steps = (w[i] - least) / d;  // not a number where d is zero
            const float q = std::nearbyint(steps >= 0.0f && steps < 15.5f ? steps : 0.0f);
            out->q[i] = (int32_t)q;
            const float product = d * q;  // exact: 11 bits times 4
            num_fitting += product + least == w[i];
        }
        if (num_fitting == BLOCK_SIZE) return true;
    }
    return false;
}

// w = d · q with q in −127..127, to nearest; whether that is exact.
bool round_eight_bit(const float* w, Block* out) {
    float top = 0.0f;
    for (int i = 0; i < BLOCK_SIZE; i++) top = std::fabs(w[i]) > top ? std::fabs(w[i]) : top;
    out->d = to_half(top / 127.0f);
    out->m = 0;
    const float d = from_half(out->d);
    bool fits = true;
    for (int i = 0; i < BLOCK_SIZE; i++) {
        float q = d > 0.0f ? std::nearbyint(w[i] / d) : 0.0f;
        q = q > 127.0f ? 127.0f : q < -127.0f ? -127.0f : q;
        out->q[i] = (int32_t)q;
        fits &= d * q == w[i];
    }
    return fits;
}

void write_four_bit(const Block& block, int64_t lane, uint8_t* words) {
    for (int w = 0; w < 4; w++)
        for (int k = 0; k < 4; k++)
            words[64 * w + 4 * lane + k] = (uint8_t)(block.q[4 * w + k] | block.q[16 + 4 * w + k] << 4);
}

void write_eight_bit(const Block& block, int64_t lane, uint8_t* words) {
    for (int w = 0; w < 8; w++)
        for (int k = 0; k < 4; k++) words[64 * w + 4 * lane + k] = (uint8_t)(block.q[4 * w + k] + 128);
}

template <Format F>
int64_t pack(const float* weight, int64_t outputs, int64_t blocks, uint8_t* panels, int32_t threads) {
    const int64_t count = (outputs + LANES - 1) / LANES;
    int64_t inexact = 0;
    std::atomic<bool> is_lost{false};  // 4-bit blocks are all exact, or of no use
#pragma omp parallel for num_threads(threads) schedule(static) reduction(+ : inexact)
    for (int64_t panel = 0; panel < count; panel++) {
        if (is_lost.load(std::memory_order_relaxed)) continue;
        uint8_t* words = panels + panel * panel_bytes(F, blocks);
        auto* d = reinterpret_cast<uint16_t*>(words + blocks * word_bytes(F));
        for (int64_t lane = 0; lane < LANES; lane++) {
            const int64_t output = panel * LANES + lane;
            for (int64_t b = 0; b < blocks; b++) {
                Block block = {};  // outputs past the last are zero
                const float* w = weight + (output * blocks + b) * BLOCK_SIZE;
                if (output < outputs)
                    inexact += F == Format::FOUR_BIT ? !recover_four_bit(w, &block) : !round_eight_bit(w, &block);
                uint8_t* at = words + b * word_bytes(F);
                if (F == Format::FOUR_BIT) write_four_bit(block, lane, at);
                else write_eight_bit(block, lane, at);
                d[b * LANES + lane] = block.d;
                if (F == Format::FOUR_BIT) d[(blocks + b) * LANES + lane] = block.m;
            }
        }
        if (F == Format::FOUR_BIT && inexact) is_lost.store(true, std::memory_order_relaxed);
    }
    return inexact;
}

template <class T, class Convert>
int64_t pack_plainly(const float* weight, int64_t outputs, int64_t inputs, T* panels, int32_t threads, Convert convert) {
    const int64_t count = (outputs + LANES - 1) / LANES;
    int64_t inexact = 0;
#pragma omp parallel for num_threads(threads) schedule(static) reduction(+ : inexact)
    for (int64_t panel = 0; panel < count; panel++) {
        T* to = panels + panel * inputs * LANES;
        const int64_t first = panel * LANES, here = outputs - first < LANES ? outputs - first : LANES;
        for (int64_t begin = 0; begin < inputs; begin += BLOCK_SIZE)
            for (int64_t lane = 0; lane < LANES; lane++) {
                const float* w = weight + (first + lane) * inputs + begin;
                bool fits = true;
                for (int64_t i = 0; i < BLOCK_SIZE; i++)
                    fits &= convert(lane < here ? w[i] : 0.0f, to + (begin + i) * LANES + lane);
                inexact += !fits;
            }
    }
    return inexact;
}

bool keep_half(float w, uint16_t* to) {
    *to = to_half(w);
    return from_half(*to) == w;
}

bool keep_float(float w, float* to) {
    *to = w;
    return true;
}

}  // namespace

extern "C" {

// Bytes of the panels of one layer.
int64_t ft_gemm_bytes(int64_t outputs, int64_t blocks, int32_t format) {
    return (outputs + LANES - 1) / LANES * panel_bytes((Format)format, blocks);
}

// weight [outputs, blocks · 32] → panels; returns how many blocks are not exactly the weights. Inexact blocks are
// rounded; only where the format is 4 bits nothing useful is left, and the count ends with the first few.
int64_t ft_gemm_pack(const float* weight, int64_t outputs, int64_t blocks, uint8_t* panels, int32_t format,
                     int32_t threads) {
    const int64_t inputs = blocks * BLOCK_SIZE;
    switch ((Format)format) {
        case Format::FOUR_BIT: return pack<Format::FOUR_BIT>(weight, outputs, blocks, panels, threads);
        case Format::EIGHT_BIT: return pack<Format::EIGHT_BIT>(weight, outputs, blocks, panels, threads);
        case Format::HALF: return pack_plainly(weight, outputs, inputs, (uint16_t*)panels, threads, keep_half);
        case Format::FLOAT: return pack_plainly(weight, outputs, inputs, (float*)panels, threads, keep_float);
    }
    return -1;
}

}  // extern "C"
