"""Training data from calibrated questions (section 3.3), and what reads it.

::

    building   calibrate every question, choose, write
    choosing   which round's prompt becomes an example, with which target
    settings   when an answer is right, and which examples are made
    checks     what cannot become training data
    corpus     examples on disk: chat JSON lines
    manifest   what they were made of, with their hash
"""

from ltrag_plugins.sgic.dataset.building import build
from ltrag_plugins.sgic.dataset.corpus import Dataset, Example, load
from ltrag_plugins.sgic.dataset.settings import CorpusSettings

__all__ = ["CorpusSettings", "Dataset", "Example", "build", "load"]
