"""Each kernel: checked against its plain reference on random data, then timed at the shapes of an 8B Llama."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from forktree.backend.engine.messages import SampleRow, SamplerParams
from forktree.backend.model.cuda_inputs import to_device
from forktree.backend.sampler_inputs import make_inputs
from forktree.kernels import sampling
from forktree.kernels.activation import silu_mul as plain_silu
from forktree.kernels.activation_triton import silu_mul
from forktree.kernels.attention import attend as plain_attend
from forktree.kernels.attention import plan_attention
from forktree.kernels.attention_triton import attend_triton, tile_shape
from forktree.kernels.attention_triton_plan import plan_triton
from forktree.kernels.bitmask import unpack
from forktree.kernels.bitmask_triton import apply_bitmask
from forktree.kernels.logits_triton import gather_logprobs
from forktree.kernels.matmul_triton import multiply
from forktree.kernels.norm import add_rms_norm as plain_norm
from forktree.kernels.norm_triton import add_rms_norm
from forktree.kernels.rotary import RotaryTable
from forktree.kernels.rotary import rotate_and_write as plain_rotate
from forktree.kernels.rotary_triton import rotate_and_write
from forktree.kernels.sampling_triton import draw_tokens


@dataclass(frozen=True, slots=True)
class Shapes:
    """Sizes of a run; `LARGE` are those of an 8-billion Llama."""

    hidden: int
    inner: int
    q_heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    batches: tuple[int, ...]
    prompt: int
    context: int
    trunk: int
    branches: int
    page_size: int = 16


LARGE = Shapes(4096, 14336, 32, 8, 128, 128256, (1, 8, 64, 256), 4096, 32768, 8192, 64)
TOY = Shapes(64, 96, 4, 2, 16, 200, (1, 2), 20, 40, 24, 3)


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel at one shape.

    Attributes:
        run: launches it on data of the full shape.
        check: the largest error against the reference, relative to the largest value, on data of a small shape.
        num_bytes: that must move; num_flops: of its products; either may be 0.
    """

    name: str
    run: Callable[[], object]
    check: Callable[[], float]
    num_bytes: int
    num_flops: int = 0


def kernel_cases(shapes: Shapes, device: torch.device, dtype: torch.dtype) -> Iterator[Case]:
    """Every kernel in turn; the data of one is gone when the next is asked for."""
    make = _Maker(device, dtype)
    for tokens in (shapes.batches[-1], shapes.prompt):
        yield _norm(shapes, make, tokens)
        yield _rotary(shapes, make, tokens)
        yield _silu(shapes, make, tokens)
    for outputs, inputs in ((2 * shapes.inner, shapes.hidden), (shapes.hidden, shapes.inner)):
        for tokens in (*shapes.batches, shapes.prompt):
            yield _matmul(make, tokens, outputs, inputs)
    yield _bitmask(shapes, make)
    yield _draws(shapes, make, "greedy", SamplerParams())
    yield _draws(shapes, make, "temperature 1", SamplerParams(temperature=1.0))
    yield _draws(shapes, make, "top-k 50, top-p 0.9", SamplerParams(temperature=1.0, top_k=50, top_p=0.9))
    yield _logprobs(shapes, make)
    yield _attention(shapes, make, "decode, 1 context", [(shapes.context, 1)], shared=0)
    yield _attention(shapes, make, "decode, 8 contexts", [(shapes.context, 1)] * 8, shared=0)
    trunk = [(shapes.trunk + 32, 1)] * shapes.branches
    yield _attention(shapes, make, f"{shapes.branches} branches of one trunk", trunk, shared=shapes.trunk)
    yield _attention(shapes, make, "prefill", [(shapes.prompt, shapes.prompt)], shared=0)


class _Maker:
    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype
        self._generator = torch.Generator(device).manual_seed(0)

    def random(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        return torch.randn(shape, generator=self._generator, device=self.device).to(dtype or self.dtype)

    @property
    def item(self) -> int:
        return self.dtype.itemsize


def relative_error(found: torch.Tensor, right: torch.Tensor) -> float:
    """NaN where either has one that the other has not."""
    found, right = found.detach().cpu().double(), right.detach().cpu().double()
    return float((found - right).abs().max() / right.abs().max().clamp_min(1e-30))


def _norm(shapes: Shapes, make: _Maker, tokens: int) -> Case:
    residual, delta = make.random(tokens, shapes.hidden, dtype=torch.float32), make.random(tokens, shapes.hidden)
    weight = make.random(shapes.hidden)

    def check() -> float:
        small, more = make.random(3, shapes.hidden, dtype=torch.float32), make.random(3, shapes.hidden)
        right = plain_norm(small.cpu().clone(), more.cpu().float(), weight.cpu().float(), eps=1e-5)
        return relative_error(add_rms_norm(small, more, weight, eps=1e-5, dtype=make.dtype), right)

    return Case(
        f"RMS norm with residual, {tokens} rows",
        lambda: add_rms_norm(residual, delta, weight, eps=1e-5, dtype=make.dtype),
        check,
        tokens * shapes.hidden * (8 + 2 * make.item),
    )


def _rotary(shapes: Shapes, make: _Maker, tokens: int) -> Case:
    width = (shapes.q_heads + 2 * shapes.kv_heads) * shapes.head_dim
    angles = make.random(shapes.prompt, shapes.head_dim // 2, dtype=torch.float32)
    table = RotaryTable(angles.cos(), angles.sin())

    def data(rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        pages = -(-rows // shapes.page_size) + 1
        pool = [make.random(pages, shapes.page_size, shapes.kv_heads, shapes.head_dim) for _ in range(2)]
        positions = torch.arange(rows, device=make.device) % shapes.prompt
        return make.random(rows, width), positions, torch.arange(rows, device=make.device), pool[0], pool[1]

    def check() -> float:
        qkv, positions, slots, k, v = data(5)
        plain = RotaryTable(table.cos.cpu(), table.sin.cpu())
        k_right, v_right = k.cpu().float(), v.cpu().float()
        right = plain_rotate(
            qkv.cpu().float(), plain, positions.cpu(), slots.cpu(), k_right, v_right, q_heads=shapes.q_heads
        )
        found = rotate_and_write(qkv, table, positions, slots, k, v, q_heads=shapes.q_heads)
        return max(relative_error(*pair) for pair in ((found, right), (k, k_right), (v, v_right)))

    qkv, positions, slots, k, v = data(tokens)
    return Case(
        f"rotary and write to pages, {tokens} rows",
        lambda: rotate_and_write(qkv, table, positions, slots, k, v, q_heads=shapes.q_heads),
        check,
        tokens * (2 * width * make.item + 16),
    )


def _silu(shapes: Shapes, make: _Maker, tokens: int) -> Case:
    gate_up = make.random(tokens, 2 * shapes.inner)

    def check() -> float:
        small = make.random(3, 2 * shapes.inner)
        return relative_error(silu_mul(small), plain_silu(small.cpu().float()))

    return Case(
        f"SiLU and multiply, {tokens} rows",
        lambda: silu_mul(gate_up),
        check,
        3 * tokens * shapes.inner * make.item,
    )


def _matmul(make: _Maker, tokens: int, outputs: int, inputs: int) -> Case:
    x, weight = make.random(tokens, inputs), make.random(outputs, inputs)

    def check() -> float:
        rows = x[: min(tokens, 130)]
        some = torch.arange(0, outputs, max(1, outputs // 256), device=make.device)
        right = rows.cpu().double() @ weight[some].cpu().double().T
        return relative_error(multiply(rows, weight, dtype=torch.float32)[:, some], right)

    return Case(
        f"product [{tokens}, {inputs}] · [{inputs}, {outputs}]",
        lambda: multiply(x, weight),
        check,
        (outputs * inputs + tokens * (inputs + outputs)) * make.item,
        2 * tokens * outputs * inputs,
    )


def _bitmask(shapes: Shapes, make: _Maker) -> Case:
    rows, words = shapes.batches[-1], -(-shapes.vocab // 32)
    logits = make.random(rows, shapes.vocab, dtype=torch.float32)
    generator = torch.Generator(make.device).manual_seed(1)
    masks = torch.randint(-(1 << 31), (1 << 31) - 1, (rows, words), generator=generator, device=make.device)
    masks = masks.to(torch.int32)

    def check() -> float:
        legal = unpack(masks[:2].cpu(), shapes.vocab, shapes.vocab)
        right = logits[:2].cpu().masked_fill(~legal, -1e9)
        found = apply_bitmask(logits[:2].clone(), masks[:2].contiguous(), vocab_size=shapes.vocab).cpu()
        return relative_error(found.masked_fill(found == float("-inf"), -1e9), right)

    return Case(
        f"bitmask, {rows} rows",
        lambda: apply_bitmask(logits, masks, vocab_size=shapes.vocab),
        check,
        rows * (words * 4 + shapes.vocab * 4 // 2),
    )


def _draws(shapes: Shapes, make: _Maker, name: str, params: SamplerParams) -> Case:
    rows, words = shapes.batches[-1], -(-shapes.vocab // 32)
    logits = 3 * make.random(rows, shapes.vocab, dtype=torch.float32)
    what = SampleRow(params, 0, (), ())
    given = make_inputs([(row, what) for row in range(rows)], words=words)
    inputs = to_device(given, make.device)

    def check() -> float:
        few = min(2, rows)
        small = make_inputs([(row, what._replace(position=row)) for row in range(few)], words=words)
        moved = to_device(small, make.device)
        right = sampling.draw_tokens(logits[:few].cpu(), small, vocab_size=shapes.vocab).token
        found = draw_tokens(logits[:few].contiguous(), moved, vocab_size=shapes.vocab).token.cpu()
        return float((found != right).any())

    return Case(
        f"draw, {name}, {rows} rows",
        lambda: draw_tokens(logits, inputs, vocab_size=shapes.vocab),
        check,
        rows * (3 * 4 * shapes.vocab + 4 * words),
    )


def _logprobs(shapes: Shapes, make: _Maker) -> Case:
    rows = shapes.batches[-1]
    logits = make.random(rows, shapes.vocab, dtype=torch.float32)
    chosen = torch.arange(rows, dtype=torch.int32, device=make.device)
    starts = torch.arange(rows + 1, dtype=torch.int32, device=make.device)
    tokens = chosen % shapes.vocab

    def check() -> float:
        found, _ = gather_logprobs(logits, chosen, starts, tokens)
        right = logits.cpu().double().log_softmax(-1)[torch.arange(rows), tokens.cpu().long()]
        return relative_error(found, right)

    return Case(
        f"log-probabilities, {rows} rows",
        lambda: gather_logprobs(logits, chosen, starts, tokens),
        check,
        rows * shapes.vocab * 4,
    )


def _attention(shapes: Shapes, make: _Maker, name: str, seqs: list[tuple[int, int]], *, shared: int) -> Case:
    """Sequences of (context, new tokens), whose first `shared` tokens lie in the same pages."""

    def data(seqs: list[tuple[int, int]], shared: int):
        size, head = shapes.page_size, shapes.head_dim
        tables, next_page = [], shared // size
        for context, _ in seqs:
            own = -(-context // size) - shared // size
            tables.append([*range(shared // size), *range(next_page, next_page + own)])
            next_page += own
        rows = [(seq, context - new + i) for seq, (context, new) in enumerate(seqs) for i in range(new)]
        seq_of_row, positions = [seq for seq, _ in rows], [position for _, position in rows]
        pool = [make.random(next_page, size, shapes.kv_heads, head) for _ in range(2)]
        return make.random(len(rows), shapes.q_heads, head), pool, tables, seq_of_row, positions

    def plan_of(tables, seq_of_row, positions):
        tile = tile_shape(make.dtype, shapes.head_dim).queries
        group = shapes.q_heads // shapes.kv_heads
        plan = plan_triton(tables, seq_of_row, positions, shapes.page_size, group=group, tile_queries=tile)
        return plan.to(make.device)

    scale = shapes.head_dim**-0.5

    def check() -> float:
        most = 4 * shapes.page_size + 3
        small = [(min(context, most), min(new, 20)) for context, new in seqs[:3]]
        q, (k, v), tables, seq_of_row, positions = data(small, min(shared, 2 * shapes.page_size))
        plan = plan_attention(tables, seq_of_row, positions, shapes.page_size)
        right = plain_attend(q.cpu().float(), k.cpu().float(), v.cpu().float(), plan, scale=scale)
        return relative_error(attend_triton(q, k, v, plan_of(tables, seq_of_row, positions), scale=scale), right)

    q, (k, v), tables, seq_of_row, positions = data(seqs, shared)
    plan = plan_of(tables, seq_of_row, positions)
    distinct = shared + sum(context - shared for context, _ in seqs)
    seen = sum(position + 1 for position in positions)
    return Case(
        f"attention, {name}",
        lambda: attend_triton(q, k, v, plan, scale=scale),
        check,
        (2 * distinct * shapes.kv_heads * shapes.head_dim + 2 * q.numel()) * make.item,
        4 * seen * shapes.q_heads * shapes.head_dim,
    )
