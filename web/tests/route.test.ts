// SPDX-License-Identifier: Apache-2.0
import assert from "node:assert/strict";
import { test } from "node:test";
import { href, parseRoute } from "../app/route";

test("an address names what href() made it of", () => {
  for (const [page, run, query] of [["runs", "", {}], ["heat", "a/b c%", { stat: "Norm", find: "x&y=é" }], ["run", "r", {}]] as const) {
    assert.deepEqual(parseRoute(href(page, run, query)), { page, run, query });
  }
});

test("fields without a value stay out of the address", () => {
  assert.equal(href("step", "r", { step: 0, rank: undefined, find: "" }), "#/run/r/step?step=0");
});

test("an address that nobody encoded is taken as it stands", () => {
  assert.deepEqual(parseRoute("#/run/100%/heat"), { page: "heat", run: "100%", query: {} });
  assert.deepEqual(parseRoute(""), { page: "runs", run: "", query: {} });
});
