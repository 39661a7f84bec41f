"""Giving up rights: namespaces, mounts, Landlock, seccomp, and finding out which level holds here."""
