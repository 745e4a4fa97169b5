"""Paged attention equals softmax attention, and a row's bits do not depend on who else reads."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paged import Pool, make_pool

from forktree.kernels.attention import attend, plan_attention
from forktree.kernels.checks import ShapeError
from forktree.kernels.native import Native
from forktree.kernels.token_tree import TokenTree

SHAPES = [  # q_heads, kv_heads, head_dim, page_size
    (9, 3, 64, 16),
    (4, 4, 80, 8),
    (6, 2, 20, 4),
    (2, 1, 7, 1),
    (8, 1, 128, 128),
]


def run(pool: Pool, q: torch.Tensor, seqs: list[int], positions: list[int], path: Native | None) -> torch.Tensor:
    plan = plan_attention(pool.tables, seqs, positions, pool.page_size)
    return attend(q, pool.k, pool.v, plan, scale=q.shape[-1] ** -0.5, native=path)


def softmax_attention(pool: Pool, q: torch.Tensor, seq: int, position: int) -> torch.Tensor:
    k, v = (x.double().repeat_interleave(q.shape[0] // x.shape[1], dim=1) for x in pool.dense(seq, position + 1))
    weights = torch.softmax(torch.einsum("hd,thd->ht", q.double(), k) * q.shape[-1] ** -0.5, dim=-1)
    return torch.einsum("ht,thd->hd", weights, v).float()


def queries(num: int, q_heads: int, head_dim: int) -> torch.Tensor:
    return torch.randn(num, q_heads, head_dim, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize(("q_heads", "kv_heads", "head_dim", "page_size"), SHAPES)
def test_attend_equals_softmax_attention_and_reads_no_free_slot(
    q_heads: int, kv_heads: int, head_dim: int, page_size: int, path: Native | None
) -> None:
    pool = make_pool([1, 17, 128, 129, 300], page_size=page_size, kv_heads=kv_heads, head_dim=head_dim)
    rows = [(seq, p) for seq, length in enumerate(pool.lengths) for p in range(max(0, length - 3), length)]
    q = queries(len(rows), q_heads, head_dim)
    out = run(pool, q, [seq for seq, _ in rows], [p for _, p in rows], path)
    expected = torch.stack([softmax_attention(pool, q[i], seq, p) for i, (seq, p) in enumerate(rows)])
    torch.testing.assert_close(out, expected, atol=3e-6, rtol=1e-5)


@given(data=st.data())
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_row_has_the_same_bits_alone_in_a_chunk_and_among_sharers(data: st.DataObject, path: Native | None) -> None:
    q_heads, kv_heads, head_dim, page_size = data.draw(st.sampled_from(SHAPES[:4]))
    num_shared = data.draw(st.integers(0, 140 // page_size))
    lengths = [num_shared * page_size + data.draw(st.integers(1, 40)) for _ in range(data.draw(st.integers(1, 4)))]
    pool = make_pool(lengths, page_size=page_size, kv_heads=kv_heads, head_dim=head_dim, num_shared=num_shared)
    rng = random.Random(data.draw(st.integers(0, 1000)))
    rows = sorted((seq, p) for seq, n in enumerate(lengths) for p in rng.sample(range(n), min(n, rng.randint(1, 5))))
    q = queries(len(rows), q_heads, head_dim)
    together = run(pool, q, [seq for seq, _ in rows], [p for _, p in rows], path)
    for i, (seq, position) in enumerate(rows):
        alone = run(pool, q[i : i + 1].clone(), [seq], [position], path)
        assert torch.equal(alone[0], together[i]), (seq, position)


@given(data=st.data())
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_row_of_a_tree_has_the_bits_of_its_branch_as_a_sequence(data: st.DataObject, path: Native | None) -> None:
    """The tree's tokens lie in any order of branches; each branch is laid out once more in pages of its own."""
    q_heads, kv_heads, head_dim, page_size = data.draw(st.sampled_from(SHAPES[:4]))
    root = data.draw(st.one_of(st.integers(1, 40), st.integers(125, 131)))
    tree = TokenTree(root, draw_parents(data, root, data.draw(st.integers(1, 30))))
    pool = make_pool([root + len(tree.parents)], page_size=page_size, kv_heads=kv_heads, head_dim=head_dim)
    first = data.draw(st.integers(root, root + len(tree.parents) - 1))
    places = list(range(first, root + len(tree.parents)))
    ways = [[*range(root), *tree.path_to(place)] for place in places]
    q = queries(1 + len(places), q_heads, head_dim)
    plan = plan_attention(
        pool.tables,
        [0] * (1 + len(places)),
        [root - 1, *(len(way) - 1 for way in ways)],
        page_size,
        trees={0: tree},
        places=dict(enumerate(places, 1)),
    )
    together = attend(q, pool.k, pool.v, plan, scale=head_dim**-0.5, native=path)
    for row, way in enumerate(ways, 1):
        alone = make_pool([len(way)], page_size=page_size, kv_heads=kv_heads, head_dim=head_dim)
        for position, place in enumerate(way):
            at, came = slot(alone, position), slot(pool, place)
            alone.k[at], alone.v[at] = pool.k[came], pool.v[came]
        expected = run(alone, q[row : row + 1].clone(), [0], [len(way) - 1], path)
        assert torch.equal(expected[0], together[row]), (way, row)


def draw_parents(data: st.DataObject, root: int, num: int) -> list[int]:
    """Depth first: each token follows the one before or one that that one follows."""
    parents: list[int] = []
    way = [root - 1]
    for place in range(root, root + num):
        del way[max(1, len(way) - data.draw(st.sampled_from([0, 0, 0, 1, 2, 9]))) :]
        parents.append(way[-1])
        way.append(place)
    return parents


def slot(pool: Pool, place: int) -> tuple[int, int]:
    return pool.tables[0][place // pool.page_size], place % pool.page_size


def test_the_page_size_changes_no_bit(path: Native | None) -> None:
    results = []
    for page_size in (1, 16, 128):
        pool = make_pool([200], page_size=page_size, kv_heads=2, head_dim=32)
        results.append(run(pool, queries(3, 6, 32), [0, 0, 0], [100, 150, 199], path))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_native_and_reference_agree_with_large_scores(native: Native) -> None:
    pool = make_pool([260], page_size=16, kv_heads=3, head_dim=64)
    q = queries(4, 9, 64) * 40
    args = (pool, q, [0] * 4, [3, 127, 128, 259])
    torch.testing.assert_close(run(*args, native), run(*args, None), atol=1e-4, rtol=1e-4)


def test_no_rows_give_no_results(path: Native | None) -> None:
    pool = make_pool([5], page_size=4, kv_heads=1, head_dim=16)
    assert run(pool, queries(0, 2, 16), [], [], path).shape == (0, 2, 16)


def test_wrong_shapes_are_named(path: Native | None) -> None:
    pool = make_pool([5], page_size=4, kv_heads=2, head_dim=16)
    plan = plan_attention(pool.tables, [0], [4], 4)
    with pytest.raises(ShapeError, match="q_heads must be a multiple of the 2 kv_heads, not 3"):
        attend(queries(1, 3, 16), pool.k, pool.v, plan, scale=1.0, native=path)
    with pytest.raises(ShapeError, match=r"q must be \[1, \*, \*\], not \[2, 4, 16\]"):
        attend(queries(2, 4, 16), pool.k, pool.v, plan, scale=1.0, native=path)
    with pytest.raises(ShapeError, match="page ids must be below 1"):
        attend(queries(1, 4, 16), pool.k[:1], pool.v[:1], plan, scale=1.0, native=path)
