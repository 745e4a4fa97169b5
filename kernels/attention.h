// Paged attention, piece by piece, for whoever has a team of threads; the contract is in attention.py.
#pragma once
#include <cstdint>

// `NativePlan` of attention_plan.py; the arrays are those of AttentionPlan.
struct AttentionPlan {
    const int32_t *item_page_start, *item_pages, *item_unit, *item_start;
    const int32_t *entry_row, *entry_count, *entry_pair, *row_pair_start;
    int64_t items, rows, split;
};

// `NativeAttention` of attention.py. `partial` is [pairs, q_heads, padded_dim], `stats` [pairs, q_heads, 2].
struct Attention {
    const float *q, *k_pages, *v_pages;
    float *partial, *stats;
    AttentionPlan plan;
    int64_t q_heads, kv_heads, head_dim;
    float scale;
};

namespace attention {
int64_t padded_dim(int64_t head_dim);
int64_t scratch_floats(int64_t head_dim, int64_t split);
// One item for one head of keys: partial results of every query that reads it.
void attend_item(const Attention& a, int64_t item, int64_t head, float* scratch);
// A query head's result [head_dim] from its partial ones.
void merge_head(const Attention& a, int64_t row, int64_t head, float* scratch, float* out);
}  // namespace attention
