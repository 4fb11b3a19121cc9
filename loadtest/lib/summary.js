// Reads what k6 hands to handleSummary(), in the form of k6 1 (metrics by name) and in that of k6 2 (a list).

/**
 * @param {any} data
 * @param {string} name of a metric, with its tags where it has any
 * @returns {Record<string, number> | undefined} its values, undefined where it has none
 */
export function values(data, name) {
  if (data.results) {
    const found = data.results.metrics.find((/** @type {any} */ m) => m.name === name);
    if (found) return found.values;
    // Checks stand apart there, without those of one tag.
    return name.startsWith('checks{') && data.results.checks ? data.results.checks.metrics.checksSucceeded.values : undefined;
  }
  return data.metrics[name] && data.metrics[name].values;
}
