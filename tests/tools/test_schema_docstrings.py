"""Docstrings in the three styles that people write."""

from __future__ import annotations

import inspect

import pytest

from aisotools.tools.function import tool
from aisotools.tools.schema import parse_docstring

GOOGLE = """Mix two colours.

    Both are given by name.

    Args:
        first: The one colour.
        second (str, optional): The other colour,
            on a second line too.

    Returns:
        Their mixture.
    """
NUMPY = """Mix two colours.

    Both are given by name.

    Parameters
    ----------
    first : str
        The one colour.
    second : str, optional
        The other colour,
        on a second line too.

    Returns
    -------
    str
        Their mixture.
    """
SPHINX = """Mix two colours.

    Both are given by name.

    :param first: The one colour.
    :param str second: The other colour,
        on a second line too.
    :type first: str
    :returns: Their mixture.
    :rtype: str
    :raises ValueError: If there is none.
    """


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_every_style_says_the_same(text: str) -> None:
    description, parameters = parse_docstring(inspect.cleandoc(text))
    assert description == "Mix two colours.\n\nBoth are given by name."
    assert parameters == {
        "first": "The one colour.",
        "second": "The other colour, on a second line too.",
    }


def test_numpy_documents_several_parameters_at_once_and_keeps_examples() -> None:
    text = """Move.

    Parameters
    ----------
    x, y : float
        Metres.
    **options
        Further ones.

    Examples
    --------
    >>> move(1, 2)
    """
    description, parameters = parse_docstring(inspect.cleandoc(text))
    assert parameters == {"x": "Metres.", "y": "Metres.", "options": "Further ones."}
    assert description.startswith("Move.")
    assert ">>> move(1, 2)" in description
    assert "Metres" not in description


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Just a line: with a colon.",
        "Compare:\n:foo bar\n--- a line",
        "Parameters of the orbit\nare six.",
        "Args are listed below, or not.",
        "List\n----\nof things",
    ],
)
def test_text_without_sections_stays_as_it_is(text: str) -> None:
    assert parse_docstring(text) == (text.strip(), {})


def test_a_tool_of_a_function_with_a_numpy_docstring_describes_its_parameters() -> None:
    @tool
    def mix(first: str, second: str = "red") -> str:
        """Mix two colours.

        Parameters
        ----------
        first
            The one colour.
        second
            The other colour.
        """
        return first + second

    properties = mix.parameters_schema()["properties"]
    assert isinstance(properties, dict)
    assert [one["description"] for one in properties.values()] == ["The one colour.", "The other colour."]
    assert mix.description == "Mix two colours."
