"""What is logged where a calibrator is made with rounds that no fit has tried."""

import logging

from ltrag_plugins.sgic.settings import SGICSettings

log = logging.getLogger(__name__)


def remark_untried(settings: SGICSettings, *, fitted: bool) -> None:
    """Log a warning where there are rounds and no calibration."""
    if settings.rounds and not fitted:
        log.warning(
            "without a calibration: up to %s after an answer that is not certain, not tried on "
            "this model; whether rounds pay, 'ltrag sgic fit' (sgic.fit) tells on your labelled "
            "questions, and SGICSettings(rounds=0) leaves them out",
            "1 round" if settings.rounds == 1 else f"{settings.rounds} rounds",
        )
