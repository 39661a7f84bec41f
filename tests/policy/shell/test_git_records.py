"""Which paths a git command shows, or spreads, of what a repository has recorded."""

from __future__ import annotations

import pytest

from aisotools.policy.shell.expansion import literal, unknown_words
from aisotools.policy.shell.git_records import recorded_paths, shows_no_content


@pytest.mark.parametrize(
    ("command", "paths"),
    [
        ("show HEAD:d/key", ("d/key", "key")),
        ("log -p -- key", ("key",)),
        ("blame key", ("key",)),
        ("log -p", (".",)),
        ("log --stat", ()),
        ("commit -m HEAD:key", ()),
        ("stash push -m a key", ("key", ".")),
        ("diff :(top)key", (".",)),
    ],
)
def test_named_paths_count_and_anything_where_the_command_is_not_limited(
    command: str, paths: tuple[str, ...]
) -> None:
    words = list(map(literal, command.split()))
    assert recorded_paths(command.split(maxsplit=1)[0], words) == paths


def test_words_that_are_only_known_at_run_time_may_name_anything() -> None:
    assert recorded_paths("show", [literal("show"), unknown_words("$x")]) == (".",)
    assert recorded_paths("branch", [literal("branch"), unknown_words("$x")]) == ()


def test_lists_of_commits_show_no_content_and_patches_do() -> None:
    assert shows_no_content("log", "", ["--oneline", "-3"])
    assert not shows_no_content("log", "", ["-p"])
    assert shows_no_content("stash", "list", [])
    assert not shows_no_content("stash", "show", [])
