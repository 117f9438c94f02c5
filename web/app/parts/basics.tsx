// SPDX-License-Identifier: Apache-2.0
// Basic components of every page.
import type { ComponentChildren } from "preact";
import { useId, useLayoutEffect, useState } from "preact/hooks";
import { call, whyNoSwitch, type ApiError } from "../api";
import { useLoaded, type Loaded } from "../load";
import type { RunInfo } from "../messages";
import { t } from "../text";

export function Failure({ error, retry }: { error: ApiError; retry?: () => void }) {
  return (
    <div class="failure" role="alert">
      <strong>{error.code}</strong> {error.message}
      {error.code === "UNAVAILABLE" && <p>{t("No collector answers there. Start one, or give its address: rankprobe view --collector HOST:PORT")}</p>}
      {error.code === "UNAUTHENTICATED" && <p>{t("Open the address that rankprobe view printed: it ends with the key to this page.")}</p>}
      {retry && <button onClick={retry}>{t("Try again")}</button>}
    </div>
  );
}

// Shown next to buttons that are disabled because the caller lacks the right.
export function NoSwitch() {
  const why = whyNoSwitch();
  return why === "" ? null : <p class="note" role="note">{why}</p>;
}

export function Empty({ children }: { children: ComponentChildren }) {
  return <div class="empty">{children}</div>;
}

// Shows the loaded value, or why it is missing; the last value stays visible while the next is loaded.
export function Show<T>({ of, children }: { of: Loaded<T>; children: (value: T) => ComponentChildren }) {
  return (
    <>
      {of.error && <Failure error={of.error} retry={of.reload} />}
      {of.value === undefined ? !of.error && <p class="waiting" aria-busy="true">{t("Loading …")}</p> : children(of.value)}
    </>
  );
}

export function Card({ title, children, kind = "" }: { title: string; children: ComponentChildren; kind?: string }) {
  return (
    <section class={`card ${kind}`}>
      <h2>{title}</h2>
      {children}
    </section>
  );
}

// Frames are innermost first, as in stack.json; the program's own lines are highlighted.
export function Stack({ frames }: { frames: string[] }) {
  return (
    <ol class="stack" tabIndex={0} aria-label={t("Stack")}>
      {frames.map((frame, i) => <li key={i} class={/\/(site|dist)-packages\/|\/lib\/python3/.test(frame) ? "library" : "own"}>{frame.trim()}</li>)}
    </ol>
  );
}

// Shows the command that does the same in a terminal.
export function Command({ text }: { text: string }) {
  const [copied, setCopied] = useState(false);
  const copy = () =>
    navigator.clipboard?.writeText(text).then(() => {
      setCopied(true);
      setTimeout(() => setCopied(false), 1500);
    });
  return (
    <div class="command">
      <code>{text}</code>
      <button onClick={copy} aria-label={t("Copy the command")}>{copied ? t("Copied") : t("Copy")}</button>
    </div>
  );
}

export function Field({ label, children }: { label: string; children: ComponentChildren }) {
  return (
    <label class="field">
      <span>{label}</span>
      {children}
    </label>
  );
}

// The fields above a view; collapsed on a narrow screen.
export function Filters({ children }: { children: ComponentChildren }) {
  const [unfolded, setUnfolded] = useState(false);
  return (
    <div class={`filters ${unfolded ? "" : "folded"}`}>
      <button type="button" class="fold" aria-expanded={unfolded} onClick={() => setUnfolded(!unfolded)}>{t("Filters")}</button>
      <div class="form">{children}</div>
    </div>
  );
}

// Selects one of the archive's runs, or none; the address may name a run that is not listed.
export function RunSelect({ label, value, none = "–", onChange }: { label: string; value: string; none?: string; onChange: (run: string) => void }) {
  const runs = useLoaded("runs to choose from", (signal) => call<{ runs: RunInfo[] }>("ArchiveService/ListRuns", {}, signal));
  const names = (runs.value?.runs ?? []).map((one) => one.run);
  return <Select label={label} value={value} onChange={onChange}
    of={[["", none], ...[...names, ...(value === "" || names.includes(value) ? [] : [value])].map((name): [string, string] => [name, name])]} />;
}

// A field whose text takes effect when it loses the focus or Enter is pressed. `options` are suggested during typing.
export function TextField(props: { label: string; value: string; placeholder?: string; onChange: (text: string) => void; wide?: boolean; options?: string[] }) {
  // Typed text is kept when the page is rendered meanwhile.
  const [draft, setDraft] = useState(props.value);
  const list = useId();
  // Runs before the user can type; a later effect would discard text that was typed immediately.
  useLayoutEffect(() => setDraft(props.value), [props.value]);
  const take = (text: string) => {
    if (text.trim() !== props.value) props.onChange(text.trim());
  };
  return (
    <Field label={props.label}>
      <input class={props.wide ? "wide" : ""} value={draft} placeholder={props.placeholder} spellcheck={false}
        onInput={(event) => setDraft(event.currentTarget.value)} onBlur={(event) => take(event.currentTarget.value)}
        onKeyDown={(event) => event.key === "Enter" && take(event.currentTarget.value)} list={props.options && list} />
      {props.options && <datalist id={list}>{props.options.map((one) => <option key={one} value={one} />)}</datalist>}
    </Field>
  );
}

export function Select(props: { label: string; value: string; of: [string, string][]; onChange: (value: string) => void }) {
  return (
    <Field label={props.label}>
      <select aria-label={props.label} value={props.value} onChange={(event) => props.onChange(event.currentTarget.value)}>
        {props.of.map(([value, text]) => <option key={value} value={value}>{text}</option>)}
      </select>
    </Field>
  );
}
