"""`holdfast lab`: the classic schemes, and how they break on a real server."""

from __future__ import annotations

import click

from holdfast.cli import exits
from holdfast.lab import commands
from holdfast.lab.runs import UnknownName

__all__ = ["lab", "main"]


@click.group(name="lab", context_settings={"help_option_names": ["-h", "--help"]})
def lab() -> None:
    """How lock schemes fail: real servers, real faults, and verdicts from what happened.

    The lab starts private servers and removes them again. Exit status: 0 safe, 1 not safe, 69 not possible
    on this machine, 64 wrong usage.
    """


@lab.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(as_json: bool) -> int:
    """Every scheme and every fault."""
    return commands.list_all(as_json)


@lab.command()
@click.argument("scheme")
@click.argument("fault")
@click.option("--json", "as_json", is_flag=True, help="Verdict and whole history, for programs.")
@click.option("--all", "all_runs", is_flag=True, help="Every variant of the fault, not only the worst.")
@click.option("--width", type=click.IntRange(min=60), help="Columns to use; default: the terminal's.")
def run(scheme: str, fault: str, as_json: bool, all_runs: bool, width: int | None) -> int:
    """One SCHEME under one FAULT, as a timeline with its verdict.

    Example: holdfast lab run set-nx-ex long-section
    """
    return commands.run(scheme, fault, as_json=as_json, all_runs=all_runs, width=width)


@lab.command()
@click.option("-o", "--output", default="report.html", show_default=True, help="The page to write.")
@click.option("--scheme", "schemes", multiple=True, help="Only this one; may be repeated.")
@click.option("--fault", "faults", multiple=True, help="Only this one; may be repeated.")
@click.option("--jobs", type=click.IntRange(min=1), help="Cells at a time; default: twice the CPUs.")
def report(output: str, schemes: tuple[str, ...], faults: tuple[str, ...], jobs: int | None) -> int:
    """The matrix of all schemes and faults, as one page that needs no network. Takes a few minutes."""
    return commands.report(output, schemes=schemes, faults=faults, jobs=jobs)


@lab.command()
@click.argument("factory", metavar="MODULE:FACTORY")
@click.option("--json", "as_json", is_flag=True, help="For programs; with --show, with the histories.")
@click.option("--show", is_flag=True, help="Add the timelines of what is not safe.")
@click.option("-o", "--output", help="Write the page of this row as well.")
@click.option("--width", type=click.IntRange(min=60), help="Columns to use; default: the terminal's.")
@click.option("--jobs", type=click.IntRange(min=1), help="Cells at a time; default: twice the CPUs.")
def torture(factory: str, as_json: bool, show: bool, output: str | None, width: int | None, jobs: int | None) -> int:
    """Your own lock, under every fault that applies.

    FACTORY is called with url, name and ttl (seconds), by the names it takes, and returns something with acquire
    and release, or a context manager:

    \b
      # mylocks.py
      def redis_py(url, name, ttl):
          return redis.Redis.from_url(url).lock(name, timeout=ttl)

    Then: holdfast lab torture mylocks:redis_py
    """
    return commands.torture(factory, as_json=as_json, show=show, output=output, width=width, jobs=jobs)


def main(words: list[str]) -> int:
    """The command, for `holdfast.cli`."""
    if not words:
        click.echo(lab.get_help(click.Context(lab, info_name="holdfast lab")), err=True)
        return exits.USAGE
    try:
        return int(lab.main(words, prog_name="holdfast lab", standalone_mode=False) or 0)
    except click.Abort:
        raise KeyboardInterrupt from None
    except click.ClickException as error:
        raise exits.UsageError(error.format_message(), "lab") from None
    except (UnknownName, ValueError) as error:
        raise exits.UsageError(str(error), "lab") from None
