"""The replay law: a snapshot and the events after it say what a later snapshot says.

Owns: which differences are none. Does not own: making either side (`projection`, a server). For tests of servers and
of this package: apply the events of a command to a `Projection` of the snapshot before, and compare with the snapshot
after, for every view.

Not compared are what no event tells: revisions, `updated_at` and the workspace instance of the session, archived
revisions, active calls. Lists of records are compared by id, because only snapshots order them. Where windows or lists
are cut to their limits, what both sides show is compared (behaviour 8.8).
"""

from __future__ import annotations

from typing import Any

import msgspec

from sessions_app.encoding import encode
from sessions_app.records import Snapshot

_UNTOLD = ("revision", "archived_revisions", "active_tool_calls", "active_agent_calls")
_UNTOLD_OF_SESSION = ("revision", "updated_at", "workspace_instance")
_HISTORIES = ("canonical_history", "effective_history")
_LISTS = ("permissions", "grants", "jobs", "schedules")

_FULL_LIST = 256
_FULL_LISTS_BYTES = 2 * 1024 * 1024
"""Lists may have been cut from here on: a snapshot holds 256 items each and 3 MiB together, and one item may have most of
the last one."""


def equal_by_law(one: Snapshot, other: Snapshot) -> bool:
    """Tell whether two snapshots of one session and one view say the same."""
    return not differences(one, other)


def differences(one: Snapshot, other: Snapshot) -> list[str]:
    """Return the members in which two snapshots differ, each with both values; none when the law holds."""
    first, second = _plain(one), _plain(other)
    cut = _may_be_cut(first) or _may_be_cut(second)
    found = []
    for name in sorted(first.keys() | second.keys()):
        a, b = first.get(name), second.get(name)
        if name in _HISTORIES and a and b:
            a, b = _shared_window(a, b)
        elif name in _LISTS:
            a, b = _shared_items(a or [], b or [], cut=cut)
        if a != b:
            found.append(f"{name}: {a!r} != {b!r}")
    return found


def _plain(snapshot: Snapshot) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.json.decode(encode(snapshot))
    for name in _UNTOLD:
        del plain[name]
    for name in _UNTOLD_OF_SESSION:
        plain["session"].pop(name, None)
    return plain


def _may_be_cut(plain: dict[str, Any]) -> bool:
    lists = [plain[name] for name in _LISTS]
    return any(len(items) >= _FULL_LIST for items in lists) or len(encode(lists)) >= _FULL_LISTS_BYTES


def _shared_window(one: dict[str, Any], other: dict[str, Any]) -> tuple[Any, Any]:
    """Return both windows from the later of their starts on, unless the one that shows less claims to show everything."""
    a, b = one["entries"], other["entries"]
    shorter = one if len(a) <= len(b) else other
    if not shorter["reached_start"]:
        shared = min(len(a), len(b))
        a, b = a[len(a) - shared :], b[len(b) - shared :]
    return (a, one["reached_end"]), (b, other["reached_end"])


def _shared_items(one: list[Any], other: list[Any], *, cut: bool) -> tuple[Any, Any]:
    a, b = ({item["id"]: item for item in items} for items in (one, other))
    if cut:
        shared = a.keys() & b.keys()
        a, b = ({id: items[id] for id in shared} for items in (a, b))
    return a, b
