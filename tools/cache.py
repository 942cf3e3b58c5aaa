# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-cache: what the compile cache on disk holds, and what is to be done about it."""

import argparse
import sys
import time
from typing import Any

from ..errors import ArgumentError
from ..runtime.cache import disk_store, versions
from ..runtime.store import Entry, Store, parse_size
from .tables import Table, print_table

FAILED, MISUSED = 1, 2

DESCRIPTION = """\
Look at and look after the compile cache: compiled modules on disk, in the folder GRADOPT_CACHE_DIR,
by default the platform's cache folder. It holds at most GRADOPT_CACHE_SIZE (2GiB); new entries push
out those that were used longest ago."""

EPILOG = """\
Exit status: 0 done, 1 `verify` found faults, 2 the command line or an environment variable is at
fault. Every command may run while other processes use the cache."""


def main(argv: list[str] | None = None) -> int:
    """The command; returns its exit status."""
    options = parser().parse_args(argv)
    try:
        return options.run(disk_store(), options)
    except ArgumentError as error:
        print(f"gradopt-cache: error: {error}", file=sys.stderr)
        return MISUSED


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="gradopt-cache", description=DESCRIPTION, epilog=EPILOG)
    commands = found.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, run: Any, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        added.add_argument("--json", action="store_true", help="print JSON")
        added.set_defaults(run=run)
        return added

    listed = command("list", list_, "list the entries, the one used last first")
    name = "only entries of functions whose name contains this"
    listed.add_argument("name", nargs="?", default="", metavar="NAME", help=name)
    command("stat", stat, "show the folder, its limit, and how many entries and bytes it has")
    pruned = command("prune", prune, "remove what was left behind and the entries used longest ago")
    size = "what the cache may have afterwards, such as 512MiB (default: its limit)"
    pruned.add_argument("--max-size", type=_size, metavar="SIZE", help=size)
    others = "also remove all entries that other versions of gradopt or IREE made"
    pruned.add_argument("--other-versions", action="store_true", help=others)
    verified = command("verify", verify, "check every entry's checksum and key")
    verified.add_argument("--remove", action="store_true", help="remove the entries with faults")
    command("clear", clear, "remove all entries")
    return found


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def list_(store: Store, options: argparse.Namespace) -> int:
    rows = []
    for e in sorted(store.entries(), key=lambda e: (-e.used, e.key)):
        about = e.about()
        if options.name not in about.get("name", ""):
            continue
        made_by = "this" if about.get("versions") == versions() else "another"
        arguments = [v for k, v in about.get("notes", {}).items() if k.startswith("argument ")]
        taken = ", ".join(arguments[:4]) + (", ..." if len(arguments) > 4 else "")
        key = e.key if options.json else e.key[:12]
        rows.append([key, about.get("name", "?"), taken, e.bytes, _time(e.used), made_by])
    columns = ["key", "function", "arguments", "bytes", "last used", "version"]
    return print_table(Table(_total(rows, store), columns, rows), options.json)


def _total(rows: list[list[Any]], store: Store) -> str:
    return f"{len(rows)} entries, {sum(r[3] for r in rows):,} bytes, in {store.folder}"


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def stat(store: Store, options: argparse.Namespace) -> int:
    entries = list(store.entries())
    others = sum(e.about().get("versions") != versions() for e in entries)
    used = [e.used for e in entries]
    rows: list[list[Any]] = [
        ["folder", str(store.folder)],
        ["limit in bytes", store.size],
        ["entries", len(entries)],
        ["bytes", sum(e.bytes for e in entries)],
        ["entries of other versions", others],
        ["temporary files", len(store.temporaries())],
        ["last used", _time(max(used)) if used else ""],
        ["used longest ago", _time(min(used)) if used else ""],
    ]
    if options.json:
        columns = [name.replace(" ", "_") for name, _ in rows]
        return print_table(Table("", columns, [[value for _, value in rows]]), True)
    return print_table(Table("the compile cache", ["what", "value"], rows), False)


def prune(store: Store, options: argparse.Namespace) -> int:
    removed = []
    if options.other_versions:
        old = [e for e in store.entries() if e.about().get("versions") != versions()]
        removed = [e for e in old if store.remove(e)]
    return _removed([*removed, *store.prune(options.max_size)], store, options)


def clear(store: Store, options: argparse.Namespace) -> int:
    return _removed(store.clear(), store, options)


def _removed(entries: list[Entry], store: Store, options: argparse.Namespace) -> int:
    left = [e.bytes for e in store.entries()]
    freed = sum(e.bytes for e in entries)
    if options.json:
        columns = ["removed", "bytes_removed", "entries", "bytes"]
        row = [len(entries), freed, len(left), sum(left)]
        return print_table(Table("", columns, [row]), True)
    print(f"removed {len(entries)} entries, {freed:,} bytes; {len(left)} stay, {sum(left):,} bytes")
    return 0


def verify(store: Store, options: argparse.Namespace) -> int:
    count = len(list(store.entries()))
    faults = store.verify(options.remove)
    if options.json:
        rows = [[e.key, str(e.path), fault] for e, fault in faults]
        print_table(Table("", ["key", "path", "fault"], rows), True)
    else:
        for e, fault in faults:
            print(f"{e.path}: {fault}{'; removed' if options.remove else ''}")
        print(f"{count} entries, {len(faults)} with faults")
    return FAILED if faults else 0


if __name__ == "__main__":
    sys.exit(main())
