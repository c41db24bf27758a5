"""A channel layer that does everything a layer may do wrong: it delays, doubles and drops, and so it reorders too."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

from channels.layers import InMemoryChannelLayer


class FaultyLayer(InMemoryChannelLayer):
    """Each message to a group is dropped, doubled or delayed with these chances; a copy is delayed on its own."""

    def __init__(
        self,
        *,
        seed: int,
        drop: float = 0.25,
        double: float = 0.25,
        delay: float = 0.4,
        longest_seconds: float = 0.4,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._dice = random.Random(seed)
        self._drop = drop
        self._double = double
        self._delay = delay
        self._longest_seconds = longest_seconds
        self._late: set[asyncio.Task[None]] = set()
        self.faults: Counter[str] = Counter()
        """What it did, by kind of fault and of message."""

    async def group_send(self, group: str, message: dict[str, Any]) -> None:
        """Send, or not, or twice, or later."""
        kind = message["type"]
        if self._dice.random() < self._drop:
            self.faults[f"dropped {kind}"] += 1
            return
        copies = 1
        if self._dice.random() < self._double:
            self.faults[f"doubled {kind}"] += 1
            copies = 2
        for _ in range(copies):
            if self._dice.random() < self._delay:
                self.faults[f"delayed {kind}"] += 1
                late = asyncio.ensure_future(self._send_late(group, message))
                self._late.add(late)
                late.add_done_callback(self._late.discard)
            else:
                await super().group_send(group, message)

    async def _send_late(self, group: str, message: dict[str, Any]) -> None:
        await asyncio.sleep(self._dice.uniform(0, self._longest_seconds))
        await super().group_send(group, message)
