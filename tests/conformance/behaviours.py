"""The table of behaviours: every scenario of the contract's suite by its row, with its sentence, and which are tested by now.

Owns: the sentences, and why a row waits. Does not own: the tests, which name their row and repeat its sentence; `test_table`
compares both ways.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MODERATORS = "there are no moderators, whom schedules are delivered to, yet"


@dataclass(frozen=True)
class Behaviour:
    """One row."""

    sentence: str
    waits_for: str = ""
    """Why no test can be written yet."""


BEHAVIOURS: Mapping[str, Behaviour] = {
    # A. Connection and envelope
    "A1": Behaviour(
        "initialize 1.0 to 1.0: name, version, the principal with all scopes, limits, retention."
    ),
    "A2": Behaviour("HTTP initialize without a connection id gives one; a later ping echoes."),
    "A3": Behaviour("ping before initialize, or after one that failed: incompatible_protocol."),
    "A10": Behaviour("A ping notification on HTTP: 204 and an empty body."),
    "A12": Behaviour("An HTTP batch that initializes: one array, ids in request order."),
    "A14": Behaviour("A truncated HTTP body: 400, and the connection lives."),
    "A15": Behaviour("An HTTP body of 16 MiB and one byte: 400 resource_limit."),
    "A18": Behaviour(
        "Bad params with an id get an error with it; garbage without one nothing; ping its answer."
    ),
    "A24": Behaviour("info, health, prompt and workspace list and get: equal results on all transports."),
    # B. Authentication and scopes
    "B1": Behaviour("No, unknown and malformed credentials are refused, each alike."),
    "B2": Behaviour("The scheme is read in any case; its kind is http.static_bearer."),
    "B3": Behaviour("An expired token is refused, another one is not."),
    "B4": Behaviour("A trusted proxy asserts the identity."),
    "B8": Behaviour("A connection id belongs to one authority."),
    "B9": Behaviour(
        "Who may not create is refused and leaves nothing behind; who may then makes exactly one session."
    ),
    "B11": Behaviour("A reader attaches read_only alone; a writer read_write, and not as owner."),
    "B12": Behaviour(
        "Another's session: get and attach are denied, list omits it; an unknown one is not found."
    ),
    # C. Catalog and workspaces
    "C1": Behaviour(
        "create with an unknown, local or unusable prompt or workspace, or a pair that is not allowed."
    ),
    "C4": Behaviour(
        "A session keeps its prompt revision through edit, reload, restart and deletion of the source."
    ),
    # D. Lifecycle, quotas
    "D1": Behaviour("create, start, stop: idle, then stopped, with the events of each."),
    "D2": Behaviour("start when idle and stop when stopped succeed and change nothing."),
    "D5": Behaviour(
        "A full limit with overflow reject: resource_limit; once there is room a new key succeeds."
    ),
    "D6": Behaviour("A full limit with overflow queue: queued_for_slot, then idle by itself."),
    "D7": Behaviour("Three waiters are activated in request order."),
    "D12": Behaviour(
        "Sharers of a conflict domain run together; one who wants it alone waits, and is waited for."
    ),
    # E. Attachments, owners
    "E1": Behaviour(
        "A detached session works on without clients; a replay behind the old cursor tells of it."
    ),
    "E2": Behaviour("An attachment of another connection: permission_denied."),
    "E3": Behaviour("A read-only attachment changes nothing: permission_denied, the snapshot unchanged."),
    "E4": Behaviour(
        "A non-owner attach raises the revision by one and the sequence by none; detach the same."
    ),
    "E6": Behaviour(
        "Renewing raises the lease's generation and expiry and tells of it; an old generation is stale."
    ),
    "E9": Behaviour("The owner is gone: another principal reclaims with the token and gets a new one."),
    "E10": Behaviour("A reclaim token that was used is dead; the new one is good."),
    "E12": Behaviour("The owner leaves and its grace passes: stopped, whatever observers do."),
    # F. Messages, operations
    "F1": Behaviour(
        "A message to an idle session starts a turn; the events in their order; history and state."
    ),
    "F2": Behaviour("Two clients send at once: one started, one deferred, in one order for everybody."),
    "F5": Behaviour("A blank text, a stopped and a halted session refuse a message."),
    "F6": Behaviour(
        "chatmd: the first user element alone; plain words are wrapped; no user element is an error."
    ),
    "F7": Behaviour("Cancelling a turn keeps the streamed text as incomplete and ignores what comes later."),
    "F8": Behaviour("cancel: another id is a conflict, none active is not found, twice is a success."),
    "F9": Behaviour(
        "A graceful stop lets the turn end: stopped is wanted at once and seen after the answer."
    ),
    "F10": Behaviour("A stop that cancels keeps the message once and gives every call an output."),
    # G. Permissions and grants
    "G1": Behaviour("The profile denies or allows: the tool is not run, or run; the operation ends."),
    "G2": Behaviour("ask with a writer attached: nothing runs before the answer, then it does."),
    "G3": Behaviour("ask with nobody there: the fallback at once, or a request that waits for a writer."),
    "G5": Behaviour("A request's time passes: its fallback decides, once."),
    "G7": Behaviour("Two writers answer at once: one is taken, the other was too late."),
    "G8": Behaviour("A read-only client cannot answer, and the request stays pending."),
    "G10": Behaviour("A session grant lets the same call run unasked, and no other."),
    "G12": Behaviour("A revoked grant is told of, listed as revoked, and its call asks again."),
    "G13": Behaviour("Cancelling while a request waits cancels it and closes its call with an error output."),
    # H. Events, replay, projection
    "H1": Behaviour(
        "attach without a cursor, at the latest, at 0, beyond: snapshot, nothing, everything, nothing."
    ),
    "H2": Behaviour("What a subscriber was sent is what a later replay says."),
    "H3": Behaviour("A cursor that is no longer retained on an HTTP stream: 409."),
    "H4": Behaviour("An HTTP stream reopened with Last-Event-ID goes on."),
    "H8": Behaviour("A stalled subscriber is closed as slow; a healthy one and the writer notice nothing."),
    "H10": Behaviour(
        "A reader is told only that something happened when a schedule is made; an admin sees it."
    ),
    "H11": Behaviour("A reader sees text, tool entries without their payload, and no live events."),
    "H12": Behaviour("An ETag for each scope identity."),
    # I. Administration
    "I1": Behaviour(
        "delete_history of an entry: revision and sequence rise by one, everybody is told; stale: conflict; again: the same answer."
    ),
    "I4": Behaviour(
        "compact a stopped session: compacting, then stopped; the history replaced; the revision just before is archived."
    ),
    "I5": Behaviour("compact, cancelled: the history is unchanged, nothing is archived."),
    "I8": Behaviour("export as json, read in chunks: contiguous, whole, with snapshot and history."),
    "I9": Behaviour("An export belongs to its exact principal: permission_denied for fewer scopes."),
    "I11": Behaviour(
        "reset flags one by one: only dropped parts change; generation +1; ends stopped; the events in their order."
    ),
    "I12": Behaviour(
        "rebuild with the current catalog after an edit: the new prompt alone, fresh ids, generation +1, archived."
    ),
    "I13": Behaviour("upgrade to the new revision: the same history and generation; prompt.upgraded."),
    "I14": Behaviour("reset and upgrade with a stale revision: conflict; running: invalid_state."),
    "I15": Behaviour(
        "delete: wrong confirmation, running, then done; afterwards not found, the attachment is gone, the key answers again."
    ),
    # J. Jobs, schedules
    "J1": Behaviour("A schedule is made, read, listed and cancelled, once."),
    "J4": Behaviour("A due schedule with no clients.", MODERATORS),
    "J6": Behaviour("All processes are down over the due time: each misfire decides for itself."),
    # K. Idempotency, paging, blobs, recovery
    "K1": Behaviour("The same reset twice with one key: byte-equal answers, executed once."),
    "K2": Behaviour("The same key with another parameter: idempotency_conflict."),
    "K5": Behaviour("A refusal is kept with its key when its cause is gone; a new key succeeds."),
    "K6": Behaviour("Two identical sends at once: one entry, equal answers."),
    "K7": Behaviour(
        "A pending receipt whose process is gone answers interrupted.", "no start leaves its transaction yet"
    ),
    "K8": Behaviour("A list without a limit or with 0 is refused; a walk by cursors finds every item once."),
    "K10": Behaviour("Windows: tail, before, after, cursor; an unknown anchor; the effective view."),
    "K13": Behaviour(
        "Every process is killed and started twice: the session, its history and states are there."
    ),
    "K14": Behaviour(
        "The worker is killed in a turn, then the web process in another: interrupted, then completed."
    ),
}
