"""Refuse a wrong object where it is handed in, not where it first fails."""

from ltrag_plugins.errors import InvalidInput


def demand(value: object, kind: type | tuple[type, ...], name: str, wanted: str) -> None:
    """Raise InvalidInput unless `value` is a `kind`."""
    if not isinstance(value, kind):
        raise InvalidInput(f"{name} must be {wanted}, got {type(value).__name__} {value!r:.60}.")
