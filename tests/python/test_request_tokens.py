# SPDX-License-Identifier: Apache-2.0
"""The flight recorder of a server's requests where there is no vLLM: numbers of its logits, rules, flags, and what is in the archive.

With vLLM: tests/serving/test_request_tokens.py.
"""

from __future__ import annotations

import json
import pathlib
import re
import types

import harness
import pytest
import torch

from rankprobe.vllm._steps import Steps
from rankprobe.vllm._tokens import Numbers, TokenWatch, why_not_watched

VOCABULARY = 50


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_numbers_are_those_of_a_softmax(dtype: torch.dtype) -> None:
    logits = (torch.randn(4, VOCABULARY, generator=torch.Generator().manual_seed(3)) * 5).to(dtype)
    logits[1, 7:] = -torch.inf  # as a grammar masks what must not follow
    given, state = logits.clone(), torch.random.get_rng_state()
    numbers = Numbers(logits)
    assert torch.equal(logits, given)
    logits.zero_()  # as a sampler may
    sampled = torch.tensor([[3], [4], [49], [0]], dtype=torch.int32)
    expected = torch.log_softmax(given.double(), -1)
    entropies = -(expected.exp() * expected).nan_to_num(0).sum(-1)
    for row, (token, logprob, entropy) in enumerate(numbers.of(sampled)):
        assert token == sampled[row].item()
        assert logprob == pytest.approx(expected[row, token].item(), abs=1e-4)
        assert entropy == pytest.approx(entropies[row].item(), abs=1e-4)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_what_is_no_number_is_nan_and_its_neighbours_are_not() -> None:
    logits = torch.randn(3, VOCABULARY)
    logits[1, 5] = torch.nan
    (_, *sound), (token, *broken), (_, *other) = Numbers(logits).of(torch.tensor([1, VOCABULARY + 7, 2]))
    assert token == VOCABULARY + 7 and all(number != number for number in broken)
    assert all(number == number for number in sound + other)
    logits[1] = torch.inf
    assert all(number != number for number in Numbers(logits).of(torch.tensor([1, 1, 1]))[1][1:])


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(VOCABULARY, 8), torch.nn.Linear(8, VOCABULARY)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(input_ids))


class Runner:
    """What is read of vLLM's runner: requests of one prompt each, and a greedy sampler that changes the logits."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.input_batch = types.SimpleNamespace(req_ids=[], num_computed_tokens_cpu=[], num_prompt_tokens=[])
        self.known: dict[str, list[int]] = {}

    def execute_model(self, scheduled: types.SimpleNamespace) -> None:
        ids = [token for request in self.input_batch.req_ids for token in self.known[request][-scheduled.num_scheduled_tokens[request]:]]
        self.hidden = self.model(torch.tensor(ids))

    def sample_tokens(self) -> torch.Tensor:
        return self._sample(self.hidden[self.last], None).sampled_token_ids

    def _sample(self, logits: torch.Tensor, spec_decode_metadata: None) -> types.SimpleNamespace:
        sampled = logits.nan_to_num(0).argmax(-1, keepdim=True).to(torch.int32)
        logits.zero_()
        return types.SimpleNamespace(sampled_token_ids=sampled)

    @torch.no_grad()
    def serve(self, prompts: dict[str, list[int]]) -> None:
        """One batch: requests with a prompt begin, others go on. In the order of `prompts`."""
        batch = self.input_batch
        for request, prompt in prompts.items():
            self.known.setdefault(request, list(prompt))
        batch.req_ids = list(prompts)
        counts = {request: len(prompt) if len(self.known[request]) == len(prompt) else 1 for request, prompt in prompts.items()}
        batch.num_computed_tokens_cpu = [len(self.known[request]) - counts[request] for request in prompts]
        batch.num_prompt_tokens = [len(prompt) for prompt in prompts.values()]
        self.last = torch.tensor(list(counts.values())).cumsum(0) - 1
        self.execute_model(types.SimpleNamespace(num_scheduled_tokens=counts, total_num_scheduled_tokens=sum(counts.values()), finished_req_ids=set()))
        for request, token in zip(prompts, self.sample_tokens().view(-1).tolist()):
            self.known[request].append(token)


class Server:
    def __init__(self, dump, collector, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, triggers: dict) -> None:
        monkeypatch.setenv("RANKPROBE_COLLECTOR", collector.address)
        monkeypatch.setenv("RANKPROBE_RUN", "served")
        monkeypatch.setenv("RANK", "0")
        path = tmp_path / "triggers.json"
        path.write_text(json.dumps(triggers))
        collector.cli("triggers", "set", "--create", "--run", "served", path)
        torch.manual_seed(5)
        self.collector, self.said = collector, []
        self.debugger = dump.debugger(level="L0", dump_enable=False)
        self.runner = Runner(Model())
        self.watch = TokenWatch(self.runner, self.debugger)
        Steps(self.runner, self.runner.model, self.debugger, self.said.append, tokens=self.watch).install()

    def events(self, kind: str) -> list[dict]:
        return [event for event in self.collector.json("events", "--run", "served", "--limit", "1000")["events"] if event["kind"] == f"KIND_{kind}"]

    def exported(self, directory: pathlib.Path) -> dict[str, str]:
        """The facts about tokens of all steps."""
        self.collector.cli("export", "--run", "served", "-o", directory, check=False)
        cards = [json.loads(path.read_text()) for path in directory.glob("step*/rank0/run_card.json")]
        return {name: value for card in cards for name, value in card.get("tokens", {}).items()}


@pytest.fixture
def server(dump, collector, tmp_path, monkeypatch):
    def start(triggers: dict) -> Server:
        return Server(dump, collector, tmp_path, monkeypatch, triggers)

    return start


PROMPTS = {f"cmpl-r{number}-0-5e": [number, number + 1, number + 2] for number in range(16)}
NAN = {"name": "bad-token", "token_nan": {}, "raise_to": "EVIDENCE_NONE"}


@pytest.mark.parametrize("level", ["L0", "tokens"])
def test_a_fault_at_one_token_of_one_of_sixteen_requests_is_in_the_archive(server, collector, tmp_path, level: str) -> None:
    served = server({"flight": {"steps": 4, "level": level}, "rules": [NAN]})
    head = served.runner.model.head

    def plant(module: torch.nn.Module, args: tuple, output: torch.Tensor) -> torch.Tensor:
        if len(served.runner.known["cmpl-r5-0-5e"]) == 3 + 37:
            output[5] = torch.nan
        return output

    head.register_forward_hook(plant)
    for _ in range(40):
        served.runner.serve(PROMPTS)
    harness.wait_for(lambda: served.events("FLIGHT_SHIPPED"), 60, "the flight")
    served.debugger.close()
    assert served.said == []
    (fired,) = served.events("TRIGGER_FIRED")
    assert (fired["rule"], fired["entry"], int(fired["step"])) == ("bad-token", "cmpl-r5-0-5e", 37)
    assert fired["detail"] == "token 37: log probability NaN" and "flight recorder of 1 rank" in fired["outcome"]
    facts = served.exported(tmp_path / "out")
    assert {name.rpartition(" ")[0] for name in facts} == {"cmpl-r5-0-5e"}
    assert facts["cmpl-r5-0-5e why"] == "rule bad-token: token 37: log probability NaN"
    tokens = json.loads(facts["cmpl-r5-0-5e 000000"])
    assert [token[0] for token in tokens] == list(range(38)) == [token[4] for token in tokens]
    assert [token[1] for token in tokens] == served.runner.known["cmpl-r5-0-5e"][3:41]
    assert all(-8 < logprob <= 0 <= entropy < 8 for _, _, logprob, entropy, _ in tokens[:37]) and tokens[37][2] != tokens[37][2]
    calls = [json.loads(path.read_text())["data"] for path in (tmp_path / "out" / "step37" / "rank0").glob("d*.json")]
    assert any(calls) == (level == "L0"), calls
    found = collector.cli("diagnose", "run:served", "--request", "r5", check=False)
    assert found.returncode == 1 and "token 37: log probability NaN" in found.stdout, found.stdout + found.stderr


def test_an_ended_request_is_flagged_while_the_server_is_idle(server, collector, tmp_path) -> None:
    served = server({"flight": {"steps": 8, "level": "tokens", "tokens": 16, "requests": 3}})
    for _ in range(20):
        served.runner.serve({"cmpl-a-0-5e": [1, 2]})
    served.runner.serve({"cmpl-b-0-5f": [3]})
    flagged = collector.cli("flag", "--run", "served", "a")
    assert flagged.stdout == "rank 0, last at step 19: cmpl-a-0-5e: 16 tokens\n"
    harness.wait_for(lambda: served.events("FLIGHT_SHIPPED"), 60, "the flight")
    unknown = collector.cli("flag", "--run", "served", "z", check=False)
    assert unknown.returncode == 4 and "request z: no such request: 2 requests in memory, the newest are cmpl-b-0-5f" in unknown.stderr, unknown.stderr
    served.debugger.close()
    facts = served.exported(tmp_path / "out")
    assert [token[0] for token in json.loads(facts["cmpl-a-0-5e 000004"])] == list(range(4, 20))
    assert facts["cmpl-a-0-5e why"] == "flagged by a user"
    ledger = [json.loads(line) for line in collector.cli("ledger", "--run", "served", "--json", check=False).stdout.splitlines()]
    assert {(one["step"], one["state"]) for one in ledger if "step" in one} == {(step, "STATE_WHOLE") for step in range(13, 21)}, ledger
    sound = collector.cli("diagnose", "run:served", "--request", "cmpl-a", check=False)
    assert sound.returncode == 0 and "Log probability and entropy of tokens 4 to 19: flagged by a user" in sound.stdout, sound.stdout + sound.stderr


def test_an_answer_off_its_reference_is_named(server, collector, tmp_path) -> None:
    served = server({"flight": {"steps": 64, "level": "tokens", "tokens": 64}})

    def ask(request: str) -> None:
        for _ in range(12):
            served.runner.serve({request: [1, 2, 3]})

    def fired() -> dict[str, str]:
        return {event["entry"]: event["detail"] for event in served.events("TRIGGER_FIRED") if event["rule"] == "canary"}

    ask("cmpl-canary-0-5e")
    collector.cli("flag", "--run", "served", "canary")
    harness.wait_for(lambda: served.events("FLIGHT_SHIPPED"), 60, "the flight")
    path = tmp_path / "canary.json"

    def set_rule(request: str, *flags: str):
        rule = {"name": "canary", "token_reference": {"answers": [{"request": request}]}, "raise_to": "EVIDENCE_NONE", "cool_down_ms": 1, "max_fires": 1000}
        path.write_text(json.dumps({"flight": {"steps": 64, "level": "tokens", "tokens": 64}, "rules": [rule]}))
        return collector.cli("triggers", "set", "--run", "served", path, *flags, check=False)

    refused = set_rule("canary")
    assert refused.returncode == 2 and "answers[0].ids" in refused.stderr and "--reference DUMP" in refused.stderr, refused.stderr
    unknown = set_rule("other", "--reference", "run:served")
    assert unknown.returncode == 4 and 'no tokens of request "other"' in unknown.stderr and "rankprobe flag other" in unknown.stderr, unknown.stderr
    assert set_rule("canary", "--reference", "run:served").returncode == 0
    (rule,) = json.loads(collector.cli("triggers", "get", "--run", "served").stdout)["rules"]
    (answer,) = rule["token_reference"]["answers"]
    assert [int(token) for token in answer["ids"]] == served.runner.known["cmpl-canary-0-5e"][3:] and rule["token_reference"]["above"] == 0.5

    weight = served.runner.model.head.weight
    sound, wrong = weight.detach().clone(), weight.detach() * 5
    for round in range(2):
        with torch.no_grad():
            weight.copy_(wrong)
        number = iter(range(1000))
        harness.wait_for(lambda: ask(f"cmpl-canary-0-{round}{next(number)}") or any(name.startswith(f"cmpl-canary-0-{round}") for name in fired()),
                         60, "the rule to fire")
        with torch.no_grad():
            weight.copy_(sound)
        ask(f"cmpl-canary-0-s{round}")
        ask(f"cmpl-other-0-{round}")
    for name, detail in fired().items():
        assert re.fullmatch(r"cmpl-canary-0-[01]\d+", name) and re.fullmatch(r"token \d+: log probability -\S+, -\S+ in the reference", detail), (name, detail)
    served.debugger.close()


def test_while_nobody_asks_nothing_is_computed(server, monkeypatch) -> None:
    served = server({"flight": {"steps": 4}})
    monkeypatch.setattr("rankprobe.vllm._tokens.Numbers", None)
    served.runner.serve(PROMPTS)
    served.debugger.close()
    assert served.said == []


def test_a_fault_of_the_watch_is_one_line_and_the_server_goes_on(server) -> None:
    served = server({"flight": {"steps": 4, "tokens": 8}})
    served.watch.numbers = lambda logits: 1 // 0
    for _ in range(3):
        served.runner.serve(PROMPTS)
    assert served.said == ["the watch of tokens ended: ZeroDivisionError('integer division or modulo by zero'); recording continues"]
    assert all(len(tokens) == 6 for tokens in served.runner.known.values())


def test_a_sampler_of_another_kind_is_not_watched() -> None:
    runner = types.SimpleNamespace(_sample=print, input_batch=types.SimpleNamespace(num_prompt_tokens=[]))
    assert why_not_watched(types.SimpleNamespace(), runner) == ""
    assert "speculative" in why_not_watched(types.SimpleNamespace(speculative_config=object()), runner)
    assert "another way" in why_not_watched(types.SimpleNamespace(), types.SimpleNamespace())
