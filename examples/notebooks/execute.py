"""Run notebooks from top to bottom, each in its own folder, and keep what they show::

    python examples/notebooks/execute.py examples/notebooks/*.ipynb

What differs from one machine to the next (times, versions, the kernel's name) is left out.
"""

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient


def executed(path: Path, *, timeout: int = 600) -> nbformat.NotebookNode:
    """The notebook with its outputs; a cell that raises ends it."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=timeout,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
        record_timing=False,
        coalesce_streams=True,
    )
    client.execute()
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return notebook


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        nbformat.write(executed(path), path)
        print(f"{path}: done")
