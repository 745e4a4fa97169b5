// Linear layers over packed weights. Quantised blocks: activations of one or two int8 digits with a scale for every 32
// of a row, integer dot products, float32 sums over the blocks in order. Half and float: float32 products, added up in
// the order of the inputs. The contract and the reference are in gemm.py, the formats in gemm.h. A row's result comes
// from the same operations in the same order whatever tile it is computed in.
#include "gemm.h"

#include <type_traits>

namespace {

constexpr int SIDE_BY_SIDE = 6;      // rows whose integer sums run beside one another
constexpr int LOW_SIDE_BY_SIDE = 3;  // rows whose low digits are computed where one of them has any
constexpr int64_t FEW_ROWS = 4;      // below, one thread quantises: cheaper than a barrier
constexpr int64_t CHUNK = 120;       // rows whose activations stay in the second-level cache; a multiple of every tile
constexpr float SMALLEST = 1e-30f;   // a block whose largest magnitude is below is zero: the factor must be finite

// What 32 inputs of a row are kept as.
template <Inputs I>
using Stored = std::conditional_t<I == Inputs::FLOAT, FloatActivation, Activation<num_digits(I)>>;

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
        out->offset = out->has_low = 0;
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
    out->has_low = DIGITS == 2;
}

// The block as if it had been rounded to its high digits.
void drop_low(Activation<2>* x) {
    int32_t total = 0;
    for (int i = 0; i < BLOCK_SIZE; i++) total += x->q[0][i];
    std::memset(x->q[1], 0, BLOCK_SIZE);
    x->sum = x->scale * (float)(256 * total);
    x->offset = lanes::UNSIGNED_8BIT ? -128 * 256 * total : 0;
    x->has_low = 0;
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

// dots[j] += Σ q·digit of N rows. A row's products are a chain, each waiting for the one before: the chains of several
// rows run side by side, since the processor does not look far enough ahead to find the next row's by itself.
template <Format F, int DIGIT, int N, class A>
inline void add_dots(const lanes::Bytes* w, const A* x, lanes::Ints* dots) {
UNROLLED
    for (int i = 0; i < BLOCK_SIZE / 4; i++)
UNROLLED
        for (int j = 0; j < N; j++) dots[j] = lanes::dot4<F>(dots[j], w[i], x[j].q[DIGIT] + 4 * i);
}

// The same for the low digits, where one of these rows has any; for the others they are zero.
template <Format F, int N>
inline void add_low_dots(const lanes::Bytes* w, const Activation<2>* x, lanes::Ints* dots) {
    constexpr int HERE = N < LOW_SIDE_BY_SIDE ? N : LOW_SIDE_BY_SIDE;
    int32_t any = 0;
UNROLLED
    for (int j = 0; j < HERE; j++) any |= x[j].has_low;
    if (any) add_dots<F, 1, HERE>(w, x, dots);
    if constexpr (N > HERE) add_low_dots<F, N - HERE>(w, x + HERE, dots + HERE);
}

// sums[j] += (d · Σ q·x) · scale of N rows.
template <Format F, Inputs I, int N>
inline void add_block(const lanes::Bytes* w, const Activation<num_digits(I)>* x, lanes::Floats scale,
                      lanes::Floats* sums) {
    constexpr bool IS_SHIFTED = F == Format::EIGHT_BIT, IS_SHORT = I == Inputs::EIGHT_BIT;
    lanes::Ints dots[N];
UNROLLED
    for (int j = 0; j < N; j++) dots[j] = lanes::start(IS_SHIFTED && IS_SHORT ? x[j].offset : 0);
    add_dots<F, 0, N>(w, x, dots);
    if constexpr (!IS_SHORT) {
UNROLLED
        for (int j = 0; j < N; j++) {
            dots[j] = lanes::next_digit(dots[j]);
            if (IS_SHIFTED) dots[j] = lanes::plus(dots[j], x[j].offset);
        }
        if constexpr (I == Inputs::MIXED) add_low_dots<F, N>(w, x, dots);
        else add_dots<F, 1, N>(w, x, dots);
    }
UNROLLED
    for (int j = 0; j < N; j++) sums[j] = lanes::add_product(sums[j], lanes::scaled(dots[j], scale), x[j].scale);
}

// sums[j] = Σ over blocks of (d · Σ q·x) · scale, and m · sum after it, of M rows and 16 outputs.
template <Format F, Inputs I, int M>
inline void add_quantised(const uint8_t* panel, const Stored<I>* x, int64_t blocks, lanes::Floats* sums) {
    constexpr int WORDS = BLOCK_SIZE / 4;
    const int64_t ahead = panel_bytes(F, blocks);  // measured: the next panel beats any distance in blocks
    const auto* d = reinterpret_cast<const uint16_t*>(panel + blocks * word_bytes(F));
    const uint16_t* m = d + blocks * LANES;
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
            add_block<F, I, M>(w, x, scale, sums);
        } else {
            add_block<F, I, SIDE_BY_SIDE>(w, x, scale, sums);
            add_block<F, I, M - SIDE_BY_SIDE>(w, x + SIDE_BY_SIDE, scale, sums + SIDE_BY_SIDE);
        }
        if (F == Format::FOUR_BIT) {
            const lanes::Floats least = lanes::load_halves(m + b * LANES);
UNROLLED
            for (int j = 0; j < M; j++) sums[j] = lanes::add_product(sums[j], least, x[j].sum);
        }
    }
}

// sums[j] = Σ w·x of M rows and 16 outputs.
template <Format F, int M>
inline void add_floats(const uint8_t* panel, const FloatActivation* x, int64_t blocks, lanes::Floats* sums) {
    const int64_t ahead = panel_bytes(F, blocks);
    for (int64_t b = 0; b < blocks; b++, panel += word_bytes(F), x += M) {
        for (int64_t i = 0; i < word_bytes(F); i += 64) __builtin_prefetch(panel + ahead + i, 0, 2);
UNROLLED
        for (int i = 0; i < BLOCK_SIZE; i++) {
            lanes::Floats w;
            if constexpr (F == Format::HALF) w = lanes::load_halves(reinterpret_cast<const uint16_t*>(panel) + i * LANES);
            else w = lanes::load_floats(reinterpret_cast<const float*>(panel) + i * LANES);
UNROLLED
            for (int j = 0; j < M; j++) sums[j] = lanes::add_product(sums[j], w, x[j].x[i]);
        }
    }
}

template <Format F, Inputs I, int M>
void multiply_tile(const uint8_t* panel, const Stored<I>* x, int64_t blocks, lanes::Floats* acc) {
    lanes::Floats sums[M];
    for (int j = 0; j < M; j++) sums[j] = lanes::zero();
    if constexpr (I == Inputs::FLOAT) add_floats<F, M>(panel, x, blocks, sums);
    else add_quantised<F, I, M>(panel, x, blocks, sums);
    for (int j = 0; j < M; j++) acc[j] = sums[j];
}

template <Format F, Inputs I, int M>
void multiply_rows(int64_t count, const uint8_t* panel, const Stored<I>* x, int64_t blocks, lanes::Floats* acc) {
    if constexpr (M > 0) {
        if (count == M) multiply_tile<F, I, M>(panel, x, blocks, acc);
        else multiply_rows<F, I, M - 1>(count, panel, x, blocks, acc);
    }
}

template <Format F, Inputs I>
void multiply(const Linear& layer, int64_t panel, const void* activations, int64_t first, int64_t end, int64_t rows,
              float* out, int64_t stride) {
    const int64_t column = panel * LANES, left = layer.outputs - column;
    const uint8_t* weights = layer.panels + panel * panel_bytes(F, layer.blocks);
    const auto* x = static_cast<const Stored<I>*>(activations);
    const vf bias = layer.bias ? load_first(layer.bias + column, left) : splat(0.0f);
    for (int64_t row = first; row < end; row += lanes::MAX_TILE) {
        lanes::Floats acc[lanes::MAX_TILE];
        const int64_t count = tile_rows(row, rows);
        multiply_rows<F, I, lanes::MAX_TILE>(count, weights, x + row * layer.blocks, layer.blocks, acc);
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

int64_t activation_bytes(int64_t rows, int64_t blocks, Inputs inputs) {
    if (inputs == Inputs::FLOAT) return rows * blocks * (int64_t)sizeof(FloatActivation);
    return rows * blocks * (int64_t)(num_digits(inputs) == 1 ? sizeof(Activation<1>) : sizeof(Activation<2>));
}

void quantize_block(const float* x, int64_t block, int64_t row, int64_t rows, int64_t blocks, Inputs inputs,
                    void* activations) {
    const int64_t at = place(row, rows, block, blocks);
    if (inputs == Inputs::FLOAT) std::memcpy(static_cast<FloatActivation*>(activations) + at, x, sizeof(FloatActivation));
    else if (num_digits(inputs) == 1) quantize_to<1>(x, static_cast<Activation<1>*>(activations) + at);
    else quantize_to<2>(x, static_cast<Activation<2>*>(activations) + at);
}

// A block's rounding error goes with the square of its scale. Blocks whose square is below the row's mean keep the
// high digit alone. (Squares of floats are exact in double, so nobody may round them otherwise.)
void drop_low_digits(int64_t row, int64_t rows, int64_t blocks, void* activations) {
    Activation<2>* x = static_cast<Activation<2>*>(activations) + place(row, rows, 0, blocks);
    const int64_t stride = place(row, rows, 1, blocks) - place(row, rows, 0, blocks);
    double total = 0.0;
    for (int64_t b = 0; b < blocks; b++) total += (double)x[b * stride].scale * x[b * stride].scale;
    for (int64_t b = 0; b < blocks; b++, x += stride)
        if (!((double)x->scale * x->scale * (double)blocks >= total)) drop_low(x);
}

void quantize_row(const float* x, int64_t row, int64_t rows, int64_t blocks, Inputs inputs, void* activations) {
    for (int64_t b = 0; b < blocks; b++)
        quantize_block(x + b * BLOCK_SIZE, b, row, rows, blocks, inputs, activations);
    if (inputs == Inputs::MIXED) drop_low_digits(row, rows, blocks, activations);
}

void multiply_panel(const Linear& layer, int64_t panel, const void* activations, int64_t first, int64_t end,
                    int64_t rows, float* out, int64_t stride) {
    const auto run = [&](auto* multiply) { multiply(layer, panel, activations, first, end, rows, out, stride); };
    const bool four = layer.format == (int32_t)Format::FOUR_BIT, half = layer.format == (int32_t)Format::HALF;
    switch (layer.inputs) {
        case Inputs::EIGHT_BIT:
            return run(four ? multiply<Format::FOUR_BIT, Inputs::EIGHT_BIT> : multiply<Format::EIGHT_BIT, Inputs::EIGHT_BIT>);
        case Inputs::SIXTEEN_BIT:
            return run(four ? multiply<Format::FOUR_BIT, Inputs::SIXTEEN_BIT>
                            : multiply<Format::EIGHT_BIT, Inputs::SIXTEEN_BIT>);
        case Inputs::MIXED:
            return run(four ? multiply<Format::FOUR_BIT, Inputs::MIXED> : multiply<Format::EIGHT_BIT, Inputs::MIXED>);
        case Inputs::FLOAT:
            return run(half ? multiply<Format::HALF, Inputs::FLOAT> : multiply<Format::FLOAT, Inputs::FLOAT>);
    }
}

}  // namespace gemm

extern "C" {

// x [rows, blocks · 32] → out [rows, outputs].
void ft_gemm(const float* x, const Linear* layer, float* out, int64_t rows, int32_t threads) {
    const int64_t blocks = layer->blocks, floats = blocks * BLOCK_SIZE;
    const int64_t panels = (layer->outputs + LANES - 1) / LANES, width = layer->outputs;
    const Inputs inputs = layer->inputs;
    Scratch scratch(gemm::activation_bytes(rows < CHUNK ? rows : CHUNK, blocks, inputs) / (int64_t)sizeof(float));
    if (rows <= FEW_ROWS)
        for (int64_t r = 0; r < rows; r++) gemm::quantize_row(x + r * floats, r, rows, blocks, inputs, scratch.data);
#pragma omp parallel num_threads(threads)
    for (int64_t begin = 0; begin < rows; begin += CHUNK) {
        const int64_t count = rows - begin < CHUNK ? rows - begin : CHUNK;
        if (rows > FEW_ROWS) {
#pragma omp for schedule(static)
            for (int64_t r = 0; r < count; r++)
                gemm::quantize_row(x + (begin + r) * floats, r, count, blocks, inputs, scratch.data);
        }
#pragma omp for schedule(static)
        for (int64_t panel = 0; panel < panels; panel++)
            gemm::multiply_panel(*layer, panel, scratch.data, 0, count, count, out + begin * width + panel * LANES,
                                 width);
    }
}

}  // extern "C"
