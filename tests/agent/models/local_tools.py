"""The tools that the local model is scored on: those of the tutorials, and functions as people write them."""

from __future__ import annotations

from typing import Literal

from aisotools.builtin import builtin_tools
from aisotools.core.types import Effect, ToolDefinition
from aisotools.tools.function import tool
from aisotools.tools.registry import ToolRegistry

BUILT_IN = ("file", "sandbox_bash", "sandbox_read", "sandbox_write", "python")


@tool(
    effect=Effect.READ_ONLY,
    examples=[
        ({"width": 5.0, "height": 2.0}, "What is the area of a 5 by 2 rectangle?"),
        ({"width": 1.5, "height": 4.0}, "Area of a rectangle 1.5 wide and 4 high"),
    ],
)
def area(width: float, height: float) -> float:
    """Area of a rectangle."""
    return width * height


@tool(
    effect=Effect.READ_ONLY,
    examples=[
        ({"value": 100.0, "to": "fahrenheit"}, "Convert 100 degrees Celsius to Fahrenheit."),
        ({"value": 50.0, "to": "celsius"}, "What is 50 F in Celsius?"),
    ],
)
def convert_temperature(value: float, to: Literal["celsius", "fahrenheit"]) -> float:
    """Convert a temperature between Celsius and Fahrenheit."""
    return value * 9 / 5 + 32 if to == "fahrenheit" else (value - 32) * 5 / 9


@tool(effect=Effect.READ_ONLY, examples=[({"country": "France"}, "How many people live in France?")])
def population(country: str) -> int:
    """Look up how many people live in a country."""
    return {"France": 68_000_000}.get(country, 0)


@tool(effect=Effect.READ_ONLY)
def mean_mass(species: Literal["Adelie", "Chinstrap", "Gentoo"], digits: int = 1) -> float:
    """Mean body mass of one species of penguin, in grams.

    Args:
        species: The species as the data spells it.
        digits: How many digits to keep after the point.
    """
    return round({"Adelie": 3700.66, "Chinstrap": 3733.09, "Gentoo": 5076.02}[species], digits)


@tool(effect=Effect.READ_ONLY)
def roll_dice(count: int, sides: int = 6) -> int:
    """Roll dice and add up what they show.

    Args:
        count: How many dice.
        sides: How many sides each die has.
    """
    return count * sides


@tool(
    effect=Effect.READ_ONLY,
    examples=[({"start": "2020-02-01", "end": "2020-03-01"}, "How many days from 2020-02-01 to 2020-03-01?")],
)
def days_between(start: str, end: str) -> int:
    """Count the days between two dates, written YYYY-MM-DD."""
    return abs(int(end[-2:]) - int(start[-2:]))


@tool(effect=Effect.READ_ONLY, examples=[({"item": "milk"}, "What does milk cost?")])
def price(item: str) -> float:
    """Look up the price of an item in the shop's table."""
    return {"milk": 1.2}.get(item, 0.0)


FUNCTIONS = (area, convert_temperature, population, mean_mass, roll_dice, days_between, price)


def registry() -> ToolRegistry:
    """All of them."""
    built_in = [one for one in builtin_tools() if one.name in BUILT_IN]
    return ToolRegistry([*built_in, *FUNCTIONS])


def definitions() -> list[ToolDefinition]:
    """All of them as a model sees them."""
    return list(registry().to_llm_definitions())
