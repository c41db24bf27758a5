"""Who may do what: principals, tokens, scopes, shares, permission requests, grants and the audit log."""
