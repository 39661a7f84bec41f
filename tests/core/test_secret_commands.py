"""Programs that take passwords in ways of their own."""

from __future__ import annotations

import pytest

from aisotools.core.secret_commands import find_in_commands


@pytest.mark.parametrize(
    ("command", "secret"),
    [
        ("mysql -u root -pS3cret99 db", "S3cret99"),
        ("curl -s -u me:S3cret99 https://x.example", "S3cret99"),
        ("machine x login me password S3cret99", "S3cret99"),
        ("db:5432:app:me:S3cret99", "S3cret99"),
        ("echo S3cret99 | sudo -S ls", "S3cret99"),
        ("docker run -p 80:80 nginx", ""),
        ("mysql -u root -p", ""),
        ("cp -p a b", ""),
    ],
)
def test_passwords_in_commands(command: str, secret: str) -> None:
    assert [command[one.start : one.end] for one in find_in_commands(command)] == ([secret] if secret else [])
