"""The runtime: one gate that every call passes, history, ledger, and pools of sessions."""
