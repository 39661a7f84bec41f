"""Decide whether a call may run: rules, shell analysis, remembered approvals, stock approvers."""
