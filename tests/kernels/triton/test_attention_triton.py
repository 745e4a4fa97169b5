"""Triton's attention equals the plain reference, and a row's bits do not depend on how it is computed.

Slots that no row sees are NaN, and so is the result before it is written.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paged import Pool, make_pool

from forktree.kernels.attention import attend, plan_attention
from forktree.kernels.attention_triton import attend_triton, tile_shape
from forktree.kernels.attention_triton_plan import ARRAYS, PlanBuffer, TritonPlan, plan_triton
from forktree.kernels.checks import ShapeError
from forktree.kernels.token_tree import TokenTree

ROUNDING = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""Largest difference from the reference on the rounded inputs: weights and result are rounded to the type."""

CASES = [  # type, q_heads, kv_heads, head_dim, page_size, split
    (torch.float32, 9, 3, 64, 16, 64),
    (torch.bfloat16, 4, 4, 80, 8, 32),
    (torch.float16, 6, 2, 96, 1, 48),
    (torch.bfloat16, 8, 1, 128, 128, 128),
    (torch.float32, 2, 1, 256, 32, 32),
    (torch.float16, 4, 2, 256, 4, 64),
    (torch.float32, 3, 3, 7, 2, 16),
]


class Setup:
    """A pool on a device, in some type, and the same numbers for the reference."""

    def __init__(self, pool: Pool, dtype: torch.dtype, device: torch.device) -> None:
        self.pool = pool
        self.k, self.v = pool.k.to(device, dtype), pool.v.to(device, dtype)

    def queries(self, num: int, q_heads: int, seed: int = 3) -> torch.Tensor:
        noise = torch.Generator().manual_seed(seed)
        return torch.randn(num, q_heads, self.k.shape[3], generator=noise).to(self.k)

    def plan(
        self, q: torch.Tensor, seqs: list[int], positions: list[int], split: int, window: int | None = None, **tree
    ) -> TritonPlan:
        return plan_triton(
            self.pool.tables,
            seqs,
            positions,
            self.pool.page_size,
            split,
            group=q.shape[1] // self.k.shape[2],
            tile_queries=tile_shape(q.dtype, q.shape[2]).queries,
            window=window,
            **tree,
        )

    def attend(
        self,
        q: torch.Tensor,
        seqs: list[int],
        positions: list[int],
        split: int,
        window: int | None = None,
        soft_cap: float | None = None,
        **tree,
    ) -> torch.Tensor:
        plan = self.plan(q, seqs, positions, split, window, **tree).to(q.device)
        out = torch.full_like(q, float("nan"))
        return attend_triton(q, self.k, self.v, plan, scale=q.shape[2] ** -0.5, soft_cap=soft_cap, out=out)

    def reference(
        self,
        q: torch.Tensor,
        seqs: list[int],
        positions: list[int],
        split: int,
        window: int | None = None,
        soft_cap: float | None = None,
        **tree,
    ) -> torch.Tensor:
        plan = plan_attention(self.pool.tables, seqs, positions, self.pool.page_size, split, **tree)
        q, k, v = q.cpu().float(), self.k.cpu().float(), self.v.cpu().float()
        return attend(q, k, v, plan, scale=q.shape[2] ** -0.5, window=window, soft_cap=soft_cap)


def make(
    dtype: torch.dtype, device: torch.device, lengths: list[int], *, page_size: int, kv_heads: int, head_dim: int,
    num_shared: int = 0,
) -> Setup:  # fmt: skip
    pool = make_pool(lengths, page_size=page_size, kv_heads=kv_heads, head_dim=head_dim, num_shared=num_shared, seed=5)
    return Setup(pool, dtype, device)


def assert_near(out: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = ROUNDING[out.dtype]
    torch.testing.assert_close(out.cpu().float(), expected, atol=tolerance, rtol=tolerance)


def chunk_of(seq: int, begin: int, end: int) -> tuple[list[int], list[int]]:
    return [seq] * (end - begin), list(range(begin, end))


# --- beside the reference --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "q_heads", "kv_heads", "head_dim", "page_size", "split"), CASES)
def test_decode_and_prefill_in_one_step_equal_the_reference(
    dtype: torch.dtype, q_heads: int, kv_heads: int, head_dim: int, page_size: int, split: int, device: torch.device
) -> None:
    setup = make(dtype, device, [split + 9, 1, split + 20], page_size=page_size, kv_heads=kv_heads, head_dim=head_dim)
    seqs, positions = chunk_of(2, split - 1, split + 17)
    seqs, positions = [0, 0, 1, *seqs], [split - 1, split + 8, 0, *positions]
    q = setup.queries(len(seqs), q_heads)
    assert_near(setup.attend(q, seqs, positions, split), setup.reference(q, seqs, positions, split))


@pytest.mark.parametrize("window", [1, 20, 64])
@pytest.mark.parametrize("soft_cap", [None, 3.0])
def test_windows_and_soft_caps_equal_softmax_attention(
    window: int, soft_cap: float | None, device: torch.device
) -> None:
    setup = make(torch.float32, device, [90], page_size=4, kv_heads=1, head_dim=16)
    seqs, positions = chunk_of(0, 60, 78)
    seqs, positions = [0, *seqs], [89, *positions]
    q = setup.queries(len(seqs), 2) * 4
    k, v = (x.double()[:, 0] for x in setup.pool.dense(0, 90))
    scores = torch.einsum("rhd,td->rht", q.cpu().double(), k) * 16**-0.5
    if soft_cap is not None:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    row, key = torch.tensor(positions)[:, None], torch.arange(90)[None, :]
    scores = scores.masked_fill(((key > row) | (key <= row - window))[:, None], float("-inf"))
    expected = torch.einsum("rht,td->rhd", torch.softmax(scores, -1), v).float()
    torch.testing.assert_close(
        setup.reference(q, seqs, positions, 32, window, soft_cap), expected, atol=5e-6, rtol=1e-5
    )
    torch.testing.assert_close(
        setup.attend(q, seqs, positions, 32, window, soft_cap).cpu(), expected, atol=5e-6, rtol=1e-5
    )


@pytest.mark.parametrize("factor", [1e-30, 300.0, -3e4])
def test_scores_far_from_zero_give_finite_results(factor: float, device: torch.device) -> None:
    setup = make(torch.float32, device, [40], page_size=8, kv_heads=1, head_dim=16)
    setup.k[:] = setup.k.abs() * factor
    q = setup.queries(1, 2).abs()
    out = setup.attend(q, [0], [39], 32)
    assert out.isfinite().all()
    torch.testing.assert_close(out.cpu(), setup.reference(q, [0], [39], 32), atol=1e-4, rtol=1e-4)


@given(data=st.data())
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_step_equals_the_reference(data: st.DataObject, device: torch.device) -> None:
    page_size = data.draw(st.sampled_from([1, 2, 8, 16]))
    kv_heads, group = data.draw(st.sampled_from([(1, 1), (1, 5), (2, 2)]))
    lengths = data.draw(st.lists(st.integers(1, 70), min_size=1, max_size=4))
    num_shared = data.draw(st.integers(0, 40)) // page_size
    head_dim = data.draw(st.integers(1, 40))
    setup = make(
        torch.float32, device, lengths, page_size=page_size, kv_heads=kv_heads, head_dim=head_dim, num_shared=num_shared
    )
    rows: list[tuple[int, int]] = []
    for seq, length in enumerate(lengths):
        num = data.draw(st.integers(1, min(length, 20)))
        rows += [(seq, position) for position in range(length - num, length)]
    q = setup.queries(len(rows), kv_heads * group, seed=data.draw(st.integers(0, 99)))
    step = [seq for seq, _ in rows], [position for _, position in rows]
    window, soft_cap = data.draw(st.sampled_from([None, 7, 40])), data.draw(st.sampled_from([None, 2.0]))
    out = setup.attend(q, *step, 32, window, soft_cap)
    assert_near(out, setup.reference(q, *step, 32, window, soft_cap))


# --- bits ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_has_the_same_bits_alone_and_among_sharers(dtype: torch.dtype, device: torch.device) -> None:
    setup = make(dtype, device, [39, 50, 45, 35, 64], page_size=8, kv_heads=2, head_dim=32, num_shared=4)
    seqs, positions = [0, 1, 1, 2, 3, 4], [38, 40, 49, 44, 34, 63]
    q = setup.queries(6, 6)
    together = setup.attend(q, seqs, positions, 32)
    for row in range(6):
        alone = setup.attend(q[row : row + 1].clone(), [seqs[row]], [positions[row]], 32)
        assert torch.equal(alone[0], together[row]), row


@pytest.mark.parametrize(("dtype", "window"), [(torch.float32, None), (torch.bfloat16, None), (torch.float32, 25)])
def test_a_row_has_the_same_bits_in_a_chunk_and_alone(
    dtype: torch.dtype, window: int | None, device: torch.device
) -> None:
    setup = make(dtype, device, [80], page_size=8, kv_heads=1, head_dim=32)
    seqs, positions = chunk_of(0, 40, 71)
    q = setup.queries(len(seqs), 3)
    chunk = setup.attend(q, seqs, positions, 32, window)
    for row in (0, 7, 23, 24, 30):
        alone = setup.attend(q[row : row + 1].clone(), [0], [positions[row]], 32, window)
        assert torch.equal(alone[0], chunk[row]), row


def test_a_prompt_has_the_same_bits_however_it_is_cut(device: torch.device) -> None:
    setup = make(torch.float16, device, [70], page_size=4, kv_heads=1, head_dim=48)
    q = setup.queries(70, 2)
    whole = setup.attend(q, *chunk_of(0, 0, 70), 32)
    parts = [setup.attend(q[a:b].clone(), *chunk_of(0, a, b), 32) for a, b in [(0, 3), (3, 36), (36, 70)]]
    assert torch.equal(torch.cat(parts), whole)


def test_the_page_size_changes_no_bit(device: torch.device) -> None:
    results = []
    for page_size in (1, 32):
        setup = make(torch.float32, device, [70], page_size=page_size, kv_heads=1, head_dim=32)
        seqs, positions = chunk_of(0, 40, 58)
        results.append(setup.attend(setup.queries(19, 2), [0, *seqs], [69, *positions], 32))
    assert torch.equal(results[0], results[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_of_a_tree_has_the_bits_of_its_branch_as_a_sequence(dtype: torch.dtype, device: torch.device) -> None:
    """Options behind 29 tokens, split at 32: each way down the tree is laid out once more in pages of its own."""
    tree = TokenTree(29, [28, 29, 30, 31, 32, 30, 34, 35, 28, 37])
    setup = make(dtype, device, [29 + len(tree.parents)], page_size=4, kv_heads=1, head_dim=16)
    places = list(range(29, 29 + len(tree.parents)))
    ways = [[*range(29), *tree.path_to(place)] for place in places]
    seqs, positions = [0] * (1 + len(ways)), [28, *(len(way) - 1 for way in ways)]
    q = setup.queries(len(seqs), 3)
    rows = {"trees": {0: tree}, "places": dict(enumerate(places, 1))}
    together = setup.attend(q, seqs, positions, 32, **rows)
    assert_near(together, setup.reference(q, seqs, positions, 32, **rows))
    for row, way in enumerate(ways, 1):
        if row % 3 == 0 or len(way) > 32:
            alone = branch_alone(setup, way).attend(q[row : row + 1].clone(), [0], [len(way) - 1], 32)
            assert torch.equal(alone[0], together[row]), way


def branch_alone(setup: Setup, way: list[int]) -> Setup:
    size = setup.pool.page_size
    pool = make_pool([len(way)], page_size=size, kv_heads=setup.k.shape[2], head_dim=setup.k.shape[3])
    alone = Setup(pool, setup.k.dtype, setup.k.device)
    for position, place in enumerate(way):
        at = pool.tables[0][position // size], position % size
        came = setup.pool.tables[0][place // size], place % size
        alone.k[at], alone.v[at] = setup.k[came], setup.v[came]
    return alone


# --- launches that are captured --------------------------------------------------------------------------------


def test_a_buffer_serves_plans_of_any_size_and_writes_only_their_rows(device: torch.device) -> None:
    """A long plan, then a short one behind it: what the first left in the arrays is not read again."""
    setup = make(torch.float32, device, [90, 70, 20], page_size=8, kv_heads=1, head_dim=16, num_shared=4)
    buffer = PlanBuffer(device, dict.fromkeys(ARRAYS, 24))
    long = setup.plan(setup.queries(4, 2), [0, 1, 1, 2], [89, 60, 69, 19], 32)
    short = setup.plan(setup.queries(1, 2), [1], [69], 32)
    launched = buffer.plan_like(long, num_rows=6, num_pairs=16)
    for plan, seqs, positions in ((long, [0, 1, 1, 2], [89, 60, 69, 19]), (short, [1], [69])):
        q = setup.queries(6, 2)
        buffer.load(plan)
        out = torch.full_like(q, float("nan"))
        attend_triton(q, setup.k, setup.v, launched, scale=0.25, out=out)
        num = len(seqs)
        assert torch.equal(out[:num], setup.attend(q[:num].clone(), seqs, positions, 32))
        assert out[num:].isnan().all()


def test_offsets_beyond_31_bits_are_read_where_they_lie(device: torch.device) -> None:
    num_pages = (1 << 31) // (16 * 128) + 2
    try:
        k = torch.empty(num_pages, 16, 1, 128, dtype=torch.float16, device=device)  # 4.3 GB that are not touched
    except RuntimeError as error:
        pytest.skip(f"no room for a pool of 2^31 numbers: {error}")
    small = make(torch.float16, device, [12], page_size=16, kv_heads=1, head_dim=128)
    q = small.queries(1, 4)
    k[num_pages - 1] = small.k[small.pool.tables[0][0]]
    plan = plan_triton([[num_pages - 1]], [0], [11], 16, 32, group=4, tile_queries=64).to(device)
    out = attend_triton(q, k, k, plan, scale=0.1)
    expected = plan_attention(small.pool.tables, [0], [11], 16, 32)
    k32 = small.k.cpu().float()
    assert_near(out, attend(q.cpu().float(), k32, k32, expected, scale=0.1))


# --- the contract ----------------------------------------------------------------------------------------------


def test_attend_takes_a_plan_for_a_gpu(device: torch.device) -> None:
    setup = make(torch.float32, device, [20], page_size=4, kv_heads=1, head_dim=16)
    q = setup.queries(1, 2)
    plan = setup.plan(q, [0], [19], 16, window=5).to(device)
    out = attend(q, setup.k, setup.v, plan, scale=0.25, window=5)
    assert_near(out, setup.reference(q, [0], [19], 16, window=5))
    with pytest.raises(ShapeError, match="the plan is for a window of 5, not None"):
        attend(q, setup.k, setup.v, plan, scale=0.25)


def test_no_rows_give_no_results(device: torch.device) -> None:
    setup = make(torch.float32, device, [4], page_size=4, kv_heads=1, head_dim=16)
    assert setup.attend(setup.queries(0, 2), [], [], 16).shape == (0, 2, 16)


def test_what_does_not_fit_is_named(device: torch.device) -> None:
    setup = make(torch.float32, device, [20], page_size=4, kv_heads=2, head_dim=16)
    q = setup.queries(1, 4)
    plan = setup.plan(q, [0], [19], 16).to(device)
    with pytest.raises(ShapeError, match=r"k_pages must be torch.float32, not torch.float16"):
        attend_triton(q, setup.k.half(), setup.v.half(), plan, scale=1.0)
    with pytest.raises(ShapeError, match=r"q must be \[1, \*, \*\], not \[2, 4, 16\]"):
        attend_triton(setup.queries(2, 4), setup.k, setup.v, plan, scale=1.0)
    with pytest.raises(ShapeError, match="q_heads must be a multiple of the 2 kv_heads, not 3"):
        attend_triton(setup.queries(1, 3), setup.k, setup.v, plan, scale=1.0)
    with pytest.raises(ShapeError, match="2 query heads of a KV head in tiles of 16 queries, but these tensors have 3"):
        attend_triton(setup.queries(1, 6), setup.k, setup.v, plan, scale=1.0)
    with pytest.raises(ShapeError, match="page ids must be below 1, not"):
        attend_triton(q, setup.k[:1], setup.v[:1], plan, scale=1.0)
    with pytest.raises(ValueError, match=r"soft_cap must be above 0, not 0"):
        attend_triton(q, setup.k, setup.v, plan, scale=1.0, soft_cap=0)
    with pytest.raises(ShapeError, match=r"head_dim must be in \[1, 256\], not 512"):
        tile_shape(torch.float32, 512)
    with pytest.raises(ShapeError, match=r"float32, bfloat16 or float16, not torch\.float64"):
        tile_shape(torch.float64, 64)
