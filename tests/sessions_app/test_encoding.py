"""The encoder."""

from msgspec import Raw

from sessions_app.encoding import compact, encode
from sessions_app.records import PromptRefCatalog


def test_maps_are_sorted_structs_are_not_and_free_json_is_carried() -> None:
    assert encode({"b": "1", "a": "2"}) == b'{"a":"2","b":"1"}'
    assert encode(PromptRefCatalog(prompt_id="prd_a")) == b'{"type":"catalog","prompt_id":"prd_a"}'
    assert encode([Raw(b'{"b": 1.0}')]) == b'[{"b": 1.0}]'


def test_free_json_becomes_one_line_and_keeps_its_tokens() -> None:
    written = b' {"b" : 1.0,\n\t"a": [1e400, -0, "\\u00e9 \\n", true],"b":12345678901234567890 } '
    kept = b'{"b":1.0,"a":[1e400,-0,"\\u00e9 \\n",true],"b":12345678901234567890}'
    assert compact(written) == compact(Raw(written)) == kept
