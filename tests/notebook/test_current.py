from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator

import pytest

from aisotools.notebook.current import AisoTools, close_current, current_session, use_session
from aisotools.sandbox.limits import Limits
from tests.conftest import OpenSession


@pytest.fixture(autouse=True)
async def no_session_is_left() -> AsyncIterator[None]:
    yield
    closing = close_current()
    if closing is not None:
        await closing


async def test_one_session_until_it_is_closed() -> None:
    session = current_session()
    assert session.level == "", "nothing may be started yet"
    assert current_session() is session
    await session.close()
    assert current_session() is not session


async def test_another_session_can_be_used(open_session: OpenSession) -> None:
    mine = open_session()
    former = current_session()
    assert use_session(mine) is mine
    assert current_session() is mine
    assert not former.closed
    await former.close()


async def test_closing_in_a_running_loop_goes_on_in_the_background(open_session: OpenSession) -> None:
    mine = use_session(open_session())
    await mine.start()
    closing = close_current()
    assert isinstance(closing, asyncio.Task)
    await closing
    assert mine.closed
    assert close_current() is None


def test_closing_without_a_loop_closes_at_once() -> None:
    mine = current_session()
    assert close_current() is None
    assert mine.closed


def test_every_limit_is_a_setting() -> None:
    """One without would keep every notebook from opening its session."""
    settings = AisoTools()
    limits = {field.name: getattr(settings, field.name) for field in dataclasses.fields(Limits)}
    assert settings.session_options({})["limits"] == Limits(**limits) == Limits()


@pytest.mark.parametrize("is_on", [True, False])
def test_trials_of_unknown_commands_can_be_switched_off(is_on: bool) -> None:
    assert AisoTools(try_unknown_commands=is_on).session_options()["try_unknown_commands"] is is_on
