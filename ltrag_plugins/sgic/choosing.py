"""Which round's answer to return, and when a further round is not worth asking for."""

from collections.abc import Sequence

from ltrag_plugins.sgic.answer import Round, Stop
from ltrag_plugins.sgic.same import essence
from ltrag_plugins.sgic.settings import Choose, SGICSettings


def chosen(trace: Sequence[Round], how: Choose) -> Round:
    """The round whose answer is returned; a blank one only where all are blank.

    "least uncertain" compares scores, not raw uncertainties: those grow with the rounds, and the
    scale has a mean for each. Of equal scores the earliest counts.

    References:
        Chen et al. (SGIC), 4.1 (least uncertain) and 4.3 (repeated, after Huang et al., 2024).
    """
    spoken = [one for one in trace if one.text] or list(trace)
    if how == "least uncertain":
        return min(spoken, key=lambda one: one.score)
    return (repeated(spoken) if how == "repeated" else None) or spoken[-1]


def repeated(trace: Sequence[Round]) -> Round | None:
    """The first round whose answer says what an earlier one said; see `essence`."""
    seen: set[str] = set()
    for one in trace:
        if one.text:
            if (said := essence(one.text)) in seen:
                return one
            seen.add(said)
    return None


def reason_to_stop(trace: Sequence[Round], settings: SGICSettings) -> Stop | None:
    """Why the answers so far need no further round; None if they do."""
    last = trace[-1]
    if last.score < settings.certain_below:
        return "certain"
    if _settled(trace, settings):
        return "settled"
    return "rounds" if last.number >= settings.rounds else None


def _settled(trace: Sequence[Round], settings: SGICSettings) -> bool:
    if settings.choose == "repeated" and repeated(trace):
        return True
    if settings.least_gain is None or len(trace) < 2:
        return False
    before, last = trace[-2:]
    same = essence(before.text) == essence(last.text)
    return same and before.score - last.score <= settings.least_gain
