"""Schema migrations: forward only, run by the owner's role, never by the serving role."""
