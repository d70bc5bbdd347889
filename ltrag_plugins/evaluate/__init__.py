"""One run for every method: who answers best, at what cost, with and without a gate.

::

    metrics    the measures that can be named
    naming     how cells are called
    words      a method and its settings in one word
    answering  questions through one cell, side by side, into records
    running    a whole run; goes on after an interruption
    costs      what each of the flows that run side by side cost
    tracing    every request and reply of each
    records    a record as a line of JSON
    recorded   answers that a model gave elsewhere, in the model's place
    folder     a run on disk
    summary    from records to a table with intervals
"""

from ltrag_plugins.evaluate.answering import Cell, Engine, Job, Work, in_process
from ltrag_plugins.evaluate.metrics import METRICS
from ltrag_plugins.evaluate.recorded import Recording
from ltrag_plugins.evaluate.records import Record
from ltrag_plugins.evaluate.running import evaluate
from ltrag_plugins.evaluate.summary import Summary, summarize
from ltrag_plugins.evaluate.words import cell_of
from ltrag_plugins.methods.table import METHODS

__all__ = [
    "METHODS",
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
