"""Watches the processes of a run: who hangs and where, who is slow, who failed, who is gone. See `watch.py`.

Nothing here uses collectives: all messages go through a side store, from a thread, so they work while the main thread hangs.
A single process has nobody to watch: `watch.py` is not imported here, so that such a run starts faster.
"""

from flatout.world.watch.news import Failed, Hang, Lost, Moving, News, StoreLost, Straggler
from flatout.world.watch.no_watch import NoWatch
from flatout.world.watch.pulse import SPLIT_FORWARD

__all__ = ["SPLIT_FORWARD", "NoWatch", "News", "Hang", "Moving", "Straggler", "Failed", "Lost", "StoreLost"]
