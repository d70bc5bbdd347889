"""One run for every method: who answers best, at what cost, with and without a gate.

::

    spec      what a run is asked for: cells, their names, measures
    run       questions through the cells, side by side, into records; goes on after an interruption
    folder    a run on disk
    records   a record as a line of JSON
    recorded  answers that a model gave elsewhere, in the model's place
    summary   from records to a table with intervals
"""

from ltrag_plugins.evaluate.recorded import Recording
from ltrag_plugins.evaluate.records import Record
from ltrag_plugins.evaluate.run import Engine, Job, Work, evaluate, in_process
from ltrag_plugins.evaluate.spec import METRICS, Cell, cell_of
from ltrag_plugins.evaluate.summary import Summary, summarize

__all__ = [
    "METRICS",
    "Cell",
    "Engine",
    "Job",
    "Record",
    "Recording",
    "Summary",
    "Work",
    "cell_of",
    "evaluate",
    "in_process",
    "summarize",
]
