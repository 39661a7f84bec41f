"""The kernel protocol, checked by the suite that its authors give to kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jupyter_kernel_test
import pytest

from tests.notebook.kernel.jupyter import Client, kernel, started
from tests.waiting import HANG_S

NOT_PASSED_ON = {
    "image/svg+xml": "made anew: an <img> in text/html, which can neither run nor fetch",
    "text/markdown": "its source: JupyterLab runs the HTML in trusted Markdown",
    "application/javascript": "its source: it would run with the rights of the page",
}
"""Types that a plain kernel passes on, and what a front does instead."""

SAMPLES = {
    "image/svg+xml": 'SVG(\'<svg xmlns="http://www.w3.org/2000/svg"><circle r="9"/></svg>\')',
    "text/markdown": "Markdown('*hi*')",
    "application/javascript": "Javascript('alert(1)')",
}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
SHOW = "from IPython.display import *; import base64\ndisplay({})"


@pytest.fixture(scope="module", autouse=True)
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One kernel for the whole suite, in place of the one that each of its classes starts."""
    with kernel(tmp_path_factory.mktemp("protocol")) as made:
        TestProtocol.km, TestProtocol.kc = made.manager, made.client
        yield


@pytest.fixture(scope="class")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A kernel to which nobody has subscribed yet."""
    with started(tmp_path_factory.mktemp("welcome")) as manager:
        TestWelcome.kc = manager.client()
        yield


class TestProtocol(jupyter_kernel_test.KernelTests):  # type: ignore[misc]  # it ships no types
    """All of the suite's tests, with samples for each."""

    language_name = "python"
    file_extension = ".py"
    code_hello_world = "print('hello, world')"
    code_stderr = "import sys; print('test', file=sys.stderr)"
    completion_samples = [  # noqa: RUF012 - as the suite has it
        {"text": "zi", "matches": {"zip"}},
        {"text": "import tomlli", "matches": {"tomllib"}},
    ]
    complete_code_samples = ["1", "print('hello, world')", "def f(x):\n  return x*2\n\n\n", "%time 1"]  # noqa: RUF012 - likewise
    incomplete_code_samples = ["print('''hello", "def f(x):\n  x*2", "x = ("]  # noqa: RUF012 - likewise
    invalid_code_samples = ["import = 7q"]  # noqa: RUF012 - likewise
    code_page_something = "zip?"
    code_generate_error = "raise"
    code_execute_result = [  # noqa: RUF012 - likewise
        {"code": "1+2+3", "result": "6"},
        {"code": "[n*n for n in range(1, 4)]", "result": "[1, 4, 9]"},
    ]
    code_display_data = [  # noqa: RUF012 - likewise
        {"code": SHOW.format("HTML('<b>test</b>')"), "mime": "text/html"},
        {"code": SHOW.format("Math(r'\\frac{1}{2}')"), "mime": "text/latex"},
        {"code": SHOW.format(f"Image(base64.b64decode('{PIXEL}'))"), "mime": "image/png"},
        {"code": SHOW.format("JSON({'a': 1})"), "mime": "application/json"},
    ]
    code_history_pattern = "1?2*"
    supported_history_operations: Any = ("tail", "range", "search")
    code_inspect_sample = "zip"
    code_clear_output = "from IPython.display import clear_output; clear_output()"

    @classmethod
    def setUpClass(cls) -> None:
        """The module's kernel is used."""

    @classmethod
    def tearDownClass(cls) -> None:
        """The module's kernel is used."""


@pytest.mark.usefixtures("untouched")
class TestWelcome(jupyter_kernel_test.IopubWelcomeTests):  # type: ignore[misc]  # it ships no types
    """A new subscriber is welcomed."""

    support_iopub_welcome = True

    @classmethod
    def setUpClass(cls) -> None:
        """The module's kernel is used."""

    @classmethod
    def tearDownClass(cls) -> None:
        cls.kc.stop_channels()

    def test_recv_iopub_welcome_msg(self) -> None:
        """What a kernel that is just starting says of its state may come before."""
        self.kc.start_channels()
        message = self.kc.get_iopub_msg(timeout=HANG_S)
        while message["msg_type"] == "status":
            message = self.kc.get_iopub_msg(timeout=HANG_S)
        assert message["header"]["msg_type"] == message["msg_type"] == "iopub_welcome"
        assert not message["content"]["subscription"]


@pytest.mark.parametrize("mime", NOT_PASSED_ON)
def test_messages_that_are_not_passed_on(mime: str) -> None:
    client = Client(manager=TestProtocol.km, client=TestProtocol.kc)
    (shown,) = client.run(SHOW.format(SAMPLES[mime])).of("display_data")
    assert mime not in shown["data"]
    assert shown["data"]["text/plain"]
