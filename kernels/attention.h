// Paged attention, piece by piece, for whoever has a team of threads; the contract is in attention.py.
#pragma once
#include <cstdint>

// `NativePlan` of attention_plan.py; the arrays are those of AttentionPlan.
struct AttentionPlan {
    const int32_t *item_page_start, *item_pages, *item_unit, *item_start;
    const int32_t *entry_row, *entry_count, *entry_pair, *row_pair_start;
    int64_t items, rows, split;
};

// Some of an item's entries, [begin, end).
struct Readers {
    int64_t item;
    int32_t begin, end;
};

// `Attention` of structs.py.
struct Attention {
    const float *q, *k_pages, *v_pages;
    float *partial, *stats;  // of all pairs and heads; for ft_attend
    AttentionPlan plan;
    int64_t q_heads, kv_heads, head_dim;
    float scale;
};

// Where partial results go: those of pairs from `first_pair` on and of `heads` query heads from `first_head` on.
// `partial` is [pairs, heads, padded_dim], `stats` [pairs, heads, 2].
struct Partials {
    float *partial, *stats;
    int64_t first_pair, first_head, heads;
    int64_t at(int64_t pair, int64_t head) const { return (pair - first_pair) * heads + head - first_head; }
};

namespace attention {
static inline Readers readers_of(const AttentionPlan& plan, int64_t item) {
    return {item, plan.item_start[item], plan.item_start[item + 1]};
}
int64_t padded_dim(int64_t head_dim);
int64_t scratch_floats(int64_t head_dim, int64_t split);
// An item for one head of keys: partial results of the queries of these readers.
void attend_item(const Attention& a, const Partials& to, const Readers& readers, int64_t head, float* scratch);
// A query head's result [head_dim] from its partial ones.
void merge_head(const Attention& a, const Partials& from, int64_t row, int64_t head, float* scratch, float* out);
}  // namespace attention
