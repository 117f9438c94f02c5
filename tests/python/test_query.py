# SPDX-License-Identifier: Apache-2.0
"""rankprobe query over the steps of two real ranks, one of which turns a gradient into NaN at a known step."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import subprocess
import sys
import textwrap
import time

import harness
import pytest

torch = pytest.importorskip("torch")

STEPS, BAD = 12, 7
SCRIPT = textwrap.dedent("""
    import os, sys, torch
    from rankprobe.pytorch import PrecisionDebugger
    steps, bad, rank = int(sys.argv[2]), int(sys.argv[3]), int(os.environ["RANK"])
    debugger = PrecisionDebugger(config_path=sys.argv[1])
    torch.manual_seed(rank)
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    for step in range(steps):
        debugger.start(model=net)
        x = torch.full((2, 4), 1.0 + step)
        if rank == 1 and step >= bad:
            x[0, 0] = float("nan")
        net(x).sum().backward()
        debugger.stop()
        debugger.step()
""")


@pytest.fixture
def recorded(dump, collector):
    config = dump.config(level="mix")
    ranks = [subprocess.Popen([sys.executable, "-c", SCRIPT, config, str(STEPS), str(BAD)],
                              env={**os.environ, "RANKPROBE_COLLECTOR": collector.address, "RANKPROBE_RUN": "time",
                                   "RANK": str(rank), "WORLD_SIZE": "2"}, stderr=subprocess.PIPE, text=True)
             for rank in range(2)]
    for rank in ranks:
        _, said = rank.communicate(timeout=180)
        assert rank.returncode == 0, said
    return collector


def rows(text: str) -> tuple[dict, dict[str, dict]]:
    lines = [json.loads(line) for line in text.splitlines()]
    return lines[0], {line["name"]: line for line in lines[1:]}


def exported(collector, dump, step: int, rank: int) -> dict:
    out = dump.path / "query"
    collector.cli("export", "--run", "time", "--steps", str(step), "-o", str(out))
    return json.loads((out / f"step{step}" / f"rank{rank}" / "dump.json").read_text())["data"]


def test_the_grid_says_what_the_dump_says(recorded, dump) -> None:
    head, grid = rows(recorded.cli("query", "--run", "time", "--ranks", "0", "--json").stdout)
    assert [int(s) for s in head["first_steps"]] == list(range(STEPS))
    assert int(head["rank_steps"]) == STEPS and int(head["incomplete_rank_steps"]) == 0
    data = exported(recorded, dump, 5, 0)
    seen = 0
    for entry, call in data.items():
        tensors = {f"{entry}.output.{i}": value for i, value in enumerate(call.get("output", []))}
        if ".parameters_grad" in entry:
            tensors = {f"{entry}.{name}": value[0] for name, value in call.items()}
        for name, value in tensors.items():
            if value is None or value.get("Norm") is None:
                assert name not in grid or not grid[name]["counts"][5]
                continue
            assert grid[name]["cells"][5] == value["Norm"], name
            seen += 1
    assert seen == len(grid) >= 10


def test_which_rank_went_bad_first(recorded) -> None:
    text = recorded.cli("query", "--run", "time", "--rows", "rank").stdout
    table = {line.split()[0]: line.split() for line in text.splitlines() if line.startswith("rank")}
    assert table["rank0"][4:6] == ["0", "-"]
    assert int(table["rank1"][4]) > 0 and table["rank1"][5] == str(BAD)
    assert table["rank1"][6].endswith("!" * (STEPS - BAD)) and "!" not in table["rank0"][6]
    # The module, and the rank beside the number.
    head, grid = rows(recorded.cli("query", "--run", "time", "--rows", "module", "--json", "*.forward*.output.0").stdout)
    first = grid["Module.0.Linear"]
    assert math.isnan(float(first["cells"][BAD])) and int(first["ranks"][BAD]) == 1
    assert not any(first["non_finite"][:BAD])


def test_heat_shades_rows_on_one_scale(recorded) -> None:
    lines = recorded.cli("query", "--run", "time", "--rows", "rank", "--heat").stdout.splitlines()
    table = {line.split()[0]: line.split(None, 6)[6] for line in lines if line.startswith("rank")}
    assert set(table["rank0"]) <= set("\u00b7\u2591\u2592\u2593\u2588") and len(table["rank0"]) == STEPS
    assert table["rank1"].endswith("!" * (STEPS - BAD))
    numbers = csv.reader(io.StringIO(recorded.cli("query", "--run", "time", "--rows", "rank", "--csv").stdout))
    pairs = sorted((float(number), "\u00b7\u2591\u2592\u2593\u2588".index(table[name][step])) for name, *row in list(numbers)[1:]
                   for step, number in enumerate(row) if math.isfinite(float(number)))
    shades = [shade for _, shade in pairs]
    assert shades == sorted(shades) and shades[0] == 0 and shades[-1] == 4, "a larger number, of whichever rank, is no lighter"
    low, high = next(line for line in lines if "shades from" in line).partition("shades from ")[2].partition(",")[0].split(" to ")
    assert 0 < float(low) < float(high)


def test_csv_and_choices(recorded) -> None:
    text = recorded.cli("query", "--run", "time", "*.parameters_grad*.weight", "--csv", "--from-step", "2", "--to-step", "4",
                        "--ranks", "0", "--statistic", "max", "--reduce", "min").stdout
    table = list(csv.reader(io.StringIO(text)))
    assert table[0] == ["name", "2", "3", "4"]
    assert {row[0] for row in table[1:]} == {f"Module.{i}.Linear.parameters_grad.0.weight" for i in (0, 2)}
    assert all(float(cell) for row in table[1:] for cell in row[1:])
    inputs = recorded.cli("query", "--run", "time", "--of", "inputs", "--limit", "1").stdout
    assert ".input.0" in inputs and "more rows" in inputs and ".output." not in inputs
    for over_ranks in ([], ["--over-ranks"]):
        nothing = recorded.cli("query", "--run", "time", "nosuch", *over_ranks, check=False)
        assert nothing.returncode == 4 and "no tensor matches in 12 recorded steps" in nothing.stdout


@pytest.mark.parametrize(("arguments", "code", "said"), [
    (["--run", "nobody"], 4, "nobody"),
    (["--run", "time", "--statistic", "Nrom"], 2, 'no statistic "Nrom"; there are Max, Min'),
    (["--run", "time", "--from-step", "4", "--to-step", "2"], 2, "the first step is behind"),
    (["--run", "time", "--rows", "layer"], 2, "--rows"),
    (["--run", "time", "--from-step", "-1"], 2, "--from-step"),
    (["--run", "time", "x" * 5000], 2, "at most 4,096 bytes"),
    (["--run", "time", "--heat", "--csv"], 2, "--heat excludes --csv"),
    (["--run", "time", "--heat", "--json"], 2, "--json excludes --heat"),
    (["--run", "time", "--csv", "--json"], 2, "--json excludes --csv"),
    (["--run", "time", "--heat", "--over-ranks"], 2, "--heat excludes --over-ranks"),
    *((["--run", "time", "--names", *word.split()], 2, f"{word.split()[0]} excludes --names")
      for word in ("--statistic Max", "--reduce min", "--from-step 1", "--to-step 1", "--ranks 0", "--heat", "--over-ranks")),
])
def test_bad_questions(collector, arguments, code, said) -> None:
    result = collector.cli("query", *arguments, check=False)
    assert result.returncode == code and said in result.stderr, result
    assert len(result.stderr.splitlines()) <= 3 and not result.stdout


def test_steps_that_are_not_whole_are_named(recorded) -> None:
    recorded.cli("delete", "--run", "time", "--steps", "3")
    result = recorded.cli("query", "--run", "time", "--rows", "rank", check=False)
    assert result.returncode == 1
    assert "0 are incomplete, 2 more were deleted" in result.stdout


def test_how_ranks_differ(recorded) -> None:
    """Each number is one of a rank's, and the rank that went bad is the one astray."""
    head, series = rows(recorded.cli("query", "--run", "time", "--over-ranks", "--json", "Module.0.Linear.forward*").stdout)
    _, of_ranks = rows(recorded.cli("query", "--run", "time", "--ranks", "0", "--json", "Module.0.Linear.forward*").stdout)
    row = series["Module.0.Linear.forward.0.output.0"]
    assert [int(s) for s in head["first_steps"]] == list(range(STEPS))
    for step in range(STEPS):
        numbers = {row[of]["cells"][step] for of in ("smallest", "largest")}
        if step < BAD:
            assert of_ranks["Module.0.Linear.forward.0.output.0"]["cells"][step] in numbers
            assert {int(row[of]["ranks"][step]) for of in ("smallest", "largest")} == {0, 1}
            assert math.isclose(row["median"]["cells"][step], sum(numbers) / 2)
        else:
            assert int(row["deviation"]["ranks"][step]) == 1 and math.isinf(float(row["deviation"]["cells"][step]))
    text = recorded.cli("query", "--run", "time", "--over-ranks", "--rows", "module", "*.forward*.output.0").stdout
    line = next(line.split() for line in text.splitlines() if line.startswith("Module.0.Linear"))
    assert line[5:8] == ["inf", "1", str(BAD)], text
    table = list(csv.reader(io.StringIO(recorded.cli("query", "--run", "time", "--over-ranks", "--csv", "Module.0.*").stdout)))
    assert table[0][:4] == ["name", "steps", "smallest", "smallest_rank"] and (len(table) - 1) % STEPS == 0
    refused = recorded.cli("query", "--run", "time", "--over-ranks", "--rows", "rank", check=False)
    assert refused.returncode == 2 and "over ranks" in refused.stderr


def test_names_are_listed(recorded) -> None:
    deadline = time.monotonic() + 60
    while "not rolled up" in (text := recorded.cli("query", "--run", "time", "--names", "--rows", "module").stdout):
        assert time.monotonic() < deadline
    names = {line.split()[0] for line in text.splitlines()[1:]}
    assert {"Module.0.Linear", "Module.1.ReLU", "Module.2.Linear"} <= names
    one = recorded.cli("query", "--run", "time", "--names", "--limit", "1").stdout
    assert "more names" in one and len(one.splitlines()) == 3
    assert "name,values" in recorded.cli("query", "--run", "time", "--names", "--csv", "nosuch").stdout


MANY = textwrap.dedent("""
    import sys, torch
    from rankprobe.pytorch import PrecisionDebugger
    debugger = PrecisionDebugger(config_path=sys.argv[1])
    x = torch.ones(2)
    for step in range(2):
        debugger.start()
        for _ in range(70):
            torch.relu(x)
        torch.eq(x, x)
        debugger.stop()
        debugger.step()
""")


def test_only_tables_have_a_limit_of_their_own(collector, dump) -> None:
    """Programs get all; what is cut or not there yet is said in every form."""
    done = subprocess.run([sys.executable, "-c", MANY, dump.config(level="L1")], timeout=120, capture_output=True, text=True,
                          env={**os.environ, "RANKPROBE_COLLECTOR": collector.address, "RANKPROBE_RUN": "many", "RANK": "0"})
    assert done.returncode == 0, done.stderr

    def ask(*words: str) -> tuple[list[str], str]:
        answer = collector.cli("query", "--run", "many", *words)
        return answer.stdout.splitlines(), answer.stderr

    deadline = time.monotonic() + 60
    while "not rolled up" in ask("--names", "--json")[1]:
        assert time.monotonic() < deadline
    for words, more in ((["--names"], "more names"), ([], "more rows"), (["--over-ranks"], "more rows")):
        table, _ = ask("relu", *words)
        assert sum(line.startswith("Torch.relu") for line in table) == 50 and any(more in line for line in table), words
        for form in ("--csv", "--json"):
            lines, said = ask("relu", *words, form)
            data = [line for line in lines if "Torch.relu" in line]
            assert len({line.split(",")[0] for line in data}) == 70 and said == "", (words, form)
            lines, said = ask("relu", *words, form, "--limit", "3")
            data = [line for line in lines if "Torch.relu" in line]
            assert len({line.split(",")[0] for line in data}) == 3 and more in said, (words, form)
    for words in ([], ["--over-ranks"]):
        assert "without Norm: 2 of 142 tensors" in ask(*words)[0], words


def test_a_step_that_never_ends_is_rolled_up(collector, dump) -> None:
    """A rank that died within a step: when nothing came for a while the archive waits no longer for its end."""
    script = SCRIPT.replace("    debugger.stop()", "    if step == 3:\n        for _ in range(5000): torch.relu(x)\n"
                            "        sys.stdin.read()\n    debugger.stop()")
    assert script != SCRIPT
    rank = subprocess.Popen([sys.executable, "-c", script, dump.config(level="mix"), "9", "9"], stdin=subprocess.PIPE,
                            env={**os.environ, "RANKPROBE_COLLECTOR": collector.address, "RANKPROBE_RUN": "died", "RANK": "0"})

    def counts() -> tuple[int, int]:
        done = collector.cli("query", "--run", "died", "--json", check=False)
        head = rows(done.stdout)[0] if done.stdout else {}
        return int(head.get("rolled_up_rank_steps", 0)), int(head.get("rank_steps", 0))

    def rolled_up(*wanted: int) -> None:
        harness.wait_for(lambda: counts() in [(one, 4) for one in wanted], 60, lambda: f"{wanted} of 4 rolled up: {counts()}")

    # A busy machine may take so long for these questions that the last one is, too: nothing comes while the rank waits.
    rolled_up(3, 4)
    for form in ([], ["--csv"], ["--json"]):
        names = collector.cli("query", "--run", "died", "--names", "--limit", "1", *form)
        notes = names.stderr if form else names.stdout
        assert "more names" in notes and ("not rolled up yet: 1 rank-step, " in notes or counts() == (4, 4)), names
    rank.kill()
    rank.wait()
    before = collector.cli("query", "--run", "died", "--of", "all", "--json", check=False).stdout.splitlines()[1:]
    rolled_up(4)
    assert collector.cli("query", "--run", "died", "--of", "all", "--json", check=False).stdout.splitlines()[1:] == before


def test_rollups_survive_a_collector_that_is_killed(recorded) -> None:
    """What waits when it dies is rolled up by the next one; the answers stay."""
    before = rows(recorded.cli("query", "--run", "time", "--of", "all", "--json").stdout)
    recorded.kill()
    recorded.start()
    deadline = time.monotonic() + 60
    while True:
        head, grid = rows(recorded.cli("query", "--run", "time", "--of", "all", "--json").stdout)
        assert grid == before[1]
        if int(head.get("rolled_up_rank_steps", 0)) == 2 * STEPS:
            break
        assert time.monotonic() < deadline, head
    data = recorded.cli("query", "--run", "time", "--of", "all", "--json", "--ranks", "1", "--from-step", str(BAD)).stdout
    assert int(rows(data)[0]["rolled_up_rank_steps"]) == STEPS - BAD


def test_a_rank_of_a_run_has_a_number(recorded) -> None:
    for verb, *words in (("overflow_check", "-i", "run:time@7/rank"), ("config_check", "run:time@7/rank", "run:time@7/rank0")):
        refused = recorded.cli(verb, *words, check=False)
        assert refused.returncode == 2 and "run:time@7/rank: which rank?" in refused.stderr, (refused.returncode, refused.stderr)
