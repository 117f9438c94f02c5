// SPDX-License-Identifier: Apache-2.0
// One side of a graph as a component: the frame around a GraphView.
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { count } from "../format";
import { t } from "../text";
import { badge } from "./paint";
import { isLeaf, statusOf, type Colouring, type Side } from "./model";
import { GraphView } from "./view";

interface Props {
  index: number;
  side: Side;
  open: Uint8Array;
  // Changes when `open` was changed in place.
  opened: number;
  title: string;
  microStep: number;
  colouring: Colouring;
  selected: number;
  marked: Set<number>;
  small: boolean;
  onView: (view: GraphView | undefined) => void;
  onSelect: (node: number) => void;
  onToggle: (node: number, to?: boolean) => void;
  onMenu: (node: number, x: number, y: number) => void;
  onKey: (key: string) => boolean;
  onMoved: (view: GraphView) => void;
}

export function Pane(props: Props) {
  const frame = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const items = useRef<HTMLDivElement>(null);
  const mini = useRef<HTMLCanvasElement>(null);
  const view = useRef<GraphView | undefined>(undefined);
  // The view is created once; its callbacks use the props of the last rendering.
  const now = useRef(props);
  now.current = props;
  useLayoutEffect(() => {
    const made = new GraphView(frame.current!, canvas.current!, items.current!, props.side, props.open, {
      onSelect: (node) => now.current.onSelect(node),
      onToggle: (node, to) => now.current.onToggle(node, to),
      onMenu: (node, x, y) => now.current.onMenu(node, x, y),
      onKey: (key) => now.current.onKey(key),
      onMoved: (moved) => now.current.onMoved(moved),
      describe: (node) => {
        const { side, colouring } = now.current;
        const wrong = badge(side, node, colouring).map(([status, number]) => `${number} ${t(status === "unmatched" ? "no partner" : status)}`);
        const own = statusOf(side, node, colouring);
        return [side.names[node].slice(0, 400), own === "none" ? "" : t(own === "unmatched" ? "no partner" : own), isLeaf(side, node) ? "" : t("{0} calls", count(side.leaves[node])), ...wrong]
          .filter((part) => part !== "").join(", ");
      },
    });
    view.current = made;
    (frame.current as unknown as { graphView: GraphView }).graphView = made;
    props.onView(made);
    return () => {
      props.onView(undefined);
      made.destroy();
    };
  }, []);
  useEffect(() => view.current!.setMini(props.small ? mini.current! : undefined), [props.small]);
  useLayoutEffect(() => view.current!.show(props.side, props.open, props.opened, props.microStep, props.colouring, props.selected, props.marked));
  return (
    <section class="graph-pane">
      <h2>{props.title} <small>{t("{0} nodes", count(props.side.names.length))}</small></h2>
      <div class="graph-frame">
        <div class="graph-view" id={`graph-${props.index}`} ref={frame} role="tree" tabIndex={0} aria-label={`${t("Modules and calls")}: ${props.title}`}>
          <canvas ref={canvas} aria-hidden="true" />
          <div class="graph-items" ref={items} role="none" />
        </div>
        {props.small && (
          <canvas class="graph-mini" ref={mini} aria-hidden="true"
            onPointerDown={(event) => { event.currentTarget.setPointerCapture(event.pointerId); jump(event, view.current!); }}
            onPointerMove={(event) => (event.buttons & 1) !== 0 && jump(event, view.current!)} />
        )}
      </div>
    </section>
  );
}

function jump(event: PointerEvent, view: GraphView): void {
  const frame = (event.currentTarget as HTMLElement).getBoundingClientRect();
  view.jumpTo((event.clientY - frame.top) / frame.height);
}
