// SPDX-License-Identifier: Apache-2.0
// What modules of the page ask a browser for when they are loaded: no language is stored, and it is English.
Object.defineProperty(globalThis, "localStorage", { value: { getItem: () => null, setItem() {} } });
Object.defineProperty(globalThis, "navigator", { value: { language: "en" }, configurable: true });
