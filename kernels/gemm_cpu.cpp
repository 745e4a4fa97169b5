// Linear layers over block-quantised weights: int8 activations with a scale for every 32 of a row, integer dot
// products, float32 sums over the blocks in order. The contract and the reference are in gemm.py, the formats in
// gemm.h. A row's result comes from the same operations in the same order whatever tile it is computed in.
#include "gemm.h"

namespace {

constexpr int64_t FEW_ROWS = 4;      // below, one thread quantises: cheaper than a barrier
constexpr int64_t CHUNK = 120;       // rows whose activations stay in the second-level cache; a multiple of every tile
constexpr float SMALLEST = 1e-30f;   // a block whose largest magnitude is below is zero: 127 / amax must be finite

// q = round(x · 127 / amax), ties to even. A block with an infinity or a NaN makes its whole row NaN.
void quantize_block(const float* x, Activation* out) {
    const vf a = load(x), b = load(x + LANES);
    const vf none = splat(0.0f), size = vmax(a < none ? -a : a, b < none ? -b : b);
    const vi broken = (a - a != none) | (b - b != none);
    const float top = lanes::max_of(size);
    const bool is_broken = lanes::any_of(broken);
    if (is_broken || !(top >= SMALLEST)) {
        std::memset(out->q, 0, BLOCK_SIZE);
        out->scale = out->sum = is_broken ? NAN : 0.0f;
        out->offset = 0;
        return;
    }
    const float by = 127.0f / top;
    const int32_t total = lanes::round_to_bytes(a * by, out->q) + lanes::round_to_bytes(b * by, out->q + LANES);
    out->scale = top / 127.0f;
    out->sum = out->scale * (float)total;
    out->offset = lanes::UNSIGNED_8BIT ? -128 * total : 0;
}

// Rows of the tile that begins at `first`.
inline int64_t tile_rows(int64_t first, int64_t rows) {
    return rows - first < lanes::MAX_TILE ? rows - first : lanes::MAX_TILE;
}

// Row `row` of `rows` to its place: rows of one tile lie interleaved, [tiles][blocks][rows of the tile], so that
// every operand of a tile has a constant distance.
inline void quantize_row(const float* x, int64_t row, int64_t rows, int64_t blocks, Activation* out) {
    const int64_t first = row / lanes::MAX_TILE * lanes::MAX_TILE, tile = tile_rows(first, rows);
    out += first * blocks + row - first;
    for (int64_t b = 0; b < blocks; b++) quantize_block(x + b * BLOCK_SIZE, out + b * tile);
}

// out[j][0 .. 16) of M rows: Σ over blocks of (d · Σ q·x) · scale, and m · sum after it.
template <Format F, int M>
void multiply_tile(const uint8_t* panel, const Activation* x, int64_t blocks, lanes::Floats* acc) {
    constexpr int WORDS = BLOCK_SIZE / 4;
    const int64_t ahead = panel_bytes(F, blocks);  // measured: the next panel beats any distance in blocks
    const auto* d = reinterpret_cast<const uint16_t*>(panel + blocks * word_bytes(F));
    const uint16_t* m = d + blocks * LANES;
    lanes::Floats sums[M];
    for (int j = 0; j < M; j++) sums[j] = lanes::zero();
    for (int64_t b = 0; b < blocks; b++, panel += word_bytes(F), x += M) {
        lanes::Bytes w[WORDS];
        if (F == Format::FOUR_BIT) {
            for (int i = 0; i < WORDS / 2; i++) {
                const lanes::Bytes both = lanes::load_bytes(panel + 64 * i);
                w[i] = lanes::low_half(both);
                w[i + WORDS / 2] = lanes::high_half(both);
            }
        } else {
            for (int i = 0; i < WORDS; i++) w[i] = lanes::load_bytes(panel + 64 * i);
        }
        for (int64_t i = 0; i < word_bytes(F); i += 64) __builtin_prefetch(panel + ahead + i, 0, 2);
        const lanes::Floats scale = lanes::load_halves(d + b * LANES);
        for (int j = 0; j < M; j++) {
            lanes::Ints dot = lanes::start(F == Format::EIGHT_BIT ? x[j].offset : 0);
            for (int i = 0; i < WORDS; i++) dot = lanes::dot4<F>(dot, w[i], x[j].q + 4 * i);
            sums[j] = lanes::add_product(sums[j], lanes::scaled(dot, scale), x[j].scale);
        }
        if (F == Format::FOUR_BIT) {
            const lanes::Floats least = lanes::load_halves(m + b * LANES);
            for (int j = 0; j < M; j++) sums[j] = lanes::add_product(sums[j], least, x[j].sum);
        }
    }
    for (int j = 0; j < M; j++) acc[j] = sums[j];
}

template <Format F, int M>
void multiply_rows(int64_t count, const uint8_t* panel, const Activation* x, int64_t blocks, lanes::Floats* acc) {
    if constexpr (M > 0) {
        if (count == M) multiply_tile<F, M>(panel, x, blocks, acc);
        else multiply_rows<F, M - 1>(count, panel, x, blocks, acc);
    }
}

struct Layer {
    const uint8_t* panels;
    const float* bias;  // may be null
    int64_t outputs, blocks;
};

template <Format F>
void multiply_panel(const Layer& layer, int64_t panel, const Activation* x, int64_t rows, float* out) {
    const int64_t first = panel * LANES, left = layer.outputs - first;
    const uint8_t* weights = layer.panels + panel * panel_bytes(F, layer.blocks);
    const vf bias = layer.bias ? load_first(layer.bias + first, left) : splat(0.0f);
    for (int64_t row = 0; row < rows; row += lanes::MAX_TILE) {
        lanes::Floats acc[lanes::MAX_TILE];
        const int64_t count = tile_rows(row, rows);
        multiply_rows<F, lanes::MAX_TILE>(count, weights, x + row * layer.blocks, layer.blocks, acc);
        for (int64_t j = 0; j < count; j++) {
            float result[LANES];
            lanes::store_floats(result, acc[j]);
            store_first(out + (row + j) * layer.outputs + first, layer.bias ? load(result) + bias : load(result), left);
        }
    }
}

template <Format F>
void multiply(const Layer& layer, const float* x, int64_t rows, float* out, int32_t threads) {
    const int64_t blocks = layer.blocks, inputs = blocks * BLOCK_SIZE;
    const int64_t panels = (layer.outputs + LANES - 1) / LANES;
    Scratch scratch((rows < CHUNK ? rows : CHUNK) * blocks * (int64_t)(sizeof(Activation) / sizeof(float)));
    auto* quantized = reinterpret_cast<Activation*>(scratch.data);
    if (rows <= FEW_ROWS)
        for (int64_t r = 0; r < rows; r++) quantize_row(x + r * inputs, r, rows, blocks, quantized);
#pragma omp parallel num_threads(threads)
    for (int64_t begin = 0; begin < rows; begin += CHUNK) {
        const int64_t count = rows - begin < CHUNK ? rows - begin : CHUNK;
        if (rows > FEW_ROWS) {
#pragma omp for schedule(static)
            for (int64_t r = 0; r < count; r++) quantize_row(x + (begin + r) * inputs, r, count, blocks, quantized);
        }
#pragma omp for schedule(static)
        for (int64_t panel = 0; panel < panels; panel++)
            multiply_panel<F>(layer, panel, quantized, count, out + begin * layer.outputs);
    }
}

}  // namespace

extern "C" {

// x [rows, blocks · 32] → out [rows, outputs]; `format` is 4 or 8, `bias` may be null.
void ft_gemm(const float* x, const uint8_t* panels, const float* bias, float* out, int64_t rows, int64_t outputs,
             int64_t blocks, int32_t format, int32_t threads) {
    const Layer layer{panels, bias, outputs, blocks};
    if (format == (int32_t)Format::FOUR_BIT) multiply<Format::FOUR_BIT>(layer, x, rows, out, threads);
    else multiply<Format::EIGHT_BIT>(layer, x, rows, out, threads);
}

}  // extern "C"
