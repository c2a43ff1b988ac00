"""Find modules that change objects of other modules, in their syntax trees: assignments to attributes of other objects,
and circles of imports.

The type of an object is inferred from annotations, constructor calls and assignments in constructors; no module is
imported. An object of unknown type may be of every class that has an attribute of that name.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, TypeAlias

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

RECORD_BASES: Final = {"Struct", "NamedTuple", "Exception"}
"""A class with one of these bases is a record, as a dataclass is: algorithms of other packages may write its fields."""
INFERENCE_STEPS_MAX: Final = 8
"""Most names and attributes followed to find one type; more would be a cycle of definitions."""


@dataclass(slots=True)
class ClassFacts:
    """Attributes and methods of one class."""

    module: str
    name: str
    bases: list[str]
    is_record: bool
    attributes: dict[str, ast.expr | None] = field(default_factory=dict)
    """Annotation by attribute; None without one."""
    values: dict[str, tuple[ast.expr, Function]] = field(default_factory=dict)
    """First value of an attribute, and the method that assigns it."""
    returns: dict[str, ast.expr | None] = field(default_factory=dict)
    """Annotation of a method's result."""

    @property
    def full_name(self) -> str:
        return f"{self.module}.{self.name}"

    @property
    def package(self) -> str:
        return self.module.rpartition(".")[0]


@dataclass(frozen=True, slots=True)
class Assignment:
    """An assignment to an attribute of another object."""

    path: str
    line: int
    target: str
    """Its source text."""
    module: str
    package: str
    attribute: str
    owners: tuple[ClassFacts, ...]
    """The possible classes of the object; not empty."""

    def __str__(self) -> str:
        classes = " or ".join(owner.full_name for owner in self.owners)
        return f"{self.path}:{self.line}: {self.target} of {classes}"


class Program:
    """Classes, functions and imports of modules."""

    def __init__(self, trees: Mapping[str, ast.Module]) -> None:
        """`trees`: syntax tree of each module by its path."""
        self.paths = {module_name(path): path for path in trees}
        self.trees = {module_name(path): tree for path, tree in trees.items()}
        self.classes: dict[str, ClassFacts] = {}
        self.functions: dict[str, ast.expr | None] = {}
        """Annotation of a function's result."""
        self._aliases: dict[str, ast.expr] = {}
        self._imported: dict[str, str] = {}
        self._packages = {module.partition(".")[0] for module in self.trees}
        for module, tree in self.trees.items():
            self._read(module, tree)

    @cached_property
    def by_attribute(self) -> dict[str, list[ClassFacts]]:
        """Return the classes that have an attribute, by its name."""
        found: dict[str, list[ClassFacts]] = {}
        for facts in self.classes.values():
            for attribute in facts.attributes:
                found.setdefault(attribute, []).append(facts)
        return found

    def full_name(self, module: str, name: str) -> str:
        """Follow imports to the module that defines a name."""
        full, seen = f"{module}.{name}", set[str]()
        while full not in self.classes and full not in self.functions and full not in seen:
            seen.add(full)
            head, _, tail = full.rpartition(".")
            full = self._imported.get(full) or (f"{self._imported[head]}.{tail}" if head in self._imported else full)
        return full

    def is_library(self, full_name: str) -> bool:
        """Return True when another distribution defines this."""
        return full_name.partition(".")[0] not in self._packages

    def bases(self, facts: ClassFacts) -> Iterator[ClassFacts]:
        """Yield the class itself and its known bases."""
        yield facts
        for base in facts.bases:
            known = self.classes.get(self.full_name(facts.module, base))
            if known is not None:
                yield from self.bases(known)

    def owner(self, full_name: str, attribute: str) -> ClassFacts | None:
        """Return the class, this one or a base of it, that has the attribute."""
        facts = self.classes.get(full_name)
        found = self.bases(facts) if facts is not None else iter(())
        return next((each for each in found if attribute in each.attributes), None)

    def named(self, module: str, annotation: ast.expr | None) -> set[str]:
        """Return the full names in an annotation: the alternatives of a union, and a generic without its arguments."""
        match annotation:
            case ast.BinOp(left=left, right=right):
                return self.named(module, left) | self.named(module, right)
            case ast.Constant(value=str(text)):
                return self.named(module, ast.parse(text, mode="eval").body)
            case ast.Subscript(value=ast.Name(id="Final" | "ClassVar" | "Annotated"), slice=inner):
                return self.named(module, inner.elts[0] if isinstance(inner, ast.Tuple) else inner)
            case ast.Subscript(value=value):
                return self.named(module, value)
            case ast.Name() | ast.Attribute():
                full = self.full_name(module, ast.unparse(annotation))
                if full in self._aliases and full not in self.classes:
                    return self.named(full.rpartition(".")[0], self._aliases[full])
                return {full}
        return set()

    def named_items(self, module: str, annotation: ast.expr | None) -> set[str]:
        """Return the full names of the items of an annotated container; of a mapping its values."""
        match annotation:
            case ast.Subscript(slice=ast.Tuple(elts=[*_, last])):
                return self.named(module, last)
            case ast.Subscript(slice=inner):
                return self.named(module, inner)
        return set()

    def is_hook(self, owner: ClassFacts, attribute: str) -> bool:
        """Return True when an attribute is called: its annotation, or that of its first value, is a callable."""
        annotation = owner.attributes[attribute]
        if annotation is None and attribute in owner.values:
            value, method = owner.values[attribute]
            if isinstance(value, ast.Lambda):
                return True
            if isinstance(value, ast.Name):
                if self.full_name(owner.module, value.id) in self.functions:
                    return True
                annotation = parameters(method).get(value.id)
        return any(full.rpartition(".")[2] == "Callable" for full in self.named(owner.module, annotation))

    def assignments(self) -> Iterator[Assignment]:
        """Find each assignment to an attribute of one of our objects other than `self` and `cls`."""
        for module, tree in self.trees.items():
            for within, function in functions(self, module, tree):
                scope = Scope(self, module, within, function)
                for line, target in foreign_targets(function):
                    types = scope.types(target.value)
                    owners = [owner for each in types if (owner := self.owner(each, target.attr)) is not None]
                    if not owners and not types:
                        owners = self.by_attribute.get(target.attr, [])
                    if owners:
                        path, package = self.paths[module], package_of(self.paths[module])
                        source = ast.unparse(target)
                        yield Assignment(path, line, source, module, package, target.attr, tuple(owners))

    def _read(self, module: str, tree: ast.Module) -> None:
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    self._imported[f"{module}.{alias.asname or alias.name}"] = f"{node.module}.{alias.name}"
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    self._imported[f"{module}.{alias.asname or alias.name}"] = alias.name
            elif isinstance(node, ast.ClassDef):
                self.classes[f"{module}.{node.name}"] = read_class(module, node)
        for node in tree.body:
            match node:
                case ast.FunctionDef(name=name, returns=returns) | ast.AsyncFunctionDef(name=name, returns=returns):
                    self.functions[f"{module}.{name}"] = returns
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self._aliases[f"{module}.{name}"] = value
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    self._aliases[f"{module}.{name}"] = value


class Scope:
    """The names of one function, and the types of expressions in it."""

    def __init__(self, program: Program, module: str, within: ClassFacts | None, function: Function) -> None:
        """`within`: the class of a method."""
        self._program, self._module, self._within, self._function = program, module, within, function

    def types(self, node: ast.expr, steps: int = 0) -> set[str]:
        """Return the full names of the possible classes of a value; empty if unknown."""
        if steps > INFERENCE_STEPS_MAX:
            return set()
        steps += 1
        match node:
            case ast.Name(id="self" | "cls") if self._within is not None:
                return {self._within.full_name}
            case ast.Name(id=name):
                return self._types_of_name(name, steps)
            case ast.Attribute(value=base, attr=name):
                return self._union(
                    self._types_of_attribute(each, name, steps) for each in self._owners(base, name, steps)
                )
            case ast.Call(func=function):
                return self._types_of_call(function, steps)
            case ast.IfExp(body=body, orelse=other):
                return self.types(body, steps) | self.types(other, steps)
            case ast.BoolOp(values=values):
                return self._union(self.types(each, steps) for each in values)
            case ast.NamedExpr(value=value) | ast.Await(value=value):
                return self.types(value, steps)
            case ast.Subscript(value=base):
                return self._items(base, steps)
        return set()

    @cached_property
    def _annotations(self) -> dict[str, ast.expr | None]:
        found = parameters(self._function)
        for node in ast.walk(self._function):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found[node.target.id] = node.annotation
        return found

    @cached_property
    def _values(self) -> dict[str, ast.expr]:
        """First value by name."""
        found: dict[str, ast.expr] = {}
        for node in ast.walk(self._function):
            if isinstance(node, ast.Assign):
                for target, value in pairs(node):
                    if isinstance(target, ast.Name) and value is not None:
                        found.setdefault(target.id, value)
            elif isinstance(node, ast.NamedExpr):
                found.setdefault(node.target.id, node.value)
        return found

    @cached_property
    def _loops(self) -> dict[str, ast.expr]:
        """Iterable by loop variable."""
        found: dict[str, ast.expr] = {}
        for node in ast.walk(self._function):
            if isinstance(node, ast.For | ast.comprehension) and isinstance(node.target, ast.Name):
                found.setdefault(node.target.id, node.iter)
        return found

    def _types_of_name(self, name: str, steps: int) -> set[str]:
        if self._annotations.get(name) is not None:
            return self._program.named(self._module, self._annotations[name])
        if name in self._values:
            return self.types(self._values[name], steps)
        if name in self._loops:
            return self._items(self._loops[name], steps)
        full = self._program.full_name(self._module, name)
        return {full} if self._program.is_library(full) else set()

    def _types_of_call(self, function: ast.expr, steps: int) -> set[str]:
        program = self._program
        full = program.full_name(self._module, ast.unparse(function))
        if full in program.classes or program.is_library(full):
            return {full}
        if full in program.functions:
            return program.named(full.rpartition(".")[0], program.functions[full])
        if isinstance(function, ast.Attribute):
            return self._union(self._returned(each, function.attr) for each in self.types(function.value, steps))
        return set()

    def _returned(self, full_name: str, method: str) -> set[str]:
        program, facts = self._program, self._program.classes.get(full_name)
        if facts is None:
            return {f"{full_name}.{method}"} if program.is_library(full_name) else set()
        owner = next((each for each in program.bases(facts) if method in each.returns), None)
        if owner is None:
            return set()
        found = program.named(owner.module, owner.returns[method])
        return {full_name if each.endswith(".Self") else each for each in found}

    def _types_of_attribute(self, owner: ClassFacts, name: str, steps: int) -> set[str]:
        if owner.attributes[name] is not None:
            return self._program.named(owner.module, owner.attributes[name])
        if name in owner.values:
            value, method = owner.values[name]
            return Scope(self._program, owner.module, owner, method).types(value, steps)
        return set()

    def _items(self, container: ast.expr, steps: int) -> set[str]:
        match container:
            case ast.Name(id=name) if self._annotations.get(name) is not None:
                return self._program.named_items(self._module, self._annotations[name])
            case ast.Attribute(value=base, attr=name):
                owners = self._owners(base, name, steps)
                return self._union(self._program.named_items(each.module, each.attributes[name]) for each in owners)
            case ast.Call(func=ast.Attribute(value=base, attr="values")):
                return self._items(base, steps + 1)
        return set()

    def _owners(self, base: ast.expr, name: str, steps: int) -> list[ClassFacts]:
        found = (self._program.owner(each, name) for each in self.types(base, steps))
        return [each for each in found if each is not None]

    def _union(self, found: Iterator[set[str]]) -> set[str]:
        return set[str]().union(*found)


def read_class(module: str, node: ast.ClassDef) -> ClassFacts:
    """Collect the attributes that a class declares or assigns to itself, and its methods."""
    bases = [ast.unparse(base).partition("[")[0] for base in node.bases]
    dataclass_like = any("dataclass" in ast.unparse(each) for each in node.decorator_list)
    record = dataclass_like or not RECORD_BASES.isdisjoint(base.rpartition(".")[2] for base in bases)
    facts = ClassFacts(module, node.name, bases, record)
    methods = [item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)]
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            facts.attributes[item.target.id] = item.annotation
    for method in methods:
        facts.returns[method.name] = method.returns
        if any(ast.unparse(each).endswith("property") for each in method.decorator_list):
            facts.attributes.setdefault(method.name, method.returns)
        for own in ast.walk(method):
            match own:
                case ast.AnnAssign(target=ast.Attribute(value=ast.Name(id="self"), attr=name), annotation=annotation):
                    facts.attributes[name] = annotation
                case ast.Assign():
                    for target, value in pairs(own):
                        match target:
                            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                                facts.attributes.setdefault(name, None)
                                if value is not None:
                                    facts.values.setdefault(name, (value, method))
    return facts


def foreign_targets(function: Function) -> Iterator[tuple[int, ast.Attribute]]:
    """Find the attributes that a function assigns, except those of `self` and `cls`."""
    for node in ast.walk(function):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = [target for target, _ in pairs(node)]
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        for target in targets:
            match target:
                case ast.Attribute(value=ast.Name(id="self" | "cls")):
                    pass
                case ast.Attribute():
                    yield target.lineno, target


def functions(program: Program, module: str, tree: ast.Module) -> Iterator[tuple[ClassFacts | None, Function]]:
    """Return the functions of a module and the methods of its classes, each with its class."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield None, node
        elif isinstance(node, ast.ClassDef):
            for item in node.body:
                if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield program.classes[f"{module}.{node.name}"], item


def pairs(node: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """Return each target of an assignment with its value; None: the value is a part of another one."""
    for target in node.targets:
        if isinstance(target, ast.Tuple | ast.List):
            values = node.value.elts if isinstance(node.value, ast.Tuple | ast.List) else []
            for index, each in enumerate(target.elts):
                yield each, values[index] if len(values) == len(target.elts) else None
        else:
            yield target, node.value


def parameters(function: Function) -> dict[str, ast.expr | None]:
    """Return the annotation of each parameter."""
    arguments = function.args
    return {each.arg: each.annotation for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}


def module_name(path: str) -> str:
    """Return the import name of the module at a path."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def package_of(path: str) -> str:
    """Return the import name of the package that holds the module at a path."""
    return path.rpartition("/")[0].replace("/", ".")


def is_refused(program: Program, assignment: Assignment) -> bool:
    """Return True when an assignment breaks the rule: a hook is passed to a constructor or method.

    So is every attribute of another package's class, except for the public fields of records; a package may write
    attributes of its own classes. For an object of unknown type, all classes with such an attribute must agree.
    """
    return all(
        owner.module != assignment.module
        and (
            program.is_hook(owner, assignment.attribute)
            or (
                owner.package != assignment.package
                and (assignment.attribute.startswith("_") or not any(each.is_record for each in program.bases(owner)))
            )
        )
        for owner in assignment.owners
    )


def import_circles(trees: Mapping[str, ast.Module]) -> list[list[str]]:
    """Return the groups of modules that import each other, including imports for types and within functions."""
    modules = {module_name(path) for path in trees}
    imports = {module_name(path): imported(tree, modules) - {module_name(path)} for path, tree in trees.items()}
    reached = {module: reach(module, imports) for module in imports}
    circles = {frozenset({each for each in reached[module] if module in reached[each]}) for module in imports}
    return sorted(sorted(circle) for circle in circles if circle)


def imported(tree: ast.Module, modules: set[str]) -> set[str]:
    """Return which of these modules a module imports."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & modules or {str(node.module)}
    return found & modules


def reach(module: str, imports: Mapping[str, set[str]]) -> set[str]:
    """Return the modules that a module imports, directly or through others."""
    found: set[str] = set()
    ahead = [*imports[module]]
    while ahead:
        each = ahead.pop()
        if each not in found:
            found.add(each)
            ahead += imports[each]
    return found
