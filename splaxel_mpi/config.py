"""YAML files and command-line overrides to checked settings."""

import difflib
import textwrap
import typing

import yaml
from pydantic import ValidationError
from pydantic_core import PydanticUndefined

from .errors import UserError
from .setting_types import MOST, Section
from .settings import Config
from .yaml_text import construct, line_of, value_of

# a settings file has a few hundred lines at most
LARGEST_FILE = 256 * 1024


def load(path, overrides=()):
    """Config of a YAML file.

    path: file name; overrides: "section.key=value" each, the value in YAML, the last one wins.
    Raises UserError: file unreadable or no YAML, unknown or repeated key, value of a wrong type
    or out of range.
    """
    try:
        with open(path, "rb") as file:
            text = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    if len(text) > LARGEST_FILE:
        raise UserError(f"{path}: larger than {LARGEST_FILE} bytes: is this a settings file?")
    return parse(text, path, overrides)


def parse(text, source, overrides=()):
    """Config of YAML text (str or UTF-8 bytes); source names it in errors. Raises UserError."""
    tree, node = construct(text, source)
    if not isinstance(tree, dict):
        raise UserError(f"{source}: expected sections such as 'data:', got {_shown(tree)}")
    # a section whose keys are all commented out is an empty one
    tree = {key: {} if value is None and key in sections() else value
            for key, value in tree.items()}
    tree.setdefault("data", {})
    given = [_override(tree, text) for text in overrides]
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise UserError(_message(error, source, node, given)) from None


def sections():
    """Names of the sections at the top level."""
    return [name for name, field in Config.model_fields.items() if _section(field)]


def settings():
    """Dotted name -> pydantic FieldInfo of every setting, in their order."""
    return dict(_walk(Config, ""))


def _walk(model, prefix):
    for name, field in model.model_fields.items():
        if _section(field):
            yield from _walk(field.annotation, f"{prefix}{name}.")
        else:
            yield prefix + name, field


def _section(field):
    kind = field.annotation
    # Python 3.9 takes list[float] for a type
    return typing.get_origin(kind) is None and isinstance(kind, type) and issubclass(kind, Section)


def _override(tree, text):
    """Put "a.b=value" into the tree; returns the dotted key."""
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key or not all(key.split(".")):
        raise UserError(f"command line: {_shown(text)}: expected key=value, "
                        "such as train.images=3000")
    *parents, last = key.split(".")
    for index, parent in enumerate(parents):
        child = tree.setdefault(parent, {})
        if not isinstance(child, dict):
            if ".".join(parents[: index + 1]) in settings():
                raise UserError(f"command line: {key}: {'.'.join(parents[:index + 1])} is a "
                                "setting, not a section")
            child = tree[parent] = {}
        tree = child
    tree[last] = value_of(value, f"command line: {key}")
    return key


def _message(error, source, node, given):
    """One line for the first mistake that pydantic found."""
    errors = error.errors(include_url=False)
    # an unknown key is the likely cause of one that is missing
    first = min(errors, key=lambda e: e["type"] == "missing")
    path = [str(part) for part in first["loc"]]
    known = settings()
    while len(path) > 1 and ".".join(path[:-1]) in known:
        path.pop()  # an element of a list: its setting is named
    key = ".".join(path)
    line = line_of(node, path)
    where = f"{source}:{line}" if line else source
    if any(f"{key}.".startswith(f"{one}.") or one.startswith(f"{key}.") for one in given):
        where = "command line"
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    place = f"{where}: {key}" if key else where  # sections that do not go together have no key
    return f"{place}: {_what(first, key, known)}{more}"


def _what(error, key, known):
    if error["type"] in ("extra_forbidden", "invalid_key"):
        return f"unknown setting{_nearest(key, known)}"
    required = key in known and known[key].is_required()
    if error["type"] == "missing" or (required and error["input"] is None):
        return (f"missing: {known[key].description} Set it in the file, or give "
                f"{key}=... on the command line")
    got = _shown(error["input"])
    if error["type"] == "value_error":
        reason = str(error["ctx"]["error"])
        # of a whole section it names the settings at odds
        return reason if isinstance(error["input"], dict) else f"{reason}, got {got}"
    if key not in known:
        return f"expected a section with settings of its own, got {got}"
    plain = not known[key].json_schema_extra
    if error["type"] == "less_than_equal" and plain:
        return f"expected at most {error['ctx']['le']}, got {got}"
    hint = ""
    if known[key].annotation is str and not isinstance(error["input"], (dict, list)):
        hint = " (put it in quotes)"
    return f"expected {expected(known[key])}, got {got}{hint}"


def _nearest(key, known):
    """Hint at the setting or section that was meant."""
    names = [name for name in (*known, *sections(), "train.rates")
             if not key.startswith(f"{name}.")]
    prefix, _, last = key.rpartition(".")
    same = [name for name in names if name.rpartition(".")[2] == last]
    close = same or difflib.get_close_matches(key, names, 1, 0.75)
    if not close:  # the right name in the wrong section, nearly
        ends = {name.rpartition(".")[2]: name for name in names}
        match = difflib.get_close_matches(last, ends, 1, 0.75)
        close = [ends[name] for name in match]
    if close:
        return f"; did you mean {' or '.join(close)}?"
    here = [name for name in names if name.rpartition(".")[0] == prefix]
    return f"; there are: {', '.join(here)}" if here else ""


def _shown(value):
    """A value as a message shows it: short, on one line, with its kind where that helps."""
    if isinstance(value, dict):
        return "a section"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else value[:57] + "...")
    return textwrap.shorten(str(value), 60) if not isinstance(value, int) else _number(value)


def _number(value):
    return str(value) if abs(value) < 10**30 else "a number of too many digits"


def expected(field):
    """What a setting takes, in words: "whole number >= 1", "one of dense, selective"."""
    extra = field.json_schema_extra or {}
    if "expected" in extra:
        return extra["expected"]
    annotation, metadata, optional = _plain(field.annotation, list(field.metadata))
    if typing.get_origin(annotation) is typing.Literal:
        choices = typing.get_args(annotation)
        text = "one of " + ", ".join(choices) if len(choices) > 1 else choices[0]
    else:
        names = {int: "whole number", float: "number", bool: "true or false", str: "text"}
        text = names[annotation] + _range(metadata)
    return text + (" or null" if optional else "")


def _plain(annotation, metadata):
    """Peel Optional and Annotated: (type, constraints, whether null is allowed)."""
    optional = False
    while typing.get_origin(annotation) in (typing.Annotated, typing.Union):
        if typing.get_origin(annotation) is typing.Annotated:
            annotation, *more = typing.get_args(annotation)
            metadata += [c for m in more for c in getattr(m, "metadata", [m])]
        else:
            optional = True
            annotation = next(a for a in typing.get_args(annotation) if a is not type(None))
    return annotation, metadata, optional


def _range(metadata):
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    return " and".join(
        f" {sign} {getattr(one, name):g}" if isinstance(getattr(one, name), float)
        else f" {sign} {getattr(one, name)}"
        for name, sign in signs.items()
        for one in metadata
        if getattr(one, name, None) is not None and getattr(one, name) not in (MOST, 2**63 - 1)
    )


def describe(config=None):
    """All settings as a commented YAML file: meaning, what is accepted, default, value.

    config: the values shown; None: the defaults.
    """
    values = config.model_dump() if config else {}
    return "\n".join(_described(Config, values, "")).strip() + "\n"


def _described(model, values, indent):
    for name, field in model.model_fields.items():
        if _section(field):
            note = field.annotation.__doc__
            yield "" if indent else "\n# " + "-" * 30 + f" {note}"
            yield f"{indent}{name}:" + (f"  # {note}" if indent else "")
            yield from _described(field.annotation, values.get(name, {}), indent + "  ")
            continue
        if not indent:
            yield ""
        required = field.default is PydanticUndefined
        default = "required" if required else f"default {_yaml(field.default)}"
        text = f"{field.description} [{expected(field)}; {default}]"
        yield textwrap.fill(text, 92, initial_indent=f"{indent}# ",
                            subsequent_indent=f"{indent}#   ", break_on_hyphens=False)
        value = values.get(name, None if required else field.default)
        yield f"{indent}{name}: {_yaml(value)}"


def _yaml(value):
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**6)
    return text.removesuffix("\n").removesuffix("\n...")
