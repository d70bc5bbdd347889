"""One run for every method: who answers best, at what cost, with and without a gate."""

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
