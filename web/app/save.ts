// SPDX-License-Identifier: Apache-2.0
// Saving of a file by the browser.
export function saveBlob(name: string, content: Blob): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}
