// SPDX-License-Identifier: Apache-2.0
import assert from "node:assert/strict";
import { test } from "node:test";
import { ApiError } from "../app/api";
import { gridOf, stepsText } from "../app/grid";

const [HEAD, ROW, ERROR] = [0, 1, 2];
const head = { firstSteps: ["0", "2"], lastSteps: ["1", "2"], rows: "1", stepsPerColumn: "2" };

function frame(kind: number, body: Uint8Array): Uint8Array {
  const out = new Uint8Array(8 + body.length);
  new DataView(out.buffer).setUint32(0, kind, true);
  new DataView(out.buffer).setUint32(4, body.length, true);
  out.set(body, 8);
  return out;
}

function together(...parts: Uint8Array[]): ArrayBuffer {
  const out = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) out.set(part, (at += part.length) - part.length);
  return out.buffer;
}

const json = (kind: number, value: unknown) => frame(kind, new TextEncoder().encode(JSON.stringify(value)));

function row(flags: number, name: string, cells: Float32Array | Float64Array, counts: number[], nonFinite: number[], ranks: number[]): Uint8Array {
  const encoded = new TextEncoder().encode(name);
  const words = new Uint32Array([flags, cells.length, encoded.length]);
  return frame(ROW, new Uint8Array(together(new Uint8Array(words.buffer), encoded, new Uint8Array(cells.buffer),
    ...[new Uint32Array(counts), new Uint32Array(nonFinite), new Int32Array(ranks)].map((numbers) => new Uint8Array(numbers.buffer)))));
}

test("a row of wide numbers: a cell without a value is NaN", () => {
  const grid = gridOf(together(json(HEAD, head), row(1, "fc.µ", new Float64Array([1e300, 0]), [2, 0], [0, 0], [1, -1])));
  assert.equal(grid.rows[0].name, "fc.µ");
  assert.deepEqual([...grid.rows[0].cells], [1e300, NaN]);
  assert.deepEqual([...grid.rows[0].counts], [2, 0]);
  assert.deepEqual([...grid.rows[0].ranks], [1, -1]);
  assert.deepEqual([grid.first, grid.last], [[0, 2], [1, 2]]);
  assert.deepEqual([stepsText(grid, 0), stepsText(grid, 1)], ["0–1", "2"]);
});

test("numbers that are the same in all columns come once", () => {
  const grid = gridOf(together(json(HEAD, head), row(2 | 4 | 8, "fc", new Float32Array([0.5, NaN]), [3], [1], [-1])));
  assert.deepEqual([...grid.rows[0].cells], [0.5, NaN]);
  assert.deepEqual([...grid.rows[0].counts], [3, 3]);
  assert.deepEqual([...grid.rows[0].nonFinite], [1, 1]);
  assert.deepEqual([...grid.rows[0].ranks], [-1, -1]);
});

test("an error of the collector is thrown, with rows before it or without", () => {
  const error = json(ERROR, { error: { code: "NOT_FOUND", message: "no run x" } });
  for (const parts of [[error], [json(HEAD, head), error]]) {
    assert.throws(() => gridOf(together(...parts)), (thrown) => thrown instanceof ApiError && thrown.message.includes("no run x"));
  }
  assert.throws(() => gridOf(together()), /no head/);
});
