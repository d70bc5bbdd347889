"""One run for every method: who answers best, at what cost, with and without a gate.

::

    methods    the rows that can be named, those of the DUR and SGIC rooms among them
    metrics    the measures that can be named
    running    ask, side by side; one record a question; goes on after an interruption
    costs      what each of the flows that run side by side cost
    records    a record as a line of JSON
    folder     a run on disk
    summary    from records to a table with intervals
"""

from ltrag_plugins.evaluate.metrics import METRICS
from ltrag_plugins.evaluate.records import Record
from ltrag_plugins.evaluate.running import Cell, evaluate
from ltrag_plugins.evaluate.summary import Summary, summarize

__all__ = ["METRICS", "Cell", "Record", "Summary", "evaluate", "summarize"]
