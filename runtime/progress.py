# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Showing how far compiling is, where it takes long and somebody sees it."""

import concurrent.futures
import sys
from collections.abc import Mapping

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
