"""The parts put together: which participants take part, who is told of work, which gate and tools turns get (design 2).

Owns: the choices of implementation behind the kernel's ports. Does not own: when a process starts what it runs (`server`,
`worker`, the embedded host).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs_app.jobs import JobParticipant
from jobs_app.schedules import ScheduleParticipant
from ochat_site.packs import TOOLS
from permissions_app.decisions import PermissionGate
from permissions_app.participants import GrantParticipant, PermissionParticipant
from sessions_app import catalog, participants
from sessions_app.runtime.host import TurnHost

if TYPE_CHECKING:
    from sessions_app.participants import Dispatcher, Participant
    from sessions_app.runtime.models.registry import Models

PARTICIPANTS: tuple[Participant, ...] = (
    PermissionParticipant(),
    JobParticipant(),
    ScheduleParticipant(),
    GrantParticipant(),
)
"""In the order of their events (behaviour 6.5)."""


def install(dispatcher: Dispatcher) -> None:
    """Install the kernel's ports in this process; `SiteConfig.ready` does it with the dispatcher of the deployment."""
    participants.install(PARTICIPANTS, dispatcher)


def turn_host(models: Models) -> TurnHost:
    """Return what runs turns in a worker or an embedded host."""
    return TurnHost(
        resolve_model=models.resolve,
        default_model=default_model,
        tools=TOOLS,
        gate=PermissionGate(),
    )


def default_model() -> str | None:
    """Return the model of prompts that name none: the first one that the catalog lists."""
    models = catalog.current().models
    return models[0] if models else None
