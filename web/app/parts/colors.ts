// SPDX-License-Identifier: Apache-2.0
// Colours of a heat map. The scale is robust: it covers the 2nd to the 98th percentile of the finite values, so that
// one spike does not give all other values one colour. Values outside have the colour of the nearest end, and the
// tooltip shows the true value.
import type { Row } from "../grid";

export interface Scale {
  log: boolean;
  low: number;
  high: number;
}

const SAMPLES = 20_000;

export function scaleOf(rows: Row[]): Scale {
  const total = rows.reduce((sum, row) => sum + row.cells.length, 0);
  const stride = Math.max(1, Math.floor(total / SAMPLES));
  const seen: number[] = [];
  let i = 0;
  for (const row of rows) {
    for (let column = 0; column < row.cells.length; ++column) {
      if (i++ % stride === 0 && Number.isFinite(row.cells[column])) seen.push(row.cells[column]);
    }
  }
  seen.sort((a, b) => a - b);
  if (seen.length === 0) return { log: false, low: 0, high: 1 };
  const at = (share: number) => seen[Math.min(seen.length - 1, Math.floor(share * seen.length))];
  const positive = seen.find((value) => value > 0);
  if (seen[0] >= 0 && positive !== undefined && at(0.98) / Math.max(at(0.02), positive) > 20) {
    return { log: true, low: Math.log10(Math.max(at(0.02), positive)), high: Math.log10(at(0.98)) };
  }
  return { log: false, low: at(0.02), high: at(0.98) };
}

// Smallest span of a row's scale, as a fraction of its largest value: smaller variation is noise.
const LEAST_SPAN = 0.1;

// Returns the scale of one row: from its smallest to its largest value, since users look for the spikes of a row.
export function scaleOfRow(row: Row): Scale {
  let [low, high] = [Infinity, -Infinity];
  for (const value of row.cells) {
    if (!Number.isFinite(value)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low > high) return { log: false, low: 0, high: 1 };
  const span = LEAST_SPAN * Math.max(Math.abs(low), Math.abs(high));
  if (high - low < span) return { log: false, low: (low + high - span) / 2, high: (low + high + span) / 2 };
  return low > 0 && high / low > 20 ? { log: true, low: Math.log10(low), high: Math.log10(high) } : { log: false, low, high };
}

// Returns a position from 0 to 1.
export function place(value: number, scale: Scale): number {
  const x = scale.log ? Math.log10(Math.max(value, Number.MIN_VALUE)) : value;
  if (scale.high === scale.low) return 0.5;
  return Math.min(1, Math.max(0, (x - scale.low) / (scale.high - scale.low)));
}

// Dark blue, green, yellow; readable without distinguishing red from green.
const STOPS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];

export function colour(share: number): [number, number, number] {
  const x = share * (STOPS.length - 1);
  const i = Math.min(STOPS.length - 2, Math.floor(x));
  const [a, b] = [STOPS[i], STOPS[i + 1]];
  return [0, 1, 2].map((c) => Math.round(a[c] + (b[c] - a[c]) * (x - i))) as [number, number, number];
}

export const BAD_COLOUR: [number, number, number] = [214, 39, 40];

const SHADES = 1024;
const word = ([r, g, b]: [number, number, number]) => (255 << 24) | (b << 16) | (g << 8) | r;

// Draws a pixel for each cell; cells that were not recorded are empty.
export function pictureOf(rows: Row[], columns: number, scaleFor: (row: Row) => Scale): ImageData {
  const image = new ImageData(Math.max(1, columns), Math.max(1, rows.length));
  const pixels = new Uint32Array(image.data.buffer);
  const shades = Int32Array.from({ length: SHADES }, (_, i) => word(colour(i / (SHADES - 1))));
  const bad = word(BAD_COLOUR);
  rows.forEach((row, y) => {
    const { cells, counts, nonFinite } = row;
    const scale = scaleFor(row);
    for (let x = 0, at = y * columns; x < columns; ++x, ++at) {
      if (counts[x] === 0) continue;
      pixels[at] = nonFinite[x] > 0 || !Number.isFinite(cells[x]) ? bad : shades[Math.round(place(cells[x], scale) * (SHADES - 1))];
    }
  });
  return image;
}
