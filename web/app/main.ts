// SPDX-License-Identifier: Apache-2.0
import "./app.css";
import { start } from "./shell";

start(document.getElementById("app")!);
