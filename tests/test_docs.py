# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The examples of README.md and docs/ run, and print what the pages say that they print.

A page is one program: its fenced blocks run in order, in one folder and one namespace. The first
word behind the fence says what a block is:

- `python`: executed; with a file's name behind it, a quotation of that file;
- `mlir`: written to the .mlir file that the next command names;
- `sh`: commands, a line each, expected to end with status 0 or as a comment `# exit status N` says;
- `text`: what the block before it printed.

A further word `needs=vulkan` says that a block, and the text behind it, are for machines that have
a device of that driver; on others the rest of the page runs.
"""

import contextlib
import dataclasses
import importlib
import io
import os
import pathlib
import re
import shlex
import subprocess
import sys
from typing import Any
from unittest import mock

import pytest
from gradopt.runtime.present import why_no_device

ROOT = pathlib.Path(__file__).resolve().parent.parent
COMPILED = {
    "README.md",
    "tutorial.md",
    "gradients.md",
    "ops.md",
    "random.md",
    "compile.md",
    "debugging.md",
    "artifacts.md",
    "memory.md",
    "recording.md",
    "imperative.md",
    "deploy.md",
    "targets.md",
    "performance.md",
}
"""Pages whose examples need IREE's compiler."""
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

IN_PROCESS = {
    "gradopt-opt": "gradopt.tools.opt",
    "gradopt-compile": "gradopt.tools.compile",
    "gradopt-check": "gradopt.tools.check",
    "gradopt-bench": "gradopt.tools.bench",
    "gradopt-cache": "gradopt.tools.cache",
    "gradopt-tune": "gradopt.tools.tune",
}
PROGRAMS = {"gradopt-run", "iree-run-module", "python"}  # started as a user does
NEEDS = "needs="
NOT_RUN = {"make", "pip", "git", "cd"}

FENCE = re.compile(r"^```(.*)$")
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
STATUS = re.compile(r"#\s*exit status (\d+)\s*$")


@dataclasses.dataclass
class Block:
    """A fenced block: the words behind the fence, its text, the line of its first line."""

    words: list[str]
    text: str
    line: int


def blocks(page: pathlib.Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found: list[Block] = []
    begin: int | None = None
    lines = page.read_text().splitlines()
    for number, line in enumerate(lines, 1):
        if (fence := FENCE.match(line)) and begin is None:
            begin, words = number, fence[1].split()
        elif fence and begin is not None:
            text = "".join(f"{x}\n" for x in lines[begin : number - 1])
            found.append(Block(words, text, begin + 1))
            begin = None
    assert begin is None, f"{page.name}:{begin}: the block has no end"
    return found


class Page:
    """A page being run: the namespace of its Python, and the MLIR that waits for its command."""

    def __init__(self) -> None:
        self.namespace: dict[str, Any] = {"__name__": "example"}
        self.mlir: str | None = None

    def run(self, block: Block) -> str:
        """What a block prints."""
        kind = block.words[0] if block.words else "nothing"
        runners = {"python": self.python, "mlir": self.keep, "sh": self.commands}
        assert kind in runners, f"expected a block of {', '.join(runners)} or text, got {kind}"
        return runners[kind](block)

    def python(self, block: Block) -> str:
        for name in block.words[1:]:
            if not name.startswith(NEEDS):
                assert block.text.strip() in (ROOT / name).read_text(), f"{name} reads otherwise"
                return ""
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block.text, "example.py", "exec"), self.namespace)
        return printed.getvalue()

    def keep(self, block: Block) -> str:
        self.mlir = block.text
        return ""

    def commands(self, block: Block) -> str:
        return "".join(map(self.command, block.text.replace("\\\n", "").splitlines()))

    def command(self, line: str) -> str:
        words = shlex.split(line, comments=True)
        if not words or words[0] in NOT_RUN:
            return ""
        if self.mlir is not None:
            name = next(w for w in words if w.endswith(".mlir"))
            pathlib.Path(name).write_text(self.mlir)
            self.mlir = None
        status, printed = self.tool(*words)
        said = STATUS.search(line)
        wanted = int(said[1]) if said else 0
        assert status == wanted, f"{line}: exit status {status}, expected {wanted}\n{printed}"
        return printed

    def tool(self, name: str, *arguments: str) -> tuple[int, str]:
        """Exit status and output, errors included, of a command."""
        if name in PROGRAMS:
            program = pathlib.Path(sys.executable).with_name(name)
            done = subprocess.run(
                [program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            return done.returncode, done.stdout
        assert name in IN_PROCESS, f"'{name}' is no command that examples may use"
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            status = importlib.import_module(IN_PROCESS[name]).main(list(arguments))
        return status, printed.getvalue()


def lacking(block: Block) -> str:
    """Why this machine cannot run a block; "" where it can."""
    drivers = [word.removeprefix(NEEDS) for word in block.words if word.startswith(NEEDS)]
    return "; ".join(filter(None, map(why_no_device, drivers)))


def stripped(text: str) -> list[str]:
    """The lines without spaces at their ends and empty lines at the end."""
    return [line.rstrip() for line in text.rstrip().split("\n")]


def params() -> list[Any]:
    marks = {True: [pytest.mark.compiler], False: []}
    return [pytest.param(p, id=p.stem, marks=marks[p.name in COMPILED]) for p in PAGES]


@pytest.mark.parametrize("path", params())
def test_examples(
    path: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page, printed, reason, left_out = Page(), "", "", ""
    with mock.patch.dict(os.environ):
        for block in blocks(path):
            where = f"{path.name}:{block.line}"
            if block.words != ["text"]:
                reason = lacking(block)
            if reason:
                left_out = f"{where} and others need a device: {reason}"
                continue
            if block.words == ["text"]:
                assert stripped(printed) == stripped(block.text), where
                continue
            try:
                printed = page.run(block)
            except Exception as error:
                raise AssertionError(f"{where}: {type(error).__name__}: {error}") from error
    assert page.mlir is None, f"{path.name}: a block of MLIR is used by no command"
    if left_out:
        pytest.skip(f"all but this ran: {left_out}")


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.stem)
def test_links(path: pathlib.Path) -> None:
    """Links to files lead somewhere."""
    missing = [link for link in LINK.findall(path.read_text()) if not (path.parent / link).exists()]
    assert not missing
