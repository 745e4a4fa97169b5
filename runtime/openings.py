"""How a prompt begins, as far as that is known without running anything: the segments of constant operations."""

from __future__ import annotations

from collections.abc import Iterable

from forktree.lang import ir
from forktree.runtime import protocol


def segment_of(node: ir.Node) -> protocol.Segment | None:
    """What an operation that needs no waiting puts on a branch; None for one that has to be carried out."""
    match node:
        case ir.Text():
            return protocol.Text(node.text, node.markup)
        case ir.RoleBegin():
            return protocol.RoleBegin(node.role)
        case ir.RoleEnd():
            return protocol.RoleEnd(node.role)
        case ir.Image():
            return protocol.Image(node.data, node.media_type)
        case ir.Tools():
            return protocol.Tools(node.definitions)
    return None


def branch_of(segments: Iterable[protocol.Segment]) -> protocol.Branch | None:
    """A branch of its own with these segments; None without any."""
    branch: protocol.Branch | None = None
    for segment in segments:
        branch = protocol.Branch(branch, segment)
    return branch
