"""Find the KubeletConfiguration of each node: its own if the snapshot has it, with the requested changes."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.api.config import KubeletConfiguration
from engine.api.documents import load_config
from engine.api.documents.kubelet_validation import validate
from engine.api.encoding.json_text import json_encoder
from engine.api.errors import InvalidInput
from engine.eviction.thresholds import thresholds_from_config
from engine.images.policy import ImageGCPolicy
from engine.plan.answers.answer import Rows
from engine.plan.snapshot.columns import Snapshot
from engine.plan.snapshot.objects import configuration_object


def _check(config: KubeletConfiguration) -> None:
    """Raise `InvalidInput` with the agent's message for a configuration with which an agent does not
    start.
    """
    validate(config, "configuration")
    thresholds_from_config(config)
    ImageGCPolicy.from_config(config)


class NodeConfigurations:
    """Hold the configuration of each node. Each distinct one is decoded once.

    `file` replaces the configurations of all nodes. `changes`, by the names of the API's fields, are merged
    over the result. Raise `InvalidInput` that names the file or the field.
    """

    def __init__(self, snapshot: Snapshot, file: str = "", changes: dict[str, Any] | None = None) -> None:
        distinct = snapshot.nodes["config"].combine_chunks().dictionary_encode()
        self._texts: list[str] = distinct.dictionary.to_pylist()
        self._code: NDArray[np.int32] = distinct.indices.to_numpy()
        self._changes = changes or {}
        self._decoded: dict[str, KubeletConfiguration] = {}
        given = load_config([Path(file)])[0] if file else None
        self._base = json_encoder(str)(given).decode() if given is not None else ""
        with_text = np.array([bool(text) for text in self._texts], bool)
        self._known = 0 if file else int(np.count_nonzero(with_text[self._code]))
        # An invalid change is reported here, once, and not for the first node whose configuration is decoded.
        try:
            _check(self._of_text(""))
        except InvalidInput as error:
            text = error.message if error.subject in ("changes", "configuration") else str(error)
            raise InvalidInput(text, subject="changes" if self._changes else "config") from None

    def add_notes(self, rows: Rows) -> None:
        """Note in an answer where the configurations come from."""
        if self._changes:
            rows.note(f"changed in every configuration: {', '.join(sorted(self._changes))}")
        if self._base:
            rows.note("every node has the given configuration")
        elif self._known < len(self._code):
            rows.note("nodes assumed to have the default configuration", len(self._code) - self._known)

    def of(self, node: int) -> KubeletConfiguration:
        """Return the configuration of a node, with the changes."""
        return self._of_text(self._texts[self._code[node]])

    def key(self, node: int) -> str:
        """Return a key that is equal for nodes with the same configuration."""
        return "" if self._base else self._texts[self._code[node]]

    @property
    def changed(self) -> bool:
        """Return whether nodes may have another configuration than their own."""
        return bool(self._base or self._changes)

    @property
    def own_codes(self) -> NDArray[np.int32]:
        """Return int32[nodes] that is equal for nodes whose own configurations are the same."""
        return self._code

    def own(self, node: int) -> tuple[KubeletConfiguration, bool]:
        """Return the configuration that a node has without the file and the changes, and whether it is known:
        if not, the default one.
        """
        text = self._texts[self._code[node]]
        return configuration_object(text), bool(text)

    @cached_property
    def codes(self) -> NDArray[np.int32]:
        """Return int32[nodes] that is equal for nodes with the same configuration."""
        return np.zeros_like(self._code) if self._base else self._code

    def _of_text(self, text: str) -> KubeletConfiguration:
        text = self._base or text
        found = self._decoded.get(text)
        if found is None:
            found = self._decoded[text] = configuration_object(text, self._changes)
        return found
