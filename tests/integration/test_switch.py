# SPDX-License-Identifier: Apache-2.0
"""Switching a live job from outside: same step on every rank, whole steps."""

import harness


def test_enable_for_three_steps_shows_in_every_rank(collector, start_job, tmp_path):
    job = start_job("switch", collector.address, harness.config(), world_size=4)
    job.wait_steps(5)
    job.wait_known(collector)
    answer = collector.json("enable", "--run", "switch", "--for-steps", "3")
    assert answer["summary"] == f"4/4 ranks at step {answer['effective_at_step']}"
    assert {r["applied_step"] for r in answer["ranks"]} == {answer["effective_at_step"]}
    job.wait_steps(6)
    assert job.finish() == [0, 0, 0, 0]

    out = tmp_path / "dump"
    collector.cli("export", "--run", "switch", "-o", out)
    first = answer["effective_at_step"]
    everyone = {"rank0", "rank1", "rank2", "rank3"}
    assert harness.tree_ranks(out) == {s: everyone for s in range(first, first + 3)}
    names = [list(harness.load_dump(out / f"step{first}" / f"rank{r}")["data"]) for r in range(4)]
    assert names[0] and all(n == names[0] for n in names), "data-parallel ranks make the same calls"
    # What the ranks said of themselves agrees with what was stored.
    for rank in job.ranks:
        assert [s["step"] for s in rank.steps() if s["dumping"]] == list(range(first, first + 3))


def test_tensors_of_chosen_ranks_open_with_torch(collector, start_job, tmp_path):
    torch = __import__("pytest").importorskip("torch")
    job = start_job("tensors", collector.address, harness.config())
    job.wait_steps(3)
    job.wait_known(collector)
    cfg = tmp_path / "tensor.json"
    cfg.write_text(__import__("json").dumps(harness.config("tensor", "L0", section={"list": ["attn"]})))
    answer = collector.json("enable", "--run", "tensors", "--config", cfg, "--ranks", "1", "--for-steps", "2")
    job.wait_steps(5)
    job.finish()
    out = tmp_path / "dump"
    collector.cli("export", "--run", "tensors", "-o", out)
    first = answer["effective_at_step"]
    assert harness.tree_ranks(out) == {first: {"rank1"}, first + 1: {"rank1"}}
    opened = 0
    for step in out.glob("step*/rank1"):
        named = set()

        def collect(node):
            if isinstance(node, dict):
                if "data_name" in node:
                    tensor = torch.load(step / "dump_tensor_data" / node["data_name"], weights_only=True)
                    assert list(tensor.shape) == node["shape"] and str(tensor.dtype) == node["dtype"]
                    if tensor.numel() and tensor.is_floating_point():
                        assert tensor.max().item() == node["Max"] and tensor.min().item() == node["Min"]
                    named.add(node["data_name"])
                for value in node.values():
                    collect(value)
            elif isinstance(node, list):
                for value in node:
                    collect(value)

        collect(harness.load_dump(step)["data"])
        assert named == {p.name for p in (step / "dump_tensor_data").iterdir()}
        opened += len(named)
    assert opened > 0


def test_disable_ends_an_open_switch(collector, start_job, tmp_path):
    job = start_job("disable", collector.address, harness.config(level="L0"))
    job.wait_steps(3)
    job.wait_known(collector)
    on = collector.json("enable", "--run", "disable")
    job.wait_steps(3)
    off = collector.json("disable", "--run", "disable")
    assert off["effective_at_step"] > on["effective_at_step"]
    job.wait_steps(3)
    job.finish()
    out = tmp_path / "dump"
    collector.cli("export", "--run", "disable", "-o", out)
    assert sorted(harness.tree_ranks(out)) == list(range(on["effective_at_step"], off["effective_at_step"]))
    # Of a run that has ended nothing is recorded, and the exit code says so.
    ended = harness.wait_for(lambda: (got := collector.cli("enable", "--run", "disable", check=False)).returncode == 1 and got, 30,
                             "the end of the run's connection")
    assert "nothing is recorded now: no rank of run disable is connected" in ended.stderr
    assert collector.cli("enable", "--run", "disable", "--create").returncode == 0


def test_a_bad_config_changes_nothing_and_names_every_fault(collector, start_job, tmp_path):
    job = start_job("badcfg", collector.address, harness.config())
    job.wait_steps(2)
    job.wait_known(collector)
    cfg = tmp_path / "bad.json"
    cfg.write_text('{"task": "bogus", "level": "L9", "rank": [-1]}')
    before = collector.json("config", "get", "--run", "badcfg")
    result = collector.cli("enable", "--run", "badcfg", "--config", cfg, check=False)
    assert result.returncode == 2
    for word in ("task", "bogus", "level", "L9", "rank", "-1"):
        assert word in result.stderr, result.stderr
    assert collector.json("config", "get", "--run", "badcfg") == before
    job.finish()


def test_extra_statistics_of_a_cpp_job_are_those_of_its_tensors(collector, start_job, tmp_path):
    torch = __import__("pytest").importorskip("torch")
    job = start_job("extra", collector.address, harness.config())
    job.wait_steps(3)
    job.wait_known(collector)
    cfg = tmp_path / "extra.json"
    cfg.write_text(__import__("json").dumps(harness.config(
        "tensor", "L1", section={"list": ["softmax", "relu", "gelu"], "extra_statistics": ["counts", "std"]})))
    answer = collector.json("enable", "--run", "extra", "--config", cfg, "--for-steps", "1")
    job.wait_steps(3)
    job.finish()
    out = tmp_path / "dump"
    collector.cli("export", "--run", "extra", "-o", out)
    checked = 0
    for step in out.glob(f"step{answer['effective_at_step']}/rank*"):
        dump = harness.load_dump(step)
        assert dump["extra_statistics"] == ["NanCount", "InfCount", "ZeroCount", "Std"]
        for call in dump["data"].values():
            for item in call.get("output", []):
                if not item or "data_name" not in item:
                    continue
                tensor = torch.load(step / "dump_tensor_data" / item["data_name"], weights_only=True)
                assert item["NanCount"] == torch.isnan(tensor).sum().item()
                assert item["InfCount"] == torch.isinf(tensor).sum().item()
                assert item["ZeroCount"] == (tensor == 0).sum().item()
                std = tensor.double().std(unbiased=False).item()
                assert abs(item["Std"] - std) <= 1e-6 * std
                checked += 1
    assert checked > 0
