"""Loads the pipelines of a module, for the commands that run them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from gasoline_es.checking.code import Code, CodeRefused
from gasoline_es.cli.failures import Misuse
from gasoline_es.pipelines import Pipeline


def pipelines_of(text: str, past_lost: Collection[str] = ()) -> list[Pipeline[Any]]:
    """Load the pipelines of a module, or those of them that are named; ``past_lost``: these may pass what was lost.

    Raises: Misuse: there are none, or none of such a name.
    """
    try:
        found = load_pipelines(Code.parse(text))
    except CodeRefused as refused:
        raise Misuse(str(refused)) from refused
    by_name = {_name(one): one for one in found}
    for name in past_lost:
        if name not in by_name:
            raise Misuse(
                f"--past-lost {name!r}: there is no such pipeline in {text}: it has {', '.join(sorted(by_name))}"
            )
    return [replace(one, past_lost=True) if _name(one) in past_lost else one for one in found]


def load_pipelines(code: Code) -> list[Pipeline[Any]]:
    """Load them. Raises: CodeRefused."""
    module = code.imported()
    # By its type: to ask the value for its class would run code of whatever lies in the module.
    there: dict[str, Pipeline[Any]] = {
        name: value for name, value in vars(module).items() if issubclass(type(value), Pipeline)
    }
    if not there:
        raise CodeRefused(f"there is no pipeline in {code.module}: name the module where @pipeline stands")
    for name in code.names:
        if name not in there:
            raise CodeRefused(f"there is no pipeline {name!r} in {code.module}: it has {', '.join(sorted(there))}")
    picked = [there[name] for name in code.names] or list({id(value): value for value in there.values()}.values())
    names = [_name(one) for one in picked]
    for name in names:
        if names.count(name) > 1:
            raise CodeRefused(
                f"two pipelines in {code.module} read by the name {name!r}: give one of them another `name=`"
            )
    return picked


def _name(one: Pipeline[Any]) -> str:
    return one.topic if one.name is None else one.name
