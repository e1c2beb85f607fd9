"""YAML read as plain words: what a word means is for whoever asked for it to say."""

from __future__ import annotations

from typing import Any

import yaml


class Words(yaml.BaseLoader):
    """All scalars are words: a class may be called no, on or 1.0.

    Keys that stand twice are refused, and aliases, a few lines of which unpack without end.
    """

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not read")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for n, key in enumerate(keys):
            if key in keys[:n]:
                raise yaml.YAMLError(f"{key} twice near line {node.start_mark.line + 1}")
        return super().construct_mapping(node, deep)
