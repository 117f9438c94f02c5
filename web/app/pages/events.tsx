// SPDX-License-Identifier: Apache-2.0
// Events, newest first, and the triggers of the run.
import { ApiError, call } from "../api";
import { int, processName, quoted, time } from "../format";
import { useLoaded } from "../load";
import type { EventInfo } from "../messages";
import { Command, Empty, Show } from "../parts/basics";
import { Table, type Column } from "../parts/table";
import { href } from "../route";
import { t } from "../text";

export function Events({ run }: { run: string }) {
  const events = useLoaded(`events ${run}`, (signal) => call<{ events: EventInfo[] }>("ControlService/ListEvents", { run }, signal), 2000);
  const triggers = useLoaded(`triggers ${run}`, async (signal) => {
    try {
      return { spec: await call<Record<string, unknown>>("ControlService/GetTriggers", { run }, signal) };
    } catch (error) {
      // No triggers are set.
      if (error instanceof ApiError && error.code === "NOT_FOUND") return {};
      throw error;
    }
  });
  const columns: Column<EventInfo>[] = [
    { name: t("Time"), text: (one) => int(one.timeUnixNs), show: (one) => time(one.timeUnixNs) },
    { name: t("Event"), text: (one) => one.kind.replace(/^KIND_/, "").toLowerCase().replace(/_/g, " ") },
    { name: t("Process"), text: (one) => (one.identity ? processName(one.identity.rank, one.identity.pid) : "") },
    { name: t("Step"), text: (one) => int(one.step), numeric: true,
      show: (one) => int(one.step) < 0 ? "–" : <a href={href("step", run, { step: int(one.step), rank: one.identity?.rank, call: one.entry })}>{int(one.step)}</a> },
    { name: t("Rule"), text: (one) => one.rule },
    { name: t("Call"), text: (one) => one.entry },
    { name: t("Seen"), text: (one) => one.detail },
    { name: t("Done"), text: (one) => one.outcome },
  ];
  return (
    <>
      <Show of={events}>
        {({ events: all }) => all.length === 0 ? (
          <Empty>
            <p>{t("There are no events yet. A trigger automatically records the steps around a NaN or a jump of a norm or of the loss:")}</p>
            <Command text={`rankprobe triggers set --run ${quoted(run)} triggers.json`} />
          </Empty>
        ) : <Table rows={[...all].reverse()} columns={columns} file="events.csv" label={t("Events")} rowKey={(one) => String(one.id)}
            rowClass={(one) => (one.kind === "KIND_ERROR" || one.kind === "KIND_TRIGGER_FIRED" ? "bad" : "")} />}
      </Show>
      <h2>{t("Triggers and budgets")}</h2>
      <Show of={triggers}>{({ spec }: { spec?: unknown }) => spec === undefined ? <p class="note">{t("This run has no triggers.")}</p> : <pre class="json">{JSON.stringify(spec, null, 2)}</pre>}</Show>
      <Command text={`rankprobe watch --run ${quoted(run)}`} />
    </>
  );
}
