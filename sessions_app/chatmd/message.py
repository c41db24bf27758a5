"""What a client sends as ChatMD (behaviour 6.1, 17.3).

Owns: which part of the text counts and what it may hold. Does not own: plain text, blobs and the entry's place
in a history. A client's message never brings tools, config, other roles or imported files.
"""

from __future__ import annotations

from sessions_app.chatmd.elements import Helper, Message, Text
from sessions_app.chatmd.items import Item, helpers, named, to_items
from sessions_app.chatmd.lexer import ChatMDError, Place
from sessions_app.chatmd.parser import read_message
from sessions_app.chatmd.tree import parse_document


class HelperRefused(ChatMDError):
    """A message asks for a document, an image or an agent's answer, which this server does not fetch."""

    def __init__(self, helper: Helper) -> None:
        super().__init__(f"{named(helper)} cannot be used in a message", helper.place)
        self.helper = helper


def read_user_message(text: str) -> Message:
    """Return the first user element of `text`, its imports left as text.

    Text that does not start with `<` stands for a user element around it. Raises ChatMDError when the text
    does not parse, has no user element, or a blank one.
    """
    source = text if text.lstrip().startswith("<") else f"<user>{text}</user>"
    user = next((node for node in parse_document(source) if node.name == "user"), None)
    if user is None:
        raise ChatMDError("there is no <user> element", Place(1))
    message = read_message(user, "user")
    if all(isinstance(part, Text) and not part.text.strip() for part in message.body):
        raise ChatMDError("the <user> element is empty", message.place)
    return message


def user_item(text: str) -> Item:
    """Return the history item that a ChatMD message becomes.

    Raises ChatMDError as `read_user_message`, and HelperRefused for a helper that would need fetching; an
    image that is a data URI needs none.
    """
    message = read_user_message(text)
    for helper in helpers([message]):
        raise HelperRefused(helper)
    return to_items([message], {})[0]
