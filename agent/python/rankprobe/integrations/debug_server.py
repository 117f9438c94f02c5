# SPDX-License-Identifier: Apache-2.0
"""A tab of torch.distributed's debug server. Requires a PyTorch whose start_debug_server() takes handlers (tested with 2.13).

    from rankprobe.integrations.debug_server import handlers
    start_debug_server(handlers=handlers())        # on every rank

The tab shows what each rank records, the calls of a step in the form of DebugMode, and the answer of `rankprobe diagnose`. It queries
the collector; a rank only reports its run. Neither the server nor this tab has access control: the tab shows everything that the
environment of rank 0 may read from the collector.
"""

from __future__ import annotations

import json
import pathlib
import sys
import tempfile
from typing import Any

from torch._C._distributed_c10d import _register_handler
from torch.distributed.debug._debug_handlers import default_handlers
from torch.distributed.debug._frontend import DebugHandler, NavLink, Route, fetch_all

from rankprobe._command import CommandFailed, ask, text_of
from rankprobe.integrations.debug_mode import debug_string

_TEMPLATE = """
{% extends "base.html" %}
{% block header %}<h1>{% block title %}rankprobe{% endblock %}</h1>{% endblock %}
{% block content %}
<p><a href="/rankprobe/diagnose">diagnose</a></p>
<table border="1" cellpadding="6">
<tr><th>rank</th><th>run</th><th>step</th><th>state</th><th>collector</th></tr>
{% for one in ranks %}<tr><td><a href="/rankprobe?rank={{ one.number }}">{{ one.number }}</a></td><td>{{ one.run | e }}</td>
<td>{{ one.step }}</td><td>{{ one.state | e }}</td><td>{{ one.collector | e }}</td></tr>
{% endfor %}</table>
<h2>{{ what | e }}</h2>
<pre>{{ calls | e }}</pre>
{% endblock %}
"""


def _state() -> dict[str, Any]:
    """Returns the state of this process."""
    module = sys.modules.get("rankprobe.pytorch.debugger")
    debugger = None if module is None else module.PrecisionDebugger._instance
    if debugger is None or debugger._inert:
        return {"run": "", "collector": "", "step": 0, "state": "not recorded"}
    return {"run": debugger._session.run, "collector": debugger._session.address, "step": debugger._steps.current,
            "state": "recording" if debugger._switch.enabled else "idle"}


def _answer(_: Any, response: Any) -> None:
    response.set_content(json.dumps(_state()), "application/json")
    response.set_status(200)


class Tab(DebugHandler):  # type: ignore[misc,unused-ignore]
    def routes(self) -> list[Any]:
        return [Route("/rankprobe", self._page), Route("/rankprobe/diagnose", self._diagnose)]

    def nav_links(self) -> list[Any]:
        return [NavLink("/rankprobe", "rankprobe")]

    def templates(self) -> dict[str, str]:
        return {"rankprobe.html": _TEMPLATE}

    def dump_filename(self) -> str:
        return "rankprobe"

    def dump(self) -> str:
        return "\n".join("rank {number}: {state} run {run!r} step {step} collector {collector}".format(**one) for one in self._ranks())

    def _ranks(self) -> list[dict[str, Any]]:
        _, responses = fetch_all("rankprobe", timeout=self.fetch_timeout)
        return [{"number": number, **(response.json() if response.status_code == 200 else
                                      {"run": "", "collector": "", "step": "", "state": f"does not answer: {response.text}"})}
                for number, response in enumerate(responses)]

    def _page(self, request: Any) -> Any:
        ranks = self._ranks()
        number, step = request.get_query_arg("rank", 0, int), request.get_query_arg("step", None, int)
        chosen = ranks[number] if 0 <= number < len(ranks) else {"run": "", "collector": "", "number": number}
        try:
            what, calls = _calls(chosen, step)
        except (CommandFailed, OSError, ValueError, LookupError) as error:
            what, calls = f"No calls of rank {number}", str(error)
        return request.frontend.render_template("rankprobe.html", ranks=ranks, what=what, calls=calls)

    def _diagnose(self, _: Any) -> bytes:
        for one in self._ranks():
            if one["run"]:
                return text_of(["diagnose", f"run:{one['run']}", "--html", "-"], collector=one["collector"])[0].encode()
        return b"No rank is recorded."


def _calls(rank: dict[str, Any], step: int | None) -> tuple[str, str]:
    """Returns a headline and the calls of a step; for None, those of the newest complete step. Raises CommandFailed and OSError."""
    if not rank["run"]:
        return "Nothing is recorded here", "rankprobe run, PrecisionDebugger or a callback records a training."
    run, collector = rank["run"], rank["collector"]
    if step is None:
        there = ask(["status", "--run", run, "--steps"], collector=collector)[0][0]["steps"]
        mine = [one["step"] for one in there if one["complete"] and one["rank"] in (rank["number"], None)]
        if not mine:
            return "No step is complete", f"Switch recording on: rankprobe enable --run {run} --collector {collector}"
        step = max(mine)
    with tempfile.TemporaryDirectory() as scratch:
        text_of(["export", "--run", run, "--steps", str(step), "-o", scratch], collector=collector)
        places = sorted(pathlib.Path(scratch).glob(f"step{step}/*/dump.json"))
        wanted = [place for place in places if place.parent.name == f"rank{rank['number']}"] or places
        return f"Step {step}, {wanted[0].parent.name}", debug_string(wanted[0].parent)


def handlers() -> list[Any]:
    """Returns the default handlers of the debug server and a Tab."""
    return [*default_handlers(), Tab()]


_register_handler("rankprobe", _answer)

__all__ = ["Tab", "handlers"]
