// @ts-check
// Bundles src/ into one script and one style sheet, which are committed: installing needs no Node.
import { defineConfig } from "vite";

export default defineConfig({
  build: {
    outDir: "../src/trainmem/static",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: false,
    rolldownOptions: {
      input: "src/main.js",
      preserveEntrySignatures: "strict",
      output: { format: "es", entryFileNames: "widget.js", assetFileNames: "widget[extname]" },
    },
  },
});
