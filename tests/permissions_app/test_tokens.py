"""Making and revoking tokens, and following the catalog file (behaviour 2.3)."""

from __future__ import annotations

from datetime import timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest

from permissions_app import tokens
from permissions_app.authentication import by_token
from permissions_app.models import SCOPES, AuditRecord, Principal, Token
from permissions_app.operators import ensure_operator, issue_client_token
from permissions_app.principals import of_service, of_user
from permissions_app.scopes import command_line, operator
from sessions_app import clock
from sessions_app.catalog_file import TokenEntry
from sessions_app.errors import (
    AlreadyResolved,
    ConfigurationInvalid,
    InvalidRequest,
    PermissionDenied,
    Unauthenticated,
)
from tests.permissions_app import world

if TYPE_CHECKING:
    from sessions_app.records import Scope

pytestmark = pytest.mark.django_db


def listed(
    token: str, principal_id: str = "pri_file", scopes: tuple[Scope, ...] = ("prompt.list",), **more: Any
) -> TokenEntry:
    """Return a record of the catalog's `[[tokens]]`."""
    digest = sha256(token.encode()).hexdigest().upper()
    return TokenEntry(token_sha256=digest, principal_id=principal_id, scopes=scopes, **more)


def works(token: str) -> bool:
    try:
        by_token(token.encode())
    except Unauthenticated:
        return False
    return True


def test_a_new_token_works_and_its_text_is_kept_nowhere() -> None:
    issued = world.token_of("robot", ("audit.read", "prompt.list"))
    assert issued.plaintext.startswith(tokens.PREFIX)
    assert by_token(issued.plaintext.encode()).principal.scopes == ("prompt.list", "audit.read")
    assert issued.plaintext not in str(Token.objects.values().get())
    assert issued.plaintext not in repr(issued)


def test_what_no_token_may_be_is_refused() -> None:
    ada, robot = of_user(world.user("ada", ("prompt.list",))), of_service("robot")
    past = clock.now() - timedelta(seconds=1)
    for principal, scopes, expiry, refusal in (
        (ada, ["audit.read"], None, PermissionDenied),
        (robot, ["everything"], None, InvalidRequest),
        (robot, [], past, InvalidRequest),
    ):
        with pytest.raises(refusal):
            tokens.create_token(command_line(), principal, scopes=scopes, source="command", expires_at=expiry)
    assert not Token.objects.exists()


def test_making_and_revoking_are_audited_by_the_operators_name() -> None:
    ada = world.user("ada")
    issued = tokens.create_token(operator(ada), of_service("robot"), scopes=(), source="admin")
    tokens.revoke_token(operator(ada), issued.token.id)
    assert not works(issued.plaintext)
    made, revoked = AuditRecord.objects.order_by("id")
    assert (made.name, revoked.name) == ("operator.token.create", "operator.token.revoke")
    assert made.principal_id == of_user(ada).id
    assert b'"operator":"ada"' in made.payload


def test_only_a_live_token_of_ours_can_be_revoked() -> None:
    issued = world.token_of("robot", ())
    tokens.revoke_token(command_line(), issued.token.id)
    tokens.sync_file_tokens([listed("from the file")])
    in_file = Token.objects.get(source="file")
    for token_id, refusal in (
        (issued.token.id, AlreadyResolved),
        ("tok_unknown", InvalidRequest),
        (in_file.id, InvalidRequest),
    ):
        with pytest.raises(refusal):
            tokens.revoke_token(command_line(), token_id)


def test_file_tokens_follow_the_file() -> None:
    tokens.sync_file_tokens([listed("one"), listed("two", scopes=("audit.read",), attributes={"team": "a"})])
    assert Principal.objects.get().id == "pri_file"
    two = by_token(b"two").principal
    assert (two.id, two.scopes, two.attributes) == ("pri_file", ("audit.read",), {"team": "a"})
    tokens.sync_file_tokens([listed("two", scopes=()), listed("three", principal_id="pri_other")])
    assert not works("one")
    assert by_token(b"two").principal.scopes == ()
    assert by_token(b"three").principal.id == "pri_other"
    tokens.sync_file_tokens([listed("one")])
    assert works("one")
    assert not works("two")


def test_the_first_record_of_a_digest_decides_even_when_it_is_expired() -> None:
    past = clock.now() - timedelta(days=1)
    tokens.sync_file_tokens([listed("one", expires_at=past), listed("one")])
    assert not works("one")


def test_a_file_cannot_take_over_a_token_that_was_made_here() -> None:
    issued = world.token_of("robot", ())
    tokens.revoke_token(command_line(), issued.token.id)
    with pytest.raises(ConfigurationInvalid):
        tokens.sync_file_tokens([listed(issued.plaintext)])
    assert not works(issued.plaintext)


def test_a_file_may_speak_for_a_user_and_gives_no_more_than_the_user_holds() -> None:
    ada = of_user(world.user("ada", ("prompt.list",)))
    tokens.sync_file_tokens([listed("hers", principal_id=ada.id, scopes=("prompt.list", "audit.read"))])
    assert by_token(b"hers").principal.scopes == ("prompt.list",)


def test_the_first_operator_is_made_once_and_the_client_speaks_for_it() -> None:
    made = ensure_operator()
    assert made is not None
    assert made.password not in repr(made)
    assert ensure_operator() is None
    first, second = issue_client_token(), issue_client_token()
    assert not works(first)
    known = by_token(second.encode())
    assert known.principal.scopes == SCOPES
    assert known.principal.id == Principal.objects.get(user__username=made.username).id


def test_the_client_has_its_own_principal_where_no_operator_holds_every_scope() -> None:
    world.user("root", is_superuser=True)
    assert ensure_operator() is None
    known = by_token(issue_client_token().encode())
    assert known.principal.scopes == SCOPES
    assert known.principal.id == of_service("client").id
