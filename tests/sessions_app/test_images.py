"""Images in entries: small ones stay, large ones become references on every way into the store (behaviour 6.1)."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessions_app import blobs, history, images, ledger, limits
from sessions_app.callers import system
from sessions_app.commands import entries, messages
from sessions_app.encoding import encode
from sessions_app.errors import InvalidState, ResourceLimit
from sessions_app.models import Blob, DeferredEntry, HistoryEntry
from sessions_app.records import (
    FunctionCallOutputItem,
    InputImage,
    InputMessageItem,
    InputText,
    MessageContent,
    ToolOutputPart,
    ToolOutputPartInputImage,
    ToolOutputPartInputText,
)
from sessions_app.runtime.context import Histories
from tests.support.world import Client, World

SMALL, LIMIT = limits.KIB, limits.MAX_INLINE_IMAGE_BYTES
ROOM = history.ITEM_ROOM


def url(size: int, fill: bytes = b"x", kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(fill * size).decode()}"


def message(*urls: str) -> bytes:
    parts: tuple[InputText | InputImage, ...] = (
        InputText(text="look"),
        *(InputImage(image_url=one, detail="auto") for one in urls),
    )
    return encode(InputMessageItem(role="user", content=parts))


def output(*urls: str) -> bytes:
    parts: tuple[ToolOutputPart, ...] = (
        ToolOutputPartInputText(text="seen"),
        *(ToolOutputPartInputImage(image_url=one, detail="auto") for one in urls),
    )
    return encode(FunctionCallOutputItem(call_id="c", output=parts))


def addresses(payload: bytes) -> list[str]:
    """What stands for each image of an item: its address, or its size where it is written out."""
    item = msgspec.json.decode(payload)
    found = [part["image_url"] for part in item.get("content") or item["output"] if "image_url" in part]
    return [
        f"inline {len(base64.b64decode(one.partition(',')[2]))}" if one[:5] == "data:" else one
        for one in found
    ]


def taken_out(payload: bytes, room: int = ROOM) -> tuple[list[str], list[tuple[str, int]]]:
    kept: list[tuple[str, int]] = []

    def keep(media_type: str, content: bytes) -> str:
        kept.append((media_type, len(content)))
        return f"blob:{len(kept)}"

    return addresses(images.lightened(payload, keep, room)), kept


@pytest.mark.parametrize("item", [message, output])
def test_an_image_is_large_above_256_kib(item: Any) -> None:
    found, kept = taken_out(
        item(url(SMALL), url(LIMIT), url(LIMIT + 1, kind="image/webp"), "https://there/x.png")
    )
    assert found == [f"inline {SMALL}", f"inline {LIMIT}", "blob:1", "https://there/x.png"]
    assert kept == [("image/webp", LIMIT + 1)]


def test_the_largest_give_way_until_the_entry_fits() -> None:
    sizes = [LIMIT - 10 * number for number in range(16)]
    payload = message(*map(url, sizes))
    assert len(payload) > ROOM
    found, kept = taken_out(payload)
    assert [size for _, size in kept] == sizes[: len(kept)]
    assert found == [f"blob:{number}" for number in range(1, len(kept) + 1)] + [
        f"inline {size}" for size in sizes[len(kept) :]
    ]
    assert len(kept) == 4, "no more than has to"


@pytest.mark.parametrize(
    "payload",
    [
        message(),
        message("https://there/x.png"),
        history.user_message('"data:image/png;base64,' + "x" * (2 * LIMIT)).payload,
        message("data:image/png;base64,=" + "x" * (2 * LIMIT)),
        message(url(2 * LIMIT, kind="text/html")),
        encode(FunctionCallOutputItem(call_id="c", output='"data:' + "x" * (2 * LIMIT))),
    ],
)
def test_everything_else_is_the_same_object(payload: bytes) -> None:
    assert images.lightened(payload, lambda _type, _content: "blob:", ROOM) is payload


def test_an_image_need_not_be_base64() -> None:
    found, kept = taken_out(message("data:image/svg+xml;charset=utf-8," + "%3Csvg%3E" * LIMIT))
    assert (found, kept) == (["blob:1"], [("image/svg+xml", 5 * LIMIT)])


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from([1, SMALL, 200 * limits.KIB, LIMIT, LIMIT + 1, limits.MIB]), max_size=24))
def test_no_image_is_lost_and_the_entry_fits(sizes: list[int]) -> None:
    kept: dict[str, bytes] = {}

    def keep(_type: str, content: bytes) -> str:
        kept[f"blob:{len(kept)}"] = content
        return f"blob:{len(kept) - 1}"

    payload = message(*(url(size, bytes([number])) for number, size in enumerate(sizes)))
    light = images.lightened(payload, keep, ROOM)
    assert len(light) <= ROOM
    whole = images.readdressed(
        light,
        lambda one: f"data:image/png;base64,{base64.b64encode(kept[one]).decode()}" if one in kept else one,
    )
    assert whole == payload
    assert history.fits(payload)


# On the way into the store


def stored(client: Client) -> list[list[str]]:
    rows = HistoryEntry.objects.filter(session_id=client.session_id).order_by("position")
    return [addresses(row.payload) for row in rows if b"input_image" in row.payload]


def check_blobs(client: Client, found: Sequence[str], *sizes: int) -> None:
    """Every reference is a blob of this session with the content of the image, and is written out again for the model."""
    rows = [Blob.objects.get(id=one.removeprefix("blob:")) for one in found]
    assert {row.session_id for row in rows} == {client.session_id}
    assert [(row.kind, row.media_type, row.byte_length) for row in rows] == [
        ("image", "image/png", size) for size in sizes
    ]
    assert [blobs.read(row.sha256) for row in rows] == [b"x" * size for size in sizes]
    asked = [addresses(item) for item in Histories().read(client.session_id) if b"input_image" in item]
    assert asked == [[f"inline {size}" for size in sizes]]


def test_a_prompt_with_a_large_image(world: World) -> None:
    (world.folder / "large.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"x" * (4 * limits.MIB))
    prompt = world.prompt('<user>Look: <img src="large.png" local/></user>', name="picture")
    sessions = [world.create(prompt=prompt) for _ in range(2)]
    found = [stored(client)[0][0] for client in sessions]
    assert found[0] != found[1], "each session has its own"
    assert len({Blob.objects.get(id=one.removeprefix("blob:")).sha256 for one in found}) == 1


def chatmd(world: World, client: Client, text: str) -> messages.Sent:
    call = world.call(client.caller, "session.send_message", protected=True)
    content = MessageContent(kind="chatmd", text=text, attachments=())
    return messages.send_message(call, client.session_id, content)


@pytest.mark.parametrize("quote", ['"', "'"])
def test_chatmd_with_a_large_image(world: World, quote: str) -> None:
    client = world.idle()
    chatmd(world, client, f"<user>Look: <img src={quote}{url(3 * limits.MIB)}{quote}/></user>")
    ((found,),) = stored(client)
    check_blobs(client, [found], 3 * limits.MIB)


def test_chatmd_that_is_refused_keeps_nothing(world: World) -> None:
    client = world.idle()
    with pytest.raises(InvalidState):
        chatmd(world, client, f'<user>Look: <img src="{url(LIMIT + 1)}"/>')
    assert not Blob.objects.exists()


def test_a_deferred_message_with_a_large_image(world: World) -> None:
    client = world.idle()
    world.turn(client)
    chatmd(world, client, f'<user>Look: <img src="{url(3 * limits.MIB)}"/></user>')
    waiting = DeferredEntry.objects.get()
    assert addresses(waiting.payload)[0].startswith("blob:")
    assert world.session(client.session_id).deferred_bytes < limits.KIB


def test_a_tool_that_returns_a_large_image(world: World) -> None:
    client = world.idle()
    claim = world.turn(client)
    world.propose(claim, "run")
    image = ToolOutputPartInputImage(image_url=url(5 * limits.MIB), detail="auto")
    world.advance(claim, (0, (image,)))
    ((found,),) = stored(client)
    check_blobs(client, [found], 5 * limits.MIB)
    world.finish(claim, "done")


def test_without_its_images_an_entry_is_at_most_4_mib(world: World) -> None:
    big = message(url(limits.MIB)).replace(b"look", b"l" * limits.MAX_ENTRY_BYTES)
    with pytest.raises(ResourceLimit) as refused:
        history.entry_of(big)
    assert not refused.value.retryable
    client = world.idle()
    with ledger.session_txn(client.session_id, system("test")) as txn:
        entries.append_and_tell(txn, [history.entry_of(message(*[url(limits.MIB)] * 12))])
    row = HistoryEntry.objects.latest("position")
    assert row.size < limits.MAX_ENTRY_BYTES
    assert len(addresses(row.payload)) == 12


def test_a_live_event_tells_the_beginning_of_a_long_output() -> None:
    whole = "y" * limits.KIB
    assert history.shown_output(whole) is whole
    for long in ("y" * limits.MIB, (ToolOutputPartInputText(text="y" * limits.MIB),)):
        shown = history.shown_output(long)
        assert isinstance(shown, str)
        assert shown.startswith("yyy")
        assert shown.endswith(history.CUT_NOTE)
        assert len(encode(shown)) <= limits.MAX_PAYLOAD_BYTES
    assert history.shown_output((ToolOutputPartInputImage(image_url=url(LIMIT), detail="auto"),)) == (
        "[image]" + history.CUT_NOTE
    )
