"""One run for every method: who answers best, at what cost, with and without a gate; and all three
of ours at once, each where it pays."""

from ltrag_plugins.evaluate.choice import Goal, PipelineReport, Verdict, WayFigures
from ltrag_plugins.evaluate.pipeline import LongTailAnswer, LongTailRAG, LongTailSettings
from ltrag_plugins.evaluate.recorded import Recording
from ltrag_plugins.evaluate.records import Record
from ltrag_plugins.evaluate.run import Engine, Job, Work, evaluate, in_process
from ltrag_plugins.evaluate.spec import METRICS, Cell, cell_of
from ltrag_plugins.evaluate.summary import Summary, summarize

__all__ = [
    "METRICS",
    "Cell",
    "Engine",
    "Goal",
    "Job",
    "LongTailAnswer",
    "LongTailRAG",
    "LongTailSettings",
    "PipelineReport",
    "Record",
    "Recording",
    "Summary",
    "Verdict",
    "WayFigures",
    "Work",
    "cell_of",
    "evaluate",
    "in_process",
    "summarize",
]
