"""`python -m ltrag_plugins`: the same as `ltrag`."""

import sys

from ltrag_plugins.errors import MissingExtra


def main() -> None:
    """The command line; one line where it is not installed, or stopped before it has begun."""
    try:
        from ltrag_plugins.cli import app
    except MissingExtra as error:
        sys.exit(f"ltrag: error: {error}")
    except KeyboardInterrupt:
        sys.stderr.write("ltrag: stopped\n")
        sys.exit(130)
    app()


if __name__ == "__main__":
    main()
