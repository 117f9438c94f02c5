// SPDX-License-Identifier: Apache-2.0
// English texts stand in the code; the Chinese of each is in chinese.ts.
import { signal } from "@preact/signals";
import { CHINESE } from "./chinese";
import { filled } from "./format";

const LANGUAGE_KEY = "rankprobe.language";
export type Language = "en" | "zh";

export const language = signal<Language>(
  (localStorage.getItem(LANGUAGE_KEY) as Language | null) ?? (navigator.language.startsWith("zh") ? "zh" : "en"));

export function setLanguage(value: Language): void {
  language.value = value;
  localStorage.setItem(LANGUAGE_KEY, value);
  document.documentElement.lang = value;
}

// "{0}" and so on are replaced by `values`.
export function t(text: string, ...values: (string | number)[]): string {
  return filled(language.value === "zh" ? CHINESE[text] ?? text : text, values);
}
