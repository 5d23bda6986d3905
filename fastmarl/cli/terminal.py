"""Output of commands: results on stdout, progress on stderr, as plain text if rich is not installed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from fastmarl.report.tables import Table

WIDTH_OF_FILES = 128  # width of tables if stdout is not a terminal
LONGEST_UNWRAPPED = 40  # characters per cell


def open_terminal() -> Terminal:
    """Return a terminal that uses rich if it is installed."""
    try:
        return RichTerminal()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "rich":
            raise
        return Terminal()


class Terminal:
    """Output without rich. Progress is a single overwritten line, hidden if stderr is not a terminal."""

    def show(self, *results: Table | str) -> None:
        """Write results to stdout, separated by empty lines."""
        print(*(result.as_text() if isinstance(result, Table) else result for result in results), sep="\n\n")

    @contextmanager
    def status(self, text: str) -> Iterator[Callable[[str], None]]:
        """Show the current activity on stderr; yield a function that replaces the text."""
        self._write_over(text)
        try:
            yield self._write_over
        finally:
            self._write_over("")

    @contextmanager
    def progress(self, text: str, total: int) -> Iterator[Callable[[int], None]]:
        """Show the progress towards `total` on stderr; yield a function that advances it."""
        done = 0

        def add(n: int) -> None:
            nonlocal done
            done += n
            change(f"{text} {min(1, done / total):4.0%}")

        with self.status(text) as change:
            yield add

    def _write_over(self, text: str) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{text:<79.79}\r")
            sys.stderr.flush()


class RichTerminal(Terminal):
    """Output with rich: tables with rules, and a progress bar.

    Raises:
        ModuleNotFoundError: If rich is not installed.
    """

    def __init__(self) -> None:
        from rich.console import Console

        class Output(Console):
            def on_broken_pipe(self) -> None:
                """Discard further output, as after `| head`; the command still writes its files."""
                with suppress(SystemExit):
                    super().on_broken_pipe()

        console = partial(Output, markup=False, highlight=False, emoji=False)  # names may contain brackets and colons
        self._out = console(width=None if sys.stdout.isatty() else WIDTH_OF_FILES)
        self._err = console(stderr=True)

    def show(self, *results: Table | str) -> None:
        for result in results:
            if isinstance(result, Table):
                if result.title:
                    self._out.print(result.title, style="bold", soft_wrap=True)
                self._out.print(_rich_table(result))
            else:
                self._out.print(result, soft_wrap=True)

    @contextmanager
    def status(self, text: str) -> Iterator[Callable[[str], None]]:
        with self._err.status(text) as status:
            yield status.update

    @contextmanager
    def progress(self, text: str, total: int) -> Iterator[Callable[[int], None]]:
        from rich.progress import Progress

        with Progress(console=self._err, transient=True) as progress:
            task = progress.add_task(text, total=total)
            yield lambda n: progress.advance(task, n)


def _rich_table(table: Table) -> Any:
    from rich import box
    from rich.table import Table as RichTable

    shown = RichTable(
        box=box.SIMPLE,
        show_header=bool(table.heading),
        caption="\n".join(table.notes) or None,
        caption_justify="left",
    )
    for i, column in enumerate(zip(*table.rows, strict=True)):
        heading = table.heading[i] if table.heading else ""
        fits = max(map(len, column)) <= LONGEST_UNWRAPPED
        shown.add_column(heading, justify="right" if i else "left", no_wrap=fits)
    for row in table.rows:
        shown.add_row(*row)
    return shown
