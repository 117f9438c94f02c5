// SPDX-License-Identifier: Apache-2.0
// One call: its values, its position among the modules, its stack.
import { dtypeName, isBad, kept, leavesOf, numbersOf, shapeText } from "../calls";
import { number } from "../format";
import type { CallEntry } from "../messages";
import { href, route } from "../route";
import { t } from "../text";
import { Card, Stack } from "./basics";

export function shown(value: number | undefined): string {
  return value === undefined ? "–" : number(value);
}

export function CallCard({ run, entry }: { run: string; entry: CallEntry }) {
  const choose = (call: string | undefined) =>
    href(route.value.page, run, { ...route.value.query, [route.value.page === "graph" ? "node" : "call"]: call });
  return (
    <Card title={entry.entry}>
      <p>
        {entry.parent && <>{t("in")} <a href={choose(entry.parent)}>{entry.parent}</a>{". "}</>}
        <a href={choose(undefined)}>{t("Close")}</a>
      </p>
      <ul class="leaves">
        {leavesOf(entry).map((leaf) => (
          <li key={leaf.name} class={isBad(leaf.tensor) ? "bad" : ""}>
            <a href={href("trend", run, { name: `${entry.entry}.${leaf.name}` })}>{leaf.name}</a>{" "}
            {leaf.tensor ? `${dtypeName(leaf.tensor)} ${shapeText(leaf.tensor)} Max ${shown(numbersOf(leaf.tensor).max)} Min ${shown(numbersOf(leaf.tensor).min)} ` +
              `Mean ${shown(numbersOf(leaf.tensor).mean)} Norm ${shown(numbersOf(leaf.tensor).norm)}` : leaf.text}
            {leaf.tensor && kept(leaf.tensor) && <>{" "}<a href={href("tensor", run, { step: route.value.query.step, rank: route.value.query.rank, call: entry.entry, value: leaf.name })}>{t("Tensor")}</a></>}
          </li>
        ))}
      </ul>
      {entry.stack && entry.stack.length > 0 && (
        <>
          <h3>{t("Stack")}</h3>
          <Stack frames={entry.stack} />
        </>
      )}
    </Card>
  );
}
