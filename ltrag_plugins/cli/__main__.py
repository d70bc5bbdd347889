"""`python -m ltrag_plugins.cli`: the same as `ltrag`."""

from ltrag_plugins.cli import app

app()
