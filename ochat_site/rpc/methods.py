"""The method table: which methods this server answers, by dialect and name. There is no other list of them.

Owns: the table. Does not own: its rows, which each dialect writes beside its handlers, or what a row means (`context`,
`dispatch`).

A method that is not in it does not exist: nothing else decides that, and whatever names methods is derived from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from ochat_site.dialects.ochat1.methods import ROWS as OCHAT1

if TYPE_CHECKING:
    from ochat_site.rpc.context import Method

METHODS: Mapping[tuple[str, str], Method] = MappingProxyType({("ochat1", row.name): row for row in OCHAT1})
