// SPDX-License-Identifier: Apache-2.0
// For the type checker: esbuild makes app.css of what is imported.
declare module "*.css";
