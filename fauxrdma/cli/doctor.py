"""`fauxrdma doctor`: is this machine ready, and if not, what to do."""

from __future__ import annotations

import typer

from fauxrdma.cli.options import Format, FormatOption

__all__ = ["doctor"]


def doctor(format_: FormatOption = Format.TABLE) -> None:
    """Check this machine and say how to fix what is missing. Exit code 3 when fauxrdma cannot work here.

    \b
    Examples:
      fauxrdma doctor
      fauxrdma doctor --format json
    """
    from dataclasses import asdict

    from rich.text import Text

    from fauxrdma.cli.checks import Status, run_checks
    from fauxrdma.cli.output import console, print_json
    from fauxrdma.errors import SetupError

    checks = run_checks()
    failed = [check for check in checks if check.status is Status.FAIL]
    if format_ is Format.JSON:
        print_json({"ok": not failed, "checks": [asdict(check) for check in checks]})
        if failed:
            raise typer.Exit(SetupError.exit_code)
        return
    out = console()
    colours = {Status.OK: "green", Status.WARN: "yellow", Status.FAIL: "bold red"}
    width = max(len(check.name) for check in checks)
    for check in checks:
        line = Text(f"{check.status.value:>4}", style=colours[check.status])
        out.print(line + Text(f"  {check.name:<{width}}  {check.found}"), soft_wrap=True)
        if check.fix:
            out.print(Text(f"{'':>{width + 8}}fix: {check.fix}", style="dim"), soft_wrap=True)
    if failed:
        raise SetupError(f"not ready: {', '.join(check.name for check in failed)} (see the fixes above)")
    warnings = sum(1 for check in checks if check.status is Status.WARN)
    out.print(f"\nready{f', with {warnings} optional thing(s) missing' if warnings else ''}")
