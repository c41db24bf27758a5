"""`audit.read`: what was done and refused, by whom (behaviour 15)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import UNSET

from ochat_site.dialects.ochat1.handlers.pages import given, page_of
from permissions_app import audit

if TYPE_CHECKING:
    from ochat_site.dialects.ochat1.types import AuditReadParams, Page
    from ochat_site.rpc.context import Context
    from sessions_app.records import AuditRecord


def audit_read(context: Context, params: AuditReadParams) -> Page[AuditRecord]:
    """Return a page of the audit log, the first one with everything that this process and the store know by now."""
    if params.cursor is UNSET:
        context.audit.flush()
        audit.chain_waiting()
    wanted = audit.Filter(
        session_id=given(params.session_id),
        principal_id=given(params.principal_id),
        minimum_level=given(params.minimum_level) or "info",
        name_prefix=given(params.name_prefix) or "",
    )

    def read(after: str, limit: int) -> list[AuditRecord]:
        return audit.read_page(wanted, int(after or 0), limit)

    return page_of(context, params, read, lambda record: str(record.sequence))
