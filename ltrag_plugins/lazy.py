"""Names of a package that are imported when they are first asked for (PEP 562)."""

from collections.abc import Callable, Mapping
from importlib import import_module


def lazily(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """What the package, of this `__name__`, is to call `__getattr__` and `__dir__`; `modules` has
    the names of each module below it, with spaces between."""
    homes = {name: module for module, names in modules.items() for name in names.split()}

    def attribute(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return attribute, lambda: sorted(homes)
