"""`manage.py up` and its children, as the tests of the whole system see and kill them."""

from __future__ import annotations

import psutil
from llmock.pytest_plugin import LLMock

from tests.conformance.sites import SocketDoor
from tests.support import databases
from tests.support.up import Up

CHILDREN = ("worker", "serve", "valkey-server")


class Installed:
    """One running `up`."""

    def __init__(self, up: Up) -> None:
        self.up = up
        self.data_dir = up.data_dir
        self.port = up.port

    @property
    def database_url(self) -> str:
        """What `OCHAT_DATABASE_URL` is for another process that shall use the same store."""
        return databases.sqlite_url(self.data_dir / "ochat.sqlite3")

    def child(self, name: str) -> psutil.Process:
        """The process of a child as it runs now."""
        return self.up.child(name)

    def kill(self, *names: str) -> dict[str, int]:
        """End children as a crash does, all at once; their process ids by name."""
        victims = {name: self.child(name) for name in names}
        for victim in victims.values():
            victim.kill()
        return {name: victim.pid for name, victim in victims.items()}

    def await_replaced(self, killed: dict[str, int]) -> None:
        """Wait until `up` has started each of them again."""
        for name, pid in killed.items():
            self.up.child(name, but=pid)


class InstalledDoor(SocketDoor):
    """The installation as clients find it, and the model that its turns ask."""

    def __init__(self, installed: Installed, mock: LLMock) -> None:
        super().__init__(installed.port)
        self.installed = installed
        self.mock = mock
