"""Prompts with named places."""

import re

from ltrag_plugins.errors import InvalidInput


def filled(template: str, **parts: str) -> str:
    """The template with each `{name}` replaced; other braces, and those in the parts, stay.

    Raises:
        InvalidInput: the template has no place for one of the parts.
    """
    missing = [f"'{{{name}}}'" for name in parts if f"{{{name}}}" not in template]
    if missing:
        raise InvalidInput(f"the template must hold {' and '.join(missing)}, got {template!r}")
    places = "|".join(map(re.escape, parts))
    return re.sub(rf"\{{({places})\}}", lambda found: parts[found[1]], template)
