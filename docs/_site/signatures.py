"""What the API pages show of values and types: short values as they are, and no private name.

A default value is worth reading, a table of forty lines is not. A private alias stands for its
definition, a private constant for its value.
"""

import dataclasses
from typing import Any

import griffe

LONGEST = 60  # characters of a value


def _private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def short(value: Any) -> Any:
    """The value, or three dots."""
    return value if value is None or len(str(value)) <= LONGEST else "..."


class Signatures(griffe.Extension):
    """For griffe, after its own extension for dataclasses, which reads values too."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Called once everything is read."""
        self._package = pkg
        self._walk(pkg)

    def _walk(self, object: griffe.Object) -> None:
        for name, member in object.members.items():
            if member.is_alias or (member.is_attribute and _private(name)):
                continue
            if isinstance(member, griffe.Attribute):
                member.annotation = self._opened(member.annotation)
                value = self._opened(member.value)
                member.value = value if short(value) == value else None
            elif isinstance(member, griffe.Function):
                member.returns = self._opened(member.returns)
                for parameter in member.parameters:
                    parameter.annotation = self._opened(parameter.annotation)
                    parameter.default = short(self._opened(parameter.default))
            elif isinstance(member, griffe.Class | griffe.Module):
                self._walk(member)

    def _opened(self, expression: Any) -> Any:
        """The expression with what its private names stand for, as far as that is known."""
        if isinstance(expression, griffe.ExprName):
            return self._definition(expression) if _private(expression.name) else expression
        if isinstance(expression, griffe.Expr):
            for field in dataclasses.fields(expression):
                value = getattr(expression, field.name)
                if isinstance(value, list):
                    setattr(expression, field.name, [self._opened(one) for one in value])
                elif isinstance(value, griffe.Expr):
                    setattr(expression, field.name, self._opened(value))
        return expression

    def _definition(self, name: griffe.ExprName) -> Any:
        """What its module assigns to the name; a type variable is written without its mark."""
        package, _, path = name.canonical_path.partition(".")
        if package != self._package.name:
            return name
        try:
            value = self._package[path].value
        except (KeyError, AttributeError, griffe.GriffeError):
            return name  # a class
        if value is None:
            return name
        if str(value).startswith(("TypeVar(", "ParamSpec(")):
            return name.name.lstrip("_")
        return self._opened(value)
