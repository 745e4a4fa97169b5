"""The rules of the IR. `verify` runs after tracing, after each pass, and on every program that comes from outside.

1. Branch 0 exists; every other branch is opened by one `Fork` or `Call` before its first step.
2. A variable that is read was set before, on the branch that is named: by itself, by its trunk before the fork,
   or by a join.
3. Arguments are parameters of the program.
4. Roles and scopes close what was opened, and roles do not nest.
5. Tools are described once, before the first turn.
6. A join names branches that a fork opened, and never brings back a name that the branch already has.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn, TypeVar, assert_never

from forktree.lang import ir
from forktree.lang.errors import LanguageError, RoleError, UndefinedVariableError

if TYPE_CHECKING:
    from forktree.lang.program import Program

ProgramT = TypeVar("ProgramT", bound="Program")


def verify(program: ProgramT) -> ProgramT:
    """The program itself, when it keeps the rules.

    Raises:
        UndefinedVariableError: rule 2.
        LanguageError: any other rule; the message names the line.
    """
    branches = {0: _Branch(0)}
    for op in program.ops:
        branch = branches.get(op.branch)
        if branch is None:
            _fail(op.node, f"branch {op.branch} is used before a fork opens it")
        _check(op.node, branch, branches, program)
    for node in references(program.returns):
        _check_reference(node, branches, program)
    return program


@dataclass(slots=True)
class _Branch:
    """What is known of a branch at one point of the program."""

    id: int
    names: set[str] = field(default_factory=set)
    own: set[str] = field(default_factory=set)
    role: str | None = None
    scopes: list[str] = field(default_factory=list)
    has_head: bool = False

    def set(self, name: str | None) -> None:
        if name is not None:
            self.names.add(name)
            self.own.add(name)


def _check(node: ir.Node, branch: _Branch, branches: dict[int, _Branch], program: Program) -> None:
    match node:
        case ir.Text() | ir.Image():
            pass
        case ir.Argument() | ir.Variable():
            _check_reference(node, branches, program)
        case ir.Gen(name=name):
            branch.set(name)
        case ir.Select(name=name, options=options):
            if not options:
                _fail(node, "select has no options")
            branch.set(name)
        case ir.RoleBegin() | ir.RoleEnd():
            branch.role = next_role(branch.role, node)
            branch.has_head = True
        case ir.Tools():
            check_head(branch.has_head, node)
            branch.has_head = True
        case ir.ScopeBegin(name=name):
            branch.scopes.append(name)
        case ir.ScopeEnd(name=name):
            if not branch.scopes or branch.scopes.pop() != name:
                _fail(node, f"scope {name!r} is not the one that is open")
            branch.set(name)
        case ir.Assign(name=name, value=value):
            for inner in references(value):
                _check_reference(inner, branches, program)
            branch.set(name)
        case ir.Fork(branches=opened):
            for child in opened:
                _open(child, _Branch(child, set(branch.names), set(), branch.role, [], branch.has_head), branches, node)
        case ir.Call(branch=opened_id):
            _open(opened_id, _Branch(opened_id), branches, node)
        case ir.Join(branches=joined):
            _check_join(node, branch, [branches.get(child) for child in joined])
        case _:
            assert_never(node)


def _open(child: int, branch: _Branch, branches: dict[int, _Branch], node: ir.Node) -> None:
    if child in branches:
        _fail(node, f"branch {child} is opened twice")
    branches[child] = branch


def _check_join(node: ir.Join, branch: _Branch, joined: list[_Branch | None]) -> None:
    names: set[str] = set()
    for child in joined:
        if child is None or child is branch:
            _fail(node, "it joins a branch that no fork opened")
        names |= child.own
    clash = sorted(names & branch.names)
    if clash:
        _fail(node, clash_message(clash[0]))
    for name in names:
        branch.set(name)


def clash_message(name: str) -> str:
    """Why a join cannot bring `name` back."""
    return (
        f"the branches set {name!r}, which the state that they join already has; "
        "give the variable another name in the branches, or read it from the branch"
    )


def next_role(role: str | None, node: ir.RoleBegin | ir.RoleEnd) -> str | None:
    """The role that is open after `node`, given the one before it.

    Raises:
        RoleError: roles nest, or one closes that is not open.
    """
    if isinstance(node, ir.RoleBegin):
        if role is not None:
            where = ir.at(node.source)
            raise RoleError(f"the {node.role} turn begins inside an open {role} turn; close it first{where}")
        return node.role
    if role != node.role:
        open_turn = "no turn is open" if role is None else f"the open turn is {role}"
        raise RoleError(f"a {node.role} turn ends, but {open_turn}{ir.at(node.source)}")
    return None


def check_head(has_head: bool, node: ir.Tools) -> None:
    """Raise RoleError for tools behind a turn, or behind other tools: the conversation's head is written then."""
    if has_head:
        where = ir.at(node.source)
        raise RoleError(f"tools are described at the conversation's head: append tools() once, before any turn{where}")


def _check_reference(node: ir.Argument | ir.Variable, branches: dict[int, _Branch], program: Program) -> None:
    if isinstance(node, ir.Argument):
        if node.name not in program.parameters:
            _fail(node, f"{node.name!r} is not a parameter of {program.name}")
        return
    branch = branches.get(node.branch)
    if branch is None or node.name not in branch.names:
        raise UndefinedVariableError(f"variable {node.name!r} is read before anything sets it{ir.at(node.source)}")


def references(value: object) -> list[ir.Argument | ir.Variable]:
    """The arguments and variables that a node, or data of the program, reads."""
    match value:
        case ir.Assign(value=assigned):
            return references(assigned)
        case ir.Argument() | ir.Variable():
            return [value]
        case ir.Sequence(items=items):
            return [node for item in items for node in references(item)]
        case tuple() | list():
            return [node for item in value for node in references(item)]
        case dict():
            return [node for item in value.values() for node in references(item)]
    return []


def _fail(node: ir.Node, message: str) -> NoReturn:
    raise LanguageError(f"{message}{ir.at(node.source)}")
