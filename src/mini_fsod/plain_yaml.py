"""YAML in which every scalar is a string: whoever reads a value decides its type.

So a class may be called no, on or 1.0, and 1e-4 is a number where a number is wanted (to YAML 1.1
it is a string).
"""

from __future__ import annotations

import sys
from typing import Any

import yaml

from mini_fsod.limits import QUOTED, YAML_VALUES


class _Loader(yaml.BaseLoader):
    """Duplicate keys are an error; so are aliases, with which a few lines can fill the memory, and
    more values than YAML_VALUES: PyYAML takes 0.1 ms for each.
    """

    values = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.values += 1
        if self.values > YAML_VALUES:
            raise yaml.YAMLError(f"more than {YAML_VALUES:,} keys and values")
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not supported")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys: set[str] = set()
        for key in (key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key in keys:
                line = node.start_mark.line + 1
                raise yaml.YAMLError(f"duplicate key {key[:QUOTED]} in the table at line {line}")
            keys.add(key)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Lists on one line; strings with control characters quoted and escaped: PyYAML would write
    some line breaks that it then reads as spaces.
    """

    def represent_flow_list(self, value: list[Any]) -> yaml.Node:
        return self.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=True)

    def represent_escaped(self, value: str) -> yaml.Node:
        style = None if value.isprintable() else '"'
        return self.represent_scalar("tag:yaml.org,2002:str", value, style)


_Dumper.add_representer(list, _Dumper.represent_flow_list)
_Dumper.add_representer(str, _Dumper.represent_escaped)


def parse_yaml(text: str) -> Any:
    """Strings, lists and dicts. Raises yaml.YAMLError, or RecursionError if nested too deeply."""
    return yaml.load(text, _Loader)


def format_yaml(value: Any) -> str:
    return yaml.dump(value, None, _Dumper, sort_keys=False, allow_unicode=True, width=sys.maxsize)
