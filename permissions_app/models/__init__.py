"""The tables of principals, decisions and audit; each changes only through the module of its name."""

from permissions_app.models.audit import AuditChain, AuditRecord, AuthFailure
from permissions_app.models.decisions import DenyRule, Grant, PermissionRequest
from permissions_app.models.principals import SCOPES, Principal, SessionGroupShare, SessionUserShare, Token

__all__ = [
    "SCOPES",
    "AuditChain",
    "AuditRecord",
    "AuthFailure",
    "DenyRule",
    "Grant",
    "PermissionRequest",
    "Principal",
    "SessionGroupShare",
    "SessionUserShare",
    "Token",
]
