// SPDX-License-Identifier: Apache-2.0
import assert from "node:assert/strict";
import test from "node:test";
import type { Row } from "../app/grid";
import { place, scaleOf, scaleOfRow } from "../app/parts/colors";

function row(...cells: number[]): Row {
  return { name: "", cells: Float64Array.from(cells), counts: new Uint32Array(cells.length).fill(1), nonFinite: new Uint32Array(cells.length), ranks: new Float64Array(cells.length) };
}

test("a row's own scale shows its spike, whatever other rows hold", () => {
  const [quiet, loud] = [row(1, 1.1, 1, 3), row(1e6, 1e6, 1e6, 1e6)];
  const all = scaleOf([quiet, loud]);
  assert.ok(place(3, all) - place(1, all) < 0.2);
  const own = scaleOfRow(quiet);
  assert.equal(place(1, own), 0);
  assert.equal(place(3, own), 1);
});

test("a row's scale is logarithmic where its values span much and are positive", () => {
  assert.deepEqual(scaleOfRow(row(0.01, 100, NaN, Infinity)), { log: true, low: -2, high: 2 });
  assert.equal(scaleOfRow(row(-0.01, 100)).log, false);
  assert.equal(scaleOfRow(row(0, 100)).log, false);
});

test("a row that hardly varies has one shade", () => {
  const own = scaleOfRow(row(1, 1.001, 0.999));
  assert.ok(Math.abs(place(1.001, own) - place(0.999, own)) < 0.05);
});

test("a row of one value, or of none, has a scale", () => {
  assert.equal(place(5, scaleOfRow(row(5, 5))), 0.5);
  assert.ok(Number.isFinite(place(5, scaleOfRow(row(NaN, NaN)))));
});
