// SPDX-License-Identifier: Apache-2.0
// Context menu of a node.
import { useEffect, useRef } from "preact/hooks";
import { t } from "../text";

export type MenuEntry = [string, () => void];

export function GraphMenu({ x, y, entries, onClose }: { x: number; y: number; entries: MenuEntry[]; onClose: () => void }) {
  const menu = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const box = menu.current!;
    box.style.left = `${Math.max(4, Math.min(x, innerWidth - box.offsetWidth - 8))}px`;
    box.style.top = `${Math.max(4, Math.min(y, innerHeight - box.offsetHeight - 8))}px`;
    box.querySelector<HTMLElement>("[role=menuitem]")?.focus();
    const outside = (event: Event) => {
      if (!box.contains(event.target as Node)) onClose();
    };
    addEventListener("pointerdown", outside);
    return () => removeEventListener("pointerdown", outside);
  }, [x, y]);
  const onKey = (event: KeyboardEvent) => {
    const buttons = [...menu.current!.querySelectorAll<HTMLElement>("[role=menuitem]")];
    const at = buttons.indexOf(document.activeElement as HTMLElement);
    if (event.key === "Escape" || event.key === "Tab") onClose();
    else if (event.key === "ArrowDown") buttons[(at + 1) % buttons.length]?.focus();
    else if (event.key === "ArrowUp") buttons[(at + buttons.length - 1) % buttons.length]?.focus();
    else return;
    event.preventDefault();
  };
  return (
    <div class="graph-menu" ref={menu} role="menu" aria-label={t("What to do with this node")} onKeyDown={onKey}>
      {entries.length === 0 && <span class="note">{t("There is nothing to open in it.")}</span>}
      {entries.map(([text, run]) => <button key={text} role="menuitem" onClick={() => { onClose(); run(); }}>{text}</button>)}
    </div>
  );
}
