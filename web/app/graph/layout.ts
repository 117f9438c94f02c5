// SPDX-License-Identifier: Apache-2.0
// Positions of the boxes: each node is below the previous one, and children are
// inside an expanded parent. Only visible nodes have a position.
import { isLeaf, type Side } from "./model";

export const ROW_PX = 26;
const GAP_PX = 4;
const PAD_PX = 8;
const BASE_PX = 330;
// Deeper boxes are not indented further.
const MOST_DEPTH = 40;

export interface Layout {
  count: number;
  // By position from the top: the node, its box, and the position after all its descendants.
  nodes: Int32Array;
  x: Float64Array;
  y: Float64Array;
  width: Float64Array;
  height: Float64Array;
  end: Int32Array;
  // Position of each node; -1 if it is not visible.
  placeOf: Int32Array;
  totalWidth: number;
  totalHeight: number;
}

export function layOut(side: Side, open: Uint8Array, microStep: number): Layout {
  const total = side.names.length;
  // Nodes of the micro step, and their ancestors.
  const wanted = microStep < 0 ? undefined : new Uint8Array(total);
  if (wanted !== undefined) {
    for (let i = 0; i < total; ++i) {
      if (side.microSteps[i] !== microStep || !isLeaf(side, i)) continue;
      for (let at = i; at >= 0 && wanted[at] === 0; at = side.parents[at]) wanted[at] = 1;
    }
  }
  const seen = (node: number) => wanted === undefined || wanted[node] === 1;
  const nodes = new Int32Array(total);
  const placeOf = new Int32Array(total).fill(-1);
  const end = new Int32Array(total);
  const y = new Float64Array(total);
  const height = new Float64Array(total);
  let count = 0;
  let deepest = 0;
  let bottom = GAP_PX;
  // Open parents whose children are not complete, and the index of the next child.
  const parents: number[] = [-1];
  const next: number[] = [0];
  while (parents.length > 0) {
    const at = parents.length - 1;
    const parent = parents[at];
    const children = parent < 0 ? side.roots : side.list;
    const last = parent < 0 ? side.roots.length : side.first[parent + 1];
    while (next[at] < last && !seen(children[next[at]])) ++next[at];
    if (next[at] >= last) {
      parents.pop();
      next.pop();
      if (parent < 0) break;
      const place = placeOf[parent];
      bottom += PAD_PX - GAP_PX;
      height[place] = bottom - y[place];
      end[place] = count;
      bottom += GAP_PX;
      continue;
    }
    const node = children[next[at]++];
    const place = count++;
    nodes[place] = node;
    placeOf[node] = place;
    y[place] = bottom;
    deepest = Math.max(deepest, parents.length - 1);
    if (open[node] === 1 && !isLeaf(side, node)) {
      bottom += ROW_PX + GAP_PX;
      parents.push(node);
      next.push(side.first[node]);
    } else {
      height[place] = ROW_PX;
      end[place] = count;
      bottom += ROW_PX + GAP_PX;
    }
  }
  const x = new Float64Array(count);
  const width = new Float64Array(count);
  const levels = Math.min(deepest, MOST_DEPTH);
  const totalWidth = BASE_PX + 2 * PAD_PX * levels;
  for (let i = 0; i < count; ++i) {
    const inset = PAD_PX * Math.min(side.depth[nodes[i]], levels);
    x[i] = inset;
    width[i] = totalWidth - 2 * inset;
  }
  return { count, nodes, x, y, width, height, end, placeOf, totalWidth, totalHeight: bottom };
}

// Returns the innermost box at a point; -1 if there is none.
export function placeAt(layout: Layout, x: number, y: number): number {
  let found = -1;
  for (let i = 0; i < layout.count;) {
    if (layout.y[i] > y) break;
    if (layout.y[i] + layout.height[i] < y) {
      i = layout.end[i];
      continue;
    }
    if (x >= layout.x[i] && x <= layout.x[i] + layout.width[i]) found = i;
    ++i;
  }
  return found;
}
