# SPDX-License-Identifier: Apache-2.0
"""An MCP server over the commands that find what is wrong: rankprobe mcp [options]

An agent starts it and speaks with it on standard input and output. Its tools run `rankprobe --json`, and only read. An answer has
at most 4 kB; `more` in it is the cursor of the next page. With --allow-enable and an operator's token there are two more tools,
which switch recording on for some steps, and off. Needs the package mcp: pip install 'rankprobe[mcp]'.

    rankprobe mcp --collector node0:7411
    rankprobe mcp --skill > SKILL.md        # how an agent uses it
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import difflib
import functools
import hashlib
import json
import os
import pathlib
import sys
from typing import Any, Callable, Iterator, Mapping, Sequence

from rankprobe import __version__, _command
from rankprobe.run import Parser

MOST_BYTES = 4096
# Bytes for the items of a page; the rest is for the JSON around them.
_ROOM = MOST_BYTES - 300
_MOST_TEXT, _MOST_LIST, _MOST_COLUMNS = 400, 8, 60
_MOST_STEPS = 1000
_KEPT_ANSWERS = 16
SKILL = pathlib.Path(__file__).parent / "skills" / "rankprobe" / "SKILL.md"

Arguments = Mapping[str, Any]


class Unusable(Exception):
    """Invalid arguments of a tool; the text says what is wrong and how to correct it."""


@dataclasses.dataclass(frozen=True)
class Field:
    """An argument of a tool. An empty `flag` makes it a positional argument of the command. `most`: the largest integer."""

    name: str
    kind: str  # type of JSON schema
    text: str
    flag: str = ""
    required: bool = False
    choices: tuple[str, ...] = ()
    most: int = 1 << 53

    def schema(self) -> dict[str, Any]:
        found: dict[str, Any] = {"type": self.kind, "description": self.text}
        if self.choices:
            found["enum"] = list(self.choices)
        if self.kind == "integer":
            found |= {"minimum": 0, "maximum": self.most}
        return found

    def check(self, value: Any) -> None:
        # Raises Unusable if `value` does not fit this argument.
        kind = {"string": str, "integer": int, "boolean": bool}[self.kind]
        # isinstance() would accept a bool for an integer.
        if type(value) is not kind:
            raise Unusable(f"{self.name}: {json.dumps(value)} is not of type {self.kind}; give {self.text}")
        if self.choices and value not in self.choices:
            raise Unusable(f"{self.name}: {json.dumps(value)} is none of {', '.join(self.choices)}")
        if isinstance(value, str):
            self._check_text(value)
        elif isinstance(value, int) and not 0 <= value <= self.most:
            raise Unusable(f"{self.name}: {value} is not within 0 and {self.most}")

    def _check_text(self, text: str) -> None:
        if not text or not text.isprintable():
            raise Unusable(f"{self.name}: is empty, or has control characters; give {self.text}")
        if not self.flag and text.startswith("-"):
            raise Unusable(f"{self.name}: {json.dumps(text)} begins with -; give {self.text}")

    def words(self, value: Any) -> list[str]:
        # Returns the words of the command line for a checked value.
        if self.kind == "boolean":
            return [self.flag] if value else []
        return [f"{self.flag}={value}"] if self.flag else [str(value)]


_RUN = Field("run", "string", "the name of a run, as the tool runs lists it", "--run", required=True)
_MATCH = Field("match", "string", "a part of names, or a pattern with * and ?, such as *.parameters_grad.*")
_FROM = Field("from_step", "integer", "the first step", "--from-step")
_TO = Field("to_step", "integer", "the last step", "--to-step")
_RANKS = Field("ranks", "string", "ranks like 0,2-3", "--ranks")
_INPUT_TEXT = "run:NAME, run:NAME@STEP, or the directory of a dump or of one of its steps"
_CURSOR = Field("cursor", "string", "`more` of the page before, with the same other arguments")


@dataclasses.dataclass(frozen=True)
class Tool:
    # An MCP tool that runs the command `verb` of rankprobe. `shown` converts the lines of JSON of the command to the document.

    name: str
    verb: str
    text: str
    fields: tuple[Field, ...]
    writes: bool = False
    # Flags that are always passed.
    fixed: tuple[str, ...] = ()
    shown: Callable[[list[Any]], dict[str, Any]] = lambda lines: dict(lines[0]) if lines else {}

    def schema(self) -> dict[str, Any]:
        return {"type": "object", "properties": {field.name: field.schema() for field in self._all()}, "additionalProperties": False,
                "required": [field.name for field in self.fields if field.required]}

    def _all(self) -> tuple[Field, ...]:
        return self.fields if self.writes else (*self.fields, _CURSOR)

    def command(self, arguments: Arguments) -> list[str]:
        # Returns the command line for the arguments. Raises Unusable for unknown, missing or bad ones.
        known = {field.name: field for field in self._all()}
        for name in arguments:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                raise Unusable(f"{self.name} has no argument {name}" + (f"; did you mean {near[0]}?" if near else "") +
                               f"; it has {', '.join(known) or 'none'}")
        words = [self.verb, *self.fixed]
        for field in self.fields:
            if arguments.get(field.name) is None:
                if field.required:
                    raise Unusable(f"{self.name} needs {field.name}: {field.text}")
                continue
            field.check(arguments[field.name])
            words += field.words(arguments[field.name])
        return words


def _short(number: Any) -> Any:
    return float(f"{number:.5g}") if isinstance(number, float) else number


def _cells(head: dict[str, Any], row: dict[str, Any]) -> list[Any]:
    return [_short(cell) if count else None for cell, count in zip(row["cells"], row["counts"])] or [None] * len(head["first_steps"])


def _query_rows(lines: list[Any]) -> dict[str, Any]:
    """Splits rows into pieces of at most _MOST_COLUMNS columns, so that each piece fits a page as an item."""
    if not lines or "first_steps" not in lines[0]:
        return {"names": lines}
    head, rows = lines[0], lines[1:]
    shown: dict[str, Any] = {key: head[key] for key in ("steps", "tensors", "steps_per_column", "incomplete_rank_steps", "rows")}
    pieces = []
    for row in rows:
        values = {"values": _cells(head, row)} if "cells" in row else {
            key: _cells(head, row[key]) for key in ("smallest", "median", "largest", "deviation") if row.get(key)}
        if "cells" not in row and row.get("deviation"):
            values["deviating_rank"] = row["deviation"]["ranks"]
        for at in range(0, len(head["first_steps"]), _MOST_COLUMNS):
            cut = slice(at, at + _MOST_COLUMNS)
            pieces.append({"name": row["name"], "steps": head["first_steps"][cut], **{key: cells[cut] for key, cells in values.items()}})
    return {**shown, "rows_shown": len(rows), "rows_of_values": pieces}


TOOLS = (
    Tool("runs", "runs", "List the runs that are recorded, with their steps and ranks.", ()),
    Tool("diagnose", "diagnose", "One ranked answer about a run or a dump: what went wrong first, where, how sure, what was not recorded. "
         "Begin with it.", (
             Field("input", "string", _INPUT_TEXT, required=True),
             Field("reference", "string", "a sound run or dump to compare with: " + _INPUT_TEXT, "--reference"))),
    Tool("scan", "scan", "When values of a run first were not finite, left their course, vanished, or differed between ranks.",
         (_RUN, _MATCH, _FROM, _TO, _RANKS)),
    Tool("query", "query", "One statistic over the steps, a row for each value, call, module or rank. Narrow names and steps.", (
        _RUN, _MATCH, _FROM, _TO, _RANKS,
        Field("rows", "string", "what a row is", "--rows", choices=("value", "call", "module", "rank")),
        Field("of", "string", "which values", "--of", choices=("outputs", "inputs", "all")),
        Field("statistic", "string", "Norm (default), Max, Min, Mean, or another that was recorded", "--statistic"),
        Field("over_ranks", "boolean", "true compares the ranks: smallest, median, largest, which deviates", "--over-ranks"),
        Field("names", "boolean", "true lists the names alone", "--names"),
        Field("limit", "integer", "maximum number of rows", "--limit", most=1000)), shown=_query_rows),
    Tool("first_divergence", "first-divergence", "The first calls whose outputs differ from a sound run while their inputs match.", (
        Field("target", "string", "what is faulty: " + _INPUT_TEXT, required=True),
        Field("reference", "string", "what is sound: " + _INPUT_TEXT, required=True))),
    Tool("explain", "explain", "Why calls of a run are recorded or left out.", (
        _RUN, Field("rank", "integer", "one rank", "--rank"), Field("step", "integer", "a step", "--step"),
        Field("call", "string", "a part of the names of calls", "--call")), fixed=("--max-calls=50",)),
)
WRITING_TOOLS = (
    Tool("enable", "enable", "Switch recording of a run on for some steps; then it is off again. It costs the training time.", (
        _RUN, Field("for_steps", "integer", f"number of steps, at most {_MOST_STEPS}", "--for-steps", required=True, most=_MOST_STEPS),
        _RANKS), writes=True),
    Tool("disable", "disable", "Switch recording of a run off.", (_RUN,), writes=True),
)
_NEXT = {
    _command.BAD_USAGE: "correct the argument that is named",
    _command.UNREACHABLE: "ask the operator to start the collector, or to restart this server with --collector HOST:PORT",
    _command.NOT_FOUND: "call the tool runs for the names and steps that there are",
}


def _without_nothing(value: Any) -> Any:
    """Removes empty and absent values, which only take space."""
    if isinstance(value, dict):
        plain = {key: _without_nothing(item) for key, item in value.items()}
        return {key: item for key, item in plain.items() if item is not None and item != "" and item != [] and item != {}}
    return [_without_nothing(item) for item in value] if isinstance(value, list) else value


def _cut(value: Any, text: int = _MOST_TEXT, items: int = _MOST_LIST) -> Any:
    if isinstance(value, str) and len(value) > text:
        return f"{value[:text]}.. ({len(value)} characters)"
    if isinstance(value, dict):
        return {key: _cut(item, text, items) for key, item in value.items()}
    if isinstance(value, list):
        more = [f"{len(value) - items} more"] if len(value) > items else []
        return [_cut(item, text, items) for item in value[:items]] + more
    return value


def _bytes(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False).encode())


def _items(document: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields (key, entry) for the lists of the document in order, with entries cut so that each fits a page."""
    for key, value in document.items():
        for item in value if isinstance(value, list) else ():
            text, entries = _MOST_TEXT * 2, _MOST_LIST * 8
            while _bytes(item) > _ROOM // 2 and text > 20:
                item, text, entries = _cut(item, text, entries), text // 2, max(1, entries // 2)
            yield key, item if _bytes(item) <= _ROOM // 2 else {"left_out": f"an entry of {_bytes(item)} bytes"}


def pages(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Splits the document into pages; values that are not lists are on the first page."""
    document = _without_nothing(document)
    page: dict[str, Any] = {}
    for key, value in document.items():
        if not isinstance(value, list) and _bytes({**page, key: value}) <= _ROOM:
            page[key] = value
    found, size = [page], _bytes(page)
    for key, item in _items(document):
        # Counts the separator and, for the first entry of a list, the name of the list.
        needed = _bytes(item) + 2 + (0 if key in found[-1] else len(key) + 8)
        if size + needed > _ROOM:
            found.append({})
            size, needed = 2, _bytes(item) + len(key) + 10
        found[-1].setdefault(key, []).append(item)
        size += needed
    return found


class Answers:
    """Runs the commands and splits their answers into pages. Keeps the pages of the last _KEPT_ANSWERS answers."""

    def __init__(self, collector: str, operator_token: str) -> None:
        self._collector, self._operator_token = collector, operator_token
        self._kept: collections.OrderedDict[str, list[dict[str, Any]]] = collections.OrderedDict()

    def page(self, tool: Tool, arguments: Arguments) -> str:
        """Returns a page as JSON of at most MOST_BYTES. Raises Unusable or CommandFailed."""
        # A cursor is QUESTION.ANSWER.PAGE. The two digests reject a cursor of another question, and an answer that has changed.
        words = tool.command(arguments)
        cursor = arguments.get("cursor")
        asked = hashlib.sha256(json.dumps(words).encode()).hexdigest()[:8]
        number = 0
        if cursor is None:
            key, found = self._ask(tool, words, asked)
        else:
            _CURSOR.check(cursor)
            key, _, text = cursor.rpartition(".")
            number = int(text) if text.isdecimal() and len(text) < 10 else 0
            if number < 1 or not key.startswith(asked + "."):
                raise Unusable(f"cursor: {json.dumps(cursor)} is not of this question; give `more` of its last page, with the same other "
                               "arguments, or leave cursor out")
            found = self._kept.get(key) or self._again(tool, words, asked, key)
            if number >= len(found):
                raise Unusable("cursor: there is no such page; leave cursor out to begin again")
        page = dict(found[number])
        if number + 1 < len(found):
            page |= {"more": f"{key}.{number + 1}", "page": f"{number + 1} of {len(found)}"}
        return json.dumps(page, ensure_ascii=False)

    def _ask(self, tool: Tool, words: Sequence[str], asked: str) -> tuple[str, list[dict[str, Any]]]:
        lines, notes = _command.ask(words, collector=self._collector, token_file=self._operator_token if tool.writes else None)
        document = tool.shown(lines)
        if notes:
            document["said"] = _cut(notes)
        found = pages(document)
        key = f"{asked}.{hashlib.sha256(json.dumps(found).encode()).hexdigest()[:8]}"
        self._kept[key] = found
        while len(self._kept) > _KEPT_ANSWERS:
            self._kept.popitem(last=False)
        return key, found

    def _again(self, tool: Tool, words: Sequence[str], asked: str, key: str) -> list[dict[str, Any]]:
        now, found = self._ask(tool, words, asked)
        if now != key:
            raise Unusable("cursor: the answer has changed since, for the run continues; leave cursor out to read it from the beginning")
        return found


def answer(answers: Answers, tools: Mapping[str, Tool], name: str, arguments: Arguments) -> tuple[str, bool]:
    """Calls the tool `name`. Returns the text of the result and whether it is an error."""
    try:
        if name not in tools:
            near = difflib.get_close_matches(name, tools, 1)
            raise Unusable(f"there is no tool {name}" + (f"; did you mean {near[0]}?" if near else "") + f"; there are {', '.join(tools)}")
        return answers.page(tools[name], arguments), False
    except Unusable as error:
        return str(_cut(str(error), MOST_BYTES // 4)), True
    except _command.CommandFailed as error:
        what = str(_cut(str(error), MOST_BYTES // 4))
        after = _NEXT.get(error.code)
        return f"{what}; {after}" if after else what, True


def skill_text() -> str:
    """Returns the guide without the front matter of a skill file."""
    return SKILL.read_text(encoding="utf-8").split("---\n", 2)[2].strip()


async def _serve(answers: Answers, tools: Mapping[str, Tool]) -> None:
    import anyio.to_thread
    from mcp import types
    from mcp.server.lowlevel import Server
    from mcp.server.stdio import stdio_server

    async def list_tools(context: Any, parameters: Any) -> Any:
        return types.ListToolsResult(tools=[
            types.Tool(name=tool.name, description=tool.text, input_schema=tool.schema(),
                       annotations=types.ToolAnnotations(read_only_hint=not tool.writes, destructive_hint=False))
            for tool in tools.values()])

    async def call_tool(context: Any, parameters: Any) -> Any:
        text, wrong = await anyio.to_thread.run_sync(
            functools.partial(answer, answers, tools, parameters.name, parameters.arguments or {}))
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=wrong)

    server: Any = Server("rankprobe", version=__version__, instructions=skill_text(), on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="rankprobe mcp", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collector", default="", help="host:port or unix:PATH; default RANKPROBE_COLLECTOR")
    parser.add_argument("--allow-enable", action="store_true", help="the agent may switch recording on for some steps, and off")
    parser.add_argument("--token-file", default="", help="with --allow-enable: an operator's token, used by enable and disable alone")
    parser.add_argument("--skill", action="store_true", help="print the guide for agents (SKILL.md), and end")
    options = parser.parse_args(argv)
    if options.skill:
        print(SKILL.read_text(encoding="utf-8"), end="")
        return 0
    token = options.token_file or os.environ.get("RANKPROBE_TOKEN_FILE", "")
    if options.allow_enable:
        try:
            if not pathlib.Path(token).read_text(encoding="utf-8").strip():
                parser.error(f"--allow-enable: {token} has no token")
        except (OSError, UnicodeDecodeError) as error:
            parser.error(f"--allow-enable needs an operator's token, by --token-file or RANKPROBE_TOKEN_FILE: {error if token else 'there is none'}")
    elif options.token_file:
        parser.error("--token-file needs --allow-enable; to read, a viewer's token in RANKPROBE_TOKEN_FILE is enough")
    tools = {tool.name: tool for tool in (*TOOLS, *(WRITING_TOOLS if options.allow_enable else ()))}
    try:
        import anyio
        import mcp.server.lowlevel  # noqa: F401
        from mcp import types  # noqa: F401
    except ImportError as error:
        parser.error(f"needs the package mcp 2 in {sys.executable} (pip install 'rankprobe[mcp]'): {error}")
    anyio.run(_serve, Answers(options.collector, token if options.allow_enable else ""), tools)
    return 0


if __name__ == "__main__":
    sys.exit(main())
