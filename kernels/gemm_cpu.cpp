// Linear layers over block-quantised weights: activations of one or two int8 digits with a scale for every 32 of a
// row, integer dot products, float32 sums over the blocks in order. The contract and the reference are in gemm.py, the
// formats in gemm.h. A row's result comes from the same operations in the same order whatever tile it is computed in.
#include "gemm.h"

namespace {

constexpr int SIDE_BY_SIDE = 6;      // rows whose integer sums run beside one another
constexpr int64_t FEW_ROWS = 4;      // below, one thread quantises: cheaper than a barrier
constexpr int64_t CHUNK = 120;       // rows whose activations stay in the second-level cache; a multiple of every tile
constexpr float SMALLEST = 1e-30f;   // a block whose largest magnitude is below is zero: the factor must be finite

// q = round(x · largest / amax), ties to even. A block with an infinity or a NaN makes its whole row NaN.
template <int DIGITS>
void quantize_to(const float* x, Activation<DIGITS>* out) {
    const vf a = load(x), b = load(x + LANES);
    const vf none = splat(0.0f), size = vmax(a < none ? -a : a, b < none ? -b : b);
    const vi broken = (a - a != none) | (b - b != none);
    const float top = lanes::max_of(size);
    const bool is_broken = lanes::any_of(broken);
    if (is_broken || !(top >= SMALLEST)) {
        std::memset(out->q, 0, sizeof out->q);
        out->scale = out->sum = is_broken ? NAN : 0.0f;
        out->offset = 0;
        return;
    }
    const float by = largest_q(DIGITS) / top;
    int32_t total;
    if constexpr (DIGITS == 1)
        total = lanes::round_to_digits(a * by, out->q[0]) + lanes::round_to_digits(b * by, out->q[0] + LANES);
    else
        total = lanes::round_to_digits(a * by, out->q[0], out->q[1]) +
                lanes::round_to_digits(b * by, out->q[0] + LANES, out->q[1] + LANES);
    out->scale = top / largest_q(DIGITS);
    out->sum = out->scale * (float)total;
    out->offset = lanes::UNSIGNED_8BIT ? -128 * total : 0;
}

// Rows of the tile that begins at `first`.
inline int64_t tile_rows(int64_t first, int64_t rows) {
    return rows - first < lanes::MAX_TILE ? rows - first : lanes::MAX_TILE;
}

// The place of (row, block): rows of one tile lie interleaved, [tiles][blocks][rows of the tile], so that every
// operand of a tile has a constant distance.
inline int64_t place(int64_t row, int64_t rows, int64_t block, int64_t blocks) {
    const int64_t first = row / lanes::MAX_TILE * lanes::MAX_TILE;
    return first * blocks + block * tile_rows(first, rows) + row - first;
}

// sums[j] += (d · Σ q·x) · scale of N rows. A row's products are a chain, each waiting for the one before: the chains of
// several rows run side by side, since the processor does not look far enough ahead to find the next row's by itself.
template <Format F, int DIGITS, int N>
inline void add_dots(const lanes::Bytes* w, const Activation<DIGITS>* x, lanes::Floats scale, lanes::Floats* sums) {
    constexpr int WORDS = BLOCK_SIZE / 4;
    constexpr bool SHIFTED = F == Format::EIGHT_BIT;
    lanes::Ints dots[N];
#pragma GCC unroll 16
    for (int j = 0; j < N; j++) dots[j] = lanes::start(SHIFTED && DIGITS == 1 ? x[j].offset : 0);
#pragma GCC unroll 16
    for (int i = 0; i < WORDS; i++)
#pragma GCC unroll 16
        for (int j = 0; j < N; j++) dots[j] = lanes::dot4<F>(dots[j], w[i], x[j].q[0] + 4 * i);
    if constexpr (DIGITS == 2) {
#pragma GCC unroll 16
        for (int j = 0; j < N; j++) {
            dots[j] = lanes::next_digit(dots[j]);
            if (SHIFTED) dots[j] = lanes::plus(dots[j], x[j].offset);
        }
#pragma GCC unroll 16
        for (int i = 0; i < WORDS; i++)
#pragma GCC unroll 16
            for (int j = 0; j < N; j++) dots[j] = lanes::dot4<F>(dots[j], w[i], x[j].q[1] + 4 * i);
    }
#pragma GCC unroll 16
    for (int j = 0; j < N; j++) sums[j] = lanes::add_product(sums[j], lanes::scaled(dots[j], scale), x[j].scale);
}

// out[j][0 .. 16) of M rows: Σ over blocks of (d · Σ q·x) · scale, and m · sum after it.
template <Format F, int DIGITS, int M>
void multiply_tile(const uint8_t* panel, const Activation<DIGITS>* x, int64_t blocks, lanes::Floats* acc) {
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
        if constexpr (M <= SIDE_BY_SIDE) {
            add_dots<F, DIGITS, M>(w, x, scale, sums);
        } else {
            add_dots<F, DIGITS, SIDE_BY_SIDE>(w, x, scale, sums);
            add_dots<F, DIGITS, M - SIDE_BY_SIDE>(w, x + SIDE_BY_SIDE, scale, sums + SIDE_BY_SIDE);
        }
        if (F == Format::FOUR_BIT) {
            const lanes::Floats least = lanes::load_halves(m + b * LANES);
#pragma GCC unroll 16
            for (int j = 0; j < M; j++) sums[j] = lanes::add_product(sums[j], least, x[j].sum);
        }
    }
    for (int j = 0; j < M; j++) acc[j] = sums[j];
}

template <Format F, int DIGITS, int M>
void multiply_rows(int64_t count, const uint8_t* panel, const Activation<DIGITS>* x, int64_t blocks,
                   lanes::Floats* acc) {
    if constexpr (M > 0) {
        if (count == M) multiply_tile<F, DIGITS, M>(panel, x, blocks, acc);
        else multiply_rows<F, DIGITS, M - 1>(count, panel, x, blocks, acc);
    }
}

template <Format F, int DIGITS>
void multiply(const Linear& layer, int64_t panel, const void* activations, int64_t first, int64_t end, int64_t rows,
              float* out, int64_t stride) {
    const int64_t column = panel * LANES, left = layer.outputs - column;
    const uint8_t* weights = layer.panels + panel * panel_bytes(F, layer.blocks);
    const auto* x = static_cast<const Activation<DIGITS>*>(activations);
    const vf bias = layer.bias ? load_first(layer.bias + column, left) : splat(0.0f);
    for (int64_t row = first; row < end; row += lanes::MAX_TILE) {
        lanes::Floats acc[lanes::MAX_TILE];
        const int64_t count = tile_rows(row, rows);
        multiply_rows<F, DIGITS, lanes::MAX_TILE>(count, weights, x + row * layer.blocks, layer.blocks, acc);
        for (int64_t j = 0; j < count; j++) {
            float result[LANES];
            lanes::store_floats(result, acc[j]);
            store_first(out + (row - first + j) * stride, layer.bias ? load(result) + bias : load(result), left);
        }
    }
}

}  // namespace

namespace gemm {

int64_t row_tile() { return lanes::MAX_TILE; }

int64_t activation_bytes(int64_t rows, int64_t blocks, int32_t digits) {
    return rows * blocks * (int64_t)(digits == 1 ? sizeof(Activation<1>) : sizeof(Activation<2>));
}

void quantize_block(const float* x, int64_t block, int64_t row, int64_t rows, int64_t blocks, int32_t digits,
                    void* activations) {
    const int64_t at = place(row, rows, block, blocks);
    if (digits == 1) quantize_to<1>(x, static_cast<Activation<1>*>(activations) + at);
    else quantize_to<2>(x, static_cast<Activation<2>*>(activations) + at);
}

void quantize_row(const float* x, int64_t row, int64_t rows, int64_t blocks, int32_t digits, void* activations) {
    for (int64_t b = 0; b < blocks; b++)
        quantize_block(x + b * BLOCK_SIZE, b, row, rows, blocks, digits, activations);
}

void multiply_panel(const Linear& layer, int64_t panel, const void* activations, int64_t first, int64_t end,
                    int64_t rows, float* out, int64_t stride) {
    const bool four = layer.format == (int32_t)Format::FOUR_BIT;
    auto* run = layer.digits == 1 ? (four ? multiply<Format::FOUR_BIT, 1> : multiply<Format::EIGHT_BIT, 1>)
                                  : (four ? multiply<Format::FOUR_BIT, 2> : multiply<Format::EIGHT_BIT, 2>);
    run(layer, panel, activations, first, end, rows, out, stride);
}

}  // namespace gemm

extern "C" {

// x [rows, blocks · 32] → out [rows, outputs].
void ft_gemm(const float* x, const Linear* layer, float* out, int64_t rows, int32_t threads) {
    const int64_t blocks = layer->blocks, inputs = blocks * BLOCK_SIZE;
    const int64_t panels = (layer->outputs + LANES - 1) / LANES, width = layer->outputs;
    const int32_t digits = layer->digits;
    Scratch scratch(gemm::activation_bytes(rows < CHUNK ? rows : CHUNK, blocks, digits) / (int64_t)sizeof(float));
    if (rows <= FEW_ROWS)
        for (int64_t r = 0; r < rows; r++) gemm::quantize_row(x + r * inputs, r, rows, blocks, digits, scratch.data);
#pragma omp parallel num_threads(threads)
    for (int64_t begin = 0; begin < rows; begin += CHUNK) {
        const int64_t count = rows - begin < CHUNK ? rows - begin : CHUNK;
        if (rows > FEW_ROWS) {
#pragma omp for schedule(static)
            for (int64_t r = 0; r < count; r++)
                gemm::quantize_row(x + (begin + r) * inputs, r, count, blocks, digits, scratch.data);
        }
#pragma omp for schedule(static)
        for (int64_t panel = 0; panel < panels; panel++)
            gemm::multiply_panel(*layer, panel, scratch.data, 0, count, count, out + begin * width + panel * LANES,
                                 width);
    }
}

}  // extern "C"
