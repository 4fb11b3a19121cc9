// k6 has a console, which neither @types/k6 nor the language itself declares.
declare const console: {
  log(...values: unknown[]): void;
  warn(...values: unknown[]): void;
  error(...values: unknown[]): void;
};
