"""The ports as this app's part of the wiring installs them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from permissions_app.participants import GrantParticipant, PermissionParticipant
from sessions_app import participants, processes


class Dispatched:
    """A dispatcher that remembers which operations it was asked to send."""

    def __init__(self) -> None:
        self.operations: list[str] = []

    def operation(self, operation_id: str) -> None:
        """Remember it."""
        self.operations.append(operation_id)

    def jobs(self) -> None:
        """Nothing waits here."""


@pytest.fixture
def dispatched(db: None) -> Iterator[Dispatched]:
    """Install this app's participants, and a dispatcher that remembers."""
    before = participants.installed(), participants.dispatcher()
    made = Dispatched()
    participants.install((PermissionParticipant(), GrantParticipant()), made)
    processes.register("worker")
    yield made
    processes.leave()
    participants.install(*before)
