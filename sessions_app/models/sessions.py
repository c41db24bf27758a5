"""A session, its log, its history and what hangs on them (behaviour 0)."""

from __future__ import annotations

from hashlib import sha256

from django.db import models
from django.db.models import Q

from sessions_app.encoding import encode
from sessions_app.models.catalog import (
    ProfileRevision,
    PromptDefinition,
    PromptRevision,
    WorkspaceDefinition,
    WorkspaceInstance,
)
from sessions_app.models.fields import EncodedField, IdField, OptionalEncodedField


class Session(models.Model):
    """The row whose lock makes one writer (behaviour 0.1). Its counters change only in `ledger`."""

    id = IdField(primary_key=True)
    creator = IdField(blank=True)
    """Principal id; empty where nobody stands behind the session."""
    created_at = models.DateTimeField()
    updated_at = models.DateTimeField()
    archived_at = models.DateTimeField(null=True)
    """Set when it is deleted: hidden, with everything in it, until an operator restores it (behaviour 9.5)."""
    removed = models.BooleanField(default=False)
    """Set with `archived_at` where nothing is to be kept: nobody restores it, and maintenance erases it."""

    spec = EncodedField()
    """The `SessionSpec` it was created with."""
    liveness = models.CharField(max_length=16)
    disconnect_grace_ms = models.PositiveBigIntegerField(default=0)
    stop_mode = models.CharField(max_length=8, default="graceful")
    transient = models.BooleanField(default=False)
    prompt = models.ForeignKey(PromptDefinition, on_delete=models.PROTECT, related_name="sessions")
    prompt_revision = models.ForeignKey(PromptRevision, on_delete=models.PROTECT, related_name="sessions")
    profile = models.ForeignKey(ProfileRevision, on_delete=models.PROTECT, related_name="+")
    workspace = models.ForeignKey(WorkspaceDefinition, on_delete=models.PROTECT, related_name="sessions")
    workspace_instance = models.ForeignKey(
        WorkspaceInstance, null=True, on_delete=models.PROTECT, related_name="+"
    )

    desired = models.CharField(max_length=8)
    observed = models.CharField(max_length=24)
    """The tag of `ObservedState`; its members are `active_operation`, `waiting_on` and `failure`."""
    active_operation = models.OneToOneField(
        "Operation", null=True, on_delete=models.PROTECT, related_name="+"
    )
    waiting_on = IdField(blank=True)
    """The permission that `waiting_for_permission` names."""
    failure = OptionalEncodedField()
    """The `Error` of a session that is `failed`."""
    load_error = OptionalEncodedField()
    """The `Error` last told by `session.error`, so that one cause is told once (behaviour 8.1); null once it loads."""
    halted = models.BooleanField(default=False)
    halt_reason = models.TextField(blank=True)

    generation = models.PositiveBigIntegerField(default=0)
    revision = models.PositiveBigIntegerField(default=0)
    latest_sequence = models.PositiveBigIntegerField(default=0)
    oldest_sequence = models.PositiveBigIntegerField(default=1)
    """The first sequence that replay may still use (behaviour 8.4)."""
    next_history = models.PositiveBigIntegerField(default=0)
    """The next history sequence: gaps allowed, never reused."""
    next_position = models.PositiveBigIntegerField(default=0)
    """Where the next canonical entry stands; positions have gaps after edits and never move."""
    history_version = models.PositiveBigIntegerField(default=0)
    """Raised by every change of the canonical history that is not an append, so that a cached prefix knows its age."""
    deferred_count = models.PositiveIntegerField(default=0)
    deferred_bytes = models.PositiveBigIntegerField(default=0)

    lease_generation = models.PositiveBigIntegerField(default=0)
    owner_attachment = IdField(blank=True)
    owner_principal = IdField(blank=True)
    lease_expires_at = models.DateTimeField(null=True)
    lease_grace_until = models.DateTimeField(null=True)
    """Set while the owner is disconnected."""
    reclaim_digest = models.BinaryField(null=True)

    class Meta:
        permissions = [
            ("read", "Read"),
            ("write", "Write"),
            ("own", "Own"),
        ]  # The levels of a share (behaviour 2.6).
        indexes = [
            models.Index(fields=["creator", "id"], name="session_by_creator", condition=Q(archived_at=None)),
            models.Index(fields=["prompt", "id"], name="session_by_prompt", condition=Q(archived_at=None)),
            models.Index(
                fields=["workspace", "id"], name="session_by_workspace", condition=Q(archived_at=None)
            ),
            models.Index(fields=["desired", "id"], name="session_by_desired", condition=Q(archived_at=None)),
            models.Index(
                fields=["lease_grace_until"],
                name="session_grace_due",
                condition=Q(lease_grace_until__isnull=False),
            ),
            models.Index(
                fields=["lease_expires_at"],
                name="session_lease_due",
                condition=Q(lease_expires_at__isnull=False),
            ),
            models.Index(
                fields=["oldest_sequence"], name="session_trimmed", condition=Q(oldest_sequence__gt=1)
            ),
            models.Index(fields=["id"], name="session_removed", condition=Q(removed=True)),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(desired__in=["running", "stopped"]), name="session_desired_known"
            ),
            models.CheckConstraint(
                condition=Q(observed__in=["running_turn", "compacting", "waiting_for_permission"])
                | Q(active_operation__isnull=True),
                name="session_operation_is_observed",
            ),
            models.CheckConstraint(
                condition=Q(observed="waiting_for_permission") | Q(waiting_on=""),
                name="session_waits_for_something",
            ),
        ]

    def __str__(self) -> str:
        return self.id


class ArchivedSession(Session):
    """The same row, as the admin shows it to those who may bring it back; which rows those are says whoever asks."""

    class Meta:
        proxy = True
        default_permissions = ("view",)
        verbose_name = "archived session"


class SessionLabel(models.Model):
    """One label of a session, for the filter of `session.list`; to be read, it stands in the spec.

    A digest, because a label may be as long as a request and hold any character, which neither an index row nor every
    database's text may.
    """

    session = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="labels", db_index=False)
    digest = models.BinaryField(max_length=32)
    """`label_digest` of key and value."""

    class Meta:
        constraints = [models.UniqueConstraint(fields=["session", "digest"], name="label_once")]
        indexes = [models.Index(fields=["digest", "session"], name="label_lookup")]

    def __str__(self) -> str:
        return bytes(self.digest).hex()


def label_digest(key: str, value: str) -> bytes:
    """Return what one label of a session is found by."""
    return sha256(encode((key, value))).digest()


class SessionEvent(models.Model):
    """One durable event: the log is the truth, everything pushed is a hint (behaviour 0.2, 8.1)."""

    session = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="events", db_index=False)
    sequence = models.PositiveBigIntegerField()
    revision = models.PositiveBigIntegerField()
    at = models.DateTimeField()
    kind = models.CharField(max_length=40)
    payload = EncodedField()
    """The canonical payload, `events.PAYLOADS[kind]`, as the JSON that is sent."""
    extra = OptionalEncodedField()
    """What only some dialects tell: message ids, key, usage, actor (`events.Extra`)."""

    class Meta:
        constraints = [models.UniqueConstraint(fields=["session", "sequence"], name="event_sequence_once")]

    def __str__(self) -> str:
        return f"{self.session_id} {self.sequence} {self.kind}"


class HistoryEntry(models.Model):
    """One entry of the canonical history; its id is made of the session id and `number` (behaviour 0.5)."""

    session = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="history", db_index=False)
    position = models.PositiveBigIntegerField()
    number = models.PositiveBigIntegerField()
    role = models.CharField(max_length=16)
    kind = models.CharField(max_length=16)
    payload = EncodedField()
    """An OpenAI Responses item, as received or made, never re-encoded."""
    size = models.PositiveIntegerField()
    """Bytes of the whole encoded entry, so that windows are cut without reading payloads."""
    call_key = models.TextField(blank=True)
    """`history.call_key_of`: joins a call with its output."""
    operation_id = IdField(blank=True)
    initial = models.BooleanField(default=False)
    """One of the prompt's own messages."""

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["session", "position"], name="history_position_once"),
            models.UniqueConstraint(fields=["session", "number"], name="history_number_once"),
        ]
        indexes = [
            models.Index(fields=["session", "call_key"], name="history_call", condition=~Q(call_key=""))
        ]

    def __str__(self) -> str:
        return f"{self.session_id}:{self.number}"


class DeferredEntry(models.Model):
    """A message that waits for its turn, in the order of acceptance (behaviour 6.3)."""

    session = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="deferred", db_index=False)
    number = models.PositiveBigIntegerField()
    adopt = models.CharField(max_length=12, default="safe_point")
    """`safe_point`, or `turn_end` for prompts that start a turn of their own."""
    role = models.CharField(max_length=16)
    kind = models.CharField(max_length=16)
    payload = EncodedField()
    size = models.PositiveIntegerField()
    principal_id = IdField(blank=True)
    origin = models.CharField(max_length=16, default="ochat")
    idempotency_key = models.CharField(max_length=256, blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["session", "number"], name="deferred_number_once")]

    def __str__(self) -> str:
        return f"{self.session_id}:{self.number}"


class Archive(models.Model):
    """A session as it stood before its history was replaced (behaviour 9.2, 9.4); the entries rest in the storage."""

    session = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="archives", db_index=False)
    revision = models.PositiveBigIntegerField()
    name = models.TextField()
    """Of the file in the storage: one line for each entry, its position and its record."""
    sha256 = models.CharField(max_length=64)
    size = models.PositiveBigIntegerField()
    head = EncodedField()
    """The whole `Snapshot` of then, but for its histories."""
    created_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["session", "revision"], name="archive_revision_once")]

    def __str__(self) -> str:
        return f"{self.session_id} at {self.revision}"


class Blob(models.Model):
    """Content kept beside the log; the bytes rest in the storage under their digest (behaviour 13)."""

    id = IdField(primary_key=True)
    session = models.ForeignKey(Session, null=True, on_delete=models.CASCADE, related_name="blobs")
    """Null while it is a temporary upload."""
    creator = IdField(blank=True)
    kind = models.CharField(max_length=8)
    media_type = models.TextField()
    byte_length = models.PositiveBigIntegerField()
    sha256 = models.CharField(max_length=64, db_index=True)
    display_name = models.TextField(blank=True)
    allowed_use = models.CharField(max_length=32, default="message_input")
    target_session = IdField(blank=True)
    bound_to = OptionalEncodedField()
    """The exact principal an export is for (behaviour 9.3)."""
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True, db_index=True)

    def __str__(self) -> str:
        return self.id


class LooseContent(models.Model):
    """Content in the storage that perhaps no row refers to: saved a moment ago, or given up (`contents`)."""

    digest = models.CharField(max_length=64, primary_key=True)
    since = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return self.digest
