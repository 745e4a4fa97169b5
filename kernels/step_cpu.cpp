// A whole forward pass of a Llama-like model in one call: every layer over packed weights, as one job of a
// team. It is made of the very functions of the single operations (gemm_cpu.cpp, layer_cpu.cpp, attention_cpu.cpp),
// so that its results have their bits. The contract is in step.py.
//
// Between phases lie these arrays:
//     stream, delta [rows, hidden]        the residual stream, and what the last linear layer adds to it
//     qkv, q        [rows, …]             the first linear layer's outputs; rotated queries
//     narrow, wide  activations of the layers that read `hidden` (or the heads), and `inner` values
#include <algorithm>

#include "attention.h"
#include "gemm.h"
#include "layer.h"
#include "team.h"

struct StepLayer {
    const float *attention_norm, *q_norm, *k_norm, *mlp_norm;  // q_norm and k_norm may be null
    Linear qkv, output, gate_up, down;
};

struct StepModel {
    const StepLayer* layers;
    const float *embedding, *norm, *cos, *sin;
    Linear head;
    int64_t num_layers, hidden, inner, q_heads, kv_heads, head_dim;
    float eps, scale;  // scale multiplies the queries
};

struct StepInput {
    const int64_t *ids, *positions, *slots, *logit_rows;
    float *k_pages, *v_pages, *logits, *workspace;
    const int64_t* hidden_rows;
    float* hidden;  // [num_hidden, hidden]: final states of `hidden_rows`
    AttentionPlan plan;
    int64_t rows, pairs, most_pairs, num_logits, num_hidden;  // most_pairs: of a block of rows
    int64_t layer_floats;                                     // from one layer's pages to the next one's
};

namespace {

constexpr int64_t CHUNK = 120;         // rows whose activations stay in the second-level cache
constexpr int64_t PANELS_PER_BLOCK = BLOCK_SIZE / LANES;
constexpr int64_t ROW_BLOCK = 32;     // rows whose attention may be one piece of work (also in step.py)
constexpr int64_t PIECES = 8;          // for each thread, at least: fewer do not even out

int64_t num_row_blocks(int64_t rows) { return (rows + ROW_BLOCK - 1) / ROW_BLOCK; }

// Whether a block of rows and a head of keys is one piece of work from its keys to its merged results: the partial
// results then stay in the second-level cache. It takes many rows to have a piece for everybody.
bool is_by_blocks(const StepModel& m, int64_t rows, int32_t threads) {
    return num_row_blocks(rows) * m.kv_heads >= PIECES * threads;
}

// Lays arrays one behind another; with no memory it only counts.
class Arena {
  public:
    explicit Arena(float* memory) : memory_(memory) {}
    float* take(int64_t floats) {
        float* at = memory_ ? memory_ + used_ : nullptr;
        used_ += (floats + LANES - 1) / LANES * LANES;
        return at;
    }
    int64_t used() const { return used_; }

  private:
    float* memory_;
    int64_t used_ = 0;
};

struct Workspace {
    float *stream, *delta, *qkv, *q, *partial, *narrow, *wide, *scratch;
    int64_t scratch_floats, block_floats, floats;

    Workspace(const StepModel& m, int64_t rows, int64_t pairs, int64_t most_pairs, int64_t num_logits, int64_t split,
              int32_t threads, float* memory) {
        Arena arena(memory);
        const int64_t heads = m.q_heads * m.head_dim, widest = heads > m.hidden ? heads : m.hidden;
        const int64_t most = rows > num_logits ? rows : num_logits;
        const auto quantized = [&](int64_t n, int64_t width) {  // as the layer that takes most
            int64_t bytes = gemm::activation_bytes(n, width / BLOCK_SIZE, m.head.inputs);
            for (int64_t i = 0; i < m.num_layers; i++)
                for (const Linear* layer : {&m.layers[i].qkv, &m.layers[i].output, &m.layers[i].gate_up, &m.layers[i].down})
                    bytes = std::max(bytes, gemm::activation_bytes(n, width / BLOCK_SIZE, layer->inputs));
            return bytes / 4;
        };
        stream = arena.take(rows * m.hidden);
        delta = arena.take(rows * m.hidden);
        qkv = arena.take(rows * (heads + 2 * m.kv_heads * m.head_dim));
        q = arena.take(rows * heads);
        const int64_t each = m.q_heads * (attention::padded_dim(m.head_dim) + 2);
        block_floats = (most_pairs * each / m.kv_heads + LANES - 1) / LANES * LANES;
        partial = arena.take(is_by_blocks(m, rows, threads) ? block_floats * threads : pairs * each);
        narrow = arena.take(quantized(most, widest));
        wide = arena.take(quantized(rows, m.inner));
        const int64_t attend = attention::scratch_floats(m.head_dim, split), join = widest + m.hidden + m.head_dim + LANES;
        const int64_t gates = 2 * BLOCK_SIZE * CHUNK + BLOCK_SIZE;
        scratch_floats = attend > join ? attend : join;
        scratch_floats = (scratch_floats > gates ? scratch_floats : gates) + LANES;
        scratch_floats = (scratch_floats + LANES - 1) / LANES * LANES;
        scratch = arena.take(scratch_floats * threads);
        floats = arena.used();
    }
};

class Step final : public Job {
  public:
    Step(const StepModel& model, const StepInput& input, const Workspace& space, int32_t threads)
        : m_(model),
          layers_(model.layers, model.layers + model.num_layers),
          in_(input),
          w_(space),
          attention_{space.q,       nullptr,        nullptr,        nullptr, nullptr, input.plan,
                     model.q_heads, model.kv_heads, model.head_dim, model.scale} {
        if (is_by_blocks(model, input.rows, threads)) list_readers();
    }

    void run(Member& team, int32_t thread) const override {
        float* scratch = w_.scratch + thread * w_.scratch_floats;
        for (int64_t i = 0; i < m_.num_layers; i++) {
            const StepLayer& layer = layers_[i];
            normalize(team, layer.attention_norm, layer.qkv, i == 0, scratch);
            multiply(team, layer.qkv, w_.narrow, in_.rows, w_.qkv);
            attend(team, layer, i, thread, scratch);
            multiply(team, layer.output, w_.narrow, in_.rows, w_.delta);
            normalize(team, layer.mlp_norm, layer.gate_up, false, scratch);
            gate(team, layer, scratch);
            multiply(team, layer.down, w_.wide, in_.rows, w_.delta);
        }
        if (in_.num_hidden) tell_states(team, scratch);
        predict(team, scratch);
    }

  private:
    const StepModel m_;
    const std::vector<StepLayer> layers_;
    const StepInput in_;
    const Workspace w_;
    const Attention attention_;
    std::vector<Readers> readers_;       // who reads what, by blocks of rows, where `is_by_blocks`
    std::vector<int32_t> block_start_;  // [blocks + 1]

    void list_readers() {
        const AttentionPlan& plan = in_.plan;
        std::vector<std::vector<Readers>> blocks(num_row_blocks(in_.rows));
        for (int64_t item = 0; item < plan.items; item++)
            for (int32_t begin = plan.item_start[item], end; begin < plan.item_start[item + 1]; begin = end) {
                const int64_t block = plan.entry_row[begin] / ROW_BLOCK;
                for (end = begin + 1; end < plan.item_start[item + 1]; end++)
                    if (plan.entry_row[end] / ROW_BLOCK != block) break;
                blocks[block].push_back({item, begin, end});
            }
        for (const auto& block : blocks) {
            block_start_.push_back((int32_t)readers_.size());
            readers_.insert(readers_.end(), block.begin(), block.end());
        }
        block_start_.push_back((int32_t)readers_.size());
    }

    // stream += delta (or the embedding), then its norm as activations of the next layer.
    void normalize(Member& team, const float* weight, const Linear& next, bool is_first, float* scratch) const {
        team.share(in_.rows, 1, [&](int64_t row, int64_t) {
            float *x = w_.stream + row * m_.hidden, *delta = w_.delta + row * m_.hidden;
            if (is_first) std::memcpy(x, m_.embedding + in_.ids[row] * m_.hidden, m_.hidden * sizeof(float));
            layer::add_and_normalize(x, is_first ? nullptr : delta, weight, m_.hidden, m_.eps, scratch);
            gemm::quantize_row(scratch, row, in_.rows, next.blocks, next.inputs, w_.narrow);
        });
    }

    // Pieces of work of a linear layer: `groups` of outputs for every chunk of rows.
    template <class F>
    void over_chunks(Member& team, int64_t groups, int64_t rows, F&& f) const {
        const int64_t chunks = (rows + CHUNK - 1) / CHUNK, total = groups * chunks;
        const int64_t most = rows < 16 ? team.grain(total) : 1;
        team.share(total, most, [&](int64_t begin, int64_t end) {
            for (int64_t work = begin; work < end; work++) {
                const int64_t first = work / groups * CHUNK;
                f(work % groups, first, first + CHUNK < rows ? first + CHUNK : rows);
            }
        });
    }

    void multiply(Member& team, const Linear& layer, const void* x, int64_t rows, float* out) const {
        over_chunks(team, (layer.outputs + LANES - 1) / LANES, rows, [&](int64_t panel, int64_t first, int64_t end) {
            gemm::multiply_panel(layer, panel, x, first, end, rows, out + first * layer.outputs + panel * LANES,
                                 layer.outputs);
        });
    }

    // New keys and values to their slots, then every query over what it sees, as activations of the output layer.
    void attend(Member& team, const StepLayer& layer, int64_t index, int32_t thread, float* scratch) const {
        Attention a = attention_;
        float *k_pages = in_.k_pages + index * in_.layer_floats, *v_pages = in_.v_pages + index * in_.layer_floats;
        a.k_pages = k_pages;
        a.v_pages = v_pages;
        const Rotary rotary{m_.cos,    m_.sin,     layer.q_norm, layer.k_norm, in_.positions,
                            in_.slots, m_.q_heads, m_.kv_heads,  m_.head_dim,  m_.eps};
        const int64_t heads = m_.q_heads * m_.head_dim, width = heads + 2 * m_.kv_heads * m_.head_dim;
        team.share(in_.rows, 1, [&](int64_t row, int64_t) {
            layer::rotate_and_write(rotary, row, w_.qkv + row * width, w_.q + row * heads, k_pages, v_pages, scratch);
        });
        if (!block_start_.empty()) return attend_blocks(team, layer, a, thread, scratch);
        const int64_t padded = attention::padded_dim(m_.head_dim);
        const Partials all{w_.partial, w_.partial + in_.pairs * m_.q_heads * padded, 0, 0, m_.q_heads};
        team.share(a.plan.items * m_.kv_heads, 1, [&](int64_t work, int64_t) {
            attention::attend_item(a, all, attention::readers_of(a.plan, work / m_.kv_heads), work % m_.kv_heads, scratch);
        });
        team.share(in_.rows, 1, [&](int64_t row, int64_t) {
            float* out = scratch + padded;
            for (int64_t h = 0; h < m_.q_heads; h++)
                attention::merge_head(a, all, row, h, scratch, out + h * m_.head_dim);
            gemm::quantize_row(out, row, in_.rows, layer.output.blocks, layer.output.inputs, w_.narrow);
        });
    }

    // The same, a block of rows and a head of keys at a time. Its results take the place of its queries.
    void attend_blocks(Member& team, const StepLayer& layer, const Attention& a, int32_t thread, float* scratch) const {
        const int64_t group = m_.q_heads / m_.kv_heads, heads = m_.q_heads * m_.head_dim;
        float* partial = w_.partial + thread * w_.block_floats;
        float* stats = partial + in_.most_pairs * group * attention::padded_dim(m_.head_dim);
        team.share((int64_t)(block_start_.size() - 1) * m_.kv_heads, 1, [&](int64_t work, int64_t) {
            const int64_t block = work / m_.kv_heads, head = work % m_.kv_heads, first = block * ROW_BLOCK;
            const Partials here{partial, stats, a.plan.row_pair_start[first], head * group, group};
            for (int32_t i = block_start_[block]; i < block_start_[block + 1]; i++)
                attention::attend_item(a, here, readers_[i], head, scratch);
            for (int64_t row = first; row < first + ROW_BLOCK && row < in_.rows; row++)
                for (int64_t h = head * group; h < (head + 1) * group; h++)
                    attention::merge_head(a, here, row, h, scratch, w_.q + row * heads + h * m_.head_dim);
        });
        team.share(in_.rows, 1, [&](int64_t row, int64_t) {
            gemm::quantize_row(w_.q + row * heads, row, in_.rows, layer.output.blocks, layer.output.inputs, w_.narrow);
        });
    }

    // silu(gate) · up, 32 of them for a chunk of rows at a time, as activations of the down layer.
    void gate(Member& team, const StepLayer& layer, float* scratch) const {
        const int64_t up = m_.inner / LANES;
        float* product = scratch + 2 * BLOCK_SIZE * CHUNK;
        over_chunks(team, m_.inner / BLOCK_SIZE, in_.rows, [&](int64_t block, int64_t first, int64_t end) {
            for (int64_t p = 0; p < PANELS_PER_BLOCK; p++) {
                const int64_t panel = block * PANELS_PER_BLOCK + p;
                float* out = scratch + p * LANES;
                gemm::multiply_panel(layer.gate_up, panel, w_.narrow, first, end, in_.rows, out, 2 * BLOCK_SIZE);
                gemm::multiply_panel(layer.gate_up, up + panel, w_.narrow, first, end, in_.rows, out + BLOCK_SIZE,
                                     2 * BLOCK_SIZE);
            }
            for (int64_t row = first; row < end; row++) {
                const float* gates = scratch + (row - first) * 2 * BLOCK_SIZE;
                layer::silu_mul(gates, gates + BLOCK_SIZE, product, BLOCK_SIZE);
                gemm::quantize_block(product, block, row, in_.rows, layer.down.blocks, layer.down.inputs, w_.wide);
            }
        });
        if (layer.down.inputs != Inputs::MIXED) return;
        team.share(in_.rows, 1, [&](int64_t row, int64_t) {
            gemm::drop_low_digits(row, in_.rows, layer.down.blocks, w_.wide);
        });
    }

    // A row's final state to `scratch`. The stream stays as it is: a row may be asked for twice.
    void finish_row(int64_t row, float* scratch) const {
        float* x = scratch + m_.hidden;
        std::memcpy(x, w_.stream + row * m_.hidden, m_.hidden * sizeof(float));
        layer::add_and_normalize(x, w_.delta + row * m_.hidden, m_.norm, m_.hidden, m_.eps, scratch);
    }

    void tell_states(Member& team, float* scratch) const {
        team.share(in_.num_hidden, 1, [&](int64_t i, int64_t) {
            finish_row(in_.hidden_rows[i], scratch);
            std::memcpy(in_.hidden + i * m_.hidden, scratch, m_.hidden * sizeof(float));
        });
    }

    // Logits of the rows that are asked for.
    void predict(Member& team, float* scratch) const {
        team.share(in_.num_logits, 1, [&](int64_t i, int64_t) {
            finish_row(in_.logit_rows[i], scratch);
            gemm::quantize_row(scratch, i, in_.num_logits, m_.head.blocks, m_.head.inputs, w_.narrow);
        });
        multiply(team, m_.head, w_.narrow, in_.num_logits, in_.logits);
    }
};

}  // namespace

extern "C" {

int64_t ft_step_floats(const StepModel* model, int64_t rows, int64_t pairs, int64_t most_pairs, int64_t num_logits,
                       int64_t split, int32_t threads) {
    return Workspace(*model, rows, pairs, most_pairs, num_logits, split, threads, nullptr).floats;
}

// A team is made once and lives as long as its owner wants; one step at a time.
Team* ft_team_new(int32_t threads) { return new Team(threads); }
void ft_team_free(Team* team) { delete team; }

void ft_step(const StepModel* model, const StepInput* input, Team* team) {
    const Workspace space(*model, input->rows, input->pairs, input->most_pairs, input->num_logits, input->plan.split,
                          team->size(), input->workspace);
    team->run(std::make_shared<Step>(*model, *input, space, team->size()));
}

}  // extern "C"
