# SPDX-License-Identifier: Apache-2.0
"""rankprobe.open in a notebook: a run of a collector, of a data directory, and a dump; and the page of diagnose."""

from __future__ import annotations

import html.parser
import pathlib
import re
import subprocess

import numpy
import pytest

import harness
import rankprobe

pandas = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")


def record(collector: harness.Collector, run: str, bad: int = 7) -> None:
    """Two calls a step; from step `bad` on the first makes a NaN."""
    session = rankprobe.Session(collector.address, run=run, rank=0, config_json='{"dump_path": "d"}')
    session.wait_connected(60)
    for step in range(10):
        session.start()
        made = numpy.full(4, numpy.nan if step >= bad else 1.0 + step, "f")
        session.call("Torch", "log", [numpy.ones(4, "f")], [made])
        session.call("Torch", "relu", [made], [made])
        session.stop()
        session.step()
    session.close()


@pytest.fixture
def run(collector) -> harness.Collector:
    record(collector, "a<b>")
    return collector


def test_a_run_of_a_collector(run) -> None:
    opened = rankprobe.open("run:a<b>", collector=run.address)
    frame = opened.frame("Torch.log*")
    assert isinstance(frame, pandas.DataFrame) and len(frame) == 20 and set(frame["position"]) == {"input.0", "output.0"}
    assert opened.table(of="outputs").num_rows == 20
    assert opened.info["steps"] == 10 and "run a<b>" in repr(opened)
    shown = opened._repr_html_()
    assert "a&lt;b&gt;" in shown and "<td style='text-align:left'>10</td>" in shown and "a<b>" not in shown


def test_a_plot_in_one_line(run) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    axes = rankprobe.open("a<b>", collector=run.address).plot(of="outputs")
    first, crosses, second, _ = axes.get_lines()
    assert first.get_label() == "Torch.log.0.forward.output.0 rank 0" and second.get_label() == "Torch.relu.0.forward.output.0 rank 0"
    assert first.get_ydata()[:7].tolist() == [2.0 * (1 + step) for step in range(7)] and numpy.isnan(first.get_ydata()[7:]).all()
    assert crosses.get_xdata().tolist() == [7, 8, 9], "the steps that are not finite"
    assert axes.get_title() == "a<b>: 2 of 2 values" and axes.get_ylabel() == "Norm"
    assert len(rankprobe.open("a<b>", collector=run.address).plot("relu", "Max", most=1, ax=axes).get_lines()) == 6
    with pytest.raises(ValueError, match="Median is not a statistic; there are Max, Min"):
        rankprobe.open("a<b>", collector=run.address).plot(statistic="Median")
    with pytest.raises(LookupError, match="nosuchcall"):
        rankprobe.open("a<b>", collector=run.address).plot("nosuchcall")


def test_the_answer_of_diagnose(run, tmp_path) -> None:
    answer = rankprobe.open("a<b>", collector=run.address).diagnose()
    first = answer.findings.iloc[0]
    assert (first["step"], first["sure"]) == (7, "exact") and first["command"].startswith("rankprobe ")
    assert repr(answer).startswith("step 7 rank 0: ") and len(answer.unjudged) > 0
    shown = answer._repr_html_()
    assert shown.startswith('<iframe sandbox srcdoc="&lt;!doctype html&gt;') and "<script" not in shown and shown.count("<") == 2
    answer.save(tmp_path / "answer.html")
    assert (tmp_path / "answer.html").read_text() == answer.html
    record(run, "sound", bad=99)
    beside = rankprobe.open("a<b>", collector=run.address).diagnose("run:sound")
    assert (beside.findings["by"] == "first-divergence").any()


def test_a_data_directory(run) -> None:
    assert run.stop() == 0
    opened = rankprobe.open(run.data_dir)
    assert opened.run == "a<b>" and len(opened.frame()) == 40 and opened.diagnose().findings.iloc[0]["step"] == 7
    with pytest.raises(LookupError, match="there is no run other; there are a<b>"):
        rankprobe.open(run.data_dir, run="other")
    with pytest.raises(ValueError, match="not both"):
        rankprobe.open(run.data_dir, collector="127.0.0.1:9")
    run.start()
    record(run, "second")
    assert run.stop() == 0
    with pytest.raises(LookupError, match=r"which run\? run=NAME; there are "):
        rankprobe.open(run.data_dir)
    assert len(rankprobe.open(run.data_dir, run="second").frame("relu")) == 20
    run.start()


def test_a_dump(run, tmp_path) -> None:
    run.cli("export", "--run", "a<b>", "-o", tmp_path / "dump")
    opened = rankprobe.open(tmp_path / "dump")
    first = opened.diagnose().findings.iloc[0]
    assert first["name"] == "Torch.log.0.forward" and first["command"] == f"rankprobe overflow_check {tmp_path}/dump/step7"
    assert subprocess.run(f"{harness.BIN}/{first['command']}", shell=True, capture_output=True, text=True, cwd=tmp_path).returncode in (0, 1)
    with pytest.raises(ValueError, match="is a dump: it has no table"):
        opened.frame()
    assert "diagnose()" in opened._repr_html_() and "frame()" not in opened._repr_html_()


@pytest.mark.parametrize("source, error, said", [
    ("nosuchrun", LookupError, "there is no run nosuchrun"), ("run:nosuchrun", LookupError, "nosuchrun"), ("no/such", LookupError, "there is no run no/such"),
    ("./no/such", ValueError, "is not a directory"), (__file__, ValueError, "is not a directory")])
def test_what_is_not_there(run, source: str, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        rankprobe.open(source, collector=run.address)


def test_a_collector_that_is_not_there() -> None:
    with pytest.raises(ConnectionError):
        rankprobe.open("r", collector="127.0.0.1:9")


def test_what_the_page_of_notebooks_types(run, tmp_path, monkeypatch) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    text = (harness.ROOT / "docs/notebooks.md").read_text()
    (block,) = re.findall(r"<!-- run -->\n```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(text.splitlines()) <= 30 and "rankprobe.open" in block
    record(run, "train")
    monkeypatch.setenv("RANKPROBE_COLLECTOR", run.address)
    monkeypatch.chdir(tmp_path)
    names = {}
    # What is typed names parameters and a loss, which this run does not have.
    exec(block.replace("*.parameters_grad.*", "Torch*").replace("Training*", "Torch*"), names)
    assert len(names["frame"]) == 40 and len(names["answer"].findings) and "</html>" in (tmp_path / "train.html").read_text()


class Page(html.parser.HTMLParser):
    """Elements, what they refer to, and those that are not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.references: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attributes: list) -> None:
        self.elements.append(tag)
        self.references += [value for name, value in attributes if name in ("src", "href", "srcset", "action", "data", "background")]
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop() != tag:
            pass


def test_the_page_needs_no_server_and_suits_screens_and_paper(run, tmp_path) -> None:
    place = tmp_path / "answer.html"
    done = run.cli("diagnose", "run:a<b>", "--html", place, check=False)
    assert done.returncode == 1 and done.stdout.startswith("First: step 7")
    text = place.read_text()
    page = Page()
    page.feed(text)
    assert page.references == [] and not {"script", "link", "img", "iframe"} & set(page.elements) and page.open == []
    assert "url(" not in text and "@import" not in text and "Content-Security-Policy" in text and len(text) < 1_000_000
    assert "prefers-color-scheme: dark" in text and "@media print" in text and "break-inside: avoid" in text
    findings = re.findall(r"<article.*?</article>", text, re.DOTALL)
    assert findings and all('<p class="command"><code>rankprobe ' in finding for finding in findings)
    assert "a&lt;b&gt;" in text and "a<b>" not in text
    # The commands print what the page says.
    command = re.search(r'<p class="command"><code>(rankprobe query .*?)</code>', text)
    assert command is not None
    asked = html.unescape(command[1]).replace("rankprobe ", f"{harness.BIN}/rankprobe --collector {run.address} ", 1)
    said = subprocess.run(asked, shell=True, capture_output=True, text=True, timeout=60)
    assert said.returncode in (0, 1) and "nan" in said.stdout.lower(), asked + said.stdout + said.stderr


def test_the_page_on_standard_output(run) -> None:
    out = run.cli("diagnose", "run:a<b>", "--html", "-", check=False).stdout
    assert out.startswith("<!doctype html>") and out.endswith("</html>\n")
    both = run.cli("--json", "diagnose", "run:a<b>", "--html", "-", check=False)
    assert both.returncode == 2 and "both want standard output" in both.stderr
    nowhere = run.cli("diagnose", "run:a<b>", "--html", "/nosuch/x.html", check=False)
    assert nowhere.returncode == 2 and "/nosuch/x.html" in nowhere.stderr


def test_events_after_an_id(run) -> None:
    events = run.json("events", "--run", "a<b>")["events"]
    later = run.json("events", "--run", "a<b>", "--after", events[0]["id"])["events"]
    assert len(events) > 1 and later == events[1:]
    assert pathlib.Path(run.data_dir).is_dir()
