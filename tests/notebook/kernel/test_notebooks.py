"""Notebooks give the same here as on a plain kernel, both seen through what a front passes on.

Most are real ones of other projects (`tests/data/notebooks.json`); the rest is what people do with the
libraries that those do not use.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from aisotools.notebook.kernel.output import COMMS_DROPPED, DisplayFilter, JupyterMessage
from aisotools.sandbox.host.displays import DisplayMessage
from tests.notebook.kernel.jupyter import Client, kernel

REAL: Mapping[str, Sequence[str]] = json.loads(
    (Path(__file__).resolve().parents[2] / "data" / "notebooks.json").read_text("utf-8")
)["notebooks"]
OWN: Mapping[str, Sequence[str]] = {
    "pandas": [
        "import pandas as pd\ndf = pd.DataFrame({'a': [1, 2, 3], 'b': list('xyz')}, index=[10, 20, 30])\ndf",
        "df.describe()",
        "df.a.plot.__doc__[:20]",
        "df.groupby('b').a.sum()",
        "pd.options.display.max_rows = 4\npd.DataFrame({'n': range(100)})",
        "df.info()",
        "df.nosuch",
    ],
    "styles": [
        "import pandas as pd\ndf = pd.DataFrame({'a': [1.5, 2.25]})",
        "df.style.format(precision=1).set_uuid('u').set_table_attributes('class=x')",
        "df.style.highlight_max().set_uuid('u')",
    ],
    "matplotlib": [
        "%matplotlib inline\nimport matplotlib.pyplot as plt",
        "plt.plot([1, 2, 3])\nplt.title('one')\nplt.show()\nprint('between')\nplt.plot([3, 2, 1]);",
        "fig, axes = plt.subplots(1, 2, figsize=(4, 2))\naxes[0].bar(['a', 'b'], [1, 2])\nfig",
        "plt.imshow([[1, 2], [3, 4]])",
        "%config InlineBackend.figure_format = 'retina'\nplt.figure(figsize=(1, 1)); plt.plot([1])",
    ],
    "seaborn": [
        "import pandas as pd, seaborn as sns\nsns.set_theme()",
        "df = pd.DataFrame({'x': [1, 2, 3], 'y': [3, 1, 2], 'k': list('aab')})",
        "sns.scatterplot(df, x='x', y='y', hue='k')",
        "sns.relplot(df, x='x', y='y', col='k', height=2)",
    ],
    "magics": [
        "import os\np = %pwd\np == os.getcwd()",
        "%env NOSUCH=1",
        "x = !echo one; echo two\nx, x.n",
        "!echo shell $((1 + 1))",
        "%%bash\nfor i in 1 2; do echo $i; done; echo err >&2",
        "%%bash\nexit 3",
        "%%capture out\nprint('hidden'); display('hidden too')",
        "out.stdout, len(out.outputs)",
        "%%writefile part.py\nvalue = 6 * 7",
        "%run part.py\nvalue",
        "%cat part.py",
        "%lsmagic\nNone",
        "a = 1; b = 'x'\n%who_ls int",
        "%%html\n<b>bold</b>",
        "%%latex\n$x^2$",
        "%%javascript\nalert(1)",
        "%precision 3\n3.14159265",
        "%alias hello echo hi\n%hello",
        "%%python3\nprint('another python')",
        "%nosuch",
        "%%nosuch\n1",
        "%run nosuch.py",
        "%xmode Plain\n1/0",
        "%xmode Minimal\n1/0",
    ],
    "errors": [
        "def f(x):\n    return 1 / x",
        "f(0)",
        "import part_that_is_missing",
        "raise ValueError('first') from KeyError('cause')",
        "x = 'unfinished",
        "if True:\nprint('not indented')",
        "class Odd(Exception):\n    def __str__(self):\n        raise RuntimeError('no text')\nraise Odd",
        "import warnings\nwarnings.warn('careful')",
        "raise ExceptionGroup('several', [ValueError(1), TypeError('two')])",
        "assert 1 == 2, 'never'",
        "import sys; sys.exit(3)",
        "%tb",
    ],
    "displays": [
        "from IPython.display import *\ndisplay(HTML('<i>x</i>'), Markdown('*m*'), Latex('$x$'), 5)",
        "display({'text/plain': 'raw', 'text/html': '<b>raw</b>'}, raw=True)",
        "h = display('one', display_id=True)\nh.update('two')\nprint(3)",
        "for i in range(3):\n    clear_output(wait=True)\n    print(i)",
        "class Rich:\n    def _repr_html_(self): return '<u>rich</u>'\nRich() is None or Rich()",
        "class Broken:\n    def __repr__(self): raise ValueError('broken')\nBroken()",
        "JSON({'a': [1, {'b': None}]})",
        "Pretty('pretty')",
        'SVG(\'<svg xmlns="http://www.w3.org/2000/svg"><rect width="3" height="3"/></svg>\')',
        "Image(data=b'not a picture', format='png')",
        "Audio([0.0] * 100, rate=8000)",
        "IFrame('https://example.org', 1, 1)",
        "Code('x = 1', language='python')",
        "ProgressBar(3)",
        "None",
        "_, 1; 2",
        "3;",
    ],
    "asyncio": [
        "import asyncio\nawait asyncio.sleep(0.01, 'slept')",
        "async def work(n):\n    await asyncio.sleep(0.01 * n)\n    print(n)\n    return n",
        "await asyncio.gather(*map(work, (2, 1)))",
        "task = asyncio.create_task(work(1)); await task",
        "async with asyncio.timeout(0.01):\n    await asyncio.sleep(1)",
        "p = await asyncio.create_subprocess_exec('echo', 'hi', stdout=-1)\n(await p.communicate())[0]",
        "asyncio.run(work(1))",
    ],
    "processes": [
        "import subprocess\nsubprocess.run(['echo', 'uncaptured'])",
        "subprocess.check_output('echo out; echo err >&2', shell=True, stderr=subprocess.STDOUT)",
        "import os\nos.system('echo by system')",
        "import threading\nt = threading.Thread(target=print, args=('threaded',)); t.start(); t.join()",
        "from concurrent.futures import *\nwith ThreadPoolExecutor(2) as pool: print(*pool.map(abs, [-1]))",
        "import multiprocessing as mp\nmp = mp.get_context('fork'); ours, theirs = mp.Pipe()",
        "p = mp.Process(target=theirs.send, args=(42,)); p.start(); p.join(); ours.recv()",
    ],
    "progress": [
        "import sys\nfor i in range(3):\n    print(f'\\r{i}', end='')\nprint()",
        "print('\\x1b[31mred\\x1b[0m \\x1b]8;;http://example.org\\x07link\\x1b]8;;\\x07')",
        "print('é ☃ 日本 \\u202e hidden')",
        "import logging\nlogging.warning('careful')",
    ],
    "plotly": [
        "import plotly.graph_objects as go\nfig = go.Figure(go.Bar(y=[1, 2]))",
        "fig.to_json()[:20]",
    ],
}
NOTEBOOKS = {**REAL, **OWN}
FEW = ("nbclient/Output", "displays")
"""Those of the default run; the others are slow together."""

TERMINAL = "a plain kernel gives `!` a terminal of its own, which ends lines by \\r\\n; here there is none"
NOBODY = "nobody can be asked: the error is the same in kind, and says what to do instead"
SOCKET = "it sends messages of its own through the kernel's socket, which a worker does not have"
DIFFER: Mapping[str, Mapping[int, str]] = {
    "errors": {6: "an error that cannot be told takes a plain kernel's own code down; here it is told so"},
    "magics": {3: TERMINAL, 10: TERMINAL, 17: TERMINAL},
    "nbclient/Disable Stdin": {0: NOBODY},
    "nbclient/update-display-id": dict.fromkeys(range(1, 6), SOCKET),
    "nbconvert/notebook3": {0: NOBODY},
}
"""Cells that differ, by notebook and number, and why that is so."""

VARY: Mapping[str, Sequence[int]] = {
    "nbconvert/notebook2": range(9),
    "nbconvert/svg": [0],  # matplotlib gives every SVG other names inside
    "nbval/exceptions": [2],
    "nbval/index": range(15),
    "nbval/latex-example": [3],
    "nbval/sample_notebook": range(2, 6),
    "nbval/test-latex-fail-randomoutput": range(3),
}
"""Cells that show random numbers or the time: only what kind of thing they show can be the same."""

ADDRESS = re.compile(r"0x[0-9a-f]{6,}")
FILE = re.compile(r"(?:/[\w/.-]+/ipykernel_\d+/)?\b\d{5,}\.py")


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Client, Client]]:
    """A sandboxed and a plain kernel, each in a folder of its own."""
    for name in ("ours", "plain"):
        (tmp_path / name / "home").mkdir(parents=True)
    with kernel(tmp_path / "ours") as ours, kernel(tmp_path / "plain", name="python3") as plain:
        yield ours, plain


CASES = [pytest.param(name, marks=[] if name in FEW else pytest.mark.slow) for name in NOTEBOOKS]


@pytest.mark.parametrize("name", CASES)
def test_notebook(name: str, pair: tuple[Client, Client]) -> None:
    ours, plain = pair
    passing = DisplayFilter()
    differing = {}
    for number, code in enumerate(NOTEBOOKS[name]):
        given = Look().of(ours.run(code, within_s=60).messages)
        meant = Look().of(map(_sent, _passed(passing, plain.run(code, within_s=60).messages)))
        if number in VARY.get(name, ()):
            given, meant = [kind for kind, _ in given], [kind for kind, _ in meant]
        if given != meant:
            differing[number] = (code, given, meant)
    allowed = DIFFER.get(name, {})
    assert set(differing) == set(allowed), [
        differing[number] for number in sorted(differing.keys() - allowed.keys())
    ]


def _passed(
    passing: DisplayFilter, messages: Sequence[tuple[str, Mapping[str, Any]]]
) -> Iterator[JupyterMessage]:
    """What a front would pass on of a plain kernel's messages."""
    kinds = {"display_data": "display", "update_display_data": "update", "clear_output": "clear"}
    for kind, content in messages:
        if kind == "stream":
            yield passing.stream(content["name"], content["text"])
        elif kind == "error":
            yield passing.error({**content, "traceback": "\n".join(content["traceback"])})
        elif kind == "execute_result":
            shown = DisplayMessage(
                kind="result", bundle=content["data"], details={"metadata": content["metadata"]}
            )
            yield passing.result(shown, content["execution_count"])
        elif kind in kinds:
            how = {"wait": content.get("wait"), "metadata": content.get("metadata")}
            how["display_id"] = content.get("transient", {}).get("display_id")
            message = passing.display(
                DisplayMessage(kind=kinds[kind], bundle=content.get("data", {}), details=how)
            )
            if message is not None:
                yield message


def _sent(message: JupyterMessage) -> tuple[str, Mapping[str, Any]]:
    return message.type, message.content


class Look:
    """How messages look when what cannot be the same is left out: addresses, names of displays."""

    def __init__(self) -> None:
        self._names: dict[str, int] = {}

    def of(self, messages: Any) -> list[Any]:
        looks: list[Any] = []
        printed: dict[str, str] = {}
        for kind, content in messages:
            if kind == "stream":
                # The order of two streams is not a promise of a plain kernel.
                printed[content["name"]] = printed.get(content["name"], "") + self._plain(content["text"])
                continue
            looks.append((kind, self._without(content)))
        printed["stderr"] = printed.get("stderr", "").replace(COMMS_DROPPED, "")
        return [*looks, *sorted((name, text) for name, text in printed.items() if text)]

    def _without(self, content: Any) -> Any:
        if isinstance(content, Mapping):
            name = content.get("display_id")
            if isinstance(name, str):
                return {"display_id": self._names.setdefault(name, len(self._names))}
            return {key: self._without(value) for key, value in content.items()}
        if isinstance(content, list):
            return [self._without(value) for value in content]
        return self._plain(content) if isinstance(content, str) else content

    @staticmethod
    def _plain(text: str) -> str:
        return FILE.sub("<cell>", ADDRESS.sub("0x", re.sub("/(?:ours|plain)/notebooks", "/", text)))
