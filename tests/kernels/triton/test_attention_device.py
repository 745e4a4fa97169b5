"""On a device alone: real shapes, batch invariance, and CUDA graphs that are replayed for other plans."""

from __future__ import annotations

import pytest
import torch
from paged import Pool, make_pool

from forktree.kernels.attention import attend, plan_attention
from forktree.kernels.attention_triton import attend_triton, tile_shape
from forktree.kernels.attention_triton_plan import ARRAYS, GPU_SPLIT, PlanBuffer, TritonPlan, plan_triton

pytestmark = pytest.mark.gpu

Q_HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE = 32, 8, 128, 16
SCALE = HEAD_DIM**-0.5


def make(device: torch.device, lengths: list[int], num_shared: int = 0) -> Pool:
    """Keys and values in bfloat16, of an 8-billion Llama's shape; NaN where no token lies."""
    pool = make_pool(lengths, page_size=PAGE_SIZE, kv_heads=KV_HEADS, head_dim=HEAD_DIM, num_shared=num_shared)
    pool.k, pool.v = (x.to(device, torch.bfloat16) for x in (pool.k, pool.v))
    return pool


def queries(num: int, device: torch.device) -> torch.Tensor:
    noise = torch.Generator().manual_seed(1)
    return torch.randn(num, Q_HEADS, HEAD_DIM, generator=noise).to(device, torch.bfloat16)


def plan_of(pool: Pool, seqs: list[int], positions: list[int]) -> TritonPlan:
    tile = tile_shape(torch.bfloat16, HEAD_DIM)
    group = Q_HEADS // KV_HEADS
    return plan_triton(pool.tables, seqs, positions, PAGE_SIZE, group=group, tile_queries=tile.queries)


def run(pool: Pool, q: torch.Tensor, seqs: list[int], positions: list[int]) -> torch.Tensor:
    plan = plan_of(pool, seqs, positions).to(q.device)
    return attend_triton(q, pool.k, pool.v, plan, scale=SCALE, out=torch.full_like(q, float("nan")))


def test_a_step_of_real_shapes_equals_the_reference(cuda: torch.device) -> None:
    pool = make(cuda, [700, 900, 650], num_shared=32)
    seqs, positions = [0, 1, *[2] * 100], [699, 899, *range(550, 650)]
    q = queries(len(seqs), cuda)
    plan = plan_attention(pool.tables, seqs, positions, PAGE_SIZE, GPU_SPLIT)
    expected = attend(q.cpu().float(), pool.k.cpu().float(), pool.v.cpu().float(), plan, scale=SCALE)
    out = run(pool, q, seqs, positions)
    torch.testing.assert_close(out.cpu().float(), expected, atol=1.6e-2, rtol=1.6e-2)


@pytest.mark.parametrize("num", [2, 5, 17, 64])
def test_a_row_has_the_same_bits_alone_and_among_sharers(num: int, cuda: torch.device) -> None:
    pool = make(cuda, [600 + 7 * i for i in range(num)], num_shared=34)
    positions = [length - 1 for length in pool.lengths]
    q = queries(num, cuda)
    together = run(pool, q, list(range(num)), positions)
    for row in {0, 1, num // 2, num - 1}:
        assert torch.equal(run(pool, q[row : row + 1].clone(), [row], [positions[row]])[0], together[row]), row


def test_a_prompt_has_the_same_bits_however_it_is_cut_and_decoded(cuda: torch.device) -> None:
    pool = make(cuda, [1100])
    q = queries(1100, cuda)
    whole = run(pool, q, [0] * 1100, list(range(1100)))
    for cut in (1, 333, 512):
        part = run(pool, q[cut:].clone(), [0] * (1100 - cut), list(range(cut, 1100)))
        assert torch.equal(part, whole[cut:]), cut
    for row in (0, 255, 256, 700, 1099):
        assert torch.equal(run(pool, q[row : row + 1].clone(), [0], [row])[0], whole[row]), row


def test_the_same_step_twice_has_the_same_bits(cuda: torch.device) -> None:
    pool = make(cuda, [400] * 16, num_shared=8)
    q = queries(16, cuda)
    step = list(range(16)), [399] * 16
    assert torch.equal(run(pool, q, *step), run(pool, q, *step))


def test_a_captured_launch_replays_plans_longer_and_shorter_than_its_own(cuda: torch.device) -> None:
    pool = make(cuda, [2000, 900, 40, 300], num_shared=2)
    buffer = PlanBuffer(cuda, dict.fromkeys(ARRAYS, 512))
    steps = [([0, 1], [300, 200]), ([0, 1, 2, 3], [1999, 899, 39, 299]), ([2], [39])]
    q, out = queries(4, cuda), torch.empty_like(queries(4, cuda))
    plans = [plan_of(pool, *step) for step in steps]
    launched = buffer.plan_like(plans[0], num_rows=4, num_pairs=64)
    buffer.load(plans[0])
    attend_triton(q, pool.k, pool.v, launched, scale=SCALE, out=out)  # compiles before the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attend_triton(q, pool.k, pool.v, launched, scale=SCALE, out=out)
    for step, plan in zip(steps, plans, strict=True):
        out.fill_(float("nan"))
        buffer.load(plan)
        graph.replay()
        torch.cuda.synchronize()
        num = len(step[0])
        assert torch.equal(out[:num], run(pool, q[:num].clone(), *step))
        assert out[num:].isnan().all()
