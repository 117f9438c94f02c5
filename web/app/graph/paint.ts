// SPDX-License-Identifier: Apache-2.0
// Painter of the boxes on a canvas and in a small overview. Boxes out of sight are skipped; if boxes are smaller than a
// pixel, only the worst one for each pixel is drawn.
import { ROW_PX, type Layout } from "./layout";
import { BY_HAND, COMMUNICATES, isLeaf, MERGED, shortName, statusOf, WRONG, type Colouring, type Side, type Status } from "./model";

export interface Palette {
  back: string;
  panel: string;
  ink: string;
  soft: string;
  line: string;
  focus: string;
  fill: Record<Status, string>;
  edge: Record<Status, string>;
}

const LIGHT: Palette = {
  back: "#ffffff", panel: "#f6f8fa", ink: "#1b1f24", soft: "#57606a", line: "#d0d7de", focus: "#0757b8",
  fill: { none: "#f4f6f8", pass: "#fdf6e3", warning: "#ffe8ac", error: "#ffb8a8", unmatched: "#d9dce1", medium: "#e3dcfb", high: "#c9b6f5", critical: "#f29bc1" },
  edge: { none: "#c3ccd6", pass: "#d8c995", warning: "#cf9a1f", error: "#c8412a", unmatched: "#8b949e", medium: "#9d86dd", high: "#7047c4", critical: "#b3175c" },
};
const DARK: Palette = {
  back: "#0f1318", panel: "#181d24", ink: "#e6edf3", soft: "#9ba7b4", line: "#333c47", focus: "#7db8ff",
  fill: { none: "#1c222a", pass: "#2b2718", warning: "#4a3a0e", error: "#5e1f18", unmatched: "#3a414a", medium: "#2f2750", high: "#46307a", critical: "#6e1740" },
  edge: { none: "#3b4551", pass: "#6f6540", warning: "#b98a25", error: "#e0634d", unmatched: "#7d8792", medium: "#8a74cf", high: "#a583f0", critical: "#f0679f" },
};

export function palette(): Palette {
  return document.documentElement.dataset.theme === "dark" ? DARK : LIGHT;
}

const SEVERITY: Record<Status, number> = { none: 0, pass: 1, unmatched: 2, medium: 3, warning: 3, high: 4, error: 5, critical: 5 };

export interface Scene {
  side: Side;
  layout: Layout;
  open: Uint8Array;
  colouring: Colouring;
  // -1 if there is none.
  selected: number;
  focused: number;
  // Nodes that a search or a filter found.
  marked: Set<number>;
}

// Returns the faults below a box: "3" in the colour of the worst.
export function badge(side: Side, node: number, colouring: Colouring): [Status, number][] {
  if (isLeaf(side, node)) return [];
  return WRONG[colouring].map((status): [Status, number] => [status, side.counts.get(status)![node]]).filter(([, number]) => number > 0);
}

function clip(text: string, width: number, charPx: number): string {
  const most = Math.floor(width / charPx);
  if (text.length <= most) return text;
  if (most < 4) return "";
  // Keeps both ends, which distinguish calls.
  const head = Math.ceil((most - 1) * 0.55);
  return `${text.slice(0, head)}…${text.slice(text.length - (most - 1 - head))}`;
}

export function paint(context: CanvasRenderingContext2D, scene: Scene, view: { left: number; top: number; zoom: number; width: number; height: number }): void {
  const { side, layout, open, colouring } = scene;
  const { zoom } = view;
  const colours = palette();
  context.fillStyle = colours.back;
  context.fillRect(0, 0, view.width, view.height);
  const bottom = view.top + view.height / zoom;
  const detailed = ROW_PX * zoom >= 9;
  context.textBaseline = "middle";
  const fontPx = 12.5 * zoom;
  context.font = `${fontPx}px system-ui, sans-serif`;
  const charPx = fontPx * 0.56;
  context.lineWidth = 1;
  let pixel = -1;
  let worst = -1;
  for (let i = 0; i < layout.count;) {
    if (layout.y[i] > bottom) break;
    if (layout.y[i] + layout.height[i] < view.top) {
      i = layout.end[i];
      continue;
    }
    const node = layout.nodes[i];
    const x = (layout.x[i] - view.left) * zoom;
    const y = (layout.y[i] - view.top) * zoom;
    const width = layout.width[i] * zoom;
    const height = layout.height[i] * zoom;
    const status = statusOf(side, node, colouring);
    if (height < 1.5) {
      const row = Math.floor(y);
      if (row !== pixel) worst = -1;
      if (row !== pixel || SEVERITY[status] > worst) {
        context.fillStyle = status === "none" || status === "pass" ? colours.line : colours.edge[status];
        context.fillRect(x, row, width, 1);
        worst = SEVERITY[status];
      }
      pixel = row;
      ++i;
      continue;
    }
    const isOpen = open[node] === 1 && !isLeaf(side, node);
    context.fillStyle = isOpen ? (side.depth[node] % 2 === 0 ? colours.panel : colours.back) : colours.fill[status];
    context.fillRect(x, y, width, height);
    if (isOpen) {
      context.fillStyle = colours.fill[status];
      context.fillRect(x, y, width, Math.min(height, ROW_PX * zoom));
    }
    context.strokeStyle = colours.edge[status];
    context.strokeRect(Math.round(x) + 0.5, Math.round(y) + 0.5, Math.round(width) - 1, Math.round(height) - 1);
    // A bar for users who cannot distinguish the colours: the worse the status, the wider the bar.
    const bar = SEVERITY[status];
    if (bar >= 2) {
      context.fillStyle = colours.edge[status];
      context.fillRect(x, y, (bar === 2 ? 2 : bar === 3 ? 3 : 5) * Math.max(zoom, 0.6), Math.min(height, ROW_PX * zoom));
    }
    if (scene.marked.has(node)) {
      context.fillStyle = colours.focus;
      context.fillRect(x + width - 4 * zoom, y, 4 * zoom, Math.min(height, ROW_PX * zoom));
    }
    if (detailed) label(context, scene, node, isOpen, x, y, width, zoom, charPx, colours);
    if (node === scene.selected || node === scene.focused) {
      context.strokeStyle = colours.focus;
      context.lineWidth = node === scene.selected ? 3 : 1.5;
      if (node !== scene.selected) context.setLineDash([4, 3]);
      context.strokeRect(x + 1, y + 1, width - 2, height - 2);
      context.setLineDash([]);
      context.lineWidth = 1;
    }
    ++i;
  }
}

function label(context: CanvasRenderingContext2D, scene: Scene, node: number, isOpen: boolean, x: number, y: number, width: number, zoom: number, charPx: number, colours: Palette): void {
  const { side, colouring } = scene;
  const middle = y + (ROW_PX * zoom) / 2;
  const leaf = isLeaf(side, node);
  let right = x + width - 9 * zoom;
  const note = (text: string, colour: string, filled: boolean) => {
    const wide = text.length * charPx + 10 * zoom;
    if (filled) {
      context.fillStyle = colour;
      context.fillRect(right - wide, middle - 8.5 * zoom, wide, 17 * zoom);
      context.fillStyle = colours.back;
    } else {
      context.fillStyle = colour;
    }
    context.fillText(text, right - wide + 5 * zoom, middle + 0.5);
    right -= wide + 4 * zoom;
  };
  for (const [status, number] of badge(side, node, colouring)) note(number.toLocaleString("en-US"), colours.edge[status], true);
  if (!leaf) note(side.leaves[node].toLocaleString("en-US"), colours.soft, false);
  const { flags } = side;
  if ((flags[node] & COMMUNICATES) !== 0) note("⇄", colours.focus, false);
  if ((flags[node] & MERGED) !== 0) note("⊕", colours.focus, false);
  if ((flags[node] & BY_HAND) !== 0) note("✋", colours.focus, false);
  context.fillStyle = colours.ink;
  let left = x + 10 * zoom;
  if (!leaf) {
    context.fillText(isOpen ? "▾" : "▸", left, middle);
    left += 13 * zoom;
  }
  context.fillText(clip(shortName(side, node), right - left, charPx), left, middle + 0.5);
}

// Paints all boxes in a small picture and returns its scale.
export function paintSmall(context: CanvasRenderingContext2D, scene: Scene, width: number, height: number): number {
  const { side, layout, colouring } = scene;
  const colours = palette();
  context.fillStyle = colours.panel;
  context.fillRect(0, 0, width, height);
  const scaleY = Math.min(1, height / Math.max(1, layout.totalHeight));
  const scaleX = width / layout.totalWidth;
  let pixel = -1;
  let worst = -1;
  for (let i = 0; i < layout.count; ++i) {
    const node = layout.nodes[i];
    const row = Math.floor(layout.y[i] * scaleY);
    const status = statusOf(side, node, colouring);
    if (row !== pixel) worst = -1;
    if (SEVERITY[status] > worst || worst < 0) {
      context.fillStyle = status === "none" || status === "pass" ? colours.line : colours.edge[status];
      context.fillRect(layout.x[i] * scaleX, row, layout.width[i] * scaleX, Math.max(1, ROW_PX * scaleY - 1));
      worst = SEVERITY[status];
    }
    pixel = row;
  }
  return scaleY;
}
