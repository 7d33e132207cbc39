"""Numbers on the command line that are none, or out of range: one line, whatever the option."""

import subprocess
import sys

import click
import pytest

from splaxel_mpi.cli import cli

TEXTS = ["nan", "inf", "-inf", "-5", "1e400", "9" * 400, "", "twelve"]


def options(group, path=()):
    """(words of the command, Option) of every option with a number, all commands."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from options(command, (*path, name))
            continue
        for option in command.params:
            counted = isinstance(option.type, (click.IntRange, click.FloatRange))
            if counted or option.type.name in ("count", "integer", "float"):
                yield pytest.param(command, option, id=" ".join((*path, name, option.opts[0])))


@pytest.mark.parametrize("command, option", list(options(cli)))
@pytest.mark.parametrize("text", TEXTS)
def test_no_option_takes_what_is_no_number(command, option, text):
    context = click.Context(command)
    if text == "9" * 400 and isinstance(option.type, click.IntRange) and not option.type.max:
        return  # a whole number without an upper bound
    with pytest.raises(click.BadParameter):
        option.type.convert(text, option, context)


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan", "any.yaml", "--ranks", "4", "--gaussians", "inf"],
        ["plan", "any.yaml", "--ranks", "4", "--gaussians", "nan"],
        ["plan", "any.yaml", "--ranks", "4", "--gaussians", "-5"],
        ["plan", "any.yaml", "--ranks", "4", "--gaussians", "1e30"],
        ["plan", "any.yaml", "--ranks", "0"],
        ["plan", "any.yaml", "--ranks", "4097"],
        ["plan", "any.yaml", "--ranks", "4", "--gpu-memory", "0"],
        ["plan", "any.yaml", "--ranks", "4", "--gpu-memory", "9" * 400 + "T"],
        ["plan", "any.yaml", "--ranks", "4", "--bandwidth", "0"],
        ["plan", "any.yaml", "--ranks", "4", "--bandwidth", "nan"],
        ["config", "show", "data.path=.", "data.cache=" + "9" * 400 + "G"],
        ["job", "any.yaml", "--lead", "nan"],
        ["bench", "scaling", "--bandwidth", "inf"],
        ["bench", "ghosts", "--side", "nan"],
        ["synth", "city", "somewhere", "--aerial", "nan"],
        ["train", "any.yaml", "--time-limit", "inf"],
    ],
)
def test_the_user_sees_one_line(arguments, tmp_path):
    found = subprocess.run([sys.executable, "-m", "splaxel_mpi", *arguments], text=True,
                           timeout=120, capture_output=True, cwd=tmp_path)
    assert found.returncode == 2
    assert found.stderr.startswith("splaxel-mpi: error: ")
    assert len(found.stderr.splitlines()) == 1 and not list(tmp_path.iterdir())
