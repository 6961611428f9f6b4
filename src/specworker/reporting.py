"""Says while an engine runs what its speculation does: in the log, and to Prometheus."""

import asyncio
import logging

from specworker import gauges, overview
from specworker.live import LONGEST, Live

logger = logging.getLogger(__name__)

#: Seconds between two lines in the log, and between two looks at the gauges.
LOG_SECONDS, GAUGE_SECONDS = LONGEST, 1.0


async def report(live: Live, model: str) -> None:
    """Report until cancelled: a line a minute while anything is generated, gauges always."""
    reported, due = 0, LOG_SECONDS
    while True:
        gauges.show(live, model)
        await asyncio.sleep(GAUGE_SECONDS)
        due -= GAUGE_SECONDS
        if due > 0:
            continue
        due = LOG_SECONDS
        if (generated := live.total.generated) > reported:
            reported = generated
            logger.info("%s", overview.line(live))
