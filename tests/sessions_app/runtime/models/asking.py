"""The requests of these tests."""

from sessions_app.runtime.models import ModelRequest, ToolSpec

HELLO = b'{"type":"message","role":"user","content":[{"type":"input_text","text":"hello"}]}'
CLOCK = ToolSpec("clock", "Tells the time.")
NOTE = ToolSpec("note", "Takes any text.", kind="custom")
ASKED = ModelRequest(items=[HELLO], tools=(CLOCK, NOTE), cache_key="ses_1")
