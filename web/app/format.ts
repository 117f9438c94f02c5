// SPDX-License-Identifier: Apache-2.0
// Numbers, times and names as people read them. Values are never clipped.
import type { Double, Int64 } from "./messages";

export function int(value: Int64 | undefined): number {
  return value === undefined ? 0 : Number(value);
}

// JSON has texts for numbers that are not finite: "Infinity" in answers of the services, "inf" in reports.
export function double(value: Double): number {
  if (typeof value === "number") return value;
  return /^[-+]?inf$/i.test(value) ? (value.startsWith("-") ? -Infinity : Infinity) : Number(value);
}

export function number(value: number): string {
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "Inf" : "-Inf";
  if (value === 0 || Number.isInteger(value) && Math.abs(value) < 1e7) return String(value);
  const magnitude = Math.abs(value);
  return magnitude >= 1e-3 && magnitude < 1e6 ? String(Number(value.toPrecision(6))) : value.toExponential(4);
}

export function count(value: Int64 | undefined): string {
  return int(value).toLocaleString("en-US");
}

export function bytes(value: Int64): string {
  let amount = Number(value);
  for (const unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
    if (amount < 1024 || unit === "TiB") return `${unit === "B" ? amount : amount.toFixed(1)} ${unit}`;
    amount /= 1024;
  }
  return "";
}

export function duration(nanoseconds: Int64): string {
  const value = Number(nanoseconds);
  if (value <= 0) return "–";
  if (value < 1e6) return `${(value / 1e3).toFixed(0)} µs`;
  if (value < 1e9) return `${(value / 1e6).toFixed(1)} ms`;
  return `${(value / 1e9).toFixed(2)} s`;
}

export function time(unixNs: Int64): string {
  const value = Number(unixNs);
  if (value === 0) return "–";
  const date = new Date(value / 1e6);
  const two = (part: number) => String(part).padStart(2, "0");
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ` +
    `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

// Returns the fields that request a process by its name: "rank3", "proc4711".
export function processId(process: string): { rank: string } | { pid: string } {
  return process.startsWith("proc") ? { pid: process.slice(4) } : { rank: process.replace(/^rank/, "") };
}

export function processName(rank: Int64 | undefined, pid: Int64): string {
  return rank === undefined ? `proc${pid}` : `rank${rank}`;
}

// Returns the text as a shell word.
export function quoted(text: string): string {
  return /^[A-Za-z0-9_.,:/@%+=-]+$/.test(text) ? text : `'${text.replace(/'/g, `'\\''`)}'`;
}

// Returns a field of a csv file; text that a spreadsheet would run as a formula is marked as text.
export function csvField(text: string): string {
  return `"${/^[=+\-@]/.test(text) && Number.isNaN(Number(text)) ? "'" : ""}${text.replace(/"/g, '""')}"`;
}

// Parses "0-3,7"; undefined if the text has another form.
export function parseRanges(text: string): number[] | undefined {
  const out: number[] = [];
  for (const part of text.split(",").map((word) => word.trim()).filter((word) => word !== "")) {
    const match = /^(\d+)(?:-(\d+))?$/.exec(part);
    if (match === null) return undefined;
    const first = Number(match[1]);
    const last = Number(match[2] ?? match[1]);
    if (last < first || last - first > 1_000_000) return undefined;
    for (let i = first; i <= last; ++i) out.push(i);
  }
  return out;
}

// Returns the step in a field or an address; undefined if there is none.
export function stepOf(text: string | undefined): number | undefined {
  return text !== undefined && /^\d+$/.test(text) ? Number(text) : undefined;
}

// Counted nouns of English texts.
const COUNTED = /\{(\d)\}(?: (call|change|column|error|input|node|number|pair|payload|place|rank-step|rank|recorded step|record|row|step|tensor|value|warning)s\b( are| match)?)?/g;
const OF_ONE: Record<string, string> = { " are": " is", " match": " matches" };

// Replaces "{0}" and so on by `values`: with 1, "{0} rows are left" becomes "1 row is left".
export function filled(text: string, values: (string | number)[]): string {
  return text.replace(COUNTED, (found: string, index: string, noun: string | undefined, verb = "") => {
    const value = String(values[Number(index)]);
    if (noun === undefined || value !== "1") return value + found.slice(3);
    return `1 ${noun}${OF_ONE[verb] ?? ""}`;
  });
}
