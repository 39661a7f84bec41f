"""Small languages whose programs are arguments of commands: awk, sed, jq and SQL.

Each module reads a program whole by a grammar of its own, a subset in which all implementations agree.
Whatever the grammar does not know makes the reading doubtful; nothing is assumed harmless.
"""
