# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Showing how far compiling is, where it takes long and somebody sees it."""

import concurrent.futures
import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping

SHOWN_AFTER = 1.0
"""Seconds after which there is something to be seen."""


def follow(running: "Mapping[str, concurrent.futures.Future[bytes]]") -> None:
    """Wait for all, with a line on stderr for each, from a second on, where that is a terminal."""
    late = concurrent.futures.wait(running.values(), SHOWN_AFTER).not_done
    if not late or not sys.stderr.isatty():
        concurrent.futures.wait(running.values())
        return
    import rich.console
    import rich.progress

    columns = (
        rich.progress.SpinnerColumn(finished_text=" "),
        rich.progress.TextColumn("compiling for {task.description}"),
        rich.progress.TimeElapsedColumn(),
    )
    console = rich.console.Console(stderr=True)
    with rich.progress.Progress(*columns, console=console, transient=True) as shown:
        tasks = {running[name]: shown.add_task(name, total=1) for name in running}
        for done in concurrent.futures.as_completed(tasks):
            shown.update(tasks[done], completed=1)


@contextlib.contextmanager
def counted(title: str, total: int) -> Iterator[Callable[[str], None]]:
    """A bar on stderr, where that is a terminal, for so many steps; what is given is to be called
    at the start of each, with what it is about.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    import rich.console
    import rich.progress

    columns = (
        rich.progress.TextColumn(title),
        rich.progress.BarColumn(),
        rich.progress.MofNCompleteColumn(),
        rich.progress.TimeElapsedColumn(),
        rich.progress.TextColumn("{task.description}", markup=False),
    )
    console = rich.console.Console(stderr=True)
    with rich.progress.Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task("", total=total)
        begun = 0

        def step(about: str) -> None:
            nonlocal begun
            shown.update(task, description=about[:60], completed=begun)
            begun += 1

        yield step
