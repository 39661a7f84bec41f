"""The tool `display`: something for the person to see, not only to read about."""

from __future__ import annotations

import base64
from typing import Annotated

from pydantic import Field

from aisotools.builtin.file_errors import for_the_model
from aisotools.contracts import ToolContext
from aisotools.events import Effect, Json, MimeBundle, ToolResult
from aisotools.exceptions import ToolError
from aisotools.function_tool import tool
from aisotools.paths import shown
from aisotools.workspace import Workspace

_MAX_IMAGE_BYTES = 10 << 20
_IMAGES = ((b"\x89PNG\r\n\x1a\n", "image/png"), (b"\xff\xd8\xff", "image/jpeg"))
_MAX_CELLS = 20_000

_Cell = str | int | float | bool | None


@tool(
    name="display",
    effect=Effect.READ_ONLY,
    import_path="aisotools.builtin.display_tool:display",
    examples=[
        ({"markdown": "## Result\nThe mean is **4.2**."}, "Show me the result nicely."),
        ({"image": "plot.png", "title": "Sales per month"}, "Show me the plot."),
        (
            {"columns": ["name", "size"], "rows": [["a.csv", 120], ["b.csv", 80]]},
            "Show the files and sizes as a table.",
        ),
    ],
)
def display(
    *,
    title: Annotated[str, Field(description="A heading above it.", max_length=200)] = "",
    markdown: Annotated[
        str | None, Field(description="A text in Markdown; HTML in it is not shown.", max_length=100_000)
    ] = None,
    image: Annotated[
        str | None,
        Field(
            description="A PNG or JPEG file of the workspace, such as 'plot.png'.",
            min_length=1,
            max_length=4096,
        ),
    ] = None,
    columns: Annotated[
        list[Annotated[str, Field(max_length=200)]] | None,
        Field(description="The names of a table's columns.", min_length=1, max_length=50),
    ] = None,
    rows: Annotated[
        list[list[_Cell]] | None,
        Field(description="A table's rows, each with one value per column.", max_length=2_000),
    ] = None,
    html: Annotated[
        str | None,
        Field(
            description="HTML; scripts, styles that leave their place and whatever loads from elsewhere are "
            "removed.",
            max_length=200_000,
        ),
    ] = None,
    context: ToolContext,
) -> ToolResult:
    """Show the person something: a text in Markdown, a table, an image, or HTML; exactly one of these.

    Give markdown, or image, or columns with rows, or html. It is cleaned before it is shown. You get no
    answer; to ask something use ask_user.
    """
    given = [
        name for name, one in (("markdown", markdown), ("image", image), ("html", html)) if one is not None
    ]
    if columns is not None or rows is not None:
        given.append("columns with rows")
    if len(given) != 1:
        named = ", ".join(given) or "nothing"
        raise ToolError(f"Give exactly one of markdown, image, html, or columns with rows; this is {named}.")
    if markdown is not None:
        bundle, what = _markdown(title, markdown), "the text"
    elif html is not None:
        bundle, what = {"text/html": html, "text/plain": title or "(HTML)"}, "the page"
    elif image is not None:
        bundle, what = _image(context, title, image), f"the image {shown(image)}"
    else:
        bundle, what = _table(title, columns, rows), f"a table of {len(rows or ()):,} rows"
    value: dict[str, Json] = {"shown": given[0], "title": title}
    return ToolResult(content=f"The person is shown {what}.", kind="json", value=value, data=bundle)


def _markdown(title: str, text: str) -> MimeBundle:
    whole = f"## {title}\n\n{text}" if title else text
    return {"text/markdown": whole, "text/plain": whole}


def _image(context: ToolContext, title: str, path: str) -> MimeBundle:
    workspace = Workspace(context.workspace_path)
    with for_the_model(workspace, path):
        data = workspace.read_bytes(path, max_bytes=_MAX_IMAGE_BYTES)
    mime = next((mime for magic, mime in _IMAGES if data.startswith(magic)), None)
    if mime is None:
        raise ToolError(f"{shown(path)!r} is no PNG or JPEG image. Save it as one first.")
    return {mime: base64.b64encode(data).decode("ascii"), "text/plain": title or shown(path)}


def _table(title: str, columns: list[str] | None, rows: list[list[_Cell]] | None) -> MimeBundle:
    if columns is None or rows is None:
        raise ToolError("A table needs columns and rows.")
    wrong = next((number for number, row in enumerate(rows, 1) if len(row) != len(columns)), None)
    if wrong is not None:
        raise ToolError(f"Row {wrong} has {len(rows[wrong - 1])} values for {len(columns)} columns.")
    if len(rows) * len(columns) > _MAX_CELLS:
        raise ToolError(
            f"The table has {len(rows) * len(columns):,} cells; at most {_MAX_CELLS:,} are shown."
        )
    import html

    told = [["" if cell is None else str(cell) for cell in row] for row in rows]
    heads = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(c)}</td>' for c in row)}</tr>" for row in told)
    caption = f"<caption>{html.escape(title)}</caption>" if title else ""
    plain = "\n".join("\t".join(row) for row in ([columns] if columns else []) + told)
    return {
        "text/html": f"<table>{caption}<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>",
        "text/plain": f"{title}\n{plain}" if title else plain,
    }
