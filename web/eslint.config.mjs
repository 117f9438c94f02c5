// SPDX-License-Identifier: Apache-2.0
// What eslint looks for in the page's sources: faults, not taste. tests/lib/gates.sh runs it.
import hooks from "eslint-plugin-react-hooks";
import typescript from "typescript-eslint";

export default typescript.config(
  { ignores: ["app/vendor/**", "node_modules/**"] },
  ...typescript.configs.recommended,
  {
    files: ["app/**/*.{ts,tsx}", "tests/**/*.ts"],
    plugins: { "react-hooks": hooks },
    rules: {
      "react-hooks/rules-of-hooks": "error",
      eqeqeq: "error",
      "no-fallthrough": "error",
      "no-self-compare": "error",
      "no-unsafe-finally": "error",
      "no-unused-expressions": "off",
      "@typescript-eslint/no-unused-expressions": ["error", { allowShortCircuit: true, allowTernary: true }],
    },
  },
);
