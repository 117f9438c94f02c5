// SPDX-License-Identifier: Apache-2.0
// For the type checker: esbuild builds app.css from the imported files.
declare module "*.css";
