# SPDX-License-Identifier: Apache-2.0
"""Each rule has a row in docs/rules.md, and a place in the order of diagnose's findings."""

from __future__ import annotations

import re

from conftest import ROOT

NAME = re.compile(r'name\(\) const override \{ return "([a-z-]+)"; \}')


def test_each_rule_is_described_and_has_its_place_among_the_findings():
    rules = {name for file in (ROOT / "analysis" / "rules").glob("*.cc") for name in NAME.findall(file.read_text())}
    rules |= {"reduced-gradient-parts", "buffer-parts", "learning-rate-parts", "loss-scale-parts"}  # one class
    assert len(rules) > 15
    first_cells = [line.split("|")[1] for line in (ROOT / "docs" / "rules.md").read_text().splitlines() if line.startswith("| ")]
    described = {word for cell in first_cells for word in re.findall(r"[a-z]+(?:-[a-z]+)+", cell)}
    ordered = set(re.findall(r'"rule: ([a-z-]+)"', (ROOT / "cli" / "output" / "diagnosis_report.cc").read_text()))
    assert rules - described == set() and rules - ordered == set()
