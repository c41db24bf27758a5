"""The history that a model is asked with: read once, followed by what is new, with images (behaviour 6.1, design 1.8)."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import msgspec
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from sessions_app import blobs, clock, ids, ledger
from sessions_app.callers import system
from sessions_app.commands import entries
from sessions_app.encoding import encode
from sessions_app.errors import BlobUnavailable
from sessions_app.history import NewEntry, entry_of, user_message
from sessions_app.models import Blob, HistoryEntry, Session
from sessions_app.records import InputImage, InputMessageItem
from sessions_app.runtime.context import Histories
from tests.support.world import Client, World, shown

PIXEL = b"\x89PNG not really"


def grow(client: Client, *new: NewEntry) -> None:
    """Append to the history of a session."""
    with ledger.session_txn(client.session_id, system("test")) as txn:
        entries.append_and_tell(txn, new)


def told(items: Sequence[bytes]) -> list[str]:
    return [shown(item) for item in items]


def rows_read(read: Callable[[], object]) -> int:
    """Return how many rows of history the statements of `read` find."""
    with CaptureQueriesContext(connection) as captured:
        read()
    statements = [query["sql"] for query in captured.captured_queries if "historyentry" in query["sql"]]
    count = 0
    for statement in statements:
        with connection.cursor() as cursor:
            cursor.execute(statement)
            count += len(cursor.fetchall())
    return count


def test_the_whole_history_in_order(world: World) -> None:
    client = world.idle()
    grow(client, user_message("one"), user_message("two"))
    assert told(Histories().read(client.session_id)) == ["developer: Be brief.", "user: one", "user: two"]


@pytest.mark.parametrize("length", [10, 500])
def test_a_turn_reads_what_is_new_however_long_the_session_is(world: World, length: int) -> None:
    """Design 1.8: "Cost follows the work asked for, not the age of the session"."""
    client = world.idle()
    grow(client, *(user_message(f"message {number}") for number in range(length)))
    histories = Histories()
    assert rows_read(lambda: histories.read(client.session_id)) == length + 1
    grow(client, user_message("one"), user_message("two"))
    assert rows_read(lambda: histories.read(client.session_id)) == 2
    assert rows_read(lambda: histories.read(client.session_id)) == 0
    assert len(histories.read(client.session_id)) == length + 3


def test_an_edit_is_noticed(world: World) -> None:
    client = world.idle()
    grow(client, user_message("one"), user_message("two"))
    histories = Histories()
    histories.read(client.session_id)
    HistoryEntry.objects.filter(position=1).update(payload=user_message("another").payload)
    assert told(histories.read(client.session_id))[1:] == ["user: one", "user: two"], "not read again"
    Session.objects.filter(id=client.session_id).update(history_version=1)
    assert told(histories.read(client.session_id))[1:] == ["user: another", "user: two"]


def test_the_histories_kept_are_bounded(world: World) -> None:
    clients = [world.idle() for _ in range(3)]
    for client in clients:
        grow(client, user_message("x" * 1000))
    histories = Histories(kept_bytes=2500)
    for client in clients:
        histories.read(client.session_id)
    read = [rows_read(partial(histories.read, client.session_id)) for client in reversed(clients)]
    assert read == [0, 0, 2]


def test_a_history_larger_than_the_bound_is_read_each_time(world: World) -> None:
    client = world.idle()
    grow(client, user_message("x" * 1000))
    histories = Histories(kept_bytes=500)
    assert [len(histories.read(client.session_id)) for _ in range(2)] == [2, 2]


def test_threads_share_it(committed_world: World) -> None:
    """Turns of many sessions read at once, in the database threads."""
    clients = [committed_world.idle() for _ in range(8)]
    histories = Histories(kept_bytes=600)

    def read(client: Client) -> int:
        try:
            return sum(len(histories.read(client.session_id)) for _ in range(30))
        finally:
            connection.close()

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(read, clients)) == [30] * 8


# Images


def image(client: Client, content: bytes = PIXEL, session_id: str = "") -> NewEntry:
    """Return a message with an image that is kept as a blob of a session."""
    row = Blob.objects.create(
        id=ids.new_id("blb"),
        session_id=session_id or client.session_id,
        kind="input",
        media_type="image/png",
        byte_length=len(content),
        sha256=blobs.save(content),
        created_at=clock.now(),
    )
    part = InputImage(image_url=f"blob:{row.id}", detail="auto")
    return entry_of(encode(InputMessageItem(role="user", content=(part,))))


def urls(items: Sequence[bytes]) -> list[str]:
    """Return the addresses of the images in the last message."""
    content = msgspec.json.decode(items[-1], type=InputMessageItem).content
    return [part.image_url for part in content if isinstance(part, InputImage)]


def test_images_are_inlined_towards_the_model(world: World) -> None:
    """6.1: "kept as blobs of the session and inlined only towards the model"."""
    client = world.idle()
    grow(client, image(client))
    histories = Histories()
    expected = [f"data:image/png;base64,{base64.b64encode(PIXEL).decode()}"]
    assert urls(histories.read(client.session_id)) == expected
    Blob.objects.all().delete()
    assert urls(histories.read(client.session_id)) == expected, "read once"


def test_an_image_that_is_gone(world: World) -> None:
    client = world.idle()
    grow(client, image(client, b"another"))
    Blob.objects.all().delete()
    histories = Histories()
    for _ in range(2):
        with pytest.raises(BlobUnavailable):
            histories.read(client.session_id)


def test_an_image_of_another_session_is_not_reached(world: World) -> None:
    """An address is text, which anybody may write."""
    client, other = world.idle(), world.idle()
    grow(client, image(client, session_id=other.session_id))
    with pytest.raises(BlobUnavailable):
        Histories().read(client.session_id)


def test_words_that_look_like_an_image_are_left_alone(world: World) -> None:
    client = world.idle()
    grow(client, user_message('"blob:blb_x"'))
    assert told(Histories().read(client.session_id))[-1] == 'user: "blob:blb_x"'
