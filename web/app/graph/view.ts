// SPDX-License-Identifier: Apache-2.0
// One side of a graph on the screen: a canvas that can be scrolled and zoomed,
// a small overview, and, for screen readers, the visible boxes as items of a
// tree. Owned by the component that made it.
import { layOut, placeAt, ROW_PX, type Layout } from "./layout";
import { isLeaf, statusOf, type Colouring, type Side } from "./model";
import { paint, paintSmall, palette, type Scene } from "./paint";

export interface ViewEvents {
  // A click, or Enter.
  onSelect: (node: number) => void;
  // A double click, or an arrow key.
  onToggle: (node: number, to?: boolean) => void;
  onMenu: (node: number, x: number, y: number) => void;
  // The user scrolled or zoomed.
  onMoved: (view: GraphView) => void;
  // A key that the view does not use.
  onKey: (key: string) => boolean;
  describe: (node: number) => string;
}

const MOST_ZOOM = 3;
const MOST_ITEMS = 80;
const MINI_PX = 72;
// The items of the tree are updated after nothing has moved for this time.
const REST_MS = 140;

export class GraphView {
  left = 0;
  top = 0;
  zoom = 1;
  layout: Layout;
  private scene: Scene;
  private width = 0;
  private height = 0;
  private last: { side: Side; open: Uint8Array; opened: number; microStep: number; colouring: Colouring } | undefined;
  private frame = 0;
  private rest = 0;
  private mini: HTMLCanvasElement | undefined;
  private miniPicture: { canvas: HTMLCanvasElement; scale: number } | undefined;
  private readonly undo: (() => void)[] = [];
  private drag: { x: number; y: number; left: number; top: number; moved: boolean } | undefined;
  // Number of paintings; tests read it.
  paints = 0;
  // The node of the last click, not counting the second of a double click.
  private clicked = -1;
  // Whether the last press moved the picture, so that it is not a click.
  private dragged = false;
  // Until the user zooms, the boxes are as wide as the window.
  private zoomed = false;

  constructor(private readonly element: HTMLElement, private readonly canvas: HTMLCanvasElement, private readonly items: HTMLElement,
              side: Side, open: Uint8Array, private readonly events: ViewEvents) {
    this.layout = layOut(side, open, -1);
    this.scene = { side, layout: this.layout, open, colouring: "precision", selected: -1, focused: -1, marked: new Set() };
    const on = <K extends keyof HTMLElementEventMap>(target: HTMLElement, type: K, run: (event: HTMLElementEventMap[K]) => void, options?: AddEventListenerOptions) => {
      target.addEventListener(type, run as EventListener, options);
      this.undo.push(() => target.removeEventListener(type, run as EventListener));
    };
    on(element, "wheel", (event) => this.onWheel(event), { passive: false });
    on(element, "keydown", (event) => this.onKeyDown(event));
    on(element, "pointerdown", (event) => this.onDown(event));
    on(element, "pointermove", (event) => this.onPointer(event));
    on(element, "pointerup", () => this.onUp());
    on(element, "pointercancel", () => (this.drag = undefined));
    on(element, "click", (event) => this.onClick(event));
    on(element, "dblclick", (event) => {
      const node = event.detail === 2 ? this.clicked : this.nodeAt(event);
      if (node >= 0) events.onToggle(node);
    });
    on(element, "contextmenu", (event) => {
      event.preventDefault();
      const node = this.nodeAt(event);
      if (node >= 0) events.onMenu(node, event.clientX, event.clientY);
    });
    on(element, "focus", () => {
      if (this.scene.focused < 0) this.scene.focused = this.scene.selected >= 0 ? this.scene.selected : this.layout.count > 0 ? this.layout.nodes[0] : -1;
      this.draw();
    });
    const resized = new ResizeObserver(() => this.resize());
    resized.observe(element);
    const themed = new MutationObserver(() => this.changed());
    themed.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    this.undo.push(() => resized.disconnect(), () => themed.disconnect());
    this.resize();
  }

  destroy(): void {
    for (const undo of this.undo) undo();
    cancelAnimationFrame(this.frame);
    clearTimeout(this.rest);
  }

  // Updates the view after a node was opened, matched, filtered or selected. `opened` changes when `open` was changed
  // in place.
  show(side: Side, open: Uint8Array, opened: number, microStep: number, colouring: Colouring, selected: number, marked: Set<number>): void {
    const { last } = this;
    this.last = { side, open, opened, microStep, colouring };
    // Keeps the boxes and the overview, which are slow to compute for many nodes.
    if (last !== undefined && this.anchor < 0 && last.side === side && last.open === open && last.opened === opened && last.microStep === microStep && last.colouring === colouring) {
      this.scene.selected = selected;
      this.scene.marked = marked;
      this.draw();
      return;
    }
    const focused = this.scene.side === side || this.scene.side.names === side.names ? this.scene.focused : -1;
    // The node at the pointer or the keyboard keeps its position.
    const anchor = this.anchor;
    const before = anchor >= 0 && this.layout.placeOf[anchor] >= 0 ? this.layout.y[this.layout.placeOf[anchor]] : undefined;
    this.layout = layOut(side, open, microStep);
    this.scene = { side, layout: this.layout, open, colouring, selected, focused, marked };
    const place = anchor >= 0 && anchor < side.names.length ? this.layout.placeOf[anchor] : -1;
    if (before !== undefined && place >= 0) this.top += this.layout.y[place] - before;
    this.anchor = -1;
    if (!this.zoomed && this.width > 0) this.fitWidth();
    this.clamp();
    this.changed();
  }
  // A node whose box does not move when others open above it.
  anchor = -1;

  setMini(mini: HTMLCanvasElement | undefined): void {
    this.mini = mini;
    this.miniPicture = undefined;
    if (mini !== undefined) this.draw();
  }

  // Scrolls the node into view: to the height `atY` of the window if given, otherwise only if it is out of sight.
  reveal(node: number, atY?: number): void {
    const place = this.layout.placeOf[node];
    if (place < 0) return;
    const y = this.layout.y[place];
    const above = (y - this.top) * this.zoom;
    if (atY !== undefined || above < 0 || above + ROW_PX * this.zoom > this.height) {
      this.top = y - (atY ?? this.height / 3) / this.zoom;
      this.clamp();
    }
    const x = this.layout.x[place];
    if (x < this.left || (x - this.left) * this.zoom > this.width * 0.6) this.left = x - 20;
    this.clamp();
    this.draw();
  }

  // Scrolls like another view: a node that both show is at the same height. `partners` is indexed by the other view's
  // nodes.
  follow(other: GraphView, partners: Int32Array): void {
    this.zoom = other.zoom;
    this.zoomed = true;
    const { layout } = other;
    let place = 0;
    const middle = other.top + other.height / 3 / other.zoom;
    for (let low = 0, high = layout.count - 1; low <= high;) {
      const half = (low + high) >> 1;
      if (layout.y[half] <= middle) {
        place = half;
        low = half + 1;
      } else {
        high = half - 1;
      }
    }
    for (let tried = 0; place >= 0 && tried < 500; --place, ++tried) {
      const partner = partners[layout.nodes[place]];
      const mine = partner < 0 ? -1 : this.layout.placeOf[partner];
      if (mine < 0) continue;
      this.moveTo(other.left, this.layout.y[mine] - (layout.y[place] - other.top), other.zoom);
      return;
    }
    this.moveTo(other.left, this.top, other.zoom);
  }

  // Returns the position of the node's box in the window.
  screenY(node: number): number | undefined {
    const place = this.layout.placeOf[node];
    return place < 0 ? undefined : (this.layout.y[place] - this.top) * this.zoom;
  }

  boxOf(node: number): { x: number; y: number; width: number; height: number } | undefined {
    const place = this.layout.placeOf[node];
    if (place < 0) return undefined;
    const frame = this.element.getBoundingClientRect();
    return { x: frame.left + (this.layout.x[place] - this.left) * this.zoom, y: frame.top + (this.layout.y[place] - this.top) * this.zoom,
      width: this.layout.width[place] * this.zoom, height: ROW_PX * this.zoom };
  }

  fit(): void {
    this.zoomed = true;
    this.zoom = Math.max(this.leastZoom(), Math.min(1, this.width / (this.layout.totalWidth + 8), this.height / (this.layout.totalHeight + 8)));
    this.top = 0;
    this.centre();
    this.clamp();
    this.draw();
    this.events.onMoved(this);
  }

  fitWidth(): void {
    this.zoom = Math.max(0.55, Math.min(1.15, this.width / (this.layout.totalWidth + 8)));
    this.centre();
    this.clamp();
    this.draw();
  }

  zoomBy(factor: number, x = this.width / 2, y = this.height / 2): void {
    this.zoomed = true;
    const zoom = Math.min(MOST_ZOOM, Math.max(this.leastZoom(), this.zoom * factor));
    this.left += x / this.zoom - x / zoom;
    this.top += y / this.zoom - y / zoom;
    this.zoom = zoom;
    this.clamp();
    this.draw();
    this.events.onMoved(this);
  }

  moveTo(left: number, top: number, zoom: number): void {
    this.left = left;
    this.top = top;
    this.zoom = zoom;
    this.clamp();
    this.draw();
  }

  private leastZoom(): number {
    return Math.min(0.2, Math.max(1e-4, this.height / (this.layout.totalHeight + 8)));
  }

  private clamp(): void {
    const most = Math.max(0, this.layout.totalHeight + 12 - this.height / this.zoom);
    this.top = Math.min(most, Math.max(0, this.top));
    // A part of the picture stays in sight.
    const rest = 80 / this.zoom;
    this.left = Math.min(this.layout.totalWidth - rest, Math.max(rest - this.width / this.zoom, this.left));
  }

  private centre(): void {
    const wide = this.layout.totalWidth * this.zoom;
    this.left = wide + 8 <= this.width ? (wide - this.width) / 2 / this.zoom : -4;
  }

  private resize(): void {
    const { clientWidth, clientHeight } = this.element;
    if (clientWidth === this.width && clientHeight === this.height) return;
    const first = this.width === 0;
    const middle = this.top + this.height / 2 / this.zoom;
    this.width = clientWidth;
    this.height = clientHeight;
    const ratio = devicePixelRatio || 1;
    this.canvas.width = Math.max(1, Math.round(clientWidth * ratio));
    this.canvas.height = Math.max(1, Math.round(clientHeight * ratio));
    if (first || !this.zoomed) this.fitWidth();
    if (!first) this.top = middle - clientHeight / 2 / this.zoom;
    this.clamp();
    // Immediately, because resizing a canvas clears it.
    this.changed();
    this.paintNow();
  }

  private changed(): void {
    this.miniPicture = undefined;
    this.draw();
  }

  draw(): void {
    if (this.frame === 0) this.frame = requestAnimationFrame(() => this.paintNow());
    clearTimeout(this.rest);
    this.rest = window.setTimeout(() => this.tell(), REST_MS);
  }

  private paintNow(): void {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    if (this.width === 0) return;
    const context = this.canvas.getContext("2d", { alpha: false })!;
    const ratio = devicePixelRatio || 1;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    paint(context, this.scene, { left: this.left, top: this.top, zoom: this.zoom, width: this.width, height: this.height });
    if (this.mini !== undefined) this.paintMini(this.mini);
    ++this.paints;
  }

  private paintMini(mini: HTMLCanvasElement): void {
    const ratio = devicePixelRatio || 1;
    if (mini.width !== MINI_PX * ratio || mini.height !== this.height * ratio) {
      mini.width = MINI_PX * ratio;
      mini.height = Math.max(1, this.height * ratio);
      this.miniPicture = undefined;
    }
    if (this.miniPicture === undefined) {
      const canvas = document.createElement("canvas");
      canvas.width = mini.width;
      canvas.height = mini.height;
      const context = canvas.getContext("2d")!;
      context.scale(ratio, ratio);
      this.miniPicture = { canvas, scale: paintSmall(context, this.scene, MINI_PX, this.height) };
    }
    const context = mini.getContext("2d")!;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.drawImage(this.miniPicture.canvas, 0, 0);
    context.scale(ratio, ratio);
    context.strokeStyle = palette().focus;
    context.lineWidth = 2;
    const { scale } = this.miniPicture;
    context.strokeRect(1, this.top * scale + 1, MINI_PX - 2, Math.max(4, (this.height / this.zoom) * scale - 2));
  }

  focus(): void {
    this.element.focus({ preventScroll: true });
  }

  // Scrolls to a position in the overview.
  jumpTo(share: number): void {
    const scale = this.miniPicture?.scale ?? 1;
    this.top = (share * this.height) / scale - this.height / this.zoom / 2;
    this.clamp();
    this.draw();
    this.events.onMoved(this);
  }

  private tell(): void {
    const { side, layout } = this.scene;
    const out: HTMLElement[] = [];
    let active = "";
    const add = (place: number) => {
      const node = layout.nodes[place];
      const item = document.createElement("div");
      item.id = `${this.element.id}-${node}`;
      item.setAttribute("role", "treeitem");
      item.setAttribute("aria-level", String(side.depth[node] + 1));
      item.setAttribute("aria-selected", String(node === this.scene.selected));
      if (!isLeaf(side, node)) item.setAttribute("aria-expanded", String(this.scene.open[node] === 1));
      item.dataset.status = statusOf(side, node, this.scene.colouring);
      item.textContent = this.events.describe(node);
      item.style.transform = `translate(${(layout.x[place] - this.left) * this.zoom}px, ${(layout.y[place] - this.top) * this.zoom}px)`;
      item.style.width = `${layout.width[place] * this.zoom}px`;
      item.style.height = `${ROW_PX * this.zoom}px`;
      out.push(item);
      if (node === this.scene.focused) active = item.id;
    };
    const bottom = this.top + this.height / this.zoom;
    for (let i = 0; i < layout.count && out.length < MOST_ITEMS;) {
      if (layout.y[i] > bottom) break;
      if (layout.y[i] + layout.height[i] < this.top) {
        i = layout.end[i];
        continue;
      }
      if (layout.y[i] + ROW_PX > this.top) add(i);
      ++i;
    }
    this.items.replaceChildren(...out);
    if (active !== "") this.element.setAttribute("aria-activedescendant", active);
    else this.element.removeAttribute("aria-activedescendant");
  }

  private nodeAt(event: MouseEvent): number {
    const frame = this.element.getBoundingClientRect();
    const place = placeAt(this.layout, this.left + (event.clientX - frame.left) / this.zoom, this.top + (event.clientY - frame.top) / this.zoom);
    return place < 0 ? -1 : this.layout.nodes[place];
  }

  private onWheel(event: WheelEvent): void {
    event.preventDefault();
    const frame = this.element.getBoundingClientRect();
    const step = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? this.height : 1;
    if (event.ctrlKey || event.metaKey) {
      this.zoomBy(Math.exp(-event.deltaY * step * 0.002), event.clientX - frame.left, event.clientY - frame.top);
      return;
    }
    const sideways = event.shiftKey ? event.deltaY : event.deltaX;
    this.left += (sideways * step) / this.zoom;
    if (!event.shiftKey) this.top += (event.deltaY * step) / this.zoom;
    this.clamp();
    this.draw();
    this.events.onMoved(this);
  }

  private onDown(event: PointerEvent): void {
    if (event.button !== 0) return;
    this.drag = { x: event.clientX, y: event.clientY, left: this.left, top: this.top, moved: false };
  }

  private onPointer(event: PointerEvent): void {
    if (this.drag === undefined || (event.buttons & 1) === 0) {
      const node = this.nodeAt(event);
      this.element.title = node < 0 ? "" : this.scene.side.names[node].slice(0, 1000);
      return;
    }
    const [x, y] = [event.clientX - this.drag.x, event.clientY - this.drag.y];
    if (!this.drag.moved && Math.hypot(x, y) < 5) return;
    if (!this.drag.moved) this.element.setPointerCapture(event.pointerId);
    this.drag.moved = true;
    this.left = this.drag.left - x / this.zoom;
    this.top = this.drag.top - y / this.zoom;
    this.clamp();
    this.draw();
    this.events.onMoved(this);
  }

  private onUp(): void {
    this.dragged = this.drag?.moved ?? false;
    this.drag = undefined;
  }

  private onClick(event: MouseEvent): void {
    // The second click of a double click belongs to the node of the first: selecting that node may have moved the
    // boxes.
    if (this.dragged || event.detail === 2) return;
    const node = this.nodeAt(event);
    this.clicked = node;
    if (node < 0) return;
    this.scene.focused = node;
    const frame = this.element.getBoundingClientRect();
    const place = this.layout.placeOf[node];
    const x = (event.clientX - frame.left) / this.zoom + this.left - this.layout.x[place];
    // A single click on the triangle opens the node.
    if (x < 22 && !isLeaf(this.scene.side, node)) this.events.onToggle(node);
    else this.events.onSelect(node);
  }

  private onKeyDown(event: KeyboardEvent): void {
    if (event.target !== this.element || event.ctrlKey || event.metaKey || event.altKey) return;
    const { side } = this.scene;
    const at = this.scene.focused;
    const place = at < 0 ? -1 : this.layout.placeOf[at];
    const focus = (to: number) => {
      if (to < 0 || to >= this.layout.count) return;
      this.scene.focused = this.layout.nodes[to];
      this.reveal(this.scene.focused);
    };
    const isOpen = at >= 0 && this.scene.open[at] === 1 && !isLeaf(side, at);
    switch (event.key) {
      case "ArrowDown": focus(place + 1); break;
      case "ArrowUp": focus(place - 1); break;
      case "Home": focus(0); break;
      case "End": focus(this.layout.count - 1); break;
      case "ArrowRight":
        if (at >= 0 && !isOpen && !isLeaf(side, at)) this.events.onToggle(at, true);
        else if (isOpen) focus(place + 1);
        break;
      case "ArrowLeft":
        if (isOpen) this.events.onToggle(at, false);
        else if (at >= 0 && side.parents[at] >= 0) focus(this.layout.placeOf[side.parents[at]]);
        break;
      case "Enter": case " ": if (at >= 0) this.events.onSelect(at); break;
      case "PageDown": case "PageUp":
        this.top += ((event.key === "PageDown" ? 0.9 : -0.9) * this.height) / this.zoom;
        this.moveTo(this.left, this.top, this.zoom);
        this.events.onMoved(this);
        break;
      case "w": case "W": case "+": this.zoomBy(1.25); break;
      case "s": case "S": case "-": this.zoomBy(0.8); break;
      case "a": case "A": case "d": case "D":
        this.moveTo(this.left + (event.key.toLowerCase() === "a" ? -60 : 60) / this.zoom, this.top, this.zoom);
        this.events.onMoved(this);
        break;
      case "f": case "F": this.fit(); break;
      case "ContextMenu": if (at >= 0) this.menuAt(at); break;
      default:
        if (event.key === "F10" && event.shiftKey && at >= 0) this.menuAt(at);
        else if (!this.events.onKey(event.key)) return;
    }
    event.preventDefault();
  }

  private menuAt(node: number): void {
    const box = this.boxOf(node);
    if (box !== undefined) this.events.onMenu(node, box.x + 30, box.y + box.height);
  }
}
