"""Who may come in without credentials (behaviour 2.2)."""

import pytest

from ochat_site.env import ConfigError
from ochat_site.web import check_anonymity
from sessions_app import limits
from sessions_app.limits import ServerSettings


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "ochat.example"])
def test_an_open_server_stays_on_this_machine(host: str) -> None:
    with limits.using(ServerSettings(require_auth=False)), pytest.raises(ConfigError, match="require_auth"):
        check_anonymity(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_an_open_server_on_this_machine_starts(host: str) -> None:
    with limits.using(ServerSettings(require_auth=False)):
        check_anonymity(host)


def test_the_override_and_credentials_open_every_address() -> None:
    check_anonymity("0.0.0.0")
    with limits.using(ServerSettings(require_auth=False, unsafe_allow_unauthenticated_remote_http=True)):
        check_anonymity("0.0.0.0")
