"""The OpenAPI description of the HTTP routes, for people and programs that read such things (behaviour 1.4).

Owns: what each route takes and answers, as a hook of drf-spectacular: these routes are plain ASGI, so that it does not find them
itself. Does not own: the routes (`transports`), the structs (`dialects.ochat1.types`), or how one is described (`json_schema`).
"""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponseBase

from ochat_site.dialects.ochat1.types import BlobUploadResult, ConnectionClosedResult, HealthResult
from ochat_site.json_schema import Components, Schema
from ochat_site.rpc.methods import METHODS
from sessions_app import limits
from sessions_app.records import BlobKind, Error, Snapshot

JSON = "application/json"
EVENTS = "text/event-stream"


def description(request: HttpRequest) -> HttpResponseBase:
    """Serve the description as JSON."""
    # Heavy, and of use only here.
    from drf_spectacular.views import SpectacularJSONAPIView

    return SpectacularJSONAPIView.as_view()(request)


def add_routes(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Add the routes to a description; a postprocessing hook of drf-spectacular."""
    shapes = Components()
    operations = _Operations(shapes)
    result["paths"] = {**result["paths"], **operations.paths()}
    components = result.setdefault("components", {})
    components["schemas"] = {**components.get("schemas", {}), **dict(sorted(shapes.schemas.items()))}
    components["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
    result["security"] = [{"bearer": []}]
    return result


class _Operations:
    def __init__(self, shapes: Components) -> None:
        self._shapes = shapes
        self._error = {JSON: {"schema": shapes.of(Error)}}

    def paths(self) -> dict[str, Any]:
        session_id = _parameter("id", "path", {"type": "string"}, required=True)
        connection = _parameter("ochat-connection-id", "header", {"type": "string"}, required=True)
        known = _parameter("if-none-match", "header", {"type": "string"})
        snapshot = {JSON: {"schema": self._shapes.of(Snapshot)}}
        return {
            "/v1/rpc": {"post": self._rpc()},
            "/v1/connection": {
                "delete": self._operation(
                    "close_connection",
                    "Close a logical connection; what it holds is detached.",
                    {"200": _answer("It is closed.", self._json(ConnectionClosedResult))},
                    [connection],
                )
            },
            "/v1/events": {
                "get": self._operation(
                    "connection_events",
                    "The notifications of a logical connection; a new stream ends the present one and goes on after it.",
                    {"200": _answer("Unnamed frames of notifications.", _text(EVENTS))},
                    [connection],
                )
            },
            "/v1/sessions/{id}/snapshot": {
                "get": self._operation(
                    "session_snapshot",
                    "A session as the client may see it.",
                    {
                        "200": _answer("The snapshot, with an entity tag.", snapshot),
                        "304": _answer("The client has just this one."),
                    },
                    [session_id, known],
                )
            },
            "/v1/sessions/{id}/events": {"get": self._session_events(session_id)},
            "/v1/blobs": {"post": self._upload()},
            "/v1/blobs/{id}": {
                "get": self._operation(
                    "download_blob",
                    "The content of a blob.",
                    {
                        "200": _answer("The whole content, with an entity tag.", _binary("*/*")),
                        "304": _answer("The client has just this one."),
                        "403": self._refused("It is not visible."),
                    },
                    [session_id, known],
                )
            },
            "/v1/health": {
                "get": self._operation(
                    "health",
                    "How this server is doing; the components for who holds `diagnostics.read`.",
                    {"200": _answer("The health.", self._json(HealthResult))},
                )
            },
            "/healthz": {"get": _probe("alive", {"200": "The process takes requests."})},
            "/readyz": {
                "get": _probe("ready", {"200": "It takes new work.", "503": "It takes no new work."})
            },
        }

    def _rpc(self) -> dict[str, Any]:
        call = {"oneOf": [self._call(name, row.params) for (_, name), row in METHODS.items()]}
        answer = {"oneOf": [self._success(), self._failure()]}
        batch = {
            "type": "array",
            "items": call,
            "minItems": 1,
            "maxItems": limits.MAX_BATCH_SIZE,
        }
        operation = self._operation(
            "rpc",
            "Calls of the Ochat agent protocol 1.0. The first one of a connection is `protocol.initialize`, without a"
            " connection id; its answer names the connection. What a call is refused for is in its answer, with status 200.",
            {
                "200": _answer(
                    "One answer, or several in the order of their calls.",
                    {JSON: {"schema": {"oneOf": [answer, {"type": "array", "items": answer}]}}},
                ),
                "204": _answer("Nothing was to be answered."),
            },
            [
                _parameter("ochat-protocol-version", "header", {"enum": ["1", "1.0"]}, required=True),
                _parameter("ochat-connection-id", "header", {"type": "string"}),
            ],
        )
        body = {JSON: {"schema": {"oneOf": [call, batch]}}}
        return {**operation, "requestBody": {"required": True, "content": body}}

    def _session_events(self, session_id: Schema) -> dict[str, Any]:
        operation = self._operation(
            "session_events",
            "The events of a session behind a sequence, or from now on, then as they come.",
            {
                "200": _answer(
                    "Frames `session.event`, `session.live_event`, `snapshot.required`.", _text(EVENTS)
                ),
                "409": self._refused("Any failure."),
            },
            [
                session_id,
                _parameter("after_sequence", "query", {"type": "integer", "minimum": 0}),
                _parameter("last-event-id", "header", {"type": "string"}),
            ],
        )
        del operation["responses"]["400"]
        return operation

    def _upload(self) -> dict[str, Any]:
        text = {"type": "string"}
        operation = self._operation(
            "upload_blob",
            "Content for a message. It expires unless a session takes it.",
            {
                "201": _answer("What was kept.", self._json(BlobUploadResult)),
                "403": self._refused("The scope is missing, or the target session is not visible."),
            },
            [
                _parameter("ochat-blob-kind", "header", self._shapes.of(BlobKind)),
                _parameter("ochat-target-session", "header", text),
                _parameter("ochat-display-name", "header", text),
                _parameter("ochat-allowed-use", "header", {"enum": ["message_input"]}),
                _parameter("ochat-sha256", "header", {"type": "string", "pattern": "^[0-9a-fA-F]{64}$"}),
            ],
        )
        return {
            **operation,
            "requestBody": {"required": True, "content": _binary("application/octet-stream")},
        }

    def _operation(
        self, name: str, said: str, responses: dict[str, Any], parameters: list[Schema] | None = None
    ) -> dict[str, Any]:
        refused = {
            "400": self._refused("The request is refused."),
            "401": self._refused("No credential, or one that does not count."),
        }
        operation = {
            "operationId": name,
            "tags": ["protocol"],
            "summary": _first_sentence(said),
            "description": said,
            "responses": {**responses, **refused},
        }
        return {**operation, "parameters": parameters} if parameters else operation

    def _refused(self, said: str) -> dict[str, Any]:
        return _answer(said, self._error)

    def _json(self, shape: Any) -> dict[str, Any]:
        return {JSON: {"schema": self._shapes.of(shape)}}

    def _call(self, name: str, params: Any) -> Schema:
        members: dict[str, Schema] = {
            "jsonrpc": {"const": "2.0"},
            "id": {"type": ["string", "number"]},
            "method": {"const": name},
            "params": self._shapes.of(params),
        }
        required = ["jsonrpc", "method", "params"]
        return {
            "type": "object",
            "properties": members,
            "required": required if name == "protocol.ping" else [*required, "id"],
        }

    def _success(self) -> Schema:
        results = [self._shapes.of(row.result) for row in METHODS.values()]
        members = {
            "jsonrpc": {"const": "2.0"},
            "id": {"type": ["string", "number"]},
            "result": {"anyOf": list({str(one): one for one in results}.values())},
        }
        return {"type": "object", "properties": members, "required": list(members)}

    def _failure(self) -> Schema:
        members = {
            "jsonrpc": {"const": "2.0"},
            "id": {"type": ["string", "number"]},
            "error": self._shapes.of(Error),
        }
        return {"type": "object", "properties": members, "required": list(members)}


def _parameter(name: str, place: str, schema: Schema, *, required: bool = False) -> Schema:
    return {"name": name, "in": place, "schema": schema, **({"required": True} if required else {})}


def _answer(said: str, content: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"description": said, **({"content": content} if content else {})}


def _text(media_type: str) -> dict[str, Any]:
    return {media_type: {"schema": {"type": "string"}}}


def _binary(media_type: str) -> dict[str, Any]:
    return {media_type: {"schema": {"type": "string", "format": "binary"}}}


def _probe(name: str, answers: dict[str, str]) -> dict[str, Any]:
    responses = {status: _answer(said, _text("text/plain")) for status, said in answers.items()}
    return {
        "operationId": name,
        "tags": ["probes"],
        "summary": "For balancers",
        "security": [],
        "responses": responses,
    }


def _first_sentence(said: str) -> str:
    return said.split(". ")[0].split(";")[0].removesuffix(".")
