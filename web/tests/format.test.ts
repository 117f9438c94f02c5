// SPDX-License-Identifier: Apache-2.0
import assert from "node:assert/strict";
import { test } from "node:test";
import { bytes, csvField, double, duration, filled, number, parseRanges, processId, processName, quoted, stepOf } from "../app/format";

test("numbers that JSON has no form for come as texts", () => {
  assert.deepEqual(["Infinity", "-Infinity", "inf", "-inf", "1e300", 2.5].map(double), [Infinity, -Infinity, Infinity, -Infinity, 1e300, 2.5]);
  assert.ok(Number.isNaN(double("NaN")));
});

test("a number is shown with six digits, or as a power of ten", () => {
  assert.deepEqual([0, 42, 9999999, 0.1234567, 123456.7, 1e7, 1.5e-9, NaN, -Infinity].map(number),
    ["0", "42", "9999999", "0.123457", "123457", "1.0000e+7", "1.5000e-9", "NaN", "-Inf"]);
});

test("sizes and times have the unit that fits", () => {
  assert.deepEqual([0, 1023, 1024, 1.5 * 1024 ** 3, 5000 * 1024 ** 4].map(String).map(bytes), ["0 B", "1023 B", "1.0 KiB", "1.5 GiB", "5000.0 TiB"]);
  assert.deepEqual([0, 999_000, 1_500_000, 2_000_000_000].map(String).map(duration), ["–", "999 µs", "1.5 ms", "2.00 s"]);
});

test("one of what is counted is no plural", () => {
  assert.equal(filled("{0} rows, {1} steps", [1, "1"]), "1 row, 1 step");
  assert.equal(filled("{0} of {1} rank-steps are incomplete.", [1, 12]), "1 of 12 rank-steps are incomplete.");
  assert.equal(filled("{0} rank-steps are incomplete", [1]), "1 rank-step is incomplete");
  assert.equal(filled("{0} times the tolerance", [1]), "1 times the tolerance");
  assert.equal(filled("{0} rows", [11]), "11 rows");
  assert.equal(filled("{0} is recorded", ["1 rows"]), "1 rows is recorded", "a name stays what it is");
  assert.equal(filled("{0} 行，{1} 个 step", [1, 2]), "1 行，2 个 step");
});

test("ranges of ranks", () => {
  assert.deepEqual(parseRanges("0-3, 7"), [0, 1, 2, 3, 7]);
  assert.deepEqual(parseRanges(""), []);
  for (const wrong of ["a", "3-1", "-1", "1-", "0-9999999"]) assert.equal(parseRanges(wrong), undefined, wrong);
});

test("a step is digits alone", () => {
  assert.equal(stepOf("12"), 12);
  for (const none of [undefined, "", "-1", "1e3", "12 "]) assert.equal(stepOf(none), undefined);
});

test("a process has its rank's name, or its number's", () => {
  assert.equal(processName("3", "9"), "rank3");
  assert.equal(processName(undefined, "9"), "proc9");
  assert.deepEqual(processId("rank3"), { rank: "3" });
  assert.deepEqual(processId("proc9"), { pid: "9" });
});

test("what a shell or a spreadsheet would run is quoted", () => {
  assert.equal(quoted("run-1"), "run-1");
  assert.equal(quoted("it's $(x)"), `'it'\\''s $(x)'`);
  assert.equal(csvField("=1+1"), `"'=1+1"`);
  assert.equal(csvField("-1.5"), `"-1.5"`);
  assert.equal(csvField('a "b"'), `"a ""b"""`);
});
