"""Language models behind one port.

Owns the port (`port`), the choice of an adapter by name (`registry`) and the adapters. Does not own the
turn, history or prices: whoever asks a model hands it encoded items and gets encoded items back. Nothing
here imports Django, and no SDK is imported before its first use.
"""

from sessions_app.runtime.models.port import (
    Completed,
    ErrorReason,
    ItemDone,
    ItemStarted,
    Model,
    ModelError,
    ModelEvent,
    ModelRequest,
    StreamEvent,
    ToolCall,
    ToolSpec,
    Usage,
)
from sessions_app.runtime.models.registry import Models
from sessions_app.runtime.models.sdk import ClientOptions

__all__ = [
    "ClientOptions",
    "Completed",
    "ErrorReason",
    "ItemDone",
    "ItemStarted",
    "Model",
    "ModelError",
    "ModelEvent",
    "ModelRequest",
    "Models",
    "StreamEvent",
    "ToolCall",
    "ToolSpec",
    "Usage",
]
