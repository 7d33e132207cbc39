"""YAML read as data only, with repeated keys refused and errors on one line."""

import re

import yaml

from .errors import UserError


class Loader(yaml.SafeLoader):
    """Safe loader that refuses repeated keys and reads 1e-4 as a number.

    YAML 1.1, which PyYAML follows, takes a number without a point (1e-4) for text. Merge keys
    are refused too: settings have no use for them, and nested ones grow exponentially.
    """

    def construct_mapping(self, node, deep=False):
        """Mapping of a node; raises ConstructorError on repeated or merge keys."""
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                raise _refused("'<<' is not supported here", key_node)
            if isinstance(key_node, yaml.ScalarNode):
                if key_node.value in seen:
                    raise _refused(f"'{key_node.value}' is given twice", key_node)
                seen.add(key_node.value)
        return super().construct_mapping(node, deep)


def _refused(problem, node):
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?[0-9][0-9_]*(?:\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def construct(text, source):
    """(value, node) of YAML text; ({}, None) when it is empty. Raises UserError."""
    try:
        loader = Loader(text)
        try:
            node = loader.get_single_node()
            return ({}, None) if node is None else (loader.construct_document(node), node)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise UserError(_where(error, source)) from None
    except RecursionError:
        raise UserError(f"{source}: nested too deeply for a settings file") from None
    except ValueError as error:  # a date such as 2026-99-99, a number of thousands of digits
        raise UserError(f"{source}: a value cannot be read: {_line(error)}") from None


def value_of(text, source):
    """Value of YAML text such as "3", "[0, 0, 0]" or "name"; raises UserError."""
    value, node = construct(text, source)
    return value if node is not None else None


def line_of(node, path):
    """Line (from 1) of the key at path, or of the nearest section above it; None if unknown."""
    line = None
    for name in path:
        if not isinstance(node, yaml.MappingNode):
            break
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value == name:
                line, node = key.start_mark.line + 1, value
                break
        else:
            break
    return line


def _where(error, source):
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or error
    place = f"{source}:{mark.line + 1}:{mark.column + 1}" if mark else source
    return f"{place}: not valid YAML: {_line(problem)}"


def _line(text):
    return " ".join(str(text).split())[:200]
