"""The kernel's tables. One file per family; rows change only through `sessions_app.ledger` and its neighbours."""

from sessions_app.models.capacity import CapacityLock, HeldCapacity, StartTicket
from sessions_app.models.catalog import (
    CatalogState,
    ProfileRevision,
    PromptDefinition,
    PromptRevision,
    WorkspaceDefinition,
    WorkspaceInstance,
)
from sessions_app.models.connections import Attachment, Connection
from sessions_app.models.operations import Operation, ToolCall
from sessions_app.models.processes import Process, Store, SweepLease
from sessions_app.models.receipts import Receipt
from sessions_app.models.sessions import (
    Archive,
    ArchivedSession,
    Blob,
    DeferredEntry,
    HistoryEntry,
    LooseContent,
    Session,
    SessionEvent,
    SessionLabel,
    label_digest,
)

__all__ = [
    "Archive",
    "ArchivedSession",
    "Attachment",
    "Blob",
    "CapacityLock",
    "CatalogState",
    "Connection",
    "DeferredEntry",
    "HeldCapacity",
    "HistoryEntry",
    "LooseContent",
    "Operation",
    "Process",
    "ProfileRevision",
    "PromptDefinition",
    "PromptRevision",
    "Receipt",
    "Session",
    "SessionEvent",
    "SessionLabel",
    "StartTicket",
    "Store",
    "SweepLease",
    "ToolCall",
    "WorkspaceDefinition",
    "WorkspaceInstance",
    "label_digest",
]
